"""Branches on the command line: what there are, and one path of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from turnlog.exits import ExitCode

from .conftest import say


@pytest.fixture
def forked(tmp_path: Path) -> Path:
    """0 ← 1 ← 2, a branch called "retry" that leaves 0 with 4 and 6, and a root 7 of its own."""
    path = tmp_path / "forked"
    with Store.open(path) as store:
        call = store.session("call-1")
        for number, text in enumerate(("one", "two", "three")):
            say(call, number * 1_000_000, "user", text)
        call.checkout(0).result()
        say(call, 4_000_000, "user", "again")
        call.name_branch("retry\x1b[31m").result()
        say(call, 6_000_000, "assistant", "better")
        call.append({"role": "user", "content": "alone"}, parent=-1).result()
    return path


def test_a_tree_of_branches(turnlog: Any, forked: Path) -> None:
    outcome = turnlog("branches", forked, "call-1")
    assert outcome.code == 0
    lines = [line.split() for line in outcome.out.splitlines()]
    assert [line[:2] for line in lines] == [
        ["BRANCH", "FOLLOWS"],
        ["0", "-"],
        ["1", "0"],
        ["2", "*"],
    ]
    assert outcome.out.splitlines()[2].startswith("  1 ")
    assert "retry" in outcome.out
    assert "\x1b" not in outcome.out


def test_branches_as_data(turnlog: Any, forked: Path) -> None:
    outcome = turnlog("branches", forked, "call-1", "--json")
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert [
        [each[key] for key in ("branch", "parent", "parent_branch", "leaf", "is_head")]
        for each in found
    ] == [[0, None, None, 2, False], [1, 0, 0, 6, False], [2, None, None, 7, True]]
    assert found[1]["names"] == ["retry\x1b[31m"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(("--branch", "1"), id="number"),
        pytest.param(("--branch", "retry\x1b[31m"), id="name"),
        pytest.param(("--leaf", "6"), id="leaf"),
    ],
)
def test_one_path_is_shown_and_replayed(turnlog: Any, forked: Path, path: tuple[str, str]) -> None:
    shown = turnlog("show", forked, "call-1", *path)
    assert shown.code == 0, shown.err
    assert [line.split()[0] for line in shown.out.splitlines()[1:]] == [
        "0000000000",
        "0000000004",
        "0000000006",
    ]
    assert "3 of 8 events" in shown.out.splitlines()[0]
    last = turnlog("show", forked, "call-1", *path, "--limit", "1", "--json")
    assert [json.loads(line)["sequence"] for line in last.out.splitlines()] == [6]
    replayed = turnlog("replay", forked, "call-1", *path)
    assert "3 of 8 events in 00:06.000" in replayed.out
    data = turnlog("replay", forked, "call-1", *path, "--json", "--limit", "2")
    assert [json.loads(line)["sequence"] for line in data.out.splitlines()] == [0, 4]


@pytest.mark.parametrize("verb", ["show", "replay"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--branch", "nobody"], "no branch 'nobody'"),
        (["--branch", "99"], "no branch 99"),
        (["--branch", "3"], "no branch 3"),
        (["--leaf", "99"], "no event 99"),
        (["--leaf", "3"], "none of its history"),
        (["--branch", "1", "--leaf", "2"], "--branch and --leaf do not go together"),
        (["--branch", "1", "--at", "2"], "--branch and --at do not go together"),
        (["--leaf", "6", "--at", "2"], "--leaf and --at do not go together"),
    ],
)
def test_what_is_no_path_is_told(
    turnlog: Any, forked: Path, verb: str, given: list[str], words: str
) -> None:
    outcome = turnlog(verb, forked, "call-1", *given)
    assert outcome.code == ExitCode.USAGE
    assert words in outcome.err
    assert outcome.out == ""


def test_each_listed_number_leads_to_its_leaf(turnlog: Any, forked: Path) -> None:
    """A branch's number was taken for a sequence, so `--branch 2` gave the path to event 2.

    What `branches` lists is what `--branch` takes, whatever events have that number.
    """
    listed = turnlog("branches", forked, "call-1", "--json").out.splitlines()
    for branch in map(json.loads, listed):
        shown = turnlog("show", forked, "call-1", "--branch", branch["branch"], "--json")
        assert json.loads(shown.out.splitlines()[-1])["sequence"] == branch["leaf"]


def test_a_branch_without_an_event_has_no_path(turnlog: Any, forked: Path) -> None:
    with Store.open(forked) as store:
        store.session("call-1").fork(0).result()
    outcome = turnlog("show", forked, "call-1", "--branch", "3")
    assert outcome.code == ExitCode.USAGE
    assert "branch 3 has no event yet" in outcome.err


def test_branches_of_nobody(turnlog: Any, forked: Path) -> None:
    assert turnlog("branches", forked, "nobody").code == ExitCode.NEGATIVE
