"""Check of the rows in ``state`` against the control events that they are made of.

Segments lie session by session, so what the events of one session make is kept until the next one
begins, compared with the session's rows, and dropped. Rows are counted: only when there are more
than events made is the whole table walked for those that no event made.

The ``base`` of a purge may be loose, and its session without a segment: where it lies in the hot
log is looked up first, and such sessions are compared after all others.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from eventlog.checked import CheckedSession
from eventlog.errors import CorruptionError
from eventlog.findings import CheckReport
from eventlog.hotlog import hot_names
from eventlog.inline import (
    BaseRows,
    InlineProjection,
    base_of,
    changes_of,
    check_said,
    state_key,
)
from eventlog.keys import U64
from eventlog.record import BASE, CONTROL, KIND_BYTE, Record, decode_record, verify_record
from eventlog.rows import CommitRecord, expose
from eventlog.tables import ReadTables

PREFIX_BYTES = len(state_key(0, 0))


class StateCheck:
    """One check's share of this."""

    def __init__(
        self,
        tables: ReadTables,
        report: CheckReport,
        projections: Sequence[InlineProjection],
        sessions: Mapping[int, CheckedSession],
        strange: Container[int],
        leaving: Container[int],
    ) -> None:
        self._tables = tables
        self._report = report
        self._projections = projections if tables.has("state") else ()
        self._sessions = sessions
        self._strange = strange  # sessions whose row was reported
        self._leaving = leaving  # sessions of which something is still to be removed
        self._session: CheckedSession | None = None
        self._base: dict[bytes, bytes | None] = {}
        self._has_base = False
        self._made: dict[bytes, bytes | None] = {}
        self._is_unsure = False  # a control event does not decode
        self._has_made: set[int] = set()  # sessions with control events that make rows
        self._met = 0  # rows of these
        self._record: CommitRecord | None = None
        self._bases: dict[int, list[int]] = {}  # positions of hot bases, by session number

    def find_bases(self, record: CommitRecord) -> None:
        """Where the hot log has bases; before the segments are read."""
        purged = {number for number, each in self._sessions.items() if _is_purged(each)}
        if not purged or not self._projections:
            return
        self._record = record
        for name in hot_names(record.floor):
            for key, value in self._tables.rows(name):
                if len(key) == U64.size and len(value) > KIND_BYTE and value[KIND_BYTE] == BASE:
                    number = int.from_bytes(value[8:16], "little")
                    if number in purged:
                        self._bases.setdefault(number, []).append(U64.unpack(key)[0])

    def check_segment(self, session: CheckedSession, records: Sequence[Record]) -> None:
        """The sealed events of one segment."""
        if session is not self._session:
            self.end_session()
            self._session = session
        for record in records:
            if not self._projections or (record.kind_code < CONTROL and not session.row.branches):
                continue
            try:
                self._made.update(changes_of(self._projections, record))
                if record.kind_code == BASE:
                    base = self._base_of(session, record)
                    if base is not None:  # what later events change stands over it
                        self._base.update(base.rows)
                        self._has_base = self._has_base or base.is_last
            except CorruptionError as error:
                self._report.add_error(error, session.origin)
                self._is_unsure = True
            else:
                self._check_said(session, record)

    def check_loose(self, session: CheckedSession, event: Record) -> None:
        """An event that is not sealed yet."""
        if self._projections and event.kind_code >= CONTROL:
            self._check_said(session, event)

    def _check_said(self, session: CheckedSession, event: Record) -> None:
        try:
            check_said(self._projections, event)
        except CorruptionError as error:
            self._report.add_error(error, session.origin)

    def end_session(self) -> None:
        """Compare what the events of the session before made with its rows."""
        session = self._session
        if session is not None and _is_purged(session) and not self._has_base:
            self._take_loose_base(session)
        made = {**self._base, **self._made}
        is_unsure = self._is_unsure or (session is not None and self._hides(session))
        self._session, self._base, self._made = None, {}, {}
        self._is_unsure = self._has_base = False
        if session is None or not (made or is_unsure or _is_purged(session)):
            return
        self._has_made.add(session.origin.number)
        wanted = {key: content for key, content in made.items() if content is not None}
        for key, value in self._rows(session.origin.number):
            self._met += 1
            where = f"state {key.hex()}"
            try:
                content = expose(key, value, where)
            except CorruptionError as error:
                self._report.add_error(error, session.origin)
                wanted.pop(key, None)
                continue
            expected = wanted.pop(key, None)
            if is_unsure:
                continue
            if expected is None:
                self._report.add(where, "no event made this row", session.origin)
            elif expected != content:
                self._report.add(where, "is not what the events say", session.origin)
        if is_unsure:
            return
        for key in wanted:
            self._report.add(f"state {key.hex()}", "row is missing", session.origin)

    def _take_loose_base(self, session: CheckedSession) -> None:
        """The base of a session that is not among its sealed events."""
        positions = self._bases.get(session.origin.number)
        if positions is None or self._record is None:
            return
        log = self._tables.hot_log(self._record)
        for position in reversed(positions):
            value = log.get(position)
            if value is None:
                continue
            try:
                verify_record(U64.pack(position), value)
                event = decode_record(session.origin, position, value, Record)
                base = self._base_of(session, event)
            except CorruptionError:
                continue  # found with the hot log
            if base is not None:
                self._base.update(base.rows)
                self._has_base = self._has_base or base.is_last

    def _base_of(self, session: CheckedSession, event: Record) -> BaseRows | None:
        row = session.row
        return base_of(self._projections, event, row.first, branches=bool(row.branches))

    def _hides(self, session: CheckedSession) -> bool:
        """Whether events that made rows cannot be seen: lost ones, or the base."""
        if session.lost:
            self._report.consequences += 1
        return bool(session.lost) or (_is_purged(session) and not self._has_base)

    def check_rows(self) -> None:
        """Every row of the table, if there are others than events made."""
        self.end_session()
        if not self._tables.has("state"):
            return
        for number, session in self._sessions.items():
            if _is_purged(session) and number not in self._has_made:
                self._session = session  # all that made its rows is in its base
                self.end_session()
        count = self._tables.row_count("state")
        self._report.count("state_rows", count)
        if count == self._met:
            return
        for key, value in self._tables.rows("state"):
            where = f"state {key.hex()}"
            if len(key) < PREFIX_BYTES:
                self._report.add(where, "key has another size")
                continue
            number = U64.unpack(key[:8])[0]
            if number in self._has_made:
                continue
            try:
                expose(key, value, where)
            except CorruptionError as error:
                self._report.add_error(error)
                continue
            if number in self._leaving:
                continue
            if number in self._strange:
                self._report.consequences += 1
                continue
            owner = self._sessions.get(number)
            if owner is None:
                self._report.add(where, "is of no session")
            else:
                self._report.add(where, "no event made this row", owner.origin)

    def _rows(self, number: int) -> list[tuple[bytes, bytes]]:
        return list(self._tables.rows("state", U64.pack(number)))


def _is_purged(session: CheckedSession) -> bool:
    return session.row.first > 0 and not session.row.is_gone
