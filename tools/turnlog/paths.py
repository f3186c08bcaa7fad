"""``--branch`` and ``--leaf``: a path of a session, by its branch or by the event it ends with."""

from __future__ import annotations

from collections.abc import Iterator

from engine import Event, Session
from eventlog.errors import UsageError


class BranchPath:
    """The events from the root to a leaf.

    Args:
        session: The session.
        branch: The name or number of a branch, as ``turnlog branches`` lists them; None where a
            leaf is given. A text of digits is a number.
        leaf: Sequence of the event instead.
        others: Options that name something else than a path, and whether they are given.

    Raises:
        UsageError: There is no such branch or event, or one of the others is given too.
    """

    def __init__(
        self, session: Session, branch: str | None, leaf: int | None, **others: bool
    ) -> None:
        mine = "--leaf" if branch is None else "--branch"
        if branch is not None and leaf is not None:
            raise UsageError("--branch and --leaf do not go together", hint="Leave one out.")
        for other, is_given in others.items():
            if is_given:
                raise UsageError(
                    f"{mine} and --{other} do not go together",
                    hint="Give the sequence of an earlier event as --leaf, or leave one out.",
                )
        self._session = session
        self._leaf: int | str | None = leaf
        if branch is not None and branch.isascii() and branch.isdigit():
            self._leaf = _leaf_of(session, branch)
        elif branch is not None:
            self._leaf = branch
        session.path(self._leaf, limit=1)  # refused here, before anything is written

    def events(self) -> Iterator[Event]:
        """The events, root first, read as they are asked for."""
        return iter(self._session.path_events(self._leaf))


def path_of(
    session: Session, branch: str | None, leaf: int | None, **others: bool
) -> BranchPath | None:
    """The path that is asked for; None when none is. See ``BranchPath``."""
    if branch is None and leaf is None:
        return None
    return BranchPath(session, branch, leaf, **others)


def _leaf_of(session: Session, number: str) -> int:
    """Sequence of the newest event of a branch, by the branch's number."""
    listed = "`turnlog branches` lists numbers and names; an event is named by --leaf."
    for branch in session.branches():
        if f"{branch.number}" == (number.lstrip("0") or "0"):
            if branch.leaf is None:
                raise UsageError(f"branch {branch.number} has no event yet", hint=listed)
            return branch.leaf
    raise UsageError(f"session {session.name!r} has no branch {number[:20]}", hint=listed)
