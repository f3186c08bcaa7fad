"""``turnlog branches``: the branches of a session, as the tree that they make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engine import Branch
from engine.export import escape
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import existing_session, open_to_read
from turnlog.transcript import time_text

_HEADER = ("BRANCH", "FOLLOWS", "LEAF", "LAST EVENT (UTC)", "NAMES")
_DEPTH_MAX: Final = 16  # of the drawing; what lies deeper is not moved further to the right


def run(path: Path, name: str, *, tenant: str, as_json: bool) -> ExitCode:
    """Write one line for each branch."""
    screen = terminal.Screen()
    with open_to_read(path) as store:
        branches = existing_session(store, tenant, name).branches()
    if as_json:
        for branch in branches:
            screen.data(_mapping(branch))
        return ExitCode.OK
    rows = [_row(branch, depth) for branch, depth in _as_tree(branches)]
    screen.table(_HEADER, rows, right=frozenset({1, 2}))
    if not rows:
        terminal.note("no branches")
    return ExitCode.OK


def _as_tree(branches: list[Branch]) -> Iterator[tuple[Branch, int]]:
    """Each branch and how deep it lies, those that leave it below it."""
    below: dict[int | None, list[Branch]] = {}
    for branch in branches:
        below.setdefault(branch.parent_branch, []).append(branch)
    waiting = [(branch, 0) for branch in below.get(None, ())[::-1]]
    while waiting:
        branch, depth = waiting.pop()
        yield branch, depth
        waiting += [(each, depth + 1) for each in below.get(branch.number, ())[::-1]]


def _row(branch: Branch, depth: int) -> tuple[str, ...]:
    indent = "  " * min(depth, _DEPTH_MAX)
    return (
        f"{indent}{branch.number}{' *' if branch.is_head else ''}",
        "-" if branch.parent is None else f"{branch.parent}",
        "-" if branch.leaf is None else f"{branch.leaf}",
        time_text(branch.updated_us),
        ", ".join(terminal.quote(name) for name in branch.names),
    )


def _mapping(branch: Branch) -> dict[str, object]:
    return {
        "branch": branch.number,
        "names": escape(list(branch.names)),
        "parent": branch.parent,
        "parent_branch": branch.parent_branch,
        "leaf": branch.leaf,
        "updated_us": branch.updated_us,
        "is_head": branch.is_head,
    }
