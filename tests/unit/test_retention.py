"""Retention: what rules remove and what they leave, holds, dry runs, archives; erasing by owner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import ErasureReceipt, RetentionPolicy, RetentionReport, Session, Store, Tenant
from engine.spans import Spans
from engine.toolgroups import tools_of
from eventlog.errors import (
    AppendConflictError,
    ConflictError,
    FormatVersionError,
    InvalidNameError,
    LimitExceededError,
    StoreClosedError,
    UsageError,
)
from eventlog.limits import HOLDS_MAX, TIME_MAX
from tests import old_store
from tests.unit.test_salvage import damage_segment
from tests.unit.test_window import CALLS, RESULTS, answers, asks, put, says, user

Open = Callable[..., Store]
HANG_S = 60.0
YEAR_US = 365 * 86_400_000_000


@pytest.fixture
def store(checked_store: Open) -> Store:
    return checked_store(snapshot_frequency=4)


def said(tenant: Tenant, name: str, count: int = 3, **given: Any) -> Session:
    session = tenant.session(name, **given)
    put(session, *[user(f"{name} {number}") for number in range(count)])
    return session


def updated(session: Session) -> int:
    info = session.info()
    assert info is not None
    return info.updated_us


def names(tenant: Any) -> list[str]:
    return [info.name for info in tenant.sessions().sessions]


def gone(report: RetentionReport) -> list[str]:
    return [each.session for each in report.deleted]


def lines_of(store: Store) -> list[str]:
    return list(store.export_lines(store.read()))


# Age


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
def test_age_is_that_of_the_last_activity_and_not_of_the_beginning(
    store: Store, sealed: bool
) -> None:
    """A rule by age that looks at creation deletes sessions that are in use."""
    early = said(store, "begun first")
    said(store, "quiet")
    put(early, user("still here"))
    if sealed:
        store.flush()
    policy = RetentionPolicy(max_age_us=0)
    report = store.apply_retention(policy, now_us=updated(early))
    assert gone(report) == ["quiet"]
    assert names(store) == ["begun first"]
    (decision,) = report.deleted
    assert (decision.action, decision.rule, decision.event_count) == ("delete", "max_age_us", 3)
    assert (report.session_count, report.skipped_held, report.is_dry_run) == (2, 0, False)
    assert store.apply_retention(policy, now_us=updated(early)).deleted == ()


def test_age_at_the_edge(store: Store) -> None:
    session = said(store, "a")
    at = updated(session)
    policy = RetentionPolicy(max_age_us=1_000)
    assert gone(store.apply_retention(policy, now_us=at + 1_000)) == []
    assert gone(store.apply_retention(policy, now_us=at - 5)) == []
    assert gone(store.apply_retention(policy, now_us=at + 1_001)) == ["a"]


def test_a_purge_is_no_activity(store: Store) -> None:
    old = said(store, "old", 8)
    active = updated(old)
    fresh = said(store, "fresh")
    old.purge(5).result()
    assert updated(old) > updated(fresh)
    policy = RetentionPolicy(max_age_us=0)
    report = store.apply_retention(policy, now_us=updated(fresh))
    assert gone(report) == ["old"] and report.deleted[0].active_us == active


def test_kinds_say_what_is_activity(store: Store) -> None:
    watched = said(store, "watched")
    talked = said(store, "talked")
    watched.append_event("metric", {"n": 1}).result()
    only = store.session("only metrics")
    only.append_event("metric", {"n": 1}).result()
    policy = RetentionPolicy(max_age_us=0, kinds=["message"])
    report = store.apply_retention(policy, now_us=updated(talked), dry_run=True)
    assert gone(report) == ["watched"]
    report = store.apply_retention(policy, now_us=updated(only))
    assert gone(report) == ["watched", "talked"]  # without a message its newest event counts
    policy = RetentionPolicy(max_age_us=0, kinds="frame")
    assert gone(store.apply_retention(policy, now_us=updated(only) + 1)) == ["only metrics"]


# Entries


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
def test_the_newest_events_stay(store: Store, sealed: bool) -> None:
    long, short = said(store, "long", 20), said(store, "short", 5)
    long.update_state({"a": 1}).result()
    if sealed:
        store.flush()
    policy = RetentionPolicy(max_entries=5)
    report = store.apply_retention(policy)
    (purge,) = report.purged
    assert (purge.session, purge.action, purge.first) == ("long", "purge", 16)
    assert (purge.rule, purge.event_count, report.deleted) == ("max_entries", 16, ())
    assert [event.sequence for event in long.events()] == [16, 17, 18, 19, 20, 21]
    assert long.state == {"a": 1} and len(short.history()) == 5
    assert store.apply_retention(policy).purged == ()  # the base that it left counts for nothing
    put(long, user("more"))
    assert [each.first for each in store.apply_retention(policy).purged] == [17]


def test_entries_of_some_kinds(store: Store) -> None:
    call = store.session("a")
    for number in range(6):
        put(call, user(f"m{number}"))
        call.append_event("frame", {"n": number}).result()
    report = store.apply_retention(RetentionPolicy(max_entries=6, kinds=["frame"]))
    assert report.purged == ()
    report = store.apply_retention(RetentionPolicy(max_entries=2, kinds=["message"]))
    assert [each.first for each in report.purged] == [8]
    assert call.history() == [user("m4"), user("m5")]


@pytest.mark.parametrize("shape", CALLS)
def test_no_tool_group_is_cut(store: Store, shape: str) -> None:
    call = store.session("a")
    ask, answer = CALLS[shape], RESULTS[shape]
    put(call, user("one"), ask("c1"), says("wait"), answer("c1"))
    put(call, says("done"), user("two"), says("yes"))
    for most, first in ((3, 4), (4, 1), (5, 1), (6, 1)):
        report = store.apply_retention(RetentionPolicy(max_entries=most), dry_run=True)
        assert [each.first for each in report.purged] == [first]


def test_no_open_call_is_cut(store: Store) -> None:
    call = store.session("a")
    put(call, user("one"), asks("c1"), user("and?"), user("and?"), user("and?"))
    policy = RetentionPolicy(max_entries=2)
    assert [each.first for each in store.apply_retention(policy, dry_run=True).purged] == [1]
    put(call, says("never mind"))  # the model went on without
    assert [each.first for each in store.apply_retention(policy, dry_run=True).purged] == [4]


def test_no_call_that_is_told_to_be_open_is_cut(store: Store) -> None:
    call = store.session("a")
    put(call, user("one"), asks("c1"))
    call.tool_calls.open("c1", "search", event=1).result()
    put(call, *[message for n in range(4) for message in (user(f"{n}"), says("soon"))])
    policy = RetentionPolicy(max_entries=3)
    assert [each.first for each in store.apply_retention(policy, dry_run=True).purged] == [1]
    call.tool_calls.done("c1").result()
    (purge,) = store.apply_retention(policy, dry_run=True).purged
    assert purge.first == 9


def test_an_id_that_is_used_again_holds_nothing_back(store: Store) -> None:
    call = store.session("a")
    for number in range(5):
        put(call, user(f"{number}"), asks("call_0"), answers("call_0"), says("ok"))
    report = store.apply_retention(RetentionPolicy(max_entries=6))
    assert [each.first for each in report.purged] == [13]


def test_a_result_on_another_branch_keeps_its_call(store: Store) -> None:
    call = store.session("a")
    put(call, user("one"), asks("c1"), answers("c1"), says("first"))
    call.append(answers("c1"), parent=1).result()
    put(call, says("second"), user("two"), says("yes"))
    (purge,) = store.apply_retention(RetentionPolicy(max_entries=4), dry_run=True).purged
    assert purge.first == 1
    (purge,) = store.apply_retention(RetentionPolicy(max_entries=3), dry_run=True).purged
    assert purge.first == 5


def test_the_compaction_that_views_apply_stays(store: Store) -> None:
    call = said(store, "a", 10)
    call.compact(lambda _: "so far", keep_last=2)
    put(call, *[user(f"n{number}") for number in range(10)])
    policy = RetentionPolicy(max_entries=4)
    before = call.window()
    assert [each.first for each in store.apply_retention(policy).purged] == [10]
    assert call.compaction() is not None
    assert call.window()[0] == before[0]
    call.compact(lambda _: "and so on", keep_last=2)
    assert [each.first for each in store.apply_retention(policy).purged] == [18]


def test_the_compaction_of_another_branch_stays(store: Store) -> None:
    call = said(store, "a", 4)
    call.compact(lambda _: "so far", keep_last=1)
    call.append(user("elsewhere"), parent=3).result()
    put(call, *[user(f"n{number}") for number in range(4)])
    call.append(user("back"), parent=4).result()
    call.checkout(9).result()
    (purge,) = store.apply_retention(RetentionPolicy(max_entries=3), dry_run=True).purged
    assert purge.first == 4


def test_the_report_says_what_keeps_more_than_was_asked_for(store: Store) -> None:
    """``max_entries`` could keep far more than it says, and nothing told why."""
    opened, grouped = store.session("opened"), store.session("grouped")
    put(opened, user("one"), asks("c1"), user("and?"), user("and?"), user("and?"))
    put(grouped, user("one"), asks("c1"), answers("c1"), says("ok"))
    compacted = said(store, "compacted", 10)
    compacted.compact(lambda _: "so far", keep_last=2)
    put(compacted, *[user(f"n{number}") for number in range(10)])
    held = said(store, "held", 9)
    put(held, asks("c1"))
    held.hold("case").result()
    never = store.session("never")
    put(never, asks("c1"), user("and?"), user("and?"), user("and?"))
    said(store, "fine", 9)
    report = store.apply_retention(RetentionPolicy(max_entries=2), dry_run=True)
    found = {each.session: (each.kept, each.first, each.reasons) for each in report.excess}
    assert found == {
        "opened": (4, 1, ("open_call",)),
        "grouped": (3, 1, ("tool_group",)),
        "compacted": (11, 10, ("compaction",)),
        "held": (11, 0, ("hold",)),
        "never": (4, 0, ("open_call",)),
    }
    assert {each.wanted for each in report.excess} == {2}
    assert "never" not in {each.session for each in (*report.purged, *report.held)}
    done = store.apply_retention(RetentionPolicy(max_entries=2))
    assert done.excess == report.excess
    for each in done.excess:
        assert next(iter(store.session(each.session).events())).sequence == each.first
    assert store.apply_retention(RetentionPolicy(max_entries=11)).excess == ()


# Bytes


def total(store: Store) -> int:
    report = store.apply_retention(RetentionPolicy(max_total_bytes=2**40), dry_run=True)
    assert report.bytes_before is not None and report.bytes_after == report.bytes_before
    return report.bytes_before


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
def test_the_least_recently_active_go_first(store: Store, sealed: bool) -> None:
    sessions = [said(store, f"s{number}", 6) for number in range(4)]
    put(sessions[0], user("again"))
    if sealed:
        store.flush()
    before = total(store)
    report = store.apply_retention(RetentionPolicy(max_total_bytes=before - 1))
    assert (gone(report), report.deleted[0].rule) == (["s1"], "max_total_bytes")
    assert report.bytes_before == before
    assert report.bytes_after == total(store) < before
    report = store.apply_retention(RetentionPolicy(max_total_bytes=0))
    assert gone(report) == ["s2", "s3", "s0"] and report.bytes_after == 0


def test_a_content_counts_as_long_as_somebody_names_it(store: Store) -> None:
    blob = store.blobs.put(Random(1).randbytes(100_000))
    for name in ("a", "b"):
        store.session(name).append(user(name), blobs=[blob]).result()
    said(store, "c")
    before = total(store)
    assert before > 100_000
    report = store.apply_retention(RetentionPolicy(max_total_bytes=50_000))
    assert gone(report) == ["a", "b"]
    assert report.bytes_after is not None and report.bytes_after < 1_000


def test_bytes_of_all_tenants_together_or_of_one(store: Store) -> None:
    said(store.tenant("x"), "old", 6)
    said(store.tenant("y"), "new", 6)
    half = total(store) - 1
    tenant = store.tenant("y")
    assert tenant.apply_retention(RetentionPolicy(max_total_bytes=half)).deleted == ()
    (decision,) = store.apply_retention(RetentionPolicy(max_total_bytes=half)).deleted
    assert (decision.tenant, decision.session) == ("x", "old")
    said(store.tenant("x"), "mine")
    assert gone(tenant.apply_retention(RetentionPolicy(max_total_bytes=0))) == ["new"]
    assert names(store.tenant("x")) == ["mine"]


def test_rules_together(store: Store) -> None:
    said(store, "old")
    long = said(store, "long", 10)
    policy = RetentionPolicy(max_age_us=0, max_entries=4, max_total_bytes=2**40)
    report = store.apply_retention(policy, now_us=updated(long))
    assert gone(report) == ["old"] and [each.first for each in report.purged] == [6]
    assert report.bytes_after is not None and report.bytes_before is not None
    assert report.bytes_after < report.bytes_before


def test_documents_stay(store: Store) -> None:
    store.user("u").documents.write("notes", "mine").result()
    store.documents.write("terms", "ours").result()
    said(store, "a").alias("x").result()
    assert gone(store.apply_retention(RetentionPolicy(max_age_us=0), now_us=TIME_MAX)) == ["a"]
    assert store.user("u").documents.read("notes") == "mine"
    assert store.documents.read("terms") == "ours"


# Holds


def test_a_hold_beats_every_rule(store: Store) -> None:
    held, free = said(store, "held", 10), said(store, "free", 10)
    held.hold("case 7").result()
    assert (held.facts.holds, free.facts.holds) == (("case 7",), ())
    now_us = updated(free) + YEAR_US
    for policy, spared in (
        (RetentionPolicy(max_entries=4), []),
        (RetentionPolicy(max_age_us=0), ["free"]),
        (RetentionPolicy(max_total_bytes=0), []),
    ):
        report = store.apply_retention(policy, now_us=now_us)
        assert (gone(report), report.skipped_held) == (spared, 1)
        (decision,) = report.held
        assert (decision.session, decision.holds) == ("held", ("case 7",))
    assert len(held.history()) == 10
    held.release_hold("case 7").result()
    assert held.facts.holds == ()
    assert gone(store.apply_retention(RetentionPolicy(max_total_bytes=0))) == ["held"]


def test_several_holds(store: Store) -> None:
    session = store.session("a")
    session.hold("one").result()  # creates it
    assert session.hold("one").result().first == -1
    session.hold("two").result()
    assert session.facts.holds == ("one", "two")
    session.release_hold("one").result()
    assert session.release_hold("one").result().first == -1
    assert session.facts.holds == ("two",)
    assert session.at(0).facts.holds == ("one",)
    for reason in (None, 5, "", "x" * 513, "\ud800"):
        for call in (session.hold, session.release_hold):
            with pytest.raises(InvalidNameError):
                call(reason)  # type: ignore[arg-type]
    for number in range(HOLDS_MAX - 1):
        session.hold(f"n{number}").result()
    with pytest.raises(LimitExceededError) as caught:
        session.hold("one more")
    assert (caught.value.actual, caught.value.limit) == (HOLDS_MAX + 1, HOLDS_MAX)


def test_of_two_changes_of_holds_at_once_one_is_refused(store: Store) -> None:
    session = said(store, "a")
    acks = [session.hold("one"), session.hold("two")]
    acks[0].result()
    with pytest.raises(AppendConflictError):
        acks[1].result()
    session.hold("two").result()
    assert session.facts.holds == ("one", "two")


def test_a_hold_outlives_a_purge_a_reopening_and_an_export(
    checked_store: Open, tmp_path: Path
) -> None:
    store = checked_store(snapshot_frequency=4)
    session = store.session("a")
    session.hold("case").result()
    put(session, *[user(f"m{number}") for number in range(9)])
    session.purge(6).result()
    lines = lines_of(store)
    store.close()
    other = checked_store(tmp_path / "other")
    other.load([json.loads(line) for line in lines])
    for opened in (checked_store(), other):
        assert opened.session("a").facts.holds == ("case",)
        report = opened.apply_retention(RetentionPolicy(max_total_bytes=0))
        assert (gone(report), report.skipped_held) == ([], 1)


def test_what_is_loaded_as_a_hold_holds_whatever_it_is(store: Store) -> None:
    body = {"set": {"hold": 5}}
    store.load([{"session": "a", "sequence": 0, "kind": "facts", "body": body}])
    assert store.session("a").facts.holds == ("5",)
    assert store.apply_retention(RetentionPolicy(max_total_bytes=0)).skipped_held == 1
    store.session("a").release_hold("5").result()
    assert store.session("a").facts.holds == ()


def test_what_names_the_session_itself_is_not_refused(store: Store) -> None:
    for name in ("a", "b", "c"):
        said(store, name).hold("case").result()
    store.session("a").purge(2).result()
    store.session("b").delete().result()
    store.session("c").erase(HANG_S)
    assert names(store) == ["a"]


# What happens meanwhile


@pytest.mark.parametrize("erases", [False, True], ids=["delete", "erase"])
@pytest.mark.parametrize("what", ["append", "hold", "delete", "anew"])
def test_a_session_that_changes_meanwhile_is_left_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: str, erases: bool
) -> None:
    session = said(store, "a")
    said(store, "b")
    from engine import retention

    decide = retention._Run._decide

    def then(run: Any, sessions: Any) -> Any:
        plan = decide(run, sessions)
        if what == "append":
            put(session, user("wait"))
        elif what == "hold":
            session.hold("wait").result()
        else:
            session.delete().result()
        if what == "anew":
            put(session, user("another"))
        return plan

    monkeypatch.setattr(retention._Run, "_decide", then)
    report = store.apply_retention(RetentionPolicy(max_total_bytes=0, erase=erases))
    assert gone(report) == ["b"]
    assert [each.session for each in report.changed] == ([] if what == "hold" else ["a"])
    assert report.skipped_held == (what == "hold")
    assert session.exists == (what != "delete")
    assert [each.session for each in report.receipts] == (["b"] if erases else [])


@pytest.mark.parametrize("what", ["hold", "delete", "purge"])
def test_a_purge_finds_the_session_changed(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    session = said(store, "a", 9)
    from engine import retention

    decide = retention._Run._decide

    def then(run: Any, sessions: Any) -> Any:
        plan = decide(run, sessions)
        if what == "hold":
            session.hold("wait").result()
        elif what == "delete":
            session.delete().result()
        else:
            session.purge(8).result()
        return plan

    monkeypatch.setattr(retention._Run, "_decide", then)
    report = store.apply_retention(RetentionPolicy(max_entries=3))
    assert report.purged == ()
    assert (report.skipped_held, len(report.changed)) == ((1, 0) if what == "hold" else (0, 1))


# Dry runs


def test_a_dry_run_changes_nothing_and_decides_the_same(store: Store, tmp_path: Path) -> None:
    said(store, "old").hold("case").result()
    said(store, "older", 9)
    said(store, "long", 9)
    new = said(store, "new")
    policy = RetentionPolicy(max_age_us=0, max_entries=4, max_total_bytes=400)
    given: dict[str, Any] = {"now_us": updated(store.session("long"))}
    before, position = lines_of(store), store.last_position
    file = tmp_path / "archive"
    dry = store.apply_retention(policy, dry_run=True, archive=file, **given)
    assert dry.is_dry_run and dry.archive is None and not file.exists()
    assert (lines_of(store), store.last_position) == (before, position)
    done = store.apply_retention(policy, archive=file, **given)
    for name in ("deleted", "purged", "held", "bytes_before", "bytes_after", "session_count"):
        assert getattr(done, name) == getattr(dry, name)
    assert done.deleted and done.held
    assert new.exists == ("new" not in gone(done))


# Archives


@pytest.mark.parametrize("erases", [False, True], ids=["delete", "erase"])
def test_what_went_comes_back_from_its_archive(
    checked_store: Open, tmp_path: Path, erases: bool
) -> None:
    store = checked_store(snapshot_frequency=4)
    acme = store.tenant("acme")
    blob = acme.blobs.put(b"\x00\x01" * 5_000)
    old = said(acme, "old", 6, user_id="u", title="T")
    old.append(user("see"), blobs=[blob]).result()
    old.append(user("else"), parent=2).result()
    old.alias("x:1").result()
    old.purge(2).result()
    said(store, "kept")
    lines = list(store.export_lines(old.events()))
    file = tmp_path / "archive.jsonl"
    policy = RetentionPolicy(max_age_us=0, erase=erases)
    now_us = updated(store.session("kept"))
    report = store.apply_retention(policy, now_us=now_us, archive=file)
    assert gone(report) == ["old"] and report.archive == file
    assert file.read_text().splitlines() == lines
    assert file.stat().st_mode & 0o777 == 0o600
    assert not old.exists
    other = checked_store(tmp_path / "other")
    for target in (store, other):
        target.load(map(json.loads, file.read_text().splitlines()))
        again = target.tenant("acme").session("old")
        assert list(target.export_lines(again.events())) == lines
        assert again.facts.user_id == "u" and again.facts.title == "T"
        assert target.tenant("acme").by_alias("x:1") is not None
    assert [each.name for each in tmp_path.iterdir() if "archive" in each.name] == [file.name]


def test_what_is_purged_is_archived(checked_store: Open, tmp_path: Path) -> None:
    store = checked_store()
    call = said(store, "a", 9)
    bodies = call.history()
    files = [tmp_path / "one", tmp_path / "two"]
    for most, file in zip((5, 3), files, strict=True):
        store.apply_retention(RetentionPolicy(max_entries=most), archive=file)
    other = checked_store(tmp_path / "other")
    other.load(map(json.loads, files[0].read_text().splitlines()))
    assert other.session("a").history() == bodies[:4]
    told = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert [line["sequence"] for line in told] == [4, 5]


def test_an_archive_is_there_before_anything_goes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(store, "a")
    file = tmp_path / "archive"
    seen: list[bool] = []
    real = Session._remove

    def remove(*given: Any, **options: Any) -> Any:
        seen.append(file.exists())
        return real(*given, **options)

    monkeypatch.setattr(Session, "_remove", remove)
    store.apply_retention(RetentionPolicy(max_total_bytes=0), archive=file)
    assert seen == [True]


def test_an_archive_that_cannot_be_written_lets_nothing_go(store: Store, tmp_path: Path) -> None:
    said(store, "a")
    taken = tmp_path / "taken"
    taken.write_text("mine")
    policy = RetentionPolicy(max_total_bytes=0)
    with pytest.raises(UsageError, match="exists"):
        store.apply_retention(policy, archive=taken)
    # Refused at once: also where nothing would go, and by a dry run.
    nothing = RetentionPolicy(max_entries=100)
    for rules, is_dry in ((policy, True), (nothing, False), (nothing, True)):
        with pytest.raises(UsageError, match="exists"):
            store.apply_retention(rules, archive=taken, dry_run=is_dry)
    with pytest.raises(Exception, match="no folder"):
        store.apply_retention(policy, archive=tmp_path / "none" / "archive")
    for bad in (5, "", "a\0b"):
        with pytest.raises(UsageError):
            store.apply_retention(policy, archive=bad)  # type: ignore[arg-type]
    assert names(store) == ["a"] and taken.read_text() == "mine"
    said(store, "held").hold("x").result()
    store.session("a").hold("x").result()
    assert store.apply_retention(policy, archive=tmp_path / "new").archive is None
    assert not (tmp_path / "new").exists()  # nothing went


@pytest.mark.parametrize("what", ["append", "delete", "purge"])
def test_a_session_that_goes_while_it_is_archived_is_not_in_the_archive(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    session = said(store, "a", 4)
    said(store, "b")
    from engine import retention

    decide = retention._Run._decide

    def then(run: Any, sessions: Any) -> Any:
        plan = decide(run, sessions)
        changes = {
            "append": lambda: session.append(user("wait")),
            "delete": session.delete,
            "purge": lambda: session.purge(2),
        }
        changes[what]().result()
        return plan

    monkeypatch.setattr(retention._Run, "_decide", then)
    file = tmp_path / "archive"
    report = store.apply_retention(RetentionPolicy(max_total_bytes=0), archive=file)
    assert gone(report) == ["b"] and [each.session for each in report.changed] == ["a"]
    told = {json.loads(line)["session"] for line in file.read_text().splitlines()}
    assert told == ({"a", "b"} if what == "append" else {"b"})


# What is refused, and how it is told


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"erase": True},
        {"max_age_us": -1},
        {"max_age_us": 1.5},
        {"max_entries": 0},
        {"max_entries": True},
        {"max_total_bytes": -1},
        {"max_entries": 1, "kinds": 5},
        {"max_entries": 1, "erase": 1},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(given: Any) -> None:
    with pytest.raises(UsageError):
        RetentionPolicy(**given)


def test_kinds_are_names_of_kinds() -> None:
    for kind in ("", "x" * 65, 5):
        with pytest.raises(InvalidNameError):
            RetentionPolicy(max_entries=1, kinds=[kind])  # type: ignore[list-item]
    policy = RetentionPolicy(max_entries=1, kinds=["message", "variables", "mine"])
    assert policy.kinds == {"message", "variables", "mine"}


def test_what_is_asked_for_is_checked(store: Store) -> None:
    policy = RetentionPolicy(max_age_us=1)
    with pytest.raises(UsageError, match="the time"):
        store.apply_retention(policy)
    for given in ({"now_us": -1}, {"now_us": 1, "dry_run": 1}, {"now_us": 1, "progress": 5}):
        with pytest.raises(UsageError):
            store.apply_retention(policy, **given)
    with pytest.raises(UsageError):
        store.apply_retention({"max_age_us": 1})  # type: ignore[arg-type]
    assert store.apply_retention(policy, now_us=1).session_count == 0
    store.close()
    with pytest.raises(StoreClosedError):
        store.apply_retention(policy, now_us=1)


def test_progress(store: Store, tmp_path: Path) -> None:
    for number in range(3):
        said(store, f"s{number}")
    told: list[tuple[int, int]] = []
    policy = RetentionPolicy(max_total_bytes=0)
    store.apply_retention(
        policy, archive=tmp_path / "a", progress=lambda done, of: told.append((done, of))
    )
    assert [done for done, _ in told] == list(range(1, 10)) and told[-1] == (9, 9)

    def stop(done: int, of: int) -> None:
        raise ZeroDivisionError

    said(store, "more")
    with pytest.raises(ZeroDivisionError):
        store.apply_retention(policy, progress=stop)
    assert names(store) == ["more"]


def test_many_sessions(store: Store) -> None:
    for number in range(1_100):
        store.session(f"s{number}").append(user("x"))
    store.flush()
    report = store.apply_retention(RetentionPolicy(max_age_us=0), now_us=TIME_MAX)
    assert (report.session_count, len(report.deleted), names(store)) == (1_100, 1_100, [])


def test_a_store_of_version_1_is_refused(checked_store: Open, store_path: Path) -> None:
    old_store.make(store_path)
    store = checked_store()
    with pytest.raises(FormatVersionError):
        store.apply_retention(RetentionPolicy(max_total_bytes=0))
    for call in (lambda: store.session("a").hold("x"), lambda: store.erase_user("u")):
        with pytest.raises(FormatVersionError):
            call()


def test_twins(store: Store, tmp_path: Path) -> None:
    said(store, "a", user_id="u")
    said(store.tenant("t"), "b")

    async def ask() -> tuple[RetentionReport, list[ErasureReceipt], list[ErasureReceipt]]:
        policy = RetentionPolicy(max_entries=1)
        report = await store.apply_retention_async(policy, dry_run=True)
        return report, await store.erase_user_async("u"), await store.erase_tenant_async("t")

    report, of_user, of_tenant = asyncio.run(asyncio.wait_for(ask(), HANG_S))
    assert len(report.purged) == 2
    assert [each.session for each in (*of_user, *of_tenant)] == ["a", "b"]


# Erasing by owner

CANARY = "canary-7f3a"


def test_all_of_a_user_is_erased(checked_store: Open, store_path: Path) -> None:
    """What a user's erasure leaves elsewhere, in documents or under an earlier owner, is kept."""
    store = checked_store(snapshot_frequency=4, dictionaries=False)
    acme = store.tenant("acme")
    given = said(acme, f"{CANARY} given", user_id="u")
    given.set_owner(user_id="somebody else").result()
    now = said(acme, f"{CANARY} now")
    now.set_owner(user_id="u").result()
    acme.user("u").documents.write("notes", CANARY).result()
    said(acme, "other", user_id="v")
    acme.user("v").documents.write("notes", "theirs").result()
    said(store.tenant("beta"), "same id", user_id="u")
    receipts = acme.erase_user("u")
    assert len(receipts) == 3
    assert all([each.tenant == "acme" and not each.is_live for each in receipts])
    assert sorted(each.event_count for each in receipts) == [1, 4, 4]
    assert names(acme) == ["other"] and names(store.tenant("beta")) == ["same id"]
    assert acme.user("u").documents.list() == []
    assert acme.user("v").documents.read("notes") == "theirs"
    assert acme.erase_user("u") == []
    store.close()
    Store.vacuum(store_path)
    assert CANARY.encode() not in b"".join(
        [path.read_bytes() for path in store_path.iterdir() if path.is_file()]
    )


