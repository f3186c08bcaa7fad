"""Appends: what is accepted and refused, conditions, retries, limits at their edges."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Store
from eventlog.errors import (
    AppendConflictError,
    DuplicateIdError,
    IdempotencyConflictError,
    InvalidMessageError,
    InvalidNameError,
    LimitExceededError,
    UsageError,
)
from eventlog.limits import (
    BATCH_BYTES_MAX,
    BATCH_EVENTS_MAX,
    BODY_BYTES_MAX,
    DEPTH_MAX,
    KEY_BYTES_MAX,
    KIND_BYTES_MAX,
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
)
from tests.model.answers import exact
from tests.model.programs import SPECIAL_BODIES, messages, values
from tests.model.staging import HANG_S, halted, run_script

# Round trip


def test_whatever_is_accepted_comes_back_type_for_type(tmp_path: Path) -> None:
    """pydantic-ai 1492, 1081: bytes broke JSON or came back as str."""
    with Store.open(tmp_path / "store", snapshot_frequency=3) as store:
        call = store.session("s")
        sent: list[Any] = []

        @settings(max_examples=120)
        @given(messages)
        def append(message: dict[str, Any]) -> None:
            ack = call.append(message).result(HANG_S)
            sent.append(message)
            assert exact(call.event(ack.last).body) == exact(message)

        append()
        assert exact(call.history()) == exact(sent)
    with Store.open(tmp_path / "store") as store:
        assert exact(store.session("s").history()) == exact(sent)
        assert store.check().findings == []


@settings(max_examples=60)
@given(value=values)
def test_events_hold_any_plain_value(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "values"
    with Store.open(path) as store:
        call = store.session("s")
        call.append_event("note", value, metadata={"value": value}).result(HANG_S)
        event = call.events(first=call.info().last_sequence)  # type: ignore[union-attr]
        [found] = event
        assert exact(found.body) == exact(value)
        assert exact(found.metadata) == exact({"value": value})
        assert (found.kind, found.role) == ("note", found.role)


def test_one_bad_character_spoils_nothing(checked_store: Callable[..., Store]) -> None:
    """openclaw 18105, agent-zero 1773: one lone surrogate or NUL poisoned a session for ever."""
    bad = {"role": "user", "content": "\ud83d \x00 e\u0301", "\udfff": ["\ud800", {"\ud800": 1}]}
    store = checked_store(snapshot_frequency=2)
    call = store.session("s")
    for number in range(5):
        call.append({"n": number}).result()
        call.append(bad, metadata=bad, id=f"e{number}").result()
    assert exact(call.history()) == exact([{"n": n // 2} if n % 2 == 0 else bad for n in range(10)])
    assert exact(call.event(9).metadata) == exact(bad)
    assert exact(call.history(limit=1)) == exact([bad])
    again = call.append(bad, metadata=bad, id="e3").result()
    assert again.already and again.first == 7


def test_special_bodies_survive_sealing_and_opening_again(store_path: Path) -> None:
    with Store.open(store_path, snapshot_frequency=1) as store:
        store.session("s").append_many(list(SPECIAL_BODIES)).result()
        store.session("s").append({}).result()
    with Store.open(store_path) as store:
        assert exact(store.session("s").history()) == exact([*SPECIAL_BODIES, {}])


def test_a_nan_keeps_its_bits_and_equals_itself(store: Store) -> None:
    """FAULTS 71, as a rule: NaN is content like any other."""
    odd = struct.unpack(">d", bytes.fromhex("fff8000000000abc"))[0]
    call = store.session("s")
    body = {"nan": [math.nan, odd, -0.0, math.inf]}
    call.append(body, idempotency_key="k").result()
    assert call.append(body, idempotency_key="k").result().already
    other = {"nan": [math.nan, math.nan, -0.0, math.inf]}
    with pytest.raises(IdempotencyConflictError):
        call.append(other, idempotency_key="k").result()
    assert exact(call.history()) == exact([body])


@pytest.mark.parametrize(
    "pair",
    [
        ({"v": 1}, {"v": True}),
        ({"v": 1}, {"v": 1.0}),
        ({"v": 0.0}, {"v": -0.0}),
        ({"v": "a"}, {"v": b"a"}),
        ({"v": [1, 2]}, {"v": [2, 1]}),
        ({"v": None}, {}),
        ({"v": "é"}, {"v": "e\u0301"}),
        ({"v": "\ud800"}, {"v": "\ud800".encode("utf-8", "surrogatepass")}),
    ],
    ids=repr,
)
def test_values_that_compare_equal_are_not_the_same_content(
    store: Store, pair: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    call = store.session("s")
    call.append(pair[0], idempotency_key="k", id="e").result()
    with pytest.raises(IdempotencyConflictError):
        call.append(pair[1], idempotency_key="k", id="e").result()
    with pytest.raises(DuplicateIdError):
        call.append(pair[1], id="e").result()
    assert exact(call.history()) == exact([pair[0]])


def test_the_order_of_keys_is_kept_and_is_not_content(store: Store) -> None:
    call = store.session("s")
    call.append({"b": {"y": 1, "x": 2}, "a": 2}, idempotency_key="k").result()
    again = call.append({"a": 2, "b": {"x": 2, "y": 1}}, idempotency_key="k").result()
    assert again.already
    assert exact(call.history()) == exact([{"b": {"y": 1, "x": 2}, "a": 2}])


def test_a_retry_in_another_order_of_keys_is_found(store: Store) -> None:
    """A retry with the keys of its metadata in another order conflicted, and so did one whose
    body held a lone surrogate or an odd NaN. Equal values are the same content, by key and id."""
    odd = struct.unpack(">d", bytes.fromhex("fff8000000000abc"))[0]
    said = {"\ud83d": [odd], "text": "cut \ud83d", "a": {"y": odd, "x": 1}}
    again = {"a": {"x": 1, "y": odd}, "text": "cut \ud83d", "\ud83d": [odd]}
    call = store.session("s")
    first = call.append(said, idempotency_key="k", id="e", metadata=said).result()
    assert not first.already
    assert call.append(again, idempotency_key="k", id="e", metadata=again).result().already
    assert call.append(again, id="e", metadata=again).result().already
    other = {**again, "a": {"x": 1.0, "y": odd}}
    with pytest.raises(IdempotencyConflictError):
        call.append(again, idempotency_key="k", id="e", metadata=other).result()
    with pytest.raises(DuplicateIdError):
        call.append(other, id="e", metadata=again).result()
    assert exact(call.history()) == exact([said])


def test_what_the_caller_changes_later_changes_nothing(store: Store) -> None:
    """FAULTS 73."""
    call = store.session("s", metadata=(opening := {"a": [1]}))
    message = {"role": "user", "content": ["one", {"two": 2}]}
    metadata = {"m": [1]}
    with halted("commit.before_begin") as halt:
        store.session("other").append({})
        halt.wait_reached()
        call.append(message, metadata=metadata, idempotency_key="k")
        call.append_many(many := [message, message])
        draft = call.draft([message], events=[("label", message)])
        message["content"].append("three")  # type: ignore[attr-defined]
        message["role"] = "system"
        metadata["m"].append(2)
        opening["a"].append(2)
        many.clear()
        store.append_batch([draft])
    store.flush(HANG_S)
    expected = {"role": "user", "content": ["one", {"two": 2}]}
    assert [event.body for event in call.events()] == [expected] * 5
    assert call.event(0).metadata == {"m": [1]}
    assert call.event(0).opening == {"metadata": {"a": [1]}}
    read = call.history()
    read[0]["content"].clear()
    assert call.history()[0] == expected, "what a reader changes changes nothing either"


# What cannot be stored (FAULTS 72)


class Colour(enum.Enum):
    RED = 1


class Text(str):
    pass


class Number(enum.IntEnum):
    ONE = 1


UNSTORABLE: dict[str, Any] = {
    "datetime": datetime.datetime(2024, 1, 1),
    "date": datetime.date(2024, 1, 1),
    "decimal": decimal.Decimal("1.5"),
    "enum": Colour.RED,
    "int enum": Number.ONE,
    "str subclass": Text("x"),
    "dict subclass": OrderedDict(a=1),
    "tuple": (1, 2),
    "set": {1},
    "frozenset": frozenset({1}),
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "numpy int": np.int64(1),
    "numpy float": np.float64(1.0),
    "numpy array": np.zeros(3),
    "complex": 1j,
    "object": object(),
    "function": len,
    "path": Path("x"),
    "big int": 2**64,
    "small int": -(2**63) - 1,
    "int key": {1: "x"},
    "bool key": {True: "x"},
    "None key": {None: "x"},
    "bytes key": {b"k": "x"},
    "str subclass key": {Text("k"): "x"},
}


@pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE.keys())
def test_what_cannot_be_stored_is_refused_at_once_with_its_path(store: Store, value: Any) -> None:
    call = store.session("s")
    calls: list[Callable[[], Any]] = [
        lambda: call.append({"content": ["ok", {"deep": value}]}),
        lambda: call.append({"content": ["ok", {"deep": value}]}, id="e", ack="queued"),
        lambda: call.append_event("note", {"content": ["ok", {"deep": value}]}),
        lambda: call.append_many([{"ok": 1}, {"content": ["ok", {"deep": value}]}]),
        lambda: call.draft([{"ok": 1}, {"content": ["ok", {"deep": value}]}]),
    ]
    for append in calls:
        with pytest.raises(InvalidMessageError) as caught:
            append()
        assert caught.value.path.startswith("$.content[1].deep")  # a bad key is part of it
        assert caught.value.hint
    with pytest.raises(InvalidMessageError) as caught:
        call.append({}, metadata={"when": value})
    assert caught.value.path.startswith("$metadata.when")
    with pytest.raises(InvalidMessageError) as caught:
        store.session("new", metadata={"when": value})
    assert "when" in caught.value.path
    store.flush(HANG_S)
    assert not call.exists, "nothing else of the append was written"


@pytest.mark.parametrize("message", [None, "text", [{}], b"x", 1, OrderedDict(a=1)], ids=repr)
def test_a_message_is_a_dict(store: Store, message: Any) -> None:
    call = store.session("s")
    calls: list[Callable[[], Any]] = [
        lambda: call.append(message),
        lambda: call.append_many([{}, message]),
        lambda: call.append_event("message", message),
        lambda: call.draft([message]),
    ]
    for append in calls:
        with pytest.raises(InvalidMessageError):
            append()
    assert not call.exists


def nested(levels: int) -> dict[str, Any]:
    """A dict so many levels deep, counting itself."""
    value: dict[str, Any] = {}
    for number in range(levels - 1):
        value = {"k": value} if number % 2 else {"k": [value]}
    return value


def deep(levels: int) -> dict[str, Any]:
    """Lists in a dict."""
    value: Any = []
    for _ in range(levels - 2):
        value = [value]
    return {"k": value}


def test_the_deepest_body_there_may_be(store: Store) -> None:
    """FAULTS 69: the limit, and one past it."""
    call = store.session("s")
    call.append(deep(DEPTH_MAX)).result()
    assert call.history() == [deep(DEPTH_MAX)]
    for levels in (DEPTH_MAX + 1, 401, 900, 10_000):
        body = deep(levels)
        with pytest.raises(LimitExceededError) as caught:
            call.append(body)
        assert (caught.value.name, caught.value.limit) == ("DEPTH_MAX", DEPTH_MAX)
        assert caught.value.path is not None and caught.value.path.startswith("$.k[0][0]")
    assert len(call.history()) == 1


def test_a_cycle_is_refused_and_kills_nothing(store: Store) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    own: dict[str, Any] = {}
    own["self"] = own
    for body in ({"content": cycle}, own, {"a": own, "b": cycle}):
        with pytest.raises(LimitExceededError):
            store.session("s").append(body)
        with pytest.raises(LimitExceededError):
            store.session("s").append_event("note", body)
    assert not store.session("s").exists


# Sizes (FAULTS 68)


def test_sixteen_mebibytes_are_fine(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=1)
    bodies: list[dict[str, Any]] = [
        {"role": "user", "content": "x" * (16 << 20)},
        {"content": ["é" * (8 << 20)]},
        {"content": b"\xff" * (16 << 20)},
    ]
    for body in bodies:
        store.session("s").append(body).result(HANG_S)
    assert store.session("s").history() == bodies
    assert [event.body for event in store.read()] == bodies


def test_the_largest_body_and_one_byte_more(store: Store) -> None:
    call = store.session("s")
    room = BODY_BYTES_MAX - 1 - 2 - 5  # dict head, key "k", head of a long text
    call.append({"k": "x" * room}).result(HANG_S)
    for large in (
        {"k": "x" * (room + 1)},
        {"k": ["x" * (room + 1)]},
        {"k": "é" * (room // 2 + 1)},
        {"k": [b"x" * (room // 2), b"x" * (room // 2 + 9)]},
    ):
        with pytest.raises(LimitExceededError) as caught:
            call.append_many([{"ok": 1}, large])
        error = caught.value
        assert (error.name, error.limit) == ("BODY_BYTES_MAX", BODY_BYTES_MAX)
        assert error.actual > error.limit
        assert error.path is not None and error.path.startswith("$")
    info = call.info()
    assert info is not None
    assert info.event_count == 1, "nothing else of the batch was written"


def test_the_largest_metadata_and_one_byte_more(store: Store) -> None:
    call = store.session("s")
    room = METADATA_BYTES_MAX - 1 - 2 - 5
    call.append({}, metadata={"k": "x" * room}).result()
    with pytest.raises(LimitExceededError) as caught:
        call.append({}, metadata={"k": "x" * (room + 1)})
    assert caught.value.path is not None and caught.value.path.startswith("$metadata")
    assert call.event(0).metadata == {"k": "x" * room}
    with pytest.raises(LimitExceededError):
        store.session("new", metadata={"k": "x" * (room + 1)})


HUGE = """
import asyncio, resource, sys
from engine import Store
from eventlog.errors import LimitExceededError, TurnlogError

