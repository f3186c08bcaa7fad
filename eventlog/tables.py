"""The named databases, and typed access to their rows within one transaction.

Invariants:
    1. Everything read is checked before it is used; everything written is checksummed.
    2. Nothing here keeps a transaction; a ``ReadTables`` lives as long as its transaction.
    3. No row is read or written before it is known which database serves as which (``roles``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from eventlog import roles
from eventlog.absent import require_absent, rows_of_range
from eventlog.dictionary import DictionaryRow, dictionary_key
from eventlog.errors import CorruptionError
from eventlog.hotlog import HOT_NAMES, HotLog
from eventlog.idruns import IdRuns
from eventlog.index import LooseIndex, Name
from eventlog.keys import PAIR, U64, U64_MAX, name_key
from eventlog.order import OrderBlock, decode_block
from eventlog.record import Origin, Record
from eventlog.roles import SPARE
from eventlog.rows import (
    COMMIT_KEY,
    OPTIONS_KEY,
    SECRET_BYTES,
    CommitRecord,
    KeyedResult,
    SessionRow,
    TenantRow,
    decode_number,
    expose,
    protect,
)

if TYPE_CHECKING:
    import lmdb

    from eventlog.decoded import Segment
    from eventlog.removal import RemovalRow
    from eventlog.segmentcache import SegmentCache

TABLES_1: Final = (  # of format version 1
    "commit",  # the commit record, the options
    *HOT_NAMES,  # position -> hot record
    "segment",  # session number, last sequence -> segment
    "order",  # block number -> order block
    "session",  # session number -> session row
    "name",  # digest of tenant and session name -> number
    "tenant",  # tenant number -> tenant row
    "key",  # session number, digest of an idempotency key -> keyed result
    "id",  # callers' ids: sorted runs with filters
    "activity",  # tenant number, ~last position -> session number
)
TABLES: Final = (
    *TABLES_1,
    "dict",  # dictionary number -> dictionary
    "blob",  # address of a blob -> blob row
    "chunk",  # blob number, chunk number -> chunk
    "state",  # session number, projection, subkey -> row of an inline projection
    "removal",  # session number -> what is still to be removed of it
    "spare",  # a rebuild's new generation of one table
)


def tables_of(version: int) -> tuple[str, ...]:
    """Names of the named databases of a format version."""
    return TABLES_1 if version == 1 else TABLES


class ReadTables:
    """Reads within one transaction.

    Args:
        transaction: The transaction.
        databases: The named databases by their own names.
    """

    def __init__(self, transaction: lmdb.Transaction[bytes], databases: Mapping[str, Any]) -> None:
        self.transaction = transaction
        self._databases = databases
        self.epoch = (0, 0)  # of the commit record, once it was read
        self._roles: int | None = None
        self._serving: Mapping[str, Any] | None = None

    @property
    def tables(self) -> Mapping[str, Any]:
        """The named databases by what they serve as in this transaction."""
        if self._serving is None:
            self._serving = roles.serving(self._told_roles(), self._databases)
        return self._serving

    def _told_roles(self) -> int:
        """The commit record's; 0 while the store is being made."""
        if self._roles is None:
            self._roles = 0 if self._stored_record() is None else self.commit_record().roles
        return self._roles

    def has(self, table: str) -> bool:
        """Whether the store's format version has this table."""
        return table in self._databases

    def _stored_record(self) -> bytes | None:
        value: bytes | None = self.transaction.get(COMMIT_KEY, db=self._databases["commit"])
        return value

    def commit_record(self) -> CommitRecord:
        """The commit record as this transaction sees it."""
        value = self._stored_record()
        if value is None:
            raise CorruptionError("is missing", where="commit record")
        record = CommitRecord.decode(value)
        self._roles = record.roles
        self.epoch = record.epoch
        return record

    def options(self) -> bytes:
        """The options stored at creation, encoded."""
        value = self.transaction.get(OPTIONS_KEY, db=self._databases["commit"])
        if value is None:
            raise CorruptionError("are missing", where="options")
        return expose(OPTIONS_KEY, value, "options")

    def rows(
        self, table: str, prefix: bytes = b"", *, start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a table in key order.

        Args:
            table: Its name.
            prefix: What the keys begin with.
            start: The least key to begin at, if there is a prefix.
        """
        cursor = self.transaction.cursor(self.tables[table])
        try:
            found = cursor.set_range(max(prefix, start)) if prefix else cursor.first()
            while found:
                key = cursor.key()
                if not key.startswith(prefix):
                    return  # without the value of that row, which may be of many MiB
                yield key, cursor.value()
                found = cursor.next()
        finally:
            cursor.close()

    def contents(
        self, table: str, prefix: bytes, start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and contents of plain rows, complete or an error (``absent``), in key order."""
        return rows_of_range(self.transaction, self.tables[table], table, prefix, start)

    def has_row(self, table: str, key: bytes) -> bool:
        """Whether a table has a row of that key, good or bad."""
        return self.transaction.get(key, db=self.tables[table]) is not None

    def row_count(self, table: str) -> int:
        """How many rows a table has."""
        count: int = self.transaction.stat(self.tables[table])["entries"]
        return count

    def hot_log(self, record: CommitRecord) -> HotLog:
        """The hot log."""
        return HotLog(self.transaction, self.tables, record.last_position, record.floor)

    def find_tenant(self, name: str) -> int | None:
        """Number of a tenant, None when there is none.

        Raises:
            CorruptionError: A row is damaged, or the name leads to a tenant of another name.
        """
        number, where = self._named(name, "")
        if number is not None and self.load_tenant(number).name != name:
            raise CorruptionError(f"leads to {number}, which has another name", where=where)
        return number

    def find_session(self, name: Name) -> tuple[int, SessionRow] | None:
        """Number and row of a session, None when there is none.

        Raises:
            CorruptionError: A row is damaged, or the name leads to a session of another name.
        """
        number, where = self._named(*name)
        if number is None:
            return None
        row = self.load_row(number)
        if (row.tenant, row.name) != name:
            raise CorruptionError(f"leads to {number}, which has another name", where=where)
        return number, row

    def _named(self, tenant: str, session: str) -> tuple[int | None, str]:
        """What a name leads to, not compared yet, and how its row is called in errors."""
        key = name_key(tenant, session)
        value = self.transaction.get(key, db=self.tables["name"])
        where = f"name {key.hex()}"
        if value is None:
            require_absent(self.transaction, self.tables["name"], "name", key)
        return (None if value is None else decode_number(key, value, where)), where

    def name_of(self, digest: bytes) -> Name | None:
        """Tenant and session name that have a digest (``keys.name_key``); None when none have.

        Raises:
            CorruptionError: A row is damaged.
        """
        value = self.transaction.get(digest, db=self.tables["name"])
        if value is None:
            return None
        row = self.load_row(decode_number(digest, value, f"name {digest.hex()}"))
        return None if row.is_gone else (row.tenant, row.name)

    def load_row(self, number: int) -> SessionRow:
        """A session's row.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        key = U64.pack(number)
        value = self.get_row(key)
        if value is None:
            raise CorruptionError("row is missing", where=f"session {number}")
        return SessionRow.decode(key, value)

    def get_row(self, key: bytes) -> bytes | None:
        """The stored bytes of a session's row."""
        value: bytes | None = self.transaction.get(key, db=self.tables["session"])
        return value

    def load_tenant(self, number: int) -> TenantRow:
        """A tenant's row."""
        key = U64.pack(number)
        value = self.transaction.get(key, db=self.tables["tenant"])
        if value is None:
            raise CorruptionError("row is missing", where=f"tenant {number}")
        return TenantRow.decode(key, value)

    def find_key(self, number: int, digest: bytes) -> KeyedResult | None:
        """A sealed idempotency key."""
        key = U64.pack(number) + digest
        value = self.transaction.get(key, db=self.tables["key"])
        if value is None:
            require_absent(self.transaction, self.tables["key"], "key", key)
            return None
        return KeyedResult.decode(key, value)

    def load_dictionary(self, number: int) -> DictionaryRow:
        """A dictionary's row.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        key = dictionary_key(number)
        value = self.transaction.get(key, db=self.tables["dict"]) if self.has("dict") else None
        if value is None:
            raise CorruptionError("is missing", where=f"dictionary {number}")
        return DictionaryRow.decode(key, value)

    def dictionaries_of(self, sessions: set[int]) -> list[int]:
        """Numbers of the dictionaries that were trained on any of some sessions.

        Those that are damaged are among them: nobody knows what they were trained on.
        """
        found: list[int] = []
        for key, value in self.rows("dict") if self.has("dict") else ():
            try:
                trained = DictionaryRow.decode(key, value).sessions
            except CorruptionError:
                found.append(key[0])
                continue
            if not sessions.isdisjoint(trained):
                found.append(key[0])
        return found

    def get_block(self, block: int) -> bytes | None:
        """The stored bytes of an order block."""
        value: bytes | None = self.transaction.get(U64.pack(block), db=self.tables["order"])
        return value

    def load_block(self, block: int) -> OrderBlock:
        """An order block.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        value = self.get_block(block)
        if value is None:
            raise CorruptionError("is missing", where=f"order block {block}")
        return decode_block(U64.pack(block), value)

    @contextmanager
    def segment_cursor(self) -> Iterator[Any]:
        """A cursor for one or many calls of ``segments``, one after the other."""
        cursor = self.transaction.cursor(self.tables["segment"])
        try:
            yield cursor
        finally:
            cursor.close()

    def segments(
        self,
        number: int,
        first: int,
        cache: SegmentCache,
        *,
        reverse: bool = False,
        kept_from: int = 0,
        cursor: Any = None,
    ) -> Iterator[Segment]:
        """Segments of a session, from the one that holds sequence ``first`` on.

        Args:
            number: The session number.
            first: A sequence.
            cache: Where decoded segments are kept.
            reverse: Go towards sequence 0 instead.
            kept_from: Segments that end before this sequence are not kept in the cache.
            cursor: One of ``segment_cursor`` to use.
        """
        own = self.transaction.cursor(self.tables["segment"]) if cursor is None else None
        at = cursor if own is None else own
        try:
            found = at.set_range(PAIR.pack(number, first))
            while found:
                key = at.key()
                if len(key) != PAIR.size:
                    raise CorruptionError("key has another size", where=f"segment {key.hex()}")
                owner, last = PAIR.unpack(key)
                if owner != number:
                    break
                yield cache.load(self, key, at.value(), keep=last >= kept_from)
                found = at.prev() if reverse else at.next()
        finally:
            if own is not None:
                own.close()

    def read_event(self, number: int, sequence: int, cache: SegmentCache) -> Record | None:
        """A sealed event by session number and sequence."""
        row = self.load_row(number)
        origin = Origin(number, row.tenant, row.name)
        for segment in self.segments(number, sequence, cache):
            place = sequence - segment.first_sequence
            return segment.make(place, origin, Record) if place >= 0 else None
        return None

    def activity(self, tenant_number: int, before: int) -> Iterator[tuple[int, int]]:
        """Last sealed position and session number, newest first, below position ``before``."""
        cursor = self.transaction.cursor(self.tables["activity"])
        try:
            found = cursor.set_range(PAIR.pack(tenant_number, U64_MAX - before + 1))
            while found:
                key, value = cursor.item()
                if len(key) != PAIR.size:
                    raise CorruptionError("key has another size", where=f"activity {key.hex()}")
                tenant, inverted = PAIR.unpack(key)
                if tenant != tenant_number:
                    break
                number = decode_number(key, value, f"activity {key.hex()}")
                yield U64_MAX - inverted, number
                found = cursor.next()
        finally:
            cursor.close()


def _key_of(item: tuple[bytes, bytes]) -> bytes:
    return item[0]


class WriteTables(ReadTables):
    """Reads and writes within one write transaction."""

    def __init__(
        self,
        transaction: lmdb.Transaction[bytes],
        databases: Mapping[str, Any],
        id_runs: IdRuns,
    ) -> None:
        super().__init__(transaction, databases)
        self._id_runs = id_runs

    def _runs_of(self, table: str) -> IdRuns:
        """The runs of callers' ids in one database."""
        self._id_runs.database = self.tables[table]
        return self._id_runs

    def written(self, table: str) -> tuple[str, ...]:
        """Where rows of a table are written: also to its next generation while that is made."""
        return (table, SPARE) if table == roles.rebuilding(self._told_roles()) else (table,)

    def _put_many(self, table: str, items: Sequence[tuple[bytes, bytes]]) -> None:
        for each in self.written(table):
            cursor = self.transaction.cursor(self.tables[each])
            try:
                cursor.putmulti(items)
            finally:
                cursor.close()

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Put one row."""
        for each in self.written(table):
            self.transaction.put(key, value, db=self.tables[each])

    def delete(self, table: str, key: bytes) -> None:
        """Delete one row, if it is there."""
        for each in self.written(table):
            self.transaction.delete(key, db=self.tables[each])

    def _put_rising(self, table: str, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put rows of rising keys; those behind the table's last one fill its pages.

        LMDB splits a page in the middle, also for a row that comes last, unless it is told so: then
        the page before stays full. Of short sessions that are sealed once this takes half.
        """
        cursor = self.transaction.cursor(self.tables[table])
        try:
            last = cursor.key() if cursor.last() else b""
            start = bisect_right(items, last, key=_key_of) if items[-1][0] > last else len(items)
            if start:
                cursor.putmulti(items[:start])
            if start < len(items):
                _, added = cursor.putmulti(items[start:], append=True)
                assert added == len(items) - start, "keys rise"
        finally:
            cursor.close()

    def put_commit_record(self, record: CommitRecord) -> None:
        """Rewrite the commit record."""
        self.transaction.put(COMMIT_KEY, record.encode(), db=self.tables["commit"])

    def put_spare(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Store rows of a table's next generation; keys rising."""
        if items:
            self._put_rising(SPARE, items)

    def put_options(self, encoded: bytes) -> None:
        """Store the options."""
        self.transaction.put(OPTIONS_KEY, protect(OPTIONS_KEY, encoded), db=self.tables["commit"])

    def put_name(self, tenant: str, session: str, number: int) -> None:
        """Give a number its name."""
        key = name_key(tenant, session)
        self.put("name", key, protect(key, U64.pack(number)))

    def put_names(self, names: Sequence[tuple[Name, int]]) -> None:
        """Give numbers their names, in key order so that neighbouring pages are met once."""
        items = []
        for (tenant, session), number in names:
            key = name_key(tenant, session)
            items.append((key, protect(key, U64.pack(number))))
        self._put_many("name", sorted(items))

    def put_tenant(self, number: int, row: TenantRow) -> None:
        """Store a new tenant."""
        assert len(row.secret) == SECRET_BYTES
        key = U64.pack(number)
        self.transaction.put(key, row.encode(key), db=self.tables["tenant"])
        self.put_name(row.name, "", number)

    def put_rows(self, rows: Sequence[tuple[bytes, SessionRow]]) -> None:
        """Store session rows; keys rising."""
        self._put_rising("session", [(key, row.encode(key)) for key, row in rows])

    def put_segments(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Store segments; keys rising."""
        self._put_rising("segment", items)

    def replace_segment(self, key: bytes, value: bytes) -> None:
        """Put a segment in place of one that may have been put in the same transaction.

        LMDB would leave a smaller value in the pages of the larger one, where whoever walks the
        file without it takes the pages that are too many for damage.
        """
        self.remove_segment(key)
        self.put_segments([(key, value)])

    def remove_segment(self, key: bytes) -> None:
        """Remove a segment whose events are in another one now."""
        self.transaction.delete(key, db=self.tables["segment"])

    def put_dictionary(self, number: int, row: DictionaryRow) -> None:
        """Store a new dictionary."""
        key = dictionary_key(number)
        self.transaction.put(key, row.encode(key), db=self.tables["dict"])

    def put_block(self, key: bytes, value: bytes) -> None:
        """Store an order block."""
        self.transaction.put(key, value, db=self.tables["order"])

    def put_keys(self, results: Sequence[tuple[int, bytes, KeyedResult]]) -> None:
        """Store idempotency keys that are sealed: session number, digest, result."""
        items = []
        for number, digest, result in results:
            key = U64.pack(number) + digest
            items.append((key, result.encode(key)))
        self._put_many("key", sorted(items))

    def put_activity(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """Note sessions among the newest: tenant number, last sealed position, session number."""
        items = []
        for tenant_number, position, number in rows:
            key = PAIR.pack(tenant_number, U64_MAX - position)
            items.append((key, protect(key, U64.pack(number))))
        self._put_many("activity", sorted(items))

    def put_state(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Store rows of inline projections; keys rising."""
        self._put_many("state", items)

    def remove_activity(self, tenant_number: int, position: int) -> None:
        """Remove a row that a newer one of the same session replaced."""
        self.delete("activity", PAIR.pack(tenant_number, U64_MAX - position))

    def delete_name(self, tenant: str, session: str) -> None:
        """Make a name free again."""
        self.delete("name", name_key(tenant, session))

    def put_removal(self, number: int, row: RemovalRow) -> None:
        """Note what is still to be removed of a session."""
        key = U64.pack(number)
        self.put("removal", key, row.encode(key))

    def delete_removal(self, number: int) -> None:
        """Nothing is left to be removed of a session."""
        self.delete("removal", U64.pack(number))

    def delete_rows(
        self,
        table: str,
        prefix: bytes,
        count: int,
        pause: Callable[[], None],
        *,
        last: bytes | None = None,
    ) -> int:
        """Delete rows in key order.

        Args:
            table: Its name.
            prefix: What their keys begin with.
            count: How many at most.
            pause: Lets the GIL go when the slice is used up.
            last: The last key to delete; None for no bound.

        Returns:
            How many more could have been deleted.
        """
        for each in self.written(table):
            cursor = self.transaction.cursor(self.tables[each])
            try:
                found = cursor.set_range(prefix)
                while found and count > 0:
                    key = cursor.key()
                    if not key.startswith(prefix) or (last is not None and key > last):
                        break
                    cursor.delete()  # leads to the one after it
                    found = bool(cursor.key())
                    count -= 1
                    pause()
            finally:
                cursor.close()
        return count

    def add_ids(self, first: int, stop: int, index: LooseIndex) -> None:
        """Make an id run of the callers' ids at positions that are being cut."""
        entries = []
        for position, hashed, number, sequence in index.ids_by_position:
            if position >= stop:
                break
            if position >= first:
                entries.append((hashed, number, sequence))
        if entries:
            self.add_id_run(entries)

    def add_id_run(self, entries: list[tuple[bytes, int, int]], *, only: str | None = None) -> None:
        """Add a run of callers' ids: hash, session number, sequence.

        Args:
            entries: What it holds.
            only: The one table that gets it; the index, and its next generation, when None.
        """
        for each in self.written("id") if only is None else (only,):
            self._runs_of(each).add_run(self.transaction, entries)

    def merge_ids(self, budget_bytes: int, table: str = "id") -> int:
        """Do a bounded piece of merging of id runs."""
        return self._runs_of(table).merge_step(self.transaction, budget_bytes)

    def find_ids(self, hashes: list[bytes]) -> dict[bytes, tuple[int, int]]:
        """Callers' ids in the runs."""
        return dict(self._runs_of("id").lookup(self.transaction, hashes))
