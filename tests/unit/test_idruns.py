"""The id index against a dict, its rows against damage, its merges against interruption."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from eventlog.errors import CorruptionError
from eventlog.idrows import (
    BLOCK_ENTRIES_MAX,
    DIRECTORY_KIND,
    ENTRIES_KIND,
    FILTER_BLOCK_WORDS,
    FILTER_WORDS_MAX,
    LEVEL_RUNS,
    PAGE_BYTES,
    SERVING,
    IdMerge,
    IdRun,
    count_up_to,
    decode_block,
    decode_filter_block,
    decode_merge,
    decode_run,
    encode_blocks,
    encode_filter,
    filter_key,
    hash_halves,
    masks_of,
    sort_table,
    table_of,
    word_index,
    words_for,
)
from eventlog.idruns import IdRuns
from eventlog.rows import protect

Entry = tuple[bytes, int, int]
Places = dict[bytes, tuple[int, int]]


def counts(index: IdRuns, txn: lmdb.Transaction[bytes]) -> tuple[int, int, int, int]:
    """Runs that serve, entries in them, merges under way, runs that leave."""
    directory = index._directory(txn)
    serving = directory.serving
    entries = sum([run.entries for run in serving])
    return len(serving), entries, directory.merges, len(directory.leaving)


def pending(index: IdRuns, txn: lmdb.Transaction[bytes]) -> bool:
    """Whether ``merge_step`` has anything to do."""
    directory = index._directory(txn)
    return bool(directory.merges or directory.leaving or directory.levels_due())


U64_MAX = 2**64 - 1


class Table:
    """One environment with one named database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.open()

    def open(self) -> None:
        self.environment = lmdb.open(str(self._folder), map_size=1 << 30, max_dbs=1)
        self.db = self.environment.open_db(b"id")

    def close(self) -> None:
        self.environment.close()

    def index(self, **options: int) -> IdRuns:
        return IdRuns(self.db, **options)

    def write(self) -> lmdb.Transaction[bytes]:
        return self.environment.begin(write=True)

    def read(self) -> lmdb.Transaction[bytes]:
        return self.environment.begin()

    def rows(self) -> list[tuple[bytes, bytes]]:
        with self.read() as txn:
            return list(txn.cursor(self.db))

    def findings(self) -> list[str]:
        with self.read() as txn:
            return list(self.index().check(txn))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """A table that is checked when the test ends."""
    made = Table(tmp_path)
    yield made
    assert made.findings() == []
    made.close()


@contextmanager
def undone(table: Table) -> Iterator[lmdb.Transaction[bytes]]:
    """A write transaction that leaves nothing behind."""
    txn = table.write()
    try:
        yield txn
    finally:
        txn.abort()


def hashes(count: int, seed: int = 1) -> list[bytes]:
    """Hashes as a keyed BLAKE2b gives them."""
    content = np.random.default_rng(seed).bytes(16 * count)
    return [content[at : at + 16] for at in range(0, 16 * count, 16)]


