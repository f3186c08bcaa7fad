"""Threads that wait, refusals, back-pressure, and every way in which a process can end."""

from __future__ import annotations

import asyncio
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Ack, Event, Store
from engine.drafting import AckMode
from eventlog.errors import (
    AppendConflictError,
    OverloadedError,
    StoreClosedError,
    TurnlogError,
    UsageError,
)
from eventlog.failpoints import failpoints
from eventlog.limits import QUEUE_APPENDS_MAX, QUEUE_BYTES_MAX
from tests.model.staging import HANG_S, REPOSITORY, halted, in_threads, run_script


def numbers(path: Path, name: str = "s") -> list[Any]:
    """What the messages of a session hold, read by a new open."""
    with Store.open(path, create=False) as store:
        assert store.check().findings == []
        return [body["n"] for body in store.session(name).history()]


# Threads


def test_threads_append_and_every_event_is_there_once(store: Store) -> None:
    """openai-agents 1953, 2843: a lock per call protected nothing; rows drifted apart."""

    def append(by: int) -> list[int]:
        call = store.session(f"s{by % 3}")
        return [call.append({"by": by, "n": n}).result(HANG_S).position for n in range(50)]

    positions = in_threads(*[lambda by=by: append(by) for by in range(8)])
    assert sorted([place for each in positions for place in each]) == list(range(1, 401))
    logged = [(event.session, event.sequence, event.body) for event in store.read()]
    assert len(logged) == 400
    for name in ("s0", "s1", "s2"):
        info = store.session(name).info()
        events = list(store.session(name).events())
        assert info is not None
        assert info.event_count == info.message_count == len(events)
        assert [(name, event.sequence, event.body) for event in events] == [
            each for each in logged if each[0] == name
        ]
        for by in range(8):
            mine = [event.body["n"] for event in events if event.body["by"] == by]
            assert mine == list(range(len(mine)))


def test_first_appends_at_once_make_one_session(store: Store) -> None:
    """adk-python 4954, 4445: get-or-create raced on first use. Creation is part of the append."""
    for name in map(str, range(10)):
        acks = in_threads(
            *[lambda name=name: store.session(name).create().result(HANG_S)] * 3,
            *[lambda name=name: store.session(name).append({}).result(HANG_S)] * 3,
        )
        info = store.session(name).info()
        assert info is not None
        created = [ack for ack in acks[:3] if not ack.already]
        assert len(created) <= 1
        assert info.event_count == 3 + len(created)


def test_of_those_who_expect_an_empty_session_one_wins(store: Store) -> None:
    def first(by: int) -> str:
        try:
            store.session("s").append({"by": by}, expected_head=-1).result(HANG_S)
        except AppendConflictError as error:
            assert (error.expected, error.current) == (-1, 0)
            return "lost"
        return "won"

    found = in_threads(*[lambda by=by: first(by) for by in range(6)])
    assert sorted(found) == ["lost"] * 5 + ["won"]


def test_reads_never_disturb_appends(store: Store) -> None:
    """mem0 7196, opencode 21215: readers made writers fail. One writer, eight hot readers."""
    call = store.session("s")
    call.append({"n": 0}).result()
    stop = threading.Event()

    def append() -> None:
        for number in range(1, 50):
            call.append({"n": number}).result(HANG_S)
        stop.set()

    def read() -> None:
        while not stop.is_set():
            call.history(limit=5)
            list(store.read(limit=20))

    in_threads(append, *[read] * 8)
    assert len(call.history()) == 50


def test_a_caller_may_wait_in_a_thread_with_a_deadline(store: Store) -> None:
    with halted("commit.before_commit") as halt:
        ack = store.session("s").append({"n": 0})
        halt.wait_reached()
        with pytest.raises(TimeoutError):
            ack.result(0.01)
        with pytest.raises(TimeoutError):
            store.flush(0.01)
    assert ack.result(HANG_S) is ack
    assert store.flush(HANG_S) == 1


def test_an_unknown_ack_mode_is_refused(store: Store) -> None:
    call = store.session("s")
    calls: list[Callable[[], Any]] = [
        lambda: call.append({}, ack="fast"),  # type: ignore[arg-type]
        lambda: call.append_many([{}], ack="none"),  # type: ignore[arg-type]
        lambda: call.append_event("event", 1, ack=None),  # type: ignore[arg-type]
        lambda: store.append_batch([call.draft([{}])], ack=""),  # type: ignore[arg-type]
    ]
    for append in calls:
        with pytest.raises(UsageError):
            append()
    assert not call.exists


# Refusals of queued appends


