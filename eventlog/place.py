"""Where a store lies: the marker file, the kind of file system, left-overs of dead creators.

A store is a folder. Its marker, ``turnlog.json``, tells a store from other folders and a store
whose data file is gone from an empty one.
"""

from __future__ import annotations

import errno
import json
import re
import stat
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from eventlog.errors import (
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    StoreUnavailableError,
)
from eventlog.lmdb_errors import map_os_error
from eventlog.seams import Clock, Files, random_bytes, user_id

LOCK_FILE: Final = "lock.mdb"
MARKER_FILE: Final = "turnlog.json"
MARKER_FORMAT: Final = "turnlog"
FORMAT_VERSION: Final = 2
MARKER_BYTES_MAX: Final = 64 * 1024

CREATING_SUFFIX: Final = ".creating"
CREATING_NAME_MAX: Final = 200  # bytes of the store's name that the temporary name repeats
LEFTOVER_AGE_US: Final = 3_600 * 1_000_000  # no creator that still works is an hour old
LEFTOVER_NAMES_MAX: Final = 4_096  # names of the parent folder that are looked at

# File systems whose maps or locks do not reach other machines, or are emulated.
NETWORK_TYPES: Final = frozenset(
    "9p acfs afs afpfs auristorfs beegfs ceph cifs coda davfs gfs2 glusterfs gpfs lustre ncp ncpfs "
    "nfs nfs4 ocfs2 orangefs panfs prl_fs pvfs2 smb smb2 smb3 smbfs vboxsf virtiofs vmhgfs".split()
)


def encode_marker(marker: Mapping[str, Any]) -> bytes:
    """The marker's bytes; format and version are put in front when they are missing."""
    content = {"format": MARKER_FORMAT, "version": FORMAT_VERSION, **marker}
    return json.dumps(content, ensure_ascii=True, indent=1).encode("ascii") + b"\n"


def has_marker(path: Path, files: Files) -> bool:
    """Whether a folder carries a marker, whatever is in it."""
    try:
        return stat.S_ISREG(files.lstat(path / MARKER_FILE).st_mode)
    except OSError:
        return False


def read_marker(path: Path, files: Files) -> dict[str, Any]:
    """Read the marker of a store.

    Raises:
        NotAStoreError: There is none.
        FormatVersionError: A newer release wrote it.
        CorruptionError: It is damaged.
        StoreUnavailableError: It cannot be read.
    """
    where = str(path / MARKER_FILE)
    try:
        content = files.read(path / MARKER_FILE, MARKER_BYTES_MAX)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
            raise NotAStoreError(f"{path} is not a turnlog store") from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise StoreUnavailableError(
                f"{where} may not be read: {error.strerror}",
                hint="Open the store as the user who owns it.",
            ) from error
        raise map_os_error(error.errno or 0, f"{where}: {error.strerror}") from error
    try:
        marker = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptionError("is not JSON", where=where) from error
    if not isinstance(marker, dict):
        raise CorruptionError("is not a JSON object", where=where)
    if marker.get("format") != MARKER_FORMAT:
        raise NotAStoreError(f"{path} is not a turnlog store: {MARKER_FILE} names another format")
    version = marker.get("version")
    if type(version) is not int or version < 1:
        raise CorruptionError(f"names {version!r} as format version", where=where)
    if version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{path} has format version {version}, this release reads up to {FORMAT_VERSION}",
            found=version,
            supported=FORMAT_VERSION,
        )
    return marker


def file_system_type(path: Path, mounts: str) -> str:
    """The type of the file system that a path lies on.

    Args:
        path: An absolute path without symbolic links.
        mounts: The mount table, as ``Files.mounts`` reads it.

    Returns:
        The type as the kernel calls it, or ``unknown``.
    """
    found, longest = "unknown", -1
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        if path.is_relative_to(point) and len(point) >= longest:  # a later mount covers an earlier
            found, longest = after.split(" ")[0], len(point)
    return found


def is_network_type(kind: str) -> bool:
    """Whether LMDB must not be trusted on a file system of that type; FUSE may hide anything."""
    return kind in NETWORK_TYPES or kind == "fuse" or kind.startswith(("fuse.", "fuseblk", "nfs"))


def refuse_network(path: Path, files: Files, *, allow: bool) -> list[str]:
    """Refuse a file system that several machines may share.

    Args:
        path: An absolute path without symbolic links that exists.
        files: Calls to the file system.
        allow: Warn instead.

    Returns:
        Warnings about the file system.

    Raises:
        StoreUnavailableError: It is a network or FUSE file system.
    """
    mounts = files.mounts()
    if mounts is None:
        return []  # only Linux tells
    kind = file_system_type(path, mounts)
    if is_network_type(kind):
        if not allow:
            raise StoreUnavailableError(
                f"{path} lies on a {kind} file system, where locks and memory maps cannot be "
                "trusted",
                hint="Put the store on a local file system; allow_network=True opens it all the "
                "same, at the risk of damage.",
            )
        return [f"the store lies on a {kind} file system; two machines may damage it"]
    if kind == "overlay":
        return ["the store lies on an overlay file system; it goes when the container goes"]
    return []


def creating_prefix(name: str) -> str:
    """What the temporary names of a store that is being created begin with."""
    cut = name.encode("utf-8", "surrogateescape")[:CREATING_NAME_MAX]
    return f".{cut.decode('utf-8', 'surrogateescape')}."


def creating_path(target: Path) -> Path:
    """A new temporary name beside a store that is being created."""
    name = creating_prefix(target.name) + random_bytes(8).hex() + CREATING_SUFFIX
    return target.parent / name


def sweep_leftovers(target: Path, files: Files, clock: Clock, *, any_name: bool = False) -> int:
    """Remove what dead creators of a store left beside it; how many were removed.

    A creator holds a ``flock`` on its temporary folder, so a free one is dead; of its own name, an
    old one too. What cannot be looked at or removed stays: this is housekeeping.

    Args:
        target: The store.
        files: Calls to the file system.
        clock: Tells how old a left-over is.
        any_name: Also those of other stores in the same folder: nobody may ever come back to the
            name of a backup that was broken off.
    """
    own = re.escape(creating_prefix(target.name))
    ending = "[0-9a-f]{16}" + re.escape(CREATING_SUFFIX)
    pattern = re.compile((r"\..+\." if any_name else own) + ending, re.DOTALL)
    try:
        found = [
            target.parent / name
            for name in islice(files.names(target.parent), LEFTOVER_NAMES_MAX)
            if pattern.fullmatch(name)
        ]
    except OSError:
        return 0
    is_own = re.compile(own + ending, re.DOTALL)
    return sum([_sweep(path, files, clock, bool(is_own.fullmatch(path.name))) for path in found])


def _sweep(path: Path, files: Files, clock: Clock, is_own: bool) -> bool:
    try:
        status = files.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != user_id():
            return False
        folder = files.open_folder(path)
    except OSError:
        return False
    try:
        old = is_own and clock.wall_us() - status.st_mtime_ns // 1_000 > LEFTOVER_AGE_US
        if not files.try_lock(folder) and not old:
            return False
        files.remove_folder(path)
        return not files.exists(path)
    except OSError:
        return False
    finally:
        files.close(folder)


def force_modes(folder: Path, names: Iterable[str], files: Files) -> None:
    """Nobody but the owner reads conversations, whatever a copy or a umask made of them."""
    if not files.owned(folder):
        return
    files.set_mode(folder, 0o700)
    for name in names:
        try:
            files.set_mode(folder / name, 0o600)
        except FileNotFoundError:
            pass  # lock files are made again
