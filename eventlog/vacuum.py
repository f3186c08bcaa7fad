"""Vacuum: rewrite a store's data file, so that nothing is in it but what can be read.

LMDB gives no page back to the file system, and a page that is in use keeps bytes of rows that were
removed from it. So rows are put, in key order, into a new environment beside the store; copying
pages would take those bytes along.

Invariants:
    1. Nobody else has the store open meanwhile, also no other store of this process.
    2. Until the new file is whole, compared row by row with the old one, walked and durable, the
       store is the old one; then one rename makes it the new one. Whoever had the old file open
       finds another inode (``Environment``).
    3. What a kill leaves beside the store is swept like what a dead creator left.
    4. Neither the lock files nor the data file keep anything of before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Any, Final

import lmdb
from xxhash import xxh3_128

from eventlog.backup import opened_copy
from eventlog.creation import fill_lock_files, open_private
from eventlog.environment import Environment
from eventlog.errors import (
    CorruptionError,
    StorageFullError,
)
from eventlog.failpoints import fp
from eventlog.limits import (
    ALONE_DEADLINE_MS,
    MIB,
    REWRITE_BYTES,
)
from eventlog.lmdb_errors import map_error, map_os_error, why_full
from eventlog.place import LOCK_FILE
from eventlog.raw import COMMIT_KEY, COMMIT_TABLE, DATA_FILE
from eventlog.recoding import recoding_of
from eventlog.rows import CommitRecord
from eventlog.seams import CLOCK, FILES, Clock, Files
from eventlog.staging import Progress, scratch, told_of
from eventlog.tables import ReadTables, tables_of

Transform = Callable[[str, bytes, bytes], bytes | None]
Rows = Iterator[tuple[bytes, bytes]]

PAUSE_ROWS: Final = 256  # rows after which the GIL is let go
_SIZES: Final = Struct("<II")
_COMMIT: Final = COMMIT_TABLE.decode()


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """A data file that was rewritten.

    Attributes:
        path: The store.
        bytes_before: Size of its data file before.
        bytes_after: Size of its data file now.
        rows: Rows in it.
        seconds: How long it took.
    """

    path: Path
    bytes_before: int
    bytes_after: int
    rows: int
    seconds: float


@dataclass(slots=True)
class _Sum:
    """How many rows a table has, and a digest of all of them in key order."""

    rows: int = 0
    digest: bytes = b""


class _Count:
    """Counts bytes and rows of a long walk; lets the GIL go, and tells how far it is."""

    def __init__(self, total: int, progress: Progress | None, clock: Clock) -> None:
        self._total = total
        self._progress = progress
        self._clock = clock
        self._done = 0
        self._rows = 0

    def row(self, byte_count: int) -> None:
        self._done += byte_count
        self._rows += 1
        if self._rows % PAUSE_ROWS == 0:
            self._clock.sleep(0)

    def tell(self, done: int | None = None) -> None:
        if self._progress is not None:
            self._progress(min(self._done if done is None else done, self._total), self._total)


def vacuum(
    path: str | os.PathLike[str],
    *,
    transform: Transform | None = None,
    progress: Progress | None = None,
    allow_network: bool = False,
    lock_deadline_ms: int = ALONE_DEADLINE_MS,
    files: Files = FILES,
    clock: Clock = CLOCK,
) -> VacuumReport:
    """Rewrite a store that nobody has open.

    Args:
        path: The store.
        transform: Called with table, key and value of each row, in key order, table by table and
            the commit record last; gives the value to write, or None to leave the row out. By
            default segments are compressed anew (``recoding``).
        progress: Called with the bytes done and the bytes in all.
        allow_network: Only warn about a network file system.
        lock_deadline_ms: How long to wait for others to go out.
        files: Calls to the file system.
        clock: Times.

    Raises:
        BusyError: Others have it open, or this process; names them.
        StorageFullError: There is no room for a second data file beside it.
        CorruptionError: It is damaged; nothing was changed.
        NotAStoreError, FormatVersionError, ReadOnlyError, StoreUnavailableError: As by opening.
    """
    started_us = clock.monotonic_us()
    with (
        Environment.open(
            path,
            tables=tables_of,
            decode_commit_record=CommitRecord.decode,
            allow_network=allow_network,
            verify=True,
            lock_deadline_ms=lock_deadline_ms,
            files=files,
            clock=clock,
        ) as environment,
        environment.alone(lock_deadline_ms),
        told_of(environment.path, files, "vacuumed"),
    ):
        before = environment.file_bytes()
        with environment.read() as source, _mapped(environment.path, files):
            used = environment.used_bytes(source)
            _refuse_full(environment.path, used, files)
            with scratch(environment.path, files) as folder:
                recode = recoding_of(ReadTables(source, environment.db))
                rewrite = _Rewrite(environment, source, folder, transform or recode, files)
                count = _Count(2 * used, progress, clock)
                sums = rewrite.fill(count)
                rewrite.compare(sums, count)
                after = rewrite.make_durable()
                fp("vacuum.before_rename")
                files.rename(folder / DATA_FILE, environment.path / DATA_FILE)
                fp("vacuum.after_rename")
                files.fsync_folder(environment.path)
                # Not needed by whoever comes next, but it has its room and tells of nobody.
                files.rename(folder / LOCK_FILE, environment.path / LOCK_FILE)
        environment.wipe_locks()
        files.fsync_folder(environment.path)
        count.tell(2 * used)
    return VacuumReport(
        path=environment.path,
        bytes_before=before,
        bytes_after=after,
        rows=sum([each.rows for each in sums.values()]),
        seconds=(clock.monotonic_us() - started_us) / 1e6,
    )


def _refuse_full(path: Path, used: int, files: Files) -> None:
    needed = used + used // 16 + MIB
    free = files.free_bytes(path.parent)
    if free < needed:
        raise StorageFullError(
            f"a vacuum of {path} needs about {needed:,} bytes beside it, and {free:,} are free",
            hint="Make room on the file system; nothing was changed.",
        )


@contextmanager
def _mapped(path: Path, files: Files) -> Iterator[None]:
    """Errors of LMDB as ours; on a full disk it reports some other one."""
    try:
        yield
    except lmdb.Error as error:
        full = why_full(path.parent, 0, files)
        if full is not None:
            raise map_os_error(full, f"{path} cannot be vacuumed: {error}") from error
        raise map_error(error, str(path)) from error


class _Rewrite:
    """One new data file."""

    def __init__(
        self,
        environment: Environment,
        source: lmdb.Transaction[Any],
        folder: Path,
        transform: Transform | None,
        files: Files,
    ) -> None:
        self._environment = environment
        self._source = source
        self._folder = folder
        self._transform = transform
        self._files = files
        names = [*environment.db]
        self._names = [*[name for name in names if name != _COMMIT], _COMMIT]
        self._in_use = 0

    def fill(self, count: _Count) -> dict[str, _Sum]:
        """Write every row; the commit record last, in a transaction of which it is true."""
        target = open_private(self._folder, self._environment.map_bytes)
        try:
            with target.begin(write=True) as txn:
                db = {name: target.open_db(name.encode(), txn=txn) for name in self._names}
            sums = {name: self._fill_table(target, db[name], name, count) for name in self._names}
            self._in_use = (target.info()["last_pgno"] + 1) * target.stat()["psize"]
        finally:
            target.close()
        return sums

    def _fill_table(self, target: lmdb.Environment, table: Any, name: str, count: _Count) -> _Sum:
        batch: list[tuple[bytes, bytes]] = []
        found, digest, size = _Sum(), xxh3_128(), 0
        for key, stored in self._rows(self._source, self._environment.db[name]):
            value = stored if self._transform is None else self._transform(name, key, stored)
            count.row(len(key) + len(stored))
            if value is None:
                continue
            if name == _COMMIT and key == COMMIT_KEY:
                value = self._renewed(target, value)
            _add(digest, key, value)
            batch.append((key, value))
            found.rows += 1
            size += len(key) + len(value)
            if size >= REWRITE_BYTES:
                self._put(target, table, name, batch)
                batch, size = [], 0
                count.tell()
        if batch:
            self._put(target, table, name, batch)
        found.digest = digest.digest()
        return found

    def _put(
        self,
        target: lmdb.Environment,
        table: Any,
        name: str,
        batch: list[tuple[bytes, bytes]],
    ) -> None:
        with target.begin(write=True) as txn, txn.cursor(table) as cursor:
            consumed, added = cursor.putmulti(batch, append=True)
        if (consumed, added) != (len(batch), len(batch)):
            raise CorruptionError("has keys that do not rise", where=f"table {name}")

    def _renewed(self, target: lmdb.Environment, value: bytes) -> bytes:
        """The commit record of the new file: the next transaction there writes it."""
        record = CommitRecord.decode(value)
        size = (self._folder / DATA_FILE).stat().st_size
        transaction = target.info()["last_txnid"] + 1
        return replace(
            record, transaction=transaction, file_bytes=size, previous=record.encode()[:8]
        ).encode()

    @staticmethod
    def _rows(txn: lmdb.Transaction[Any], table: Any) -> Rows:
        with txn.cursor(table) as cursor:
            for key, value in cursor:
                yield bytes(key), bytes(value)

    def compare(self, sums: dict[str, _Sum], count: _Count) -> None:
        """Walk all pages of the new file and read every row again.

        Raises:
            CorruptionError: It is not what was written.
        """
        self._files.set_mode(self._folder / DATA_FILE, 0o600)
        data = self._files.open_file(self._folder / DATA_FILE, os.O_RDWR)
        try:
            if self._files.size(data) < self._in_use:
                self._files.truncate(data, self._in_use)
        finally:
            self._files.close(data)
        with (
            opened_copy(self._folder, tuple(self._names)) as mapped,
            mapped.environment.begin() as txn,
        ):
            for name in self._names:
                digest, rows = xxh3_128(), 0
                for key, value in self._rows(txn, mapped.db[name]):
                    _add(digest, key, value)
                    rows += 1
                    count.row(len(key) + len(value))
                if sums[name] != _Sum(rows, digest.digest()):
                    raise CorruptionError("was not written as it is", where=f"table {name}")
                count.tell()

    def make_durable(self) -> int:
        """Sync the new file; its size."""
        fill_lock_files(self._folder, self._files)
        data = self._files.open_file(self._folder / DATA_FILE, os.O_RDWR)
        try:
            self._files.fsync_file(data)
            size = self._files.size(data)
        finally:
            self._files.close(data)
        self._files.fsync_folder(self._folder)
        return size


def _add(digest: Any, key: bytes, value: bytes) -> None:
    digest.update(_SIZES.pack(len(key), len(value)) + key)
    digest.update(value)
