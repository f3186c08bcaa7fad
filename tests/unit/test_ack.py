"""Acks resolve once, wake every kind of waiter, and tell nothing before that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.ack import Ack, Draft, Terms, settle, store_id, wake
from eventlog.errors import AppendConflictError, TurnlogError, UsageError
from eventlog.record import HEADER_BYTES, MESSAGE, NO_TIME, encode_tail

REFUSAL = AppendConflictError("head is 3", expected=2, current=3)
TAIL = encode_tail(MESSAGE, 2, 1, NO_TIME, 0, 0)


def ack_of(*, queued: bool = False, caller_id: str | None = None) -> Ack:
    terms = Terms(queued=queued, caller_id=caller_id)
    return Ack(("t", "s"), 100, drafts=[Draft(TAIL, b"body")], terms=terms)


def placed(ack: Ack) -> Ack:
    ack.place(0x2A, 3, 5, 77)
    return ack


# What it tells


@pytest.mark.parametrize("name", ["first", "last", "position", "already", "event_id"])
def test_nothing_is_known_before_it_is_settled(name: str) -> None:
    ack = placed(ack_of())
    assert not ack.done()
    with pytest.raises(UsageError, match=f"{name} is not known yet") as caught:
        getattr(ack, name)
    assert "Await" in caught.value.hint
    settle([ack])
    getattr(ack, name)


@pytest.mark.parametrize("name", ["first", "last", "position", "already", "event_id"])
def test_a_refused_ack_raises_whatever_is_asked(name: str) -> None:
    ack = ack_of()
    settle([ack], REFUSAL)
    assert ack.done()
    with pytest.raises(AppendConflictError) as caught:
        getattr(ack, name)
    assert caught.value is REFUSAL


def test_a_durable_ack_tells_its_place() -> None:
    ack = placed(ack_of())
    settle([ack])
    assert (ack.first, ack.last, ack.position, ack.already) == (3, 5, 77, False)
    assert ack.event_id == "2a.0000000005"
    assert ack.result() is ack
    assert repr(ack) == "<Ack durable, sequences 3-5, position 77>"


def test_a_repeated_append_says_so() -> None:
    ack = ack_of()
    ack.repeat(1, 0, 1, 9)
    settle([ack])
    assert ack.already
    assert (ack.first, ack.last, ack.position) == (0, 1, 9)


def test_the_caller_s_id_is_the_event_s() -> None:
    ack = placed(ack_of(caller_id="m-1"))
    settle([ack])
    assert ack.event_id == "m-1"


def test_what_it_looks_like() -> None:
    ack = ack_of()
    assert repr(ack) == "<Ack waiting, 1 events>"
    settle([ack], REFUSAL)
    assert repr(ack) == "<Ack refused: head is 3>"


def test_events_are_let_go_once_settled() -> None:
    special, plain = ack_of(), Ack(("t", "s"), 84, TAIL, b"body")
    assert plain.all_drafts() == (Draft(TAIL, b"body"),)
    assert list(special.all_drafts()) == [Draft(TAIL, b"body")]
    for ack in (special, plain):
        placed(ack)
        settle([ack])
        assert list(ack.all_drafts()) == []


def test_a_plain_ack_has_no_conditions() -> None:
    ack = placed(Ack(("t", "s"), 84, TAIL, b"body"))
    assert (ack.queued, list(ack.more), ack.event_count) == (False, [], 1)
    settle([ack])
    assert not ack.already
    assert ack.event_id == "2a.0000000005"


@given(st.binary(max_size=10), st.binary(max_size=10), st.integers(0, 255))
def test_a_draft_knows_its_parts(extension: bytes, body: bytes, kind: int) -> None:
    tail = encode_tail(kind, 0, 0, NO_TIME, 0, len(extension))
    draft = Draft(tail, extension + body, len(extension))
    assert (draft.extension, draft.body, draft.kind) == (extension, body, kind)
    assert draft.size == HEADER_BYTES + len(extension + body)


@pytest.mark.parametrize(
    ("number", "sequence", "wanted"),
    [
        (1, 0, "1.0000000000"),
        (255, 7, "ff.0000000007"),
        (2**64 - 1, 10**10 - 1, "ffffffffffffffff.9999999999"),
        (1, 10**10, "1.10000000000"),
    ],
)
def test_ids_made_by_the_store(number: int, sequence: int, wanted: str) -> None:
    assert store_id(number, sequence) == wanted


# Threads


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run a call in a thread; its result or error is put into the list."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except TurnlogError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def wait_until_waiting(*acks: Ack) -> None:
    """Spin until a thread waits on each ack."""
    while any(ack._gate is None and ack._waiters is None for ack in acks):
        threading.Event().wait(0)


@pytest.mark.parametrize("error", [None, REFUSAL], ids=["durable", "refused"])
def test_a_thread_is_woken(error: AppendConflictError | None) -> None:
    ack = placed(ack_of())
    thread, found = in_thread(lambda: ack.result(30))
    wait_until_waiting(ack)
    settle([ack], error)
    thread.join(30)
    assert found == [ack if error is None else error]


def test_several_threads_are_woken() -> None:
    acks = [placed(ack_of()) for _ in range(5)]
    waiting = [in_thread(lambda ack=ack: ack.result(30)) for ack in acks]  # type: ignore[misc]
    wait_until_waiting(*acks)
    settle(acks)
    for (thread, found), ack in zip(waiting, acks, strict=True):
        thread.join(30)
        assert found == [ack]


@pytest.mark.parametrize("timeout", [0, 0.001])
def test_a_timeout_leaves_the_append_as_it_is(timeout: float) -> None:
    ack = placed(ack_of())
    with pytest.raises(TimeoutError, match="may still become durable"):
        ack.result(timeout)
    assert not ack.done()
    settle([ack])
    assert ack.result(timeout) is ack


def test_waiting_again_and_again_leaves_one_gate() -> None:
    """Each timeout left its lock on the ack, so that a polling thread made a long chain of them."""
    ack = placed(ack_of())
    for _ in range(100):
        with pytest.raises(TimeoutError):
            ack.result(0)
    assert ack._gate is not None
    assert ack._gate.following is None
    thread, found = in_thread(lambda: ack.result(30))
    while ack._gate.following is None:
        threading.Event().wait(0)
    settle([ack])
    thread.join(30)
    assert found == [ack]
    assert ack.result(30) is ack


def test_who_gave_up_does_not_wait_any_more() -> None:
    """After a timeout the ack counted as awaited for ever: nobody else was told of its refusal."""
    ack = ack_of()
    assert not ack.is_awaited
    with pytest.raises(TimeoutError):
        ack.result(0)
    assert not ack.is_awaited
    thread, _ = in_thread(lambda: ack.result(30))
    while not ack.is_awaited:
        threading.Event().wait(0)
    settle([ack], REFUSAL)
    thread.join(30)


# Event loops


def test_a_task_is_woken_from_another_thread() -> None:
    async def main() -> None:
        ack = placed(ack_of())
        task = asyncio.ensure_future(wait_for(ack))
        await asyncio.sleep(0)
        assert not task.done()
        threading.Thread(target=settle, args=([ack],)).start()
        assert await task is ack

    asyncio.run(main())


async def wait_for(ack: Ack) -> Ack:
    return await ack


def test_a_refusal_is_raised_in_the_task() -> None:
    async def main() -> None:
        ack = ack_of()
        task = asyncio.ensure_future(wait_for(ack))
        await asyncio.sleep(0)
        settle([ack], REFUSAL)
        with pytest.raises(AppendConflictError):
            await task
        with pytest.raises(AppendConflictError):
            await ack

    asyncio.run(main())


def test_a_settled_ack_does_not_wait() -> None:
    async def main() -> None:
        ack = placed(ack_of())
        settle([ack])
        assert await ack is ack
        assert await ack.durable() is ack

    asyncio.run(main())


def test_a_queued_append_is_awaited_at_once_and_durable_later() -> None:
    async def main() -> None:
        ack = placed(ack_of(queued=True))
        assert await ack is ack
        assert not ack.done()
        with pytest.raises(UsageError):
            _ = ack.first
        task = asyncio.ensure_future(ack.durable())
        await asyncio.sleep(0)
        assert not task.done()
        settle([ack])
        assert await task is ack

    asyncio.run(main())


def test_a_queued_append_that_was_refused_raises_when_awaited() -> None:
    async def main() -> None:
        ack = ack_of(queued=True)
        settle([ack], REFUSAL)
        with pytest.raises(AppendConflictError):
            await ack
        with pytest.raises(AppendConflictError):
            await ack.durable()

    asyncio.run(main())


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often another thread could have woken it."""

    calls = 0

    def call_soon_threadsafe(  # type: ignore[override]
        self, *args: Any, **options: Any
    ) -> asyncio.Handle:
        self.calls += 1
        return super().call_soon_threadsafe(*args, **options)


