"""Reads of the present: one row alone by its key, and all rows in pages, while others write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import ConflictError, SessionGoneError, Store, TrimmedError, UsageError
from engine.fold import FoldCache
from engine.session import Session
from engine.spaces import Space
from engine.state import read_fold
from engine.staterows import StateRows
from engine.variables import decode_row, subkey_of
from eventlog.errors import CorruptionError
from eventlog.past import Past
from eventlog.present import PresentRows
from tests.damaged_store import flipped, put, rows
from tests.model.staging import HANG_S

Open = Callable[..., Store]
OFTEN = {"snapshot_frequency": 2}  # so that ``flush`` seals


@pytest.fixture
def no_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for states that are too large to be kept."""
    monkeypatch.setattr(FoldCache, "add", lambda *_: None)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Parts of states of which a page of rows was read, two rows each."""
    read: list[int] = []
    real = StateRows.read

    def spy(self: StateRows, past: Past) -> None:
        read.append(self._prefix[-1] if len(self._prefix) == 9 else 0)
        real(self, past)

    monkeypatch.setattr("engine.staterows.STATE_PAGE_ROWS", 2)
    monkeypatch.setattr(StateRows, "read", spy)
    return read


def filled(store: Store, name: str = "a", count: int = 7) -> Session:
    """A session with several values in each space; sealed."""
    call = store.session(name)
    call.append({"n": 0}).result(HANG_S)
    for number in range(count):
        call.update_state({f"v{number}": number})
        call.runs.begin(f"r{number}")
        call.tool_calls.open(f"t{number}", "tool")
        call.documents.write(f"d{number}", f"text {number}")
        call.artifacts.write(f"a{number}", f"made {number}")
        call.name_branch(f"b{number}")
        call.record_usage(input_tokens=number).result(HANG_S)
    store.flush(HANG_S)
    info = call.info()
    assert info is not None and info.unsealed_count == 0
    return call


def test_one_value_is_one_row(checked_store: Open, no_folds: None, pages: list[int]) -> None:
    """A read of one run of a large state read all rows of the session, in one transaction, each
    time. They lie under a digest of their key, so that one is found by itself.
    """
    store = checked_store(**OFTEN)
    call = filled(store)
    pages.clear()
    run = call.runs.get("r3")
    assert run is not None and run.status == "running"
    tool = call.tool_calls.get("t3")
    assert tool is not None and tool.state == "open"
    assert call.runs.get("none") is None and call.tool_calls.get("none") is None
    assert call.documents.read("d3") == "text 3" and call.documents.read("none") is None
    version = next(event.sequence for event in call.events(kinds=["artifacts"]))
    assert call.artifacts.read("a0", version) == "made 0"
    assert call.artifacts.read("a0", version + 1) is call.artifacts.read("a1", version) is None
    assert call.path("b3").events[-1].body == {"n": 0}
    call.runs.end("r3").result(HANG_S)  # what is loose lies on top
    assert call.runs.get("r3").status == "succeeded"  # type: ignore[union-attr]
    call.runs.begin("r9").result(HANG_S)
    assert call.runs.get("r9") is not None
    with pytest.raises(ConflictError):
        call.runs.end("r3")
    assert not pages
    assert call.usage(branch="b3").totals.counts["input_tokens"] == sum(range(7))
    assert set(pages) == {Space.USAGE}


def test_what_is_listed_reads_its_space_alone(checked_store: Open, pages: list[int]) -> None:
    store = checked_store(**OFTEN)
    call = filled(store)
    store._folds.clear()
    pages.clear()
    asked: list[tuple[Callable[[], Any], int]] = [
        (lambda: [each.run_id for each in call.runs.list()], Space.RUNS),
        (lambda: [each.id for each in call.tool_calls.list()], Space.TOOL_CALLS),
        (lambda: [each.key for each in call.variables("v")], Space.VARIABLES),
        (call.artifacts.list, Space.ARTIFACTS),
        (lambda: [each.name for each in call.documents.list()], Space.DOCUMENTS),
        (lambda: call.branches()[0].names, 3),
    ]
    for ask, part in asked:
        found = ask()
        assert [each[-1] for each in found] == list("0123456")
        assert set(pages) == {part}
        pages.clear()
        assert ask() == found
        assert not pages, "the fold of a sealed session is kept"


def test_sealing_a_little_more_does_not_read_all_rows_again(
    checked_store: Open, pages: list[int]
) -> None:
    store = checked_store(**OFTEN)
    call = filled(store, count=20)
    assert len(call.runs.list()) == 20
    pages.clear()
    call.runs.begin("more").result(HANG_S)
    call.append_many([{}, {}]).result(HANG_S)
    store.flush(HANG_S)
    assert len(call.runs.list()) == 21
    assert not pages


# While others write

KEYS = ("a", "b", "c", "d", "e", "f", "g")
changes = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9) | st.none(), max_size=4)
between = st.lists(
    st.one_of(
        st.tuples(st.just("change"), changes),
        st.tuples(st.just("seal"), st.none()),
        st.tuples(st.just("purge"), st.none()),
    ),
    max_size=4,
)


class Meddler:
    """Changes a session between two pages of its rows."""

    def __init__(self, call: Session, store: Store) -> None:
        self.call = call
        self.store = store
        self.steps: Iterator[list[tuple[str, Any]]] = iter(())
        self.states: list[dict[str, int]] = []  # after each event
        self.first = 0
        self.is_busy = False

    def do(self, what: str, argument: Any) -> None:
        call = self.call
        if what == "change":
            put = {key: value for key, value in argument.items() if value is not None}
            gone = [key for key, value in argument.items() if value is None]
            ack = call.update_state(put, delete=gone)
            if put or gone:
                ack.result(HANG_S)
                state = {**(self.states[-1] if self.states else {}), **put}
                self.states.append({key: state[key] for key in state if key not in gone})
        elif what == "seal":
            call.append_many([{}, {}]).result(HANG_S)
            self.states += [self.states[-1]] * 2
            self.store.flush(HANG_S)
        elif len(self.states) - 1 > self.first:
            self.first = len(self.states) - 1
            ack = call.purge(self.first).result(HANG_S)
            self.states += [self.states[-1]] * (ack.last - ack.first + 1)

    def between(self) -> None:
        if not self.is_busy:  # a purge reads a fold too
            self.is_busy = True
            for what, argument in next(self.steps, ()):
                self.do(what, argument)
            self.is_busy = False


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.lists(changes, min_size=1, max_size=6),
    meanwhile=st.lists(between, max_size=4),
    back=st.integers(0, 3),
)
def test_rows_that_are_read_in_pages_are_of_one_moment(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[dict[str, int | None]],
    meanwhile: list[list[tuple[str, Any]]],
    back: int,
) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        Store.open(tmp_path_factory.mktemp("present") / "store", **OFTEN) as store,  # type: ignore[arg-type]
    ):
        call = store.session("a")
        meddler = Meddler(call, store)
        for each in [dict.fromkeys(KEYS, 0), *before]:
            meddler.do("change", each)
        meddler.do("seal", None)
        store._folds.clear()
        real = StateRows.read

        def read(self: StateRows, past: Past) -> None:
            meddler.between()  # after the transaction began, so that the next one sees it
            real(self, past)

        patch.setattr("engine.staterows.STATE_PAGE_ROWS", 2)
        patch.setattr(FoldCache, "find", lambda *_: None)
        patch.setattr(StateRows, "read", read)
        meddler.steps = iter(meanwhile)
        wanted = max(0, len(meddler.states) - 1 - back)
        try:
            past = read_fold(store, ("", "a"), wanted)
        except TrimmedError:
            assert wanted < call.info().first_sequence - 1  # type: ignore[union-attr]
        else:
            assert past is not None and past.sequence == wanted
            assert values_of(past) == meddler.states[wanted]
        meddler.steps = iter(meanwhile)
        now = read_fold(store, ("", "a"), part=Space.VARIABLES)
        assert now is not None and values_of(now) == meddler.states[now.sequence]
        meddler.steps = iter(())
        assert call.state == meddler.states[-1]
        assert store.check().ok


def values_of(fold: Any) -> dict[str, Any]:
    return {key: each.value() for key, each in fold.spaces.get(Space.VARIABLES, {}).items()}


def test_a_session_that_goes_between_two_pages_is_gone(
    checked_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = checked_store(**OFTEN)
    call = filled(store)
    monkeypatch.setattr("engine.staterows.STATE_PAGE_ROWS", 2)
    store._folds.clear()
    real = StateRows.read
    gone: list[int] = []

    def read(self: StateRows, past: Past) -> None:
        real(self, past)
        if not gone:
            gone.append(call.delete().result(HANG_S).first)
            store.session("a").update_state({"v": "of another"}).result(HANG_S)

    monkeypatch.setattr(StateRows, "read", read)
    with pytest.raises(SessionGoneError):
        print(call.state)
    assert gone and call.state == {"v": "of another"}


# Tips of branches, one by one

moves = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 30)),
        st.tuples(st.just("fork"), st.integers(0, 30)),
        st.tuples(st.just("name"), st.integers(0, 30)),
        st.tuples(st.just("seal"), st.just(0)),
        st.tuples(st.just("purge"), st.integers(1, 30)),
    ),
    max_size=14,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=moves)
def test_the_tip_of_a_branch_is_what_the_list_of_branches_says(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int]]
) -> None:
    with Store.open(tmp_path_factory.mktemp("tips") / "store", **OFTEN) as store:  # type: ignore[arg-type]
        call = store.session("a")
        first = call.append({"n": 0}).result(HANG_S).first
        for number, (what, at) in enumerate(moves):
            public = [event.sequence for event in call.events() if event.kind == "message"]
            follows = public[at % len(public)] if public else None
            if what == "append":
                call.append({"n": number}, parent=follows).result(HANG_S)
            elif what == "fork" and follows is not None:
                call.fork(follows, name=f"f{number}").result(HANG_S)
            elif what == "name" and follows is not None:
                call.name_branch(f"n{number}", follows).result(HANG_S)
            elif what == "seal":
                call.append_many([{}, {}]).result(HANG_S)
                store.flush(HANG_S)
            elif what == "purge" and first < (floor := min(at, call.info().event_count)):  # type: ignore[union-attr]
                call.purge(floor).result(HANG_S)
                first = floor
            for branch in call.branches():
                for name in branch.names:
                    told = branch.parent if branch.leaf is None else branch.leaf
                    assert call._event_at(name) == told
        assert store.check().ok


# What memory keeps


def test_rows_of_loose_events_take_a_bounded_part_of_memory(checked_store: Open) -> None:
    store = checked_store()
    present = PresentRows(store._rows[Space.VARIABLES].projection, bytes_max=5_000)
    for name in "abcdef":
        call = store.session(name)
        for number in range(4):
            call.update_state({f"v{number}": bytes(300)}).result(HANG_S)
    large = store.session("large")
    large.update_state({"v": bytes(6_000)}).result(HANG_S)
    for name in ("a", "b", "c", "large", "d", "e", "f", "a"):
        for key in ("v", "v0", "v3", "v9"):
            content = store._log.views.present_row(("", name), present, subkey_of(key))
            is_there = (name == "large") is (key == "v") and key != "v9"
            assert (content is not None) is is_there
            if content is not None:
                assert decode_row(content, "row").key == key
        assert 0 < present.byte_count <= 5_000
    present.clear()
    assert present.byte_count == 0
    memory = store.stats()["memory"]
    assert memory["present_bytes"] <= memory["present_bytes_max"]


def test_what_was_asked_for_longest_ago_goes_first(checked_store: Open) -> None:
    """A session that was asked for again kept its old place, and went before one asked for once."""
    store = checked_store()
    present = PresentRows(store._rows[Space.VARIABLES].projection, names_max=2)
    for name in "abc":
        store.session(name).update_state({"v": name}).result(HANG_S)
    for name, kept in (("a", [1]), ("b", [1, 2]), ("a", [2, 1]), ("c", [1, 3])):
        assert store._log.views.present_row(("", name), present, subkey_of("v")) is not None
        assert list(present._looked) == kept


@pytest.mark.parametrize("wanted", ["r0", "r3", "never there"])
def test_a_row_whose_key_is_damaged_is_not_one_that_is_not_there(
    checked_store: Open, wanted: str, tmp_path: Any
) -> None:
    """The lookup of one row took a miss for an answer, also beside a row with a damaged key."""
    with Store.open(tmp_path / "store", **OFTEN) as store:  # type: ignore[arg-type]
        filled(store)
    for row in rows(tmp_path / "store"):
        if row[0] == "state" and len(row[1]) > 8 and row[1][8] == Space.RUNS:
            put(tmp_path / "store", (row[0], row[1], flipped(row[2])))
    with Store.open(tmp_path / "store", create=False) as store:
        with pytest.raises(CorruptionError, match="state"):
            store.session("a").runs.get(wanted)
        assert not store.check().ok


@pytest.mark.parametrize("leaf", [None, 0, "side", "main"])
def test_a_first_page_takes_one_transaction(
    store: Store, monkeypatch: pytest.MonkeyPatch, leaf: int | str | None
) -> None:
    """The leaf was found in one transaction, and the page read in another: between the two the
    session could be another one.
    """
    call = store.session("a")
    call.append_many([{"n": 0}, {"n": 1}])
    call.name_branch("main").result(HANG_S)
    call.append({"n": 2}, parent=0).result(HANG_S)
    call.name_branch("side").result(HANG_S)
    read: list[int] = []
    real = type(store._log.views).past

    def past(self: Any, name: Any) -> Any:
        read.append(1)
        return real(self, name)

    monkeypatch.setattr(type(store._log.views), "past", past)
    found = [event.body["n"] for event in call.path(leaf).events]
    assert found == {None: [0, 2], 0: [0], "side": [0, 2], "main": [0, 1]}[leaf]
    assert len(read) == 1
    page = call.path(leaf, limit=1)
    assert len(read) == 2 and [event.body["n"] for event in page.events] == [0]
    assert store.session("none").path().events == []
    with pytest.raises(UsageError, match="no branch"):
        store.session("none").path("side")
