"""Faults in all that is no plain append: at each failpoint, and at the Nth system call."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.conftest import Counts, Watchdog
from tests.crash.forkserver import Child, ForkServer
from tests.crash.maintenance import WORKS
from tests.crash.test_failpoints import DRIVEN
from tests.crash.test_nth_call import ACTIONS, CALLS, POINTS_MAX
from tests.crash.tracing import Traced, trace
from tests.crash.workshop import Job, Workshop

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

FAULTS = ("io", "interrupt", "kill")
POINTS = 3  # calls that a short sweep tampers with
# Memory for the interpreter itself is not ours to fail.
SWEPT = (*[call for call in CALLS if call != "mmap"], "unlink", "unlinkat", "fchmod", "mkdir")
WRITES = ("pwrite64", "writev", "write")
SHORT_WRITE = "retval=0"  # nothing was written, and that is said


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared stores, for all tests here."""
    return tmp_path_factory.mktemp("stock")


@pytest.fixture
def workshop(forks: ForkServer, stock: Path, tmp_path: Path, crash_cycles: int) -> Workshop:
    return Workshop(forks, stock, tmp_path, thorough=crash_cycles >= 20)


@pytest.mark.parametrize("action", FAULTS)
@pytest.mark.parametrize("work", WORKS)
def test_a_fault_at_a_failpoint(
    work: str,
    action: str,
    maintenance_counts: Counts,
    workshop: Workshop,
    crash_cycles: int,
    watchdog: Watchdog,
) -> None:
    """First, last and a pass in between; one of each sort of failpoint when the run is short.

    The last pass need not come again: how many commits a work takes depends on timing.
    """
    passed = {name: count for name, count in maintenance_counts[work].items() if count}
    assert passed
    turn = FAULTS.index(action) + list(WORKS).index(work)
    names = sorted(passed)
    if crash_cycles < 20:
        sorts = [[name for name in names if (name in DRIVEN) is is_driven] for is_driven in (0, 1)]
        names = [sort[turn % len(sort)] for sort in sorts if sort]
    for name in names:
        hits = sorted({1, (passed[name] + 1) // 2, passed[name]})
        if crash_cycles < 20:
            hits = [hits[turn % len(hits)]]
        for hit in hits:
            watchdog.feed()
            where = f"{work}: {action} at pass {hit} of {name}"
            job = workshop.start(work, where, failpoint=name, hit=hit, action=action)
            status = job.child.wait()
            if action == "kill" and (status != 0 or hit == 1):
                assert status == -signal.SIGKILL, f"{where}: {job.child.said()}"
            else:
                assert status == 0, f"{where}: {job.child.said()}"
            if action == "io" and not name.endswith(".after_view"):  # raised in a caller, bare
                bare = [line for line in job.lines() if line.get("bare")]
                assert not bare, f"{where}: {bare}"
            workshop.judge(job)


class Sweep:
    """Works under strace, each on a store of its own."""

    def __init__(self, workshop: Workshop, strace: str, folder: Path) -> None:
        self._workshop = workshop
        self._strace = strace
        self._folder = folder
        self._runs = 0

    def run(
        self, work: str, where: str, calls: tuple[str, ...], inject: str | None
    ) -> tuple[int, Traced]:
        """Let a work run, and judge what it left; its exit status and its trace."""
        self._runs += 1
        folder = self._folder / f"trace{self._runs}"
        folder.mkdir()
        started: list[Job] = []

        def start(gate: Path) -> Child:
            started.append(self._workshop.start(work, where, gate=gate))
            return started[0].child

        with trace(self._strace, folder, start, calls=calls, inject=inject) as traced:
            status = traced.finish()
        assert status in (0, -signal.SIGKILL), f"{where}: {status}, {traced.child.said()}"
        self._workshop.judge(started[0])
        return status, traced

    def at(self, work: str, call: str, action: str, nth: int) -> bool:
        """Tamper with the Nth call; False when there was none."""
        where = f"{work}: {call}, {action}, when={nth}"
        status, traced = self.run(work, where, (call,), f"{call}:{action}:when={nth}")
        return status == -signal.SIGKILL or traced.injected > 0

    def counts(self, work: str) -> Counter[str]:
        """How many calls of each kind the thread makes that makes the most of them."""
        most: Counter[str] = Counter()
        status, traced = self.run(work, f"{work}, unharmed", SWEPT, None)
        assert status == 0
        for (_, call), count in traced.counts().items():
            most[call] = max(most[call], count)
        return most


@pytest.fixture
def sweep(strace: str, workshop: Workshop, tmp_path: Path) -> Sweep:
    """Where this process may trace others."""
    sweep = Sweep(workshop, strace, tmp_path)
    try:
        sweep.run("delete", "probe", ("fsync",), None)
    except PermissionError as error:
        pytest.skip(f"strace may not attach: {error}")
    return sweep


@pytest.mark.parametrize("work", WORKS)
def test_few_calls(work: str, sweep: Sweep, watchdog: Watchdog) -> None:
    """Calls of some kinds, each with another action, somewhere in the work."""
    counts = sorted(sweep.counts(work).items())
    hit = 0
    place = list(WORKS).index(work)
    chosen = [counts[(place + 2 * number) % len(counts)] for number in range(POINTS)]
    for number, (call, count) in enumerate(chosen):
        watchdog.feed()
        actions = (*ACTIONS, SHORT_WRITE) if call in WRITES else ACTIONS
        action = actions[(number + place) % len(actions)]
        hit += sweep.at(work, call, action, 1 + (number + place) % 3 * (count - 1) // 3)
    assert hit


@pytest.mark.slow
@pytest.mark.parametrize("action", (*ACTIONS, SHORT_WRITE))
@pytest.mark.parametrize("work", WORKS)
def test_every_call(work: str, action: str, sweep: Sweep, watchdog: Watchdog) -> None:
    """Until a whole run passes untouched, for each kind of call."""
    points: Counter[str] = Counter()
    for call in WRITES if action == SHORT_WRITE else SWEPT:
        for nth in range(1, POINTS_MAX):
            watchdog.feed()
            if not sweep.at(work, call, action, nth):
                break
            points[call] += 1
        else:
            raise AssertionError(f"{work}: no end of {call}")
    print(f"{work}, {action}: {sum(points.values())} points, {dict(points)}")
    assert sum(points.values()) > 3
