"""FORMAT.md put into code a second time: what each kind of row says, and an export line.

Like ``independent``: no code of the product, and nothing that the document does not say.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import cbor2

from tests.format.independent import (
    NONE,
    Damage,
    Event,
    checked,
    decode_chunk,
    decode_columns,
    decode_dictionary,
    decode_segment,
    inflate,
)

Values = dict[str, Any]
COMMIT = (
    "last_position floor transaction file_bytes sessions_made tenants_made sessions recorded_us "
    "generation roll_ups cuts fences link previous"
).split()
COMMIT_2 = "dictionaries_made blobs_made removals roles".split()
SESSION = (
    "tenant_number created_position created_us sealed messages head last_position "
    "last_recorded_us keys segments since_roll_up flags"
).split()
RECORD = (
    "session sequence parent recorded_us given_us owner offset branch tokens kind role flags length"
).split()
BLOB = (
    "number size stored_bytes references pending_us chunk_bytes chunks compressed unnamed"
).split()
GOLDEN_DICTIONARY = bytes.fromhex(
    "".join((Path(__file__).parent / "golden" / "dictionary.hex").read_text("ascii").split()[5:])
)
RUN = "level state entries blocks words fingerprint last".split()


def named(names: list[str], layout: str, data: bytes) -> Values:
    """Fixed fields at the front of some bytes."""
    return dict(zip(names, struct.unpack_from(layout, data), strict=True))


def record(key: bytes, value: bytes) -> Values:
    """A hot record (section 6.1)."""
    rest = checked(key, value)
    found = named(RECORD, "<QQQQqQQIIBBHI", rest)
    length = found.pop("length")
    assert (found.pop("owner"), found.pop("offset")) == (0, 0)
    position = int.from_bytes(key, "big")
    return {
        "position": position,
        **found,
        "extension": rest[72 : 72 + length],
        "body": rest[72 + length :],
    }


def segment(key: bytes, value: bytes) -> Values:
    """A segment (section 10), as the records in it."""
    records = [
        record(position.to_bytes(8, "big"), stored)
        for position, stored in decode_segment(key, value)
    ]
    messages = sum(each["kind"] == 1 for each in records)
    assert struct.unpack_from("<I", value, 64)[0] == messages
    kinds = 0
    for each in records:
        kinds |= 1 << min(each["kind"], 63)
    assert struct.unpack_from("<Q", value, 72)[0] == kinds
    times = struct.unpack_from("<QQ", value, 40)
    assert times == (records[0]["recorded_us"], records[-1]["recorded_us"])
    return {"records": records, "messages_before": struct.unpack_from("<Q", value, 56)[0]}


def segment_with_dictionary(key: bytes, value: bytes) -> Values:
    """A segment whose frame needs the golden dictionary."""
    own = {value[10]: decode_dictionary(b"\xc8", GOLDEN_DICTIONARY)[3]}
    records = [
        record(position.to_bytes(8, "big"), stored)
        for position, stored in decode_segment(key, value, own)
    ]
    return {"records": records, "dictionary": value[10]}


def dictionary(key: bytes, value: bytes) -> Values:
    """A dictionary row (section 5.8)."""
    number, sessions, firsts, data = decode_dictionary(key, value)
    content, payload = struct.unpack_from("<QQ", value, 48)
    return {
        "number": key[0],
        "tenant_number": number,
        "content_bytes": content,
        "payload_bytes": payload,
        "sessions": tuple(sessions),
        "firsts": tuple(firsts),
        "data": data,
    }


def order_block(key: bytes, value: bytes) -> Values:
    """An order block (section 9)."""
    version, cut, _, _, link = struct.unpack_from("<BBHI16s", value, 8)
    assert version == 1
    content = inflate(value[32:], 16_384) if cut else b""
    checked(key, value[:32] + content)
    rows = decode_columns(content, 1_024, 2) if cut else []
    return {
        "block": int.from_bytes(key, "big"),
        "link": link,
        "sessions": [row[0] for row in rows],
        "sequences": [row[1] for row in rows],
    }


def commit_record(key: bytes, value: bytes) -> Values:
    """The commit record (section 5.1)."""
    rest = checked(key, value)
    found = named(COMMIT, "<12Q16s8s", rest)
    if len(rest) == 120:
        return {**found, **dict.fromkeys(COMMIT_2, 0), "version": 1}
    return {**found, **named(COMMIT_2, "<4Q", rest[120:]), "version": 2}


def session(key: bytes, value: bytes) -> Values:
    """A session row (section 5.5)."""
    rest = checked(key, value)
    tenant, name, opening, *more = cbor2.loads(rest[88:])
    first, trimmed, branches, head_branch = (*more, 0, 0, 0, 0)[:4]
    assert not more or more[-1]
    found = named(SESSION, "<10QII", rest)
    number = int.from_bytes(key, "big")
    return {
        "number": number,
        **found,
        "tenant": tenant,
        "name": name,
        "opening": opening,
        "first": first,
        "trimmed": trimmed,
        "branches": branches,
        "head_branch": head_branch,
    }


def variable(key: bytes, value: bytes) -> Values:
    """A variable's row (section 5.8)."""
    rest = checked(key, value)
    assert key[8] == 1
    name, data, fixes = cbor2.loads(rest[16:])
    digest = blake2b(name.encode(), digest_size=16, person=b"turnlog-variable").digest()
    assert key[9:] == digest
    found = named(["sequence", "recorded_us"], "<QQ", rest)
    number = int.from_bytes(key[:8], "big")
    return {"session": number, **found, "key": name, "data": data, "fixes": fixes}


