"""The Nth system call fails or kills, then the next one, until none is left to hit.

Operations run in a process under strace, which tampers with the Nth call of one kind in each
thread. After each, the store opens, goes on, and holds what it must. The sweep over every point is
part of ``make crash``; the short one takes few points of each kind.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eventlog.place import LOCK_FILE
from eventlog.raw import DATA_FILE
from tests.crash.conftest import Watchdog
from tests.crash.forkserver import Child, ForkServer
from tests.crash.oracle import Oracle
from tests.crash.stage import Run, Stage
from tests.crash.tracing import trace

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

OPERATIONS = ("create", "append", "roll up", "cut")
CALLS = (
    "pwrite64",
    "writev",
    "write",
    "fdatasync",
    "fsync",
    "openat",
    "rename",
    "ftruncate",
    "mmap",
)
ACTIONS = ("signal=SIGKILL", "error=EIO", "error=ENOSPC", "error=EINTR")
SHORT_POINTS = 1  # of each operation, call and action
POINTS_MAX = 3_000  # a sweep that goes on for longer does not come to an end


@pytest.fixture
def stage(forks: ForkServer, tmp_path: Path) -> Stage:
    return Stage(forks, tmp_path)


@pytest.fixture
def tracer(strace: str, forks: ForkServer, tmp_path: Path) -> str:
    """The strace command, where this process may trace others."""
    folder = tmp_path / "probe"
    folder.mkdir()
    stage = Stage(forks, folder)
    (folder / "traced").mkdir()

    def start(gate: Path) -> Child:
        return stage.start("create", "probe", gate=gate)[0].child

    try:
        with trace(strace, folder / "traced", start, calls=("fsync",)) as traced:
            assert traced.finish() == 0, traced.child.said()
    except PermissionError as error:
        pytest.skip(f"strace may not attach: {error}")
    return strace


def which(stage: Stage, operation: str, call: str) -> dict[str, Any]:
    """Memory for the interpreter itself is not ours: a new thread without any hangs its starter.

    So only the maps of the store's files fail, or, while their names are not known yet, only what
    the main thread maps.
    """
    if call != "mmap":
        return {}
    if operation == "create":
        return {"threads": False}
    path = stage.next_path
    return {"only": (path / DATA_FILE, path / LOCK_FILE)}


class Sweep:
    """One operation, one kind of call, one action: at the first call, the second, and so on."""

    def __init__(
        self, stage: Stage, strace: str, folder: Path, operation: str, call: str, action: str
    ) -> None:
        self._stage = stage
        self._strace = strace
        self._folder = folder
        self.operation = operation
        self.call = call
        self.action = action
        self.count = 0

    def at(self, nth: int, *, persistent: bool = False) -> bool:
        """Tamper with the Nth call; False when there was none."""
        self.count += 1
        when = f"{nth}+" if persistent else str(nth)
        where = f"{self.operation}: {self.call}:{self.action}:when={when}"
        folder = self._folder / where.replace("/", "").replace(" ", "")
        folder.mkdir()
        run = oracle = None

        def start(gate: Path) -> Child:
            nonlocal run, oracle
            run, oracle = self._stage.start(self.operation, where, gate=gate)
            return run.child

        traced = trace(
            self._strace,
            folder,
            start,
            calls=(self.call,),
            inject=f"{self.call}:{self.action}:when={when}",
            **which(self._stage, self.operation, self.call),
        )
        status = traced.finish()
        assert run is not None and oracle is not None
        killed = status == -signal.SIGKILL
        if self.action == "signal=SIGKILL":
            assert killed or status == 0, f"{where}: {run.child.said()}"
        elif self.call != "mmap":
            # Memory that the interpreter itself does not get may surface as anything.
            assert status == 0, f"{where}: {run.child.said()}"
        elif status != 0:
            assert status == 1, f"{where}: {run.child.said()}"
        hit = killed or traced.injected > 0
        self._stage.judge(run, oracle)
        return hit


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_few_points(
    operation: str,
    action: str,
    stage: Stage,
    tracer: str,
    forks: ForkServer,
    tmp_path: Path,
    watchdog: Watchdog,
) -> None:
    """The calls of one kind, spread evenly over what the operation makes of them."""
    counts = calls_of(operation, stage, tracer, tmp_path)
    hit = 0
    for number, call in enumerate(CALLS):
        count = counts[call]
        each = Sweep(stage, tracer, tmp_path, operation, call, action)
        # Another of the points for each action, so that together they are more.
        offset = (number + ACTIONS.index(action)) % max(1, count)
        parts = [
            (offset + part * count // SHORT_POINTS) % max(1, count) for part in range(SHORT_POINTS)
        ]
        for nth in sorted({1 + part for part in parts}) if count else ():
            watchdog.feed()
            hit += each.at(nth)
    assert hit >= len([call for call in CALLS if counts[call]])


def calls_of(operation: str, stage: Stage, strace: str, folder: Path) -> Counter[str]:
    """How many calls of each kind the busiest thread makes."""
    most: Counter[str] = Counter()
    for calls in (tuple([call for call in CALLS if call != "mmap"]), ("mmap",)):
        where = folder / f"calls {len(calls)}"
        where.mkdir()
        started = []

        def start(gate: Path, started: list[tuple[Run, Oracle]] = started) -> Child:
            started.append(stage.start(operation, "unharmed", gate=gate))
            return started[0][0].child

        traced = trace(strace, where, start, calls=calls, **which(stage, operation, calls[0]))
        assert traced.finish() == 0, traced.child.said()
        stage.judge(*started[0])
        for (_, call), count in traced.counts().items():
            most[call] = max(most[call], count)
    return most


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_point(
    operation: str,
    action: str,
    stage: Stage,
    tracer: str,
    tmp_path: Path,
    watchdog: Watchdog,
) -> None:
    """Until a whole run passes untouched, for each kind of call."""
    points: Counter[str] = Counter()
    for call in CALLS:
        each = Sweep(stage, tracer, tmp_path, operation, call, action)
        for nth in range(1, POINTS_MAX):
            watchdog.feed()
            if not each.at(nth):
                break
            points[call] += 1
        else:
            raise AssertionError(f"{operation}: no end of {call}")
    print(f"{operation}, {action}: {sum(points.values())} points hit: {dict(points)}")
    assert sum(points.values()) > 10
