"""Artifacts: exact contents of any size, and the versions of each moment and branch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import (
    AppendConflictError,
    CorruptionError,
    InvalidMessageError,
    InvalidNameError,
    SessionGoneError,
    Store,
    TrimmedError,
    UsageError,
)
from engine.artifacts import INLINE_BYTES_MAX, content_addresses, content_name
from engine.spaces import Space
from engine.values import Present
from eventlog.limits import MEDIA_TYPE_BYTES_MAX, MIB
from tests.unit.belongings import HANG_S, USER, copy

CONTENTS = {
    "text": "found",
    "empty": "",
    "no-bytes": b"",
    "bytes": bytes(range(256)),
    "surrogate": "\ud83d \x00 e\u0301",
    "edge": "x" * INLINE_BYTES_MAX,
    "past-the-edge": "é" * (INLINE_BYTES_MAX // 2) + "\udfff",
    "blob": bytes(range(256)) * 17,
    "10-mib": "ab\u4f60\n" * (10 * MIB // 6),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_content_comes_back_exactly(store: Store, content: str | bytes) -> None:
    call = store.session("a")
    call.append(USER)
    ack = call.artifacts.write("out", content, "text/x").result(HANG_S)
    found = call.artifacts.read("out")
    assert found == content and type(found) is type(content)
    (version,) = call.artifacts.versions("out")
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    assert (version.version, version.size, version.media_type) == (ack.first, len(data), "text/x")
    assert (version.event, version.branch, version.is_text) == (0, 0, type(content) is str)
    is_large = len(data) > INLINE_BYTES_MAX
    assert store.stats()["blobs"]["references"] == (1 if is_large else 0)
    assert len(call.event(ack.first).payload) < INLINE_BYTES_MAX + 300


def test_versions_ids_and_absence(store: Store) -> None:
    call = store.session("a")
    assert call.artifacts.read("x") is None and call.artifacts.list() == []
    first = call.artifacts.write("b", "one").result(HANG_S).first
    call.artifacts.write("a", "other").result(HANG_S)
    last = call.artifacts.write("b", b"two").result(HANG_S).first
    assert call.artifacts.list() == ["a", "b"]
    assert [each.version for each in call.artifacts.versions("b")] == [first, last]
    assert call.artifacts.read("b", first) == "one" and call.artifacts.read("b") == b"two"
    assert call.artifacts.read("b", 99) is None and call.artifacts.versions("c") == []
    assert store.session("b").artifacts.list() == []
    assert store.tenant("t").session("a").artifacts.list() == []

    async def ask() -> Any:
        ack = await call.artifacts.write_async("c", "x" * 5_000)
        await ack
        found = call.artifacts
        return (
            await found.read_async("c"),
            await found.list_async(),
            await found.versions_async("c"),
        )

    text, ids, versions = asyncio.run(ask())
    assert (text, ids, len(versions)) == ("x" * 5_000, ["a", "b", "c"], 1)


def test_a_rewind_sees_the_versions_of_then(store: Store) -> None:
    """adk-python 4932, 6391: a rewind took events back and left artifacts as they were last
    written. A version is an event, and belongs to the event that it was made at."""
    call = store.session("a")
    call.append(USER).result(HANG_S)
    call.artifacts.write("out", "before").result(HANG_S)
    call.append({"role": "assistant", "content": "1"}).result(HANG_S)
    call.artifacts.write("out", "x" * 5_000).result(HANG_S)
    call.artifacts.write("new", "n").result(HANG_S)
    call.append({"role": "assistant", "content": "2"}, parent=0).result(HANG_S)
    assert call.artifacts.read("out") == "x" * 5_000  # the newest of all
    assert call.artifacts.on().read("out") == call.artifacts.on(5).read("out") == "before"
    assert call.artifacts.on().list() == ["out"] and call.artifacts.on(2).list() == ["new", "out"]
    assert asyncio.run(call.artifacts.on_async(2)).read("out") == "x" * 5_000
    call.artifacts.write("out", "after").result(HANG_S)
    call.artifacts.write("late", "l", event=2).result(HANG_S)
    assert call.artifacts.on().read("out") == "after"
    assert call.artifacts.on(2).list() == ["late", "new", "out"]
    assert call.at(2).artifacts.read("out") == "before" and call.at(0).artifacts.list() == []
    assert call.at(4).artifacts.read("out") == call.at(4).artifacts.on().read("out") == "x" * 5_000
    call.checkout(2).result(HANG_S)
    assert call.artifacts.on().read("out") == "x" * 5_000


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "loose"])
def test_without_a_head_no_version_of_an_event_is_on_the_path(
    store: Store, is_sealed: bool
) -> None:
    """A moment without a head took the head of now."""
    call = store.session("a")
    free = call.artifacts.write("free", "before any event").result(HANG_S).last
    call.append(USER)
    call.artifacts.write("out", "x").result(HANG_S)
    moved = call.checkout(None).result(HANG_S).last
    assert call.artifacts.on().list() == ["free"]
    call.checkout(1).result(HANG_S)
    call.append(USER).result(HANG_S)
    if is_sealed:
        call.roll_up().result(HANG_S)
    assert call.artifacts.on().list() == ["free", "out"]
    for sequence in (free, moved):
        then = call.at(sequence)
        assert then.head is None and then.artifacts.on().list() == ["free"]
        assert then.artifacts.on().on().list() == ["free"]
    assert call.at(moved).artifacts.list() == call.at(moved).artifacts.on(1).list()
    assert call.at(moved).artifacts.on(1).list() == ["free", "out"]
    call.delete().result(HANG_S)
    with pytest.raises(SessionGoneError):
        then.artifacts.on()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("", "x"), InvalidNameError),
        (("x" * 513, "x"), InvalidNameError),
        (("a", None), InvalidMessageError),
        (("a", bytearray(3)), InvalidMessageError),
        (("a", "x", 7), InvalidMessageError),
    ],
)
def test_what_is_no_artifact_is_refused(
    store: Store, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        store.session("a").artifacts.write(*arguments)
    assert not store.session("a").exists
    with pytest.raises(AppendConflictError):
        store.session("a").artifacts.write("a", "x", event=3).result(HANG_S)


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1])
def test_a_media_type_is_checked_whatever_the_size(store: Store, size: int) -> None:
    """Only large contents had theirs checked."""
    call = store.session("a")
    longest = "m" * MEDIA_TYPE_BYTES_MAX
    for wrong in ("", longest + "m", "\u00e9/x", "a\nb", " text/x", "text/x "):
        with pytest.raises(UsageError):
            call.artifacts.write("out", b"x" * size, wrong)
    assert not call.exists and store.stats()["blobs"]["count"] == 0
    for right in (None, "image/png", longest):
        call.artifacts.write("out", b"x" * size, right).result(HANG_S)
        assert call.artifacts.versions("out")[-1].media_type == right


def test_equal_contents_are_stored_once(store: Store) -> None:
    """agno 6529, 3859: 16 images made 165 MB of sessions, as each save kept the same bytes again.
    A content is kept once, and named by each version."""
    call = store.session("a")
    content = bytes(range(256)) * 4_096
    for number in range(20):
        call.artifacts.write(f"shot{number}", content, "image/png").result(HANG_S)
    found = store.stats()["blobs"]
    assert (found["count"], found["references"]) == (1, 20)


def test_300_contents_outlive_a_purge(
    checked_store: Callable[..., Store], store_path: Path
) -> None:
    """An event names 256 blobs at most, and a base more versions than that: it takes several."""
    store = checked_store()
    call = store.session("a")
    contents = [f"{number}" * 5_000 for number in range(300)]
    for number, content in enumerate(contents):
        call.artifacts.write(f"id{number}", content)
    call.append(USER).result(HANG_S)
    ack = call.purge(300).result(HANG_S)
    assert ack.last - ack.first == 1
    store.flush()
    assert store.stats()["blobs"]["references"] == 300
    assert [call.artifacts.read(f"id{number}") for number in range(300)] == contents
    copied = checked_store(store_path.with_name("copy"))
    copy(store, call, copied)
    there = copied.session("a").artifacts
    assert [there.read(f"id{number}") for number in range(300)] == contents
    with pytest.raises(TrimmedError):
        call.at(3)
    call.erase(HANG_S)
    assert store.stats()["blobs"]["count"] == 0


@pytest.mark.parametrize("content", ["x" * 5_000, "small"], ids=["blob", "inline"])
@pytest.mark.parametrize("is_made_anew", [True, False], ids=["made-anew", "gone"])
def test_a_moment_of_a_deleted_session_gives_no_content(
    store: Store, content: str, is_made_anew: bool
) -> None:
    """Content was looked up by name and sequence: one got that of the session made after it."""
    call = store.session("a")
    call.append(USER)
    call.artifacts.write("out", content).result(HANG_S)
    early = call.at(1).artifacts
    on = early.on()
    assert early.read("out") == on.read("out") == content
    call.delete().result(HANG_S)
    if is_made_anew:
        call.append(USER)
        call.artifacts.write("out", "y" * 5_000).result(HANG_S)
    reads: list[Callable[[], Any]] = [early.on, lambda: early.on(0)]
    if content != "small":
        reads += [lambda: early.read("out"), lambda: on.read("out"), lambda: early.read("out", 1)]
    for read in reads:
        with pytest.raises(SessionGoneError):
            read()


def test_a_version_that_is_written_while_versions_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times and versions were read one after the other: a version that came between had no time,
    and ended the call with a KeyError."""
    call = store.session("a")
    first = call.artifacts.write("out", "x").result(HANG_S)
    real = Present.all

    def all_of(values: Present, space: Space) -> Any:
        monkeypatch.undo()
        seen = real(values, space)
        call.artifacts.write("out", "y").result(HANG_S)
        return seen

    monkeypatch.setattr(Present, "all", all_of)
    assert [each.version for each in call.artifacts.versions("out")] == [first.first]
    assert len(call.artifacts.versions("out")) == 2


