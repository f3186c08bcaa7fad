"""Windows: what a model should see, by messages, exchanges and tokens; whole tool groups only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Session, Store
from engine.estimate import estimate_tokens
from engine.modelview import summary_message
from engine.pathscan import PathScan
from engine.toolgroups import NO_RESULT, tools_of
from eventlog.errors import TrimmedError, UsageError
from eventlog.segmentcache import SegmentCache

Open = Callable[..., Store]
Message = dict[str, Any]


@pytest.fixture
def call(store: Store) -> Session:
    return store.session("call")


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def asks(*ids: str) -> Message:
    calls = [
        {"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for each in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def answers(call_id: str, text: str = "found") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def put(call: Session, *messages: Message, **options: Any) -> None:
    for message in messages:
        call.append(message, **options).result()


# Limits


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 4), ("abcd", 5), ("abcde", 6), ("你好", 6), ("ab你", 6), ("x" * 400, 104)],
)
def test_the_estimate_of_a_text(text: str, tokens: int) -> None:
    assert estimate_tokens(user(text)) == tokens


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "abcd"}]}, 5),
        ({"role": "user", "content": [{"type": "image", "data": "x" * 9_999}]}, 1_504),
        (answers("call-1", "abcd" * 10), 14),
        ({"role": "assistant", "content": None, "usage": {"input": 12_345}}, 4),
        ({"role": "user", "content": b"\x00" * 100}, 4),
        ({"role": "toolResult", "content": [{"type": "text", "text": "abcd"}], "details": "xx"}, 5),
        ("abcd", 5),
        (None, 4),
    ],
)
def test_the_estimate_of_a_message(message: Any, tokens: int) -> None:
    assert estimate_tokens(message) == tokens


@pytest.mark.parametrize("shape", ["openai", "agentium", "anthropic", "prism", "agentrail"])
def test_the_arguments_of_tool_calls_count(shape: str) -> None:
    few, many = CALLS[shape]("a", {"q": "x"}), CALLS[shape]("a", {"q": "x" * 400})
    assert estimate_tokens(many) - estimate_tokens(few) in range(95, 105)


def test_the_last_messages(call: Session) -> None:
    put(call, *[user(f"m{number}") for number in range(30)])
    assert call.window(last=3) == [user("m27"), user("m28"), user("m29")]
    assert len(call.window(last=30)) == len(call.window(last=99)) == len(call.window()) == 30
    assert call.window(last=0) == []
    assert call.window_entries(last=30).is_cut is False
    assert call.window_entries(last=29).is_cut is True


def test_a_window_of_nothing(store: Store) -> None:
    assert store.session("none").window(tokens=100) == []
    session = store.session("empty")
    session.create().result()
    assert session.window() == []
    session.update_state({"a": 1}).result()
    assert session.window(at_least_one=True) == []


@pytest.mark.parametrize("limit", [{"last": -1}, {"tokens": -1}, {"exchanges": -1}, {"last": 1.5}])
def test_a_limit_that_cannot_be(call: Session, limit: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        call.window(**limit)


def test_exchanges(call: Session) -> None:
    put(call, {"role": "system", "content": "be kind"})
    for number in range(4):
        put(call, user(f"u{number}"), says(f"a{number}"), says("more"))
    assert call.window(exchanges=1) == [user("u3"), says("a3"), says("more")]
    assert call.window(exchanges=2)[0] == user("u2")
    assert call.window(exchanges=4)[0] == user("u0")
    assert call.window(exchanges=5)[0]["role"] == "system"
    assert call.window(exchanges=0) == []
    assert call.window(exchanges=2, last=4)[0] == says("more")


def test_a_tool_result_in_a_message_of_the_user_begins_no_exchange(call: Session) -> None:
    put(call, user("u0"), says("a0"), user("u1"), CALLS["anthropic"]("c1"))
    put(call, RESULTS["anthropic"]("c1"), says("a1"))
    assert call.window(exchanges=1)[0] == user("u1")
    assert len(call.window(exchanges=1)) == 4


def test_tokens_are_those_stored_with_the_event(call: Session) -> None:
    for number in range(10):
        call.append(user("x" * 1_000), tokens=number + 1).result()
    window = call.window_entries(tokens=27)
    assert [entry.tokens for entry in window.entries] == [8, 9, 10]
    assert window.tokens == 27 and window.is_cut
    assert len(call.window(tokens=26)) == 2
    assert len(call.window(tokens=55)) == 10


def test_what_was_not_counted_is_estimated_or_counted_by_the_caller(call: Session) -> None:
    put(call, user("abcd" * 10), user("abcd" * 10))
    call.append(user("abcd" * 10), tokens=1).result()
    assert call.window_entries().tokens == 14 + 14 + 1
    assert len(call.window(tokens=15)) == 2
    asked: list[Any] = []

    def count(body: Any) -> int:
        asked.append(body)
        return 100

    assert len(call.window(tokens=201, count=count)) == 3
    assert len(call.window(tokens=200, count=count)) == 2
    assert asked == [user("abcd" * 10)] * 4


def test_the_newest_message_may_be_too_large(call: Session) -> None:
    put(call, user("a"), user("x" * 4_000))
    assert call.window(tokens=10) == []
    assert call.window_entries(tokens=10).is_cut
    assert call.window(tokens=10, at_least_one=True) == [user("x" * 4_000)]
    put(call, asks("c1", "c2"), answers("c1", "x" * 4_000), answers("c2", "x" * 4_000))
    whole = call.window(tokens=10, at_least_one=True)
    assert [message["role"] for message in whole] == ["assistant", "tool", "tool"]


def test_fitting_a_budget_reads_the_end_alone(
    checked_store: Open, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fitting a token budget over 1,000 messages took 60 s (llama_index #12264).

    Every message was decoded and counted, again for each that was dropped. Here the counts lie in
    the headers, and what lies before the window is not even decompressed.
    """
    with Store.open(store_path) as store:
        session = store.session("long")
        for _ in range(20):
            parts = [session.draft([user("word " * 40)] * 500)]
            store.append_batch(parts).result()
        store.flush()
        info = session.info()
        assert info is not None and info.unsealed_count == 0
    decoded: list[bytes] = []
    real = SegmentCache.decode

    def decode(self: SegmentCache, tables: Any, key: bytes, value: bytes) -> Any:
        decoded.append(key)
        return real(self, tables, key, value)

    monkeypatch.setattr(SegmentCache, "decode", decode)
    session = checked_store().session("long")
    asked: list[Any] = []
    window = session.window(tokens=16_000, count=lambda body: asked.append(body) or 54)  # type: ignore[func-returns-value]
    assert len(window) == 16_000 // 54
    assert len(asked) <= len(window) + 1
    assert len(decoded) <= 4


