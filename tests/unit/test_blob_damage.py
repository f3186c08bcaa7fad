"""Damaged blobs: what is read, what check says, and what salvage brings out."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine import ConflictError, CorruptionError, Lost, Store
from eventlog import blobtable, writer
from eventlog.blob import NO_ADDRESS, BlobRow, PendingRow, blob_key, pending_key
from eventlog.keys import PAIR
from eventlog.limits import BLOB_PENDING_US, CHUNK_BYTES_MAX
from eventlog.seams import CLOCK
from tests.damaged_store import flipped, put, rows

NOISE = random.Random(9).randbytes(2 * CHUNK_BYTES_MAX + 10)
TEXT = b"all work and no play " * 10_000
MESSAGE = {"role": "user", "content": "look"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store in which an event names two blobs, and a third is pending."""
    path = tmp_path / "store"
    with Store.open(path) as store:
        noise, text = store.blobs.put(NOISE), store.blobs.put(TEXT)
        store.session("a").append(MESSAGE, blobs=[noise, text]).result(10)
        store.session("b").append(MESSAGE, blobs=[text]).result(10)
        store.blobs.put(b"pending")
        assert store.check().ok
    return path


def row_of(path: Path, number: int) -> tuple[bytes, BlobRow]:
    """Key and row of a blob by number: 1 the noise, 2 the text, 3 the pending one."""
    for table, key, value in rows(path):
        if table == "blob" and len(key) == 24:
            row = BlobRow.decode(key, value)
            if row.number == number:
                return key, row
    raise AssertionError(number)


def value_of(path: Path, table: str, key: bytes) -> bytes:
    return next(value for each, found, value in rows(path) if (each, found) == (table, key))


def findings(path: Path) -> list[tuple[str, str]]:
    with Store.open(path, create=False) as store:
        return [(each.where, each.message) for each in store.check().findings]


def test_a_flipped_chunk_is_named_and_takes_nothing_else_along(path: Path) -> None:
    key = PAIR.pack(1, 1)
    put(path, ("chunk", key, flipped(value_of(path, "chunk", key), -5)))
    address = row_of(path, 1)[0][8:]
    where = f"blob {address.hex()} chunk 1"
    assert findings(path) == [(where, "chunk checksum does not match")]
    with Store.open(path, create=False) as store:
        noise, text = store.session("a").event(0).blobs
        with pytest.raises(CorruptionError) as caught:
            store.blobs.read(noise)
        assert caught.value.where == where
        first, last = CHUNK_BYTES_MAX, 2 * CHUNK_BYTES_MAX
        assert store.blobs.read(noise, 0, first) == NOISE[:first]
        assert store.blobs.read(noise, last) == NOISE[last:]
        assert store.blobs.read(text) == TEXT
        assert store.session("a").history() == [MESSAGE]
        for again in (NOISE, iter([NOISE])):
            with pytest.raises(CorruptionError, match="chunk 1"):
                store.blobs.put(again)
        assert store.stats()["blobs"]["unfinished"] == 0
        with pytest.raises(CorruptionError, match="chunk 1"):
            list(store.export_lines(store.session("a").events()))


def test_salvage_leaves_out_the_damaged_blob_alone(
    path: Path, tmp_path: Path, checked_store: Callable[..., Store]
) -> None:
    key = PAIR.pack(1, 2)
    put(path, ("chunk", key, flipped(value_of(path, "chunk", key))))
    with Store.open(path, create=False) as store:
        found = list(store.salvage())
    lost = [each for each in found if isinstance(each, Lost)]
    assert [(each.session, each.first, each.last, each.is_blob) for each in lost] == [
        ("a", 0, 0, True)
    ]
    assert "chunk 2" in str(lost[0].error)
    second = checked_store(tmp_path / "second")
    second.load([json.loads(each) for each in found if isinstance(each, str)])
    (text,) = second.session("a").event(0).blobs
    assert second.session("b").event(0).blobs == (text,)
    assert second.blobs.read(text) == TEXT


def change(path: Path, number: int, **fields: object) -> tuple[str, bytes, bytes]:
    key, row = row_of(path, number)
    return "blob", key, replace(row, **fields).encode(key)  # type: ignore[arg-type]


def numbered(path: Path, number: int, other: int) -> bytes:
    key, row = row_of(path, number)
    return replace(row, number=other).encode(key)


def flip(path: Path, table: str, key: bytes) -> tuple[str, bytes, bytes]:
    return table, key, flipped(value_of(path, table, key))


