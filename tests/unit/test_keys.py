"""Keys sort like the numbers in them, and no name can pass for another."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.errors import InvalidNameError
from eventlog.keys import PAIR, U64, U64_MAX, name_bytes, name_key
from eventlog.limits import NAME_BYTES_MAX

numbers = st.one_of(
    st.integers(0, U64_MAX),
    st.sampled_from([0, 1, 255, 256, 2**32 - 1, 2**32, 2**63 - 1, 2**63, U64_MAX]),
)
names = st.text(st.characters(codec="utf-8"), max_size=12)


@given(numbers)
def test_a_position_comes_back(number: int) -> None:
    key = U64.pack(number)
    assert len(key) == 8
    assert U64.unpack(key) == (number,)
    assert key.hex() == f"{number:016x}"


@given(numbers, numbers)
def test_a_pair_comes_back(first: int, second: int) -> None:
    key = PAIR.pack(first, second)
    assert len(key) == 16
    assert PAIR.unpack(key) == (first, second)


@given(numbers, numbers)
def test_byte_order_is_numeric_order(left: int, right: int) -> None:
    assert (U64.pack(left) < U64.pack(right)) == (left < right)


@given(st.tuples(numbers, numbers), st.tuples(numbers, numbers))
def test_byte_order_of_pairs_is_that_of_tuples(
    left: tuple[int, int], right: tuple[int, int]
) -> None:
    assert (PAIR.pack(*left) < PAIR.pack(*right)) == (left < right)


@given(numbers, numbers)
def test_inverted_positions_sort_newest_first(left: int, right: int) -> None:
    assert (PAIR.pack(1, U64_MAX - left) < PAIR.pack(1, U64_MAX - right)) == (left > right)


@given(st.tuples(names, names), st.tuples(names, names))
def test_different_names_have_different_keys(left: tuple[str, str], right: tuple[str, str]) -> None:
    assert len(name_key(*left)) == 16
    assert (name_key(*left) == name_key(*right)) == (left == right)


@given(names, names)
def test_moving_the_border_between_tenant_and_session_changes_the_key(a: str, b: str) -> None:
    whole = a + b
    keys = {name_key(whole[:cut], whole[cut:]) for cut in range(len(whole) + 1)}
    assert len(keys) == len(whole) + 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(("a", "b"), ("", "ab"), id="spliced"),
        pytest.param(("a", "b"), ("a\x00", "b"), id="zero-byte"),
        pytest.param(("a:b", "c"), ("a", "b:c"), id="colon"),
        pytest.param(("é", "x"), ("e\u0301", "x"), id="not-normalised"),
        pytest.param(("A", "x"), ("a", "x"), id="case"),
        pytest.param(("\x00" * 7 + "\x01a", "x"), ("\x00", "\x00" * 6 + "\x01ax"), id="length"),
    ],
)
def test_names_that_look_alike(left: tuple[str, str], right: tuple[str, str]) -> None:
    assert name_key(*left) != name_key(*right)


def test_a_name_key_is_the_digest_that_the_format_names() -> None:
    content = (2).to_bytes(8, "big") + "é".encode() + b"call"
    digest = blake2b(content, digest_size=16, person=b"turnlog-name").digest()
    assert name_key("é", "call") == digest


@pytest.mark.parametrize(
    "name",
    ["a", "a:b", "a\x00b", "../x", "%", "😀", "\n", " ", "x" * NAME_BYTES_MAX, "é" * 256],
)
def test_any_text_of_1_to_512_bytes_is_a_name(name: str) -> None:
    assert name_bytes(name, "session name") == name.encode()


class Text(str):
    """A str that is none of ours."""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("", "has 0 UTF-8 bytes", id="empty"),
        pytest.param("x" * (NAME_BYTES_MAX + 1), "has 513 UTF-8 bytes", id="one-too-long"),
        pytest.param("é" * 256 + "x", "has 513 UTF-8 bytes", id="bytes-count-not-characters"),
        pytest.param("a\ud800", "lone surrogate", id="surrogate"),
        pytest.param(b"bytes", "not bytes", id="bytes"),
        pytest.param(None, "not NoneType", id="none"),
        pytest.param(7, "not int", id="int"),
        pytest.param(Text("a"), "not Text", id="subclass"),
    ],
)
def test_other_names_are_refused(name: object, reason: str) -> None:
    with pytest.raises(InvalidNameError, match=f"session name .*{reason}") as caught:
        name_bytes(name, "session name")
    assert caught.value.hint
