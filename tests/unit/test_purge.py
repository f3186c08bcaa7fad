"""Purging events of a session below a sequence."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Store, fold, removing
from eventlog.errors import (
    SessionGoneError,
    SessionNotFoundError,
    TrimmedError,
    UsageError,
)
from eventlog.failpoints import failpoints
from eventlog.limits import BODY_BYTES_MAX, DEPTH_MAX, HOT_TABLE_POSITIONS, MIB
from tests.format.values import identical


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def talk(store: Store, count: int = 40) -> list[dict[str, Any]]:
    session = store.session("a", title="t")
    messages = [said(f"m{number}") for number in range(count)]
    for number in range(0, count, 10):
        session.append_many(
            messages[number : number + 10],
            idempotency_key=f"k{number}",
            ids=[f"i{each}" for each in range(number, number + 10)],
        ).result()
        session.update_state({"at": number, f"v{number}": "x"}).result()
    return messages


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
@pytest.mark.parametrize("first", [1, 7, 11, 22, 43, 44])
def test_what_lies_below_is_gone_and_the_rest_as_before(
    checked_store: Callable[..., Store], sealed: bool, first: int
) -> None:
    store = checked_store(snapshot_frequency=4)
    messages = talk(store)
    session = store.session("a")
    if sealed:
        store.flush()
    events = list(session.events())
    state, variables = session.state, session.variables()
    info = session.info()
    assert info is not None
    ack = session.purge(first).result()
    for _ in range(2):
        assert ack.first == 44
        kept = list(session.events())
        assert kept[:-1] == events[first:]
        assert (kept[-1].kind, kept[-1].parent) == ("base", None)
        assert session.state == state
        assert session.variables() == variables
        after = session.info()
        assert after is not None
        assert (after.event_count, after.message_count) == (45, info.message_count)
        assert after.head == info.head
        assert session.history() == [
            event.body for event in events[first:] if event.kind == "message"
        ]
        assert session.history(3) == session.history()[-3:]
        for below in range(first):
            with pytest.raises(TrimmedError) as caught:
                session.event(below)
            assert caught.value.first == first
        if first > 1:
            with pytest.raises(TrimmedError):
                session.at(first - 2)
        assert session.at(first).sequence == first
        assert session.at(44).state == state
        positions = [event.position for event in store.read(voids=True)]
        assert positions == list(range(1, store.last_position + 1))
        assert [event.sequence for event in store.read()] == list(range(first, 45))
        assert store.check().ok, store.check().findings
        store.flush()
    again = session.append_many(
        messages[:10], idempotency_key="k0", ids=[f"i{each}" for each in range(10)]
    ).result()
    assert (again.already, again.first) == (True, 0)
    assert session.append(said("next")).result().first == 45


def test_purges_follow_each_other(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=4)
    talk(store)
    session = store.session("a")
    state = session.state
    for first in (5, 17, 30):
        session.purge(first).result()
        store.flush()
        assert session.state == state
        assert next(iter(session.events())).sequence == first
    with pytest.raises(TrimmedError) as caught:
        session.purge(30).result()
    assert caught.value.first == 30
    assert session.at(33).state == {"at": 20, "v0": "x", "v10": "x", "v20": "x"}


def test_ids_of_purged_events_are_free_also_after_a_rebuild(
    checked_store: Callable[..., Store],
) -> None:
    store = checked_store(snapshot_frequency=1)
    talk(store)
    session = store.session("a")
    session.purge(20).result()
    store.flush()
    assert session.append(said("new"), id="i3").result().first == 45
    store.rebuild()
    assert session.append(said("new"), id="i4").result().first == 46
    assert session.append(said("m30"), id="i30").result().already


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
@pytest.mark.parametrize("first", [1, 5, 29, 30])
def test_what_is_purged_already_is_said_so(
    checked_store: Callable[..., Store], sealed: bool, first: int
) -> None:
    """The fold below the floor was looked for without end: the base's is after it."""
    store = checked_store(snapshot_frequency=4)
    talk(store)
    session = store.session("a")
    session.purge(30).result()
    if sealed:
        store.flush()
    with pytest.raises(TrimmedError) as caught:
        session.purge(first).result()
    assert caught.value.first == 30