@pytest.mark.parametrize("purged", [False, True])
def test_what_was_a_users_between_is_erased_too(
    checked_store: Open, purged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the owner of now and the one given at creation were looked at."""
    store = checked_store(snapshot_frequency=4)
    for name, owners in {
        "between": ["u", "v"],
        "never": ["v"],
        "none": [],
        "taken": ["u", None],
    }.items():
        call = said(store, name, user_id="first")
        for owner in owners:
            call.set_owner(user_id=owner).result()
            put(call, user("more"), user("and more"))
        call.set_owner(workspace="w").result()
    store.flush()
    if purged:
        for name in ("between", "taken"):
            call = store.session(name)
            events = [event.sequence for event in call.events(kinds=["facts"])]
            call.purge(events[0] + 1).result()  # the base says that it was the user's
    read: list[str] = []
    real = Session._values_of
    monkeypatch.setattr(
        Session, "_values_of", lambda self, *given: (read.append(self.name), real(self, *given))[1]
    )
    assert sorted(receipt.session for receipt in store.erase_user("u")) == ["between", "taken"]
    assert set(read) == {"between", "never", "taken"}
    assert sorted(names(store)) == ["never", "none"]
    assert store.erase_user("u") == []


def test_a_hold_refuses_to_erase_a_user_unless_it_is_forced(store: Store) -> None:
    said(store, "a", user_id="u")
    said(store, "b", user_id="u").hold("case").result()
    for call in (lambda: store.erase_user("u"), lambda: store.erase_tenant("")):
        with pytest.raises(ConflictError, match="held") as caught:
            call()
        assert caught.value.current == ("b",)
    assert names(store) == ["b", "a"]
    assert len(store.erase_user("u", force=True)) == 2
    assert names(store) == []
    with pytest.raises(InvalidNameError):
        store.erase_user("")
    with pytest.raises(UsageError):
        store.erase_user("u", force=1)  # type: ignore[arg-type]


def test_a_hold_that_comes_meanwhile_stops_an_erasure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = said(store, "late", user_id="u")
    said(store, "first", user_id="u")
    from engine import forgetting

    real = forgetting.erase

    def then(*given: Any) -> Any:
        receipt = real(*given)
        late.hold("case").result()
        return receipt

    monkeypatch.setattr(forgetting, "erase", then)
    with pytest.raises(ConflictError, match="held") as caught:
        store.erase_user("u")
    assert caught.value.current == ("late",)
    assert caught.value.__notes__[-1] == "sessions erased before that: 1"
    assert names(store) == ["late"]


def test_a_session_that_begins_meanwhile_is_erased_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(store, "first", user_id="u")
    from engine import forgetting

    real = forgetting.erase
    begun: list[Session] = []

    def then(*given: Any) -> Any:
        if not begun:
            begun.append(said(store, "second", user_id="u"))
        return real(*given)

    monkeypatch.setattr(forgetting, "erase", then)
    assert [each.session for each in store.erase_user("u")] == ["first", "second"]


def test_all_of_a_tenant_is_erased(store: Store) -> None:
    acme = store.tenant("acme")
    for number in range(3):
        said(acme, f"s{number}").alias(f"x{number}").result()
    acme.documents.write("terms", "ours").result()
    acme.user("u").documents.write("notes", "mine").result()
    said(store, "other")
    receipts = store.erase_tenant("acme")
    assert len(receipts) >= 6 and {each.tenant for each in receipts} == {"acme"}
    assert names(acme) == [] and acme.documents.list() == [] and acme.by_alias("x1") is None
    assert {event.tenant for event in store.read()} == {""}
    assert names(store) == ["other"]
    assert store.erase_tenant("acme") == store.erase_tenant("nobody") == []
    said(acme, "s1").alias("x1").result()
    assert acme.by_alias("x1") is not None


# Damage, and what all this is for


def test_a_damaged_session_keeps_no_other_from_going(
    path: Path, whole: Path, tmp_path: Path
) -> None:
    damage_segment(path, 1, 0)
    file = tmp_path / "archive"
    with Store.open(path, create=False) as store:
        long = store.apply_retention(RetentionPolicy(max_entries=5), dry_run=True)
        assert [each.session for each in long.damaged] == ["call-1"]
        policy = RetentionPolicy(max_total_bytes=0)
        report = store.apply_retention(policy, archive=file)
        assert [(each.tenant, each.session) for each in report.damaged] == [("", "call-1")]
        assert report.damaged[0].reason and len(report.deleted) == 3
        assert names(store) == ["call-1"] and names(store.tenant("acme")) == []
        told = {json.loads(line).get("tenant", "") for line in file.read_text().splitlines()}
        assert told == {"", "acme"} and '"session":"call-1","sequence":0' in file.read_text()
        assert gone(store.apply_retention(policy)) == ["call-1"]  # nothing of it is to be read
    with Store.open(whole, create=False, read_only=True) as store:
        acme = store.tenant("acme")
        wanted = [*store.session("call-2").events(), *acme.session("call-1").events()]
        wanted += acme.session("late").events()
        lines = file.read_text().splitlines()
        assert sorted(lines) == sorted(store.export_lines(wanted))


def test_a_store_that_grew_is_small_again_after_retention_and_vacuum(
    checked_store: Open, store_path: Path
) -> None:
    """Stores that keep every checkpoint of every thread had no rules that say what may go.

    What went did not make their files smaller either, 1.24 GB for 32 threads.
    """
    store = checked_store()
    random = Random(7)
    for number in range(32):
        call = store.session(f"thread {number}")
        turns = [user(random.randbytes(300).hex()) for _ in range(300)]
        call.append_many(turns).result()
    store.flush()
    raw = 300 * 600
    full = store.stats()["used_bytes"]
    assert full < 10 * 32 * raw
    at = updated(store.session("thread 27"))
    policy = RetentionPolicy(max_age_us=0, max_entries=100)
    report = store.apply_retention(policy, now_us=at)
    assert (len(report.deleted), len(report.purged)) == (27, 5)
    store.close()
    Store.vacuum(store_path)
    with Store.open(store_path, create=False) as again:
        assert again.stats()["file_bytes"] < full / 4
        assert len(again.session("thread 31").history()) == 100


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_session_is_no_path_of_it_is_cut_in_a_group(store: Store, seed: int) -> None:
    """Against a plain look at each path, from the root to its leaf."""
    random = Random(f"retention/{seed}")
    call = store.session("a")
    open_ids: list[str] = []
    for step in range(60):
        what = random.random()
        messages = [event.sequence for event in call.events() if event.kind == "message"]
        parent = random.choice(messages) if messages and random.random() < 0.15 else None
        if what < 0.3:
            open_ids.append(f"c{random.randrange(4) if seed % 2 else step}")
            message = asks(open_ids[-1])
        elif what < 0.6 and open_ids:
            message = answers(open_ids.pop(random.randrange(len(open_ids))))
        elif what < 0.65 and messages:
            call.checkout(random.choice(messages)).result()
            continue
        elif what < 0.95 or not messages:
            message = random.choice((user, says))(f"m{step}")
        else:
            with suppress(ConflictError):  # an open call is in the way
                call.compact(lambda _: "so far", keep_last=3)
            continue
        call.append(message, parent=parent).result()
    leaves = [branch.leaf for branch in call.branches() if branch.leaf is not None]
    paths = {leaf: call.path(leaf, limit=1_000).events for leaf in leaves}
    applied = {leaf: call.compaction(leaf) for leaf in leaves}
    cuts = 0
    for most in range(1, 60):
        report = store.apply_retention(RetentionPolicy(max_entries=most), dry_run=True)
        for purge in report.purged:
            assert purge.first is not None
            cuts += 1
            for leaf, path in paths.items():
                assert not is_cut(path, purge.first), (most, leaf, purge.first)
                compaction = applied[leaf]
                assert (
                    leaf < purge.first or compaction is None or compaction.sequence >= purge.first
                )
    assert cuts, seed


def is_cut(path: list[Any], first: int) -> bool:
    made: dict[str, int] = {}
    for event in path:
        tools = tools_of(event.body) if event.kind == "message" else None
        for named in [] if tools is None else tools.results:
            if named in made and made[named] < first <= event.sequence:
                return True
        for each in [] if tools is None else tools.calls:
            made[each.id] = event.sequence
    return False


@pytest.mark.parametrize("seed", range(8))
def test_a_bound_moves_down_until_it_cuts_no_span(seed: int) -> None:
    """Against the definition, asked again until nothing is cut."""
    random = Random(f"spans/{seed}")
    for _ in range(50):
        most = random.choice((4, 12, 40))
        spans = [
            (first, first + random.randrange(1, random.choice((2, 4, most))))
            for first in (random.randrange(most) for _ in range(random.randrange(12)))
        ]
        found = Spans(spans)
        for wanted in range(2 * most + 2):
            bound = wanted
            while cut := [first for first, last in spans if first < bound <= last]:
                bound = min(cut)
            assert found.bound(wanted) == bound, (spans, wanted)


def test_a_bound_among_many_overlapping_calls_asks_little(store: Store) -> None:
    """Each span is compared about as often as sorting does, though each step down cuts one more.

    With a look at all spans for each step, 2,000 calls took four million comparisons.
    """
    compared = 0

    class Number(int):
        def __lt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)

        def __le__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) <= int(other)

    paused: list[None] = []
    chain = [(Number(2 * n), Number(2 * n + 3)) for n in range(2_000)]
    Random(1).shuffle(chain)
    assert Spans(chain, lambda: paused.append(None)).bound(Number(4_001)) == 0
    assert compared < 2_000 * 40
    assert len(paused) == 2_000


@pytest.mark.parametrize("count", [1, 40])
def test_a_chain_of_overlapping_calls_is_purged_whole_or_not_at_all(
    store: Store, count: int
) -> None:
    call = store.session("a")
    put(call, user("go"), asks("c0"))
    for number in range(1, count):
        put(call, asks(f"c{number}"), answers(f"c{number - 1}"))
    put(call, answers(f"c{count - 1}"), says("done"), user("next"), says("yes"))
    end = 1 + 2 * count
    for most, first in ((2, end + 1), (3, end), (4, 1), (2 * count + 2, 1)):
        report = store.apply_retention(RetentionPolicy(max_entries=most), dry_run=True)
        assert [each.first for each in report.purged] == [first], most
