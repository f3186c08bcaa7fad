"""What a commit writes, as admission placed it, and how memory changes after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from eventlog.ack import Ack
from eventlog.errors import TurnlogError
from eventlog.index import LooseIndex, SessionState
from eventlog.record import recorded_of
from eventlog.removal import Removed
from eventlog.rows import KeyedResult

MERGE_SLICE = 256  # records between two looks at the clock


@dataclass(slots=True)
class Plan:
    """What a commit writes, and how memory changes after it.

    ``records`` and ``states`` run in parallel, one entry per position from ``first`` on.
    """

    first: int
    recorded_us: int
    link: bytes
    records: list[tuple[bytes, bytes]] = field(default_factory=list)
    states: list[SessionState] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    placed: list[Ack] = field(default_factory=list)
    repeated: list[Ack] = field(default_factory=list)
    refused: list[tuple[Ack, TurnlogError]] = field(default_factory=list)
    created: list[SessionState] = field(default_factory=list)
    block_links: list[tuple[int, bytes]] = field(default_factory=list)
    keys: dict[tuple[int, bytes], KeyedResult] = field(default_factory=dict)
    ids: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    full: TurnlogError | None = None  # why nothing may be written, only repeats be told
    keeps_times: bool = False  # an event came with its recorded time
    removed: list[Removed] = field(default_factory=list)
    linked: list[SessionState] = field(default_factory=list)  # whose branches were looked at

    @property
    def last(self) -> int:
        """The last position after the commit."""
        return self.first + len(self.records) - 1

    def merge(self, index: LooseIndex, pause: Callable[[], None]) -> None:
        """Take the committed batch into memory."""
        records, states, sequences = self.records, self.states, self.sequences
        with index.lock:
            if index.position >= self.last:
                # A reader that followed another process's commit read ours on its way.
                for state in self.linked:
                    state.reset()
                return
            first = index.position + 1
            for state in self.linked:
                state.keep_branches()
            for start in range(0, len(records), MERGE_SLICE):
                stop = start + MERGE_SLICE
                for state, sequence, position, record in zip(
                    states[start:stop],
                    sequences[start:stop],
                    range(first + start, first + stop),
                    records[start:stop],
                    strict=False,
                ):
                    loose = state.loose
                    loose.records[sequence] = record[1]
                    loose.positions.append(position)
                pause()
            sizes = [len(record[1]) for record in records]
            size = sum(sizes)
            index.hot += states
            index.hot_sequences.extend(sequences)
            index.hot_sizes.extend(sizes)
            index.hot_bytes += size
            index.kept_bytes += size
            index.position += len(records)
            frequency = index.frequency
            recorded_us = self.recorded_us
            for state, place in dict(zip(states, range(len(records)), strict=True)).items():
                state.keep_draft()
                state.last_position = first + place
                state.last_recorded_us = (
                    recorded_of(records[place][1]) if self.keeps_times else recorded_us
                )
                if len(state.loose.positions) >= frequency and not state.is_due:
                    index.mark_due(state)
            for (number, digest), result in self.keys.items():
                index.add_key(index.states[number], digest, result)
            for hashed, (number, sequence, position) in self.ids.items():
                index.add_id(position, hashed, number, sequence)
            index.forget()

    def stored(self, state: SessionState) -> Iterator[bytes]:
        """The stored records of a session, in order."""
        return (value for _, value in self.placed_of(state))

    def placed_of(self, state: SessionState) -> list[tuple[int, bytes]]:
        """Sequence and stored record of what was placed of a session, in order."""
        return [
            (sequence, value)
            for each, sequence, (_, value) in zip(
                self.states, self.sequences, self.records, strict=True
            )
            if each is state
        ]

    def drop(self, index: LooseIndex) -> None:
        """Forget the batch: nothing of it was written."""
        with index.lock:
            for state in {*self.states, *self.linked}:
                state.reset()
            for state in self.created:
                index.states.pop(state.number, None)
                index.names.pop(state.name, None)
