"""Lazy reads: pages of events, and subscriptions from catch-up to live.

Invariants:
    1. No transaction is held while a caller has the control.
    2. An iterator sees events in order, each once, and never one that was not committed.
    3. Both ``for`` and ``async for`` work; the latter reads its pages on the store's pool.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final, Protocol

from engine.events import Event
from engine.kinds import kind_names
from engine.waiting import wait_for_more, wait_past_async
from eventlog.branching import Stretch
from eventlog.errors import SessionGoneError, StoreClosedError, TrimmedError, UsageError
from eventlog.index import Name
from eventlog.keys import is_derived
from eventlog.limits import (
    PAGE_BYTES,
    PAGE_EVENTS,
    READ_WINDOW_POSITIONS,
    SEGMENT_CACHE_BYTES_MAX,
)
from eventlog.log import Log
from eventlog.past import Past
from eventlog.reading import Window
from eventlog.record import BELONGS, BRANCH_NAME, CONTROL, HEAD_MOVE, VOID

if TYPE_CHECKING:
    from engine.store import Store

_ON_BRANCHES: Final = BELONGS | {HEAD_MOVE, BRANCH_NAME}
WINDOW_FIRST = 2_048  # positions of a global read's first window; it grows from there


def kinds_wanted(kinds: Collection[str] | None) -> Callable[[Event], bool] | None:
    """Whether an event is of one of some kinds; None for any."""
    if kinds is None:
        return None
    names = kind_names(kinds)
    return lambda event: event.kind in names


def on_branch(number: int, wanted: Callable[[Event], bool] | None) -> Callable[[Event], bool]:
    """Whether an event that is wanted is on a branch; of most control kinds none is on any."""

    def is_on(event: Event) -> bool:
        return (
            event.branch == number
            and (event.kind_code < CONTROL or event.kind_code in _ON_BRANCHES)
            and (wanted is None or wanted(event))
        )

    return is_on


class Pager(Protocol):
    """Reads the next events; an empty list means the end as things stand."""

    def next_page(self) -> list[Event]:
        """Events after those of the page before."""


class SessionPager:
    """Pages of one session by sequence.

    Args:
        log: The log.
        name: Tenant and session name.
        first: First sequence.
        last: Last sequence.
        kinds: Which events; None for all.
        number: Number of the incarnation that is meant; None for that of the first page.
        seen: How many events it is known to have; each page tells anew.
    """

    def __init__(
        self,
        log: Log,
        name: Name,
        first: int,
        last: int,
        kinds: Callable[[Event], bool] | None,
        number: int | None = None,
        seen: int = 0,
    ) -> None:
        self._log = log
        self._name = name
        self._kinds = kinds
        self._number = number
        self._seen = seen
        self.following = first
        self.last = last

    def next_page(self) -> list[Event]:
        """See ``Pager``.

        Raises:
            SessionGoneError: The session was deleted before all was read that was seen of it, or
                deleted and made anew.
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
                if self._number is not None and self.following < self._seen:
                    raise SessionGoneError.while_read(self._name[1], self._number, None)
                return []
            if self._number not in (None, page.number):
                raise SessionGoneError.while_read(self._name[1], self._number, page.number)
            self._number, self._seen = page.number, page.event_count
            if page.following == self.following:
                return []
            self.following = page.following
            events = page.events
            if self._kinds is not None:
                events = [event for event in events if self._kinds(event)]
            if events:
                return events
        return []


