"""``turnlog show``: a session as a transcript."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from engine import Session
from engine.export import line_mapping
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import existing_session, open_to_read
from turnlog.transcript import CLIP_CHARS, FIRST_EVENTS, Timeline, entry, heading, time_text


def run(
    path: Path, name: str, *, limit: int | None, full: bool, tenant: str, as_json: bool
) -> ExitCode:
    """Write the last ``limit`` events of a session, or all of them."""
    screen = terminal.Screen()
    with open_to_read(path) as store:
        session = existing_session(store, tenant, name)
        info = session.info()
        assert info is not None
        first = 0 if limit is None else max(0, info.last_sequence + 1 - limit)
        events = session.events(first=first, last=info.last_sequence)
        if as_json:
            for event in events:
                screen.data(line_mapping(event))
            return ExitCode.OK
        timeline = Timeline(islice(session.events(), FIRST_EVENTS))
        if timeline.has_given:
            timeline.skip_to(_time_before(session, first))
        head = heading(info)
        head.append(terminal.counted(info.event_count, "event"))
        head.append(f"recorded {time_text(info.created_us)} to {time_text(info.updated_us)} UTC")
        screen.line(("  ".join(head), "bold"))
        for event in events:
            clip = None if full else CLIP_CHARS
            screen.line(*entry(event, timeline.offset_us(event), clip=clip))
    return ExitCode.OK


def _time_before(session: Session, stop: int) -> int | None:
    """The time of the last event before a sequence that came with one.

    Looks at windows that grow backwards; nearly always the first one has it.
    """
    window = 16
    while stop:
        first = max(0, stop - window)
        found = None
        for event in session.events(first=first, last=stop - 1):
            found = found if event.time_us is None else event.time_us
        if found is not None:
            return found
        stop, window = first, window * 4
    return None
