"""What the benchmarks of size write: the same messages on both sides, real or made."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest

from bench.corpus import agent_logs, short_dialogues
from bench.disk import bytes_on_disk, fill_sqlite, fill_store
from bench.harness import RefusedError
from bench.made import made_agent_logs, made_dialogues
from bench.workloads import Conversation, live_batches
from engine import Store

TALKS = [
    Conversation("a", [{"n": number} for number in range(5)]),
    Conversation("none", []),
    Conversation("b", [{"n": number} for number in range(2)]),
    Conversation("c", [{"text": "half \ud800"}]),
]


def test_live_conversations_take_turns() -> None:
    batches = [[(turn.session, turn.message) for turn in batch] for batch in live_batches(TALKS, 2)]
    assert batches == [
        [("a", {"n": 0})],
        [("a", {"n": 1}), ("b", {"n": 0})],
        [("a", {"n": 2}), ("b", {"n": 1})],
        [("a", {"n": 3})],
        [("a", {"n": 4}), ("c", {"text": "half \ud800"})],
    ]


@pytest.mark.parametrize("pauses", [False, True])
def test_both_sides_hold_every_message(tmp_path: Path, pauses: bool) -> None:
    (tmp_path / "rows").mkdir()
    fill_store(tmp_path / "store", TALKS, 2, pauses=pauses)
    sizes = fill_sqlite(tmp_path / "rows" / "rows.sqlite", TALKS, 2)
    assert sizes == (bytes_on_disk(tmp_path / "rows"),) * 2  # nothing to reclaim in so few rows
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["rows.sqlite"]
    connection = sqlite3.connect(tmp_path / "rows" / "rows.sqlite")
    rows: dict[str, list[Any]] = {}
    for session, sequence, body in connection.execute(
        "SELECT session, sequence, body FROM event ORDER BY position"
    ):
        assert sequence == len(rows.setdefault(session, []))
        rows[session].append(json.loads(body))
    connection.close()
    with Store.open(tmp_path / "store", create=False) as store:
        for talk in TALKS:
            assert store.session(talk.name).history() == talk.messages == rows.get(talk.name, [])
        assert store.check().ok


@pytest.mark.parametrize("make", [made_dialogues, made_agent_logs])
def test_a_seed_repeats_its_conversations(make: Any) -> None:
    made = make(20, seed=3)
    assert made == make(20, seed=3) != make(20, seed=4)
    assert len({talk.name for talk in made}) == 20
    assert all(message["role"] for talk in made for message in talk.messages)


def source(corpus: Path, name: str, files: dict[str, str], *, packed: bool) -> None:
    folder = corpus / name
    folder.mkdir(parents=True)
    if not packed:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return
    with tarfile.open(folder / "data.tar.xz", "w:xz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


@pytest.mark.parametrize("packed", [False, True])
def test_real_conversations_are_read_as_they_are(tmp_path: Path, packed: bool) -> None:
    turns = [{"speaker": "USER", "utterance": "Hi", "frames": []}]
    turns.append({"speaker": "SYSTEM", "utterance": "Hello"})
    dialogues = json.dumps([{"dialogue_id": "1_00000", "turns": turns}])
    files = {"train/dialogues_001.json": dialogues, "train/schema.json": "[]", "LICENSE": "x"}
    source(tmp_path, "sgd-train", files, packed=packed)
    assert short_dialogues(tmp_path) == [
        Conversation(
            "1_00000",
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
        )
    ]
    trial = {"task_id": 3, "trial": 1, "traj": [{"role": "system", "content": "Be kind."}]}
    source(tmp_path, "tau-bench-trajectories", {"a.json": json.dumps([trial])}, packed=packed)
    line = {"type": "user", "message": {"role": "user", "content": "x"}}
    log = f'{json.dumps(line)}\n\n{{"type":"summary"}}\n7\n{{broken\n'
    source(tmp_path, "claude-code-sessions-a", {"p/one.jsonl": log}, packed=packed)
    assert agent_logs(tmp_path) == [
        Conversation("task-3-1", trial["traj"]),
        Conversation("p/one.jsonl", [line]),
    ]


def test_a_corpus_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="--corpus"):
        short_dialogues(tmp_path)
