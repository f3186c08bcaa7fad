"""A path read backwards, block by block: headers at once, bodies only where somebody asks.

A block is what one segment, or a stretch of loose events, holds of the path. Nothing of it depends
on the transaction that it was read in.

Invariants:
    1. A block holds public events of the path alone, in order; blocks come newest first.
    2. A body is decoded when it is asked for, each time anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic

import numpy as np

from eventlog import columns
from eventlog.bodies import STRETCH_BODIES_MAX
from eventlog.body import decode_side_by_side
from eventlog.branching import Stretch, branch_of
from eventlog.decoded import EXTENSION_BYTE, HEAD_BYTES, Segment
from eventlog.past import Past
from eventlog.record import (
    CONTROL,
    HEADER_BYTES,
    KIND_BYTE,
    MESSAGE,
    Factory,
    Origin,
    R,
    Record,
    decode_record,
)
from eventlog.rollup import ROLLS_UP, kept_in

LOOSE_EVENTS: Final = STRETCH_BODIES_MAX  # of a block
_BRANCH: Final = np.uint64(0xFFFFFFFF)
_BYTE: Final = np.uint64(0xFF)
_TOKENS_SHIFT: Final = np.uint64(32)
_ROLE_SHIFT: Final = np.uint64(8)
_END: Final = slice(KIND_BYTE - 4, HEADER_BYTES)  # of a stored record's header:
_END_TYPE: Final = np.dtype(
    [("tokens", "<u4"), ("kind", "u1"), ("role", "u1"), ("flags", "<u2"), ("extension", "<u4")]
)
_NO_EXTENSION: Final = bytes(4)


class Block(Generic[R]):
    """Events of a path side by side, oldest first.

    Attributes:
        sequences: Their sequences, rising.
        kinds: Codes of their kinds.
        roles: Codes of their roles.
        tokens: Their token counts, 0 where none was given.
    """

    __slots__ = ("_join", "_make", "_plain", "kinds", "roles", "sequences", "tokens")

    def __init__(
        self,
        sequences: Sequence[int],
        kinds: bytes,
        roles: bytes,
        tokens: Sequence[int],
        plain: Callable[[int], bool] | None,
        join: Callable[[int, int], list[bytes]],
        make: Callable[[int], R],
    ) -> None:
        self.sequences = sequences
        self.kinds = kinds
        self.roles = roles
        self.tokens = tokens
        self._plain = plain  # by index, whether there is no extension; None when nowhere
        self._join = join  # tails side by side, from one index to before another
        self._make = make

    def event(self, index: int) -> R:
        """One event."""
        return self._make(index)

    def bodies(
        self, start: int, stop: int, body_of: Callable[[R], Any], text: bytes
    ) -> tuple[list[Any], bool]:
        """The bodies of events from one index to before another.

        Args:
            start: An index.
            stop: An index.
            body_of: Decodes the body of an event that has to be made for it.
            text: Bytes to look for in what the events say.

        Returns:
            The bodies, and whether the text may be in one of them.
        """
        plain, make = self._plain, self._make
        found: list[Any] = []
        is_there = False
        index = start
        while index < stop:
            end = index
            limit = min(stop, index + STRETCH_BODIES_MAX)
            if plain is None:
                end = limit
            else:
                while end < limit and plain(end):
                    end += 1
            if end > index:
                encoded = b"".join(self._join(index, end))
                is_there = is_there or text in encoded
                some = decode_side_by_side(end - index, [encoded])
                if some is None:  # reading them one by one tells what is wrong with which
                    some = [body_of(make(each)) for each in range(index, end)]
                found += some
            if end < limit:
                found.append(body_of(make(end)))
                is_there = is_there or text in self._join(end, end + 1)[0]
                end += 1
            index = end
        return found, is_there


def read_back(
    past: Past,
    path: Sequence[Stretch],
    stop: int,
    count: int,
    factory: Factory[R],
    enough: Callable[[Block[R]], bool] = lambda block: False,
) -> tuple[list[Block[R]], int]:
    """Blocks of a path before a sequence, newest first, about ``count`` of them.

    Args:
        past: The session in a transaction.
        path: The path, root first.
        stop: A sequence.
        count: How many segments, or stretches of loose events, to look at.
        factory: Makes events.
        enough: Asked after each block whether to stop; works within the transaction.

    Returns:
        The blocks, and the sequence to go on before; 0 when the path ends.

    Raises:
        CorruptionError: A segment is missing or damaged.
    """
    view = past.view
    found: list[Block[R]] = []
    place = len(path) - 1
    looked = 0
    while looked < count:
        while place >= 0 and stop - 1 <= path[place].after:
            place -= 1
        if place < 0 or stop <= past.first:
            return found, 0
        stretch = path[place]
        stop = min(stop, stretch.last + 1)
        first = max(stretch.after + 1, past.first)
        if stop <= first:
            stop = stretch.after + 1
            continue
        looked += 1
        if stop > view.sealed:
            start = max(first, view.sealed, stop - LOOSE_EVENTS)
            block = _loose_block(past, stretch.branch, start, stop, factory)
        else:
            for start, prefix, load in past._segments(stop - 1):
                if not start < stop <= start + prefix.count:
                    raise past._missing(stop - 1)
                block = _sealed_block(
                    load(), start, stretch.branch, max(first, start), stop, view, factory
                )
                start = max(first, start)
                break
            else:
                raise past._missing(stop - 1)
        stop = start
        if block is not None:
            found.append(block)
            if enough(block):
                break
    return found, stop


def _loose_block(
    past: Past, branch: int, start: int, stop: int, factory: Factory[R]
) -> Block[R] | None:
    records = past.view.loose.records
    sequences: Sequence[int] = range(start, stop)
    values = [records[sequence] or past._stored(sequence) for sequence in sequences]
    words = np.frombuffer(b"".join([value[_END] for value in values]), _END_TYPE)
    kinds = words["kind"].tobytes()
    if past.view.branches or max(kinds) >= CONTROL:
        is_linear = not past.view.branches
        chosen = [
            place
            for place, value in enumerate(values)
            if kinds[place] < CONTROL and (is_linear or branch_of(value) == branch)
        ]
        if not chosen:
            return None
        sequences = [start + place for place in chosen]
        values = [values[place] for place in chosen]
        words = words[chosen]
        kinds = words["kind"].tobytes()
    loose, origin = past.view.loose, past.view.origin
    extensions = words["extension"]

    def is_plain(index: int) -> bool:
        return not extensions[index]

    def make(index: int) -> R:
        position = loose.positions[sequences[index] - loose.base]
        return decode_record(origin, position, values[index], factory)

    return Block(
        sequences,
        kinds,
        words["role"].tobytes(),
        words["tokens"].tolist(),
        is_plain if extensions.any() else None,
        lambda first, last: [value[HEADER_BYTES:] for value in values[first:last]],
        make,
    )


def _sealed_block(
    segment: Segment, base: int, branch: int, first: int, stop: int, view: Any, factory: Factory[R]
) -> Block[R] | None:
    origin: Origin = view.origin
    low, high = first - base, stop - base
    words = np.frombuffer(segment.heads, "<u8").reshape(-1, columns.WORDS)[low:high]
    codes = words[:, columns.KIND_TO_EXTENSION]
    mixed = words[:, columns.BRANCH_TOKENS]
    places: Sequence[int] = range(low, high)
    is_whole = max(segment.kinds[low:high]) < CONTROL and not view.branches
    if not is_whole:
        is_on = (codes & _BYTE < CONTROL) & (mixed & _BRANCH == branch)
        chosen = np.flatnonzero(is_on)
        if not len(chosen):
            return None
        places = (chosen + low).tolist()
        codes, mixed = codes[chosen], mixed[chosen]
    heads = segment.heads

    def is_plain(index: int) -> bool:
        offset = places[index] * HEAD_BYTES + EXTENSION_BYTE
        return heads[offset : offset + 4] == _NO_EXTENSION

    def join(start: int, end: int) -> list[bytes]:
        if places[end - 1] - places[start] == end - 1 - start:
            return [segment.joined(places[start], places[end - 1] + 1)]
        return [segment.joined(place, place + 1) for place in places[start:end]]

    kinds = (codes & _BYTE).astype(np.uint8).tobytes()
    return Block(
        [base + place for place in places] if not is_whole else range(first, stop),
        kinds,
        (codes >> _ROLE_SHIFT & _BYTE).astype(np.uint8).tobytes(),
        (mixed >> _TOKENS_SHIFT).tolist(),
        None if not (codes >> _TOKENS_SHIFT).any() else is_plain,
        join,
        lambda index: segment.make(places[index], origin, factory),
    )


def shown_from(past: Past, stop: int, leaf: int) -> int:
    """Sequence of the first message of a path that the last roll-up before ``stop`` left in view.

    0 when it left all of them.
    """
    if past.view.branches:
        back = past._path_back(leaf, stop)
    else:
        back = past._back(past._follower(leaf, stop))
    count, room, is_decided, oldest = 0, None, False, leaf + 1
    for (kind, flags), sequence, make in back:
        if not is_decided and flags & ROLLS_UP:
            is_decided = True
            event = make(sequence, Record)
            kept = kept_in(event.extension, event.flags, f"position {event.position}")
            if kept is None:
                return 0
            room = count + kept
        if room is not None and count >= room:
            return oldest
        if kind == MESSAGE:
            count += 1
            oldest = sequence
    return 0
