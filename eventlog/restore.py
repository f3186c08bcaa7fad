"""Restore: make a store from a backup, which nobody has to trust.

What is restored is another store than the one that was backed up: that one may have gone on, so
from the backup's position on the two have different histories. The marker of the new one says so.

Invariants:
    1. Of the backup only the data file and the marker are read, and neither through a link; other
       files, lock files among them, stay where they are. Nothing is written into it.
    2. LMDB opens a private copy, after every page of that copy was walked; never the backup itself.
    3. Nothing appears under the target's name but a whole store, and never in place of anything
       (``staging``).
    4. The new store has an id of its own, names the one it comes from, and is one epoch later.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eventlog import raw
from eventlog.backup import check_copy, opened_copy, record_of
from eventlog.creation import fill_lock_files
from eventlog.errors import BusyError, DamagedInputError, NotAStoreError, StorageFullError
from eventlog.inline import InlineProjection
from eventlog.limits import POSITION_MAX
from eventlog.lmdb_errors import map_os_error
from eventlog.locks import USE_FILE
from eventlog.place import MARKER_FILE, read_marker, refuse_network
from eventlog.raw import DATA_FILE
from eventlog.rows import CommitRecord
from eventlog.seams import CLOCK, FILES, Clock, Files, random_bytes
from eventlog.staging import Progress, copy_bytes, staged, write_marker
from eventlog.tables import tables_of

RESTORE_KEYS: Final = ("restored_from", "restored_position", "restored_us", "epoch")

_STORE_ID: Final = re.compile("[0-9a-f]{32}")
_LINK_CODES: Final = (errno.ELOOP, errno.EMLINK, errno.ENXIO)  # also of a socket


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """A store that was made from a backup.

    Attributes:
        path: Where it is.
        store_id: Its own.
        restored_from: The id of the store that was backed up.
        epoch: How often its history was taken up from a backup.
        position: Its last position.
        byte_count: Size of its data file.
        seconds: How long it took.
        checked: Whether every row was checked, not only every page.
    """

    path: Path
    store_id: str
    restored_from: str
    epoch: int
    position: int
    byte_count: int
    seconds: float
    checked: bool


def restore(
    backup: Path,
    path: Path,
    *,
    check: bool = False,
    projections: Sequence[InlineProjection] = (),
    allow_network: bool = False,
    progress: Progress | None = None,
    files: Files = FILES,
    clock: Clock = CLOCK,
) -> RestoreReport:
    """Make a store from a backup, or from a copy of a store that nobody has open.

    Args:
        backup: The folder; it is only read.
        path: Where nothing is yet; its folder exists.
        check: Read every row of the new store too, as ``check`` does.
        projections: Those that its rows were made by; ``check`` needs them.
        allow_network: Make it on a network file system too.
        progress: Called with the bytes copied and the bytes in all.
        files: Calls to the file system.
        clock: Times.

    Raises:
        UsageError: There is something at the path.
        NotAStoreError, FormatVersionError: The backup is none, or of a newer release.
        DamagedInputError: A file of it is a link, or no plain file.
        CorruptionError: It is damaged.
        BusyError: A process has it open, so it is no backup; back it up first.
        StorageFullError, StoreUnavailableError: The system refused; nothing is left behind.
    """
    started_us = clock.monotonic_us()
    source, target = files.real_path(backup), files.real_path(path)
    _refuse_other_files(source, files)
    marker = read_marker(source, files)
    with (
        _unused(source, files),
        _opened(source / DATA_FILE, files) as data,
        staged(target, files, clock) as new,
    ):
        refuse_network(target.parent, files, allow=allow_network)
        where = str(source / DATA_FILE)
        version = raw.glance(raw.DataFile(data, where), CommitRecord.decode).record.version
        _copy(data, new, source, files, progress)
        with opened_copy(new, tables_of(version)) as mapped:
            record = record_of(mapped)
        facts = _new_identity(marker, record, clock.wall_us())
        write_marker(new, facts, files)
        if check:
            check_copy(new, projections)
        fill_lock_files(new, files)
        byte_count = files.lstat(new / DATA_FILE).st_size
    return RestoreReport(
        path=target,
        store_id=facts["store_id"],
        restored_from=facts["restored_from"],
        epoch=facts["epoch"],
        position=record.last_position,
        byte_count=byte_count,
        seconds=(clock.monotonic_us() - started_us) / 1e6,
        checked=check,
    )


def _new_identity(marker: dict[str, Any], record: CommitRecord, now_us: int) -> dict[str, Any]:
    """The marker of the new store; nothing but what is known here comes from the backup's."""
    before, epoch = marker.get("store_id"), marker.get("epoch", 0)
    if type(before) is not str or not _STORE_ID.fullmatch(before):
        before = ""
    if type(epoch) is not int or not 0 <= epoch < POSITION_MAX:
        epoch = 0
    facts = dict(zip(RESTORE_KEYS, (before, record.last_position, now_us, epoch + 1), strict=True))
    # The marker's version may be that of an upgrade that was broken off.
    return {"version": record.version, "store_id": random_bytes(16).hex(), **facts}


def _refuse_other_files(source: Path, files: Files) -> None:
    """Refuse links and whatever else would not be read as a plain file."""
    for name in (MARKER_FILE, DATA_FILE):
        try:
            with _opened(source / name, files):
                pass
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotAStoreError(
                f"{source} is no backup: there is no {name} in it",
                hint="Give the folder that `turnlog backup` made.",
            ) from error


@contextmanager
def _opened(path: Path, files: Files) -> Iterator[int]:
    """A plain file, open for reading."""
    try:
        # A pipe would keep an opening that waits for ever.
        descriptor = files.open_file(path, os.O_RDONLY | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno in _LINK_CODES:
            raise DamagedInputError("is a link, not a file", file=str(path)) from error
        raise map_os_error(error.errno or 0, f"{path}: {error.strerror}") from error
    try:
        if not files.is_file(descriptor):
            raise DamagedInputError("is no plain file", file=str(path))
        yield descriptor
    finally:
        files.close(descriptor)


@contextmanager
def _unused(source: Path, files: Files) -> Iterator[None]:
    """Nobody goes into the backup in the body of the ``with``; whoever is in has it open."""
    with ExitStack() as stack:
        # A backup has no lock files, and what is there under that name may not be one. Nor has
        # each file system such locks.
        with suppress(OSError):
            descriptor = files.open_file(source / USE_FILE, os.O_RDONLY | os.O_NONBLOCK)
            stack.callback(files.close, descriptor)
            if not files.try_lock(descriptor):
                raise BusyError(
                    f"{source} is open in a process, and may change while it is read",
                    hint="Back the open store up with `turnlog backup`, and restore that.",
                )
        yield


def _copy(data: int, folder: Path, source: Path, files: Files, progress: Progress | None) -> None:
    size = files.size(data)
    free = files.free_bytes(folder)
    if free < size:
        raise StorageFullError(
            f"the backup has {size:,} bytes, and {free:,} are free beside {folder}",
            hint="Make room there, or give another path; nothing was left behind.",
        )
    target = files.open_file(folder / DATA_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        copy_bytes(
            data,
            target,
            0,
            size,
            files,
            lambda done: None if progress is None else progress(done, size),
        )
    finally:
        files.close(target)
