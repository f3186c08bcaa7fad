"""Rebuilding what is derived: the same as before, from the log alone, while the old one serves."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lmdb
import pytest

from engine import Store
from eventlog import rebuild as rebuilding
from eventlog import roles
from eventlog.errors import CorruptionError, UsageError
from eventlog.failpoints import failpoints, raise_
from eventlog.idruns import IdRuns
from eventlog.limits import HOT_TABLE_POSITIONS
from eventlog.tables import ReadTables


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def contents(tables: ReadTables) -> dict[str, Mapping[bytes, Any]]:
    """What each derived table says; of id runs where each id leads, whatever run it is in."""
    record = tables.commit_record()
    found: dict[str, Mapping[bytes, Any]] = {
        role: dict(tables.rows(role)) for role in ("name", "key", "state", "session")
    }
    number = range(1, record.sessions_made + 1)
    found["activity"] = {  # replaced rows may be left in the old one
        key: value
        for key, value in tables.rows("activity")
        if int.from_bytes(value[8:], "big") in number
        and tables.load_row(int.from_bytes(value[8:], "big")).last_position
        == 2**64 - 1 - int.from_bytes(key[8:], "big")
    }
    runs = IdRuns(tables.tables["id"])
    found["id"] = {
        hashed: place
        for hashed, place in runs.entries(tables.transaction)
        if place.sequence >= tables.load_row(place.session_number).first
    }
    return found


def derived(store: Store) -> dict[str, Mapping[bytes, Any]]:
    with store._log.views.transaction() as tables:
        return contents(tables)


def fill(store: Store, seed: int = 1) -> None:
    """Sessions of two tenants, some deleted, with keys and ids, partly cut."""
    chance = random.Random(seed)
    for number in range(2 * HOT_TABLE_POSITIONS // 40):
        tenant = store.tenant("acme" if number % 3 else "")
        session = tenant.session(f"s{number % 60}")
        session.append_many(
            [said(f"{number}-{place}") for place in range(40)],
            ids=[f"i{number}-{place}" if place % 7 == 0 else None for place in range(40)],
            idempotency_key=f"k{number}",
        ).result()
        session.update_state(
            {f"v{number % 7}": {"n": number, "\udc00": b"x"}, "last": number},
            delete=[f"v{(number + 3) % 7}"],
        ).result()
        if chance.random() < 0.1:
            session.delete()
    store.flush()


@pytest.fixture
def filled(checked_store: Callable[..., Store]) -> Store:
    store = checked_store(snapshot_frequency=1, max_messages=50)
    fill(store)
    return store


def test_it_comes_out_the_same(filled: Store) -> None:
    before = derived(filled)
    assert all(before[role] for role in ("name", "key", "id", "activity"))
    seen: list[tuple[str, int, int]] = []
    report = filled.rebuild(progress=lambda *told: seen.append(told))
    assert derived(filled) == before
    assert (report.rows_changed, report.tables) == (0, roles.REBUILT)
    assert {role for role, _, _ in seen} == {"segment", "session", *roles.REBUILT}
    assert all(done <= count for _, done, count in seen)
    filled.rebuild()  # and back, into the databases that were there first
    assert derived(filled) == before
    assert filled.check().ok


@pytest.mark.parametrize("role", [*roles.REBUILT, "session"])
def test_what_was_dropped_is_made_again(
    role: str, checked_store: Callable[..., Store], store_path: Path
) -> None:
    store = checked_store(snapshot_frequency=1)
    fill(store)
    before = derived(store)
    store.close()
    environment = lmdb.open(str(store_path), max_dbs=64, map_size=1 << 30)
    handle = environment.open_db(role.encode(), create=False)
    with environment.begin(write=True) as transaction:
        record_db = environment.open_db(b"commit", txn=transaction, create=False)
        if role == "session":
            _spoil_rows(transaction, handle)
        else:
            transaction.drop(handle, delete=False)
        _sign(transaction, record_db)
    environment.close()
    store = checked_store()
    report = store.rebuild()
    assert derived(store) == before
    assert (report.rows_changed > 0) is (role == "session"), report


def _spoil_rows(transaction: Any, handle: Any) -> None:
    from eventlog.rows import SessionRow

    for key, value in list(transaction.cursor(handle)):
        row = SessionRow.decode(key, value)
        if row.is_gone or row.sealed < 9:
            continue
        row.messages, row.segments, row.head, row.keys = 0, 1, 7, 0
        transaction.put(key, row.encode(key), db=handle)


def _sign(transaction: Any, handle: Any) -> None:
    """The commit record must name the transaction that wrote last."""
    from dataclasses import replace

    from eventlog.rows import COMMIT_KEY, CommitRecord

    record = CommitRecord.decode(transaction.get(COMMIT_KEY, db=handle))
    record = replace(record, transaction=transaction.id())
    transaction.put(COMMIT_KEY, record.encode(), db=handle)


def test_appends_and_deletes_beside_it_are_in(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices of a few sessions, with sealing, cutting, deleting and new sessions between them."""
    monkeypatch.setattr(rebuilding, "STEP_SESSIONS_MAX", 3)
    monkeypatch.setattr(rebuilding, "STEP_BYTES_MAX", 20_000)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            session = filled.tenant("acme").session(f"s{number % 90}")
            session.append_many(
                [said(f"n{number}")] * 60,
                ids=[f"n{number}-{place}" for place in range(60)],
                idempotency_key=f"n{number}",
            ).result()
            if number % 11 == 0:
                session.delete().result()

    thread = threading.Thread(target=write)
    thread.start()
    filled.rebuild()
    stop.set()
    thread.join()
    filled.flush()
    before = derived(filled)
    filled.rebuild()
    assert derived(filled) == before


