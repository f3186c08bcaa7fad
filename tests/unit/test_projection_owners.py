"""Projections have one owner at a time, in this process and among several."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import (
    BusyError,
    ConflictError,
    Event,
    Store,
    UsageError,
)
from tests.model.staging import HANG_S, REPOSITORY
from tests.unit.projected import Totals, once, say


def test_one_owner_at_a_time(store: Store) -> None:
    say(store, 0)
    totals = Totals()
    first, second = (store.projection("totals", totals) for _ in range(2))
    first.run_once()
    for work in (second.run_once, second.run, second.reset):
        with pytest.raises(BusyError) as caught:
            work()
        assert str(os.getpid()) in str(caught.value.owner)
    assert second.checkpoint >= 1
    assert once(store, Totals(), "another") == 1
    first.close()
    first.close()
    assert second.run_once() == 0
    second.close()
    assert totals.numbers == [0]


def test_an_owner_that_nobody_holds_counts_for_nothing(store: Store) -> None:
    say(store, 0)
    store.projection("totals", Totals()).run_once()
    gc.collect()
    assert once(store, Totals()) == 0


@pytest.mark.parametrize("way", ["erased", "given up"])
def test_an_owner_whose_row_is_gone_is_not_told_of_another_one(
    checked_store: Callable[..., Store], way: str
) -> None:
    """It said that another owner took the projection over, though there was none."""
    store = checked_store()
    tenant = store.tenant("t")
    tenant.session("a").append({"n": 0}).result(HANG_S)
    totals = Totals()
    with store.projection("totals", totals, tenant="t") as projection:
        projection.run_once()
        if way == "erased":
            store.erase_tenant("t")
        else:
            other = store.projection("totals", totals, tenant="t")
            other.take_over()
            other.close()
        tenant.session("b").append({"n": 1}).result(HANG_S)
        with pytest.raises(ConflictError, match="no owner any more") as caught:
            projection.run_once()
        assert caught.value.current == -1
        assert projection.run_once() == 1  # and it goes on from what is stored


def test_a_stale_owner_changes_nothing(store: Store) -> None:
    say(store, *range(4))
    totals = Totals()
    stale = store.projection("totals", totals)
    assert stale.run_once(2) == 2
    other = store.projection("totals", totals)
    other.take_over()
    assert other.run_once(1) == 1
    with pytest.raises(ConflictError, match="took"):
        stale.run_once()
    assert other.checkpoint == 3
    assert totals.numbers == [0, 1, 2, 2, 3]
    with pytest.raises(BusyError):
        stale.run_once()
    assert other.run_once() == 1
    stale.close()  # is no owner, and so changes nothing
    assert other.run_once() == 0
    other.close()


def test_of_two_that_begin_at_once_one_is_refused(store: Store) -> None:
    """Both saw that there was no owner; the commit decides."""
    say(store, 0)
    first, second = (store.projection("totals", Totals()) for _ in range(2))
    rows = second._kept._rows
    looked: list[bool] = []

    def late() -> Any:
        found = rows()
        looked.append(True)
        if len(looked) == 1:  # to see whether there is work
            return found
        first.run_once()
        second._kept._rows = rows  # type: ignore[method-assign]
        return found

    second._kept._rows = late  # type: ignore[method-assign]
    with pytest.raises(BusyError):
        second.run_once()
    first.close()
    assert second.run_once() == 0
    second.close()


def test_one_call_at_a_time(store: Store) -> None:
    say(store, 0)
    found: list[str] = []

    def apply(_: Event) -> None:
        with pytest.raises(UsageError, match="at work"):
            projection.run_once()
        found.append("refused")

    with store.projection("totals", apply) as projection:
        projection.run_once()
    assert found == ["refused"]


# Processes

WORKER = """
import json, os, sys
from engine import Store

path, made, dies_at = sys.argv[1], sys.argv[2], int(sys.argv[3])

def apply(event):
    with open(made, "a") as file:
        file.write(json.dumps([event.position, event.body["n"], os.getpid()]) + "\\n")
    if event.body["n"] == dies_at:
        os.kill(os.getpid(), 9)  # applied, and no checkpoint stored

with Store.open(path) as store, store.projection("totals", apply) as projection:
    if dies_at < 0:
        print("ready", flush=True)
        sys.stdin.readline()
    try:
        projection.run_once()
    except Exception as error:
        print(type(error).__name__, flush=True)
    else:
        print("done", flush=True)
    if dies_at < 0:
        sys.stdin.readline()
"""


def worker(path: Path, made: Path, dies_at: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), str(made), str(dies_at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def test_killed_between_apply_and_checkpoint(
    checked_store: Callable[..., Store], store_path: Path, tmp_path: Path
) -> None:
    """What came after the last checkpoint is applied again by whoever is next."""
    store = checked_store()
    say(store, *range(600))
    made = tmp_path / "made"
    for dies_at in (10, 300, 599):
        process = worker(store_path, made, dies_at)
        with process:
            assert process.wait(HANG_S) == -signal.SIGKILL
        assert store.projection("totals", print).checkpoint < 600
    totals = Totals()
    once(store, totals)
    lines = [json.loads(line) for line in made.read_text().splitlines()]
    positions = [line[0] for line in lines] + [position for position, _ in totals.given]
    # In order but for each beginning anew, which is at most 256 events back.
    back = [
        (before, after)
        for before, after in zip(positions[:-1], positions[1:], strict=True)
        if after != before + 1
    ]
    assert len(back) <= 3 and all(before - 256 < after <= before for before, after in back)
    assert set(positions) == set(range(1, 601))
    # Whoever keeps the position with what it makes takes each once.
    kept: list[int] = []
    for position in positions:
        if position > (kept[-1] if kept else 0):
            kept.append(position)
    assert kept == list(range(1, 601))


def test_two_processes_do_not_both_advance(
    checked_store: Callable[..., Store], store_path: Path, tmp_path: Path
) -> None:
    store = checked_store()
    say(store, *range(50))
    made = tmp_path / "made"
    processes = [worker(store_path, made, -1) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.stdout.readline() for process in processes if process.stdout is not None]
    assert sorted(said) == ["BusyError\n", "done\n"]
    here = store.projection("totals", Totals())
    with pytest.raises(BusyError) as caught:
        here.run_once()
    owner = processes[said.index("done\n")]
    assert str(owner.pid) in str(caught.value.owner)
    lines = [json.loads(line) for line in made.read_text().splitlines()]
    assert [line[1] for line in lines] == list(range(50))
    owner.kill()
    for process in processes:
        process.communicate("\n" if process is not owner else None, timeout=HANG_S)
    assert here.run_once() == 0  # an owner whose process is gone counts for nothing
    here.close()
