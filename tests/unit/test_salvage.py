"""Salvage: whatever is damaged, all else comes out, and goes into a new store as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import Event, Lost, Store
from engine.export import event_to_line
from engine.salvage import MARK_KIND
from eventlog.errors import CorruptionError
from eventlog.hotlog import hot_table
from eventlog.keys import U64
from eventlog.limits import HOT_TABLE_POSITIONS
from eventlog.record import encode_record
from eventlog.rows import SessionRow
from tests import damaged_store
from tests.damaged_store import flipped, hot_row, put, rows

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def events(whole: Path) -> dict[tuple[str, str], list[Event]]:
    """What it holds."""
    with Store.open(whole, create=False, read_only=True) as store:
        return {
            (tenant, name): list(store.tenant(tenant).session(name).events())
            for tenant, name in damaged_store.SESSIONS
        }


def salvaged(path: Path) -> tuple[list[str], list[Lost]]:
    with Store.open(path, create=False, read_only=True) as store:
        found = list(store.salvage())
    return [each for each in found if isinstance(each, str)], [
        each for each in found if isinstance(each, Lost)
    ]


def segment_of(path: Path, number: int, place: int) -> tuple[str, bytes, bytes]:
    return [
        row for row in rows(path) if row[0] == "segment" and row[1].startswith(U64.pack(number))
    ][place]


def damage_segment(path: Path, number: int, place: int) -> None:
    table, key, value = segment_of(path, number, place)
    put(path, (table, key, flipped(value, 9)))


def damage_table(path: Path, *tables: str) -> None:
    put(path, *[(row[0], row[1], flipped(row[2])) for row in rows(path) if row[0] in tables])


def damage_hot(path: Path, from_last: int, *, header: bool = False) -> None:
    with Store.open(path, create=False, read_only=True) as store:
        position = store.last_position - from_last
    table, key, value = hot_row(path, position)
    put(path, (table, key, flipped(value, 9 if header else -1)))


def forge_hot(path: Path, from_last: int) -> None:
    """A body that is none, with a good checksum."""
    with Store.open(path, create=False, read_only=True) as store:
        position = store.last_position - from_last
    record = encode_record(position, session=4, sequence=2 - from_last, body=b"\xc0\x00")
    put(path, (hot_table(position), U64.pack(position), record))


LATE = ("acme", "late")
DAMAGES: list[Any] = [
    pytest.param(lambda p: None, {}, id="none"),
    pytest.param(lambda p: damage_segment(p, 1, 0), {("", "call-1"): (0, 23)}, id="first-segment"),
    pytest.param(lambda p: damage_segment(p, 3, 4), {("acme", "call-1"): (96, 119)}, id="segment"),
    pytest.param(
        lambda p: put(p, (*segment_of(p, 2, 1)[:2], None)), {("", "call-2"): (24, 47)}, id="gone"
    ),
    pytest.param(lambda p: damage_segment(p, 1, -1), {}, id="sealed-and-still-hot"),
    pytest.param(lambda p: damage_hot(p, 1), {LATE: (1, 1)}, id="hot"),
    pytest.param(lambda p: damage_hot(p, 0), {LATE: (2, 2)}, id="last-hot"),
    pytest.param(lambda p: damage_hot(p, 2), {LATE: (0, 0)}, id="first-hot"),
    pytest.param(lambda p: damage_hot(p, 60), {}, id="hot-and-sealed"),
    pytest.param(lambda p: forge_hot(p, 1), {LATE: (1, 1)}, id="forged"),
    pytest.param(lambda p: damage_hot(p, 1, header=True), {LATE: (1, 1)}, id="hot-header"),
    pytest.param(
        lambda p: damage_table(p, "name", "activity", "key", "id", "order", "tenant"),
        {},
        id="all-that-is-derived",
    ),
]


@pytest.mark.parametrize(("damage", "lost"), DAMAGES)
def test_all_that_is_whole_comes_out_and_goes_into_a_new_store(
    path: Path,
    tmp_path: Path,
    events: dict[tuple[str, str], list[Event]],
    damage: Damage,
    lost: dict[tuple[str, str], tuple[int, int]],
) -> None:
    """One bad record ended every export, whatever came after it."""
    damage(path)
    lines, losses = salvaged(path)
    named = [each for each in losses if each.session is not None]
    assert {(each.tenant, each.session): (each.first, each.last) for each in named} == lost
    with Store.open(tmp_path / "new") as new:
        new.load([json.loads(line) for line in lines])
        for (tenant, name), wanted in events.items():
            first, last = lost.get((tenant, name), (1, 0))
            session = new.tenant(tenant).session(name)
            found = list(session.events())
            assert [event.sequence for event in found] == [event.sequence for event in wanted]
            for got, was in zip(found, wanted, strict=True):
                if first <= got.sequence <= last:
                    assert got.kind == MARK_KIND and got.body["lost"]
                else:
                    assert event_to_line(got) == event_to_line(was)
            info = session.info()
            assert info is not None and info.user_id == (
                None if name == "late" else f"user of {name}"
            )
        assert new.check().ok
        again = new.load([json.loads(line) for line in lines])
        assert (again.loaded, again.skipped) == (0, len(lines))


def test_a_record_whose_owner_nobody_knows_is_told(path: Path) -> None:
    """Its session may seem to end before it."""
    damage_hot(path, 0, header=True)
    _, losses = salvaged(path)
    assert [(each.session, each.first == each.last) for each in losses] == [(None, True)]
    assert losses[0].error.where.startswith("log ")


def test_a_session_without_its_row_comes_under_another_name(
    path: Path, events: dict[tuple[str, str], list[Event]]
) -> None:
    """Its names stood in the row alone; no tenant gets to see what may be another's."""
    put(path, ("session", U64.pack(3), b"x" * 100))
    lines, losses = salvaged(path)
    assert losses == []
    found = [json.loads(line) for line in lines]
    bodies = [each["body"] for each in found if each.get("tenant") == "turnlog.damaged"]
    assert len(bodies) == len(events[("acme", "call-1")])
    assert {each["session"] for each in found if each.get("tenant") == "turnlog.damaged"} == {
        "session 3"
    }


