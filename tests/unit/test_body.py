"""Bodies come back type for type and bit for bit; everything else is refused with its path."""

from __future__ import annotations

import datetime
import decimal
import enum
import sys
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any

import cbor2
import numpy as np
import pytest
from cbor2 import CBORTag
from hypothesis import example, given
from hypothesis import strategies as st

from eventlog.body import (
    canonical_bytes,
    decode_body,
    decode_marks,
    encode_body,
    encode_plain,
    require_plain,
)
from eventlog.errors import CorruptionError, InvalidMessageError, LimitExceededError
from eventlog.limits import BODY_BYTES_MAX, DEPTH_MAX, INT_MAX, INT_MIN, METADATA_BYTES_MAX
from tests.format import independent
from tests.format.values import (
    float_bits,
    float_of,
    identical,
    nested,
    permuted,
    texts,
    values,
)


def round_trip(value: Any) -> Any:
    return decode_body(*encode_body(value))


# What goes in comes out


@given(values)
@example({"\ud800": {"\udfff": [float_of(0xFFF8000000000001)]}, "a": "\ud83d"})
@example([[], {}, [[]], {"": {}}])
@example({"a" * 24: "b" * 256, "é": "\x00"})
def test_a_value_comes_back(value: Any) -> None:
    assert identical(round_trip(value), value)


@given(float_bits)
def test_a_float_keeps_its_bits(bits: int) -> None:
    value = float_of(bits)
    assert identical(round_trip(value), value)
    assert identical(round_trip({"deep": [value]}), {"deep": [value]})


@given(st.dictionaries(texts, texts, max_size=6))
def test_the_short_way_and_the_careful_way_agree(message: dict[str, str]) -> None:
    """A dict of str alone is encoded without being walked; inside a list it is walked."""
    data, fixes = encode_body(message)
    walked, walked_fixes = encode_body([message])
    assert walked == b"\x81" + data
    assert [[what, *path[1:]] for what, *path in walked_fixes or []] == (fixes or [])


@given(values)
def test_a_body_is_read_as_the_format_says(value: Any) -> None:
    data, fixes = encode_body(value)
    assert identical(independent.unfix(cbor2.loads(data), fixes), value)


@given(values)
def test_what_was_given_is_left_as_it_was(value: Any) -> None:
    import copy

    before = copy.deepcopy(value)
    encode_body(value)
    assert identical(value, before)


@given(values)
def test_fixes_can_be_stored(value: Any) -> None:
    data, fixes = encode_body(value)
    assert identical(decode_body(data, decode_body(encode_plain(fixes))), value)


@pytest.mark.parametrize(
    "value",
    [INT_MIN, INT_MIN + 1, -1, 0, 2**63 - 1, 2**63, INT_MAX - 1, INT_MAX, True, False, None],
    ids=repr,
)
def test_the_borders_of_integers(value: int | None) -> None:
    assert identical(round_trip(value), value)


@pytest.mark.parametrize(
    "value", [INT_MAX + 1, INT_MIN - 1, 2**70, -(10**400)], ids=lambda v: len(str(v))
)
def test_past_the_borders_of_integers(value: int) -> None:
    with pytest.raises(InvalidMessageError, match=r"\$\.a\[1\]: int out of the range"):
        encode_body({"a": [0, value]})


# Canonical form


def canonical(value: Any) -> bytes:
    """The canonical form by both ways to it."""
    data, fixes = encode_body(value)
    form = canonical_bytes(data, fixes)
    assert canonical_bytes(data, fixes, is_ours=True) == form
    return form


@given(values)
@example({"b": "x", "a": "y"})
@example({"aa": "x", "b": "y"})
@example({"b": "x", "aa": "y"})
@example({"": "x", "a": "y"})
@example({"é": "x", "zz": "y", "a": "z"})
@example({"k" * 24: "x", "k" * 23: "y"})
@example({"\udfff": "x", "\ud801 ": "y"})
@example({"zz": "\ud800", "a": float_of(0xFFF8_0000_00AB_CDEF)})
def test_the_canonical_form_is_the_one_of_the_format(value: Any) -> None:
    form = canonical(value)
    assert form == independent.canonical(value)
    assert canonical(permuted(value)) == form


@pytest.mark.parametrize(
    ("data", "value"),
    [
        pytest.param("bf616101616202ff", {"a": 1, "b": 2}, id="indefinite-map"),
        pytest.param("a2617801616102", {"a": 2, "x": 1}, id="other-order"),
        pytest.param("9f0102ff", [1, 2], id="indefinite-list"),
        pytest.param("a16161780178", {"a": "x"}, id="long-length"),
        pytest.param("1b0000000000000001", 1, id="long-int"),
        pytest.param("fa3fc00000", 1.5, id="single"),
        pytest.param("fb7ff8000000000000", float("nan"), id="long-nan"),
        pytest.param("81fbfff8000000abcdef", [float_of(0xFFF8_0000_00AB_CDEF)], id="nan-as-float"),
    ],
)
def test_other_encodings_of_a_value_have_its_canonical_form(data: str, value: Any) -> None:
    assert canonical_bytes(bytes.fromhex(data)) == canonical(value)


