"""The values a body can hold: strategies over all of them, and equality type for type."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from eventlog.limits import INT_MAX, INT_MIN

texts = st.one_of(
    st.text(st.characters(), max_size=8),  # lone surrogates too
    st.sampled_from(["", "\ud83d", "\ud83d\ude00", "😀", "\x00", "é", "e\u0301", "x" * 30]),
)
float_bits = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**52 - 1).map(lambda low: 0x7FF << 52 | low),  # infinity and all NaNs
    st.integers(0, 2**52 - 1).map(lambda low: 0xFFF << 52 | low),
)


def float_of(bits: int) -> float:
    """The float of 64 bits."""
    found: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return found


floats = st.one_of(
    float_bits.map(float_of),
    st.sampled_from([0.0, -0.0, 1.0, 1.5, 65504.0, 5e-324, 1e308, float_of(0x7FF8 << 48)]),
)
integers = st.one_of(
    st.integers(INT_MIN, INT_MAX),
    st.sampled_from(
        [
            *(0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1, 2**63, INT_MAX),
            *(-1, -24, -25, -256, -257, -(2**32), -(2**32) - 1, INT_MIN),
        ]
    ),
)
scalars = st.one_of(st.none(), st.booleans(), integers, floats, texts, st.binary(max_size=12))
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


def permuted(value: Any) -> Any:
    """The same with all dicts backwards."""
    if type(value) is dict:
        return {key: permuted(value[key]) for key in reversed(value)}
    if type(value) is list:
        return [permuted(item) for item in value]
    return value


def nested(depth: int, innermost: Any = None, *, by: str = "list") -> Any:
    """A value inside ``depth`` containers."""
    value = innermost
    for _ in range(depth):
        value = [value] if by == "list" else {"k": value}
    return value
