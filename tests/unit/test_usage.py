"""Usage: records of their own, keyed to events, and what they add up to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import (
    AppendConflictError,
    CorruptionError,
    DamagedInputError,
    FormatVersionError,
    IdempotencyConflictError,
    InvalidMessageError,
    SessionGoneError,
    Store,
    TrimmedError,
    UsageError,
)
from engine.export import escape
from engine.spaces import Space
from engine.usage import Usage
from engine.usagebody import COUNTERS
from engine.values import Present
from engine.variables import store_value
from tests import old_store
from tests.unit.belongings import HANG_S, USER, copy, fill, told

DAY_US = 86_400_000_000


def tokens(usage: Usage) -> tuple[int, int, int]:
    """Records, tokens in, tokens out."""
    counts = usage.totals.counts
    return usage.totals.record_count, counts["input_tokens"], counts["output_tokens"]


@pytest.mark.parametrize("way", ["session", "tenant"])
def test_records_and_their_user_are_of_one_incarnation(
    store: Store, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Records and the user in the facts were read from whatever session had the name: records of
    one that was deleted meanwhile counted as used by the user of the next one."""
    acme = store.tenant("acme")
    session = acme.session("a", user_id="old")
    session.append({"role": "user"}).result(HANG_S)
    session.record_usage(input_tokens=3).result(HANG_S)
    real = Present.all

    def all_of(values: Present, space: Space) -> Any:
        monkeypatch.undo()
        found = real(values, space)
        session.delete().result(HANG_S)
        again = acme.session("a")
        again.append({"role": "user"}).result(HANG_S)
        again.set_owner(user_id="new").result(HANG_S)
        again.record_usage(input_tokens=5).result(HANG_S)
        return found

    monkeypatch.setattr(Present, "all", all_of)
    if way == "session":
        with pytest.raises(SessionGoneError):
            session.usage()
    else:
        assert {
            user: each.counts["input_tokens"] for user, each in acme.usage().by_user.items()
        } == {"new": 5}


def test_records_are_numbered_and_summed_by_scope(store: Store) -> None:
    """Agentrail turn rows beside Prism's scopes: a run_total counts its provider turns again."""
    call = store.session("a", user_id="u7")
    for number in range(3):
        call.append({**USER, "n": number})
        call.record_usage(model="m", input_tokens=number, cached_tokens=1)
        call.record_usage("provider_turn", model=f"m{number % 2}", output_tokens=10)
    call.record_usage("run_total", input_tokens=3, output_tokens=30).result(HANG_S)
    turns = call.usage()
    assert [each.index for each in turns.records] == [0, 1, 2]
    assert [each.event for each in turns.records] == [0, 3, 6]
    assert tokens(turns) == (3, 3, 0)
    assert turns.totals.counts == dict.fromkeys(COUNTERS, 0) | {
        "input_tokens": 3,
        "cached_tokens": 3,
    }
    assert tokens(call.usage("provider_turn")) == (3, 0, 30)
    by_model = call.usage("provider_turn").by_model
    assert {model: each.record_count for model, each in by_model.items()} == {"m0": 2, "m1": 1}
    assert tokens(call.usage("run_total")) == (1, 3, 30)
    assert list(turns.by_user) == ["u7"] and turns.records[0].user_id == "u7"
    assert asyncio.run(call.usage_async()) == turns
    assert tokens(store.session("nobody").usage()) == (0, 0, 0)


def test_usage_is_the_users_that_the_session_has_now(store: Store) -> None:
    """What names no user is the session's user's. That was the one given at creation alone, also
    after ``set_owner`` had given the session to another."""
    call = store.session("a", user_id="u7")
    call.append(USER)
    call.record_usage(input_tokens=1).result(HANG_S)
    call.record_usage(input_tokens=1, user_id="u9").result(HANG_S)
    before = call.info()
    call.set_owner(user_id="u8").result(HANG_S)
    assert set(call.usage().by_user) == {"u8", "u9"}
    assert tokens(store.tenant("").usage(user_id="u8")) == (1, 1, 0)
    assert tokens(store.tenant("").usage(user_id="u7")) == (0, 0, 0)
    assert before is not None
    assert set(call.at(before.event_count - 1).usage().by_user) == {"u7", "u9"}
    call.set_owner(user_id=None).result(HANG_S)
    assert set(call.usage().by_user) == {None, "u9"}


