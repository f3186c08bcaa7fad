"""``turnlog configure``: shows and changes the options that are stored in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine import Store
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import open_to_read, told_of


def run(path: Path, changes: dict[str, Any], *, as_json: bool) -> ExitCode:
    """Change options if any are given, and show all of them."""
    screen = terminal.Screen()
    if changes:
        with told_of(path), Store.open(path, create=False) as store:
            options = store.configure(**changes)
    else:
        with open_to_read(path) as store:
            options = store.configure()
    if as_json:
        screen.data(options)
        return ExitCode.OK
    width = 2 + max(len(name) for name in options)
    for name, value in options.items():
        screen.line((f"{name:<{width}}", "bold"), _text(value))
    return ExitCode.OK


def _text(value: bool | int | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}"
