"""Forgetting: all that belongs to a user, or to a tenant, is erased, with a receipt for each part.

Invariants:
    1. While one of the sessions is held nothing is erased, unless that is forced; one that is held
       meanwhile stops it.
    2. It ends when a look at all sessions finds none of them any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.drafting import draft_control
from engine.erasure import ErasureReceipt, erase, require_removal
from engine.hiddennames import USER_DOCUMENTS, hidden_name
from engine.holds import NOT_HELD
from engine.pausing import Pause
from engine.retention import WAIT_S
from engine.session import Session
from engine.survey import Surveyed, survey
from eventlog.ack import Removal
from eventlog.arguments import flag
from eventlog.errors import (
    AppendConflictError,
    ConflictError,
    SessionGoneError,
    SessionNotFoundError,
)
from eventlog.keys import name_bytes
from eventlog.record import TOMBSTONE

if TYPE_CHECKING:
    from engine.store import Store


class Forgetting:
    """The part of ``Tenant`` that forgets."""

    if TYPE_CHECKING:
        name: str
        _store: Store

    def erase_user(self, user_id: str, *, force: bool = False) -> list[ErasureReceipt]:
        """Erase all sessions of a user, and the user's documents; blocks until that is done.

        A user's sessions are those that are the user's now, or ever were; of owners between that
        were purged only the last is known. What other sessions say of the user stays. Reads the
        facts of all sessions of the tenant, and all changes of facts of those whose owners changed.

        Args:
            user_id: The user.
            force: Also held sessions.

        Returns:
            A receipt for each session, and for the documents if there are any, whose ``what`` says
            so.

        Raises:
            ConflictError: Some are held; ``current`` names them, and nothing is erased. When a hold
                came meanwhile, a note tells what is.
            FormatVersionError: The store has format version 1.
        """
        name_bytes(user_id, "user_id")
        documents = hidden_name(USER_DOCUMENTS, user_id)

        def is_theirs(each: Surveyed) -> bool:
            if each.is_hidden:
                return each.name[1] == documents
            if user_id in (each.facts.user_id, each.opening_user):
                return True
            return each.had_owners and _was_of(self._store, each, user_id)

        return _forget(self._store, self.name, is_theirs, flag(force, "force"))

    async def erase_user_async(self, user_id: str, *, force: bool = False) -> list[ErasureReceipt]:
        """``erase_user`` on the store's pool."""
        return await self._store._on_pool(self.erase_user, user_id, force=force)


class ForgettingTenants:
    """The part of ``Store`` that forgets tenants."""

    if TYPE_CHECKING:
        _store: Store

    def erase_tenant(self, name: str, *, force: bool = False) -> list[ErasureReceipt]:
        """Erase all sessions of a tenant, its documents and those of its users; blocks meanwhile.

        The progress of projections of this tenant goes too: they begin anew. The tenant's name
        stays known (``tenants``). Contents that no event ever named go within the hour.

        Args:
            name: The tenant; empty for the one without a name.
            force: Also held sessions.

        Returns:
            A receipt for each session, and for what of the tenant lies in none of a caller's: its
            documents, those of its users, the index of its aliases, the progress of projections.
            ``what`` says it.

        Raises:
            ConflictError: As ``erase_user``.
            FormatVersionError: The store has format version 1.
        """
        tenant = self._store.tenant(name).name
        return _forget(self._store, tenant, lambda each: True, flag(force, "force"))

    async def erase_tenant_async(self, name: str, *, force: bool = False) -> list[ErasureReceipt]:
        """``erase_tenant`` on the store's pool."""
        return await self._store._on_pool(self.erase_tenant, name, force=force)


def _was_of(store: Store, each: Surveyed, user_id: str) -> bool:
    """Whether a session was a user's after one of its events."""
    try:
        told = Session(store, *each.name)._values_of("user_id", each.number)
    except SessionGoneError:  # and if there is another one, it is looked for once more
        return False
    return any([stored.value() == user_id for stored in told])


def _forget(
    store: Store, tenant: str, takes: Callable[[Surveyed], bool], force: bool
) -> list[ErasureReceipt]:
    store._refuse_closed()
    log = store._log
    require_removal(log)
    pause = Pause()
    receipts: list[ErasureReceipt] = []
    while True:
        chosen = [
            each for each in survey(log, store._facts, tenant, pause, hidden=True) if takes(each)
        ]
        if not chosen:
            return receipts
        held = [each.name[1] for each in chosen if each.facts.holds]
        if held and not force:
            raise _held(held, receipts)
        for each in chosen:
            try:
                ack = Session(store, *each.name)._remove(
                    (draft_control(TOMBSTONE),),
                    Removal(is_erased=True, number=each.number),
                    versions=() if force else (NOT_HELD,),
                    wait=WAIT_S,
                )
                receipts.append(erase(log, ack, None))
            except (SessionGoneError, SessionNotFoundError):
                pass  # somebody else removed it, and it is looked for once more
            except AppendConflictError as error:
                raise _held([each.name[1]], receipts) from error


def _held(names: list[str], receipts: list[ErasureReceipt]) -> ConflictError:
    error = ConflictError(
        f"sessions that are held: {len(names)}, the first of them {names[0]!r}",
        current=tuple(names),
        hint="Release their holds, or force it.",
    )
    if receipts:
        error.add_note(f"sessions erased before that: {len(receipts)}")
    return error
