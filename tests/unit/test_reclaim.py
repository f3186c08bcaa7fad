"""What removals leave behind goes in slices, whatever is damaged, and by whoever comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine import Session, Store
from engine.drafting import draft_control
from eventlog import composing, limits, reclaim
from eventlog.errors import CorruptionError, TurnlogError
from eventlog.keys import U64
from eventlog.record import TOMBSTONE
from eventlog.removal import Removals
from eventlog.rows import CommitRecord
from eventlog.tables import WriteTables
from tests.model.staging import run_script

SECRET = "kanarienvogel-0815"


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@contextmanager
def nothing_reclaimed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(composing.reclaim, "go_on", lambda *_, **__: Removals())
        yield


class Spoil:
    """A task that flips a bit of the first row whose key is wanted."""

    def __init__(self, table: str, wanted: Callable[[bytes], bool]) -> None:
        self.done = False
        self._table = table
        self._wanted = wanted

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord:
        key, value = next(item for item in tables.rows(self._table) if self._wanted(item[0]))
        spoilt = value[:-1] + bytes([value[-1] ^ 1])
        tables.transaction.put(key, spoilt, db=tables.tables[self._table])
        self.done = True
        return record


def spoil(store: Store, table: str, wanted: Callable[[bytes], bool] = lambda _: True) -> None:
    """Damage a row."""
    store._log.writer.run(Spoil(table, wanted))
    store._log.cache.clear()


def is_blob(key: bytes) -> bool:
    return key[:8] != bytes(8)


@pytest.mark.parametrize("what", ["blob", "pending", "removal", "session", "segment"])
@pytest.mark.parametrize("how", ["delete", "erase", "purge"])
def test_damage_that_a_removal_meets_is_its_own(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, how: str
) -> None:
    """One damaged row made every append of every session fail, for ever, in every process."""
    with Store.open(store_path, snapshot_frequency=4, dictionaries=False) as store:
        blob = store.blobs.put(b"y" * 9_000)
        session, other = store.session("a"), store.session("b")
        for number in range(40):
            session.append(said(f"{number}"), blobs=[blob] if number == 3 else None).result()
        other.append(said("x")).result()
        store.flush()
        store.blobs.put(b"pending")
        if what == "blob":
            spoil(store, "blob", is_blob)
        elif what == "pending":
            spoil(store, "blob", lambda key: not is_blob(key))
        elif what == "segment":
            spoil(store, "segment", lambda key: key[:8] == U64.pack(1))
        with nothing_reclaimed(monkeypatch):
            try:
                if how == "purge":
                    session.purge(30).result()
                else:
                    session.delete().result()
            except CorruptionError:
                assert (what, how) == ("segment", "purge")
            if what in ("removal", "session"):
                spoil(store, what, lambda key: key == U64.pack(1))
        store._log.writer.composer.removals_pending = True
        acks = [other.append(said(f"{number}")) for number in range(3)]
        for ack in acks:
            ack.result(30)
        store.flush(30)
        assert len(other.history()) == 4
    with Store.open(store_path) as store:
        store.session("b").append(said("again")).result(30)
        store.flush(30)
        if what == "removal":
            assert any("cannot be removed" in each for each in store.health()["problems"])
        assert len(store.session("b").history()) == 5


def test_a_purge_that_meets_damage_is_refused_without_its_batch(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(store_path, snapshot_frequency=4, dictionaries=False) as store:
        session, other = store.session("a"), store.session("b")
        session.append_many([said("x")] * 40).result()
        store.flush()
        asked: list[Callable[[], Any]] = []
        remove = Session._remove
        with monkeypatch.context() as patched:
            patched.setattr(
                Session,
                "_remove",
                lambda *given, **options: asked.append(partial(remove, *given, **options)),
            )
            session.purge(7)
        with store._log.views.transaction() as tables:
            assert len(list(tables.rows("segment"))) >= 1
        spoil(store, "segment")
        before = [other.append(said("1")), other.append(said("2"))]
        with pytest.raises(CorruptionError):
            session.purge(7)  # reads what the head is, or else the writer meets the damage:
        refused = asked[0]()
        after = other.append(said("3"))
        with pytest.raises(CorruptionError):
            refused.result(30)
        for ack in (*before, after):
            ack.result(30)
        assert session.info() is not None


def test_one_commit_does_a_bounded_part(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand erasures beside a long hot log were one commit of three seconds."""
    store = checked_store(snapshot_frequency=4)
    for number in range(300):
        store.session(f"s{number}").append_many([said(f"{number}")] * 3)
    store.session("filler").append_many([said("f")] * 3_000).result()
    monkeypatch.setattr(reclaim, "COMMIT_REMOVED_MAX", 100)
    monkeypatch.setattr(reclaim, "SCAN_MAX", 500)
    spent: list[int] = []
    put = reclaim.void_record

    def counted(*args: Any) -> bytes:
        spent[-1] += 1
        return put(*args)

    real = reclaim.go_on

    def go_on(*args: Any, **kwargs: Any) -> Removals:
        spent.append(0)
        return real(*args, **kwargs)

    monkeypatch.setattr(reclaim, "void_record", counted)
    monkeypatch.setattr(composing.reclaim, "go_on", go_on)
    tombstone = (draft_control(TOMBSTONE),)
    acks = [store.session(f"s{number}")._remove(tombstone, _erasing()) for number in range(300)]
    for ack in acks:
        ack.result(30)
    store.flush()
    assert sum(spent) >= 900
    assert max(spent) <= 100
    assert len(spent) >= 9


