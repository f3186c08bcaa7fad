"""Windows and compactions of sessions with redacted events."""

from __future__ import annotations

from typing import Any

import pytest

from engine import RetentionPolicy, Session, Store

HANG_S = 60.0


def ask(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(name: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    return {
        "role": "assistant",
        "tool_calls": [{"id": name, "type": "function", "function": function}],
    }


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "42"}


def tell(session: Session, *bodies: dict[str, Any], tokens: list[int] | None = None) -> None:
    for number, body in enumerate(bodies):
        options = {} if tokens is None else {"tokens": tokens[number]}
        session.append(body, **options).result(HANG_S)


@pytest.mark.parametrize("way", ["running", "told"])
def test_a_compaction_does_not_stand_for_a_call_that_is_open(store: Store, way: str) -> None:
    """The view that a compaction is planned on did not know which calls run.

    A redacted user message behind such a call was taken for its result, and the call left out, so
    that the summary stood for it and its result came without a call.
    """
    session = store.session("call")
    tell(session, ask("0"), call("c"), ask("secret"), ask("more"))  # 0 … 3
    options: dict[str, Any] = {}
    if way == "told":
        session.tool_calls.open("c", "f", event=1).result(HANG_S)
    else:
        options["running"] = ["c"]
    session.redact(2, 2)
    assert session.window(**options) == [ask("0"), call("c"), ask("more")]
    compaction = session.compact(lambda _: "summary", keep_last=1, **options)
    assert compaction is not None
    assert compaction.through < 1, "it stands for a call that is open"
    tell(session, result("c"))
    assert session.window(**options)[1:] == [call("c"), result("c"), ask("more")]


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
@pytest.mark.parametrize(
    ("tokens", "redacted", "shown"),
    [
        pytest.param([10, 10, 10, 1_000], 3, ["1", "2"], id="the-newest"),
        pytest.param([10, 10, 1_000, 10], 2, ["1", "3"], id="between"),
    ],
)
def test_a_redacted_message_does_not_end_a_window_of_tokens(
    store: Store, tokens: list[int], redacted: int, shown: list[str], sealed: bool
) -> None:
    """The tokens that a redacted message came with were counted, though it is shown nowhere.

    One that was larger than the window emptied it.
    """
    session = store.session("call")
    tell(session, *map(ask, "0123"), tokens=tokens)
    if sealed:
        store.flush(HANG_S)
    session.redact(redacted, redacted)
    assert [each["content"] for each in session.window(tokens=25)] == shown
    entries = session.window_entries(tokens=25)
    assert [each["content"] for each in entries.messages] == shown


def test_a_window_is_the_bodies_of_its_entries(store: Store) -> None:
    """Without tokens the search went on over redacted messages when the window was full.

    So which messages were shown depended on whether tokens were stored.
    """
    session = store.session("call")
    tell(session, ask("0"), call("a"), ask("2"), result("a"), say("4"))
    session.redact(1, 1)
    shown = session.window(last=3, repair=False)
    assert shown == session.window_entries(last=3, repair=False).messages


def test_a_redacted_tool_result_does_not_begin_an_exchange(store: Store) -> None:
    """A result of role ``user`` does not tell any more that it is one: the call before it does."""
    session = store.session("call")
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    told = {"type": "tool_result", "tool_use_id": "t", "content": "secret"}
    tell(session, ask("q1"), say("a1"), ask("q2"))
    tell(session, {"role": "assistant", "content": [use]}, {"role": "user", "content": [told]})
    tell(session, say("a2"))
    assert session.window(exchanges=1)[0] == ask("q2")
    session.redact(4, 4)
    assert session.window(exchanges=1) == [ask("q2"), say("a2")]


def test_a_redacted_tool_result_does_not_keep_a_session_from_being_purged(store: Store) -> None:
    """Its call was taken for one that is open, until the user had asked for something else.

    So ``max_entries`` kept all from there on, and said that a call had no result yet.
    """
    session = store.session("call")
    tell(session, ask("0"), call("a"), result("a"), say("1"))
    for number in range(20):
        session.append_event("step", {"number": number}).result(HANG_S)
    session.redact(2, 2)
    report = store.apply_retention(RetentionPolicy(max_entries=3))
    assert [each.reasons for each in report.excess] == []
    info = session.info()
    assert info is not None
    assert info.first_sequence > 1


@pytest.mark.parametrize("way", [{"last": 2}, {"exchanges": 1}, {"last": 2, "tokens": 500}])
@pytest.mark.parametrize("redacted", [1, 2, 3])
def test_a_window_of_all_that_is_left_is_not_cut(
    store: Store, way: dict[str, int], redacted: int
) -> None:
    """A window was said to be cut where nothing but redacted messages came before it.

    They are in no view, so that it begins with what follows them.
    """
    session = store.session("call")
    tell(session, *[ask("gone") for _ in range(redacted)], ask("0"), say("1"))
    assert session.window_entries(**way).is_cut
    session.redact(0, redacted - 1)
    window = session.window_entries(**way)
    assert window.messages == [ask("0"), say("1")] and not window.is_cut
    session.redact(redacted + 1, redacted + 1)
    assert not session.window_entries(last=1).is_cut
    tell(session, say("2"))
    assert session.window_entries(last=1).is_cut
