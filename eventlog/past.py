"""A session's past: what it was after one of its events, read from as few segments as can be.

Everything works within one transaction's view of the session (``reading.SessionView``), on its
events before a sequence ``stop``.

Invariants:
    1. A segment is decoded only if its prefix says that it holds what is looked for.
    2. What is told of the events before ``stop`` depends on no later event.
    3. Nothing below ``first``, the session's purge floor, is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from eventlog import columns
from eventlog.body import decode_body
from eventlog.branching import Opening, Stretch, Tip, branch_of, path_to
from eventlog.branchrows import Rows, opening, sealed_branches, sealed_tip
from eventlog.decoded import HEAD_BYTES, Segment
from eventlog.errors import CorruptionError
from eventlog.index import SessionState
from eventlog.keys import PAIR
from eventlog.present import PresentRows
from eventlog.reading import SessionView, read_loose
from eventlog.record import (
    BASE,
    CONTROL,
    FLAGS_BYTE,
    HEAD_KIND_BYTE,
    HEAD_MOVE,
    KIND_BYTE,
    MESSAGE,
    Factory,
    Origin,
    R,
    Record,
    decode_record,
    recorded_of,
)
from eventlog.rollup import ROLLS_UP, kept_in
from eventlog.rows import NO_SEQUENCE, SessionRow
from eventlog.segment import SegmentPrefix
from eventlog.segmentcache import SegmentCache
from eventlog.sessionfacts import require_whole
from eventlog.tables import ReadTables

_CONTROL_BIT: Final = 1 << 63  # of a segment's kinds; all control kinds share it
_FLAGS: Final = HEAD_KIND_BYTE + 2  # offset of the flags in a header
_RECORDED: Final = 24  # offset of the recorded time in a header


class Make(Protocol):
    """Makes an event by its sequence."""

    def __call__(self, sequence: int, factory: Factory[R], /) -> R:
        """The event."""


Back = Iterator[tuple[tuple[int, int], int, Make]]
"""Kind and flags, sequence, and what makes the event, newest first."""

assert CONTROL >= 63


class Past:
    """One session in one transaction.

    Args:
        tables: The transaction.
        view: The session as it sees it.
        row: The session's row.
        state: What memory holds of it.
        cache: Decoded segments.
        is_trimmed: Whether the view may have lost messages.
    """

    def __init__(
        self,
        tables: ReadTables,
        view: SessionView,
        row: SessionRow,
        state: SessionState | None,
        cache: SegmentCache,
        *,
        is_trimmed: bool,
    ) -> None:
        self.tables = tables
        self.view = view
        self.row = row
        self.is_trimmed = is_trimmed
        self._state = state
        self.first = row.first
        self._cache = cache
        self._log = tables.hot_log(view.record)

    def read_kinds(
        self, first: int, stop: int, kinds: frozenset[int], factory: Factory[R], events_max: int
    ) -> tuple[list[R], int]:
        """Events of some kinds from sequence ``first`` to before ``stop``, in order.

        Returns:
            The events, at least ``events_max`` unless all are read, and the sequence to go on with.
        """
        found: list[R] = []
        view = self.view
        sequence = first
        sealed = min(stop, view.sealed)
        if sequence < sealed:
            bits = sum({1 << min(kind, 63) for kind in kinds})
            for start, prefix, load in self._segments(sequence):
                if start > sequence:
                    break
                if prefix.kinds & bits:
                    segment = load()
                    for place in range(sequence - start, min(prefix.count, stop - start)):
                        if segment.kinds[place] in kinds:
                            found.append(segment.make(place, view.origin, factory))
                sequence = min(start + prefix.count, stop)
                if sequence >= sealed or len(found) >= events_max:
                    break
            if sequence < sealed and len(found) < events_max:
                raise self._missing(sequence)
        while sequence < stop and len(found) < events_max:
            value = self._stored(sequence)
            if value[KIND_BYTE] in kinds:
                found.append(self._decoded(sequence, value, factory))
            sequence += 1
        return found, sequence

    def present_row(self, present: PresentRows, subkey: bytes) -> bytes | None:
        """One row of a projection, as of the session's newest event; None when there is none.

        Raises:
            CorruptionError: It is damaged, or a loose event that may change it is.
        """
        view, state = self.view, self._state
        loose = None
        if state is not None:
            require_whole(state)
            if state.has_controls or state.loose is not view.loose:
                loose = view.loose
        return present.row(self.tables, view.record, view.origin, loose, view.loose_stop, subkey)

    def last_of_kind(self, kind: int, factory: Factory[R]) -> R | None:
        """The last event of one kind; None when there is none."""
        for met, sequence, make in self._back(self.view.event_count, bits=1 << min(kind, 63)):
            if met[0] == kind:
                return make(sequence, factory)
        return None

    def shown(
        self, stop: int, count: int | None, factory: Factory[R], leaf: int | None = None
    ) -> list[R]:
        """The messages that the view shows before ``stop``, oldest first, at most ``count``.

        Those since the last roll-up, and before them as many as that one kept (``rollup``); of a
        session that branches those on the path to the head, or to another event.
        """
        found: list[R] = []
        room = NO_SEQUENCE if count is None else count
        is_decided = False
        if not self.view.branches:
            back: Back = self._back(stop)
        else:
            head = self.head(stop, self.row.head) if leaf is None else leaf
            if head is None or head < self.first:
                return found
            back = self._path_back(head, stop)
        for (kind, flags), sequence, make in back:
            if not is_decided and flags & ROLLS_UP:
                is_decided = True
                event = make(sequence, Record)
                kept = kept_in(event.extension, event.flags, f"position {event.position}")
                if kept is not None:
                    room = min(room, len(found) + kept)
            if len(found) >= room:
                break
            if kind == MESSAGE:
                found.append(make(sequence, factory))
        found.reverse()
        return found

    def since_roll_up(self, stop: int) -> int:
        """Messages before ``stop`` since the last roll-up.

        Those that were purged count as they do in the session's row, unless it was rolled up after
        ``stop``, since when no row tells of them.
        """
        count = 0
        for (kind, flags), _, _ in self._back(stop):
            if flags & ROLLS_UP:
                return count
            count += kind == MESSAGE
        sealed = self.view.sealed
        if not self.first:
            return count
        told = self.row.since_roll_up
        for (kind, flags), sequence, _ in self._back(self.view.event_count):
            if sequence < min(stop, sealed):
                break
            if sequence >= stop and flags & ROLLS_UP:
                return count
            if kind == MESSAGE:
                told += (sequence >= sealed) - (sequence >= stop)
        return max(count, told)

    def message_count(self, stop: int) -> int:
        """Messages before ``stop``, also those that were purged."""
        view = self.view
        if stop > view.sealed:
            kinds = [self._stored(sequence)[KIND_BYTE] for sequence in range(view.sealed, stop)]
            return self.row.messages + kinds.count(MESSAGE)
        if stop <= self.first:
            return 0
        for start, prefix, load in self._segments(stop - 1):
            if start < stop:
                return prefix.messages_before + load().kinds[: stop - start].count(MESSAGE)
            break
        raise self._missing(stop - 1)

    def head(self, stop: int, head: int) -> int | None:
        """Sequence of the last public event before ``stop``; None when there is none.

        Args:
            stop: A sequence.
            head: The session's head.
        """
        bits = NO_SEQUENCE if self.view.branches else _CONTROL_BIT - 1
        for (kind, _), sequence, make in self._back(stop, bits=bits):
            if kind < CONTROL:
                return sequence
            if kind == HEAD_MOVE:
                parent = make(sequence, Record).parent_word
                return None if parent == NO_SEQUENCE else parent
        if self.first and self.view.branches:
            told = self._told_by_base()
            if "head" in told or "branches" in told:
                return told.get("head")
        if self.first:  # it was purged: the next public event names it
            sequence = stop
            while sequence < self.view.event_count:
                event = self.event(sequence, Record)
                if event.kind_code < CONTROL:
                    head = event.parent_word
                    break
                sequence += 1
            return None if head == NO_SEQUENCE else head
        return None

    def _told_by_base(self) -> dict[str, Any]:
        """What the newest purge left; the next event of a tree may follow another than the head."""
        base = self.last_of_kind(BASE, Record)
        body = None if base is None else decode_body(base.payload, where=base)
        return body if type(body) is dict and body.get("last") == self.first - 1 else {}

    def event(self, sequence: int, factory: Factory[R]) -> R:
        """One event."""
        if sequence >= self.view.sealed:
            return self._decoded(sequence, self._stored(sequence), factory)
        for start, _, load in self._segments(sequence):
            if start <= sequence:
                return load().make(sequence - start, self.view.origin, factory)
            break
        raise self._missing(sequence)

    def last_by(self, time_us: int) -> int | None:
        """The last sequence that was recorded at that time or before; None when all came later.

        Looks at a number of segments that grows as the logarithm of theirs. Of a loaded session
        whose recorded times go back, it finds one event with a later one after it.
        """
        view = self.view
        for sequence in range(view.event_count - 1, view.sealed - 1, -1):
            if recorded_of(self._stored(sequence)) <= time_us:
                return sequence
        low, high = self.first, view.sealed  # all below low are early, all from high on late
        best: tuple[int, Segment] | None = None
        while low < high:
            for start, prefix, load in self._segments((low + high) // 2):
                if prefix.first_recorded_us <= time_us:
                    low = start + prefix.count
                    best = (start, load())
                else:
                    high = start
                break
            else:
                raise self._missing((low + high) // 2)
        if best is None:
            return None
        start, segment = best
        for place in range(segment.count - 1, -1, -1):
            offset = place * HEAD_BYTES + _RECORDED
            if int.from_bytes(segment.heads[offset : offset + 8], "little") <= time_us:
                return start + place
        return None

    # Branches

    def tip(self, branch: int) -> int | None:
        """Sequence of a branch's newest public event, or of what its first one would follow.

        None when there is neither.
        """
        view = self.view
        if not view.branches:
            return self.head(view.event_count, self.row.head) if branch == 0 else None
        number = view.origin.number
        known = None if view.branching is None else view.branching.tips.get(branch)
        if known is not None and known >= view.event_count:  # memory is ahead of this transaction
            known = self._newest_loose(branch)
        sealed = sealed_tip(self.tables, number, branch)
        if known is not None:
            return known if sealed is None else max(known, sealed)
        if sealed is not None:
            return sealed
        opened = self.opening(branch)
        return None if opened is None or opened.parent == NO_SEQUENCE else opened.parent

    def _newest_loose(self, branch: int) -> int | None:
        view = self.view
        for sequence in range(view.event_count - 1, max(view.sealed, self.first) - 1, -1):
            value = self._stored(sequence)
            if value[KIND_BYTE] < CONTROL and branch_of(value) == branch:
                return sequence
        return None

    def opening(self, branch: int) -> Opening | None:
        """What opened a branch; None for branch 0, and where its row is missing."""
        return opening(self.tables, self.view.origin.number, self.view.branching, branch)

    def path(self, leaf: int) -> list[Stretch]:
        """The path from the root to an event, as stretches of branches, root first.

        Raises:
            CorruptionError: What tells it is damaged or missing.
        """
        if not self.view.branches:
            return [Stretch(0, -1, leaf)]
        return path_to(leaf, self.event(leaf, Record).branch, self.opening)

    def branches(self) -> Rows | None:
        """All branches; None when memory knows of newer events than this transaction."""
        view = self.view
        number, known = view.origin.number, view.branching
        if not view.branches:
            head = self.head(view.event_count, self.row.head)
            if head is None:
                return {}
            is_kept = head >= self.first
            return {0: (None, Tip(head, self.event(head, Record).recorded_us if is_kept else 0))}
        found = sealed_branches(self.tables, number) if self.row.branches else {}
        if known is None:
            return found
        for branch, opened in dict(known.openings).items():
            if opened.sequence >= view.event_count:
                return None
            found[branch] = (opened, found.get(branch, (None, None))[1])
        for branch, sequence in dict(known.tips).items():
            if sequence >= view.event_count:
                return None
            before, tip = found.get(branch, (None, None))
            if tip is None or tip.sequence < sequence:
                is_kept = sequence >= self.first  # else nobody knows the time any more
                tip = Tip(sequence, self.event(sequence, Record).recorded_us if is_kept else 0)
            found[branch] = (before, tip)
        return found

    def head_branch(self, stop: int) -> int:
        """The branch that the head was on before ``stop``."""
        if not self.view.branches:
            return 0
        for (kind, _), sequence, make in self._back(stop):
            if kind < CONTROL or kind == HEAD_MOVE:
                return make(sequence, Record).branch
        told: int = self._told_by_base().get("head_branch", 0)
        return told

    def read_path(
        self,
        path: Sequence[Stretch],
        first: int,
        factory: Factory[R],
        *,
        events_max: int,
        bytes_max: int,
    ) -> tuple[list[R], int]:
        """Public events of a path from a sequence on, root first.

        Returns:
            The events, and the sequence to go on with; after the path's last one at its end.
        """
        found: list[R] = []
        size = 0
        for stretch in path:
            first = max(first, stretch.after + 1, self.first)
            if first > stretch.last:
                continue
            for sequence, make, byte_count in self._on_branch(stretch.branch, first, stretch.last):
                found.append(make(sequence, factory))
                size += byte_count
                if len(found) >= events_max or size >= bytes_max:
                    return found, sequence + 1
            first = stretch.last + 1
        return found, path[-1].last + 1

    def _on_branch(self, branch: int, first: int, last: int) -> Iterator[tuple[int, Make, int]]:
        """Sequence, what makes the event, and size of a branch's public events, in order."""
        view = self.view
        sequence = first
        if sequence < view.sealed:
            for start, prefix, load in self._segments(sequence):
                if start > sequence or sequence > last:
                    break
                if prefix.kinds & (_CONTROL_BIT - 1):
                    segment = load()
                    stop = min(prefix.count, last - start + 1)
                    make = partial(_of_segment, segment, start, view.origin)
                    for place in _places(segment, branch, sequence - start, stop):
                        size = segment.starts[place + 1] - segment.starts[place]
                        yield start + place, make, size
                sequence = start + prefix.count
                if sequence >= view.sealed:
                    break
            if sequence < min(view.sealed, last + 1):
                raise self._missing(sequence)
        for loose in range(max(sequence, view.sealed), min(last + 1, view.event_count)):
            value = self._stored(loose)
            if value[KIND_BYTE] < CONTROL and branch_of(value) == branch:
                yield loose, self.event, len(value)

    def _path_back(self, leaf: int, stop: int) -> Back:
        """As ``_back``, of the events on the path to a leaf: public ones, and roll-ups."""
        path = self.path(leaf)
        place = len(path) - 1
        for (kind, flags), sequence, make in self._back(self._follower(leaf, stop)):
            while place >= 0 and sequence <= path[place].after:
                place -= 1
            if place < 0:
                return
            if kind >= CONTROL and not flags & ROLLS_UP:
                continue
            stretch = path[place]
            is_on = sequence <= stretch.last or sequence > leaf
            if is_on and make(sequence, Record).branch == stretch.branch:
                yield (kind, flags), sequence, make

    def _follower(self, leaf: int, stop: int) -> int:
        """Sequence of the first event after a leaf that took the head from it, or ``stop``."""
        view = self.view
        sequence = leaf + 1
        while sequence < min(stop, view.sealed):
            for start, prefix, load in self._segments(sequence):
                if start > sequence:
                    raise self._missing(sequence)
                kinds = load().kinds
                for place in range(sequence - start, min(prefix.count, stop - start)):
                    if kinds[place] < CONTROL or kinds[place] == HEAD_MOVE:
                        return start + place
                sequence = start + prefix.count
                break
            else:
                raise self._missing(sequence)
        for loose in range(max(sequence, view.sealed), stop):
            kind = self._stored(loose)[KIND_BYTE]
            if kind < CONTROL or kind == HEAD_MOVE:
                return loose
        return stop

    # Walking

    def _back(self, stop: int, bits: int = NO_SEQUENCE) -> Back:
        """Kind and flags, sequence, and what makes the event, of all before ``stop``, newest first.

        Args:
            stop: A sequence.
            bits: Segments without one of these kinds are passed over.
        """
        view = self.view
        sequence = stop - 1
        while sequence >= max(view.sealed, self.first):
            value = self._stored(sequence)
            yield (value[KIND_BYTE], value[FLAGS_BYTE]), sequence, self.event
            sequence -= 1
        if sequence < self.first:
            return
        for start, prefix, load in self._segments(sequence, reverse=True):
            if not start <= sequence < start + prefix.count:
                break
            if prefix.kinds & bits:
                segment = load()
                flags = segment.heads[_FLAGS::HEAD_BYTES]

                def make(
                    wanted: int, factory: Factory[R], found: Segment = segment, base: int = start
                ) -> R:
                    return found.make(wanted - base, view.origin, factory)

                for place in range(sequence - start, -1, -1):
                    yield (segment.kinds[place], flags[place]), start + place, make
            sequence = start - 1
            if sequence < self.first:
                return
        raise self._missing(sequence)

    def _segments(
        self, first: int, *, reverse: bool = False
    ) -> Iterator[tuple[int, SegmentPrefix, Callable[[], Segment]]]:
        """First sequence and prefix of segments from the one of ``first`` on, and their content."""
        number = self.view.origin.number
        cache = self._cache
        with self.tables.segment_cursor() as cursor:
            found = cursor.set_range(PAIR.pack(number, first))
            while found:
                key, value = cursor.item()
                if len(key) != PAIR.size:
                    raise CorruptionError("key has another size", where=f"segment {key.hex()}")
                owner, last = PAIR.unpack(key)
                if owner != number:
                    return
                prefix = SegmentPrefix.unpack(key, value)
                if not 1 <= prefix.count <= last + 1:
                    raise CorruptionError(
                        "segment states impossible sizes", where=f"segment {number}/{last}"
                    )

                def load(key: bytes = key, value: bytes = value) -> Segment:
                    return cache.load(self.tables, key, value)

                yield last - prefix.count + 1, prefix, load
                found = cursor.prev() if reverse else cursor.next()

    def _stored(self, sequence: int) -> bytes:
        """The record of a loose event."""
        loose = self.view.loose
        value = loose.records[sequence]
        return value or read_loose(self._log, self.view, sequence - loose.base)

    def _decoded(self, sequence: int, value: bytes, factory: Factory[R]) -> R:
        view = self.view
        position = view.loose.positions[sequence - view.loose.base]
        return decode_record(view.origin, position, value, factory)

    def _missing(self, sequence: int) -> CorruptionError:
        return CorruptionError(
            "segment is missing", where=f"session {self.view.origin.number}/{sequence}"
        )


def _places(segment: Segment, branch: int, start: int, stop: int) -> list[int]:
    """Places of the public events of a branch, from one place to before another."""
    words = np.frombuffer(segment.heads, "<u8").reshape(-1, columns.WORDS)[start:stop]
    is_on = words[:, columns.BRANCH_TOKENS] & np.uint64(0xFFFFFFFF) == branch
    is_public = words[:, columns.KIND_TO_EXTENSION] & np.uint64(0xFF) < CONTROL
    found: list[int] = (np.flatnonzero(is_on & is_public) + start).tolist()
    return found


def _of_segment(
    segment: Segment, start: int, origin: Origin, sequence: int, factory: Factory[R]
) -> R:
    return segment.make(sequence - start, origin, factory)
