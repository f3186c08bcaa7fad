"""Export lines give every storable value back, and there is one spelling for each."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.export import (
    LINE_KEYS,
    encode_line,
    escape,
    event_to_line,
    line_mapping,
    line_to_event,
    unescape,
)
from eventlog.limits import DEPTH_MAX, INT_MAX, INT_MIN
from eventlog.record import MESSAGE
from tests.format import independent_rows

texts = st.one_of(
    st.text(st.characters(), max_size=8),
    st.sampled_from(["$", "$b64", "$$b64", "$float", "$surrogate:", "\ud83d", "\ud83d\ude00"]),
)
bits = st.integers(0, 2**64 - 1).map(lambda n: struct.unpack(">d", n.to_bytes(8, "big"))[0])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(INT_MIN, INT_MAX),
    st.floats(),
    bits,
    st.sampled_from([0.0, -0.0, 5e-324, 1e308, 1.0, float("inf"), float("-inf")]),
    texts,
    st.binary(max_size=12),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
dicts = st.dictionaries(texts, values, max_size=4)


def identical(left: Any, right: Any) -> bool:
    """Equal, type for type and bit for bit, with dict keys in the same order."""
    if type(left) is not type(right):
        return False
    if type(left) is float:
        return struct.pack(">d", left) == struct.pack(">d", right)
    if type(left) is list:
        return len(left) == len(right) and all(map(identical, left, right))
    if type(left) is dict:
        return list(left) == list(right) and all(identical(left[key], right[key]) for key in left)
    return bool(left == right)


@dataclass
class Fact:
    """An event as far as its export line needs it."""

    tenant: str = ""
    session: str = "s"
    sequence: int = 0
    parent: int | None = None
    kind: str = "message"
    kind_code: int = MESSAGE
    opens_branch: bool = False
    id: str | None = None
    time_us: int | None = None
    recorded_us: int = 1
    tokens: int | None = None
    run_id: str | None = None
    turn_id: str | None = None
    speech_id: str | None = None
    request_id: str | None = None
    opening: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    blobs: tuple[bytes, ...] = ()
    body: Any = None
    redacted: bool = False
    role: str | None = None


@given(values)
def test_every_storable_value_comes_back(value: object) -> None:
    text = encode_line({"v": escape(value)})
    assert identical(unescape(json.loads(text)["v"]), value)


@given(values)
def test_a_line_is_inert_utf8_without_line_breaks(value: object) -> None:
    text = encode_line({"v": escape(value)})
    text.encode()
    acting = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200B, 0x200E, 0x200F, 0xFEFF]
    acting += [*range(0x2028, 0x202F), *range(0x2060, 0x2070), *range(0xE0000, 0xE0080)]
    assert not set(text) & set(map(chr, acting))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(texts, st.sampled_from(["$b64", "$float", "$surrogate", "$surrogate:7aCA"])),
            st.one_of(inner, st.sampled_from(["AA==", "AB==", "7ff8000000000001", "7aCA"])),
            max_size=3,
        ),
    ),
    max_leaves=8,
)


@given(json_values)
def test_there_is_one_spelling_for_each_value(value: object) -> None:
    """Whatever ``unescape`` takes, ``escape`` spells the same way: exports are byte-identical."""
    try:
        stored = unescape(value)
    except ValueError:
        return
    assert identical(escape(stored), value)


@given(
    st.builds(
        Fact,
        tenant=st.sampled_from(["", "acme", "a\x1bb"]),
        session=st.sampled_from(["s", "été", "../x", "a\x00b"]),
        sequence=st.just(0),
        id=st.none() | st.just("m-1"),
        time_us=st.none() | st.integers(-(2**63), 2**63 - 1),
        recorded_us=st.integers(0, 2**63 - 1),
        tokens=st.none() | st.integers(1, 2**32 - 1),
        run_id=st.none() | texts,
        turn_id=st.none() | texts,
        opening=st.none() | dicts.filter(bool),
        metadata=st.none() | dicts,
        blobs=st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(tuple),
        body=values,
    )
)
def test_an_event_comes_back_from_its_line(fact: Fact) -> None:
    back = line_to_event(json.loads(event_to_line(fact)))  # type: ignore[arg-type]
    assert (back.pop("blobs") or []) == [address.hex() for address in fact.blobs]
    assert back.pop("base") is back.pop("branch") is None
    for key in back:
        assert identical(back[key], getattr(fact, key)), key


@given(values)
@example([1e16, 9999999999999998.0, 1e-4, 9.999e-5, -5e-324, 1.7976931348623157e308, -0.0])
@example(['\x00\x1f\x7f"\\\b\t\n\f\r/', "\u200b\u200c\u200d\U000e0041"])
def test_a_value_is_spelled_as_the_format_says(value: Any) -> None:
    line = encode_line({"v": escape(value)})
    assert line == f'{{"v":{independent_rows.value_line(value)}}}'


def test_the_keys_of_a_line_stand_in_their_order() -> None:
    facts = ({"o": 1}, {}, (bytes(16),), {"a": 1}, True, "user")
    fact = Fact("t", "s", 0, 0, "message", MESSAGE, False, "i", 1, 2, 3, "r", "t", "p", "q", *facts)
    assert tuple(line_mapping(fact, base={"last": 1}, branch=1)) == LINE_KEYS  # type: ignore[arg-type]


def test_what_is_none_is_absent() -> None:
    line = event_to_line(Fact(body={"role": "user"}))  # type: ignore[arg-type]
    assert line == (
        '{"session":"s","sequence":0,"kind":"message","recorded_us":1,"body":{"role":"user"}}'
    )


@pytest.mark.parametrize(
    ("value", "spelling"),
    [
        pytest.param(b"\x00\xff", '{"$b64":"AP8="}', id="bytes"),
        pytest.param(math.inf, '{"$float":"7ff0000000000000"}', id="infinity"),
        pytest.param(-0.0, "-0.0", id="minus-zero"),
        pytest.param(1.0, "1.0", id="whole-float"),
        pytest.param(2**64 - 1, "18446744073709551615", id="largest-int"),
        pytest.param("\ud83d", '{"$surrogate":"7aC9"}', id="lone-surrogate"),
        pytest.param({"\ud83d": 1}, '{"$surrogate:7aC9":1}', id="lone-surrogate-in-a-key"),
        pytest.param({"$ref": 1}, '{"$$ref":1}', id="dollar-key"),
        pytest.param({"$b64": "AP8="}, '{"$$b64":"AP8="}', id="a-user's-own-b64"),
        pytest.param("é\u2028\x85", '"é\\u2028\\u0085"', id="line-separators"),
        pytest.param("\U000e0041", '"\\udb40\\udc41"', id="tag-character"),
        pytest.param("می\u200cخواهم", '"می\u200cخواهم"', id="joiner"),
    ],
)
def test_spelling(value: object, spelling: str) -> None:
    assert encode_line({"v": escape(value)}) == f'{{"v":{spelling}}}'
    assert identical(unescape(json.loads(spelling)), value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param({"$b64": "AP8"}, "no base64", id="base64-without-padding"),
        pytest.param({"$b64": "AP9="}, "stray bits", id="base64-not-canonical"),
        pytest.param({"$b64": "AP\n8="}, "no base64", id="base64-with-a-line-feed"),
        pytest.param({"$b64": 1}, "must hold a string", id="base64-no-string"),
        pytest.param({"$b64": "AP8=", "x": 1}, "no escape", id="b64-beside-another-key"),
        pytest.param({"$float": "3ff0000000000000"}, "NaN and infinities only", id="finite"),
        pytest.param({"$float": "7FF8000000000000"}, "lower-case", id="upper-case-hex"),
        pytest.param({"$float": "7ff8"}, "16", id="short-hex"),
        pytest.param({"$surrogate": "YWJj"}, "with a lone surrogate only", id="plain-text"),
        pytest.param({"$surrogate": "/w=="}, "no text", id="surrogate-no-utf8"),
        pytest.param({"$surrogate:YWJj": 1}, "with a lone surrogate only", id="plain-key"),
        pytest.param({"$ref": 1}, r"single \$", id="unknown-escape"),
        pytest.param("\ud800", r"\$surrogate", id="raw-surrogate"),
        pytest.param({"\ud800": 1}, r"\$surrogate:", id="raw-surrogate-in-a-key"),
        pytest.param(math.nan, r"\$float", id="raw-nan"),
        pytest.param(2**64, "out of the range", id="too-large"),
        pytest.param(-(2**63) - 1, "out of the range", id="too-small"),
    ],
)
def test_malformed_escapes_are_refused(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        unescape(value)


@pytest.mark.parametrize("depth", [DEPTH_MAX, DEPTH_MAX + 1])
def test_depth(depth: int) -> None:
    value: Any = {"$b64": "AA=="}
    for _ in range(depth):
        value = [value]
    if depth == DEPTH_MAX:
        unescape(value)
    else:
        with pytest.raises(ValueError, match="deeper"):
            unescape(value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"positon": 3}, "unknown key 'positon'", id="unknown-key"),
        pytest.param({"session": ""}, "session must be", id="empty-name"),
        pytest.param({"session": None}, "session must be", id="no-name"),
        pytest.param({"kind": 7}, "kind must be", id="kind"),
        pytest.param({"tenant": 1}, "tenant must be", id="tenant"),
        pytest.param({"sequence": -1}, "sequence must be", id="negative"),
        pytest.param({"sequence": True}, "sequence must be", id="bool"),
        pytest.param({"sequence": 1.0}, "sequence must be", id="float"),
        pytest.param({"recorded_us": 2**63}, "recorded_us must be", id="too-late"),
        pytest.param({"time_us": 2**63}, "time_us must be", id="time"),
        pytest.param({"sequence": 4, "parent": 4}, "does not come before", id="own-parent"),
        pytest.param({"opening": []}, "opening must be", id="opening-no-object"),
        pytest.param({"metadata": {"$b64": "AA=="}}, "metadata must be", id="metadata"),
        pytest.param({"body": {"$float": "x"}}, "hex", id="body"),
    ],
)
def test_malformed_lines_are_refused(changes: dict[str, object], reason: str) -> None:
    good = {"session": "s", "sequence": 0, "kind": "message", "body": {}}
    line_to_event(good)
    with pytest.raises(ValueError, match=reason):
        line_to_event({**good, **changes})


REDACTED = {"session": "s", "sequence": 0, "kind": "message", "redacted": True, "role": "user"}


def test_a_redacted_event_has_a_role_and_nothing_to_say() -> None:
    fact = Fact(redacted=True, role="user")
    line = event_to_line(fact)  # type: ignore[arg-type]
    assert line == (
        '{"session":"s","sequence":0,"kind":"message","recorded_us":1,"redacted":true,"role":"user"}'
    )
    back = line_to_event(json.loads(line))
    assert (back["redacted"], back["role"], back["body"]) == (True, "user", None)
    assert line_to_event({"session": "s", "kind": "event", "body": 1})["redacted"] is False
    assert line_to_event({**REDACTED, "role": None})["role"] is None
    fact = Fact(body={"role": "user"}, role="user")  # of others the body tells it
    assert '"redacted"' not in event_to_line(fact)  # type: ignore[arg-type]
    assert json.loads(event_to_line(fact)).keys().isdisjoint({"role"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"redacted": 1}, "true or false", id="int"),
        pytest.param({"body": {}}, "no body", id="body"),
        pytest.param({"metadata": {}}, "no metadata", id="metadata"),
        pytest.param({"blobs": ["0" * 32]}, "no blobs", id="blobs"),
        pytest.param({"role": "nobody"}, "usual roles", id="unusual-role"),
        pytest.param({"role": 2}, "usual roles", id="role-is-no-text"),
        pytest.param({"redacted": False}, "usual roles", id="role-of-one-that-was-not"),
        pytest.param({"redacted": None, "role": "user"}, "usual roles", id="role-alone"),
    ],
)
def test_a_line_cannot_tell_what_was_redacted(changes: dict[str, object], reason: str) -> None:
    line_to_event(REDACTED)
    with pytest.raises(ValueError, match=reason):
        line_to_event({**REDACTED, **changes})


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, {"a": {3}}], ids=["tuple", "int-key", "set"])
def test_what_no_body_holds_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="cannot be exported"):
        escape(value)


def test_a_raw_nan_never_becomes_a_line() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode_line({"v": math.nan})
