"""FORMAT.md put into code a second time: spaces, what their events change and what values mean.

Like ``independent``: no code of the product, and nothing that the document does not say (sections
5.10 and 6.2).
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any, NamedTuple

import cbor2

from tests.format.independent import (
    KINDS,
    NONE,
    RECORD,
    Reader,
    Session,
    checked,
    line_of,
    unfix,
)

PROJECTIONS = {
    1: "variables",
    4: "facts",
    5: "documents",
    6: "usage",
    7: "artifacts",
    8: "runs",
    9: "tool_calls",
}
_BELONG = ("usage", "artifacts")
_BASE = 66


class Value(NamedTuple):
    """What a key has, and where it got it."""

    value: Any
    sequence: int
    recorded_us: int


Space = dict[str, Value]
Spaces = dict[str, Space]


def body_of(stored: bytes) -> tuple[Any, dict[int, Any]]:
    """Body and extension of a stored record."""
    length = struct.unpack_from("<I", stored, 76)[0]
    marks = cbor2.loads(stored[80 : 80 + length]) if length else {}
    return unfix(cbor2.loads(stored[80 + length :]), marks.get(12)), marks


def spaces(records: list[bytes], later: list[bytes] | None = None) -> Spaces:
    """What each space holds after these records.

    Args:
        records: From the first that was not purged on.
        later: Where the base is that says what those before them added up to; among the records
            themselves without it.
    """
    found: Spaces = {name: {} for name in PROJECTIONS.values()}
    whole = records if later is None else later
    if whole and line_of(whole[0]).sequence:
        _take_base(whole, found)
    for stored in records:
        name = KINDS.get(stored[72], "")
        if name not in found:
            continue
        body, _ = body_of(stored)
        assert body.keys() <= {"set", "delete", "append"}
        line, recorded_us = line_of(stored), RECORD.unpack_from(stored)[4]
        changed: dict[str, Any] = dict(body.get("set", {}))
        assert not changed.keys() & set(body.get("delete", []))
        for prefix, value in body.get("append", {}).items():
            key = f"{prefix}{line.sequence:019d}"
            assert key not in changed and key not in found[name]
            if name in _BELONG and type(value) is dict and line.parent != NONE:
                value = {**value, "event": line.parent, "branch": line.branch}
            changed[key] = value
        for key in body.get("delete", []):
            found[name].pop(key, None)
        for key, value in changed.items():
            assert 1 <= len(key.encode()) <= 512
            found[name][key] = Value(value, line.sequence, recorded_us)
    return found


def _take_base(records: list[bytes], found: Spaces) -> None:
    bases = [body_of(stored)[0] for stored in records if stored[72] == _BASE]
    newest = [body for body in bases if body["last"] == bases[-1]["last"]]
    assert [body.get("following", 0) for body in newest] == [*range(len(newest))][::-1]
    for body in newest:
        for name in PROJECTIONS.values():
            keys = [each[0] for each in body.get(name, [])]
            assert keys == sorted(set(keys))
            for key, data, fixes, recorded_us, sequence in body.get(name, []):
                assert sequence <= body["last"]
                found[name][key] = Value(unfix(cbor2.loads(data), fixes), sequence, recorded_us)


def row(key: bytes, value: bytes) -> tuple[int, str, str, Value]:
    """Session, space, key and value of a row of projection 1 or 4 … 9."""
    rest = checked(key, value)
    sequence, recorded_us = struct.unpack_from("<QQ", rest)
    name, data, fixes = cbor2.loads(rest[16:])
    digest = blake2b(name.encode(), digest_size=16, person=b"turnlog-variable").digest()
    assert key[9:] == digest
    value_of = Value(unfix(cbor2.loads(data), fixes), sequence, recorded_us)
    return int.from_bytes(key[:8], "big"), PROJECTIONS[key[8]], name, value_of


def documents(space: Space) -> dict[str, tuple[str, int]]:
    """Texts and versions by name."""
    found: dict[str, tuple[str, int]] = {}
    for digest, named in space.items():
        if len(digest) != 32:
            assert digest[32] == "=" or (digest[32] == "+" and len(digest) == 33 + 19)
            continue
        own = blake2b(named.value.encode(), digest_size=16, person=b"turnlog-document").hexdigest()
        assert own == digest
        written = space.get(f"{digest}=", Value("", -1, 0))
        text = written.value
        for key in sorted(space):
            if key[:33] == f"{digest}+" and space[key].sequence > written.sequence:
                text += space[key].value
        found[named.value] = (text, named.sequence)
    return found


def artifacts(known: Reader, session: Session, space: Space) -> dict[str, list[Any]]:
    """Sequence, content, event and branch of all versions by id, with contents from blobs."""
    named: dict[str, bytes] = {}
    contents: dict[int, bytes] = {}
    for stored in session.records:
        body, marks = body_of(stored)
        if stored[72] == _BASE:
            named.update(zip(body.get("contents", []), marks.get(17, []), strict=True))
        elif stored[72] == 79 and 17 in marks:
            (contents[line_of(stored).sequence],) = marks[17]
    found: dict[str, list[Any]] = {}
    for key in sorted(space):
        value = space[key].value
        own = blake2b(value["id"].encode(), digest_size=16, person=b"turnlog-artifact").hexdigest()
        assert key == f"{own}.{space[key].sequence:019d}"
        assert ("inline" in value) != ("content" in value)
        content = value.get("inline")
        if content is None:
            address = contents.get(space[key].sequence, named.get(value["content"], b""))
            content = known.blobs[session.tenant_number, address]
            assert blake2b(content, digest_size=32).hexdigest() == value["content"]
            content = content.decode("utf-8", "surrogatepass") if value["is_text"] else content
        size = content.encode("utf-8", "surrogatepass") if value["is_text"] else content
        assert len(size) == value["size"]
        version = (space[key].sequence, content, value.get("event"), value.get("branch", 0))
        found.setdefault(value["id"], []).append(version)
    return found


def facts(opening: dict[str, Any], space: Space) -> dict[str, Any]:
    """What a session is: facts over those of its opening."""
    texts = ("title", "user_id", "account_id", "agent_id", "workspace")
    found: dict[str, Any] = {name: opening.get(name) for name in texts}
    found |= {"status": None, "detail": None, "summary": None, "parent": None, "cloned_from": None}
    metadata = dict(opening.get("metadata") or {})
    labels, related, aliases = set(), set(), set()
    for key, (value, _, _) in space.items():
        kind, dot, name = key.partition(".")
        if kind == "status":
            found["status"], found["detail"] = value
        elif kind == "summary":
            found["summary"] = value[0]
        elif kind == "metadata":
            metadata.pop(name, None)
            metadata.update((name, each) for each in value)
        elif kind == "label":
            on, _, label = name.partition(".")
            labels.add((label, int(on) if on else None))
        elif kind in ("related", "alias"):
            (related if kind == "related" else aliases).add(name)
        else:
            assert not dot and kind in found, key
            found[kind] = value
        if kind in ("label", "related", "alias"):
            assert value is True
    return {**found, "metadata": metadata, "labels": labels, "related": related, "aliases": aliases}
