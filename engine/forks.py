"""Branches of what belongs to an event, where that event does not tell it.

Usage and artifacts belong to an event and are on its branch, but for those that came right after a
fork: they are on the branch that the fork opened, which has no event of its own yet. So their lines
in an export say the branch, and all others leave it out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from engine.events import Event
from eventlog.branching import PROJECTION, tip_key
from eventlog.errors import SessionGoneError
from eventlog.log import Log
from eventlog.past import Past
from eventlog.record import BELONGS

OPENINGS_KEPT: Final = 4_096


class Forks:
    """Looks branches up by what opened them, which never changes; each of the newest once."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._opened: OrderedDict[tuple[int, int], int] = OrderedDict()

    def branch_of(self, event: Event) -> int | None:
        """The branch of what belongs to an event of another one; None of all other events.

        Raises:
            CorruptionError: What opened its branch is damaged.
            SessionGoneError: Its session was deleted meanwhile.
        """
        if event.kind_code not in BELONGS or not event.branch or event.parent is None:
            return None
        return event.branch if event.parent < self._opening(event) else None

    def _opening(self, event: Event) -> int:
        """Sequence of the event that opened an event's branch; 0 where nothing tells it."""
        key = (event.session_number, event.branch)
        found = self._opened.get(key)
        if found is None:
            with self._log.views.past((event.tenant, event.session)) as past:
                current = None if past is None else past.view.origin.number
                if past is None or current != event.session_number:
                    raise SessionGoneError.while_read(event.session, event.session_number, current)
                opening = past.opening(event.branch)
            found = self._opened[key] = 0 if opening is None else opening.sequence
            if len(self._opened) > OPENINGS_KEPT:
                self._opened.popitem(last=False)
        return found


def stands_on_fork(past: Past, head: int | None) -> bool:
    """Whether a session's head is on a branch that has no event yet."""
    if head is None or head < past.first or not past.view.branches:
        return False
    return past.event(head, Event).branch != past.head_branch(past.view.event_count)


def began_on_fork(base: Mapping[str, Any] | None, rows: list[tuple[int, bytes, bytes]]) -> bool:
    """The same of the moment that a ``base`` tells of, from the rows that it stands for."""
    branch = 0 if base is None else base.get("head_branch")
    if type(branch) is not int or not branch:
        return False
    return not any([row[:2] == (PROJECTION, tip_key(branch)) for row in rows])
