"""Gathering: each segment is read once for a rebuild, and what its tables need of it is kept.

It is done by whoever asked for the rebuild, in short read transactions, before the writer is
needed: so the writer's lock is held for rows alone. What does not fit into memory, or was written
since, is read again by the step that needs it.

Invariants:
    1. What was gathered stands for a segment while its key and checksum are the stored ones; after
       a merge or a removal, by whatever process, they are not.
    2. As in ``SegmentCache``: with the first transaction after a removal everything is forgotten,
       and a read that began before it leaves nothing here.
    3. All rebuilds of a store share it, within ``REBUILD_BYTES_MAX``; after the last one nothing
       stays.
    4. Whether something was gathered changes no row, only how long it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np

from eventlog import columns
from eventlog.decoded import EXTENSION_BYTE, HEAD_BYTES
from eventlog.digests import id_digest
from eventlog.errors import CorruptionError
from eventlog.inline import InlineProjection, changes_of
from eventlog.keys import PAIR, U64
from eventlog.limits import FINE_SLICE_US, MIB, REBUILD_BYTES_MAX
from eventlog.lookups import TenantSecrets
from eventlog.record import (
    CONTROL,
    DIGEST_BYTES,
    HEAD_KIND_BYTE,
    HEAD_MOVE,
    MESSAGE,
    Extension,
    Flag,
    Origin,
    Record,
    decode_extension,
)
from eventlog.rollup import ROLLS_UP, kept_in
from eventlog.rows import KeyedResult
from eventlog.seams import CLOCK
from eventlog.segment import CHECKSUM_BYTES

if TYPE_CHECKING:
    from eventlog.decoded import Segment
    from eventlog.rows import SessionRow
    from eventlog.segmentcache import SegmentCache
    from eventlog.tables import ReadTables
    from eventlog.views import Views

TABLE: Final = "segment"
WANTED: Final = ("session", "key", "id", "state")  # tables whose rows are made of segments
READ_BYTES_MAX: Final = 1 * MIB  # decoded bytes of one read transaction: some 10 ms
PART_BYTES: Final = 500  # that a segment's entry takes beside what was found in it
SESSION_BYTES: Final = 800  # that a session's row takes beside its names and opening facts
CHANGE_BYTES: Final = 250  # that a row of ``state`` takes beside its content
KEY_ROW: Final = Struct(f"{U64.size + DIGEST_BYTES}s48s")  # of ``key``, with its value
ID_ENTRY: Final = Struct(f"<{DIGEST_BYTES}sQQ")  # digest, sequence, position
_FLAGS_BYTE: Final = HEAD_KIND_BYTE + 2  # the low one, in a header
_KEYED: Final = int(Flag.KEYED)
_NAMED: Final = int(Flag.NAMED)
_ID: Final = int(Extension.ID)
_KEY_DIGEST: Final = int(Extension.KEY_DIGEST)
_CONTENT_DIGEST: Final = int(Extension.CONTENT_DIGEST)
_KEY_COUNT: Final = int(Extension.KEY_COUNT)


def _marks(is_wanted: Callable[[int], object]) -> bytes:
    """A table for ``bytes.translate``: 1 for each byte that is wanted, 0 for all others."""
    return bytes([bool(is_wanted(byte)) for byte in range(256)])


_MARKED: Final = {
    _KEYED: _marks(lambda flags: flags & _KEYED),
    _NAMED: _marks(lambda flags: flags & _NAMED),
    _KEYED | _NAMED: _marks(lambda flags: flags & (_KEYED | _NAMED)),
}
_HAS_ROLL_UP: Final = _marks(lambda flags: flags & ROLLS_UP)
_IS_CONTROL: Final = _marks(lambda kind: kind >= CONTROL)
_MOVES_HEAD: Final = _marks(lambda kind: kind < CONTROL or kind == HEAD_MOVE)


@dataclass(frozen=True, slots=True)
class Ending:
    """What a segment tells of the session's head and last roll-up.

    Attributes:
        head: The head after it, ``NO_SEQUENCE`` for none; None when no event of it says so.
        head_branch: The branch of that head.
        branches: Branch numbers that its events take; 0 when they are linear.
        rolled: Place of the last event after which the session rolled up, -1 for none.
        since: Messages after that one, or all of them.
        kept: Messages that the view showed after it; None for all, or when there is none.
    """

    head: int | None
    head_branch: int
    branches: int
    rolled: int
    since: int
    kept: int | None


NO_ENDING: Final = Ending(None, 0, 0, -1, 0, None)


@dataclass(slots=True)
class Parts:
    """What the derived tables need of one segment.

    Attributes:
        count: Its events.
        keys: Rows of ``key``, see ``KEY_ROW``, joined.
        ids: Callers' ids, see ``ID_ENTRY``, joined; oldest first.
        changes: What its events change in ``state``.
        change_bytes: About what the changes take.
        branches: Whether they hold what public events change, as in sessions that branch.
        ending: Head and last roll-up.
    """

    count: int
    keys: bytes = b""
    ids: bytes = b""
    changes: Mapping[bytes, bytes | None] = field(default_factory=dict)
    change_bytes: int = 0
    branches: bool = False
    ending: Ending = NO_ENDING

    @property
    def memory_bytes(self) -> int:
        """About what they take in memory."""
        return PART_BYTES + len(self.keys) + len(self.ids) + self.change_bytes


class Reader:
    """Takes segments apart for some of the tables.

    Args:
        projections: The inline projections.
        pause: Lets the GIL go when the slice is used up.
    """

    def __init__(self, projections: Sequence[InlineProjection], pause: Callable[[], None]) -> None:
        self._projections = projections
        self._pause = pause
        self._secrets = TenantSecrets()

    def read(
        self,
        tables: ReadTables,
        segment: Segment,
        origin: Origin,
        row: SessionRow,
        wanted: Sequence[str],
    ) -> Parts:
        """The parts that some tables need.

        Args:
            tables: The transaction.
            segment: The decoded segment.
            origin: Its session.
            row: The session's row.
            wanted: The tables, ``session`` for the ending.

        Raises:
            CorruptionError: An event, or the tenant's row, is damaged.
        """
        parts = Parts(segment.count)
        flags = segment.heads[_FLAGS_BYTE::HEAD_BYTES]
        keyed = _KEYED if "key" in wanted else 0
        named = _NAMED if "id" in wanted else 0
        if keyed or named:
            marked = flags.translate(_MARKED[keyed | named])
            if 1 in marked:
                self._read_marks(tables, segment, origin.number, row, keyed, named, marked, parts)
        parts.branches = row.branches > 0
        if "state" in wanted and (parts.branches or max(segment.kinds) >= CONTROL):
            self._read_changes(segment, origin, parts)
        if "session" in wanted:
            parts.ending = _ending(segment, origin, flags)
        return parts

    def _read_marks(
        self,
        tables: ReadTables,
        segment: Segment,
        number: int,
        row: SessionRow,
        keyed: int,
        named: int,
        marked: bytes,
        parts: Parts,
    ) -> None:
        """Keys and ids, of the events that are marked."""
        keys: list[bytes] = []
        ids: list[bytes] = []
        before = U64.pack(number)
        first = segment.first_sequence
        secret = self._secrets.secret(tables, row.tenant_number) if named else b""
        for place in compress(range(segment.count), marked):
            sequence, position = first + place, segment.position(place)
            flags = segment.flags(place)
            where = f"session {number}/{sequence}"
            marks = decode_extension(_extension(segment, place, where), flags, where)
            if flags & keyed:
                key = before + marks[_KEY_DIGEST]
                more = marks[_KEY_COUNT] - 1
                keys += (
                    key,
                    KeyedResult(
                        marks[_CONTENT_DIGEST], sequence, sequence + more, position + more
                    ).encode(key),
                )
            if flags & named:
                ids.append(ID_ENTRY.pack(id_digest(secret, marks[_ID]), sequence, position))
            self._pause()
        parts.keys, parts.ids = b"".join(keys), b"".join(ids)

    def _read_changes(self, segment: Segment, origin: Origin, parts: Parts) -> None:
        changes: dict[bytes, bytes | None] = {}
        places = range(segment.count)
        if not parts.branches:
            chosen: Iterable[int] = compress(places, segment.kinds.translate(_IS_CONTROL))
        else:
            chosen = places
        for place in chosen:
            changes.update(changes_of(self._projections, segment.make(place, origin, Record)))
            self._pause()
        parts.changes = changes
        parts.change_bytes = sum([len(each or b"") for each in changes.values()])
        parts.change_bytes += CHANGE_BYTES * len(changes)


def _extension(segment: Segment, place: int, where: str) -> bytes:
    at = place * HEAD_BYTES + EXTENSION_BYTE
    size = int.from_bytes(segment.heads[at : at + 4], "little")
    start = segment.starts[place]
    if start + size > segment.starts[place + 1]:
        raise CorruptionError("extension is longer than its record", where=where)
    return segment.tails[start : start + size]


def _ending(segment: Segment, origin: Origin, flags: bytes) -> Ending:
    rolled = flags.translate(_HAS_ROLL_UP).rfind(1)
    kept = None
    if rolled >= 0:
        event = segment.make(rolled, origin, Record)
        kept = kept_in(event.extension, event.flags, event)
    kinds = segment.kinds
    head, branch = _head_of(segment, origin)
    words = np.frombuffer(segment.heads, "<u8").reshape(-1, columns.WORDS)
    most = int((words[:, columns.BRANCH_TOKENS] & np.uint64(0xFFFFFFFF)).max())
    branches = most + 1 if most or HEAD_MOVE in kinds else 0
    return Ending(head, branch, branches, rolled, kinds.count(MESSAGE, rolled + 1), kept)


def _head_of(segment: Segment, origin: Origin) -> tuple[int | None, int]:
    """The head after a segment, and its branch; None when no event of it says so."""
    place = segment.kinds.translate(_MOVES_HEAD).rfind(1)
    if place < 0:
        return None, 0
    event = segment.make(place, origin, Record)
    if event.kind_code == HEAD_MOVE:
        return event.parent_word, event.branch
    return event.sequence, event.branch


class Gathered:
    """What was gathered of segments, by their keys; any thread."""

    def __init__(self, bytes_max: int = REBUILD_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.byte_count = 0
        self._lock = Lock()
        self._users = 0
        self._removals = 0
        self._parts: dict[bytes, tuple[bytes, Parts]] = {}
        self._rows: dict[int, tuple[bytes, SessionRow]] = {}

    @contextmanager
    def using(self) -> Iterator[None]:
        """A rebuild; with the last one that ends everything goes."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._clear()

    def _clear(self) -> None:
        self._parts, self._rows = {}, {}
        self.byte_count = 0

    def begin(self, epoch: tuple[int, int]) -> None:
        """A transaction began: forget everything when something was removed since.

        Args:
            epoch: ``CommitRecord.epoch`` of the transaction.
        """
        if epoch[1] > self._removals:
            with self._lock:
                if epoch[1] > self._removals:
                    self._removals = epoch[1]
                    self._clear()

    def find(self, key: bytes, value: bytes) -> Parts | None:
        """What was gathered of a segment as it is stored now, None when nothing was."""
        found = self._parts.get(key)
        if found is None or found[0] != value[:CHECKSUM_BYTES]:
            return None
        return found[1]

    def add(self, tables: ReadTables, key: bytes, value: bytes, parts: Parts) -> bool:
        """Keep what a segment holds; False when there is no room for more."""
        size = parts.memory_bytes
        if size * 4 > self.bytes_max:
            return True  # alone it would take the room of many; it is read again
        with self._lock:
            if tables.epoch[1] != self._removals or not self._users:
                return True  # it may be of what was removed since this transaction began
            old = self._parts.get(key)
            if old is not None:
                self.byte_count -= old[1].memory_bytes
                del self._parts[key]
            if self.byte_count + size > self.bytes_max:
                return False
            self._parts[key] = (value[:CHECKSUM_BYTES], parts)
            self.byte_count += size
        return True

    def load_row(self, tables: ReadTables, number: int) -> SessionRow:
        """A session's row, decoded when it is another one than before; not to be changed.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        value = tables.transaction.get(U64.pack(number), db=tables.tables["session"])
        if value is None:
            return tables.load_row(number)  # raises
        kept = self._rows.get(number)
        if kept is not None and kept[0] == value:
            return kept[1]
        row = tables.load_row(number)
        with self._lock:
            size = SESSION_BYTES + 2 * len(value)
            if (
                number not in self._rows
                and tables.epoch[1] == self._removals
                and self._users
                and self.byte_count + size <= self.bytes_max
            ):
                self._rows[number] = (value, row)
                self.byte_count += size
        return row


class Gathering:
    """One walk over all segments, until all are read or there is no more room.

    What is damaged is passed over: the step that needs it tells.
    """

    def __init__(
        self,
        gathered: Gathered,
        cache: SegmentCache,
        projections: Sequence[InlineProjection],
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._gathered = gathered
        self._cache = cache
        self._reader = Reader(projections, self._pause)
        self._progress = progress
        self._number = 1
        self._sequence = 0
        self._slice_us = CLOCK.monotonic_us()

    def run(self, views: Views) -> None:
        """Read everything, in short transactions."""
        is_through = False
        while not is_through:
            with views.transaction() as tables:
                is_through, made = self.step(tables)
            if self._progress is not None:
                self._progress(TABLE, min(self._number - 1, made), made)

    def _pause(self) -> None:
        """Let the GIL go once a slice is used up: the thread may be one of the store's pool."""
        if CLOCK.monotonic_us() - self._slice_us > FINE_SLICE_US:
            CLOCK.sleep(0)
            self._slice_us = CLOCK.monotonic_us()

    def step(self, tables: ReadTables) -> tuple[bool, int]:
        """Read what one transaction may; whether that was the last of it, and of how many."""
        made = tables.commit_record().sessions_made
        self._cache.begin(tables.epoch)
        left = READ_BYTES_MAX
        while self._number <= made:
            for cost in self._session(tables):
                if not cost:
                    return True, made
                left -= cost
                self._pause()
                if left <= 0:
                    return False, made
            self._number, self._sequence = self._number + 1, 0
            left -= PART_BYTES
            self._pause()
            if left <= 0:
                return False, made
        return True, made

    def _session(self, tables: ReadTables) -> Iterator[int]:
        """Read a session's segments; gives what each cost, 0 when there was no room for it."""
        try:
            row = self._gathered.load_row(tables, self._number)
            if row.is_gone:
                return
            origin = Origin(self._number, row.tenant, row.name)
            for key, value in stored_segments(tables, self._number, max(self._sequence, row.first)):
                self._sequence = PAIR.unpack(key)[1] + 1
                cost = PART_BYTES
                if self._gathered.find(key, value) is None:
                    segment = self._cache.load(tables, key, value, keep=False)
                    cost += segment.memory_bytes
                    parts = self._reader.read(tables, segment, origin, row, WANTED)
                    if not self._gathered.add(tables, key, value, parts):
                        yield 0
                        return
                yield cost
        except CorruptionError:
            return


def stored_segments(
    tables: ReadTables, number: int, first: int, *, reverse: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a session's segments, from the one that holds a sequence on."""
    with tables.segment_cursor() as cursor:
        found = cursor.set_range(PAIR.pack(number, first))
        while found:
            key, value = cursor.item()
            if len(key) != PAIR.size:
                raise CorruptionError("key has another size", where=f"segment {key.hex()}")
            if PAIR.unpack(key)[0] != number:
                return
            yield key, value
            found = cursor.prev() if reverse else cursor.next()
