"""Rules of retention, and what applying them came to; plain values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.erasure import ErasureReceipt
from engine.events import Event
from engine.kinds import CONTROLS, kind_code
from eventlog.arguments import flag, items, whole
from eventlog.errors import UsageError
from eventlog.limits import INT_MAX, POSITION_MAX, TIME_MAX
from eventlog.record import BASE

Action = Literal["delete", "erase", "purge"]
Rule = Literal["max_age_us", "max_entries", "max_total_bytes"]
Bound = Literal["hold", "open_call", "tool_group", "compaction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Rules of retention; at least one.

    Attributes:
        max_age_us: Sessions without activity for longer than this go, in µs. Activity is the newest
            event that counts, whenever the session began.
        max_entries: Events that count which a session keeps: those before the newest so many are
            purged, and what lies between them. More stay where a tool call would be cut from its
            result, a call is open, or a compaction lies there that views apply; ``excess`` of the
            report says which.
        max_total_bytes: What events and contents of all sessions together may take as they are
            stored; the least recently active sessions go first. Measured before anything goes, so
            compression and what else the file holds make it no exact bound of the file.
        kinds: Kinds of the events that count; None for all but the ``base`` that a purge leaves. A
            session without any of them is as old as its newest event.
        erase: Erase the sessions that go, instead of deleting them. What is purged of sessions that
            stay is never overwritten.
    """

    max_age_us: int | None = None
    max_entries: int | None = None
    max_total_bytes: int | None = None
    kinds: Collection[str] | None = None
    erase: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            UsageError: There is no rule, or one that makes no sense.
            InvalidNameError: A kind has no legal name.
        """
        rules = (
            ("max_age_us", 0, TIME_MAX),
            ("max_entries", 1, POSITION_MAX),
            ("max_total_bytes", 0, INT_MAX),
        )
        given = [each for each in rules if getattr(self, each[0]) is not None]
        if not given:
            raise UsageError(
                "a policy needs a rule",
                hint="Give max_age_us=, max_entries= or max_total_bytes=.",
            )
        for name, least, most in given:
            whole(getattr(self, name), name, least, most)
        flag(self.erase, "erase")
        if self.kinds is not None:
            named = [self.kinds] if type(self.kinds) is str else items(self.kinds, "kinds")
            for kind in named:
                if kind not in CONTROLS:
                    kind_code(kind)
            object.__setattr__(self, "kinds", frozenset(named))

    def counts(self, event: Event) -> bool:
        """Whether an event is of the kinds that count."""
        if self.kinds is None:
            return event.kind_code != BASE
        return event.kind in self.kinds


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """What the rules say of a session.

    Attributes:
        tenant: The tenant's name.
        session: The session's name.
        number: Number of its incarnation.
        action: ``delete``, ``erase`` or ``purge``.
        rule: The rule that says so.
        event_count: Events that go.
        first: Of a purge the first sequence that stays, else None.
        active_us: Recorded time of the newest event that counts, µs since the epoch.
        holds: Why the session is held all the same.
    """

    tenant: str
    session: str
    number: int
    action: Action
    rule: Rule
    event_count: int
    first: int | None
    active_us: int
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RetentionExcess:
    """A session that keeps more events than ``max_entries`` says, and why.

    Attributes:
        tenant: The tenant's name.
        session: The session's name.
        number: Number of its incarnation.
        wanted: Events that count which the rule lets it keep.
        kept: Those that it keeps.
        first: Sequence of the first event that stays.
        reasons: What moved that back: ``hold``, the session is held; ``open_call``, a tool call has
            no result yet; ``tool_group``, a call would be cut from its result; ``compaction``, it
            is in use by views. In the order in which they did.
    """

    tenant: str
    session: str
    number: int
    wanted: int
    kept: int
    first: int
    reasons: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class RetentionDamage:
    """A session that was left alone because it is damaged.

    Attributes:
        tenant: The tenant's name.
        session: The session's name.
        reason: What cannot be read of it.
    """

    tenant: str
    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What applying a policy came to; of a dry run, what it would.

    Attributes:
        is_dry_run: Nothing was changed.
        session_count: Sessions that were looked at.
        deleted: Sessions that went, least recently active first.
        purged: Sessions of which the beginning went.
        held: Sessions that would have gone, or lost their beginning, and are held.
        changed: Sessions that were left alone since they had an event, or were removed, meanwhile.
        damaged: Sessions that were left alone since what had to be read of them is damaged.
        bytes_before: What events and contents took; None without ``max_total_bytes``.
        bytes_after: What those of them take that stay, purges not counted.
        receipts: Of the sessions that were erased.
        archive: The file that holds what went; None when none was asked for or nothing went.
        excess: Sessions that keep more than ``max_entries``, as it was decided.
    """

    is_dry_run: bool
    session_count: int
    deleted: tuple[RetentionDecision, ...]
    purged: tuple[RetentionDecision, ...]
    held: tuple[RetentionDecision, ...]
    changed: tuple[RetentionDecision, ...] = ()
    damaged: tuple[RetentionDamage, ...] = ()
    bytes_before: int | None = None
    bytes_after: int | None = None
    receipts: tuple[ErasureReceipt, ...] = ()
    archive: Path | None = None
    excess: tuple[RetentionExcess, ...] = ()

    @property
    def skipped_held(self) -> int:
        """How many sessions were left alone because they are held."""
        return len(self.held)
