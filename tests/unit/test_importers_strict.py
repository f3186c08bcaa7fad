"""The strict decoder: nesting is measured without recursion, and odd JSON is refused."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.importers.records import read_lines
from turnlog.importers.strict import (
    StrictDecoder,
    depth_of,
    is_deeper,
    is_whole,
    skip_space,
    skip_value,
)

TEXTS = st.text(st.sampled_from('"\\[]{}:, a\n\u00e9\ud800'), max_size=6)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


@given(PLAIN, st.sampled_from([None, 1]), st.text(st.sampled_from(" \n\t\r"), max_size=3))
def test_json_is_measured_and_skipped(value: Any, indent: int | None, space: str) -> None:
    text = json.dumps(value, indent=indent)
    data = text.encode()
    depth = _depth(value)
    assert depth_of(data) == depth
    assert not is_deeper(data, depth)
    if depth:
        assert is_deeper(data, depth - 1)
        assert is_whole(space.encode() + data)
        assert not is_whole(data[:-1])
        assert skip_value(text + space + text, 0) == len(text)
        assert skip_value(text[:-1], 0) is None
    assert skip_space(space + text, 0) == len(space)


@given(st.binary(max_size=40) | st.text(st.sampled_from('"\\[]{}'), max_size=30).map(str.encode))
def test_garbage_is_measured_too(data: bytes) -> None:
    assert 0 <= depth_of(data) <= data.count(b"[") + data.count(b"{")


@pytest.mark.parametrize(
    ("data", "depth"),
    [
        pytest.param(b"[" * 100_000, 100_000, id="open"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, 100_000, id="balanced"),
        pytest.param(b'{"a":' * 50_000, 50_000, id="objects"),
        pytest.param(b'"' + b"[" * 100_000 + b'"', 0, id="text"),
        pytest.param(b'"' + b'\\"[' * 100_000 + b'"', 0, id="escaped-quotes"),
        pytest.param(b'["' + b"\\\\" * 100_000 + b'",[]]', 2, id="backslashes"),
        pytest.param(b"]" * 100 + b"[" * 3, 0, id="closed-first"),
        pytest.param(b"[[]]" * 100_000, 2, id="wide"),
    ],
)
def test_depth(data: bytes, depth: int) -> None:
    assert depth_of(data) == depth


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("18446744073709551615", 2**64 - 1, id="int-max"),
        pytest.param("-9223372036854775808", -(2**63), id="int-min"),
        pytest.param('"\\ud800"', "\ud800", id="lone-surrogate"),
        pytest.param("1.7976931348623157e308", 1.7976931348623157e308, id="float-max"),
        pytest.param('{"a": {"a": 1}}', {"a": {"a": 1}}, id="same-key-elsewhere"),
    ],
)
def test_what_is_taken(text: str, value: object) -> None:
    decoded = StrictDecoder().decode(f" {text},", 1)
    assert (decoded.value, decoded.stop, decoded.problem) == (value, len(text) + 1, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param('{"a": 1, "a": 1}', "'a' occurs twice", id="duplicate-key"),
        pytest.param('{"b": {"a": 1, "\\u0061": 2}}', "'a' occurs twice", id="duplicate-inside"),
        pytest.param("[NaN]", "NaN", id="nan"),
        pytest.param("[Infinity]", "Infinity", id="infinity"),
        pytest.param("[-Infinity]", "-Infinity", id="minus-infinity"),
        pytest.param("[1e999]", "1e999", id="float-too-large"),
        pytest.param("[-1e999]", "-1e999", id="float-too-small"),
        pytest.param("[18446744073709551616]", "out of the range", id="int-past-max"),
        pytest.param("[-9223372036854775809]", "out of the range", id="int-past-min"),
        pytest.param("[" + "9" * 100_000 + "]", "out of the range", id="int-of-many-digits"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    decoder = StrictDecoder()
    decoded = decoder.decode(text)
    assert decoded.problem is not None
    assert words in decoded.problem
    assert len(decoded.problem) < 200
    # The end is known all the same, and the next value has a clean slate.
    assert decoded.stop == len(text)
    assert decoder.decode("1").problem is None


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        pytest.param(b"", [], id="empty"),
        pytest.param(b"\n \n\r\n\t", [], id="blank"),
        pytest.param(b"a\n\nb", [(1, 0, b"a"), (3, 3, b"b")], id="blank-between"),
        pytest.param(b"a\r\nb\r\n", [(1, 0, b"a"), (2, 3, b"b")], id="carriage-return"),
        pytest.param(b"12345678\nb", [(1, 0, b"12345678"), (2, 9, b"b")], id="at-the-bound"),
        pytest.param(
            b"12345678\r\nb", [(1, 0, b"12345678"), (2, 10, b"b")], id="at-the-bound-crlf"
        ),
        pytest.param(b"123456789\nb", [(1, 0, None), (2, 10, b"b")], id="one-past"),
        pytest.param(b"123456789\r\nb", [(1, 0, None), (2, 11, b"b")], id="one-past-crlf"),
        pytest.param(b"1234567890\nb", [(1, 0, None), (2, 11, b"b")], id="two-past"),
        pytest.param(b"x" * 99 + b"\nb", [(1, 0, None), (2, 100, b"b")], id="far-past"),
        pytest.param(b"x" * 99, [(1, 0, None)], id="far-past-at-the-end"),
        pytest.param(b"\r" * 99 + b"\nb", [(1, 0, None), (2, 100, b"b")], id="carriage-returns"),
        pytest.param(b"\xef\xbb\xbfa\nb", [(1, 0, None), (2, 5, b"b")], id="byte-order-mark"),
        pytest.param(b"a\n\xef\xbb\xbf", [(1, 0, b"a"), (2, 2, b"\xef\xbb\xbf")], id="mark-later"),
        pytest.param(
            "a\u2028\x85\x0bb".encode(), [(1, 0, "a\u2028\x85\x0bb".encode())], id="lf-only"
        ),
    ],
)
def test_lines(data: bytes, lines: list[tuple[int, int, bytes | None]]) -> None:
    found = [
        (line.number, line.offset, line.data if line.problem is None else None)
        for line in read_lines(io.BytesIO(data), 8)
    ]
    assert found == lines
