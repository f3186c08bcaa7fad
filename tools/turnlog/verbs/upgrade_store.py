"""``turnlog upgrade``: brings a store to this release's format."""

from __future__ import annotations

from pathlib import Path

from engine import Store
from engine.export import escape
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import told_of


def run(
    path: Path, *, backup: Path | None, without_backup: bool, yes: bool, as_json: bool
) -> ExitCode:
    """Upgrade a store; asks first."""
    screen = terminal.Screen()
    terminal.confirm(f"Upgrade {terminal.quote(str(path))}?", yes=yes)
    with told_of(path), terminal.ProgressBar("backing up", None) as bar:
        report = Store.upgrade(
            path, backup=backup, without_backup=without_backup, progress=bar.reach
        )
    if as_json:
        screen.data(
            {
                "before": report.before,
                "after": report.after,
                "backup": None if report.backup is None else escape(str(report.backup)),
                "seconds": round(report.seconds, 3),
            }
        )
        return ExitCode.OK
    if report.before == report.after:
        screen.line(f"nothing to do: the store is of format version {report.after}")
        return ExitCode.OK
    screen.line(f"upgraded from format version {report.before} to {report.after}")
    if report.backup is not None:
        screen.line(f"as it was: {terminal.quote(str(report.backup))}")
    return ExitCode.OK