store = Store.open(sys.argv[1], map_bytes=64 << 20)
call = store.session("s")
huge = "x" * 10**9
raw = bytes(10**9)
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (300 << 20), now + (300 << 20)))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

ways = {
    "append": lambda: call.append({"content": huge}),
    "bytes": lambda: call.append({"content": [raw]}),
    "key": lambda: call.append({huge: 1}),
    "many": lambda: call.append_many([{"ok": 1}, {"content": [{"deep": huge}]}]),
    "event": lambda: call.append_event("note", huge),
    "metadata": lambda: call.append({}, metadata={"m": huge}),
    "draft": lambda: call.draft([{"content": huge}]),
    "large": lambda: asyncio.run(call.append_large({"content": huge})),
    "idempotency key": lambda: call.append({}, idempotency_key=huge),
    "id": lambda: call.append({}, id=huge),
    "kind": lambda: call.append_event(huge, 1),
    "run id": lambda: call.append({}, run_id=huge),
    "session name": lambda: store.session(huge),
    "title": lambda: store.session("t", title=huge),
    "user": lambda: store.session("t", user_id=huge),
}
for name, way in ways.items():
    try:
        way()
    except TurnlogError as error:
        large = isinstance(error, LimitExceededError)
        print(name, "|", "limit" if large else type(error).__name__, "|", len(str(error)) < 500)
    except BaseException as error:
        print(name, "|", type(error).__name__)
