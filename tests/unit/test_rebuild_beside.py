"""Rebuilds with something beside them: other rebuilds, in this process or another, and purges."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog import rebuild as rebuilding
from eventlog import recount
from eventlog.rebuild import Rebuild
from eventlog.recount import Recount
from eventlog.roles import REBUILT
from eventlog.rows import CommitRecord
from eventlog.tables import WriteTables
from tests.unit.test_rebuild import derived, said

STEPS_MAX = 200


class OneStep:
    """A task that takes one step of another one."""

    def __init__(self, task: Rebuild | Recount) -> None:
        self.task = task
        self.done = False

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        self.done = True
        return self.task.step(tables, record)


def task_of(store: Store, role: str) -> Rebuild:
    log = store._log
    return Rebuild(role, log.cache, log.writer.pause, projections=log.projections)


def take_turns(store: Store, tasks: Sequence[Rebuild], turns: Sequence[int]) -> int:
    """Step tasks in turns, by number, over and over, until all are done; how many steps it took."""
    steps = 0
    for number in cycle(turns):
        task = tasks[number]
        if not task.done:
            steps += 1
            assert steps <= STEPS_MAX, "they never end"
            store._log.writer.run(OneStep(task))
        if all(each.done for each in tasks):
            return steps
    raise AssertionError("unreachable")


def fill(store: Store) -> None:
    for number in range(7):
        session = store.tenant("acme").session(f"s{number}")
        session.append_many(
            [said(f"{number}-{place}") for place in range(6)],
            ids=[f"i{number}-{place}" for place in range(6)],
            idempotency_key=f"k{number}",
        ).result()
        session.update_state({"v": number}).result()
        session.purge(4).result()
    store.flush()


@pytest.mark.parametrize("turns", [(0, 1), (0, 0, 1), (0, 1, 1), (0, 2, 1), (2, 1, 0, 0)])
def test_rebuilds_at_once_come_to_their_ends(
    turns: tuple[int, ...], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two rebuilds dropped what the other had made so far, and began its own again.

    As tasks take turns, none of them came to an end, in one process or in two.
    """
    monkeypatch.setattr(rebuilding, "STEP_SESSIONS_MAX", 2)
    fill(store)
    before = derived(store)
    for first, second in product(REBUILT, REBUILT):
        tasks = [task_of(store, role) for role in (first, second, "key")]
        for task in tasks:
            task.done = tasks.index(task) not in turns
        take_turns(store, tasks, turns)
        assert derived(store) == before, (first, second)
    assert store.check().ok


