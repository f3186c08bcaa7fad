"""How a store stands: counts, bytes by kind, compression, memory against its bounds; plain data.

Invariants:
    1. What is told of the file is of one transaction, and ``bytes`` adds up to ``used_bytes``.
    2. Nothing grows with the number of events: pages are LMDB's counts, the ratio of segments is
       that of at most ``SAMPLED_SEGMENTS``. Only blob rows are all read, with pauses.
    3. Each figure of ``memory`` has its bound beside it, under its name and ``_max``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from eventlog.blobtable import blob_usage
from eventlog.dictionary import dictionary_key
from eventlog.errors import CorruptionError
from eventlog.keys import PAIR
from eventlog.limits import (
    BLOB_STREAM_BYTES_MAX,
    HOT_TABLE_POSITIONS,
    HOT_TABLES,
    MERGE_SESSIONS_MAX,
    NAMES_MAX,
)
from eventlog.seams import CLOCK
from eventlog.segment import PREFIX_BYTES, RAW, SegmentPrefix

if TYPE_CHECKING:
    from eventlog.log import Log
    from eventlog.rows import CommitRecord
    from eventlog.tables import ReadTables

SAMPLED_SEGMENTS: Final = 256  # about 1 ms
KINDS: Final = {
    "log": "events as they came",
    "segment": "sealed events",
    "order": "order of sealed events",
    "session": "a row a session",
    "name": "sessions by name",
    "tenant": "a row a tenant",
    "key": "idempotency keys",
    "id": "callers' ids",
    "activity": "sessions by last activity",
    "dict": "dictionaries",
    "blob": "a row a blob",
    "chunk": "contents of blobs",
    "state": "variables",
    "removal": "what is still to be removed",
    "spare": "what a rebuild makes",
    "commit": "commit record and options",
}
"""What each table holds, hot tables as one: the keys of ``bytes``."""


def log_stats(log: Log) -> dict[str, Any]:
    """See the module."""
    environment = log.environment
    with log.views.transaction() as tables:
        record = log.views.current(tables)
        page_bytes = environment.page_bytes
        bytes_by_kind: dict[str, int] = {}
        for name, handle in tables.tables.items():
            found = tables.transaction.stat(handle)
            pages = found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
            kind = name.partition(".")[0]
            bytes_by_kind[kind] = bytes_by_kind.get(kind, 0) + pages * page_bytes
        segments = tables.row_count("segment")
        compression = _compression(tables, record)
        blobs = blob_usage(tables, lambda: CLOCK.sleep(0)) if tables.has("blob") else None
        dictionaries = _dictionary_facts(log, tables, record)
    file_bytes = environment.file_bytes()
    used = sum(bytes_by_kind.values())
    return {
        "events": record.last_position,
        "sessions": record.sessions,
        "tenants": record.tenants_made,
        "last_position": record.last_position,
        "hot_events": record.last_position - record.floor + 1,
        "segments": segments,
        "roll_ups": record.roll_ups,
        "file_bytes": file_bytes,
        "used_bytes": used,
        "free_bytes": max(0, file_bytes - used),
        "bytes": bytes_by_kind,
        "compression": compression,
        "memory": _memory(log),
        "blobs": blobs,
        "dictionaries": dictionaries,
        "options": asdict(log.options),
    }


def _memory(log: Log) -> dict[str, int]:
    """What this process keeps of the store, each figure before its bound."""
    machine, index, composer = log.writer.machine, log.index, log.writer.composer
    streams = log.streams
    figures = {
        "queue_appends": (len(machine.queue), machine.appends_max),
        "queue_bytes": (machine.byte_count, machine.bytes_max),
        "hot_events": (len(index.hot), (HOT_TABLES - 1) * HOT_TABLE_POSITIONS),
        "loose_bytes": (index.kept_bytes, index.bytes_max),
        # Sessions with loose events stay, however many these are (``hot_events``).
        "names": (len(index.states), max(index.names_max, len(index.hot))),
        "segment_cache_bytes": (log.cache.byte_count, log.cache.bytes_max),
        "known_bytes": (log.views.known.byte_count, log.views.known.bytes_max),
        "rebuild_bytes": (log.views.gathered.byte_count, log.views.gathered.bytes_max),
        "id_filter_bytes": composer.id_filter_bytes,
        "merge_sessions": (composer.merges.session_count, 2 * MERGE_SESSIONS_MAX),
        "dictionaries": (log.cache.dictionaries.count, log.cache.dictionaries.loaded_max),
        "dictionary_tenants": (log.dictionaries.tenant_count, NAMES_MAX),
        "blob_streams": (streams.count, streams.streams_max),
        "blob_stream_bytes": (
            streams.count * BLOB_STREAM_BYTES_MAX,
            streams.streams_max * BLOB_STREAM_BYTES_MAX,
        ),
    }
    memory: dict[str, int] = {}
    for name, (value, bound) in figures.items():
        memory[name] = value
        memory[f"{name}_max"] = bound
    return memory


def _compression(tables: ReadTables, record: CommitRecord) -> dict[str, int | float | None]:
    """How much smaller segments are than what is in them, by a sample over all sessions."""
    content = payload = sampled = with_dictionary = 0
    made = record.sessions_made
    with tables.segment_cursor() as cursor:
        last = b""
        for place in range(min(made, SAMPLED_SEGMENTS)):
            number = 1 + place * made // min(made, SAMPLED_SEGMENTS)
            if not cursor.set_range(PAIR.pack(number, 0)) or cursor.key() <= last:
                continue
            last, value = cursor.item()
            try:
                prefix = SegmentPrefix.unpack(last, value)
            except CorruptionError:
                continue  # check tells
            sampled += 1
            content += prefix.content_bytes
            payload += len(value) - PREFIX_BYTES
            with_dictionary += prefix.codec != RAW and prefix.dictionary > 0
    return {
        "sampled_segments": sampled,
        "with_dictionary": with_dictionary,
        "content_bytes": content,
        "stored_bytes": payload,
        "ratio": round(content / payload, 2) if payload else None,
    }


def _dictionary_facts(
    log: Log, tables: ReadTables, record: CommitRecord
) -> dict[str, dict[str, Any] | str]:
    """What each dictionary is, by its number; why it cannot be used, of a damaged one."""
    facts: dict[str, dict[str, Any] | str] = {}
    for number in range(1, record.dictionaries_made + 1):
        if not tables.has_row("dict", dictionary_key(number)):
            continue  # a vacuum left it out
        try:
            row = tables.load_dictionary(number)
            facts[f"{number}"] = {
                "tenant": tables.load_tenant(row.tenant_number).name,
                "bytes": len(row.data),
                "sessions": len(row.sessions),
                "ratio": round(row.ratio, 2),
                "ratio_lately": log.dictionaries.ratio(row.tenant_number),
            }
        except CorruptionError as error:
            facts[f"{number}"] = str(error)
    return facts
