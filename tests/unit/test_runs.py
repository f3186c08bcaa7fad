"""Runs: one row each from beginning to end, and what became of those whose process is gone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import AppendConflictError, InvalidNameError, Store, UsageError
from engine import runs as runs_module
from engine.runs import ENDED, INTERRUPTED
from tests.unit.belongings import HANG_S, USER

BEGIN = """
import sys
from engine import Store
with Store.open(sys.argv[1]) as store:
    store.session("a").runs.begin("theirs").result(30)
    store.session("a").append({"role": "user", "content": "hi"}).result(30)
    print("begun", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("status", ENDED)
def test_a_run_keeps_its_beginning_and_is_one_row(store: Store, status: str) -> None:
    call = store.session("a")
    begun = call.runs.begin("r", metadata={"agent": "x"}).result(HANG_S).first
    running = call.runs.get("r")
    assert running is not None
    assert (running.status, running.owner_pid, running.ended_us) == ("running", os.getpid(), None)
    call.runs.mark("r", "suspended").result(HANG_S)
    call.append(USER).result(HANG_S)
    call.runs.end("r", status, error={"why": None}).result(HANG_S)
    (ended,) = call.runs.list()
    assert (ended.status, ended.started_us) == (status, running.started_us)
    assert ended.ended_us == ended.updated_us >= ended.started_us
    assert (ended.owner_pid, ended.error, ended.metadata) == (None, {"why": None}, {"agent": "x"})
    assert call.at(begun).runs.list() == [running]
    assert [each.status for each in call.at(begun + 1).runs.list()] == ["suspended"]
    for again in (
        lambda: call.runs.end("r"),
        lambda: call.runs.mark("r", "running"),
        lambda: call.runs.begin("r").result(HANG_S),
    ):
        with pytest.raises(AppendConflictError):
            again()
    assert asyncio.run(call.runs.list_async()) == call.runs.list(statuses=(status,)) == [ended]
    assert asyncio.run(call.runs.get_async("r")) == ended
    assert call.runs.list(("running",)) == [] and call.runs.get("none") is None


def test_two_ends_at_once_are_one(store: Store) -> None:
    call = store.session("a")
    call.runs.begin("r").result(HANG_S)
    acks = [call.runs.end("r", "succeeded"), call.runs.end("r", "failed")]
    acks[0].result(HANG_S)
    with pytest.raises(AppendConflictError):
        acks[1].result(HANG_S)
    assert [each.status for each in call.runs.list()] == ["succeeded"]


def test_what_cannot_be_is_refused(store: Store) -> None:
    call = store.session("a")
    for wrong in (
        lambda: call.runs.begin("r", status="succeeded"),
        lambda: call.runs.begin("r", metadata=[]),  # type: ignore[arg-type]
        lambda: call.runs.end("r", "running"),
        lambda: call.runs.end("r"),
        lambda: call.runs.mark("r", "interrupted"),
    ):
        with pytest.raises(UsageError):
            wrong()
    with pytest.raises(InvalidNameError):
        call.runs.begin("")
    assert not call.exists


def test_runs_are_in_the_order_of_their_beginnings_whatever_the_clock_did(store: Store) -> None:
    """hermes-agent 25589 and many: the clock stepped back, and what came first was sorted last. The
    order is that of the log."""
    for number, time in enumerate((10, 5, 5, 20)):
        body = {"set": {f"r{9 - number}": {"status": "succeeded"}}}
        store.load(
            [
                {
                    "session": "a",
                    "sequence": number,
                    "kind": "runs",
                    "recorded_us": time,
                    "body": body,
                }
            ]
        )
    assert [each.run_id for each in store.session("a").runs.list()] == ["r9", "r8", "r7", "r6"]


def test_a_run_reads_as_interrupted_once_its_process_is_gone(
    store: Store, store_path: Path, repository: Path
) -> None:
    """agno PR 6640, hermes-agent 92079 and others: a turn that a crash cut off stayed `running` for
    ever, or was lost. It names its process, and reading writes nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN, str(store_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=repository,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        call = store.session("a")
        (run,) = call.runs.list()
        assert (run.status, run.owner_pid) == ("running", process.pid)
        last = store.last_position
    finally:
        process.kill()
        process.communicate()
    (gone,) = call.runs.list()
    assert (gone.status, gone.ended_us, gone.version) == (INTERRUPTED, None, run.version)
    assert call.runs.list((INTERRUPTED,)) == [gone] and call.runs.list(("running",)) == []
    assert [each.status for each in call.at(0).runs.list()] == ["running"]
    assert store.last_position == last
    call.runs.mark("theirs", "running").result(HANG_S)
    (taken,) = call.runs.list()
    assert (taken.status, taken.owner_pid) == ("running", os.getpid())
    assert taken.started_us == run.started_us


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "running"),
        ({"start": 1}, INTERRUPTED),  # the pid was given to another process
        ({"boot": "other"}, INTERRUPTED),  # this host was started again
        ({"boot": "other", "host": "elsewhere"}, "running"),  # nobody here can tell
        ({"namespace": 1}, "running"),  # of another container, whose pids we do not see
    ],
    ids=str,
)
def test_an_owner_is_judged_where_pids_agree(
    store: Store, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], expected: str
) -> None:
    real = runs_module.owning_process
    monkeypatch.setattr(runs_module, "owning_process", lambda: {**real(), **changes})
    call = store.session("a")
    call.runs.begin("r").result(HANG_S)
    assert [each.status for each in call.runs.list()] == [expected]
