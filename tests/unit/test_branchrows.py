"""Rows of branches, decoded together: the same as one by one, and an error that names the row."""

from __future__ import annotations

import pytest

from eventlog.branching import PROJECTION, Opening, Tip, opening_key, tip_key
from eventlog.branchrows import _decoded_one_by_one, _decoded_together
from eventlog.errors import CorruptionError
from eventlog.inline import state_key
from eventlog.limits import POSITION_MAX
from eventlog.record import NO_PARENT

PREFIX = state_key(7, PROJECTION)


def opened(branch: int, *words: int) -> bytes:
    return opening_key(branch) + Opening(*words).content()


def ended(branch: int, *words: int) -> bytes:
    return tip_key(branch) + Tip(*words).content()


WHOLE = [
    opened(1, 5, 2, 0, 10),
    opened(2, 6, NO_PARENT, 0, 11),
    opened(300, 9, 6, 2, 12),
    ended(0, 4, 9),
    ended(1, 8, 13),
    ended(300, 2**40, 14),
]


def test_rows_decoded_together_are_those_decoded_one_by_one() -> None:
    found = _decoded_together(WHOLE)
    assert found == _decoded_one_by_one(WHOLE, PREFIX)
    assert found == {
        0: (None, Tip(4, 9)),
        1: (Opening(5, 2, 0, 10), Tip(8, 13)),
        2: (Opening(6, NO_PARENT, 0, 11), None),
        300: (Opening(9, 6, 2, 12), Tip(2**40, 14)),
    }
    assert all(type(each) in (Opening, Tip) for row in found.values() for each in row if each)
    assert _decoded_together([]) == {}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        pytest.param(opened(4, 5, 2, 0, 10)[:-1], "another size", id="opening-cut"),
        pytest.param(opened(4, 5, 2, 0, 10) + b"x", "another size", id="opening-long"),
        pytest.param(opened(4, 5, 5, 0, 10), "numbers that cannot be", id="follows-itself"),
        pytest.param(
            opened(4, POSITION_MAX + 1, 2, 0, 10), "numbers that cannot be", id="too-late"
        ),
        pytest.param(ended(4, 5, 10)[:-1], "another size", id="tip-cut"),
        pytest.param(ended(4, 5, 10)[:3], "of no branch", id="key-cut"),
        pytest.param(b"\x02" + ended(4, 5, 10)[1:], "of no branch", id="of-nothing"),
        pytest.param(b"", "of no branch", id="nothing"),
    ],
)
def test_a_row_that_cannot_be_is_named(bad: bytes, reason: str) -> None:
    rows = sorted([*WHOLE, bad])
    assert _decoded_together(rows) is None
    with pytest.raises(CorruptionError, match=reason) as caught:
        _decoded_one_by_one(rows, PREFIX)
    assert (PREFIX + bad[:5]).hex() in str(caught.value)
