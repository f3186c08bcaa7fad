"""Salvage: everything of a damaged store that is whole, session by session.

Depends on as little as possible: the commit record, session rows, dictionaries, segments and hot
records. Names, activity, order blocks, keys and ids may all be gone. Changes nothing.

A page of the B-tree that cannot be read takes what lies on it, and nothing more: rows are asked for
one by one, and the segments of a session are looked for from its start and, where that breaks off,
from its end. LMDB ends the process (SIGABRT) on some pages; no caller can catch that.

Invariants:
    1. An event is given only if its checksum, its shape and its place are right.
    2. Every sequence of a session below its end is given once, as an event or as lost, in order.
    3. No transaction is held while a caller has the control.
    4. Memory: a row for each session, an entry for each hot record, and the keys of the segments of
       the session that is read.
    5. After an error of LMDB, of which a transaction dies, the walk goes on in a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Generic

from lmdb import Error as LmdbError

from eventlog.decoded import Segment
from eventlog.errors import CorruptionError
from eventlog.hotlog import hot_table
from eventlog.keys import PAIR, U64, U64_MAX
from eventlog.limits import HOT_TABLE_POSITIONS, HOT_TABLES
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
        with self._look("commit record") as tables:
            record = tables.commit_record()
        self._last_position = record.last_position
        self._sessions_made = min(record.sessions_made, record.last_position)
        stop = min(record.last_position + 1, record.floor + HOT_TABLES * HOT_TABLE_POSITIONS)
        self._each(range(record.floor, stop), "log", self._note_hot, self._strays.__setitem__)
        for number in [number for number in self._claims if not self._is_session(number)]:
            self._strays.update(self._claims.pop(number).values())

    def _is_session(self, number: int) -> bool:
        return 1 <= number <= self._sessions_made or number in self._places

    @contextmanager
    def _look(self, where: str) -> Iterator[ReadTables]:
        """A transaction in which every error of LMDB is damage: it comes from what is read."""
        with self._log.views.transaction() as tables:
            try:
                yield tables
            except LmdbError as error:
                raise CorruptionError(str(error), where=where) from error

    def _each(
        self,
        keys: Iterable[int],
        table: str,
        take: Callable[[ReadTables, int], None],
        miss: Callable[[int, CorruptionError], None],
    ) -> None:
        """Take one row after the other, in one transaction as long as nothing is wrong."""
        waiting = iter(keys)
        key = next(waiting, None)
        while key is not None:
            try:
                with self._look(table) as tables:
                    while key is not None:
                        take(tables, key)
                        key = next(waiting, None)
            except CorruptionError as error:
                assert key is not None
                miss(key, error)
                key = next(waiting, None)

    def sessions(self) -> list[FoundSession]:
        """Every session that there may be, by number."""
        found: list[FoundSession] = []

        def take(tables: ReadTables, number: int) -> None:
            row = tables.load_row(number)
            if row.is_gone:
                self._places.pop(number, None)
                return
            found.append(FoundSession(Origin(number, row.tenant, row.name), row))

        def miss(number: int, _: CorruptionError) -> None:
            origin = Origin(number, NAMELESS_TENANT, f"session {number}")
            found.append(FoundSession(origin, None))

        made = range(1, self._sessions_made + 1)
        more = sorted([number for number in self._places if number not in made])
        self._each(chain(made, more), "session", take, miss)
        return found

    def read(self, session: FoundSession) -> Iterator[R | LostEvents]:
        """Events of a session in order, and stretches of it that are lost."""
        origin = session.origin
        places = self._places.get(origin.number, {})
        following = 0 if session.row is None else session.row.first
        error: CorruptionError | None = None  # of the segment before
        last_key = -1
        for key in self._segment_keys(session):
            if isinstance(key, CorruptionError):
                error = error or key
                if session.row is None:
                    last_key = max(last_key, following)  # at least one, or it would not be asked
                continue
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

    def _note_hot(self, tables: ReadTables, position: int) -> None:
        key = U64.pack(position)
        value = tables.transaction.get(key, db=tables.tables[hot_table(position)])
        if value is None:
            if position >= tables.commit_record().floor:  # not cut since
                raise CorruptionError("record is missing", where=f"log {position}")
            return
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

    def _segment_keys(self, session: FoundSession) -> list[bytes | CorruptionError]:
        """Keys of a session's segments in order, and an error where some may be missing."""
        number, row = session.origin.number, session.row
        if row is not None and not row.sealed:
            return []
        last = PAIR.pack(number, U64_MAX if row is None else row.sealed - 1)
        keys, error = self._walk_keys(number, last)
        above = keys[-1] if keys else b""
        if error is None and (row is None or above >= last):
            return [*keys]
        behind, _ = self._walk_keys(number, last, above=above)
        return [*keys, *([] if error is None else [error]), *reversed(behind)]

    def _walk_keys(
        self, number: int, last: bytes, *, above: bytes | None = None
    ) -> tuple[list[bytes], CorruptionError | None]:
        """Keys of segments until one breaks off: up to the last, or from that down to ``above``."""
        prefix = U64.pack(number)
        keys: list[bytes] = []
        try:
            with self._look(f"segments of session {number}") as tables:
                cursor = tables.transaction.cursor(tables.tables["segment"])
                if above is None:
                    step, found = cursor.next, cursor.set_range(prefix)
                else:
                    step, found = cursor.prev, cursor.set_range(last) or cursor.last()
                    if found and cursor.key()[: U64.size] > prefix:
                        found = step()
                while found:
                    key = cursor.key()
                    if key[: U64.size] != prefix or (above is not None and key <= above):
                        break
                    if len(key) == PAIR.size:
                        keys.append(key)
                    if above is None and key >= last:
                        break
                    found = step()
        except CorruptionError as error:
            return keys, error
        return keys, None

    def _segment(self, key: bytes) -> Segment:
        where = f"segment {key.hex()}"
        with self._look(where) as tables:
            value = tables.transaction.get(key, db=tables.tables["segment"])
            if value is None:
                raise CorruptionError("is missing", where=where)
            return self._log.cache.decode(tables, key, value)

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
        try:
            with self._look(f"log {position}") as tables:
                record = tables.commit_record()
                value = tables.hot_log(record).get(position)
                if value is not None:
                    verify_record(U64.pack(position), value)
                    return decode_record(origin, position, value, self._factory)
                # Another process may have cut it since, and the segment is new.
                for segment in tables.segments(origin.number, sequence, self._log.cache):
                    place = sequence - segment.first_sequence
                    return segment.make(place, origin, self._factory) if place >= 0 else None
        except CorruptionError:
            pass
        return None


def _position_of(item: tuple[int, CorruptionError]) -> int:
    return item[0]
