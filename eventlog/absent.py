"""Whether a row is really absent, or hidden by damage of a key.

A flipped bit in a key hides its row from whoever looks for it, and leaves it where it was: a search
for the key that it had ends right before it or right behind it, because all other keys of that page
are in order. So a miss counts only when the rows on both sides are whole, as each row's checksum
covers its key.
"""

from __future__ import annotations

from typing import Any

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
            _require_whole(table, *cursor.item())


def _require_whole(table: str, key: bytes, value: bytes) -> None:
    expose(bytes(key), bytes(value), f"{table} {bytes(key).hex()}")
