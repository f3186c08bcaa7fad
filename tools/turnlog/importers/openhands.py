"""OpenHands: evaluation outputs, one run a line with its `history` of actions and observations.

A run is a session named by its instance or issue; what stands beside the history is its metadata.
Events follow each other as they stand. Messages, and the system's, are of kind `message` with
`role` and `content`; anything else is of kind `event` with the record as body. `id` and `cause`,
which action an observation answers, count within one run and stay where they are. Usage that a
model's response tells is in the metadata as `usage`. Times name no zone and are read as UTC.
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
    events = [_event(each) for each in _flat(field(run, "history", list, "the run"))]
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
    usage = record.get("tool_call_metadata")
    for key in ("model_response", "usage"):
        usage = usage.get(key) if isinstance(usage, dict) else None
    if isinstance(usage, dict):
        event.metadata = {**(event.metadata or {}), "usage": usage}
    return event


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
