"""Tasks: work of several transactions of its own, between the batches of appends.

Invariants:
    1. One step is one transaction: what it wrote is durable before the next step begins.
    2. A step may be the last one of this process, and other processes commit between two: a task
       finds in the store what is left to do.
    3. Whoever waits for a task is told: that it is done, or why it is not.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

from eventlog.errors import TurnlogError

if TYPE_CHECKING:
    from eventlog.rows import CommitRecord
    from eventlog.tables import WriteTables


class Task(Protocol):
    """What is done step by step."""

    done: bool
    """True once a step found nothing more to do; looked at after its commit."""

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """Do a bounded piece of work in an open write transaction, on the writer's thread.

        Args:
            tables: The transaction.
            record: Its commit record.

        Returns:
            The commit record with what the step changed in it, or None when it wrote nothing.
        """


class Running:
    """A task and whoever waits for it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.error: BaseException | None = None
        self.is_cancelled = False
        self._ended = threading.Event()

    def end(self, error: BaseException | None = None) -> None:
        """The task is done, or failed."""
        self.error = error
        self._ended.set()

    def wait(self, timeout: float | None) -> None:
        """Block until it ends.

        Raises:
            TimeoutError: Not in time; no further step is taken.
        """
        if not self._ended.wait(timeout):
            self.is_cancelled = True
            raise TimeoutError("the task is not done yet; what it did so far stays")
        if self.error is not None:
            raise self.error


class Tasks:
    """The tasks that wait for the writer; every call under the writer's lock."""

    def __init__(self) -> None:
        self._waiting: deque[Running] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, running: Running) -> None:
        """Queue a task behind the others."""
        self._waiting.append(running)

    def next(self) -> Running | None:
        """The task whose turn it is; those that nobody waits for any more are dropped."""
        while self._waiting:
            running = self._waiting[0]
            if not running.is_cancelled:
                return running
            self._waiting.popleft()
        return None

    def end(self, running: Running, error: BaseException | None = None) -> None:
        """A task is done, or failed."""
        if running in self._waiting:
            self._waiting.remove(running)
        running.end(error)

    def turn(self) -> None:
        """Let the next task have its turn."""
        self._waiting.rotate(-1)

    def refuse(self, error: TurnlogError) -> None:
        """Fail all of them."""
        while self._waiting:
            self._waiting.popleft().end(error)
