"""What memory keeps of sessions goes with them, whoever removes them and whoever reads then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from engine.session import Session
from eventlog.errors import SessionGoneError, TrimmedError
from eventlog.past import Past
from eventlog.segmentcache import SegmentCache

REPOSITORY = Path(__file__).resolve().parents[2]
HANG_S = 60.0

REMOVE = """
import sys
from engine import Store
with Store.open(sys.argv[1]) as store:
    call = store.session("secret")
    if sys.argv[2] == "erase":
        call.erase(60)
    elif sys.argv[2] == "purge":
        call.purge(15).result(60)
    else:
        call.delete().result(60)
"""

WAYS = ("delete", "erase", "purge")


def remove(session: Session, way: str) -> None:
    """Remove a session, or most of it."""
    if way == "erase":
        session.erase(HANG_S)
    elif way == "purge":
        session.purge(15).result(HANG_S)
    else:
        session.delete().result(HANG_S)


@pytest.fixture
def talked(checked_store: Callable[..., Store]) -> Store:
    """A store with two sessions that are sealed."""
    store = checked_store(snapshot_frequency=1)
    for name in ("secret", "other"):
        session = store.session(name)
        for number in range(20):
            session.append({"role": "user", "content": f"{name} {number}"}).result(HANG_S)
        session.update_state({"who": name}).result(HANG_S)
    store.flush()
    return store


def kept(store: Store) -> tuple[int, int]:
    """Bytes of decoded segments and of folds in memory."""
    memory = store.stats()["memory"]
    return memory["segment_cache_bytes"], memory["fold_bytes"]


def gone(store: Store, way: str) -> list[int]:
    """Last sequences of the segments in memory that hold something that was removed."""
    first = 15 if way == "purge" else 21
    keys = [divmod(int.from_bytes(key, "big"), 1 << 64) for key in store._log.cache._kept]
    return [last for number, last in keys if number == 1 and last < first]


def read_events(session: Session) -> None:
    list(session.events())


def read_past(session: Session) -> None:
    session.at(17).history()


def read_state(session: Session) -> None:
    assert session.at(18).state == {}


READS: list[Callable[[Session], None]] = [read_events, read_past, read_state]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("look", ["info", "state", "read"])
def test_what_another_process_removed_is_forgotten(talked: Store, way: str, look: str) -> None:
    """Decoded segments of a session deleted elsewhere stayed until others took the room."""
    secret, other = talked.session("secret"), talked.session("other")
    for read in READS:
        read(secret)
    assert min(kept(talked)) > 0
    done = subprocess.run(
        [sys.executable, "-c", REMOVE, str(talked.path), way],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S * 2,
    )
    assert done.returncode == 0, done.stderr
    if look == "info":
        assert other.info()
        assert kept(talked) == (0, 0)
    elif look == "state":
        assert other.state == {"who": "other"}
        assert [number for number, *_ in talked._folds._folds] in ([], [2])
    else:
        list(talked.read())
    assert not gone(talked, way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("read", READS)
def test_a_read_under_way_leaves_nothing_of_what_is_removed(
    talked: Store, monkeypatch: pytest.MonkeyPatch, read: Callable[[Session], None], way: str
) -> None:
    """What it had read before the removal it put where the removal had cleared.

    So a session that was erased was still in memory, decoded, as long as no other took the room.
    """
    secret = talked.session("secret")
    talked._log.cache.clear()
    talked._folds.clear()
    waiting = ["once"]

    def removing(real: Callable[..., Any]) -> Callable[..., Any]:
        def read_then_remove(*arguments: Any, **named: Any) -> Any:
            found = real(*arguments, **named)
            if waiting:
                waiting.pop()
                remove(secret, way)
            return found

        return read_then_remove

    if read is read_state:
        monkeypatch.setattr(Past, "read_kinds", removing(Past.read_kinds))
    else:
        monkeypatch.setattr(SegmentCache, "decode", removing(SegmentCache.decode))
    try:
        read(secret)
    except (SessionGoneError, TrimmedError):
        pass  # it was told in time
    assert not waiting
    assert talked._folds.byte_count == 0
    assert not gone(talked, way)


def test_an_old_transaction_neither_clears_nor_adds(talked: Store) -> None:
    """Of two reads of different age the older one must not undo what the newer one learned."""
    cache = talked._log.cache
    with talked._log.views.transaction() as old:
        old.commit_record()
        talked.session("secret").delete().result(HANG_S)
        list(talked.session("other").events())
        known = set(cache._kept)
        assert known
        list(old.segments(1, 0, cache))
        assert set(cache._kept) == known
