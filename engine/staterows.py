"""The rows of a session's sealed state, read in pages, each in a transaction of its own.

Between two pages more events may be sealed, so that later pages know of events that earlier ones do
not. A row is what the last event that changed its key made it, and the events from the first page's
moment on name all keys that changed since. So with these events applied on top, again or for the
first time, the rows are the state of one moment: of any from the last page's on.

Invariant: a page is at most ``STATE_PAGE_ROWS`` rows, and ``PAGE_BYTES`` and one row.
"""

from __future__ import annotations

from typing import Final

from engine import naming
from engine.fold import Fold, make_fold
from engine.naming import BranchName
from engine.spaces import Space
from engine.variables import StoredVariable, decode_row, subkey_of
from eventlog.branching import PROJECTION as BRANCHES
from eventlog.errors import CorruptionError
from eventlog.keys import U64
from eventlog.limits import PAGE_BYTES, STATE_PAGE_ROWS
from eventlog.past import Past

WHOLE: Final = 0
"""All of a session's state; a part of it is a ``Space``, or ``NAMES``."""
NAMES: Final = naming.PROJECTION


class StateRows:
    """The rows of a session, or those of one part of its state; not read yet.

    Args:
        past: The session in the first transaction.
        part: The part.

    Attributes:
        sequence: The last event that was sealed when the first page was read; -1 for none.
        last: The last one that was when the newest page was read.
        is_done: Whether all were read.
    """

    def __init__(self, past: Past, part: int) -> None:
        self.sequence = self.last = past.view.sealed - 1
        self.is_done = False
        self._first = past.first
        prefix = U64.pack(past.view.origin.number)
        self._size = len(prefix)
        self._prefix = self._start = prefix + bytes([part]) if part else prefix
        self._spaces: dict[Space, dict[str, StoredVariable]] = {}
        self._names: dict[str, BranchName] = {}

    def is_purged(self, past: Past) -> bool:
        """Whether events that would have to be applied to these rows were purged meanwhile."""
        return past.first > self._first and past.first > self.sequence + 1

    def read(self, past: Past) -> None:
        """Read the next page.

        Raises:
            CorruptionError: A row is damaged, or one beside the range, which may belong in it.
        """
        self.last = past.view.sealed - 1
        if past.tables.has("state"):
            size = 0
            rows = past.tables.contents("state", self._prefix, self._start)
            for count, (key, content) in enumerate(rows, 1):
                self._take(key, content)
                size += len(content)
                if count >= STATE_PAGE_ROWS or size >= PAGE_BYTES:
                    self._start = key + b"\0"
                    return
        self.is_done = True

    def fold(self, sequence: int) -> Fold:
        """What was read, as a fold that the events after a sequence are to be applied to."""
        return make_fold(sequence, self._spaces, self._names)

    def _take(self, key: bytes, content: bytes) -> None:
        where = f"state {key.hex()}"
        if len(key) <= self._size:
            raise CorruptionError("key has another size", where=where)
        projection, subkey = key[self._size], key[self._size + 1 :]
        if projection == BRANCHES:
            return
        if projection == NAMES:
            name = naming.decode_row(content, where)
            self._names[name.name] = name
            wanted = naming.subkey_of(name.name)
        else:
            stored = decode_row(content, where)
            self._spaces.setdefault(_space(projection, where), {})[stored.key] = stored
            wanted = subkey_of(stored.key)
        if subkey != wanted:
            raise CorruptionError("holds another variable", where=where)


def _space(projection: int, where: str) -> Space:
    try:
        return Space(projection)
    except ValueError as error:
        raise CorruptionError("is of no space", where=where) from error
