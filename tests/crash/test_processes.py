"""Several processes on one store: each one's memory is a hint, and the store decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog import writer
from eventlog.limits import HOT_TABLE_POSITIONS
from tests.crash.conftest import Watchdog
from tests.crash.forkserver import ForkServer
from tests.crash.oracle import Oracle
from tests.crash.peer import Peer
from tests.crash.reader import read, read_for_ever, write_and_look
from tests.crash.workload import Name, new_journal, write

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

CALL: Name = ("", "call")
OTHER: Name = ("acme", "call")
CYCLES_MAX = 8  # each makes the store larger, and every judgement of it longer


def places(*operations: Any) -> list[list[Any]]:
    """What a session reads like that holds these operations."""
    return [[each.name, place] for each in operations for place in range(each.count)]


def cut_past(peer: Peer, name: Name = ("", "filler")) -> None:
    """Seal everything and cut the hot log past all that was there before."""
    peer.seal(eagerly=True)
    hot = peer.stats()["last_position"]
    while peer.stats()["last_position"] - peer.stats()["hot_events"] < hot:
        peer.append(name, HOT_TABLE_POSITIONS // 4)


def test_one_process_rolls_up_and_cuts_while_others_read_append_and_open(
    forks: ForkServer, store_path: Path, crash_cycles: int, crash_seed: int, watchdog: Watchdog
) -> None:
    """Cutting goes on all the time; nobody misses an event or sees one twice."""
    with Store.open(store_path):
        pass
    oracle = Oracle(f"seed {crash_seed}")
    for cycle in range(1, 1 + min(max(1, crash_cycles // 3), CYCLES_MAX)):
        watchdog.feed()
        children = []
        for slot, work, options in (
            ("sealer", write, {"frequency": 1, "batch_max": 800, "count": 90}),
            ("appender", write_and_look, {"count": 300}),
            ("reader", read, {"count": 60}),
        ):
            journal = new_journal(store_path.parent, slot, cycle)
            oracle.listen(journal)
            arguments: dict[str, Any] = {"path": store_path, "journal": journal, **options}
            if work is not read:
                arguments |= {"slot": slot, "before": []}
            folder = store_path.parent
            children.append(forks.start(work, folder, seed=crash_seed + cycle, **arguments))
        while any([child.poll() is None for child in children]):
            with Store.open(store_path, create=False) as store:
                oracle.follow(store)
        for child in children:
            child.finish()
    oracle.audit(store_path)
    with Store.open(store_path, create=False) as store:
        stats = store.stats()
        assert stats["last_position"] - stats["hot_events"] >= HOT_TABLE_POSITIONS


@pytest.mark.parametrize(
    ("way", "known"),
    [(way, True) for way in ("history", "last", "events", "info", "exists")]
    + [("events", False), ("info", False)],
)
def test_a_reader_is_stopped_between_view_and_transaction(
    peers: Callable[..., Peer], way: str, known: bool
) -> None:
    """What it took before is cut off by another process; it reads what its transaction holds."""
    writer, reader = peers("writer"), peers("reader")
    operations = [writer.append(CALL, 3)]
    if known:
        assert reader.look(way="info", tenant="", session="call") == [1, 3, 3]
    reader.hold(failpoint="read.after_view")
    reader.start(command="look", arguments={"way": way, "tenant": "", "session": "call"})
    assert reader.held()
    operations.append(writer.append(CALL, 2))
    cut_past(writer)
    operations.append(writer.append(CALL, 4))
    reader.release()
    wanted: Any = places(*operations)
    if way == "info":
        wanted = [1, 9, 9]
    elif way == "exists":
        wanted = True
    assert reader.join() == ["done", wanted]
    operations.append(reader.append(CALL))
    assert writer.look(way="history", tenant="", session="call") == places(*operations)


def test_a_session_is_made_elsewhere_while_names_are_cached(peers: Callable[..., Peer]) -> None:
    """Names are remembered only when found."""
    one, two = peers("one"), peers("two")
    other = two.append(OTHER)
    for way, nothing in (("exists", False), ("info", None), ("history", []), ("events", [])):
        assert two.look(way=way, tenant="", session="call") == nothing
    made = one.append(CALL, 2, expected_head=-1)
    assert two.look(way="history", tenant="", session="call") == places(made)
    assert two.look(way="history", tenant="acme", session="call") == places(other)
    assert two.do(operation=two.operation(CALL, expected_head=-1).encode()) == "AppendConflictError"
    more = two.append(CALL, expected_head=1)
    assert one.look(way="events", tenant="", session="call") == places(made, more)
    assert one.look(way="list", tenant="", session="call") == {"call": 3}
    number, *_ = one.look(way="info", tenant="", session="call")
    cut_past(two)
    assert one.look(way="info", tenant="", session="call")[0] == number
    one.append(CALL, expected_head=2)


def test_two_processes_make_the_same_session_at_once(peers: Callable[..., Peer]) -> None:
    """The second one finds the first one's session in its own transaction."""
    one, two = peers("one"), peers("two")
    two.hold(failpoint="commit.before_begin")
    mine = two.operation(CALL, 2)
    two.submit(operation=mine.encode())
    assert two.held()
    first = one.append(CALL)
    two.release()
    assert two.settle(timeout=10)
    for peer in (one, two):
        assert peer.look(way="history", tenant="", session="call") == places(first, mine)


