"""Back up: a copy of an open store as one commit left it, whole and durable, or no copy.

While a read transaction lives, LMDB writes over none of the pages that it sees. So the pages of the
data file are copied beside all appends, and the copy gets meta pages that name this commit alone.
LMDB's own copying syncs nothing, and takes LMDB's writer mutex, which has no deadline.

Invariants:
    1. The copy holds the commit that its report names, and nothing else: neither of later ones nor
       of what was removed before and lies in the file still (``unused``).
    2. Nothing appears under the target's name unless every page of the copy was walked, LMDB opened
       it, and its commit record is that of the commit (``staging`` has the rest).
    3. Nothing is written to the store; its ``lock.mdb`` is not opened, and no lock file is copied.
    4. Whoever waits for the reads of this process to end, to close or to reopen the store, does not
       wait for a backup: it ends its read transaction and begins again, or fails with the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eventlog import raw
from eventlog.check import check as check_log
from eventlog.environment import Environment
from eventlog.errors import BusyError, CorruptionError
from eventlog.failpoints import fp
from eventlog.inline import InlineProjection
from eventlog.limits import COPY_STARTS_MAX, MAP_BYTES_MIN
from eventlog.log import Log
from eventlog.mapping import Mapped, Mapping
from eventlog.raw import DATA_FILE
from eventlog.rows import CommitRecord
from eventlog.seams import CLOCK, FILES, Clock, Files
from eventlog.staging import Progress, copy_bytes, staged, write_marker
from eventlog.tables import ReadTables
from eventlog.unused import Unused

BACKUP_KEYS: Final = ("backup_of", "backup_position", "backup_us")
PINS_MAX: Final = 8  # looks for a meta page before writers are kept out for the next one


@dataclass(frozen=True, slots=True)
class BackupReport:
    """A backup that is whole and durable.

    Attributes:
        path: Where it is.
        store_id: Of the store, and of the backup.
        position: The last position in it.
        byte_count: Size of its data file.
        seconds: How long it took.
        checked: Whether every row was checked, not only every page.
    """

    path: Path
    store_id: str
    position: int
    byte_count: int
    seconds: float
    checked: bool


def backup(
    environment: Environment,
    path: Path,
    *,
    check: bool = False,
    projections: Sequence[InlineProjection] = (),
    progress: Progress | None = None,
    files: Files = FILES,
    clock: Clock = CLOCK,
) -> BackupReport:
    """Copy an open store; appends and reads go on meanwhile.

    The data file grows for as long as this takes, since pages that the copy needs are not used
    again.

    Args:
        environment: The store's; may be read-only.
        path: Where nothing is yet; its folder exists.
        check: Read every row of the copy too, as ``check`` does.
        projections: Those that its rows were made by; ``check`` needs them.
        progress: Called with the bytes copied and the bytes in all; on this thread.
        files: Calls to the file system.
        clock: Times.

    Raises:
        UsageError: There is something at the path.
        CorruptionError: The store is damaged, so there is no backup; or findings of the check.
        BusyError: Writers could not be kept out for a moment.
        StorageFullError, StoreUnavailableError: The system refused; nothing is left behind.
    """
    started_us = clock.monotonic_us()
    target = files.real_path(path)
    with staged(target, files, clock) as folder:
        record, byte_count = _copy(environment, folder, files, progress)
        fp("backup.after_copy")
        kept = {key: value for key, value in environment.marker.items() if key not in BACKUP_KEYS}
        store_id = str(kept.get("store_id", ""))
        facts = (store_id, record.last_position, clock.wall_us())
        write_marker(folder, kept | dict(zip(BACKUP_KEYS, facts, strict=True)), files)
        verify_copy(folder, tuple(environment.db), record)
        if check:
            check_copy(folder, projections)
    return BackupReport(
        path=target,
        store_id=store_id,
        position=record.last_position,
        byte_count=byte_count,
        seconds=(clock.monotonic_us() - started_us) / 1e6,
        checked=check,
    )


@contextmanager
def opened_copy(folder: Path, tables: tuple[str, ...]) -> Iterator[Mapped]:
    """A copy, read-only, after a walk over every page.

    Args:
        folder: Where it is; nobody else knows of it.
        tables: Names of its named databases.

    Raises:
        CorruptionError: It is not whole.
    """
    mapped = Mapping(
        path=folder,
        tables=tables,
        decode_commit_record=CommitRecord.decode,
        read_only=True,
        is_locked=False,
        map_bytes=max(MAP_BYTES_MIN, (folder / DATA_FILE).stat().st_size),
        hold=nullcontext,
        warn=_ignore,
    ).open(verify=True)
    try:
        yield mapped
    finally:
        mapped.environment.close()


def record_of(mapped: Mapped) -> CommitRecord:
    """The commit record of a copy."""
    with mapped.environment.begin() as transaction:
        return ReadTables(transaction, mapped.db).commit_record()


def verify_copy(folder: Path, tables: tuple[str, ...], record: CommitRecord) -> None:
    """Walk every page of a copy, let LMDB open it, and compare the commit record.

    Raises:
        CorruptionError: It is not whole, or not this commit.
    """
    with opened_copy(folder, tables) as mapped:
        found = record_of(mapped)
    if found != record:
        raise CorruptionError(
            f"the copy ends at position {found.last_position}, not {record.last_position}",
            where=str(folder / DATA_FILE),
        )


def check_copy(folder: Path, projections: Sequence[InlineProjection]) -> None:
    """Read every row of a copy that nobody else knows of.

    Args:
        folder: The copy.
        projections: Those that its rows were made by.

    Raises:
        CorruptionError: There are findings.
    """
    log = Log.open(
        folder,
        projections=projections,
        create_new=False,
        read_only=True,
        allow_network=True,
        private=True,
    )
    try:
        report = check_log(log)
    finally:
        log.close(0)
    if not report.ok:
        first = report.findings[0]
        raise CorruptionError(
            f"{len(report.findings) + report.omitted} findings in the copy, the first: "
            f"{first.message}",
            where=first.where,
        )


def _ignore(*warnings: str) -> None:
    """What opening warns of is said again when the copy is opened."""


class _Interrupted(Exception):
    """Somebody waits for the reads of this process to end."""


def _copy(
    environment: Environment, folder: Path, files: Files, progress: Progress | None
) -> tuple[CommitRecord, int]:
    """Copy the data file, from the start again when somebody needs the store for a moment."""
    target = files.open_file(folder / DATA_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        for _ in range(COPY_STARTS_MAX):
            try:
                with ExitStack() as stack:
                    transaction, meta, heads = _pin(environment, stack)
                    record = ReadTables(transaction, environment.db).commit_record()
                    _copy_pages(environment, meta, heads, record, target, files, progress)
                return record, files.size(target)
            except _Interrupted:
                files.truncate(target, 0)
                environment.await_reopening()
        raise BusyError(
            f"the store was opened anew {COPY_STARTS_MAX} times while it was copied",
            hint="See `health()` for why, and try again.",
        )
    finally:
        files.close(target)


def _pin(environment: Environment, stack: ExitStack) -> tuple[Any, raw.Meta, bytes]:
    """A read transaction and the meta page of its commit, from which two more commits would be.

    Commits go on between the two looks, so this may miss; at last they are kept out for a moment.
    """
    for attempt in range(PINS_MAX + 1):
        with environment.held() if attempt == PINS_MAX else nullcontext(), ExitStack() as maybe:
            transaction = maybe.enter_context(environment.read())
            found = raw.pin(environment.data_file, transaction.id())
            if found is not None:
                stack.enter_context(maybe.pop_all())
                return transaction, *found
    raise CorruptionError(
        f"transaction {transaction.id()} has no meta page", where=environment.data_file.where
    )


def _copy_pages(
    environment: Environment,
    meta: raw.Meta,
    heads: bytes,
    record: CommitRecord,
    target: int,
    files: Files,
    progress: Progress | None,
) -> None:
    # A file that is shorter than the commit record says is a damaged one.
    size = max(meta.bytes_in_use, record.file_bytes)

    def advance(done: int) -> None:
        if environment.is_waited_for:
            raise _Interrupted
        if progress is not None:
            progress(done, meta.bytes_in_use)

    files.write_at(target, heads, 0)
    files.truncate(target, size)
    source = environment.data_file
    unused = Unused(source, meta)
    stop = meta.bytes_in_use
    copy_bytes(source.descriptor, target, len(heads), stop, files, advance, unused)
