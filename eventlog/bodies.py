"""The bodies of a session's last messages, without making events of them.

Bodies without an extension that lie side by side are decoded with one call, as one CBOR array.
Measured on messages of 230 bytes, that is faster than decoding each by itself.

Invariants:
    1. Everything is copied out of the transaction; decoding is done after it.
    2. A stretch that does not decode as a whole gives nothing; the caller then reads its events
       one by one, which tells what is wrong with which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Generic

from eventlog.body import decode_side_by_side
from eventlog.decoded import EXTENSION_BYTE, HEAD_BYTES, Segment
from eventlog.errors import CorruptionError
from eventlog.keys import PAIR
from eventlog.limits import PAGE_BYTES, SEGMENT_EVENTS_MAX
from eventlog.reading import SessionView, read_loose
from eventlog.record import (
    HEADER_BYTES,
    KIND_BYTE,
    MESSAGE,
    Factory,
    R,
    decode_record,
)
from eventlog.segmentcache import SegmentCache
from eventlog.tables import ReadTables

STRETCH_BODIES_MAX: Final = 256  # decoded with one call, which keeps the GIL for about 0.15 ms
_NO_EXTENSION: Final = bytes(4)
_EXTENSION: Final = slice(HEADER_BYTES - 4, HEADER_BYTES)


@dataclass(slots=True)
class Stretch:
    """Bodies side by side, oldest first, at most ``STRETCH_BODIES_MAX``."""

    count: int
    encoded: list[bytes]

    @property
    def byte_count(self) -> int:
        """Bytes of the bodies."""
        return sum(map(len, self.encoded))

    def decode(self) -> list[Any] | None:
        """The bodies; None when the stretch is not what it should be."""
        return decode_side_by_side(self.count, self.encoded)


@dataclass(slots=True)
class Bodies(Generic[R]):
    """Messages of a page, newest first.

    Attributes:
        number: The session number.
        count: How many messages.
        pieces: Stretches of plain bodies, newest first, and events of the others.
        stop: Sequence to go on before; 0 when all that was asked for was read.
        tail: Newest sealed messages that are worth keeping.
    """

    number: int
    count: int = 0
    pieces: list[Stretch | R] = field(default_factory=list)
    stop: int = 0
    tail: Stretch | None = None


def read_bodies(
    tables: ReadTables,
    view: SessionView,
    cache: SegmentCache,
    stop: int,
    count: int,
    factory: Factory[R],
) -> Bodies[R]:
    """The last ``count`` messages before a sequence, or about ``PAGE_BYTES`` of them."""
    found: Bodies[R] = Bodies(view.origin.number)
    left = PAGE_BYTES
    stop = min(stop, view.event_count)
    if stop > view.sealed:
        stop, left = _read_loose(tables, view, stop, count, left, factory, found)
    if found.count == count:
        return found
    first = view.first
    if left > 0 and first < stop:
        last = SEGMENT_EVENTS_MAX
        known = view.known
        if stop == view.sealed and known is not None and known.is_kept:
            wanted = count - found.count
            if known.tail is None and wanted <= STRETCH_BODIES_MAX:
                last = wanted  # kept alone; whoever wants other ones next gets whole segments kept
            elif known.tail is not None and wanted == known.tail.count:
                found.pieces.append(known.tail)
                found.count = count
                return found
        while True:
            segment = _segment_before(tables, view.origin.number, stop, cache, last)
            if segment is None:
                break
            start = segment.first_sequence
            place = stop - start
            if not 0 < place <= segment.count:
                break
            left -= _read_segment(view, segment, place, count, factory, found)
            if last <= STRETCH_BODIES_MAX and place == segment.count and segment.has_tail(last):
                tail = found.pieces[-1]
                assert type(tail) is Stretch and tail.count == last
                found.tail = tail
            last = SEGMENT_EVENTS_MAX
            stop = start
            if found.count == count:
                return found
            if stop <= first or left <= 0:
                break
        if stop > first and left > 0:
            raise CorruptionError(
                "segment is missing", where=f"session {view.origin.number}/{stop - 1}"
            )
    found.stop = stop if stop > first else 0
    return found


def _read_loose(
    tables: ReadTables,
    view: SessionView,
    stop: int,
    count: int,
    left: int,
    factory: Factory[R],
    found: Bodies[R],
) -> tuple[int, int]:
    """Loose messages before ``stop``; gives the sequence that is next, and the bytes left."""
    loose = view.loose
    log = None
    plain: list[bytes] = []
    sequence = stop
    floor = max(view.sealed, view.first)
    while sequence > floor and found.count + len(plain) < count and left > 0:
        sequence -= 1
        value = loose.records[sequence]
        if value is None:
            log = log or tables.hot_log(view.record)
            value = read_loose(log, view, sequence - loose.base)
        if value[KIND_BYTE] != MESSAGE:
            continue
        left -= len(value)
        if value[_EXTENSION] == _NO_EXTENSION:
            plain.append(value[HEADER_BYTES:])
            if len(plain) == STRETCH_BODIES_MAX:
                _add_plain(found, plain)
                plain = []
            continue
        if plain:
            _add_plain(found, plain)
            plain = []
        position = loose.positions[sequence - loose.base]
        found.pieces.append(decode_record(view.origin, position, value, factory))
        found.count += 1
    if plain:
        _add_plain(found, plain)
    return sequence, left


def _add_plain(found: Bodies[R], plain: list[bytes]) -> None:
    plain.reverse()
    found.pieces.append(Stretch(len(plain), plain))
    found.count += len(plain)


def _read_segment(
    view: SessionView,
    segment: Segment,
    stop: int,
    count: int,
    factory: Factory[R],
    found: Bodies[R],
) -> int:
    """Messages of a segment before an index, the newest ones; gives their bytes."""
    if segment.is_plain:
        start = max(0, stop - (count - found.count))
        return _add_stretches(found, segment, start, stop)
    place = stop
    end = stop  # of the plain stretch that is under way: from ``place`` to before it
    kinds = segment.kinds
    heads = segment.heads
    while place and found.count + end - place < count:
        place -= 1
        offset = place * HEAD_BYTES + EXTENSION_BYTE
        if kinds[place] == MESSAGE and heads[offset : offset + 4] == _NO_EXTENSION:
            continue
        _add_stretches(found, segment, place + 1, end)
        end = place
        if kinds[place] == MESSAGE:
            found.pieces.append(segment.make(place, view.origin, factory))
            found.count += 1
    _add_stretches(found, segment, place, end)
    starts = segment.starts
    return starts[stop] - starts[place]


def _add_stretches(found: Bodies[R], segment: Segment, start: int, stop: int) -> int:
    """Note plain bodies that lie side by side, newest first in pieces of bounded length.

    Returns:
        Their bytes.
    """
    size = 0
    while stop > start:
        first = max(start, stop - STRETCH_BODIES_MAX)
        encoded = segment.joined(first, stop)
        found.pieces.append(Stretch(stop - first, [encoded]))
        found.count += stop - first
        size += len(encoded)
        stop = first
    return size


def _segment_before(
    tables: ReadTables, number: int, stop: int, cache: SegmentCache, last: int
) -> Segment | None:
    """The segment that holds the sequence before ``stop``, or the one after that.

    Args:
        tables: The transaction.
        number: The session number.
        stop: A sequence.
        cache: Where decoded segments are kept.
        last: As for ``SegmentCache.load``.
    """
    key = PAIR.pack(number, stop - 1)
    value = tables.transaction.get(key, db=tables.tables["segment"])
    if value is not None:  # it ends there, as nearly always
        return cache.load(tables, key, value, last=last)
    return next(tables.segments(number, stop - 1, cache), None)
