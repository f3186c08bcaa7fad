"""Rebuild of everything that is derived from the log, one table after the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from engine.erasure import require_removal
from eventlog.gathering import Gathering
from eventlog.limits import FINE_SLICE_US
from eventlog.log import Log
from eventlog.rebuild import Rebuild
from eventlog.recount import OnProgress, Recount
from eventlog.roles import REBUILT
from eventlog.rows import CommitRecord
from eventlog.tables import WriteTables
from eventlog.tasks import Task


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild read.

    Attributes:
        events: Sealed events of the store.
        sessions: Sessions of the store.
        tables: The tables that were made anew.
        rows_changed: Session rows whose counts were wrong.
    """

    events: int
    sessions: int
    tables: tuple[str, ...]
    rows_changed: int


class _Step:
    """Task: one step of another one; so between two, who waits for it has the control."""

    def __init__(self, task: Task) -> None:
        self.done = False
        self._task = task

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``tasks.Task``."""
        written = self._task.step(tables, record)
        self.done = True
        return written


class _Work:
    """Runs tasks, and tells of each step on this thread once it is committed.

    Attributes:
        note: What the tasks are to call, which is on the writer's thread, in a transaction.
    """

    def __init__(self, log: Log, progress: OnProgress | None) -> None:
        self.note: OnProgress | None = None if progress is None else self._take
        self._writer = log.writer
        self._progress = progress
        self._told: list[tuple[str, int, int]] = []

    def run(self, task: Task) -> None:
        """Do all of a task."""
        if self._progress is None:
            self._writer.run(task)
            return
        while not task.done:
            self._writer.run(_Step(task))
            told, self._told = self._told, []
            for each in told:
                self._progress(*each)

    def _take(self, table: str, sessions: int, session_count: int) -> None:
        self._told.append((table, sessions, session_count))


def rebuild(log: Log, progress: OnProgress | None) -> RebuildReport:
    """Run the tasks in the order in which one needs the other."""
    log.environment.refuse_forked()
    require_removal(log, "be rebuilt")
    cache, gathered = log.cache, log.views.gathered
    pause = partial(log.writer.pause, FINE_SLICE_US)
    work = _Work(log, progress)
    recount = Recount(cache, pause, work.note, gathered=gathered)
    keys = Recount(cache, pause, work.note, keys=True, gathered=gathered)
    with gathered.using():
        if log.writer.machine.refusal is None:  # else the first task tells
            Gathering(gathered, cache, log.projections, progress).run(log.views)
        work.run(recount)
        for role in REBUILT:
            work.run(
                Rebuild(
                    role,
                    cache,
                    pause,
                    work.note,
                    projections=log.projections,
                    gathered=gathered,
                )
            )
        work.run(keys)
    with log.views.transaction() as tables:
        record = tables.commit_record()
    return RebuildReport(recount.events, record.sessions, REBUILT, recount.changed + keys.changed)
