"""What SQLite takes on disk for the same messages, written with the care of ``sqlite_rows``.

JSON text of each body without blanks, rows in arrival order, a unique index on (session, sequence),
one transaction a batch, WAL with ``synchronous=FULL``. Closing checkpoints the WAL and removes it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.sqlite_rows import INSERT, SCHEMA
from bench.workloads import Turn


class SqliteFile:
    """One SQLite file that is written in batches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        self._heads: dict[str, int] = {}
        # isolation_level=None: transactions are ours alone.
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(SCHEMA)

    def append(self, batch: Iterable[Turn]) -> None:
        """Insert one row a turn, all in one transaction."""
        rows = []
        for turn in batch:
            sequence = self._heads.get(turn.session, -1) + 1
            self._heads[turn.session] = sequence
            # SQLite's text is UTF-8 without lone surrogates; such a body is escaped instead.
            text = self._dump(turn.message)
            rows.append((turn.session, sequence, text if _is_utf8(text) else ascii_json(turn)))
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        self._connection.executemany(INSERT, rows)
        execute("COMMIT")

    def vacuum(self) -> None:
        """Rewrite the file, and leave no WAL behind."""
        self._connection.execute("VACUUM")
        self.checkpoint()

    def checkpoint(self) -> None:
        """Bring everything into the file itself."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def ascii_json(turn: Turn) -> str:
    """JSON in ASCII, where a lone surrogate is an escape."""
    return json.dumps(turn.message, separators=(",", ":"))
