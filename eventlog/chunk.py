"""Chunks: the content of a blob, cut into pieces that LMDB stores without waste, pure.

A chunk's key is (blob number, index). Its value, little-endian (FORMAT.md, "Chunks")::

    checksum 8 | codec 1 | reserved 3 | content bytes 4 | payload

Invariants:
    1. The checksum is xxh3_64 over key, prefix and *uncompressed* content.
    2. Content that zstd makes less than a twentieth smaller is stored as it is, and a few samples
       tell before all of it is tried: media that is compressed already costs next to nothing.
    3. Nothing is decompressed before its stated size was checked; it is decompressed in one call,
       which takes no memory but for the content, whatever window a frame states.
"""

from __future__ import annotations

import threading
from struct import Struct
from typing import Final

from xxhash import xxh3_64
from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError, frame_content_size

from eventlog.errors import CorruptionError
from eventlog.keys import PAIR
from eventlog.limits import CHUNK_BYTES_MAX, KIB

CHECKSUM_BYTES: Final = 8
PREFIX: Final = Struct("<BBHI")
PREFIX_BYTES: Final = CHECKSUM_BYTES + PREFIX.size
RAW: Final = 0
ZSTD: Final = 1
LEVEL: Final = 3
GAIN_SHARE: Final = 20  # compression that gains less than 1/20 is not kept
SAMPLE_BYTES: Final = 16 * KIB  # of each of the three samples
_SAMPLED_FROM: Final = 8 * SAMPLE_BYTES  # smaller content is tried as a whole


class _Contexts(threading.local):
    """One compressor and one decompressor per thread: zstd's contexts are not safe to share."""

    def __init__(self) -> None:
        self.compress = ZstdCompressor(level=LEVEL, write_content_size=True).compress
        self.decompress = ZstdDecompressor().decompress


_contexts: Final = _Contexts()


def compress_chunk(content: bytes) -> tuple[int, bytes]:
    """Codec and payload of a chunk's content.

    Args:
        content: At most ``CHUNK_BYTES_MAX`` bytes.
    """
    assert len(content) <= CHUNK_BYTES_MAX
    if not _may_gain(content):
        return RAW, content
    frame = _contexts.compress(content)
    return (ZSTD, frame) if _gains(len(frame), len(content)) else (RAW, content)


def _may_gain(content: bytes) -> bool:
    """Whether samples of the beginning, the middle and the end get smaller."""
    size = len(content)
    if size < _SAMPLED_FROM:
        return size > 0
    middle = (size - SAMPLE_BYTES) // 2
    sample = (
        content[:SAMPLE_BYTES] + content[middle : middle + SAMPLE_BYTES] + content[-SAMPLE_BYTES:]
    )
    return _gains(len(_contexts.compress(sample)), len(sample))


def _gains(packed: int, size: int) -> bool:
    return packed <= size - -(-size // GAIN_SHARE)


def seal_chunk(key: bytes, codec: int, payload: bytes, content: bytes) -> bytes:
    """The value of a chunk.

    Args:
        key: Its key, (blob number, index).
        codec: What ``compress_chunk`` said.
        payload: What it gave.
        content: What it was given.
    """
    prefix = PREFIX.pack(codec, 0, 0, len(content))
    return b"".join((_checksum(key, prefix, content), prefix, payload))


def content_bytes(value: bytes) -> int:
    """The size of its content that a stored chunk states; not checked, 0 when it is too short."""
    if len(value) < PREFIX_BYTES:
        return 0
    size: int = PREFIX.unpack_from(value, CHECKSUM_BYTES)[3]
    return size


def codec_of(value: bytes) -> int:
    """The codec that a stored chunk states."""
    return value[CHECKSUM_BYTES]


def decode_chunk(key: bytes, value: bytes, where: str) -> bytes:
    """Check a stored chunk and give its content.

    Args:
        key: Its key.
        value: Its value.
        where: How errors call it.

    Raises:
        CorruptionError: The bytes are not what was written under this key.
    """
    if len(key) != PAIR.size or len(value) < PREFIX_BYTES:
        raise CorruptionError("chunk is too short, or its key has another size", where=where)
    prefix = value[CHECKSUM_BYTES:PREFIX_BYTES]
    codec, *reserved, size = PREFIX.unpack(prefix)
    if any(reserved) or not 1 <= size <= CHUNK_BYTES_MAX:
        raise CorruptionError("chunk states what cannot be", where=where)
    content = _content(codec, size, value[PREFIX_BYTES:], where)
    if _checksum(key, prefix, content) != value[:CHECKSUM_BYTES]:
        raise CorruptionError("chunk checksum does not match", where=where)
    return content


def _content(codec: int, size: int, payload: bytes, where: str) -> bytes:
    if codec == RAW:
        content = payload
    elif codec == ZSTD:
        try:
            if frame_content_size(payload) != size:
                raise CorruptionError("chunk's frame states another size", where=where)
            content = _contexts.decompress(payload, allow_extra_data=False)
        except (ZstdError, MemoryError) as error:
            raise CorruptionError(f"chunk does not decompress: {error}", where=where) from error
    else:
        raise CorruptionError(f"chunk codec {codec} is unknown", where=where)
    if len(content) != size:
        raise CorruptionError("chunk has another size than stated", where=where)
    return content


def _checksum(key: bytes, prefix: bytes, content: bytes) -> bytes:
    digest = xxh3_64(key + prefix)
    digest.update(content)
    return digest.digest()
