"""turnlog's own export lines: grouped by session, checked, and decoded by the engine."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest

from engine.export import encode_line, escape
from eventlog.limits import DEPTH_MAX
from turnlog import importers
from turnlog.importers import Damage, ParsedEvent, ParsedSession


def _line(session: str = "a", sequence: int = 0, **more: Any) -> dict[str, Any]:
    line: dict[str, Any] = {}
    if "tenant" in more:
        line["tenant"] = more.pop("tenant")
    return {**line, "session": session, "sequence": sequence, "kind": "message", **more}


def _read(
    tmp_path: Path, lines: Sequence[dict[str, Any] | str | bytes], form: str | None = "jsonl"
) -> tuple[list[ParsedSession], list[Damage]]:
    path = tmp_path / "export.jsonl"
    raw = []
    for line in lines:
        text = encode_line(line) if isinstance(line, dict) else line
        raw.append(text if isinstance(text, bytes) else text.encode())
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    found = list(importers.read_file(path, format=form))
    return (
        [item for item in found if isinstance(item, ParsedSession)],
        [item for item in found if isinstance(item, Damage)],
    )


def test_every_key_arrives(tmp_path: Path) -> None:
    body = {"role": "user", "content": b"\0\xff", "$key": ["\ud83d", float("inf"), 2**64 - 1]}
    first = _line(
        "call\x00\n7",
        tenant="acme",
        id="given",
        time_us=-5,
        recorded_us=7,
        tokens=3,
        run_id="r",
        turn_id="t",
        speech_id="s",
        request_id="q",
        opening=escape({"user_id": "u", "title": "T", "metadata": {"k": b"1"}, "more": 1}),
        metadata=escape({"m": {"$": 1}}),
        body=escape(body),
    )
    second = _line("call\x00\n7", 1, tenant="acme", parent=0)
    (session,), damage = _read(tmp_path, [first, second], form=None)
    assert not damage
    assert session == ParsedSession(
        "call\x00\n7",
        [
            ParsedEvent(
                "message",
                body,
                metadata={"m": {"$": 1}},
                id="given",
                time_us=-5,
                recorded_us=7,
                sequence=0,
                tokens=3,
                run_id="r",
                turn_id="t",
                speech_id="s",
                request_id="q",
                opening={"user_id": "u", "title": "T", "metadata": {"k": b"1"}, "more": 1},
            ),
            ParsedEvent("message", None, sequence=1, parent=0),
        ],
        user_id="u",
        title="T",
        metadata={"k": b"1"},
        tenant="acme",
        lines=(1, 2),
        event_lines=array("Q", [1, 2]),
    )


def test_lines_of_many_sessions_may_be_mixed(tmp_path: Path) -> None:
    names = [(tenant, name) for tenant in ("", "t", "🙂") for name in ("a", "b", 'q"\\{', "ä")]
    lengths = [1 + 3 * number % 7 for number in range(len(names))]
    streams = [
        [
            _line(name, n, body=f"{tenant}{name}{n}", **({"tenant": tenant} if tenant else {}))
            for n in range(length)
        ]
        for (tenant, name), length in zip(names, lengths, strict=True)
    ]
    mixed = [line for line in chain(*zip_longest(*streams)) if line is not None]
    # The same name may be spelled with escapes, and keys may stand in any order.
    lines = [
        line if number % 3 else json.dumps(dict(sorted(line.items())))
        for number, line in enumerate(mixed)
    ]
    sessions, damage = _read(tmp_path, lines)
    assert not damage
    assert [(session.tenant, session.name) for session in sessions] == names
    for session, length in zip(sessions, lengths, strict=True):
        expected = [f"{session.tenant}{session.name}{number}" for number in range(length)]
        assert [event.body for event in session.events] == expected
        assert [event.sequence for event in session.events] == list(range(length))


def test_sequences_may_start_late_and_have_gaps(tmp_path: Path) -> None:
    (session,), damage = _read(tmp_path, [_line(sequence=n, parent=n - 1) for n in (5, 6, 9)])
    assert not damage
    assert [event.sequence for event in session.events] == [5, 6, 9]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        pytest.param(_line(sequence=0), "comes after", id="sequence-repeated"),
        pytest.param(_line(sequence=-1), "sequence", id="sequence-negative"),
        pytest.param({**_line(), "sequence": "1"}, "sequence", id="sequence-text"),
        pytest.param({**_line(), "sequence": True}, "sequence", id="sequence-bool"),
        pytest.param({**_line(), "sequence": 1.0}, "sequence", id="sequence-float"),
        pytest.param({"session": "a", "kind": "message"}, "no sequence", id="sequence-missing"),
        pytest.param({"session": "a", "sequence": 1}, "kind", id="kind-missing"),
        pytest.param({**_line(sequence=1), "kind": ""}, "kind", id="kind-empty"),
        pytest.param({**_line(sequence=1), "kind": "k" * 65}, "kind", id="kind-too-long"),
        pytest.param(_line(sequence=1, parent=1), "parent", id="parent-itself"),
        pytest.param(_line(sequence=1, tokens=-1), "tokens", id="tokens-negative"),
        pytest.param(_line(sequence=1, id=""), "id", id="id-empty"),
        pytest.param(_line(sequence=1, id="i" * 513), "id", id="id-too-long"),
        pytest.param(_line(sequence=1, time_us="now"), "time_us", id="time-text"),
        pytest.param(_line(sequence=1, opening={}), "opening", id="opening-late"),
        pytest.param(_line(sequence=1, metadata=[]), "metadata", id="metadata-list"),
        pytest.param(_line(sequence=1, position=4), "position", id="unknown-key"),
        pytest.param(_line(sequence=1, body={"$b64": "?"}), "$b64", id="escape-malformed"),
        pytest.param(_line(sequence=1, body={"$what": 1}), "$what", id="escape-unknown"),
        pytest.param(
            '{"session":"a","sequence":1,"kind":"message","body":"\\ud800"}',
            "surrogate",
            id="surrogate-not-escaped",
        ),
        pytest.param('{"session":"a","sequence":1,"kind":"message"', "no valid", id="cut-off"),
        pytest.param('{"session":"a","sequence":1,"sequence":1}', "twice", id="duplicate-key"),
        pytest.param('{"session":"a","sequence":1,"body":NaN}', "NaN", id="nan"),
        pytest.param('{"session":"a","sequence":1,"body":1e999}', "too large", id="float"),
        pytest.param(b'{"session":"a","sequence":1,"body":"\xff"}', "UTF-8", id="no-utf-8"),
        pytest.param(
            '{"session":"a","session":"b","sequence":1,"kind":"x"}', "twice", id="two-sessions"
        ),
        pytest.param(
            '{"session":"a","sequence":1,"kind":"x","body":' + "[" * 100_000,
            "nested deeper",
            id="lists-without-end",
        ),
    ],
)
def test_a_damaged_line_breaks_its_session_only(
    tmp_path: Path, bad: dict[str, Any] | str | bytes, words: str
) -> None:
    lines = [_line("b", 0), _line("a", 0), bad, _line("b", 1), _line("a", 2)]
    sessions, damage = _read(tmp_path, lines)
    assert [session.name for session in sessions] == ["b"]
    assert len(sessions[0].events) == 2
    assert [(item.line, item.session) for item in damage] == [(3, "a")]
    assert words in damage[0].reason


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        pytest.param("garbage", "no valid JSON", id="garbage"),
        pytest.param("[]", "no object", id="list"),
        pytest.param("{}", "names no session", id="empty-object"),
        pytest.param('{"session":7,"sequence":1}', "names no session", id="session-number"),
        pytest.param('{"session":"","sequence":1}', "empty", id="session-empty"),
        pytest.param('{"session":"\\ud800","sequence":1}', "surrogate", id="session-surrogate"),
        pytest.param(b'{"session":"\xff","sequence":1}', "name", id="session-no-utf-8"),
        pytest.param('{"session":"' + "x" * 513 + '"}', "513 bytes", id="session-too-long"),
        pytest.param('{"tenant":7,"session":"a"}', "names no session", id="tenant-number"),
        pytest.param('{"sess', "no valid JSON", id="cut-off"),
        pytest.param("[" * 100_000, "nested deeper", id="lists-without-end"),
    ],
)
def test_a_line_without_a_session(tmp_path: Path, bad: str | bytes, words: str) -> None:
    # Session a misses a sequence where the line is lost, session b does not.
    lines = [_line("a", 0), _line("b", 0), bad, _line("a", 2), _line("b", 1)]
    sessions, damage = _read(tmp_path, lines)
    assert [session.name for session in sessions] == ["b"]
    assert [(item.line, item.session) for item in damage] == [(3, None), (4, "a")]
    assert words in damage[0].reason
    assert "sequence 1 is missing" in damage[1].reason
    # Nothing is missing anywhere: the others are sound.
    sessions, damage = _read(tmp_path, [_line("a", 0), bad, _line("a", 1), _line("a", 5)])
    assert [len(session.events) for session in sessions] == [3]
    assert [item.line for item in damage] == [2]


def test_all_damaged_lines_of_a_session_are_named(tmp_path: Path) -> None:
    bad = '{"session":"a","sequence":'
    sessions, damage = _read(tmp_path, [bad, _line("a", 1), bad, _line("a", 1), _line("a", 2)])
    assert sessions == []
    assert [item.line for item in damage] == [1, 3, 4]


def test_a_lost_line_is_blamed_once(tmp_path: Path) -> None:
    """Every later event of the session was called damaged too, one message each."""
    lines = [_line("a", 0), "garbage", *(_line("a", number) for number in range(2, 50))]
    sessions, damage = _read(tmp_path, lines)
    assert sessions == []
    assert [(item.line, item.session, item.events) for item in damage] == [
        (2, None, None),
        (3, "a", 49),
    ]


def test_a_repeated_part_is_blamed_once(tmp_path: Path) -> None:
    part = [_line("a", number) for number in range(10)]
    sessions, damage = _read(tmp_path, [*part, *part])
    assert sessions == []
    assert [(item.line, item.events) for item in damage] == [(11, 20)]


def test_a_byte_order_mark_breaks_the_first_line(tmp_path: Path) -> None:
    first = b"\xef\xbb\xbf" + json.dumps(_line("a", 0)).encode()
    sessions, damage = _read(tmp_path, [first, _line("b", 0), _line("a", 1)], form=None)
    assert [session.name for session in sessions] == ["b"]
    assert [(item.line, item.session) for item in damage] == [(1, "a")]


@pytest.mark.parametrize(("levels", "sound"), [(DEPTH_MAX, True), (DEPTH_MAX + 1, False)])
@pytest.mark.parametrize("leaf", [pytest.param(1, id="plain"), pytest.param(b"x", id="escaped")])
def test_bodies_as_deep_as_a_store_takes_them(
    tmp_path: Path, levels: int, sound: bool, leaf: object
) -> None:
    body: Any = leaf
    for _ in range(levels):
        body = [body]
    text = json.dumps(_line(body=None))
    value = json.dumps({"$b64": "eA=="} if isinstance(leaf, bytes) else leaf)
    text = text.replace("null", "[" * levels + value + "]" * levels)
    sessions, damage = _read(tmp_path, [text])
    assert (len(sessions), len(damage)) == ((1, 0) if sound else (0, 1))
    if sound:
        assert sessions[0].events[0].body == body


def test_names_that_look_like_paths_or_json(tmp_path: Path) -> None:
    names = ["../x", "%", 'a"b', "a\\", '{"session":"z"}', "\u2028", "tenant", '"tenant"']
    sessions, damage = _read(tmp_path, [_line(name) for name in names])
    assert not damage
    assert [session.name for session in sessions] == names


def test_a_tenant_behind_the_body_counts(tmp_path: Path) -> None:
    late = '{"session":"a","sequence":0,"kind":"x","body":1,"tenant":"t"}'
    sessions, damage = _read(tmp_path, [late, encode_line(_line("a", 0))])
    assert not damage
    assert [(session.tenant, session.name) for session in sessions] == [("t", "a"), ("", "a")]
