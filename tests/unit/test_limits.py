"""Bounds fit together, carry a reason, and are documented where they bind others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eventlog import body, commit, hotlog, idrows, limits, order, sealing, segment
from eventlog.order import block_first, block_of
from eventlog.record import HEADER_BYTES

SOURCE = Path(limits.__file__).read_text(encoding="utf-8")
NAMES = [name for name in vars(limits) if name.isupper()]
UNITS = ("KIB", "MIB")


def value_of(name: str) -> int:
    found = getattr(limits, name)
    assert isinstance(found, int)
    return found


def test_there_are_bounds() -> None:
    assert len(NAMES) > 40


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_is_a_number_and_its_unit_is_in_its_name_or_its_comment(name: str) -> None:
    if name != "INT_MIN":
        assert value_of(name) > 0
    assert len(re.findall(rf"^{name}\b", SOURCE, re.M)) == 1


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("_MIN")])
def test_a_least_value_is_below_its_largest(name: str) -> None:
    larger = [each for each in (name[:-4], name[:-4] + "_MAX") if hasattr(limits, each)]
    assert larger
    assert all(value_of(name) <= value_of(each) for each in larger)


@pytest.mark.parametrize(
    ("smaller", "larger", "why"),
    [
        ("NAME_BYTES_MAX", "METADATA_BYTES_MAX", "a name is less than what lies beside a body"),
        ("METADATA_BYTES_MAX", "BODY_BYTES_MAX", "metadata is the smaller part"),
        ("BODY_BYTES_MAX", "SEGMENT_BYTES_MAX", "the largest body can be sealed"),
        ("BODY_BYTES_MAX", "BATCH_BYTES_MAX", "the largest body can be appended"),
        ("BATCH_BYTES_MAX", "QUEUE_BYTES_MAX", "the largest batch can be queued"),
        ("COMMIT_EVENTS_MAX", "BATCH_EVENTS_MAX", "a larger batch goes alone"),
        ("SNAPSHOT_FREQUENCY", "SNAPSHOT_FREQUENCY_MAX", "the default is legal"),
        ("SNAPSHOT_FREQUENCY_MAX", "SEGMENT_EVENTS_MAX", "a roll-up fits one segment"),
        ("SEGMENT_BYTES_TARGET", "SEGMENT_BYTES_MAX", "the target is legal"),
        ("SEGMENT_BYTES_TARGET", "SEGMENT_CACHE_BYTES_MAX", "usual segments are kept"),
        ("HOT_TABLE_POSITIONS", "HOT_EVENTS_TARGET", "something can be cut at the target"),
        ("POLL_MIN_MS", "POLL_MAX_MS", "polling slows down"),
        ("COMMIT_EVENTS_MAX", "COMMIT_SEALED_EVENTS_MAX", "sealing catches up"),
        ("COMMIT_BYTES_MAX", "COMMIT_SEALED_BYTES_MAX", "sealing catches up"),
    ],
)
def test_bounds_fit_together(smaller: str, larger: str, why: str) -> None:
    assert value_of(smaller) <= value_of(larger), why


def test_the_largest_record_can_be_sealed_with_its_columns() -> None:
    largest = HEADER_BYTES + limits.BODY_BYTES_MAX + 2 * limits.METADATA_BYTES_MAX
    assert largest < limits.SEGMENT_BYTES_MAX


def test_the_hot_log_never_meets_itself() -> None:
    most = limits.HOT_PRESSURE * limits.HOT_EVENTS_TARGET + limits.BATCH_EVENTS_MAX
    assert most + 2 * limits.HOT_TABLE_POSITIONS <= limits.HOT_TABLES * limits.HOT_TABLE_POSITIONS


def test_all_tables_fit_what_lmdb_is_asked_for() -> None:
    assert len(hotlog.HOT_NAMES) == limits.HOT_TABLES < limits.TABLES_MAX


def test_small_appends_cannot_overfill_the_queue() -> None:
    assert limits.QUEUE_APPENDS_MAX * commit.SMALL_BYTES <= limits.QUEUE_BYTES_MAX


def test_ids_fit_the_filters_they_get() -> None:
    assert idrows.words_for(sealing.ID_RUN_POSITIONS) <= idrows.FILTER_BLOCK_WORDS


def test_a_decoder_accepts_the_deepest_body() -> None:
    deepest: object = None
    for _ in range(limits.DEPTH_MAX):
        deepest = [deepest]
    data, _ = body.encode_body(deepest)
    assert body.decode_body(data) == deepest


@pytest.mark.parametrize(
    ("position", "block"),
    [(1, 0), (1_024, 0), (1_025, 1), (2_048, 1), (2**40, 2**30 - 1), (2**40 + 1, 2**30)],
)
def test_finding_a_block_is_arithmetic(position: int, block: int) -> None:
    assert block_of(position) == block
    assert block_first(block) <= position < block_first(block + 1)


def test_order_columns_are_two_words_a_position() -> None:
    assert limits.BLOCK_POSITIONS * 16 == order.COLUMNS_BYTES
    assert limits.HOT_TABLE_POSITIONS % limits.BLOCK_POSITIONS == 0
    assert 0 < segment.GAIN_SHARE < 100
