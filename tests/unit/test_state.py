"""State and time of a session: variables, logical roll-ups, the trimmed view, and the past.

The model below is the whole of it in plain Python; a session has to agree with it after each of its
events, now and later, whatever was sealed, reopened, or written by another process.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import (
    AppendConflictError,
    ConflictError,
    IdempotencyConflictError,
    InvalidMessageError,
    SessionGoneError,
    SessionNotFoundError,
    Store,
    TrimmedError,
    UsageError,
    Variable,
)
from engine.fold import Fold
from engine.session import Session
from eventlog import lookups
from tests.format.values import identical
from tests.model.actors import Workers
from tests.model.operations import Append, New
from tests.model.staging import HANG_S, halted
from tests.unit.belongings import fill


@dataclass(frozen=True)
class Moment:
    """What a session is after one of its events."""

    state: dict[str, Any] = field(default_factory=dict)
    view: tuple[int, ...] = ()
    messages: int = 0
    head: int | None = None
    loose: int = 0


class Model:
    """A session in plain Python; ``moments`` has one for each event."""

    def __init__(self, frequency: int, max_messages: int | None) -> None:
        self.frequency = frequency
        self.max_messages = max_messages
        self.moments: list[Moment] = []

    @property
    def now(self) -> Moment:
        return self.moments[-1] if self.moments else Moment()

    def message(self) -> int:
        """One message of an append; gives its number."""
        now = self.now
        self.moments.append(
            replace(
                now,
                view=(*now.view, now.messages),
                messages=now.messages + 1,
                head=len(self.moments),
                loose=now.loose + 1,
            )
        )
        return now.messages

    def other(self) -> None:
        self.moments.append(replace(self.now, head=len(self.moments)))

    def update(self, changes: dict[str, Any], delete: list[str]) -> None:
        state = {**self.now.state, **changes}
        for key in delete:
            state.pop(key, None)
        self.moments.append(replace(self.now, state=dict(sorted(state.items()))))

    def end_append(self, *, forced: bool = False) -> None:
        now = self.now
        if forced or now.loose >= self.frequency:
            view = now.view if self.max_messages is None else now.view[-self.max_messages :]
            self.moments[-1] = replace(now, view=view, loose=0)


def moment_of(session: Session, at: int | None = None) -> Moment:
    """The same as the session tells it, now or as of an event."""
    past: Any = session if at is None else session.at(at)
    info = past.info()
    assert info is not None
    if at is not None:
        assert (past.head, past.message_count) == (info.head, info.message_count)
        assert info.last_sequence == past.sequence == at
        assert [event.sequence for event in past.events()] == list(range(at + 1))
    view = [body["n"] for body in past.history()]
    for limit in (0, 1, 3, len(view) + 2):
        assert [body["n"] for body in past.history(limit)] == (view[-limit:] if limit else [])
    state = past.state
    variables = past.variables()
    assert [(each.key, each.value) for each in variables] == list(state.items())
    return Moment(state, tuple(view), info.message_count, info.head, info.loose_count)


def assert_same(session: Session, model: Model, *, every: int = 1) -> None:
    assert identical(moment_of(session).__dict__, model.now.__dict__)
    for sequence in range(0, len(model.moments), every):
        assert identical(moment_of(session, sequence).__dict__, model.moments[sequence].__dict__)


KEYS = ("a", "b", "mood.now", "mood.then", "é")
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.floats()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=3,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 7)),
        st.tuples(st.just("event"), st.none()),
        st.tuples(
            st.just("update"),
            st.tuples(
                st.dictionaries(st.sampled_from(KEYS), values, max_size=3),
                st.sets(st.sampled_from(KEYS), max_size=2),
            ),
        ),
        st.tuples(st.just("roll up"), st.none()),
        st.tuples(st.just("flush"), st.none()),
    ),
    max_size=25,
)


def perform(session: Session, model: Model, step: tuple[str, Any], store: Store) -> None:
    what, argument = step
    if what == "append":
        session.append_many([{"n": model.message()} for _ in range(argument)])
        model.end_append()
    elif what == "event":
        session.append_event("event", {"type": "tick"})
        model.other()
        model.end_append()
    elif what == "update":
        changes, deleted = argument
        delete = sorted(deleted - changes.keys())
        session.update_state(changes, delete=delete)
        if changes or delete:
            model.update(changes, delete)
            model.end_append()
    elif what == "roll up":
        session.roll_up().result(HANG_S)
        if model.moments:
            model.moments.append(model.now)
            model.end_append(forced=True)
    else:
        store.flush(HANG_S)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=steps,
    frequency=st.sampled_from([1, 2, 5, 25]),
    max_messages=st.sampled_from([None, 1, 3]),
    own=st.booleans(),
)
def test_every_moment_of_a_session_stays_what_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, Any]],
    frequency: int,
    max_messages: int | None,
    own: bool,
) -> None:
    path = tmp_path_factory.mktemp("state") / "store"
    model = Model(frequency, max_messages)
    options = {"snapshot_frequency": frequency, "max_messages": max_messages}
    with Store.open(path, **({} if own else options)) as store:
        session = store.session("s", **(options if own else {}))  # type: ignore[arg-type]
        for step in steps:
            perform(session, model, step, store)
            if step[0] == "flush" and model.moments:
                assert_same(session, model, every=3)
        store.flush(HANG_S)
        assert session.exists is bool(model.moments)
        if model.moments:
            assert_same(session, model)
    with Store.open(path) as store:
        if model.moments:
            session = store.session("s")
            assert_same(session, model)
            session.append({"n": model.message()}).result(HANG_S)
            model.end_append()
            assert_same(session, model, every=4)
        assert store.check().findings == []


def test_a_session_that_does_not_exist_has_no_state(store: Store) -> None:
    call = store.session("nobody")
    assert (call.state, call.variables(), call.history()) == ({}, [], [])
    ack = call.roll_up().result(HANG_S)
    assert (ack.first, ack.last, ack.position, ack.event_id) == (-1, -1, 0, "")
    assert not call.exists and store.last_position == 0
    with pytest.raises(SessionNotFoundError):
        call.at(0)


def test_update_state_creates_the_session_and_merges_shallowly(store: Store) -> None:
    """A18 to A20 of the contracts: values are replaced whole, None is a value."""
    call = store.session("s", user_id="u7")
    first = call.update_state({"a": {"x": 1}}).result(HANG_S)
    assert (first.first, first.last) == (0, 0)
    call.update_state({"a": {"y": 2}, "b": None}).result(HANG_S)
    assert call.state == {"a": {"y": 2}, "b": None}
    info = call.info()
    assert info is not None
    assert (info.user_id, info.head, info.message_count, info.event_count) == ("u7", None, 0, 2)
    assert info.updated_us >= info.created_us
    call.update_state({}, delete=["a", "never there"]).result(HANG_S)
    assert call.state == {"b": None}
    assert [event.body for event in call.events(kinds=["variables"])] == [
        {"set": {"a": {"x": 1}}},
        {"set": {"a": {"y": 2}, "b": None}},
        {"delete": ["a", "never there"]},
    ]


def test_what_a_caller_changes_later_changes_nothing(store: Store) -> None:
    call = store.session("s")
    given = {"list": [1, {"deep": [2]}]}
    ack = call.update_state(given)
    given["list"].append(3)
    ack.result(HANG_S)
    found = call.state
    assert found == {"list": [1, {"deep": [2]}]}
    found["list"][1]["deep"].append(4)
    found["more"] = 1
    at = call.at(0)
    at.variables()[0].value.clear()
    assert call.state == at.state == {"list": [1, {"deep": [2]}]}


def test_a_variable_knows_when_it_was_set(store: Store) -> None:
    call = store.session("s")
    call.append({"n": 0})
    call.update_state({"a": 1, "b": 1}).result(HANG_S)
    call.update_state({"b": 2}).result(HANG_S)
    events = {event.sequence: event.recorded_us for event in call.events()}
    for _ in range(2):
        assert call.variables() == [
            Variable("a", 1, events[1], 1),
            Variable("b", 2, events[2], 2),
        ]
        store.flush(HANG_S)
    assert [each.key for each in call.variables("b")] == ["b"]
    assert call.variables("c") == []


@pytest.mark.parametrize(
    ("changes", "delete", "error"),
    [
        pytest.param({"": 1}, [], UsageError, id="empty-key"),
        pytest.param({"k" * 513: 1}, [], UsageError, id="long-key"),
        pytest.param({"\ud83d": 1}, [], UsageError, id="surrogate-key"),
        pytest.param({1: 1}, [], UsageError, id="number-key"),
        pytest.param({"a": 1}, ["a"], UsageError, id="set-and-deleted"),
        pytest.param({}, ["a", "a"], UsageError, id="deleted-twice"),
        pytest.param({}, [""], UsageError, id="delete-empty"),
        pytest.param({}, "ab", UsageError, id="delete-text"),
        pytest.param([("a", 1)], [], UsageError, id="pairs"),
        pytest.param({"a": object()}, [], InvalidMessageError, id="object"),
        pytest.param({"a": {"b": {1}}}, [], InvalidMessageError, id="set"),
    ],
)
def test_a_senseless_change_is_refused_at_once(
    store: Store, changes: Any, delete: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        store.session("s").update_state(changes, delete=delete)
    assert store.last_position == 0


def test_the_longest_key_is_taken(store: Store) -> None:
    call = store.session("s")
    keys = ["k" * 512, "é" * 256, "\x00", "../x", "😀" * 128]
    call.update_state(dict.fromkeys(keys, 1)).result(HANG_S)
    store.flush(HANG_S)
    assert call.state == dict.fromkeys(sorted(keys), 1)


def test_a_retry_of_a_change_is_one_change(store: Store) -> None:
    call = store.session("s")
    one = call.update_state({"a": 1}, idempotency_key="k").result(HANG_S)
    again = call.update_state({"a": 1}, idempotency_key="k").result(HANG_S)
    assert (again.already, again.first) == (True, one.first)
    with pytest.raises(ConflictError):
        call.update_state({"a": 2}, idempotency_key="k").result(HANG_S)
    with pytest.raises(ConflictError):
        call.update_state({"a": 2}, expected_head=3).result(HANG_S)
    call.append({}).result(HANG_S)
    call.update_state({"a": 2}, expected_head=1).result(HANG_S)
    assert call.state == {"a": 2} and call.head == 1


def test_lengths_of_a_trimmed_view(checked_store: Callable[..., Store]) -> None:
    """A15: frequency 5, two messages kept."""
    call = checked_store(snapshot_frequency=5, max_messages=2).session("s")
    lengths = []
    for number in range(11):
        call.append({"n": number}).result(HANG_S)
        lengths.append(len(call.history()))
    assert lengths == [1, 2, 3, 4, 2, 3, 4, 5, 6, 2, 3]
    assert [event.body["n"] for event in call.events()] == list(range(11))


def test_a_batch_rolls_up_once_at_its_end(checked_store: Callable[..., Store]) -> None:
    """A11, A12."""
    store = checked_store()
    call = store.session("s", snapshot_frequency=5)
    call.append_many([{"n": number} for number in range(12)]).result(HANG_S)
    assert _loose(call) == 0
    assert [call.at(sequence).info().loose_count for sequence in (3, 4, 10, 11)] == [4, 5, 11, 0]
    usual = store.session("usual")
    for _ in range(24):
        usual.append({})
    usual.append_event("event", {}).result(HANG_S)
    assert _loose(usual) == 24
    usual.append({}).result(HANG_S)
    assert _loose(usual) == 0


def _loose(session: Session) -> int:
    info = session.info()
    assert info is not None
    return info.loose_count


def test_what_was_trimmed_stays_so_when_more_is_kept(store_path: Path) -> None:
    with Store.open(store_path, snapshot_frequency=2) as store:
        call = store.session("s", max_messages=2)
        for number in range(4):
            call.append({"n": number})
        store.flush(HANG_S)
        assert [body["n"] for body in call.history()] == [2, 3]
        other = store.session("t")
        for number in range(4):
            other.append({"n": number})
        store.flush(HANG_S)
        assert len(other.history()) == 4
    with Store.open(store_path) as store:
        # The handle's options are those of creation; these are passed over.
        call = store.session("s", max_messages=100, snapshot_frequency=1)
        call.append({"n": 4}).result(HANG_S)
        assert [body["n"] for body in call.history()] == [2, 3, 4]
        call.append({"n": 5}).result(HANG_S)
        assert [body["n"] for body in call.history()] == [4, 5]
        assert store.check().ok


@pytest.mark.parametrize("wrong", [{"max_messages": 0}, {"snapshot_frequency": 0}], ids=str)
def test_a_senseless_option_of_a_session_is_refused(store: Store, wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        store.session("s", **wrong)  # type: ignore[arg-type]


def test_options_of_a_session_travel_with_an_export(
    checked_store: Callable[..., Store], tmp_path: Path
) -> None:
    from engine.export import line_mapping

    store = checked_store(tmp_path / "one")
    call = store.session("s", snapshot_frequency=3, max_messages=2)
    for number in range(5):
        call.append({"n": number})
    call.update_state({"a": b"\x00", "b": float("nan")}, delete=["c"])
    call.roll_up().result(HANG_S)
    lines = [line_mapping(event, event.opening) for event in store.read()]
    copy = checked_store(tmp_path / "two")
    copy.load(lines)
    again = copy.session("s")
    assert [line_mapping(event, event.opening) for event in copy.read()] == lines
    assert identical(again.state, call.state)
    assert again.history() == call.history() == [{"n": 3}, {"n": 4}]
    assert copy.load(lines).loaded == 0


@pytest.mark.parametrize(
    "body",
    [None, [], {"set": []}, {"set": {"": 1}}, {"delete": {}}, {"delete": [1]}, {"put": {}}],
    ids=str,
)
def test_a_line_with_no_change_is_refused(store: Store, body: Any) -> None:
    from engine import DamagedInputError

    with pytest.raises(DamagedInputError):
        store.load([{"session": "s", "kind": "variables", "body": body}])
    assert store.last_position == 0


def test_at_finds_a_time(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=3)
    lines = [
        {"session": "s", "kind": "message", "body": {"n": number}, "recorded_us": time_us}
        for number, time_us in enumerate([10, 10, 20, 30, 30, 40, 50, 60, 70])
    ]
    store.load(lines[:6])
    store.flush(HANG_S)
    for line in lines[6:]:
        store.load([{**line, "sequence": lines.index(line)}])
    call = store.session("s")
    expected = {9: None, 10: 1, 19: 1, 20: 2, 30: 4, 39: 4, 45: 5, 50: 6, 65: 7, 70: 8, 2**62: 8}
    for time_us, sequence in expected.items():
        if sequence is None:
            with pytest.raises(UsageError):
                call.at(time_us=time_us)
        else:
            assert call.at(time_us=time_us).sequence == sequence, time_us


@pytest.mark.parametrize(
    "arguments", [{}, {"sequence": 0, "time_us": 0}, {"sequence": -1}, {"sequence": 3}], ids=str
)
def test_at_needs_an_event_that_is_there(store: Store, arguments: dict[str, int]) -> None:
    call = store.session("s")
    call.append_many([{}] * 3).result(HANG_S)
    with pytest.raises(UsageError):
        call.at(**arguments)


def test_the_past_of_a_long_session_takes_few_segments(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments without what is asked for are passed over by their prefix."""
    from eventlog import segmentcache

    decoded: list[bytes] = []
    decode = segmentcache.decode_segment

    def counted(key: bytes, *rest: Any) -> Any:
        decoded.append(key)
        return decode(key, *rest)

    monkeypatch.setattr(segmentcache, "decode_segment", counted)
    store = checked_store(max_messages=10)
    call = store.session("s")
    call.update_state({"a": 0})
    for start in range(0, 20_000, 2_000):
        call.append_many([{"n": start + number, "text": "x" * 40} for number in range(2_000)])
    call.update_state({"a": 1}).result(HANG_S)
    store.flush(HANG_S)
    info = call.info()
    assert info is not None and info.unsealed_count < 2_000
    assert store.stats()["segments"] > 20
    past = call.at(12_345)
    assert past.state == {"a": 0}
    assert (past.message_count, past.head) == (12_345, 12_345)
    assert past.history(3)[-1]["n"] == 12_344
    assert len(past.history()) == 12_345 - 12_000 + 10
    assert call.at(time_us=call.event(12_345).recorded_us).sequence >= 12_345
    assert len(set(decoded)) <= 8
    del decoded[:]
    assert call.at(12_346).state == past.state  # from the fold in memory
    assert len(set(decoded)) <= 1
    memory = store.stats()["memory"]
    assert 0 < memory["fold_bytes"] <= memory["fold_bytes_max"]


