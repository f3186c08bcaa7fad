"""A process that forks others quickly: everything is imported before, no store is open.

The server reads requests from its standard input, one JSON object a line, and answers on its
standard output. It ends when its input does, and whatever it started ends with it, so that nothing
outlives a test run, however that ends.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = tuple(
    [
        f"tests.crash.{name}"
        for name in (
            "workload",
            "reader",
            "oracle",
            "driver",
            "maintenance",
            "removals",
            "peer",
            "growing",
        )
    ]
)
PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61
WAIT_S = 60.0


class Child:
    """A forked process."""

    def __init__(self, server: ForkServer, pid: int, log: Path) -> None:
        self._server = server
        self.pid = pid
        self.log = log
        self.status: int | None = None

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.status is None:
            self._server.request(signal=number, pid=self.pid)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Its exit status once it has ended: negative for a signal."""
        self._server.pump(0)
        return self.status

    def wait(self, seconds: float = WAIT_S) -> int:
        """Wait until it has ended.

        Raises:
            TimeoutError: It goes on; its stacks are in its log.
        """
        end = time.monotonic() + seconds
        while self.status is None:
            left = end - time.monotonic()
            if left <= 0:
                self.signal(signal.SIGUSR1)  # faulthandler writes all stacks
                self._server.pump(0.5)
                raise TimeoutError(f"process {self.pid} hangs:\n{self.said()}")
            self._server.pump(left)
        return self.status

    def said(self) -> str:
        """What it wrote on its standard output and error."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def finish(self, seconds: float = WAIT_S) -> str:
        """Wait; it must end well. What it wrote."""
        status = self.wait(seconds)
        assert status == 0, f"process {self.pid} ended with {status}:\n{self.said()}"
        return self.said()


class ForkServer:
    """The parent's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forkserver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "OPENBLAS_NUM_THREADS": "1",
                "PYTHONFAULTHANDLER": "1",
            },
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        self._output: IO[bytes] = self._process.stdout
        self._rest = b""
        self._children: dict[int, Child] = {}
        self._started: list[Child] = []
        self._log = Path(os.devnull)
        self._count = 0

    def start(self, work: Callable[..., object], folder: Path, **arguments: Any) -> Child:
        """Run a function of a module in a new process.

        Args:
            work: A function at the top of a module of ``MODULES``.
            folder: Where its log goes.
            arguments: Plain data and paths, for the function.
        """
        self._count += 1
        self._log = folder / f"child{self._count}.log"
        self.request(
            work=f"{work.__module__}:{work.__name__}",
            arguments={name: _plain(value) for name, value in arguments.items()},
            log=str(self._log),
        )
        end = time.monotonic() + WAIT_S
        while not self._started:
            self.pump(max(0.0, end - time.monotonic()))
            assert time.monotonic() < end, "the fork server does not answer"
        return self._started.pop()

    def request(self, **fields: Any) -> None:
        """Send one line to the server."""
        self._input.write(json.dumps(fields).encode() + b"\n")
        self._input.flush()

    def pump(self, seconds: float) -> None:
        """Take in what the server says, waiting at most so long for something."""
        ready, _, _ = select.select([self._output], [], [], seconds)
        if not ready:
            return
        data = os.read(self._output.fileno(), 65_536)
        assert data, "the fork server has ended"
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "status" in answer:
                self._children.pop(answer["pid"]).status = answer["status"]
            else:
                child = Child(self, answer["pid"], self._log)
                self._children[child.pid] = child
                self._started.append(child)

    def end_children(self) -> None:
        """Kill all that still runs, and wait for it."""
        for child in list(self._children.values()):
            child.kill()
            child.signal(signal.SIGCONT)
        for child in list(self._children.values()):
            child.wait()

    def close(self) -> None:
        """End the server and all that it started."""
        self._input.close()
        self._process.wait(WAIT_S)
        self._output.close()


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


# The server's side


def _serve() -> None:
    for name in MODULES:
        importlib.import_module(name)
    alarm, poked = socket.socketpair()
    alarm.setblocking(False)
    poked.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(poked.fileno(), warn_on_full_buffer=False)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    running: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([0, alarm.fileno()], [], [])
        if alarm.fileno() in ready:
            alarm.recv(4_096)
            _reap(running)
        if 0 not in ready:
            continue
        data = os.read(0, 65_536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "signal" in request:
                if request["pid"] in running:
                    os.kill(request["pid"], request["signal"])
                continue
            pid = os.fork()
            if pid == 0:
                _work(request, prctl)
            running.add(pid)
            _answer(pid=pid)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    while running:
        running.discard(os.wait()[0])


def _reap(running: set[int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        running.discard(pid)
        _answer(pid=pid, status=os.waitstatus_to_exitcode(status))


def _answer(**fields: Any) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def _work(request: dict[str, Any], prctl: Any) -> None:
    """The life of a forked process."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            prctl(PR_SET_PTRACER, ctypes.c_ulong(-1))
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, descriptor)
        module, name = request["work"].split(":")
        work = getattr(sys.modules[module], name)
        work(**request["arguments"])
        code = 0
    except BaseException:  # noqa: BLE001  told in the log and by the exit status
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import faulthandler

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _serve()
