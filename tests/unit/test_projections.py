"""Projections of applications: order, checkpoint, poison, and following live."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine import (
    Event,
    Projection,
    Store,
    UsageError,
    keeping,
    projecting,
)
from eventlog.errors import (
    BusyError,
    InvalidNameError,
    OverloadedError,
    ReadOnlyError,
    StoreClosedError,
)
from tests.model.staging import HANG_S
from tests.unit.projected import Totals, once, run, say


def test_events_come_in_position_order_and_each_once(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=2)
    totals = Totals()
    for start in range(0, 900, 30):
        say(store, *range(start, start + 20), session="a")
        say(store, *range(start + 20, start + 30), session="b")
        if start == 450:
            assert once(store, totals) == 480
    assert once(store, totals) == 420
    assert totals.numbers == list(range(900))
    assert [position for position, _ in totals.given] == sorted({each for each, _ in totals.given})
    assert once(store, totals) == 0


def test_the_checkpoint_outlives_the_store(store_path: Path) -> None:
    totals = Totals()
    with Store.open(store_path) as store:
        say(store, 0, 1, 2)
        with store.projection("totals", totals) as projection:
            assert projection.checkpoint == 0
            assert projection.run_once(limit=2) == 2
            assert projection.checkpoint == 2
    with Store.open(store_path) as store:
        say(store, 3)
        with store.projection("totals", totals) as projection:
            assert projection.checkpoint == 2
            assert projection.run_once() == 2
        assert totals.numbers == [0, 1, 2, 3]
        assert store.check().ok


def test_limits_and_turns(store: Store) -> None:
    say(store, *range(10))
    totals = Totals()
    with store.projection("totals", totals) as projection:
        assert projection.run_once(0) == 0
        assert [projection.run_once(4) for _ in range(4)] == [4, 4, 2, 0]
        say(store, 10)
        assert projection.run_once() == 1
    assert totals.numbers == list(range(11))
    assert projection.run_once() == 0  # closed
    projection.run()


def test_what_is_appended_by_the_function_waits_for_the_next_run(store: Store) -> None:
    """Or a projection that appends would never come to an end."""
    say(store, 0)

    def apply(event: Event) -> None:
        say(store, event.body["n"] + 1)

    with store.projection("echo", apply) as projection:
        assert [projection.run_once() for _ in range(3)] == [1, 1, 1]


def test_only_what_it_is_for(store: Store) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    acme.session("s").append({"n": 1}).result()
    acme.session("s").append_event("label", {"n": 2}).result()
    other.session("s").append({"n": 3}).result()
    store.session("s").append({"n": 4}).result()
    found = {}
    for name, options in (
        ("all", {}),
        ("acme", {"tenant": "acme"}),
        ("unnamed", {"tenant": ""}),
        ("labels", {"kinds": ["label"]}),
        ("none", {"tenant": "nobody", "kinds": ("message",)}),
    ):
        totals = Totals()
        once(store, totals, "the same name" if name in ("all", "acme") else name, **options)
        found[name] = totals.numbers
    assert found == {
        "all": [1, 2, 3, 4],
        "acme": [1, 2],
        "unnamed": [4],
        "labels": [2],
        "none": [],
    }


@pytest.mark.parametrize("removes", ["erase", "redact", "purge"])
def test_what_was_removed_between_two_calls_is_not_applied(store: Store, removes: str) -> None:
    """A page that the call before had read was applied on, with bodies that were erased."""
    call = store.session("s")
    say(store, *range(30))
    told: list[Any] = []
    with store.projection("p", lambda event: told.append(event.body)) as projection:
        assert projection.run_once(limit=1) == 1
        if removes == "erase":
            assert not call.erase().is_live
        elif removes == "redact":
            call.redact(0, 29)
        else:
            call.purge(30).result()
        say(store, 30, session="other")
        projection.run_once()
        assert told[0] == {"n": 0}
        assert told[-1] == {"n": 30}
        assert [body for body in told[1:-1] if "n" in (body or {})] == []


def test_hidden_sessions_voids_and_purged_events_are_passed_over(
    checked_store: Callable[..., Store],
) -> None:
    store = checked_store(snapshot_frequency=4)
    say(store, *range(600), session="gone")
    say(store, *range(600, 1_200), session="purged")
    store.documents.write("notes", "of the tenant").result()
    store.session("kept").alias("also").result()
    say(store, 1_200, session="kept")
    totals = Totals()
    messages = {"kinds": ("message",)}
    with store.projection("totals", totals, **messages) as projection:
        assert projection.run_once(10) == 10
        store.session("gone").delete().result()
        store.session("purged").purge(599).result()
        projection.run_once()
        # Nothing of the page of 256 events that it had read when they went.
        assert totals.numbers == [*range(10), 1_199, 1_200]
    sessions: list[str] = []
    once(store, lambda event: sessions.append(event.session), "names")
    assert set(sessions) == {"kept", "purged", ""}  # without a name: that one was deleted


def test_a_checkpoint_is_no_reason_for_another(store: Store) -> None:
    say(store, 0)
    with store.projection("totals", Totals()) as projection:
        projection.run_once()
        last = store.last_position
        for _ in range(5):
            projection.run_once()
        assert store.last_position == last
        with store.projection("others", Totals()) as other:
            other.run_once()
            last = store.last_position
            assert projection.run_once() == other.run_once() == 0
            assert store.last_position == last


def test_cycles_without_work_write_nothing_and_the_lag_reaches_zero(store: Store) -> None:
    """Each cycle wrote that there was an owner and that there was none, two positions of the log.

    So a projection that had seen everything lagged behind its own bookkeeping for ever.
    """
    tenants = store.tenant("acme")
    tenants.session("s").append({"n": 1}).result(HANG_S)
    totals = Totals()
    projection = store.projection("totals", totals)
    assert projection.lag() == 1
    assert once(store, totals) == 1
    last = store.last_position
    assert [once(store, totals) for _ in range(10)] == [0] * 10
    assert store.last_position == last
    assert projection.lag() == 0
    assert run(projection.lag_async()) == 0
    assert store.tenants() == ["acme"]
    assert store.projection("totals", totals, kinds=["label"], tenant="acme").lag() == 0
    say(store, 2, 3)
    assert projection.lag() == 2
    assert store.tenants() == ["acme", ""]


def test_a_loop_closes_it_without_blocking(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """`with` on a loop waited for the last checkpoint there; there was no `async with`."""
    threads: list[int] = []
    give_up = Projection._give_up

    def noted(self: Projection) -> None:
        threads.append(threading.get_ident())
        give_up(self)

    monkeypatch.setattr(Projection, "_give_up", noted)
    say(store, 0)

    async def main(fails: bool) -> int:
        async with store.projection("totals", Totals()) as projection:
            count = await projection.run_once_async()
            if fails:
                raise KeyError("of the caller")
        return count

    assert run(main(False)) == 1
    say(store, 1)
    with pytest.raises(KeyError):
        run(main(True))
    assert len(threads) >= 2 and threading.get_ident() not in threads
    assert once(store, Totals()) == 0  # nobody owns it


def test_of_two_that_are_idle_none_owns(store: Store) -> None:
    first, second = (store.projection("totals", Totals()) for _ in range(2))
    assert first.run_once() == second.run_once() == 0
    say(store, 0)
    assert (second.run_once(), first._kept.is_owner) == (1, False)
    with pytest.raises(BusyError):
        first.run_once()
    second.close()
    assert first.run_once() == 0
    say(store, 1)
    assert first.run_once() == 1
    first.close()


def test_what_others_wrote_moves_the_checkpoint_now_and_then(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projecting, "CHECKPOINT_PASSED", 100)
    with store.projection("totals", Totals(), tenant="acme") as projection:
        say(store, *range(90))
        projection.run_once()
        assert projection.checkpoint == 0
        say(store, *range(90))
        projection.run_once()
        assert projection.checkpoint > 180


def test_the_checkpoint_is_stored_on_the_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projecting, "CHECKPOINT_EVENTS", 10)
    monkeypatch.setattr(projecting, "CHECKPOINT_US", 10**12)
    say(store, *range(35))
    seen = []
    with store.projection("totals", lambda event: seen.append(projection.checkpoint)) as projection:
        projection.run_once()
        assert projection.checkpoint >= 35
    assert seen == [0] * 10 + [10] * 10 + [20] * 10 + [30] * 5


def test_what_keeps_the_checkpoint_stays_small(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each checkpoint is an event; those that are out of date are purged."""
    monkeypatch.setattr(keeping, "CHANGES_KEPT", 20)
    store = checked_store()
    totals = Totals(n7=1)
    for number in range(130):
        say(store, number)
        with store.projection("totals", totals, on_poison="skip") as projection:
            assert projection.run_once() == 1
    info = projection._kept._session.info()
    assert info is not None
    assert info.first_sequence > 300
    assert info.last_sequence - info.first_sequence < 40
    assert [letter.position for letter in projection.dead_letters()]
    assert len(totals.given) == 129
    # Sums up to it, and a process that begins anew reads the same.
    store.close()
    store = checked_store()
    again = store.projection("totals", totals)
    assert again.checkpoint == projection._reached
    assert [letter.error for letter in again.dead_letters()] == ["ValueError: cannot take 7"]


