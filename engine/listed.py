"""Listings of sessions: of one tenant, and of all of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from engine import aliases
from engine.catalog import Filter, decode_cursor
from engine.events import SessionInfo, SessionPage
from engine.facts import fact_name
from eventlog.arguments import whole
from eventlog.errors import UsageError
from eventlog.limits import PAGE_MAX, TIME_MAX

if TYPE_CHECKING:
    from engine.session import Session
    from engine.store import Store


class Listed:
    """The part of ``Tenant`` that lists."""

    if TYPE_CHECKING:
        name: str
        _store: Store

        def session(self, name: str) -> Session:
            """See ``Tenant``."""

    def sessions(
        self,
        limit: int = 50,
        cursor: str | None = None,
        user_id: str | None = None,
        *,
        account_id: str | None = None,
        agent_id: str | None = None,
        workspace: str | None = None,
        status: str | None = None,
        label: str | None = None,
        alias: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> SessionPage:
        """Sessions, newest activity first, without reading any payload.

        The first question with a filter reads the facts of all sessions of the tenant, about 30 µs
        each; from then on memory keeps them (``engine.catalog``).

        Args:
            limit: 1 to 10,000.
            cursor: Where the page before ended.
            user_id: Only sessions of this user, as they are now; likewise the next four.
            account_id: The account.
            agent_id: The agent.
            workspace: The workspace.
            status: The status.
            label: Only sessions with this label, on them or one of their events.
            alias: Only the session that this alias leads to.
            metadata: Only sessions whose metadata has these keys, with these values, type for type.
            since_us: Only sessions with activity at this time or later, µs since the epoch.
            until_us: Only sessions whose last activity is before this time.
        """
        whole(limit, "limit", 1, PAGE_MAX)
        before = decode_cursor(cursor)
        wanted = Filter(
            user_id,
            account_id,
            agent_id,
            workspace,
            status,
            label,
            metadata or None,
            None if since_us is None else whole(since_us, "since_us", -TIME_MAX, TIME_MAX),
            None if until_us is None else whole(until_us, "until_us", -TIME_MAX, TIME_MAX),
        )
        wanted.check()
        if alias is not None:
            session = self.by_alias(alias)
            info = None if session is None else session.info()
            is_wanted = info is not None and info.last_position < before and wanted.takes(info)
            return SessionPage([info] if info is not None and is_wanted else [], None)
        infos = self._page(wanted, before, limit)
        following = str(infos[-1].last_position) if len(infos) == limit else None
        return SessionPage(infos, following)

    async def sessions_async(
        self,
        limit: int = 50,
        cursor: str | None = None,
        user_id: str | None = None,
        *,
        account_id: str | None = None,
        agent_id: str | None = None,
        workspace: str | None = None,
        status: str | None = None,
        label: str | None = None,
        alias: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> SessionPage:
        """``sessions`` on the store's pool."""
        return await self._store._on_pool(
            self.sessions,
            limit,
            cursor,
            user_id,
            account_id=account_id,
            agent_id=agent_id,
            workspace=workspace,
            status=status,
            label=label,
            alias=alias,
            metadata=metadata,
            since_us=since_us,
            until_us=until_us,
        )

    def by_alias(self, alias: str) -> Session | None:
        """The session that an alias leads to; None when it leads to none.

        Args:
            alias: 1 to 480 UTF-8 bytes.
        """
        found = aliases.find(self._store, self.name, fact_name(alias, "alias"))
        return None if found is None else self.session(found)

    async def by_alias_async(self, alias: str) -> Session | None:
        """``by_alias`` on the store's pool."""
        return await self._store._on_pool(self.by_alias, alias)

    def _page(self, wanted: Filter, before: int, limit: int) -> list[SessionInfo]:
        log = self._store._log
        return self._store._catalog.page(log, self.name, wanted, before, limit)


class _All(Listed):
    """All tenants of a store, in one listing."""

    def __init__(self, store: Store, tenants: Sequence[str]) -> None:
        self._store = store
        self._tenants = tenants
        self.name = ""

    def by_alias(self, alias: str) -> Session | None:
        """An alias is a tenant's."""
        raise UsageError(
            "an alias leads to a session of one tenant",
            hint="Ask the tenant: store.tenant(name).by_alias(alias).",
        )

    def _page(self, wanted: Filter, before: int, limit: int) -> list[SessionInfo]:
        log, catalog = self._store._log, self._store._catalog
        pages = [catalog.page(log, name, wanted, before, limit) for name in self._tenants]
        found = [info for page in pages for info in page]
        return nlargest(limit, found, key=lambda info: info.last_position)


class ListedOfAll:
    """The part of ``Store`` that lists over tenants."""

    if TYPE_CHECKING:

        def tenants(self) -> list[str]:
            """See ``Store``."""

    @property
    def all_tenants(self) -> Listed:
        """All tenants' sessions, for ``sessions``; a page costs one of each tenant."""
        return _All(self, self.tenants())  # type: ignore[arg-type]
