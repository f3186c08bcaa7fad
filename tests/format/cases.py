"""The golden cases: one row of every kind as plain values, and both ways between them and bytes.

``python -m tests.format.cases`` writes the hex file of every case that has none. A file that is
there is never written again: its bytes lie in stores of others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine import naming
from engine.naming import BranchName
from engine.spaces import Space
from engine.variables import StoredVariable, decode_row, subkey_of
from eventlog import branching
from eventlog.blob import BlobRow, PendingRow, blob_key, pending_key
from eventlog.body import decode_body, encode_plain
from eventlog.branching import Opening, Tip, decode_opening, decode_tip, split_key
from eventlog.chunk import compress_chunk, decode_chunk, seal_chunk
from eventlog.dictionary import Dictionary, DictionaryRow, dictionary_key
from eventlog.errors import CorruptionError
from eventlog.idrows import (
    IdDirectory,
    IdMerge,
    IdRun,
    decode_directory,
    decode_filter_block,
    decode_merge,
    decode_run,
    encode_blocks,
    encode_filter,
    table_of,
)
from eventlog.idrows import (
    decode_block as decode_entries,
)
from eventlog.inline import state_key
from eventlog.keys import PAIR, U64, U64_MAX, name_key
from eventlog.locks import decode_owner, encode_owner
from eventlog.order import decode_block, encode_block
from eventlog.record import (
    NO_PARENT,
    NO_TIME,
    VOID,
    Flag,
    Origin,
    Record,
    decode_record,
    encode_record,
    redacted_record,
    verify_record,
    void_record,
)
from eventlog.removal import RemovalRow
from eventlog.rows import (
    COMMIT_KEY,
    NO_SEQUENCE,
    OPTIONS_KEY,
    CommitRecord,
    KeyedResult,
    SessionRow,
    TenantRow,
    expose,
    protect,
)
from eventlog.seams import ProcessIdentity
from eventlog.segment import Run, decode_segment, encode_segment

GOLDEN = Path(__file__).parent / "golden"
Row = tuple[bytes, bytes]
Values = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of row, and how its values become bytes and come back.

    Attributes:
        exact: Whether encoding gives the very bytes: what zstd makes depends on its version.
    """

    encode: Callable[[Values], Row]
    decode: Callable[[bytes, bytes], Values]
    exact: bool = True


@dataclass(frozen=True)
class Case:
    """A golden row."""

    name: str
    kind: str
    values: Values

    @property
    def path(self) -> Path:
        """Its hex file."""
        return GOLDEN / f"{self.name}.hex"


def _encode_record(values: Values) -> Row:
    values = dict(values)
    position = values.pop("position")
    return U64.pack(position), encode_record(position, **values)


def _record_values(record: Record) -> Values:
    return {
        "position": record.position,
        "session": record.origin.number,
        "sequence": record.sequence,
        "parent": record.parent_word,
        "recorded_us": record.recorded_us,
        "given_us": record.given_us,
        "branch": record.branch,
        "tokens": record.tokens,
        "kind": record.kind_code,
        "role": record.role_code,
        "flags": record.flags,
        "extension": record.extension,
        "body": record.payload,
    }


def _decode_record(key: bytes, value: bytes) -> Values:
    verify_record(key, value)
    origin = Origin(int.from_bytes(value[8:16], "little"), "", "")
    return _record_values(decode_record(origin, U64.unpack(key)[0], value, Record))


def _encode_segment(values: Values) -> Row:
    stored = [_encode_record(record)[1] for record in values["records"]]
    positions = [record["position"] for record in values["records"]]
    last = values["records"][-1]
    return encode_segment(
        Run(last["session"], last["sequence"], stored, positions, values["messages_before"])
    )


def _encode_with_dictionary(values: Values) -> Row:
    stored = [_encode_record(record)[1] for record in values["records"]]
    positions = [record["position"] for record in values["records"]]
    last = values["records"][-1]
    row = DictionaryRow(1, 2, 1, (1,), DICTIONARY)
    run = Run(last["session"], last["sequence"], stored, positions, values["messages_before"])
    run.dictionary = Dictionary(values["dictionary"], row)
    return encode_segment(run)


