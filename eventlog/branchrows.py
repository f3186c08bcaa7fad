"""Branches as a transaction sees them: rows of what is sealed, and memory for what is loose."""

from __future__ import annotations

from eventlog.absent import require_absent
from eventlog.branching import (
    PROJECTION,
    Branching,
    Opening,
    Tip,
    decode_opening,
    decode_tip,
    opening_key,
    recorded_in,
    split_key,
    tip_key,
)
from eventlog.errors import CorruptionError
from eventlog.inline import state_key
from eventlog.keys import PAIR, U64
from eventlog.record import NO_PARENT, Origin, Record
from eventlog.rows import NO_SEQUENCE, expose
from eventlog.segmentcache import decoded
from eventlog.tables import ReadTables

Rows = dict[int, tuple[Opening | None, Tip | None]]
"""By branch number: what opened it, and its tip; None for what there is none of."""


def sealed_tip(tables: ReadTables, number: int, branch: int) -> int | None:
    """What the next event of a branch follows, as its rows tell it; None for nothing."""
    content = _content(tables, number, tip_key(branch))
    if content is not None:
        return decode_tip(content, _where(number, branch)).sequence
    opening = sealed_opening(tables, number, branch)
    return None if opening is None or opening.parent == NO_PARENT else opening.parent


def sealed_opening(tables: ReadTables, number: int, branch: int) -> Opening | None:
    """What opened a branch, as its row tells it."""
    content = _content(tables, number, opening_key(branch))
    return None if content is None else decode_opening(content, _where(number, branch))


def opening(
    tables: ReadTables, number: int, known: Branching | None, branch: int
) -> Opening | None:
    """What opened a branch, whether that event is sealed or loose.

    Args:
        tables: The transaction.
        number: The session.
        known: What memory kept of it before the transaction began.
        branch: The branch.
    """
    found = None if known is None else known.openings.get(branch)
    return sealed_opening(tables, number, branch) if found is None else found


def sealed_branches(tables: ReadTables, number: int) -> Rows:
    """All branches of a session that its rows tell of."""
    found: Rows = {}
    prefix = state_key(number, PROJECTION)
    for key, content in tables.contents("state", prefix):
        where = f"state {key.hex()}"
        is_opening, branch = split_key(key[len(prefix) :], where)
        before = found.get(branch, (None, None))
        if is_opening:
            found[branch] = (decode_opening(content, where), before[1])
        else:
            found[branch] = (before[0], decode_tip(content, where))
    return found


def _content(tables: ReadTables, number: int, subkey: bytes) -> bytes | None:
    if not tables.has("state"):
        return None
    key = state_key(number, PROJECTION, subkey)
    value = tables.transaction.get(key, db=tables.tables["state"])
    if value is None:
        require_absent(tables.transaction, tables.tables["state"], "state", key)
        return None
    return expose(key, value, f"state {key.hex()}")


def _where(number: int, branch: int) -> str:
    return f"branch {branch} of session {number}"


def linear_tip(
    tables: ReadTables, number: int, head: int, first: int, value: bytes | None = None
) -> dict[bytes, bytes | None]:
    """The row of branch 0 of a session that was linear up to its head, by its key.

    Args:
        tables: The transaction.
        number: The session.
        head: The head.
        first: The first sequence that was not purged; of an event below it nobody knows the time.
        value: Its record, if it is not sealed.

    Raises:
        CorruptionError: The segment that its head lies in is damaged or missing.
    """
    if head == NO_SEQUENCE:
        return {}
    if value is not None:
        recorded_us = recorded_in(value)
    else:
        recorded_us = 0 if head < first else _recorded_us(tables, number, head)
    key = state_key(number, PROJECTION, tip_key(0))
    return {key: Tip(head, recorded_us).content()}


def _recorded_us(tables: ReadTables, number: int, sequence: int) -> int:
    with tables.segment_cursor() as cursor:
        if cursor.set_range(PAIR.pack(number, sequence)):
            key = cursor.key()
            if key[: U64.size] == U64.pack(number):
                segment = decoded(tables, key, cursor.value())
                place = sequence - segment.first_sequence
                if place >= 0:
                    return segment.make(place, Origin(number, "", ""), Record).recorded_us
    raise CorruptionError("segment is missing", where=f"session {number}/{sequence}")
