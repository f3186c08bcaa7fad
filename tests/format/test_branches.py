"""Branches, read from the document alone: numbers, tips, paths and views of grown trees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from engine import Store
from tests.format import independent
from tests.format.independent import HEAD_MOVE, NONE
from tests.format.independent_rows import branch


def make(store: Store, seed: int) -> None:
    """A session of 120 steps that branches, and one that does not."""
    random = Random(seed)
    call, plain = store.tenant("acme").session("tree"), store.tenant("acme").session("plain")
    public: list[int] = []
    for number in range(120):
        near = random.choice(public[-9:]) if public else -1
        match random.choice("mmmmppppcfnvr" if public else "m"):
            case "m":
                public.append(call.append({"role": "user", "n": number}).result().last)
            case "p":
                parent = near if random.random() < 0.9 else -1
                public.append(call.append({"n": number}, parent=parent).result().last)
            case "c":
                call.checkout(near if random.random() < 0.9 else None).result()
            case "f":
                call.fork(near, name=f"b{number % 5}").result()
            case "n":
                call.name_branch("named", near).result()
            case "v":
                call.update_state({"n": number}).result()
            case "r":
                call.roll_up().result()
        plain.append({"n": number}).result()
    store.flush()


@pytest.fixture(params=range(3))
def path(request: pytest.FixtureRequest, checked_store: Callable[..., Store]) -> Path:
    """A grown store that is closed, partly sealed."""
    with checked_store(snapshot_frequency=7, max_messages=6) as store:
        make(store, request.param)
    return store.path


@pytest.mark.parametrize("sealed", [False, True])
def test_branches_are_what_the_document_says(
    path: Path, checked_store: Callable[..., Store], sealed: bool
) -> None:
    if sealed:
        Store.vacuum(path)
    known = independent.Reader(path)
    tree, plain = known.find("acme", "tree"), known.find("acme", "plain")
    assert tree is not None and plain is not None
    assert not independent.is_linear(tree.records)
    assert independent.is_linear(plain.records)
    call = checked_store(path).tenant("acme").session("tree")
    branches = call.branches()
    tips = independent.check_branches(tree.records)
    assert tips == {
        branch.number: branch.parent if branch.leaf is None else branch.leaf
        for branch in branches
        if branch.leaf is not None or branch.parent is not None
    }
    head = independent.head_of(tree.records)
    assert call.head == (None if head == NONE else head)
    for leaf in tips.values():
        wanted = independent.path_to(tree.records, leaf)
        assert [event.sequence for event in call.path_events(leaf)] == wanted
    for stop in range(1, len(tree.records) + 1, 7):
        found = independent.head_of(tree.records[:stop])
        assert call.at(stop - 1).head == (None if found == NONE else found)
    assert tree.branches <= len(branches)
    assert not plain.branches


def test_rows_of_branches_are_those_of_the_sealed_events(
    path: Path, checked_store: Callable[..., Store]
) -> None:
    Store.vacuum(path)
    known = independent.Reader(path)
    tree = known.find("acme", "tree")
    assert tree is not None
    tips: dict[int, int] = {}
    openings: dict[int, tuple[int, int, int]] = {}
    with checked_store(path)._log.views.transaction() as tables:
        rows = list(tables.rows("state"))
    for key, value in rows:
        if key[8] != 2:
            continue
        row = branch(key, value)
        assert row["session"] == tree.number
        if key[9]:
            tips[row["branch"]] = row["sequence"]
        else:
            openings[row["branch"]] = (row["sequence"], row["parent"], row["fork_branch"])
    lines = list(map(independent.line_of, tree.records[: tree.sealed - tree.first]))
    assert openings == {
        line.branch: (line.sequence, line.parent, line.offset)
        for line in lines
        if line.flags & independent.OPENS
    }
    assert tips == {line.branch: line.sequence for line in lines if line.kind < 64}
    assert tree.branches == 1 + max([line.branch for line in lines])
    assert any(line.kind == HEAD_MOVE for line in lines)