def test_a_window_that_ends_where_a_segment_does(checked_store: Open) -> None:
    """A window whose limit was used up just where a segment began raised an ``IndexError``.

    The segment before it was asked for the bodies of no event, from past its last one on.
    """
    store = checked_store()
    call = store.session("call")
    messages = [user(f"m{number} " + "word " * 40) for number in range(3_000)]
    for start in range(0, 3_000, 500):
        call.append_many(messages[start : start + 500]).result()
    store.flush()
    talk = [user(f"m{number}") for number in range(30)]
    call.append_many(talk).result()
    messages += talk
    ends = [block.sequences[0] for block in PathScan(store._log, ("", "call"), None).blocks()]
    assert len(ends) > 3
    for end in ends:
        for first in range(max(0, end - 1), end + 2):
            count = len(messages) - first
            window = call.window_entries(last=count)
            assert window.messages == call.window(last=count) == messages[first:]
            assert window.is_cut is (first > 0)
            assert call.window(tokens=count, count=lambda _: 1) == messages[first:]


# Tool groups

CALLS: dict[str, Callable[..., Message]] = {
    "openai": lambda each, arguments=None: {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": each, "function": {"name": "look", "arguments": arguments or {}}}],
    },
    "agentium": lambda each, arguments=None: {
        "role": "assistant",
        "content": None,
        "toolCalls": [{"id": each, "name": "look", "arguments": arguments or {}}],
    },
    "anthropic": lambda each, arguments=None: {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look"},
            {"type": "tool_use", "id": each, "name": "look", "input": arguments or {}},
        ],
    },
    "prism": lambda each, arguments=None: {
        "role": "assistant",
        "content": [
            {"type": "tool_call", "id": each, "name": "look", "arguments": arguments or {}}
        ],
    },
    "agentrail": lambda each, arguments=None: {
        "role": "assistant",
        "content": [{"type": "toolCall", "id": each, "name": "look", "arguments": arguments or {}}],
    },
}
RESULTS: dict[str, Callable[[str], Message]] = {
    "openai": lambda each: {"role": "tool", "tool_call_id": each, "content": "found"},
    "agentium": lambda each: {"role": "tool", "toolCallId": each, "content": "found"},
    "anthropic": lambda each: {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": each, "content": "found"}],
    },
    "prism": lambda each: {
        "role": "tool",
        "content": [{"type": "tool_result", "toolCallId": each, "name": "look", "result": 1}],
    },
    "agentrail": lambda each: {
        "role": "toolResult",
        "toolCallId": each,
        "toolName": "look",
        "content": [{"type": "text", "text": "found"}],
    },
}


