"""Two who write one session: by two handles, two opens, two processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine import AppendConflictError, Session, Store
from tests.model.actors import Workers
from tests.model.answers import Placed, Refused
from tests.model.operations import Append, New
from tests.model.performing import perform
from tests.model.staging import HANG_S, in_threads

Open = Callable[..., Store]
Second = Callable[..., Any]
PLACES = ("handle", "open", "process")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


@pytest.fixture
def store(checked_store: Open) -> Store:
    return checked_store(snapshot_frequency=3)


@pytest.fixture(params=PLACES)
def second(
    request: pytest.FixtureRequest, store: Store, checked_store: Open, workers: Workers
) -> Iterator[Second]:
    """Appends what the other writer says; gives its place, or how it was refused."""
    other = workers.start() if request.param == "process" else None
    opened = checked_store() if request.param == "open" else store

    def append(body: Any, *, kind: str = "message", **options: Any) -> Any:
        op = Append("", "call", (New(body, kind),), **options)
        return perform(opened, op) if other is None else other.perform(store.path, op)

    yield append
    if other is not None:
        other.close()


def leaves(call: Session) -> list[int | None]:
    return [branch.leaf for branch in call.branches()]


@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
def test_each_policy_of_a_writer_that_is_behind(store: Store, second: Second, sealed: bool) -> None:
    """adk-python 4751: reloading a stale handle in silence interleaved two runners for ever;
    adk-go 1229: the opposite, no second writer was let in at all. Each append says which it is."""
    call = store.session("call")
    second({"n": 0})
    seen = 0
    for round_ in range(4):
        if sealed:
            store.flush(HANG_S)
        ahead = call.append({"by": "first", "round": round_}).result(HANG_S).last
        before = len(call.branches())
        # Only if nothing came since: refused, and nothing is written.
        assert second({"n": 1}, expected_head=seen) == Refused("AppendConflictError")
        assert call.head == ahead and call.info().last_sequence == ahead  # type: ignore[union-attr]
        # Beside the history: taken, and the head stays.
        metric = second({"ms": 3}, kind="metric")
        note = second({"x": 1}, kind="annotation", expected_head=ahead)
        assert isinstance(metric, Placed) and isinstance(note, Placed)
        assert call.head == ahead and call.event(metric.last).parent is None
        # As a branch: both are there, and neither follows the other.
        forked = second({"n": 2}, parent=seen)
        assert call.event(forked.last).parent == seen
        assert len(call.branches()) == before + 1 and ahead in leaves(call)
        assert call.head == forked.last
        assert ahead not in [event.sequence for event in call.path_events()]
        # In any case: it follows whatever is the head by then.
        plain = second({"n": 3})
        assert call.event(plain.last).parent == forked.last
        # And the first one is the one that is behind.
        with pytest.raises(AppendConflictError):
            call.append({"n": 4}, expected_head=forked.last).result(HANG_S)
        seen = plain.last
    paths = [[event.sequence for event in call.path_events(leaf)] for leaf in leaves(call)]
    assert sorted({each for path in paths for each in path}) == [
        event.sequence for event in call.events(kinds="message")
    ]


def test_a_retry_that_comes_by_another_way_is_one(store: Store, second: Second) -> None:
    """openclaw 126680, kagent 1500: a message was delivered twice, to two processes."""
    call = store.session("call")
    first = call.append({"n": 0}, idempotency_key="k").result(HANG_S)
    again = second({"n": 0}, key="k")
    assert (again.first, again.position, again.already) == (0, first.position, True)
    assert second({"n": 1}, key="k") == Refused("IdempotencyConflictError")
    theirs = second({"n": 2}, key="l")
    store.flush(HANG_S)
    mine = call.append({"n": 2}, idempotency_key="l").result(HANG_S)
    assert mine.already and mine.first == theirs.first
    assert call.history() == [{"n": 0}, {"n": 2}]


EACH = 15
WRITERS: dict[str, Callable[[Session, int], Any]] = {
    "messages": lambda call, n: call.append({"n": n}),
    "batches": lambda call, n: call.append_many([{"m": n}, {"m": n}]),
    "events": lambda call, n: call.append_event("note", {"n": n}),
    "state": lambda call, n: call.update_state({f"v{n}": n}),
    "documents": lambda call, n: call.documents.append("d", f"{n} "),
    "usage": lambda call, n: call.record_usage(input_tokens=1),
    "artifacts": lambda call, n: call.artifacts.write(f"a{n}", f"{n}" * 5_000),
    "runs": lambda call, n: call.runs.begin(f"r{n}"),
    "calls": lambda call, n: call.tool_calls.open(f"c{n}", "tool"),
    "labels": lambda call, n: call.label(f"l{n}"),
    "statuses": lambda call, n: call.set_status(f"s{n}"),
    "metadata": lambda call, n: call.update_metadata({f"k{n}": n}),
    "aliases": lambda call, n: call.alias(f"alias {n}"),
}


def test_all_writers_of_a_session_at_once_leave_all_of_it(
    store: Store, checked_store: Open
) -> None:
    """agno 7479, 9450: of two runs on one session the last writer dropped what the other wrote.

    Nothing here is read, changed and written back; each change is an event of its own.
    """
    other = checked_store()

    def work(number: int, name: str) -> None:
        call = (store, other)[number % 2].session("call")
        for n in range(EACH):
            WRITERS[name](call, n).result(HANG_S)

    in_threads(*[lambda n=n, name=name: work(n, name) for n, name in enumerate(WRITERS)])
    for opened in (store, other):
        call = opened.session("call")
        sequences = [event.sequence for event in call.events()]
        assert sequences == list(range(len(sequences)))
        assert [body["n"] for body in call.history() if "n" in body] == list(range(EACH))
        assert [body["m"] for body in call.history() if "m" in body] == [
            n for n in range(EACH) for _ in range(2)
        ]
        assert call.state == {f"v{n}": n for n in range(EACH)}
        assert call.documents.read("d") == "".join([f"{n} " for n in range(EACH)])
        assert call.usage().totals.record_count == EACH
        assert [call.artifacts.read(f"a{n}") for n in range(EACH)] == [
            f"{n}" * 5_000 for n in range(EACH)
        ]
        assert [run.run_id for run in call.runs.list()] == [f"r{n}" for n in range(EACH)]
        assert [each.id for each in call.tool_calls.list()] == [f"c{n}" for n in range(EACH)]
        assert {label.name for label in call.facts.labels} == {f"l{n}" for n in range(EACH)}
        assert [said.text for said in call.statuses()] == [f"s{n}" for n in range(EACH)]
        assert call.facts.metadata == {f"k{n}": n for n in range(EACH)}
        assert all([opened.by_alias(f"alias {n}") is not None for n in range(EACH)])


ONCE: dict[str, Callable[[Store], Any]] = {
    "create": lambda store: store.session("s").create(),
    "append": lambda store: store.session("s").append({}),
    "state": lambda store: store.session("s").update_state({"a": 1}),
    "tenant": lambda store: store.tenant("new").session("s").append({}),
    "documents of a user": lambda store: store.user("u").documents.append("d", "x"),
    "documents of a tenant": lambda store: store.documents.append("d", "x"),
    "artifact": lambda store: store.session("s").artifacts.write("a", "x" * 5_000),
    "facts": lambda store: store.session("s", user_id="u", title="t").create(),
}


@pytest.mark.parametrize("name", ONCE)
def test_first_uses_at_once_make_one_of_it(store: Store, checked_store: Open, name: str) -> None:
    """adk-python 4954, 4445: get-or-create raced on first use, and the second one failed."""
    stores = [store, checked_store(), store, checked_store()]
    in_threads(*[lambda opened=opened: ONCE[name](opened).result(HANG_S) for opened in stores])
    tenant = store.tenant("new" if name == "tenant" else "")
    found = tenant.sessions().sessions
    assert [info.name for info in found] == ([] if name.startswith("documents") else ["s"])
    assert len(store.tenants()) == 1
    if name == "facts":
        assert (found[0].user_id, found[0].title, found[0].event_count) == ("u", "t", 1)


def test_an_alias_that_two_calls_give_one_session_at_once_is_its_own(
    store: Store, checked_store: Open
) -> None:
    """One of two may be told to ask again, and asking again is fine."""
    stores = [store, checked_store()]

    def claim(opened: Store) -> None:
        call = opened.session("s")
        try:
            call.alias("a").result(HANG_S)
        except AppendConflictError:
            call.alias("a").result(HANG_S)

    for _ in range(5):
        in_threads(*[lambda opened=opened: claim(opened) for opened in stores])
        found = store.by_alias("a")
        assert found is not None and found.name == "s"
        found.unalias("a").result(HANG_S)
