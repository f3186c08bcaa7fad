"""ChatGPT: the `conversations.json` of an export, whose `mapping` makes a tree of nodes.

A conversation is a session with its id as the name. A node's message is an event that follows the
node's parent, in the order of `create_time`; `current_node` is the head. The body is `role` and
`content`: a text with one part is that part, one with several is text blocks, any other content is
a block as it stands. The rest of the message, and what else the node says, is metadata. A node
without a message, which each tree begins with, is an event of kind `event`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnlog.importers.model import (
    Damage,
    Names,
    ParsedEvent,
    ParsedSession,
    field,
    split_large,
    without,
)
from turnlog.importers.records import Record, document_records, sessions
from turnlog.importers.times import seconds_us
from turnlog.importers.tree import Node, grow, id_of, key_of


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The conversations of one file."""
    names = Names(path)

    def identify(record: Record) -> str:
        own = record.value.get("conversation_id", record.value.get("id"))
        return names.give(own if isinstance(own, str) and own else None, record.number)

    return sessions(path, document_records(path), identify, _parse)


def _parse(name: str, chat: dict[str, Any]) -> ParsedSession:
    mapping = field(chat, "mapping", dict, "the conversation")
    parents = _parents(mapping)
    nodes = [_node(key, node, parents) for key, node in mapping.items()]
    nodes.sort(key=lambda node: node.event.time_us or 0)
    tree = grow(nodes)
    tree.move_head(key_of(chat.get("current_node")))
    title = chat.get("title")
    metadata, large = split_large(without(chat, "mapping"))
    if large:
        tree.events.append(ParsedEvent("annotation", large))
    return ParsedSession(
        name,
        tree.events,
        title=title if isinstance(title, str) else None,
        metadata=metadata,
        mends=tree.mends,
        is_foreign=True,
    )


def _parents(mapping: dict[str, Any]) -> dict[str, str]:
    """Parents as their children tell them, for nodes that do not name one."""
    found: dict[str, str] = {}
    for key, node in mapping.items():
        children = node.get("children") if isinstance(node, dict) else None
        for child in children if isinstance(children, list) else ():
            if isinstance(child, str):
                found.setdefault(child, key)
    return found


def _node(key: str, node: Any, parents: dict[str, str]) -> Node:
    if not isinstance(node, dict):
        return Node(ParsedEvent("event", {"id": key, "node": node}, id=id_of(key)), key)
    parent = node["parent"] if "parent" in node else parents.get(key)
    event = _event(node)
    event.id = id_of(key)
    return Node(event, key, key_of(parent))


def _event(node: dict[str, Any]) -> ParsedEvent:
    message = node.get("message")
    author = message.get("author") if isinstance(message, dict) else None
    role = author.get("role") if isinstance(author, dict) else None
    if not isinstance(message, dict) or not isinstance(role, str):
        time_us = seconds_us(message.get("create_time")) if isinstance(message, dict) else None
        return ParsedEvent("event", node, time_us=time_us)
    body = {"role": role, "content": _content(message.get("content"))}
    metadata, large = split_large({**without(node, "message"), **without(message, "content")})
    if large:
        body["beside"] = large
    return ParsedEvent("message", body, metadata, time_us=seconds_us(message.get("create_time")))


def _content(content: Any) -> Any:
    if isinstance(content, dict) and content.keys() == {"content_type", "parts"}:
        parts = content["parts"]
        if content["content_type"] == "text" and isinstance(parts, list):
            if len(parts) == 1 and isinstance(parts[0], str):
                return parts[0]
            if all(isinstance(part, str) for part in parts):
                return [{"type": "text", "text": part} for part in parts]
    return content if content is None or isinstance(content, str) else [content]
