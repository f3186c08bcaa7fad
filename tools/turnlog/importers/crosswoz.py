"""CrossWOZ: a JSON object whose members are dialogues, `{id: {goal, messages, ...}}`.

`usr` becomes role user and `sys` role assistant; the role as written, dialogue acts and states are
the event's metadata, the dialogue without its messages (worker ids, goals, task description, type)
is the session's. The member's key is the session's name.
"""

from __future__ import annotations

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
from turnlog.importers.records import Record, document_records, sessions

_ROLES: Final = {"usr": "user", "sys": "assistant"}


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The dialogues of one file."""
    names = Names(path)

    def identify(record: Record) -> str:
        return names.give(record.key, record.number)

    return sessions(path, document_records(path, members=True), identify, _parse)


def _parse(name: str, dialogue: dict[str, Any]) -> ParsedSession:
    turns = objects(field(dialogue, "messages", list, "the dialogue"), "message")
    events = [_event(turn, f"message {number}") for number, turn in enumerate(turns)]
    return ParsedSession(name, events, metadata=without(dialogue, "messages"))


def _event(turn: dict[str, Any], what: str) -> ParsedEvent:
    role = field(turn, "role", str, what)
    if role not in _ROLES:
        raise BadRecordError(f"{what} has the unknown role {role!a}")
    body = {"role": _ROLES[role], "content": field(turn, "content", str, what)}
    return ParsedEvent("message", body, metadata=without(turn, "content"))
