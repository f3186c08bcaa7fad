"""Salvage: everything of a damaged store that is whole, session by session.

Depends on as little as possible: the commit record, session rows, segments and hot records. Names,
activity, order blocks, keys and ids may all be gone. Changes nothing.

Invariants:
    1. An event is given only if its checksum, its shape and its place are right.
    2. Every sequence of a session below its end is given once, as an event or as lost, in order.
    3. No transaction is held while a caller has the control.
    4. Memory: a row for each session, an entry for each hot record, and the keys of the segments of
       the session that is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from eventlog.errors import CorruptionError
from eventlog.hotlog import hot_names
from eventlog.keys import PAIR, U64
from eventlog.record import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    WORDS,
    Factory,
    Origin,
    R,
    decode_record,
    verify_record,
)
from eventlog.rows import SessionRow
from eventlog.segment import Segment, decode_segment
from eventlog.tables import ReadTables

if TYPE_CHECKING:
    from eventlog.log import Log

NAMELESS_TENANT = "turnlog.damaged"  # of sessions whose row, with both names, is damaged


@dataclass(frozen=True, slots=True)
class LostEvents:
    """Events of a session that cannot be read.

    Attributes:
        origin: The session; None when nobody knows whose they were.
        first: First sequence, or position where the session is not known.
        last: The last one.
        error: Why.
    """

    origin: Origin | None
    first: int
    last: int
    error: CorruptionError


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A session that may have something to give; ``row`` is None when that is damaged."""

    origin: Origin
    row: SessionRow | None