def branch(key: bytes, value: bytes) -> Values:
    """What opened a branch, or its tip (section 5.10)."""
    rest = checked(key, value)
    assert key[8] == 2 and len(key) == 14
    owner = {
        "session": int.from_bytes(key[:8], "big"),
        "branch": int.from_bytes(key[10:], "big"),
    }
    if key[9]:
        return {**owner, **named(["sequence", "recorded_us"], "<QQ", rest)}
    return {**owner, **named(["sequence", "parent", "fork_branch", "recorded_us"], "<QQIQ", rest)}


def branch_name(key: bytes, value: bytes) -> Values:
    """The name of a branch (section 5.10)."""
    rest = checked(key, value)
    name = rest[20:].decode()
    digest = blake2b(name.encode(), digest_size=16, person=b"turnlog-branch").digest()
    assert key[8:] == b"\x03" + digest
    found = named(["sequence", "recorded_us", "branch"], "<QQI", rest)
    return {"session": int.from_bytes(key[:8], "big"), **found, "name": name}


def tenant(key: bytes, value: bytes) -> Values:
    """A tenant row (section 5.3)."""
    rest = checked(key, value)
    number = int.from_bytes(key, "big")
    return {"number": number, "secret": rest[:32], "name": rest[32:].decode()}


def number_of(key: bytes, value: bytes) -> int:
    """The number of a row that holds nothing else."""
    rest = checked(key, value)
    assert len(rest) == 8
    return int.from_bytes(rest, "big")


def keyed_result(key: bytes, value: bytes) -> Values:
    """A keyed result (section 5.6)."""
    found = named(["content", "first", "last", "position"], "<16sQQQ", checked(key, value))
    return {"session": int.from_bytes(key[:8], "big"), "digest": key[8:], **found}


def removal(key: bytes, value: bytes) -> Values:
    """A removal row (section 5.8)."""
    names = "floor hot_from left flags asked_us".split()
    rest = checked(key, value)
    assert len(rest) == 32
    return {"number": int.from_bytes(key, "big"), **named(names, "<QQIIQ", rest)}


def blob(key: bytes, value: bytes) -> Values:
    """A blob row (section 7.1)."""
    rest = checked(key, value)
    found = named(BLOB, "<QQQQQIIII", rest)
    assert found["references"] or found["pending_us"]
    assert not found["references"] or bool(found["unnamed"]) == bool(found["pending_us"])
    media_type = rest[struct.calcsize("<QQQQQIIII") :].decode("ascii")
    return {
        "tenant": int.from_bytes(key[:8], "big"),
        "address": key[8:],
        **found,
        "media_type": media_type,
    }


