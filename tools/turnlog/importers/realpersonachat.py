"""RealPersonaChat: one JSON object a file, `{dialogue_id, interlocutors, utterances, evaluations}`.

Two people chat. The first of `interlocutors`, who opens the chat, gets role user, the other one
role assistant, so that they stay apart; the speaker's id as written, the utterance id and the time
stamp are the event's metadata, the dialogue without its utterances is the session's.

Time stamps have no zone. They are taken as Japan Standard Time (UTC+9, no summer time): the data
were collected in Japan and thin out between 2 and 6 o'clock of it. They may run backwards, and
`NaT` means that the time is not known; such an event has no given time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
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

_JAPAN: Final = timezone(timedelta(hours=9))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_UNKNOWN_TIME: Final = "NaT"


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The dialogue of one file, or the dialogues of a list of such objects."""
    names = Names(path)

    def identify(record: Record) -> str:
        own = field(record.value, "dialogue_id", int, "the dialogue")
        return names.give(str(own), record.number)

    return sessions(path, document_records(path), identify, _parse)


def _parse(name: str, dialogue: dict[str, Any]) -> ParsedSession:
    speakers = field(dialogue, "interlocutors", list, "the dialogue")
    if len(speakers) != 2 or speakers[0] == speakers[1]:
        raise BadRecordError("'interlocutors' of the dialogue are not two different people")
    turns = objects(field(dialogue, "utterances", list, "the dialogue"), "utterance")
    events = [_event(turn, speakers, f"utterance {number}") for number, turn in enumerate(turns)]
    return ParsedSession(name, events, metadata=without(dialogue, "utterances"))


def _event(turn: dict[str, Any], speakers: list[Any], what: str) -> ParsedEvent:
    speaker = field(turn, "interlocutor_id", str, what)
    if speaker not in speakers:
        raise BadRecordError(f"{what} is of the unknown interlocutor {speaker!a}")
    role = "user" if speaker == speakers[0] else "assistant"
    return ParsedEvent(
        "message",
        {"role": role, "content": field(turn, "text", str, what)},
        metadata=without(turn, "text"),
        time_us=_time_us(field(turn, "timestamp", str, what), what),
    )


def _time_us(text: str, what: str) -> int | None:
    if text == _UNKNOWN_TIME:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=_JAPAN)
        return (moment - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        raise BadRecordError(f"{what} has the unreadable timestamp {text[:40]!a}") from None