def test_only_changed_variables_are_written(checked_store: Callable[..., Store]) -> None:
    """A snapshot of all of them at each roll-up would be 5,000 rows; so much is one row."""
    store = checked_store(snapshot_frequency=5)
    call = store.session("s")
    call.update_state({f"v{number}": "x" * 50 for number in range(5_000)}).result(HANG_S)
    call.append_many([{}] * 5).result(HANG_S)
    store.flush(HANG_S)
    info = call.info()
    assert info is not None and info.unsealed_count == 0
    written: list[int] = []
    from eventlog.tables import WriteTables

    put = WriteTables.put_state
    try:
        WriteTables.put_state = lambda self, items: (  # type: ignore[method-assign]
            written.append(len(items)),
            put(self, items),
        )[1]
        for number in range(20):
            call.append({"n": number})
            call.update_state({f"v{number}": number}).result(HANG_S)
        store.flush(HANG_S)
    finally:
        WriteTables.put_state = put  # type: ignore[method-assign]
    assert 0 < sum(written) <= 20
    assert call.state["v3"] == 3 and call.state["v4000"] == "x" * 50 and len(call.state) == 5_000
    assert call.at(0).state["v3"] == "x" * 50


def test_two_processes_share_a_session_s_state(
    checked_store: Callable[..., Store], store_path: Path
) -> None:
    """One process changes variables and seals, the other reads and changes them too."""
    workers = Workers()
    store = checked_store(snapshot_frequency=2, max_messages=3)
    call = store.session("s")
    call.update_state({"a": 0}).result(HANG_S)
    other = workers.start()
    try:
        for number in range(12):
            other.perform(store_path, Append("", "s", (New({"n": number}),)))
            call.update_state({"a": number, f"k{number}": number}).result(HANG_S)
            store.flush(HANG_S)
            assert call.state["a"] == number
            assert len(call.state) == number + 2
            assert call.at(2 * number + 2).state == call.state
            expected = [{"n": each} for each in range(number + 1)]
            kept = expected if number < 3 else expected[-3 - (number + 1) % 2 :]
            assert call.history() == kept
    finally:
        other.close()
        workers.close()