def pending(key: bytes, value: bytes) -> Values:
    """A pending row (section 7.2)."""
    zero, number = struct.unpack(">QQ", key)
    assert zero == 0
    found = named(["tenant_number", "pending_us", "address"], "<QQ16s", checked(key, value))
    return {"number": number, **found}


def chunk(key: bytes, value: bytes) -> Values:
    """A chunk (section 7.3)."""
    number, index = struct.unpack(">QQ", key)
    return {"number": number, "index": index, "content": decode_chunk(key, value)}


def activity(key: bytes, value: bytes) -> Values:
    """An activity row (section 5.7)."""
    number, inverted = struct.unpack(">QQ", key)
    return {"tenant": number, "position": NONE - inverted, "session": number_of(key, value)}


def id_header(key: bytes, value: bytes) -> Values:
    """The header of the ids (section 11.1); how many directory rows, not which."""
    assert key == b"\x01"
    names = ["generation", "next_run", "runs", "merges"]
    return named(names, ">QQII", checked(key, value))


def id_run(key: bytes, value: bytes) -> Values:
    """A directory row (section 11.2)."""
    assert key[:1] == b"\x02"
    return {
        "number": int.from_bytes(key[1:], "big"),
        **named(RUN, ">BBQQQQ16s", checked(key, value)),
    }


def id_merge(key: bytes, value: bytes) -> Values:
    """A merge (section 11.3)."""
    assert len(key) == 2
    assert key[:1] == b"\x03"
    rest = checked(key, value)
    (number,) = struct.unpack_from(">Q", rest)
    output = named(RUN, ">BBQQQQ16s", rest[8:])
    assert output["level"] == key[1] + 1
    inputs = struct.unpack_from(f">{len(rest[66:]) // 8}Q", rest, 66)
    taken = struct.unpack_from(">Q", rest, 58)[0]
    return {"output": {"number": number, **output}, "inputs": inputs, "taken": taken}


def id_filter(key: bytes, value: bytes) -> Values:
    """A filter block (section 11.5)."""
    assert key[:1] == b"\x04"
    rest = checked(key, value)
    words = list(struct.unpack(f"<{len(rest) // 8}Q", rest))
    return {"run": int.from_bytes(key[1:9], "big"), "words": words}


def id_entries(key: bytes, value: bytes) -> Values:
    """An entry block (section 11.4)."""
    assert key[:1] == b"\x05"
    rest = checked(key, value)
    previous, count, number = struct.unpack_from(">16sII", rest)
    entries = list(struct.iter_unpack(">16sQQ", rest[24:]))
    assert len(entries) == count
    assert entries[-1][0] == key[9:]
    run = int.from_bytes(key[1:9], "big")
    return {"run": run, "number": number, "previous": previous, "entries": entries}


def owner(_: bytes, value: bytes) -> Values:
    """A slot of a lock file (section 2)."""
    assert len(value) == 512
    assert value[-1:] == b"\n"
    found: Values = json.loads(value)
    return found


ROWS: dict[str, Callable[[bytes, bytes], Values]] = {
    "commit record": commit_record,
    "options": lambda key, value: cbor2.loads(checked(key, value)),
    "record": record,
    "raw segment": segment,
    "segment": segment,
    "segment with dictionary": segment_with_dictionary,
    "dictionary": dictionary,
    "order block": order_block,
    "cut order block": order_block,
    "session": session,
    "tenant": tenant,
    "name": lambda key, value: {"number": number_of(key, value)},
    "key": keyed_result,
    "removal": removal,
    "void": record,
    "redacted": record,
    "activity": activity,
    "blob": blob,
    "pending blob": pending,
    "raw chunk": chunk,
    "chunk": chunk,
    "variable": variable,
    "branch opening": branch,
    "branch tip": branch,
    "branch name": branch_name,
    "id header": id_header,
    "id run": id_run,
    "id merge": id_merge,
    "id filter block": id_filter,
    "id entry block": id_entries,
    "owner": owner,
}


