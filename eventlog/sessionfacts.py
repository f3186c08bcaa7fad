"""A session as it stands: counts, head and times, from its row and what memory holds of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from eventlog.errors import CorruptionError
from eventlog.index import SessionState
from eventlog.record import Origin
from eventlog.rows import SessionRow

NO_ROWS: Final[Mapping[bytes, bytes]] = MappingProxyType({})


@dataclass(slots=True)
class SessionFacts:
    """A session as it stands: its row and what is loose; changed by who made it only.

    ``rows`` are the present rows of a projection, by subkey, when they were asked for.
    """

    origin: Origin
    row: SessionRow
    event_count: int
    message_count: int
    head: int
    last_position: int
    last_recorded_us: int
    since_roll_up: int
    unsealed_count: int
    rows: Mapping[bytes, bytes] = field(default_factory=lambda: NO_ROWS)


def require_whole(state: SessionState) -> None:
    """Raise when a loose event is left out of a session's facts."""
    if state.lost:
        raise CorruptionError(
            f"its record, or one before it of session {state.number}, is damaged: head and counts "
            "are not known",
            where=f"log {state.lost}",
        )


def facts_of(origin: Origin, row: SessionRow, state: SessionState | None) -> SessionFacts:
    """A session's facts from its row and what memory holds of it."""
    if state is None:
        return SessionFacts(
            origin,
            row,
            row.sealed,
            row.messages,
            row.head,
            row.last_position,
            row.last_recorded_us,
            row.since_roll_up,
            0,
        )
    return SessionFacts(
        origin,
        row,
        state.next,
        state.messages,
        state.head,
        state.last_position,
        state.last_recorded_us,
        state.messages - state.rolled,
        state.next - max(row.sealed, state.loose.base),
    )
