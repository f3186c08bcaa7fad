"""A session as it was after one of its events.

Invariant: what a ``SessionAt`` tells depends on the events up to its sequence alone, whatever is
appended, rolled up or sealed later.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.artifacts import ArtifactsAt
from engine.belongings import require_branch, usage_in
from engine.documents import DocumentsAt
from engine.events import Event, SessionInfo, opening_of
from engine.facts import Facts, facts_from
from engine.fold import Fold
from engine.reading import Events
from engine.runs import RunsAt
from engine.spaces import Space
from engine.state import read_fold, state_of, variables_of
from engine.toolcalls import ToolCallsAt
from engine.usage import Usage
from engine.values import AsOf
from engine.variables import Variable
from eventlog.arguments import whole
from eventlog.errors import SessionGoneError, SessionNotFoundError, TrimmedError, UsageError
from eventlog.limits import POSITION_MAX, TIME_MAX
from eventlog.past import Past

if TYPE_CHECKING:
    from engine.session import Session


class SessionAt:
    """See the module; made by ``Session.at``. Holds no transaction, and never changes.

    Attributes:
        sequence: The event after which this is the session.
        number: Number of the session's incarnation.
        message_count: Messages up to then.
        head: Sequence of the event that the next append would have followed then; None for none.
    """

    __slots__ = ("_fold", "_session", "head", "message_count", "number", "sequence")

    def __init__(self, session: Session, past: Past, sequence: int, head: int) -> None:
        self._session = session
        self._fold: Fold | None = None
        self.sequence = sequence
        self.number = past.view.origin.number
        self.message_count = past.message_count(sequence + 1)
        self.head = past.head(sequence + 1, head)

    def __repr__(self) -> str:
        return f"SessionAt({self._session.name!r}, sequence={self.sequence})"

    @property
    def state(self) -> dict[str, Any]:
        """The variables' values by key, as ``Session.state``."""
        return state_of(self._values.all(Space.VARIABLES))

    async def state_async(self) -> dict[str, Any]:
        """``state`` on the store's pool."""
        return await self._session._store._on_pool(lambda: self.state)

    def variables(self, prefix: str = "") -> list[Variable]:
        """The variables, as ``Session.variables``."""
        return variables_of(self._values.all(Space.VARIABLES), prefix)

    async def variables_async(self, prefix: str = "") -> list[Variable]:
        """``variables`` on the store's pool."""
        return await self._session._store._on_pool(self.variables, prefix)

    @property
    def facts(self) -> Facts:
        """What the session was, as ``Session.facts``."""
        with self._session._store._log.views.past(self._session._name) as past:
            found = self._same(past)
            opening = opening_of(found.row, self.number)
        stored = self._values.all(Space.FACTS)
        return facts_from(opening, stored, f"facts of session {self.number}")

    async def facts_async(self) -> Facts:
        """``facts`` on the store's pool."""
        return await self._session._store._on_pool(lambda: self.facts)

    @property
    def documents(self) -> DocumentsAt:
        """The documents as they were."""
        return DocumentsAt(self._session, self._values)

    @property
    def artifacts(self) -> ArtifactsAt:
        """The artifacts as they were."""
        return ArtifactsAt(self._session, self._values, head=self.head, number=self.number)

    @property
    def runs(self) -> RunsAt:
        """The runs as they were, open ones too: what became of their owners is not asked."""
        return RunsAt(self._session, self._values)

    @property
    def tool_calls(self) -> ToolCallsAt:
        """The tool calls as they were."""
        return ToolCallsAt(self._session, self._values)

    def usage(self, scope: str = "turn", *, branch: int | str | None = None) -> Usage:
        """What was used up to then, as ``Session.usage``."""
        facts = self._session._store._log.views.facts(self._session._name)
        if facts is None or facts.origin.number != self.number:
            raise self._gone(None if facts is None else facts.origin.number)
        if branch is not None:
            with self._session._store._log.views.past(self._session._name) as past:
                require_branch(self._same(past), self._session.name, branch, self.sequence)
        user_id = opening_of(facts.row, self.number).get("user_id")
        return usage_in(self._values, self._session.name, scope, user_id, branch)

    async def usage_async(self, scope: str = "turn", *, branch: int | str | None = None) -> Usage:
        """``usage`` on the store's pool."""
        return await self._session._store._on_pool(self.usage, scope, branch=branch)

    def history(self, limit: int | None = None) -> list[Any]:
        """The messages that the view showed, as ``Session.history``."""
        if limit is not None and whole(limit, "limit", 0, POSITION_MAX) == 0:
            return []
        with self._session._store._log.views.past(self._session._name) as past:
            found = self._same(past)
            if found.is_trimmed or found.view.branches or limit is not None:
                events = found.shown(self.sequence + 1, limit, Event)
                return [event.body for event in events]
        return [event.body for event in self.events(kinds=("message",))]

    async def history_async(self, limit: int | None = None) -> list[Any]:
        """``history`` on the store's pool."""
        return await self._session._store._on_pool(self.history, limit)

    def events(
        self, first: int = 0, last: int | None = None, kinds: Collection[str] | None = None
    ) -> Events:
        """The events up to then by sequence, as ``Session.events``."""
        whole(first, "first", 0, POSITION_MAX)
        stop = self.sequence
        if last is not None:
            stop = min(stop, whole(last, "last", 0, POSITION_MAX))
        with self._session._store._log.views.past(self._session._name) as past:
            self._same(past)
        pager = self._session._pager(first, stop, kinds, self.number, self.sequence + 1)
        return Events(pager, self._session._store)

    def info(self) -> SessionInfo:
        """Facts, counts, head and times as they were."""
        with self._session._store._log.views.past(self._session._name) as past:
            found = self._same(past)
            last = found.event(self.sequence, Event)
            since = found.since_roll_up(self.sequence + 1)
        now = self._session.info()
        if now is None or now.number != self.number:
            raise self._gone(None if now is None else now.number)
        facts = self.facts
        metadata = facts.metadata or (None if now.metadata is None else {})
        return replace(
            now,
            user_id=facts.user_id,
            title=facts.title,
            metadata=metadata,
            account_id=facts.account_id,
            agent_id=facts.agent_id,
            workspace=facts.workspace,
            status=facts.status,
            labels=tuple(sorted({label.name for label in facts.labels})),
            updated_us=last.recorded_us,
            event_count=self.sequence + 1,
            message_count=self.message_count,
            head=self.head,
            last_sequence=self.sequence,
            last_position=last.position,
            loose_count=since,
            unsealed_count=0,
        )

    async def info_async(self) -> SessionInfo:
        """``info`` on the store's pool."""
        return await self._session._store._on_pool(self.info)

    @property
    def _values(self) -> AsOf:
        return AsOf(self._folded)

    def _folded(self) -> Fold:
        fold = self._fold
        if fold is None:
            fold = read_fold(
                self._session._store, self._session._name, self.sequence, number=self.number
            )
            assert fold is not None  # a number was given
            self._fold = fold
            return fold
        try:
            with self._session._store._log.views.past(self._session._name) as past:
                self._same(past)
        except (SessionGoneError, TrimmedError):
            self._fold = None  # what was removed does not stay in memory either
            raise
        return fold

    def _same(self, past: Past | None) -> Past:
        if past is None or past.view.origin.number != self.number:
            raise self._gone(None if past is None else past.view.origin.number)
        _require_kept(past, self.sequence)
        return past

    def _gone(self, current: int | None) -> SessionGoneError:
        return SessionGoneError(
            f"session {self._session.name!r} was deleted meanwhile",
            expected=self.number,
            current=current,
        )


