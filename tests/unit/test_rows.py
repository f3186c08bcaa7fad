"""Rows that change: each comes back, and under no other key and with no other bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from eventlog.body import encode_plain
from eventlog.errors import CorruptionError
from eventlog.keys import U64, U64_MAX
from eventlog.limits import HOT_TABLE_POSITIONS, HOT_TABLES, POSITION_MAX
from eventlog.rows import (
    CHECKSUM_BYTES,
    COMMIT_KEY,
    GONE,
    LINK_BYTES,
    NO_LINK,
    NO_SEQUENCE,
    OPTIONS_KEY,
    SECRET_BYTES,
    CommitRecord,
    KeyedResult,
    SessionRow,
    TenantRow,
    decode_number,
    expose,
    peek_last_position,
    protect,
)

u64 = st.one_of(st.integers(0, U64_MAX), st.sampled_from([0, U64_MAX]))
names = st.text(st.characters(codec="utf-8"), max_size=10)
digests = st.binary(min_size=16, max_size=16)
positions = st.one_of(st.integers(0, POSITION_MAX), st.sampled_from([0, POSITION_MAX]))
HOT_MAX = HOT_TABLES * HOT_TABLE_POSITIONS


@st.composite
def commit_records_drawn(draw: st.DrawFn) -> CommitRecord:
    last = draw(positions)
    floor = last + 1 - draw(st.integers(0, min(last, HOT_MAX)))
    rest = [draw(u64) for _ in range(10)]
    ends = {"link": draw(digests), "previous": draw(st.binary(min_size=8, max_size=8))}
    if draw(st.booleans()):
        return CommitRecord(last, floor, *rest, **ends, version=1)
    return CommitRecord(last, floor, *rest, **ends, blobs_made=draw(u64), removals=draw(u64))


commit_records = commit_records_drawn()
openings = st.one_of(
    st.none(),
    st.tuples(st.binary(max_size=20), st.one_of(st.none(), st.just([["s", "title"]]))).map(list),
)


@st.composite
def session_rows_drawn(draw: st.DrawFn) -> SessionRow:
    sealed = draw(positions)
    counts = st.integers(0, sealed)
    messages = draw(counts)
    is_gone = draw(st.booleans())
    return SessionRow(
        tenant_number=draw(u64),
        created_position=draw(positions),
        created_us=draw(u64),
        sealed=sealed,
        messages=messages,
        head=draw(st.sampled_from([NO_SEQUENCE, sealed - 1])) if sealed else NO_SEQUENCE,
        last_position=draw(positions),
        last_recorded_us=draw(u64),
        keys=draw(counts),
        segments=draw(counts),
        since_roll_up=draw(st.integers(0, min(messages, 2**32 - 1))),
        flags=GONE if is_gone else 0,
        tenant="" if is_gone else draw(names),
        name="" if is_gone else draw(names.filter(bool)),
        opening=None if is_gone else draw(openings),
        first=draw(counts),
        trimmed=draw(st.integers(0, messages)),
    )


session_rows = session_rows_drawn()
tenant_rows = st.builds(TenantRow, st.binary(min_size=32, max_size=32), names)


@st.composite
def keyed_results_drawn(draw: st.DrawFn) -> KeyedResult:
    last = draw(positions)
    return KeyedResult(draw(digests), draw(st.integers(0, last)), last, draw(positions))


keyed_results = keyed_results_drawn()


@given(st.binary(max_size=30), st.binary(max_size=60))
def test_what_is_protected_is_exposed(key: bytes, rest: bytes) -> None:
    value = protect(key, rest)
    assert value == xxh3_64_digest(key + rest) + rest
    assert expose(key, value, "here") == rest


@given(st.binary(max_size=30), st.binary(max_size=60), st.binary(max_size=30))
def test_another_key_is_refused(key: bytes, rest: bytes, other: bytes) -> None:
    if key == other:
        return
    with pytest.raises(CorruptionError, match="here"):
        expose(other, protect(key, rest), "here")


@pytest.mark.parametrize("size", range(CHECKSUM_BYTES))
def test_less_than_a_checksum_is_refused(size: int) -> None:
    with pytest.raises(CorruptionError):
        expose(b"", protect(b"", b"")[:size], "here")


@given(commit_records)
def test_a_commit_record_comes_back(record: CommitRecord) -> None:
    value = record.encode()
    assert CommitRecord.decode(value) == record
    assert peek_last_position(value) == record.last_position


@given(u64, session_rows)
def test_a_session_row_comes_back(number: int, row: SessionRow) -> None:
    key = U64.pack(number)
    found = SessionRow.decode(key, row.encode(key))
    assert found == row
    assert found.encode(key) == row.encode(key)


@given(session_rows)
def test_a_copied_session_row_changes_alone(row: SessionRow) -> None:
    key = U64.pack(1)
    before = row.encode(key)
    copied = row.copy()
    assert copied == row
    copied.sealed ^= 1
    copied.messages ^= 1
    assert row.encode(key) == before != copied.encode(key)


@given(u64, tenant_rows)
def test_a_tenant_row_comes_back(number: int, row: TenantRow) -> None:
    key = U64.pack(number)
    assert TenantRow.decode(key, row.encode(key)) == row


@given(u64, digests, keyed_results)
def test_a_keyed_result_comes_back(number: int, digest: bytes, result: KeyedResult) -> None:
    key = U64.pack(number) + digest
    assert KeyedResult.decode(key, result.encode(key)) == result


KEY = U64.pack(7)
KEYED_KEY = KEY + bytes(range(16))
ROW = SessionRow(1, 2, 3, 4, 4, 3, 9, 10, 1, 1, 0, 0, "acme", "call", [b"\xa0", None])
EXAMPLES: list[Any] = [
    pytest.param(
        COMMIT_KEY,
        CommitRecord(5, 1, 4, 4096, link=bytes(range(16))).encode(),
        lambda key, value: CommitRecord.decode(value),
        id="commit-record",
    ),
    pytest.param(KEY, ROW.encode(KEY), SessionRow.decode, id="session"),
    pytest.param(KEY, TenantRow(bytes(32), "acme").encode(KEY), TenantRow.decode, id="tenant"),
    pytest.param(
        KEYED_KEY,
        KeyedResult(bytes(16), 1, 2, 3).encode(KEYED_KEY),
        KeyedResult.decode,
        id="keyed-result",
    ),
    pytest.param(
        OPTIONS_KEY,
        protect(OPTIONS_KEY, encode_plain({"snapshot_frequency": 25})),
        lambda key, value: expose(key, value, "options"),
        id="options",
    ),
]
Decode = Callable[[bytes, bytes], object]


@pytest.mark.parametrize(("key", "value", "decode"), EXAMPLES)
def test_every_flipped_bit_is_seen(key: bytes, value: bytes, decode: Decode) -> None:
    decode(key, value)
    for place in range(len(value)):
        for bit in range(8):
            flipped = bytearray(value)
            flipped[place] ^= 1 << bit
            with pytest.raises(CorruptionError, match="checksum"):
                decode(key, bytes(flipped))


@pytest.mark.parametrize(("key", "value", "decode"), EXAMPLES)
def test_every_cut_is_seen(key: bytes, value: bytes, decode: Decode) -> None:
    for size in range(len(value)):
        with pytest.raises(CorruptionError):
            decode(key, value[:size])
    with pytest.raises(CorruptionError):
        decode(key, value + b"\0")


@pytest.mark.parametrize(("key", "value", "decode"), EXAMPLES[1:4])
def test_every_flipped_bit_of_the_key_is_seen(key: bytes, value: bytes, decode: Decode) -> None:
    for place in range(len(key)):
        for bit in range(8):
            flipped = bytearray(key)
            flipped[place] ^= 1 << bit
            with pytest.raises(CorruptionError):
                decode(bytes(flipped), value)


@pytest.mark.parametrize("rest", [b"", b"\0" * 119, b"\0" * 121])
def test_a_commit_record_of_another_size_is_refused(rest: bytes) -> None:
    with pytest.raises(CorruptionError, match="another size"):
        CommitRecord.decode(protect(COMMIT_KEY, rest))


def test_a_session_row_without_names_is_refused() -> None:
    rest = ROW.encode(KEY)[8:96]
    with pytest.raises(CorruptionError, match="too short"):
        SessionRow.decode(KEY, protect(KEY, rest))


def test_a_session_row_whose_names_do_not_decode_is_refused() -> None:
    rest = ROW.encode(KEY)[8:96]
    with pytest.raises(CorruptionError, match="session 7"):
        SessionRow.decode(KEY, protect(KEY, rest + b"\x83\x61"))


@pytest.mark.parametrize(
    "details",
    [
        None,
        [],
        ["a", "b"],
        ["a", "b", None, None],
        {"a": 1},
        [1, "b", None],
        ["a", b"b", None],
        ["a", "", None],
    ],
)
def test_a_session_row_of_other_details_is_refused(details: Any) -> None:
    rest = ROW.encode(KEY)[8:96]
    with pytest.raises(CorruptionError, match="session 7"):
        SessionRow.decode(KEY, protect(KEY, rest + encode_plain(details)))


@pytest.mark.parametrize(
    "numbers",
    [
        {"messages": 5},
        {"keys": 5},
        {"segments": 5},
        {"head": 4},
        {"sealed": 2**63},
        {"last_position": 2**63},
        {"created_position": U64_MAX},
    ],
)
def test_a_session_row_with_impossible_numbers_is_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(CorruptionError, match="numbers"):
        SessionRow.decode(KEY, replace(ROW, **numbers).encode(KEY))


@pytest.mark.parametrize(
    "numbers",
    [
        {"last_position": 2**63, "floor": 2**63},
        {"last_position": 5, "floor": 7},
        {"floor": 0},
        {"last_position": 2**40, "floor": 1},
    ],
)
def test_a_commit_record_with_impossible_numbers_is_refused(numbers: dict[str, int]) -> None:
    """Readers would walk positions for ever."""
    with pytest.raises(CorruptionError, match="commit record"):
        CommitRecord.decode(CommitRecord(**numbers).encode())


@pytest.mark.parametrize("rest", [b"", bytes(31), bytes(32) + b"\xff"])
def test_a_tenant_row_of_another_shape_is_refused(rest: bytes) -> None:
    with pytest.raises(CorruptionError, match="tenant 7"):
        TenantRow.decode(KEY, protect(KEY, rest))


@pytest.mark.parametrize("rest", [b"", bytes(39), bytes(41), bytes(16) + b"\xff" * 24])
def test_a_keyed_result_of_another_shape_is_refused(rest: bytes) -> None:
    with pytest.raises(CorruptionError, match=KEYED_KEY.hex()):
        KeyedResult.decode(KEYED_KEY, protect(KEYED_KEY, rest))


@pytest.mark.parametrize("rest", [b"", bytes(7), bytes(9)])
def test_a_number_of_another_size_is_refused(rest: bytes) -> None:
    with pytest.raises(CorruptionError, match="here"):
        decode_number(KEY, protect(KEY, rest), "here")


def test_a_last_position_is_checked_before_it_is_believed() -> None:
    value = bytearray(CommitRecord(5).encode())
    value[8] ^= 1
    for wrong in (bytes(value), b"", protect(COMMIT_KEY, bytes(119))):
        with pytest.raises(CorruptionError, match="commit record"):
            peek_last_position(wrong)


def test_commit_records_form_a_chain_of_their_own() -> None:
    first = CommitRecord(transaction=1)
    second = replace(first, transaction=2, previous=first.encode()[:8])
    assert CommitRecord.decode(second.encode()).previous == first.encode()[:8]
    assert first.previous == bytes(8)


def test_constants_agree() -> None:
    assert len(NO_LINK) == LINK_BYTES == 16
    assert (SECRET_BYTES, NO_SEQUENCE) == (32, U64_MAX)
    fresh = CommitRecord()
    assert (fresh.last_position, fresh.floor, fresh.link) == (0, 1, NO_LINK)
