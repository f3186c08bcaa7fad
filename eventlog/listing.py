"""A tenant's sessions in one read transaction, newest activity first, without what was said.

What a session's facts depend on is its row, and how far its loose events go: as long as both are
the same (``stamp``), so are the facts that were told before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from eventlog.index import LooseIndex, SessionState
from eventlog.keys import U64, is_hidden
from eventlog.newest import newest_sessions, row_at, state_at
from eventlog.present import PresentRows
from eventlog.record import Origin
from eventlog.rows import GONE, CommitRecord
from eventlog.sessionfacts import SessionFacts, facts_of, require_whole
from eventlog.tables import ReadTables

if TYPE_CHECKING:
    from eventlog.views import Views

Stamp = tuple[bytes | None, object, int]
_SEALED: Final = slice(32, 40)  # of a stored session row: how many events are sealed

_LAST_POSITION: Final = slice(56, 64)  # position of the last of them
_FLAGS: Final = slice(92, 96)  # its flags


class Listing:
    """See the module; made by ``Views.listing``.

    Attributes:
        record: The transaction's commit record.
        tenant_number: The tenant.
    """

    def __init__(
        self,
        views: Views,
        index: LooseIndex,
        tables: ReadTables,
        record: CommitRecord,
        tenant_number: int,
        *,
        hidden: bool = False,
    ) -> None:
        self._hidden = hidden  # whether hidden sessions are listed too
        self.record = record
        self.tenant_number = tenant_number
        self._views = views
        self._index = index
        self._tables = tables

    def newest(self, before: int, after: int = 0) -> Iterator[tuple[int, int, SessionState | None]]:
        """Last position, number and, when memory has it, state of sessions, newest first.

        Sealed sessions may come with a position that a newer one stands for.

        Args:
            before: Only those whose last event lies before this position.
            after: Only those whose last event lies after this one.
        """
        return newest_sessions(
            self._tables, self.record, self._index, self.tenant_number, before, after
        )

    def state_of(self, number: int, position: int) -> SessionState | None:
        """What memory holds of a session whose last event is at a position."""
        state = self._index.states.get(number)
        if state is None or not state.next or state.last_position < position:
            return None  # forgotten, or memory was made anew
        return state

    def is_gone(self, number: int) -> bool:
        """Whether a session was deleted."""
        stored = self._tables.get_row(U64.pack(number))
        return stored is None or bool(int.from_bytes(stored[_FLAGS], "little") & GONE)

    def stamp(self, position: int, number: int, state: SessionState | None) -> Stamp:
        """What a session's facts other than counts and times depend on; equal as long as they are.

        Never equal to another one where memory does not belong to the transaction's row, which was
        sealed further since.

        Args:
            position: Its last one, as ``newest`` gave it.
            number: The session.
            state: What memory holds of it.
        """
        row = self._tables.get_row(U64.pack(number))
        if row is None:
            return None, object(), 0
        if state is None:
            is_all = int.from_bytes(row[_LAST_POSITION], "little") >= position
            return row, None if is_all else object(), 0
        has_controls = state.has_controls  # before the list, from which sealing takes first
        loose = state.loose
        if loose.base > int.from_bytes(row[_SEALED], "little"):
            return row, object(), 0
        return (row, loose.base, len(loose.positions)) if has_controls else (row, None, 0)

    def facts(
        self,
        position: int,
        number: int,
        state: SessionState | None,
        present: PresentRows | None = None,
    ) -> SessionFacts | None:
        """A session's facts; None when it is gone, or in the listing at a newer position.

        Args:
            position: Its last one, as ``newest`` gave it: told as it was when it was put in order,
                so that a cursor neither skips nor repeats.
            number: The session.
            state: What memory holds of it.
            present: Also gives the present rows of its projection.

        Raises:
            CorruptionError: A row is damaged, or a loose event that makes one.
        """
        tables, record = self._tables, self.record
        if state is None:
            row = row_at(tables, self.tenant_number, position, number)
            if row is None and position < record.floor:
                return None
            if row is None:  # it has loose events, and memory was dropped since the catch-up
                state = state_at(tables, record, number)
                facts = facts_of(state.origin, state.row, state)
            else:
                facts = facts_of(Origin(number, row.tenant, row.name), row, None)
        else:
            facts = self._views.facts_in_memory(state)
            if facts.row.is_gone:
                return None  # since this transaction began
        if not self._hidden and is_hidden(facts.origin.name):
            return None
        if present is not None:
            facts.rows = self._rows(facts.origin, state, present)
        facts.last_position = position
        return self._views.told(facts)

    def require(self, position: int, state: SessionState | None) -> None:
        """Raise where a damaged record is, or may be, left out of a session's facts.

        Raises:
            CorruptionError: One is.
        """
        self._views.require_end(position, self.record)
        if state is not None:
            require_whole(state)

    def _rows(
        self, origin: Origin, state: SessionState | None, present: PresentRows
    ) -> dict[bytes, bytes]:
        """The present rows; memory may be ahead of the transaction, which then has not all."""
        tables, record = self._tables, self.record
        if state is None:
            return present.stored(tables, origin.number)
        loose = state.loose
        stored = tables.get_row(U64.pack(origin.number))
        sealed = 0 if stored is None else int.from_bytes(stored[_SEALED], "little")
        if loose.base > sealed:  # sealed since the transaction began
            found = self._views.facts((origin.tenant, origin.name), present)
            if found is not None and found.origin.number == origin.number:
                return dict(found.rows)
            return {}
        # Loose is looked at again: what is sealed meanwhile is taken out of another list.
        has_controls = state.has_controls or state.loose is not loose
        return present.rows(
            tables, record, origin, loose if has_controls else None, len(loose.positions)
        )
