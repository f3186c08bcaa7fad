"""Restoring: another store from a backup that nobody has to trust."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog import place
from eventlog.errors import (
    BusyError,
    CorruptionError,
    DamagedInputError,
    FormatVersionError,
    NotAStoreError,
    StorageFullError,
    StoreUnavailableError,
    TurnlogError,
    UsageError,
)
from eventlog.locks import LOCK_FILES
from eventlog.restore import restore
from eventlog.seams import Files
from tests.format.make_store import export

Opens = Callable[..., Store]


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A backup of a store with a row of every kind."""
    with Store.open(whole, create=False) as store:
        store.backup(tmp_path / "copy")
    return tmp_path / "copy"


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        each.name: each.read_bytes() if stat.S_ISREG(each.lstat().st_mode) else b""
        for each in folder.iterdir()
    }


def marker_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "turnlog.json").read_text())
    return found


def test_a_restored_store_holds_the_same_and_goes_on(
    copy: Path, whole: Path, tmp_path: Path
) -> None:
    before = content_of(copy)
    report = Store.restore(copy, tmp_path / "again", check=True)
    with Store.open(whole, create=False) as store:
        wanted = export(store)
    with Store.open(report.path, create=False) as store:
        assert store.check().ok
        assert export(store) == wanted
        assert store.last_position == report.position == len(wanted)
        again = store.session("call-1").append(
            {"role": "user", "content": "loose"}, idempotency_key="loose"
        )
        assert again.result(10).already
        store.session("call-1").append({"role": "user", "content": "new"}).result(10)
        store.flush()
        assert store.check().ok
    assert content_of(copy) == before


def test_it_is_another_store_one_epoch_later(copy: Path, whole: Path, tmp_path: Path) -> None:
    first = Store.restore(copy, tmp_path / "first")
    second = Store.restore(copy, tmp_path / "second")
    source = marker_of(whole)["store_id"]
    assert len({source, first.store_id, second.store_id}) == 3
    assert first.restored_from == second.restored_from == source
    marker = marker_of(tmp_path / "first")
    assert marker.pop("restored_us") > 1_700_000_000_000_000
    assert marker == {
        "format": "turnlog",
        "version": 2,
        "store_id": first.store_id,
        "restored_from": source,
        "restored_position": first.position,
        "epoch": 1,
    }
    with Store.open(tmp_path / "first", create=False) as store:
        store.backup(tmp_path / "copy of first")
    third = Store.restore(tmp_path / "copy of first", tmp_path / "third")
    assert (third.epoch, third.restored_from) == (2, first.store_id)


def test_what_was_acknowledged_after_the_backup_is_missed(store: Store, tmp_path: Path) -> None:
    """Row 84: whoever kept a later position must not take the old store for the newest."""
    store.session("a").append({"role": "user", "content": "kept"}).result()
    store.backup(tmp_path / "copy")
    later = store.session("a").append({"role": "user", "content": "lost"}).result()
    report = Store.restore(tmp_path / "copy", tmp_path / "again")
    with pytest.raises(CorruptionError, match="rolled back"):
        Store.open(tmp_path / "again", create=False, min_position=later.position)
    Store.open(tmp_path / "again", create=False, min_position=report.position).close()


def test_a_history_that_forked_is_told_from_the_same(store: Store, tmp_path: Path) -> None:
    """A restored backup that was appended to has the position that a caller kept, and opened with
    it. What is at that position is another event, and the caller was not told.
    """
    store.session("a").append({"role": "user", "content": "kept"}).result()
    store.backup(tmp_path / "copy")
    later = store.session("a").append({"role": "user", "content": "lost"}).result()
    report = Store.restore(tmp_path / "copy", tmp_path / "again")

    def opened(path: Path, position: int | None, store_id: str) -> None:
        Store.open(path, create=False, min_position=position, store_id=store_id).close()

    with Store.open(report.path, create=False) as again:
        assert again.store_id == report.store_id != store.store_id == report.restored_from
        again.session("a").append({"role": "user", "content": "another"}).result()
        assert again.last_position == later.position
        again.backup(tmp_path / "copy of again")
    Store.open(report.path, create=False, min_position=later.position).close()
    for position in (later.position, later.position + 1):
        with pytest.raises(CorruptionError, match=r"another event|rolled back"):
            opened(report.path, position, store.store_id)
    for fine in (None, 0, report.position):
        opened(report.path, fine, store.store_id)
    opened(report.path, later.position, report.store_id)
    opened(store.path, later.position, store.store_id)
    opened(tmp_path / "again", None, store.store_id)
    Store.vacuum(report.path)
    opened(report.path, later.position, report.store_id)
    far = Store.restore(tmp_path / "copy of again", tmp_path / "far")
    opened(far.path, later.position, report.store_id)
    for path, store_id in ((far.path, store.store_id), (store.path, report.store_id)):
        with pytest.raises(CorruptionError, match="is not the store"):
            opened(path, None, store_id)


