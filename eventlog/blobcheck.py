"""Check of blobs: rows, chunks, addresses, and references recounted from the events.

Memory: a key and a count for each blob that events name, a number for each blob; contents are read
one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from eventlog.blob import (
    BLOB_KEY_BYTES,
    DOOMED_US,
    NO_ADDRESS,
    PENDING_PREFIX,
    BlobRow,
    PendingRow,
    blob_key,
    content_address,
    pending_key,
    where_blob,
    where_chunk,
)
from eventlog.blobtable import find_blob
from eventlog.chunk import RAW, codec_of, decode_chunk
from eventlog.errors import CorruptionError
from eventlog.findings import CheckReport
from eventlog.keys import PAIR, U64
from eventlog.record import Extension, Origin
from eventlog.rows import CommitRecord, TenantRow
from eventlog.tables import ReadTables

_BLOBS = int(Extension.BLOBS)


class BlobCheck:
    """One check's share of this. ``record`` is set before anything else is called."""

    def __init__(
        self,
        tables: ReadTables,
        report: CheckReport,
        tenants: Mapping[int, TenantRow],
        strange_tenants: Container[int],
    ) -> None:
        self.record = CommitRecord()
        self._tables = tables
        self._report = report
        self._tenants = tenants
        self._strange_tenants = strange_tenants  # whose row was reported
        self._named: dict[bytes, int] = {}  # by blob key: how often events name it
        self._pending: set[int] = set()  # numbers that a good pending row accounts for
        self._numbers: set[int] = set()  # and those of blobs
        self._is_whole = True  # every row of ``blob`` could be read

    def take(self, tenant_number: int, marks: Mapping[int, Any], origin: Origin) -> None:
        """Count what one event names, and report what is not there.

        Args:
            tenant_number: The event's tenant.
            marks: Its decoded extension.
            origin: Its session.
        """
        for address in marks.get(_BLOBS, ()):
            key = blob_key(tenant_number, address)
            count = self._named.get(key, 0)
            self._named[key] = count + 1
            if not count and not (self._tables.has("blob") and self._tables.has_row("blob", key)):
                self._report.add(where_blob(key), "is missing, and an event names it", origin)

    def check_blobs(self, *, are_events_whole: bool) -> None:
        """Every row of ``blob`` and ``chunk``.

        Args:
            are_events_whole: Whether every event could be counted.
        """
        if not self._tables.has("blob"):
            return
        for key, value in self._tables.rows("blob"):
            try:
                if key.startswith(PENDING_PREFIX) and len(key) == PAIR.size:
                    self._check_pending(key, PendingRow.decode(key, value))
                elif len(key) == BLOB_KEY_BYTES:
                    self._check_blob(key, BlobRow.decode(key, value), are_events_whole)
                else:
                    self._report.add(f"blob {key.hex()}", "key has another size")
            except CorruptionError as error:
                self._report.add_error(error)
                self._is_whole = False
        self._check_owners()

    def _check_pending(self, key: bytes, pending: PendingRow) -> None:
        number = PAIR.unpack(key)[1]
        where = f"pending blob {number}"
        self._report.count("pending_blobs")
        self._check_number(where, number)
        self._pending.add(number)
        self._check_tenant(where, pending.tenant_number)
        if pending.address != NO_ADDRESS:
            try:
                row = find_blob(self._tables, pending.tenant_number, pending.address)
            except CorruptionError:
                self._report.consequences += 1  # of the row, as reported with it
                return
            if row is None or (row.number, row.pending_us) != (number, pending.pending_us):
                self._report.add(where, "is not what its blob's row says")
            return
        expected = None if pending.pending_us == DOOMED_US else 0
        for index, value in self._chunks(number):
            self._report.count("chunks")
            if expected is not None and index != expected:
                self._report.add(where, f"chunk {expected} is missing")
            expected = index + 1
            try:
                decode_chunk(PAIR.pack(number, index), value, f"{where} chunk {index}")
            except CorruptionError as error:
                self._report.add_error(error)

    def _check_blob(self, key: bytes, row: BlobRow, are_events_whole: bool) -> None:
        where = where_blob(key)
        tenant_number, address = U64.unpack(key[: U64.size])[0], key[U64.size :]
        self._report.count("blobs")
        self._check_number(where, row.number)
        if row.number in self._numbers:
            self._report.add(where, f"another blob has its number, {row.number}")
        self._numbers.add(row.number)
        tenant = self._check_tenant(where, tenant_number)
        named = self._named.get(key, 0)
        if row.references != named and not are_events_whole and named < row.references:
            self._report.consequences += 1
        elif row.references != named:
            self._report.add(where, f"counts {row.references} references, events hold {named}")
        if row.pending_us and not self._tables.has_row("blob", pending_key(row.number)):
            self._report.add(where, "waits to be named, and has no pending row")
        self._check_content(where, address, row, tenant)

    def _check_content(
        self, where: str, address: bytes, row: BlobRow, tenant: TenantRow | None
    ) -> None:
        digest = None if tenant is None else content_address(tenant.secret)
        size = stored = compressed = expected = 0
        is_whole = is_dense = True
        for index, value in self._chunks(row.number):
            self._report.count("chunks")
            if index != expected:
                is_dense = False
                break
            expected += 1
            stored += len(value)
            try:
                content = decode_chunk(
                    PAIR.pack(row.number, index), value, where_chunk(address, index)
                )
            except CorruptionError as error:
                self._report.add_error(error)
                is_whole = False
                continue
            if len(content) != min(row.chunk_bytes, row.size - size) and is_whole:
                self._report.add(
                    where_chunk(address, index), "chunk has another size than its blob says"
                )
                is_whole = False
            compressed += codec_of(value) != RAW
            size += len(content)
            if digest is not None:
                digest.update(content)
        if expected != row.chunks or not is_dense:
            self._report.add(where_chunk(address, expected), "is missing, or is one too many")
        elif not is_whole:
            self._report.consequences += 1  # nothing tells the address of the rest
        elif digest is not None and digest.digest() != address:
            self._report.add(where, "its content has another address")
        elif (size, stored, compressed) != (row.size, row.stored_bytes, row.compressed):
            self._report.add(where, "row does not describe its chunks")

    def _chunks(self, number: int) -> Iterator[tuple[int, bytes]]:
        for key, value in self._tables.rows("chunk", U64.pack(number)):
            if len(key) == PAIR.size:
                yield PAIR.unpack(key)[1], value

    def _check_number(self, where: str, number: int) -> None:
        if number > self.record.blobs_made:
            self._report.add(where, f"blob number {number} was never handed out")

    def _check_tenant(self, where: str, number: int) -> TenantRow | None:
        tenant = self._tenants.get(number)
        if tenant is None and number in self._strange_tenants:
            self._report.consequences += 1
        elif tenant is None:
            self._report.add(where, f"belongs to tenant {number}, which has no row")
        return tenant

    def _check_owners(self) -> None:
        """Every chunk's number is one of a blob or of something pending."""
        cursor = self._tables.transaction.cursor(self._tables.tables["chunk"])
        try:
            found = cursor.first()
            while found:
                key = cursor.key()
                if len(key) != PAIR.size:
                    self._report.add(f"chunk {key.hex()}", "key has another size")
                    found = cursor.next()
                    continue
                number = PAIR.unpack(key)[0]
                if number not in self._numbers and number not in self._pending:
                    if self._is_whole:
                        self._report.add(f"chunk {key.hex()}", f"no blob has number {number}")
                    else:
                        self._report.consequences += 1
                found = cursor.set_range(PAIR.pack(number + 1, 0))
        finally:
            cursor.close()