def _find(number: int) -> Dictionary:
    if number != 200:
        raise CorruptionError("is missing", where=f"dictionary {number}")
    return Dictionary(number, DictionaryRow(1, 2, 1, (1,), DICTIONARY))


def _decode_segment(key: bytes, value: bytes) -> Values:
    segment = decode_segment(key, value, _find)
    origin = Origin(PAIR.unpack(key)[0], "", "")
    records = [segment.make(place, origin, Record) for place in range(segment.prefix.count)]
    return {
        "records": [_record_values(record) for record in records],
        "messages_before": segment.prefix.messages_before,
    }


def _encode_dictionary(values: Values) -> Row:
    values = dict(values)
    key = dictionary_key(values.pop("number"))
    return key, DictionaryRow(**values).encode(key)


def _decode_dictionary(key: bytes, value: bytes) -> Values:
    row = DictionaryRow.decode(key, value)
    return {"number": key[0], **asdict(Dictionary(key[0], row).row)}


def _encode_order(values: Values) -> Row:
    return encode_block(values["block"], values["link"], values["sessions"], values["sequences"])


def _decode_order(key: bytes, value: bytes) -> Values:
    block = decode_block(key, value)
    assert block.voids == 0
    return {
        "block": block.block,
        "link": block.link,
        "sessions": block.sessions if block.is_cut else [],
        "sequences": block.sequences if block.is_cut else [],
    }


def _encode_session(values: Values) -> Row:
    key = U64.pack(values["number"])
    fields = {name: value for name, value in values.items() if name != "number"}
    return key, SessionRow(**fields).encode(key)


def _decode_session(key: bytes, value: bytes) -> Values:
    row = asdict(SessionRow.decode(key, value))
    del row["details"]
    return {"number": U64.unpack(key)[0], **row}


def _encode_tenant(values: Values) -> Row:
    key = U64.pack(values["number"])
    return key, TenantRow(values["secret"], values["name"]).encode(key)


def _decode_tenant(key: bytes, value: bytes) -> Values:
    return {"number": U64.unpack(key)[0], **asdict(TenantRow.decode(key, value))}


def _encode_name(values: Values) -> Row:
    key = name_key(values["tenant"], values["session"])
    return key, protect(key, U64.pack(values["number"]))


def _encode_key(values: Values) -> Row:
    key = U64.pack(values["session"]) + values["digest"]
    fields = {name: values[name] for name in ("content", "first", "last", "position")}
    return key, KeyedResult(**fields).encode(key)


def _decode_key(key: bytes, value: bytes) -> Values:
    found = asdict(KeyedResult.decode(key, value))
    return {"session": U64.unpack(key[:8])[0], "digest": key[8:], **found}


def _encode_removal(values: Values) -> Row:
    key = U64.pack(values["number"])
    fields = {name: value for name, value in values.items() if name != "number"}
    return key, RemovalRow(**fields).encode(key)


def _decode_removal(key: bytes, value: bytes) -> Values:
    return {"number": U64.unpack(key)[0], **asdict(RemovalRow.decode(key, value))}


def _encode_void(values: Values) -> Row:
    """The record before it was overwritten, with as much in it as there can be."""
    fields = {
        **values,
        "parent": 7,
        "recorded_us": 1_700_000_000_000_000,
        "given_us": 5,
        "tokens": 9,
        "kind": 1,
        "role": 2,
        "flags": values["flags"] & ~int(Flag.VOID) | int(Flag.INDEXABLE | Flag.ROLLS_UP),
        "body": b"\xf6",
    }
    key, stored = _encode_record(fields)
    return key, void_record(key, stored)


def _encode_redacted(values: Values) -> Row:
    """The record before it was redacted, with content of every kind in it."""
    content: Values = {
        5: encode_plain({"a": b"\xed\xa0\xbd"}),
        12: [["s", "said"]],
        13: [["s", "a"]],
        17: [bytes(range(16))],
    }
    marks = {**decode_body(values["extension"]), **content}
    fields = {
        **values,
        "flags": values["flags"] & ~int(Flag.REDACTED) | int(Flag.INDEXABLE | Flag.HAS_BLOBS),
        "extension": encode_plain({key: marks[key] for key in sorted(marks)}),
        "body": encode_plain({"said": b"\xed\xa0\xbd"}),
    }
    key, stored = _encode_record(fields)
    return key, redacted_record(key, stored)


