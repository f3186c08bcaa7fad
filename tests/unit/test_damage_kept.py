"""What cannot be read is an error and stays where it is: no read, append or upkeep removes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine import CorruptionError, RetentionPolicy, Session, Store, TurnlogError
from tests import damaged_store
from tests.damaged_store import Row, flipped, hot_row, put, rows
from tests.model.staging import HANG_S
from tests.unit.test_salvage import forge_hot, segment_of


def last_hot(path: Path) -> Row:
    with Store.open(path, create=False, read_only=True) as store:
        position = store.last_position
    return hot_row(path, position - 1)


def first_of(table: str) -> Callable[[Path], Row]:
    return lambda path: next(row for row in rows(path) if row[0] == table)


DAMAGED: dict[str, Callable[[Path], Row]] = {
    "the first segment": lambda path: segment_of(path, 1, 0),
    "a segment": lambda path: segment_of(path, 3, 2),
    "a hot record": last_hot,
    "an order block": first_of("order"),
    "the row of a session": first_of("session"),
}

READS: tuple[Callable[[Store, Session], Any], ...] = (
    lambda store, call: call.history(),
    lambda store, call: call.history(3),
    lambda store, call: list(call.events()),
    lambda store, call: list(call.path_events()),
    lambda store, call: call.window(),
    lambda store, call: call.info(),
    lambda store, call: call.facts,
    lambda store, call: call.state,
    lambda store, call: call.branches(),
    lambda store, call: call.usage(),
    lambda store, call: call.at(0).history(),
    lambda store, call: call.documents.list(),
    lambda store, call: store.sessions(user_id="u").sessions,
    lambda store, call: store.sessions().sessions,
    lambda store, call: list(store.read()),
    lambda store, call: list(store.export_lines(store.read())),
    lambda store, call: list(store.salvage()),
    lambda store, call: store.check(),
    lambda store, call: store.stats(),
)
WRITES: tuple[Callable[[Store, Session], Any], ...] = (
    lambda store, call: call.append({"role": "user", "content": "more"}).result(HANG_S),
    lambda store, call: call.update_state({"a": 1}).result(HANG_S),
    lambda store, call: call.roll_up().result(HANG_S),
    lambda store, call: call.compact(lambda _: "s", keep_last=1),
    lambda store, call: call.clone("a clone"),
    lambda store, call: call.checkout(0).result(HANG_S),
    lambda store, call: store.rebuild(),
    lambda store, call: store.collect_blobs(HANG_S),
    lambda store, call: store.apply_retention(RetentionPolicy(max_total_bytes=10**9)),
    lambda store, call: store.flush(HANG_S),
)


def sessions(store: Store) -> list[Session]:
    return [store.tenant(tenant).session(name) for tenant, name in damaged_store.SESSIONS]


def told(path: Path) -> list[list[Any]]:
    with Store.open(path, create=False, read_only=True) as store:
        return [list(call.events()) for call in sessions(store)]


@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_read_is_there_again_once_it_can(path: Path, name: str) -> None:
    """openai-agents-python 5005: a wrong key and one pop erased all ciphertext, silently."""
    before = told(path)
    table, key, value = DAMAGED[name](path)
    put(path, (table, key, flipped(value, 9)))
    errors: list[TurnlogError] = []
    with suppress(TurnlogError), Store.open(path, create=False) as store:
        for call in sessions(store)[::2]:
            for ask in WRITES + READS:
                try:
                    ask(store, call)
                except TurnlogError as error:  # nothing else comes out
                    errors.append(error)
    with suppress(TurnlogError):
        Store.vacuum(path)
    assert any([isinstance(error, CorruptionError) for error in errors]), "nobody was told"
    assert (table, key, flipped(value, 9)) in rows(path), "the damaged row is gone"
    put(path, (table, key, value))
    for kept, found in zip(before, told(path), strict=True):
        assert found[: len(kept)] == kept


def test_a_body_that_this_release_cannot_decode_is_an_error_with_its_bytes(path: Path) -> None:
    """langgraph 6970, 7066: a value of a class that was renamed became None, without a word."""
    forge_hot(path, 1)
    with Store.open(path, create=False, read_only=True) as store:
        call = store.tenant("acme").session("late")
        events = list(call.events())
        assert [event.sequence for event in events] == [0, 1, 2]
        with pytest.raises(CorruptionError):
            _ = events[1].body
        assert events[1].payload == b"\xc0\x00"  # which whoever knows better may decode
        assert events[0].body == {"role": "user", "content": "first"}
        for ask in (call.history, call.window, lambda: list(store.export_lines(events))):
            with pytest.raises(CorruptionError):
                ask()
        assert not store.check().ok


def test_what_nobody_here_knows_is_kept(store: Store, tmp_path: Path) -> None:
    """langgraph 1965, posthog 36279: fields that a release does not know were dropped on a save."""
    call = store.session("call")
    body = {"$type": "my.Class", "__class__": "x", "role": ["?"], "new": {"$b64": "no", "": None}}
    for kind in ("message", "custom", "my.own.kind", "metric", "label"):
        call.append_event(kind, body, metadata={"$schema": 9}).result(HANG_S)
    lines = [json.loads(line) for line in store.export_lines(call.events())]
    with Store.open(tmp_path / "other") as other:
        other.load(lines)
        for there in (call, call.clone("copy"), other.session("call")):
            events = [event for event in there.events() if event.kind != "facts"]
            assert [event.body for event in events] == [body] * 5
            assert [event.metadata for event in events] == [{"$schema": 9}] * 5
            assert [event.kind for event in events][2] == "my.own.kind"
            assert there.history() == [body]
