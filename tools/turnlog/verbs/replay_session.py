"""``turnlog replay``: a session again, on its own time line."""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice
from pathlib import Path
from time import sleep

from engine import Event
from engine.export import encode_line, line_mapping
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.moments import moment_of
from turnlog.paths import path_of
from turnlog.stores import existing_session, open_to_read
from turnlog.transcript import FIRST_EVENTS, Timeline, entry, heading, offset_text


def run(
    path: Path,
    name: str,
    *,
    speed: float,
    limit: int | None,
    at: str | None,
    branch: str | None,
    leaf: int | None,
    tenant: str,
    as_json: bool,
) -> ExitCode:
    """Write the session's events in order, waiting between them when a speed is given."""
    screen = terminal.Screen()
    with open_to_read(path) as store:
        session = existing_session(store, tenant, name)
        info = session.info() if at is None else moment_of(session, at).info()
        assert info is not None
        path_to = path_of(session, branch, leaf, at=at is not None)
        first = session.events() if path_to is None else path_to.events()
        timeline = Timeline(islice(first, FIRST_EVENTS))
        if not as_json:
            screen.line(("  ".join([*heading(info), timeline.start_text()]), "bold"))
        digest = blake2b(digest_size=16)
        count = 0
        lasted_us = 0
        waited = _Pace(speed)
        events = session.events(last=info.last_sequence) if path_to is None else path_to.events()
        for event in islice(events, limit):
            offset_us = timeline.offset_us(event)
            lasted_us = max(lasted_us, offset_us)
            line = _line(event, offset_us)
            digest.update(encode_line(line).encode() + b"\n")
            count += 1
            if speed:
                screen.flush()
                waited.until(offset_us)
            if as_json:
                screen.data(line)
            else:
                screen.line(*entry(event, offset_us, clip=None))
        if not as_json:
            counts = terminal.counted(count, "event")
            if path_to is not None:
                counts = f"{count:,} of {terminal.counted(info.event_count, 'event')}"
            elif limit is not None and count < info.event_count:
                counts = f"the first {count:,} of {terminal.counted(info.event_count, 'event')}"
            lasted = offset_text(lasted_us).removeprefix("+")
            screen.line((f"{counts} in {lasted}, content {digest.hexdigest()}", "bold"))
    return ExitCode.OK


def _line(event: Event, offset_us: int) -> dict[str, object]:
    """The event as replay data: its place on the time line for the time of recording."""
    line = line_mapping(event)
    line.pop("recorded_us", None)
    return {"offset_us": offset_us, **line}


class _Pace:
    """Waits as long as the time line says, at a speed; it never waits for a time that went back."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._reached_us = 0

    def until(self, offset_us: int) -> None:
        if offset_us > self._reached_us:
            sleep((offset_us - self._reached_us) / 1_000_000 / self._speed)
            self._reached_us = offset_us
