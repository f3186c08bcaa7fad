"""A segment as it is read: its records by index."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from eventlog.errors import CorruptionError
from eventlog.record import HEAD_KIND_BYTE, HEADER, MESSAGE, Factory, Origin, R

if TYPE_CHECKING:
    from eventlog.segment import SegmentPrefix

HEAD_BYTES: Final = HEADER.size
EXTENSION_BYTE: Final = HEAD_BYTES - 4  # offset of the extension's length in a header
_NO_EXTENSION: Final = bytes(4)


@dataclass(slots=True)
class Segment:
    """A decoded segment.

    Attributes:
        first_sequence: Sequence of the first record.
        heads: The header bytes of all records, 72 each, see ``columns``.
        kinds: The kind's code of each record.
        tails: Extension plus body of all records, joined.
        starts: Where each tail starts; one longer than ``kinds``.
    """

    first_sequence: int
    prefix: SegmentPrefix
    heads: bytes
    kinds: bytes
    tails: bytes
    starts: list[int]
    _is_plain: bool | None = field(default=None, compare=False, repr=False)

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
        return len(self.tails) + 112 * len(self.kinds) + 700

    def position(self, index: int) -> int:
        """Position of the record at an index from 0."""
        return int.from_bytes(self.heads[index * HEAD_BYTES : index * HEAD_BYTES + 8], "little")

    def flags(self, index: int) -> int:
        """Low byte of the flags of the record at an index from 0."""
        return self.heads[index * HEAD_BYTES + HEAD_KIND_BYTE + 2]

    def make(self, index: int, origin: Origin, factory: Factory[R]) -> R:
        """The record at an index from 0."""
        place = index * HEAD_BYTES
        head = self.heads[place : place + HEAD_BYTES]
        starts = self.starts
        start, stop = starts[index], starts[index + 1]
        tails = self.tails
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
