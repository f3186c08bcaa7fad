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
from eventlog.errors import SessionNotFoundError, TrimmedError, UsageError
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
