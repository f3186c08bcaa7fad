"""Training: which dictionary a tenant's segments are sealed with, and when it gets a new one.

The writer's thread decides, from what it has sealed; a helper thread reads samples and trains; a
task of the writer stores what came of it.

Invariants:
    1. The helper holds no read transaction for longer than ``SESSIONS_TOGETHER`` sessions take, and
       lets the GIL go between them; zstd trains without it. There is one helper a process.
    2. What a dictionary is judged by are segments that it was not trained on. One that gains less
       than its aim asks for over what is in use is not stored, and each training of a tenant
       beside appends doubles what has to be sealed before its next.
    3. Nothing is stored when a session was deleted, purged or redacted since the samples were read,
       nor when another process stored one for the same tenant.
    4. A dictionary that is damaged is not used for new segments; it stops nobody from sealing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import islice
from typing import Final

import numpy as np
from lmdb import Error as LmdbError
from xxhash import xxh3_64_intdigest

from eventlog import columns
from eventlog.decoded import Segment
from eventlog.dictionary import Dictionary, DictionaryRow, compressed_bytes, train
from eventlog.errors import CorruptionError, TurnlogError
from eventlog.failpoints import fp
from eventlog.keys import U64, U64_MAX
from eventlog.limits import (
    DICTIONARIES_AGAIN_MAX,
    DICTIONARIES_MAX,
    DICTIONARY_SESSIONS_MAX,
    NAMES_MAX,
    SAMPLE_BYTES_MAX,
    SAMPLES_BYTES_MAX,
    SLICE_US,
    SPREAD_SESSIONS_MAX,
    TRAIN_BYTES,
)
from eventlog.rows import REDACTED, CommitRecord
from eventlog.sealing import Sealing
from eventlog.seams import CLOCK
from eventlog.segmentcache import SegmentCache
from eventlog.tables import ReadTables, WriteTables
from eventlog.tasks import Task

FALL_SHARE: Final = 10  # a ratio that fell by a tenth is worth a new dictionary
JUDGE_EVERY: Final = 4  # one sampled session in so many judges, the others teach
COLUMN_SHARE: Final = 4  # of a sample so much are header columns at most; the rest of it is text
SESSIONS_TOGETHER: Final = 8
NEEDED_BYTES_MAX: Final = 2**40
INHERITED_BYTES: Final = TRAIN_BYTES // 4  # of segments on disk, about what so much content takes


@dataclass(frozen=True, slots=True)
class Aim:
    """What a dictionary is trained for.

    Attributes:
        is_spread: For all that a tenant has, so that samples come from sessions of all times; else
            for what is sealed next, which is like the newest.
        sample_bytes: Taken of one session at most.
        samples_bytes: Taken in all.
        gain_share: One part in so many has to be saved over what is in use.
    """

    is_spread: bool
    sample_bytes: int
    samples_bytes: int
    gain_share: int


NEXT: Final = Aim(False, SAMPLE_BYTES_MAX, SAMPLES_BYTES_MAX, 20)
ALL: Final = Aim(True, 4 * SAMPLE_BYTES_MAX, 2 * SAMPLES_BYTES_MAX, 50)
"""Beside a rewrite of all segments, which costs more than a training, less gain is worth it."""


@dataclass(slots=True)
class _Tally:
    """What was sealed of a tenant since it was last decided about."""

    content_bytes: int = 0
    payload_bytes: int = 0
    needed_bytes: int = TRAIN_BYTES


@dataclass(slots=True)
class Samples:
    """What a tenant's newest sessions give; see ``collect``."""

    removals: int = 0
    sessions: dict[int, int] = field(default_factory=dict)  # that they come from, with `first`
    taught: list[bytes] = field(default_factory=list)
    judged: list[bytes] = field(default_factory=list)
    content_bytes: int = 0  # of all segments looked at


