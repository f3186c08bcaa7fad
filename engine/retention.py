"""Retention: sessions that are old, long or too many go by rules, unless they are held.

Invariants:
    1. Nothing is removed that differs from what was decided on: a session goes only if it has no
       event more than then, and is not held, in the commit that removes it.
    2. With an archive, nothing is removed before all that goes is in it and on disk.
    3. No time of day is read here: whoever applies rules of age says what time it is.
    4. A dry run decides as any other, and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.archive import archived, require_vacant
from engine.drafting import draft_control
from engine.erasure import ErasureReceipt, erase, require_removal
from engine.events import Event
from engine.holds import NOT_HELD
from engine.pausing import Pause
from engine.policy import (
    RetentionDamage,
    RetentionDecision,
    RetentionExcess,
    RetentionPolicy,
    RetentionReport,
    Rule,
)
from engine.purgefloor import Floor, purge_floor
from engine.reading import SessionPager
from engine.survey import Surveyed, survey
from engine.telling import telling
from eventlog.ack import Ack, Removal
from eventlog.arguments import callback, flag, folder, whole
from eventlog.errors import (
    AppendConflictError,
    CorruptionError,
    SessionGoneError,
    SessionNotFoundError,
    TrimmedError,
    UsageError,
)
from eventlog.limits import TIME_MAX
from eventlog.record import TOMBSTONE
from eventlog.sizes import content_bytes, stored_bytes

if TYPE_CHECKING:
    from engine.session import Session
    from engine.store import Store

Progress = Callable[[int, int], object]  # steps done, and steps in all as far as they are known

WAIT_S: Final = 3600.0  # for room in the queue
WINDOW_ACKS: Final = 64  # removals that are under way at a time
BACK_EVENTS: Final = 256  # read at a time, from a session's end
_GONE: Final = (AppendConflictError, SessionGoneError, SessionNotFoundError, TrimmedError)


class Retaining:
    """The part of ``Tenant`` that retains."""

    if TYPE_CHECKING:
        name: str
        _store: Store

        def _scope(self) -> str | None:
            """See ``Tenant``."""

    def apply_retention(
        self,
        policy: RetentionPolicy,
        *,
        dry_run: bool = False,
        now_us: int | None = None,
        archive: str | Path | None = None,
        progress: Progress | None = None,
    ) -> RetentionReport:
        """Remove what rules no longer keep; blocks until that is durable.

        Called on the store it is about the sessions of all tenants, on a tenant about its own.
        Documents of users and tenants stay. Held sessions stay, and the report says so; a session
        that has an event meanwhile stays until the next time. Reads facts of all sessions; of those
        with too many events, after a purge or with ``kinds`` also events from the end; with
        ``max_total_bytes`` the sizes of all segments, and where there are blobs all events.

        Args:
            policy: The rules.
            dry_run: Only decide.
            now_us: The time, µs since the epoch, ``time.time_ns() // 1000``; needed with
                ``max_age_us``. Age goes by when the last event was recorded, not by ``time_us``:
                what was loaded without a recorded time, as imports of other formats are, is as
                young as the load.
            archive: A file, where nothing is yet, that gets the export lines of what goes first;
                ``load`` gives back sessions that went whole, and what was purged of others only in
                another store. None makes none.
            progress: Called with steps done and steps in all, which grow as more is known.

        Raises:
            UsageError: The time is missing, or there is something at the archive's path,
                whether anything would go or not.
            CorruptionError: A session's row is damaged; nothing went. Other damage is reported.
            StorageFullError, StoreUnavailableError: The archive could not be written; nothing went.
            FormatVersionError: The store has format version 1.
        """
        if type(policy) is not RetentionPolicy:
            raise UsageError(f"policy must be a RetentionPolicy, not {type(policy).__name__}")
        flag(dry_run, "dry_run")
        callback(progress, "progress")
        target = None if archive is None else folder(archive, "archive")
        if now_us is not None:
            whole(now_us, "now_us", 0, TIME_MAX)
        elif policy.max_age_us is not None:
            raise UsageError("max_age_us needs the time", hint="Give now_us=.")
        store = self._store
        store._refuse_closed()
        require_removal(store._log)
        if target is not None:
            require_vacant(target)
        scope = self._scope()
        tenants = store.tenants() if scope is None else [scope]
        return telling(
            progress,
            lambda tell: _Run(store, policy, now_us or 0, tell).apply(tenants, target, dry_run),
        )

    async def apply_retention_async(
        self,
        policy: RetentionPolicy,
        *,
        dry_run: bool = False,
        now_us: int | None = None,
        archive: str | Path | None = None,
        progress: Progress | None = None,
    ) -> RetentionReport:
        """``apply_retention`` on the store's pool; ``progress`` is called there."""
        return await self._store._on_pool(
            self.apply_retention,
            policy,
            dry_run=dry_run,
            now_us=now_us,
            archive=archive,
            progress=progress,
        )


