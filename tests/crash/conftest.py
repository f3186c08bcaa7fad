"""Fixtures of the crash tests: processes that end with the test, and a watchdog."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.crash.forkserver import ForkServer
from tests.crash.maintenance import WORKS
from tests.crash.oracle import Oracle
from tests.crash.peer import Peer
from tests.crash.workshop import Workshop

Counts = dict[str, dict[str, int]]

HANG_S = 120  # also where other work has most of the machine


class Hang(Exception):
    """A step of a test took longer than anything in a store may take."""


class Watchdog:
    """Raises ``Hang`` in the main thread unless it is fed in time."""

    def feed(self) -> None:
        """Begin the next step."""
        signal.setitimer(signal.ITIMER_REAL, HANG_S)

    def stop(self) -> None:
        """No more steps."""
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    """Fed once when the test begins; a test of many steps feeds it at each."""

    def bark(number: int, frame: FrameType | None) -> None:
        raise Hang(f"nothing happened for {HANG_S} s")

    before = signal.signal(signal.SIGALRM, bark)
    dog = Watchdog()
    dog.feed()
    yield dog
    dog.stop()
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One server for the whole run."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def forks(fork_server: ForkServer) -> Iterator[ForkServer]:
    """Starts processes; those that still run when the test ends are killed."""
    yield fork_server
    fork_server.end_children()


@pytest.fixture(scope="session")
def maintenance_counts(
    fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Counts]:
    """How often each work passes each failpoint; found by letting it run once."""
    folder = tmp_path_factory.mktemp("maintenance")
    workshop = Workshop(fork_server, folder, folder)
    found: Counts = {}
    for work in WORKS:
        job = workshop.start(work, work, failpoint="count")
        job.child.finish()
        found[work] = job.counts()
        workshop.judge(job)
    yield found
    fork_server.end_children()


@pytest.fixture
def peers(forks: ForkServer, store_path: Path) -> Iterator[Callable[..., Peer]]:
    """Starts peers on one store; when the test ends they end, and the store is judged."""
    started: list[Peer] = []

    def start(slot: str, **options: Any) -> Peer:
        peer = Peer(forks, store_path, slot, **options)
        started.append(peer)
        return peer

    yield start
    with ExitStack() as ends:
        for peer in reversed(started):
            ends.callback(peer.end)
    oracle = Oracle()
    oracle.listen(*[peer.journal for peer in started])
    oracle.audit(store_path)


@pytest.fixture
def strace() -> str:
    """The strace command."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("there is no strace")
    return found


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts something; unmounted when the test ends."""
    points: list[Path] = []

    def mount(*arguments: str) -> Path:
        point = tmp_path / f"mount{len(points)}"
        point.mkdir()
        command = ["mount", *arguments, str(point)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode != 0:
            pytest.skip(f"cannot mount: {done.stderr.strip()}")
        points.append(point)
        return point

    yield mount
    for point in reversed(points):
        subprocess.run(["umount", str(point)], check=True)


@pytest.fixture
def crash_seed() -> int:
    """What the random part of a crash test begins with; a failure shows it."""
    return int(os.environ.get("TURNLOG_CRASH_SEED", "20250601"))
