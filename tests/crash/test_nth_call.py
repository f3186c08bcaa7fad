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
from tests.crash.driver import COPYING
from tests.crash.forkserver import Child, ForkServer
from tests.crash.oracle import Oracle
from tests.crash.stage import Run, Stage
from tests.crash.tracing import Traced, trace

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

OPERATIONS = ("create", "append", "roll up", "merge", "dictionary", "cut", *COPYING)
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
KILL = "signal=SIGKILL"
ACTIONS = (KILL, "error=EIO", "error=ENOSPC", "error=EINTR")
POINTS_MAX = 3_000  # a sweep that goes on for longer does not come to an end


class Sweep:
    """Operations under strace, each on a store of its own."""

    def __init__(self, forks: ForkServer, strace: str, folder: Path) -> None:
        self._stage = Stage(forks, folder)
        self._strace = strace
        self._folder = folder
        self._runs = 0

    def run(
        self, operation: str, where: str, calls: tuple[str, ...], inject: str | None
    ) -> tuple[int, Traced]:
        """Let an operation run, and judge what it left; its exit status and its trace."""
        self._runs += 1
        folder = self._folder / f"trace{self._runs}"
        folder.mkdir()
        started: list[tuple[Run, Oracle]] = []

        def start(gate: Path) -> Child:
            started.append(self._stage.start(operation, where, gate=gate))
            return started[0][0].child

        scope = self._scope(operation, calls)
        with trace(self._strace, folder, start, calls=calls, inject=inject, **scope) as traced:
            status = traced.finish()
        assert status in (0, 1, -signal.SIGKILL), f"{where}: {status}, {traced.child.said()}"
        if status == 1 and (inject is None or not inject.startswith("mmap")):
            raise AssertionError(f"{where}: {traced.child.said()}")
        self._stage.judge(*started[0])
        return status, traced

    def _scope(self, operation: str, calls: tuple[str, ...]) -> dict[str, Any]:
        """Memory for the interpreter itself is not ours: a thread without any hangs its starter.

        So only the maps of the store's files fail, or, while their names are not known yet, only
        what the main thread maps.
        """
        if calls != ("mmap",):
            return {}
        if operation == "create":
            return {"threads": False}
        path = self._stage.path_of_next(operation)
        return {"only": (path / DATA_FILE, path / LOCK_FILE)}

    def at(self, operation: str, call: str, action: str, nth: int) -> bool:
        """Tamper with the Nth call; False when there was none."""
        where = f"{operation}: {call}, {action}, when={nth}"
        status, traced = self.run(operation, where, (call,), f"{call}:{action}:when={nth}")
        return status == -signal.SIGKILL or traced.injected > 0

    def counts(self, operation: str) -> Counter[str]:
        """How many calls of each kind the thread makes that makes the most of them."""
        most: Counter[str] = Counter()
        for calls in (tuple([call for call in CALLS if call != "mmap"]), ("mmap",)):
            status, traced = self.run(operation, f"{operation}, unharmed", calls, None)
            assert status == 0
            for (_, call), count in traced.counts().items():
                most[call] = max(most[call], count)
        return most


@pytest.fixture
def sweep(strace: str, forks: ForkServer, tmp_path: Path) -> Sweep:
    """Where this process may trace others."""
    sweep = Sweep(forks, strace, tmp_path)
    try:
        sweep.run("create", "probe", ("fsync",), None)
    except PermissionError as error:
        pytest.skip(f"strace may not attach: {error}")
    return sweep


@pytest.mark.parametrize("operation", OPERATIONS)
def test_few_points(operation: str, sweep: Sweep, watchdog: Watchdog) -> None:
    """Two calls of each kind, each with another action, early and late in the operation."""
    counts = sweep.counts(operation)
    hit = 0
    for number, call in enumerate(CALLS):
        for part in (0, 1):
            if counts[call]:
                watchdog.feed()
                action = ACTIONS[(number + 2 * part + OPERATIONS.index(operation)) % len(ACTIONS)]
                hit += sweep.at(operation, call, action, 1 + part * counts[call] * 2 // 3)
    assert hit >= len(counts)


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_point(operation: str, action: str, sweep: Sweep, watchdog: Watchdog) -> None:
    """Until a whole run passes untouched, for each kind of call."""
    points: Counter[str] = Counter()
    for call in CALLS:
        for nth in range(1, POINTS_MAX):
            watchdog.feed()
            if not sweep.at(operation, call, action, nth):
                break
            points[call] += 1
        else:
            raise AssertionError(f"{operation}: no end of {call}")
    print(f"{operation}, {action}: {sum(points.values())} points, {dict(points)}")
    assert sum(points.values()) > 10
