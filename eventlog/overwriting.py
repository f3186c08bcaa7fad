"""Overwriting: what removals left in the hot log is overwritten, as an erasure does.

Deletions and purges leave hot records as they are until their table is cut, which takes thousands
of further events. Before a data file is rewritten to be rid of what was removed, and where somebody
asks for what was purged to be redacted, that is too long. Where the quota is reached or the disk is
full there are no further events at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from eventlog.errors import CorruptionError
from eventlog.index import LooseIndex
from eventlog.keys import U64
from eventlog.limits import COMMIT_ROLL_UPS_MAX
from eventlog.reclaim import REMOVED_LOW_MAX
from eventlog.removal import HOT, RemovalRow
from eventlog.rows import ERASED, CommitRecord
from eventlog.tables import WriteTables


class OverwriteVoid:
    """The task that marks void hot records to be overwritten; reclaiming does it as ever.

    Args:
        index: The loose index; knows whose the hot records are.
        pause: Lets the GIL go when the slice is used up.
        is_low: Whether the disk is full: few rows at once, so that their pages fit into what is
            left.
        number: Those of this session alone.
    """

    def __init__(
        self,
        index: LooseIndex,
        pause: Callable[[], None],
        is_low: Callable[[], bool],
        number: int | None = None,
    ) -> None:
        self.done = False
        self._index = index
        self._pause = pause
        self._is_low = is_low
        self._numbers = None if number is None else [number]

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``Task``."""
        if self._numbers is None:  # only now memory has followed the log
            with self._index.lock:
                self._numbers = sorted({state.number for state in self._index.hot} - {0})
        marked = 0
        marked_max = REMOVED_LOW_MAX if self._is_low() else COMMIT_ROLL_UPS_MAX
        while self._numbers and marked < marked_max:
            marked += self._mark(tables, record, self._numbers.pop())
            self._pause()
        self.done = not self._numbers
        return record if marked else None

    def _mark(self, tables: WriteTables, record: CommitRecord, number: int) -> bool:
        key = U64.pack(number)
        try:
            row = tables.load_row(number)
            found = next(tables.rows("removal", key), None)
            left = None if found is None else RemovalRow.decode(*found)
        except CorruptionError:
            return False  # check tells; nobody knows what was removed of it
        if not (row.first or row.is_gone) or row.flags & ERASED:
            return False
        if row.is_gone:
            row = row.copy()
            row.flags |= ERASED
            tables.put_rows([(key, row)])
        if left is None:
            left = RemovalRow(row.first, 0, 0, 0, record.recorded_us)
        tables.put_removal(number, replace(left, hot_from=0, left=left.left | HOT))
        return True
