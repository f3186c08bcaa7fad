"""Holds: reasons why a session must be kept, whatever the rules of retention say.

Invariants:
    1. A session is held while the fact ``hold`` has a value. A removal by a rule or by a user is
       written only in a commit in which it has none (``NOT_HELD``), so that no hold comes too late.
    2. A hold is changed only from what was read of it: of two changes at once one is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engine.compaction import Compacting
from engine.facts import HOLD, holds_in, optional_text
from engine.spaces import Space
from engine.variables import StoredVariable, decode_row, subkey_of
from eventlog.ack import Ack, Version
from eventlog.errors import InvalidNameError, LimitExceededError
from eventlog.limits import HOLDS_MAX

if TYPE_CHECKING:
    from engine.session import Session

NOT_HELD: Final = Version(Space.FACTS, subkey_of(HOLD), -1, "a hold")
"""The condition that a session is not held."""


class Holding(Compacting):
    """The part of ``Session`` that holds."""

    __slots__ = ()

    def hold(self, reason: str, *, wait: float | None = None) -> Ack:
        """Let no rule of retention remove the session, or part of it, until this is released.

        It also refuses ``erase_user`` and ``erase_tenant`` without ``force``. What names the
        session itself, ``delete``, ``erase`` and ``purge``, is not refused. A session may have
        several holds; ``facts.holds`` tells them. An event like others, which rules of age count.
        Creates the session. Reads its holds before this
        returns.

        Args:
            reason: 1 to 512 UTF-8 bytes, such as ``"case 2026-17"``. One that is there is fine.
            wait: See ``append``.

        Raises:
            LimitExceededError: It has 64 holds.
            FormatVersionError: The store has format version 1.

        The ack raises ``AppendConflictError`` when its holds changed meanwhile; ask again then.
        """
        stored, held = self._holds(reason)
        if reason in held:
            return self._as_session()._change(Space.FACTS, {}, wait=wait)
        if len(held) == HOLDS_MAX:
            raise LimitExceededError(
                f"session {self._name[1]!r} has {HOLDS_MAX} holds",
                name="HOLDS_MAX",
                actual=len(held) + 1,
                limit=HOLDS_MAX,
                hint="Release one that is over, or name several matters in one reason.",
            )
        return self._keep(stored, [*held, reason], wait)

    async def hold_async(self, reason: str, *, wait: float | None = None) -> Ack:
        """``hold`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._store._on_pool(self.hold, reason, wait=wait)

    def release_hold(self, reason: str, *, wait: float | None = None) -> Ack:
        """Take a hold back; one that is not there is fine. As ``hold``.

        Args:
            reason: The reason that it was made with.
            wait: See ``append``.
        """
        stored, held = self._holds(reason)
        if reason not in held:
            return self._as_session()._change(Space.FACTS, {}, wait=wait)
        return self._keep(stored, [each for each in held if each != reason], wait)

    async def release_hold_async(self, reason: str, *, wait: float | None = None) -> Ack:
        """As ``hold_async``."""
        return await self._store._on_pool(self.release_hold, reason, wait=wait)

    def _holds(self, reason: str) -> tuple[StoredVariable | None, list[str]]:
        if optional_text(reason, "reason") is None:
            raise InvalidNameError("a hold needs a reason")
        self._store._require_version(2, "holds")
        stored = _stored(self._as_session())
        return stored, [] if stored is None else list(holds_in(stored.value()))

    def _keep(self, stored: StoredVariable | None, held: list[str], wait: float | None) -> Ack:
        return self._as_session()._change(
            Space.FACTS,
            {HOLD: held} if held else {},
            () if held else (HOLD,),
            expected={HOLD: -1 if stored is None else stored.sequence},
            what="a hold",
            wait=wait,
        )


def holds_of(session: Session) -> tuple[str, ...]:
    """Why a session must be kept, whatever its other facts are."""
    stored = _stored(session)
    return () if stored is None else holds_in(stored.value())


def _stored(session: Session) -> StoredVariable | None:
    store = session._store
    content = store._log.views.present_row(session._name, store._facts, subkey_of(HOLD))
    return None if content is None else decode_row(content, f"holds of {session.name!r}")