def test_options_that_change_count_from_the_next_append_on(
    checked_store: Callable[..., Store], store_path: Path
) -> None:
    """Also in a process that had the store open before; what was rolled up stays as it was."""
    workers = Workers()
    store = checked_store(snapshot_frequency=3)
    other = workers.start()
    try:
        call = store.session("s")

        def send(count: int, *, there: bool = False) -> list[int]:
            lengths = []
            for _ in range(count):
                if there:
                    other.perform(store_path, Append("", "s", (New({}),)))
                else:
                    call.append({}).result(HANG_S)
                lengths.append(len(call.history()))
            return lengths

        assert send(4) == [1, 2, 3, 4]
        assert send(1, there=True) == [5]
        before = [call.at(sequence).history() for sequence in range(5)]
        store.configure(snapshot_frequency=2, max_messages=4)
        assert send(1, there=True) == [4]
        assert send(4) == [5, 4, 5, 4]
        other.close()
        store.configure(max_messages=None)
        assert send(5) == [5, 6, 7, 8, 9]
        store.configure(max_messages=1)
        assert send(2) == [1, 2]
        assert [call.at(sequence).history() for sequence in range(5)] == before
        assert [len(call.at(sequence).history()) for sequence in range(5, 12)] == [
            *(4, 5, 4, 5, 4, 5, 6)
        ]
        store.flush(HANG_S)
    finally:
        other.close()
        workers.close()