# Poison


def test_stop_raises_and_stays_before_the_event(store: Store) -> None:
    say(store, *range(6))
    totals = Totals(n3=2)
    with store.projection("totals", totals) as projection:
        for count in (1, 2):
            with pytest.raises(ValueError, match="cannot take 3") as caught:
                projection.run_once()
            assert "stopped before position 4" in caught.value.__notes__[0]
            assert projection.checkpoint == 3
            (letter,) = projection.dead_letters()
            assert (letter.position, letter.sequence, letter.session) == (4, 3, "s")
            assert (letter.kind, letter.tenant, letter.is_skipped) == ("message", "", False)
            assert letter.error == "ValueError: cannot take 3"
            assert letter.count == count
        assert projection.run_once() == 3
        assert projection.dead_letters() == []
    assert totals.numbers == list(range(6))


def test_stop_is_remembered_by_the_next_process(store_path: Path) -> None:
    with Store.open(store_path) as store:
        say(store, *range(3))
        with pytest.raises(ValueError, match="cannot"):
            once(store, Totals(n1=9))
    with Store.open(store_path) as store:
        with pytest.raises(ValueError, match="cannot"):
            once(store, Totals(n1=9))
        mended = Totals()
        with store.projection("totals", mended) as projection:
            assert [letter.count for letter in projection.dead_letters()] == [2]
            projection.run_once()
            assert projection.dead_letters() == []
        assert mended.numbers == [1, 2]


