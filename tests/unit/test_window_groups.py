"""Windows over messages that call and answer in every way: each is one that a model API takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count as numbers
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import ConflictError, Session, Store, UsageError
from tests.unit.test_window import answers, asks, put, says, user

Message = dict[str, Any]
HANG_S = 60.0
COST = 10  # tokens of each message that comes without


@pytest.fixture
def call(store: Store) -> Session:
    return store.session("call")


def uses(*ids: str) -> Message:
    blocks = [{"type": "tool_use", "id": each, "name": "look", "input": {}} for each in ids]
    return {"role": "assistant", "content": blocks}


def results(*ids: str, more: str = "") -> Message:
    blocks = [{"type": "tool_result", "tool_use_id": each, "content": "found"} for each in ids]
    return {"role": "user", "content": blocks + ([{"type": "text", "text": more}] if more else [])}


def odd(answered: str, called: str, content: Any) -> Message:
    """A result that also calls."""
    told = {"role": "tool", "tool_call_id": answered, "tool_calls": [{"id": called}]}
    return told if content is ... else {**told, "content": content}


def made_by(message: Message) -> list[str]:
    """Ids of the calls of a message."""
    content = message.get("content")
    found = [each["id"] for each in message.get("tool_calls", ())]
    blocks = content if isinstance(content, list) else []
    return found + [each["id"] for each in blocks if each.get("type") == "tool_use"]


def answered_by(message: Message) -> list[str]:
    """Ids of the calls that a message answers."""
    if "tool_call_id" in message:
        return [message["tool_call_id"]]
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [each["tool_use_id"] for each in blocks if each.get("type") == "tool_result"]


def unpaired(messages: list[Message], running: set[str]) -> list[str]:
    """Results without a call before them, and calls without a result."""
    found: list[str] = []
    known: set[str] = set()
    waiting: set[str] = set()
    for message in messages:
        found += [f"result {each}" for each in answered_by(message) if each not in known]
        waiting.difference_update(answered_by(message))
        found += [f"call {each}" for each in made_by(message) if each in waiting - running]
        known.update(made_by(message))
        waiting.update(made_by(message))
    return found + [f"call {each}" for each in waiting - running]


def test_a_message_that_answers_several_calls_stays_behind_all_of_them(call: Session) -> None:
    """It stood behind the call that its last block answered, and so before a call of another block.

    A result before its call makes a model API refuse the whole window.
    """
    bodies = [uses("c1"), uses("c2"), results("c2", "c1")]
    put(call, *bodies, says("a"))
    assert call.window() == [*bodies, says("a")]
    assert call.window(repair=False) == call.window()


@pytest.mark.parametrize("order", [("c1", "c2"), ("c2", "c1")])
def test_a_message_loses_the_results_of_calls_that_a_limit_cut_off(
    call: Session, order: tuple[str, str]
) -> None:
    """The limit cut off a group, and what answered its call elsewhere stayed, without a call.

    Or the message went with that group, and another call had no result, not even a synthetic one.
    """
    put(call, uses("c1"), uses("c2", "c3"), results(*order), tokens=COST)
    for limits in ({"tokens": 3 * COST}, {"last": 3}):
        window = call.window_entries(count=lambda _: COST, **limits)  # type: ignore[arg-type]
        assert [entry.synthetic for entry in window.entries] == [None, "changed", "result"]
        assert window.messages[:2] == [uses("c2", "c3"), results("c2")]
        assert window.is_cut and window.tokens == 3 * COST
    newest = call.window_entries(tokens=1, at_least_one=True, running=["c3"])
    assert newest.messages == [uses("c2", "c3"), results("c2")]
    assert call.event(2).body == results(*order)


def test_what_loses_results_has_no_more_tokens_than_before(call: Session) -> None:
    """Its stored tokens were forgotten, so that a message could grow over the limit by shrinking.

    A count that says more of less is not believed.
    """
    put(call, uses("c1"), tokens=9)
    put(call, uses("c2"), results("c1", "c2"), tokens=1)
    window = call.window_entries(tokens=2, count=lambda _: 50)
    assert window.messages == [uses("c2"), results("c2")]
    assert window.tokens == 2


def test_synthetic_results_count_as_messages(call: Session) -> None:
    """``last`` was exceeded by the results that the view made: one message, and three were given.

    Only tokens had been counted again once they were there.
    """
    put(call, user("u0"), asks("c1", "c2"))
    for last in range(3):
        window = call.window_entries(last)
        assert window.entries == [] and window.is_cut
    assert len(call.window(3)) == 3
    assert len(call.window(1, at_least_one=True)) == 3  # its whole group
    assert call.window(1, running=["c1", "c2"]) == [asks("c1", "c2")]
    put(call, user("u1"))
    assert call.window(3) == [user("u1")]
    assert len(call.window(4)) == 4


@pytest.mark.parametrize("content", [..., None, "hello", 5, {"a": 1}, [], ["x", {"type": "text"}]])
def test_a_result_that_also_calls_stops_no_window(call: Session, content: Any) -> None:
    """Its content was taken for a list of blocks: windows and compactions raised from then on.

    Where it was a text, it came out as the list of its characters.
    """
    put(call, odd("gone", "q", content), user("go on"))
    window = call.window_entries()
    assert [entry.synthetic for entry in window.entries] == ["changed", "result", None]
    expected = odd("gone", "q", content)
    del expected["tool_call_id"]
    assert window.messages[0] == expected
    assert call.window(media=False, tokens=10_000) == window.messages
    assert call.compact(lambda _: "s", keep_last=0, running=[]) is not None


WRONG: list[Any] = [None, "7", [], -5, float("nan"), 1.5, True, 2**63, 10**5_000]


@pytest.mark.parametrize("given_", WRONG, ids=[str(place) for place in range(len(WRONG))])
def test_a_count_that_is_no_count(call: Session, given_: Any) -> None:
    """What ``count`` gave was believed or raised TypeError; in ``compact`` after the summary."""

    def never(_: Any) -> str:
        raise AssertionError("the summary was paid")

    def wrong(_: Any) -> Any:
        return given_

    put(call, user("u0"), user("u1"))
    calls: list[Callable[[], Any]] = [
        lambda: call.window(tokens=100, count=wrong),
        lambda: call.window_entries(count=wrong),
        lambda: call.compact(never, keep_last=1, count=wrong),
    ]
    for each in calls:
        with pytest.raises(UsageError, match="what count gives"):
            each()
    assert len(call.window(last=2, count=wrong)) == 2  # nobody asks


def test_a_wrong_count_is_found_before_the_summary_where_all_have_tokens(call: Session) -> None:
    """It was asked for the first time for the summary, which was paid by then."""
    put(call, user("u0"), user("u1"), tokens=3)
    paid: list[int] = []
    with pytest.raises(UsageError, match="what count gives"):
        call.compact(lambda _: paid.append(1) or "s", keep_last=1, count=lambda _: -1)  # type: ignore[func-returns-value]
    assert paid == []


names = st.sampled_from(["a", "b", "c", "d"])
several = st.lists(names, min_size=1, max_size=3, unique=True)
messages = st.lists(
    st.one_of(
        st.sampled_from([user("u"), says("s")]),
        several.map(lambda ids: asks(*ids)),
        several.map(lambda ids: uses(*ids)),
        names.map(answers),
        st.builds(lambda ids, more: results(*ids, more=more), several, st.sampled_from(["", "t"])),
        st.builds(odd, names, names, st.sampled_from([..., None, "text", []])),
    ),
    max_size=14,
)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Store.open(tmp_path_factory.mktemp("groups") / "store") as store:
        yield store, numbers()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bodies=messages,
    tokens=st.lists(st.sampled_from([None, 3, 25]), min_size=14, max_size=14),
    running=st.sets(names, max_size=1),
    compacted=st.none() | st.integers(0, 6),
)
def test_whatever_calls_and_answers_a_window_is_whole(
    wide: Any,
    bodies: list[Message],
    tokens: list[int | None],
    running: set[str],
    compacted: int | None,
) -> None:
    """A result follows its call, a call has a result or runs, and no limit is exceeded."""
    store, number = wide
    call = store.session(f"s{next(number)}")
    acks = [call.append(each, tokens=own) for each, own in zip(bodies, tokens, strict=False)]
    for ack in acks:
        ack.result(HANG_S)
    if compacted is not None and bodies:
        told: list[Message] = []
        kept = [compacted % len(bodies), len(bodies) // 2]
        with suppress(ConflictError):  # a call runs
            call.compact(
                lambda given: told.extend(given) or "s",  # type: ignore[func-returns-value]
                keep_last=compacted,
                keep=kept,
                running=running,
            )
        assert unpaired(told, running) == []
    for last in (None, *range(8)):
        for budget in (None, 9, 30, 60):
            for at_least_one in (False, True):
                window = call.window_entries(
                    last,
                    tokens=budget,
                    running=running,
                    count=lambda _: COST,
                    at_least_one=at_least_one,
                )
                assert unpaired(window.messages, running) == [], (last, budget)
                plain = call.window(
                    last,
                    tokens=budget,
                    running=running,
                    count=lambda _: COST,
                    at_least_one=at_least_one,
                )
                assert plain == window.messages
                if at_least_one:
                    assert plain or not call.window(running=running)
                else:
                    assert last is None or len(plain) <= last
                    assert budget is None or window.tokens <= budget
