"""Sessions that branch, against the same done with one indexed SQLite query on the same rows.

``path_first`` and ``path_last`` are the first and the last page of a chain of 100,000 events with
three forks, ``path_last_vs_first`` compares the two. ``alternating_2`` and ``alternating_16`` are a
page of 100,000 events that 2 or 16 branches take in turn, against a page of a session with one
branch; ``alternating_bytes`` is what an event takes there. ``branches`` lists 1,400 leaves of
14,000 events. Both sides decode what they read.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.harness import (
    RefusedError,
    Report,
    Settings,
    comparison,
    fresh_directory,
    interleave,
    paired_ratio,
    progress,
)
from bench.targets import Result
from bench.workloads import Message, chat_messages
from engine import Session, Store

FIGURES: Final = (
    "path_first",
    "path_last",
    "path_last_vs_first",
    "alternating_2",
    "alternating_16",
    "alternating_bytes",
    "branches",
)
_EVENTS: Final = 100_000
_FORKS: Final = (20_000, 50_000, 80_000)  # events that the chain is left at
_FORK_EVENTS: Final = 10  # of what leaves it
_PAGE: Final = 100
_READS: Final = 50  # of one round
_ALTERNATING: Final = (1, 2, 16)
_LEAVES: Final = 1_400
_BRANCH_EVENTS: Final = 10
_SESSION: Final = "talk"
_PIECE: Final = 4_096

_SCHEMA: Final = """
CREATE TABLE event (
    session INTEGER NOT NULL, sequence INTEGER NOT NULL, branch INTEGER NOT NULL, parent INTEGER,
    recorded INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (session, sequence)
) WITHOUT ROWID;
CREATE TABLE branch (
    session INTEGER NOT NULL, number INTEGER NOT NULL, parent INTEGER, parent_branch INTEGER,
    leaf INTEGER NOT NULL, updated INTEGER NOT NULL, PRIMARY KEY (session, number)
) WITHOUT ROWID;
"""
_INDEXES: Final = """
CREATE UNIQUE INDEX event_branch ON event (session, branch, sequence);
CREATE INDEX event_parent ON event (session, parent);
"""
_PATH: Final = (
    "SELECT sequence, parent, recorded, body FROM event "
    "WHERE session = 1 AND branch = ? AND sequence BETWEEN ? AND ? ORDER BY sequence LIMIT ?"
)
_LEAVES_OF_EVENTS: Final = (
    "SELECT sequence, recorded FROM event AS one WHERE session = 1 AND NOT EXISTS "
    "(SELECT 1 FROM event AS other WHERE other.session = 1 AND other.parent = one.sequence)"
)
_LEAVES_OF_TABLE: Final = (
    "SELECT number, parent, parent_branch, leaf, updated FROM branch WHERE session = 1"
)


@dataclass(frozen=True, slots=True)
class _Row:
    """One event of the made session: the branch it is on, and the parent, -1 for none."""

    branch: int
    parent: int
    body: Message


def run(settings: Settings, report: Report) -> None:
    """Measure the chain, the alternating branches and the leaves."""
    messages = chat_messages(20_000)
    rounds = 7 if settings.quick else 21
    if any(map(settings.wants, FIGURES[:3])):
        _chain(settings, report, messages, rounds)
    if any(map(settings.wants, FIGURES[3:6])):
        _alternating(settings, report, messages, rounds)
    if settings.wants("branches"):
        _leaves(settings, report, messages, rounds)


# What is read


def _chain_rows(messages: Sequence[Message]) -> Iterator[_Row]:
    """A chain, and behind it what leaves it at three of its events."""
    chain = _EVENTS - len(_FORKS) * _FORK_EVENTS
    for number in range(chain):
        yield _Row(0, number - 1, messages[number % len(messages)])
    sequence = chain
    for branch, parent in enumerate(_FORKS, 1):
        for _ in range(_FORK_EVENTS):
            yield _Row(branch, parent, messages[sequence % len(messages)])
            parent, sequence = sequence, sequence + 1


def _alternating_rows(messages: Sequence[Message], branches: int) -> Iterator[_Row]:
    """Branches with roots of their own, an event of each in turn."""
    for number in range(_EVENTS):
        yield _Row(number % branches, max(-1, number - branches), messages[number % len(messages)])


def _leaf_rows(messages: Sequence[Message]) -> Iterator[_Row]:
    """A branch at every tenth event of the branch before it, and on."""
    for number in range(_LEAVES * _BRANCH_EVENTS):
        branch, place = divmod(number, _BRANCH_EVENTS)
        parent = number - 1 if place or not branch else number - _BRANCH_EVENTS // 2
        yield _Row(branch, parent, messages[number % len(messages)])


# Both sides


class _Sides:
    """A store and an SQLite file with the same session, open for reading."""

    def __init__(self, directory: Path, rows: Callable[[], Iterator[_Row]]) -> None:
        directory.mkdir()
        self.path = directory / "store"
        with Store.open(self.path) as store:
            store.load(_lines(rows()), piece_events=_PIECE)
            store.flush()
            self.byte_count = _bytes_used(store)
        self.store = Store.open(self.path, create=False)
        self.session: Session = self.store.session(_SESSION)
        self.sqlite = sqlite3.connect(directory / "rows.sqlite")
        self.sqlite.executescript(_SCHEMA)
        self.sqlite.executemany("INSERT INTO event VALUES (1, ?, ?, ?, ?, ?)", _records(rows()))
        self.sqlite.executescript(_INDEXES)
        self.sqlite.executemany("INSERT INTO branch VALUES (1, ?, ?, ?, ?, ?)", _tips(rows()))
        self.sqlite.commit()
        self.sqlite.execute("ANALYZE")

    def close(self) -> None:
        self.store.close()
        self.sqlite.close()

    def page(self, leaf: int, first: int, branch: int) -> tuple[Callable[[], list[Any]], ...]:
        """What reads a page on each side; bodies are decoded."""
        begun = self.session.path(leaf, limit=1).cursor
        assert begun is not None
        cursor = f"{begun.rpartition('.')[0]}.{first}"  # as if the page before ended there

        def ours() -> list[Any]:
            found = self.session.path(cursor=cursor, limit=_PAGE).events
            return [(each.sequence, each.parent, each.body) for each in found]

        def theirs() -> list[Any]:
            found = self.sqlite.execute(_PATH, (branch, first, leaf, _PAGE)).fetchall()
            loads = json.loads
            return [(sequence, parent, loads(body)) for sequence, parent, _, body in found]

        return ours, theirs


def _lines(rows: Iterator[_Row]) -> Iterator[dict[str, Any]]:
    for sequence, row in enumerate(rows):
        line = {"session": _SESSION, "sequence": sequence, "kind": "message", "body": row.body}
        if row.parent >= 0 or sequence:
            line["parent"] = row.parent
        yield line


def _records(rows: Iterator[_Row]) -> Iterator[tuple[Any, ...]]:
    dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    for sequence, row in enumerate(rows):
        parent = None if row.parent < 0 else row.parent
        yield sequence, row.branch, parent, 1_700_000_000_000_000 + sequence, dump(row.body)


def _tips(rows: Iterator[_Row]) -> list[tuple[Any, ...]]:
    first: dict[int, _Row] = {}
    last: dict[int, int] = {}
    branch_of: list[int] = []
    for sequence, row in enumerate(rows):
        first.setdefault(row.branch, row)
        last[row.branch] = sequence
        branch_of.append(row.branch)
    return [
        (
            branch,
            None if row.parent < 0 else row.parent,
            None if row.parent < 0 else branch_of[row.parent],
            last[branch],
            1_700_000_000_000_000 + last[branch],
        )
        for branch, row in first.items()
    ]


def _bytes_used(store: Store) -> int:
    found = store.stats()
    return int(found["file_bytes"]) - int(found["free_bytes"])


def _seconds(read: Callable[[], list[Any]]) -> Callable[[], float]:
    def taken() -> float:
        start = time.perf_counter()
        for _ in range(_READS):
            read()
        return (time.perf_counter() - start) / _READS

    return taken


def _require(ours: list[Any], theirs: list[Any], count: int) -> None:
    if ours != theirs or len(ours) != count:
        raise RefusedError("the store and SQLite do not give the same")


# Figures


def _chain(settings: Settings, report: Report, messages: list[Message], rounds: int) -> None:
    progress(f"path: a chain of {_EVENTS:,} events with {len(_FORKS)} forks")
    with fresh_directory(settings) as directory:
        sides = _Sides(directory / "chain", lambda: _chain_rows(messages))
        leaf = _EVENTS - len(_FORKS) * _FORK_EVENTS - 1
        reads: dict[str, Callable[[], float]] = {}
        for name, first in (("first", 0), ("last", leaf + 1 - _PAGE)):
            ours, theirs = sides.page(leaf, first, 0)
            _require(ours(), theirs(), _PAGE)
            reads |= {f"ours_{name}": _seconds(ours), f"theirs_{name}": _seconds(theirs)}
        values = interleave(reads, rounds)
        sides.close()
    for name in ("first", "last"):
        mine, yardstick = values[f"ours_{name}"], values[f"theirs_{name}"]
        report.figures[f"path_{name}"] = comparison(mine, yardstick, unit="s")
        report.results.append(Result(f"path_{name}", paired_ratio(mine, yardstick)))
    both = values["ours_last"], values["ours_first"]
    report.figures["path_last_vs_first"] = comparison(*both, unit="s")
    report.results.append(Result("path_last_vs_first", paired_ratio(*both)))


def _alternating(settings: Settings, report: Report, messages: list[Message], rounds: int) -> None:
    reads: dict[str, Callable[[], float]] = {}
    opened: dict[int, _Sides] = {}
    with fresh_directory(settings) as directory:
        for count in _ALTERNATING:
            progress(f"alternating: {_EVENTS:,} events between {count} branches")
            sides = opened[count] = _Sides(
                directory / f"{count}", partial(_alternating_rows, messages, count)
            )
            leaf = _EVENTS - count
            first = leaf + count - _EVENTS // 2 // count * count
            ours, theirs = sides.page(leaf, first, 0)
            _require(ours(), theirs(), _PAGE)
            reads |= {f"ours_{count}": _seconds(ours), f"theirs_{count}": _seconds(theirs)}
        values = interleave(reads, rounds)
        for sides in opened.values():
            sides.close()
    for count in _ALTERNATING[1:]:
        both = values[f"ours_{count}"], values["ours_1"]
        sqlite = comparison(values[f"ours_{count}"], values[f"theirs_{count}"], unit="s")
        report.figures[f"alternating_{count}"] = {
            **comparison(*both, unit="s"),
            "sqlite_ratio": sqlite["ratio"],
        }
        report.results.append(Result(f"alternating_{count}", paired_ratio(*both)))
    per_event = {count: sides.byte_count / _EVENTS for count, sides in opened.items()}
    report.figures["alternating_bytes"] = {
        f"bytes_per_event_{count}": round(value, 2) for count, value in per_event.items()
    }
    worst = max(per_event[count] / per_event[1] for count in _ALTERNATING[1:])
    report.results.append(Result("alternating_bytes", worst))


def _leaves(settings: Settings, report: Report, messages: list[Message], rounds: int) -> None:
    progress(f"branches: {_LEAVES:,} leaves of {_LEAVES * _BRANCH_EVENTS:,} events")
    with fresh_directory(settings) as directory:
        sides = _Sides(directory / "leaves", lambda: _leaf_rows(messages))

        def ours() -> list[Any]:
            return sides.session.branches()

        def theirs() -> list[Any]:
            return sides.sqlite.execute(_LEAVES_OF_EVENTS).fetchall()

        def table() -> list[Any]:
            return sides.sqlite.execute(_LEAVES_OF_TABLE).fetchall()

        leaves = [each.leaf for each in ours()]
        _require(leaves, [sequence for sequence, _ in theirs()], _LEAVES)
        _require(leaves, [row[3] for row in table()], _LEAVES)
        reads = {"ours": ours, "theirs": theirs, "table": table}
        values = interleave({name: _seconds(read) for name, read in reads.items()}, rounds)
        sides.close()
    report.figures["branches"] = {
        **comparison(values["ours"], values["theirs"], unit="s"),
        "table_ratio": comparison(values["ours"], values["table"], unit="s")["ratio"],
    }
    report.results.append(Result("branches", paired_ratio(values["ours"], values["theirs"])))