@given(values, values)
def test_other_content_has_another_canonical_form(left: Any, right: Any) -> None:
    same = identical(sorted_keys(left), sorted_keys(right))
    assert (canonical(left) == canonical(right)) is same


def sorted_keys(value: Any) -> Any:
    if type(value) is dict:
        return {key: sorted_keys(value[key]) for key in sorted(value)}
    if type(value) is list:
        return [sorted_keys(item) for item in value]
    return value


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(1, 1.0, id="int-float"),
        pytest.param(1, True, id="int-bool"),
        pytest.param(0, False, id="zero-false"),
        pytest.param(0.0, -0.0, id="signs-of-zero"),
        pytest.param("a", b"a", id="text-bytes"),
        pytest.param([], {}, id="list-dict"),
        pytest.param("", None, id="empty-none"),
        pytest.param([1, 2], [2, 1], id="order-of-a-list"),
        pytest.param("é", "e\u0301", id="not-normalised"),
        pytest.param(float("nan"), float("inf"), id="nan-inf"),
        pytest.param(float("nan"), float_of(0xFFF8 << 48), id="bits-of-nan"),
        pytest.param("\ud800", b"\xed\xa0\x80", id="surrogate-its-bytes"),
        pytest.param("\ud83d\ude00", "😀", id="pair-emoji"),
    ],
)
def test_equal_in_python_is_not_equal_in_content(left: Any, right: Any) -> None:
    for wrap in (lambda v: v, lambda v: [v], lambda v: {"k": v}):
        assert canonical(wrap(left)) != canonical(wrap(right))


# What is refused


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Blob(bytes):
    pass


class Items(list[Any]):
    pass


class Mapping(dict[str, Any]):
    pass


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 1


class Name(enum.StrEnum):
    ALICE = "alice"


