"""``turnlog erase``: deletes a session and overwrites what it held."""

from __future__ import annotations

from pathlib import Path

from engine import Store
from engine.export import escape
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import told_of


def run(path: Path, name: str, *, tenant: str, yes: bool, as_json: bool) -> ExitCode:
    """Erase a session; asks first."""
    screen = terminal.Screen()
    with told_of(path), Store.open(path, create=False) as store:
        session = store.tenant(tenant).session(name)
        terminal.confirm(f"Erase session {terminal.quote(name)} for good?", yes=yes)
        receipt = session.erase()
    if as_json:
        screen.data(
            {
                "tenant": escape(receipt.tenant),
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
        )
        return ExitCode.OK
    what = "no live record holds any of it"
    if receipt.has_held_blobs:
        what = "of live records only a content that others put may hold any of it"
    if receipt.dictionaries:
        numbers = ", ".join(map(str, receipt.dictionaries))
        what = f"of live records only dictionary {numbers} may quote it, until turnlog vacuum"
    screen.line(
        f"erased {terminal.quote(name)}: {terminal.counted(receipt.event_count, 'event')}; {what}"
    )
    if receipt.has_held_blobs:
        screen.line(
            "a content that it named was put again and stays: for an hour, or while events name it"
        )
    screen.line("the data file may hold old pages of it until turnlog vacuum; " + receipt.backups)
    return ExitCode.OK
