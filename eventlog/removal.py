"""Removal: a session is deleted, or its events below a sequence are purged.

Both begin with an event of the session, its tombstone or its base, and make everything below a
sequence *void* in the commit that writes it: the session's row says so, and no reader goes below.
What lies there is removed later (``reclaim``): a row of ``removal`` stands for it until then.

Invariants:
    1. The event, the session's row and the row of ``removal`` are written in one transaction.
    2. A void event is never read again; its position and its sequence stay taken.
    3. What a removal needs to read was read at its admission: damage refuses it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final

from eventlog import blobtable
from eventlog.body import decode_body
from eventlog.branching import PROJECTION as BRANCHES
from eventlog.branching import counts_of_base, decode_tip, follow, is_linear, rows_of_base
from eventlog.branchrows import linear_tip, sealed_tip
from eventlog.decoded import Segment
from eventlog.errors import CorruptionError
from eventlog.failpoints import fp
from eventlog.hotlog import HotLog
from eventlog.index import extension_of
from eventlog.inline import Changes, InlineProjection, InlineRows, state_key
from eventlog.keys import PAIR, U64
from eventlog.record import (
    BASE,
    CONTROL,
    FLAGS_BYTE,
    KIND_BYTE,
    MESSAGE,
    Extension,
    Flag,
    Origin,
    Record,
    decode_extension,
    decode_record,
    recorded_of,
    verify_record,
)
from eventlog.rollup import ROLLS_UP, kept_of
from eventlog.rows import ERASED, GONE, HELD, NO_SEQUENCE, SessionRow, expose, protect
from eventlog.segment import Run, encode_segment
from eventlog.segmentcache import decoded

if TYPE_CHECKING:
    from eventlog.index import LooseIndex, SessionState
    from eventlog.tables import ReadTables, WriteTables

_ROW: Final = Struct("<QQIIQ")
_HAS_BLOBS: Final = int(Flag.HAS_BLOBS)
_NOBODY: Final = Origin(0, "", "")
REMOVAL_VERSION: Final = 2  # the first format version whose stores can remove events
HOT: Final = 1  # void hot records are still to be overwritten
KEYS: Final = 2  # keys, and what projections made, are still to be removed
RELEASE_SLICE: Final = 16  # references between two looks at the clock
ERASES: Final = 1  # nothing of it may be left, also of the blobs that it named


@dataclass(frozen=True, slots=True)
class RemovalRow:
    """What is still to be removed of a session.

    Attributes:
        floor: Events below this sequence are void.
        hot_from: Position from which hot records are still to be overwritten.
        left: ``HOT`` and ``KEYS``.
        flags: ``ERASES``.
        asked_us: When it was asked for.
    """

    floor: int
    hot_from: int
    left: int
    flags: int
    asked_us: int

    def encode(self, key: bytes) -> bytes:
        """The row's value; ``key`` is the session number's key."""
        return protect(
            key, _ROW.pack(self.floor, self.hot_from, self.left, self.flags, self.asked_us)
        )

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> RemovalRow:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not such a row.
        """
        where = f"removal {key.hex()}"
        rest = expose(key, value, where)
        if len(key) != U64.size or len(rest) != _ROW.size:
            raise CorruptionError("has another size", where=where)
        return cls(*_ROW.unpack(rest))


@dataclass(slots=True)
class Removed:
    """A removal that a batch asked for.

    Attributes:
        state: The session.
        floor: Events below this sequence become void.
        is_gone: The session is deleted, not purged.
        is_erased: What it held is overwritten.
    """

    state: SessionState
    floor: int
    is_gone: bool
    is_erased: bool


@dataclass(slots=True)
class Removals:
    """What one commit removed, for memory to take over after it."""

    rows: list[tuple[SessionState, SessionRow]] = field(default_factory=list)
    is_pending: bool = False  # something is left for a later commit
    has_written: bool = False
    sessions: int = 0  # that were deleted
    stuck: dict[int, str] = field(default_factory=dict)  # sessions left alone, and why

    def merge(self, index: LooseIndex) -> None:
        """Take committed removals into memory."""
        with index.lock:
            for state, row in self.rows:
                if index.states.get(state.number) is state:
                    index.remove(state, row)


