"""Check of variables and roll-ups: each wrong row is one finding, and reads do not believe it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import CorruptionError, Store
from engine.spaces import Space
from engine.variables import StoredVariable, subkey_of
from eventlog.inline import state_key
from eventlog.rows import SessionRow, protect
from tests.damaged_store import flipped, hot_row, opened, put

SESSION = 1
KEY = state_key(SESSION, Space.VARIABLES, subkey_of("a"))


@pytest.fixture
def path(store_path: Path) -> Path:
    """A store whose first session is sealed: variables a, b and c, and a trimmed view."""
    with Store.open(store_path, snapshot_frequency=2, max_messages=3) as store:
        call = store.session("s")
        call.update_state({"a": 1, "b": [2], "gone": 0})
        for number in range(9):
            call.append({"n": number})
        call.update_state({"c": None}, delete=["gone"])
        other = store.session("other")
        for number in range(4):
            other.append({"n": number})
        store.flush()
        info = call.info()
        assert info is not None and info.unsealed_count == 0
        assert store.check().ok
    return store_path


def get(path: Path, table: str, key: bytes) -> bytes:
    with opened(path) as (transaction, handles):
        value = transaction.get(key, db=handles[table])
    assert value is not None
    return bytes(value)


def variable(key: str, value: bytes, sequence: int = 0, session: int = SESSION) -> tuple[Any, ...]:
    stored = StoredVariable(key, 7, sequence, value, None)
    at = state_key(session, Space.VARIABLES, subkey_of(key))
    return "state", at, protect(at, stored.content())


CHANGES: dict[str, Callable[[Path], tuple[Any, ...]]] = {
    "row is missing": lambda path: ("state", KEY, None),
    "checksum does not match": lambda path: ("state", KEY, flipped(get(path, "state", KEY))),
    "is not what the events say": lambda path: variable("a", b"\x02"),
    "no event made this row": lambda path: variable("stranger", b"\x02"),
    "no event made this row of a session without any": lambda path: variable("a", b"\x02", 0, 2),
    "is of no session": lambda path: variable("a", b"\x02", 0, 99),
    "key has another size": lambda path: ("state", b"\0" * 8, protect(b"\0" * 8, b"x")),
}


@pytest.mark.parametrize("what", list(CHANGES))
def test_a_wrong_row_is_one_finding(path: Path, what: str) -> None:
    put(path, CHANGES[what](path))
    with Store.open(path) as store:
        report = store.check()
    assert [finding.message for finding in report.findings] == [
        what.removesuffix(" of a session without any")
    ]
    assert report.findings[0].where.startswith("state ")


def test_a_damaged_row_is_no_state(path: Path) -> None:
    put(path, CHANGES["checksum does not match"](path))
    with Store.open(path) as store:
        call = store.session("s")
        with pytest.raises(CorruptionError):
            call.state  # noqa: B018
        with pytest.raises(CorruptionError):
            call.variables()
        assert call.at(3).state == {"a": 1, "b": [2], "gone": 0}  # folded from the events
        assert len(call.history()) == 4
        call.update_state({"a": 2}).result(10)


@pytest.mark.parametrize(
    "changes", [{"since_roll_up": 0}, {"since_roll_up": 9}, {"trimmed": 4}, {"trimmed": 0}], ids=str
)
def test_a_session_s_row_says_what_rolled_up(path: Path, changes: dict[str, int]) -> None:
    key = SESSION.to_bytes(8, "big")
    row = SessionRow.decode(key, get(path, "session", key))
    assert (row.since_roll_up, row.trimmed, row.messages) == (1, 5, 9)
    put(path, ("session", key, replace(row, **changes, details=b"").encode(key)))  # type: ignore[arg-type]
    with Store.open(path) as store:
        [finding] = store.check().findings
    assert next(iter(changes)) in finding.message


def purged(path: Path, *, is_all: bool) -> bytes:
    """A session whose base is loose, with sealed events behind it or none; the row of ``a``."""
    with Store.open(path, snapshot_frequency=2) as store:
        call = store.session("s")
        call.update_state({"a": 1, "b": [2], "gone": 0})
        for number in range(9):
            call.append({"n": number})
        call.update_state({"c": None, "b": 3}, delete=["gone"])
        store.flush()
        info = call.info()
        assert info is not None and info.unsealed_count == 0
        call.purge(info.event_count if is_all else 5).result()
        other = store.session("other")  # purged as well, and no event ever made a row of it
        other.append({"n": 1}).result()
        other.purge(1).result()
        assert store.check().ok
        for each in (call, other):
            info = each.info()
            assert info is not None and info.unsealed_count == 1  # its base
    return get(path, "state", KEY)


@pytest.mark.parametrize("is_all", [False, True], ids=["sealed events left", "none left"])
@pytest.mark.parametrize("what", [*CHANGES, "no event made this row of a gone session", "nothing"])
def test_a_loose_base_tells_what_rows_there_are(store_path: Path, what: str, is_all: bool) -> None:
    """While the base of a purge was loose, check compared none of its session's rows.

    So variables that were lost beside a purge did not show, nor rows too many.
    """
    purged(store_path, is_all=is_all)
    if what == "no event made this row of a gone session":
        with Store.open(store_path) as store:
            store.session("other").delete().result()
            store.flush()
    if what != "nothing":
        change = CHANGES.get(what, CHANGES["no event made this row of a session without any"])
        put(store_path, change(store_path))
    with Store.open(store_path) as store:
        report = store.check()
    wanted = [] if what == "nothing" else [what.split(" of a ")[0]]
    assert [finding.message for finding in report.findings] == wanted


@pytest.mark.parametrize("is_all", [False, True], ids=["sealed events left", "none left"])
def test_a_damaged_loose_base_is_one_finding(store_path: Path, is_all: bool) -> None:
    """Nothing is said of rows that nothing tells any more."""
    purged(store_path, is_all=is_all)
    with Store.open(store_path, read_only=True) as store:
        position = next(
            each.position for each in store.session("s").events() if each.kind == "base"
        )
    table, key, value = hot_row(store_path, position)
    put(store_path, (table, key, flipped(value)), CHANGES["row is missing"](store_path))
    with Store.open(store_path) as store:
        report = store.check()
    assert [finding.where for finding in report.findings] == [f"log {position}"]


IMPOSSIBLE: dict[str, tuple[str, dict[str, Any]]] = {
    "title": ("facts", {"set": {"title": 5}}),
    "label": ("facts", {"set": {"label.x.y": True}}),
    "status": ("facts", {"set": {"status": "open"}}),
    "parent": ("facts", {"set": {"parent": 7}}),
    "appended": ("facts", {"append": {"label.": "yes"}}),
    "scope": ("usage", {"append": {"": {"scope": "week"}}}),
    "count": ("usage", {"append": {"": {"scope": "turn", "input_tokens": -1}}}),
    "record": ("usage", {"append": {"": 7}}),
}


@pytest.mark.parametrize("way", ["loose", "sealed", "purged", "overwritten"])
@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_what_nobody_can_have_stated_is_a_finding(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, way: str
) -> None:
    """A store with facts of impossible shape, which a load took once, was told to be in order, and
    ``facts`` and listings raised all the same.
    """
    monkeypatch.setattr("engine.loading.check_arriving", lambda *_: None)
    kind, body = IMPOSSIBLE[what]
    with Store.open(store_path, snapshot_frequency=2) as store:
        call = store.session("s")
        call.append({"n": 0}).result()
        line = {"session": "s", "sequence": 1, "kind": kind, "body": body}
        store.load([line])
        if way != "loose":
            call.append_many([{"n": 1}, {"n": 2}]).result()
            store.flush()
        if way == "overwritten":
            call.set_title("right").result()
            call.set_status("right").result()
        if way == "purged":
            call.purge(3).result()
            store.flush()
        found = store.check().findings
    assert found and {finding.session for finding in found} == {"s"}
    assert len(found) == 1


def test_what_calls_state_is_no_finding(store: Store) -> None:
    call = store.session("s", user_id="u", title="t", metadata={"a": 1})
    call.append_many([{}, {}])
    call.set_title(None)
    call.set_status(None, detail={"x": [1]})
    call.set_summary("s")
    call.set_owner(user_id=None, account_id="a")
    call.update_metadata({"k": None}, delete=["a"])
    call.label("l").result()
    call.label("l.m", on=0).result()
    call.set_parent("p", 3)
    call.relate("r")
    call.alias("a").result()
    call.hold("case").result()
    call.record_usage(input_tokens=0, extra={"a": 1}, seconds=1, cost=0.5, currency="EUR").result()
    for _ in range(2):
        assert store.check().ok
        store.flush()
    call.purge(2).result()
    call.clone("c")
    assert store.check().ok
