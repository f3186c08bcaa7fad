"""Opening after a kill until the first read is answered, against bare LMDB and one scan."""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.bare_open import open_and_scan
from bench.fill import fill
from bench.harness import (
    RefusedError,
    Report,
    Settings,
    comparison,
    even_start,
    fresh_directory,
    interleave,
    paired_ratio,
    progress,
)
from bench.targets import Result
from bench.workloads import chat_messages, interleaving, session_names
from engine import Store

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

FIGURES: Final = ("open_vs_bare_10k", "open_vs_bare_1m")
SESSIONS: Final = 250  # at 10,000 events each has 40, more than the first read takes
_SMALL_EVENTS: Final = 10_000
_LARGE_EVENTS: Final = 1_000_000
_LARGE_EVENTS_QUICK: Final = 200_000
_DISTINCT_MESSAGES: Final = 20_000
_APPENDS_BEFORE_KILL: Final = 200
_DEADLINE_S: Final = 600.0
_READ: Final = 20  # messages of the first read


def run(settings: Settings, report: Report) -> None:
    """Measure both sizes; the target takes the worse of the two."""
    large = _LARGE_EVENTS_QUICK if settings.quick else _LARGE_EVENTS
    ratios = [
        _measure(settings, report, name, events)
        for name, events in (("open_vs_bare_10k", _SMALL_EVENTS), ("open_vs_bare_1m", large))
        if settings.wants(name)
    ]
    report.results.append(Result("open_vs_bare", max(ratios)))


def _measure(settings: Settings, report: Report, name: str, events: int) -> float:
    progress(f"{name}: {events:,} events")
    with fresh_directory(settings) as directory:
        killed = directory / "killed"
        _write_and_kill(killed, events)
        hot: list[int] = []

        def bare() -> float:
            probe = _in_fresh_process(_probe_bare, killed, directory)
            hot.append(probe.found)
            return probe.seconds

        def ours() -> float:
            probe = _in_fresh_process(_probe_ours, killed, directory)
            if probe.found != _READ:
                raise RefusedError(f"the first read gave {probe.found} messages, not {_READ}")
            return probe.seconds

        sides = {"bare": bare, "ours": ours}
        rounds = interleave(sides, (5 if settings.quick else 15) + 1)
    seconds = {side: values[1:] for side, values in rounds.items()}  # the first warms the cache
    report.figures[name] = comparison(seconds["ours"], seconds["bare"], unit="s") | {
        "events": events,
        "sessions": SESSIONS,
        "hot_records": round(statistics.median(hot)),
    }
    return paired_ratio(seconds["ours"], seconds["bare"])


def _write_and_kill(path: Path, events: int) -> None:
    """Leave a store behind whose writer was killed while it appended."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    writer = context.Process(target=_write_until_killed, args=(path, events, sender))
    writer.start()
    sender.close()
    try:
        if not receiver.poll(_DEADLINE_S):
            raise RefusedError(f"the store was not filled within {_DEADLINE_S:g} s")
        receiver.recv()
    except EOFError as error:
        raise RefusedError("the process that fills the store ended; see its output") from error
    finally:
        writer.kill()
        writer.join()


def _write_until_killed(path: Path, events: int, ready: Connection) -> None:
    names = session_names(SESSIONS)
    messages = chat_messages(_DISTINCT_MESSAGES)
    store = Store.open(path)
    fill(store, names, interleaving(SESSIONS, events), messages)
    for number in count():
        store.session(names[number % SESSIONS]).append(messages[number % len(messages)]).result()
        if number == _APPENDS_BEFORE_KILL:
            ready.send(number)


@dataclass(frozen=True, slots=True)
class Probe:
    """What one opening took, and how many records or messages it found."""

    seconds: float
    found: int


def _probe_ours(path: Path) -> Probe:
    even_start()
    start = time.perf_counter()
    store = Store.open(path, create=False)
    messages = store.session(session_names(SESSIONS)[SESSIONS // 2]).history(limit=_READ)
    seconds = time.perf_counter() - start
    store.close()
    return Probe(seconds, len(messages))


def _probe_bare(path: Path) -> Probe:
    even_start()
    start = time.perf_counter()
    records = open_and_scan(path)
    return Probe(time.perf_counter() - start, records)


def _in_fresh_process(probe: Callable[[Path], Probe], killed: Path, directory: Path) -> Probe:
    """Run one probe in a process of its own, on a copy of what the kill left behind."""
    copy = directory / "copy"
    shutil.copytree(killed, copy)
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
            return pool.submit(probe, copy).result()
    finally:
        shutil.rmtree(copy)
