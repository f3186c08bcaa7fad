"""Make a store: under a temporary name, durable, and then put in place with one rename.

LMDB writes its first two pages without syncing them, so a power cut while it makes a database in
place may leave a file that no LMDB opens again.

Invariants:
    1. A path either carries a complete store or none, whatever dies in between.
    2. A temporary folder whose creator is dead is swept by whoever creates or opens the store next;
       a living creator holds a ``flock`` on it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lmdb

from eventlog.errors import NotAStoreError, StoreUnavailableError
from eventlog.failpoints import fp
from eventlog.limits import MAP_BYTES, MAP_BYTES_MIN, READERS_MAX, TABLES_MAX
from eventlog.lmdb_errors import error_code, map_error, map_os_error, why_full
from eventlog.locks import LOCK_FILES, NO_RECORD
from eventlog.place import (
    LOCK_FILE,
    has_marker,
    refuse_network,
    sweep_leftovers,
)
from eventlog.raw import DATA_FILE
from eventlog.seams import CLOCK, FILES, Clock, Files
from eventlog.staging import make_temporary, write_marker

if TYPE_CHECKING:
    from lmdb import _Database as Database

LMDB_VERSION: Final = 0  # the major version whose file format is ours
LOCK_BYTES: Final = READERS_MAX * 64 + 128  # what LMDB makes lock.mdb for so many readers


def create(
    path: str | os.PathLike[str],
    *,
    tables: tuple[str, ...],
    initialise: Callable[[lmdb.Transaction[bytes], Mapping[str, Database]], None],
    marker: Mapping[str, Any],
    map_bytes: int = MAP_BYTES,
    allow_network: bool = False,
    files: Files = FILES,
    clock: Clock = CLOCK,
) -> None:
    """Make a store; when another process makes it at the same time, that one is as good.

    Args:
        path: Where; nothing, an empty folder, or a store (which stays as it is).
        tables: Names of the named databases.
        initialise: Puts the first rows, the commit record among them, in the one transaction.
        marker: What ``turnlog.json`` holds besides format and version.
        map_bytes: Size of the map while the store is made.
        allow_network: Make it on a network file system too.
        files: Calls to the file system.
        clock: Tells how old a left-over is.

    Raises:
        NotAStoreError: There is something else at the path.
        StorageFullError, ReadOnlyError, StoreUnavailableError: The environment refused; nothing
            is left behind.
    """
    target = files.real_path(path)
    try:
        if _is_taken(target, files):
            return
        refuse_network(target.parent, files, allow=allow_network)
        sweep_leftovers(target, files, clock)
        temporary, folder = make_temporary(target, files)
        try:
            _fill(temporary, tables, initialise, marker, map_bytes, files)
            fp("create.before_rename")
            _take_place(temporary, target, files)
        except BaseException:
            files.close(folder)  # first: removing may need the descriptor
            files.remove_folder(temporary)
            raise
        files.close(folder)
        fp("create.after_rename")
        files.fsync_folder(target.parent)
    except lmdb.Error as error:
        full = why_full(target.parent, 0, files) if error_code(error) == errno.EIO else None
        if full is not None:
            raise map_os_error(full, f"{target} cannot be created: {error}") from error
        raise map_error(error, str(target)) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not files.exists(target.parent):
            raise StoreUnavailableError(
                f"{target} cannot be created: there is no folder {target.parent}",
                hint="Make the folder first, or give another path.",
            ) from error
        raise map_os_error(
            error.errno or 0, f"{target} cannot be created: {error.strerror or error}"
        ) from error


def _is_taken(target: Path, files: Files) -> bool:
    """Whether a store is there; False when one can be put there."""
    try:
        files.lstat(target)
    except FileNotFoundError:
        return False
    if has_marker(target, files):
        return True
    try:
        empty = next(iter(files.names(target)), None) is None
    except NotADirectoryError as error:
        raise NotAStoreError(f"{target} is a file") from error
    if not empty:
        raise NotAStoreError(f"{target} is a folder with other things in it")
    return False


def _fill(
    temporary: Path,
    tables: tuple[str, ...],
    initialise: Callable[[lmdb.Transaction[bytes], Mapping[str, Database]], None],
    marker: Mapping[str, Any],
    map_bytes: int,
    files: Files,
) -> None:
    """Write everything a store consists of and make it durable, but for its name."""
    fill_lock_files(temporary, files)
    environment = open_private(temporary, map_bytes)
    try:
        # One transaction: a store without its tables or its commit record never exists.
        with environment.begin(write=True) as txn:
            db = {name: environment.open_db(name.encode(), txn=txn) for name in tables}
            initialise(txn, db)
        in_use = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    finally:
        environment.close()
    files.set_mode(temporary / DATA_FILE, 0o600)
    data = files.open_file(temporary / DATA_FILE, os.O_RDWR)
    try:
        if files.size(data) < in_use:
            files.truncate(data, in_use)
        files.fsync_file(data)
    finally:
        files.close(data)
    write_marker(temporary, marker, files)
    files.fsync_folder(temporary)


def make_lock_file(folder: Path, files: Files) -> None:
    """Make the lock file of LMDB, which fills it in, with all the room that it will need.

    LMDB itself makes a hole and maps it: on a full disk it would die of SIGBUS, at once or with its
    62nd reader. Only for a folder of which this process has no environment open (``environment``).
    """
    lock_file = files.open_file(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        files.allocate(lock_file, LOCK_BYTES)
    finally:
        files.close(lock_file)


def fill_lock_files(folder: Path, files: Files) -> None:
    """Make all lock files of a store that nobody has open."""
    make_lock_file(folder, files)
    for name in LOCK_FILES:
        lock = files.open_file(folder / name, os.O_RDWR | os.O_CREAT)
        try:
            files.write_at(lock, NO_RECORD, 0)  # takes the block that a full disk would not give
        finally:
            files.close(lock)


def _take_place(temporary: Path, target: Path, files: Files) -> None:
    try:
        files.rename(temporary, target)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise StoreUnavailableError(
                f"{target} is a mount point, and a store is put in place as a whole",
                hint="Give the path of a folder inside it.",
            ) from error
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if not has_marker(target, files):
            raise NotAStoreError(f"{target} holds something else by now") from error
        files.remove_folder(temporary)  # another process was first


def open_private(folder: Path, map_bytes: int) -> lmdb.Environment:
    """The database in a temporary folder; made if there is none, and without locks."""
    return open_with_smaller_maps(
        map_bytes,
        lambda size: lmdb.open(
            str(folder),
            map_size=size,
            mode=0o600,
            create=False,  # the folder, which is there
            lock=False,  # nobody else knows of it
            max_dbs=TABLES_MAX,
            lib_version=LMDB_VERSION,
        ),
    )


def open_with_smaller_maps(
    map_bytes: int, open_map: Callable[[int], lmdb.Environment]
) -> lmdb.Environment:
    """Open with the largest map that the address space has room for."""
    size = map_bytes
    while True:
        try:
            return open_map(size)
        except lmdb.MemoryError:
            if size // 2 < MAP_BYTES_MIN:
                raise
            size //= 2
