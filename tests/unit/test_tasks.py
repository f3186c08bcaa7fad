"""Tasks: work between the batches, step by step, on the writer's thread."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Store
from eventlog.errors import ReadOnlyError, StoreClosedError, StoreUnavailableError, UsageError
from eventlog.failpoints import failpoints, raise_
from eventlog.rows import CommitRecord
from eventlog.tables import WriteTables


class Count:
    """Counts its steps in the commit record, where each is durable on its own."""

    def __init__(self, steps: int, error: BaseException | None = None) -> None:
        self.left = steps
        self.done = False
        self.threads: set[str] = set()
        self._error = error

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        self.threads.add(threading.current_thread().name)
        if not self.left:
            if self._error is not None:
                raise self._error
            self.done = True
            return None
        self.left -= 1
        return replace(record, removals=record.removals + 1)


def removals(store: Store) -> int:
    with store._log.views.transaction() as tables:
        return tables.commit_record().removals


def test_each_step_is_a_commit_of_its_own(store: Store) -> None:
    with store._log.views.transaction() as tables:
        before = tables.commit_record()
    task = Count(3)
    store._log.writer.run(task)
    with store._log.views.transaction() as tables:
        after = tables.commit_record()
    assert (after.removals, after.transaction) == (3, before.transaction + 3)
    assert task.threads == {"turnlog-writer"}


def test_appends_go_on_between_the_steps(store: Store) -> None:
    """A long task does not keep a batch waiting until it is done, and the other way round."""
    task = Count(200)
    thread = threading.Thread(target=store._log.writer.run, args=(task,))
    thread.start()
    acks = [store.session("a").append({"role": "user", "content": "x"}) for _ in range(50)]
    for ack in acks:
        ack.result(timeout=30)
    thread.join(30)
    assert task.done
    assert removals(store) == 200
    assert len(store.session("a").history()) == 50


def test_a_step_that_fails_writes_nothing_and_says_why(store: Store) -> None:
    with pytest.raises(UsageError, match="no more"):
        store._log.writer.run(Count(2, UsageError("no more")))
    with pytest.raises(StoreUnavailableError, match="KeyError"):
        store._log.writer.run(Count(1, KeyError("x")))
    with (
        failpoints({"commit.before_commit": raise_(UsageError("stopped"))}),
        pytest.raises(UsageError),
    ):
        store._log.writer.run(Count(1))
    assert removals(store) == 3
    store._log.writer.run(Count(1))
    assert removals(store) == 4


def test_a_task_that_takes_too_long_is_left(store: Store) -> None:
    gate = threading.Event()

    class Slow(Count):
        def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
            gate.wait(30)
            return super().step(tables, record)

    task = Slow(1_000)
    with pytest.raises(TimeoutError):
        store._log.writer.run(task, timeout=0.01)
    gate.set()
    store.session("a").append({"role": "user", "content": "x"}).result(timeout=30)
    store._log.writer.run(Count(1))
    assert removals(store) <= 3


def test_nobody_waits_for_a_store_that_is_closed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    begun = threading.Event()
    found: list[BaseException] = []

    class Endless(Count):
        def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
            begun.set()
            return replace(record, removals=record.removals + 1)

    def wait() -> None:
        try:
            store._log.writer.run(Endless(1))
        except StoreClosedError as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(30)
    store.close()
    thread.join(30)
    assert len(found) == 1
    with pytest.raises(StoreClosedError):
        store._log.writer.run(Count(1))
    with Store.open(tmp_path / "store", read_only=True) as again, pytest.raises(ReadOnlyError):
        again._log.writer.run(Count(1))
    with Store.open(tmp_path / "store") as again:
        assert again.check().ok
