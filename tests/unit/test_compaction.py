"""Compaction as an event: summaries, bounds, what a slow or failing summariser leaves, overflow."""

from __future__ import annotations

import asyncio
import json
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Compaction, Session, Store
from engine.modelview import SUMMARY_PREFIX, summary_message
from engine.toolgroups import NO_RESULT
from eventlog.errors import (
    AppendConflictError,
    ConflictError,
    InvalidMessageError,
    SessionGoneError,
    SessionNotFoundError,
    TrimmedError,
    UsageError,
)
from tests import old_store
from tests.unit.test_window import CALLS, RESULTS, answers, asks, put, says, user

Open = Callable[..., Store]
HANG_S = 60.0


@pytest.fixture
def call(store: Store) -> Session:
    return store.session("call")


def talk(call: Session, count: int, start: int = 0) -> None:
    put(call, *[user(f"m{number}") for number in range(start, start + count)])


def shown(call: Session, **options: Any) -> list[int | None]:
    return [entry.sequence for entry in call.window_entries(**options).entries]


def test_a_summary_stands_for_the_beginning(call: Session) -> None:
    talk(call, 12)
    given: list[Any] = []
    done = call.compact(lambda messages: given.append(messages) or "so far", keep_last=3)  # type: ignore[func-returns-value]
    assert given == [[user(f"m{number}") for number in range(9)]]
    assert done == Compaction(12, 8, "so far", 9, 9 * 5)
    event = call.event(12)
    assert (event.kind, event.body["summary"]) == ("compaction", "so far")
    assert event.body["data"] == {
        "through": 8,
        "keep": [],
        "strategy": "summary",
        "trigger": "manual",
        "compressed_count": 9,
        "total_tokens": 45,
    }
    assert call.compaction() == event
    talk(call, 1, 12)
    assert call.window() == [
        summary_message("so far"),
        *[user(f"m{number}") for number in (9, 10, 11, 12)],
    ]
    entries = call.window_entries()
    assert entries.compaction == 12 and entries.entries[0].synthetic == "summary"
    assert not entries.is_cut
    assert len(call.history()) == 13  # which is of messages alone


def test_originals_stay_as_they_are(call: Session) -> None:
    talk(call, 12)
    before = list(call.events())
    call.compact(lambda _: "s", keep_last=2)
    assert list(call.events())[:12] == before
    assert call.window(leaf=11) == [user(f"m{number}") for number in range(12)]


def test_a_compaction_of_a_compaction(call: Session) -> None:
    talk(call, 10)
    call.compact(lambda _: "first", keep_last=4, data={"who": "me"}, trigger="full")
    talk(call, 6, 10)
    given: list[Any] = []
    call.compact(lambda messages: given.extend(messages) or "second", keep_last=2)  # type: ignore[func-returns-value]
    assert given[0] == summary_message("first")
    assert given[1:] == [user(f"m{number}") for number in range(6, 14)]
    assert call.window() == [summary_message("second"), user("m14"), user("m15")]
    assert call.event(10).body["data"]["who"] == "me"
    assert call.event(10).body["data"]["trigger"] == "full"
    with pytest.raises(UsageError, match="earlier"):
        call.compact(lambda _: "third", through=3)
    assert call.compact(lambda _: "third", keep_last=2) is None
    assert call.compact(lambda _: "third", keep_last=0) is not None
    assert call.window() == [summary_message("third")]


def test_what_is_kept_beside_the_last(call: Session) -> None:
    talk(call, 10)
    call.compact(lambda _: "s", through=7, keep=[2, 5])
    assert shown(call) == [10, 2, 5, 8, 9]
    assert shown(call, last=4) == [2, 5, 8, 9]
    assert shown(call, last=3) == [5, 8, 9]
    assert call.window_entries(last=4).is_cut
    assert shown(call, exchanges=3) == [5, 8, 9]
    assert shown(call, exchanges=9)[0] == 10
    talk(call, 3, 10)
    call.compact(lambda _: "t", keep_last=2)
    assert shown(call)[1:] == [12, 13]


