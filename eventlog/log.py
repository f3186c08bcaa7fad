"""The log of one store in one process: what the engine builds on.

One ``Log`` per store and process, shared by every ``Log.open`` of the same data file: one
environment, one loose index, one writer thread.

Invariants:
    1. Opening writes nothing and repairs nothing.
    2. Options that change what is written are stored at creation and changed by ``configure``
       alone; another value at an opening is refused.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from eventlog.ack import Ack, wake
from eventlog.arguments import flag, shown, whole
from eventlog.blobput import Streams
from eventlog.body import decode_body, encode_plain
from eventlog.configuring import Configure
from eventlog.creation import create
from eventlog.environment import Environment, identity
from eventlog.errors import (
    BusyError,
    CorruptionError,
    NotAStoreError,
    OverloadedError,
    ReadOnlyError,
    StoreClosedError,
    TurnlogError,
    UsageError,
)
from eventlog.idruns import IdRuns
from eventlog.index import LooseIndex
from eventlog.inline import InlineProjection
from eventlog.limits import (
    LOCK_DEADLINE_MS,
    LOCK_DEADLINE_MS_MAX,
    MAP_BYTES,
    MAP_BYTES_MAX,
    MAX_MESSAGES_MAX,
    MIB,
    POLL_MAX_MS,
    POLL_MIN_MS,
    SEGMENT_CACHE_BYTES_MAX,
    SNAPSHOT_FREQUENCY,
    SNAPSHOT_FREQUENCY_MAX,
)
from eventlog.removal import REMOVAL_VERSION
from eventlog.rollup import NEVER, RollUpOptions
from eventlog.rows import CommitRecord
from eventlog.sealing import due_events
from eventlog.seams import CLOCK, random_bytes
from eventlog.segmentcache import SegmentCache
from eventlog.tables import TABLES, ReadTables, WriteTables, tables_of
from eventlog.training import TenantDictionaries, Trainer
from eventlog.views import Views
from eventlog.writer import Writer, nothing

EXIT_DEADLINE_S: Final = 10.0  # for what waits when the interpreter ends
TRAINER_DEADLINE_S: Final = 5.0  # for a training that is under way at a close; one takes 0.2
QUOTA_BYTES_MIN: Final = 1024 * 1024
QUOTA_BYTES_MAX: Final = 2**63 - 1
OPTIONS_1: Final = ("snapshot_frequency", "max_messages", "quota_bytes")  # of format version 1


@dataclass(frozen=True)
class Options:
    """Options that change what is written; stored at creation, changed by ``configure``.

    Attributes:
        snapshot_frequency: Messages that make a session's roll-up due (``rollup``).
        max_messages: Messages that a session's view keeps at a roll-up; None keeps all.
        quota_bytes: Bytes of pages from which appends are refused; None for no quota.
        dictionaries: Compress each tenant's segments with what its sessions have in common.
    """

    snapshot_frequency: int = SNAPSHOT_FREQUENCY
    max_messages: int | None = None
    quota_bytes: int | None = None
    dictionaries: bool = True

    def check(self) -> None:
        """Raise ``UsageError`` for values that make no sense."""
        whole(self.snapshot_frequency, "snapshot_frequency", 1, SNAPSHOT_FREQUENCY_MAX)
        if self.max_messages is not None:
            whole(self.max_messages, "max_messages", 1, MAX_MESSAGES_MAX)
        if self.quota_bytes is not None:
            whole(self.quota_bytes, "quota_bytes", QUOTA_BYTES_MIN, QUOTA_BYTES_MAX)
        flag(self.dictionaries, "dictionaries")

    @property
    def roll_ups(self) -> RollUpOptions:
        """Those of them that roll-ups follow."""
        return RollUpOptions(self.snapshot_frequency, self.max_messages)

    @classmethod
    def decode(cls, stored: bytes) -> Options:
        """The options of a store.

        Raises:
            CorruptionError: The bytes are not such options.
        """
        found = decode_body(stored, where="options")
        try:
            options = cls(**found)
        except TypeError as error:
            raise CorruptionError(f"are no options: {error}", where="options") from error
        flags = found.pop("dictionaries", False)
        if type(flags) is not bool:
            raise CorruptionError("hold values that cannot be", where="options")
        if any([type(value) is not int and value is not None for value in found.values()]) or not (
            options.snapshot_frequency
            and 1 <= options.snapshot_frequency <= SNAPSHOT_FREQUENCY_MAX
            and (options.max_messages is None or options.max_messages >= 1)
        ):
            raise CorruptionError("hold values that cannot be", where="options")
        return options


def _after_fork() -> None:
    """In a child: nothing of the parent's may be used, nor waited for."""
    global _registry_lock
    _registry_lock = threading.RLock()
    _opening.clear()
    for log in _open_logs.values():
        log.forked()


