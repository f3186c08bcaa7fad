r"""Export lines: events ⇄ JSON text that gives every stored value back, type for type. Pure.

Invariants:
    1. ``unescape(json.loads(json.dumps(escape(value))))`` equals ``value``, of the same types and
       with the same bits, for everything a body can hold (``eventlog.body``).
    2. There is one spelling for each value: what ``unescape`` takes, ``escape`` gives back. So
       export → import → export is byte-identical.
    3. A line is plain printable text: control characters, bidi controls and invisible format
       characters stand as ``\uXXXX``, so that a file shown in a terminal stays inert.

The escapes (decisions/0002): bytes → ``{"$b64": base64}``; NaN and ±Inf → ``{"$float": 16 hex
digits of the big-endian bits}``; a str with a lone surrogate → ``{"$surrogate": base64 of its
surrogatepass UTF-8}``, as a dict key ``"$surrogate:<base64>"``; any other key that starts with
``$`` gets one more ``$`` in front.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from math import isfinite
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from engine.kinds import ROLES
from eventlog.limits import DEPTH_MAX, EVENT_BLOBS_MAX, INT_MAX, INT_MIN, POSITION_MAX, TIME_MAX
from eventlog.record import HEAD_MOVE

if TYPE_CHECKING:
    from engine.events import Event

LINE_KEYS: Final = (
    "tenant",
    "session",
    "sequence",
    "parent",
    "branch",
    "kind",
    "id",
    "time_us",
    "recorded_us",
    "tokens",
    "run_id",
    "turn_id",
    "speech_id",
    "request_id",
    "opening",
    "base",
    "metadata",
    "blobs",
    "redacted",
    "role",
    "body",
)
"""Every key of an export line, in the order in which they are written."""

_OMITTED_EMPTY: Final = frozenset(
    {"tenant", "opening", "tokens", "blobs", "redacted"}
)  # empty means not stated
_OTHERWISE: Final = ("base", "branch", "role")  # not simply what the event has of that name
_TEXT_KEYS: Final = ("tenant", "id", "run_id", "turn_id", "speech_id", "request_id")
_COUNT_KEYS: Final = ("sequence", "parent", "branch", "recorded_us", "tokens")

_KNOWN: Final = frozenset(LINE_KEYS)
_DOUBLE: Final = Struct(">d")
_BLOB: Final = re.compile("[0-9a-f]{32}(?:[0-9a-f]{32})?")
_KEY_PREFIX: Final = "$surrogate:"
_WRAPPERS: Final = frozenset({"$b64", "$float", "$surrogate"})
_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

# DEL and C1, soft hyphen, zero-width and bidi controls, line and paragraph separators, other
# invisible format characters and tags. C0 is escaped by JSON itself. The joiners U+200C and U+200D
# stay: Persian, Hindi and emoji need them and they move nothing.
_INVISIBLE: Final = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)


def escape(value: object) -> Any:
    """The value as JSON can carry it.

    Args:
        value: Plain data as it is stored in a body.

    Raises:
        ValueError: A type that no body holds.
    """
    kind = type(value)
    if kind is str:
        return _escape_text(value)  # type: ignore[arg-type]
    if kind is dict:
        return {_escape_key(key): escape(item) for key, item in value.items()}  # type: ignore[attr-defined]
    if kind is list:
        return [escape(item) for item in value]  # type: ignore[attr-defined]
    if kind is float:
        if isfinite(value):  # type: ignore[arg-type]
            return value
        return {"$float": _DOUBLE.pack(value).hex()}
    if kind is bytes:
        return {"$b64": b64encode(value).decode("ascii")}  # type: ignore[arg-type]
    if kind is int or kind is bool or value is None:
        return value
    raise ValueError(f"type {kind.__name__} cannot be exported")


def unescape(value: object) -> Any:
    """The stored value of what ``escape`` gave, read from untrusted JSON.

    Raises:
        ValueError: A malformed or non-canonical escape, a value out of range, or too deep.
    """
    return _unescape(value, 0)


def encode_line(mapping: Mapping[str, Any]) -> str:
    """One line of JSON without its newline; the values must be escaped already.

    Raises:
        ValueError: A value that JSON cannot carry.
    """
    try:
        text = _ENCODE(mapping)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if text.isascii() and "\x7f" not in text:
        return text
    return _INVISIBLE.sub(_as_json_escape, text)


def event_to_line(
    event: Event,
    opening: Mapping[str, Any] | None = None,
    blobs: Sequence[str] | None = None,
    base: Mapping[str, Any] | None = None,
    branch: int | None = None,
) -> str:
    """The export line of an event, without its newline.

    It holds no position and no id made by the store: these belong to one store, the line to none.

    Args:
        event: The event.
        opening: Facts given when the session was created; None takes the event's own.
        blobs: Names of the contents that it refers to (``contents``), which lines before tell;
            None takes the addresses, which only a store that has them can load.
        base: Of a session's first event after a purge: what the purged ones added up to.
        branch: Its branch, where no other event tells it (``forks``).
    """
    return encode_line(line_mapping(event, opening, blobs, base, branch))


def line_mapping(
    event: Event,
    opening: Mapping[str, Any] | None = None,
    blobs: Sequence[str] | None = None,
    base: Mapping[str, Any] | None = None,
    branch: int | None = None,
) -> dict[str, Any]:
    """The export line of an event as a mapping, escaped and in the order of ``LINE_KEYS``."""
    values = {key: getattr(event, key) for key in LINE_KEYS if key not in _OTHERWISE}
    if event.redacted:  # of others the body tells it
        values["role"] = event.role
    values["parent"] = parent_in_line(event)
    values["branch"] = branch
    values["base"] = base
    values["blobs"] = [address.hex() for address in event.blobs] if blobs is None else list(blobs)
    if opening is not None:
        values["opening"] = dict(opening)
    return escape_line(values)


def parent_in_line(event: Event) -> int | None:
    """The parent as a line states it: -1 for an event that begins a path of its own.

    A session's first event need not say so, as there is nothing that it could follow.
    """
    if event.parent is None and (event.opens_branch or event.kind_code == HEAD_MOVE):
        return -1
    return event.parent


def escape_line(values: Mapping[str, Any]) -> dict[str, Any]:
    """The line of plain values: what is None or missing is left out, the rest escaped.

    The opposite of ``line_to_event``.

    Args:
        values: Any of ``LINE_KEYS`` and their values.
    """
    line: dict[str, Any] = {}
    for key in LINE_KEYS:
        item = values.get(key)
        is_beginning = key == "opening" and values.get("sequence")  # of what was not purged
        if item is not None and (item or key not in _OMITTED_EMPTY or is_beginning):
            line[key] = escape(item)
    return line


def line_to_event(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Validate one decoded line and give its values back unescaped.

    Args:
        mapping: A line as ``json.loads`` gives it.

    Returns:
        A dict with every key of ``LINE_KEYS``; what the line does not state is None, the tenant
        ``""``, and ``redacted`` False.

    Raises:
        ValueError: With the reason; names and sizes are left to the store to judge.
    """
    for key in mapping:
        if key not in _KNOWN:
            raise ValueError(f"unknown key {key!a}")
    event: dict[str, Any] = dict.fromkeys(LINE_KEYS)
    event.update(mapping)
    for key in ("session", "kind"):
        if type(event[key]) is not str or not event[key]:
            raise ValueError(f"{key} must be a string that is not empty")
    for key in _TEXT_KEYS:
        item = event[key]
        if item is not None:
            if type(item) is dict:
                item = event[key] = unescape(item)
            if type(item) is not str:
                raise ValueError(f"{key} must be a string")
    event["tenant"] = event["tenant"] or ""
    for key in _COUNT_KEYS:
        item = event[key]
        least = -1 if key == "parent" else 0
        if item is not None and (type(item) is not int or not least <= item <= POSITION_MAX):
            raise ValueError(f"{key} must be an integer from {least} to 2**63-1")
    time_us = event["time_us"]
    if time_us is not None and (
        type(time_us) is not int or not -TIME_MAX - 1 <= time_us <= TIME_MAX
    ):
        raise ValueError("time_us must be an integer from -2**63 to 2**63-1")
    sequence, parent = event["sequence"], event["parent"]
    if sequence is not None and parent is not None and parent >= sequence:
        raise ValueError(f"parent {parent} does not come before sequence {sequence}")
    for key in ("opening", "base", "metadata"):
        item = event[key]
        if item is not None:
            item = event[key] = unescape(item)
            if type(item) is not dict:
                raise ValueError(f"{key} must be an object")
    blobs = event["blobs"]
    if blobs is not None and not (
        type(blobs) is list
        and 1 <= len(blobs) <= EVENT_BLOBS_MAX
        and all([type(name) is str and _BLOB.fullmatch(name) for name in blobs])
    ):
        raise ValueError(
            f"blobs must be 1 to {EVENT_BLOBS_MAX} names of 32 or 64 lower-case hex digits"
        )
    event["body"] = unescape(event["body"])
    _check_redacted(event)
    return event


