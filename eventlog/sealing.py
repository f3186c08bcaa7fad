"""Sealing: loose events become segments; the sealed front of the hot log is cut off.

Physical only: nothing here changes what a session is or shows in its log.

Invariants:
    1. A segment, its session's row and its place in the activity table change in one transaction.
    2. Only committed events are sealed, never those of the batch beside them.
    3. A hot table is cut only when every position in it is sealed, and tables are cut in order.
    4. One commit seals at most ``COMMIT_ROLL_UPS_MAX`` sessions, or one for every 8 events that
       it appends, and cuts at most ``COMMIT_CUTS_MAX`` tables.
    5. An activity row counts only while its position is the session's last sealed one; replaced
       rows are removed when nothing waits, and skipped by readers until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from eventlog.errors import CorruptionError
from eventlog.failpoints import fp
from eventlog.hotlog import HotLog
from eventlog.index import LooseIndex, SessionState
from eventlog.keys import U64
from eventlog.limits import (
    BLOCK_POSITIONS,
    COMMIT_CUTS_MAX,
    COMMIT_EVENTS_MAX,
    COMMIT_REMOVALS_MAX,
    COMMIT_ROLL_UPS_MAX,
    HOT_BYTES_TARGET,
    HOT_EVENTS_TARGET,
    HOT_PRESSURE,
    HOT_TABLE_POSITIONS,
    SEGMENT_BYTES_TARGET,
    SEGMENT_EVENTS_MAX,
)
from eventlog.order import block_first, block_of, encode_block
from eventlog.record import recorded_of, verify_record
from eventlog.rows import KeyedResult, SessionRow
from eventlog.segment import Run, describe_runs, encode_segments
from eventlog.tables import WriteTables

SEALED_TOGETHER = 8  # sessions; about one slice of Python
LEAST_ROLL_UPS = 4  # sessions that a small commit may seal
EVENTS_PER_ROLL_UP = 8  # fewer than a segment holds, so that sealing keeps up
TIDY_ROLL_UPS = 16  # sessions that a commit without events seals


@dataclass(slots=True)
class Sealing:
    """What one commit seals and cuts, for memory to take over after it."""

    rows: list[tuple[SessionState, SessionRow]] = field(default_factory=list)
    runs: list[list[Run]] = field(default_factory=list)
    segments: list[tuple[bytes, bytes]] = field(default_factory=list)
    keys: list[tuple[int, bytes, KeyedResult]] = field(default_factory=list)
    activity: list[tuple[int, int, int]] = field(default_factory=list)
    replaced: list[tuple[int, int]] = field(default_factory=list)
    cuts: int = 0
    removed: int = 0
    floor: int = 0

    def merge(self, index: LooseIndex) -> None:
        """Take a committed sealing into memory."""
        with index.lock:
            for state, row in self.rows:
                index.seal(state, row)
                state.is_due = False
                index.mark_due(state)
            index.drop_before(self.floor)
            index.stale_activity.extend(self.replaced)

    def drop(self, index: LooseIndex) -> None:
        """Nothing was written: what was due is due again."""
        with index.lock:
            for state, _ in self.rows:
                state.is_due = False
                index.mark_due(state)


def is_overdue(index: LooseIndex, *, all_due: bool = True) -> bool:
    """True when there is something to seal or cut that need not wait for more events."""
    if index.damaged:
        return False
    index.advance_scan()
    is_long = len(index.hot) > HOT_EVENTS_TARGET or index.hot_bytes > HOT_BYTES_TARGET
    return (
        (all_due and bool(index.due))
        or (is_long and index.scan < index.floor + len(index.hot))  # something is still loose
        or index.scan >= index.floor + HOT_TABLE_POSITIONS
        or bool(index.stale_activity)
    )


def under_pressure(index: LooseIndex) -> bool:
    """True when the hot log is so long that sealing comes before new events."""
    return (
        len(index.hot) > HOT_PRESSURE * HOT_EVENTS_TARGET
        or index.hot_bytes > HOT_PRESSURE * HOT_BYTES_TARGET
    )


def seal(
    tables: WriteTables,
    log: HotLog,
    index: LooseIndex,
    floor: int,
    event_count: int,
    pause: Callable[[], None],
) -> Sealing:
    """Seal what is due, or the oldest when the hot log grows, and cut the sealed front.

    Args:
        tables: The open write transaction.
        log: Its hot log.
        index: The loose index, caught up.
        floor: First position of the hot log.
        event_count: Events that the same commit appends; 0 when nothing waits.
        pause: Lets the GIL go when the slice is used up.
    """
    done = Sealing(floor=floor)
    if index.damaged:
        return done  # the hot log cannot be trusted: move nothing
    try:
        for state in _candidates(index, _share(index, event_count)):
            _collect(tables, log, index, state, done)
            pause()
        for start in range(0, len(done.rows), SEALED_TOGETHER):
            _seal_sessions(done, start, start + SEALED_TOGETHER)
            pause()
        if done.rows:
            tables.put_segments(sorted(done.segments))
            fp("rollup.after_segment")
            tables.put_rows(
                sorted([(U64.pack(state.number), row) for state, row in done.rows], key=_first)
            )
            tables.put_activity(done.activity)
            if done.keys:
                tables.put_keys(done.keys)
        _cut(tables, log, index, done, pause)
        # At least as many as this commit replaces, so that they do not pile up.
        removals = max(COMMIT_REMOVALS_MAX, len(done.replaced) + 1)
        if not event_count:
            removals = COMMIT_EVENTS_MAX
        stale = index.stale_activity
        while stale and removals:
            tables.remove_activity(*stale.popleft())
            done.removed += 1
            removals -= 1
    except BaseException:
        done.drop(index)
        raise
    return done


def _share(index: LooseIndex, event_count: int) -> int:
    """How many sessions one commit seals: as many as keep the hot log from growing.

    Spread over the commits, so that none of them holds the GIL for long; more only when the hot
    log is far over its target.
    """
    if not event_count:
        return TIDY_ROLL_UPS
    share = max(LEAST_ROLL_UPS, event_count // EVENTS_PER_ROLL_UP)
    if 2 * len(index.hot) > 3 * HOT_EVENTS_TARGET or index.hot_bytes > HOT_BYTES_TARGET:
        share = max(share, COMMIT_ROLL_UPS_MAX)
    return share


def _first(pair: tuple[bytes, SessionRow]) -> bytes:
    return pair[0]


def _candidates(index: LooseIndex, count: int) -> list[SessionState]:
    found: list[SessionState] = []
    due = index.due
    while due and len(found) < count:
        state = due.popleft()
        if len(state.loose.positions) >= index.frequency:
            found.append(state)
        else:
            state.is_due = False
    if len(found) < count and (
        len(index.hot) > HOT_EVENTS_TARGET or index.hot_bytes > HOT_BYTES_TARGET // 2
    ):
        index.advance_scan()
        found += index.oldest_loose(count - len(found), set(found))
    return found


def _collect(
    tables: WriteTables, log: HotLog, index: LooseIndex, state: SessionState, done: Sealing
) -> None:
    """Note a session that is to be sealed, with its loose records cut into runs."""
    if state.row_epoch != index.epoch:
        row = tables.load_row(state.number)
        with index.lock:
            index.seal(state, row)
    loose = state.loose
    positions = loose.positions[:]
    count = len(positions)
    if not count:
        state.is_due = False
        return
    known = loose.records[:count]
    if None in known:
        known = [
            _read(log, position) if record is None else record
            for position, record in zip(positions, known, strict=True)
        ]
    records: list[bytes] = known  # type: ignore[assignment]  # all are known now
    if count <= SEGMENT_EVENTS_MAX and sum(map(len, records)) <= SEGMENT_BYTES_TARGET:
        runs = [Run(state.number, loose.base + count - 1, records, positions)]
    else:
        runs = []
        start = 0
        while start < count:
            stop = _run_stop(records, start)
            last = loose.base + stop - 1
            runs.append(Run(state.number, last, records[start:stop], positions[start:stop]))
            start = stop
    done.rows.append((state, state.row.copy()))
    done.runs.append(runs)


def _run_stop(records: list[bytes], start: int) -> int:
    """Where the segment that begins at ``start`` ends: at the target size, or with the records."""
    stop = min(len(records), start + SEGMENT_EVENTS_MAX)
    size = 0
    for place in range(start, stop):
        size += len(records[place])
        if size > SEGMENT_BYTES_TARGET and place > start:
            return place
    return stop


def _seal_sessions(done: Sealing, start: int, stop: int) -> None:
    """Encode the segments of some sessions and bring their rows up to them."""
    runs = [run for each in done.runs[start:stop] for run in each]
    words = describe_runs(runs)
    for (state, row), mine in zip(done.rows[start:stop], done.runs[start:stop], strict=True):
        before = row.last_position
        for run in mine:
            run.messages_before = row.messages
            row.messages += run.messages
            if run.last_public >= 0:
                row.head = run.last_sequence - len(run.records) + 1 + run.last_public
        row.segments += len(mine)
        last = mine[-1]
        row.sealed = last.last_sequence + 1
        row.last_position = last.positions[-1]
        row.last_recorded_us = recorded_of(last.records[-1])
        if state.keys:
            sealed = [
                (state.number, digest, result)
                for digest, result in state.keys.items()
                if result.first < row.sealed
            ]
            done.keys += sealed
            row.keys += len(sealed)
        done.activity.append((row.tenant_number, row.last_position, state.number))
        if before:
            done.replaced.append((row.tenant_number, before))
    done.segments += encode_segments(runs, words)


def _read(log: HotLog, position: int) -> bytes:
    record = log.get(position)
    if record is None:
        raise CorruptionError("loose record is missing", where=f"log {position}")
    verify_record(U64.pack(position), record)
    return record


def _cut(
    tables: WriteTables,
    log: HotLog,
    index: LooseIndex,
    done: Sealing,
    pause: Callable[[], None],
) -> None:
    index.advance_scan()
    while done.cuts < COMMIT_CUTS_MAX and index.scan >= done.floor + HOT_TABLE_POSITIONS:
        first = done.floor
        for block in range(block_of(first), block_of(first + HOT_TABLE_POSITIONS)):
            start = block_first(block) - index.floor
            stop = start + BLOCK_POSITIONS
            tables.put_block(
                *encode_block(
                    block,
                    tables.load_block(block).link,
                    [state.number for state in index.hot[start:stop]],
                    index.hot_sequences[start:stop],
                )
            )
            pause()
        tables.add_ids(first, first + HOT_TABLE_POSITIONS, index)
        log.cut(first)
        done.floor += HOT_TABLE_POSITIONS
        done.cuts += 1
