"""Errors of LMDB and the file system become ours, in one place.

Invariant: every error keeps the original as ``__cause__``.
"""

from __future__ import annotations

import errno
from pathlib import Path
from types import TracebackType
from typing import Final

import lmdb

from eventlog.errors import (
    BusyError,
    CorruptionError,
    FormatVersionError,
    QuotaExceededError,
    ReadOnlyError,
    StorageFullError,
    StoreClosedError,
    StoreUnavailableError,
    SuspectStoreError,
    TurnlogError,
)
from eventlog.limits import MIB
from eventlog.seams import Files

FREE_BYTES_MIN: Final = 1 * MIB  # a file system with less is called full when a write fails
FULL_CODES: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_WRITABLE_CODES: Final = (errno.EROFS, errno.EACCES, errno.EPERM)

_BROKEN: Final = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PageFullError,
    lmdb.BadTxnError,
    lmdb.InvalidError,
    lmdb.IncompatibleError,
    lmdb.CursorFullError,
)


def map_os_error(code: int, message: str) -> TurnlogError:
    """The error of ours that says what to do about an ``errno``."""
    if code in FULL_CODES:
        if code == errno.EFBIG:
            return StorageFullError(message, hint="Raise the file size limit (ulimit -f).")
        return StorageFullError(message)
    if code in NOT_WRITABLE_CODES:
        return ReadOnlyError(
            message,
            hint="Open the store with read_only=True, or as a user who may write there, on a "
            "writable file system.",
        )
    if code in (errno.EMFILE, errno.ENFILE):
        return StoreUnavailableError(message, hint="Raise the limit of open files (ulimit -n).")
    if code == errno.ENOMEM:
        return StoreUnavailableError(
            message, hint="Raise the limit of address space (ulimit -v), or free memory."
        )
    return StoreUnavailableError(message, hint="Check the disk and the permissions of the store.")


def error_code(error: lmdb.Error) -> int:
    """The ``errno`` behind an error of LMDB, its own negative code, or 0."""
    code = getattr(error, "code", 0)  # what the binding raises by itself has none
    return code if isinstance(code, int) else 0


def map_error(error: lmdb.Error, where: str) -> TurnlogError:
    """The error of ours that says what to do about one of LMDB's.

    Args:
        error: What LMDB raised.
        where: The store's folder.
    """
    message = f"{where}: {error}"
    if isinstance(error, _BROKEN):
        return CorruptionError(str(error), where=where)
    if isinstance(error, lmdb.VersionMismatchError):
        return FormatVersionError(message, found="another LMDB", supported="LMDB 0.9")
    if isinstance(error, lmdb.MapFullError):
        return QuotaExceededError(
            message, hint="The memory map is full: open the store with a larger map_bytes."
        )
    if isinstance(error, lmdb.ReadersFullError):
        return BusyError(
            f"{where}: every slot for a read transaction is taken",
            hint="End processes that read the store, or let long reads finish.",
        )
    if isinstance(error, lmdb.PanicError):
        return SuspectStoreError(f"{where}: a write of LMDB's own page failed: {error}")
    if isinstance(error, lmdb.LockError):
        return StoreUnavailableError(
            f"{where}: a reader slot of this process id is taken: {error}",
            hint="Do not open the store from several containers with PID namespaces of their own.",
        )
    code = error_code(error)
    if code > 0:
        return map_os_error(code, message)
    if "closed/deleted/dropped" in str(error):
        return StoreClosedError(f"{where}: the transaction or the store is closed")
    return StoreUnavailableError(message)


def why_full(folder: Path, file_bytes: int, files: Files) -> int | None:
    """ENOSPC or EFBIG when a write was cut short for it; LMDB reports that as an I/O error.

    Args:
        folder: Where the data file lies.
        file_bytes: Its size, at least.
        files: Calls to the file system.
    """
    try:
        limit = files.file_bytes_limit()
        if limit is not None and file_bytes + FREE_BYTES_MIN > limit:
            return errno.EFBIG
        if files.free_bytes(folder) < FREE_BYTES_MIN:
            return errno.ENOSPC
        if not files.can_allocate(folder, FREE_BYTES_MIN):
            return errno.ENOSPC
    except OSError as error:
        return error.errno if error.errno in FULL_CODES else None
    return None


class mapped_errors:
    """Raise LMDB's errors as ours: ``with mapped_errors(path): ...``."""

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, lmdb.Error):
            raise map_error(error, self._where) from error


class CommitFailedError(Exception):
    """A commit raised; whether it is in the file, only opening the file again tells.

    Attributes:
        cause: What LMDB raised.
        mapped: The error for the callers whose events were in it.
        full: Whether the reason is missing room, so that nothing was written.
    """

    def __init__(self, cause: lmdb.Error, mapped: TurnlogError, *, full: bool) -> None:
        super().__init__(str(mapped))
        self.cause = cause
        self.mapped = mapped
        self.full = full


def commit_failed(
    error: lmdb.Error, path: Path, file_bytes: int, files: Files
) -> CommitFailedError:
    """Find out why a commit failed: a full disk often shows as a mere I/O error.

    Args:
        error: What LMDB raised.
        path: The store's folder.
        file_bytes: The least that its data file holds.
        files: Calls to the file system.
    """
    where = str(path)
    mapped = map_error(error, where)
    if isinstance(error, lmdb.MapFullError) or isinstance(mapped, StorageFullError):
        return CommitFailedError(error, mapped, full=True)
    if error_code(error) != errno.EIO:
        return CommitFailedError(error, mapped, full=False)
    full = why_full(path, file_bytes, files)
    if full is not None:
        return CommitFailedError(error, map_os_error(full, f"{where}: {error}"), full=True)
    suspect = SuspectStoreError(f"{where}: a commit failed: {error}")
    return CommitFailedError(error, suspect, full=False)
