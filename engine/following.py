"""Reads by position: everything of a store or of one tenant, as it is and as it comes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from engine.reading import Events, PositionPager, Subscription, kinds_wanted
from engine.waiting import UpTo, require_position, require_position_async
from eventlog.arguments import flag, whole
from eventlog.limits import POSITION_MAX

if TYPE_CHECKING:
    from engine.store import Store


class Following(UpTo):
    """The part of ``Tenant`` that reads by position."""

    if TYPE_CHECKING:
        _store: Store

        def _scope(self) -> str | None: ...

    def read(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        voids: bool = False,
        min_position: int | None = None,
        timeout: float | None = 0,
    ) -> Events:
        """Events by position, after a position, lazily.

        Called on the store it gives all tenants' events, on a tenant its own: those of sessions,
        and those that hold the documents of users and tenants, so that they are exported too. These
        have ``is_hidden``, and a name of a session that ``tenant.session`` refuses. Left out are
        events that were removed, and what the store keeps for itself.

        Args:
            after: Position after which to begin; 0 for all.
            limit: At most so many events.
            voids: Also give those that were removed, as events of kind ``void`` without content,
                and those of the sessions that the store keeps for itself (``aliases``), so that
                there is one for each position.
            min_position: A position that the store must have, such as one that another process was
                told; waits for it before this returns.
            timeout: Seconds to wait for it; None waits for ever.

        Raises:
            NotUpToBoundError: The store does not have ``min_position`` in time.
        """
        events = self._events(after, limit, voids)
        if min_position is not None:
            require_position(self._store, min_position, timeout)
        return events

    async def read_async(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        voids: bool = False,
        min_position: int | None = None,
        timeout: float | None = 0,
    ) -> Events:
        """``read``, waiting on the loop; what it gives takes ``async for``."""
        events = self._events(after, limit, voids)
        if min_position is not None:
            await require_position_async(self._store, min_position, timeout)
        return events

    def _events(self, after: int, limit: int | None, voids: bool) -> Events:
        whole(after, "after", 0, POSITION_MAX)
        if limit is not None:
            whole(limit, "limit", 0, POSITION_MAX)
        store = self._store
        pager = PositionPager(store._log, after, limit, self._scope(), voids=flag(voids, "voids"))
        return Events(pager, store)

    def subscribe(
        self, after: int | None = None, kinds: Collection[str] | None = None
    ) -> Subscription:
        """Events after a position, then each new one as it is committed, in position order.

        Gives what ``read`` does. What was removed before it is read is passed over. A deletion
        comes as an event of kind ``tombstone`` without a session's name, but with its
        ``session_number``.

        Args:
            after: Position after which to begin; None for those from now on.
            kinds: Only these kinds.
        """
        log = self._store._log
        wanted = kinds_wanted(kinds)
        if after is None:
            after = log.views.last_position()
        else:
            whole(after, "after", 0, POSITION_MAX)
        pager = PositionPager(log, after, None, self._scope(), wanted=wanted)
        return Subscription(pager, self._store)
