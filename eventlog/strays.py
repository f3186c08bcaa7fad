"""Hot records that are damaged: whose they are, as the whole ones beside them show; pure.

A record that fails its checksum may be any session's next event, whatever its header says. But the
hot log holds all events of a session that lie behind its first hot one, in order. So where a
session's events before and after a position leave out just the sequence that the record there
claims, it is that event, and nobody else misses one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Numbered(Protocol):
    """A session."""

    @property
    def number(self) -> int:
        """Its number; 0 where nobody knows."""
        ...


def is_proven(
    hot: Sequence[Numbered], sequences: Sequence[int], place: int, number: int, sequence: int
) -> bool:
    """Whether the event at a place is what its damaged record claims.

    Args:
        hot: The session of each hot position.
        sequences: Likewise the sequence.
        place: The damaged one, counted from the first hot position.
        number: The session that it claims to be of.
        sequence: Its sequence there.
    """
    before = _nearest(hot, sequences, range(place - 1, -1, -1), number)
    after = _nearest(hot, sequences, range(place + 1, len(hot)), number)
    return (before, after) == (sequence - 1, sequence + 1)


def _nearest(
    hot: Sequence[Numbered], sequences: Sequence[int], places: Iterable[int], number: int
) -> int | None:
    return next((sequences[place] for place in places if hot[place].number == number), None)
