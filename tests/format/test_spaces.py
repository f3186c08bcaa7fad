"""Spaces, read from the document alone: what bodies change, what values mean, and their rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Session, Store
from engine.at import SessionAt
from tests.format import independent, independent_spaces
from tests.format.values import identical

Open = Callable[..., Store]
OPENING = {"title": "first", "user_id": "u", "metadata": {"kept": 1, "gone": 2}}


def make(store: Store, seed: int) -> None:
    """A session of 150 steps with something in every space, on several branches."""
    random = Random(seed)
    call = store.tenant("acme").session("call", **OPENING)
    call.artifacts.write("early", "before any event").result()
    public = [call.append({"n": 0}).result().last]
    for number in range(150):
        name = random.choice("abc")
        step(call, number, name, public, random)
    store.flush()
    step(call, 150, "loose", public, random)
    call.update_state({"loose": "\ud800"}).result()


def step(call: Session, number: int, name: str, public: list[int], random: Random) -> None:
    near = random.choice(public[-7:])
    match random.choice("mmpcfuvdDxaaAArtTlLsoM"):
        case "m":
            public.append(call.append({"n": number}).result().last)
        case "p":
            public.append(call.append({"n": number}, parent=near).result().last)
        case "c":
            call.checkout(random.choice([near, None])).result()
        case "f":
            call.fork(near).result()
        case "u":
            event = random.choice([None, near])
            call.record_usage(
                "provider_turn", model=name, input_tokens=number, cost=0.5, event=event
            ).result()
        case "v":
            call.update_state({name: number, f"{number}": [None]}, delete=["1"]).result()
        case "d":
            call.documents.write(name, f"{number}\ud83d").result()
        case "D":
            call.documents.append(name, f" {number}").result()
        case "x":
            call.documents.delete(name).result()
        case "a":
            call.artifacts.write(name, f"text {number} \udc00", event=near).result()
        case "A":
            call.artifacts.write(name, random.randbytes(random.choice([10, 6_000])), "a/b").result()
        case "r":
            call.runs.begin(f"run {number}", metadata={"n": number}).result()
            if number % 2:
                call.runs.end(f"run {number}", "failed", error=[number]).result()
        case "t":
            call.tool_calls.open(f"call {number}", name, {"at": number}, event=near).result()
            call.tool_calls.waiting(f"call {number}", "approval").result()
        case "T":
            for each in call.tool_calls.list(("waiting",))[:1]:
                call.tool_calls.done(each.id, event=near).result()
        case "l":
            call.label(name, on=random.choice([None, near])).result()
        case "L":
            call.unlabel(name).result()
        case "s":
            call.set_status(random.choice(["open", None]), detail={"n": number}).result()
        case "o":
            call.set_owner(user_id=random.choice(["v", None]), agent_id=name).result()
        case "M":
            call.update_metadata({name: [number]}, delete=["gone"]).result()


def require_same(known: independent.Reader, call: Session | SessionAt, records: list[Any]) -> None:
    """What the store says after these records is what the document says."""
    session = known.find("acme", "call")
    assert session is not None
    found = independent_spaces.spaces(records)
    assert identical(
        {each.key: each.value for each in call.variables()},
        {key: found["variables"][key].value for key in sorted(found["variables"])},
    )
    documents = independent_spaces.documents(found["documents"])
    assert {each.name: each.version for each in call.documents.list()} == {
        name: version for name, (_, version) in documents.items()
    }
    for name, (text, _) in documents.items():
        assert call.documents.read(name) == text
    artifacts = independent_spaces.artifacts(known, session, found["artifacts"])
    assert call.artifacts.list() == sorted(artifacts)
    for name, versions in artifacts.items():
        assert [
            (each.version, call.artifacts.read(name, each.version), each.event, each.branch)
            for each in call.artifacts.versions(name)
        ] == versions
    _require_same_steps(call, found)
    facts = independent_spaces.facts(OPENING, found["facts"])
    ours = call.facts
    assert facts == {
        **{name: getattr(ours, name) for name in ("title", "user_id", "account_id", "agent_id")},
        **{"workspace": ours.workspace, "status": ours.status, "detail": ours.status_detail},
        **{"summary": ours.summary, "parent": None, "cloned_from": None},
        "metadata": ours.metadata,
        "labels": {(each.name, each.on) for each in ours.labels},
        "related": set(ours.related),
        "aliases": set(ours.aliases),
    }


def _require_same_steps(call: Session | SessionAt, found: independent_spaces.Spaces) -> None:
    used = [each for _, each in sorted(found["usage"].items())]
    records = call.usage("provider_turn").records
    assert [(each.sequence, each.event, each.branch) for each in records] == [
        (each.sequence, each.value.get("event"), each.value.get("branch", 0)) for each in used
    ]
    assert [each.counts["input_tokens"] for each in records] == [
        each.value["input_tokens"] for each in used
    ]
    runs = {
        key: (each.value["status"], each.value.get("started_us", each.recorded_us), each.sequence)
        for key, each in found["runs"].items()
    }
    assert {
        each.run_id: (each.status, each.started_us, each.version) for each in call.runs.list()
    } == runs
    assert all(
        ("owner" in each.value) is (each.value["status"] == "running")
        for each in found["runs"].values()
    )
    calls = {
        key: (
            each.value["name"],
            each.value["state"],
            each.value.get("opened_us", each.recorded_us),
        )
        for key, each in found["tool_calls"].items()
    }
    assert {
        each.id: (each.name, each.state, each.opened_us) for each in call.tool_calls.list()
    } == calls
    opened = [each.value.get("opened", each.sequence) for each in found["tool_calls"].values()]
    order = dict(zip(found["tool_calls"], opened, strict=True))
    assert [each.id for each in call.tool_calls.list()] == sorted(order, key=order.__getitem__)


@pytest.mark.parametrize("seed", range(3))
def test_spaces_are_read_from_the_document_alone(
    checked_store: Open, store_path: Path, seed: int
) -> None:
    with checked_store(store_path, snapshot_frequency=7) as store:
        make(store, seed)
    known = independent.Reader(store_path)
    with checked_store(store_path) as store:
        session = known.find("acme", "call")
        assert session is not None
        call = store.tenant("acme").session("call")
        for stop in range(1, len(session.records), 11):
            require_same(known, call.at(stop - 1), session.records[:stop])
        require_same(known, call, session.records)


@pytest.mark.parametrize("seed", range(3))
def test_spaces_of_a_purged_session(checked_store: Open, store_path: Path, seed: int) -> None:
    with checked_store(store_path, snapshot_frequency=7) as store:
        make(store, seed)
        call = store.tenant("acme").session("call")
        for first in (60, 120):
            call.purge(first).result()
        call.append({"n": "after"}).result()
        store.flush()
    known = independent.Reader(store_path)
    with checked_store(store_path) as store:
        session = known.find("acme", "call")
        assert session is not None
        require_same(known, store.tenant("acme").session("call"), session.records)


@pytest.mark.parametrize("purged", [False, True])
def test_rows_are_the_fold_of_the_sealed_events(
    checked_store: Open, store_path: Path, purged: bool
) -> None:
    with checked_store(store_path, snapshot_frequency=7) as store:
        make(store, 1)
        if purged:
            store.tenant("acme").session("call").purge(90).result()
            store.flush()
        with store._log.views.transaction() as tables:
            rows = [
                independent_spaces.row(key, value)
                for key, value in tables.rows("state")
                if key[8] in independent_spaces.PROJECTIONS
            ]
    session = independent.Reader(store_path).find("acme", "call")
    assert session is not None
    sealed = independent_spaces.spaces(
        session.records[: session.sealed - session.first], session.records
    )
    found: dict[str, dict[str, Any]] = {name: {} for name in sealed}
    for number, space, key, value in rows:
        assert number == session.number
        found[space][key] = value
    assert all(found.values())
    assert found == sealed
