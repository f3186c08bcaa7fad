"""Backups: one commit of a store that goes on, whole and durable, or none."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog import raw
from eventlog.backup import backup
from eventlog.environment import Environment
from eventlog.errors import (
    BusyError,
    CorruptionError,
    ReadOnlyError,
    StorageFullError,
    StoreClosedError,
    StoreUnavailableError,
    UsageError,
)
from eventlog.limits import COPY_BYTES
from eventlog.seams import Files
from tests import damaged_store
from tests.format.make_store import export

Opens = Callable[..., Store]


def fill(store: Store, count: int = 50, *, start: int = 0) -> None:
    """Sessions that are sealed in part."""
    for number in range(start, start + count):
        session = store.session(f"call-{number % 7}")
        session.append_many([{"role": "user", "content": f"turn {number}"}] * 20)
    store.flush()


def lines(path: Path, **options: Any) -> list[str]:
    with Store.open(path, create=False, **options) as store:
        assert store.check().ok, store.check().findings
        return export(store)


def beside(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


def test_a_backup_holds_what_the_store_held(store: Store, tmp_path: Path) -> None:
    fill(store)
    report = store.backup(tmp_path / "copy")
    assert (report.path, report.position) == (tmp_path / "copy", store.last_position)
    assert report.byte_count == (tmp_path / "copy" / "data.mdb").stat().st_size
    assert sorted(os.listdir(tmp_path / "copy")) == ["data.mdb", "turnlog.json"]
    assert lines(tmp_path / "copy", read_only=True) == export(store)
    assert beside(store.path) == ["copy", "store"]


def test_what_is_committed_meanwhile_is_not_in_it(store: Store, tmp_path: Path) -> None:
    """Each later commit frees pages that the copy still needs, and takes others."""
    fill(store)
    before, calls = export(store), []

    def more(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) < 4:
            fill(store, start=100 * len(calls))

    report = store.backup(tmp_path / "copy", check=True, progress=more)
    assert len(export(store)) > report.position == len(before)
    assert report.checked
    assert lines(tmp_path / "copy") == before
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] <= report.byte_count


def mark(number: int) -> str:
    """Text of a size that lies in a leaf, alone on a page, or on several."""
    return f"kanarienvogel {number} " * (1, 40, 200, 600)[number % 4]


@pytest.mark.parametrize("is_sealed", [False, True], ids=["hot", "sealed"])
def test_what_was_erased_before_is_in_no_byte_of_it(
    checked_store: Opens, tmp_path: Path, is_sealed: bool
) -> None:
    """Free pages were copied like others, with what had been erased. So were the bytes between
    nodes and behind large values, which LMDB leaves from what its buffers held before."""
    store = checked_store(snapshot_frequency=4, dictionaries=False)
    for number in range(120):
        call = store.session("gone" if number % 3 else "stays")
        text = mark(number) if number % 3 else f"turn {number} " * (number * 9)
        call.append({"role": "user", "content": text}, id=f"id-{number}").result(10)
        if not number % 40 and is_sealed:
            store.flush()
    store.session("gone").update_state({"kanarienvogel": "kanarienvogel"}).result(10)
    store.session("gone").erase()
    assert b"kanarienvogel" in (store.path / "data.mdb").read_bytes()
    store.backup(tmp_path / "copy", check=True)
    wanted = export(store)
    Store.restore(tmp_path / "copy", tmp_path / "again", check=True)
    for name in ("copy", "again"):
        assert b"kanarienvogel" not in (tmp_path / name / "data.mdb").read_bytes()
        assert lines(tmp_path / name) == wanted
    with Store.open(tmp_path / "again", create=False) as again:
        fill(again)
        again.backup(tmp_path / "of it", check=True)
        assert again.check().ok


def test_free_pages_are_holes(store: Store, tmp_path: Path) -> None:
    """A backup of a store that was nearly emptied is no larger on disk than what is left."""
    for _ in range(8):
        store.session("gone").append({"n": os.urandom(200_000).hex()}).result(10)
    store.session("stays").append({"n": 1}).result(10)
    store.session("gone").erase()
    report = store.backup(tmp_path / "copy", check=True)
    assert report.byte_count > 3_000_000
    assert (tmp_path / "copy" / "data.mdb").stat().st_blocks * 512 < 1_000_000


@pytest.mark.parametrize("change", ["used", "beyond", "count", "meta"])
def test_damaged_lists_of_free_pages_make_no_backup(
    path: Path, tmp_path: Path, change: str
) -> None:
    """A page that is said to be free and is in use would be zeros in the backup."""
    data = path / "data.mdb"
    meta = raw.read_metas(data)[0]
    with open(data, "rb") as file:
        free = raw.free_lists(raw.DataFile(file.fileno(), str(data)), meta)[0]
    content = data.read_bytes()
    assert free and content.count(free) >= 1
    numbers = [int.from_bytes(free[at : at + 8], sys.byteorder) for at in range(0, len(free), 8)]
    if change == "count":
        numbers[0] += 1
    else:
        numbers[1] = {"used": numbers[1], "beyond": meta.last_page + 9, "meta": 1}[change]
    if change == "used":
        assert meta.main.root is not None
        numbers[-1] = meta.main.root
    changed = b"".join([number.to_bytes(8, sys.byteorder) for number in numbers])
    data.write_bytes(content.replace(free, changed))
    with Store.open(path, create=False) as store, pytest.raises(CorruptionError):
        backup(store._log.environment, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_read_only_store_is_backed_up_beside_its_writer(store: Store, tmp_path: Path) -> None:
    fill(store)
    store.close()
    with Store.open(store.path, create=False, read_only=True) as reader:
        report = reader.backup(tmp_path / "copy")
        assert lines(tmp_path / "copy") == export(reader)
        assert report.position == reader.last_position


def test_a_store_on_a_read_only_mount_is_backed_up(
    checked_store: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no writer lock then, and nobody writes."""
    with checked_store() as store:
        fill(store)
        wanted = export(store)
    real_open = Files.open_file

    def refuse(files: Files, name: Any, flags: int, *, folder: int | None = None) -> int:
        if folder is not None and flags & os.O_RDWR:
            raise OSError(30, "Read-only file system")
        return real_open(files, name, flags, folder=folder)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "open_file", refuse)
        with Store.open(store.path, create=False, read_only=True) as reader:
            reader.backup(tmp_path / "copy")
    assert lines(tmp_path / "copy") == wanted


