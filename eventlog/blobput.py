"""Putting a content: a stream becomes chunks, and at its end a blob, or a blob that was there.

A stream's chunks go ahead in commits of their own, under a blob number and pending; the commit that
brings the last ones also writes the row under the address, which is known only then. A content that
was put before is compared with it, byte by byte, and its new chunks are removed.

Invariants:
    1. Of a stream at most ``BLOB_STREAM_BYTES_MAX`` are in memory, whatever its size; at most
       ``BLOB_STREAMS_MAX`` streams of one open store run at once (``Streams``).
    2. The steps on the writer's thread only seal, put and look up; hashing and compressing is done
       by who puts.
    3. Whatever ends a stream in the middle, its chunks have a pending row and can be collected.
    4. Equal addresses are never taken for equal contents: the bytes are compared.
    5. A content that was there is noted as put again before its reference is given out: events
       that name it may go meanwhile, in any process, and it stays for the hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from eventlog.blob import (
    DOOMED_US,
    NO_ADDRESS,
    BlobRow,
    PendingRow,
    blob_key,
    content_address,
    where_blob,
)
from eventlog.blobread import BlobContent, Transactions
from eventlog.blobtable import (
    find_blob,
    find_pending,
    put_blob,
    put_chunk,
    put_pending,
    remove_doomed,
)
from eventlog.chunk import PREFIX_BYTES, RAW, compress_chunk, decode_chunk, seal_chunk
from eventlog.errors import (
    ConflictError,
    CorruptionError,
    LimitExceededError,
    QuotaExceededError,
    TurnlogError,
)
from eventlog.failpoints import fp
from eventlog.keys import PAIR
from eventlog.limits import (
    BLOB_BATCH_BYTES,
    BLOB_BATCH_CHUNKS,
    BLOB_BYTES_MAX,
    BLOB_STREAMS_MAX,
    CHUNK_BYTES_MAX,
    KIB,
)
from eventlog.rows import SECRET_BYTES, CommitRecord, TenantRow
from eventlog.seams import CLOCK, random_bytes
from eventlog.tables import WriteTables
from eventlog.tasks import Task

SMALL_BYTES: Final = 64 * KIB

Run = Callable[[Task], object]
Quota = Callable[[WriteTables], QuotaExceededError | None]


class Streams:
    """How many contents are being put at once; each takes a place before its first byte is read."""

    def __init__(self, streams_max: int = BLOB_STREAMS_MAX) -> None:
        self.streams_max = streams_max
        self.count = 0
        self._lock = Lock()

    def try_enter(self) -> bool:
        """Take a place; False when there is none."""
        with self._lock:
            if self.count >= self.streams_max:
                return False
            self.count += 1
            return True

    def leave(self) -> None:
        """Give a place back."""
        with self._lock:
            self.count -= 1


@dataclass(frozen=True, slots=True)
class Put:
    """What became of a content.

    Attributes:
        tenant_number: Whose it is.
        address: Where it is.
        row: Its row.
        already: Whether it was there before.
    """

    tenant_number: int
    address: bytes
    row: BlobRow
    already: bool


class Upload:
    """One content on its way. Feed it with ``add``, then ``finish``, or ``abandon`` it.

    Each call may block for commits; use it from one thread at a time.

    Args:
        transactions: Begins a short read transaction.
        run: Runs a task on the writer's thread and waits until it is done.
        quota: Why nothing may be written at the moment, if so.
        tenant: The tenant's name; made when there is none.
        media_type: Noted if the content is new; may be empty.
    """

    def __init__(
        self, transactions: Transactions, run: Run, quota: Quota, tenant: str, media_type: str
    ) -> None:
        self._transactions = transactions
        self._run = run
        self._quota = quota
        self._media_type = media_type
        self._tenant_number, secret = self._find_tenant(tenant)
        self._secret = secret
        self._address = content_address(secret)
        self._number: int | None = None  # known from the first commit on
        self._buffer = bytearray()
        self._waiting: list[_Chunk] = []
        self._written = 0  # chunks that are committed
        self._size = 0
        self._stored_bytes = 0
        self._compressed = 0

    def _find_tenant(self, name: str) -> tuple[int, bytes]:
        with self._transactions() as tables:
            number = tables.find_tenant(name)
            if number is not None:
                return number, tables.load_tenant(number).secret
        task = _MakeTenant(name)
        self._run(task)
        return task.number, task.secret

    def find(self, content: bytes) -> Put | None:
        """A blob that holds a content already; for one that is in memory, before it is put."""
        address = content_address(self._secret)
        address.update(content)
        found = self._find(address.digest())
        if found is None:
            return None
        size = found.row.chunk_bytes
        view = memoryview(content)
        parts = (view[start : start + size] for start in range(0, len(content), size))
        is_there = self._compare(found, parts, len(content))
        return self._keep(found) if is_there else None

    def add(self, piece: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the content.

        Raises:
            LimitExceededError: The content is larger than a blob may be.
        """
        view = memoryview(piece).cast("B")
        if self._size + len(self._buffer) + len(view) > BLOB_BYTES_MAX:
            raise LimitExceededError(
                f"a content of more than {BLOB_BYTES_MAX:,} bytes",
                name="BLOB_BYTES_MAX",
                actual=self._size + len(self._buffer) + len(view),
                limit=BLOB_BYTES_MAX,
            )
        start = 0
        while start < len(view):
            if len(self._buffer) == CHUNK_BYTES_MAX:
                self._take_buffer()
            if not self._buffer and len(view) - start > CHUNK_BYTES_MAX:
                self._make_room(CHUNK_BYTES_MAX)
                self._take(bytes(view[start : start + CHUNK_BYTES_MAX]))
                start += CHUNK_BYTES_MAX
                continue
            taken = view[start : start + CHUNK_BYTES_MAX - len(self._buffer)]
            self._buffer += taken
            start += len(taken)

    def _take_buffer(self) -> None:
        self._make_room(len(self._buffer))
        content = bytes(self._buffer)
        self._buffer.clear()
        self._take(content)

    def _make_room(self, size: int) -> None:
        """Commit what waits unless so many bytes more may wait too; the first chunk goes alone."""
        waiting = sum([chunk.size for chunk in self._waiting])
        if waiting and (
            self._number is None
            or waiting + size > BLOB_BATCH_BYTES
            or len(self._waiting) == BLOB_BATCH_CHUNKS
        ):
            self._write(None)

    def _take(self, content: bytes) -> None:
        self._address.update(content)
        self._size += len(content)
        codec, payload = compress_chunk(content)
        self._compressed += codec != RAW
        chunk = _Chunk(codec, payload, content)
        if self._number is not None:
            chunk.freeze(PAIR.pack(self._number, self._written + len(self._waiting)))
        self._stored_bytes += chunk.size
        self._waiting.append(chunk)

    def _write(self, address: bytes | None) -> _Write:
        """Commit the chunks that wait, and with the address the row as well."""
        row = None
        if address is not None:
            row = BlobRow(
                number=0,
                size=self._size,
                stored_bytes=self._stored_bytes,
                references=0,
                pending_us=0,
                chunk_bytes=CHUNK_BYTES_MAX,
                chunks=self._written + len(self._waiting),
                compressed=self._compressed,
                unnamed=1,
                media_type=self._media_type,
            )
        task = _Write(
            self._tenant_number,
            self._number,
            self._written,
            self._waiting,
            NO_ADDRESS if address is None else address,
            row,
            self._quota,
        )
        self._run(task)
        if task.found is None:
            self._number = task.number
            self._written += len(self._waiting)
            self._waiting = []
        return task

    def finish(self) -> Put:
        """The content is whole: give it its address, or find that it was there.

        Raises:
            CorruptionError: What was there is damaged, or differs and has the same address.
        """
        if self._buffer:
            self._take_buffer()
        address = self._address.digest()
        while True:
            found = self._find(address)
            if found is None:
                task = self._write(address)
                if task.found is None:
                    assert task.row is not None
                    return Put(self._tenant_number, address, task.row, already=False)
                found = Put(self._tenant_number, address, task.found, already=True)
            if self._compare(found, self._contents(), self._size):
                kept = self._keep(found)
                if kept is not None:
                    self.abandon()
                    return kept

    def takes(self, size: int) -> bool:
        """True when ``add`` of so many bytes only copies them: fit for an event loop."""
        return size <= SMALL_BYTES and len(self._buffer) + size <= CHUNK_BYTES_MAX

    def _find(self, address: bytes) -> Put | None:
        with self._transactions() as tables:
            row = find_blob(tables, self._tenant_number, address)
        return None if row is None else Put(self._tenant_number, address, row, already=True)

    def _contents(self) -> Iterator[bytes]:
        """Our own chunks: what was committed, then what waits."""
        for index in range(self._written):
            assert self._number is not None
            key = PAIR.pack(self._number, index)
            with self._transactions() as tables:
                value = tables.transaction.get(key, db=tables.tables["chunk"])
            if value is None:
                raise _taken_too_long()
            yield decode_chunk(key, value, f"pending blob {self._number} chunk {index}")
        for chunk in self._waiting:
            yield chunk.content

    def _compare(self, found: Put, contents: Iterator[bytes | memoryview], size: int) -> bool:
        """Raise unless a stored blob holds these bytes (invariant 4); False when it is gone."""
        stored = BlobContent(self._transactions, found.tenant_number, found.address, found.row)
        is_equal = found.row.size == size
        start = 0
        try:
            while is_equal and (content := next(contents, None)) is not None:
                is_equal = stored.read(start, start + len(content)) == content
                start += len(content)
        except ConflictError:  # a blob was removed: that one, or ours
            again = self._find(found.address)
            if again is not None and again.row.number == found.row.number:
                raise
            return False
        if not is_equal:
            raise CorruptionError(
                "holds other bytes than those that have its address",
                where=where_blob(blob_key(found.tenant_number, found.address)),
            )
        return True

    def _keep(self, found: Put) -> Put | None:
        """Let a blob stay for another hour, also when its events go; None when it is gone."""
        task = _Keep(found)
        self._run(task)
        return None if task.row is None else replace(found, row=task.row)

    def abandon(self) -> None:
        """Nobody needs what was written: remove it now, or else it is collected in an hour."""
        self._waiting = []
        self._buffer = bytearray()
        if self._number is not None:
            with suppress(TurnlogError, TimeoutError):
                self._run(_Abandon(self._number))