Damage = Callable[[Path], list[tuple[str, bytes, bytes | None]]]
CASES: list[tuple[str, Damage, list[str]]] = [
    (
        "chunk missing",
        lambda path: [("chunk", PAIR.pack(1, 1), None)],
        ["is missing, or is one too many"],
    ),
    (
        "chunk too many",
        lambda path: [("chunk", PAIR.pack(2, 9), value_of(path, "chunk", PAIR.pack(2, 0)))],
        ["is missing, or is one too many"],
    ),
    (
        "chunks of nobody",
        lambda path: [("chunk", PAIR.pack(99, 0), value_of(path, "chunk", PAIR.pack(2, 0)))],
        ["no blob has number 99"],
    ),
    ("chunk's key", lambda path: [("chunk", b"short", b"x" * 20)], ["key has another size"]),
    ("row's key", lambda path: [("blob", b"\1" * 30, b"x" * 90)], ["key has another size"]),
    (
        "row missing",
        lambda path: [("blob", row_of(path, 2)[0], None)],
        ["is missing, and an event names it", "no blob has number 2"],
    ),
    (
        "row flipped",
        lambda path: [
            ("blob", row_of(path, 2)[0], flipped(value_of(path, "blob", row_of(path, 2)[0])))
        ],
        ["checksum does not match"],
    ),
    (
        "too few references",
        lambda path: [change(path, 2, references=1)],
        ["counts 1 references, events hold 2"],
    ),
    (
        "too many references",
        lambda path: [change(path, 2, references=3)],
        ["counts 3 references, events hold 2"],
    ),
    (
        "number never given",
        lambda path: [
            ("blob", row_of(path, 2)[0], numbered(path, 2, 77)),
            ("chunk", PAIR.pack(77, 0), b"x" * 20),
        ],
        [
            "blob number 77 was never handed out",
            "chunk states what cannot be",
            "no blob has number 2",
        ],
    ),
    (
        "another content",
        lambda path: [
            ("blob", blob_key(1, b"A" * 16), row_of(path, 3)[1].encode(blob_key(1, b"A" * 16)))
        ],
        ["another blob has its number, 3", "another address"],
    ),
    (
        "row of a strange tenant",
        lambda path: [
            ("blob", blob_key(9, b"A" * 16), row_of(path, 3)[1].encode(blob_key(9, b"A" * 16)))
        ],
        ["belongs to tenant 9, which has no row"],
    ),
    (
        "counts of the row",
        lambda path: [change(path, 2, stored_bytes=1)],
        ["row does not describe its chunks"],
    ),
    (
        "pending row missing",
        lambda path: [("blob", pending_key(3), None)],
        ["waits to be named, and has no pending row"],
    ),
    (
        "pending row of another time",
        lambda path: [
            (
                "blob",
                pending_key(3),
                PendingRow(1, 5, row_of(path, 3)[0][8:]).encode(pending_key(3)),
            )
        ],
        ["is not what its blob's row says"],
    ),
    (
        "pending row of a referenced blob",
        lambda path: [
            (
                "blob",
                pending_key(2),
                PendingRow(1, 5, row_of(path, 2)[0][8:]).encode(pending_key(2)),
            )
        ],
        ["is not what its blob's row says"],
    ),
    (
        "hole in a stream",
        lambda path: [
            ("blob", pending_key(1), PendingRow(1, 5, NO_ADDRESS).encode(pending_key(1))),
            ("chunk", PAIR.pack(1, 0), None),
        ],
        ["chunk 0 is missing", "is missing, or is one too many"],
    ),
]


