"""``turnlog show``: a session as a transcript, or what its variables are."""

from __future__ import annotations

from collections import deque
from itertools import islice
from pathlib import Path

from engine import Session, Variable
from engine.export import escape, line_mapping
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.moments import moment_of
from turnlog.paths import BranchPath, path_of
from turnlog.stores import existing_session, open_to_read
from turnlog.transcript import (
    CLIP_CHARS,
    FIRST_EVENTS,
    Parts,
    Timeline,
    entry,
    heading,
    time_text,
    value_text,
)

_HEADER = ("VARIABLE", "SEQUENCE", "SET (UTC)", "VALUE")


def run(
    path: Path,
    name: str,
    *,
    limit: int | None,
    full: bool,
    at: str | None,
    branch: str | None,
    leaf: int | None,
    variables: bool,
    tenant: str,
    as_json: bool,
) -> ExitCode:
    """Write the last ``limit`` events of a session or path, or all of them; or its variables."""
    screen = terminal.Screen()
    with open_to_read(path) as store:
        session = existing_session(store, tenant, name)
        path_to = path_of(session, branch, leaf, at=at is not None, state=variables)
        if path_to is not None:
            _show_path(screen, session, path_to, limit=limit, full=full, as_json=as_json)
            return ExitCode.OK
        moment = None if at is None else moment_of(session, at)
        if variables:
            _show_variables(screen, (session if moment is None else moment).variables(), as_json)
            return ExitCode.OK
        info = session.info() if moment is None else moment.info()
        assert info is not None
        first = 0 if limit is None else max(info.first_sequence, info.last_sequence + 1 - limit)
        events = session.events(first=first, last=info.last_sequence)
        if as_json:
            for event in events:
                screen.data(line_mapping(event))
            return ExitCode.OK
        timeline = Timeline(islice(session.events(), FIRST_EVENTS))
        if timeline.has_given:
            timeline.skip_to(_time_before(session, info.first_sequence, first))
        head = heading(info)
        head.append(terminal.counted(info.event_count, "event"))
        head.append(f"recorded {time_text(info.created_us)} to {time_text(info.updated_us)} UTC")
        screen.line(("  ".join(head), "bold"))
        for event in events:
            clip = None if full else CLIP_CHARS
            screen.line(*entry(event, timeline.offset_us(event), clip=clip))
    return ExitCode.OK


def _show_path(
    screen: terminal.Screen,
    session: Session,
    path: BranchPath,
    *,
    limit: int | None,
    full: bool,
    as_json: bool,
) -> None:
    if as_json:
        for event in deque(path.events(), limit) if limit is not None else path.events():
            screen.data(line_mapping(event))
        return
    timeline = Timeline(islice(path.events(), FIRST_EVENTS))
    shown: deque[Parts] = deque(maxlen=limit)
    count = 0
    for event in path.events():
        shown.append(entry(event, timeline.offset_us(event), clip=None if full else CLIP_CHARS))
        count += 1
    info = session.info()
    assert info is not None
    counts = f"{count:,} of {terminal.counted(info.event_count, 'event')}"
    screen.line(("  ".join([*heading(info), counts]), "bold"))
    for parts in shown:
        screen.line(*parts)


def _show_variables(screen: terminal.Screen, found: list[Variable], as_json: bool) -> None:
    if as_json:
        for each in found:
            screen.data(
                {
                    "key": each.key,
                    "value": escape(each.value),
                    "updated_us": each.updated_us,
                    "sequence": each.sequence,
                }
            )
        return
    rows = [
        (
            terminal.quote(each.key),
            f"{each.sequence}",
            time_text(each.updated_us),
            terminal.clipped(value_text(each.value)),
        )
        for each in found
    ]
    screen.table(_HEADER, rows, right=frozenset({1}))
    if not rows:
        terminal.note("no variables")


def _time_before(session: Session, floor: int, stop: int) -> int | None:
    """The time of the last event before a sequence that came with one.

    Below ``floor`` everything was purged. Looks at windows that grow backwards; nearly always the
    first one has it.
    """
    window = 16
    while stop > floor:
        first = max(floor, stop - window)
        found = None
        for event in session.events(first=first, last=stop - 1):
            found = found if event.time_us is None else event.time_us
        if found is not None:
            return found
        stop, window = first, window * 4
    return None
