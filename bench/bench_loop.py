"""How long the event loop is away: a store under load against a store that does nothing.

A ticker asks to run at every millisecond of a fixed grid and notes how late it is; a tick that is
missed because the loop was away counts with its own lateness, so that a long gap weighs as long as
it is. Timers of the default selector are rounded up to whole milliseconds, which would hide gaps
below one; the loops here use ``select``, whose timers have microseconds.
"""

from __future__ import annotations

import asyncio
import gc
import random
import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.drive import Append
from bench.harness import (
    Report,
    Settings,
    fresh_directory,
    interleave,
    percentile,
    progress,
    significant,
)
from bench.null_store import NullStore
from bench.targets import Result
from bench.workloads import SEED, Message, arrival_times, mixed_messages, session_names
from engine import Store

FIGURES: Final = ("gap_p999_ms",)
SESSIONS: Final = 1_000
EVENTS_PER_SECOND: Final = 5_000  # offered, over all sessions
TICK_S: Final = 0.001
_DISTINCT_MESSAGES: Final = 20_000
_WARM_UP_S: Final = 1.0
_ROLL_UP_EVERY: Final = 25  # appends of a session between two roll-ups
_SHARE: Final = 0.999


@dataclass(frozen=True, slots=True)
class Gaps:
    """What one round saw.

    Attributes:
        lateness_ms: One value a millisecond of the measured part, in order.
        appended: Acknowledged appends of the measured part.
        seconds: Its length.
    """

    lateness_ms: list[float]
    appended: int
    seconds: float


class Load:
    """Counts acks while it runs."""

    __slots__ = ("appended", "stopped")

    def __init__(self) -> None:
        self.appended = 0
        self.stopped = False


async def _prefill(append: Append, messages: Sequence[Message], rng: random.Random) -> None:
    """Bring one session somewhere between two roll-ups, so that these spread over the round."""
    for _ in range(rng.randrange(_ROLL_UP_EVERY)):
        await append(messages[rng.randrange(len(messages))])


async def _offer(
    append: Append, messages: Sequence[Message], rng: random.Random, start: float, load: Load
) -> None:
    """One session: appends at its own random times, or at once when it has fallen behind."""
    seed = rng.getrandbits(32)
    for due in arrival_times(EVENTS_PER_SECOND / SESSIONS, seed=seed):
        delay = start + due - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        if load.stopped:
            return
        await append(messages[rng.randrange(len(messages))])
        load.appended += 1


async def _tick(seconds: float) -> list[float]:
    """Lateness in ms of each tick of the grid, for so many seconds."""
    lateness: list[float] = []
    start = time.perf_counter()
    ticks = round(seconds / TICK_S)
    while len(lateness) < ticks:
        due = start + (len(lateness) + 1) * TICK_S
        await asyncio.sleep(due - time.perf_counter())
        now = time.perf_counter()
        # At least this tick, and each one that came due while the loop was away.
        while due <= now and len(lateness) < ticks:
            lateness.append((now - due) * 1000)
            due += TICK_S
    return lateness


async def gaps_under_load(
    appends: Sequence[Append], messages: Sequence[Message], *, seconds: float, seed: int
) -> Gaps:
    """Offer the load to ``appends``, one a session, and watch the loop.

    Args:
        appends: One a session.
        messages: Drawn at random.
        seconds: Length of the measured part, after a warm-up.
        seed: The same seed gives the same load.
    """
    load = Load()
    seeds = random.Random(seed)
    sessions = [(append, random.Random(seeds.getrandbits(64))) for append in appends]
    async with asyncio.TaskGroup() as group:
        for append, rng in sessions:
            group.create_task(_prefill(append, messages, rng))
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for append, rng in sessions:
            group.create_task(_offer(append, messages, rng, start, load))
        await asyncio.sleep(_WARM_UP_S)
        before, began = load.appended, time.perf_counter()
        lateness = await _tick(seconds)
        appended, took = load.appended - before, time.perf_counter() - began
        load.stopped = True
    return Gaps(lateness, appended, took)


def precise_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers have microseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def run(settings: Settings, report: Report) -> None:
    """Alternate the two stores and compare their gaps."""
    progress("gap_p999_ms")
    messages = mixed_messages(_DISTINCT_MESSAGES)
    gc.freeze()  # the collector must not walk our own stock of messages while we measure
    names = session_names(SESSIONS)
    seconds = 4.0 if settings.quick else 10.0

    def null() -> Gaps:
        with NullStore() as store, asyncio.Runner(loop_factory=precise_loop) as runner:
            appends = [store.session(name).append for name in names]
            return runner.run(gaps_under_load(appends, messages, seconds=seconds, seed=SEED))

    def ours() -> Gaps:
        with fresh_directory(settings) as directory, Store.open(directory / "store") as store:
            appends = [store.session(name).append for name in names]
            with asyncio.Runner(loop_factory=precise_loop) as runner:
                return runner.run(gaps_under_load(appends, messages, seconds=seconds, seed=SEED))

    rounds = interleave({"null": null, "ours": ours}, 3 if settings.quick else 7)
    figure: dict[str, object] = {
        "unit": "ms",
        "sessions": SESSIONS,
        "offered_per_second": EVENTS_PER_SECOND,
        "seconds_per_round": seconds,
    }
    pooled: dict[str, float] = {}
    for side, gaps in rounds.items():
        # A rare gap may miss most rounds; only all of them together know its share of time.
        together = [value for gap in gaps for value in gap.lateness_ms]
        pooled[side] = percentile(together, _SHARE)
        label = "yardstick" if side == "null" else side
        figure[f"{label}_p999"] = significant(pooled[side])
        figure[f"{label}_p99"] = significant(percentile(together, 0.99))
        figure[f"{label}_p50"] = significant(percentile(together, 0.5))
        figure[f"{label}_max"] = significant(max(together))
        figure[label] = [significant(percentile(gap.lateness_ms, _SHARE)) for gap in gaps]
        figure[f"{label}_appended_per_second"] = [
            significant(gap.appended / gap.seconds) for gap in gaps
        ]
    report.figures["gap_p999_ms"] = figure
    report.results.append(Result("gap_p999_ms", pooled["ours"] - pooled["null"]))
