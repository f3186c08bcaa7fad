"""Collecting blobs: what no event has named for an hour goes, in bounded steps.

Invariants:
    1. Nothing younger than ``BLOB_PENDING_US`` goes, but what nobody can want: chunks of a stream
       that was given up, and of blobs that were erased.
    2. A collection stopped at any step goes on with the next: the pending rows say what is left.
    3. Damage keeps nothing but what it is in: the walk steps over it and goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from eventlog.blob import DOOMED_US
from eventlog.blobtable import Collected, Damaged, collect_step, pending_rows
from eventlog.limits import BLOB_PENDING_US
from eventlog.rows import CommitRecord
from eventlog.seams import CLOCK
from eventlog.tables import ReadTables, WriteTables


class Collection:
    """Task: one walk over what is pending.

    Attributes:
        collected: What it did so far.
    """

    def __init__(self, pause: Callable[[], None]) -> None:
        self.done = False
        self.collected = Collected()
        self._pause = pause
        self._after = 0

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``tasks.Task``."""
        before = self._counts()
        following = collect_step(tables, CLOCK.wall_us(), self._after, self.collected, self._pause)
        self.done = following is None
        self._after = following or 0
        return None if self._counts() == before else record

    def _counts(self) -> tuple[int, int, int, int]:
        done = self.collected
        return (done.blobs, done.streams, done.chunks, done.named)


def is_due(tables: ReadTables, damaged: Damaged, pause: Callable[[], None]) -> bool:
    """Whether a collection would find something.

    Args:
        tables: A transaction.
        damaged: Takes what is wrong with pending rows.
        pause: Called between rows.
    """
    now_us = CLOCK.wall_us()
    for _, row in pending_rows(tables, damaged=damaged):
        pause()
        if row.pending_us == DOOMED_US or row.pending_us + BLOB_PENDING_US <= now_us:
            return True
    return False


def told(damaged: Damaged) -> str | None:
    """What ``health`` says of damage that keeps blobs from being collected."""
    if not damaged:
        return None
    return f"{len(damaged)} blobs cannot be collected: {next(iter(damaged.values()))}"
