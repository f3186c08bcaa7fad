"""Sealing: loose events become segments; the sealed front of the hot log is cut off.

Physical only: nothing here changes what a session is or shows in its log.

Invariants:
    1. A segment, its session's row, its place in the activity table and the rows that the inline
       projections make of its events change in one transaction.
    2. Only committed events are sealed, never those of the batch beside them.
    3. A hot table is cut only when every position in it is sealed, and tables are cut in order;
       before a rewrite of the file, single blocks are too.
    4. Beside appends only a full hot log is sealed; what is due waits for a moment without any,
       and so does all but ``HOT_EVENTS_IDLE`` events: nobody waits then, and sealed they take a
       third of the room.
       One commit seals at most ``COMMIT_ROLL_UPS_MAX`` sessions, or one for every 8 events that
       it appends, and of all of them at most ``COMMIT_SEALED_EVENTS_MAX`` events and
       ``COMMIT_SEALED_BYTES_MAX`` bytes, plus one segment; the rest of a session follows in later
       commits. It cuts at most ``COMMIT_CUTS_MAX`` tables.
    5. An activity row counts only while its position is the session's last sealed one; readers skip
       replaced rows. They are removed when nothing waits, or when ``STALE_ROWS_MAX`` of them do; a
       process that ends without a close leaves those that it knew of.
    6. A session whose damage does not let it be sealed is set aside (``LooseIndex.unsealable``);
       the others are sealed, and the appends beside them written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from eventlog.branching import follow, is_linear
from eventlog.branchrows import linear_tip
from eventlog.dictionary import Dictionary
from eventlog.errors import CorruptionError
from eventlog.failpoints import fp
from eventlog.hotlog import HotLog
from eventlog.index import Loose, LooseIndex, SessionState
from eventlog.inline import InlineProjection, InlineRows
from eventlog.keys import U64
from eventlog.limits import (
    BLOCK_POSITIONS,
    COMMIT_BYTES_MAX,
    COMMIT_CUTS_MAX,
    COMMIT_EVENTS_MAX,
    COMMIT_ROLL_UPS_MAX,
    COMMIT_SEALED_BYTES_MAX,
    COMMIT_SEALED_EVENTS_MAX,
    DUE_EVENTS,
    HOT_BYTES_IDLE,
    HOT_BYTES_TARGET,
    HOT_EVENTS_IDLE,
    HOT_EVENTS_TARGET,
    HOT_PRESSURE,
    HOT_TABLE_POSITIONS,
    SEGMENT_BYTES_TARGET,
    SEGMENT_EVENTS_MAX,
    SNAPSHOT_FREQUENCY,
    STALE_ROWS_MAX,
)
from eventlog.order import block_first, block_of, encode_block
from eventlog.record import HEADER_BYTES, recorded_of, verify_record
from eventlog.rollup import NEVER, kept_of
from eventlog.rows import KeyedResult, SessionRow
from eventlog.segment import Run, describe_runs, encode_segments
from eventlog.tables import WriteTables

SEALED_TOGETHER = 8  # segments; with the next about one slice of Python
SEALED_TOGETHER_EVENTS = 256  # reached by the last of them
LEAST_ROLL_UPS = 4  # sessions that a small commit may seal
LEAST_SEALED_EVENTS = 256  # of them
EVENTS_PER_ROLL_UP = 8  # fewer than a segment holds, so that sealing keeps up
ID_RUN_POSITIONS = 2 * BLOCK_POSITIONS  # whose ids make one run, with a filter of one page
TIDY_ROLL_UPS = 16  # sessions that a commit without events seals
RUN_EVENTS_MAX = SEGMENT_BYTES_TARGET // HEADER_BYTES  # no longer run has the target's size

assert RUN_EVENTS_MAX <= SEGMENT_EVENTS_MAX


@dataclass(slots=True)
class Sealing:
    """What one commit seals and cuts, for memory to take over after it."""

    popped: set[SessionState] = field(default_factory=set)  # from the queue of those that are due
    rows: list[tuple[SessionState, SessionRow]] = field(default_factory=list)
    runs: list[tuple[SessionRow, Run]] = field(default_factory=list)
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
                if index.states.get(state.number) is state:  # a reader may have begun anew
                    index.seal(state, row)
                    index.forget_idle(state)
            self._queue_again(index)
            index.drop_before(self.floor)
            index.stale_activity.extend(self.replaced)

    def drop(self, index: LooseIndex) -> None:
        """Nothing was written: what was due is due again."""
        with index.lock:
            self._queue_again(index)

    def _queue_again(self, index: LooseIndex) -> None:
        for state in self.popped:
            if state.number not in index.unsealable:
                state.is_due = False
                index.mark_due(state)


def due_events(frequency: int) -> int:
    """Loose events of a session that are sealed in a moment without appends, however few others.

    Sealed at each roll-up, a conversation of 30 turns would lie in two segments, the second in the
    middle of a page that is full. Whoever wants shorter roll-ups than usual gets their segments.

    Args:
        frequency: The store's ``snapshot_frequency``.
    """
    return frequency if frequency < SNAPSHOT_FREQUENCY else max(frequency, DUE_EVENTS)


def is_overdue(index: LooseIndex) -> bool:
    """True when there is something to seal or cut that need not wait for more events."""
    if index.damaged:
        return False
    index.advance_scan()
    return (
        bool(index.due)
        or _fill_idle(index) > 1
        or _cut_stop(index, index.floor) is not None
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
    leaving: Collection[SessionState],
    projections: Sequence[InlineProjection],
    pause: Callable[[], None],
    dictionary_of: Callable[[int], Dictionary | None],
) -> Sealing:
    """Seal what is due, or the oldest when the hot log grows, and cut the sealed front.

    Args:
        tables: The open write transaction.
        log: Its hot log.
        index: The loose index, caught up.
        floor: First position of the hot log.
        event_count: Events that the same commit appends; 0 when nothing waits.
        leaving: Sessions of which the same commit removes events: they are left alone.
        projections: Whose rows change with what is sealed.
        pause: Lets the GIL go when the slice is used up.
        dictionary_of: What a tenant's segments are compressed with, by its number.
    """
    done = Sealing(floor=floor)
    if index.damaged:
        return done  # the hot log cannot be trusted: move nothing
    inline = InlineRows(projections, pause)
    try:
        share = _share(index, event_count)
        _collect_all(tables, log, index, done, share, leaving, inline, pause)
        for row, run in done.runs:
            run.dictionary = dictionary_of(row.tenant_number)
        counts_roll_ups = index.roll_ups is not NEVER
        for group in _groups(done.runs):
            done.segments += _encode(group, counts_roll_ups=counts_roll_ups)
            pause()
        _complete_rows(done)
        if done.rows:
            tables.put_segments(sorted(done.segments))
            fp("rollup.after_segment")
            tables.put_rows(
                sorted([(U64.pack(state.number), row) for state, row in done.rows], key=_first)
            )
            inline.write(tables)
            fp("rollup.after_state")
            tables.put_activity(done.activity)
            if done.keys:
                tables.put_keys(done.keys)
        _cut(tables, log, index, done, pause)
        _remove_stale(tables, index, done, event_count)
    except BaseException:
        done.drop(index)
        raise
    return done


def _remove_stale(tables: WriteTables, index: LooseIndex, done: Sealing, event_count: int) -> None:
    """Remove replaced activity rows: while nothing waits, or twice as many as come if too many."""
    stale = index.stale_activity
    removals = COMMIT_EVENTS_MAX
    if event_count:
        removals = 2 * len(done.replaced) if len(stale) > STALE_ROWS_MAX else 0
    while stale and removals:
        tables.remove_activity(*stale.popleft())
        done.removed += 1
        removals -= 1


@dataclass(slots=True)
class _Share:
    """What one commit may still seal."""

    sessions: int
    event_count: int
    byte_count: int
    oldest: bool = False  # those with the oldest events: the hot log is full
    all_due: bool = False  # those that are due

    @property
    def is_left(self) -> bool:
        return self.event_count > 0 and self.byte_count > 0


def _fill(index: LooseIndex) -> float:
    """How full the hot log is from its oldest loose event on: 1.0 at its target."""
    fill = max(len(index.hot) / HOT_EVENTS_TARGET, 2 * index.hot_bytes / HOT_BYTES_TARGET)
    return _open_share(index) * fill


def _fill_idle(index: LooseIndex) -> float:
    """The same in a moment without appends."""
    if index.seals_before:
        return 2.0 if index.scan < index.seals_before else 0.0
    fill = max(len(index.hot) / HOT_EVENTS_IDLE, 2 * index.hot_bytes / HOT_BYTES_IDLE)
    return _open_share(index) * fill


def _open_share(index: LooseIndex) -> float:
    """Which part of the hot log lies behind its oldest loose event, that one included."""
    count = len(index.hot)
    return 1 - (index.scan - index.floor) / count if count else 0.0


def _share(index: LooseIndex, event_count: int) -> _Share:
    """How much one commit seals.

    Beside appends only what keeps a full hot log from growing, the more the fuller it is, and
    spread over the commits so that none of them holds the GIL for long: the longer events stay
    loose, the longer are the segments, and what a segment costs is paid once.
    """
    index.advance_scan()
    if not event_count:
        is_full = _fill_idle(index) > 1
        sessions = COMMIT_ROLL_UPS_MAX if is_full else TIDY_ROLL_UPS
        return _Share(sessions, COMMIT_EVENTS_MAX, COMMIT_BYTES_MAX, oldest=is_full, all_due=True)
    fill = _fill(index)
    if fill <= 1:
        return _Share(0, 0, 0)
    sessions = max(LEAST_ROLL_UPS, event_count // EVENTS_PER_ROLL_UP)
    if fill > 1.5:
        sessions = max(sessions, COMMIT_ROLL_UPS_MAX)
    events = max(LEAST_SEALED_EVENTS, int(event_count * fill))
    events = min(events, COMMIT_SEALED_EVENTS_MAX)
    return _Share(sessions, events, COMMIT_SEALED_BYTES_MAX, oldest=True)


def _first(pair: tuple[bytes, SessionRow]) -> bytes:
    return pair[0]


def _candidates(index: LooseIndex, share: _Share, popped: set[SessionState]) -> list[SessionState]:
    """Sessions to seal: when the hot log is full those with its oldest events, then who is due."""
    taken: set[SessionState] = set()
    found: list[SessionState] = []
    if share.oldest:
        positions = COMMIT_SEALED_EVENTS_MAX
        if index.seals_before:
            positions = min(positions, index.seals_before - index.scan)
        found = index.oldest_loose(share.sessions, taken, positions)
    due = index.due
    while share.all_due and due and len(found) < share.sessions:
        state = due.popleft()
        popped.add(state)
        if state not in taken and len(state.loose.positions) >= index.frequency:
            found.append(state)
    return found


def _collect_all(
    tables: WriteTables,
    log: HotLog,
    index: LooseIndex,
    done: Sealing,
    share: _Share,
    leaving: Collection[SessionState],
    inline: InlineRows,
    pause: Callable[[], None],
) -> None:
    """Note what is to be sealed, until the share is used up."""
    for state in _candidates(index, share, done.popped):
        if not share.is_left:
            break
        if state in leaving:
            continue
        try:
            _collect(tables, log, index, state, done, share, inline, pause)
        except CorruptionError as error:
            with index.lock:
                index.unsealable[state.number] = str(error)
        pause()


def _collect(
    tables: WriteTables,
    log: HotLog,
    index: LooseIndex,
    state: SessionState,
    done: Sealing,
    share: _Share,
    inline: InlineRows,
    pause: Callable[[], None],
) -> None:
    """Note the loose records of a session that are to be sealed, cut into runs."""
    if state.row_epoch != index.epoch:
        row = tables.load_row(state.number)
        with index.lock:
            index.seal(state, row)
    loose = state.loose
    count = len(loose.positions)
    if index.seals_before:
        count = bisect_left(loose.positions, index.seals_before)
    if not count:
        return
    row = state.row.copy()
    runs: list[tuple[SessionRow, Run]] = []
    start = 0
    while start < count and share.is_left:
        records = _next_records(log, loose, start, count)
        stop = start + len(records)
        positions = loose.positions[start:stop].tolist()
        runs.append((row, Run(state.number, loose.base + stop - 1, records, positions)))
        share.event_count -= len(records)
        share.byte_count -= sum(map(len, records))
        start = stop
        pause()
    changes = _branch(tables, state, row, runs)
    if state.has_controls or row.branches:
        for _, run in runs:
            found = inline.collect(
                state.origin, run.records, run.positions, branches=bool(row.branches)
            )
            changes.update(found)
            pause()
    done.rows.append((state, row))
    done.runs += runs
    inline.add(changes)


def _branch(
    tables: WriteTables,
    state: SessionState,
    row: SessionRow,
    runs: list[tuple[SessionRow, Run]],
) -> dict[bytes, bytes | None]:
    """Bring the row of a session that branches up to what is sealed of it.

    Returns:
        What its rows need that these events do not tell: the tip that it had while it was linear.
    """
    if state.branching is None:
        return {}
    found: dict[bytes, bytes | None] = {}
    if not row.branches:
        if all([is_linear(record) for _, run in runs for record in run.records]):
            return {}
        found = linear_tip(tables, state.number, row.head, row.first)
    follow(row, [record for _, run in runs for record in run.records])
    return found


def _next_records(log: HotLog, loose: Loose, start: int, count: int) -> list[bytes]:
    """The loose records from ``start`` on that make one segment: of the target size, or one."""
    known = loose.stored(start, min(count, start + RUN_EVENTS_MAX))
    records: list[bytes] = []
    size = 0
    for place, record in enumerate(known, start):
        value = _read(log, loose.positions[place]) if record is None else record
        size += len(value)
        if size > SEGMENT_BYTES_TARGET and records:
            break
        records.append(value)
    return records


def _groups(runs: list[tuple[SessionRow, Run]]) -> Iterator[list[tuple[SessionRow, Run]]]:
    """Runs that are encoded together."""
    group: list[tuple[SessionRow, Run]] = []
    events = 0
    for each in runs:
        group.append(each)
        events += len(each[1].records)
        if len(group) == SEALED_TOGETHER or events >= SEALED_TOGETHER_EVENTS:
            yield group
            group = []
            events = 0
    if group:
        yield group


def _encode(
    group: list[tuple[SessionRow, Run]], *, counts_roll_ups: bool
) -> list[tuple[bytes, bytes]]:
    """The segments of some runs; brings the sessions' rows up to them."""
    runs = [run for _, run in group]
    words = describe_runs(runs)
    for row, run in group:
        run.messages_before = row.messages
        row.messages += run.messages
        if run.last_public >= 0 and not row.branches:  # else it was followed already
            row.head = run.last_sequence - len(run.records) + 1 + run.last_public
        if run.rolled >= 0:
            _note_roll_up(row, run)
        elif counts_roll_ups:
            row.since_roll_up += run.messages
        row.segments += 1
        row.sealed = run.last_sequence + 1
        row.last_position = run.positions[-1]
        row.last_recorded_us = recorded_of(run.records[-1])
    return encode_segments(runs, words)


