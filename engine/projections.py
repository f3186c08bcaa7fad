"""The inline projections of sessions: what rows their control events make (``eventlog.inline``)."""

from __future__ import annotations

from typing import Final

from engine.events import Event
from engine.fold import decode_base
from engine.variables import PROJECTION, changed_by, subkey_of
from eventlog.inline import Changes, InlineProjection
from eventlog.record import VARIABLES, Record


class VariablesProjection:
    """A row for each variable, under the digest of its key."""

    number = PROJECTION
    kinds = frozenset({VARIABLES})

    def changes(self, event: Record) -> Changes:
        """See ``InlineProjection``."""
        return {
            subkey_of(key): None if stored is None else stored.content()
            for key, stored in changed_by(_event(event)).items()
        }

    def base(self, event: Record) -> Changes:
        """See ``InlineProjection``."""
        variables = decode_base(_event(event)).variables
        return {subkey_of(key): stored.content() for key, stored in variables.items()}


PROJECTIONS: Final[tuple[InlineProjection, ...]] = (VariablesProjection(),)


def _event(record: Record) -> Event:
    return Event(record.origin, record.sequence, record.head, record.extension, record.payload)
