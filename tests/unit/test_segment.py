"""Segments: every record comes back byte for byte; damage and bombs are refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from eventlog.columns import KIND_TO_EXTENSION, TAIL_BYTES
from eventlog.decoded import Segment
from eventlog.errors import CorruptionError
from eventlog.keys import PAIR, U64_MAX
from eventlog.limits import SEGMENT_BYTES_MAX, SEGMENT_EVENTS_MAX
from eventlog.record import CONTROL, MESSAGE, Origin, Record, encode_record
from eventlog.segment import (
    PREFIX,
    PREFIX_BYTES,
    RAW,
    ZSTD,
    Run,
    SegmentPrefix,
    decode_segment,
    describe_runs,
    encode_segment,
    encode_segments,
)
from tests.format import independent

MIB = 1 << 20
event_fields = st.fixed_dictionaries(
    {
        "parent": st.integers(0, U64_MAX),
        "recorded_us": st.integers(0, U64_MAX),
        "given_us": st.integers(-(2**63), 2**63 - 1),
        "branch": st.integers(0, 2**32 - 1),
        "tokens": st.integers(0, 2**32 - 1),
        "kind": st.integers(0, 255),
        "role": st.integers(0, 255),
        "flags": st.integers(0, 2**16 - 1),
        "extension": st.one_of(st.just(b""), st.binary(max_size=20)),
        "body": st.binary(max_size=40),
    }
)


def run_of(
    fields: list[dict[str, Any]],
    *,
    session: int = 7,
    first: int = 0,
    gaps: list[int] | None = None,
    before: int = 0,
) -> Run:
    """Stored records of consecutive sequences at rising positions."""
    positions = []
    position = 0
    for place in range(len(fields)):
        position += 1 + (gaps[place % len(gaps)] if gaps else 0)
        positions.append(position)
    records = [
        encode_record(position, session=session, sequence=first + place, **each)
        for place, (position, each) in enumerate(zip(positions, fields, strict=True))
    ]
    return Run(session, first + len(fields) - 1, records, positions, before)


def stored_of(session: int, segment: Segment) -> list[bytes]:
    origin = Origin(session, "", "")
    return [segment.make(place, origin, Record).stored() for place in range(segment.prefix.count)]


@given(
    st.lists(event_fields, min_size=1, max_size=12),
    st.integers(1, U64_MAX),
    st.integers(0, 2**63),
    st.lists(st.integers(0, 2**50), min_size=1, max_size=3),
)
def test_records_come_back(
    fields: list[dict[str, Any]], session: int, first: int, gaps: list[int]
) -> None:
    run = run_of(fields, session=session, first=first, gaps=gaps)
    key, value = encode_segment(run)
    assert key == PAIR.pack(session, run.last_sequence)
    segment = decode_segment(key, value)
    assert segment.first_sequence == first
    assert stored_of(session, segment) == run.records
    origin = Origin(session, "", "")
    made = [segment.make(place, origin, Record) for place in range(len(fields))]
    assert [record.position for record in made] == run.positions
    assert [record.sequence for record in made] == list(range(first, first + len(fields)))
    assert [record.extension for record in made] == [each["extension"] for each in fields]
    assert [record.payload for record in made] == [each["body"] for each in fields]


@given(st.lists(event_fields, min_size=1, max_size=12), st.data())
def test_parts_of_a_segment_are_the_same_in_any_order(
    fields: list[dict[str, Any]], data: st.DataObject
) -> None:
    """What was worked out before, and what was not, makes no difference."""
    key, value = encode_segment(run_of(fields))
    tails = [each["extension"] + each["body"] for each in fields]
    segment = decode_segment(key, value)
    count = len(fields)
    size = segment.memory_bytes
    looks: dict[str, Callable[[], object]] = {
        "heads": lambda: len(segment.heads) == 72 * count,
        "tails": lambda: segment.tails == b"".join(tails),
        "starts": lambda: segment.starts == [0, *accumulate(map(len, tails))],
        "kinds": lambda: segment.kinds == bytes([each["kind"] for each in fields]),
        "first": lambda: segment.joined(0, 1) == tails[0],
        "last": lambda: segment.joined(count - 1, count) == tails[-1],
        "all": lambda: segment.joined(0, count) == b"".join(tails),
        "plain": lambda: (
            segment.is_plain
            is all([each["kind"] == MESSAGE and not each["extension"] for each in fields])
        ),
        "memory": lambda: segment.memory_bytes == size,
    }
    for name in data.draw(st.lists(st.sampled_from(sorted(looks)), min_size=4)):
        assert looks[name](), name


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 70_000])
def test_a_long_body_among_short_ones(size: int) -> None:
    fields: list[dict[str, Any]] = [{"body": b"ab"}, {"body": bytes(size)}, {"body": b"cde"}]
    segment = decode_segment(*encode_segment(run_of(fields)))
    assert segment.is_plain
    assert segment.has_tail(1)
    assert not segment.has_tail(2)
    assert segment.joined(2, 3) == b"cde"
    assert segment.joined(1, 3) == bytes(size) + b"cde"
    assert segment.joined(1, 2) == bytes(size)
    assert segment.starts == [0, 2, 2 + size, 5 + size]


@given(st.lists(event_fields, min_size=1, max_size=6))
def test_a_segment_is_read_as_the_format_says(fields: list[dict[str, Any]]) -> None:
    run = run_of(fields, gaps=[3, 0])
    key, value = encode_segment(run)
    assert independent.decode_segment(key, value) == list(
        zip(run.positions, run.records, strict=True)
    )


@given(st.lists(event_fields, min_size=1, max_size=12), st.integers(0, 2**40))
def test_the_prefix_describes_the_records(fields: list[dict[str, Any]], before: int) -> None:
    run = run_of(fields, before=before)
    prefix = SegmentPrefix.unpack(*encode_segment(run))
    kinds = [each["kind"] for each in fields]
    assert (prefix.count, prefix.messages_before) == (len(fields), before)
    assert prefix.messages == run.messages == kinds.count(MESSAGE)
    assert prefix.kinds == sum({1 << min(kind, 63) for kind in kinds})
    assert (prefix.first_position, prefix.last_position) == (run.positions[0], run.positions[-1])
    assert prefix.first_recorded_us == fields[0]["recorded_us"]
    assert prefix.last_recorded_us == fields[-1]["recorded_us"]
    assert (prefix.version, prefix.dictionary, prefix.reserved, prefix.voids) == (1, 0, 0, 0)
    public = [place for place, kind in enumerate(kinds) if kind < CONTROL]
    assert run.last_public == (public[-1] if public else -1)


@settings(max_examples=30)
@given(st.lists(st.lists(event_fields, min_size=1, max_size=5), min_size=1, max_size=5))
def test_sealing_together_is_sealing_one_by_one(groups: list[list[dict[str, Any]]]) -> None:
    runs = [run_of(fields, session=number + 1) for number, fields in enumerate(groups)]
    together = encode_segments(runs, describe_runs(runs))
    for run, (key, value) in zip(runs, together, strict=True):
        alone_key, alone = encode_segment(run)
        assert key == alone_key
        assert value[:PREFIX_BYTES] == alone[:PREFIX_BYTES]
        assert stored_of(run.session, decode_segment(key, value)) == run.records


PLAIN: dict[str, Any] = {"recorded_us": 1_700_000_000_000_000, "body": b"\xa1\x61a\x61b"}


@pytest.mark.parametrize("count", [1, 2, SEGMENT_EVENTS_MAX])
def test_counts_up_to_the_limit(count: int) -> None:
    run = run_of([PLAIN] * count)
    key, value = encode_segment(run)
    assert stored_of(7, decode_segment(key, value)) == run.records


@pytest.mark.parametrize("count", [0, SEGMENT_EVENTS_MAX + 1])
def test_other_counts_are_refused_by_the_reader(count: int) -> None:
    key, value = encode_segment(run_of([PLAIN]))
    with pytest.raises(CorruptionError, match="impossible sizes"):
        decode_segment(key, forged(key, value, count=count))


def test_what_does_not_shrink_is_stored_as_it_is() -> None:
    noise = b"".join([xxh3_64_digest(number.to_bytes(4, "big")) for number in range(500)])
    key, value = encode_segment(run_of([{**PLAIN, "body": noise}]))
    assert SegmentPrefix.unpack(key, value).codec == RAW
    assert noise in value
    assert stored_of(7, decode_segment(key, value)) == run_of([{**PLAIN, "body": noise}]).records
    key, value = encode_segment(run_of([PLAIN] * 25))
    assert SegmentPrefix.unpack(key, value).codec == ZSTD
    assert len(value) < 300


# Damage


def forged(key: bytes, value: bytes, payload: bytes | None = None, **changes: int) -> bytes:
    """A value with another payload or prefix, and the checksum that fits its content."""
    prefix = SegmentPrefix.unpack(key, value)
    for name, number in changes.items():
        setattr(prefix, name, number)
    packed = PREFIX.pack(*[getattr(prefix, name) for name in SegmentPrefix.__dataclass_fields__])
    payload = value[PREFIX_BYTES:] if payload is None else payload
    content = payload
    if prefix.codec == ZSTD:
        try:
            content = zstandard.ZstdDecompressor().decompress(payload, max_output_size=MIB)
        except zstandard.ZstdError:
            content = b""
    return xxh3_64_digest(key + packed + content) + packed + payload


def content_of(key: bytes, value: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(value[PREFIX_BYTES:])


KEY, VALUE = encode_segment(run_of([PLAIN, {**PLAIN, "kind": 64}, PLAIN, PLAIN], first=3, gaps=[2]))
RAW_VALUE = forged(KEY, VALUE, content_of(KEY, VALUE), codec=RAW)
RECORDS = stored_of(7, decode_segment(KEY, VALUE))


def test_both_codecs_hold_the_same() -> None:
    assert stored_of(7, decode_segment(KEY, RAW_VALUE)) == RECORDS


@pytest.mark.parametrize("value", [VALUE, RAW_VALUE], ids=["zstd", "raw"])
def test_every_flipped_bit_is_seen(value: bytes) -> None:
    """It raises; or zstd still finds the same content, which the checksum covers."""
    for place in range(len(value)):
        for bit in range(8):
            flipped = bytearray(value)
            flipped[place] ^= 1 << bit
            try:
                segment = decode_segment(KEY, bytes(flipped))
            except CorruptionError as error:
                assert error.where == "segment 7/6"
                continue
            assert value is VALUE
            assert place >= PREFIX_BYTES, (place, bit)
            assert stored_of(7, segment) == RECORDS


def test_every_flipped_bit_of_the_key_is_seen() -> None:
    for place in range(16):
        for bit in range(8):
            flipped = bytearray(KEY)
            flipped[place] ^= 1 << bit
            with pytest.raises(CorruptionError):
                decode_segment(bytes(flipped), VALUE)


@pytest.mark.parametrize("value", [VALUE, RAW_VALUE], ids=["zstd", "raw"])
def test_every_cut_and_every_addition_is_seen(value: bytes) -> None:
    for size in range(len(value)):
        with pytest.raises(CorruptionError):
            decode_segment(KEY, value[:size])
    for more in (b"\0", value[PREFIX_BYTES:], zstandard.ZstdCompressor().compress(b"")):
        with pytest.raises(CorruptionError):
            decode_segment(KEY, value + more)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"version": 0}, "version 0", id="version-0"),
        pytest.param({"version": 2}, "version 2", id="version-2"),
        pytest.param({"codec": 2}, "codec", id="codec"),
        pytest.param({"dictionary": 1}, "dictionary 1: is missing", id="dictionary"),
        pytest.param({"count": 3}, "do not add up", id="fewer"),
        pytest.param({"count": 5}, "impossible", id="more"),
        pytest.param({"count": 2**32 - 1}, "impossible", id="many"),
        pytest.param({"content_bytes": 1}, "impossible", id="less-than-its-columns"),
        pytest.param({"content_bytes": SEGMENT_BYTES_MAX}, "another size", id="most"),
        pytest.param({"content_bytes": SEGMENT_BYTES_MAX + 1}, "impossible", id="one-more"),
        pytest.param({"content_bytes": 2**63}, "impossible", id="huge"),
    ],
)
def test_a_prefix_that_lies_is_refused_whatever_its_checksum(
    changes: dict[str, int], reason: str
) -> None:
    with pytest.raises(CorruptionError, match=reason):
        decode_segment(KEY, forged(KEY, VALUE, None, **changes))


def frame_stating(size: int) -> bytes:
    """The start of a frame that says it holds so many bytes: one block of zeros follows."""
    header = b"\x28\xb5\x2f\xfd" + b"\xe0" + size.to_bytes(8, "little")
    block = (1 | 1 << 1 | 131_072 << 3).to_bytes(3, "little") + b"\0"  # last, run-length
    return header + block


@pytest.mark.parametrize(
    ("payload", "content_bytes"),
    [
        pytest.param(frame_stating(2**45), 2**45, id="both-say-2^45"),
        pytest.param(frame_stating(2**45), len(content_of(KEY, VALUE)), id="frame-says-2^45"),
        pytest.param(frame_stating(2**64 - 2), 4_096, id="frame-says-2^64"),
        pytest.param(
            zstandard.ZstdCompressor().compress(bytes(256 * MIB)), 256 * MIB, id="both-say-256-MiB"
        ),
        pytest.param(
            zstandard.ZstdCompressor().compress(bytes(256 * MIB)), 4_096, id="frame-holds-256-MiB"
        ),
        pytest.param(
            zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * MIB)),
            4_096,
            id="frame-does-not-say",
        ),
        pytest.param(zstandard.ZstdCompressor().compress(bytes(4_095)), 4_096, id="one-byte-less"),
        pytest.param(zstandard.ZstdCompressor().compress(bytes(4_097)), 4_096, id="one-byte-more"),
        pytest.param(
            zstandard.ZstdCompressor().compress(bytes(4_096))
            + zstandard.ZstdCompressor().compress(bytes(64 * MIB)),
            4_096,
            id="a-second-frame",
        ),
        pytest.param(b"\x50\x2a\x4d\x18\x00\x10\x00\x00" + bytes(4_096), 4_096, id="skippable"),
        pytest.param(b"", 4_096, id="nothing"),
        pytest.param(b"\x28\xb5\x2f\xfd", 4_096, id="magic-alone"),
    ],
)
def test_bombs_are_refused_before_there_is_room_for_them(
    payload: bytes, content_bytes: int
) -> None:
    prefix = PREFIX.pack(1, ZSTD, 0, 0, 4, content_bytes, 1, 9, 0, 0, 0, 4, 0, 2)
    value = bytes(8) + prefix + payload
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            decode_segment(KEY, value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


def test_a_frame_that_states_more_than_it_holds_is_refused() -> None:
    """The size that it states, and is compared, is all the room that it gets."""
    size = 4 * 72 + 4_096
    prefix = PREFIX.pack(1, ZSTD, 0, 0, 4, size, 1, 9, 0, 0, 0, 4, 0, 2)
    with pytest.raises(CorruptionError):
        decode_segment(KEY, bytes(8) + prefix + frame_stating(size))


def test_a_key_of_another_size_is_named() -> None:
    with pytest.raises(CorruptionError, match="segment 0102"):
        decode_segment(b"\x01\x02", VALUE)


def test_lengths_that_do_not_add_up_are_refused() -> None:
    content = bytearray(content_of(KEY, VALUE))
    content[8 * 4] ^= 1  # the length in the first row
    payload = zstandard.ZstdCompressor().compress(bytes(content))
    with pytest.raises(CorruptionError, match="do not add up"):
        decode_segment(KEY, forged(KEY, VALUE, payload))


def test_lengths_that_come_round_to_the_right_sum_are_refused() -> None:
    """They were added modulo 2**64, so that two wrong ones looked right."""
    records = [encode_record(at + 1, session=7, sequence=at, body=b"abc") for at in range(2)]
    run = Run(7, 1, records, [1, 2])
    words = describe_runs([run])
    words[0, TAIL_BYTES] += np.uint64(2**63)
    words[1, TAIL_BYTES] += np.uint64(2**63)
    with pytest.raises(CorruptionError, match="add up"):
        decode_segment(*encode_segments([run], words)[0])


def test_an_extension_longer_than_its_record_is_refused() -> None:
    records = [encode_record(at + 1, session=7, sequence=at, body=b"abc") for at in range(2)]
    run = Run(7, 1, records, [1, 2])
    words = describe_runs([run])
    words[0, KIND_TO_EXTENSION] |= np.uint64(4 << 32)
    segment = decode_segment(*encode_segments([run], words)[0])
    with pytest.raises(CorruptionError, match="session 7/0: extension"):
        segment.make(0, Origin(7, "", "s"), Record)


def test_a_segment_before_the_first_sequence_is_refused() -> None:
    records = [encode_record(at + 1, session=7, sequence=at) for at in range(2)]
    with pytest.raises(CorruptionError, match="before sequence 0"):
        decode_segment(*encode_segment(Run(7, 0, records, [1, 2])))
