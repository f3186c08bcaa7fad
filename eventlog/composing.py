"""Composing: what one write transaction holds, from its beginning to the commit record.

For each batch: catch up on other processes → admit → put → seal and cut → merge → begin removals →
merge id runs → go on with removals → commit record. A task's step stands for all of that.

Invariants:
    1. Nothing in memory that others see changes before ``took``; after ``dropped`` it is as if
       nothing had been composed.
    2. Each part keeps to its share of a commit's work (``limits``), so that the whole is bounded.
    3. While the disk is full only removals are written, and refusals told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from eventlog import reclaim, removal
from eventlog.ack import Ack
from eventlog.admission import Admission
from eventlog.dictionary import Dictionary
from eventlog.environment import Environment
from eventlog.errors import (
    CorruptionError,
    OverloadedError,
    QuotaExceededError,
    StorageFullError,
)
from eventlog.failpoints import fp
from eventlog.hotlog import PARTITION, Conflict, fits
from eventlog.idruns import IdRuns
from eventlog.index import LooseIndex
from eventlog.inline import InlineProjection
from eventlog.keys import U64
from eventlog.limits import COMMIT_MERGE_BYTES_MAX
from eventlog.lookups import TenantSecrets, TransactionLookups
from eventlog.merging import Merges, Merging
from eventlog.order import block_first, block_of, encode_block
from eventlog.plan import Plan
from eventlog.removal import Removals
from eventlog.rows import CommitRecord
from eventlog.sealing import Sealing, is_overdue, seal
from eventlog.seams import CLOCK
from eventlog.segmentcache import SegmentCache
from eventlog.tables import ReadTables, WriteTables
from eventlog.tasks import Running
from eventlog.training import TenantDictionaries

if TYPE_CHECKING:
    from eventlog.environment import WriteTransaction


@dataclass(slots=True)
class Work:
    """What one transaction wrote, kept until its outcome is known."""

    plan: Plan
    sealing: Sealing
    removals: Removals
    merging: Merging
    record: CommitRecord
    is_empty: bool
    running: Running | None = None  # the task whose step this was


class HotLogFullError(OverloadedError):
    """The batch does not fit before older positions are sealed and cut."""


class Composer:
    """See the module; the writer's thread alone calls it, but for ``catch_up``.

    Attributes:
        failures: Transactions in a row that failed.
        over_quota: Why appends were refused the last time.
        generation: The commit record's, of which the options are known.
        on_generation: Reads the options again.
        ids_pending: Whether id runs may be due for merging.
        removals_pending: Whether something may be left to remove.
        removals_known: How many removals the store counted when it was written last.
        stuck: Numbers of sessions that cannot be removed, and why.
    """

    def __init__(
        self,
        environment: Environment,
        index: LooseIndex,
        cache: SegmentCache,
        *,
        projections: Sequence[InlineProjection],
        quota_bytes: int | None,
        dictionaries: TenantDictionaries | None,
        pause: Callable[[], None],
    ) -> None:
        self.environment = environment
        self.index = index
        self.secrets = TenantSecrets()
        self.quota_bytes = quota_bytes
        self.over_quota: str | None = None
        self.generation = 0
        self.on_generation: Callable[[ReadTables], None] = _forget
        self.merges = Merges()
        self.dictionaries = dictionaries  # None where nothing is to be compressed with one
        self.failures = 0
        self.ids_pending = True
        self.removals_pending = True
        self.stuck: dict[int, str] = {}
        self.removals_known = 0
        self._projections = projections
        self._cache = cache
        self._pause = pause
        self._id_runs = IdRuns(environment.db["id"])

    def tables(self, transaction: WriteTransaction) -> WriteTables:
        """The tables of an open write transaction."""
        return WriteTables(transaction, self.environment.db, self._id_runs)

    @property
    def id_filter_bytes(self) -> tuple[int, int]:
        """What filters of callers' ids take in memory, and may take."""
        return self._id_runs.memory_bytes, self._id_runs.memory_bytes_max

    def reopened(self) -> None:
        """The environment was opened again: nothing that was known of it counts."""
        self._id_runs = IdRuns(self.environment.db["id"])

    def is_overdue(self, *, is_empty: bool, merges: bool) -> bool:
        """Whether there is more to work off.

        Args:
            is_empty: The last transaction wrote nothing: it would find nothing if it came again,
                but for sessions that it did not get round to merging.
            merges: Whether merging counts.
        """
        due = is_overdue(self.index) or self.ids_pending or self.removals_pending
        waits = bool(self.merges.waiting) and not self.index.damaged and not self.environment.is_low
        return (due and not is_empty) or (merges and waits)

    @property
    def lacks_room(self) -> bool:
        """Whether appends are refused, or may be soon, until something is removed."""
        return self.over_quota is not None or self.environment.is_low

    def took(self, work: Work) -> None:
        """Take what was committed into memory."""
        index = self.index
        self._cache.begin(work.record.epoch)
        if not work.is_empty:
            work.plan.merge(index, self._pause)
            work.sealing.merge(index)
            self.merges.note(work.sealing)
            dictionaries = self.dictionaries  # a reader that reloads the options may change it
            if dictionaries is not None:
                dictionaries.note(work.sealing)
        else:
            work.plan.drop(index)
        self.merges.take(work.merging, index)
        if not work.is_empty:
            work.removals.merge(index)
            index.transaction = work.record.transaction
            if work.record.generation != index.generation:  # of a task that changed the rules
                with index.lock:
                    index.clear()
        self.failures = 0

    def dropped(self, work: Work) -> None:
        """Forget what was composed and is not written."""
        work.plan.drop(self.index)
        work.sealing.drop(self.index)
        self.merges.drop(work.merging)

    def write(self, tables: WriteTables, batch: list[Ack], running: Running | None) -> Work:
        """Everything between begin and commit.

        Args:
            tables: The open write transaction.
            batch: Appends; none to work off what is overdue.
            running: A task, whose next step is all that is written.

        Raises:
            HotLogFullError: The batch must wait until older positions are sealed and cut.
        """
        index = self.index
        fp("catchup.after_begin")
        record = tables.commit_record()
        self.catch_up(tables, record, pause=self._pause)
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
            raise HotLogFullError("the hot log has to be sealed first")
        plan = Plan(
            first=record.last_position + 1,
            recorded_us=max(CLOCK.wall_us(), record.recorded_us),
            link=record.link,
            full=self._over_quota(tables, batch) or self._without_room(tables, batch),
        )
        lookups = TransactionLookups(
            tables, index, record, self.secrets, self._cache, self._projections
        )
        try:
            Admission(index, lookups, plan, self._pause).admit(batch)
            return self._put(tables, record, plan, lookups)
        except BaseException:
            plan.drop(index)
            raise

    def _write_step(self, tables: WriteTables, record: CommitRecord, running: Running) -> Work:
        """One step of a task."""
        changed = running.task.step(tables, record)
        plan = Plan(record.last_position + 1, record.recorded_us, record.link)
        sealing = Sealing(floor=record.floor)
        none = Removals()
        if changed is None:
            return Work(plan, sealing, none, Merging(), record, is_empty=True, running=running)
        written = self.put_record(tables, record, changed)
        return Work(plan, sealing, none, Merging(), written, is_empty=False, running=running)

    def put_record(
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
    ) -> Work:
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
        self._pause()
        leaving = {each.state for each in plan.removed}
        projections = self._projections if tables.has("state") else ()
        dictionary_of = self._follow_dictionaries(tables, record)
        sealing = Sealing(floor=record.floor)
        # Without room, what is left of the disk is for removals.
        if self.environment.has_room(tables.transaction):
            sealing = seal(
                tables,
                log,
                index,
                record.floor,
                len(plan.records),
                leaving,
                projections,
                self._pause,
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
                self._pause,
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
        known.follow(tables, record, self._pause)
        return partial(known.of, tables)

    def _merge(
        self,
        tables: WriteTables,
        plan: Plan,
        sealing: Sealing,
        dictionary_of: Callable[[int], Dictionary | None],
    ) -> Merging:
        """Merging's share of work: none after a failure, which may have come of too little room."""
        if self.failures or self.index.damaged or self.environment.is_low:
            return Merging()
        now_us = CLOCK.monotonic_us()
        share = self.merges.share(len(plan.records), now_us)
        return self.merges.merge(
            tables, sealing, self._cache, share, now_us, self._pause, dictionary_of
        )

    def _finish(
        self,
        tables: WriteTables,
        record: CommitRecord,
        plan: Plan,
        lookups: TransactionLookups,
        sealing: Sealing,
        merging: Merging,
        removals: Removals,
    ) -> Work:
        """The shares of id runs and of removal, and the commit record."""
        merged = 0
        if self.ids_pending or sealing.cuts:
            merged = tables.merge_ids(COMMIT_MERGE_BYTES_MAX)
            self.ids_pending = merged > 0
        has_removed = False
        if record.removals != self.removals_known:
            self.removals_pending = True  # another process began one, and may be gone by now
        self.removals_known = record.removals + len(plan.removed)
        if self.removals_pending and not removals.is_pending and tables.has("removal"):
            floor = replace(record, floor=sealing.floor)
            is_low = self.environment.is_low
            more = reclaim.go_on(
                tables, self.index, floor, self._pause, stuck=self.stuck, is_low=is_low
            )
            self.stuck.update(more.stuck)
            removals.is_pending, has_removed = more.is_pending, more.has_written
        if self.lacks_room and not plan.records:  # who waits for room asks for the store's health
            self.quota_refusal(tables)
            self.environment.has_room(tables.transaction)
        self.removals_pending = removals.is_pending
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
            return Work(plan, sealing, removals, merging, record, is_empty=True)
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
        written = self.put_record(tables, record, changed)
        return Work(plan, sealing, removals, merging, written, is_empty=False)

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

        def sealed_at(number: int, sequence: int) -> int | None:
            try:
                event = tables.read_event(number, sequence, self._cache)
            except CorruptionError:
                return None
            return None if event is None else event.position

        index.catch_up(
            record,
            lambda first: log.read(PARTITION, first, record.last_position - first + 1),
            tables.load_row,
            self.secrets.id_hash(tables),
            pause,
            sealed_at,
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

    def _without_room(self, tables: WriteTables, batch: list[Ack]) -> StorageFullError | None:
        """Why only removals are taken: what is left of the disk is kept for them."""
        if not batch or self.environment.has_room(tables.transaction):
            return None
        return StorageFullError(f"{self.environment.path}: the disk is full")

    def holds(self, tables: ReadTables, record: CommitRecord, work: Work) -> bool:
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
        event = tables.read_event(number, sequence, self._cache)
        return event is not None and event.stored() == value


def _forget(tables: ReadTables) -> None:
    """Nobody reads the options again."""


def _no_dictionary(_: int) -> None:
    return None
