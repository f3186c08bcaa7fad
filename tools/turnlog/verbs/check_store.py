"""``turnlog check``: reads everything and reports findings.

It reads in a child process, which costs its start and may die of a damaged page; then the finding
is what a walk over all pages says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from engine.export import escape
from engine.hiddennames import session_words
from eventlog.findings import CheckReport
from eventlog.keys import is_hidden
from turnlog import terminal
from turnlog.child import ChildDiedError, damage_behind, in_child
from turnlog.exits import ExitCode
from turnlog.stores import open_to_read

_COUNTED: Final = {  # where the key alone would promise more than was counted
    "keys": ("key of sealed events", "keys of sealed events"),
    "ids": ("id of events cut from the hot log", "ids of events cut from the hot log"),
}


def run(path: Path, *, as_json: bool) -> ExitCode:
    """Check a store; a negative exit code tells that there are findings."""
    screen = terminal.Screen()
    with open_to_read(path), terminal.ProgressBar("checking", None) as bar:
        bar.advance(0)
        report = _report(path)
    code = ExitCode.OK if report.ok else ExitCode.NEGATIVE
    if as_json:
        screen.data(
            {
                "ok": report.ok,
                "findings": escape([asdict(finding) for finding in report.findings]),
                "omitted": report.omitted,
                "consequences": report.consequences,
                "counts": report.counts,
            }
        )
        return code
    for finding in report.findings:
        whose = ""
        if finding.session is not None:
            what = f"session {terminal.quote(finding.session)}"
            if is_hidden(finding.session):
                what = terminal.escape(session_words(finding.session))
            whose = f" ({what}"
            whose += f" of tenant {terminal.quote(finding.tenant)})" if finding.tenant else ")"
        screen.line((finding.where, "bold"), whose, ": ", finding.message)
    found = len(report.findings) + report.omitted
    verdict = "no findings" if report.ok else terminal.counted(found, "finding")
    counts = ", ".join(_counted(value, key) for key, value in report.counts.items())
    screen.line((verdict, "green" if report.ok else "red"), f" ({counts})" if counts else "")
    if report.consequences:
        places = terminal.counted(report.consequences, "more place")
        screen.line(f"{places} could not be compared because of these")
    if not report.ok:
        screen.line("`turnlog export --skip-damaged` gives what is whole")
    return code


def _report(path: Path) -> CheckReport:
    try:
        (report,) = in_child(_check, path)
    except ChildDiedError as died:
        report = CheckReport()
        report.add_error(damage_behind(path, died))
    return report


def _check(path: Path) -> Iterator[CheckReport]:
    with open_to_read(path) as store:
        yield store.check()


def _counted(count: int, key: str) -> str:
    """A count and what it counts, from a key like ``hot_records``."""
    if key in _COUNTED:
        return f"{count:,} {_COUNTED[key][count != 1]}"
    return terminal.counted(count, key.replace("_", " ").removesuffix("s"))
