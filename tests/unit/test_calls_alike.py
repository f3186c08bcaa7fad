"""Calls that are alike take the same arguments, refuse the same, and say what was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from engine import AppendConflictError, Session, Store, UsageError
from engine.at import SessionAt

HANG_S = 60.0


@pytest.fixture
def call(store: Store) -> Session:
    """A session with two branches, one of them named, and an event with an id."""
    call = store.session("a")
    call.append({"n": 0}, id="mine")
    call.append({"n": 1})
    call.name_branch("side").result(HANG_S)
    call.append({"n": 2}, parent=0).result(HANG_S)
    return call


LEAVES: dict[str, Callable[[Session, Any], Any]] = {
    "path": lambda call, leaf: call.path(leaf),
    "path_events": lambda call, leaf: list(call.path_events(leaf)),
    "checkout": lambda call, leaf: call.checkout(leaf),
    "fork": lambda call, leaf: call.fork(leaf),
    "window": lambda call, leaf: call.window(leaf=leaf),
    "usage": lambda call, leaf: call.usage(leaf=leaf),
    "artifacts": lambda call, leaf: call.artifacts.on(leaf),
    "compaction": lambda call, leaf: call.compaction(leaf),
    "clone": lambda call, leaf: call.clone("copy", leaf=leaf),
}


@pytest.mark.parametrize("name", LEAVES)
def test_where_a_branch_is_meant_an_id_is_told_apart(call: Session, name: str) -> None:
    """A text is an event's id as ``parent`` and a branch's name as ``leaf``; whoever mixed them up
    was told that there is none of that name, and no more.
    """
    LEAVES[name](call, "side")
    event_id = call.event(1).event_id
    with pytest.raises(UsageError, match="no branch") as caught:
        LEAVES[name](call, event_id)
    assert caught.value.hint == "It is the id of event 1; give 1, its sequence."
    for text in ("mine", "0.0000000000", "none"):
        with pytest.raises(UsageError, match="no branch") as caught:
            LEAVES[name](call, text)
        assert "of an event give its sequence" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        LEAVES[name](call, call._store.session("b").append({}).result(HANG_S).event_id)
    assert "of an event give its sequence" in caught.value.hint


def test_where_an_event_is_meant_a_branch_is_told_apart(call: Session) -> None:
    call.append({"n": 3}, parent="mine").result(HANG_S)
    followed = call.append({"n": 4}, parent="side")
    named = [
        call.record_usage(input_tokens=1, event="side"),
        call.artifacts.write("a", "x", event="side"),
    ]
    for ack in (followed, *named):
        with pytest.raises(AppendConflictError, match="no event with id 'side'") as caught:
            ack.result(HANG_S)
        assert ("branches() tells" in caught.value.hint) is (ack is followed)


def test_events_of_now_and_of_then_take_the_same(call: Session) -> None:
    assert [*inspect.signature(Session.events).parameters.items()] == [
        *inspect.signature(SessionAt.events).parameters.items()
    ]
    at = call.at(2)
    assert [event.sequence for event in at.events(1, 1)] == [1]
    assert [event.sequence for event in at.events(1, 99)] == [1, 2]
    assert [event.sequence for event in at.events(0, 2, ["message"])] == [0, 1]
    assert [event.sequence for event in at.events()] == [0, 1, 2]
    for last in (-1, 1.0, "1"):
        with pytest.raises(UsageError, match="last"):
            at.events(0, last)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["runs", "tool_calls"])
@pytest.mark.parametrize(
    "wrong", ["open", 7, {"open": 1}, ["gone"], [None], [["open"]], ["open", 1]]
)
def test_lists_refuse_what_is_no_state(call: Session, kind: str, wrong: Any) -> None:
    """``runs.list`` gave nothing for a status that there is not, where ``tool_calls.list`` said so,
    which in turn could not show what it had been given.
    """
    call.runs.begin("r").result(HANG_S)
    call.tool_calls.open("t", "tool").result(HANG_S)
    for moment in (call, call.at(4)):
        listing = getattr(moment, kind).list
        with pytest.raises(UsageError, match="stat"):
            listing(wrong)
        assert listing([]) == [] and listing(()) == []
        assert len(listing()) == (1 if moment is call or kind == "runs" else 0)


WAITS: dict[str, Callable[[Session, float | None], Any]] = {
    "create": lambda call, wait: call.create(wait=wait),
    "append": lambda call, wait: call.append({}, wait=wait),
    "checkout": lambda call, wait: call.checkout(0, wait=wait),
    "fork": lambda call, wait: call.fork(0, wait=wait),
    "name_branch": lambda call, wait: call.name_branch("n", wait=wait),
    "unname_branch": lambda call, wait: call.unname_branch("side", wait=wait),
    "link": lambda call, wait: call.link(1, [0], wait=wait),
    "roll_up": lambda call, wait: call.roll_up(wait=wait),
    "purge": lambda call, wait: call.purge(1, wait=wait),
    "delete": lambda call, wait: call.delete(wait=wait),
}


@pytest.mark.parametrize("name", WAITS)
def test_every_append_may_wait_for_room(
    call: Session, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With a full queue ``fork``, ``checkout``, ``create`` and others could only be tried again."""
    given: list[float | None] = []
    real = Store._submit

    def submit(store: Store, ack: Any, wait: float | None) -> None:
        given.append(wait)
        real(store, ack, wait)

    monkeypatch.setattr(Store, "_submit", submit)
    with pytest.raises(UsageError, match="wait"):
        WAITS[name](call, -1)
    WAITS[name](call, 7.5).result(HANG_S)
    assert given == [-1, 7.5]
