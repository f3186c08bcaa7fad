"""The present rows of one inline projection of a session: those stored, and what is loose on top.

``state`` holds the rows of sealed events (``inline``); the loose control events are found in memory
and make the same rows. Of each loose list it is kept how far it was looked through, so that asking
again costs the events that came since.

Invariants:
    1. Rows and loose events belong together when the loose list begins at or below the
       transaction's first unsealed event; what is in both makes the same rows.
    2. Which events a session has from a sequence on never changes but by a removal or a failed
       commit, and with these all that is kept goes.
    3. What is kept takes at most ``PRESENT_BYTES_MAX``, of at most ``NAMES_MAX`` sessions; what was
       asked for longest ago goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from eventlog.absent import require_absent
from eventlog.errors import CorruptionError
from eventlog.hotlog import HotLog
from eventlog.index import Loose
from eventlog.inline import InlineProjection, state_key
from eventlog.keys import U64
from eventlog.limits import NAMES_MAX, PRESENT_BYTES_MAX
from eventlog.record import KIND_BYTE, Origin, Record, decode_record, verify_record
from eventlog.rows import CommitRecord, expose
from eventlog.tables import ReadTables

Rows = dict[bytes, bytes]
_NO_ROWS: Final[Rows] = {}
_LOOKED_BYTES: Final = 250  # of a session without changes
_CHANGE_BYTES: Final = 150  # of a change beside its content


@dataclass(slots=True)
class _Looked:
    """What was found in a loose list so far; the list itself is not kept from going."""

    base: int
    count: int = 0
    changes: dict[bytes, bytes | None] = field(default_factory=dict)
    byte_count: int = _LOOKED_BYTES


class PresentRows:
    """See the module; any thread. One for each projection that is asked for.

    Args:
        projection: The projection.
        names_max: Sessions of which something is kept.
        bytes_max: Bytes that are kept.
    """

    def __init__(
        self,
        projection: InlineProjection,
        *,
        names_max: int = NAMES_MAX,
        bytes_max: int = PRESENT_BYTES_MAX,
    ) -> None:
        self.projection = projection
        self.bytes_max = bytes_max
        self.byte_count = 0
        self._names_max = names_max
        self._lock = threading.Lock()
        self._looked: OrderedDict[int, _Looked] = OrderedDict()
        self._epoch = (0, 0)

    def begin(self, epoch: tuple[int, int]) -> None:
        """Forget all, since something was removed (``SegmentCache.on_begin``)."""
        with self._lock:
            self._epoch = epoch
            self._forget()

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._looked.clear()
        self.byte_count = 0

    def stored(self, tables: ReadTables, number: int) -> Rows:
        """The rows of a session's sealed events, by subkey."""
        if not tables.has("state"):
            return _NO_ROWS
        prefix = state_key(number, self.projection.number)
        size = len(prefix)
        return {
            key[size:]: expose(key, value, f"state {key.hex()}")
            for key, value in tables.rows("state", prefix)
        }

    def rows(
        self,
        tables: ReadTables,
        record: CommitRecord,
        origin: Origin,
        loose: Loose | None,
        stop: int,
    ) -> Rows:
        """The present rows of a session, by subkey.

        Args:
            tables: The transaction.
            record: Its commit record.
            origin: The session.
            loose: Its loose list; None when no loose event is of a control kind.
            stop: How many entries of it are used.

        Raises:
            CorruptionError: A row or a loose control event is damaged.
        """
        rows = self.stored(tables, origin.number)
        if loose is None or not stop:
            return rows
        changes = self._loose(tables, record, origin, loose, stop)
        if not changes:
            return rows
        rows = dict(rows)
        for subkey, content in changes.items():
            if content is None:
                rows.pop(subkey, None)
            else:
                rows[subkey] = content
        return rows

    def row(
        self,
        tables: ReadTables,
        record: CommitRecord,
        origin: Origin,
        loose: Loose | None,
        stop: int,
        subkey: bytes,
    ) -> bytes | None:
        """One present row of a session; None when there is none. See ``rows``.

        Raises:
            CorruptionError: It is damaged, or a loose control event is; or a row beside the place
                where there is none, which may be it.
        """
        if loose is not None and stop:
            changes = self._loose(tables, record, origin, loose, stop)
            if subkey in changes:
                return changes[subkey]
        if not tables.has("state"):
            return None
        key = state_key(origin.number, self.projection.number, subkey)
        value = tables.transaction.get(key, db=tables.tables["state"])
        if value is None:
            require_absent(tables.transaction, tables.tables["state"], "state", key)
            return None
        return expose(key, value, f"state {key.hex()}")

    def _loose(
        self, tables: ReadTables, record: CommitRecord, origin: Origin, loose: Loose, stop: int
    ) -> dict[bytes, bytes | None]:
        with self._lock:
            looked = self._looked.get(origin.number)
            if looked is not None:
                self._looked.move_to_end(origin.number)
        if looked is None or looked.base != loose.base or looked.count > stop:
            looked = _Looked(loose.base)
        if looked.count == stop:
            return looked.changes
        changes = dict(looked.changes)
        kinds = self.projection.kinds
        log: HotLog | None = None
        for place in range(looked.count, stop):
            value = loose.records[loose.base + place]
            position = loose.positions[place]
            if not position:
                continue  # damaged: nobody knows of what kind it was
            if value is None:
                log = log or tables.hot_log(record)
                value = log.get(position)
                if value is None:
                    raise CorruptionError("record is missing", where=f"log {position}")
                verify_record(U64.pack(position), value)
            if value[KIND_BYTE] in kinds:
                event = decode_record(origin, position, value, Record)
                changes.update(self.projection.changes(event))
        self._keep(
            origin.number, _Looked(loose.base, stop, changes, _size_of(changes)), tables.epoch
        )
        return changes

    def _keep(self, number: int, looked: _Looked, epoch: tuple[int, int]) -> None:
        with self._lock:
            if epoch < self._epoch or looked.byte_count > self.bytes_max:
                return  # it may be of what was removed since this transaction began
            self._drop(number)
            self._looked[number] = looked
            self.byte_count += looked.byte_count
            while len(self._looked) > self._names_max or self.byte_count > self.bytes_max:
                self._drop(next(iter(self._looked)))

    def _drop(self, number: int) -> None:
        before = self._looked.pop(number, None)
        if before is not None:
            self.byte_count -= before.byte_count


def _size_of(changes: dict[bytes, bytes | None]) -> int:
    contents = sum([len(content) for content in changes.values() if content is not None])
    return _LOOKED_BYTES + _CHANGE_BYTES * len(changes) + contents
