"""How verbs open a store and find their way in it."""

from __future__ import annotations

from pathlib import Path

from engine import Session, Store, Tenant
from eventlog.errors import SessionNotFoundError
from turnlog import terminal

PAGE_SESSIONS = 1_000


def open_to_read(path: Path) -> Store:
    """Open an existing store without the right to write; never creates one."""
    return Store.open(path, create=False, read_only=True)


def open_to_write(path: Path) -> Store:
    """Open a store, or create it."""
    return Store.open(path)


def existing_session(world: Store | Tenant, name: str) -> Session:
    """The session of that name.

    Raises:
        SessionNotFoundError: There is none.
    """
    session = world.session(name)
    if not session.exists:
        raise SessionNotFoundError(
            f"no session {terminal.quote(name)}",
            hint="List them with `turnlog sessions STORE`; other tenants need --tenant.",
        )
    return session


def tenant_names(store: Store) -> list[str]:
    """The names of all tenants that have sessions, in the order of their UTF-8 bytes."""
    return sorted(store.tenants(), key=str.encode)


def session_names(world: Store | Tenant) -> list[str]:
    """The names of all sessions of a tenant, in the order of their UTF-8 bytes.

    A session that is written while the listing goes on moves to its front, past the cursor; so it
    is repeated until it brings nothing new.
    """
    names: set[str] = set()
    while True:
        known = len(names)
        cursor: str | None = None
        while True:
            page = world.sessions(limit=PAGE_SESSIONS, cursor=cursor)
            names.update(info.name for info in page.sessions)
            cursor = page.cursor
            if cursor is None:
                break
        if len(names) == known:
            return sorted(names, key=str.encode)
