"""Subscriptions: from catching up to live without a gap, across threads, loops and processes."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from engine import Event, Store, Subscription, reading
from eventlog.errors import CorruptionError, SessionGoneError, StoreClosedError, UsageError
from tests.model.actors import Workers
from tests.model.operations import Append, New
from tests.model.staging import HANG_S, halted, in_threads


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


def numbers(subscription: Subscription, count: int) -> list[Any]:
    """The bodies of the next events; closes it."""
    with subscription:
        return [event.body["n"] for event in islice(iter(subscription), count)]


async def numbers_async(subscription: Subscription, count: int) -> list[Any]:
    found = []
    with subscription:
        async for event in subscription:
            found.append(event.body["n"])
            if len(found) == count:
                break
    return found


def run(main: Any) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main, HANG_S)

    return asyncio.run(bounded())


@pytest.mark.parametrize("frequency", [1, 25])
def test_from_what_is_there_to_what_comes_without_a_gap(
    checked_store: Callable[..., Store], frequency: int
) -> None:
    store = checked_store(snapshot_frequency=frequency)
    call, other = store.session("s"), store.session("other")
    call.append_many([{"n": n} for n in range(3_000)]).result(HANG_S)
    total = 4_000

    def append() -> None:
        for n in range(3_000, total):
            call.append({"n": n})
            if not n % 10:
                other.append({"n": -n})
        store.flush(HANG_S)

    def subscribe_to_session() -> list[Any]:
        return numbers(call.subscribe(after=-1), total)

    def subscribe_on_a_loop() -> list[Any]:
        found: list[Any] = run(numbers_async(call.subscribe(after=-1), total))
        return found

    def subscribe_to_all() -> list[Any]:
        return numbers(store.subscribe(after=0), total + 100)

    def subscribe_to_all_on_a_loop() -> list[Any]:
        found: list[Any] = run(numbers_async(store.subscribe(after=0), total + 100))
        return found

    found = in_threads(
        append,
        subscribe_to_session,
        subscribe_on_a_loop,
        subscribe_to_all,
        subscribe_to_all_on_a_loop,
    )
    assert found[1] == found[2] == list(range(total))
    assert found[3] == found[4] == [event.body["n"] for event in store.read()]


def test_events_of_another_process_arrive_too(
    checked_store: Callable[..., Store], workers: Workers, store_path: Path
) -> None:
    store = checked_store(snapshot_frequency=2)
    call = store.session("s")
    other = workers.start()

    def there() -> None:
        for n in range(60):
            other.perform(store_path, Append("", "s", (New({"by": 1, "n": n}),)))

    def here() -> None:
        for n in range(60):
            call.append({"by": 0, "n": n}).result(HANG_S)

    def follow(subscription: Subscription) -> list[tuple[int, int, Any]]:
        with subscription:
            return [
                (event.sequence, event.body["by"], event.body["n"])
                for event in islice(iter(subscription), 120)
            ]

    found = in_threads(
        there,
        here,
        lambda: follow(call.subscribe(after=-1)),
        lambda: follow(store.subscribe(after=0)),
    )
    other.close()
    for each in found[2:]:
        assert [sequence for sequence, _, _ in each] == list(range(120))
        for by in (0, 1):
            assert [n for _, who, n in each if who == by] == list(range(60))


def test_only_what_comes_from_now_on(store: Store) -> None:
    call = store.session("s")
    call.append({"n": 0}).result()
    of_session, of_store = call.subscribe(), store.subscribe()
    of_nobody = store.session("later").subscribe()
    call.append({"n": 1}).result()
    store.session("later").append({"n": 2}).result()
    assert numbers(of_session, 1) == [1]
    assert numbers(of_store, 2) == [1, 2]
    assert numbers(of_nobody, 1) == [2]


def test_a_subscription_begins_where_it_is_told(store: Store) -> None:
    call = store.session("s")
    call.append_many([{"n": n} for n in range(10)]).result()
    assert numbers(call.subscribe(after=6), 3) == [7, 8, 9]
    assert numbers(store.subscribe(after=7), 3) == [7, 8, 9]
    with pytest.raises(UsageError):
        call.subscribe(after=-2)
    with pytest.raises(UsageError):
        store.subscribe(after=-1)


def test_a_tenant_hears_of_its_own_only(store: Store) -> None:
    mine, other = store.tenant("mine"), store.tenant("other")
    subscription = mine.subscribe(after=0)
    for n in range(200):
        (mine if n % 20 == 19 else other).session("s").append({"n": n})
    store.flush(HANG_S)
    assert numbers(subscription, 10) == list(range(19, 200, 20))


def test_kinds_can_be_chosen(store: Store) -> None:
    call = store.session("s")
    subscription = call.subscribe(after=-1, kinds=("label",))
    for n in range(20):
        call.append({"n": -n})
        call.append_event("label", {"n": n})
    assert numbers(subscription, 20) == list(range(20))


@pytest.mark.parametrize("of", ["store", "session"])
def test_close_from_another_thread_ends_the_wait(store: Store, of: str) -> None:
    call = store.session("s")
    call.append({"n": 0}).result()
    subscription = store.subscribe(after=0) if of == "store" else call.subscribe(after=-1)
    got = threading.Event()
    found: list[Event] = []

    def follow() -> None:
        for event in subscription:
            found.append(event)
            got.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert got.wait(HANG_S)
    subscription.close()
    thread.join(HANG_S)
    assert not thread.is_alive()
    call.append({"n": 1}).result()
    assert [event.body["n"] for event in found] == [0]
    subscription.close()
    assert list(subscription) == []


def test_close_ends_a_task_that_waits(store: Store) -> None:
    async def main() -> list[Any]:
        subscription = store.subscribe(after=0)
        found: list[Any] = []
        got = asyncio.Event()

        async def follow() -> None:
            async for event in subscription:
                found.append(event.body["n"])
                got.set()

        task = asyncio.create_task(follow())
        await store.session("s").append({"n": 0})
        await got.wait()
        await asyncio.get_running_loop().run_in_executor(None, subscription.close)
        await task
        return found

    assert run(main()) == [0]


def test_closing_the_store_ends_subscriptions_with_an_error(store_path: Path) -> None:
    store = Store.open(store_path)
    store.session("s").append({"n": 0}).result()
    got = threading.Event()
    errors: list[BaseException] = []

    def follow(subscription: Subscription) -> None:
        try:
            for _ in subscription:
                got.set()
        except StoreClosedError as error:
            errors.append(error)

    def follow_on_a_loop(subscription: Subscription) -> None:
        async def main() -> None:
            async for _ in subscription:
                got.set()

        try:
            run(main())
        except StoreClosedError as error:
            errors.append(error)

    threads = [
        threading.Thread(target=target, args=(subscription,), daemon=True)
        for target in (follow, follow_on_a_loop)
        for subscription in (store.subscribe(after=0), store.session("s").subscribe(after=-1))
    ]
    for thread in threads:
        thread.start()
    assert got.wait(HANG_S)
    store.close()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()
    assert len(errors) == 4


def test_a_cancelled_task_leaves_nothing_behind(store: Store) -> None:
    async def main() -> None:
        subscription = store.subscribe(after=0)
        task = asyncio.create_task(numbers_async(subscription, 5))
        await store.session("s").append({"n": 0})
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.session("s").append({"n": 1})
        assert await numbers_async(store.subscribe(after=0), 2) == [0, 1]

    run(main())


def test_a_slow_subscriber_holds_up_nobody_and_misses_nothing(
    checked_store: Callable[..., Store],
) -> None:
    """It keeps a page of events at most; the rest waits in the log, sealed and cut meanwhile."""
    store = checked_store(snapshot_frequency=1)
    call = store.session("s")
    call.append({"n": 0}).result()
    subscription = store.subscribe(after=0)
    iterator = iter(subscription)
    assert next(iterator).body["n"] == 0
    for start in range(1, 10_001, 1_000):
        call.append_many([{"n": n} for n in range(start, start + 1_000)])
    store.flush(HANG_S)
    assert [event.body["n"] for event in islice(iterator, 10_000)] == list(range(1, 10_001))
    subscription.close()


def test_a_subscriber_that_waits_on_a_loop_stays_small(store: Store) -> None:
    """Each look at another process's commits left a future behind, for as long as none came."""

    async def main() -> None:
        iterator: AsyncIterator[Event] = aiter(store.subscribe())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(iterator), 0.1)

    store.session("s").append({"n": 0}).result()
    run(main())
    assert len(store._log._futures) == 0


