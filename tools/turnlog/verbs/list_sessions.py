"""``turnlog sessions``: what sessions there are, newest activity first."""

from __future__ import annotations

from pathlib import Path

from engine import SessionInfo
from engine.export import escape
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import open_to_read
from turnlog.transcript import time_text

_HEADER = ("SESSION", "USER", "EVENTS", "MESSAGES", "LAST ACTIVITY (UTC)", "TITLE")
_COUNTS = frozenset({2, 3})


def run(
    path: Path,
    *,
    user: str | None,
    limit: int,
    cursor: str | None,
    tenant: str,
    as_json: bool,
) -> ExitCode:
    """Write one page of the listing."""
    screen = terminal.Screen()
    with open_to_read(path) as store:
        page = store.tenant(tenant).sessions(limit=limit, cursor=cursor, user_id=user)
    if as_json:
        for info in page.sessions:
            screen.data(_mapping(info))
        if page.cursor is not None:
            screen.data({"cursor": page.cursor})
        return ExitCode.OK
    screen.table(_HEADER, [_row(info) for info in page.sessions], right=_COUNTS)
    if page.cursor is not None:
        terminal.note(f"more: --cursor {page.cursor}")
    return ExitCode.OK


def _row(info: SessionInfo) -> tuple[str, ...]:
    return (
        terminal.quote(info.name),
        "-" if info.user_id is None else terminal.quote(info.user_id),
        f"{info.event_count:,}",
        f"{info.message_count:,}",
        time_text(info.updated_us),
        info.title or "",
    )


def _mapping(info: SessionInfo) -> dict[str, object]:
    return {
        "tenant": info.tenant,
        "session": info.name,
        "user_id": info.user_id,
        "title": info.title,
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
