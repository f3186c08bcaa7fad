"""``turnlog restore``: makes a store from a backup."""

from __future__ import annotations

from pathlib import Path

from engine import Store
from engine.export import escape
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import refuse_missing_folder, told_of


def run(backup: Path, target: Path, *, check: bool, as_json: bool) -> ExitCode:
    """Restore a store."""
    screen = terminal.Screen()
    refuse_missing_folder(target, target.absolute().parent)
    with told_of(backup), terminal.ProgressBar("copying", None) as bar:
        report = Store.restore(backup, target, check=check, progress=bar.reach)
    if as_json:
        screen.data(
            {
                "path": escape(str(report.path)),
                "store_id": report.store_id,
                "restored_from": report.restored_from,
                "epoch": report.epoch,
                "position": report.position,
                "byte_count": report.byte_count,
                "checked": report.checked,
                "seconds": round(report.seconds, 3),
            }
        )
        return ExitCode.OK
    screen.line(
        f"restored to {terminal.quote(str(target))}: "
        f"{terminal.counted(report.position, 'event')}, {terminal.size(report.byte_count)}"
    )
    return ExitCode.OK
