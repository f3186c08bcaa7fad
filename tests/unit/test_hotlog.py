"""The hot log as a ring of tables: appended at the head, read in order, cut at the front."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.errors import CorruptionError
from eventlog.hotlog import HOT_NAMES, PARTITION, Conflict, HotLog, hot_table
from eventlog.keys import U64, U64_MAX
from eventlog.limits import HOT_TABLE_POSITIONS, HOT_TABLES

Row = tuple[bytes, bytes]
RING = HOT_TABLES * HOT_TABLE_POSITIONS


class Tables:
    """An environment with the tables of the hot log."""

    def __init__(self, folder: Path) -> None:
        self.environment = lmdb.open(str(folder), map_size=1 << 30, max_dbs=HOT_TABLES + 1)
        self.db = {name: self.environment.open_db(name.encode()) for name in HOT_NAMES}
        self.last = 0

    @contextmanager
    def writing(self) -> Iterator[HotLog]:
        with self.environment.begin(write=True) as txn:
            log = HotLog(txn, self.db, self.last)
            yield log
            self.last = log.last(PARTITION)

    @contextmanager
    def reading(self) -> Iterator[HotLog]:
        with self.environment.begin() as txn:
            yield HotLog(txn, self.db, self.last)

    def append(self, count: int) -> None:
        with self.writing() as log:
            rows = rows_of(self.last + 1, count)
            assert log.append(PARTITION, self.last, rows) == self.last + count

    def entries(self) -> dict[str, int]:
        with self.environment.begin() as txn:
            counts = {name: txn.stat(db)["entries"] for name, db in self.db.items()}
        return {name: count for name, count in counts.items() if count}


def rows_of(first: int, count: int) -> list[Row]:
    return [(U64.pack(position), b"r%d" % position) for position in range(first, first + count)]


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    made = Tables(tmp_path)
    yield made
    made.environment.close()


@given(st.integers(1, U64_MAX - RING))
def test_the_ring_comes_around(position: int) -> None:
    assert hot_table(position) == hot_table(position + RING)
    assert hot_table(position) in HOT_NAMES
    first = (position - 1) // HOT_TABLE_POSITIONS * HOT_TABLE_POSITIONS + 1
    assert hot_table(first) == hot_table(first + HOT_TABLE_POSITIONS - 1) == hot_table(position)
    assert hot_table(first + HOT_TABLE_POSITIONS) != hot_table(position)


def test_every_table_has_a_name() -> None:
    assert len(set(HOT_NAMES)) == HOT_TABLES
    assert {hot_table(1 + number * HOT_TABLE_POSITIONS) for number in range(HOT_TABLES)} == set(
        HOT_NAMES
    )


def test_an_empty_log(tables: Tables) -> None:
    with tables.reading() as log:
        assert log.last(PARTITION) == 0
        assert list(log.read(PARTITION, 1, 10)) == []
        assert log.get(1) is None


@pytest.mark.parametrize(
    "counts",
    [
        [1],
        [1, 1, 1],
        [HOT_TABLE_POSITIONS],
        [HOT_TABLE_POSITIONS - 1, 1, 1],
        [HOT_TABLE_POSITIONS + 1],
        [5, 3 * HOT_TABLE_POSITIONS, 7],
    ],
    ids=str,
)
def test_what_is_appended_is_read(tables: Tables, counts: list[int]) -> None:
    for count in counts:
        tables.append(count)
    last = sum(counts)
    with tables.reading() as log:
        assert log.last(PARTITION) == last
        assert list(log.read(PARTITION, 1, last)) == rows_of(1, last)
        assert log.get(last) == b"r%d" % last
        assert log.get(last + 1) is None
    full, rest = divmod(last, HOT_TABLE_POSITIONS)
    assert list(tables.entries().values()) == [HOT_TABLE_POSITIONS] * full + [rest] * bool(rest)


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(1, 1, id="first"),
        pytest.param(4_000, 1, id="last"),
        pytest.param(2_047, 4, id="over-a-border"),
        pytest.param(2_048, 1, id="end-of-a-table"),
        pytest.param(2_049, 1, id="start-of-a-table"),
        pytest.param(1, 4_000, id="all"),
        pytest.param(3_990, 10_000, id="past-the-end"),
        pytest.param(4_001, 5, id="nothing"),
        pytest.param(2, 0, id="none"),
        pytest.param(1, 2**62, id="as-many-as-there-are"),
    ],
)
def test_reading_part_of_it(tables: Tables, first: int, count: int) -> None:
    tables.append(4_000)
    with tables.reading() as log:
        stop = min(first + count, 4_001)
        assert list(log.read(PARTITION, first, count)) == rows_of(first, max(0, stop - first))


def test_reading_can_stop_early(tables: Tables) -> None:
    tables.append(3_000)
    with tables.reading() as log:
        found = log.read(PARTITION, 5, 2_900)
        assert next(found) == rows_of(5, 1)[0]
        found.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        pytest.param(0, 9, id="behind"),
        pytest.param(0, 11, id="ahead"),
        pytest.param(1, 10, id="other"),
    ],
)
def test_an_append_that_expects_something_else_writes_nothing(
    tables: Tables, partition: int, expected: int
) -> None:
    tables.append(10)
    with tables.writing() as log:
        assert log.append(partition, expected, rows_of(expected + 1, 2)) == Conflict(10)
        assert log.last(PARTITION) == 10
    assert sum(tables.entries().values()) == 10


def test_an_empty_append_changes_nothing(tables: Tables) -> None:
    tables.append(3)
    with tables.writing() as log:
        assert log.append(PARTITION, 3, []) == 3


def test_records_after_the_last_position_are_damage(tables: Tables) -> None:
    tables.append(5)
    tables.last = 3  # what a commit record of an older state would say
    with pytest.raises(CorruptionError, match="after the last position"), tables.writing() as log:
        log.append(PARTITION, 3, rows_of(4, 1))


def test_a_key_that_is_no_position_is_damage(tables: Tables) -> None:
    tables.append(2)
    with tables.environment.begin(write=True) as txn:
        txn.put(U64.pack(1) + b"x", b"?", db=tables.db[hot_table(1)])
    with tables.reading() as log, pytest.raises(CorruptionError, match="no position"):
        list(log.read(PARTITION, 1, 2))


def test_the_front_is_cut_a_table_at_a_time(tables: Tables) -> None:
    tables.append(2 * HOT_TABLE_POSITIONS + 5)
    with tables.writing() as log:
        log.cut(1, HOT_TABLE_POSITIONS + 1)
    floor = HOT_TABLE_POSITIONS + 1
    with tables.reading() as log:
        assert list(log.read(PARTITION, 1, HOT_TABLE_POSITIONS)) == []
        assert log.get(1) is None
        assert next(iter(log.read(PARTITION, floor, 1))) == rows_of(floor, 1)[0]
        assert log.last(PARTITION) == 2 * HOT_TABLE_POSITIONS + 5
    assert list(tables.entries().values()) == [HOT_TABLE_POSITIONS, 5]


def test_a_part_of_a_table_is_cut_too(tables: Tables) -> None:
    tables.append(HOT_TABLE_POSITIONS + 5)
    with tables.writing() as log:
        log.cut(1, 1_025)
    assert list(tables.entries().values()) == [HOT_TABLE_POSITIONS - 1_024, 5]
    with tables.writing() as log:
        assert log.get(1_024) is None
        assert next(iter(log.read(PARTITION, 1, 2_000))) == rows_of(1_025, 1)[0]
        log.cut(1_025, HOT_TABLE_POSITIONS + 1)
    assert list(tables.entries().values()) == [5]


def test_an_aborted_transaction_leaves_no_record(tables: Tables) -> None:
    tables.append(5)
    txn = tables.environment.begin(write=True)
    HotLog(txn, tables.db, 5).append(PARTITION, 5, rows_of(6, 10))
    txn.abort()
    with tables.reading() as log:
        assert list(log.read(PARTITION, 1, 100)) == rows_of(1, 5)


def test_the_log_goes_around_the_ring(tables: Tables) -> None:
    """Positions come back to the first table once it was cut, and nothing is met twice."""
    turn = HOT_TABLE_POSITIONS
    tables.last = RING - turn
    tables.append(turn + turn // 2)
    assert list(tables.entries()) == [HOT_NAMES[0], HOT_NAMES[-1]]
    with tables.writing() as log:
        log.cut(RING - turn + 1, RING + 1)
    with tables.reading() as log:
        found = list(log.read(PARTITION, RING - turn + 1, 2 * turn))
        assert found == rows_of(RING + 1, turn // 2)
    assert list(tables.entries()) == [HOT_NAMES[0]]


def test_a_reader_does_not_see_what_comes_later(tables: Tables) -> None:
    tables.append(3)
    with tables.environment.begin() as txn:
        log = HotLog(txn, tables.db, 3)
        tables.append(4)
        assert list(log.read(PARTITION, 1, 100)) == rows_of(1, 3)