def test_a_refused_queued_append_is_told_to_the_callback_and_the_next_flush(
    checked_store: Callable[..., Store],
) -> None:
    told: list[tuple[Ack, TurnlogError]] = []
    arrived = threading.Event()

    def hear(ack: Ack, error: TurnlogError) -> None:
        told.append((ack, error))
        if len(told) == 2:
            arrived.set()

    store = checked_store(on_rejected=hear)
    call = store.session("s")
    good = call.append({"n": 0}, ack="queued")
    bad = [call.append({"n": 1}, ack="queued", expected_head=5) for _ in range(2)]
    with pytest.raises(AppendConflictError) as caught:
        store.flush(HANG_S)
    assert good.result(HANG_S).first == 0
    assert arrived.wait(HANG_S)
    assert sorted([id(ack) for ack, _ in told]) == sorted(map(id, bad))
    assert all([isinstance(error, AppendConflictError) for _, error in told])
    assert caught.value.__notes__[1:] == ["1 more appends were refused"]  # after the hint
    assert store.flush(HANG_S) == 1, "each refusal is raised once"
    with pytest.raises(AppendConflictError):
        bad[0].result(HANG_S)


def test_a_refusal_that_its_caller_heard_is_no_news_for_flush(store: Store) -> None:
    ack = store.session("s").append({}, expected_head=5)
    with pytest.raises(AppendConflictError):
        ack.result(HANG_S)
    store.flush(HANG_S)


def test_each_store_on_a_path_hears_of_its_own_appends(checked_store: Callable[..., Store]) -> None:
    """Two opens of one path share a writer: each heard of the other's refusals as of its own."""
    heard: dict[str, list[Ack]] = {"one": [], "two": []}
    arrived = threading.Event()

    def hear(ack: Ack, error: TurnlogError) -> None:
        heard["two"].append(ack)
        arrived.set()

    one = checked_store(on_rejected=lambda ack, error: heard["one"].append(ack))
    two = checked_store(on_rejected=hear)
    bad = two.session("s").append({}, ack="queued", expected_head=5)
    large = two.session("s").append_event("custom", {}, ack="queued", expected_head=5)
    assert one.flush(HANG_S) == 0
    with pytest.raises(AppendConflictError):
        two.flush(HANG_S)
    assert arrived.wait(HANG_S)
    two.close()
    assert heard["one"] == []
    assert set(map(id, heard["two"])) <= {id(bad), id(large)}
    plain = one.session("s").append({})
    assert plain.owner is one
    assert plain.result(HANG_S).first == 0


def test_a_callback_that_fails_fails_nothing_else(checked_store: Callable[..., Store]) -> None:
    """FAULTS 52."""
    called = threading.Event()

    def fail(ack: Ack, error: TurnlogError) -> None:
        called.set()
        raise RuntimeError("the callback is broken")

    store = checked_store()
    assert store.on_rejected is None
    store.on_rejected = fail
    store.session("s").append({}, ack="queued", expected_head=5)
    assert called.wait(HANG_S)
    with pytest.raises(AppendConflictError):
        store.flush(HANG_S)
    assert store.session("s").append({}).result(HANG_S).first == 0


def test_a_callback_may_use_the_store(checked_store: Callable[..., Store]) -> None:
    done = threading.Event()

    def note(ack: Ack, error: TurnlogError) -> None:
        store.session("refused").append({"why": str(error)}).result(HANG_S)
        done.set()

    store = checked_store(on_rejected=note)
    store.session("s").append({}, ack="queued", expected_head=5)
    assert done.wait(HANG_S)
    with pytest.raises(AppendConflictError):
        store.flush(HANG_S)
    assert store.session("refused").exists


# Back-pressure (FAULTS 54)


def test_the_queue_is_bounded_in_appends(store: Store) -> None:
    call = store.session("s")
    with halted("commit.before_begin") as halt:
        call.append({"n": 0})
        halt.wait_reached()
        accepted = 1
        with pytest.raises(OverloadedError):
            while accepted <= 2 * QUEUE_APPENDS_MAX:
                call.append({"n": accepted})
                accepted += 1
        assert accepted <= QUEUE_APPENDS_MAX + 1
        memory = store.stats()["memory"]
        assert memory["queue_appends"] <= memory["queue_appends_max"] == QUEUE_APPENDS_MAX
        with pytest.raises(OverloadedError):
            call.append({}, wait=0.01)
        with pytest.raises(OverloadedError):
            call.append_many([{}] * 3, wait=0)
        assert store.health()["queue_appends"] == memory["queue_appends"]
        waiting = threading.Thread(target=lambda: call.append({"n": -1}, wait=HANG_S), daemon=True)
        waiting.start()
    waiting.join(HANG_S)
    assert not waiting.is_alive()
    store.flush(HANG_S)
    history = call.history()
    assert [body["n"] for body in history] == [*range(accepted), -1]


