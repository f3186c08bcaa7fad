"""``turnlog rebuild``: makes what is derived from the log anew."""

from __future__ import annotations

from pathlib import Path

from engine import Store
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import told_of


def run(path: Path, *, as_json: bool) -> ExitCode:
    """Rebuild a store's derived tables, while others use it."""
    screen = terminal.Screen()
    with (
        told_of(path),
        Store.open(path, create=False) as store,
        terminal.ProgressBar("rebuilding", None) as bar,
    ):

        def tell(table: str, done: int, sessions: int) -> None:
            bar.reach(done, sessions)

        report = store.rebuild(progress=tell)
    if as_json:
        screen.data(
            {
                "tables": list(report.tables),
                "sessions": report.sessions,
                "events": report.events,
                "rows_changed": report.rows_changed,
            }
        )
        return ExitCode.OK
    screen.line(
        f"rebuilt from {terminal.counted(report.events, 'event')} of "
        f"{terminal.counted(report.sessions, 'session')}: {', '.join(report.tables)}"
    )
    if report.rows_changed:
        screen.line(f"counts were wrong in {terminal.counted(report.rows_changed, 'session row')}")
    return ExitCode.OK
