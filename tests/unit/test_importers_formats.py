"""Every format: what becomes of its turns, and that the original record can be rebuilt from it.

The fixtures are invented. The tests marked `corpus` do the same with real files.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from turnlog import importers
from turnlog.importers import Damage, ParsedEvent, ParsedSession

SGD = [
    {
        "dialogue_id": "7_00001",
        "services": ["Trams_1"],
        "turns": [
            {
                "frames": [{"actions": [], "service": "Trams_1", "slots": [], "state": {"n": 1}}],
                "speaker": "USER",
                "utterance": "When does the next tram leave?",
            },
            {"frames": [], "speaker": "SYSTEM", "utterance": "In four minutes."},
        ],
    },
    {"dialogue_id": "7_00002", "services": [], "turns": [], "note": {"kept": [1.5, None]}},
]
TASKMASTER = [
    {
        "conversation_id": "dlg-1",
        "vertical": "Tea",
        "scenario": "Green tea",
        "instructions": None,
        "utterances": [
            {
                "index": 0,
                "speaker": "user",
                "text": "A green tea, please",
                "segments": [{"start_index": 2, "end_index": 7}],
                "annotations": [{"name": "api_call", "value": "menu", "context": "c0"}],
            },
            {"index": 1, "speaker": "ASSISTANT", "text": "Coming up", "annotations": []},
        ],
    }
]
CROSSWOZ = {
    "41": {
        "sys-usr": [3, 4],
        "goal": [[1, "公园", "名称", [], False]],
        "messages": [
            {"content": "你好", "role": "usr", "dialog_act": [["General"]], "user_state": []},
            {
                "content": "您好",
                "role": "sys",
                "dialog_act": [],
                "sys_state": {"公园": {"名称": ""}},
                "sys_state_init": {},
            },
        ],
        "final_goal": [],
        "task description": ["找公园"],
        "type": "单领域",
    },
    "42": {"messages": [], "goal": []},
}
REALPERSONACHAT = {
    "dialogue_id": 31,
    "interlocutors": ["XA", "XB"],
    "utterances": [
        {
            "utterance_id": 0,
            "interlocutor_id": "XA",
            "text": "おはよう",
            "timestamp": "2022-08-25T14:31:08.448001",
        },
        {
            "utterance_id": 1,
            "interlocutor_id": "XB",
            "text": "やあ",
            "timestamp": "2022-08-25T00:00:00",
        },
        {"utterance_id": 2, "interlocutor_id": "XA", "text": "では", "timestamp": "NaT"},
    ],
    "evaluations": [{"interlocutor_id": "XA", "interest": 4}],
}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "a \ud83d b"}], "name": "ann"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "{}", "extra": 2**64 - 1},
]
TAU = [
    {
        "task_id": task,
        "reward": 1.0,
        "info": {"task": {"user_id": "pat_1", "actions": []}, "user_cost": None},
        "traj": MESSAGES,
        "trial": trial,
    }
    for task in (0, 1)
    for trial in (0, 1)
]
FLAT = [
    {"messages_display": "user: Hi\nthere\n\nassistant: None\ntool: {}\nassistant: user: quoted"},
    {"messages_display": "system: \nuser: None\nassistant: ok\n"},
]
CHATS = [{"messages": MESSAGES, "tools": [{"x": 1}], "id": 5}, {"messages": MESSAGES[:1]}]
CHATTERBOT = """\
# a comment
categories: [small talk, 7]
conversations:
- - How old are you?
  - 4
- - Yes
  - "Yes"
  - 12:30
  - ~
  - 2001-01-01
  - |
    two
    lines