@dataclass(slots=True)
class _Looked:
    """A session with what rules ask of it."""

    session: Surveyed
    position: int  # of the newest event that counts
    active_us: int
    byte_count: int = 0
    contents: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class _Plan:
    """What is to be done."""

    deleted: list[tuple[Surveyed, RetentionDecision]] = field(default_factory=list)
    purged: list[tuple[Surveyed, RetentionDecision]] = field(default_factory=list)
    held: list[RetentionDecision] = field(default_factory=list)
    changed: list[RetentionDecision] = field(default_factory=list)
    damaged: list[RetentionDamage] = field(default_factory=list)
    excess: list[RetentionExcess] = field(default_factory=list)
    bytes_before: int | None = None
    bytes_after: int | None = None

    def damage(self, each: Surveyed, error: CorruptionError) -> None:
        """A session is left alone, because it is damaged."""
        self.damaged.append(RetentionDamage(*each.name, str(error)))


class _Run:
    """One application of a policy.

    Args:
        store: The store.
        policy: The rules.
        now_us: The time.
        tell: The caller's progress.
    """

    def __init__(
        self, store: Store, policy: RetentionPolicy, now_us: int, tell: Progress | None
    ) -> None:
        self._store = store
        self._log = store._log
        self._policy = policy
        self._now_us = now_us
        self._tell = tell
        self._pause = Pause()
        self._done = self._total = 0

    def apply(self, tenants: list[str], archive: Path | None, dry_run: bool) -> RetentionReport:
        """See ``Retaining.apply_retention``."""
        sessions = [
            each
            for tenant in tenants
            for each in survey(self._log, self._store._facts, tenant, self._pause)
        ]
        self._total = len(sessions)
        plan = self._decide(sessions)
        receipts: list[ErasureReceipt] = []
        path: Path | None = None
        if not dry_run:
            self._total += (len(plan.deleted) + len(plan.purged)) * (1 if archive is None else 2)
            if archive is not None and (plan.deleted or plan.purged):
                path = self._archive(plan, archive)
            self._remove(plan, receipts)
            self._purge(plan)
        return RetentionReport(
            dry_run,
            len(sessions),
            tuple([decision for _, decision in plan.deleted]),
            tuple([decision for _, decision in plan.purged]),
            tuple(plan.held),
            tuple(plan.changed),
            tuple(plan.damaged),
            plan.bytes_before,
            plan.bytes_after,
            tuple(receipts),
            path,
            tuple(plan.excess),
        )

    # Deciding

    def _decide(self, sessions: list[Surveyed]) -> _Plan:
        plan = _Plan()
        policy = self._policy
        kept: list[_Looked] = []
        sizes = self._content_sizes(sessions)
        for each in sessions:
            looked = self._look(plan, each, sizes)
            self._step()
            if looked is not None:
                kept.append(looked)
        kept.sort(key=lambda looked: looked.position)
        named = Counter([address for looked in kept for address in looked.contents])
        total = sum([looked.byte_count for looked in kept])
        total += sum([sizes[address] for address in named])
        if policy.max_total_bytes is not None:
            plan.bytes_before = total
        for rule in ("max_age_us", "max_total_bytes"):
            staying: list[_Looked] = []
            for looked in kept:
                if not (self._is_old(looked) if rule == "max_age_us" else self._is_too_much(total)):
                    staying.append(looked)
                    continue
                decision = self._decision(looked, rule)
                if decision.holds:
                    plan.held.append(decision)
                    continue
                plan.deleted.append((looked.session, decision))
                total -= looked.byte_count
                for address in looked.contents:
                    named[address] -= 1
                    total -= 0 if named[address] else sizes[address]
            kept = staying
        if policy.max_total_bytes is not None:
            plan.bytes_after = total
        for looked in kept:
            self._decide_purge(plan, looked)
        return plan

    def _is_old(self, looked: _Looked) -> bool:
        age = self._policy.max_age_us
        return age is not None and self._now_us - looked.active_us > age

    def _is_too_much(self, total: int) -> bool:
        most = self._policy.max_total_bytes
        return most is not None and total > most

    def _decision(self, looked: _Looked, rule: Rule, first: int | None = None) -> RetentionDecision:
        each = looked.session
        stop = each.event_count if first is None else first
        return RetentionDecision(
            *each.name,
            each.number,
            "purge" if first is not None else "erase" if self._policy.erase else "delete",
            rule,
            stop - each.first,
            first,
            looked.active_us,
            each.facts.holds,
        )

    def _decide_purge(self, plan: _Plan, looked: _Looked) -> None:
        each, most = looked.session, self._policy.max_entries
        if most is None or each.event_count - each.first <= most:
            return
        try:
            wanted = self._nth_newest(each, most)
            if wanted is None:
                return
            floor = purge_floor(self._session(each), each.number, wanted, self._pause)
            excess = self._excess(each, most, wanted, floor)
        except _GONE:  # it is told when it is looked at again
            return
        except CorruptionError as error:
            plan.damage(each, error)
            return
        if excess is not None:
            plan.excess.append(excess)
        if floor.first <= each.first:
            return
        decision = self._decision(looked, "max_entries", floor.first)
        if decision.holds:
            plan.held.append(decision)
        else:
            plan.purged.append((each, decision))

    def _excess(
        self, each: Surveyed, most: int, wanted: int, floor: Floor
    ) -> RetentionExcess | None:
        """That a session keeps more than the rule says; None when it does not."""
        is_held = bool(each.facts.holds) and floor.first > each.first
        first = each.first if is_held else max(each.first, floor.first)
        if first >= wanted:
            return None
        kept = 0
        for event in self._newest_first(each):
            if event.sequence < first:
                break
            kept += self._policy.counts(event)
        if kept <= most:
            return None
        reasons = ("hold", *floor.reasons) if is_held else floor.reasons
        return RetentionExcess(*each.name, each.number, most, kept, first, reasons)

    def _nth_newest(self, each: Surveyed, most: int) -> int | None:
        """Sequence of the last event that is to stay; None when there is none before it."""
        count, found = 0, 0
        for event in self._newest_first(each):
            if self._policy.counts(event):
                count += 1
                if count > most:
                    return found
                found = event.sequence
        return None

    def _look(self, plan: _Plan, each: Surveyed, sizes: dict[bytes, int]) -> _Looked | None:
        """None when it was removed meanwhile, or is damaged."""
        if each.damage is not None:
            plan.damage(each, each.damage)
            return None
        looked = _Looked(each, each.position, each.updated_us)
        try:
            if self._policy.kinds is not None or each.first:
                for event in self._newest_first(each):
                    if self._policy.counts(event):
                        looked.position, looked.active_us = event.position, event.recorded_us
                        break
            if self._policy.max_total_bytes is not None:
                with self._log.views.past(each.name) as past:
                    if past is None or past.view.origin.number != each.number:
                        return None
                    looked.byte_count = stored_bytes(past)
                if sizes:
                    looked.contents = frozenset(
                        [
                            address
                            for event in self._newest_first(each)
                            for address in event.blobs
                            if address in sizes
                        ]
                    )
        except _GONE:
            return None
        except CorruptionError as error:
            plan.damage(each, error)
            return None
        return looked

    def _content_sizes(self, sessions: list[Surveyed]) -> dict[bytes, int]:
        """Stored bytes of the tenants' contents by address, which no two tenants share."""
        found: dict[bytes, int] = {}
        if self._policy.max_total_bytes is not None:
            for tenant in {each.name[0] for each in sessions}:
                with self._log.views.transaction() as tables:
                    found.update(content_bytes(tables, tenant, self._pause))
        return found

    def _newest_first(self, each: Surveyed) -> Iterator[Event]:
        stop = each.event_count
        while stop > each.first:
            start = max(each.first, stop - BACK_EVENTS)
            pager = SessionPager(self._log, each.name, start, stop - 1, None, each.number, stop)
            found: list[Event] = []
            while page := pager.next_page():
                found += page
            self._pause()
            yield from reversed(found)
            stop = start

    # Doing

    def _archive(self, plan: _Plan, path: Path) -> Path | None:
        """Archive what goes; what is not as it was is left alone."""
        with archived(self._log, path) as archive:
            for planned in (plan.deleted, plan.purged):
                kept: list[tuple[Surveyed, RetentionDecision]] = []
                for each, decision in planned:
                    stop = each.first + decision.event_count
                    try:
                        if archive.add(each.name, each.number, each.first, stop):
                            kept.append((each, decision))
                        else:
                            plan.changed.append(decision)
                    except CorruptionError as error:
                        plan.damage(each, error)
                    self._step()
                planned[:] = kept
            return path if archive.event_count else None

    def _remove(self, plan: _Plan, receipts: list[ErasureReceipt]) -> None:
        done: list[tuple[Surveyed, RetentionDecision]] = []
        for start in range(0, len(plan.deleted), WINDOW_ACKS):
            sent: list[tuple[Surveyed, RetentionDecision, Ack]] = []
            for each, decision in plan.deleted[start : start + WINDOW_ACKS]:
                removal = Removal(is_erased=self._policy.erase, number=each.number)
                ack = self._session(each)._remove(
                    (draft_control(TOMBSTONE),),
                    removal,
                    versions=(NOT_HELD,),
                    expected_next=each.event_count,
                    wait=WAIT_S,
                )
                sent.append((each, decision, ack))
            for each, decision, ack in sent:
                try:
                    ack.result()
                except _GONE:
                    self._leave(plan, each, decision)
                except CorruptionError as error:
                    plan.damage(each, error)
                else:
                    if self._policy.erase:
                        receipts.append(erase(self._log, ack, None))
                    done.append((each, decision))
                self._step()
        plan.deleted = done

    def _purge(self, plan: _Plan) -> None:
        done: list[tuple[Surveyed, RetentionDecision]] = []
        for each, decision in plan.purged:
            assert decision.first is not None
            try:
                session = self._session(each)
                session._purge(decision.first, each.number, (NOT_HELD,), WAIT_S).result()
            except _GONE:
                self._leave(plan, each, decision)
            except CorruptionError as error:
                plan.damage(each, error)
            else:
                done.append((each, decision))
            self._step()
        plan.purged = done

    def _leave(self, plan: _Plan, each: Surveyed, decision: RetentionDecision) -> None:
        """A session that is not as it was: held by now, or changed otherwise."""
        holds = self._session(each).facts.holds
        if holds:
            plan.held.append(replace(decision, holds=holds))
        else:
            plan.changed.append(decision)

    def _session(self, each: Surveyed) -> Session:
        return self._store.tenant(each.name[0]).session(each.name[1])

    def _step(self) -> None:
        self._pause()
        self._done += 1
        if self._tell is not None:
            self._tell(self._done, self._total)
