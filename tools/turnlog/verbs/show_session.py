"""``turnlog show``: a session as a transcript."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from engine.export import line_mapping
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import existing_session, open_to_read
from turnlog.transcript import CLIP_CHARS, FIRST_EVENTS, Timeline, entry, time_text


def run(
    path: Path, name: str, *, limit: int | None, full: bool, tenant: str, as_json: bool
) -> ExitCode:
    """Write the last ``limit`` events of a session, or all of them."""
    screen = terminal.Screen()
    with open_to_read(path) as store:
        session = existing_session(store.tenant(tenant), name)
        info = session.info()
        assert info is not None
        first = 0 if limit is None else max(0, info.last_sequence + 1 - limit)
        events = session.events(first=first)
        if as_json:
            for event in events:
                screen.data(line_mapping(event))
            return ExitCode.OK
        timeline = Timeline(islice(session.events(), FIRST_EVENTS))
        head = [terminal.quote(name)]
        if info.user_id is not None:
            head.append(f"user {terminal.quote(info.user_id)}")
        if info.title:
            head.append(terminal.quote(info.title))
        head.append(terminal.counted(info.event_count, "event"))
        head.append(f"recorded {time_text(info.created_us)} to {time_text(info.updated_us)} UTC")
        screen.line(("  ".join(head), "bold"))
        for event in events:
            clip = None if full else CLIP_CHARS
            screen.line(*entry(event, timeline.offset_us(event), clip=clip))
    return ExitCode.OK
