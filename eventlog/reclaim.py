"""Reclaim: what removals left behind is removed, in slices, by whoever writes.

Invariants:
    1. One commit spends at most ``COMMIT_REMOVED_MAX``: on rows deleted or overwritten, and on
       references given back, with what one segment takes on top; and it looks at ``SCAN_MAX`` hot
       positions, for all sessions together.
    2. When a row of ``removal`` is gone, nothing of the void events is left in a live record: an
       erasing one overwrites hot records too, others leave them until their table is cut.
    3. Damage that a session's removal meets leaves that session as it is, and nobody else: others
       go on, and appends beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from eventlog.blobcollect import Collection as BlobCollection
from eventlog.errors import CorruptionError
from eventlog.failpoints import fp
from eventlog.hotlog import hot_table
from eventlog.keys import PAIR, U64
from eventlog.limits import COMMIT_BYTES_MAX, COMMIT_REMOVED_MAX, COMMIT_ROLL_UPS_MAX
from eventlog.record import void_record
from eventlog.removal import ERASES, HOT, KEYS, RemovalRow, Removals, blobs_of, release
from eventlog.rows import HELD
from eventlog.seams import CLOCK
from eventlog.segmentcache import decoded

if TYPE_CHECKING:
    from eventlog.index import LooseIndex
    from eventlog.rows import CommitRecord
    from eventlog.tables import ReadTables, WriteTables

SCAN_SLICE: Final = 1_024  # hot positions between two looks at the clock
SCAN_MAX: Final = 32_768  # hot positions that one commit looks at: about 3 ms
REMOVED_LOW_MAX: Final = 16  # rows that a commit removes while the disk is full


@dataclass(slots=True)
class _Budget:
    """What one commit may still do."""

    rows: int
    content_bytes: int

    @property
    def is_left(self) -> bool:
        return self.rows > 0 and self.content_bytes > 0


def go_on(
    tables: WriteTables,
    index: LooseIndex,
    record: CommitRecord,
    pause: Callable[[], None],
    *,
    stuck: Collection[int] = (),
    is_low: bool = False,
    number: int | None = None,
) -> Removals:
    """Remove a bounded part of what is void.

    Args:
        tables: The open write transaction.
        index: The loose index, caught up.
        record: The commit record, with the floor that this transaction leaves.
        pause: Lets the GIL go when the slice is used up.
        stuck: Sessions that are left alone, since something of them is damaged.
        is_low: The disk is full: few rows at once, so that their pages fit into what is left.
        number: Only what is left of this session.
    """
    done = Removals()
    rows = REMOVED_LOW_MAX if is_low else COMMIT_REMOVED_MAX
    budget = _Budget(rows, COMMIT_BYTES_MAX)
    waiting: dict[int, RemovalRow] = {}
    for session, row in _waiting(tables, number, stuck, done):
        if len(waiting) == COMMIT_ROLL_UPS_MAX:
            done.is_pending = True
            break
        waiting[session] = row
    before = dict(waiting)
    _overwrite(tables, index, record, waiting, budget, pause)
    now_us = max(CLOCK.wall_us(), record.recorded_us)  # an idle store's stamps are old
    for session in list(waiting):
        if not budget.is_left:
            break
        try:
            waiting[session] = _remove_rows(
                tables, session, waiting[session], now_us, budget, pause
            )
        except CorruptionError as error:
            done.stuck[session] = str(error)
    for session, row in waiting.items():
        if session in done.stuck:
            continue
        if budget.is_left and not row.left:
            tables.delete_removal(session)
            done.has_written = True
            continue
        done.is_pending = True
        if row != before[session]:
            tables.put_removal(session, row)
            done.has_written = True
    done.has_written = done.has_written or budget.rows != rows
    if done.has_written:
        fp("removal.after_slice")
    return done


def _waiting(
    tables: ReadTables, number: int | None, stuck: Collection[int], done: Removals
) -> Iterator[tuple[int, RemovalRow]]:
    """Sessions of which something is left, lowest number first."""
    for key, value in tables.rows("removal", b"" if number is None else U64.pack(number)):
        session = int.from_bytes(key[: U64.size], "big")
        if session in stuck:
            continue
        try:
            yield session, RemovalRow.decode(key, value)
        except CorruptionError as error:
            done.stuck[session] = str(error)


def _remove_rows(
    tables: WriteTables,
    number: int,
    row: RemovalRow,
    now_us: int,
    budget: _Budget,
    pause: Callable[[], None],
) -> RemovalRow:
    """Delete segments below the floor, then keys and projections' rows; what is left to do."""
    _remove_segments(tables, number, row, now_us, budget, pause)
    if row.left & KEYS:
        for table in ("key", "state"):
            if budget.is_left:
                budget.rows = tables.delete_rows(table, U64.pack(number), budget.rows, pause)
        if budget.is_left:
            return replace(row, left=row.left & ~KEYS)
    return row


