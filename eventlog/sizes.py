"""What sessions take in the store as they lie there; what is made of them is not counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from eventlog.blobtable import blob_rows
from eventlog.keys import PAIR, U64
from eventlog.past import Past
from eventlog.reading import read_loose
from eventlog.tables import ReadTables


def stored_bytes(past: Past) -> int:
    """Bytes of a session's events: segments as they are compressed, loose ones as they came."""
    number, total = past.view.origin.number, 0
    with past.tables.segment_cursor() as cursor:
        found = cursor.set_range(PAIR.pack(number, past.first))
        while found:
            key, value = cursor.item()
            if key[: U64.size] != U64.pack(number):
                break
            total += len(value)
            found = cursor.next()
    view = past.view
    log = past.tables.hot_log(view.record)
    for sequence in range(max(view.sealed, past.first), view.event_count):
        value = view.loose.records[sequence]
        total += len(value or read_loose(log, view, sequence - view.loose.base))
    return total


def content_bytes(
    tables: ReadTables, tenant: str, pause: Callable[[], None]
) -> Iterator[tuple[bytes, int]]:
    """Address and stored bytes of each content of a tenant; pauses between two of them."""
    number = tables.find_tenant(tenant) if tables.has("blob") else None
    if number is None:
        return
    mine = U64.pack(number)
    for key, row in blob_rows(tables, mine):
        if key[: U64.size] != mine:
            return
        pause()
        yield key[U64.size :], row.stored_bytes
