"""Blobs: large contents out of line, kept once for each tenant, read by ranges.

A blob is put first and then named by events (``session.append(..., blobs=[blob])``), so that a
crash in between leaves a content that nothing names, never a name without content. What no event
has named for an hour is removed.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar, cast

from engine.events import Event, require_event
from eventlog.arguments import items, iterable, seconds, shown, whole
from eventlog.blob import ADDRESS_BYTES, BlobRow
from eventlog.blobcollect import Collection
from eventlog.blobput import Put, Upload
from eventlog.blobread import BlobContent
from eventlog.blobtable import MISSING_HINT, find_blob
from eventlog.errors import (
    ConflictError,
    CorruptionError,
    FormatVersionError,
    OverloadedError,
    SessionGoneError,
    UsageError,
)
from eventlog.limits import BLOB_BYTES_MAX, BLOB_STREAMS_MAX, CHUNK_BYTES_MAX, MEDIA_TYPE_BYTES_MAX
from eventlog.log import Log
from eventlog.place import FORMAT_VERSION
from eventlog.seams import CLOCK

if TYPE_CHECKING:
    from engine.store import Store

T = TypeVar("T")
FILE_READ_BYTES: Final = 256 * 1024
_END: Final = object()


@dataclass(frozen=True, slots=True)
class Blob:
    """A content that is stored; a plain value that outlives the store.

    Attributes:
        tenant: Whose it is.
        address: 16 bytes that stand for the content within the tenant, and tell others nothing.
        size: Bytes of the content.
        media_type: As given by who put the content first, or None.
        stored_bytes: Bytes that it takes, compressed where that helps.
        codec: ``raw``, ``zstd``, or ``mixed`` when its parts differ.
    """

    tenant: str
    address: bytes
    size: int
    media_type: str | None
    stored_bytes: int
    codec: str


BlobLike = Blob | bytes | str
"""A blob, or its address as 16 bytes or 32 hex digits."""

Content = bytes | bytearray | memoryview | BinaryIO | Iterable[bytes]
"""Bytes, a file opened in binary mode, or an iterable of bytes."""


def address_of(tenant: str, blob: BlobLike) -> bytes:
    """The address that a caller means.

    Raises:
        UsageError: It is none, or of another tenant's blob.
    """
    if isinstance(blob, Blob):
        if blob.tenant != tenant:
            raise UsageError(
                f"the blob belongs to tenant {blob.tenant!r}, not to {tenant!r}",
                hint="Put the content into this tenant's blobs.",
            )
        return blob.address
    if type(blob) is bytes and len(blob) == ADDRESS_BYTES:
        return blob
    if type(blob) is str and len(blob) == 2 * ADDRESS_BYTES:
        try:
            return bytes.fromhex(blob)
        except ValueError:
            pass
    raise UsageError(
        f"a blob must be what blobs.put gave, or an address of 16 bytes or 32 hex digits, "
        f"not {shown(blob)}"
    )


def addresses_of(log: Log, tenant: str, blobs: Sequence[BlobLike]) -> tuple[bytes, ...]:
    """The addresses that an event is to refer to."""
    require_blobs(log)
    return tuple([address_of(tenant, blob) for blob in items(blobs, "blobs")])


def require_blobs(log: Log) -> None:
    """Raise when the store's format version has no blobs."""
    version = log.environment.version
    if version < 2:
        raise FormatVersionError(
            f"blobs need format version 2; the store has {version}",
            found=version,
            supported=FORMAT_VERSION,
            hint="Run `turnlog upgrade` on the store.",
        )


def collect_blobs(log: Log, timeout: float | None) -> dict[str, int]:
    """See ``Store.collect_blobs``."""
    require_blobs(log)
    task = Collection(log.writer.pause)
    log.writer.run(task, timeout)
    done = task.collected
    for error in done.damaged.values():
        raise error
    return {"blobs": done.blobs, "streams": done.streams, "chunks": done.chunks}


