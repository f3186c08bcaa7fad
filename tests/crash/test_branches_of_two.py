"""Two processes that believe in the same tip: one of them appends there, the other is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import Store
from tests.crash.forkserver import ForkServer
from tests.crash.growing import CALL, grow

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

SLOTS = ("one", "two", "three")


def test_row_59_exactly_one_of_those_who_expect_a_head_wins(
    forks: ForkServer, store_path: Path, crash_cycles: int
) -> None:
    """The path has every append that won, once, and nothing else; the losers were told the tip."""
    count = 25 * min(crash_cycles, 20)
    with Store.open(store_path):
        pass
    folder = store_path.parent
    children = [
        forks.start(
            grow, folder, path=store_path, slot=slot, count=count, won=folder / f"{slot}.json"
        )
        for slot in SLOTS
    ]
    for child in children:
        child.finish(60)
    told = {slot: json.loads((folder / f"{slot}.json").read_text()) for slot in SLOTS}
    with Store.open(store_path, create=False) as store:
        call = store.session(CALL)
        path = [event for page in [call.path(limit=len(SLOTS) * count)] for event in page.events]
        assert [event.sequence for event in path] == list(range(len(SLOTS) * count))
        assert len(call.branches()) == 1
        for slot in SLOTS:
            mine = [event for event in path if event.body["by"][0] == slot]
            assert [event.body["by"][1] for event in mine] == list(range(count))
            assert [event.sequence for event in mine] == told[slot]["won"]
        assert store.check().ok
    lost = [pair for slot in SLOTS for pair in told[slot]["lost"]]
    assert lost, "nobody was ever late"
    assert all(current > believed for believed, current in lost)
