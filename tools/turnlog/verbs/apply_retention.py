"""``turnlog retention``: removes what rules no longer keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from engine import (
    RetentionDecision,
    RetentionExcess,
    RetentionPolicy,
    RetentionReport,
    Store,
    Tenant,
)
from engine.export import escape
from eventlog.seams import CLOCK
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import known_tenant, open_to_read, told_of
from turnlog.transcript import time_text

_BOUNDS: Final = {
    "hold": "it is held",
    "open_call": "a call is open",
    "tool_group": "a call has its result behind",
    "compaction": "a compaction is in use",
}


def run(
    path: Path,
    policy: RetentionPolicy,
    *,
    tenant: str | None,
    archive: Path | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> ExitCode:
    """Apply a policy, or tell what it would remove; asks first."""
    screen = terminal.Screen()
    now_us = CLOCK.wall_us()
    if dry_run:
        with open_to_read(path) as store:
            report = _apply(store, policy, tenant, now_us=now_us, archive=archive, dry_run=True)
    else:
        with told_of(path), Store.open(path, create=False) as store:
            if not yes:
                planned = _apply(
                    store, policy, tenant, now_us=now_us, archive=archive, dry_run=True
                )
                if planned.deleted or planned.purged:
                    terminal.confirm(f"Remove {_counted(planned)} for good?", yes=False)
            report = _apply(store, policy, tenant, now_us=now_us, archive=archive)
    for damaged in report.damaged:
        whose = f" of tenant {terminal.quote(damaged.tenant)}" if damaged.tenant else ""
        terminal.complain(
            f"session {terminal.quote(damaged.session)}{whose} is left alone: {damaged.reason}"
        )
    code = ExitCode.CORRUPTION if report.damaged else ExitCode.OK
    if as_json:
        screen.data(_told(report))
        return code
    for decisions, did in ((report.deleted, "removed"), (report.purged, "purged")):
        for each in decisions:
            screen.line(_line(each, f"would be {did}" if dry_run else did))
    for each in report.held:
        holds = ", ".join(map(terminal.quoted, each.holds))
        screen.line(_line(each, "held"), f"; {holds}")
    for over in report.excess:
        screen.line(_excess(over))
    for each in report.changed:
        screen.line(_line(each, "left, since it changed meanwhile"))
    screen.line(
        "would remove " if dry_run else "removed ",
        f"{_counted(report)}; {report.session_count:,} looked at, {report.skipped_held:,} held",
    )
    if report.archive is not None:
        screen.line(f"what went is in {terminal.quote(str(report.archive))}, for turnlog import")
        if report.purged:
            screen.line("what was purged of sessions that stay can go into another store only")
    return code


def _apply(
    store: Store, policy: RetentionPolicy, tenant: str | None, **given: Any
) -> RetentionReport:
    # A tenant of its own also for the one without a name, which as the store would be all of them.
    world = store if tenant is None else Tenant(store, known_tenant(store, tenant).name)
    with terminal.ProgressBar("looking", None) as bar:
        return world.apply_retention(policy, progress=bar.reach, **given)


def _counted(report: RetentionReport) -> str:
    sessions = terminal.counted(len(report.deleted), "session")
    events = sum([each.event_count for each in (*report.deleted, *report.purged)])
    beginnings = f" and the beginning of {len(report.purged):,}" if report.purged else ""
    return f"{sessions}{beginnings}, {terminal.counted(events, 'event')} in all"


def _line(each: RetentionDecision, what: str) -> str:
    whose = f" of tenant {terminal.quote(each.tenant)}" if each.tenant else ""
    part = terminal.counted(each.event_count, "event")
    active = time_text(each.active_us)
    rule = "--" + each.rule.removesuffix("_us").replace("total_", "").replace("_", "-")
    return f"{terminal.quote(each.session)}{whose}: {what}, {part}, {rule}, active {active}"


def _excess(each: RetentionExcess) -> str:
    whose = f" of tenant {terminal.quote(each.tenant)}" if each.tenant else ""
    why = ", ".join([_BOUNDS[reason] for reason in each.reasons])
    return f"{terminal.quote(each.session)}{whose}: keeps {each.kept:,}, not {each.wanted:,}: {why}"


def _told(report: RetentionReport) -> dict[str, Any]:
    return {
        "is_dry_run": report.is_dry_run,
        "session_count": report.session_count,
        "deleted": [_decision(each) for each in report.deleted],
        "purged": [_decision(each) for each in report.purged],
        "held": [_decision(each) for each in report.held],
        "skipped_held": report.skipped_held,
        "changed": [_decision(each) for each in report.changed],
        "excess": [
            {
                "tenant": escape(each.tenant),
                "session": escape(each.session),
                "wanted": each.wanted,
                "kept": each.kept,
                "first": each.first,
                "reasons": list(each.reasons),
            }
            for each in report.excess
        ],
        "damaged": [
            {
                "tenant": escape(each.tenant),
                "session": escape(each.session),
                "reason": escape(each.reason),
            }
            for each in report.damaged
        ],
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "archive": None if report.archive is None else escape(str(report.archive)),
    }


def _decision(each: RetentionDecision) -> dict[str, Any]:
    return {
        "tenant": escape(each.tenant),
        "session": escape(each.session),
        "action": each.action,
        "rule": each.rule,
        "event_count": each.event_count,
        "first": each.first,
        "active_us": each.active_us,
        "holds": escape(list(each.holds)),
    }
