"""The inline projections of sessions: what rows their control events make (``eventlog.inline``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine import naming
from engine.events import Event
from engine.fold import decode_base
from engine.naming import NamesProjection, decode_names
from engine.variables import (
    PROJECTION,
    StoredVariable,
    changed_by,
    decode_row,
    decode_variables,
    subkey_of,
)
from eventlog import branching
from eventlog.branching import BranchProjection
from eventlog.errors import CorruptionError, UsageError
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

    def sequence_of(self, content: bytes) -> int:
        """See ``InlineProjection``."""
        return decode_row(content, "variable").sequence


PROJECTIONS: Final[tuple[InlineProjection, ...]] = (
    VariablesProjection(),
    BranchProjection(),
    NamesProjection(),
)


def rows_of_base(body: Any) -> list[tuple[int, bytes, bytes]]:
    """The rows of all projections that the body of a ``base`` event stands for.

    Raises:
        UsageError: It is the body of none.
    """
    if body is None:
        return []
    try:
        variables = decode_variables(body.get("variables"), "base")
        names = decode_names(body.get("names"), "base")
        branches = branching.rows_of_base(body, "base") if "branches" in body else []
    except CorruptionError as error:
        raise UsageError(str(error)) from error
    rows = [(PROJECTION, subkey_of(key), each.content()) for key, each in _by_key(variables)]
    rows += [(branching.PROJECTION, subkey, content) for subkey, content in branches]
    return rows + [
        (naming.PROJECTION, naming.subkey_of(name), each.content()) for name, each in names.items()
    ]


def _by_key(variables: Mapping[str, StoredVariable]) -> list[tuple[str, StoredVariable]]:
    return sorted(variables.items(), key=lambda item: item[0])


def _event(record: Record) -> Event:
    return Event(record.origin, record.sequence, record.head, record.extension, record.payload)
