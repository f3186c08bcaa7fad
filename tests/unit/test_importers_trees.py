"""Trees whose records name their parents, whatever they say: in order, mended, and never for ever.

The records are invented; ``tests/cli/test_import_trees.py`` reads real ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog import importers
from turnlog.importers import Damage, Mend, ParsedEvent, ParsedSession
from turnlog.importers.tree import Node, Tree, grow
from turnlog.importers.used import amount_of


def tree_of(*parents: tuple[str | None, str | None]) -> Tree:
    """A tree of these keys and parents; bodies are the places, lines count from 1."""
    return grow(
        [
            Node(ParsedEvent("event", place), key, parent, line=place + 1)
            for place, (key, parent) in enumerate(parents)
        ]
    )


def told(tree: Tree) -> list[tuple[str, int | None]]:
    return [(mend.what, mend.line) for mend in tree.mends]


def shape(tree: Tree) -> list[tuple[int, int | None]]:
    return [(event.body, event.parent) for event in tree.events]


@pytest.mark.parametrize(
    ("parents", "expected", "mends"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([("a", None), ("b", "a")], [(0, None), (1, 0)], [], id="chain"),
        pytest.param(
            [("a", None), ("b", "a"), ("c", "a"), ("d", None)],
            [(0, None), (1, 0), (2, 0), (3, -1)],
            [],
            id="fork-and-second-root",
        ),
        pytest.param(
            [("c", "b"), ("b", "a"), ("x", None), ("a", None)],
            [(2, None), (3, -1), (1, 1), (0, 2)],
            [],
            id="children-first",
        ),
        pytest.param(
            [("a", None), ("b", "gone"), ("c", "b")],
            [(0, None), (1, -1), (2, 1)],
            [("orphan", 2)],
            id="orphan",
        ),
        pytest.param([("a", "a")], [(0, None)], [("cycle", 1)], id="itself"),
        pytest.param(
            [("r", None), ("a", "c"), ("b", "a"), ("c", "b"), ("d", "c"), ("e", "b")],
            [(0, None), (1, -1), (2, 1), (3, 2), (4, 3), (5, 2)],
            [("cycle", 2)],
            id="cycle-with-followers",
        ),
        pytest.param(
            [("d", "c"), ("a", "c"), ("b", "a"), ("c", "b")],
            [(1, None), (2, 0), (3, 1), (0, 2)],
            [("cycle", 2)],
            id="what-only-leads-into-a-cycle-still-follows-it",
        ),
        pytest.param(
            [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")],
            [(0, None), (1, 0), (2, -1), (3, 2)],
            [("cycle", 1), ("cycle", 3)],
            id="two-cycles",
        ),
        pytest.param(
            [("a", None), ("b", "a"), ("a", "b"), ("c", "a")],
            [(0, None), (1, 0), (3, 0)],
            [("duplicate", 3)],
            id="duplicate",
        ),
        pytest.param(
            [(None, None), (None, "a")], [(0, None), (1, -1)], [("orphan", 2)], id="no-id"
        ),
    ],
)
def test_what_is_wrong_is_mended_and_told(
    parents: list[tuple[str | None, str | None]],
    expected: list[tuple[int, int | None]],
    mends: list[tuple[str, int]],
) -> None:
    tree = tree_of(*parents)
    assert shape(tree) == expected
    assert told(tree) == mends


def test_what_stands_beside_the_history_follows_nothing_and_is_followed_by_nothing() -> None:
    beside = Node(ParsedEvent("annotation", 0), "a", "b", is_beside=True)
    tree = grow([beside, Node(ParsedEvent("event", 1), "b", "a"), Node(ParsedEvent("event", 2))])
    assert shape(tree) == [(0, None), (1, None), (2, -1)]
    assert told(tree) == [("orphan", None)]


KEYS = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", None])


@given(st.lists(st.tuples(KEYS, KEYS), max_size=12))
def test_every_event_follows_one_before_it(parents: list[tuple[str | None, str | None]]) -> None:
    tree = tree_of(*parents)
    dropped = sum(what == "duplicate" for what, _ in told(tree))
    assert len(tree.events) == len(parents) - dropped
    assert len({event.body for event in tree.events}) == len(tree.events)
    lost = {line for what, line in told(tree) if what in ("orphan", "cycle")}
    for sequence, event in enumerate(tree.events):
        _, parent = parents[event.body]
        if event.parent is None or event.parent == -1:
            assert (event.parent is None) == (sequence == 0)
            assert (parent is None) == (event.body + 1 not in lost)
        else:
            assert event.parent < sequence
            above = tree.events[event.parent].body
            assert parents[above][0] == parent


def test_long_chains_and_cycles_end() -> None:
    """A walk up the parents that recursed, or looked at each event's whole path, would not."""
    count = 200_000
    chain = tree_of(*((f"{n}", f"{n + 1}") for n in range(count)))
    assert told(chain) == [("orphan", count)]
    assert chain.events[-1].body == 0
    ring = tree_of(*((f"{n}", f"{(n + 1) % count}") for n in range(count)))
    assert told(ring) == [("cycle", 1)]
    assert [event.parent for event in ring.events] == [None, *range(count - 1)]