def test_its_files_are_as_those_of_a_new_store(copy: Path, tmp_path: Path) -> None:
    for umask in (0o000, 0o077):
        before = os.umask(umask)
        try:
            Store.restore(copy, tmp_path / oct(umask))
        finally:
            os.umask(before)
        path = tmp_path / oct(umask)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o600}
        names = {"data.mdb", "lock.mdb", "turnlog.json", *LOCK_FILES}
        assert {each.name for each in path.iterdir()} == names
        lock = (path / "lock.mdb").stat()
        assert lock.st_blocks * 512 >= lock.st_size  # a full disk cannot make a reader die


@pytest.mark.parametrize("kind", ["live-store", "closed-store", "folder", "file", "empty-folder"])
def test_nothing_is_restored_over(
    copy: Path, tmp_path: Path, checked_store: Opens, kind: str
) -> None:
    target = tmp_path / "target"
    if kind.endswith("store"):
        store = checked_store(target)
        store.session("mine").append({"role": "user", "content": "mine"}).result()
        if kind == "closed-store":
            store.close()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        if kind == "folder":
            (target / "mine").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        Store.restore(copy, target)
    if kind.endswith("store"):
        assert content_of(target)["turnlog.json"] != content_of(copy)["turnlog.json"]
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith(".creating")] == []


def test_a_store_that_is_open_is_no_backup(checked_store: Opens, tmp_path: Path) -> None:
    """What is copied of it page by page while others write may be torn."""
    store = checked_store()
    store.session("a").append({"role": "user", "content": "x"}).result()
    with pytest.raises(BusyError, match="is open in a process") as caught:
        Store.restore(store.path, tmp_path / "again")
    assert "turnlog backup" in caught.value.hint
    store.close()
    report = Store.restore(store.path, tmp_path / "again")
    assert report.position == 1


def swap(folder: Path, kind: str, tmp_path: Path) -> None:
    """Make a backup into what somebody with bad intentions, or a bad disk, would give."""
    data, marker = folder / "data.mdb", folder / "turnlog.json"
    outside = tmp_path / "outside"
    name, _, how = kind.partition(" ")
    victim = {"data": data, "marker": marker}.get(name, data)
    if how == "link":
        shutil.copy(victim, outside)
        victim.unlink()
        victim.symlink_to(outside)
    elif how == "folder":
        victim.unlink()
        victim.mkdir()
    elif how == "pipe":
        victim.unlink()
        os.mkfifo(victim)
    elif how == "socket":
        victim.unlink()
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(victim))
    elif how == "missing":
        victim.unlink()
    elif how == "empty":
        victim.write_bytes(b"")
    elif how == "cut":
        os.truncate(victim, 20_480)
    elif how == "of another program":
        victim.write_bytes(b"SQLite format 3\0" * 1_000)
    elif how == "flipped":
        content = bytearray(victim.read_bytes())
        for offset in range(8_192, len(content), 64):
            content[offset] ^= 0xFF
        victim.write_bytes(content)
    elif how == "of an older commit":
        content = bytearray(victim.read_bytes())
        for start in (0, 4_096):
            content[start + 144] ^= 0x40  # the transaction
        victim.write_bytes(content)
    else:
        raise AssertionError(kind)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("data link", DamagedInputError),
        ("marker link", DamagedInputError),
        ("data folder", DamagedInputError),
        ("marker folder", DamagedInputError),
        ("data pipe", DamagedInputError),
        ("marker pipe", DamagedInputError),
        ("data socket", DamagedInputError),
        ("data missing", NotAStoreError),
        ("marker missing", NotAStoreError),
        ("data empty", CorruptionError),
        ("data cut", CorruptionError),
        ("data flipped", CorruptionError),
        ("data of an older commit", CorruptionError),
        ("data of another program", NotAStoreError),
        ("marker empty", CorruptionError),
        ("marker cut", CorruptionError),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_good_backup_is_refused_whole(
    copy: Path, tmp_path: Path, kind: str, error: type[TurnlogError], monkeypatch: Any
) -> None:
    monkeypatch.chdir(copy)
    swap(copy, kind, tmp_path)
    before = content_of(copy)
    with pytest.raises(error):
        Store.restore(copy, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    assert content_of(copy) == before
    assert [name for name in os.listdir(tmp_path) if name.endswith(".creating")] == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": place.FORMAT_VERSION + 1}, FormatVersionError),
        ({"version": "2"}, CorruptionError),
        ({"version": True}, CorruptionError),
        ({"format": "other"}, NotAStoreError),
        ({"store_id": "../../x", "epoch": -1}, None),
        ({"store_id": ["a"], "epoch": 2**80}, None),
        ({"store_id": None, "epoch": "1"}, None),
        ({"path": "/etc/passwd", "deep": {"a": [1] * 5_000}}, None),
    ],
    ids=str,
)
def test_nothing_strange_comes_out_of_a_marker(
    copy: Path, tmp_path: Path, change: dict[str, Any], error: type[TurnlogError] | None
) -> None:
    (copy / "turnlog.json").write_text(json.dumps(marker_of(copy) | change))
    if error is not None:
        with pytest.raises(error):
            Store.restore(copy, tmp_path / "again")
        return
    report = Store.restore(copy, tmp_path / "again")
    marker = marker_of(tmp_path / "again")
    assert set(marker) == {
        *("format", "version", "store_id", "epoch"),
        *("restored_from", "restored_position", "restored_us"),
    }
    assert marker["epoch"] == report.epoch == 1
    if "store_id" in change:
        assert marker["restored_from"] == report.restored_from == ""
    with Store.open(tmp_path / "again", create=False) as store:
        assert store.check().ok


