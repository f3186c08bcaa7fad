"""What windows and compactions make of tool calls: by what events say, not by what is missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from engine import ConflictError, Session, Store, UsageError
from engine.toolcalls import PENDING, STATES
from engine.toolgroups import tools_of
from tests.model.staging import HANG_S
from tests.unit.test_window import CALLS, RESULTS, put, says, user

TO: dict[str, list[Callable[[Session], Any]]] = {
    "open": [],
    "waiting": [lambda call: call.tool_calls.waiting("c", "approval")],
    "done": [lambda call: call.tool_calls.done("c")],
    "failed": [lambda call: call.tool_calls.failed("c", "no")],
    "abandoned": [lambda call: call.tool_calls.abandon("c", "nobody waits")],
}


def called(call: Session, shape: str, state: str) -> None:
    """A call in the middle of a talk, whose result is not there."""
    put(call, user("u0"), says("a0"), CALLS[shape]("c"))
    call.tool_calls.open("c", "look", event=call.head).result(HANG_S)
    for step in TO[state]:
        step(call).result(HANG_S)


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("shape", CALLS)
def test_a_window_answers_calls_that_nobody_will_answer(
    store: Store, shape: str, state: str, sealed: bool
) -> None:
    """langchain-aws 837, 1209: calls were answered that waited for a person, or still ran;
    langgraph 4289, letta 3273: others were not, and every request was refused from then on."""
    call = store.session("call")
    called(call, shape, state)
    put(call, user("and?"))
    if sealed:
        call.roll_up().result(HANG_S)
        store.flush(HANG_S)
    before = list(call.events())
    for options in ({}, {"last": 3}, {"tokens": 200}, {"exchanges": 2}, {"leaf": call.head}):
        window = call.window_entries(**options)
        made = [entry for entry in window.entries if entry.synthetic == "result"]
        assert len(made) == (0 if state in PENDING else 1), options
        for entry in made:
            found = tools_of(entry.body)
            assert found is not None and found.results == ["c"]
    assert list(call.events()) == before
    if state in PENDING:  # the result comes in the end, and is the only one
        put(call, RESULTS[shape]("c"))
        call.tool_calls.done("c", event=call.head).result(HANG_S)
        entries = call.window_entries().entries
        assert [entry.synthetic for entry in entries] == [None] * len(entries)
        assert CALLS[shape]("c") in call.window() and RESULTS[shape]("c") in call.window()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("shape", CALLS)
def test_no_compaction_takes_a_call_that_is_open(store: Store, shape: str, state: str) -> None:
    """adk-python 4740, 6179: a compaction swallowed a pending call, and its result came to a
    history without one. However often it is done, and whatever is asked for."""
    call = store.session("call")
    called(call, shape, state)
    at = call.head
    assert at is not None
    for number in range(4):
        put(call, user(f"u{number}"), says(f"a{number}"))
    if state in PENDING:
        for through in (at, at + 1, call.head):
            with pytest.raises(UsageError):
                call.compact(lambda _: "s", through=through)
    for keep_last in (9, 4, 1, 0):
        with suppress(ConflictError):  # where nothing but the call is left
            call.compact(lambda _: "s", keep_last=keep_last)
        covered = call.compaction()
        through = -1 if covered is None else covered.body["data"]["through"]
        assert (through < at) is (state in PENDING) or keep_last == 9
        shown = [entry.sequence for entry in call.window_entries().entries]
        assert (at in shown) is (through < at)
    if state in PENDING:
        put(call, RESULTS[shape]("c"))
        window = call.window()
        place = window.index(CALLS[shape]("c"))
        assert window[place + 1] == RESULTS[shape]("c")


def test_a_cancelled_call_is_marked_by_whoever_cancels(store: Store) -> None:
    """pydantic-ai 7977, 5837: a cancel in the first tool left no marker. There is an event for it,
    which the view and every process see."""
    call = store.session("call")
    called(call, "openai", "open")
    call.runs.begin("r").result(HANG_S)
    call.tool_calls.abandon("c", {"cancelled_by": "barge-in"}).result(HANG_S)
    call.runs.end("r", "cancelled").result(HANG_S)
    (found,) = call.tool_calls.list(("abandoned",))
    assert found.reason == {"cancelled_by": "barge-in"} and found.event == 2
    assert [run.status for run in call.runs.list()] == ["cancelled"]
    assert [entry.synthetic for entry in call.window_entries().entries][-1] == "result"
    with Store.open(store.path) as second:
        assert second.session("call").tool_calls.list() == [found]
