"""A path of a session, read from its end: what views of it are made of.

Invariants:
    1. It is the path to one leaf of one incarnation, whatever is appended meanwhile.
    2. A transaction is held for ``_BLOCKS_MAX`` blocks at most, and never while a caller works.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from engine.boundary import EventName
from engine.events import Event
from eventlog.ack import event_of
from eventlog.branching import Stretch
from eventlog.errors import SessionGoneError, TrimmedError, UsageError
from eventlog.index import Name
from eventlog.log import Log
from eventlog.past import Past
from eventlog.pathback import Block, read_back, shown_from
from eventlog.record import CONTROL

_BLOCKS_MAX: Final = 16

Enough = Callable[[Block[Event]], bool]


class PathScan:
    """A path of a session, read see the module; blocks may be asked for again and again.

    Attributes:
        leaf: Sequence of the event that it ends with; None for an empty path.
        first: The first sequence of the session that was not purged.
        number: Number of the session's incarnation; None when there is no such session.
        floor: Messages before this sequence were trimmed from the view.

    Args:
        log: The log.
        name: Tenant and session name.
        leaf: Sequence of an event; None for the head.
        enough: Asked about each block that is read at once, in the transaction that finds the path,
            whether it is likely the last that will be needed; None reads none yet.
    """

    def __init__(
        self, log: Log, name: Name, leaf: int | None, enough: Enough | None = None
    ) -> None:
        self._log = log
        self._name = name
        self._path: list[Stretch] = []
        self.leaf = leaf
        self.first = 0
        self.floor = 0
        self.number: int | None = None
        self._begun: tuple[list[Block[Event]], int] = ([], 0)
        with log.views.past(name) as past:
            if past is not None:
                self._begin(past, enough)

    def _begin(self, past: Past, enough: Enough | None) -> None:
        self.number = past.view.origin.number
        self.first = past.first
        stop = past.view.event_count
        if self.leaf is None:
            self.leaf = past.head(stop, past.row.head)
            if self.leaf is None or self.leaf < past.first:
                return
        else:
            self._require(past, self.leaf, stop)
        self._path = past.path(self.leaf)
        if past.is_trimmed:
            self.floor = shown_from(past, stop, self.leaf)
        if enough is not None:
            self._begun = read_back(past, self._path, self.leaf + 1, _BLOCKS_MAX, Event, enough)
        else:
            self._begun = ([], self.leaf + 1)

    def _require(self, past: Past, leaf: int, stop: int) -> None:
        if leaf < past.first:
            raise TrimmedError(
                f"the events of session {self._name[1]!r} below {past.first} were purged",
                first=past.first,
            )
        if leaf >= stop:
            raise UsageError(f"session {self._name[1]!r} has no event {leaf}")
        if past.event(leaf, Event).kind_code >= CONTROL:
            raise UsageError(f"event {leaf} of session {self._name[1]!r} is none of its history")

    def blocks(self, stop: int | None = None) -> Iterator[Block[Event]]:
        """Blocks of the path before a sequence, newest first; from its end when None.

        Raises:
            SessionGoneError: The session was deleted meanwhile.
        """
        if not self._path:
            return
        count = 1
        if stop is None:
            found, stop = self._begun
            yield from found
        while stop:
            with self._log.views.past(self._name) as past:
                if past is None or past.view.origin.number != self.number:
                    raise SessionGoneError.while_read(
                        self._name[1],
                        self.number,
                        None if past is None else past.view.origin.number,
                    )
                found, stop = read_back(past, self._path, stop, count, Event)
            yield from found
            count = min(2 * count, _BLOCKS_MAX)

    def find(self, sequence: int) -> Event | None:
        """The event of a sequence, if it is on the path and was not purged."""
        for block in self.blocks(sequence + 1):
            index = len(block.sequences) - 1
            return block.event(index) if block.sequences[index] == sequence else None
        return None

    def holds(self, sequence: int) -> bool:
        """Whether an event is on the path; one that was purged counts as on it."""
        return sequence < self.first or self.find(sequence) is not None

    def resolve(self, names: Collection[EventName], stop: int) -> dict[EventName, int]:
        """The sequences, before one, of events by what names them.

        Those that no event of the path has are not in it; but sequences, and ids that the store
        made, are taken as they are (``holds``).
        """
        found: dict[EventName, int] = {}
        unknown: set[str] = set()
        for name in names:
            if type(name) is int:
                sequence = name
            else:
                assert type(name) is str
                made = event_of(name)
                if made is None:
                    unknown.add(name)
                    continue
                sequence = made[1] if made[0] == self.number else stop
            if sequence < stop:
                found[name] = sequence
        if unknown:
            for event in self._named_back(stop):
                if event.id in unknown:
                    found[event.id] = event.sequence
                    unknown.discard(event.id)
                    if not unknown:
                        break
        return found

    def _named_back(self, stop: int) -> Iterator[Event]:
        for block in self.blocks(stop):
            for index in range(len(block.sequences) - 1, -1, -1):
                event = block.event(index)
                if event.extension:
                    yield event
