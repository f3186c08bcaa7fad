"""Tool calls: what may follow what, as of any event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine import AppendConflictError, InvalidNameError, Session, Store, UsageError
from engine.toolcalls import STATES
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
    with pytest.raises(UsageError):
        call.tool_calls.list(("running",))


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
