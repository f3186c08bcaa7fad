"""``turnlog sessions``: what sessions there are, newest activity first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine import SessionInfo, SessionPage, Store
from engine.export import escape
from eventlog.errors import UsageError
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import known_tenant, open_to_read
from turnlog.transcript import time_text

_HEADER = (
    "TENANT",
    "SESSION",
    "USER",
    "EVENTS",
    "MESSAGES",
    "LAST ACTIVITY (UTC)",
    "STATUS",
    "TITLE",
)
_COUNTS = frozenset({3, 4})
_PURGED = "*"  # of counts that count what was purged too


def run(
    path: Path,
    *,
    wanted: dict[str, Any],
    limit: int,
    cursor: str | None,
    tenant: str | None,
    as_json: bool,
) -> ExitCode:
    """Write one page of the listing, of all tenants when none is named.

    Args:
        path: The store.
        wanted: What ``Tenant.sessions`` is to list.
        limit: Sessions of the page.
        cursor: Where the page before ended.
        tenant: Only this tenant's.
        as_json: Write JSON.
    """
    screen = terminal.Screen()
    with open_to_read(path) as store:
        if cursor is not None:
            _refuse_foreign(store, cursor)
        tenants = store.tenants()
        if tenant is not None:
            page = known_tenant(store, tenant).sessions(limit, cursor, **wanted)
        elif wanted["alias"] is None:
            page = store.all_tenants.sessions(limit, cursor, **wanted)
        else:  # of each tenant there may be one
            pages = [store.tenant(name).sessions(limit, cursor, **wanted) for name in tenants]
            infos = [info for page in pages for info in page.sessions]
            page = SessionPage(sorted(infos, key=lambda info: -info.last_position), None)
    if as_json:
        for info in page.sessions:
            screen.data(_mapping(info))
        if page.cursor is not None:
            screen.data({"cursor": page.cursor})
        return ExitCode.OK
    shown = 0 if tenant is None and tenants != [""] else 1  # the tenant only where it says anything
    rows = [_row(info)[shown:] for info in page.sessions]
    screen.table(_HEADER[shown:], rows, right=frozenset(column - shown for column in _COUNTS))
    if any([info.first_sequence for info in page.sessions]):
        terminal.note(f"{_PURGED} with events that were purged")
    if not rows:
        terminal.note("no sessions" + _named(wanted))
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


def _named(wanted: dict[str, Any]) -> str:
    """What a listing was asked for, where that is one user or several things."""
    asked = {key: value for key, value in wanted.items() if value is not None}
    if set(asked) == {"user_id"}:
        return f" of user {terminal.quote(asked['user_id'])}"
    return " of that kind" if asked else ""


def _row(info: SessionInfo) -> tuple[str, ...]:
    mark = _PURGED if info.first_sequence else ""
    return (
        terminal.quote(info.tenant) if info.tenant else "-",
        terminal.quote(info.name),
        "-" if info.user_id is None else terminal.quote(info.user_id),
        f"{info.event_count:,}{mark}",
        f"{info.message_count:,}{mark}",
        time_text(info.updated_us),
        "-" if info.status is None else terminal.quote(info.status),
        terminal.clipped(info.title or ""),
    )


def _mapping(info: SessionInfo) -> dict[str, object]:
    return {
        "tenant": info.tenant,
        "session": info.name,
        "user_id": escape(info.user_id),
        "title": escape(info.title),
        "metadata": escape(info.metadata),
        "account_id": escape(info.account_id),
        "agent_id": escape(info.agent_id),
        "workspace": escape(info.workspace),
        "status": escape(info.status),
        "labels": escape(list(info.labels)),
        "created_us": info.created_us,
        "updated_us": info.updated_us,
        "event_count": info.event_count,
        "message_count": info.message_count,
        "head": info.head,
        "first_sequence": info.first_sequence,
        "last_sequence": info.last_sequence,
        "last_position": info.last_position,
        "loose_count": info.loose_count,
    }
