"""Tool calls: what may follow what, as of any event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine import AppendConflictError, InvalidNameError, Session, Store, UsageError
from engine.toolcalls import STATES
from tests.model.staging import run_script
from tests.unit.belongings import HANG_S, USER

STEPS: dict[str, Callable[[Session], Any]] = {
    "waiting": lambda call: call.tool_calls.waiting("c", "approval"),
    "resume": lambda call: call.tool_calls.resume("c"),
    "done": lambda call: call.tool_calls.done("c", event=0),
    "failed": lambda call: call.tool_calls.failed("c", "no"),
    "abandon": lambda call: call.tool_calls.abandon("c", "nobody waits"),
}
AFTER = {"waiting": "waiting", "resume": "open", "done": "done", "failed": "failed"} | {
    "abandon": "abandoned"
}
WAYS: dict[str, list[str]] = {
    "open": [],
    "waiting": ["waiting"],
    "done": ["done"],
    "failed": ["waiting", "failed"],
    "abandoned": ["abandon"],
}


def opened(store: Store) -> Session:
    call = store.session("a")
    call.append(USER).result(HANG_S)
    call.tool_calls.open("c", "search", {"blob": 3}, event=0).result(HANG_S)
    return call


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("state", STATES)
def test_what_may_follow_what(store: Store, state: str, step: str) -> None:
    call = opened(store)
    for each in WAYS[state]:
        STEPS[each](call).result(HANG_S)
    before = call.tool_calls.get("c")
    assert before is not None and before.state == state
    last = call.info().last_sequence  # type: ignore[union-attr]
    may = state == "waiting" or (state == "open" and step != "resume")
    if not may:
        with pytest.raises(AppendConflictError):
            STEPS[step](call)
        assert call.tool_calls.get("c") == before
        return
    STEPS[step](call).result(HANG_S)
    after = call.tool_calls.get("c")
    assert after is not None and after.state == AFTER[step]
    assert (after.name, after.event, after.arguments_ref) == ("search", 0, {"blob": 3})
    assert after.opened_us == before.opened_us and after.version == last + 1
    assert call.at(last).tool_calls.list() == [before]
    assert call.at(0).tool_calls.list() == []


def test_states_are_listed_and_two_steps_at_once_are_one(store: Store) -> None:
    call = opened(store)
    call.tool_calls.open("b", "fetch").result(HANG_S)
    call.tool_calls.waiting("c").result(HANG_S)
    assert [each.id for each in call.tool_calls.list()] == ["c", "b"]
    assert [each.id for each in call.tool_calls.list(("waiting",))] == ["c"]
    assert [each.id for each in call.tool_calls.list(("open", "waiting"))] == ["c", "b"]
    assert asyncio.run(call.tool_calls.list_async(("open",))) == call.tool_calls.list(("open",))
    assert asyncio.run(call.tool_calls.get_async("b")) == call.tool_calls.get("b")
    acks = [call.tool_calls.done("b"), call.tool_calls.failed("b", "late")]
    acks[0].result(HANG_S)
    with pytest.raises(AppendConflictError):
        acks[1].result(HANG_S)
    with pytest.raises(AppendConflictError):
        call.tool_calls.open("b", "fetch").result(HANG_S)
    square: Any = memoryview(b"abcd").cast("B", (2, 2))  # NotImplementedError came out of it
    for wrong in (("running",), square, bytearray(b"open")):
        with pytest.raises(UsageError):
            call.tool_calls.list(wrong)


def test_a_call_that_nobody_opened_has_no_steps(store: Store) -> None:
    call = store.session("a")
    for step in STEPS.values():
        with pytest.raises(UsageError):
            step(call)
    for wrong in (lambda: call.tool_calls.open("", "x"), lambda: call.tool_calls.open("c", "")):
        with pytest.raises(InvalidNameError):
            wrong()
    assert not call.exists and call.tool_calls.list() == []


def test_a_cancelled_turn_leaves_its_call_open(checked_store: Callable[..., Store]) -> None:
    """agno PR 6640, pydantic-ai 7977, 5837: cancelling a turn in a tool discarded it, or left no
    mark of it. What was acknowledged stays, and what is open is told by events."""
    store = checked_store()

    async def turn() -> None:
        call = store.session("a")
        await call.append(USER)
        await call.append({"role": "assistant", "content": "let me loo"})
        await call.tool_calls.open("c", "search", event=1)
        await asyncio.Event().wait()

    async def cancelled() -> None:
        task = asyncio.create_task(turn())
        while not store.session("a").tool_calls.list():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    store.close()
    call = checked_store().session("a")
    assert [each["content"] for each in call.history()] == ["and then?", "let me loo"]
    assert [(each.state, each.event) for each in call.tool_calls.list()] == [("open", 1)]


CALLS = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALLS]}


async def turn(call: Session) -> AsyncIterator[Any]:
    """A turn of an agent with a tool, the ack of each step when it is durable."""
    yield await call.append(USER)
    yield await call.runs.begin("run")
    yield await call.append({"role": "assistant", "content": "let me loo"})
    yield await call.append(ASKS)
    yield await call.tool_calls.open("c", "search", event=call.head)
    yield await call.tool_calls.waiting("c", "approval")
    yield await call.tool_calls.resume("c")
    yield await (await call.artifacts.write_async("found", "half of it"))
    yield await call.append({"role": "tool", "tool_call_id": "c", "content": "found"})
    yield await call.tool_calls.done("c", event=call.head)
    yield await call.record_usage(input_tokens=3)
    yield await call.runs.end("run")


STEP_COUNT = 12
STATES_AFTER = [None] * 4 + ["open", "waiting", "open", "open", "open"] + ["done"] * 3


def require_steps(call: Session, count: int) -> None:
    """All that was done up to then is there, and what was open is told to be."""
    public = [USER, {"role": "assistant", "content": "let me loo"}, ASKS]
    public.append({"role": "tool", "tool_call_id": "c", "content": "found"})
    after = (0, 2, 3, 8)
    assert call.history() == [body for body, at in zip(public, after, strict=True) if at < count]
    state = STATES_AFTER[count - 1] if count else None
    assert [each.state for each in call.tool_calls.list()] == ([state] if state else [])
    assert call.artifacts.list() == (["found"] if count > 7 else [])
    assert call.usage().totals.record_count == (1 if count > 10 else 0)
    window = call.window_entries()
    made = [entry.synthetic for entry in window.entries if entry.synthetic]
    is_dangling = count == 4  # nobody said that the call is open
    assert made == (["result"] if is_dangling else [])


@pytest.mark.parametrize("when", ["before", "at-once", "later"])
@pytest.mark.parametrize("step", range(STEP_COUNT + 1))
def test_a_turn_that_is_cancelled_anywhere_leaves_all_of_it(
    checked_store: Callable[..., Store], step: int, when: str
) -> None:
    """agno PR 6640, nanobot 2526, atlas-ui-3 755, apex 353: cancelling a turn threw it away. What
    was durable stays, and of what was on its way nothing or all."""
    store = checked_store()
    reached = asyncio.Event()
    done: list[int] = []

    async def work() -> None:
        async for ack in turn(store.session("a")):
            done.append(ack.first)
            if len(done) == step:
                if when != "at-once":
                    reached.set()
                if when == "before":
                    await asyncio.Event().wait()
                reached.set()

    async def cancelled() -> None:
        if not step:
            reached.set()
        task = asyncio.create_task(work())
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        if when == "later":
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    store.close()
    call = checked_store().session("a")
    info = call.info()
    count = 0 if info is None else info.event_count
    assert len(done) <= count <= len(done) + 1
    require_steps(call, count)
    statuses = [run.status for run in call.runs.list()]
    assert statuses == ([] if count < 2 else ["succeeded" if count == STEP_COUNT else "running"])


KILLED = """
import asyncio, os, signal, sys
from engine import Store
from tests.unit.test_tool_calls import turn

