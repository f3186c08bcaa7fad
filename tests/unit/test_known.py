"""What is known of sessions that were read: never more than a transaction confirms."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from engine import Store
from engine.session import Session
from eventlog.errors import StoreUnavailableError
from eventlog.known import Known, KnownSessions
from eventlog.limits import KNOWN_BYTES_MAX
from eventlog.lmdb_errors import CommitFailedError

REPOSITORY = Path(__file__).resolve().parents[2]
HANG_S = 60.0

ELSEWHERE = """
import sys
from engine import Store
with Store.open(sys.argv[1]) as store:
    call = store.session("call")
    if sys.argv[2] != "append":
        getattr(call, sys.argv[2])().result(60) if sys.argv[2] == "delete" else call.erase(60)
    if sys.argv[2] != "erase":
        call.append_many([{"role": "user", "n": number} for number in range(100, 170)]).result(60)
    store.flush()
"""


def elsewhere(store: Store, way: str) -> None:
    """Let another process append to the session, replace it or erase it."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(store.path), way],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S * 2,
    )
    assert done.returncode == 0, done.stderr


def numbers(session: Session, limit: int | None = None) -> list[int]:
    return [body["n"] for body in session.history(limit)]


def known_of(store: Store) -> dict[tuple[str, str], Known]:
    known = store._log.views.known
    assert known.byte_count == sum([each.memory_bytes for each in known._known.values()])
    assert known.byte_count <= known.bytes_max
    return known._known


@pytest.fixture
def talked(checked_store: Callable[..., Store]) -> Store:
    """A store with two sessions of 60 messages that are sealed."""
    with checked_store(snapshot_frequency=1) as store:
        for name in ("call", "other"):
            store.session(name).append_many([{"n": n, "role": "user"} for n in range(60)])
        store.flush(HANG_S)
    return checked_store()


def test_the_newest_sealed_messages_are_kept_alone(talked: Store) -> None:
    call = talked.session("call")
    for _ in range(3):
        assert numbers(call, 7) == list(range(53, 60))
        tail = known_of(talked)["", "call"].tail
        assert tail is not None
        assert tail.count == 7
        assert talked.stats()["memory"]["segment_cache_bytes"] == 0
    for limit in (9, 7, 60, 7, 8, 1, None, 7):
        assert numbers(call, limit) == list(range(60))[-(limit or 60) :]
    assert talked.stats()["memory"]["segment_cache_bytes"] > 0  # who came back for more


def test_nothing_is_believed_after_a_commit_whose_outcome_was_unknown(
    talked: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a read saw of it may have been undone."""
    assert numbers(talked.session("call"), 3) == [57, 58, 59]
    assert known_of(talked)
    environment = talked._log.environment
    commit = environment.commit

    def fail(transaction: Any) -> None:
        commit(transaction)
        monkeypatch.undo()
        raise CommitFailedError(lmdb.Error("EIO"), StoreUnavailableError("EIO"), full=False)

    monkeypatch.setattr(environment, "commit", fail)
    talked.session("call").append({"n": 60}).result(HANG_S)
    assert not known_of(talked)
    assert numbers(talked.session("call"), 3) == [58, 59, 60]


def test_messages_of_memory_are_the_callers_own(talked: Store) -> None:
    call = talked.session("call")
    for _ in range(3):
        body = call.history(2)[0]
        assert body == {"n": 58, "role": "user"}
        body["n"] = 0


def test_what_is_sealed_later_is_read(talked: Store) -> None:
    call = talked.session("call")
    assert numbers(call, 5) == [55, 56, 57, 58, 59]
    for first in range(60, 200, 7):
        said = list(range(first, first + 7))
        call.append_many([{"n": number} for number in said]).result(HANG_S)
        assert numbers(call, 5) == said[-5:]
        talked.flush(HANG_S)
        assert numbers(call, 5) == numbers(call, 5) == said[-5:]
    assert numbers(call) == list(range(60 + 7 * len(range(60, 200, 7))))


@pytest.mark.parametrize("way", ["append", "delete", "erase"])
def test_what_another_process_wrote_is_believed(talked: Store, way: str) -> None:
    call = talked.session("call")
    for limit in (10, 10, 20):
        assert numbers(call, limit) == list(range(60))[-limit:]
    elsewhere(talked, way)
    for limit in (10, 10, 30):
        assert numbers(call, limit) == ([] if way == "erase" else list(range(170 - limit, 170)))
    assert (
        numbers(call)
        == {
            "append": [*range(60), *range(100, 170)],
            "delete": list(range(100, 170)),
            "erase": [],
        }[way]
    )


@pytest.mark.parametrize("way", ["delete", "erase"])
def test_what_another_process_removed_is_forgotten(talked: Store, way: str) -> None:
    assert numbers(talked.session("call"), 3) == [57, 58, 59]
    assert ("", "call") in known_of(talked)
    before = known_of(talked)["", "call"]
    elsewhere(talked, way)
    assert talked.session("other").info()
    assert known_of(talked).get(("", "call")) is not before
    assert before not in known_of(talked).values()


def test_a_read_under_way_leaves_nothing_of_what_is_removed(
    talked: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = talked.session("call")
    add = KnownSessions.add_tail
    left = ["once"]

    def remove_then_add(*arguments: Any) -> None:
        if left:
            left.pop()
            call.delete().result(HANG_S)
            assert talked.session("other").info()
        add(*arguments)

    monkeypatch.setattr(KnownSessions, "add_tail", remove_then_add)
    assert numbers(call, 3) == [57, 58, 59]
    assert not left
    assert set(known_of(talked)) == {("", "other")}
    assert call.history(3) == []


def test_what_is_known_stays_below_its_bound(checked_store: Callable[..., Store]) -> None:
    with checked_store(snapshot_frequency=1) as store:
        for number in range(60):
            call = store.session(
                f"s{number}", metadata={"note": "x" * (20_000 if number == 7 else 9)}
            )
            call.append_many([{"n": n, "text": "y" * 50} for n in range(20)])
        store.flush(HANG_S)
    store = checked_store()
    known = store._log.views.known
    assert known.bytes_max == KNOWN_BYTES_MAX
    known.bytes_max = 64_000
    for _ in range(2):
        for number in range(60):
            assert numbers(store.session(f"s{number}"), 8) == list(range(12, 20))
            assert (("", f"s{number}") in known_of(store)) is (number != 7)
    assert 5 < len(known_of(store)) < 60
