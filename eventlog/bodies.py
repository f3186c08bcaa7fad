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
from eventlog.limits import PAGE_BYTES
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
    """

    number: int
    count: int = 0
    pieces: list[Stretch | R] = field(default_factory=list)
    stop: int = 0


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
        for segment in tables.segments(view.origin.number, stop - 1, cache, reverse=True):
            start = segment.first_sequence
            place = stop - start
            if not 0 < place <= segment.count:
                break
            left -= _read_segment(view, segment, place, count, factory, found)
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
    starts = segment.starts
    if segment.is_plain:
        start = max(0, stop - (count - found.count))
        _add_stretches(found, segment, start, stop)
        return starts[stop] - starts[start]
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
    return starts[stop] - starts[place]


def _add_stretches(found: Bodies[R], segment: Segment, start: int, stop: int) -> None:
    """Note plain bodies that lie side by side, newest first in pieces of bounded length."""
    starts, tails = segment.starts, segment.tails
    while stop > start:
        first = max(start, stop - STRETCH_BODIES_MAX)
        found.pieces.append(Stretch(stop - first, [tails[starts[first] : starts[stop]]]))
        found.count += stop - first
        stop = first