class Blobs:
    """One tenant's blobs. Made by ``tenant.blobs``; holds nothing open."""

    __slots__ = ("_store", "tenant")

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self.tenant = tenant

    def __repr__(self) -> str:
        return f"Blobs(tenant={self.tenant!r})"

    # Putting

    def put(
        self, data: Content, *, media_type: str | None = None, timeout: float | None = None
    ) -> Blob:
        """Store a content, or find that it is there; blocks until it is durable.

        Nobody has it until an event names it (``session.append(..., blobs=[blob])``); that has to
        be within the hour, for which it stays, also when the events go that named the same content
        before, even by ``erase``. Each put is for one event. At most 4 MiB of it are in memory, and
        at most 16 contents are put at once; others wait. For threads: on an event loop use
        ``put_async``.

        Args:
            data: Bytes, a file opened in binary mode, or an iterable of bytes; read to its end.
            media_type: Noted if the content is new, like ``image/png``; 1 to 255 characters.
            timeout: Seconds for waiting on the store, not on ``data``; None waits for ever.

        Raises:
            UsageError: The data or the media type is of another sort.
            LimitExceededError: More than 1 TiB.
            OverloadedError: Others put 16 contents, and none was done in time.
            TimeoutError: A commit was not done in time; nothing can be read of the content.
            StorageFullError, QuotaExceededError, BusyError: The store could not write it.
            CorruptionError: A blob of this content is there and damaged.
        """
        source, kind, left_s = self._begin(data, media_type, timeout)
        log = self._store._log
        if not log.wait_until(log.streams.try_enter, left_s()):
            raise _too_many_streams()
        try:
            return self._put(source, kind, left_s)
        finally:
            self._leave()

    def _put(
        self, source: Iterator[Any], media_type: str, left_s: Callable[[], float | None]
    ) -> Blob:
        upload = self._upload(media_type, left_s)
        try:
            found = self._find_whole(upload, source)
            if found is None:
                for piece in source:
                    upload.add(_checked_piece(piece))
                found = upload.finish()
        except BaseException:
            upload.abandon()
            raise
        return self._blob(found)

    async def put_async(
        self,
        data: Content | AsyncIterable[bytes],
        *,
        media_type: str | None = None,
        timeout: float | None = None,
    ) -> Blob:
        """``put`` from an event loop; also takes an async iterable of bytes.

        Files and iterables are read, hashed and compressed on the store's pool, a piece at a time.
        """
        if isinstance(data, AsyncIterable):
            source, kind, left_s = self._begin(b"", media_type, timeout)
        else:
            source, kind, left_s = self._begin(data, media_type, timeout)
        log = self._store._log
        try:
            async with asyncio.timeout(left_s()):
                await log.wait_until_async(log.streams.try_enter)
        except TimeoutError as error:
            raise _too_many_streams() from error
        try:
            upload = await self._whole(self._upload, kind, left_s)
            try:
                if isinstance(data, AsyncIterable):
                    found = await self._put_async(upload, data)
                else:
                    found = await self._put_pieces(upload, source)
            except BaseException:
                await self._whole(upload.abandon)
                raise
        finally:
            self._leave()
        return self._blob(found)

    async def _put_async(self, upload: Upload, data: AsyncIterable[bytes]) -> Put:
        async for piece in data:
            view = memoryview(_checked_piece(piece)).cast("B")
            if upload.takes(len(view)):
                upload.add(view)
                continue
            for start in range(0, len(view), CHUNK_BYTES_MAX):
                await self._whole(upload.add, view[start : start + CHUNK_BYTES_MAX])
        return await self._whole(upload.finish)

    async def _put_pieces(self, upload: Upload, source: Iterator[Any]) -> Put:
        found = await self._whole(self._find_whole, upload, source)
        if found is not None:
            return found

        def add_next() -> bool:
            piece = next(source, _END)
            if piece is _END:
                return False
            upload.add(_checked_piece(piece))
            return True

        while await self._whole(add_next):
            pass
        return await self._whole(upload.finish)

    async def _whole(self, call: Callable[..., T], *args: Any) -> T:
        """A call on the store's pool that has ended when this returns, also when cancelled."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._store._pool(), call, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait((future,))
            raise

    def _begin(
        self, data: Content, media_type: str | None, timeout: float | None
    ) -> tuple[Iterator[Any], str, Callable[[], float | None]]:
        """Check what a caller gives; nothing was read yet."""
        self._store._refuse_closed()
        log = self._store._log
        require_blobs(log)
        refusal = log.writer.machine.refusal
        if refusal is not None:  # in a forked child not even the lock of the streams may be taken
            raise refusal.with_traceback(None)
        wait_s = seconds(timeout, "timeout")
        end_us = None if wait_s is None else CLOCK.monotonic_us() + int(wait_s * 1e6)

        def left_s() -> float | None:
            return None if end_us is None else max(0.0, (end_us - CLOCK.monotonic_us()) / 1e6)

        return _pieces(data), checked_media_type(media_type), left_s

    def _upload(self, media_type: str, left_s: Callable[[], float | None]) -> Upload:
        log = self._store._log
        writer = log.writer
        return Upload(
            log.views.transaction,
            lambda task: writer.run(task, left_s()),
            writer.composer.quota_refusal,
            self.tenant,
            media_type,
        )

    @staticmethod
    def _find_whole(upload: Upload, source: Iterator[Any]) -> Put | None:
        """A content that is in memory is looked up before a byte of it is written."""
        return upload.find(source.whole) if isinstance(source, _Slices) else None

    def _leave(self) -> None:
        self._store._log.streams.leave()
        self._store._log.announce()  # somebody may wait for the place

    def _blob(self, found: Put) -> Blob:
        return _blob_of(self.tenant, found.address, found.row)

    # Reading

    def get(self, blob: BlobLike) -> Blob | None:
        """A blob by its address; None when the tenant has none (any more)."""
        found = self._find(blob)
        return None if found is None else _blob_of(self.tenant, found.address, found.row)

    async def get_async(self, blob: BlobLike) -> Blob | None:
        """``get`` on the store's pool."""
        return await self._store._on_pool(self.get, blob)

    def of(self, event: Event) -> Iterator[Blob]:
        """The blobs that an event of this tenant refers to, looked up one by one.

        Raises:
            CorruptionError: One is damaged or missing; the others can be asked for by
                ``event.blobs``.
            SessionGoneError: It was removed with the event, which is not in the store any more.
            UsageError: It is no event, or one of another tenant.
        """
        require_event(event)
        if event.tenant != self.tenant:
            raise UsageError(f"the event belongs to tenant {event.tenant!r}, not {self.tenant!r}")
        for address in event.blobs:
            row = require_content(self._store._log, event, address).row
            yield _blob_of(self.tenant, address, row)

    def open(self, blob: BlobLike) -> BlobReader:
        """A blob's content as a file; holds no transaction between calls.

        Raises:
            ConflictError: The tenant has no such blob (any more).
        """
        content = self._require(blob)
        return BlobReader(content, _blob_of(self.tenant, content.address, content.row), self._store)

    async def open_async(self, blob: BlobLike) -> BlobReader:
        """``open`` on the store's pool."""
        return await self._store._on_pool(self.open, blob)

    def read(self, blob: BlobLike, start: int = 0, stop: int | None = None) -> bytes:
        """A range of a blob's content, half-open; decodes only the parts that it touches.

        Args:
            blob: The blob or its address.
            start: First byte.
            stop: Byte after the last; None, or past the end, reads to the end.

        Raises:
            ConflictError: The tenant has no such blob (any more).
            UsageError: It is a ``Blob`` of another tenant.
            CorruptionError: A part of the range is damaged; names blob and chunk.
        """
        whole(start, "start", 0, BLOB_BYTES_MAX)
        if stop is not None:
            whole(stop, "stop", 0, BLOB_BYTES_MAX)
        content = self._require(blob)
        return content.read(start, content.row.size if stop is None else stop)

    async def read_async(self, blob: BlobLike, start: int = 0, stop: int | None = None) -> bytes:
        """``read`` on the store's pool."""
        return await self._store._on_pool(self.read, blob, start, stop)

    def _find(self, blob: BlobLike) -> BlobContent | None:
        return find_content(self._store._log, self.tenant, address_of(self.tenant, blob))

    def _require(self, blob: BlobLike) -> BlobContent:
        found = self._find(blob)
        if found is None:
            address = address_of(self.tenant, blob).hex()
            raise ConflictError(
                f"the tenant has no blob {address}", expected=address, hint=MISSING_HINT
            )
        return found

    # Loading

    def _begin_upload(self, media_type: str | None) -> Upload:
        """A content that is fed piece by piece; ``_leave`` once it has ended."""
        _, kind, left_s = self._begin(b"", media_type, None)
        log = self._store._log
        log.wait_until(log.streams.try_enter, None)
        try:
            return self._upload(kind, left_s)
        except BaseException:
            self._leave()
            raise


