"""Order blocks: which session and sequence each sealed position holds; pure.

Block n covers the positions ``n × 1,024 + 1 … (n + 1) × 1,024``. Its row is written twice: when
the last of them is committed, with the chain link only, and again when the block is cut from the
hot log, with its columns (FORMAT.md, "Order block").

Invariants:
    1. The checksum covers key, prefix and uncompressed columns.
    2. A cut block has exactly 1,024 entries.
    3. ``link`` is the chain link at the block's last position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final

import numpy as np
from xxhash import xxh3_64_digest
from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError, get_frame_parameters

from eventlog.columns import Words, shuffle, unshuffle
from eventlog.errors import CorruptionError
from eventlog.keys import U64
from eventlog.limits import BLOCK_POSITIONS
from eventlog.rows import LINK_BYTES

_PREFIX: Final = Struct("<BBHI16s")
CHECKSUM_BYTES: Final = 8
PREFIX_BYTES: Final = CHECKSUM_BYTES + _PREFIX.size
VERSION: Final = 1
COLUMNS_BYTES: Final = BLOCK_POSITIONS * 16
LEVEL: Final = 3


def block_of(position: int) -> int:
    """The number of the block that covers a position."""
    return (position - 1) // BLOCK_POSITIONS


def block_first(block: int) -> int:
    """The first position of a block."""
    return block * BLOCK_POSITIONS + 1


@dataclass(slots=True)
class OrderBlock:
    """A decoded block; ``sessions`` and ``sequences`` are empty before it is cut."""

    block: int
    link: bytes
    voids: int
    columns: Words

    @property
    def is_cut(self) -> bool:
        """True once the hot log no longer holds the block."""
        return len(self.columns) > 0

    @property
    def sessions(self) -> list[int]:
        """Session numbers in position order."""
        numbers: list[int] = self.columns[:, 0].tolist()
        return numbers

    @property
    def sequences(self) -> list[int]:
        """Sequences in position order."""
        numbers: list[int] = self.columns[:, 1].tolist()
        return numbers


def encode_block(
    block: int, link: bytes, sessions: Sequence[int] = (), sequences: Sequence[int] = ()
) -> tuple[bytes, bytes]:
    """Key and value of a block; without columns it is not cut yet."""
    assert len(link) == LINK_BYTES
    assert len(sessions) == len(sequences)
    assert len(sessions) in (0, BLOCK_POSITIONS)
    key = U64.pack(block)
    content = b""
    payload = b""
    if sessions:
        words = np.empty((BLOCK_POSITIONS, 2), np.uint64)
        words[:, 0] = sessions
        words[:, 1] = sequences
        content = shuffle(words)
        payload = ZstdCompressor(level=LEVEL).compress(content)
    prefix = _PREFIX.pack(VERSION, 1 if sessions else 0, 0, 0, link)
    return key, xxh3_64_digest(key + prefix + content) + prefix + payload


def decode_block(key: bytes, value: bytes) -> OrderBlock:
    """Check and decode a block.

    Raises:
        CorruptionError: The bytes are not what was written under this key.
    """
    where = f"order block {int.from_bytes(key, 'big')}"
    if len(key) != U64.size:
        raise CorruptionError("key has another size", where=where)
    number = U64.unpack(key)[0]
    if len(value) < PREFIX_BYTES:
        raise CorruptionError("is shorter than its prefix", where=where)
    version, cut, _, voids, link = _PREFIX.unpack_from(value, CHECKSUM_BYTES)
    content = b""
    if cut == 1:
        payload = value[PREFIX_BYTES:]
        try:
            if get_frame_parameters(payload).content_size != COLUMNS_BYTES:
                raise CorruptionError("states an impossible size", where=where)
            content = ZstdDecompressor().decompress(payload, allow_extra_data=False)
        except (ZstdError, MemoryError) as error:
            raise CorruptionError(f"does not decompress: {error}", where=where) from error
    elif cut:
        raise CorruptionError("is neither cut nor whole", where=where)
    elif len(value) != PREFIX_BYTES:
        raise CorruptionError("has bytes after its prefix", where=where)
    prefix = value[CHECKSUM_BYTES:PREFIX_BYTES]
    if xxh3_64_digest(key + prefix + content) != value[:CHECKSUM_BYTES]:
        raise CorruptionError("checksum does not match", where=where)
    if version != VERSION:
        raise CorruptionError(f"version {version} is unknown", where=where)
    words = unshuffle(content, BLOCK_POSITIONS, 2) if content else np.empty((0, 2), np.uint64)
    return OrderBlock(number, link, voids, words)


def next_link(link: bytes, first_position: int, checksums: bytes) -> bytes:
    """The chain link after a run (BLAKE2b-128 over link, first position, checksums).

    Args:
        link: The link before the run.
        first_position: Position of the run's first record.
        checksums: The 8-byte record checksums of the run, joined in order.
    """
    return blake2b(link + U64.pack(first_position) + checksums, digest_size=LINK_BYTES).digest()
