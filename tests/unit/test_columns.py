"""Header columns: what is moved and subtracted comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from eventlog import columns
from eventlog.record import HEADER_BYTES, encode_record
from tests.format.independent import decode_columns

words_of = st.lists(
    st.lists(st.integers(0, 2**64 - 1), min_size=9, max_size=9), min_size=1, max_size=12
)


def array(rows: list[list[int]]) -> NDArray[np.uint64]:
    return np.array(rows, np.uint64)


@given(words_of)
def test_words_come_back(rows: list[list[int]]) -> None:
    words = array(rows)
    data = columns.shuffle(columns.differences(words, [0]))
    assert len(data) == 72 * len(rows)
    assert columns.decode_words(data, len(rows)).tolist() == rows
    assert columns.decode_words(memoryview(data), len(rows)).tolist() == rows
    assert words.tolist() == rows


@given(words_of, words_of)
def test_groups_do_not_touch_each_other(first: list[list[int]], second: list[list[int]]) -> None:
    together = columns.differences(array(first + second), [0, len(first)])
    assert together[: len(first)].tolist() == columns.differences(array(first), [0]).tolist()
    assert together[len(first) :].tolist() == columns.differences(array(second), [0]).tolist()


@given(words_of)
def test_the_shuffle_is_that_of_the_format(rows: list[list[int]]) -> None:
    data = columns.shuffle(array(rows))
    assert decode_columns(data, len(rows), 9) == rows
    assert columns.unshuffle(data, len(rows), 9).tolist() == rows


@pytest.mark.parametrize("width", [1, 2, 9])
@pytest.mark.parametrize("count", [1, 2, 1_024])
def test_any_width_comes_back(width: int, count: int) -> None:
    words = np.random.default_rng(5).integers(0, 2**64, (count, width), np.uint64)
    again = columns.unshuffle(columns.shuffle(words), count, width)
    assert (again == words).all()
    again[0, 0] += np.uint64(1)  # it is the reader's own


def test_which_words_are_differences() -> None:
    rows = [[100] * 9, [107] * 9, [103] * 9]
    found = columns.differences(array(rows), [0]).tolist()
    assert found[0] == rows[0]
    assert found[1] == [7, 107, 7, 7, 7, 7, 7, 107, 107]
    assert found[2] == [2**64 - 4, 103, *[2**64 - 4] * 5, 103, 103]


def test_words_of_records() -> None:
    records = [
        encode_record(5, session=9, sequence=3, recorded_us=70, body=b"abc"),
        encode_record(8, session=9, sequence=4, parent=3, recorded_us=71, given_us=-1, tokens=6)[:],
    ]
    words = columns.header_words(records, [5, 8])
    assert words[:, columns.POSITION].tolist() == [5, 8]
    assert words[:, columns.TAIL_BYTES].tolist() == [len(r) - HEADER_BYTES for r in records]
    assert words[:, columns.PARENT].tolist() == [2**64 - 1, 3]
    assert words[:, columns.RECORDED].tolist() == [70, 71]
    assert words[:, columns.RECORDED + 1].tolist() == [2**63, 2**64 - 1]
    assert words[:, columns.BRANCH_TOKENS].tolist() == [0, 6 << 32]
    assert words.shape[1] == columns.WORDS