def begin(
    tables: WriteTables,
    log: HotLog,
    index: LooseIndex,
    removed: list[Removed],
    asked_us: int,
    planned: Callable[[SessionState], Iterator[bytes]],
    projections: Sequence[InlineProjection],
    pause: Callable[[], None],
) -> Removals:
    """Make events void: write the sessions' rows, and note what is left to do.

    Args:
        tables: The open write transaction, the events of removal written.
        log: Its hot log.
        index: The loose index, caught up.
        removed: What the batch asked for.
        asked_us: The commit's time.
        planned: The stored records of a session in the same batch, in order.
        projections: Whose rows change with what counts as sealed now.
        pause: Lets the GIL go when the slice is used up.
    """
    done = Removals(is_pending=bool(removed), has_written=bool(removed))
    inline = InlineRows(projections, pause)
    for each in removed:
        state = each.state
        key = U64.pack(state.number)
        before = tables.load_row(state.number)
        row = before.copy()
        row.first, row.details = each.floor, b""
        addresses: list[bytes] = []
        loose = loose_records(log, state, before.sealed, each.floor)
        head: bytes | None = None  # the record of a head that is loose
        for sequence, (position, value) in enumerate(loose, before.sealed):
            if not (row.branches or is_linear(value)):
                inline.add(linear_tip(tables, state.number, row.head, before.first, head))
                follow(row, [value])
            elif row.branches:
                follow(row, [value])
            elif value[KIND_BYTE] < CONTROL:
                head = value
            _pass(row, sequence, position, value)
            addresses += named_blobs(value)
            if not each.is_gone:
                branches = bool(row.branches)
                inline.add(inline.collect(state.origin, [value], [position], branches=branches))
            pause()
        if each.is_gone:
            for value in planned(state):
                row.messages += value[KIND_BYTE] == MESSAGE
                addresses += named_blobs(value)
            row.sealed = each.floor
            _forget(tables, row, before)
            row.flags |= GONE | (ERASED if each.is_erased else 0)
            done.sessions += 1
        else:
            _branch(tables, state, row, planned, inline)
            row.segments = _shorten(tables, state.number, each.floor, addresses)
            _keep(tables, state, row, before)
        # A session that is purged may be erased within the hour, and must not find them left.
        erases = each.is_erased or not each.is_gone
        released = release(tables, row.tenant_number, addresses, asked_us, pause, erases=erases)
        if erases and released.held:
            row.flags |= HELD
        tables.put_rows([(key, row)])
        left = (HOT if each.is_erased else 0) | (KEYS if each.is_gone else 0)
        flags = ERASES if each.is_erased else 0
        tables.put_removal(state.number, RemovalRow(each.floor, 0, left, flags, asked_us))
        done.rows.append((state, row))
        fp("removal.after_row")
        pause()
    inline.write(tables)
    return done


def _branch(
    tables: WriteTables,
    state: SessionState,
    row: SessionRow,
    planned: Callable[[SessionState], Iterator[bytes]],
    inline: InlineRows,
) -> None:
    """Where the rows of branches do not know what the base of a purge says, let them say it too.

    The base was made before its place was known: the session may have begun to branch above the
    floor, so that its rows do not tell yet of what lies below, or they may have begun to since.
    """
    for value in planned(state):
        if value[KIND_BYTE] != BASE:
            continue
        event = decode_record(state.origin, 0, value, Record)
        marks = decode_extension(event.extension, event.flags, event) if event.extension else {}
        body = decode_body(event.payload, marks.get(Extension.BODY_FIXES), where=event)
        told = rows_of_base(body, f"{event}")
        newest: Changes = {}
        if "branches" in body and not row.branches:
            row.branches, row.head_branch = counts_of_base(body)
            if row.first <= row.head != NO_SEQUENCE:  # sealed, and linear: more than the base knows
                newest = linear_tip(tables, state.number, row.head, row.first)
        elif "branches" in body or not row.branches:
            continue
        else:
            known = sealed_tip(tables, state.number, 0)
            told = [each for each in told if decode_tip(each[1], "branch").sequence == known]
        said = {state_key(state.number, BRANCHES, key): content for key, content in told}
        inline.add({**said, **newest})


def loose_records(
    log: HotLog, state: SessionState, sealed: int, floor: int
) -> Iterator[tuple[int, bytes]]:
    """Position and stored bytes of a session's committed loose events below a sequence.

    Raises:
        CorruptionError: One is missing or damaged.
    """
    loose = state.loose
    for sequence in range(sealed, min(floor, loose.base + len(loose.positions))):
        position = loose.positions[sequence - loose.base]
        value = loose.records[sequence] or log.get(position)
        if value is None:
            raise CorruptionError("loose record is missing", where=f"log {position}")
        verify_record(U64.pack(position), value)
        yield position, value


def require_readable(
    tables: ReadTables, log: HotLog, state: SessionState, floor: int, *, is_gone: bool
) -> None:
    """Read what ``begin`` will read, so that damage refuses this removal alone.

    Raises:
        CorruptionError: Something of it is damaged.
    """
    row = tables.load_row(state.number)
    for _ in loose_records(log, state, row.sealed, floor):
        pass
    if is_gone:
        return
    with tables.segment_cursor() as cursor:
        if cursor.set_range(PAIR.pack(state.number, floor)):
            key = cursor.key()
            if key[: U64.size] == U64.pack(state.number):
                decoded(tables, key, cursor.value())


def _forget(tables: WriteTables, row: SessionRow, before: SessionRow) -> None:
    """Of a session that is gone only the number and counts stay."""
    tables.delete_name(row.tenant, row.name)
    if before.last_position:
        tables.remove_activity(row.tenant_number, before.last_position)
    row.tenant = row.name = ""
    row.opening = None
    row.head, row.keys, row.segments = NO_SEQUENCE, 0, 0
    row.last_position = row.last_recorded_us = row.since_roll_up = 0
    row.branches = row.head_branch = 0