def test_concurrent_records_get_indexes_of_their_own(
    checked_store: Callable[..., Store], store_path: Path
) -> None:
    """Agentrail on Postgres: the turn index was counted first and written then, so two concurrent
    turns met on one primary key and one was lost."""
    store, other = checked_store(), checked_store()
    store.session("a").append(USER).result(HANG_S)
    start = threading.Barrier(8)

    def work(number: int) -> None:
        session = (store, other)[number % 2].session("a")
        start.wait(HANG_S)
        for _ in range(20):
            session.record_usage(input_tokens=1, extra={"by": number}).result(HANG_S)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    records = store.session("a").usage().records
    assert [each.index for each in records] == list(range(160))
    assert tokens(store.session("a").usage()) == (160, 160, 0)
    assert sorted(each.extra["by"] for each in records) == [n for n in range(8) for _ in range(20)]


def test_an_abandoned_branch_still_counts_and_each_branch_has_its_own(store: Store) -> None:
    """openai-agents-python 3755, 4822, 4843: usage of a branch was left behind, or booked to turn
    0 of another one. It was keyed to a turn's number; here it is keyed to the event."""
    call = store.session("a")
    call.append({**USER, "id": 0}, id="q").result(HANG_S)
    call.record_usage(input_tokens=1)
    call.append({"role": "assistant", "content": "no"}).result(HANG_S)
    call.record_usage(input_tokens=10)
    call.append({"role": "assistant", "content": "yes"}, parent=0).result(HANG_S)
    call.record_usage(input_tokens=100)
    call.name_branch("second")
    call.record_usage(input_tokens=1_000, event="q")  # of the root, though the head is elsewhere
    call.record_usage(input_tokens=10_000, event=2).result(HANG_S)
    assert tokens(call.usage()) == (5, 11_111, 0)
    by_branch = {
        branch: each.counts["input_tokens"] for branch, each in call.usage().by_branch.items()
    }
    assert by_branch == {0: 11_011, 1: 100}
    assert tokens(call.usage(branch=1)) == tokens(call.usage(branch="second")) == (1, 100, 0)
    assert tokens(call.usage(leaf="second")) == (3, 1_101, 0)
    assert tokens(call.usage(leaf=2)) == (4, 11_011, 0)
    call.checkout(2).result(HANG_S)
    call.record_usage(input_tokens=5).result(HANG_S)
    assert call.usage().records[-1].event == 2
    call.fork(0, name="third").result(HANG_S)
    call.record_usage(input_tokens=7).result(HANG_S)
    last = call.usage().records[-1]
    assert (last.event, last.branch) == (0, 2)
    call.append(USER).result(HANG_S)
    assert tokens(call.usage(leaf="third")) == (3, 1_008, 0)
    for bad in ({"branch": "none"}, {"branch": -1}, {"branch": 1, "leaf": 2}, {"leaf": "none"}):
        with pytest.raises(UsageError):
            call.usage(**bad)


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "loose"])
@pytest.mark.parametrize("is_branching", [True, False], ids=["branching", "linear"])
def test_paths_and_branches_that_are_not_there_are_refused(
    store: Store, is_branching: bool, is_sealed: bool
) -> None:
    """As ``path`` does; the usage of no event, or of a branch to come, was that of some or none."""
    call = store.session("a")
    call.append(USER)
    call.record_usage(input_tokens=1)  # 1, a control event
    call.append(USER, parent=0 if is_branching else None)
    call.append(USER, parent=0 if is_branching else None)
    call.artifacts.write("out", "x").result(HANG_S)
    early = call.at(2)
    if is_sealed:
        call.roll_up().result(HANG_S)
        store.flush()
    branches = 2 if is_branching else 1
    assert call.branches()[-1].number == branches - 1
    for branch in range(branches):
        call.usage(branch=branch)
    bad_branches: list[Any] = [branches, 99, -1, True, "none"]
    for branch in bad_branches:
        with pytest.raises(UsageError):
            call.usage(branch=branch)
    bad_leaves: list[Any] = [1, 4, 99, -1, "none"]
    for leaf in bad_leaves:
        for ask in (
            call.path,
            lambda leaf: call.usage(leaf=leaf),
            call.artifacts.on,
            early.artifacts.on,
        ):
            with pytest.raises(UsageError):
                ask(leaf)
    early.usage(branch=0)
    for branch in (1, 2, 99):
        with pytest.raises(UsageError):
            early.usage(branch=branch)