- A lonely line
source: {since: 2001, sure: no}
"""


def _dump(value: object) -> bytes:
    return json.dumps(value).encode()


def _lines(values: list[Any]) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def _read(path: Path, form: str | None = None) -> list[ParsedSession]:
    found = list(importers.read_file(path, format=form))
    sessions = [item for item in found if isinstance(item, ParsedSession)]
    assert len(sessions) == len(found), [item for item in found if isinstance(item, Damage)]
    assert all(type(event) is ParsedEvent for one in sessions for event in one.events)
    return sessions


# Each of these makes the record that a session was parsed from.


def _turns(session: ParsedSession, content: str) -> list[dict[str, Any]]:
    return [{**(event.metadata or {}), content: event.body["content"]} for event in session.events]


def _sgd(session: ParsedSession) -> Any:
    return {**(session.metadata or {}), "turns": _turns(session, "utterance")}


def _taskmaster(session: ParsedSession) -> Any:
    return {**(session.metadata or {}), "utterances": _turns(session, "text")}


def _crosswoz(session: ParsedSession) -> Any:
    return {**(session.metadata or {}), "messages": _turns(session, "content")}


def _realpersonachat(session: ParsedSession) -> Any:
    return {**(session.metadata or {}), "utterances": _turns(session, "text")}


def _tau(session: ParsedSession) -> Any:
    assert all(event.metadata is None for event in session.events)
    return {**(session.metadata or {}), "traj": [event.body for event in session.events]}


def _flat(session: ParsedSession) -> Any:
    texts = [f"{event.body['role']}: {event.body['content']}" for event in session.events]
    return {**(session.metadata or {}), "messages_display": "\n".join(texts)}


def _openai(session: ParsedSession) -> Any:
    return {**(session.metadata or {}), "messages": [event.body for event in session.events]}


def _chatterbot(session: ParsedSession) -> Any:
    """The conversation as YAML's own loader reads it; dates stay text in what is imported."""
    lines: list[Any] = []
    for event in session.events:
        metadata = event.metadata or {}
        tag = metadata.get("yaml_tag")
        text = event.body["content"]
        if tag is None:
            lines.append(text)
        else:
            node = yaml.ScalarNode(tag, text)
            lines.append(yaml.constructor.SafeConstructor().construct_object(node))
        if metadata.get("conversation_is_text"):
            return lines[0]
    return lines


