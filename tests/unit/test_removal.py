"""Deleting and erasing sessions, and what readers see of it."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lmdb.verify import verify as verify_structure

from engine import Store
from eventlog import reclaim
from eventlog.errors import (
    QuotaExceededError,
    SessionGoneError,
    SessionNotFoundError,
    StorageFullError,
)
from eventlog.keys import U64
from eventlog.limits import HOT_TABLE_POSITIONS
from eventlog.raw import DATA_FILE
from eventlog.removal import _shorten
from eventlog.rows import CommitRecord
from eventlog.seams import Files
from eventlog.tables import WriteTables

SECRET = "kanarienvogel-4711"


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def fill(store: Store, positions: int) -> None:
    """Appends that seal and cut what is before them."""
    for number in range(positions // 1_024):
        store.session(f"filler-{number}").append_many([said("x")] * 1_024).result()
    store.flush()


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
def test_a_deleted_session_is_gone_at_once(store: Store, sealed: bool) -> None:
    session = store.session("a", title="old")
    session.append_many([said("1"), said("2")], idempotency_key="k", ids=["i", "j"]).result()
    if sealed:
        session.append_many([said("x")] * 30).result()
        store.flush()
    store.session("b").append(said("other")).result()
    before = store.last_position
    ack = session.delete().result()
    assert ack.position == before + 1
    assert not session.exists
    assert session.info() is None
    assert session.history() == session.history(5) == []
    assert list(session.events()) == []
    assert [info.name for info in store.sessions().sessions] == ["b"]
    assert [(event.session, event.kind) for event in store.read()] == [
        ("b", "message"),
        ("", "tombstone"),
    ]
    every = list(store.read(voids=True))
    assert [event.position for event in every] == list(range(1, store.last_position + 1))
    assert {event.kind for event in every[: before - 1]} == {"void"}
    assert every[0].body is None
    assert store.stats()["sessions"] == 1


def test_the_name_and_the_ids_are_free_again(store: Store) -> None:
    session = store.session("a", title="old", user_id="u")
    first = session.append(said("1"), idempotency_key="k", id="i").result()
    session.delete().result()
    again = store.session("a", title="new").append(said("2"), idempotency_key="k", id="i").result()
    assert not again.already
    assert (again.first, again.position) == (0, first.position + 2)
    assert again.session_number > first.session_number
    info = session.info()
    assert info is not None and (info.title, info.user_id) == ("new", None)
    assert session.history() == [said("2")]
    store.flush()


def test_there_must_be_a_session_to_delete(store: Store) -> None:
    with pytest.raises(SessionNotFoundError):
        store.session("a").delete().result()
    session = store.session("a")
    session.append(said("1")).result()
    session.delete().result()
    with pytest.raises(SessionNotFoundError):
        session.delete().result()


def test_appends_and_deletes_take_their_turns(store: Store) -> None:
    """Accepted before: in the session that is deleted. Accepted after: in a new one."""
    session = store.session("a")
    acks = []
    for round_ in range(20):
        acks += [session.append(said(f"{round_}-{place}")) for place in range(3)]
        acks.append(session.delete())
    last = session.append(said("last")).result()
    for ack in acks:
        ack.result()
    numbers = [ack.session_number for ack in acks]
    assert numbers == [1 + place // 4 for place in range(80)]
    assert [ack.last for ack in acks] == [0, 1, 2, 3] * 20
    assert (last.session_number, last.first) == (21, 0)
    assert session.history() == [said("last")]


def test_many_sessions_are_deleted_in_few_commits(store: Store) -> None:
    sessions = [store.session(f"s{number}") for number in range(200)]
    for ack in [session.append(said("x")) for session in sessions]:
        ack.result()
    before = store.health()["commits"]
    for ack in [session.delete() for session in sessions]:
        ack.result()
    assert store.health()["commits"] - before <= 40
    store.flush()
    assert store.sessions().sessions == []


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
def test_all_of_many_removals_come_to_their_end(
    store: Store, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    """One of a session without keys or segments deletes no row but its own."""
    monkeypatch.setattr(reclaim, "COMMIT_REMOVED_MAX", 8)
    sessions = [store.session(f"s{number}") for number in range(100)]
    for session in sessions:
        session.append_many([said("x")] * (40 if sealed and session is sessions[-1] else 1))
    store.flush()
    for ack in [session.delete() for session in sessions]:
        ack.result()
    store.flush()
    with store._log.views.transaction() as tables:
        assert list(tables.rows("removal")) == []


def test_an_iterator_over_a_deleted_session_gives_its_page_and_says_so(store: Store) -> None:
    session = store.session("a")
    session.append_many([said(str(place)) for place in range(600)]).result()
    events = iter(session.events())
    assert next(events).sequence == 0
    session.delete().result()
    assert [next(events).sequence for _ in range(255)] == list(range(1, 256))  # the page it had
    with pytest.raises(SessionGoneError):
        next(events)
    events = iter(session.events())
    assert list(events) == []
    session.append(said("again")).result()
    reader = iter(session.events())
    assert next(reader).body == said("again")


def test_an_iterator_says_when_the_session_was_made_anew(store: Store) -> None:
    session = store.session("a")
    session.append_many([said(str(place)) for place in range(600)]).result()
    events = iter(session.events())
    next(events)
    session.delete().result()
    session.append_many([said("new")] * 600).result()
    with pytest.raises(SessionGoneError):
        list(events)


@pytest.mark.parametrize("cut", [False, True], ids=["hot", "cut"])
def test_space_is_given_back(checked_store: Callable[..., Store], cut: bool) -> None:
    store = checked_store(snapshot_frequency=4)
    session = store.session("a")
    for number in range(50):
        session.append_many([said(f"{number} {SECRET}")] * 10, idempotency_key=f"{number}").result()
    store.flush()
    if cut:
        fill(store, 2 * HOT_TABLE_POSITIONS)
    session.delete().result()
    store.flush()
    with store._log.views.transaction() as tables:
        assert list(tables.rows("removal")) == []
        assert list(tables.rows("key")) == []
        number = (1).to_bytes(8, "big")
        assert len(list(tables.rows("segment", number))) <= 1  # the tombstone


def live_bytes(store: Store) -> bytes:
    with store._log.views.transaction() as tables:
        found = []
        for name in tables.tables:
            for key, value in tables.rows(name):
                found += [key, value]
        return b"\n".join(found)


@pytest.mark.parametrize("where", ["loose", "sealed", "cut", "mixed"])
def test_nothing_of_an_erased_session_is_live(
    checked_store: Callable[..., Store], where: str
) -> None:
    store = checked_store(snapshot_frequency=4)
    acme = store.tenant("acme")
    session = acme.session(f"call {SECRET}", title=SECRET, user_id=SECRET, metadata={"a": SECRET})
    for number in range(1 if where == "loose" else 8):
        session.append(
            said(f"{number} {SECRET}"),
            id=f"{SECRET}-{number}",
            idempotency_key=f"{SECRET}-{number}",
            metadata={"b": SECRET},
            run_id=SECRET,
            turn_id=SECRET,
        ).result()
    other = acme.session("other")
    other.append(said("stays")).result()
    if where != "loose":
        store.flush()
    if where == "cut":
        fill(store, 2 * HOT_TABLE_POSITIONS)
    if where == "mixed":
        session.append(said(SECRET)).result()
    assert SECRET.encode() in live_bytes(store) or where == "cut"
    before = store.last_position
    receipt = session.erase(timeout=60)
    assert (receipt.tenant, receipt.position) == ("acme", before + 1)
    assert (receipt.is_live, receipt.is_in_file) == (False, True)
    assert "backups" in receipt.backups
    live = live_bytes(store)
    assert SECRET.encode() not in live
    assert store.check().ok, store.check().findings
    assert other.history() == [said("stays")]
    positions = [event.position for event in store.read(voids=True)]
    assert positions == list(range(1, store.last_position + 1))
    again = session.append(said("new")).result()
    assert again.first == 0
    fill(store, 2 * HOT_TABLE_POSITIONS)
    assert store.check().ok, store.check().findings


def test_a_follower_reads_through_the_voids(store: Store) -> None:
    for number in range(10):
        store.session(f"s{number}").append_many([said(f"{number}")] * 10).result()
    seen: list[int] = []
    follower = store.subscribe(after=0)

    def follow() -> None:
        for event in follower:
            seen.append(event.position)
            if event.kind == "message" and event.body == said("end"):
                return

    for number in range(0, 10, 2):
        store.session(f"s{number}").erase(timeout=60)
    thread = threading.Thread(target=follow)
    thread.start()
    store.session("s1").append(said("end")).result()
    thread.join(30)
    assert not thread.is_alive()
    assert seen == sorted(seen)
    assert seen[-1] == store.last_position
    assert len(seen) == 50 + 5 + 1


def test_a_removal_goes_on_after_a_restart(
    checked_store: Callable[..., Store], store_path: Path
) -> None:
    store = checked_store(snapshot_frequency=4)
    session = store.session("a")
    for _ in range(400):
        session.append_many([said(SECRET)] * 4).result()
    store.flush()
    session.delete().result()
    store.close()
    store = checked_store()
    store.session("b").append(said("x")).result()
    store.flush()
    with store._log.views.transaction() as tables:
        assert list(tables.rows("removal")) == []


def test_another_process_sees_it(checked_store: Callable[..., Store], store_path: Path) -> None:
    """Two indexes over one store: the one that did not delete reads and appends."""
    from tests.unit.test_store_sessions import __name__ as _  # noqa: F401

    store = checked_store()
    session = store.session("a")
    session.append(said("1")).result()
    store.session("b").append(said("2")).result()
    with store._log.index.lock:
        pass
    session.delete().result()
    store._log.index.clear()  # as a process that begins to read only now
    assert [event.kind for event in store.read()] == ["message", "tombstone"]
    assert not session.exists
    assert session.append(said("3")).result().first == 0


@pytest.mark.parametrize("where", ["loose", "sealed"])
@pytest.mark.parametrize("how", ["delete", "erase"])
def test_what_removed_events_named_is_no_longer_named(
    checked_store: Callable[..., Store], where: str, how: str
) -> None:
    """A blob that another session names stays; one that only the erased one named goes."""
    store = checked_store(snapshot_frequency=4)
    shared = store.blobs.put(f"shared {SECRET}".encode() * 100)
    own = store.blobs.put(f"own {SECRET}".encode() * 400_000)
    session, other = store.session("a"), store.session("b")
    for number in range(6):
        session.append(said(f"{number}"), blobs=[own, shared]).result()
    other.append(said("other"), blobs=[shared]).result()
    if where == "sealed":
        store.flush()
    if how == "delete":
        session.delete().result()
        store.flush()
    else:
        session.erase(timeout=60)
    assert store.check().ok, store.check().findings
    usage = store.stats()["blobs"]
    assert usage["references"] == 1
    assert usage["count"] == (1 if how == "erase" else 2)
    assert store.blobs.get(shared.address) is not None
    assert (store.blobs.get(own.address) is None) is (how == "erase")
    if how == "erase":
        assert b"own " + SECRET.encode() not in live_bytes(store)
        with store._log.views.transaction() as tables:
            assert len(list(tables.rows("chunk"))) == 1


def test_a_store_at_its_quota_takes_deletions_and_goes_on_after_them(
    checked_store: Callable[..., Store],
) -> None:
    store = checked_store(quota_bytes=4 * 1024 * 1024, snapshot_frequency=4, dictionaries=False)
    names = []
    with pytest.raises(QuotaExceededError):
        for number in range(1_000):
            names.append(f"s{number}")
            store.session(names[-1]).append(said(os.urandom(20_000).hex())).result()
    assert not store.health()["ok"]
    written = names[:-1]
    for name in written[: len(written) // 2]:
        store.session(name).erase(timeout=60)
    store.session("more").append(said("again")).result()
    assert store.health()["ok"]
    kept = [info.name for info in store.sessions(limit=1_000).sessions]
    assert kept == ["more", *reversed(written[len(written) // 2 :])]


@pytest.mark.parametrize("size", [1_000, 8_000])
@pytest.mark.parametrize("how", ["delete", "purge", "erase", "delete before"])
def test_what_is_removed_at_the_quota_makes_room(
    checked_store: Callable[..., Store], how: str, size: int
) -> None:
    """Void hot records wait until their table is cut, for which there were no more appends. And
    where they were overwritten, small ones left as many pages, since LMDB merges none then."""
    quota_bytes = 3_000_000
    store = checked_store(quota_bytes=quota_bytes, dictionaries=False)
    kept = store.session("kept")
    kept.append(said("kept")).result()
    text = said(os.urandom(size).hex()[:size])
    sessions = [store.session(f"s{number}") for number in range(1 if how == "erase" else 10)]
    if how == "delete before":
        for session in sessions:
            session.append_many([text] * (200_000 // size)).result()
            session.delete().result()
        sessions = [kept]
    with pytest.raises(QuotaExceededError):
        for number in range(1_000):
            session = sessions[number % len(sessions)]
            session.append_many([text] * (50_000 // size)).result()
    for session in sessions:
        if how == "purge":
            session.purge(session.info().event_count).result()  # type: ignore[union-attr]
        elif how == "erase":
            session.erase(timeout=60)
        elif how == "delete":
            session.delete().result()
    assert store._log.wait_until(lambda: store.health()["ok"], 30)
    kept.append(said("again")).result()
    with store._log.views.transaction() as tables:
        used = store._log.environment.used_bytes(tables.transaction)
    assert used < quota_bytes / (1 if how == "delete before" else 2)
    told = [each["content"] for each in kept.history()]
    assert (told[0], told[-1]) == ("kept", "again")


def test_what_is_deleted_on_a_full_disk_makes_room(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the quota: nothing was appended any more, so that nothing was cut."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = checked_store(dictionaries=False)
    text = said(os.urandom(20_000).hex())
    for number in range(6):
        store.session(f"s{number}").append_many([text] * 50).result()
    monkeypatch.setattr(Files, "allocate", refuse)
    with pytest.raises(StorageFullError):
        for number in range(100):
            store.session(f"s{number % 6}").append_many([text] * 5).result()
    for number in range(6):
        store.session(f"s{number}").delete().result()
    assert store._log.wait_until(lambda: store.health()["ok"], 30)
    store.session("again").append(said("again")).result()


RELATED = ["a", "a:", "a:1", "a\x00b", "A", "a ", "../a", "a%", "é", "e\u0301", "😀", "a/b"]


@pytest.mark.parametrize("name", RELATED)
@pytest.mark.parametrize("how", ["delete", "erase"])
def test_names_that_resemble_each_other_are_not_removed_together(
    store: Store, name: str, how: str
) -> None:
    """A delete by prefix would take its neighbours along, and another tenant's namesake."""
    tenants = [store, store.tenant("a"), store.tenant("a:")]
    for tenant in tenants:
        for each in RELATED:
            tenant.session(each).append(said(each), id=each, idempotency_key=each).result()
    victim = store.tenant("a").session(name)
    if how == "erase":
        victim.erase(timeout=60)
    else:
        victim.delete().result()
    store.flush()
    for tenant in tenants:
        left = [each for each in RELATED if not (tenant.name == "a" and each == name)]
        listed = [info.name for info in tenant.sessions().sessions]
        assert sorted(listed) == sorted(left)
        for each in left:
            again = tenant.session(each).append(said(each), id=each, idempotency_key=each)
            assert again.result().already


