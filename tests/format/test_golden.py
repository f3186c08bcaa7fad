"""Golden bytes: rows of every kind mean what they always meant, and are written as ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.drafting import draft_event
from engine.export import escape, unescape
from eventlog.blob import content_address
from eventlog.body import canonical_bytes, decode_body, encode_body
from eventlog.chunk import PREFIX_BYTES as CHUNK_PREFIX_BYTES
from eventlog.columns import WORDS
from eventlog.content import fingerprint_of
from eventlog.digests import content_digest, id_digest, key_digest
from eventlog.errors import CorruptionError
from eventlog.hotlog import hot_table
from eventlog.keys import name_key
from eventlog.order import PREFIX_BYTES as ORDER_PREFIX_BYTES
from eventlog.order import next_link
from eventlog.place import encode_marker
from eventlog.segment import PREFIX_BYTES as SEGMENT_PREFIX_BYTES
from tests.format import independent
from tests.format.cases import (
    CASES,
    DICTIONARY,
    GOLDEN,
    KINDS,
    SECRET,
    Case,
    decode,
    encode,
    read,
    to_text,
)
from tests.format.independent import inflate
from tests.format.independent_rows import ROWS
from tests.format.values import identical

every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
checked_cases = pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.kind != "owner"],  # for people only, without a checksum
    ids=[case.name for case in CASES if case.kind != "owner"],
)
PREFIXES = {
    "segment": SEGMENT_PREFIX_BYTES,
    "segment with dictionary": SEGMENT_PREFIX_BYTES,
    "cut order block": ORDER_PREFIX_BYTES,
    "chunk": CHUNK_PREFIX_BYTES,
}


def test_every_kind_has_a_case_and_every_file_too() -> None:
    assert {case.kind for case in CASES} == set(KINDS)
    assert {case.path.name for case in CASES} == {path.name for path in GOLDEN.glob("*.hex")}


@every_case
def test_golden_bytes_decode(case: Case) -> None:
    assert identical_values(decode(case, read(case)), case.values)


@every_case
def test_the_document_alone_says_what_golden_bytes_mean(case: Case) -> None:
    key, value = read(case)
    found = ROWS[case.kind](key, value)
    wanted = dict(case.values)
    if case.kind == "name":
        assert independent.name_key(wanted["tenant"], wanted["session"]) == key
    elif case.kind == "id header":
        wanted["runs"] = len(wanted["runs"])
    assert found
    assert found == {name: wanted[name] for name in found}


@every_case
def test_golden_bytes_are_written_again(case: Case) -> None:
    key, value = encode(case)
    wanted_key, wanted = read(case)
    assert key == wanted_key
    if KINDS[case.kind].exact:
        assert value == wanted
        assert to_text(case, (key, value)) == case.path.read_text("ascii")
    else:  # zstd's bytes may differ from release to release; checksum and content do not
        size = PREFIXES[case.kind]
        assert value[:size] == wanted[:size]
        stated = (
            sum(
                len(record["extension"] + record["body"]) + 8 * WORDS
                for record in case.values.get("records", [])
            )
            or 16 * len(case.values.get("sessions", []))
            or len(case.values["content"])
        )
        known = DICTIONARY if "dictionary" in case.values else None
        assert inflate(value[size:], stated, known) == inflate(wanted[size:], stated, known)


@checked_cases
def test_every_flipped_bit_is_seen(case: Case) -> None:
    """A flip raises; or zstd still finds the same content, which the checksum covers."""
    key, value = read(case)
    for place in range(len(value)):
        for bit in range(8):
            if len(value) > 1_000 and (place * 8 + bit) % 61:
                continue  # each bit of a long one's bytes in turn
            flipped = bytearray(value)
            flipped[place] ^= 1 << bit
            try:
                found = decode(case, (key, bytes(flipped)))
            except CorruptionError:
                continue
            assert case.kind in PREFIXES, (place, bit)
            assert place >= PREFIXES[case.kind], (place, bit)
            assert identical_values(found, case.values), (place, bit)


@checked_cases
def test_every_flipped_bit_of_a_key_is_seen(case: Case) -> None:
    key, value = read(case)
    if case.kind in ("commit record", "options", "id header"):
        return  # their keys are constants
    for place in range(case.kind == "id filter block", len(key)):  # its first byte is one
        for bit in range(8):
            flipped = bytearray(key)
            flipped[place] ^= 1 << bit
            with pytest.raises(CorruptionError):
                decode(case, (bytes(flipped), value))


@checked_cases
def test_every_cut_or_longer_value_is_refused(case: Case) -> None:
    key, value = read(case)
    step = 1 if len(value) < 1_000 else 97
    for size in [*range(0, len(value), step), len(value) - 1]:
        with pytest.raises(CorruptionError):
            decode(case, (key, value[:size]))
    for more in (b"\0", value[-1:], value):
        with pytest.raises(CorruptionError):
            decode(case, (key, value + more))


def blob_address(content: bytes) -> bytes:
    digest = content_address(SECRET)
    digest.update(content)
    return digest.digest()


def identical_values(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left == right and list(left) == list(right)


# Bodies, digests and the marker: one line of JSON each


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / name).read_text("utf-8").splitlines()]


@pytest.mark.parametrize("line", lines_of("bodies.jsonl"), ids=lambda line: line["name"])
def test_golden_bodies(line: dict[str, Any]) -> None:
    value = unescape(line["value"])
    fixes = unescape(line["fixes"])
    data, found_fixes = encode_body(value)
    assert data.hex() == line["cbor"]
    assert found_fixes == fixes
    assert identical(decode_body(bytes.fromhex(line["cbor"]), fixes), value)
    assert canonical_bytes(data, found_fixes).hex() == line["canonical"]
    assert canonical_bytes(data, found_fixes, is_ours=True).hex() == line["canonical"]
    assert json.dumps(escape(value)) == json.dumps(line["value"])


@pytest.mark.parametrize("line", lines_of("digests.jsonl"), ids=lambda line: line["name"])
def test_golden_digests(line: dict[str, Any]) -> None:
    arguments = [unescape(each) for each in line["of"]]
    digests: dict[str, Callable[..., bytes]] = {
        "name key": name_key,
        "idempotency key": lambda key: key_digest(SECRET, key),
        "caller's id": lambda given: id_digest(SECRET, given),
        "content": lambda content: content_digest(SECRET, content),
        "canonical content": lambda kind, body, **marks: fingerprint_of(
            [draft_event(kind, body, **marks)]
        ),
        "link": next_link,
        "blob address": blob_address,
    }
    marks = unescape(line.get("with", {}))
    assert digests[line["what"]](*arguments, **marks).hex() == line["digest"]


@pytest.mark.parametrize(
    ("position", "table"),
    [
        (1, "log.00"),
        (4_096, "log.00"),
        (4_097, "log.01"),
        (47 * 4_096 + 1, "log.2f"),
        (48 * 4_096, "log.2f"),
        (48 * 4_096 + 1, "log.00"),
        (2**40 + 1, "log.10"),
    ],
)
def test_golden_hot_tables(position: int, table: str) -> None:
    assert hot_table(position) == table


def test_golden_marker() -> None:
    assert encode_marker({"store_id": "00" * 16}) == (
        b'{\n "format": "turnlog",\n "version": 2,\n "store_id": "' + b"00" * 16 + b'"\n}\n'
    )