def test_many_waiters_on_one_ack_and_many_acks_on_one_loop() -> None:
    """Invariant 2: one wake-up for each loop and commit."""

    async def main() -> None:
        acks = [placed(ack_of()) for _ in range(20)]
        tasks = [asyncio.ensure_future(wait_for(ack)) for ack in acks for _ in range(3)]
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        before = loop.calls
        settle(acks)
        assert loop.calls == before + 1
        assert await asyncio.gather(*tasks) == [ack for ack in acks for _ in range(3)]

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())


def test_refusals_of_one_commit_wake_a_loop_once() -> None:
    """Each refused ack made a wake-up of its own: 4,096 of them after a batch that failed."""

    async def main() -> None:
        good = [placed(ack_of()) for _ in range(3)]
        bad = [ack_of() for _ in range(5)]
        tasks = [asyncio.ensure_future(wait_for(ack)) for ack in [*good, *bad]]
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        before = loop.calls
        errors = [AppendConflictError(f"{number}") for number in range(5)]
        settle(good, refused=zip(bad, errors, strict=True))
        assert loop.calls == before + 1
        assert await asyncio.gather(*tasks, return_exceptions=True) == [*good, *errors]

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())


def test_polling_tasks_leave_no_futures_behind() -> None:
    async def main() -> None:
        ack = placed(ack_of())
        for _ in range(20):
            task = asyncio.ensure_future(wait_for(ack))
            await asyncio.sleep(0)
            assert ack.is_awaited
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not ack.is_awaited
        last = asyncio.ensure_future(wait_for(ack))
        await asyncio.sleep(0)
        assert ack._waiters[1] is None
        settle([ack])
        assert await last is ack

    asyncio.run(main())


