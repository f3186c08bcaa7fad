"""Waiting for positions, in a thread and on a loop, also for those that other processes commit.

Commits of this process wake who waits; those of others are polled for, every ``POLL_MIN_MS`` to
``POLL_MAX_MS``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from eventlog.arguments import seconds, whole
from eventlog.errors import NotUpToBoundError
from eventlog.limits import POLL_MAX_MS, POLL_MIN_MS, POSITION_MAX
from eventlog.seams import CLOCK

if TYPE_CHECKING:
    from engine.store import Store


class UpTo:
    """The part of tenants and sessions that waits for what somebody was told."""

    __slots__ = ()

    if TYPE_CHECKING:
        _store: Store

    def up_to(self, position: int, timeout: float | None = 0) -> Self:
        """This itself, once the store has a position; what is read from then on has it too.

        For whoever was given a position by another process: ``Ack.position`` there is what goes
        in here. Blocks; nothing of this handle changes.

        Args:
            position: The position, of any session.
            timeout: Seconds to wait for it; None waits for ever.

        Raises:
            NotUpToBoundError: The store does not have it in time.
            StoreClosedError: The store was closed, also meanwhile.
        """
        require_position(self._store, position, timeout)
        return self

    async def up_to_async(self, position: int, timeout: float | None = 0) -> Self:
        """``up_to`` on a loop; holds no thread while it waits."""
        await require_position_async(self._store, position, timeout)
        return self


def require_position(store: Store, position: int, timeout: float | None) -> None:
    """Block until the store has a position.

    Raises:
        NotUpToBoundError: It does not have it in time.
        StoreClosedError: The store was closed, also meanwhile.
    """
    whole(position, "position", 0, POSITION_MAX)
    if not _wait_past(store, position - 1, seconds(timeout, "timeout"), _never):
        raise _behind(store, position)


async def require_position_async(store: Store, position: int, timeout: float | None) -> None:
    """``require_position`` on a loop."""
    whole(position, "position", 0, POSITION_MAX)
    if not await wait_past_async(store, position - 1, seconds(timeout, "timeout"), _never):
        raise _behind(store, position)


def wait_for_more(store: Store, position: int, is_ended: Callable[[], bool]) -> None:
    """Block until the last position is above one, or whoever waits has ended.

    Raises:
        StoreClosedError: The store was closed, also meanwhile.
    """
    _wait_past(store, position, None, is_ended)


def _wait_past(
    store: Store, position: int, timeout: float | None, is_ended: Callable[[], bool]
) -> bool:
    """Block until the last position is above one; False when time is up or who waits has ended."""
    log = store._log
    found = log.wait_past(position, timeout, lambda: store._closed or is_ended())
    store._refuse_closed()
    return found


async def wait_past_async(
    store: Store, position: int, timeout: float | None, is_ended: Callable[[], bool]
) -> bool:
    """Wait until the last position is above one; False when time is up or who waits has ended.

    Raises:
        StoreClosedError: The store was closed, also meanwhile.
    """
    log = store._log
    end_us = None if timeout is None else CLOCK.monotonic_us() + int(timeout * 1e6)
    delay_ms = POLL_MIN_MS
    while log.views.last_position() <= position:
        left_s = delay_ms / 1000
        if end_us is not None:
            left_s = min(left_s, (end_us - CLOCK.monotonic_us()) / 1e6)
        future = log.next_commit()
        try:
            # Looked at once more: what came since the look before did not know of the future.
            store._refuse_closed()
            if log.views.last_position() > position:
                return True
            if is_ended() or left_s <= 0:
                return False
            await asyncio.wait((future,), timeout=left_s)
        finally:
            log.forget_commit(future)
        delay_ms = min(POLL_MAX_MS, delay_ms * 2)
    store._refuse_closed()
    return True


def _behind(store: Store, position: int) -> NotUpToBoundError:
    last = store.last_position
    return NotUpToBoundError(
        f"the store is at position {last} and not yet at {position}", position=last
    )


def _never() -> bool:
    return False
