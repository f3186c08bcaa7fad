"""Whether a row is really absent, or hidden by damage of a key.

A flipped bit in a key hides its row from whoever looks for it, and leaves it where it was: a search
for the key that it had ends right before it or right behind it, because all other keys of that page
are in order. So a miss counts only when the rows on both sides are whole, as each row's checksum
covers its key. Rows of a range are missed in the same way: the first ones, or the last, or all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eventlog.errors import CorruptionError
from eventlog.rows import expose


def require_absent(transaction: Any, db: Any, table: str, key: bytes) -> None:
    """Check the rows around a key that was not found.

    Args:
        transaction: The transaction in which it was not found.
        db: The named database; its rows are plain ones.
        table: How it is called in errors.
        key: The key.

    Raises:
        CorruptionError: One of them is damaged; it may be the one that was looked for.
    """
    with transaction.cursor(db) as cursor:
        found = cursor.set_range(key)
        if found:
            _require_whole(table, *cursor.item())
        if cursor.prev() if found else cursor.last():
            require_before(table, key, *cursor.item())


def rows_of_range(
    transaction: Any, db: Any, table: str, prefix: bytes, start: bytes = b""
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and contents of all plain rows whose keys begin with a prefix, in key order.

    Args:
        transaction: The transaction.
        db: The named database.
        table: How it is called in errors.
        prefix: What the keys begin with; not empty.
        start: The least key to begin at.

    Raises:
        CorruptionError: A row is damaged, or one beside the range, which may belong in it.
    """
    with transaction.cursor(db) as cursor:
        first = max(prefix, start)
        found = cursor.set_range(first)
        if cursor.prev() if found else cursor.last():
            require_before(table, first, *cursor.item())
            found = cursor.next()
        elif found:
            cursor.first()
        while found:
            key, value = cursor.item()
            content = _require_whole(table, key, value)
            if not key.startswith(prefix):
                return
            yield key, content
            found = cursor.next()


def require_before(table: str, key: bytes, before: bytes, value: bytes) -> None:
    """Check the row that lies before a key.

    Raises:
        CorruptionError: It is damaged, or not before the key.
    """
    _require_whole(table, before, value)
    if before >= key:
        raise CorruptionError("is not in the order of keys", where=f"{table} {before.hex()}")


def _require_whole(table: str, key: bytes, value: bytes) -> bytes:
    return expose(key, value, f"{table} {key.hex()}")