def _encode_blob(values: Values) -> Row:
    key = blob_key(values["tenant"], values["address"])
    fields = {name: values[name] for name in values if name not in ("tenant", "address")}
    return key, BlobRow(**fields).encode(key)


def _decode_blob(key: bytes, value: bytes) -> Values:
    row = asdict(BlobRow.decode(key, value))
    return {"tenant": U64.unpack(key[:8])[0], "address": key[8:], **row}


def _encode_pending(values: Values) -> Row:
    key = pending_key(values["number"])
    fields = {name: values[name] for name in values if name != "number"}
    return key, PendingRow(**fields).encode(key)


def _decode_pending(key: bytes, value: bytes) -> Values:
    return {"number": PAIR.unpack(key)[1], **asdict(PendingRow.decode(key, value))}


def _encode_chunk(values: Values) -> Row:
    key = PAIR.pack(values["number"], values["index"])
    return key, seal_chunk(key, *compress_chunk(values["content"]), values["content"])


def _decode_chunk(key: bytes, value: bytes) -> Values:
    number, index = PAIR.unpack(key)
    return {"number": number, "index": index, "content": decode_chunk(key, value, "chunk")}


def _encode_activity(values: Values) -> Row:
    key = PAIR.pack(values["tenant"], U64_MAX - values["position"])
    return key, protect(key, U64.pack(values["session"]))


def _decode_activity(key: bytes, value: bytes) -> Values:
    tenant, inverted = PAIR.unpack(key)
    number = U64.unpack(expose(key, value, "activity"))[0]
    return {"tenant": tenant, "position": U64_MAX - inverted, "session": number}


def _run(values: Values) -> IdRun:
    return IdRun(**values)


def _encode_directory(values: Values) -> Row:
    before = IdDirectory(generation=values["generation"] - 1, next_run=values["next_run"])
    _, rows = before.changed([_run(run) for run in values["runs"]], merges=values["merges"])
    return rows[0]


def _decode_directory(key: bytes, value: bytes) -> Values:
    rows = [_run(run).row() for run in CASE_OF["id_header"].values["runs"]]
    found = decode_directory(value, rows)
    return {
        "generation": found.generation,
        "next_run": found.next_run,
        "merges": found.merges,
        "runs": [_fields(run) for run in sorted(found.runs, key=lambda run: run.number)],
    }


def _fields(run: IdRun) -> Values:
    return {
        name: getattr(run, name)
        for name in (
            "number",
            "level",
            "state",
            "words",
            "entries",
            "blocks",
            "fingerprint",
            "last",
        )
    }


def _encode_merge(values: Values) -> Row:
    return IdMerge(_run(values["output"]), values["inputs"], values["taken"]).row()


def _decode_merge(key: bytes, value: bytes) -> Values:
    merge = decode_merge(key, value)
    return {"output": _fields(merge.output), "inputs": merge.inputs, "taken": merge.taken}


def _encode_entries(values: Values) -> Row:
    run = IdRun(values["run"], 0, 1, 1, blocks=values["number"], last=values["previous"])
    return encode_blocks(run, table_of(values["entries"]))[0][0]


def _decode_entries(key: bytes, value: bytes) -> Values:
    run = int.from_bytes(key[1:9], "big")
    block = decode_entries(run, key, value)
    return {
        "run": run,
        "number": block.number,
        "previous": block.previous,
        "entries": [
            (row[0].to_bytes(8, "big") + row[1].to_bytes(8, "big"), row[2], row[3])
            for row in block.table().tolist()
        ],
    }


def _encode_filter(values: Values) -> Row:
    run = IdRun(values["run"], 0, 1, len(values["words"]))
    return encode_filter(run, table_of([(each, 0, 0) for each in values["hashes"]]), 0, 1)[0]


def _decode_filter(key: bytes, value: bytes) -> Values:
    known = CASE_OF["id_filter"].values
    run = IdRun(int.from_bytes(key[1:9], "big"), 0, 1, len(known["words"]))
    words = decode_filter_block(run, int.from_bytes(key[9:], "big"), value)
    return {"run": run.number, "words": words.tolist(), "hashes": known["hashes"]}


