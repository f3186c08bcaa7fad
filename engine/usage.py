"""Usage: tokens, seconds, characters and costs, one record an event, and what they add up to.

A record belongs to a public event, and through it to a branch: so what an abandoned branch used
still counts, and a branch's own total is right. Records of one *scope* are summed, never two: a
``run_total`` counts again what its ``provider_turn`` records say.

Invariants:
    1. A record is never changed or taken away while its session is there, also by a purge.
    2. A record's index counts those of its scope before it in the session, from 0, without a gap.
    3. Sums do not depend on the order of what is summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from math import fsum
from typing import Any, Final

from engine.belonging import is_on
from engine.spaces import Space
from engine.usagebody import COUNTERS, NAMES, check_record
from engine.values import Values
from engine.variables import StoredVariable
from eventlog.arguments import whole
from eventlog.branching import Stretch
from eventlog.errors import CorruptionError, UsageError
from eventlog.limits import POSITION_MAX, SESSION_BRANCHES_MAX

DAY_US: Final = 86_400_000_000
_FIRST_DAY: Final = date(1970, 1, 1)
_CYCLE_DAYS: Final = 146_097  # 400 years, after which the calendar repeats


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One record of usage; what was not said is 0 or None.

    Attributes:
        index: Its number among those of its scope in the session, from 0.
        sequence: Sequence of its event.
        recorded_us: Recorded time of that event, µs since the epoch.
        scope: ``turn``, ``provider_turn`` or ``run_total``.
        event: Sequence of the event that it belongs to; None when there was none.
        branch: The branch of that event.
        model: The model; likewise ``provider``, ``currency``, ``user_id``, ``run_id``, ``turn_id``.
        counts: By the names in ``COUNTERS``, those that were given.
        seconds: Of audio, or of a session.
        cost: In ``currency``.
        extra: As the caller gave it.
    """

    index: int
    sequence: int
    recorded_us: int
    scope: str
    event: int | None
    branch: int
    model: str | None
    provider: str | None
    currency: str | None
    user_id: str | None
    run_id: str | None
    turn_id: str | None
    counts: dict[str, int]
    seconds: float
    cost: float
    extra: dict[str, Any]


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """What records add up to.

    Attributes:
        record_count: How many they are.
        counts: By all names in ``COUNTERS``.
        seconds: Seconds.
        costs: By currency, ``""`` for none.
    """

    record_count: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    seconds: float = 0.0
    costs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one scope.

    Attributes:
        scope: The scope.
        totals: Of all records.
        by_model: Totals by model, None for records without one.
        by_branch: By the branch of the event that they belong to; of one session only.
        by_user: By user.
        by_day: By the day in UTC on which they were recorded, like ``2025-06-01``.
        by_session: By the session's name.
        records: The records in order; empty where they are of several sessions.
    """

    scope: str
    totals: UsageTotals
    by_model: dict[str | None, UsageTotals]
    by_branch: dict[int, UsageTotals]
    by_user: dict[str | None, UsageTotals]
    by_day: dict[str, UsageTotals]
    by_session: dict[str, UsageTotals]
    records: list[UsageRecord]


def records_of(values: Values, session: str, scope: str, user_id: str | None) -> list[UsageRecord]:
    """The records of a scope, in order.

    Args:
        values: The session's.
        session: Its name, for errors.
        scope: The scope.
        user_id: The user that the session was created with. Records without a user are that
            one's, or the one's that the facts tell since.

    Raises:
        CorruptionError: A record was loaded that ``record_usage`` cannot have written; names
            session and sequence.
    """
    found: list[UsageRecord] = []
    recorded = values.all(Space.USAGE)
    told = values.one(Space.FACTS, "user_id") if recorded else None
    if told is not None:
        user_id = told.value()
        if user_id is not None and type(user_id) is not str:
            where = f"session {session!a}, {told} at {told.sequence}"
            raise CorruptionError("is no text", where=where)
    for key in sorted(recorded):
        stored = recorded[key]
        value = stored.value()
        _require_record(stored, value, session)
        if value["scope"] != scope:
            continue
        names = {name: value.get(name) for name in NAMES}
        names["user_id"] = names["user_id"] or user_id
        found.append(
            UsageRecord(
                index=len(found),
                sequence=stored.sequence,
                recorded_us=stored.updated_us,
                scope=scope,
                event=value.get("event"),
                branch=value.get("branch", 0),
                counts={name: value[name] for name in COUNTERS if name in value},
                seconds=float(value.get("seconds", 0)),
                cost=float(value.get("cost", 0)),
                extra=value.get("extra", {}),
                **names,
            )
        )
    return found


def _require_record(stored: StoredVariable, value: Any, session: str) -> None:
    try:
        check_record(value)
        event, branch = value.get("event"), value.get("branch", 0)
        if event is not None:
            whole(event, "event", 0, POSITION_MAX)
        whole(branch, "branch", 0, SESSION_BRANCHES_MAX - 1)
    except UsageError as error:
        where = f"session {session!a}, usage at {stored.sequence}"
        raise CorruptionError(str(error), where=where) from error


def on_path(records: Iterable[UsageRecord], path: Sequence[Stretch]) -> list[UsageRecord]:
    """Those records that belong to events on a path."""
    return [
        each
        for each in records
        if is_on(path, {} if each.event is None else {"event": each.event, "branch": each.branch})
    ]


class Sums:
    """Adds records up, of one session or of many."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        # By all that is asked for at once: model, branch, user, day and session.
        self._cells: dict[tuple[str | None, int, str | None, int, str], _Sum] = {}

    def add(self, session: str, records: Iterable[UsageRecord]) -> None:
        """Add records of a session."""
        cells = self._cells
        for each in records:
            key = (each.model, each.branch, each.user_id, each.recorded_us // DAY_US, session)
            cell = cells.get(key)
            if cell is None:
                cell = cells[key] = _Sum()
            cell.add(each)

    def usage(self, records: list[UsageRecord] | None = None) -> Usage:
        """What was added.

        Args:
            records: Those of the one session that it was; None when they were several.
        """
        whole_sum = _Sum()
        groups: list[dict[Any, _Sum]] = [{}, {}, {}, {}, {}]
        for key, cell in self._cells.items():
            whole_sum.merge(cell)
            for group, name in zip(groups, key, strict=True):
                group.setdefault(name, _Sum()).merge(cell)
        totals = [{name: each.totals() for name, each in group.items()} for group in groups]
        by_model, by_branch, by_user, by_day, by_session = totals
        return Usage(
            scope=self._scope,
            totals=whole_sum.totals(),
            by_model=by_model,
            by_branch={} if records is None else by_branch,
            by_user=by_user,
            by_day={_day(number): by_day[number] for number in sorted(by_day)},
            by_session=by_session,
            records=[] if records is None else records,
        )


def _day(number: int) -> str:
    """A day in UTC by its number since the epoch."""
    cycles, rest = divmod(number, _CYCLE_DAYS)  # any day that a log can tell, not dates alone
    day = _FIRST_DAY + timedelta(days=rest)
    return f"{day.year + 400 * cycles:04}-{day:%m-%d}"


class _Sum:
    __slots__ = ("costs", "count", "counts", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.seconds: list[float] = []
        self.costs: dict[str, list[float]] = {}

    def add(self, record: UsageRecord) -> None:
        self.count += 1
        for name, count in record.counts.items():
            self.counts[name] += count
        if record.seconds:
            self.seconds.append(record.seconds)
        if record.cost:
            self.costs.setdefault(record.currency or "", []).append(record.cost)

    def merge(self, other: _Sum) -> None:
        self.count += other.count
        for name, count in other.counts.items():
            self.counts[name] += count
        self.seconds += other.seconds
        for currency, costs in other.costs.items():
            self.costs.setdefault(currency, []).extend(costs)

    def totals(self) -> UsageTotals:
        costs = {currency: fsum(each) for currency, each in sorted(self.costs.items())}
        return UsageTotals(self.count, self.counts, fsum(self.seconds), costs)
