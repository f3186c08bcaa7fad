"""Purges of sessions that branch, and what other processes make of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from tests.model.actors import Workers
from tests.model.operations import Append, At, Branches, Info, New
from tests.model.performing import perform


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("branching", [False, True])
def test_a_process_meets_a_purge_and_what_was_sealed_after_it_at_once(
    checked_store: Callable[..., Store], store_path: Path, branching: bool
) -> None:
    """It kept the head and the counts of before the purge, as the events after it were sealed.

    So its next append followed another event than the head, and a right head was refused there.
    """
    store = checked_store(snapshot_frequency=2, max_messages=3)
    session = store.session("a")
    session.append_many([said("0"), said("1")]).result()
    workers = Workers()
    other = workers.start()
    try:
        assert other.perform(store_path, Info("", "a"))[2] == 1
        session.append(said("2"), parent=0 if branching else None).result()
        session.purge(2).result()
        for number in range(4, 9):
            session.append(said(str(number))).result()
        store.flush()
        expected = [perform(store, op) for op in (Info("", "a"), At("", "a"), Branches("", "a"))]
        assert expected[0][2] == 8
        for op, answer in zip(
            (Info("", "a"), At("", "a"), Branches("", "a")), expected, strict=True
        ):
            assert other.perform(store_path, op) == answer
        other.perform(store_path, Append("", "a", (New(said("9")),), expected_head=8))
        assert session.event(9).parent == 8
        assert session.head == 9
    finally:
        other.close()
        workers.close()


@pytest.mark.parametrize("first", [1, 2, 3])
def test_the_leaf_of_a_branch_that_was_sealed_before_the_session_branched(
    checked_store: Callable[..., Store], first: int
) -> None:
    """A purge below the sealed end wrote the leaf as of its floor, and check found it wrong.

    The events above the floor were sealed while the session was linear, so no row told of them.
    """
    store = checked_store(snapshot_frequency=2)
    session = store.session("a")
    session.append_many([said("0"), said("1"), said("2")]).result()
    store.flush()
    session.append(said("3"), parent=0).result()
    before = [(each.number, each.leaf, each.is_head) for each in session.branches()]
    assert before == [(0, 2, False), (1, 3, True)]
    session.purge(first).result()
    for _ in range(2):
        assert [(each.number, each.leaf, each.is_head) for each in session.branches()] == before
        session.append_many([said("4"), said("5")]).result()
        store.flush()
        before[1] = (1, session.head, True)
    assert session.append(said("6"), parent=2 if first < 3 else session.head).result()
    assert len(session.branches()) == 2


def test_a_name_that_was_given_by_an_event_that_was_purged_is_loaded(
    checked_store: Callable[..., Store], tmp_path: Path
) -> None:
    """An export of a linear session was refused when its branch was named by an event of it that
    was purged since: nothing told the loader the branch of that one.
    """
    store = checked_store()
    session = store.session("a")
    session.append_many([said(str(number)) for number in range(3)]).result()
    session.name_branch("main", 0).result()
    session.purge(2).result()
    lines = list(store.export_lines(session.events()))
    copy = checked_store(tmp_path / "copy")
    copy.load(map(json.loads, lines))
    made = copy.session("a")
    assert list(copy.export_lines(made.events())) == lines
    assert [(branch.names, branch.leaf) for branch in made.branches()] == [(("main",), 2)]


@pytest.mark.parametrize("frequency", [2, 25], ids=["sealed", "loose"])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_the_leaf_of_a_branch_that_was_purged_before_the_session_branched(
    checked_store: Callable[..., Store], frequency: int, is_reopened: bool
) -> None:
    """A session of which all messages were purged, and whose head then moved, had a first branch
    without a leaf until the move was sealed. The row that is written then has told it all along.
    """
    store = checked_store(snapshot_frequency=frequency)
    session = store.session("a")
    session.append_many([said("0"), said("1"), said("2")]).result()
    session.purge(3).result()
    before = session.branches()
    assert [(each.number, each.leaf) for each in before] == [(0, 2)]
    if is_reopened:
        store.close()
        store = checked_store()
        session = store.session("a")
    session.checkout(None).result()
    assert [(each.leaf, each.updated_us) for each in session.branches()] == [(2, 0)]
    session.append(said("3")).result()
    branches = session.branches()
    assert [(each.number, each.leaf) for each in branches] == [(0, 2), (1, 5)]
    store.flush()
    assert session.branches() == branches
