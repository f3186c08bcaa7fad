"""Removal: a session is deleted, or its events below a sequence are purged.

Both begin with an event of the session, its tombstone or its base, and make everything below a
sequence *void* in the commit that writes it: the session's row says so, and no reader goes below.
What lies there is then removed in slices, also by another process or after a restart: a row of
``removal`` stands for it until nothing is left.

Invariants:
    1. The event, the session's row and the row of ``removal`` are written in one transaction.
    2. A void event is never read again; its position and its sequence stay taken.
    3. One commit removes at most ``COMMIT_REMOVED_MAX`` rows, and one segment more.
    4. When the row of ``removal`` is gone, nothing of the void events is left in a live record: an
       erasing one overwrites hot records too, others leave them until their table is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from eventlog import blobtable
from eventlog.blob import DOOMED_US
from eventlog.dictionary import Dictionary
from eventlog.errors import CorruptionError
from eventlog.failpoints import fp
from eventlog.hotlog import HotLog, hot_table
from eventlog.index import extension_of
from eventlog.inline import InlineProjection, InlineRows
from eventlog.keys import PAIR, U64
from eventlog.limits import COMMIT_BYTES_MAX, COMMIT_REMOVED_MAX
from eventlog.record import (
    CONTROL,
    FLAGS_BYTE,
    KIND_BYTE,
    MESSAGE,
    Extension,
    Flag,
    Origin,
    Record,
    decode_extension,
    recorded_of,
    verify_record,
    void_record,
)
from eventlog.rollup import ROLLS_UP, kept_of
from eventlog.rows import ERASED, GONE, NO_SEQUENCE, SessionRow, expose, protect
from eventlog.seams import CLOCK
from eventlog.segment import Run, Segment, decode_segment, encode_segment

if TYPE_CHECKING:
    from eventlog.index import LooseIndex, SessionState
    from eventlog.rows import CommitRecord
    from eventlog.tables import ReadTables, WriteTables

SCAN_SLICE: Final = 4_096  # hot positions between two looks at the clock
_ROW: Final = Struct("<QQIIQ")
_HAS_BLOBS: Final = int(Flag.HAS_BLOBS)
_NOBODY: Final = Origin(0, "", "")
REMOVED_LOW_MAX: Final = 16  # rows that a commit removes while the disk is full
HOT: Final = 1  # void hot records are still to be overwritten
KEYS: Final = 2  # keys, and what projections made, are still to be removed


@dataclass(frozen=True, slots=True)
class RemovalRow:
    """What is still to be removed of a session.

    Attributes:
        floor: Events below this sequence are void.
        hot_from: Position from which hot records are still to be overwritten.
        left: ``HOT`` and ``KEYS``.
        reserved: 0.
        asked_us: When it was asked for.
    """

    floor: int
    hot_from: int
    left: int
    reserved: int
    asked_us: int

    def encode(self, key: bytes) -> bytes:
        """The row's value; ``key`` is the session number's key."""
        return protect(
            key, _ROW.pack(self.floor, self.hot_from, self.left, self.reserved, self.asked_us)
        )

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> RemovalRow:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not such a row.
        """
        where = f"removal {key.hex()}"
        rest = expose(key, value, where)
        if len(key) != U64.size or len(rest) != _ROW.size:
            raise CorruptionError("has another size", where=where)
        return cls(*_ROW.unpack(rest))


@dataclass(slots=True)
class Removed:
    """A removal that a batch asked for.

    Attributes:
        state: The session.
        floor: Events below this sequence become void.
        is_gone: The session is deleted, not purged.
        is_erased: What it held is overwritten.
    """

    state: SessionState
    floor: int
    is_gone: bool
    is_erased: bool


@dataclass(slots=True)
class Removals:
    """What one commit removed, for memory to take over after it."""

    rows: list[tuple[SessionState, SessionRow]] = field(default_factory=list)
    is_pending: bool = False  # something is left for a later commit
    has_written: bool = False
    sessions: int = 0  # that were deleted

    def merge(self, index: LooseIndex) -> None:
        """Take committed removals into memory."""
        with index.lock:
            for state, row in self.rows:
                if index.states.get(state.number) is state:
                    index.remove(state, row)