def _remove_segments(
    tables: WriteTables,
    number: int,
    row: RemovalRow,
    now_us: int,
    budget: _Budget,
    pause: Callable[[], None],
) -> None:
    """Delete segments below the floor, and take back what their events name.

    In a store with blobs they are decoded for it, ``COMMIT_BYTES_MAX`` in one commit.
    """
    addresses: list[bytes] = []
    may_name = tables.has("blob") and tables.transaction.stat(tables.tables["blob"])["entries"]
    with tables.segment_cursor() as cursor:
        found = cursor.set_range(PAIR.pack(number, 0))
        while found and budget.is_left:
            key = cursor.key()
            if len(key) != PAIR.size:
                raise CorruptionError("key has another size", where=f"segment {key.hex()}")
            if PAIR.unpack(key)[0] != number or PAIR.unpack(key)[1] >= row.floor:
                break
            try:
                if may_name:
                    segment = decoded(tables, key, cursor.value())
                    budget.content_bytes -= segment.memory_bytes
                    named = blobs_of(segment, segment.count)
                    budget.rows -= len(named)
                    addresses += named
            except CorruptionError:
                pass  # it goes; what it named is for check to count
            cursor.delete()  # leads to the one after it
            found = bool(cursor.key())
            budget.rows -= 1
            pause()
    if addresses:
        session = tables.load_row(number)
        erases = bool(row.flags & ERASES) or not session.is_gone  # as in ``begin``
        released = release(tables, session.tenant_number, addresses, now_us, pause, erases=erases)
        if erases and released.held:
            session.flags |= HELD
            tables.put_rows([(U64.pack(number), session)])


def _overwrite(
    tables: WriteTables,
    index: LooseIndex,
    record: CommitRecord,
    waiting: dict[int, RemovalRow],
    budget: _Budget,
    pause: Callable[[], None],
) -> None:
    """Put void records in the place of hot ones: one walk for all sessions that are erased."""
    erased = {session: row for session, row in waiting.items() if row.left & HOT}
    if not erased:
        return
    first = max(record.floor, min([row.hot_from for row in erased.values()]))
    hot, sequences = index.hot, index.hot_sequences
    start = first - index.floor
    stop = min(len(hot), start + SCAN_MAX)
    place = start
    while place < stop and budget.is_left:
        if not place % SCAN_SLICE:
            pause()
        row = erased.get(hot[place].number)
        if row is not None and sequences[place] < row.floor:
            position = index.floor + place
            key = U64.pack(position)
            db = tables.tables[hot_table(position)]
            value = tables.transaction.get(key, db=db)
            if value is not None:  # else check tells, and nothing is there to overwrite
                tables.transaction.delete(key, db=db)  # as pages are only merged then
                tables.transaction.put(key, void_record(key, value), db=db)
            budget.rows -= 1
            pause()
        place += 1
    is_through = place >= len(hot)
    for session, row in erased.items():
        reached = max(row.hot_from, index.floor + place)
        left = row.left & ~HOT if is_through else row.left
        waiting[session] = replace(row, hot_from=reached, left=left)


class Reclaim:
    """The task that removes all that is left of one session, its blobs' chunks included."""

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
        self._chunks: BlobCollection | None = None

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``tasks.Task``.

        Raises:
            CorruptionError: Something of the session is damaged; it is void, and not removed.
        """
        if self._chunks is not None:
            changed = self._chunks.step(tables, record)
            self.done = self._chunks.done
            return changed
        removals = go_on(
            tables,
            self._index,
            record,
            self._pause,
            is_low=self._is_low(),
            number=self._number,
        )
        for reason in removals.stuck.values():
            raise CorruptionError(
                f"cannot be removed: {reason}", where=f"session number {self._number}"
            )
        if not removals.is_pending:
            self._chunks = BlobCollection(self._pause)
        return record if removals.has_written else None
