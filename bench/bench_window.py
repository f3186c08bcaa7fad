"""A window of 16,000 tokens at the end of 10,000 messages, against one indexed SQLite query.

SQLite holds the same messages as JSON text in one clustered table, with the token count of each
beside it; the query walks back along its key until the budget is used up. Both sides decode what
they return and nothing else. ``sealed`` is read again and again; of ``live`` every read follows an
append, as before each call of a model. The worse of the two is what counts.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Final

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
from engine.estimate import estimate_tokens

FIGURES: Final = ("window_16k",)
_MESSAGES: Final = 10_000
_BUDGET: Final = 16_000
_READS: Final = 100  # one round
_NAME: Final = "call"
_SCHEMA: Final = (
    "CREATE TABLE event (session TEXT, sequence INTEGER, tokens INTEGER, body TEXT, "
    "PRIMARY KEY (session, sequence)) WITHOUT ROWID"
)
_INSERT: Final = "INSERT INTO event VALUES (?, ?, ?, ?)"
_QUERY: Final = "SELECT tokens, body FROM event WHERE session = ? ORDER BY sequence DESC"


def run(settings: Settings, report: Report) -> None:
    """Fill both sides, and read windows from them in turn."""
    if not settings.wants("window_16k"):
        return
    rounds = 7 if settings.quick else 25
    ratios: list[float] = []
    with fresh_directory(settings) as directory:
        messages = chat_messages(_MESSAGES)
        _fill(directory, messages)
        with (
            Store.open(directory / "store", create=False) as store,
            closing(_open_rows(directory)) as rows,
        ):
            call = store.session(_NAME)
            for case, append in (("sealed", None), ("live", _appender(call, rows, messages))):
                progress(f"window_16k: {case}")
                values = _in_turn(call, rows, append, rounds)
                report.figures[f"window_16k_{case}"] = comparison(*values, unit="s")
                ratios.append(paired_ratio(*values))
    report.results.append(Result("window_16k", max(ratios)))


def _fill(directory: Path, messages: list[Message]) -> None:
    with Store.open(directory / "store") as store:
        call = store.session(_NAME)
        for message in messages:
            ack = call.append(message, tokens=estimate_tokens(message), wait=60.0)
        ack.result()
        store.flush()
    with closing(_open_rows(directory)) as rows:
        rows.execute(_SCHEMA)
        rows.execute("BEGIN")
        rows.executemany(_INSERT, [_row(number, each) for number, each in enumerate(messages)])
        rows.execute("COMMIT")


def _row(sequence: int, message: Message) -> tuple[str, int, int, str]:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    return _NAME, sequence, estimate_tokens(message), text


def _open_rows(directory: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(directory / "rows.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def _appender(
    call: Session, rows: sqlite3.Connection, messages: list[Message]
) -> Callable[[], None]:
    """What appends one more message to both sides."""
    following = cycle(messages).__next__

    def append() -> None:
        message = following()
        done = call.append(message, tokens=estimate_tokens(message)).result()
        rows.execute(_INSERT, _row(done.last, message))

    return append


def _in_turn(
    call: Session, rows: sqlite3.Connection, append: Callable[[], None] | None, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds a window of both sides."""

    def ours() -> list[Message]:
        return call.window(tokens=_BUDGET)

    def theirs() -> list[Message]:
        return _query(rows)

    def timed(read: Callable[[], list[Message]]) -> float:
        taken = 0.0
        for _ in range(_READS):
            if append is not None:
                append()
            start = time.perf_counter()
            read()
            taken += time.perf_counter() - start
        return taken / _READS

    if ours() != theirs():
        raise RefusedError("the two sides do not give the same window")
    values = interleave({"ours": lambda: timed(ours), "theirs": lambda: timed(theirs)}, rounds)
    if ours() != theirs():
        raise RefusedError("the two sides do not give the same window")
    return values["ours"], values["theirs"]


def _query(rows: sqlite3.Connection) -> list[Message]:
    loads = json.loads
    left = _BUDGET
    found: list[Message] = []
    for tokens, body in rows.execute(_QUERY, (_NAME,)):
        left -= tokens
        if left < 0:
            break
        found.append(loads(body))
    found.reverse()
    return found
