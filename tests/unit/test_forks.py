"""What belongs to an event on a fresh fork keeps its branch, in exports, loads and clones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import DamagedInputError, Session, Store
from engine.forks import Forks
from eventlog.errors import AppendConflictError

Open = Callable[..., Store]
HANG_S = 60.0


def forked(call: Session) -> Session:
    """Two events, then a fork of the first one, and what belongs to it on either branch."""
    call.append({"n": 0})
    call.append({"n": 1}).result(HANG_S)
    call.fork(0, name="side").result(HANG_S)
    call.record_usage(input_tokens=1).result(HANG_S)  # on the fork, which is the head's
    call.artifacts.write("a", "on the fork").result(HANG_S)
    call.record_usage(input_tokens=10, event=0).result(HANG_S)  # on the event's own branch
    call.artifacts.write("b", "on the first branch", event=0).result(HANG_S)
    call.append({"n": 2}).result(HANG_S)
    call.record_usage(input_tokens=100).result(HANG_S)
    return call


def lines_of(store: Store, name: str) -> list[str]:
    return list(store.export_lines(store.session(name).events()))


def tokens(call: Session) -> dict[int, int]:
    by_branch = call.usage().by_branch
    return {branch: each.counts["input_tokens"] for branch, each in by_branch.items()}


def told(call: Session) -> Any:
    """Of what belongs to events: what it is, its parent and its branch."""
    kinds = ["usage", "artifacts"]
    return [(each.sequence, each.parent, each.branch) for each in call.events(kinds=kinds)]


@pytest.mark.parametrize("piece", [1, 2, 16_384])
@pytest.mark.parametrize("first", [0, 1, 4, 6, 8])
def test_a_load_keeps_the_branch_of_what_belongs_to_a_fork(
    checked_store: Open, tmp_path: Path, piece: int, first: int
) -> None:
    """A line says no branch, so what came after a fork and what was recorded later of the event
    that it sits on were told apart no more: all of it was on the fork.
    """
    store = checked_store()
    call = forked(store.session("a"))
    if first:
        call.purge(first).result(HANG_S)
    assert tokens(call) == {0: 10, 1: 101}
    lines = lines_of(store, "a")
    copy = checked_store(tmp_path / "copy")
    copy.load(map(json.loads, lines), piece_events=piece)
    there = copy.session("a")
    assert told(there) == told(call) and tokens(there) == tokens(call)
    assert there.artifacts.on("side").list() == call.artifacts.on("side").list()
    assert lines_of(copy, "a") == lines
    again = copy.load(map(json.loads, lines), piece_events=piece)
    assert (again.loaded, again.skipped) == (0, len(lines))


def test_only_lines_of_a_fresh_fork_say_a_branch(store: Store) -> None:
    forked(store.session("a"))
    found = [json.loads(line) for line in lines_of(store, "a")]
    assert {each["sequence"]: each["branch"] for each in found if "branch" in each} == {4: 1, 5: 1}


@pytest.mark.parametrize("stop", range(3, 11))
def test_a_load_that_was_cut_short_goes_on_on_the_fork(
    checked_store: Open, tmp_path: Path, stop: int
) -> None:
    store = checked_store()
    call = forked(store.session("a"))
    lines = lines_of(store, "a")
    copy = checked_store(tmp_path / "copy")
    copy.load(map(json.loads, lines[:stop]))
    copy.load(map(json.loads, lines[stop - 1 :]))
    assert told(copy.session("a")) == told(call)


def test_a_line_without_a_branch_is_the_same_event(checked_store: Open, tmp_path: Path) -> None:
    """Files that others wrote do not say branches."""
    store = checked_store()
    forked(store.session("a"))
    lines = [json.loads(line) for line in lines_of(store, "a")]
    bare = [{key: line[key] for key in line if key != "branch"} for line in lines]
    assert store.load(bare).loaded == 0
    wrong = [{**line, "branch": 0} if "branch" in line else line for line in lines]
    with pytest.raises(AppendConflictError, match="another event at sequence 4"):
        store.load(wrong)
    copy = checked_store(tmp_path / "copy")
    copy.load(bare)
    assert tokens(copy.session("a")) == {0: 11, 1: 100}


@pytest.mark.parametrize(
    "line",
    [
        {"sequence": 2, "kind": "message", "body": {}},
        {"sequence": 2, "kind": "usage", "parent": 1, "body": {"append": {"": {"scope": "turn"}}}},
        {"sequence": 2, "kind": "facts", "body": {"set": {"title": "t"}}},
    ],
    ids=lambda line: line["kind"],
)
@pytest.mark.parametrize("branch", [0, 1, -1, True, "1", 2**63])
def test_a_branch_where_none_belongs_is_refused(
    store: Store, line: dict[str, Any], branch: Any
) -> None:
    call = store.session("a")
    call.append_many([{}, {}]).result(HANG_S)
    with pytest.raises(DamagedInputError, match="branch"):
        store.load([{"session": "a", **line, "branch": branch}])


def test_a_clone_keeps_the_branch_of_what_belongs_to_a_fork(store: Store) -> None:
    call = forked(store.session("a"))
    made = call.clone("whole")
    assert [branch.names for branch in made.branches()] == [(), ("side",)]
    for leaf in (1, "side"):
        assert made.artifacts.on(leaf).list() == call.artifacts.on(leaf).list()
    assert call.clone("side", leaf=8).artifacts.list() == ["a", "b"]
    last = call.append({"n": 3}, parent=1).result(HANG_S).first
    assert call.artifacts.on(last).list() == ["b"]
    assert call.clone("main", leaf=last).artifacts.list() == ["b"]


moves = st.lists(
    st.tuples(
        st.sampled_from(["say", "fork", "move", "use", "use of", "make", "make of", "seal"]),
        st.integers(0, 20),
    ),
    max_size=14,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=moves, purged=st.integers(0, 12), piece=st.integers(1, 5))
def test_any_tree_is_loaded_with_all_branches(
    tmp_path_factory: pytest.TempPathFactory,
    moves: list[tuple[str, int]],
    purged: int,
    piece: int,
) -> None:
    path = tmp_path_factory.mktemp("forks")
    with Store.open(path / "one") as store, Store.open(path / "two") as copy:
        call = store.session("a")
        public = [call.append({}).result(HANG_S).first]
        for what, at in moves:
            event = public[at % len(public)]
            if what == "say":
                public.append(call.append({}, parent=event if at % 2 else None).result(HANG_S).last)
            elif what == "fork":
                call.fork(event).result(HANG_S)
            elif what == "move":
                call.checkout(event).result(HANG_S)
            elif what.startswith("use"):
                of = event if what == "use of" else None
                call.record_usage(input_tokens=1, event=of).result(HANG_S)
            elif what.startswith("make"):
                of = event if what == "make of" else None
                call.artifacts.write("id", "x", event=of).result(HANG_S)
            else:
                store.flush(HANG_S)
        if 0 < purged < call.info().event_count:  # type: ignore[union-attr]
            call.purge(purged).result(HANG_S)
        lines = lines_of(store, "a")
        copy.load(map(json.loads, lines), piece_events=piece)
        there = copy.session("a")
        assert told(there) == told(call)
        assert there.branches() == call.branches()
        assert lines_of(copy, "a") == lines
        assert store.check().ok and copy.check().ok
        made = call.clone("b")
        if not purged:
            kinds = ["artifacts"]
            branches = [event.branch for event in made.events(kinds=kinds)]
            assert branches == [event.branch for event in call.events(kinds=kinds)]


def test_openings_are_looked_up_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    call = forked(store.session("a"))
    forks = Forks(store._log)
    events = list(call.events())
    assert [forks.branch_of(event) for event in events][4:8] == [1, 1, None, None]
    monkeypatch.setattr(store._log.views, "past", None)
    assert [forks.branch_of(event) for event in events][4:8] == [1, 1, None, None]
