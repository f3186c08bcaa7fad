"""A store of format version 1 has no state and rolls nothing up; it is used as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import FormatVersionError, Store
from tests.format.make_store import STORES, unpack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unpack(STORES / "1.tar.xz", tmp_path / "store")


NEEDS_VERSION_2: dict[str, Callable[[Store], Any]] = {
    "update_state": lambda store: store.session("alice").update_state({"a": 1}),
    "roll_up": lambda store: store.session("alice").roll_up(),
    "options of a session": lambda store: store.session("new", max_messages=3),
    "loaded variables": lambda store: store.load(
        [{"session": "new", "kind": "variables", "body": {"set": {"a": 1}}}]
    ),
}


@pytest.mark.parametrize("what", list(NEEDS_VERSION_2))
def test_what_needs_the_second_version_is_refused_with_the_way_out(folder: Path, what: str) -> None:
    with Store.open(folder, create=False) as store:
        before = store.last_position
        with pytest.raises(FormatVersionError) as caught:
            NEEDS_VERSION_2[what](store)
        assert caught.value.found == 1 and "upgrade" in caught.value.hint
        assert store.last_position == before
        assert store.check().ok


def test_the_past_is_there_all_the_same(folder: Path) -> None:
    with Store.open(folder, create=False) as store:
        call = store.session("alice")
        assert (call.state, call.variables()) == ({}, [])
        for number in range(60):
            call.append({"role": "user", "content": f"{number}"})
        store.flush()
        info = call.info()
        assert info is not None and info.message_count >= 60
        assert info.loose_count == info.unsealed_count
        assert store.sessions(1).sessions == [info]
        messages = list(call.events(kinds=["message"]))
        assert call.history() == [event.body for event in messages]
        middle = messages[len(messages) // 2]
        past = call.at(middle.sequence)
        assert past.history() == [event.body for event in messages[: len(messages) // 2 + 1]]
        assert past.state == {} and past.head == middle.sequence
        assert store.check().ok
