"""Reading everything in global order, bodies decoded, against ``cbor2.loads`` of the same bodies.

One pass over the store, in pieces: a piece of events is read, then the same bodies are decoded from
memory, so that both sides run in turn all the way and nothing of either is kept.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Final

import cbor2

from bench.fill import fill
from bench.harness import (
    RefusedError,
    Report,
    Settings,
    comparison,
    even_start,
    fresh_directory,
    progress,
    significant,
)
from bench.targets import Result
from bench.workloads import Message, chat_messages, interleaving, session_names
from engine import Store

FIGURES: Final = ("read_vs_loads", "read_vs_loads_10k")
_SESSIONS: Final = {"read_vs_loads": 1_000, "read_vs_loads_10k": 10_000}
_EVENTS: Final = 1_000_000
_EVENTS_QUICK: Final = 200_000
_PIECES: Final = 10
_DISTINCT_MESSAGES: Final = 50_000


def run(settings: Settings, report: Report) -> None:
    """Measure each number of interleaved sessions."""
    messages = chat_messages(_DISTINCT_MESSAGES)
    for name in FIGURES:
        if settings.wants(name):
            _measure(settings, report, name, messages)


def _measure(settings: Settings, report: Report, name: str, messages: list[Message]) -> None:
    sessions = _SESSIONS[name]
    events = _EVENTS_QUICK if settings.quick else _EVENTS
    progress(f"{name}: {events:,} events of {sessions:,} sessions")
    bodies = [cbor2.dumps(message) for message in messages]
    piece = events // _PIECES
    ours: list[float] = []
    loads: list[float] = []
    with fresh_directory(settings) as directory:
        path = directory / "store"
        with Store.open(path) as store:
            fill(store, session_names(sessions), interleaving(sessions, events), messages)
        with Store.open(path, create=False) as store:
            source = iter(store.read())
            for number in range(_PIECES):
                even_start()
                start = time.perf_counter()
                body: object = None
                count = 0
                for event in itertools.islice(source, piece):
                    body = event.body
                    count += 1
                ours.append(count / (time.perf_counter() - start))
                last = (number * piece + count - 1) % len(messages)
                if count != piece or body != messages[last]:
                    raise RefusedError("the store did not give back what was appended")
                ours_bodies = [
                    bodies[index % len(bodies)]
                    for index in range(number * piece, (number + 1) * piece)
                ]
                even_start()
                start = time.perf_counter()
                for encoded in ours_bodies:
                    body = cbor2.loads(encoded)
                loads.append(piece / (time.perf_counter() - start))
    # The whole pass counts, slow pieces included: one that pays for a window of many pieces must
    # not drop out as an outlier, as it would from a median.
    ratio = statistics.harmonic_mean(ours) / statistics.harmonic_mean(loads)
    report.figures[name] = comparison(ours, loads, unit="events/s") | {
        "ratio": significant(ratio),
        "events": events,
        "sessions": sessions,
    }
    report.results.append(Result(name, ratio))
