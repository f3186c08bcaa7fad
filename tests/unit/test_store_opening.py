"""Opening: options, read-only, receipts; what health, stats and check say."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog import index as index_module
from eventlog.environment import Environment
from eventlog.errors import (
    BusyError,
    CorruptionError,
    InvalidNameError,
    NotAStoreError,
    QuotaExceededError,
    ReadOnlyError,
    StoreUnavailableError,
    TurnlogError,
    UsageError,
)
from eventlog.failpoints import failpoints, raise_
from eventlog.limits import MIB
from eventlog.locks import UseLock
from eventlog.seams import CLOCK, ProcessIdentity
from eventlog.stats import KINDS, SAMPLED_SEGMENTS
from tests.model.staging import HANG_S, halted, in_threads, once, run_script

NOT_STORED: list[dict[str, Any]] = [
    {"snapshot_frequency": 3},
    {"quota_bytes": 2**30 + 1},
]
SENSELESS: list[dict[str, Any]] = [
    {"snapshot_frequency": 0},
    {"snapshot_frequency": -1},
    {"snapshot_frequency": 4_097},
    {"snapshot_frequency": 2.5},
    {"max_messages": 0},
    {"quota_bytes": 1},
]


def first(option: dict[str, Any]) -> str:
    return json.dumps(option)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    """The hint was to check the disk and the permissions."""
    with pytest.raises(StoreUnavailableError, match=r"there is no folder .*/no(\n|$)") as caught:
        Store.open(tmp_path / "no" / "store")
    assert "folder" in caught.value.hint
    assert not (tmp_path / "no").exists()


# Options


def test_stored_options_stay(store_path: Path) -> None:
    with Store.open(store_path, snapshot_frequency=7, quota_bytes=2**30) as store:
        assert store.stats()["options"] == {
            "snapshot_frequency": 7,
            "max_messages": None,
            "quota_bytes": 2**30,
            "dictionaries": True,
        }
    with Store.open(store_path) as store:
        assert store.stats()["options"]["snapshot_frequency"] == 7
    with Store.open(store_path, snapshot_frequency=7, quota_bytes=2**30) as store:
        assert store.stats()["options"]["quota_bytes"] == 2**30


@pytest.mark.parametrize("option", NOT_STORED, ids=first)
def test_another_value_than_the_stored_one_is_refused(
    store_path: Path, option: dict[str, Any]
) -> None:
    store = Store.open(store_path, snapshot_frequency=7, quota_bytes=2**30)
    with pytest.raises(UsageError):
        Store.open(store_path, **option)
    store.session("s").append({}).result()
    store.close()
    with pytest.raises(UsageError):
        Store.open(store_path, **option)
    with Store.open(store_path) as store:
        store.session("s").append({}).result()
        assert store.check().findings == []


@pytest.mark.parametrize("option", SENSELESS, ids=first)
def test_senseless_options_make_no_store(store_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Store.open(store_path, **option)
    assert not store_path.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"read_only": True},
        {"lock_deadline_ms": 7},
        {"map_bytes": 64 * MIB},
        {"allow_network": True},
        {"verify": True},
    ],
    ids=first,
)
def test_per_open_options_must_agree_within_a_process(
    store_path: Path, options: dict[str, Any]
) -> None:
    """All but the first two were ignored by a second open, in silence."""
    with Store.open(store_path) as store:
        with pytest.raises(UsageError, match=next(iter(options))):
            Store.open(store_path, **options)
        store.session("s").append({"n": 0}).result()
    with Store.open(store_path, **options) as store:  # nobody else is in: fine
        assert store.session("s").history() == [{"n": 0}]


def test_what_was_verified_at_the_first_open_is_verified_for_all(store_path: Path) -> None:
    with (
        Store.open(store_path, verify=True),
        Store.open(store_path, verify=True) as second,
        Store.open(store_path) as third,
    ):
        assert second.last_position == third.last_position == 0


def test_nothing_is_made_where_nothing_may_be_made(store_path: Path) -> None:
    several: list[dict[str, Any]] = [{"create": False}, {"read_only": True}]
    for options in several:
        with pytest.raises(NotAStoreError):
            Store.open(store_path, **options)
        assert not store_path.exists()
    store_path.mkdir()
    (store_path / "notes.txt").write_text("not a store")
    with pytest.raises(NotAStoreError):
        Store.open(store_path)


def test_opening_writes_nothing(store_path: Path) -> None:
    with Store.open(store_path) as store:
        store.session("s").append_many([{"n": number} for number in range(100)]).result()
    before = (store_path / "data.mdb").read_bytes()
    several: list[dict[str, Any]] = [{}, {"read_only": True}, {"verify": True}]
    for options in several:
        with Store.open(store_path, **options) as store:
            assert len(store.session("s").history()) == 100
            store.sessions()
            list(store.read())
    assert (store_path / "data.mdb").read_bytes() == before


def test_first_opens_at_once_all_succeed(tmp_path: Path) -> None:
    """openai-agents 2854, 4987: of 160 concurrent first opens 20 said "database is locked"."""
    for number in range(6):

        def use(number: int = number) -> int:
            with Store.open(tmp_path / str(number)) as store:
                return store.session("s").append({}).result(HANG_S).first

        assert sorted(in_threads(*[use] * 5)) == list(range(5))


# Read-only


@pytest.mark.parametrize("fails", [False, True])
def test_a_store_that_is_slow_to_open_holds_up_its_own_openers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """One lock was held while a store was opened, for as long as another process vacuumed it:
    no other store of the process could be opened or closed.
    """
    slow, other = tmp_path / "slow", tmp_path / "other"
    begun, goes_on = threading.Event(), threading.Event()
    go_in = Environment._go_in

    def wait(self: Environment, me: ProcessIdentity) -> UseLock:
        if self.path == slow and not begun.is_set():
            begun.set()
            assert goes_on.wait(HANG_S)
            if fails:
                raise BusyError("the store is being vacuumed by somebody")
        return go_in(self, me)

    monkeypatch.setattr(Environment, "_go_in", wait)
    opened: list[Store | TurnlogError] = []

    def open_slow() -> None:
        try:
            opened.append(Store.open(slow))
        except BusyError as error:
            opened.append(error)

    def open_others() -> None:
        assert begun.wait(HANG_S)
        second = threading.Thread(target=open_slow)
        second.start()
        for _ in range(3):
            with Store.open(other) as store:
                store.session("s").append({"n": 0}).result(HANG_S)
        assert not opened and second.is_alive()
        goes_on.set()
        second.join(HANG_S)

    in_threads(open_slow, open_others)
    stores = [each for each in opened if isinstance(each, Store)]
    assert [type(each) for each in opened if each not in stores] == [BusyError] * fails
    assert len(stores) == 2 - fails
    assert len({id(each._log) for each in stores}) == 1
    for store in stores:
        store.close()
    with Store.open(slow, create=False) as store:
        assert store.check().ok


def test_a_read_only_store_reads_everything_and_writes_nothing(store_path: Path) -> None:
    with Store.open(store_path, snapshot_frequency=2) as store:
        store.session("s", user_id="u").append_many([{"n": number} for number in range(9)])
        store.tenant("t").session("s").append({})
    with Store.open(store_path, read_only=True) as store:
        call = store.session("s")
        assert [body["n"] for body in call.history()] == list(range(9))
        assert len(list(store.read())) == 10
        assert [info.name for info in store.sessions(user_id="u").sessions] == ["s"]
        assert store.tenants() == ["", "t"]
        assert store.check().findings == []
        assert store.health()["ok"] and store.health()["read_only"]
        assert store.stats()["events"] == 10
        assert store.flush(1) == 10
        for write in (
            lambda: call.append({}),
            lambda: call.append({}, wait=0.01),
            lambda: call.append({}, ack="queued"),
            lambda: call.append_many([{}]),
            lambda: call.append_event("label", "x"),
            call.create,
            lambda: store.append_batch([call.draft([{}])]),
            lambda: store.load([{"session": "s", "kind": "message", "body": {}, "sequence": 9}]),
        ):
            with pytest.raises(ReadOnlyError):
                write()
    with Store.open(store_path) as store:
        assert store.last_position == 10


def test_a_read_only_store_follows_another_process(store_path: Path) -> None:
    script = """
