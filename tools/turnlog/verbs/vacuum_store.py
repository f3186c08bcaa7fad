"""``turnlog vacuum``: rewrites the data file of a store that nobody has open."""

from __future__ import annotations

from pathlib import Path

from engine import Store
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import told_of


def run(path: Path, *, yes: bool, as_json: bool) -> ExitCode:
    """Vacuum a store; asks first."""
    screen = terminal.Screen()
    terminal.confirm(f"Rewrite the data file of {terminal.quote(str(path))}?", yes=yes)
    with told_of(path), terminal.ProgressBar("rewriting", None) as bar:
        report = Store.vacuum(path, progress=bar.reach)
    if as_json:
        screen.data(
            {
                "bytes_before": report.bytes_before,
                "bytes_after": report.bytes_after,
                "rows": report.rows,
                "seconds": round(report.seconds, 3),
            }
        )
        return ExitCode.OK
    before, after = terminal.size(report.bytes_before), terminal.size(report.bytes_after)
    screen.line(f"rewritten: {terminal.counted(report.rows, 'row')}, {before} before, {after} now")
    return ExitCode.OK
