"""Rows of the id index: directory, filters, entries; pure.

All rows lie in one named database. Keys are fixed-width by kind, values start with the checksum of
``rows.protect``, numbers are big-endian unless marked::

    01                          header: generation u64, next run number u64, directory rows u32,
                                merges u32, digest u64
    02 run u64                  directory row: level u8, state u8 (1 serves, 2 leaves), entries
                                u64, entry blocks u64, filter words u64, fingerprint u64, last
                                hash 16
    03 level u8                 merge of that level's runs, under way: number of its output u64,
                                the output so far as in a directory row (state 0), entries taken
                                u64, numbers of its inputs, newest first, u64 each
    04 run u64, number u32      filter block: up to 509 words, u64 little-endian
    05 run u64, last hash 16    entry block: last hash of the block before 16 (zeros in the first),
                                entries u32, number u32, up to 126 entries of hash 16, session
                                number u64, sequence u64

Filter and entry blocks are made so that each fills one page of 4 KiB and needs no pages that lie
together. A filter is one of 64-bit words, each holding about five hashes with five bits each
(Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007, section 4).
The word comes from the hash's first half and rises with the hash, which lets a merge write filter
and entries in one pass; the bits come from the second half and are the same in every run.

Invariants:
    1. Hashes rise strictly within a run; a block is keyed by its last one and names that of the
       block before, so that a missing block is noticed by whoever reads the next.
    2. A run's fingerprint is chained over the checksums of its entry blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from eventlog.errors import CorruptionError
from eventlog.rows import CHECKSUM_BYTES, expose, protect

HASH_BYTES: Final = 16
ENTRY_BYTES: Final = 32
BLOCK_ENTRIES_MAX: Final = 126  # with header and checksum one page of 4 KiB
FILTER_BLOCK_WORDS: Final = 509  # with the checksum one page
FILTER_BITS_PER_ENTRY: Final = 12  # with five bits set for each: 1 % false positives
FILTER_WORDS_MAX: Final = 2**32  # 32 bits of a hash choose the word: 23 thousand million ids
LEVEL_RUNS: Final = 8  # runs of one level that make a merge due
LEVEL_MAX: Final = 255  # one byte of a key; 8 ** 20 ids need 20
PAGE_BYTES: Final = 4096

HEADER_KEY: Final = b"\x01"
DIRECTORY_KIND: Final = b"\x02"
MERGE_KIND: Final = b"\x03"
FILTER_KIND: Final = b"\x04"
ENTRIES_KIND: Final = b"\x05"
WRITING, SERVING, LEAVING = 0, 1, 2  # states of a run

_RUN_KEY: Final = Struct(">cQ")
_FILTER_KEY: Final = Struct(">cQI")
_HEADER: Final = Struct(">QQIIQ")
_RUN: Final = Struct(">BBQQQQ16s")
_BLOCK: Final = Struct(">16sII")
_PLACE: Final = Struct(">QQ")
_NUMBER: Final = Struct(">Q")
_NO_HASH: Final = bytes(HASH_BYTES)
_WORD: Final = np.dtype("<u8")
_FIELD: Final = np.dtype(">u8")  # a hash is two of them, session number and sequence one each
_HALF: Final = np.uint64(32)
_BIT_SHIFTS: Final = (0, 6, 12, 18, 24)

_OVERFLOW_HEADER_BYTES: Final = 16  # of an LMDB page that holds one large value
assert _BLOCK.size + CHECKSUM_BYTES == ENTRY_BYTES
assert ENTRY_BYTES * (BLOCK_ENTRIES_MAX + 1) + _OVERFLOW_HEADER_BYTES <= PAGE_BYTES
assert CHECKSUM_BYTES + 8 * FILTER_BLOCK_WORDS + _OVERFLOW_HEADER_BYTES <= PAGE_BYTES
assert len(_BIT_SHIFTS) * FILTER_BITS_PER_ENTRY <= 64

Numbers = NDArray[np.uint64]
Row = tuple[bytes, bytes]  # key and value, as putmulti takes them


class IdPlace(NamedTuple):
    """Where the event with an id is."""

    session_number: int
    sequence: int


def place_of_run(number: int, what: str = "") -> str:
    """What errors and findings call a run, or a part of one."""
    return f"id run {number}{what}"


@dataclass(frozen=True, slots=True)
class IdRun:
    """A run's row in the directory.

    Attributes:
        number: Number of the run, never used again.
        level: How often its ids were merged at most.
        state: Whether it is being written, serves lookups, or leaves.
        entries: Entries of all its blocks.
        blocks: Entry blocks.
        words: 64-bit words of its filter.
        fingerprint: Chained over the checksums of the entry blocks.
        last: The last hash; zeros while there is none.
    """

    number: int
    level: int
    state: int
    words: int
    entries: int = 0
    blocks: int = 0
    fingerprint: int = 0
    last: bytes = _NO_HASH

    @property
    def key(self) -> bytes:
        """The directory row's key."""
        return run_prefix(DIRECTORY_KIND, self.number)

    @property
    def filter_blocks(self) -> int:
        """Blocks of the whole filter."""
        return -(-self.words // FILTER_BLOCK_WORDS)

    def filter_block_of(self, hash_: bytes) -> int:
        """Number of the filter block that a hash belongs to."""
        first_half = np.frombuffer(hash_, _FIELD, count=1).astype(np.uint64)
        return int(word_index(first_half, self.words)[0]) // FILTER_BLOCK_WORDS

    def fields(self) -> bytes:
        """Everything but the number, packed."""
        return _RUN.pack(
            self.level,
            self.state,
            self.entries,
            self.blocks,
            self.words,
            self.fingerprint,
            self.last,
        )

    def row(self) -> Row:
        """The directory row."""
        return self.key, protect(self.key, self.fields())


def _run_of(number: int, fields: bytes, where: str) -> IdRun:
    level, state, entries, blocks, words, fingerprint, last = _RUN.unpack(fields)
    if state > LEAVING or not 1 <= words <= FILTER_WORDS_MAX:
        raise CorruptionError("has numbers that cannot be", where=where)
    return IdRun(number, level, state, words, entries, blocks, fingerprint, last)


def decode_run(key: bytes, value: bytes) -> IdRun:
    """Check and decode a directory row.

    Raises:
        CorruptionError: The bytes are not a directory row.
    """
    where = f"id run directory, key {key.hex()}"
    rest = expose(key, value, where)
    if len(key) != _RUN_KEY.size or len(rest) != _RUN.size:
        raise CorruptionError("has another size", where=where)
    return _run_of(_RUN_KEY.unpack(key)[1], rest, where)


@dataclass(frozen=True, slots=True)
class IdMerge:
    """A merge under way.

    Attributes:
        output: The run that it writes, as far as it got.
        inputs: Numbers of the runs that it reads, newest first.
        taken: Entries of the inputs that are in the output, or older places of such.
    """

    output: IdRun
    inputs: tuple[int, ...]
    taken: int = 0

    @property
    def key(self) -> bytes:
        """The row's key: a level has one merge at a time."""
        return MERGE_KIND + bytes([self.output.level - 1])

    def row(self) -> Row:
        """The merge's row."""
        taken_and_inputs = b"".join(map(_NUMBER.pack, (self.taken, *self.inputs)))
        rest = _NUMBER.pack(self.output.number) + self.output.fields() + taken_and_inputs
        return self.key, protect(self.key, rest)


def decode_merge(key: bytes, value: bytes) -> IdMerge:
    """Check and decode a merge's row.

    Raises:
        CorruptionError: The bytes are not such a row.
    """
    where = f"merge of id runs, key {key.hex()}"
    rest = expose(key, value, where)
    tail = rest[_NUMBER.size + _RUN.size :]
    if not tail or len(tail) % _NUMBER.size:
        raise CorruptionError("has another size", where=where)
    (number,) = _NUMBER.unpack_from(rest)
    output = _run_of(number, rest[_NUMBER.size : -len(tail)], where)
    if not output.level:
        raise CorruptionError("has an output of level 0", where=where)
    taken, *inputs = (value for (value,) in _NUMBER.iter_unpack(tail))
    merge = IdMerge(output, tuple(inputs), taken)
    if merge.key != key:
        raise CorruptionError("is of another level", where=where)
    return merge


@dataclass(frozen=True, slots=True)
class IdDirectory:
    """The header row and the runs that it counts, newest first."""

    header: bytes | None = None
    generation: int = 0
    next_run: int = 1
    merges: int = 0
    runs: tuple[IdRun, ...] = ()

    @property
    def serving(self) -> list[IdRun]:
        """Runs that lookups ask, newest first."""
        return [run for run in self.runs if run.state == SERVING]

    @property
    def leaving(self) -> list[IdRun]:
        """Merged runs whose blocks are still to be removed."""
        return [run for run in self.runs if run.state == LEAVING]

    def levels_due(self) -> list[int]:
        """Levels with enough runs for a merge, lowest first."""
        runs = Counter(run.level for run in self.serving)
        return sorted(level for level, count in runs.items() if count >= LEVEL_RUNS)

    def changed(
        self,
        changed: Sequence[IdRun] = (),
        gone: Sequence[IdRun] = (),
        *,
        next_run: int | None = None,
        merges: int | None = None,
    ) -> tuple[IdDirectory, list[Row]]:
        """The directory after a change, and the rows to write; rows of runs gone are to be deleted.

        The digest in the header covers what was there and what changes, so that two transactions
        that start alike and differ, one of them aborted, do not end with equal headers.
        """
        runs = {run.number: run for run in (*self.runs, *changed)}
        for run in gone:
            del runs[run.number]
        rows = [run.row() for run in changed]
        told = [self.header or b"", *(run.key for run in gone)]
        digest = xxh3_64_intdigest(b"".join((*told, *(key + value for key, value in rows))))
        next_run = self.next_run if next_run is None else next_run
        merges = self.merges if merges is None else merges
        generation = self.generation + 1
        header = protect(HEADER_KEY, _HEADER.pack(generation, next_run, len(runs), merges, digest))
        after = IdDirectory(header, generation, next_run, merges, _newest_first(runs.values()))
        return after, [(HEADER_KEY, header), *rows]


def decode_directory(header: bytes, rows: Iterable[Row]) -> IdDirectory:
    """Check and decode the header and all directory rows.

    Raises:
        CorruptionError: A row is damaged, or there are not as many as the header says.
    """
    rest = expose(HEADER_KEY, header, "id run directory header")
    if len(rest) != _HEADER.size:
        raise CorruptionError("has another size", where="id run directory header")
    generation, next_run, count, merges, _ = _HEADER.unpack(rest)
    runs = [decode_run(*row) for row in rows]
    if len(runs) != count:
        raise CorruptionError(f"holds {len(runs)} of {count} runs", where="id run directory")
    return IdDirectory(header, generation, next_run, merges, _newest_first(runs))


def _newest_first(runs: Iterable[IdRun]) -> tuple[IdRun, ...]:
    return tuple(sorted(runs, key=lambda run: (run.level, -run.number)))


def run_prefix(kind: bytes, number: int) -> bytes:
    """What the keys of a run's filter or entry blocks begin with."""
    return _RUN_KEY.pack(kind, number)


class IdBlock(NamedTuple):
    """A decoded entry block.

    Attributes:
        number: Place of the block in its run, from 0.
        previous: Last hash of the block before, zeros in block 0.
        last: Its own last hash.
        checksum: The value's checksum, which the run's fingerprint is made of.
        content: The entries.
    """

    number: int
    previous: bytes
    last: bytes
    checksum: bytes
    content: bytes

    def table(self) -> Numbers:
        """The entries as rows of four numbers: halves of the hash, session number, sequence."""
        return np.frombuffer(self.content, _FIELD).reshape(-1, 4).astype(np.uint64)

    def places(self) -> Iterator[tuple[bytes, IdPlace]]:
        """Hash and place of each entry."""
        for start in range(0, len(self.content), ENTRY_BYTES):
            middle = start + HASH_BYTES
            place = IdPlace(*_PLACE.unpack_from(self.content, middle))
            yield self.content[start:middle], place

    def find(self, wanted: bytes) -> IdPlace | None:
        """The place of a hash."""
        at = self.content.find(wanted)
        while at % ENTRY_BYTES > 0 and at >= 0:  # bytes of two neighbours can look like a hash
            at = self.content.find(wanted, at + 1)
        return None if at < 0 else IdPlace(*_PLACE.unpack_from(self.content, at + HASH_BYTES))


def decode_block(run: int, key: bytes, value: bytes) -> IdBlock:
    """Check and decode an entry block.

    Raises:
        CorruptionError: The bytes are not an entry block.
    """
    last = key[_RUN_KEY.size :]
    where = place_of_run(run, f", entry block {last.hex()}")
    rest = expose(key, value, where)
    if len(rest) < _BLOCK.size + ENTRY_BYTES:
        raise CorruptionError("is too short", where=where)
    previous, entries, number = _BLOCK.unpack_from(rest)
    content = rest[_BLOCK.size :]
    if len(content) != entries * ENTRY_BYTES:
        raise CorruptionError("has another size than it says", where=where)
    if content[-ENTRY_BYTES : -ENTRY_BYTES + HASH_BYTES] != last:
        raise CorruptionError("does not end with the hash of its key", where=where)
    return IdBlock(number, previous, last, value[:CHECKSUM_BYTES], content)


def continue_fingerprint(fingerprint: int, checksum: bytes) -> int:
    """A run's fingerprint with one more entry block."""
    return xxh3_64_intdigest(checksum, seed=fingerprint)


def encode_blocks(run: IdRun, table: Numbers) -> tuple[list[Row], IdRun]:
    """Entry blocks that continue a run, and the run with them.

    Args:
        run: The run as it is.
        table: Sorted entries with hashes above ``run.last``, each hash once.
    """
    content = table.astype(_FIELD).tobytes()
    rows: list[Row] = []
    last, fingerprint = run.last, run.fingerprint
    for start in range(0, len(content), BLOCK_ENTRIES_MAX * ENTRY_BYTES):
        piece = content[start : start + BLOCK_ENTRIES_MAX * ENTRY_BYTES]
        head = _BLOCK.pack(last, len(piece) // ENTRY_BYTES, run.blocks + len(rows))
        last = piece[-ENTRY_BYTES : -ENTRY_BYTES + HASH_BYTES]
        key = run_prefix(ENTRIES_KIND, run.number) + last
        value = protect(key, head + piece)
        fingerprint = continue_fingerprint(fingerprint, value[:CHECKSUM_BYTES])
        rows.append((key, value))
    grown = replace(
        run,
        entries=run.entries + len(table),
        blocks=run.blocks + len(rows),
        fingerprint=fingerprint,
        last=last,
    )
    return rows, grown


def filter_key(run: int, number: int) -> bytes:
    """Key of a filter block."""
    return _FILTER_KEY.pack(FILTER_KIND, run, number)


def decode_filter_block(run: IdRun, number: int, value: bytes | None) -> Numbers:
    """Check and decode a filter block; None is a missing one.

    Raises:
        CorruptionError: There is no such block, or the bytes are not one.
    """
    where = place_of_run(run.number, f", filter block {number}")
    if value is None:
        raise CorruptionError("is missing", where=where)
    rest = expose(filter_key(run.number, number), value, where)
    words = min(FILTER_BLOCK_WORDS, run.words - number * FILTER_BLOCK_WORDS)
    if len(rest) != words * _WORD.itemsize:
        raise CorruptionError("has another size", where=where)
    return np.frombuffer(rest, _WORD)


def words_for(entries: int) -> int:
    """Words of a filter for so many entries."""
    words = max(1, -(-entries * FILTER_BITS_PER_ENTRY // 64))
    assert words <= FILTER_WORDS_MAX
    return words


def word_index(first_half: Numbers, words: int) -> NDArray[np.intp]:
    """The filter word of each hash: its place in the range of all hashes, scaled."""
    return (((first_half >> _HALF) * np.uint64(words)) >> _HALF).astype(np.intp)


def masks_of(second_half: Numbers) -> Numbers:
    """The bits of each hash within its filter word."""
    one, low = np.uint64(1), np.uint64(63)
    masks = np.zeros(len(second_half), np.uint64)
    for shift in _BIT_SHIFTS:
        masks |= one << ((second_half >> np.uint64(shift)) & low)
    return masks


def encode_filter(
    run: IdRun, table: Numbers, first: int, stop: int, begun: Numbers | None = None
) -> list[Row]:
    """Filter blocks ``first`` to ``stop`` - 1 of a run with the table's hashes set.

    Args:
        run: The run; only number and words matter.
        table: Sorted entries that belong into those blocks.
        first: Number of the first block.
        stop: One past the number of the last.
        begun: Words of the first block as far as written before.
    """
    base = first * FILTER_BLOCK_WORDS
    words = np.zeros(min(stop * FILTER_BLOCK_WORDS, run.words) - base, _WORD)
    if begun is not None:
        words[: len(begun)] = begun
    index = word_index(table[:, 0], run.words) - base
    masks = masks_of(table[:, 1])
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    words[index[starts]] |= np.bitwise_or.reduceat(masks, starts)
    rows = []
    for number in range(first, stop):
        key = filter_key(run.number, number)
        start = number * FILTER_BLOCK_WORDS - base
        rows.append((key, protect(key, words[start : start + FILTER_BLOCK_WORDS].tobytes())))
    return rows


def hash_halves(hashes: Sequence[bytes]) -> Numbers:
    """Hashes as rows of two numbers."""
    halves = np.frombuffer(b"".join(hashes), _FIELD).reshape(-1, 2).astype(np.uint64)
    assert len(halves) == len(hashes)
    return halves


def table_of(entries: Sequence[tuple[bytes, int, int]]) -> Numbers:
    """Entries as a sorted table; of a hash given twice the later one."""
    table = np.empty((len(entries), 4), np.uint64)
    table[:, :2] = hash_halves([entry[0] for entry in entries])
    table[:, 2] = np.array([entry[1] for entry in entries], np.uint64)
    table[:, 3] = np.array([entry[2] for entry in entries], np.uint64)
    table, starts = sort_table(table[::-1])
    return table[starts]


def sort_table(table: Numbers) -> tuple[Numbers, NDArray[np.intp]]:
    """Sort by hash, keeping the order of equal ones; and tell where each new hash begins."""
    first_half = table[:, 0]
    order = np.argsort(first_half, kind="stable")  # quick on runs laid end to end
    ranked = first_half[order]
    if bool((ranked[1:] == ranked[:-1]).any()):
        order = np.lexsort((table[:, 1], first_half))
    table = table[order]
    new = np.ones(len(table), bool)
    new[1:] = (table[1:, :2] != table[:-1, :2]).any(axis=1)
    return table, np.flatnonzero(new)


def count_up_to(table: Numbers, last: bytes) -> int:
    """How many entries of a sorted table have a hash of at most ``last``."""
    first_half, second_half = np.frombuffer(last, _FIELD).astype(np.uint64)
    start = int(np.searchsorted(table[:, 0], first_half, "left"))
    stop = int(np.searchsorted(table[:, 0], first_half, "right"))
    return start + int(np.searchsorted(table[start:stop, 1], second_half, "right"))
