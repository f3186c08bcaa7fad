"""A session on its way into a store: its lines, and what is refused before any is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.arriving import check_arriving
from engine.drafting import draft_event
from engine.kinds import CONTROLS
from engine.loading import encode_facts
from engine.projections import rows_of_base
from eventlog.errors import TurnlogError, UsageError
from turnlog import importers, terminal

Line = dict[str, Any]

_FACTS: Final = (
    "id",
    "time_us",
    "recorded_us",
    "tokens",
    "run_id",
    "turn_id",
    "speech_id",
    "request_id",
    "metadata",
    "redacted",
    "role",
    "body",
)
_BELONGING: Final = ("usage", "artifacts")
_WITH_PARENT: Final = ("head_move", "branch_name", *_BELONGING)


class RefusedError(TurnlogError):
    """A session is not taken; the sequence tells which of its events is to blame."""

    def __init__(self, message: str, sequence: int) -> None:
        super().__init__(message)
        self.sequence = sequence


@dataclass(slots=True)
class Incoming:
    """A session on its way: where it comes from and its lines."""

    file: str
    first_line: int | None
    tenant: str
    name: str
    lines: list[Line]
    event_lines: Sequence[int] | None
    contents: list[Line]
    mends: Sequence[importers.Mend] = ()
    is_foreign: bool = False
    purged: int = 0  # lines of events that the store purged
    tried: int = 0  # lines of a load that failed; of those some may have arrived

    @property
    def first(self) -> int:
        """Its first sequence; above 0 where it tells that what was before it was purged."""
        line = self.lines[0]
        first: int = 0 if line.get("opening") is None else line["sequence"]
        return first

    def line_of(self, number: int | None) -> int | None:
        """The line of the file that holds an event, or else the session's first."""
        if number is None or self.event_lines is None or number >= len(self.event_lines):
            return self.first_line
        return self.event_lines[number]


def prepared(file: str, parsed: importers.ParsedSession, tenant: str | None) -> Incoming:
    """The session as export lines of plain values.

    Where no event names its parent, as in all foreign formats, each follows the one before.
    """
    into = parsed.tenant if tenant is None else tenant
    is_numbered = any(event.sequence is not None for event in parsed.events)
    has_parents = any(
        event.parent is not None and event.kind not in _BELONGING for event in parsed.events
    )
    facts = {"user_id": parsed.user_id, "title": parsed.title, "metadata": parsed.metadata}
    opening = {key: fact for key, fact in facts.items() if fact is not None}
    lines: list[Line] = []
    head: int | None = None
    for number, event in enumerate(parsed.events):
        line: Line = {"tenant": into, "session": parsed.name, "kind": event.kind}
        sequence = event.sequence if is_numbered else number
        line["sequence"] = sequence
        is_control = event.kind in CONTROLS
        line["parent"] = event.parent if has_parents or is_control else head
        if not is_control:
            head = sequence
        if number == 0 and sequence and event.opening is not None:
            line |= {"opening": event.opening, "base": event.base}  # what was before was purged
        elif number == 0:
            line["opening"] = event.opening or opening or None
        for key in _FACTS:
            line[key] = getattr(event, key)
        line["blobs"] = event.blobs
        if event.branch is not None:
            line["branch"] = event.branch
        lines.append(line)
    if not lines:
        # As a session that was created and nothing more; its facts are worth keeping.
        empty: Line = {"tenant": into, "session": parsed.name, "kind": "open", "sequence": 0}
        lines.append({**empty, "parent": None, "opening": opening or None})
    first_line = None if parsed.lines is None else parsed.lines[0]
    contents = [{**line, "tenant": into} for line in parsed.contents]
    return Incoming(
        file,
        first_line,
        into,
        parsed.name,
        lines,
        parsed.event_lines,
        contents,
        parsed.mends,
        parsed.is_foreign,
    )


def refuse_unfit(session: Incoming) -> None:
    """Refuse a session that the store would not take whole, or not as its lines say.

    Asked before anything is written, since a long session is committed in pieces.

    Raises:
        RefusedError: A value that cannot be stored, a sequence that is missing, or a parent that
            is no event of the history before it.
    """
    ids: set[str] = set()
    first = session.first
    for number, line in enumerate(session.lines):
        if line["sequence"] != first + number:
            raise RefusedError(f"sequence {first + number} is missing", number)
        _refuse_parent(session, line, number)
        facts: dict[str, Any] = {key: line.get(key) for key in _FACTS}
        if facts["id"] in ids:
            raise RefusedError(f"the id {terminal.quote(facts['id'])} occurs twice in it", number)
        if facts["id"] is not None:
            ids.add(facts["id"])
        try:
            encode_facts(line.get("opening") or {})
            rows_of_base(line.get("base"))
            body, parent = facts.pop("body"), line["parent"]
            check_arriving(line["kind"], body)
            draft_event(line["kind"], body, **facts, parent=parent, loading=True)
        except UsageError as error:
            raise RefusedError(str(error), number) from error


def _refuse_parent(session: Incoming, line: Line, number: int) -> None:
    parent, kind, sequence = line["parent"], line["kind"], line["sequence"]
    if kind in CONTROLS and kind not in _WITH_PARENT:
        if parent is not None:
            raise RefusedError(f"sequence {sequence}, of kind {kind}, has a parent", number)
    elif parent is None or parent == -1:
        return
    elif not -1 < parent < sequence:
        raise RefusedError(f"sequence {sequence} follows {parent}, not one before it", number)
    elif parent >= session.first and session.lines[parent - session.first]["kind"] in CONTROLS:
        raise RefusedError(
            f"sequence {sequence} follows {parent}, which is no event of the history", number
        )
