"""Blobs within one transaction: found, added, named by events, let go, collected.

The tenant is given by number, as it stands in keys; the clock's time comes in as an argument.
Everything here is called with the tables of an open transaction and keeps none.

Invariants (``blob`` says what rows there are):
    1. References are raised in the commit that writes the events, and lowered in the one that
       removes them, so that a row always counts what the log holds.
    2. A blob is no longer pending in the commit in which the last of those names it who put it;
       one that loses its last reference is pending from that commit's time on.
    3. A step of removal deletes at most ``COLLECT_CHUNKS_MAX`` chunks. A row goes before its
       chunks, and these keep a pending row until the last is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from eventlog.absent import require_absent
from eventlog.blob import (
    BLOB_KEY_BYTES,
    DOOMED_US,
    NO_ADDRESS,
    PENDING_PREFIX,
    BlobRow,
    PendingRow,
    blob_key,
    pending_key,
    where_blob,
)
from eventlog.errors import ConflictError, CorruptionError
from eventlog.failpoints import fp
from eventlog.keys import PAIR, U64
from eventlog.limits import (
    BLOB_PENDING_US,
    COLLECT_CHUNKS_MAX,
    COLLECT_ROWS_MAX,
)
from eventlog.tables import ReadTables, WriteTables

USAGE_SLICE: Final = 128  # rows read, about 0.4 ms, between two pauses
MISSING_HINT: Final = "Put the content again, and use the address that this gives."


def find_blob(tables: ReadTables, tenant_number: int, address: bytes) -> BlobRow | None:
    """A blob's row, None when there is none of that address."""
    key = blob_key(tenant_number, address)
    value = tables.transaction.get(key, db=tables.tables["blob"])
    if value is None:
        require_absent(tables.transaction, tables.tables["blob"], "blob", key)
        return None
    return BlobRow.decode(key, value)


def find_chunk(tables: ReadTables, number: int, index: int) -> bytes | None:
    """A chunk's stored value."""
    value: bytes | None = tables.transaction.get(
        PAIR.pack(number, index), db=tables.tables["chunk"]
    )
    return value


def find_pending(tables: ReadTables, number: int) -> PendingRow | None:
    """The pending row of a blob number."""
    key = pending_key(number)
    value = tables.transaction.get(key, db=tables.tables["blob"])
    return None if value is None else PendingRow.decode(key, value)


Damaged = dict[str, CorruptionError]
"""What is wrong with rows that were stepped over, by where they are."""


def pending_rows(
    tables: ReadTables, after: int = 0, damaged: Damaged | None = None
) -> Iterator[tuple[int, PendingRow]]:
    """Blob numbers above ``after`` with their pending rows, oldest number first.

    Args:
        tables: A transaction.
        after: A blob number.
        damaged: Takes what is wrong with rows that are stepped over.

    Raises:
        CorruptionError: A row is damaged, and ``damaged`` is None.
    """
    cursor = tables.transaction.cursor(tables.tables["blob"])
    try:
        found = cursor.set_range(pending_key(after) + b"\0" if after else pending_key(1))
        while found:
            key = cursor.key()
            if not key.startswith(PENDING_PREFIX):
                return
            try:
                row = PendingRow.decode(key, cursor.value())
            except CorruptionError as error:
                if damaged is None:
                    raise
                damaged[error.where] = error
            else:
                yield PAIR.unpack(key)[1], row
            found = cursor.next()
    finally:
        cursor.close()


def blob_rows(tables: ReadTables, after: bytes = b"") -> Iterator[tuple[bytes, BlobRow]]:
    """Keys and rows of all blobs in key order, from the first key above ``after`` on."""
    cursor = tables.transaction.cursor(tables.tables["blob"])
    try:
        found = cursor.set_range(max(after + b"\0" if after else after, U64.pack(1)))
        while found:
            key = cursor.key()
            yield key, BlobRow.decode(key, cursor.value())
            found = cursor.next()
    finally:
        cursor.close()


