"""The writer: one thread that drives the commit machine against the environment.

For each batch: begin → catch up on other processes → admit → put → seal and cut → commit record →
commit → merge into memory → acks.

Invariants:
    1. Only this thread begins, writes and commits transactions, and holds none between batches.
    2. Acks resolve after the commit and after memory knows what was committed.
    3. When a commit fails its callers are told what became of it: after the environment was opened
       again and a fence committed, which shows whether it is in; or, when a full disk lets no
       fence in, once the commit record shows that it is not. When neither comes about in
       ``SETTLE_TRIES``, they get ``SuspectStoreError``.
    4. It lets the GIL go after each ``SLICE_US`` of Python.
    5. Whatever ends this thread, no caller is left waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue

from lmdb import Error as LmdbError

from eventlog import removal
from eventlog.ack import REFUSED, Ack, settle
from eventlog.admission import Admission, Plan
from eventlog.blobcollect import Collection, is_due
from eventlog.commit import CommitMachine, Step
from eventlog.dictionary import Dictionary
from eventlog.environment import Environment
from eventlog.errors import (
    CorruptionError,
    ForkedStoreError,
    OverloadedError,
    QuotaExceededError,
    StorageFullError,
    StoreClosedError,
    StoreUnavailableError,
    SuspectStoreError,
    TurnlogError,
)
from eventlog.failpoints import fp
from eventlog.hotlog import PARTITION, Conflict, fits
from eventlog.idruns import IdRuns
from eventlog.index import LooseIndex
from eventlog.inline import InlineProjection
from eventlog.keys import U64
from eventlog.limits import (
    CLOSE_MERGE_BYTES_MAX,
    COLLECT_EVERY_US,
    COMMIT_MERGE_BYTES_MAX,
    SLICE_US,
)
from eventlog.lmdb_errors import CommitFailedError, map_error, map_os_error
from eventlog.lookups import TenantSecrets, TransactionLookups
from eventlog.merging import Merges, Merging
from eventlog.order import block_first, block_of, encode_block
from eventlog.removal import Removals
from eventlog.rows import CommitRecord
from eventlog.sealing import Sealing, is_overdue, seal, under_pressure
from eventlog.seams import CLOCK
from eventlog.tables import ReadTables, SegmentCache, WriteTables
from eventlog.tasks import Running, Task, Tasks
from eventlog.training import TenantDictionaries

READER_CHECK_US = 5_000_000
IDLE_S = 60.0
SETTLE_TRIES = 10
TIDY_AGAIN_US = 500_000
PUT_BACK_MAX = 100  # seal-first rounds before a batch is refused as overload
VAIN_MAX = 3  # failures in a row after which a closing store gives up tidying
SETTLE_FIRST_US = 20_000


@dataclass(slots=True)
class _Work:
    """What one transaction wrote, kept until its outcome is known."""

    plan: Plan
    sealing: Sealing
    removals: Removals
    merging: Merging
    record: CommitRecord
    is_empty: bool
    running: Running | None = None  # the task whose step this was


@dataclass(slots=True)
class _Doubt:
    """A commit whose outcome is open."""

    work: _Work
    failure: CommitFailedError
    tries: int = 0


class Writer:
    """See the module. ``submit`` and the waiting calls may come from any thread."""

    def __init__(
        self,
        environment: Environment,
        index: LooseIndex,
        cache: SegmentCache,
        *,
        projections: Sequence[InlineProjection],
        quota_bytes: int | None,
        lock_deadline_ms: int,
        dictionaries: TenantDictionaries | None = None,
    ) -> None:
        self.environment = environment
        self._projections = projections
        self.index = index
        self.machine = CommitMachine()
        self.secrets = TenantSecrets()
        self.quota_bytes = quota_bytes
        self.lock_deadline_ms = lock_deadline_ms
        self.over_quota: str | None = None  # why appends were refused the last time
        self.on_refused: Callable[[list[tuple[Ack, TurnlogError]]], None] | None = None
        self.on_commit: Callable[[], None] = nothing
        self.generation = 0  # the commit record's, of which the options are known
        self.on_generation: Callable[[ReadTables], None] = _forget
        self.merges = Merges()
        self.dictionaries = dictionaries  # None where nothing is to be compressed with one
        self._id_runs = IdRuns(environment.db["id"])
        self._cache = cache
        self._lock = threading.Lock()
        self._tasks = Tasks()
        self._gate: SimpleQueue[None] = SimpleQueue()
        self._asleep = False
        self._slice_us = 0
        self._readers_us = 0
        self._collect_us = CLOCK.monotonic_us() + COLLECT_EVERY_US
        self._has_ended = False
        self._is_open_to_doubt = False  # a commit began, and its acks are not settled
        self._put_back = 0
        self._vain = 0  # transactions in a row that failed
        self._doubt: _Doubt | None = None
        self._ids_pending = True
        self._removals_pending = True
        self._removals_known = 0
        self._merged_before = 0  # bytes of segments, when closing began
        self._thread: threading.Thread | None = None

    # Calls from any thread

    def start(self) -> None:
        """Start the thread; a daemon, so that a forgotten store never keeps a process alive.

        Raises:
            StoreUnavailableError: The system gives no thread.
        """
        thread = threading.Thread(target=self._run, name="turnlog-writer", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            raise StoreUnavailableError(
                f"the writer thread cannot be started: {error}",
                hint="Give the process more memory or threads.",
            ) from error
        self._thread = thread

    def submit(self, ack: Ack) -> None:
        """Queue an append.

        Raises:
            OverloadedError: No room.
            StoreClosedError: The store is closing.
        """
        # Looked at without the lock, which a forked child must not take.
        if not self.machine.offer(ack):
            if self.machine.refusal is not None:
                raise self.machine.refusal.with_traceback(None)
            with self._lock:
                self.machine.submit(ack)
        if self._asleep:
            self._wake()
        if self._has_ended:  # it may have been offered after the thread's last look
            self._refuse_late()

    def run(self, task: Task, timeout: float | None = None) -> None:
        """Run a task between the batches, and wait for it; not from this thread or an event loop.

        Args:
            task: What is done.
            timeout: Seconds; None waits for ever.

        Raises:
            TimeoutError: Not done in time; its finished steps stay.
            StoreClosedError, ReadOnlyError, ForkedStoreError: Nothing can be written.

        Also raises what a step raised, and why its commit failed.
        """
        running = Running(task)
        if self.machine.refusal is not None:
            raise self.machine.refusal.with_traceback(None)
        with self._lock:
            self._tasks.add(running)
            self._wake()
        if self._has_ended:
            self._refuse_late()
        running.wait(timeout)

    def forked(self) -> None:
        """In a forked child: refuse everything; the thread and its locks stayed in the parent."""
        error = ForkedStoreError("this store was opened before a fork, in the parent process")
        self._lock = threading.Lock()  # the old one may be held for ever
        self._tasks = Tasks()
        self.machine.refusal = error
        for ack in self.machine.refuse(error):
            # Not ``settle``: the event loops that it would wake are the parent's.
            ack._error = error
            ack._state = REFUSED

    def pending(self) -> list[Ack]:
        """Every append that is accepted and not settled, oldest first."""
        with self._lock:
            return [*self.machine.in_flight, *self.machine.queue]

    def has_room(self, byte_count: int = 0) -> bool:
        """True when the queue is less than half full and takes an append of so many bytes."""
        return self.machine.fits(byte_count)

    def tidy(self) -> None:
        """Work off overdue sealing and cutting as soon as nothing waits."""
        with self._lock:
            self.machine.tidy_us = 0
            self._wake()

    def is_tidy(self) -> bool:
        """True when nothing is overdue, or when that has to wait: for appends, after a failure."""
        machine = self.machine
        with self._lock:
            if machine.in_flight:
                # Told already: it is about to say what is overdue. Else it is a later batch.
                return not machine.in_flight[0].done()
            return (
                not machine.overdue
                or bool(machine.queue)
                or machine.suspect
                or machine.refusal is not None
                or self._vain > 0
            )

    def close(self, timeout: float) -> bool:
        """Commit what waits and end the thread; False when that takes longer than ``timeout``."""
        with self._lock:
            self._merged_before = self.merges.content_bytes
            self.machine.close()
            self._wake()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def join(self) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join()

    def refuse(self, error: TurnlogError, *, in_flight: bool = True) -> None:
        """Fail all that waits and take nothing more.

        Args:
            error: What callers are told.
            in_flight: Also fail the batch that is being committed; False when that goes on.
        """
        with self._lock:
            waiting = self.machine.refuse(error, in_flight=in_flight)
            self._tasks.refuse(error)
            self._wake()
        self._refused([(ack, error) for ack in waiting])

    def _wake(self) -> None:
        self._asleep = False
        self._gate.put(None)

    @property
    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    # The thread

    def _run(self) -> None:
        try:
            self._drive()
        except BaseException as error:  # noqa: BLE001 - nobody else would tell those who wait
            self._die(error)
        finally:
            self._has_ended = True
            self._refuse_late()

    def _refuse_late(self) -> None:
        """Fail what was offered after the thread's last look."""
        with self._lock:
            error = self.machine.refusal or StoreClosedError("the store is closed")
            late = self.machine.refuse(error, in_flight=False)
            self._tasks.refuse(error)
        self._refused([(ack, error) for ack in late])

    def _die(self, error: BaseException) -> None:
        text = f"the writer thread ended: {type(error).__name__}: {error}"
        unknown = SuspectStoreError(text)
        unknown.__cause__ = error
        failure = StoreUnavailableError(
            text, hint="Close the store and open it again; nothing of this append was written."
        )
        failure.__cause__ = error
        self.index.own_transaction = -1
        self.environment.abandon()
        in_flight = list(self.machine.in_flight)
        with self._lock:
            self.machine.in_flight = []
        self._refused([(ack, unknown) for ack in in_flight if not ack.done()])
        self.refuse(failure)
        self.on_commit()

    def _drive(self) -> None:
        machine = self.machine
        is_tasks_turn = True
        while True:
            now_us = CLOCK.monotonic_us()
            self._slice_us = now_us
            if now_us >= self._readers_us:
                # A reader that was killed would keep every page from being used again.
                self._readers_us = now_us + READER_CHECK_US
                self.environment.reader_check()
            with self._lock:
                step = machine.tick(now_us)
                running = self._tasks.next()
            is_free = step in (Step.WAIT, Step.TIDY) and not machine.suspect
            if running is not None and (is_free or (is_tasks_turn and step is Step.COMMIT)):
                is_tasks_turn = False  # batches and tasks take turns
                self._commit([], running)
                continue
            is_tasks_turn = True
            if step is Step.COMMIT:
                # Sealing first, while no batch is taken: its own failure must not reach one.
                pressed = under_pressure(self.index) and not self.index.damaged
                if pressed and self._commit([]):
                    continue
                with self._lock:
                    if machine.suspect:
                        continue
                    batch = machine.next_batch(now_us)
                self._commit(batch)
            elif step is Step.TIDY:
                self._commit([])
            elif step is Step.SETTLE:
                self._settle_doubt()
            elif step is Step.STOP:
                return
            elif not self._collects(now_us):
                self._sleep()

    def _collects(self, now_us: int) -> bool:
        """Nothing else is to do: begin to remove blobs that nothing named for an hour, if any."""
        if now_us < self._collect_us or self.machine.suspect or "blob" not in self.environment.db:
            return False
        self._collect_us = now_us + COLLECT_EVERY_US
        try:
            with self.environment.read() as transaction:
                if not is_due(ReadTables(transaction, self.environment.db), self.pause):
                    return False
        except TurnlogError:
            return False  # ``check`` tells; a collection that is asked for raises it
        with self._lock:
            self._tasks.add(Running(Collection(self.pause)))
        return True

    def _sleep(self) -> None:
        """Wait for a wake-up; some come for nothing, none is missed."""
        wait_s = IDLE_S
        self._asleep = True
        now_us = CLOCK.monotonic_us()
        # Looked at after the flag is up: who offers an append before it was is seen here, who
        # does after it wakes us.
        if self.machine.tick(now_us) is not Step.WAIT or (self._tasks and not self.machine.suspect):
            self._asleep = False
            return
        if self.machine.suspect:
            wait_s = max(0.0, (self.machine.retry_us - now_us) / 1e6)
        elif self.machine.overdue:
            wait_s = max(0.0, (self.machine.tidy_us - now_us) / 1e6)
        with suppress(Empty):
            self._gate.get(timeout=wait_s)
        self._asleep = False

    def pause(self) -> None:
        """Let the GIL go once a slice is used up (invariant 4)."""
        now_us = CLOCK.monotonic_us()
        if now_us - self._slice_us > SLICE_US:
            CLOCK.sleep(0)
            self._slice_us = CLOCK.monotonic_us()

    def _commit(self, batch: list[Ack], running: Running | None = None) -> bool:
        """One transaction, of a batch or of a task's step; True when something was written."""
        fp("commit.before_begin")
        index = self.index
        work: _Work | None = None
        is_begun = False
        try:
            transaction = self.environment.begin_write(self.lock_deadline_ms)
            self._slice_us = CLOCK.monotonic_us()
            is_begun = True
            tables = WriteTables(transaction, self.environment.db, self._id_runs)
            work = self._write(tables, batch, running)
            if work.is_empty:
                self.environment.abort(transaction)
            else:
                index.own_transaction = work.record.transaction
                fp("commit.before_commit")
                self._is_open_to_doubt = True
                self.environment.commit(transaction)
        except CommitFailedError as failure:
            index.own_transaction = -1
            self._is_open_to_doubt = False
            if work is not None:
                with self._lock:
                    self._doubt = _Doubt(work, failure)
                    self.machine.doubt(CLOCK.monotonic_us())
            return False
        except BaseException as error:  # an async exception may come up at any statement
            index.own_transaction = -1
            self.environment.abandon()
            if self._is_open_to_doubt:
                raise  # it may be in: ``_die`` says so
            if work is not None:
                work.plan.drop(index)
                work.sealing.drop(index)
                self.merges.drop(work.merging)
            mapped = _as_ours(error, self.environment.path)
            if isinstance(error, _HotLogFullError) and self._put_back < PUT_BACK_MAX:
                self._put_back += 1
                with self._lock:
                    self.machine.put_back()
                return False
            self._tidy_later()
            if running is not None:
                self._end_task(running, error if isinstance(error, TurnlogError) else mapped)
            self._failed(None, mapped)
            if not is_begun and self.environment.is_replaced:
                self.refuse(mapped)
            if not isinstance(error, Exception):
                raise
            return False
        fp("commit.after_commit")
        self._slice_us = CLOCK.monotonic_us()  # a commit lets the GIL go
        self._succeeded(work)
        self._is_open_to_doubt = False
        if not work.is_empty:
            self._put_back = 0
        return not work.is_empty

    def _tidy_later(self) -> None:
        """After a failure: what is due stays due, but is not tried again at once."""
        with self._lock:
            machine = self.machine
            self._vain += 1
            self._removals_pending = True
            machine.overdue = is_overdue(self.index) and not (
                machine.closing and self._vain >= VAIN_MAX
            )
            machine.tidy_us = CLOCK.monotonic_us() + TIDY_AGAIN_US

    def _write(self, tables: WriteTables, batch: list[Ack], running: Running | None) -> _Work:
        """Everything between begin and commit."""
        index = self.index
        fp("catchup.after_begin")
        record = tables.commit_record()
        self.catch_up(tables, record, pause=self.pause)
        if running is not None:
            return self._write_step(tables, record, running)
        if batch and index.damaged:
            position, reason = next(iter(index.damaged.items()))
            raise CorruptionError(
                f"hot record cannot be trusted: {reason}", where=f"log {position}"
            )
        if batch and not fits(
            record.last_position, record.floor, sum([ack.event_count for ack in batch])
        ):
            for number, reason in index.unsealable.items():
                raise CorruptionError(
                    f"cannot be sealed, and the hot log is full: {reason}",
                    where=f"session number {number}",
                )
            raise _HotLogFullError("the hot log has to be sealed first")
        plan = Plan(
            first=record.last_position + 1,
            recorded_us=max(CLOCK.wall_us(), record.recorded_us),
            link=record.link,
            full=self._over_quota(tables, batch) or self._without_room(batch),
        )
        lookups = TransactionLookups(tables, index, record, self.secrets, self._cache)
        try:
            Admission(index, lookups, plan, self.pause).admit(batch)
            return self._put(tables, record, plan, lookups)
        except BaseException:
            plan.drop(index)
            raise

    def _write_step(self, tables: WriteTables, record: CommitRecord, running: Running) -> _Work:
        """One step of a task."""
        changed = running.task.step(tables, record)
        plan = Plan(record.last_position + 1, record.recorded_us, record.link)
        sealing = Sealing(floor=record.floor)
        none = Removals()
        if changed is None:
            return _Work(plan, sealing, none, Merging(), record, is_empty=True, running=running)
        written = self._put_record(tables, record, changed)
        return _Work(plan, sealing, none, Merging(), written, is_empty=False, running=running)

    def _put_record(
        self, tables: WriteTables, before: CommitRecord, changed: CommitRecord
    ) -> CommitRecord:
        """The commit record of this transaction."""
        record = replace(
            changed,
            transaction=tables.transaction.id(),
            file_bytes=self.environment.file_bytes(),
            previous=before.encode()[:8],
        )
        tables.put_commit_record(record)
        return record

    def _put(
        self, tables: WriteTables, record: CommitRecord, plan: Plan, lookups: TransactionLookups
    ) -> _Work:
        index = self.index
        log = tables.hot_log(record)
        if plan.records:
            result = log.append(PARTITION, record.last_position, plan.records)
            if isinstance(result, Conflict):
                raise CorruptionError("the log moved under the writer", where=f"log {result.last}")
            for block, link in plan.block_links:
                tables.put_block(*encode_block(block, link))
            if plan.created:
                tables.put_rows([(U64.pack(state.number), state.row) for state in plan.created])
                tables.put_names([(state.name, state.number) for state in plan.created])
            lookups.write_references()
        self.pause()
        leaving = {each.state for each in plan.removed}
        projections = self._projections if tables.has("state") else ()
        dictionary_of = self._follow_dictionaries(tables, record)
        sealing = Sealing(floor=record.floor)
        if self.environment.has_room():  # else what is left of the disk is for removals
            sealing = seal(
                tables,
                log,
                index,
                record.floor,
                len(plan.records),
                leaving,
                projections,
                self.pause,
                dictionary_of,
            )
        merging = Merging()
        try:
            merging = self._merge(tables, plan, sealing, dictionary_of)
            removals = removal.begin(
                tables,
                log,
                index,
                plan.removed,
                plan.recorded_us,
                plan.stored,
                projections,
                self.pause,
            )
            return self._finish(tables, record, plan, lookups, sealing, merging, removals)
        except BaseException:
            sealing.drop(index)
            self.merges.drop(merging)
            raise

    def _follow_dictionaries(
        self, tables: WriteTables, record: CommitRecord
    ) -> Callable[[int], Dictionary | None]:
        """What a tenant's segments are compressed with, by its number."""
        known = self.dictionaries
        if known is None:
            return _no_dictionary
        known.follow(tables, record, self.pause)
        return partial(known.of, tables)

    def _merge(
        self,
        tables: WriteTables,
        plan: Plan,
        sealing: Sealing,
        dictionary_of: Callable[[int], Dictionary | None],
    ) -> Merging:
        """Merging's share of work: none after a failure, which may have come of too little room."""
        if self._vain or self.index.damaged or self.environment.is_low:
            return Merging()
        now_us = CLOCK.monotonic_us()
        share = self.merges.share(len(plan.records), now_us)
        return self.merges.merge(
            tables, sealing, self._cache, share, now_us, self.pause, dictionary_of
        )

    def _merges_wait(self) -> bool:
        machine = self.machine
        merged = self.merges.content_bytes - self._merged_before
        if machine.closing and merged > CLOSE_MERGE_BYTES_MAX:
            return False
        return bool(self.merges.waiting) and not self.index.damaged and not self.environment.is_low

    def _finish(
        self,
        tables: WriteTables,
        record: CommitRecord,
        plan: Plan,
        lookups: TransactionLookups,
        sealing: Sealing,
        merging: Merging,
        removals: Removals,
    ) -> _Work:
        """The shares of id runs and of removal, and the commit record."""
        merged = 0
        if self._ids_pending or sealing.cuts:
            merged = tables.merge_ids(COMMIT_MERGE_BYTES_MAX)
            self._ids_pending = merged > 0
        has_removed = False
        if record.removals != self._removals_known:
            self._removals_pending = True  # another process began one, and may be gone by now
        self._removals_known = record.removals + len(plan.removed)
        if self._removals_pending and not removals.is_pending and tables.has("removal"):
            floor = replace(record, floor=sealing.floor)
            is_low = self.environment.is_low
            more = removal.go_on(tables, self.index, floor, self.pause, is_low=is_low)
            removals.is_pending, has_removed = more.is_pending, more.has_written
        self._removals_pending = removals.is_pending
        fp("commit.after_puts")
        is_empty = not (
            plan.records
            or sealing.rows
            or sealing.cuts
            or sealing.removed
            or merging.rows
            or merged
            or has_removed
        )
        if is_empty:
            return _Work(plan, sealing, removals, merging, record, is_empty=True)
        changed = replace(
            record,
            last_position=plan.last,
            floor=sealing.floor,
            sessions_made=lookups.sessions_made,
            tenants_made=lookups.tenants_made,
            sessions=record.sessions + len(plan.created) - removals.sessions,
            removals=record.removals + len(plan.removed),
            recorded_us=plan.recorded_us,
            roll_ups=record.roll_ups + len(sealing.segments),
            cuts=record.cuts + sealing.cuts,
            link=plan.link,
        )
        written = self._put_record(tables, record, changed)
        return _Work(plan, sealing, removals, merging, written, is_empty=False)

    def catch_up(
        self, tables: ReadTables, record: CommitRecord, *, pause: Callable[[], None]
    ) -> None:
        """Bring the loose index up to what a transaction sees."""
        index = self.index
        if record.generation > self.generation:
            self.on_generation(tables)
            self.generation = record.generation
        with index.lock:  # a reader may be in the middle of following the same commit
            if index.transaction == record.transaction:
                return
        log = tables.hot_log(record)
        index.catch_up(
            record,
            lambda first: log.read(PARTITION, first, record.last_position - first + 1),
            tables.load_row,
            self.secrets.id_hash(tables),
            pause,
        )

    def _over_quota(self, tables: WriteTables, batch: list[Ack]) -> QuotaExceededError | None:
        return self.quota_refusal(tables) if batch else None

    def quota_refusal(self, tables: ReadTables) -> QuotaExceededError | None:
        """Why nothing more may be written, or None."""
        if self.quota_bytes is None:
            return None
        self.over_quota = None
        if self.environment.file_bytes() < self.quota_bytes:
            return None
        used = self.environment.used_bytes(tables.transaction)
        if used < self.quota_bytes:
            return None
        self.over_quota = f"the store uses {used:,} of {self.quota_bytes:,} bytes"
        return QuotaExceededError(self.over_quota)

    def _without_room(self, batch: list[Ack]) -> StorageFullError | None:
        """Why only removals are taken: what is left of the disk is kept for them."""
        if not batch or self.environment.has_room():
            return None
        return StorageFullError(f"{self.environment.path}: the disk is full")

    # Outcomes

    def _succeeded(self, work: _Work) -> None:
        index = self.index
        plan = work.plan
        if not work.is_empty:
            plan.merge(index, self.pause)
            work.sealing.merge(index)
            self.merges.note(work.sealing)
            if self.dictionaries is not None:
                self.dictionaries.note(work.sealing)
        self.merges.take(work.merging, index)
        if not work.is_empty:
            work.removals.merge(index)
            index.transaction = work.record.transaction
            if work.record.generation != index.generation:  # of a task that changed the rules
                with index.lock:
                    index.clear()
        self._vain = 0
        fp("commit.before_ack")
        self._settle(plan)
        with self._lock:  # after the acks: until then the batch is something to wait for
            self.machine.committed()
            # A commit that found nothing to do would find nothing if it came again.
            # But for the sessions that it did not get round to looking at.
            if work.running is None:
                self.machine.overdue = (
                    not work.is_empty
                    and (is_overdue(index) or self._ids_pending or self._removals_pending)
                ) or self._merges_wait()
        if work.running is not None:
            self._step_taken(work.running)
        self.on_commit()

    def _step_taken(self, running: Running) -> None:
        """A task's step is durable: tell that it is done, or let the next task have its turn."""
        if running.task.done:
            self._end_task(running)
        else:
            with self._lock:
                self._tasks.turn()

    def _end_task(self, running: Running, error: BaseException | None = None) -> None:
        with self._lock:
            self._tasks.end(running, error)

    def _failed(self, work: _Work | None, error: TurnlogError) -> None:
        """Nothing of the batch was written: everybody hears why."""
        batch = list(self.machine.in_flight)
        own: dict[int, TurnlogError] = {}
        if work is not None:
            own = {id(ack): each for ack, each in work.plan.refused}
        self._refused([(ack, own.get(id(ack), error)) for ack in batch])
        with self._lock:
            self.machine.failed()
        self.on_commit()

    def _settle(self, plan: Plan) -> None:
        """Tell everybody what became of a batch that was written."""
        self._tell_unheard(plan.refused)
        settle(chain(plan.placed, plan.repeated), refused=plan.refused)

    def _refused(self, refused: list[tuple[Ack, TurnlogError]]) -> None:
        self._tell_unheard(refused)
        settle((), refused=refused)
        if refused:
            self.on_commit()  # for who waits until all is settled

    def _tell_unheard(self, refused: list[tuple[Ack, TurnlogError]]) -> None:
        """Report what nobody waits for; before acks settle, so that who does can ask for it."""
        unheard = [(ack, error) for ack, error in refused if ack.queued or not ack.is_awaited]
        if unheard and self.on_refused is not None:
            self.on_refused(unheard)

    def _settle_doubt(self) -> None:
        """Find out what became of a failed commit (invariant 3)."""
        doubt = self._doubt
        assert doubt is not None
        work = doubt.work
        try:
            self.environment.reopen()
            self._id_runs = IdRuns(self.environment.db["id"])
            applied = self._fence(work)
        except (TurnlogError, CommitFailedError, LmdbError) as error:
            doubt.tries += 1
            visible = self._is_visible(work)
            if doubt.failure.full and visible is False:
                self._resolve_doubt(applied=False)
            elif doubt.tries >= SETTLE_TRIES:
                self._give_up(error)
            else:
                with self._lock:
                    self.machine.doubt(
                        CLOCK.monotonic_us() + SETTLE_FIRST_US * 2 ** min(doubt.tries, 6)
                    )
            return
        self._resolve_doubt(applied=applied)

    def _fence(self, work: _Work) -> bool:
        """Commit a transaction that changes nothing; True when the failed one is in."""
        transaction = self.environment.begin_write(self.lock_deadline_ms)
        try:
            tables = WriteTables(transaction, self.environment.db, self._id_runs)
            record = tables.commit_record()
            applied = _holds(tables, record, work, self._cache)
            self._put_record(tables, record, replace(record, fences=record.fences + 1))
            fp("fence.before_commit")
            self.environment.commit(transaction)
        except CommitFailedError:
            raise
        except BaseException:
            self.environment.abort(transaction)
            raise
        return applied

    def _is_visible(self, work: _Work) -> bool | None:
        """Whether the failed commit can be read; None when nothing can be."""
        try:
            with self.environment.read() as transaction:
                tables = ReadTables(transaction, self.environment.db)
                return _holds(tables, tables.commit_record(), work, self._cache)
        except TurnlogError:
            return None

    def _resolve_doubt(self, *, applied: bool) -> None:
        doubt = self._doubt
        assert doubt is not None
        self._doubt = None
        index = self.index
        if not applied:
            self._tidy_later()
        with index.lock:
            index.clear()
        self._cache.clear()
        self.merges.drop(doubt.work.merging)
        running = doubt.work.running
        if applied:
            self._settle(doubt.work.plan)
            with self._lock:
                self.machine.committed()
            if running is not None:
                self._step_taken(running)
            self.on_commit()
        else:
            if running is not None:
                self._end_task(running, doubt.failure.mapped)
            self._failed(doubt.work, doubt.failure.mapped)

    def _give_up(self, error: BaseException) -> None:
        self._doubt = None
        failure = SuspectStoreError("a commit failed and its outcome could not be settled")
        failure.__cause__ = error
        with self.index.lock:
            self.index.clear()
        self.refuse(failure)
        self.on_commit()