@pytest.mark.parametrize("floor", [1, 7, 19, 30])
def test_a_purged_session_begins_with_its_base(
    checked_store: Callable[..., Store], store_path: Path, floor: int
) -> None:
    """State and time start from the fold that the purge left, whatever of it is sealed."""
    store = checked_store(snapshot_frequency=4, max_messages=5)
    model = Model(4, 5)
    call = store.session("s")
    hard = ["\ud83d", {"\udc00": b"\xff"}, struct.unpack(">d", b"\xff\xf8" + bytes(6))[0]]
    for number in range(10):
        for step in (
            ("append", 1),
            ("update", ({f"k{number % 4}": hard, "all": number}, {f"k{(number + 1) % 4}"})),
            ("append", 1),
        ):
            perform(call, model, step, store)
    store.session("other").append({}).result(HANG_S)
    if floor < 25:
        store.flush(HANG_S)
    call.purge(floor).result(HANG_S)
    model.moments.append(model.now)
    for again in range(3):
        assert identical(moment_of_purged(call, floor, model), [])
        for sequence in (0, floor - 1):
            with pytest.raises(TrimmedError) as caught:
                call.at(sequence)
            assert caught.value.first == floor
        assert store.check().findings == []
        if again == 0:
            for _ in range(9):
                perform(call, model, ("append", 1), store)
            store.flush(HANG_S)
        elif again == 1:
            assert store.rebuild().tables
            assert store.check().findings == []
            store._folds.clear()


