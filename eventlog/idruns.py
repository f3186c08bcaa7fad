"""Index of the ids that callers give: from a 16-byte keyed hash to session number and sequence.

A random B-tree insert per id dirties a page per id. Here ids arrive in sorted, immutable *runs*,
one for each 2,048 positions that are cut from the hot log and hold any; eight runs of a level, or
more when merging fell behind, are merged into one of the next. All writes are new pages beside each
other, and an id is rewritten once a level. A lookup asks every run, newest first; a Bloom filter
lets it skip nearly all that do not hold the hash.
``idrows`` has the layout.

Invariants:
    1. A run's blocks never change once a directory row names it.
    2. Runs of a lower level are newer, and so are higher run numbers within a level. The newest
       place of a hash is its place.
    3. A merge shows in the directory all at once; until then its inputs serve. The blocks of the
       inputs are removed afterwards, in slices.
    4. Equal header rows mean equal directories, also after an abort. A filter in memory is known
       by fingerprint and size too, never by run number alone.
    5. Nothing is read or written outside the transaction that the caller gives.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from eventlog.errors import CorruptionError
from eventlog.idrows import (
    BLOCK_ENTRIES_MAX,
    DIRECTORY_KIND,
    ENTRIES_KIND,
    FILTER_BITS_PER_ENTRY,
    FILTER_BLOCK_WORDS,
    FILTER_KIND,
    HEADER_KEY,
    LEAVING,
    LEVEL_MAX,
    LEVEL_RUNS,
    MERGE_KIND,
    PAGE_BYTES,
    SERVING,
    WRITING,
    IdBlock,
    IdDirectory,
    IdMerge,
    IdPlace,
    IdRun,
    Numbers,
    Row,
    continue_fingerprint,
    count_up_to,
    decode_block,
    decode_directory,
    decode_filter_block,
    decode_merge,
    encode_blocks,
    encode_filter,
    filter_key,
    hash_halves,
    masks_of,
    place_of_run,
    run_prefix,
    sort_table,
    table_of,
    word_index,
    words_for,
)
from eventlog.limits import MIB

if TYPE_CHECKING:
    import lmdb

FILTER_CACHE_BYTES_MAX: Final = 16 * MIB  # filters of 11 million ids
MERGE_INPUTS_MAX: Final = 32  # a level that fell behind is merged more at once
MISSING_MAX: Final = 1_000  # filter blocks of a run that check counts as missing
REMOVAL_BYTES: Final = 256  # what removing a block costs of a budget: its leaf page's share

assert LEVEL_RUNS <= MERGE_INPUTS_MAX


class _Filter:
    """One run's filter, read block by block as lookups need it."""

    def __init__(self, run: IdRun) -> None:
        self.words: Numbers = np.zeros(run.words, np.uint64)
        self.absent = np.ones(run.filter_blocks, bool)
        self.whole = False

    @property
    def memory_bytes(self) -> int:
        return self.words.nbytes + self.absent.nbytes


class _Reader:
    """Takes blocks of one run from the front, for a merge."""

    def __init__(self, run: IdRun, blocks: Iterator[IdBlock]) -> None:
        self._run = run
        self._blocks = blocks
        self.tables: list[Numbers] = []
        self.last = b""
        self.open = True

    def load(self, count: int) -> None:
        for block in islice(self._blocks, count):
            self.tables.append(block.table())
            self.last = block.last
        self.open = bool(self.tables) and self.last < self._run.last


