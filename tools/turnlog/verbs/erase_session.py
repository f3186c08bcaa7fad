"""``turnlog erase``: deletes a session, or all of a user or tenant, and overwrites what it held."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from engine import ErasureReceipt, Store
from engine.export import escape
from engine.holds import holds_of
from eventlog.errors import ConflictError, SessionNotFoundError, UsageError
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import LOOKED_AT_MAX, known_tenant, told_of


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
                f"session {terminal.quote(name)} is held: {terminal.quoted(held[0])}",
                current=held,
                hint="Release its holds, or repeat the command with --force.",
            )
        terminal.confirm(f"Erase session {terminal.quote(name)} for good?", yes=yes)
        receipt = session.erase()
    if as_json:
        screen.data(_told(receipt))
        return ExitCode.OK
    _tell(f"erased {terminal.quote(name)}: {_events([receipt])}", [receipt], screen)
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
        try:
            if user is None:
                receipts = store.erase_tenant(tenant, force=force)
            else:
                receipts = world.erase_user(user, force=force)
        except ConflictError as error:
            error.hint = "Release their holds with `turnlog hold`, or repeat this with --force."
            raise
        if not receipts:
            raise SessionNotFoundError(f"nothing of {whose}", hint=_elsewhere(store, tenant, user))
    if as_json:
        for receipt in receipts:
            screen.data(_told(receipt))
        return ExitCode.OK
    _tell(f"erased {_parts(receipts, whose)}", receipts, screen)
    return ExitCode.OK


def _elsewhere(store: Store, tenant: str, user: str | None) -> str:
    """Which other tenants have that user."""
    others = []
    if user is not None:
        for each in islice(store.tenants(), LOOKED_AT_MAX):
            if each != tenant and store.tenant(each).sessions(1, user_id=user).sessions:
                others.append(terminal.quote(each) if each else "''")
    if others:
        return f"A user of that name has sessions of another tenant; --tenant {others[0]} names it."
    return "List sessions with `turnlog sessions STORE`, with --user ID or --tenant NAME."


def _parts(receipts: list[ErasureReceipt], whose: str) -> str:
    """What was erased, each part with its events."""
    sessions = [each for each in receipts if each.session is not None]
    documents = [each for each in receipts if each.session is None and "documents" in each.what]
    rest = [each for each in receipts if each not in sessions and each not in documents]
    parts = []
    if sessions:
        count = terminal.counted(len(sessions), "session")
        parts.append(f"{count} of {whose}: {_events(sessions)}")
    for group, what in ((documents, "documents"), (rest, "what was kept beside them")):
        if group:
            parts.append(f"{what}{'' if sessions else f' of {whose}'}: {_events(group)}")
    return "; ".join(parts)


def _events(receipts: list[ErasureReceipt]) -> str:
    return terminal.counted(sum([each.event_count for each in receipts]), "event")


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
    screen.line(f"{done}; {what}")
    if has_held_blobs:
        screen.line(
            "a content that it named was put again and stays: for an hour, or while events name it"
        )
    backups = receipts[0].backups
    screen.line("the data file may hold old pages of it until turnlog vacuum; " + backups)
