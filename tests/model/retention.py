"""What goes by rules, or with its owner: retention, holds, erasure of users and tenants."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from engine import RetentionPolicy
from tests.model.answers import Refused
from tests.model.documents import session_of
from tests.model.operations import Noun, Purge
from tests.model.sessions import CONTROLS, ModelSession, facts_of
from tests.model.windows import bound, calls_in, compaction_on, is_over, result_in
from tests.model.works import pending_calls

if TYPE_CHECKING:
    from engine import Store
    from tests.model.model import ModelStore


@dataclass(frozen=True, slots=True)
class Retain(Noun):
    """``apply_retention``; the store itself, the tenant without a name, is about all tenants.

    Attributes:
        age: Rule and time: sessions whose newest event was recorded before this time go.
        entries: The rule of that name.
        is_all: Whether nothing may take any bytes.
        kinds: Those that count.
    """

    tenant: str
    age: int | None = None
    entries: int | None = None
    is_all: bool = False
    kinds: tuple[str, ...] | None = None
    is_erased: bool = False
    is_dry: bool = False
    is_archived: bool = False

    def perform(self, store: Store) -> Any:
        policy = RetentionPolicy(
            max_age_us=None if self.age is None else 0,
            max_entries=self.entries,
            max_total_bytes=0 if self.is_all else None,
            kinds=self.kinds,
            erase=self.is_erased,
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "archive") if self.is_archived else None
            report = store.tenant(self.tenant).apply_retention(
                policy, now_us=self.age, dry_run=self.is_dry, archive=path
            )
            assert (report.archive is None) or report.archive == path
            lines: list[Any] = []
            if report.archive is not None:
                lines = [json.loads(line) for line in report.archive.read_text().splitlines()]
        archived = [
            (each.get("tenant", ""), each["session"], each["sequence"])
            for each in lines
            if "blob" not in each
        ]
        assert not report.damaged and not report.changed
        gone = report.deleted if self.is_erased and not self.is_dry else ()
        assert [(each.tenant, each.session, each.number) for each in report.receipts] == [
            (each.tenant, each.session, each.number) for each in gone
        ]
        decisions = [
            [
                (each.tenant, each.session, each.action, each.rule, each.event_count, each.first)
                for each in some
            ]
            for some in (report.deleted, report.purged, report.held)
        ]
        return report.session_count, decisions[0], decisions[1], decisions[2], archived

    def expect(self, model: ModelStore) -> Any:
        sessions = [
            each
            for (tenant, _), each in model.sessions.items()
            if not each.is_hidden and self.tenant in ("", tenant)
        ]
        count = len(sessions)
        sessions.sort(key=lambda each: self._activity(each))
        deleted: list[Any] = []
        purged: list[Any] = []
        held: list[Any] = []
        gone: list[ModelSession] = []
        action = "erase" if self.is_erased else "delete"
        for rule in ("max_age_us", "max_total_bytes"):
            staying = []
            for each in sessions:
                old = self.age is not None and model.times[self._activity(each)] < self.age
                if not (old if rule == "max_age_us" else self.is_all):
                    staying.append(each)
                    continue
                events = len(each.events) - each.first
                decision = (each.tenant, each.name, action, rule, events, None)
                if facts_of(each)["holds"]:
                    held.append(decision)
                else:
                    deleted.append(decision)
                    gone.append(each)
            sessions = staying
        cut: list[tuple[ModelSession, int]] = []
        for each in sessions:
            first = None if self.entries is None else self._floor(each)
            if first is None or first <= each.first:
                continue
            decision = (each.tenant, each.name, "purge", "max_entries", first - each.first, first)
            if facts_of(each)["holds"]:
                held.append(decision)
            else:
                purged.append(decision)
                cut.append((each, first))
        archived = []
        if self.is_archived and not self.is_dry:
            stops = [(each, len(each.events)) for each in gone] + cut
            archived = [
                (each.tenant, each.name, sequence)
                for each, stop in stops
                for sequence in range(each.first, stop)
            ]
        if not self.is_dry:
            for each in gone:
                model.remove(each)
            for each, first in cut:
                model.purge(Purge(each.tenant, each.name, first))
        return count, deleted, purged, held, archived

    def _counts(self, kind: str) -> bool:
        return kind != "base" if self.kinds is None else kind in self.kinds

    def _activity(self, session: ModelSession) -> int:
        """Position of the newest event that counts, or of the newest one."""
        there = session.events[session.first :]
        found = [kept.position for kept in there if self._counts(kept.new.kind)]
        return found[-1] if found else there[-1].position

    def _floor(self, session: ModelSession) -> int | None:
        """The first sequence that is to stay."""
        assert self.entries is not None
        there = session.events[session.first :]
        if len(there) <= self.entries:
            return None
        counted = [kept.sequence for kept in there if self._counts(kept.new.kind)]
        if len(counted) <= self.entries:
            return None
        return purge_floor(session, counted[-self.entries])


def purge_floor(session: ModelSession, wanted: int) -> int:
    """Where a purge up to an event may end: it cuts no calls, and takes no compaction away."""
    spans, unanswered = _calls(session)
    floor = min([wanted, *_open(session, unanswered)])
    while True:
        lowest = min([bound(spans, floor), *_applied(session, floor)])
        if lowest == floor:
            return floor
        floor = lowest


def _calls(session: ModelSession) -> tuple[list[tuple[int, int]], dict[int, set[str]]]:
    """From each call to its result, on whatever branch; and the calls that nobody answered."""
    spans: list[tuple[int, int]] = []
    unanswered: dict[int, set[str]] = {}
    messages = [kept for kept in session.messages() if kept.sequence >= session.first]
    for kept in messages:
        unanswered[kept.sequence] = set(calls_in(kept.new.body))
    for kept in messages:
        answered = result_in(kept.new.body)
        if answered is None:
            continue
        for each in reversed(session.shown_path(kept.sequence)[:-1]):
            there = session.events[each]
            if there.new.kind == "message" and answered in calls_in(there.new.body):
                spans.append((each, kept.sequence))
                unanswered[each].discard(answered)
                break
    return spans, {sequence: ids for sequence, ids in unanswered.items() if ids}


def _open(session: ModelSession, unanswered: dict[int, set[str]]) -> list[int]:
    """Events with a call that is open."""
    told = session.space("tool_calls")
    if told:
        pending = pending_calls(session)
        named = [told[id][0].get("event") for id in pending]
        found = [sequence for sequence, ids in unanswered.items() if ids & pending]
        return [event for event in named if event is not None] + found
    if session.head < 0:
        return []
    path = [
        session.events[each]
        for each in session.shown_path(session.head)
        if session.events[each].new.kind == "message"
    ]
    bodies = [kept.new.body for kept in path]
    return [
        kept.sequence
        for index, kept in enumerate(path)
        if kept.sequence in unanswered and not is_over(bodies, index)
    ]


def _applied(session: ModelSession, floor: int) -> list[int]:
    """The compactions that views apply: of the head, and of branches with an event that stays."""
    leaves: dict[int, int] = {}
    for kept in session.events:
        if kept.new.kind not in CONTROLS:
            leaves[kept.branch] = kept.sequence
    wanted = [leaf for leaf in leaves.values() if leaf >= max(floor, session.first)]
    wanted += [session.head] if session.head >= 0 else []
    found = [compaction_on(session, session.path(leaf)) for leaf in wanted]
    return [each[0].sequence for each in found if each is not None]


@dataclass(frozen=True, slots=True)
class Forget(Noun):
    """``erase_user``, or without a user ``erase_tenant``."""

    tenant: str
    user_id: str | None
    is_forced: bool = False

    writes_hidden: ClassVar[bool] = True

    def perform(self, store: Store) -> Any:
        if self.user_id is None:
            receipts = store.erase_tenant(self.tenant, force=self.is_forced)
        else:
            receipts = store.tenant(self.tenant).erase_user(self.user_id, force=self.is_forced)
        return [
            (each.tenant, each.session, each.event_count, each.position)
            for each in receipts
            if each.session is not None or each.what.startswith("documents")
        ]

    def expect(self, model: ModelStore) -> Any:
        documents = None if self.user_id is None else session_of(("user", self.user_id))
        chosen = [
            each
            for (tenant, _), each in model.sessions.items()
            if tenant == self.tenant
            and (
                self.user_id is None
                or each.name == documents
                or (not each.is_hidden and self.user_id in _users(each))
            )
        ]
        if not self.is_forced and any([facts_of(each)["holds"] for each in chosen]):
            return Refused("ConflictError")
        own = []
        if self.user_id is None:
            own = [each for each in model.hidden.values() if each.tenant == self.tenant]
            own = [each for each in own if each.events and not each.is_gone]
        receipts = []
        for each in sorted([*chosen, *own], key=lambda each: -each.events[-1].position):
            name = None if each.is_hidden else each.name
            count = len(each.events)
            if each in own:
                model.remove(each)
                each.is_gone = True
                continue
            placed = model.remove(each)
            receipts.append((self.tenant, name, count, placed.position))
        return receipts


def _users(session: ModelSession) -> set[str | None]:
    """Whose a session is or was; of those that were purged the last one."""
    purged = facts_of(session, session.first - 1)["user_id"] if session.first else None
    told = [kept.new.body for kept in session.events[session.first :] if kept.new.kind == "facts"]
    later = {body["set"]["user_id"] for body in told if "user_id" in body.get("set", {})}
    return {session.opening.user_id, purged, *later}