def test_whole_rebuilds_in_threads(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "STEP_SESSIONS_MAX", 2)
    fill(store)
    before = derived(store)
    threads = [threading.Thread(target=store.rebuild, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert derived(store) == before


REBUILDING = """
import sys
from engine import Store
from eventlog import rebuild
rebuild.STEP_SESSIONS_MAX = 1
with Store.open(sys.argv[1]) as store:
    print("open", flush=True)
    sys.stdin.readline()
    for _ in range(3):
        store.rebuild()
"""


def test_whole_rebuilds_in_processes(
    checked_store: Callable[..., Store], store_path: Path, repository: Path
) -> None:
    store = checked_store()
    fill(store)
    before = derived(store)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", REBUILDING, str(store_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=repository,
        )
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            assert process.wait(120) == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert derived(store) == before


def variables_of(number: int, chance: random.Random) -> tuple[dict[str, int], list[str]]:
    """What an event sets and deletes."""
    keys = [f"v{key}" for key in chance.sample(range(200), 8)]
    return dict.fromkeys(keys[:5], number), keys[5:]


@pytest.mark.parametrize(
    ("role", "seed"), [*product(["state"], range(5)), ("key", 0), ("key", 3), ("id", 0)]
)
def test_purges_beside_it_lose_nothing(
    role: str, seed: int, checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge between two steps took events away that the rebuild of state had not read yet.

    It took the base of purged events only when it began with a session, so their variables were
    lost, and check had nothing to say.
    """
    monkeypatch.setattr(rebuilding, "STEP_BYTES_MAX", 1)
    chance = random.Random(f"{role} {seed}")
    store = checked_store(snapshot_frequency=2)
    session = store.session("long")
    wanted: dict[str, int] = {}

    def change(number: int) -> None:
        changes, deleted = variables_of(number, chance)
        session.update_state(changes, delete=deleted)
        wanted.update(changes)
        for key in deleted:
            wanted.pop(key, None)

    for number in range(300):
        session.append(said(f"{number}"), id=f"i{number}", idempotency_key=f"k{number}")
        change(number)
        if number % 25 == 24:
            store.flush()
    for _ in range(3):
        task = task_of(store, role)
        steps = 0
        while not task.done:
            store._log.writer.run(OneStep(task))
            steps += 1
            if chance.random() < 0.3:
                change(steps)
                info = session.info()
                assert info is not None
                first = info.first_sequence
                last = min(info.event_count, first + 150)
                session.purge(chance.randint(first + 1, last)).result()
            if chance.random() < 0.2:
                store.flush()
        store._folds.clear()
        assert session.state == wanted
        report = store.check()
        assert report.ok, report.findings[:5]
    store.flush()
    before = derived(store)
    store.rebuild()
    assert derived(store) == before


class Metered(OneStep):
    """Also counts what one step reads: rows of tables and of sessions, and segments."""

    def __init__(self, task: Rebuild | Recount, meter: pytest.MonkeyPatch) -> None:
        super().__init__(task)
        self.met = 0
        self._meter = meter

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        rows, segments = tables.rows, tables.segments
        load_row, load_tenant = tables.load_row, tables.load_tenant

        def counted(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
            def walk(*given: Any, **named: Any) -> Iterator[Any]:
                for each in read(*given, **named):
                    self.met += 1
                    yield each

            return walk

        def counting(read: Callable[[int], Any]) -> Callable[[int], Any]:
            def load(number: int) -> Any:
                self.met += 1
                return read(number)

            return load

        with self._meter.context() as patch:
            patch.setattr(tables, "rows", counted(rows))
            patch.setattr(tables, "segments", counted(segments))
            patch.setattr(tables, "load_row", counting(load_row))
            patch.setattr(tables, "load_tenant", counting(load_tenant))
            return super().step(tables, record)


def wide(store: Store) -> None:
    """Many tenants, many sessions, one of many segments, and one of many keys that were purged."""
    for number in range(60):
        store.tenant(f"t{number}").session("s").append(said("x"))
    keys = store.session("keys")
    for number in range(300):
        keys.append(said("x"), idempotency_key=f"k{number}")
        keys.update_state({f"v{number % 9}": number})
    store.flush()
    keys.purge(400).result()
    long = store.session("long")
    for number in range(30):
        long.append_event("note", {"n": number}, idempotency_key=f"k{number}").result()
        long.append_many([said(f"{number} {place}") for place in range(50)]).result()
        store.flush()


@pytest.mark.parametrize("role", ["session", "session and keys", *REBUILT])
def test_steps_are_small_whatever_there_is(
    role: str, checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step took 4 MiB of segments, 2,048 sessions or all keys of one: up to 0.35 s of the lock.

    Now all that it reads counts, and what is more than that is left for later steps, also of one
    session.
    """
    store = checked_store(snapshot_frequency=4_096 if role == "session" else 10)
    merges: Any = store._log.writer.composer.merges
    merges.note = lambda _: None  # so that there are many segments
    wide(store)
    before = derived(store)
    monkeypatch.setattr(rebuilding, "STEP_BYTES_MAX", 5_000)
    monkeypatch.setattr(recount, "STEP_BYTES_MAX", 5_000)
    log = store._log
    task: Rebuild | Recount = (
        Recount(log.cache, log.writer.pause, keys=role != "session")
        if role.startswith("session")
        else task_of(store, role)
    )
    steps = 0
    while not task.done:
        step = Metered(task, monkeypatch)
        log.writer.run(step)
        steps += 1
        assert step.met <= 5_000 // rebuilding.ROW_BYTES + 20  # of the base of the one that has one
        if steps == 3:
            log.writer.run(OneStep(task_of(store, "activity")))  # another one in between
    assert steps > 5
    if isinstance(task, Recount):
        assert task.changed == 0
    store.rebuild()
    assert derived(store) == before


def test_a_session_that_changes_while_it_is_counted(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was counted of it before is thrown away, and there is an end."""
    store = checked_store(snapshot_frequency=10)
    wide(store)
    monkeypatch.setattr(recount, "STEP_BYTES_MAX", 1_000)
    log = store._log
    task = Recount(log.cache, log.writer.pause, keys=True)
    steps = 0
    while not task.done:
        steps += 1
        log.writer.run(OneStep(task))
        for name in ("keys", "long"):
            session = store.session(name)
            session.append(said("more"), idempotency_key=f"more {steps}").result()
            info = session.info()
            assert info is not None
            session.purge(info.event_count).result()
        assert steps < 1_000
    assert task.changed == 0
    assert store.check().ok
