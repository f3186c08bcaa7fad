"""A folder that is made beside its place and put there with one rename, or not at all.

Creating, backing up and restoring have this in common: what they make is a store, and a path must
carry a whole one or none.

Invariants:
    1. A path either carries a complete store or what was there before, whatever dies in between.
    2. A temporary folder whose maker is dead is swept by whoever makes or opens something at that
       path next, or makes a copy beside it (``place.sweep_leftovers``); a living maker holds a
       ``flock`` on it.
    3. What is put in place is durable: every file is synced by who wrote it, then the folder, then
       the folder that the rename changed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eventlog.errors import ReadOnlyError, StorageFullError, StoreUnavailableError, UsageError
from eventlog.failpoints import fp
from eventlog.limits import COPY_BYTES, COPY_SYNC_BYTES
from eventlog.lmdb_errors import map_os_error
from eventlog.place import MARKER_FILE, creating_path, encode_marker, sweep_leftovers
from eventlog.seams import CLOCK, FILES, Clock, Files

if TYPE_CHECKING:
    from eventlog.unused import Unused

ATTEMPTS: Final = 64  # temporary names that somebody may sweep away between two calls

_ZEROS: Final = bytes(COPY_BYTES)

Progress = Callable[[int, int], object]  # bytes done, bytes in all


def make_temporary(target: Path, files: Files) -> tuple[Path, int]:
    """A new folder beside the target, with the lock that tells sweepers that we live."""
    for _ in range(ATTEMPTS):
        temporary = creating_path(target)
        try:
            files.make_folder(temporary)
            folder = files.open_folder(temporary)
        except FileNotFoundError:
            if not files.exists(target.parent):
                raise
            continue  # a sweeper was faster than our lock
        except BaseException:
            files.remove_folder(temporary)
            raise
        if files.try_lock(folder) and files.is_at(folder, temporary):
            return temporary, folder
        files.close(folder)
    raise StoreUnavailableError(f"the temporary folder beside {target} is removed again and again")


def refuse_taken(target: Path, files: Files) -> None:
    """Refuse a path where there is anything, an empty folder or a dead link too.

    Raises:
        UsageError: There is.
    """
    if files.exists(target):
        raise UsageError(
            f"{target} exists already", hint="Give a path where nothing is; nothing was changed."
        )


@contextmanager
def staged(target: Path, files: Files = FILES, clock: Clock = CLOCK) -> Iterator[Path]:
    """Gives a private folder, and puts it in place when the body of the ``with`` has filled it.

    Args:
        target: Where it goes, absolute and without symbolic links; nothing is there.
        files: Calls to the file system.
        clock: Tells how old a left-over is.

    Raises:
        UsageError: There is something at the target, before or after.
        StorageFullError, ReadOnlyError, StoreUnavailableError: The system refused; nothing is left.
    """
    with told_of(target, files):
        refuse_taken(target, files)
        sweep_leftovers(target, files, clock, any_name=True)
        temporary, folder = make_temporary(target, files)
        try:
            yield temporary
            files.fsync_folder(temporary)
            fp("stage.before_rename")
            refuse_taken(target, files)  # a rename replaces an empty folder
            files.rename(temporary, target)
        except BaseException:
            files.close(folder)  # first: removing may need the descriptor
            files.remove_folder(temporary)
            raise
        files.close(folder)
        fp("stage.after_rename")
        files.fsync_folder(target.parent)


@contextmanager
def scratch(beside: Path, files: Files) -> Iterator[Path]:
    """A private folder beside a store, from which files go into it; gone after the ``with``."""
    temporary, folder = make_temporary(beside, files)
    try:
        yield temporary
    finally:
        files.close(folder)
        files.remove_folder(temporary)


@contextmanager
def told_of(target: Path, files: Files, done: str = "made") -> Iterator[None]:
    """Raise the errors of the operating system as ours.

    Args:
        target: What the body of the ``with`` works on.
        files: Calls to the file system.
        done: What cannot be done to it, as in "cannot be made".
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not files.exists(target.parent):
            raise StoreUnavailableError(
                f"{target} cannot be {done}: there is no folder {target.parent}",
                hint="Make the folder first, or give another path.",
            ) from error
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise UsageError(f"{target} exists by now", hint="Give another path.") from error
        if error.errno == errno.EXDEV:
            raise StoreUnavailableError(
                f"{target} is a mount point, and what takes its place is made beside it",
                hint="Move the store into a folder of that file system.",
            ) from error
        failure = map_os_error(
            error.errno or 0, f"{target} cannot be {done}: {error.strerror or error}"
        )
        if isinstance(failure, StorageFullError | ReadOnlyError):
            failure.hint = "Make room or give rights there, and try again; nothing was changed."
        raise failure from error


def write_marker(folder: Path, marker: Mapping[str, Any], files: Files) -> None:
    """Write and sync the marker of a store that is being made."""
    descriptor = files.open_file(folder / MARKER_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        files.write_at(descriptor, encode_marker(marker), 0)
        files.fsync_file(descriptor)
    finally:
        files.close(descriptor)


def copy_bytes(
    source: int,
    target: int,
    start: int,
    stop: int,
    files: Files,
    advance: Callable[[int], object],
    unused: Unused | None = None,
) -> None:
    """Copy bytes of one open file to the same place of another, and sync them.

    A source that ends early leaves zeros. Syncing now and then keeps a commit elsewhere from
    waiting until all of it is on disk.

    Args:
        source: Descriptor to read.
        target: Descriptor to write; nothing is there yet.
        start: First byte.
        stop: The byte after the last one.
        files: Calls to the file system.
        advance: Called between two pieces with the number of bytes that are done.
        unused: What of the source becomes zeros, and holes where that is long enough.
    """
    synced = offset = start
    while offset < stop:
        piece = files.read_at(source, min(COPY_BYTES, stop - offset), offset)
        if not piece:
            break
        for place, part in ((offset, piece),) if unused is None else unused.parts(piece, offset):
            if part != _ZEROS[: len(part)]:  # a hole stays one
                files.write_at(target, part, place)
        offset += len(piece)
        if offset - synced >= COPY_SYNC_BYTES:
            files.fsync_file(target)
            synced = offset
        advance(offset)
    for place, zeros in () if unused is None else unused.tails():
        files.write_at(target, zeros, place)
    if files.size(target) < stop:
        files.truncate(target, stop)
    files.fsync_file(target)
    advance(stop)
