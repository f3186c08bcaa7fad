"""Merging: small segments become larger ones, each event is rewritten a few times, nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Store
from eventlog import merging
from eventlog.errors import CorruptionError
from eventlog.failpoints import failpoints, raise_
from eventlog.keys import PAIR, U64
from eventlog.limits import (
    CLOSE_MERGE_BYTES_MAX,
    COMMIT_MERGE_BYTES_MAX,
    MERGE_POSITIONS_MAX,
    SEGMENT_BYTES_TARGET,
)
from eventlog.merging import FACTOR, FULL_BYTES, TOP, Merges, due, tier
from eventlog.rows import SessionRow
from eventlog.sealing import Sealing
from eventlog.segment import (
    Run,
    SegmentPrefix,
    decode_segment,
    encode_segment,
    join_segments,
)
from tests.unit.test_segment import PLAIN, event_fields, run_of, stored_of

HANG_S = 30.0
KIB = 1024


@dataclass
class Rewritten:
    """What merging wrote, by commit: bytes of content and segments."""

    commits: list[merging.Merging]

    @property
    def content_bytes(self) -> int:
        return sum([each.content_bytes for each in self.commits])


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rewritten]:
    found = Rewritten([])
    merge = Merges.merge

    def watched(self: Merges, *args: Any) -> merging.Merging:
        done = merge(self, *args)
        if done.rows:
            found.commits.append(done)
        return done

    monkeypatch.setattr(Merges, "merge", watched)
    yield found
    assert all(each.content_bytes <= COMMIT_MERGE_BYTES_MAX for each in found.commits)


def prefixes(store: Store, name: str) -> list[SegmentPrefix]:
    """Of a session's segments, oldest first."""
    with store._log.views.transaction() as tables:
        found = tables.find_session(("", name))
        assert found is not None
        number, row = found
        rows = list(tables.rows("segment", U64.pack(number)))
        assert len(rows) == row.segments
        return [SegmentPrefix.unpack(key, value) for key, value in rows]


def append(store: Store, name: str, first: int, count: int) -> None:
    messages = [{"role": "user", "n": n, "content": f"message {n}"} for n in range(count)]
    store.session(name).append_many([{**each, "first": first} for each in messages])
    store.flush()


@pytest.mark.parametrize(
    ("sizes", "chunks"),
    [
        ([], []),
        ([100] * 3, []),
        ([100] * 4, [(0, 4)]),
        ([100] * 9, [(0, 9)]),
        ([3_000] * 3 + [100] * 4, [(3, 7)]),
        ([3_000] * 4 + [100] * 4, [(0, 8)]),
        ([3_000] * 4 + [100] * 1, [(0, 5)]),
        ([100, 3_000, 100, 3_000, 3_000, 3_000], [(0, 6)]),
        ([100, 3_000, 100, 3_000, 3_000], []),
        ([20_000] * 4, [(0, 3)]),  # what is left over waits for more
        ([32_000] * 4, [(0, 2), (2, 4)]),
        ([72] * 3, []),
    ],
)
def test_what_is_due(sizes: list[int], chunks: list[tuple[int, int]]) -> None:
    assert due(described(sizes)) == chunks


def described(sizes: list[int], apart: int = 10) -> list[SegmentPrefix]:
    """Prefixes of segments of such sizes, each ``apart`` positions after the one before."""
    return [
        SegmentPrefix(1, 1, 0, 0, 1, size, place * apart, place * apart + 5, 0, 0, 0, 0, 0, 0)
        for place, size in enumerate(sizes, 1)
    ]


def test_segments_far_apart_are_not_merged() -> None:
    """A reader of the global order decodes a segment once for each window that meets it."""
    apart = MERGE_POSITIONS_MAX // FACTOR
    assert due(described([100] * 4, apart)) == [(0, 4)]
    assert due(described([100] * 5, apart)) == [(0, 4)]
    assert due(described([100] * 6, apart)) == [(0, 4), (4, 6)]
    assert due(described([100] * 8, apart)) == [(0, 4), (4, 8)]
    assert due(described([100] * 8, MERGE_POSITIONS_MAX)) == []


@given(st.lists(st.integers(72, FULL_BYTES), max_size=40))
def test_a_merged_segment_is_of_a_higher_tier(sizes: list[int]) -> None:
    """So nothing is merged more than ``TOP`` times, whatever the sizes."""
    following = 0
    for start, stop in due(described(sizes)):
        assert start >= following and stop - start >= 2
        merged = sum(sizes[start:stop])
        assert merged <= SEGMENT_BYTES_TARGET
        assert tier(merged) > max([tier(size) for size in sizes[start:stop]])
        following = stop
    assert following <= len(sizes)
    assert [tier(size) for size in (72, FULL_BYTES, FULL_BYTES + 1)] == [0, TOP - 1, TOP]