import sys
from engine import Store
with Store.open(sys.argv[1]) as store:
    for number in range(3_000):
        store.session("s").append({"n": number})
"""
    Store.open(store_path, snapshot_frequency=1).close()
    with Store.open(store_path, read_only=True) as store:
        assert store.session("s").info() is None
        run_script(script, store_path)
        assert [body["n"] for body in store.session("s").history()] == list(range(3_000))
        assert store.last_position == 3_000
        run_script(script, store_path)
        assert [event.sequence for event in store.session("s").events(5_990)] == list(
            range(5_990, 6_000)
        )


# The receipt (min_position)


def test_a_store_behind_its_receipt_was_rolled_back(store_path: Path, tmp_path: Path) -> None:
    """FAULTS 8: a lost commit cannot be seen from inside; the caller's receipt shows it."""
    with Store.open(store_path) as store:
        store.session("s").append({"n": 0}).result()
    shutil.copytree(store_path, tmp_path / "older")
    with Store.open(store_path) as store:
        receipt = store.session("s").append({"n": 1}).result().position
    with Store.open(store_path, min_position=receipt) as store:
        assert store.last_position == receipt
    for _ in range(2):
        with pytest.raises(CorruptionError) as caught:
            Store.open(tmp_path / "older", min_position=receipt)
        assert "min_position" in caught.value.hint
    with Store.open(tmp_path / "older") as store:
        assert store.session("s").history() == [{"n": 0}]


