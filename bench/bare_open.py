"""The yardstick of opening: bare LMDB, and one scan of the hot log that checks each record.

This is the least that a store has to do which keeps nothing but its log and trusts no byte of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import lmdb
from xxhash import xxh3_64_digest

from eventlog.hotlog import HOT_NAMES

_DATA_FILE: Final = "data.mdb"
_MAP_BYTES: Final = 1 << 40
_CHECKSUM_BYTES: Final = 8


def open_and_scan(store: Path) -> int:
    """Open the environment of a store and check every record of its hot log.

    Args:
        store: The store's directory; nobody else may have it open.

    Returns:
        The number of hot records.

    Raises:
        ValueError: A record's checksum is wrong: the yardstick would measure something else.
    """
    folder = next(store.rglob(_DATA_FILE)).parent
    environment = lmdb.open(str(folder), map_size=_MAP_BYTES, max_dbs=len(HOT_NAMES), create=False)
    count = 0
    with environment.begin() as transaction:
        for name in HOT_NAMES:
            table = environment.open_db(name.encode(), txn=transaction, create=False)
            for key, record in transaction.cursor(table):
                if xxh3_64_digest(key + record[_CHECKSUM_BYTES:]) != record[:_CHECKSUM_BYTES]:
                    raise ValueError(f"record {key.hex()} of table {name} is damaged")
                count += 1
    environment.close()
    return count
