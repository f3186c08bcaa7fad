"""``load``: export lines into a store, once, in pieces, whatever interrupts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from engine.export import event_to_line
from engine.loading import Loader, LoadResult
from eventlog.errors import (
    AppendConflictError,
    DamagedInputError,
    DuplicateIdError,
    TurnlogError,
    UsageError,
)
from tests.model.answers import exact
from tests.model.lines import line_of
from tests.model.operations import New, Opening
from tests.model.programs import SPECIAL_BODIES
from tests.model.staging import HANG_S, run_script


def line(session: str = "s", **values: Any) -> dict[str, Any]:
    return {"session": session, "kind": "message", "body": {}, **values}


def linear(count: int, session: str = "s", first: int = 0) -> list[dict[str, Any]]:
    """Lines of one session as an export has them."""
    lines = []
    for n in range(first, first + count):
        values: dict[str, Any] = {"sequence": n, "recorded_us": 1_000 + n, "body": {"n": n}}
        if n:
            values["parent"] = n - 1
        lines.append(line(session, **values))
    return lines


def exported(store: Store) -> list[dict[str, Any]]:
    return [json.loads(event_to_line(event)) for event in store.read()]


def test_what_was_exported_is_loaded_as_it_was(
    checked_store: Callable[..., Store], tmp_path: Path
) -> None:
    source = checked_store(tmp_path / "source", snapshot_frequency=2)
    call = source.session("s", user_id="u", title="\ud800", metadata={"$": [b"\xff"]})
    call.create().result()
    for number, body in enumerate(SPECIAL_BODIES):
        call.append(body, id=f"e{number}", metadata=body, time_us=-number, turn_id="t", tokens=7)
    for kind in ("label", "tool:call", "summary"):
        call.append_event(kind, [kind, None, 1.5], run_id="r", speech_id="s", request_id="q")
    source.tenant("t").session("s").append({"tenant": "t"})
    source.flush(HANG_S)
    lines = exported(source)
    target = checked_store(tmp_path / "target")
    assert target.load(lines) == LoadResult(len(lines), 0)
    assert exported(target) == lines
    assert exact(target.session("s").history()) == exact(call.history())
    assert target.load(lines) == LoadResult(0, len(lines))
    assert target.last_position == len(lines)


def test_recorded_times_are_kept(store: Store) -> None:
    """A session's creation is the recorded time of its first event, also when that was loaded."""
    lines = linear(5)
    store.load(lines)
    call = store.session("s")
    assert [event.recorded_us for event in call.events()] == list(range(1_000, 1_005))
    info = call.info()
    assert info is not None
    assert info.updated_us == 1_004
    assert info.created_us == 1_000
    call.append({}).result()
    assert call.event(5).recorded_us > 1_004
    store.close()
    with Store.open(store.path) as again:
        found = again.session("s").info()
        assert found is not None and found.created_us == 1_000


@pytest.mark.parametrize("piece", [1, 7, 1_000, 16_384])
def test_a_load_goes_on_where_it_was_cut_short(
    checked_store: Callable[..., Store], piece: int
) -> None:
    store = checked_store(snapshot_frequency=3)
    lines = [each for pair in zip(linear(200, "a"), linear(200, "b"), strict=True) for each in pair]

    def cut_short(count: int) -> Iterator[dict[str, Any]]:
        yield from lines[:count]
        raise KeyError("the source broke off")

    loaded = 0
    for count in (3, 150, 151, 399):
        with pytest.raises(KeyError):
            store.load(cut_short(count), piece_events=piece)
        assert store.last_position >= loaded
        loaded = store.last_position
        assert loaded <= count
        for name in "ab":
            found = [body["n"] for body in store.session(name).history()]
            assert found == list(range(len(found)))
    assert store.load(lines, piece_events=piece) == LoadResult(400 - loaded, loaded)
    assert store.load(lines, piece_events=piece) == LoadResult(0, 400)
    assert [body["n"] for body in store.session("a").history()] == list(range(200))


