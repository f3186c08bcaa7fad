"""Redacted events keep their places and lose what they say, however they are read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from engine import (
    DuplicateIdError,
    Event,
    InvalidNameError,
    ReadOnlyError,
    SessionGoneError,
    SessionNotFoundError,
    Store,
    TurnlogError,
    UsageError,
)
from eventlog.failpoints import failpoints
from tests.model.staging import once
from tests.unit.redacted import (
    COUNT,
    FREQUENCY,
    HANG_S,
    PLACES,
    SECRET,
    kept_of,
    plant,
    require_redacted,
    talk,
    tell,
)

Open = Callable[..., Store]


@pytest.fixture
def opened(checked_store: Open) -> Store:
    return checked_store(snapshot_frequency=FREQUENCY)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("first", "last"), [(0, 0), (5, 11), (0, COUNT - 1), (COUNT - 1, COUNT)])
def test_events_keep_all_but_what_they_say(
    opened: Store, place: str, first: int, last: int
) -> None:
    session = plant(opened, place)
    if place != "mixed":
        last = min(last, COUNT - 1)
    before = list(session.events())
    info, state = session.info(), session.state
    receipt = session.redact(first, last, reason="case 1")
    after = list(session.events())
    assert [kept_of(each) for each in after[:-1]] == [kept_of(each) for each in before]
    for event, old in zip(after, before, strict=False):
        if first <= event.sequence <= last:
            require_redacted(event)
        else:
            assert event == old and not event.redacted
    assert (receipt.event_count, receipt.already_count) == (last - first + 1, 0)
    assert (receipt.kept_count, receipt.void_count) == (0, 0)
    assert (receipt.number, receipt.first, receipt.last) == (before[0].session_number, first, last)
    said = after[-1]
    assert (said.kind, said.body) == (
        "redaction",
        {"first": first, "last": last, "reason": "case 1"},
    )
    assert (receipt.sequence, receipt.position) == (said.sequence, said.position)
    now = session.info()
    assert info is not None and now is not None
    assert (now.event_count, now.message_count, now.head) == (
        info.event_count + 1,
        info.message_count,
        info.head,
    )
    assert (session.state, now.user_id) == (state, "u7")


@pytest.mark.parametrize("place", PLACES)
def test_every_way_of_reading_gives_none(opened: Store, place: str) -> None:
    session = plant(opened, place)
    session.history(), list(opened.read())  # so that memory has met what is redacted
    messages = [event.sequence for event in session.events(kinds=["message"])]
    session.redact(6, 17)
    shown = [None if 6 <= each <= 17 else each for each in messages]
    assert [body is None for body in session.history()] == [each is None for each in shown]
    assert [body is None for body in session.history(9)] == [each is None for each in shown[-9:]]
    at = session.at(20)
    assert [body is None for body in at.history()] == [
        each is None for each in shown if each is None or each <= 20
    ]
    assert session.event(8).redacted and not session.event(18).redacted
    for events in (
        session.path_events(),
        opened.tenant("acme").read(),
        opened.read(),
        session.path().events,
    ):
        found = {event.sequence: event for event in events if event.session == "call"}
        for sequence in range(6, 18):
            require_redacted(found[sequence])
        assert not found[5].redacted and found[5].body is not None
    with session.subscribe(after=5) as subscription:
        require_redacted(next(iter(subscription)))
    window = session.window_entries()
    assert [each.sequence for each in window.entries] == [
        each for each in messages if not 6 <= each <= 17
    ]


def test_a_projection_gets_redacted_events_and_hears_of_redactions(opened: Store) -> None:
    session = plant(opened, "sealed")
    index: dict[int, Any] = {}

    def apply(event: Event) -> None:
        if event.kind == "redaction":
            for sequence in range(event.body["first"], event.body["last"] + 1):
                index.pop(sequence, None)
        elif not event.redacted:
            index[event.sequence] = event.body

    with opened.projection("search", apply) as projection:
        projection.run_once()
        assert set(index) == set(range(COUNT))
        session.redact(3, 9)
        projection.run_once()
        assert set(index) == {*range(3), *range(10, COUNT)}
    index.clear()
    with opened.projection("search again", apply) as projection:
        projection.run_once()
    assert set(index) == {*range(3), *range(10, COUNT)}


@pytest.mark.parametrize("place", PLACES)
def test_retries_and_ids_are_still_known(opened: Store, place: str) -> None:
    session = plant(opened, place)
    session.redact(0, COUNT - 1)
    count = session.info().event_count  # type: ignore[union-attr]
    twin = plant(opened, "loose", "twin")
    body = twin.event(5).body
    again = session.append(
        body,
        id="call-5",
        metadata={"of": SECRET, "half": "\ud83d"},
        tokens=6,
        run_id="run-2",
        time_us=1_005,
        idempotency_key="key-5",
    ).result(HANG_S)
    assert again.already and (again.first, again.last) == (5, 5)
    assert session.info().event_count == count  # type: ignore[union-attr]
    other = session.append({"role": "user"}, parent="call-7").result(HANG_S)
    assert session.event(other.last).parent == 7


@pytest.mark.parametrize("body", [{"role": "user", "content": SECRET}, None])
def test_an_id_alone_does_not_tell_that_it_is_a_retry(opened: Store, body: Any) -> None:
    """Nobody knows any more whether it says the same; nothing is written again in any case."""
    session = talk(opened)
    session.append_event("event", body, id="e").result(HANG_S)
    assert session.append_event("event", body, id="e").result(HANG_S).already
    session.redact(0, 0)
    with pytest.raises(DuplicateIdError):
        session.append_event("event", body, id="e").result(HANG_S)
    assert session.info().event_count == 2  # type: ignore[union-attr]


def test_a_rebuild_gives_the_same_rows(opened: Store) -> None:
    session = plant(opened, "cut")
    session.update_state({"a": 1}).result(HANG_S)
    session.set_title("a title").result(HANG_S)
    session.redact(2, 15)
    opened.flush()
    before = session.state, session.facts, session.info()
    report = opened.rebuild()
    assert (session.state, session.facts, session.info()) == before
    assert report is not None
    body = {"role": "user", "content": "x"}
    refused = session.append(body, idempotency_key="key-4")
    with pytest.raises(TurnlogError, match="key"):
        refused.result(HANG_S)


def test_it_is_said_once_however_often_it_is_asked_for(opened: Store) -> None:
    session = plant(opened, "mixed")
    first = session.redact(4, 12)
    for asked in ((4, 12), (6, 6), (4, 5)):
        again = session.redact(*asked)
        assert (again.event_count, again.already_count) == (0, asked[1] - asked[0] + 1)
        assert (again.sequence, again.position) == (first.sequence, first.position)
    wider = session.redact(3, 13)
    assert (wider.event_count, wider.already_count) == (2, 9)
    assert wider.sequence == first.sequence + 1  # type: ignore[operator]
    assert [event.body["first"] for event in session.events(kinds=["redaction"])] == [4, 3]


def test_control_events_stay_and_are_counted(opened: Store) -> None:
    session = talk(opened)
    session.append({"role": "user", "content": SECRET}).result(HANG_S)  # 0
    session.update_state({"a": 1}).result(HANG_S)
    session.set_title("a title").result(HANG_S)
    session.append_event("annotation", {"of": SECRET}).result(HANG_S)  # 3
    session.append_event("metric", {"of": SECRET}, run_id="r").result(HANG_S)  # 4
    session.record_usage(input_tokens=3).result(HANG_S)
    session.documents.write("plan", "text").result(HANG_S)
    answer = session.append({"role": "assistant", "content": SECRET}).result(HANG_S).last
    session.link(answer, [0]).result(HANG_S)
    before, used = list(session.events()), session.usage()
    receipt = session.redact(0, len(before) - 1)
    assert session.usage() == used and used.records
    redacted = {event.sequence for event in session.events() if event.redacted}
    assert redacted == {0, 3, 4, 7}
    assert (receipt.event_count, receipt.kept_count) == (4, 5)
    assert session.state == {"a": 1} and session.facts.title == "a title"
    assert session.documents.read("plan") == "text"
    kept = [event for event in session.events() if not event.redacted][:-1]
    assert kept == [event for event in before if event.sequence not in redacted]
    assert session.redact(1, 2).sequence == receipt.sequence  # said, though nothing went
    assert session.event(4).run_id == "r"


def test_where_there_is_nothing_to_redact_nothing_is_said(opened: Store) -> None:
    session = talk(opened)
    session.update_state({"a": 1}).result(HANG_S)
    receipt = session.redact(0, 0)
    assert (receipt.event_count, receipt.kept_count, receipt.sequence) == (0, 1, None)
    assert session.info().event_count == 1  # type: ignore[union-attr]


def test_purged_events_are_void_already(opened: Store) -> None:
    session = plant(opened, "sealed")
    session.purge(10).result(HANG_S)
    receipt = session.redact(4, 14)
    assert (receipt.event_count, receipt.void_count) == (5, 6)
    assert [event.redacted for event in session.events(10, 15)] == [True] * 5 + [False]
    below = session.redact(0, 9)
    assert (below.event_count, below.void_count, below.sequence) == (0, 10, None)


def test_what_cannot_be_redacted_is_refused(opened: Store) -> None:
    session = talk(opened)
    with pytest.raises(SessionNotFoundError):
        session.redact(0, 0)
    session.append({"role": "user"}).result(HANG_S)
    wrong: list[tuple[Any, Any]] = [(-1, 0), (True, 0), (0, False), (1, 0), ("0", 0), (0, None)]
    for first, last in wrong:
        with pytest.raises(UsageError):
            session.redact(first, last)
    with pytest.raises(UsageError, match="no event 1"):
        session.redact(0, 1)
    for reason in ("", "x" * 513, 7):
        with pytest.raises(InvalidNameError):
            session.redact(0, 0, reason=reason)  # type: ignore[arg-type]
    assert not session.event(0).redacted
    session.delete().result(HANG_S)
    with pytest.raises(SessionNotFoundError):
        session.redact(0, 0)


def test_a_store_that_is_read_only_redacts_nothing(checked_store: Open) -> None:
    with checked_store() as store:
        talk(store).append({"role": "user"}).result(HANG_S)
        path = store.path
    with Store.open(path, read_only=True) as store, pytest.raises(ReadOnlyError):
        talk(store).redact(0, 0)


@pytest.mark.parametrize("anew", [False, True], ids=["deleted", "made-anew"])
def test_a_session_that_goes_meanwhile_is_not_redacted(opened: Store, anew: bool) -> None:
    """Neither is one of the same name, nor is anything said in it."""
    session = plant(opened, "loose")

    def replace() -> None:
        opened.tenant("acme").session("call").delete()
        if anew:
            opened.tenant("acme").session("call").append_many([{"role": "user"}] * 30)

    before_it_is_said = failpoints({"redaction.after_slice": once(replace)})
    with before_it_is_said, pytest.raises(SessionGoneError):
        session.redact(2, 8)
    opened.flush()
    assert session.exists is anew
    assert [event.kind for event in session.events()] == ["message"] * 30 * anew
    assert not [event for event in session.events() if event.redacted]


def test_holds_do_not_keep_it_from_being_done(opened: Store) -> None:
    session = plant(opened, "loose")
    session.hold("case 7").result(HANG_S)
    assert session.redact(2, 3).event_count == 2
    assert session.facts.holds == ("case 7",)


def test_it_is_done_from_an_event_loop(opened: Store) -> None:
    session = plant(opened, "sealed")
    receipt = asyncio.run(session.redact_async(1, 2, reason="r"))
    assert receipt.event_count == 2 and session.event(2).redacted


# Copies


def exported(store: Store) -> list[str]:
    acme = store.tenant("acme")
    return list(acme.export_lines(acme.read()))


@pytest.mark.parametrize("place", ["loose", "cut"])
def test_an_export_comes_back_byte_for_byte(opened: Store, checked_store: Open, place: str) -> None:
    session = plant(opened, place)
    talk(opened).append({"role": "custom role", "content": SECRET}).result(HANG_S)
    session.redact(4, COUNT, reason="r")
    tell(opened, session, 3, COUNT + 5)
    lines = exported(opened)
    events = [json.loads(line) for line in lines if '"sequence"' in line]
    assert [each.get("redacted", False) for each in events[3:5]] == [False, True]
    assert {each.get("role") for each in events if each.get("redacted")} == {
        *("user", "assistant", "tool"),
        None,
    }
    with checked_store(opened.path.parent / "other") as other:
        assert other.load(map(json.loads, lines)).loaded == len(events)
        assert exported(other) == lines
        assert other.load(map(json.loads, lines)).skipped == len(events)
        for ours, theirs in zip(session.events(), talk(other).events(), strict=True):
            assert (ours.redacted, ours.role_code) == (theirs.redacted, theirs.role_code)
            assert ours.flags & 1 == theirs.flags & 1


def test_an_old_export_does_not_bring_it_back(opened: Store) -> None:
    session = plant(opened, "sealed")
    lines = [json.loads(line) for line in exported(opened)]
    session.redact(4, 4)
    with pytest.raises(TurnlogError, match="another event at sequence 4"):
        opened.load(lines)
    require_redacted(session.event(4))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param({"kind": "variables", "redacted": True}, "cannot be redacted", id="variables"),
        pytest.param({"kind": "redaction", "body": None}, "first and last", id="no-range"),
        pytest.param(
            {"kind": "redaction", "body": {"first": 2, "last": 1}}, "last must", id="order"
        ),
        pytest.param(
            {"kind": "redaction", "body": {"first": 0, "last": 0, "reason": 1}}, "reason", id="text"
        ),
    ],
)
def test_lines_that_no_redaction_makes_are_refused(
    store: Store, line: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Exception, match=reason) as caught:
        store.load([{"session": "s", "sequence": 0, **line}])
    assert type(caught.value).__name__ == "DamagedInputError"


def test_a_clone_of_a_path_is_not_told_what_was_redacted_off_it(opened: Store) -> None:
    """An event that was not copied was noted too, under the place of the next copy: the clone said
    that a live event of its own had been redacted."""
    session = opened.session("a")
    session.append_many([{"n": number} for number in range(3)]).result(HANG_S)
    session.checkout(0).result(HANG_S)
    session.append({"n": 3}).result(HANG_S)
    session.redact(1, 2)
    leaf = session.append({"n": 4}).result(HANG_S).last
    part = session.clone("part", leaf=leaf)
    assert [body["n"] for body in part.history()] == [0, 3, 4]
    assert list(part.events(kinds=["redaction"])) == []
    told = [event.body for event in session.clone("all").events(kinds=["redaction"])]
    assert told == [{"first": 1, "last": 2}]


def test_a_clone_is_redacted_too(opened: Store) -> None:
    session = plant(opened, "sealed")
    session.update_state({"a": 1}).result(HANG_S)
    session.roll_up().result(HANG_S)  # is not copied, so that sequences are others
    tell(opened, session, 4, COUNT)
    session.redact(10, COUNT + 3)
    copy = session.clone("copy")
    told = [event for event in copy.events() if event.redacted]
    assert len(told) == COUNT - 10 + 2
    for event in told:
        require_redacted(event)
    old = [event for event in session.events() if event.redacted]
    assert [event.role for event in told] == [event.role for event in old]
    said = next(event for event in copy.events() if event.kind == "redaction")
    assert said.body == {"first": told[0].sequence, "last": told[-1].sequence}
    part = session.clone("part", leaf=5)
    assert not [event for event in part.events() if event.redacted or event.kind == "redaction"]


def test_what_is_salvaged_is_redacted(opened: Store, checked_store: Open) -> None:
    session = plant(opened, "mixed")
    session.redact(4, COUNT)
    lines = [json.loads(each) for each in opened.salvage() if isinstance(each, str)]
    with checked_store(opened.path.parent / "other") as other:
        other.load(lines)
        assert [event.redacted for event in talk(other).events()] == [
            event.redacted for event in session.events()
        ]
