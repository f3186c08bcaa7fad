"""Appends and reads on event loops: awaiting, cancelling, closing, several loops at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine import Ack, Store
from eventlog.errors import (
    AppendConflictError,
    InvalidMessageError,
    OverloadedError,
    StoreClosedError,
    TurnlogError,
    UsageError,
)
from eventlog.limits import QUEUE_APPENDS_MAX
from tests.model.staging import HANG_S, Halt, halted, in_threads, run_script


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run on a loop of its own; what hangs fails."""

    async def bounded() -> Any:
        return await asyncio.wait_for(main, HANG_S)

    return asyncio.run(bounded())


def numbers(store: Store, name: str = "s") -> list[Any]:
    """What the session's messages hold."""
    return [body["n"] for body in store.session(name).history()]


async def reached(halt: Halt) -> None:
    """Wait for a failpoint without standing in the loop's way."""
    await asyncio.get_running_loop().run_in_executor(None, halt.wait_reached)


# Awaiting


def test_an_ack_can_be_awaited_again_and_by_many(store: Store) -> None:
    async def main() -> None:
        ack = store.session("s").append({"n": 0})
        found = await asyncio.gather(ack, ack, wait(ack), wait(ack))
        assert all([each is ack for each in found])
        assert await ack is ack
        assert (ack.first, ack.last, ack.position, ack.done()) == (0, 0, 1, True)

    async def wait(ack: Any) -> Any:
        return await ack

    run(main())


def test_gathered_appends_to_one_session_are_all_there(store: Store) -> None:
    """agno 7479: of two runs on one session the last writer dropped the other's, silently."""

    async def main() -> None:
        call = store.session("s")
        acks = await asyncio.gather(*[call.append({"n": number}) for number in range(1_000)])
        assert [ack.first for ack in acks] == list(range(1_000))

    run(main())
    assert numbers(store) == list(range(1_000))


def test_tasks_of_many_sessions_resolve_in_order(store: Store) -> None:
    async def talk(name: str) -> list[int]:
        return [(await store.session(name).append({"n": number})).first for number in range(20)]

    async def main() -> None:
        found = await asyncio.gather(*[talk(f"s{number}") for number in range(50)])
        assert found == [list(range(20))] * 50

    run(main())


def test_acks_of_one_session_resolve_in_order(store: Store) -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def wait(number: int, ack: Any) -> None:
            await ack
            order.append(number)

        call = store.session("s")
        tasks = [
            asyncio.create_task(wait(number, call.append({"n": number}))) for number in range(300)
        ]
        await asyncio.gather(*tasks)
        return order

    assert run(main()) == list(range(300))


def test_what_is_not_known_yet_is_not_guessed(store: Store) -> None:
    with halted("commit.before_commit") as halt:
        ack = store.session("s").append({"n": 0})
        halt.wait_reached()
        assert not ack.done()
        assert "waiting" in repr(ack)
        for name in ("first", "last", "position", "event_id", "already"):
            with pytest.raises(UsageError):
                getattr(ack, name)
        with pytest.raises(TimeoutError):
            ack.result(timeout=0.01)
        with pytest.raises(TimeoutError):
            ack.result(timeout=0)
    assert ack.result(HANG_S).first == 0


def test_a_refused_append_raises_wherever_it_is_waited_for(store: Store) -> None:
    async def main() -> None:
        ack = store.session("s").append({"n": 0}, expected_head=3)
        for _ in range(2):
            with pytest.raises(AppendConflictError):
                await ack
        with pytest.raises(AppendConflictError):
            await ack.durable()
        with pytest.raises(AppendConflictError):
            _ = ack.first

    run(main())
    assert not store.session("s").exists


def test_queued_appends_are_awaited_at_once(store: Store) -> None:
    async def main() -> None:
        with halted("commit.before_commit") as halt:
            ack = store.session("s").append({"n": 0}, ack="queued")
            await reached(halt)
            assert await ack is ack
            assert not ack.done()
            waiting = asyncio.create_task(ack.durable())
            done, _ = await asyncio.wait([waiting], timeout=0.02)
            assert not done
        assert (await waiting).first == 0
        assert await store.flush_async() == 1

    run(main())


def test_flush_async_waits_no_longer_than_it_was_told(store: Store) -> None:
    """It took no timeout, where ``flush`` does."""

    async def main() -> None:
        with halted("commit.before_commit") as halt:
            ack = store.session("s").append({"n": 0})
            await reached(halt)
            with pytest.raises(TimeoutError, match="not all appends"):
                await store.flush_async(0.01)
            assert not ack.done()
        assert await store.flush_async(HANG_S) == 1

    run(main())