def test_a_load_that_is_killed_goes_on(store_path: Path) -> None:
    script = """
import os, signal, sys
from engine import Store

def lines():
    for n in range(12_000):
        yield {"session": f"s{n % 7}", "kind": "message", "recorded_us": n, "body": {"n": n}}
        if n == 7_000:
            os.kill(os.getpid(), signal.SIGKILL)

Store.open(sys.argv[1]).load(lines(), piece_events=500)
"""
    run_script(script, store_path, code=-9)
    lines = [line(f"s{n % 7}", recorded_us=n, body={"n": n}) for n in range(12_000)]
    with Store.open(store_path) as store:
        there = store.last_position
        assert 6_500 <= there <= 7_000
        assert store.load(lines) == LoadResult(12_000 - there, there)
        for number in range(7):
            found = [body["n"] for body in store.session(f"s{number}").history()]
            assert found == list(range(number, 12_000, 7))
        assert store.check().findings == []


@pytest.mark.parametrize(
    "changed",
    [
        {"body": {"n": 3}},
        {"body": {"n": 1.0}},
        {"body": {"n": True}},
        {"kind": "label"},
        {"recorded_us": 5},
        {"id": "e"},
        {"metadata": {}},
        {"tokens": 3},
        {"time_us": 1},
        {"turn_id": "t"},
    ],
    ids=str,
)
def test_a_line_that_differs_from_what_is_there_is_a_conflict(
    store: Store, changed: dict[str, Any]
) -> None:
    lines = linear(3)
    store.load(lines)
    lines[1] = {**lines[1], **changed}
    with pytest.raises(AppendConflictError):
        store.load([*lines, *linear(1, "t")])
    assert store.last_position == 3
    lines[1].pop("recorded_us")
    if "recorded_us" in changed:
        assert store.load(lines) == LoadResult(0, 3)  # a line that does not say is no conflict


def test_lines_without_sequences_follow_each_other(store: Store) -> None:
    lines = [line("a", body={"n": 0}), line("b", body={"n": 1}), line("a", body={"n": 2})]
    assert store.load(lines) == LoadResult(3, 0)
    assert store.load([*lines, line("b", body={"n": 3})]) == LoadResult(1, 3)
    assert [body["n"] for body in store.session("a").history()] == [0, 2]
    assert [body["n"] for body in store.session("b").history()] == [1, 3]


def test_a_gap_is_a_conflict(store: Store) -> None:
    with pytest.raises(AppendConflictError):
        store.load(linear(2, first=1))
    store.load(linear(3))
    with pytest.raises(AppendConflictError):
        store.load(linear(1, first=4))
    with pytest.raises(AppendConflictError):
        store.load([*linear(1, first=3), *linear(1, first=5)])
    assert store.load(linear(2, first=2)) in (LoadResult(1, 1), LoadResult(0, 2))


@pytest.mark.parametrize(
    ("parents", "paths"),
    [
        ([None, 0, 0], [[0, 1], [0, 2]]),
        ([None, 0, 1, 1], [[0, 1, 2], [0, 1, 3]]),
        ([None, -1, 0], [[0, 2], [1]]),
        ([None, 0, 1, 2, 0], [[0, 1, 2, 3], [0, 4]]),
    ],
    ids=str,
)
def test_a_history_with_branches_comes_in(
    store: Store, parents: list[int | None], paths: list[list[int]]
) -> None:
    lines = []
    for n, parent in enumerate(parents):
        values: dict[str, Any] = {"sequence": n, "body": {"n": n}}
        if parent is not None:
            values["parent"] = parent
        lines.append(line(**values))
    store.load(lines)
    call = store.session("s")
    found = [[event.sequence for event in call.path_events(each.leaf)] for each in call.branches()]
    assert sorted(found) == sorted(paths)
    assert call.head == len(parents) - 1
    assert store.load(lines) == LoadResult(0, len(parents))