def test_numbers_that_cannot_be_make_no_endless_export(path: Path) -> None:
    key = U64.pack(1)
    (value,) = [row[2] for row in rows(path) if row[:2] == ("session", key)]
    row = replace(SessionRow.decode(key, value), sealed=2**62, details=b"")
    put(path, ("session", key, row.encode(key)))
    lines, losses = salvaged(path)
    assert len(losses) == 1
    assert len(lines) < 3 * HOT_TABLE_POSITIONS


def test_only_a_tenant_or_a_session(path: Path) -> None:
    with Store.open(path, create=False, read_only=True) as store:
        assert len(list(store.salvage("acme", "late"))) == 3
        assert len(list(store.salvage(session="late"))) == 3
        assert list(store.salvage("nobody")) == []
        acme = [json.loads(each)["tenant"] for each in store.salvage("acme") if type(each) is str]
        assert set(acme) == {"acme"} and len(acme) > 3


def test_reading_stops_at_damage_and_goes_on_behind_it(path: Path) -> None:
    """The hint says how to save the rest."""
    damage_segment(path, 1, 1)
    with Store.open(path, create=False, read_only=True) as store:
        call = store.session("call-1")
        with pytest.raises(CorruptionError) as caught:
            call.history()
        assert "--skip-damaged" in caught.value.hint
        assert call.event(23).sequence == 23
        assert next(iter(call.events(first=48))).sequence == 48
        assert store.session("call-2").history()


def test_a_record_that_does_not_tell_its_session_ends_no_session_silently(tmp_path: Path) -> None:
    """Its session number is damaged: the session read as if its last event had never been."""
    with Store.open(tmp_path / "store") as store:
        for name in ("idle", "hurt", "hurt", "busy"):
            store.session(name).append({"of": name}).result(10)
        last = store.session("hurt").info()
        assert last is not None
    table, key, value = hot_row(tmp_path / "store", 3)
    put(tmp_path / "store", (table, key, flipped(value, 9)))
    with Store.open(tmp_path / "store", create=False, read_only=True) as store:
        assert store.session("busy").history() == [{"of": "busy"}]
        for name in ("hurt", "idle"):  # either may have had it
            call = store.session(name)
            with pytest.raises(CorruptionError, match="log 3"):
                call.history()
            with pytest.raises(CorruptionError, match="log 3"):
                call.info()
            assert call.exists
            walk = iter(call.events())
            assert next(walk).body == {"of": name}
            with pytest.raises(CorruptionError, match="log 3"):
                next(walk)
        assert store.session("hurt").event(0).body == {"of": "hurt"}
        assert [info.name for info in store.sessions(1).sessions] == ["busy"]
        with pytest.raises(CorruptionError, match="log 3"):
            store.sessions()
    lines, losses = salvaged(tmp_path / "store")
    assert len(losses) == 1 and len(lines) >= 3


def test_an_event_that_is_missing_between_two_is_missed_in_the_counts(tmp_path: Path) -> None:
    """Once the session went on, the message that did not tell its session was just not counted."""
    with Store.open(tmp_path / "store") as store:
        for number in range(3):
            store.session("hurt").append({"n": number}).result(10)
        store.session("other").append({"n": 0}).result(10)
    table, key, value = hot_row(tmp_path / "store", 2)
    put(tmp_path / "store", (table, key, flipped(value, 9)))
    with Store.open(tmp_path / "store", create=False, read_only=True) as store:
        for ask in (store.session("hurt").info, lambda: store.session("hurt").head, store.sessions):
            with pytest.raises(CorruptionError, match="log 3"):
                ask()
        other = store.session("other").info()
        assert other is not None and other.message_count == 1
        assert [info.name for info in store.sessions(1).sessions] == ["other"]


def test_the_event_that_create_wrote_is_lost(tmp_path: Path) -> None:
    """It is nobody's parent, so the mark must not be either."""
    with Store.open(tmp_path / "store") as store:
        call = store.session("call", title="Mine")
        call.create().result(10)
        call.append({"role": "user", "content": "first"}).result(10)
    table, key, value = hot_row(tmp_path / "store", 1)
    put(tmp_path / "store", (table, key, flipped(value)))
    lines, losses = salvaged(tmp_path / "store")
    assert [(each.first, each.last) for each in losses] == [(0, 0)]
    found = [json.loads(line) for line in lines]
    assert [(each["kind"], each.get("parent")) for each in found] == [
        ("open", None),
        ("message", None),
    ]
    assert found[0]["opening"] == {"title": "Mine"}
    with Store.open(tmp_path / "new") as new:
        assert new.load(found).loaded == 2
        assert new.session("call").history() == [{"role": "user", "content": "first"}]


def test_what_is_written_meanwhile_is_not_part_of_it(tmp_path: Path) -> None:
    """Neither what is sealed nor what is hot."""
    with Store.open(tmp_path / "store", snapshot_frequency=2) as store:
        calls = [store.session(name) for name in ("a", "b")]
        for call in calls:
            call.append_many([{"n": n} for n in range(3)]).result(10)
        walk = store.salvage()
        found = [next(walk)]
        for call in calls:
            call.append_many([{"n": n} for n in range(3, 9)]).result(10)
        found += walk
        assert [json.loads(str(each))["sequence"] for each in found] == [0, 1, 2] * 2
