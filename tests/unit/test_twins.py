"""The twins for asyncio: what blocks has one, of the same parameters, that does the same."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine import Projection, Store, Tenant
from engine.artifacts import Artifacts, ArtifactsAt
from engine.at import SessionAt
from engine.blobs import BlobReader, Blobs
from engine.documents import Documents, DocumentsAt
from engine.runs import Runs, RunsAt
from engine.session import Session
from engine.toolcalls import ToolCalls, ToolCallsAt
from eventlog.errors import (
    BusyError,
    ConflictError,
    SessionNotFoundError,
    TrimmedError,
    UsageError,
)
from eventlog.limits import MIB

HANG_S = 60.0
CLASSES = (
    *(Store, Tenant, Session, SessionAt, Blobs, BlobReader, Projection),
    *(Documents, DocumentsAt, Artifacts, ArtifactsAt, Runs, RunsAt, ToolCalls, ToolCallsAt),
)
TWINS = [
    pytest.param(each, name, id=f"{each.__name__}.{name}")
    for each in CLASSES
    for name in vars(each) | {name: None for base in each.__mro__ for name in vars(base)}
    if name.endswith("_async") and not name.startswith("_")
]


def parameters(call: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults."""
    found = inspect.signature(call).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize(("owner", "name"), TWINS)
def test_a_twin_takes_what_the_other_takes(owner: type, name: str) -> None:
    """``erase_async`` and ``flush_async`` took no timeout, ``rebuild_async`` no progress."""
    other = inspect.getattr_static(owner, name.removesuffix("_async"))
    if isinstance(other, property):
        other = other.fget
    assert parameters(getattr(owner, name)) == parameters(other)


def talked(store: Store, name: str) -> Session:
    """A session with messages and variables."""
    session = store.session(name)
    for number in range(12):
        session.append({"role": "user", "content": f"m{number}"}).result(HANG_S)
        session.update_state({"n": number, f"v{number}": "x"}).result(HANG_S)
    store.flush()
    return session


def of_moment(call: Callable[[SessionAt], Any]) -> Callable[[Store], Any]:
    return lambda store: call(store.session("a").at(9))


READS = {
    "state": (
        of_moment(lambda at: at.state),
        of_moment(lambda at: at.state_async()),
    ),
    "variables": (
        of_moment(lambda at: at.variables("v")),
        of_moment(lambda at: at.variables_async("v")),
    ),
    "history": (
        of_moment(lambda at: at.history(3)),
        of_moment(lambda at: at.history_async(3)),
    ),
    "info": (
        of_moment(lambda at: at.info()),
        of_moment(lambda at: at.info_async()),
    ),
    "collect": (
        lambda store: store.collect_blobs(HANG_S),
        lambda store: store.collect_blobs_async(HANG_S),
    ),
    "rebuild": (
        lambda store: store.rebuild(),
        lambda store: store.rebuild_async(),
    ),
}


@pytest.mark.parametrize("name", READS)
def test_a_twin_says_what_the_other_says(checked_store: Callable[..., Store], name: str) -> None:
    store = checked_store(snapshot_frequency=4)
    talked(store, "a")
    plain, twin = READS[name]

    async def ask() -> Any:
        return await asyncio.wait_for(twin(store), HANG_S)

    assert asyncio.run(ask()) == plain(store)


def test_rebuild_async_tells_its_progress(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=4)
    talked(store, "a")
    told: list[tuple[Any, ...]] = []
    report = asyncio.run(store.rebuild_async(lambda *given: told.append(given)))
    assert {table for table, *_ in told} >= set(report.tables)


@pytest.mark.parametrize("timeout", [None, HANG_S])
def test_erase_async_erases(checked_store: Callable[..., Store], timeout: float | None) -> None:
    store = checked_store(snapshot_frequency=4)
    session = talked(store, "a")
    number = session.info().number  # type: ignore[union-attr]
    receipt = asyncio.run(session.erase_async(timeout))
    assert (receipt.number, receipt.event_count, receipt.is_live) == (number, 24, False)
    assert not session.exists
    with pytest.raises(SessionNotFoundError):
        asyncio.run(session.erase_async(timeout))
    with pytest.raises(UsageError):
        asyncio.run(session.erase_async(-1))