class PathPager:
    """Pages of the public events on the path to a leaf, root first.

    Args:
        log: The log.
        name: Tenant and session name.
        leaf: Sequence of the leaf, or what finds it in the transaction of the first page: it gets
            None for no session, and gives None for an empty path.
        first: The first sequence that is wanted.
        number: Number of the incarnation that is meant; None for any.

    Attributes:
        number: Number of the incarnation; None until the first page.
        leaf: Sequence of the leaf, likewise; -1 for an empty path.
        following: Sequence that the next page begins with.
    """

    def __init__(
        self,
        log: Log,
        name: Name,
        leaf: int | Callable[[Past | None], int | None],
        first: int,
        number: int | None = None,
    ) -> None:
        self._log = log
        self._name = name
        self._find = leaf
        self._path: list[Stretch] | None = None
        self.number = number
        self.leaf: int | None = leaf if isinstance(leaf, int) else None
        self.following = first

    def next_page(self, events_max: int = PAGE_EVENTS) -> list[Event]:
        """See ``Pager``.

        Raises:
            UsageError: The leaf is no event of the session's history.
            SessionGoneError: The session was deleted since the first page.
            TrimmedError: Events behind the page before were purged, or the leaf was.
        """
        if self.leaf is not None and self.following > self.leaf:
            return []
        with self._log.views.past(self._name) as past:
            number = None if past is None else past.view.origin.number
            if self.leaf is None:
                assert not isinstance(self._find, int), "that is the leaf"
                found = self._find(past)
                self.leaf = -1 if found is None else found
            if past is None or self.number not in (None, number):
                if self.number is None:
                    return []
                raise SessionGoneError.while_read(self._name[1], self.number, number)
            if self.number is not None and 0 < self.following < past.first:
                raise _purged(past)  # what follows the page before
            self.number = number
            if self.leaf < 0:
                return []
            if self._path is None:
                self._path = path_of(past, self.leaf)
            events, self.following = past.read_path(
                self._path,
                self.following,
                Event,
                events_max=min(events_max, PAGE_EVENTS),
                bytes_max=PAGE_BYTES,
            )
            return events


def path_of(past: Past, leaf: int) -> list[Stretch]:
    """The path from the root to an event of the session's history.

    Raises:
        TrimmedError: The event was purged.
        UsageError: There is no such event, or it is none of the history.
    """
    name = past.view.origin.name
    if leaf < past.first:
        raise _purged(past)
    if leaf >= past.view.event_count:
        raise UsageError(f"session {name!r} has no event {leaf}")
    if past.event(leaf, Event).kind_code >= CONTROL:
        raise UsageError(f"event {leaf} of session {name!r} is none of its history")
    return past.path(leaf)


def _purged(past: Past) -> TrimmedError:
    return TrimmedError(
        f"the events of session {past.view.origin.name!r} below {past.first} were purged",
        first=past.first,
    )


class PositionPager:
    """Pages of all sessions, or of one tenant's, by position.

    Between pages it keeps one window: of the hot log 1,024 events, of sealed ones those of up to
    131,072 positions, and about ``SEGMENT_CACHE_BYTES_MAX`` in any case.
    """

    def __init__(
        self,
        log: Log,
        after: int,
        limit: int | None,
        tenant: str | None,
        *,
        voids: bool = False,
        wanted: Callable[[Event], bool] | None = None,
    ) -> None:
        self._log = log
        self._voids = voids
        self._left = limit
        self._tenant = tenant
        self._wanted = wanted
        self._takes_all = tenant is None and wanted is None
        self._size = WINDOW_FIRST
        self._window: Window[Event] | None = None
        self._epoch = (0, 0)  # of the store, before the window was read
        self.following = after + 1

    def next_page(self) -> list[Event]:
        """See ``Pager``."""
        if self._window is not None and self.has_removed():
            # It must not come out of memory.
            self._window = None
            self._size = WINDOW_FIRST
        while self._left is None or self._left > 0:
            if self._window is None and not self._read_window():
                return []
            window = self._window
            assert window is not None
            start = self.following - window.first
            stop = min(start + PAGE_EVENTS, window.count)
            if self._left is not None and self._takes_all:
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
            if self._wanted is not None:
                events = [event for event in events if self._wanted(event)]
            if self._left is not None:
                events = events[: self._left]
                self._left -= len(events)
            if events:
                return events
        return []

    def has_removed(self) -> bool:
        """Whether something was removed since what the last page came from was read."""
        return self._epoch != self._current_epoch()

    def _current_epoch(self) -> tuple[int, int]:
        with self._log.views.transaction() as tables:
            return tables.commit_record().epoch

    def _read_window(self) -> bool:
        size = self._size
        if self._left is not None and self._takes_all:
            size = min(size, self._left)
        self._epoch = self._current_epoch()
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


async def _page_on_pool(pager: Pager, store: Store) -> list[Event]:
    """The next page, read on the store's pool."""
    loop = asyncio.get_running_loop()
    try:
        future = loop.run_in_executor(store._pool(), pager.next_page)
    except RuntimeError as error:  # the pool was shut down with the store
        raise StoreClosedError("the store is closed") from error
    return await future


