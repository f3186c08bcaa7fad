"""The gate of an open environment: who reads in it, and whether anybody may.

Invariants:
    1. A read is counted before it looks at the state, and whoever changes the state looks at the
       count after that: each sees the other, or the read has not begun.
    2. In a forked child nobody gets in, and no lock of the parent's threads is waited for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from eventlog.errors import BusyError, ForkedStoreError, StoreClosedError, StoreUnavailableError

OPEN: Final = "open"
PAUSED: Final = "paused"
BROKEN: Final = "broken"
CLOSING: Final = "closing"
CLOSED: Final = "closed"
FORKED: Final = "forked"


class Gate:
    """Lets reads in and out, and holds them back while LMDB is closed, opened or mapped anew.

    Attributes:
        state: One of the six above.
        changing: Held while a write transaction begins or the state changes.
    """

    def __init__(self, path: Path) -> None:
        self.state = CLOSED
        self.changing = threading.RLock()
        self._path = path
        self._pid = os.getpid()
        self._in_flight: dict[object, int] = {}
        self._idle = threading.Condition()

    def enter(self, read: object) -> None:
        """Count a read of this thread; waits while reads are paused.

        Raises:
            StoreClosedError, ForkedStoreError, StoreUnavailableError: They will not go on; the
                read still counts, until ``leave``.
        """
        self._in_flight[read] = threading.get_ident()
        if self.state is OPEN and os.getpid() == self._pid:
            return
        while self.state is PAUSED:
            self._in_flight.pop(read, None)
            with self._idle:
                self._idle.notify_all()
                self._idle.wait_for(lambda: self.state is not PAUSED)
            self._in_flight[read] = threading.get_ident()
        self.refuse_unusable()

    def leave(self, read: object) -> None:
        """A read has ended."""
        self._in_flight.pop(read, None)
        if self.state is not OPEN:
            with self._idle:
                self._idle.notify_all()

    def refuse_unusable(self) -> None:
        """Raise when nothing can be read or written; a pause is no reason."""
        self.refuse_forked()
        if self.state in (CLOSED, CLOSING):
            raise StoreClosedError("the store is closed")
        if self.state is BROKEN:
            raise StoreUnavailableError(
                f"{self._path} could not be opened again after a failed commit",
                hint="Close the store, see why, and open it again.",
            )

    def refuse_forked(self) -> None:
        """Raise in a child that inherited this by a fork; takes no lock."""
        if self.state is FORKED or self.is_elsewhere:
            raise ForkedStoreError("this store was opened before a fork, in the parent process")

    @property
    def is_elsewhere(self) -> bool:
        """True in another process than the one that made the gate."""
        return os.getpid() != self._pid

    @contextmanager
    def paused(self, deadline_ms: int) -> Iterator[None]:
        """No read transaction of this process is open in the body of the ``with``.

        Raises:
            BusyError: Reads did not end in time; they go on.
        """
        with self.changing:
            before, self.state = self.state, PAUSED
            try:
                with self._idle:
                    if threading.get_ident() in self._in_flight.values():
                        raise BusyError(
                            "a read of this thread is still open",
                            hint="End the iterators and transactions that are still open.",
                        )
                    if not self._idle.wait_for(lambda: not self._in_flight, deadline_ms / 1_000):
                        raise BusyError(
                            f"reads of this process did not end within {deadline_ms} ms",
                            hint="End the iterators and transactions that are still open.",
                        )
                yield
            finally:
                if self.state is PAUSED:
                    self.state = before
                with self._idle:
                    self._idle.notify_all()

    def shut(self) -> None:
        """Let no more reads in, and wait for those in flight, however long they take."""
        with self.changing:
            self.state = CLOSING
        with self._idle:
            self._idle.wait_for(lambda: not self._in_flight)

    def forked(self) -> None:
        """In a child: shut for good; threads that it does not have may hold what it inherited."""
        self.state = FORKED
        self.changing = threading.RLock()
        self._idle = threading.Condition()
        self._in_flight = {}