def test_purge_async_reads_off_the_loop(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``purge`` reads the session's changes before it returns, and had no twin."""
    store = checked_store(snapshot_frequency=4)
    session = talked(store, "a")
    state = session.state
    threads: list[threading.Thread] = []
    real = Session._remove

    def remove(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return real(*arguments, **options)

    monkeypatch.setattr(Session, "_remove", remove)

    async def purge(first: int) -> Any:
        ack = await session.purge_async(first)
        return await ack

    done = asyncio.run(purge(10))
    assert done.first == 24
    assert threads and threading.main_thread() not in threads
    assert next(iter(session.events())).sequence == 10
    assert session.state == state
    errors: list[tuple[int, type[Exception]]] = [(5, TrimmedError), (99, UsageError)]
    for first, error in errors:
        with pytest.raises(error):
            asyncio.run(purge(first))


def test_a_purge_of_more_variables_than_an_event_holds_takes_several_events(
    checked_store: Callable[..., Store],
) -> None:
    store = checked_store()
    session = store.session("a")
    for number in range(5):
        session.update_state({f"v{number}": bytes(8 * MIB)}).result(HANG_S)
    session.update_state({}, delete=["v0", "v1"]).result(HANG_S)
    session.append({"role": "user", "content": "end"}).result(HANG_S)
    state = session.state
    for first, placed in ((5, (7, 11)), (6, (12, 14))):
        ack = session.purge(first).result(HANG_S)
        assert (ack.first, ack.last) == placed
        assert session.state == state


# What reads before it writes

WRITES: dict[str, tuple[Callable[[Session], Any], Callable[[Session], Any]]] = {
    "runs.begin": (
        lambda call: call.runs.begin_async("new", status="queued", metadata={"a": 1}, wait=9),
        lambda call: (call.runs.get("new").status, call.runs.get("new").metadata),  # type: ignore[union-attr]
    ),
    "runs.mark": (
        lambda call: call.runs.mark_async("run", "suspended", wait=9),
        lambda call: call.runs.get("run").status,  # type: ignore[union-attr]
    ),
    "runs.end": (
        lambda call: call.runs.end_async("run", "failed", error="E", wait=9),
        lambda call: (call.runs.get("run").status, call.runs.get("run").error),  # type: ignore[union-attr]
    ),
    "tool_calls.open": (
        lambda call: call.tool_calls.open_async("new", "tool", {"a": 1}, event=0, wait=9),
        lambda call: (call.tool_calls.get("new").event, call.tool_calls.get("new").arguments_ref),  # type: ignore[union-attr]
    ),
    "tool_calls.waiting": (
        lambda call: call.tool_calls.waiting_async("tool", "why", wait=9),
        lambda call: (call.tool_calls.get("tool").state, call.tool_calls.get("tool").reason),  # type: ignore[union-attr]
    ),
    "tool_calls.resume": (
        lambda call: call.tool_calls.resume_async("asked", wait=9),
        lambda call: call.tool_calls.get("asked").state,  # type: ignore[union-attr]
    ),
    "tool_calls.done": (
        lambda call: call.tool_calls.done_async("tool", event=0, wait=9),
        lambda call: (call.tool_calls.get("tool").state, call.tool_calls.get("tool").result_event),  # type: ignore[union-attr]
    ),
    "tool_calls.failed": (
        lambda call: call.tool_calls.failed_async("tool", "E", wait=9),
        lambda call: (call.tool_calls.get("tool").state, call.tool_calls.get("tool").error),  # type: ignore[union-attr]
    ),
    "tool_calls.abandon": (
        lambda call: call.tool_calls.abandon_async("tool", "why", wait=9),
        lambda call: (call.tool_calls.get("tool").state, call.tool_calls.get("tool").reason),  # type: ignore[union-attr]
    ),
    "documents.write": (
        lambda call: call.documents.write_async(
            "text", "new", expected_version=version(call), idempotency_key="k", wait=9
        ),
        lambda call: call.documents.read("text"),
    ),
    "documents.append": (
        lambda call: call.documents.append_async(
            "text", " more", expected_version=version(call), idempotency_key="k", wait=9
        ),
        lambda call: call.documents.read("text"),
    ),
    "documents.delete": (
        lambda call: call.documents.delete_async("text", expected_version=version(call), wait=9),
        lambda call: call.documents.read("text"),
    ),
    "hold": (lambda call: call.hold_async("new", wait=9), lambda call: call.facts.holds),
    "release_hold": (
        lambda call: call.release_hold_async("held", wait=9),
        lambda call: call.facts.holds,
    ),
    "label": (
        lambda call: call.label_async("seen", 0, wait=9),
        lambda call: [(each.name, each.on) for each in call.facts.labels],
    ),
    "alias": (lambda call: call.alias_async("new", wait=9), lambda call: call.facts.aliases),
    "unalias": (lambda call: call.unalias_async("other", wait=9), lambda call: call.facts.aliases),
    "checkout": (
        lambda call: call.checkout_async("start", expected_head=call.head),
        lambda call: call.head,
    ),
    "fork": (
        lambda call: call.fork_async("start", name="new", expected_head=call.head),
        lambda call: [each.names for each in call.branches()],
    ),
    "link": (
        lambda call: call.link_async(1, [0], wait=9),
        lambda call: [event.body for event in call.events(kinds=["link"])],
    ),
}
WROTE: dict[str, Any] = {
    "runs.begin": ("queued", {"a": 1}),
    "runs.mark": "suspended",
    "runs.end": ("failed", "E"),
    "tool_calls.open": (0, {"a": 1}),
    "tool_calls.waiting": ("waiting", "why"),
    "tool_calls.resume": "open",
    "tool_calls.done": ("done", 0),
    "tool_calls.failed": ("failed", "E"),
    "tool_calls.abandon": ("abandoned", "why"),
    "documents.write": "new",
    "documents.append": "old more",
    "documents.delete": None,
    "hold": ("held", "new"),
    "release_hold": (),
    "label": [("seen", 0)],
    "alias": ("new", "other"),
    "unalias": (),
    "checkout": 1,
    "fork": [("start",), (), ("new",)],
    "link": [{"event": 1, "answers": [0]}],
}


def version(call: Session) -> int:
    return call.documents.list()[0].version


def prepared(store: Store) -> Session:
    """A session with two branches and one of each thing."""
    call = store.session("a")
    call.append_many([{"n": 0}, {"n": 1}])
    call.name_branch("start").result(HANG_S)
    call.append({"n": 2}, parent=0)
    call.runs.begin("run")
    call.tool_calls.open("tool", "t")
    call.tool_calls.open("asked", "t").result(HANG_S)
    call.tool_calls.waiting("asked")
    call.documents.write("text", "old").result(HANG_S)
    call.hold("held").result(HANG_S)
    call.alias("other").result(HANG_S)
    return call


@pytest.mark.parametrize("name", WRITES)
def test_what_reads_before_it_writes_has_a_twin_that_reads_on_the_pool(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """``runs.end``, ``tool_calls.done``, ``documents.write``, ``hold``, ``alias`` and others read
    before they return, and blocked the event loop.
    """
    store = checked_store(snapshot_frequency=4)
    call = prepared(store)
    twin, ask = WRITES[name]
    work = twin(call)  # what its arguments read is read here
    threads: list[threading.Thread] = []
    real = Store._submit

    def submit(*arguments: Any) -> None:
        threads.append(threading.current_thread())
        real(*arguments)

    monkeypatch.setattr(Store, "_submit", submit)

    async def write() -> Any:
        ack = await asyncio.wait_for(work, HANG_S)
        return await ack

    done = asyncio.run(write())
    assert done.first >= 0
    assert threads and threading.main_thread() not in threads
    assert ask(call) == WROTE[name]


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda it: (it.info_async(), it.info()), id="info"),
        pytest.param(lambda it: (it.branches_async(), it.branches()), id="branches"),
        pytest.param(lambda it: (it.path_async(), it.path()), id="path"),
        pytest.param(lambda it: (it.path_async("start"), it.path("start")), id="path-of-name"),
        pytest.param(lambda it: (it.path_async(None, None, 1), it.path(limit=1)), id="path-page"),
        pytest.param(lambda it: (it.runs.get_async("run"), it.runs.get("run")), id="run"),
        pytest.param(lambda it: (it.runs.list_async(), it.runs.list()), id="runs"),
    ],
)
def test_a_twin_of_a_session_says_what_the_other_says(
    store: Store, ask: Callable[[Session], tuple[Any, Any]]
) -> None:
    twin, plain = ask(prepared(store))

    async def wait() -> Any:
        return await asyncio.wait_for(twin, HANG_S)

    assert asyncio.run(wait()) == plain
    assert plain