@pytest.mark.parametrize("parent", [3, 7])
def test_a_line_whose_parent_is_not_there_is_refused(store: Store, parent: int) -> None:
    """The writer alone knows what a session holds, so an unknown parent must fail there too."""
    lines = [*linear(1), line(session="s", body={}, parent=parent)]
    with pytest.raises(AppendConflictError):
        store.load(lines)


@pytest.mark.parametrize(
    "bad",
    [
        {"session": ""},
        {"session": 5},
        {"kind": ""},
        {"unknown": 1},
        {"sequence": -1},
        {"sequence": "0"},
        {"sequence": True},
        {"parent": 0, "sequence": 0},
        {"recorded_us": -1},
        {"time_us": 2**63},
        {"body": {"$b64": "!"}},
        {"body": {"$float": "0"}},
        {"body": {"$x": 1}},
        {"body": [float("nan")]},
        {"body": "\ud800"},
        {"body": 2**64},
        {"metadata": []},
        {"id": ""},
        {"turn_id": 5},
        {"session": "n" * 513},
        {"id": "1f.0000000001"},
        {"opening": {"unknown": 1}, "sequence": 0},
        {"opening": {"user_id": 5}, "sequence": 0},
        {"opening": {"metadata": 5}, "sequence": 0},
        {"tokens": 2**32},
        {"body": "text"},
    ],
    ids=lambda bad: str(bad)[:40],
)
def test_a_malformed_line_says_where_it_is(store: Store, bad: dict[str, Any]) -> None:
    """Whatever is wrong with a line, the error says which line it is."""
    good = [line(body={"n": n}) for n in range(3)]
    with pytest.raises(TurnlogError) as caught:
        store.load([*good, {**line("t"), **bad}], piece_events=1)
    assert isinstance(caught.value, DamagedInputError), caught.value
    assert caught.value.line == 4
    assert len(store.session("s").history()) == 3, "what came before it is in"


def test_an_id_that_is_taken_is_refused(store: Store) -> None:
    store.session("other").append({}, id="e").result()
    with pytest.raises(DuplicateIdError):
        store.load([line(id="e")])
    with pytest.raises(DuplicateIdError):
        store.load([line("a", id="x"), line("b", id="x")])
    assert not store.session("s").exists


def test_facts_given_at_creation_are_loaded(store: Store) -> None:
    opening = Opening("u7", "title", {"a": 1}).facts()
    lines = [line(sequence=0, opening=opening), line(sequence=1, parent=0)]
    store.load(lines)
    info = store.session("s").info()
    assert info is not None
    assert (info.user_id, info.title, info.metadata) == ("u7", "title", {"a": 1})
    assert store.load(lines) == LoadResult(0, 2)
    with pytest.raises(AppendConflictError):
        store.load([line(sequence=0, opening={"user_id": "other"})])


def test_the_handle_says_whose_lines_they_are(store: Store) -> None:
    """A tenant's handle wrote another tenant's lines to that one's sessions."""
    tenant = store.tenant("t")
    with pytest.raises(DamagedInputError):
        tenant.load([line(body={"n": 0}), line(body={"n": 1}, tenant="other")])
    assert not store.tenant("other").session("s").exists
    tenant.load([line(body={"n": 0}), line(sequence=1, parent=0, body={"n": 1}, tenant="t")])
    assert tenant.session("s").history() == [{"n": 0}, {"n": 1}]
    store.load([line(body={"n": 2}, tenant="other")])
    assert store.tenant("other").session("s").history() == [{"n": 2}]
    assert not store.session("s").exists


def test_a_load_beside_appends_to_the_same_session_conflicts(store: Store) -> None:
    call = store.session("s")

    def lines() -> Iterator[dict[str, Any]]:
        yield line(sequence=0)
        yield line(sequence=1, parent=0)
        call.append({"other": 1}).result(HANG_S)
        yield line(sequence=2, parent=1)

    with pytest.raises(AppendConflictError):
        store.load(lines())
    assert call.history() == [{"other": 1}]


