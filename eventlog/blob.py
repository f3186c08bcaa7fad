"""Blobs: what a row says of one, how it is addressed, and where its time is kept; pure.

A blob is content out of line, known by its address within one tenant. Its chunks lie under a
*blob number*, because the address is known only at the end of a stream.

Two kinds of rows lie in ``blob`` (FORMAT.md, "Blobs")::

    tenant number u64be, address 16B    -> blob row
    0 u64be, blob number u64be          -> pending row

Invariants:
    1. A blob row has a pending row of the same time, or it is referenced and has none. One that
       has both was put again while events named it, and somebody may still want to name it.
    2. Chunks whose number no blob row names have a pending row without an address.
    3. A blob number is given once, so what is read under it never changes into something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final

from eventlog.errors import CorruptionError
from eventlog.keys import PAIR, U64
from eventlog.limits import (
    BLOB_BYTES_MAX,
    BLOB_PENDING_US,
    CHUNK_BYTES_MAX,
    MEDIA_TYPE_BYTES_MAX,
)
from eventlog.rows import expose, protect

ADDRESS_BYTES: Final = 16
NO_ADDRESS: Final = bytes(ADDRESS_BYTES)
DOOMED_US: Final = 0  # the pending time of chunks that nobody can want any more
BLOB_KEY_BYTES: Final = U64.size + ADDRESS_BYTES
UNNAMED_MAX: Final = 2**32 - 1
PENDING_PREFIX: Final = U64.pack(0)  # tenant numbers begin with 1

_BLOB: Final = Struct("<QQQQQIIII")
_PENDING: Final = Struct("<QQ16s")


def blob_key(tenant_number: int, address: bytes) -> bytes:
    """Key of a blob row."""
    assert len(address) == ADDRESS_BYTES
    return U64.pack(tenant_number) + address


def pending_key(number: int) -> bytes:
    """Key of the pending row of a blob number."""
    return PAIR.pack(0, number)


def content_address(secret: bytes) -> blake2b:
    """A hash that is fed a content and gives its address as digest."""
    return blake2b(digest_size=ADDRESS_BYTES, key=secret, person=b"turnlog-blob")


def where_blob(key: bytes) -> str:
    """How errors call a blob row."""
    return f"blob {key[U64.size :].hex()}"


def where_chunk(address: bytes, index: int) -> str:
    """How errors call a chunk of a blob."""
    return f"blob {address.hex()} chunk {index}"


@dataclass(slots=True)
class BlobRow:
    """A whole blob.

    Attributes:
        number: Its chunks' blob number.
        size: Bytes of its content.
        stored_bytes: Bytes of its chunks' values.
        references: How often events name it.
        pending_us: Since when it waits to be named, µs: it was put, or lost its last event; 0 when
            events name it and nobody put it since.
        chunk_bytes: Content of each chunk but the last, in bytes.
        chunks: How many chunks.
        compressed: How many of them are compressed.
        unnamed: How many times it was put, within the hour, without an event that names it since.
        media_type: Empty when none was given.
    """

    number: int
    size: int
    stored_bytes: int
    references: int
    pending_us: int
    chunk_bytes: int
    chunks: int
    compressed: int
    unnamed: int
    media_type: str

    def encode(self, key: bytes) -> bytes:
        """The row's value; ``key`` is from ``blob_key``."""
        return protect(
            key,
            _BLOB.pack(
                self.number,
                self.size,
                self.stored_bytes,
                self.references,
                self.pending_us,
                self.chunk_bytes,
                self.chunks,
                self.compressed,
                self.unnamed,
            )
            + self.media_type.encode("ascii"),
        )

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> BlobRow:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not this blob's row.
        """
        where = where_blob(key)
        rest = expose(key, value, where)
        if len(key) != BLOB_KEY_BYTES or len(rest) < _BLOB.size:
            raise CorruptionError("row or key has another size", where=where)
        try:
            row = cls(*_BLOB.unpack_from(rest), rest[_BLOB.size :].decode("ascii"))  # type: ignore[call-arg]
        except UnicodeDecodeError as error:
            raise CorruptionError("its media type is no ASCII", where=where) from error
        if (
            not row.number
            or row.size > BLOB_BYTES_MAX
            or not 1 <= row.chunk_bytes <= CHUNK_BYTES_MAX
            or row.chunks != -(-row.size // row.chunk_bytes)
            or row.compressed > row.chunks
            or not (row.references or row.pending_us)
            or (row.references and (row.unnamed > 0) is not (row.pending_us > 0))
            or len(row.media_type) > MEDIA_TYPE_BYTES_MAX
        ):
            raise CorruptionError("row has numbers that cannot be", where=where)
        return row

    def put_again(self, now_us: int) -> None:
        """Somebody put the content: for an hour it stays, whatever becomes of its events."""
        if self.unnamed == UNNAMED_MAX:
            pass  # so many that an hour does not hold them
        elif self.is_held(now_us):
            self.unnamed += 1
        else:
            self.unnamed = 1
        self.pending_us = max(self.pending_us, now_us)

    def end_wait(self, event_count: int) -> bool:
        """Events name it, each for one put; True when it is pending no more."""
        self.unnamed = max(0, self.unnamed - event_count)
        if self.unnamed or not self.pending_us:
            return False
        self.pending_us = 0
        return True

    def is_held(self, now_us: int) -> bool:
        """Whether somebody put it within the hour and did not name it yet."""
        return self.unnamed > 0 and self.pending_us + BLOB_PENDING_US > now_us

    @property
    def codec(self) -> str:
        """``raw``, ``zstd``, or ``mixed`` when its chunks differ."""
        if not self.compressed:
            return "raw"
        return "zstd" if self.compressed == self.chunks else "mixed"


@dataclass(slots=True)
class PendingRow:
    """Chunks, or a whole blob, that somebody may still want to name.

    Attributes:
        tenant_number: Whose it is.
        pending_us: Time of the last step that needed it, µs; ``DOOMED_US`` to be removed at once.
        address: Of its blob row, ``NO_ADDRESS`` when it has none.
    """

    tenant_number: int
    pending_us: int
    address: bytes = NO_ADDRESS

    def encode(self, key: bytes) -> bytes:
        """The row's value; ``key`` is from ``pending_key``."""
        return protect(key, _PENDING.pack(self.tenant_number, self.pending_us, self.address))

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> PendingRow:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not this number's row.
        """
        where = f"pending blob {key[U64.size :].hex()}"
        rest = expose(key, value, where)
        if len(key) != PAIR.size or len(rest) != _PENDING.size:
            raise CorruptionError("row or key has another size", where=where)
        row = cls(*_PENDING.unpack(rest))
        if not row.tenant_number:
            raise CorruptionError("row has numbers that cannot be", where=where)
        return row