def put_blob(tables: WriteTables, tenant_number: int, address: bytes, row: BlobRow) -> None:
    """Store a blob row; a pending one gets its pending row."""
    key = blob_key(tenant_number, address)
    tables.transaction.put(key, row.encode(key), db=tables.tables["blob"])
    if row.pending_us:
        put_pending(tables, row.number, PendingRow(tenant_number, row.pending_us, address))


def put_pending(tables: WriteTables, number: int, row: PendingRow) -> None:
    """Store the pending row of a blob number."""
    key = pending_key(number)
    tables.transaction.put(key, row.encode(key), db=tables.tables["blob"])


def put_chunk(tables: WriteTables, key: bytes, value: bytes) -> None:
    """Store a chunk; keys of one number rise."""
    tables.transaction.put(key, value, db=tables.tables["chunk"])


class References:
    """References that the appends of one batch add: asked for one by one, written together."""

    def __init__(self, tables: WriteTables) -> None:
        self._tables = tables
        self._rows: dict[bytes, BlobRow] = {}
        self._added: dict[bytes, int] = {}
        self._events: dict[bytes, int] = {}

    def require(self, tenant_number: int, addresses: Iterable[bytes]) -> None:
        """Make sure that blobs exist.

        Raises:
            ConflictError: One does not; its address is ``expected``.
            CorruptionError: Its row is damaged.
        """
        for address in addresses:
            key = blob_key(tenant_number, address)
            if key not in self._rows:
                row = find_blob(self._tables, tenant_number, address)
                if row is None:
                    raise ConflictError(
                        f"the tenant has no blob {address.hex()}",
                        expected=address.hex(),
                        hint=MISSING_HINT,
                    )
                self._rows[key] = row

    def add(self, tenant_number: int, addresses: Sequence[bytes]) -> None:
        """Count references of an event that is placed; ``require`` found the blobs before."""
        for address in addresses:
            key = blob_key(tenant_number, address)
            self._added[key] = self._added.get(key, 0) + 1
        for address in set(addresses):
            key = blob_key(tenant_number, address)
            self._events[key] = self._events.get(key, 0) + 1

    def write(self) -> None:
        """Write the rows that changed."""
        tables = self._tables
        for key in sorted(self._added):
            row = self._rows[key]
            row.references += self._added[key]
            if row.end_wait(self._events[key]):
                tables.transaction.delete(pending_key(row.number), db=tables.tables["blob"])
            tables.transaction.put(key, row.encode(key), db=tables.tables["blob"])


def release(
    tables: WriteTables,
    tenant_number: int,
    addresses: Iterable[bytes],
    now_us: int,
    *,
    erases: bool = False,
) -> set[bytes]:
    """Take references back, of events that this transaction removes.

    A blob without references stays for an hour, from ``now_us`` on, as if it had just been put.
    Erasing gives it no such hour; one that somebody put again keeps what is left of its own.

    Args:
        tables: The transaction that removes the events.
        tenant_number: Their tenant.
        addresses: Each as often as events named it.
        now_us: The clock, not behind the newest time stamped by the store.
        erases: Of events that are erased, redacted or purged; ``erase`` follows for the blobs that
            are not held.

    Returns:
        The blobs that nothing names now and that are held: put again within the hour.

    Raises:
        CorruptionError: A blob is missing or damaged, or has fewer references.
    """
    held: set[bytes] = set()
    counts: dict[bytes, int] = {}
    for address in addresses:
        counts[address] = counts.get(address, 0) + 1
    for address in sorted(counts):
        key = blob_key(tenant_number, address)
        row = find_blob(tables, tenant_number, address)
        if row is None:
            raise CorruptionError("is missing, and events name it", where=where_blob(key))
        if row.references < counts[address]:
            raise CorruptionError(
                f"counts {row.references} references, {counts[address]} are given back",
                where=where_blob(key),
            )
        row.references -= counts[address]
        if not row.references:
            is_held = row.is_held(now_us)
            if is_held:
                held.add(address)
            if not (is_held and erases):
                row.pending_us = max(1, now_us, row.pending_us)
        put_blob(tables, tenant_number, address, row)
    return held


