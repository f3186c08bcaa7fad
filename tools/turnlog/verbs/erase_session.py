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
            }
        )
        return ExitCode.OK
    what = "no live record holds any of it"
    if receipt.dictionaries:
        numbers = ", ".join(map(str, receipt.dictionaries))
        what = f"of live records only dictionary {numbers} may quote it, until turnlog vacuum"
    screen.line(
        f"erased {terminal.quote(name)}: {terminal.counted(receipt.event_count, 'event')}; {what}"
    )
    screen.line("the data file may hold old pages of it until turnlog vacuum; " + receipt.backups)
    return ExitCode.OK
