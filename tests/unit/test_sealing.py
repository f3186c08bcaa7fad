"""Sealing: what one commit takes on is bounded, and damage stops nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import CorruptionError, OverloadedError, Store
from eventlog import composing, limits, lookups, sealing
from eventlog.keys import U64
from eventlog.sealing import Sealing
from eventlog.tables import ReadTables, WriteTables

HANG_S = 30.0


class Watched:
    """Notes what each commit seals: its events and their bytes, by segment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commits: list[list[tuple[int, int]]] = []
        self._seal = sealing.seal
        monkeypatch.setattr(composing, "seal", self.seal)

    def seal(self, *args: Any) -> Sealing:
        done = self._seal(*args)
        if done.runs:
            self.commits.append(
                [(len(run.records), sum(map(len, run.records))) for _, run in done.runs]
            )
        return done


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def loose(store: Store, name: str) -> int:
    info = store.session(name).info()
    assert info is not None
    return info.unsealed_count


def tidied(store: Store) -> None:
    """Wait until the writer has nothing left to seal."""
    deadline = threading.Event()
    for _ in range(int(HANG_S * 100)):
        if not store._log.writer.machine.overdue:
            return
        deadline.wait(0.01)
    raise AssertionError("sealing does not come to an end")


def test_a_long_session_is_sealed_over_several_commits(
    checked_store: Callable[..., Store], watched: Watched
) -> None:
    """A session was sealed whole: 16,384 events of one batch, or more, in the next commit."""
    store = checked_store()
    call = store.session("s")
    messages = [{"n": number} for number in range(limits.BATCH_EVENTS_MAX)]
    call.append_many(messages).result(HANG_S)
    tidied(store)
    assert len(watched.commits) >= 3
    for segments in watched.commits:
        events = [count for count, _ in segments]
        assert sum(events[:-1]) < limits.COMMIT_SEALED_EVENTS_MAX
        assert all(size <= limits.SEGMENT_BYTES_TARGET for _, size in segments)
    assert loose(store, "s") < limits.SNAPSHOT_FREQUENCY
    assert call.history() == messages
    info = call.info()
    assert info is not None
    assert (info.event_count, info.message_count, info.head) == (16_384, 16_384, 16_383)


def test_large_bodies_are_sealed_over_several_commits(
    checked_store: Callable[..., Store], watched: Watched
) -> None:
    """Only sessions were counted, so one commit compressed whatever 64 of them held."""
    store = checked_store(snapshot_frequency=2)
    call = store.session("s")
    messages = [{"n": number, "text": "x" * 3 * limits.MIB} for number in range(8)]
    call.append_many(messages).result(HANG_S)
    tidied(store)
    assert sum(map(len, watched.commits)) == 8
    assert len(watched.commits) >= 2
    for segments in watched.commits:
        assert sum([size for _, size in segments[:-1]]) < limits.COMMIT_SEALED_BYTES_MAX
    assert call.history() == messages


def test_keys_of_a_session_that_is_half_sealed_are_found(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, watched: Watched
) -> None:
    """A key goes to the table with its first event, whichever commit seals the others."""
    monkeypatch.setattr(sealing, "SEGMENT_BYTES_TARGET", 1_000)
    monkeypatch.setattr(sealing, "COMMIT_EVENTS_MAX", 10)
    monkeypatch.setattr(sealing, "LEAST_SEALED_EVENTS", 10)
    store = checked_store(snapshot_frequency=limits.SNAPSHOT_FREQUENCY_MAX)
    call = store.session("s")
    acks = []
    for number in range(30):
        messages = [{"n": number}, {"n": -number}, {"n": 0}]
        acks.append(call.append_many(messages, idempotency_key=f"{number}"))
    acks[-1].result(HANG_S)
    store._log.index.frequency = 40  # the same as opening it with another frequency
    state = store._log.index.names[("", "s")]
    store._log.index.mark_due(state)
    call.append({"n": "last"}).result(HANG_S)
    tidied(store)
    assert 0 < loose(store, "s") < 40
    assert len(watched.commits) >= 3
    for number, ack in enumerate(acks):
        messages = [{"n": number}, {"n": -number}, {"n": 0}]
        again = call.append_many(messages, idempotency_key=f"{number}").result(HANG_S)
        assert again.already
        assert (again.first, again.last, again.position) == (ack.first, ack.last, ack.position)
    sealed_keys = [ack for ack in acks if ack.first < state.row.sealed]
    assert state.row.keys == len(sealed_keys) > 0
    assert len(state.keys or ()) == len(acks) - len(sealed_keys)


def test_sessions_that_were_not_reached_stay_due(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, watched: Watched
) -> None:
    monkeypatch.setattr(sealing, "COMMIT_EVENTS_MAX", 1)
    monkeypatch.setattr(sealing, "LEAST_SEALED_EVENTS", 1)
    store = checked_store(snapshot_frequency=4)
    parts = [store.session(f"{number}").draft([{"n": 1}] * 4) for number in range(8)]
    store.append_batch(parts).result(HANG_S)
    tidied(store)
    assert [loose(store, f"{number}") for number in range(8)] == [0] * 8
    assert [len(segments) for segments in watched.commits] == [1] * 8