def erase(
    tables: WriteTables,
    tenant_number: int,
    addresses: Iterable[bytes],
    *,
    room: int | None = None,
) -> int:
    """Remove blobs that nothing names, without the hour; for erasing, after ``release``.

    Their rows go at once, so that nothing is read any more, and of their chunks as many as one
    step may remove. What is left is gone once ``collect`` says so, and has no address by then.

    Args:
        tables: A write transaction.
        tenant_number: The tenant.
        addresses: The blobs.
        room: How many chunks to remove now; None for as many as one commit may.

    Returns:
        How many blobs went; those that are named elsewhere stay.
    """
    room = COLLECT_CHUNKS_MAX if room is None else room
    erased = 0
    for address in sorted(set(addresses)):
        row = find_blob(tables, tenant_number, address)
        if row is None or row.references:
            continue
        erased += 1
        _doom_blob(tables, tenant_number, address, row.number)
        if room:
            room -= _remove_chunks(tables, row.number, room)
    return erased


def _doom_blob(tables: WriteTables, tenant_number: int, address: bytes, number: int) -> None:
    """Remove a blob's row; its chunks can only be collected from now on."""
    tables.transaction.delete(blob_key(tenant_number, address), db=tables.tables["blob"])
    put_pending(tables, number, PendingRow(tenant_number, DOOMED_US))
    fp("blob.after_row_removed")


def remove_doomed(tables: WriteTables, number: int, pending: PendingRow) -> bool:
    """One step of removing the chunks of a number without a blob row; True when all are gone."""
    if pending.pending_us != DOOMED_US:
        put_pending(tables, number, PendingRow(pending.tenant_number, DOOMED_US))
    _remove_chunks(tables, number, COLLECT_CHUNKS_MAX)
    return find_pending(tables, number) is None


def _remove_chunks(tables: WriteTables, number: int, room: int) -> int:
    """Remove chunks of a doomed number, and its pending row with the last; how many went."""
    prefix = U64.pack(number)
    handle = tables.tables["chunk"]
    removed = 0
    cursor = tables.transaction.cursor(handle)
    try:
        found = cursor.set_range(prefix)
        while found and removed < room and cursor.key().startswith(prefix):
            cursor.delete()  # leads to the one after it
            removed += 1
            found = bool(cursor.key())
        is_last = not (found and cursor.key().startswith(prefix))
    finally:
        cursor.close()
    if is_last:
        tables.transaction.delete(pending_key(number), db=tables.tables["blob"])
    return removed


@dataclass(slots=True)
class Collected:
    """What a collection did.

    Attributes:
        blobs: Whole blobs that went.
        streams: Contents that were never finished, and went.
        chunks: Their chunks.
        named: Blobs that were put again, but stay only as long as events name them.
        due_us: When the next one may be due, µs; None when nothing is pending.
        damaged: What could not be looked at or removed, because of damage.
    """

    blobs: int = 0
    streams: int = 0
    chunks: int = 0
    named: int = 0
    due_us: int | None = None
    damaged: Damaged = field(default_factory=dict)


