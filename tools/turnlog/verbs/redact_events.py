"""``turnlog redact``: removes what events of a session say, and nothing else of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine import RedactionReceipt, Store
from engine.export import escape
from eventlog.errors import UsageError
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import existing_session, told_of


def run(
    path: Path,
    name: str,
    first: int,
    last: int,
    *,
    reason: str | None,
    tenant: str,
    yes: bool,
    as_json: bool,
) -> ExitCode:
    """Redact events; asks first."""
    if last < first:
        raise UsageError(f"LAST must be {first} or more, not {last}")
    screen = terminal.Screen()
    with told_of(path), Store.open(path, create=False) as store:
        session = existing_session(store, tenant, name)
        info = session.info()
        if info is not None and last >= info.event_count:
            raise UsageError(
                f"session {terminal.quote(name)} has no event {last}",
                hint=f"Its newest event is {info.last_sequence}; list them with `turnlog show`.",
            )
        what = f"what events {first} to {last} of session {terminal.quote(name)} say"
        terminal.confirm(f"Remove {what} for good?", yes=yes)
        receipt = session.redact(first, last, reason=reason)
    if as_json:
        screen.data(_told(receipt))
        return ExitCode.OK
    _tell(receipt, screen)
    return ExitCode.OK


def _told(receipt: RedactionReceipt) -> dict[str, Any]:
    return {
        "tenant": escape(receipt.tenant),
        "session": escape(receipt.session),
        "number": receipt.number,
        "first": receipt.first,
        "last": receipt.last,
        "event_count": receipt.event_count,
        "already_count": receipt.already_count,
        "kept_count": receipt.kept_count,
        "void_count": receipt.void_count,
        "sequence": receipt.sequence,
        "position": receipt.position,
        "blobs_removed": receipt.blobs_removed,
        "blobs_kept": receipt.blobs_kept,
        "summaries": list(receipt.summaries),
        "is_live": receipt.is_live,
        "is_in_file": receipt.is_in_file,
        "backups": receipt.backups,
        "dictionaries": list(receipt.dictionaries),
    }


def _tell(receipt: RedactionReceipt, screen: terminal.Screen) -> None:
    done = f"redacted {terminal.counted(receipt.event_count, 'event')}"
    done += f" of {terminal.quote(receipt.session)}"
    for count, what in (
        (receipt.already_count, "redacted before"),
        (receipt.kept_count, "of kinds that stay"),
        (receipt.void_count, "purged before"),
    ):
        if count:
            done += f", {count:,} {what}"
    screen.line(done)
    if receipt.blobs_removed or receipt.blobs_kept:
        screen.line(
            f"of the contents that they named {receipt.blobs_removed:,} went and "
            f"{receipt.blobs_kept:,} stay"
        )
    if receipt.summaries:
        numbers = ", ".join(map(str, receipt.summaries))
        screen.line(f"summaries may tell of them, in the events {numbers}; redact these, too")
    if receipt.dictionaries:
        numbers = ", ".join(map(str, receipt.dictionaries))
        screen.line(f"dictionary {numbers} may quote them, until turnlog vacuum")
    screen.line("the data file may hold old pages of them until turnlog vacuum; " + receipt.backups)
