"""``--branch``: a path of a session, named by a branch or by the event that it ends with."""

from __future__ import annotations

from collections.abc import Iterator

from engine import Event, Session
from eventlog.errors import UsageError


class BranchPath:
    """The events from the root to a leaf.

    Args:
        session: The session.
        branch: The name of a branch, or the sequence of an event.
        others: Options that name something else than a path, and whether they are given.

    Raises:
        UsageError: There is no such branch or event, or one of the others is given too.
    """

    def __init__(self, session: Session, branch: str, **others: bool) -> None:
        for other, is_given in others.items():
            if is_given:
                raise UsageError(
                    f"--branch and --{other} do not go together",
                    hint="Give the sequence of an earlier event as --branch, or leave one out.",
                )
        self._session = session
        self._leaf = int(branch) if branch.isascii() and branch.isdigit() else branch
        session.path(self._leaf, limit=1)  # refused here, before anything is written

    def events(self) -> Iterator[Event]:
        """The events, root first, read as they are asked for."""
        return iter(self._session.path_events(self._leaf))
