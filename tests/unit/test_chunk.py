"""Chunks: round trip, damage, codecs by content, and pages without waste."""

from __future__ import annotations

import random
import resource
import sys
from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest
from zstandard import ZstdCompressor

from eventlog import chunk
from eventlog.chunk import (
    PREFIX,
    PREFIX_BYTES,
    RAW,
    ZSTD,
    compress_chunk,
    content_bytes,
    decode_chunk,
    seal_chunk,
)
from eventlog.errors import CorruptionError
from eventlog.keys import PAIR
from eventlog.limits import CHUNK_BYTES_MAX

KEY = PAIR.pack(7, 3)
NOISE = random.Random(1).randbytes(CHUNK_BYTES_MAX)
TEXT = b"".join([b"%d bottles of beer on the wall, " % number for number in range(40_000)])
TEXT = TEXT[:CHUNK_BYTES_MAX]


def sealed(content: bytes) -> bytes:
    return seal_chunk(KEY, *compress_chunk(content), content)


@given(st.binary(min_size=1, max_size=3_000), st.integers(1, 60))
def test_what_goes_in_comes_out(piece: bytes, times: int) -> None:
    content = piece * times
    value = sealed(content)
    assert decode_chunk(KEY, value, "here") == content
    assert content_bytes(value) == len(content)


@pytest.mark.parametrize(
    ("content", "codec"),
    [
        pytest.param(TEXT, ZSTD, id="text"),
        pytest.param(NOISE, RAW, id="noise"),
        pytest.param(NOISE[:100], RAW, id="short noise"),
        pytest.param(b"x", RAW, id="one byte"),
        pytest.param(NOISE[: 300 * 1024] + TEXT[: 600 * 1024], ZSTD, id="noise in front"),
        pytest.param(NOISE[:100_000] + bytes(4_000), RAW, id="gains less than a twentieth"),
        pytest.param(NOISE[:100_000] + bytes(7_000), ZSTD, id="gains more than a twentieth"),
    ],
)
def test_the_codec_goes_by_what_it_gains(content: bytes, codec: int) -> None:
    found, payload = compress_chunk(content)
    assert found == codec
    if codec == RAW:
        assert payload is content
    else:
        assert len(payload) <= len(content) * 0.95


def test_noise_is_not_compressed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few samples tell, so that media costs next to nothing."""
    tried: list[int] = []

    def compress(content: bytes) -> bytes:
        tried.append(len(content))
        return ZstdCompressor().compress(content)

    monkeypatch.setattr(chunk._contexts, "compress", compress)
    compress_chunk(NOISE)
    assert tried == [3 * chunk.SAMPLE_BYTES]


def test_a_full_chunk_fills_its_pages(tmp_path: Path) -> None:
    """LMDB keeps a large value on whole pages, with 16 bytes in front; not one page is added."""
    assert len(sealed(NOISE)) + 16 == 256 * 4_096
    with lmdb.open(str(tmp_path), map_size=1 << 26) as environment:
        with environment.begin(write=True) as transaction:
            transaction.put(KEY, sealed(NOISE))
        assert environment.stat()["overflow_pages"] == 256
        with environment.begin(write=True) as transaction:
            transaction.put(KEY, sealed(NOISE) + b"x")
        assert environment.stat()["overflow_pages"] == 257


@pytest.mark.parametrize("content", [TEXT[:5_000], NOISE[:5_000]], ids=["text", "noise"])
def test_every_flipped_bit_is_seen_or_means_nothing(content: bytes) -> None:
    value = sealed(content)
    for place in range(0, len(value), 1 if len(value) < 1_000 else 37):
        damaged = bytearray(value)
        damaged[place] ^= 1 << place % 8
        try:
            assert decode_chunk(KEY, bytes(damaged), "here") == content
            assert place >= PREFIX_BYTES  # a bit inside the frame that changes nothing
        except CorruptionError as error:
            assert error.where == "here"


def test_a_chunk_under_another_key_is_damage() -> None:
    with pytest.raises(CorruptionError, match="checksum"):
        decode_chunk(PAIR.pack(7, 4), sealed(TEXT), "here")


def forged(codec: int, size: int, payload: bytes, content: bytes = b"") -> bytes:
    prefix = PREFIX.pack(codec, 0, 0, size)
    return xxh3_64_digest(KEY + prefix + content) + prefix + payload


BOMB = ZstdCompressor(level=19).compress(bytes(64 * 1024 * 1024))
UNSTATED = ZstdCompressor(write_content_size=False).compress(bytes(1_000))
FRAME = ZstdCompressor().compress(bytes(1_000))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(b"", "too short", id="nothing"),
        pytest.param(forged(ZSTD, 64 * 1024 * 1024, BOMB), "cannot be", id="bomb, stated"),
        pytest.param(forged(ZSTD, 1_000, BOMB), "another size", id="bomb, stated as small"),
        pytest.param(forged(ZSTD, 1_000, UNSTATED), "another size", id="size not stated"),
        pytest.param(forged(ZSTD, 1_000, FRAME + b"x"), "decompress", id="something after it"),
        pytest.param(forged(ZSTD, 1_000, FRAME[:-3]), "decompress", id="cut off"),
        pytest.param(forged(RAW, 0, b""), "cannot be", id="empty"),
        pytest.param(forged(RAW, 3, b"xxxx"), "another size", id="longer than stated"),
        pytest.param(forged(2, 3, b"xxx"), "codec 2", id="unknown codec"),
        pytest.param(forged(RAW, CHUNK_BYTES_MAX + 1, b"x"), "cannot be", id="over the bound"),
        pytest.param(
            b"x" * 8 + b"\0\1\0\0" + (1).to_bytes(4, "little") + b"x", "cannot be", id="reserved"
        ),
    ],
)
def test_what_cannot_be_is_refused_before_room_is_made(value: bytes, reason: str) -> None:
    with pytest.raises(CorruptionError, match=reason):
        decode_chunk(KEY, value, "here")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_window_of_a_gigabyte_takes_no_memory() -> None:
    """A frame may state a window far above its content; it is decoded into its content alone."""
    frame = bytes([0x28, 0xB5, 0x2F, 0xFD, 0x40, 0xA0]) + (1_000 - 256).to_bytes(2, "little")
    frame += (1_000 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    value = forged(ZSTD, 1_000, frame, bytes(1_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 256 * 1024 * 1024, hard))
    try:
        assert decode_chunk(KEY, value, "here") == bytes(1_000)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
