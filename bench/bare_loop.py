"""The yardsticks on bare LMDB: the shortest honest path from a message to durable.

``BareLoop`` is one bounded queue, one thread, cbor2 in the caller, one ``putmulti`` and one
synchronous commit a batch, one asyncio future an append, one wake-up of the loop a commit. No
validation, no checksum, no sessions, no index: what is left is what any durable append from asyncio
has to pay, so a ratio to it shows what everything else costs. ``BareLog`` is the same for one
caller's thread, without any queue.

Invariants:

1. A future is resolved only after the commit that holds its record returned (LMDB runs with sync).
2. Nothing here is slower than it has to be: every choice was measured against the obvious
   alternatives (README.md lists them). A slow yardstick would flatter us.
"""

from __future__ import annotations

import asyncio
import io
import struct
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import cbor2
import lmdb

from bench.workloads import Message

MAP_BYTES: Final = 1 << 36  # address space only
QUEUE_APPENDS_MAX: Final = 4_096  # measured: longer queues are slower, they leave the cache

_pack_position: Final = struct.Struct(">Q").pack


class QueueFullError(Exception):
    """The queue holds as many appends as it may; wait for ``room()``."""


class BareLoop:
    """Durable appends of one event loop to one LMDB table, keyed by position.

    To be made and used on one running event loop. The loop's thread adds to the end of two lists,
    body first and future second; the writer's thread takes as many of both as there are futures.
    Each of these steps is one operation of the interpreter, so no lock is needed.
    """

    def __init__(self, path: Path) -> None:
        self._environment = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=1)
        self._table = self._environment.open_db(b"log")
        self._loop = asyncio.get_running_loop()
        # What loop.create_future() does, without a Python frame in between.
        self._new_future = partial(asyncio.Future, loop=self._loop)
        self._encode = cbor2.CBOREncoder(io.BytesIO()).encode_to_bytes
        self._bodies: list[bytes] = []
        self._futures: list[asyncio.Future[int]] = []
        self._room: asyncio.Future[None] | None = None
        self._idle = False
        self._closing = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self.commits = 0
        self.last_position = 0
        self._thread = threading.Thread(target=self._run, name="bare-loop")
        self._thread.start()

    def append(self, message: Message) -> asyncio.Future[int]:
        """Queue one message; the future holds its position once it is durable.

        Raises:
            QueueFullError: The queue is full.
        """
        futures = self._futures
        if len(futures) >= QUEUE_APPENDS_MAX:
            raise QueueFullError
        future: asyncio.Future[int] = self._new_future()
        self._bodies.append(self._encode(message))
        futures.append(future)
        if self._idle:
            self._idle = False
            self._wake.put(None)
        return future

    async def room(self) -> None:
        """Wait until the queue takes appends again."""
        while len(self._futures) >= QUEUE_APPENDS_MAX:
            if self._room is None:
                self._room = self._loop.create_future()
            await self._room

    async def close(self) -> None:
        """Commit what is queued, end the thread and close the environment."""
        self._closing = True
        self._wake.put(None)
        await asyncio.to_thread(self._thread.join)
        self._environment.close()

    def _resolve(self, futures: Sequence[asyncio.Future[int]], last: int) -> None:
        position = last - len(futures)
        for future in futures:
            position += 1
            if not future.done():  # its caller was cancelled
                future.set_result(position)
        self._let_in()

    def _refuse(self, futures: Sequence[asyncio.Future[int]], error: lmdb.Error) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(error)
        self._let_in()

    def _let_in(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    def _run(self) -> None:
        waiting_bodies, waiting_futures = self._bodies, self._futures
        begin, table = self._environment.begin, self._table
        while True:
            count = len(waiting_futures)
            if not count:
                if self._closing:
                    return
                self._idle = True
                # Look again: an append between the look above and the flag would not wake us.
                if not waiting_futures and not self._closing:
                    self._wake.get()
                self._idle = False
                continue
            futures = waiting_futures[:count]
            bodies = waiting_bodies[:count]
            del waiting_futures[:count]
            del waiting_bodies[:count]
            first = self.last_position + 1
            keys = map(_pack_position, range(first, first + count))
            try:
                with begin(write=True) as transaction:
                    transaction.cursor(table).putmulti(zip(keys, bodies, strict=True), append=True)
            except lmdb.Error as error:
                self._loop.call_soon_threadsafe(self._refuse, futures, error)
                continue
            self.last_position += count
            self.commits += 1
            self._loop.call_soon_threadsafe(self._resolve, futures, self.last_position)


class BareLog:
    """One caller, one thread, one put and one synchronous commit an append."""

    def __init__(self, path: Path) -> None:
        self._environment = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=1)
        self._table = self._environment.open_db(b"log")
        self._encode = cbor2.CBOREncoder(io.BytesIO()).encode_to_bytes
        self.last_position = 0

    def append(self, message: Message) -> int:
        """Encode and commit one message.

        Returns:
            Its position.
        """
        position = self.last_position + 1
        with self._environment.begin(write=True) as transaction:
            transaction.put(
                _pack_position(position), self._encode(message), append=True, db=self._table
            )
        self.last_position = position
        return position

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()
