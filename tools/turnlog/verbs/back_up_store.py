"""``turnlog backup``: copies a store while it is in use."""

from __future__ import annotations

from pathlib import Path

from engine.export import escape
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import open_to_read, refuse_missing_folder


def run(path: Path, target: Path, *, check: bool, as_json: bool) -> ExitCode:
    """Back up a store."""
    screen = terminal.Screen()
    refuse_missing_folder(target, target.absolute().parent)
    with open_to_read(path) as store, terminal.ProgressBar("copying", None) as bar:
        report = store.backup(target, check=check, progress=bar.reach)
    if as_json:
        screen.data(
            {
                "path": escape(str(report.path)),
                "store_id": report.store_id,
                "position": report.position,
                "byte_count": report.byte_count,
                "checked": report.checked,
                "seconds": round(report.seconds, 3),
            }
        )
        return ExitCode.OK
    screen.line(
        f"backed up to {terminal.quote(str(target))}: "
        f"{terminal.counted(report.position, 'event')}, {terminal.size(report.byte_count)}"
    )
    return ExitCode.OK