def test_a_projection_is_taken_over_and_tells_its_dead_letters_on_a_loop(store: Store) -> None:
    store.session("a").append_many([{"n": 0}, {"n": 1}]).result(HANG_S)

    def refuse(event: Any) -> None:
        if event.body["n"] == 1:
            raise ValueError("cannot take 1")

    async def main() -> list[Any]:
        stale = store.projection("p", refuse, kinds=["message"], on_poison="skip")
        await stale.run_once_async(1)
        other = store.projection("p", refuse, kinds=["message"], on_poison="skip")
        with pytest.raises(BusyError):
            await other.run_once_async()
        await other.take_over_async()
        await other.run_once_async()
        with pytest.raises(ConflictError):
            await stale.run_once_async()
        letters = await other.dead_letters_async()
        assert letters == other.dead_letters()
        await other.close_async()
        await stale.close_async()
        return letters

    (letter,) = asyncio.run(asyncio.wait_for(main(), HANG_S))
    assert (letter.position, letter.error) == (2, "ValueError: cannot take 1")


def test_a_subscription_is_closed_by_async_with(store: Store) -> None:
    call = store.session("a")
    call.append_many([{"n": 0}, {"n": 1}]).result(HANG_S)

    async def main() -> list[int]:
        async with call.subscribe(after=-1) as events:
            found = [(await anext(aiter(events))).sequence for _ in range(2)]
        assert [event async for event in events] == []
        return found

    assert asyncio.run(asyncio.wait_for(main(), HANG_S)) == [0, 1]
