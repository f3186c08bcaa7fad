"""What belongs to a session beside its history: usage, documents, artifacts, runs, tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.artifacts import Artifacts
from engine.blobs import Blobs
from engine.describing import Describing
from engine.documents import Documents
from engine.drafting import AckMode
from engine.events import opening_of
from engine.fold import Fold
from engine.reading import path_of
from engine.runs import Runs
from engine.spaces import Space
from engine.toolcalls import ToolCalls
from engine.usage import Sums, Usage, on_path, records_of
from engine.usagebody import checked_scope, require_figure, usage_body
from engine.values import AsOf, Present, Values
from eventlog.ack import Ack
from eventlog.arguments import whole
from eventlog.branching import Stretch
from eventlog.errors import SessionGoneError, UsageError
from eventlog.limits import POSITION_MAX, SESSION_BRANCHES_MAX
from eventlog.past import Past

if TYPE_CHECKING:
    from collections.abc import Sequence


class Belongings(Describing):
    """The part of ``Session`` for what belongs to it."""

    __slots__ = ()

    tenant: str

    @property
    def documents(self) -> Documents:
        """The session's named texts; no I/O."""
        return Documents(self._as_session(), self._values)

    @property
    def artifacts(self) -> Artifacts:
        """What tools made in the session; no I/O."""
        return Artifacts(self._as_session(), self._values)

    @property
    def runs(self) -> Runs:
        """The session's runs; no I/O."""
        return Runs(self._as_session(), self._values)

    @property
    def tool_calls(self) -> ToolCalls:
        """The session's tool calls; no I/O."""
        return ToolCalls(self._as_session(), self._values)

    def record_usage(
        self,
        scope: str = "turn",
        *,
        model: str | None = None,
        provider: str | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        cache_write_tokens: int | None = None,
        reasoning_tokens: int | None = None,
        audio_input_tokens: int | None = None,
        audio_output_tokens: int | None = None,
        characters: int | None = None,
        seconds: float | None = None,
        cost: float | None = None,
        currency: str | None = None,
        event: int | str | None = None,
        user_id: str | None = None,
        run_id: str | None = None,
        turn_id: str | None = None,
        extra: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
        ack: AckMode = "durable",
        wait: float | None = None,
    ) -> Ack:
        """Record what was used, once; the head stays as it is. Returns at once.

        Args:
            scope: ``turn``, ``provider_turn`` or ``run_total``; totals are of one scope each.
            model: The model.
            provider: Who serves it.
            input_tokens: Tokens in, 0 to 2^53, as are all counts.
            output_tokens: Tokens out.
            cached_tokens: Of the tokens in, those that came from a cache.
            cache_write_tokens: Those that were written to one.
            reasoning_tokens: Of the tokens out, those that nobody sees.
            audio_input_tokens: Of the tokens in, those of audio.
            audio_output_tokens: Of the tokens out, those of audio.
            characters: Characters that were spoken.
            seconds: Seconds that were listened to, 0 to 2^63, as is the cost.
            cost: What it costs.
            currency: Of ``cost``; costs of different currencies are not summed.
            event: Sequence or id of the public event that it belongs to; None for the one that is
                the head when this is written.
            user_id: Whose it is; None for the session's user.
            run_id: The run.
            turn_id: The turn.
            extra: Plain data.
            idempotency_key: See ``append``; so are the others.
            ack: See ``append``.
            wait: See ``append``.

        Raises:
            UsageError: A scope, count or amount that cannot be; or none of these and no ``extra``.
            FormatVersionError: The store has format version 1.

        The ack raises ``AppendConflictError`` when there is no such event.
        """
        given = locals()
        body = usage_body(scope, given)
        require_figure(given)
        return self._as_session()._change(
            Space.USAGE,
            {},
            append={"": body},
            parent=event,
            idempotency_key=idempotency_key,
            ack=ack,
            wait=wait,
        )

    def usage(
        self, scope: str = "turn", *, branch: int | str | None = None, leaf: int | str | None = None
    ) -> Usage:
        """What was used, also on abandoned branches.

        Args:
            scope: See ``record_usage``.
            branch: Only what belongs to events of this branch, by number or name, and not to those
                that it was forked from: the totals of all branches add up to the session's.
            leaf: Only what belongs to events on the path from the root to this one, or to the
                newest one of a named branch.

        Raises:
            SessionGoneError: The session was deleted meanwhile.
            UsageError: There is no such branch or event.
        """
        if branch is not None and leaf is not None:
            raise UsageError("usage takes either branch= or leaf=")
        facts = self._store._log.views.facts(self._name)
        number = None if facts is None else facts.origin.number
        path = None if leaf is None else self._stretches(leaf, number)
        if branch is not None:
            with self._store._log.views.past(self._name) as past:
                require_branch(past, self._name[1], branch)
        opening = {} if facts is None else opening_of(facts.row, facts.origin.number)
        user_id = opening.get("user_id")
        values = AsOf(Fold) if number is None else Present(self._store, self._name, number)
        return usage_in(values, self._name[1], scope, user_id, branch, path)

    async def usage_async(
        self, scope: str = "turn", *, branch: int | str | None = None, leaf: int | str | None = None
    ) -> Usage:
        """``usage`` on the store's pool."""
        return await self._store._on_pool(self.usage, scope, branch=branch, leaf=leaf)

    # For the above

    @property
    def _blobs(self) -> Blobs:
        return Blobs(self._store, self._name[0])

    @property
    def _values(self) -> Present:
        return Present(self._store, self._name)

    def _stretches(
        self, leaf: int | str | None, number: int | None = None, *, is_head: bool = False
    ) -> Sequence[Stretch]:
        """The path from the root to an event; empty when there is none.

        Args:
            leaf: See ``path``.
            number: The incarnation that is meant; None for any.
            is_head: Whether the leaf is what was the head; then None stands for no event.

        Raises:
            SessionGoneError: The session was deleted, or deleted and made anew.
            TrimmedError: The event was purged.
            UsageError: There is no such event, or it is none of the history.
        """
        end = leaf if is_head and not isinstance(leaf, str) else self._leaf(leaf)
        with self._store._log.views.past(self._name) as past:
            current = None if past is None else past.view.origin.number
            if number not in (None, current):
                raise SessionGoneError.while_read(self._name[1], number, current)
            if past is None or end is None:
                return []
            if (is_head or type(leaf) is not int) and end < past.first and not past.view.branches:
                return past.path(end)  # all that was purged is on it
            return path_of(past, end)


