"""Merging: small neighbouring segments of a session become larger ones, tier by tier.

Physical only, like sealing. What a session's newest segments are is asked for after it was sealed
a few times: one seek, and a walk back to the first segment that is large enough.

Invariants:
    1. A merged segment takes the key of its newest input, in the transaction that deletes the
       others and brings the session's row up to it.
    2. Every merged segment is of a higher tier than each of its inputs, so that an event is
       rewritten at most ``TOP`` times; tiers grow by ``FACTOR``.
    3. A merged segment spans at most ``MERGE_POSITIONS_MAX`` positions: whoever reads in global
       order decodes it once for each window that meets it. Measured with 1,000 sessions in turn,
       twice as much makes that a quarter slower, for 10 % of the bytes.
    4. One commit merges at most ``COMMIT_MERGE_BYTES_MAX`` bytes of content and looks at
       ``LOOKS_MAX`` sessions. Beside appends it merges what ``BYTES_PER_US`` has earned since.
    5. What is to be merged is known to this process alone, and forgotten with it: the session's
       next sealing in another one finds it again.
    6. A session whose segments are damaged stays as it is, and nobody else is kept from merging.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from eventlog.dictionary import Dictionary
from eventlog.errors import CorruptionError
from eventlog.failpoints import fp
from eventlog.index import LooseIndex
from eventlog.keys import PAIR, U64
from eventlog.limits import (
    COMMIT_MERGE_BYTES_MAX,
    MERGE_POSITIONS_MAX,
    MERGE_SESSIONS_MAX,
    SEGMENT_BYTES_TARGET,
    SEGMENT_EVENTS_MAX,
)
from eventlog.record import HEADER
from eventlog.rows import SessionRow
from eventlog.segment import SegmentPrefix, join_segments
from eventlog.segmentcache import SegmentCache
from eventlog.tables import WriteTables

if TYPE_CHECKING:
    from eventlog.sealing import Sealing

FACTOR: Final = 4  # segments of one tier that become one; measured: 8 leaves twice as many behind
FULL_BYTES: Final = SEGMENT_BYTES_TARGET // 2  # a larger one is of the highest tier, and stays
NEWEST_MAX: Final = 64  # segments of a session that are looked at; of each tier some wait
LOOKS_MAX: Final = 256  # about 5 ms, in slices
BYTES_PER_US: Final = 2  # beside appends; about 3 % of a processor


def _steps(content_bytes: int) -> int:
    """How often a size can grow by ``FACTOR`` before it is full."""
    return ((FULL_BYTES // content_bytes).bit_length() + 1) // 2


TOP: Final = _steps(HEADER.size)
assert FACTOR == 4, "two bits a tier, see _steps"
assert SEGMENT_BYTES_TARGET // HEADER.size <= SEGMENT_EVENTS_MAX
assert 4 * SEGMENT_BYTES_TARGET <= COMMIT_MERGE_BYTES_MAX


def tier(content_bytes: int) -> int:
    """The tier of a segment: 0 of a single empty event, ``TOP`` of what is merged no more."""
    return TOP - _steps(content_bytes)


def due(prefixes: Sequence[SegmentPrefix]) -> list[tuple[int, int]]:
    """Which of a session's newest segments are to be merged.

    Args:
        prefixes: Oldest first, up to the session's newest; none of the highest tier.

    Returns:
        Places, start and stop, of neighbours that become one each.
    """
    sizes = [prefix.content_bytes for prefix in prefixes]
    tiers = [tier(size) for size in sizes]
    for highest in range(TOP - 1, -1, -1):
        start = len(tiers)
        while start and tiers[start - 1] <= highest:
            start -= 1
        if tiers[start:].count(highest) >= FACTOR:
            return [
                (first, stop)
                for first, stop in _chunks(prefixes, start)
                if tier(sum(sizes[first:stop])) > max(tiers[first:stop])
            ]
    return []


def _chunks(prefixes: Sequence[SegmentPrefix], start: int) -> Iterable[tuple[int, int]]:
    """Stretches of neighbours that fit into one segment."""
    total = 0
    for place in range(start, len(prefixes)):
        prefix = prefixes[place]
        total += prefix.content_bytes
        span = prefix.last_position - prefixes[start].first_position
        if place > start and (total > SEGMENT_BYTES_TARGET or span > MERGE_POSITIONS_MAX):
            yield start, place
            start, total = place, prefix.content_bytes
    yield start, len(prefixes)


@dataclass(slots=True)
class Merging:
    """What one commit merges, for memory to take over after it."""

    looked: list[int] = field(default_factory=list)  # sessions taken from the list
    again: list[int] = field(default_factory=list)  # those of them that have more to merge
    rows: dict[int, SessionRow] = field(default_factory=dict)
    content_bytes: int = 0
    inputs: int = 0
    outputs: int = 0


class Merges:
    """What this process knows to be merged; the writer's thread alone calls it."""

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, None] = OrderedDict()  # sessions to look at
        self.content_bytes = 0  # merged by this process
        self._sealed: OrderedDict[int, int] = OrderedDict()  # segments since the last look
        self._earned_us = 0

    @property
    def session_count(self) -> int:
        """Entries of sessions in memory, at most twice ``MERGE_SESSIONS_MAX``."""
        return len(self.waiting) + len(self._sealed)

    def note(self, sealing: Sealing) -> None:
        """Segments were sealed, and committed: their sessions are looked at after a few."""
        added: dict[int, int] = {}
        for _, run in sealing.runs:
            added[run.session] = added.get(run.session, 0) + 1
        sealed = self._sealed
        for state, row in sealing.rows:
            number = state.number
            more = added.get(number, 0)
            # Of a session that is met for the first time there may be any number to merge.
            count = sealed.pop(number, min(FACTOR, row.segments - more)) + more
            if count >= FACTOR and row.segments > 1:
                self.waiting[number] = None
                count = 0
            sealed[number] = count
        while len(sealed) > MERGE_SESSIONS_MAX:
            sealed.popitem(last=False)
        while len(self.waiting) > MERGE_SESSIONS_MAX:
            self.waiting.popitem(last=False)

    def share(self, event_count: int, now_us: int) -> int:
        """Bytes that a commit of so many appended events may merge."""
        if not event_count:
            return COMMIT_MERGE_BYTES_MAX
        earned = min(COMMIT_MERGE_BYTES_MAX, (now_us - self._earned_us) * BYTES_PER_US)
        # Less would not do for one segment, and the look would be in vain.
        return earned if earned >= 2 * SEGMENT_BYTES_TARGET else 0

    def merge(
        self,
        tables: WriteTables,
        sealing: Sealing,
        cache: SegmentCache,
        share: int,
        now_us: int,
        pause: Callable[[], None],
        dictionary_of: Callable[[int], Dictionary | None],
    ) -> Merging:
        """Merge what is due in the open write transaction, within a share of ``share``."""
        done = Merging()
        if not share or not self.waiting:
            return done
        self._earned_us = now_us
        sealed = {state.number: row for state, row in sealing.rows}
        try:
            with tables.segment_cursor() as cursor:
                while self.waiting and len(done.looked) < LOOKS_MAX:
                    number = self.waiting.popitem(last=False)[0]
                    done.looked.append(number)
                    try:
                        if not _merge_session(
                            tables,
                            cursor,
                            cache,
                            done,
                            number,
                            sealed.get(number) or tables.load_row(number),
                            share,
                            pause,
                            dictionary_of,
                        ):
                            break
                    except CorruptionError:
                        pass  # check tells; who reads it hears of it too
                    pause()
            if done.rows:
                fp("merge.after_segments")
                tables.put_rows(sorted([(U64.pack(each), row) for each, row in done.rows.items()]))
        except BaseException:
            self.drop(done)
            raise
        return done

    def take(self, done: Merging, index: LooseIndex) -> None:
        """Take a committed merging into memory."""
        self.content_bytes += done.content_bytes
        self.waiting.update(dict.fromkeys(done.again))
        if done.rows:
            with index.lock:
                for number, row in done.rows.items():
                    state = index.states.get(number)
                    if state is not None:
                        index.seal(state, row)

    def drop(self, done: Merging) -> None:
        """Nothing was written: what was to be merged is to be merged again."""
        self.waiting.update(dict.fromkeys(done.looked))


