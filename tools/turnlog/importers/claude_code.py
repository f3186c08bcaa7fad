"""Claude Code: transcripts, one record a line; `parentUuid` makes a tree of them.

A file is a session: `<sessionId>.jsonl` has the file's name, a subagent's `agent-<id>.jsonl` that
name within its session's, `<sessionId>/agent-<id>`. Records of one file may name several sessions
(one that was resumed copies what it goes on from); they are one tree all the same.

A record with a `uuid` is an event and follows its `parentUuid`. Its message is the event's body as
it stands, of kind `message`; its `usage` is an event of kind `usage` (`used`), what else the record
says, the same usage told again among it, is the metadata. The message
that begins a compacted context (`isCompactSummary`) is of kind `compaction`, the record before it
that marks the place follows its `logicalParentUuid`, and any other record without a message is of
kind `event` with the whole record as body. Sidechains are branches with a root of their own.
Records without a `uuid` (summaries, snapshots of files, queues, a workflow's `journal.jsonl`) are
no part of the tree: kind `annotation`, beside the history.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from turnlog.importers.model import (
    NO_TYPE,
    BadRecordError,
    Damage,
    Mend,
    ParsedEvent,
    ParsedSession,
    check_name,
    compaction,
    split_large,
    without,
)
from turnlog.importers.records import line_records
from turnlog.importers.times import iso_us
from turnlog.importers.tree import Node, grow, id_of, key_of
from turnlog.importers.used import Told, count_of, total_of

_ABOUT: Final = ("sessionId", "agentId", "cwd", "gitBranch", "version")
_JOURNAL: Final = "journal"
_AGENT: Final = "agent-"
_LARGE: Final = "beside"  # in a body, what is too large for metadata


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The session of one file."""
    nodes: list[Node] = []
    bad: list[Mend] = []
    told = Told()
    last_line = 0
    for record in line_records(path):
        if isinstance(record, Damage):
            line, reason = record.line, record.reason
        else:
            line = record.first_line
            reason = "" if _is_record(record.value) else NO_TYPE
        if line is None:
            yield Damage(str(path), None, None, reason)
        elif isinstance(record, Damage) or reason:
            bad.append(Mend("record", line, f"{reason}; the line is left out"))
        else:
            nodes.append(_node(record.value, line, told))
            last_line = record.last_line
    if not nodes:
        for mend in bad:
            yield Damage(str(path), mend.line, None, mend.reason)
        return
    first = next((_record(node) for node in nodes if node.key is not None), {})
    try:
        name = _name(path, first)
    except BadRecordError as error:
        yield Damage(str(path), None, None, error.reason)
        return
    tree = grow(nodes)
    for event in tree.events:
        if event.kind == "compaction":
            event.body["data"] |= _through(event)
    about = {key: first[key] for key in _ABOUT if first.get(key) is not None}
    yield ParsedSession(
        name,
        tree.events,
        metadata=about or None,
        lines=(nodes[0].line or 1, last_line),
        event_lines=tree.lines,
        mends=sorted([*bad, *tree.mends], key=lambda mend: mend.line or 0),
        is_foreign=True,
    )


def _name(path: Path, first: dict[str, Any]) -> str:
    own = _text_of(path.stem)
    above = first.get("sessionId")
    if own == _JOURNAL:  # each workflow has one
        own = f"{_text_of(Path(os.path.abspath(path)).parent.name)}/{own}"
    elif own.startswith(_AGENT) and isinstance(above, str) and above:
        own = f"{above}/{own}"
    check_name(own, "session name")
    return own


def _text_of(name: str) -> str:
    # A file name may hold bytes that are no UTF-8; a session name may not.
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _is_record(value: dict[str, Any]) -> bool:
    return isinstance(value.get("type"), str) or value.get("uuid") is not None


def _record(node: Node) -> dict[str, Any]:
    """What a node's event says of the record, beside its message."""
    event = node.event
    return {**(event.body if event.kind == "event" else {}), **(event.metadata or {})}


def _node(record: dict[str, Any], line: int, told: Told) -> Node:
    time_us = iso_us(record.get("timestamp"))
    key = key_of(record.get("uuid"))
    if key is None:
        event = ParsedEvent("annotation", record, time_us=time_us)
        return Node(event, line=line, is_beside=True)
    parent = record.get("parentUuid")
    if parent is None:
        parent = record.get("logicalParentUuid")
    used = _used(record.get("message"), told)
    event = _event(record, is_counted=used is not None)
    event.time_us = time_us
    event.id = id_of(record.get("uuid"))
    return Node(event, key, key_of(parent), line, used=used)


def _used(message: Any, told: Told) -> ParsedEvent | None:
    usage = message.get("usage") if isinstance(message, dict) else None
    if not isinstance(usage, dict) or not isinstance(message.get("role"), str):
        return None
    cached = count_of(usage, "cache_read_input_tokens")
    written = count_of(usage, "cache_creation_input_tokens")
    counts = {
        "input_tokens": total_of(count_of(usage, "input_tokens"), cached, written),
        "output_tokens": count_of(usage, "output_tokens"),
        "cached_tokens": cached,
        "cache_write_tokens": written,
    }
    return told.event(counts, answer=message.get("id"), model=message.get("model"), extra=usage)


def _event(record: dict[str, Any], *, is_counted: bool) -> ParsedEvent:
    message = record.get("message")
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return ParsedEvent("event", record)
    rest = without(record, "message")
    body = without(message, "usage")
    if "usage" in message and not is_counted:
        rest["usage"] = message["usage"]
    text = _text(message.get("content"))
    if record.get("isCompactSummary") is True and text:
        rest["message"] = body  # its shape cannot be told from the summary alone
        metadata, large = split_large(rest)
        return ParsedEvent("compaction", compaction(text, None) | large, metadata)
    metadata, large = split_large(rest)
    if large:
        body[_LARGE] = large
    request = id_of(record.get("requestId"))
    return ParsedEvent("message", body, metadata, request_id=request)


def _through(event: ParsedEvent) -> dict[str, int]:
    """All that came before a compaction's summary is left out of the view."""
    return {} if event.parent is None or event.parent < 0 else {"through": event.parent}


def _text(content: object) -> str:
    """The text of a message's content, a text or blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return "\n".join([text for text in texts if isinstance(text, str)])