def test_what_a_subscriber_was_shown_can_be_read(store: Store) -> None:
    """The event that a subscription gives is in the session's history by then."""
    call = store.session("s")

    def append() -> None:
        for n in range(400):
            call.append({"n": n})
        store.flush(HANG_S)

    def follow() -> None:
        with store.subscribe(after=0) as subscription:
            for event in islice(iter(subscription), 400):
                info = call.info()
                assert info is not None and info.last_sequence >= event.sequence
                assert len(call.history()) > event.sequence

    in_threads(append, follow)


@pytest.mark.parametrize("way", ["thread", "loop"])
def test_an_event_is_not_missed_that_was_committed_while_it_looked(store: Store, way: str) -> None:
    """A subscriber saw the new last position, but not yet the event, and waited for the next one.

    The event came with the session's next commit, which may never be.
    """
    call = store.session("s")
    call.append({"n": 0}).result()
    found: list[Any] = []

    def follow() -> None:
        subscription = call.subscribe(after=0)
        if way == "thread":
            found.extend(numbers(subscription, 1))
        else:
            found.extend(run(numbers_async(subscription, 1)))

    with halted("commit.after_commit") as halt:
        ack = call.append({"n": 1})
        halt.wait_reached()
        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        thread.join(0.3)  # it looks, and finds the event or waits for it
    ack.result(HANG_S)
    thread.join(3)
    missed = thread.is_alive()
    call.append({"n": 2}).result(HANG_S)  # lets it go in any case
    thread.join(HANG_S)
    assert found == [1]
    assert not missed