# Claude Code


def record(uuid: str, parent: str | None, **more: Any) -> dict[str, Any]:
    return {
        "parentUuid": parent,
        "isSidechain": False,
        "sessionId": "s",
        "type": "user",
        "message": {"role": "user", "content": uuid},
        "uuid": uuid,
        "timestamp": "2026-01-05T09:00:00.250Z",
        **more,
    }


def parsed(path: Path, lines: list[Any]) -> ParsedSession:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n")
    (session,) = importers.read_file(path)
    assert isinstance(session, ParsedSession)
    return session


def test_claude_code_usage_ids_and_times(tmp_path: Path) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4}
    answer = {"role": "assistant", "model": "m", "content": [], "usage": usage}
    session = parsed(
        tmp_path / "s.jsonl",
        [
            {"type": "summary", "summary": "A talk", "leafUuid": "b"},
            record("a", None, isMeta=True),
            record("b", "a", type="assistant", message=answer, requestId="req_1"),
            record("c", "b", type="system", message=None, content="told"),
        ],
    )
    assert session.name == "s"
    assert session.metadata == {"sessionId": "s"}
    assert [(event.kind, event.id, event.parent) for event in session.events] == [
        ("annotation", None, None),
        ("message", "a", None),
        ("message", "b", 1),
        ("usage", None, 2),
        ("event", "c", 2),
    ]
    assert session.events[1].time_us == 1_767_603_600_250_000
    assert session.events[1].metadata is not None
    assert session.events[1].metadata["isMeta"] is True
    assert session.events[2].body == {"role": "assistant", "model": "m", "content": []}
    assert session.events[2].request_id == "req_1"
    assert "usage" not in (session.events[2].metadata or {})
    assert session.events[3].body == {
        "append": {"": {"scope": "provider_turn", "model": "m", **usage, "extra": usage}}
    }
    assert session.events[3].time_us == session.events[2].time_us
    assert session.event_lines is not None
    assert list(session.event_lines) == [1, 2, 3, 3, 4]


def used(session: ParsedSession) -> list[dict[str, Any]]:
    """What was used, without the source's own words for it."""
    found = [event.body["append"][""] for event in session.events if event.kind == "usage"]
    return [{key: count for key, count in each.items() if key != "extra"} for each in found]


