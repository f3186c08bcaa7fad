"""Sessions by their newest activity, as one transaction sees them; never begun again.

Which session is at a hot position never changes, so memory and the transaction's own log are
equally good witnesses: memory for the positions that it holds, whenever it was asked, and the log
for the others. Walked from the last position down to the floor, the first place where a session is
met is its last event. What is not met there has all its events below the floor, so they are sealed,
and its activity row tells the last one.

Invariants:
    1. The order is that of the transaction, whatever is committed, sealed or cut meanwhile: each
       session comes once, and a cursor neither skips nor repeats.
    2. The work is bounded by the hot log and the page; no session's events are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from eventlog.errors import CorruptionError
from eventlog.hotlog import PARTITION
from eventlog.index import LOST, LooseIndex, SessionState
from eventlog.keys import U64, is_derived
from eventlog.record import CHECKSUM_BYTES, FLAGS_BYTE, verify_record
from eventlog.rollup import ROLLS_UP, kept_of
from eventlog.rows import CommitRecord, SessionRow
from eventlog.tables import ReadTables

PIECE_POSITIONS: Final = 1_024  # of the log, read at once and walked backwards
_NUMBER: Final = slice(CHECKSUM_BYTES, CHECKSUM_BYTES + 8)
_SEQUENCE: Final = slice(CHECKSUM_BYTES + 8, CHECKSUM_BYTES + 16)


class HotNumbers:
    """Session numbers of the hot positions of one transaction; 0 where nobody knows."""

    def __init__(
        self, tables: ReadTables, record: CommitRecord, index: LooseIndex, after: int = 0
    ) -> None:
        self._log = tables.hot_log(record)
        self._index = index
        self._generation = record.generation
        self._first = max(record.floor, after + 1)
        self._last = record.last_position
        with index.lock:
            # What others cut since is not in memory any more, and what they wrote may not be yet.
            is_same = index.generation == record.generation
            self._known_first = max(index.floor, self._first)
            stop = min(index.position, self._last) + 1 if is_same else 0
            self._known_stop = max(self._known_first, stop)

    def newest_first(self) -> Iterator[tuple[int, int]]:
        """Position and session number, from the last position down."""
        yield from self._read(self._known_stop, self._last)
        position = self._known_stop
        while position > self._known_first:
            start = max(self._known_first, position - PIECE_POSITIONS)
            known = self._known(start, position)
            if len(known) != position - start:  # memory was made anew, or others cut it
                yield from self._read(start, position - 1)
                position = start
                continue
            for state in reversed(known):
                position -= 1
                if state is LOST:  # or its session's row is damaged: the record tells whose it is
                    yield from self._read(position, position)
                else:
                    yield position, state.number
        yield from self._read(self._first, min(self._known_first - 1, self._last))

    def _known(self, start: int, stop: int) -> list[SessionState]:
        """What memory holds of positions; fewer when it does not hold them all any more."""
        index = self._index
        with index.lock:
            if index.floor > start or index.generation != self._generation:
                return []
            return index.hot[start - index.floor : stop - index.floor]

    def _read(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        while last >= first:
            start = max(first, last - PIECE_POSITIONS + 1)
            piece = list(self._log.read(PARTITION, start, last - start + 1))
            for key, value in reversed(piece):
                yield U64.unpack(key)[0], _number_of(key, value)
            last = start - 1


def _number_of(key: bytes, value: bytes) -> int:
    try:
        verify_record(key, value)
    except CorruptionError:
        return 0
    return int.from_bytes(value[_NUMBER], "little")


def newest_sessions(
    tables: ReadTables,
    record: CommitRecord,
    index: LooseIndex,
    tenant_number: int,
    before: int,
    after: int = 0,
) -> Iterator[tuple[int, int, SessionState | None]]:
    """Last position, number and, when it is in memory, state of a tenant's sessions, newest first.

    Args:
        tables: The transaction.
        record: Its commit record, which ``index`` has caught up with.
        index: The loose index.
        tenant_number: The tenant.
        before: Only sessions whose last event lies before this position.
        after: Only sessions whose last event lies after this one.
    """
    met: set[int] = {0}
    for position, number in HotNumbers(tables, record, index, after).newest_first():
        if number in met:
            continue
        met.add(number)
        if position >= before:
            continue
        state = index.states.get(number)
        if state is None or not state.next or state.last_position < position:
            state = None  # forgotten, or memory was made anew
            row = tables.load_row(number)
        else:
            row = state.row
        if row.tenant_number == tenant_number and not row.is_gone:
            yield position, number, state
    if after >= record.floor - 1:
        return
    for position, number in tables.activity(tenant_number, min(before, record.floor)):
        if position <= after:
            return
        if number not in met:
            yield position, number, None


def tenants_with_derived_only(
    tables: ReadTables, record: CommitRecord, index: LooseIndex
) -> set[int]:
    """Numbers of tenants that have derived sessions and no others, but for those that are gone.

    The hot log is walked once for all of them. A session whose row is damaged counts as another
    one where its tenant is known, so that whoever reads there is told.

    Args:
        tables: The transaction.
        record: Its commit record, which ``index`` has caught up with.
        index: The loose index.
    """
    shown: set[int] = set()
    derived: set[int] = set()
    for number in {number for _, number in HotNumbers(tables, record, index).newest_first()} - {0}:
        row = _row_of(tables, index, number)
        if row is not None and not row.is_gone:
            (derived if is_derived(row.name) else shown).add(row.tenant_number)
    for tenant_number in range(1, record.tenants_made + 1):
        if tenant_number in shown:
            continue
        for _, number in tables.activity(tenant_number, record.floor):
            row = _row_of(tables, index, number)
            if row is None or not is_derived(row.name):
                shown.add(tenant_number)
                break
            derived.add(tenant_number)
    return derived - shown


def _row_of(tables: ReadTables, index: LooseIndex, number: int) -> SessionRow | None:
    """The row of a session; None where it is damaged."""
    state = index.states.get(number)
    if state is not None and state.next:
        return state.row
    try:
        return tables.load_row(number)
    except CorruptionError:
        return None


def row_at(tables: ReadTables, tenant_number: int, position: int, number: int) -> SessionRow | None:
    """The row of a session found in the activity table; None when a newer one stands for it.

    Raises:
        CorruptionError: The session is another tenant's.
    """
    row = tables.load_row(number)
    if row.last_position != position or row.is_gone:
        return None
    if row.tenant_number != tenant_number:
        raise CorruptionError(
            f"leads to session {number} of another tenant",
            where=f"activity of tenant {tenant_number}, position {position}",
        )
    return row


def state_at(tables: ReadTables, record: CommitRecord, number: int) -> SessionState:
    """A session that memory does not hold, from its row and the transaction's own log.

    Raises:
        CorruptionError: A record of the log is damaged.
    """
    row = tables.load_row(number)
    state = SessionState(number, row, 0)
    log = tables.hot_log(record)
    for key, value in log.read(PARTITION, record.floor, record.last_position - record.floor + 1):
        verify_record(key, value)
        sequence = int.from_bytes(value[_SEQUENCE], "little")
        if int.from_bytes(value[_NUMBER], "little") == number and sequence >= row.sealed:
            state.loose.append(U64.unpack(key)[0], None)
            state.take(sequence, U64.unpack(key)[0], value)
            if value[FLAGS_BYTE] & ROLLS_UP:
                state.roll_up(kept_of(value, f"log {U64.unpack(key)[0]}"))
    return state
