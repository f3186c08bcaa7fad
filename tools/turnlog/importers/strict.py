"""JSON that can be trusted: what the standard decoder lets pass is refused here. Pure.

Invariants:

1. A value that comes out has no duplicate keys, no NaN or infinity, no integer out of
   -2**63 .. 2**64-1, and no nesting that could exhaust the stack.
2. Lone surrogates written as JSON escapes are text and are kept.
3. Every function is linear in its input, whatever the input is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import accumulate
from math import isinf
from typing import Any, Final

from eventlog.limits import INT_MAX, INT_MIN

_INT_DIGITS_MAX: Final = len(str(INT_MIN))
_SHOWN_CHARS: Final = 40

_OPEN: Final = 0x5B
_FOLD: Final = bytes.maketrans(b"{}", b"[]")
_NO_SHAPE: Final = bytes(set(range(256)) - set(b'"[]{}'))
_STRINGS: Final = re.compile(rb'"[^"]*+"?')
# Levels peeled off by `bytes.replace` before brackets are counted one by one.
_PEELED_LEVELS: Final = 80

# A raw line feed cannot be part of a JSON string, so an unclosed string ends there.
_STRUCTURE: Final = re.compile(r'"(?:[^"\\\n]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_SPACE: Final = re.compile(r"[ \t\r\n]*+")


@dataclass(slots=True)
class Decoded:
    """A decoded value.

    Attributes:
        value: The value; not to be used when there is a problem.
        stop: Where the value ends in the text, half-open.
        problem: Why it is refused although its syntax is right, or None.
    """

    value: Any
    stop: int
    problem: str | None


class StrictDecoder:
    """Decodes one value at a time, anywhere in a text."""

    def __init__(self) -> None:
        self._problem: str | None = None
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_int=self._int,
            parse_float=self._float,
            parse_constant=self._constant,
        )

    def decode(self, text: str, start: int = 0) -> Decoded:
        """Decode the value that begins exactly at `start`.

        The caller has checked the nesting.

        Raises:
            json.JSONDecodeError: The syntax is wrong.
        """
        self._problem = None
        value, stop = self._decoder.raw_decode(text, start)
        return Decoded(value, stop, self._problem)

    def _note(self, problem: str) -> None:
        # Noted, not raised: the decoder goes on and finds where the value ends.
        if self._problem is None:
            self._problem = problem

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    self._note(f"the key {clip(key)} occurs twice in one object")
                    break
                seen.add(key)
        return mapping

    def _int(self, digits: str) -> int:
        if len(digits) <= _INT_DIGITS_MAX:
            value = int(digits)
            if INT_MIN <= value <= INT_MAX:
                return value
        self._note(f"the integer {clip(digits)} is out of the range -2**63 to 2**64-1")
        return 0

    def _float(self, digits: str) -> float:
        value = float(digits)
        if isinf(value):
            self._note(f"the number {clip(digits)} is too large for a float")
        return value

    def _constant(self, name: str) -> None:
        self._note(f"{name} is no JSON")


def clip(text: str) -> str:
    """A printable, short form of untrusted text, for messages."""
    return ascii(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")


def describe(error: json.JSONDecodeError) -> str:
    """What the decoder says, without the line: that stands in the damage."""
    return f"no valid JSON: {error.msg} at column {error.colno:,}"


def _shape(data: bytes) -> bytes:
    """The brackets outside of strings, all folded to `[` and `]`."""
    shape = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_FOLD, _NO_SHAPE)
    # Two neighbouring quotes cancel out: what follows is inside or outside as before.
    shape = shape.replace(b'""', b"")
    return _STRINGS.sub(b"", shape) if b'"' in shape else shape


def depth_of(data: bytes) -> int:
    """The deepest nesting in UTF-8 JSON text; a bare object is 1 deep.

    Nothing recurses, so text that would exhaust the decoder's stack can be measured. Of text that
    is no JSON the answer is an upper bound of how deep a decoder can get.
    """
    shape = _shape(data)
    rest = shape
    for depth in range(_PEELED_LEVELS):
        if not rest:
            return depth
        rest = rest.replace(b"[]", b"")
    steps = (1 if byte == _OPEN else -1 for byte in shape)
    return max(accumulate(steps, initial=0))


def is_deeper(data: bytes, depth_max: int) -> bool:
    """Whether the nesting exceeds a bound; cheap for text with few brackets."""
    if data.count(b"[") + data.count(b"{") <= depth_max:
        return False
    return depth_of(data) > depth_max


def is_whole(data: bytes) -> bool:
    """Whether a line looks like one complete object or list, without decoding it."""
    data = data.strip()
    if data[:1] not in (b"{", b"[") or data[-1:] not in (b"}", b"]"):
        return False
    shape = _shape(data)
    return 2 * shape.count(b"[") == len(shape)


def skip_space(text: str, start: int) -> int:
    """The next place at or after `start` that is no JSON white space."""
    match = _SPACE.match(text, start)
    assert match is not None
    return match.end()


def skip_value(text: str, start: int) -> int | None:
    """Where the object or list at `start` ends, judged by brackets alone.

    Returns:
        The place behind its closing bracket, or None when it has none.
    """
    depth = 0
    for match in _STRUCTURE.finditer(text, start):
        character = text[match.start()]
        if character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
            if depth <= 0:
                return match.end()
    return None
