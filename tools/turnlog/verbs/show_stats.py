"""``turnlog stats``: what a store holds and what it takes on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import open_to_read, sizes

_BOUND = "_max"


def run(path: Path, *, as_json: bool) -> ExitCode:
    """Write the store's own figures, each one of memory against its bound."""
    screen = terminal.Screen()
    with open_to_read(path) as store:
        facts = store.stats()
    facts |= sizes(facts)
    if as_json:
        screen.data(facts)
        return ExitCode.OK
    plain = {key: value for key, value in facts.items() if not isinstance(value, dict)}
    groups = {key: value for key, value in facts.items() if isinstance(value, dict)}
    width = 2 + max(len(key) for group in (plain, *groups.values()) for key in group)
    for key, text in _rows(plain, is_size=False):
        screen.line((f"{key:<{width}}", "bold"), text)
    for name, group in groups.items():
        screen.line((name, "bold"))
        for key, text in _rows(group, is_size=name == "bytes"):
            screen.line(f"  {key:<{width - 2}}", text)
    return ExitCode.OK


def _rows(facts: dict[str, Any], *, is_size: bool) -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if key.endswith(_BOUND) and key.removesuffix(_BOUND) in facts:
            continue
        is_bytes = is_size or key.endswith("_bytes")
        text = _text(value, is_bytes)
        if key + _BOUND in facts:
            text += f" of {_text(facts[key + _BOUND], is_bytes)}"
        yield key, text


def _text(value: object, is_size: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return terminal.size(value) if is_size else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, dict):
        return ", ".join([f"{key} {_text(each, False)}" for key, each in value.items()])
    return str(value)
