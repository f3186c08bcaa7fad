"""Lazy reads: pages of events, and subscriptions from catch-up to live.

Invariants:
    1. No transaction is held while a caller has the control.
    2. An iterator sees events in order, each once, and never one that was not committed.
    3. Both ``for`` and ``async for`` work; the latter reads its pages on the store's pool.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from typing import Protocol

from engine.events import Event
from eventlog.branching import Stretch
from eventlog.errors import SessionGoneError, StoreClosedError, TrimmedError, UsageError
from eventlog.index import Name
from eventlog.keys import is_derived
from eventlog.limits import (
    PAGE_BYTES,
    PAGE_EVENTS,
    POLL_MAX_MS,
    POLL_MIN_MS,
    READ_WINDOW_POSITIONS,
    SEGMENT_CACHE_BYTES_MAX,
)
from eventlog.log import Log
from eventlog.past import Past
from eventlog.reading import Window
from eventlog.record import CONTROL, VOID

WINDOW_FIRST = 2_048  # positions of a global read's first window; it grows from there


class Pager(Protocol):
    """Reads the next events; an empty list means the end as things stand."""

    def next_page(self) -> list[Event]:
        """Events after those of the page before."""


class SessionPager:
    """Pages of one session by sequence."""

    def __init__(
        self,
        log: Log,
        name: Name,
        first: int,
        last: int,
        kinds: Callable[[Event], bool] | None,
        number: int | None = None,
    ) -> None:
        self._log = log
        self._name = name
        self._kinds = kinds
        self._number = number  # of the incarnation; None until the first page
        self.following = first
        self.last = last

    def next_page(self) -> list[Event]:
        """See ``Pager``.

        Raises:
            SessionGoneError: The session was deleted and made anew since the first page.
        """
        while self.following <= self.last:
            page = self._log.views.read_session(
                self._name,
                self.following,
                self.last,
                Event,
                events_max=PAGE_EVENTS,
                bytes_max=PAGE_BYTES,
            )
            if page is None:
                return []
            events, following, number = page
            if self._number is not None and number != self._number:
                raise SessionGoneError(
                    f"session {self._name[1]!r} was deleted while it was read",
                    expected=self._number,
                    current=number,
                )
            self._number = number
            if following == self.following:
                return []
            self.following = following
            if self._kinds is not None:
                events = [event for event in events if self._kinds(event)]
            if events:
                return events
        return []


class PathPager:
    """Pages of the public events on the path to a leaf, root first."""

    def __init__(self, log: Log, name: Name, leaf: int, first: int) -> None:
        self._log = log
        self._name = name
        self._number: int | None = None  # of the incarnation; None until the first page
        self._path: list[Stretch] | None = None
        self.leaf = leaf
        self.following = first

    def next_page(self, events_max: int = PAGE_EVENTS) -> list[Event]:
        """See ``Pager``.

        Raises:
            UsageError: The leaf is no event of the session's history.
            SessionGoneError: The session was deleted since the first page.
        """
        if self.following > self.leaf:
            return []
        with self._log.views.past(self._name) as past:
            number = None if past is None else past.view.origin.number
            if past is None or self._number not in (None, number):
                if self._number is None:
                    return []
                raise SessionGoneError(
                    f"session {self._name[1]!r} was deleted while it was read",
                    expected=self._number,
                    current=number,
                )
            self._number = number
            if self._path is None:
                self._path = self._find(past)
            events, self.following = past.read_path(
                self._path,
                self.following,
                Event,
                events_max=min(events_max, PAGE_EVENTS),
                bytes_max=PAGE_BYTES,
            )
            return events

    def _find(self, past: Past) -> list[Stretch]:
        if not past.first <= self.leaf < past.view.event_count:
            if self.leaf < past.first:
                raise TrimmedError(
                    f"the events of session {self._name[1]!r} below {past.first} were purged",
                    first=past.first,
                )
            raise UsageError(f"session {self._name[1]!r} has no event {self.leaf}")
        if past.event(self.leaf, Event).kind_code >= CONTROL:
            raise UsageError(
                f"event {self.leaf} of session {self._name[1]!r} is none of its history"
            )
        return past.path(self.leaf)


class PositionPager:
    """Pages of all sessions, or of one tenant's, by position."""

    def __init__(
        self, log: Log, after: int, limit: int | None, tenant: str | None, *, voids: bool = False
    ) -> None:
        self._log = log
        self._voids = voids
        self._left = limit
        self._tenant = tenant
        self._size = WINDOW_FIRST
        self._window: Window[Event] | None = None
        self.following = after + 1

    def next_page(self) -> list[Event]:
        """See ``Pager``."""
        while self._left is None or self._left > 0:
            if self._window is None and not self._read_window():
                return []
            window = self._window
            assert window is not None
            start = self.following - window.first
            stop = min(start + PAGE_EVENTS, window.count)
            if self._left is not None and self._tenant is None:
                stop = min(stop, start + self._left)
            events = window.events(start, stop)
            self.following += len(events)
            if window.has_voids and not self._voids:
                events = [event for event in events if event.kind_code != VOID]
            if self._log.views.met_derived and not self._voids:
                events = [each for each in events if not is_derived(each.origin.name)]
            if stop == window.count:
                self._window = None
            if self._tenant is not None:
                events = [event for event in events if event.origin.tenant == self._tenant]
            if self._left is not None:
                events = events[: self._left]
                self._left -= len(events)
            if events:
                return events
        return []

    def _read_window(self) -> bool:
        size = self._size
        if self._left is not None and self._tenant is None:
            size = min(size, self._left)
        window = self._log.views.read_positions(
            self.following, size, Event, bytes_max=SEGMENT_CACHE_BYTES_MAX
        )
        self._window = window
        if window is None:
            return False
        # Windows grow, since each decodes a segment of nearly every session, up to what fits.
        fitting = window.count * SEGMENT_CACHE_BYTES_MAX // max(1, window.byte_count)
        self._size = max(1, min(self._size * 8, READ_WINDOW_POSITIONS, fitting * 7 // 8))
        return True


async def _page_on_pool(pager: Pager, pool: Callable[[], Executor]) -> list[Event]:
    """The next page, read on the store's pool."""
    loop = asyncio.get_running_loop()
    try:
        future = loop.run_in_executor(pool(), pager.next_page)
    except RuntimeError as error:  # the pool was shut down with the store
        raise StoreClosedError("the store is closed") from error
    return await future


class Events:
    """Events, lazily; use it once, with ``for`` or ``async for``."""

    def __init__(self, pager: Pager, pool: Callable[[], Executor]) -> None:
        self._pager = pager
        self._pool = pool

    def __iter__(self) -> Iterator[Event]:
        while page := self._pager.next_page():
            yield from page

    async def __aiter__(self) -> AsyncIterator[Event]:
        while page := await _page_on_pool(self._pager, self._pool):
            for event in page:
                yield event


class Subscription:
    """Events from a place on, first those that are there, then each as it is committed.

    Never ends by itself: ``close`` ends it, from any thread, and so does closing the store
    (``StoreClosedError``). Commits of this process wake it; those of others are polled for.
    """

    def __init__(self, pager: Pager, log: Log, pool: Callable[[], Executor]) -> None:
        self._pager = pager
        self._log = log
        self._pool = pool
        self._ended = threading.Event()

    def close(self) -> None:
        """End the iteration, also one that waits."""
        self._ended.set()
        self._log.announce()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        while not self._ended.is_set():
            position = self._log.views.last_position()
            if page := self._pager.next_page():
                for event in page:
                    yield event
                    if self._ended.is_set():
                        return
            else:
                self._wait(position)

    def _wait(self, position: int) -> None:
        delay_ms = POLL_MIN_MS
        while not self._ended.is_set() and not self._log.wait_past(position, delay_ms / 1000):
            delay_ms = min(POLL_MAX_MS, delay_ms * 2)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while not self._ended.is_set():
            position = self._log.views.last_position()
            if page := await _page_on_pool(self._pager, self._pool):
                for event in page:
                    yield event
                    if self._ended.is_set():
                        return
            else:
                await self._wait_async(position)

    async def _wait_async(self, position: int) -> None:
        delay_ms = POLL_MIN_MS
        while not self._ended.is_set() and self._log.views.last_position() <= position:
            if self._log.is_closed:
                raise StoreClosedError("the store is closed")
            future = self._log.next_commit()
            if self._ended.is_set() or self._log.views.last_position() > position:
                self._log.forget_commit(future)
                return
            try:
                await asyncio.wait((future,), timeout=delay_ms / 1000)
            finally:
                self._log.forget_commit(future)
            delay_ms = min(POLL_MAX_MS, delay_ms * 2)