def test_flush_async_raises_what_was_refused(store: Store) -> None:
    async def main() -> None:
        call = store.session("s")
        for number in range(3):
            await call.append({"n": number}, ack="queued", expected_head=5)
        with pytest.raises(AppendConflictError) as caught:
            await store.flush_async()
        assert caught.value.__notes__[1:] == ["2 more appends were refused"]  # after the hint
        assert await store.flush_async() == 0

    run(main())


# Cancelling (FAULTS 48)


def test_cancelled_before_the_append_nothing_is_written(store: Store) -> None:
    async def main() -> None:
        async def talk() -> None:
            await asyncio.sleep(0)
            await store.session("s").append({"n": 0})

        task = asyncio.create_task(talk())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert not store.session("s").exists


@pytest.mark.parametrize("step", ["commit.before_begin", "commit.after_puts", "commit.before_ack"])
def test_cancelled_during_the_commit_the_append_goes_on(store: Store, step: str) -> None:
    """The loop is not blocked meanwhile, and the same key tells later what became of it."""

    async def main() -> None:
        with halted(step) as halt:
            ack = store.session("s").append({"n": 0}, idempotency_key="k")

            async def wait() -> None:
                await ack

            tasks = [asyncio.create_task(wait()) for _ in range(3)]
            await reached(halt)
            tasks[0].cancel()
            tasks[2].cancel()
            found = await asyncio.gather(tasks[0], tasks[2], return_exceptions=True)
            assert all([isinstance(each, asyncio.CancelledError) for each in found])
        await tasks[1]
        again = await store.session("s").append({"n": 0}, idempotency_key="k")
        assert again.already and (again.first, again.position) == (0, 1)

    run(main())
    assert numbers(store) == [0]


def test_cancelled_after_the_commit_nothing_changes(store: Store) -> None:
    async def main() -> None:
        ack = store.session("s").append({"n": 0})
        await ack
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        assert (await ack).first == 0  # settled: awaiting does not suspend
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        task.uncancel()

    run(main())


def test_a_timeout_leaves_the_append_as_it_is(store: Store) -> None:
    async def main() -> None:
        with halted("commit.before_commit") as halt:
            ack = store.session("s").append({"n": 0})
            await reached(halt)
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(ack, 0.01)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(ack.durable(), 0.01)
        assert (await ack).first == 0

    run(main())
    assert numbers(store) == [0]


# Loops


def test_a_closed_loop_fails_nobody_else(store: Store) -> None:
    """FAULTS 49: tasks of a closed loop are gone; others of the same commit are told."""
    with halted("commit.before_commit") as halt:
        first = store.session("s").append({"n": 0})
        halt.wait_reached()

        async def give_up() -> None:
            ack = store.session("s").append({"n": 1})
            await asyncio.wait([asyncio.ensure_future(wait(ack))], timeout=0.01)

        async def wait(ack: Any) -> None:
            await ack

        loop = asyncio.new_event_loop()
        loop.run_until_complete(give_up())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        last = store.session("s").append({"n": 2})
    assert first.result(HANG_S).first == 0
    assert last.result(HANG_S).first == 2
    assert run(one_more(store)) == 3
    assert store.health()["ok"]
    assert numbers(store) == [0, 1, 2, 3]


async def one_more(store: Store) -> int:
    return (await store.session("s").append({"n": 3})).first


def test_a_loop_that_is_closed_with_waiting_acks_fails_nobody_else(store: Store) -> None:
    """As above, without anybody cleaning up: the futures of the closed loop are still there."""
    halt_reached: list[Any] = []
    with halted("commit.before_commit") as halt:
        store.session("s").append({"n": 0})
        halt.wait_reached()
        loop = asyncio.new_event_loop()

        async def start() -> None:
            ack = store.session("s").append({"n": 1})
            iterator = ack.__await__()
            halt_reached.append((ack, iterator, next(iterator)))  # waits, and nobody drives it

        loop.run_until_complete(start())
        loop.close()
    store.flush(HANG_S)
    [(ack, iterator, _)] = halt_reached
    iterator.close()
    assert ack.result(HANG_S).first == 1
    assert store.session("s").append({"n": 2}).result(HANG_S).first == 2


