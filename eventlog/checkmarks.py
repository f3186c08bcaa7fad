"""Check of idempotency keys and callers' ids against the events that carry them.

Both directions, without remembering a key or an id: each event looks its row or entry up, and is
counted when it is there. As no two events share one, equal counts mean that each row and entry has
its event. Only where the counts differ is each row or entry followed to its event.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from threading import Lock
from typing import Any

from eventlog.checked import CheckedSession
from eventlog.digests import id_digest
from eventlog.errors import CorruptionError
from eventlog.findings import FINDINGS_MAX, CheckReport
from eventlog.idrows import IdPlace
from eventlog.idruns import IdRuns
from eventlog.keys import U64
from eventlog.limits import SEGMENT_CACHE_BYTES_MAX
from eventlog.record import Extension, Flag, Record, decode_extension
from eventlog.rows import CommitRecord, KeyedResult, TenantRow
from eventlog.segmentcache import SegmentCache
from eventlog.tables import ReadTables

_KEYED = int(Flag.KEYED)
_NAMED = int(Flag.NAMED)
_MARKED = _KEYED | _NAMED


class MarksCheck:
    """One check's share of this. ``begin`` is called before anything else."""

    def __init__(
        self,
        tables: ReadTables,
        report: CheckReport,
        tenants: Mapping[int, TenantRow],
        sessions: Mapping[int, CheckedSession],
        strange: Container[int],
        miss_row: Callable[[int], None],
    ) -> None:
        self.record = CommitRecord()
        self.removals: Container[int] = ()  # sessions of which something is still to be removed
        self._tables = tables
        self._report = report
        self._tenants = tenants
        self._sessions = sessions
        self._strange = strange  # sessions whose row was reported
        self._miss_row = miss_row
        handle: Any = tables.tables["id"]
        self._runs = IdRuns(handle)
        self._runs_are_whole = True
        self._ids_found = 0
        self._misled: set[bytes] = set()  # hashes that were reported as leading elsewhere
        self._cache = SegmentCache(SEGMENT_CACHE_BYTES_MAX, Lock())

    def begin(self, record: CommitRecord) -> None:
        """Take the transaction's commit record, which was read by now."""
        self.record = record
        self._runs.database = self._tables.tables["id"]

    def check_runs(self) -> None:
        """The id runs by themselves."""
        for message in self._runs.check(self._tables.transaction):
            self._report.add("id", message)
            self._runs_are_whole = False

    def check_segment(self, where: str, session: CheckedSession, records: Sequence[Record]) -> None:
        """The sealed events of one segment."""
        named: dict[bytes, Record] = {}
        for record in records:
            if not record.flags & _MARKED:
                continue
            try:
                marks = decode_extension(record.extension, record.flags, where)
            except CorruptionError:
                session.unsure.add("keys")
                continue  # reported with the event
            if record.flags & _KEYED:
                session.keyed += 1
                self._check_key(session, record, marks)
            if record.flags & _NAMED and record.position < self.record.floor:
                tenant = self._tenants.get(session.row.tenant_number)
                if tenant is None:
                    self._report.consequences += 1
                else:
                    named[id_digest(tenant.secret, marks[Extension.ID])] = record
        if named:
            self._check_ids(session, named)

    def _check_key(self, session: CheckedSession, record: Record, marks: Mapping[int, Any]) -> None:
        number = session.origin.number
        digest = marks[Extension.KEY_DIGEST]
        where = f"key {(U64.pack(number) + digest).hex()}"
        count = marks[Extension.KEY_COUNT]
        last = record.sequence + count - 1
        wanted = KeyedResult(
            marks[Extension.CONTENT_DIGEST], record.sequence, last, record.position + count - 1
        )
        try:
            found = self._tables.find_key(number, digest)
        except CorruptionError:
            session.key_rows += 1
            return  # reported with the row
        if found is None:
            self._report.add(where, f"event {record.sequence} has this key, no row", session.origin)
            return
        session.key_rows += 1
        if found != wanted:
            self._report.add(
                where, f"is not what event {record.sequence} says of it", session.origin
            )

    def check_key_rows(self) -> None:
        """Every row of the key table, session by session as they lie there."""
        number, rows = -1, 0
        for key, value in self._tables.rows("key"):
            if len(key) != 24:
                self._report.add(f"key {key.hex()}", "key has another size")
                continue
            owner = U64.unpack(key[:8])[0]
            if owner != number:
                self._check_row_count(number, rows)
                number, rows = owner, 0
            rows += 1
            self._report.count("keys")
            try:
                KeyedResult.decode(key, value)
            except CorruptionError as error:
                session = self._sessions.get(owner)
                self._report.add_error(error, None if session is None else session.origin)
        self._check_row_count(number, rows)

    def _check_row_count(self, number: int, rows: int) -> None:
        session = self._sessions.get(number)
        if session is None:
            if rows:
                self._miss_row(number)
        elif session.row.is_gone:
            if rows and number not in self.removals:
                self._report.add(f"session {number}", "was deleted, and has keys")
        elif rows != session.key_rows:
            self._follow_keys(session)

    def _follow_keys(self, session: CheckedSession) -> None:
        prefix = U64.pack(session.origin.number)
        for key, value in self._tables.rows("key", prefix):
            try:
                result = KeyedResult.decode(key, value)
                if session.is_void(result.first):
                    continue
                event = self._event(session, result.first)
                if event is None or self._mark(event, Extension.KEY_DIGEST) != key[8:]:
                    self._report.add(
                        f"key {key.hex()}", "stands for no event with this key", session.origin
                    )
            except CorruptionError:
                self._report.consequences += 1

    def _check_ids(self, session: CheckedSession, named: Mapping[bytes, Record]) -> None:
        try:
            found = self._runs.lookup(self._tables.transaction, list(named))
        except CorruptionError:  # as found by ``check_runs``
            self._report.consequences += len(named)
            return
        for hashed, record in named.items():
            place = found.get(hashed)
            if place == (session.origin.number, record.sequence):
                self._ids_found += 1
            elif place is None and not self._runs_are_whole:
                self._report.consequences += 1
            else:
                leads = "is in no run" if place is None else f"leads to {place[0]}/{place[1]}"
                if len(self._misled) < FINDINGS_MAX:
                    self._misled.add(hashed)
                self._report.add(
                    f"id {hashed.hex()}",
                    f"the id of event {record.sequence} {leads}",
                    session.origin,
                )

    def check_id_entries(self) -> None:
        """Follow every entry of the id runs, if there are others than events were found for."""
        transaction = self._tables.transaction
        if not self._runs_are_whole:
            return
        entries = self._runs.entry_count(transaction)
        self._report.count("ids", entries)
        if entries == self._ids_found:
            return
        for hashed, place in self._runs.entries(transaction):
            if hashed not in self._misled:
                self._follow_id(hashed, place)

    def _follow_id(self, hashed: bytes, place: IdPlace) -> None:
        session = self._sessions.get(place.session_number)
        if session is None:
            if place.session_number in self._strange:
                self._report.consequences += 1
            else:
                self._report.add(f"id {hashed.hex()}", "leads to no session")
            return
        if session.is_void(place.sequence):
            return
        tenant = self._tenants.get(session.row.tenant_number)
        try:
            event = self._event(session, place.sequence)
            caller_id = None if event is None else self._mark(event, Extension.ID)
        except CorruptionError:
            self._report.consequences += 1
            return
        if tenant is None:
            self._report.consequences += 1
        elif caller_id is None or id_digest(tenant.secret, caller_id) != hashed:
            self._report.add(
                f"id {hashed.hex()}",
                f"leads to event {place.sequence}, which has another id",
                session.origin,
            )

    def _event(self, session: CheckedSession, sequence: int) -> Record | None:
        """A sealed event.

        Raises:
            CorruptionError: It is among those that were reported as lost.
        """
        if session.has_lost(sequence):
            raise CorruptionError("is lost", where=f"session {session.origin.number}/{sequence}")
        if sequence >= session.row.sealed:
            return None
        return self._tables.read_event(session.origin.number, sequence, self._cache)

    @staticmethod
    def _mark(event: Record, mark: Extension) -> Any:
        return decode_extension(event.extension, event.flags, "event").get(mark)