def test_a_new_store_has_no_past(store_path: Path) -> None:
    with pytest.raises(CorruptionError):
        Store.open(store_path, min_position=1)
    with Store.open(store_path, min_position=0) as store:
        assert store.last_position == 0


# Names and tenants


def test_tenants_are_worlds_of_their_own(store: Store) -> None:
    assert store.tenant("") is store
    store.session("s").append({"t": ""}, id="e", idempotency_key="k").result()
    for name in ("a", "a:", "a\x00", "A", "é", "e\u0301", "😀", "n" * 512):
        tenant = store.tenant(name)
        assert tenant.session("s").info() is None
        ack = tenant.session("s").append({"t": name}, id="e", idempotency_key="k").result()
        assert (ack.first, ack.already) == (0, False)
        assert tenant.session("s").history() == [{"t": name}]
        assert [info.name for info in tenant.sessions().sessions] == ["s"]
        assert [event.tenant for event in tenant.read()] == [name]
    assert len(store.tenants()) == 9
    assert [info.tenant for info in store.sessions().sessions] == [""]
    assert len(list(store.read())) == 9


@pytest.mark.parametrize("name", ["", "n" * 513, "é" * 257, "\ud800", 7, None, b"s"], ids=repr)
def test_illegal_names_are_refused(store: Store, name: Any) -> None:
    with pytest.raises(InvalidNameError):
        store.session(name)
    if name != "":
        with pytest.raises(InvalidNameError):
            store.tenant(name)


def test_a_refused_append_leaves_no_tenant(store: Store) -> None:
    """An id looked up for an append that was refused left its tenant behind."""
    with halted("commit.before_begin") as halt:
        store.session("s").append({})
        halt.wait_reached()
        refused = store.tenant("ghost").session("s").append_many([{}, {}], ids=["a", "a"])
        store.session("s").append({})
    with pytest.raises(TurnlogError):
        refused.result(HANG_S)
    store.flush(HANG_S)
    assert store.tenants() == [""]
    assert store.stats()["tenants"] == 1


# Health, stats, quota


def test_health_is_plain_and_tells_of_the_queue(store: Store) -> None:
    healthy = store.health()
    assert json.loads(json.dumps(healthy)) == healthy
    assert healthy["ok"] and not healthy["closed"] and not healthy["read_only"]
    assert healthy["problems"] == []
    with halted("commit.before_begin") as halt:
        store.session("s").append({})
        halt.wait_reached()
        for _ in range(10):
            store.session("s").append({})
        during = store.health()
    assert during["queue_appends"] == 10
    assert during["queue_bytes"] > 0
    store.flush(HANG_S)
    after = store.health()
    assert after["commits"] > healthy["commits"]
    assert (after["queue_appends"], after["queue_bytes"], after["failures"]) == (0, 0, 0)


def test_health_tells_when_the_writer_has_ended(store_path: Path) -> None:
    store = Store.open(store_path)
    broken = {"commit.before_begin": once(raise_(MemoryError()))}
    with failpoints(broken), pytest.raises(TurnlogError):
        store.session("s").append({}).result(HANG_S)
    health = store.health()
    if not health["ok"]:  # it may also go on
        assert health["problems"]
        with pytest.raises(TurnlogError):
            store.session("s").append({}).result(HANG_S)
    store.close()


def test_health_tells_that_the_quota_is_reached(checked_store: Callable[..., Store]) -> None:
    store = checked_store(quota_bytes=1 << 20)
    body = {"content": bytes(100_000)}
    with pytest.raises(QuotaExceededError):
        for _ in range(40):
            store.session("s").append(body).result(HANG_S)
    health = store.health()
    assert not health["ok"]
    assert "1,048,576 bytes" in health["problems"][0]


def test_every_memory_figure_stands_beside_its_bound(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=2)
    for number in range(200):
        store.session(f"s{number}").append_many([{"content": "x" * 500}] * 5)
    store.flush(HANG_S)
    for number in range(200):
        store.session(f"s{number}").history()
    stats = store.stats()
    assert json.loads(json.dumps(stats)) == stats
    memory = stats["memory"]
    figures = [name for name in memory if not name.endswith("_max")]
    assert set(memory) == {*figures, *[f"{name}_max" for name in figures]}
    assert set(figures) == {
        *("queue_appends", "queue_bytes", "hot_events", "loose_bytes", "names"),
        *("segment_cache_bytes", "fold_bytes", "id_filter_bytes", "merge_sessions"),
        "rebuild_bytes",
        *("dictionaries", "dictionary_tenants", "blob_streams", "blob_stream_bytes"),
        *("known_bytes", "present_bytes", "catalog_sessions"),
    }
    for name in figures:
        assert 0 <= memory[name] <= memory[f"{name}_max"], name
    assert (stats["events"], stats["sessions"], stats["tenants"]) == (1_000, 200, 1)
    assert stats["last_position"] == 1_000
    assert stats["used_bytes"] + stats["free_bytes"] == stats["file_bytes"]
    assert sum(stats["bytes"].values()) == stats["used_bytes"]
    assert set(stats["bytes"]) == set(KINDS)
    compression = stats["compression"]
    assert compression["sampled_segments"] == 200
    assert compression["content_bytes"] > 200 * 500 > compression["stored_bytes"]
    assert compression["ratio"] > 2


