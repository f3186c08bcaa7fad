"""``turnlog simulate``: fill a store with calls, then prove what it kept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from engine import CheckReport, Store
from eventlog.errors import AppendConflictError, CorruptionError
from turnlog import simulation, terminal
from turnlog.dispatch import Line, script
from turnlog.exits import ExitCode
from turnlog.stores import open_to_read, open_to_write

_LABEL = 14


def run(path: Path, *, calls: int, hours: float, seed: int, prefix: str, as_json: bool) -> ExitCode:
    """Simulate the calls, read them back, check the store, and say what it took."""
    screen = terminal.Screen()

    def name_of(call: int) -> str:
        return f"{prefix}{call:04d}"

    with open_to_write(path) as store:
        _refuse_existing(store, [name_of(call) for call in range(1, calls + 1)])
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
        disk = disk_bytes(path)
    facts = _facts(tally, report, disk, hours=hours, seed=seed, content=content)
    if as_json:
        screen.data(facts)
    else:
        for label, text in _lines(facts, path):
            screen.line((f"{label:<{_LABEL}}", "bold"), text)
    return ExitCode.OK if report.ok else ExitCode.NEGATIVE


def disk_bytes(path: Path) -> int:
    """What the files of a store take on disk; sparse parts take nothing."""
    return sum(entry.stat().st_blocks * 512 for entry in os.scandir(path) if entry.is_file())


def _refuse_existing(store: Store, names: list[str]) -> None:
    for name in names:
        if store.session(name).exists:
            raise AppendConflictError(
                f"session {terminal.quote(name)} exists already",
                hint="Take a new store, or name the calls differently with --prefix.",
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
    disk: int,
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
        "disk_bytes": disk,
        "disk_bytes_per_event": round(disk / tally.events, 1),
        "json_bytes": tally.line_bytes,
        "json_bytes_per_event": round(tally.line_bytes / tally.events, 1),
        "content": content,
        "check_ok": report.ok,
        "findings": [f"{each.where}: {each.message}" for each in report.findings],
    }


def _at(share: float, ordered: list[int]) -> int:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _lines(facts: dict[str, Any], path: Path) -> Iterator[tuple[str, str]]:
    store = terminal.quote(str(path))
    yield (
        "simulated",
        f"{facts['calls']} calls at once over {facts['hours']:g} h, seed {facts['seed']}, "
        f"into {store}",
    )
    yield (
        "said",
        f"{facts['turns']:,} turns, {facts['tool_calls']:,} tool calls, "
        f"{facts['interruptions']:,} interruptions: {facts['events']:,} events",
    )
    yield (
        "durable",
        f"every event before its call went on, in {facts['seconds']:.1f} s "
        f"({facts['events_per_second']:,} events/s, "
        f"{facts['times_real_time']:,.0f} times as fast as the calls)",
    )
    yield (
        "ack latency",
        f"p50 {_ms(facts['ack_p50_us'])}, p99 {_ms(facts['ack_p99_us'])}, "
        f"max {_ms(facts['ack_max_us'])}",
    )
    yield (
        "event loop",
        f"late by p99 {_ms(facts['loop_gap_p99_us'])}, max {_ms(facts['loop_gap_max_us'])}",
    )
    yield (
        "on disk",
        f"{terminal.size(facts['disk_bytes'])}, {facts['disk_bytes_per_event']:.0f} bytes an "
        f"event; as JSON lines {terminal.size(facts['json_bytes'])}, "
        f"{facts['json_bytes_per_event']:.0f} an event",
    )
    yield "read back", f"every call word for word; content {facts['content']}"
    yield (
        "check",
        "no findings" if facts["check_ok"] else "; ".join(facts["findings"]),
    )


def _ms(value_us: int) -> str:
    return f"{value_us / 1000:.2f} ms"