def test_folds_of_an_erased_session_leave_memory(store: Store) -> None:
    call = store.session("s")
    call.update_state({"secret": "canary"}).result(HANG_S)
    assert call.state and store.stats()["memory"]["fold_bytes"]
    past = call.at(0)
    call.erase(HANG_S)
    assert store.stats()["memory"]["fold_bytes"] == 0
    assert (call.state, call.variables(), call.exists) == ({}, [], False)
    with pytest.raises(SessionGoneError):
        past.state  # noqa: B018
    call.update_state({"new": 1}).result(HANG_S)
    assert call.state == {"new": 1} and call.at(0).state == {"new": 1}
    with pytest.raises(SessionGoneError):
        past.history()


@pytest.mark.parametrize("way", ["erase", "delete", "made-anew", "purge"])
def test_a_moment_that_was_read_before_tells_nothing_of_what_was_removed(
    store: Store, way: str
) -> None:
    """A moment kept its fold, and told erased data after ``erase`` had returned."""
    call = fill(store.session("s"))
    call.update_state({"secret": "canary"}).result(HANG_S)
    sequence = call.info().last_sequence  # type: ignore[union-attr]
    past = call.at(sequence)
    reads: dict[str, Callable[[], Any]] = {
        "state": lambda: past.state,
        "variables": past.variables,
        "facts": lambda: past.facts,
        "documents": past.documents.list,
        "document": lambda: past.documents.read("NOTES.md"),
        "artifacts": past.artifacts.list,
        "artifact": lambda: past.artifacts.read("out"),
        "versions": lambda: past.artifacts.versions("out"),
        "runs": past.runs.list,
        "calls": past.tool_calls.list,
        "usage": past.usage,
        "history": past.history,
        "info": past.info,
    }
    for read in reads.values():
        assert read()
    call.append({"n": 1}).result(HANG_S)
    if way == "erase":
        call.erase(HANG_S)
    elif way == "purge":
        call.purge(sequence + 2).result(HANG_S)
    else:
        call.delete().result(HANG_S)
    if way == "made-anew":
        fill(call).update_state({"secret": "new"}).result(HANG_S)
    told = []
    error: type[Exception] = TrimmedError if way == "purge" else SessionGoneError
    for name, read in reads.items():
        with suppress(error):
            told.append((name, read()))
    assert told == [] and past._fold is None


