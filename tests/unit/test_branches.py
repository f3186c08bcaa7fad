"""Branches of a session: parents, head, forks, names, paths, and what refuses an append."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Session, Store
from engine.branches import Branch, Link, PathPage
from eventlog.ack import Ack
from eventlog.errors import (
    AppendConflictError,
    DuplicateIdError,
    FormatVersionError,
    IdempotencyConflictError,
    InvalidNameError,
    SessionGoneError,
    SessionNotFoundError,
    TrimmedError,
    TurnlogError,
    UsageError,
)
from tests import old_store

Open = Callable[..., Store]


@pytest.fixture
def store(checked_store: Open) -> Store:
    return checked_store()


@pytest.fixture
def call(store: Store) -> Session:
    return store.session("call")


def say(call: Session, count: int = 1, **options: Any) -> int:
    """Append messages that say their sequence; gives the last one."""
    last = -1
    for _ in range(count):
        info = call.info()
        sequence = 0 if info is None else info.event_count
        last = call.append({"n": sequence}, **options).result().last
    return last


def path(call: Session, leaf: int | str | None = None) -> list[int]:
    return [event.sequence for event in call.path_events(leaf)]


def leaves(call: Session) -> list[int | None]:
    return [branch.leaf for branch in call.branches()]


def test_a_session_that_never_branched_is_one_branch(call: Session) -> None:
    assert call.branches() == []
    assert call.path().events == []
    say(call, 3)
    (only,) = call.branches()
    assert only == Branch(0, (), None, None, 2, only.updated_us, True)
    assert path(call) == [0, 1, 2]


def test_a_parent_that_is_the_tip_continues_its_branch(call: Session) -> None:
    say(call, 3)
    assert say(call, parent=2) == 3
    assert leaves(call) == [3]
    assert call.event(3).branch == 0


def test_any_other_parent_opens_a_branch(call: Session) -> None:
    say(call, 3)
    say(call, parent=0)
    first, second = call.branches()
    assert (first.leaf, first.is_head) == (2, False)
    assert (second.number, second.parent, second.parent_branch, second.leaf) == (1, 0, 0, 3)
    assert second.is_head
    assert path(call) == [0, 3]
    assert path(call, 2) == [0, 1, 2]
    assert [message["n"] for message in call.history()] == [0, 3]
    assert call.head == 3
    assert call.event(3).parent == 0


def test_two_branches_written_in_turn_stay_two(call: Session) -> None:
    """A page of either reads past the other's events; both go on from their own tips."""
    say(call)
    tips = [say(call, parent=0), say(call, parent=0)]
    for turn in range(300):
        tips[turn % 2] = say(call, parent=tips[turn % 2])
    assert len(call.branches()) == 2
    for turn in (0, 1):
        whole = path(call, tips[turn])
        assert len(whole) == 152
        assert [call.event(each).parent for each in whole[1:]] == whole[:-1]


def test_a_root_of_its_own(call: Session) -> None:
    say(call, 2)
    say(call, parent=-1)
    say(call)
    assert path(call) == [2, 3]
    assert call.branches()[1].parent is None
    assert say(call, parent=-1) == 4
    assert leaves(call) == [1, 3, 4]


def test_a_first_event_may_say_that_it_follows_nothing(call: Session) -> None:
    assert say(call, parent=-1) == 0
    assert leaves(call) == [0]


def test_checkout_moves_the_head_and_removes_nothing(call: Session) -> None:
    say(call, 4)
    call.checkout(1).result()
    assert call.head == 1
    assert [message["n"] for message in call.history()] == [0, 1]
    assert say(call) == 5
    assert path(call) == [0, 1, 5]
    assert path(call, 3) == [0, 1, 2, 3]
    call.checkout(3).result()
    assert say(call) == 7
    assert path(call) == [0, 1, 2, 3, 7]  # which was the tip, so that its branch goes on
    assert len(call.branches()) == 2


def test_checkout_of_nothing_begins_a_path_of_its_own(call: Session) -> None:
    say(call, 2)
    call.checkout(None).result()
    assert call.head is None
    assert call.history() == []
    assert path(call) == []
    say(call)
    assert path(call) == [3]


