"""OpenHands: evaluation outputs, one run a line with its `history` of actions and observations.

A run is a session named by its instance or issue; what stands beside the history is its metadata.
Events follow each other as they stand. Messages, and the system's, are of kind `message` with
`role` and `content`; anything else is of kind `event` with the record as body. `id` and `cause`,
which action an observation answers, count within one run and stay where they are. Usage that a
model's response tells, and what the run's `metrics` add up to, are events of kind `usage` (`used`).
Times name no zone and are read as UTC.
Histories of the older layout are pairs of an action and its observation.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any, Final

from turnlog.importers.model import (
    BadRecordError,
    Damage,
    Names,
    ParsedEvent,
    ParsedSession,
    field,
    split_large,
    without,
)
from turnlog.importers.records import (
    Record,
    document_records,
    holds_lines,
    line_records,
    sessions,
)
from turnlog.importers.times import iso_us
from turnlog.importers.used import Told, add_used, amount_of, count_of

_ROLES: Final = {"agent": "assistant", "user": "user"}


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The runs of one file."""
    names = Names(path)

    def identify(record: Record) -> str:
        return names.give(_own_name(record.value), record.number)

    records = line_records(path) if holds_lines(path) else document_records(path)
    return sessions(path, records, identify, _parse)


def _own_name(run: dict[str, Any]) -> str | None:
    own = run.get("instance_id")
    issue = run.get("issue")
    if isinstance(issue, dict) and own is None:
        own = f"{issue.get('owner')}/{issue.get('repo')}#{issue.get('number')}"
    return own if isinstance(own, str) and own else None


def _parse(name: str, run: dict[str, Any]) -> ParsedSession:
    told = Told()
    events: list[ParsedEvent] = []
    last: int | None = None
    for each in _flat(field(run, "history", list, "the run")):
        last = len(events)
        events.append(_event(each))
        add_used(events, _used(each, told), last)
    add_used(events, _used_in_all(run.get("metrics"), told), last)
    metadata, large = split_large(without(run, "history"))
    if large:
        events.append(ParsedEvent("annotation", large))
    return ParsedSession(name, events, metadata=metadata)


def _flat(history: list[Any]) -> Iterator[dict[str, Any]]:
    for number, entry in enumerate(history):
        for each in entry if isinstance(entry, list) else [entry]:
            if not isinstance(each, dict):
                raise BadRecordError(f"entry {number} of the history is no object")
            yield each


def _event(record: dict[str, Any]) -> ParsedEvent:
    event = _message(record) or ParsedEvent("event", record)
    event.time_us = iso_us(record.get("timestamp"), UTC)
    return event


def _used(record: dict[str, Any], told: Told) -> ParsedEvent | None:
    """What a model's response says; the observation of its action says it again."""
    response = record.get("tool_call_metadata")
    response = response.get("model_response") if isinstance(response, dict) else None
    usage = response.get("usage") if isinstance(response, dict) else None
    if not isinstance(response, dict) or not isinstance(usage, dict):
        return None
    counts = {
        "input_tokens": count_of(usage, "prompt_tokens"),
        "output_tokens": count_of(usage, "completion_tokens"),
        "cached_tokens": count_of(usage, "prompt_tokens_details", "cached_tokens"),
        "reasoning_tokens": count_of(usage, "completion_tokens_details", "reasoning_tokens"),
    }
    return told.event(counts, answer=response.get("id"), model=response.get("model"), extra=usage)


def _used_in_all(metrics: object, told: Told) -> ParsedEvent | None:
    usage = ("accumulated_token_usage",)
    counts = {
        "input_tokens": count_of(metrics, *usage, "prompt_tokens"),
        "output_tokens": count_of(metrics, *usage, "completion_tokens"),
        "cached_tokens": count_of(metrics, *usage, "cache_read_tokens"),
        "cache_write_tokens": count_of(metrics, *usage, "cache_write_tokens"),
        "cost": amount_of(metrics, "accumulated_cost"),
    }
    return told.event(counts, scope="run_total")


def _message(record: dict[str, Any]) -> ParsedEvent | None:
    action = record.get("action")
    role = "system" if action == "system" else _ROLES.get(str(record.get("source", "user")))
    if action not in ("message", "system") or role is None:
        return None
    arguments = record.get("args")
    if isinstance(arguments, dict) and "content" in arguments:
        rest = {**record, "args": without(arguments, "content")}
        content = arguments["content"]
    elif "content" in record:
        rest, content = without(record, "content"), record["content"]
    else:
        return None
    metadata, large = split_large(rest)
    body = {"role": role, "content": content}
    if large:
        body["beside"] = large
    return ParsedEvent("message", body, metadata)
