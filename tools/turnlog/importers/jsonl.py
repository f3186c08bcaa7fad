"""turnlog's own export: one event a line, the lines of many sessions mixed as they come.

The file is read twice. The first pass only finds out which session each line belongs to and keeps
the lines' places, 16 bytes each; the second one decodes a session at a time. So an export of any
size takes the memory of its largest session.

Invariants:

1. Sessions come in the order of their first lines, their events in the order of the file, with
   sequences that rise.
2. A line that is damaged breaks its session. A line whose session cannot be told is reported, and
   breaks each session that misses sequences around it.
3. Lines of contents stand beside their session's events and are no events.
4. Values are decoded by `engine.export` and `engine.contents` alone.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from engine.contents import is_content, line_to_content
from engine.export import line_to_event
from engine.hiddennames import split_hidden
from eventlog.errors import InvalidNameError
from eventlog.keys import is_hidden
from eventlog.limits import KIND_BYTES_MAX, NAME_BYTES_MAX
from turnlog.importers.limits import LINE_DEPTH_MAX
from turnlog.importers.model import (
    BadRecordError,
    Damage,
    ParsedEvent,
    ParsedSession,
    check_name,
)
from turnlog.importers.records import (
    BINARY,
    EMPTY,
    Line,
    decode_line,
    is_binary,
    open_file,
    read_lines,
)
from turnlog.importers.strict import StrictDecoder

_TEXT: Final = rb'("(?:[^"\\]++|\\.)*+")'
# The beginning of a line as the export writes it. Lines in another order are decoded to learn it.
_NAMES: Final = re.compile(
    rb'\s*+\{\s*+(?:"tenant"\s*+:\s*+' + _TEXT + rb'\s*+,\s*+)?"session"\s*+:\s*+' + _TEXT
)
_TENANT_KEY: Final = b'"tenant"'
_REPEATED: Final = (
    "id",
    "time_us",
    "recorded_us",
    "sequence",
    "parent",
    "branch",
    "tokens",
    "run_id",
    "turn_id",
    "speech_id",
    "request_id",
    "opening",
    "base",
    "metadata",
    "blobs",
    "redacted",
    "role",
)


@dataclass(slots=True)
class _Group:
    """Where the lines of one session are."""

    tenant: str
    session: str
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    numbers: array[int] = field(default_factory=lambda: array("Q"))


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The sessions of one export."""
    file_name = str(path)
    decoder = StrictDecoder()
    groups: dict[tuple[str, str], _Group] = {}
    lost: list[int] = []
    with open_file(path) as file:
        if is_binary(file):
            yield Damage(file_name, None, None, BINARY)
            return
        known: dict[tuple[bytes | None, bytes], _Group] = {}
        is_empty = True
        for line in read_lines(file):
            is_empty = False
            try:
                group = _group_of(line, decoder, groups, known)
            except BadRecordError as error:
                lost.append(line.number)
                yield Damage(file_name, line.number, None, error.reason)
            else:
                group.offsets.append(line.offset)
                group.numbers.append(line.number)
        if is_empty:
            yield Damage(file_name, None, None, EMPTY)
        del known
        while groups:
            # Dropped as it is read, so that the places of read sessions take no memory.
            group = groups.pop(next(iter(groups)))
            yield from _session(file_name, file, decoder, group, lost)


def _group_of(
    line: Line,
    decoder: StrictDecoder,
    groups: dict[tuple[str, str], _Group],
    known: dict[tuple[bytes | None, bytes], _Group],
) -> _Group:
    """The group of a line; a damaged line has one too when its beginning names a session.

    Raises:
        BadRecordError: The line does not tell its session.
    """
    match = _NAMES.match(line.data)
    if match is not None and (match[1] is not None or _TENANT_KEY not in line.data):
        raw = (match[1], match[2])
        if (group := known.get(raw)) is None:
            tenant = "" if raw[0] is None else _text(raw[0])
            group = known[raw] = _group(tenant, _text(raw[1]), groups)
        return group
    value = decode_line(decoder, line, LINE_DEPTH_MAX)
    return _group(value.get("tenant") or "", value.get("session"), groups)


def _group(tenant: object, session: object, groups: dict[tuple[str, str], _Group]) -> _Group:
    if not isinstance(tenant, str) or not isinstance(session, str):
        raise BadRecordError("the line names no session")
    if is_hidden(session):
        _check_hidden(session)
    else:
        check_name(session, "session name")
    if tenant:
        check_name(tenant, "tenant")
    group = groups.get((tenant, session))
    if group is None:
        group = groups[tenant, session] = _Group(tenant, session)
    return group


