"""Blobs through the public calls: put, read, name, tenants, damage-free stores after each test."""

from __future__ import annotations

import asyncio
import io
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import (
    Blob,
    ConflictError,
    ForkedStoreError,
    IdempotencyConflictError,
    LimitExceededError,
    OverloadedError,
    QuotaExceededError,
    ReadOnlyError,
    Store,
    StoreClosedError,
    UsageError,
)
from engine.drafting import draft_event
from eventlog import blobput
from eventlog.limits import (
    BLOB_BATCH_CHUNKS,
    BLOB_REFERENCE_BYTES,
    BLOB_STREAMS_MAX,
    CHUNK_BYTES_MAX,
    COMMIT_BYTES_MAX,
    EVENT_BLOBS_MAX,
    MEDIA_TYPE_BYTES_MAX,
)

NOISE = random.Random(2).randbytes(3 * CHUNK_BYTES_MAX + 10)
TEXT = (b"The quick brown fox jumps over the lazy dog. " * 80_000)[: 3 * CHUNK_BYTES_MAX]
MESSAGE = {"role": "user", "content": "look"}


def usage(store: Store) -> dict[str, Any]:
    found: dict[str, Any] = store.stats()["blobs"]
    return found


# Round trips


@pytest.mark.parametrize(
    "size",
    [0, 1, 4_063, 4_064, 4_065, 100_000]
    + [times * CHUNK_BYTES_MAX + more for times in (1, 2, 3) for more in (-1, 0, 1)],
)
@pytest.mark.parametrize("data", [NOISE, TEXT + b"0123456789"], ids=["noise", "text"])
def test_contents_around_a_chunk_come_back(store: Store, data: bytes, size: int) -> None:
    content = data[:size]
    blob = store.blobs.put(iter([content]), media_type="a/b")
    assert (blob.size, blob.media_type, blob.tenant) == (size, "a/b", "")
    assert store.blobs.read(blob) == content
    assert store.blobs.put(content) == blob
    assert store.blobs.get(blob.address) == blob
    assert usage(store)["count"] == 1 and usage(store)["unfinished"] == 0


@pytest.mark.parametrize(
    "give",
    [
        pytest.param(lambda data: data, id="bytes"),
        pytest.param(bytearray, id="bytearray"),
        pytest.param(memoryview, id="memoryview"),
        pytest.param(lambda data: memoryview(data).cast("H"), id="memoryview of words"),
        pytest.param(lambda data: memoryview(data[::-1])[::-1], id="memoryview backwards"),
        pytest.param(lambda data: [memoryview(data[::-1])[::-1]], id="list of one backwards"),
        pytest.param(io.BytesIO, id="file"),
        pytest.param(lambda data: [data[:1], b"", bytearray(data[1:])], id="list"),
        pytest.param(
            lambda data: (data[start : start + 70_000] for start in range(0, len(data), 70_000)),
            id="generator",
        ),
    ],
)
def test_every_kind_of_source_gives_the_same_blob(
    store: Store, give: Callable[[bytes], Any]
) -> None:
    content = NOISE[: CHUNK_BYTES_MAX + 1_000]
    blob = store.blobs.put(give(content))
    assert store.blobs.read(blob) == content
    assert store.blobs.put(content) == blob


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    pieces=st.lists(st.binary(max_size=700), max_size=12),
    ranges=st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 5_000)), max_size=6),
)
def test_any_pieces_and_any_ranges(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    pieces: list[bytes],
    ranges: list[tuple[int, int]],
) -> None:
    """With chunks of 96 bytes, so that a few hundred bytes cross many borders."""
    content = b"".join(pieces)
    with monkeypatch.context() as patch:
        patch.setattr(blobput, "CHUNK_BYTES_MAX", 96)
        patch.setattr(blobput, "BLOB_BATCH_BYTES", 300)
        blob = store.blobs.put(iter(pieces))
    assert blob.size == len(content)
    reader = store.blobs.open(blob)
    for start, stop in ranges:
        assert store.blobs.read(blob, start, stop) == content[start:stop]
        reader.seek(start)
        assert reader.read(stop) == content[start : start + stop]
    assert io.BufferedReader(store.blobs.open(blob)).read() == content