def test_a_reader_catches_up_past_a_commit_that_its_own_writer_has_not_noted(
    peers: Callable[..., Peer],
) -> None:
    """The writer then put its batch into memory a second time, and its memory ran ahead of the log.

    What other processes appended next was passed over, and sequences were given twice.
    """
    one, two = peers("one"), peers("two")
    start = one.append(CALL)
    two.append(OTHER)
    two.hold(failpoint="commit.after_commit")
    mine = two.operation(CALL, 3)
    two.submit(operation=mine.encode())
    assert two.held()
    theirs = one.append(CALL, 2)
    two.start(command="look", arguments={"way": "history", "tenant": "", "session": "call"})
    assert two.join() == ["done", places(start, mine, theirs)]
    two.release()
    assert two.settle(timeout=10)
    skipped = one.append(CALL, 3)
    last = two.append(CALL)
    wanted = places(start, mine, theirs, skipped, last)
    for peer in (one, two):
        assert peer.look(way="events", tenant="", session="call") == wanted


def test_a_writer_begins_while_a_reader_of_its_process_is_catching_up(
    peers: Callable[..., Peer],
) -> None:
    """The index named the transaction before it was up to it, and the writer believed it.

    It gave sequences that the events not applied yet had already.
    """
    one, two = peers("one"), peers("two")
    start = one.append(CALL)
    two.append(CALL)
    theirs = one.append(CALL, 40)
    two.hold_catching_up(passes=5)
    two.start(command="look", arguments={"way": "last", "tenant": "", "session": "call"})
    assert two.held()
    mine = two.operation(CALL)
    two.submit(operation=mine.encode())
    two.settle(timeout=0.5)  # it may only go on once the reader has
    two.release()
    assert two.settle(timeout=10)
    found = one.look(way="events", tenant="", session="call")
    assert found == [*places(start), ["two-1", 0], *places(theirs, mine)]


def test_what_one_read_saw_the_next_one_sees(peers: Callable[..., Peer]) -> None:
    """Between commit and memory: reads by position and reads of the session agree."""
    one = peers("one")
    start = one.append(CALL)
    one.hold(failpoint="commit.after_commit")
    more = one.operation(CALL, 2)
    one.submit(operation=more.encode())
    assert one.held()
    for way in ("positions", "events", "history", "last"):
        one.start(command="look", arguments={"way": way, "tenant": "", "session": "call"})
        assert one.join() == ["done", places(start, more)], way
    one.release()
    assert one.settle(timeout=10)


def test_a_session_on_its_way_does_not_exist_yet(peers: Callable[..., Peer]) -> None:
    """A read of a session that an open batch was making was told of a missing row: damage."""
    one = peers("one")
    one.append(OTHER)
    one.hold(failpoint="commit.before_commit")
    made = one.operation(CALL, 2)
    one.submit(operation=made.encode())
    assert one.held()
    for way, nothing in (
        ("exists", False),
        ("info", None),
        ("history", []),
        ("last", []),
        ("events", []),
        ("list", {}),
    ):
        one.start(command="look", arguments={"way": way, "tenant": "", "session": "call"})
        assert one.join() == ["done", nothing], way
    one.release()
    assert one.settle(timeout=10)
    assert one.look(way="history", tenant="", session="call") == places(made)


