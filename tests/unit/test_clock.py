"""A wall clock that jumps, back 100 s and forward 10 years: order, times, retention, contents."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from engine import RetentionPolicy, Session, Store
from eventlog.limits import BLOB_PENDING_US
from eventlog.seams import CLOCK
from tests.model.staging import HANG_S

START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
YEAR_US = 365 * 86_400 * SECOND_US
JUMPS = {
    "back": [0, -100 * SECOND_US, 0],
    "forward": [0, 10 * YEAR_US, 0],
    "both": [0, -100 * SECOND_US, 10 * YEAR_US, -100 * SECOND_US, 10 * YEAR_US - 1, 1],
    "to the beginning": [0, 1 - START_US, 0],
}
USER = {"role": "user", "content": "and then?"}

Open = Callable[..., Store]
Hands = Callable[[int], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """Sets the wall clock."""

    def set_to(at_us: int) -> None:
        monkeypatch.setattr(CLOCK, "wall_us", lambda: at_us)

    return set_to


def speak(call: Session) -> list[Any]:
    """One of each kind of change, and none of them by the clock."""
    return [
        ack.result(HANG_S)
        for ack in (
            call.append(USER),
            call.update_state({"a": 1}),
            call.record_usage(input_tokens=1),
            call.set_status("talking"),
            call.documents.append("d", "x"),
        )
    ]


def updated(call: Session) -> int:
    info = call.info()
    assert info is not None
    return info.updated_us


@pytest.mark.parametrize("again", [False, True], ids=["one-process", "opened-again"])
@pytest.mark.parametrize("name", JUMPS)
def test_all_that_has_an_order_keeps_it(
    checked_store: Open, clock: Hands, name: str, again: bool
) -> None:
    """hermes-agent 25589, ragent 89: what was sorted by a clock came in another order."""
    store = checked_store(snapshot_frequency=2)
    told: list[int] = []
    for number, jump in enumerate(JUMPS[name]):
        clock(START_US + jump + number * SECOND_US)
        if again:
            store.close()
            store = checked_store(snapshot_frequency=2)
        whole = store.session("whole")
        speak(whole)
        speak(store.session(f"s{number}"))
        told.append(whole.event(whole.info().last_sequence).recorded_us)  # type: ignore[union-attr]
    count = len(told)
    events = list(whole.events())
    assert [event.sequence for event in events] == list(range(5 * count))
    times = [event.recorded_us for event in events]
    assert times == sorted(times) and times[4::5] == told
    assert [event.position for event in store.read()] == list(range(1, 10 * count + 1))
    listed = [info.name for info in store.sessions().sessions]
    assert listed == [f"s{count - 1}", "whole", *[f"s{n}" for n in range(count - 2, -1, -1)]]
    for sequence, (time, following) in enumerate(pairwise(times)):
        found = whole.at(time_us=time).sequence
        assert found >= sequence and times[found] == time
        assert following == time or found == sequence
    last = times[-1]
    assert {info.name for info in store.sessions(since_us=last).sessions} >= {"whole"}
    assert store.sessions(since_us=last + 1).sessions == []
    assert whole.usage().totals.record_count == count
    assert sum([each.record_count for each in whole.usage().by_day.values()]) == count
    assert [said.updated_us for said in whole.statuses()] == times[3::5]
    assert whole.documents.read("d") == "x" * count


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
@pytest.mark.parametrize("name", JUMPS)
def test_retention_by_age_follows_the_order_of_activity(
    store: Store, clock: Hands, name: str, sealed: bool
) -> None:
    """Whatever the clock says when the rule is applied, no session goes before an older one, and
    none whose last event is not older than the rule says."""
    sessions = []
    for number, jump in enumerate(JUMPS[name]):
        clock(START_US + jump + number * SECOND_US)
        sessions.append(store.session(f"s{number}"))
        speak(sessions[-1])
    if sealed:
        store.flush()
    policy = RetentionPolicy(max_age_us=SECOND_US)
    times = [updated(session) for session in sessions]
    moments = {START_US + jump for jump in JUMPS[name]} | {time + SECOND_US for time in times}
    for now_us in sorted(moments | {max(times) + SECOND_US + 1}):
        report = store.apply_retention(policy, now_us=now_us, dry_run=True)
        gone = [each.session for each in report.deleted]
        assert gone == [f"s{number}" for number in range(len(gone))]
        assert len(gone) == sum([now_us - time > SECOND_US for time in times])
    clock(START_US)
    now_us = times[0] + SECOND_US + 1
    planned = store.apply_retention(policy, now_us=now_us, dry_run=True)
    done = store.apply_retention(policy, now_us=now_us)
    assert done.deleted == planned.deleted != ()
    left = {info.name for info in store.sessions().sessions}
    assert left == {f"s{number}" for number, time in enumerate(times) if time > times[0]}
    report = store.apply_retention(policy, now_us=max(times) + SECOND_US + 1)
    assert {each.session for each in report.deleted} == left


@pytest.mark.parametrize("name", JUMPS)
def test_a_content_is_never_lost_to_a_jump(checked_store: Open, clock: Hands, name: str) -> None:
    """A content that waits to be named stays for an hour of the clock that stamped it: a clock that
    was behind and is set right takes nothing that was put a moment ago."""
    store = checked_store()
    call = store.session("s")
    stamped = 0
    for number, jump in enumerate(JUMPS[name]):
        clock(START_US + jump + number * SECOND_US)
        stamped = max(stamped, CLOCK.wall_us())
        blob = store.blobs.put(f"{number} ".encode() * 5_000)
        call.append({"n": number}, blobs=[blob]).result(HANG_S)
        unnamed = store.blobs.put(f"unnamed {number} ".encode() * 5_000)
        clock(START_US + number * SECOND_US)  # set right
        assert store.collect_blobs()["blobs"] == 0
        clock(stamped + BLOB_PENDING_US - 1)
        assert store.collect_blobs()["blobs"] == 0
        assert store.blobs.get(unnamed) is not None
        clock(stamped + BLOB_PENDING_US)
        assert store.collect_blobs()["blobs"] == 1
        assert store.blobs.read(blob).startswith(f"{number} ".encode())
    store.close()
    store = checked_store(create=False)
    assert store.stats()["blobs"]["count"] == len(JUMPS[name])
    assert len(store.session("s").history()) == len(JUMPS[name])