def _check_redacted(event: dict[str, Any]) -> None:
    """Raise for a line that says of an event that it was redacted, and tells its content."""
    event["redacted"] = False if event["redacted"] is None else event["redacted"]
    if type(event["redacted"]) is not bool:
        raise ValueError("redacted must be true or false")
    for key in ("body", "metadata", "blobs"):
        if event["redacted"] and event[key] is not None:
            raise ValueError(f"a redacted event has no {key}")
    role = event["role"]
    if role is not None and (
        not event["redacted"]
        or event["kind"] != "message"
        or type(role) is not str
        or role not in ROLES
    ):
        raise ValueError("role is one of the usual roles, of a redacted message")


def _as_json_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _is_text(value: str) -> bool:
    """Whether a str has UTF-8, that is, no lone surrogate."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _surrogate_base64(value: str) -> str:
    return b64encode(value.encode("utf-8", "surrogatepass")).decode("ascii")


def _escape_text(value: str) -> str | dict[str, str]:
    return value if _is_text(value) else {"$surrogate": _surrogate_base64(value)}


def _escape_key(key: object) -> str:
    if type(key) is not str:
        raise ValueError(f"key of type {type(key).__name__} cannot be exported")
    if not _is_text(key):
        return _KEY_PREFIX + _surrogate_base64(key)
    return "$" + key if key.startswith("$") else key


def _unescape(value: object, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        if not _is_text(value):  # type: ignore[arg-type]
            raise ValueError("a lone surrogate must be written as $surrogate")
        return value
    if kind is dict or kind is list:
        # A wrapper stands for a scalar, so it may lie one level below the deepest container.
        if kind is dict and len(value) == 1:  # type: ignore[arg-type]
            ((key, item),) = value.items()  # type: ignore[attr-defined]
            if key in _WRAPPERS:
                return _unwrap(key, item)
        if depth == DEPTH_MAX:
            raise ValueError(f"nested deeper than {DEPTH_MAX} levels")
        if kind is list:
            return [_unescape(item, depth + 1) for item in value]  # type: ignore[attr-defined]
        plain: dict[str, Any] = {}
        for key, item in value.items():  # type: ignore[attr-defined]
            plain[_unescape_key(key)] = _unescape(item, depth + 1)
        return plain
    if kind is float:
        if not isfinite(value):  # type: ignore[arg-type]
            raise ValueError("NaN and infinities must be written as $float")
        return value
    if kind is int:
        if not INT_MIN <= value <= INT_MAX:  # type: ignore[operator]
            raise ValueError("an integer out of the range -2**63 to 2**64-1")
        return value
    if kind is bool or value is None:
        return value
    raise ValueError(f"type {kind.__name__} is not JSON")


def _unwrap(key: str, item: object) -> bytes | float | str:
    if type(item) is not str:
        raise ValueError(f"{key} must hold a string")
    if key == "$float":
        if not re.fullmatch("[0-9a-f]{16}", item):
            raise ValueError("$float must hold 16 lower-case hex digits")
        number: float = _DOUBLE.unpack(bytes.fromhex(item))[0]
        if isfinite(number):
            raise ValueError("$float is for NaN and infinities only")
        return number
    data = canonical_base64(key, item)
    return data if key == "$b64" else _decode_surrogate(data)


def _unescape_key(key: object) -> str:
    if type(key) is not str or not _is_text(key):
        raise ValueError("a key with a lone surrogate must be written as $surrogate:")
    if not key.startswith("$"):
        return key
    if key.startswith(_KEY_PREFIX):
        return _decode_surrogate(canonical_base64("$surrogate:", key.removeprefix(_KEY_PREFIX)))
    if key.startswith("$$"):
        return key[1:]
    raise ValueError(f"key {key!a} starts with a single $ and is no escape")


def canonical_base64(key: str, text: str) -> bytes:
    """The bytes of base64 text in its one spelling.

    Raises:
        ValueError: It is another text; names the key.
    """
    try:
        data = b64decode(text, validate=True)
    except (Base64Error, ValueError) as error:
        raise ValueError(f"{key} holds no base64") from error
    if b64encode(data).decode("ascii") != text:
        raise ValueError(f"{key} holds base64 with stray bits")
    return data


def _decode_surrogate(data: bytes) -> str:
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise ValueError("$surrogate holds no text") from error
    if _is_text(text):
        raise ValueError("$surrogate is for text with a lone surrogate only")
    return text
