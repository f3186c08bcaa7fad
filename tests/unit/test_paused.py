"""What callers hold open or run in the middle of a call, while they and others append."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from engine import AppendConflictError, Event, RetentionPolicy, Session, SessionPage, Store
from engine.branches import PathPage
from tests.model.actors import Workers
from tests.model.operations import Append, New
from tests.model.staging import HANG_S

COUNT = 700  # messages, more than two pages
TENANT = "acme"

Open = Callable[..., Store]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


@pytest.fixture
def store(checked_store: Open) -> Store:
    store = checked_store(snapshot_frequency=4, max_messages=8)
    call = store.tenant(TENANT).session("call")
    for start in range(0, COUNT, 50):
        call.append_many([{"n": n} for n in range(start, start + 50)]).result(HANG_S)
    for number in range(30):
        store.tenant(TENANT).session(f"other {number}", user_id="u").append({}).result(HANG_S)
    call.append({"n": COUNT}).result(HANG_S)
    return store


def numbers(events: Any) -> Iterator[int]:
    """What the events of the session say, one at a time."""
    for event in events:
        if event.session == "call" and event.kind == "message":
            yield event.body["n"]


def path_pages(call: Session) -> Iterator[int]:
    page: PathPage = call.path(limit=3)
    while True:
        yield from numbers(page.events)
        if page.cursor is None:
            return
        page = call.path(cursor=page.cursor, limit=300)


def blob_pieces(store: Store) -> Iterator[int]:
    acme = store.tenant(TENANT)
    reader = acme.blobs.open(acme.blobs.put(b"".join([b"%d\n" % n for n in range(COUNT + 1)])))
    while line := reader.readline():
        yield int(line)


def async_numbers(events: Any) -> Iterator[int]:
    """An iteration of a loop, a step at a time."""
    with asyncio.Runner() as runner:
        given = aiter(events)
        while True:
            try:
                event = runner.run(anext(given))
            except StopAsyncIteration:
                return
            yield from numbers([event])


def exported(lines: Iterator[str]) -> Iterator[int]:
    for line in map(json.loads, lines):
        if line.get("session") == "call" and line["kind"] == "message":
            yield line["body"]["n"]


HELD: dict[str, Callable[[Store, Session], Iterator[int]]] = {
    "events": lambda store, call: numbers(call.events()),
    "events on a loop": lambda store, call: async_numbers(call.events()),
    "events of a kind": lambda store, call: numbers(call.events(kinds="message")),
    "path_events": lambda store, call: numbers(call.path_events()),
    "path, in pages": lambda store, call: path_pages(call),
    "overflow": lambda store, call: numbers(call.overflow()),
    "at(...).events": lambda store, call: numbers(call.at(COUNT).events()),
    "store.read": lambda store, call: numbers(store.read()),
    "store.read on a loop": lambda store, call: async_numbers(store.read()),
    "tenant.read": lambda store, call: numbers(store.tenant(TENANT).read(voids=True)),
    "session.subscribe": lambda store, call: numbers(call.subscribe(after=-1)),
    "subscribe on a loop": lambda store, call: async_numbers(call.subscribe(after=-1)),
    "tenant.subscribe": lambda store, call: numbers(store.tenant(TENANT).subscribe(after=0)),
    "store.subscribe": lambda store, call: numbers(store.subscribe(after=0)),
    "export_lines": lambda store, call: exported(store.export_lines(call.events())),
    "export_lines of all": lambda store, call: exported(store.export_lines(store.read())),
    "salvage": lambda store, call: exported(
        json.dumps(each) if isinstance(each, dict) else each
        for each in store.salvage(session="call", tenant=TENANT)
        if isinstance(each, dict | str)
    ),
    "a reader of a content": lambda store, call: blob_pieces(store),
}


def require_nothing_held(store: Store) -> None:
    """No transaction is open, in whatever thread."""
    assert not store._log.environment._gate._in_flight


@pytest.mark.parametrize("name", HELD)
def test_what_is_held_open_holds_up_nobody_and_goes_on(
    store: Store, workers: Workers, name: str
) -> None:
    """langgraph 8558: a paused ``alist`` held a lock, and every write timed out."""
    call = store.tenant(TENANT).session("call")
    held = HELD[name](store, call)
    found = [next(held)]
    require_nothing_held(store)
    call.append({"n": COUNT + 1}).result(HANG_S)
    other = workers.start()
    for number in range(3):
        other.perform(store.path, Append(TENANT, "call", (New({"n": COUNT + 2 + number}),)))
    other.close()
    store.tenant(TENANT).session("other 1").delete().result(HANG_S)
    store.flush(HANG_S)
    with Store.open(store.path) as second:
        second.tenant(TENANT).session("call").append({"n": COUNT + 5}).result(HANG_S)
    found += islice(held, COUNT // 2)
    require_nothing_held(store)
    call.append({"n": COUNT + 6}).result(HANG_S)
    found += islice(held, COUNT - len(found) - 20)
    assert found == list(range(len(found))) and len(found) > COUNT // 2


def listing(store: Store, wanted: dict[str, Any], of_all: bool) -> Iterator[SessionPage]:
    tenant = store.all_tenants if of_all else store.tenant(TENANT)
    page = tenant.sessions(limit=7, **wanted)
    yield page
    while page.cursor is not None:
        page = tenant.sessions(limit=7, cursor=page.cursor, **wanted)
        yield page


@pytest.mark.parametrize("of_all", [False, True], ids=["tenant", "all-tenants"])
@pytest.mark.parametrize("wanted", [{}, {"user_id": "u"}], ids=["any", "filtered"])
def test_a_listing_is_held_open_by_its_cursor_alone(
    store: Store, wanted: dict[str, Any], of_all: bool
) -> None:
    acme = store.tenant(TENANT)
    seen: list[str] = []
    for number, page in enumerate(listing(store, wanted, of_all)):
        require_nothing_held(store)
        seen += [info.name for info in page.sessions]
        acme.session("call").append({"n": number}).result(HANG_S)
        acme.session(f"other {number}").append({}).result(HANG_S)
        acme.session(f"new {number}", user_id="u").append({}).result(HANG_S)
    assert len(seen) == len(set(seen))
    assert {f"other {number}" for number in range(5, 30)} <= set(seen)


# Calls that call back


def pieces(store: Store, act: Callable[[], None]) -> Iterator[bytes]:
    for number in range(3):
        act()
        yield bytes([number]) * 1_500_000


def lines_of(store: Store, act: Callable[[], None]) -> Iterator[dict[str, Any]]:
    for number in range(3):
        act()
        yield {"session": "loaded", "sequence": number, "kind": "message", "body": {}}


def applied(store: Store, act: Callable[[], None], **options: Any) -> None:
    with store.projection("ours", lambda event: act(), **options) as projection:
        projection.run_once(limit=3)


def of_events(events: Any, act: Callable[[], None]) -> Iterator[Event]:
    for event in events:
        act()
        yield event


CALLBACKS: dict[str, Callable[[Store, Session, Callable[..., Any]], Any]] = {
    "compact": lambda store, call, act: call.compact(lambda _: act() or "s"),
    "count of a window": lambda store, call, act: call.window(
        tokens=50, count=lambda _: act() or 9
    ),
    "count of a compaction": lambda store, call, act: call.compact(
        lambda _: "s", count=lambda _: act() or 9
    ),
    "projection": lambda store, call, act: applied(store, act),
    "blobs.put": lambda store, call, act: store.blobs.put(pieces(store, act)),
    "load": lambda store, call, act: store.load(lines_of(store, act), piece_events=1),
    "export_lines": lambda store, call, act: list(
        store.export_lines(of_events(call.events(last=4), act))
    ),
    "retention": lambda store, call, act: store.apply_retention(
        RetentionPolicy(max_entries=40), progress=lambda *_: act()
    ),
    "rebuild": lambda store, call, act: store.rebuild(lambda *_: act()),
    "backup": lambda store, call, act: store.backup(
        store.path.with_name("backup"), progress=lambda *_: act()
    ),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_what_is_called_back_may_append_and_wait(store: Store, name: str) -> None:
    """openai-agents 3116: what was appended while a summary was made was lost. Elsewhere the
    caller's code ran inside of a lock, and whoever appended there waited for itself."""
    call, beside = store.tenant(TENANT).session("call"), store.session("beside")
    done: list[int] = []

    def act() -> None:
        if name != "backup":  # which copies one commit, and needs it
            require_nothing_held(store)
        if len(done) < 5:
            beside.append({"n": len(done)}).result(HANG_S)
            if name != "retention":  # by which the session counts as changed
                call.append({"role": "user", "content": "meanwhile"}).result(HANG_S)
            done.append(len(done))

    CALLBACKS[name](store, call, act)
    assert done
    assert [body["n"] for body in beside.history()] == done
    told = [
        event for event in call.events() if event.body == {"role": "user", "content": "meanwhile"}
    ]
    assert len(told) == (0 if name == "retention" else len(done))


def test_a_refusal_that_is_told_may_append_and_wait(store: Store) -> None:
    """What hears of refusals is called on the pool, and the writer does not wait for it."""
    beside = store.session("beside")
    store.on_rejected = lambda *_: beside.append({"n": 0}).result(HANG_S)
    store.tenant(TENANT).session("call").append({}, expected_head=0, ack="queued")
    with store.session("beside").subscribe(after=-1) as live:
        assert next(iter(live)).body == {"n": 0}
    with pytest.raises(AppendConflictError):
        store.flush(HANG_S)


def test_a_folder_is_all_that_a_paused_iterator_needs(store: Store, tmp_path: Path) -> None:
    """An iterator of a store that was backed up meanwhile goes on, and so does the copy's."""
    call = store.tenant(TENANT).session("call")
    held = numbers(call.events())
    assert next(held) == 0
    store.backup(tmp_path / "backup")
    with Store.open(tmp_path / "backup", read_only=True) as copy:
        there = numbers(copy.tenant(TENANT).session("call").events())
        assert next(there) == 0
        call.append({"n": COUNT + 1}).result(HANG_S)
        assert list(there) == list(range(1, COUNT + 1))
    assert list(held) == list(range(1, COUNT + 2))
