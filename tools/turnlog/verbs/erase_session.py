"""``turnlog erase``: deletes a session, or all of a user or tenant, and overwrites what it held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine import ErasureReceipt, Store
from engine.export import escape
from engine.holds import holds_of
from eventlog.errors import ConflictError, SessionNotFoundError, UsageError
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import known_tenant, told_of


def run(
    path: Path,
    name: str | None,
    *,
    user: str | None,
    everything: bool,
    tenant: str | None,
    force: bool,
    yes: bool,
    as_json: bool,
) -> ExitCode:
    """Erase a session, or all of a user or tenant; asks first."""
    if [name is not None, user is not None, everything].count(True) != 1:
        raise UsageError("erase takes one of SESSION, --user and --all")
    if everything and tenant is None:
        raise UsageError(
            "erase --all takes the tenant from --tenant",
            hint="Name the tenant; the one without a name is --tenant ''.",
        )
    screen = terminal.Screen()
    tenant = tenant or ""
    if user is not None or everything:
        return _erase_all(path, user, screen, tenant, force=force, yes=yes, as_json=as_json)
    assert name is not None
    with told_of(path), Store.open(path, create=False) as store:
        session = store.tenant(tenant).session(name)
        held = () if force else holds_of(session)
        if held:
            raise ConflictError(
                f"session {terminal.quote(name)} is held: {terminal.quote(held[0])}",
                current=held,
                hint="Release its holds, or repeat the command with --force.",
            )
        terminal.confirm(f"Erase session {terminal.quote(name)} for good?", yes=yes)
        receipt = session.erase()
    if as_json:
        screen.data(_told(receipt))
        return ExitCode.OK
    _tell(f"erased {terminal.quote(name)}", [receipt], screen)
    return ExitCode.OK


def _erase_all(
    path: Path,
    user: str | None,
    screen: terminal.Screen,
    tenant: str,
    *,
    force: bool,
    yes: bool,
    as_json: bool,
) -> ExitCode:
    """Erase what belongs to a user, or None: to the whole tenant."""
    whose = f"tenant {terminal.quote(tenant)}" if tenant else "the tenant without a name"
    if user is not None:
        whose = f"user {terminal.quote(user)}"
    with told_of(path), Store.open(path, create=False) as store:
        world = known_tenant(store, tenant)
        terminal.confirm(f"Erase all sessions and documents of {whose} for good?", yes=yes)
        if user is None:
            receipts = store.erase_tenant(tenant, force=force)
        else:
            receipts = world.erase_user(user, force=force)
    if not receipts:
        raise SessionNotFoundError(
            f"nothing of {whose}",
            hint="List sessions with `turnlog sessions STORE`, with --user ID or --tenant NAME.",
        )
    if as_json:
        for receipt in receipts:
            screen.data(_told(receipt))
        return ExitCode.OK
    sessions = sum([each.session is not None for each in receipts])
    what = terminal.counted(sessions, "session")
    if sessions < len(receipts):
        what += " and the documents" if sessions else ", but documents"
    _tell(f"erased {what} of {whose}", receipts, screen)
    return ExitCode.OK


def _told(receipt: ErasureReceipt) -> dict[str, Any]:
    return {
        "tenant": escape(receipt.tenant),
        "what": escape(receipt.what),
        "session": escape(receipt.session),
        "number": receipt.number,
        "event_count": receipt.event_count,
        "position": receipt.position,
        "is_live": receipt.is_live,
        "is_in_file": receipt.is_in_file,
        "backups": receipt.backups,
        "dictionaries": list(receipt.dictionaries),
        "has_held_blobs": receipt.has_held_blobs,
    }


def _tell(done: str, receipts: list[ErasureReceipt], screen: terminal.Screen) -> None:
    has_held_blobs = any([each.has_held_blobs for each in receipts])
    dictionaries = sorted({number for each in receipts for number in each.dictionaries})
    what = "no live record holds any of it"
    if has_held_blobs:
        what = "of live records only a content that others put may hold any of it"
    if dictionaries:
        numbers = ", ".join(map(str, dictionaries))
        what = f"of live records only dictionary {numbers} may quote it, until turnlog vacuum"
    events = sum([each.event_count for each in receipts])
    screen.line(f"{done}: {terminal.counted(events, 'event')}; {what}")
    if has_held_blobs:
        screen.line(
            "a content that it named was put again and stays: for an hour, or while events name it"
        )
    backups = receipts[0].backups
    screen.line("the data file may hold old pages of it until turnlog vacuum; " + backups)
