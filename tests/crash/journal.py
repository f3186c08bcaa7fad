"""Lines that outlive the process that wrote them: what it was about to do, and what it was told.

Each process writes a file of its own, one JSON object a line, each line with one call that reaches
the page cache before the next statement runs. A process that is killed loses at most the line it
was writing. The call is ``pwritev``, which nothing in a store uses, so that a sweep over all system
calls of a store leaves the journal alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """Writes lines; the file belongs to one process."""

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = os.fstat(self._descriptor).st_size

    def write(self, **fields: Any) -> None:
        """Write one line; it is in the page cache when this returns."""
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        while line:
            count = os.pwritev(self._descriptor, [line], self._end)
            self._end += count
            line = line[count:]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class JournalReader:
    """Reads what a journal got since the last look; the file need not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._offset = 0
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Whole lines only: half a line was never followed by anything."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