async def work():
    step = 0
    async for _ in turn(store.session("a")):
        step += 1
        if step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

store = Store.open(sys.argv[1])
asyncio.run(work())
"""


@pytest.mark.parametrize("step", range(1, STEP_COUNT + 1))
def test_a_turn_whose_process_is_killed_leaves_all_of_it(store_path: Path, step: int) -> None:
    """hermes-agent 92079, apex 353: a turn was saved at its end, and a kill lost all of it. Its run
    is told to be interrupted."""
    run_script(KILLED, store_path, str(step), code=-9)
    with Store.open(store_path) as store:
        call = store.session("a")
        require_steps(call, step)
        statuses = [run.status for run in call.runs.list()]
        ended = "succeeded" if step == STEP_COUNT else "interrupted"
        assert statuses == ([] if step < 2 else [ended])
        assert store.check().ok


def test_a_tool_that_waits_for_approval_is_no_dangling_one(store: Store) -> None:
    """langchain-aws 837, 1209: repair answered calls that waited for a person, or still ran, since
    it guessed from what was missing. The state of a call is what an event says."""
    call = opened(store)
    call.tool_calls.waiting("c", {"who": "anna"}).result(HANG_S)
    for _ in range(60):
        call.append(USER)
    call.append(USER).result(HANG_S)
    (waiting,) = call.tool_calls.list(("open", "waiting"))
    assert (waiting.state, waiting.reason) == ("waiting", {"who": "anna"})
    call.tool_calls.resume("c").result(HANG_S)
    call.tool_calls.done("c", event=5).result(HANG_S)
    (done,) = call.tool_calls.list()
    assert (done.state, done.result_event, done.reason) == ("done", 5, None)