def test_a_flood_of_sessions_stays_within_the_bound_of_names(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit made more sessions than it looked at to forget some, so all stayed in memory."""
    monkeypatch.setattr(index_module, "FORGOTTEN_MAX", 16)
    store = checked_store(snapshot_frequency=1)
    store._log.index.names_max = 100
    for number in range(3_000):
        store.session(f"s{number}").append({"content": "once"})
    store.flush(HANG_S)
    memory = store.stats()["memory"]
    assert memory["names"] <= 100
    assert (
        store.session("s0").history() == store.session("s2999").history() == [{"content": "once"}]
    )
    store.session("s0").append({"content": "again"}).result(HANG_S)
    assert len(store.session("s0").history()) == 2


def test_the_ratio_of_segments_is_of_a_sample(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=2)
    assert store.stats()["compression"]["ratio"] is None
    for number in range(SAMPLED_SEGMENTS + 40):
        store.session(f"s{number}").append_many([{"content": "x" * 500}] * 2)
    store.flush(HANG_S)
    found = store.stats()
    assert found["segments"] == SAMPLED_SEGMENTS + 40
    assert found["compression"]["sampled_segments"] == SAMPLED_SEGMENTS


def test_stats_of_blobs_tell_what_kinds_took(checked_store: Callable[..., Store]) -> None:
    store = checked_store()
    text = store.blobs.put(b"the same again " * 4_000, media_type="text/plain")
    store.session("s").append({"role": "user"}, blobs=[text]).result(HANG_S)
    blobs = store.stats()["blobs"]
    assert blobs["by_media_type"]["text"]["content_bytes"] == 60_000 == blobs["content_bytes"]
    assert blobs["ratio"] == round(60_000 / blobs["stored_bytes"], 2) > 10


def test_a_full_quota_refuses_appends_and_nothing_else(checked_store: Callable[..., Store]) -> None:
    store = checked_store(quota_bytes=2 * 1024 * 1024, snapshot_frequency=4_096)
    call = store.session("s")
    with pytest.raises(QuotaExceededError):
        for number in range(200):
            call.append({"n": number, "content": "x" * 50_000}).result(HANG_S)
    history = call.history()
    assert [body["n"] for body in history] == list(range(len(history)))
    with pytest.raises(QuotaExceededError):
        call.append({}).result(HANG_S)
    assert len(call.history()) == len(history)
    assert store.check().findings == []


# Clocks (FAULTS 55)


def test_order_is_by_sequence_whatever_the_clock_does(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hermes-agent 25589: a clock that stepped back sorted a tool's reply before its call.

    adk-python 3717: equal stamps set off a stale check.
    """
    now = 1_700_000_000_000_000
    steps = [0, 0, 5_000_000, -100_000_000, 1, 10**15, -(10**15), 0]
    call = store.session("s")
    updated = []
    for number, step in enumerate(steps):
        monkeypatch.setattr(CLOCK, "wall_us", lambda at=now + step: at)
        call.append({"n": number}, expected_head=number - 1).result(HANG_S)
        info = call.info()
        assert info is not None
        updated.append(info.updated_us)
    assert [body["n"] for body in call.history()] == list(range(len(steps)))
    assert updated == sorted(updated), "recorded time never goes back"
    assert [event.recorded_us for event in call.events()] == updated
    assert [event.body["n"] for event in store.read()] == list(range(len(steps)))
    assert [info.name for info in store.sessions().sessions] == ["s"]


def test_given_times_are_kept_and_order_nothing(store: Store) -> None:
    """n8n 27624, openagent 2397: sorting by time stamps turned histories round."""
    call = store.session("s")
    given = [10, 5, 5, 20, 0, -1, 2**63 - 1, -(2**63) + 1, None]
    for number, time_us in enumerate(given):
        call.append({"n": number}, time_us=time_us).result(HANG_S)
    assert [event.time_us for event in call.events()] == given
    assert [body["n"] for body in call.history()] == list(range(len(given)))
    for senseless in (2**63, -(2**63), 1.5, True, "10"):
        with pytest.raises(UsageError):
            call.append({}, time_us=senseless)  # type: ignore[arg-type]
