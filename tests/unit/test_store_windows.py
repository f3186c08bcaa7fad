"""What readers, other threads and other processes may meet between two steps of a commit.

The writer, or a reader, is stopped at a failpoint; what the others see meanwhile must make sense,
and so must everything afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Event, Store
from eventlog.errors import StoreUnavailableError, TurnlogError
from eventlog.failpoints import NAMES, failpoints, raise_
from eventlog.index import LooseIndex
from eventlog.limits import HOT_TABLE_POSITIONS
from tests.model.actors import Workers
from tests.model.operations import Append, New
from tests.model.staging import HANG_S, Halt, busy_threads, halted, in_threads, once, run_script

COMMIT_STEPS = sorted(name for name in NAMES if name.startswith("commit."))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


def places(store: Store, name: str) -> list[tuple[int, int, Any]]:
    """What a session's reader sees."""
    return [(event.sequence, event.position, event.body) for event in store.session(name).events()]


def logged(store: Store, name: str) -> list[tuple[int, int, Any]]:
    """The same from the global order."""
    return [
        (event.sequence, event.position, event.body)
        for event in store.read()
        if event.session == name
    ]


# Readers beside one commit


@pytest.mark.parametrize("step", COMMIT_STEPS)
def test_a_session_in_the_making_is_there_whole_or_not_at_all(store: Store, step: str) -> None:
    """A session was put into memory before its first commit and merged after it.

    In between its readers got CorruptionError, then a session of no events.
    """
    call = store.session("new")
    with halted(step) as halt:
        ack = call.append({"n": 0})
        halt.wait_reached()
        info, history, listed = call.info(), call.history(), store.sessions().sessions
        in_log = [event.body for event in store.read()]
        exists = call.exists
    ack.result(HANG_S)
    if info is None:
        assert (history, in_log, exists, listed) == ([], [], False, [])
    else:
        assert (info.event_count, info.last_sequence, info.last_position) == (1, 0, 1)
        assert (history, in_log, exists) == ([{"n": 0}], [{"n": 0}], True)
        assert [each.name for each in listed] == ["new"]


@pytest.mark.parametrize("step", COMMIT_STEPS)
def test_all_ways_to_read_agree_while_an_append_is_on_its_way(store: Store, step: str) -> None:
    """What ``read`` showed after the commit, ``history`` did not show before the merge."""
    call = store.session("s")
    call.append({"n": 0}).result()
    with halted(step) as halt:
        ack = call.append({"n": 1})
        halt.wait_reached()
        position = store.last_position
        in_log = [event.body for event in store.read()]
        history = call.history()
        last = call.history(limit=1)
        info = call.info()
    ack.result(HANG_S)
    assert info is not None
    assert position == len(in_log) == len(history) == info.event_count == info.last_position
    assert history == in_log
    assert last == in_log[-1:]


def test_a_batch_shows_in_all_its_sessions_at_once(store: Store) -> None:
    """Sessions of a batch were merged into memory one after the other while readers looked on."""
    first, second = store.session("first"), store.session("second")
    store.append_batch([first.draft([{}]), second.draft([{}])]).result()
    stop = threading.Event()

    def append() -> None:
        for _ in range(400):
            store.append_batch([first.draft([{}]), second.draft([{}])]).result(HANG_S)
        stop.set()

    def compare() -> None:
        while not stop.is_set():
            before, after = first.info(), second.info()
            assert before is not None and after is not None
            assert after.event_count >= before.event_count

    with busy_threads():
        in_threads(append, compare, compare)