def test_a_reader_is_a_binary_file(store: Store) -> None:
    blob = store.blobs.put(NOISE)
    with store.blobs.open(blob) as reader:
        assert reader.readable() and reader.seekable() and not reader.writable()
        assert reader.seek(-5, io.SEEK_END) == len(NOISE) - 5
        assert reader.read() == NOISE[-5:] and reader.read(1) == b""
        assert reader.seek(CHUNK_BYTES_MAX - 2) == reader.tell()
        buffer = bytearray(4)
        assert reader.readinto(buffer) == 4
        assert buffer == NOISE[CHUNK_BYTES_MAX - 2 : CHUNK_BYTES_MAX + 2]
        assert reader.seek(-4, io.SEEK_CUR) == CHUNK_BYTES_MAX - 2
        reader.seek(10 * len(NOISE))
        assert reader.read(1) == b"" and reader.readinto(buffer) == 0
        with pytest.raises(UsageError, match="cannot seek"):
            reader.seek(-1)
    with pytest.raises(UsageError, match="closed"):
        reader.read()


def test_a_reader_gives_lines(store: Store) -> None:
    """Of a file without a buffer the base class would read lines byte by byte."""
    long = b"x" * (CHUNK_BYTES_MAX + 5)
    content = b"one\n\n" + long + b"\nlast"
    reader = store.blobs.open(store.blobs.put(content))
    assert list(reader) == io.BytesIO(content).readlines()
    reader.seek(0)
    assert [reader.readline(2), reader.readline(None), reader.readline(0)] == [b"on", b"e\n", b""]
    reader.seek(len(content) + 3)
    assert reader.readline() == b""


def test_a_range_reads_only_its_chunks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from eventlog import blobread

    blob = store.blobs.put(NOISE)
    read: list[int] = []
    real = blobread.find_chunk

    def find_chunk(tables: Any, number: int, index: int) -> bytes | None:
        read.append(index)
        return real(tables, number, index)

    monkeypatch.setattr(blobread, "find_chunk", find_chunk)
    store.blobs.read(blob, 2 * CHUNK_BYTES_MAX - 1, 2 * CHUNK_BYTES_MAX + 1)
    assert read == [1, 2]
    reader = store.blobs.open(blob)
    for _ in range(100):
        reader.read(1_000)
    assert read == [1, 2, 0]  # small reads of one chunk decode it once