def test_claude_code_usage_of_one_answer_is_counted_once(tmp_path: Path) -> None:
    """Each block of an answer is a record, and all of them tell the usage of the whole answer, the
    first ones often what it was until then. Added up it came to twice or three times too much.
    """

    def answer(key: str, parent: str, id: str, output: int) -> dict[str, Any]:
        usage = {
            "input_tokens": 3,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 20,
            "output_tokens": output,
        }
        return record(key, parent, message={"role": "assistant", "id": id, "usage": usage})

    lines = [
        record("a", None),
        answer("b", "a", "m1", 1),
        answer("c", "b", "m1", 200),
        answer("d", "c", "m1", 200),
        answer("e", "d", "m2", 5),
    ]
    session = parsed(tmp_path / "s.jsonl", lines)
    whole = {"input_tokens": 123, "cached_tokens": 100, "cache_write_tokens": 20}
    assert used(session) == [
        {"scope": "provider_turn", **whole, "output_tokens": 1},
        {"scope": "provider_turn", "output_tokens": 199},
        {"scope": "provider_turn", **whole, "output_tokens": 5},
    ]
    told = [event.id for event in session.events if "usage" in (event.metadata or {})]
    assert told == ["d"]
    # A file that ends in the middle of an answer is the beginning of the one that goes on.
    half = parsed(tmp_path / "half.jsonl", lines[:2])
    assert half.events == session.events[: len(half.events)]


@pytest.mark.parametrize(
    "usage",
    [
        *(7, [], {}, {"output_tokens": 2**53 + 1}),
        *({"input_tokens": count} for count in (0, -1, 1.5, True, "7", None)),
    ],
    ids=str,
)
def test_usage_that_counts_nothing_stays_where_it_was(tmp_path: Path, usage: Any) -> None:
    answer = {"role": "assistant", "usage": usage}
    session = parsed(tmp_path / "s.jsonl", [record("a", None, message=answer)])
    (event,) = session.events
    assert event.metadata is not None
    assert event.metadata["usage"] == usage


@pytest.mark.parametrize("model", [7, "", "x" * 513, "\ud800", None])
def test_usage_of_a_model_without_a_name(tmp_path: Path, model: Any) -> None:
    answer = {"role": "assistant", "model": model, "usage": {"input_tokens": 1}}
    session = parsed(tmp_path / "s.jsonl", [record("a", None, message=answer)])
    assert used(session) == [{"scope": "provider_turn", "input_tokens": 1}]


def test_claude_code_compaction(tmp_path: Path) -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "logicalParentUuid": "b"}
    session = parsed(
        tmp_path / "s.jsonl",
        [
            record("a", None),
            record("b", "a"),
            record("c", None, message=None, **boundary),
            record(
                "d", "c", isCompactSummary=True, message={"role": "user", "content": "Before: x"}
            ),
            record("e", "d"),
        ],
    )
    assert [event.parent for event in session.events] == [None, 0, 1, 2, 3]
    compaction = session.events[3]
    assert compaction.kind == "compaction"
    assert compaction.body == {"summary": "Before: x", "data": {"through": 2}}


def test_claude_code_sidechains_have_a_root_of_their_own(tmp_path: Path) -> None:
    session = parsed(
        tmp_path / "s.jsonl",
        [
            record("a", None),
            record("x", None, isSidechain=True),
            record("y", "x", isSidechain=True),
            record("b", "a"),
        ],
    )
    assert [event.parent for event in session.events] == [None, -1, 1, 0]


def test_claude_code_names_of_subagents_lie_within_their_session(tmp_path: Path) -> None:
    agent = parsed(tmp_path / "agent-7.jsonl", [record("a", None, agentId="7")])
    assert agent.name == "s/agent-7"
    folder = tmp_path / "wf_1"
    folder.mkdir()
    journal = parsed(folder / "journal.jsonl", [{"type": "started", "key": "k", "agentId": "7"}])
    assert journal.name == "wf_1/journal"


def test_claude_code_lines_that_are_none_cost_themselves_only(tmp_path: Path) -> None:
    session = parsed(tmp_path / "s.jsonl", [record("a", None), "42", record("b", "a"), '{"torn'])
    assert [event.id for event in session.events] == ["a", "b"]
    assert [(mend.what, mend.line) for mend in session.mends] == [("record", 2), ("record", 4)]


