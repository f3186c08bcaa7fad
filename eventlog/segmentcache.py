"""Decoded segments in memory, and the dictionaries that decoding needs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eventlog.dictionary import Dictionary, LoadedDictionaries
from eventlog.limits import SEGMENT_EVENTS_MAX
from eventlog.segment import decode_segment

if TYPE_CHECKING:
    from eventlog.decoded import Segment
    from eventlog.tables import ReadTables


def decoded(tables: ReadTables, key: bytes, value: bytes) -> Segment:
    """A segment, with the dictionary that it names; none is kept."""
    return decode_segment(key, value, lambda each: Dictionary(each, tables.load_dictionary(each)))


class SegmentCache:
    """Decoded segments, least recently used out, bounded in bytes; shared between threads.

    Invariant: with the first transaction after a removal, in whatever process that was, everything
    from before it is forgotten, and a read that began before it leaves nothing here any more.
    """

    def __init__(self, bytes_max: int, lock: Any) -> None:
        self.bytes_max = bytes_max
        self.byte_count = 0
        self._lock = lock
        self.dictionaries = LoadedDictionaries()
        self.on_begin: list[Callable[[tuple[int, int]], None]] = []  # others that forget then
        self.on_clear: list[Callable[[], None]] = []
        self._beginning = threading.Lock()  # held while all forget; before any other
        self._epoch = (0, 0)
        self._kept: OrderedDict[bytes, tuple[bytes, Segment, int]] = OrderedDict()

    def begin(self, epoch: tuple[int, int]) -> None:
        """Forget all segments when something was removed since, and let others forget.

        On return all have, whoever did it: another thread of that epoch waits for it.

        Args:
            epoch: ``CommitRecord.epoch`` of a transaction.
        """
        if epoch <= self._epoch:
            return
        with self._beginning:
            if epoch <= self._epoch:
                return
            for begin in self.on_begin:
                begin(epoch)
            with self._lock:
                self._kept.clear()
                self.byte_count = 0
                self._epoch = epoch

    def load(
        self,
        tables: ReadTables,
        key: bytes,
        value: bytes,
        *,
        keep: bool = True,
        last: int = SEGMENT_EVENTS_MAX,
    ) -> Segment:
        """The decoded segment of a stored value, whose checksum tells whether it changed.

        Args:
            tables: The transaction that it comes from.
            key: Its key.
            value: Its stored value.
            keep: Whether it will be needed again; if not it makes room.
            last: How many of its last records are. When they are few and the caller can keep them
                by themselves (``Segment.has_tail``), they take a tenth of the room.
        """
        self.begin(tables.epoch)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == value[:8]:
            with self._lock:
                if keep and key in self._kept:
                    self._kept.move_to_end(key)
                elif self._kept.pop(key, None) is not None:
                    self.byte_count -= kept[2]
            return kept[1]
        segment = self.decode(tables, key, value)
        size = segment.memory_bytes
        if not keep or size * 4 > self.bytes_max or segment.has_tail(last):
            return segment
        with self._lock:
            if tables.epoch != self._epoch:
                return segment  # it may be of what was removed since this transaction began
            old = self._kept.pop(key, None)
            if old is not None:
                self.byte_count -= old[2]
            self._kept[key] = (value[:8], segment, size)
            self.byte_count += size
            while self.byte_count > self.bytes_max:
                self.byte_count -= self._kept.popitem(last=False)[1][2]
        return segment

    def decode(self, tables: ReadTables, key: bytes, value: bytes) -> Segment:
        """Decode a segment, and load the dictionary that it needs."""
        return decode_segment(key, value, lambda number: self.find_dictionary(tables, number))

    def find_dictionary(self, tables: ReadTables, number: int) -> Dictionary:
        """A dictionary, loaded when it is needed for the first time.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        return self.dictionaries.find(number, tables.load_dictionary)

    def clear(self) -> None:
        """Drop everything, dictionaries too."""
        with self._lock:
            self._kept.clear()
            self.byte_count = 0
        self.dictionaries.clear()
        for clear in self.on_clear:
            clear()
