"""Group commit as a plain state machine: no thread, no clock, no I/O.

The driver (``writer``, or a simulator) calls in; the machine says what to do. ``offer`` may be
called from any thread without a lock: each of its steps on shared state is one operation of the
interpreter. All other calls are made under the driver's lock.

Invariants:
    1. Appends of one session leave the queue in the order in which they came.
    2. What the queue holds never exceeds its bounds in appends or bytes; a small append counts as
       ``SMALL_BYTES``, so that only larger ones have to be added up.
    3. A batch holds at most ``COMMIT_EVENTS_MAX`` events and ``COMMIT_BYTES_MAX`` bytes, unless it
       is a single append; and at most a quarter of that from one session while others wait.
    4. What removes events stands at the end of its batch: no later append of the session is in it.
    5. Every append handed out by ``next_batch`` is given back by ``committed`` or ``failed``
       before the next batch.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

from eventlog.ack import Ack
from eventlog.errors import OverloadedError, StoreClosedError, TurnlogError
from eventlog.limits import (
    COMMIT_BYTES_MAX,
    COMMIT_EVENTS_MAX,
    COMMIT_ROLL_UPS_MAX,
    COMMIT_SHARE,
    QUEUE_APPENDS_MAX,
    QUEUE_BYTES_MAX,
)

SMALL_BYTES: Final = 512  # what an append of at most so many bytes counts
LOOKED_MAX: Final = 4 * COMMIT_EVENTS_MAX  # appends looked at for one batch
TIDY_DELAY_US: Final = 50_000  # callers that wait for each other come sooner, and seal on their way
RACE_MAX: Final = 256  # appends that threads may offer at once between a look and the next

assert QUEUE_APPENDS_MAX * SMALL_BYTES < QUEUE_BYTES_MAX


class Step(Enum):
    """What the driver does next."""

    COMMIT = "commit"  # take the next batch
    SETTLE = "settle"  # a failed commit's outcome is open: reopen and fence
    TIDY = "tidy"  # nothing waits: work off overdue sealing and cutting
    WAIT = "wait"
    STOP = "stop"


class CommitMachine:
    """The queue and the fate of each batch; times are µs of any monotonic clock."""

    def __init__(
        self, *, appends_max: int = QUEUE_APPENDS_MAX, bytes_max: int = QUEUE_BYTES_MAX
    ) -> None:
        self.appends_max = appends_max
        self.bytes_max = bytes_max
        self.queue: deque[Ack] = deque()
        self.more_events = 0  # beyond one per append
        self.more_bytes = 0  # beyond SMALL_BYTES per append
        self.removals = 0  # appends that remove events
        self.in_flight: list[Ack] = []
        self.in_flight_since_us = 0
        self.suspect = False
        self.retry_us = 0
        self.closing = False
        self.overdue = False
        self.tidy_us = 0
        self.refusal: TurnlogError | None = None
        self.commits = 0
        self.failures = 0

    @property
    def event_count(self) -> int:
        """Events that wait."""
        return len(self.queue) + self.more_events

    @property
    def byte_count(self) -> int:
        """Bytes that wait; small appends as ``SMALL_BYTES``."""
        return len(self.queue) * SMALL_BYTES + self.more_bytes

    def offer(self, ack: Ack) -> bool:
        """Accept a small append of one event, from any thread and without the driver's lock.

        Returns:
            False when it is not small or there may be no room: then ``submit`` decides.
        """
        count = len(self.queue) + RACE_MAX
        if (
            ack.byte_count > SMALL_BYTES
            or (ack.terms is not None and ack.terms.removal is not None)
            or self.refusal is not None
            or count >= self.appends_max
            or count * SMALL_BYTES + self.more_bytes >= self.bytes_max
        ):
            return False
        self.queue.append(ack)
        return True

    def submit(self, ack: Ack) -> None:
        """Accept an append.

        Raises:
            OverloadedError: There is no room; nothing was accepted.
            TurnlogError: The store takes no appends any more (``close``, ``refuse``).
        """
        queue = self.queue
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        more_bytes = max(0, ack.byte_count - SMALL_BYTES)
        if len(queue) >= self.appends_max or (
            queue and self.byte_count + SMALL_BYTES + more_bytes > self.bytes_max
        ):
            raise OverloadedError(
                f"{len(queue):,} appends with {self.byte_count:,} bytes are waiting"
            )
        self.more_events += ack.event_count - 1
        self.more_bytes += more_bytes
        self.removals += ack.removal is not None
        queue.append(ack)

    def tick(self, now_us: int) -> Step:
        """Say what the driver does next."""
        if self.suspect:
            return Step.SETTLE if now_us >= self.retry_us else Step.WAIT
        if self.queue:
            return Step.COMMIT
        if self.closing:
            return Step.TIDY if self.overdue else Step.STOP
        return Step.TIDY if self.overdue and now_us >= self.tidy_us else Step.WAIT

    def next_batch(self, now_us: int) -> list[Ack]:
        """Take the appends of the next commit; empty when nothing waits."""
        assert not self.in_flight, "the batch before is still open"
        queue = self.queue
        self.in_flight_since_us = now_us
        self.tidy_us = now_us + TIDY_DELAY_US
        count = len(queue)
        if self.removals:
            self.in_flight = self._batch_to_removal()
        elif (
            count + self.more_events <= COMMIT_EVENTS_MAX
            and count * SMALL_BYTES + self.more_bytes <= COMMIT_BYTES_MAX
        ):
            # Appends may be offered meanwhile, so not more than was counted.
            self.in_flight = [queue.popleft() for _ in range(count)]
        else:
            self.in_flight = self._fair_batch()
        if self.more_events or self.more_bytes:
            batch = self.in_flight
            self.more_events -= sum([ack.event_count for ack in batch]) - len(batch)
            self.more_bytes -= sum(
                [ack.byte_count - SMALL_BYTES for ack in batch if ack.byte_count > SMALL_BYTES]
            )
        return self.in_flight

    def _batch_to_removal(self) -> list[Ack]:
        """What came before the first removal, and the removals that follow, of other sessions."""
        taken: list[Ack] = []
        removed: set[tuple[str, str]] = set()
        events = byte_count = 0
        queue = self.queue
        while queue:
            ack = queue[0]
            events += ack.event_count
            byte_count += ack.byte_count
            if taken and (events > COMMIT_EVENTS_MAX or byte_count > COMMIT_BYTES_MAX):
                break
            if removed and (ack.removal is None or ack.name in removed):
                break
            if ack.removal is not None:
                if len(removed) == COMMIT_ROLL_UPS_MAX:
                    break
                removed.add(ack.name)
            taken.append(queue.popleft())
        self.removals -= len(removed)
        return taken

    def _fair_batch(self) -> list[Ack]:
        share_events = COMMIT_EVENTS_MAX // COMMIT_SHARE
        share_bytes = COMMIT_BYTES_MAX // COMMIT_SHARE
        taken: list[Ack] = []
        held: list[Ack] = []
        used: dict[tuple[str, str], tuple[int, int]] = {}
        blocked: set[tuple[str, str]] = set()
        events = byte_count = 0
        queue = self.queue
        looked = 0
        while queue and looked < LOOKED_MAX:
            looked += 1
            ack = queue[0]
            size = ack.event_count
            if taken and (
                events + size > COMMIT_EVENTS_MAX or byte_count + ack.byte_count > COMMIT_BYTES_MAX
            ):
                break
            queue.popleft()
            names = [ack.name, *[each.name for each in ack.more]] if ack.more else (ack.name,)
            before = used.get(ack.name, (0, 0))
            if not blocked.isdisjoint(names) or (
                before[0]
                and (before[0] + size > share_events or before[1] + ack.byte_count > share_bytes)
            ):
                blocked.update(names)
                held.append(ack)
                continue
            used[ack.name] = (before[0] + size, before[1] + ack.byte_count)
            taken.append(ack)
            events += size
            byte_count += ack.byte_count
        if not queue or looked == LOOKED_MAX:
            # Nobody else waits, or is near the front: what was held back may fill the rest.
            keep = 0
            for ack in held:
                size = ack.event_count
                if (
                    events + size > COMMIT_EVENTS_MAX
                    or byte_count + ack.byte_count > COMMIT_BYTES_MAX
                ):
                    break
                taken.append(ack)
                events += size
                byte_count += ack.byte_count
                keep += 1
            held = held[keep:]
        queue.extendleft(reversed(held))
        return taken

    def put_back(self) -> None:
        """The batch cannot be written yet: it waits again, before all others."""
        batch, self.in_flight = self.in_flight, []
        self.queue.extendleft(reversed(batch))
        self.more_events += sum([ack.event_count for ack in batch]) - len(batch)
        self.more_bytes += sum([max(0, ack.byte_count - SMALL_BYTES) for ack in batch])
        self.removals += sum([ack.removal is not None for ack in batch])

    def fits(self, byte_count: int) -> bool:
        """True when the queue is less than half full and takes an append of so many bytes."""
        return not self.queue or (
            len(self.queue) * 2 < self.appends_max
            and self.byte_count * 2 < self.bytes_max
            and self.byte_count + byte_count <= self.bytes_max
        )

    def committed(self) -> list[Ack]:
        """The batch is durable; gives it back."""
        done, self.in_flight = self.in_flight, []
        self.suspect = False
        self.commits += 1
        return done

    def failed(self) -> list[Ack]:
        """The batch was not written and will not be; gives it back."""
        done, self.in_flight = self.in_flight, []
        self.suspect = False
        self.failures += 1
        return done

    def doubt(self, retry_us: int) -> None:
        """Nobody knows whether the batch was written: settle it from ``retry_us`` on."""
        self.suspect = True
        self.retry_us = retry_us

    def close(self) -> None:
        """Take no more appends; what waits is still committed."""
        self.closing = True
        self.refusal = self.refusal or StoreClosedError("the store is closed")

    def refuse(self, error: TurnlogError, *, in_flight: bool = True) -> list[Ack]:
        """Take no more appends, because of ``error``; gives all that waited.

        Args:
            error: What later appends are told.
            in_flight: Also give back the batch that was handed out.
        """
        self.refusal = error
        waiting = [self.queue.popleft() for _ in range(len(self.queue))]
        self.more_events = self.more_bytes = self.removals = 0
        if in_flight:
            waiting = [*self.in_flight, *waiting]
            self.in_flight = []
            self.suspect = False
        return waiting
