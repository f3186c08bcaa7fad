"""Open a store, and keep what makes LMDB unsafe away from it.

LMDB always runs with sync on and without writemap; there is no option for less.

Invariants:
    1. Opening again after a failed commit examines the file as opening does (``mapping``).
    2. A write transaction runs only while the writer lock is held, and only on the files that were
       opened: when ``data.mdb`` or ``lock.mdb`` names another file, nothing is written any more.
    3. After a commit the data file is as long as the pages in use, before the lock is given back.
    4. A forked child reads and writes nothing through the parent's environment, and gives none of
       its locks back.
    5. ``lock.mdb`` is never opened by this code while LMDB has it open here: closing any descriptor
       of it would drop the record locks by which LMDB knows that this process lives.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

import lmdb

from eventlog import raw, survival
from eventlog.creation import LMDB_VERSION, make_lock_file
from eventlog.errors import (
    BusyError,
    NotAStoreError,
    ReadOnlyError,
    StoreUnavailableError,
)
from eventlog.gate import BROKEN, CLOSED, FORKED, OPEN, Gate
from eventlog.limits import (
    CLOSE_DEADLINE_MS,
    LOCK_DEADLINE_MS,
    MAP_BYTES,
)
from eventlog.lmdb_errors import (
    NOT_WRITABLE_CODES,
    commit_failed,
    map_error,
    map_os_error,
    mapped_errors,
)
from eventlog.locks import LOCK_FILES, UseLock, WriterLock
from eventlog.mapping import Mapping
from eventlog.place import (
    LOCK_FILE,
    MARKER_FILE,
    force_modes,
    read_marker,
    refuse_network,
    sweep_leftovers,
)
from eventlog.raw import DATA_FILE, CommitRecordLike
from eventlog.seams import CLOCK, FILES, Clock, Files, FileWatch, ProcessIdentity, process_identity

if TYPE_CHECKING:
    from lmdb import _Database as Database

    ReadTransaction = lmdb.Transaction[Any]
    WriteTransaction = lmdb.Transaction[bytes]

EXTEND_BYTES_MIN: Final = 256 * 1024  # the data file grows by at least so much
EXTEND_SHARE: Final = 16  # or by 1/16 of what is in use: few calls
EXTEND_UNIT: Final = 64 * 1024
FREE_BYTES_LOW: Final = 4 * 1024 * 1024  # of a file that cannot grow: kept for removals
FREE_SHARE_LOW: Final = 4  # or a quarter of it
FULL_CODES: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def identity(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Device and inode of a store's data file, which two paths to one store share.

    Raises:
        NotAStoreError: There is no data file.
    """
    try:
        found = os.stat(os.path.join(path, DATA_FILE))
    except OSError as error:
        raise NotAStoreError(f"{os.fspath(path)} is not a turnlog store") from error
    return found.st_dev, found.st_ino


class _Read:
    """A read transaction as a context manager; a class, because it is on every read's path."""

    __slots__ = ("_buffers", "_environment", "_txn")

    def __init__(self, environment: Environment, buffers: bool) -> None:
        self._environment = environment
        self._buffers = buffers

    def __enter__(self) -> ReadTransaction:
        environment = self._environment
        gate = environment._gate
        try:
            gate.enter(self)
            try:
                txn = environment._lmdb.begin(buffers=self._buffers)  # type: ignore[call-overload]
            except lmdb.Error as error:
                txn = environment._begin_read_again(self, error, self._buffers)
        except BaseException:
            gate.leave(self)
            raise
        self._txn = txn
        return cast("ReadTransaction", txn)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        environment = self._environment
        gate = environment._gate
        if gate.state is not FORKED:  # in a child it would free the parent's reader slot
            try:
                self._txn.abort()
            finally:
                gate.leave(self)
        if isinstance(error, lmdb.Error):
            raise map_error(error, environment._where) from error


