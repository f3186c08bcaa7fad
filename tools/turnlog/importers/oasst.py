"""Open Assistant: message trees, nested or flat.

Nested, a record is a tree: its `prompt` with `replies` below, the session is named by its
`message_tree_id`. Flat, a record is a message that names its parent; messages that hang together
are a session, named by its first one. The body is `role` (a prompter is the user) and `content`;
everything else is metadata, the role as it was among it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain
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
from turnlog.importers.times import iso_us
from turnlog.importers.tree import Node, grow, id_of, key_of

_ROLES: Final = {"prompter": "user"}
_IDS: Final = ("message_id", "user_message_id")
_PARENTS: Final = ("parent_id", "parent_message_id")


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The trees of one file."""
    names = Names(path)

    def identify(record: Record) -> str:
        own = record.value.get("message_tree_id")
        return names.give(own if isinstance(own, str) and own else None, record.number)

    records = line_records(path) if holds_lines(path) else document_records(path)
    for record in records:
        if isinstance(record, Damage):
            yield record
            continue
        # The first record that is of one layout or the other decides which one the file has.
        rest = chain([record], records)
        if isinstance(record.value, dict) and "prompt" in record.value:
            yield from sessions(path, rest, identify, _parse)
        elif isinstance(record.value, dict) and "text" in record.value:
            yield from _flat(path, names, rest)
        else:
            reason = "the record has no 'prompt', as trees have, and no 'text', as messages have"
            yield Damage(str(path), record.first_line, None, reason)


def _parse(name: str, record: dict[str, Any]) -> ParsedSession:
    prompt = field(record, "prompt", dict, "the tree")
    tree = grow(list(_nodes(prompt)))
    return ParsedSession(
        name,
        tree.events,
        metadata=without(record, "prompt") or None,
        mends=tree.mends,
        is_foreign=True,
    )


def _nodes(prompt: dict[str, Any]) -> Iterator[Node]:
    waiting: list[tuple[dict[str, Any], Hashable | None]] = [(prompt, None)]
    while waiting:
        message, above = waiting.pop()
        node = _node(message, "message")
        node.parent = above
        yield node
        replies = message.get("replies")
        if replies is not None:
            below = objects(field(message, "replies", list, "the message"), "reply")
            waiting += [(reply, node.key) for reply in below[::-1]]


def _node(message: dict[str, Any], what: str, line: int | None = None) -> Node:
    own = next((message[key] for key in _IDS if message.get(key) is not None), None)
    parent = next((message[key] for key in _PARENTS if message.get(key) is not None), None)
    role = field(message, "role", str, what)
    text = field(message, "text", str, what)
    event = ParsedEvent(
        "message",
        {"role": _ROLES.get(role, role), "content": text},
        without(message, "text", "replies"),
        id=id_of(own),
        time_us=iso_us(message.get("created_date")),
    )
    return Node(event, key_of(own), key_of(parent), line)


def _flat(
    path: Path, names: Names, records: Iterator[Record | Damage]
) -> Iterator[ParsedSession | Damage]:
    nodes: list[Node] = []
    for record in records:
        if isinstance(record, Damage):
            yield record
            continue
        try:
            if not isinstance(record.value, dict):
                raise BadRecordError(f"a {type(record.value).__name__} is no message")
            nodes.append(_node(record.value, f"message {record.number}", record.first_line))
        except BadRecordError as error:
            yield Damage(str(path), record.first_line, None, error.reason)
    for number, group in enumerate(_together(nodes)):
        root = next((node for node in group if node.parent is None), group[0])
        try:
            name = names.give(root.key if isinstance(root.key, str) else None, number)
        except BadRecordError as error:
            yield Damage(str(path), root.line, None, error.reason)
            continue
        tree = grow(group)
        lines = [node.line or 1 for node in group]
        yield ParsedSession(
            name,
            tree.events,
            lines=(lines[0], lines[-1]),
            event_lines=tree.lines,
            mends=tree.mends,
            is_foreign=True,
        )


def _together(nodes: list[Node]) -> Iterator[list[Node]]:
    """The nodes that hang together, in the order of their first ones."""
    above: dict[Hashable, Hashable] = {}

    def top(key: Hashable) -> Hashable:
        while (next_one := above.setdefault(key, key)) != key:
            above[key] = above[next_one]  # halves the way of whoever comes next
            key = next_one
        return key

    for place, node in enumerate(nodes):
        own: Hashable = ("no id", place) if node.key is None else node.key
        if node.parent is not None:
            above[top(own)] = top(node.parent)
    groups: dict[Hashable, list[Node]] = {}
    for place, node in enumerate(nodes):
        own = ("no id", place) if node.key is None else node.key
        groups.setdefault(top(own), []).append(node)
    yield from groups.values()