def test_nothing_to_summarise(store: Store, call: Session) -> None:
    def never(_: Any) -> str:
        raise AssertionError("there was nothing")

    with pytest.raises(SessionNotFoundError):
        call.compact(never)
    call.update_state({"a": 1}).result()
    assert call.compact(never) is None
    talk(call, 8)
    assert call.compact(never) is None
    assert call.compact(never, keep_last=99) is None
    assert call.compaction() is None


def never(_: Any) -> str:
    raise AssertionError("the summary was paid")


BAD_ARGUMENTS: list[tuple[type[Exception], dict[str, Any], str]] = [
    (UsageError, {"summarize": "s"}, "summarize"),
    (UsageError, {"summarize": None}, "summarize"),
    (UsageError, {"count": 5}, "count"),
    (UsageError, {"data": "abc"}, "data"),
    (UsageError, {"data": [("a", 1)]}, "data"),
    (InvalidMessageError, {"data": {"x": object()}}, "x"),
    (InvalidMessageError, {"data": {"x": {"y": [1, {2}]}}}, "y"),
    (UsageError, {"strategy": object()}, "strategy"),
    (UsageError, {"strategy": 5}, "strategy"),
    (UsageError, {"trigger": None}, "trigger"),
    (UsageError, {"keep": "3"}, "keep"),
    (UsageError, {"keep": 3}, "keep"),
    (UsageError, {"keep": [3, -1]}, "keep"),
    (UsageError, {"keep": [3, 1.0]}, "keep"),
    (UsageError, {"keep": [3, 999, 4]}, "999"),
    (UsageError, {"keep": [999], "through": 5}, "999"),
    (UsageError, {"keep": [3, 6], "through": 5}, "6"),
    (UsageError, {"keep": [3, 14]}, "14"),  # on another branch
    (UsageError, {"keep": [3, 14], "through": 15}, "14"),
    (UsageError, {"keep": [0]}, "0"),  # purged
    (InvalidMessageError, {"keep": [3] * 10_001}, "keep"),
    (UsageError, {"through": 14}, "14"),
    (UsageError, {"through": "5"}, "through"),
    (UsageError, {"keep_last": -1}, "keep_last"),
]


@pytest.mark.parametrize(("error", "options", "named"), BAD_ARGUMENTS)
def test_what_cannot_be_is_refused_before_the_summary_is_paid(
    call: Session, error: type[Exception], options: dict[str, Any], named: str
) -> None:
    talk(call, 14)
    put(call, user("aside"))
    call.append(user("on"), parent=13).result()
    call.purge(1).result()
    options = {"summarize": never, **options}
    with pytest.raises(error) as refused:
        call.compact(**options)
    assert named in f"{refused.value} {getattr(refused.value, 'path', '')}"
    with pytest.raises(error):
        asyncio.run(call.compact_async(**options))
    assert call.compaction() is None


def test_what_is_kept_may_be_above_a_bound_that_the_store_chose(call: Session) -> None:
    talk(call, 12)
    done = call.compact(lambda _: "s", keep_last=3, keep=(each for each in (10, 2)))  # type: ignore[arg-type]
    assert done is not None
    assert (done.through, done.message_count) == (8, 8)
    assert call.event(12).body["data"]["keep"] == [2]
    assert shown(call) == [12, 2, 9, 10, 11]


@pytest.mark.parametrize("is_covered", [False, True])
@pytest.mark.parametrize("keep", [[1], [2], [3], [1, 3]])
def test_what_is_kept_of_a_tool_group_is_all_of_it(
    call: Session, keep: list[int], is_covered: bool
) -> None:
    """A call that was kept lost its result, which was neither summarised nor in view.

    The window said that the call was not completed; with its result kept the summariser was told
    so. That holds too where an earlier summary stands for them.
    """
    group = [asks("c1", "c2"), answers("c1"), answers("c2")]
    put(call, user("u0"), *group, says("a"), user("u1"), user("u2"))
    if is_covered:
        call.compact(lambda _: "earlier", keep_last=2)
    told: list[Any] = []
    done = call.compact(lambda messages: told.extend(messages) or "s", keep_last=1, keep=keep)  # type: ignore[func-returns-value]
    assert done is not None
    assert call.window() == [summary_message("s"), *group, user("u2")]
    talked = [summary_message("earlier")] if is_covered else [user("u0"), says("a")]
    assert told == [*talked, user("u1")]
    event = call.compaction()
    assert event is not None
    assert event.body["data"]["keep"] == [*keep, *[each for each in (1, 2, 3) if each not in keep]]


