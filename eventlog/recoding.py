"""Recoding: how segments are compressed in a file that is written anew; for ``vacuum``.

A dictionary holds sentences of the sessions that it was trained on. Once one of those was deleted,
or a part of it purged or redacted, the dictionary goes too, and what names it is written again:
with another one of the tenant that nothing was removed of, or with none. A new one was trained by
then, if there is enough to learn from (``settling``).

All others are compressed harder than there is time for beside appends, and with the newest
dictionary of their tenant, which those from before it was trained do not have.

Invariants:
    1. The events of a segment, its key and its prefix but for codec and dictionary stay the same.
    2. A dictionary that is damaged is kept, and so is what names it: nobody knows what is in it.
    3. What has a dictionary to get rid of is written again; what has not, only where that is
       smaller, and where it is damaged it stays as it is.
    4. Of a session whose row is missing or damaged nobody knows whether anything was removed, so
       its dictionaries go too. Nothing is lost by that, and the rest of the store is rewritten.
    5. A dictionary stays when it is its tenant's newest, or a segment of the new file names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eventlog.body import decode_body
from eventlog.dictionary import REWRITE_LEVEL, Contexts, Dictionary, DictionaryRow
from eventlog.errors import CorruptionError
from eventlog.keys import PAIR
from eventlog.rows import REDACTED
from eventlog.segment import SegmentPrefix, decode_segment, join_segments
from eventlog.tables import ReadTables

TenantOf = Callable[[int], int | None]
"""A session's tenant by number, None where it is not to have a dictionary."""


class Recoding:
    """What a rewrite does to each row.

    Args:
        stale: Dictionaries to get rid of, by number.
        fresh: What to use for a tenant instead, by its number.
        others: The dictionaries that are neither, by number.
        tenant_of: Finds the tenant of a session; None leaves segments without a stale dictionary
            as they are.
    """

    def __init__(
        self,
        stale: Mapping[int, Dictionary],
        fresh: Mapping[int, Dictionary],
        others: Mapping[int, Dictionary] | None = None,
        tenant_of: TenantOf | None = None,
    ) -> None:
        self.stale = stale
        self.fresh = fresh
        self.dictionaries = {**(others or {}), **stale}
        self._known = {**(others or {}), **{each.number: each for each in fresh.values()}}
        self._tenant_of = tenant_of
        self._named: set[int] = set()  # by the segments written so far
        self._has_met_segments = False
        self._plain = Contexts(level=REWRITE_LEVEL)

    def __call__(self, table: str, key: bytes, value: bytes) -> bytes | None:
        """The row's value in the new file, None when it is to be left out."""
        if table == "dict" and len(key) == 1:
            return None if key[0] in self.stale or self._is_replaced(key[0]) else value
        if table != "segment" or len(key) != PAIR.size:
            return value
        self._has_met_segments = True
        recoded = self._recoded(key, value)
        self._named.add(SegmentPrefix.unpack(key, recoded).dictionary)
        return recoded

    def _is_replaced(self, number: int) -> bool:
        """Whether a dictionary is named by no segment any more; tables come one after the other."""
        found = self._known.get(number)
        return (
            found is not None
            and self._has_met_segments
            and number not in self._named
            and self.fresh.get(found.row.tenant_number) is not found
        )

    def _recoded(self, key: bytes, value: bytes) -> bytes:
        old = self.stale.get(SegmentPrefix.unpack(key, value).dictionary)
        if old is not None:
            new = self.fresh.get(old.row.tenant_number)
            return self._joined(key, value, new, old)
        if self._tenant_of is None:
            return value
        try:
            tenant_number = self._tenant_of(PAIR.unpack(key)[0])
            new = None if tenant_number is None else self.fresh.get(tenant_number)
            recoded = self._joined(key, value, new, None)
        except CorruptionError:
            return value
        named = SegmentPrefix.unpack(key, value).dictionary
        if named and new is not None and named != new.number:
            return recoded
        return min(value, recoded, key=len)

    def _joined(
        self, key: bytes, value: bytes, new: Dictionary | None, old: Dictionary | None
    ) -> bytes:
        segment = decode_segment(key, value, self._find if old is None else lambda _: old)
        compressor = self._plain.compressor if new is None else new.compressor
        session = PAIR.unpack(key)[0]
        return join_segments(session, [segment], new, compressor=compressor)[1]

    def _find(self, number: int) -> Dictionary:
        found = self._known.get(number)
        if found is None:
            raise CorruptionError("is missing", where=f"dictionary {number}")
        return found


def recoding_of(tables: ReadTables) -> Recoding:
    """What a store needs as one transaction shows it."""
    stale: dict[int, Dictionary] = {}
    fresh: dict[int, Dictionary] = {}
    others: dict[int, Dictionary] = {}
    for key, value in tables.rows("dict") if tables.has("dict") else ():
        try:
            found = Dictionary(key[0], DictionaryRow.decode(key, value), level=REWRITE_LEVEL)
        except CorruptionError:
            continue
        firsts = found.row.firsts or (0,) * len(found.row.sessions)
        trained_on = zip(found.row.sessions, firsts, strict=True)
        if any([_has_gone(tables, number, first) for number, first in trained_on]):
            stale[found.number] = found
        else:
            others[found.number] = fresh[found.row.tenant_number] = found
    return Recoding(stale, fresh, others, _tenants_of(tables))


def _tenants_of(tables: ReadTables) -> TenantOf:
    if not decode_body(tables.options(), where="options").get("dictionaries", False):
        return lambda _: None
    last: tuple[int, int] = (0, 0)  # segments come in the order of their sessions

    def tenant_of(number: int) -> int | None:
        nonlocal last
        if last[0] != number:
            last = number, tables.load_row(number).tenant_number
        return last[1]

    return tenant_of


def _has_gone(tables: ReadTables, number: int, first: int) -> bool:
    """Whether events of a session were removed from a sequence on, or may have been.

    See invariant 4.
    """
    try:
        row = tables.load_row(number)
    except CorruptionError:
        return True
    return row.is_gone or row.first > first or row.flags & REDACTED > 0
