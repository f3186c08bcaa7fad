"""The edge of the program: clock, randomness, files, locks, and who this process is.

Everything else in ``eventlog`` and ``engine`` gets these as arguments or from the two instances
``CLOCK`` and ``FILES``, so that a simulator can put others in their place.

Invariants:
    1. No other module of ``eventlog`` or ``engine`` reads a clock, randomness, ``/proc`` or limits
       of the process.
    2. A call whose name says ``try`` or ``peek`` never waits, and keeps the GIL. Beside an event
       loop that runs Python all the time, a call that gives the GIL up waits up to 5 ms to get it
       back, whatever the call itself costs; a commit makes half a dozen such calls.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final


class Clock:
    """Time of day, time that only grows, and waiting."""

    def wall_us(self) -> int:
        """Microseconds since 1970 UTC; may jump."""
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        """Microseconds since some moment; never goes back."""
        return time.monotonic_ns() // 1_000

    def sleep(self, seconds: float) -> None:
        """Wait; a signal handler that raises ends it."""
        time.sleep(seconds)

    def wait(self, event: threading.Event | None, seconds: float) -> bool:
        """Wait until the event is set or the time is over; True when it is set."""
        if event is None:
            self.sleep(seconds)
            return False
        return event.wait(seconds)


CLOCK: Final = Clock()


def random_bytes(count: int) -> bytes:
    """Bytes nobody can guess."""
    return os.urandom(count)


# Locks and small reads without giving the GIL up

_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
_WOULD_BLOCK: Final = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def _c_function(name: str) -> Callable[..., int] | None:
    try:
        return _LIBC[name]
    except AttributeError:
        return None


_flock: Final = _c_function("flock")
_pread: Final = _c_function("pread") if sys.maxsize > 2**32 else None
_statx: Final = _c_function("statx") if sys.platform == "linux" else None


def _flock_now(descriptor: int, operation: int) -> bool:
    if _flock is None:
        try:
            fcntl.flock(descriptor, operation)
        except OSError as error:
            if error.errno in _WOULD_BLOCK:
                return False
            raise
        return True
    while _flock(descriptor, operation) != 0:
        code = ctypes.get_errno()
        if code in _WOULD_BLOCK:
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True


class Files:
    """The calls to the file system that creating, opening and locking a store make."""

    def real_path(self, path: str | os.PathLike[str]) -> Path:
        """The absolute path with every symbolic link followed."""
        return Path(os.path.realpath(path))

    def open_file(self, name: str | Path, flags: int, *, folder: int | None = None) -> int:
        """Open, for this program only; a symbolic link is refused, a new file gets 0600.

        Args:
            name: A path, or a name inside ``folder``.
            flags: As for ``os.open``.
            folder: A descriptor from ``open_folder``.
        """
        descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode=0o600, dir_fd=folder)
        if flags & os.O_CREAT:
            try:
                self.set_mode(descriptor, 0o600)
            except BaseException:
                os.close(descriptor)
                raise
        return descriptor

    def open_folder(self, path: Path) -> int:
        """Open a folder for ``open_file``, locks and ``FileWatch``."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def make_folder(self, path: Path) -> None:
        """Make a folder that only its owner can enter, whatever the umask.

        Raises:
            FileExistsError: There is something already.
        """
        os.mkdir(path, 0o700)
        try:
            os.chmod(path, 0o700)
        except BaseException:
            self.remove_folder(path)
            raise

    def remove_folder(self, path: Path) -> None:
        """Remove a folder of files, needing one descriptor at most; what cannot go stays.

        Not a tree: whatever is deeper was not made by us.
        """
        try:
            for name in os.listdir(path):
                os.unlink(path / name)
        except OSError:
            pass  # without a descriptor an empty folder can still go
        try:
            os.rmdir(path)
        except OSError:
            pass  # swept when the store is created or opened next

    def is_file(self, descriptor: int) -> bool:
        """Whether what is open is a plain file, and not a pipe or a device."""
        return stat.S_ISREG(os.fstat(descriptor).st_mode)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name, atomically."""
        os.rename(source, target)

    def names(self, path: Path) -> Iterable[str]:
        """The names in a folder, lazily, in no order."""
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry.name

    def lstat(self, path: Path) -> os.stat_result:
        """What is at a path; a symbolic link is not followed."""
        return os.lstat(path)

    def exists(self, path: Path) -> bool:
        """Whether there is anything at a path."""
        return os.path.lexists(path)

    def is_at(self, descriptor: int, path: Path) -> bool:
        """Whether an open file or folder is still what a path names."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(path))
        except FileNotFoundError:
            return False

    def size(self, descriptor: int) -> int:
        """Bytes of an open file."""
        return os.fstat(descriptor).st_size

    def set_mode(self, file: int | Path, mode: int) -> None:
        """Set the permissions where they differ."""
        found = os.stat(file)
        if stat.S_IMODE(found.st_mode) != mode:
            os.chmod(file, mode)

    def owned(self, path: Path) -> bool:
        """Whether this process may set the permissions of a path."""
        user = os.geteuid()
        return user in (0, os.lstat(path).st_uid)

    def read(self, path: Path, bytes_max: int) -> bytes:
        """The first bytes of a file; a link is refused, and a pipe is not waited for."""
        descriptor = self.open_file(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            return file.read(bytes_max) or b""

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read at most ``size`` bytes; fewer only at the end of the file."""
        parts: list[bytes] = []
        while size > 0:
            part = os.pread(descriptor, size, offset)
            if not part:
                break
            parts.append(part)
            size -= len(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write_at(self, descriptor: int, data: bytes, offset: int) -> None:
        """Write all of ``data``."""
        while data:
            count = os.pwrite(descriptor, data, offset)
            data = data[count:]
            offset += count

    def truncate(self, descriptor: int, size: int) -> None:
        """Set the size of a file; what is added is a hole."""
        os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, stop: int, start: int = 0) -> None:
        """Take room for the bytes ``start`` to before ``stop`` of a file, where the system can."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, start, stop - start)
        elif self.size(descriptor) < stop:
            os.ftruncate(descriptor, stop)

    def fsync_file(self, descriptor: int) -> None:
        """Make a file's bytes and size durable."""
        full = getattr(fcntl, "F_FULLFSYNC", None)  # where fsync stops at the drive's cache
        if full is None:
            os.fsync(descriptor)
        else:
            fcntl.fcntl(descriptor, full)

    def fsync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        descriptor = self.open_folder(path)
        try:
            self.fsync_file(descriptor)
        finally:
            os.close(descriptor)

    def try_lock(self, descriptor: int, *, exclusive: bool = True) -> bool:
        """Take, or change, a ``flock``; False when another process is in the way.

        A failed change from shared to exclusive may lose the shared lock.
        """
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        return _flock_now(descriptor, kind | fcntl.LOCK_NB)

    def unlock(self, descriptor: int) -> None:
        """Give a ``flock`` back; one that is not held is fine. Keeps the GIL: it cannot wait."""
        _flock_now(descriptor, fcntl.LOCK_UN)

    def peek(self, descriptor: int, size: int) -> bytes:
        """The first bytes of a small file that lies in the page cache."""
        if _pread is None:
            return os.pread(descriptor, size, 0)
        buffer = ctypes.create_string_buffer(size)
        count = _pread(descriptor, buffer, ctypes.c_size_t(size), ctypes.c_int64(0))
        if count < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return buffer.raw[:count]

    def free_bytes(self, path: Path) -> int:
        """Bytes that this process can still write on the file system of a path."""
        found = os.statvfs(path)
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        return blocks * found.f_frsize

    def can_allocate(self, folder: Path, size: int) -> bool:
        """Whether a file of so many bytes can be made; finds quotas that ``statvfs`` hides."""
        name = folder / f".{random_bytes(8).hex()}.probe"
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            return error.errno not in (errno.ENOSPC, errno.EDQUOT)
        try:
            os.unlink(name)
            self.allocate(descriptor, size)
        except OSError as error:
            return error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        finally:
            os.close(descriptor)
        return True

    def file_bytes_limit(self) -> int | None:
        """The largest file this process may write (``ulimit -f``), None without a limit."""
        soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return None if soft == resource.RLIM_INFINITY else soft

    def mounts(self) -> str | None:
        """The mount table as Linux prints it (``proc(5)``, mountinfo), None elsewhere."""
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                return file.read()
        except OSError:
            return None


FILES: Final = Files()


class _Named:
    """What one name in a folder means, looked up without giving the GIL up."""

    # Linux's struct statx, the same on every architecture: offsets of stx_ino, stx_size and
    # stx_dev_major/minor, and the mask that asks for the first two.
    _BYTES = 256
    _INODE, _SIZE, _DEVICE = 32, 40, 136
    _MASK = 0x100 | 0x200

    def __init__(self, folder: int, name: str) -> None:
        self.name = name
        self.folder = folder
        buffer = ctypes.create_string_buffer(self._BYTES)
        self.arguments = (
            ctypes.c_int(folder),
            ctypes.c_char_p(os.fsencode(name)),
            ctypes.c_int(0),
            ctypes.c_uint(self._MASK),
            buffer,
        )
        self.inode = ctypes.c_uint64.from_buffer(buffer, self._INODE)
        self.size = ctypes.c_uint64.from_buffer(buffer, self._SIZE)
        self.device = ctypes.c_uint64.from_buffer(buffer, self._DEVICE)
        if not self.look():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self.first = (self.inode.value, self.device.value)

    def look(self) -> bool:
        """Fill in what the name means now; False when it means nothing."""
        if _statx is not None:
            if _statx(*self.arguments) == 0:
                return True
            if ctypes.get_errno() == errno.ENOENT:
                return False
        try:  # no statx, or one that a sandbox forbids
            found = os.stat(self.name, dir_fd=self.folder)
        except FileNotFoundError:
            return False
        device = os.major(found.st_dev).to_bytes(4, sys.byteorder)
        device += os.minor(found.st_dev).to_bytes(4, sys.byteorder)
        self.inode.value = found.st_ino
        self.device.value = int.from_bytes(device, sys.byteorder)
        self.size.value = found.st_size
        return True


class FileWatch:
    """Notices that a name in a folder no longer names the file it named.

    Not safe for two threads at once.
    """

    def __init__(self, folder: int, names: Sequence[str]) -> None:
        """Remember what the names mean now.

        Args:
            folder: A descriptor from ``Files.open_folder``; stays the caller's.
            names: Names in it; all must exist.
        """
        self._named = [_Named(folder, name) for name in names]

    @property
    def size(self) -> int:
        """Bytes of the first file when it was looked at last."""
        return self._named[0].size.value

    def try_changed(self) -> str | None:
        """The first name that is gone or names another file; None when all is as it was."""
        for named in self._named:
            if not named.look() or (named.inode.value, named.device.value) != named.first:
                return named.name
        return None


# Who this process is


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, known well enough to see later whether it still lives.

    Attributes:
        pid: Process id, as its PID namespace counts.
        start: When it started, in the kernel's ticks since boot; 0 where that is not known.
        started_us: The same as wall time, for people; 0 where that is not known.
        boot: The kernel's boot id; empty where there is none.
        namespace: Inode of its PID namespace; 0 where there is none.
        host: Host name.
        command: Its command line.
    """

    pid: int
    start: int
    started_us: int
    boot: str
    namespace: int
    host: str
    command: str


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _state_and_start(process: str) -> tuple[str, int]:
    """Fields 3 and 22 of /proc/PID/stat; the name before them may hold spaces and parentheses."""
    fields = _first_line(f"/proc/{process}/stat").rpartition(")")[2].split()
    if len(fields) < 20 or not fields[19].isdigit():
        return "", 0
    return fields[0], int(fields[19])


def _booted_us() -> int:
    try:
        with open("/proc/stat", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("btime "):
                    return int(line.split()[1]) * 1_000_000
    except (OSError, ValueError):
        pass
    return 0


def process_identity() -> ProcessIdentity:
    """Who this process is; costs a few file reads."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    _, start = _state_and_start("self")
    booted = _booted_us()
    ticks = os.sysconf("SC_CLK_TCK")
    return ProcessIdentity(
        pid=os.getpid(),
        start=start,
        started_us=booted + start * 1_000_000 // ticks if start and booted else 0,
        boot=_first_line("/proc/sys/kernel/random/boot_id"),
        namespace=namespace,
        host=socket.gethostname(),
        command=" ".join(sys.orig_argv),
    )


def process_alive(identity: ProcessIdentity) -> bool:
    """Whether a process of this boot and PID namespace still lives; its pid alone may be reused."""
    try:
        os.kill(identity.pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # it lives, and belongs to another user
    if not identity.start:
        return True
    try:
        visible = os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        visible = False
    # A /proc of another PID namespace shows other processes under these numbers.
    state, start = _state_and_start(str(identity.pid)) if visible else ("", 0)
    return state not in ("Z", "X") and start in (0, identity.start)


def user_id() -> int:
    """The effective user of this process."""
    return os.geteuid()


def utc_text(wall_us: int) -> str:
    """A wall time for people, like ``2025-06-01T12:00:00Z``."""
    return datetime.fromtimestamp(wall_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
