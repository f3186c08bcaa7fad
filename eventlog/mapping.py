"""Map a store's data file: examine it, open LMDB on it, and see that both show the same.

Invariants:
    1. No page is mapped before ``raw.examine`` accepted the file.
    2. What is given back stands at the transaction that its commit record names.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb

from eventlog import raw
from eventlog.creation import open_with_smaller_maps
from eventlog.errors import CorruptionError
from eventlog.limits import MIB, READERS_MAX, TABLES_MAX
from eventlog.lmdb_errors import mapped_errors
from eventlog.raw import COMMIT_KEY, COMMIT_TABLE, DATA_FILE, CommitRecordLike

if TYPE_CHECKING:
    from lmdb import _Database as Database

Hold = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Mapped:
    """An open data file.

    Attributes:
        environment: LMDB's environment.
        db: Its named databases.
        map_bytes: Size of the map.
        page_bytes: Size of a page.
    """

    environment: lmdb.Environment
    db: dict[str, Database]
    map_bytes: int
    page_bytes: int


@dataclass(frozen=True)
class Mapping:
    """How a data file is mapped.

    Attributes:
        path: The store's folder.
        tables: Names of the named databases.
        decode_commit_record: Decodes the commit record, or raises CorruptionError.
        read_only: Whether LMDB may write.
        is_locked: Whether LMDB's lock file is used.
        map_bytes: Size of the map; halved, with a warning, where there is less room.
        hold: The writer lock as a context manager.
        warn: Called with what is not as it should be.
    """

    path: Path
    tables: tuple[str, ...]
    decode_commit_record: Callable[[bytes], CommitRecordLike]
    read_only: bool
    is_locked: bool
    map_bytes: int
    hold: Hold
    warn: Callable[..., None]

    def open(self, *, verify: bool) -> Mapped:
        """Examine and map the file; ``verify`` walks every page first."""
        where = str(self.path)
        examination = raw.examine(
            self.path / DATA_FILE, self.decode_commit_record, verify=verify, hold=self.hold
        )
        self.warn(*examination.warnings)
        with mapped_errors(where):
            environment = open_with_smaller_maps(
                self.map_bytes,
                lambda size: lmdb.open(
                    where,
                    map_size=size,
                    mode=0o600,
                    create=False,
                    readonly=self.read_only,
                    lock=self.is_locked,
                    max_readers=READERS_MAX,
                    max_dbs=TABLES_MAX,
                ),
            )
        try:
            with mapped_errors(where):
                if self.is_locked:
                    environment.reader_check()
                map_bytes = self._size_of_map(environment)
                db = self._open_tables(environment)
                with environment.begin() as txn:
                    self._compare(txn, db)
        except BaseException:
            environment.close()
            raise
        return Mapped(environment, db, map_bytes, examination.meta.page_bytes)

    def _size_of_map(self, environment: lmdb.Environment) -> int:
        map_bytes = environment.info()["map_size"]
        if map_bytes < self.map_bytes:
            self.warn(
                f"the address space has room for a map of {map_bytes // MIB:,} MiB only; "
                "the store cannot grow beyond it in this process"
            )
        return map_bytes

    def _open_tables(self, environment: lmdb.Environment) -> dict[str, Database]:
        """Open the named databases.

        Only a committed write transaction keeps handles in an environment that may write, so this
        waits for a writer; nothing is written. A read-only environment needs no such thing.
        """
        if self.read_only:
            return self._open_tables_in(environment, None)
        with self.hold(), environment.begin(write=True) as txn:
            return self._open_tables_in(environment, txn)

    def _open_tables_in(
        self, environment: lmdb.Environment, txn: lmdb.Transaction[bytes] | None
    ) -> dict[str, Database]:
        db: dict[str, Database] = {}
        for name in self.tables:
            try:
                db[name] = environment.open_db(name.encode(), txn=txn, create=False)
            except lmdb.NotFoundError as error:
                raise CorruptionError(f"table {name!r} is missing", where=str(self.path)) from error
        return db

    def _compare(self, txn: lmdb.Transaction[Any], db: dict[str, Database]) -> None:
        """LMDB must stand at the transaction that wrote the commit record it shows."""
        value = txn.get(COMMIT_KEY, db=db[COMMIT_TABLE.decode()])
        if value is None:
            raise CorruptionError("the commit record is missing", where=str(self.path))
        record = self.decode_commit_record(bytes(value))
        if record.transaction != txn.id():
            raise CorruptionError(
                f"LMDB stands at transaction {txn.id()}, the commit record names "
                f"{record.transaction}: a commit was rolled back, or pages are stale",
                where=str(self.path),
            )