def _holds(tables: ReadTables, record: CommitRecord, work: _Work, cache: SegmentCache) -> bool:
    """True when the store contains what the failed commit wrote."""
    plan = work.plan
    if work.running is not None:
        return record == work.record  # else nobody can tell, and a step can be taken again
    if record.transaction == work.record.transaction:
        return record.link == work.record.link and record.floor == work.record.floor
    if record.transaction < work.record.transaction or record.last_position < plan.last:
        return False
    if not plan.records:
        return True  # nobody waits for sealing; the index is rebuilt either way
    key, value = plan.records[-1]
    position = U64.unpack(key)[0]
    if position >= record.floor:
        return tables.hot_log(record).get(position) == value
    # Another process has sealed and cut that far since.
    block = tables.load_block(block_of(position))
    place = position - block_first(block.block)
    number, sequence = block.sessions[place], block.sequences[place]
    event = tables.read_event(number, sequence, cache)
    return event is not None and event.stored() == value


class _HotLogFullError(OverloadedError):
    """The batch does not fit before older positions are sealed and cut."""


def _as_ours(error: BaseException, where: Path) -> TurnlogError:
    if isinstance(error, TurnlogError):
        return error
    if isinstance(error, LmdbError):
        return map_error(error, str(where))
    if isinstance(error, OSError):
        return map_os_error(error.errno or 0, f"{where}: {error.strerror or error}")
    failure = StoreUnavailableError(
        f"the batch was not written: {type(error).__name__}: {error}",
        hint="Nothing of the batch was written; report the cause if it repeats.",
    )
    failure.__cause__ = error
    return failure


def _forget(tables: ReadTables) -> None:
    """Nobody reads the options again."""


def _no_dictionary(_: int) -> None:
    return None


def nothing() -> None:
    """A pause that is none: for threads of callers, who chose to wait."""
