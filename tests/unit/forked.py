"""Every public call of a store in a child that a fork gave it; see ``test_forked_process``."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from engine import Event, RetentionPolicy, Session, Store, TurnlogError
from engine.reading import Subscription
from tests.model.staging import HANG_S
from tests.unit.belongings import fill

CHILD_S = 60.0  # a call that takes longer hangs
LARGE = bytes(range(256)) * 20_000


class Inherited:
    """What a process had at hand before it forked: a store in use, and all that it gives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store.open(path, snapshot_frequency=4)
        self.acme = self.store.tenant("acme")
        self.call = fill(self.acme.session("call", user_id="u1"))
        self.blob = self.acme.blobs.put(LARGE)
        self.call.append({"n": 0}, blobs=[self.blob]).result(HANG_S)
        self.call.alias("other").result(HANG_S)
        for number in range(600):
            self.acme.session("long").append({"n": number})
        self.store.flush(HANG_S)
        self.at = self.call.at(12)
        self.reader = self.acme.blobs.open(self.blob)
        self.reader.read(5)
        self.page = self.acme.session("long").path(limit=10)
        self.event = self.call.event(self.call.head or 0)
        self.projection = self.store.projection("ours", lambda _: None)
        self.projection.run_once(limit=3)
        self.subscription = self.acme.session("long").subscribe(after=-1)
        self.begun: list[Iterator[Event]] = [
            iter(self.acme.session("long").events()),
            iter(self.acme.session("long").path_events()),
            iter(self.store.read()),
            iter(self.subscription),
            iter(self.acme.subscribe(after=0)),
        ]
        for iterator in self.begun:
            next(iterator)
        self.asked: list[Any] = []  # acks that nobody waited for yet


