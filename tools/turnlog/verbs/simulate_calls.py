"""``turnlog simulate``: fill a store with calls, then prove what it kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from engine import CheckReport, Store
from engine.export import escape
from eventlog.errors import AppendConflictError, CorruptionError
from turnlog import simulation, terminal
from turnlog.dispatch import Line, script
from turnlog.exits import ExitCode
from turnlog.stores import open_to_read, open_to_write, sizes

_LABEL = 15


def run(path: Path, *, calls: int, hours: float, seed: int, prefix: str, as_json: bool) -> ExitCode:
    """Simulate the calls, read them back, check the store, and say what it took."""
    screen = terminal.Screen()

    def name_of(call: int) -> str:
        return f"{prefix}{call:04d}"

    with open_to_write(path) as store:
        _refuse_existing(store, [name_of(call) for call in range(1, calls + 1)], prefix)
        _tell_of_others(store, path)
        with terminal.ProgressBar("simulating", 1.0) as bar:
            tally = asyncio.run(
                simulation.run(
                    store,
                    calls=calls,
                    hours=hours,
                    seed=seed,
                    names=name_of,
                    clock=perf_counter,
                    progress=bar.advance,
                )
            )
    # Closed and opened again: what is read back comes from the disk.
    with open_to_read(path) as store:
        content = _read_back(store, calls=calls, hours=hours, seed=seed, prefix=prefix)
        report = store.check()
        stats = store.stats()
    facts = _facts(tally, report, stats, hours=hours, seed=seed, content=content)
    if as_json:
        screen.data(facts)
    else:
        for label, text in _lines(facts, path):
            screen.line((f"{label:<{_LABEL}}", "bold"), text)
    return ExitCode.OK if report.ok else ExitCode.NEGATIVE


def _refuse_existing(store: Store, names: list[str], prefix: str) -> None:
    taken = [name for name in names if store.session(name).exists]
    if taken:
        raise AppendConflictError(
            f"{len(taken):,} of {terminal.counted(len(names), 'call')} are in the store already, "
            f"{terminal.quote(taken[0])} the first; nothing was written",
            hint=f"Go on with other names, as with --prefix {terminal.quote(f'b-{prefix}')}, or "
            "with a new store; another --seed changes the words, not the names.",
        )


def _tell_of_others(store: Store, path: Path) -> None:
    """Say when the simulated calls come beside sessions that may be real."""
    count = store.stats()["sessions"]
    if count:
        terminal.note(
            f"adding simulated calls to {terminal.quote(str(path))}, "
            f"which holds {terminal.counted(count, 'session')} already"
        )


def _read_back(store: Store, *, calls: int, hours: float, seed: int, prefix: str) -> str:
    """Compare every call with its script.

    Returns:
        A digest of all that was said, equal for equal seeds.

    Raises:
        CorruptionError: A call came back different.
    """

    def everything() -> Iterator[Line]:
        for call in range(1, calls + 1):
            yield from script(seed, call, hours)

    for call in range(1, calls + 1):
        session = store.session(f"{prefix}{call:04d}")
        if simulation.digest_of(session.events()) != simulation.digest_of(
            script(seed, call, hours)
        ):
            raise CorruptionError("came back different", where=f"session {session.name}")
    return simulation.digest_of(everything())


def _facts(
    tally: simulation.Tally,
    report: CheckReport,
    stats: dict[str, Any],
    *,
    hours: float,
    seed: int,
    content: str,
) -> dict[str, Any]:
    latencies = sorted(tally.latencies_us)
    gaps = sorted(tally.gaps_us) or [0]

    return {
        "calls": tally.calls,
        "hours": hours,
        "seed": seed,
        "events": tally.events,
        "turns": tally.turns,
        "tool_calls": tally.tool_calls,
        "interruptions": tally.interruptions,
        "seconds": round(tally.seconds, 3),
        "events_per_second": round(tally.events / tally.seconds),
        "times_real_time": round(hours * 3600 / tally.seconds, 1),
        "ack_p50_us": _at(0.5, latencies),
        "ack_p99_us": _at(0.99, latencies),
        "ack_max_us": latencies[-1],
        "loop_gap_p99_us": _at(0.99, gaps),
        "loop_gap_max_us": gaps[-1],
        "store_events": stats["events"],
        **sizes(stats),
        "json_bytes": tally.line_bytes,
        "json_bytes_per_event": round(tally.line_bytes / tally.events, 1),
        "content": content,
        "check_ok": report.ok,
        "findings": escape([f"{each.where}: {each.message}" for each in report.findings]),
    }


def _at(share: float, ordered: list[int]) -> int:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _lines(facts: dict[str, Any], path: Path) -> Iterator[tuple[str, str]]:
    counted = terminal.counted
    yield (
        "simulated",
        f"{counted(facts['calls'], 'call')} at once over {facts['hours']:g} h, seed "
        f"{facts['seed']}, into {terminal.quote(str(path))}",
    )
    yield (
        "said",
        f"{counted(facts['turns'], 'turn')}, {counted(facts['tool_calls'], 'tool call')}, "
        f"{counted(facts['interruptions'], 'interruption')}: {counted(facts['events'], 'event')}",
    )
    yield (
        "durable",
        f"each event was on disk before its call went on; {facts['seconds']:.1f} s in all, "
        f"{facts['events_per_second']:,} events/s, {facts['times_real_time']:,.0f} times real time",
    )
    yield (
        "append to ack",
        f"p50 {_ms(facts['ack_p50_us'])}, p99 {_ms(facts['ack_p99_us'])}, "
        f"max {_ms(facts['ack_max_us'])}",
    )
    yield (
        "event loop",
        f"late by p99 {_ms(facts['loop_gap_p99_us'])}, max {_ms(facts['loop_gap_max_us'])}, "
        "the simulation's own work included",
    )
    yield (
        "takes",
        f"a data file of {terminal.size(facts['file_bytes'])}, "
        f"{facts['file_bytes_per_event']:,.1f} B for each of the store's "
        f"{counted(facts['store_events'], 'event')}; {terminal.size(facts['used_bytes'])} of it in "
        f"use, {facts['used_bytes_per_event']:,.1f} B an event",
    )
    yield (
        "as JSON lines",
        f"the simulated calls take {terminal.size(facts['json_bytes'])}, "
        f"{facts['json_bytes_per_event']:,.1f} B an event",
    )
    yield (
        "read back",
        f"after closing and opening: every event as it was said; content {facts['content']}",
    )
    yield (
        "check",
        "no findings" if facts["check_ok"] else "; ".join(facts["findings"]),
    )


def _ms(value_us: int) -> str:
    return f"{value_us / 1000:.1f} ms"
