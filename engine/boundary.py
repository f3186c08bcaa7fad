"""What a compaction says: which events its summary stands for, and which stay in view; pure.

The body of a ``compaction`` event is ``{"summary": text, "data": {...}}``. Of its data, views read
``through``, the last event that the summary stands for, and ``keep``, events up to it that stay in
view all the same; each event is named by its sequence or id. ``throughEntryId`` and
``keepEntryIds`` are other names of the two. All else is the application's.

Invariants:
    1. A compaction without ``through`` hides nothing.
    2. One that is not what it should be changes no view; appends refuse it, imports do not.
    3. A body with neither ``summary`` nor ``data`` is no compaction, whatever its event's kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from eventlog.errors import InvalidMessageError
from eventlog.limits import POSITION_MAX

EventName = int | str
"""A sequence, or an event's id."""
NAMES: Final = {"through": "throughEntryId", "keep": "keepEntryIds"}
_KEPT_MAX: Final = 10_000  # events that one compaction keeps beside those after it


@dataclass(frozen=True, slots=True)
class Boundary:
    """What a view does at a compaction.

    Attributes:
        summary: The text that stands for what is hidden.
        through: The last event that it stands for; None for none.
        keep: Events up to it that stay in view.
    """

    summary: str
    through: EventName | None
    keep: tuple[EventName, ...]


def boundary_of(body: Any) -> Boundary | None:
    """What a compaction says; None for one that changes no view (invariant 2)."""
    try:
        return _boundary(body)
    except InvalidMessageError:
        return None


def check_compaction(body: Any) -> EventName | None:
    """Raise for a body that cannot be a compaction's; gives the last event that it stands for.

    Raises:
        InvalidMessageError: It is none; names the path.
    """
    found = _boundary(body)
    return None if found is None else found.through


def _boundary(body: Any) -> Boundary | None:
    if type(body) is not dict or not ("summary" in body or "data" in body):
        return None
    summary = body.get("summary")
    if type(summary) is not str or not summary.strip():
        raise InvalidMessageError("a compaction needs a summary that is text", path="$.summary")
    data = body.get("data", {})
    if type(data) is not dict:
        raise InvalidMessageError("data of a compaction must be a dict", path="$.data")
    through, path = _part(data, "through")
    if through is not None:
        _require_name(through, path)
    keep, path = _part(data, "keep")
    if keep is None:
        keep = []
    if type(keep) is not list or len(keep) > _KEPT_MAX:
        raise InvalidMessageError(f"must be a list of at most {_KEPT_MAX:,} events", path=path)
    for place, each in enumerate(keep):
        _require_name(each, f"{path}[{place}]")
    return Boundary(summary, through, tuple(keep))


def _part(data: dict[str, Any], name: str) -> tuple[Any, str]:
    other = NAMES[name]
    found = data.get(name)
    if found is None and data.get(other) is not None:
        return data[other], f"$.data.{other}"
    return found, f"$.data.{name}"


def _require_name(name: Any, path: str) -> None:
    if type(name) is int and 0 <= name <= POSITION_MAX:
        return
    if type(name) is not str or not name:
        raise InvalidMessageError("must be an event's sequence or id", path=path)
