"""Options that change while a store is open, here and in other processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Store
from eventlog.body import decode_body
from eventlog.composing import Composer
from eventlog.errors import (
    FormatVersionError,
    QuotaExceededError,
    ReadOnlyError,
    StoreClosedError,
    UsageError,
)
from eventlog.limits import DUE_EVENTS
from eventlog.rows import CommitRecord
from tests import old_store

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULTS = {
    "snapshot_frequency": 25,
    "max_messages": None,
    "quota_bytes": None,
    "dictionaries": True,
}
QUOTA_MIN = 1 << 20
EVENTS = 40  # that fill the smallest quota
Opens = Callable[..., Store]


def fill(store: Store) -> None:
    """More than the smallest quota, however it is compressed."""
    random = Random(7)
    for _ in range(EVENTS):
        store.session("a").append_event("frame", random.randbytes(32_000))
    store.flush()


def record(store: Store) -> CommitRecord:
    with store._log.views.transaction() as tables:
        return tables.commit_record()


def say(store: Store, name: str, count: int = 1) -> Any:
    return store.session(name).append_many([{"role": "user", "content": "x" * 100}] * count)


def test_options_stay_in_the_store(checked_store: Opens) -> None:
    store = checked_store()
    told = store.configure(snapshot_frequency=7, quota_bytes=1 << 30)
    assert told == {**DEFAULTS, "snapshot_frequency": 7, "quota_bytes": 1 << 30}
    assert store.stats()["options"] == told
    store.close()
    with Store.open(store.path, snapshot_frequency=7) as again:
        assert again.configure() == told
        with pytest.raises(UsageError, match="snapshot_frequency=7, not 25"):
            Store.open(store.path, snapshot_frequency=25)
        assert again.configure(quota_bytes=None) == {**told, "quota_bytes": None}


def test_one_commit_changes_them_all(store: Store) -> None:
    before = record(store)
    store.configure(snapshot_frequency=9, quota_bytes=1 << 30)
    after = record(store)
    assert after.transaction == before.transaction + 1
    assert after.generation == before.generation + 1


def test_what_is_so_already_writes_nothing(store: Store) -> None:
    store.configure(snapshot_frequency=9)
    before = record(store)
    assert store.configure(snapshot_frequency=9)["snapshot_frequency"] == 9
    assert store.configure()["snapshot_frequency"] == 9
    assert record(store) == before


def test_a_frequency_counts_at_once_for_what_is_loose(store: Store) -> None:
    say(store, "a", 10).result()
    store.flush()
    assert store.stats()["segments"] == 0
    store.configure(snapshot_frequency=5)
    assert store.session("a").history(1) != []  # memory is made anew, and knows what is due
    store.flush()
    say(store, "b", 5).result()
    store.flush()
    assert store.stats()["segments"] == 2


def test_a_quota_is_felt_by_the_next_append(store: Store) -> None:
    fill(store)
    store.configure(quota_bytes=QUOTA_MIN)
    with pytest.raises(QuotaExceededError):
        say(store, "a").result()
    store.configure(quota_bytes=None)
    say(store, "a").result()
    assert store.health()["problems"] == []


def test_reads_and_listings_go_on(store: Store) -> None:
    """A listing waited for ever for memory that is as new as the store."""
    for number in range(5):
        say(store, f"call-{number}", 30).result()
    for frequency in range(3, 9):
        store.configure(snapshot_frequency=frequency)
        assert len(store.sessions().sessions) == 5
        assert len(store.session("call-3").history()) == 27 + frequency
        say(store, "call-3").result()
        assert len(list(store.read())) == 148 + frequency
    store.session("call-3").delete().result()
    store.flush()


def test_appends_go_on_beside_it(store: Store) -> None:
    stop = threading.Event()
    acks: list[Any] = []

    def append() -> None:
        while not stop.is_set():
            acks.append(say(store, f"call-{len(acks) % 9}", 3).result())

    thread = threading.Thread(target=append)
    thread.start()
    for number in range(40):
        store.configure(snapshot_frequency=3 + number % 20, quota_bytes=(1 << 30) + number)
    stop.set()
    thread.join()
    assert [ack.position for ack in acks] == list(range(3, 3 * len(acks) + 1, 3))
    assert store.check().ok


@pytest.mark.parametrize(
    "changes",
    [
        {"snapshot_frequency": 0},
        {"snapshot_frequency": None},
        {"snapshot_frequency": 4_097},
        {"snapshot_frequency": "7"},
        {"quota_bytes": QUOTA_MIN - 1},
        {"quota_bytes": True},
        {"max_messages": -1},
        {"dictionaries": 1},
        {"dictionaries": None},
        {"snapshot_frequency": 7, "quota_bytes": 0},
    ],
    ids=str,
)
def test_values_that_make_no_sense_change_nothing(store: Store, changes: dict[str, Any]) -> None:
    before = record(store)
    with pytest.raises(UsageError):
        store.configure(**changes)
    assert store.configure() == DEFAULTS
    assert record(store) == before


def test_who_may_not_write_changes_nothing(checked_store: Opens) -> None:
    store = checked_store()
    store.close()
    with pytest.raises(StoreClosedError):
        store.configure(snapshot_frequency=7)
    with Store.open(store.path, read_only=True) as reader:
        with pytest.raises(ReadOnlyError):
            reader.configure(snapshot_frequency=7)
        assert reader.configure() == DEFAULTS


def test_it_is_awaited_on_a_loop(store: Store) -> None:
    told = asyncio.run(store.configure_async(snapshot_frequency=11))
    assert told == {**DEFAULTS, "snapshot_frequency": 11}


OTHER = """
import sys
from engine import Store
from eventlog.errors import TurnlogError
with Store.open(sys.argv[1], create=False, read_only=sys.argv[2] == "reader") as store:
    print("in", flush=True)
    for line in sys.stdin:
        try:
            if line == "append\\n":
                store.session("b").append({"role": "user", "content": "y"}).result(20)
            log = store._log
            print(store.configure(), log.index.frequency, flush=True)
        except TurnlogError as error:
            print(type(error).__name__, flush=True)
