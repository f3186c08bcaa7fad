"""Images in messages and beside them: kept exactly and once, and left out of a view only."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Blob, Session, Store
from engine.estimate import MEDIA_TYPES, estimate_tokens
from eventlog.limits import MIB
from tests.model.staging import HANG_S

IMAGE = Random(1).randbytes(1_000_000)
URL = "data:image/png;base64," + base64.b64encode(Random(2).randbytes(3 * MIB * 3 // 4)).decode()

Open = Callable[..., Store]


def used(store: Store) -> int:
    store.flush(HANG_S)
    found: int = store.stats()["used_bytes"]
    return found


def named(call: Session, blob: Blob) -> Any:
    return call.append({"role": "user", "content": "see"}, blobs=[blob])


def pieces() -> Iterator[bytes]:
    for start in range(0, len(IMAGE), 70_001):
        yield IMAGE[start : start + 70_001]


WAYS: dict[str, Callable[[Store, int], Any]] = {
    "of a message": lambda store, n: named(store.session("call"), store.blobs.put(IMAGE)),
    "in pieces": lambda store, n: named(store.session("call"), store.blobs.put(pieces())),
    "of many sessions": lambda store, n: named(store.session(f"s{n}"), store.blobs.put(IMAGE)),
    "artifacts": lambda store, n: store.session("call").artifacts.write(f"a{n}", IMAGE),
    "versions": lambda store, n: store.session("call").artifacts.write("a", IMAGE, "image/png"),
    "on branches": lambda store, n: store.session("call").append(
        {"n": n}, parent=-1, blobs=[store.blobs.put(IMAGE)]
    ),
    "events": lambda store, n: store.session("call").append_event(
        "frame", {"n": n}, blobs=[store.blobs.put(IMAGE)] * 1
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_image_that_comes_20_times_is_stored_once(
    checked_store: Open, tmp_path: Path, way: str
) -> None:
    """agno 6529, 3859: 16 images made sessions of 165 MB, and tables of 4 GB."""
    store = checked_store()
    empty = used(store)
    for number in range(20):
        WAYS[way](store, number).result(HANG_S)
    assert used(store) - empty < 1.2 * len(IMAGE)
    found = store.stats()["blobs"]
    assert (found["count"], found["references"]) == (1, 20)
    for info in store.sessions().sessions:
        store.session(info.name).clone(f"copy of {info.name}")
    assert used(store) - empty < 1.3 * len(IMAGE)
    other = checked_store(tmp_path / "other")
    for _ in range(2):
        other.load(map(json.loads, store.export_lines(store.read())))
    assert other.stats()["blobs"]["count"] == 1
    assert used(other) - empty < 1.5 * len(IMAGE)


SHAPES: dict[str, Callable[[str], dict[str, Any]]] = {
    "openai": lambda url: {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}],
    },
    "responses": lambda url: {
        "role": "user",
        "content": [{"type": "input_image", "image_url": url}],
    },
    "a text": lambda url: {"role": "user", "content": f"look: {url}"},
    "a result": lambda url: {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "data": url}]}
        ],
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_message_with_a_data_url_of_3_mb_comes_back_as_it_was(
    checked_store: Open, tmp_path: Path, shape: str
) -> None:
    """flue 240: a session above 2 MB could not be saved any more, for one image in it."""
    store = checked_store(snapshot_frequency=2)
    call = store.session("call")
    message = SHAPES[shape](URL)
    for number in range(3):
        call.append({"role": "user", "content": f"m{number}"}).result(HANG_S)
        call.append(message).result(HANG_S)
    store.flush(HANG_S)
    assert call.event(1).body == call.history(1)[0] == message
    assert call.window(repair=False)[-1] == message
    other = checked_store(tmp_path / "other")
    other.load(map(json.loads, store.export_lines(call.events())))
    assert other.session("call").history() == call.history()


@pytest.mark.parametrize("kind", sorted(MEDIA_TYPES))
def test_media_of_every_kind_are_left_out_of_the_view_alone(store: Store, kind: str) -> None:
    """term-llm 679, hermes-agent 31705: users stripped images from what was stored to save tokens,
    and lost them."""
    call = store.session("call")
    medium = {"type": kind, kind: {"url": URL[:20_000]}, "data": URL[:20_000], "id": "f1"}
    asks = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "see", "input": {}}],
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "this"}, medium]},
        asks,
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [medium, {"type": "text", "text": "t"}],
                }
            ],
        },
    ]
    call.append_many(messages).result(HANG_S)
    window = call.window_entries(media=False)
    assert URL[:100] not in json.dumps(window.messages)
    assert len(window.messages) == 3 and window.tokens < 200
    assert all([estimate_tokens(body) > 1_500 for body in messages[::2]])
    assert "this" in json.dumps(window.messages) and '"t"' in json.dumps(window.messages)
    budget = call.window(tokens=250, media=False)
    assert len(budget) == 3  # what is left out takes none of the budget
    assert call.window() == call.history() == messages
    assert call.event(0).body == messages[0]
