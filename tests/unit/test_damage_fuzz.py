"""Whatever bytes stand in a store: readers raise CorruptionError, check reports and goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Store
from engine.export import event_to_line
from eventlog.body import encode_plain
from eventlog.errors import CorruptionError
from tests import damaged_store
from tests.damaged_store import Row, content_of, put, rows, value_of


@pytest.fixture(scope="module")
def store_and_rows(whole: Path) -> tuple[Path, list[Row]]:
    """A store that nothing is wrong with, and its rows by table."""
    return whole, rows(whole)


def read_everything(path: Path) -> None:
    """Use every way to read; each may raise CorruptionError and nothing else."""
    try:
        store = Store.open(path, create=False, read_only=True)
    except CorruptionError as error:
        assert error.where
        return
    with store:
        report = store.check()
        assert all([finding.where and finding.message for finding in report.findings])
        for read in readers(store):
            try:
                read()
            except CorruptionError as error:
                assert error.where


def readers(store: Store) -> list[Callable[[], Any]]:
    """Every way to read."""
    found: list[Callable[[], Any]] = [
        store.tenants,
        store.stats,
        store.health,
        lambda: [event_to_line(event) for event in store.read()],
        lambda: store.last_position,
        lambda: list(store.salvage()),
    ]
    for tenant in ("", "acme", "nobody"):
        world = store.tenant(tenant)
        found += [world.sessions, lambda world=world: [str(event) for event in world.read()]]
    for tenant, name in (*damaged_store.SESSIONS, ("", "nobody")):
        session = store.tenant(tenant).session(name)
        found += [
            session.info,
            session.history,
            lambda session=session: session.history(7),
            lambda session=session: [
                (event_to_line(event), event.event_id, event.role, event.kind, repr(event))
                for event in session.events()
            ],
        ]
    return found


BYTES = [0, 1, 0x7F, 0x80, 0xC0, 0xF6, 0xF7, 0xFF]
SHAPES: list[Any] = [None, 0, -1, 2**64 - 1, "", "x", b"", b"x", [], [[]], {}, {"a": 1}, 1.5, True]
WORDS = [0, 1, 7, 255, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def changed(random: Random, found: list[Row]) -> tuple[str, bytes, bytes | None]:
    """A row to write, or to remove."""
    table = random.choice(sorted({row[0] for row in found}))
    mine = [row for row in found if row[0] == table]
    _, key, value = random.choice(mine)
    content = content_of(table, value)
    place = random.randrange(len(content)) if random.random() < 0.6 else random.randrange(9)
    place = min(place, len(content) - 1)
    match random.choice(["byte", "word", "word", "cut", "more", "other", "cbor", "gone", "key"]):
        case "gone":
            return table, key, None
        case "key":
            key = random.randbytes(random.randint(1, 26))
        case "byte":
            content = content[:place] + bytes([random.choice(BYTES)]) + content[place + 1 :]
        case "word":
            order: Any = random.choice(["little", "big"])
            place -= place % 8
            word = random.choice(WORDS).to_bytes(8, order)
            content = content[:place] + word + content[place + 8 :]
        case "cut":
            content = content[:place]
        case "more":
            content += random.randbytes(random.randint(1, 9))
        case "other":
            content = content_of(table, random.choice(mine)[2])
        case _:
            content = content[:place] + encode_plain(random.choice(SHAPES))
    return table, key, value_of(table, key, content)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_any_row_may_hold_anything(store_and_rows: tuple[Path, list[Row]], seed: int) -> None:
    """Rows of a good checksum and another shape came out as errors of struct and others."""
    path, found = store_and_rows
    random = Random(seed)
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "store"
        shutil.copytree(path, copy)
        put(copy, *[changed(random, found) for _ in range(random.choice([1, 1, 1, 3]))])
        read_everything(copy)


def test_a_whole_store_is_read(whole: Path) -> None:
    """The readers do read."""
    with Store.open(whole, create=False, read_only=True) as store:
        assert store.check().ok
        for read in readers(store):
            read()
