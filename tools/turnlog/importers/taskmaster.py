"""Taskmaster: a JSON list of conversations, `{conversation_id, ..., utterances}`.

The speakers `user` and `assistant` (in older volumes `USER` and `ASSISTANT`) are the roles; the
speaker as written, index, segments and annotations are the event's metadata, the conversation
without its utterances (vertical, scenario, instructions) is the session's.
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

_ROLES: Final = frozenset({"user", "assistant"})


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The conversations of one file."""
    names = Names(path)

    def identify(record: Record) -> str:
        own = field(record.value, "conversation_id", str, "the conversation")
        return names.give(own, record.number)

    return sessions(path, document_records(path), identify, _parse)


def _parse(name: str, conversation: dict[str, Any]) -> ParsedSession:
    turns = objects(field(conversation, "utterances", list, "the conversation"), "utterance")
    events = [_event(turn, f"utterance {number}") for number, turn in enumerate(turns)]
    return ParsedSession(name, events, metadata=without(conversation, "utterances"))


def _event(turn: dict[str, Any], what: str) -> ParsedEvent:
    speaker = field(turn, "speaker", str, what)
    role = speaker.lower()
    if role not in _ROLES:
        raise BadRecordError(f"{what} has the unknown speaker {speaker!a}")
    body = {"role": role, "content": field(turn, "text", str, what)}
    return ParsedEvent("message", body, metadata=without(turn, "text"))
