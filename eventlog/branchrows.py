"""Branches as a transaction sees them: rows of what is sealed, and memory for what is loose."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import Any, Final

import numpy as np

from eventlog.absent import require_absent
from eventlog.branching import (
    OPENINGS,
    PROJECTION,
    SUBKEY_BYTES,
    TIPS,
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
from eventlog.limits import POSITION_MAX
from eventlog.record import NO_PARENT, Origin, Record
from eventlog.rows import NO_SEQUENCE, expose
from eventlog.segmentcache import decoded
from eventlog.tables import ReadTables

_SUBKEY: Final = [("which", "u1"), ("branch", ">u4")]
_OPENINGS: Final = np.dtype(
    [*_SUBKEY, ("sequence", "<u8"), ("parent", "<u8"), ("fork", "<u4"), ("recorded", "<u8")]
)
_TIPS: Final = np.dtype([*_SUBKEY, ("sequence", "<u8"), ("recorded", "<u8")])
# As ``_make`` of the two, without a frame of Python for each.
_NEW_OPENING: Final[Callable[[Iterable[Any]], Opening]] = partial(tuple.__new__, Opening)
_NEW_TIP: Final[Callable[[Iterable[Any]], Tip]] = partial(tuple.__new__, Tip)

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
    """All branches of a session that its rows tell of.

    There may be thousands, so that rows are checked one by one and decoded together.

    Raises:
        CorruptionError: A row is damaged.
    """
    prefix = state_key(number, PROJECTION)
    start = len(prefix)  # subkeys and contents
    rows = [key[start:] + content for key, content in tables.contents("state", prefix)]
    found = _decoded_together(rows)
    return _decoded_one_by_one(rows, prefix) if found is None else found


def _decoded_together(rows: list[bytes]) -> Rows | None:
    """What rows tell; None when one of them is not as it should be."""
    place = bisect_left(rows, bytes((TIPS,)))  # they are in the order of their keys
    openings, tips = rows[:place], rows[place:]
    if {*map(len, openings)} - {_OPENINGS.itemsize} or {*map(len, tips)} - {_TIPS.itemsize}:
        return None
    opened = np.frombuffer(b"".join(openings), _OPENINGS)
    ended = np.frombuffer(b"".join(tips), _TIPS)
    if np.any(opened["which"] != OPENINGS) or np.any(ended["which"] != TIPS):
        return None
    parents, sequences = opened["parent"], opened["sequence"]
    if np.any((parents >= sequences) & (parents != NO_PARENT)) or np.any(sequences > POSITION_MAX):
        return None
    columns = [opened[name].tolist() for name in ("sequence", "parent", "fork", "recorded")]
    made = map(_NEW_OPENING, zip(*columns, strict=True))
    found: Rows = dict(zip(opened["branch"].tolist(), zip(made, repeat(None)), strict=True))
    columns = [ended[name].tolist() for name in ("sequence", "recorded")]
    newest = map(_NEW_TIP, zip(*columns, strict=True))
    for branch, tip in zip(ended["branch"].tolist(), newest, strict=True):
        before = found.get(branch)
        found[branch] = (None if before is None else before[0], tip)
    return found


def _decoded_one_by_one(rows: list[bytes], prefix: bytes) -> Rows:
    """The same, and an error that names the row that is not as it should be."""
    found: Rows = {}
    for row in rows:
        where = f"state {(prefix + row[:SUBKEY_BYTES]).hex()}"
        is_opening, branch = split_key(row[:SUBKEY_BYTES], where)
        before = found.get(branch, (None, None))
        if is_opening:
            found[branch] = (decode_opening(row[SUBKEY_BYTES:], where), before[1])
        else:
            found[branch] = (before[0], decode_tip(row[SUBKEY_BYTES:], where))
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