def test_a_cancelled_task_leaves_the_append_as_it_is() -> None:
    async def main() -> None:
        ack = placed(ack_of())
        cancelled = asyncio.ensure_future(wait_for(ack))
        other = asyncio.ensure_future(wait_for(ack))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not ack.done()
        settle([ack])
        assert await other is ack
        assert ack.first == 3

    asyncio.run(main())


def test_a_timeout_in_a_task_leaves_the_append_as_it_is() -> None:
    async def main() -> None:
        ack = placed(ack_of())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait_for(ack), 0.001)
        settle([ack])
        assert await ack is ack

    asyncio.run(main())


def test_a_closed_loop_fails_its_own_waiters_only() -> None:
    left = placed(ack_of())
    loop = asyncio.new_event_loop()
    task = loop.create_task(wait_for(left))
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    future = loop.create_future()  # a waiter that nobody cancelled
    left._waiters = (future, left._waiters)
    loop.close()

    async def main() -> None:
        ack = placed(ack_of())
        waiting = asyncio.ensure_future(wait_for(ack))
        shared = asyncio.ensure_future(wait_for(left))
        await asyncio.sleep(0)
        settle([left, ack])
        assert await waiting is ack
        assert await shared is left

    asyncio.run(main())
    assert left.result(0) is left


def test_loops_in_several_threads_are_all_woken() -> None:
    acks = [placed(ack_of()) for _ in range(4)]

    def run(ack: Ack) -> Ack:
        return asyncio.run(wait_for(ack))

    waiting = [in_thread(lambda ack=ack: run(ack)) for ack in acks]  # type: ignore[misc]
    wait_until_waiting(*acks)
    settle(acks)
    for (thread, found), ack in zip(waiting, acks, strict=True):
        thread.join(30)
        assert found == [ack]


def test_waking_resolves_plain_futures_once() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(3)]
        futures[1].cancel()
        threading.Thread(target=wake, args=(futures,)).start()
        await futures[0]
        await futures[2]
        wake(futures)
        await asyncio.sleep(0)

    asyncio.run(main())


def test_settling_nothing_is_fine() -> None:
    settle([])
    wake([])