class Greedy:
    """Claims to be equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("a")


REFUSED = [
    pytest.param(Text("a"), "Text", id="str-subclass"),
    pytest.param(Number(1), "Number", id="int-subclass"),
    pytest.param(Real(1), "Real", id="float-subclass"),
    pytest.param(Blob(b"a"), "Blob", id="bytes-subclass"),
    pytest.param(Items([1]), "Items", id="list-subclass"),
    pytest.param(Mapping(a=1), "Mapping", id="dict-subclass"),
    pytest.param(OrderedDict(a=1), "OrderedDict", id="ordered-dict"),
    pytest.param(UserDict(a=1), "UserDict", id="user-dict"),
    pytest.param((1, 2), "tuple", id="tuple"),
    pytest.param({1}, "set", id="set"),
    pytest.param(frozenset([1]), "frozenset", id="frozenset"),
    pytest.param(bytearray(b"a"), "bytearray", id="bytearray"),
    pytest.param(memoryview(b"a"), "memoryview", id="memoryview"),
    pytest.param(datetime.datetime(2025, 6, 1), "datetime", id="datetime"),
    pytest.param(datetime.date(2025, 6, 1), "date", id="date"),
    pytest.param(datetime.timedelta(1), "timedelta", id="timedelta"),
    pytest.param(Colour.RED, "Colour", id="enum"),
    pytest.param(Level.HIGH, "Level", id="int-enum"),
    pytest.param(Name.ALICE, "Name", id="str-enum"),
    pytest.param(decimal.Decimal("1.5"), "Decimal", id="decimal"),
    pytest.param(1j, "complex", id="complex"),
    pytest.param(range(3), "range", id="range"),
    pytest.param(np.float64(1.5), "float64", id="numpy-float"),
    pytest.param(np.int64(1), "int64", id="numpy-int"),
    pytest.param(np.bool_(True), "bool", id="numpy-bool"),
    pytest.param(np.array([1, 2]), "ndarray", id="numpy-array"),
    pytest.param(object(), "object", id="object"),
    pytest.param(int, "type", id="class"),
    pytest.param(len, "builtin_function_or_method", id="function"),
    pytest.param((x for x in [1]), "generator", id="generator"),
    pytest.param(NotImplemented, "NotImplementedType", id="not-implemented"),
    pytest.param(..., "ellipsis", id="ellipsis"),
    pytest.param(Greedy(), "Greedy", id="equal-to-everything"),
]


@pytest.mark.parametrize(("value", "kind"), REFUSED)
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        pytest.param(lambda value: value, "$", id="alone"),
        pytest.param(lambda value: {"content": value}, "$.content", id="in-a-message"),
        pytest.param(lambda value: {"a": "b", "c": value}, "$.c", id="after-text"),
        pytest.param(
            lambda value: {"content": [{"x": 1}, {"when is": [0, value]}]},
            "$.content[1].'when is'[1]",
            id="deep",
        ),
    ],
)
def test_other_types_are_refused_with_their_path(
    value: Any, kind: str, wrap: Callable[[Any], Any], path: str
) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        encode_body(wrap(value))
    assert caught.value.path == path
    assert str(caught.value) == f"{path}: type {kind} cannot be stored"
    assert "plain data" in caught.value.hint


@pytest.mark.parametrize(
    "key",
    [1, None, True, 1.5, b"a", (1,), Text("a"), Name.ALICE, Greedy()],
    ids=lambda k: type(k).__name__,
)
def test_keys_that_are_no_str_are_refused(key: Any) -> None:
    for value, path in (({key: "x"}, "$"), ({"a": [{key: 1}]}, "$.a[0]")):
        with pytest.raises(InvalidMessageError, match="keys must be str") as caught:
            encode_body(value)
        assert caught.value.path.startswith(path)


@pytest.mark.parametrize("root", ["$", "$metadata"])
def test_paths_begin_with_the_name_of_what_is_encoded(root: str) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        encode_body({"a": {1}}, root=root)
    assert caught.value.path == f"{root}.a"


def test_a_path_is_ascii_whatever_the_keys_are() -> None:
    with pytest.raises(InvalidMessageError) as caught:
        encode_body({"\x1b[31m": {"\ud800": {"été": {1}}}})
    assert caught.value.path.isprintable()
    assert caught.value.path.encode()  # no lone surrogate


# Depth and size


@pytest.mark.parametrize("by", ["list", "dict"])
def test_the_deepest_value_comes_back(by: str) -> None:
    value = nested(DEPTH_MAX, "x", by=by)
    assert identical(round_trip(value), value)


@pytest.mark.parametrize("by", ["list", "dict"])
@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 401, 10_000])
def test_deeper_values_are_refused(depth: int, by: str) -> None:
    value = nested(depth, "x", by=by)
    with pytest.raises(LimitExceededError) as caught:
        encode_body(value)
    error = caught.value
    assert (error.name, error.actual, error.limit) == ("DEPTH_MAX", DEPTH_MAX + 1, DEPTH_MAX)
    step = "[0]" if by == "list" else ".k"
    assert error.path == "$" + step * DEPTH_MAX


def test_an_empty_container_counts_as_a_level() -> None:
    round_trip(nested(DEPTH_MAX - 1, []))
    with pytest.raises(LimitExceededError):
        encode_body(nested(DEPTH_MAX, {}))


def test_cyclic_values_are_refused() -> None:
    items: list[Any] = [1]
    items.append({"again": items})
    with pytest.raises(LimitExceededError) as caught:
        encode_body(items)
    assert caught.value.name == "DEPTH_MAX"
    mapping: dict[str, Any] = {"a": "b"}
    mapping["me"] = mapping
    with pytest.raises(LimitExceededError):
        encode_body(mapping)


def test_shared_values_are_stored_once_each_time() -> None:
    part = {"x": [1]}
    assert identical(round_trip([part, part]), [part, part])


@pytest.mark.parametrize("bytes_max", [300, 66_000])
@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda size: {"c": "x" * size}, id="message"),
        pytest.param(lambda size: {"c": "é" * (size // 2) + "x" * (size % 2)}, id="two-byte-text"),
        pytest.param(lambda size: ["x" * size], id="list"),
        pytest.param(lambda size: b"x" * size, id="bytes"),
        pytest.param(lambda size: {"c": "x" * (size - 3) + "\ud800"}, id="surrogate"),
        pytest.param(lambda size: [None] * size, id="many-items"),
    ],
)
def test_the_size_limit_and_one_past_it(wrap: Callable[[int], Any], bytes_max: int) -> None:
    head = len(encode_body(wrap(bytes_max))[0]) - bytes_max
    data, _ = encode_body(wrap(bytes_max - head), bytes_max=bytes_max)
    assert len(data) == bytes_max
    with pytest.raises(LimitExceededError) as caught:
        encode_body(wrap(bytes_max - head + 1), bytes_max=bytes_max)
    error = caught.value
    assert (error.limit, error.path) == (bytes_max, "$")
    assert error.actual > bytes_max


def test_the_limit_of_a_body() -> None:
    largest = {"c": "x" * (BODY_BYTES_MAX - 8)}
    assert len(encode_body(largest)[0]) == BODY_BYTES_MAX
    with pytest.raises(LimitExceededError) as caught:
        encode_body({"c": "x" * (BODY_BYTES_MAX - 7)})
    error = caught.value
    assert (error.name, error.actual, error.limit) == (
        "BODY_BYTES_MAX",
        BODY_BYTES_MAX + 1,
        BODY_BYTES_MAX,
    )
    assert METADATA_BYTES_MAX < BODY_BYTES_MAX


# Bytes that are none of ours


@pytest.mark.parametrize(
    "data",
    [
        *("", "18", "1c", "61", "61ff", "ff", "9f", "82", "a101", "a16161", "d81d00", "fe"),
        *("5b7fffffffffffffff00", "9b7fffffffffffffff", "bb7fffffffffffffff"),
    ],
)
def test_garbage_is_corruption(data: str) -> None:
    with pytest.raises(CorruptionError, match="here") as caught:
        decode_body(bytes.fromhex(data), where="here")
    assert caught.value.where == "here"
    assert caught.value.__cause__ is not None


@given(values, st.data())
def test_a_body_cut_short_is_corruption(value: Any, data: st.DataObject) -> None:
    encoded, _ = encode_body(value)
    size = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CorruptionError):
        decode_body(encoded[:size])


@pytest.mark.parametrize(
    ("value", "fixes"),
    [
        pytest.param([b"\xff"], [["s", 0]], id="no-utf8"),
        pytest.param([1], [["s", 1]], id="past-the-end"),
        pytest.param({"a": 1}, [["s", "b"]], id="no-such-key"),
        pytest.param([1], [["s", 0, 0]], id="into-a-number"),
        pytest.param([b"x"], [["q", 0]], id="unknown"),
        pytest.param([b"x"], [[]], id="empty"),
        pytest.param([b"x"], [5], id="no-list"),
        pytest.param([b"x"], [["s", "a"]], id="key-into-a-list"),
        pytest.param(["x"], [["s", 0]], id="text-already"),
        pytest.param([b"x"], [["s", -1]], id="from-the-end"),
        pytest.param([b"x"], [["s", False]], id="step-is-a-bool"),
        pytest.param([b"x"], [["f", 0]], id="no-eight-bytes"),
        pytest.param([b"x"], {"s": 0}, id="fixes-in-a-map"),
        pytest.param([b"x"], [["k", 0]], id="renames-in-a-list"),
        pytest.param({"a": b"x"}, [["k", "a"]], id="renames-a-text-key"),
        pytest.param({b"a": 1}, [["k"]], id="renames-nothing"),
        pytest.param({b"a": 1}, [["k", b"a"], ["k", b"a"]], id="renames-twice"),
    ],
)
def test_fixes_that_lead_nowhere_are_corruption(value: Any, fixes: Any) -> None:
    with pytest.raises(CorruptionError):
        decode_body(encode_plain(value), fixes)


@pytest.mark.parametrize("inner", ["00", "4105", "6161", "80", "820102"])
def test_tags_are_corruption(inner: str) -> None:
    """Those that cbor2 knows became sets, dates, lists that hold themselves, or plain values."""
    for tag in (*range(300), 1004, 43000, 55799, 2**40):
        data = encode_plain(CBORTag(tag, 0))[:-1] + bytes.fromhex(inner)
        for body in (data, b"\x81" + data, b"\xa1\x61a" + data):
            with pytest.raises(CorruptionError):
                decode_body(body)
        with pytest.raises(CorruptionError):
            decode_marks(b"\xa1\x01" + data, where="here")


@pytest.mark.parametrize(
    "data",
    [
        "f7",
        "f0",
        "f820",
        "81f7",
        "a101f6",
        "a14161f6",
        "81a101f6",
        "3bffffffffffffffff",
        "813bffffffffffffffff",
        "81" * (DEPTH_MAX + 1) + "f6",
    ],
)
def test_what_no_body_holds_is_corruption(data: str) -> None:
    """Undefined, simple values, keys that are no text, ints out of range, too deep."""
    with pytest.raises(CorruptionError, match="here"):
        require_plain(decode_body(bytes.fromhex(data)), where="here")


@pytest.mark.parametrize("value", [[1], {"a": 1}, {1: {2: 3}}, 1, None])
def test_marks_are_a_map_with_numbers_as_keys(value: Any) -> None:
    with pytest.raises(CorruptionError, match="here"):
        decode_marks(encode_plain(value), where="here")


def test_encoding_does_not_depend_on_the_recursion_limit() -> None:
    value = nested(DEPTH_MAX, "x")
    before = sys.getrecursionlimit()
    frame, used = sys._getframe(), 0
    while frame.f_back is not None:
        frame, used = frame.f_back, used + 1
    sys.setrecursionlimit(used + DEPTH_MAX * 2 + 60)
    try:
        assert identical(round_trip(value), value)
    finally:
        sys.setrecursionlimit(before)