def test_a_session_made_anew_while_a_content_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = store.session("a")
    call.artifacts.write("out", "x" * 5_000).result(HANG_S)

    def late(*given: Any) -> Any:
        monkeypatch.setattr("engine.artifacts.content_addresses", content_addresses)
        call.delete().result(HANG_S)
        call.artifacts.write("out", "y" * 5_000).result(HANG_S)
        return content_addresses(*given)

    monkeypatch.setattr("engine.artifacts.content_addresses", late)
    with pytest.raises(SessionGoneError):
        call.artifacts.read("out")
    assert call.artifacts.read("out") == "y" * 5_000


def test_a_content_that_is_not_the_named_one_is_damage(store: Store) -> None:
    """Lines of an export that somebody edited may name a blob that is another content."""
    call = store.session("a")
    call.artifacts.write("out", "x" * 5_000).result(HANG_S)
    lines = [json.loads(line) for line in store.export_lines(call.events())]
    name = content_name(b"x" * 5_000)
    for line in lines:
        line["session"] = "b"
    body = json.dumps(lines[-1]["body"])
    assert name in body
    lines[-1]["body"] = json.loads(body.replace(name, "0" * len(name)))
    store.load(lines)
    assert store.session("b").artifacts.list() == ["out"]
    with pytest.raises(CorruptionError):
        store.session("b").artifacts.read("out")
