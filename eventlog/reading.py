"""Reading events within one read transaction: a session's pages, and the global order.

Invariants:
    1. Everything is copied out; nothing returned depends on the transaction.
    2. A session's events are the segments below its row's ``sealed`` and the loose ones from there
       on (see ``index``); together they have no gap.
    3. Positions below the floor are found through the order blocks, those from it on in the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final, Generic

import numpy as np

from eventlog.branching import Branching
from eventlog.columns import Words
from eventlog.decoded import Segment
from eventlog.errors import CorruptionError, TrimmedError
from eventlog.hotlog import HotLog
from eventlog.index import Loose
from eventlog.keys import U64
from eventlog.known import Known
from eventlog.limits import BLOCK_POSITIONS
from eventlog.order import block_first, block_of
from eventlog.record import (
    CHECKSUM_BYTES,
    KIND_BYTE,
    WORDS,
    Factory,
    Origin,
    R,
    decode_record,
    verify_record,
    void_event,
)
from eventlog.rows import CommitRecord
from eventlog.segment import SegmentPrefix
from eventlog.segmentcache import SegmentCache
from eventlog.tables import ReadTables


@dataclass(slots=True)
class SessionView:
    """One session as one transaction sees it.

    Attributes:
        origin: Number and names.
        sealed: Events in segments; the loose ones start there.
        loose: The loose list; its entries below ``loose_stop`` are used.
        loose_stop: How many entries of it belong to this view.
        record: The transaction's commit record.
        first: First sequence that was not purged.
        known: What is known of the session beside the transaction's row of it.
        branches: Whether the session branches, as far as this view or a later one knows.
        branching: What memory kept of its branches when the loose list was taken, or later.
    """

    origin: Origin
    sealed: int
    loose: Loose
    loose_stop: int
    record: CommitRecord
    first: int = 0
    known: Known | None = None
    branches: bool = False
    branching: Branching | None = None

    @property
    def event_count(self) -> int:
        """Number of events; sequences run from 0 to one less."""
        return max(self.sealed, self.loose.base + self.loose_stop)


def read_page(
    tables: ReadTables,
    view: SessionView,
    cache: SegmentCache,
    first: int,
    last: int,
    factory: Factory[R],
    *,
    events_max: int,
    bytes_max: int,
) -> tuple[list[R], int]:
    """Events of a session from sequence ``first`` to ``last`` (inclusive), in order.

    Sequence 0 stands for the first event that was not purged.

    Returns:
        The events, and the sequence to go on with (``last + 1`` when all is read).

    Raises:
        TrimmedError: Event ``first`` was purged, or all up to ``last`` were.
    """
    found: list[R] = []
    if 0 < first < view.first or last < view.first:
        raise TrimmedError(
            f"event {first} of session {view.origin.name!r} was purged; it begins at {view.first}",
            first=view.first,
        )
    first = max(first, view.first)
    size = 0
    last = min(last, view.event_count - 1)
    sequence = first
    number = view.origin.number
    if sequence <= last and sequence < view.sealed:
        for segment in tables.segments(number, sequence, cache):
            place = sequence - segment.first_sequence
            if not 0 <= place < segment.count:
                break
            stop = min(last - segment.first_sequence + 1, segment.count)
            for index in range(place, stop):
                found.append(segment.make(index, view.origin, factory))
            size += segment.starts[stop] - segment.starts[place]
            sequence = segment.first_sequence + stop
            if len(found) >= events_max or size >= bytes_max:
                return found, sequence
            if sequence > last or sequence >= view.sealed:
                break
        if sequence <= last and sequence < view.sealed:
            raise CorruptionError("segment is missing", where=f"session {number}/{sequence}")
    log = tables.hot_log(view.record)
    loose = view.loose
    while sequence <= last:
        place = sequence - loose.base
        value = loose.records[sequence]
        if value is None:
            value = read_loose(log, view, place)
        found.append(decode_record(view.origin, loose.positions[place], value, factory))
        size += len(value)
        sequence += 1
        if len(found) >= events_max or size >= bytes_max:
            break
    return found, sequence


def read_loose(log: HotLog, view: SessionView, place: int) -> bytes:
    """A loose record that memory does not hold."""
    position = view.loose.positions[place]
    wanted = (view.origin.number, view.loose.base + place)
    value = log.get(position) if position else None
    if value is None:
        where = f"log {position}" if position else f"session {wanted[0]}/{wanted[1]}"
        raise CorruptionError("record is missing", where=where)
    verify_record(U64.pack(position), value)
    if WORDS.unpack_from(value, CHECKSUM_BYTES)[:2] != wanted:
        raise CorruptionError("record is of another event", where=f"log {position}")
    return value


def read_last(
    tables: ReadTables,
    view: SessionView,
    cache: SegmentCache,
    count: int,
    kind: int,
    factory: Factory[R],
) -> list[R]:
    """The last ``count`` events of one kind, oldest first; costs what it returns."""
    found: list[R] = []
    loose = view.loose
    log = None
    for place in range(view.loose_stop - 1, view.sealed - loose.base - 1, -1):
        if len(found) >= count:
            break
        value = loose.records[loose.base + place]
        if value is None:
            log = log or tables.hot_log(view.record)
            value = read_loose(log, view, place)
        if value[KIND_BYTE] == kind:
            found.append(decode_record(view.origin, loose.positions[place], value, factory))
    following = view.sealed
    start = view.first
    if len(found) < count and following > start:
        for segment in tables.segments(view.origin.number, following - 1, cache, reverse=True):
            if segment.first_sequence + segment.count != following:
                break
            following = segment.first_sequence
            for index in range(segment.count - 1, -1, -1):
                if segment.kinds[index] == kind:
                    found.append(segment.make(index, view.origin, factory))
                    if len(found) == count:
                        break
            if len(found) == count or following <= start:
                break
        if len(found) < count and following > start:
            raise CorruptionError(
                "segment is missing", where=f"session {view.origin.number}/{following - 1}"
            )
    found.reverse()
    return found


class Window(Generic[R]):
    """A stretch of the global order, decoded as far as segments; events are made when asked for.

    Attributes:
        first: The first position.
        count: How many positions it holds.
        byte_count: About what it takes in memory; 0 for a window of the hot log.
        has_voids: Whether events of kind ``VOID`` are among them.
    """

    def __init__(self, first: int, factory: Factory[R]) -> None:
        self.first = first
        self.byte_count = 0
        self.has_voids = False
        self._factory = factory
        self._events: list[R] = []  # of the hot log
        self._pieces: list[tuple[Segment, Origin]] = []
        # Of each position the piece, and the index in that. No pairs: the garbage collector would
        # look at each of them.
        self._numbers: list[int] = []
        self._indexes: list[int] = []
        self._voids: dict[int, R] = {}  # by place; of sealed positions

    @property
    def count(self) -> int:
        """How many positions it holds."""
        return len(self._events) or len(self._numbers)

    def add_void(self, place: int, origin: Origin, sequence: int) -> None:
        """Note that nothing is left of the event at a place of a sealed window."""
        self.has_voids = True
        position = self.first + place
        self._voids[place] = void_event(position, origin, sequence, self._factory)

    def events(self, start: int, stop: int) -> list[R]:
        """The events from place ``start`` to before ``stop``, places from 0."""
        if self._events:
            return self._events[start:stop]
        factory = self._factory
        pieces = self._pieces
        made: list[R] = []
        for place, number, index in zip(
            range(start, stop),
            self._numbers[start:stop],
            self._indexes[start:stop],
            strict=True,
        ):
            if number < 0:
                made.append(self._voids[place])
                continue
            segment, origin = pieces[number]
            made.append(segment.make(index, origin, factory))
        return made


def read_positions(
    tables: ReadTables,
    record: CommitRecord,
    cache: SegmentCache,
    first: int,
    last: int,
    place_of: PlaceOf,
    factory: Factory[R],
    *,
    bytes_max: int,
) -> Window[R]:
    """Events at positions ``first`` … ``last`` (inclusive, ``last`` at most the last position).

    Those that were removed are there as events of kind ``VOID``.

    Stops early at ``bytes_max`` and at the floor; gives at least one event.
    """
    window = Window(first, factory)
    if first < record.floor:
        _read_sealed(tables, cache, window, min(last, record.floor - 1), place_of, bytes_max)
        return window
    found = window._events
    size = 0
    last = min(last, first + BLOCK_POSITIONS - 1)  # longer windows are of no use here
    for key, value in tables.hot_log(record).read(0, first, last - first + 1):
        verify_record(key, value)
        position = U64.unpack(key)[0]
        if position != first + len(found):
            break
        number, sequence = _PLACE.unpack_from(value, CHECKSUM_BYTES)
        origin, start = place_of(tables, number)
        if sequence < start:
            found.append(void_event(position, origin, sequence, factory))
            window.has_voids = True
        else:
            found.append(decode_record(origin, position, value, factory))
        size += len(value)
        if size >= bytes_max:
            return window
    if len(found) != last - first + 1:
        raise CorruptionError("record is missing", where=f"log {first + len(found)}")
    return window


PlaceOf = Callable[[ReadTables, int], tuple[Origin, int]]
"""By session number: where its events come from, and the first sequence that was not purged."""

_PLACE: Final = Struct("<QQ")  # session number and sequence at the start of a header
_NO_SEGMENT: Final = Segment(0, SegmentPrefix(*[0] * 14), b"", b"", b"", [0])


class _WindowFull(Exception):
    """The events of a window take more memory than allowed."""


def _read_sealed(
    tables: ReadTables,
    cache: SegmentCache,
    window: Window[R],
    last: int,
    place_of: PlaceOf,
    bytes_max: int,
) -> None:
    """Fill a window with sealed events; fewer than asked for when they would take too much."""
    columns = _order_columns(tables, window.first, last)
    while True:
        try:
            _fill_window(tables, cache, window, columns, place_of, bytes_max)
            return
        except _WindowFull:
            columns = columns[: max(1, len(columns) // 2)]


def _order_columns(tables: ReadTables, first: int, last: int) -> Words:
    """Session numbers and sequences of sealed positions, shape (last - first + 1, 2)."""
    blocks = [
        tables.load_block(block).columns for block in range(block_of(first), block_of(last) + 1)
    ]
    if any(len(columns) != BLOCK_POSITIONS for columns in blocks):
        raise CorruptionError("is below the floor and not cut", where=f"order block of {first}")
    skipped = first - block_first(block_of(first))
    return np.concatenate(blocks)[skipped : skipped + last - first + 1]


def _fill_window(
    tables: ReadTables,
    cache: SegmentCache,
    window: Window[R],
    columns: Words,
    place_of: PlaceOf,
    bytes_max: int,
) -> None:
    """Group by session, decode each segment once, and put the events back in order."""
    order = np.lexsort((columns[:, 1], columns[:, 0]))
    numbers = columns[order, 0]
    sequences = columns[order, 1].tolist()
    places = order.tolist()
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(places)]
    pieces: list[tuple[Segment, Origin]] = []
    counts: list[int] = []
    size = 0
    with tables.segment_cursor() as cursor:
        for start, stop in zip(starts[:-1], starts[1:], strict=True):
            number = int(numbers[start])
            origin, kept = place_of(tables, number)
            done = start
            if sequences[start] < kept:
                done = bisect_left(sequences, kept, start, stop)
                for place in range(start, done):
                    window.add_void(places[place], origin, sequences[place])
                pieces.append((_NO_SEGMENT, origin))
                counts.append(done - start)
                if done == stop:
                    continue
            kept_from = sequences[stop - 1] + 1
            for segment in tables.segments(
                number, sequences[done], cache, kept_from=kept_from, cursor=cursor
            ):
                begin = sequences[done] - segment.first_sequence
                if begin < 0:
                    break
                first = done
                done = bisect_left(sequences, segment.first_sequence + segment.count, done, stop)
                end = begin + done - first
                if sequences[done - 1] - segment.first_sequence != end - 1:
                    break
                _check_place(window.first, segment, begin, places[first])
                _check_place(window.first, segment, end - 1, places[done - 1])
                piece = segment if 2 * (done - first) > segment.count else segment.part(begin, end)
                size += piece.memory_bytes
                pieces.append((piece, origin))
                counts.append(done - first)
                if done == stop:
                    break
            if done < stop:
                raise CorruptionError(
                    "event is in no segment", where=f"position {window.first + places[done]}"
                )
            if size > bytes_max and len(places) > 1:
                raise _WindowFull
    # From the order of sessions back to that of positions.
    firsts = np.array([piece.first_sequence for piece, _ in pieces], np.uint64)
    of_places = np.empty(len(places), np.intp)
    of_places[order] = np.repeat(np.arange(len(pieces)), counts)
    window._pieces = pieces
    window._numbers = of_places.tolist()
    window._indexes = (columns[:, 1] - firsts[of_places]).tolist()
    for place in window._voids:
        window._numbers[place] = -1
    window.byte_count = size


def _check_place(first: int, segment: Segment, index: int, place: int) -> None:
    """The order block and the segment must mean the same position."""
    if segment.position(index) != first + place:
        raise CorruptionError("order block and segment disagree", where=f"position {first + place}")