def _check_hidden(session: str) -> None:
    try:
        split_hidden(session)
    except InvalidNameError:
        size = len(session.encode("utf-8", "surrogatepass"))
        raise BadRecordError(
            f"the session name has {size:,} bytes; at most {NAME_BYTES_MAX:,} are taken, and it is "
            "no hidden session's"
        ) from None


def _text(raw: bytes) -> str:
    try:
        return str(json.loads(raw.decode("utf-8")))
    except ValueError:
        raise BadRecordError("the session's name cannot be read") from None


def _session(
    file_name: str, file: BinaryIO, decoder: StrictDecoder, group: _Group, lost: list[int]
) -> Iterator[ParsedSession | Damage]:
    """One session, or a damage for each of its lines that is not sound."""
    session = ParsedSession(
        group.session,
        [],
        tenant=group.tenant,
        lines=(group.numbers[0], group.numbers[-1]),
    )
    contents: list[dict[str, Any]] = []
    event_lines = array("Q")
    is_broken = False
    previous: int | None = None
    previous_line = 0
    for offset, number in zip(group.offsets, group.numbers, strict=True):
        file.seek(offset)
        line = next(read_lines(file), Line(number, offset, b""))
        before = (previous, previous_line)
        try:
            value = decode_line(decoder, line, LINE_DEPTH_MAX)
            if is_content(value):
                _check_content(value, group)
                if not is_broken:
                    contents.append(value)
                continue
            event = _event(value, group)
            assert event.sequence is not None
            # What follows a line is judged by it, also when it is out of place: named once only.
            previous, previous_line = event.sequence, number
            if before[0] is not None and event.opening is not None:
                raise BadRecordError("opening belongs to the first line of a session")
            if before[0] is not None or event.opening is None:
                _check_order(event.sequence, before[0], (before[1], number), lost)
        except BadRecordError as error:
            is_broken = True
            session.events.clear()
            contents.clear()
            yield Damage(
                file_name,
                number,
                group.session,
                error.reason,
                tenant=group.tenant,
                events=len(group.numbers),
            )
            continue
        if is_broken:
            continue
        session.events.append(event)
        event_lines.append(number)
        if event.opening is not None:
            _take_opening(session, event.opening)
    if not is_broken:
        session.event_lines, session.contents = event_lines, tuple(contents)
        yield session


def _check_content(value: dict[str, Any], group: _Group) -> None:
    try:
        line = line_to_content(value)
    except ValueError as error:
        raise BadRecordError(str(error)) from None
    if (line.tenant, line.session) != (group.tenant, group.session):
        raise BadRecordError("the line names two sessions")


def _event(value: dict[str, Any], group: _Group) -> ParsedEvent:
    try:
        item = line_to_event(value)
    except ValueError as error:
        raise BadRecordError(str(error)) from None
    if (item["tenant"], item["session"]) != (group.tenant, group.session):
        raise BadRecordError("the line names two sessions")
    if item["sequence"] is None:
        raise BadRecordError("the line has no sequence")
    if len(item["kind"].encode("utf-8", "surrogatepass")) > KIND_BYTES_MAX:
        raise BadRecordError(f"the kind has more than {KIND_BYTES_MAX} bytes")
    check_name(item["kind"], "kind")
    if item["id"] is not None:
        check_name(item["id"], "id")
    rest: dict[str, Any] = {key: item[key] for key in _REPEATED}
    return ParsedEvent(item["kind"], item["body"], **rest)


def _check_order(
    sequence: int, previous: int | None, lines: tuple[int, int], lost: list[int]
) -> None:
    """Sequences rise; where some are missing, no line in between may be lost."""
    if previous is not None and sequence <= previous:
        raise BadRecordError(f"sequence {sequence} comes after sequence {previous}")
    expected = 0 if previous is None else previous + 1
    if sequence == expected:
        return
    after = bisect_right(lost, lines[0])
    if after < len(lost) and lost[after] < lines[1]:
        raise BadRecordError(
            f"sequence {expected} is missing, and line {lost[after]} before it cannot be read"
        )


def _take_opening(session: ParsedSession, opening: dict[str, Any]) -> None:
    """What the session was created with, where it is of the type that the session wants."""
    user_id, title, metadata = (opening.get(key) for key in ("user_id", "title", "metadata"))
    session.user_id = user_id if isinstance(user_id, str) else None
    session.title = title if isinstance(title, str) else None
    session.metadata = metadata if isinstance(metadata, dict) else None