def _erasing() -> Any:
    from eventlog.ack import Removal

    return Removal(is_erased=True)


def test_blobs_of_many_events_are_given_back_in_slices(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = checked_store(snapshot_frequency=4)
    blobs = [store.blobs.put(f"{number}".encode() * 100) for number in range(20)]
    session = store.session("a")
    for _ in range(10):
        session.append_many([said("x")] * 60, blobs=[blobs] * 60).result()
    store.flush()
    released: list[int] = []
    real = reclaim.release

    def release(tables: Any, number: int, addresses: list[bytes], *args: Any, **kw: Any) -> None:
        released.append(len(addresses))
        real(tables, number, addresses, *args, **kw)

    monkeypatch.setattr(reclaim, "release", release)
    session.delete().result()
    store.flush()
    assert sum(released) == 600 * 20
    most = limits.COMMIT_REMOVED_MAX + 20 * limits.SEGMENT_EVENTS_MAX
    assert max(released) <= most
    assert store.stats()["blobs"]["references"] == 0


KILLED = f"""
import os, signal, sys
from engine import Store
from eventlog import composing
from eventlog.removal import Removals
store = Store.open(sys.argv[1], snapshot_frequency=4)
session = store.session("a")
for number in range(50):
    session.append({{"role": "user", "content": "{SECRET}"}}).result()
blob = store.blobs.put(b"{SECRET}" * 300_000)
session.append({{"role": "user", "content": "x"}}, blobs=[blob]).result()
store.session("b").append({{"role": "user", "content": "stays"}}).result()
store.flush()
session.append({{"role": "user", "content": "{SECRET}"}}).result()
composing.reclaim.go_on = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
session.erase()
"""


@pytest.mark.parametrize("finish", ["vacuum", "flush", "close"])
def test_an_erasure_that_was_killed_is_finished(store_path: Path, finish: str) -> None:
    """It stayed undone without another append, and vacuum kept its content."""
    run_script(KILLED, store_path, code=-9)
    if finish != "vacuum":
        with Store.open(store_path) as store:
            assert not store.session("a").exists
            if finish == "flush":
                store.flush()
                with store._log.views.transaction() as tables:
                    assert list(tables.rows("removal")) == []
        with Store.open(store_path) as store, store._log.views.transaction() as tables:
            assert list(tables.rows("removal")) == []
    Store.vacuum(store_path)
    with Store.open(store_path) as store:
        assert store.check().ok
        assert store.session("b").history() == [said("stays")]
        with store._log.views.transaction() as tables:
            assert list(tables.rows("removal")) == []
            assert list(tables.rows("chunk")) == []
            for name in tables.tables:
                for key, value in tables.rows(name):
                    assert SECRET.encode() not in key + value, name


def test_vacuum_says_what_it_cannot_remove(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(store_path, snapshot_frequency=4) as store:
        store.session("a").append_many([said("x")] * 40).result()
        store.flush()
        with nothing_reclaimed(monkeypatch):
            store.session("a").delete().result()
            spoil(store, "removal")
            store.close()
    with pytest.raises(TurnlogError, match="cannot be removed"):
        Store.vacuum(store_path)
