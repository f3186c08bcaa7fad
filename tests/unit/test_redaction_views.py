"""What a model should see of a session of which a part was redacted: whole groups, and no hole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine import Session, Store
from engine.kinds import ROLES
from engine.toolgroups import NO_RESULT, answered_by
from tests.unit.redacted import HANG_S

USER, ASSISTANT, TOOL = ROLES["user"], ROLES["assistant"], ROLES["tool"]


def ask(content: str = "question") -> dict[str, Any]:
    return {"role": "user", "content": content}


def say(content: str = "answer") -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def call(*ids: str) -> dict[str, Any]:
    calls = [{"id": each, "function": {"name": "look", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(of: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": of, "content": f"result {of}"}


def block_call(of: str) -> dict[str, Any]:
    block = {"type": "tool_use", "id": of, "name": "look", "input": {}}
    return {"role": "assistant", "content": [block]}


def block_result(of: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": of, "content": of}]}


@pytest.fixture(params=[4, 25], ids=["sealed", "loose"])
def session(request: pytest.FixtureRequest, checked_store: Callable[..., Store]) -> Session:
    return checked_store(snapshot_frequency=request.param).session("call")


def view(session: Session, bodies: list[dict[str, Any]], *redacted: int, **options: Any) -> Any:
    """Sequences in the window of messages of which some were redacted; "result" for one made."""
    session.append_many(bodies).result(HANG_S)
    session._store.flush()
    for sequence in redacted:
        session.redact(sequence, sequence)
    entries = session.window_entries(**options).entries
    assert [each.body for each in entries] == session.window(**options)
    return [each.synthetic or each.sequence for each in entries]


TURN = [ask(), call("a", "b"), result("a"), result("b"), say(), ask(), say()]


@pytest.mark.parametrize("repair", [True, False])
@pytest.mark.parametrize(
    ("bodies", "redacted", "shown"),
    [
        pytest.param([ask(), say(), ask()], [1], [0, 2], id="a-message"),
        pytest.param([ask(), say(), ask()], [0, 1, 2], [], id="all"),
        pytest.param(TURN, [3], [0, 4, 5, 6], id="one-of-two-results"),
        pytest.param(TURN, [2, 3], [0, 4, 5, 6], id="both-results"),
        pytest.param(TURN, [1], [0, 4, 5, 6], id="the-calls"),
        pytest.param(TURN, [1, 2, 3], [0, 4, 5, 6], id="the-whole-group"),
        pytest.param(TURN, [0], [1, 2, 3, 4, 5, 6], id="the-question"),
        pytest.param(
            [ask(), block_call("a"), block_result("a"), say()], [2], [0, 3], id="result-in-blocks"
        ),
        pytest.param(
            [ask(), block_call("a"), block_result("a"), say()], [1], [0, 3], id="call-in-blocks"
        ),
    ],
)
def test_groups_are_shown_whole_or_not_at_all(
    session: Session,
    bodies: list[dict[str, Any]],
    redacted: list[int],
    shown: list[int],
    repair: bool,
) -> None:
    assert view(session, bodies, *redacted, repair=repair) == shown


def test_what_was_left_out_is_told(session: Session) -> None:
    view(session, TURN, 3)
    assert session.window_entries().left_out == (1, 2)


def test_a_call_that_nobody_answered_is_still_answered_in_the_view(session: Session) -> None:
    """What was redacted elsewhere is no result of it: the model has spoken in between."""
    bodies = [ask(), call("a"), ask(), say(), ask("secret"), say()]
    assert view(session, bodies, 4) == [0, 1, "result", 2, 3, 5]
    assert session.window()[2]["content"] == NO_RESULT


def test_a_call_that_runs_stays(session: Session) -> None:
    bodies = [ask(), call("a"), result("a")]
    assert view(session, bodies, 2, running=["a"]) == [0, 1]
    assert session.window() == [ask()]


def test_limits_count_what_is_shown(session: Session) -> None:
    """Redacted messages take no room, so that a window has as many as are wanted."""
    bodies = [ask(f"{number}") for number in range(12)]
    assert view(session, bodies, *range(4, 11), last=3) == [2, 3, 11]
    options: list[tuple[dict[str, Any], list[int]]] = [
        ({"last": 1}, [11]),
        ({"last": 6}, [0, 1, 2, 3, 11]),
        ({"tokens": 15}, [2, 3, 11]),
        ({"at_least_one": True, "tokens": 1}, [11]),
        ({"media": False, "last": 2}, [3, 11]),
    ]
    for limits, shown in options:
        assert [each.sequence for each in session.window_entries(**limits).entries] == shown
    session.redact(11, 11)
    assert [each.sequence for each in session.window_entries(1).entries] == [3]


def test_tokens_that_came_with_a_redacted_message_take_no_room(session: Session) -> None:
    for number in range(4):
        session.append(ask(f"{number}"), tokens=10).result(HANG_S)
    session._store.flush()
    session.redact(2, 2)
    assert [each.sequence for each in session.window_entries(tokens=20).entries] == [1, 3]
    assert session.event(2).tokens == 10


def test_an_exchange_stays_one(session: Session) -> None:
    bodies = [ask("0"), say("1"), ask("2"), say("3"), ask("4"), say("5")]
    assert view(session, bodies, 2, exchanges=2) == [3, 4, 5]


def test_a_compaction_that_was_redacted_does_not_count(session: Session) -> None:
    session.append_many([ask(f"{number}") for number in range(6)]).result(HANG_S)
    first = session.compact(lambda _: "first secret", keep_last=2)
    assert first is not None
    assert len(session.window()) == 3
    assert session.redact(first.sequence, first.sequence).summaries == ()
    assert session.compaction() is None
    assert [each.sequence for each in session.window_entries().entries] == [*range(6)]
    again = session.compact(lambda bodies: f"{len(bodies)} messages", keep_last=1)
    assert again is not None and again.message_count == 5


def test_a_compaction_covers_redacted_messages_and_what_it_keeps_of_them_is_gone(
    session: Session,
) -> None:
    session.append_many([ask(f"{number}") for number in range(8)]).result(HANG_S)
    told: list[Any] = []
    session.redact(1, 2)
    done = session.compact(lambda bodies: told.extend(bodies) or "so far", keep_last=3, keep=[1, 3])
    assert done is not None
    assert told == [ask("0"), ask("4")]
    shown = session.window_entries().entries
    assert [each.sequence for each in shown] == [done.sequence, 3, 5, 6, 7]


def test_summaries_that_may_tell_of_it_are_named(session: Session) -> None:
    session.append_many([ask(f"{number}") for number in range(6)]).result(HANG_S)
    first = session.compact(lambda _: "first", keep_last=3)
    session.append_many([ask(f"{number}") for number in range(6)]).result(HANG_S)
    second = session.compact(lambda _: "second", keep_last=2)
    assert first is not None and second is not None
    assert (first.through, session.event(first.sequence).kind) == (2, "compaction")
    assert session.redact(1, 1).summaries == (first.sequence, second.sequence)
    assert session.redact(4, 4).summaries == (second.sequence,)
    assert session.redact(1, second.sequence - 1).summaries == (second.sequence,)
    assert session.redact(second.sequence - 1, second.sequence - 1).summaries == ()
    assert session.redact(1, second.sequence).summaries == ()


def test_a_summary_of_another_branch_is_not_named(session: Session) -> None:
    session.append_many([ask(f"{number}") for number in range(6)]).result(HANG_S)
    session.append(ask("other"), parent=1).result(HANG_S)  # 6
    session.append_many([ask("more")] * 3).result(HANG_S)
    done = session.compact(lambda _: "of the other branch", keep_last=1)
    assert done is not None
    assert session.redact(3, 4).summaries == ()
    assert session.redact(1, 4).summaries == (done.sequence,)


def test_a_purge_by_a_rule_copes_with_halves(session: Session) -> None:
    from engine import RetentionPolicy

    view(session, TURN, 3)
    store = session._store
    report = store.apply_retention(RetentionPolicy(max_entries=3), now_us=2**60)
    assert report is not None
    session.window()
    assert session.info().first_sequence > 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("redacted", "calls", "spoken", "answered"),
    [
        pytest.param([(4, TOOL)], [2], [2, 9], {2}, id="right-behind"),
        pytest.param([(8, TOOL)], [2], [2, 5], {2}, id="late"),
        pytest.param([(8, TOOL)], [2, 6], [2, 6], {6}, id="the-last-one"),
        pytest.param([(1, TOOL)], [2], [2], set(), id="before"),
        pytest.param([(4, ASSISTANT), (5, TOOL)], [2], [2], set(), id="of-a-redacted-call"),
        pytest.param([(4, USER)], [2], [2], {2}, id="may-be-a-result"),
        pytest.param([(6, USER)], [2], [2, 5], set(), id="after-the-model-spoke"),
        pytest.param([(4, ASSISTANT)], [2], [2], set(), id="no-result"),
        pytest.param([(4, ROLES["system"])], [2], [2], set(), id="no-result-either"),
        pytest.param([(3, TOOL), (7, TOOL)], [2, 6], [2, 6], {2, 6}, id="one-each"),
    ],
)
def test_which_calls_were_answered(
    redacted: list[tuple[int, int]], calls: list[int], spoken: list[int], answered: set[int]
) -> None:
    assert answered_by(redacted, calls, spoken) == answered
