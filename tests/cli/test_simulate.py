"""Simulated calls: the same words for the same seed, each event durable, all of it read back."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from turnlog.dispatch import EPOCH_US, Line, script
from turnlog.exits import ExitCode

SHORT = ("--calls", 3, "--hours", 0.05, "--seed", 7)


def test_a_script_depends_on_seed_and_call_alone() -> None:
    assert list(script(7, 1, 0.1)) == list(script(7, 1, 0.1))
    assert list(script(7, 1, 0.1)) != list(script(7, 2, 0.1))
    assert list(script(7, 1, 0.1)) != list(script(8, 1, 0.1))


@pytest.mark.parametrize("call", range(1, 6))
def test_a_script_is_a_call(call: int) -> None:
    """Times never go back; every tool call is answered at once; turns have their marks."""
    lines = list(script(1, call, 1.0))
    times = [line.time_us for line in lines]
    assert times == sorted(times)
    assert times[0] >= EPOCH_US
    assert times[-1] < EPOCH_US + 3_700_000_000
    assert lines[0].body["type"] == "call_started"
    assert lines[-1].body["type"] == "call_ended"
    open_calls: list[str] = []
    for line in lines:
        if open_calls:
            assert line.body["tool_call_id"] == open_calls.pop()
        open_calls += [each["id"] for each in line.body.get("tool_calls", [])]
    turns = [line for line in lines if line.kind == "timing"]
    assert len(turns) == len({line.turn_id for line in turns}) > 100
    for line in turns:
        marks = dict(line.body)
        total = marks.pop("e2e_latency_ms")
        assert total == sum(marks.values()) - marks["transcription_delay_ms"]


def test_two_stores_with_one_seed_hold_the_same_words(turnlog: Any, tmp_path: Path) -> None:
    facts = []
    replays = []
    for name in ("a", "b"):
        outcome = turnlog("simulate", tmp_path / name, *SHORT, "--json")
        assert outcome.code == 0, outcome.err
        facts.append(json.loads(outcome.out))
        replays.append(turnlog("replay", tmp_path / name, "call-0001").out_bytes)
    assert facts[0]["content"] == facts[1]["content"]
    assert facts[0]["check_ok"] is True
    assert facts[0]["events"] == sum(len(list(script(7, call, 0.05))) for call in (1, 2, 3))
    assert replays[0] == replays[1]


def test_each_call_is_a_session_of_its_driver(turnlog: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    outcome = turnlog("simulate", path, *SHORT)
    assert outcome.code == 0
    assert "no findings" in outcome.out
    with Store.open(path, create=False) as store:
        infos = store.sessions().sessions
        assert sorted((info.name, info.user_id) for info in infos) == [
            (f"call-{call:04d}", f"driver-{call:04d}") for call in (1, 2, 3)
        ]
        events = list(store.session("call-0002").events())
    lines = list(script(7, 2, 0.05))
    assert [(event.kind, event.body, event.time_us, event.turn_id) for event in events] == [
        (line.kind, line.body, line.time_us, line.turn_id) for line in lines
    ]


def test_calls_that_exist_are_not_touched(turnlog: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    turnlog("simulate", path, *SHORT)
    with Store.open(path, create=False) as store:
        last = store.last_position
    outcome = turnlog("simulate", path, *SHORT)
    assert outcome.code == ExitCode.NEGATIVE
    assert "3 of 3 calls are in the store already, call-0001 the first" in outcome.err
    assert "--prefix b-call-" in outcome.err
    assert "new store" in outcome.err
    with Store.open(path, create=False) as store:
        assert store.last_position == last
    assert turnlog("simulate", path, *SHORT, "--prefix", "night-").code == 0


def test_sizes_are_those_of_stats_whatever_the_store_held(turnlog: Any, tmp_path: Path) -> None:
    """All files of the store were divided by the events of this run: a megabyte an event."""
    path = tmp_path / "store"
    turnlog("simulate", path, *SHORT)
    outcome = turnlog("simulate", path, *SHORT, "--prefix", "night-", "--json")
    facts = json.loads(outcome.out)
    stats = json.loads(turnlog("stats", path, "--json").out)
    assert facts["store_events"] == stats["events"] == 2 * facts["events"]
    for size in ("file_bytes", "used_bytes"):
        assert facts[f"{size}_per_event"] == round(facts[size] / stats["events"], 1)
    assert facts["file_bytes"] == stats["file_bytes"]
    assert set(facts) & set(stats) >= {"file_bytes_per_event", "used_bytes_per_event"}


def test_calls_beside_other_sessions_are_announced(
    turnlog: Any, calls: Path, tmp_path: Path
) -> None:
    """Simulated calls went into a store of real ones without a word."""
    outcome = turnlog("simulate", calls, *SHORT, "--prefix", "night-")
    assert outcome.code == 0
    assert outcome.err == (f"adding simulated calls to {calls}, which holds 3 sessions already\n")
    assert turnlog("simulate", tmp_path / "new", *SHORT).err == ""


def test_one_call_is_no_calls(turnlog: Any, tmp_path: Path) -> None:
    """Counts and nouns agree: it said "1 calls" and "1 tenants"."""
    outcome = turnlog("simulate", tmp_path / "store", "--calls", 1, "--hours", 0.001)
    assert "1 call at once over 0.001 h" in outcome.out
    assert "(1 tenant, 1 session, " in turnlog("check", tmp_path / "store").out


def test_a_script_is_read_lazily() -> None:
    first: list[Line] = list(islice(script(1, 1, 1_000.0), 3))
    assert len(first) == 3