def calls(had: Inherited) -> dict[str, Callable[[], Any]]:
    """Every public reader and writer, each once, under the class and name of what is called."""
    store, acme, call, at = had.store, had.acme, had.call, had.at
    blobs, reader, projection = acme.blobs, had.reader, had.projection
    found: dict[str, Callable[[], Any]] = {}
    documents, artifacts, runs = call.documents, call.artifacts, call.runs
    policy = RetentionPolicy(max_entries=1)
    near = had.path.parent
    plain: dict[Any, dict[str, tuple[Any, ...] | None]] = {
        store: {
            "append_batch": ([store.session("b").draft([{}])],),
            "apply_retention": (policy,),
            "backup": (near / "backup",),
            "by_alias": ("other",),
            "check": (),
            "collect_blobs": (5.0,),
            "configure": (),
            "erase_tenant": ("acme",),
            "erase_user": ("u1",),
            "flush": (5.0,),
            "health": (),
            "load": ([{"session": "x", "sequence": 0, "kind": "message", "body": {}}],),
            "rebuild": (),
            "sessions": (),
            "stats": (),
            "tenants": (),
            "up_to": (1, 5.0),
            "usage": (),
        },
        acme: {
            "append_batch": ([call.draft([{}])],),
            "apply_retention": (policy,),
            "by_alias": ("other",),
            "erase_user": ("u1",),
            "load": ([{"session": "x", "sequence": 0, "kind": "message", "body": {}}],),
            "sessions": (50, None, "u1"),
            "up_to": (1, 5.0),
            "usage": (),
        },
        call: {
            "alias": ("a",),
            "append": ({},),
            "append_event": ("note", 1),
            "append_many": ([{}, {}],),
            "at": (3,),
            "branches": (),
            "checkout": (0,),
            "clone": ("copy",),
            "compact": (lambda _: "s",),
            "compaction": (),
            "create": (),
            "delete": (),
            "erase": (5.0,),
            "event": (0,),
            "fork": (0,),
            "history": (),
            "hold": ("why",),
            "info": (),
            "label": ("l",),
            "link": (4, [0]),
            "name_branch": ("b",),
            "path": (),
            "purge": (3,),
            "links": (),
            "redact": (0, 0),
            "relate": ("x",),
            "release_hold": ("why",),
            "roll_up": (),
            "set_parent": ("p",),
            "set_status": ("s",),
            "set_summary": ("s",),
            "set_title": ("t",),
            "statuses": (),
            "summaries": (),
            "unalias": ("other",),
            "unlabel": ("l",),
            "unname_branch": ("b",),
            "unrelate": ("x",),
            "up_to": (1, 5.0),
            "update_metadata": ({"a": 1},),
            "update_state": ({"a": 1},),
            "usage": (),
            "variables": (),
            "window": (),
            "window_entries": (),
        },
        at: {"history": (), "info": (), "usage": (), "variables": ()},
        documents: {
            "append": ("d", "x"),
            "delete": ("NOTES.md",),
            "list": (),
            "read": ("NOTES.md",),
            "write": ("d", "x"),
        },
        artifacts: {
            "list": (),
            "on": (),
            "read": ("out",),
            "versions": ("out",),
            "write": ("out", "x" * 9_000),
        },
        at.artifacts: {"list": (), "on": (), "read": ("out",), "versions": ("out",)},
        runs: {
            "begin": ("r",),
            "end": ("run",),
            "get": ("run",),
            "list": (),
            "mark": ("run", "running"),
        },
        call.tool_calls: {
            "abandon": ("call",),
            "done": ("call",),
            "failed": ("call",),
            "get": ("call",),
            "list": (),
            "open": ("c2", "t"),
            "resume": ("call",),
            "waiting": ("call",),
        },
        blobs: {
            "get": (had.blob,),
            "open": (had.blob,),
            "put": (b"y" * 5_000,),
            "read": (had.blob, 0, 9),
        },
        reader: {"read": (), "readinto": (bytearray(9),), "readline": ()},
        projection: {
            "dead_letters": (),
            "lag": (),
            "reset": (),
            "run": (),
            "run_once": (),
            "take_over": (),
        },
    }
    for owner, wanted in plain.items():
        for name, arguments in wanted.items():
            where = f"{type(owner).__name__}.{name}"
            assert arguments is not None
            found[where] = lambda owner=owner, name=name, given=arguments: _settled(
                getattr(owner, name)(*given)
            )
            if hasattr(owner, f"{name}_async"):
                found[f"{where}_async"] = lambda owner=owner, name=name, given=arguments: _run(
                    getattr(owner, f"{name}_async")(*given)
                )
    found["Session.record_usage"] = lambda: call.record_usage(seconds=1).result(CHILD_S)
    found["Session.set_owner"] = lambda: call.set_owner(user_id="x").result(CHILD_S)
    found["Session.append_large"] = lambda: _run(call.append_large({}))
    found["Store.room"] = lambda: _run(store.room())
    found["Store.read_async"] = lambda: _run(store.read_async())
    found["Tenant.read_async"] = lambda: _run(acme.read_async())
    for owner, name in (
        *[(store, name) for name in ("last_position", "all_tenants")],
        *[(call, name) for name in ("exists", "facts", "head", "state")],
        *[(at, name) for name in ("facts", "state")],
        (projection, "checkpoint"),
    ):
        found[f"{type(owner).__name__}.{name}"] = lambda owner=owner, name=name: getattr(
            owner, name
        )
        if hasattr(owner, f"{name}_async"):
            found[f"{type(owner).__name__}.{name}_async"] = lambda owner=owner, name=name: _run(
                getattr(owner, f"{name}_async")()
            )
    iterated: dict[str, Callable[[], Any]] = {
        "Store.read": store.read,
        "Tenant.read": acme.read,
        "Session.events": call.events,
        "Session.path_events": call.path_events,
        "Session.overflow": call.overflow,
        "SessionAt.events": at.events,
        "Store.subscribe": lambda: store.subscribe(after=0),
        "Tenant.subscribe": acme.subscribe,
        "Session.subscribe": call.subscribe,
    }
    for name, make in iterated.items():
        found[name] = lambda make=make: next(iter(make()))
        found[f"{name} on a loop"] = lambda make=make: _run(_first(make()))
    found["Store.export_lines"] = lambda: list(store.export_lines([had.event]))
    found["Tenant.export_lines"] = lambda: list(acme.export_lines([had.event]))
    found["Store.salvage"] = lambda: next(iter(store.salvage()))
    found["Blobs.of"] = lambda: list(blobs.of(had.event))
    found["Session.path continued"] = lambda: acme.session("long").path(cursor=had.page.cursor)
    for number, begun in enumerate(had.begun):
        found[f"iterator {number} that had begun"] = lambda begun=begun: list(
            zip(begun, range(550), strict=False)
        )
    for number, ack in enumerate(had.asked):
        found[f"ack {number} that was asked for"] = lambda ack=ack: ack.result(CHILD_S)
    found["BlobReader.close"] = reader.close
    found["Subscription.close"] = had.subscription.close
    found["Projection.close"] = projection.close
    found["Store.close"] = store.close
    return found


def _settled(given: Any) -> Any:
    return given.result(CHILD_S) if hasattr(given, "durable") else given


def _run(work: Any) -> Any:
    async def settle() -> Any:
        given = await work
        return await given if hasattr(given, "durable") else given

    return asyncio.run(settle())


async def _first(given: Any) -> Any:
    async for each in given:
        return each
    return None


NO_STORE_NEEDED = {
    *("Session.draft", "Session.name", "Session.tenant", "Session.documents"),
    *("Session.artifacts", "Session.runs", "Session.tool_calls", "Store.tenant", "Store.session"),
    *("Store.user", "Store.blobs", "Store.documents", "Store.projection", "Store.store_id"),
    *("Tenant.session", "Tenant.user", "Tenant.blobs", "Tenant.documents", "Blobs.tenant"),
    *("SessionAt.artifacts", "SessionAt.documents", "SessionAt.runs", "SessionAt.tool_calls"),
    *("SessionAt.head", "SessionAt.message_count", "SessionAt.number", "SessionAt.sequence"),
    *("Store.open", "Store.restore", "Store.upgrade", "Store.vacuum", "Store.on_rejected"),
    *("Store.name", "Tenant.name", "Projection.name", "Projection.tenant"),
    *("Projection.close_async",),  # as close, by the pool
}


