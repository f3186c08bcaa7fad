"""``turnlog stats``: what a store holds and what it takes on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import open_to_read


def run(path: Path, *, as_json: bool) -> ExitCode:
    """Write the store's own figures, nested ones under their group's name."""
    screen = terminal.Screen()
    with open_to_read(path) as store:
        facts = store.stats()
    if as_json:
        screen.data(facts)
        return ExitCode.OK
    rows = list(_rows(facts, ""))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        screen.line((f"{name:<{width}}  ", "bold"), text)
    return ExitCode.OK


def _rows(facts: dict[str, Any], group: str) -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if isinstance(value, dict):
            yield from _rows(value, f"{group}{key}.")
        else:
            yield f"{group}{key}", _text(key, value)


def _text(key: str, value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        if key.endswith("bytes") and value >= 1024:
            return f"{value:,} ({value / 1024 / 1024:.1f} MiB)"
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return str(value)
