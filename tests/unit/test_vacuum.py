"""Vacuum: the same rows in a new file, and nothing of what was removed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog import raw
from eventlog import vacuum as vacuum_module
from eventlog.environment import Environment
from eventlog.errors import (
    BusyError,
    CorruptionError,
    NotAStoreError,
    ReadOnlyError,
    StorageFullError,
    StoreUnavailableError,
    UsageError,
)
from eventlog.locks import LOCK_FILES, RECORD_BYTES
from eventlog.rows import CommitRecord
from eventlog.seams import Files
from eventlog.vacuum import vacuum
from tests import damaged_store
from tests.format import independent
from tests.format.make_store import STORES, export, unpack
from tests.model.staging import in_threads

REPOSITORY = Path(__file__).resolve().parents[2]
SECRET = "a sentence that somebody wants to be gone"
Opens = Callable[..., Store]


def lines(path: Path) -> list[str]:
    with Store.open(path, create=False) as store:
        assert store.check().ok, store.check().findings
        return export(store)


def record_of(path: Path) -> CommitRecord:
    return raw.examine(path / "data.mdb", CommitRecord.decode, verify=True).record


def everything(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(folder.iterdir()))


def test_it_holds_the_same_in_a_smaller_file(path: Path) -> None:
    before, record, rows = lines(path), record_of(path), damaged_store.rows(path)
    size = (path / "data.mdb").stat().st_size
    report = vacuum(path, transform=lambda table, key, value: value)
    assert (report.path, report.bytes_before, report.rows) == (path, size, len(rows))
    assert report.bytes_after == (path / "data.mdb").stat().st_size < size
    after = record_of(path)
    assert after == replace(
        record,
        transaction=after.transaction,
        file_bytes=after.file_bytes,
        previous=record.encode()[:8],
    )
    same = [row for row in rows if row[1] != b"record"]
    assert [row for row in damaged_store.rows(path) if row[1] != b"record"] == same
    assert lines(path) == before
    assert os.listdir(path.parent) == ["store"]


def test_what_was_loose_is_sealed_and_takes_less_room(path: Path) -> None:
    """As records it stayed as large as when it came, whatever was done to the file."""
    with Store.open(path, create=False) as store:
        for number in range(100):
            store.session(f"loose-{number}").append_many([{"role": "user"}] * 19).result(10)
    before, rows = lines(path), damaged_store.rows(path)
    size = (path / "data.mdb").stat().st_size
    report = Store.vacuum(path)
    assert report.bytes_before == size
    assert report.bytes_after == (path / "data.mdb").stat().st_size < size
    after = damaged_store.rows(path)

    def hot(found: list[tuple[str, bytes, bytes]]) -> int:
        return len([row for row in found if row[0].startswith("log.")])

    record = record_of(path)
    assert record.floor == record.last_position // 1_024 * 1_024 + 1
    assert hot(after) == record.last_position % 1_024 < hot(rows)
    assert lines(path) == before
    with Store.open(path, create=False) as store:
        assert store.check().ok
        store.session("call-1").append_many([{"role": "user"}] * 5_000).result(10)
    Store.vacuum(path)
    with Store.open(path, create=False) as store:
        assert store.check().ok
    assert len(lines(path)) == len(before) + 5_000


def test_it_goes_on_afterwards(path: Path) -> None:
    Store.vacuum(path)
    with Store.open(path, create=False) as store:
        again = store.session("call-1").append(
            {"role": "user", "content": "loose"}, idempotency_key="loose"
        )
        assert again.result(10).already
        for number in range(30):
            store.session(f"new-{number}").append_many([{"role": "user"}] * 200)
        store.flush()
        assert store.check().ok
    Store.vacuum(path)
    assert len(lines(path)) > 6_000


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_an_older_version_stays_of_it(tmp_path: Path, version: int) -> None:
    path = unpack(STORES / f"{version}.tar.xz", tmp_path / "store")
    before = lines(path)
    Store.vacuum(path)
    assert record_of(path).version == version
    assert lines(path) == before
    assert independent.Reader(path).last_position == record_of(path).last_position


def test_an_empty_store(tmp_path: Path) -> None:
    Store.open(tmp_path / "store").close()
    report = Store.vacuum(tmp_path / "store")
    assert report.rows == 2  # options and commit record
    assert lines(tmp_path / "store") == []


def test_what_was_removed_is_in_no_page_any_more(tmp_path: Path) -> None:
    """A page keeps the bytes of rows that were removed from it, and so would a copy of it."""
    path = tmp_path / "store"
    with Store.open(path) as store:
        for number in range(40):
            body = {"role": "user", "content": f"{SECRET if number % 3 == 0 else 'other'} {number}"}
            store.session(f"call-{number % 5}").append(body).result()
    kept = [row for row in damaged_store.rows(path) if row[0].startswith("log.")]
    removed = [row for row in kept if SECRET.encode() in row[2]]
    damaged_store.put(path, *[(table, key, None) for table, key, _ in removed])
    assert SECRET.encode() in everything(path)
    vacuum(path)
    assert SECRET.encode() not in everything(path)
    damaged_store.put(path, *removed)  # so that the store is whole again
    assert len(lines(path)) == 40


def test_what_was_purged_is_in_the_file_no_more(path: Path) -> None:
    """Hot records of purged events stay until their table is cut, and were copied row by row."""
    with Store.open(path) as store:
        session = store.session("purged")
        for number in range(8):
            text = f"{SECRET} {number}" if number < 4 else f"kept {number}"
            session.append({"role": "user", "content": text}).result()
        session.purge(4).result()
        history = session.history()
    assert SECRET.encode() in everything(path)
    Store.vacuum(path)
    assert SECRET.encode() not in everything(path)
    with Store.open(path, create=False) as store:
        assert store.check().ok
        assert store.session("purged").history() == history


def test_lock_files_tell_of_nobody_any_more(path: Path) -> None:
    """A slot holds the command line of a process, and that of a dead one stays for ever."""
    slot = json.dumps({"pid": 1, "command": SECRET}).encode().ljust(RECORD_BYTES - 1) + b"\n"
    Store.open(path, create=False).close()
    (path / "use.lock").write_bytes(slot * 5)
    (path / "writer.lock").write_bytes(slot)
    assert SECRET.encode() in everything(path)
    Store.vacuum(path)
    assert SECRET.encode() not in everything(path)
    for name in ("use.lock", "writer.lock"):
        assert (path / name).read_bytes().isspace()
    lock = (path / "lock.mdb").stat()
    assert lock.st_blocks * 512 >= lock.st_size
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o600}
    assert {each.name for each in path.iterdir()} == {
        *("data.mdb", "lock.mdb", "turnlog.json"),
        *LOCK_FILES,
    }


def test_rows_can_be_changed_and_left_out_on_the_way(path: Path) -> None:
    rows = damaged_store.rows(path)
    seen: list[tuple[str, bytes]] = []

    def transform(table: str, key: bytes, value: bytes) -> bytes | None:
        seen.append((table, key))
        if table == "key":
            return None
        return value[::-1] if table == "segment" else value

    vacuum(path, transform=transform)
    assert sorted(seen) == sorted((table, key) for table, key, _ in rows)
    assert [key for table, key in seen if table == "commit"][-1] == b"record" == seen[-1][1]
    found = {(table, key): value for table, key, value in damaged_store.rows(path)}
    assert not [key for key in found if key[0] == "key"]
    for table, key, value in rows:
        if table == "segment":
            assert found[table, key] == value[::-1]
    # And back, so that what is left can be judged.
    vacuum(path, transform=lambda table, key, value: value[::-1] if table == "segment" else value)
    damaged_store.put(path, *[row for row in rows if row[0] == "key"])
    assert lines(path)


def test_this_process_has_it_open(store: Store) -> None:
    before = (store.path / "data.mdb").stat().st_ino
    with pytest.raises(BusyError, match="already open in this process") as caught:
        store.vacuum(store.path)
    assert caught.value.owner == "this process"
    assert (store.path / "data.mdb").stat().st_ino == before
    store.session("a").append({"role": "user", "content": "goes on"}).result()


def test_whoever_opens_it_meanwhile_in_this_process_is_told_so(path: Path) -> None:
    """A callback of a vacuum that opened the store waited 30 s for its own vacuum, and was told of
    another process.
    """
    told: list[BusyError] = []

    def refused(work: Callable[[], object]) -> None:
        with pytest.raises(BusyError) as caught:
            work()
        told.append(caught.value)

    def progress(done: int, total: int) -> None:
        if told:
            return
        refused(lambda: Store.open(path))
        refused(lambda: Store.open(path, read_only=True))
        refused(lambda: Store.vacuum(path))
        in_threads(lambda: refused(lambda: Store.open(path, lock_deadline_ms=0)))

    Store.vacuum(path, progress=progress)
    assert len(told) == 4
    assert {each.owner for each in told} == {"this process"}
    assert "another process" not in " ".join(map(str, told))
    lines(path)


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
def test_another_process_has_it_open(path: Path, read_only: bool) -> None:
    before = (path / "data.mdb").stat().st_ino
    text = (
        "import sys; from engine import Store\n"
        f"with Store.open(sys.argv[1], read_only={read_only}) as store:\n"
        "    print('in', flush=True); sys.stdin.readline()\n"
        "    print(store.last_position)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", text, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "in\n"
    with pytest.raises(BusyError, match=f"pid {other.pid} ") as caught:
        vacuum(path, lock_deadline_ms=50)
    assert f"pid {other.pid} " in str(caught.value.owner)
    assert (path / "data.mdb").stat().st_ino == before
    assert other.communicate("\n", timeout=30)[0]
    assert other.returncode == 0
    vacuum(path)
    assert (path / "data.mdb").stat().st_ino != before


def test_whoever_had_the_old_file_open_writes_nothing_into_it(path: Path) -> None:
    """Should anybody get past the lock, the inode tells."""
    other = path.with_name("same")
    with Store.open(path, create=False) as store:
        store.backup(other)
        Store.vacuum(other)
        os.rename(other / "data.mdb", path / "data.mdb")
        with pytest.raises(StoreUnavailableError, match="removed or replaced"):
            store.session("a").append({"role": "user", "content": "x"}).result(10)


class Small(Files):
    def free_bytes(self, path: Path) -> int:
        return 1_000_000


def test_room_is_looked_for_first(path: Path) -> None:
    before = everything(path)
    with pytest.raises(StorageFullError, match="needs about"):
        vacuum(path, files=Small())
    assert (path / "data.mdb").read_bytes() in before
    assert os.listdir(path.parent) == ["store"]


def test_a_damaged_store_is_not_touched(path: Path) -> None:
    data = path / "data.mdb"
    content = bytearray(data.read_bytes())
    for offset in range(4_096 * 40 + 12, len(content), 4_096):
        content[offset : offset + 2] = b"\xff\xff"
    data.write_bytes(content)
    with pytest.raises(CorruptionError):
        Store.vacuum(path)
    assert data.read_bytes() == content
    assert os.listdir(path.parent) == ["store"]


def test_a_file_that_is_not_what_was_written_is_thrown_away(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = vacuum_module._Rewrite.fill

    def fill(rewrite: Any, count: Any) -> Any:
        sums = real(rewrite, count)
        sums["segment"].digest = bytes(16)
        return sums

    before = (path / "data.mdb").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(vacuum_module._Rewrite, "fill", fill)
        with pytest.raises(CorruptionError, match="table segment"):
            vacuum(path)
    assert (path / "data.mdb").read_bytes() == before
    assert os.listdir(path.parent) == ["store"]
    assert lines(path)


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        Store.vacuum(tmp_path / "nothing")
    with pytest.raises(UsageError):
        Store.vacuum("")


def test_a_store_that_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (path / "data.mdb").read_bytes()
    real_open = Files.open_file

    def refuse(files: Files, name: Any, flags: int, *, folder: int | None = None) -> int:
        if folder is not None and flags & os.O_RDWR:
            raise OSError(30, "Read-only file system")
        return real_open(files, name, flags, folder=folder)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "open_file", refuse)
        with pytest.raises(ReadOnlyError):
            Store.vacuum(path)
    assert (path / "data.mdb").read_bytes() == before


def test_a_mount_point_is_told(path: Path) -> None:
    class Mounted(Files):
        def rename(self, source: Path, target: Path) -> None:
            raise OSError(18, "Invalid cross-device link")

    with pytest.raises(StoreUnavailableError, match="is a mount point"):
        vacuum(path, files=Mounted())
    assert lines(path)


def test_the_others_come_in_again(path: Path) -> None:
    """The lock is not kept, whatever came of it."""
    with pytest.raises(StorageFullError):
        vacuum(path, files=Small())
    vacuum(path)
    with Environment.open(
        path,
        tables=lambda version: tuple(damaged_store.TABLES),
        decode_commit_record=CommitRecord.decode,
    ) as environment:
        assert environment.members() == []