def moment_of_purged(call: Session, floor: int, model: Model) -> list[int]:
    """Sequences from the floor on at which a purged session is not what it was."""
    wrong = []
    for sequence in range(floor, len(model.moments)):
        past, moment = call.at(sequence), model.moments[sequence]
        view = [body["n"] for body in past.history()]
        told = {"state": past.state, "head": past.head, "messages": past.message_count}
        wanted = {"state": moment.state, "head": moment.head, "messages": moment.messages}
        if not identical(told, wanted) or view != list(moment.view)[len(moment.view) - len(view) :]:
            wrong.append(sequence)
    return wrong


def test_the_twins_for_asyncio_say_the_same(store: Store) -> None:
    call = store.session("s")
    call.update_state({"a": 1}).result(HANG_S)

    async def ask() -> None:
        assert await call.state_async() == call.state
        assert await call.variables_async() == call.variables()
        assert (await call.at_async(0)).state == call.state

    asyncio.run(ask())


def test_a_moment_of_a_session_is_immutable(store: Store) -> None:
    call = store.session("s")
    call.append({"n": 0}).result(HANG_S)
    past = call.at(0)
    before = (past.info(), past.state, past.history(), [event.body for event in past.events()])
    call.append_many([{"n": 1}] * 30)
    call.update_state({"a": 1}).result(HANG_S)
    store.flush(HANG_S)
    after = (past.info(), past.state, past.history(), [event.body for event in past.events()])
    assert before == after