@pytest.mark.parametrize("shape", CALLS)
def test_a_window_never_begins_with_a_result_whose_call_is_cut_off(
    call: Session, shape: str
) -> None:
    """``limit=2`` of a session gave a tool's output without its call (openai-agents #4322).

    The model API refused the history from then on. A group is in a window whole, or not at all.
    """
    put(call, user("u0"), CALLS[shape]("c1"), RESULTS[shape]("c1"), says("a0"))
    assert call.window(last=1) == [says("a0")]
    assert call.window(last=2) == [says("a0")]
    assert call.window(last=3) == [CALLS[shape]("c1"), RESULTS[shape]("c1"), says("a0")]
    assert call.window(last=2, repair=False) == [says("a0")]
    found = call.window_entries(last=2)
    assert found.left_out == (2,) and found.is_cut
    for tokens in range(40):
        window = call.window(tokens=tokens)
        made = [tools_of(each) for each in window]
        assert sum([len(each.calls) for each in made if each]) == sum(
            [len(each.results) for each in made if each]
        )


@pytest.mark.parametrize("shape", CALLS)
def test_a_call_that_nobody_answered_is_answered_in_the_view(call: Session, shape: str) -> None:
    """A tool call without a result made a thread useless until it was deleted (langgraph #4289).

    Every request after it was refused. The view answers it, marked, and nothing is written.
    """
    put(call, user("u0"), CALLS[shape]("c1"), user("u1"))
    before = list(call.events())
    window = call.window_entries()
    assert [entry.sequence for entry in window.entries] == [0, 1, None, 2]
    made = window.entries[2]
    assert made.synthetic == "result" and made.tokens > 0
    found = tools_of(made.body)
    assert found is not None and found.results == ["c1"]
    assert NO_RESULT in str(made.body)
    assert list(call.events()) == before
    assert call.window(repair=False) == [user("u0"), CALLS[shape]("c1"), user("u1")]


def test_a_call_that_still_runs_is_left_alone(call: Session) -> None:
    """A repair answered calls that waited for a person, or still ran (langchain-aws #837, #1209).

    Their results then came a second time. Which calls are open is told, not guessed.
    """
    put(call, user("u0"), asks("c1", "c2", "c3"), answers("c1"))
    window = call.window_entries(running={"c2"})
    assert [entry.synthetic for entry in window.entries] == [None, None, None, "result"]
    assert window.entries[-1].body["tool_call_id"] == "c3"
    assert len(call.window(running=["c2", "c3"])) == 3
    put(call, answers("c2"))
    assert [each["tool_call_id"] for each in call.window(running={"c3"})[2:]] == ["c1", "c2"]


def test_a_result_that_came_late_stands_behind_its_call(call: Session) -> None:
    """A tool's reply sorted by a clock that had stepped back came before its call (hermes #25589).

    Sequences order the log whatever the times say, and the view puts call and result together.
    """
    call.append(asks("c1"), time_us=1_000).result()
    call.append(user("hurry"), time_us=500).result()
    call.append(answers("c1"), time_us=100).result()
    window = call.window_entries()
    assert [entry.sequence for entry in window.entries] == [0, 2, 1]
    assert call.window(repair=False) == [asks("c1"), user("hurry"), answers("c1")]
    assert call.window(last=2) == [user("hurry")]


