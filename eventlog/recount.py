"""Recount: the counts in session rows are made again, in place, from segments and keys.

Invariants:
    1. A step does about ``STEP_BYTES_MAX`` of work. A session of more is counted over several; when
       its row changes meanwhile it is counted once more, and then in one go, so that there is an
       end.
    2. What only purged events told stays as the row says it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from eventlog.gathering import Ending, Gathered, Reader, stored_segments
from eventlog.keys import PAIR, U64
from eventlog.limits import KIB
from eventlog.record import Origin
from eventlog.rows import NO_SEQUENCE, SessionRow
from eventlog.segment import SegmentPrefix

if TYPE_CHECKING:
    from eventlog.rows import CommitRecord
    from eventlog.segmentcache import SegmentCache
    from eventlog.tables import ReadTables, WriteTables

STEP_BYTES_MAX: Final = 256 * KIB  # decoded bytes of segments: some 10 ms with the writer lock
ROW_BYTES: Final = 256  # what a row that is read or written counts of that, a session's twice

OnProgress = Callable[[str, int, int], None]
"""Told after each step: the table, the last session that is through, and of how many."""

Counting = Generator[None, "ReadTables", SessionRow]
"""Counts one session; where a step is full it yields, and is sent the next one's tables."""


class Recount:
    """The task that makes the counts anew.

    With ``keys`` it counts the rows of ``key``, which must be right by then, and nothing else.

    Attributes:
        events: Events that they count.
        changed: Rows that said something else.
    """

    role = "session"

    def __init__(
        self,
        cache: SegmentCache,
        pause: Callable[[], None],
        progress: OnProgress | None = None,
        *,
        keys: bool = False,
        gathered: Gathered | None = None,
    ) -> None:
        self._keys = keys
        self.events = 0
        self.changed = 0
        self.done = False
        self._cache = cache
        self._pause = pause
        self._progress = progress
        self._gathered = gathered or Gathered()
        self._reader = Reader((), pause)
        self._next = 1
        self._left = 0  # of this step
        self._counting: Counting | None = None
        self._row: SessionRow | None = None  # of the session that is being counted
        self._is_bounded = True

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``tasks.Task``."""
        self._left = STEP_BYTES_MAX
        self._cache.begin(tables.epoch)
        rows: list[tuple[bytes, SessionRow]] = []
        while self._next <= record.sessions_made and self._left > 0:
            row = self._gathered.load_row(tables, self._next)
            self._is_full(2 * ROW_BYTES)
            if not row.is_gone:
                counted = self._go_on(tables, row)
                if counted is None:
                    break
                self.events += counted.sealed
                if counted != row:
                    rows.append((U64.pack(self._next), counted))
                    self._is_full(2 * ROW_BYTES)
            self._counting = None
            self._next += 1
        self.done = self._next > record.sessions_made
        if self._progress is not None:
            self._progress(self.role, self._next - 1, record.sessions_made)
        if not rows:
            return None
        self.changed += len(rows)
        tables.put_rows(rows)
        # What memory holds of these rows is wrong, here and elsewhere.
        return replace(record, generation=record.generation + 1)

    def _go_on(self, tables: ReadTables, row: SessionRow) -> SessionRow | None:
        """Count the next session, or more of it; None when the step is full before."""
        counting = self._counting
        try:
            if counting is not None and row == self._row:
                counting.send(tables)
                return None
            self._is_bounded = counting is None
            self._row = row
            self._counting = self._count(tables, self._next, row)
            next(self._counting)
        except StopIteration as end:
            counted: SessionRow = end.value
            return counted
        return None

    def _is_full(self, cost: int) -> bool:
        self._left -= cost
        self._pause()
        return self._left <= 0 and self._is_bounded

    def _each(
        self,
        tables: ReadTables,
        table: str,
        number: int,
        start: bytes,
        take: Callable[[bytes, bytes], None],
    ) -> Generator[None, ReadTables, ReadTables]:
        """Give a session's rows from a key on to ``take``, in key order."""
        while True:
            for key, value in tables.rows(table, U64.pack(number), start=start):
                take(key, value)
                if self._is_full(ROW_BYTES):
                    start = key + b"\0"  # the next key that can be
                    break
            else:
                return tables
            tables = yield

    def _count(self, tables: ReadTables, number: int, row: SessionRow) -> Counting:
        counted = row.copy()
        if self._keys:
            counted.keys = 0

            def take_key(key: bytes, value: bytes) -> None:
                counted.keys += 1

            yield from self._each(tables, "key", number, b"", take_key)
            return counted
        counted.segments = 0
        last: list[tuple[bytes, SegmentPrefix]] = []

        def take_segment(key: bytes, value: bytes) -> None:
            last[:] = [(key, SegmentPrefix.unpack(key, value))]
            counted.segments += 1

        # Those that end below are still to be removed.
        first = PAIR.pack(number, row.first)
        tables = yield from self._each(tables, "segment", number, first, take_segment)
        if not last:
            return counted
        key, prefix = last[0]
        counted.sealed = PAIR.unpack(key)[1] + 1
        counted.messages = prefix.messages_before + prefix.messages
        counted.last_position = prefix.last_position
        counted.last_recorded_us = prefix.last_recorded_us
        yield from self._count_back(tables, number, row, counted)
        return counted

    def _count_back(
        self, tables: ReadTables, number: int, row: SessionRow, counted: SessionRow
    ) -> Generator[None, ReadTables, None]:
        """Head and roll-ups, from the end."""
        origin = Origin(number, row.tenant, row.name)
        back = _Back(row, counted)
        sequence = counted.sealed - 1
        while sequence >= row.first:
            is_full = False
            for key, value in stored_segments(tables, number, sequence, reverse=True):
                parts, cost = self._gathered.find(key, value), ROW_BYTES
                if parts is None:
                    segment = self._cache.load(tables, key, value, keep=False)
                    cost = segment.memory_bytes
                    parts = self._reader.read(tables, segment, origin, row, ("session",))
                sequence = PAIR.unpack(key)[1] - parts.count
                back.take(parts.ending)
                is_full = self._is_full(cost)
                if is_full or back.is_through or sequence < row.first:
                    break
            if not is_full or back.is_through:
                break
            tables = yield
        back.end()