"""


class Other:
    """Another process that has the store open."""

    def __init__(self, path: Path, role: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(path), role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            text=True,
        )
        self.say("")

    def say(self, what: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        if what:
            stdin.write(what + "\n")
            stdin.flush()
        return stdout.readline().strip()

    def end(self) -> None:
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


@pytest.mark.parametrize("role", ["writer", "reader"])
def test_other_processes_follow(store: Store, role: str) -> None:
    fill(store)
    other = Other(store.path, role)
    assert other.say("look") == f"{DEFAULTS} {DUE_EVENTS}"
    store.configure(snapshot_frequency=13)
    assert other.say("look") == f"{ {**DEFAULTS, 'snapshot_frequency': 13} } 13"
    store.configure(quota_bytes=QUOTA_MIN)
    if role == "writer":  # its very next append, whatever it looked at before
        assert other.say("append") == "QuotaExceededError"
        store.configure(quota_bytes=None)
        assert other.say("append") == f"{ {**DEFAULTS, 'snapshot_frequency': 13} } 13"
    other.end()
    assert store.last_position == EVENTS + (role == "writer")


def test_an_old_store_gets_no_option_that_its_release_does_not_know(tmp_path: Path) -> None:
    """That release would take the row for damaged."""
    path = tmp_path / "store"
    old_store.make(path)
    with Store.open(path) as store:
        told = store.configure(snapshot_frequency=7)
        assert (told["snapshot_frequency"], told["dictionaries"]) == (7, False)
        with store._log.views.transaction() as tables:
            stored = decode_body(tables.options(), where="options")
        assert set(stored) == {"snapshot_frequency", "max_messages", "quota_bytes"}
        # One that is dropped without a word would be another after the upgrade.
        for change in ({"dictionaries": True}, {"dictionaries": False}, {"max_messages": 9}):
            with pytest.raises(FormatVersionError, match="version"):
                store.configure(snapshot_frequency=9, **change)  # type: ignore[arg-type]
        assert store.configure() == told
        assert store.check().ok
    Store.upgrade(path, without_backup=True)
    with Store.open(path) as store:
        assert store.configure()["dictionaries"] is True
        assert store.configure(dictionaries=False)["dictionaries"] is False
        assert store.check().ok


def test_dictionaries_are_turned_off_while_a_commit_is_taken_over(
    checked_store: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that reloads the options takes them away on another thread.

    The writer looked whether they were there and then once more, and its thread ended.
    """
    store = checked_store(snapshot_frequency=1)
    looks: list[bool] = []

    def every_second(_: Composer) -> object:
        looks.append(True)
        return store._log.dictionaries if len(looks) % 2 else None

    for first in range(2):  # so that either look at it is the one after which it goes
        looks[:] = [True] * first
        with monkeypatch.context() as patched:
            # The setter keeps a reload of the options from failing.
            patched.setattr(
                Composer, "dictionaries", property(every_second, lambda *_: None), False
            )
            for number in range(6):
                store.session("a").append({"role": "user", "content": f"{number}"}).result(30)
                store.session("b").create().result(30)
            store.flush()
        assert store.health()["ok"], store.health()["problems"]
    assert len(looks) > 12
