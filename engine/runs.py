"""Runs of an agent: from their beginnings to their ends, one row each.

A run that is open names the process that owns it. Once that process is gone the run reads as
``interrupted``; nothing is written for it, and another process may take it over.

Invariants:
    1. A run ends once, and keeps the time of its beginning.
    2. Reading writes nothing; what a run was after an earlier event depends on the events alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engine.belonging import value_of
from engine.spaces import Space
from engine.values import Values
from engine.variables import StoredVariable
from eventlog.ack import Ack
from eventlog.arguments import chosen, shown
from eventlog.errors import AppendConflictError, CorruptionError, UsageError
from eventlog.keys import name_bytes
from eventlog.locks import same_domain
from eventlog.seams import ProcessIdentity, process_alive, process_identity

if TYPE_CHECKING:
    from engine.session import Session

OPEN: Final = ("queued", "running", "suspended")
ENDED: Final = ("succeeded", "failed", "aborted", "cancelled", "denied")
_MAY_HAVE: Final = {"owner": dict, "began": int, "started_us": int, "metadata": dict}
_PROCESS: Final = {"pid": int, "start": int, "boot": str, "namespace": int, "host": str}
INTERRUPTED: Final = "interrupted"  # what an open run reads as once its owner is gone
STATUSES: Final = (*OPEN, *ENDED, INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it stands; times are µs since the epoch.

    Attributes:
        run_id: Its id.
        status: ``queued``, ``running``, ``suspended``, one of ``ENDED``, or ``interrupted``.
        started_us: Recorded time of its beginning.
        ended_us: Recorded time of its end; None while it is open, also when it is interrupted.
        updated_us: Recorded time of its last change.
        version: Sequence of that change.
        owner_pid: Process that owns it, as its host counts; None when it has ended.
        owner_host: That process's host.
        error: Why it failed, as the caller said.
        metadata: As the caller gave it at the beginning.
    """

    run_id: str
    status: str
    started_us: int
    ended_us: int | None
    updated_us: int
    version: int
    owner_pid: int | None
    owner_host: str | None
    error: Any
    metadata: dict[str, Any] | None


Listed = list[Run]


class RunsAt:
    """The runs of a session as it was after one of its events: open ones read as they were."""

    __slots__ = ("_session", "_values")
    _judges = False  # whether an open run may read as interrupted

    def __init__(self, session: Session, values: Values) -> None:
        self._session = session
        self._values = values

    def get(self, run_id: str) -> Run | None:
        """A run by its id; None when there is none."""
        name_bytes(run_id, "run_id")
        stored = self._values.one(Space.RUNS, run_id)
        return None if stored is None else self._run(stored)

    async def get_async(self, run_id: str) -> Run | None:
        """``get`` on the store's pool."""
        return await self._session._store._on_pool(self.get, run_id)

    def list(self, statuses: Collection[str] | None = None) -> Listed:
        """The runs by their beginnings, oldest first.

        Args:
            statuses: Only those with one of these statuses, as ``Run.status`` tells them.

        Raises:
            UsageError: There is no such status.
        """
        wanted = chosen(statuses, "statuses", STATUSES)
        stored = sorted(self._values.all(Space.RUNS).values(), key=_beginning)
        found = map(self._run, stored)
        return [each for each in found if wanted is None or each.status in wanted]

    async def list_async(self, statuses: Collection[str] | None = None) -> Listed:
        """``list`` on the store's pool."""
        return await self._session._store._on_pool(self.list, statuses)

    def _run(self, stored: StoredVariable) -> Run:
        value = _value(stored)
        owner = value.get("owner")
        status = value["status"]
        if self._judges and owner is not None and status in OPEN and not may_live(owner):
            status = INTERRUPTED
        return Run(
            stored.key,
            status,
            value.get("started_us", stored.updated_us),
            stored.updated_us if status in ENDED else None,
            stored.updated_us,
            stored.sequence,
            None if owner is None else owner["pid"],
            None if owner is None else owner["host"],
            value.get("error"),
            value.get("metadata"),
        )


