"""Header columns: the fixed words of many records as one byte-shuffled block, pure.

A run of n records becomes an n × 9 matrix of 64-bit words; words that grow along a session are
kept as differences to the record before, then all bytes are transposed, so that equal bytes of
neighbouring records lie together and zstd sees long runs (the shuffle filter of HDF5 and Blosc).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from eventlog.record import CHECKSUM_BYTES, HEADER, HEADER_BYTES

WORDS: Final = HEADER.size // 8
Words = NDArray[np.uint64]

# Word 0 of a header is the session number and word 1 the sequence; a segment's key tells both,
# so their places hold the position and the length of extension plus body.
POSITION: Final = 0
TAIL_BYTES: Final = 1
PARENT: Final = 2
RECORDED: Final = 3  # followed by the given time and a track's owner and offset
BRANCH_TOKENS: Final = 7
KIND_TO_EXTENSION: Final = 8
DELTA_FIRST: Final = PARENT
DELTA_STOP: Final = BRANCH_TOKENS


def header_words(records: Sequence[bytes], positions: Sequence[int]) -> Words:
    """The words of stored records: shape (n, 9), the first two replaced as said above."""
    joined = b"".join([record[CHECKSUM_BYTES:HEADER_BYTES] for record in records])
    words = np.frombuffer(joined, "<u8").reshape(len(records), WORDS).copy()
    words[:, POSITION] = positions
    words[:, TAIL_BYTES] = [len(record) - HEADER_BYTES for record in records]
    return words


def differences(words: Words, starts: Sequence[int]) -> Words:
    """Words with each moving one as the difference to the row before, within groups of rows.

    Args:
        words: Shape (n, 9); left as it was.
        starts: First row of each group; those rows stay whole.
    """
    changed = words.copy()
    changed[1:, POSITION] -= words[:-1, POSITION]
    changed[1:, DELTA_FIRST:DELTA_STOP] -= words[:-1, DELTA_FIRST:DELTA_STOP]
    changed[starts] = words[starts]
    return changed


def decode_words(data: bytes | memoryview, count: int) -> Words:
    """The inverse of ``differences`` and ``shuffle`` for one group of ``count`` × 72 bytes."""
    words = unshuffle(data, count, WORDS)
    np.add.accumulate(words[:, POSITION], out=words[:, POSITION])
    moving = words[:, DELTA_FIRST:DELTA_STOP]
    np.add.accumulate(moving, axis=0, out=moving)
    return words


def tail_lengths(content: bytes, count: int) -> Words:
    """Lengths of extension plus body, from columns of ``count`` records, as they were shuffled."""
    start = 8 * TAIL_BYTES * count
    return unshuffle(memoryview(content)[start : start + 8 * count], count, 1)[:, 0]


def tail_bytes(content: bytes, count: int, start: int) -> int:
    """The sum of those lengths from an index on.

    Added up in Python, where no sum can come round to the right one. Lengths are short as a rule:
    most of their bytes are 0, and are only compared.
    """
    total = 0
    first = 8 * TAIL_BYTES * count
    for place in range(8):
        total += sum(content[first + start : first + count]) << 8 * place
        first += count
        if place == 1 and content.startswith(bytes(6 * count), first):
            break
    return total


def shuffle(words: NDArray[Any]) -> bytes:
    """Transpose the bytes of a C-contiguous (n, w) array of 64-bit words."""
    return words.view(np.uint8).reshape(len(words), -1).T.tobytes()


def unshuffle(data: bytes | memoryview, count: int, width: int) -> Words:
    """The inverse of ``shuffle``: a fresh, writable (count, width) array."""
    rows = np.frombuffer(data, np.uint8).reshape(width * 8, count).T
    return np.array(rows, order="C").view("<u8").reshape(count, width)
