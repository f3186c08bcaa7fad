"""Chats in the shape of the OpenAI API.

Four layouts are told apart by what the file holds:

- JSON Lines of `{"messages": [...]}`, as for fine-tuning: a session a line;
- JSON Lines of messages `{"role": ..., "content": ...}`: the whole file is one session;
- a JSON list of messages: one session;
- a JSON object with `messages`, or a list of such objects: a session each.

A message is the body of its event as it stands, tool calls and tool results included. What else a
session's object holds is the session's metadata. `created_at`, in seconds or as ISO 8601 text with
its zone, is the event's given time. Names are `<file stem>/<number>`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

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
from turnlog.importers.times import moment_us


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The sessions of one file."""
    names = Names(path)

    def identify(record: Record) -> str:
        return names.give(None, record.number)

    records = line_records(path) if holds_lines(path) else document_records(path)
    is_broken = False
    for record in records:
        if isinstance(record, Damage):
            is_broken = True
            yield record
            continue
        # The first sound record decides which layout the file has.
        rest = chain([record], records)
        if _is_message(record.value):
            yield from _one_session(path, names, rest, is_broken)
        else:
            yield from sessions(path, rest, identify, _parse)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and "messages" not in value


def _parse(name: str, chat: dict[str, Any]) -> ParsedSession:
    messages = objects(field(chat, "messages", list, "the chat"), "message")
    events = [_event(message, f"message {number}") for number, message in enumerate(messages)]
    return ParsedSession(name, events, metadata=without(chat, "messages") or None)


def _one_session(
    path: Path, names: Names, records: Iterator[Record | Damage], is_broken: bool
) -> Iterator[ParsedSession | Damage]:
    """All records as the messages of one session; one broken message breaks it."""
    try:
        name = names.give(None, 0)
    except BadRecordError as error:
        yield Damage(str(path), None, None, error.reason)
        return
    events: list[ParsedEvent] = []
    first = last = 0
    for record in records:
        if isinstance(record, Damage):
            record.session = name
            is_broken = True
            yield record
            continue
        try:
            if not _is_message(record.value):
                raise BadRecordError("the record is no message, as the others of the file are")
            event = _event(record.value, f"message {record.number}")
        except BadRecordError as error:
            is_broken = True
            yield Damage(str(path), record.first_line, name, error.reason)
            continue
        first = first or record.first_line
        last = record.last_line
        if is_broken:
            events.clear()
        else:
            events.append(event)
    if not is_broken:
        yield ParsedSession(name, events, lines=(first, last))


def _event(message: dict[str, Any], what: str) -> ParsedEvent:
    field(message, "role", str, what)
    return ParsedEvent("message", message, time_us=moment_us(message.get("created_at")))
