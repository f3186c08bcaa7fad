"""Readers whose session is removed by another thread while they read: true for one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine import Store
from engine.reading import SessionPager
from eventlog.errors import SessionGoneError
from eventlog.hotlog import PARTITION
from eventlog.redaction import Redact
from eventlog.tables import ReadTables
from tests.unit.redacted import HANG_S, stay_loose


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
def test_events_tell_the_session_that_the_transaction_saw(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    """Memory had lost the names by the time that they were looked at, and events had none."""
    store = checked_store(snapshot_frequency=1 if sealed else 25)
    session = store.tenant("acme").session("a")
    session.append_many([{"role": "user"}] * 3).result()
    store.flush()
    real = ReadTables.load_row
    left = ["once"]

    def load_row(self: ReadTables, number: int) -> Any:
        row = real(self, number)
        if left and type(self) is ReadTables:
            left.pop()
            session.delete().result()
        return row

    monkeypatch.setattr(ReadTables, "load_row", load_row)
    events = list(session.events())
    assert not left
    names = {(event.tenant, event.session) for event in events}
    assert (len(events), names) in [(3, {("acme", "a")}), (0, set())]
    assert list(session.events()) == []


@pytest.mark.parametrize("way", ["events", "at", "lines"])
def test_a_read_of_a_session_that_is_deleted_meanwhile_says_so(store: Store, way: str) -> None:
    """It ended after its page without an error, as if that had been all."""
    session = store.session("a")
    session.append_many([{"n": number} for number in range(2_000)]).result()
    reading: Iterator[Any] = {
        "events": lambda: iter(session.events()),
        "at": lambda: iter(session.at(1_999).events()),
        "lines": lambda: store.export_lines(session.events()),
    }[way]()
    next(reading)
    session.delete().result()
    with pytest.raises(SessionGoneError):
        list(reading)


def test_events_as_of_a_moment_are_not_none_when_the_session_is_deleted(store: Store) -> None:
    """They were none at all where the session went before their first page."""
    session = store.session("a")
    session.append({"n": 0}).result()
    then = session.at(0)
    events = then.events()
    session.delete().result()
    with pytest.raises(SessionGoneError):
        list(events)


@pytest.mark.parametrize("pages", [0, 1])
def test_a_clone_of_a_session_that_is_deleted_meanwhile_is_refused(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """The clone had what was read by then, and its caller was not told."""
    store = checked_store()
    session = store.session("a")
    session.append_many([{"n": number} for number in range(2_000)]).result()
    real = SessionPager.next_page
    left = [session.delete, *[lambda: store.session("other").create()] * pages]

    def next_page(self: SessionPager) -> Any:
        if left:
            left.pop()().result()
        return real(self)

    monkeypatch.setattr(SessionPager, "next_page", next_page)
    with pytest.raises(SessionGoneError):
        session.clone("copy")
    assert not left
    assert not store.session("copy").exists


def test_what_was_read_to_its_end_may_go(store: Store) -> None:
    session = store.session("a")
    session.append_many([{"n": number} for number in range(3)]).result()
    reading = iter(session.events())
    assert [next(reading).sequence for _ in range(3)] == [0, 1, 2]
    session.delete().result()
    assert list(reading) == []


@pytest.mark.parametrize("way", ["info", "list"])
def test_facts_are_of_a_session_that_is_there(
    store: Store, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Facts came from memory after the removal, and told of a session without a name."""
    session = store.tenant("acme").session("a")
    session.append({"role": "user"}).result()
    views: Any = store._log.views
    real = views.facts_in_memory

    def facts_of(state: Any) -> Any:
        session.delete().result()
        return real(state)

    monkeypatch.setattr(views, "facts_in_memory", facts_of)
    if way == "info":
        assert session.info() is None
    else:
        assert store.tenant("acme").sessions().sessions == []


def test_two_reads_of_different_age_do_not_share_what_they_know(store: Store) -> None:
    """Each looked at the places twice, so an older read could fill those of a newer one.

    Then the newer one, and all after it, took a session that was deleted for one that is there.
    """
    store.session("a").append({"role": "user"}).result()
    store.session("a").delete().result()
    views: Any = store._log.views
    newer: list[Any] = []

    class Places:
        """The attribute ``_places``; the first who writes it is overtaken by a newer read."""

        def __get__(self, owner: Any, _: Any) -> Any:
            return owner.__dict__["places"]

        def __set__(self, owner: Any, value: Any) -> None:
            owner.__dict__["places"] = value
            if not newer:
                newer.append(None)
                newer[0] = owner._place_of(SimpleNamespace(removals=1))

    class Watched(type(views)):  # type: ignore[misc]
        _places = Places()

    views.__dict__["places"] = (7, {})
    del views.__dict__["_places"]
    views.__class__ = Watched
    older = views._place_of(SimpleNamespace(removals=0))
    with views.transaction() as tables:
        looked: list[int] = []
        real = tables.load_row

        def load_row(number: int) -> Any:
            looked.append(number)
            return real(number)

        tables.load_row = load_row
        older(tables, 1)
        origin, first = newer[0](tables, 1)
        assert looked == [1, 1], "it believed what the older read knew"
    assert (origin.name, first) == ("", 1)


class _Cleared:
    """An index that is dropped, and refilled by half, right after one of its marks was looked at.

    Position and generation are what a read compares to know that nobody dropped it meanwhile.
    """

    def __init__(self, real: Any, drop: Callable[[], None]) -> None:
        self._real = real
        self._drop: Callable[[], None] | None = drop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name in ("position", "generation") and self._drop is not None:
            drop, self._drop = self._drop, None
            drop()
        return found


def test_a_read_sees_that_memory_is_half_refilled(checked_store: Callable[..., Store]) -> None:
    """A read took the position of before and the generation of after memory was dropped.

    Then nothing told it that the session's list was on its way, and it missed durable events.
    """
    store = checked_store()
    stay_loose(store)
    other, session = store.session("other"), store.session("a")
    other.append({"n": 0}).result(HANG_S)
    session.append_many([{"n": number} for number in range(8)]).result(HANG_S)
    views: Any = store._log.views
    index = views._index

    class Stopped(Exception):
        """As far as the refill got by then."""

    def drop() -> None:
        log = store._log  # a slice, which raises the generation and appends nothing
        log.writer.run(Redact(1, 0, 0, index, log.writer.pause, lambda: False))
        with views.transaction() as tables:
            record = tables.commit_record()
            hot = tables.hot_log(record)

            def half(first: int) -> Any:
                for place, item in enumerate(hot.read(PARTITION, first, 9)):
                    if place == 5:
                        raise Stopped
                    yield item

            index.clear()
            with pytest.raises(Stopped):
                index.catch_up(
                    record, half, tables.load_row, lambda *_: b"", lambda: None, lambda *_: None
                )

    assert len(session.history()) == 8
    views._index = cleared = _Cleared(index, drop)
    history = session.history()
    views._index = index
    assert cleared._drop is None
    assert [body["n"] for body in history] == list(range(8))