def test_claude_code_nothing_but_bad_lines_is_no_session(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("[1]\n{\n")
    found = list(importers.read_file(path, format="claude-code"))
    assert [(type(each), each.line) for each in found if isinstance(each, Damage)] == [
        (Damage, 1),
        (Damage, 2),
    ]
    assert len(found) == 2


def test_claude_code_what_is_too_large_for_metadata_is_in_the_body(tmp_path: Path) -> None:
    result = {"stdout": "x" * 2_000_000}
    session = parsed(tmp_path / "s.jsonl", [record("a", None, toolUseResult=result)])
    (event,) = session.events
    assert event.body["beside"] == {"toolUseResult": result}
    assert event.metadata is not None
    assert "toolUseResult" not in event.metadata


# The others


def one(path: Path, value: Any) -> ParsedSession:
    path.write_text(json.dumps(value))
    (session,) = importers.read_file(path)
    assert isinstance(session, ParsedSession)
    return session


def node(key: str, parent: str | None, role: str | None, *parts: Any, time: float = 0) -> Any:
    message = None
    if role is not None:
        content = {"content_type": "text", "parts": list(parts)}
        message = {"id": key, "author": {"role": role}, "create_time": time, "content": content}
    return {"id": key, "message": message, "parent": parent, "children": []}


def test_chatgpt(tmp_path: Path) -> None:
    mapping = {
        "c": node("c", "b", "assistant", "first", time=3),
        "d": node("d", "b", "assistant", "second", "part", time=4.5),
        "b": node("b", "a", "user", "Hi", time=2),
        "a": node("a", None, None),
    }
    mapping["d"]["message"]["content"]["parts"].append({"asset": 1})
    chat = {"title": "T", "mapping": mapping, "current_node": "c", "conversation_id": "x"}
    session = one(tmp_path / "c.json", [chat])
    assert (session.name, session.title) == ("x", "T")
    assert session.metadata == {"title": "T", "current_node": "c", "conversation_id": "x"}
    assert [(event.id, event.parent) for event in session.events] == [
        ("a", None),
        ("b", 0),
        ("c", 1),
        ("d", 1),
        (None, 2),
    ]
    assert session.events[-1].kind == "head_move"
    assert session.events[1].body == {"role": "user", "content": "Hi"}
    assert session.events[3].body["content"][0]["parts"] == ["second", "part", {"asset": 1}]
    assert session.events[3].time_us == 4_500_000


def message(key: str, parent: str | None, **more: Any) -> dict[str, Any]:
    return {
        "messageId": key,
        "parentMessageId": parent,
        "isCreatedByUser": key == "a",
        "text": f"text of {key}",
        "createdAt": "2026-01-05T09:00:00Z",
        **more,
    }


@pytest.mark.parametrize("is_nested", [True, False])
def test_librechat(tmp_path: Path, is_nested: bool) -> None:
    nobody = "00000000-0000-0000-0000-000000000000"
    a = message("a", nobody, tokenCount=7)
    b, c = message("b", "a"), message("c", "a")
    messages = [{**a, "children": [{**b, "children": []}, c]}] if is_nested else [a, b, c]
    session = one(tmp_path / "x.json", {"conversationId": "x", "title": "T", "messages": messages})
    assert (session.name, session.title) == ("x", "T")
    assert [event.parent for event in session.events] == [None, 0, 0]
    assert session.events[0].body == {"role": "user", "content": "text of a"}
    assert session.events[0].tokens == 7
    assert session.events[1].body["role"] == "assistant"


def test_oasst_flat_messages_that_hang_together_are_a_session(tmp_path: Path) -> None:
    def said(key: str, parent: str | None) -> dict[str, Any]:
        return {"message_id": key, "parent_id": parent, "role": "prompter", "text": key}

    path = tmp_path / "x.json"
    path.write_text(
        json.dumps(
            [said("b", "a"), said("x", None), said("a", None), said("p", "q"), said("q", "p")]
        )
    )
    sessions = [each for each in importers.read_file(path) if isinstance(each, ParsedSession)]
    assert [(each.name, [event.id for event in each.events]) for each in sessions] == [
        ("a", ["a", "b"]),
        ("x", ["x"]),
        ("p", ["p", "q"]),
    ]
    assert [[mend.what for mend in each.mends] for each in sessions] == [[], [], ["cycle"]]


def test_pi_with_ids(tmp_path: Path) -> None:
    header = {"type": "session", "version": 3, "id": "x", "timestamp": "t", "cwd": "/"}

    def entry(key: str, parent: str | None, **more: Any) -> dict[str, Any]:
        said = {"role": "user", "content": key, "usage": {"input": 1}}
        return {"type": "message", "id": key, "parentId": parent, "message": said, **more}

    compaction = {"type": "compaction", "summary": "S", "firstKeptEntryId": "c", "tokensBefore": 9}
    session = parsed(
        tmp_path / "p.jsonl",
        [
            header,
            entry("a", None),
            entry("b", "a"),
            entry("c", "b"),
            {"id": "d", "parentId": "c", **compaction},
            entry("e", "a"),
            {"type": "branch_summary", "id": "f", "parentId": "e", "summary": "why"},
        ],
    )
    assert session.name == "x"
    assert session.metadata == header
    assert [(event.id, event.parent) for event in session.events] == [
        *[("a", None), (None, 0)],
        *[("b", 0), (None, 2)],
        *[("c", 2), (None, 4)],
        ("d", 4),
        *[("e", 0), (None, 7)],
        ("f", 7),
    ]
    assert session.events[6].body == {"summary": "S", "data": {"through": 2}}
    assert session.events[9].kind == "summary"


def test_pi_usage(tmp_path: Path) -> None:
    cost = {"input": 0.5, "total": 0.75}
    usage = {"input": 1, "output": 2, "cacheRead": 30, "cacheWrite": 4, "cost": cost}
    said = {"role": "assistant", "model": "m", "provider": "p", "content": [], "usage": usage}
    session = parsed(
        tmp_path / "p.jsonl",
        [
            {"type": "session", "id": "x", "timestamp": "t", "cwd": "/"},
            {"type": "message", "id": "a", "message": said},
        ],
    )
    assert used(session) == [
        {
            "scope": "provider_turn",
            "model": "m",
            "provider": "p",
            "input_tokens": 35,
            "output_tokens": 2,
            "cached_tokens": 30,
            "cache_write_tokens": 4,
            "cost": 0.75,
        }
    ]
    assert session.events[1].body["append"][""]["extra"] == usage


def test_openhands_takes_pairs_too(tmp_path: Path) -> None:
    said = {"action": "message", "source": "user", "args": {"content": "Hi", "x": 1}, "id": 0}
    answer = {"observation": "run", "content": "ok", "cause": 0, "id": 1}
    run = {"instance_id": "i", "instruction": "", "history": [[said, answer], answer]}
    path = tmp_path / "o.jsonl"
    path.write_text(json.dumps(run) + "\n" + json.dumps({**run, "instance_id": "j"}))
    sessions = [each for each in importers.read_file(path) if isinstance(each, ParsedSession)]
    assert [each.name for each in sessions] == ["i", "j"]
    first = sessions[0].events[0]
    assert first.body == {"role": "user", "content": "Hi"}
    assert first.metadata == {"action": "message", "source": "user", "args": {"x": 1}, "id": 0}
    assert sessions[0].events[2].body == answer


def test_openhands_usage_is_counted_with_the_action(tmp_path: Path) -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    of = {"tool_call_metadata": {"model_response": {"id": "r", "model": "m", "usage": usage}}}
    history = [{"action": "run", **of}, {"observation": "run", **of}]
    total = {"accumulated_cost": 0.5, "accumulated_token_usage": {"prompt_tokens": 9}}
    run = {"instance_id": "i", "instruction": "", "history": history, "metrics": total}
    session = one(tmp_path / "o.json", run)
    assert [(event.kind, event.parent) for event in session.events] == [
        ("event", None),
        ("usage", 0),
        ("event", None),
        ("usage", 2),
    ]
    counts = {"input_tokens": 9, "output_tokens": 4, "cached_tokens": 5, "reasoning_tokens": 3}
    assert used(session) == [
        {"scope": "provider_turn", "model": "m", **counts},
        {"scope": "run_total", "input_tokens": 9, "cost": 0.5},
    ]
    assert session.metadata is not None
    assert session.metadata["metrics"] == total


def test_swe_agent_usage(tmp_path: Path) -> None:
    stats = {"total_cost": 2.5, "instance_cost": 0.5, "tokens_sent": 9, "tokens_received": 4}
    run = {
        "trajectory": [{"action": "ls"}],
        "history": [{"role": "user", "content": "Hi"}],
        "info": {"model_stats": stats},
    }
    session = one(tmp_path / "s.traj", run)
    kinds = [(event.kind, event.parent) for event in session.events]
    assert kinds == [("message", None), ("usage", 0), ("annotation", None)]
    assert used(session) == [
        {"scope": "run_total", "input_tokens": 9, "output_tokens": 4, "cost": 0.5}
    ]


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("chatgpt", {"mapping": 3}),
        ("chatgpt", {"mapping": {"a": {"parent": ["x"], "message": {"author": 1}}}}),
        ("chatgpt", {"mapping": {"a": 1, "b": {"children": 4, "message": "x"}}}),
        ("librechat", {"messages": [1]}),
        ("librechat", {"messages": [{"messageId": {}, "parentMessageId": [], "children": 1}]}),
        ("librechat", {"messages": [{"children": [1]}]}),
        ("chatbot-ui", {"history": [1, {"id": 1}, {"messages": [{}]}, {"messages": [1]}]}),
        ("chatbot-ui", {"history": 5}),
        ("oasst", {"prompt": 1}),
        ("oasst", {"prompt": {"role": "x", "text": "y", "replies": [1]}}),
        ("oasst", [1, {"role": 1}, {"role": "x", "text": "y", "parent_id": {}}]),
        ("openhands", {"history": [1]}),
        ("openhands", {"history": [[{"action": "message", "args": 1}]], "issue": 1}),
        ("swe-agent", {"history": [1]}),
        ("swe-agent", {"history": [{"role": 1}], "trajectory": [1, None]}),
        ("claude-code", {"uuid": [1], "parentUuid": {}, "message": 1, "timestamp": 2}),
        ("claude-code", {"uuid": "a", "isCompactSummary": True, "message": {"role": "x"}}),
        ("pi", {"type": "compaction", "summary": 1, "firstKeptEntryIndex": []}),
        ("pi", {"type": "compaction", "summary": "x", "firstKeptEntryIndex": []}),
        ("pi", {"type": "compaction", "summary": "x", "firstKeptEntryId": []}),
        ("pi", {"type": [], "id": {}, "parentId": 4, "message": {"role": []}}),
    ],
)
def test_records_of_another_shape_raise_nothing(tmp_path: Path, form: str, value: Any) -> None:
    path = tmp_path / "f.json"
    path.write_text(json.dumps(value))
    for item in importers.read_file(path, format=form):
        assert isinstance(item, ParsedSession | Damage)
        if isinstance(item, ParsedSession):
            assert all(isinstance(mend, Mend) for mend in item.mends)


@pytest.mark.parametrize(
    "cost",
    [10**400, 1.7e308, 2**63 + 1, float("nan"), -1, "1", True],
    ids=lambda cost: repr(cost)[:20],
)
def test_an_amount_that_no_store_takes_is_left_out(cost: Any) -> None:
    assert amount_of({"cost": cost}, "cost") is None
    assert amount_of({"cost": 2**63}, "cost") == 2**63