def _merge_session(
    tables: WriteTables,
    cursor: Any,
    cache: SegmentCache,
    done: Merging,
    number: int,
    row: SessionRow,
    share: int,
    pause: Callable[[], None],
    dictionary_of: Callable[[int], Dictionary | None],
) -> bool:
    """Merge the newest segments of a session that are due; False when the share is used up."""
    found = _newest(cursor, number, row.first, row.sealed)
    chunks = due([prefix for _, _, prefix in found])
    for start, stop in chunks:
        size = sum([prefix.content_bytes for _, _, prefix in found[start:stop]])
        if done.content_bytes + size > share:
            done.again.append(number)
            return False
        segments = []
        for key, value, _ in found[start:stop]:
            segments.append(cache.load(tables, key, value, keep=False))
            pause()
        key, value = join_segments(number, segments, dictionary_of(row.tenant_number))
        pause()
        for old, _, _ in found[start : stop - 1]:
            tables.remove_segment(old)
        tables.replace_segment(key, value)  # its newest one may be of this transaction
        row.segments -= stop - start - 1
        done.rows[number] = row
        done.content_bytes += size
        done.inputs += stop - start
        done.outputs += 1
        pause()
    if chunks:
        done.again.append(number)  # what came about may be due with its neighbours
    return True


def _newest(
    cursor: Any, number: int, first: int, stop: int
) -> list[tuple[bytes, bytes, SegmentPrefix]]:
    """Keys, values and prefixes of a session's newest segments that are not full, oldest first.

    What is void, below ``first``, is none of them, though it may still be there.
    """
    found: list[tuple[bytes, bytes, SegmentPrefix]] = []
    following = stop
    is_there = bool(stop) and cursor.set_range(PAIR.pack(number, stop - 1))
    while is_there and following > first and len(found) < NEWEST_MAX:
        key, value = cursor.item()
        if len(key) != PAIR.size or PAIR.unpack(key) != (number, following - 1):
            break  # not end to end: that is for check to tell
        prefix = SegmentPrefix.unpack(key, value)
        if prefix.content_bytes > FULL_BYTES:
            break
        if not 1 <= prefix.count <= following or prefix.content_bytes < HEADER.size:
            raise CorruptionError("segment states impossible sizes", where=f"segment {key.hex()}")
        found.append((key, value, prefix))
        following -= prefix.count
        is_there = cursor.prev()
    found.reverse()
    return found
