"""What a rebuild gathers of segments: within its bound, true while they are, and not longer."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from engine import Store
from eventlog import gathering, recount
from eventlog import rebuild as rebuilding
from eventlog.errors import CorruptionError
from eventlog.gathering import Gathered, Gathering, Parts, stored_segments
from eventlog.limits import HOT_EVENTS_IDLE, REBUILD_BYTES_MAX
from eventlog.rebuild import Rebuild
from eventlog.recount import Recount
from eventlog.roles import REBUILT
from eventlog.rows import CommitRecord
from eventlog.segmentcache import SegmentCache
from eventlog.tables import ReadTables
from tests.unit.test_rebuild import _sign, derived, said

EVENTS = 2_400
SESSIONS = 12


def fill(store: Store, events: int = EVENTS) -> None:
    """Keys, ids, both at once, roll-ups and variables, set and deleted."""
    chance = random.Random(1)
    for number in range(events):
        session = store.tenant(f"t{number % 3}").session(f"s{number % SESSIONS}")
        session.append(
            said(f"event {number}"),
            idempotency_key=f"k{number}" if number % 5 < 2 else None,
            id=f"i{number}" if number % 5 in (1, 2) else None,
        )
        if chance.random() < 0.1:
            session.update_state({f"v{number % 4}": [number]}, delete=[f"v{(number + 1) % 4}"])
    store.flush()


@pytest.fixture
def filled(checked_store: Callable[..., Store]) -> Store:
    store = checked_store(snapshot_frequency=10, max_messages=7)
    fill(store)
    for _ in range(8):  # so that the positions before are cut, and their ids indexed
        store.session("filler").append_many([said("x")] * (HOT_EVENTS_IDLE // 8)).result()
    store.flush()
    assert derived(store)["id"]
    return store


def gather(store: Store) -> Gathered:
    log = store._log
    Gathering(log.views.gathered, log.cache, log.projections).run(log.views)
    return log.views.gathered


def run_tasks(store: Store) -> int:
    """All tasks of a rebuild, with what was gathered before; gives the rows that were wrong."""
    log = store._log
    gathered = log.views.gathered
    count = Recount(log.cache, log.writer.pause, gathered=gathered)
    log.writer.run(count)
    for role in REBUILT:
        task = Rebuild(
            role,
            log.cache,
            log.writer.pause,
            projections=log.projections,
            gathered=gathered,
        )
        log.writer.run(task)
    return count.changed


def segments(store: Store) -> dict[bytes, bytes]:
    """Those that are stored, by key."""
    with store._log.views.transaction() as tables:
        return dict(tables.rows("segment"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Keys of the segments that are decoded from now on."""
    keys: list[bytes] = []
    decode = SegmentCache.decode

    def noted(cache: SegmentCache, tables: ReadTables, key: bytes, value: bytes) -> Any:
        keys.append(key)
        return decode(cache, tables, key, value)

    monkeypatch.setattr(SegmentCache, "decode", noted)
    return keys


def test_each_segment_is_decoded_once(filled: Store, decoded: list[bytes]) -> None:
    """Each of four tables decoded all segments anew, which was most of a rebuild's time."""
    before = derived(filled)
    filled._log.cache.clear()
    decoded.clear()
    report = filled.rebuild()
    assert sorted(decoded) == sorted(segments(filled))
    assert report.events > EVENTS
    assert derived(filled) == before


@pytest.mark.parametrize("bytes_max", [0, 10_000, 40_000, REBUILD_BYTES_MAX])
@pytest.mark.parametrize("read_bytes", [1, 50_000])
def test_the_bound_changes_no_row(bytes_max: int, read_bytes: int, filled: Store) -> None:
    gathered = filled._log.views.gathered
    before = derived(filled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered, "bytes_max", bytes_max)
        patch.setattr(gathering, "READ_BYTES_MAX", read_bytes)
        most = 0

        def look(*_: object) -> None:
            nonlocal most
            most = max(most, gathered.byte_count)
            assert filled.stats()["memory"]["rebuild_bytes"] == gathered.byte_count

        report = filled.rebuild(look)
    assert (most > 0) is (bytes_max > 0)
    assert most <= bytes_max
    assert report.rows_changed == 0
    assert derived(filled) == before
    assert (gathered.byte_count, gathered._parts) == (0, {})


def test_counts_that_are_wrong_are_found_either_way(filled: Store) -> None:
    log = filled._log
    wrong: list[bytes] = []

    class Spoil:
        done = False

        def step(self, tables: Any, record: CommitRecord) -> CommitRecord:
            for number in range(1, record.sessions_made + 1):
                row = tables.load_row(number)
                row.head, row.since_roll_up, row.trimmed, row.details = 0, 3, 1, b""
                key = number.to_bytes(8, "big")
                tables.put_rows([(key, row)])
                wrong.append(key)
            self.done = True
            return record

    before = derived(filled)["session"]
    for bytes_max in (0, REBUILD_BYTES_MAX):
        wrong.clear()
        log.writer.run(Spoil())
        log.views.gathered.bytes_max = bytes_max
        assert filled.rebuild().rows_changed == len(wrong) == SESSIONS + 1
        assert derived(filled)["session"] == before


