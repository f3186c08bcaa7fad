"""A session of 50,000 events: what each call decodes of it, and the memory that it takes."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine import Session, Store
from eventlog.limits import MIB, SEGMENT_CACHE_BYTES_MAX
from eventlog.segmentcache import SegmentCache

pytestmark = pytest.mark.slow

EVENTS = 50_000
ROUND = 20  # events of one round of everything
WAIT_S = 120.0
KEYS = 50
RUNS = EVENTS // ROUND // 5
WORDS = "word " * 20
FEW = 3  # segments: the one that a thing lies in, and its neighbours


def one_round(call: Session, number: int) -> list[Any]:
    """Everything that there is, as 20 events; every 25th begins a branch at the round before."""
    first = number * ROUND
    texts = [f"m{first + each} {WORDS}" for each in range(14)]
    parent = first - ROUND if number and number % 25 == 0 else None
    acks = [
        call.append({"role": "user", "content": texts[0]}, parent=parent),
        call.append_many([{"role": "assistant", "content": text} for text in texts[1:]]),
        call.update_state({f"k{number % KEYS}": number}),
        call.update_state({"last": number}),
        call.record_usage(model=f"m{number % 3}", input_tokens=number % 7),
        call.record_usage(model="m", output_tokens=1),
        call.append_event("metric", {"ms": number}),
    ]
    if number % 5:
        return [*acks, call.append_event("annotation", {"n": number})]
    return [*acks, call.runs.begin(f"r{number}")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one session; not to be changed."""
    path = tmp_path_factory.mktemp("long") / "store"
    with Store.open(path) as store:
        call = store.session("long", title="t")
        acks: list[Any] = []
        for number in range(EVENTS // ROUND):
            acks += one_round(call, number)
            if len(acks) > 4_000:
                acks.pop().result(WAIT_S)
                acks.clear()
        store.flush(WAIT_S)
        info = call.info()
        assert info is not None and info.event_count == EVENTS
        assert store.check().ok
    return path


@dataclass
class Cost:
    """What was decoded and taken."""

    segments: int = 0
    peak_bytes: int = 0


Measured = Callable[[Callable[[Store], Any]], tuple[Any, Cost]]


@pytest.fixture
def measured(made: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Asks a store that was just opened."""
    return lambda ask: measure(made, ask, monkeypatch)


def measure(
    path: Path, ask: Callable[[Store], Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Cost]:
    cost = Cost()
    real = SegmentCache.decode

    def decode(self: SegmentCache, tables: Any, key: bytes, value: bytes) -> Any:
        cost.segments += 1
        return real(self, tables, key, value)

    with Store.open(path) as store, monkeypatch.context() as patch:
        patch.setattr(SegmentCache, "decode", decode)
        tracemalloc.start()
        try:
            answer = ask(store)
            cost.peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    return answer, cost


def counted(given: Any) -> int:
    return sum(1 for _ in given)


def of(ask: Callable[[Session], Any]) -> Callable[[Store], Any]:
    return lambda store: ask(store.session("long"))


TAILS: dict[str, tuple[Callable[[Store], Any], Any]] = {
    "history": (of(lambda call: len(call.history(20))), 20),
    "events": (of(lambda call: counted(call.events(EVENTS - 30))), 30),
    "event": (of(lambda call: call.event(EVENTS // 2).sequence), EVENTS // 2),
    "path": (of(lambda call: len(call.path().events)), 100),
    "window": (of(lambda call: len(call.window(last=20))), 20),
    "window by tokens": (of(lambda call: len(call.window(tokens=400)) > 5), True),
    "info": (of(lambda call: call.info().event_count), EVENTS),  # type: ignore[union-attr]
    "head": (of(lambda call: call.head is not None), True),
    "listing": (lambda store: len(store.sessions().sessions), 1),
    "state": (of(lambda call: len(call.state)), KEYS + 1),
    "facts": (of(lambda call: call.facts.title), "t"),
    "runs": (of(lambda call: len(call.runs.list())), RUNS),
    "usage": (of(lambda call: call.usage().totals.record_count), EVENTS // 10),
    "usage of all": (lambda store: store.usage().totals.record_count, EVENTS // 10),
    "branches": (of(lambda call: len(call.branches())), EVENTS // ROUND // 25),
    "then": (of(lambda call: call.at(EVENTS // 2).head is not None), True),
    "history of then": (of(lambda call: len(call.at(EVENTS // 2).history(20))), 20),
    "live": (of(lambda call: next(iter(call.subscribe(EVENTS - 3))).sequence), EVENTS - 2),
}


@pytest.mark.parametrize("name", TAILS)
def test_what_is_asked_of_the_end_decodes_the_end(measured: Measured, name: str) -> None:
    """adk-python 3039, 4917: each question loaded all events of a session, 8 s for 3,000."""
    ask, expected = TAILS[name]
    answer, cost = measured(ask)
    assert answer == expected
    assert cost.segments <= FEW
    assert cost.peak_bytes < 12 * MIB


WALKS: dict[str, tuple[Callable[[Store], Any], int]] = {
    "events": (of(lambda call: counted(call.events())), EVENTS),
    "path": (of(lambda call: counted(call.path_events())), 0),
    "read": (lambda store: counted(store.read()), EVENTS),
    "export": (lambda store: counted(store.export_lines(store.session("long").events())), EVENTS),
}


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_through_all_of_it_takes_a_page_of_memory(measured: Measured, name: str) -> None:
    """Each segment is decoded once, and what was walked past is let go."""
    ask, expected = WALKS[name]
    answer, cost = measured(ask)
    assert answer == expected or (not expected and EVENTS // 3 < answer < EVENTS)
    every = measured(of(lambda call: counted(call.events())))[1].segments
    assert cost.segments <= every + FEW
    assert cost.peak_bytes < SEGMENT_CACHE_BYTES_MAX // 2


def test_an_earlier_moment_decodes_what_lies_before_it(measured: Measured) -> None:
    def state_at(sequence: int) -> tuple[Any, Cost]:
        return measured(of(lambda call: call.at(sequence).state["last"]))

    early, half = state_at(ROUND * 10 - 1), state_at(EVENTS // 2 - 1)
    assert (early[0], half[0]) == (9, EVENTS // ROUND // 2 - 1)
    every = measured(of(lambda call: counted(call.events())))[1].segments
    assert early[1].segments <= FEW
    assert half[1].segments <= every // 2 + FEW
    assert half[1].peak_bytes < SEGMENT_CACHE_BYTES_MAX


# What changes it


@pytest.fixture
def changed(made: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy, to be changed; checked when the test ends."""
    path = tmp_path / "copy"
    shutil.copytree(made, path)
    yield path
    with Store.open(path) as store:
        assert store.check().ok


def body_bytes(path: Path) -> int:
    with Store.open(path) as store:
        return sum([len(event.payload) for event in store.session("long").events()])


def test_a_compaction_of_it_takes_what_it_summarises(
    changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    def summarize(messages: list[Any]) -> str:
        given.append(len(messages))
        return "s"

    done, cost = measure(
        changed, of(lambda call: call.compact(summarize, keep_last=20)), monkeypatch
    )
    assert done.message_count == given[0] > EVENTS // 3
    assert cost.peak_bytes < 6 * body_bytes(changed) + SEGMENT_CACHE_BYTES_MAX
    (length, cost) = measure(changed, of(lambda call: len(call.window())), monkeypatch)
    assert length == 21 and cost.segments <= 3 * FEW  # a step back reads eight ahead


def test_a_clone_of_it_is_made_in_bounded_pieces(
    changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clone(store: Store) -> int:
        return store.session("long").clone("copy").info().event_count  # type: ignore[union-attr]

    count, cost = measure(changed, clone, monkeypatch)
    assert count == EVENTS - EVENTS // 10 + 1  # all but what was used, and where it comes from
    assert cost.peak_bytes < 6 * body_bytes(changed) + SEGMENT_CACHE_BYTES_MAX
    with Store.open(changed) as store:
        original, copy = store.session("long"), store.session("copy")
        assert copy.history(300) == original.history(300)
        assert copy.state == original.state and len(copy.branches()) == len(original.branches())


def test_a_purge_of_it_keeps_what_it_adds_up_to(
    changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(store: Store) -> Any:
        call = store.session("long")
        return call.state, call.usage().totals, call.runs.list(), call.history(300), call.facts

    before = measure(changed, told, monkeypatch)[0]
    first = EVENTS // 5 * 4
    done, cost = measure(changed, of(lambda call: call.purge(first).result(WAIT_S)), monkeypatch)
    assert done.first == EVENTS
    assert cost.peak_bytes < SEGMENT_CACHE_BYTES_MAX
    after, cost = measure(changed, told, monkeypatch)
    assert after == before and cost.segments <= FEW
    events, cost = measure(changed, of(lambda call: counted(call.events())), monkeypatch)
    assert events == EVENTS - first + 1
    assert cost.segments < 60


def test_an_export_of_it_loads_as_it_is(made: Path, tmp_path: Path) -> None:
    with Store.open(made) as store, Store.open(tmp_path / "other") as other:
        lines = list(store.export_lines(store.session("long").events()))
        other.load(map(json.loads, lines))
        assert list(other.export_lines(other.session("long").events())) == lines
        assert other.check().ok
