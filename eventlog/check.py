"""Check: read everything, and report each place where bytes break ``FORMAT.md``.

Changes nothing. Damage in one place never hides the rest: each finding names its table and key.

Findings are judged against one read transaction. The invariants, by number:
    1. Every value's checksum matches its key and content.
    2. Positions are dense: order blocks below the floor, hot records from it to the last position.
    3. Sequences are dense within each session: segments first, then loose records.
    4. Order blocks, segments and hot records agree on which event holds which position.
    5. The chain's links, recomputed from the records, equal the stored ones.
    6. Session rows equal the fold of what is sealed: counts, head, last position, segments.
    7. Names lead to the sessions and tenants that carry them, and each session has its name.
    8. Idempotency keys in the tables point to sealed events; the id runs are whole and in order.
    9. The commit record's counts and transaction are those of the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eventlog.errors import CorruptionError
from eventlog.hotlog import PARTITION
from eventlog.idruns import IdRuns
from eventlog.keys import PAIR, U64, name_key
from eventlog.limits import BLOCK_POSITIONS
from eventlog.order import OrderBlock, block_first, block_of, next_link
from eventlog.record import (
    CONTROL,
    FLAGS_BYTE,
    KIND_BYTE,
    MESSAGE,
    RECORDED_BYTE,
    Flag,
    Origin,
    Record,
    verify_record,
)
from eventlog.rows import NO_LINK, CommitRecord, KeyedResult, SessionRow, expose
from eventlog.segment import Segment, decode_segment
from eventlog.tables import ReadTables

if TYPE_CHECKING:
    from eventlog.log import Log

FINDINGS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One place that is not as it should be."""

    where: str
    message: str


