"""The SQLite yardstick: JSON rows, one durable transaction an insert, written with care.

WAL with ``synchronous=FULL``, so that a commit is an fsync; one connection in one worker thread, as
SQLite has one writer anyway; JSON made in the caller's thread; one prepared statement; rows in
arrival order with a unique index on (session, sequence).
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from bench.workloads import Message

SCHEMA: Final = """
CREATE TABLE event (
    position INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    body TEXT NOT NULL
);
CREATE UNIQUE INDEX event_session_sequence ON event (session, sequence);
"""
INSERT: Final = "INSERT INTO event (session, sequence, body) VALUES (?, ?, ?)"

_Item = tuple[str, int, str, "asyncio.Future[None]"]


class SqliteRows:
    """Durable appends of one event loop to one SQLite file.

    To be made and used on one running event loop.
    """

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        self._heads: dict[str, int] = {}
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._path = path / "rows.sqlite"
        self._thread = threading.Thread(target=self._run, name="sqlite-rows")
        self._thread.start()

    def append(self, session: str, message: Message) -> asyncio.Future[None]:
        """Queue one message; the future resolves once its own transaction is durable."""
        sequence = self._heads.get(session, -1) + 1
        self._heads[session] = sequence
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((session, sequence, self._dump(message), future))
        return future

    async def close(self) -> None:
        """Insert what is queued, end the thread and close the file."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        # isolation_level=None is autocommit: each INSERT is a transaction of its own.
        connection = sqlite3.connect(self._path, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.executescript(SCHEMA)
            execute = connection.execute
            while (item := self._queue.get()) is not None:
                session, sequence, body, future = item
                try:
                    execute(INSERT, (session, sequence, body))
                except sqlite3.Error as error:
                    self._loop.call_soon_threadsafe(_refuse, future, error)
                else:
                    self._loop.call_soon_threadsafe(_resolve, future)
        finally:
            connection.close()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():  # its caller was cancelled
        future.set_result(None)


def _refuse(future: asyncio.Future[None], error: sqlite3.Error) -> None:
    if not future.done():
        future.set_exception(error)
