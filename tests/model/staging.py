"""What tests of concurrent code need to put threads and processes where they want them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine import Ack
from eventlog.failpoints import failpoints
from tests.model.answers import Placed

REPOSITORY = Path(__file__).resolve().parents[2]
HANG_S = 30.0  # nothing in a store may take longer; whatever waits for it fails then


class Halt:
    """A failpoint action: the first thread that comes by waits there until it is let go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._reached = threading.Event()
        self._released = threading.Event()

    def __call__(self) -> None:
        with self._lock:
            if self._taken:
                return
            self._taken = True
        self._reached.set()
        self._released.wait(HANG_S)

    def wait_reached(self) -> None:
        """Wait until a thread stands there."""
        assert self._reached.wait(HANG_S), "nobody came to the failpoint"

    def stands_there(self, seconds: float) -> bool:
        """Whether a thread comes there in so much time, where a mistake alone would lead it."""
        return self._reached.wait(seconds)

    def release(self) -> None:
        """Let it go."""
        self._released.set()


@contextmanager
def halted(name: str) -> Iterator[Halt]:
    """Stop the first thread that comes to a failpoint, for the body of the ``with`` at most."""
    halt = Halt()
    with failpoints({name: halt}):
        try:
            yield halt
        finally:
            halt.release()


def once(action: Callable[[], object]) -> Callable[[], None]:
    """An action that does something the first time only."""
    lock = threading.Lock()

    def act() -> None:
        if lock.acquire(blocking=False):
            action()

    return act


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls at the same time, each in a thread of its own, and give their results.

    The first error of any is raised; a call that does not end fails the test.
    """
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(calls))

    def run(place: int) -> None:
        try:
            barrier.wait(HANG_S)
            results[place] = calls[place]()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


@contextmanager
def busy_threads() -> Iterator[None]:
    """Switch threads as often as the interpreter can, so that they meet in more places."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_script(
    script: str, *arguments: str | Path, code: int | None = 0, seconds: float = HANG_S
) -> str:
    """Run Python in a process of its own and give what it printed.

    Args:
        script: The program; it finds ``engine`` and ``tests``.
        arguments: Its ``sys.argv[1:]``.
        code: The exit status that it must have; None for any.
        seconds: How long it may take.
    """
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    try:
        output, complaints = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler then says where each thread stands
        output, complaints = process.communicate()
        raise AssertionError(f"the process hangs: {complaints}") from None
    if code is not None:
        assert process.returncode == code, (process.returncode, complaints)
    return output


def placed(ack: Ack) -> Placed:
    """What a settled ack says."""
    return Placed(ack.first, ack.last, ack.position, ack.event_id, ack.already)