def test_groups_that_one_message_answers_are_kept_together(call: Session) -> None:
    """Each result that stays in view needs its call, and each call all its results."""
    calls, results = CALLS["anthropic"], RESULTS["anthropic"]
    both = {"role": "user", "content": results("c1")["content"] + results("c2")["content"]}
    group = [calls("c1"), calls("c2"), both]
    put(call, user("u0"), *group, calls("c1"), results("c1"), says("a"), user("u1"))
    told: list[Any] = []
    call.compact(lambda messages: told.extend(messages) or "s", keep_last=1, keep=[1])  # type: ignore[func-returns-value]
    assert told == [user("u0"), calls("c1"), results("c1"), says("a")]
    assert call.window() == [summary_message("s"), *group, user("u1")]


def test_a_counter_that_is_none_is_refused_by_windows(call: Session) -> None:
    talk(call, 2)
    for count in (5, "x"):
        for limits in ({}, {"last": 1}, {"tokens": 3}):
            options: dict[str, Any] = {"count": count, **limits}
            for way in (call.window, call.window_entries):
                with pytest.raises(UsageError, match="count"):
                    way(**options)


def test_what_is_appended_while_the_summariser_runs_follows(call: Session) -> None:
    """A compaction deleted what was appended while the model summarised (openai-agents #3116).

    It cleared the session and wrote it anew from what it had read before. Here it only appends.
    """
    talk(call, 12)
    started, go = threading.Event(), threading.Event()

    def slow(_: Any) -> str:
        started.set()
        assert go.wait(HANG_S)
        return "s"

    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(call.compact(slow, keep_last=3)))
    thread.start()
    assert started.wait(HANG_S)
    talk(call, 2, 12)
    go.set()
    thread.join(HANG_S)
    assert done[0].sequence == 14
    assert shown(call) == [14, 9, 10, 11, 12, 13]
    assert [event.sequence for event in call.path_events()] == list(range(15))


@pytest.mark.parametrize("given", [RuntimeError("model"), "", "  ", None, b"s"])
def test_when_the_summariser_fails_nothing_changed(call: Session, given: Any) -> None:
    """A summariser that failed left an empty session behind (openai-agents #4679).

    The items had been cleared before it was asked.
    """
    talk(call, 12)
    before = list(call.events())

    def summarize(_: Any) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    with pytest.raises((RuntimeError, UsageError)):
        call.compact(summarize)
    assert list(call.events()) == before
    assert len(call.window()) == 12


def test_another_branch_was_checked_out_meanwhile(call: Session) -> None:
    talk(call, 12)

    def elsewhere(_: Any) -> str:
        call.append(user("other"), parent=1).result()
        return "s"

    with pytest.raises(AppendConflictError):
        call.compact(elsewhere, keep_last=3)
    assert shown(call) == [0, 1, 12]
    assert len(list(call.events())) == 13


def test_a_branch_after_what_it_covers_does_not_hinder(call: Session) -> None:
    talk(call, 12)

    def elsewhere(_: Any) -> str:
        call.append(user("other"), parent=10).result()
        return "s"

    done = call.compact(elsewhere, keep_last=3)
    assert done is not None and done.through == 8
    assert shown(call) == [13, 9, 10, 12]
    assert shown(call, leaf=11) == list(range(12))  # it is on the other branch


def test_a_session_made_anew_meanwhile_is_another_one(call: Session) -> None:
    """That it was deleted was told as an event of another session, which nobody had named."""
    talk(call, 12)

    def anew(_: Any) -> str:
        call.delete().result()
        talk(call, 20)
        return "s"

    with pytest.raises(SessionGoneError, match="was deleted"):
        call.compact(anew)
    assert len(call.window()) == 20

    def gone(_: Any) -> str:
        call.delete().result()
        return "s"

    with pytest.raises(SessionGoneError, match="was deleted"):
        call.compact(gone)
    assert not call.exists


