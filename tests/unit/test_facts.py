"""Facts of a session: given at creation, said later, as of now and as of then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Facts, Label, SessionLink, Store
from engine.export import escape
from engine.retention import RetentionPolicy
from engine.variables import store_value
from eventlog.errors import (
    CorruptionError,
    DamagedInputError,
    FormatVersionError,
    InvalidNameError,
    SessionNotFoundError,
    TrimmedError,
    UsageError,
)
from tests import old_store

Open = Callable[..., Store]
GIVEN: dict[str, Any] = {
    "user_id": "u1",
    "title": "first",
    "metadata": {"k": 1, "gone": None},
    "account_id": "acc",
    "agent_id": "agent",
    "workspace": "/w",
}


def told(store: Store, name: str = "s") -> dict[str, Any]:
    """What ``SessionInfo`` says beside counts."""
    info = store.session(name).info()
    assert info is not None
    names = (*GIVEN, "status", "labels")
    return {each: getattr(info, each) for each in names}


def test_what_is_given_at_creation_is_a_fact(store: Store) -> None:
    store.session("s", **GIVEN).append({"n": 0}).result()
    store.session("s", user_id="other", workspace="other").append({"n": 1}).result()
    assert store.session("s").facts == Facts(**GIVEN)
    assert store.session("s").at(0).facts == Facts(**GIVEN)
    assert told(store) == {**GIVEN, "status": None, "labels": ()}


def test_a_session_that_is_not_there_has_no_facts(store: Store) -> None:
    call = store.session("s", **GIVEN)
    assert call.facts == Facts()
    assert call.statuses() == call.summaries() == []
    assert not call.exists


@pytest.mark.parametrize("way", ["loose", "sealed", "reopened", "rebuilt"])
def test_a_later_fact_stands_over_the_one_given_at_creation(checked_store: Open, way: str) -> None:
    store = checked_store(snapshot_frequency=1)
    call = store.session("s", **GIVEN)
    call.append({"n": 0}).result()
    call.set_title("second").result()
    call.set_owner(user_id="u2", workspace=None).result()
    call.update_metadata({"j": [1]}, delete=["gone", "never there"]).result()
    call.set_status("planning", detail={"step": 1})
    call.set_status("executing")
    call.label("vip")
    call.label("odd", on=0)
    call.label("vip", on=0)
    call.set_summary("so far")
    call.set_parent("mother", 7)
    call.relate("b")
    call.relate("a").result()
    if way != "loose":
        call.append({"n": 1}).result()
        store.flush()
    if way == "rebuilt":
        store.rebuild()
    if way == "reopened":
        store.close()
        store = checked_store()
        call = store.session("s")
    facts = call.facts
    assert (facts.title, facts.user_id, facts.account_id) == ("second", "u2", "acc")
    assert (facts.workspace, facts.agent_id) == (None, "agent")
    assert facts.metadata == {"k": 1, "j": [1]}
    assert (facts.status, facts.status_detail) == ("executing", None)
    labels = [(label.name, label.on) for label in facts.labels]
    assert labels == [("odd", 0), ("vip", None), ("vip", 0)]
    assert facts.summary == "so far"
    assert facts.parent == SessionLink("mother", 7)
    assert facts.related == ("a", "b")
    assert call.at(0).facts == Facts(**GIVEN)
    assert call.at(1).facts == Facts(**{**GIVEN, "title": "second"})
    info = call.at(1).info()
    assert (info.title, info.user_id, info.metadata) == ("second", "u1", GIVEN["metadata"])
    assert told(store) == {
        "title": "second",
        "user_id": "u2",
        "account_id": "acc",
        "agent_id": "agent",
        "workspace": None,
        "metadata": {"k": 1, "j": [1]},
        "status": "executing",
        "labels": ("odd", "vip"),
    }


def test_facts_are_beside_the_history(store: Store) -> None:
    """They move no head, fail no expected head, and are no messages."""
    call = store.session("s")
    call.append({"n": 0}).result()
    call.set_status("planning").result()
    call.append({"n": 1}, expected_head=0).result()
    assert call.head == 2
    assert call.history() == [{"n": 0}, {"n": 1}]
    assert [event.kind for event in call.events()] == ["message", "facts", "message"]


def test_every_status_is_told_with_its_time(store: Store) -> None:
    call = store.session("s")
    acks = [call.set_status(each, detail=each.upper()) for each in ("a", "b", "a")]
    call.set_title("no status")
    acks.append(call.set_status(None))
    acks[-1].result()
    found = call.statuses()
    assert [each.text for each in found] == ["a", "b", "a", None]
    assert [each.detail for each in found] == ["A", "B", "A", None]
    assert [each.sequence for each in found] == [ack.first for ack in acks]
    assert [each.updated_us for each in found] == [
        call.event(each.sequence).recorded_us for each in found
    ]
    assert call.facts.status is None
    assert asyncio.run(call.statuses_async()) == found
    assert asyncio.run(call.facts_async()) == call.facts


def test_two_summaries_of_one_microsecond_are_both_kept(store: Store) -> None:
    """Agentium keyed summaries by session and millisecond, so that one overwrote another."""
    call = store.session("s")
    for number in range(12):
        call.set_summary(f"summary {number}")
    store.flush()
    assert [each.text for each in call.summaries()] == [f"summary {n}" for n in range(12)]
    assert asyncio.run(call.summaries_async()) == call.summaries()
    assert store.session("s1").summaries() == []


def test_a_purge_keeps_the_facts_and_the_last_status(checked_store: Open) -> None:
    store = checked_store(snapshot_frequency=2)
    call = store.session("s", **GIVEN)
    for status in ("a", "b", "c"):
        call.set_status(status)
        call.append({}).result()
    call.label("vip").result()
    call.set_status("d").result()
    before = call.facts
    call.purge(6).result()
    assert call.facts == before
    assert [each.text for each in call.statuses()] == ["c", "d"]
    with pytest.raises(TrimmedError):
        call.at(3)
    store.rebuild()
    assert call.facts == before
    assert told(store)["status"] == "d"


def test_an_export_carries_facts(checked_store: Open, tmp_path: Path) -> None:
    store = checked_store()
    call = store.session("s", **GIVEN)
    call.append({}).result()
    call.set_status("a", detail=b"\x00")
    call.label("vip").result()
    lines = list(store.export_lines(store.read()))
    other = checked_store(tmp_path / "other")
    other.load(map(json.loads, lines))
    assert other.session("s").facts == call.facts
    assert other.session("s").statuses() == call.statuses()
    assert list(other.export_lines(other.read())) == lines


def test_a_label_can_be_taken_off(store: Store) -> None:
    call = store.session("s")
    call.append({}).result()
    ack = call.label("x").result()
    call.label("x", on=0).result()
    call.unlabel("x", on=0).result()
    call.unlabel("never").result()
    (label,) = call.facts.labels
    assert label == Label("x", None, ack.first, call.event(ack.first).recorded_us)
    call.unlabel("x").result()
    assert call.facts.labels == ()


@pytest.mark.parametrize("name", ["a.b", ".", "1.2", "..", "é" * 240, "\x00", "label."], ids=repr)
def test_any_name_is_a_label_a_metadata_key_and_a_related_session(store: Store, name: str) -> None:
    """Parts of a key are told apart by their place, not by what users write."""
    call = store.session("s")
    call.append({}).result()
    call.label(name)
    call.label(name, on=0)
    call.relate(name)
    call.update_metadata({name: name}).result()
    facts = call.facts
    assert [(label.name, label.on) for label in facts.labels] == [(name, None), (name, 0)]
    assert facts.related == (name,)
    assert facts.metadata == {name: name}
    call.unlabel(name, on=0)
    call.unrelate(name)
    call.update_metadata({}, delete=[name]).result()
    assert [label.on for label in call.facts.labels] == [None]
    assert call.facts.related == ()
    assert call.facts.metadata == {}


def test_what_is_told_can_be_changed_by_whoever_asked(store: Store) -> None:
    call = store.session("s", metadata={"list": [1]})
    call.create().result()
    for found in (call.facts.metadata, call.info().metadata, call.at(0).info().metadata):  # type: ignore[union-attr]
        found["list"].append(2)  # type: ignore[index]
    for _ in range(2):
        for info in store.sessions().sessions + store.sessions(status=None).sessions:
            assert info.metadata == {"list": [1]}
            info.metadata["list"].append(3)
    for info in [store.sessions(metadata={"list": [1]}).sessions[0] for _ in range(2)]:
        assert info.metadata == {"list": [1]}
        info.metadata.clear()


BAD: dict[str, tuple[type[Exception], Callable[[Any], object]]] = {
    "status is no text": (InvalidNameError, lambda call: call.set_status(3)),
    "status is empty": (InvalidNameError, lambda call: call.set_status("")),
    "title is no text": (InvalidNameError, lambda call: call.set_title(b"x")),
    "owner is empty": (InvalidNameError, lambda call: call.set_owner(agent_id="")),
    "label is long": (InvalidNameError, lambda call: call.label("x" * 481)),
    "label on nothing": (UsageError, lambda call: call.label("x", on=99)),
    "label on none": (UsageError, lambda call: call.label("x", on=-1)),
    "metadata is a list": (UsageError, lambda call: call.update_metadata([])),
    "metadata twice": (UsageError, lambda call: call.update_metadata({"a": 1}, delete=["a"])),
    "metadata key is empty": (InvalidNameError, lambda call: call.update_metadata({"": 1})),
    "its own parent": (UsageError, lambda call: call.set_parent(call.name)),
    "related to itself": (UsageError, lambda call: call.relate(call.name)),
    "parent is empty": (InvalidNameError, lambda call: call.set_parent("")),
    "parent's event is none": (UsageError, lambda call: call.set_parent("a", -1)),
    "related is empty": (InvalidNameError, lambda call: call.relate("")),
}


@pytest.mark.parametrize("name", BAD)
def test_what_can_be_no_fact_is_refused_at_the_call(store: Store, name: str) -> None:
    call = store.session("s")
    call.append({}).result()
    error, bad = BAD[name]
    with pytest.raises(error):
        bad(call)
    assert store.last_position == 1


def test_a_label_on_an_event_needs_the_event(store: Store) -> None:
    with pytest.raises(SessionNotFoundError):
        store.session("s").label("x", on=0)


@pytest.mark.parametrize("name", ["account_id", "agent_id", "workspace"])
def test_an_owner_is_a_name(store: Store, name: str) -> None:
    with pytest.raises(InvalidNameError):
        store.session("s", **{name: ""})


def test_facts_need_the_second_format_version(tmp_path: Path) -> None:
    path = tmp_path / "store"
    old_store.make(path)
    with Store.open(path) as store:
        call = store.session("new")
        call.append({}).result()
        assert call.facts == Facts()
        for refused in (
            lambda: call.set_status("a"),
            lambda: call.alias("a"),
            lambda: call.clone("b"),
            lambda: store.session("s", workspace="w"),
        ):
            with pytest.raises(FormatVersionError):
                refused()


@pytest.mark.parametrize("seed", range(5))
def test_facts_as_of_any_sequence_equal_those_told_then(checked_store: Open, seed: int) -> None:
    """State as of any sequence is the fold up to it, with what was given at creation."""
    random = Random(seed)
    store = checked_store(snapshot_frequency=3)
    call = store.session("s", **(GIVEN if seed % 2 else {}))
    seen: list[Facts] = []
    for number in range(60):
        ways: list[Callable[[], Any]] = [
            lambda: call.set_title(random.choice(["x", "y", None])),
            lambda: call.set_status(random.choice(["a", "b", None]), detail=number),  # noqa: B023
            lambda: call.label(random.choice("lm"), on=random.choice([None, 0])),
            lambda: call.unlabel(random.choice("lm"), on=random.choice([None, 0])),
            lambda: call.update_metadata({random.choice("kj"): number}),  # noqa: B023
            lambda: call.update_metadata({}, delete=[random.choice("kj")]),
            lambda: call.set_owner(user_id=random.choice(["u", None])),
            lambda: call.append({"n": number}),  # noqa: B023
        ]
        (call.append({}) if not number else random.choice(ways)()).result()
        if random.random() < 0.1:
            store.flush()
        seen.append(call.facts)
    for sequence, facts in enumerate(seen):
        assert call.at(sequence).facts == facts, sequence
    store.rebuild()
    assert call.facts == seen[-1]


NO_FACTS: list[dict[str, Any]] = [
    *[{"set": {key: 7}} for key in ("title", "user_id", "account_id", "agent_id", "workspace")],
    {"set": {"user_id": ["x"]}},
    *[
        {"set": {key: value}}
        for key in ("status", "summary")
        for value in (None, 5, "ab", ["a"], [5, None], ["a", None, 1])
    ],
    *[
        {"set": {key: value}}
        for key in ("parent", "cloned_from")
        for value in (5, "ab", [], ["s"], [None, 1], ["s", -1], ["s", 0.5], ["s", True])
    ],
    *[{"set": {"metadata.k": value}} for value in (3, None, [1, 2], {"a": 1})],
    *[{"set": {key: True}} for key in ("label.x.y", "label.5", "label.-1.y", "label.01.y")],
    {"set": {f"label.{2**63}.y": True}},
    {"append": {"metadata.k": 3}},
    {"append": {"label.": True}},
]
NO_NAMES: list[dict[str, Any]] = [
    {"set": {"user_id": ""}},
    {"set": {"status": ["", None]}},
    {"set": {"parent": ["", None]}},
    {"set": {"label..": True}},
    {"set": {"related.": True}},
    {"set": {"metadata.": [1]}},
    {"set": {"related.x": 1}},
    {"set": {"alias.x": None}},
]


@pytest.mark.parametrize("body", NO_FACTS + NO_NAMES, ids=str)
def test_what_can_be_no_fact_is_not_loaded(store: Store, body: dict[str, Any]) -> None:
    with pytest.raises(DamagedInputError, match="load:1:"):
        store.load([{"session": "a", "sequence": 0, "kind": "facts", "body": body}])
    assert not store.session("a").exists


@pytest.mark.parametrize("is_line", [False, True])
def test_a_base_holds_no_fact_that_can_be_none(store: Store, is_line: bool) -> None:
    kept = store_value("status", "planning", 1, 0)
    base = {"last": 0, "facts": [[kept.key, kept.data, kept.fixes, 1, 0]]}
    line: dict[str, Any] = {"session": "a", "sequence": 1, "kind": "message", "body": {}}
    line |= {"opening": {}, "base": escape(base)}
    if is_line:
        line = {"session": "a", "sequence": 0, "kind": "base", "body": escape(base)}
    with pytest.raises(DamagedInputError, match=r"facts\.status"):
        store.load([line])
    assert not store.session("a").exists


def test_keys_that_this_release_does_not_know_are_loaded_and_left_out(store: Store) -> None:
    body = {"set": {"later": 5, "odd.x": None, "label": 3, "metadata": 1}}
    store.load([{"session": "a", "sequence": 0, "kind": "facts", "body": body}])
    assert store.session("a").facts == Facts()


@pytest.mark.parametrize("body", NO_FACTS, ids=str)
def test_a_fact_that_was_stored_and_is_none_harms_its_session_alone(
    checked_store: Open, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As releases did that looked at keys alone."""
    store = checked_store()
    store.session("good", user_id="u").set_status("x").result()
    with monkeypatch.context() as patch:
        patch.setattr("engine.arriving.check_facts", lambda facts, root: None)
        lines: list[dict[str, Any]] = [
            {"session": "bad", "sequence": 0, "kind": "message", "body": {"n": 0}},
            {"session": "bad", "sequence": 1, "parent": None, "kind": "facts", "body": body},
        ]
        lines[0]["opening"] = {"user_id": "u"}
        store.load(lines)
    bad = store.session("bad")
    for read in (bad.info, lambda: bad.facts, lambda: bad.at(1).facts):
        with pytest.raises(CorruptionError, match="fact"):
            read()
    assert bad.history() == [{"n": 0}]
    for wanted in ({}, {"user_id": "u"}, {"status": "x"}):
        assert [each.name for each in store.sessions(**wanted).sessions] == ["good"]
    report = store.apply_retention(RetentionPolicy(max_total_bytes=0), dry_run=True)
    assert [each.session for each in report.damaged] == ["bad"]
    assert [each.session for each in report.deleted] == ["good"]
    assert sorted(each.session for each in store.erase_user("u")) == ["bad", "good"]
    assert store.sessions().sessions == []
