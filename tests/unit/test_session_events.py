"""Reading one session: pages, ranges, kinds, long sessions, and iterators that hold nothing."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Event, Store
from eventlog.errors import SessionNotFoundError, UsageError
from eventlog.idruns import IdRuns
from eventlog.limits import PAGE_EVENTS
from eventlog.tables import WriteTables
from tests.model.actors import Workers
from tests.model.operations import Append, New
from tests.model.staging import HANG_S, halted, in_threads

LONG = 20_000


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


@pytest.fixture(scope="module")
def long_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A session of 20,000 events, most of them sealed and cut, beside others."""
    path = tmp_path_factory.mktemp("long") / "store"
    with Store.open(path, snapshot_frequency=25) as store:
        call = store.session("s")
        for start in range(0, LONG, 500):
            call.append_many([{"n": n} for n in range(start, start + 490)])
            for n in range(start + 490, start + 500):
                call.append_event("mark" if n % 2 else "label", {"n": n})
            store.session(f"other{start % 3}").append({"n": start})
    with Store.open(path) as store:
        yield store
        assert store.check().findings == []


@pytest.mark.parametrize(
    "through", [copy.deepcopy, lambda event: pickle.loads(pickle.dumps(event))]
)
def test_an_event_is_copied_and_pickled_whole(
    store: Store, through: Callable[[Event], Event]
) -> None:
    """What stood for a body that was not read was copied too: the copy's body was an object."""
    call = store.session("s")
    said = {"role": "user", "content": "x"}
    call.append(said, metadata={"k": 1}).result(HANG_S)
    event = call.event(0)
    for _ in range(2):
        found = through(event)
        assert found == event
        assert (found.body, found.role, found.metadata) == (said, "user", {"k": 1})
        assert event.body == said  # which it keeps from now on


# Long sessions


def test_a_long_session_is_read_whole(long_session: Store) -> None:
    call = long_session.session("s")
    events = list(call.events())
    assert [event.body["n"] for event in events] == list(range(LONG))
    assert [event.sequence for event in events] == list(range(LONG))
    positions = [event.position for event in events]
    assert positions == sorted(set(positions))
    assert [event.parent for event in events] == [None, *range(LONG - 1)]
    history = [body["n"] for body in call.history()]
    assert history == [n for n in range(LONG) if n % 500 < 490]


def test_any_range_of_a_long_session_is_read_alike(long_session: Store) -> None:
    call = long_session.session("s")
    random = Random(7)
    edges = [0, 1, 24, 25, PAGE_EVENTS - 1, PAGE_EVENTS, 2_047, 2_048, LONG - 1, LONG, LONG + 5]
    for _ in range(60):
        first = random.choice([*edges, random.randrange(LONG)])
        last = random.choice([None, first, first + 1, first + 30, first - 1, first + PAGE_EVENTS])
        if last is not None and last < 0:
            continue
        stop = LONG if last is None else min(LONG, last + 1)
        found = [event.body["n"] for event in call.events(first, last)]
        assert found == list(range(first, stop)), (first, last)


