"""Rebuild: derived tables are made again from the log, while the old ones serve.

One table at a time is written anew into the spare database, session by session in slices; whoever
writes to the table meanwhile writes to both. When all sessions are through, the two databases
change roles in one commit, and the old one is emptied.

Invariants:
    1. The table that serves is not touched until its next generation is complete.
    2. How far a rebuild came is in the store: one that was killed goes on from there, also in
       another process, and whoever writes meanwhile knows of it. What is under way is ended before
       another table is begun, whoever began it, so any number of rebuilds come to their ends.
    3. A step does about ``STEP_BYTES_MAX`` of work: it ends with the segment that takes it there,
       or with the rows that a purged session's base stands for.
    4. Nothing of the old table is needed, but for keys of purged events, which no record tells any
       more, and for what inline projections made of these as long as their base is loose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from eventlog import roles
from eventlog.errors import CorruptionError
from eventlog.failpoints import fp
from eventlog.gathering import ID_ENTRY, KEY_ROW, Gathered, Parts, Reader, stored_segments
from eventlog.inline import InlineProjection, InlineRows, base_of, state_key
from eventlog.keys import PAIR, U64, U64_MAX, name_key
from eventlog.limits import COMMIT_MERGE_BYTES_MAX
from eventlog.record import BASE, Origin, Record
from eventlog.recount import ROW_BYTES, STEP_BYTES_MAX, OnProgress
from eventlog.roles import SPARE
from eventlog.rows import KeyedResult, SessionRow, expose, protect
from eventlog.segment import SegmentPrefix

if TYPE_CHECKING:
    from eventlog.rows import CommitRecord
    from eventlog.segmentcache import SegmentCache
    from eventlog.tables import ReadTables, WriteTables

REBUILD_KEY: Final = b"rebuild"
STEP_SESSIONS_MAX: Final = 2_048
PUT_SLICE: Final = 256  # rows between two looks at the clock
KEY_ROW_BYTES: Final = U64.size + 16  # of a key in ``key``
_PROGRESS: Final = Struct("<QQQ")
_CONTROLS_BIT: Final = 1 << 63  # of a segment's kinds; all control kinds share it

Rows = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild came.

    Attributes:
        session: The session that is next; 0 while names of tenants are written.
        sequence: Its sequence that is next; of tenants, their number.
        floor: Callers' ids of events at positions below it are in runs.
        key: The last of the session's keys of purged events that was copied; empty before.
    """

    session: int
    sequence: int
    floor: int
    key: bytes = b""

    def encode(self) -> bytes:
        """The row's value."""
        numbers = _PROGRESS.pack(self.session, self.sequence, self.floor)
        return protect(REBUILD_KEY, numbers + self.key)

    @classmethod
    def decode(cls, value: bytes) -> Progress:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not such a row.
        """
        rest = expose(REBUILD_KEY, value, "rebuild")
        if len(rest) not in (_PROGRESS.size, _PROGRESS.size + KEY_ROW_BYTES):
            raise CorruptionError("has another size", where="rebuild")
        session, sequence, floor = _PROGRESS.unpack_from(rest)
        return cls(session, sequence, floor, rest[_PROGRESS.size :])


class Rebuild:
    """The task that makes one table anew; first the one that is under way, if another one is.

    Attributes:
        role: The table.
        events: Events that were read for it.
        sessions: Sessions that are through.
    """

    def __init__(
        self,
        role: str,
        cache: SegmentCache,
        pause: Callable[[], None],
        progress: OnProgress | None = None,
        *,
        projections: Sequence[InlineProjection],
        gathered: Gathered | None = None,
    ) -> None:
        self.role = role
        self.events = 0
        self.sessions = 0
        self.done = False
        self._cache = cache
        self._pause = pause
        self._progress = progress
        self._projections = projections
        self._gathered = gathered or Gathered()
        self._reader = Reader(projections, pause)
        self._inline = InlineRows(projections, pause)
        self._old: int | None = None  # which database served when it had its first own turn

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``tasks.Task``."""
        under_way = roles.rebuilding(record.roles)
        stored = tables.transaction.get(REBUILD_KEY, db=tables.tables["commit"])
        if stored is not None and under_way is not None and under_way != self.role:
            return self._of(under_way).step(tables, record)
        serves = roles.place_of(record.roles, self.role)
        if self._old is None:
            self._old = serves
        elif serves != self._old:
            self.done = True  # by another one, which had the last step of the same table
            return None
        if under_way is None or stored is None:
            tables.transaction.drop(tables.tables[SPARE], delete=False)
            first = 0 if self.role == "name" else 1
            _put_progress(tables, Progress(first, 0, record.floor))
            return replace(record, roles=roles.begin(record.roles, self.role))
        progress = self._go_on(tables, record, Progress.decode(stored))
        if self._progress is not None:
            through = max(0, progress.session - 1)
            self._progress(self.role, through, record.sessions_made)
        if progress.session <= record.sessions_made:
            _put_progress(tables, progress)
            fp("rebuild.after_slice")
            return record
        tables.transaction.delete(REBUILD_KEY, db=tables.tables["commit"])
        old = tables.tables[self.role]
        tables.transaction.drop(old, delete=False)
        fp("rebuild.before_swap")
        self.done = True
        return replace(record, roles=roles.swap(record.roles, self.role))

    def _of(self, role: str) -> Rebuild:
        """The task for another table."""
        return Rebuild(
            role,
            self._cache,
            self._pause,
            self._progress,
            projections=self._projections,
            gathered=self._gathered,
        )

    def _go_on(self, tables: WriteTables, record: CommitRecord, start: Progress) -> Progress:
        """Write the rows of the next sessions."""
        number, sequence, copied = start.session, start.sequence, start.key
        self._cache.begin(tables.epoch)
        if not number:
            return self._name_tenants(tables, record, start)
        rows: Rows = []
        entries: list[tuple[bytes, int, int]] = []
        self._inline = InlineRows(self._projections, self._pause)
        left = STEP_BYTES_MAX
        last = min(record.sessions_made, number + STEP_SESSIONS_MAX - 1)
        while number <= last and left > 0:
            row = self._gathered.load_row(tables, number)
            left -= 2 * ROW_BYTES
            if self.role in ("name", "activity"):
                rows += _rows_of(self.role, number, row)
            elif not row.is_gone:
                if self.role == "state" and row.first > sequence:
                    # Also when a purge came in between: what it removed nobody can read any more.
                    written = tables.rows(SPARE, U64.pack(number))
                    self._inline.add({key: None for key, _ in written})
                    base = self._base(tables, number, row)
                    self._inline.add(base)
                    left -= ROW_BYTES * len(base)
                for stop, parts, cost in self._segments(tables, number, row, sequence):
                    self.events += parts.count
                    sequence = stop
                    left -= cost + ROW_BYTES * self._take(number, parts, start.floor, rows, entries)
                    self._pause()
                    if left <= 0 and sequence < row.sealed:
                        break
                else:
                    sequence = row.sealed
                if sequence < row.sealed:
                    break
                if self.role == "key" and row.first:
                    count = max(1, left // ROW_BYTES)
                    copied, met = self._copy_keys(tables, number, row, copied, count, rows)
                    left -= ROW_BYTES * met
                    if copied:
                        break
            number, sequence, copied = number + 1, 0, b""
            self.sessions += 1
            self._pause()
        self._put(tables, rows)
        self._inline.write(tables, to_spare=True)
        if entries:
            tables.add_id_run(entries, only=SPARE)
            tables.merge_ids(COMMIT_MERGE_BYTES_MAX, SPARE)
        return Progress(number, sequence, start.floor, copied)

    def _put(self, tables: WriteTables, rows: Rows) -> None:
        rows = sorted(dict(rows).items())
        for start in range(0, len(rows), PUT_SLICE):
            tables.put_spare(rows[start : start + PUT_SLICE])
            self._pause()

    def _segments(
        self, tables: ReadTables, number: int, row: SessionRow, sequence: int
    ) -> Iterator[tuple[int, Parts, int]]:
        """A session's segments from a sequence on: the next sequence, the parts and their cost."""
        first = max(sequence, row.first)
        if first >= row.sealed:
            return
        origin = Origin(number, row.tenant, row.name)
        for key, value in stored_segments(tables, number, first):
            cost = ROW_BYTES
            parts = self._gathered.find(key, value)
            if parts is not None and self.role == "state" and row.branches and not parts.branches:
                parts = None  # gathered while the session was linear
            if parts is None:
                prefix = SegmentPrefix.unpack(key, value)
                if self.role == "state" and not (prefix.kinds & _CONTROLS_BIT or row.branches):
                    parts = Parts(prefix.count)
                else:
                    segment = self._cache.load(tables, key, value, keep=False)
                    cost += segment.memory_bytes
                    parts = self._reader.read(tables, segment, origin, row, (self.role,))
            yield PAIR.unpack(key)[1] + 1, parts, cost

    def _take(
        self,
        number: int,
        parts: Parts,
        floor: int,
        rows: Rows,
        entries: list[tuple[bytes, int, int]],
    ) -> int:
        """Note the rows that a segment's events make; gives what they count, in rows."""
        if self.role == "state":
            self._inline.add(parts.changes)
            return max(len(parts.changes), parts.change_bytes // ROW_BYTES)
        before = len(rows) + len(entries)
        if self.role == "key":
            for some in _slices(parts.keys, KEY_ROW.size):
                rows += KEY_ROW.iter_unpack(some)
                self._pause()
        else:
            for some in _slices(parts.ids, ID_ENTRY.size):
                entries += [
                    (digest, number, sequence)
                    for digest, sequence, position in ID_ENTRY.iter_unpack(some)
                    if position < floor
                ]
                self._pause()
        return len(rows) + len(entries) - before

    def _base(
        self, tables: ReadTables, number: int, row: SessionRow
    ) -> Mapping[bytes, bytes | None]:
        """Rows of inline projections as of the events that were purged."""
        sealed = self._sealed_base(tables, number, row)
        if sealed is not None:
            return sealed
        # The base is loose: the rows that purged events made stand as they are.
        found: dict[bytes, bytes | None] = {}
        for projection in self._projections:
            for key, value in tables.rows("state", state_key(number, projection.number)):
                content = expose(key, value, f"state {key.hex()}")
                if projection.sequence_of(content) < row.first:
                    found[key] = content
                self._pause()
        return found

    def _sealed_base(
        self, tables: ReadTables, number: int, row: SessionRow
    ) -> dict[bytes, bytes | None] | None:
        """What the base events of the last purge hold, which follow each other; None if loose."""
        origin = Origin(number, row.tenant, row.name)
        found: dict[bytes, bytes | None] | None = None
        for key, value in stored_segments(tables, number, row.sealed - 1, reverse=True):
            self._pause()
            if PAIR.unpack(key)[1] < row.first:
                break
            if not SegmentPrefix.unpack(key, value).kinds & _CONTROLS_BIT:
                if found is not None:
                    break
                continue
            segment = self._cache.load(tables, key, value, keep=False)
            for place in range(segment.count - 1, -1, -1):
                if segment.kinds[place] != BASE:
                    if found is not None:
                        return found
                    continue
                event = segment.make(place, origin, Record)
                base = base_of(self._projections, event, row.first, branches=bool(row.branches))
                if base is None or (found is None and not base.is_last):
                    return found
                found = {**(found or {}), **base.rows}
        return found

    def _copy_keys(
        self,
        tables: ReadTables,
        number: int,
        row: SessionRow,
        after: bytes,
        count: int,
        rows: Rows,
    ) -> tuple[bytes, int]:
        """Note rows of keys whose events were purged, from the table that serves.

        Returns:
            The last key that was looked at, empty when there is none after it; and how many were.
        """
        start = after + b"\0" if after else b""
        met = 0
        for key, value in tables.rows("key", U64.pack(number), start=start):
            if met == count:
                return after, met
            if KeyedResult.decode(key, value).first < row.first:
                rows.append((key, value))
            after = key
            met += 1
            self._pause()
        return b"", met

    def _name_tenants(self, tables: WriteTables, record: CommitRecord, start: Progress) -> Progress:
        rows: Rows = []
        count = max(1, STEP_BYTES_MAX // ROW_BYTES)
        stop = min(record.tenants_made, start.sequence + count)
        for number in range(start.sequence + 1, stop + 1):
            key = name_key(tables.load_tenant(number).name, "")
            rows.append((key, protect(key, U64.pack(number))))
            self._pause()
        self._put(tables, rows)
        if stop < record.tenants_made:
            return Progress(0, stop, start.floor)
        return Progress(1, 0, start.floor)


def _slices(joined: bytes, size: int) -> Iterator[bytes]:
    """Pieces of at most ``PUT_SLICE`` items of a size."""
    step = PUT_SLICE * size
    for start in range(0, len(joined), step):
        yield joined[start : start + step]


def _put_progress(tables: WriteTables, progress: Progress) -> None:
    tables.transaction.put(REBUILD_KEY, progress.encode(), db=tables.tables["commit"])


def _rows_of(role: str, number: int, row: SessionRow) -> Rows:
    """The rows of ``name`` or ``activity`` that stand for a session."""
    if row.is_gone or (role == "activity" and not row.last_position):
        return []
    if role == "name":
        key = name_key(row.tenant, row.name)
    else:
        key = PAIR.pack(row.tenant_number, U64_MAX - row.last_position)
    return [(key, protect(key, U64.pack(number)))]
