"""SWE-agent: a trajectory a file, with the model's `history` and the steps of the agent.

A message of the history is the body of its event as it stands; each follows the one before. The
steps of the `trajectory` say the same again with times and states: kind `annotation`, beside the
history, behind its end. What else the file holds is the session's metadata; the `model_stats` of
its `info` are also an event of kind `usage`. Files of different runs have the same names, so a
session has its folder's name before its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnlog.importers.model import (
    Damage,
    Names,
    ParsedEvent,
    ParsedSession,
    field,
    objects,
    split_large,
    without,
)
from turnlog.importers.records import Record, document_records, sessions
from turnlog.importers.used import Told, add_used, amount_of, count_of


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The trajectory of one file."""
    folder = Path(os.path.abspath(path)).parent.name
    folder = folder.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    stem = path.stem.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    names = Names(path, prefix=f"{folder}/" if folder else "")

    def identify(record: Record) -> str:
        return names.give(stem, record.number)

    return sessions(path, document_records(path), identify, _parse)


def _parse(name: str, record: dict[str, Any]) -> ParsedSession:
    messages = objects(field(record, "history", list, "the trajectory"), "message")
    events = [ParsedEvent(_kind(message), message) for message in messages]
    stats = record.get("info")
    stats = stats.get("model_stats") if isinstance(stats, dict) else None
    add_used(events, _used(stats), len(events) - 1 if events else None)
    steps = record.get("trajectory")
    beside = ["history"]
    if isinstance(steps, list):
        events += [ParsedEvent("annotation", step) for step in steps]
        beside.append("trajectory")
    metadata, large = split_large(without(record, *beside))
    if large:
        events.append(ParsedEvent("annotation", large))
    return ParsedSession(name, events, metadata=metadata)


def _used(stats: object) -> ParsedEvent | None:
    cost = amount_of(stats, "instance_cost")
    counts = {
        "input_tokens": count_of(stats, "tokens_sent"),
        "output_tokens": count_of(stats, "tokens_received"),
        "cost": amount_of(stats, "total_cost") if cost is None else cost,
    }
    return Told().event(counts, scope="run_total")


def _kind(message: dict[str, Any]) -> str:
    return "message" if isinstance(message.get("role"), str) else "event"
