"""Odd arguments, all through the public surface: a call works or says what is wrong with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import (
    Ack,
    AppendConflictError,
    ConflictError,
    DamagedInputError,
    Events,
    Projection,
    Store,
    StoreUnavailableError,
    UsageError,
)
from eventlog.ack import settle

HANG_S = 30.0
NOTHING = object()
ODD: dict[str, Any] = {
    "none": None,
    "true": True,
    "zero": 0,
    "one": 1,
    "negative": -1,
    "2^63": 2**63,
    "2^64": 2**64,
    "2^70": 2**70,
    "-2^70": -(2**70),
    "half": 2.5,
    "float": 1.0,
    "nan": float("nan"),
    "infinite": float("inf"),
    "1e12": 1e12,
    "1e300": 1e300,
    "minus half": -0.5,
    "empty": "",
    "digits": "5",
    "text": "x",
    "surrogate": "\ud800",
    "null": "a\0b",
    "long": "x" * 5_000,
    "bytes": b"x",
    "list": [],
    "list of int": [1],
    "list of lists": [[]],
    "list of dicts": [{}],
    "pair": (1, 2),
    "dict": {},
    "dict of int": {1: 2},
    "set": {1},
    "object": NOTHING,
    "type": int,
    "generator": (number for number in ()),
    "huge": 10**5_000,
    "minus huge": -(10**5_000),
    "list of huge": [10**5_000],
    "dict of huge": {"role": 10**5_000},
    "huge key": {10**5_000: 1},
}

# Every parameter of every public call: what it is called, and the call with a value for it.
OPTIONS = (
    "create",
    "read_only",
    "min_position",
    "store_id",
    "snapshot_frequency",
    "max_messages",
    "quota_bytes",
    "on_rejected",
    "verify",
    "allow_network",
    "lock_deadline_ms",
    "map_bytes",
)
EVENT_OPTIONS = (
    "expected_head",
    "idempotency_key",
    "id",
    "metadata",
    "time_us",
    "tokens",
    "run_id",
    "turn_id",
    "speech_id",
    "request_id",
    "ack",
)
MANY_OPTIONS = ("ids", "expected_head", "idempotency_key", "metadata", "time_us", "run_id")
Call = Callable[[Store, Any], object]


def calls() -> Iterator[tuple[str, str, Call]]:
    """Call, parameter, and how to make the one with a value for the other."""

    def session(store: Store) -> Any:
        return store.session("s")

    for name in OPTIONS:
        yield "open", name, lambda store, value, name=name: reopen(store, **{name: value})
    for name in (*EVENT_OPTIONS, "wait"):
        yield (
            "append",
            name,
            lambda store, value, name=name: session(store).append({}, **{name: value}),
        )
        yield (
            "append_event",
            name,
            lambda store, value, name=name: session(store).append_event(
                "custom", {}, **{name: value}
            ),
        )
    for name in EVENT_OPTIONS:
        yield (
            "append_large",
            name,
            lambda store, value, name=name: asyncio.run(
                session(store).append_large({}, **{name: value})
            ),
        )
    for name in (*MANY_OPTIONS, "turn_id", "ack", "wait"):
        yield (
            "append_many",
            name,
            lambda store, value, name=name: session(store).append_many([{}], **{name: value}),
        )
    yield "append", "message", lambda store, value: session(store).append(value)
    yield "append_many", "messages", lambda store, value: session(store).append_many(value)
    yield "append_event", "kind", lambda store, value: session(store).append_event(value, {})
    yield "append_event", "body", lambda store, value: session(store).append_event("x", value)
    yield "draft", "messages", lambda store, value: session(store).draft(value)
    yield "draft", "events", lambda store, value: session(store).draft(events=value)
    yield "draft", "an event", lambda store, value: session(store).draft(events=[value])
    yield (
        "draft",
        "expected_head",
        lambda store, value: store.append_batch([session(store).draft([{}], expected_head=value)]),
    )
    yield "append_batch", "parts", lambda store, value: store.append_batch(value)
    yield "append_batch", "a part", lambda store, value: store.append_batch([value])
    yield (
        "append_batch",
        "ack",
        lambda store, value: store.append_batch([session(store).draft([{}])], ack=value),
    )
    yield "load", "lines", lambda store, value: store.load(value)
    yield "load", "a line", lambda store, value: store.load([value])
    yield "load", "piece_events", lambda store, value: store.load([], piece_events=value)
    for name in ("name", "user_id", "title", "metadata"):
        yield (
            "session",
            name,
            lambda store, value, name=name: store.session(**{"name": "s", name: value}).create(),
        )
    yield "tenant", "name", lambda store, value: store.tenant(value).session("s").exists
    for name in ("limit", "cursor", "user_id"):
        yield "sessions", name, lambda store, value, name=name: store.sessions(**{name: value})
        yield (
            "sessions_async",
            name,
            lambda store, value, name=name: asyncio.run(store.sessions_async(**{name: value})),
        )
    for name in ("after", "limit", "min_position", "voids"):
        yield "read", name, lambda store, value, name=name: list(store.read(**{name: value}))
    yield "read", "timeout", lambda store, value: store.read(min_position=0, timeout=value)
    yield "up_to", "position", lambda store, value: session(store).up_to(value)
    for name in ("after", "kinds"):
        yield (
            "subscribe",
            name,
            lambda store, value, name=name: store.subscribe(**{name: value}).close(),
        )
    for name in ("name", "tenant", "kinds", "on_poison", "retries"):
        yield (
            "projection",
            name,
            lambda store, value, name=name: store.projection(
                **{"name": "x", "apply": print, "on_poison": "retry", name: value}
            ),
        )
    yield (
        "run_once",
        "limit",
        lambda store, value: project(store, lambda each: each.run_once(value)),
    )
    yield "reset", "position", lambda store, value: project(store, lambda each: each.reset(value))
    yield "history", "limit", lambda store, value: session(store).history(value)
    yield (
        "history_async",
        "limit",
        lambda store, value: asyncio.run(session(store).history_async(value)),
    )
    for name in ("first", "last", "kinds"):
        yield (
            "events",
            name,
            lambda store, value, name=name: list(session(store).events(**{name: value})),
        )
    yield "event", "sequence", lambda store, value: session(store).event(value)
    yield (
        "event_async",
        "sequence",
        lambda store, value: asyncio.run(session(store).event_async(value)),
    )
    for name in ("after", "kinds"):
        yield (
            "session.subscribe",
            name,
            lambda store, value, name=name: session(store).subscribe(**{name: value}).close(),
        )
    for name in ("path", "path_events", "window", "window_entries", "checkout", "compaction"):
        yield (
            name,
            "leaf",
            lambda store, value, name=name: gone_through(getattr(session(store), name)(value)),
        )
    yield "fork", "at", lambda store, value: session(store).fork(value)
    yield "path", "cursor", lambda store, value: session(store).path(cursor=value)
    yield "clone", "leaf", lambda store, value: cloned(session(store), value)
    yield "name_branch", "name", lambda store, value: session(store).name_branch(value)
    yield "name_branch", "leaf", lambda store, value: session(store).name_branch("b", value)
    yield "unname_branch", "name", lambda store, value: session(store).unname_branch(value)
    yield "links", "event", lambda store, value: session(store).links(value)
    for name in ("branch", "leaf", "scope"):
        yield "usage", name, lambda store, value, name=name: session(store).usage(**{name: value})
    yield "at.usage", "branch", lambda store, value: session(store).at(0).usage(branch=value)
    yield (
        "session.subscribe",
        "branch",
        lambda store, value: session(store).subscribe(branch=value).close(),
    )
    yield "artifacts.on", "leaf", lambda store, value: session(store).artifacts.on(value)
    yield (
        "at.artifacts.on",
        "leaf",
        lambda store, value: session(store).at(0).artifacts.on(value),
    )
    yield "artifacts.read", "id", lambda store, value: session(store).artifacts.read(value)
    yield "documents.read", "name", lambda store, value: session(store).documents.read(value)
    yield "runs.get", "run_id", lambda store, value: session(store).runs.get(value)
    yield "tool_calls.get", "call_id", lambda store, value: session(store).tool_calls.get(value)
    yield "export_lines", "events", lambda store, value: list(store.export_lines(value))
    yield "export_lines", "an event", lambda store, value: list(store.export_lines([value]))
    yield "blobs.of", "event", lambda store, value: list(store.blobs.of(value))
    yield "blobs.read", "blob", lambda store, value: store.blobs.read(value)
    yield "flush", "timeout", lambda store, value: store.flush(value)
    yield "close", "timeout", lambda store, value: Store.open(store.path).close(value)
    yield "result", "timeout", lambda store, value: session(store).append({}).result(value)
    yield "on_rejected", "on_rejected", lambda store, value: setattr(store, "on_rejected", value)
    yield "open", "path", lambda store, value: Store.open(value).close()


def gone_through(given: Any) -> Any:
    """What a call gave, but for events, which are read."""
    return list(given) if isinstance(given, Events) else given


def cloned(session: Any, leaf: object) -> None:
    session.clone("copy", leaf=leaf).delete().result(HANG_S)


def project(store: Store, call: Callable[[Projection], object]) -> None:
    with store.projection("x", lambda event: None) as projection:
        call(projection)


def reopen(store: Store, **options: Any) -> None:
    store.close()
    Store.open(store.path, **options).close()


CALLS = list(calls())
FITTING: dict[str, tuple[type[Exception], ...]] = {  # what a value of the right type may meet
    "expected_head": (AppendConflictError,),
    "timeout": (TimeoutError,),
    "path": (StoreUnavailableError,),
    "leaf": (AppendConflictError,),
    "at": (AppendConflictError,),
    "blob": (ConflictError,),
}


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with two events of one session."""
    monkeypatch.chdir(tmp_path)
    store = Store.open(tmp_path / "store")
    store.session("s").append_many([{"n": 0}, {"n": 1}]).result(HANG_S)
    yield store
    store.close()
    with Store.open(tmp_path / "store") as again:
        assert again.check().ok


