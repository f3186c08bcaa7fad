"""Running simulated calls: all at once on one event loop, each event durable in its turn.

Invariants:
    1. Every event is awaited until it is durable before the same call goes on.
    2. What is stored is the script (``dispatch``) and nothing else, so it can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from engine.export import encode_line, escape
from turnlog.dispatch import EPOCH_US, SECOND_US, Line, script, user_of

if TYPE_CHECKING:
    from engine import Event, Session, Store

WINDOW_US: Final = 10_000_000  # calls drift at most so far apart in simulated time
WATCH_S: Final = 0.005


@dataclass(slots=True)
class Tally:
    """What a simulation did.

    Attributes:
        latencies_us: Time from append to durable acknowledgement, one an event.
        gaps_us: How late the event loop woke a task that had slept for 5 ms.
        line_bytes: Size of all events as JSON lines without a store.
    """

    calls: int = 0
    events: int = 0
    turns: int = 0
    tool_calls: int = 0
    interruptions: int = 0
    line_bytes: int = 0
    seconds: float = 0.0
    latencies_us: list[int] = field(default_factory=list)
    gaps_us: list[int] = field(default_factory=list)


def digest_of(events: Iterable[Line] | Iterable[Event]) -> str:
    """A digest of what was said and when, equal for a script and for the session it became."""
    digest = blake2b(digest_size=16)
    for event in events:
        digest.update(_content(event).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _content(event: Line | Event) -> str:
    return encode_line(
        {
            "time_us": event.time_us,
            "kind": event.kind,
            "turn_id": event.turn_id,
            "speech_id": event.speech_id,
            "request_id": event.request_id,
            "tokens": event.tokens or None,
            "metadata": escape(event.metadata),
            "body": escape(event.body),
        }
    )


async def run(
    store: Store,
    *,
    calls: int,
    hours: float,
    seed: int,
    names: Callable[[int], str],
    clock: Callable[[], float],
    progress: Callable[[float], None],
) -> Tally:
    """Play all calls at once, each event durable before its call goes on.

    Simulated time passes in windows: within one, every call that has something to say runs on its
    own; the next window begins when all of them are acknowledged.

    Args:
        store: The store to append to.
        calls: Number of calls.
        hours: Simulated hours.
        seed: Seed of the scripts.
        names: The session name of a call's number, from 1.
        clock: Seconds that never go back, for latencies.
        progress: Called after each window with the share of the simulated time that it took.
    """
    tally = Tally(calls=calls)
    start = clock()
    players = [
        _Player(
            store.session(names(call), user_id=user_of(call), title=f"Round of {user_of(call)}"),
            script(seed, call, hours),
            tally,
            clock,
        )
        for call in range(1, calls + 1)
    ]
    until_us = EPOCH_US
    share = WINDOW_US / max(1.0, hours * 3600 * SECOND_US)
    watch = asyncio.create_task(_watch(tally, clock))
    while players:
        until_us += WINDOW_US
        due = [player for player in players if player.time_us < until_us]
        if due:
            await asyncio.gather(*(player.play(until_us) for player in due))
            players = [player for player in players if not player.finished]
        progress(share)
    tally.seconds = clock() - start
    watch.cancel()
    return tally


async def _watch(tally: Tally, clock: Callable[[], float]) -> None:
    """Measure how late this event loop is, as an audio task beside the store would feel it."""
    while True:
        begun = clock()
        await asyncio.sleep(WATCH_S)
        tally.gaps_us.append(round((clock() - begun - WATCH_S) * 1_000_000))


class _Player:
    """One call: plays its script into its session."""

    def __init__(
        self,
        session: Session,
        lines: Iterator[Line],
        tally: Tally,
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._lines = lines
        self._tally = tally
        self._clock = clock
        self._next: Line | None = next(lines)
        self._first = True

    @property
    def finished(self) -> bool:
        return self._next is None

    @property
    def time_us(self) -> int:
        assert self._next is not None
        return self._next.time_us

    async def play(self, until_us: int) -> None:
        """Append what is due before a simulated time, one durable event after the other."""
        while self._next is not None and self._next.time_us < until_us:
            line = self._next
            options: dict[str, Any] = {
                "time_us": line.time_us,
                "turn_id": line.turn_id,
                "speech_id": line.speech_id,
                "request_id": line.request_id,
                "tokens": line.tokens,
                "metadata": line.metadata,
            }
            if self._first:
                options["expected_head"] = -1
                self._first = False
            begun = self._clock()
            if line.kind == "message":
                ack = self._session.append(line.body, **options)
            else:
                ack = self._session.append_event(line.kind, line.body, **options)
            await ack
            self._count(line, round((self._clock() - begun) * 1_000_000))
            self._next = next(self._lines, None)

    def _count(self, line: Line, latency_us: int) -> None:
        tally = self._tally
        tally.events += 1
        tally.latencies_us.append(latency_us)
        tally.line_bytes += len(_content(line).encode()) + 1
        tally.turns += line.kind == "timing"
        tally.tool_calls += "tool_calls" in line.body
        tally.interruptions += line.body.get("type") == "interruption"