def test_an_atomic_append_is_never_seen_in_part(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large append was merged into memory in slices, and readers saw the first of them."""
    call = store.session("s")
    call.append({"n": 0}).result()
    halt, committed = Halt(), threading.Event()
    composer = store._log.writer.composer
    pause = composer._pause

    def slowly() -> None:
        if committed.is_set():
            halt()
        pause()

    monkeypatch.setattr(composer, "_pause", slowly)
    found: list[tuple[int, int, int]] = []

    def read() -> None:
        info = call.info()
        assert info is not None
        counts = (len(call.history()), len(call.history(limit=5_000)), info.event_count)
        found.append(counts)

    with failpoints({"commit.after_commit": committed.set}):
        ack = call.append_many([{"n": n} for n in range(1, 2_001)])
        halt.wait_reached()
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(1)  # it may also wait until the merge is through
        halt.release()
        reader.join(HANG_S)
    ack.result(HANG_S)
    assert found and set(found[0]) <= {1, 2_001}, found
    assert list(found[0]) == sorted(found[0]), "a later read saw less"


def test_sessions_are_listed_whole_while_they_are_sealed(
    checked_store: Callable[..., Store],
) -> None:
    """A listing read the loose sessions from memory after it had begun its transaction.

    One that was sealed in between was in neither.
    """
    store = checked_store(snapshot_frequency=1)
    names = {f"s{number:02}" for number in range(20)}
    for name in names:
        store.session(name).append({})
    store.flush(HANG_S)
    stop = threading.Event()

    def append() -> None:
        for _ in range(25):
            for name in names:
                store.session(name).append({}).result(HANG_S)
        stop.set()

    def listing() -> None:
        while not stop.is_set():
            infos = store.sessions(limit=100).sessions
            assert {info.name for info in infos} == names
            assert len(infos) == len(names)
            positions = [info.last_position for info in infos]
            assert positions == sorted(positions, reverse=True)

    with busy_threads():
        in_threads(append, listing, listing)


def test_readers_see_events_while_they_are_sealed(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=2)
    calls = [store.session(f"s{number}") for number in range(10)]
    stop = threading.Event()

    def append() -> None:
        for number in range(60):
            acks = [call.append({"n": number}) for call in calls]
            for ack in acks:
                ack.result(HANG_S)
        stop.set()

    def read() -> None:
        seen = [0] * len(calls)
        while not stop.is_set():
            for place, call in enumerate(calls):
                found = [body["n"] for body in call.history()]
                assert found == list(range(len(found)))
                assert len(found) >= seen[place], "a reader went back in time"
                last = call.history(limit=3)
                assert [body["n"] for body in last] == list(
                    range(max(0, last[-1]["n"] - 2), last[-1]["n"] + 1) if last else []
                )
                seen[place] = len(found)

    with busy_threads():
        in_threads(append, read, read)


def test_a_reader_between_its_two_steps_sees_no_gap(checked_store: Callable[..., Store]) -> None:
    """The view is taken first, the transaction second; sealing and cutting fit in between."""
    store = checked_store(snapshot_frequency=2)
    call = store.session("s")
    call.append({"n": 0}).result()
    with halted("read.after_view") as halt:
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.extend(call.history()), daemon=True)
        reader.start()
        halt.wait_reached()
        store.session("other").append_many([{}] * 5_000).result(HANG_S)
        for number in range(1, 12):
            call.append({"n": number}).result(HANG_S)
        halt.release()
        reader.join(HANG_S)
        assert not reader.is_alive()
    numbers = [body["n"] for body in found]
    assert numbers == list(range(len(numbers)))


# Another process in between


def test_a_listing_is_of_the_moment_at_which_it_began(
    checked_store: Callable[..., Store], workers: Workers, store_path: Path
) -> None:
    """The list was taken from memory, then memory moved on before it was compared with the store.

    It passed for current, and the newest session was in neither the list nor the tables.
    """
    store = checked_store(snapshot_frequency=3)
    store.session("older").append({}).result()
    store.session("old").append({}).result()
    other = workers.start()
    with halted("list.after_view") as halt:
        names: list[str] = []
        reader = threading.Thread(
            target=lambda: names.extend(info.name for info in store.sessions().sessions),
            daemon=True,
        )
        reader.start()
        halt.wait_reached()
        other.perform(store_path, Append("", "new", (New({}),)))
        assert store.session("new").history() == [{}]
        halt.release()
        reader.join(HANG_S)
        assert not reader.is_alive()
    other.close()
    assert names == ["old", "older"]
    assert [info.name for info in store.sessions().sessions] == ["new", "old", "older"]


def test_what_is_sealed_and_cut_while_sessions_are_listed_is_listed(
    checked_store: Callable[..., Store],
) -> None:
    """Sessions leave memory with their cut events; the listing's transaction still has them."""
    store = checked_store(snapshot_frequency=1)
    for number in range(30):
        store.session(f"s{number}").append({}).result(HANG_S)
    expected = [f"s{number}" for number in range(29, -1, -1)]
    with halted("list.after_view") as halt:
        names: list[str] = []
        reader = threading.Thread(
            target=lambda: names.extend(info.name for info in store.sessions().sessions),
            daemon=True,
        )
        reader.start()
        halt.wait_reached()
        for _ in range(3):
            store.session("long").append_many([{}] * 4_000).result(HANG_S)
            store.flush(HANG_S)
        assert store._log.index.floor > 1
        halt.release()
        reader.join(HANG_S)
        assert not reader.is_alive()
    assert names == expected
    assert [info.name for info in store.sessions().sessions] == ["long", *expected]


def test_many_loose_sessions_are_listed_beside_appends(
    checked_store: Callable[..., Store],
) -> None:
    """A listing began again whenever a commit came in between, with many sessions for ever."""
    store = checked_store()
    for number in range(3_000):
        store.session(f"s{number:04}").append({})
    store.flush(HANG_S)
    ended = threading.Event()

    def append() -> None:
        while not ended.is_set():
            store.session("busy").append({}).result(HANG_S)

    writer = threading.Thread(target=append, daemon=True)
    writer.start()
    try:
        for _ in range(20):
            names = [info.name for info in store.sessions(5_000).sessions]
            assert len(names) == len(set(names)) and len(names) in (3_000, 3_001)
            rest = [name for name in names if name != "busy"]
            assert rest == sorted(rest, reverse=True)
    finally:
        ended.set()
        writer.join(HANG_S)


def test_another_process_commits_before_ours_is_merged(
    checked_store: Callable[..., Store], workers: Workers, store_path: Path
) -> None:
    """A reader caught up with another process's commit while our own was not merged yet.

    Our events were then in memory twice, and sealing wrote them to segments like that.
    """
    store = checked_store(snapshot_frequency=3)
    call = store.session("s")
    call.append({"ours": 0}).result()
    other = workers.start()
    with halted("commit.after_commit") as halt:
        ack = call.append({"ours": 1})
        halt.wait_reached()
        other.perform(store_path, Append("", "s", (New({"other": 0}),)))
        call.history()
        halt.release()
        ack.result(HANG_S)
    assert places(store, "s") == logged(store, "s")
    for number in range(2, 8):
        call.append({"ours": number}).result(HANG_S)
    other.close()
    assert [body for _, _, body in places(store, "s")] == [
        {"ours": 0},
        {"ours": 1},
        {"other": 0},
        *[{"ours": number} for number in range(2, 8)],
    ]
    assert places(store, "s") == logged(store, "s")
    assert store.check().findings == []


def test_the_writer_waits_for_a_reader_that_catches_up(
    store: Store, workers: Workers, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader noted another process's commit as known before it had applied its events.

    The writer believed it and gave the next event a sequence that was taken.
    """
    call = store.session("s")
    call.append({"n": 0}).result()
    other = workers.start()
    other.perform(store_path, Append("", "s", (New({"n": 1}),)))
    halt = Halt()
    apply = LooseIndex.append

    def slowly(self: LooseIndex, *arguments: Any) -> None:
        if threading.current_thread().name == "reader":
            halt()
        apply(self, *arguments)

    monkeypatch.setattr(LooseIndex, "append", slowly)
    reader = threading.Thread(target=call.history, name="reader", daemon=True)
    reader.start()
    halt.wait_reached()
    with halted("commit.before_commit") as committing:
        ack = call.append({"n": 2})
        committing.stands_there(0.3)  # it gets so far only if it does not wait for the reader
        halt.release()
        committing.release()
        ack.result(HANG_S)
    reader.join(HANG_S)
    other.close()
    assert [sequence for sequence, _, _ in logged(store, "s")] == [0, 1, 2]
    assert places(store, "s") == logged(store, "s")


class _Interrupted(list[Any]):
    """A list that lets something happen in the middle of a walk over it."""

    def __init__(self, values: list[Any], place: int, action: Callable[[], object]) -> None:
        super().__init__(values)
        self.armed = threading.Event()
        self._place = place
        self._action = action

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if index == self._place and self.armed.is_set():
            self.armed.clear()
            self._action()
        return found


def test_a_cut_seen_in_the_middle_of_ours_loses_nothing(
    checked_store: Callable[..., Store], workers: Workers, store_path: Path
) -> None:
    """The writer looked for what is sealed without the lock, while a reader took over a cut.

    It then took the floor for higher than it was, and cut off a table of loose events.
    """
    store = checked_store(snapshot_frequency=HOT_TABLE_POSITIONS)
    index = store._log.index
    sealed, kept, rest = (store.session(name) for name in ("sealed", "kept", "rest"))
    other = workers.start()
    happened = threading.Event()

    def interrupt() -> None:
        other.perform(store_path, Append("", "other", (New({}),)))
        other.ask("reopen", str(store_path))  # it cuts what our writer just sealed
        reader = threading.Thread(target=sealed.info, daemon=True)
        reader.start()
        reader.join(0.5)  # it may have to wait for the writer
        happened.set()

    def arm() -> None:
        info = sealed.info()
        if info is not None and not info.unsealed_count and not happened.is_set():
            hot.armed.set()

    sealed.append_many([{"n": n} for n in range(HOT_TABLE_POSITIONS - 1)]).result(HANG_S)
    with halted("commit.before_begin") as halt:
        sealed.append({"n": HOT_TABLE_POSITIONS - 1})
        halt.wait_reached()
        kept.append_many([{"n": n} for n in range(HOT_TABLE_POSITIONS - 2)])
        rest.append_many([{}] * 300)
        hot = _Interrupted(index.hot, HOT_TABLE_POSITIONS - 1, interrupt)
        index.hot = hot
        with failpoints({"commit.before_ack": arm}):
            halt.release()
            assert happened.wait(HANG_S)
            for _ in range(3):
                rest.append({}).result(HANG_S)
    other.close()
    assert store.check().findings == []
    assert [body["n"] for body in kept.history()] == list(range(HOT_TABLE_POSITIONS - 2))
    assert len(list(store.read())) == store.last_position


def test_processes_and_threads_never_give_a_sequence_twice(
    store: Store, workers: Workers, store_path: Path
) -> None:
    """As above, found by chance: two processes and two threads append while one reads."""
    names = ["a", "b", "c"]
    stop = threading.Event()
    others = [workers.start(), workers.start()]

    def here(by: int) -> None:
        for number in range(40):
            store.session(names[number % 3]).append({"by": by, "n": number}).result(HANG_S)

    def there(by: int) -> None:
        for number in range(40):
            op = Append("", names[number % 3], (New({"by": by, "n": number}),))
            others[by].perform(store_path, op)
        stop.set()

    def read() -> None:
        while not stop.is_set():
            for name in names:
                store.session(name).history(limit=3)

    in_threads(lambda: here(2), lambda: here(3), lambda: there(0), lambda: there(1), read)
    for other in others:
        other.close()
    for name in names:
        found = places(store, name)
        assert [sequence for sequence, _, _ in found] == list(range(len(found)))
        assert found == logged(store, name)
    assert store.last_position == 160


# Commits that fail


@pytest.mark.parametrize("step", COMMIT_STEPS)
@pytest.mark.parametrize("error", [OSError("broken"), KeyboardInterrupt()], ids=["error", "end"])
def test_no_append_hangs_whatever_ends_a_commit(
    store_path: Path, step: str, error: BaseException
) -> None:
    """FAULTS 46: waiting appends fail with our errors, and the store can be opened again."""
    store = Store.open(store_path)
    call = store.session("s")
    call.append({"n": 0}).result()
    with failpoints({step: once(raise_(error))}):
        acks = [call.append({"n": number}) for number in range(1, 4)]
        outcomes = []
        for ack in acks:
            try:
                ack.result(HANG_S)
                outcomes.append("durable")
            except TurnlogError as failure:
                assert not isinstance(failure, TimeoutError)
                outcomes.append("refused")
        if not store.health()["ok"]:
            with pytest.raises(StoreUnavailableError):
                call.append({"n": 9})
    store.close()
    with Store.open(store_path, create=False) as again:
        found = [body["n"] for body in again.session("s").history()]
        assert found[0] == 0
        assert found == sorted(set(found))
        for number, outcome in enumerate(outcomes, 1):
            assert outcome == "refused" or number in found
        again.session("s").append({"n": 10}).result(HANG_S)
        assert again.check().findings == []


def test_sealing_that_failed_is_done_later(checked_store: Callable[..., Store]) -> None:
    """A commit that failed after it had sealed took the sessions off the list of those due.

    They stayed loose for ever.
    """
    store = checked_store(snapshot_frequency=2)
    call = store.session("s")
    sealed, failed = threading.Event(), threading.Event()

    def fail() -> None:
        if sealed.is_set() and not failed.is_set():
            failed.set()
            raise OSError("broken")

    with failpoints({"rollup.after_segment": sealed.set, "commit.after_puts": fail}):
        for _ in range(2):
            call.append({}).result(HANG_S)
        assert failed.wait(HANG_S)
    for _ in range(8):
        call.append({}).result(HANG_S)
    store.close()
    with Store.open(store.path) as again:
        info = again.session("s").info()
        assert info is not None
        assert info.unsealed_count < 2, "close() works off what is due"


def test_close_ends_in_time_beside_a_commit_that_does_not(store_path: Path) -> None:
    """FAULTS 47: close() closed the environment under the writer's transaction, and both hung.

    What the append is told must agree with what the store holds.
    """
    script = """
import sys, threading
from engine import Store
from eventlog.errors import TurnlogError
from tests.model.staging import halted

store = Store.open(sys.argv[1])
call = store.session("s")
call.append({"n": 0}).result()
with halted("commit.before_commit") as halt:
    ack = call.append({"n": 1})
    halt.wait_reached()
    closing = threading.Thread(target=lambda: close(), daemon=True)
    def close():
        try:
            store.close(timeout=0.2)
        except TurnlogError as error:
            print("close:", type(error).__name__, flush=True)
    closing.start()
    closing.join(3)
    print("closed" if not closing.is_alive() else "still closing", flush=True)
    halt.release()
    closing.join(3)
    print("ended" if not closing.is_alive() else "hangs", flush=True)
try:
    ack.result(3)
    print("durable", flush=True)
except TurnlogError as error:
    print("told", type(error).__name__, flush=True)
"""
    lines = run_script(script, store_path, code=None).splitlines()
    assert "hangs" not in lines, lines
    assert lines[-1:] and lines[-1].startswith(("durable", "told")), lines
    with Store.open(store_path) as store:
        count = len(store.session("s").history())
        assert count in (1, 2)
        assert count == 2 or lines[-1] != "durable"
        if count == 2:
            assert lines[-1] in ("durable", "told SuspectStoreError", "told TimeoutError"), (
                "an append that is in was told that nothing was written"
            )
        assert store.check().findings == []


def test_a_store_that_is_slow_to_close_holds_up_no_other(tmp_path: Path) -> None:
    """close() kept a lock of the whole process while it waited for the last commit."""
    slow = Store.open(tmp_path / "slow")
    with halted("commit.before_commit") as halt:
        slow.session("s").append({"n": 0})
        halt.wait_reached()
        closing = threading.Thread(target=slow.close, daemon=True)
        closing.start()
        closing.join(0.1)  # it waits for the commit now

        def use() -> None:
            with Store.open(tmp_path / "other") as other:
                other.session("s").info()

        using = threading.Thread(target=use, daemon=True)
        using.start()
        using.join(2)
        held_up = using.is_alive()
        halt.release()
        using.join(HANG_S)
        closing.join(HANG_S)
    assert not closing.is_alive() and not using.is_alive()
    assert not held_up
    with Store.open(tmp_path / "slow") as again:
        assert again.session("s").history() == [{"n": 0}]


def test_an_append_beside_close_is_settled_or_refused(tmp_path: Path) -> None:
    """An append that was queued after the writer had looked for the last time was never told."""
    with busy_threads():
        for number in range(12):
            store = Store.open(tmp_path / str(number))
            store.session("s").append({}).result()
            closing = threading.Event()

            def append(store: Store = store, closing: threading.Event = closing) -> int:
                acks = []
                try:
                    while True:
                        acks.append(store.session("s").append({}))
                        closing.set()
                except TurnlogError:
                    pass
                for ack in acks:
                    ack.result(HANG_S)
                return len(acks)

            def close(store: Store = store, closing: threading.Event = closing) -> int:
                closing.wait(HANG_S)
                store.close()
                return 1

            counts = in_threads(append, append, append, close)
            with Store.open(tmp_path / str(number)) as again:
                assert len(again.session("s").history()) == sum(counts)


def test_flush_returns_when_all_is_settled(store: Store) -> None:
    """The queue was empty before the acks were settled, so flush did not wait for them."""
    calls = [store.session(f"s{number}") for number in range(5)]
    with busy_threads():
        for _ in range(40):
            acks = [call.append({"n": number}) for number in range(60) for call in calls]
            store.flush(HANG_S)
            assert all([ack.done() for ack in acks])


def test_flush_raises_what_was_refused_before_it(store: Store) -> None:
    """A refused append was settled before its refusal was noted; flush could come in between."""
    call = store.session("s")
    call.append({}).result()
    with busy_threads():
        for _ in range(150):
            call.append({}, expected_head=77, ack="queued")
            with pytest.raises(TurnlogError):
                store.flush(HANG_S)


def test_a_reader_does_not_disturb_the_cut(
    checked_store: Callable[..., Store], workers: Workers, store_path: Path
) -> None:
    """Two processes seal and cut; a thread of ours catches up all the time."""
    store = checked_store(snapshot_frequency=1)
    stop = threading.Event()
    other = workers.start()

    def here() -> None:
        for number in range(10):
            store.session("here").append_many([{"n": number}] * 450).result(HANG_S)

    def there() -> None:
        for number in range(10):
            events = tuple([New({"n": number})] * 450)
            other.perform(store_path, Append("", "there", events))
        stop.set()

    def read() -> None:
        while not stop.is_set():
            for name in ("here", "there"):
                store.session(name).info()
            assert len(list(store.read(after=max(0, store.last_position - 5)))) >= 5

    store.session("here").append_many([{"n": -1}] * 5).result()
    in_threads(here, there, read)
    other.close()
    for name, count in (("here", 4_505), ("there", 4_500)):
        found = [event.sequence for event in store.session(name).events()]
        assert found == list(range(count))
    assert [event.position for event in store.read()] == list(range(1, 9_006))
    assert all(isinstance(event, Event) for event in store.read(limit=3))