def begin(
    tables: WriteTables,
    log: HotLog,
    index: LooseIndex,
    removed: list[Removed],
    asked_us: int,
    planned: Callable[[SessionState], Iterator[bytes]],
    projections: Sequence[InlineProjection],
    pause: Callable[[], None],
) -> Removals:
    """Make events void: write the sessions' rows, and note what is left to do.

    Args:
        tables: The open write transaction, the events of removal written.
        log: Its hot log.
        index: The loose index, caught up.
        removed: What the batch asked for.
        asked_us: The commit's time.
        planned: The stored records of a session in the same batch, in order.
        projections: Whose rows change with what counts as sealed now.
        pause: Lets the GIL go when the slice is used up.
    """
    done = Removals(is_pending=bool(removed), has_written=bool(removed))
    inline = InlineRows(projections, pause)
    for each in removed:
        state = each.state
        key = U64.pack(state.number)
        before = tables.load_row(state.number)
        row = before.copy()
        row.first, row.details = each.floor, b""
        addresses: list[bytes] = []
        loose = _loose_records(log, state, before.sealed)
        for sequence, (position, value) in enumerate(loose, before.sealed):
            if sequence >= each.floor:
                break
            _pass(row, sequence, position, value)
            addresses += _named_blobs(value)
            if not each.is_gone:
                inline.add(inline.collect(state.origin, [value], [position]))
            pause()
        if each.is_gone:
            for value in planned(state):
                row.messages += value[KIND_BYTE] == MESSAGE
                addresses += _named_blobs(value)
            row.sealed = each.floor
            _forget(tables, row, before)
            row.flags |= GONE | (ERASED if each.is_erased else 0)
            done.sessions += 1
        else:
            row.segments = _shorten(tables, state.number, each.floor, addresses)
            _keep(tables, state, row, before)
        tables.put_rows([(key, row)])
        _release(tables, row.tenant_number, addresses, asked_us, is_erased=each.is_erased)
        left = (HOT if each.is_erased else 0) | (KEYS if each.is_gone else 0)
        tables.put_removal(state.number, RemovalRow(each.floor, 0, left, 0, asked_us))
        done.rows.append((state, row))
        fp("removal.after_row")
        pause()
    inline.write(tables)
    return done


def _loose_records(log: HotLog, state: SessionState, sealed: int) -> Iterator[tuple[int, bytes]]:
    """Position and stored bytes of a session's committed loose events."""
    loose = state.loose
    for place in range(sealed - loose.base, len(loose.positions)):
        position = loose.positions[place]
        value = loose.records[loose.base + place] or log.get(position)
        if value is None:
            raise CorruptionError("loose record is missing", where=f"log {position}")
        verify_record(U64.pack(position), value)
        yield position, value


def _forget(tables: WriteTables, row: SessionRow, before: SessionRow) -> None:
    """Of a session that is gone only the number and counts stay."""
    tables.delete_name(row.tenant, row.name)
    if before.last_position:
        tables.remove_activity(row.tenant_number, before.last_position)
    row.tenant = row.name = ""
    row.opening = None
    row.head, row.keys, row.segments = NO_SEQUENCE, 0, 0
    row.last_position = row.last_recorded_us = row.since_roll_up = 0


def _keep(tables: WriteTables, state: SessionState, row: SessionRow, before: SessionRow) -> None:
    """Loose events that were purged count as sealed: their keys, and the session's place."""
    if row.sealed == before.sealed:
        return
    keys = [
        (state.number, digest, result)
        for digest, result in (state.keys or {}).items()
        if before.sealed <= result.first < row.sealed
    ]
    if keys:
        tables.put_keys(keys)
        row.keys += len(keys)
    tables.put_activity([(row.tenant_number, row.last_position, state.number)])
    if before.last_position:
        tables.remove_activity(row.tenant_number, before.last_position)


def _pass(row: SessionRow, sequence: int, position: int, value: bytes) -> None:
    """Count a loose event that becomes void as sealing would."""
    kind = value[KIND_BYTE]
    if kind < CONTROL:
        row.head = sequence
        row.messages += kind == MESSAGE
        row.since_roll_up += kind == MESSAGE
    if value[FLAGS_BYTE] & ROLLS_UP:
        row.since_roll_up = 0
        kept = kept_of(value, f"log {position}")
        if kept is not None:
            row.trim(row.messages - kept)
    row.sealed = sequence + 1
    row.last_position = position
    row.last_recorded_us = recorded_of(value)