def test_readers_that_are_left_standing_keep_nothing_from_being_used_again(
    checked_store: Callable[..., Store], store_path: Path
) -> None:
    """An iterator that nobody goes on with holds no page: the file does not grow because of it."""
    store = checked_store(snapshot_frequency=4, dictionaries=False)

    def churn(rounds: int) -> int:
        for _ in range(rounds):
            session = store.session("churn")
            session.append_many([said("x" * 2_000)] * 100).result()
            session.erase(timeout=60)
        return store._log.environment.last_page()

    store.session("kept").append_many([said("y" * 500)] * 2_000).result()
    settled = churn(20)
    readers = [iter(store.session("kept").events()), iter(store.read())]
    for reader in readers:
        next(reader)
    assert churn(20) < settled * 1.3
    assert len(list(readers[0])) == 1_999


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_what_is_left_beside_deleted_sessions_is_exported_and_loaded(
    checked_store: Callable[..., Store], tmp_path: Path, tenant: str
) -> None:
    store = checked_store(tmp_path / "one")
    for number in range(4):
        session = store.tenant(tenant if number % 2 else "").session(f"s{number}")
        session.append_many([said("a"), said("b")]).result()
    store.session("s0").delete().result()
    store.tenant(tenant).session("s1").erase()
    lines = list(store.export_lines(store.read()))
    assert {json.loads(line)["session"] for line in lines} == {"s2", "s3"}
    other = checked_store(tmp_path / "two")
    assert other.load(map(json.loads, lines)).loaded == 4
    assert list(other.export_lines(other.read())) == lines


class _Shrink:
    """A task that puts a segment again and then one without its first event in its place."""

    def __init__(self, number: int) -> None:
        self.done = False
        self._number = number

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord:
        rows = list(tables.rows("segment", U64.pack(self._number)))
        tables.put_segments(rows)
        _shorten(tables, self._number, 1, [])
        self.done = True
        return record


def test_a_segment_that_shrinks_in_the_transaction_that_wrote_it_is_no_damage(
    store_path: Path,
) -> None:
    """LMDB kept the smaller value in the pages of the larger one, and the walk over all pages that
    backups and ``verify=True`` make took these for damage: a store in use had no backup.
    """
    with Store.open(store_path, snapshot_frequency=2) as store:
        call = store.session("call")
        call.append_many([{"data": random.Random(1).randbytes(9_000)}, {"n": 1}]).result(60)
        store.flush()
        store._log.writer.run(_Shrink(1))
    found = verify_structure(str(store_path / DATA_FILE), subdir=False)  # type: ignore[no-untyped-call]
    assert not found
