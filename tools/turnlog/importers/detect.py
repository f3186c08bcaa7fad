"""Guess a file's format from what it holds; its name is not looked at."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from eventlog.errors import DamagedInputError
from turnlog.importers.limits import BINARY_BYTES, HEAD_BYTES
from turnlog.importers.records import BINARY, EMPTY, open_file

_TOKEN: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"?(\s*+:)?|[\[\]{}]', re.DOTALL)
_YAML: Final = re.compile(r"^(?:conversations|categories)[ \t]*:", re.MULTILINE)
# A damaged first line must not hide what the others are.
_LINES_TRIED: Final = 16
_TREES: Final[dict[str, tuple[set[str], ...]]] = {
    "claude-code": (
        {"uuid", "parentUuid"},
        {"type", "summary", "leafUuid"},
        {"type", "messageId", "snapshot"},
        {"type", "operation", "sessionId"},
        {"type", "key", "agentId"},
    ),
    "chatgpt": ({"mapping", "title"}, {"mapping", "current_node"}),
    "librechat": ({"conversationId", "messages"},),
    "chatbot-ui": ({"version", "history"},),
    "oasst": (
        {"message_tree_id", "prompt"},
        {"message_id", "parent_id", "text", "role"},
        {"user_message_id", "parent_message_id", "text", "role"},
    ),
    "pi": ({"type", "id", "timestamp", "cwd"},),
    "openhands": ({"history", "instruction"}, {"history", "instance_id"}),
    "swe-agent": ({"trajectory", "history"}, {"trajectory", "environment"}),
}


@dataclass(slots=True)
class _Outline:
    """The first record in a piece of JSON.

    Attributes:
        keys: The record's keys.
        inner: The keys of objects that are its members.
    """

    keys: set[str] = field(default_factory=set)
    inner: set[str] = field(default_factory=set)


def detect(path: Path) -> str:
    """Guess the format of a file.

    Returns:
        A name of `FORMATS`.

    Raises:
        DamagedInputError: The file is empty, binary, or of no known format.
        UsageError: The file cannot be read.
    """
    with open_file(path) as file:
        data = b""
        for size in HEAD_BYTES:
            data += file.read(size - len(data))
            if b"\0" in data[:BINARY_BYTES]:
                raise DamagedInputError(BINARY, file=str(path), hint="Import text files only.")
            found = _guess(data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace"))
            if found is not None:
                return found
            if len(data) < size:
                break
    if not data.strip():
        raise DamagedInputError(EMPTY, file=str(path), hint="There is nothing to import.")
    raise DamagedInputError(
        "the format is not known; name it with --format if it is one of those that can be imported",
        file=str(path),
        hint="`turnlog import --help` lists the formats.",
    )


def _guess(head: str) -> str | None:
    text = head.lstrip()
    if text[:1] in ("{", "["):
        found = _guess_json(_outline(text), text[0])
        if found is not None:
            return found
    elif _YAML.search(head):
        return "chatterbot"
    for line in text.split("\n", _LINES_TRIED)[:_LINES_TRIED]:
        if line.lstrip().startswith("{"):
            found = _guess_json(_outline(line.lstrip()), "{", is_line=True)
            if found is not None:
                return found
    return None


def _guess_json(outline: _Outline, opener: str, *, is_line: bool = False) -> str | None:
    keys = outline.keys
    if opener == "{" and {"session", "sequence", "kind"} <= keys:
        return "jsonl"
    found = _guess_tree(keys)
    if found is not None:
        return found
    if "traj" in keys or "messages_display" in keys:
        return "tau-bench"
    if not is_line:
        if {"dialogue_id", "interlocutors", "utterances"} <= keys:
            return "realpersonachat"
        if {"dialogue_id", "turns"} <= keys:
            return "sgd"
        if {"conversation_id", "utterances"} <= keys:
            return "taskmaster"
        if opener == "{" and {"goal", "messages"} <= outline.inner and "messages" not in keys:
            return "crosswoz"
    if "messages" in keys or "role" in keys:
        return "openai"
    return None


def _guess_tree(keys: set[str]) -> str | None:
    """A format of trees, told by keys that no other has together."""
    for name, sets in _TREES.items():
        for each in sets:
            if each <= keys:
                return name
    return "swe-agent" if keys == {"history"} else None


def _outline(text: str) -> _Outline:
    """The keys of the first record, as far as the text goes.

    The record is the object that the text begins with, or the first element of a list.
    """
    outline = _Outline()
    record_depth = 2 if text[0] == "[" else 1
    depth = 0
    for match in _TOKEN.finditer(text):
        token = text[match.start()]
        if token == '"':
            if match[2] is not None:
                if depth == record_depth:
                    outline.keys.add(match[1])
                elif depth == record_depth + 1:
                    outline.inner.add(match[1])
        elif token in "[{":
            depth += 1
        else:
            depth -= 1
            if depth < record_depth:
                break
    return outline
