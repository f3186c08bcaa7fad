"""``turnlog tail``: the newest events, and those to come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path

from engine import Event, Store, Tenant
from engine.export import line_mapping
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import existing_session, open_to_read
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
            world = store.tenant(tenant or "")
            _tail_session(screen, world, session, count=count, follow=follow, as_json=as_json)
            return ExitCode.OK
        last = store.last_position
        _write(screen, _newest(store, last, count, tenant), as_json)
        if follow:
            screen.flush()
            with store.subscribe(after=last) as subscription:
                _write(screen, _of_tenant(subscription, tenant), as_json, live=True)
    return ExitCode.OK


def _tail_session(
    screen: terminal.Screen,
    world: Store | Tenant,
    name: str,
    *,
    count: int,
    follow: bool,
    as_json: bool,
) -> None:
    session = existing_session(world, name)
    info = session.info()
    assert info is not None
    last = info.last_sequence
    if count:
        _write(screen, session.events(first=max(0, last + 1 - count), last=last), as_json)
    if follow:
        screen.flush()
        with session.subscribe(after=last) as subscription:
            _write(screen, subscription, as_json, live=True)


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
