"""tau-bench: trajectories, and the few-shot transcripts that are published beside them.

A trajectory is `{task_id, reward, info, traj, trial}`, in a JSON list or one a line. Its messages
are chat messages already, so each is the body of an event as it stands; the rest is the session's
metadata, and the simulated user of the task is the session's user. Tasks are tried several times
and repeat between files, so names are `<file stem>/<number>`.

A few-shot line is `{"messages_display": text}`: a chat flattened to `role: content` lines. It is
cut before each line that begins with a role; tool calls were lost when it was made, and the `None`
that an assistant's message without text left there is read as null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from turnlog.importers.model import (
    BadRecordError,
    Damage,
    Names,
    ParsedEvent,
    ParsedSession,
    field,
    objects,
    without,
)
from turnlog.importers.records import (
    Record,
    document_records,
    holds_lines,
    line_records,
    sessions,
)

_FLAT: Final = "messages_display"
_CUT: Final = re.compile(r"\n(?=(?:system|user|assistant|tool): )")
_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The trajectories or few-shot transcripts of one file."""
    names = Names(path)

    def identify(record: Record) -> str:
        return names.give(None, record.number)

    records = line_records(path) if holds_lines(path) else document_records(path)
    return sessions(path, records, identify, _parse)


def _parse(name: str, record: dict[str, Any]) -> ParsedSession:
    if _FLAT in record and "traj" not in record:
        flat = field(record, _FLAT, str, "the record")
        return ParsedSession(name, _flat_events(flat), metadata=without(record, _FLAT) or None)
    messages = objects(field(record, "traj", list, "the record"), "message")
    for number, message in enumerate(messages):
        field(message, "role", str, f"message {number}")
    events = [ParsedEvent("message", message) for message in messages]
    return ParsedSession(name, events, user_id=_user_id(record), metadata=without(record, "traj"))


def _user_id(record: dict[str, Any]) -> str | None:
    info = record.get("info")
    task = info.get("task") if isinstance(info, dict) else None
    user_id = task.get("user_id") if isinstance(task, dict) else None
    return user_id if isinstance(user_id, str) and user_id else None


def _flat_events(flat: str) -> list[ParsedEvent]:
    events = []
    for piece in _CUT.split(flat):
        role, colon, text = piece.partition(": ")
        if not colon or role not in _ROLES:
            raise BadRecordError(f"{_FLAT!r} does not begin with a role")
        content = None if role == "assistant" and text == "None" else text
        events.append(ParsedEvent("message", {"role": role, "content": content}))
    return events