def _decode_owner(key: bytes, value: bytes) -> Values:
    owner = decode_owner(value)
    assert owner is not None
    return asdict(owner)


def _encode_variable(values: Values) -> Row:
    stored = StoredVariable(
        values["key"],
        values["recorded_us"],
        values["sequence"],
        values["data"],
        values["fixes"],
    )
    key = state_key(values["session"], Space.VARIABLES, subkey_of(stored.key))
    return key, protect(key, stored.content())


def _decode_variable(key: bytes, value: bytes) -> Values:
    stored = decode_row(expose(key, value, "variable"), "variable")
    if key[8:] != bytes([Space.VARIABLES]) + subkey_of(stored.key):
        raise CorruptionError("another variable", where="variable")
    return {
        "session": U64.unpack(key[:8])[0],
        "sequence": stored.sequence,
        "recorded_us": stored.updated_us,
        "key": stored.key,
        "data": stored.data,
        "fixes": stored.fixes,
    }


def _encode_branch(values: Values) -> Row:
    fields = {name: values[name] for name in values if name not in ("session", "branch")}
    row: Opening | Tip = Tip(**fields) if "parent" not in fields else Opening(**fields)
    is_opening = isinstance(row, Opening)
    subkey = (branching.opening_key if is_opening else branching.tip_key)(values["branch"])
    key = state_key(values["session"], branching.PROJECTION, subkey)
    return key, protect(key, row.content())


def _decode_branch(key: bytes, value: bytes) -> Values:
    content = expose(key, value, "branch")
    is_opening, branch = split_key(key[9:], "branch")
    row = (decode_opening if is_opening else decode_tip)(content, "branch")
    if key[8] != branching.PROJECTION:
        raise CorruptionError("another projection", where="branch")
    return {"session": U64.unpack(key[:8])[0], "branch": branch, **row._asdict()}


def _encode_branch_name(values: Values) -> Row:
    found = BranchName(values["name"], values["branch"], values["sequence"], values["recorded_us"])
    key = state_key(values["session"], naming.PROJECTION, naming.subkey_of(found.name))
    return key, protect(key, found.content())


def _decode_branch_name(key: bytes, value: bytes) -> Values:
    found = naming.decode_row(expose(key, value, "branch name"), "branch name")
    if key[8:] != bytes([naming.PROJECTION]) + naming.subkey_of(found.name):
        raise CorruptionError("another name", where="branch name")
    return {
        "session": U64.unpack(key[:8])[0],
        "sequence": found.sequence,
        "recorded_us": found.updated_us,
        "branch": found.branch,
        "name": found.name,
    }


KINDS = {
    "commit record": Kind(
        lambda values: (COMMIT_KEY, CommitRecord(**values).encode()),
        lambda key, value: asdict(CommitRecord.decode(value)),
    ),
    "options": Kind(
        lambda values: (OPTIONS_KEY, protect(OPTIONS_KEY, encode_plain(values))),
        lambda key, value: decode_body(expose(key, value, "options")),
    ),
    "record": Kind(_encode_record, _decode_record),
    "raw segment": Kind(_encode_segment, _decode_segment),
    "segment": Kind(_encode_segment, _decode_segment, exact=False),
    "segment with dictionary": Kind(_encode_with_dictionary, _decode_segment, exact=False),
    "dictionary": Kind(_encode_dictionary, _decode_dictionary),
    "order block": Kind(_encode_order, _decode_order),
    "cut order block": Kind(_encode_order, _decode_order, exact=False),
    "session": Kind(_encode_session, _decode_session),
    "tenant": Kind(_encode_tenant, _decode_tenant),
    "name": Kind(
        _encode_name, lambda key, value: {"number": U64.unpack(expose(key, value, "name"))[0]}
    ),
    "key": Kind(_encode_key, _decode_key),
    "activity": Kind(_encode_activity, _decode_activity),
    "removal": Kind(_encode_removal, _decode_removal),
    "void": Kind(_encode_void, _decode_record),
    "redacted": Kind(_encode_redacted, _decode_record),
    "blob": Kind(_encode_blob, _decode_blob),
    "pending blob": Kind(_encode_pending, _decode_pending),
    "raw chunk": Kind(_encode_chunk, _decode_chunk),
    "chunk": Kind(_encode_chunk, _decode_chunk, exact=False),
    "variable": Kind(_encode_variable, _decode_variable),
    "branch opening": Kind(_encode_branch, _decode_branch),
    "branch tip": Kind(_encode_branch, _decode_branch),
    "branch name": Kind(_encode_branch_name, _decode_branch_name),
    "id header": Kind(_encode_directory, _decode_directory),
    "id run": Kind(
        lambda values: _run(values).row(), lambda key, value: _fields(decode_run(key, value))
    ),
    "id merge": Kind(_encode_merge, _decode_merge),
    "id filter block": Kind(_encode_filter, _decode_filter),
    "id entry block": Kind(_encode_entries, _decode_entries),
    "owner": Kind(lambda values: (b"", encode_owner(ProcessIdentity(**values))), _decode_owner),
}

