"""LibreChat and Chatbot UI: exports of one conversation, or of all.

LibreChat's `messages` either hold their `children`, or name their `parentMessageId`; the first is a
tree told twice. A message's body is `role` and `content`, its `text`; the rest is metadata, except
for the children. Its tokens are `tokenCount`. Chatbot UI's `history` has conversations whose
messages follow each other and are bodies as they stand.
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
from turnlog.importers.times import moment_us
from turnlog.importers.tree import Node, grow, id_of, key_of

_NO_PARENT: Final = "00000000-0000-0000-0000-000000000000"
_TOKENS_MAX: Final = 2**31 - 1


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """LibreChat's conversations of one file."""
    names = Names(path)

    def identify(record: Record) -> str:
        own = record.value.get("conversationId")
        return names.give(own if isinstance(own, str) and own else None, record.number)

    return sessions(path, document_records(path), identify, _parse)


def _parse(name: str, chat: dict[str, Any]) -> ParsedSession:
    messages = objects(field(chat, "messages", list, "the conversation"), "message")
    tree = grow(list(_nodes(messages)))
    title = chat.get("title")
    return ParsedSession(
        name,
        tree.events,
        title=title if isinstance(title, str) else None,
        metadata=without(chat, "messages") or None,
        mends=tree.mends,
        is_foreign=True,
    )


def _nodes(messages: list[dict[str, Any]]) -> Iterator[Node]:
    """The messages, parents first; not by recursion, as a file may nest at will."""
    waiting: list[tuple[dict[str, Any], str | None]] = [(each, None) for each in messages[::-1]]
    while waiting:
        message, above = waiting.pop()
        key = key_of(message.get("messageId"))
        parent = key_of(message.get("parentMessageId"))
        if parent == _NO_PARENT:
            parent = None
        yield Node(_event(message), key, parent if above is None else above)
        children = message.get("children")
        if isinstance(children, list):
            waiting += [(each, key) for each in objects(children, "child")[::-1]]


def _event(message: dict[str, Any]) -> ParsedEvent:
    role = "user" if message.get("isCreatedByUser") is True else "assistant"
    tokens = message.get("tokenCount")
    is_count = type(tokens) is int and 0 <= tokens <= _TOKENS_MAX
    return ParsedEvent(
        "message",
        {"role": role, "content": message.get("text")},
        without(message, "text", "children") or None,
        id=id_of(message.get("messageId")),
        time_us=moment_us(message.get("createdAt")),
        tokens=tokens if is_count else None,
    )


def read_chatbot_ui(path: Path) -> Iterator[ParsedSession | Damage]:
    """Chatbot UI's conversations of one file."""
    names = Names(path)
    for record in document_records(path):
        if isinstance(record, Damage):
            yield record
            continue
        value = record.value
        chats = value.get("history") if isinstance(value, dict) else None
        if not isinstance(chats, list):
            yield Damage(str(path), record.first_line, None, "the file has no 'history'")
            continue
        beside = without(value, "history")
        for number, chat in enumerate(chats):
            name = None
            try:
                if not isinstance(chat, dict):
                    raise BadRecordError(f"a {type(chat).__name__} is no conversation")
                own = chat.get("id")
                name = names.give(own if isinstance(own, str) and own else None, number)
                session = _flat(name, chat)
            except BadRecordError as error:
                yield Damage(str(path), record.first_line, name, error.reason)
                continue
            if beside:  # what the file says of no conversation goes with the first one
                session.metadata = {**(session.metadata or {}), "export": beside}
                beside = {}
            session.lines = (record.first_line, record.last_line)
            yield session


def _flat(name: str, chat: dict[str, Any]) -> ParsedSession:
    messages = objects(field(chat, "messages", list, "the conversation"), "message")
    for number, message in enumerate(messages):
        field(message, "role", str, f"message {number}")
    title = chat.get("name")
    return ParsedSession(
        name,
        [ParsedEvent("message", message) for message in messages],
        title=title if isinstance(title, str) else None,
        metadata=without(chat, "messages") or None,
    )
