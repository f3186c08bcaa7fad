"""Two processes: one removes a session that the other has in memory, reads, or appends to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from tests.crash.forkserver import ForkServer
from tests.crash.peer import Peer
from tests.crash.workload import Name

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

CALL: Name = ("", "call")
WHERE = {"tenant": CALL[0], "session": CALL[1]}
WAYS = ("events", "history", "last", "position")
GONE: dict[str, Any] = {"exists": False, "info": None, **{way: [] for way in WAYS}}
PAGE = 256  # events that an iterator has at once, or more

Peers = Callable[[str], Peer]


@pytest.fixture
def pair(forks: ForkServer, store_path: Path) -> Iterator[tuple[Peer, Peer]]:
    """Two processes; when the test ends they end, and the store is checked."""
    one, two = Peer(forks, store_path, "one"), Peer(forks, store_path, "two")
    yield one, two
    with ExitStack() as ends:
        ends.callback(one.end)
        ends.callback(two.end)
    with Store.open(store_path, create=False, verify=True) as store:
        report = store.check()
        assert report.ok, report.findings
        positions = [event.position for event in store.read(voids=True)]
        assert positions == list(range(1, store.last_position + 1))


def places(*operations: Any) -> list[list[Any]]:
    """What a session reads like that holds these operations."""
    return [[each.name, place] for each in operations for place in range(each.count)]


def seen(peer: Peer) -> dict[str, Any]:
    """Each way of reading the session."""
    found = {way: peer.look(way=way, **WHERE) for way in WAYS}
    return found | {
        "exists": peer.look(way="exists", **WHERE),
        "info": peer.look(way="info", **WHERE),
    }


def holds(number: int, *operations: Any) -> dict[str, Any]:
    """What ``seen`` gives for a session that holds these operations."""
    found = places(*operations)
    return {
        "exists": True,
        "info": [number, len(found), len(found)],
        **dict.fromkeys(WAYS, found),
    }


@pytest.mark.parametrize("erase", [False, True], ids=["delete", "erase"])
@pytest.mark.parametrize("state", ["loose", "sealed", "in part"])
def test_row_64_memory_of_another_process_has_it(
    pair: tuple[Peer, Peer], state: str, erase: bool
) -> None:
    """It is gone for who reads there, and the next append there makes it anew."""
    one, two = pair
    two.seal(eagerly=state != "loose")
    first = two.append(CALL, 40, key="key", named=True)
    two.flush()
    two.seal(eagerly=False)
    before = [first]
    if state == "in part":
        before.append(two.append(CALL, 3))
    assert seen(two) == seen(one) == holds(1, *before)
    number, position = one.remove(**WHERE, erase=erase)
    assert (number, position) == (1, len(places(*before)) + 1)
    assert seen(two) == seen(one) == GONE
    assert two.look(way="list", **WHERE) == {}
    again = two.append(CALL, 2, key="key", named=True)
    assert seen(one) == seen(two) == holds(2, again)
    assert two.look(way="list", **WHERE) == {CALL[1]: 2}
    kinds = [(number, kind) for number, _, kind, _ in one.order()]
    assert kinds == [(1, "void")] * (position - 1) + [(1, "tombstone")] + [(2, "message")] * 2


@pytest.mark.parametrize("erase", [False, True], ids=["delete", "erase"])
def test_row_64_an_append_waits_while_it_is_removed(pair: tuple[Peer, Peer], erase: bool) -> None:
    """Accepted before the removal and written after it: it is the first of the new session."""
    one, two = pair
    two.append(CALL, 5)
    two.hold(failpoint="commit.before_begin")
    late = two.operation(CALL, 3)
    two.submit(operation=late.encode())
    assert two.held()
    assert one.remove(**WHERE, erase=erase) == [1, 6]
    two.release()
    assert two.settle(timeout=15)
    assert seen(one) == seen(two) == holds(2, late)


def test_row_64_a_removal_waits_while_it_is_appended_to(pair: tuple[Peer, Peer]) -> None:
    """The other way round: what was written before it goes with the session."""
    one, two = pair
    two.append(CALL, 5)
    one.hold(failpoint="commit.before_begin")
    one.start(command="remove", arguments=WHERE)
    assert one.held()
    two.append(CALL, 3)
    one.release()
    assert one.join() == ["done", [1, 9]]
    assert seen(one) == seen(two) == GONE


def test_row_64_a_condition_on_what_is_gone(pair: tuple[Peer, Peer]) -> None:
    """A head that memory has and the store has no more is a conflict, and no head is none."""
    one, two = pair
    two.append(CALL, 5)
    assert seen(one) == seen(two)
    one.remove(**WHERE)
    late = two.operation(CALL, 1, expected_head=4)
    assert two.do(operation=late.encode()) == "AppendConflictError"
    assert seen(two) == GONE
    fresh = two.append(CALL, 1, expected_head=-1)
    assert seen(one) == seen(two) == holds(2, fresh)


@pytest.mark.parametrize(
    "failpoint", ["commit.before_commit", "removal.after_row", "catchup.after_begin"]
)
def test_row_64_it_is_there_until_the_removal_is_durable(
    pair: tuple[Peer, Peer], failpoint: str
) -> None:
    """Readers elsewhere have the whole session up to then, and nothing after it."""
    one, two = pair
    first = two.append(CALL, 30)
    assert seen(one) == holds(1, first)
    one.hold(failpoint=failpoint)
    one.start(command="remove", arguments=WHERE)
    assert one.held()
    assert seen(two) == holds(1, first)
    late = two.operation(CALL, 2)
    two.submit(operation=late.encode())  # waits for the lock
    one.release()
    assert one.join() == ["done", [1, 31]]
    assert two.settle(timeout=15)
    assert seen(one) == seen(two) == holds(2, late)


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
@pytest.mark.parametrize("failpoint", ["read.after_view", "list.after_view"])
def test_row_65_a_reader_took_its_view_before(
    pair: tuple[Peer, Peer], failpoint: str, again: bool
) -> None:
    """What memory said is not believed: the transaction decides."""
    one, two = pair
    first = two.append(CALL, 30)
    assert seen(two) == holds(1, first)
    way = "list" if failpoint.startswith("list") else "events"
    two.hold(failpoint=failpoint)
    two.start(command="look", arguments={"way": way, **WHERE})
    assert two.held()
    one.remove(**WHERE)
    late = [one.append(CALL, 2)] if again else []
    two.release()
    before = {CALL[1]: 30}  # a listing has begun its transaction
    assert two.join() == ["done", before if way == "list" else places(*late)]
    assert seen(two) == (holds(2, *late) if again else GONE)
    assert two.look(way="list", **WHERE) == ({CALL[1]: 2} if again else {})


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
@pytest.mark.parametrize("failpoint", ["read.after_view", "list.after_view"])
def test_row_65_a_reader_took_its_view_before_in_the_same_process(
    pair: tuple[Peer, Peer], failpoint: str, sealed: bool, again: bool
) -> None:
    """Its memory changes under it, between the view and the read."""
    one, _ = pair
    one.seal(eagerly=sealed)
    one.append(CALL, 30)
    one.append(("", "other"), 1)
    one.flush()
    way = "list" if failpoint.startswith("list") else "events"
    one.hold(failpoint=failpoint)
    one.start(command="look", arguments={"way": way, **WHERE})
    assert one.held()
    one.remove(**WHERE)
    late = [one.append(CALL, 2)] if again else []
    one.release()
    what, found = one.join()
    assert what == "done"
    if way == "list":
        now = {CALL[1]: 2} if again else {}
        assert found in [{"other": 1, **each} for each in ({CALL[1]: 30}, {}, now)]
    else:
        assert found == places(*late)
    assert seen(one) == (holds(3, *late) if again else GONE)


@pytest.mark.parametrize("passes", range(5))
def test_row_65_a_reader_is_catching_up(pair: tuple[Peer, Peer], passes: int) -> None:
    """It stops after some of what another process did, among it the removal; then others read."""
    one, two = pair
    one.append(CALL, 2)
    two.look(way="events", **WHERE)
    one.append(CALL, 1)
    one.remove(**WHERE)
    late = one.append(CALL, 3)
    two.hold_catching_up(passes=passes)
    two.start(command="look", arguments={"way": "events", **WHERE})
    assert two.held()
    two.release()
    assert two.join() == ["done", places(late)]
    assert seen(two) == holds(2, late)


@pytest.mark.parametrize("erase", [False, True], ids=["delete", "erase"])
@pytest.mark.parametrize("count", [0, 1, 4], ids=["gone", "made anew", "longer than before"])
@pytest.mark.parametrize("sealed", [False, True], ids=["loose", "sealed"])
def test_row_65_an_iterator_is_on_its_way(
    pair: tuple[Peer, Peer], sealed: bool, count: int, erase: bool
) -> None:
    """It gives the page that it has; then it says that the session is gone, or another one now."""
    one, two = pair
    two.seal(eagerly=sealed)
    first = two.append(CALL, 3 * PAGE)
    two.flush()
    whole = places(first)
    assert two.begin_events(**WHERE, count=10) == whole[:10]
    one.remove(**WHERE, erase=erase)
    for _ in range(count):
        one.append(CALL, PAGE)
    rest = two.end_events()
    assert rest.pop() == "SessionGoneError"
    assert PAGE <= 10 + len(rest) < len(whole)  # a page holds whole segments
    assert rest == whole[10 : 10 + len(rest)]


def test_rows_65_and_66_a_subscriber_elsewhere(pair: tuple[Peer, Peer]) -> None:
    """It hears of each removal, of no void, and of each new session under its own number."""
    one, two = pair
    two.begin_following()
    one.append(CALL, 2)
    assert two.follow(count=2) == [[1, "message"]] * 2
    for number in range(2, 6):
        one.remove(**WHERE)
        one.append(CALL, 1)
        assert two.follow(count=2) == [[number - 1, "tombstone"], [number, "message"]]
    one.append(CALL, 3)
    one.remove(**WHERE)  # before it has looked
    late = one.append(CALL, 1)
    while (event := two.follow(count=1)) == [[5, "message"]]:
        pass  # it has looked all the same
    assert event == [[5, "tombstone"]]
    assert two.follow(count=1) == [[6, "message"]]
    assert seen(two) == holds(6, late)


def test_row_07_another_process_finishes_what_a_killed_one_began(
    pair: tuple[Peer, Peer], store_path: Path
) -> None:
    """The session is gone at once; its rows go with the next commits, whoever makes them."""
    one, two = pair
    two.seal(eagerly=True)
    for number in range(4):
        two.append(CALL, 30, key=f"key {number}")
    two.flush()
    two.seal(eagerly=False)
    one.hold(failpoint="removal.after_slice")
    one.submit(operation=one.operation(("", "other"), 1).encode())
    one.start(command="remove", arguments=WHERE)
    assert one.held()
    one.kill()
    assert seen(two) == GONE
    two.append(("", "more"), 1)
    two.flush()
    two.end()
    store = Store.open(store_path, create=False, read_only=True)
    with store, store._log.views.transaction() as tables:
        tables.commit_record()  # it says which database has which role
        assert list(tables.rows("removal")) == []
        assert list(tables.rows("key")) == []