def test_skip_records_and_goes_on(store: Store) -> None:
    say(store, *range(6))
    totals = Totals(n0=9, n3=9, n5=9)
    with store.projection("totals", totals, on_poison="skip") as projection:
        assert projection.run_once() == 6
        assert totals.numbers == [1, 2, 4]
        letters = projection.dead_letters()
        assert [letter.position for letter in letters] == [1, 4, 6]
        assert {(letter.count, letter.is_skipped) for letter in letters} == {(1, True)}
        assert projection.run_once() == 0
        assert projection.checkpoint >= 6


@pytest.mark.parametrize("way", ["thread", "loop"])
def test_retry_tries_again_and_then_records(store: Store, way: str) -> None:
    say(store, *range(4))
    totals = Totals(n1=2, n2=9)
    options: dict[str, Any] = {"on_poison": "retry", "retries": 2}
    if way == "thread":
        assert once(store, totals, **options) == 4
    else:

        async def main() -> None:
            with store.projection("totals", totals, **options) as projection:
                assert await projection.run_once_async() == 4

        run(main())
    assert totals.numbers == [0, 1, 3]
    assert totals.tries == 1 + 3 + 3 + 1
    (letter,) = store.projection("totals", totals).dead_letters()
    assert (letter.position, letter.count, letter.is_skipped) == (3, 3, True)