def usage_in(
    values: Values,
    session: str,
    scope: str,
    user_id: str | None,
    branch: int | str | None = None,
    path: Sequence[Stretch] | None = None,
) -> Usage:
    """Usage of one session; see ``Session.usage``."""
    records = records_of(values, session, checked_scope(scope), user_id)
    if branch is not None:
        number = branch_number(values, session, branch)
        records = [each for each in records if each.branch == number]
    if path is not None:
        records = on_path(records, path)
    sums = Sums(scope)
    sums.add(session, records)
    return sums.usage(records)


def require_branch(
    past: Past | None, session: str, branch: int | str, sequence: int = POSITION_MAX
) -> None:
    """Raise unless a branch, given by its number, was there after an event."""
    if type(branch) is str:
        return  # the names are in the fold
    number = whole(branch, "branch", 0, SESSION_BRANCHES_MAX - 1)
    opening = None if past is None or number == 0 else past.opening(number)
    if number and (opening is None or opening.sequence > sequence):
        raise UsageError(f"session {session!r} has no branch {number}")


def branch_number(values: Values, session: str, branch: int | str) -> int:
    """The number of a branch, given by it or by a name.

    Raises:
        UsageError: It cannot be one, or there is no branch of that name.
    """
    if type(branch) is not str:
        return whole(branch, "branch", 0, SESSION_BRANCHES_MAX - 1)
    found = values.branch(branch)
    if found is None:
        raise UsageError(f"session {session!r} has no branch {branch!r}")
    return found.branch
