"""Upgrade: a store of an older format version becomes one of this release's.

The marker goes first, since it is what keeps older releases out: to them rows of a newer version
would be damage. What version the rows have, the commit record says itself, and a store is opened in
that version. So a store whose upgrade was broken off reads and appends as before it, in this
release, until the upgrade is run again.

Invariants:
    1. Nobody else has the store open meanwhile, also no other store of this process.
    2. All rows change in one transaction: new named databases, and a commit record of the new
       version. None is removed, none is moved.
    3. Killed anywhere, the store opens in this release, and upgrading it again finishes it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from eventlog import raw
from eventlog.backup import backup as back_up
from eventlog.environment import Environment
from eventlog.errors import TurnlogError, UsageError
from eventlog.failpoints import fp
from eventlog.idruns import IdRuns
from eventlog.limits import ALONE_DEADLINE_MS
from eventlog.lmdb_errors import CommitFailedError, mapped_errors
from eventlog.place import FORMAT_VERSION, MARKER_FILE, read_marker
from eventlog.raw import DATA_FILE
from eventlog.rows import CommitRecord
from eventlog.seams import CLOCK, FILES, Clock, Files
from eventlog.staging import Progress, scratch, told_of, write_marker
from eventlog.tables import ReadTables, WriteTables, tables_of

BACKUP_NAMES_MAX: Final = 100  # backups of one version beside a store


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """What became of a store's format version.

    Attributes:
        path: The store.
        before: The version of its rows before.
        after: The version now; equal to ``before`` when there was nothing to do.
        backup: Where the store is as it was before, None when there is no such backup.
        seconds: How long it took.
    """

    path: Path
    before: int
    after: int
    backup: Path | None
    seconds: float


def upgrade(
    path: str | os.PathLike[str],
    *,
    backup: Path | None = None,
    without_backup: bool = False,
    progress: Progress | None = None,
    allow_network: bool = False,
    lock_deadline_ms: int = ALONE_DEADLINE_MS,
    files: Files = FILES,
    clock: Clock = CLOCK,
) -> UpgradeReport:
    """Bring a store that nobody has open to this release's format version.

    Args:
        path: The store.
        backup: Where it is backed up before; None for a new name beside it.
        without_backup: Make no backup.
        progress: Called with the bytes backed up and the bytes in all.
        allow_network: Only warn about a network file system.
        lock_deadline_ms: How long to wait for others to go out.
        files: Calls to the file system.
        clock: Times.

    Raises:
        BusyError: Others have it open, or this process; names them.
        UsageError: There is something at the backup's path.
        CorruptionError: It is damaged; nothing was changed.
        StorageFullError: No room, for the backup or for the new rows.
        NotAStoreError, FormatVersionError, ReadOnlyError, StoreUnavailableError: As by opening.
    """
    started_us = clock.monotonic_us()
    saved: Path | None = None
    with Environment.open(
        path,
        tables=tables_of,
        decode_commit_record=CommitRecord.decode,
        allow_network=allow_network,
        lock_deadline_ms=lock_deadline_ms,
        files=files,
        clock=clock,
    ) as environment:
        before, marked = environment.version, int(environment.marker["version"])
        if (before, marked) != (FORMAT_VERSION, FORMAT_VERSION):
            with (
                environment.alone(lock_deadline_ms),
                mapped_errors(str(environment.path)),
                told_of(environment.path, files, "upgraded"),
            ):
                raw.examine(environment.path / DATA_FILE, CommitRecord.decode, verify=True)
                if before < FORMAT_VERSION and not without_backup:
                    saved = backup or _place_beside(environment, files)
                    if not files.exists(saved) or backup is not None:
                        back_up(environment, saved, progress=progress, files=files, clock=clock)
                if marked < FORMAT_VERSION:
                    _replace_marker(environment, files)
                fp("upgrade.after_marker")
                if before < FORMAT_VERSION:
                    _change_rows(environment)
                fp("upgrade.after_commit")
    return UpgradeReport(
        path=environment.path,
        before=before,
        after=FORMAT_VERSION,
        backup=saved,
        seconds=(clock.monotonic_us() - started_us) / 1e6,
    )


def _place_beside(environment: Environment, files: Files) -> Path:
    """A free name for the backup, or that of one which an upgrade made that was broken off."""
    store = environment.path
    with environment.read() as transaction:
        position = ReadTables(transaction, environment.db).commit_record().last_position
    for number in range(1, BACKUP_NAMES_MAX + 1):
        ending = "" if number == 1 else f".{number}"
        place = store.with_name(f"{store.name}.format-{environment.version}.backup{ending}")
        if not files.exists(place) or _is_backup(place, environment, position, files):
            return place
    raise UsageError(
        f"{BACKUP_NAMES_MAX} backups of {store} are beside it",
        hint="Remove those that nobody needs, or name a path for this one.",
    )


def _is_backup(place: Path, environment: Environment, position: int, files: Files) -> bool:
    """Whether a whole backup of this very state is there."""
    try:
        marker = read_marker(place, files)
        raw.examine(place / DATA_FILE, CommitRecord.decode, verify=True)
    except TurnlogError:
        return False
    return (marker.get("backup_of"), marker.get("backup_position"), marker["version"]) == (
        environment.marker.get("store_id"),
        position,
        environment.version,
    )


def _replace_marker(environment: Environment, files: Files) -> None:
    """Let the marker name this release's version, durably."""
    store = environment.path
    with scratch(store, files) as folder:
        write_marker(folder, environment.marker | {"version": FORMAT_VERSION}, files)
        files.rename(folder / MARKER_FILE, store / MARKER_FILE)
        files.fsync_folder(store)


def _change_rows(environment: Environment) -> None:
    transaction = environment.begin_write()
    try:
        missing = [name for name in tables_of(FORMAT_VERSION) if name not in environment.db]
        tables = environment.db | environment.create_tables(transaction, missing)
        write = WriteTables(transaction, tables, IdRuns(tables["id"]))
        record = write.commit_record()
        write.put_commit_record(
            replace(
                record,
                version=FORMAT_VERSION,
                transaction=transaction.id(),
                file_bytes=environment.file_bytes(),
                generation=record.generation + 1,
                previous=record.encode()[:8],
            )
        )
        environment.commit(transaction)
    except CommitFailedError as failure:
        raise failure.mapped from failure
    except BaseException:
        environment.abort(transaction)
        raise