class Salvage(Generic[R]):
    """One walk over a store as it stands when it is made."""

    def __init__(self, log: Log, factory: Factory[R]) -> None:
        self._log = log
        self._factory = factory
        self._places: dict[int, dict[int, int]] = {}  # hot: session number -> sequence -> position
        # Damaged hot records, by what their headers say, which may be damaged too.
        self._claims: dict[int, dict[int, tuple[int, CorruptionError]]] = {}
        self._strays: dict[int, CorruptionError] = {}  # by position: nobody knows whose
        self._numbers: set[int] = set()
        with log.views.transaction() as tables:
            self._last_position = tables.commit_record().last_position
            self._scan_hot(tables)
            for table, size in (("session", U64.size), ("segment", PAIR.size)):
                for key, _ in tables.rows(table):
                    if len(key) == size:
                        self._numbers.add(U64.unpack_from(key)[0])
        for number in self._claims.keys() - self._numbers:
            self._strays.update(self._claims.pop(number).values())

    def sessions(self) -> list[FoundSession]:
        """Every session that left a trace, by number."""
        found: list[FoundSession] = []
        with self._log.views.transaction() as tables:
            for number in sorted(self._numbers):
                try:
                    row = tables.load_row(number)
                    found.append(FoundSession(Origin(number, row.tenant, row.name), row))
                except CorruptionError:
                    origin = Origin(number, NAMELESS_TENANT, f"session {number}")
                    found.append(FoundSession(origin, None))
        return found

    def read(self, session: FoundSession) -> Iterator[R | LostEvents]:
        """Events of a session in order, and stretches of it that are lost."""
        origin = session.origin
        places = self._places.get(origin.number, {})
        following = 0
        error: CorruptionError | None = None  # of the segment before
        last_key = -1
        for key in self._segment_keys(origin.number):
            try:
                segment = self._segment(key)
            except CorruptionError as damage:
                error = error or damage
                last_key = PAIR.unpack(key)[1]
                continue
            first = segment.first_sequence
            stop = first + segment.count
            if stop <= following or stop > self._last_position:
                continue  # it says what cannot be; what it hides is lost
            yield from self._fill(origin, following, first, error)
            for index in range(max(0, following - first), segment.count):
                if segment.position(index) > self._last_position:
                    return  # written since
                yield segment.make(index, origin, self._factory)
            following, error = stop, None
        stop = max([following, *(sequence + 1 for sequence in places)])
        if session.row is not None:
            stop = max(stop, session.row.sealed)
        if error is not None:
            stop = max(stop, last_key + 1)
        stop = min(stop, self._last_position)
        claims = self._claims.get(origin.number, {})
        while stop in claims:
            stop += 1
        yield from self._fill(origin, following, stop, error)
        for sequence, (position, reason) in claims.items():
            if sequence >= stop:
                self._strays[position] = reason

    def strays(self) -> Iterator[LostEvents]:
        """Hot records of which nobody knows whose they were, once all sessions are read.

        Any session may have gone on with them.
        """
        for position, error in sorted(self._strays.items(), key=_position_of):
            yield LostEvents(None, position, position, error)

    def _scan_hot(self, tables: ReadTables) -> None:
        record = tables.commit_record()
        expected = record.floor
        for name in hot_names(record.floor):
            for key, value in tables.rows(name):
                position = int.from_bytes(key, "big")
                if len(key) == U64.size and expected <= position <= record.last_position:
                    self._miss(expected, position)
                    expected = position + 1
                    self._note_hot(key, position, value)
        self._miss(expected, record.last_position + 1)

    def _note_hot(self, key: bytes, position: int, value: bytes) -> None:
        error: CorruptionError | None = None
        try:
            verify_record(key, value)
        except CorruptionError as damage:
            error = damage
        if error is not None and len(value) < HEADER_BYTES:
            self._strays[position] = error
            return
        number, sequence = WORDS.unpack_from(value, CHECKSUM_BYTES)[:2]
        if error is not None:
            self._claims.setdefault(number, {}).setdefault(sequence, (position, error))
        elif sequence < self._last_position:
            self._places.setdefault(number, {}).setdefault(sequence, position)
            self._numbers.add(number)

    def _miss(self, first: int, stop: int) -> None:
        for position in range(first, stop):
            error = CorruptionError("record is missing", where=f"log {position}")
            self._strays[position] = error

    def _segment_keys(self, number: int) -> list[bytes]:
        with self._log.views.transaction() as tables:
            rows = tables.rows("segment", U64.pack(number))
            return [key for key, _ in rows if len(key) == PAIR.size]

    def _segment(self, key: bytes) -> Segment:
        with self._log.views.transaction() as tables:
            value = tables.transaction.get(key, db=tables.tables["segment"])
            if value is None:
                raise CorruptionError("is missing", where=f"segment {key.hex()}")
            return decode_segment(key, value)

    def _fill(
        self, origin: Origin, first: int, stop: int, error: CorruptionError | None
    ) -> Iterator[R | LostEvents]:
        """What no whole segment holds: from the hot log, or lost."""
        places = self._places.get(origin.number, {})
        lost = first
        for sequence in range(first, stop):
            position = places.get(sequence)
            event = None if position is None else self._hot_event(origin, sequence, position)
            if event is None:
                continue
            if lost < sequence:
                yield self._lost(origin, lost, sequence - 1, error)
            yield event
            lost = sequence + 1
        if lost < stop:
            yield self._lost(origin, lost, stop - 1, error)

    def _lost(
        self, origin: Origin, first: int, last: int, error: CorruptionError | None
    ) -> LostEvents:
        claim = self._claims.get(origin.number, {}).get(first)
        if error is None and claim is not None:
            error = claim[1]
        elif error is None:
            error = CorruptionError(
                "is neither in a segment nor in the hot log",
                where=f"session {origin.number}/{first}",
            )
        return LostEvents(origin, first, last, error)

    def _hot_event(self, origin: Origin, sequence: int, position: int) -> R | None:
        with self._log.views.transaction() as tables:
            record = tables.commit_record()
            value = tables.hot_log(record).get(position)
            try:
                if value is not None:
                    verify_record(U64.pack(position), value)
                    return decode_record(origin, position, value, self._factory)
                # Another process may have cut it since, and the segment is new.
                for segment in tables.segments(origin.number, sequence, self._log.cache):
                    place = sequence - segment.first_sequence
                    return segment.make(place, origin, self._factory) if place >= 0 else None
            except CorruptionError:
                return None
        return None


def _position_of(item: tuple[int, CorruptionError]) -> int:
    return item[0]