async def pieces_of(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        await asyncio.sleep(0)
        yield content[start : start + size]


@pytest.mark.parametrize("size", [1_000, 70_000, len(NOISE)])
def test_putting_and_reading_on_a_loop(store: Store, size: int) -> None:
    async def run() -> None:
        blob = await store.blobs.put_async(pieces_of(NOISE, size), media_type="audio/pcm")
        assert blob.media_type == "audio/pcm"
        assert await store.blobs.put_async(NOISE) == blob
        assert await store.blobs.put_async(io.BytesIO(NOISE)) == blob
        assert await store.blobs.read_async(blob, 5, 10) == NOISE[5:10]
        assert await store.blobs.get_async(blob.address.hex()) == blob
        reader = await store.blobs.open_async(blob)
        assert await reader.read_async() == NOISE

    asyncio.run(run())


# Sources that fail, streams that wait


def failing(content: bytes) -> Iterator[bytes]:
    yield content
    raise RuntimeError("the line went dead")


async def failing_async(content: bytes) -> AsyncIterator[bytes]:
    yield content
    raise RuntimeError("the line went dead")


def test_a_source_that_fails_leaves_nothing(store: Store) -> None:
    with pytest.raises(RuntimeError, match="dead"):
        store.blobs.put(failing(NOISE))
    with pytest.raises(RuntimeError, match="dead"):
        asyncio.run(store.blobs.put_async(failing_async(NOISE)))
    assert usage(store)["count"] == usage(store)["unfinished"] == 0
    assert store.stats()["memory"]["blob_streams"] == 0


def test_a_cancelled_put_leaves_nothing(store: Store) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield NOISE
        await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.create_task(store.blobs.put_async(endless()))
        while not usage(store)["unfinished"]:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert usage(store)["unfinished"] == 0
    assert store.stats()["memory"]["blob_streams"] == 0


def test_a_place_is_waited_for_in_vain_and_with_success(store: Store) -> None:
    gates = [threading.Event() for _ in range(BLOB_STREAMS_MAX)]

    def slow(number: int) -> Iterator[bytes]:
        yield b"%d" % number
        gates[number].wait(30)

    threads = [
        threading.Thread(target=store.blobs.put, args=(slow(number),))
        for number in range(BLOB_STREAMS_MAX)
    ]
    for thread in threads:
        thread.start()
    streams = store._log.streams
    while streams.count < BLOB_STREAMS_MAX:
        threading.Event().wait(0.001)
    with pytest.raises(OverloadedError):
        store.blobs.put(b"one more", timeout=0)
    with pytest.raises(OverloadedError):
        asyncio.run(store.blobs.put_async(b"one more", timeout=0.01))
    late: list[Blob] = []
    waiting = threading.Thread(target=lambda: late.append(store.blobs.put(b"one more")))
    waiting.start()
    gates[3].set()
    waiting.join(30)
    assert late[0].size == 8
    for gate, thread in zip(gates, threads, strict=True):
        gate.set()
        thread.join(30)
    assert usage(store)["count"] == BLOB_STREAMS_MAX + 1


def test_a_blob_that_goes_while_it_is_compared_is_put_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes the blob between the look for its address and the comparison."""
    from eventlog.blobput import Upload

    for source in (lambda: NOISE, lambda: iter([NOISE])):
        first = store.blobs.put(NOISE)
        real = Upload._compare
        compared: list[bool] = []

        def compare(
            self: Upload,
            *arguments: Any,
            real: Any = real,
            seen: Any = compared,
            first: Blob = first,
        ) -> bool:
            if not seen:
                store._log.writer.run(Doom(first), 10)
                store.collect_blobs()
            seen.append(real(self, *arguments))
            return seen[-1]

        with monkeypatch.context() as patch:
            patch.setattr(Upload, "_compare", compare)
            second = store.blobs.put(source())
        assert (compared, second) == ([False], first)
        assert store.blobs.read(second) == NOISE
        assert usage(store)["unfinished"] == 0


def test_a_content_that_shrinks_to_nothing_is_cut_into_bounded_commits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobput, "CHUNK_BYTES_MAX", 1_000)
    before = store._log.writer.machine.commits
    blob = store.blobs.put(bytes(1_000) for _ in range(300))
    assert store._log.writer.machine.commits - before >= 1 + 300 // BLOB_BATCH_CHUNKS
    assert blob.size == 300_000 and store.blobs.read(blob) == bytes(300_000)


# What is refused


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("text", "not str"),
        ({b"a": 1}, "not dict"),
        (7, "not int"),
        (None, "not NoneType"),
        ([1, 2], "must give bytes, not int"),
        (io.StringIO("text"), "must give bytes, not str"),
        (["text"], "must give bytes, not str"),
        ([b"a", None, b"b"], "must give bytes, not NoneType"),
    ],
    ids=str,
)
def test_data_of_another_sort(store: Store, data: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        store.blobs.put(data)
    with pytest.raises(UsageError, match=reason):
        asyncio.run(store.blobs.put_async(data))
    assert store.stats()["memory"]["blob_streams"] == 0


@pytest.mark.parametrize("media_type", ["", 7, b"a/b", "a/\n", "ä/b", " a/b", "x" * 256])
def test_media_types_of_another_sort(store: Store, media_type: Any) -> None:
    with pytest.raises(UsageError, match="media_type"):
        store.blobs.put(b"x", media_type=media_type)


def test_the_longest_media_type(store: Store) -> None:
    longest = "x" * MEDIA_TYPE_BYTES_MAX
    assert store.blobs.get(store.blobs.put(b"x", media_type=longest).address).media_type == longest


@pytest.mark.parametrize("blob", [b"short", "00" * 15, "zz" * 16, 5, None, bytearray(16)])
def test_addresses_of_another_sort(store: Store, blob: Any) -> None:
    for call in (store.blobs.get, store.blobs.open, store.blobs.read):
        with pytest.raises(UsageError, match="16 bytes"):
            call(blob)
    with pytest.raises(UsageError, match="16 bytes"):
        store.session("a").append(MESSAGE, blobs=[blob])


def test_a_content_over_the_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobput, "BLOB_BYTES_MAX", 1_000)
    assert store.blobs.put(bytes(1_000)).size == 1_000
    with pytest.raises(LimitExceededError) as caught:
        store.blobs.put(iter([bytes(1_000), b"x"]))
    assert (caught.value.name, caught.value.actual) == ("BLOB_BYTES_MAX", 1_001)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_puts_nothing(store: Store) -> None:
    blob = store.blobs.put(b"x")
    child = os.fork()
    if not child:  # pragma: no cover - another process
        code = 1
        try:
            store.blobs.put(b"y")
        except ForkedStoreError:
            try:
                store.blobs.read(blob)
            except ForkedStoreError:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert usage(store)["count"] == 1


def test_reading_what_is_not_there(store: Store) -> None:
    assert store.blobs.get(bytes(16)) is None
    with pytest.raises(ConflictError, match="no blob") as caught:
        store.blobs.open(bytes(16))
    assert caught.value.expected == bytes(16).hex() and "Put the content again" in caught.value.hint


def test_a_store_that_takes_nothing(checked_store: Callable[..., Store]) -> None:
    store = checked_store(quota_bytes=1 << 20)
    blob = store.blobs.put(b"0")
    with pytest.raises(QuotaExceededError):
        store.blobs.put(NOISE)
    assert usage(store)["unfinished"] == 0
    held = store.blobs.put(NOISE[:CHUNK_BYTES_MAX])
    with pytest.raises(QuotaExceededError):
        store.blobs.put(b"1")
    assert store.blobs.put(NOISE[:CHUNK_BYTES_MAX]) == held  # what is there is found
    store.close()
    with pytest.raises(StoreClosedError):
        store.blobs.put(b"x")
    reading = checked_store(read_only=True)
    assert reading.blobs.read(blob, 0, 1) == b"0"
    with pytest.raises(ReadOnlyError):
        reading.blobs.put(b"x")


# Events


def test_events_name_blobs_and_keep_them(store: Store) -> None:
    one, two = store.blobs.put(b"one"), store.blobs.put(TEXT, media_type="text/plain")
    call = store.session("call")
    call.append(MESSAGE, blobs=[one, two.address.hex(), two]).result(10)
    call.append_event("picture", None, blobs=[two.address], id="m").result(10)
    call.append_many([MESSAGE, MESSAGE], blobs=[[], [one]]).result(10)
    asyncio.run(call.append_large(MESSAGE, blobs=(one,)))
    part = call.draft([MESSAGE], events=[("picture", 1)], blobs=[[one], [two]])
    store.append_batch([part]).result(10)
    named = [event.blobs for event in call.events()]
    a, b = one.address, two.address
    assert named == [(a, b, b), (b,), (), (a,), (a,), (a,), (b,)]
    assert list(store.blobs.of(call.event(0))) == [one, two, two]
    assert usage(store)["references"] == 8 and usage(store)["pending"] == 0
    store.flush()
    assert [event.blobs for event in call.events()] == named


def test_a_missing_blob_refuses_its_append_alone(store: Store) -> None:
    call, other = store.session("call"), store.session("other")
    blob = store.blobs.put(b"there")
    acks = [
        other.append(MESSAGE),
        call.append(MESSAGE, blobs=[blob, bytes(16)]),
        call.append(MESSAGE, blobs=[blob]),
        store.session("new").append(MESSAGE, blobs=[bytes(16)]),
    ]
    batch = store.append_batch([other.draft([MESSAGE]), call.draft([MESSAGE], blobs=[[bytes(16)]])])
    for refused in (acks[1], acks[3], batch):
        with pytest.raises(ConflictError, match="no blob 0000") as caught:
            refused.result(10)
        assert caught.value.expected == bytes(16).hex()
        assert "Put the content again" in caught.value.hint
    acks[2].result(10)
    assert len(list(call.events())) == len(list(other.events())) == 1
    assert not store.session("new").exists
    assert usage(store)["references"] == 1


def test_a_refusal_makes_no_tenant(store: Store) -> None:
    with pytest.raises(ConflictError, match="no blob"):
        store.tenant("new").session("a").append(MESSAGE, blobs=[bytes(16)]).result(10)
    assert store.tenants() == []


def test_a_repeated_append_names_its_blobs_once(store: Store) -> None:
    call = store.session("call")
    blob, other = store.blobs.put(b"x"), store.blobs.put(b"y")
    for _ in range(2):
        call.append(MESSAGE, blobs=[blob], idempotency_key="k").result(10)
        call.append(MESSAGE, blobs=[blob], id="i").result(10)
    assert usage(store)["references"] == 2
    for blobs in ([other], [], [blob, blob]):
        with pytest.raises(IdempotencyConflictError):
            call.append(MESSAGE, blobs=blobs, idempotency_key="k").result(10)
        with pytest.raises(ConflictError, match="taken by another event"):
            call.append(MESSAGE, blobs=blobs, id="i").result(10)
    assert usage(store)["references"] == 2


def test_the_most_blobs_of_one_event(store: Store) -> None:
    blobs = [store.blobs.put(b"x")] * EVENT_BLOBS_MAX
    store.session("call").append(MESSAGE, blobs=blobs).result(10)
    assert usage(store)["references"] == EVENT_BLOBS_MAX
    with pytest.raises(LimitExceededError) as caught:
        store.session("call").append(MESSAGE, blobs=[*blobs, blobs[0]])
    assert caught.value.name == "EVENT_BLOBS_MAX" and caught.value.actual == EVENT_BLOBS_MAX + 1


def test_references_count_in_a_commit_s_bytes() -> None:
    """Each rewrites a page, so an append of many may not pass for a small one."""
    plain, named = (draft_event("message", {}, blobs=[bytes(16)] * count) for count in (0, 3))
    grown = len(named.payload) - len(plain.payload)
    assert named.size - plain.size == 3 * BLOB_REFERENCE_BYTES + grown
    most = EVENT_BLOBS_MAX * BLOB_REFERENCE_BYTES
    assert most <= COMMIT_BYTES_MAX // 4


@pytest.mark.parametrize("blobs", [[[]], [[], [], []]])
def test_one_list_of_blobs_for_each_message(store: Store, blobs: Any) -> None:
    with pytest.raises(UsageError, match="lists of blobs for 2"):
        store.session("call").append_many([MESSAGE, MESSAGE], blobs=blobs)


# Tenants, and contents put twice


def test_tenants_share_nothing(store: Store) -> None:
    acme, other = store.tenant("acme"), store.tenant("other")
    mine, theirs = acme.blobs.put(NOISE), other.blobs.put(NOISE)
    assert mine.address != theirs.address
    assert other.blobs.get(mine.address) is None
    with pytest.raises(UsageError, match="belongs to tenant 'acme'"):
        other.blobs.get(mine)
    with pytest.raises(UsageError, match="belongs to tenant 'acme'"):
        other.session("a").append(MESSAGE, blobs=[mine])
    with pytest.raises(ConflictError, match="no blob"):
        other.session("a").append(MESSAGE, blobs=[mine.address]).result(10)
    acme.session("a").append(MESSAGE, blobs=[mine]).result(10)
    with pytest.raises(UsageError, match="tenant"):
        next(other.blobs.of(acme.session("a").event(0)))
    assert usage(store)["count"] == 2


def test_the_same_content_takes_its_bytes_once(store: Store) -> None:
    """An agent that sends the same 1 MB image with each of 20 turns."""
    image = NOISE[:1_000_000]
    call = store.session("call")
    used = []
    for turn in range(20):
        blob = store.blobs.put(iter([image[:500], image[500:]]))
        call.append({"role": "user", "content": f"turn {turn}"}, blobs=[blob]).result(10)
        used.append(store.stats()["used_bytes"])
    assert used[-1] - used[0] < 0.05 * len(image)
    assert usage(store)["references"] == 20


def test_a_content_of_the_same_address_and_other_bytes_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hash is trusted alone: the bytes are compared, also when they are of the same length."""
    from hashlib import blake2b

    from engine import CorruptionError

    def weak(secret: bytes) -> Any:
        class Weak:
            def update(self, data: bytes) -> None:
                pass

            def digest(self) -> bytes:
                return blake2b(b"", digest_size=16, key=secret).digest()

        return Weak()

    with monkeypatch.context() as patch:
        patch.setattr(blobput, "content_address", weak)
        first = store.blobs.put(NOISE)
        assert store.blobs.put(NOISE) == first
        for other in (NOISE[:-1] + b"x", NOISE[:-1], b"", NOISE + b"x"):
            for give in (other, iter([other])):
                with pytest.raises(CorruptionError, match="other bytes"):
                    store.blobs.put(give)
        assert usage(store)["count"] == 1 and usage(store)["unfinished"] == 0
    store._log.writer.run(Doom(first))


class Doom:
    """Take out a blob whose address is none."""

    def __init__(self, blob: Blob) -> None:
        self.done = False
        self._blob = blob

    def step(self, tables: Any, record: Any) -> Any:
        from eventlog.blobtable import erase

        self.done = True
        assert erase(tables, 1, [self._blob.address]) == 1
        return record
