"""The yardsticks do what they are said to do: a ratio to one that cheats is worth nothing."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import cbor2
import lmdb
import pytest

from bench import bare_loop
from bench.bare_loop import BareLog, BareLoop, QueueFullError
from bench.drive import (
    OtherWork,
    Window,
    acknowledged_per_second,
    keyed_sessions,
    pipelined_per_second,
    plain_sessions,
)
from bench.null_store import NullStore
from bench.sqlite_rows import SqliteRows
from bench.workloads import Message, chat_messages

MESSAGES = chat_messages(500)


def stored(path: Path) -> list[tuple[int, object]]:
    environment = lmdb.open(str(path), max_dbs=1)
    with environment.begin(db=environment.open_db(b"log")) as transaction:
        rows = [
            (int.from_bytes(bytes(key), "big"), cbor2.loads(bytes(value)))
            for key, value in transaction.cursor()
        ]
    environment.close()
    return rows


def test_the_bare_loop_stores_what_it_acknowledges(tmp_path: Path) -> None:
    async def run() -> list[int]:
        bare = BareLoop(tmp_path)
        positions = [await bare.append(message) for message in MESSAGES[:20]]
        positions += await asyncio.gather(*(bare.append(message) for message in MESSAGES[20:]))
        assert bare.last_position == len(MESSAGES)
        await bare.close()
        return positions

    assert asyncio.run(run()) == list(range(1, len(MESSAGES) + 1))
    assert stored(tmp_path) == list(enumerate(MESSAGES, start=1))


def test_closing_the_bare_loop_commits_what_is_queued(tmp_path: Path) -> None:
    async def run() -> None:
        bare = BareLoop(tmp_path)
        acks = [bare.append(message) for message in MESSAGES]
        await bare.close()
        assert all(ack.done() for ack in acks)

    asyncio.run(run())
    assert len(stored(tmp_path)) == len(MESSAGES)


def test_a_full_queue_refuses_and_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare_loop, "QUEUE_APPENDS_MAX", 16)
    total = 400

    async def run() -> int:
        bare = BareLoop(tmp_path)
        refused = 0
        for message in MESSAGES[:total]:
            while True:
                try:
                    bare.append(message)
                    break
                except QueueFullError:
                    refused += 1
                    await bare.room()
        await bare.close()
        return refused

    assert asyncio.run(run()) > 0
    assert [body for _, body in stored(tmp_path)] == MESSAGES[:total]


def test_a_cancelled_caller_disturbs_nobody(tmp_path: Path) -> None:
    async def run() -> int:
        bare = BareLoop(tmp_path)
        first = bare.append(MESSAGES[0])
        first.cancel()
        position = await bare.append(MESSAGES[1])
        await bare.close()
        return position

    assert asyncio.run(run()) == 2


def test_the_bare_log_commits_each_append(tmp_path: Path) -> None:
    log = BareLog(tmp_path)
    assert [log.append(message) for message in MESSAGES[:5]] == [1, 2, 3, 4, 5]
    log.close()
    assert stored(tmp_path) == list(enumerate(MESSAGES[:5], start=1))


def test_sqlite_rows_are_numbered_and_durable(tmp_path: Path) -> None:
    async def run() -> None:
        rows = SqliteRows(tmp_path)
        await asyncio.gather(
            *(rows.append(f"call-{number % 2}", MESSAGES[number]) for number in range(10))
        )
        await rows.close()

    asyncio.run(run())
    connection = sqlite3.connect(tmp_path / "rows.sqlite")
    found = connection.execute("SELECT session, sequence, body FROM event ORDER BY position")
    assert [(session, sequence, json.loads(body)) for session, sequence, body in found] == [
        (f"call-{number % 2}", number // 2, MESSAGES[number]) for number in range(10)
    ]
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_the_null_store_answers_at_once() -> None:
    async def run() -> None:
        with NullStore() as store:
            ack = store.session("call").append(MESSAGES[0])
            assert await ack is ack

    asyncio.run(run())


def test_sessions_append_until_the_window_is_over(tmp_path: Path) -> None:
    async def run() -> None:
        bare = BareLoop(tmp_path)
        sessions = plain_sessions([bare.append] * 10, MESSAGES)
        assert await acknowledged_per_second(sessions, Window(warm_up=200, seconds=0.01)) > 0
        assert bare.last_position >= 200
        await bare.close()

    asyncio.run(run())


def test_keyed_sessions_use_each_key_and_id_once() -> None:
    seen: list[tuple[str, str, str]] = []

    async def append(name: str, message: Message, *, idempotency_key: str, id: str) -> None:
        seen.append((name, idempotency_key, id))
        await asyncio.sleep(0)

    async def run() -> None:
        names = ["a", "b"]
        sessions = keyed_sessions([partial(append, name) for name in names], names, MESSAGES)
        await acknowledged_per_second(sessions, Window(warm_up=50, seconds=0.0))

    asyncio.run(run())
    assert len({(name, key) for name, key, _ in seen}) == len(seen)
    assert len({event_id for _, _, event_id in seen}) == len(seen)


def test_pipelined_appends_in_order_and_waits_for_the_last(tmp_path: Path) -> None:
    async def run() -> None:
        bare = BareLoop(tmp_path)
        rate = await pipelined_per_second(
            [bare.append] * 3, bare.room, QueueFullError, MESSAGES, Window(100, 0.01)
        )
        assert rate > 0
        assert bare.last_position > 100
        assert not bare._futures  # nothing is left in the queue
        await bare.close()

    asyncio.run(run())
    bodies = [body for _, body in stored(tmp_path)]
    assert bodies == list(islice(cycle(MESSAGES), len(bodies)))


def test_other_work_takes_its_share() -> None:
    async def run() -> float:
        work = OtherWork(0.5)
        task = asyncio.create_task(work.run())
        await asyncio.sleep(0.05)
        share = work.stop()
        await task
        return share

    assert 0 < asyncio.run(run()) <= 1