class _Mute(Exception):
    """An error that neither prints nor takes notes."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def add_note(self, note: str, /) -> None:
        raise RuntimeError("no notes")


@pytest.mark.parametrize("on_poison", ["skip", "retry", "stop"])
def test_an_error_that_cannot_be_printed_is_poison_like_others(
    store: Store, on_poison: Any
) -> None:
    """Its text was asked for, and the projection stood still there for ever."""
    say(store, 0, 1, 2)

    def apply(event: Event) -> None:
        if event.body["n"] == 1:
            raise _Mute

    with store.projection("mute", apply, on_poison=on_poison, retries=1) as projection:
        if on_poison == "stop":
            with pytest.raises(_Mute):
                projection.run_once()
        else:
            projection.run_once()
            assert projection.checkpoint >= 3
        [letter] = projection.dead_letters()
        assert letter.error == "_Mute, whose text cannot be told"


def test_a_refusal_of_the_environment_is_no_poison(store: Store) -> None:
    """With ``skip`` an event would be left out because a queue was full."""
    say(store, 0, 1)
    refusals = [OverloadedError("full"), StoreClosedError("another store"), None, None]

    def apply(_: Event) -> None:
        refusal = refusals.pop(0)
        if refusal is not None:
            raise refusal

    with store.projection("totals", apply, on_poison="skip") as projection:
        for error in (OverloadedError, StoreClosedError):
            with pytest.raises(error):
                projection.run_once()
            assert projection.checkpoint == 0
            assert projection.dead_letters() == []
        assert projection.run_once() == 2


def test_ctrl_c_is_no_poison_and_what_was_applied_is_stored(store: Store) -> None:
    say(store, *range(3))

    def apply(event: Event) -> None:
        if event.body["n"] == 2:
            raise KeyboardInterrupt

    with store.projection("totals", apply, on_poison="skip") as projection:
        with pytest.raises(KeyboardInterrupt):
            projection.run_once()
        assert projection.checkpoint == 2
        assert projection.dead_letters() == []


def test_dead_letters_have_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projecting, "DEAD_LETTERS_MAX", 3)
    say(store, *range(6))
    totals = Totals(**{f"n{number}": 9 for number in range(6)})
    with store.projection("totals", totals, on_poison="skip") as projection:
        with pytest.raises(ValueError, match="cannot take 3") as caught:
            projection.run_once()
        assert "3 dead letters" in caught.value.__notes__[1]
        assert projection.checkpoint == 3
        assert [letter.position for letter in projection.dead_letters()] == [1, 2, 3]


def test_an_error_of_any_length_and_kind_is_recorded(store: Store) -> None:
    say(store, 0, 1)
    errors: list[Exception] = [ValueError("x" * 10_000), StopIteration("\ud800")]

    def apply(event: Event) -> None:
        raise errors[event.body["n"]]

    with store.projection("totals", apply, on_poison="skip") as projection:
        assert projection.run_once() == 2
        first, second = projection.dead_letters()
    assert len(first.error) == 2_000
    assert second.error == "StopIteration: \ud800"
    projection = store.projection("again", apply, on_poison="skip")
    assert run(projection.run_once_async()) == 2
    projection.close()


def test_reset_begins_again(store: Store) -> None:
    say(store, *range(5))
    totals = Totals(n2=1)
    with store.projection("totals", totals, on_poison="skip") as projection:
        projection.run_once()
        assert len(projection.dead_letters()) == 1
        projection.reset()
        assert (projection.checkpoint, projection.dead_letters()) == (0, [])
        projection.run_once()
        assert totals.numbers == [0, 1, 3, 4, 0, 1, 2, 3, 4]
        projection.reset(4)
        assert projection.run_once() == 1
        run(projection.reset_async(3))
        assert run(projection.run_once_async()) == 2


def test_reset_passes_over_nothing_that_comes(store: Store) -> None:
    say(store, *range(3))
    totals = Totals()
    with store.projection("totals", totals) as projection:
        assert projection.run_once(1) == 1
        for beyond in (1, 10**9):
            position = store.last_position + beyond
            for way in (projection.reset, lambda at: run(projection.reset_async(at))):
                with pytest.raises(UsageError, match=f"not {position}") as refused:
                    way(position)
                assert "last_position" in str(refused.value.hint)
        assert projection.checkpoint == 1
        projection.reset(store.last_position)
        say(store, 3)
        assert projection.run_once() == 1
    assert totals.numbers == [0, 3]


def test_a_changed_function_catches_up_beside_the_old_one(store: Store) -> None:
    say(store, *range(100))
    old, new = Totals(), Totals()
    with store.projection("totals@1", old) as one, store.projection("totals@2", new) as two:
        one.run_once()
        two.run_once(60)
        say(store, 100)
        one.run_once()
        assert two.checkpoint < one.checkpoint  # says which of them can serve
        two.run_once()
        assert new.numbers == old.numbers
        assert two.checkpoint >= one.checkpoint


# Live


def test_run_follows_until_it_is_closed(store: Store) -> None:
    totals = Totals()
    reached = threading.Event()

    def apply(event: Event) -> None:
        totals(event)
        if event.body["n"] == 299:
            reached.set()

    projection = store.projection("totals", apply)
    thread = threading.Thread(target=projection.run, daemon=True)
    thread.start()
    for number in range(300):
        store.session("s").append({"n": number})
    assert reached.wait(HANG_S)
    projection.close()
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert totals.numbers == list(range(300))
    with store.projection("totals", totals) as again:
        assert again.checkpoint >= totals.given[-1][0]
        assert again.run_once() == 0


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_run_async_follows_until_it_is_closed(store: Store, is_coroutine: bool) -> None:
    totals = Totals()
    threads = set()

    def plain(event: Event) -> None:
        threads.add(threading.current_thread())
        totals(event)

    async def apply(event: Event) -> None:
        await asyncio.sleep(0)
        plain(event)

    async def main() -> None:
        projection = store.projection("totals", apply if is_coroutine else plain)
        task = asyncio.create_task(projection.run_async())
        for number in range(100):
            await store.session("s").append({"n": number})
        while len(totals.given) < 100:
            await asyncio.sleep(0.001)
        await projection.close_async()
        await task
        assert projection.checkpoint >= totals.given[-1][0]

    run(main())
    assert totals.numbers == list(range(100))
    assert (threading.main_thread() in threads) is is_coroutine
    assert once(store, totals) == 0


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_a_cancelled_run_stores_its_checkpoint_and_owns_nothing(
    store: Store, is_coroutine: bool
) -> None:
    say(store, *range(10))
    totals = Totals()
    reached, go_on = threading.Event(), threading.Event()

    def plain(event: Event) -> None:
        if event.body["n"] == 5:
            reached.set()
            assert go_on.wait(HANG_S)
        totals(event)

    async def apply(event: Event) -> None:
        if event.body["n"] == 5:
            reached.set()
            await asyncio.sleep(HANG_S)
        totals(event)

    async def main() -> None:
        projection = store.projection("totals", apply if is_coroutine else plain)
        task = asyncio.create_task(projection.run_async())
        await asyncio.get_running_loop().run_in_executor(None, reached.wait)
        task.cancel()
        await asyncio.sleep(0.01)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    # What ran on the pool could not be stopped, and so it counts.
    assert totals.numbers == list(range(5 if is_coroutine else 6))
    rest = Totals()
    assert once(store, rest) == 10 - len(totals.given)
    assert rest.numbers == list(range(len(totals.given), 10))
    assert len(store._log._futures) == 0


@pytest.mark.parametrize("kinds", [None, ["message"]])
def test_an_owner_that_nobody_holds_is_gone_at_once(store: Store, kinds: Any) -> None:
    """Without the garbage collector, whatever it did last."""
    say(store, *range(3))

    def poisoned(projection: Projection) -> None:
        with suppress(ValueError):
            projection.run_once()

    def poisoned_async(projection: Projection) -> None:
        async def main() -> None:
            with suppress(ValueError):
                await projection.run_once_async()

        run(main())

    def after_async(projection: Projection) -> None:
        run(projection.run_once_async(1))

    works: list[Callable[[Projection], object]] = [
        lambda projection: projection.run_once(1),
        lambda projection: projection.reset(0),
        lambda projection: projection.take_over(),
        after_async,
        poisoned,
        poisoned_async,
    ]
    gc.collect()
    gc.disable()
    try:
        for work in works:
            projection = store.projection("totals", Totals(n1=9), kinds=kinds)
            projection.reset()
            work(projection)
            left = weakref.ref(projection)
            del projection
            assert left() is None
    finally:
        gc.enable()
    with store.projection("totals", Totals(), kinds=kinds) as projection:
        projection.reset()
        assert projection.run_once() == 3


def test_a_poisoned_run_ends_and_owns_nothing(store: Store) -> None:
    say(store, *range(5))
    totals = Totals(n3=2)
    with pytest.raises(ValueError, match="cannot"):
        store.projection("totals", totals).run()
    with pytest.raises(ValueError, match="cannot"):
        run(store.projection("totals", totals).run_async())
    with store.projection("totals", totals) as projection:
        assert projection.checkpoint == 3
        assert [letter.count for letter in projection.dead_letters()] == [2]
        assert projection.run_once() == 2


def test_closing_the_store_ends_a_run_with_an_error(store_path: Path) -> None:
    store = Store.open(store_path)
    say(store, 0)
    totals = Totals()
    got = threading.Event()
    errors: list[BaseException] = []

    def follow() -> None:
        try:
            store.projection("totals", lambda event: (totals(event), got.set())).run()
        except StoreClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert got.wait(HANG_S)
    store.close()
    thread.join(HANG_S)
    assert len(errors) == 1
    with Store.open(store_path) as store:  # in the same process, whose owner is gone
        assert once(store, totals) <= 1


# Arguments, and stores that cannot be written


def test_odd_arguments_are_refused(store: Store) -> None:
    def refused(error: type[Exception], *given: Any, **options: Any) -> None:
        with pytest.raises(error):
            store.projection(*given, **options)

    refused(InvalidNameError, "", print)
    refused(InvalidNameError, "x" * 513, print)
    refused(UsageError, "x", None)
    refused(UsageError, "x", "print")
    refused(UsageError, "x", print, on_poison="ignore")
    refused(UsageError, "x", print, retries=-1)
    refused(UsageError, "x", print, on_poison="retry", retries=1_001)
    refused(UsageError, "x", print, kinds=[1])
    refused(InvalidNameError, "x", print, tenant="\ud800")
    projection = store.projection("x", print)
    for limit in (-1, 1.0, "1"):
        with pytest.raises(UsageError):
            projection.run_once(limit)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        projection.reset(-1)

    async def apply(_: Event) -> None: ...

    with pytest.raises(UsageError, match="coroutine"):
        store.projection("x", apply).run_once()


class Later:
    """Functions that give what is to be awaited, without being coroutine functions."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.threads: set[Any] = set()

    async def __call__(self, event: Event) -> None:
        await asyncio.sleep(0)
        self.threads.add(threading.current_thread())
        self.numbers.append(event.body["n"])

    def given(self, event: Event) -> Any:
        return self(event)

    def wrapped(self, event: Event) -> Any:
        later = self

        class Wrapped:
            def __await__(self) -> Any:
                return later(event).__await__()

        return Wrapped()

    def function(self, way: str) -> Any:
        return self if way == "object" else getattr(self, way)


