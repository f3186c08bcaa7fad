"""Sessions that are appended to, deleted, erased and made anew, by processes that are killed.

``--crash-cycles=N`` sets the number of cycles; a failure names the seed, and ``TURNLOG_CRASH_SEED``
repeats it (what the processes do, not where in it they die).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Store
from eventlog.limits import HOT_TABLE_POSITIONS
from tests.crash.conftest import Watchdog
from tests.crash.forkserver import Child, ForkServer
from tests.crash.incarnations import Incarnations
from tests.crash.journal import JournalReader
from tests.crash.removals import UNWATCHED, attend, churn, journal_of, remake, watch

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

GENERATION = 20  # cycles that one store lives for
KILL_AFTER_S = 0.08
STEP_S = 25.0
THOROUGH_EVERY = 4
FILLED = HOT_TABLE_POSITIONS // 1_000


@dataclass
class Slot:
    """One process of the loop, and the next after each kill."""

    name: str
    work: Callable[..., object]
    options: dict[str, Any]
    child: Child | None = None
    progress: JournalReader | None = None
    lives: int = 0


class Loop:
    """A store, its processes and its oracle."""

    def __init__(
        self, forks: ForkServer, folder: Path, seed: int, slots: list[Slot], dog: Watchdog
    ) -> None:
        self._forks = forks
        self._folder = folder
        self._seed = seed
        self._slots = slots
        self._dog = dog
        self._random = Random(seed)
        self.path = folder / "store"
        self.oracle = Incarnations(f"seed {seed}")
        self.kills = 0

    def begin(self, slot: Slot) -> None:
        """Start a slot's next process."""
        slot.lives += 1
        journal = journal_of(self._folder, slot.name, slot.lives)
        slot.progress = JournalReader(journal)
        self.oracle.listen(journal)
        slot.child = self._forks.start(
            slot.work,
            self._folder,
            path=self.path,
            journal=journal,
            slot=slot.name,
            seed=self._random.getrandbits(32),
            **slot.options,
        )

    def kill(self, slots: list[Slot]) -> None:
        """Kill some processes at once; anything but this kill would be a failure of its own."""
        for slot in slots:
            assert slot.child is not None
            slot.child.kill()
        for slot in slots:
            assert slot.child is not None
            status = slot.child.wait()
            assert status == -signal.SIGKILL, f"{slot.name}: {slot.child.said()} {self._seed}"
            slot.child = None
            self.kills += 1

    def await_progress(self, slots: list[Slot]) -> None:
        """Wait until each process has done something more: nobody is stuck behind the dead."""
        end = time.monotonic() + STEP_S
        for slot in slots:
            assert slot.progress is not None and slot.child is not None
            while not [line for line in slot.progress.read() if "do" not in line]:
                status = slot.child.poll()
                assert status is None, f"{slot.name}: {slot.child.said()} [seed {self._seed}]"
                assert time.monotonic() < end, f"{slot.name} does nothing [seed {self._seed}]"
                time.sleep(0.001)

    def cycle(self, number: int, *, last: bool) -> None:
        """Let all run, kill some, let the others go on, kill them, judge."""
        self._dog.feed()
        for slot in self._slots:
            self.begin(slot)
        self.await_progress(self._slots)
        time.sleep(self._random.random() * KILL_AFTER_S)  # the instant is the fault that is tried
        victims = self._random.sample(self._slots, self._random.randint(1, len(self._slots)))
        self.kill([slot for slot in self._slots if slot in victims])
        survivors = [slot for slot in self._slots if slot not in victims]
        if any([slot.work is churn for slot in survivors]):
            self.await_progress(survivors)
        self.kill(survivors)
        self.oracle.audit(self.path, thorough=last or number % THOROUGH_EVERY == 0)


def _run(
    forks: ForkServer,
    folder: Path,
    cycles: int,
    seed: int,
    make_slots: Callable[[], list[Slot]],
    dog: Watchdog,
) -> None:
    kills = events = stores = 0
    for start in range(0, cycles, GENERATION):
        where = folder / f"generation{stores}"
        where.mkdir()
        loop = Loop(forks, where, seed + stores, make_slots(), dog)
        with Store.open(loop.path, snapshot_frequency=8) as store:
            for _ in range(FILLED):  # the first hot table is cut soon
                store.session(UNWATCHED[0]).append_many([{}] * 1_000).result()
        count = min(GENERATION, cycles - start)
        for number in range(1, count + 1):
            loop.cycle(number, last=number == count)
        kills += loop.kills
        events += loop.oracle.events
        stores += 1
    print(f"{cycles} cycles, {kills} kills, {stores} stores, {events:,} events, seed {seed}")


def test_row_05_a_lone_remover_is_killed(
    forks: ForkServer, tmp_path: Path, crash_cycles: int, crash_seed: int, watchdog: Watchdog
) -> None:
    """A session is there or gone, whenever the process that removed it dies."""

    def slots() -> list[Slot]:
        return [Slot("writer", churn, {"frequency": 4, "depth": 12, "pace_us": 300})]

    _run(forks, tmp_path, crash_cycles, crash_seed, slots, watchdog)


def test_row_64_several_remove_and_append(
    forks: ForkServer, tmp_path: Path, crash_cycles: int, crash_seed: int, watchdog: Watchdog
) -> None:
    """An append is in the old or the new incarnation; readers never see the two mixed."""

    def slots() -> list[Slot]:
        return [
            Slot("sealer", churn, {"frequency": 2, "pace_us": 1_500}),
            Slot("other", churn, {"depth": 20, "pace_us": 1_000, "watched": True}),
            Slot("watcher", watch, {}),
            Slot("subscriber", attend, {}),
            Slot("remaker", remake, {}),
        ]

    _run(forks, tmp_path, crash_cycles, crash_seed, slots, watchdog)


def test_rows_64_to_66_without_a_kill(forks: ForkServer, tmp_path: Path, crash_seed: int) -> None:
    """The same for longer: memory of a process outlives many incarnations."""
    path = tmp_path / "store"
    oracle = Incarnations(f"seed {crash_seed}")
    with Store.open(path, snapshot_frequency=8):
        pass
    children = []
    for slot, work, options in (
        ("one", churn, {"count": 400, "frequency": 3}),
        ("two", churn, {"count": 400, "depth": 20, "watched": True}),
        ("three", watch, {"count": 150}),
        ("four", watch, {"count": 150}),
        ("five", attend, {"count": 600}),
        ("six", remake, {"count": 20}),
    ):
        journal = journal_of(tmp_path, slot, 1)
        oracle.listen(journal)
        children.append(
            forks.start(
                work, tmp_path, path=path, journal=journal, slot=slot, seed=crash_seed, **options
            )
        )
    for child in children:
        child.finish(60)
    oracle.audit(path, thorough=True)
