"""Usage that a source tells, as events of kind `usage` behind the events that it belongs to.

What one answer of a model took has the scope `provider_turn`, what a whole run took `run_total`.
`extra` is the source's own record of it as it stands. Tokens in are all that went in, those read
from a cache or written to one among them, however the source counts.

Invariants:

1. What several records say of one answer is counted once: a record counts by what it adds to those
   before it, so the sum is right however much of an answer a file has so far.
2. A count that no store takes is none; it stands in `extra` alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from engine.usagebody import AMOUNT_MAX, AMOUNTS, COUNT_MAX, COUNTERS, NAMES, usage_body
from turnlog.importers.model import ParsedEvent
from turnlog.importers.tree import id_of

_NOTHING: Final = dict.fromkeys((*NAMES, *COUNTERS, *AMOUNTS, "extra"))
Counts = Mapping[str, float | None]
"""By the names of ``record_usage``; None for what the source does not tell."""


class Told:
    """What was counted of each answer so far."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, dict[str, float]] = {}

    def event(
        self,
        counts: Counts,
        *,
        scope: str = "provider_turn",
        answer: object = None,
        model: object = None,
        provider: object = None,
        extra: dict[str, Any] | None = None,
    ) -> ParsedEvent | None:
        """The event that says what was used; None when nothing was that is not counted yet.

        Args:
            counts: What was used.
            scope: The scope.
            answer: The answer's id, where others may speak of it too and it is a text.
            model: The model, where it is a text.
            provider: Who serves it, where it is a text.
            extra: The source's own record.
        """
        given = {name: count for name, count in counts.items() if count}
        if isinstance(answer, str):
            before = self._answers.setdefault(answer, {})
            more = {name: count - before.get(name, 0) for name, count in given.items()}
            before.update({name: given[name] for name, count in more.items() if count > 0})
            given = {name: count for name, count in more.items() if count > 0}
        if not given:
            return None
        names = {"model": id_of(model), "provider": id_of(provider), "extra": extra}
        return ParsedEvent(
            "usage", {"append": {"": usage_body(scope, {**_NOTHING, **names, **given})}}
        )


def add_used(events: list[ParsedEvent], used: ParsedEvent | None, parent: int | None) -> None:
    """Append what was used, if anything was.

    Args:
        events: All events before it, from the session's first.
        used: See ``Told.event``.
        parent: Sequence of the event that it belongs to.
    """
    if used is not None:
        used.parent = parent
        used.time_us = None if parent is None else events[parent].time_us
        events.append(used)


def count_of(record: object, *path: str) -> int | None:
    """A count within a record; None where there is none that a store takes."""
    found = _within(record, path)
    return found if type(found) is int and 0 <= found <= COUNT_MAX else None


def amount_of(record: object, *path: str) -> float | None:
    """An amount within a record, likewise."""
    found = _within(record, path)
    is_amount = type(found) in (int, float) and 0 <= found <= AMOUNT_MAX
    return found if is_amount else None


def total_of(*counts: int | None) -> int | None:
    """The sum of those counts that there are; None when there are none, or it is too large."""
    found = [count for count in counts if count is not None]
    return sum(found) if found and sum(found) <= COUNT_MAX else None


def _within(record: object, path: tuple[str, ...]) -> Any:
    for key in path:
        record = record.get(key) if isinstance(record, dict) else None
    return record
