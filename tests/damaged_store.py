"""A small store with a row of every kind, and ways to damage single rows of it.

Small for what it holds: a row of an order block or id run comes up only once a hot table was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import lmdb
from xxhash import xxh3_64_digest
from zstandard import ZstdCompressor, ZstdDecompressor

from engine import Store
from eventlog.hotlog import hot_table
from eventlog.limits import HOT_TABLE_POSITIONS
from eventlog.rows import COMMIT_KEY, CommitRecord, protect
from eventlog.segment import PREFIX_BYTES as SEGMENT_PREFIX_BYTES
from eventlog.tables import TABLES

ORDER_PREFIX_BYTES: Final = 32
SESSIONS: Final = (("", "call-1"), ("", "call-2"), ("acme", "call-1"), ("acme", "late"))
KEYED: Final = range(0, 60, 8)  # turns; all in the first half of a hot table, so that
NAMED: Final = range(0, 60, 5)  # the ids make one run
Row = tuple[str, bytes, bytes]  # table, key, value


def make(path: Path) -> None:
    """Make it: three sessions of which most is sealed and cut, one that is only hot.

    Their segments are not merged, so that each session has several.
    """
    with Store.open(path, snapshot_frequency=20) as store:
        merges: Any = store._log.writer.composer.merges
        merges.note = lambda _: None
        calls = [
            store.tenant(tenant).session(name, user_id=f"user of {name}", metadata={"k": b"1"})
            for tenant, name in SESSIONS[:3]
        ]
        for turn in range(HOT_TABLE_POSITIONS // 36 + 4):
            for call in calls:
                call.append_many(
                    [{"role": "user", "content": f"turn {turn}"}] * 11,
                    idempotency_key=f"turn {turn}" if turn in KEYED else None,
                )
                call.append(
                    {"role": "assistant", "content": f"cut \ud83d {turn}", "\udc00": float(turn)},
                    id=f"{call.tenant}-{call.name}-{turn}" if turn in NAMED else None,
                    metadata={"turn": turn, "text": "\ud83d"},
                    run_id="r",
                )
            store.flush()
    with Store.open(path) as store:
        calls[0] = store.session("call-1")
        calls[0].append({"role": "user", "content": "loose"}, idempotency_key="loose").result(10)
        late = store.tenant("acme").session("late", title="Late")
        late.append({"role": "user", "content": "first"}).result(10)
        late.append({"role": "user", "content": "second"}, id="late-2").result(10)
        late.append_event("timing", {"ms": [1, 2.5, None, True]}).result(10)
        assert store.check().ok, store.check().findings
        assert store._log.index.floor > 1


@contextmanager
def opened(path: Path, *, write: bool = False) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A transaction of the bare environment, and the tables' handles."""
    with lmdb.open(
        str(path), max_dbs=64, map_size=1 << 30, subdir=True, readonly=not write, lock=write
    ) as environment:
        handles = {name: environment.open_db(name.encode(), create=False) for name in TABLES}
        with environment.begin(write=write) as transaction:
            yield transaction, handles


def rows(path: Path) -> list[Row]:
    """Every row of the store."""
    with opened(path) as (transaction, handles):
        return [
            (table, bytes(key), bytes(value))
            for table in TABLES
            for key, value in transaction.cursor(handles[table])
        ]


def put(path: Path, *changes: tuple[str, bytes, bytes | None]) -> None:
    """Write rows as they are, None deletes; the commit record is of this transaction again."""
    with opened(path, write=True) as (transaction, handles):
        record = CommitRecord.decode(transaction.get(COMMIT_KEY, db=handles["commit"]))
        current = replace(record, transaction=transaction.id())
        transaction.put(COMMIT_KEY, current.encode(), db=handles["commit"])
        for table, key, value in changes:
            if value is None:
                transaction.delete(key, db=handles[table])
            else:
                transaction.put(key, value, db=handles[table])


def put_commit_record(path: Path, change: Callable[[CommitRecord], CommitRecord]) -> None:
    """Change the commit record."""
    with opened(path, write=True) as (transaction, handles):
        record = CommitRecord.decode(transaction.get(COMMIT_KEY, db=handles["commit"]))
        record = change(replace(record, transaction=transaction.id()))
        transaction.put(COMMIT_KEY, record.encode(), db=handles["commit"])


def content_of(table: str, value: bytes) -> bytes:
    """What a row's checksum covers beside the key, with nothing compressed."""
    size = {"segment": SEGMENT_PREFIX_BYTES, "order": ORDER_PREFIX_BYTES}.get(table)
    if size is None:
        return value[8:]
    payload = value[size:]
    if payload and value[9] == 1:
        payload = ZstdDecompressor().decompress(payload)
    return value[8:size] + payload


def value_of(table: str, key: bytes, content: bytes) -> bytes:
    """A row's value with a good checksum: the opposite of ``content_of``."""
    size = {"segment": SEGMENT_PREFIX_BYTES, "order": ORDER_PREFIX_BYTES}.get(table)
    if size is None or len(content) < size - 8:
        return protect(key, content)
    prefix, payload = content[: size - 8], content[size - 8 :]
    if payload and prefix[1] == 1:
        payload = ZstdCompressor().compress(payload)
    return xxh3_64_digest(key + content) + prefix + payload


def hot_row(path: Path, position: int) -> Row:
    """A row of the hot log."""
    key = position.to_bytes(8, "big")
    with opened(path) as (transaction, handles):
        value = transaction.get(key, db=handles[hot_table(position)])
    assert value is not None
    return hot_table(position), key, bytes(value)


def flipped(value: bytes, place: int = -1) -> bytes:
    """The value with one bit changed."""
    changed = bytearray(value)
    changed[place] ^= 4
    return bytes(changed)
