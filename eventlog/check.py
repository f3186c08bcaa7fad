"""Check: read everything, and report each place where bytes break ``FORMAT.md``.

Changes nothing. Damage in one place never hides the rest: each finding names its table and key, and
the session where there is one. What is wrong only because of something that was found is counted,
not listed. Findings are judged against one commit: an error of LMDB, of which a transaction dies,
is followed by another transaction, and ends the check if others wrote meanwhile. LMDB ends the
process (SIGABRT) on some damaged pages; no caller can catch that. The invariants, by number:

    1. Every value's checksum matches its key and content, and what it covers has the right shape.
    2. Positions are dense: order blocks below the floor, hot records from it to the last position.
    3. Sequences are dense within each session: segments first, then loose records.
    4. Order blocks, segments and hot records agree on which event holds which position.
    5. The chain's links, recomputed from the records, equal the stored ones.
    6. Session rows equal the fold of their events: counts, head, positions, times, opening facts,
       roll-ups; and so do the rows that inline projections made of them.
    7. Names lead to the sessions and tenants that carry them, and each session has its name.
    8. Each sealed event with an idempotency key has its row and each row its event, and they say
       the same; each event with a caller's id that was cut is found by it, and no entry of the id
       runs leads anywhere else.
    9. Of what was removed nothing is left but what ``removal`` says is still to be done, and of
       what was redacted nothing that is content.
   10. The commit record's counts and transaction are those of the store.
   11. Blobs that events name are there and count just these references; contents have their
       addresses; every chunk belongs to a blob, or to what is pending (``blobcheck``).
   12. A segment names no dictionary but a whole one of its session's tenant.
   13. Facts and usage are of the shapes that their readers take for granted, sealed or loose.

Memory: a row without its opening facts for each session, a secret for each tenant, 25 bytes for
each event below the floor, to put segments, which lie by session, in the order of positions, and a
checksum for each hot record. Dictionaries are loaded, 255 at most.
For each blob that events name, its key and a count; for each blob, a number.
Keys and ids take none: both sides are looked up one by one, and counted (``checkmarks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lmdb import Error as LmdbError

from eventlog.blobcheck import BlobCheck
from eventlog.body import decode_body, require_plain
from eventlog.checked import CheckedSession, opening_checksum
from eventlog.checkmarks import MarksCheck
from eventlog.decoded import Segment
from eventlog.dictionary import Dictionary, DictionaryRow
from eventlog.errors import CorruptionError
from eventlog.findings import CheckReport, Finding
from eventlog.hotlog import hot_names, hot_table
from eventlog.inline import InlineProjection
from eventlog.keys import PAIR, U64, U64_MAX, is_hidden, name_key
from eventlog.limits import BLOCK_POSITIONS
from eventlog.order import OrderBlock, block_first, block_of, decode_block, next_link
from eventlog.record import (
    FLAGS_BYTE,
    Extension,
    Flag,
    Origin,
    Record,
    can_be_redacted,
    decode_extension,
    decode_record,
    redacted_record,
    verify_record,
)
from eventlog.removal import RemovalRow
from eventlog.rows import (
    ERASED,
    NO_LINK,
    CommitRecord,
    SessionRow,
    TenantRow,
    decode_number,
)
from eventlog.segment import PREFIX_BYTES, SegmentPrefix, decode_segment
from eventlog.statecheck import StateCheck
from eventlog.tables import ReadTables

if TYPE_CHECKING:
    from eventlog.log import Log

__all__ = ["CheckReport", "Finding", "check"]

_FIRST_OF_RUN = int(Flag.FIRST_OF_RUN)
_VOID = int(Flag.VOID)
_REDACTED = int(Flag.REDACTED)
_OTHER_BYTES = _VOID | _REDACTED  # than those that its run of the chain was made of
VOID_DIGEST = bytes(8) + bytes([_VOID])  # for an event whose bytes are not those of its run
_HAS_BLOBS = int(Flag.HAS_BLOBS)
_DIGEST_BYTES = 8 + 1  # of a record in the chain: its checksum, and its flags' first byte


def check(log: Log) -> CheckReport:
    """Read the whole store in one read transaction, or more where LMDB raises.

    Costs the decoding of every record; the module says what it takes of memory.
    """
    report = CheckReport()
    with ExitStack() as transactions:

        def begin() -> ReadTables:
            transactions.close()
            return transactions.enter_context(log.views.transaction())

        _Check(begin(), report, log.projections).run(begin)
    return report


class _Check:
    def __init__(
        self, tables: ReadTables, report: CheckReport, projections: Sequence[InlineProjection]
    ) -> None:
        self._tables = tables
        self._report = report
        self._record = CommitRecord()
        self._tenants: dict[int, TenantRow] = {}
        self._sessions: dict[int, CheckedSession] = {}
        self._strange: set[int] = set()  # sessions whose row is damaged or missing, as reported
        self._strange_tenants: set[int] = set()
        self._rows = 0  # of sessions, good or bad
        self._gone = 0  # of those that were deleted
        self._tenant_rows = 0
        self._dictionaries: dict[int, Dictionary] = {}
        self._strange_dictionaries: set[int] = set()  # damaged or missing, as reported
        self._blocks: dict[int, OrderBlock] = {}
        self._damaged_blocks: set[int] = set()
        self._sealed: dict[int, bytearray] = {}  # by block: checksum and flags of each record
        self._hot: list[bytes | None] = []  # the same of the hot records, None where unreadable
        self._removals: dict[int, RemovalRow] = {}
        self._hot_lost = 0  # unreadable hot records whose session is not known
        self._blobs_check = BlobCheck(tables, report, self._tenants, self._strange_tenants)
        self._marks = MarksCheck(
            tables, report, self._tenants, self._sessions, self._strange, self._miss_row
        )
        self._state = StateCheck(
            tables, report, projections, self._sessions, self._strange, self._removals
        )

    def run(self, begin: Callable[[], ReadTables]) -> None:
        """Check part by part; ``begin`` ends the transaction and begins another."""
        report = self._report
        try:
            self._record = self._tables.commit_record()
            self._marks.begin(self._record)
            self._blobs_check.record = self._record
        except CorruptionError as error:
            report.add_error(error)
            return
        judged = self._tables.transaction.id()
        if self._record.transaction != judged:
            report.add("commit record", "was not written by the last transaction")
        for part in (
            self._check_options,
            self._check_tenants,
            self._check_sessions,
            self._check_removals,
            self._check_dictionaries,
            self._marks.check_runs,
            self._check_blocks,
            self._find_bases,
            self._check_segments,
            self._state.check_rows,
            self._check_rows,
            self._marks.check_key_rows,
            self._marks.check_id_entries,
            self._check_hot,
            self._check_blobs,
            self._check_links,
            self._check_names,
            self._check_activity,
            self._check_counts,
        ):
            if self._tables.transaction.id() != judged:
                self._follows()  # others wrote meanwhile: what was read is of another commit
                continue
            try:
                part()
            except CorruptionError as error:  # the table cannot be walked further
                report.add_error(error)
            except LmdbError as error:  # whatever it says comes from the pages that it met
                table = part.__name__.removeprefix("_").removeprefix("check_")
                report.add_error(CorruptionError(str(error), where=table))
                report.is_broken = True
                self._tables.transaction = begin().transaction

    def _items(self, table: str, key_bytes: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a table; keys of another size are findings."""
        for key, value in self._tables.rows(table):
            if len(key) == key_bytes:
                yield key, value
            else:
                self._report.add(f"{table} {key.hex()}", "key has another size")

    def _follows(self, count: int = 1) -> None:
        """Something is wrong because of what was reported."""
        self._report.consequences += count

    # Rows by number and name

    def _check_options(self) -> None:
        decode_body(self._tables.options(), where="options")

    def _check_tenants(self) -> None:
        for key, value in self._items("tenant", 8):
            number = U64.unpack(key)[0]
            self._tenant_rows += 1
            try:
                self._tenants[number] = TenantRow.decode(key, value)
                self._report.count("tenants")
                if not 1 <= number <= self._record.tenants_made:
                    self._report.add(f"tenant {number}", "was never handed out")
            except CorruptionError as error:
                self._report.add_error(error)
                self._strange_tenants.add(number)

    def _check_sessions(self) -> None:
        for key, value in self._items("session", 8):
            number = U64.unpack(key)[0]
            self._rows += 1
            try:
                row = SessionRow.decode(key, value)
            except CorruptionError as error:
                self._report.add_error(error)
                self._strange.add(number)
                continue
            session = self._sessions[number] = CheckedSession(number, row)
            self._gone += row.is_gone
            kind = "hidden_sessions" if is_hidden(row.name) else "sessions"
            self._report.count("deleted_sessions" if row.is_gone else kind)
            if not 1 <= number <= self._record.sessions_made:
                self._report.add(f"session {number}", "was never handed out", session.origin)
            tenant = self._tenants.get(row.tenant_number)
            if tenant is not None and tenant.name != row.tenant and not row.is_gone:
                self._report.add(f"session {number}", "names another tenant", session.origin)
            elif tenant is None and row.tenant_number in self._strange_tenants:
                self._follows()
            elif tenant is None:
                self._report.add(f"tenant {row.tenant_number}", "has no row", session.origin)
                self._strange_tenants.add(row.tenant_number)

    def _check_removals(self) -> None:
        """What is still to be removed belongs to a session that says so."""
        if not self._tables.has("removal"):
            return
        self._marks.removals = self._removals
        for key, value in self._items("removal", 8):
            number = U64.unpack(key)[0]
            try:
                row = self._removals[number] = RemovalRow.decode(key, value)
            except CorruptionError as error:
                self._report.add_error(error)
                continue
            session = self._sessions.get(number)
            if session is None and number in self._strange:
                self._follows()
            elif session is None or row.floor != session.row.first:
                self._report.add(f"removal {number}", "is not what the session's row says")

    def _check_counts(self) -> None:
        """The commit record counts the rows that are there and those that were missed."""
        record = self._record
        for what, said, rows, strange in (
            ("sessions", record.sessions, self._rows - self._gone, self._strange),
            ("tenants", record.tenants_made, self._tenant_rows, self._strange_tenants),
        ):
            table = what.removesuffix("s")
            missing = [each for each in strange if not self._tables.has_row(table, U64.pack(each))]
            if said != rows and said == rows + len(missing):
                self._follows()
            elif said != rows:
                self._report.add("commit record", f"counts {said} {what}, not {rows}")

    def _check_names(self) -> None:
        """Both ways: from those who have a name to its row, and from each row to one of them."""
        damaged: set[bytes] = set()
        for number, tenant in self._tenants.items():
            self._check_name(f"tenant {number}", number, tenant.name, None, damaged)
        for number, session in self._sessions.items():
            if session.row.is_gone:
                continue
            self._check_name(
                f"session {number}", number, session.row.tenant, session.origin, damaged
            )
        for key, value in self._items("name", 16):
            if key in damaged:
                continue
            try:
                number = decode_number(key, value, f"name {key.hex()}")
            except CorruptionError as error:
                self._report.add_error(error)
                continue
            found = self._sessions.get(number)
            whose = self._tenants.get(number)
            if (found is not None and name_key(found.row.tenant, found.row.name) == key) or (
                whose is not None and name_key(whose.name, "") == key
            ):
                continue
            if number in self._strange or number in self._strange_tenants:
                self._follows()
            else:
                self._report.add(f"name {key.hex()}", "no session or tenant carries it")

    def _check_name(
        self, where: str, number: int, tenant: str, origin: Origin | None, damaged: set[bytes]
    ) -> None:
        key = name_key(tenant, "" if origin is None else origin.name)
        value = self._tables.transaction.get(key, db=self._tables.tables["name"])
        try:
            if value is None:
                self._report.add(where, "its name is missing", origin)
            elif decode_number(key, value, f"name {key.hex()}") != number:
                self._report.add(where, "its name leads elsewhere", origin)
                damaged.add(key)
        except CorruptionError as error:
            self._report.add_error(error, origin)
            damaged.add(key)

    def _check_dictionaries(self) -> None:
        if not self._tables.has("dict"):
            return
        for key, value in self._items("dict", 1):
            number = key[0]
            where = f"dictionary {number}"
            try:
                found = Dictionary(number, DictionaryRow.decode(key, value))
            except CorruptionError as error:
                self._report.add_error(error)
                self._strange_dictionaries.add(number)
                continue
            self._dictionaries[number] = found
            self._report.count("dictionaries")
            if not 1 <= number <= self._record.dictionaries_made:
                self._report.add(where, "was never handed out")
            tenant = found.row.tenant_number
            if tenant in self._strange_tenants:
                self._follows()
            elif tenant not in self._tenants:
                self._report.add(where, f"is of tenant {tenant}, which has no row")

    def _find_dictionary(self, number: int) -> Dictionary:
        found = self._dictionaries.get(number)
        if found is None:
            raise CorruptionError("is missing or damaged", where=f"dictionary {number}")
        return found

    # Events

    def _check_blocks(self) -> None:
        floor = self._record.floor
        if block_first(block_of(floor)) != floor:
            self._report.add("commit record", f"floor {floor} is inside a block")
        stop = block_of(self._record.last_position + 1)
        expected = 0
        for key, value in self._items("order", 8):
            block = U64.unpack(key)[0]
            if block >= stop:
                self._report.add(f"order block {block}", "is beyond the last position")
                break
            self._miss_blocks(expected, block)
            expected = block + 1
            try:
                found = decode_block(key, value)
            except CorruptionError as error:
                self._report.add_error(error)
                self._damaged_blocks.add(block)
                continue
            self._blocks[block] = found
            self._report.count("order_blocks")
            if found.is_cut != (block_first(block) < floor):
                self._report.add(f"order block {block}", "is on the wrong side of the floor")
        self._miss_blocks(expected, stop)

    def _miss_blocks(self, first: int, stop: int) -> None:
        if first < stop:
            which = f"{first}" if stop == first + 1 else f"{first} to {stop - 1}"
            self._report.add(f"order block {which}", "is missing")

    def _find_bases(self) -> None:
        self._state.find_bases(self._record)

    def _check_segments(self) -> None:
        for key, value in self._items("segment", 16):
            number, last = PAIR.unpack(key)
            session = self._sessions.get(number)
            try:
                segment = decode_segment(key, value, self._find_dictionary)
            except CorruptionError as error:
                self._miss_segment(error, key, value, session)
                if session is not None and last >= session.following:
                    # of a void segment nobody asks what was in it
                    session.lose(session.following, last)
                    session.following = last + 1
                    session.segments += 1
                continue
            self._report.count("segments")
            if session is not None and session.is_void(last):
                if number not in self._removals:
                    self._report.add(f"segment {number}/{last}", "was removed", session.origin)
            elif session is None:
                self._miss_row(number)
            else:
                self._check_segment(f"segment {number}/{last}", session, segment)

    def _miss_segment(
        self, error: CorruptionError, key: bytes, value: bytes, session: CheckedSession | None
    ) -> None:
        """A segment is damaged, or its dictionary, which is one finding for all segments."""
        number = SegmentPrefix.unpack(key, value).dictionary if len(value) >= PREFIX_BYTES else 0
        if number in self._strange_dictionaries:
            self._follows()
            return
        self._report.add_error(error, None if session is None else session.origin)
        if number and number not in self._dictionaries:
            self._strange_dictionaries.add(number)

    def _miss_row(self, number: int) -> None:
        """Events of a session without a row."""
        if number in self._strange:
            self._follows()
        else:
            self._report.add(f"session {number}", "has events and no row")
            self._strange.add(number)

    def _check_segment(self, where: str, session: CheckedSession, segment: Segment) -> None:
        prefix = segment.prefix
        first = segment.first_sequence
        origin = session.origin
        dictionary = self._dictionaries.get(prefix.dictionary)
        if dictionary is not None and dictionary.row.tenant_number != session.row.tenant_number:
            self._report.add(where, f"dictionary {dictionary.number} is another tenant's", origin)
        if first > session.following:
            self._report.add(
                where, f"the segments of {session.following} to {first - 1} are missing", origin
            )
            session.lose(session.following, first - 1)
            session.unsure.add("segments")
        elif first < session.following:
            self._report.add(where, f"starts at {first}, not {session.following}", origin)
        if "messages" in session.unsure:
            session.messages = prefix.messages_before  # nothing else tells
            session.unsure.discard("messages")
        elif prefix.messages_before != session.messages:
            self._report.add(where, "counts other messages before it", origin)
        session.segments += 1
        before = session.messages
        kinds = 0
        records = [segment.make(index, origin, Record) for index in range(segment.count)]
        for record in records:
            kinds |= 1 << min(record.kind_code, 63)
            self._take(session, record)
            self._check_order(where, session, record)
        self._report.count("events", segment.count)
        if (
            prefix.messages,
            prefix.kinds,
            prefix.first_position,
            prefix.last_position,
            prefix.first_recorded_us,
            prefix.last_recorded_us,
        ) != (
            session.messages - before,
            kinds,
            records[0].position,
            records[-1].position,
            records[0].recorded_us,
            records[-1].recorded_us,
        ):
            self._report.add(where, "its prefix does not describe its records", origin)
        self._marks.check_segment(where, session, records)
        self._state.check_segment(session, records)

    def _take(self, session: CheckedSession, record: Record) -> None:
        """Look at one whole event, sealed or loose, and add it to its session."""
        where = f"position {record.position}"
        if record.position <= session.last_position:
            self._report.add(where, "is not above the session's one before", session.origin)
        try:
            self._check_content(where, session, record)
        except CorruptionError as error:
            self._report.add_error(error, session.origin)
        session.take(record)

    def _check_content(self, where: str, session: CheckedSession, record: Record) -> None:
        """Extension and body decode; the first event says what the row says of it."""
        marks = decode_extension(record.extension, record.flags, where)
        if record.flags & _HAS_BLOBS:
            self._blobs_check.take(session.row.tenant_number, marks, session.origin)
        body = decode_body(record.payload, marks.get(Extension.BODY_FIXES), where=where)
        require_plain(body, where=where)
        if Extension.METADATA in marks:
            fixes = marks.get(Extension.METADATA_FIXES)
            require_plain(decode_body(marks[Extension.METADATA], fixes, where=where), where=where)
        if record.flags & _REDACTED:
            self._check_redacted(where, session, record)
        opening = marks.get(Extension.OPENING)
        if record.sequence:
            if opening is not None:
                self._report.add(where, "opening facts after the first event", session.origin)
            return
        row = session.row
        self._compare(
            session,
            ("created_position", row.created_position, record.position),
            ("created_us", row.created_us, record.recorded_us),
            ("opening facts", session.opening.hex(), opening_checksum(opening).hex()),
        )

    def _check_redacted(self, where: str, session: CheckedSession, record: Record) -> None:
        """Nothing is left of what a redaction removes, and its kind is one that can lose it."""
        self._report.count("redacted")
        stored = record.stored()
        if not can_be_redacted(record.kind_code):
            self._report.add(where, "was redacted, and its kind cannot be", session.origin)
        elif redacted_record(U64.pack(record.position), stored) != stored:
            self._report.add(where, "was redacted, and has content", session.origin)

    def _compare(self, session: CheckedSession, *facts: tuple[str, object, object]) -> None:
        """One finding for all that the row says otherwise than the events do."""
        wrong = [
            f"{name} {said}, not {found}"
            for name, said, found in facts
            if said != found and name not in session.unsure
        ]
        if wrong:
            number = session.origin.number
            self._report.add(f"session {number}", f"row says {', '.join(wrong)}", session.origin)

    def _check_order(self, where: str, session: CheckedSession, record: Record) -> None:
        """A sealed record: its order block agrees, or the hot log still holds the same bytes."""
        position = record.position
        stored = record.stored()
        if position > self._record.last_position:
            self._report.add(where, f"has position {position}, past the last", session.origin)
            return
        if position >= self._record.floor:
            hot = self._tables.hot_log(self._record).get(position)
            if hot != stored:
                self._check_hot_differs(where, session, position, hot)
            return
        block = block_of(position)
        place = position - block_first(block)
        digests = self._sealed.setdefault(block, bytearray(BLOCK_POSITIONS * _DIGEST_BYTES))
        start = place * _DIGEST_BYTES
        if any(digests[start : start + _DIGEST_BYTES]):
            self._report.add(where, f"a second event at position {position}", session.origin)
            return
        is_redacted = bool(record.flags & _REDACTED)
        digests[start : start + _DIGEST_BYTES] = VOID_DIGEST if is_redacted else _digest(stored)
        found = self._blocks.get(block)
        if found is None or not found.is_cut:
            self._follows()
        elif found.columns[place].tolist() != [session.origin.number, record.sequence]:
            self._report.add(
                f"order block {block}",
                f"says that another event is at position {position}",
                session.origin,
            )

    def _check_hot_differs(
        self, where: str, session: CheckedSession, position: int, hot: bytes | None
    ) -> None:
        try:
            if hot is not None:
                verify_record(U64.pack(position), hot)
                self._report.add(
                    where, f"differs from the hot record at position {position}", session.origin
                )
                return
        except CorruptionError:
            pass
        self._follows()  # of what is found in the hot log

    def _check_rows(self) -> None:
        """Rows say how far their sessions are sealed, and what those events add up to."""
        for session in self._sessions.values():
            row = session.row
            if row.sealed > session.following:
                self._report.add(
                    f"session {session.origin.number}",
                    f"the segments of {session.following} to {row.sealed - 1} are missing",
                    session.origin,
                )
                session.lose(session.following, row.sealed - 1)
                session.unsure.add("segments")
                session.following = row.sealed
            self._compare(
                session,
                ("sealed", row.sealed, session.following),
                ("messages", row.messages, session.messages),
                ("segments", row.segments, session.segments),
                ("head", row.head, session.head),
                ("branches", row.branches, session.branches),
                ("head_branch", row.head_branch, session.head_branch),
                ("last_position", row.last_position, session.last_position),
                ("last_recorded_us", row.last_recorded_us, session.last_recorded_us),
                ("keys", row.keys, session.keyed),
                ("trimmed", row.trimmed, session.trimmed),
                ("since_roll_up", row.since_roll_up, self._since_roll_up(session)),
            )
            session.following = row.sealed

    def _since_roll_up(self, session: CheckedSession) -> int:
        """What the row has to say; where no roll-up is recorded, events of version 1 count not."""
        if self._record.version == 1:
            return 0
        if session.rolls_up:
            return session.since_roll_up
        return min(session.row.since_roll_up, session.since_roll_up)

    def _check_hot(self) -> None:
        record = self._record
        expected = record.floor
        for name in hot_names(record.floor):
            for key, value in self._items(name, 8):
                position = U64.unpack(key)[0]
                if not expected <= position <= record.last_position or hot_table(position) != name:
                    self._report.add(f"{name} {position}", "is not of this table")
                    continue
                self._miss_hot(expected, position)
                expected = position + 1
                self._check_hot_record(key, position, value)
        self._miss_hot(expected, record.last_position + 1)
        for session in self._sessions.values():
            if not session.following and self._hot_lost:
                self._follows()
            elif not session.following:
                self._report.add(f"session {session.origin.number}", "has no event", session.origin)

    def _miss_hot(self, first: int, stop: int) -> None:
        """Positions that are not there: one finding for a stretch."""
        if first >= stop:
            return
        which = f"{first}" if stop == first + 1 else f"{first} to {stop - 1}"
        self._report.add(f"log {which}", "record is missing")
        self._hot += [None] * (stop - first)
        self._hot_lost += stop - first

    def _check_hot_record(self, key: bytes, position: int, value: bytes) -> None:
        try:
            verify_record(key, value)
            number = int.from_bytes(value[8:16], "little")
            session = self._sessions.get(number)
            origin = Origin(number, "", "") if session is None else session.origin
            event = decode_record(origin, position, value, Record)
        except CorruptionError as error:
            self._report.add_error(error)
            self._hot.append(None)
            self._hot_lost += 1
            return
        self._hot.append(VOID_DIGEST if event.flags & _OTHER_BYTES else _digest(value))
        self._report.count("hot_records")
        if session is None:
            self._miss_row(number)
            return
        if session.is_void(event.sequence):
            self._check_void(position, session, event)
            return
        if event.sequence < session.row.sealed:
            return  # its segment was compared with it
        self._report.count("events")
        missing = event.sequence - session.following
        if 0 < missing <= self._hot_lost:
            self._hot_lost -= missing
            self._follows(missing)
        elif missing:
            self._report.add(
                f"log {position}",
                f"sequence is {event.sequence}, not {session.following}",
                session.origin,
            )
        self._take(session, event)
        self._state.check_loose(session, event)

    def _check_void(self, position: int, session: CheckedSession, event: Record) -> None:
        """A removed event that is still hot: of an erased session it has no content."""
        row = session.row
        number = session.origin.number
        if event.flags & _VOID:
            self._report.count("voids")
            if event.extension or event.payload:
                self._report.add(f"log {position}", "is void, and has content")
        elif row.flags & ERASED and number not in self._removals:
            self._report.add(f"log {position}", "was erased, and has content")

    def _check_blobs(self) -> None:
        is_lost = any([session.lost for session in self._sessions.values()])
        self._blobs_check.check_blobs(
            are_events_whole=not (is_lost or self._strange or None in self._hot or self._removals)
        )

    # The chain and the order

    def _check_links(self) -> None:
        """Recompute the chain, block by block, from the flags and checksums of the records."""
        record = self._record
        first_hot = block_of(record.floor)
        last = block_of(record.last_position) if record.last_position else -1
        hot = range(first_hot, last + 1)
        links = [NO_LINK]  # what the chain may be at the end of the block before
        ends_in_voids = False
        expected = 0
        for block in sorted({*self._blocks, *self._sealed, *self._damaged_blocks, *hot}):
            if block != expected:
                links = []
            expected = block + 1
            if block < first_hot:
                digests = self._sealed_digests(block)
            else:
                start = (block - first_hot) * BLOCK_POSITIONS
                digests = self._hot[start : start + BLOCK_POSITIONS]
            has_voids = VOID_DIGEST in digests
            whole = [digest for digest in digests if digest is not None]
            reached: list[bytes] = []
            if has_voids:
                pass  # their checksums are gone, and only both ends are left to join
            elif whole and len(whole) == len(digests):
                reached = [_run_links(link, block_first(block), whole) for link in links]
            else:
                self._follows()
            stored = self._blocks.get(block)
            if stored is None:
                links = reached
                ends_in_voids = has_voids and not reached
                continue
            ends_in_voids = False
            links = [stored.link]
            if reached and stored.link not in reached:
                self._report.add(f"order block {block}", "the chain does not lead to its link")
                links.append(reached[0])  # which of the two is right, the next block tells
        if expected <= last:
            links = []
        if not links:
            self._follows(0 if ends_in_voids else 1)
        elif record.link not in links:
            self._report.add("commit record", "the chain does not lead to its link")

    def _sealed_digests(self, block: int) -> list[bytes | None]:
        """Digests of a block's records; a record that is in no segment is reported."""
        parts = self._sealed.get(block) or bytes(BLOCK_POSITIONS * _DIGEST_BYTES)
        stored = self._blocks.get(block)
        digests: list[bytes | None] = []
        for start in range(0, len(parts), _DIGEST_BYTES):
            digest = bytes(parts[start : start + _DIGEST_BYTES])
            if any(digest):
                digests.append(digest)
                continue
            digests.append(None)
            place = start // _DIGEST_BYTES
            if stored is None or not stored.is_cut:
                self._follows()
                continue
            number, sequence = stored.columns[place].tolist()
            session = self._sessions.get(number)
            if session is not None and session.is_void(sequence):
                digests[-1] = VOID_DIGEST
            elif number in self._strange or (session is not None and session.has_lost(sequence)):
                self._follows()
            else:
                self._report.add(
                    f"position {block_first(block) + place}",
                    f"session {number}, sequence {sequence} is in no segment",
                    None if session is None else session.origin,
                )
        return digests

    def _check_activity(self) -> None:
        current: set[int] = set()
        damaged: set[int] = set()
        for key, value in self._items("activity", 16):
            where = f"activity {key.hex()}"
            tenant_number, inverted = PAIR.unpack(key)
            position = U64_MAX - inverted
            try:
                number = decode_number(key, value, where)
            except CorruptionError as error:
                self._report.add_error(error)
                damaged.add(position)
                continue
            session = self._sessions.get(number)
            if session is None and number in self._strange:
                self._follows()
            elif session is None or session.row.tenant_number != tenant_number:
                self._report.add(where, f"leads to {number}, no session of that tenant")
            elif position == session.row.last_position:
                current.add(number)
        for number, session in self._sessions.items():
            row = session.row
            if not row.last_position or number in current or row.is_gone:
                continue
            if row.last_position in damaged:
                self._follows()
            else:
                self._report.add(f"session {number}", "has no activity row", session.origin)


def _digest(stored: bytes) -> bytes:
    """What the chain needs of a stored record."""
    return stored[:8] + stored[FLAGS_BYTE : FLAGS_BYTE + 1]


def _run_links(link: bytes, first: int, digests: list[bytes]) -> bytes:
    """The link after a block's records: one step for each run."""
    run_first = first
    run: list[bytes] = []
    for position, digest in enumerate(digests, first):
        if digest[8] & _FIRST_OF_RUN and run:
            link = next_link(link, run_first, b"".join(run))
            run_first, run = position, []
        run.append(digest[:8])
    return next_link(link, run_first, b"".join(run))