def test_an_empty_change_writes_nothing(store: Store) -> None:
    """An update that set and deleted nothing appended an event with an empty body. It made a
    session, and took a sequence and a position, for nothing.
    """
    call = store.session("s")
    ack = call.update_state({}).result(HANG_S)
    assert (ack.first, ack.last, ack.position, ack.event_id) == (-1, -1, 0, "")
    assert not call.exists and store.last_position == 0
    call.update_state({"a": 1}, idempotency_key="k").result(HANG_S)
    call.append({"role": "user", "content": "x"}).result(HANG_S)
    for conditions in ({"expected_head": 1}, {"idempotency_key": "new"}, {"ack": "queued"}):
        call.update_state({}, delete=(), **conditions)  # type: ignore[arg-type]
    store.flush()
    with pytest.raises(AppendConflictError):
        call.update_state({}, expected_head=-1).result(HANG_S)
    with pytest.raises(IdempotencyConflictError):
        call.update_state({}, idempotency_key="k").result(HANG_S)
    late = [call.update_state({}) for _ in range(100)]
    assert {ack.result(HANG_S).last for ack in late} == {-1}
    assert store.last_position == 2
    assert call.update_state({"b": 1}, idempotency_key="new").result(HANG_S).last == 2


def test_a_past_without_changes_since_is_read_from_the_rows(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state after an event was folded from the start, whatever came after it. Where nothing
    changed a variable since, the rows tell it, and no event of before is read.
    """
    store = checked_store()
    call = store.session("s")
    for number in range(200):
        call.update_state({f"k{number % 7}": number}, delete=[f"k{(number + 1) % 7}"][: number % 2])
        call.append({"n": number}).result(HANG_S)
    early, wanted = call.at(201).state, call.state
    for number in range(300):
        call.append({"n": number})
    call.roll_up().result(HANG_S)
    call.append({"n": -1}).result(HANG_S)
    store.flush()
    store.close()
    Store.vacuum(store.path)  # seals everything
    store = checked_store()
    call = store.session("s")
    read: list[int] = []
    after = Fold.after

    def counting(fold: Fold, events: Any, sequence: int) -> Fold:
        events = list(events)
        read.extend(event.sequence for event in events)
        return after(fold, events, sequence)

    monkeypatch.setattr(Fold, "after", counting)
    for sequence in (500, 420, 399, 398):
        store._folds.clear()
        assert call.at(sequence).state == wanted
        assert not read
    store._folds.clear()
    assert call.at(201).state == early
    assert read == list(range(0, 202, 2))[: len(read)] and read


# Versions


@pytest.mark.parametrize("sealed", [False, True])
def test_a_variable_is_changed_only_if_it_has_the_expected_version(
    checked_store: Callable[..., Store], sealed: bool
) -> None:
    """Two runs that both read 1 and both wrote 2 lost one of the two changes."""
    store = checked_store(snapshot_frequency=1)
    call = store.session("call")
    first = call.update_state({"n": 1}, expected={"n": -1}).result().last
    call.append({"role": "user"}).result()
    if sealed:
        store.flush()
    (variable,) = call.variables()
    assert variable.sequence == first
    one = call.update_state({"n": 2}, expected={"n": first})
    two = call.update_state({"n": 2}, expected={"n": first})
    assert one.result().last == first + 2
    with pytest.raises(AppendConflictError, match=f"has version {first + 2}, not {first}"):
        two.result()
    with pytest.raises(AppendConflictError):
        call.update_state({"n": 3}, expected={"n": -1}).result()
    call.update_state({}, delete=["n"], expected={"n": first + 2}).result()
    with pytest.raises(AppendConflictError, match="does not exist; version"):
        call.update_state({"m": 3}, expected={"n": first + 2}).result()
    call.update_state({"m": 3}, expected={"n": -1, "m": -1}).result()
    assert call.state == {"m": 3}


def test_the_versions_of_a_batch_look_at_each_event_once(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand changes with a condition, sent at once, held the writer for four seconds."""
    call = checked_store().session("call")
    count = 100
    loose = [call.update_state({f"l{each}": each}) for each in range(count)][-1].result(HANG_S)
    seen: list[int] = []
    decode = lookups.decode_record

    def counted(origin: Any, position: int, value: bytes, factory: Any) -> Any:
        seen.append(position)
        return decode(origin, position, value, factory)

    monkeypatch.setattr(lookups, "decode_record", counted)
    with halted("commit.before_begin") as halt:
        first = call.append({"role": "user"})
        halt.wait_reached()
        acks = [
            call.update_state(
                {f"k{each}": each}, expected={f"k{each}": -1, f"l{count - 1}": loose.last}
            )
            for each in range(count)
        ]
        late = call.update_state({"k0": 9}, expected={"k0": -1})
    first.result(HANG_S)
    with pytest.raises(AppendConflictError):
        late.result(HANG_S)
    assert [ack.result(HANG_S).last for ack in acks] == [count + 1 + each for each in range(count)]
    assert len(seen) < 5 * count


def test_versions_that_cannot_be_fail_at_the_call(checked_store: Callable[..., Store]) -> None:
    call = checked_store().session("call")
    for wrong in ({"n": -2}, {"n": None}, {"": 1}, ["n"]):
        with pytest.raises(UsageError):
            call.update_state({"n": 1}, expected=wrong)  # type: ignore[arg-type]
    assert not call.exists