@given(
    st.lists(st.lists(event_fields, min_size=1, max_size=6), min_size=2, max_size=5),
    st.integers(0, 2**40),
)
def test_joining_is_sealing_together(parts: list[list[dict[str, Any]]], first: int) -> None:
    whole = run_of([each for part in parts for each in part], first=first, before=5)
    segments = []
    start = 0
    before = 5
    for part in parts:
        stop = start + len(part)
        run = part_of(whole, start, stop, before)
        segments.append(decode_segment(*encode_segment(run)))
        before += run.messages
        start = stop
    key, value = join_segments(7, segments)
    assert (key, value) == encode_segment(whole)
    assert stored_of(7, decode_segment(key, value)) == whole.records


def part_of(whole: Run, start: int, stop: int, before: int) -> Run:
    first = whole.last_sequence - len(whole.records) + 1
    records, positions = whole.records[start:stop], whole.positions[start:stop]
    return Run(7, first + stop - 1, records, positions, before)


def test_others_than_neighbours_are_not_joined() -> None:
    segments = [decode_segment(*encode_segment(run_of([PLAIN], first=first))) for first in (0, 2)]
    with pytest.raises(CorruptionError, match="does not follow"):
        join_segments(7, segments)
    segments = [
        decode_segment(*encode_segment(run_of([PLAIN], first=first, gaps=gaps)))
        for first, gaps in ((0, [9]), (1, [3]))
    ]
    with pytest.raises(CorruptionError, match="does not follow"):
        join_segments(7, segments)


