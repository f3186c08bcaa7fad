"""What an importer yields: parsed sessions and the damage it met.

Invariants:

1. A parsed session holds everything that its record held: what is no turn's role and text is in the
   metadata of the event or of the session, under the name that the format gives it.
2. Nothing of a broken session is yielded; a `Damage` says where and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eventlog.limits import NAME_BYTES_MAX


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
        tokens: Its token count.
        run_id: The run it belongs to.
        turn_id: The turn it belongs to.
        speech_id: The utterance it belongs to.
        request_id: The request that caused it.
        opening: Facts given when the session was created; on the first event only.
        base: What events before it added up to, that were purged; on the first event only.
        blobs: Names of contents that it refers to.
    """

    kind: str
    body: Any
    metadata: dict[str, Any] | None = None
    id: str | None = None
    time_us: int | None = None
    recorded_us: int | None = None
    sequence: int | None = None
    parent: int | None = None
    tokens: int | None = None
    run_id: str | None = None
    turn_id: str | None = None
    speech_id: str | None = None
    request_id: str | None = None
    opening: dict[str, Any] | None = None
    base: dict[str, Any] | None = None
    blobs: list[str] | None = None


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
