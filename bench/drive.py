"""The coroutines that both sides of an append figure run; only what they call differs.

What the loops here cost themselves is part of both sides and pulls a ratio towards 1, so they do no
more than call, await and count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final, Protocol

from bench.workloads import Message

BUSY_SHARE: Final = 0.8  # of the loop's time, spent on other Python work
_BURN_STEPS: Final = 2_000  # of one piece of other work: some tens of microseconds
_TURN_MIN_S: Final = 0.0005  # processor time of one callback of the other work
_TURN_MAX_S: Final = 0.02
_REST_S: Final = 0.001  # the other work is ahead of its share and leaves the loop alone
_POLL_S: Final = 0.005
_PUSH_APPENDS: Final = 256  # appends between two looks at the clock


class Append(Protocol):
    """Queues one message."""

    def __call__(self, message: Message, /) -> Awaitable[object]:
        """Queue the message; awaiting the result waits until it is durable."""


class KeyedAppend(Protocol):
    """As ``Append``, with an idempotency key and a caller's id."""

    def __call__(self, message: Message, /, *, idempotency_key: str, id: str) -> Awaitable[object]:
        """Queue the message; awaiting the result waits until it is durable."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of a round is measured.

    Attributes:
        warm_up: Acknowledged appends before the measured part; where it fills the hot log, what
            is measured pays for its own sealing.
        seconds: Length of the measured part.
    """

    warm_up: int
    seconds: float


class Counter:
    """What the session coroutines of one round share."""

    __slots__ = ("acknowledged", "stopped")

    def __init__(self) -> None:
        self.acknowledged = 0
        self.stopped = False


class SessionRun(Protocol):
    """Runs one session."""

    async def __call__(self, counter: Counter, /) -> None:
        """Append and count until told to stop."""


def plain_sessions(appends: Sequence[Append], messages: Sequence[Message]) -> list[SessionRun]:
    """Sessions that append one message after the other, each when the one before is durable."""
    message = cycle(messages).__next__

    def session(append: Append) -> SessionRun:
        async def run(counter: Counter) -> None:
            while not counter.stopped:
                await append(message())
                counter.acknowledged += 1

        return run

    return [session(append) for append in appends]


def keyed_sessions(
    appends: Sequence[KeyedAppend], names: Sequence[str], messages: Sequence[Message]
) -> list[SessionRun]:
    """As ``plain_sessions``, with an idempotency key and a caller's id on each append."""
    message = cycle(messages).__next__

    def session(append: KeyedAppend, name: str) -> SessionRun:
        async def run(counter: Counter) -> None:
            number = 0
            while not counter.stopped:
                await append(message(), idempotency_key=f"request-{number}", id=f"{name}-{number}")
                number += 1
                counter.acknowledged += 1

        return run

    return [session(append, name) for append, name in zip(appends, names, strict=True)]


async def acknowledged_per_second(sessions: Sequence[SessionRun], window: Window) -> float:
    """Run all sessions at once until the window is over.

    Returns:
        Acknowledged appends a second in the measured part.
    """
    counter = Counter()
    async with asyncio.TaskGroup() as group:
        for session in sessions:
            group.create_task(session(counter))
        while counter.acknowledged < window.warm_up:
            await asyncio.sleep(_POLL_S)
        before, start = counter.acknowledged, time.perf_counter()
        await asyncio.sleep(window.seconds)
        count, seconds = counter.acknowledged - before, time.perf_counter() - start
        counter.stopped = True
    return count / seconds


class OtherWork:
    """Keeps a given share of the loop's time busy with plain Python, in one task.

    As in a busy backend, it comes as many short callbacks with idle moments between. The share is
    of elapsed time and counted in processor time of the loop's thread, so that waiting for the
    interpreter lock is not taken for work.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._stopped = False
        self._start = 0.0
        self._spent = 0.0

    async def run(self) -> None:
        """Work until ``stop``."""
        self._start = time.perf_counter()
        while not self._stopped:
            behind = self._share * (time.perf_counter() - self._start) - self._spent
            if behind <= 0:
                await asyncio.sleep(_REST_S)
                continue
            # The loop gives every ready callback its turn, so the only way to a larger share of a
            # loop that is full of appends is longer turns.
            turn = min(max(_TURN_MIN_S, behind / 2), _TURN_MAX_S)
            before = time.thread_time()
            while (taken := time.thread_time() - before) < turn:
                _burn()
            self._spent += taken
            await asyncio.sleep(0)

    def stop(self) -> float:
        """End the work.

        Returns:
            The share of elapsed time that it took.
        """
        self._stopped = True
        return self._spent / (time.perf_counter() - self._start)


def _burn() -> int:
    value = 1
    for step in range(_BURN_STEPS):
        value = (value * 31 + step) & 0xFFFF
    return value


@dataclass(frozen=True, slots=True)
class BusyRate:
    """Acks a second beside other work, and the share of time that this work got."""

    per_second: float
    share: float


async def busy_per_second(sessions: Sequence[SessionRun], window: Window) -> BusyRate:
    """As ``acknowledged_per_second``, while the loop does other Python work."""
    work = OtherWork(BUSY_SHARE)
    task = asyncio.create_task(work.run())
    per_second = await acknowledged_per_second(sessions, window)
    share = work.stop()
    await task
    return BusyRate(per_second, share)


async def pipelined_per_second(
    appends: Sequence[Append],
    room: Callable[[], Awaitable[object]],
    full: type[Exception],
    messages: Sequence[Message],
    window: Window,
) -> float:
    """Append as fast as the queue takes it and await only the last.

    Args:
        appends: One a session, used in turn.
        room: Awaited when the queue is full.
        full: What an append raises then.
        messages: Appended in turn.
        window: What to leave out, and for how long to append.

    Returns:
        Appends a second, from the first call until the last one is durable.
    """
    append_in_turn = cycle(appends).__next__
    message_in_turn = cycle(messages).__next__

    async def push(count: int) -> Awaitable[object]:
        for _ in range(count):
            append, message = append_in_turn(), message_in_turn()
            while True:
                try:
                    last = append(message)
                    break
                except full:
                    await room()
        return last

    await (await push(window.warm_up))
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < window.seconds:
        last = await push(_PUSH_APPENDS)
        count += _PUSH_APPENDS
    await last
    return count / (time.perf_counter() - start)


def lone_per_second(append: Callable[[], object], seconds: float) -> float:
    """Call ``append`` again and again, each time when the one before is durable.

    Returns:
        Appends a second.
    """
    count = 0
    start = time.perf_counter()
    while (taken := time.perf_counter() - start) < seconds:
        append()
        count += 1
    return count / taken
