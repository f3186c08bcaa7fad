"""One live branch: whatever moves the head, every view follows it, and what fails moves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Session, SessionGoneError, Store, TurnlogError
from tests.model.staging import HANG_S
from tests.unit.test_window import answers, asks

Open = Callable[..., Store]
STEPS = 90
FREQUENCIES = (2, 25)


def grow(call: Session, random: Random, number: int) -> None:
    """A step: an append, a move of the head, or something that belongs to what is the head."""
    public = [event.sequence for event in call.events(kinds="message")]
    at = random.choice(public) if public else None
    step = random.randrange(9)
    if step < 3 or at is None:
        call.append({"role": "user", "content": f"m{number}"}).result(HANG_S)
    elif step == 3:
        call.append({"role": "user", "content": f"m{number}"}, parent=at).result(HANG_S)
    elif step == 4:
        call.checkout(at).result(HANG_S)
    elif step == 5:
        call.fork(at, name=f"b{number}").result(HANG_S)
    elif step == 6:
        call.record_usage(input_tokens=1).result(HANG_S)
        call.artifacts.write(f"a{number % 5}", f"v{number}").result(HANG_S)
    elif step == 7:
        call.append(asks(f"c{number}")).result(HANG_S)
        call.append(answers(f"c{number}")).result(HANG_S)
    elif random.randrange(3) == 0:
        call.compact(lambda _: f"s{number}", keep_last=2)


class LivePath:
    """What a slow model says is live: the parents, from the head up."""

    def __init__(self, call: Session) -> None:
        self.events = list(call.events())
        by_sequence = {event.sequence: event for event in self.events}
        self.live: list[int] = []
        at = call.head
        while at is not None:
            self.live.insert(0, at)
            at = by_sequence[at].parent
        self.messages = [
            by_sequence[each].body for each in self.live if by_sequence[each].kind == "message"
        ]
        self.compactions = [each for each in self.live if by_sequence[each].kind == "compaction"]


def require_all_follow(call: Session) -> None:
    """Every view of the session is one of the path to its head."""
    model, head = LivePath(call), call.head
    assert [event.sequence for event in call.path_events()] == model.live
    pages, page = [], call.path(limit=7)
    while True:
        pages += [event.sequence for event in page.events]
        if page.cursor is None:
            break
        page = call.path(cursor=page.cursor, limit=7)
    assert pages == model.live
    assert call.history() == model.messages
    assert call.history(3) == model.messages[-3:]
    assert [branch.is_head for branch in call.branches()].count(True) == (
        1 if head is not None else 0
    )
    found = call.compaction()
    assert (None if found is None else found.sequence) == (
        model.compactions[-1] if model.compactions else None
    )
    window = call.window_entries()
    shown = [entry.sequence for entry in window.entries if entry.sequence is not None]
    assert set(shown) <= set(model.live)
    if found is None and window.entries:
        assert call.window(repair=False) == model.messages
    assert call.window() == call.window(leaf=head) if head is not None else call.window() == []
    used = [record.event for record in call.usage(leaf=head).records] if head is not None else []
    assert used == [
        record.event
        for record in call.usage().records
        if record.event is None or record.event in model.live
    ]
    live = set(model.live)
    for id in call.artifacts.list():
        versions = call.artifacts.versions(id)
        assert call.artifacts.on().versions(id) == [
            each for each in versions if each.event is None or each.event in live
        ]
    now = call.at(call.info().last_sequence)  # type: ignore[union-attr]
    assert now.head == head
    assert now.history() == call.history()
    assert now.artifacts.on().list() == call.artifacts.on().list()
    if head is not None:
        assert call.usage(leaf=now.head).totals == call.usage(leaf=head).totals


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_every_view_follows_the_head(checked_store: Open, seed: int, frequency: int) -> None:
    """adk-python 4169: rewound events were left out for the model and not where an agent was
    chosen. There is one definition of what is live, and each view asks for it."""
    store = checked_store(snapshot_frequency=frequency)
    call, random = store.session("call"), Random(seed)
    for number in range(STEPS):
        grow(call, random, number)
        if number % 9 == 8:
            if random.randrange(2):
                store.flush(HANG_S)
            require_all_follow(call)
    store.close()
    store = checked_store()
    call = store.session("call")
    require_all_follow(call)
    require_all_follow(call.clone("copy"))
    store.rebuild()
    require_all_follow(call)


def test_an_export_has_the_same_live_branch(checked_store: Open, tmp_path: Path) -> None:
    store, other = checked_store(), checked_store(tmp_path / "other")
    call, random = store.session("call"), Random(5)
    for number in range(STEPS):
        grow(call, random, number)
    other.load([json.loads(line) for line in store.export_lines(call.events())])
    there = other.session("call")
    require_all_follow(there)
    assert there.window() == call.window() and there.head == call.head


def fail(act: Callable[[], Any]) -> None:
    with pytest.raises(TurnlogError):
        given = act()
        if hasattr(given, "durable"):
            given.result(HANG_S)


def raising(_: Any) -> str:
    raise SessionGoneError("the model did")


FAILURES: dict[str, Callable[[Store, Session], Any]] = {
    "append": lambda store, call: call.append({}, expected_head=77),
    "append to no event": lambda store, call: call.append({}, parent=999),
    "append of a known id": lambda store, call: call.append({}, id="known"),
    "append_many": lambda store, call: call.append_many([{}, {}], parent="nobody"),
    "a batch": lambda store, call: store.append_batch(
        [call.draft([{}]), store.session("b").draft(expected_head=5)]
    ),
    "checkout of no event": lambda store, call: call.checkout(999),
    "checkout of a control": lambda store, call: call.checkout(3),
    "checkout of no branch": lambda store, call: call.checkout("nobody"),
    "checkout, too late": lambda store, call: call.checkout(0, expected_head=77),
    "fork of no event": lambda store, call: call.fork(999, name="x"),
    "fork, too late": lambda store, call: call.fork(0, name="x", expected_head=77),
    "name": lambda store, call: call.name_branch(""),
    "name of no event": lambda store, call: call.name_branch("x", 999),
    "compact": lambda store, call: call.compact(raising, keep_last=0),
    "clone": lambda store, call: call.clone("taken"),
    "purge": lambda store, call: call.purge(999),
    "state": lambda store, call: call.update_state({"a": 1}, expected={"a": 77}),
    "usage": lambda store, call: call.record_usage(seconds=1, event=999),
    "artifact": lambda store, call: call.artifacts.write("a", "x", event=999),
    "document": lambda store, call: call.documents.write("d", "x", expected_version=99),
    "delete of another": lambda store, call: store.session("nobody").delete(),
    "erase of another": lambda store, call: store.session("nobody").erase(HANG_S),
    "link": lambda store, call: call.link(0, [999]),
    "label": lambda store, call: call.label("x", on=999),
    "tool call": lambda store, call: call.tool_calls.done("nobody"),
    "run": lambda store, call: call.runs.end("nobody"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_moves_nothing(store: Store, name: str) -> None:
    """openai-agents-python 5081: a delete that failed had moved its caller to another branch."""
    call = store.session("call")
    call.append({"n": 0}, id="known").result(HANG_S)
    call.append({"n": 1}).result(HANG_S)
    call.append({"n": 2}, parent=0).result(HANG_S)
    call.name_branch("second").result(HANG_S)
    call.checkout(1).result(HANG_S)
    store.session("taken").append({}).result(HANG_S)
    before = list(call.events()), call.head, call.branches(), call.state, call.window()
    fail(lambda: FAILURES[name](store, call))
    assert (list(call.events()), call.head, call.branches(), call.state, call.window()) == before
    assert call.append({"n": 3}).result(HANG_S).last == len(before[0])
    assert [event.body["n"] for event in call.path_events()] == [0, 1, 3]


def test_branches_that_open_in_one_microsecond_are_two(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """openai-agents-python 4152: ids of branches were made of seconds, and two became one."""
    monkeypatch.setattr("eventlog.seams.CLOCK.wall_us", lambda: 1_700_000_000_000_000)
    call = store.session("call")
    call.append({"n": 0}).result(HANG_S)
    acks = [call.append({"n": n}, parent=0) for n in range(1, 9)]
    acks += [call.fork(0, name=f"b{n}") for n in range(8)]
    for ack in acks:
        ack.result(HANG_S)
    branches = call.branches()
    assert [branch.number for branch in branches] == list(range(16))
    assert [branch.leaf for branch in branches[:8]] == list(range(1, 9))
    assert [branch.names for branch in branches[8:]] == [(f"b{n}",) for n in range(8)]
