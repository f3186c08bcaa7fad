"""Content: equal values say the same, whatever the order of keys and whoever encoded them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.drafting import draft_event, draft_message
from eventlog.ack import Draft
from eventlog.body import encode_plain
from eventlog.content import fingerprint_of, same_content
from eventlog.record import (
    HEAD,
    Extension,
    Flag,
    Origin,
    Record,
    change_tail,
    decode_record,
    seal_record,
)
from tests.format.independent import fingerprint
from tests.format.values import dicts, float_of, permuted

HI: dict[str, Any] = {"role": "user", "content": "Hi"}
ODD_NAN = float_of(0xFFF8_0000_00AB_CDEF)
MARKS: dict[str, Any] = {
    "id": "i",
    "metadata": {"a": 1},
    "time_us": 1,
    "tokens": 1,
    "run_id": "r",
}
OTHERS = [
    ("id", "j"),
    ("metadata", {"a": 2}),
    ("metadata", {}),
    ("metadata", None),
    ("time_us", 2),
    ("tokens", 2),
    ("run_id", "s"),
    ("turn_id", "t"),
    ("speech_id", "t"),
    ("request_id", "t"),
]
HARD: dict[str, Any] = {
    "z": ODD_NAN,
    "\udfff": ["\ud800", {"\ud800": -0.0, "a": 1}],
    "a": float_of(0x7FF8_0000_0000_0001),
}


def stored(tail: bytes, extension: bytes, body: bytes) -> Record:
    """A record that was read."""
    tail = change_tail(tail, 0, len(extension))
    value = seal_record(bytes(8), HEAD.pack(1, 0, 0, 0) + tail + extension + body)
    return decode_record(Origin(1, "", ""), 1, value, Record)


def stored_as(draft: Draft) -> Record:
    return stored(draft.tail, draft.extension, draft.body)


@given(dicts, dicts, st.booleans())
def test_the_order_of_keys_says_nothing(
    body: dict[str, Any], metadata: dict[str, Any], named: bool
) -> None:
    """A retry whose keys stood in another order conflicted: metadata was digested as it was
    encoded, and so were the places of what CBOR cannot carry."""
    marks = {"id": "i"} if named else {}
    one = draft_event("message", body, metadata=metadata, **marks)
    two = draft_event("message", permuted(body), metadata=permuted(metadata), **marks)
    assert fingerprint_of([one]) == fingerprint_of([two])
    assert same_content(stored_as(one), two)
    assert same_content(stored_as(two), one)


@given(
    st.lists(st.tuples(st.sampled_from(["message", "event", "mine"]), dicts), max_size=4),
    st.sampled_from([{}, {"id": "i"}, {"turn_id": "t"}, {"run_id": "r", "tokens": 1}, MARKS]),
    st.none() | dicts,
)
def test_content_is_the_fingerprint_of_the_format(
    events: list[tuple[str, dict[str, Any]]],
    marks: dict[str, Any],
    metadata: dict[str, Any] | None,
) -> None:
    drafts = [draft_event(kind, body, **{**marks, "metadata": metadata}) for kind, body in events]
    records = [bytes(40) + draft.tail + draft.payload for draft in drafts]
    assert fingerprint_of(drafts) == fingerprint(*records)


def test_what_is_content() -> None:
    drafts = [draft_event("message", HI, **MARKS)]
    drafts += [draft_event("message", HI, **{**MARKS, name: value}) for name, value in OTHERS]
    drafts += [draft_message(HI), draft_event("event", HI, **MARKS), draft_event("mine", HI)]
    drafts += [draft_event("other", HI), draft_message({**HI, "content": "Ho"})]
    assert len({fingerprint_of([draft]) for draft in drafts}) == len(drafts)
    for number, one in enumerate(drafts):
        for other, two in enumerate(drafts):
            assert same_content(stored_as(one), two) is (number == other)


def test_content_is_taken_apart_in_one_way() -> None:
    hi, empty = draft_message(HI), draft_message({})
    appends = [[hi], [hi, empty], [empty, hi], [hi, hi], [empty], []]
    assert len({fingerprint_of(drafts) for drafts in appends}) == len(appends)


def test_what_the_store_adds_and_derives_is_no_content() -> None:
    draft = draft_event("message", HARD, id="m", metadata=HARD)
    added = {
        Extension.KEY_DIGEST: bytes(16),
        Extension.CONTENT_DIGEST: bytes(16),
        Extension.KEY_COUNT: 1,
        Extension.OPENING: [b"\xa0", None],
    }
    extra = b"".join([encode_plain(int(key)) + encode_plain(added[key]) for key in added])
    extension = bytes([draft.extension[0] + len(added)]) + draft.extension[1:] + extra
    flags = Flag.KEYED | Flag.FIRST_OF_COMMIT | Flag.FIRST_OF_RUN
    record = stored(change_tail(draft.tail, flags, 0), extension, draft.body)
    assert same_content(record, draft)
    assert not same_content(record, draft_event("message", HARD, id="n", metadata=HARD))


@pytest.mark.parametrize(
    ("extension", "body", "draft"),
    [
        pytest.param(
            b"",
            b"\xbf\x64role\x78\x04user\xff",
            draft_message({"role": "user"}),
            id="lengths",
        ),
        pytest.param(
            encode_plain({6: "r", 1: "i"}),
            b"\xa0",
            draft_event("message", {}, id="i", run_id="r"),
            id="order-of-marks",
        ),
        pytest.param(
            encode_plain({5: b"\xbf\xff"}),
            b"\xa0",
            draft_event("message", {}, metadata={}),
            id="metadata",
        ),
        pytest.param(
            b"",
            b"\xa1\x61n\xfb" + struct.pack(">d", ODD_NAN),
            draft_message({"n": ODD_NAN}),
            id="nan-as-a-float",
        ),
        pytest.param(
            encode_plain({12: [["s", "a", 0], ["s", "b", 0]]}),
            encode_plain({"b": [b"\xed\xa0\x80"], "a": [b"\xed\xa0\x80"]}),
            draft_message({"b": ["\ud800"], "a": ["\ud800"]}),
            id="order-of-fixes",
        ),
    ],
)
def test_other_writers_may_encode_otherwise(extension: bytes, body: bytes, draft: Draft) -> None:
    assert same_content(stored(draft.tail, extension, body), draft)


def test_small_differences_are_seen() -> None:
    bits = struct.unpack(">Q", struct.pack(">d", ODD_NAN))[0]
    bodies = [
        {"v": ODD_NAN},
        {"v": float_of(bits + 1)},
        {"v": float("nan")},
        {"v": struct.pack(">d", ODD_NAN)},
        {"v": "\ud800"},
        {"v": b"\xed\xa0\x80"},
        {"v": 0.0},
        {"v": -0.0},
        {"v": 0},
        {"v": False},
    ]
    by_metadata = [draft_event("message", {}, metadata=body) for body in bodies]
    by_body = [draft_message(body) for body in bodies]
    for drafts in (by_metadata, by_body):
        assert len({fingerprint_of([draft]) for draft in drafts}) == len(bodies)
