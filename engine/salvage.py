"""What is whole of a damaged store: events, and marks where some are lost.

Invariants:
    1. Every event that comes out can be read to the last of its fields.
    2. A mark stands where the lost events stood, one for each, so that loading what was exported
       gives all others the sequences and parents that they had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from engine.contents import Beginnings, ExportedContents, Preface
from engine.events import Event, decode_opening
from engine.export import encode_line, escape_line
from eventlog.errors import CorruptionError
from eventlog.keys import is_derived
from eventlog.limits import TIME_MAX
from eventlog.log import Log
from eventlog.record import CONTROL
from eventlog.salvage import FoundSession, LostEvents, Salvage

MARK_KIND: Final = "turnlog.damaged"
"""Kind of the events that stand for lost ones in an export."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lost:
    """Events that cannot be read.

    Attributes:
        tenant: The tenant's name, None when nobody knows whose the events were.
        session: The session's name, likewise.
        first: First sequence; the position where no session is known.
        last: Last sequence, likewise.
        error: Why.
        is_blob: The event ``first`` is whole and came, without a blob that it named.
    """

    tenant: str | None
    session: str | None
    first: int
    last: int
    error: CorruptionError
    is_blob: bool = False


def salvage_lines(
    log: Log, tenant: str | None = None, session: str | None = None
) -> Iterator[str | Lost]:
    """Export lines of all that is whole, in the order of an export, and what is lost.

    Right before a ``Lost`` come the marks that stand for its events.

    Args:
        log: The store.
        tenant: Only this tenant's sessions; None takes all.
        session: Only sessions of this name.
    """
    walk = Salvage(log, Event)
    exported = ExportedContents(log)
    beginnings = Beginnings(log)
    for found in sorted(walk.sessions(), key=_in_order):
        origin = found.origin
        if is_derived(origin.name):
            continue  # a load makes what it holds anew
        if tenant in (None, origin.tenant) and session in (None, origin.name):
            yield from _session_lines(walk, found, exported, beginnings)
    for lost in walk.strays():
        yield Lost(None, None, lost.first, lost.last, lost.error)


def _in_order(found: FoundSession) -> tuple[bytes, bytes]:
    return found.origin.tenant.encode(), found.origin.name.encode()


def _session_lines(
    walk: Salvage[Event],
    found: FoundSession,
    exported: ExportedContents,
    beginnings: Beginnings,
) -> Iterator[str | Lost]:
    origin = found.origin
    mark: dict[str, Any] = {
        "tenant": origin.tenant,
        "session": origin.name,
        "kind": MARK_KIND,
        "recorded_us": 0 if found.row is None else min(found.row.created_us, TIME_MAX),
        "opening": _opening(found),
    }
    for each, following in _with_next(walk.read(found)):
        if isinstance(each, Event):
            blobs: list[CorruptionError] = []
            preface = _preface(beginnings, each)
            opening = None if preface is None else preface.opening
            base = None if preface is None else preface.base
            lines = exported.lines(each, opening, blobs, base)
            try:
                line = next(lines, None)
            except CorruptionError as error:
                each = LostEvents(origin, each.sequence, each.sequence, error)
            else:
                if line is None:
                    continue
                yield line
                yield from lines
                for why in blobs:
                    sequence = each.sequence
                    yield Lost(origin.tenant, origin.name, sequence, sequence, why, is_blob=True)
                mark["recorded_us"] = min(each.recorded_us, TIME_MAX)
                mark["opening"] = None
                if each.kind_code < CONTROL:
                    mark["parent"] = each.sequence
                continue
        mark["body"] = {"lost": str(each.error)}
        for sequence in range(each.first, each.last + 1):
            mark["sequence"] = sequence
            # The one event that is nobody's parent: what ``create`` wrote.
            is_open = sequence == each.last == 0 and _is_root(following)
            yield encode_line(escape_line({**mark, "kind": "open"} if is_open else mark))
            mark["parent"] = None if is_open else sequence
            mark["opening"] = None
        yield Lost(origin.tenant, origin.name, each.first, each.last, each.error)


def _preface(beginnings: Beginnings, event: Event) -> Preface | None:
    """What was purged before an event, if that can be read."""
    try:
        return beginnings.of(event)
    except CorruptionError:
        return None


def _with_next(items: Iterator[T]) -> Iterator[tuple[T, T | None]]:
    """Each item and the one after it."""
    before: T | None = None
    for item in items:
        if before is not None:
            yield before, item
        before = item
    if before is not None:
        yield before, None


def _is_root(event: Event | LostEvents | None) -> bool:
    return isinstance(event, Event) and event.kind_code < CONTROL and event.parent is None


def _opening(found: FoundSession) -> dict[str, Any] | None:
    if found.row is None or found.row.opening is None:
        return None
    try:
        return decode_opening(found.row.opening, f"session {found.origin.number}")
    except CorruptionError:
        return None
