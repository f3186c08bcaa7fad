"""Bytes written per event must not grow with the length of a session.

Counted is ``wchar`` of ``/proc/self/io``: all that this process hands to the kernel, merging and
cutting included, whether or not the disk has seen it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import cbor2

from bench.fill import fill
from bench.harness import (
    RefusedError,
    Report,
    Settings,
    even_start,
    fresh_directory,
    progress,
    significant,
)
from bench.targets import Result
from bench.workloads import Message, chat_messages, session_names
from engine import Store

FIGURES: Final = ("bytes_flat",)
LONG_EVENTS: Final = 100_000  # of one session
SHORT_EVENTS: Final = 1_000
COMMIT_EVENTS: Final = 80  # each commit's: live sessions times a divisor of both lengths
_LIVE_SESSIONS: Final = 8  # at any moment, on both sides: only their length differs
_LIVE_SESSIONS_QUICK: Final = 2
_WARM_UP_EVENTS: Final = 8_192  # seals more than the 1 MiB that trains a dictionary
_DISTINCT_MESSAGES: Final = 50_000
assert COMMIT_EVENTS >= 64
assert SHORT_EVENTS % (COMMIT_EVENTS // _LIVE_SESSIONS) == 0
assert SHORT_EVENTS % (COMMIT_EVENTS // _LIVE_SESSIONS_QUICK) == 0
assert LONG_EVENTS % SHORT_EVENTS == 0
_IO: Final = Path("/proc/self/io")


@dataclass(frozen=True, slots=True)
class Written:
    """What one side wrote, in bytes per event.

    Attributes:
        raw: The bodies alone, encoded.
        written: Handed to the kernel.
        on_disk: What the store's files take, warm-up included.
    """

    raw: float
    written: float
    on_disk: float


def run(settings: Settings, report: Report) -> None:
    """Write the same messages as a few long sessions and as many short ones."""
    if not settings.wants("bytes_flat"):
        return
    live = _LIVE_SESSIONS_QUICK if settings.quick else _LIVE_SESSIONS
    messages = chat_messages(_DISTINCT_MESSAGES)
    sides: dict[str, Written] = {}
    for side, length in (("short", SHORT_EVENTS), ("long", LONG_EVENTS)):
        progress(f"bytes_flat: sessions of {length:,} events")
        even_start()
        sides[side] = _write(settings, messages, live, length)
    ratio = sides["long"].written / sides["short"].written
    report.figures["bytes_flat"] = {
        "unit": "bytes/event",
        "events": live * LONG_EVENTS,
        "events_per_commit": COMMIT_EVENTS,
        "live_sessions": live,
        "ratio": significant(ratio),
    } | {
        f"{side}_{name}": significant(getattr(written, name))
        for side, written in sides.items()
        for name in ("raw", "written", "on_disk")
    }
    report.results.append(Result("bytes_flat", ratio))


def _write(settings: Settings, messages: Sequence[Message], live: int, length: int) -> Written:
    """Write ``live * LONG_EVENTS`` events, always to ``live`` sessions that end at ``length``."""
    with fresh_directory(settings) as directory:
        path = directory / "store"
        with Store.open(path) as store:
            fill(
                store,
                session_names(live),
                list(islice(cycle(range(live)), _WARM_UP_EVENTS)),
                messages,
            )
            before = written_bytes()
            message = cycle(messages)
            for wave in range(LONG_EVENTS // length):
                sessions = [store.session(f"wave-{wave}-{number}") for number in range(live)]
                share = COMMIT_EVENTS // live
                for _ in range(length // share):
                    parts = [each.draft(list(islice(message, share))) for each in sessions]
                    store.append_batch(parts).result()
            store.flush()
            written = written_bytes() - before
        on_disk = sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())
    events = live * LONG_EVENTS
    raw = sum(len(cbor2.dumps(each)) for each in islice(cycle(messages), events))
    return Written(raw / events, written / events, on_disk / (events + _WARM_UP_EVENTS))


def written_bytes() -> int:
    """What this process has handed to the kernel so far."""
    if not _IO.exists():
        raise RefusedError(f"bytes written need {_IO}, which only Linux has")
    for line in _IO.read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "wchar":
            return int(value)
    raise RefusedError(f"{_IO} has no wchar; the kernel was built without I/O accounting")