class _Back:
    """Head and roll-ups of a session, from its segments, last one first."""

    def __init__(self, row: SessionRow, counted: SessionRow) -> None:
        self._row = row
        self._counted = counted
        self._has_head = self._has_rolled = False
        self._since = 0
        self._branches = self._head_branch = 0

    @property
    def is_through(self) -> bool:
        """Whether all is known: of a session that branches only once all was read."""
        is_linear = not (self._row.branches or self._branches)
        return self._has_head and self._has_rolled and is_linear

    def take(self, ending: Ending) -> None:
        """The next segment."""
        counted = self._counted
        self._branches = max(self._branches, ending.branches)
        if not self._has_head and ending.head is not None:
            self._has_head = True
            counted.head = ending.head
            self._head_branch = ending.head_branch
        if self._has_rolled:
            return
        self._since += ending.since
        if ending.rolled >= 0:
            self._has_rolled = True
            counted.since_roll_up = self._since
            kept = ending.kept
            trimmed = 0 if kept is None else counted.messages - self._since - kept
            if trimmed != self._row.trimmed:
                counted.trimmed, counted.details = trimmed, b""

    def end(self) -> None:
        """There is none more; where all that tells was purged, the row stays."""
        counted, row = self._counted, self._row
        branches = max(self._branches, row.branches) if row.first else self._branches
        branch = self._head_branch if branches else 0
        if row.first and not self._has_head:
            branch = row.head_branch
        if (branches, branch) != (row.branches, row.head_branch):
            counted.branches, counted.head_branch, counted.details = branches, branch, b""
        if row.first:
            return
        if not self._has_head:
            self._counted.head = NO_SEQUENCE
        if not self._has_rolled:  # what rolled up was of version 1, if anything did
            self._counted.since_roll_up = min(self._row.since_roll_up, self._since)