def test_two_loops_in_two_threads_at_once(store: Store) -> None:
    def talk(name: str) -> list[int]:
        async def main() -> list[int]:
            call = store.session(name)
            firsts = []
            for number in range(150):
                firsts.append((await call.append({"n": number})).first)
            return firsts

        found: list[int] = run(main())
        return found

    found = in_threads(lambda: talk("a"), lambda: talk("b"))
    assert found == [list(range(150))] * 2


def test_two_loops_and_a_thread_wait_for_the_same_ack(store: Store) -> None:
    for number in range(30):
        with halted("commit.before_ack") as halt:
            ack = store.session("s").append({"n": number})
            halt.wait_reached()

            found = in_threads(
                *[partial(first_on_a_loop, ack)] * 2,
                *[partial(ack.result, HANG_S)] * 2,
                halt.release,
            )
        assert found == [number, number, ack, ack, None]


def first_on_a_loop(ack: Ack) -> int:
    """Await an ack on a loop of its own."""

    async def main() -> int:
        return (await ack).first

    found: int = run(main())
    return found


class _StallingLoop(asyncio.SelectorEventLoop):
    """A loop that is slow to be woken, as one on a busy machine may be."""

    def __init__(self) -> None:
        super().__init__()
        self.stall = Halt()

    def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        if threading.current_thread().name == "turnlog-writer":
            self.stall()
        return super().call_soon_threadsafe(*arguments, **options)


def test_flush_waits_for_appends_that_are_just_being_settled(store: Store) -> None:
    """A commit left the queue before its acks were settled: flush saw nothing to wait for.

    It then neither waited nor raised what had been refused.
    """
    loop = _StallingLoop()
    store.session("s").append({"n": 0}).result()
    with halted("commit.before_begin") as halt:
        store.session("t").append({"n": 0})
        halt.wait_reached()  # what follows is one commit
        started = threading.Event()

        async def wait() -> None:
            ack = store.session("s").append({"n": 1})
            started.set()
            await ack

        thread = threading.Thread(target=lambda: loop.run_until_complete(wait()), daemon=True)
        thread.start()
        assert started.wait(HANG_S)
        refused = store.session("s").append({"n": 2}, expected_head=77, ack="queued")
    loop.stall.wait_reached()
    try:
        with pytest.raises((TimeoutError, AppendConflictError)):
            store.flush(0.2)
    finally:
        loop.stall.release()
        thread.join(HANG_S)
        loop.close()
    assert not thread.is_alive()
    with pytest.raises(AppendConflictError):
        refused.result(HANG_S)


# Room


def test_room_waits_until_the_queue_has_drained(store: Store) -> None:
    async def main() -> None:
        call = store.session("s")
        with halted("commit.before_begin") as halt:
            await store.room()
            accepted = 0
            with pytest.raises(OverloadedError):
                while True:
                    call.append({"n": accepted})
                    accepted += 1
            assert accepted >= QUEUE_APPENDS_MAX * 9 // 10
            waiting = asyncio.create_task(store.room())
            done, _ = await asyncio.wait([waiting], timeout=0.02)
            assert not done and halt is not None
        await waiting
        await call.append({"n": accepted})
        info = call.info()
        assert info is not None
        assert info.message_count == accepted + 1

    run(main())


def test_many_wait_for_room_and_all_get_it(store: Store) -> None:
    async def main() -> None:
        call = store.session("s")
        with halted("commit.before_begin"):
            with pytest.raises(OverloadedError):
                while True:
                    call.append({})
            waiting = [asyncio.create_task(store.room()) for _ in range(20)]
            cancelled = asyncio.create_task(store.room())
            await asyncio.sleep(0)
            cancelled.cancel()
        await asyncio.gather(*waiting)

    run(main())


def test_waiting_for_room_ends_when_the_store_is_closed(store_path: Path) -> None:
    store = Store.open(store_path)

    async def main() -> None:
        call = store.session("s")
        with halted("commit.before_begin"):
            with pytest.raises(OverloadedError):
                while True:
                    call.append({})
            waiting = asyncio.create_task(store.room())
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, store.close)
        await asyncio.wait([waiting])
        assert waiting.exception() is None or isinstance(waiting.exception(), StoreClosedError)

    run(main())


# Large bodies and reads


