"""Recoding: segments without the dictionaries that hold what was removed; for ``vacuum``.

A dictionary holds sentences of the sessions that it was trained on. Once one of those was deleted,
or a part of it purged, the dictionary goes too, and what names it is written again: with another
one of the tenant that nothing was removed of, or with none. The tenant's next sealing trains anew.

Invariants:
    1. The events of a segment, its key and its prefix but for codec and dictionary stay the same.
    2. A dictionary that is damaged is kept, and so is what names it: nobody knows what is in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from eventlog.dictionary import Dictionary, DictionaryRow
from eventlog.errors import CorruptionError
from eventlog.keys import PAIR
from eventlog.segment import SegmentPrefix, decode_segment, join_segments
from eventlog.tables import ReadTables


class Recoding:
    """What a rewrite does to each row.

    Args:
        stale: Dictionaries to get rid of, by number.
        fresh: What to use for a tenant instead, by its number.
    """

    def __init__(self, stale: Mapping[int, Dictionary], fresh: Mapping[int, Dictionary]) -> None:
        self.stale = stale
        self.fresh = fresh

    def __call__(self, table: str, key: bytes, value: bytes) -> bytes | None:
        """The row's value in the new file, None when it is to be left out."""
        if table == "dict" and len(key) == 1 and key[0] in self.stale:
            return None
        if table != "segment" or len(key) != PAIR.size:
            return value
        old = self.stale.get(SegmentPrefix.unpack(key, value).dictionary)
        if old is None:
            return value
        segment = decode_segment(key, value, lambda _: old)
        new = self.fresh.get(old.row.tenant_number)
        return join_segments(PAIR.unpack(key)[0], [segment], new)[1]


def recoding_of(tables: ReadTables) -> Recoding:
    """What a store needs as one transaction shows it.

    Raises:
        CorruptionError: A session's row is damaged, so that nobody knows what was removed.
    """
    stale: dict[int, Dictionary] = {}
    fresh: dict[int, Dictionary] = {}
    for key, value in tables.rows("dict") if tables.has("dict") else ():
        try:
            found = Dictionary(key[0], DictionaryRow.decode(key, value))
        except CorruptionError:
            continue
        if any([_has_gone(tables, number) for number in found.row.sessions]):
            stale[found.number] = found
        else:
            fresh[found.row.tenant_number] = found
    return Recoding(stale, fresh)


def _has_gone(tables: ReadTables, number: int) -> bool:
    """Whether events of a session were removed."""
    row = tables.load_row(number)
    return row.is_gone or row.first > 0
