"""Making everything derived anew from the log, against ``cbor2.loads`` of the same bodies.

One event in ten has an idempotency key and one a caller's id, and one in 25 sets a variable, so
that each table has rows to make; ``plain`` in the figures is the same without any of these.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import cbor2

from bench.fill import fill
from bench.harness import (
    RefusedError,
    Report,
    Settings,
    comparison,
    fresh_directory,
    interleave,
    paired_ratio,
    progress,
)
from bench.targets import Result
from bench.workloads import Message, chat_messages, interleaving, session_names
from engine import Store

FIGURES: Final = ("rebuild_vs_loads",)
_SESSIONS: Final = 1_000
_EVENTS: Final = 300_000
_EVENTS_QUICK: Final = 100_000
_KEYED_EVERY: Final = 10
_VARIABLE_EVERY: Final = 25
_DISTINCT_MESSAGES: Final = 20_000
_WAIT_S: Final = 60.0


def run(settings: Settings, report: Report) -> None:
    """Rebuild a store of marked events, then one of plain ones."""
    if not settings.wants("rebuild_vs_loads"):
        return
    events = _EVENTS_QUICK if settings.quick else _EVENTS
    messages = chat_messages(_DISTINCT_MESSAGES)
    for kind in ("marked", "plain"):
        progress(f"rebuild_vs_loads: {events:,} events, {kind}")
        with fresh_directory(settings) as directory:
            path = directory / "store"
            with Store.open(path) as store:
                if kind == "plain":
                    order = interleaving(_SESSIONS, events)
                    fill(store, session_names(_SESSIONS), order, messages)
                else:
                    _fill_marked(store, events, messages)
            ours, loads = _measure(path, events, messages, 2 if settings.quick else 4)
        name = "rebuild_vs_loads" if kind == "marked" else "rebuild_plain"
        report.figures[name] = comparison(ours, loads, unit="events/s") | {
            "events": events,
            "sessions": _SESSIONS,
        }
        if kind == "marked":
            report.results.append(Result(name, paired_ratio(ours, loads)))


def _fill_marked(store: Store, events: int, messages: Sequence[Message]) -> None:
    """As ``fill``, one append an event, with keys, ids and variables."""
    names = session_names(_SESSIONS)
    calls = [store.session(name) for name in names]
    for index, number in enumerate(interleaving(_SESSIONS, events)):
        call, step = calls[number], index // _SESSIONS
        if step % _VARIABLE_EVERY == _VARIABLE_EVERY - 1:
            ack = call.update_state({f"key-{step % 7}": step}, wait=_WAIT_S)
            continue
        ack = call.append(
            messages[index % len(messages)],
            idempotency_key=f"{step}" if step % _KEYED_EVERY == 1 else None,
            id=f"{names[number]}-{step}" if step % _KEYED_EVERY == 2 else None,
            wait=_WAIT_S,
        )
    ack.result()
    store.flush()


def _measure(
    path: Path, events: int, messages: Sequence[Message], rounds: int
) -> tuple[list[float], list[float]]:
    """Events a second of both sides."""
    bodies = [cbor2.dumps(message) for message in messages]
    with Store.open(path, create=False) as store:

        def ours() -> float:
            start = time.perf_counter()
            store.rebuild()
            return events / (time.perf_counter() - start)

        def loads() -> float:
            in_turn = list(islice(cycle(bodies), events))
            start = time.perf_counter()
            for body in in_turn:
                cbor2.loads(body)
            return events / (time.perf_counter() - start)

        values = interleave({"ours": ours, "loads": loads}, rounds)
        if not store.check().ok:
            raise RefusedError("what was made anew is not right; see turnlog check")
    return values["ours"], values["loads"]