def _named_blobs(value: bytes) -> list[bytes]:
    """Addresses of the blobs that a stored record names."""
    if not value[FLAGS_BYTE] & _HAS_BLOBS:
        return []
    marks = extension_of(value, "record")
    blobs: list[bytes] = marks[Extension.BLOBS]
    return blobs


def _decoded(tables: ReadTables, key: bytes, value: bytes) -> Segment:
    return decode_segment(key, value, lambda each: Dictionary(each, tables.load_dictionary(each)))


def _blobs_of(segment: Segment, stop: int) -> list[bytes]:
    """Addresses of the blobs that the events of a segment name, up to a place."""
    found: list[bytes] = []
    for place in range(min(stop, segment.count)):
        if segment.flags(place) & _HAS_BLOBS:
            event = segment.make(place, _NOBODY, Record)
            marks = decode_extension(event.extension, event.flags, event)
            found += marks[Extension.BLOBS]
    return found


def _release(
    tables: WriteTables,
    tenant_number: int,
    addresses: list[bytes],
    now_us: int,
    *,
    is_erased: bool,
) -> None:
    """Take references of void events back; what only erased events named goes at once."""
    for address in addresses:
        try:
            blobtable.release(tables, tenant_number, [address], now_us)
        except CorruptionError:
            pass  # check tells; what is void must not stay because of it
    if is_erased and addresses:
        blobtable.erase(tables, tenant_number, addresses)


def _shorten(tables: WriteTables, number: int, floor: int, addresses: list[bytes]) -> int:
    """Rewrite the segment that the floor cuts in two; how many segments are left from it on.

    Args:
        tables: The open write transaction.
        number: The session.
        floor: Its events below this sequence are void.
        addresses: Takes those of the blobs that the void ones of that segment name.
    """
    count = 0
    with tables.segment_cursor() as cursor:
        found = cursor.set_range(PAIR.pack(number, floor))
        is_first = True
        while found:
            key = cursor.key()
            if key[: U64.size] != U64.pack(number):
                break
            count += 1
            if is_first:
                is_first = False
                segment = _decoded(tables, key, cursor.value())
                start = floor - segment.first_sequence
                if start > 0:
                    origin = Origin(number, "", "")
                    records = [
                        segment.make(place, origin, Record) for place in range(segment.count)
                    ]
                    addresses += _blobs_of(segment, start)
                    kept = records[start:]
                    run = Run(
                        number,
                        PAIR.unpack(key)[1],
                        [record.stored() for record in kept],
                        [record.position for record in kept],
                        segment.prefix.messages_before
                        + sum([record.kind_code == MESSAGE for record in records[:start]]),
                    )
                    cursor.put(*encode_segment(run))
            found = cursor.next()
    return count


def go_on(
    tables: WriteTables,
    index: LooseIndex,
    record: CommitRecord,
    pause: Callable[[], None],
    *,
    is_low: bool = False,
    number: int | None = None,
) -> Removals:
    """Remove a bounded part of what is void.

    Args:
        tables: The open write transaction.
        index: The loose index, caught up.
        record: The commit record, with the floor that this transaction leaves.
        pause: Lets the GIL go when the slice is used up.
        is_low: The disk is full: few rows at once, so that their pages fit into what is left.
        number: Only what is left of this session.
    """
    done = Removals()
    budget = REMOVED_LOW_MAX if is_low else COMMIT_REMOVED_MAX
    waiting = list(_waiting(tables, number, budget + 1))
    while waiting and budget > 0:
        session, row = waiting.pop(0)
        done.has_written = True
        now_us = max(CLOCK.wall_us(), record.recorded_us)  # an idle store's stamps are old
        budget = _remove_rows(tables, session, row, now_us, budget, pause)
        if budget > 0 and row.left & KEYS:
            row = replace(row, left=row.left & ~KEYS)
        if budget > 0 and row.left & HOT:
            hot_from, budget = _overwrite(tables, index, record, session, row, budget, pause)
            row = replace(row, hot_from=hot_from)
        if budget > 0:
            tables.delete_removal(session)
        else:
            tables.put_removal(session, row)
            done.is_pending = True
        fp("removal.after_slice")
    done.is_pending = done.is_pending or bool(waiting)
    return done


