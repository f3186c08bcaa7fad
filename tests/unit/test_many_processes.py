"""Processes that open, write, read and die together: through the surface that callers have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from engine import Store
from tests.model.actors import Worker, Workers
from tests.model.answers import Placed
from tests.model.operations import Append, Create, Events, History, New, Sessions
from tests.model.staging import HANG_S, in_threads

COUNT = 8
DIRECTORIES = 20
PUTS = 200


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


@pytest.fixture
def peers(workers: Workers) -> Iterator[list[Worker]]:
    """Eight processes that have nothing open."""
    found = [workers.start() for _ in range(COUNT)]
    yield found
    for peer in found:
        peer.close()


def message(n: int) -> Append:
    return Append("", "s", (New({"n": n}),))


def test_first_opens_of_eight_processes_all_succeed(peers: list[Worker], tmp_path: Path) -> None:
    """openai-agents 2854, 4987: of 160 concurrent first opens 20 said "database is locked"."""
    for number in range(DIRECTORIES):
        path = tmp_path / str(number)
        first = Create("", "s") if number % 2 else message(0)
        found = in_threads(*[partial(peer.perform, path, first) for peer in peers])
        assert all([isinstance(each, Placed) for each in found]), found
        with Store.open(path, create=False) as store:
            assert len(list(store.read())) == (1 if number % 2 else COUNT)
            assert store.check().ok


def test_savers_of_several_processes_wait_for_each_other(
    peers: list[Worker], store_path: Path
) -> None:
    """langgraph 8136, UiPath 222: two savers on one file locked each other out."""

    def save(peer: Worker, number: int) -> list[int]:
        op = Append("", f"thread {number}", (New({"by": number}),))
        return [peer.perform(store_path, op).position for _ in range(PUTS)]

    found = in_threads(*[lambda n=n: save(peers[n], n) for n in range(2)])
    assert sorted(found[0] + found[1]) == list(range(1, 2 * PUTS + 1))
    with Store.open(store_path, create=False) as store:
        for number in range(2):
            assert len(store.session(f"thread {number}").history()) == PUTS
        assert store.check().ok


def test_readers_of_eight_processes_disturb_no_append(
    peers: list[Worker], store_path: Path
) -> None:
    """mem0 7196, opencode 21215: readers made writers fail, and sessions died in silence."""
    with Store.open(store_path) as store:
        call = store.session("s")
        call.append({"n": 0}).result(HANG_S)

        def write() -> None:
            for number in range(1, 150):
                call.append({"n": number}).result(HANG_S)

        def read(peer: Worker) -> None:
            seen = 0
            while seen < 150:
                for op in (History("", "s", 5), Events("", "s", 0, None, None), Sessions("")):
                    answer = peer.perform(store_path, op)
                    assert isinstance(answer, list), answer
                    if isinstance(op, Events):
                        assert len(answer) >= seen
                        seen = len(answer)

        in_threads(write, *[lambda peer=peer: read(peer) for peer in peers])
        assert [body["n"] for body in call.history()] == list(range(150))
        assert store.check().ok


def test_killed_processes_leave_no_slot_and_no_lock(workers: Workers, store_path: Path) -> None:
    """py-lmdb 346, frappe/mail 559: the table of readers was full of workers that had crashed."""
    with Store.open(store_path) as store:
        store.session("s").append({"n": 0}).result(HANG_S)
    for number in range(10):
        killed = [workers.start() for _ in range(COUNT)]
        in_threads(*[lambda peer=peer: peer.perform(store_path, message(1)) for peer in killed])
        for peer in killed:
            peer.kill()
        with Store.open(store_path) as store:
            call = store.session("s")
            assert len(call.history()) == 1 + COUNT * (number + 1)
    with Store.open(store_path) as store:
        store.session("s").append({"n": 2}).result(HANG_S)
        assert store._log.environment.members() == []
        assert store.check().ok
