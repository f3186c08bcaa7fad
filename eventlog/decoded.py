"""A segment as it is read: its records by index, worked out as far as somebody asks for them.

Invariants:
    1. What it says does not depend on what was asked before, nor on other threads that ask.
    2. It takes about the same memory all the time (``memory_bytes``): once they are put together,
       headers are kept in place of their columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eventlog import columns
from eventlog.columns import Words
from eventlog.errors import CorruptionError
from eventlog.limits import SEGMENT_EVENTS_MAX
from eventlog.record import HEAD_KIND_BYTE, HEADER, MESSAGE, Factory, Origin, R

if TYPE_CHECKING:
    from eventlog.segment import SegmentPrefix

HEAD_BYTES: Final = HEADER.size
EXTENSION_BYTE: Final = HEAD_BYTES - 4  # offset of the extension's length in a header
_NO_EXTENSION: Final = bytes(4)
_MESSAGES: Final = bytes([MESSAGE]) * SEGMENT_EVENTS_MAX


class Segment:
    """A decoded segment.

    Where its records begin, and their headers, are worked out when they are asked for first: who
    wants the last bodies needs neither.

    Attributes:
        first_sequence: Sequence of the first record.
        kinds: The kind's code of each record.
    """

    __slots__ = (
        "_content",
        "_heads",
        "_is_plain",
        "_starts",
        "_tails",
        "first_sequence",
        "kinds",
        "prefix",
    )

    def __init__(
        self,
        first_sequence: int,
        prefix: SegmentPrefix,
        heads: bytes,
        kinds: bytes,
        tails: bytes,
        starts: list[int],
    ) -> None:
        self.first_sequence = first_sequence
        self.prefix = prefix
        self.kinds = kinds
        self._starts = starts  # empty while they are not known
        self._heads: bytes | None = heads
        self._tails = tails
        self._content = b""  # decompressed, as long as nobody asked for heads or tails
        self._is_plain: bool | None = None

    @classmethod
    def packed(cls, first_sequence: int, prefix: SegmentPrefix, content: bytes) -> Segment:
        """A segment of its decompressed content, whose sizes were checked."""
        count = prefix.count
        kinds = content[HEAD_KIND_BYTE * count : (HEAD_KIND_BYTE + 1) * count]
        segment = cls.__new__(cls)
        segment.first_sequence = first_sequence
        segment.prefix = prefix
        segment.kinds = kinds
        segment._content = content
        segment._heads = None
        segment._starts = []
        segment._tails = b""
        segment._is_plain = kinds == _MESSAGES[:count] and content.startswith(
            bytes(4 * count), EXTENSION_BYTE * count
        )
        return segment

    def _unpack(self) -> bytes:
        """Put the headers together; gives them. Other threads may do the same meanwhile."""
        content = self._content
        if content:
            count = len(self.kinds)
            size = count * HEAD_BYTES
            words = columns.decode_words(memoryview(content)[:size], count)
            self._starts = _starts_of(words[:, columns.TAIL_BYTES])
            self._tails = content[size:]
            self._heads = words.tobytes()
            self._content = b""  # last: who finds it empty finds the others
        assert self._heads is not None
        return self._heads

    @property
    def heads(self) -> bytes:
        """The header bytes of all records, 72 each, see ``columns``."""
        heads = self._heads
        return self._unpack() if heads is None else heads

    @property
    def tails(self) -> bytes:
        """Extension plus body of all records, joined."""
        if self._heads is None:
            self._unpack()
        return self._tails

    @property
    def starts(self) -> list[int]:
        """Where each tail starts, counted from the first one, and where the last one ends."""
        starts = self._starts
        if not starts:
            content, count = self._content, len(self.kinds)
            if not content:  # unpacked since
                return self._starts
            starts = self._starts = _starts_of(columns.tail_lengths(content, count))
        return starts

    def joined(self, start: int, stop: int) -> bytes:
        """Extension plus body of the records from one index to before another."""
        content, count = self._content, len(self.kinds)
        if stop == count and content:
            return content[len(content) - columns.tail_bytes(content, count, start) :]
        starts = self.starts
        if content:
            base = count * HEAD_BYTES
            return content[base + starts[start] : base + starts[stop]]
        return self._tails[starts[start] : starts[stop]]

    def has_tail(self, count: int) -> bool:
        """Whether so many last records are a small part of it, and their tails are bodies."""
        return 2 * count <= len(self.kinds) and self.is_plain

    @property
    def is_plain(self) -> bool:
        """Whether all are messages without an extension, so that the tails are their bodies."""
        if self._is_plain is None:
            none = bytes(len(self.kinds))
            heads = self.heads
            self._is_plain = self.kinds.count(MESSAGE) == len(self.kinds) and all(
                [heads[EXTENSION_BYTE + byte :: HEAD_BYTES] == none for byte in range(4)]
            )
        return self._is_plain

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.kinds)

    @property
    def memory_bytes(self) -> int:
        """About what this takes in memory."""
        tails = len(self._content) - HEAD_BYTES * len(self.kinds) if self._content else 0
        return (tails or len(self._tails)) + 112 * len(self.kinds) + 700

    def position(self, index: int) -> int:
        """Position of the record at an index from 0."""
        return int.from_bytes(self.heads[index * HEAD_BYTES : index * HEAD_BYTES + 8], "little")

    def flags(self, index: int) -> int:
        """Low byte of the flags of the record at an index from 0."""
        return self.heads[index * HEAD_BYTES + HEAD_KIND_BYTE + 2]

    def make(self, index: int, origin: Origin, factory: Factory[R]) -> R:
        """The record at an index from 0."""
        heads = self._heads
        if heads is None:
            heads = self._unpack()
        place = index * HEAD_BYTES
        head = heads[place : place + HEAD_BYTES]
        starts = self._starts
        start, stop = starts[index], starts[index + 1]
        tails = self._tails
        sequence = self.first_sequence + index
        if head[EXTENSION_BYTE:] == _NO_EXTENSION:
            return factory(origin, sequence, head, b"", tails[start:stop])
        middle = start + int.from_bytes(head[EXTENSION_BYTE:], "little")
        if middle > stop:
            where = f"session {origin.number}/{sequence}"
            raise CorruptionError("extension is longer than its record", where=where)
        return factory(origin, sequence, head, tails[start:middle], tails[middle:stop])

    def part(self, start: int, stop: int) -> Segment:
        """The records from one index to before another, without the memory of the others."""
        first, last = self.starts[start], self.starts[stop]
        return Segment(
            self.first_sequence + start,
            self.prefix,
            self.heads[start * HEAD_BYTES : stop * HEAD_BYTES],
            self.kinds[start:stop],
            self.tails[first:last],
            [each - first for each in self.starts[start : stop + 1]],
        )


def _starts_of(lengths: Words) -> list[int]:
    """Where tails start whose lengths are known to add up."""
    return [0, *np.add.accumulate(lengths).tolist()]
