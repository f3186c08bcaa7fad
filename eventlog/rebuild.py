"""Rebuild: derived tables are made again from the log, while the old ones serve.

One table at a time is written anew into the spare database, session by session in slices; whoever
writes to the table meanwhile writes to both. When all sessions are through, the two databases
change roles in one commit, and the old one is emptied.

Invariants:
    1. The table that serves is not touched until its next generation is complete.
    2. How far a rebuild came is in the store: one that was killed goes on from there, also in
       another process, and whoever writes meanwhile knows of it. What is under way is ended before
       another table is begun, whoever began it, so any number of rebuilds come to their ends.
    3. A step reads at most ``STEP_BYTES_MAX`` of segments beyond the first.
    4. Nothing of the old table is needed, but for keys of purged events, which no record tells any
       more, and for what inline projections made of these as long as their base is loose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from eventlog import roles
from eventlog.admission import id_digest
from eventlog.errors import CorruptionError
from eventlog.failpoints import fp
from eventlog.inline import InlineProjection, InlineRows, base_of, changes_of, state_key
from eventlog.keys import PAIR, U64, U64_MAX, name_key
from eventlog.limits import COMMIT_BYTES_MAX
from eventlog.record import (
    BASE,
    CONTROL,
    HEAD_KIND_BYTE,
    MESSAGE,
    Extension,
    Flag,
    Origin,
    Record,
    decode_extension,
)
from eventlog.roles import SPARE
from eventlog.rollup import kept_in
from eventlog.rows import NO_SEQUENCE, KeyedResult, SessionRow, expose, protect
from eventlog.segment import HEAD_BYTES, SegmentPrefix

if TYPE_CHECKING:
    from eventlog.rows import CommitRecord
    from eventlog.segment import Segment
    from eventlog.tables import ReadTables, SegmentCache, WriteTables

REBUILD_KEY: Final = b"rebuild"
STEP_BYTES_MAX: Final = COMMIT_BYTES_MAX  # decoded bytes of segments
STEP_SESSIONS_MAX: Final = 2_048
_PROGRESS: Final = Struct("<QQQ")
_FLAGGED: Final = {"key": int(Flag.KEYED), "id": int(Flag.NAMED)}
_ROLLS_UP: Final = int(Flag.ROLLS_UP)
_FLAGS_BYTE: Final = HEAD_KIND_BYTE + 2  # the low one, in a header
_CONTROLS_BIT: Final = 1 << 63  # of a segment's kinds; all control kinds share it

Rows = list[tuple[bytes, bytes]]
OnProgress = Callable[[str, int, int], None]
"""Told after each step: the table, the last session that is through, and of how many."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild came.

    Attributes:
        session: The session that is next.
        sequence: Its sequence that is next.
        floor: Callers' ids of events at positions below it are in runs.
    """

    session: int
    sequence: int
    floor: int

    def encode(self) -> bytes:
        """The row's value."""
        return protect(REBUILD_KEY, _PROGRESS.pack(self.session, self.sequence, self.floor))

    @classmethod
    def decode(cls, value: bytes) -> Progress:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not such a row.
        """
        rest = expose(REBUILD_KEY, value, "rebuild")
        if len(rest) != _PROGRESS.size:
            raise CorruptionError("has another size", where="rebuild")
        return cls(*_PROGRESS.unpack(rest))


class Recount:
    """The task that makes the counts in session rows anew, from the segments' prefixes.

    With ``keys`` it counts the rows of ``key``, which must be right by then, and nothing else.

    Attributes:
        events: Events that they count.
        changed: Rows that said something else.
    """

    role = "session"

    def __init__(
        self,
        cache: SegmentCache,
        pause: Callable[[], None],
        progress: OnProgress | None = None,
        *,
        keys: bool = False,
    ) -> None:
        self._keys = keys
        self.events = 0
        self.changed = 0
        self.done = False
        self._cache = cache
        self._pause = pause
        self._progress = progress
        self._next = 1

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``tasks.Task``."""
        stop = min(record.sessions_made + 1, self._next + STEP_SESSIONS_MAX)
        rows: list[tuple[bytes, SessionRow]] = []
        for number in range(self._next, stop):
            row = tables.load_row(number)
            if row.is_gone:
                continue
            counted = self._count(tables, number, row)
            self.events += counted.sealed
            if counted != row:
                rows.append((U64.pack(number), counted))
            self._pause()
        self._next = stop
        self.done = stop > record.sessions_made
        if self._progress is not None:
            self._progress(self.role, stop - 1, record.sessions_made)
        if not rows:
            return None
        self.changed += len(rows)
        tables.put_rows(rows)
        # What memory holds of these rows is wrong, here and elsewhere.
        return replace(record, generation=record.generation + 1)

    def _count(self, tables: ReadTables, number: int, row: SessionRow) -> SessionRow:
        counted = row.copy()
        if self._keys:
            counted.keys = sum([1 for _ in tables.rows("key", U64.pack(number))])
            return counted
        counted.segments = 0
        last: tuple[bytes, SegmentPrefix] | None = None
        for key, value in tables.rows("segment", U64.pack(number)):
            if PAIR.unpack(key)[1] < row.first:
                continue  # still to be removed
            last = key, SegmentPrefix.unpack(key, value)
            counted.segments += 1
            self._pause()
        if last is None:
            return counted
        key, prefix = last
        counted.sealed = PAIR.unpack(key)[1] + 1
        counted.messages = prefix.messages_before + prefix.messages
        counted.last_position = prefix.last_position
        counted.last_recorded_us = prefix.last_recorded_us
        self._count_back(tables, number, row, counted)
        return counted

    def _count_back(
        self, tables: ReadTables, number: int, row: SessionRow, counted: SessionRow
    ) -> None:
        """Head and roll-ups, from the end; where all that tells was purged, the row stays."""
        has_head = has_rolled = False
        since = 0
        origin = Origin(number, row.tenant, row.name)
        for segment in tables.segments(number, counted.sealed - 1, self._cache, reverse=True):
            for place in range(segment.count - 1, -1, -1):
                kind = segment.kinds[place]
                if not has_head and kind < CONTROL:
                    has_head = True
                    counted.head = segment.first_sequence + place
                if not has_rolled and segment.flags(place) & _ROLLS_UP:
                    has_rolled = True
                    counted.since_roll_up = since
                    event = segment.make(place, origin, Record)
                    kept = kept_in(event.extension, event.flags, event)
                    trimmed = 0 if kept is None else counted.messages - since - kept
                    if trimmed != row.trimmed:
                        counted.trimmed, counted.details = trimmed, b""
                since += kind == MESSAGE
                if has_head and has_rolled:
                    return
            if segment.first_sequence <= row.first:
                break
        if not has_head and not row.first:
            counted.head = NO_SEQUENCE
        if not has_rolled and not row.first:  # what rolled up was of version 1, if anything did
            counted.since_roll_up = min(row.since_roll_up, since)


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
    ) -> None:
        self.role = role
        self.events = 0
        self.sessions = 0
        self.done = False
        self._cache = cache
        self._pause = pause
        self._progress = progress
        self._projections = projections
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
            _put_progress(tables, Progress(1, 0, record.floor))
            return replace(record, roles=roles.begin(record.roles, self.role))
        progress = self._go_on(tables, record, Progress.decode(stored))
        if self._progress is not None:
            self._progress(self.role, progress.session - 1, record.sessions_made)
        if progress.session <= record.sessions_made:
            _put_progress(tables, progress)
            fp("rebuild.after_slice")
            return record
        if self.role == "name":
            self._name_tenants(tables, record)
        tables.transaction.delete(REBUILD_KEY, db=tables.tables["commit"])
        old = tables.tables[self.role]
        tables.transaction.drop(old, delete=False)
        fp("rebuild.before_swap")
        self.done = True
        return replace(record, roles=roles.swap(record.roles, self.role))

    def _of(self, role: str) -> Rebuild:
        """The task for another table."""
        return Rebuild(
            role, self._cache, self._pause, self._progress, projections=self._projections
        )

    def _go_on(self, tables: WriteTables, record: CommitRecord, start: Progress) -> Progress:
        """Write the rows of the next sessions."""
        number, sequence = start.session, start.sequence
        rows: Rows = []
        entries: list[tuple[bytes, int, int]] = []
        self._inline = InlineRows(self._projections, self._pause)
        left = STEP_BYTES_MAX
        last = min(record.sessions_made, number + STEP_SESSIONS_MAX - 1)
        while number <= last and left > 0:
            row = tables.load_row(number)
            if self.role in ("name", "activity"):
                rows += _rows_of(self.role, number, row)
            elif not row.is_gone:
                if self.role == "state" and row.first > sequence:
                    # Also when a purge came in between: what it removed nobody can read any more.
                    made = tables.rows(SPARE, U64.pack(number))
                    self._inline.add({key: None for key, _ in made})
                    self._inline.add(self._base(tables, number, row))
                for stop, prefix, segment in self._segments(tables, number, row, sequence):
                    self.events += prefix.count
                    sequence = stop
                    if segment is not None:
                        left -= segment.memory_bytes
                        self._take(tables, number, row, segment, start.floor, rows, entries)
                    self._pause()
                    if left <= 0 and sequence < row.sealed:
                        break
                else:
                    sequence = row.sealed
                if sequence < row.sealed:
                    break
                if self.role == "key":
                    rows += _purged_keys(tables, number, row)
            number, sequence = number + 1, 0
            self.sessions += 1
            self._pause()
        tables.put_spare(sorted(rows))
        self._inline.write(tables, to_spare=True)
        if entries:
            tables.add_id_run(entries, only=SPARE)
        return Progress(number, sequence, start.floor)

    def _segments(
        self, tables: ReadTables, number: int, row: SessionRow, sequence: int
    ) -> Iterator[tuple[int, SegmentPrefix, Segment | None]]:
        """A session's segments from a sequence on, decoded where they may hold what is wanted.

        Gives the sequence after each, too.
        """
        first = max(sequence, row.first)
        if first >= row.sealed:
            return
        only_controls = self.role == "state"
        with tables.segment_cursor() as cursor:
            found = cursor.set_range(PAIR.pack(number, first))
            while found:
                key, value = cursor.item()
                if len(key) != PAIR.size:
                    raise CorruptionError("key has another size", where=f"segment {key.hex()}")
                owner, last = PAIR.unpack(key)
                if owner != number:
                    return
                prefix = SegmentPrefix.unpack(key, value)
                segment = None
                if not only_controls or prefix.kinds & _CONTROLS_BIT:
                    segment = self._cache.load(tables, key, value, keep=False)
                yield last + 1, prefix, segment
                found = cursor.next()

    def _take(
        self,
        tables: ReadTables,
        number: int,
        row: SessionRow,
        segment: Segment,
        floor: int,
        rows: Rows,
        entries: list[tuple[bytes, int, int]],
    ) -> None:
        """Note the rows that a segment's events make."""
        origin = Origin(number, row.tenant, row.name)
        if self.role == "state":
            for place, kind in enumerate(segment.kinds):
                if kind >= CONTROL:
                    event = segment.make(place, origin, Record)
                    self._inline.add(changes_of(self._projections, event))
                    self._pause()
            return
        flag = _FLAGGED[self.role]
        secret = b""
        for place, flags in enumerate(segment.heads[_FLAGS_BYTE::HEAD_BYTES]):
            if not flags & flag:
                continue
            event = segment.make(place, origin, Record)
            if self.role == "key":
                marks = decode_extension(event.extension, event.flags, event)
                rows.append(_key_row(number, event, marks))
            elif event.position < floor:
                marks = decode_extension(event.extension, event.flags, event)
                secret = secret or tables.load_tenant(row.tenant_number).secret
                entries.append((id_digest(secret, marks[Extension.ID]), number, event.sequence))
            self._pause()

    def _base(
        self, tables: ReadTables, number: int, row: SessionRow
    ) -> Mapping[bytes, bytes | None]:
        """Rows of inline projections as of the events that were purged."""
        origin = Origin(number, row.tenant, row.name)
        for segment in tables.segments(number, row.sealed - 1, self._cache, reverse=True):
            place = segment.kinds.rfind(BASE)
            if place >= 0:
                event = segment.make(place, origin, Record)
                base = base_of(self._projections, event, row.first)
                if base is not None:
                    return base
                break
            if segment.first_sequence <= row.first:
                break
        # The base is loose: the rows that purged events made stand as they are.
        found: dict[bytes, bytes | None] = {}
        for projection in self._projections:
            for key, value in tables.rows("state", state_key(number, projection.number)):
                content = expose(key, value, f"state {key.hex()}")
                if projection.sequence_of(content) < row.first:
                    found[key] = content
                self._pause()
        return found

    def _name_tenants(self, tables: WriteTables, record: CommitRecord) -> None:
        rows: Rows = []
        for number in range(1, record.tenants_made + 1):
            key = name_key(tables.load_tenant(number).name, "")
            rows.append((key, protect(key, U64.pack(number))))
            self._pause()
        tables.put_spare(sorted(rows))


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


def _key_row(number: int, event: Record, marks: dict[int, object]) -> tuple[bytes, bytes]:
    digest, content = marks[Extension.KEY_DIGEST], marks[Extension.CONTENT_DIGEST]
    count = marks[Extension.KEY_COUNT]
    assert type(digest) is bytes and type(content) is bytes and type(count) is int
    last = event.sequence + count - 1
    key = U64.pack(number) + digest
    result = KeyedResult(content, event.sequence, last, event.position + count - 1)
    return key, result.encode(key)


def _purged_keys(tables: ReadTables, number: int, row: SessionRow) -> Rows:
    """Rows of keys whose events were purged, from the table that serves."""
    if not row.first:
        return []
    return [
        (key, value)
        for key, value in tables.rows("key", U64.pack(number))
        if KeyedResult.decode(key, value).first < row.first
    ]
