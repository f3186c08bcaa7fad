"""Clones: the same events in a session of their own, and nothing that belongs to the original."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Session, SessionLink, Store
from engine.spaces import Space
from eventlog.ack import Ack
from eventlog.errors import (
    AppendConflictError,
    SessionGoneError,
    SessionNotFoundError,
    StorageFullError,
    TrimmedError,
    UsageError,
)
from tests.model.staging import HANG_S

Open = Callable[..., Store]


def tree(call: Session) -> list[tuple[str, Any, int | None]]:
    """Kind, body and parent of the public events, parents as places among them."""
    public = [event for event in call.events() if event.kind in ("message", "event", "note")]
    places = {event.sequence: place for place, event in enumerate(public)}
    return [
        (event.kind, event.body, None if event.parent is None else places[event.parent])
        for event in public
    ]


@pytest.fixture
def call(store: Store) -> Session:
    call = store.session("source", user_id="u", metadata={"k": 1})
    call.append({"n": 0}, id="own id", tokens=7, run_id="r", time_us=5, metadata={"m": 1})
    call.append_event("note", {"n": 1})
    call.update_state({"v": 1, "alias.x": 2})
    call.append({"n": 2}).result()
    call.label("odd", on=1)
    call.label("all")
    call.alias("x")
    call.set_status("open")
    call.append({"n": 3}, parent=1).result()
    call.link(8, [0, 3]).result()
    return call


def before_piece(monkeypatch: pytest.MonkeyPatch, number: int, meddle: Callable[[], Any]) -> None:
    """Let something happen before a piece of a clone or load, by its number from 1, is sent."""
    real = Store._submit
    sent: list[Ack] = []

    def submit(self: Store, ack: Ack, wait: float | None) -> None:
        if ack.name[1] == "copy" and ack.removal is None:
            sent.append(ack)
            if len(sent) == number:
                meddle()
        real(self, ack, wait)

    monkeypatch.setattr(Store, "_submit", submit)


def fail() -> None:
    raise StorageFullError("no room")


def test_all_events_are_copied(store: Store, call: Session) -> None:
    before = list(call.events())
    made = call.clone("copy")
    assert made.name == "copy" and made.info().number != call.info().number  # type: ignore[union-attr]
    assert tree(made) == tree(call)
    assert made.history() == call.history() == [{"n": 0}, {"n": 3}]
    assert made.state == call.state == {"v": 1, "alias.x": 2}
    first = made.event(0)
    assert (first.tokens, first.run_id, first.time_us, first.metadata) == (7, "r", 5, {"m": 1})
    assert first.id is None, "an id of the caller's is one event's"
    facts = made.facts
    assert facts.user_id == "u" and facts.metadata == {"k": 1} and facts.status == "open"
    assert facts.cloned_from == SessionLink("source")
    assert facts.aliases == ()
    assert store.by_alias("x").name == "source"  # type: ignore[union-attr]
    assert [(label.name, label.on) for label in facts.labels] == [("all", None), ("odd", 1)]
    (link,) = made.events(kinds=["link"])
    assert made.event(link.body["event"]).body == {"n": 3}
    assert [made.event(each).body["n"] for each in link.body["answers"]] == [0, 2]
    assert list(call.events()) == before


def test_both_go_their_own_ways(store: Store, call: Session) -> None:
    made = call.clone("copy")
    made.append({"n": "copy"}).result()
    call.append({"n": "source"}).result()
    made.update_state({"v": 2}).result()
    made.set_owner(user_id="v").result()
    assert made.history()[-1] == {"n": "copy"} and call.history()[-1] == {"n": "source"}
    assert call.state["v"] == 1 and call.facts.user_id == "u"
    call.delete().result()
    assert made.history()[0] == {"n": 0}
    assert made.facts.cloned_from == SessionLink("source")


@pytest.mark.parametrize("leaf", [0, 1, 3])
def test_the_path_to_a_leaf_alone(call: Session, leaf: int) -> None:
    made = call.clone("copy", leaf=leaf)
    path = [event.body for event in call.path_events(leaf)]
    assert [body for _, body, _ in tree(made)] == path
    assert made.path().events[-1].body == path[-1]
    assert len(made.branches()) == 1
    assert made.facts.cloned_from == SessionLink("source", leaf)
    assert made.state == call.at(leaf).state
    assert made.facts.status is None


def test_by_the_name_of_a_branch(call: Session) -> None:
    call.name_branch("main").result()
    made = call.clone("copy", leaf="main")
    assert [body["n"] for _, body, _ in tree(made)] == [0, 1, 3]
    whole = call.clone("whole")
    assert [branch.names for branch in whole.branches()] == [
        branch.names for branch in call.branches()
    ]


@pytest.mark.parametrize("seed", range(8))
def test_any_tree(checked_store: Open, seed: int) -> None:
    random = Random(seed)
    store = checked_store(snapshot_frequency=3)
    call = store.session("source")
    public: list[int] = []
    for number in range(80):
        way = random.random()
        if not public or way < 0.5:
            public.append(call.append({"n": number}).result().last)
        elif way < 0.7:
            parent = random.choice([*public, -1])
            public.append(call.append({"n": number}, parent=parent).result().last)
        elif way < 0.8:
            call.checkout(random.choice([*public, None])).result()
        elif way < 0.87:
            call.fork(random.choice(public), name=f"b{number}").result()
        elif way < 0.95:
            call.update_state({random.choice("abc"): number}).result()
        else:
            call.append_event("metric", {"n": number}).result()
    made = call.clone("copy")
    assert tree(made) == tree(call)
    assert made.history() == call.history()
    assert made.state == call.state

    def shape(each: Session) -> list[Any]:
        return [
            (branch.number, branch.names, branch.is_head, branch.leaf is None)
            for branch in each.branches()
        ]

    assert shape(made) == shape(call)
    store.flush()
    again = made.clone("again")
    assert tree(again) == tree(call) and shape(again) == shape(call)


def test_contents_are_referred_to_not_copied(store: Store) -> None:
    """agno 6529: sixteen images made sessions of 165 MB, as each was kept anew each time."""
    content = Random(1).randbytes(1_000_000)
    blob = store.blobs.put(content)
    call = store.session("source")
    call.append({"image": blob.address}, blobs=[blob]).result()
    before = store.stats()["used_bytes"]
    made = call.clone("copy")
    assert store.stats()["used_bytes"] - before < 100_000
    call.erase(60)
    assert store.blobs.open(made.event(0).blobs[0]).read() == content


def test_a_purged_session(store: Store, call: Session) -> None:
    call.append({"n": 4}).result()
    call.purge(5).result()
    made = call.clone("copy")
    assert made.state == call.state
    assert made.facts.status == "open" and made.facts.user_id == "u"
    assert [event.body for event in made.events(kinds=["message"])] == [
        event.body for event in call.events(kinds=["message"])
    ]
    with pytest.raises(TrimmedError):
        call.clone("other", leaf=1)


def test_what_was_used_stays_with_the_original(store: Store) -> None:
    """What a clone did not spend must not be counted a second time."""
    call = store.session("source")
    call.append({}).result()
    call.record_usage(input_tokens=1).result()
    call._change(Space.RUNS, {"r": 1}).result()
    kinds = [event.kind for event in call.clone("copy").events()]
    assert kinds == ["message", "runs", "facts"]


@pytest.mark.parametrize("pieces", [1, 3])
def test_one_commit_or_a_few(store: Store, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    call = store.session("source")
    for number in range(11):
        call.append({"n": number}, parent=max(-1, number - 2)).result()
    monkeypatch.setattr("engine.cloning.BATCH_EVENTS_MAX", 12 if pieces == 1 else 5)
    made = call.clone("copy")
    assert tree(made) == tree(call)
    infos = {event.recorded_us for event in made.events()}
    assert len(infos) == pieces


def test_a_clone_that_fails_between_pieces_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = store.session("source")
    for number in range(11):
        call.append({"n": number}).result()
    monkeypatch.setattr("engine.cloning.BATCH_EVENTS_MAX", 5)
    before_piece(monkeypatch, 2, fail)
    with pytest.raises(StorageFullError):
        call.clone("copy")
    assert not store.session("copy").exists
    assert [info.name for info in store.sessions().sessions] == ["source"]


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("way", ["redact", "erase", "append"])
def test_a_clone_does_not_bring_back_what_was_removed_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, way: str, pieces: int
) -> None:
    """It was written after the receipt had said that nothing of it is live."""
    call = store.session("source")
    for number in range(11):
        call.append({"n": number}).result()
    if pieces == 2:
        monkeypatch.setattr("engine.cloning.BATCH_EVENTS_MAX", 6)

    def meddle() -> None:
        if way == "redact":
            assert not call.redact(0, 3).is_live
        elif way == "erase":
            assert not call.erase().is_live
        else:
            call.append({"n": 11}).result()

    before_piece(monkeypatch, pieces, meddle)  # the last one: all was read
    if way == "append":
        assert call.clone("copy").history() == [{"n": number} for number in range(11)]
        return
    with pytest.raises(AppendConflictError if way == "redact" else SessionGoneError):
        call.clone("copy")
    assert not store.session("copy").exists
    store.flush(HANG_S)
    bodies = [event.body for event in store.read() if event.kind == "message"]
    said = [body["n"] for body in bodies if body is not None]
    assert said == (list(range(4, 11)) if way == "redact" else [])


@pytest.mark.parametrize("way", ["append", "delete", "anew", "anew-as-long"])
def test_a_clone_that_fails_leaves_what_others_wrote(
    store: Store, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Whatever had the clone's name was deleted, with events that others had been acked."""
    call = store.session("source")
    call.append_many([{"n": number} for number in range(11)]).result()
    monkeypatch.setattr("engine.cloning.BATCH_EVENTS_MAX", 5)

    def meddle() -> None:
        copy = store.session("copy")
        if way != "append":
            copy.delete().result()
        if way != "delete":
            for _ in range(5 if way == "anew-as-long" else 1):
                copy.append({"mine": True}).result()
        fail()

    before_piece(monkeypatch, 2, meddle)
    with pytest.raises(StorageFullError) as caught:
        call.clone("copy")
    assert any(["'copy' was left as it is" in note for note in caught.value.__notes__])
    mine = [body for body in store.session("copy").history() if body == {"mine": True}]
    assert len(mine) == {"append": 1, "delete": 0, "anew": 1, "anew-as-long": 5}[way]


