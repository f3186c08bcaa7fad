"""A damaged key hides its row; a lookup that misses says so instead of "there is none"."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest

from engine import Store
from eventlog.absent import require_absent
from eventlog.errors import CorruptionError, StoreUnavailableError
from eventlog.raw import DATA_FILE
from eventlog.strays import is_proven
from eventlog.writer import _as_ours
from tests.damaged_store import Row, flipped, hot_row, put, rows
from tests.model.staging import HANG_S


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def flip_key(path: Path, row: Row, bit: int) -> None:
    """Flip a bit of a row's key where it lies in the data file."""
    data = bytearray((path / DATA_FILE).read_bytes())
    _, key, value = row
    found = [place for place in range(len(data)) if data.startswith(key + value, place)]
    assert found
    for place in found:  # older pages may hold it too
        data[place + bit // 8] ^= 1 << bit % 8
    (path / DATA_FILE).write_bytes(data)


@pytest.fixture
def made(store_path: Path) -> Path:
    """Sessions with sealed keys, and a blob."""
    with Store.open(store_path, snapshot_frequency=2) as store:
        for number in range(9):
            session = store.session(f"s{number}")
            for place in range(4):
                session.append(said("x"), idempotency_key=f"k{place}").result(HANG_S)
        blob = store.blobs.put(bytes(range(256)) * 20)
        store.session("s0").append(said("look"), blobs=[blob]).result(HANG_S)
        store.flush()
    return store_path


def row_of(path: Path, table: str, key: bytes) -> Row:
    return next(row for row in rows(path) if row[0] == table and row[1] == key)


@pytest.mark.parametrize("bit", range(0, 128, 5))
def test_a_session_whose_name_is_hidden_is_not_one_that_is_not_there(made: Path, bit: int) -> None:
    """A flipped bit in a key of the table of names made ``info`` of a session whose events were cut
    give None, and the next append began a second session of that name.
    """
    names = [row for row in rows(made) if row[0] == "name" and row[2][8:] == (4).to_bytes(8, "big")]
    flip_key(made, names[0], bit)
    with Store.open(made) as store:
        with store._log.views.transaction() as tables:
            with pytest.raises(CorruptionError, match=r"^name "):
                tables.find_session(("", "s3"))
            assert tables.find_session(("", "s4")) is not None
        assert not store.check().ok


@pytest.mark.parametrize("bit", range(64, 192, 9))
def test_a_hidden_key_is_not_forgotten(made: Path, bit: int) -> None:
    """The same append was taken twice when a bit of its key's row was flipped."""
    keys = [row for row in rows(made) if row[0] == "key" and row[1][:8] == (5).to_bytes(8, "big")]
    assert keys
    flip_key(made, keys[0], bit)
    with Store.open(made) as store:
        known = 0
        for place in range(4):
            try:
                ack = store.session("s4").append(said("x"), idempotency_key=f"k{place}")
                assert ack.result(HANG_S).already
                known += 1
            except CorruptionError:
                pass
        assert known == 3
        assert len(store.session("s4").history()) == 4


@pytest.mark.parametrize("bit", range(64, 192, 17))
def test_a_hidden_blob_is_not_one_that_is_not_there(made: Path, bit: int) -> None:
    """A blob that an event names was said not to exist, and could be put beside itself."""
    (blob,) = [row for row in rows(made) if row[0] == "blob"]
    flip_key(made, blob, bit)
    with Store.open(made) as store, pytest.raises(CorruptionError):
        store.blobs.get(blob[1][8:])


@pytest.mark.parametrize("bit", [*range(0, 64, 3), *range(64, 72), *range(72, 200, 7)])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_hidden_variable_is_not_one_that_is_not_there(
    store_path: Path, which: int, bit: int
) -> None:
    """A flipped bit in the key of a variable's row put the row outside its session's, where reading
    the state stopped: the state was told without it, and without all that came after it.
    """
    with Store.open(store_path, snapshot_frequency=2) as store:
        for number in range(3):
            call = store.session(f"s{number}")
            call.update_state({f"v{place}": place for place in range(5)}).result(HANG_S)
            call.append_many([said("x")] * 3).result(HANG_S)
        store.flush()
    state = [row for row in rows(store_path) if row[0] == "state" and row[1][7] == 2]
    assert len(state) == 5
    flip_key(store_path, state[which], bit)
    with Store.open(store_path, create=False) as store:
        with pytest.raises(CorruptionError):
            print(store.session("s1").state)
        assert not store.check().ok


def test_a_session_whose_row_is_damaged_is_missed_in_listings(store_path: Path) -> None:
    """It was left out of ``sessions()`` without a word while all its events were hot."""
    with Store.open(store_path) as store:
        for name in ("a", "b", "c"):
            store.session(name).append(said(name)).result(HANG_S)
    table, key, value = row_of(store_path, "session", (2).to_bytes(8, "big"))
    put(store_path, (table, key, flipped(value)))
    with Store.open(store_path) as store:
        with pytest.raises(CorruptionError, match="session"):
            store.sessions()
        assert [info.name for info in store.sessions(limit=1).sessions] == ["c"]


def test_only_the_rows_beside_a_key_are_looked_at(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "x"), max_dbs=1) as environment:
        db = environment.open_db(b"t")
        with environment.begin(write=True) as transaction:
            require_absent(transaction, db, "t", b"a")
            for number in range(5):
                transaction.put(bytes([10 * number]), bytes(8) + b"wrong", db=db)
            for key in (bytes(1), bytes([5]), bytes([50])):
                with pytest.raises(CorruptionError, match=r"^t [0-9a-f]{2}: checksum"):
                    require_absent(transaction, db, "t", key)