def test_a_load_beside_other_sessions_disturbs_nobody(store: Store) -> None:
    def lines() -> Iterator[dict[str, Any]]:
        for n in range(3_000):
            yield line("load", body={"n": n})
            if not n % 100:
                store.session("live").append({"n": n})

    assert store.load(lines(), piece_events=500) == LoadResult(3_000, 0)
    store.flush(HANG_S)
    assert len(store.session("live").history()) == 30


@pytest.mark.parametrize("piece", [0, -1, 16_385])
def test_a_senseless_piece_is_refused(store: Store, piece: int) -> None:
    with pytest.raises(UsageError):
        store.load([], piece_events=piece)


def test_more_than_a_batch_holds_can_be_loaded(store: Store) -> None:
    """Lines that together are larger than one atomic append may be."""
    large = [line(body={"n": n, "content": "x" * 9_000_000}) for n in range(9)]
    assert store.load(large, piece_events=16_384) == LoadResult(9, 0)
    assert [body["n"] for body in store.session("s").history()] == list(range(9))


def test_nothing_to_load(store: Store) -> None:
    assert store.load([]) == LoadResult(0, 0)
    assert store.last_position == 0


def test_lines_of_the_model_are_lines_of_the_store(store: Store) -> None:
    """Two independent writings of the same escapes."""
    call = store.session("s")
    for body in SPECIAL_BODIES:
        call.append(body, metadata=body).result()
    for event, body in zip(call.events(), SPECIAL_BODIES, strict=True):
        ours = line_of(New(body, metadata=body), "s", event.sequence, event.parent)
        theirs = json.loads(event_to_line(event))
        theirs.pop("recorded_us")
        assert exact(theirs) == exact(ours)


class _NotWalked(dict[Any, Any]):
    """Sessions of a load; nobody may go through all of them."""

    def __iter__(self) -> Any:
        raise AssertionError("all sessions are walked")

    items = values = keys = __iter__


def test_a_piece_costs_what_it_holds(store: Store) -> None:
    """Each piece went through all sessions that the load had met so far."""
    loader = Loader(store, "", 2)
    loader._arrivals = _NotWalked()
    lines = [{"session": f"{number % 7}", "kind": "event", "body": {}} for number in range(30)]
    assert loader.load(lines) == LoadResult(30, 0)
    assert not loader._unwritten


def test_every_refusal_of_a_load_is_heard(store_path: Path) -> None:
    """Two sessions of one piece were refused, and the load raised for the first of them. Nobody
    heard of the second, so that closing the store raised for it, after the caller had dealt with
    the load's error."""
    with Store.open(store_path) as store:
        store.session("a").append({"role": "user"}, id="x").result(10)
        lines = [
            {"session": name, "kind": "message", "body": {"role": "user"}, "id": "x"}
            for name in ("b", "c", "d")
        ]
        with pytest.raises(DuplicateIdError):
            store.load(lines)
        assert [store.session(name).exists for name in "abcd"] == [True, False, False, False]


def test_what_was_purged_here_is_counted_apart(checked_store: Callable[..., Store]) -> None:
    """Lines of purged events were counted among those that the store has, and nothing was said.

    They stay purged, and a store that does not have the session takes them.
    """
    store = checked_store()
    call = store.session("c")
    for number in range(9):
        call.append({"n": number}).result()
    lines = [json.loads(line) for line in store.export_lines(call.events(last=6))]
    call.purge(5).result()
    assert store.load(lines) == LoadResult(0, 2, 5)
    assert store.load(lines[:3]) == LoadResult(0, 0, 3)
    info = call.info()
    assert info is not None and info.first_sequence == 5
    call.delete().result()
    assert store.load(lines) == LoadResult(7, 0)