def test_append_large_stores_what_append_would(store: Store) -> None:
    body = {"role": "user", "content": "x" * 3_000_000, "blob": b"\xff" * 1_000_000}

    async def main() -> None:
        call = store.session("s", user_id="u")
        ack = await call.append_large(body, id="e", metadata={"m": 1}, idempotency_key="k")
        assert ack.done() and ack.event_id == "e"
        again = await call.append_large(body, id="e", metadata={"m": 1}, idempotency_key="k")
        assert again.already
        with pytest.raises(AppendConflictError):
            await call.append_large(body, expected_head=7)
        with pytest.raises(InvalidMessageError) as caught:
            await call.append_large({"a": [0, {"b": {1, 2}}]})
        assert caught.value.path == "$.a[1].b"

    run(main())
    assert store.session("s").history() == [body]
    assert store.session("s").event(0).metadata == {"m": 1}


def test_append_large_waits_for_room(store: Store) -> None:
    async def main() -> None:
        call = store.session("s")
        with halted("commit.before_begin"):
            with pytest.raises(OverloadedError):
                while True:
                    call.append({})
            large = asyncio.create_task(call.append_large({"last": True}))
            done, _ = await asyncio.wait([large], timeout=0.02)
            assert not done
        assert (await large).done()

    run(main())
    assert store.session("s").history(limit=1) == [{"last": True}]


def test_awaitable_reads_give_what_the_plain_ones_give(store: Store) -> None:
    async def main() -> None:
        call = store.session("s", user_id="u")
        await call.append_many([{"n": number} for number in range(10)])
        assert await call.history_async() == call.history()
        assert await call.history_async(limit=3) == call.history(limit=3)
        assert await call.event_async(4) == call.event(4)
        assert await store.sessions_async(user_id="u") == store.sessions(user_id="u")
        assert (await store.check_async()).findings == []
        assert (await store.stats_async())["events"] == 10
        assert [event.sequence async for event in call.events(2, 5)] == [2, 3, 4, 5]
        assert [event.position async for event in store.read(after=7)] == [8, 9, 10]

    run(main())


def test_an_iterator_can_be_left_in_the_middle(store: Store) -> None:
    async def main() -> None:
        call = store.session("s")
        await call.append_many([{"n": number} for number in range(3_000)])
        async for event in call.events():
            if event.sequence == 5:
                break
        await call.append({"n": 3_000})

    run(main())


def test_close_from_a_task_settles_what_waits(store_path: Path) -> None:
    async def main() -> list[Any]:
        store = Store.open(store_path)
        acks = [store.session("s").append({"n": number}) for number in range(500)]

        async def wait(ack: Any) -> Any:
            return await ack

        tasks = [asyncio.create_task(wait(ack)) for ack in acks]
        await asyncio.sleep(0)
        store.close()
        return await asyncio.gather(*tasks)

    assert [ack.first for ack in run(main())] == list(range(500))
    with Store.open(store_path) as store:
        assert numbers(store) == list(range(500))


def test_closed_by_another_task_appends_say_so(store_path: Path) -> None:
    async def main() -> None:
        store = Store.open(store_path)
        await store.session("s").append({"n": 0})
        store.close()
        with pytest.raises(StoreClosedError):
            await store.session("s").append({"n": 1})
        with pytest.raises(StoreClosedError):
            await store.session("s").append_large({"n": 1})
        with pytest.raises(StoreClosedError):
            await store.session("s").history_async()

    run(main())


def test_asyncio_debug_mode_finds_nothing(store_path: Path) -> None:
    """Debug mode reports calls from wrong threads, coroutines nobody awaited and slow ones."""
    script = """
import asyncio, sys
from engine import Ack, Store

async def main():
    store = Store.open(sys.argv[1])
    call = store.session("s")
    await asyncio.gather(*[call.append({"n": n}) for n in range(50)])
    await store.flush_async()
    await store.room()
    subscription = store.subscribe(after=0)
    count = 0
    async for event in subscription:
        count += 1
        if count == 50:
            subscription.close()
    store.close()
    print(count)

asyncio.run(main(), debug=True)
"""
    assert run_script(script, store_path) == "50\n"


def test_errors_of_one_task_are_its_own(store: Store, checked_store: Callable[..., Store]) -> None:
    """FAULTS 53: a bad item in a group commit fails alone."""

    async def main() -> list[Any]:
        call = store.session("s")
        with halted("commit.before_begin") as halt:
            call.append({"n": -1})
            await reached(halt)
            appends = [
                call.append({"n": number}, expected_head=0 if number % 2 else None)
                for number in range(10)
            ]

        async def wait(ack: Any) -> Any:
            return await ack

        return await asyncio.gather(*map(wait, appends), return_exceptions=True)

    found = run(main())
    assert [isinstance(each, TurnlogError) for each in found] == [False, True] * 5
    assert numbers(store) == [-1, 0, 2, 4, 6, 8]
