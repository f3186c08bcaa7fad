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

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from math import fsum
from typing import Any, Final

from engine.belonging import is_on, value_of, values_in
from engine.fold import Fold
from engine.spaces import Space
from eventlog.arguments import whole
from eventlog.branching import Stretch
from eventlog.errors import CorruptionError, InvalidMessageError, UsageError
from eventlog.keys import name_bytes
from eventlog.limits import POSITION_MAX

SCOPES: Final = ("turn", "provider_turn", "run_total")
COUNTERS: Final = (
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "audio_input_tokens",
    "audio_output_tokens",
    "characters",
)
"""What is counted in whole numbers."""
AMOUNTS: Final = ("seconds", "cost")
NAMES: Final = ("model", "provider", "currency", "user_id", "run_id", "turn_id")
COUNT_MAX: Final = 2**53
AMOUNT_MAX: Final = 1e100  # no log holds so many that their sum is no float
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


def usage_body(scope: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What an event of kind ``usage`` appends.

    Args:
        scope: One of ``SCOPES``.
        given: The other arguments of ``record_usage``, None for those that were not given.

    Raises:
        UsageError: A scope, count or amount that cannot be.
        InvalidMessageError: ``extra`` is no dict.
    """
    value: dict[str, Any] = {"scope": checked_scope(scope)}
    for name in NAMES:
        if given[name] is not None:
            name_bytes(given[name], name)
            value[name] = given[name]
    for name in COUNTERS:
        if given[name] is not None:
            value[name] = whole(given[name], name, 0, COUNT_MAX)
    for name in AMOUNTS:
        amount = given[name]
        if amount is not None:
            if type(amount) not in (int, float) or not 0 <= amount <= AMOUNT_MAX:
                raise UsageError(
                    f"{name} must be a number from 0 to {AMOUNT_MAX}, not {reprlib.repr(amount)}"
                )
            value[name] = amount
    if given["extra"] is not None:
        if type(given["extra"]) is not dict:
            raise InvalidMessageError("extra must be a dict", path="$extra")
        value["extra"] = given["extra"]
    return value


def checked_scope(scope: str) -> str:
    """The scope, when it is one."""
    if type(scope) is not str or scope not in SCOPES:
        raise UsageError(f"scope must be one of {', '.join(SCOPES)}, not {scope!r}")
    return scope


def records_of(fold: Fold | None, scope: str, user_id: str | None) -> list[UsageRecord]:
    """The records of a scope, in order.

    Args:
        fold: The session's.
        scope: The scope.
        user_id: The user that the session was created with. Records without a user are that
            one's, or the one's that the facts tell since.

    Raises:
        CorruptionError: A record was loaded that ``record_usage`` cannot have written.
    """
    found: list[UsageRecord] = []
    values = values_in(fold, Space.USAGE)
    told = values_in(fold, Space.FACTS).get("user_id") if values else None
    if told is not None and type(owner := told.value()) in (str, type(None)):
        user_id = owner
    for key in sorted(values):
        stored = values[key]
        value = value_of(stored, scope=str)
        if value["scope"] != scope:
            continue
        if not _is_record(value):
            raise CorruptionError("is no record", where=f"{stored} at {stored.sequence}")
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


def _is_record(value: Mapping[str, Any]) -> bool:
    """Whether a value is what ``record_usage`` may have written."""
    numbers = [value[name] for name in ("event", "branch", *COUNTERS) if name in value]
    amounts = [value[name] for name in AMOUNTS if name in value]
    return (
        all([type(value[name]) is str for name in NAMES if name in value])
        and all([type(each) is int and 0 <= each <= POSITION_MAX for each in numbers])
        and all([type(each) in (int, float) and 0 <= each <= AMOUNT_MAX for each in amounts])
        and type(value.get("extra", {})) is dict
    )


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