def test_it_is_awaited_on_a_loop(store: Store, tmp_path: Path) -> None:
    async def main() -> None:
        ack = store.session("a").append({"role": "user", "content": "x"})
        await ack
        report = await store.backup_async(tmp_path / "copy", check=True)
        assert report.position == ack.position == 1

    asyncio.run(main())
    assert len(lines(tmp_path / "copy")) == 1


def test_the_marker_says_of_what_it_is_a_backup(store: Store, tmp_path: Path) -> None:
    fill(store)
    report = store.backup(tmp_path / "copy")
    own = json.loads((store.path / "turnlog.json").read_text())
    marker = json.loads((tmp_path / "copy" / "turnlog.json").read_text())
    assert marker.pop("backup_us") > 1_700_000_000_000_000
    wanted = {"backup_of": own["store_id"], "backup_position": report.position}
    assert marker == own | wanted
    assert report.store_id == own["store_id"]


def test_a_backup_of_a_backup(store: Store, tmp_path: Path) -> None:
    fill(store)
    store.backup(tmp_path / "copy")
    with Store.open(tmp_path / "copy", create=False, read_only=True) as copy:
        copy.backup(tmp_path / "second")
    assert lines(tmp_path / "second", read_only=True) == export(store)


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777], ids=oct)
def test_nobody_else_may_read_it(store: Store, tmp_path: Path, umask: int) -> None:
    """Nor any part of it while it is made."""
    fill(store)
    seen: set[tuple[str, int]] = set()

    def look(done: int, total: int) -> None:
        for folder, _, names in os.walk(tmp_path):
            if folder.endswith(".creating"):
                seen.add(("folder", stat.S_IMODE(os.lstat(folder).st_mode)))
                seen.update(
                    ("file", stat.S_IMODE(os.lstat(os.path.join(folder, name)).st_mode))
                    for name in names
                )

    before = os.umask(umask)
    try:
        store.backup(tmp_path / "copy", check=True, progress=look)
    finally:
        os.umask(before)
    assert seen == {("folder", 0o700), ("file", 0o600)}
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o700
    modes = {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "copy").iterdir()}
    assert modes == {0o600}


def taken(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_text("mine")
    elif kind == "dead-link":
        path.symlink_to(path.with_name("gone"))
    else:
        path.mkdir()
        if kind == "folder":
            (path / "mine").write_text("mine")


@pytest.mark.parametrize("kind", ["file", "folder", "empty-folder", "dead-link", "the-store"])
def test_what_exists_is_not_replaced(store: Store, tmp_path: Path, kind: str) -> None:
    fill(store)
    target = store.path if kind == "the-store" else tmp_path / "copy"
    if target != store.path:
        taken(target, kind)
    before = beside(store.path)
    if kind == "dead-link":
        store.backup(target)  # the link is followed, to where nothing is
        assert lines(tmp_path / "gone") == export(store)
        return
    with pytest.raises(UsageError, match="exists already"):
        store.backup(target)
    assert beside(store.path) == before
    if kind == "file":
        assert target.read_text() == "mine"


def test_what_comes_into_its_place_meanwhile_stays(store: Store, tmp_path: Path) -> None:
    """An empty folder would be replaced by a rename without a word."""

    def take(done: int, total: int) -> None:
        (tmp_path / "copy").mkdir(exist_ok=True)

    with pytest.raises(UsageError, match="exists already"):
        store.backup(tmp_path / "copy", progress=take)
    assert os.listdir(tmp_path / "copy") == []
    assert beside(store.path) == ["copy", "store"]


def test_a_folder_that_is_missing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="there is no folder"):
        store.backup(tmp_path / "no" / "copy")


