from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import cbor2
import pytest

from bench.workloads import (
    CHAT_BYTES_MAX,
    CHAT_BYTES_MIN,
    LARGE_BYTES_MAX,
    arrival_times,
    chat_messages,
    interleaving,
    mixed_messages,
    session_names,
)


@pytest.mark.parametrize("make", [chat_messages, mixed_messages])
def test_a_seed_repeats_its_messages(make: object) -> None:
    assert callable(make)
    assert make(300, seed=7) == make(300, seed=7)
    assert make(300, seed=7) != make(300, seed=8)


def test_chat_messages_have_the_stated_size() -> None:
    sizes = [len(cbor2.dumps(message)) for message in chat_messages(2_000)]
    assert min(sizes) == CHAT_BYTES_MIN
    assert max(sizes) == CHAT_BYTES_MAX


def test_mixed_messages_are_mostly_small_and_never_too_large() -> None:
    sizes = sorted(len(cbor2.dumps(message)) for message in mixed_messages(5_000))
    assert sizes[0] >= 200
    assert sizes[len(sizes) * 98 // 100] <= 400
    assert LARGE_BYTES_MAX // 2 < sizes[-1] <= LARGE_BYTES_MAX


def test_interleaving_takes_every_session_once_a_round() -> None:
    order = interleaving(7, 7 * 5 + 3)
    assert len(order) == 38
    for start in range(0, 35, 7):
        assert sorted(order[start : start + 7]) == list(range(7))
    assert max(Counter(order).values()) == 6


def test_arrivals_rise_at_the_stated_rate() -> None:
    times = list(islice(arrival_times(50.0, seed=3), 5_000))
    assert all(earlier < later for earlier, later in pairwise(times))
    assert times[-1] == pytest.approx(100, rel=0.05)
    assert times == list(islice(arrival_times(50.0, seed=3), 5_000))


def test_session_names_differ() -> None:
    assert len(set(session_names(1_000))) == 1_000