def _waiting(
    tables: ReadTables, number: int | None, count: int
) -> Iterator[tuple[int, RemovalRow]]:
    """Sessions of which something is left, lowest number first."""
    prefix = b"" if number is None else U64.pack(number)
    for key, value in tables.rows("removal", prefix):
        if not count:
            return
        count -= 1
        yield U64.unpack(key)[0], RemovalRow.decode(key, value)


def _remove_rows(
    tables: WriteTables,
    number: int,
    row: RemovalRow,
    now_us: int,
    budget: int,
    pause: Callable[[], None],
) -> int:
    """Delete segments below the floor, then keys and projections' rows; what is left to spend."""
    budget = _remove_segments(tables, number, row, now_us, budget, pause)
    if budget > 0 and row.left & HOT:
        budget = _remove_chunks(tables, budget)
    if budget > 0 and row.left & KEYS:
        for table in ("key", "state"):
            if budget > 0:
                budget = tables.delete_rows(table, U64.pack(number), budget, pause)
    return budget


def _remove_segments(
    tables: WriteTables,
    number: int,
    row: RemovalRow,
    now_us: int,
    budget: int,
    pause: Callable[[], None],
) -> int:
    """Delete segments below the floor, and take back what their events name.

    In a store with blobs they are decoded for it, ``COMMIT_BYTES_MAX`` in one commit.
    """
    addresses: list[bytes] = []
    content_bytes = 0
    may_name = tables.has("blob") and tables.transaction.stat(tables.tables["blob"])["entries"]
    with tables.segment_cursor() as cursor:
        found = cursor.set_range(PAIR.pack(number, 0))
        while found and budget > 0:
            key = cursor.key()
            if PAIR.unpack(key)[0] != number or PAIR.unpack(key)[1] >= row.floor:
                break
            if content_bytes > COMMIT_BYTES_MAX:
                budget = 0
                break
            try:
                if may_name:
                    segment = _decoded(tables, key, cursor.value())
                    content_bytes += segment.memory_bytes
                    addresses += _blobs_of(segment, segment.count)
            except CorruptionError:
                pass  # it goes; what it named is for check to count
            cursor.delete()  # leads to the one after it
            found = bool(cursor.key())
            budget -= 1
            pause()
    if addresses:
        tenant_number = tables.load_row(number).tenant_number
        _release(tables, tenant_number, addresses, now_us, is_erased=bool(row.left & HOT))
    return budget


def _remove_chunks(tables: WriteTables, budget: int) -> int:
    """Remove chunks of blobs that erased events named; nothing left to spend while there are."""
    for number, pending in list(blobtable.pending_rows(tables)):
        if pending.pending_us == DOOMED_US and not blobtable.remove_doomed(tables, number, pending):
            return 0
    return budget


def _overwrite(
    tables: WriteTables,
    index: LooseIndex,
    record: CommitRecord,
    number: int,
    row: RemovalRow,
    budget: int,
    pause: Callable[[], None],
) -> tuple[int, int]:
    """Put void records in the place of hot ones; the position to go on from, what is left."""
    first = max(row.hot_from, record.floor)
    hot, sequences = index.hot, index.hot_sequences
    stop = len(hot)
    for place in range(first - index.floor, stop):
        if not place % SCAN_SLICE:
            pause()
        if hot[place].number != number or sequences[place] >= row.floor:
            continue
        position = index.floor + place
        if not budget:
            return position, 0
        key = U64.pack(position)
        db = tables.tables[hot_table(position)]
        value = tables.transaction.get(key, db=db)
        if value is None:
            raise CorruptionError("record is missing", where=f"log {position}")
        tables.transaction.put(key, void_record(key, value), db=db)
        budget -= 1
        pause()
    return index.floor + stop, budget


class Reclaim:
    """The task that removes all that is left of one session."""

    def __init__(
        self,
        number: int,
        index: LooseIndex,
        pause: Callable[[], None],
        is_low: Callable[[], bool],
    ) -> None:
        self.done = False
        self._number = number
        self._index = index
        self._pause = pause
        self._is_low = is_low

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``tasks.Task``."""
        removals = go_on(
            tables,
            self._index,
            record,
            self._pause,
            is_low=self._is_low(),
            number=self._number,
        )
        self.done = not removals.is_pending
        return record if removals.has_written else None