class Environment:
    """An open store's files, locks and map. Made by ``open``.

    Reads may come from any thread. Write transactions come from one thread at a time, and each is
    ended by the thread that began it.

    Attributes:
        path: The store's folder, absolute, without symbolic links.
        marker: What ``turnlog.json`` holds.
        read_only: Whether writing is refused.
        db: The named databases; the mapping stays, its values change with ``reopen``.
        map_bytes: Size of the memory map.
        page_bytes: Size of a page.
        version: The store's format version.
        warnings: What is not as it should be, for people.
        is_replaced: Whether the files under the path are others by now; only closing is left.
        stop: Set it to end every wait for a lock; what needs no wait still works.
    """

    def __init__(
        self,
        path: Path,
        *,
        tables: Callable[[int], tuple[str, ...]],
        decode_commit_record: Callable[[bytes], CommitRecordLike],
        read_only: bool,
        marker: dict[str, Any],
        lock_deadline_ms: int,
        files: Files,
        clock: Clock,
        private: bool = False,
    ) -> None:
        self.path = path
        self.marker = marker
        self.version: int = marker["version"]
        self.read_only = read_only
        self.db: dict[str, Database] = {}
        self.map_bytes = 0
        self.page_bytes = 0
        self.warnings: list[str] = []
        self.is_replaced = False
        self.stop = threading.Event()
        self._where = str(path)
        self._tables_of = tables
        self._tables = tables(self.version)
        self._decode = decode_commit_record
        self._lock_deadline_ms = lock_deadline_ms
        self._private = private
        self._files = files
        self._clock = clock
        self._gate = Gate(path)
        self._writing = False
        self._txn: WriteTransaction | None = None
        self.is_low = False  # the file cannot grow
        self.is_full = False  # nor has it free pages for more than what removes events
        self._file_bytes = 0  # the data file is at least so long
        self._folder = -1
        self._data = -1
        self._map_asked = 0
        self._alone_thread = 0  # which is, or waits to be, in the body of ``alone``
        self._use_lock: UseLock
        self._writer_lock: WriterLock | None = None
        self._watch: FileWatch | None = None
        self._lmdb: lmdb.Environment

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        tables: Callable[[int], tuple[str, ...]],
        decode_commit_record: Callable[[bytes], CommitRecordLike],
        read_only: bool = False,
        map_bytes: int = MAP_BYTES,
        allow_network: bool = False,
        verify: bool = False,
        lock_deadline_ms: int = LOCK_DEADLINE_MS,
        private: bool = False,
        files: Files = FILES,
        clock: Clock = CLOCK,
    ) -> Environment:
        """Open a store; once per process, since LMDB refuses a second time.

        Args:
            path: The store's folder.
            tables: Names of the named databases of a format version.
            decode_commit_record: Decodes the commit record, or raises CorruptionError.
            read_only: Refuse to write; works on a read-only file system too.
            map_bytes: Address space for the map, which bounds the data file; halved, with a
                warning, where there is less.
            allow_network: Only warn about a network file system.
            verify: Walk every page first.
            lock_deadline_ms: How long to wait for a vacuum or a writer; reading alone waits for
                no writer.
            private: Nobody else knows of the folder: read it without lock files.
            files: Calls to the file system.
            clock: Time and waiting.

        Raises:
            NotAStoreError, FormatVersionError, CorruptionError: What is there cannot be opened.
            ReadOnlyError: It can be opened with ``read_only=True`` only.
            BusyError, StoreUnavailableError: The environment refused; nothing stays open.
        """
        target = files.real_path(path)
        marker = read_marker(target, files)
        environment = cls(
            target,
            tables=tables,
            decode_commit_record=decode_commit_record,
            read_only=read_only,
            marker=marker,
            lock_deadline_ms=lock_deadline_ms,
            files=files,
            clock=clock,
            private=private,
        )
        environment._warn(*refuse_network(target, files, allow=allow_network))
        if lmdb.version(subpatch=True, lib_version=LMDB_VERSION)[3] != 1:
            environment._warn("this build of lmdb lacks the checks of a damaged file")
        raw.read_metas(target / DATA_FILE)  # before a lock file is written into a foreign store
        try:
            environment._open(map_bytes, verify)
        except OSError as error:
            raise map_os_error(
                error.errno or 0, f"{target} cannot be opened: {error.strerror or error}"
            ) from error
        if not read_only:
            sweep_leftovers(target, files, clock)
        return environment

    def _open(self, map_bytes: int, verify: bool) -> None:
        files = self._files
        me = process_identity()
        with ExitStack() as undo:
            self._folder = files.open_folder(self.path)
            undo.callback(files.close, self._folder)
            if not self.read_only:
                force_modes(self.path, (DATA_FILE, LOCK_FILE, MARKER_FILE, *LOCK_FILES), files)
            self._refuse_self()
            self._use_lock = self._go_in(me)
            undo.callback(self._use_lock.leave)
            if self._use_lock.writable:
                self._writer_lock = WriterLock(
                    self._folder, files=files, clock=self._clock, identity=me
                )
                undo.callback(self._writer_lock.close)
            self._data = files.open_file(
                DATA_FILE, os.O_RDONLY if self.read_only else os.O_RDWR, folder=self._folder
            )
            undo.callback(files.close, self._data)
            self._refuse_second()
            self._find_version()
            if self._writer_lock is not None and not self._files.exists(self.path / LOCK_FILE):
                make_lock_file(self.path, self._files)
            self._map_asked = map_bytes
            self._open_lmdb(verify=verify)
            undo.callback(lambda: self._lmdb.close())
            if self._writer_lock is not None:
                self._watch = FileWatch(self._folder, (DATA_FILE, LOCK_FILE))
            undo.pop_all()
        self._gate.state = OPEN
        survival.opened(self)

    def _refuse_self(self) -> None:
        """Refuse to wait for what this thread does itself, and would not end meanwhile."""
        for other in survival.living():
            if other._alone_thread == threading.get_ident() and os.path.sameopenfile(
                other._folder, self._folder
            ):
                raise BusyError(
                    f"{self.path} is being vacuumed or upgraded by this thread",
                    owner="this process",
                    hint="Open it once that is done.",
                )

    def _refuse_second(self) -> None:
        """LMDB would refuse too, but not before its lock file was looked at."""
        for other in survival.living():
            try:
                is_same = os.path.sameopenfile(other._data, self._data)
            except OSError:  # it is a parent's, or was closed meanwhile
                continue
            if is_same and not other.is_forked:
                raise BusyError(
                    f"{self.path} is already open in this process",
                    owner="this process",
                    hint="Share the store that is open, or close it first.",
                )

    def _find_version(self) -> None:
        """The format version: the data tells it, the marker what a release must know to go in.

        The marker is read again, since an upgrade may have kept this process waiting outside.
        """
        self.marker = read_marker(self.path, self._files)
        record = raw.glance(
            raw.DataFile(self._data, str(self.path / DATA_FILE)), self._decode
        ).record
        marked = self.marker["version"]
        self.version = getattr(record, "version", marked)
        if self.version != marked:
            self._warn(
                f"its rows are of format version {self.version}, and its marker names {marked}: an "
                "upgrade was broken off; `turnlog upgrade` goes on with it"
            )
        self._tables = self._tables_of(self.version)

    def _go_in(self, me: ProcessIdentity) -> UseLock:
        """Take the use lock; where it cannot be written, reading without locks is left."""
        options: dict[str, Any] = {
            "deadline_ms": self._lock_deadline_ms,
            "files": self._files,
            "clock": self._clock,
            "identity": me,
        }
        if self._private:
            assert self.read_only
            return UseLock.enter(self._folder, writable=False, **options)
        try:
            return UseLock.enter(self._folder, writable=True, **options)
        except OSError as error:
            if error.errno not in NOT_WRITABLE_CODES:
                raise
            if not self.read_only:
                raise ReadOnlyError(
                    f"{self.path} cannot be written: {error.strerror}",
                    hint="Open it with read_only=True, or make the file system and the store "
                    "writable for this user.",
                ) from error
            return UseLock.enter(self._folder, writable=False, **options)

    def held(self) -> AbstractContextManager[None]:
        """The writer lock, where this process has one."""
        lock = self._writer_lock
        return nullcontext() if lock is None else lock.held(self._lock_deadline_ms, self.stop)

    def _open_lmdb(self, *, verify: bool, held: bool = False) -> None:
        """Map the file; ``held`` when the caller holds the writer lock."""
        mapped = Mapping(
            path=self.path,
            tables=self._tables,
            decode_commit_record=self._decode,
            read_only=self.read_only,
            is_locked=self._writer_lock is not None,
            map_bytes=self._map_asked,
            hold=nullcontext if held else self.held,
            warn=self._warn,
        ).open(verify=verify)
        self._lmdb = mapped.environment
        self.db.update(mapped.db)
        self.map_bytes = mapped.map_bytes
        self.page_bytes = mapped.page_bytes

    def _warn(self, *warnings: str) -> None:
        self.warnings += [warning for warning in warnings if warning not in self.warnings]

    # Reading

    def read(self, *, buffers: bool = False) -> _Read:
        """A context manager that yields a read transaction, a snapshot of the newest commit.

        Keep it short: while it lives, the pages it sees are not used again, and ``reopen`` waits.
        LMDB's errors leave it as ours.

        Args:
            buffers: Give values as memoryviews, which must not outlive the transaction.

        Raises:
            BusyError: All reader slots are taken, by living processes.
            StoreClosedError, ForkedStoreError, StoreUnavailableError: The store cannot be read.
        """
        return _Read(self, buffers)

    def _begin_read_again(
        self, read: _Read, error: lmdb.Error, buffers: bool
    ) -> lmdb.Transaction[Any]:
        """A read transaction could not begin: mend what can be mended and try once more."""
        if isinstance(error, lmdb.ReadersFullError):
            with mapped_errors(self._where):
                self._lmdb.reader_check()
        elif isinstance(error, lmdb.MapResizedError):
            self._gate.leave(read)
            with nullcontext() if self.read_only else self.held():
                self._adopt_map()
            self._gate.enter(read)
        else:
            raise map_error(error, self._where) from error
        with mapped_errors(self._where):
            return self._lmdb.begin(buffers=buffers)  # type: ignore[call-overload, no-any-return]

    def _adopt_map(self) -> None:
        """Another process let the file grow beyond our map: map as much as the file needs.

        The reads in flight must end first. Whoever may write holds the writer lock, since no write
        transaction may be open either.
        """
        with self._gate.paused(self._lock_deadline_ms):
            in_use = raw.read_metas(self.path / DATA_FILE)[0].bytes_in_use
            if in_use <= self.map_bytes:
                return  # another thread did it meanwhile
            size = self.map_bytes
            while size < 2 * in_use:  # room for what comes next
                size *= 2
            with mapped_errors(self._where):
                try:
                    self._lmdb.set_mapsize(size)
                except lmdb.MemoryError:
                    # That leaves no map at all; begin again with what there is room for.
                    self._map_asked = size
                    self._open_again(held=True)
            self.map_bytes = self._lmdb.info()["map_size"]

    # Writing

    def begin_write(self, deadline_ms: int | None = None) -> WriteTransaction:
        """Take the writer lock and begin a write transaction.

        End it with ``commit`` or ``abort``, in this thread.

        Args:
            deadline_ms: How long to wait for another process; as given to ``open`` when None.

        Raises:
            BusyError: Another process writes; names it.
            StoreUnavailableError: The store's files were replaced or removed; close it.
            ReadOnlyError, StoreClosedError, ForkedStoreError: Not here.
        """
        self._gate.refuse_unusable()
        lock, watch = self._writer_lock, self._watch
        if self.read_only or lock is None or watch is None:
            raise ReadOnlyError(f"{self.path} was opened read-only")
        lock.acquire(self._lock_deadline_ms if deadline_ms is None else deadline_ms, self.stop)
        try:
            self._gate.refuse_unusable()
            self._refuse_replaced(watch)
            self._file_bytes = max(self._file_bytes, watch.size)
            with self._gate.changing:  # a reader may be adopting a larger map
                try:
                    txn = self._lmdb.begin(write=True)
                except lmdb.MapResizedError:
                    self._adopt_map()
                    txn = self._lmdb.begin(write=True)
        except lmdb.Error as error:
            lock.release()
            raise map_error(error, self._where) from error
        except BaseException:
            lock.release()
            raise
        self._txn = txn
        self._writing = True
        return txn

    def _refuse_replaced(self, watch: FileWatch) -> None:
        changed = watch.try_changed()
        if changed is not None:
            self.is_replaced = True
            raise StoreUnavailableError(
                f"{self.path / changed} was removed or replaced while the store was open",
                hint="Close the store and open it again; nothing can be written through this one.",
            )

    def commit(self, txn: WriteTransaction) -> None:
        """Make a write transaction durable and give the writer lock back, in every case.

        Raises:
            CommitFailedError: LMDB refused; the store must be opened again (``reopen``).
        """
        if self._gate.state is FORKED:
            self._gate.refuse_unusable()
        assert self._writing and self._writer_lock is not None
        try:
            try:
                txn.commit()
            except lmdb.Error as error:
                failure = commit_failed(error, self.path, self._file_bytes, self._files)
                self.is_low = self.is_low or failure.full
                raise failure from error
            self._extend()
        finally:
            self._writing = False
            self._writer_lock.release()

    def abort(self, txn: WriteTransaction) -> None:
        """Drop a write transaction and give the writer lock back; nothing after ``commit``."""
        if self._gate.state is FORKED:
            return  # it is the parent's
        try:
            txn.abort()
        finally:
            if self._writing and self._writer_lock is not None:
                self._writing = False
                self._writer_lock.release()

    def _extend(self) -> None:
        """Let the file reach beyond its pages in use, with room on the disk.

        A short file then always means damage, and what removes events fits in when the disk is
        full: ``is_low`` says that this room is all there is.
        """
        in_use = (self._lmdb.info()["last_pgno"] + 1) * self.page_bytes
        step = max(EXTEND_BYTES_MIN, in_use // EXTEND_SHARE)
        if in_use + step // 2 <= self._file_bytes and not self.is_low:
            return
        try:
            size = self._files.size(self._data)
            if size < in_use + step // 2 or self.is_low:
                wanted = max(size, -(-(in_use + step) // EXTEND_UNIT) * EXTEND_UNIT)
                try:
                    self._files.allocate(self._data, wanted, in_use)
                    size, self.is_low = wanted, False
                except OSError as error:
                    self.is_low = error.errno in FULL_CODES
                    if size < in_use:
                        self._files.truncate(self._data, in_use)  # a hole takes no room
                        size = in_use
            self._file_bytes = size
        except OSError:
            # The commit is durable all the same; the next open walks a file that is short.
            pass

    def has_room(self, txn: lmdb.Transaction[Any]) -> bool:
        """Whether there is room for more than what removes events.

        On the disk, which is asked again when it had none, or in the file, once removals have
        freed so many pages of it that what is left is enough for others.
        """
        if self.is_low:
            self._extend()
        self.is_full = self.is_low and not self._has_free_pages(txn)
        return not self.is_full

    def _has_free_pages(self, txn: lmdb.Transaction[Any]) -> bool:
        in_use = (self._lmdb.info()["last_pgno"] + 1) * self.page_bytes
        return in_use - self.used_bytes(txn) >= max(FREE_BYTES_LOW, in_use // FREE_SHARE_LOW)

    # The whole

    def abandon(self) -> None:
        """Drop whatever write transaction is open, when its user lost hold of it."""
        txn = self._txn
        if self._writing and txn is not None:
            self.abort(txn)

    def reopen(self, deadline_ms: int = CLOSE_DEADLINE_MS) -> None:
        """Close LMDB, examine the file and open it again, after a commit failed.

        Waits for the reads in flight; new ones wait meanwhile. When it raises, the store stays
        unusable but for another ``reopen`` or ``close``.

        Raises:
            BusyError: Reads did not end, or another process wrote, for too long; nothing changed.
            TurnlogError: The file cannot be opened, as from ``open``.
        """
        if self._gate.state is not BROKEN:
            self._gate.refuse_unusable()
        assert not self._writing, "end the write transaction first"
        # The writer lock first, as in begin_write: two threads never wait for each other.
        with nullcontext() if self.read_only else self.held(), self._gate.paused(deadline_ms):
            if self._watch is not None:
                self._refuse_replaced(self._watch)
            self._open_again(held=not self.read_only)
            self._gate.state = OPEN

    def _open_again(self, *, held: bool) -> None:
        """Close and open LMDB while reads are paused; the store is broken when that fails."""
        try:
            self._lmdb.close()
            self._open_lmdb(verify=False, held=held)
        except BaseException as error:
            self._gate.state = BROKEN
            if isinstance(error, OSError):
                raise map_os_error(
                    error.errno or 0, f"{self.path} cannot be opened: {error.strerror or error}"
                ) from error
            raise

    def close(self, deadline_ms: int = CLOSE_DEADLINE_MS) -> None:
        """Close LMDB and all files, and give back all locks. Twice is fine.

        In a forked child this only forgets them.

        Raises:
            BusyError: Reads did not end in time; the store stays open.
        """
        gate = self._gate
        if gate.state in (CLOSED, FORKED) or gate.is_elsewhere:
            return
        with gate.paused(deadline_ms):
            self.stop.set()
            self._lmdb.close()
            gate.state = CLOSED
            survival.closed(self)
            if self._writer_lock is not None:
                self._writer_lock.leave()
            self._use_lock.leave()
            for descriptor in (self._data, self._folder):
                self._files.close(descriptor)

    def close_late(self) -> None:
        """``close`` that waits for the reads in flight as long as they take, and refuses others."""
        self._gate.shut()
        self.close()

    def __enter__(self) -> Environment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def forked(self) -> None:
        """In a child: close our descriptors, unlock nothing, and refuse from now on."""
        if self._gate.state in (CLOSED, FORKED):
            return
        self._gate.forked()
        self.keep()
        if self._writer_lock is not None:
            self._writer_lock.close()
        self._use_lock.close()
        for descriptor in (self._data, self._folder):
            self._files.close(descriptor)

    def keep(self) -> None:
        """Let LMDB's destructor never run; see ``survival``."""
        survival.keep(self._lmdb)

    @property
    def is_forked(self) -> bool:
        """True in a child that inherited this from its parent by a fork."""
        return self._gate.state is FORKED

    def refuse_forked(self) -> None:
        """Raise in a child that inherited this; to be asked before a lock that a thread may hold.

        Raises:
            ForkedStoreError: In such a child.
        """
        self._gate.refuse_forked()

    @property
    def data_file(self) -> raw.DataFile:
        """The data file as it was opened, for reads of its own; as long as the store is open."""
        self._gate.refuse_unusable()
        return raw.DataFile(self._data, str(self.path / DATA_FILE))

    @property
    def is_waited_for(self) -> bool:
        """Whether a read had better end: somebody closes, opens or maps the file anew."""
        return self._gate.state is not OPEN

    def await_reopening(self) -> None:
        """Wait until whoever needed reads to end is done.

        Raises:
            StoreClosedError, ForkedStoreError, StoreUnavailableError: Reads do not go on.
        """
        read = object()
        try:
            self._gate.enter(read)
        finally:
            self._gate.leave(read)

    def members(self) -> list[ProcessIdentity]:
        """The other processes that have the store open."""
        return self._use_lock.members()

    @contextmanager
    def alone(self, deadline_ms: int) -> Iterator[None]:
        """No other process has the store open in the body of the ``with``.

        Raises:
            BusyError: Others are in; names them.
        """
        if self.read_only or self._writer_lock is None:
            raise ReadOnlyError(f"{self.path} was opened read-only")
        self._gate.refuse_unusable()
        self._alone_thread = threading.get_ident()
        try:
            self._use_lock.exclusive(deadline_ms, self.stop)
            try:
                yield
            finally:
                self._use_lock.shared()
        finally:
            self._alone_thread = 0

    def wipe_locks(self) -> None:
        """Let the lock files tell of nobody any more; in the body of ``alone``."""
        assert self._writer_lock is not None
        self._use_lock.wipe()
        self._writer_lock.wipe()

    def create_tables(self, txn: WriteTransaction, names: Iterable[str]) -> dict[str, Database]:
        """Make named databases in an open write transaction."""
        with mapped_errors(self._where):
            return {name: self._lmdb.open_db(name.encode(), txn=txn) for name in names}

    def reader_check(self) -> int:
        """Free the reader slots of processes that died; how many."""
        if self._writer_lock is None:
            return 0
        self._gate.refuse_unusable()
        with mapped_errors(self._where):
            return self._lmdb.reader_check()

    def file_bytes(self) -> int:
        """Size of the data file; inside a write transaction, its size when that began."""
        if self._writing and self._watch is not None:
            return self._watch.size
        self._gate.refuse_unusable()
        return self._files.size(self._data)

    def last_page(self) -> int:
        """Number of the last page in use, from 0."""
        self._gate.refuse_unusable()
        with mapped_errors(self._where):
            return self._lmdb.info()["last_pgno"]

    def used_bytes(self, txn: lmdb.Transaction[Any]) -> int:
        """Bytes of the pages that the tables use; what the file has more is free or LMDB's own."""
        pages = 0
        with mapped_errors(self._where):
            for table in self.db.values():
                found = txn.stat(table)
                pages += found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
        return pages * self.page_bytes