@pytest.mark.parametrize("name", ["rebuild.after_slice", "rebuild.before_swap"])
def test_one_that_was_stopped_goes_on(
    name: str, filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilding, "STEP_SESSIONS_MAX", 7)
    before = derived(filled)
    with failpoints({name: raise_(UsageError("stopped"))}), pytest.raises(UsageError):
        filled.rebuild()
    assert derived(filled) == before
    assert filled.check().ok
    filled.rebuild()
    assert derived(filled) == before


def _of_tenant(tables: ReadTables) -> int:
    return tables.find_tenant("acme") or 0


LOOKUPS: dict[str, Callable[[ReadTables], object]] = {
    "tenant": _of_tenant,
    "session": lambda tables: tables.find_session(("acme", "s")),
    "key": lambda tables: dict(tables.rows("key")),
    "activity": lambda tables: list(tables.activity(_of_tenant(tables), 2**63)),
    "state": lambda tables: dict(tables.rows("state")),
    "row": lambda tables: [tables.has_row("name", key) for key, _ in tables.rows("name")],
}


def test_who_did_not_read_the_commit_record_finds_what_serves(store: Store) -> None:
    """A rebuild changed databases, and whoever had not read the commit record read the spare one.

    So blobs could not be found any more, although nothing of them is rebuilt.
    """
    session = store.tenant("acme").session("s")
    session.append(said("hi"), idempotency_key="k", wait=10)
    session.update_state({"v": 1}).result()
    session.purge(2).result()  # what is purged counts as sealed

    def found(lookup: Callable[[ReadTables], object]) -> object:
        with store._log.views.transaction() as tables:
            return lookup(tables)

    before = {name: found(lookup) for name, lookup in LOOKUPS.items()}
    assert all(before.values()), before
    for _ in range(2):  # there, and back
        store.rebuild()
        assert {name: found(lookup) for name, lookup in LOOKUPS.items()} == before


def test_blobs_are_found_after_it(checked_store: Callable[..., Store]) -> None:
    store = checked_store()
    tenant = store.tenant("acme")
    blob = tenant.blobs.put(b"x" * 5_000)
    tenant.session("s").append(said("hi"), blobs=[blob]).result()
    for number in range(3):
        store.rebuild()
        assert tenant.blobs.get(blob) == blob
        assert tenant.blobs.read(blob) == b"x" * 5_000
        assert tenant.blobs.put(b"x" * 5_000) == blob
        other = tenant.blobs.put(b"y%d" % number)
        tenant.session("s").append(said("more"), blobs=[blob, other]).result()
        last = list(tenant.session("s").events())[-1]
        assert last.blobs == (blob.address, other.address)
    assert len(list(store.export_lines(tenant.session("s").events()))) >= 4


def test_words_that_cannot_be_are_damage() -> None:
    for word in (1, 0x0F, 6 << 56):
        with pytest.raises(CorruptionError):
            roles.serving(word, {})
    assert roles.serving(0, {"name": 1}) == {"name": 1}


def test_a_role_comes_back_to_its_own_database() -> None:
    tables = {role: place for place, role in enumerate(roles.ROLES)}
    word = roles.begin(0, "id")
    assert roles.rebuilding(word) == "id"
    assert roles.serving(word, tables) == tables
    word = roles.swap(word, "id")
    assert roles.rebuilding(word) is None
    assert roles.serving(word, tables) == {**tables, "id": 5, "spare": 2}
    assert roles.swap(roles.begin(word, "id"), "id") == 0


def test_contents_are_read_whatever_databases_serve(
    checked_store: Callable[..., Store], store_path: Path
) -> None:
    """The tenant was looked up in the database that had the names before, and had no content."""
    store = checked_store()
    acme = store.tenant("acme")
    blob = acme.blobs.put(b"content " * 1_000)
    acme.session("a").append(said("x"), blobs=[blob]).result()
    for _ in range(len(roles.ROLES)):  # each role has each database once
        store.rebuild()
        assert acme.blobs.get(blob) == blob
        assert acme.blobs.read(blob) == b"content " * 1_000
        [event] = acme.session("a").events()
        assert list(acme.blobs.of(event)) == [blob]
        assert acme.blobs.put(b"content " * 1_000) == blob
        assert store.tenants() == ["acme"]
        lines = list(store.export_lines(store.read()))
        assert len(lines) == 2
    store.close()
    store = checked_store()
    assert store.tenant("acme").blobs.read(blob) == b"content " * 1_000


def test_contents_are_found_after_the_names_changed_databases(
    checked_store: Callable[..., Store],
) -> None:
    """They were looked for without the commit record that tells where the names are: after one
    rebuild no tenant had any blob, and the next content was put for a tenant of the same name.
    """
    store = checked_store()
    blob = store.blobs.put(b"all of it " * 1_000)
    store.session("a").append(said("look"), blobs=[blob]).result()
    store.rebuild()
    with store._log.views.transaction() as tables:
        assert tables.commit_record().roles
    assert store.blobs.read(blob) == b"all of it " * 1_000
    assert store.blobs.put(b"all of it " * 1_000) == blob
    assert store.tenants() == [""]
    store.session("a").append(said("again"), blobs=[blob]).result()
    assert [store.blobs.read(each) for event in store.read() for each in event.blobs]
