"""``turnlog tail``: the newest events, and those to come."""

from __future__ import annotations

import select
import sys
from collections import deque
from collections.abc import Iterable
from io import UnsupportedOperation
from pathlib import Path
from threading import Thread

from engine import Event, Session, Store, Subscription
from engine.export import line_mapping
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import existing_session, known_tenant, open_to_read
from turnlog.transcript import stray_entry


def run(
    path: Path,
    *,
    count: int,
    follow: bool,
    session: str | None,
    tenant: str | None,
    as_json: bool,
) -> ExitCode:
    """Write the last ``count`` events of a store, tenant or session, then follow it if asked."""
    screen = terminal.Screen()
    with open_to_read(path) as store:
        if session is not None:
            found = existing_session(store, tenant or "", session)
            _tail_session(screen, found, count=count, follow=follow, as_json=as_json)
            return ExitCode.OK
        if tenant is not None:
            known_tenant(store, tenant)
        last = store.last_position
        _write(screen, _newest(store, last, count, tenant), as_json)
        if follow:
            with store.subscribe(after=last) as subscription:
                _follow(screen, subscription, _of_tenant(subscription, tenant), as_json)
    return ExitCode.OK


def _tail_session(
    screen: terminal.Screen, session: Session, *, count: int, follow: bool, as_json: bool
) -> None:
    info = session.info()
    assert info is not None
    last = info.last_sequence
    if count:
        first = max(info.first_sequence, last + 1 - count)
        _write(screen, session.events(first=first, last=last), as_json)
    if follow:
        with session.subscribe(after=last) as subscription:
            _follow(screen, subscription, subscription, as_json)


def _follow(
    screen: terminal.Screen, subscription: Subscription, events: Iterable[Event], as_json: bool
) -> None:
    """Write events as they come, until whoever reads them goes away.

    Raises:
        BrokenPipeError: The reader is gone; told also while nothing comes.
    """
    screen.flush()
    gone: list[bool] = []
    _watch_reader(subscription, gone)
    _write(screen, events, as_json, live=True)
    if gone:
        raise BrokenPipeError


def _watch_reader(subscription: Subscription, gone: list[bool]) -> None:
    """End a subscription when the other end of standard output is closed."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)  # only errors and hang-ups are told
    except (OSError, UnsupportedOperation):
        return  # no file, so nobody who could hang up

    def watch() -> None:
        poller.poll()
        gone.append(True)
        subscription.close()

    Thread(target=watch, name="turnlog-reader", daemon=True).start()


def _of_tenant(events: Iterable[Event], tenant: str | None) -> Iterable[Event]:
    """The events of one tenant, all of them for None; the empty name is the unnamed tenant."""
    return events if tenant is None else (each for each in events if each.tenant == tenant)


def _newest(store: Store, last: int, count: int, tenant: str | None) -> Iterable[Event]:
    """The last ``count`` events up to a position, in order.

    Looks at windows that grow backwards, since a tenant's events lie anywhere among the others.
    """
    if not count:
        return ()
    window = count
    while True:
        after = max(0, last - window)
        events = _of_tenant(store.read(after=after, limit=last - after), tenant)
        newest = deque(events, maxlen=count)
        if len(newest) == count or after == 0:
            return newest
        window *= 4


def _write(
    screen: terminal.Screen, events: Iterable[Event], as_json: bool, *, live: bool = False
) -> None:
    for event in events:
        if as_json:
            screen.data({"position": event.position, **line_mapping(event)})
        else:
            screen.line(*stray_entry(event))
        if live:
            screen.flush()
