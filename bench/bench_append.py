"""Appends a second: from many sessions of a loop, a lone caller and eight processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from bench.bare_loop import BareLog, BareLoop, QueueFullError
from bench.drive import (
    BUSY_SHARE,
    BusyRate,
    Window,
    acknowledged_per_second,
    busy_per_second,
    keyed_sessions,
    lone_per_second,
    pipelined_per_second,
    plain_sessions,
)
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
    significant,
)
from bench.sqlite_rows import SqliteRows
from bench.targets import Result
from bench.workloads import Message, chat_messages, session_names
from engine import Store
from eventlog.errors import OverloadedError

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

FIGURES: Final = (
    "durable_1000",
    "keyed",
    "pipelined",
    "busy_loop",
    "lone",
    "sqlite_16",
    "processes_8",
)
SESSIONS: Final = 1_000
SQLITE_SESSIONS: Final = 16
PROCESSES: Final = 8
_DISTINCT_MESSAGES: Final = 20_000
_ROLLED_UP: Final = 26  # appends after which a session has been due for a roll-up
# Beside appends nothing is sealed before the hot log is full (65,536 events): the warm-up fills it,
# so that the measured part pays for its own sealing.
_FULL: Final = 72_000
_WORKER_DEADLINE_S: Final = 120.0

T = TypeVar("T")


def run(settings: Settings, report: Report) -> None:
    """Take all figures that the settings want."""
    messages = chat_messages(_DISTINCT_MESSAGES)
    if settings.wants("durable_1000") or settings.wants("keyed"):
        _durable_and_keyed(settings, report, messages)
    if settings.wants("pipelined"):
        _pipelined(settings, report, messages)
    if settings.wants("busy_loop"):
        _busy_loop(settings, report, messages)
    if settings.wants("lone"):
        _lone(settings, report, messages)
    if settings.wants("sqlite_16"):
        _sqlite(settings, report, messages)
    if settings.wants("processes_8"):
        _processes(settings, report, messages)


def _in_store(settings: Settings, measure: Callable[[Store], Awaitable[T]]) -> T:
    async def session() -> T:
        with fresh_directory(settings) as directory, Store.open(directory / "store") as store:
            return await measure(store)

    return asyncio.run(session())


def _in_bare_loop(settings: Settings, measure: Callable[[BareLoop], Awaitable[T]]) -> T:
    async def session() -> T:
        with fresh_directory(settings) as directory:
            bare = BareLoop(directory)
            try:
                return await measure(bare)
            finally:
                await bare.close()

    return asyncio.run(session())


def _record(
    report: Report, name: str, ours: Sequence[float], yardstick: Sequence[float], **more: object
) -> None:
    report.figures[name] = comparison(ours, yardstick, unit="appends/s") | more
    report.results.append(Result(name, paired_ratio(ours, yardstick)))


def _durable_and_keyed(settings: Settings, report: Report, messages: Sequence[Message]) -> None:
    """Both against the same rounds of the bare loop, which makes no keys at all."""
    names = session_names(SESSIONS)
    window = Window(warm_up=_FULL, seconds=0.4 if settings.quick else 2.0)

    async def bare(bare_loop: BareLoop) -> float:
        appends = [bare_loop.append] * SESSIONS
        return await acknowledged_per_second(plain_sessions(appends, messages), window)

    async def durable(store: Store) -> float:
        appends = [store.session(name).append for name in names]
        return await acknowledged_per_second(plain_sessions(appends, messages), window)

    async def keyed(store: Store) -> float:
        appends = [store.session(name).append for name in names]
        return await acknowledged_per_second(keyed_sessions(appends, names, messages), window)

    sides: dict[str, Callable[[], float]] = {"bare": partial(_in_bare_loop, settings, bare)}
    if settings.wants("durable_1000"):
        sides["durable_1000"] = partial(_in_store, settings, durable)
    if settings.wants("keyed"):
        sides["keyed"] = partial(_in_store, settings, keyed)
    progress(", ".join(sides))
    rates = interleave(sides, 3 if settings.quick else 7)
    for name in ("durable_1000", "keyed"):
        if name in rates:
            _record(report, name, rates[name], rates["bare"], sessions=SESSIONS)


def _pipelined(settings: Settings, report: Report, messages: Sequence[Message]) -> None:
    progress("pipelined")
    names = session_names(SESSIONS)
    window = Window(warm_up=_FULL, seconds=0.5 if settings.quick else 2.5)

    async def bare(bare_loop: BareLoop) -> float:
        return await pipelined_per_second(
            [bare_loop.append] * SESSIONS,
            bare_loop.room,
            QueueFullError,
            messages,
            window,
        )

    async def ours(store: Store) -> float:
        return await pipelined_per_second(
            [store.session(name).append for name in names],
            store.room,
            OverloadedError,
            messages,
            window,
        )

    rates = interleave(
        {
            "bare": partial(_in_bare_loop, settings, bare),
            "ours": partial(_in_store, settings, ours),
        },
        3 if settings.quick else 7,
    )
    _record(report, "pipelined", rates["ours"], rates["bare"], sessions=SESSIONS)


def _busy_loop(settings: Settings, report: Report, messages: Sequence[Message]) -> None:
    progress("busy_loop")
    names = session_names(SESSIONS)
    window = Window(
        warm_up=5 * SESSIONS if settings.quick else _FULL,
        seconds=0.6 if settings.quick else 2.0,
    )

    async def bare(bare_loop: BareLoop) -> BusyRate:
        appends = [bare_loop.append] * SESSIONS
        return await busy_per_second(plain_sessions(appends, messages), window)

    async def ours(store: Store) -> BusyRate:
        appends = [store.session(name).append for name in names]
        return await busy_per_second(plain_sessions(appends, messages), window)

    rates = interleave(
        {
            "bare": partial(_in_bare_loop, settings, bare),
            "ours": partial(_in_store, settings, ours),
        },
        3 if settings.quick else 7,
    )
    _record(
        report,
        "busy_loop",
        [rate.per_second for rate in rates["ours"]],
        [rate.per_second for rate in rates["bare"]],
        sessions=SESSIONS,
        share_wanted=BUSY_SHARE,
        ours_share=[significant(rate.share) for rate in rates["ours"]],
        yardstick_share=[significant(rate.share) for rate in rates["bare"]],
    )


def _lone(settings: Settings, report: Report, messages: Sequence[Message]) -> None:
    """Short rounds in turn over two open stores: one append takes well under a millisecond."""
    progress("lone")
    seconds = 0.1 if settings.quick else 0.4
    message = cycle(messages).__next__
    with fresh_directory(settings) as directory, Store.open(directory / "store") as store:
        bare_directory = directory / "bare"
        bare_directory.mkdir()
        log = BareLog(bare_directory)
        call = store.session("call-lone")

        def ours() -> float:
            rate = lone_per_second(lambda: call.append(message()).result(), seconds)
            # What is left to seal must not run into the other side's round.
            store.flush()
            return rate

        def bare() -> float:
            return lone_per_second(lambda: log.append(message()), seconds)

        try:
            interleave({"bare": bare, "ours": ours}, 2)  # warm-up
            rates = interleave({"bare": bare, "ours": ours}, 11 if settings.quick else 31)
        finally:
            log.close()
    _record(report, "lone", rates["ours"], rates["bare"], seconds_per_round=seconds)


def _sqlite(settings: Settings, report: Report, messages: Sequence[Message]) -> None:
    progress("sqlite_16")
    names = session_names(SQLITE_SESSIONS)
    window = Window(warm_up=_ROLLED_UP * SQLITE_SESSIONS, seconds=0.4 if settings.quick else 2.0)

    async def ours(store: Store) -> float:
        appends = [store.session(name).append for name in names]
        return await acknowledged_per_second(plain_sessions(appends, messages), window)

    async def rows() -> float:
        with fresh_directory(settings) as directory:
            table = SqliteRows(directory)
            try:
                appends = [partial(table.append, name) for name in names]
                return await acknowledged_per_second(plain_sessions(appends, messages), window)
            finally:
                await table.close()

    sides: dict[str, Callable[[], float]] = {
        "sqlite": lambda: asyncio.run(rows()),
        "ours": partial(_in_store, settings, ours),
    }
    rates = interleave(sides, 3 if settings.quick else 7)
    _record(report, "sqlite_16", rates["ours"], rates["sqlite"], sessions=SQLITE_SESSIONS)


def _processes(settings: Settings, report: Report, messages: Sequence[Message]) -> None:
    progress("processes_8")
    names = session_names(SESSIONS)
    window = Window(
        warm_up=5 * SESSIONS if settings.quick else _FULL,
        seconds=0.6 if settings.quick else 3.0,
    )
    rates = interleave(
        {
            "one": partial(_from_processes, settings, 1, names, window),
            "eight": partial(_from_processes, settings, PROCESSES, names, window),
        },
        2 if settings.quick else 5,
    )
    totals = [sum(each) for each in rates["eight"]]
    _record(
        report,
        "processes_8",
        totals,
        [sum(each) for each in rates["one"]],
        sessions=SESSIONS,
        processes=PROCESSES,
        per_process=[[significant(rate) for rate in each] for each in rates["eight"]],
        slowest_share=significant(
            statistics.median(
                min(each) * PROCESSES / total
                for each, total in zip(rates["eight"], totals, strict=True)
            )
        ),
    )


def _from_processes(
    settings: Settings, count: int, names: Sequence[str], window: Window
) -> list[float]:
    """Appends a second of each of ``count`` processes that share the sessions evenly."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    results: Queue[float] = context.Queue()
    each = Window(window.warm_up // count, window.seconds)
    with fresh_directory(settings) as directory:
        path = directory / "store"
        with Store.open(path):
            pass  # created here, so that the processes only open it
        workers = [
            context.Process(
                target=_process, args=(path, names[number::count], each, barrier, results)
            )
            for number in range(count)
        ]
        for worker in workers:
            worker.start()
        try:
            return [results.get(timeout=_WORKER_DEADLINE_S) for _ in workers]
        finally:
            for worker in workers:
                worker.join(_WORKER_DEADLINE_S)
                if worker.exitcode is None:
                    worker.kill()
                    raise RefusedError("a process of processes_8 did not end; see its output")


def _process(
    path: Path, names: Sequence[str], window: Window, barrier: Barrier, results: Queue[float]
) -> None:
    messages = chat_messages(2_000)

    async def appends() -> float:
        with Store.open(path) as store:
            sessions = plain_sessions([store.session(name).append for name in names], messages)
            # Everyone warms up on its own first; the measured parts start together.
            await acknowledged_per_second(sessions, Window(window.warm_up, 0.0))
            await asyncio.to_thread(barrier.wait, _WORKER_DEADLINE_S)
            rate = await acknowledged_per_second(sessions, Window(0, window.seconds))
            # Nobody closes, and so seals and frees the lock, while others still measure.
            await asyncio.to_thread(barrier.wait, _WORKER_DEADLINE_S)
            return rate

    even_start()
    results.put(asyncio.run(appends()))
