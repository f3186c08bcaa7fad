"""Schema-Guided Dialogue: a JSON list of dialogues, `{dialogue_id, services, turns}`.

`USER` becomes role user and `SYSTEM` role assistant; the speaker as written, the frames and
whatever else a turn holds are the event's metadata, the dialogue without its turns is the
session's.

Dialogue ids are unique within a split. A file that lies in a folder `train`, `dev` or `test`, as
the data set is published, has that in front of its names: `train/1_00000`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from turnlog.importers.model import (
    BadRecordError,
    Damage,
    Names,
    ParsedEvent,
    ParsedSession,
    field,
    objects,
    without,
)
from turnlog.importers.records import Record, document_records, sessions

_SPLITS: Final = frozenset({"train", "dev", "test"})
_ROLES: Final = {"USER": "user", "SYSTEM": "assistant"}


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The dialogues of one file."""
    split = path.absolute().parent.name
    names = Names(path, prefix=f"{split}/" if split in _SPLITS else "")

    def identify(record: Record) -> str:
        return names.give(field(record.value, "dialogue_id", str, "the dialogue"), record.number)

    return sessions(path, document_records(path), identify, _parse)


def _parse(name: str, dialogue: dict[str, Any]) -> ParsedSession:
    turns = objects(field(dialogue, "turns", list, "the dialogue"), "turn")
    events = [_event(turn, f"turn {number}") for number, turn in enumerate(turns)]
    return ParsedSession(name, events, metadata=without(dialogue, "turns"))


def _event(turn: dict[str, Any], what: str) -> ParsedEvent:
    speaker = field(turn, "speaker", str, what)
    if speaker not in _ROLES:
        raise BadRecordError(f"{what} has the unknown speaker {speaker!a}")
    body = {"role": _ROLES[speaker], "content": field(turn, "utterance", str, what)}
    return ParsedEvent("message", body, metadata=without(turn, "utterance"))
