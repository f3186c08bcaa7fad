"""Kill loops: processes of one store are killed at any instant, again and again.

``--crash-cycles=N`` sets the number of cycles; a failure names the seed, and ``TURNLOG_CRASH_SEED``
repeats it (what the processes do, not where in it they die).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from engine import Store
from tests.crash.conftest import Watchdog
from tests.crash.forkserver import Child, ForkServer
from tests.crash.journal import JournalReader
from tests.crash.oracle import Oracle
from tests.crash.reader import follow, read, write_and_look
from tests.crash.workload import new_journal, write

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

GENERATION = 50  # cycles that one store lives for
QUIET_EVERY = 10  # in every so many-th cycle nobody is left, and the files are judged too
KILL_AFTER_S = 0.06  # a process lives at most so long after its cycle began
STEP_S = 25.0


@dataclass
class Slot:
    """One process of the loop, and the next after each kill."""

    name: str
    work: Callable[..., object]
    options: dict[str, int]
    child: Child | None = None
    lives: int = 0
    unfinished: list[Path] = field(default_factory=list)
    progress: JournalReader | None = None

    @property
    def is_writer(self) -> bool:
        """Whether it appends."""
        return self.work in (write, write_and_look)


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
        self.oracle = Oracle(f"seed {seed}")
        self.kills = 0

    def begin(self, slot: Slot) -> None:
        """Start a slot's next process."""
        slot.lives += 1
        journal = new_journal(self._folder, slot.name, slot.lives)
        slot.progress = JournalReader(journal)
        arguments: dict[str, object] = {"path": self.path, "journal": journal, **slot.options}
        arguments["seed"] = self._random.getrandbits(32)
        if slot.is_writer:
            arguments |= {"slot": slot.name, "before": list(slot.unfinished)}
            slot.unfinished = [*slot.unfinished[-3:], journal]
        self.oracle.listen(journal)
        slot.child = self._forks.start(slot.work, self._folder, **arguments)

    def kill(self, slots: list[Slot]) -> None:
        """Kill some processes at once; anything but this kill would be a failure of its own."""
        for slot in slots:
            assert slot.child is not None
            assert slot.child.poll() is None, (
                f"{slot.name} ended with {slot.child.status}: {slot.child.said()} "
                f"[seed {self._seed}]"
            )
            slot.child.kill()
        for slot in slots:
            assert slot.child is not None
            status = slot.child.wait()
            assert status == -9, f"{status}: {slot.child.said()} [seed {self._seed}]"
            self.kills += 1

    def await_progress(self, slots: list[Slot]) -> None:
        """Wait until each process has done something: nobody is stuck behind the dead."""
        waiting = list(slots)
        end = time.monotonic() + STEP_S
        while waiting:
            still = []
            for slot in waiting:
                assert slot.progress is not None and slot.child is not None
                lines = slot.progress.read()
                done = [line for line in lines if "ack" in line or "no" in line or "saw" in line]
                if not done:
                    still.append(slot)
            waiting = still
            if waiting:
                names = [slot.name for slot in waiting]
                for slot in waiting:
                    assert slot.child is not None
                    status = slot.child.poll()
                    assert status is None, f"{slot.name}: {slot.child.said()} [seed {self._seed}]"
                assert time.monotonic() < end, f"{names} do nothing [seed {self._seed}]"
                time.sleep(0.001)

    def cycle(self, number: int, *, last: bool) -> None:
        """Let all run, kill some, judge."""
        self._dog.feed()
        for slot in self._slots:
            if slot.child is None or slot.child.status is not None:
                self.begin(slot)
        self.await_progress(self._slots)
        time.sleep(self._random.random() * KILL_AFTER_S)  # the instant is the fault that is tried
        if last or number % QUIET_EVERY == 0:
            self.kill(self._slots)
            self.oracle.audit(self.path, seed=number, thorough=last)
            self.oracle.forget(*self.oracle_journals())
            return
        count = min(len(self._slots), self._random.choice((1, 1, 1, 2, 3)))
        victims = self._random.sample(self._slots, count)
        self.kill([slot for slot in self._slots if slot in victims])
        survivors = [slot for slot in self._slots if slot not in victims]
        if any([slot.is_writer for slot in survivors]):
            self.await_progress(survivors)
        with Store.open(self.path, create=False, read_only=number % 2 == 0) as store:
            self.oracle.follow(store)

    def oracle_journals(self) -> list[Path]:
        """Journals that get no more lines once nobody runs."""
        return list(self._folder.glob("*.journal"))

    def run(self, cycles: int) -> None:
        """All cycles; the last one judges the whole."""
        with Store.open(self.path):
            pass
        for number in range(1, cycles + 1):
            self.cycle(number, last=number == cycles)


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
        loop.run(min(GENERATION, cycles - start))
        kills += loop.kills
        events += loop.oracle.last_position
        stores += 1
    print(f"{cycles} cycles, {kills} kills, {stores} stores, {events:,} events, seed {seed}")


def test_row_02_any_of_several_processes_is_killed(
    forks: ForkServer, tmp_path: Path, crash_cycles: int, crash_seed: int, watchdog: Watchdog
) -> None:
    """Others go on, nothing acknowledged is lost, and nobody ever saw what was not kept."""

    def slots() -> list[Slot]:
        return [
            Slot("sealer", write, {"frequency": 1, "batch_max": 100, "pace_us": 2_000}),
            Slot("batches", write_and_look, {"depth": 40, "pace_us": 1_000}),
            Slot("lone", write, {"depth": 0, "batch_max": 5, "pace_us": 500}),
            Slot("reader", read, {}),
            Slot("subscriber", follow, {}),
        ]

    _run(forks, tmp_path, crash_cycles, crash_seed, slots, watchdog)


def test_row_01_a_lone_writer_is_killed(
    forks: ForkServer, tmp_path: Path, crash_cycles: int, crash_seed: int, watchdog: Watchdog
) -> None:
    """No repair step: opening changes no byte, and what is there is what was promised."""

    def slots() -> list[Slot]:
        return [
            Slot("writer", write, {"frequency": 2, "depth": 20, "batch_max": 300, "pace_us": 2_000})
        ]

    _run(forks, tmp_path, crash_cycles, crash_seed, slots, watchdog)