def test_a_damaged_copy_of_a_sealed_event_is_nobodys_next_event(made: Path) -> None:
    """A hot record that failed its checksum might have been the next event of any session, so none
    could be read; but where a segment has the event at that position, its header is right.
    """
    with Store.open(made) as store:
        with store._log.views.transaction() as tables:
            row = tables.load_row(3)
            event = tables.read_event(3, row.sealed - 1, store._log.cache)
        assert event is not None and row.sealed > 1
        names = [info.name for info in store.sessions().sessions]
        histories = [store.session(name).history() for name in names]
    put(made, _damaged(hot_row(made, event.position)))
    with Store.open(made, read_only=True) as store:
        assert [info.name for info in store.sessions().sessions] == names
        assert [store.session(name).history() for name in names] == histories
        assert not store.check().ok


def _damaged(row: Row) -> Row:
    table, key, value = row
    return table, key, flipped(value)


@pytest.mark.parametrize("how", ["erase", "delete", "purge"])
@pytest.mark.parametrize("place", [8, 16, 30, 70])
def test_damage_of_what_is_void_is_nobodys_next_event(
    store_path: Path, how: str, place: int
) -> None:
    """The same for events that no segment has: those beside a damaged one show whose it is."""
    with Store.open(store_path) as store:
        for name in ("a", "b", "c"):
            for number in range(5):
                store.session(name).append(said(f"{name}{number}")).result(HANG_S)
        session = store.session("b")
        if how == "erase":
            session.erase(HANG_S)
        elif how == "delete":
            session.delete().result(HANG_S)
        else:
            session.purge(4).result(HANG_S)
        histories = [store.session(name).history() for name in ("a", "c")]
    table, key, value = hot_row(store_path, 7)
    put(store_path, (table, key, flipped(value, place)))
    with Store.open(store_path, read_only=True) as store:
        for name, history in zip(("a", "c"), histories, strict=True):
            session = store.session(name)
            if place in (8, 16):  # its session number or sequence: nobody knows whose it was
                continue
            assert session.history() == history
            assert [event.body for event in session.events()] == history
            assert session.info() is not None
        assert not store.check().ok


def test_what_proves_whose_a_record_is() -> None:
    hot = [SimpleNamespace(number=number) for number in (1, 2, 0, 1, 2, 1, 0)]
    sequences = [4, 7, 0, 5, 9, 7, 0]
    assert is_proven(hot, sequences, 2, 2, 8)
    assert not is_proven(hot, sequences, 2, 1, 8)  # 5 is there
    assert not is_proven(hot, sequences, 2, 2, 9)
    assert not is_proven(hot, sequences, 6, 1, 8)  # it may be another session's last
    assert not is_proven(hot, sequences, 0, 1, 4)  # what was before it was cut
    assert not is_proven(hot, sequences, 2, 3, 0)


def test_an_error_that_the_binding_set_beside_a_result_is_still_lmdbs(tmp_path: Path) -> None:
    """Deleting a row beside a damaged page was "not written: SystemError", which helps nobody."""
    error = SystemError("returned a result with an exception set")
    error.__cause__ = lmdb.CorruptedError("mdb_cursor_get: MDB_CORRUPTED")
    assert isinstance(_as_ours(error, tmp_path), CorruptionError)
    error.__cause__ = None
    assert isinstance(_as_ours(error, tmp_path), StoreUnavailableError)
