"""Inline projections: rows about a session that change in the transaction that seals its events.

``eventlog`` knows when and where; what the rows say, the engine's projections know. Every log is
opened with them, so that no event can be sealed without its rows.

Invariants:
    1. A projection is asked with the bodies of its own kinds only, found by the records' headers;
       all others pass by undecoded. About public events it is asked where the session branches
       (``branching``), and only then.
    2. What it answers depends on these events alone, never on what is stored, so ``check`` computes
       the same rows again from the events.
    3. The rows in ``state`` are those of the sealed events; what is loose comes on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from eventlog.body import decode_body
from eventlog.branching import PROJECTION as BRANCHES
from eventlog.keys import U64
from eventlog.record import (
    BASE,
    CONTROL,
    KIND_BYTE,
    Extension,
    Origin,
    Record,
    decode_extension,
    decode_record,
)
from eventlog.roles import SPARE
from eventlog.rows import protect
from eventlog.tables import WriteTables

CHANGES_SLICE: Final = 64  # rows between two looks at the clock

Changes = Mapping[bytes, bytes | None]  # subkey -> the row's content, None when there is none


class InlineProjection(Protocol):
    """Rows of one kind about a session.

    Attributes:
        number: Its number in the keys of ``state``; that of ``branching`` stands for sessions that
            branch only.
        kinds: Codes of the kinds whose events it is made of.
    """

    number: int
    kinds: frozenset[int]

    def changes(self, event: Record) -> Changes:
        """What an event changes: contents of rows by subkey.

        Raises:
            CorruptionError: Its body is none of its kind.
        """

    def base(self, event: Record) -> Changes:
        """The rows that a ``base`` event holds: those as of the events that were purged.

        Raises:
            CorruptionError: Its body is none of a base.
        """

    def check(self, event: Record) -> None:
        """Look at what an event of its kinds, or a ``base``, says; readers take it for granted.

        Raises:
            CorruptionError: It says what nothing can have written that checks what it writes.
        """

    def sequence_of(self, content: bytes) -> int:
        """Sequence of the event that made a row.

        Raises:
            CorruptionError: It is the content of none of its rows.
        """


def state_key(number: int, projection: int, subkey: bytes = b"") -> bytes:
    """Key of a row, or the prefix of all rows of a projection, in ``state``."""
    return U64.pack(number) + bytes([projection]) + subkey


class InlineRows:
    """What one commit changes in ``state``, session by session, later events over earlier ones."""

    def __init__(self, projections: Sequence[InlineProjection], pause: Callable[[], None]) -> None:
        self._projections = projections
        self._pause = pause
        self._rows: dict[bytes, bytes | None] = {}

    def collect(
        self,
        origin: Origin,
        records: Iterable[bytes],
        positions: Iterable[int],
        *,
        branches: bool,
    ) -> dict[bytes, bytes | None]:
        """What stored records of a session change; ``add`` takes it over.

        Args:
            origin: The session.
            records: Its records.
            positions: Their positions.
            branches: Whether the session branches, once these are sealed.

        Raises:
            CorruptionError: The body of a control event is damaged.
        """
        found: dict[bytes, bytes | None] = {}
        for record, position in zip(records, positions, strict=True):
            if branches or record[KIND_BYTE] >= CONTROL:
                event = decode_record(origin, position, record, Record)
                found.update(changes_of(self._projections, event))
                self._pause()
        return found

    def add(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Take changes over, once it is sure that their events are sealed."""
        self._rows.update(changes)

    def write(self, tables: WriteTables, *, to_spare: bool = False) -> None:
        """Put and delete the rows; ``to_spare`` in the next generation of ``state`` alone."""
        put: list[tuple[bytes, bytes]] = []
        for number, (key, content) in enumerate(sorted(self._rows.items(), key=_key_of)):
            if content is None:
                tables.delete(SPARE if to_spare else "state", key)
            else:
                put.append((key, protect(key, content)))
            if not number % CHANGES_SLICE:
                self._pause()
        if put and to_spare:
            tables.put_spare(put)
        elif put:
            tables.put_state(put)


def changes_of(projections: Sequence[InlineProjection], event: Record) -> dict[bytes, bytes | None]:
    """The keys and contents of rows that an event changes; None for a row that it removes.

    Raises:
        CorruptionError: The event's body is none of its kind.
    """
    number, kind = event.origin.number, event.kind_code
    return {
        state_key(number, projection.number, subkey): content
        for projection in projections
        if kind in projection.kinds
        for subkey, content in projection.changes(event).items()
    }


def check_said(projections: Sequence[InlineProjection], event: Record) -> None:
    """Look at what an event says to projections.

    Raises:
        CorruptionError: It says what nothing can have written that checks what it writes.
    """
    for projection in projections:
        if event.kind_code == BASE or event.kind_code in projection.kinds:
            projection.check(event)


@dataclass(frozen=True, slots=True)
class BaseRows:
    """What a ``base`` event holds.

    Attributes:
        rows: Keys and contents of rows, as of ``changes_of``.
        is_last: Whether it is the last event of its purge, and not one that others follow.
    """

    rows: dict[bytes, bytes | None]
    is_last: bool


def base_of(
    projections: Sequence[InlineProjection], event: Record, first: int, *, branches: bool
) -> BaseRows | None:
    """The rows that a ``base`` event holds.

    Args:
        projections: The projections.
        event: The event.
        first: The session's purge floor.
        branches: Whether the session branches.

    Returns:
        None when it is the base of an earlier purge.

    Raises:
        CorruptionError: The event's body is none of a base.
    """
    marks = decode_extension(event.extension, event.flags, event) if event.extension else {}
    body = decode_body(event.payload, marks.get(Extension.BODY_FIXES), where=event)
    if type(body) is not dict or body.get("last") != first - 1:
        return None
    number = event.origin.number
    rows = {
        state_key(number, projection.number, subkey): content
        for projection in projections
        if branches or projection.number != BRANCHES
        for subkey, content in projection.base(event).items()
    }
    return BaseRows(rows, not body.get("following"))


def _key_of(item: tuple[bytes, bytes | None]) -> bytes:
    return item[0]
