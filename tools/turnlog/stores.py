"""How verbs open a store and find their way in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

from engine import Session, Store, Tenant
from engine.hidden import list_names
from eventlog.errors import (
    NotAStoreError,
    SessionNotFoundError,
    StoreUnavailableError,
    UsageError,
)
from turnlog import terminal

PAGE_SESSIONS: Final = 1_000
NAMED_MAX: Final = 10  # names in an error; what is more is counted
LOOKED_AT_MAX: Final = 1_000  # entries of a folder that is no store

_MARKER: Final = "turnlog.json"
_DATA: Final = "data.mdb"
_NEW: Final = "`turnlog simulate` and `turnlog import` make a store where there is none."


def open_to_read(path: Path) -> Store:
    """Open an existing store without the right to write; never creates one."""
    try:
        return Store.open(path, create=False, read_only=True)
    except NotAStoreError as error:
        raise _as_found(path, error) from error


def open_to_write(path: Path) -> Store:
    """Open a store, or create it."""
    try:
        return Store.open(path)
    except NotAStoreError as error:
        raise _as_found(path, error) from error
    except StoreUnavailableError:
        refuse_missing_folder(path, Path(os.path.realpath(path)).parent)
        raise


@contextmanager
def told_of(path: Path) -> Iterator[None]:
    """An error that there is no store says what there is instead."""
    try:
        yield
    except NotAStoreError as error:
        raise _as_found(path, error) from error


@contextmanager
def opened_when_needed(path: Path) -> Iterator[Callable[[], Store]]:
    """What opens a store when it is called first, so that none is made for nothing.

    Where there is something already, it is opened at once.
    """
    with ExitStack() as stack:

        @cache
        def opened() -> Store:
            return stack.enter_context(open_to_write(path))

        if is_vacant(path):
            refuse_missing_folder(path, Path(os.path.realpath(path)).parent)
        else:
            opened()
        yield opened


def is_vacant(path: Path) -> bool:
    """Whether there is nothing at the path but perhaps an empty folder."""
    if not os.path.exists(path):
        return True
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def refuse_missing_folder(path: Path, folder: Path) -> None:
    """Refuse to make something in a folder that is none.

    Raises:
        UsageError: There is no such folder, or it is something else.
    """
    if os.path.isdir(folder):
        return
    name = terminal.quote(os.path.abspath(folder))
    why, first = f"{name} is no folder", ""
    if not os.path.lexists(folder):
        why, first = f"there is no folder {name}", f"Make it with `mkdir -p {name}`, or give "
    raise UsageError(
        f"{terminal.quote(str(path))} cannot be created: {why}",
        hint=(first or "Give ") + "another path.",
    )


def sizes(facts: dict[str, Any]) -> dict[str, Any]:
    """What a store takes on disk, from its ``stats``; nothing an event where there is none.

    ``file_bytes`` is the size of its data file, ``used_bytes`` the part of it that holds something;
    the rest is free for what comes. An event's share is that of all events of the store.
    """
    found = {key: facts[key] for key in ("file_bytes", "used_bytes")}
    if facts["events"]:
        shares = {f"{key}_per_event": round(found[key] / facts["events"], 1) for key in found}
        found.update(shares)
    return found


def _as_found(path: Path, error: NotAStoreError) -> NotAStoreError:
    """The error in terms of what is at the path."""
    name = terminal.quote(str(path))
    if not os.path.lexists(path):
        return NotAStoreError(f"there is nothing at {name}", hint=f"Check the path. {_NEW}")
    if not path.exists():
        target = terminal.quote(os.path.realpath(path))
        return NotAStoreError(
            f"{name} is a link to {target}, where nothing is",
            hint="Mend the link, or give the store's own path.",
        )
    if not path.is_dir():
        return NotAStoreError(f"{name} is a file, and a store is a folder", hint=_for_file(path))
    try:
        entries = sorted(islice(path.iterdir(), LOOKED_AT_MAX))
    except OSError:
        return error
    inside = [entry.name for entry in entries]
    if not inside:
        return NotAStoreError(f"{name} is an empty folder", hint=f"Check the path. {_NEW}")
    if _MARKER in inside:
        return error
    if _DATA in inside:
        return NotAStoreError(
            f"{name} holds {_DATA}, but no {_MARKER}: another program's files, or a store that "
            "lost its marker",
            hint=f"If it is a store, bring {_MARKER} back from a copy of it.",
        )
    stores = [entry for entry in entries if (entry / _MARKER).is_file()]
    if stores:
        return NotAStoreError(
            f"{name} is no store, but a folder with {terminal.counted(len(stores), 'store')} in it",
            hint=f"Give the store itself: {_some(str(entry) for entry in stores)}.",
        )
    return NotAStoreError(
        f"{name} is a folder with other things in it ({_some(inside)}), not a store",
        hint=f"Check the path. {_NEW}",
    )


def _for_file(path: Path) -> str:
    folder = path.absolute().parent
    if (folder / _MARKER).is_file():
        return f"It lies in a store; give the store's folder: {terminal.quote(str(folder))}."
    return f"If it holds sessions, `turnlog import STORE {terminal.quote(str(path))}` reads them."


def _some(names: Iterable[str]) -> str:
    """Names in a sentence; many are cut short and counted."""
    quoted = [terminal.quote(name) for name in names]
    more = len(quoted) - NAMED_MAX
    shown = ", ".join(quoted[:NAMED_MAX])
    return f"{shown} and {more:,} more" if more > 0 else shown


def known_tenant(store: Store, name: str) -> Tenant:
    """The tenant of that name; the one without a name always exists.

    Raises:
        SessionNotFoundError: No session of this tenant was ever written.
    """
    tenant = store.tenant(name)
    names = store.tenants()
    if name and name not in names:
        named = [each for each in names if each]
        raise SessionNotFoundError(
            f"no tenant {terminal.quote(name)}",
            hint=f"Tenants of this store: {_some(named)}."
            if named
            else "No session of this store has a tenant; leave --tenant out.",
        )
    return tenant


def existing_session(store: Store, tenant: str, name: str) -> Session:
    """The session of that name.

    Raises:
        SessionNotFoundError: There is none, or no such tenant.
    """
    session = known_tenant(store, tenant).session(name)
    if not session.exists:
        raise SessionNotFoundError(
            f"no session {terminal.quote(name)}" + _of_tenant(tenant),
            hint=_elsewhere(store, tenant, name),
        )
    return session


def _of_tenant(tenant: str) -> str:
    return f" of tenant {terminal.quote(tenant)}" if tenant else ""


def _elsewhere(store: Store, tenant: str, name: str) -> str:
    """Where else there is a session of that name."""
    others = [
        each
        for each in islice(store.tenants(), LOOKED_AT_MAX)
        if each != tenant and store.tenant(each).session(name).exists
    ]
    if not others:
        return "List them with `turnlog sessions STORE`."
    if others == [""]:
        return "There is one without a tenant: leave --tenant out."
    named = _some(each for each in others if each)
    return f"There is one of another tenant; name it with --tenant: {named}."


def tenant_names(store: Store) -> list[str]:
    """The names of all tenants that have sessions, in the order of their UTF-8 bytes."""
    return sorted(store.tenants(), key=str.encode)


def session_names(store: Store, tenant: str, last_position: int) -> list[str]:
    """The names of a tenant's sessions, hidden ones too, in the order of their UTF-8 bytes.

    A session that is written while the listing goes on moves to its front, past the cursor; then
    an event of it lies behind ``last_position``, and what lies there is looked through.

    Args:
        store: The store.
        tenant: The tenant's name.
        last_position: The store's last position before the call; sessions that begin later may be
            missing.
    """
    world = store.tenant(tenant)
    names: set[str] = set()
    cursor: str | None = None
    while True:
        page, cursor = list_names(world, PAGE_SESSIONS, cursor)
        names.update(page)
        if cursor is None:
            break
    meanwhile = store.last_position - last_position
    for event in store.read(after=last_position, limit=meanwhile):
        if event.tenant == tenant:
            names.add(event.session)
    return sorted(names, key=str.encode)