@pytest.mark.parametrize("change", ["purge", "delete", "append", "merge"])
def test_what_changed_since_is_read_again(change: str, filled: Store, decoded: list[bytes]) -> None:
    """What was gathered of a segment must not stand for what took its place."""
    log = filled._log
    with log.views.gathered.using():
        gathered = gather(filled)
        old = segments(filled)
        assert all(gathered.find(key, value) for key, value in old.items())
        session = filled.tenant("t1").session("s1")
        if change == "purge":
            session.purge(55).result()
        elif change == "delete":
            session.delete().result()
        else:
            for number in range(40 if change == "merge" else 400):
                session.append(said(f"more {number}"), idempotency_key=f"more {number}").result()
                if change == "merge":
                    filled.flush()
        filled.flush()
        now = segments(filled)
        assert now != old
        for key, value in now.items():
            if old.get(key) != value:
                assert gathered.find(key, value) is None
        if change in ("purge", "delete"):  # nothing of what was removed stays in memory
            assert (gathered._parts, gathered.byte_count) == ({}, 0)
        before = derived(filled)
        run_tasks(filled)
        assert derived(filled) == before


def test_a_read_from_before_a_removal_leaves_nothing(filled: Store) -> None:
    log = filled._log
    gathered = log.views.gathered
    with gathered.using(), log.views.transaction() as tables:
        tables.commit_record()
        key, value = next(stored_segments(tables, 1, 0))
        filled.tenant("t2").session("s2").delete().result()
        filled.tenant("t0").session("s0").info()
        assert gathered.add(tables, key, value, Parts(1))
        assert gathered.find(key, value) is None


def test_a_row_that_changed_is_decoded_again(filled: Store) -> None:
    gathered = filled._log.views.gathered
    session = filled.tenant("t1").session("s1")
    with gathered.using():
        gather(filled)
        for number in range(2):
            session.append_many([said("more")] * 10).result()
            filled.flush()
            for _ in range(2):
                with filled._log.views.transaction() as tables:
                    tables.commit_record()
                    row = gathered.load_row(tables, 2)
                    assert row == tables.load_row(2), number
        missing = pytest.raises(CorruptionError, match="row is missing")
        with filled._log.views.transaction() as tables, missing:
            gathered.load_row(tables, 1_000)


def test_what_nobody_uses_is_not_kept(filled: Store) -> None:
    gathered = gather(filled)
    assert gathered.byte_count == 0
    with gathered.using():
        with gathered.using():
            gather(filled)
            count = gathered.byte_count
        assert gathered.byte_count == count > 0
        gather(filled)  # what is there already counts once
        assert gathered.byte_count == count
    assert gathered.byte_count == 0


def test_steps_of_what_was_gathered_are_small(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows count of a step's bound as segments do."""
    monkeypatch.setattr(rebuilding, "STEP_BYTES_MAX", 20_000)
    monkeypatch.setattr(recount, "STEP_BYTES_MAX", 20_000)
    steps: dict[str, int] = {}

    def count(role: str, *_: object) -> None:
        steps[role] = steps.get(role, 0) + 1

    before = derived(filled)
    filled.rebuild(count)
    for role in ("key", "id"):
        assert steps[role] >= len(before[role]) * rebuilding.ROW_BYTES // 40_000 > 2, (role, steps)
    assert derived(filled) == before


def test_rebuilds_at_once_share_it(filled: Store) -> None:
    before = derived(filled)
    threads = [threading.Thread(target=filled.rebuild, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert derived(filled) == before
    assert filled._log.views.gathered.byte_count == 0


def test_damage_is_told_by_the_step_that_needs_it(store_path: Path) -> None:
    """Gathering passes over it: what does not need the damaged segment is made before."""
    with Store.open(store_path, snapshot_frequency=10) as store:
        fill(store, 600)
    environment = lmdb.open(str(store_path), max_dbs=64, map_size=1 << 30)
    handle = environment.open_db(b"segment", create=False)
    with environment.begin(write=True) as transaction:
        key, value = next(iter(transaction.cursor(handle)))
        transaction.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=handle)
        _sign(transaction, environment.open_db(b"commit", txn=transaction, create=False))
        count = transaction.stat(handle)["entries"]
    environment.close()
    told: list[tuple[str, int, int]] = []
    with Store.open(store_path) as damaged:
        gathered = damaged._log.views.gathered
        with gathered.using():
            assert len(gather(damaged)._parts) == count - 1 > 0
        with pytest.raises(CorruptionError, match="segment"):
            damaged.rebuild(lambda *each: told.append(each))
        assert told[-1] == ("segment", SESSIONS, SESSIONS)
        assert gathered.byte_count == 0