class Events:
    """Events, lazily; use it once, with ``for`` or ``async for``.

    Once the store was closed it gives what is left of its page, then ``StoreClosedError``.
    """

    def __init__(self, pager: Pager, store: Store) -> None:
        self._pager = pager
        self._store = store

    def __iter__(self) -> Iterator[Event]:
        while page := self._next_page():
            yield from page

    def _next_page(self) -> list[Event]:
        self._store._refuse_closed()
        return self._pager.next_page()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while page := await _page_on_pool(self._pager, self._store):
            for event in page:
                yield event


class Subscription:
    """Events from a place on, first those that are there, then each as it is committed.

    Never ends by itself: ``close`` ends it, from any thread, and so does closing the store
    (``StoreClosedError``). Commits of this process wake it; those of others are polled for.

    It is an iterator of both kinds, for ``next`` and ``anext`` too. It may be left and taken up
    again, by ``for`` and ``async for`` in turn, by one at a time (``UsageError``), and
    goes on behind the event that it gave last; so a wait for the next one may be given up, as
    ``asyncio.wait_for(anext(events), 1)`` does, and nothing is lost. However slow its user is, it
    keeps one page and no transaction; the rest waits on disk. A page of a session is at most 256
    events and one segment, of 4,096 events at most; a page of a store or a tenant is 256 events,
    beside a window of the log (``PositionPager``). What is removed once its page was read is still
    given.
    """

    def __init__(self, pager: Pager, store: Store) -> None:
        self._pager = pager
        self._store = store
        self._ended = threading.Event()
        self._taking = threading.Lock()  # held by whoever takes the next event
        self._page: list[Event] = []  # of which those before ``_index`` were given
        self._index = 0
        self._before = 0  # the last position before the last page was asked for
        self._reading: Future[list[Event]] | None = None  # on the pool

    def close(self) -> None:
        """End the iteration, also one that waits."""
        self._ended.set()
        self._store._log.announce()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Event:
        self._enter()
        try:
            while not self._ended.is_set():
                self._store._refuse_closed()
                if self._index < len(self._page):
                    return self._take()
                if self._is_reading():  # for somebody on a loop, who gave up
                    wait((self._begun(),))
                    self._set_page(self._read())
                else:
                    self._before = self._store.last_position
                    self._set_page(self._pager.next_page())
                if not self._page:
                    wait_for_more(self._store, self._before, self._ended.is_set)
            raise StopIteration
        finally:
            self._taking.release()

    def __aiter__(self) -> Subscription:
        return self

    def _set_page(self, page: list[Event]) -> None:
        self._page = page
        self._index = 0

    def _take(self) -> Event:
        event = self._page[self._index]
        self._index += 1
        if self._index == len(self._page):
            self._set_page([])
        return event

    async def __anext__(self) -> Event:
        self._enter()
        try:
            while not self._ended.is_set():
                self._store._refuse_closed()
                if self._index < len(self._page):
                    return self._take()
                reading = self._begun()
                try:
                    await asyncio.wrap_future(reading)
                except asyncio.CancelledError:
                    raise
                except BaseException:
                    self._reading = None
                    raise
                self._set_page(self._read())
                if not self._page:
                    await wait_past_async(self._store, self._before, None, self._ended.is_set)
            raise StopAsyncIteration
        finally:
            self._taking.release()

    def _enter(self) -> None:
        if not self._taking.acquire(blocking=False):
            self._store._log.environment.refuse_forked()
            raise UsageError(
                "the subscription is waited on already",
                hint="Subscribe once more: each subscription gives every event.",
            )

    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading.cancelled()

    def _begun(self) -> Future[list[Event]]:
        """The page that is read on the pool; a reading that its user gave up is taken up again."""
        if self._reading is None or self._reading.cancelled():
            self._before = self._store.last_position
            try:
                self._reading = self._store._pool().submit(self._pager.next_page)
            except RuntimeError as error:  # the pool was shut down with the store
                raise StoreClosedError("the store is closed") from error
        return self._reading

    def _read(self) -> list[Event]:
        """What was read on the pool."""
        reading, self._reading = self._reading, None
        assert reading is not None
        return reading.result()