def test_a_fork_copies_nothing_and_opens_a_branch_also_at_a_tip(call: Session) -> None:
    say(call, 2)
    call.fork(name="try").result()
    assert call.head == 1
    forked = call.branches()[1]
    assert (forked.parent, forked.leaf, forked.names, forked.is_head) == (1, None, ("try",), True)
    say(call)
    assert path(call) == [0, 1, 4]
    say(call, parent=1)  # the tip of branch 0, still
    assert [branch.leaf for branch in call.branches()] == [5, 4]
    assert path(call, "try") == [0, 1, 4]


@pytest.mark.parametrize("name", [None, "try"])
@pytest.mark.parametrize("before", ["nothing", "one", "sealed", "a branch", "no head"])
def test_a_fork_is_where_the_appends_before_it_leave_the_head(
    store: Store, call: Session, before: str, name: str | None
) -> None:
    """The head was read at the call. So what still waited in the queue was not on the branch."""
    if before != "nothing":
        say(call, 3)
    if before == "sealed":
        store.flush()
    elif before == "a branch":
        say(call, parent=0)
    elif before == "no head":
        call.checkout(None).result()
    last = -1
    for count in (5, 1, 0):
        queued = [call.append({"n": -1}) for _ in range(count)]
        forked, following = call.fork(name=name), call.append({"n": -1})
        head = queued[-1].result().last if queued else last
        last = following.result().last
        assert call.event(last).parent == head
        assert call.event(forked.result().first).parent == head
        assert call.branches()[-1].parent == head
    moved, forked = call.checkout(None), call.fork()
    moved.result()
    assert call.event(forked.result().first).parent is None
    assert call.head is None


def test_a_fork_at_a_head_that_was_purged_is_refused(call: Session) -> None:
    say(call, 2)
    call.checkout(0).result()
    call.purge(1).result()
    with pytest.raises(TrimmedError):
        call.fork().result()


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(lambda call: call.fork(), id="fork"),
        pytest.param(lambda call: call.fork(name="try"), id="named-fork"),
        pytest.param(lambda call: call.checkout(None), id="checkout"),
        pytest.param(lambda call: call.name_branch("try"), id="name"),
        pytest.param(lambda call: call.unname_branch("try"), id="unname"),
    ],
)
def test_a_session_that_begins_with_its_branches_has_its_facts(
    store: Store, begin: Callable[[Session], Ack]
) -> None:
    """They were left out. So the session was nobody's, and erasing the user left it there."""
    call = store.session("call", user_id="u7", title="T")
    begin(call).result()
    say(call)
    info = call.info()
    assert info is not None
    assert (info.user_id, info.title) == ("u7", "T")
    assert [each.name for each in store.sessions(user_id="u7").sessions] == ["call"]
    store.erase_user("u7")
    assert not call.exists


def test_a_name_leads_to_one_branch(call: Session) -> None:
    say(call, 2)
    say(call, parent=0)
    call.name_branch("best", 1).result()
    call.name_branch("other").result()
    assert [branch.names for branch in call.branches()] == [("best",), ("other",)]
    call.name_branch("best").result()
    assert [branch.names for branch in call.branches()] == [(), ("other", "best")]
    call.checkout("best").result()
    assert call.head == 2
    call.unname_branch("best").result()
    with pytest.raises(UsageError, match="no branch 'best'"):
        call.checkout("best")
    with pytest.raises(UsageError, match="no branch"):
        call.path("nowhere")


def test_a_page_of_a_path_continues_where_it_ended(call: Session) -> None:
    """The cursor keeps the path of the first page, also when the head moves in between."""
    say(call, 10)
    say(call, 5, parent=None)
    wanted = path(call)
    page = call.path(limit=4)
    call.checkout(3).result()
    found = [event.sequence for event in page.events]
    while page.cursor is not None:
        page = call.path(cursor=page.cursor, limit=4)
        assert 1 <= len(page.events) <= 4
        found += [event.sequence for event in page.events]
    assert found == wanted
    for wrong in ("", "1", "3.9", "a.b", "1.-1", 7, "0.1.9.4", "1.2.3.4.5", "\u0661.1.9.4"):
        with pytest.raises(UsageError):
            call.path(cursor=wrong)  # type: ignore[arg-type]
    for limit in (0, 10_001):
        with pytest.raises(Exception, match="limit"):
            call.path(limit=limit)


