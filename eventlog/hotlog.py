"""The log proper, behind the small interface that another engine could implement.

*Conditional append at head*: whoever appends says which position is the last; if it is not, nothing
is written. Everything else (sequences, heads, idempotency, ids) is decided against what is
materialised, before the append.

Invariants:
    1. Positions rise by one from 1; the log alone assigns them.
    2. Records are only added at the right edge and only cut, whole tables, at the left one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from eventlog.errors import CorruptionError
from eventlog.failpoints import fp
from eventlog.keys import U64
from eventlog.limits import HOT_TABLE_POSITIONS, HOT_TABLES

if TYPE_CHECKING:
    import lmdb

PARTITION: Final = 0  # the embedded log has one
HOT_NAMES: Final = tuple([f"log.{number:02x}" for number in range(HOT_TABLES)])


@dataclass(frozen=True)
class Conflict:
    """The append was refused: the last position is another one."""

    last: int


class PositionLog(Protocol):
    """A partitioned log of opaque records (one partition when embedded)."""

    def append(
        self, partition: int, expected_last: int, batch: Sequence[tuple[bytes, bytes]]
    ) -> int | Conflict:
        """Append records under consecutive position keys; gives the new last position."""

    def read(self, partition: int, first: int, count: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and records of at most ``count`` positions from ``first`` on, in order."""

    def last(self, partition: int) -> int:
        """The last position; 0 when nothing was ever appended."""


class HotLog:
    """The log as a ring of LMDB tables, within one transaction.

    Positions go to the tables in turn, ``HOT_TABLE_POSITIONS`` each, so that the front is cut by
    emptying a table: one call, where deleting record by record would be thousands.
    """

    def __init__(
        self,
        transaction: lmdb.Transaction[bytes],
        tables: Mapping[str, Any],
        last_position: int,
        floor: int | None = None,
    ) -> None:
        self._transaction = transaction
        self._tables = tables
        self._last = last_position
        self._floor = floor

    def append(
        self, partition: int, expected_last: int, batch: Sequence[tuple[bytes, bytes]]
    ) -> int | Conflict:
        """See ``PositionLog``.

        Raises:
            CorruptionError: A table already holds a key at or after the new ones.
        """
        if partition != PARTITION or expected_last != self._last:
            return Conflict(self._last)
        if self._floor is not None and not fits(self._last, self._floor, len(batch)):
            raise CorruptionError(
                "the hot log would run into its own front", where=f"log {self._floor}"
            )
        start = 0
        while start < len(batch):
            first = expected_last + 1 + start
            stop = start + HOT_TABLE_POSITIONS - (first - 1) % HOT_TABLE_POSITIONS
            part = batch if start == 0 and stop >= len(batch) else batch[start:stop]
            cursor = self._transaction.cursor(self._tables[hot_table(first)])
            consumed, added = cursor.putmulti(part, append=True)
            cursor.close()
            if consumed != len(part) or added != len(part):
                raise CorruptionError("records exist after the last position", where=f"log {first}")
            start = stop
        self._last += len(batch)
        return self._last

    def read(self, partition: int, first: int, count: int) -> Iterator[tuple[bytes, bytes]]:
        """See ``PositionLog``; positions that were cut are not there any more."""
        stop = min(first + count, self._last + 1)
        while first < stop:
            following = first + HOT_TABLE_POSITIONS - (first - 1) % HOT_TABLE_POSITIONS
            cursor = self._transaction.cursor(self._tables[hot_table(first)])
            try:
                if cursor.set_range(U64.pack(first)):
                    last = U64.pack(min(stop, following) - 1)
                    for key, value in cursor:
                        if key > last:
                            break
                        if len(key) != U64.size:
                            raise CorruptionError("key is no position", where=f"log {key.hex()}")
                        yield key, value
            finally:
                cursor.close()
            first = following

    def last(self, partition: int) -> int:
        """See ``PositionLog``."""
        return self._last

    def get(self, position: int) -> bytes | None:
        """One stored record, None when it is not hot."""
        value: bytes | None = self._transaction.get(
            U64.pack(position), db=self._tables[hot_table(position)]
        )
        return value

    def cut(self, first: int, stop: int) -> None:
        """Remove the oldest records, from the floor to before a position of the same table's.

        With one call where that is all of the table.
        """
        assert hot_table(first) == hot_table(stop - 1)
        table = self._tables[hot_table(first)]
        if (stop - 1) % HOT_TABLE_POSITIONS == 0:
            self._transaction.drop(table, delete=False)
        else:
            for position in range(first, stop):
                self._transaction.delete(U64.pack(position), db=table)
        fp("cut.after_drop")


def fits(last: int, floor: int, count: int) -> bool:
    """True when so many more positions leave the ring's oldest table alone."""
    return last + count - floor + 1 <= (HOT_TABLES - 2) * HOT_TABLE_POSITIONS


def hot_table(position: int) -> str:
    """Name of the table that holds a position while it is hot."""
    return HOT_NAMES[(position - 1) // HOT_TABLE_POSITIONS % HOT_TABLES]


def hot_names(floor: int) -> list[str]:
    """Names of all tables, in the order of their positions from the floor on."""
    start = (floor - 1) // HOT_TABLE_POSITIONS % HOT_TABLES
    return [*HOT_NAMES[start:], *HOT_NAMES[:start]]
