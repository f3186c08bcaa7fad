"""Whether what a summary was made of was redacted before the summary is appended.

The receipt of a redaction names the summaries that may tell of what it removed; one that comes
later would be in none. So a summary is appended only while nothing was removed from the store since
somebody looked (``Terms.removals``), and who looks finds what was redacted since it was made.

Invariants:
    1. Content is removed and ``CommitRecord.removals`` raised in one transaction, so that an append
       with the number from before a look comes before whatever that look did not see.
    2. A redaction that was said when the summary's messages were read is none since then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.events import Event
from engine.pathscan import PathScan
from eventlog.errors import AppendConflictError
from eventlog.index import Name
from eventlog.limits import STATE_PAGE_EVENTS
from eventlog.log import Log
from eventlog.record import REDACTION
from eventlog.rows import REDACTED

_KINDS: Final = frozenset({REDACTION})


@dataclass(frozen=True, slots=True)
class Moment:
    """When a session was read.

    Attributes:
        number: Number of the session's incarnation.
        event_count: Its events; those that came later are not among them.
        removals: How often something had been removed from the store.
        has_redacted: Whether events of it were ever redacted here.
    """

    number: int
    event_count: int
    removals: int
    has_redacted: bool


def moment_of(log: Log, name: Name) -> Moment | None:
    """This moment of a session; None when there is none of that name."""
    with log.views.past(name) as past:
        if past is None:
            return None
        number = past.view.origin.number
        removals = past.tables.commit_record().removals
        has_redacted = past.tables.load_row(number).flags & REDACTED > 0
        return Moment(number, past.view.event_count, removals, has_redacted)


def require_unredacted(log: Log, name: Name, since: Moment, through: int) -> int:
    """Refuse a summary when events up to ``through`` on the path to the head were redacted since.

    Reads all the path where something was removed from the store since, else nothing.

    Returns:
        What ``CommitRecord.removals`` has to be at the append.

    Raises:
        AppendConflictError: One was; names it.
    """
    now = moment_of(log, name)
    if now is None or now.number != since.number or now.removals == since.removals:
        return since.removals  # one that is gone is refused by its number
    if not now.has_redacted:
        return now.removals
    said = redactions_of(log, name, 0, since.event_count)
    for block in PathScan(log, name, None).blocks(through + 1):
        for index, sequence in enumerate(block.sequences):
            if block.event(index).redacted and not any(
                [first <= sequence <= last for first, last in said]
            ):
                raise AppendConflictError(
                    f"event {sequence} of session {name[1]!r} was redacted while it was summarised",
                    hint="Summarise again: the summary may tell of what was removed.",
                )
    return now.removals


def redactions_of(log: Log, name: Name, start: int, stop: int) -> list[tuple[int, int]]:
    """First and last events of the redactions that a session tells of between two sequences."""
    found: list[tuple[int, int]] = []
    following = start
    while following < stop:
        with log.views.past(name) as past:
            if past is None:
                break
            following = max(following, past.first)
            events, following = past.read_kinds(following, stop, _KINDS, Event, STATE_PAGE_EVENTS)
        for event in events:
            body = event.body if type(event.body) is dict else {}
            first, last = body.get("first"), body.get("last")
            if type(first) is int and type(last) is int:
                found.append((first, last))
    return found