DICTIONARY = bytes.fromhex(  # a trained one
    "37a430ec1452f4471f10d0529074ffffffffff9f844c49b66b729344d3262d6d3b00008c0006fb3f"
    "43001088c85015b91b0000000420049bb49d1a8642b4f10a11820c01000000000000000000000000"
    "00000000047c110f2200000000000000000000000000010000000400000008000000656e20746861"
    "6e6b20726f6f6d206f7264657220726f6f6d207072696365206e756d62657220686f74656c20626f"
    "6f6b696e6e756d62657220726f6f6d20706c6561736520796f75207072696365206f726465722070"
    "6c6561736520726f6f6d207468617768656e20686f74656c20666c69676874206f72646572206c69"
    "6b6520686f74656c2070726963652070"
)
VARIABLE: Values = {
    "session": 7,
    "sequence": 12,
    "recorded_us": 1_700_000_000_000_000,
    "key": "mood",
    "data": b"\x64calm",
    "fixes": None,
}
SECRET = bytes(range(32))
HI = bytes.fromhex("a264726f6c656475736572676372656174656463486921")
PLAIN: Values = {
    "position": 2,
    "session": 7,
    "sequence": 1,
    "parent": 0,
    "recorded_us": 1_700_000_000_000_000,
    "given_us": NO_TIME,
    "branch": 0,
    "tokens": 0,
    "kind": 1,
    "role": 2,
    "flags": 1,
    "extension": b"",
    "body": HI,
}
MARKED: Values = {
    **PLAIN,
    "position": 2**40 + 3,
    "session": 2**33,
    "sequence": 10**10,
    "parent": 10**10 - 2,
    "recorded_us": 2**63 - 1,
    "given_us": -1,
    "branch": 2**32 - 1,
    "tokens": 2**31,
    "kind": 15,
    "role": 0,
    "flags": 1 | 2 | 4 | 32 | 64,
    "extension": encode_plain(
        {
            1: "m-1",
            2: bytes(range(16)),
            3: bytes(range(16, 32)),
            4: 3,
            5: encode_plain({"a": "b"}),
            6: "run",
            7: "turn",
            8: "speech",
            9: "request",
            10: [encode_plain({"user_id": "u7", "title": b"\xed\xa0\xbd"}), [["s", "title"]]],
            11: "my.kind",
            12: [["f", "n", 0]],
        }
    ),
    "body": encode_plain({"n": [bytes.fromhex("fff8000000abcdef")]}),
}
REDACTED: Values = {
    **MARKED,
    "kind": 1,
    "role": 2,
    "flags": 2 | 4 | 32 | 64 | 512,
    "extension": encode_plain(
        {key: said for key, said in decode_body(MARKED["extension"]).items() if key not in (5, 12)}
    ),
    "body": b"\xf6",
}
OPEN: Values = {
    **PLAIN,
    "position": 1,
    "sequence": 0,
    "parent": NO_PARENT,
    "kind": 64,
    "role": 0,
    "flags": 6,
    "body": b"\xf6",
}


def _noise(size: int) -> bytes:
    """A byte string that zstd cannot make smaller."""
    return encode_plain(np.random.default_rng(11).bytes(size))