def test_what_was_redacted_meanwhile_is_in_no_summary(store: Store, call: Session) -> None:
    """A summary was appended after a redaction of what it was made of.

    The redaction's receipt, which names the summaries that may tell of it, could not name that one.
    """
    talk(call, 12)
    with pytest.raises(AppendConflictError, match=r"event 2 .* was redacted"):
        call.compact(lambda _: str(call.redact(2, 2)), keep_last=4)

    async def summarize(_: Any) -> str:
        return str(await call.redact_async(3, 3))

    with pytest.raises(AppendConflictError, match=r"event 3 .* was redacted"):
        asyncio.run(call.compact_async(summarize, keep_last=4))
    assert call.compaction() is None
    assert call.compact(lambda _: "first", keep_last=4) is not None  # of what is left
    talk(call, 4)
    with pytest.raises(AppendConflictError, match=r"event 0 .* was redacted"):
        call.compact(lambda _: str(call.redact(0, 0)), keep_last=4)  # of which the first one tells
    assert call.compact(lambda _: "second", keep_last=4) is not None


def test_other_removals_while_it_is_summarised_do_not_hinder(store: Store, call: Session) -> None:
    talk(call, 12)
    call.redact(2, 3)
    other = store.session("other")
    talk(other, 4)

    def removing(_: Any) -> str:
        other.redact(0, 1)
        other.delete().result()
        call.redact(9, 9)  # in view, whatever the summary says
        call.redact(3, 3)  # again
        return "s"

    assert call.compact(removing, keep_last=4) is not None
    assert call.window() == [summary_message("s"), user("m8"), user("m10"), user("m11")]


