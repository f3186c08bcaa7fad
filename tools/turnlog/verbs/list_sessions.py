"""``turnlog sessions``: what sessions there are, newest activity first."""

from __future__ import annotations

from heapq import nlargest
from pathlib import Path

from engine import SessionInfo, SessionPage, Store
from engine.export import escape
from eventlog.errors import UsageError
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import known_tenant, open_to_read
from turnlog.transcript import time_text

_HEADER = ("TENANT", "SESSION", "USER", "EVENTS", "MESSAGES", "LAST ACTIVITY (UTC)", "TITLE")
_COUNTS = frozenset({3, 4})


def run(
    path: Path,
    *,
    user: str | None,
    limit: int,
    cursor: str | None,
    tenant: str | None,
    as_json: bool,
) -> ExitCode:
    """Write one page of the listing, of all tenants when none is named."""
    screen = terminal.Screen()
    with open_to_read(path) as store:
        if cursor is not None:
            _refuse_foreign(store, cursor)
        tenants = store.tenants()
        if tenant is None:
            page = _of_all(store, tenants, limit, cursor, user)
        else:
            page = known_tenant(store, tenant).sessions(limit, cursor, user)
    if as_json:
        for info in page.sessions:
            screen.data(_mapping(info))
        if page.cursor is not None:
            screen.data({"cursor": page.cursor})
        return ExitCode.OK
    shown = 0 if tenant is None and tenants != [""] else 1  # the tenant only where it says anything
    rows = [_row(info)[shown:] for info in page.sessions]
    screen.table(_HEADER[shown:], rows, right=frozenset(column - shown for column in _COUNTS))
    if not rows:
        terminal.note("no sessions" + ("" if user is None else f" of user {terminal.quote(user)}"))
    if page.cursor is not None:
        terminal.note(f"more: --cursor {page.cursor}")
    return ExitCode.OK


def _refuse_foreign(store: Store, cursor: str) -> None:
    try:
        store.sessions(1, cursor)
    except UsageError as error:
        raise UsageError(
            f"--cursor {terminal.quote(cursor)} does not come from a listing",
            hint="Give what stands behind `more: --cursor` at the end of a listing; without "
            "--cursor the listing begins with the newest session.",
        ) from error


def _of_all(
    store: Store, tenants: list[str], limit: int, cursor: str | None, user: str | None
) -> SessionPage:
    """One page over all tenants; a cursor is a position, so it is one for all of them."""
    if len(tenants) <= 1:
        return store.tenant(tenants[0] if tenants else "").sessions(limit, cursor, user)
    pages = (store.tenant(name).sessions(limit, cursor, user) for name in tenants)
    infos = (info for page in pages for info in page.sessions)
    newest = nlargest(limit, infos, key=lambda info: info.last_position)
    return SessionPage(newest, str(newest[-1].last_position) if len(newest) == limit else None)


def _row(info: SessionInfo) -> tuple[str, ...]:
    return (
        terminal.quote(info.tenant) if info.tenant else "-",
        terminal.quote(info.name),
        "-" if info.user_id is None else terminal.quote(info.user_id),
        f"{info.event_count:,}",
        f"{info.message_count:,}",
        time_text(info.updated_us),
        terminal.clipped(info.title or ""),
    )


def _mapping(info: SessionInfo) -> dict[str, object]:
    return {
        "tenant": info.tenant,
        "session": info.name,
        "user_id": escape(info.user_id),
        "title": escape(info.title),
        "metadata": escape(info.metadata),
        "created_us": info.created_us,
        "updated_us": info.updated_us,
        "event_count": info.event_count,
        "message_count": info.message_count,
        "head": info.head,
        "last_sequence": info.last_sequence,
        "last_position": info.last_position,
        "loose_count": info.loose_count,
    }