@dataclass(slots=True)
class CheckReport:
    """What a check found.

    Attributes:
        findings: Every finding, at most 10,000.
        counts: What was read: events, segments, sessions and so on.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when nothing was found."""
        return not self.findings

    def add(self, where: str, message: str) -> None:
        """Note a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(where, message))

    def add_error(self, error: CorruptionError) -> None:
        """Note an error as a finding."""
        self.add(error.where, str(error).removeprefix(f"{error.where}: "))


def check(log: Log) -> CheckReport:
    """Read the whole store in one read transaction.

    Costs the decoding of every record, and memory for one small entry per session and block.
    """
    report = CheckReport()
    with log.views.transaction() as tables:
        _Check(tables, report).run()
    return report


class _Fold:
    """What the records of one session add up to."""

    __slots__ = ("following", "head", "last_position", "last_recorded_us", "messages", "segments")

    def __init__(self) -> None:
        self.following = 0
        self.messages = 0
        self.segments = 0
        self.head = 2**64 - 1
        self.last_position = 0
        self.last_recorded_us = 0


class _Check:
    def __init__(self, tables: ReadTables, report: CheckReport) -> None:
        self._tables = tables
        self._report = report
        self._folds: dict[int, _Fold] = {}
        self._blocks: dict[int, OrderBlock] = {}
        self._sealed: dict[int, bytearray] = {}  # block -> checksum and flags of each record
        self._hot: list[bytes] = []  # the same of the hot records
        self._sealed_folds: dict[int, _Fold] = {}
        self._rows: dict[int, SessionRow] = {}
        self._record = CommitRecord()

    def run(self) -> None:
        report = self._report
        try:
            self._record = self._tables.commit_record()
            self._tables.options()
        except CorruptionError as error:
            report.add_error(error)
            return
        if self._record.transaction != self._tables.transaction.id():
            report.add("commit record", "was not written by the last transaction")
        for part in (
            self._check_tenants,
            self._check_sessions,
            self._check_blocks,
            self._check_segments,
            self._check_hot,
            self._check_links,
            self._check_rows,
            self._check_keys,
            self._check_activity,
            self._check_ids,
        ):
            try:
                part()
            except CorruptionError as error:  # the table cannot be walked further
                report.add_error(error)

    def _items(self, table: str, key_bytes: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a table; keys of another size are findings."""
        cursor = self._tables.transaction.cursor(self._tables.tables[table])
        try:
            for key, value in cursor:
                if len(key) == key_bytes:
                    yield key, value
                else:
                    self._report.add(f"{table} {key.hex()}", "key has another size")
        finally:
            cursor.close()

    def _count(self, what: str, by: int = 1) -> None:
        self._report.counts[what] = self._report.counts.get(what, 0) + by

    def _check_tenants(self) -> None:
        for number in range(1, self._record.tenants_made + 1):
            try:
                row = self._tables.load_tenant(number)
                if self._tables.find_number(row.name, "") != number:
                    self._report.add(f"tenant {number}", "its name leads elsewhere")
                self._count("tenants")
            except CorruptionError as error:
                self._report.add_error(error)

    def _check_sessions(self) -> None:
        for key, value in self._items("session", 8):
            number = U64.unpack(key)[0]
            try:
                row = SessionRow.decode(key, value)
                self._rows[number] = row
                self._count("sessions")
                if not 1 <= number <= self._record.sessions_made:
                    self._report.add(f"session {number}", "was never handed out")
                if self._tables.find_number(row.tenant, row.name) != number:
                    self._report.add(f"session {number}", "its name leads elsewhere")
            except CorruptionError as error:
                self._report.add_error(error)
        if len(self._rows) != self._record.sessions and self._report.ok:
            self._report.add(
                "commit record", f"counts {self._record.sessions} sessions, not {len(self._rows)}"
            )
        known = {name_key(row.tenant, row.name) for row in self._rows.values()}
        tenants = {name_key(row.tenant, "") for row in self._rows.values()}
        for key, value in self._items("name", 16):
            try:
                expose(key, value, f"name {key.hex()}")
                if key not in known and key not in tenants and self._report.ok:
                    self._report.add(f"name {key.hex()}", "no session or tenant carries it")
            except CorruptionError as error:
                self._report.add_error(error)

    def _check_blocks(self) -> None:
        floor = self._record.floor
        for block in range(block_of(self._record.last_position + 1)):
            try:
                found = self._tables.load_block(block)
                self._blocks[block] = found
                if found.is_cut != (block_first(block) < floor):
                    self._report.add(f"order block {block}", "is on the wrong side of the floor")
                self._count("order_blocks")
            except CorruptionError as error:
                self._report.add_error(error)
        if block_first(block_of(floor)) != floor:
            self._report.add("commit record", f"floor {floor} is inside a block")

    def _check_segments(self) -> None:
        for key, value in self._items("segment", 16):
            number, last = PAIR.unpack(key)
            where = f"segment {number}/{last}"
            try:
                segment = decode_segment(key, value)
            except CorruptionError as error:
                self._report.add_error(error)
                fold = self._folds.setdefault(number, _Fold())
                fold.following = last + 1
                fold.segments += 1
                continue
            self._count("segments")
            if number not in self._rows:
                self._report.add(where, "its session has no row")
                continue
            self._check_segment(where, number, segment)

    def _check_segment(self, where: str, number: int, segment: Segment) -> None:
        row = self._rows[number]
        origin = Origin(number, row.tenant, row.name)
        fold = self._folds.setdefault(number, _Fold())
        if segment.first_sequence != fold.following:
            self._report.add(where, f"starts at {segment.first_sequence}, not {fold.following}")
        if segment.prefix.messages_before != fold.messages:
            self._report.add(where, "counts other messages before it")
        fold.segments += 1
        before = fold.messages
        kinds = 0
        for index in range(segment.count):
            event = segment.make(index, origin, Record)
            stored = event.stored()
            position = event.position
            kinds |= 1 << min(stored[KIND_BYTE], 63)
            self._fold(fold, segment.first_sequence + index, position, stored)
            self._check_order(where, number, segment.first_sequence + index, position, stored)
        self._count("events", segment.count)
        if fold.messages - before != segment.prefix.messages or kinds != segment.prefix.kinds:
            self._report.add(where, "its prefix does not describe its records")

    def _fold(self, fold: _Fold, sequence: int, position: int, stored: bytes) -> None:
        if position <= fold.last_position:
            self._report.add(f"position {position}", "is not above the session's one before")
        kind = stored[KIND_BYTE]
        if kind < CONTROL:
            fold.head = sequence
            fold.messages += kind == MESSAGE
        fold.following = sequence + 1
        fold.last_position = position
        fold.last_recorded_us = int.from_bytes(stored[RECORDED_BYTE : RECORDED_BYTE + 8], "little")

    def _check_order(
        self, where: str, number: int, sequence: int, position: int, stored: bytes
    ) -> None:
        """A sealed record: its order block agrees, or the hot log still holds the same bytes."""
        if position >= self._record.floor:
            hot = self._tables.hot_log(self._record).get(position)
            if hot != stored:
                self._report.add(where, f"differs from the hot record at position {position}")
            return
        block = self._blocks.get(block_of(position))
        if block is None or not block.is_cut:
            return
        place = position - block_first(block.block)
        found = block.columns[place]
        if int(found[0]) != number or int(found[1]) != sequence:
            self._report.add(where, f"order block {block.block} says another event is there")
            return
        checksums = self._sealed.setdefault(block.block, bytearray(BLOCK_POSITIONS * 9))
        checksums[place * 9 : place * 9 + 9] = stored[:8] + stored[FLAGS_BYTE : FLAGS_BYTE + 1]

    def _check_hot(self) -> None:
        record = self._record
        expected = record.floor
        rows = self._rows
        log = self._tables.hot_log(record)
        for key, value in log.read(PARTITION, record.floor, 2**62):
            position = U64.unpack(key)[0]
            while expected < position:
                self._report.add(f"log {expected}", "record is missing")
                self._hot.append(bytes(9))
                expected += 1
            expected += 1
            self._hot.append(value[:8] + value[FLAGS_BYTE : FLAGS_BYTE + 1])
            try:
                verify_record(key, value)
            except CorruptionError as error:
                self._report.add_error(error)
                continue
            number = int.from_bytes(value[8:16], "little")
            sequence = int.from_bytes(value[16:24], "little")
            self._count("hot_records")
            row = rows.get(number)
            if row is None:
                self._report.add(f"log {position}", f"session {number} has no row")
                continue
            if sequence < row.sealed:
                continue  # its segment was compared with it
            self._count("events")
            fold = self._folds.setdefault(number, _Fold())
            if sequence != fold.following and self._report.ok:
                self._report.add(f"log {position}", f"sequence is {sequence}, not {fold.following}")
            if sequence == row.sealed:
                self._sealed_folds[number] = copy(fold)
            self._fold(fold, sequence, position, value)
        if expected != record.last_position + 1:
            self._report.add("log", f"ends at {expected - 1}, not {record.last_position}")

    def _check_links(self) -> None:
        """Recompute the chain, block by block, from the flags and checksums of the records."""
        link = NO_LINK
        record = self._record
        for block in range(block_of(record.last_position) + 1 if record.last_position else 0):
            first = block_first(block)
            if first < record.floor:
                parts = self._sealed.get(block, b"")
                items = [bytes(parts[place : place + 9]) for place in range(0, len(parts), 9)]
            else:
                start = first - record.floor
                items = self._hot[start : start + BLOCK_POSITIONS]
            if items and all(any(item) for item in items):
                run_first = first
                run: list[bytes] = []
                for place, item in enumerate(items):
                    if item[8] & Flag.FIRST_OF_RUN and run:
                        link = next_link(link, run_first, b"".join(run))
                        run_first, run = first + place, []
                    run.append(bytes(item[:8]))
                link = next_link(link, run_first, b"".join(run))
                found = self._blocks.get(block)
                if found is not None and found.link != link:
                    self._report.add(f"order block {block}", "the chain does not lead to its link")
            stored = self._blocks.get(block)
            if stored is not None:
                link = stored.link
        if record.link != link and self._report.ok:
            self._report.add("commit record", "the chain does not lead to its link")

    def _check_rows(self) -> None:
        for number, row in self._rows.items():
            fold = self._sealed_folds.get(number) or self._folds.get(number) or _Fold()
            where = f"session {number}"
            if row.sealed != fold.following:
                self._report.add(
                    where, f"row says {row.sealed} sealed events, not {fold.following}"
                )
                continue
            found = (row.messages, row.segments, row.head, row.last_position)
            wanted = (fold.messages, fold.segments, fold.head, fold.last_position)
            if row.sealed and found != wanted:
                self._report.add(where, f"row says {found}, its events say {wanted}")

    def _check_keys(self) -> None:
        for key, value in self._items("key", 24):
            where = f"key {key.hex()}"
            try:
                result = KeyedResult.decode(key, value)
                number = U64.unpack(key[:8])[0]
                row = self._rows.get(number)
                if row is None or result.first >= row.sealed:
                    self._report.add(where, "stands for no sealed event")
                self._count("keys")
            except CorruptionError as error:
                self._report.add_error(error)

    def _check_activity(self) -> None:
        current: set[int] = set()
        for key, value in self._items("activity", 16):
            where = f"activity {key.hex()}"
            try:
                number = U64.unpack(expose(key, value, where))[0]
            except CorruptionError as error:
                self._report.add_error(error)
                continue
            row = self._rows.get(number)
            if row is not None and 2**64 - 1 - PAIR.unpack(key)[1] == row.last_position:
                current.add(number)
        for number, row in self._rows.items():
            if row.sealed and number not in current:
                self._report.add(f"session {number}", "has no activity row")

    def _check_ids(self) -> None:
        handle: Any = self._tables.tables["id"]
        for message in IdRuns(handle).check(self._tables.transaction):
            self._report.add("id", message)