@pytest.mark.parametrize("is_covered", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_redacted_just_before_the_append_is_found(
    store: Store,
    call: Session,
    monkeypatch: pytest.MonkeyPatch,
    is_covered: bool,
    is_async: bool,
) -> None:
    """The append itself is refused when something was removed since the last look."""
    talk(call, 12)
    real, acks = store._submit, []

    def submit(ack: Any, wait: Any) -> None:
        acks.append(ack)
        if len(acks) == 1:
            call.redact(*((2, 2) if is_covered else (11, 11)))
        real(ack, wait)

    def compact() -> Any:
        if is_async:
            return asyncio.run(call.compact_async(lambda _: "s", keep_last=4))
        return call.compact(lambda _: "s", keep_last=4)

    monkeypatch.setattr(store, "_submit", submit)
    if is_covered:
        with pytest.raises(AppendConflictError, match=r"event 2 .* was redacted"):
            compact()
        assert call.compaction() is None
    else:
        assert compact().through == 7
        assert len(acks) == 3  # two of the compaction, and what says that it was redacted


def test_from_an_event_loop(call: Session) -> None:
    talk(call, 12)

    async def slow(messages: list[Any]) -> str:
        await asyncio.gather(*[call.append(user(f"n{each}")) for each in range(3)])
        return f"{len(messages)} messages"

    async def main() -> Any:
        return await call.compact_async(slow, keep_last=4)

    done = asyncio.run(main())
    assert (done.summary, done.through, done.sequence) == ("8 messages", 7, 15)
    assert len(call.window()) == 1 + 4 + 3
    plain = asyncio.run(call.compact_async(lambda messages: "again", keep_last=1))
    assert plain is not None and call.window() == [summary_message("again"), user("n2")]
    assert asyncio.run(call.compaction_async()) == call.compaction()
    assert asyncio.run(call.compact_async(lambda _: "", keep_last=1)) is None


def test_a_cancelled_summariser_leaves_nothing(call: Session) -> None:
    talk(call, 12)

    async def main() -> None:
        started = asyncio.Event()

        async def for_ever(_: Any) -> str:
            started.set()
            await asyncio.Event().wait()
            return "never"

        task = asyncio.ensure_future(call.compact_async(for_ever))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(list(call.events())) == 12


def test_two_at_once(call: Session) -> None:
    """The last one counts; neither undoes what the other one summarised."""
    talk(call, 20)

    def inner(_: Any) -> str:
        assert call.compact(lambda _: "inner", keep_last=5) is not None
        return "outer"

    call.compact(inner, keep_last=10)
    assert call.window()[0] == summary_message("outer")
    assert len(call.window()) == 11


# Bounds


@pytest.mark.parametrize("shape", CALLS)
@pytest.mark.parametrize("keep_last", range(8))
def test_a_bound_never_cuts_a_tool_group(call: Session, shape: str, keep_last: int) -> None:
    put(call, user("u0"), CALLS[shape]("c1"), RESULTS[shape]("c1"), says("a0"))
    put(call, user("u1"), CALLS[shape]("c2"), RESULTS[shape]("c2"), says("a1"))
    before = call.window()
    done = call.compact(lambda _: "s", keep_last=keep_last)
    assert done is not None and done.through not in (1, 5)
    window = call.window()
    assert window == [summary_message("s"), *before[done.through + 1 :]]
    assert len(window) - 1 in (keep_last, keep_last + 1)


def test_a_bound_given_that_cuts_a_tool_group_is_refused(call: Session) -> None:
    put(call, user("u0"), asks("c1", "c2"), answers("c1"), user("and?"), answers("c2"), says("a"))
    for through in (1, 2, 3):
        with pytest.raises(UsageError, match="tool group"):
            call.compact(lambda _: "s", through=through)
    with pytest.raises(UsageError, match="not on the path"):
        call.compact(lambda _: "s", through=17)
    assert call.compact(lambda _: "s", through=4) is not None
    assert call.window() == [summary_message("s"), says("a")]


def test_a_pending_call_is_not_swallowed(call: Session) -> None:
    """A compaction took a call that waited for its result along (adk-python #4740, #6179).

    The result then came to a history that had no such call. No bound is behind an open call.
    """
    talk(call, 4)
    put(call, asks("c1"), user("are you there?"), says("one moment"))
    done = call.compact(lambda _: "s", keep_last=0, running={"c1"})
    assert done is not None and done.through == 3
    put(call, answers("c1"), says("here"))
    assert call.window()[1:3] == [asks("c1"), answers("c1")]


def test_without_being_told_an_unanswered_call_is_open_until_the_model_went_on(
    call: Session,
) -> None:
    talk(call, 4)
    put(call, asks("c1"))
    done = call.compact(lambda _: "s", keep_last=0)
    assert done is not None and done.through == 3
    put(call, user("never mind"))
    with pytest.raises(ConflictError):
        call.compact(lambda _: "s", keep_last=0)
    put(call, says("fine"))
    given: list[Any] = []
    done = call.compact(lambda messages: given.extend(messages) or "t", keep_last=0)  # type: ignore[func-returns-value]
    assert done is not None and done.through == 7
    assert [each.get("tool_call_id") for each in given] == [None, None, "c1", None, None]


def test_an_open_call_that_is_in_the_way_is_named(store: Store, call: Session) -> None:
    """One call that was never closed stopped every later compaction, and nothing said why.

    `compact` gave None, as with nothing to summarise.
    """

    def never(_: Any) -> str:
        raise AssertionError("a call is open")

    talk(call, 2)
    call.compact(lambda _: "s", keep_last=0)
    put(call, asks("c1"))
    call.tool_calls.open("c1", "lookup").result()
    talk(call, 12)
    opened = next(event.sequence for event in call.events() if event.body == asks("c1"))
    before = store.last_position
    with pytest.raises(ConflictError, match=f"tool call 'c1' of event {opened} ") as caught:
        call.compact(never, keep_last=2)
    assert caught.value.current == "c1" and "running" in caught.value.hint
    with pytest.raises(ConflictError, match="'c1'"):
        asyncio.run(call.compact_async(never, keep_last=2))
    assert call.compact(never, keep_last=99) is None  # there is nothing but what is kept
    assert store.last_position == before
    assert call.compact(lambda _: "t", keep_last=2, running=[]) is not None


def test_a_summary_to_be_awaited_is_refused_before_anything(store: Store, call: Session) -> None:
    """It was a summariser that gave no text, and a coroutine that nobody awaited."""
    asked: list[int] = []

    async def summarize(_: Any) -> str:
        asked.append(1)
        return "s"

    talk(call, 12)
    before = store.last_position
    for given in (summarize, lambda messages: summarize(messages)):
        with pytest.raises(UsageError) as caught:
            call.compact(given)  # type: ignore[arg-type]
        assert "compact_async" in caught.value.hint
    assert (store.last_position, asked) == (before, [])
    assert asyncio.run(call.compact_async(summarize)) is not None


def test_what_views_say_of_themselves_is_documented(call: Session) -> None:
    assert SUMMARY_PREFIX.strip() in (Session.window.__doc__ or "")
    assert SUMMARY_PREFIX.strip() in (Session.compact.__doc__ or "")
    assert NO_RESULT in " ".join((Session.window.__doc__ or "").split())


# What is none


BAD: list[Any] = [
    {"summary": "", "data": {}},
    {"summary": "  ", "data": {"through": 1}},
    {"summary": 5, "data": {"through": 1}},
    {"summary": "s", "data": []},
    {"summary": "s", "data": {"through": -1}},
    {"summary": "s", "data": {"through": 1.0}},
    {"summary": "s", "data": {"throughEntryId": ""}},
    {"summary": "s", "data": {"through": 1, "keep": "0"}},
    {"summary": "s", "data": {"through": 1, "keepEntryIds": [None]}},
    {"data": {"through": 1}},
]


@pytest.mark.parametrize("body", BAD)
def test_a_bad_compaction_is_refused_and_where_there_is_one_ignored(
    store: Store, body: Any
) -> None:
    call = store.session("call")
    talk(call, 4)
    with pytest.raises(InvalidMessageError):
        call.append_event("compaction", body)
    with pytest.raises(InvalidMessageError):
        call.draft(events=[("compaction", body)])
    good = {"summary": "good", "data": {"through": 1}}
    call.append_event("compaction", good).result()
    store.load([{"session": "call", "sequence": 5, "kind": "compaction", "body": body}])
    assert call.window() == [summary_message("good"), user("m2"), user("m3")]
    assert call.compaction() == call.event(4)


def test_the_last_event_that_it_covers_must_be_on_the_path(store: Store) -> None:
    call, other = store.session("call"), store.session("other")
    talk(call, 6)
    talk(other, 6)
    other.append(user("mine"), id="mine").result()
    call.append(user("branch"), parent=2, id="leaf").result()
    for through in (3, 5, 7, 99, "mine", "nobody", other.event(1).event_id):
        for key in ("through", "throughEntryId"):
            with pytest.raises(AppendConflictError):
                body = {"summary": "s", "data": {key: through}}
                call.append_event("compaction", body).result()
    assert len(list(call.events())) == 7
    call.append_event("compaction", {"summary": "s", "data": {"through": 3}}, parent=5).result()
    assert shown(call) == [7, 4, 5]
    call.append_event("compaction", {"summary": "t", "data": {"through": 2}}, parent=6).result()
    assert shown(call) == [8, 6]
    call.append_event("compaction", {"summary": "u", "data": {"through": "leaf"}}).result()
    assert shown(call) == [9]
    call.append_event("compaction", {"summary": "v", "data": {}}).result()
    assert shown(call) == [10, 0, 1, 2, 6]
    store.flush()
    for through in (4, 5):
        with pytest.raises(AppendConflictError):
            call.append_event("compaction", {"summary": "s", "data": {"through": through}}).result()


def test_what_is_sealed_is_looked_up(checked_store: Open) -> None:
    with checked_store() as store:
        call = store.session("call")
        many = [user(f"m{number} " + "word " * 40) for number in range(4_000)]
        call.append_many(many[:2_000]).result()
        call.append_many(many[2_000:], parent=999).result()
        store.flush()
    store = checked_store()
    call = store.session("call")
    assert call.info().unsealed_count == 0  # type: ignore[union-attr]
    for through in (1_000, 1_500, 1_999, 4_000):
        with pytest.raises(AppendConflictError):
            call.append_event("compaction", {"summary": "s", "data": {"through": through}}).result()
    for through in (999, 500, 2_000, 3_990):
        call.append_event("compaction", {"summary": "s", "data": {"through": through}}).result()
    assert shown(call)[1:] == list(range(3_991, 4_000))
    side = {"summary": "s", "data": {"through": 1_990, "keep": [5, 1_000, 1_700, 2_500]}}
    call.append_event("compaction", side, parent=1_999).result()
    assert shown(call)[1:] == [5, 1_000, 1_700, *range(1_991, 2_000)]


def test_a_compaction_outlives_the_purge_of_what_it_covers(call: Session) -> None:
    talk(call, 12)
    call.compact(lambda _: "s", through=8, keep=[3])
    call.purge(6).result()
    assert shown(call) == [12, 9, 10, 11]
    call.purge(11).result()
    assert shown(call) == [12, 11]

    def purged(_: Any) -> str:
        talk(call, 1)
        call.purge(14).result()
        return "t"

    with pytest.raises(TrimmedError):
        call.compact(purged, keep_last=0)


def test_one_that_names_an_event_of_another_path_is_ignored(store: Store) -> None:
    """Of a compaction whose boundary was not on its branch only the kept entries survived (Prism).

    Appends refuse it; where an import brought one, views are what they were without it.
    """
    call = store.session("call")
    talk(call, 6)
    call.append(user("m6"), parent=2).result()
    good = {"summary": "good", "data": {"through": 1}}
    call.append_event("compaction", good).result()
    for sequence, through in enumerate([4, "nobody", "ff.0000000001", 99], 8):
        body = {"summary": "bad", "data": {"through": through, "keep": [0]}}
        line = {"session": "call", "sequence": sequence, "kind": "compaction", "body": body}
        store.load([{**line, "parent": sequence - 1}])
        assert shown(call) == [7, 2, 6]
        assert call.compaction() == call.event(7)


def test_what_was_trimmed_stays_out_of_the_view_of_a_compaction(checked_store: Open) -> None:
    call = checked_store().session("call", snapshot_frequency=10, max_messages=4)
    talk(call, 10)
    body = {"summary": "s", "data": {"through": 3, "keep": [1, 2]}}
    call.append_event("compaction", body).result()
    assert shown(call) == [10, 6, 7, 8, 9]
    assert shown(call, last=4) == [6, 7, 8, 9]
    body = {"summary": "s", "data": {"through": 8, "keep": [1, 7]}}
    call.append_event("compaction", body).result()
    assert shown(call) == [11, 7, 9]


def test_it_may_cover_what_is_appended_with_it(store: Store) -> None:
    call = store.session("call")
    body = {"summary": "s", "data": {"through": 1}}
    part = call.draft([user("m0"), user("m1")], events=[("compaction", body)])
    store.append_batch([part]).result()
    assert call.window() == [summary_message("s")]
    part = call.draft(events=[("compaction", {"summary": "s", "data": {"through": 3}})])
    with pytest.raises(AppendConflictError):
        store.append_batch([part]).result()


@pytest.mark.parametrize("names", ["sequences", "ids", "callers"])
def test_events_are_named_by_sequences_and_ids(store: Store, names: str) -> None:
    call = store.session("call")
    for number in range(12):
        call.append(user(f"m{number}"), id=f"e{number}").result()

    def name(sequence: int) -> int | str:
        if names == "ids":
            return f"{call.info().number:x}.{sequence:010d}"  # type: ignore[union-attr]
        return sequence if names == "sequences" else f"e{sequence}"

    data = {"throughEntryId": name(8), "keepEntryIds": [name(3), name(10), name(6)]}
    call.append_event("compaction", {"summary": "s", "data": data}).result()
    talk(call, 1, 12)
    assert shown(call) == [12, 3, 6, 9, 10, 11, 13]
    store.flush()
    assert shown(call) == [12, 3, 6, 9, 10, 11, 13]


def test_an_event_of_that_kind_that_says_nothing_of_it_is_none(call: Session) -> None:
    talk(call, 3)
    for body in (None, [1], {"of": "compaction"}):
        call.append_event("compaction", body).result()
    assert shown(call) == [0, 1, 2]


def test_in_a_store_of_version_1(checked_store: Open, store_path: Path) -> None:
    old_store.make(store_path)
    with Store.open(store_path) as store:
        call = store.session("compacted")
        talk(call, 12)
        assert call.compact(lambda _: "s", keep_last=2) is not None
        assert call.window() == [summary_message("s"), user("m10"), user("m11")]


def test_a_summary_is_not_paid_for_again(checked_store: Open, tmp_path: Path) -> None:
    """Reductions lived in memory only, and were summarised again after each start (strands #4270).

    A compaction is an event, so it is there for whoever opens the store, also from an export.
    """
    with checked_store() as store:
        call = store.session("call")
        talk(call, 12)
        call.compact(lambda _: "s", keep_last=2)
        window = call.window()
    store = checked_store()
    assert store.session("call").window() == window
    lines = [json.loads(line) for line in store.export_lines(store.session("call").events())]
    other = checked_store(tmp_path / "other")
    other.load(lines)
    assert other.session("call").window() == window


# Overflow


def test_what_was_trimmed_can_be_fetched_again(checked_store: Open) -> None:
    """Trimmed messages were handed out once, and a crash lost them before they were summarised."""
    with checked_store() as store:
        call = store.session("call", snapshot_frequency=5, max_messages=3)
        assert list(call.overflow()) == []
        talk(call, 4)
        assert list(call.overflow()) == []
        talk(call, 13, 4)
    call = checked_store().session("call")
    assert call.history()[0] == user("m12")

    def texts(after: int | None = None) -> list[str]:
        return [event.body["content"] for event in call.overflow(after)]

    assert texts() == [f"m{number}" for number in range(12)]
    assert texts(6) == [f"m{number}" for number in range(7, 12)]
    assert texts(11) == []
    given: list[Any] = []
    call.compact(lambda messages: given.extend(messages) or "s", through=9)  # type: ignore[func-returns-value]
    assert given == [user(f"m{number}") for number in range(10)]
    assert texts() == ["m10", "m11"]
    assert texts(-1) == [f"m{number}" for number in range(12)]

    async def fetch() -> list[str]:
        return [event.body["content"] async for event in call.overflow()]

    assert asyncio.run(fetch()) == texts()
    with pytest.raises(UsageError):
        call.overflow(-2)


def test_overflow_is_of_the_path_to_the_head(checked_store: Open) -> None:
    call = checked_store().session("call", snapshot_frequency=4, max_messages=2)
    talk(call, 8)
    call.append(user("branch"), parent=2).result()
    talk(call, 3, 9)
    whole = [event.body for event in call.path_events()]
    assert [event.body for event in call.overflow()] + call.history() == whole


# A real session


@pytest.mark.corpus
def test_the_context_of_a_real_session_is_summary_and_kept_entries(
    checked_store: Open, corpus: Path
) -> None:
    with tarfile.open(corpus / "pi-session-compaction" / "data.tar.xz", "r:xz") as files:
        found = files.extractfile("before-compaction.jsonl")
        assert found is not None
        lines = [json.loads(line) for line in found]
    store = checked_store()
    call = store.session("pi")
    kinds = {"message": "message", "model_change": "model_change"}
    compacted: list[int] = []
    for place, line in enumerate(lines):
        if line["type"] == "compaction":
            compacted.append(place)
            data = {"through": line["firstKeptEntryIndex"] - 1, "trigger": "auto"}
            call.append_event("compaction", {"summary": line["summary"], "data": data})
        else:
            body = line.get("message", line)
            call.append_event(kinds.get(line["type"], "custom"), body)
    store.flush()
    assert len(compacted) == 2
    for place in compacted:
        line = lines[place]
        kept = [
            each["message"]
            for each in lines[line["firstKeptEntryIndex"] : place]
            if each["type"] == "message"
        ]
        context = call.window(leaf=place, repair=False)
        assert context == [summary_message(line["summary"]), *kept]
        repaired = call.window_entries(leaf=place)
        assert [e.body for e in repaired.entries if e.synthetic != "result"] == context
        assert call.compaction(place) == call.event(place)
    last = compacted[-1]
    rest = [
        each["message"]
        for each in lines[lines[last]["firstKeptEntryIndex"] :]
        if each["type"] == "message"
    ]
    assert call.window(repair=False) == [summary_message(lines[last]["summary"]), *rest]
    assert call.window(tokens=20_000) == call.window()[-len(call.window(tokens=20_000)) :]