def test_an_id_may_be_used_again(call: Session) -> None:
    put(call, asks("c"), answers("c", "first"), asks("c"), answers("c", "second"), says("a"))
    assert call.window() == call.history()
    assert [each.get("content") for each in call.window(last=3)] == [None, "second", "a"]
    put(call, asks("c"))
    assert call.window_entries().entries[-1].synthetic == "result"


def test_results_without_a_call_are_left_out(call: Session) -> None:
    put(call, user("u"), answers("nobody"), says("a"))
    mixed = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "nobody", "content": "x"},
            {"type": "text", "text": "and now?"},
        ],
    }
    put(call, mixed)
    window = call.window_entries()
    assert [entry.sequence for entry in window.entries] == [0, 2, 3]
    assert window.left_out == (1,)
    assert window.entries[-1].synthetic == "changed"
    assert window.entries[-1].body["content"] == [{"type": "text", "text": "and now?"}]
    assert call.event(3).body == mixed


def test_synthetic_results_count(call: Session) -> None:
    for each in range(20):
        call.append(asks(f"c{each}"), tokens=1).result()
    window = call.window_entries(tokens=60)
    assert 0 < window.tokens <= 60
    assert len(window.entries) % 2 == 0


def test_media_can_be_left_out_of_a_view(call: Session) -> None:
    """Users stripped images from their logs to save tokens, and lost them (hermes-agent #31705)."""
    picture = {"type": "image", "data": "x" * 9_000, "mimeType": "image/png"}
    message = {"role": "user", "content": [{"type": "text", "text": "see"}, picture]}
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [picture]}],
    }
    call.append(message, tokens=2_000).result()
    put(call, CALLS["anthropic"]("c1"), result)
    window = call.window_entries(media=False)
    assert window.entries[0].synthetic == "changed"
    assert window.tokens < 100
    assert "xxx" not in str(window.messages)
    assert window.messages[0]["content"][1] == {"type": "text", "text": "[image left out]"}
    assert call.window() == [message, CALLS["anthropic"]("c1"), result]
    assert call.history() == call.window()


# Where it ends


def test_the_window_of_a_branch(call: Session) -> None:
    put(call, user("u0"), says("a0"), user("u1"), says("a1"))
    call.append(user("other"), parent=1).result()
    call.name_branch("other").result()
    assert call.window() == [user("u0"), says("a0"), user("other")]
    assert call.window(leaf=3) == [user("u0"), says("a0"), user("u1"), says("a1")]
    assert call.window(leaf=2, last=2) == [says("a0"), user("u1")]
    assert call.window(leaf="other", last=1) == [user("other")]
    for leaf in (99, "nobody"):
        with pytest.raises(UsageError):
            call.window(leaf=leaf)
    call.update_state({"a": 1}).result()
    with pytest.raises(UsageError):
        call.window(leaf=call.info().last_sequence)  # type: ignore[union-attr]


def test_what_was_trimmed_is_not_in_the_model_view(checked_store: Open) -> None:
    session = checked_store().session("s", snapshot_frequency=5, max_messages=2)
    for number in range(23):
        put(session, user(f"m{number}"))
        assert session.window() == session.history()
        assert session.window(last=3) == session.history(3)
    assert not session.window_entries().is_cut
    assert session.window(leaf=9) == [user("m8"), user("m9")]
    session.append(user("branch"), parent=12).result()
    assert session.window() == session.history()


def test_what_was_purged_is_not_in_it_either(call: Session) -> None:
    put(call, *[user(f"m{number}") for number in range(10)])
    call.purge(6).result()
    assert call.window() == [user(f"m{number}") for number in range(6, 10)]
    with pytest.raises(TrimmedError):
        call.window(leaf=3)


def test_bodies_that_need_mending_and_options_come_out_as_they_went_in(call: Session) -> None:
    messages = [user("plain"), user("\ud83d"), {"role": "user", "content": b"\x00"}, user("last")]
    put(call, messages[0])
    put(call, messages[1], messages[2], metadata={"a": 1})
    put(call, messages[3], turn_id="t", id="mine")
    assert call.window() == messages
    assert call.window(tokens=10_000) == messages
    first, again = call.window(), call.window()
    first[0]["content"] = "changed"
    assert again == messages == call.window()


