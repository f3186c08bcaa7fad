"""What an importer yields: parsed sessions and the damage it met.

Invariants:

1. A parsed session holds everything that its record held: what is no turn's role and text is in the
   metadata of the event or of the session, under the name that the format gives it.
2. Nothing of a broken session is yielded; a `Damage` says where and why.
3. What was wrong with a session and could be mended is told by a `Mend` each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from eventlog.limits import METADATA_BYTES_MAX, NAME_BYTES_MAX

NO_TYPE: Final = "the line has no 'type' that is text"  # so it is none of a transcript
_METADATA_CHARS_MAX: Final = METADATA_BYTES_MAX // 4  # as JSON: far below, whatever its text is


@dataclass(slots=True)
class ParsedEvent:
    """One event as a file tells it.

    Attributes:
        kind: The event's kind; `message` for every turn of a dialogue.
        body: Plain data, or bytes.
        metadata: What the format says about the event beside its body.
        id: The caller's id, only where the format promises that it is unique.
        time_us: When it happened, in µs since 1970-01-01 UTC.
        recorded_us: When a store recorded it, in µs since 1970-01-01 UTC.
        sequence: Its sequence in the session it was exported from.
        parent: The sequence of its parent there.
        branch: Its branch there, where no other event tells it.
        tokens: Its token count.
        run_id: The run it belongs to.
        turn_id: The turn it belongs to.
        speech_id: The utterance it belongs to.
        request_id: The request that caused it.
        opening: Facts given when the session was created; on the first event only.
        base: What events before it added up to, that were purged; on the first event only.
        blobs: Names of contents that it refers to.
        redacted: Whether its content was removed.
        role: Its role, where it was; of others the body tells it.
    """

    kind: str
    body: Any
    metadata: dict[str, Any] | None = None
    id: str | None = None
    time_us: int | None = None
    recorded_us: int | None = None
    sequence: int | None = None
    parent: int | None = None
    branch: int | None = None
    tokens: int | None = None
    run_id: str | None = None
    turn_id: str | None = None
    speech_id: str | None = None
    request_id: str | None = None
    opening: dict[str, Any] | None = None
    base: dict[str, Any] | None = None
    blobs: list[str] | None = None
    redacted: bool = False
    role: str | None = None


@dataclass(slots=True)
class Mend:
    """Something wrong in a session that is imported all the same.

    Attributes:
        what: An event whose parent is not there or is one of its own followers, which begins a path
            of its own then; a record whose id occurred before or that is none, which is left out.
        line: The line, from 1, where there is one.
        reason: What is wrong and what became of it, in one sentence.
    """

    what: Literal["orphan", "cycle", "duplicate", "record"]
    line: int | None
    reason: str


@dataclass(slots=True)
class ParsedSession:
    """One session as a file tells it, whole and checked.

    Attributes:
        name: The session's name, unique in the file.
        events: Its events, oldest first; may be empty.
        user_id: The user, where the format names one.
        title: The title, where the format has one.
        metadata: What the format says about the session beside its turns.
        tenant: The tenant; empty for all foreign formats.
        lines: First and last line of the file that the session was read from, inclusive, from 1.
        event_lines: The line of each event, from 1, where every event has one of its own.
        contents: Lines of contents that events name, as the file has them.
        mends: What was wrong and is mended.
        is_foreign: Its ids are of another system, and stand in the metadata too: where the tenant
            has one of them already, the events go without.
    """

    name: str
    events: list[ParsedEvent]
    user_id: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None
    tenant: str = ""
    lines: tuple[int, int] | None = None
    event_lines: Sequence[int] | None = None
    contents: Sequence[dict[str, Any]] = ()
    mends: Sequence[Mend] = ()
    is_foreign: bool = False


@dataclass(slots=True)
class Damage:
    """A part of a file that was not imported.

    Attributes:
        file: The file.
        line: The line, from 1, or None when the whole file is meant.
        session: The session's name, as far as it could be told.
        reason: What is wrong, in one sentence.
        tenant: The session's tenant; empty where none is named.
        events: How many events of the file belong to the session, all of them left out; None where
            nobody can tell.
    """

    file: str
    line: int | None
    session: str | None
    reason: str
    tenant: str = ""
    events: int | None = None


class BadRecordError(ValueError):
    """A record that is not imported; it becomes a `Damage` and never leaves the importers.

    Attributes:
        reason: What is wrong, in one sentence.
        line: The line, from 1, where it is known better than by the record's first line.
    """

    def __init__(self, reason: str, *, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def check_name(name: str, what: str) -> None:
    """Refuse a name that no store takes.

    Args:
        name: A session name, tenant or id.
        what: What it is, for the message.

    Raises:
        BadRecordError: It is empty, longer than `NAME_BYTES_MAX` or holds a lone surrogate.
    """
    if not name:
        raise BadRecordError(f"the {what} is empty")
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadRecordError(f"the {what} holds a lone surrogate") from None
    if size > NAME_BYTES_MAX:
        raise BadRecordError(f"the {what} has {size:,} bytes; at most {NAME_BYTES_MAX:,} are taken")


class Names:
    """Gives each session of one file a name of its own.

    The format's own id is the name while it is unique in the file, with `prefix` in front where the
    ids repeat between the files of one source. Otherwise the name is `<file stem>/<number>`.
    """

    def __init__(self, path: Path, *, prefix: str = "") -> None:
        self._prefix = prefix
        # A file name may hold bytes that are no UTF-8; a session name may not.
        self._stem = path.stem.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self._taken: set[str] = set()

    def give(self, own: str | None, number: int) -> str:
        """Name a session.

        Args:
            own: The id that the format gives, if any.
            number: The record's number in the file, from 0.

        Raises:
            BadRecordError: No store would take the name.
        """
        if own is not None:
            check_name(own, "dialogue id")
        name = f"{self._prefix}{own}"
        if own is None or name in self._taken:
            name = f"{self._prefix}{self._stem}/{number}"
        check_name(name, "session name")
        if name in self._taken:
            raise BadRecordError(f"another session of the file has the name {name!a}")
        self._taken.add(name)
        return name


def field(record: dict[str, Any], key: str, kind: type, what: str) -> Any:
    """A field that the format requires.

    Raises:
        BadRecordError: It is missing or of another type.
    """
    try:
        value = record[key]
    except KeyError:
        raise BadRecordError(f"{what} has no {key!r}") from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadRecordError(
            f"{key!r} of {what} is {type(value).__name__} where {kind.__name__} is expected"
        )
    return value


def objects(values: list[Any], what: str) -> list[dict[str, Any]]:
    """The list itself, when it holds objects only.

    Raises:
        BadRecordError: A member is no object; the message counts from 0.
    """
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise BadRecordError(f"{what} {number} is no object")
    return values


def without(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A copy of the record without some of its fields: what goes into metadata."""
    return {key: value for key, value in record.items() if key not in keys}


def compaction(summary: str, through: int | None, **data: Any) -> dict[str, Any]:
    """The body of an event of kind ``compaction``.

    Args:
        summary: What stands for the events that are left out of the view.
        through: Sequence of the last of them; None leaves none out.
        data: What else the format says about it.
    """
    if through is not None:
        data["through"] = through
    return {"summary": summary, "data": data}


def split_large(rest: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Divide what stands beside a body into what metadata takes, and fields too large for that."""
    size = len(json.dumps(rest))
    if size <= _METADATA_CHARS_MAX:
        return rest or None, {}
    large: dict[str, Any] = {}
    for key in sorted(rest, key=lambda each: len(json.dumps(rest[each])), reverse=True):
        large[key] = rest[key]
        size -= len(json.dumps(rest[key]))
        if size <= _METADATA_CHARS_MAX:
            break
    return {key: value for key, value in rest.items() if key not in large} or None, large
