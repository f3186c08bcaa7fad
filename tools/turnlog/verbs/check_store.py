"""``turnlog check``: reads everything and reports findings."""

from __future__ import annotations

from pathlib import Path

from engine.export import escape
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import open_to_read


def run(path: Path, *, as_json: bool) -> ExitCode:
    """Check a store; a negative exit code tells that there are findings."""
    screen = terminal.Screen()
    with open_to_read(path) as store, terminal.ProgressBar("checking", None) as bar:
        bar.advance(0)
        report = store.check()
    code = ExitCode.OK if report.ok else ExitCode.NEGATIVE
    if as_json:
        findings = escape(
            [{"where": each.where, "message": each.message} for each in report.findings]
        )
        screen.data({"ok": report.ok, "findings": findings, "counts": report.counts})
        return code
    for finding in report.findings:
        screen.line((finding.where, "bold"), ": ", finding.message)
    verdict = "no findings" if report.ok else terminal.counted(len(report.findings), "finding")
    counts = ", ".join(_counted(value, key) for key, value in report.counts.items())
    screen.line((verdict, "green" if report.ok else "red"), f" ({counts})" if counts else "")
    return code


def _counted(count: int, key: str) -> str:
    """A count and what it counts, from a key like ``hot_records``."""
    return terminal.counted(count, key.replace("_", " ").removesuffix("s"))