@pytest.mark.parametrize(
    ("damage", "said"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_check_finds(path: Path, damage: Damage, said: list[str]) -> None:
    put(path, *damage(path))
    found = findings(path)
    for text in said:
        assert any(text in message for _, message in found), (text, found)
    assert len(found) <= len(said) + 1, found


def test_a_collection_does_not_take_what_rows_disagree_about(path: Path) -> None:
    key, _ = row_of(path, 2)
    put(path, ("blob", pending_key(2), PendingRow(1, 5, key[8:]).encode(pending_key(2))))
    with Store.open(path, create=False) as store:
        with pytest.raises(CorruptionError, match="not what its pending row says"):
            store.collect_blobs()
        assert store.blobs.read(key[8:]) == TEXT


def bad_checksum(path: Path, number: int) -> None:
    key = pending_key(number)
    put(path, ("blob", key, flipped(value_of(path, "blob", key))))


def bad_agreement(path: Path, number: int) -> None:
    key, row = row_of(path, number)
    put(path, ("blob", key, replace(row, number=row.number + 99).encode(key)))


def bad_blob_row(path: Path, number: int) -> None:
    key, _ = row_of(path, number)
    put(path, ("blob", key, flipped(value_of(path, "blob", key))))


def bad_key(path: Path, number: int) -> None:
    put(path, ("blob", pending_key(number) + b"!", b"x" * 40))


DAMAGE = [bad_checksum, bad_agreement, bad_blob_row, bad_key]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("rows_max", [1, 2, 64])
def test_a_collection_steps_over_what_is_damaged(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path, int], None],
    rows_max: int,
) -> None:
    """Every collection ended at the first such row, and nobody was told: all after it stayed."""
    with Store.open(path) as store:
        for number in range(4):
            store.blobs.put(b"later %d" % number)
    damage(path, 4)
    start = CLOCK.wall_us()
    monkeypatch.setattr(CLOCK, "wall_us", lambda: start + 2 * BLOB_PENDING_US)
    monkeypatch.setattr(blobtable, "COLLECT_ROWS_MAX", rows_max)
    with Store.open(path) as store:
        assert store.health()["ok"]
        with pytest.raises(CorruptionError):
            store.collect_blobs(30)
        (problem,) = store.health()["problems"]
        assert "1 blobs cannot be collected" in problem
        left = [row_of_number for row_of_number, _ in pending_of(store)]
        assert left == ([4] if damage in (bad_agreement, bad_blob_row) else [])
        store.session("a").append(MESSAGE).result(10)


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_store_s_own_collection_steps_over_damage_and_tells_health(
    path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path, int], None]
) -> None:
    with Store.open(path) as store:
        for number in range(4):
            store.blobs.put(b"later %d" % number)
    damage(path, 4)
    start = CLOCK.wall_us()
    monkeypatch.setattr(CLOCK, "wall_us", lambda: start + 2 * BLOB_PENDING_US)
    monkeypatch.setattr(writer, "COLLECT_EVERY_US", 0)
    with Store.open(path) as store:
        for _ in range(1000):
            store.session("a").append(MESSAGE).result(10)  # after each of them it may look
            if store.health()["problems"]:
                break
        (problem,) = store.health()["problems"]
        assert "1 blobs cannot be collected" in problem
        for _ in range(1000):
            store.session("a").append(MESSAGE).result(10)
            if len(pending_of(store)) <= 1:
                break
        assert [number for number, _ in pending_of(store)] in ([], [4])


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_erasure_does_not_end_at_a_blob_of_others_that_is_damaged(
    path: Path, damage: Callable[[Path, int], None]
) -> None:
    """It read all pending rows, and so did each commit after it: none succeeded any more."""
    damage(path, 3)
    with Store.open(path) as store:
        assert not store.session("a").erase(30).is_live
        store.session("c").append(MESSAGE).result(10)
        assert not store.session("a").exists


def pending_of(store: Store) -> list[tuple[int, PendingRow]]:
    with store._log.views.transaction() as tables:
        tables.commit_record()
        return list(blobtable.pending_rows(tables, damaged={}))


def test_a_damaged_row_refuses_only_the_append_that_names_it(path: Path) -> None:
    key, _ = row_of(path, 2)
    put(path, ("blob", key, flipped(value_of(path, "blob", key))))
    with Store.open(path, create=False) as store:
        call = store.session("c")
        acks = [call.append(MESSAGE), call.append(MESSAGE, blobs=[key[8:]]), call.append(MESSAGE)]
        with pytest.raises(CorruptionError, match="checksum"):
            acks[1].result(10)
        assert [acks[0].result(10).first, acks[2].result(10).first] == [0, 1]
        with pytest.raises(CorruptionError):
            store.blobs.get(key[8:])


def test_lost_events_do_not_make_references_wrong(path: Path) -> None:
    """An event that cannot be read is one finding; that its references were not counted is none."""
    table, key, value = next(each for each in rows(path) if each[0].startswith("log."))
    put(path, (table, key, flipped(value)))
    found = findings(path)
    assert not any("references" in message for _, message in found), found
    assert found


def test_an_event_without_its_blob_is_still_read(path: Path) -> None:
    key, _ = row_of(path, 2)
    put(path, ("blob", key, None))
    with Store.open(path, create=False) as store:
        event = store.session("a").event(0)
        assert event.body == MESSAGE
        assert store.blobs.read(event.blobs[0]) == NOISE
        with pytest.raises(ConflictError, match="no blob"):
            store.blobs.read(event.blobs[1])
        found = store.blobs.of(event)
        assert next(found).size == len(NOISE)
        with pytest.raises(CorruptionError, match="is missing, and an event names it"):
            next(found)
