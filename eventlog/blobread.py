"""Reading blobs: ranges of a content, chunk by chunk, each in a transaction of its own.

Invariants:
    1. No transaction outlives a chunk, so a reader of an hour holds up nobody.
    2. Whatever comes out was checked against the chunk's checksum and the size that the row gives.
    3. A blob that is removed while it is read raises ``ConflictError``, never gives other bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from eventlog.blob import BlobRow, where_chunk
from eventlog.blobtable import MISSING_HINT, find_blob, find_chunk
from eventlog.chunk import decode_chunk
from eventlog.errors import ConflictError, CorruptionError
from eventlog.keys import PAIR
from eventlog.tables import ReadTables

Transactions = Callable[[], AbstractContextManager[ReadTables]]


class BlobContent:
    """The content of one whole blob; keeps the chunk it read last.

    Not safe for two threads at once.

    Args:
        transactions: Begins a short read transaction (``Views.transaction``).
        tenant_number: Whose blob it is.
        address: Its address.
        row: Its row.
    """

    def __init__(
        self, transactions: Transactions, tenant_number: int, address: bytes, row: BlobRow
    ) -> None:
        self._transactions = transactions
        self._tenant_number = tenant_number
        self._kept: tuple[int, bytes] = (-1, b"")
        self.address = address
        self.row = row

    def read(self, start: int, stop: int) -> bytes:
        """The bytes ``start`` to ``stop`` (half-open), fewer where the content ends.

        Raises:
            ConflictError: The blob was removed meanwhile.
            CorruptionError: A chunk of this range is damaged; others can still be read.
        """
        stop = min(stop, self.row.size)
        if start >= stop:
            return b""
        size = self.row.chunk_bytes
        parts = []
        for index in range(start // size, -(-stop // size)):
            first = index * size
            content = self._chunk(index)
            begin, end = max(start - first, 0), min(stop - first, size)
            whole = not begin and end >= len(content)
            parts.append(content if whole else content[begin:end])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _chunk(self, index: int) -> bytes:
        if self._kept[0] == index:
            return self._kept[1]
        where = where_chunk(self.address, index)
        row = self.row
        with self._transactions() as tables:
            value = find_chunk(tables, row.number, index)
            if value is None:
                found = find_blob(tables, self._tenant_number, self.address)
                if found is None or found.number != row.number:
                    raise ConflictError(
                        f"blob {self.address.hex()} was removed while it was read",
                        expected=self.address.hex(),
                        hint=MISSING_HINT,
                    )
                raise CorruptionError("is missing", where=where)
        content = decode_chunk(PAIR.pack(row.number, index), value, where)
        if len(content) != min(row.chunk_bytes, row.size - index * row.chunk_bytes):
            raise CorruptionError("chunk has another size than its blob says", where=where)
        self._kept = (index, content)
        return content