def test_an_interrupted_clone_is_removed_with_the_piece_under_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = store.session("source")
    call.append_many([{"n": number} for number in range(11)]).result()
    monkeypatch.setattr("engine.cloning.BATCH_EVENTS_MAX", 5)
    real = Ack.result
    asked: list[Ack] = []

    def result(self: Ack, timeout: float | None = None) -> Ack:
        asked.append(self)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return real(self, timeout)

    monkeypatch.setattr(Ack, "result", result)
    with pytest.raises(KeyboardInterrupt):
        call.clone("copy")
    assert not store.session("copy").exists


def test_what_cannot_be_cloned(store: Store, call: Session) -> None:
    with pytest.raises(SessionNotFoundError):
        store.session("nobody").clone("copy")
    store.session("taken").append({"mine": True}).result()
    with pytest.raises(AppendConflictError):
        call.clone("taken")
    assert store.session("taken").history() == [{"mine": True}]
    with pytest.raises(AppendConflictError):
        call.clone("source")
    for leaf in (99, 2, "nothing"):  # no event, none of the history, no branch
        with pytest.raises(UsageError):
            call.clone("copy", leaf=leaf)
    assert not store.session("copy").exists


def test_the_twin_and_an_export(checked_store: Open, tmp_path: Path) -> None:
    store = checked_store()
    call = store.tenant("t").session("source")
    call.append({"n": 0}).result()
    made = asyncio.run(call.clone_async("copy"))
    assert made.tenant == "t" and made.history() == [{"n": 0}]
    lines = list(store.export_lines(store.read()))
    other = checked_store(tmp_path / "other")
    other.load(map(json.loads, lines))
    assert list(other.export_lines(other.read())) == lines


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(
    ("messages", "asked"), [(7, ()), (3, (3,)), (9, (2, 8)), (11, ()), (4, ()), (12, (12,))]
)
def test_a_clone_shows_what_the_original_shows(
    checked_store: Open,
    monkeypatch: pytest.MonkeyPatch,
    messages: int,
    asked: tuple[int, ...],
    pieces: int,
    own: bool,
) -> None:
    """A clone rolled up where its appends ended, and not where the original did: with
    ``max_messages`` it showed more messages, or fewer.
    """
    options = {"snapshot_frequency": 5, "max_messages": 2}
    store = checked_store(**({} if own else options))
    call = store.session("source", **(options if own else {}))  # type: ignore[arg-type]
    for number in range(messages):
        call.append({"n": number}).result()
        call.set_status(f"after {number}").result()
        if number + 1 in asked:
            call.roll_up().result()
    if pieces > 1:
        monkeypatch.setattr("engine.cloning.BATCH_EVENTS_MAX", 2 * messages // pieces)
    made = call.clone("copy")
    assert made.history() == call.history()
    assert made.window() == call.window()
    assert made.info().loose_count == call.info().loose_count  # type: ignore[union-attr]
    assert [event.body for event in made.events(kinds=["message"])] == [
        {"n": number} for number in range(messages)
    ]
    for name in (call.name, made.name):  # and both go on alike
        for number in range(3):
            store.session(name).append({"more": number}).result()
    assert made.history() == call.history()


def test_a_clone_of_a_branch_shows_what_the_branch_shows(checked_store: Open) -> None:
    store = checked_store()
    call = store.session("source", snapshot_frequency=4, max_messages=2)
    for number in range(6):
        call.append({"n": number}).result()
    call.name_branch("first").result()
    call.append({"n": "x"}, parent=1).result()
    call.roll_up().result()
    for number in range(3):
        call.append({"n": f"x{number}"}).result()
    whole = call.clone("whole")
    assert whole.history() == call.history()
    assert call.clone("path", leaf=call.head).history() == call.history()
    call.checkout("first").result()
    assert call.clone("first", leaf="first").history() == call.history()


@pytest.mark.parametrize("purged", range(5, 14))
def test_a_clone_of_a_purged_session_has_the_names_of_its_branches(
    checked_store: Open, purged: int
) -> None:
    """Names that purged events had given were lost, and those that were given to purged events."""
    store = checked_store()
    call = store.session("source")
    for number in range(4):
        call.append({"n": number}).result()
    call.name_branch("main").result()  # 4
    call.append({"n": "other"}, parent=1).result()
    call.name_branch("other").result()  # 6
    for name, leaf in (("late", 2), ("gone", 0), ("moved", 1)):
        call.name_branch(name, leaf).result()  # 7 to 9
    call.append({"n": "more"}, parent=3).result()
    call.name_branch("moved", 5).result()  # 11
    call.unname_branch("gone").result()
    call.append({"n": "and more"}, parent=5).result()  # 13
    call.append({"n": "last"}, parent=10).result()
    call.purge(purged).result()
    made = call.clone("copy")
    for name in ("main", "other", "late", "moved"):
        assert made.window(leaf=name) == call.window(leaf=name)
    assert sorted(name for each in made.branches() for name in each.names) == sorted(
        name for each in call.branches() for name in each.names
    )


@pytest.mark.parametrize("purged", [0, 3], ids=["whole", "purged"])
def test_a_clone_of_a_path_has_the_holds_of_now(checked_store: Open, purged: int) -> None:
    """It had those that were said before the leaf: one that came later let the copy go."""
    store = checked_store()
    call = store.session("source")
    call.hold("old").result()
    for number in range(6):
        call.append({"n": number}).result()
    call.hold("new").result()
    if purged:
        call.purge(purged).result()
    leaf = call.head
    assert call.clone("both", leaf=leaf).facts.holds == ("old", "new")
    assert call.clone("all").facts.holds == ("old", "new")
    call.release_hold("old").result()
    assert call.clone("one", leaf=leaf).facts.holds == ("new",)
    call.release_hold("new").result()
    assert call.clone("none", leaf=leaf).facts.holds == ()
    assert call.clone("none of all").facts.holds == ()


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_branch_that_opens_where_the_original_rolled_up_shows_the_same(
    checked_store: Open, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """The copies rolled up in an event of their own, behind the one that a branch was forked from.

    So it was not on the branch's path, and the clone showed what the original had trimmed.
    """
    store = checked_store(snapshot_frequency=3, max_messages=2)
    call = store.session("source")
    for number in range(3):
        call.append({"n": number}).result()
    call.fork(2).result()
    call.append({"n": "x"}).result()
    if pieces > 1:
        monkeypatch.setattr("engine.cloning.BATCH_EVENTS_MAX", 2)
    for made in (call.clone("whole"), call.clone("path", leaf=call.head)):
        assert made.history() == call.history() == [{"n": 1}, {"n": 2}, {"n": "x"}]
        assert made.window() == call.window()
        assert made.info().loose_count == 1  # type: ignore[union-attr]
    assert len(list(store.session("whole").events())) == len(list(call.events())) + 1


def test_a_roll_up_after_an_event_that_is_not_copied_is_not_lost(checked_store: Open) -> None:
    """Fewer messages until a roll-up, and the next event is of what stays: the clone showed all."""
    store = checked_store(snapshot_frequency=10, max_messages=2)
    call = store.session("source")
    for number in range(4):
        call.append({"n": number}).result()
    store.configure(snapshot_frequency=3)
    call.record_usage(cost=1.0, currency="EUR").result()
    store.configure(snapshot_frequency=10)
    assert call.clone("copy").history() == call.history() == [{"n": 2}, {"n": 3}]


def test_a_session_without_a_bound_is_cloned_without_roll_ups(store: Store) -> None:
    call = store.session("source", snapshot_frequency=2)
    for number in range(7):
        call.append({"n": number}).result()
    call.roll_up().result()
    assert list(call.clone("copy").events(kinds=["roll_up"])) == []


@pytest.mark.parametrize("what", ["clone", "load"])
def test_a_later_piece_goes_into_the_session_of_the_first_one_only(
    checked_store: Open, monkeypatch: pytest.MonkeyPatch, what: str, tmp_path: Path
) -> None:
    """The second piece was appended to whatever session had the name by then, if it was as long."""
    store = checked_store()
    call = store.session("source")
    call.append_many([{"n": number} for number in range(11)]).result()
    lines = [json.loads(line) for line in store.export_lines(call.events())]
    monkeypatch.setattr("engine.cloning.BATCH_EVENTS_MAX", 5)

    def meddle() -> None:
        copy = store.session("copy")
        copy.delete().result()
        copy.append_many([{"mine": number} for number in range(5)]).result()

    before_piece(monkeypatch, 2, meddle)
    with pytest.raises(SessionGoneError):
        if what == "clone":
            call.clone("copy")
        else:
            store.load([{**line, "session": "copy"} for line in lines], piece_events=5)
    assert store.session("copy").history() == [{"mine": number} for number in range(5)]