@pytest.mark.parametrize("limit", [0, 1, 2, 9, 10, 11, 489, 490, 491, 5_000, LONG, LONG + 1])
def test_the_last_messages_of_a_long_session(long_session: Store, limit: int) -> None:
    expected = [n for n in range(LONG) if n % 500 < 490][max(0, LONG * 49 // 50 - limit) :]
    assert [body["n"] for body in long_session.session("s").history(limit)] == expected


def test_the_tail_of_a_long_session_costs_what_it_returns(
    long_session: Store, tmp_path: Path
) -> None:
    """adk-python 3039: to see the last events of a session all of them were loaded."""
    path = tmp_path / "store"
    with Store.open(path, snapshot_frequency=25) as store:
        call = store.session("s")
        for n in range(6_000):
            call.append({"n": n, "content": "x" * 200})
    with Store.open(path) as store:
        call = store.session("s")
        assert [body["n"] for body in call.history(limit=20)] == list(range(5_980, 6_000))
        assert [event.sequence for event in call.events(3_000, 3_019)] == list(range(3_000, 3_020))
        few = store.stats()["memory"]["segment_cache_bytes"]
        call.history()
        assert few * 10 < store.stats()["memory"]["segment_cache_bytes"]


def test_kinds_are_filtered_and_counted(long_session: Store) -> None:
    call = long_session.session("s")
    marks = [event.body["n"] for event in call.events(kinds=("mark",))]
    assert marks == [n for n in range(LONG) if n % 500 >= 490 and n % 2]
    both = [event.kind for event in call.events(first=480, last=500, kinds={"mark", "label"})]
    assert both == ["label", "mark"] * 5
    assert [event.kind for event in call.events(last=495, kinds="mark")] == ["mark"] * 3
    assert list(call.events(kinds=())) == []
    assert list(call.events(kinds=("nothing",))) == []


def test_the_log_of_a_long_session_is_read_in_order(long_session: Store) -> None:
    positions = [event.position for event in long_session.read()]
    assert positions == list(range(1, LONG + 41))
    for after, limit in ((0, 1), (2_047, 3), (5_000, 2_500), (LONG + 38, None), (LONG + 40, 5)):
        found = [event.position for event in long_session.read(after, limit)]
        stop = LONG + 41 if limit is None else min(LONG + 41, after + 1 + limit)
        assert found == list(range(after + 1, stop))
    assert list(long_session.read(limit=0)) == []


# Iterators


def test_an_iterator_that_pauses_blocks_nobody(store_path: Path, workers: Workers) -> None:
    """langgraph 8558: a paused listing held a lock, and every write timed out."""
    store = Store.open(store_path, snapshot_frequency=2)
    call = store.session("s")
    call.append_many([{"n": n} for n in range(3_000)]).result(HANG_S)
    paused = [iter(call.events()), iter(store.read()), iter(store.subscribe(after=0))]
    for iterator in paused:
        assert next(iterator).sequence == 0
    call.append({"n": 3_000}).result(HANG_S)
    other = workers.start()
    other.perform(store_path, Append("", "s", (New({"n": 3_001}),)))
    other.close()
    with Store.open(store_path) as second:
        second.session("s").append({"n": 3_002}).result(HANG_S)
    assert [event.body["n"] for event in paused[0]] == list(range(1, 3_003))
    assert [event.body["n"] for event in paused[1]] == list(range(1, 3_003))
    store.close()  # waits for reads that are open: there is none
    with Store.open(store_path) as store:
        assert store.check().findings == []


def test_an_iterator_goes_on_across_sealing_and_cutting(
    checked_store: Callable[..., Store],
) -> None:
    store = checked_store(snapshot_frequency=4_096)
    call = store.session("s")
    call.append_many([{"n": n} for n in range(3_000)]).result(HANG_S)
    iterator = iter(call.events())
    in_log = iter(store.read())
    found = [next(iterator).body["n"] for _ in range(10)]
    logged = [next(in_log).body["n"] for _ in range(10)]
    for n in range(3_000, 9_000, 500):
        call.append_many([{"n": n + each} for each in range(500)]).result(HANG_S)
    store.flush(HANG_S)
    found += [event.body["n"] for event in iterator]
    logged += [event.body["n"] for event in in_log]
    assert found == logged == list(range(9_000))


def test_an_iterator_sees_each_event_once_beside_an_appending_thread(store: Store) -> None:
    call = store.session("s")
    call.append({"n": 0}).result()

    def append() -> None:
        for n in range(1, 2_500):
            call.append({"n": n})
        store.flush(HANG_S)

    def read() -> None:
        following = 0
        while following < 2_500:
            for event in call.events(following):
                assert event.sequence == event.body["n"] == following
                following += 1

    in_threads(append, read, read)


def test_events_are_read_lazily_and_large_ones_few_at_a_time(store: Store) -> None:
    call = store.session("s")
    for n in range(20):
        call.append({"n": n, "content": "x" * 1_000_000})
    store.flush(HANG_S)
    iterator = iter(call.events())
    assert next(iterator).body["n"] == 0
    assert [event.body["n"] for event in iterator] == list(range(1, 20))

    async def main() -> list[int]:
        return [event.body["n"] async for event in call.events(5)]

    assert asyncio.run(main()) == list(range(5, 20))


# One event, one session


def test_an_event_that_is_not_there(store: Store) -> None:
    call = store.session("s")
    with pytest.raises(SessionNotFoundError):
        call.event(0)
    call.append({}).result()
    with pytest.raises(UsageError) as caught:
        call.event(1)
    assert "0 to 0" in str(caught.value)
    for read in (
        lambda: call.event(-1),
        lambda: call.events(-1),
        lambda: call.events(0, -1),
        lambda: call.history(-1),
        lambda: store.read(-1),
        lambda: store.read(0, -1),
        lambda: store.subscribe(-1),
    ):
        with pytest.raises(UsageError):
            read()


def test_a_session_that_is_not_there(store: Store) -> None:
    call = store.session("s")
    assert call.history() == [] and call.history(limit=5) == []
    assert list(call.events()) == []
    assert call.info() is None and call.head is None and not call.exists
    assert store.last_position == 0


def test_all_fields_of_an_event_are_kept(checked_store: Callable[..., Store]) -> None:
    given: dict[str, Any] = {
        "id": "e-1",
        "metadata": {"a": [1, None, b"x"]},
        "time_us": -5,
        "tokens": 2**32 - 1,
        "run_id": "run",
        "turn_id": "turn\x00",
        "speech_id": "speech",
        "request_id": "é" * 256,
    }
    store = checked_store(snapshot_frequency=1)
    tenant = store.tenant("t")
    call = tenant.session("s")
    call.append({"role": "assistant", "content": "x"}, **given).result()
    call.append_event("tool:call", ["y"], **{**given, "id": "e-2"}).result()
    for _ in range(3):  # loose, sealed, and by position
        events = [*call.events(last=1), *tenant.read(limit=2), call.event(0), call.event(1)]
        for event in events:
            sequence = event.sequence
            assert (event.tenant, event.session, event.session_number) == ("t", "s", 1)
            assert (event.position, event.branch) == (sequence + 1, 0)
            assert event.parent == (None if sequence == 0 else 0)
            assert event.kind == ["message", "tool:call"][sequence]
            assert event.role == ["assistant", None][sequence]
            assert event.event_id == event.id == f"e-{sequence + 1}"
            for name, value in given.items():
                if name != "id":
                    assert getattr(event, name) == value, name
            assert event.recorded_us > 0
            assert "sequence=" in repr(event)
        assert events[0] == events[2] == events[4] != events[1]
        assert hash(events[0]) == hash(events[2])
        call.append({}).result()
        store.flush(HANG_S)
    assert len(set(call.events())) == 5


def test_counts_follow_what_is_appended(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=3)
    call = store.session("s")
    messages = events = 0
    for number in range(40):
        if number % 3:
            call.append_event("label", number).result()
        else:
            call.append_many([{"n": number}] * (number % 5 + 1)).result()
            messages += number % 5 + 1
            events += number % 5
        events += 1
        info = call.info()
        assert info is not None
        assert (info.event_count, info.message_count) == (events, messages)
        assert (info.head, info.last_sequence, info.last_position) == (events - 1,) * 2 + (events,)
        assert info.created_us <= info.updated_us
        assert 0 <= info.unsealed_count <= events
    store.close()
    with Store.open(store.path) as again:
        assert again.session("s").info() is not None
        info = again.session("s").info()
        assert info is not None
        assert (info.event_count, info.message_count, info.head) == (events, messages, events - 1)


def test_a_reader_sees_what_was_acknowledged(store: Store) -> None:
    """Reading your own writes, from any thread, handle or kind of read."""
    call = store.session("s")
    with Store.open(store.path) as second:
        for n in range(50):
            ack = call.append({"n": n}).result()
            assert call.history(limit=1) == [{"n": n}]
            assert second.session("s").event(ack.last).body == {"n": n}
            assert next(iter(second.read(after=ack.position - 1))).body == {"n": n}
            assert second.session("s").head == n
            assert second.last_position == ack.position


def test_a_read_is_not_held_up_by_a_commit(store: Store) -> None:
    call = store.session("s")
    call.append_many([{"n": n} for n in range(10)]).result()
    with halted("commit.before_commit") as halt:
        ack = call.append({"n": 10})
        halt.wait_reached()
        assert len(call.history()) == 10
        assert len(list(store.read())) == 10
        assert not ack.done()
    assert ack.result(HANG_S).first == 10


@pytest.mark.parametrize("start", [2**32, 2**33 + 2**32, 10**10 // 2_048 * 2_048, 2**62])
def test_positions_may_grow_as_they_like(store_path: Path, start: int) -> None:
    """FAULTS 67: a store that has counted far goes on; here it begins there."""
    with Store.open(store_path, snapshot_frequency=2) as store:
        environment = store._log.environment
        transaction = environment.begin_write(1_000)
        tables = WriteTables(transaction, environment.db, IdRuns(environment.db["id"]))
        record = tables.commit_record()
        tables.put_commit_record(
            replace(record, last_position=start, floor=start + 1, transaction=transaction.id())
        )
        environment.commit(transaction)
    with Store.open(store_path) as store:
        assert store.last_position == start
        call = store.session("s")
        ack = call.append({"n": 0}, id="e", idempotency_key="k").result()
        assert ack.position == start + 1
        call.append_many([{"n": n} for n in range(1, 5_000)]).result(HANG_S)
        store.session("t").append({}).result()
    with Store.open(store_path, min_position=start + 5_001) as store:
        call = store.session("s")
        assert [body["n"] for body in call.history()] == list(range(5_000))
        found = [event.position for event in store.read(after=start)]
        assert found == list(range(start + 1, start + 5_002))
        assert [info.name for info in store.sessions(limit=1).sessions] == ["t"]
        assert call.append({"n": 0}, id="e", idempotency_key="k").result().position == start + 1
        with store.subscribe(after=start + 4_999) as subscription:
            last = [event.position for event in islice(iter(subscription), 2)]
        assert last == [start + 5_000, start + 5_001]


def test_an_event_is_printed_as_what_it_is(store: Store) -> None:
    """`print(event)` gave `position 1`, and nothing told a redacted event from one of no body."""
    call = store.session("s")
    call.append({"role": "user", "content": "hello"}).result()
    event = call.event(0)
    assert str(event) == repr(event) and "'hello'" in str(event) and "sequence=0" in str(event)
    assert f"{event}" == "position 1"  # what errors name
    call.redact(0, 0)
    assert str(call.event(0)).endswith("kind='message', redacted)")
