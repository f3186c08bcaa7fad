"""Reads that wait for a position, which another process was told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog.errors import NotUpToBoundError, StoreClosedError, UsageError
from tests.model.actors import Workers
from tests.model.operations import Append, New
from tests.model.staging import HANG_S, in_threads


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


def run(main: Any) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main, HANG_S)

    return asyncio.run(bounded())


@pytest.mark.parametrize("of", ["store", "tenant", "session"])
def test_a_position_that_is_not_there_yet_is_refused(store: Store, of: str) -> None:
    acme = store.tenant("acme")
    position = acme.session("s").append({"n": 0}).result().position
    scope: Any = {"store": store, "tenant": acme, "session": acme.session("s")}[of]
    assert scope.up_to(position) is scope
    assert run(scope.up_to_async(position, None)) is scope
    for timeout in (0, 0.01):
        with pytest.raises(NotUpToBoundError) as caught:
            scope.up_to(position + 1, timeout)
        assert caught.value.position == position
        with pytest.raises(NotUpToBoundError) as caught:
            run(scope.up_to_async(position + 1, timeout))
        assert caught.value.position == position
    for odd in (-1, 1.0, None):
        with pytest.raises(UsageError):
            scope.up_to(odd)
    with pytest.raises(UsageError):
        scope.up_to(position, -1)
    assert len(store._log._futures) == 0


def test_a_read_may_ask_for_a_position(store: Store) -> None:
    position = store.tenant("acme").session("s").append({"n": 0}).result().position
    for scope in (store, store.tenant("acme")):
        assert [event.body["n"] for event in scope.read(min_position=position)] == [0]
        with pytest.raises(NotUpToBoundError):
            scope.read(min_position=position + 1, timeout=0.01)

        async def main(scope: Any = scope) -> list[Any]:
            with pytest.raises(NotUpToBoundError):
                await scope.read_async(min_position=position + 1)
            events = await scope.read_async(0, 5, min_position=position, timeout=1)
            return [event.body["n"] async for event in events]

        assert run(main()) == [0]


@pytest.mark.parametrize("way", ["thread", "loop"])
def test_a_read_waits_for_what_another_process_commits(
    checked_store: Callable[..., Store], workers: Workers, store_path: Path, way: str
) -> None:
    store = checked_store()
    other = workers.start()
    began = threading.Event()

    def write() -> None:
        assert began.wait(HANG_S)
        other.perform(store_path, Append("", "s", tuple(New({"n": n}) for n in range(3))))

    def wait_in_thread() -> list[Any]:
        began.set()
        events = store.read(min_position=3, timeout=HANG_S)
        assert len(store.session("s").up_to(3).history()) == 3
        return [event.body["n"] for event in events]

    async def wait_on_loop() -> list[Any]:
        began.set()
        events = await store.read_async(min_position=3, timeout=None)
        return [event.body["n"] async for event in events]

    wait = wait_in_thread if way == "thread" else (lambda: run(wait_on_loop()))
    found = in_threads(write, wait)
    other.close()
    assert found[1] == [0, 1, 2]


@pytest.mark.parametrize("way", ["thread", "loop"])
def test_closing_the_store_ends_a_wait_for_a_position(store_path: Path, way: str) -> None:
    store = Store.open(store_path)
    began = threading.Event()
    errors: list[BaseException] = []

    async def on_loop() -> None:
        began.set()
        await store.read_async(min_position=9, timeout=None)

    def wait() -> None:
        try:
            if way == "loop":
                run(on_loop())
            else:
                began.set()
                store.read(min_position=9, timeout=None)
        except StoreClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert began.wait(HANG_S)
    store.close()
    thread.join(HANG_S)
    assert not thread.is_alive() and len(errors) == 1
