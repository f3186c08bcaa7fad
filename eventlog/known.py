"""What is known of the sessions that were read lately: rows, and the newest sealed messages.

A session's row tells all that is sealed of it, so what was read beside the same row is still true.

Invariants:
    1. It is used only where the transaction holds the same bytes in the session's row: whatever
       others wrote since is read anew.
    2. A row that carries a name is what the name leads to. Who makes the name free takes it out of
       the row in the same transaction, and numbers are never used again.
    3. As for decoded segments: with the first transaction after a removal everything from before it
       is forgotten, and a read that began before leaves nothing here any more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eventlog.index import Name
from eventlog.keys import U64
from eventlog.limits import KNOWN_BYTES_MAX
from eventlog.record import Origin
from eventlog.rows import SessionRow
from eventlog.tables import ReadTables

if TYPE_CHECKING:
    from eventlog.bodies import Stretch

_KNOWN_BYTES: Final = 1_000  # about what one takes beside twice its row


@dataclass(slots=True)
class Known:
    """One session; nobody changes its row.

    Attributes:
        key: The row's key.
        value: Its stored bytes.
        row: The row.
        origin: Number and names.
        is_kept: Whether it is not too large to be kept.
        tail: Its newest sealed messages, when they were read; no other event is among them.
    """

    key: bytes
    value: bytes
    row: SessionRow
    origin: Origin
    is_kept: bool
    tail: Stretch | None = None

    @property
    def memory_bytes(self) -> int:
        """About what this takes in memory."""
        size = 2 * len(self.value) + _KNOWN_BYTES
        return size if self.tail is None else size + self.tail.byte_count


class KnownSessions:
    """See the module; any thread. The oldest go first when there is no room.

    Attributes:
        byte_count: About what they take in memory.
        bytes_max: Its bound.
    """

    def __init__(self, bytes_max: int = KNOWN_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.byte_count = 0
        self._lock = threading.Lock()
        self._epoch = (0, 0)
        self._known: dict[Name, Known] = {}

    def begin(self, epoch: tuple[int, int]) -> None:
        """Forget all when something was removed since (``SegmentCache.on_begin``)."""
        with self._lock:
            if epoch > self._epoch:
                self._epoch = epoch
                self._known.clear()
                self.byte_count = 0

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._known.clear()
            self.byte_count = 0

    def find(self, tables: ReadTables, name: Name) -> Known | None:
        """The session that a name leads to in a transaction; None when there is none.

        Raises:
            CorruptionError: As ``ReadTables.find_session``.
        """
        known = self._known.get(name)
        if known is not None and tables.get_row(known.key) == known.value:
            return known
        named = tables.find_session(name)
        return None if named is None else self._learn(tables, *named)

    def load(self, tables: ReadTables, name: Name, number: int) -> Known:
        """The session of a number that had this name; in the transaction it may have another.

        Raises:
            CorruptionError: As ``ReadTables.load_row``.
        """
        known = self._known.get(name)
        if (
            known is not None
            and known.origin.number == number
            and tables.get_row(known.key) == known.value
        ):
            return known
        return self._learn(tables, number, tables.load_row(number))

    def _learn(self, tables: ReadTables, number: int, row: SessionRow) -> Known:
        key = U64.pack(number)
        value = tables.get_row(key)
        assert value is not None, "it was decoded from there"
        origin = Origin(number, row.tenant, row.name)
        known = Known(key, value, row, origin, not row.is_gone)
        if known.memory_bytes * 4 > self.bytes_max:
            known.is_kept = False
        if known.is_kept:
            with self._lock:
                self._put(tables, known)
        return known

    def add_tail(self, tables: ReadTables, known: Known, tail: Stretch) -> None:
        """Keep what was read beside a row.

        Args:
            tables: The transaction in which both were read.
            known: What it gave of the session.
            tail: The newest sealed messages.
        """
        size = tail.byte_count
        if size * 4 > self.bytes_max:
            return
        with self._lock:
            is_there = self._known.get((known.origin.tenant, known.origin.name)) is known
            if is_there and known.tail is None and tables.epoch == self._epoch:
                known.tail = tail
                self.byte_count += size
                self._make_room()

    def _put(self, tables: ReadTables, known: Known) -> None:
        if tables.epoch != self._epoch:
            return  # it may be of what was removed since this transaction began
        name = (known.origin.tenant, known.origin.name)
        old = self._known.pop(name, None)
        if old is not None:
            self.byte_count -= old.memory_bytes
        self._known[name] = known
        self.byte_count += known.memory_bytes
        self._make_room()

    def _make_room(self) -> None:
        while self.byte_count > self.bytes_max:
            self.byte_count -= self._known.pop(next(iter(self._known))).memory_bytes
