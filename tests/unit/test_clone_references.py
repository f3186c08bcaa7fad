"""What events of a clone say about others: it is said of the copies, and reads as it did before."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from engine import Session, Store

Open = Callable[..., Store]
HANG_S = 60


@pytest.fixture
def call(store: Store) -> Session:
    """A session whose sequences are not those of its clones: usage stays with the original."""
    call = store.session("source")
    for number in range(4):
        call.append({"role": "user", "content": f"{number}"}, id=f"own {number}").result()
        call.record_usage(input_tokens=1).result()
    return call


def through_of(call: Session) -> Any:
    (compaction,) = call.events(kinds=["compaction"])
    return compaction.body["data"]


@pytest.mark.parametrize("names", [("through", "keep"), ("throughEntryId", "keepEntryIds")])
@pytest.mark.parametrize("by_id", [False, True])
def test_the_bounds_of_a_compaction(call: Session, names: tuple[str, str], by_id: bool) -> None:
    """A clone's compaction named the sequences of the original's events, so that its views hid
    other messages, or none. Ids of a caller's are no ids of the copies."""
    through, keep = names
    data = {through: "own 2", keep: ["own 0"]} if by_id else {through: 4, keep: [0]}
    call.append_event("compaction", {"summary": "S", "data": {**data, "x": 1}}).result()
    call.append({"role": "user", "content": "after"}).result()
    wanted = call.window()
    assert [each["content"][-1:] for each in wanted] == ["S", "0", "3", "r"]
    made = call.clone("copy")
    assert made.window() == wanted
    assert through_of(made) == {through: 2, keep: [0], "x": 1}
    again = made.clone("again", leaf=made.info().head)  # type: ignore[union-attr]
    assert again.window() == wanted
    call.purge(3).result()
    assert call.clone("purged").window() == call.window()
    call.purge(8).result()
    late = call.clone("late")
    assert late.window() == call.window()
    assert (late.compaction() is None) is (call.compaction() is None) is by_id


def test_a_compaction_that_changes_no_view_changes_none_in_a_clone(call: Session) -> None:
    other = call.append({"role": "user", "content": "other"}, parent=2).result().last
    call.checkout(6).result()
    # As an import may have it: bounds on another branch, and no bounds at all.
    line = {"session": "source", "sequence": 10, "kind": "compaction"}
    data = {"through": other}
    call._store.load([{**line, "body": {"summary": "S", "data": data}}])
    call.append({"role": "user", "content": "after"}).result()
    wanted = call.window()
    assert len(wanted) == 5
    assert call.clone("copy").window() == wanted
    path = call.clone("path", leaf=call.info().head)  # type: ignore[union-attr]
    assert path.window() == wanted
    assert type(through_of(path)["through"]) is str


def calls_of(call: Session) -> list[Any]:
    return [
        (
            each.id,
            each.state,
            None if each.event is None else call.event(each.event).body,
            None if each.result_event is None else call.event(each.result_event).body,
        )
        for each in call.tool_calls.list()
    ]


def test_tool_calls_and_runs(store: Store, call: Session) -> None:
    call.runs.begin("z").result()
    call.runs.begin("a").result()
    call.tool_calls.open("z", "search", event=2).result()
    call.tool_calls.open("a", "look", event=4).result()
    call.tool_calls.done("z", event=6).result()
    call.runs.end("z").result()
    made = call.clone("copy")
    assert calls_of(made) == calls_of(call)
    assert [each.id for each in made.tool_calls.list()] == ["z", "a"]
    assert [each.run_id for each in made.runs.list()] == ["z", "a"]
    for each in made.tool_calls.list():
        assert made.event(each.version).body["set"].keys() == {each.id}
    made.tool_calls.done("a").result()
    assert [each.id for each in made.tool_calls.list()] == ["z", "a"]
    # A copy of an event that is not there is not named.
    path = call.clone("path", leaf=2)
    assert path.tool_calls.list() == []
    store.flush()
    call.purge(call.info().event_count - 1).result()  # type: ignore[union-attr]
    late = call.clone("late")
    assert [(each.id, each.event, each.state) for each in late.tool_calls.list()] == [
        ("z", None, "done"),
        ("a", None, "open"),
    ]
    assert [(each.run_id, each.status) for each in late.runs.list()] == [
        ("z", "succeeded"),
        ("a", "running"),
    ]
    began = {each.run_id: each.started_us for each in call.runs.list()}
    assert {each.run_id: each.started_us for each in late.runs.list()} == began
    late.tool_calls.done("a").result()
    assert [each.id for each in late.tool_calls.list()] == ["z", "a"]


