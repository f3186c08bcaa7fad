"""``turnlog stats``: what a store holds and what it takes on disk and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.store import KINDS
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import open_to_read, sizes

_BOUND = "_max"
_OWN = "  (with those that hold documents, aliases and checkpoints)"
_WIDTH = 26
_SIZE = 10


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
    for key, text in _rows(plain):
        if key == "sessions":
            text += _OWN
        screen.line((f"{key:<{_WIDTH}}", "bold"), text)
    for name, group in facts.items():
        if not isinstance(group, dict):
            continue
        screen.line((name, "bold"))
        rows = _kinds(facts) if name == "bytes" else _rows(group)
        for key, text in rows:
            screen.line(f"  {key:<{_WIDTH - 2}}", text)
    return ExitCode.OK


def _kinds(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Bytes by kind, the largest first, with their share of the file; those without any left out.

    Pages that are free come last: what comes next is written there.
    """
    whole = max(1, facts["file_bytes"])
    found = sorted(facts["bytes"].items(), key=lambda item: (-item[1], item[0]))
    for name, size in [*found, ("free", facts["free_bytes"])]:
        if size:
            text = f"{terminal.size(size):>{_SIZE}} {100 * size / whole:>5.1f} %"
            yield name, f"{text}  {KINDS.get(name, 'pages for what comes')}"


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if key.endswith(_BOUND) and key.removesuffix(_BOUND) in facts:
            continue
        is_bytes = key.endswith("_bytes")
        text = _text(value, is_bytes)
        if key + _BOUND in facts:
            text += f" of {_text(facts[key + _BOUND], is_bytes)}"
        if key in ("by_codec", "by_media_type") and isinstance(value, dict):
            yield key, ""
            yield from ((f"  {name}", _group(group)) for name, group in value.items())
            continue
        yield key, text


def _group(group: dict[str, int]) -> str:
    """Blobs of one codec or type."""
    content, stored = group["content_bytes"], group["stored_bytes"]
    ratio = f", {content / stored:.2f} times smaller" if stored else ""
    return f"{group['count']:,}: {terminal.size(content)} in {terminal.size(stored)}{ratio}"


def _text(value: object, is_size: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return terminal.size(value) if is_size else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, dict):
        return ", ".join([f"{key} {_text(each, False)}" for key, each in value.items()])
    return str(value)