def _at_exit() -> None:
    """Commit what waits when the interpreter ends without a close."""
    for log in list(_open_logs.values()):
        if not log.environment.is_forked:
            log.writer.close(EXIT_DEADLINE_S)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)

RefusalListener = Callable[[list[tuple[Ack, TurnlogError]]], None]


class _Opening:
    """A store that a thread is opening."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.done = threading.Event()


_open_logs: dict[tuple[int, int], Log] = {}
_opening: dict[tuple[int, int] | None, _Opening] = {}  # by folder: a vacuum changes the data file
_registry_lock = threading.RLock()  # of both; no I/O but a stat while it is held


class Log:
    """See the module. ``views`` is what it reads with."""

    def __init__(
        self,
        environment: Environment,
        options: Options,
        projections: Sequence[InlineProjection],
        lock_deadline_ms: int,
    ) -> None:
        self.environment = environment
        self.projections = projections
        self.options = options
        self.lock_deadline_ms = lock_deadline_ms
        self.index = LooseIndex()
        self.index.frequency = due_events(options.snapshot_frequency)
        self._take_roll_ups()
        self.cache = SegmentCache(SEGMENT_CACHE_BYTES_MAX, threading.Lock())
        self.dictionaries = TenantDictionaries(self.cache, self._train)
        self.writer = Writer(
            environment,
            self.index,
            self.cache,
            projections=projections,
            quota_bytes=options.quota_bytes,
            lock_deadline_ms=lock_deadline_ms,
            dictionaries=self.dictionaries if options.dictionaries else None,
        )
        self.views = Views(
            environment,
            self.index,
            self.cache,
            lambda tables, record: self.writer.composer.catch_up(tables, record, pause=nothing),
        )
        self.trainer = Trainer(
            self.views.transaction,
            self.writer.run,
            self.cache,
            self.dictionaries.outcomes.append,
        )
        self.writer.on_commit = self.announce
        self.writer.on_refused = self._refused
        self.writer.composer.on_generation = self._reload
        self.streams = Streams()
        self.users = 1
        self._changed = threading.Condition()
        self._futures: list[asyncio.Future[None]] = []
        self._refusal_listeners: list[RefusalListener] = []
        self._closed = False
        self._gone = threading.Event()

    def forked(self) -> None:
        """In a child: refuse everything, and wait for no lock that a thread of the parent holds."""
        self.index.lock = threading.RLock()
        self._changed = threading.Condition()
        self._futures = []  # of event loops that stayed in the parent
        self.writer.forked()

    def _train(self, tenant_number: int, before: int) -> bool:
        return self.trainer.start(tenant_number, before)

    # Opening and closing

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        projections: Sequence[InlineProjection],
        create_new: bool = True,
        read_only: bool = False,
        wanted: dict[str, Any] | None = None,
        verify: bool = False,
        allow_network: bool = False,
        lock_deadline_ms: int = LOCK_DEADLINE_MS,
        map_bytes: int = MAP_BYTES,
        private: bool = False,
    ) -> Log:
        """Open a store, create it when there is none, or share the one that is open already.

        Args:
            path: The store's folder.
            projections: Whose rows are written with what is sealed; those of the log that is open
                already count.
            create_new: Create it when it does not exist.
            read_only: Refuse writes.
            wanted: Options that the caller named; others come from the store or the defaults.
            verify: Walk the file's structure before it is mapped.
            allow_network: Accept a network file system.
            lock_deadline_ms: How long a commit waits for another process.
            map_bytes: Address space of the map.
            private: Nobody else knows of the folder: read it without lock files.

        Threads that open one store wait for the first of them; those at other stores go on.

        Raises:
            UsageError: An option makes no sense, differs from the stored one, or differs from
                that of the log that is open already.
        """
        wanted = wanted or {}
        Options(**wanted).check()
        flag(create_new, "create")
        flag(verify, "verify")
        per_open = {
            "read_only": flag(read_only, "read_only"),
            "allow_network": flag(allow_network, "allow_network"),
            "lock_deadline_ms": whole(
                lock_deadline_ms, "lock_deadline_ms", 0, LOCK_DEADLINE_MS_MAX
            ),
            "map_bytes": whole(map_bytes, "map_bytes", MIB, MAP_BYTES_MAX),
        }
        mine = _Opening()
        folder: tuple[int, int] | None = None
        is_made = read_only or not create_new
        try:
            while True:
                with _registry_lock:
                    shared = cls._shared(path)
                    if shared is not None and not shared._closed:
                        shared._check_per_open(per_open, verify=verify)
                        shared._check_wanted(wanted)
                        shared.users += 1
                        return shared
                    folder = _folder_of(path)
                    other = _opening.get(folder)
                    if shared is None and other is None and is_made:
                        _opening[folder] = mine
                        break
                if shared is not None or other is not None:
                    _await(shared, other, lock_deadline_ms)
                    continue
                create(
                    path,
                    tables=TABLES,
                    initialise=lambda txn, db: _initialise(txn, db, Options(**wanted)),
                    marker={"store_id": random_bytes(16).hex()},
                    map_bytes=map_bytes,
                    allow_network=allow_network,
                )
                is_made = True
            environment = Environment.open(
                path,
                tables=tables_of,
                decode_commit_record=CommitRecord.decode,
                read_only=read_only,
                map_bytes=map_bytes,
                allow_network=allow_network,
                verify=verify,
                lock_deadline_ms=lock_deadline_ms,
                private=private,
            )
            try:
                log = cls._started(environment, projections, lock_deadline_ms, wanted)
                log.key = identity(path)
                log.per_open = per_open
                log.is_verified = verify
            except BaseException:
                environment.close()
                raise
            with _registry_lock:
                _open_logs[log.key] = log
            return log
        finally:
            with _registry_lock:
                if _opening.get(folder) is mine:
                    del _opening[folder]
            mine.done.set()

    @classmethod
    def _started(
        cls,
        environment: Environment,
        projections: Sequence[InlineProjection],
        lock_deadline_ms: int,
        wanted: dict[str, Any],
    ) -> Log:
        """The log of an environment, with its writer at work."""
        with environment.read() as transaction:
            tables = ReadTables(transaction, environment.db)
            options = _stored_options(tables)
            generation = tables.commit_record().generation
        log = cls(environment, options, projections, lock_deadline_ms)
        log.writer.composer.generation = generation
        log._check_wanted(wanted)
        if environment.read_only:
            log.writer.refuse(ReadOnlyError("the store was opened read-only"))
        else:
            log.writer.start()
        return log

    key: tuple[int, int]
    per_open: dict[str, int]
    is_verified: bool

    @classmethod
    def is_open_here(cls, path: str | os.PathLike[str]) -> bool:
        """Whether this process has the store at a path open, or is opening it."""
        with _registry_lock:
            return cls._shared(os.fspath(path)) is not None or _folder_of(path) in _opening

    @classmethod
    def _shared(cls, path: str | Path) -> Log | None:
        try:
            log = _open_logs.get(identity(path))
        except NotAStoreError:
            return None
        if log is not None and log.environment.is_forked:
            del _open_logs[log.key]
            return None
        return log

    def _check_per_open(self, wanted: dict[str, int], *, verify: bool) -> None:
        for name, value in wanted.items():
            if self.per_open[name] != value:
                raise UsageError(
                    f"the store is open in this process with {name}={shown(self.per_open[name])}, "
                    f"not {shown(value)}",
                    hint=f"Use the same {name}, or close it first.",
                )
        if verify and not self.is_verified:
            raise UsageError(
                "the store is open in this process without verify=True, which works before that",
                hint="Close it first, or ask check().",
            )

    def _check_wanted(self, wanted: dict[str, Any]) -> None:
        stored = asdict(self.options)
        for name, value in wanted.items():
            if stored[name] != value:
                raise UsageError(
                    f"the store has {name}={shown(stored[name])}, not {shown(value)}",
                    hint="Leave the option out, or change it with `configure`.",
                )

    def configure(self, changes: dict[str, Any]) -> None:
        """Change stored options, of every process that has the store open; blocks.

        Raises:
            UsageError: A value makes no sense.
            ReadOnlyError, StoreClosedError, StoreUnavailableError: They cannot be written.
        """

        def change(stored: bytes) -> bytes:
            wanted = replace(Options.decode(stored), **changes)
            wanted.check()
            told = asdict(wanted)
            if self.environment.version == 1:  # its own release knows no others
                told = {name: told[name] for name in OPTIONS_1}
            return encode_plain(told)

        replace(self.options, **changes).check()
        self.writer.run(Configure(change))

    def stored_options(self) -> dict[str, Any]:
        """The stored options as they are now, also when another process changed them."""
        with self.views.transaction() as tables:
            self.views.current(tables)
        return asdict(self.options)

    def _reload(self, tables: ReadTables) -> None:
        """Somebody changed the options."""
        options = self.options = _stored_options(tables)
        self.writer.composer.dictionaries = self.dictionaries if options.dictionaries else None
        self.index.frequency = due_events(options.snapshot_frequency)
        self._take_roll_ups()
        self.writer.composer.quota_bytes = options.quota_bytes
        self.writer.composer.over_quota = None

    def _take_roll_ups(self) -> None:
        """Let roll-ups follow the options; records of version 1 cannot say that there was one."""
        self.index.roll_ups = self.options.roll_ups if self.environment.version > 1 else NEVER

    @property
    def read_only(self) -> bool:
        """True when writes are refused."""
        return self.environment.read_only

    def close(self, timeout: float) -> None:
        """Give up one use; the last one commits what waits and closes the environment.

        When a commit hangs for longer than ``timeout``, what waits is refused and the environment
        is closed as soon as the commit ends.

        Raises:
            BusyError: Reads did not end in time, or one of this thread is open, as in a callback of
                a backup; the environment is closed as soon as they end.
        """
        if self.environment.is_forked:
            return
        with _registry_lock:
            if self._closed:
                return
            self.users -= 1
            is_last = not self.users
            self._closed = is_last
        if not is_last:
            self._wait_settled(timeout)
            return
        self._look_for_removals()
        if not self.writer.close(timeout):
            self.environment.stop.set()
            self.writer.refuse(
                StoreClosedError("the store was closed before the commit"), in_flight=False
            )
            if not self.writer.close(0.1):
                self._start_to_close()
                return
        self._close_environment()

    def _start_to_close(self) -> None:
        threading.Thread(target=self._close_late, name="turnlog-close", daemon=True).start()
        self.announce()

    def _close_late(self) -> None:
        try:
            self.writer.join()
            self.trainer.stop(TRAINER_DEADLINE_S)
            self.environment.close_late()
        finally:
            self._be_gone()

    def _close_environment(self) -> None:
        try:
            self.trainer.stop(TRAINER_DEADLINE_S)
            self.environment.close()
        except BusyError:
            self._start_to_close()
            raise
        except BaseException:
            self._be_gone()
            raise
        self._be_gone()

    def _be_gone(self) -> None:
        with _registry_lock:
            if _open_logs.get(self.key) is self:
                del _open_logs[self.key]
        self._gone.set()
        self.announce()

    # Appending and waiting

    def submit(self, ack: Ack) -> None:
        """Queue an append; see ``Writer.submit``."""
        self.writer.submit(ack)

    def submit_waiting(self, ack: Ack, timeout: float) -> None:
        """Queue an append, waiting in a thread for room.

        Raises:
            OverloadedError: No room in time.
        """
        end_us = CLOCK.monotonic_us() + int(timeout * 1e6)
        while True:
            left_s = (end_us - CLOCK.monotonic_us()) / 1e6
            self.wait_until(lambda: self.has_room(ack.byte_count), max(0.0, left_s))
            try:
                self.submit(ack)
                return
            except OverloadedError:
                if left_s <= 0:
                    raise

    def has_room(self, byte_count: int = 0) -> bool:
        """True when the queue is less than half full, or takes nothing any more."""
        return self._closed or self.writer.has_room(byte_count)

    def pending(self) -> list[Ack]:
        """Every append that is accepted and not settled, oldest first."""
        return self.writer.pending()

    def flush(self, timeout: float | None) -> None:
        """Block until every append accepted so far is settled, and nothing is overdue.

        Raises:
            TimeoutError: Not settled in time; what is overdue is not waited for longer.
        """
        end_us = None if timeout is None else CLOCK.monotonic_us() + int(timeout * 1e6)

        def left_s() -> float | None:
            return None if end_us is None else max(0.0, (end_us - CLOCK.monotonic_us()) / 1e6)

        self._look_for_removals()
        if not self._wait_settled(left_s()):
            raise _not_settled()
        if not self.writer.is_tidy():
            self.writer.tidy()
            self.wait_until(self.writer.is_tidy, left_s())

    def seal_all(self) -> None:
        """Block until all that can be cut from the hot log is sealed and cut, and it is merged.

        What lies behind stays in the hot log anyway, and would only be there twice.
        """
        self.writer.tidy_all(self.views.last_position())
        self.wait_until(self.writer.is_tidy, None)

    def _look_for_removals(self) -> None:
        """What a process that was killed left to remove is worked off with what is overdue."""
        if self.read_only or not self.writer.is_alive or self.environment.version < REMOVAL_VERSION:
            return
        try:
            with self.views.transaction() as tables:
                stuck = self.writer.composer.stuck
                found = any(
                    int.from_bytes(key, "big") not in stuck for key, _ in tables.rows("removal")
                )
        except TurnlogError:
            return  # flush and close are not about it; check tells
        if found:
            self.writer.expect_removals()

    def _wait_settled(self, timeout: float | None) -> bool:
        """Block until what waits now is settled; False when that takes longer.

        Nobody counts as told by this, unlike by waiting for the acks themselves.
        """
        pending = self.pending()
        return self.wait_until(lambda: _all_done(pending), timeout)

    async def flush_async(self, timeout: float | None) -> None:
        """As ``flush``, from an event loop."""
        end_s = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self._look_for_removals()
        pending = self.pending()
        try:
            async with asyncio.timeout_at(end_s):
                await self.wait_until_async(lambda: _all_done(pending))
        except TimeoutError as error:
            raise _not_settled() from error
        if not self.writer.is_tidy():
            self.writer.tidy()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end_s):
                    await self.wait_until_async(self.writer.is_tidy)

    async def wait_until_async(self, predicate: Callable[[], bool]) -> None:
        """As ``wait_until``, from an event loop and without a timeout."""
        while True:
            future = self.next_commit()
            if predicate():
                self.forget_commit(future)
                return
            try:
                await future
            finally:
                self.forget_commit(future)

    def listen_refused(self, listener: RefusalListener) -> Callable[[], None]:
        """Call ``listener`` with the queued appends that were refused; on the writer's thread.

        Returns:
            A function that ends it.
        """
        self._refusal_listeners.append(listener)

        def forget() -> None:
            if listener in self._refusal_listeners:
                self._refusal_listeners.remove(listener)

        return forget

    def _refused(self, refused: list[tuple[Ack, TurnlogError]]) -> None:
        for listener in tuple(self._refusal_listeners):
            listener(refused)

    def next_commit(self) -> asyncio.Future[None]:
        """A future of the running loop that resolves after the next commit of this process."""
        future = asyncio.get_running_loop().create_future()
        with self._changed:
            self._futures.append(future)
        return future

    def forget_commit(self, future: asyncio.Future[None]) -> None:
        """Nobody waits for this future of ``next_commit`` any more."""
        future.cancel()
        with self._changed:
            if future in self._futures:
                self._futures.remove(future)

    def announce(self) -> None:
        """Wake everything that waits for a commit, so that it looks again."""
        with self._changed:
            self._changed.notify_all()
            futures, self._futures = self._futures, []
        if futures:
            wake(futures)

    def wait_until(self, predicate: Callable[[], bool], timeout: float | None) -> bool:
        """Block until a predicate holds; it is asked again after each commit of this process."""
        with self._changed:
            return self._changed.wait_for(predicate, timeout)

    def wait_past(self, position: int, timeout: float | None, is_ended: Callable[[], bool]) -> bool:
        """Block until the last position, of any process, is above ``position``.

        Commits of this process wake it at once; those of others are polled for every
        ``POLL_MIN_MS`` to ``POLL_MAX_MS``.

        Returns:
            False when time is up, or whoever waits has ended; ``announce`` lets it ask.
        """
        end_us = None if timeout is None else CLOCK.monotonic_us() + int(timeout * 1e6)
        delay_ms = POLL_MIN_MS
        while self.views.last_position() <= position:
            if self._closed:
                raise StoreClosedError("the store is closed")
            left_s = delay_ms / 1000
            if end_us is not None:
                left_s = min(left_s, (end_us - CLOCK.monotonic_us()) / 1e6)
            if is_ended() or left_s <= 0:
                return False
            self.wait_until(
                lambda: self.index.position > position or self._closed or is_ended(), left_s
            )
            delay_ms = min(POLL_MAX_MS, delay_ms * 2)
        return True

    # State

    def health(self) -> dict[str, Any]:
        """How the store stands, from memory alone; plain data."""
        machine = self.writer.machine
        running = bool(machine.in_flight)
        now_us = CLOCK.monotonic_us()
        problems = list(self.environment.warnings)
        if not self.read_only and not self.writer.is_alive:
            problems.append("the writer thread has ended")
        if machine.refusal is not None and not self.read_only:
            problems.append(str(machine.refusal))
        if machine.suspect:
            problems.append("a commit failed and its outcome is being settled")
        if self.writer.composer.over_quota is not None:
            problems.append(f"appends are refused: {self.writer.composer.over_quota}")
        if self.environment.is_full:
            problems.append("appends are refused: the disk is full")
        if self.index.damaged:
            problems.append(f"{len(self.index.damaged)} hot records cannot be trusted")
        for number, reason in list(self.writer.composer.stuck.items()):
            problems.append(f"session number {number} cannot be removed: {reason}")
        if self.writer.not_collected is not None:
            problems.append(self.writer.not_collected)
        for number, reason in list(self.index.unsealable.items()):
            problems.append(f"session number {number} cannot be sealed: {reason}")
        return {
            "ok": not problems,
            "closed": self._closed,
            "read_only": self.read_only,
            "problems": problems,
            "queue_appends": len(machine.queue),
            "queue_bytes": machine.byte_count,
            "commits": machine.commits,
            "failures": machine.failures,
            "commit_running_ms": ((now_us - machine.in_flight_since_us) // 1000 if running else 0),
        }


def _folder_of(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Device and inode of a store's folder; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _await(closing: Log | None, opening: _Opening | None, deadline_ms: int) -> None:
    """Wait until a thread of this process has closed a store, or has opened it.

    Raises:
        BusyError: It is still being closed at the deadline, or this thread itself opens it.
    """
    if opening is None:
        # LMDB refuses a second environment of a file until the first is gone.
        assert closing is not None
        if not closing._gone.wait(deadline_ms / 1000):
            raise BusyError("this process is still closing the store", owner="this process")
    elif opening.thread == threading.get_ident():  # in a signal handler
        raise BusyError("this thread is already opening the store", owner="this process")
    else:
        opening.done.wait()


def _stored_options(tables: ReadTables) -> Options:
    """The options of a store; one that has no room for dictionaries has none."""
    options = Options.decode(tables.options())
    return options if tables.has("dict") else replace(options, dictionaries=False)


def _not_settled() -> TimeoutError:
    return TimeoutError("not all appends are settled yet; they may still become durable")


def _all_done(acks: list[Ack]) -> bool:
    """True when all are settled; drops those that are, so that none is looked at for ever."""
    while acks and acks[-1].done():
        acks.pop()
    return not acks


def _initialise(transaction: Any, tables: Any, options: Options) -> None:
    write = WriteTables(transaction, tables, IdRuns(tables["id"]))
    write.put_options(encode_plain(asdict(options)))
    write.put_commit_record(CommitRecord(transaction=transaction.id()))
