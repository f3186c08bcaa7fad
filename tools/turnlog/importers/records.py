"""Files of JSON and JSON Lines, record by record.

Invariants:

1. Damage in one record costs that record only, wherever its end can be told.
2. JSON Lines are read line by line; a JSON document is held once as text while its records are
   decoded one by one.
3. No input raises anything but `UsageError` for a path that cannot be read at all.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from eventlog.errors import UsageError
from turnlog.importers.limits import (
    BINARY_BYTES,
    DOCUMENT_BYTES_MAX,
    LINE_BYTES_MAX,
    RECORD_DEPTH_MAX,
)
from turnlog.importers.model import BadRecordError, Damage, ParsedSession
from turnlog.importers.strict import (
    StrictDecoder,
    clip,
    depth_of,
    describe,
    is_deeper,
    is_whole,
    skip_space,
    skip_value,
)

EMPTY: Final = "the file is empty"
BINARY: Final = "the file holds binary data or UTF-16, no UTF-8 text"
MARKED: Final = "the file starts with a byte order mark"
NOT_UTF_8: Final = "no valid UTF-8"
TOO_DEEP: Final = f"nested deeper than {RECORD_DEPTH_MAX} levels"
REST_UNREAD: Final = "the rest of the file was not read"

_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SKIPPED_BYTES: Final = 1 << 20
# What decoding with "surrogateescape" leaves of bytes that are no UTF-8. Valid UTF-8 never does,
# and surrogates written as JSON escapes are not decoded yet.
_STRAY_BYTES: Final = re.compile("[\udc80-\udcff]")


@dataclass(slots=True)
class Record:
    """One decoded record of a file.

    Attributes:
        value: The record, as JSON gives it.
        number: Its place in the file, from 0; damaged records count.
        first_line: Its first line, from 1.
        last_line: Its last line, inclusive.
        key: Its name, where the records are the members of one object.
    """

    value: Any
    number: int
    first_line: int
    last_line: int
    key: str | None = None


@dataclass(slots=True)
class Line:
    """One line of a file that is not blank.

    Attributes:
        number: The line, from 1.
        offset: Its place in the file, in bytes.
        data: Its bytes without the line end, or only the first ones of a line that is too long.
        problem: Why the line cannot be used, or None.
    """

    number: int
    offset: int
    data: bytes
    problem: str | None = None


class UnreadableFileError(UsageError):
    """A path that cannot be read at all.

    Attributes:
        reason: Why, without the path.
    """

    def __init__(self, path: Path, reason: str, *, hint: str) -> None:
        super().__init__(f"{path}: {reason}", hint=hint)
        self.reason = reason


class _RestUnreadError(Exception):
    """The document goes wrong in a way that leaves its further records unknown."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


@dataclass(slots=True)
class _Entry:
    """A record of a document as a place in its text."""

    key: str | None
    value: Any
    start: int
    stop: int
    problem: str | None
    problem_at: int


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        UnreadableFileError: There is none, or it cannot be read.
    """
    try:
        # A pipe would block in open() until somebody writes to it.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UnreadableFileError(path, "not a regular file", hint="Name one regular file.")
        return path.open("rb")
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableFileError(
            path, f"cannot be read: {reason}", hint="Check the path and its permissions."
        ) from error


def load_document(path: Path, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
    """The bytes of a document, when it is worth parsing.

    Raises:
        BadRecordError: The file is too large, empty, or binary.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > bytes_max:
            raise BadRecordError(
                f"the file has {size:,} bytes; a document may have {bytes_max:,} at most"
            )
        data = file.read(size)
    if not data or data.isspace():
        raise BadRecordError(EMPTY)
    if b"\0" in data[:BINARY_BYTES]:
        raise BadRecordError(BINARY)
    return data


def read_lines(file: BinaryIO, bytes_max: int = LINE_BYTES_MAX) -> Iterator[Line]:
    """The lines of an open file that are not blank; lines end at a line feed only.

    The memory used is bounded by `bytes_max`, whatever the file holds.
    """
    number = offset = 0
    while data := file.readline(bytes_max + 2):
        number += 1
        start, size = offset, len(data)
        is_cut = size == bytes_max + 2 and not data.endswith(b"\n")
        data = data.rstrip(b"\r\n")
        problem = None
        if is_cut or len(data) > bytes_max:
            problem = f"the line is longer than {bytes_max:,} bytes"
            size += _skip_line(file) if is_cut else 0
            data = data[:BINARY_BYTES]
        elif number == 1 and data.startswith(_MARKS):
            problem = f"{MARKED}; save it as UTF-8 without one"
            data = data.removeprefix(codecs.BOM_UTF8)
        offset = start + size
        if problem is not None or data.strip(b" \t\r"):
            yield Line(number, start, data, problem)