class TenantDictionaries:
    """Each tenant's newest dictionary, and what was sealed since; the writer's thread alone."""

    def __init__(self, cache: SegmentCache, start: Callable[[int, int], bool]) -> None:
        self._cache = cache
        self._start = start  # a training, of a tenant and beside the dictionary it has
        self.outcomes: deque[int] = deque()  # tenants whose training has ended
        self._newest: dict[int, int] = {}
        self._ratios: dict[int, float] = {}  # of the newest when it was new, by tenant
        self._made = -1
        self._generation = 0
        self._has_inherited = False
        self._tallies: dict[int, _Tally] = {}

    def follow(self, tables: ReadTables, record: CommitRecord, pause: Callable[[], None]) -> None:
        """Take over what other transactions stored."""
        if not tables.has("dict"):
            return
        if self._made < 0 or record.generation != self._generation:
            self._newest = {}
            self._ratios = {}
            self._cache.dictionaries.clear()
            self._generation, self._made = record.generation, 0
            found = tables.transaction.stat(tables.tables["segment"])
            pages = found["leaf_pages"] + found["overflow_pages"]
            self._has_inherited = pages * found["psize"] >= INHERITED_BYTES
        while self._made < record.dictionaries_made:
            self._made += 1
            try:
                row = tables.load_dictionary(self._made)
                self._newest[row.tenant_number] = self._made
                self._ratios[row.tenant_number] = row.ratio
            except CorruptionError:
                pass  # check tells, and whoever reads what was made with it
            pause()

    def of(self, tables: ReadTables, tenant_number: int) -> Dictionary | None:
        """What a tenant's next segment is compressed with."""
        number = self._newest.get(tenant_number)
        if number is None:
            return None
        try:
            return self._cache.find_dictionary(tables, number)
        except CorruptionError:
            del self._newest[tenant_number]
            return None

    def note(self, sealing: Sealing) -> None:
        """Count what was sealed and committed; starts a training where one is due."""
        if self._made < 0:
            return
        while self.outcomes:
            tally = self._tally(self.outcomes.popleft())
            tally.needed_bytes = min(2 * tally.needed_bytes, NEEDED_BYTES_MAX)
            tally.content_bytes = tally.payload_bytes = 0
        met = {}
        for row, run in sealing.runs:
            tally = met[row.tenant_number] = self._tally(row.tenant_number)
            tally.content_bytes += run.content_bytes
            tally.payload_bytes += run.payload_bytes
        for tenant_number, tally in met.items():
            if tally.content_bytes >= tally.needed_bytes:
                self._decide(tenant_number, tally)

    @property
    def tenant_count(self) -> int:
        """Tenants of which it is counted how well they compress."""
        return len(self._tallies)

    def ratio(self, tenant_number: int) -> float | None:
        """How many times smaller a tenant's segments became lately."""
        tally = self._tallies.get(tenant_number)
        if tally is None or not tally.payload_bytes:
            return None
        return round(tally.content_bytes / tally.payload_bytes, 2)

    def _tally(self, tenant_number: int) -> _Tally:
        tally = self._tallies.get(tenant_number)
        if tally is None:
            if len(self._tallies) >= NAMES_MAX:
                self._tallies.clear()
            tally = self._tallies[tenant_number] = _Tally()
            if self._has_inherited and tenant_number not in self._newest:
                # Others sealed before this process; how much of it is this tenant's, samples tell.
                tally.content_bytes = tally.payload_bytes = TRAIN_BYTES
        return tally

    def _decide(self, tenant_number: int, tally: _Tally) -> None:
        number = self._newest.get(tenant_number, 0)
        if number:
            least = self._ratios[tenant_number] * (1 - 1 / FALL_SHARE)
            fell = tally.content_bytes / tally.payload_bytes < least
            is_due = fell and self._made < DICTIONARIES_AGAIN_MAX
        else:
            is_due = self._made < DICTIONARIES_MAX
        if not is_due or self._start(tenant_number, number):
            tally.content_bytes = tally.payload_bytes = 0


class _Install:
    """The task that stores a dictionary."""

    def __init__(self, row: DictionaryRow, removals: int, before: int) -> None:
        self.done = False
        self._row = row
        self._removals = removals
        self._before = before

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """See ``Task``."""
        self.done = True
        number = record.dictionaries_made + 1
        if record.removals != self._removals or number > DICTIONARIES_MAX:
            return None
        for newer in range(self._before + 1, number):
            with suppress(CorruptionError):  # damaged, or left out by a vacuum: it serves nobody
                if tables.load_dictionary(newer).tenant_number == self._row.tenant_number:
                    return None
        tables.put_dictionary(number, self._row)
        fp("dictionary.after_put")
        return replace(record, dictionaries_made=number)


class Trainer:
    """The helper thread, one at a time.

    Args:
        read: Gives a short read transaction.
        run: Runs a task on the writer's thread and waits for it.
        cache: Decoded segments and loaded dictionaries.
        ended: Told the tenant whose training ended; from the helper's thread.
    """

    def __init__(
        self,
        read: Callable[[], AbstractContextManager[ReadTables]],
        run: Callable[[Task], None],
        cache: SegmentCache,
        ended: Callable[[int], None],
    ) -> None:
        self._read = read
        self._run = run
        self._cache = cache
        self._ended = ended
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None  # why the last training came to nothing

    def start(
        self, tenant_number: int, before: int, *, is_stale: bool = False, aim: Aim = NEXT
    ) -> bool:
        """Begin to train; False when that is not possible now.

        Args:
            tenant_number: Whose segments.
            before: Number of the dictionary that it has, 0 for none.
            is_stale: That one is to go: what the new one has to be better than is none.
            aim: What it is for.
        """
        if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
            return False
        thread = threading.Thread(
            target=self._train,
            args=(tenant_number, before, is_stale, aim),
            name="turnlog-trainer",
            daemon=True,
        )
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            return False
        self._thread = thread
        return True

    def stop(self, timeout: float) -> None:
        """Let no training begin, and wait for the one that runs."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def wait(self, timeout: float) -> bool:
        """Wait for the training that runs; False when that takes longer."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def _train(self, tenant_number: int, before: int, is_stale: bool, aim: Aim) -> None:
        try:
            self.problem = self._try(tenant_number, before, is_stale, aim)
        except (TurnlogError, LmdbError, OSError, MemoryError) as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self._ended(tenant_number)

    def _try(self, tenant_number: int, before: int, is_stale: bool, aim: Aim) -> str | None:
        """Train and store; why not, when nothing came of it."""
        samples = collect(self._read, tenant_number, self._cache, self._stop, aim=aim)
        if samples.content_bytes < TRAIN_BYTES or not samples.judged:
            return "there are too few sessions to learn from"
        data = train(samples.taught)
        if data is None or self._stop.is_set():
            return "the samples have nothing in common"
        content = sum(map(len, samples.judged))
        payload = compressed_bytes(samples.judged, data)
        now = self._now(samples, 0 if is_stale else before)
        if payload * aim.gain_share > now * (aim.gain_share - 1):
            return "it would gain too little"
        sessions = sorted(samples.sessions)
        firsts = tuple([samples.sessions[number] for number in sessions])
        row = DictionaryRow(
            tenant_number, content, payload, tuple(sessions), data, firsts if any(firsts) else ()
        )
        install = _Install(row, samples.removals, before)
        self._run(install)
        return None

    def _now(self, samples: Samples, before: int) -> int:
        """What the judging segments take with the dictionary that is in use."""
        data = None
        if before:
            with self._read() as tables:
                data = self._cache.find_dictionary(tables, before).row.data
        return compressed_bytes(samples.judged, data)


