"""What FORMAT.md says of views, roll-ups and variables is enough to read and to write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import Store
from tests.format import independent, independent_spaces
from tests.format.independent_rows import variable
from tests.format.values import identical

BODY = {"role": "user", "content": "from elsewhere"}


def make(path: Path) -> None:
    """Sessions with and without a trimmed view, partly sealed."""
    with Store.open(path, snapshot_frequency=5, max_messages=3) as store:
        tenant = store.tenant("acme")
        for name, count in (("few", 2), ("some", 5), ("more", 8), ("many", 61)):
            call = tenant.session(name)
            for number in range(count):
                call.append({"role": "user", "content": f"{number}"})
                call.update_state(
                    {"n": number, f"k{number}": {"x": "\ud83d"}}, delete=[f"k{number - 1}"]
                )
        own = tenant.session("own", snapshot_frequency=4, max_messages=2)
        own.append_many([{"n": number} for number in range(9)])
        own.roll_up().result(10)
        store.flush()
        tenant.session("many").update_state({"late": [1.5, None]}).result(10)
        tenant.session("many").append({"role": "user", "content": "late"}).result(10)


def test_views_and_variables_are_read_from_the_document_alone(store_path: Path) -> None:
    make(store_path)
    known = independent.Reader(store_path)
    with Store.open(store_path) as store:
        for session in known.sessions.values():
            call = store.tenant("acme").session(session.name)
            for stop in range(1, len(session.records) + 1):
                records = session.records[:stop]
                assert call.at(stop - 1).history() == independent.view(records)
                wanted = sorted(independent_spaces.spaces(records)["variables"].items())
                state = {key: each.value for key, each in wanted}
                assert identical(call.at(stop - 1).state, state)
            assert call.history() == independent.view(session.records)
        assert store.check().ok


def test_rows_of_variables_are_the_fold_of_the_sealed_events(store_path: Path) -> None:
    make(store_path)
    with Store.open(store_path) as store:
        assert store.check().ok
        with store._log.views.transaction() as tables:
            rows = [variable(key, value) for key, value in tables.rows("state")]
    known = independent.Reader(store_path)
    assert rows
    for session in known.sessions.values():
        sealed = independent_spaces.spaces(session.records[: session.sealed])["variables"]
        mine = {row["key"]: row for row in rows if row["session"] == session.number}
        assert mine.keys() == sealed.keys()


@pytest.mark.parametrize("count", [1, 5, 12])
def test_a_writer_made_from_the_document_alone_rolls_up(store_path: Path, count: int) -> None:
    make(store_path)
    ours = store_path.with_name("ours")
    make(ours)
    for number in range(count):
        for name in ("few", "more", "many", "own", "new"):
            said = {**BODY, "n": number}
            independent.append(store_path, "acme", name, said, 1_900_000_000_000_000)
            with Store.open(ours) as store:
                store.tenant("acme").session(name).append(said).result(10)
    with Store.open(store_path) as store, Store.open(ours) as other:
        for name in ("few", "more", "many", "own", "new"):
            theirs, mine = store.tenant("acme").session(name), other.tenant("acme").session(name)
            assert theirs.history() == mine.history()
            one, two = theirs.info(), mine.info()
            assert one is not None and two is not None
            assert one.loose_count == two.loose_count
        assert store.check().ok
