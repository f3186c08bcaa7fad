"""Order blocks: both writings come back, damage and bombs are refused; chain links."""

from __future__ import annotations

import tracemalloc
from hashlib import blake2b

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from eventlog.errors import CorruptionError
from eventlog.keys import U64, U64_MAX
from eventlog.limits import BLOCK_POSITIONS
from eventlog.order import (
    CHECKSUM_BYTES,
    COLUMNS_BYTES,
    PREFIX_BYTES,
    block_first,
    block_of,
    decode_block,
    encode_block,
    next_link,
)
from tests.format.independent import decode_columns, inflate

MIB = 1 << 20
LINK = bytes(range(16))
SESSIONS = [1 + place % 5 for place in range(BLOCK_POSITIONS)]
SEQUENCES = [place // 5 for place in range(BLOCK_POSITIONS)]
LINK_ROW = encode_block(3, LINK)
CUT_ROW = encode_block(3, LINK, SESSIONS, SEQUENCES)
blocks = st.integers(0, U64_MAX)
links = st.binary(min_size=16, max_size=16)


@given(blocks, links)
def test_a_block_that_is_not_cut_comes_back(block: int, link: bytes) -> None:
    key, value = encode_block(block, link)
    found = decode_block(key, value)
    assert (found.block, found.link, found.voids, found.is_cut) == (block, link, 0, False)
    assert len(value) == PREFIX_BYTES == 32


@settings(max_examples=25)
@given(blocks, links, st.integers(0, 2**32 - 1), st.sampled_from([1, 2**8, 2**40, 2**64 - 1]))
def test_a_cut_block_comes_back(block: int, link: bytes, seed: int, most: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, most, (2, BLOCK_POSITIONS), np.uint64, True)
    sessions, sequences = numbers.tolist()
    found = decode_block(*encode_block(block, link, sessions, sequences))
    assert found.is_cut
    assert (found.block, found.link) == (block, link)
    assert (found.sessions, found.sequences) == (sessions, sequences)


def test_a_cut_block_is_read_as_the_format_says() -> None:
    _, value = CUT_ROW
    rows = decode_columns(inflate(value[PREFIX_BYTES:], COLUMNS_BYTES), BLOCK_POSITIONS, 2)
    assert rows == [list(row) for row in zip(SESSIONS, SEQUENCES, strict=True)]


def test_cutting_changes_neither_key_nor_link() -> None:
    assert LINK_ROW[0] == CUT_ROW[0] == U64.pack(3)
    assert decode_block(*LINK_ROW).link == decode_block(*CUT_ROW).link


@pytest.mark.parametrize("row", [LINK_ROW, CUT_ROW], ids=["link", "cut"])
def test_every_flipped_bit_is_seen(row: tuple[bytes, bytes]) -> None:
    """It raises; or zstd still finds the same content, which the checksum covers."""
    key, value = row
    for place in range(len(value)):
        for bit in range(8):
            flipped = bytearray(value)
            flipped[place] ^= 1 << bit
            try:
                found = decode_block(key, bytes(flipped))
            except CorruptionError as error:
                assert error.where == "order block 3"
                continue
            assert place >= PREFIX_BYTES, (place, bit)
            assert (found.sessions, found.sequences) == (SESSIONS, SEQUENCES)


@pytest.mark.parametrize("row", [LINK_ROW, CUT_ROW], ids=["link", "cut"])
def test_every_flipped_bit_of_the_key_is_seen(row: tuple[bytes, bytes]) -> None:
    key, value = row
    for place in range(8):
        for bit in range(8):
            flipped = bytearray(key)
            flipped[place] ^= 1 << bit
            with pytest.raises(CorruptionError):
                decode_block(bytes(flipped), value)


@pytest.mark.parametrize("row", [LINK_ROW, CUT_ROW], ids=["link", "cut"])
def test_every_cut_and_every_addition_is_seen(row: tuple[bytes, bytes]) -> None:
    key, value = row
    for size in range(len(value)):
        with pytest.raises(CorruptionError):
            decode_block(key, value[:size])
    for more in (b"\0", value[PREFIX_BYTES:] or b"\0", zstandard.ZstdCompressor().compress(b"")):
        with pytest.raises(CorruptionError):
            decode_block(key, value + more)


def forged(prefix: bytes, payload: bytes, content: bytes) -> bytes:
    key = U64.pack(3)
    return xxh3_64_digest(key + prefix + content) + prefix + payload


@pytest.mark.parametrize(
    ("place", "byte"),
    [pytest.param(0, 0, id="version-0"), pytest.param(0, 2, id="version-2")],
)
def test_other_versions_are_refused_whatever_their_checksum(place: int, byte: int) -> None:
    for key, value in (LINK_ROW, CUT_ROW):
        payload = value[PREFIX_BYTES:]
        content = inflate(payload, COLUMNS_BYTES) if payload else b""
        prefix = bytearray(value[CHECKSUM_BYTES:PREFIX_BYTES])
        prefix[place] = byte
        with pytest.raises(CorruptionError, match=f"version {byte} is unknown"):
            decode_block(key, forged(bytes(prefix), payload, content))


def stated(size: int) -> bytes:
    header = b"\x28\xb5\x2f\xfd" + b"\xe0" + size.to_bytes(8, "little")
    return header + (1 | 1 << 1 | 131_072 << 3).to_bytes(3, "little") + b"\0"


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(stated(2**45), id="says-2^45"),
        pytest.param(stated(2**64 - 2), id="says-2^64"),
        pytest.param(stated(COLUMNS_BYTES), id="says-less-than-it-holds"),
        pytest.param(zstandard.ZstdCompressor().compress(bytes(256 * MIB)), id="holds-256-MiB"),
        pytest.param(
            zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * MIB)),
            id="does-not-say",
        ),
        pytest.param(zstandard.ZstdCompressor().compress(bytes(COLUMNS_BYTES - 1)), id="one-less"),
        pytest.param(zstandard.ZstdCompressor().compress(bytes(COLUMNS_BYTES + 1)), id="one-more"),
        pytest.param(b"\x50\x2a\x4d\x18\x00\x40\x00\x00" + bytes(COLUMNS_BYTES), id="skippable"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_bombs_are_refused_before_there_is_room_for_them(payload: bytes) -> None:
    value = CUT_ROW[1][:PREFIX_BYTES] + payload
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            decode_block(CUT_ROW[0], value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


@given(st.integers(1, U64_MAX))
def test_every_position_lies_in_its_block(position: int) -> None:
    block = block_of(position)
    assert block_first(block) <= position < block_first(block + 1)
    assert block_of(block_first(block)) == block


# Links


@given(links, st.integers(1, U64_MAX), st.lists(st.binary(min_size=8, max_size=8), min_size=1))
def test_a_link_is_the_digest_that_the_format_names(
    link: bytes, first: int, checksums: list[bytes]
) -> None:
    joined = b"".join(checksums)
    wanted = blake2b(link + first.to_bytes(8, "big") + joined, digest_size=16).digest()
    assert next_link(link, first, joined) == wanted


def test_a_link_depends_on_everything_before_it() -> None:
    base = next_link(LINK, 5, b"a" * 8 + b"b" * 8)
    others = {
        next_link(LINK[::-1], 5, b"a" * 8 + b"b" * 8),
        next_link(LINK, 6, b"a" * 8 + b"b" * 8),
        next_link(LINK, 5, b"b" * 8 + b"a" * 8),
        next_link(LINK, 5, b"a" * 8),
        next_link(next_link(LINK, 5, b"a" * 8), 6, b"b" * 8),
    }
    assert len(others) == 5
    assert base not in others