@pytest.mark.parametrize("pages", range(3, 6))
def test_a_state_is_read_while_its_events_are_purged(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """A fold that had begun went on with what was gone, and that was taken for damage."""
    monkeypatch.setattr("engine.state.STATE_PAGE_EVENTS", 1)
    store = checked_store(snapshot_frequency=4_096)
    talk(store)
    session = store.session("a")
    newest, wanted = session.state, session.at(40).state
    looks = 0

    def purge() -> None:
        nonlocal looks
        looks += 1
        if looks == pages + 1:  # the first are of ``at``
            session.purge(39).result()

    store._folds.clear()
    with failpoints({"read.after_view": purge}):
        found = session.at(40).state
    assert looks > pages
    assert found == wanted
    assert session.state == newest


def test_there_must_be_something_to_purge(store: Store) -> None:
    with pytest.raises(SessionNotFoundError):
        store.session("a").purge(1)
    talk(store)
    with pytest.raises(UsageError):
        store.session("a").purge(0)
    with pytest.raises(UsageError):
        store.session("a").purge(45)


def test_space_of_purged_events_is_given_back(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=4)
    session = store.session("a")
    for number in range(HOT_TABLE_POSITIONS // 100 + 2):
        session.append_many([said(f"{number} {'x' * 200}")] * 100).result()
    store.flush()
    count = session.info().event_count  # type: ignore[union-attr]
    session.purge(count - 5).result()
    store.flush()
    with store._log.views.transaction() as tables:
        assert list(tables.rows("removal")) == []
        assert len(list(tables.rows("segment", (1).to_bytes(8, "big")))) <= 2
    store.rebuild()
    assert [event.sequence for event in session.events()] == list(range(count - 5, count + 1))


def test_a_reader_that_fell_behind_is_told(store: Store) -> None:
    talk(store)
    session = store.session("a")
    follower = iter(session.subscribe(after=-1))
    assert next(follower).sequence == 0
    late = session.subscribe(after=3)
    session.purge(30).result()
    with pytest.raises(TrimmedError):
        next(iter(late))


def test_blobs_of_purged_events_are_released(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=4)
    blob = store.blobs.put(b"x" * 10_000)
    session = store.session("a")
    for number in range(10):
        session.append(said(f"{number}"), blobs=[blob]).result()
    store.flush()
    session.append(said("loose"), blobs=[blob]).result()
    session.purge(7).result()
    store.flush()
    assert store.stats()["blobs"]["references"] == 4


@pytest.mark.parametrize("opened", [False, True], ids=["no-facts", "facts"])
@pytest.mark.parametrize("first", [11, 22, 43])
def test_what_was_purged_is_exported_and_loaded_as_it_is(
    checked_store: Callable[..., Store], tmp_path: Path, opened: bool, first: int
) -> None:
    """Its lines began at a sequence that no other store had, and were refused."""
    store = checked_store(snapshot_frequency=4)
    if opened:
        store.session("a", title="t", user_id="u").create().result()
    talk(store)
    session = store.session("a")
    session.purge(first).result()
    store.flush()
    lines = list(store.export_lines(session.events()))
    other = checked_store(tmp_path / "other", snapshot_frequency=4)
    for _ in range(2):
        other.load(json.loads(line) for line in lines)
        copy = other.session("a")
        assert list(other.export_lines(copy.events())) == lines
        info, was = copy.info(), session.info()
        assert info is not None and was is not None
        assert (info.title, info.first_sequence, info.event_count, info.head) == (
            was.title,
            first,
            was.event_count,
            was.head,
        )
        assert copy.state == session.state
        assert store.load(json.loads(line) for line in lines).loaded == 0
    assert copy.append(said("on")).result().first == was.event_count
    other.flush()
    copy.purge(first + 1).result()
    assert copy.state == session.state


@pytest.mark.parametrize("removed", ["purged", "deleted", "made-anew"])
@pytest.mark.parametrize("before", [0, 11], ids=["from-its-first", "purged-before"])
@pytest.mark.parametrize("told", [0, 1, 20], ids=["read", "begun", "half-exported"])
def test_lines_of_events_that_were_removed_since_they_were_read(
    checked_store: Callable[..., Store], tmp_path: Path, before: int, told: int, removed: str
) -> None:
    """What was purged later was looked for in the row as it was by then: the first line told
    neither opening nor base, and no store took the lines.
    """
    store = checked_store(snapshot_frequency=4)
    talk(store)
    session = store.session("a")
    if before:
        session.purge(before).result()
    events = list(session.events())
    whole = list(store.export_lines(events))
    exporting = store.export_lines(events)
    lines = [next(exporting) for _ in range(told)]
    if removed == "purged":
        session.purge(40).result()
    else:
        session.delete().result()
    if removed == "made-anew":
        session.append(said("new")).result()
    if before and not told:
        error = TrimmedError if removed == "purged" else SessionGoneError
        with pytest.raises(error):
            list(exporting)
        return
    lines += exporting
    assert lines == whole
    other = checked_store(tmp_path / "other")
    other.load(json.loads(line) for line in lines)
    assert list(other.export_lines(other.session("a").events())) == lines


def test_an_export_of_all_beside_a_purge_leaves_no_gap(checked_store: Callable[..., Store]) -> None:
    """A session's beginning was told a second time, in the middle of its lines."""
    store = checked_store(snapshot_frequency=4)
    for number in range(20):
        for name in ("a", "b"):
            store.session(name).append(said(f"m{number}")).result()
    store.flush()
    exporting = store.export_lines(
        event for first in range(0, 40, 10) for event in list(store.read(after=first, limit=10))
    )
    lines = [json.loads(next(exporting)) for _ in range(10)]
    assert [line["sequence"] for line in lines if line["session"] == "a"] == [0, 1, 2, 3, 4]
    store.session("a").purge(12).result()
    with pytest.raises(TrimmedError) as caught:
        list(exporting)
    assert caught.value.first == 12


def test_an_export_of_some_kinds_needs_no_gapless_sequences(
    checked_store: Callable[..., Store],
) -> None:
    store = checked_store(snapshot_frequency=4)
    talk(store)
    session = store.session("a")
    session.purge(15).result()
    told = [json.loads(line) for line in store.export_lines(session.events(kinds=["variables"]))]
    assert [line["sequence"] for line in told] == [21, 32, 43]
    assert not [line for line in told if "base" in line]


def test_a_session_as_it_was_never_shows_events_of_the_next_one(
    checked_store: Callable[..., Store],
) -> None:
    store = checked_store(snapshot_frequency=4)
    session = store.session("a")
    session.append_many([said("old"), said("old"), said("old")]).result()
    before = session.at(1)
    events = before.events()
    assert [event.body for event in before.events()] == [said("old")] * 2
    session.purge(1).result()
    assert [event.sequence for event in before.events()] == [1]
    session.purge(3).result()
    with pytest.raises(TrimmedError):
        before.events()
    session.delete().result()
    with pytest.raises(SessionGoneError):
        before.events()
    session.append_many([said("new"), said("new")]).result()
    with pytest.raises(SessionGoneError):
        before.events()
    with pytest.raises(SessionGoneError):
        list(events)


def test_a_stretch_that_was_purged_as_a_whole_is_said_so(store: Store) -> None:
    """It read as an empty one."""
    talk(store)
    session = store.session("a")
    session.purge(20).result()
    for first, last in ((0, 5), (0, 19), (3, 7)):
        with pytest.raises(TrimmedError, match="begins at 20") as caught:
            list(session.events(first, last))
        assert caught.value.first == 20
    assert next(iter(session.events(0, 20))).sequence == 20


def nested(levels: int) -> Any:
    value: Any = "deep"
    for number in range(levels):
        value = [value] if number % 2 else {"k": value}
    return value


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
@pytest.mark.parametrize(
    "values",
    [
        {
            "deep": nested(DEPTH_MAX - 2),
            "odd": ["\ud800", struct.unpack("<d", b"\x01" * 6 + b"\xf0\x7f")[0]],
        },
        {f"v{number:02}": f"{number}" * 4_000 for number in range(40)},
        {},
    ],
    ids=["deep", "many", "none"],
)
def test_whatever_its_variables_are_a_session_can_be_purged(
    checked_store: Callable[..., Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
    sealed: bool,
) -> None:
    """The base nested values deeper than the event that had set them, and held all of them in one
    event. So a value at the edge of what an update takes, or many, made the session unpurgeable.
    """
    monkeypatch.setattr(fold, "BASE_BYTES_TARGET", 20_000)
    store = checked_store()
    session = store.session("a")
    for key, value in values.items():
        session.update_state({key: value})
        session.append(said(key))
    session.append(said("last")).result()
    if sealed:
        store.flush()
    state, variables = session.state, session.variables()
    first = session.append(said("kept")).result().first
    session.update_state({"v03": "later", "w": 1}, delete=["v05"]).result()
    later = session.state
    session.purge(first).result()
    bases = [event for event in session.events() if event.kind == "base"]
    assert len(bases) == (18 if len(values) > 30 else 1)

    def require(store: Store) -> None:
        call = store.session("a")
        assert identical(call.state, later)
        store._folds.clear()
        assert identical(call.at(first).state, state)
        assert call.at(first).variables() == variables or "odd" in values
        store._folds.clear()
        assert identical(call.at(bases[-1].sequence).state, later)
        assert store.check().ok, store.check().findings

    require(store)
    store.rebuild()
    require(store)
    for number in range(130):
        session.append(said(f"{number}"))
    store.flush()
    lines = [json.loads(line) for line in store.export_lines(store.read())]
    with Store.open(tmp_path / "copy") as copy:
        copy.load(lines)
        require(copy)
        copy.rebuild()
        require(copy)
    path = store.path
    store.close()
    Store.vacuum(path)  # seals the base
    store = checked_store()
    require(store)
    store.rebuild()
    require(store)
    again = store.session("a").append(said("again")).result().first
    store.session("a").purge(again).result()
    assert identical(store.session("a").state, later)
    assert store.check().ok


def test_a_state_beyond_what_an_event_holds_can_be_purged(store: Store) -> None:
    """Two variables of 20 MiB are two updates. Their base was one event of 40, which is refused."""
    session = store.session("a")
    for key in ("a", "b"):
        session.update_state({key: key * (20 * MIB)}).result(60)
    session.update_state({"c": "c" * (BODY_BYTES_MAX - 20)}).result(60)
    first = session.append(said("kept")).result(60).first
    ack = session.purge(first).result(120)
    assert (ack.first, ack.last) == (first + 1, first + 3)
    state = session.state
    assert sorted(state) == ["a", "b", "c"]
    assert [len(state[key]) for key in "abc"] == [20 * MIB, 20 * MIB, BODY_BYTES_MAX - 20]


@pytest.mark.parametrize("floor", [1, 3, 7])
def test_a_moment_counts_purged_messages_as_the_session_does(
    checked_store: Callable[..., Store], floor: int
) -> None:
    """The count of messages since the last roll-up left out those that were purged, where the
    session's own count has them.
    """
    with checked_store(snapshot_frequency=100) as store:
        call = store.session("a")
        call.append_many([said("x")] * 4).result()
        call.append_event("note", {}).result()
        call.append_many([said("x")] * 5).result()
        before = [call.at(n).info().loose_count for n in range(10)]
        assert before == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9]
        call.purge(floor).result()
        last = call.info()
        assert last is not None
        assert [call.at(n).info().loose_count for n in range(floor, 10)] == before[floor:]
        assert call.at(last.last_sequence).info().loose_count == last.loose_count == 9
        call.append_many([said("x")] * 91).result()  # rolls up
        told = call.at(9).info().loose_count
        assert told == before[9] - before[floor - 1]
        end = call.info()
        assert end is not None
        assert call.at(end.last_sequence).info().loose_count == end.loose_count == 0


@pytest.mark.parametrize("branching", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_purge_that_another_overtakes_says_so(
    checked_store: Callable[..., Store],
    monkeypatch: pytest.MonkeyPatch,
    branching: bool,
    sealed: bool,
) -> None:
    """Between its two looks at the session the event was gone, which read as damage."""
    store = checked_store(snapshot_frequency=4)
    talk(store)
    session = store.session("a")
    if branching:
        session.append(said("other"), parent=25).result()
    if sealed:
        store.flush()
    read = removing.read_fold

    def overtaken(*args: Any, **options: Any) -> Any:
        fold = read(*args, **options)
        monkeypatch.setattr(removing, "read_fold", read)
        session.purge(20).result()
        store.flush()
        return fold

    monkeypatch.setattr(removing, "read_fold", overtaken)
    with pytest.raises(TrimmedError):
        session.purge(10)
