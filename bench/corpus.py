"""Real conversations for the benchmarks, where somebody has them; nothing here needs them.

The folder holds one folder a source, each with its files as they came, or with all of them in one
``data.tar.xz``, which is read as it is.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.harness import RefusedError
from bench.workloads import Conversation

_DIALOGUES: Final = "sgd-train"
_TRAJECTORIES: Final = "tau-bench-trajectories"
_SESSIONS: Final = "claude-code-sessions-a"
_ARCHIVE: Final = "data.tar.xz"
_ROLES: Final = {"USER": "user", "SYSTEM": "assistant"}


def short_dialogues(corpus: Path) -> list[Conversation]:
    """Turns of schema-guided dialogues as ``{role, content}``, without their annotations."""
    found: list[Conversation] = []
    for name, text in _texts(corpus / _DIALOGUES, ".json"):
        if not Path(name).name.startswith("dialogues_"):
            continue
        for dialogue in json.loads(text):
            turns = [
                {"role": _ROLES[turn["speaker"]], "content": turn["utterance"]}
                for turn in dialogue["turns"]
            ]
            found.append(Conversation(dialogue["dialogue_id"], turns))
    return found


def agent_logs(corpus: Path) -> list[Conversation]:
    """Messages of tool-using agents: chat messages, and lines of a coding agent's log."""
    found: list[Conversation] = []
    for _, text in _texts(corpus / _TRAJECTORIES, ".json"):
        for trial in json.loads(text):
            name = f"task-{trial['task_id']}-{trial['trial']}"
            found.append(Conversation(name, trial["traj"]))
    for name, text in _texts(corpus / _SESSIONS, ".jsonl"):
        lines = [line for line in _objects(text) if type(line.get("message")) is dict]
        if lines:
            found.append(Conversation(name, lines))
    return found


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue  # some files are fixtures with damage on purpose
        if type(value) is dict:
            yield value


def _texts(folder: Path, suffix: str) -> Iterator[tuple[str, str]]:
    """Names and texts of a source's files, in the order of their names."""
    archive = folder / _ARCHIVE
    if archive.exists():
        with tarfile.open(archive, "r:xz") as files:
            for member in files:
                content = files.extractfile(member)
                if content is not None and member.name.endswith(suffix):
                    yield member.name, content.read().decode()
    elif folder.is_dir():
        for path in sorted(folder.rglob(f"*{suffix}")):
            yield str(path.relative_to(folder)), path.read_text()
    else:
        raise RefusedError(f"there is no {folder}; name the corpus's folder with --corpus")