@pytest.mark.parametrize("is_made_anew", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_cursor_of_a_path_ends_with_its_session(
    store: Store, call: Session, is_made_anew: bool, sealed: bool
) -> None:
    """It named a leaf only. So the next page was of the session that had the name meanwhile."""
    say(call, 10)
    if sealed:
        store.flush()
    cursor = call.path(limit=4).cursor
    assert cursor is not None
    call.delete().result()
    if is_made_anew:
        say(call, 10)
    with pytest.raises(SessionGoneError, match="'call' was deleted"):
        call.path(cursor=cursor)


@pytest.mark.parametrize("branched", [False, True])
def test_a_page_of_a_path_does_not_pass_over_what_was_purged(call: Session, branched: bool) -> None:
    """It began with the first event that was left, and nobody was told of those between."""
    say(call, 10)
    if branched:
        say(call, 5, parent=8)
    cursor = call.path(limit=4).cursor
    call.purge(4).result()
    assert cursor is not None and call.path(cursor=cursor).events[0].sequence == 4
    call.purge(6).result()
    with pytest.raises(TrimmedError) as caught:
        call.path(cursor=cursor)
    assert caught.value.first == 6


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize(
    ("tenant", "name"),
    [pytest.param("", "other", id="session"), pytest.param("acme", "call", id="tenant")],
)
def test_a_cursor_of_another_session_is_refused(
    store: Store, call: Session, tenant: str, name: str, is_there: bool
) -> None:
    say(call, 10)
    other = store.tenant(tenant).session(name)
    if is_there:
        say(other, 10)
    page = call.path(limit=4)
    with pytest.raises(UsageError, match="of another session") as raised:
        other.path(cursor=page.cursor)
    assert raised.value.hint == "Give it to the session whose path() gave it."


def test_a_path_is_asked_for_by_leaf_or_by_cursor(call: Session) -> None:
    """The leaf was left out of account, so that a page was not of the path that it named."""
    say(call, 10)
    cursor = call.path(9, limit=4).cursor
    for leaf in (0, 9, "nowhere"):
        with pytest.raises(UsageError, match="not both") as raised:
            call.path(leaf, cursor=cursor)
        assert "only the cursor" in str(raised.value.hint)
        with pytest.raises(UsageError, match="not both"):
            asyncio.run(call.path_async(leaf, cursor))


@pytest.mark.parametrize(
    ("parent", "reason"),
    [
        pytest.param(9, "session 'call' has no event 9\\b", id="missing"),
        pytest.param(3, "session 'call' has no event 3\\b", id="itself"),
        pytest.param(2, "no event of the history", id="control"),
        pytest.param("elsewhere", "of another session", id="foreign"),
        pytest.param("nowhere", "there is no event with id 'nowhere'", id="unknown-id"),
        pytest.param("me", "cannot follow itself", id="its-own-id"),
        pytest.param("ff.0000000000", "of another session", id="foreign-made-id"),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_a_parent_that_cannot_be_refuses_the_append(
    checked_store: Open, parent: int | str, reason: str, sealed: bool
) -> None:
    store = checked_store(snapshot_frequency=1)
    call = store.session("call")
    say(call, 2)
    call.update_state({"a": 1}).result()
    store.session("other").append({"n": 0}, id="elsewhere").result()
    if sealed:
        store.flush()
    ack = call.append({"n": 3}, parent=parent, id="me")
    with pytest.raises(AppendConflictError, match=reason):
        ack.result()
    info = call.info()
    assert info is not None
    assert (info.event_count, info.head) == (3, 1)
    assert say(call) == 3
    assert len(call.branches()) == 1


@pytest.mark.parametrize("parent", [-2, 2**63, 1.0, True, "", "x" * 600])
def test_what_is_no_parent_at_all_fails_at_the_call(call: Session, parent: Any) -> None:
    say(call)
    with pytest.raises(UsageError):
        call.append({"n": 1}, parent=parent)


def test_ids_name_parents_also_within_one_append(store: Store, call: Session) -> None:
    call.append_many([{"n": 0}, {"n": 1}], ids=["a", "b"]).result()
    call.append({"n": 2}, id="c", parent="a").result()
    made = call.event(1).event_id
    assert made == "b"
    call.append({"n": 3}, parent="b").result()
    assert path(call) == [0, 1, 3]
    event_id = call.event(3).event_id
    call.append({"n": 4}, parent=event_id).result()
    call.append({"n": 5}, parent=event_id).result()
    assert path(call) == [0, 1, 3, 5]
    assert len(call.branches()) == 3


def test_the_same_id_with_another_parent_is_another_event(call: Session) -> None:
    call.append_many([{"n": 0}, {"n": 1}]).result()
    call.append({"n": 2}, id="x", parent=0).result()
    assert call.append({"n": 2}, id="x", parent=0).result().already
    with pytest.raises(DuplicateIdError):
        call.append({"n": 2}, id="x", parent=1).result()


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_key_with_another_parent_is_another_append(call: Session, is_planned: bool) -> None:
    say(call, 3)
    first = call.append({"n": 3}, parent=0, idempotency_key="k")
    if not is_planned:
        first.result()
    again = call.append({"n": 3}, parent=0, idempotency_key="k")
    silent = call.append({"n": 3}, idempotency_key="k")
    other = call.append({"n": 3}, parent=1, idempotency_key="k")
    assert again.result().last == silent.result().last == first.result().last == 3
    with pytest.raises(IdempotencyConflictError):
        other.result()
    assert path(call) == [0, 3]


def test_one_append_with_a_parent_is_atomic(call: Session) -> None:
    say(call, 3)
    call.append_many([{"n": 3}, {"n": 4}], parent=0).result()
    assert path(call) == [0, 3, 4]
    with pytest.raises(AppendConflictError):
        call.append_many([{"n": 5}, {"n": 6}], parent=77).result()
    assert path(call) == [0, 3, 4]


def test_the_expected_head_is_the_one_that_was_checked_out(call: Session) -> None:
    say(call, 3)
    call.checkout(0, expected_head=2).result()
    with pytest.raises(AppendConflictError):
        call.append({"n": 4}, expected_head=2).result()
    call.append({"n": 4}, expected_head=0).result()
    with pytest.raises(AppendConflictError):
        call.checkout(0, expected_head=0).result()


def test_each_policy_of_a_stale_handle(store: Store) -> None:
    """One handle appends and another one, which did not see it, appends too: refused when it asks
    for that, a branch when it says what it follows, and nothing to do with the head beside it."""
    one, two = store.session("call"), store.session("call")
    one.append({"n": 0}).result()
    seen = two.head
    assert seen is not None
    one.append({"n": 1}).result()
    with pytest.raises(AppendConflictError):
        two.append({"n": 2}, expected_head=seen).result()
    two.append({"n": 2}, parent=seen).result()
    two.append_event("metric", {"ms": 3}).result()
    two.append_event("annotation", {"note": "stale"}).result()
    assert two.head == 2
    assert leaves(one) == [1, 2]


def test_what_stands_beside_the_history_follows_nothing(call: Session) -> None:
    say(call)
    with pytest.raises(UsageError):
        call.append_event("metric", {}, parent=0)
    call.append_event("metric", {"ms": 1}).result()
    say(call)
    assert path(call) == [0, 2]
    assert call.event(1).parent is None


def test_a_link_says_what_an_event_answers(call: Session) -> None:
    say(call, 4)
    call.link(3, [0, 1, 2]).result()
    assert call.links(3) == [Link(3, (0, 1, 2), 4)]
    (event,) = call.events(kinds=("link",))
    assert event.body == {"event": 3, "answers": [0, 1, 2]}
    assert call.head == 3
    call.link(2, (0,)).result()  # type: ignore[arg-type]
    say(call)
    assert call.links() == [Link(3, (0, 1, 2), 4), Link(2, (0,), 5)]
    assert call.links(3) == call.links(1) == [Link(3, (0, 1, 2), 4)]
    assert call.links(0) == call.links()
    assert call.links(6) == asyncio.run(call.links_async(6)) == []
    with pytest.raises(UsageError, match="cannot answer itself"):
        call.link(1, [0, 1])
    with pytest.raises(UsageError):
        call.link(3, [9])
    with pytest.raises(UsageError):
        call.link(9, [0])
    with pytest.raises(UsageError):
        call.link(3, [])


def test_of_a_session_that_is_not_there_nothing_can_be_checked_out(store: Store) -> None:
    nobody = store.session("nobody")
    with pytest.raises(AppendConflictError):
        nobody.checkout(0).result()
    with pytest.raises(SessionNotFoundError):
        nobody.link(0, [0])
    assert nobody.branches() == []
    assert nobody.path().events == []
    assert nobody.path(0) == PathPage([], None)  # its cursor led to the same page, for ever
    assert not nobody.exists


def test_a_purged_event_cannot_be_followed(call: Session) -> None:
    say(call, 4)
    say(call, parent=1)
    call.purge(3).result()
    with pytest.raises(TrimmedError):
        call.append({"n": 6}, parent=1).result()
    with pytest.raises(TrimmedError):
        call.checkout(0).result()
    with pytest.raises(TrimmedError):
        call.path(0)
    assert path(call) == [4]
    assert path(call, 3) == [3]
    assert say(call, parent=3) == 6
    assert path(call) == [3, 6]


def test_the_view_keeps_the_last_messages_of_the_path(checked_store: Open) -> None:
    store = checked_store(snapshot_frequency=5, max_messages=4)
    call = store.session("call")
    say(call, 9)
    call.checkout(6).result()
    say(call, 2)
    call.roll_up().result()
    assert [message["n"] for message in call.history()] == [5, 6, 10, 11]
    call.checkout(8).result()
    assert [message["n"] for message in call.history()][-4:] == [5, 6, 7, 8]


def test_the_session_as_it_was_had_another_path(call: Session) -> None:
    say(call, 3)
    call.checkout(0).result()
    say(call)
    past = call.at(2)
    assert (past.head, [message["n"] for message in past.history()]) == (2, [0, 1, 2])
    past = call.at(3)
    assert (past.head, [message["n"] for message in past.history()]) == (0, [0])
    past = call.at(4)
    assert (past.head, [message["n"] for message in past.history()]) == (4, [0, 4])


def test_branches_need_version_2(tmp_path: Path) -> None:
    old_store.make(tmp_path / "old")
    with Store.open(tmp_path / "old") as store:
        call = store.session("fresh")
        say(call)
        for write in (
            lambda: call.append({}, parent=0),
            lambda: call.checkout(0),
            lambda: call.fork(),
            lambda: call.name_branch("a"),
            lambda: call.append_event("metric", {}),
            lambda: call.link(0, [0]),
        ):
            with pytest.raises(FormatVersionError):
                write()
        assert [branch.leaf for branch in call.branches()] == [0]


def test_threads_fork_one_parent_and_none_fails(call: Session) -> None:
    say(call, 2)
    errors: list[TurnlogError] = []

    def fork(number: int) -> None:
        try:
            for turn in range(20):
                call.append({"by": number, "turn": turn}, parent=1).result()
        except TurnlogError as error:
            errors.append(error)

    threads = [threading.Thread(target=fork, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    found = call.branches()
    assert len(found) == 80  # the first one continues the branch
    assert {branch.parent for branch in found} == {None, 1}


# Against a plain model


class Tree:
    """What a session's branches are, in plain Python."""

    def __init__(self) -> None:
        self.parents: dict[int, int | None] = {}
        self.head: int | None = None
        self.next = 0

    def add(self, parent: int | None) -> None:
        self.parents[self.next] = parent
        self.head = self.next
        self.next += 1

    def path(self, leaf: int | None) -> list[int]:
        found: list[int] = []
        while leaf is not None:
            found.append(leaf)
            leaf = self.parents[leaf]
        return found[::-1]


def grow(open_store: Open, random: Random, steps: int) -> tuple[Store, Tree]:
    """A session of all sorts of steps beside its model, compared now and then."""
    tree = Tree()
    store = open_store(snapshot_frequency=random.choice([1, 5, 25]))
    for step in range(steps):
        call = store.session("call")
        known = list(tree.parents)
        near = random.choice(known[-20:]) if known else -1
        match random.choice("mmmmmmpppppcffvlorn" if known else "m"):
            case "m":
                call.append({"n": tree.next})
                tree.add(tree.head)
            case "p":
                parent = -1 if random.random() < 0.1 else near
                call.append({"n": tree.next}, parent=parent)
                tree.add(None if parent < 0 else parent)
            case "c":
                call.checkout(near)
                tree.head, tree.next = near, tree.next + 1
            case "f":
                call.fork(near, name=f"b{step % 7}")
                tree.head, tree.next = near, tree.next + 2
            case "v":
                call.update_state({"step": step})
                tree.next += 1
            case "r":
                call.roll_up()
                tree.next += 1
            case "n":
                call.append_event("metric", {"step": step})
                tree.next += 1
            case "l":
                store.flush()
            case "o":
                store.close()
                store = open_store()
        if not step % 9:
            store.flush()
            call = store.session("call")
            assert call.head == tree.head
            assert path(call) == tree.path(tree.head)
            assert [message["n"] for message in call.history(4)] == tree.path(tree.head)[-4:]
    store.flush()
    return store, tree


@pytest.fixture(params=range(4))
def grown(request: pytest.FixtureRequest, checked_store: Open) -> Iterator[tuple[Store, Tree]]:
    yield grow(checked_store, Random(request.param), 250)


def test_every_path_is_what_the_parents_say(grown: tuple[Store, Tree]) -> None:
    store, tree = grown
    call = store.session("call")
    for leaf in tree.parents:
        assert path(call, leaf) == tree.path(leaf)


def test_branches_stay_the_same_when_all_is_sealed(
    grown: tuple[Store, Tree], checked_store: Open
) -> None:
    store, tree = grown
    before = store.session("call").branches()
    store.close()
    Store.vacuum(store.path)
    call = checked_store().session("call")
    assert call.branches() == before
    for leaf in tree.parents:
        assert path(call, leaf) == tree.path(leaf)


def test_an_export_of_branches_comes_back_byte_for_byte(
    grown: tuple[Store, Tree], checked_store: Open, tmp_path: Path
) -> None:
    store, _ = grown
    lines = list(store.export_lines(store.read()))
    with checked_store(tmp_path / "other") as other:
        other.load(json.loads(each) for each in lines)
        assert list(other.export_lines(other.read())) == lines
        mine, theirs = store.session("call"), other.session("call")
        assert [(b.number, b.names, b.parent, b.leaf) for b in mine.branches()] == [
            (b.number, b.names, b.parent, b.leaf) for b in theirs.branches()
        ]


def test_a_purge_keeps_branches_and_what_is_left_of_paths(
    grown: tuple[Store, Tree], checked_store: Open, tmp_path: Path
) -> None:
    store, tree = grown
    call = store.session("call")
    before = call.branches()
    floor = tree.next // 2
    call.purge(floor).result()
    assert call.head == tree.head
    after = call.branches()
    assert [(b.number, b.parent, b.leaf) for b in after] == [
        (b.number, b.parent, b.leaf) for b in before
    ]
    kept = [each for each in tree.parents if each >= floor]
    for leaf in kept:
        assert path(call, leaf) == [each for each in tree.path(leaf) if each >= floor]
    lines = list(store.export_lines(store.read()))
    with checked_store(tmp_path / "other") as other:
        other.load(json.loads(each) for each in lines)
        assert list(other.export_lines(other.read())) == lines
        for leaf in kept:
            assert path(other.session("call"), leaf) == path(call, leaf)


def test_a_rebuild_makes_the_rows_of_branches_anew(grown: tuple[Store, Tree]) -> None:
    store, tree = grown
    call = store.session("call")
    before = call.branches()
    store.rebuild()
    assert call.branches() == before
    call.purge(tree.next // 3).result()
    store.flush()
    store.rebuild()
    assert call.branches() == before


def test_another_process_sees_and_follows_the_same_branches(
    grown: tuple[Store, Tree], checked_store: Open
) -> None:
    """Two stores on one path, as two processes would have them, append in turn."""
    store, tree = grown
    call = store.session("call")
    known = list(tree.parents)
    for turn, parent in enumerate(known[:: max(1, len(known) // 20)]):
        call.append({"n": tree.next}, parent=parent).result()
        tree.add(parent)
        store.flush()
        if not turn % 4:
            store.close()
            store = checked_store()
            call = store.session("call")
        assert path(call) == tree.path(tree.head)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("first", [1, 5, 8, 9, 10, 11])
def test_a_purge_below_the_first_fork_tells_of_branch_0(
    checked_store: Open, first: int, sealed: bool
) -> None:
    """The base told when branch 0 had its last event, and the row that was made when the fork was
    sealed did not: the two disagreed, as check found after the next purge.
    """
    store = checked_store(snapshot_frequency=1 if sealed else 25)
    call = store.session("call")
    for count in (3, 2, 2):
        say(call)
        for number in range(count):
            call.update_state({"n": number}).result()
    say(call, parent=0)
    for number in range(7):
        call.update_state({"n": number}).result()
    if sealed:
        store.flush()
    before = call.branches()
    call.purge(first).result()
    assert store.check().ok
    assert [branch.leaf for branch in call.branches()] == [branch.leaf for branch in before]
    say(call)
    call.purge(20).result()
    store.flush()
    assert store.check().ok
    store.rebuild()


@pytest.mark.parametrize("parent", [3, 10, 20, 28])
@pytest.mark.parametrize("first", [1, 4, 12, 29, 30, 31])
def test_a_purge_below_what_is_sealed_keeps_the_tip_of_branch_0(
    checked_store: Open, parent: int, first: int
) -> None:
    """Of a session that had begun to branch, and was linear as far as it was sealed, the row said
    that branch 0 ended at the floor of the purge, though its events above that were there."""
    store = checked_store(snapshot_frequency=4)
    call = store.session("call")
    call.append_many([{"n": n} for n in range(30)]).result()
    store.flush()
    info = call.info()
    assert info is not None and info.unsealed_count == 0
    call.append({"n": 30}, parent=parent).result()
    before = call.branches()
    call.purge(first).result()
    assert store.check().ok
    for _ in range(2):
        assert [branch.leaf for branch in call.branches()] == [branch.leaf for branch in before]
        assert call.branches()[0].updated_us == before[0].updated_us
        call.append_many([{"n": n} for n in range(30)]).result()
        store.flush()
        assert store.check().ok
        before = [before[0], *call.branches()[1:]]
    store.close()
    call = checked_store().session("call")
    assert [branch.leaf for branch in call.branches()] == [branch.leaf for branch in before]


def test_what_follows_the_head_of_a_purged_copy_is_on_its_branch(
    checked_store: Callable[..., Store], store_path: Path
) -> None:
    """A session was loaded without its purged beginning, in which it had branched, and none of the
    events left named a parent but the head. They were taken for a linear session's, on branch 0."""
    store = checked_store()
    call = store.session("a")
    for parent in (None, None, 0, None, None):
        call.append({"role": "user"}, parent=parent).result(60)
    call.purge(3).result(60)
    copied = checked_store(store_path.with_name("copy"))
    copied.load(map(json.loads, store.export_lines(call.events())))
    there = copied.session("a")
    assert [event.branch for event in there.events()] == [event.branch for event in call.events()]
    assert there.branches() == call.branches()


def test_a_text_that_is_no_text_leads_to_no_branch(call: Session) -> None:
    """A lone surrogate where a branch is named came out as UnicodeEncodeError."""
    call.append({"n": 0}).result()
    for ask in (
        lambda: call.path("\udcff"),
        lambda: call.fork("\udcff"),
        lambda: call.clone("copy", leaf="\udcff"),
        lambda: call.usage(branch="\udcff"),
        lambda: call.artifacts.on("\udcff"),
    ):
        with pytest.raises(UsageError, match="has no branch"):
            ask()


@pytest.mark.parametrize("name", ["0", "3", "007"])
def test_a_number_is_no_name_of_a_branch(store: Store, name: str) -> None:
    """A branch could be called "3", which the command line takes for the branch of that number."""
    call = store.session("call-1")
    call.append({"n": 0}).result()
    for given in (lambda: call.name_branch(name), lambda: call.fork(0, name=name)):
        with pytest.raises(InvalidNameError, match="is a number"):
            given()
    assert [branch.names for branch in call.branches()] == [()]
    call.unname_branch(name).result()
    call.name_branch(f"b{name}").result()
    assert call.path(f"b{name}").events[-1].sequence == 0
