"""Hot records: layout, round trip, and no changed bit goes unseen."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from eventlog.body import encode_plain
from eventlog.errors import CorruptionError
from eventlog.keys import U64, U64_MAX
from eventlog.record import (
    ANNOTATION,
    CHECKSUM_BYTES,
    CONTROL,
    FLAGS_BYTE,
    HEADER,
    HEADER_BYTES,
    KIND_BYTE,
    LARGE_BYTES,
    METRIC,
    NO_PARENT,
    NO_TIME,
    RECORDED_BYTE,
    TAIL,
    TAIL_BYTES,
    TAIL_KIND_BYTE,
    Extension,
    Flag,
    Origin,
    Record,
    can_be_redacted,
    change_tail,
    decode_extension,
    decode_record,
    encode_record,
    encode_tail,
    is_redacted,
    recorded_of,
    redacted_record,
    seal_record,
    verify_record,
)

u64 = st.one_of(st.integers(0, U64_MAX), st.sampled_from([0, 1, 2**63, U64_MAX]))
u32 = st.integers(0, 2**32 - 1)
times = st.integers(-(2**63), 2**63 - 1)
fields = st.fixed_dictionaries(
    {
        "session": u64,
        "sequence": u64,
        "parent": u64,
        "recorded_us": u64,
        "given_us": times,
        "branch": u32,
        "tokens": u32,
        "kind": st.integers(0, 255),
        "role": st.integers(0, 255),
        "flags": st.integers(0, 2**16 - 1),
        "extension": st.binary(max_size=40),
        "body": st.binary(max_size=80),
    }
)


def decoded(position: int, value: bytes) -> Record:
    verify_record(U64.pack(position), value)
    number = int.from_bytes(value[8:16], "little")
    return decode_record(Origin(number, "t", "s"), position, value, Record)


@given(u64, fields)
def test_a_record_comes_back(position: int, given_fields: dict[str, object]) -> None:
    value = encode_record(position, **given_fields)  # type: ignore[arg-type]
    record = decoded(position, value)
    assert {
        "session": record.origin.number,
        "sequence": record.sequence,
        "parent": record.parent_word,
        "recorded_us": record.recorded_us,
        "given_us": record.given_us,
        "branch": record.branch,
        "tokens": record.tokens,
        "kind": record.kind_code,
        "role": record.role_code,
        "flags": record.flags,
        "extension": record.extension,
        "body": record.payload,
    } == given_fields
    assert record.position == position
    assert record.stored() == value


@given(u64, fields)
def test_the_layout_is_that_of_the_format(position: int, given_fields: dict[str, object]) -> None:
    value = encode_record(position, **given_fields)  # type: ignore[arg-type]
    found = struct.unpack_from("<8sQQQQqQQIIBBHI", value)
    extension = given_fields["extension"]
    assert isinstance(extension, bytes)
    names = ["session", "sequence", "parent", "recorded_us", "given_us"]
    assert list(found[1:6]) == [given_fields[name] for name in names]
    assert found[6:8] == (0, 0)
    names = ["branch", "tokens", "kind", "role", "flags"]
    assert list(found[8:13]) == [given_fields[name] for name in names]
    assert found[13] == len(extension)
    assert found[0] == xxh3_64_digest(position.to_bytes(8, "big") + value[8:])


@given(fields)
def test_offsets_point_at_what_they_name(given_fields: dict[str, object]) -> None:
    value = encode_record(1, **given_fields)  # type: ignore[arg-type]
    assert value[KIND_BYTE] == given_fields["kind"]
    assert int.from_bytes(value[FLAGS_BYTE : FLAGS_BYTE + 2], "little") == given_fields["flags"]
    assert recorded_of(value) == given_fields["recorded_us"]
    assert value[RECORDED_BYTE:40] == struct.pack("<Q", given_fields["recorded_us"])


@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 0x7FFF), times, u32, u32)
def test_a_tail_is_the_end_of_the_header(
    kind: int, role: int, flags: int, given_us: int, tokens: int, length: int
) -> None:
    tail = encode_tail(kind, role, flags, given_us, tokens, length)
    assert len(tail) == TAIL_BYTES == 40
    assert tail[TAIL_KIND_BYTE] == kind
    changed = change_tail(tail, 0x8000, 7)
    assert TAIL.unpack(changed) == (*TAIL.unpack(tail)[:7], flags | 0x8000, 7)
    extension = b"e" * min(length, 5)
    tail = encode_tail(kind, role, flags, given_us, tokens, len(extension))
    whole = seal_record(U64.pack(9), struct.pack("<QQQQ", 1, 2, 3, 4) + tail + extension + b"body")
    assert whole == encode_record(
        9,
        session=1,
        sequence=2,
        parent=3,
        recorded_us=4,
        given_us=given_us,
        tokens=tokens,
        kind=kind,
        role=role,
        flags=flags,
        extension=extension,
        body=b"body",
    )


SMALL = encode_record(
    2**33 + 1,
    session=3,
    sequence=2**40,
    parent=NO_PARENT,
    recorded_us=1_700_000_000_000_000,
    given_us=NO_TIME,
    flags=Flag.NAMED,
    extension=b"\xa1\x01\x61\x61",
    body=b"\xa1\x61\x61\x61\x62",
)
SMALL_KEY = U64.pack(2**33 + 1)


def test_every_flipped_bit_is_seen() -> None:
    verify_record(SMALL_KEY, SMALL)
    for place in range(len(SMALL)):
        for bit in range(8):
            flipped = bytearray(SMALL)
            flipped[place] ^= 1 << bit
            with pytest.raises(CorruptionError, match="log 8589934593"):
                verify_record(SMALL_KEY, bytes(flipped))


def test_every_flipped_bit_of_the_position_is_seen() -> None:
    for place in range(8):
        for bit in range(8):
            flipped = bytearray(SMALL_KEY)
            flipped[place] ^= 1 << bit
            with pytest.raises(CorruptionError):
                verify_record(bytes(flipped), SMALL)


def test_every_cut_is_seen() -> None:
    for size in range(len(SMALL)):
        with pytest.raises(CorruptionError, match="shorter" if size < HEADER_BYTES else "checksum"):
            verify_record(SMALL_KEY, SMALL[:size])
    with pytest.raises(CorruptionError):
        verify_record(SMALL_KEY, SMALL + b"\0")


@pytest.mark.parametrize("size", [LARGE_BYTES - 73, LARGE_BYTES - 72, LARGE_BYTES, 3 * LARGE_BYTES])
def test_large_records_have_the_same_checksum(size: int) -> None:
    """From ``LARGE_BYTES`` on the checksum is taken in parts."""
    value = encode_record(5, session=1, sequence=0, body=b"x" * size)
    assert value[:8] == xxh3_64_digest(U64.pack(5) + value[8:])
    verify_record(U64.pack(5), value)
    for place in (0, 8, 79, 80, len(value) - 1):
        flipped = bytearray(value)
        flipped[place] ^= 1
        with pytest.raises(CorruptionError):
            verify_record(U64.pack(5), bytes(flipped))


def test_an_extension_past_the_end_is_seen() -> None:
    rest = HEADER.pack(1, 0, NO_PARENT, 0, NO_TIME, 0, 0, 0, 0, 1, 0, 0, 3)
    value = seal_record(U64.pack(1), rest + b"ab")
    verify_record(U64.pack(1), value)
    with pytest.raises(CorruptionError, match="shorter than its extension"):
        decode_record(Origin(1, "", ""), 1, value, Record)


def test_a_key_of_another_size_is_named() -> None:
    with pytest.raises(CorruptionError, match="log 0102"):
        verify_record(b"\x01\x02", SMALL)


def test_constants_agree() -> None:
    assert HEADER_BYTES == CHECKSUM_BYTES + HEADER.size == 80
    assert len(set(Flag)) == 10
    assert all(flag.value.bit_count() == 1 and flag < 2**16 for flag in Flag)
    assert sorted(Extension) == list(range(1, 19))


def marks(**changes: object) -> dict[int, object]:
    whole = {"1": "id", "2": bytes(16), "3": bytes(16), "4": 2, "5": b"\xa0", "10": [b"", None]}
    found = {**whole, **{name.removeprefix("_"): value for name, value in changes.items()}}
    return {int(name): value for name, value in found.items() if value is not None}


MARKED = int(Flag.NAMED | Flag.KEYED)


FULL = {
    **marks(),
    **{6: "run", 7: "turn", 8: "speech", 9: "request", 11: "kind", 18: 4},
    **{12: [["s", "a"]], 13: [["s", "b"]], 17: [bytes(16), bytes(16)]},
}
CONTENT = {5, 12, 13, 17}


def written(flags: int, extension: dict[int, object], kind: int = 1) -> bytes:
    """A record with all that a header may say."""
    return encode_record(
        9,
        session=3,
        sequence=7,
        parent=5,
        recorded_us=11,
        given_us=-4,
        branch=6,
        tokens=8,
        kind=kind,
        role=2,
        flags=flags,
        extension=encode_plain(extension) if extension else b"",
        body=encode_plain({"said": "a secret"}),
    )


def test_a_redacted_record_keeps_its_header_and_what_others_refer_to() -> None:
    flags = int(sum(Flag) & ~(Flag.VOID | Flag.REDACTED))
    before = written(flags, FULL)
    after = redacted_record(U64.pack(9), before)
    verify_record(U64.pack(9), after)
    assert is_redacted(after) and not is_redacted(before)
    assert b"secret" not in after
    old, new = (decode_record(Origin(3, "", ""), 9, value, Record) for value in (before, after))
    assert new.payload == b"\xf6"
    kept = {key: said for key, said in FULL.items() if key not in CONTENT}
    assert decode_extension(new.extension, new.flags, "here") == kept
    assert new.flags == (flags | Flag.REDACTED) & ~(Flag.HAS_BLOBS | Flag.INDEXABLE)
    assert new.head[16:66] == old.head[16:66]  # parent up to role
    assert (new.sequence, new.position) == (old.sequence, old.position) == (7, 9)
    assert redacted_record(U64.pack(9), after) == after


@pytest.mark.parametrize(
    "extension",
    [
        pytest.param({}, id="none"),
        pytest.param({6: "run"}, id="none-of-content"),
        pytest.param({5: b"\xa0", 13: []}, id="content-alone"),
    ],
)
def test_an_extension_is_changed_only_where_it_holds_content(
    extension: dict[int, object],
) -> None:
    after = redacted_record(U64.pack(9), written(0, extension))
    found = decode_record(Origin(3, "", ""), 9, after, Record).extension
    kept = {key: said for key, said in extension.items() if key not in CONTENT}
    assert found == (encode_plain(kept) if kept else b"")


def test_a_record_whose_extension_cannot_be_read_is_not_redacted() -> None:
    broken = written(int(Flag.NAMED), {})
    with pytest.raises(CorruptionError, match="log 9"):
        redacted_record(U64.pack(9), broken)
    rest = HEADER.pack(1, 0, NO_PARENT, 0, NO_TIME, 0, 0, 0, 0, 1, 0, 0, 30)
    with pytest.raises(CorruptionError, match="shorter than its extension"):
        redacted_record(U64.pack(9), seal_record(U64.pack(9), rest + b"ab"))


def test_public_events_and_what_stands_beside_them_can_be_redacted() -> None:
    found = {kind for kind in range(256) if can_be_redacted(kind)}
    assert found == {*range(CONTROL), METRIC, ANNOTATION}


def test_an_extension_comes_back() -> None:
    assert decode_extension(encode_plain(marks()), MARKED, "here") == marks()
    assert decode_extension(b"", 0, "here") == {}


@pytest.mark.parametrize(
    ("flags", "extension"),
    [
        pytest.param(MARKED, b"", id="nothing"),
        pytest.param(MARKED, encode_plain([1]), id="no-map"),
        pytest.param(MARKED, encode_plain({"1": 2}), id="text-keys"),
        pytest.param(0, encode_plain({1: "id"}), id="id-without-flag"),
        pytest.param(MARKED, encode_plain(marks(_1=None)), id="flag-without-id"),
        pytest.param(MARKED, encode_plain(marks(_1=7)), id="id-is-no-text"),
        pytest.param(int(Flag.NAMED), encode_plain(marks()), id="key-without-flag"),
        pytest.param(MARKED, encode_plain(marks(_2=None)), id="flag-without-key"),
        pytest.param(MARKED, encode_plain(marks(_2=b"short")), id="short-digest"),
        pytest.param(MARKED, encode_plain(marks(_3=None)), id="no-content"),
        pytest.param(MARKED, encode_plain(marks(_4=0)), id="count-of-nothing"),
        pytest.param(MARKED, encode_plain(marks(_4=2**40)), id="count-too-large"),
        pytest.param(MARKED, encode_plain(marks(_4=True)), id="count-is-a-bool"),
        pytest.param(MARKED, encode_plain(marks(_5="x")), id="metadata-is-text"),
        pytest.param(MARKED, encode_plain(marks(_10={})), id="opening-is-a-map"),
    ],
)
def test_an_extension_of_another_shape_is_refused(flags: int, extension: bytes) -> None:
    with pytest.raises(CorruptionError, match="here"):
        decode_extension(extension, flags, "here")
