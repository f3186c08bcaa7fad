"""A session while a store is checked: what its row says, and what its events add up to."""

from __future__ import annotations

from xxhash import xxh3_64_digest

from eventlog.body import encode_plain
from eventlog.errors import CorruptionError
from eventlog.record import CONTROL, HEAD_MOVE, MESSAGE, Origin, Record
from eventlog.rollup import ROLLS_UP, kept_in
from eventlog.rows import NO_SEQUENCE, SessionRow


class CheckedSession:
    """A session: what its row says, and what its events add up to.

    Attributes:
        origin: Number and names.
        row: The row, without opening facts.
        opening: Checksum of those.
        lost: First and last sequences of stretches that cannot be read.
        keyed: Sealed events with an idempotency key.
        key_rows: Those of them that have a row.
    """

    __slots__ = (
        "branches",
        "following",
        "head",
        "head_branch",
        "key_rows",
        "keyed",
        "last_position",
        "last_recorded_us",
        "lost",
        "messages",
        "opening",
        "origin",
        "rolls_up",
        "row",
        "segments",
        "since_roll_up",
        "trimmed",
        "unsure",
    )

    def __init__(self, number: int, row: SessionRow) -> None:
        self.origin = Origin(number, row.tenant, row.name)
        self.opening = opening_checksum(row.opening)
        row.opening, row.details = None, b""
        self.row = row
        self.lost: list[tuple[int, int]] = []
        self.unsure: set[str] = set()  # what the events cannot tell, as some are lost
        self.keyed = self.key_rows = 0
        self.following = row.first
        self.messages = self.segments = 0
        self.rolls_up = False  # whether a roll-up was met
        self.since_roll_up = self.trimmed = 0
        self.branches = self.head_branch = 0
        if row.first:  # what the void events were nobody can tell
            self.unsure.update(("messages", "head", "last_position", "last_recorded_us", "keys"))
            self.unsure.update(("since_roll_up", "trimmed", "branches", "head_branch"))
        self.head = NO_SEQUENCE
        self.last_position = self.last_recorded_us = 0

    def is_void(self, sequence: int) -> bool:
        """True when that event was removed."""
        return sequence < self.row.first

    def lose(self, first: int, last: int) -> None:
        """Events that cannot be read."""
        self.lost.append((first, last))
        self.unsure.update(
            (
                *("messages", "head", "last_position", "last_recorded_us", "keys"),
                *("since_roll_up", "trimmed", "branches", "head_branch"),
            )
        )

    def has_lost(self, sequence: int) -> bool:
        """True when that event is among those that cannot be read."""
        return any([first <= sequence <= last for first, last in self.lost])

    def take(self, record: Record) -> None:
        """Add the next event."""
        kind = record.kind_code
        if kind < CONTROL or kind == HEAD_MOVE:
            self._follow(record)
        if kind < CONTROL:
            self.messages += kind == MESSAGE
            self.since_roll_up += kind == MESSAGE
        if record.flags & ROLLS_UP:
            self.rolls_up = True
            self.since_roll_up = 0
            self.trimmed = max(self.trimmed, self.messages - self._kept(record))
        self.following = max(self.following, record.sequence + 1)
        self.last_position = record.position
        self.last_recorded_us = record.recorded_us
        self.unsure -= {"last_position", "last_recorded_us"}

    def _follow(self, record: Record) -> None:
        """Head and branches after a public event or a move of the head."""
        is_move = record.kind_code == HEAD_MOVE
        self.head = record.parent_word if is_move else record.sequence
        if is_move or record.branch or self.branches:
            self.branches = max(self.branches, record.branch + 1)
            self.head_branch = record.branch
        self.unsure -= {"head", "head_branch"}

    def _kept(self, record: Record) -> int:
        try:
            kept = kept_in(record.extension, record.flags, record)
        except CorruptionError:  # as found with the event
            self.unsure.add("trimmed")
            kept = None
        return self.messages if kept is None else kept


def opening_checksum(opening: object) -> bytes:
    """What is kept of opening facts to compare them with."""
    return xxh3_64_digest(encode_plain(opening))