def _keep(tables: WriteTables, state: SessionState, row: SessionRow, before: SessionRow) -> None:
    """Loose events that were purged count as sealed: their keys, and the session's place."""
    if row.sealed == before.sealed:
        return
    keys = [
        (state.number, digest, result)
        for digest, result in (state.keys or {}).items()
        if before.sealed <= result.first < row.sealed
    ]
    if keys:
        tables.put_keys(keys)
        row.keys += len(keys)
    tables.put_activity([(row.tenant_number, row.last_position, state.number)])
    if before.last_position:
        tables.remove_activity(row.tenant_number, before.last_position)


def _pass(row: SessionRow, sequence: int, position: int, value: bytes) -> None:
    """Count a loose event that becomes void as sealing would."""
    kind = value[KIND_BYTE]
    if kind < CONTROL:
        if not row.branches:
            row.head = sequence
        row.messages += kind == MESSAGE
        row.since_roll_up += kind == MESSAGE
    if value[FLAGS_BYTE] & ROLLS_UP:
        row.since_roll_up = 0
        kept = kept_of(value, f"log {position}")
        if kept is not None:
            row.trim(row.messages - kept)
    row.sealed = sequence + 1
    row.last_position = position
    row.last_recorded_us = recorded_of(value)


def named_blobs(value: bytes) -> list[bytes]:
    """Addresses of the blobs that a stored record names."""
    if not value[FLAGS_BYTE] & _HAS_BLOBS:
        return []
    marks = extension_of(value, "record")
    blobs: list[bytes] = marks[Extension.BLOBS]
    return blobs


def blobs_of(segment: Segment, stop: int) -> list[bytes]:
    """Addresses of the blobs that the events of a segment name, up to a place."""
    found: list[bytes] = []
    for place in range(min(stop, segment.count)):
        if segment.flags(place) & _HAS_BLOBS:
            event = segment.make(place, _NOBODY, Record)
            marks = decode_extension(event.extension, event.flags, event)
            found += marks[Extension.BLOBS]
    return found


@dataclass(frozen=True, slots=True)
class Released:
    """What became of blobs whose references were given back.

    Attributes:
        gone: Removed, as nothing names them any more; not where they have their hour.
        left: All others.
        held: Those of them that nothing names, but that somebody put again within the hour.
    """

    gone: set[bytes]
    left: set[bytes]
    held: set[bytes]


def release(
    tables: WriteTables,
    tenant_number: int,
    addresses: list[bytes],
    now_us: int,
    pause: Callable[[], None],
    *,
    erases: bool,
) -> Released:
    """Take references back, and remove the blobs that nothing else names where that is asked for.

    Their chunks go with the next collection, or with the task that waits for the erasure. A blob
    that somebody put again within the hour, and did not name yet, stays for what is left of it.
    Each reference goes by itself, so that a blob whose count is wrong goes as far as it counts.
    """
    gone: set[bytes] = set()
    held: set[bytes] = set()
    for turn, address in enumerate(sorted(addresses)):
        try:
            kept = blobtable.release(tables, tenant_number, [address], now_us, erases=erases)
            held |= kept
            if erases and not kept and blobtable.erase(tables, tenant_number, [address], room=0):
                gone.add(address)
        except CorruptionError:
            pass  # check tells; what is to go must not stay because of it
        if not turn % RELEASE_SLICE:
            pause()
    return Released(gone, set(addresses) - gone, held)


def _shorten(tables: WriteTables, number: int, floor: int, addresses: list[bytes]) -> int:
    """Rewrite the segment that the floor cuts in two; how many segments are left from it on.

    Args:
        tables: The open write transaction.
        number: The session.
        floor: Its events below this sequence are void.
        addresses: Takes those of the blobs that the void ones of that segment name.
    """
    count = 0
    with tables.segment_cursor() as cursor:
        found = cursor.set_range(PAIR.pack(number, floor))
        is_first = True
        while found:
            key = cursor.key()
            if key[: U64.size] != U64.pack(number):
                break
            count += 1
            if is_first:
                is_first = False
                segment = decoded(tables, key, cursor.value())
                start = floor - segment.first_sequence
                if start > 0:
                    origin = Origin(number, "", "")
                    records = [
                        segment.make(place, origin, Record) for place in range(segment.count)
                    ]
                    addresses += blobs_of(segment, start)
                    kept = records[start:]
                    run = Run(
                        number,
                        PAIR.unpack(key)[1],
                        [record.stored() for record in kept],
                        [record.position for record in kept],
                        segment.prefix.messages_before
                        + sum([record.kind_code == MESSAGE for record in records[:start]]),
                    )
                    tables.replace_segment(*encode_segment(run))
                    cursor.set_range(key)
            found = cursor.next()
    return count
