"""Listing the newest 20 of 10,000 sessions by user, against one indexed SQLite query.

Both sides decode their rows: of SQLite's, the columns and the JSON of the metadata; of ours, all
that a ``SessionInfo`` tells. SQLite's table holds what a listing shows, one row a session, with an
index on (user, last position), written once; ours is what appends made it. The users are asked for
in turn. ``catalog_first`` tells, without a target, what the first question after an opening costs,
when memory holds nothing, against SQLite's first one.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.fill import fill
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
from bench.workloads import chat_messages, interleaving, session_names
from engine import SessionInfo, Store

FIGURES: Final = ("catalog_by_user", "catalog_newest", "catalog_first")
_SESSIONS: Final = 10_000
_USERS: Final = 100
_TURNS: Final = 8  # messages of a session, on average
_NEWEST: Final = 20
_COLUMNS: Final = (
    "tenant, name, number, user_id, title, metadata, created_us, updated_us, event_count, "
    "message_count, head, first_sequence, last_sequence, last_position, loose_count, status"
)
_SCHEMA: Final = f"""
CREATE TABLE session ({_COLUMNS.replace("number", "number INTEGER PRIMARY KEY")});
CREATE INDEX session_by_user ON session (user_id, last_position);
CREATE INDEX session_by_position ON session (last_position);
"""
_BY_USER: Final = (
    f"SELECT {_COLUMNS} FROM session WHERE user_id = ? ORDER BY last_position DESC LIMIT ?"
)
_OF_ALL: Final = f"SELECT {_COLUMNS} FROM session ORDER BY last_position DESC LIMIT ?"


@dataclass(frozen=True, slots=True)
class _Filled:
    """A store and a SQLite file that hold the same sessions."""

    store: Path
    rows: Path


def run(settings: Settings, report: Report) -> None:
    """Fill one store, and list from it in turn with the yardstick."""
    progress(f"{_SESSIONS:,} sessions of {_USERS} users, {_SESSIONS * _TURNS:,} messages")
    rounds = 5 if settings.quick else 15
    with fresh_directory(settings) as directory:
        filled = _fill(directory)
        if settings.wants("catalog_first"):
            _first(report, filled, rounds)
        if settings.wants("catalog_by_user"):
            _in_turn(report, filled, rounds, "catalog_by_user", _users())
        if settings.wants("catalog_newest"):
            _in_turn(report, filled, rounds, "catalog_newest", [None] * _USERS)


def _users() -> list[str | None]:
    return [f"user-{number}" for number in range(_USERS)]


def _fill(directory: Path) -> _Filled:
    store_path, rows_path = directory / "store", directory / "rows.sqlite"
    names = session_names(_SESSIONS)
    with Store.open(store_path) as store:
        for number, name in enumerate(names):
            session = store.session(
                name,
                user_id=f"user-{number % _USERS}",
                title=f"call {number}",
                metadata={"channel": "phone", "priority": number % 3},
            )
            ack = session.create()
            if not number % 1_000:
                ack.result()
        order = interleaving(_SESSIONS, _SESSIONS * _TURNS)
        fill(store, names, order, chat_messages(_SESSIONS))
        infos = store.sessions(limit=_SESSIONS).sessions
    with sqlite3.connect(rows_path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(_SCHEMA)
        marks = ", ".join("?" * len(_COLUMNS.split(",")))
        connection.executemany(f"INSERT INTO session VALUES ({marks})", [_row(i) for i in infos])
        connection.execute("ANALYZE")
    connection.close()
    return _Filled(store_path, rows_path)


def _row(info: SessionInfo) -> tuple[object, ...]:
    return tuple(
        json.dumps(info.metadata) if column == "metadata" else getattr(info, column)
        for column in _COLUMNS.split(", ")
    )


def _of_store(store: Store, user: str | None) -> list[tuple[str, object]]:
    page = store.sessions(limit=_NEWEST, user_id=user)
    return [(info.name, info.metadata) for info in page.sessions]


def _of_rows(connection: sqlite3.Connection, user: str | None) -> list[tuple[str, object]]:
    if user is None:
        cursor = connection.execute(_OF_ALL, (_NEWEST,))
    else:
        cursor = connection.execute(_BY_USER, (user, _NEWEST))
    return [(row[1], json.loads(row[5])) for row in cursor.fetchall()]


def _in_turn(
    report: Report, filled: _Filled, rounds: int, name: str, users: list[str | None]
) -> None:
    progress(name)
    with Store.open(filled.store, create=False) as store:
        connection = sqlite3.connect(filled.rows)
        for user in users:  # which warms up, too
            if _of_store(store, user) != _of_rows(connection, user):
                raise RefusedError(f"the sides list other sessions of {user}")

        def ours() -> float:
            start = time.perf_counter()
            for user in users:
                _of_store(store, user)
            return (time.perf_counter() - start) / len(users)

        def rows() -> float:
            start = time.perf_counter()
            for user in users:
                _of_rows(connection, user)
            return (time.perf_counter() - start) / len(users)

        values = interleave({"ours": ours, "rows": rows}, rounds)
        connection.close()
    report.figures[name] = comparison(values["ours"], values["rows"], unit="s")
    report.results.append(Result(name, paired_ratio(values["ours"], values["rows"])))


def _first(report: Report, filled: _Filled, rounds: int) -> None:
    progress("catalog_first: the first question after an opening")

    def ours() -> float:
        with Store.open(filled.store, create=False) as store:
            store.sessions(limit=1)  # reads the hot log, which belongs to the opening
            start = time.perf_counter()
            _of_store(store, "user-7")
            return time.perf_counter() - start

    def rows() -> float:
        connection = sqlite3.connect(filled.rows)
        start = time.perf_counter()
        _of_rows(connection, "user-7")
        taken = time.perf_counter() - start
        connection.close()
        return taken

    values = interleave({"ours": ours, "rows": rows}, rounds)
    report.figures["catalog_first"] = comparison(values["ours"], values["rows"], unit="s")