def collect_step(
    tables: WriteTables,
    now_us: int,
    after: int,
    collected: Collected,
    pause: Callable[[], None],
) -> int | None:
    """Remove some of what nothing has named for an hour.

    Args:
        tables: A write transaction.
        now_us: The clock.
        after: Go on after this blob number.
        collected: Counts what goes, and when the next is due. What is damaged stays, and does not
            keep the rest.
        pause: Called between rows.

    Returns:
        The number to go on after, or None at the end.
    """
    room = COLLECT_CHUNKS_MAX
    looked = 0
    pending = pending_rows(tables, after, collected.damaged)
    for number, row in list(_some(pending, COLLECT_ROWS_MAX)):
        looked += 1
        pause()
        due_us = row.pending_us + BLOB_PENDING_US
        if row.pending_us != DOOMED_US and due_us > now_us:
            if collected.due_us is None or due_us < collected.due_us:
                collected.due_us = due_us
        else:
            if row.address != NO_ADDRESS:
                try:
                    blob = _require_agreement(tables, number, row)
                except CorruptionError as error:
                    collected.damaged[error.where] = error
                    after = number
                    continue
                if blob.references:
                    _let_go(tables, row, blob)
                    collected.named += 1
                    after = number
                    continue
                _doom_blob(tables, row.tenant_number, row.address, number)
                collected.blobs += 1
            elif row.pending_us != DOOMED_US:
                put_pending(tables, number, PendingRow(row.tenant_number, DOOMED_US))
                collected.streams += 1
            removed = _remove_chunks(tables, number, room)
            collected.chunks += removed
            room -= removed
            if not room:
                return number - 1  # it may have more
        after = number
    return after if looked == COLLECT_ROWS_MAX else None


def _let_go(tables: WriteTables, pending: PendingRow, blob: BlobRow) -> None:
    """Who put a blob again had an hour; from now on only the events that name it keep it."""
    blob.pending_us = blob.unnamed = 0
    put_blob(tables, pending.tenant_number, pending.address, blob)
    tables.transaction.delete(pending_key(blob.number), db=tables.tables["blob"])


def _require_agreement(tables: ReadTables, number: int, pending: PendingRow) -> BlobRow:
    """The blob row of a pending one; ``CorruptionError`` when it is not what that says."""
    row = find_blob(tables, pending.tenant_number, pending.address)
    key = blob_key(pending.tenant_number, pending.address)
    if row is None or (row.number, row.pending_us) != (number, pending.pending_us):
        raise CorruptionError("is not what its pending row says", where=where_blob(key))
    return row


def _some(rows: Iterator[tuple[int, PendingRow]], count: int) -> Iterator[tuple[int, PendingRow]]:
    for _, each in zip(range(count), rows, strict=False):
        yield each


def blob_usage(tables: ReadTables, pause: Callable[[], None]) -> dict[str, object]:
    """Counts and bytes of all blobs; reads every blob row."""
    by_codec: dict[str, list[int]] = {}
    by_type: dict[str, list[int]] = {}
    blobs = references = unreferenced = 0
    for number, (_, row) in enumerate(blob_rows(tables)):
        if not number % USAGE_SLICE:
            pause()
        blobs += 1
        references += row.references
        unreferenced += not row.references
        for groups, name in (
            (by_codec, row.codec),
            (by_type, row.media_type.partition("/")[0].lower() or "unknown"),
        ):
            group = groups.setdefault(name, [0, 0, 0])
            group[0] += 1
            group[1] += row.size
            group[2] += row.stored_bytes
    content_bytes = sum([group[1] for group in by_codec.values()])
    stored_bytes = sum([group[2] for group in by_codec.values()])
    streams = sum([row.address == NO_ADDRESS for _, row in pending_rows(tables)])
    return {
        "count": blobs,
        "references": references,
        "pending": unreferenced,
        "unfinished": streams,
        "content_bytes": content_bytes,
        "stored_bytes": stored_bytes,
        "ratio": round(content_bytes / stored_bytes, 2) if stored_bytes else None,
        "by_codec": _named(by_codec),
        "by_media_type": _named(by_type),
    }


def _named(groups: dict[str, Sequence[int]] | dict[str, list[int]]) -> dict[str, dict[str, int]]:
    return {
        name: {"count": count, "content_bytes": size, "stored_bytes": stored}
        for name, (count, size, stored) in sorted(groups.items())
    }


assert PAIR.size != BLOB_KEY_BYTES  # the two kinds of rows differ in their keys
