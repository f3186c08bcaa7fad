"""What lies in a data file is read without mapping it, and whatever it is, the answer is typed."""

from __future__ import annotations

import os
import random
import shutil
import struct
from pathlib import Path

import lmdb
import pytest

from eventlog.errors import (
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    TurnlogError,
)
from eventlog.raw import COMMIT_KEY, COMMIT_TABLE, DATA_FILE, DataFile, examine, read_metas
from eventlog.rows import CommitRecord
from tests.tiny_store import append, make, open_tiny

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data file of 200 commits, never changed."""
    path = tmp_path_factory.mktemp("pristine") / "store"
    make(path)
    with open_tiny(path) as environment:
        for number in range(200):
            append(environment, bytes([number]) * 700)
    return path / DATA_FILE


@pytest.fixture
def data(pristine: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copy(pristine, tmp_path / DATA_FILE))


def look(data: Path, *, verify: bool = False) -> CommitRecord:
    return examine(data, CommitRecord.decode, verify=verify).record


def patch(data: Path, offset: int, content: bytes) -> None:
    with open(data, "r+b") as file:
        file.seek(offset)
        file.write(content)


def txn_offset(meta: int) -> int:
    return meta * PAGE + 16 + 24 + 2 * 48 + 8


def read_u64(data: Path, offset: int) -> int:
    content = data.read_bytes()
    return int(struct.unpack_from("=Q", content, offset)[0])


def test_a_healthy_file_shows_its_commit_record(data: Path) -> None:
    found = examine(data, CommitRecord.decode, verify=True)
    assert found.record.last_position == 200
    assert found.record.transaction == found.meta.transaction == 201
    assert found.meta.page_bytes == PAGE
    assert found.verified
    assert found.file_bytes == data.stat().st_size >= found.meta.bytes_in_use
    assert not examine(data, CommitRecord.decode).verified


def test_metas_come_newer_first(data: Path) -> None:
    newer, older = read_metas(data)
    assert (newer.transaction, older.transaction) == (201, 200)
    assert (newer.number, older.number) == (1, 0)


@pytest.mark.parametrize(
    ("key", "size"),
    [(b"a", 0), (b"a", 1), (b"m" * 511, 40), (b"middle", 1_900), (b"z", 60_000)],
    ids=["empty", "one", "long-key", "inline", "overflow"],
)
def test_lookup_finds_what_lmdb_finds(tmp_path: Path, key: bytes, size: int) -> None:
    value = bytes(range(256)) * (size // 256 + 1)
    value = value[:size]
    environment = lmdb.open(str(tmp_path), map_size=1 << 30, max_dbs=2, lib_version=0)
    table = environment.open_db(b"table")
    with environment.begin(write=True) as txn:
        for number in range(5_000):  # three levels
            txn.put(b"k%08d" % number, b"filler" * 9, db=table)
        txn.put(key, value, db=table)
    environment.close()
    descriptor = os.open(tmp_path / DATA_FILE, os.O_RDONLY)
    try:
        file = DataFile(descriptor, "here")
        newer, _ = file.metas()
        assert file.lookup(newer, b"table", key) == value
        assert file.lookup(newer, b"table", b"k00002500") == b"filler" * 9
        assert file.lookup(newer, b"table", b"nothing") is None
        assert file.lookup(newer, b"no table", key) is None
    finally:
        os.close(descriptor)


def test_an_empty_file_was_a_store(data: Path) -> None:
    os.truncate(data, 0)
    with pytest.raises(CorruptionError, match="empty"):
        look(data)


def test_a_missing_file_was_a_store(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="missing"):
        look(tmp_path / DATA_FILE)


@pytest.mark.parametrize(
    "content",
    [b"x", b"hello\n" * 5_000, bytes(200_000), b"SQLite format 3\0" + bytes(8_192)],
    ids=["one-byte", "text", "zeros", "sqlite"],
)
def test_a_foreign_file_is_no_store(tmp_path: Path, content: bytes) -> None:
    data = tmp_path / DATA_FILE
    data.write_bytes(content)
    with pytest.raises(NotAStoreError):
        look(data)
    assert data.read_bytes() == content


def test_lmdb_1_is_another_format(tmp_path: Path) -> None:
    environment = lmdb.open(str(tmp_path), map_size=1 << 20, lib_version=1)
    with environment.begin(write=True) as txn:
        txn.put(b"key", b"value")
    environment.close()
    with pytest.raises(FormatVersionError) as caught:
        look(tmp_path / DATA_FILE)
    assert "3" in str(caught.value.found) and "1" in str(caught.value.supported)


def test_the_other_byte_order_is_another_format(data: Path) -> None:
    content = bytearray(data.read_bytes())
    for meta in (0, 1):
        magic = slice(meta * PAGE + 16, meta * PAGE + 20)
        content[magic] = content[magic][::-1]
    data.write_bytes(content)
    with pytest.raises(FormatVersionError, match="byte order"):
        look(data)


@pytest.mark.parametrize("meta", [0, 1])
def test_one_meta_page_without_magic_is_damage(data: Path, meta: int) -> None:
    patch(data, meta * PAGE + 16, bytes(4))
    with pytest.raises(CorruptionError, match=f"meta page {meta}"):
        look(data)


@pytest.mark.parametrize("meta", [0, 1])
@pytest.mark.parametrize("bit", range(64))
def test_no_flipped_bit_of_a_transaction_id_is_missed(data: Path, meta: int, bit: int) -> None:
    # Such a bit silently takes LMDB back by a commit; its own checks see nothing.
    offset = txn_offset(meta)
    patch(data, offset, struct.pack("=Q", read_u64(data, offset) ^ 1 << bit))
    try:
        found = examine(data, CommitRecord.decode)
    except CorruptionError:
        return
    assert "rolled back" in found.warnings[0]


@pytest.mark.parametrize("grows", [False, True])
def test_bit_1_of_the_newer_transaction_is_told_from_a_failed_write(
    tmp_path: Path, grows: bool
) -> None:
    # Parity and adjacency of the two numbers cannot see it; the older root can.
    make(tmp_path / "store")
    with open_tiny(tmp_path / "store") as environment:
        while True:
            before = environment.last_page()
            append(environment, b"x" * (9_000 if grows else 1))
            grew = environment.last_page() > before
            if environment._lmdb.info()["last_txnid"] & 2 and grew is grows:
                break
    data = tmp_path / "store" / DATA_FILE
    newer, _ = read_metas(data)
    patch(data, txn_offset(newer.number), struct.pack("=Q", newer.transaction ^ 2))
    if grows:
        with pytest.raises(CorruptionError, match="rolled back"):
            look(data)
    else:
        assert "rolled back" in examine(data, CommitRecord.decode).warnings[0]


def test_a_meta_page_that_could_not_be_written_is_no_damage(data: Path) -> None:
    # LMDB then puts the old transaction and last page back, beside the roots of the failed commit.
    newer, older = read_metas(data)
    content = data.read_bytes()
    roots = newer.number * PAGE + 16 + 24
    patch(data, older.number * PAGE + 16 + 24, content[roots : roots + 2 * 48])
    assert examine(data, CommitRecord.decode).warnings == ()
    empty = bytes(PAGE)
    patch(data, (newer.last_page + 1) * PAGE, empty)  # a root outside of what is in use
    patch(data, older.number * PAGE + 16 + 24 + 48 + 40, struct.pack("=Q", newer.last_page + 1))
    assert examine(data, CommitRecord.decode).record.last_position == 200


def test_a_meta_page_put_back_is_a_rollback(data: Path) -> None:
    # Both pages agree with each other, but the tree of the newer one belongs to another commit.
    newer, older = read_metas(data)
    content = data.read_bytes()
    first = content[older.number * PAGE : older.number * PAGE + 168]
    patch(data, newer.number * PAGE, first)
    patch(data, newer.number * PAGE, struct.pack("=Q", newer.number))
    patch(data, txn_offset(newer.number), struct.pack("=Q", newer.transaction))
    with pytest.raises(CorruptionError, match="rolled back"):
        look(data)


def test_a_file_shorter_than_its_commit_record_says_is_refused(data: Path) -> None:
    record = look(data)
    os.truncate(data, record.file_bytes - 1)
    with pytest.raises(CorruptionError):
        look(data)


def test_every_truncation_to_whole_pages_is_refused_or_verified(data: Path) -> None:
    found = examine(data, CommitRecord.decode)
    for pages in range(found.meta.last_page, -1, -1):
        os.truncate(data, pages * PAGE)
        with pytest.raises(CorruptionError):
            look(data)


def test_a_short_file_is_walked(data: Path) -> None:
    # One more page in use than the file has, which no table and no free list names.
    newer, _ = read_metas(data)
    last_page = newer.number * PAGE + 16 + 24 + 2 * 48
    size = data.stat().st_size
    patch(data, last_page, struct.pack("=Q", size // PAGE))
    with pytest.raises(CorruptionError, match="findings"):
        look(data)


def test_a_transaction_may_leave_the_file_short(tmp_path: Path) -> None:
    environment = lmdb.open(str(tmp_path), map_size=1 << 30, max_dbs=2, lib_version=0)
    verified = []
    for number in range(30):
        with environment.begin(write=True) as txn:
            table = environment.open_db(COMMIT_TABLE, txn=txn)
            for filler in range(number * 3):
                txn.put(b"f%d" % filler, bytes(3_000), db=table)
            for filler in range(number * 3):
                txn.delete(b"f%d" % filler, db=table)
            record = CommitRecord(transaction=txn.id())
            txn.put(COMMIT_KEY, record.encode(), db=table)
        in_use = (environment.info()["last_pgno"] + 1) * PAGE
        found = examine(tmp_path / DATA_FILE, CommitRecord.decode)
        assert found.verified == ((tmp_path / DATA_FILE).stat().st_size < in_use)
        verified.append(found.verified)
    environment.close()
    assert any(verified), "LMDB is expected to leave files short"


def test_a_huge_last_page_allocates_nothing(data: Path) -> None:
    newer, _ = read_metas(data)
    patch(data, newer.number * PAGE + 16 + 24 + 2 * 48, struct.pack("=Q", 1 << 47))
    with pytest.raises(CorruptionError, match="missing"):
        look(data, verify=True)


def test_a_record_that_does_not_decode_is_damage(data: Path) -> None:
    content = data.read_bytes()
    value = look(data).encode()
    at = content.rindex(value)
    patch(data, at + 20, bytes([content[at + 20] ^ 1]))
    with pytest.raises(CorruptionError, match="checksum"):
        look(data)


def test_a_missing_record_is_damage(tmp_path: Path) -> None:
    environment = lmdb.open(str(tmp_path), map_size=1 << 20, max_dbs=2, lib_version=0)
    with environment.begin(write=True) as txn:
        txn.put(b"key", b"value")
    environment.close()
    with pytest.raises(CorruptionError, match="no commit record"):
        look(tmp_path / DATA_FILE)


@pytest.mark.parametrize("seed", range(8))
def test_random_damage_gives_an_answer_or_a_typed_error(data: Path, seed: int) -> None:
    """Flips, overwritten ranges and cuts, most of them where the structure is."""
    dice = random.Random(seed)
    content = data.read_bytes()
    for _ in range(120):
        damaged = bytearray(content)
        for _ in range(dice.choice((1, 1, 2, 5))):
            page = dice.choice((0, 1, dice.randrange(len(content) // PAGE)))
            offset = page * PAGE + dice.choice((dice.randrange(64), dice.randrange(PAGE)))
            if dice.random() < 0.5:
                damaged[offset] ^= 1 << dice.randrange(8)
            else:
                length = dice.choice((1, 2, 4, 8, 64, 512))
                end = min(len(damaged), offset + length)
                damaged[offset:end] = dice.randbytes(end - offset)
        if dice.random() < 0.1:
            del damaged[dice.randrange(len(damaged)) :]
        data.write_bytes(damaged)
        try:
            record = look(data, verify=dice.random() < 0.1)
        except TurnlogError:
            continue
        assert record.last_position == 200, f"seed {seed}"


def test_pages_that_point_in_circles_end(data: Path) -> None:
    # A branch page that is its own child must not be followed for ever.
    newer, _ = read_metas(data)
    descriptor = os.open(data, os.O_RDWR)
    try:
        root = newer.main.root
        assert root is not None
        page = bytearray(os.pread(descriptor, PAGE, root * PAGE))
        struct.pack_into("=QHHHH", page, 0, root, 0, 1, 18, 4_000)  # a branch with one child
        struct.pack_into("=H", page, 16, 4_000)
        struct.pack_into("=HHHH", page, 4_000, root, 0, 0, 0)
        os.pwrite(descriptor, page, root * PAGE)
        tree = newer.number * PAGE + 16 + 24 + 48
        os.pwrite(descriptor, struct.pack("=H", 30), tree + 6)  # 30 levels
    finally:
        os.close(descriptor)
    with pytest.raises(CorruptionError):
        look(data)