class _Chunk:
    """A chunk that waits: with its content as long as its number is not known."""

    __slots__ = ("_codec", "_content", "_key", "_payload", "_value", "size")

    def __init__(self, codec: int, payload: bytes, content: bytes) -> None:
        self._codec = codec
        self._payload = payload
        self._content = content
        self._key = b""
        self._value = b""
        self.size = PREFIX_BYTES + len(payload)

    def freeze(self, key: bytes) -> None:
        """Its key is known: seal it and let the content go."""
        self._value = self.seal(key)
        self._key = key
        self._payload = self._content = b""

    def seal(self, key: bytes) -> bytes:
        """The value under a key."""
        if self._value:
            assert key == self._key
            return self._value
        return seal_chunk(key, self._codec, self._payload, self._content)

    @property
    def content(self) -> bytes:
        """The content again."""
        return decode_chunk(self._key, self._value, "chunk") if self._value else self._content


class _MakeTenant:
    """Task: a tenant's number and secret, made when there is none."""

    def __init__(self, name: str) -> None:
        self.done = False
        self.number = 0
        self.secret = b""
        self._name = name

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``Task``."""
        self.done = True
        number = tables.find_tenant(self._name)
        if number is not None:
            self.number, self.secret = number, tables.load_tenant(number).secret
            return None
        self.number, self.secret = record.tenants_made + 1, random_bytes(SECRET_BYTES)
        tables.put_tenant(self.number, TenantRow(self.secret, self._name))
        return replace(record, tenants_made=self.number)


class _Write:
    """Task: chunks of a stream; with the last ones the row, unless the address has one already.

    Attributes:
        number: The stream's blob number, once written.
        row: The row, once written.
        found: The row that was there; nothing was written then.
    """

    def __init__(
        self,
        tenant_number: int,
        number: int | None,
        written: int,
        chunks: list[_Chunk],
        address: bytes,
        row: BlobRow | None,
        quota: Quota,
    ) -> None:
        self.done = False
        self.number = number
        self.row = row
        self.found: BlobRow | None = None
        self._tenant_number = tenant_number
        self._given = number
        self._written = written
        self._chunks = chunks
        self._address = address
        self._quota = quota

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``Task``."""
        self.done = True
        if self.row is not None:
            self.found = find_blob(tables, self._tenant_number, self._address)
            if self.found is not None:
                return None
        full = self._quota(tables)
        if full is not None:
            raise full
        now_us = now(record)
        number = self._given
        if number is None:
            number = record.blobs_made + 1
        else:
            pending = find_pending(tables, number)
            if pending is None or pending.pending_us == DOOMED_US:
                raise _taken_too_long()
        for index, chunk in enumerate(self._chunks, self._written):
            key = PAIR.pack(number, index)
            put_chunk(tables, key, chunk.seal(key))
        fp("blob.after_chunks")
        if self.row is None:
            put_pending(tables, number, PendingRow(self._tenant_number, now_us))
        else:
            self.row.number = number
            self.row.pending_us = now_us
            put_blob(tables, self._tenant_number, self._address, self.row)
        self.number = number
        return replace(record, blobs_made=max(record.blobs_made, number), recorded_us=now_us)


class _Keep:
    """Task: a blob that was put again stays for an hour; ``row`` is None when it is gone."""

    def __init__(self, found: Put) -> None:
        self.done = False
        self.row: BlobRow | None = None
        self._found = found

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``Task``."""
        self.done = True
        found = self._found
        row = find_blob(tables, found.tenant_number, found.address)
        if row is None or row.number != found.row.number:
            return None
        self.row = row
        now_us = now(record)
        row.put_again(now_us)
        put_blob(tables, found.tenant_number, found.address, row)
        return replace(record, recorded_us=now_us)


class _Abandon:
    """Task: remove the chunks of a stream that has no blob row."""

    def __init__(self, number: int) -> None:
        self.done = False
        self._number = number

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``Task``."""
        pending = find_pending(tables, self._number)
        if pending is None or pending.address != NO_ADDRESS:
            self.done = True
            return None
        self.done = remove_doomed(tables, self._number, pending)
        return record


def now(record: CommitRecord) -> int:
    """The clock, never behind what the store has stamped."""
    return max(1, CLOCK.wall_us(), record.recorded_us)


def _taken_too_long() -> ConflictError:
    return ConflictError(
        "more than an hour passed between two parts of the content, and the first were removed",
        hint="Put the content again, from its beginning.",
    )