def find_content(log: Log, tenant: str, address: bytes) -> BlobContent | None:
    """A blob's content, None when the tenant has none of that address."""
    views = log.views
    with views.transaction() as tables:
        number = tables.find_tenant(tenant) if tables.has("blob") else None
        row = None if number is None else find_blob(tables, number, address)
    if number is None or row is None:
        return None
    return BlobContent(views.transaction, number, address, row)


def require_content(log: Log, event: Event, address: bytes) -> BlobContent:
    """The content of a blob that an event names.

    Raises:
        CorruptionError: It is not there, or its row is damaged.
        SessionGoneError: It is not there, and the event neither: both were removed.
    """
    found = find_content(log, event.tenant, address)
    if found is None:
        facts = log.views.facts((event.tenant, event.session))  # read after the content
        number = None if facts is None else facts.origin.number
        if facts is None or number != event.session_number or event.sequence < facts.row.first:
            raise SessionGoneError(
                f"event {event.sequence} of session {event.session!r} was removed, and blob "
                f"{address.hex()} with it",
                expected=event.session_number,
                current=number,
            )
        raise CorruptionError("is missing, and an event names it", where=f"blob {address.hex()}")
    return found


class BlobReader(io.RawIOBase):
    """A blob's content as a binary file for reading, with ``seek``.

    Keeps one decoded part of at most 1 MiB. Not safe for two threads at once. A place or size that
    is no number raises ``TypeError``, as with every file of Python's.

    Attributes:
        blob: Whose content it is.
    """

    def __init__(self, content: BlobContent, blob: Blob, store: Store) -> None:
        super().__init__()
        self.blob = blob
        self._content = content
        self._store = store
        self._place = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place of the next byte."""
        self._require_open()
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, as in every file; past the end nothing is read."""
        self._require_open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.blob.size}.get(whence)
        if base is None or base + offset < 0:
            raise UsageError(f"cannot seek to {shown(offset)} from {shown(whence)}")
        self._place = base + offset
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        """The next ``size`` bytes, fewer only at the end; all that are left without a size."""
        self._require_open()
        stop = self.blob.size if size is None or size < 0 else self._place + size
        data = self._content.read(self._place, stop)
        self._place += len(data)
        return data

    async def read_async(self, size: int | None = -1) -> bytes:
        """``read`` on the store's pool."""
        return await self._store._on_pool(self.read, size)

    def readline(self, size: int | None = -1) -> bytes:
        """The bytes up to and with the next line feed, or to the end; so does iterating."""
        self._require_open()
        start = self._place
        stop = self.blob.size if size is None or size < 0 else min(start + size, self.blob.size)
        end = start
        while end < stop:
            part = self._content.read(end, min(end + FILE_READ_BYTES, stop))
            found = part.find(b"\n")
            end += len(part) if found < 0 else found + 1
            if found >= 0:
                break
        return self.read(max(0, end - start))

    def readall(self) -> bytes:
        """All bytes that are left."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; how many bytes were read."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _require_open(self) -> None:
        if self.closed:
            raise UsageError("the reader is closed")
        self._store._refuse_closed()


def _blob_of(tenant: str, address: bytes, row: BlobRow) -> Blob:
    return Blob(tenant, address, row.size, row.media_type or None, row.stored_bytes, row.codec)


class _Slices:
    """Bytes in memory, a chunk at a time."""

    def __init__(self, whole_content: bytes) -> None:
        self.whole = whole_content
        self._start = 0

    def __iter__(self) -> _Slices:
        return self

    def __next__(self) -> memoryview:
        start = self._start
        if start >= len(self.whole):
            raise StopIteration
        self._start = start + CHUNK_BYTES_MAX
        return memoryview(self.whole)[start : self._start]


def _pieces(data: Content) -> Iterator[Any]:
    """The pieces of a content, read when they are asked for."""
    if isinstance(data, bytes):
        # Smaller contents are looked up anyway before anything is written.
        return (
            cast("Iterator[Any]", _Slices(data)) if len(data) > CHUNK_BYTES_MAX else iter((data,))
        )
    if isinstance(data, bytearray | memoryview):
        return iter((data,))
    if isinstance(data, str | dict):
        raise UsageError(
            f"data must be bytes, a binary file or an iterable of bytes, not {_type(data)}"
        )
    read = getattr(data, "read", None)
    if callable(read):
        return _read_file(read)
    return iter(iterable(data, "data"))


def _read_file(read: Callable[[int], Any]) -> Iterator[Any]:
    while True:
        piece = read(FILE_READ_BYTES)
        if piece is None:
            raise UsageError(
                "the file has nothing to read at the moment; open it as a blocking one"
            )
        if not len(_checked_piece(piece)):
            return
        yield piece


def _checked_piece(piece: Any) -> bytes | bytearray | memoryview:
    if not isinstance(piece, bytes | bytearray | memoryview):
        raise UsageError(f"data must give bytes, not {_type(piece)}")
    if isinstance(piece, memoryview) and not piece.c_contiguous:
        return piece.tobytes()
    return piece


def checked_media_type(media_type: str | None) -> str:
    """A media type as it is stored, empty for None."""
    if media_type is None:
        return ""
    if type(media_type) is not str or not (
        media_type.isascii() and media_type.isprintable() and media_type.strip() == media_type
    ):
        raise UsageError(f"media_type must be printable ASCII, not {shown(media_type)}")
    if not 1 <= len(media_type) <= MEDIA_TYPE_BYTES_MAX:
        raise UsageError(
            f"media_type has {len(media_type)} characters; allowed are 1 to {MEDIA_TYPE_BYTES_MAX}"
        )
    return media_type


def _too_many_streams() -> OverloadedError:
    return OverloadedError(
        f"{BLOB_STREAMS_MAX} contents are being put, and none was done in time",
        hint="Put fewer at once, or give a longer timeout.",
    )


def _type(value: object) -> str:
    return type(value).__name__