@pytest.mark.parametrize(
    ("call", "name", "make"), CALLS, ids=[f"{call}-{name}" for call, name, _ in CALLS]
)
def test_an_odd_argument_works_or_is_refused(used: Store, call: str, name: str, make: Call) -> None:
    """A float, a bool or a list came out of the depths as TypeError, struct.error or a hang."""
    for value in ODD.values():
        try:
            done = make(used, value)
            if isinstance(done, Ack):
                done.result(HANG_S)
        except (UsageError, DamagedInputError, *FITTING.get(name, ())) as error:
            assert str(error), (call, name, value)
        if used._closed:
            used = Store.open(used.path)
    used.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("snapshot_frequency", 2.5),
        ("snapshot_frequency", True),
        ("snapshot_frequency", "5"),
        ("quota_bytes", 1e9),
        ("max_messages", 0),
        ("min_position", -1),
        ("min_position", 2.0),
        ("store_id", ""),
        ("store_id", "A" * 32),
        ("store_id", "0" * 31),
        ("lock_deadline_ms", -1),
        ("lock_deadline_ms", None),
        ("lock_deadline_ms", 2**70),
        ("map_bytes", 0),
        ("map_bytes", 2**70),
        ("create", "no"),
        ("read_only", 1),
        ("verify", None),
        ("allow_network", "yes"),
        ("on_rejected", 5),
    ],
)
def test_an_option_that_is_refused_is_named_with_its_value(
    store_path: Path, name: str, value: Any
) -> None:
    with pytest.raises(UsageError) as caught:
        Store.open(store_path, **{name: value})
    assert name in str(caught.value)
    assert repr(value)[:10] in str(caught.value)
    assert not store_path.exists()


