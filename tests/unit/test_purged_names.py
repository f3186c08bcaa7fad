"""Exports of purged sessions that have names or branches."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from engine import Store

HANG_S = 60.0


@pytest.mark.parametrize("way", ["export", "salvage"])
@pytest.mark.parametrize("named", [0, 2], ids=["first", "last-purged"])
def test_an_export_of_a_purged_session_with_a_named_event_can_be_loaded(
    checked_store: Callable[..., Store], named: int, way: str
) -> None:
    """A name whose event was purged, in a session that never branched: no line of it loaded.

    What belongs to a purged event had branch 0 there, names had none.
    """
    with checked_store() as store:
        session = store.session("call")
        for number in range(4):
            session.append({"role": "user", "content": f"{number}"}).result(HANG_S)
        session.name_branch("draft", named).result(HANG_S)
        session.purge(3).result(HANG_S)
        assert store.check().ok
        if way == "export":
            lines = list(store.export_lines(store.read()))
        else:
            lines = [each for each in store.salvage() if isinstance(each, str)]
        names = [branch.names for branch in session.branches()]
        with checked_store(store.path.parent / "other") as other:
            other.load(map(json.loads, lines))
            assert list(other.export_lines(other.read())) == lines
            assert [branch.names for branch in other.session("call").branches()] == names


def test_a_purge_before_the_first_message_tells_the_branch_of_then(
    checked_store: Callable[..., Store],
) -> None:
    """The base told the branch of the sealed head of now where no message lay below the purge.

    A session that begins with state and branches later had a base that no load takes.
    """
    with checked_store(snapshot_frequency=3) as store:
        session = store.session("call")
        session.update_state({"a": 1}).result(HANG_S)  # 0
        session.update_state({"a": 2}).result(HANG_S)
        for number in range(2):
            session.append({"role": "user", "content": f"{number}"}).result(HANG_S)  # 2, 3
        session.append({"role": "user", "content": "other"}, parent=2).result(HANG_S)
        session.append({"role": "user", "content": "more"}).result(HANG_S)
        store.flush(HANG_S)
        session.purge(1).result(HANG_S)
        assert store.check().ok
        (base,) = session.events(kinds=["base"])
        lines = list(store.export_lines(store.read()))
        with checked_store(store.path.parent / "other") as other:
            other.load(map(json.loads, lines))
            assert list(other.export_lines(other.read())) == lines
        assert (base.body["branch_count"], base.body["head_branch"]) == (1, 0)
