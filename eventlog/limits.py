"""Every bound, with unit and reason; asserts at the end relate them to each other."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * 1024

# Names and bodies
NAME_BYTES_MAX: Final = (
    512  # UTF-8 bytes of a tenant, session or id: fits one LMDB value many times
)
FACT_NAME_BYTES_MAX: Final = 480  # of a label, alias or metadata key: with what it is, one key
KIND_BYTES_MAX: Final = 64  # UTF-8 bytes of an application kind
KEY_BYTES_MAX: Final = 1024  # UTF-8 bytes of an idempotency key; only its digest is stored
DEPTH_MAX: Final = 64  # nesting of a body; cbor2 cannot decode beyond 400 and crashes beyond 5,000
BODY_BYTES_MAX: Final = 32 * MIB  # encoded body: one record is one LMDB value and is copied whole
METADATA_BYTES_MAX: Final = 1 * MIB  # encoded metadata of one event
INT_MIN: Final = -(2**63)  # CBOR without bignum tags
INT_MAX: Final = 2**64 - 1
POSITION_MAX: Final = 2**63 - 1  # a position or sequence: no store gets there, more is damage
TIME_MAX: Final = 2**63 - 1  # µs since the epoch; given times go down to its negative

CATALOG_SESSIONS_MAX: Final = 65_536  # whose facts memory keeps for listings: about 64 MiB

# Batches and the queue
BATCH_EVENTS_MAX: Final = 16_384  # events of one atomic batch
BATCH_BYTES_MAX: Final = 64 * MIB  # encoded bytes of one atomic batch
QUEUE_APPENDS_MAX: Final = 65_536  # appends waiting for the writer
QUEUE_BYTES_MAX: Final = 64 * MIB  # encoded bytes waiting for the writer

# Work per commit
COMMIT_EVENTS_MAX: Final = 4_096  # keeps one commit near 10 ms, so that nobody waits for long
COMMIT_BYTES_MAX: Final = 4 * MIB
COMMIT_SHARE: Final = 4  # one session gets at most 1/4 of a commit while others wait
COMMIT_ROLL_UPS_MAX: Final = 64  # or one for every 8 events of the commit, if that is more
COMMIT_SEALED_EVENTS_MAX: Final = 2 * COMMIT_EVENTS_MAX  # about 20 ms, in slices
COMMIT_SEALED_BYTES_MAX: Final = 2 * COMMIT_BYTES_MAX  # of records, before they are compressed
COMMIT_CUTS_MAX: Final = 2  # hot tables cut, of 4 blocks each
STALE_ROWS_MAX: Final = 16_384  # replaced activity rows that may wait for an idle moment
COMMIT_REMOVED_MAX: Final = 1_024  # rows deleted or overwritten; each lets the GIL go
FINE_SLICE_US: Final = 420  # the same, in work that looks at the clock every few µs
COMMIT_MERGE_BYTES_MAX: Final = 256 * KIB  # of segments, and of id runs, each
CLOSE_MERGE_BYTES_MAX: Final = 4 * MIB  # of segments; a close need not wait for more
SLICE_US: Final = 300  # µs of Python a background thread runs before it lets the GIL go

# Hot log
BLOCK_POSITIONS: Final = (
    1_024  # positions of one order block; aligned, so finding one is arithmetic
)
HOT_TABLE_POSITIONS: Final = 4 * BLOCK_POSITIONS  # positions of one hot table, cut with one call
HOT_TABLES: Final = 48  # with the other tables they fit on one page of LMDB's main database
HOT_EVENTS_TARGET: Final = 65_536  # the more, the longer the segments and a reopening
HOT_BYTES_TARGET: Final = 64 * MIB
HOT_EVENTS_IDLE: Final = 8_192  # stay in it in moments without appends: two tables
HOT_BYTES_IDLE: Final = 8 * MIB
HOT_PRESSURE: Final = 2  # above 2 x the target the writer seals before it takes more
SNAPSHOT_FREQUENCY: Final = 25  # messages of a session after which it rolls up
DUE_EVENTS: Final = 4 * SNAPSHOT_FREQUENCY  # loose ones, of a session as usual, that are sealed
SNAPSHOT_FREQUENCY_MAX: Final = 4_096
MAX_MESSAGES_MAX: Final = 2**31 - 1  # of a view; as good as all
SESSION_BRANCHES_MAX: Final = 2**24  # of one session; `branches()` gives them all at once
HOLDS_MAX: Final = 64  # of one session: they are one fact
SEGMENT_EVENTS_MAX: Final = 4_096  # events of one segment: at most one commit's worth
SEGMENT_BYTES_TARGET: Final = 64 * KIB  # raw bytes after which a roll-up starts another segment
MERGE_POSITIONS_MAX: Final = 131_072  # between first and last of a merged segment, see merging
SEGMENT_BYTES_MAX: Final = 64 * MIB  # raw bytes of a segment, checked before it is decompressed

# Dictionaries
DICTIONARIES_MAX: Final = 255  # numbers of a store: a segment names one in a byte
DICTIONARIES_AGAIN_MAX: Final = 128  # the other numbers are for tenants that have none yet
DICTIONARY_BYTES_MIN: Final = 8 * KIB
DICTIONARY_BYTES_MAX: Final = 32 * KIB  # measured: more gains nothing on dialogues
DICTIONARY_SESSIONS_MAX: Final = 1_024  # sessions that one is trained on
SPREAD_SESSIONS_MAX: Final = 8_192  # that a vacuum draws samples from: about 1 MiB of memory
SAMPLE_BYTES_MAX: Final = 4 * KIB  # of one session, so that none shows through
SAMPLES_BYTES_MAX: Final = 1 * MIB  # of one training: 0.1 s of a helper thread
DICTIONARIES_LOADED_MAX: Final = 32  # in memory; with its contexts one takes about 1 MiB
TRAIN_BYTES: Final = 1 * MIB  # content sealed of a tenant before one is trained
# State
BASE_BYTES_TARGET: Final = 8 * MIB  # of variables in memory after which a purge's base goes on
STATE_PAGE_EVENTS: Final = 1_024  # control events that a fold reads in one transaction
STATE_PAGE_ROWS: Final = 1_024  # rows of a state that are read in one transaction

# Memory of one open store
FOLDS_BYTES_MAX: Final = 64 * MIB  # folds of sessions, least recently used out
PRESENT_BYTES_MAX: Final = 8 * MIB  # of each space: rows of loose events, least recently used out
LOOSE_BYTES_MAX: Final = 64 * MIB  # above it the oldest loose records are read from the log again
SEGMENT_CACHE_BYTES_MAX: Final = 32 * MIB
KNOWN_BYTES_MAX: Final = 16 * MIB  # of sessions read lately: 2,000 with 20 messages each
NAMES_MAX: Final = 65_536  # session names and rows kept
MERGE_SESSIONS_MAX: Final = 65_536  # sessions of which it is known what is to be merged
REBUILD_BYTES_MAX: Final = 32 * MIB  # what rebuilds keep of segments, of about a million events
READ_WINDOW_POSITIONS: Final = 131_072  # positions that a global read decodes together
PAGE_MAX: Final = 10_000  # sessions or events of one page that a caller asks for
PAGE_EVENTS: Final = 256  # made at once by an iterator: more set off the garbage collector
PAGE_BYTES: Final = 4 * MIB

# Projections of applications
DEAD_LETTERS_MAX: Final = 16_384  # of one: more are no bad events but a fault of its function

# Blobs
CHUNK_BYTES_MAX: Final = MIB - 32  # content of a chunk; its value fills 256 LMDB pages exactly
BLOB_BYTES_MAX: Final = 1 << 40  # content of a blob: as much as the map holds
BLOB_BATCH_BYTES: Final = 2 * MIB  # chunks of one stream that go into one commit
BLOB_BATCH_CHUNKS: Final = 64  # chunks, however small they were compressed, in one commit
BLOB_STREAM_BYTES_MAX: Final = 4 * MIB  # memory of one stream: a batch, a chunk and its frame
BLOB_STREAMS_MAX: Final = 16  # streams at once in one store, so 64 MiB; others wait
EVENT_BLOBS_MAX: Final = 256  # references of one event
BLOB_REFERENCE_BYTES: Final = 4 * KIB  # what a reference counts in a commit: it rewrites a page
MEDIA_TYPE_BYTES_MAX: Final = 255  # ASCII bytes; RFC 6838 allows 127 on each side of the slash
BLOB_PENDING_US: Final = 3_600_000_000  # an hour in µs: what no event names stays at least so long
COLLECT_CHUNKS_MAX: Final = 64  # chunks removed in one commit: 64 MiB of pages, about 1 ms
COLLECT_ROWS_MAX: Final = 1_024  # pending rows looked at in one commit
COLLECT_EVERY_US: Final = 60_000_000  # a minute in µs between two looks for what is due

# The environment
MAP_BYTES: Final = 1 << 40  # 1 TiB of address space; costs no disk
MAP_BYTES_MIN: Final = 64 * MIB
MAP_BYTES_MAX: Final = 1 << 46  # 64 TiB: half of what a process can address
READERS_MAX: Final = 2_048  # LMDB reader slots
TABLES_MAX: Final = 64  # named databases
LOCK_DEADLINE_MS: Final = 30_000  # wait for another process's writer lock
LOCK_DEADLINE_MS_MAX: Final = 2**31 - 1  # 24 days: as good as for ever
CLOSE_DEADLINE_MS: Final = 30_000
ALONE_DEADLINE_MS: Final = 1_000  # wait for others to go out: those that stay in stay for long
POLL_MIN_MS: Final = 1  # waiting for other processes' commits
POLL_MAX_MS: Final = 20
POOL_THREADS: Final = 2  # threads for awaitable reads and large bodies

# Copies of the whole
COPY_BYTES: Final = 1 * MIB  # read and written at once
COPY_SYNC_BYTES: Final = 32 * MIB  # synced at once: more would hold up the commits beside it
COPY_STARTS_MAX: Final = 8  # how often a backup begins again because the store had to be reopened
REWRITE_BYTES: Final = 4 * MIB  # of rows that one transaction of a vacuum writes

assert COMMIT_EVENTS_MAX <= BATCH_EVENTS_MAX <= QUEUE_APPENDS_MAX
assert COMMIT_BYTES_MAX <= BODY_BYTES_MAX <= BATCH_BYTES_MAX <= QUEUE_BYTES_MAX
# Sealing takes more than a commit adds, or the hot log would never come down.
assert COMMIT_SEALED_EVENTS_MAX > COMMIT_EVENTS_MAX
assert COMMIT_SEALED_BYTES_MAX > COMMIT_BYTES_MAX
assert COMMIT_EVENTS_MAX % BLOCK_POSITIONS == 0
assert HOT_EVENTS_TARGET % BLOCK_POSITIONS == 0
assert SNAPSHOT_FREQUENCY <= SNAPSHOT_FREQUENCY_MAX <= SEGMENT_EVENTS_MAX
assert COMMIT_EVENTS_MAX <= HOT_EVENTS_TARGET
assert HOT_TABLE_POSITIONS % BLOCK_POSITIONS == 0
# What idle moments leave is never above what appends may leave, or the two would disagree.
assert HOT_TABLE_POSITIONS < HOT_EVENTS_IDLE <= HOT_EVENTS_TARGET
assert HOT_BYTES_IDLE <= HOT_BYTES_TARGET
# The hot log never wraps around onto a table that is still in use: pressure stops appends at
# HOT_PRESSURE targets, and one batch may follow.
assert HOT_PRESSURE * HOT_EVENTS_TARGET + BATCH_EVENTS_MAX < (HOT_TABLES - 2) * HOT_TABLE_POSITIONS
assert COPY_SYNC_BYTES % COPY_BYTES == 0
assert READ_WINDOW_POSITIONS % BLOCK_POSITIONS == 0
assert DICTIONARIES_AGAIN_MAX < DICTIONARIES_MAX < 256
assert SAMPLES_BYTES_MAX // SAMPLE_BYTES_MAX <= DICTIONARY_SESSIONS_MAX
assert DICTIONARY_SESSIONS_MAX <= SPREAD_SESSIONS_MAX  # most of what is drawn may be of no use
assert MAP_BYTES_MIN <= MAP_BYTES <= MAP_BYTES_MAX
assert LOCK_DEADLINE_MS <= LOCK_DEADLINE_MS_MAX
# With LMDB's page header and a chunk's prefix, 16 bytes each, a full chunk fills its pages.
assert (CHUNK_BYTES_MAX + 16 + 16) % (4 * KIB) == 0
assert BLOB_BATCH_BYTES + 2 * CHUNK_BYTES_MAX <= BLOB_STREAM_BYTES_MAX <= COMMIT_BYTES_MAX
assert EVENT_BLOBS_MAX * BLOB_REFERENCE_BYTES < COMMIT_BYTES_MAX
assert BLOB_BYTES_MAX <= MAP_BYTES