@pytest.mark.parametrize("of", ["store", "tenant"])
def test_kinds_can_be_chosen_by_position_too(store: Store, of: str) -> None:
    """Also where pages hold none of them, and beside what the store keeps for itself."""
    scope = store if of == "store" else store.tenant("acme")
    call = store.tenant("acme").session("s")
    subscription = scope.subscribe(after=0, kinds=["label", "custom"])
    for n in range(3):
        call.append_many([{"n": -1}] * 700)
        call.append_event("label" if n % 2 else "custom", {"n": n})
        call.alias(f"alias {n}")
    store.flush(HANG_S)
    assert numbers(subscription, 3) == [0, 1, 2]
    assert numbers(scope.subscribe(after=0, kinds="label"), 1) == [1]
    with pytest.raises(UsageError):
        scope.subscribe(kinds=[1])  # type: ignore[list-item]


@pytest.mark.parametrize("of", ["store", "session"])
def test_a_wait_that_was_given_up_loses_nothing(store: Store, of: str) -> None:
    """A cancelled ``anext`` ended the iteration, and the page that it read was lost.

    Whoever waits with a timeout would have had a gap, without a sign of it.
    """
    call = store.session("s")

    async def main() -> list[Any]:
        subscription = store.subscribe(after=0) if of == "store" else call.subscribe(after=-1)
        events = aiter(subscription)
        found: list[Any] = []
        given_up = 0
        for n in range(200):
            ack = call.append({"n": n})
            for _ in range(n % 7):
                await asyncio.sleep(0)
            step = asyncio.ensure_future(anext(events))
            for _ in range(n % 5):
                await asyncio.sleep(0)
            step.cancel()
            try:
                found.append((await step).body["n"])
            except asyncio.CancelledError:
                given_up += 1
            await ack
        with pytest.raises(TimeoutError):
            while True:
                found.append((await asyncio.wait_for(anext(events), 0.2)).body["n"])
        assert given_up
        call.append({"n": 200})
        found.append((await anext(events)).body["n"])
        subscription.close()
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        return found

    assert run(main()) == list(range(201))
    assert len(store._log._futures) == 0