def test_other_files_stay_where_they_are(copy: Path, tmp_path: Path) -> None:
    """A lock file from elsewhere would be mapped by LMDB, and a link would be followed later."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (copy / "notes.txt").write_text("theirs")
    (copy / "passwd").symlink_to("/etc/passwd")
    (copy / "folder").mkdir()
    (copy / "lock.mdb").write_bytes(os.urandom(8_192))
    (copy / "writer.lock").symlink_to(secret)
    (copy / "use.lock").symlink_to(secret)
    os.mkfifo(copy / "turnstile.lock")
    before = content_of(copy)
    Store.restore(copy, tmp_path / "again")
    again = tmp_path / "again"
    assert {each.name for each in again.iterdir()} == {
        *("data.mdb", "lock.mdb", "turnlog.json"),
        *LOCK_FILES,
    }
    assert all([stat.S_ISREG(each.lstat().st_mode) for each in again.iterdir()])
    with Store.open(again, create=False) as store:
        assert store.check().ok
    assert content_of(copy) == before
    assert secret.read_text() == "secret"


def test_a_file_that_claims_to_be_huge(copy: Path, tmp_path: Path) -> None:
    """It is compared with the room there is before a byte is copied."""
    os.truncate(copy / "data.mdb", 1 << 40)
    written: list[int] = []

    class Small(Files):
        def free_bytes(self, path: Path) -> int:
            return 1 << 30

        def write_at(self, descriptor: int, data: bytes, offset: int) -> None:
            written.append(len(data))
            super().write_at(descriptor, data, offset)

    with pytest.raises(StorageFullError):
        restore(copy, tmp_path / "again", files=Small())
    assert written == []
    os.truncate(copy / "data.mdb", 8_192)  # or the fixture that reads it would


def test_a_hole_stays_a_hole(copy: Path, tmp_path: Path) -> None:
    size = (copy / "data.mdb").stat().st_size
    os.truncate(copy / "data.mdb", size + (64 << 20))
    Store.restore(copy, tmp_path / "again")
    found = (tmp_path / "again" / "data.mdb").stat()
    assert found.st_size == size + (64 << 20)
    assert found.st_blocks * 512 < 2 * size + (2 << 20)


def test_a_network_file_system_is_refused(copy: Path, tmp_path: Path) -> None:
    class Mounted(Files):
        def mounts(self) -> str:
            return "22 1 254:0 / / rw,relatime - nfs4 server:/x rw\n"

    with pytest.raises(StoreUnavailableError, match="nfs4"):
        restore(copy, tmp_path / "again", files=Mounted())
    assert not (tmp_path / "again").exists()
    restore(copy, tmp_path / "again", files=Mounted(), allow_network=True)
    assert (tmp_path / "again").exists()


@pytest.mark.parametrize("backup", ["nothing", "file"])
def test_what_is_no_folder_is_no_backup(tmp_path: Path, backup: str) -> None:
    if backup == "file":
        (tmp_path / "file").write_text("mine")
    with pytest.raises(NotAStoreError):
        Store.restore(tmp_path / backup, tmp_path / "again")


def test_progress_is_told(copy: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    Store.restore(copy, tmp_path / "again", progress=lambda *step: calls.append(step))
    size = (copy / "data.mdb").stat().st_size
    assert calls[-1] == (size, size)
    assert calls == sorted(calls)