@pytest.mark.parametrize("way", ["object", "given", "wrapped"])
@pytest.mark.parametrize("on_poison", ["stop", "skip", "retry"])
@pytest.mark.filterwarnings("error")
def test_what_is_to_be_awaited_is_no_applied_event(store: Store, way: str, on_poison: Any) -> None:
    say(store, 0, 1, 2)
    later = Later()

    def apply(event: Event) -> Any:
        return None if event.body["n"] == 0 else later.function(way)(event)

    for name, function, stays in (("a", apply, 1), ("b", later.function(way), 0)):
        with store.projection(name, function, on_poison=on_poison) as projection:
            for call in (projection.run_once, projection.run):
                with pytest.raises(UsageError, match="awaitable") as refused:
                    call()
                assert "_async" in str(refused.value.hint)
                assert projection.checkpoint == stays
            assert projection.dead_letters() == []
    gc.collect()
    assert later.numbers == []


@pytest.mark.parametrize("way", ["object", "given", "wrapped"])
def test_what_is_to_be_awaited_is_awaited_on_a_loop(store: Store, way: str) -> None:
    say(store, 0, 1, 2)
    later = Later()

    async def main() -> None:
        projection = store.projection("totals", later.function(way))
        assert await projection.run_once_async(3) == 3
        assert projection.checkpoint == 3
        await projection.close_async()

    run(main())
    assert later.numbers == [0, 1, 2]
    assert later.threads == {threading.main_thread()}