def test_a_page_that_was_given_up_is_taken_up_by_a_thread(store: Store) -> None:
    """It was read on the pool when its reader went away, and saw the store as it was then."""
    call = store.session("s")
    call.append({"n": 0}).result()
    subscription = call.subscribe(after=0)
    began, go_on = threading.Event(), threading.Event()
    read = subscription._pager.next_page

    def slowly() -> list[Event]:
        found = read()
        began.set()
        assert go_on.wait(HANG_S)
        return found

    async def give_up() -> None:
        step = asyncio.ensure_future(anext(aiter(subscription)))
        await asyncio.get_running_loop().run_in_executor(None, began.wait)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step

    subscription._pager.next_page = slowly  # type: ignore[method-assign]
    run(give_up())
    subscription._pager.next_page = read  # type: ignore[method-assign]
    call.append({"n": 1}).result()  # committed after that page was read, and empty
    go_on.set()
    assert numbers(subscription, 1) == [1]


def test_leaving_and_going_on_gives_each_event_once(store: Store) -> None:
    """What was left of a page was lost when its user left the loop."""
    call = store.session("s")
    call.append_many([{"n": n} for n in range(1_000)]).result()

    async def main() -> list[Any]:
        found = []
        subscription = store.subscribe(after=0)
        while len(found) < 1_000:
            for event in islice(iter(subscription), 7):
                found.append(event.body["n"])
                if len(found) == 1_000:
                    return found
            async for event in subscription:
                found.append(event.body["n"])
                if not len(found) % 3:
                    break
        return found

    assert run(main()) == list(range(1_000))


def test_an_error_is_told_once_and_the_rest_follows(store: Store) -> None:
    call = store.session("s")
    call.append({"n": 0}).result()
    subscription = store.subscribe(after=0)
    read = subscription._pager.next_page

    def fail() -> list[Event]:
        subscription._pager.next_page = read  # type: ignore[method-assign]
        raise CorruptionError("is damaged", where="a row")

    async def main() -> Any:
        subscription._pager.next_page = fail  # type: ignore[method-assign]
        with pytest.raises(CorruptionError):
            await anext(aiter(subscription))
        return (await anext(aiter(subscription))).body["n"]

    assert run(main()) == 0


def test_a_follower_reads_through_what_was_removed(checked_store: Callable[..., Store]) -> None:
    """Also of what it had in memory: removed is removed."""
    store = checked_store(snapshot_frequency=1)
    for name in ("gone", "kept", "purged", "gone too"):
        store.session(name).append_many([{"n": name, "m": n} for n in range(700)]).result()
    store.flush(HANG_S)
    whole, subscription = (store.subscribe(after=0, kinds="message") for _ in range(2))
    assert len(numbers(whole, 2_800)) == 2_800
    events = iter(subscription)
    assert [next(events).body["n"] for _ in range(10)] == ["gone"] * 10
    store.session("gone").delete().result()
    store.session("gone too").erase(HANG_S)
    store.session("purged").purge(650).result()
    store.session("last").append({"n": "last"}).result()
    rest = [event.body["n"] for event in islice(events, 256 - 10 + 700 + 50 + 1)]
    assert rest == ["gone"] * 246 + ["kept"] * 700 + ["purged"] * 50 + ["last"]
    subscription.close()


