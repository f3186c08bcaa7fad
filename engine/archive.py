"""An archive: export lines of sessions in a file, on disk before any of them is removed.

Invariants:
    1. A file appears under its name once it is complete and on disk.
    2. A session is in it whole, as it was told, or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from engine.contents import export_lines
from engine.events import Event
from engine.reading import SessionPager
from eventlog.errors import CorruptionError, SessionGoneError, TrimmedError
from eventlog.index import Name
from eventlog.limits import MIB
from eventlog.log import Log
from eventlog.seams import FILES
from eventlog.staging import refuse_taken, scratch, told_of

_FILE: Final = "archive"


class Archive:
    """A file that is being written; made by ``archived``."""

    def __init__(self, log: Log, descriptor: int) -> None:
        self._log = log
        self._descriptor = descriptor
        self._size = 0
        self.event_count = 0

    def add(self, name: Name, number: int, first: int, stop: int) -> bool:
        """Write the lines of a session's events from one sequence to before another.

        Returns:
            Whether it is there; False when the session is not what it was, and nothing of it was
            kept.

        Raises:
            CorruptionError: One of them is damaged; nothing of it was kept.
        """
        start = self._size
        try:
            lines = export_lines(self._log, _events(self._log, name, number, first, stop))
            self._write(lines)
        except (SessionGoneError, TrimmedError):
            self._take_back(start)
            return False
        except CorruptionError:
            self._take_back(start)
            raise
        self.event_count += stop - first
        return True

    def _take_back(self, size: int) -> None:
        FILES.truncate(self._descriptor, size)
        self._size = size

    def _write(self, lines: Iterable[str]) -> None:
        piece = bytearray()
        for line in lines:
            piece += line.encode() + b"\n"
            if len(piece) >= MIB:
                self._flush(piece)
        self._flush(piece)

    def _flush(self, piece: bytearray) -> None:
        FILES.write_at(self._descriptor, bytes(piece), self._size)
        self._size += len(piece)
        piece.clear()


def _events(log: Log, name: Name, number: int, first: int, stop: int) -> Iterator[Event]:
    """The events that are to go, all of them.

    Raises:
        SessionGoneError: They are not there any more.
    """
    pager = SessionPager(log, name, first, stop - 1, None, number, stop)
    following = first
    while (page := pager.next_page()) and page[0].sequence == following:
        yield from page
        following = page[-1].sequence + 1
    if following != stop:
        raise SessionGoneError(
            f"session {name[1]!r} was deleted or purged while it was archived", expected=number
        )


def require_vacant(path: Path) -> None:
    """Refuse a path at which no archive could be made, before anything is decided.

    Raises:
        UsageError: There is something at the path, or its folder is none.
    """
    target = FILES.real_path(path.parent) / path.name
    with told_of(target, FILES, "written"):
        refuse_taken(target, FILES)


@contextmanager
def archived(log: Log, path: Path) -> Iterator[Archive]:
    """A new file, put in place once the body of the ``with`` has written it, if it has events.

    Raises:
        UsageError: There is something at the path, before or after.
        StorageFullError, ReadOnlyError, StoreUnavailableError: The system refused; nothing is left.
    """
    target = FILES.real_path(path.parent) / path.name
    with told_of(target, FILES, "written"):
        refuse_taken(target, FILES)
        with scratch(target, FILES) as folder:
            draft = folder / _FILE
            descriptor = FILES.open_file(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                made = Archive(log, descriptor)
                yield made
                FILES.fsync_file(descriptor)
            finally:
                FILES.close(descriptor)
            if made.event_count:
                refuse_taken(target, FILES)
                FILES.rename(draft, target)
                FILES.fsync_folder(target.parent)