def _skip_line(file: BinaryIO) -> int:
    skipped = 0
    while piece := file.readline(_SKIPPED_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def is_binary(file: BinaryIO) -> bool:
    """Whether the file at its start holds a NUL; the place in the file is kept."""
    head = file.read(BINARY_BYTES)
    file.seek(0)
    return b"\0" in head


def decode_line(
    decoder: StrictDecoder, line: Line, depth_max: int = RECORD_DEPTH_MAX
) -> dict[str, Any]:
    """The object that a line holds.

    Raises:
        BadRecordError: With the reason; the line is known to the caller.
    """
    if line.problem is not None:
        raise BadRecordError(line.problem)
    try:
        text = line.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecordError(f"{NOT_UTF_8} at byte {error.start + 1:,} of the line") from None
    if is_deeper(line.data, depth_max):
        raise BadRecordError(f"nested deeper than {depth_max} levels")
    start = skip_space(text, 0)
    try:
        decoded = decoder.decode(text, start)
    except json.JSONDecodeError as error:
        raise BadRecordError(describe(error)) from None
    if skip_space(text, decoded.stop) != len(text):
        raise BadRecordError(f"something follows the value at column {decoded.stop + 1:,}")
    if decoded.problem is not None:
        raise BadRecordError(decoded.problem)
    if not isinstance(decoded.value, dict):
        raise BadRecordError(f"the line holds a {type(decoded.value).__name__}, no object")
    return decoded.value


def line_records(path: Path) -> Iterator[Record | Damage]:
    """The records of a JSON Lines file, one object a line."""
    decoder = StrictDecoder()
    count = 0
    with open_file(path) as file:
        if is_binary(file):
            yield Damage(str(path), None, None, BINARY)
            return
        for line in read_lines(file):
            try:
                value = decode_line(decoder, line)
            except BadRecordError as error:
                yield Damage(str(path), line.number, None, error.reason)
            else:
                yield Record(value, count, line.number, line.number)
            count += 1
    if not count:
        yield Damage(str(path), None, None, EMPTY)


def document_records(path: Path, *, members: bool = False) -> Iterator[Record | Damage]:
    """The records of one JSON document.

    A list holds a record in each of its elements. An object is a record itself or, with `members`,
    holds one in each of its members.
    """
    file = str(path)
    try:
        data = load_document(path)
        if data.startswith(_MARKS):
            raise BadRecordError(f"{MARKED}; save it as UTF-8 without one", line=1)
    except BadRecordError as error:
        yield Damage(file, error.line, None, error.reason)
        return
    document = _Document(data, members)
    del data
    text = document.text
    line, counted = 1, 0
    count = 0
    try:
        for entry in document.entries():
            line += text.count("\n", counted, entry.start)
            first = line
            if entry.problem is not None:
                at = first + text.count("\n", entry.start, entry.problem_at)
                yield Damage(file, at, entry.key, entry.problem)
            line += text.count("\n", entry.start, entry.stop)
            counted = entry.stop
            if entry.problem is None:
                yield Record(entry.value, count, first, line, entry.key)
            count += 1
    except _RestUnreadError as error:
        line += text.count("\n", counted, error.position)
        yield Damage(file, line, None, error.reason)


class _Document:
    """A JSON document as a text with places of records in it."""

    def __init__(self, data: bytes, members: bool) -> None:
        self._members = members
        self._deep = is_deeper(data, RECORD_DEPTH_MAX)
        try:
            self.text = data.decode("utf-8")
            self._stray = False
        except UnicodeDecodeError:
            self.text = data.decode("utf-8", "surrogateescape")
            self._stray = True
        self._decoder = StrictDecoder()
        self._keys: set[str] = set()

    def entries(self) -> Iterator[_Entry]:
        start = skip_space(self.text, 0)
        opener = self.text[start]
        if opener == "[":
            yield from self._inside(start, "]", keyed=False)
        elif opener == "{" and self._members:
            yield from self._inside(start, "}", keyed=True)
        else:
            entry = self._entry(start, None)
            self._expect_end(entry.stop)
            yield entry

    def _inside(self, start: int, closer: str, *, keyed: bool) -> Iterator[_Entry]:
        text = self.text
        position = skip_space(text, start + 1)
        if text[position : position + 1] == closer:
            self._expect_end(position + 1)
            return
        while True:
            key = None
            if keyed:
                key, position = self._key(position)
            entry = self._entry(position, key)
            if key is not None:
                if key in self._keys and entry.problem is None:
                    entry.problem = f"the key {clip(key)} occurs twice in one object"
                self._keys.add(key)
            position = skip_space(text, entry.stop)
            found = text[position : position + 1]
            if found == ",":
                position = skip_space(text, position + 1)
            elif found != closer:
                yield entry
                raise self._lost(f"no ',' or '{closer}' behind a record", position)
            yield entry
            if found == closer:
                self._expect_end(position + 1)
                return

    def _key(self, position: int) -> tuple[str, int]:
        text = self.text
        if text[position : position + 1] != '"':
            raise self._lost("no name of a member", position)
        try:
            decoded = self._decoder.decode(text, position)
        except json.JSONDecodeError as error:
            raise self._lost(describe(error), error.pos) from None
        if self._stray and _STRAY_BYTES.search(text, position, decoded.stop):
            raise self._lost(NOT_UTF_8, position)
        colon = skip_space(text, decoded.stop)
        if text[colon : colon + 1] != ":":
            raise self._lost("no ':' behind the name of a member", colon)
        return str(decoded.value), skip_space(text, colon + 1)

    def _entry(self, start: int, key: str | None) -> _Entry:
        text = self.text
        if self._deep and text[start : start + 1] in ("[", "{"):
            # The decoder recurses, so a record is measured before it is decoded.
            stop = skip_value(text, start)
            piece = text[start : len(text) if stop is None else stop]
            if depth_of(piece.encode("utf-8", "surrogateescape")) > RECORD_DEPTH_MAX:
                if stop is None:
                    raise self._lost(TOO_DEEP, start)
                return _Entry(key, None, start, stop, TOO_DEEP, start)
        try:
            decoded = self._decoder.decode(text, start)
        except json.JSONDecodeError as error:
            stop = self._resume(start)
            if stop is None or stop < error.pos:
                raise self._lost(describe(error), error.pos) from None
            return _Entry(key, None, start, stop, describe(error), error.pos)
        problem, at = decoded.problem, start
        if self._stray and (match := _STRAY_BYTES.search(text, start, decoded.stop)):
            problem, at = NOT_UTF_8, match.start()
        return _Entry(key, decoded.value, start, decoded.stop, problem, at)

    def _resume(self, start: int) -> int | None:
        """Where a record whose syntax is wrong ends, if what follows looks like another one."""
        text = self.text
        opener = text[start : start + 1]
        if opener not in ("[", "{"):
            return None
        stop = skip_value(text, start)
        if stop is None:
            return None
        after = skip_space(text, stop)
        if text[after : after + 1] == ",":
            after = skip_space(text, after + 1)
            return stop if text[after : after + 1] in (opener, '"') else None
        return stop if text[after : after + 1] in ("]", "}") else None

    def _expect_end(self, position: int) -> None:
        position = skip_space(self.text, position)
        if position != len(self.text):
            raise _RestUnreadError("something follows the document", position)

    @staticmethod
    def _lost(reason: str, position: int) -> _RestUnreadError:
        return _RestUnreadError(f"{reason}; {REST_UNREAD}", position)


def holds_lines(path: Path) -> bool:
    """Whether a file is JSON Lines rather than one JSON document, judged by its first lines."""
    with open_file(path) as file:
        heads = [line.data for line, _ in zip(read_lines(file), range(3), strict=False)]
    if not heads:
        return False
    if heads[0].lstrip().startswith(b"["):
        return is_whole(heads[0]) and len(heads) > 1
    if is_whole(heads[0]):
        return True
    # A first line that is damaged: the next ones tell. In a document they cannot both be whole.
    return len(heads) > 1 and all(
        head.lstrip().startswith(b"{") and is_whole(head) for head in heads[1:]
    )


def sessions(
    path: Path,
    records: Iterator[Record | Damage],
    identify: Callable[[Record], str],
    parse: Callable[[str, dict[str, Any]], ParsedSession],
) -> Iterator[ParsedSession | Damage]:
    """Parse each record; one that a format refuses becomes a damage.

    Args:
        path: The file, for the messages.
        records: What the file holds.
        identify: Gives the session's name for a record whose value is an object.
        parse: Makes the session of its name and the object. Both may raise `BadRecordError`.
    """
    for record in records:
        if isinstance(record, Damage):
            yield record
            continue
        name = record.key
        try:
            if not isinstance(record.value, dict):
                raise BadRecordError(f"a {type(record.value).__name__} is no record")
            name = identify(record)
            session = parse(name, record.value)
        except BadRecordError as error:
            line = record.first_line if error.line is None else error.line
            yield Damage(str(path), line, name, error.reason)
        else:
            session.lines = (record.first_line, record.last_line)
            yield session
