"""What belongs to a user or to a whole tenant, and outlives every session."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from engine.documents import Documents
from engine.events import opening_of
from engine.hidden import hidden_session, list_names
from engine.hiddennames import TENANT_DOCUMENTS, USER_DOCUMENTS
from engine.usage import Sums, Usage, UsageRecord, records_of
from engine.usagebody import checked_scope
from engine.values import Present
from eventlog.arguments import whole
from eventlog.errors import SessionGoneError
from eventlog.keys import is_hidden, name_bytes
from eventlog.limits import PAGE_MAX, TIME_MAX

if TYPE_CHECKING:
    from engine.store import Store, Tenant


class User:
    """A user within a tenant. Made by ``tenant.user(user_id)``; holds nothing open."""

    __slots__ = ("_tenant", "user_id")

    def __init__(self, tenant: Tenant, user_id: str) -> None:
        name_bytes(user_id, "user_id")
        self._tenant = tenant
        self.user_id = user_id

    def __repr__(self) -> str:
        return f"User({self.user_id!r}, tenant={self._tenant.name!r})"

    @property
    def documents(self) -> Documents:
        """The user's named texts, which stay when sessions go; no I/O."""
        session = hidden_session(self._tenant, USER_DOCUMENTS, self.user_id)
        return session.documents


class Owning:
    """The part of ``Tenant`` for what belongs to it and to its users."""

    name: str
    _store: Store

    def user(self, user_id: str) -> User:
        """A user of this tenant; no I/O."""
        return User(self._tenant(), user_id)

    @property
    def documents(self) -> Documents:
        """The tenant's own named texts; no I/O."""
        session = hidden_session(self._tenant(), TENANT_DOCUMENTS)
        return session.documents

    def usage(
        self,
        scope: str = "turn",
        *,
        user_id: str | None = None,
        model: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> Usage:
        """What was used in all sessions of the tenant that were not deleted.

        Walks over the tenant's sessions and reads what each of them recorded. Sessions that begin
        meanwhile may be missing.

        Args:
            scope: See ``Session.record_usage``.
            user_id: Only of this user: records that name it, or of its sessions and name nobody.
            model: Only of this model.
            since_us: Only what was recorded at this time or later, µs since the epoch.
            until_us: Only what was recorded before this time.
        """
        sums = Sums(checked_scope(scope))
        for name, value in (("user_id", user_id), ("model", model)):
            if value is not None:
                name_bytes(value, name)
        since = -TIME_MAX if since_us is None else whole(since_us, "since_us", -TIME_MAX, TIME_MAX)
        until = TIME_MAX + 1
        if until_us is not None:
            until = whole(until_us, "until_us", -TIME_MAX, TIME_MAX)
        tenant = self._tenant()
        cursor: str | None = None
        while True:
            names, cursor = list_names(tenant, PAGE_MAX, cursor)
            for each in names:
                if not is_hidden(each):
                    self._add(sums, scope, each, user_id, model, since, until)
            if cursor is None:
                return sums.usage()

    async def usage_async(
        self,
        scope: str = "turn",
        *,
        user_id: str | None = None,
        model: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> Usage:
        """``usage`` on the store's pool."""
        return await self._store._on_pool(
            self.usage, scope, user_id=user_id, model=model, since_us=since_us, until_us=until_us
        )

    def _add(
        self,
        sums: Sums,
        scope: str,
        session: str,
        user_id: str | None,
        model: str | None,
        since: int,
        until: int,
    ) -> None:
        sums.add(
            session,
            [
                each
                for each in self._records(scope, session)
                if (user_id is None or each.user_id == user_id)
                and (model is None or each.model == model)
                and since <= each.recorded_us < until
            ],
        )

    def _records(self, scope: str, session: str) -> list[UsageRecord]:
        """Records of one incarnation of a session."""
        name = self.name, session
        while True:
            facts = self._store._log.views.facts(name)
            if facts is None:
                return []
            number = facts.origin.number
            owner = opening_of(facts.row, number).get("user_id")
            try:
                return records_of(Present(self._store, name, number), session, scope, owner)
            except SessionGoneError:
                continue  # deleted meanwhile, or made anew

    def _tenant(self) -> Tenant:
        return cast("Tenant", self)
