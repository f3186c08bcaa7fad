r"""The three lock files of a store: who may write, who is next, who is in.

LMDB's own writer mutex cannot be given a deadline, names nobody, and holds Ctrl-C back for as long
as it waits. So two ``flock``\ s stand before it. A writer takes the *turnstile*, then the *writer*
lock, then lets the turnstile go: only one process at a time waits for the writer lock, so that a
process that commits back to back cannot overtake it for ever. Both are polled.

Every process that has the store open also holds a shared *use* lock; ``vacuum`` needs it alone. The
file tells the boot and the PID namespace of those inside, because LMDB knows its readers by pid:
two processes with equal pids in two namespaces would take each other's reader slots.

Invariants:
    1. Whoever holds the writer lock has its owner record at the start of ``writer.lock``, unless
       the disk is full; only messages depend on it.
    2. All processes inside share one boot and PID namespace (a *domain*).
    3. A process that cannot write its slot (read-only file system) is inside only together with
       others of its kind; so it may read without LMDB's reader table.
    4. The use lock changes between shared and exclusive only under the *guard*, an exclusive
       ``flock`` on the store's folder, since such a change is not atomic.
    5. A forked child closes its descriptors and unlocks nothing: a ``flock`` belongs to the open
       file, which the child shares with its parent.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import Final

from eventlog.errors import BusyError, StoreClosedError, StoreUnavailableError
from eventlog.limits import LOCK_DEADLINE_MS
from eventlog.seams import (
    CLOCK,
    FILES,
    Clock,
    Files,
    ProcessIdentity,
    process_alive,
    process_identity,
    random_bytes,
    utc_text,
)

TURNSTILE_FILE: Final = "turnstile.lock"
WRITER_FILE: Final = "writer.lock"
USE_FILE: Final = "use.lock"
LOCK_FILES: Final = (TURNSTILE_FILE, WRITER_FILE, USE_FILE)

RECORD_BYTES: Final = 512  # one owner record; one write of it is never seen in part
NO_RECORD: Final = b" " * (RECORD_BYTES - 1) + b"\n"
PREFIX_BYTES: Final = 64  # pid and start times, which tell two processes apart
MEMBERS_MAX: Final = 4_096  # slots of use.lock that are looked at
POLL_FIRST_US: Final = 50
POLL_LAST_US: Final = 1_000
POLL_NEXT_US: Final = 250  # whoever is next asks often: between its questions nobody writes
MUTEX_SLICE_US: Final = 20_000  # waiting for a thread of ours, look at the stop event so often


def encode_owner(identity: ProcessIdentity) -> bytes:
    """The record of a process, ``RECORD_BYTES`` long; the command is cut so that it fits."""
    for length in (len(identity.command), 128, 32, 0):
        cut = replace(identity, command=identity.command[:length], host=identity.host[:64])
        text = json.dumps(asdict(cut), separators=(",", ":")).encode("ascii")
        if len(text) < RECORD_BYTES:
            break
    return text.ljust(RECORD_BYTES - 1) + b"\n"


def decode_owner(record: bytes) -> ProcessIdentity | None:
    """The process in a record; None when there is none or the bytes are something else."""
    try:
        found = json.loads(record.decode("ascii"))
        known = ProcessIdentity(**found)
    except (ValueError, TypeError, RecursionError):
        return None
    for field in fields(ProcessIdentity):
        value = getattr(known, field.name)
        if field.type == "str" and type(value) is str:
            continue
        if field.type != "int" or type(value) is not int or not 0 <= value < 2**63:
            return None
    return known


def same_domain(one: ProcessIdentity, other: ProcessIdentity) -> bool:
    """Whether both count processes alike, so that LMDB can tell their readers apart."""
    if not one.boot:  # no boot id on this system: a host name must do
        return (one.boot, one.host) == (other.boot, other.host)
    # Not the host name, which may change while a process lives.
    return (one.boot, one.namespace) == (other.boot, other.namespace)


def describe_owner(owner: ProcessIdentity | None, ours: ProcessIdentity) -> str:
    """An owner for people; says so when the record is stale."""
    if owner is None:
        return "a process that left no record"
    text = f"pid {owner.pid} on {owner.host}"
    if owner.command:
        text += f" ({owner.command})"
    if owner.started_us:
        text += f", running since {utc_text(owner.started_us)}"
    if same_domain(owner, ours):
        if not process_alive(owner):
            text += ", which is gone; a child of it may still hold the lock"
    elif owner.boot == ours.boot:
        text += ", in another PID namespace (container)"
    return text


class _Poll:
    """Waits with growing pauses until a deadline."""

    def __init__(self, clock: Clock, deadline_ms: int, stop: threading.Event | None) -> None:
        self.deadline_ms = deadline_ms
        self._clock = clock
        self._stop = stop
        self._until_us = clock.monotonic_us() + deadline_ms * 1_000
        self._pause_us = POLL_FIRST_US
        self._longest_us = POLL_LAST_US

    def be_next(self) -> None:
        """From here on only the owner of the lock is in the way, not others who wait."""
        self._pause_us = POLL_FIRST_US
        self._longest_us = POLL_NEXT_US

    def left_us(self) -> int:
        return self._until_us - self._clock.monotonic_us()

    def raise_if_stopped(self) -> None:
        if self._stop is not None and self._stop.is_set():
            raise StoreClosedError("the store was closed while it waited for a lock")

    def pause(self) -> bool:
        """Wait a little; False when the deadline has passed.

        Raises:
            StoreClosedError: The stop event is set.
        """
        left_us = self.left_us()
        if left_us <= 0:
            return False
        # A different pause in each process, or two that woke together meet again and again.
        pause_us = min(left_us, self._pause_us + self._pause_us * random_bytes(1)[0] // 1_024)
        self._pause_us = min(self._pause_us * 2, self._longest_us)
        self._clock.wait(self._stop, pause_us / 1_000_000)
        self.raise_if_stopped()
        return True


class WriterLock:
    """The right to write, among the processes on a store and the threads of this one."""

    def __init__(
        self,
        folder: int,
        *,
        files: Files = FILES,
        clock: Clock = CLOCK,
        identity: ProcessIdentity | None = None,
    ) -> None:
        """Open both lock files, making them where they are missing.

        Args:
            folder: Descriptor of the store's folder; stays the caller's.
            files: Calls to the file system.
            clock: Time and waiting.
            identity: Who this process is.
        """
        self._files = files
        self._clock = clock
        self._identity = process_identity() if identity is None else identity
        self._record = encode_owner(self._identity)
        self._prefix = self._record[:PREFIX_BYTES]
        self._mutex = threading.Lock()
        self._turnstile = files.open_file(TURNSTILE_FILE, os.O_RDWR | os.O_CREAT, folder=folder)
        try:
            self._writer = files.open_file(WRITER_FILE, os.O_RDWR | os.O_CREAT, folder=folder)
        except BaseException:
            files.close(self._turnstile)
            raise

    def acquire(self, deadline_ms: int, stop: threading.Event | None = None) -> None:
        """Take the writer lock.

        Args:
            deadline_ms: How long to wait for others; 0 asks once.
            stop: Ends the wait when it is set.

        Raises:
            BusyError: Somebody else has it still; names the owner.
            StoreClosedError: The stop event was set while this waited.
        """
        files = self._files
        poll = None
        if not self._mutex.acquire(blocking=False):
            poll = _Poll(self._clock, deadline_ms, stop)
            self._wait_for_thread(poll)
        try:
            if self._writer < 0:
                raise StoreClosedError("the store is closed")
            if not files.try_lock(self._turnstile):
                poll = poll or _Poll(self._clock, deadline_ms, stop)
                self._wait(self._turnstile, poll)
            if not files.try_lock(self._writer):
                poll = poll or _Poll(self._clock, deadline_ms, stop)
                poll.be_next()
                self._wait(self._writer, poll)
            files.unlock(self._turnstile)
            # A write may wait for the journal of the file system; the one process that writes
            # most of the time finds its own record here and needs none.
            if files.peek(self._writer, PREFIX_BYTES) != self._prefix:
                self._sign()
        except BaseException:
            if self._writer >= 0:
                files.unlock(self._turnstile)
                files.unlock(self._writer)
            self._mutex.release()
            raise

    def release(self) -> None:
        """Give the writer lock back."""
        try:
            if self._writer >= 0:  # closing gave it back
                self._files.unlock(self._writer)
        finally:
            self._mutex.release()

    @contextmanager
    def held(self, deadline_ms: int, stop: threading.Event | None = None) -> Iterator[None]:
        """Hold the writer lock for the body of a ``with``."""
        self.acquire(deadline_ms, stop)
        try:
            yield
        finally:
            self.release()

    def owner(self) -> ProcessIdentity | None:
        """Who wrote the owner record last; it may have let the lock go since."""
        return decode_owner(self._files.peek(self._writer, RECORD_BYTES))

    def wipe(self) -> None:
        """Leave no record behind of who wrote; nobody has the lock."""
        self._files.write_at(self._writer, NO_RECORD, 0)

    def leave(self) -> None:
        """Clear the record, if it is this process's, and close; not in a forked child.

        A command line may name what is to be forgotten, so it does not outlive its process.
        """
        files = self._files
        try:
            if (
                self._writer >= 0
                and files.try_lock(self._writer)  # or another one has signed by now
                and files.peek(self._writer, PREFIX_BYTES) == self._prefix
            ):
                files.write_at(self._writer, NO_RECORD, 0)
        except OSError:
            pass  # the record of a process that is gone counts for nothing
        finally:
            self.close()

    def close(self) -> None:
        """Close both files, which gives back what is held, except in a forked child."""
        for descriptor in (self._turnstile, self._writer):
            if descriptor >= 0:
                self._files.close(descriptor)
        self._turnstile = self._writer = -1

    def _sign(self) -> None:
        try:
            self._files.write_at(self._writer, self._record, 0)
        except OSError:
            pass  # a full disk must not keep anybody from deleting; the record is for messages only

    def _wait_for_thread(self, poll: _Poll) -> None:
        while True:
            left_us = poll.left_us()
            if left_us <= 0:
                raise BusyError(
                    "another thread of this process kept the writer lock for "
                    f"{poll.deadline_ms} ms",
                    owner=describe_owner(self._identity, self._identity),
                )
            if self._mutex.acquire(timeout=min(left_us, MUTEX_SLICE_US) / 1_000_000):
                return
            poll.raise_if_stopped()

    def _wait(self, descriptor: int, poll: _Poll) -> None:
        while poll.pause():
            if self._files.try_lock(descriptor):
                return
        owner = describe_owner(self.owner(), self._identity)
        raise BusyError(
            f"the writer lock was not free within {poll.deadline_ms} ms; it is held by {owner}",
            owner=owner,
        )


class UseLock:
    """Being in: shared while a process has the store open, exclusive for ``vacuum``.

    Made by ``enter``. Not safe for two threads at once.
    """

    def __init__(
        self,
        folder: int,
        descriptor: int | None,
        slot: int | None,
        *,
        files: Files,
        clock: Clock,
        identity: ProcessIdentity,
    ) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self._slot = slot
        self._files = files
        self._clock = clock
        self._identity = identity
        self._record = encode_owner(identity)
        self._recorded = decode_owner(self._record)  # whose command may be cut

    @property
    def writable(self) -> bool:
        """Whether this process told the others that it is in."""
        return self._slot is not None

    @classmethod
    def enter(
        cls,
        folder: int,
        *,
        writable: bool = True,
        deadline_ms: int = LOCK_DEADLINE_MS,
        files: Files = FILES,
        clock: Clock = CLOCK,
        identity: ProcessIdentity | None = None,
    ) -> UseLock:
        """Go in.

        Args:
            folder: Descriptor of the store's folder; must stay open while this is used.
            writable: Whether the lock file can be written; if not, others may be inside only if
                they cannot write it either.
            deadline_ms: How long to wait for a vacuum, or for readers on a read-only mount.
            files: Calls to the file system.
            clock: Time and waiting.
            identity: Who this process is.

        Raises:
            StoreUnavailableError: Processes of another PID namespace, host or boot are inside.
            BusyError: Who is inside excludes this process, still at the deadline.
            OSError: The lock file cannot be opened.
        """
        identity = process_identity() if identity is None else identity
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        try:
            descriptor = files.open_file(USE_FILE, flags, folder=folder)
        except FileNotFoundError:
            if writable:
                raise
            # Nobody who can write was ever in: such a process would have made the file.
            return cls(folder, None, None, files=files, clock=clock, identity=identity)
        lock = cls(folder, descriptor, None, files=files, clock=clock, identity=identity)
        try:
            lock._enter(writable, deadline_ms)
        except BaseException:
            files.close(descriptor)
            raise
        return lock

    def members(self) -> list[ProcessIdentity]:
        """The other processes that are in and could say so."""
        return [
            owner
            for slot, owner in self._slots()
            if slot != self._slot and self._may_live(owner) and owner != self._recorded
        ]

    def exclusive(self, deadline_ms: int, stop: threading.Event | None = None) -> None:
        """Be alone in; the lock stays shared when this raises.

        Raises:
            BusyError: Others are in still; names them.
            StoreClosedError: The stop event was set while this waited.
        """
        assert self._descriptor is not None and self._slot is not None, "read-only: no vacuum"
        poll = _Poll(self._clock, deadline_ms, stop)
        while True:
            with self._guard(poll):
                if self._files.try_lock(self._descriptor):
                    return
                shared = self._files.try_lock(self._descriptor, exclusive=False)
                assert shared, "nobody can be alone in while this process is in"
            if not poll.pause():
                break
        owner = self._names() or "processes that left no record"
        raise BusyError(f"others have the store open: {owner}", owner=owner)

    def shared(self) -> None:
        """Let others in again after ``exclusive``."""
        assert self._descriptor is not None
        with self._guard(_Poll(self._clock, LOCK_DEADLINE_MS, None)):
            shared = self._files.try_lock(self._descriptor, exclusive=False)
            assert shared, "this process was alone in"

    def wipe(self) -> None:
        """Leave no record of others behind; only after ``exclusive``."""
        assert self._descriptor is not None and self._slot is not None
        slots = -(-self._files.size(self._descriptor) // RECORD_BYTES)
        records = [NO_RECORD] * max(slots, self._slot + 1)
        records[self._slot] = self._record
        self._files.write_at(self._descriptor, b"".join(records), 0)

    def leave(self) -> None:
        """Clear this process's slot and go out; not in a forked child."""
        if self._descriptor is None:
            return
        try:
            if self._slot is not None:
                self._files.write_at(self._descriptor, NO_RECORD, self._slot * RECORD_BYTES)
        except OSError:
            pass  # the slot of a process that is gone counts for nothing
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptor; the slot stays, as after a kill."""
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None

    @contextmanager
    def _guard(self, poll: _Poll) -> Iterator[None]:
        while not self._files.try_lock(self._folder):
            if not poll.pause():
                raise BusyError("another process is just going in or out, and does not finish")
        try:
            yield
        finally:
            self._files.unlock(self._folder)

    def _enter(self, writable: bool, deadline_ms: int) -> None:
        poll = _Poll(self._clock, deadline_ms, None)
        while True:
            with self._guard(poll):
                reason = self._try_enter(writable)
            if reason is None:
                return
            if not poll.pause():
                raise BusyError(reason, owner=self._owner())

    def _try_enter(self, writable: bool) -> str | None:
        """Go in under the guard; or say who is in the way, without the lock."""
        files, descriptor = self._files, self._descriptor
        assert descriptor is not None
        if files.try_lock(descriptor):
            if writable:
                # Nobody is in: every record is stale. The block stays, in case the disk is full.
                files.truncate(descriptor, RECORD_BYTES)
                self._write_slot(0)
            shared = files.try_lock(descriptor, exclusive=False)
            assert shared, "only under the guard does anybody take this lock alone"
            return None
        if not files.try_lock(descriptor, exclusive=False):
            return f"the store is being vacuumed by {self._owner() or 'another process'}"
        try:
            reason = self._judge(writable)
            if reason is None:
                if writable:
                    self._write_slot(self._free_slot())
                return None
        except BaseException:
            files.unlock(descriptor)
            raise
        files.unlock(descriptor)
        return reason

    def _judge(self, writable: bool) -> str | None:
        """Whether those inside and this process can be in together; why not, if waiting helps."""
        inside = [owner for _, owner in self._slots() if self._may_live(owner)]
        for owner in inside:
            if not same_domain(owner, self._identity):
                where = "PID namespace (container)" if owner.boot == self._identity.boot else "host"
                raise StoreUnavailableError(
                    f"the store is open in another {where}: "
                    f"{describe_owner(owner, self._identity)}",
                    hint="Open it from one container or host at a time, or give the containers "
                    "one PID namespace.",
                )
        if writable and not inside:
            return "a process reads the store through a read-only mount, without locks"
        if not writable and inside:
            return f"the lock files cannot be written, and others may write: {self._names()}"
        return None

    def _may_live(self, owner: ProcessIdentity) -> bool:
        """Whether a record may be of a process that is in; judged by pid only where pids agree."""
        ours = self._identity
        if same_domain(owner, ours):
            return process_alive(owner)
        return owner.host != ours.host or owner.boot == ours.boot

    def _slots(self) -> Iterator[tuple[int, ProcessIdentity]]:
        if self._descriptor is None:
            return
        content = self._files.read_at(self._descriptor, MEMBERS_MAX * RECORD_BYTES, 0)
        for slot in range(len(content) // RECORD_BYTES):
            record = content[slot * RECORD_BYTES : (slot + 1) * RECORD_BYTES]
            if record.isspace():
                continue
            owner = decode_owner(record)
            if owner is not None:
                yield slot, owner

    def _names(self) -> str:
        return "; ".join(describe_owner(owner, self._identity) for owner in self.members())

    def _owner(self) -> str | None:
        """Who is in the way of this process, which has not gone in with this lock."""
        others = self._names()
        if others:
            return others
        is_here = any([owner == self._recorded for _, owner in self._slots()])
        return "this process" if is_here else None

    def _free_slot(self) -> int:
        taken = {slot for slot, owner in self._slots() if self._may_live(owner)}
        for slot in range(MEMBERS_MAX):
            if slot not in taken:
                return slot
        raise StoreUnavailableError(f"{MEMBERS_MAX:,} processes have the store open")

    def _write_slot(self, slot: int) -> None:
        assert self._descriptor is not None
        self._files.write_at(self._descriptor, self._record, slot * RECORD_BYTES)
        self._slot = slot
