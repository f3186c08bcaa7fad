"""Who carries out operations of ``tests.model.model`` on real stores: this process, or others.

Run as a program this is a server: it has imported everything and opened nothing, so each of the
processes that it forks is ready in milliseconds. It ends with the test run, whatever ends that.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from engine import Store
from tests.model.answers import Placed
from tests.model.operations import (
    Append,
    Op,
)
from tests.model.performing import append, perform
from tests.model.staging import HANG_S, REPOSITORY, placed

# Other processes


class Died(Exception):
    """A worker ended before it answered."""


class Worker:
    """Another process with stores of its own."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(4 * HANG_S)
        self._socket.connect(address)
        self.pid: int = self._receive()
        self._process = os.pidfd_open(self.pid)
        self._is_closed = False

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call a function of ``_Desk`` over there."""
        self._send((what, arguments))
        return self._receive()

    def perform(self, path: Path, op: Op) -> Any:
        """Carry out an operation on the store at a path."""
        return self.ask("perform", str(path), op)

    def burst(self, path: Path, appends: Iterable[Append], acknowledged: int) -> list[Placed]:
        """Submit appends there and kill the process once so many are acknowledged.

        Returns:
            The answers that came before it died.
        """
        self._send(("burst", (str(path), tuple(appends), acknowledged)))
        answers: list[Placed] = []
        with contextlib.suppress(Died):
            while True:
                answers.append(self._receive())
        self.close()
        return answers

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(Died):
            self._receive()
        self.close()

    def close(self) -> None:
        """Let it go; it closes its stores and ends, and has ended when this returns."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError):  # also when it was closed before
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(65_536):
                pass
        self._socket.close()
        ended, _, _ = select.select([self._process], [], [], 4 * HANG_S)
        os.close(self._process)
        assert ended, "the other process does not end"

    def _send(self, value: Any) -> None:
        _send(self._socket, value)

    def _receive(self) -> Any:
        value = _receive(self._socket)
        if isinstance(value, _Failure):
            raise AssertionError(f"the other process failed:\n{value.trace}")
        return value


class Workers:
    """Starts other processes quickly."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="turnlog-workers-")
        self._address = str(Path(self._folder.name, "socket"))
        self._server = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.model.actors", self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1"},
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"
        self._started: list[Worker] = []

    def start(self) -> Worker:
        """A new process without any open store."""
        worker = Worker(self._address)
        self._started.append(worker)
        return worker

    def close(self) -> None:
        """End the server and all that it started."""
        for worker in self._started:
            worker.close()
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(HANG_S)
        self._server.stdout.close()
        self._folder.cleanup()


# Their side


class _Failure:
    def __init__(self, trace: str) -> None:
        self.trace = trace


class _Desk:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stores: dict[str, Store] = {}

    def store(self, path: str) -> Store:
        if path not in self._stores:
            self._stores[path] = Store.open(path)
        return self._stores[path]

    def perform(self, path: str, op: Op) -> Any:
        return perform(self.store(path), op)

    def reopen(self, path: str) -> None:
        self.store(path).close()
        del self._stores[path]

    def burst(self, path: str, appends: tuple[Append, ...], acknowledged: int) -> None:
        store = self.store(path)
        acks = [append(store, each) for each in appends]
        for ack in acks[:acknowledged]:
            _send(self._connection, placed(ack.result(HANG_S)))
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


def _send(connection: socket.socket, value: Any) -> None:
    data = pickle.dumps(value)
    connection.sendall(len(data).to_bytes(8, "big") + data)


def _receive(connection: socket.socket) -> Any:
    size = int.from_bytes(_take(connection, 8), "big")
    return pickle.loads(_take(connection, size))


def _take(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        try:
            part = connection.recv(min(size, 1 << 20))
        except ConnectionResetError:
            part = b""
        if not part:
            raise Died
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _work(connection: socket.socket) -> None:
    desk = _Desk(connection)
    _send(connection, os.getpid())
    while True:
        try:
            what, arguments = _receive(connection)
        except Died:
            desk.close()
            return
        call: Callable[..., Any] = getattr(desk, what)
        try:
            answer = call(*arguments)
        except BaseException:  # noqa: BLE001 - told to whoever asked
            answer = _Failure(traceback.format_exc())
        _send(connection, answer)


def _serve(address: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system buries the dead
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    gc.freeze()
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _work(connection)
            connection.close()
            os._exit(0)
        connection.close()


if __name__ == "__main__":
    # Values are pickled by their module's name, so this must not go on as ``__main__``.
    from tests.model import actors

    actors._serve(sys.argv[1])