@pytest.mark.parametrize("size", [100_000, 4_000_000])
def test_the_queue_is_bounded_in_bytes(store: Store, size: int) -> None:
    body = {"content": "x" * size}
    with halted("commit.before_begin") as halt:
        store.session("s").append({})
        halt.wait_reached()
        accepted = 0
        with pytest.raises(OverloadedError):
            while accepted < 2 * QUEUE_BYTES_MAX // size:
                store.session("s").append(body)
                accepted += 1
        assert accepted * size <= QUEUE_BYTES_MAX
        memory = store.stats()["memory"]
        assert memory["queue_bytes"] <= memory["queue_bytes_max"] == QUEUE_BYTES_MAX
    store.flush(HANG_S)
    info = store.session("s").info()
    assert info is not None
    assert info.message_count == accepted + 1


def test_nothing_of_an_overloaded_batch_is_accepted(store: Store) -> None:
    call = store.session("s")
    with halted("commit.before_begin") as halt:
        call.append({})
        halt.wait_reached()
        for _ in range(7):
            call.append({"content": "x" * 8_000_000})
        with pytest.raises(OverloadedError):
            call.append_many([{"content": "y" * 5_000_000}] * 3)
        with pytest.raises(OverloadedError):
            store.append_batch(
                [
                    store.session("a").draft([{"content": "y" * 8_000_000}]),
                    store.session("b").draft([{"content": "y" * 8_000_000}]),
                ]
            )
    store.flush(HANG_S)
    assert len(call.history()) == 8
    assert not store.session("a").exists and not store.session("b").exists


# Closing


def test_close_commits_what_waits(store_path: Path) -> None:
    store = Store.open(store_path, snapshot_frequency=3)
    acks = [store.session("s").append({"n": number}) for number in range(5_000)]
    store.close()
    assert all([ack.done() for ack in acks])
    assert [ack.first for ack in acks] == list(range(5_000))
    assert numbers(store_path) == list(range(5_000))


def test_a_few_large_messages_leave_the_writer_in_peace(store_path: Path) -> None:
    """The hot log was over its target in bytes and had too few positions to be cut.

    The writer tried for ever, at full speed, and close() waited for it until its deadline.
    """
    tries: list[None] = []
    store = Store.open(store_path)
    for number in range(9):
        store.session("s").append({"n": number, "content": "x" * 9_000_000}).result(HANG_S)
    with failpoints({"commit.before_begin": lambda: tries.append(None)}):
        closing = threading.Thread(target=store.close, daemon=True)
        closing.start()
        closing.join(3)
        assert not closing.is_alive(), f"after {len(tries)} empty commits"
    assert numbers(store_path) == list(range(9))


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_closed_store_says_so(
    store_path: Path, checked_store: Callable[..., Store], is_shared: bool
) -> None:
    """With another handle of the process on the store, a closed one went on to read through it."""
    store = Store.open(store_path)
    if is_shared:
        other = checked_store(path=store_path)
    call = store.session("s")
    call.append({"n": 0}).result()
    subscription = store.subscribe(after=0)
    begun = store.subscribe(after=0)
    next(begun)
    events = iter(store.read())
    reader = store.blobs.open(store.blobs.put(b"abc"))
    projection = store.projection("p", print)
    store.close()
    store.close()
    calls: list[Callable[[], Any]] = [
        lambda: call.append({}),
        lambda: call.append_many([{}]),
        lambda: call.append_event("event", 1),
        lambda: call.append({}, wait=0.01),
        lambda: store.append_batch([call.draft([{}])]),
        call.create,
        call.history,
        call.info,
        lambda: call.exists,
        lambda: list(call.events()),
        lambda: list(store.read()),
        lambda: next(iter(subscription)),
        lambda: next(begun),
        lambda: next(events),
        lambda: reader.read(),
        lambda: store.up_to(1),
        lambda: asyncio.run(store.up_to_async(1)),
        lambda: projection.run_once(),
        projection.lag,
        lambda: call.at(0).history(),
        lambda: call.state,
        lambda: call.window(),
        lambda: list(call.path_events()),
        lambda: store.blobs.get(bytes(16)),
        lambda: list(store.salvage()),
        lambda: store.last_position,
        store.sessions,
        store.tenants,
        store.check,
        store.stats,
        lambda: store.load([{"session": "s", "kind": "message", "body": {}}]),
    ]
    for use in calls:
        with pytest.raises(StoreClosedError):
            use()
    assert store.health()["closed"] is True
    if is_shared:
        assert not other.health()["closed"]
        assert other.session("s").history() == [{"n": 0}]
    else:
        assert numbers(store_path) == [0]


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_close_ends_whoever_waits(
    store_path: Path, checked_store: Callable[..., Store], is_shared: bool
) -> None:
    """Beside another handle of the process they waited on: subscriptions gave what it committed,
    projections applied it, and a wait for a position went on for ever.
    """
    store = Store.open(store_path)
    if is_shared:
        other = checked_store(path=store_path)
    store.session("s").append({"n": 0}).result()
    here: queue.SimpleQueue[int] = queue.SimpleQueue()

    def tell(event: Event) -> None:
        here.put(event.position)

    def subscribed() -> None:
        for event in store.subscribe(after=0):
            tell(event)

    async def followed() -> None:
        async for event in store.subscribe(after=0):
            tell(event)

    async def waited() -> None:
        here.put(1)
        await store.up_to_async(9, None)

    def waited_here() -> None:
        here.put(1)
        store.up_to(9, None)

    waits: list[Callable[[], Any]] = [
        subscribed,
        lambda: asyncio.run(followed()),
        store.projection("one", tell).run,
        lambda: asyncio.run(store.projection("two", tell).run_async()),
        waited_here,
        lambda: asyncio.run(waited()),
    ]

    def refused(wait: Callable[[], Any]) -> None:
        with pytest.raises(StoreClosedError):
            wait()

    threads = [threading.Thread(target=refused, args=(wait,), daemon=True) for wait in waits]
    for thread in threads:
        thread.start()
    assert [here.get(timeout=HANG_S) for _ in waits] == [1] * len(waits)
    store.close()
    if is_shared:
        other.session("s").append({"n": 1}).result(HANG_S)
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()
    assert here.empty()


