"""What was used: records, and what they add up to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.model.answers import Placed, Refused, exact
from tests.model.operations import Noun
from tests.model.sessions import ModelSession, facts_of
from tests.model.staging import HANG_S, placed

if TYPE_CHECKING:
    from engine import Store, Usage
    from tests.model.model import ModelStore

COUNTERS = (
    *("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens"),
    *("reasoning_tokens", "audio_input_tokens", "audio_output_tokens", "characters"),
)
_ORDER = (
    *("model", "provider", "currency", "user_id", "run_id", "turn_id"),
    *COUNTERS,
    *("seconds", "cost", "extra"),
)


@dataclass(frozen=True, slots=True)
class RecordUsage(Noun):
    """``record_usage``; amounts are such that their sums are exact."""

    tenant: str
    session: str
    scope: str
    given: tuple[tuple[str, Any], ...]
    event: int | None = None
    key: str | None = None

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        ack = session.record_usage(
            self.scope, event=self.event, idempotency_key=self.key, **dict(self.given)
        )
        return placed(ack.result(HANG_S))

    def expect(self, model: ModelStore) -> Placed | Refused:
        given = dict(self.given)
        value = {"scope": self.scope, **{name: given[name] for name in _ORDER if name in given}}
        if not set(dict(self.given)) & {*COUNTERS, "seconds", "cost", "extra"}:
            return Refused("UsageError")
        body = {"append": {"": value}}
        name = (self.tenant, self.session)
        return model.change(name, "usage", body, parent=self.event, key=self.key)


Record = dict[str, Any]


def records_of(session: ModelSession, scope: str, last: int | None = None) -> list[Record]:
    """The records of a scope up to an event, with whose they are and what they belong to."""
    user = facts_of(session, last)["user_id"]
    found: list[Record] = []
    for kept in session.events[: None if last is None else last + 1]:
        if kept.new.kind != "usage" or kept.new.body["append"][""]["scope"] != scope:
            continue
        value = kept.new.body["append"][""]
        found.append(
            {
                **value,
                "user_id": value.get("user_id", user),
                "event": kept.parent,
                "branch": 0 if kept.parent is None else kept.branch,
                "sequence": kept.sequence,
                "position": kept.position,
                "session": session.name,
                "index": len(found),
            }
        )
    return found


def belongs(session: ModelSession, path: list[int], event: int | None, branch: int) -> bool:
    """Whether what belongs to an event is on a path; what belongs to none is on all.

    What was said after a fork and before its first event belongs to the event that it follows, on
    the branch of the fork.
    """
    if event is None:
        return True
    on = {session.branch_of(each) for each in path}
    is_forked = branch in on and session.opened.get(branch) == event
    return event in path and (session.branch_of(event) == branch or is_forked)


def _totals(records: list[Record]) -> tuple[Any, ...]:
    costs: dict[str, float] = {}
    for each in records:
        if each.get("cost"):
            currency = each.get("currency") or ""
            costs[currency] = costs.get(currency, 0.0) + each["cost"]
    return (
        len(records),
        tuple([sum([each.get(name, 0) for each in records]) for name in COUNTERS]),
        float(sum([each.get("seconds", 0) for each in records])),
        tuple(sorted(costs.items())),
    )


def _summed(
    model: ModelStore, records: list[Record], *, of_one: bool, has_days: bool = True
) -> dict[str, Any]:
    def by(name: str) -> dict[Any, Any]:
        groups: dict[Any, list[Record]] = {}
        for each in records:
            groups.setdefault(each.get(name), []).append(each)
        return {key: _totals(group) for key, group in groups.items()}

    for each in records if has_days else ():
        day = datetime.fromtimestamp(model.times[each["position"]] // 1_000_000, UTC)
        each["day"] = day.strftime("%Y-%m-%d")
    return {
        "totals": _totals(records),
        "model": by("model"),
        "branch": by("branch") if of_one else {},
        "user_id": by("user_id"),
        "day": by("day") if has_days else None,
        "session": by("session"),
        "records": list(map(_record, records)) if of_one else [],
    }


def _record(record: Record) -> tuple[Any, ...]:
    return (
        record["index"],
        *[record.get(name) for name in ("sequence", "scope", "event", "branch", *_ORDER[:6])],
        tuple([record.get(name) for name in COUNTERS]),
        float(record.get("seconds", 0)),
        float(record.get("cost", 0)),
        exact(record.get("extra", {})),
    )


def _told(usage: Usage) -> dict[str, Any]:
    """Comparable with ``_summed``."""

    def totals(each: Any) -> tuple[Any, ...]:
        counts = tuple([each.counts[name] for name in COUNTERS])
        return each.record_count, counts, each.seconds, tuple(sorted(each.costs.items()))

    def group(groups: dict[Any, Any]) -> dict[Any, Any]:
        return {key: totals(each) for key, each in groups.items()}

    records = [
        (
            each.index,
            *(each.sequence, each.scope, each.event, each.branch),
            *[getattr(each, name) for name in _ORDER[:6]],
            tuple([each.counts.get(name) for name in COUNTERS]),
            *(each.seconds, each.cost, exact(each.extra)),
        )
        for each in usage.records
    ]
    return {
        "totals": totals(usage.totals),
        "model": group(usage.by_model),
        "branch": group(usage.by_branch),
        "user_id": group(usage.by_user),
        "day": group(usage.by_day),
        "session": group(usage.by_session),
        "records": records,
    }


@dataclass(frozen=True, slots=True)
class SessionUsage(Noun):
    """``usage`` of a session, now or after an event; ``times`` of the store must be known."""

    tenant: str
    session: str
    scope: str
    branch: int | None = None
    leaf: int | None = None
    sequence: int | None = None
    has_days: bool = True

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        if self.sequence is not None:
            found = session.at(self.sequence).usage(self.scope, branch=self.branch)
        else:
            found = session.usage(self.scope, branch=self.branch, leaf=self.leaf)
        told = _told(found)
        return told if self.has_days else {**told, "day": None}

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None:
            if self.sequence is not None:
                return Refused("SessionNotFoundError")
            if self.branch:
                return Refused("UsageError")
            return _summed(model, [], of_one=True, has_days=self.has_days)
        if self.sequence is not None:
            if self.sequence >= len(session.events):
                return Refused("UsageError")
            if self.sequence < session.first:
                return Refused("TrimmedError")
        if self.branch and not session.has_branch(self.branch, self.sequence):
            return Refused("UsageError")
        records = records_of(session, self.scope, self.sequence)
        if self.branch is not None:
            records = [each for each in records if each["branch"] == self.branch]
        elif self.leaf is not None and self.sequence is None:
            refused = session.path_refusal(self.leaf)
            if refused is not None:
                return refused
            path = session.path(self.leaf)
            records = [
                each for each in records if belongs(session, path, each["event"], each["branch"])
            ]
        return _summed(model, records, of_one=True, has_days=self.has_days)


@dataclass(frozen=True, slots=True)
class TenantUsage(Noun):
    """``usage`` of a tenant; ``since`` and ``until`` are times."""

    tenant: str
    scope: str
    user_id: str | None = None
    model: str | None = None
    since: int | None = None
    until: int | None = None

    def perform(self, store: Store) -> Any:
        usage = store.tenant(self.tenant).usage(
            self.scope,
            user_id=self.user_id,
            model=self.model,
            since_us=self.since,
            until_us=self.until,
        )
        return _told(usage)

    def expect(self, model: ModelStore) -> Any:
        records = [
            each
            for (tenant, _), session in model.sessions.items()
            if tenant == self.tenant and not session.is_hidden
            for each in records_of(session, self.scope)
            if self.user_id in (None, each["user_id"])
            and self.model in (None, each.get("model"))
            and (self.since is None or self.since <= model.times[each["position"]])
            and (self.until is None or model.times[each["position"]] < self.until)
        ]
        return _summed(model, records, of_one=False)


@dataclass(frozen=True, slots=True)
class Times(Noun):
    """The recorded times of events after a position: the clock is the store's own."""

    after: int

    def perform(self, store: Store) -> Any:
        return [
            (event.position, event.recorded_us)
            for event in store.read(after=self.after, voids=True)
        ]