def test_what_a_failed_collection_took_is_due_again(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that were taken from the list of those due, but not collected, were lost.

    They counted as due, so that nobody put them on the list again, and stayed loose for ever.
    """
    collect = sealing._collect
    failed = threading.Event()

    def fail_once(*args: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("broken")
        collect(*args)

    monkeypatch.setattr(sealing, "_collect", fail_once)
    store = checked_store(snapshot_frequency=2)
    parts = [store.session(f"{number}").draft([{"n": 1}] * 2) for number in range(5)]
    store.append_batch(parts).result(HANG_S)
    assert failed.wait(HANG_S)
    store.close()
    with Store.open(store.path) as again:
        assert [loose(again, f"{number}") for number in range(5)] == [0] * 5


def damage_row(store: Store, number: int) -> None:
    """Break a session's row, as another process's commit that memory has not followed yet."""
    environment = store._log.environment
    transaction = environment.begin_write()
    tables = WriteTables(transaction, environment.db, store._log.writer.composer._id_runs)
    key = U64.pack(number)
    value = bytearray(transaction.get(key, db=environment.db["session"]) or b"")
    value[20] ^= 1
    transaction.put(key, bytes(value), db=environment.db["session"])
    record = tables.commit_record()
    tables.put_commit_record(replace(record, transaction=transaction.id()))
    environment.commit(transaction)


def test_a_session_that_cannot_be_sealed_stops_nobody(store_path: Path) -> None:
    """Its damaged row failed each commit that tried to seal it, and all appends in that commit."""
    with Store.open(store_path, snapshot_frequency=3) as store:
        for name in ("good", "bad"):
            store.session(name).append({"n": 0}).result(HANG_S)
        damage_row(store, 2)
        for number in range(1, 10):
            acks = [store.session(name).append({"n": number}) for name in ("good", "bad")]
            for ack in acks:
                ack.result(HANG_S)
        tidied(store)
        assert loose(store, "good") < 3
        assert store._log.index.states[2].row.sealed == 0
        problems = store.health()["problems"]
        assert len(problems) == 1
        assert "session number 2 cannot be sealed: session 2: checksum" in problems[0]
        before = store.health()["commits"]
        store.session("good").append({"n": 10}).result(HANG_S)
        tidied(store)
        assert store.health()["commits"] <= before + 3, "no busy loop about what cannot be done"
        store.flush()
    with Store.open(store_path) as again:
        assert [body["n"] for body in again.session("good").history()] == list(range(11))
        with pytest.raises(CorruptionError, match="session 2"):
            again.session("bad").append({"n": 10}).result(HANG_S)
        again.session("good").append({"n": 11}).result(HANG_S)
        again.session("new").append({"n": 0}).result(HANG_S)
        assert not again.check().ok


def test_a_full_hot_log_that_cannot_be_sealed_refuses_in_the_end(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that sealed nothing counted as progress, so that the batch waited for ever."""
    monkeypatch.setattr(composing, "fits", lambda *_: False)
    monkeypatch.setattr("eventlog.writer.under_pressure", lambda _: True)
    with Store.open(store_path) as store:
        ack = store.session("s").append({"n": 0})
        with pytest.raises(OverloadedError, match="sealed first"):
            ack.result(HANG_S)


def test_secrets_of_tenants_stay_in_bounds(store_path: Path) -> None:
    """Every tenant's secret was kept for as long as the store was open."""
    with Store.open(store_path) as store:
        for number in range(20):
            store.tenant(f"t{number}").session("s").append({}, id="x").result(HANG_S)
        secrets = lookups.TenantSecrets(names_max=3)
        with store._log.views.transaction() as tables:
            assert isinstance(tables, ReadTables)
            found = [secrets.load(tables, f"t{number}") for number in range(20)]
            assert len(secrets.by_name) <= 3
            assert len(secrets.by_number) <= 3
            assert found == [secrets.load(tables, f"t{number}") for number in range(20)]
        assert len({known[1] for known in found if known is not None}) == 20


def test_check_takes_an_append_that_is_half_sealed(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is in the table with its first event, and its last one may be loose for long.

    Check found that the key led past what was sealed, in a store that nothing was wrong with.
    """
    monkeypatch.setattr(sealing, "SEGMENT_BYTES_TARGET", 1_000)
    monkeypatch.setattr(sealing, "COMMIT_EVENTS_MAX", 20)
    store = checked_store(snapshot_frequency=24)
    messages = [{"n": number} for number in range(40)]
    store.session("s").append_many(messages, idempotency_key="k").result(HANG_S)
    tidied(store)
    assert 0 < loose(store, "s") < 24
    assert store.check().findings == []