class Runs(RunsAt):
    """The runs of a session. Made by ``session.runs``."""

    __slots__ = ()
    _judges = True

    def begin(
        self,
        run_id: str,
        *,
        status: str = "running",
        metadata: dict[str, Any] | None = None,
        wait: float | None = None,
    ) -> Ack:
        """Begin a run that this process owns.

        Args:
            run_id: 1 to 512 UTF-8 bytes.
            status: ``queued``, ``running`` or ``suspended``.
            metadata: Plain data.
            wait: See ``Session.append``.

        The ack raises ``AppendConflictError`` when there is a run of that id.
        """
        _check_status(status, OPEN)
        value: dict[str, Any] = {"status": status, "owner": owning_process()}
        if metadata is not None:
            if type(metadata) is not dict:
                raise UsageError("metadata must be a dict")
            value["metadata"] = metadata
        return self._set(run_id, value, -1, wait)

    async def begin_async(
        self,
        run_id: str,
        *,
        status: str = "running",
        metadata: dict[str, Any] | None = None,
        wait: float | None = None,
    ) -> Ack:
        """``begin`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(
            self.begin, run_id, status=status, metadata=metadata, wait=wait
        )

    def mark(self, run_id: str, status: str, *, wait: float | None = None) -> Ack:
        """Give a run that has not ended another status, and this process as its owner.

        Args:
            run_id: Its id.
            status: ``queued``, ``running`` or ``suspended``.
            wait: See ``Session.append``.

        Raises:
            UsageError: The session has no such run yet; a beginning counts once it is durable.
            AppendConflictError: It has ended.
        """
        _check_status(status, OPEN)
        stored, kept = self._kept(run_id)
        return self._set(
            run_id, {**kept, "status": status, "owner": owning_process()}, stored, wait
        )

    async def mark_async(self, run_id: str, status: str, *, wait: float | None = None) -> Ack:
        """``mark`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(self.mark, run_id, status, wait=wait)

    def end(
        self,
        run_id: str,
        status: str = "succeeded",
        *,
        error: Any = None,
        wait: float | None = None,
    ) -> Ack:
        """End a run.

        Args:
            run_id: Its id.
            status: ``succeeded``, ``failed``, ``aborted``, ``cancelled`` or ``denied``.
            error: Why, as plain data.
            wait: See ``Session.append``.

        Raises:
            UsageError: The session has no such run yet; a beginning counts once it is durable.
            AppendConflictError: It has ended.

        The ack raises ``AppendConflictError`` when somebody changed it at the same time.
        """
        _check_status(status, ENDED)
        stored, kept = self._kept(run_id)
        value = {**kept, "status": status}
        if error is not None:
            value["error"] = error
        return self._set(run_id, value, stored, wait)

    async def end_async(
        self,
        run_id: str,
        status: str = "succeeded",
        *,
        error: Any = None,
        wait: float | None = None,
    ) -> Ack:
        """``end`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(self.end, run_id, status, error=error, wait=wait)

    def _kept(self, run_id: str) -> tuple[int, dict[str, Any]]:
        """Version of an open run, and what every later value of it keeps."""
        name_bytes(run_id, "run_id")
        stored = self._values.one(Space.RUNS, run_id)
        if stored is None:
            raise UsageError(
                f"there is no run {run_id!r}", hint="Wait for the ack of its beginning."
            )
        value = _value(stored)
        if value["status"] in ENDED:
            raise AppendConflictError(
                f"run {run_id!r} ended as {value['status']}",
                expected="open",
                current=value["status"],
            )
        kept = {
            "began": value.get("began", stored.sequence),
            "started_us": value.get("started_us", stored.updated_us),
        }
        if "metadata" in value:
            kept["metadata"] = value["metadata"]
        return stored.sequence, kept

    def _set(self, run_id: str, value: dict[str, Any], version: int, wait: float | None) -> Ack:
        name_bytes(run_id, "run_id")
        return self._session._change(
            Space.RUNS, {run_id: value}, expected={run_id: version}, wait=wait
        )


def _beginning(stored: StoredVariable) -> int:
    """Sequence of a run's beginning: its order, whatever the clock did."""
    began: int = _value(stored).get("began", stored.sequence)
    return began


def _value(stored: StoredVariable) -> dict[str, Any]:
    value = value_of(stored, _MAY_HAVE, status=str)
    if "owner" in value and not _is_process(value["owner"]):
        raise CorruptionError("has an owner that is no process", where=f"run {stored.key!a}")
    return value


def _is_process(owner: Mapping[str, Any]) -> bool:
    return all([type(owner.get(name)) is kind for name, kind in _PROCESS.items()])


def _check_status(status: str, allowed: tuple[str, ...]) -> None:
    if status not in allowed:
        raise UsageError(f"status must be one of {', '.join(allowed)}, not {shown(status)}")


def owning_process() -> dict[str, Any]:
    """This process, known well enough to see later whether it still lives."""
    me = process_identity()
    return {
        "pid": me.pid,
        "start": me.start,
        "boot": me.boot,
        "namespace": me.namespace,
        "host": me.host,
    }


def may_live(owner: Mapping[str, Any]) -> bool:
    """Whether a run's owner may still live; judged by its pid only where pids agree."""
    known = ProcessIdentity(
        owner["pid"], owner["start"], 0, owner["boot"], owner["namespace"], owner["host"], ""
    )
    ours = process_identity()
    if same_domain(known, ours):
        return process_alive(known)
    return known.host != ours.host or known.boot == ours.boot