# Export lines (section 19)

ESCAPED = [
    (0x00, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x61C, 0x61C),
    (0x180E, 0x180E),
    (0x200B, 0x200B),
    (0x200E, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE007F),
]
SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def text_line(text: str) -> str:
    """A JSON string."""
    spelled = []
    for character in text:
        code = ord(character)
        if character in SHORT:
            spelled.append(SHORT[character])
        elif any(first <= code <= last for first, last in ESCAPED):
            units = character.encode("utf-16-be")
            spelled += [f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)]
        else:
            spelled.append(character)
    return '"' + "".join(spelled) + '"'


def number_line(value: float) -> str:
    """A finite float: the shortest digits that read back the same."""
    digits = next(
        text for places in range(17) if float(text := f"{abs(value):.{places}e}") == abs(value)
    )
    mantissa, _, power = digits.partition("e")
    exponent = int(power)
    figures = mantissa.replace(".", "").rstrip("0") or "0"
    sign = "-" if struct.pack(">d", value)[0] & 0x80 else ""
    if not -4 <= exponent < 16:
        point = "." + figures[1:] if figures[1:] else ""
        return f"{sign}{figures[0]}{point}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{figures}"
    whole = figures[: exponent + 1].ljust(exponent + 1, "0")
    return f"{sign}{whole}.{figures[exponent + 1 :] or '0'}"


def is_text(value: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in value)


def base64_of(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def key_line(key: str) -> str:
    if not is_text(key):
        return text_line("$surrogate:" + base64_of(key.encode("utf-8", "surrogatepass")))
    return text_line("$" + key if key.startswith("$") else key)


def value_line(value: Any) -> str:
    """A value as JSON."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return '{"$float":"' + struct.pack(">d", value).hex() + '"}'
        return number_line(value)
    if isinstance(value, bytes):
        return '{"$b64":"' + base64_of(value) + '"}'
    if isinstance(value, str):
        if is_text(value):
            return text_line(value)
        return '{"$surrogate":"' + base64_of(value.encode("utf-8", "surrogatepass")) + '"}'
    if isinstance(value, list):
        return "[" + ",".join(map(value_line, value)) + "]"
    if not isinstance(value, dict):
        raise Damage(f"{type(value)} is no body")
    items = [key_line(key) + ":" + value_line(item) for key, item in value.items()]
    return "{" + ",".join(items) + "}"


def content_lines(event: Event, content: bytes, media_type: str) -> list[str]:
    """The export lines of a content that an event is the first of its session to name."""
    lines = []
    for start in range(0, max(1, len(content)), 786_432):
        parts = [("tenant", event.tenant)] if event.tenant else []
        parts += [("session", event.session), ("blob", content_name(content))]
        line = ",".join([f'"{key}":{value_line(value)}' for key, value in parts])
        line += f',"size":{len(content)}'
        if media_type:
            line += f',"media_type":{value_line(media_type)}'
        data = base64.b64encode(content[start : start + 786_432]).decode()
        lines.append("{" + line + f',"start":{start},"data":"{data}"' + "}")
    return lines


def content_name(content: bytes) -> str:
    """What an export calls a content."""
    return blake2b(content, digest_size=32).hexdigest()


OMITTED_EMPTY = ("tenant", "opening", "tokens", "blobs", "redacted")


def export_line(event: Event, contents: Sequence[bytes] = ()) -> str:
    """An event's export line, without the line feed; with the contents that it names."""
    values = {**asdict(event), "blobs": [content_name(content) for content in contents]}
    keys = (
        "tenant session sequence parent kind id time_us recorded_us tokens run_id turn_id "
        "speech_id request_id opening metadata blobs redacted role body"
    ).split()
    parts = []
    for key in keys:
        value = values[key]
        if value is None or (not value and key in OMITTED_EMPTY):
            continue
        parts.append(f'"{key}":{value_line(value)}')
    return "{" + ",".join(parts) + "}"
