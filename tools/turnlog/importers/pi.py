"""pi: a session a file, one entry a line behind a header; compactions are entries.

The header's id names the session; what else it says is the session's metadata. An entry with an
`id` follows its `parentId`, one of the older layout without ids the entry before it. A message is
the body of its event as it stands, without its `usage`, which is an event of kind `usage` (`used`);
what else the entry says is metadata. Changes of the model, summaries of branches, labels and
entries of extensions have the kinds `model_change`, `summary`, `label` and `custom`, any other
entry is of kind `event`; their body is the entry. A compaction is of kind `compaction`: it leaves
out what comes before the first entry that it keeps (`firstKeptEntryId`, or `firstKeptEntryIndex`,
which counts lines from 0, the header among them).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Final

from turnlog.importers.model import (
    NO_TYPE,
    BadRecordError,
    Damage,
    Mend,
    Names,
    ParsedEvent,
    ParsedSession,
    compaction,
    split_large,
    without,
)
from turnlog.importers.records import line_records
from turnlog.importers.times import iso_us
from turnlog.importers.tree import Node, Tree, grow, id_of, key_of
from turnlog.importers.used import Told, amount_of, count_of, total_of

_KINDS: Final = {
    "model_change": "model_change",
    "branch_summary": "summary",
    "label": "label",
    "custom": "custom",
    "custom_message": "custom",
    "session_info": "metadata",
}


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The session of one file."""
    header: dict[str, Any] = {}
    nodes: list[Node] = []
    bad: list[Mend] = []
    told = Told()
    kept: dict[int, Hashable] = {}  # by place: the first entry that a compaction keeps
    before: Hashable | None = None
    first = last = 0
    for number, record in enumerate(line_records(path)):
        if isinstance(record, Damage):
            line, reason = record.line, record.reason
        else:
            line = record.first_line
            reason = "" if isinstance(record.value.get("type"), str) else NO_TYPE
        if line is None:
            yield Damage(str(path), None, None, reason)
            continue
        if isinstance(record, Damage) or reason:
            bad.append(Mend("record", line, f"{reason}; the line is left out"))
            continue
        entry = record.value
        first, last = first or record.first_line, record.last_line
        if entry.get("type") == "session" and not header and not nodes:
            header = entry
            continue
        own = entry.get("id")
        key: Hashable = number if own is None else key_of(own)
        parent = before if own is None else key_of(entry.get("parentId"))
        if entry.get("type") == "compaction":
            named, index = entry.get("firstKeptEntryId"), entry.get("firstKeptEntryIndex")
            kept[len(nodes)] = index if type(index) is int else key_of(named)
        used = _used(entry, told)
        event = _event(entry, is_counted=used is not None)
        event.time_us = iso_us(entry.get("timestamp"))
        event.id = id_of(own)
        nodes.append(Node(event, key, parent, record.first_line, used=used))
        before = key
    if not header and not nodes:
        for mend in bad:
            yield Damage(str(path), mend.line, None, mend.reason)
        return
    own = header.get("id")
    try:
        name = Names(path).give(own if isinstance(own, str) and own else None, 0)
    except BadRecordError as error:
        yield Damage(str(path), first, None, error.reason)
        return
    compactions = [(nodes[place].event, key) for place, key in kept.items()]
    tree = grow(nodes, name_of=_called)
    for event, key in compactions:
        if event.kind == "compaction":
            _set_through(event, key, tree)
    yield ParsedSession(
        name,
        tree.events,
        metadata=header or None,
        lines=(first, last),
        event_lines=tree.lines,
        mends=sorted([*bad, *tree.mends], key=lambda mend: mend.line or 0),
        is_foreign=True,
    )


def _called(node: Node) -> str:
    return f"entry {node.key!a}"


def _set_through(event: ParsedEvent, key: Hashable, tree: Tree) -> None:
    sequence = tree.sequences.get(key)
    parent = None if sequence is None else tree.events[sequence].parent
    if parent is not None and parent >= 0:
        event.body["data"]["through"] = parent


def _used(entry: dict[str, Any], told: Told) -> ParsedEvent | None:
    message = entry.get("message")
    if entry.get("type") != "message" or not isinstance(message, dict):
        return None
    usage = message.get("usage")
    if not isinstance(usage, dict) or not isinstance(message.get("role"), str):
        return None
    cached, written = count_of(usage, "cacheRead"), count_of(usage, "cacheWrite")
    counts = {
        "input_tokens": total_of(count_of(usage, "input"), cached, written),
        "output_tokens": count_of(usage, "output"),
        "cached_tokens": cached,
        "cache_write_tokens": written,
        "cost": amount_of(usage, "cost", "total"),
    }
    return told.event(
        counts, model=message.get("model"), provider=message.get("provider"), extra=usage
    )


def _event(entry: dict[str, Any], *, is_counted: bool) -> ParsedEvent:
    kind = entry.get("type")
    message = entry.get("message")
    if kind == "message" and isinstance(message, dict) and isinstance(message.get("role"), str):
        rest = without(entry, "message")
        body = without(message, "usage")
        if "usage" in message and not is_counted:
            rest["usage"] = message["usage"]
        metadata, large = split_large(rest)
        if large:
            body["beside"] = large
        return ParsedEvent("message", body, metadata)
    summary = entry.get("summary")
    if kind == "compaction" and isinstance(summary, str):
        metadata, large = split_large(without(entry, "summary"))
        return ParsedEvent("compaction", compaction(summary, None) | large, metadata)
    return ParsedEvent(_KINDS.get(kind, "event") if isinstance(kind, str) else "event", entry)