@pytest.mark.parametrize(
    ("name", "data", "form", "rebuild", "records"),
    [
        pytest.param("d.json", _dump(SGD), "sgd", _sgd, SGD, id="sgd"),
        pytest.param("d.json", _dump(TASKMASTER), "taskmaster", _taskmaster, TASKMASTER, id="tm"),
        pytest.param(
            "d.json", _dump(CROSSWOZ), "crosswoz", _crosswoz, list(CROSSWOZ.values()), id="crosswoz"
        ),
        pytest.param(
            "031.json",
            json.dumps(REALPERSONACHAT, indent=4, ensure_ascii=False).encode(),
            "realpersonachat",
            _realpersonachat,
            [REALPERSONACHAT],
            id="realpersonachat",
        ),
        pytest.param("t.json", _dump(TAU), "tau-bench", _tau, TAU, id="tau-bench"),
        pytest.param("t.jsonl", _lines(TAU), "tau-bench", _tau, TAU, id="tau-bench-lines"),
        pytest.param("f.jsonl", _lines(FLAT), "tau-bench", _flat, FLAT, id="tau-bench-few-shot"),
        pytest.param("c.jsonl", _lines(CHATS), "openai", _openai, CHATS, id="openai-chat-lines"),
        pytest.param("c.json", _dump(CHATS), "openai", _openai, CHATS, id="openai-chat-list"),
        pytest.param("c.json", _dump(CHATS[0]), "openai", _openai, CHATS[:1], id="openai-chat"),
        pytest.param(
            "c.json",
            json.dumps(CHATS[0], indent=1).encode(),
            "openai",
            _openai,
            CHATS[:1],
            id="openai-chat-indented",
        ),
        pytest.param(
            "m.json",
            _dump(MESSAGES),
            "openai",
            _openai,
            [{"messages": MESSAGES}],
            id="openai-messages",
        ),
        pytest.param(
            "m.jsonl",
            _lines(MESSAGES),
            "openai",
            _openai,
            [{"messages": MESSAGES}],
            id="openai-message-lines",
        ),
    ],
)
def test_nothing_is_dropped(
    tmp_path: Path,
    name: str,
    data: bytes,
    form: str,
    rebuild: Callable[[ParsedSession], Any],
    records: list[Any],
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert importers.detect(path) == form
    sessions = _read(path)
    assert [rebuild(session) for session in sessions] == records
    assert len({session.name for session in sessions}) == len(sessions)
    assert {event.kind for session in sessions for event in session.events} <= {"message"}
    assert {session.tenant for session in sessions} == {""}


def test_sgd_roles_names_and_lines(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    folder.mkdir()
    for path, names in [
        (tmp_path / "d.json", ["7_00001", "7_00002"]),
        (folder / "d.json", ["dev/7_00001", "dev/7_00002"]),
    ]:
        path.write_text(json.dumps(SGD, indent=1))
        sessions = _read(path)
        assert [session.name for session in sessions] == names
        assert [event.body for event in sessions[0].events] == [
            {"role": "user", "content": "When does the next tram leave?"},
            {"role": "assistant", "content": "In four minutes."},
        ]
        assert sessions[0].events[1].metadata == {"frames": [], "speaker": "SYSTEM"}
        text = path.read_text().splitlines()
        for session in sessions:
            assert session.lines is not None
            first, last = session.lines
            assert json.loads("\n".join(text[first - 1 : last]).strip().rstrip(",")) == _sgd(
                session
            )


def test_taskmaster_keeps_the_speaker_as_written(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(_dump(TASKMASTER))
    (session,) = _read(path)
    assert session.name == "dlg-1"
    assert [event.body["role"] for event in session.events] == ["user", "assistant"]
    assert session.events[1].metadata == {"index": 1, "speaker": "ASSISTANT", "annotations": []}


def test_crosswoz_names_sessions_after_members(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(_dump(CROSSWOZ))
    sessions = _read(path)
    assert [session.name for session in sessions] == ["41", "42"]
    assert [event.body for event in sessions[0].events] == [
        {"role": "user", "content": "你好"},
        {"role": "assistant", "content": "您好"},
    ]
    assert sessions[1].events == []


def test_realpersonachat_times_are_japanese(tmp_path: Path) -> None:
    path = tmp_path / "031.json"
    path.write_bytes(_dump(REALPERSONACHAT))
    (session,) = _read(path)
    assert session.name == "31"
    assert [event.body["role"] for event in session.events] == ["user", "assistant", "user"]
    moments = [
        datetime(2022, 8, 25, 5, 31, 8, tzinfo=UTC).timestamp() * 1_000_000 + 448_001,
        datetime(2022, 8, 24, 15, 0, 0, tzinfo=UTC).timestamp() * 1_000_000,
        None,
    ]
    assert [event.time_us for event in session.events] == moments
    assert session.events[2].metadata == {
        "utterance_id": 2,
        "interlocutor_id": "XA",
        "timestamp": "NaT",
    }


def test_tau_bench_names_user_and_bodies(tmp_path: Path) -> None:
    path = tmp_path / "gpt-9.json"
    path.write_bytes(_dump(TAU))
    sessions = _read(path)
    assert [session.name for session in sessions] == [f"gpt-9/{number}" for number in range(4)]
    assert {session.user_id for session in sessions} == {"pat_1"}
    assert [event.body for event in sessions[0].events] == MESSAGES


def test_tau_bench_few_shot_is_cut_at_roles(tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    path.write_bytes(_lines(FLAT))
    first, second = _read(path)
    assert [event.body for event in first.events] == [
        {"role": "user", "content": "Hi\nthere\n"},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "{}"},
        {"role": "assistant", "content": "user: quoted"},
    ]
    assert second.events[1].body == {"role": "user", "content": "None"}
    assert second.lines == (2, 2)


@pytest.mark.parametrize(
    ("value", "time_us"),
    [
        pytest.param(1_700_000_000, 1_700_000_000_000_000, id="seconds"),
        pytest.param(1_700_000_000.25, 1_700_000_000_250_000, id="fraction"),
        pytest.param("1970-01-01T01:00:00.5+01:00", 500_000, id="zone"),
        pytest.param("1969-12-31T23:59:59Z", -1_000_000, id="before-1970"),
        pytest.param("1970-01-01T00:00:00", None, id="no-zone"),
        pytest.param("yesterday", None, id="no-time"),
        pytest.param(True, None, id="bool"),
        pytest.param(1_700_000_000_000_000, None, id="no-seconds"),
        pytest.param(None, None, id="null"),
    ],
)
def test_openai_given_time(tmp_path: Path, value: object, time_us: int | None) -> None:
    path = tmp_path / "c.jsonl"
    message = {"role": "user", "content": "x", "created_at": value}
    path.write_bytes(_lines([{"messages": [message]}]))
    (session,) = _read(path)
    assert session.events[0].time_us == time_us
    assert session.events[0].body == message


def test_openai_names_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "chats.v2.jsonl"
    path.write_bytes(_lines([CHATS[0]]) + b"\r\n\n" + _lines([CHATS[1]]).rstrip())
    sessions = _read(path)
    assert [session.name for session in sessions] == ["chats.v2/0", "chats.v2/1"]
    assert [session.lines for session in sessions] == [(1, 1), (4, 4)]
    assert sessions[0].metadata == {"tools": [{"x": 1}], "id": 5}
    assert sessions[1].metadata is None
    path.write_bytes(b"\n" + _lines(MESSAGES))
    (session,) = _read(path)
    assert (session.name, session.lines) == ("chats.v2/0", (2, 5))


def test_chatterbot_keeps_lines_as_written(tmp_path: Path) -> None:
    folder = tmp_path / "elvish"
    folder.mkdir()
    path = folder / "talk.yml"
    path.write_text(CHATTERBOT)
    assert importers.detect(path) == "chatterbot"
    sessions = _read(path)
    assert [session.name for session in sessions] == [f"elvish/talk/{n}" for n in range(3)]
    assert [session.lines for session in sessions] == [(4, 5), (6, 13), (14, 14)]
    contents = [[event.body["content"] for event in session.events] for session in sessions]
    assert contents == [
        ["How old are you?", "4"],
        ["Yes", "Yes", "12:30", "~", "2001-01-01", "two\nlines\n"],
        ["A lonely line"],
    ]
    assert [event.body["role"] for event in sessions[1].events] == ["user", "assistant"] * 3
    tags = [(event.metadata or {}).get("yaml_tag") for event in sessions[1].events]
    kinds = [None if tag is None else tag.rpartition(":")[2] for tag in tags]
    assert kinds == ["bool", None, "int", "null", "timestamp", None]
    raw = yaml.safe_load(CHATTERBOT)
    assert [_chatterbot(session) for session in sessions] == raw.pop("conversations")
    for session in sessions:
        assert (
            session.metadata
            == raw
            == {
                "categories": ["small talk", 7],
                "source": {"since": 2001, "sure": False},
            }
        )


def test_chatterbot_takes_a_byte_order_mark(tmp_path: Path) -> None:
    # YAML allows the mark, and two files of the real corpus have it.
    path = tmp_path / "talk.yml"
    path.write_bytes(b"\xef\xbb\xbf" + CHATTERBOT.encode())
    assert importers.detect(path) == "chatterbot"
    assert len(_read(path)) == 3


@pytest.mark.parametrize(
    ("records", "names"),
    [
        pytest.param(["a", "a", "b"], ["a", "f/1", "b"], id="repeated"),
        pytest.param(["f/1", "f/1"], ["f/1", None], id="fallback-taken"),
        pytest.param(["x" * 512], ["x" * 512], id="at-the-bound"),
        pytest.param(["x" * 513], [None], id="past-the-bound"),
        pytest.param([""], [None], id="empty"),
        pytest.param(["\ud800"], [None], id="surrogate"),
        pytest.param(["a\x00b", "../x", "%", "🙂"], ["a\x00b", "../x", "%", "🙂"], id="odd"),
    ],
)
def test_session_names(tmp_path: Path, records: list[str], names: list[str | None]) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(_dump([{"dialogue_id": own, "turns": []} for own in records]))
    found = list(importers.read_file(path, format="sgd"))
    assert [item.name if isinstance(item, ParsedSession) else None for item in found] == names


def test_sessions_are_read_lazily(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(_dump(SGD)[:-1] + b", no JSON")
    items = importers.read_file(path, format="sgd")
    assert isinstance(next(items), ParsedSession)
    assert isinstance(next(items), ParsedSession)
    assert isinstance(next(items), Damage)
    assert next(items, None) is None


# Real files


def _files(corpus: Path, source: str, end: str, folder: Path, count: int) -> Iterator[Path]:
    """Files of a packed source, under `folder` as they lay in it; removed once they are read."""
    archive = corpus / source / "data.tar.xz"
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    with tarfile.open(archive, "r:xz") as packed:
        for member in packed:
            if not (member.isfile() and member.name.endswith(end)) or "schema" in member.name:
                continue
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = packed.extractfile(member)
            assert stream is not None
            path.write_bytes(stream.read())
            yield path
            path.unlink()
            count -= 1
            if not count:
                return


def _documents(path: Path) -> list[Any]:
    value = json.loads(path.read_bytes())
    if isinstance(value, list):
        return value
    return [value] if "dialogue_id" in value else list(value.values())


def _rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _conversations(path: Path) -> list[Any]:
    conversations: list[Any] = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)[
        "conversations"
    ]
    return conversations


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("source", "end", "form", "rebuild", "originals", "files", "sessions", "events"),
    [
        pytest.param("sgd-train", ".json", "sgd", _sgd, _documents, 3, None, None, id="sgd"),
        pytest.param(
            "taskmaster4", ".json", "taskmaster", _taskmaster, _documents, 0, 3710, 13915, id="tm4"
        ),
        pytest.param(
            "crosswoz-zh", ".json", "crosswoz", _crosswoz, _documents, 0, 1000, 16934, id="crosswoz"
        ),
        pytest.param(
            "realpersonachat-ja-a",
            ".json",
            "realpersonachat",
            _realpersonachat,
            _documents,
            0,
            6000,
            180308,
            id="realpersonachat",
        ),
        pytest.param(
            "chatterbot-corpus",
            ".yml",
            "chatterbot",
            _chatterbot,
            _conversations,
            0,
            7644,
            19597,
            id="chatterbot",
        ),
        pytest.param(
            "tau-bench-trajectories",
            ".json",
            "tau-bench",
            _tau,
            _documents,
            0,
            200,
            5308,
            id="tau-bench",
        ),
        pytest.param(
            "tau-bench-trajectories",
            ".jsonl",
            "tau-bench",
            _flat,
            _rows,
            0,
            88,
            None,
            id="tau-bench-few-shot",
        ),
    ],
)
def test_corpus_can_be_rebuilt(
    corpus: Path,
    tmp_path: Path,
    source: str,
    end: str,
    form: str,
    rebuild: Callable[[ParsedSession], Any],
    originals: Callable[[Path], list[Any]],
    files: int,
    sessions: int | None,
    events: int | None,
) -> None:
    names: set[str] = set()
    session_count = event_count = file_count = 0
    for path in _files(corpus, source, end, tmp_path, files):
        file_count += 1
        assert importers.detect(path) == form
        parsed = _read(path)
        assert [rebuild(session) for session in parsed] == originals(path)
        session_count += len(parsed)
        event_count += sum(len(session.events) for session in parsed)
        names.update(session.name for session in parsed)
    assert file_count
    assert len(names) == session_count
    assert sessions in (None, session_count)
    assert events in (None, event_count)