@pytest.mark.parametrize("size", [10, 20_000])
def test_artifacts(store: Store, call: Session, size: int) -> None:
    """Artifacts of a clone belonged to whatever was the head when they were copied, and those of a
    purged session lost their contents."""
    content = [Random(number).randbytes(size) for number in range(3)]
    call.artifacts.write("a", content[0]).result()
    call.artifacts.write("a", content[1], event=2).result()
    call.append({"role": "user", "content": "fork"}, parent=2).result()
    call.artifacts.write("a", content[2]).result()

    def shape(each: Session) -> list[Any]:
        read = each.artifacts
        return [
            (read.read("a", version.version), each.event(version.event).body, version.branch)
            for version in read.versions("a")
            if version.event is not None
        ]

    made = call.clone("copy")
    assert shape(made) == shape(call)
    assert made.artifacts.on(0).list() == [] and made.artifacts.read("a") == content[2]
    fork = call.info().head  # type: ignore[union-attr]
    call.append({"role": "user", "content": "end"}).result()
    path = call.clone("path", leaf=call.info().head)  # type: ignore[union-attr]
    assert [(value, body) for value, body, _ in shape(path)] == [
        (content[1], call.event(2).body),
        (content[2], call.event(fork).body),
    ]
    call.purge(call.info().event_count - 1).result()  # type: ignore[union-attr]
    late = call.clone("late")
    assert [late.artifacts.read("a", each.version) for each in late.artifacts.versions("a")] == (
        content
    )
    call.erase(HANG_S)
    assert late.artifacts.read("a") == content[2]


def test_documents(call: Session) -> None:
    """What was appended to a document lies under the sequence of its event. A clone deleted it
    under the original's, so it was back once the document was made again."""
    documents = call.documents
    documents.append("plan", "one ").result()
    documents.append("plan", "two ").result()
    documents.delete("plan").result()
    documents.append("plan", "three ").result()
    documents.append("plan", "four").result()
    assert call.clone("copy").documents.read("plan") == "three four"
    documents.write("plan", "five ").result()
    documents.append("plan", "six ").result()
    documents.append("plan", "seven").result()
    last = call.info().event_count - 1  # type: ignore[union-attr]
    wanted = "five six seven"
    assert call.clone("again").documents.read("plan") == wanted
    for first in (last - 1, last):
        call.purge(first).result()
        made = call.clone(f"purged {first}")
        assert made.documents.read("plan") == wanted
        made.documents.append("plan", "!").result()
        assert made.documents.read("plan") == f"{wanted}!"
        made.documents.delete("plan").result()
        made.documents.append("plan", "new").result()
        assert made.documents.read("plan") == "new"
    call.append({"role": "user"}).result()
    call.purge(last + 1).result()
    call.documents.delete("plan").result()
    call.documents.append("plan", "new").result()
    assert call.clone("late").documents.read("plan") == "new"


def test_what_purged_events_add_up_to_may_be_larger_than_one_event(
    call: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.copying._BODY_BYTES", 1_000)
    call.update_state({f"key {number}": "x" * 300 for number in range(10)}).result()
    call.set_status("open").result()
    call.append({"role": "user"}).result()
    call.purge(call.info().event_count - 1).result()  # type: ignore[union-attr]
    made = call.clone("copy")
    assert made.state == call.state
    assert made.facts.status == "open"
    assert len(list(made.events(kinds=["variables"]))) > 4
