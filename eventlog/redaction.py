"""Redaction: events of a session lose their content and keep their place, slice by slice.

A redacted event is not void. Sequence, position, parent, branch, kind, role, times, tokens and ids
stay, and so does all that is made of them: rows, lookups, links, branches. What goes is the body,
the metadata and the names of blobs (``record.redacted_record``).

Invariants:
    1. A slice is one transaction: a record and its copy in a segment, the references that it gives
       back, and the session's flag change together. So each event is whole or redacted.
    2. A slice looks at no more than ``COMMIT_EVENTS_MAX`` events and ``COMMIT_BYTES_MAX`` bytes,
       redacted or not, with what one segment takes on top. One that redacts raises the generation,
       since memory, here and elsewhere, holds records that no longer are what it says: nobody may
       seal those.
    3. What was redacted before is passed over, so that one who begins again goes on.
    4. What cannot be read is an error, before anything of its slice is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from eventlog import blobtable
from eventlog.blobcollect import Collection
from eventlog.errors import CorruptionError, SessionGoneError
from eventlog.failpoints import fp
from eventlog.hotlog import hot_table
from eventlog.keys import PAIR, U64
from eventlog.limits import COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX
from eventlog.reclaim import REMOVED_LOW_MAX
from eventlog.record import (
    CHECKSUM_BYTES,
    KIND_BYTE,
    SEQUENCE_BYTE,
    Origin,
    Record,
    can_be_redacted,
    is_redacted,
    redacted_record,
    verify_record,
)
from eventlog.removal import named_blobs
from eventlog.rows import REDACTED
from eventlog.seams import CLOCK
from eventlog.segment import Run, encode_segment
from eventlog.segmentcache import decoded

if TYPE_CHECKING:
    from eventlog.decoded import Segment
    from eventlog.index import LooseIndex
    from eventlog.rows import CommitRecord, SessionRow
    from eventlog.tables import ReadTables, WriteTables

RELEASE_SLICE: Final = 16  # references between two looks at the clock


@dataclass(slots=True)
class Redacted:
    """What was met so far.

    Attributes:
        events: Events that lost their content.
        already: Those that had lost it before.
        kept: Events of kinds that are kept: what they say stands in ``state`` too.
        voids: Events that were purged.
        removed: Addresses of blobs that went, as nothing else names them.
        left: Addresses of blobs that others name, or that somebody put again within the hour.
    """

    events: int = 0
    already: int = 0
    kept: int = 0
    voids: int = 0
    removed: set[bytes] = field(default_factory=set)
    left: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class _Slice:
    """What one transaction is to write, and how much it may still look at."""

    events: int
    content_bytes: int
    hot: list[tuple[int, bytes]] = field(default_factory=list)  # positions and records
    segments: list[tuple[bytes, bytes]] = field(default_factory=list)
    addresses: list[bytes] = field(default_factory=list)
    redacted: int = 0

    @property
    def is_left(self) -> bool:
        return self.events > 0 and self.content_bytes > 0


class Redact:
    """The task that redacts a range of one session's events, and removes the blobs of them alone.

    Args:
        number: The session.
        first: The first sequence.
        last: The last sequence; committed.
        index: The loose index; knows where loose events lie.
        pause: Lets the GIL go when the slice is used up.
        is_low: Whether the disk is full: few events at once, so that their pages fit into what is
            left.

    Attributes:
        redacted: What it met so far.
    """

    def __init__(
        self,
        number: int,
        first: int,
        last: int,
        index: LooseIndex,
        pause: Callable[[], None],
        is_low: Callable[[], bool],
    ) -> None:
        self.done = False
        self.redacted = Redacted()
        self._number = number
        self._next = first
        self._last = last
        self._index = index
        self._pause = pause
        self._is_low = is_low
        self._chunks: Collection | None = None

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``tasks.Task``.

        Raises:
            SessionGoneError: The session was deleted.
            CorruptionError: An event of the range cannot be read.
        """
        if self._chunks is not None:
            changed = self._chunks.step(tables, record)
            self.done = self._chunks.done
            return changed
        row = tables.load_row(self._number)
        if row.is_gone:
            raise SessionGoneError(
                "the session was deleted while it was redacted", expected=self._number, current=None
            )
        if self._next < row.first:  # purged, here or meanwhile
            stop = min(row.first, self._last + 1)
            self.redacted.voids += stop - self._next
            self._next = stop
        events_max = REMOVED_LOW_MAX if self._is_low() else COMMIT_EVENTS_MAX
        work = _Slice(events_max, COMMIT_BYTES_MAX)
        while self._next <= self._last and work.is_left:
            if self._next < row.sealed:
                self._take_segment(tables, record, work)
            else:
                self._take_loose(tables, record, work)
        if self._next > self._last:
            self._chunks = Collection(self._pause)
        if not work.redacted:
            return None
        self._write(tables, record, row, work)
        return replace(record, generation=record.generation + 1, removals=record.removals + 1)

    # Reading

    def _is_to_do(self, value: bytes) -> bool:
        """Whether a record is to lose its content; counts it."""
        if not can_be_redacted(value[KIND_BYTE]):
            self.redacted.kept += 1
        elif is_redacted(value):
            self.redacted.already += 1
        else:
            self.redacted.events += 1
            return True
        return False

    def _take_segment(self, tables: ReadTables, record: CommitRecord, work: _Slice) -> None:
        """The events of the range that the next segment holds."""
        segment = self._segment(tables)
        self._pause()
        origin = Origin(self._number, "", "")
        stop = min(segment.count, self._last + 1 - segment.first_sequence)
        first = self._next - segment.first_sequence
        records: list[bytes] = []
        positions: list[int] = []
        before = work.redacted
        for place in range(segment.count):
            event = segment.make(place, origin, Record)
            stored, position = event.stored(), event.position
            if first <= place < stop and self._is_to_do(stored):
                stored = self._redact(position, stored, work)
                if position >= record.floor:
                    self._stored_hot(tables, position, segment.first_sequence + place)
                    work.hot.append((position, stored))
            records.append(stored)
            positions.append(position)
            self._pause()
        if work.redacted > before:
            last = segment.first_sequence + segment.count - 1
            run = Run(self._number, last, records, positions, segment.prefix.messages_before)
            work.segments.append(encode_segment(run))
        work.events -= segment.count
        work.content_bytes -= segment.memory_bytes
        self._next = segment.first_sequence + stop

    def _segment(self, tables: ReadTables) -> Segment:
        """The segment that holds the next event."""
        with tables.segment_cursor() as cursor:
            if cursor.set_range(PAIR.pack(self._number, self._next)):
                key = cursor.key()
                if key[: U64.size] == U64.pack(self._number):
                    segment = decoded(tables, key, cursor.value())
                    if segment.first_sequence <= self._next:
                        return segment
        raise CorruptionError("segment is missing", where=f"session {self._number}/{self._next}")

    def _take_loose(self, tables: ReadTables, record: CommitRecord, work: _Slice) -> None:
        """The next loose events of the range, as many as the slice has room for."""
        state = self._index.states.get(self._number)
        while self._next <= self._last and work.is_left:
            place = -1 if state is None else self._next - state.loose.base
            if state is None or not 0 <= place < len(state.loose.positions):
                where = f"session {self._number}/{self._next}"
                raise CorruptionError("loose record is missing", where=where)
            position = state.loose.positions[place]
            value = self._stored_hot(tables, position, self._next)
            work.events -= 1
            work.content_bytes -= len(value)
            if self._is_to_do(value):
                work.hot.append((position, self._redact(position, value, work)))
            self._next += 1
            self._pause()

    def _stored_hot(self, tables: ReadTables, position: int, sequence: int) -> bytes:
        """The checked record at a position, which is that of an event of the session."""
        key = U64.pack(position)
        value: bytes | None = tables.transaction.get(key, db=tables.tables[hot_table(position)])
        if value is None:
            raise CorruptionError("record is missing", where=f"log {position}")
        verify_record(key, value)
        place = value[CHECKSUM_BYTES : SEQUENCE_BYTE + 8]
        if place != self._number.to_bytes(8, "little") + sequence.to_bytes(8, "little"):
            raise CorruptionError("holds another event", where=f"log {position}")
        return value

    @staticmethod
    def _redact(position: int, value: bytes, work: _Slice) -> bytes:
        work.redacted += 1
        work.addresses += named_blobs(value)
        return redacted_record(U64.pack(position), value)

    # Writing

    def _write(
        self, tables: WriteTables, record: CommitRecord, row: SessionRow, work: _Slice
    ) -> None:
        for position, value in work.hot:
            tables.transaction.put(U64.pack(position), value, db=tables.tables[hot_table(position)])
            self._pause()
        for key, value in work.segments:
            tables.replace_segment(key, value)
            self._pause()
        fp("redaction.after_records")
        now_us = max(CLOCK.wall_us(), record.recorded_us)  # an idle store's stamps are old
        self._release(tables, row.tenant_number, work.addresses, now_us)
        if not row.flags & REDACTED:
            row.flags |= REDACTED
            tables.put_rows([(U64.pack(self._number), row)])
        fp("redaction.after_slice")

    def _release(
        self, tables: WriteTables, tenant_number: int, addresses: list[bytes], now_us: int
    ) -> None:
        """Give references back, and remove what nothing names any more, as an erasure does."""
        met = self.redacted
        for turn, (address, count) in enumerate(sorted(Counter(addresses).items())):
            try:
                held = blobtable.release(
                    tables, tenant_number, [address] * count, now_us, erases=True
                )
                is_gone = not held and blobtable.erase(tables, tenant_number, [address], room=0)
            except CorruptionError:
                is_gone = False  # check tells; the events must not keep their content for it
            if is_gone:
                met.removed.add(address)
                met.left.discard(address)
            else:
                met.left.add(address)
            if not turn % RELEASE_SLICE:
                self._pause()
