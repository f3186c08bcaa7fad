"""The writer: one thread that drives the commit machine against the environment.

For each batch: begin → compose (``composing``) → commit → merge into memory → acks.

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
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue

from lmdb import Error as LmdbError

from eventlog.ack import REFUSED, Ack, settle
from eventlog.blobcollect import Collection, is_due, told
from eventlog.blobtable import Damaged
from eventlog.commit import CommitMachine, Step
from eventlog.composing import Composer, HotLogFullError, Work
from eventlog.environment import Environment
from eventlog.errors import (
    ForkedStoreError,
    StoreClosedError,
    StoreUnavailableError,
    SuspectStoreError,
    TurnlogError,
)
from eventlog.failpoints import fp
from eventlog.index import LooseIndex
from eventlog.inline import InlineProjection
from eventlog.limits import (
    BLOCK_POSITIONS,
    CLOSE_MERGE_BYTES_MAX,
    COLLECT_EVERY_US,
    HOT_TABLE_POSITIONS,
    SLICE_US,
)
from eventlog.lmdb_errors import CommitFailedError, map_error, map_os_error
from eventlog.overwriting import OverwriteVoid
from eventlog.plan import Plan
from eventlog.sealing import is_overdue, under_pressure
from eventlog.seams import CLOCK
from eventlog.segmentcache import SegmentCache
from eventlog.tables import ReadTables
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
class _Doubt:
    """A commit whose outcome is open."""

    work: Work
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
        self.index = index
        self.machine = CommitMachine()
        self.composer = Composer(
            environment,
            index,
            cache,
            projections=projections,
            quota_bytes=quota_bytes,
            dictionaries=dictionaries,
            pause=self.pause,
        )
        self.lock_deadline_ms = lock_deadline_ms
        self.on_refused: Callable[[list[tuple[Ack, TurnlogError]]], None] | None = None
        self.on_commit: Callable[[], None] = nothing
        self._cache = cache
        self._lock = threading.Lock()
        self._tasks = Tasks()
        self._gate: SimpleQueue[None] = SimpleQueue()
        self._asleep = False
        self._slice_us = 0
        self._readers_us = 0
        self._collect_us = CLOCK.monotonic_us() + COLLECT_EVERY_US
        self._overwritten = 0  # removals that were known when void records were overwritten last
        self.not_collected: str | None = None  # why blobs stay that nothing names
        self._has_ended = False
        self._is_open_to_doubt = False  # a commit began, and its acks are not settled
        self._put_back = 0
        self._doubt: _Doubt | None = None
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

    def expect_removals(self) -> None:
        """Something was left to remove, by whoever: work it off in the next idle moment."""
        with self._lock:
            if self.machine.refusal is None:
                self.composer.removals_pending = self.machine.overdue = True

    def tidy(self) -> None:
        """Work off overdue sealing and cutting as soon as nothing waits."""
        with self._lock:
            self.machine.tidy_us = 0
            self._wake()

    def tidy_all(self, last: int) -> None:
        """From now on seal, as soon as nothing waits, all that can be cut from the hot log then.

        Args:
            last: The last position.
        """
        unit = BLOCK_POSITIONS if self.environment.version >= 2 else HOT_TABLE_POSITIONS
        self.index.cuts_blocks = self.environment.version >= 2
        self.index.seals_before = last - last % unit + 1
        with self._lock:
            self.machine.overdue = True
        self.tidy()

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
                or self.composer.failures > 0
            )

    def close(self, timeout: float) -> bool:
        """Commit what waits and end the thread; False when that takes longer than ``timeout``."""
        with self._lock:
            self._merged_before = self.composer.merges.content_bytes
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
            elif not (self._makes_room() or self._collects(now_us)):
                self._sleep()

    def _makes_room(self) -> bool:
        """Nothing else is to do, and appends are refused: begin to overwrite what is void, if any.

        It would stay until its table is cut, which takes appends.
        """
        composer = self.composer
        if (
            not composer.lacks_room
            or composer.removals_known == self._overwritten
            or self.machine.suspect
            or "removal" not in self.environment.db
        ):
            return False
        self._overwritten = composer.removals_known
        with self._lock:
            self._tasks.add(
                Running(OverwriteVoid(self.index, self.pause, lambda: self.environment.is_low))
            )
        return True

    def _collects(self, now_us: int) -> bool:
        """Nothing else is to do: begin to remove blobs that nothing named for an hour, if any."""
        if now_us < self._collect_us or self.machine.suspect or "blob" not in self.environment.db:
            return False
        self._collect_us = now_us + COLLECT_EVERY_US
        damaged: Damaged = {}
        try:
            with self.environment.read() as transaction:
                tables = ReadTables(transaction, self.environment.db)
                is_found = is_due(tables, damaged, self.pause)
        except TurnlogError as error:
            self.not_collected = f"blobs cannot be collected: {error}"
            return False
        if not is_found:
            self.not_collected = told(damaged)
            return False
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

    def pause(self, slice_us: int = SLICE_US) -> None:
        """Let the GIL go once a slice is used up (invariant 4)."""
        now_us = CLOCK.monotonic_us()
        if now_us - self._slice_us > slice_us:
            CLOCK.sleep(0)
            self._slice_us = CLOCK.monotonic_us()

    def _commit(self, batch: list[Ack], running: Running | None = None) -> bool:
        """One transaction, of a batch or of a task's step; True when something was written."""
        fp("commit.before_begin")
        index = self.index
        work: Work | None = None
        is_begun = False
        try:
            transaction = self.environment.begin_write(self.lock_deadline_ms)
            self._slice_us = CLOCK.monotonic_us()
            is_begun = True
            work = self.composer.write(self.composer.tables(transaction), batch, running)
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
                self.composer.dropped(work)
            mapped = _as_ours(error, self.environment.path)
            if isinstance(error, HotLogFullError) and self._put_back < PUT_BACK_MAX:
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
            self.composer.failures += 1
            self.composer.removals_pending = True
            machine.overdue = is_overdue(self.index) and not (
                machine.closing and self.composer.failures >= VAIN_MAX
            )
            machine.tidy_us = CLOCK.monotonic_us() + TIDY_AGAIN_US

    # Outcomes

    def _succeeded(self, work: Work) -> None:
        self.composer.took(work)
        fp("commit.before_ack")
        self._settle(work.plan)
        with self._lock:  # after the acks: until then the batch is something to wait for
            machine = self.machine
            machine.committed()
            if work.running is None:
                merged = self.composer.merges.content_bytes - self._merged_before
                machine.overdue = self.composer.is_overdue(
                    is_empty=work.is_empty,
                    merges=not machine.closing or merged <= CLOSE_MERGE_BYTES_MAX,
                )
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
        if isinstance(running.task, Collection):  # for those that nobody waits for
            failed = None if error is None else f"blobs cannot be collected: {error}"
            self.not_collected = failed or told(running.task.collected.damaged)
        with self._lock:
            if isinstance(running.task, OverwriteVoid):
                self.composer.removals_pending = self.machine.overdue = True
            self._tasks.end(running, error)

    def _failed(self, work: Work | None, error: TurnlogError) -> None:
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
            self.composer.reopened()
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

    def _fence(self, work: Work) -> bool:
        """Commit a transaction that changes nothing; True when the failed one is in."""
        transaction = self.environment.begin_write(self.lock_deadline_ms)
        try:
            tables = self.composer.tables(transaction)
            record = tables.commit_record()
            applied = self.composer.holds(tables, record, work)
            self.composer.put_record(tables, record, replace(record, fences=record.fences + 1))
            fp("fence.before_commit")
            self.environment.commit(transaction)
        except CommitFailedError:
            raise
        except BaseException:
            self.environment.abort(transaction)
            raise
        return applied

    def _is_visible(self, work: Work) -> bool | None:
        """Whether the failed commit can be read; None when nothing can be."""
        try:
            with self.environment.read() as transaction:
                tables = ReadTables(transaction, self.environment.db)
                return self.composer.holds(tables, tables.commit_record(), work)
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
        self.composer.merges.drop(doubt.work.merging)
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


def _as_ours(error: BaseException, where: Path) -> TurnlogError:
    if isinstance(error, TurnlogError):
        return error
    if isinstance(error, SystemError) and isinstance(error.__cause__, LmdbError):
        error = error.__cause__  # LMDB's binding gave a result, and set an error beside it
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


def nothing() -> None:
    """A pause that is none: for threads of callers, who chose to wait."""
