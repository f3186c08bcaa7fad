"""Calls of tools: open, waiting, done, failed, abandoned; one row each, and each step an event.

Invariants:
    1. A call is done, failed or abandoned once; then nothing about it changes any more.
    2. What state a call is in says an event, never a guess: a tool that runs for long stays open.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engine.belonging import value_of
from engine.spaces import Space
from engine.values import Values
from engine.variables import StoredVariable
from eventlog.ack import Ack
from eventlog.arguments import chosen, whole
from eventlog.errors import AppendConflictError, UsageError
from eventlog.keys import name_bytes
from eventlog.limits import POSITION_MAX

if TYPE_CHECKING:
    from engine.session import Session

PENDING: Final = ("open", "waiting")
STATES: Final = (*PENDING, "done", "failed", "abandoned")
_MAY_HAVE: Final = {"event": int, "result_event": int, "opened": int, "opened_us": int}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as it stands; times are µs since the epoch.

    Attributes:
        id: Its id.
        name: The tool.
        state: ``open``, ``waiting``, ``done``, ``failed`` or ``abandoned``.
        event: Sequence of the event that asked for it, or None.
        result_event: Sequence of the event that holds its result, or None.
        arguments_ref: Where its arguments are, as the caller said.
        reason: What it waits for, or why it was abandoned.
        error: Why it failed.
        opened_us: Recorded time of its opening.
        updated_us: Recorded time of its last step.
        version: Sequence of that step.
    """

    id: str
    name: str
    state: str
    event: int | None
    result_event: int | None
    arguments_ref: Any
    reason: Any
    error: Any
    opened_us: int
    updated_us: int
    version: int


Listed = list[ToolCall]


class ToolCallsAt:
    """The tool calls of a session as it is, or as it was after one of its events."""

    __slots__ = ("_session", "_values")

    def __init__(self, session: Session, values: Values) -> None:
        self._session = session
        self._values = values

    def get(self, id: str) -> ToolCall | None:
        """A call by its id; None when there is none."""
        name_bytes(id, "tool call id")
        stored = self._values.one(Space.TOOL_CALLS, id)
        return None if stored is None else _call_of(stored)

    async def get_async(self, id: str) -> ToolCall | None:
        """``get`` on the store's pool."""
        return await self._session._store._on_pool(self.get, id)

    def list(self, states: Collection[str] | None = None) -> Listed:
        """The calls by their openings, oldest first.

        Args:
            states: Only those in one of these states.

        Raises:
            UsageError: There is no such state.
        """
        wanted = chosen(states, "states", STATES)
        stored = sorted(self._values.all(Space.TOOL_CALLS).values(), key=_opening)
        return [each for each in map(_call_of, stored) if wanted is None or each.state in wanted]

    async def list_async(self, states: Collection[str] | None = None) -> Listed:
        """``list`` on the store's pool."""
        return await self._session._store._on_pool(self.list, states)


