"""Untrusted files: damage is named with its line, costs its own session only, and never raises."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from eventlog.errors import DamagedInputError, UsageError
from turnlog import importers
from turnlog.importers import Damage, ParsedSession, chatterbot
from turnlog.importers.limits import (
    DOCUMENT_BYTES_MAX,
    LINE_BYTES_MAX,
    RECORD_DEPTH_MAX,
    YAML_BYTES_MAX,
    YAML_DEPTH_MAX,
)

Record = Callable[[str], dict[str, Any]]


def _sgd(own: str) -> dict[str, Any]:
    turn = {"speaker": "USER", "utterance": own, "frames": []}
    return {"dialogue_id": own, "turns": [turn]}


def _taskmaster(own: str) -> dict[str, Any]:
    turn = {"speaker": "user", "text": own, "index": 0}
    return {"conversation_id": own, "utterances": [turn]}


def _crosswoz(own: str) -> dict[str, Any]:
    return {"goal": [], "messages": [{"role": "usr", "content": own}]}


def _realpersonachat(own: str) -> dict[str, Any]:
    turn = {"interlocutor_id": "A", "text": own, "timestamp": "2022-08-25T14:31:08"}
    return {"dialogue_id": int(own), "interlocutors": ["A", "B"], "utterances": [turn]}


def _tau(own: str) -> dict[str, Any]:
    return {"task_id": own, "traj": [{"role": "user", "content": own}]}


def _openai(own: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": own}]}


def _chatgpt(own: str) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [own]}
    node = {"message": {"author": {"role": "user"}, "content": content}, "parent": None}
    return {"conversation_id": f"c{own}", "title": "", "mapping": {"a": node}}


def _librechat(own: str) -> dict[str, Any]:
    message = {"messageId": "a", "isCreatedByUser": True, "text": own, "children": []}
    return {"conversationId": f"c{own}", "messages": [message]}


def _oasst(own: str) -> dict[str, Any]:
    prompt = {"message_id": f"m{own}", "role": "prompter", "text": own, "replies": []}
    return {"message_tree_id": f"m{own}", "prompt": prompt}


def _openhands(own: str) -> dict[str, Any]:
    said = {"action": "message", "source": "user", "args": {"content": own}}
    return {"instance_id": f"i{own}", "instruction": "", "history": [said]}


def _swe_agent(own: str) -> dict[str, Any]:
    return {"trajectory": [], "history": [{"role": "user", "content": own}]}


def _claude_code(own: str) -> dict[str, Any]:
    said = {"role": "user", "content": own}
    return {"type": "user", "uuid": f"u{own}", "parentUuid": None, "message": said}


def _pi(own: str) -> dict[str, Any]:
    return {"type": "message", "id": f"p{own}", "message": {"role": "user", "content": own}}


def _chatbot_ui(*own: str) -> dict[str, Any]:
    chats = [{"id": each, "messages": [{"role": "user", "content": each}]} for each in own]
    return {"version": 4, "history": chats}


LISTS: dict[str, Record] = {
    "sgd": _sgd,
    "taskmaster": _taskmaster,
    "realpersonachat": _realpersonachat,
    "tau-bench": _tau,
    "openai": _openai,
    "chatgpt": _chatgpt,
    "librechat": _librechat,
    "oasst": _oasst,
    "openhands": _openhands,
    "swe-agent": _swe_agent,
}
LINES: dict[str, Record] = {
    "tau-bench": _tau,
    "openai": _openai,
    "oasst": _oasst,
    "openhands": _openhands,
}
TRANSCRIPTS: dict[str, Record] = {"claude-code": _claude_code, "pi": _pi}
"""Line by line, and a session a file: a line that is damaged costs itself only, which is a mend."""


def _read(path: Path, form: str) -> tuple[list[str], list[Damage]]:
    """What was said in each sound session, and the damage."""
    found = list(importers.read_file(path, format=form))
    sessions = [item for item in found if isinstance(item, ParsedSession)]
    damage = [item for item in found if isinstance(item, Damage)]
    assert all(item.file == str(path) and item.reason for item in damage)
    return [session.events[0].body["content"] for session in sessions], damage


def _deep(levels: int) -> str:
    return "[" * levels + "]" * levels


# One member of a record each: the damage, and what the reason says.
MEMBERS = [
    pytest.param(b'"x": 1, "x": 2', "occurs twice", id="duplicate-key"),
    pytest.param(b'"x": [NaN]', "NaN", id="nan"),
    pytest.param(b'"x": -Infinity', "Infinity", id="infinity"),
    pytest.param(b'"x": 1e999', "too large", id="float-too-large"),
    pytest.param(b'"x": 18446744073709551616', "out of the range", id="int-too-large"),
    pytest.param(b'"x": ' + b"9" * 5_000, "out of the range", id="int-of-many-digits"),
    pytest.param(b'"x": "\xff"', "UTF-8", id="no-utf-8"),
    pytest.param(b'"x": "\xed\xa0\x80"', "UTF-8", id="surrogate-bytes"),
    pytest.param(b'"x": ' + _deep(RECORD_DEPTH_MAX).encode(), "nested deeper", id="too-deep"),
    pytest.param(b'"x": ' + _deep(100_000).encode(), "nested deeper", id="far-too-deep"),
    pytest.param(b'"x": nope', "no valid JSON", id="bare-word"),
    pytest.param(b'"x": 1,', "no valid JSON", id="trailing-comma"),
    pytest.param(b'"x": "a\tb"', "no valid JSON", id="control-character"),
    pytest.param(b"'x': 1", "no valid JSON", id="single-quotes"),
]


@pytest.mark.parametrize("form", LISTS)
@pytest.mark.parametrize(("member", "words"), MEMBERS)
def test_damage_in_a_list(tmp_path: Path, form: str, member: bytes, words: str) -> None:
    record = LISTS[form]
    broken = json.dumps(record("2")).encode()[:-1] + b",\n" + member + b"}"
    parts = [json.dumps(record(own)).encode() for own in "13"]
    path = tmp_path / "f.json"
    path.write_bytes(b"[" + parts[0] + b",\n" + broken + b",\n" + parts[1] + b"]")
    said, damage = _read(path, form)
    assert said == ["1", "3"]
    assert len(damage) == 1
    assert words in damage[0].reason
    assert damage[0].line in (2, 3)  # the record's first line, or that of the bad place


@pytest.mark.parametrize(("member", "words"), MEMBERS)
def test_damage_in_members(tmp_path: Path, member: bytes, words: str) -> None:
    broken = b'"2": ' + json.dumps(_crosswoz("2")).encode()[:-1] + b",\n" + member + b"}"
    parts = [f'"{own}": {json.dumps(_crosswoz(own))}'.encode() for own in "13"]
    path = tmp_path / "f.json"
    path.write_bytes(b"{" + parts[0] + b",\n" + broken + b",\n" + parts[1] + b"}")
    said, damage = _read(path, "crosswoz")
    assert said == ["1", "3"]
    assert [item.session for item in damage] == ["2"]
    assert words in damage[0].reason
    assert damage[0].line in (2, 3)


@pytest.mark.parametrize("form", LINES)
@pytest.mark.parametrize(("member", "words"), MEMBERS)
def test_damage_in_a_line(tmp_path: Path, form: str, member: bytes, words: str) -> None:
    record = LINES[form]
    broken = json.dumps(record("2")).encode()[:-1] + b", " + member + b"}"
    parts = [json.dumps(record(own)).encode() for own in "13"]
    path = tmp_path / "f.jsonl"
    path.write_bytes(parts[0] + b"\n" + broken + b"\n" + parts[1] + b"\n")
    said, damage = _read(path, form)
    assert said == ["1", "3"]
    assert [item.line for item in damage] == [2]
    assert words in damage[0].reason


@pytest.mark.parametrize("form", TRANSCRIPTS)
@pytest.mark.parametrize(("member", "words"), MEMBERS)
def test_damage_in_a_transcript(tmp_path: Path, form: str, member: bytes, words: str) -> None:
    record = TRANSCRIPTS[form]
    broken = json.dumps(record("2")).encode()[:-1] + b", " + member + b"}"
    _only_the_second_is_left_out(tmp_path / "f.jsonl", form, broken, words)


@pytest.mark.parametrize("form", TRANSCRIPTS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param(b"[1]", "no object", id="list"),
        pytest.param(b"null", "no object", id="null"),
        pytest.param(b"{} {}", "something follows", id="two-values"),
        pytest.param(b"{", "no valid JSON", id="cut-off"),
        pytest.param(b"{}", "no 'type'", id="empty-object"),
        pytest.param(b'{"type": 7}', "no 'type'", id="type-number"),
    ],
)
def test_a_transcript_line_that_is_no_record(
    tmp_path: Path, form: str, line: bytes, words: str
) -> None:
    _only_the_second_is_left_out(tmp_path / "f.jsonl", form, line, words)


def _only_the_second_is_left_out(path: Path, form: str, line: bytes, words: str) -> None:
    record = TRANSCRIPTS[form]
    parts = [json.dumps(record(own)).encode() for own in "13"]
    path.write_bytes(b"\n".join([parts[0], line, parts[1]]))
    (session,) = importers.read_file(path, format=form)
    assert isinstance(session, ParsedSession)
    assert [event.body["content"] for event in session.events] == ["1", "3"]
    assert [(mend.what, mend.line) for mend in session.mends] == [("record", 2)]
    assert words in session.mends[0].reason


@pytest.mark.parametrize("form", LINES)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param(b"[1]", "no object", id="list"),
        pytest.param(b"7", "no object", id="number"),
        pytest.param(b'"text"', "no object", id="text"),
        pytest.param(b"null", "no object", id="null"),
        pytest.param(b"{} {}", "something follows", id="two-values"),
        pytest.param(b"{", "no valid JSON", id="cut-off"),
        pytest.param(b"garbage", "no valid JSON", id="garbage"),
        pytest.param(b"{}", "has no", id="empty-object"),
    ],
)
def test_a_line_that_is_no_record(tmp_path: Path, form: str, line: bytes, words: str) -> None:
    parts = [json.dumps(LINES[form](own)).encode() for own in "12"]
    path = tmp_path / "f.jsonl"
    for at in range(3):
        lines = [*parts[:at], line, *parts[at:]]
        path.write_bytes(b"\n".join(lines))
        said, damage = _read(path, form)
        assert said == ["1", "2"]
        assert [(item.line, words in item.reason) for item in damage] == [(at + 1, True)]


@pytest.mark.parametrize(
    ("form", "broken", "words"),
    [
        pytest.param("sgd", {"turns": []}, "'dialogue_id'", id="sgd-no-id"),
        pytest.param("sgd", {"dialogue_id": 5, "turns": []}, "'dialogue_id'", id="sgd-id-type"),
        pytest.param("sgd", {"dialogue_id": "x"}, "'turns'", id="sgd-no-turns"),
        pytest.param("sgd", {"dialogue_id": "x", "turns": {}}, "'turns'", id="sgd-turns-type"),
        pytest.param("sgd", {"dialogue_id": "x", "turns": [1]}, "turn 0", id="sgd-turn-type"),
        pytest.param(
            "sgd",
            {"dialogue_id": "x", "turns": [{"speaker": "CAT", "utterance": "miau"}]},
            "'CAT'",
            id="sgd-speaker",
        ),
        pytest.param(
            "sgd",
            {"dialogue_id": "x", "turns": [{"speaker": "USER", "utterance": None}]},
            "'utterance'",
            id="sgd-no-text",
        ),
        pytest.param("taskmaster", {"conversation_id": "x"}, "'utterances'", id="tm-no-turns"),
        pytest.param(
            "taskmaster",
            {"conversation_id": "x", "utterances": [{"speaker": "cat", "text": ""}]},
            "'cat'",
            id="tm-speaker",
        ),
        pytest.param("realpersonachat", {"dialogue_id": True}, "'dialogue_id'", id="rpc-id"),
        pytest.param(
            "realpersonachat",
            {"dialogue_id": 7, "interlocutors": ["A", "A"], "utterances": []},
            "two different",
            id="rpc-one-speaker",
        ),
        pytest.param(
            "realpersonachat",
            {
                "dialogue_id": 7,
                "interlocutors": ["A", "B"],
                "utterances": [{"interlocutor_id": "C", "text": "", "timestamp": "NaT"}],
            },
            "'C'",
            id="rpc-unknown-speaker",
        ),
        pytest.param(
            "realpersonachat",
            {
                "dialogue_id": 7,
                "interlocutors": ["A", "B"],
                "utterances": [{"interlocutor_id": "A", "text": "", "timestamp": "noon"}],
            },
            "'noon'",
            id="rpc-time",
        ),
        pytest.param("tau-bench", {"reward": 1}, "'traj'", id="tau-no-messages"),
        pytest.param("tau-bench", {"traj": [{"content": "x"}]}, "'role'", id="tau-no-role"),
        pytest.param(
            "tau-bench", {"messages_display": "hello"}, "begin with a role", id="tau-few-shot"
        ),
        pytest.param("openai", {"messages": "x"}, "'messages'", id="openai-messages-type"),
        pytest.param("openai", {"messages": [[]]}, "message 0", id="openai-message-type"),
        pytest.param("openai", {"messages": [{"role": 1}]}, "'role'", id="openai-role-type"),
        pytest.param("openai", "text", "no record", id="openai-text"),
    ],
)
def test_a_record_of_another_shape(tmp_path: Path, form: str, broken: object, words: str) -> None:
    record = LISTS[form]
    path = tmp_path / "f.json"
    path.write_text(json.dumps([record("1"), broken, record("3")], indent=0))
    first_lines = len(json.dumps([record("1")], indent=0).splitlines())
    said, damage = _read(path, form)
    assert said == ["1", "3"]
    assert [(item.line, words in item.reason) for item in damage] == [(first_lines, True)]


def test_a_member_of_another_shape(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    dialogues = {"1": _crosswoz("1"), "2": [], "3": {"messages": [{"role": "cat"}]}}
    path.write_text(json.dumps(dialogues, indent=0)[:-1] + ',"1": {"messages": []}}')
    said, damage = _read(path, "crosswoz")
    assert said == ["1"]
    assert [(item.session, item.reason.split()[0]) for item in damage] == [
        ("2", "a"),
        ("3", "message"),
        ("1", "the"),
    ]


@pytest.mark.parametrize(
    ("text", "said", "line", "words"),
    [
        pytest.param("[{1},\n", ["1"], 2, "no valid JSON", id="cut-behind-a-comma"),
        pytest.param("[{1}\n", ["1"], 2, "no ','", id="cut-behind-a-record"),
        pytest.param('[{1},\n{"dialogue_id": "2', ["1"], 2, "no valid JSON", id="cut-in-text"),
        pytest.param("[{1},\n]", ["1"], 2, "no valid JSON", id="trailing-comma"),
        pytest.param("[{1}]\n\n{2}", ["1"], 3, "something follows", id="second-document"),
        pytest.param("[{1}\n{2}]", ["1"], 2, "no ','", id="comma-missing"),
        pytest.param("[{1},\nnope,{2}]", ["1"], 2, "no valid JSON", id="bare-word"),
        pytest.param("{1}\nx", [], 2, "something follows", id="object-and-garbage"),
        pytest.param("garbage", [], 1, "no valid JSON", id="garbage"),
        pytest.param("[" * 100_000, [], 1, "nested deeper", id="lists-without-end"),
        pytest.param('{"a":' * 100_000, [], 1, "nested deeper", id="objects-without-end"),
        pytest.param('["' + '\\"' * 100_000, [], 1, "no valid JSON", id="text-without-end"),
        pytest.param(_deep(100_000), [], 1, "nested deeper", id="only-lists"),
    ],
)
def test_a_list_that_goes_wrong(
    tmp_path: Path, text: str, said: list[str], line: int, words: str
) -> None:
    for own in "12":
        text = text.replace("{" + own + "}", json.dumps(_sgd(own)))
    path = tmp_path / "f.json"
    path.write_text(text)
    found, damage = _read(path, "sgd")
    assert found == said
    assert [(item.line, words in item.reason) for item in damage] == [(line, True)]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"[1, 2]", id="numbers"),
        pytest.param(b'{"a": 7}', id="object"),
        pytest.param(b"7", id="number"),
        pytest.param(b"null\n", id="null"),
        pytest.param(b'[[{"dialogue_id": "1", "turns": []}]]', id="list-of-lists"),
        pytest.param(bytes(range(1, 256)) * 40, id="random-bytes"),
        pytest.param(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", id="picture"),
        pytest.param('[{"role": "user"}]'.encode("utf-16"), id="utf-16"),
        pytest.param(b'\xef\xbb\xbf[{"role": 1}]', id="byte-order-mark"),
        pytest.param(b"", id="empty"),
        pytest.param(b" \n\r\n\t", id="blank"),
        pytest.param(b"\xff" * 100, id="no-utf-8"),
    ],
)
@pytest.mark.parametrize("form", importers.FORMATS)
def test_foreign_files(tmp_path: Path, form: str, data: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(data)
    found = list(importers.read_file(path, format=form))
    assert found
    assert all(isinstance(item, Damage) for item in found)


@pytest.mark.parametrize("form", sorted(set(LISTS) - {"realpersonachat"}))
def test_surrogates_written_as_escapes_are_kept(tmp_path: Path, form: str) -> None:
    path = tmp_path / "f.json"
    # Another record that is no UTF-8 must not make them suspicious.
    text = json.dumps([LISTS[form]("1")]).replace('"1"', '"\\udcff"')
    bad = b',\n{"x": "\xff"}]'
    path.write_bytes(text[:-1].replace('_id": "\\udcff"', '_id": "1"').encode() + bad)
    said, damage = _read(path, form)
    assert said == ["\udcff"]
    assert [(item.line, item.reason) for item in damage] == [(2, "no valid UTF-8")]


def test_openai_message_lines_stand_or_fall_together(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    message = b'{"role": "user", "content": "x"}\n'
    for bad in (b"garbage\n", b'{"messages": []}\n', b'{"role": null}\n', b"[]\n"):
        path.write_bytes(message * 2 + bad + message)
        found = list(importers.read_file(path, format="openai"))
        assert [(type(item), item.line) for item in found if isinstance(item, Damage)] == [
            (Damage, 3)
        ]
        assert len(found) == 1
    path.write_bytes(b"garbage\n" + message * 2)
    found = list(importers.read_file(path, format="openai"))
    assert [type(item) for item in found] == [Damage]


YAML_HEAD = "categories: [a]\nconversations:\n- - one\n"


@pytest.mark.parametrize(
    ("text", "said", "line", "words"),
    [
        pytest.param("- - &x two\n  - *x\n- - three\n", ["one", "three"], 5, "alias", id="alias"),
        pytest.param("- - !!python/name:os.system ''\n", ["one"], 4, "tag", id="tag"),
        pytest.param("- !!set {a}\n- - three\n", ["one", "three"], 4, "tag", id="tag-on-item"),
        pytest.param("- - a: b\n- - three\n", ["one", "three"], 4, "no text", id="mapping"),
        pytest.param("- - [a, b]\n- - three\n", ["one", "three"], 4, "no text", id="list"),
        pytest.param("- {a: b}\n- - three\n", ["one", "three"], 4, "no text", id="item"),
        pytest.param(
            f"- - {_deep(500)}\n- - three\n", ["one", "three"], 4, "no text", id="deep-line"
        ),
        pytest.param("- - 'two\n", ["one"], 5, "no valid YAML", id="unclosed"),
        pytest.param("- - two\n\t- x: : y\n", ["one"], None, "no valid YAML", id="syntax"),
        pytest.param("- - two\n---\na: b\n", ["one", "two"], 5, "second document", id="documents"),
        pytest.param("categories: []\n", ["one"], 4, "occurs twice", id="duplicate-key"),
        pytest.param("conversations: []\n", ["one"], 4, "occurs twice", id="duplicate-list"),
        pytest.param("more: {a: 1, a: 2}\n", ["one"], 4, "occurs twice", id="duplicate-inside"),
        pytest.param("? [a]\n: b\n", ["one"], 4, "no text", id="key"),
        pytest.param("more: .inf\n", ["one"], 4, "out of range", id="infinity"),
        pytest.param(f"more: {2**64}\n", ["one"], 4, "out of range", id="int-too-large"),
        pytest.param(f"more: {'9' * 5_000}\n", ["one"], 4, "cannot be read", id="many-digits"),
        pytest.param(f"more: {_deep(64)}\n", ["one"], 4, "nested deeper", id="deep-field"),
        pytest.param(f"more: {'[' * 100_000}", ["one"], 4, "", id="lists-without-end"),
        pytest.param(f"- - {'{a: ' * 100_000}", ["one"], 4, "", id="mappings-without-end"),
        pytest.param("- - \x01\n", ["one"], None, "no valid YAML", id="control-character"),
        pytest.param("- - \udcff\n", ["one"], None, "no valid YAML", id="no-utf-8"),
    ],
)
@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
def test_damage_in_yaml(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loader: str,
    text: str,
    said: list[str],
    line: int | None,
    words: str,
) -> None:
    if not hasattr(yaml, loader):
        pytest.skip("PyYAML was built without its parser in C")
    monkeypatch.setattr(chatterbot, "_LOADER", getattr(yaml, loader))
    path = tmp_path / "f.yml"
    path.write_bytes((YAML_HEAD + text).encode("utf-8", "surrogateescape"))
    found, damage = _read(path, "chatterbot")
    assert len(damage) == 1
    assert words in damage[0].reason
    if line is not None:
        assert damage[0].line == line
        assert found == said
    else:
        # How much the parser had read of the file when it met the bad place is its own affair.
        assert found in (said, [])


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
def test_yaml_nesting_passed_over_at_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: str
) -> None:
    if not hasattr(yaml, loader):
        pytest.skip("PyYAML was built without its parser in C")
    monkeypatch.setattr(chatterbot, "_LOADER", getattr(yaml, loader))
    path = tmp_path / "f.yml"
    for levels, said in ((YAML_DEPTH_MAX, ["one", "three"]), (YAML_DEPTH_MAX + 1, ["one"])):
        path.write_text(f"{YAML_HEAD}- - {_deep(levels)}\n- - three\n")
        found, damage = _read(path, "chatterbot")
        assert found == said
        assert [item.line for item in damage] == [4]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("- a\n", "no mapping", id="list"),
        pytest.param("categories: [a]\n", "no 'conversations'", id="no-conversations"),
        pytest.param("conversations:\n", "no list", id="null"),
        pytest.param("conversations: {a: b}\n", "no list", id="mapping"),
        pytest.param("# nothing\n", "no mapping", id="only-comments"),
        pytest.param(
            "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\nconversations: []\n", "alias", id="bomb"
        ),
    ],
)
def test_yaml_of_another_shape(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "f.yml"
    path.write_text(text)
    found, damage = _read(path, "chatterbot")
    assert found == []
    assert [words in item.reason for item in damage] == [True]


@pytest.mark.parametrize(
    ("levels", "sound"), [(RECORD_DEPTH_MAX - 1, True), (RECORD_DEPTH_MAX, False)]
)
@pytest.mark.parametrize("form", LISTS)
def test_nesting_at_the_bound(tmp_path: Path, form: str, levels: int, sound: bool) -> None:
    text = json.dumps(LISTS[form]("1"))[:-1] + f', "x": {_deep(levels)}}}'
    path = tmp_path / "f.json"
    for layout in (f"[{text}]", text):
        path.write_text(layout)
        said, damage = _read(path, form)
        assert (said == ["1"], len(damage)) == (sound, 0 if sound else 1)


@pytest.mark.parametrize(("past", "sound"), [(0, True), (1, False)])
def test_a_line_at_the_bound(tmp_path: Path, past: int, sound: bool) -> None:
    path = tmp_path / "f.jsonl"
    line = json.dumps(_openai("1")).encode()
    with path.open("wb") as file:
        file.write(line[:-1] + b" " * (LINE_BYTES_MAX + past - len(line)) + b"}\n")
        file.write(json.dumps(_openai("2")).encode())
    said, damage = _read(path, "openai")
    assert said == (["1", "2"] if sound else ["2"])
    assert [item.line for item in damage] == ([] if sound else [1])


@pytest.mark.parametrize(
    ("form", "bytes_max"),
    [
        pytest.param("sgd", DOCUMENT_BYTES_MAX, id="json"),
        pytest.param("chatterbot", YAML_BYTES_MAX, id="yaml"),
    ],
)
def test_a_document_past_the_bound(tmp_path: Path, form: str, bytes_max: int) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.truncate(bytes_max + 1)  # a hole: no byte of it is read
    said, damage = _read(path, form)
    assert said == []
    assert [f"{bytes_max + 1:,} bytes" in item.reason for item in damage] == [True]


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl"))
    try:
        path.write_text(json.dumps(_openai("1")))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    (session,) = importers.read_file(path)
    assert isinstance(session, ParsedSession)
    assert session.name == "\ufffd/0"


@pytest.mark.parametrize("form", [None, *importers.FORMATS])
def test_what_is_no_file(tmp_path: Path, form: str | None) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / "a\0b"):
        with pytest.raises(UsageError):
            importers.read_file(path, format=form)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UsageError):
        importers.read_file(path)


def test_an_unknown_format(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("[]")
    with pytest.raises(UsageError, match="'xml'") as caught:
        importers.read_file(path, format="xml")
    assert all(name in caught.value.hint for name in importers.FORMATS)
    with pytest.raises(DamagedInputError):
        importers.read_file(path)


WHOLE = {
    **{form: json.dumps([record("1"), record("2")]).encode() for form, record in LISTS.items()},
    "crosswoz": json.dumps({"1": _crosswoz("1"), "2": _crosswoz("2")}, indent=1).encode(),
    "chatterbot": (YAML_HEAD + "- - a: b\n- two\n").encode(),
    "jsonl": b"".join(
        json.dumps({"session": own, "sequence": 0, "kind": "x", "body": own}).encode() + b"\n"
        for own in "12"
    ),
    "chatbot-ui": json.dumps(_chatbot_ui("1", "2")).encode(),
    **{
        form: b"".join(json.dumps(record(own)).encode() + b"\n" for own in "12")
        for form, record in TRANSCRIPTS.items()
    },
}
PIECES = st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"- ", b"&a *a"])


@pytest.mark.parametrize("form", importers.FORMATS)
@given(
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 6), st.one_of(PIECES, st.binary(max_size=3))),
        min_size=1,
        max_size=4,
    )
)
def test_no_file_raises(
    tmp_path_factory: pytest.TempPathFactory, form: str, edits: list[tuple[float, int, bytes]]
) -> None:
    data = WHOLE[form]
    for place, removed, piece in edits:
        at = int(place * len(data))
        data = data[:at] + piece + data[at + removed :]
    path = tmp_path_factory.getbasetemp() / f"edited-{form}"
    path.write_bytes(data)
    for item in importers.read_file(path, format=form):
        assert isinstance(item, ParsedSession | Damage)
    try:
        assert importers.detect(path) in importers.FORMATS
    except DamagedInputError as error:
        assert error.reason
