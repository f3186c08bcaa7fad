"""Export lines (decisions/0002), written from that text alone."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

from tests.model.operations import New


def line_of(
    new: New,
    session: str,
    sequence: int,
    parent: int | None,
    opening: dict[str, Any] | None = None,
    branch: int | None = None,
) -> dict[str, Any]:
    """An export line as ``json.loads`` gives it, without tenant and recorded time."""
    line: dict[str, Any] = {
        "session": session,
        "sequence": sequence,
        "parent": parent,
        "branch": branch,
        "kind": new.kind,
        "id": new.id,
        "time_us": new.time_us,
        "tokens": new.tokens or None,
        "run_id": new.run_id,
        "turn_id": new.turn_id,
        "speech_id": new.speech_id,
        "request_id": new.request_id,
        "opening": None if not opening else escape(opening),
        "blobs": len(new.blobs) or None,  # whose names are the store's
        "redacted": new.redacted or None,
        "role": new.role,
        "metadata": None if new.metadata is None else escape(new.metadata),
        "body": escape(new.body),
    }
    return {name: value for name, value in line.items() if value is not None}


def escape(value: Any) -> Any:
    """Plain data as JSON carries it."""
    kind = type(value)
    if kind is dict:
        return {_escape_key(key): escape(item) for key, item in value.items()}
    if kind is list:
        return list(map(escape, value))
    if kind is bytes:
        return {"$b64": base64.b64encode(value).decode()}
    if kind is float and not math.isfinite(value):
        return {"$float": struct.pack(">d", value).hex()}
    if kind is str and _is_broken(value):
        return {"$surrogate": _broken_base64(value)}
    return value


def unescape(value: Any) -> Any:
    """The opposite."""
    kind = type(value)
    if kind is list:
        return list(map(unescape, value))
    if kind is not dict:
        return value
    if len(value) == 1:
        [(key, item)] = value.items()
        if key == "$b64":
            return base64.b64decode(item)
        if key == "$float":
            return struct.unpack(">d", bytes.fromhex(item))[0]
        if key == "$surrogate":
            return base64.b64decode(item).decode("utf-8", "surrogatepass")
    return {_unescape_key(key): unescape(item) for key, item in value.items()}


def _is_broken(text: str) -> bool:
    return any(0xD800 <= ord(sign) <= 0xDFFF for sign in text)


def _broken_base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def _escape_key(key: str) -> str:
    if _is_broken(key):
        return "$surrogate:" + _broken_base64(key)
    return "$" + key if key.startswith("$") else key


def _unescape_key(key: str) -> str:
    if key.startswith("$surrogate:"):
        return base64.b64decode(key[len("$surrogate:") :]).decode("utf-8", "surrogatepass")
    return key[1:] if key.startswith("$") else key
