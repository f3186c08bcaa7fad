"""Dictionaries by themselves: what is learned, what is refused, and rows that fill their pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from struct import pack_into
from typing import Any

import pytest

from engine import Store
from eventlog.dictionary import (
    Dictionary,
    DictionaryRow,
    LoadedDictionaries,
    compressed_bytes,
    dictionary_key,
    digest_of,
    train,
)
from eventlog.errors import CorruptionError
from eventlog.limits import DICTIONARY_BYTES_MAX, DICTIONARY_BYTES_MIN
from eventlog.rows import protect
from eventlog.segment import PREFIX_BYTES, Run, decode_segment, encode_segment, encode_segments
from eventlog.segment import describe_runs as described
from eventlog.tables import WriteTables
from tests.unit.test_segment import PLAIN, run_of, stored_of
from tests.unit.test_training import WORDS

KIB = 1024


def texts(count: int, seed: int, size: int = 4 * KIB) -> list[bytes]:
    random = Random(seed)
    return [" ".join(random.choices(WORDS, k=size // 6)).encode()[:size] for _ in range(count)]


@pytest.mark.parametrize(
    ("samples", "size"),
    [(63, 0), (65, DICTIONARY_BYTES_MIN), (128, 16 * KIB), (400, DICTIONARY_BYTES_MAX)],
)
def test_the_more_there_is_to_learn_the_larger(samples: int, size: int) -> None:
    data = train(texts(samples, 1))
    if not size:
        assert data is None
        return
    assert data is not None
    assert size * 0.8 <= len(data) <= min(DICTIONARY_BYTES_MAX, size * 1.1)
    others = texts(20, 2, 600)
    assert compressed_bytes(others, data) < 0.7 * compressed_bytes(others, None)


@pytest.mark.parametrize(
    "samples",
    [[], [b"x"] * 3, [bytes(4 * KIB)] * 100, [b""] * 100],
    ids=["none", "few", "zeros", "empty"],
)
def test_nothing_is_learned_from_nothing(samples: list[bytes]) -> None:
    data = train(samples)
    assert data is None or compressed_bytes(texts(1, 1), data) > 0


ROW = DictionaryRow(1, 4_000, 1_000, (1, 5, 9), train(texts(100, 1)) or b"")
KEY = dictionary_key(7)


def rewritten(offset: int, layout: str, value: int) -> Callable[[bytes], bytes]:
    def change(rest: bytes) -> bytes:
        changed = bytearray(rest)
        pack_into(layout, changed, offset, value)
        return bytes(changed)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda rest: rest[:60], "too short", id="short"),
        pytest.param(lambda rest: rest[:-1], "cannot be", id="cut"),
        pytest.param(lambda rest: rest + b"x", "cannot be", id="longer"),
        pytest.param(rewritten(56, "<I", 0), "cannot be", id="no-sessions"),
        pytest.param(rewritten(56, "<I", 2**32 - 1), "cannot be", id="many-sessions"),
        pytest.param(rewritten(60, "<I", DICTIONARY_BYTES_MAX + 1), "cannot be", id="large"),
        pytest.param(rewritten(48, "<Q", 0), "cannot be", id="ratio"),
        pytest.param(rewritten(48, "<Q", 4_001), "cannot be", id="ratio-below-1"),
        pytest.param(rewritten(64, "<Q", 5), "another order", id="order"),
        pytest.param(rewritten(8, "<Q", 5), "digest", id="digest"),
        pytest.param(rewritten(100, "<Q", 5), "digest", id="data"),
        pytest.param(lambda rest: rest[:88] + bytes(16) + rest[88:], "cannot be", id="few-firsts"),
    ],
)
def test_a_row_that_lies_is_refused_whatever_its_checksum(
    change: Callable[[bytes], bytes], reason: str
) -> None:
    value = ROW.encode(KEY)
    assert DictionaryRow.decode(KEY, value) == ROW
    with pytest.raises(CorruptionError, match=reason) as caught:
        DictionaryRow.decode(KEY, protect(KEY, change(value[8:])))
    assert caught.value.where == "dictionary 7"


@pytest.mark.parametrize(
    "data", [b"hello " * 100, ROW.data[:4] + bytes(4) + ROW.data[8:], b"\x37\xa4\x30\xec" * 9]
)
def test_what_was_not_trained_is_refused(data: bytes) -> None:
    """Of raw bytes zstd cannot tell a wrong one: it would give other text back."""
    with pytest.raises(CorruptionError, match="dictionary 7"):
        Dictionary(7, replace(ROW, data=data))


def test_a_dictionary_is_loaded_once() -> None:
    loaded = LoadedDictionaries()
    asked: list[int] = []

    def load(number: int) -> DictionaryRow:
        asked.append(number)
        if number == 9:
            raise CorruptionError("is missing", where="dictionary 9")
        return ROW

    first = loaded.find(7, load)
    assert loaded.find(7, load) is first
    for _ in range(2):
        with pytest.raises(CorruptionError, match="dictionary 9"):
            loaded.find(9, load)
    loaded.clear()
    assert loaded.find(7, load) is not first
    assert asked == [7, 9, 9, 7]


def test_no_more_than_some_are_kept_in_memory() -> None:
    """With 255 tenants each thread would have kept contexts for every one of them."""
    loaded = LoadedDictionaries(loaded_max=2)
    asked: list[int] = []

    def load(number: int) -> DictionaryRow:
        asked.append(number)
        return ROW

    for number in (1, 2, 1, 3, 2, 3, 1):
        assert loaded.find(number, load).number == number
    assert asked == [1, 2, 3, 1]


def test_runs_of_several_tenants_are_sealed_together() -> None:
    """Each with its own dictionary, and some without one."""
    other = replace(ROW, data=train(texts(100, 5)) or b"")
    known = {1: Dictionary(1, ROW), 2: Dictionary(2, other)}
    runs: list[Run] = []
    for number in range(9):
        body = b"\x79\x01\x00" + texts(1, number, 256)[0]
        run = run_of([{**PLAIN, "body": body}] * 3, session=number + 1)
        run.dictionary = known.get(number % 3)
        runs.append(run)
    values = encode_segments(runs, described(runs))
    assert [value[10] for _, value in values] == [0, 1, 2] * 3
    for run, (key, value) in zip(runs, values, strict=True):
        segment = decode_segment(key, value, known.__getitem__)
        assert stored_of(run.session, segment) == run.records
        assert (key, value) == encode_segment(run)
        assert run.payload_bytes == len(value) - PREFIX_BYTES
        assert run.content_bytes == segment.prefix.content_bytes
        if run.dictionary is not None:
            with pytest.raises(CorruptionError, match=r"needs what is damaged: dictionary \d"):
                decode_segment(key, value)
            wrong = {1: Dictionary(1, other), 2: Dictionary(2, ROW)}
            with pytest.raises(CorruptionError, match="frame names dictionary id"):
                decode_segment(key, value, wrong.__getitem__)


def test_what_does_not_shrink_names_no_dictionary() -> None:
    noise = b"".join([digest_of(bytes((number,))) for number in range(100)])
    run = run_of([{**PLAIN, "body": noise}])
    run.dictionary = Dictionary(1, ROW)
    key, value = encode_segment(run)
    assert value[9:11] == b"\x00\x00"
    assert stored_of(7, decode_segment(key, value)) == run.records


def test_rows_behind_the_last_one_fill_their_pages(store: Store) -> None:
    """Pages were split in the middle, so that two rows of 1.7 KB never met on one."""
    environment: Any = store._log.environment
    transaction = environment.begin_write()
    try:
        tables = WriteTables(transaction, environment.db, store._log.writer.composer._id_runs)
        keys = [number.to_bytes(16, "big") for number in range(2, 400, 2)]
        for start in range(0, len(keys), 3):
            tables.put_segments([(key, bytes(1_700)) for key in keys[start : start + 3]])
        pages = transaction.stat(environment.db["segment"])["leaf_pages"]
        assert pages <= len(keys) / 2 + 1
        mixed = sorted([keys[5], keys[9][:-1] + b"\x0b", (1_000).to_bytes(16, "big")])
        tables.put_segments([(key, b"new") for key in mixed])
        found = dict(tables.rows("segment"))
        assert sorted(found) == sorted({*keys, *mixed})
        assert [key for key, value in found.items() if value == b"new"] == mixed
    finally:
        environment.abort(transaction)