def session_at(session: Session, sequence: int | None, time_us: int | None) -> SessionAt:
    """See ``Session.at``."""
    if (sequence is None) is (time_us is None):
        raise UsageError("at() takes either a sequence or time_us=")
    if sequence is not None:
        whole(sequence, "sequence", 0, POSITION_MAX)
    else:
        whole(time_us, "time_us", -TIME_MAX, TIME_MAX)
    facts = session._store._log.views.facts(session._name)
    with session._store._log.views.past(session._name) as past:
        if past is None or facts is None:
            raise SessionNotFoundError(f"no session {session.name!r}")
        if sequence is None:
            assert time_us is not None
            sequence = past.last_by(time_us)
            if sequence is None and past.first:
                raise TrimmedError(
                    f"what session {session.name!r} was at that time was purged", first=past.first
                )
            if sequence is None:
                raise UsageError(f"session {session.name!r} has no event of that time or before")
        if sequence >= past.view.event_count:
            raise UsageError(
                f"session {session.name!r} has sequences {past.first} to "
                f"{past.view.event_count - 1}, not {sequence}"
            )
        _require_kept(past, sequence)
        return SessionAt(session, past, sequence, facts.head)


def _require_kept(past: Past, sequence: int) -> None:
    if sequence < past.first:
        raise TrimmedError(
            f"the events of session {past.view.origin.name!r} below {past.first} were purged",
            first=past.first,
        )