def test_an_awaited_failure_is_poison(store: Store) -> None:
    say(store, 0, 1)

    async def fail(event: Event) -> None:
        raise ValueError(event.body["n"])

    async def main() -> None:
        projection = store.projection("totals", lambda event: fail(event), on_poison="skip")
        assert await projection.run_once_async() == 2
        await projection.close_async()
        assert [each.error for each in projection.dead_letters()] == [
            "ValueError: 0",
            "ValueError: 1",
        ]

    run(main())


@pytest.mark.filterwarnings("error")
def test_a_run_cancelled_before_it_awaits_applies_nothing(store: Store) -> None:
    say(store, 0)
    later = Later()
    is_called, may_return = threading.Event(), threading.Event()

    def apply(event: Event) -> Any:
        is_called.set()
        assert may_return.wait(HANG_S)
        return later(event)

    async def main() -> None:
        projection = store.projection("totals", apply)
        task = asyncio.ensure_future(projection.run_once_async())
        await asyncio.to_thread(is_called.wait, HANG_S)
        task.cancel()
        await asyncio.sleep(0)
        may_return.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert projection.checkpoint == 0
        await projection.close_async()

    run(main())
    gc.collect()
    assert later.numbers == []


def test_a_generator_is_no_applied_event(store: Store) -> None:
    say(store, 0)

    def steps(_: Event) -> Any:
        yield

    async def steps_async(_: Event) -> Any:
        yield

    for function in (steps, steps_async):
        with store.projection("totals", function, on_poison="skip") as projection:
            with pytest.raises(UsageError, match="generator"):
                projection.run_once()
            with pytest.raises(UsageError, match="generator"):
                run(projection.run_once_async())
            assert (projection.checkpoint, projection.dead_letters()) == (0, [])


def test_a_read_only_store_tells_and_runs_nothing(store_path: Path) -> None:
    with Store.open(store_path) as store:
        say(store, 0)
        once(store, Totals())
    with Store.open(store_path, read_only=True) as store:
        projection = store.projection("totals", Totals())
        assert (projection.checkpoint, projection.dead_letters()) == (2, [])  # with its owner
        with pytest.raises(ReadOnlyError):
            projection.run_once()


def test_projections_are_told_apart_from_sessions(store: Store) -> None:
    say(store, 0)
    projection: Projection = store.projection("totals", Totals())
    projection.run_once()
    projection.close()
    assert [info.name for info in store.sessions().sessions] == ["s"]
    assert [event.session for event in store.read()] == ["s"]
    assert list(store.export_lines(store.read()))[1:] == []