@pytest.mark.parametrize("timeout", [-1, -0.5, float("nan"), "5", True, [1]])
def test_a_timeout_is_a_number_of_seconds(used: Store, timeout: Any) -> None:
    """A timeout of -1 waited for ever, and one of -2 raised ValueError."""
    ack = Ack(("", "s"), 1)
    for call in (ack.result, used.flush, used.close):
        with pytest.raises(UsageError, match="timeout"):
            call(timeout)
    with pytest.raises(UsageError, match="wait"):
        used.session("s").append({}, wait=timeout)
    used.session("s").append({}).result(HANG_S)


@pytest.mark.parametrize("timeout", [1e12, 1e300, float("inf"), 2**70, 10**400])
def test_a_timeout_may_be_as_long_as_it_likes(used: Store, timeout: float) -> None:
    """Beyond 292 years, which is what a lock can wait, it was an OverflowError."""
    ack = Ack(("", "s"), 1)
    thread = threading.Thread(target=ack.result, args=(timeout,))
    thread.start()
    while not ack.is_awaited:
        threading.Event().wait(0)
    settle([ack])
    thread.join(HANG_S)
    assert not thread.is_alive()
    used.session("s").append({}, wait=timeout)
    used.flush(timeout)
    used.close(timeout)


def test_a_line_that_is_no_object_is_named(used: Store) -> None:
    with pytest.raises(DamagedInputError, match="load:2: a line must be an object, not 1"):
        used.load([{"session": "t", "kind": "message", "body": {}}, 1])  # type: ignore[list-item]


def test_a_large_append_takes_what_an_append_takes(used: Store) -> None:
    """Its options were passed on blindly, also those that only a load may use."""
    with pytest.raises(TypeError, match="recorded_us"):
        asyncio.run(used.session("s").append_large({}, recorded_us=5))  # type: ignore[call-arg]
    ack = asyncio.run(used.session("s").append_large({}, id="x", tokens=5, ack="queued"))
    assert ack.result(HANG_S).event_id == "x"
