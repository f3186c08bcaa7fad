"""What operations give, as values that are equal only if stores gave the same."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

Exact = Any  # what ``exact`` gives, and tuples of plain values that hold such


@dataclass(frozen=True, slots=True)
class Placed:
    """An append is in."""

    first: int
    last: int
    position: int
    event_id: str
    already: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not, and why: the error's name."""

    error: str


def told_body(kind: str, body: Any) -> Any:
    """A body as it can be compared: without processes and times, and what may come in any order.

    What a purge leaves is told by what can be asked afterwards, not by the event.
    """
    if kind == "base":
        return None
    if kind == "documents" and "delete" in body:
        return {**body, "delete": sorted(body["delete"])}
    if kind in ("runs", "tool_calls") and "set" in body:
        return {**body, "set": {key: _without_times(each) for key, each in body["set"].items()}}
    return body


def _without_times(value: dict[str, Any]) -> dict[str, Any]:
    kept = {key: each for key, each in value.items() if key not in ("started_us", "opened_us")}
    return {**kept, "owner": True} if "owner" in kept else kept


def exact(value: Any) -> Exact:
    """A value that is equal for two values only if they agree in types, bits and key order.

    ``repr`` says all of that but a NaN's bits, and is quick.
    """
    text = repr(value)
    return (text, _nans(value)) if "nan" in text else text


def _nans(value: Any) -> tuple[bytes, ...]:
    kind = type(value)
    if kind is float:
        return () if value == value else (struct.pack(">d", value),)
    if kind is dict:
        value = list(value.values())
    elif kind is not list:
        return ()
    return tuple([bits for item in value for bits in _nans(item)])


def content(value: Any) -> Exact:
    """As ``exact``, but the order of keys does not count."""
    kind = type(value)
    if kind is dict:
        items = [(key, content(item)) for key, item in value.items()]
        return ("dict", tuple(sorted(items, key=lambda each: each[0])))
    if kind is list:
        return ("list", tuple(map(content, value)))
    return exact(value)
