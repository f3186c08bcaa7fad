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


def rebuild(log: Log, progress: OnProgress | None) -> RebuildReport:
    """Run the tasks in the order in which one needs the other."""
    log.environment.refuse_forked()
    require_removal(log, "be rebuilt")
    cache, gathered = log.cache, log.views.gathered
    pause = partial(log.writer.pause, FINE_SLICE_US)
    recount = Recount(cache, pause, progress, gathered=gathered)
    keys = Recount(cache, pause, progress, keys=True, gathered=gathered)
    with gathered.using():
        if log.writer.machine.refusal is None:  # else the first task tells
            Gathering(gathered, cache, log.projections, progress).run(log.views)
        log.writer.run(recount)
        for role in REBUILT:
            log.writer.run(
                Rebuild(
                    role,
                    cache,
                    pause,
                    progress,
                    projections=log.projections,
                    gathered=gathered,
                )
            )
        log.writer.run(keys)
    with log.views.transaction() as tables:
        record = tables.commit_record()
    return RebuildReport(recount.events, record.sessions, REBUILT, recount.changed + keys.changed)