def test_two_handles_of_one_process_share_the_store(store_path: Path) -> None:
    """FAULTS 38: each sees at once what the other did, and closing one leaves the other."""
    first = Store.open(store_path)
    (store_path.parent / "link").symlink_to(store_path)
    second = Store.open(store_path.parent / "link")
    first.session("s").append({"n": 0}).result()
    assert second.session("s").history() == [{"n": 0}]
    waiting = first.session("s").append({"n": 1})
    first.close()
    for write in (lambda: first.session("s").append({"n": 9}), first.rebuild, first.collect_blobs):
        with pytest.raises(StoreClosedError):
            write()
    second.session("s").append({"n": 2}).result(HANG_S)
    assert waiting.result(HANG_S).first == 1
    second.close()
    assert numbers(store_path) == [0, 1, 2]


def test_an_error_in_the_with_block_still_commits(store_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Store.open(store_path) as store:
        store.session("s").append({"n": 0})
        _ = 1 / 0
    assert numbers(store_path) == [0]


# Ends of a process (FAULTS 50, 51)

EXITS = {
    "falls off the end": "",
    "sys.exit": "sys.exit(0)",
    "an error": "import os; sys.stderr = open(os.devnull, 'w'); raise KeyError('x')",
    "exit inside a loop": "asyncio.run(leave())",
    "a thread goes on": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
}


@pytest.mark.parametrize("how", EXITS.values(), ids=EXITS.keys())
def test_an_interpreter_that_ends_without_close_commits_what_waits(
    store_path: Path, how: str
) -> None:
    """What was accepted is written before the interpreter ends, and never half of it."""
    script = f"""
import asyncio, sys, threading, time
from engine import Store

async def leave():
    sys.exit(0)

store = Store.open(sys.argv[1])
store.session("s").append({{"n": 0}}).result()
for number in range(1, 3_000):
    store.session("s").append({{"n": number}}, ack="queued")
{how}
"""
    run_script(script, store_path, code=None)
    assert numbers(store_path) == list(range(3_000))


def test_os_exit_loses_only_what_was_not_acknowledged(store_path: Path) -> None:
    script = """
import os, sys
from engine import Store

store = Store.open(sys.argv[1])
acks = [store.session("s").append({"n": number}) for number in range(3_000)]
acks[1_000].result()
os._exit(0)
"""
    run_script(script, store_path)
    found = numbers(store_path)
    assert len(found) > 1_000
    assert found == list(range(len(found)))


TALK = """
import sys
from engine import Store

store = Store.open(sys.argv[1])
call = store.session("s")
count = len(call.history())
while True:
    acks = [call.append({"n": count + number}) for number in range(20)]
    for ack in acks:
        ack.result()
        print(ack.last, flush=True)
    count += 20
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGHUP])
def test_a_signal_loses_nothing_that_was_acknowledged(store_path: Path, end: int) -> None:
    """hermes-agent 92079: 16 of 124 sessions lost everything, since they were saved at the end."""
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", TALK, str(store_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(REPOSITORY)},
        )
        assert process.stdout is not None
        last = -1
        for _ in range(130):
            last = int(process.stdout.readline())
        process.send_signal(end)
        rest = process.stdout.read().split("\n")
        process.stdout.close()
        assert process.wait(HANG_S) == -end
        told = [int(line) for line in rest[:-1]]
        last = max([last, *told])
        found = numbers(store_path)
        assert len(found) > last
        assert found == list(range(len(found)))


def test_ctrl_c_ends_a_wait_and_the_append_goes_on(store_path: Path) -> None:
    script = """
import os, signal, sys, threading
from engine import Store
from tests.model.staging import halted

with Store.open(sys.argv[1]) as store:
    with halted("commit.before_commit") as halt:
        ack = store.session("s").append({"n": 0})
        halt.wait_reached()
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            ack.result()
        except KeyboardInterrupt:
            print("interrupted")
    ack.result()
"""
    assert run_script(script, store_path) == "interrupted\n"
    assert numbers(store_path) == [0]


def test_a_process_that_forks_may_open_the_store_again(store_path: Path) -> None:
    """py-lmdb 346: what was open before a fork is of no use in the child, and says so."""
    script = """
import os, sys
from engine import Store
from eventlog.errors import ForkedStoreError

store = Store.open(sys.argv[1])
store.session("s").append({"n": 0}).result()
pid = os.fork()
if pid == 0:
    for use in (store.session("s").history, lambda: store.session("s").append({"n": 9})):
        try:
            use()
        except ForkedStoreError:
            pass
        else:
            os._exit(3)
    store.close()
    with Store.open(sys.argv[1]) as again:
        again.session("s").append({"n": 1}).result(20)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
store.session("s").append({"n": 2}).result(20)
print([body["n"] for body in store.session("s").history()])
store.close()
"""
    assert run_script(script, store_path) == "[0, 1, 2]\n"
    assert numbers(store_path) == [0, 1, 2]


# Refusals that nobody asked for


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_flush_tells_what_was_refused_while_it_waited(
    store: Store, queued: bool, asynchronous: bool
) -> None:
    """It waited for the acks themselves, which then counted as told."""
    call = store.session("s")
    call.append({}).result(HANG_S)
    ack: AckMode = "queued" if queued else "durable"
    for _ in range(20):
        call.append({}, expected_head=77, ack=ack)
        with pytest.raises(AppendConflictError):
            if asynchronous:
                asyncio.run(store.flush_async())
            else:
                store.flush(HANG_S)
    store.flush(HANG_S)  # once is enough


@pytest.mark.parametrize("listens", [False, True])
def test_a_refusal_at_close_takes_nothing_else_along(store_path: Path, listens: bool) -> None:
    """Telling of it after close had begun ended the writer; what waited behind it was lost."""
    told: list[TurnlogError] = []
    heard = threading.Event()

    def hear(_: Ack, error: TurnlogError) -> None:
        told.append(error)
        heard.set()

    store = Store.open(store_path, on_rejected=hear if listens else None)
    good, bad = store.session("good"), store.session("bad")
    acks = []
    for number in range(6_000):
        if number == 3_000:
            bad.append({}, expected_head=77)
        acks.append(good.append({"n": number}))
    with pytest.raises(AppendConflictError):
        store.close()
    store.close()  # once is enough
    assert [ack.result(HANG_S).first for ack in acks] == list(range(6_000))
    if listens:
        assert heard.wait(HANG_S)
        assert [type(error) for error in told] == [AppendConflictError]
    with Store.open(store_path) as again:
        assert len(again.session("good").history()) == 6_000


def test_an_error_on_its_way_is_not_replaced_by_a_refusal(store_path: Path) -> None:
    with pytest.raises(KeyError), Store.open(store_path) as store:
        store.session("s").append({}, expected_head=77)
        raise KeyError("mine")


def test_closing_one_of_two_handles_commits_what_it_appended(store_path: Path) -> None:
    """It returned at once, as the other one kept the store open."""
    with Store.open(store_path) as other:
        store = Store.open(store_path)
        acks = [store.session("s").append({"n": number}) for number in range(3_000)]
        store.close()
        assert all(ack.done() for ack in acks)
        assert len(other.session("s").history()) == 3_000