def test_a_path_to_a_purged_event_is_refused(store: Store) -> None:
    call = store.session("a")
    call.append(USER)
    call.artifacts.write("out", "x")
    call.append(USER)
    call.record_usage(input_tokens=1).result(HANG_S)
    call.purge(4).result(HANG_S)
    for ask in (call.path, lambda leaf: call.usage(leaf=leaf), call.artifacts.on):
        with pytest.raises(TrimmedError):
            ask(2)
    early = call.append({"n": 1}).result(HANG_S).first - 1
    for artifacts in (call.artifacts.on(), call.at(early).artifacts.on()):
        assert artifacts.list() == ["out"]


@pytest.mark.parametrize("event", [1, 99, "nobody"], ids=["a-control", "missing", "no-id"])
def test_usage_belongs_to_an_event_of_the_history(store: Store, event: Any) -> None:
    call = store.session("a")
    call.append(USER).result(HANG_S)
    call.update_state({"a": 1}).result(HANG_S)
    store.session("b").append(USER, id="other").result(HANG_S)
    for wrong in (event, "other"):
        with pytest.raises(AppendConflictError):
            call.record_usage(seconds=1, event=wrong).result(HANG_S)
    assert call.info().event_count == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrong",
    [
        {"scope": "week"},
        {},  # it was stored, and counted as a record
        {"model": "m", "user_id": "u", "currency": "EUR"},
        {"input_tokens": -1},
        {"input_tokens": 1.5},
        {"input_tokens": True},
        {"seconds": float("nan")},
        {"seconds": -0.5},
        {"cost": "1"},
        {"cost": float("inf")},
        {"cost": float("nan")},
        {"cost": 1.7e308},
        {"cost": 2**63 + 1},
        {"seconds": 10**400},
        {"model": ""},
        {"user_id": 7},
        {"event": -1},
        {"event": 0.5},
        {"extra": [1]},
    ],
    ids=lambda wrong: repr(wrong)[:60],
)
def test_senseless_usage_is_refused_at_once(store: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises((UsageError, InvalidMessageError)):
        store.session("a").record_usage(**wrong)
    assert not store.session("a").exists


def test_amounts_are_summed_exactly_and_by_currency(store: Store) -> None:
    call = store.session("a")
    for cost in (1e16, 0.1, 0.2, -0.0, 1.0):
        call.record_usage(cost=cost, currency="USD", seconds=0.1)
    call.record_usage(cost=3, currency="EUR", characters=12).result(HANG_S)
    totals = call.usage().totals
    assert totals.costs == {"EUR": 3.0, "USD": 1e16 + 2.0}
    assert totals.seconds == 0.5 and totals.counts["characters"] == 12


def test_a_key_records_once(store: Store) -> None:
    call = store.session("a")
    call.append(USER)
    first = call.record_usage(input_tokens=2, idempotency_key="k").result(HANG_S)
    assert call.record_usage(input_tokens=2, idempotency_key="k").result(HANG_S).first == (
        first.first
    )
    with pytest.raises(IdempotencyConflictError):
        call.record_usage(input_tokens=3, idempotency_key="k").result(HANG_S)
    assert tokens(call.usage()) == (1, 2, 0)


def test_usage_before_any_event_is_on_every_path(store: Store) -> None:
    call = store.session("a")
    call.record_usage(input_tokens=1).result(HANG_S)
    assert (call.usage().records[0].event, call.head) == (None, None)
    call.append(USER).result(HANG_S)
    assert tokens(call.usage(leaf=1)) == tokens(call.usage(branch=0)) == (1, 1, 0)


def test_totals_of_a_tenant_go_over_its_sessions(store: Store) -> None:
    acme = store.tenant("acme")
    for number in range(4):
        call = acme.session(f"s{number}", user_id=f"u{number % 2}")
        call.append(USER)
        call.record_usage(model="m", input_tokens=10**number)
        call.record_usage(model="n", input_tokens=5, user_id="u9").result(HANG_S)
    store.tenant("other").session("s0").record_usage(input_tokens=7).result(HANG_S)
    acme.user("u0").documents.write("USER.md", "x").result(HANG_S)  # in a hidden session
    every = acme.usage()
    assert tokens(every) == (8, 1_131, 0)
    assert set(every.by_session) == {"s0", "s1", "s2", "s3"}
    assert tokens(acme.usage(user_id="u1", model="m")) == (2, 1_010, 0)
    assert tokens(acme.usage(user_id="u9")) == (4, 20, 0)
    assert every.records == [] and every.by_branch == {}
    now_us = acme.session("s0").usage().records[0].recorded_us
    assert tokens(acme.usage(since_us=now_us - DAY_US)) == tokens(every)
    assert tokens(acme.usage(since_us=now_us + DAY_US)) == (0, 0, 0)
    assert tokens(acme.usage(until_us=now_us)) == (0, 0, 0)
    assert asyncio.run(acme.usage_async(model="n")) == acme.usage(model="n")
    acme.session("s3").delete().result(HANG_S)
    assert tokens(acme.usage()) == (6, 126, 0)


def test_days_are_those_of_the_log(store: Store) -> None:
    lines = [
        {"session": "a", "sequence": number, "kind": "usage", "recorded_us": time, "body": body}
        for number, (time, body) in enumerate(
            (time, {"append": {"": {"scope": "turn", "input_tokens": 1}}})
            for time in (DAY_US - 1, DAY_US, DAY_US + 5)
        )
    ]
    store.load(lines)
    by_day = store.session("a").usage().by_day
    assert {day: each.record_count for day, each in by_day.items()} == {
        "1970-01-01": 1,
        "1970-01-02": 2,
    }


NO_RECORDS: list[Any] = [
    5,
    {"input_tokens": 1},
    {"scope": ["turn"]},
    *[
        {"scope": "turn", name: value}
        for name, values in {
            "input_tokens": ("x", -1, 1.5, True, None, 2**53 + 1),
            "seconds": ("x", -1, True, None, 10**400, 2**63 + 1, float("inf"), float("nan")),
            "cost": ("1", 1.7e308),
            "model": (5, ["m"]),
            "user_id": (7, {}),
            "extra": ([1], 5),
        }.items()
        for value in values
    ],
]


def loaded(store: Store, record: Any) -> None:
    body = {"append": {"": record}}
    store.load([{"session": "bad", "sequence": 0, "kind": "usage", "body": escape(body)}])


def short(value: Any) -> str:
    return repr(value)[:60]


@pytest.mark.parametrize("record", NO_RECORDS, ids=short)
def test_what_can_be_no_record_is_not_loaded(store: Store, record: Any) -> None:
    with pytest.raises((DamagedInputError, UsageError)):
        loaded(store, record)
    assert not store.session("bad").exists


STORED: list[Any] = [
    each for each in NO_RECORDS if type(each) is not dict or each.get("seconds") != 10**400
] + [{"scope": "turn", "event": "x"}, {"scope": "turn", "branch": [1]}]


@pytest.mark.parametrize("record", STORED, ids=short)
def test_a_record_that_was_stored_and_is_none_is_damage_and_nothing_else(
    store: Store, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As releases did that did not look at records."""
    store.session("good").record_usage(input_tokens=1).result(HANG_S)
    with monkeypatch.context() as patch:
        patch.setattr("engine.arriving.check_record", lambda record: None)
        loaded(store, record)
    for read in (store.session("bad").usage, store.usage):
        with pytest.raises(CorruptionError, match=r"'bad'.* 0"):
            read()
    assert store.session("good").usage().totals.record_count == 1
    assert store.session("bad").state == {} and store.session("bad").history() == []
    if record in NO_RECORDS:
        assert [finding.session for finding in store.check().findings] == ["bad"]
    store.session("bad").delete().result(HANG_S)


@pytest.mark.parametrize("is_line", [False, True])
def test_a_base_holds_no_record_that_can_be_none(store: Store, is_line: bool) -> None:
    kept = store_value(f"{0:019d}", {"scope": "turn", "input_tokens": "x"}, 1, 0)
    base = escape({"last": 0, "usage": [[kept.key, kept.data, kept.fixes, 1, 0]]})
    line: dict[str, Any] = {"session": "bad", "sequence": 1, "kind": "message", "body": {}}
    line |= {"opening": {}, "base": base}
    if is_line:
        line = {"session": "bad", "sequence": 0, "kind": "base", "body": base}
    with pytest.raises(DamagedInputError, match="input_tokens"):
        store.load([line])
    assert not store.session("bad").exists


def test_the_largest_amounts_are_summed(store: Store) -> None:
    call = store.session("a")
    for _ in range(3):
        call.record_usage(cost=2**63, seconds=float(2**63), input_tokens=2**53).result(HANG_S)
    for usage in (call.usage(), store.usage()):
        assert usage.totals.costs == {"": 3.0 * 2**63}
        assert usage.totals.seconds == 3.0 * 2**63


@pytest.mark.parametrize("frequency", [1, 25])
def test_everything_equals_the_fold_at_each_event(
    checked_store: Callable[..., Store], store_path: Path, frequency: int
) -> None:
    """The same now, as of each event, through another handle, and in a copy."""
    store = checked_store(snapshot_frequency=frequency)
    call = store.session("a", user_id="u7")
    fill(call)
    count = call.info().event_count  # type: ignore[union-attr]
    moments = [told(call.at(sequence)) for sequence in range(count)]
    now = told(call)
    assert moments[-1] == now
    other = checked_store()
    again = other.session("a")
    assert told(again) == now
    store.flush()
    assert [told(again.at(sequence)) for sequence in range(count)] == moments
    copied = checked_store(store_path.with_name("copy"))
    lines = copy(store, call, copied)
    there = copied.session("a")
    assert told(there) == now
    assert list(copied.export_lines(there.events())) == lines
    assert [told(there.at(sequence)) for sequence in range(count)] == moments


@pytest.mark.parametrize("branching", [False, True], ids=["linear", "branching"])
@pytest.mark.parametrize("first", range(1, 19))
def test_a_purge_keeps_all_of_it(
    checked_store: Callable[..., Store], store_path: Path, first: int, branching: bool
) -> None:
    store = checked_store()
    call = fill(store.session("a", user_id="u7"), branching=branching)
    now = told(call)
    call.purge(first).result(HANG_S)
    assert told(call) == now
    copied = checked_store(store_path.with_name("copy"))
    lines = copy(store, call, copied)
    assert told(copied.session("a")) == now
    assert list(copied.export_lines(copied.session("a").events())) == lines


@pytest.mark.parametrize("first", [1, 9, 13, 18])
def test_a_second_purge_keeps_all_of_it_too(store: Store, first: int) -> None:
    """What artifacts hold is named by the base of the last purge alone, once the others go."""
    call = fill(store.session("a", user_id="u7"), branching=False)
    now = told(call)
    call.purge(first).result(HANG_S)
    call.append(USER).result(HANG_S)
    call.purge(20).result(HANG_S)
    store.flush()
    store.collect_blobs(HANG_S)
    assert store.stats()["blobs"]["references"] == 1
    assert told(call) == now
    store.rebuild()
    assert told(call) == now


def test_erasing_takes_all_of_it(checked_store: Callable[..., Store], store_path: Path) -> None:
    store = checked_store()
    call = fill(store.session("a"))
    call.documents.write("NOTES.md", "CANARY-DOC").result(HANG_S)
    call.artifacts.write("out", "CANARY-ART").result(HANG_S)
    call.erase(HANG_S)
    assert store.stats()["blobs"]["count"] == 0
    assert told(store.session("a"))["documents"] == []
    assert tokens(store.session("a").usage()) == (0, 0, 0)
    store.close()
    Store.vacuum(store_path)
    assert not [
        path for path in store_path.rglob("*") if path.is_file() and b"CANARY" in path.read_bytes()
    ]


def test_a_store_of_version_1_has_none(tmp_path: Path) -> None:
    old_store.make(tmp_path / "old")
    with Store.open(tmp_path / "old") as store:
        call = store.session("new")
        for refused in (
            lambda: call.record_usage(seconds=1),
            lambda: call.documents.write("a", "b"),
            lambda: call.artifacts.write("a", "b"),
            lambda: call.runs.begin("a"),
            lambda: call.tool_calls.open("a", "b"),
        ):
            with pytest.raises(FormatVersionError):
                refused()
        assert tokens(call.usage()) == (0, 0, 0)
        assert not call.exists


def test_what_was_recorded_before_an_older_event_was_loaded_counts(store: Store) -> None:
    """A sum since some time passed over sessions whose last event was recorded before it.

    A loaded event keeps its recorded time, which may be earlier than that of a record before it.
    """
    call = store.session("s")
    call.append({"n": 0}).result()
    since_us = call.event(call.record_usage(input_tokens=5).result().last).recorded_us
    line = {"session": "s", "sequence": 2, "parent": 0, "kind": "message", "body": {"n": 1}}
    assert store.load([{**line, "recorded_us": 1}]).loaded == 1
    assert store.usage(since_us=since_us).totals.counts["input_tokens"] == 5