ID_HASHES = [
    bytes.fromhex(each)
    for each in (
        "00000000000000000000000000000000",
        "3fffffffffffffff0123456789abcdef",
        "4000000000000000fedcba9876543210",
        "ffffffffffffffffffffffffffffffff",
    )
]
ID_RUN: Values = {
    "number": 9,
    "level": 2,
    "state": 1,
    "words": 2**32 - 1,
    "entries": 2**40,
    "blocks": 2**33 + 1,
    "fingerprint": 0x0123456789ABCDEF,
    "last": bytes(range(16)),
}
SESSION: Values = {
    "number": 7,
    "tenant_number": 1,
    "created_position": 1,
    "created_us": 1_700_000_000_000_000,
    "sealed": 0,
    "messages": 0,
    "head": NO_SEQUENCE,
    "last_position": 0,
    "last_recorded_us": 0,
    "keys": 0,
    "segments": 0,
    "since_roll_up": 0,
    "flags": 0,
    "tenant": "acme",
    "name": "call-42",
    "opening": None,
    "first": 0,
    "trimmed": 0,
    "branches": 0,
    "head_branch": 0,
}

CASES = [
    Case("commit_empty", "commit record", {**asdict(CommitRecord()), "transaction": 1}),
    Case(
        "commit",
        "commit record",
        {
            "last_position": 2**40 + 3,
            "floor": 2**40 - 2047,
            "transaction": 12_345,
            "file_bytes": 2**32,
            "sessions_made": 1_000,
            "tenants_made": 7,
            "sessions": 990,
            "recorded_us": 1_700_000_000_000_000,
            "generation": 3,
            "roll_ups": 400,
            "cuts": 22,
            "fences": 1,
            "link": bytes(range(16)),
            "previous": bytes(range(8)),
            "dictionaries_made": 3,
            "blobs_made": 2**33,
            "removals": 12,
            "roles": 0,
            "version": 2,
        },
    ),
    Case("commit_1", "commit record", {**asdict(CommitRecord(version=1)), "fences": 1}),
    Case(
        "options",
        "options",
        {"snapshot_frequency": 25, "max_messages": None, "quota_bytes": 2**30},
    ),
    Case("record_plain", "record", PLAIN),
    Case("record_marked", "record", MARKED),
    Case("record_open", "record", OPEN),
    Case("record_redacted", "redacted", REDACTED),
    Case(
        "segment_raw",
        "raw segment",
        {"records": [{**PLAIN, "body": _noise(4_000)}], "messages_before": 0},
    ),
    Case(
        "segment",
        "segment",
        {
            "records": [
                OPEN,
                *[
                    {
                        **PLAIN,
                        "position": 5 + 3 * number,
                        "sequence": number,
                        "parent": number - 1 if number > 1 else NO_PARENT,
                        "recorded_us": PLAIN["recorded_us"] + 999 * number,
                        "given_us": -number,
                        "role": number % 7,
                        "kind": 1 + number % 4,
                        "tokens": number * 100,
                        "extension": b"" if number % 2 else b"\xa1\x06\x61\x72",
                    }
                    for number in range(1, 12)
                ],
            ],
            "messages_before": 2**33,
        },
    ),
    Case(
        "segment_with_dictionary",
        "segment with dictionary",
        {
            "records": [
                {**PLAIN, "position": 9, "body": encode_plain(f"hotel booking, flight {number}")}
                | {"sequence": 4 + number, "position": 9 + number}
                for number in range(6)
            ],
            "messages_before": 4,
            "dictionary": 200,
        },
    ),
    Case(
        "dictionary",
        "dictionary",
        {
            "number": 200,
            "tenant_number": 2**33,
            "content_bytes": 2**20 + 1,
            "payload_bytes": 2**18,
            "sessions": (1, 7, 2**40),
            "data": DICTIONARY,
            "firsts": (),
        },
    ),
    Case(
        "dictionary_purged",
        "dictionary",
        {
            "number": 1,
            "tenant_number": 1,
            "content_bytes": 9,
            "payload_bytes": 9,
            "sessions": (5, 6),
            "data": DICTIONARY,
            "firsts": (0, 2**33),
        },
    ),
    Case(
        "order_link",
        "order block",
        {"block": 0, "link": bytes(range(16)), "sessions": [], "sequences": []},
    ),
    Case(
        "order_cut",
        "cut order block",
        {
            "block": 2**30,
            "link": bytes(range(16)),
            "sessions": [1 + place % 7 for place in range(1_024)],
            "sequences": [2**33 + place // 7 for place in range(1_024)],
        },
    ),
    Case("session", "session", SESSION),
    Case(
        "session_sealed",
        "session",
        {
            **SESSION,
            "number": 2**33,
            "created_position": 10**12,
            "sealed": 50,
            "messages": 48,
            "head": 49,
            "last_position": 10**12 + 77,
            "last_recorded_us": 1_700_000_000_000_001,
            "keys": 2,
            "segments": 2,
            "tenant": "",
            "name": "a\x00b/../😀",
            "opening": [encode_plain({"user_id": "u7"}), None],
        },
    ),
    Case("session_purged", "session", {**SESSION, "sealed": 9, "first": 7}),
    Case(
        "session_trimmed",
        "session",
        {**SESSION, "sealed": 300, "messages": 260, "since_roll_up": 10, "trimmed": 240},
    ),
    Case(
        "session_branched",
        "session",
        {**SESSION, "sealed": 30, "messages": 26, "branches": 300, "head_branch": 256},
    ),
    Case(
        "session_gone",
        "session",
        {**SESSION, "tenant": "", "name": "", "opening": None, "flags": 1, "sealed": 9, "first": 8},
    ),
    Case("session_redacted", "session", {**SESSION, "sealed": 9, "flags": 8}),
    Case("tenant", "tenant", {"number": 1, "secret": SECRET, "name": "acme"}),
    Case("tenant_nameless", "tenant", {"number": 2, "secret": SECRET[::-1], "name": ""}),
    Case("name", "name", {"tenant": "acme", "session": "call-42", "number": 7}),
    Case("name_of_tenant", "name", {"tenant": "acme", "session": "", "number": 1}),
    Case(
        "key",
        "key",
        {
            "session": 7,
            "digest": bytes(range(16)),
            "content": bytes(range(16, 32)),
            "first": 3,
            "last": 5,
            "position": 2**40,
        },
    ),
    Case("variable", "variable", VARIABLE),
    Case(
        "variable_fixed",
        "variable",
        {
            **VARIABLE,
            "key": "\u00e9\0",
            "data": b"\xa1\x61n\x43\xed\xa0\xbd",
            "fixes": [["s", "n"]],
        },
    ),
    Case(
        "branch_opening",
        "branch opening",
        {
            "session": 7,
            "branch": 259,
            "sequence": 2**33,
            "parent": 5,
            "fork_branch": 258,
            "recorded_us": 1_700_000_000_000_000,
        },
    ),
    Case(
        "branch_root",
        "branch opening",
        {
            "session": 7,
            "branch": 1,
            "sequence": 4,
            "parent": NO_PARENT,
            "fork_branch": 0,
            "recorded_us": 1_700_000_000_000_000,
        },
    ),
    Case(
        "branch_tip",
        "branch tip",
        {"session": 7, "branch": 259, "sequence": 2**33 + 1, "recorded_us": 1_700_000_000_000_000},
    ),
    Case(
        "branch_name",
        "branch name",
        {
            "session": 7,
            "sequence": 9,
            "recorded_us": 1_700_000_000_000_000,
            "branch": 259,
            "name": "\u00e9\0/..",
        },
    ),
    Case("activity", "activity", {"tenant": 1, "position": 2**40 + 3, "session": 7}),
    Case(
        "id_header",
        "id header",
        {"generation": 5, "next_run": 10, "merges": 1, "runs": [ID_RUN]},
    ),
    Case("id_run", "id run", ID_RUN),
    Case(
        "id_merge",
        "id merge",
        {"output": {**ID_RUN, "number": 17, "state": 0}, "inputs": (16, 15, 9), "taken": 2**35},
    ),
    Case(
        "id_filter",
        "id filter block",
        {
            "run": 9,
            "hashes": ID_HASHES,
            "words": [0x1080840000000201, 0x40000000210108, 0, 0x8000000000000000],
        },
    ),
    Case(
        "id_entries",
        "id entry block",
        {
            "run": 9,
            "number": 4,
            "previous": bytes(15) + b"\x01",
            "entries": [(each, 2**33 + at, at) for at, each in enumerate(ID_HASHES)],
        },
    ),
    Case(
        "removal",
        "removal",
        {
            "number": 2**33,
            "floor": 2**34 + 5,
            "hot_from": 2**35 + 4_097,
            "left": 3,
            "flags": 0,
            "asked_us": 1_700_000_000_000_000,
        },
    ),
    Case(
        "void",
        "void",
        {
            "position": 2**35 + 4_096,
            "session": 2**33,
            "sequence": 2**34,
            "parent": NO_PARENT,
            "recorded_us": 0,
            "given_us": NO_TIME,
            "branch": 0,
            "tokens": 0,
            "kind": VOID,
            "role": 0,
            "flags": int(Flag.FIRST_OF_COMMIT | Flag.FIRST_OF_RUN | Flag.VOID),
            "extension": b"",
            "body": b"",
        },
    ),
    Case(
        "blob",
        "blob",
        {
            "tenant": 3,
            "address": bytes(range(16)),
            "number": 2**33,
            "size": 2_097_089,
            "stored_bytes": 2_000_000,
            "references": 20,
            "pending_us": 0,
            "chunk_bytes": 1_048_544,
            "chunks": 3,
            "compressed": 1,
            "unnamed": 0,
            "media_type": "image/png",
        },
    ),
    Case(
        "blob_pending",
        "blob",
        {
            "tenant": 1,
            "address": bytes(16),
            "number": 1,
            "size": 0,
            "stored_bytes": 0,
            "references": 0,
            "pending_us": 1_700_000_000_000_000,
            "chunk_bytes": 1_048_544,
            "chunks": 0,
            "compressed": 0,
            "unnamed": 0,
            "media_type": "",
        },
    ),
    Case(
        "blob_held",
        "blob",
        {
            "tenant": 1,
            "address": bytes(16),
            "number": 1,
            "size": 0,
            "stored_bytes": 0,
            "references": 7,
            "pending_us": 1_700_000_000_000_000,
            "chunk_bytes": 1_048_544,
            "chunks": 0,
            "compressed": 0,
            "unnamed": 2,
            "media_type": "",
        },
    ),
    Case(
        "pending",
        "pending blob",
        {
            "number": 2**33,
            "tenant_number": 3,
            "pending_us": 1_700_000_000_000_000,
            "address": bytes(range(16)),
        },
    ),
    Case(
        "pending_doomed",
        "pending blob",
        {"number": 1, "tenant_number": 1, "pending_us": 0, "address": bytes(16)},
    ),
    Case("chunk_raw", "raw chunk", {"number": 2**33, "index": 2, "content": b"abc"}),
    Case("chunk", "chunk", {"number": 1, "index": 0, "content": b"over and over " * 100}),
    Case(
        "owner",
        "owner",
        {
            "pid": 4_711,
            "start": 123_456,
            "started_us": 1_700_000_000_000_000,
            "boot": "0b5e1c0e-0000-4000-8000-000000000000",
            "namespace": 4_026_531_836,
            "host": "voice-1",
            "command": "python -m calls",
        },
    ),
]
CASE_OF = {case.name: case for case in CASES}


def encode(case: Case) -> Row:
    """The case's key and value as this tree writes them."""
    return KINDS[case.kind].encode(case.values)


def decode(case: Case, row: Row) -> Values:
    """Values of a key and value; what a row does not tell is the case's own."""
    return {**case.values, **KINDS[case.kind].decode(*row)}


def to_text(case: Case, row: Row) -> str:
    """The text of a hex file."""
    key, value = row
    lines = [f"# {case.kind}", f"key {key.hex()}", "value"]
    lines += [value[at : at + 40].hex() for at in range(0, len(value), 40)]
    return "\n".join(lines) + "\n"


def read(case: Case) -> Row:
    """Key and value from the hex file."""
    _, key, _, *value = case.path.read_text("ascii").splitlines()
    return bytes.fromhex(key.removeprefix("key")), bytes.fromhex("".join(value))


def main() -> None:
    """Write the files that are missing."""
    for case in CASES:
        if not case.path.exists():
            case.path.write_text(to_text(case, encode(case)), "ascii")
            print(f"wrote {case.path.name}")


if __name__ == "__main__":
    main()
