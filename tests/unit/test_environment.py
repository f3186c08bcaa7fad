"""Creating and opening a store, and the guards around LMDB, within one process."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lmdb
import pytest

from eventlog.creation import create
from eventlog.environment import Environment, identity
from eventlog.errors import (
    BusyError,
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    QuotaExceededError,
    ReadOnlyError,
    StorageFullError,
    StoreClosedError,
    StoreUnavailableError,
    SuspectStoreError,
)
from eventlog.failpoints import failpoints, raise_
from eventlog.limits import READERS_MAX
from eventlog.lmdb_errors import CommitFailedError, commit_failed, map_error, mapped_errors
from eventlog.locks import LOCK_FILES, WriterLock
from eventlog.place import LOCK_FILE, MARKER_FILE, encode_marker
from eventlog.raw import COMMIT_KEY, DATA_FILE
from eventlog.rows import CommitRecord
from eventlog.seams import FILES, Files
from tests.tiny_store import TABLES, append, check, initialise, make, open_tiny, values


def failed(kind: type[lmdb.Error], code: int, message: str = "it failed") -> lmdb.Error:
    """An error as LMDB raises it."""
    error = kind(message)
    error.code = code  # type: ignore[misc]
    return error


FILES_OF_A_STORE = {DATA_FILE, LOCK_FILE, MARKER_FILE, *LOCK_FILES}


@pytest.fixture
def tiny(store_path: Path) -> Iterator[Environment]:
    """An open tiny store; closed and walked when the test ends."""
    make(store_path)
    environment = open_tiny(store_path)
    yield environment
    environment.close()
    if (store_path / DATA_FILE).exists():
        check(store_path)


def names(path: Path) -> set[str]:
    return set(os.listdir(path))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Creating


def test_a_new_store_is_complete_and_private(store_path: Path) -> None:
    make(store_path)
    assert names(store_path) == FILES_OF_A_STORE
    assert names(store_path.parent) == {store_path.name}
    assert mode(store_path) == 0o700
    assert {mode(store_path / name) for name in FILES_OF_A_STORE} == {0o600}
    assert check(store_path) == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_the_umask_changes_nothing(store_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make(store_path)
        with open_tiny(store_path) as environment:
            append(environment, b"x")
    finally:
        os.umask(before)
    assert mode(store_path) == 0o700
    assert {mode(store_path / name) for name in FILES_OF_A_STORE} == {0o600}


def test_loose_modes_are_tightened_on_opening(store_path: Path) -> None:
    make(store_path)
    store_path.chmod(0o755)
    for name in FILES_OF_A_STORE:
        (store_path / name).chmod(0o644)
    open_tiny(store_path).close()
    assert mode(store_path) == 0o700
    assert {mode(store_path / name) for name in FILES_OF_A_STORE} == {0o600}


def test_an_empty_folder_becomes_the_store(store_path: Path) -> None:
    store_path.mkdir(mode=0o755)
    make(store_path)
    assert check(store_path) == []
    assert mode(store_path) == 0o700


def test_a_store_that_is_there_stays(store_path: Path) -> None:
    make(store_path)
    with open_tiny(store_path) as environment:
        append(environment, b"kept")
    make(store_path)
    assert check(store_path) == [b"kept"]


def test_a_link_is_followed(store_path: Path) -> None:
    store_path.symlink_to(store_path.parent / "elsewhere")
    make(store_path)
    assert check(store_path) == []
    assert store_path.is_symlink() and (store_path.parent / "elsewhere").is_dir()


def test_what_is_no_store_stays_untouched(store_path: Path) -> None:
    store_path.write_text("mine")
    with pytest.raises(NotAStoreError):
        make(store_path)
    assert store_path.read_text() == "mine"
    store_path.unlink()
    store_path.mkdir()
    (store_path / "photo").write_text("mine")
    with pytest.raises(NotAStoreError):
        make(store_path)
    assert names(store_path) == {"photo"}
    assert names(store_path.parent) == {store_path.name}


def test_a_missing_parent_is_the_callers_to_make(store_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="there is no folder"):
        make(store_path / "deeper")
    assert not store_path.exists()


def test_a_failing_start_leaves_nothing(store_path: Path) -> None:
    def fail(txn: lmdb.Transaction[bytes], db: Mapping[str, Any]) -> None:
        initialise(txn, db)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        create(store_path, tables=TABLES, initialise=fail, marker={})
    assert names(store_path.parent) == set()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_an_error_before_the_rename_is_typed_and_leaves_nothing(
    store_path: Path, code: int
) -> None:
    expected = {
        errno.ENOSPC: StorageFullError,
        errno.EROFS: ReadOnlyError,
    }.get(code, StoreUnavailableError)
    broken = {"create.before_rename": raise_(OSError(code, os.strerror(code)))}
    with failpoints(broken), pytest.raises(expected) as caught:
        make(store_path)
    assert isinstance(caught.value.__cause__, OSError)
    assert names(store_path.parent) == set()


def test_after_the_rename_the_store_is_there(store_path: Path) -> None:
    with (
        failpoints({"create.after_rename": raise_(KeyboardInterrupt)}),
        pytest.raises(KeyboardInterrupt),
    ):
        make(store_path)
    assert check(store_path) == []
    assert names(store_path.parent) == {store_path.name}


def test_losing_the_race_is_fine(store_path: Path) -> None:
    """Another process made the store between our look and our rename."""

    def other_process() -> None:
        with failpoints({}):
            make(store_path)
        with open_tiny(store_path) as environment:
            append(environment, b"theirs")

    with failpoints({"create.before_rename": other_process}):
        make(store_path)
    assert check(store_path) == [b"theirs"]
    assert names(store_path.parent) == {store_path.name}


def test_losing_the_race_to_something_else_is_not(store_path: Path) -> None:
    def other_process() -> None:
        store_path.mkdir()
        (store_path / "photo").write_text("mine")

    with failpoints({"create.before_rename": other_process}), pytest.raises(NotAStoreError):
        make(store_path)
    assert names(store_path) == {"photo"}
    assert names(store_path.parent) == {store_path.name}


def test_a_swept_temporary_folder_is_made_again(store_path: Path) -> None:
    class Swept(Files):
        """A sweeper strikes between the making of the first folder and its lock."""

        struck = False

        def make_folder(self, path: Path) -> None:
            super().make_folder(path)
            if not self.struck:
                self.struck = True
                path.rmdir()

    make(store_path, files=Swept())
    assert check(store_path) == []


def test_opening_sweeps_what_dead_creators_left(store_path: Path) -> None:
    make(store_path)
    left = store_path.with_name(f".{store_path.name}.0123456789abcdef.creating")
    left.mkdir()
    (left / DATA_FILE).write_bytes(b"half")
    open_tiny(store_path, read_only=True).close()
    assert left.exists(), "a reader removes nothing"
    open_tiny(store_path).close()
    assert not left.exists()


# Opening


def test_where_nothing_is_nothing_is_made(store_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        open_tiny(store_path)
    store_path.mkdir()
    with pytest.raises(NotAStoreError):
        open_tiny(store_path)
    assert names(store_path) == set()
    with pytest.raises(NotAStoreError):
        identity(store_path)


def test_a_newer_format_is_refused_without_a_write(store_path: Path) -> None:
    make(store_path)
    (store_path / MARKER_FILE).write_bytes(encode_marker({"version": 99}))
    before = {name: (store_path / name).read_bytes() for name in FILES_OF_A_STORE}
    with pytest.raises(FormatVersionError) as caught:
        open_tiny(store_path)
    assert caught.value.found == 99
    assert before == {name: (store_path / name).read_bytes() for name in FILES_OF_A_STORE}


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"", CorruptionError), (b"text\n" * 9_000, NotAStoreError), (None, CorruptionError)],
    ids=["empty", "foreign", "missing"],
)
def test_another_data_file_is_refused_without_a_write(
    store_path: Path, content: bytes | None, error: type[Exception]
) -> None:
    make(store_path)
    data = store_path / DATA_FILE
    data.unlink()
    if content is not None:
        data.write_bytes(content)
    with pytest.raises(error):
        open_tiny(store_path)
    assert (data.read_bytes() if data.exists() else None) == content


def test_lmdb_1_is_refused(store_path: Path) -> None:
    make(store_path)
    for name in (DATA_FILE, LOCK_FILE):
        (store_path / name).unlink()
    environment = lmdb.open(str(store_path), map_size=1 << 20, lib_version=1)
    with environment.begin(write=True) as txn:
        txn.put(b"key", b"value")
    environment.close()
    with pytest.raises(FormatVersionError):
        open_tiny(store_path)


def test_a_missing_table_is_damage(store_path: Path) -> None:
    make(store_path)
    with pytest.raises(CorruptionError, match="'more' is missing"):
        Environment.open(
            store_path, tables=lambda _: (*TABLES, "more"), decode_commit_record=CommitRecord.decode
        )
    assert check(store_path) == []  # nothing stayed open


def test_a_transaction_without_its_commit_record_is_a_rollback(store_path: Path) -> None:
    make(store_path)
    environment = open_tiny(store_path)
    txn = environment.begin_write()
    txn.put(b"key", b"value", db=environment.db["log"])
    environment.commit(txn)
    environment.close()
    with pytest.raises(CorruptionError, match="rolled back"):
        open_tiny(store_path)


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 2_000, bytes(100_000)])
def test_lock_mdb_does_not_matter_while_nobody_is_in(
    store_path: Path, content: bytes | None
) -> None:
    make(store_path)
    with open_tiny(store_path) as environment:
        append(environment, b"one")
    (store_path / LOCK_FILE).unlink()
    if content is not None:
        (store_path / LOCK_FILE).write_bytes(content)
    with open_tiny(store_path) as environment:
        append(environment, b"two")
        assert values(environment) == [b"one", b"two"]
    assert mode(store_path / LOCK_FILE) == 0o600


def test_missing_lock_files_are_made_again(store_path: Path) -> None:
    make(store_path)
    for name in LOCK_FILES:
        (store_path / name).unlink()
    with open_tiny(store_path) as environment:
        append(environment, b"one")
    assert names(store_path) == FILES_OF_A_STORE


def test_a_lock_file_that_is_a_link_is_refused(store_path: Path, tmp_path: Path) -> None:
    make(store_path)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (store_path / LOCK_FILES[1]).unlink()
    (store_path / LOCK_FILES[1]).symlink_to(victim)
    with pytest.raises(StoreUnavailableError):
        open_tiny(store_path)
    assert victim.read_text() == "mine"


def test_a_second_open_in_the_process_is_refused_by_lmdb(tiny: Environment) -> None:
    # The registry above shares one environment; this is the net below it.
    link = tiny.path.with_name("link")
    link.symlink_to(tiny.path)
    for path in (tiny.path, link):
        assert identity(path) == identity(tiny.path)
        with pytest.raises(StoreUnavailableError, match="already open"):
            open_tiny(path)
    append(tiny, b"still here")
    assert [member.pid for member in tiny.members()] == []


def test_a_network_file_system_is_refused(store_path: Path) -> None:
    class Network(Files):
        def mounts(self) -> str | None:
            return "1 0 0:1 / / rw - nfs4 server:/ rw"

    with pytest.raises(StoreUnavailableError, match="nfs4"):
        make(store_path, files=Network())
    assert names(store_path.parent) == set()
    make(store_path, files=Network(), allow_network=True)
    with pytest.raises(StoreUnavailableError, match="nfs4"):
        open_tiny(store_path, files=Network())
    with open_tiny(store_path, files=Network(), allow_network=True) as environment:
        assert any("nfs4" in warning for warning in environment.warnings)


def test_closing_twice_is_fine_and_ends_everything(store_path: Path) -> None:
    make(store_path)
    environment = open_tiny(store_path)
    environment.close()
    environment.close()
    for use in (
        environment.read().__enter__,
        environment.begin_write,
        environment.last_page,
        environment.file_bytes,
        environment.reader_check,
        environment.reopen,
    ):
        with pytest.raises(StoreClosedError):
            use()


# Reading and writing


def test_a_read_is_a_snapshot(tiny: Environment) -> None:
    append(tiny, b"one")
    with tiny.read() as before:
        append(tiny, b"two")
        with tiny.read() as after:
            assert before.stat(tiny.db["log"])["entries"] == 1
            assert after.stat(tiny.db["log"])["entries"] == 2
    with tiny.read(buffers=True) as txn:
        assert isinstance(txn.get(COMMIT_KEY, db=tiny.db["commit"]), memoryview)


def test_lmdb_errors_leave_a_read_as_ours(tiny: Environment) -> None:
    with pytest.raises(StoreUnavailableError) as caught, tiny.read() as txn:
        txn.get(b"", db=tiny.db["log"])
    assert isinstance(caught.value.__cause__, lmdb.BadValsizeError)
    with pytest.raises(ZeroDivisionError), tiny.read():
        _ = 1 // 0
    tiny.reopen()  # neither left a read behind


def test_an_aborted_transaction_leaves_nothing(tiny: Environment) -> None:
    txn = tiny.begin_write()
    txn.put(b"key", b"value", db=tiny.db["log"])
    tiny.abort(txn)
    assert values(tiny) == []
    assert append(tiny, b"next") == 1


def test_aborting_after_a_commit_does_nothing(tiny: Environment) -> None:
    txn = tiny.begin_write()
    tiny.abort(txn)
    other = tiny.begin_write()
    tiny.abort(txn) if txn is other else txn.abort()
    tiny.abort(other)
    tiny.abort(other)
    append(tiny, b"fine")


def test_the_writer_lock_is_free_after_everything(tiny: Environment) -> None:
    lock = WriterLock(tiny._folder)
    append(tiny, b"one")
    lock.acquire(0)
    with pytest.raises(BusyError, match="writer lock"):
        tiny.begin_write(0)
    assert values(tiny) == [b"one"]  # reads go on
    lock.release()
    append(tiny, b"two")
    lock.acquire(0)
    lock.release()
    lock.close()


def test_the_stop_event_ends_the_wait_for_another_writer(tiny: Environment) -> None:
    lock = WriterLock(tiny._folder)
    lock.acquire(0)
    tiny.stop.set()
    with pytest.raises(StoreClosedError):
        tiny.begin_write(30_000)
    lock.close()
    append(tiny, b"no wait, no matter")


def test_a_read_only_store_takes_no_writes(store_path: Path) -> None:
    make(store_path)
    with open_tiny(store_path) as environment:
        append(environment, b"one")
    with open_tiny(store_path, read_only=True) as environment:
        assert values(environment) == [b"one"]
        with pytest.raises(ReadOnlyError):
            environment.begin_write()
        with pytest.raises(ReadOnlyError), environment.alone(0):
            pass
        environment.reopen()
        assert values(environment) == [b"one"]


def mapped_bytes(environment: Environment) -> int:
    """Where the last page in use ends."""
    return (environment.last_page() + 1) * environment.page_bytes


def test_the_file_reaches_to_the_last_page_in_use(tiny: Environment) -> None:
    for number in range(60):
        append(tiny, bytes(number * 97))
        assert (tiny.path / DATA_FILE).stat().st_size >= mapped_bytes(tiny)
        assert tiny.file_bytes() == (tiny.path / DATA_FILE).stat().st_size


def test_a_file_that_lmdb_left_short_is_extended(tiny: Environment) -> None:
    """A transaction whose last pages were freed in it again."""
    for number in range(1, 20):
        txn = tiny.begin_write()
        before = tiny.file_bytes()
        for filler in range(number * 40):
            txn.put(b"f%d" % filler, bytes(3_000), db=tiny.db["log"])
        for filler in range(number * 40):
            txn.delete(b"f%d" % filler, db=tiny.db["log"])
        record = CommitRecord(transaction=txn.id(), file_bytes=before)
        txn.put(COMMIT_KEY, record.encode(), db=tiny.db["commit"])
        tiny.commit(txn)
        assert (tiny.path / DATA_FILE).stat().st_size >= mapped_bytes(tiny)
    assert tiny.file_bytes() >= before


def test_used_bytes_are_the_pages_of_the_tables(tiny: Environment) -> None:
    with tiny.read() as txn:
        empty = tiny.used_bytes(txn)
    for _ in range(50):
        append(tiny, bytes(3_000))
    with tiny.read() as txn:
        used = tiny.used_bytes(txn)
    assert used % tiny.page_bytes == 0
    assert empty + 50 * 3_000 < used <= mapped_bytes(tiny)


# Guards


@pytest.mark.parametrize("name", [LOCK_FILE, DATA_FILE])
@pytest.mark.parametrize("replace", [False, True], ids=["removed", "replaced"])
def test_replaced_files_end_writing(store_path: Path, name: str, replace: bool) -> None:
    """Beside a removed lock.mdb a second writer gets in and overwrites acknowledged commits."""
    make(store_path)
    environment = open_tiny(store_path)
    append(environment, b"one")
    victim = store_path / name
    content = victim.read_bytes()
    victim.unlink()
    if replace:
        victim.write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=name):
            environment.begin_write()
        assert environment.is_replaced
        with pytest.raises(StoreUnavailableError, match=name):
            environment.reopen()
        assert values(environment) == [b"one"]  # the old files can still be read
    environment.close()


def test_a_moved_store_is_still_the_same(store_path: Path) -> None:
    make(store_path)
    environment = open_tiny(store_path)
    moved = store_path.with_name("moved")
    store_path.rename(moved)
    append(environment, b"follows")
    environment.close()
    assert check(moved) == [b"follows"]


def test_a_full_map_fails_typed_and_heals(store_path: Path) -> None:
    make(store_path)
    with open_tiny(store_path, map_bytes=1 << 20) as environment:
        with pytest.raises((lmdb.MapFullError, CommitFailedError)) as caught:
            for _ in range(1_000):
                append(environment, bytes(40_000))
        if isinstance(caught.value, CommitFailedError):
            assert caught.value.full
            assert isinstance(caught.value.mapped, QuotaExceededError)
        else:
            assert isinstance(map_error(caught.value, "here"), QuotaExceededError)
        kept = len(values(environment))
        assert kept > 10
    with open_tiny(store_path) as environment:
        append(environment, bytes(40_000))
        assert len(values(environment)) == kept + 1
    check(store_path)


def test_every_slot_taken_is_busy_not_broken(tiny: Environment) -> None:
    append(tiny, b"one")
    with ExitStack() as open_reads:
        for _ in range(READERS_MAX):
            open_reads.enter_context(tiny.read())
        with pytest.raises(BusyError, match="slot"), tiny.read():
            pass
        append(tiny, b"two")  # writing needs no slot
    assert values(tiny) == [b"one", b"two"]


def test_reopening_keeps_the_store(tiny: Environment) -> None:
    append(tiny, b"one")
    table = tiny.db["log"]
    tiny.reopen()
    assert tiny.db["log"] is not table
    append(tiny, b"two")
    assert values(tiny) == [b"one", b"two"]


def test_reopening_waits_for_reads_and_holds_new_ones_back(tiny: Environment) -> None:
    append(tiny, b"one")
    reading, go_on, seen = threading.Event(), threading.Event(), []

    def read() -> None:
        with tiny.read() as txn:
            reading.set()
            go_on.wait(timeout=30)
            seen.append(txn.get((1).to_bytes(8, "big"), db=tiny.db["log"]))

    def read_late() -> None:
        seen.append(values(tiny)[0])

    first = threading.Thread(target=read)
    first.start()
    assert reading.wait(timeout=30)
    with pytest.raises(BusyError, match="did not end"):
        tiny.reopen(deadline_ms=1)
    with tiny.read() as txn:  # the refusal changed nothing
        assert txn.get((1).to_bytes(8, "big"), db=tiny.db["log"]) == b"one"
    second = threading.Thread(target=tiny.reopen)
    second.start()
    while tiny._gate.state == "open":
        pass
    late = threading.Thread(target=read_late)
    late.start()
    go_on.set()
    for thread in (first, second, late):
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert seen == [b"one", b"one"]


def test_a_read_of_the_same_thread_is_no_deadlock(tiny: Environment) -> None:
    with tiny.read():
        with pytest.raises(BusyError, match="this thread"):
            tiny.reopen()
        with pytest.raises(BusyError, match="this thread"):
            tiny.close()
    append(tiny, b"fine")


def test_a_failed_reopening_can_be_tried_again(tiny: Environment) -> None:
    append(tiny, b"one")
    data = tiny.path / DATA_FILE
    content = data.read_bytes()
    with open(data, "r+b") as file:  # the meta page of the newer transaction
        file.seek(content.index(b"\xde\xc0\xef\xbe"))
        file.write(b"\0\0\0\0")
    with pytest.raises(CorruptionError):
        tiny.reopen()
    for use in (tiny.read().__enter__, tiny.begin_write, tiny.last_page):
        with pytest.raises(StoreUnavailableError, match="opened again"):
            use()
    with open(data, "r+b") as file:
        file.write(content)
    tiny.reopen()
    assert values(tiny) == [b"one"]


def test_being_alone_is_exclusive_use(tiny: Environment) -> None:
    with tiny.alone(0):
        append(tiny, b"inside")
    append(tiny, b"after")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (failed(lmdb.MapFullError, -30792), QuotaExceededError),
        (failed(lmdb.CorruptedError, -30796), CorruptionError),
        (failed(lmdb.PageNotFoundError, -30797), CorruptionError),
        (failed(lmdb.BadTxnError, -30782), CorruptionError),
        (failed(lmdb.InvalidError, -30793), CorruptionError),
        (failed(lmdb.VersionMismatchError, -30794), FormatVersionError),
        (failed(lmdb.ReadersFullError, -30790), BusyError),
        (failed(lmdb.PanicError, -30795), SuspectStoreError),
        (failed(lmdb.LockError, errno.EAGAIN), StoreUnavailableError),
        (failed(lmdb.MemoryError, errno.ENOMEM), StoreUnavailableError),
        (failed(lmdb.DiskError, errno.ENOSPC), StorageFullError),
        (failed(lmdb.Error, errno.EDQUOT), StorageFullError),
        (failed(lmdb.Error, errno.EFBIG), StorageFullError),
        (failed(lmdb.Error, errno.EIO), StoreUnavailableError),
        (failed(lmdb.Error, errno.EMFILE), StoreUnavailableError),
        (failed(lmdb.Error, errno.EROFS), ReadOnlyError),
        (failed(lmdb.ReadonlyError, errno.EACCES), ReadOnlyError),
        (lmdb.Error("Attempt to operate on closed/deleted/dropped object."), StoreClosedError),
        (lmdb.Error("something new"), StoreUnavailableError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_errors_of_lmdb_become_ours(error: lmdb.Error, expected: type[Exception]) -> None:
    with pytest.raises(expected) as caught, mapped_errors("store"):
        raise error
    assert type(caught.value) is expected
    assert caught.value.__cause__ is error
    assert caught.value.hint  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("room", "limit", "expected", "full"),
    [
        (1 << 40, None, SuspectStoreError, False),
        (1_000, None, StorageFullError, True),
        (1 << 40, 70_000, StorageFullError, True),
    ],
    ids=["plenty", "full", "file-size-limit"],
)
def test_an_io_error_on_a_full_disk_means_full(
    tiny: Environment,
    room: int,
    limit: int | None,
    expected: type[Exception],
    full: bool,
) -> None:
    class Room(Files):
        def free_bytes(self, path: Path) -> int:
            return room

        def file_bytes_limit(self) -> int | None:
            return limit

    append(tiny, b"x")
    failure = commit_failed(failed(lmdb.Error, errno.EIO), tiny.path, tiny.file_bytes(), Room())
    assert failure.full is full
    assert type(failure.mapped) is expected


def test_a_probe_finds_whether_a_file_can_grow(tmp_path: Path) -> None:
    assert FILES.can_allocate(tmp_path, 1 << 20)
    assert not FILES.can_allocate(tmp_path, 1 << 60)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("threads", [4])
def test_reads_writes_and_reopenings_from_many_threads(tiny: Environment, threads: int) -> None:
    """No read fails or sees less than an earlier one, whatever happens around it."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  handed to the test's own thread
            failures.append(error)
            stop.set()

    def read() -> None:
        last = 0
        while not stop.is_set():
            with tiny.read() as txn:
                entries = txn.stat(tiny.db["log"])["entries"]
            assert entries >= last
            last = entries

    readers = [threading.Thread(target=run, args=(read,)) for _ in range(threads)]
    for thread in readers:
        thread.start()
    for number in range(40):
        append(tiny, b"%d" % number)
        if number % 4 == 0:
            tiny.reopen()
    stop.set()
    for thread in readers:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert not failures, failures
    assert len(values(tiny)) == 40
