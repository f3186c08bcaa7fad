"""A store of format version 1, as the release of that version made one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from eventlog.body import encode_plain
from eventlog.creation import create
from eventlog.idruns import IdRuns
from eventlog.log import Options
from eventlog.rows import CommitRecord
from eventlog.tables import TABLES_1, WriteTables


def make(path: Path) -> None:
    """Make an empty one."""

    def initialise(transaction: Any, tables: Any) -> None:
        write = WriteTables(transaction, tables, IdRuns(tables["id"]))
        options = asdict(Options())
        write.put_options(encode_plain(options))
        write.put_commit_record(CommitRecord(transaction=transaction.id(), version=1))

    create(
        path,
        tables=TABLES_1,
        initialise=initialise,
        marker={"version": 1, "store_id": "0123456789abcdef" * 2},
    )
