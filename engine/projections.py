"""The inline projections of sessions: what rows their control events make (``eventlog.inline``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine import naming
from engine.arriving import check_arriving
from engine.events import Event
from engine.facts import check_facts
from engine.fold import decode_base, spaces_of_base
from engine.naming import NamesProjection, decode_names
from engine.spaces import KINDS, Space
from engine.usagebody import check_record
from engine.variables import StoredVariable, changed_by, decode_row, subkey_of
from eventlog import branching
from eventlog.branching import BranchProjection
from eventlog.errors import CorruptionError, UsageError
from eventlog.inline import Changes, InlineProjection
from eventlog.record import BASE, Record

_CHECKED: Final = (Space.FACTS, Space.USAGE)


class SpaceProjection:
    """A row for each key of a space, under the digest of the key."""

    def __init__(self, space: Space) -> None:
        self.number: int = space
        self.kinds = frozenset({KINDS[space]})
        self._space = space

    def changes(self, event: Record) -> Changes:
        """See ``InlineProjection``."""
        return {
            subkey_of(key): None if stored is None else stored.content()
            for key, stored in changed_by(_event(event)).items()
        }

    def base(self, event: Record) -> Changes:
        """See ``InlineProjection``."""
        values = decode_base(_event(event)).spaces.get(self._space, {})
        return {subkey_of(key): stored.content() for key, stored in values.items()}

    def check(self, event: Record) -> None:
        """See ``InlineProjection``: facts and usage, which listings and sums read."""
        if self._space not in _CHECKED or (event.kind_code == BASE and self._space != Space.FACTS):
            return  # of a base both are looked at together
        said = _event(event)
        try:
            check_arriving(said.kind, said.body)
        except UsageError as error:
            raise CorruptionError(str(error), where=f"{said}") from error

    def sequence_of(self, content: bytes) -> int:
        """See ``InlineProjection``."""
        return decode_row(content, self._space.title).sequence


SPACE_PROJECTIONS: Final = {space: SpaceProjection(space) for space in Space}
FACTS: Final = SPACE_PROJECTIONS[Space.FACTS]
PROJECTIONS: Final[tuple[InlineProjection, ...]] = (
    *SPACE_PROJECTIONS.values(),
    BranchProjection(),
    NamesProjection(),
)


def rows_of_base(body: Any) -> list[tuple[int, bytes, bytes]]:
    """The rows of all projections that the body of a ``base`` event stands for.

    Raises:
        UsageError: It is the body of none.
        InvalidMessageError: One of its facts is not what its key says.
    """
    if body is None:
        return []
    try:
        spaces = spaces_of_base(body, "base")
        names = decode_names(body.get("names"), "base")
        branches = branching.rows_of_base(body, "base") if "branches" in body else []
    except CorruptionError as error:
        raise UsageError(str(error)) from error
    stated = spaces.get(Space.FACTS, {})
    check_facts({key: each.value() for key, each in stated.items()}, "$base.facts")
    for each in spaces.get(Space.USAGE, {}).values():
        check_record(each.value())
    rows: list[tuple[int, bytes, bytes]] = [
        (space, subkey_of(key), each.content())
        for space, values in spaces.items()
        for key, each in _by_key(values)
    ]
    rows += [(branching.PROJECTION, subkey, content) for subkey, content in branches]
    return rows + [
        (naming.PROJECTION, naming.subkey_of(name), each.content()) for name, each in names.items()
    ]


def _by_key(variables: Mapping[str, StoredVariable]) -> list[tuple[str, StoredVariable]]:
    return sorted(variables.items(), key=lambda item: item[0])


def _event(record: Record) -> Event:
    return Event(record.origin, record.sequence, record.head, record.extension, record.payload)