def entries_of(names: list[bytes], first: int = 0) -> list[Entry]:
    return [(name, first + at // 100, at % 100) for at, name in enumerate(names)]


def places_of(entries: list[Entry]) -> Places:
    return {name: (session, sequence) for name, session, sequence in entries}


def add(table: Table, runs: list[list[Entry]]) -> Places:
    """Add runs, each in a transaction of its own, and give the places that count then."""
    places: Places = {}
    for entries in runs:
        with table.write() as txn:
            table.index().add_run(txn, entries)
        places |= places_of(entries)
    return places


def look_up(table: Table, names: list[bytes], **options: int) -> Places:
    with table.read() as txn:
        found = table.index(**options).lookup(txn, names)
    return {name: (place.session_number, place.sequence) for name, place in found.items()}


def merge_all(table: Table, budget_bytes: int = 1 << 20) -> int:
    """Merge until nothing is due; gives the number of steps."""
    steps = 0
    while True:
        with table.write() as txn:
            index = table.index()
            due = pending(index, txn)
            spent = index.merge_step(txn, budget_bytes)
        assert bool(spent) == due
        if not due:
            return steps
        steps += 1


def eight_runs(size: int, seed: int = 1) -> list[list[Entry]]:
    """Runs that make a merge due; every fifth id of a run is one of the run before."""
    names = hashes(LEVEL_RUNS * size, seed)
    runs = [entries_of(names[at * size : (at + 1) * size], at) for at in range(LEVEL_RUNS)]
    for at in range(1, LEVEL_RUNS):
        again = [(name, 1_000 + at, sequence) for name, _, sequence in runs[at - 1][::5]]
        runs[at][: len(again)] = again
    return runs


# Codecs

numbers = st.integers(0, U64_MAX)
names = st.binary(min_size=16, max_size=16)
runs_strategy = st.builds(
    IdRun,
    numbers,
    st.integers(1, 255),
    st.integers(0, 2),
    st.integers(1, FILTER_WORDS_MAX),
    numbers,
    numbers,
    numbers,
    names,
)


@given(runs_strategy)
def test_a_directory_row_comes_back(run: IdRun) -> None:
    assert decode_run(*run.row()) == run


@given(runs_strategy, st.lists(numbers, min_size=1, max_size=40), numbers)
def test_a_merge_row_comes_back(output: IdRun, inputs: list[int], taken: int) -> None:
    merge = IdMerge(output, tuple(inputs), taken)
    assert decode_merge(*merge.row()) == merge


def test_rows_with_impossible_numbers_are_refused() -> None:
    """A level of 0 has nothing below it, and there is no room for any number of words."""
    for words in (0, FILTER_WORDS_MAX + 1, U64_MAX):
        with pytest.raises(CorruptionError, match="numbers"):
            decode_run(*IdRun(1, 0, SERVING, words).row())
    key = b"\x03\x00"
    rest = (1).to_bytes(8, "big") + IdRun(1, 0, 0, 1).fields() + bytes(16)
    with pytest.raises(CorruptionError, match="level 0"):
        decode_merge(key, protect(key, rest))
    run = IdRun(1, 0, SERVING, 1)
    for size in (0, 7, 9, 16):
        with pytest.raises(CorruptionError, match="another size"):
            decode_filter_block(run, 0, protect(filter_key(1, 0), bytes(size)))


@given(st.dictionaries(names, st.tuples(numbers, numbers), min_size=1), numbers)
def test_entry_blocks_come_back(places: Places, number: int) -> None:
    entries = [(name, *place) for name, place in places.items()]
    rows, run = encode_blocks(IdRun(number, 0, SERVING, 1), table_of(entries))
    assert sorted(row[0] for row in rows) == [row[0] for row in rows]
    blocks = [decode_block(number, *row) for row in rows]
    assert (run.entries, run.blocks, run.last) == (len(places), len(rows), max(places))
    for name, place in places.items():
        block = next(block for block in blocks if block.last >= name)
        assert block.find(name) == place
        assert block.previous < name or block.number == 0


@pytest.mark.parametrize("what", ["run", "merge", "block", "filter"])
@given(data=st.data())
def test_a_changed_byte_is_refused(what: str, data: st.DataObject) -> None:
    table = table_of(entries_of(hashes(20)))
    rows, run = encode_blocks(IdRun(7, 1, SERVING, words_for(20)), table)
    key, value = {
        "run": run.row(),
        "merge": IdMerge(run, (1, 2)).row(),
        "block": rows[0],
        "filter": encode_filter(run, table, 0, 1)[0],
    }[what]
    at = data.draw(st.integers(0, len(value) - 1))
    bit = data.draw(st.integers(0, 7))
    value = value[:at] + bytes([value[at] ^ 1 << bit]) + value[at + 1 :]
    with pytest.raises(CorruptionError):
        if what == "run":
            decode_run(key, value)
        elif what == "merge":
            decode_merge(key, value)
        elif what == "block":
            decode_block(7, key, value)
        else:
            decode_filter_block(run, 0, value)


def test_the_rows_of_one_id_are_these(table: Table) -> None:
    add(table, [[(bytes(range(16)), 3, 5)]])
    assert [(key.hex(), value[8:].hex()) for key, value in table.rows()] == [
        ("01", "000000000000000100000000000000020000000100000000b537df415abb7ac7"),
        (
            "020000000000000001",
            "00"
            "01"
            "0000000000000001"
            "0000000000000001"
            "0000000000000001"
            "011270b347213e6b"
            "000102030405060708090a0b0c0d0e0f",
        ),
        ("04000000000000000100000000", "0890010000000001"),
        (
            "050000000000000001000102030405060708090a0b0c0d0e0f",
            "00000000000000000000000000000000"
            "00000001"
            "00000000"
            "000102030405060708090a0b0c0d0e0f"
            "0000000000000003"
            "0000000000000005",
        ),
    ]


def test_full_blocks_fill_one_page(table: Table) -> None:
    add(table, [entries_of(hashes(BLOCK_ENTRIES_MAX * 40))])
    sizes = {len(value) for _, value in table.rows()}
    assert PAGE_BYTES - 16 - 16 <= max(sizes) <= PAGE_BYTES - 16
    with table.read() as txn:
        rows = [key for key, value in txn.cursor(table.db) if len(value) > PAGE_BYTES // 2]
        assert txn.stat(table.db)["overflow_pages"] == len(rows)


def test_one_filter_probe_in_a_hundred_is_in_vain() -> None:
    table = table_of(entries_of(hashes(30_000, seed=2)))
    run = IdRun(1, 0, SERVING, words_for(len(table)))
    rows = encode_filter(run, table, 0, run.filter_blocks)
    words = np.concatenate(
        [decode_filter_block(run, number, value) for number, (_, value) in enumerate(rows)]
    )

    def share(halves: np.ndarray) -> float:
        masks = masks_of(halves[:, 1])
        return float(np.mean(words[word_index(halves[:, 0], run.words)] & masks == masks))

    assert len(words) == run.words > 10 * FILTER_BLOCK_WORDS
    assert share(table[:, :2]) == 1.0
    assert 0.005 < share(hash_halves(hashes(30_000, seed=3))) < 0.015


@given(st.lists(names), names)
def test_sorting_and_cutting_agree_with_bytes(given_names: list[bytes], last: bytes) -> None:
    if not given_names:
        return
    halves = hash_halves(given_names)
    table, starts = sort_table(np.hstack([halves, np.zeros_like(halves)]))
    assert [row[:2].astype(">u8").tobytes() for row in table] == sorted(given_names)
    assert len(starts) == len(set(given_names))
    assert count_up_to(table, last) == sum(name <= last for name in given_names)


# The index


@pytest.mark.parametrize(
    "count", [1, 2, BLOCK_ENTRIES_MAX, BLOCK_ENTRIES_MAX + 1, 1_024, 4_096], ids=str
)
def test_what_was_added_is_found_and_nothing_else(table: Table, count: int) -> None:
    entries = entries_of(hashes(count))
    places = add(table, [entries])
    assert look_up(table, [*places, *hashes(1_000, seed=9)]) == places


@pytest.mark.parametrize("name", [bytes(16), b"\xff" * 16], ids=["zeros", "ones"])
def test_extreme_hashes_and_numbers(table: Table, name: bytes) -> None:
    entries = [(name, U64_MAX, U64_MAX), *entries_of(hashes(300))]
    places = add(table, [entries] + [entries_of(hashes(300, seed)) for seed in range(2, 9)])
    assert look_up(table, [name, *places]) == places
    merge_all(table, 1)
    assert look_up(table, [name, *places]) == places


def test_an_empty_index_answers(table: Table) -> None:
    with table.write() as txn:
        index = table.index()
        index.add_run(txn, [])
        assert index.lookup(txn, hashes(2)) == {}
        assert counts(index, txn) == (0, 0, 0, 0)
        assert not pending(index, txn)
        assert index.merge_step(txn, 1 << 20) == 0
    assert table.rows() == []


def test_no_hashes_no_answers(table: Table) -> None:
    add(table, [entries_of(hashes(3))])
    assert look_up(table, []) == {}


def test_the_newest_place_counts(table: Table) -> None:
    name, *others = hashes(200)
    add(table, [[(name, 1, 1), *entries_of(others), (name, 1, 2)]])
    assert look_up(table, [name]) == {name: (1, 2)}
    for number in range(2, 2 * LEVEL_RUNS * LEVEL_RUNS):
        add(table, [[(name, number, number)]])
        assert look_up(table, [name, name]) == {name: (number, number)}
        merge_all(table)
        assert look_up(table, [name]) == {name: (number, number)}


@pytest.mark.parametrize("same", ["first half", "second half"])
def test_hashes_that_share_a_half_only_cost_time(table: Table, same: str) -> None:
    tails = [name[:8] for name in hashes(LEVEL_RUNS * 300)]
    names = [bytes(8) + tail if same == "first half" else tail + bytes(8) for tail in tails]
    runs = [entries_of(names[at::LEVEL_RUNS], at) for at in range(LEVEL_RUNS)]
    places = add(table, runs)
    assert look_up(table, names) == places
    merge_all(table, 2 * PAGE_BYTES)
    assert look_up(table, names) == places


# Merging


@pytest.mark.parametrize("budget_pages", [0, 3, 7, 64], ids=str)
def test_every_step_of_a_merge_leaves_the_answers(table: Table, budget_pages: int) -> None:
    places = add(table, eight_runs(400))
    absent = hashes(400, seed=5)
    steps = 0
    while True:
        with table.write() as txn:
            spent = table.index().merge_step(txn, budget_pages * PAGE_BYTES)
        assert spent <= max(4, budget_pages) * PAGE_BYTES
        assert look_up(table, [*places, *absent]) == places
        assert table.findings() == []
        if not spent:
            break
        steps += 1
    assert steps >= (LEVEL_RUNS * 400 // BLOCK_ENTRIES_MAX) // max(1, budget_pages)
    with table.read() as txn:
        assert counts(table.index(), txn) == (1, len(places), 0, 0)


def test_a_merge_goes_on_when_runs_come_in_between(table: Table) -> None:
    places = add(table, eight_runs(300))
    for seed in range(20, 20 + 5 * LEVEL_RUNS):
        with table.write() as txn:
            table.index().merge_step(txn, 4 * PAGE_BYTES)
        old = list(places)[:: len(places) // 50]
        newer = [(name, seed, at) for at, name in enumerate(old)]
        places |= add(table, [[*newer, *entries_of(hashes(100, seed), seed)]])
        assert look_up(table, list(places)) == places
    merge_all(table)
    assert look_up(table, list(places)) == places


def test_a_level_that_fell_behind_is_merged_at_once(table: Table) -> None:
    places = add(table, [entries_of(hashes(20, seed), seed) for seed in range(4 * LEVEL_RUNS)])
    merge_all(table)
    with table.read() as txn:
        assert counts(table.index(), txn) == (1, len(places), 0, 0)
    assert look_up(table, list(places)) == places


def test_an_aborted_step_leaves_no_trace(table: Table) -> None:
    places = add(table, eight_runs(300))
    index = table.index()
    while True:
        before = table.rows()
        with undone(table) as txn:
            index.merge_step(txn, 3 * PAGE_BYTES)
            assert index.lookup(txn, list(places)) == places
        assert table.rows() == before
        with table.read() as txn:
            assert index.lookup(txn, list(places)) == places
        with table.write() as txn:
            if not index.merge_step(txn, 3 * PAGE_BYTES):
                break


def test_a_merge_that_finds_damage_changes_nothing(table: Table) -> None:
    places = add(table, eight_runs(300))
    victim = next(row for row in reversed(table.rows()) if row[0][:1] == ENTRIES_KIND)
    with undone(table) as txn:
        txn.delete(victim[0], db=table.db)
        with pytest.raises(CorruptionError):
            table.index().merge_step(txn, 1 << 20)
    assert look_up(table, list(places)) == places


def test_a_merge_that_misses_entries_does_not_switch(table: Table) -> None:
    add(table, eight_runs(300))
    key, value = next(row for row in table.rows() if row[0][:1] == DIRECTORY_KIND)
    run = decode_run(key, value)
    with undone(table) as txn:
        txn.put(*replace(run, entries=run.entries + 1).row(), db=table.db)
        with pytest.raises(CorruptionError, match="are missing"):
            while table.index().merge_step(txn, 1 << 20):
                pass


# Memory and other processes


def test_another_writer_is_noticed(table: Table) -> None:
    ours, theirs = table.index(), table.index()
    places: Places = {}
    for seed in range(3 * LEVEL_RUNS):
        entries = entries_of(hashes(50, seed), seed)
        with table.write() as txn:
            theirs.add_run(txn, entries)
            theirs.merge_step(txn, 1 << 20)
        places |= places_of(entries)
        with table.read() as txn:
            assert ours.lookup(txn, list(places)) == places


def test_what_an_aborted_transaction_added_is_forgotten(table: Table) -> None:
    # The next transaction gives the same run number and generation to other ids. A filter kept
    # from the aborted one would hide them.
    index = table.index()
    lost, kept = entries_of(hashes(50, seed=1)), entries_of(hashes(50, seed=2))
    with undone(table) as txn:
        index.add_run(txn, lost)
        assert index.lookup(txn, [name for name, _, _ in lost]) == places_of(lost)
    with table.write() as txn:
        assert index.lookup(txn, [name for name, _, _ in lost]) == {}
        index.add_run(txn, kept)
        assert index.lookup(txn, [name for name, _, _ in lost + kept]) == places_of(kept)


def test_two_histories_that_end_alike_are_told_apart(table: Table) -> None:
    index = table.index()
    last = entries_of(hashes(50, seed=3))
    first = {seed: entries_of(hashes(50, seed=seed)) for seed in (1, 2)}
    asked = [name for entries in first.values() for name, _, _ in entries]
    with undone(table) as txn:
        index.add_run(txn, first[1])
        index.add_run(txn, last)
        assert index.lookup(txn, asked) == places_of(first[1])
    with table.write() as txn:
        other = table.index()
        other.add_run(txn, first[2])
        other.add_run(txn, last)
        assert index.lookup(txn, asked) == places_of(first[2])


def test_an_old_reader_sees_the_old_index(table: Table) -> None:
    index = table.index()
    places = add(table, eight_runs(100))
    with table.read() as old:
        merge_all(table)
        name = next(iter(places))
        newer = add(table, [[(name, 77, 77)]])
        with table.read() as new:
            for _ in range(2):
                assert index.lookup(old, list(places)) == places
                assert index.lookup(new, list(places)) == places | newer


@pytest.mark.parametrize("cache_bytes_max", [0, 300, 20_000], ids=str)
def test_filters_in_memory_stay_within_their_bound(table: Table, cache_bytes_max: int) -> None:
    places = add(table, eight_runs(600))
    index = table.index(cache_bytes_max=cache_bytes_max)
    for _ in range(2):
        with table.write() as txn:
            assert index.lookup(txn, [*places, *hashes(99, seed=4)]) == places
            assert index.memory_bytes <= cache_bytes_max
            index.merge_step(txn, 1 << 20)


def test_filters_of_merged_runs_leave_memory(table: Table) -> None:
    places = add(table, eight_runs(600))
    index = table.index()
    with table.write() as txn:
        index.lookup(txn, list(places))
        before = index.memory_bytes
        while index.merge_step(txn, 1 << 20):
            pass
        index.lookup(txn, list(places))
        assert 0 < index.memory_bytes <= before


# Damage


@pytest.mark.parametrize("damage", ["lost", "bit", "cut", "swapped"])
@pytest.mark.parametrize("merged", ["before", "within", "after"])
def test_damage_is_found_and_never_answers_wrongly(table: Table, damage: str, merged: str) -> None:
    places = add(table, eight_runs(300))
    if merged == "within":
        with table.write() as txn:
            table.index().merge_step(txn, 12 * PAGE_BYTES)
    elif merged == "after":
        merge_all(table)
    asked = [*places, *hashes(50, seed=6)]
    rows = table.rows()
    for number, (key, value) in enumerate(rows):
        with undone(table) as txn:
            if damage == "lost":
                txn.delete(key, db=table.db)
            elif damage == "bit":
                at = number * 7919 % len(value)
                flipped = bytes([value[at] ^ 1 << number % 8])
                txn.put(key, value[:at] + flipped + value[at + 1 :], db=table.db)
            elif damage == "cut":
                txn.put(key, value[:-8], db=table.db)
            else:
                txn.put(key, rows[number - 1][1], db=table.db)
            assert list(table.index().check(txn)), f"check misses row {key.hex()}"
            try:
                assert table.index().lookup(txn, asked) == places
            except CorruptionError as error:
                assert "id run" in error.where


def test_rows_that_belong_to_nothing_are_reported(table: Table) -> None:
    add(table, eight_runs(10))
    foreign = {b"\x09abc": "unknown kind", b"\x02abc": "size", b"\x05" + bytes(24): "no row"}
    for key, finding in foreign.items():
        with undone(table) as txn:
            txn.put(key, b"x", db=table.db)
            findings = list(table.index().check(txn))
            assert findings, finding


# Against a dict


class IdRunsMachine(RuleBasedStateMachine):
    """Random adds, merge steps, aborts, lookups and reopens against a dict."""

    @initialize()
    def start(self) -> None:
        self.folder = TemporaryDirectory()
        self.table = Table(Path(self.folder.name))
        self.index = self.table.index()
        self.places: Places = {}
        self.clock = 0
        # Few hashes, some of them alike in one half, so that ids meet again and again.
        self.pool = hashes(300, seed=11)
        self.pool += [name[:8] + bytes(8) for name in self.pool[:50]]
        self.pool += [name[:8] + b"\x01" * 8 for name in self.pool[:50]]

    def draw_entries(self, picks: list[int]) -> list[Entry]:
        entries = []
        for pick in picks:
            self.clock += 1
            entries.append((self.pool[pick % len(self.pool)], self.clock, pick))
        return entries

    @rule(runs=st.lists(st.lists(st.integers(0, 399), min_size=1, max_size=200), max_size=9))
    def add(self, runs: list[list[int]]) -> None:
        with self.table.write() as txn:
            for picks in runs:
                entries = self.draw_entries(picks)
                self.index.add_run(txn, entries)
                self.places |= places_of(entries)

    @rule(picks=st.lists(st.integers(0, 399), min_size=1, max_size=200), merge=st.booleans())
    def add_in_vain(self, picks: list[int], merge: bool) -> None:
        with undone(self.table) as txn:
            entries = self.draw_entries(picks)
            self.index.add_run(txn, entries)
            if merge:
                self.index.merge_step(txn, 1 << 18)
            expected = self.places | places_of(entries)
            assert self.index.lookup(txn, self.pool) == expected

    @rule(budget=st.sampled_from([1, 3 * PAGE_BYTES, 10 * PAGE_BYTES, 1 << 20]))
    def merge(self, budget: int) -> None:
        with self.table.write() as txn:
            due = pending(self.index, txn)
            assert bool(self.index.merge_step(txn, budget)) == due

    @precondition(lambda self: self.places)
    @rule(picks=st.lists(st.integers(0, 399), max_size=20))
    def look_up(self, picks: list[int]) -> None:
        asked = [self.pool[pick % len(self.pool)] for pick in picks]
        with self.table.read() as txn:
            found = self.index.lookup(txn, asked)
        assert found == {name: self.places[name] for name in asked if name in self.places}

    @rule(cache_bytes_max=st.sampled_from([0, 500, 1 << 20]))
    def reopen(self, cache_bytes_max: int) -> None:
        self.table.close()
        self.table.open()
        self.index = self.table.index(cache_bytes_max=cache_bytes_max)

    @invariant()
    def everything_is_found(self) -> None:
        with self.table.read() as txn:
            assert self.index.lookup(txn, self.pool) == self.places

    def teardown(self) -> None:
        if hasattr(self, "table"):
            assert self.table.findings() == []
            self.table.close()
            self.folder.cleanup()


def test_the_index_agrees_with_a_dict() -> None:
    run_state_machine_as_test(
        IdRunsMachine, settings=settings(max_examples=25, stateful_step_count=30)
    )