def test_it_is_the_same_from_an_event_loop(call: Session) -> None:
    put(call, *[user(f"m{number}") for number in range(10)])
    options: dict[str, Any] = {"tokens": 30, "exchanges": 4, "media": False, "at_least_one": True}
    assert asyncio.run(call.window_async(**options)) == call.window(**options)
    assert asyncio.run(call.window_entries_async(**options)) == call.window_entries(**options)


# All of it at once, against a slow model


ANY = [f"{number}.{each}" for number in range(220) for each in range(2)]
"""Ids of all calls: none is answered by the view."""


def expected(events: list[tuple[int, str, Any, int]], last: int | None, tokens: int | None) -> Any:
    """Sequences of the window of a path: a plain reading of what the module says."""
    shown = [(sequence, body, count) for sequence, kind, body, count in events if kind == "message"]
    for sequence, kind, body, _ in reversed(events):
        if kind == "compaction" and any([each == body["data"]["through"] for each, *_ in events]):
            data = body["data"]
            kept = [
                each for each in shown if each[0] in data["keep"] and each[0] <= data["through"]
            ]
            rest = [each for each in shown if each[0] > data["through"]]
            summary = summary_message(body["summary"])
            shown = [(sequence, summary, estimate_tokens(summary)), *kept, *rest]
            break
    taken: list[Any] = []
    left = tokens
    for sequence, body, count in reversed(shown):
        if last is not None and len(taken) == last:
            break
        if left is not None:
            left -= count or estimate_tokens(body)
            if left < 0:
                break
        taken.insert(0, (sequence, body))
    groups: list[list[Any]] = []
    for sequence, body in taken:
        mine = tools_of(body)
        results = mine.results if mine else []
        if not results:
            groups.append([sequence, body])
            continue
        for group in groups:
            made = tools_of(group[1])
            if made and results[0] in [each.id for each in made.calls]:
                group.append(sequence)
    return [each for group in groups for each in (group[0], *group[2:])]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("frequency", [25, 7])
def test_windows_are_those_of_a_plain_model(checked_store: Open, seed: int, frequency: int) -> None:
    random = Random(seed)
    store = checked_store(snapshot_frequency=frequency)
    call = store.session("call")
    open_calls: list[str] = []
    public: list[int] = []
    for number in range(220):
        draw = random.random()
        parent = random.choice(public) if public and random.random() < 0.03 else None
        tokens = random.choice([None, 3, 9])
        if parent is not None:
            open_calls = []
        if draw < 0.15:
            ids = [f"{number}.{each}" for each in range(random.randint(1, 2))]
            open_calls += ids
            message = asks(*ids)
        elif draw < 0.35 and open_calls:
            message = answers(open_calls.pop(random.randrange(len(open_calls))))
        elif draw < 0.40 and public:
            names = random.sample(public, min(3, len(public)))
            on_path = [event.sequence for event in call.path_events()]
            through = random.choice(on_path)
            data = {"through": through, "keep": names}
            public.append(
                call.append_event("compaction", {"summary": f"s{number}", "data": data})
                .result()
                .last
            )
            continue
        elif draw < 0.45:
            call.append_event("metric", {"n": number}).result()
            continue
        elif draw < 0.48:
            public.append(call.append_event("label", "x").result().last)
            continue
        else:
            message = random.choice([user, says])(f"m{number}")
        public.append(call.append(message, parent=parent, tokens=tokens).result().last)
        if number % 60 == 59:
            store.flush()
        if number % 11 == 0:
            leaf = random.choice([None, random.choice(public)])
            events = [
                (event.sequence, event.kind, event.body, event.tokens)
                for event in call.path_events(leaf)
            ]
            for last, budget in ((None, None), (7, None), (None, 60), (20, 150)):
                window = call.window_entries(last, tokens=budget, leaf=leaf, running=ANY)
                found = [entry.sequence for entry in window.entries]
                assert found == expected(events, last, budget), (seed, number, last, budget)