def test_a_long_session_is_rewritten_a_few_times(
    checked_store: Callable[..., Store], rewritten: Rewritten
) -> None:
    """The bytes that merging rewrites, over the bytes of the session, stay below its tiers."""
    store = checked_store(snapshot_frequency=5)
    for number in range(600):
        append(store, "s", number, 5)
    found = prefixes(store, "s")
    total = sum([prefix.content_bytes for prefix in found])
    first_tier = tier(total // 600)
    assert rewritten.content_bytes <= (TOP - first_tier) * total
    assert rewritten.content_bytes > total / 2
    assert len(found) <= total / FULL_BYTES + 2 * FACTOR * (TOP - first_tier)
    assert sum([prefix.count for prefix in found]) == 3_000
    bodies = [event.body for event in store.session("s").events()]
    assert [(body["first"], body["n"]) for body in bodies] == [
        (first, n) for first in range(600) for n in range(5)
    ]


def test_what_is_merged_grows_with_the_events_alone(
    checked_store: Callable[..., Store], rewritten: Rewritten
) -> None:
    """Ten times the events are rewritten in ten times the bytes, and the tiers on top."""
    store = checked_store(snapshot_frequency=2)
    bytes_by_count = []
    for name, count in (("short", 60), ("long", 600)):
        rewritten.commits.clear()
        for number in range(count):
            append(store, name, number, 2)
        bytes_by_count.append(rewritten.content_bytes)
    assert bytes_by_count[1] <= bytes_by_count[0] * 10 * TOP / 2


def test_sessions_merge_beside_each_other(
    checked_store: Callable[..., Store], rewritten: Rewritten
) -> None:
    store = checked_store(snapshot_frequency=3)
    for number in range(FACTOR):
        for name in ("a", "b", "c"):
            store.session(name).append_many([{"n": number}] * 3)
        store.flush()
    for name in ("a", "b", "c"):
        found = prefixes(store, name)
        assert [prefix.count for prefix in found] == [3 * FACTOR]
        assert (found[0].messages_before, found[0].messages) == (0, 3 * FACTOR)
    assert store.stats()["roll_ups"] == 3 * FACTOR


def test_a_reader_between_two_steps_does_not_notice(checked_store: Callable[..., Store]) -> None:
    """A page ends inside a segment that is merged before the next one is read."""
    store = checked_store(snapshot_frequency=4)
    with failpoints({"merge.after_segments": raise_(OSError(5, "not now"))}):
        for number in range(FACTOR + 1):
            store.session("s").append_many([{"n": number, "text": "x" * 3_000}] * 4).result(HANG_S)
            tidied(store)
    before = len(prefixes(store, "s"))
    forward = iter(store.session("s").events())
    order = iter(store.read())
    first = [next(forward).sequence, next(order).sequence]
    append(store, "s", 0, 4)
    append(store, "s", 0, 4)
    assert first == [0, 0]
    assert len(prefixes(store, "s")) < before
    assert [event.sequence for event in forward] == list(range(1, 28))
    assert [event.sequence for event in order] == list(range(1, 28))


def tidied(store: Store) -> None:
    """Wait until the writer is at rest, or has put off what failed."""
    waiting = threading.Event()
    for _ in range(int(HANG_S * 100)):
        if not store._log.writer.machine.overdue or store._log.writer.composer.failures:
            return
        waiting.wait(0.01)
    raise AssertionError("the writer does not come to rest")


def test_a_failed_merge_leaves_all_as_it_was(checked_store: Callable[..., Store]) -> None:
    """Appends beside it are refused or written whole, and the merge comes with the next commit."""
    store = checked_store(snapshot_frequency=2)
    with failpoints({"merge.after_segments": raise_(OSError(5, "broken"))}):
        for number in range(FACTOR):
            store.session("s").append_many([{"n": number}] * 2).result(HANG_S)
            tidied(store)
        assert [prefix.count for prefix in prefixes(store, "s")] == [2] * FACTOR
        assert store.check().ok
    append(store, "other", 0, 1)
    append(store, "other", 0, 1)
    assert [prefix.count for prefix in prefixes(store, "s")] == [2 * FACTOR]


def test_a_restart_finds_what_was_left(store_path: Path) -> None:
    """Other processes had sealed and were gone before they could merge."""
    for number in range(FACTOR + 1):
        with pytest.MonkeyPatch.context() as patch:
            if number < FACTOR:
                patch.setattr(Merges, "note", lambda *_: None)
            with Store.open(store_path, snapshot_frequency=2) as store:
                append(store, "s", number, 2)
                counts = [prefix.count for prefix in prefixes(store, "s")]
                assert store.check().ok
        assert counts == ([2] * (number + 1) if number < FACTOR else [2 * FACTOR + 2])


def test_a_damaged_segment_is_left_and_stops_nobody(store_path: Path) -> None:
    with Store.open(store_path, snapshot_frequency=2) as store:
        append(store, "bad", 0, 2)
        append(store, "good", 0, 2)
        environment = store._log.environment
        transaction = environment.begin_write()
        key = PAIR.pack(1, 1)
        value = bytearray(transaction.get(key, db=environment.db["segment"]) or b"")
        value[-3] ^= 1
        transaction.put(key, bytes(value), db=environment.db["segment"])
        environment.commit(transaction)
        for number in range(2 * FACTOR):
            append(store, "bad", number, 2)
            append(store, "good", number, 2)
        assert len(prefixes(store, "bad")) == 2 * FACTOR + 1
        assert len(prefixes(store, "good")) < 2 * FACTOR
        assert store.health()["ok"]
        where = {finding.where for finding in store.check().findings}
        assert where == {"segment 1/1"}


def test_a_close_leaves_the_rest(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, rewritten: Rewritten
) -> None:
    """Hours of sealing may leave much to merge; a close works off some, and says good-bye."""
    store = checked_store(snapshot_frequency=2)
    assert CLOSE_MERGE_BYTES_MAX > COMMIT_MERGE_BYTES_MAX
    monkeypatch.setattr("eventlog.writer.CLOSE_MERGE_BYTES_MAX", 2_000)
    merge = Merges.share
    monkeypatch.setattr(Merges, "share", lambda *_: 0)
    for number in range(FACTOR):
        for name in range(40):
            store.session(f"{name}").append_many([{"n": number}] * 2)
        store._log._wait_settled(HANG_S)
        for _ in range(1_000):
            if not store._log.index.due:
                break
            threading.Event().wait(0.005)
    monkeypatch.setattr(Merges, "share", lambda *args: min(2_000, merge(*args)))
    store.close()
    assert 0 < rewritten.content_bytes <= 8_000
    with Store.open(store.path) as again:
        assert sum([len(prefixes(again, f"{name}")) for name in range(40)]) > 40


def test_what_is_known_stays_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MERGE_SESSIONS_MAX", 3)
    merges = Merges()
    for number in range(10):
        sealing = Sealing()
        row = SessionRow(1, 1, 1, 9, 9, 8, 9, 9, 0, 9, 0, 0, "", "s", None)
        state: Any = type("State", (), {"number": number, "row": row})
        sealing.rows.append((state, row))
        merges.note(sealing)
    assert len(merges.waiting) == len(merges._sealed) == 3