@pytest.mark.parametrize("state", ["hot", "sealed"])
def test_a_slow_subscriber_keeps_a_window_and_no_transaction(
    checked_store: Callable[..., Store], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds are those of ``PositionPager``, here smaller ones."""
    monkeypatch.setattr(reading, "SEGMENT_CACHE_BYTES_MAX", 256 * 1024)
    monkeypatch.setattr(reading, "PAGE_EVENTS", 16)
    store = checked_store()
    pieces = random.Random(7)
    for n in range(40):
        call = store.session(f"s{n}")
        call.append_many([{"n": n, "x": pieces.randbytes(2_000)} for _ in range(50)]).result()
    if state == "sealed":
        store.close()
        Store.vacuum(store.path)
        store = checked_store()
    of_store, of_session = store.subscribe(after=0), store.session("s3").subscribe(after=-1)
    slow = iter(of_store)
    assert next(iter(of_session)).body["n"] == 3
    assert len(of_session._page) <= 16 + 50  # and a segment
    largest = 0
    for count, event in enumerate(islice(slow, 2_000)):
        pager = of_store._pager
        assert isinstance(pager, reading.PositionPager)
        window = pager._window
        if window is not None and window._events:
            size = sum([len(each.payload) for each in window._events])
        else:
            size = 0 if window is None else window.byte_count
        largest = max(largest, size)
        assert event.body["n"] == count // 50
        assert len(of_store._page) <= 16
        if not count % 100:
            readers = store._log.environment._lmdb.readers().splitlines()[1:]
            assert all([row.split()[2] == "-" for row in readers])
    # One segment of a session may come on top.
    assert 100 * 1024 < largest < 2 * 256 * 1024


def test_both_ways_of_iterating_may_take_turns(store: Store) -> None:
    call = store.session("s")
    call.append_many([{"n": n} for n in range(6)]).result()
    for n, event in enumerate(call.events()):
        assert event.body["n"] == n

    async def main() -> list[Any]:
        subscription = call.subscribe(after=3)
        first = await numbers_async(subscription, 2)
        return [*first, *list(subscription)]

    assert run(main()) == [4, 5]


def branched(store: Store) -> Any:
    """Branch 0 with 0 and 1, ``side`` forked from 0 with 2, and 3 on branch 0 again."""
    call = store.session("s")
    call.append_many([{"n": 0}, {"n": 1}]).result(HANG_S)
    call.fork(0, name="side").result(HANG_S)
    call.record_usage(input_tokens=1)
    call.set_title("of the session")
    call.update_state({"v": 1})
    call.append({"n": 2})
    call.append({"n": 3}, parent=1).result(HANG_S)
    return call


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(("branch", "wanted"), [(0, [0, 1, 3]), (1, [2]), ("side", [2])])
def test_one_branch_can_be_followed(
    checked_store: Callable[..., Store], branch: int | str, wanted: list[int], sealed: bool
) -> None:
    store = checked_store(snapshot_frequency=1 if sealed else 25)
    call = branched(store)
    if sealed:
        store.flush(HANG_S)
    events = call.subscribe(after=-1, kinds=["message"], branch=branch)
    follower = iter(events)
    assert [next(follower).body["n"] for _ in wanted] == wanted
    call.append({"n": "elsewhere"}, parent=call.path(1 if branch else "side").events[-1].sequence)
    leaf = call.path("side" if branch else 1).events[-1].sequence
    tip = call.branches()[0].leaf if not branch else leaf
    call.append({"n": "here"}, parent=tip).result(HANG_S)
    assert next(follower).body == {"n": "here"}
    events.close()


def test_what_stands_on_a_branch_and_what_does_not(store: Store) -> None:
    call = branched(store)
    with call.subscribe(after=-1, branch="side") as events:
        kinds = [event.kind for event in islice(iter(events), 4)]
    assert kinds == ["head_move", "branch_name", "usage", "message"]
    with call.subscribe(after=-1, branch=0) as events:
        assert [event.kind for event in islice(iter(events), 3)] == ["message"] * 3


def test_a_name_leads_to_the_branch_that_it_leads_to_now(store: Store) -> None:
    call = branched(store)
    with call.subscribe(branch="side") as events:
        call.name_branch("side", 1).result(HANG_S)
        call.append({"n": 4}, parent=3 if call.event(3).kind == "message" else None)
        leaf = call.branches()[1].leaf
        call.append({"n": 5}, parent=leaf).result(HANG_S)
        assert next(iter(events)).body == {"n": 5}


@pytest.mark.parametrize("branch", [7, -1, True, "none", "", 1.0, [0]])
def test_a_branch_that_there_is_not_is_refused(store: Store, branch: Any) -> None:
    with pytest.raises(UsageError, match="branch"):
        branched(store).subscribe(branch=branch)
    if branch:
        with pytest.raises(UsageError, match="branch"):
            store.session("nobody").subscribe(branch=branch)


def test_a_followed_branch_is_of_one_session(store: Store) -> None:
    call = branched(store)
    events = call.subscribe(after=-1, branch="side")
    call.delete().result(HANG_S)
    branched(store)
    with pytest.raises(SessionGoneError):
        next(iter(events))


@pytest.mark.parametrize("after", [None, 2])
def test_what_is_followed_is_one_session_from_the_call_on(store: Store, after: int | None) -> None:
    """Made anew before the first ``next``, its first events were passed over without a word."""
    call = store.session("s")
    call.append_many([{"n": n} for n in range(6)]).result(HANG_S)
    events = call.subscribe(after)
    call.delete().result(HANG_S)
    call.append_many([{"n": n} for n in range(8)]).result(HANG_S)
    with pytest.raises(SessionGoneError):
        next(events)


def test_a_subscription_to_all_begins_with_the_session_that_is_there(store: Store) -> None:
    call = store.session("s")
    call.append({"n": 0}).result(HANG_S)
    events = call.subscribe(after=-1)
    call.delete().result(HANG_S)
    call.append({"n": 1}).result(HANG_S)
    assert numbers(events, 1) == [1]


def test_a_subscription_waits_on_when_all_of_a_deleted_session_was_given(store: Store) -> None:
    call = store.session("s")
    call.append({"n": 0}).result(HANG_S)
    idle, read, behind = call.subscribe(), call.subscribe(after=-1), call.subscribe(after=0)
    call.append({"n": 1}).result(HANG_S)
    assert [next(read).sequence, next(read).sequence, next(idle).sequence] == [0, 1, 1]
    call.delete().result(HANG_S)
    for events in (idle, read, behind):
        assert events._pager.next_page() == []  # and so it waits
    call.append({"n": 2}).result(HANG_S)
    for events in (idle, read, behind):
        with events, pytest.raises(SessionGoneError):
            next(events)


def test_one_at_a_time_waits_for_a_subscription(store: Store) -> None:
    """The second of two met an assertion, and so did the first one then."""

    async def follow() -> None:
        async with store.subscribe() as events:
            first = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)  # it has begun
            with pytest.raises(UsageError, match="already"):
                await anext(events)
            with pytest.raises(UsageError, match="already"):
                next(events)
            await store.session("s").append({"n": 0})
            assert (await asyncio.wait_for(first, HANG_S)).body == {"n": 0}
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await store.session("s").append({"n": 1})
            assert (await asyncio.wait_for(anext(events), HANG_S)).body == {"n": 1}

    run(follow())


def test_a_subscription_is_an_iterator_of_both_kinds(store: Store) -> None:
    """Its docstring told of ``anext(events)``, which raised: it was an iterable only.

    ``next`` and ``anext`` take from it what ``for`` would, also in turn, and end with it.
    """
    call = store.session("s")
    call.append_many([{"n": n} for n in range(5)]).result(HANG_S)

    async def follow() -> None:
        async with call.subscribe(after=-1) as events:
            assert (await asyncio.wait_for(anext(events), HANG_S)).body["n"] == 0
            assert next(events).body["n"] == 1
            for event in events:
                assert event.body["n"] == 2
                break
            async for event in events:
                assert event.body["n"] == 3
                break
            assert (await anext(events)).body["n"] == 4
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0)
            await call.append({"n": 5})
            assert (await asyncio.wait_for(anext(events), HANG_S)).body["n"] == 5
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        assert next(events, None) is None

    asyncio.run(follow())
