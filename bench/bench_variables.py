"""Bytes written per event of a session with many variables must stay those of a plain session.

Counted is ``wchar``, as by ``bench_size``. A store that rewrites a snapshot of all variables shows
here; one that writes the rows that changed does not.
"""

from __future__ import annotations

from itertools import cycle
from typing import Final

from bench.bench_size import written_bytes
from bench.harness import Report, Settings, even_start, fresh_directory, progress, significant
from bench.targets import Result
from bench.workloads import chat_messages
from engine import Store

FIGURES: Final = ("variables_vs_plain",)
_VARIABLES: Final = 5_000
_EVENTS: Final = 100_000
_EVENTS_QUICK: Final = 40_000
_COMMIT_EVENTS: Final = 100  # one of them, on one side, changes a variable
_WARM_UP_COMMITS: Final = 100
_DISTINCT_MESSAGES: Final = 10_000


def run(settings: Settings, report: Report) -> None:
    """Append the same messages to a session with variables and to one without."""
    if not settings.wants("variables_vs_plain"):
        return
    events = _EVENTS_QUICK if settings.quick else _EVENTS
    progress(f"variables_vs_plain: {events:,} events")
    even_start()
    plain = _write(settings, events, 0)
    even_start()
    many = _write(settings, events, _VARIABLES)
    report.figures["variables_vs_plain"] = {
        "unit": "bytes/event",
        "events": events,
        "events_per_commit": _COMMIT_EVENTS,
        "variables": _VARIABLES,
        "plain": significant(plain),
        "with_variables": significant(many),
        "ratio": significant(many / plain),
    }
    report.results.append(Result("variables_vs_plain", many / plain))


def _write(settings: Settings, events: int, variables: int) -> float:
    """Bytes written an event, sealing and merging included, from the first changes on."""
    message = cycle(chat_messages(_DISTINCT_MESSAGES)).__next__
    with fresh_directory(settings) as directory, Store.open(directory / "store") as store:
        call = store.session("call")
        if variables:
            call.update_state({f"key-{each}": _value(each) for each in range(variables)})
        for number in range(_WARM_UP_COMMITS + events // _COMMIT_EVENTS):
            if number == _WARM_UP_COMMITS:
                store.flush()
                before = written_bytes()
            part = call.draft(
                [message() for _ in range(_COMMIT_EVENTS - bool(variables))],
            )
            if variables:
                key = f"key-{number * 7 % variables}"
                call.update_state({key: _value(number)})
            store.append_batch([part]).result()
        store.flush()
        return (written_bytes() - before) / events


def _value(number: int) -> dict[str, object]:
    return {"text": "x" * 60, "number": number}