def test_a_session_goes_on_elsewhere_while_sessions_are_listed(
    peers: Callable[..., Peer],
) -> None:
    """The listing took what is loose before the events came and the rest after it.

    Another thread had followed the log in between, so that what was taken before passed for new.
    """
    one, two = peers("one"), peers("two")
    start = two.append(CALL, 3)
    two.seal(eagerly=True)
    while two.look(way="loose", tenant="", session="call"):
        two.append(OTHER)
    two.seal(eagerly=False)  # what comes now stays loose
    more = one.append(CALL, 2)
    assert two.look(way="positions", tenant="", session="call") == places(start, more)
    two.hold(failpoint="list.after_view")
    two.start(command="look", arguments={"way": "list", "tenant": "", "session": "call"})
    assert two.held()
    two.append(OTHER)
    two.release()
    assert two.join() == ["done", {"call": 5}]


def test_a_killed_peer_leaves_what_it_was_told(peers: Callable[..., Peer]) -> None:
    """A process dies with its batch half put; another one goes on from what was committed."""
    one, victim = peers("one"), peers("victim")
    kept = victim.append(CALL, 2)
    assert one.look(way="events", tenant="", session="call") == places(kept)
    victim.hold(failpoint="commit.before_commit")
    victim.submit(operation=victim.operation(CALL, 5).encode())
    assert victim.held()
    victim.kill()
    mine = one.append(CALL, expected_head=1)
    assert one.look(way="events", tenant="", session="call") == places(kept, mine)


def test_a_number_of_a_failed_commit_is_given_to_another_session(
    peers: Callable[..., Peer],
) -> None:
    """Until the failed commit was settled its new session stayed in memory, under its number.

    Another process gave that number to a session of another tenant, whose events were then read
    under the name of the session that never came to be.
    """
    one, two = peers("one"), peers("two")
    one.append(CALL)
    two.fail_next_commit()
    mine = two.operation(("", "mine"))
    two.submit(operation=mine.encode())
    assert two.held()
    theirs = one.append(OTHER)
    for way, nothing in (("history", []), ("info", None), ("exists", False)):
        two.start(command="look", arguments={"way": way, "tenant": "", "session": "mine"})
        assert two.join() == ["done", nothing], way
    two.start(command="look", arguments={"way": "history", "tenant": "acme", "session": "call"})
    assert two.join() == ["done", places(theirs)]
    two.release()
    assert two.settle(timeout=10)


def test_sealing_by_another_process_shows(peers: Callable[..., Peer]) -> None:
    """A session went on to be told as loose, until somebody cut its events."""
    one, two = peers("one"), peers("two")
    two.append(CALL, 3)
    assert one.look(way="loose", tenant="", session="call") == 3
    two.seal(eagerly=True)
    while two.look(way="loose", tenant="", session="call"):
        two.append(OTHER)
    assert one.look(way="loose", tenant="", session="call") == 0


def test_a_reader_that_was_killed_holds_no_pages_of_a_busy_store(
    forks: ForkServer,
    checked_store: Callable[..., Store],
    store_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slots of dead readers were freed in idle minutes only, and a busy store has none.

    Until then no page was used again that the reader might have seen: the file grew and grew.
    """
    monkeypatch.setattr(writer, "READER_CHECK_US", 50_000)
    store = checked_store()
    session = store.session("busy")
    session.append({}).result(10)
    reader = forks.start(read_for_ever, store_path.parent, path=store_path)

    def is_listed() -> bool:
        rows = store._log.environment._lmdb.readers().splitlines()[1:]
        return any([row.split()[0] == str(reader.pid) and row.split()[2] != "-" for row in rows])

    while not is_listed():
        session.append({}).result(10)
        assert reader.poll() is None
    reader.kill()
    reader.wait()
    for _ in range(2_000):  # it is never idle for as long as that
        session.append({}).result(10)
    assert not is_listed()


def test_what_was_sealed_leaves_memory_once(peers: Callable[..., Peer]) -> None:
    """Memory had been made anew before the writer took its own sealing over.

    What that had sealed was taken off the bytes in memory all the same, so that more than their
    bound was kept from then on.
    """
    one, two = peers("one"), peers("two")
    two.append(CALL, 20)  # not due by itself
    two.hold(failpoint="commit.after_commit")
    two.seal(eagerly=True)
    two.submit(operation=two.operation(CALL).encode())
    assert two.held()
    cut_past(one)
    while one.look(way="loose", tenant="", session="filler"):
        one.append(OTHER)
    two.start(command="look", arguments={"way": "info", "tenant": "", "session": "call"})
    assert two.join()[0] == "done"
    two.release()
    assert two.settle(timeout=10)
    assert two.stats()["memory"]["loose_bytes"] >= 0