class ToolCalls(ToolCallsAt):
    """The tool calls of a session. Made by ``session.tool_calls``.

    Each step but the first asks how the call stands, so wait for the ack of the step before. The
    ack of a step raises ``AppendConflictError`` when somebody else made one at the same time.
    """

    __slots__ = ()

    def open(
        self,
        id: str,
        name: str,
        arguments_ref: Any = None,
        *,
        event: int | None = None,
        wait: float | None = None,
    ) -> Ack:
        """A tool is called.

        Args:
            id: The call's id, 1 to 512 UTF-8 bytes.
            name: The tool.
            arguments_ref: Plain data that says where the arguments are.
            event: Sequence of the event that asks for it.
            wait: See ``Session.append``.

        The ack raises ``AppendConflictError`` when there is a call of that id.
        """
        name_bytes(name, "tool name")
        value: dict[str, Any] = {"state": "open", "name": name}
        if arguments_ref is not None:
            value["arguments_ref"] = arguments_ref
        if event is not None:
            value["event"] = whole(event, "event", 0, POSITION_MAX)
        return self._set(id, value, -1, wait)

    async def open_async(
        self,
        id: str,
        name: str,
        arguments_ref: Any = None,
        *,
        event: int | None = None,
        wait: float | None = None,
    ) -> Ack:
        """``open`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(
            self.open, id, name, arguments_ref, event=event, wait=wait
        )

    def waiting(self, id: str, reason: Any = None, *, wait: float | None = None) -> Ack:
        """The call waits, such as for somebody's approval.

        Args:
            id: The call's id.
            reason: What for, as plain data.
            wait: See ``Session.append``.

        Raises:
            UsageError: The session has no such call.
            AppendConflictError: It is done, failed or abandoned.
        """
        return self._step(id, "waiting", wait, reason=reason)

    async def waiting_async(self, id: str, reason: Any = None, *, wait: float | None = None) -> Ack:
        """``waiting`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(self.waiting, id, reason, wait=wait)

    def resume(self, id: str, *, wait: float | None = None) -> Ack:
        """A call that waited goes on; raises as ``waiting``, also for one that does not wait.

        Args:
            id: The call's id.
            wait: See ``Session.append``.
        """
        return self._step(id, "open", wait, ("waiting",))

    async def resume_async(self, id: str, *, wait: float | None = None) -> Ack:
        """``resume`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(self.resume, id, wait=wait)

    def done(self, id: str, *, event: int | None = None, wait: float | None = None) -> Ack:
        """The call has its result; raises as ``waiting``.

        Args:
            id: The call's id.
            event: Sequence of the event that holds the result.
            wait: See ``Session.append``.
        """
        where = None if event is None else whole(event, "event", 0, POSITION_MAX)
        return self._step(id, "done", wait, result_event=where)

    async def done_async(
        self, id: str, *, event: int | None = None, wait: float | None = None
    ) -> Ack:
        """``done`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(self.done, id, event=event, wait=wait)

    def failed(self, id: str, error: Any = None, *, wait: float | None = None) -> Ack:
        """The call failed; raises as ``waiting``.

        Args:
            id: The call's id.
            error: Why, as plain data.
            wait: See ``Session.append``.
        """
        return self._step(id, "failed", wait, error=error)

    async def failed_async(self, id: str, error: Any = None, *, wait: float | None = None) -> Ack:
        """``failed`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(self.failed, id, error, wait=wait)

    def abandon(self, id: str, reason: Any = None, *, wait: float | None = None) -> Ack:
        """Nobody expects the call's result any more; raises as ``waiting``.

        Args:
            id: The call's id.
            reason: Why, as plain data.
            wait: See ``Session.append``.
        """
        return self._step(id, "abandoned", wait, reason=reason)

    async def abandon_async(self, id: str, reason: Any = None, *, wait: float | None = None) -> Ack:
        """``abandon`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(self.abandon, id, reason, wait=wait)

    def _step(
        self,
        id: str,
        state: str,
        wait: float | None,
        allowed: tuple[str, ...] = PENDING,
        **said: Any,
    ) -> Ack:
        name_bytes(id, "tool call id")
        stored = self._values.one(Space.TOOL_CALLS, id)
        if stored is None:
            raise UsageError(
                f"there is no tool call {id!r}", hint="Wait for the ack of its opening."
            )
        before = _value(stored)
        if before["state"] not in allowed:
            raise AppendConflictError(
                f"tool call {id!r} is {before['state']}, so it cannot become {state}",
                expected=" or ".join(allowed),
                current=before["state"],
            )
        kept = ("name", "arguments_ref", "event")
        value = {"state": state, **{key: before[key] for key in kept if key in before}}
        value["opened"] = before.get("opened", stored.sequence)
        value["opened_us"] = before.get("opened_us", stored.updated_us)
        value |= {key: each for key, each in said.items() if each is not None}
        return self._set(id, value, stored.sequence, wait)

    def _set(self, id: str, value: dict[str, Any], version: int, wait: float | None) -> Ack:
        name_bytes(id, "tool call id")
        return self._session._change(
            Space.TOOL_CALLS, {id: value}, expected={id: version}, wait=wait
        )


def _opening(stored: StoredVariable) -> int:
    """Sequence of a call's opening: its order, whatever the clock did."""
    opened: int = _value(stored).get("opened", stored.sequence)
    return opened


def _value(stored: StoredVariable) -> dict[str, Any]:
    return value_of(stored, _MAY_HAVE, state=str, name=str)


def _call_of(stored: StoredVariable) -> ToolCall:
    value = _value(stored)
    return ToolCall(
        stored.key,
        value["name"],
        value["state"],
        value.get("event"),
        value.get("result_event"),
        value.get("arguments_ref"),
        value.get("reason"),
        value.get("error"),
        value.get("opened_us", stored.updated_us),
        stored.updated_us,
        stored.sequence,
    )