store.flush()
print("exists", call.exists)
store.close()
"""


def test_a_gigabyte_is_refused_without_a_copy(store_path: Path) -> None:
    """Also where a name was expected, and the error does not repeat it."""
    lines = run_script(HUGE, store_path).splitlines()
    assert lines[-1] == "exists False"
    well = (["limit", "True"], ["InvalidNameError", "True"])
    assert [line for line in lines[:-1] if line.split(" | ")[1:] not in well] == []
    assert len(lines) == 16


def test_the_largest_batch_and_one_more(store: Store) -> None:
    call = store.session("s")
    ack = call.append_many([{}] * BATCH_EVENTS_MAX).result(HANG_S)
    assert (ack.first, ack.last, ack.position) == (0, BATCH_EVENTS_MAX - 1, BATCH_EVENTS_MAX)
    calls: list[Callable[[], Any]] = [
        lambda: call.append_many([{}] * (BATCH_EVENTS_MAX + 1)),
        lambda: store.append_batch([call.draft([{}]), call.draft([{}] * BATCH_EVENTS_MAX)]),
    ]
    for append in calls:
        with pytest.raises(LimitExceededError) as caught:
            append()
        assert caught.value.name == "BATCH_EVENTS_MAX"
    with pytest.raises(LimitExceededError) as caught:
        call.append_many([{"content": "x" * (BODY_BYTES_MAX // 2)}] * 5)
    assert (caught.value.name, caught.value.limit) == ("BATCH_BYTES_MAX", BATCH_BYTES_MAX)
    assert store.flush(HANG_S) == BATCH_EVENTS_MAX


def test_empty_appends_are_refused(store: Store) -> None:
    call = store.session("s")
    calls: list[Callable[[], Any]] = [
        lambda: call.append_many([]),
        lambda: store.append_batch([]),
        lambda: store.append_batch([call.draft()]),
        lambda: call.append_many([{}], ids=[]),
        lambda: call.append_many([{}], ids=["a", "b"]),
    ]
    for append in calls:
        with pytest.raises(UsageError):
            append()
    assert not call.exists


@pytest.mark.parametrize("kind", ["", "k" * (KIND_BYTES_MAX + 1), "\ud800", 7, None], ids=repr)
def test_illegal_kinds_are_refused(store: Store, kind: Any) -> None:
    with pytest.raises(InvalidNameError):
        store.session("s").append_event(kind, 1)


def test_control_kinds_are_the_stores_own(store: Store) -> None:
    with pytest.raises(UsageError):
        store.session("s").append_event("open", None)
    store.session("s").append_event("k" * KIND_BYTES_MAX, 1).result()
    store.session("s").append_event("Open", 1).result()
    assert [event.kind for event in store.session("s").events()] == ["k" * KIND_BYTES_MAX, "Open"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("expected_head", -2),
        ("expected_head", True),
        ("expected_head", "0"),
        ("expected_head", 1.0),
        ("tokens", -1),
        ("tokens", 2**32),
        ("tokens", True),
        ("idempotency_key", ""),
        ("idempotency_key", "k" * (KEY_BYTES_MAX + 1)),
        ("idempotency_key", "\ud800"),
        ("idempotency_key", 7),
        ("id", ""),
        ("id", "i" * (NAME_BYTES_MAX + 1)),
        ("id", 7),
        ("id", "1f.0000000001"),
        ("id", "1.00000000001"),
        ("run_id", ""),
        ("turn_id", "\ud800"),
        ("speech_id", "s" * 513),
        ("request_id", 5),
        ("metadata", []),
        ("metadata", "x"),
    ],
)
def test_senseless_options_are_refused_at_once(store: Store, option: str, value: Any) -> None:
    with pytest.raises(UsageError):
        store.session("s").append({}, **{option: value})
    assert not store.session("s").exists


# Conditions


def test_the_expected_head_decides_not_the_clock(store: Store) -> None:
    """adk-python 4751: a stale handle interleaved two runners; adk-go 1229: it locked one out.

    Here the caller says which: a condition, or none.
    """
    first, second = store.session("s"), store.session("s")
    first.append({"by": 1}, expected_head=-1).result()
    with pytest.raises(AppendConflictError) as caught:
        second.append({"by": 2}, expected_head=-1).result()
    assert (caught.value.expected, caught.value.current) == (-1, 0)
    second.append({"by": 2}).result()  # unchecked: follows whatever is there
    with pytest.raises(AppendConflictError):
        first.append({"by": 1}, expected_head=0).result()
    first.append_event("my.metric", {"ms": 3}, expected_head=1).result()
    with pytest.raises(AppendConflictError):
        first.append({"by": 1}, expected_head=7).result()
    assert first.head == second.head == 2
    assert [event.parent for event in first.events()] == [None, 0, 1]


def test_conditions_within_one_commit_see_each_other(store: Store) -> None:
    call = store.session("s")
    with halted("commit.before_begin") as halt:
        store.session("other").append({})
        halt.wait_reached()
        acks = [call.append({"n": n}, expected_head=n - 1) for n in range(5)]
        late = call.append({"n": 9}, expected_head=2)
        empty = call.append({"n": 9}, expected_head=-1)
    assert [ack.result(HANG_S).first for ack in acks] == list(range(5))
    for ack in (late, empty):
        with pytest.raises(AppendConflictError) as caught:
            ack.result(HANG_S)
        assert caught.value.current == 4


def test_a_batch_over_sessions_is_all_or_nothing(store: Store) -> None:
    a, b, c = (store.session(name) for name in "abc")
    a.append({"n": 0}).result()
    ack = store.append_batch(
        [
            a.draft([{"n": 1}], expected_head=0),
            b.draft([{"n": 0}], events=[("label", "x")], expected_head=-1),
            c.draft(expected_head=-1),
        ]
    ).result(HANG_S)
    assert (ack.first, ack.last, ack.position) == (1, 1, 4)
    assert ack.event_id == b.event(1).event_id
    assert not c.exists, "a session that is only read is not made"
    for bad in (c.draft(expected_head=0), b.draft([{}], expected_head=0)):
        with pytest.raises(AppendConflictError):
            store.append_batch([a.draft([{"n": 2}]), bad]).result(HANG_S)
    assert [event.position for event in store.read()] == [1, 2, 3, 4]
    with pytest.raises(UsageError):
        store.append_batch([a.draft([{}]), store.tenant("t").session("a").draft([{}])])
    with pytest.raises(UsageError):
        store.append_batch([store.tenant("t").session("a").draft([{}])])


def test_a_batch_may_name_a_session_twice(store: Store) -> None:
    a = store.session("a")
    store.append_batch([a.draft([{"n": 0}]), a.draft([{"n": 1}, {"n": 2}])]).result(HANG_S)
    assert [event.parent for event in a.events()] == [None, 0, 1]
    assert [body["n"] for body in a.history()] == [0, 1, 2]


# Retries


def test_a_retry_with_its_key_is_stored_once(checked_store: Callable[..., Store]) -> None:
    """adk-python 4506, camunda 57363: retries stored the message twice."""
    store = checked_store(snapshot_frequency=3)
    call = store.session("s")
    first = call.append({"n": 0}, idempotency_key="k").result()
    assert not first.already
    for _ in range(3):
        again = call.append({"n": 0}, idempotency_key="k").result()
        assert again.already
        assert (again.first, again.last, again.position) == (first.first, first.last, 1)
        assert again.event_id == first.event_id
        call.append({"other": 1}).result()  # also once it is sealed
    with pytest.raises(IdempotencyConflictError) as caught:
        call.append({"n": 1}, idempotency_key="k").result()
    assert (caught.value.expected, caught.value.current) == ("k", 0)
    assert store.session("t").append({"n": 1}, idempotency_key="k").result().already is False
    assert [body for body in call.history() if "n" in body] == [{"n": 0}]


def test_a_key_is_found_before_the_head_is_compared(store: Store) -> None:
    """The retry of an append that succeeded must not fail on the head that it moved itself."""
    call = store.session("s")
    call.append({"n": 0}, expected_head=-1, idempotency_key="k").result()
    again = call.append({"n": 0}, expected_head=-1, idempotency_key="k").result()
    assert again.already and again.first == 0


def test_a_key_stands_for_a_whole_batch(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=2)
    call = store.session("s")
    call.append({}).result()
    messages = [{"n": n} for n in range(5)]
    ack = call.append_many(messages, idempotency_key="k").result()
    assert (ack.first, ack.last, ack.position) == (1, 5, 6)
    for _ in range(3):
        again = call.append_many(messages, idempotency_key="k").result()
        assert (again.first, again.last, again.position, again.already) == (1, 5, 6, True)
        call.append({}).result()
    for other in (messages[:4], [*messages, {}], messages[::-1]):
        with pytest.raises(IdempotencyConflictError):
            call.append_many(other, idempotency_key="k").result()
    with pytest.raises(IdempotencyConflictError):
        call.append(messages[0], idempotency_key="k").result()


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": {"a": 1}},
        {"time_us": 5},
        {"tokens": 7},
        {"id": "e"},
        {"run_id": "r"},
        {"turn_id": "t"},
    ],
    ids=str,
)
def test_what_is_said_about_an_event_is_content(store: Store, options: dict[str, Any]) -> None:
    call = store.session("s")
    call.append({"n": 0}, idempotency_key="k").result()
    with pytest.raises(IdempotencyConflictError):
        call.append({"n": 0}, idempotency_key="k", **options).result()
    call.append({"n": 1}, idempotency_key="l", **options).result()
    assert call.append({"n": 1}, idempotency_key="l", **options).result().already


def test_retries_within_one_commit(store: Store) -> None:
    call = store.session("s")
    with halted("commit.before_begin") as halt:
        store.session("other").append({})
        halt.wait_reached()
        first = call.append({"n": 0}, idempotency_key="k")
        again = call.append({"n": 0}, idempotency_key="k")
        other = call.append({"n": 1}, idempotency_key="k")
        named = [call.append({"n": 2}, id="e") for _ in range(2)]
        taken = call.append({"n": 3}, id="e")
        abroad = store.session("t").append({"n": 2}, id="e")
    assert (first.result(HANG_S).already, again.result(HANG_S).already) == (False, True)
    assert again.position == first.position == 2
    assert [ack.result(HANG_S).first for ack in named] == [1, 1]
    assert named[1].already and named[1].position == 3
    with pytest.raises(IdempotencyConflictError):
        other.result(HANG_S)
    for ack in (taken, abroad):
        with pytest.raises(DuplicateIdError):
            ack.result(HANG_S)
    assert len(call.history()) == 2


def test_a_key_and_ids_are_found_after_opening_again(store_path: Path) -> None:
    for frequency, path in ((1, store_path / "a"), (25, store_path / "b")):
        path.parent.mkdir(exist_ok=True)
        with Store.open(path, snapshot_frequency=frequency) as store:
            store.session("s").append({"n": 0}, idempotency_key="k", id="e").result()
            store.session("s").append_many([{"n": n} for n in range(3_000)]).result(HANG_S)
            store.session("s").append({"n": 1}, idempotency_key="l", id="f").result()
        with Store.open(path) as store:
            call = store.session("s")
            for n, key, id, sequence in ((0, "k", "e", 0), (1, "l", "f", 3_001)):
                again = call.append({"n": n}, idempotency_key=key, id=id).result()
                assert again.already and again.first == sequence
                assert call.append({"n": n}, id=id).result().already
                with pytest.raises(DuplicateIdError):
                    call.append({"n": 7}, id=id).result()
                with pytest.raises(IdempotencyConflictError):
                    call.append({"n": 7}, idempotency_key=key, id=id).result()
            assert call.info().event_count == 3_002  # type: ignore[union-attr]


def test_an_id_is_unique_within_its_tenant(store: Store) -> None:
    """FAULTS 56, 57: the same event again is a success, another one a conflict."""
    call = store.session("s")
    first = call.append({"n": 0}, id="e", metadata={"m": 1}, run_id="r").result()
    assert first.event_id == "e"
    again = call.append({"n": 0}, id="e", metadata={"m": 1}, run_id="r").result()
    assert again.already and again.position == first.position
    calls: list[Callable[[], Any]] = [
        lambda: call.append({"n": 1}, id="e", metadata={"m": 1}, run_id="r"),
        lambda: call.append({"n": 0}, id="e", metadata={"m": 2}, run_id="r"),
        lambda: call.append({"n": 0}, id="e", run_id="r"),
        lambda: call.append({"n": 0}, id="e", metadata={"m": 1}),
        lambda: call.append_event("event", {"n": 0}, id="e", metadata={"m": 1}, run_id="r"),
        lambda: store.session("t").append({"n": 0}, id="e", metadata={"m": 1}, run_id="r"),
    ]
    for other in calls:
        with pytest.raises(DuplicateIdError) as caught:
            other().result()
        assert (caught.value.expected, caught.value.current) == ("e", ("s", 0))
    assert not store.tenant("t").session("s").append({"n": 1}, id="e").result().already
    assert len(call.history()) == 1


def test_a_batch_with_known_ids_is_a_retry_only_as_a_whole(store: Store) -> None:
    call = store.session("s")
    messages = [{"n": n} for n in range(3)]
    call.append_many(messages, ids=["a", "b", "c"]).result()
    again = call.append_many(messages, ids=["a", "b", "c"]).result()
    assert (again.first, again.last, again.already) == (0, 2, True)
    part = call.append_many(messages[1:], ids=["b", "c"]).result()
    assert (part.first, part.last, part.already) == (1, 2, True)
    for bodies, ids in (
        ([*messages, {"n": 3}], ["a", "b", "c", "d"]),
        (messages, ["a", "b", None]),
        (messages[::2], ["a", "c"]),
        ([{"n": 9}, {"n": 9}], ["x", "x"]),
        (messages[::-1], ["c", "b", "a"]),
    ):
        with pytest.raises(DuplicateIdError):
            call.append_many(bodies, ids=ids).result()
    assert call.info().event_count == 3  # type: ignore[union-attr]


def test_what_an_ack_says_is_what_is_read(store: Store) -> None:
    call = store.session("s")
    for ack in (
        call.append({"n": 0}),
        call.append({"n": 1}, id="mine"),
        call.append_event("note", [1], turn_id="t", tokens=3),
        call.append_many([{"n": 2}, {"n": 3}], ids=[None, "last"]),
    ):
        ack.result(HANG_S)
        event = call.event(ack.last)
        assert (event.position, event.event_id) == (ack.position, ack.event_id)
    assert call.event(1).id == "mine" and call.event(0).id is None
    assert call.event(2).turn_id == "t" and call.event(2).tokens == 3


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["a", "a:", "a\x00", "é", "e\u0301"]), max_size=8))
def test_sessions_with_related_names_never_meet(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    """FAULTS 61 to 63, USERS 53: a prefix, a separator or a normal form joins nothing."""
    path = tmp_path_factory.getbasetemp() / "names"
    with Store.open(path) as store:
        for name in names:
            before = len(store.session(name).history())
            store.session(name).append({"name": name}).result(HANG_S)
            assert store.session(name).history() == [{"name": name}] * (before + 1)