def public(had: Inherited) -> set[str]:
    """The public names of all that a store gives."""
    call = had.call
    owners: tuple[Any, ...] = (had.store, had.acme, call, had.at, call.documents, call.artifacts)
    owners += (had.at.artifacts, call.runs, call.tool_calls, had.acme.blobs, had.projection)
    found = {
        f"{type(owner).__name__}.{name}"
        for owner in owners
        for name, _ in inspect.getmembers_static(type(owner))
        if not name.startswith("_")
    }
    return found | {"BlobReader.read", "Subscription.close"}


def outcomes(had: Inherited) -> dict[str, str]:
    """What became of each call, in a child: an answer, or the class of what it raised."""
    told = {}
    for name, call in calls(had).items():
        faulthandler.dump_traceback_later(CHILD_S, exit=True)
        try:
            call()
            told[name] = "answered"
        except TurnlogError as error:
            told[name] = type(error).__name__
        except Exception as error:  # noqa: BLE001  which the parent complains about
            told[name] = f"untyped {type(error).__name__}: {error}"
    faulthandler.cancel_dump_traceback_later()
    with Store.open(had.path) as again:  # which a child may do
        again.session("child").append({"pid": os.getpid()}).result(CHILD_S)
    return told


def in_child(work: Callable[[], Any]) -> Any:
    """Run work in a forked child and give what it gave."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as pipe:
                json.dump(work(), pipe)
            code = 0
        except BaseException:  # noqa: BLE001  of this process nothing else is left
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"the child ended with {status}"
    return json.loads(text)


def locks_of(had: Inherited) -> list[Any]:
    """Every lock that the store's own objects and modules have."""
    kinds = (type(threading.Lock()), type(threading.RLock()), threading.Condition)
    ours = ("engine.", "eventlog.")
    found: dict[int, Any] = {}
    for each in gc.get_objects():
        owner = each if isinstance(each, ModuleType) else type(each)
        where = owner.__name__ if isinstance(each, ModuleType) else owner.__module__
        if not f"{where}.".startswith(ours):
            continue
        for lock in gc.get_referents(each):
            held = gc.get_referents(lock) if isinstance(lock, dict) else [lock]
            found.update({id(it): it for it in held if isinstance(it, kinds)})
    assert len(found) > 12, "locks are not found where they are"
    return list(found.values())


@contextmanager
def stopped(had: Inherited) -> Iterator[None]:
    """Another thread holds every lock of the store meanwhile, so that a child inherits them so."""
    taken, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        locks = locks_of(had)
        for lock in locks:
            assert lock.acquire(timeout=HANG_S)
        taken.set()
        let_go.wait(HANG_S)
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(HANG_S)
    try:
        yield
    finally:
        let_go.set()
        thread.join(HANG_S)


@contextmanager
def busy(had: Inherited) -> Iterator[None]:
    """Threads that append, read, put, follow and project, so that locks are held at any time."""
    stop = threading.Event()
    following: Subscription = had.store.subscribe(after=0)

    def work(step: Callable[[int], Any]) -> Callable[[], None]:
        def run() -> None:
            number = 0
            while not stop.wait(0.001):  # so that the one that forks has its turn
                step(number)
                number += 1

        return run

    def follow() -> None:
        for _ in following:
            pass

    def awaited(number: int) -> None:
        asyncio.run(had.call.history_async(number % 20))

    session: Session = had.acme.session("busy")
    steps = [
        work(lambda number: session.append({"n": number}).result(HANG_S)),
        work(lambda number: session.update_state({f"k{number % 9}": number}).result(HANG_S)),
        work(lambda number: (had.call.window(), had.call.state, had.store.sessions(user_id="u1"))),
        work(lambda number: had.acme.blobs.put(LARGE + bytes([number % 256]) * 9)),
        work(awaited),
        follow,
    ]
    threads = [threading.Thread(target=step) for step in steps]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        following.close()
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive(), "a thread of the parent hangs"


def main(path: str, way: str, count: str) -> None:
    """Fork in some state of the parent; print the outcomes of the children.

    Args:
        path: Where the store is made.
        way: ``quiet``; ``busy``, with threads at work; ``locked``, with every lock held.
        count: How many children, one after the other.
    """
    had = Inherited(Path(path))
    asyncio.run(had.call.history_async())  # its pool has threads
    told: list[dict[str, str]] = []
    with busy(had) if way == "busy" else nullcontext():
        for _ in range(int(count)):
            had.asked = [had.acme.session("asked").append({}) for _ in range(3)]
            with stopped(had) if way == "locked" else nullcontext():
                told.append(in_child(lambda: outcomes(had)))
            for ack in had.asked:
                ack.result(HANG_S)
    missing = sorted(public(had) - set(calls(had)) - NO_STORE_NEEDED)
    assert had.projection.checkpoint == 3
    assert had.reader.read(5) == LARGE[5:10]
    for number, iterator in enumerate(had.begun[:3]):
        assert next(iterator).sequence == 1, number
    had.projection.close()
    had.store.close()
    print(json.dumps({"missing": missing, "told": told}))


if __name__ == "__main__":
    main(*sys.argv[1:])
