"""What conversations take on disk, against SQLite rows of JSON with the same content.

Both sides are written by the same batches of one turn of each live conversation. The store is
measured closed, SQLite with its WAL checkpointed. Rows in arrival order leave its ``VACUUM`` little
to do; ``both_vacuumed_ratio`` in the figures is with it on both sides.

As written is as calls at their own pace write: with moments without appends. ``burst`` in the
figures is without any, where the file keeps the room that the hot log once had.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cbor2

from bench.corpus import agent_logs, short_dialogues
from bench.disk import bytes_on_disk, fill_sqlite, fill_store
from bench.harness import (
    RefusedError,
    Report,
    Settings,
    even_start,
    fresh_directory,
    progress,
    significant,
)
from bench.made import made_agent_logs, made_dialogues
from bench.targets import Result
from bench.workloads import Conversation
from engine import Store

FIGURES: Final = ("store_vs_sqlite", "vacuumed_vs_sqlite", "agents_vs_sqlite")
_LIVE: Final = 64  # conversations at once
_LIVE_AGENTS: Final = 16
_DIALOGUES: Final = 12_000  # as many as the real ones; of fewer the hot log is a larger part
_AGENTS: Final = 300


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes on disk of both sides, and what they hold.

    Attributes:
        events: Messages.
        raw: Their bodies alone, as CBOR.
        burst: The store, closed, after one burst without a pause; 0 where that is not taken.
        written: The store, closed, after calls at their own pace.
        vacuumed: The store after ``Store.vacuum``.
        sqlite: SQLite, its WAL checkpointed.
        sqlite_vacuumed: SQLite after ``VACUUM``.
    """

    events: int
    raw: int
    burst: int
    written: int
    vacuumed: int
    sqlite: int
    sqlite_vacuumed: int

    def per_event(self) -> dict[str, object]:
        """All of it in bytes an event."""
        names = ("raw", "burst", "written", "vacuumed", "sqlite", "sqlite_vacuumed")
        return {name: significant(getattr(self, name) / self.events) for name in names}


def run(settings: Settings, report: Report) -> None:
    """Measure dialogues, then agents' logs."""
    if settings.wants("store_vs_sqlite") or settings.wants("vacuumed_vs_sqlite"):
        taken = _measure(
            settings,
            report,
            "dialogues",
            short_dialogues,
            lambda: made_dialogues(_DIALOGUES),
            _LIVE,
        )
        if settings.wants("store_vs_sqlite"):
            report.results.append(Result("store_vs_sqlite", taken.written / taken.sqlite))
        if settings.wants("vacuumed_vs_sqlite"):
            ratio = taken.vacuumed / taken.sqlite
            report.results.append(Result("vacuumed_vs_sqlite", ratio))
    if settings.wants("agents_vs_sqlite"):
        taken = _measure(
            settings, report, "agents", agent_logs, lambda: made_agent_logs(_AGENTS), _LIVE_AGENTS
        )
        ratio = taken.vacuumed / taken.sqlite
        report.results.append(Result("agents_vs_sqlite", ratio))


def _measure(
    settings: Settings,
    report: Report,
    name: str,
    real: Callable[[Path], list[Conversation]],
    made: Callable[[], list[Conversation]],
    live: int,
) -> Taken:
    progress(f"{name}: a store and SQLite with the same messages")
    conversations = made() if settings.corpus is None else real(settings.corpus)
    taken = _taken(settings, conversations, live)
    report.figures[name] = {
        "unit": "bytes/event",
        "conversations": len(conversations),
        "events": taken.events,
        "live": live,
        "real": settings.corpus is not None,
        "burst_ratio": significant(taken.burst / taken.sqlite),
        "written_ratio": significant(taken.written / taken.sqlite),
        "vacuumed_ratio": significant(taken.vacuumed / taken.sqlite),
        "both_vacuumed_ratio": significant(taken.vacuumed / taken.sqlite_vacuumed),
    } | taken.per_event()
    return taken


def _taken(settings: Settings, conversations: Sequence[Conversation], live: int) -> Taken:
    events = sum(len(each.messages) for each in conversations)
    raw = sum(len(cbor2.dumps(message)) for each in conversations for message in each.messages)
    with fresh_directory(settings) as directory:
        store, rows = directory / "store", directory / "rows"
        even_start()
        burst = 0
        if not settings.quick:
            fill_store(directory / "burst", conversations, live, pauses=False)
            burst = bytes_on_disk(directory / "burst")
            shutil.rmtree(directory / "burst")
            even_start()
        fill_store(store, conversations, live, pauses=True)
        written = bytes_on_disk(store)
        Store.vacuum(store)
        vacuumed = bytes_on_disk(store)
        rows.mkdir()
        even_start()
        sqlite, sqlite_vacuumed = fill_sqlite(rows / "rows.sqlite", conversations, live)
        _require_all(store, conversations)
    return Taken(events, raw, burst, written, vacuumed, sqlite, sqlite_vacuumed)


def _require_all(path: Path, conversations: Sequence[Conversation]) -> None:
    """What takes no room because it is not there would flatter us."""
    with Store.open(path, create=False) as store:
        for each in (conversations[0], conversations[len(conversations) // 2], conversations[-1]):
            if store.session(each.name).history() != list(each.messages):
                raise RefusedError(f"the store did not give back session {each.name!r}")