def _note_roll_up(row: SessionRow, run: Run) -> None:
    """Bring a row up to the last roll-up among a run's records."""
    row.since_roll_up = run.since
    kept = kept_of(run.records[run.rolled], f"log {run.positions[run.rolled]}")
    if kept is not None:
        row.trim(row.messages - run.since - kept)


def _complete_rows(done: Sealing) -> None:
    """Note the keys that are sealed now, and the sessions' new places in the activity table."""
    for state, row in done.rows:
        if row.is_gone:
            continue
        if state.keys:
            sealed = [
                (state.number, digest, result)
                for digest, result in takewhile(
                    lambda each: each[1].first < row.sealed,  # noqa: B023 - used up at once
                    state.keys.items(),  # in sequence order
                )
            ]
            done.keys += sealed
            row.keys += len(sealed)
        done.activity.append((row.tenant_number, row.last_position, state.number))
        before = state.row.last_position
        if before:
            done.replaced.append((row.tenant_number, before))


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
    while done.cuts < COMMIT_CUTS_MAX:
        first, following = done.floor, _cut_stop(index, done.floor)
        if following is None:
            break
        for block in range(block_of(first), block_of(following)):
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
        for start in range(first, following, ID_RUN_POSITIONS):
            tables.add_ids(start, min(following, start + ID_RUN_POSITIONS), index)
        log.cut(first, following)
        done.floor = following
        done.cuts += 1


def _cut_stop(index: LooseIndex, floor: int) -> int | None:
    """Where the sealed front that can be cut now ends, exclusive; None for nothing to cut."""
    table_stop = floor + HOT_TABLE_POSITIONS - (floor - 1) % HOT_TABLE_POSITIONS
    if index.scan >= table_stop:
        return table_stop
    if index.cuts_blocks and index.scan >= floor + BLOCK_POSITIONS:
        return floor + BLOCK_POSITIONS
    return None
