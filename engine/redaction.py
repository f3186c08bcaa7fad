"""Redaction: events of a session lose their content, and an event of it says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engine.boundary import boundary_of
from engine.drafting import draft_control, make_ack
from engine.erasure import require_removal
from engine.events import Event
from engine.facts import optional_text
from engine.kinds import COMPACTION
from engine.pathscan import PathScan
from eventlog.ack import Ack
from eventlog.arguments import seconds, whole
from eventlog.errors import (
    CorruptionError,
    OverloadedError,
    SessionGoneError,
    SessionNotFoundError,
    UsageError,
)
from eventlog.limits import POSITION_MAX, STATE_PAGE_EVENTS
from eventlog.overwriting import OverwriteVoid
from eventlog.reclaim import Reclaim
from eventlog.record import REDACTION
from eventlog.redaction import Redact, Redacted
from eventlog.seams import CLOCK

if TYPE_CHECKING:
    from engine.store import Store

_TELLING: Final = frozenset({COMPACTION, REDACTION})
_WAIT_S: Final = 3600.0  # for room; what was to be hidden is gone by then


@dataclass(frozen=True, slots=True)
class RedactionReceipt:
    """What a redaction reached, and what may still tell of it.

    Attributes:
        tenant: The tenant's name.
        session: The session's name.
        number: Number of the session's incarnation.
        first: The first sequence, as asked for.
        last: The last sequence.
        event_count: Events that lost their content.
        already_count: Events that had lost it before.
        kept_count: Events that keep what they say: of control kinds but ``metric`` and
            ``annotation``.
        void_count: Events that a purge had removed; what was left of them went now. Their contents
            went with the purge, and are not counted.
        sequence: Sequence of the ``redaction`` event that says so; None where there was nothing to
            redact.
        position: Its position.
        blobs_removed: Contents that the events named, and that went with them.
        blobs_kept: Contents that the events named and that stay: others name them, or somebody put
            them again within the hour.
        summaries: Sequences of compactions after the range whose summaries stand for events of it.
        is_live: Whether a live record still holds any of it: only where ``dictionaries`` or
            ``blobs_kept`` say so.
        is_in_file: Whether the data file may still hold old pages of it; True until ``vacuum``.
        backups: What became of copies of the store.
        dictionaries: Numbers of the compression dictionaries that may quote it until ``vacuum``.
    """

    tenant: str
    session: str
    number: int
    first: int
    last: int
    event_count: int
    already_count: int
    kept_count: int
    void_count: int
    sequence: int | None
    position: int | None
    blobs_removed: int
    blobs_kept: int
    summaries: tuple[int, ...]
    is_live: bool
    is_in_file: bool = True
    backups: str = "backups and other copies of the store were not touched"
    dictionaries: tuple[int, ...] = ()


class Redacting:
    """The part of ``Session`` that redacts."""

    __slots__ = ()

    _store: Store
    _name: tuple[str, str]

    def redact(
        self, first: int, last: int, *, reason: str | None = None, timeout: float | None = None
    ) -> RedactionReceipt:
        """Remove the content of events, and nothing else of them; blocks until that is done.

        The events keep their places, parents, branches, kinds, roles, times, tokens and ids, and
        what others say of them. Their bodies read as None, their metadata and blobs are gone, and
        ``Event.redacted`` tells. Contents that only they named go at once. State, counts, facts
        and branches stay what they were, at every sequence; idempotency keys stay known.

        Events of control kinds but ``metric`` and ``annotation`` stay as they are: what they say
        is the session's state, which is changed by saying something else. Holds do not keep a
        redaction, which names the session itself, from being done.

        A reader that is under way may still give what it has read: up to 256 events, or a segment.

        When it is done an event of kind ``redaction`` is appended, of ``first``, ``last`` and
        ``reason``, so that whoever keeps what events said can forget it. It is done in steps: one
        that was stopped, by an error or with its process, stays as far as it got, and goes on when
        it is asked for again. Then none of the content is in a live record, but for what the
        receipt says.

        Redact ranges, not single events one by one: each step, of up to 4,096 events and 4 MiB,
        makes every process that has the store open read its hot log again, while appends wait.
        With 60,000 events in it that takes about a second, for one event as for a thousand.

        Args:
            first: The first sequence.
            last: The last sequence, inclusive; of an event that is durable.
            reason: 1 to 512 UTF-8 bytes for the event that says so; not the content, of course.
            timeout: Seconds for its steps and the event that says so; None waits for ever.

        Raises:
            SessionNotFoundError: No session of that name.
            SessionGoneError: It was deleted meanwhile.
            UsageError: The session has no such events.
            CorruptionError: One of them is damaged; those of earlier steps are redacted. Or what
                lies behind them is: then all are redacted, and it was said.
            TimeoutError: Not done in time; what was redacted stays so, and the rest, or the event
                that says so, is done when it is asked for again.
            QuotaExceededError, StorageFullError: The event that says so cannot be appended.
            FormatVersionError: The store has format version 1.
        """
        log = self._store._log
        require_removal(log, "redact events")
        whole(first, "first", 0, POSITION_MAX)
        whole(last, "last", first, POSITION_MAX)
        optional_text(reason, "reason")
        deadline = _Deadline(seconds(timeout, "timeout"))
        facts = log.views.facts(self._name)
        if facts is None:
            raise SessionNotFoundError(f"no session {self._name[1]!r}")
        if last >= facts.event_count:
            raise UsageError(
                f"session {self._name[1]!r} has no event {last}",
                hint="Wait for the ack of what is to be redacted.",
            )
        number = facts.origin.number
        environment = log.environment
        tools = log.index, log.writer.pause, lambda: environment.is_low
        task = Redact(number, first, last, *tools)
        log.writer.run(task, deadline.left_s())
        if task.redacted.voids:  # a purge leaves hot records as they are
            log.writer.run(OverwriteVoid(*tools, number), deadline.left_s())
            log.writer.run(Reclaim(number, *tools), deadline.left_s())
        try:
            told, summaries = self._told_of(number, first, last)
        except CorruptionError:  # behind the range: it is said all the same
            if task.redacted.events or task.redacted.already:
                self._say(number, first, last, reason, deadline)
            raise
        if task.redacted.events or (told is None and task.redacted.already):
            told = self._say(number, first, last, reason, deadline)
        return self._receipt(task.redacted, number, first, last, told, summaries)

    async def redact_async(
        self, first: int, last: int, *, reason: str | None = None, timeout: float | None = None
    ) -> RedactionReceipt:
        """``redact`` on the store's pool."""
        return await self._store._on_pool(self.redact, first, last, reason=reason, timeout=timeout)

    def _told_of(
        self, number: int, first: int, last: int
    ) -> tuple[tuple[int, int] | None, tuple[int, ...]]:
        """Where a range is said to be redacted already, and which summaries tell of it."""
        told: tuple[int, int] | None = None
        summaries: list[int] = []
        following = last + 1
        while True:
            with self._store._log.views.past(self._name) as past:
                current = None if past is None else past.view.origin.number
                if past is None or current != number:
                    raise SessionGoneError.while_read(self._name[1], number, current)
                following = max(following, past.first)
                stop = past.view.event_count
                events, following = past.read_kinds(
                    following, stop, _TELLING, Event, STATE_PAGE_EVENTS
                )
            for event in events:
                if event.kind_code == COMPACTION:
                    if self._stands_for(event, first, last):
                        summaries.append(event.sequence)
                elif _covers(event.body, first, last):
                    told = event.sequence, event.position
            if following >= stop:
                return told, tuple(summaries)

    def _stands_for(self, event: Event, first: int, last: int) -> bool:
        """Whether the summary of a compaction stands for events of a range."""
        boundary = boundary_of(event.body)
        if boundary is None or boundary.through is None:
            return False
        scan = PathScan(self._store._log, self._name, event.sequence)
        through = scan.resolve((boundary.through,), event.sequence).get(boundary.through, -1)
        for block in scan.blocks(min(through, last) + 1):
            return block.sequences[-1] >= first
        return False

    def _say(
        self, number: int, first: int, last: int, reason: str | None, deadline: _Deadline
    ) -> tuple[int, int]:
        """Append the event that says so."""
        body: dict[str, Any] = {"first": first, "last": last}
        if reason is not None:
            body["reason"] = reason
        ack: Ack = make_ack(
            self._name, (draft_control(REDACTION, body),), opening=None, number=number
        )
        left_s = deadline.left_s()
        try:
            self._store._submit(ack, _WAIT_S if left_s is None else min(left_s, _WAIT_S))
        except OverloadedError as error:
            if left_s is None:
                raise
            raise TimeoutError(
                "all is redacted, and the event that says so found no room"
            ) from error
        done = ack.result(deadline.left_s())
        return done.last, done.position

    def _receipt(
        self,
        redacted: Redacted,
        number: int,
        first: int,
        last: int,
        told: tuple[int, int] | None,
        summaries: tuple[int, ...],
    ) -> RedactionReceipt:
        log = self._store._log
        with log.views.transaction() as tables:
            epoch = tables.commit_record().epoch
            has_redacted = redacted.events + redacted.already > 0
            has_reached = has_redacted or redacted.voids > 0
            quoting = tables.dictionaries_of({number}) if has_reached else []
        log.cache.begin(epoch)  # a read under way from before keeps nothing
        sequence, position = (None, None) if told is None else told
        return RedactionReceipt(
            tenant=self._name[0],
            session=self._name[1],
            number=number,
            first=first,
            last=last,
            event_count=redacted.events,
            already_count=redacted.already,
            kept_count=redacted.kept,
            void_count=redacted.voids,
            sequence=sequence,
            position=position,
            blobs_removed=len(redacted.removed),
            blobs_kept=len(redacted.left),
            summaries=summaries if has_redacted else (),
            is_live=bool(quoting) or bool(redacted.left),
            dictionaries=tuple(quoting),
        )


class _Deadline:
    """When a call of several waits is to end."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end_us = None if timeout_s is None else CLOCK.monotonic_us() + int(timeout_s * 1e6)

    def left_s(self) -> float | None:
        """Seconds that are left, 0 when none are; None without an end."""
        if self._end_us is None:
            return None
        return max(0.0, (self._end_us - CLOCK.monotonic_us()) / 1e6)


def _covers(body: Any, first: int, last: int) -> bool:
    """Whether a ``redaction`` event says that a range was redacted."""
    if type(body) is not dict:
        return False
    told = body.get("first"), body.get("last")
    return type(told[0]) is int and type(told[1]) is int and told[0] <= first and last <= told[1]