def collect(
    read: Callable[[], AbstractContextManager[ReadTables]],
    tenant_number: int,
    cache: SegmentCache,
    stop: threading.Event,
    *,
    aim: Aim = NEXT,
) -> Samples:
    """Read samples from the newest segment of each of a tenant's newest sessions, or of any.

    At most so much of a session, and in all, as the aim says, from ``DICTIONARY_SESSIONS_MAX``
    sessions; every ``JUDGE_EVERY``-th session gives its whole segment for judging instead, if all
    of those stay below the sum too.

    Args:
        read: Gives a short read transaction.
        tenant_number: Whose sessions.
        cache: Decoded segments.
        stop: Set, it ends early.
        aim: What the dictionary is for.
    """
    found = Samples()
    with read() as tables:
        found.removals = tables.commit_record().removals
    spread = _spread(read, tenant_number) if aim.is_spread else None
    before = U64_MAX
    looked = taught = judged = 0
    while not stop.is_set():
        slice_us = CLOCK.monotonic_us()
        with read() as tables:
            rows = tables.activity(tenant_number, before) if spread is None else spread
            batch = list(islice(rows, SESSIONS_TOGETHER))
            for position, number in batch:
                before = position
                newest = _newest_segment(tables, tenant_number, number, position, cache)
                if newest is not None:
                    segment, first = newest
                    found.content_bytes += segment.prefix.content_bytes
                    looked += 1
                    head = _columns_of(segment)
                    if looked % JUDGE_EVERY == 0:
                        if judged < aim.samples_bytes:
                            found.judged.append(head + segment.tails)
                            judged += len(found.judged[-1])
                    elif taught < aim.samples_bytes:
                        head = head[: aim.sample_bytes // COLUMN_SHARE]
                        sample = head + segment.tails[: aim.sample_bytes - len(head)]
                        found.taught.append(sample)
                        found.sessions[number] = first
                        taught += len(sample)
                if CLOCK.monotonic_us() - slice_us > SLICE_US:
                    CLOCK.sleep(0)
                    slice_us = CLOCK.monotonic_us()
        if (
            len(batch) < SESSIONS_TOGETHER
            or len(found.sessions) >= DICTIONARY_SESSIONS_MAX
            or taught >= aim.samples_bytes
        ):
            break
        CLOCK.sleep(0)
    return found


def _spread(
    read: Callable[[], AbstractContextManager[ReadTables]], tenant_number: int
) -> Iterator[tuple[int, int]]:
    """Sessions of all times, any part of which from the beginning is spread over all of them.

    At most ``SPREAD_SESSIONS_MAX`` of them: no more is ever held, however many a tenant has.
    """
    with read() as tables:
        rows = tables.activity(tenant_number, U64_MAX)
        return iter(nsmallest(SPREAD_SESSIONS_MAX, rows, key=_scattered))


def _scattered(row: tuple[int, int]) -> int:
    return xxh3_64_intdigest(U64.pack(row[1]))


def _newest_segment(
    tables: ReadTables, tenant_number: int, number: int, position: int, cache: SegmentCache
) -> tuple[Segment, int] | None:
    """A session's newest segment, and its first sequence that is not void.

    None where an activity row was replaced or leads to damage, and of one that was redacted.
    """
    try:
        row = tables.load_row(number)
        if row.last_position != position or row.tenant_number != tenant_number or row.is_gone:
            return None
        if row.flags & REDACTED:  # of its next redaction nothing would tell
            return None
        newest = next(tables.segments(number, row.sealed - 1, cache, kept_from=U64_MAX), None)
    except CorruptionError:
        return None
    return None if newest is None else (newest, row.first)


def _columns_of(segment: Segment) -> bytes:
    """The header columns as they lie in the segment's content."""
    words = np.frombuffer(segment.heads, "<u8").reshape(segment.count, columns.WORDS)
    return columns.shuffle(columns.differences(words, [0]))