@pytest.mark.parametrize("path", [1, "", "a\0b", None], ids=repr)
def test_paths_that_are_none(store: Store, path: Any) -> None:
    with pytest.raises(UsageError):
        store.backup(path)


def test_a_closed_store_is_not_backed_up(checked_store: Opens, tmp_path: Path) -> None:
    store = checked_store()
    store.close()
    with pytest.raises(StoreClosedError):
        store.backup(tmp_path / "copy")
    assert beside(store.path) == ["store"]


class Told(Exception):
    """What a caller's own function raises."""


def test_a_caller_may_break_it_off(store: Store, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise Told

    with pytest.raises(Told):
        store.backup(tmp_path / "copy", progress=stop)
    assert beside(store.path) == ["store"]
    fill(store)


def test_closing_the_store_ends_a_backup(checked_store: Opens, tmp_path: Path) -> None:
    """Closing waits for reads, and a backup is one that can take hours."""
    store = checked_store()
    fill(store)
    threads: list[threading.Thread] = []

    def close(done: int, total: int) -> None:
        if not threads:
            threads.append(threading.Thread(target=store.close))
            threads[0].start()
            while not store._log.environment.is_waited_for:
                pass

    with pytest.raises(StoreClosedError):
        store.backup(tmp_path / "copy", progress=close)
    threads[0].join()
    assert beside(store.path) == ["store"]


@pytest.mark.parametrize("is_caught", [False, True])
def test_its_callback_may_close_the_store(
    checked_store: Opens, tmp_path: Path, is_caught: bool
) -> None:
    """The backup's own read kept the file open, and the process could not open the store again."""
    store = checked_store()
    fill(store)
    refused: list[BusyError] = []

    def close(done: int, total: int) -> None:
        try:
            store.close()
        except BusyError as error:
            refused.append(error)
            if not is_caught:
                raise

    with suppress(BusyError, StoreClosedError):
        store.backup(tmp_path / "copy", progress=close)
    assert len(refused) == 1
    with pytest.raises(StoreClosedError):
        store.session("call-0").history()
    store.close()
    with Store.open(store.path, create=False) as again:
        assert again.check().ok


def test_it_begins_again_when_the_store_is_opened_anew(store: Store, tmp_path: Path) -> None:
    """After a failed commit nothing could be appended until the backup had ended."""
    fill(store)
    starts: list[int] = []
    threads: list[threading.Thread] = []
    environment = store._log.environment

    def reopen(done: int, total: int) -> None:
        if done <= COPY_BYTES:
            starts.append(done)
        if not threads:
            threads.append(threading.Thread(target=environment.reopen))
            threads[0].start()
            while not environment.is_waited_for:
                pass

    report = store.backup(tmp_path / "copy", progress=reopen)
    threads[0].join()
    assert len(starts) > 1
    assert report.position == store.last_position
    assert lines(tmp_path / "copy") == export(store)


def test_a_store_that_is_opened_anew_for_ever(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Environment, "is_waited_for", True)
    with pytest.raises(BusyError, match="opened anew"):
        store.backup(tmp_path / "copy")
    assert beside(store.path) == ["store"]


def test_writers_are_kept_out_when_they_are_too_quick(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look for the meta page comes too late, until no commit can come in between."""
    fill(store)
    missed, held = [0], [False]
    real, real_held = raw.pin, Environment.held

    @contextmanager
    def hold(environment: Environment) -> Iterator[None]:
        with real_held(environment):
            held[0] = True
            yield
            held[0] = False

    def late(file: raw.DataFile, transaction: int) -> tuple[raw.Meta, bytes] | None:
        if not held[0]:
            missed[0] += 1
            store.session("a").append_many([{"role": "user"}] * 2).result()
            store.session("b").append({"role": "user"}).result()
        found = real(file, transaction)
        assert (found is not None) == held[0]
        return found

    monkeypatch.setattr(raw, "pin", late)
    monkeypatch.setattr(Environment, "held", hold)
    store.backup(tmp_path / "copy")
    monkeypatch.undo()
    assert missed[0] > 1
    assert lines(tmp_path / "copy") == export(store)


class Noting(Files):
    """Notes what is opened, synced and renamed."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._names: dict[int, str] = {}

    def open_file(self, name: str | Path, flags: int, *, folder: int | None = None) -> int:
        descriptor = super().open_file(name, flags, folder=folder)
        self._names[descriptor] = Path(name).name
        self.steps.append(f"open {Path(name).name}")
        return descriptor

    def fsync_file(self, descriptor: int) -> None:
        super().fsync_file(descriptor)
        if descriptor in self._names:
            self.steps.append(f"sync {self._names[descriptor]}")

    def close(self, descriptor: int) -> None:
        self._names.pop(descriptor, None)
        super().close(descriptor)

    def fsync_folder(self, path: Path) -> None:
        super().fsync_folder(path)
        self.steps.append(f"sync {'itself' if path.name.endswith('.creating') else 'its folder'}")

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.steps.append("rename")


def test_everything_is_durable_before_it_has_its_name(store: Store, tmp_path: Path) -> None:
    """LMDB's own copy syncs nothing, so that a power cut left a backup of zeros."""
    fill(store)
    files = Noting()
    backup(store._log.environment, tmp_path / "copy", files=files)
    order = [step for step in files.steps if not step.startswith("open")]
    assert order == [
        "sync data.mdb",
        "sync turnlog.json",
        "sync itself",
        "rename",
        "sync its folder",
    ]
    assert "open lock.mdb" not in files.steps


class Full(Files):
    """A file system with room for so many writes."""

    def __init__(self, left: int) -> None:
        self._left = left

    def write_at(self, descriptor: int, data: bytes, offset: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(28, "No space left on device")
        super().write_at(descriptor, data, offset)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_full_disk_leaves_nothing(store: Store, tmp_path: Path, left: int) -> None:
    fill(store)
    with pytest.raises(StorageFullError) as caught:
        backup(store._log.environment, tmp_path / "copy", files=Full(left))
    assert "nothing was changed" in caught.value.hint
    assert beside(store.path) == ["store"]


def test_a_target_that_may_not_be_written(store: Store, tmp_path: Path) -> None:
    class Sealed(Files):
        def make_folder(self, path: Path) -> None:
            raise PermissionError(13, "Permission denied")

    with pytest.raises(ReadOnlyError, match="copy cannot be made: Permission denied"):
        backup(store._log.environment, tmp_path / "copy", files=Sealed())


def test_a_store_with_a_damaged_page_has_no_backup(path: Path, tmp_path: Path) -> None:
    """It would be restored one day, in place of a store that is better."""
    with damaged_store.opened(path) as (transaction, handles):
        pages = transaction.stat(handles["segment"])["leaf_pages"]
    assert pages > 1
    data = path / "data.mdb"
    page = bytearray(data.read_bytes())
    number = next(
        place
        for place in range(len(page) // 4_096 - 1, 2, -1)
        if page[place * 4_096 + 10 : place * 4_096 + 12] == b"\x02\x00" and is_used(path, place)
    )
    page[number * 4_096 + 12 : number * 4_096 + 14] = b"\xff\xff"
    data.write_bytes(page)
    with Store.open(path, create=False) as store, pytest.raises(CorruptionError):
        store.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert [name for name in beside(path) if name.endswith(".creating")] == []


def is_used(path: Path, number: int) -> bool:
    """Whether a walk over the file comes by a page, and Store.open does not."""
    from lmdb.verify import verify

    data = path / "data.mdb"
    content = data.read_bytes()
    broken = bytearray(content)
    broken[number * 4_096 + 12 : number * 4_096 + 14] = b"\xff\xff"
    data.write_bytes(broken)
    try:
        if not verify(data, subdir=False):
            return False
        Store.open(path, create=False, read_only=True).close()
        return True
    except CorruptionError:
        return False
    finally:
        data.write_bytes(content)


def test_a_check_finds_what_a_walk_cannot(path: Path, tmp_path: Path) -> None:
    table, key, value = next(row for row in damaged_store.rows(path) if row[0] == "segment")
    damaged_store.put(path, (table, key, value[:-1] + bytes([value[-1] ^ 1])))
    with Store.open(path, create=False) as store:
        with pytest.raises(CorruptionError, match="findings in the copy"):
            store.backup(tmp_path / "checked", check=True)
        assert not (tmp_path / "checked").exists()
        store.backup(tmp_path / "copy")
        with pytest.raises(CorruptionError, match="findings in the copy"):
            Store.restore(tmp_path / "copy", tmp_path / "again", check=True)
        assert not (tmp_path / "again").exists()