class IdRuns:
    """The index in one named database.

    Lookups may run in several threads at once, each with its own transaction.
    """

    def __init__(
        self, db: lmdb._Database, *, cache_bytes_max: int = FILTER_CACHE_BYTES_MAX
    ) -> None:
        self.database = db
        self._known = IdDirectory()
        self._filters: dict[tuple[int, int, int], _Filter] = {}
        self._filters_bytes = 0
        self._filters_bytes_max = cache_bytes_max
        self._filters_lock = Lock()

    @property
    def memory_bytes(self) -> int:
        """Bytes of filters kept in memory."""
        return self._filters_bytes

    @property
    def memory_bytes_max(self) -> int:
        """What these may take."""
        return self._filters_bytes_max

    def add_run(
        self, txn: lmdb.Transaction[bytes], entries: Sequence[tuple[bytes, int, int]]
    ) -> None:
        """Add ids as one run; where a hash is there already, this place counts from now on.

        Args:
            txn: A write transaction.
            entries: Hash of 16 bytes, session number and sequence of each id, oldest first.
        """
        if not entries:
            return
        directory = self._directory(txn)
        table = table_of(entries)
        number = directory.next_run
        blocks, run = encode_blocks(IdRun(number, 0, SERVING, words_for(len(table))), table)
        filter_ = encode_filter(run, table, 0, run.filter_blocks)
        after, rows = directory.changed([run], next_run=number + 1)
        self._put(txn, [*rows, *filter_, *blocks])
        self._know(after)

    def lookup(self, txn: lmdb.Transaction[bytes], hashes: Sequence[bytes]) -> dict[bytes, IdPlace]:
        """The places of those hashes that are in the index.

        Costs some µs a run for all hashes together and one read of 4 KiB for each that is found,
        and for one in a hundred of a run's others.

        Raises:
            CorruptionError: A row that was needed is damaged or missing.
        """
        found: dict[bytes, IdPlace] = {}
        directory = self._directory(txn)
        if not hashes or not directory.runs:
            return found
        halves = hash_halves(hashes)
        first_half, masks = halves[:, 0], masks_of(halves[:, 1])
        left = np.arange(len(hashes))
        for run in directory.serving:
            maybe = self._maybe(txn, run, first_half[left], masks[left])
            if not maybe.size:
                continue
            candidates = left[maybe].tolist()
            hits = self._search(txn, run, sorted({hashes[at] for at in candidates}))
            if hits:
                found.update(hits)
                kept = np.ones(len(left), bool)
                kept[maybe] = [hashes[at] not in hits for at in candidates]
                left = left[kept]
        return found

    def merge_step(self, txn: lmdb.Transaction[bytes], budget_bytes: int) -> int:
        """Do some of the merging that is due.

        Args:
            txn: A write transaction.
            budget_bytes: Bytes to write at most; but one block is always written or removed, so
                that there is progress.

        Returns:
            What the work counts of the budget; 0 when nothing is due.

        Raises:
            CorruptionError: An input is damaged. The runs serve on; the transaction must be
                aborted.
        """
        directory = self._directory(txn)
        spent = 0
        while not spent or budget_bytes - spent >= 3 * PAGE_BYTES:
            if directory.leaving:
                cost, directory = self._remove(txn, directory, budget_bytes - spent)
            else:
                merge, directory = self._next_merge(txn, directory)
                if merge is None:
                    break
                cost, directory = self._merge(txn, directory, merge, budget_bytes - spent)
            spent += cost
        return spent

    def check(self, txn: lmdb.Transaction[bytes]) -> Iterator[str]:
        """Read every row; yields one sentence for each fault."""
        try:
            directory = self._read_directory(txn, txn.get(HEADER_KEY, db=self.database))
            merges = self._merges(txn, directory)
        except CorruptionError as error:
            yield str(error)
            return
        serving = {run.number: run.level for run in directory.serving}
        for merge in merges:
            levels = {serving.get(number) for number in merge.inputs}
            if levels != {merge.output.level - 1}:
                where = place_of_run(merge.output.number)
                yield f"{where}: its inputs do not all serve on the level below"
        runs = [*directory.runs, *(merge.output for merge in merges)]
        for run in runs:
            if run.number >= directory.next_run:
                yield f"{place_of_run(run.number)}: its number is not handed out yet"
            if run.state == LEAVING:
                continue  # partly removed; nobody reads it
            unreadable: set[int] = set()  # filter blocks
            yield from self._check_filter(txn, run, unreadable)
            yield from self._check_entries(txn, run, unreadable)
        yield from self._check_keys(txn, {run.number for run in runs})

    def entry_count(self, txn: lmdb.Transaction[bytes]) -> int:
        """Entries of the runs that serve; an id that was given again counts once a run."""
        return sum([run.entries for run in self._directory(txn).serving])

    def entries(self, txn: lmdb.Transaction[bytes]) -> Iterator[tuple[bytes, IdPlace]]:
        """Hash and place of every entry of the runs that serve."""
        for run in self._directory(txn).serving:
            for key, value in self._rows(txn, run_prefix(ENTRIES_KIND, run.number)):
                yield from decode_block(run.number, key, value).places()

    def _check_filter(
        self, txn: lmdb.Transaction[bytes], run: IdRun, unreadable: set[int]
    ) -> Iterator[str]:
        blocks = run.filter_blocks
        if run.state == WRITING:
            blocks = run.filter_block_of(run.last) + 1 if run.blocks else 0
        missing = []
        for number in range(blocks):
            if txn.get(filter_key(run.number, number), db=self.database) is None:
                missing.append(number)
                if len(missing) > MISSING_MAX:
                    break
                continue
            try:
                self._filter_words(txn, run, number)
            except CorruptionError as error:
                yield str(error)
                unreadable.add(number)
        if missing:
            unreadable.update(missing if len(missing) <= MISSING_MAX else range(blocks))
            yield f"{place_of_run(run.number, f', filter block {missing[0]}')}: is missing" + (
                f", as are {len(missing) - 1} more" if len(missing) > 1 else ""
            )
        if txn.get(filter_key(run.number, blocks), db=self.database) is not None:
            yield f"{place_of_run(run.number)}: has more filter blocks than its size needs"

    def _check_entries(
        self, txn: lmdb.Transaction[bytes], run: IdRun, unreadable: set[int]
    ) -> Iterator[str]:
        name = place_of_run(run.number)
        entries = blocks = fingerprint = 0
        last = IdRun(0, 0, 0, 0).last
        follows = True  # every block so far could be read
        found = False
        for key, value in self._rows(txn, run_prefix(ENTRIES_KIND, run.number)):
            try:
                block = decode_block(run.number, key, value)
            except CorruptionError as error:
                yield str(error)
                follows, found = False, True
                continue
            if (block.number != blocks or block.previous != last) and follows:
                yield f"{name}, block {block.number}: does not follow block {blocks - 1}"
                found = True
            table = block.table()
            if len(sort_table(table)[1]) != len(table) or (
                count_up_to(table, block.previous) and block.number
            ):
                yield f"{name}, block {block.number}: hashes do not rise"
                found = True
            if not self._filter_covers(txn, run, table, unreadable):
                yield f"{name}, block {block.number}: the filter misses a hash"
            entries += len(table)
            blocks = block.number + 1
            fingerprint = continue_fingerprint(fingerprint, block.checksum)
            last = block.last
            follows = True
        if not found and (entries, blocks, fingerprint, last) != (
            run.entries,
            run.blocks,
            run.fingerprint,
            run.last,
        ):
            yield (
                f"{name}: holds {entries} entries in {blocks} blocks up to {last.hex()}, "
                f"its directory row says {run.entries}, {run.blocks} and {run.last.hex()}"
            )

    def _filter_covers(
        self, txn: lmdb.Transaction[bytes], run: IdRun, table: Numbers, unreadable: set[int]
    ) -> bool:
        index = word_index(table[:, 0], run.words)
        masks = masks_of(table[:, 1])
        numbers = index // FILTER_BLOCK_WORDS
        for number in np.unique(numbers).tolist():
            if number in unreadable:
                continue
            here = numbers == number
            words = self._filter_words(txn, run, number)[index[here] % FILTER_BLOCK_WORDS]
            if bool(((words & masks[here]) != masks[here]).any()):
                return False
        return True

    def _check_keys(self, txn: lmdb.Transaction[bytes], runs: set[int]) -> Iterator[str]:
        sizes = {HEADER_KEY: 1, DIRECTORY_KIND: 9, MERGE_KIND: 2, FILTER_KIND: 13, ENTRIES_KIND: 25}
        with txn.cursor(self.database) as cursor:
            found = cursor.first()
            while found:
                key = cursor.key()
                if len(key) != sizes.get(key[:1]):
                    yield f"id runs, key {key.hex()}: unknown kind of row"
                elif key[:1] in (FILTER_KIND, ENTRIES_KIND):
                    number = int.from_bytes(key[1:9], "big")
                    if number not in runs:
                        yield f"{place_of_run(number)}: has blocks, but the directory has no row"
                        found = cursor.set_range(run_prefix(key[:1], number + 1))
                        continue
                found = cursor.next()

    def _next_merge(
        self, txn: lmdb.Transaction[bytes], directory: IdDirectory
    ) -> tuple[IdMerge | None, IdDirectory]:
        """The merge to go on with: of the lowest level, since those keep the number of runs low."""
        merges = {merge.output.level - 1: merge for merge in self._merges(txn, directory)}
        for level in sorted({*merges, *directory.levels_due()}):
            if level in merges:
                return merges[level], directory
            runs = [run for run in directory.serving if run.level == level]
            inputs = runs[-MERGE_INPUTS_MAX:]
            assert level < LEVEL_MAX
            words = words_for(sum(run.entries for run in inputs))
            output = IdRun(directory.next_run, level + 1, WRITING, words)
            merge = IdMerge(output, tuple(run.number for run in inputs))
            after, rows = directory.changed(next_run=output.number + 1, merges=directory.merges + 1)
            self._put(txn, [*rows, merge.row()])
            self._know(after)
            return merge, after
        return None, directory

    def _merge(
        self, txn: lmdb.Transaction[bytes], directory: IdDirectory, merge: IdMerge, budget: int
    ) -> tuple[int, IdDirectory]:
        """Write the next blocks of a merge's output, and switch to it with the last one."""
        output = merge.output
        serving = {run.number: run for run in directory.serving}
        if not serving.keys() >= set(merge.inputs):
            raise CorruptionError("an input is missing", where=place_of_run(output.number))
        inputs = [serving[number] for number in merge.inputs]
        block_bytes = PAGE_BYTES + BLOCK_ENTRIES_MAX * FILTER_BITS_PER_ENTRY // 8
        wanted = max(1, (budget - 2 * PAGE_BYTES) // block_bytes) * BLOCK_ENTRIES_MAX
        table, starts, final = self._front(txn, output, inputs, wanted)

        fresh = len(starts)
        emitted = min(wanted, fresh if final else fresh - fresh % BLOCK_ENTRIES_MAX)
        final = final and emitted == fresh
        taken = merge.taken + (len(table) if emitted == fresh else int(starts[emitted]))
        table = table[starts[:emitted]]
        blocks, grown = encode_blocks(output, table)
        first, begun = 0, None
        if output.blocks:
            first = output.filter_block_of(output.last)
            begun = self._filter_words(txn, output, first)
        stop = output.filter_blocks if final else output.filter_block_of(grown.last) + 1
        rows = [*encode_filter(grown, table, first, stop, begun), *blocks]
        cost = PAGE_BYTES * len(rows)
        if not final:
            self._put(txn, [IdMerge(grown, merge.inputs, taken).row(), *rows])
            return cost, directory
        if taken != sum(run.entries for run in inputs):
            raise CorruptionError(
                "entries of its inputs are missing", where=place_of_run(output.number)
            )
        left = [replace(run, state=LEAVING) for run in inputs]
        after, changes = directory.changed(
            [*left, replace(grown, state=SERVING)], merges=directory.merges - 1
        )
        txn.delete(merge.key, db=self.database)
        self._put(txn, [*changes, *rows])
        self._know(after)
        return cost, after

    def _front(
        self,
        txn: lmdb.Transaction[bytes],
        output: IdRun,
        inputs: Sequence[IdRun],
        wanted: int,
    ) -> tuple[Numbers, NDArray[np.intp], bool]:
        """What comes next in a merge: sorted entries, where each hash begins, whether that is all.

        About as many hashes as wanted: more than one block holds, or all there are.
        """
        total = sum(run.entries for run in inputs)
        readers = [_Reader(run, self._blocks(txn, run, output)) for run in inputs]
        for run, reader in zip(inputs, readers, strict=True):
            reader.load(wanted * run.entries // total // BLOCK_ENTRIES_MAX + 2)
        while True:
            # Newest first, and the sort keeps the order of equal hashes: the newest place wins.
            tables = [table for reader in readers for table in reader.tables]
            table, starts = sort_table(np.concatenate(tables))
            if output.blocks:
                done = count_up_to(table, output.last)
                table, starts = table[done:], starts[starts >= done] - done
            unread = [reader for reader in readers if reader.open]
            if not unread:
                return table, starts, True
            limit = min(reader.last for reader in unread)
            known = count_up_to(table, limit)
            starts = starts[starts < known]
            if len(starts) > BLOCK_ENTRIES_MAX:
                return table[:known], starts, False
            for reader in unread:
                if reader.last == limit:
                    reader.load(len(reader.tables))

    def _blocks(self, txn: lmdb.Transaction[bytes], run: IdRun, output: IdRun) -> Iterator[IdBlock]:
        """Entry blocks of a run from where a merge stands to the end."""
        before: IdBlock | None = None
        if output.blocks and output.last >= run.last:
            return
        prefix = run_prefix(ENTRIES_KIND, run.number)
        for key, value in self._rows(txn, prefix, output.last):
            block = decode_block(run.number, key, value)
            if before is not None and before.last != block.previous:
                break
            yield block
            if block.last >= run.last:
                return
            before = block
        raise CorruptionError("an entry block is missing", where=place_of_run(run.number))

    def _remove(
        self, txn: lmdb.Transaction[bytes], directory: IdDirectory, budget: int
    ) -> tuple[int, IdDirectory]:
        """Remove blocks of the oldest leaving run, and its directory row with the last one."""
        run = directory.leaving[-1]
        room = max(1, budget // REMOVAL_BYTES)
        removed = 0
        with txn.cursor(self.database) as cursor:
            for kind in (FILTER_KIND, ENTRIES_KIND):
                prefix = run_prefix(kind, run.number)
                found = cursor.set_range(prefix)
                while found and cursor.key().startswith(prefix):
                    if removed == room:
                        return removed * REMOVAL_BYTES, directory
                    found = cursor.delete()
                    removed += 1
        after, rows = directory.changed(gone=[run])
        txn.delete(run.key, db=self.database)
        self._put(txn, rows)
        self._know(after)
        return max(1, removed) * REMOVAL_BYTES, after

    def _directory(self, txn: lmdb.Transaction[bytes]) -> IdDirectory:
        """The directory as the transaction sees it: one read when it is the known one."""
        header = txn.get(HEADER_KEY, db=self.database)
        known = self._known
        if header is not None and header == known.header:
            return known
        directory = self._read_directory(txn, header)
        self._know(directory)
        return directory

    def _know(self, directory: IdDirectory) -> None:
        newer = directory.generation >= self._known.generation
        self._known = directory
        if newer:  # a reader in an old transaction must not push out what the others need
            names = {(run.number, run.fingerprint, run.words) for run in directory.serving}
            with self._filters_lock:
                for name in self._filters.keys() - names:
                    self._filters_bytes -= self._filters.pop(name).memory_bytes

    def _read_directory(self, txn: lmdb.Transaction[bytes], header: bytes | None) -> IdDirectory:
        if header is not None:
            return decode_directory(header, self._rows(txn, DIRECTORY_KIND))
        with txn.cursor(self.database) as cursor:
            if cursor.first():
                raise CorruptionError("is missing", where="id run directory header")
        return IdDirectory()

    def _merges(self, txn: lmdb.Transaction[bytes], directory: IdDirectory) -> list[IdMerge]:
        if not directory.merges:
            return []
        merges = [decode_merge(*row) for row in self._rows(txn, MERGE_KIND)]
        if len(merges) != directory.merges:
            raise CorruptionError(
                f"holds {len(merges)} of {directory.merges} merges", where="id run directory"
            )
        return merges

    def _rows(
        self, txn: lmdb.Transaction[bytes], prefix: bytes, start: bytes = b""
    ) -> Iterator[Row]:
        """Rows whose keys begin with a prefix, from prefix + start on."""
        with txn.cursor(self.database) as cursor:
            found = cursor.set_range(prefix + start)
            while found:
                key, value = cursor.item()
                if not key.startswith(prefix):
                    return
                yield key, value
                found = cursor.next()

    def _put(self, txn: lmdb.Transaction[bytes], rows: Iterable[Row]) -> None:
        with txn.cursor(self.database) as cursor:
            cursor.putmulti(rows)

    def _maybe(
        self, txn: lmdb.Transaction[bytes], run: IdRun, first_half: Numbers, masks: Numbers
    ) -> NDArray[np.intp]:
        """Which of the hashes the run may hold, by its filter."""
        index = word_index(first_half, run.words)
        kept = self._filter(txn, run)
        if not kept.whole:
            numbers = index // FILTER_BLOCK_WORDS
            for number in np.unique(numbers[kept.absent[numbers]]).tolist():
                start = number * FILTER_BLOCK_WORDS
                words = self._filter_words(txn, run, number)
                kept.words[start : start + len(words)] = words
                kept.absent[number] = False
            kept.whole = not kept.absent.any()
        return np.flatnonzero((kept.words[index] & masks) == masks)

    def _filter(self, txn: lmdb.Transaction[bytes], run: IdRun) -> _Filter:
        """The run's filter, kept when there is room.

        Every lookup asks every run, so pushing out what was used longest ago would push out what
        is needed next; only filters of runs that no longer serve make room.
        """
        name = (run.number, run.fingerprint, run.words)
        with self._filters_lock:
            kept = self._filters.get(name)
            if kept is None:
                self._filter_words(txn, run, run.filter_blocks - 1)  # before there is room for all
                kept = _Filter(run)
                if self._filters_bytes + kept.memory_bytes <= self._filters_bytes_max:
                    self._filters[name] = kept
                    self._filters_bytes += kept.memory_bytes
        return kept

    def _filter_words(self, txn: lmdb.Transaction[bytes], run: IdRun, number: int) -> Numbers:
        value = txn.get(filter_key(run.number, number), db=self.database)
        return decode_filter_block(run, number, value)

    def _search(
        self, txn: lmdb.Transaction[bytes], run: IdRun, hashes: list[bytes]
    ) -> dict[bytes, IdPlace]:
        """The places of sorted hashes in one run."""
        found: dict[bytes, IdPlace] = {}
        prefix = run_prefix(ENTRIES_KIND, run.number)
        missing = CorruptionError("an entry block is missing", where=place_of_run(run.number))
        at = 0
        with txn.cursor(self.database) as cursor:
            while at < len(hashes) and hashes[at] <= run.last:
                if not cursor.set_range(prefix + hashes[at]):
                    raise missing
                key, value = cursor.item()
                if not key.startswith(prefix):
                    raise missing
                block = decode_block(run.number, key, value)
                if block.number and hashes[at] <= block.previous:
                    raise missing
                stop = bisect_right(hashes, block.last, lo=at)
                for wanted in hashes[at:stop]:
                    place = block.find(wanted)
                    if place is not None:
                        found[wanted] = place
                at = stop
        return found
