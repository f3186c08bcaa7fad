"""A process with the store open that does what a test tells it, one command at a time.

With it a test lays down in which order things happen in several processes: a thread can be held at
a failpoint, or in the middle of catching up, until the test lets it go.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from engine import Store
from engine.events import Event
from eventlog.errors import StorageFullError, TurnlogError
from eventlog.failpoints import set_failpoints
from eventlog.lmdb_errors import CommitFailedError
from tests.crash.forkserver import Child, ForkServer
from tests.crash.journal import Journal
from tests.crash.workload import (
    Name,
    Operation,
    Recorder,
    Share,
    seal_as_usual,
    seal_eagerly,
    session_of,
)

WAIT_S = 45.0


class Hold:
    """Holds the first thread that comes by until it is let go."""

    def __init__(self, passes: int = 0) -> None:
        self._left = passes
        self._held = threading.Event()
        self._gone = threading.Event()

    def __call__(self) -> None:
        if self._held.is_set():
            return
        if self._left:
            self._left -= 1
            return
        self._held.set()
        self._gone.wait(WAIT_S)

    def wait(self) -> bool:
        """Wait until a thread is held."""
        return self._held.wait(WAIT_S)

    def release(self) -> None:
        """Let it go, and all that come later."""
        self._held.set()
        self._gone.set()


class Commands:
    """What a peer can do; each takes and gives plain data."""

    def __init__(self, path: str, journal: str, options: dict[str, Any]) -> None:
        self._path = path
        self._options = options
        self._store = Store.open(path, **options)
        self._recorder = Recorder(self._store, Journal(journal))
        self._hold = Hold()
        self._thread: threading.Thread | None = None
        self._result: Any = None
        self._events: Iterator[Event] = iter(())

    def reopen(self) -> None:
        self.close()
        self._store = self._recorder.store = Store.open(self._path, **self._options)

    def close(self) -> None:
        with suppress(TurnlogError):  # of appends that nobody asked about
            self._store.close()

    def seal(self, *, eagerly: bool) -> None:
        """Seal beside every append, or as usual."""
        if eagerly:
            seal_eagerly(self._store, 1)
        else:
            seal_as_usual(self._store)

    def do(self, operation: dict[str, Any]) -> str | None:
        error = self._recorder.do(Operation.decode(operation))
        return None if error is None else type(error).__name__

    def submit(self, operation: dict[str, Any]) -> None:
        self._recorder.submit(Operation.decode(operation))

    def settle(self, timeout: float) -> bool:
        """Whether all that was submitted is settled in time."""
        try:
            self._recorder.settle(timeout=timeout)
        except TimeoutError:
            return False
        return True

    def look(self, way: str, tenant: str, session: str) -> Any:
        """One way of reading: a list of (operation, place), or a plain answer."""
        handle = session_of(self._store, (tenant, session))
        if way == "exists":
            return handle.exists
        if way == "loose":
            info = handle.info()
            return None if info is None else info.unsealed_count
        if way == "info":
            info = handle.info()
            return None if info is None else [info.number, info.event_count, info.message_count]
        if way == "history":
            return [_place(body) for body in handle.history()]
        if way == "last":
            return [_place(body) for body in handle.history(1_000_000)]
        if way == "list":
            infos = self._store.tenant(tenant).sessions(limit=10_000).sessions
            return {info.name: info.event_count for info in infos}
        events: Any = handle.events() if way == "events" else self._store.read()
        name = (tenant, session)
        return [_place(event.body) for event in events if _name(event) == name]

    def remove(self, tenant: str, session: str, *, erase: bool = False) -> list[int]:
        """Delete or erase a session: its number, and its tombstone's position."""
        handle = session_of(self._store, (tenant, session))
        if erase:
            receipt = handle.erase(WAIT_S)
            return [receipt.number, receipt.position]
        ack = handle.delete().result(WAIT_S)
        return [ack.session_number, ack.position]

    def flush(self) -> None:
        """Work off what is overdue."""
        self._store.flush(WAIT_S)

    def begin_events(self, tenant: str, session: str, count: int) -> list[list[Any]]:
        """Begin to iterate over a session, up to so many events."""
        self._events = iter(session_of(self._store, (tenant, session)).events())
        return [_place(event.body) for event in islice(self._events, count)]

    def end_events(self) -> list[Any]:
        """The rest of that iteration, and the error that ended it."""
        found: list[Any] = []
        try:
            for event in self._events:
                found.append(_place(event.body))
        except TurnlogError as error:
            found.append(type(error).__name__)
        return found

    def begin_following(self) -> None:
        """Subscribe to everything from now on."""
        self._events = iter(self._store.subscribe())

    def follow(self, count: int) -> list[Any]:
        """The next events of that subscription: session number and kind."""
        return [[event.session_number, event.kind] for event in islice(self._events, count)]

    def order(self) -> list[Any]:
        """The global order with voids: session number, sequence, kind and place of each event."""
        return [
            [
                event.session_number,
                event.sequence,
                event.kind,
                None if event.body is None else _place(event.body),
            ]
            for event in self._store.read(voids=True)
        ]

    def hold(self, failpoint: str) -> None:
        """Hold the first thread that passes a failpoint from now on."""
        self._hold = Hold()
        set_failpoints({failpoint: self._hold})

    def hold_catching_up(self, passes: int) -> None:
        """Hold the first thread that applies others' events, after so many of them."""
        self._hold = hold = Hold(passes)
        index: Any = self._store._log.index
        apply = index._apply

        def held(*arguments: Any) -> None:
            hold()
            apply(*arguments)

        index._apply = held

    def held(self) -> bool:
        return self._hold.wait()

    def release(self) -> None:
        self._hold.release()
        set_failpoints(None)

    def start(self, command: str, arguments: dict[str, Any]) -> None:
        """Begin a command in a thread of its own."""

        def work() -> None:
            try:
                self._result = ["done", getattr(self, command)(**arguments)]
            except BaseException as error:  # noqa: BLE001  told by ``join``
                self._result = ["failed", f"{type(error).__name__}: {error}"]

        self._result = None
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def join(self) -> Any:
        """What the command of ``start`` gave."""
        assert self._thread is not None
        self._thread.join(WAIT_S)
        return self._result

    def fork_and_use(self) -> dict[str, str]:
        """Fork, and use the store in the child, which then opens it itself: what became of each."""
        store = self._store
        session = store.session("forked")
        uses: dict[str, Callable[[], object]] = {
            "append": lambda: session.append({"role": "user"}).result(5),
            "batch": lambda: store.append_batch([session.draft([{}])]).result(5),
            "history": session.history,
            "info": session.info,
            "read": lambda: list(store.read(limit=1)),
            "position": lambda: store.last_position,
            "sessions": store.sessions,
            "check": store.check,
        }
        incoming, outgoing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                found = {name: _outcome(use) for name, use in uses.items()}
                found["close"] = _outcome(store.close)
                found["own"] = _outcome(lambda: _read_all(self._path))
                os.write(outgoing, json.dumps(found).encode())
            finally:
                os._exit(0)
        os.close(outgoing)
        with os.fdopen(incoming, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(pid, 0)
        return dict(json.loads(answer))

    def fail_next_commit(self) -> None:
        """The next commit fails; the writer is held before it finds out what became of it."""
        environment = self._store._log.environment
        commit = environment.commit
        self._hold = hold = Hold()

        def failed(transaction: Any) -> None:
            environment.abort(transaction)
            environment.commit = commit  # type: ignore[method-assign]
            hold()
            cause = lmdb.DiskError("the commit was made to fail")
            raise CommitFailedError(cause, StorageFullError(str(cause)), full=True)

        environment.commit = failed  # type: ignore[method-assign]

    def interrupt_writer(self) -> None:
        """Raise an exception in the writer thread, wherever it is."""
        thread = self._store._log.writer._thread
        assert thread is not None and thread.ident is not None
        _interrupt(thread.ident)

    def interrupt_after_begin(self) -> None:
        """The same, when it has begun its next transaction and not gone on yet."""
        environment = self._store._log.environment
        begin = environment.begin_write

        def begun(deadline_ms: int | None = None) -> Any:
            transaction = begin(deadline_ms)
            environment.begin_write = begin  # type: ignore[method-assign]
            _interrupt(threading.get_ident())
            return transaction

        environment.begin_write = begun  # type: ignore[method-assign]

    def stats(self) -> dict[str, Any]:
        return self._store.stats()

    def health(self) -> dict[str, Any]:
        return self._store.health()


def _interrupt(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
    )


def _outcome(use: Callable[[], object]) -> str:
    try:
        return f"gave {use()}"
    except Exception as error:  # noqa: BLE001  told to the test
        return type(error).__name__


def _read_all(path: str) -> int:
    # Read-only, since opening for more waits for the writer, who may be held.
    with Store.open(path, create=False, read_only=True) as store:
        return len(list(store.read()))


def _place(body: dict[str, Any]) -> list[Any]:
    return [body["operation"], body["place"]]


def _name(event: Event) -> Name:
    return event.tenant, event.session


def serve(path: str, journal: str, requests: str, answers: str, options: dict[str, Any]) -> None:
    """The process: answer each line of requests until they end."""
    with open(requests, "rb") as incoming, open(answers, "wb", buffering=0) as outgoing:
        commands = Commands(path, journal, options)
        for line in incoming:
            name, arguments = json.loads(line)
            try:
                answer: dict[str, Any] = {"result": getattr(commands, name)(**arguments)}
            except Exception as error:  # noqa: BLE001  told to the test
                answer = {"error": f"{type(error).__name__}: {error}", "at": traceback.format_exc()}
            outgoing.write(json.dumps(answer).encode() + b"\n")
        commands.close()


class Peer:
    """The test's side; every command of ``Commands`` is a call on it."""

    def __init__(self, forks: ForkServer, path: Path, slot: str, **options: Any) -> None:
        folder = path.with_name(f"peer {slot}")
        folder.mkdir()
        requests, answers = folder / "requests", folder / "answers"
        for pipe in (requests, answers):
            os.mkfifo(pipe)
        self.slot = slot
        self.journal = folder / "journal"
        self._count = 0
        self.child: Child = forks.start(
            serve,
            folder,
            path=path,
            journal=self.journal,
            requests=requests,
            answers=answers,
            options=options,
        )
        self._requests = open(requests, "wb", buffering=0)  # noqa: SIM115  closed by ``end``
        self._answers = open(answers, "rb")  # noqa: SIM115

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self._requests.write(json.dumps([name, arguments]).encode() + b"\n")
            line = self._answers.readline()
            if not line:
                self._requests.close()
                self._answers.close()
                raise AssertionError(f"{self.slot}: {self.child.wait()}, {self.child.said()}")
            answer = json.loads(line)
            assert "error" not in answer, f"{self.slot}, {name}: {answer['error']}\n{answer['at']}"
            return answer["result"]

        return call

    def operation(self, name: Name, count: int = 1, **options: Any) -> Operation:
        """A new operation of this peer."""
        self._count += 1
        way = options.pop("way", "many")
        head = options.pop("expected_head", None)
        share = Share(name, count if way != "create" else 0, expected_head=head)
        return Operation(f"{self.slot}-{self._count}", way, (share,), **options)

    def append(self, name: Name, count: int = 1, **options: Any) -> Operation:
        """Append and wait until it is durable."""
        operation = self.operation(name, count, **options)
        error = self.do(operation=operation.encode())
        assert error is None, error
        return operation

    def end(self) -> None:
        """Close the store and end the process, unless it was killed."""
        if self.child.poll() is None:
            try:
                self._requests.close()
                self.child.finish()
            finally:
                self._answers.close()

    def kill(self) -> None:
        """End it at once."""
        self.child.kill()
        self.child.wait()
        self._requests.close()
        self._answers.close()
