"""Blobs in exports: lines of contents, loaded into other stores, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import ConflictError, DamagedInputError, SessionGoneError, Store
from engine.contents import PIECE_BYTES, line_to_content
from engine.export import line_to_event

NOISE = random.Random(5).randbytes(2 * PIECE_BYTES + 7)
MESSAGE = {"role": "user", "content": "look"}


@pytest.fixture
def told(checked_store: Callable[..., Store], tmp_path: Path) -> list[str]:
    """The export of a store with blobs of several sizes, tenants and sessions."""
    store = checked_store(tmp_path / "first")
    acme = store.tenant("acme")
    noise = acme.blobs.put(NOISE, media_type="image/png")
    exact = acme.blobs.put(NOISE[:PIECE_BYTES])
    empty = acme.blobs.put(b"")
    acme.session("a").append(MESSAGE, blobs=[noise, empty], idempotency_key="k").result(10)
    store.session("b").append(MESSAGE, blobs=[store.blobs.put(b"x")]).result(10)
    acme.session("c").append(MESSAGE, blobs=[exact, noise]).result(10)
    acme.session("a").append(MESSAGE, blobs=[noise, noise]).result(10)
    return list(store.export_lines(store.read()))


def test_a_content_comes_once_a_session_before_the_first_that_names_it(told: list[str]) -> None:
    found = [json.loads(line) for line in told]
    shape = [
        (line["session"], f"{line['start']}+" if "blob" in line else len(line["blobs"]))
        for line in found
    ]
    first, second = f"{PIECE_BYTES}+", f"{2 * PIECE_BYTES}+"
    assert shape == [
        *[("a", "0+"), ("a", first), ("a", second), ("a", "0+"), ("a", 2)],
        *[("b", "0+"), ("b", 1)],
        *[("c", "0+"), ("c", "0+"), ("c", first), ("c", second), ("c", 2)],
        ("a", 2),
    ]
    assert max(map(len, told)) < 1 << 20 | 1 << 10


def test_export_load_export_is_identical(
    told: list[str], checked_store: Callable[..., Store], tmp_path: Path
) -> None:
    store = checked_store(tmp_path / "second")
    result = store.load(map(json.loads, told))
    assert (result.loaded, result.skipped) == (4, 0)
    acme = store.tenant("acme")
    sessions = [acme.session("a"), store.session("b"), acme.session("c")]
    events = (event for session in sessions for event in session.events())
    by_session = [each for name in "abc" for each in told if json.loads(each)["session"] == name]
    assert list(store.export_lines(events)) == by_session
    blobs = store.tenant("acme").blobs
    first = next(iter(store.tenant("acme").session("a").events()))
    noise, empty = blobs.of(first)
    assert (noise.media_type, empty.media_type) == ("image/png", None)
    assert blobs.read(noise) == NOISE and blobs.read(empty) == b""
    again = store.load(map(json.loads, told))
    assert (again.loaded, again.skipped) == (0, 4)
    assert store.stats()["blobs"]["references"] == 7


def test_another_blob_at_an_event_of_the_store_is_a_conflict(
    told: list[str], checked_store: Callable[..., Store], tmp_path: Path
) -> None:
    store = checked_store(tmp_path / "second")
    store.load(map(json.loads, told))
    last = json.loads(told[-1])
    last["blobs"] = last["blobs"][:1]
    changed = [*map(json.loads, told[:-1]), last]
    with pytest.raises(ConflictError, match="another event at sequence 1"):
        store.load(changed)


def line(**changes: Any) -> dict[str, Any]:
    found = {"session": "a", "blob": "0" * 64, "size": 3, "start": 0, "data": "YWJj", **changes}
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        (line(more=1), "unknown key 'more'"),
        (line(session=None), "session must be"),
        (line(blob="0" * 63), "64 lower-case"),
        (line(blob="A" * 64), "64 lower-case"),
        (line(size=-1), "size must be"),
        (line(size=True), "size must be"),
        (line(start="0"), "start must be"),
        (line(size=2), "no part of a content of 2"),
        (line(start=1), "no part of a content of 3"),
        (line(data=""), "0 bytes at 0"),
        (line(data="YWJ"), "base64"),
        (line(data="YWJk\n"), "base64"),
        (line(data=7), "data must be"),
        (line(tenant=7), "tenant and media_type"),
        (line(media_type=[]), "tenant and media_type"),
    ],
    ids=str,
)
def test_malformed_lines_of_contents(mapping: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        line_to_content(mapping)


@pytest.mark.parametrize(
    "blobs", [[], "0" * 32, ["0" * 31], ["0" * 33], ["G" * 32], [7], ["0" * 32] * 257]
)
def test_malformed_names_of_contents(blobs: Any) -> None:
    with pytest.raises(ValueError, match="blobs must be 1 to 256 names"):
        line_to_event({"session": "a", "kind": "message", "body": {}, "blobs": blobs})


@pytest.mark.parametrize(
    ("lines", "number", "reason"),
    [
        pytest.param([line()], 1, "have another name", id="other bytes"),
        pytest.param([line(size=6)], 1, "before it is whole", id="cut off at the end"),
        pytest.param([line(size=6), line(size=7, start=3)], 2, "elsewhere", id="another size"),
        pytest.param([line(size=6), line(size=6)], 2, "elsewhere", id="from the start again"),
        pytest.param(
            [line(size=6), line(size=6, start=3, blob="1" * 64)], 2, "elsewhere", id="another name"
        ),
        pytest.param([line(start=3, size=6)], 1, "begins at 3", id="begins in the middle"),
        pytest.param(
            [line(size=6), {"session": "a", "kind": "message", "body": {}}],
            2,
            "before it is whole",
            id="an event in the middle",
        ),
        pytest.param(
            [{"session": "a", "kind": "message", "body": {}, "blobs": ["1" * 64]}],
            1,
            "no line before tells",
            id="never told",
        ),
        pytest.param([line(media_type="\n")], 1, "media_type must be", id="no media type"),
    ],
)
def test_contents_that_cannot_be_trusted(
    store: Store, lines: list[dict[str, Any]], number: int, reason: str
) -> None:
    with pytest.raises(DamagedInputError, match=reason) as caught:
        store.load(lines)
    assert caught.value.line == number
    assert store.stats()["blobs"]["unfinished"] == 0
    assert store.stats()["memory"]["blob_streams"] == 0
    assert not store.session("a").exists


def test_an_address_is_loaded_where_the_blob_is(store: Store) -> None:
    blob = store.blobs.put(b"x")
    event = {"session": "a", "kind": "message", "body": {}, "blobs": [blob.address.hex()]}
    assert store.load([event]).loaded == 1
    event["blobs"] = ["0" * 32]
    with pytest.raises(ConflictError, match="no blob"):
        store.load([{**event, "session": "b"}])


def test_a_tenant_s_load_takes_contents_as_its_own(told: list[str], store: Store) -> None:
    with pytest.raises(DamagedInputError, match="another tenant"):
        store.tenant("other").load(map(json.loads, told))
    lines = [json.loads(each) for each in told if '"session":"b"' in each]
    store.tenant("other").load(lines)
    event = store.tenant("other").session("b").event(0)
    assert store.tenant("other").blobs.read(event.blobs[0]) == b"x"


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
def test_what_was_erased_since_it_was_read_is_no_damage(store: Store, again: bool) -> None:
    session = store.session("a")
    for content in (b"x", b"y"):
        session.append(MESSAGE, blobs=[store.blobs.put(content)]).result(10)
    events = list(session.events())
    lines = store.export_lines(events)
    first = [next(lines), next(lines)]
    session.erase()
    if again:
        session.append_many([MESSAGE] * 3).result(10)
    assert [json.loads(line)["sequence"] for line in first if "sequence" in line] == [0]
    assert list(lines) == []
    assert list(store.export_lines(events)) == []
    with pytest.raises(SessionGoneError, match="was removed"):
        list(store.blobs.of(events[0]))
