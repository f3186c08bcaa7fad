"""The bodies of the last messages, decoded side by side: the same as those of events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog import bodies
from eventlog.body import decode_side_by_side, encode_body
from eventlog.errors import CorruptionError, SessionGoneError
from tests.damaged_store import put, rows

HANG_S = 30.0


def encoded(*values: Any) -> list[bytes]:
    return [encode_body(value)[0] for value in values]


@pytest.mark.parametrize("count", [1, 2, 22, 23, 24, 254, 255, 256])
def test_bodies_side_by_side(count: int) -> None:
    values: list[Any] = [{"n": number, "deep": [[None, {"x": b"y"}]]} for number in range(count)]
    assert decode_side_by_side(count, encoded(*values)) == values
    assert decode_side_by_side(count, [b"".join(encoded(*values))]) == values


@pytest.mark.parametrize(
    ("count", "stored"),
    [
        pytest.param(2, [b"\x01"], id="one-is-missing"),
        pytest.param(1, [b"\x01\x02"], id="one-too-many"),
        pytest.param(2, [b"\x82\x01", b"\x02"], id="one-takes-the-next"),
        pytest.param(2, [b"\x01", b"\x02\x03"], id="one-is-two"),
        pytest.param(1, [b"\xc1\x01"], id="a-tag"),
        pytest.param(1, [b"\xff"], id="a-break"),
        pytest.param(1, [b"\xf7"], id="undefined-itself"),
    ],
)
def test_what_is_not_so_many_bodies(count: int, stored: list[bytes]) -> None:
    found = decode_side_by_side(count, stored)
    assert found is None or stored == [b"\xf7"]


def talk(store: Store, count: int) -> list[Any]:
    """Messages of all kinds, with events of other kinds between them."""
    call = store.session("call")
    said: list[Any] = []
    for number in range(count):
        body: dict[str, Any] = {"role": "user", "n": number}
        marks: dict[str, Any] = {}
        if number % 7 == 3:
            marks["id"] = f"id-{number}"
        if number % 11 == 4:
            body["text"] = "half \ud800"  # has fixes
        if number % 13 == 5:
            marks["metadata"] = {"n": number}
        if number % 17 == 6:
            call.append_event("note", {"n": number})
        if number % 19 == 7:
            call.update_state({"n": number})
        call.append(body, **marks)
        said.append(body)
    store.flush(HANG_S)
    return said


@pytest.mark.parametrize("frequency", [3, 50, 4_096], ids=["short", "long", "loose"])
@pytest.mark.parametrize("page_bytes", [1, 700, 1 << 22], ids=["one", "some", "all"])
def test_history_is_what_events_say(
    checked_store: Callable[..., Store],
    monkeypatch: pytest.MonkeyPatch,
    frequency: int,
    page_bytes: int,
) -> None:
    monkeypatch.setattr(bodies, "PAGE_BYTES", page_bytes)
    monkeypatch.setattr(bodies, "STRETCH_BODIES_MAX", 5)
    store = checked_store(snapshot_frequency=frequency)
    said = talk(store, 120)
    call = store.session("call")
    assert [event.body for event in call.events(kinds=("message",))] == said
    assert call.history() == said
    for limit in (1, 2, 5, 6, 7, 59, 119, 120, 121):
        assert call.history(limit) == said[-limit:], limit
    assert call.history(0) == []
    assert store.session("none").history() == store.session("none").history(3) == []


def test_messages_are_the_callers_own(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=2)
    call = store.session("call")
    call.append_many([{"role": "user", "list": []}] * 10).result(HANG_S)
    first = call.history()
    first[0]["list"].append(1)
    assert call.history()[0] == {"role": "user", "list": []}
    assert first[1]["list"] == []


def test_a_purged_session_has_what_is_left(checked_store: Callable[..., Store]) -> None:
    store = checked_store(snapshot_frequency=4)
    call = store.session("call")
    call.append_many([{"role": "user", "n": number} for number in range(60)]).result(HANG_S)
    store.flush(HANG_S)
    call.purge(37).result(HANG_S)
    assert [body["n"] for body in call.history()] == list(range(37, 60))
    assert [body["n"] for body in call.history(30)] == list(range(37, 60))


def test_a_session_that_is_another_one_on_the_next_page(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "PAGE_BYTES", 1)
    store = checked_store(snapshot_frequency=4)
    call = store.session("call")
    for _ in range(6):
        call.append_many([{"role": "user"}] * 4).result(HANG_S)
        store.flush(HANG_S)
    read = store._log.views.read_bodies
    pages: list[int] = []

    def between(*arguments: Any) -> Any:
        pages.append(1)
        if len(pages) == 2:
            call.delete()
            call.append_many([{"role": "user", "n": -1}] * 60).result(HANG_S)
        return read(*arguments)

    monkeypatch.setattr(store._log.views, "read_bodies", between)
    with pytest.raises(SessionGoneError):
        call.history()


def test_a_missing_segment_is_told(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    with Store.open(path, snapshot_frequency=4) as store:
        for _ in range(6):
            store.session("call").append_many([{"role": "user"}] * 4).result(HANG_S)
            store.flush(HANG_S)
    segments = [row for row in rows(path) if row[0] == "segment"]
    put(path, ("segment", segments[0][1], None))
    with Store.open(path, create=False) as store, pytest.raises(CorruptionError, match="missing"):
        store.session("call").history()
