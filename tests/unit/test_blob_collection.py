"""Collection, release and erasure of blobs, with the clock moved."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import ConflictError, CorruptionError, Store
from eventlog import blobput, blobtable
from eventlog.limits import BLOB_PENDING_US, CHUNK_BYTES_MAX
from eventlog.rows import CommitRecord
from eventlog.seams import CLOCK
from eventlog.tables import WriteTables

NOISE = random.Random(7).randbytes(2 * CHUNK_BYTES_MAX + 1)
MESSAGE = {"role": "user", "content": "look"}
NOTHING = {"blobs": 0, "streams": 0, "chunks": 0}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Moves the clock; it stands still between two moves."""
    start = CLOCK.wall_us()

    def move(us: int) -> None:
        monkeypatch.setattr(CLOCK, "wall_us", lambda: start + us)

    move(0)
    return move


class Step:
    """A task of one step."""

    def __init__(self, call: Callable[[WriteTables, CommitRecord], object]) -> None:
        self.done = False
        self.result: object = None
        self._call = call

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        self.done = True
        self.result = self._call(tables, record)
        return replace(record)


def within(store: Store, call: Callable[[WriteTables, CommitRecord], object]) -> object:
    task = Step(call)
    store._log.writer.run(task, 10)
    return task.result


def usage(store: Store, name: str) -> Any:
    return store.stats()["blobs"][name]


def chunks(store: Store) -> int:
    with store._log.views.transaction() as tables:
        return tables.transaction.stat(tables.tables["chunk"])["entries"]


def test_an_hour_to_the_microsecond(store: Store, later: Callable[[int], None]) -> None:
    store.blobs.put(NOISE)
    later(BLOB_PENDING_US - 1)
    assert store.collect_blobs() == NOTHING
    later(BLOB_PENDING_US)
    assert store.collect_blobs() == {"blobs": 1, "streams": 0, "chunks": 3}
    assert store.collect_blobs() == NOTHING
    assert chunks(store) == 0


def test_what_an_event_names_stays(store: Store, later: Callable[[int], None]) -> None:
    blob = store.blobs.put(NOISE)
    store.session("a").append(MESSAGE, blobs=[blob]).result(10)
    later(100 * BLOB_PENDING_US)
    assert store.collect_blobs() == NOTHING
    assert store.blobs.read(blob) == NOISE


def test_putting_again_begins_the_hour_again(store: Store, later: Callable[[int], None]) -> None:
    blob = store.blobs.put(NOISE)
    later(BLOB_PENDING_US - 1)
    assert store.blobs.put(NOISE) == blob
    later(BLOB_PENDING_US)
    assert store.blobs.put(iter([NOISE])) == blob
    later(2 * BLOB_PENDING_US - 1)
    assert store.collect_blobs() == NOTHING
    later(2 * BLOB_PENDING_US)
    assert store.collect_blobs()["blobs"] == 1


def test_a_clock_that_went_back_removes_nothing_early(
    store: Store, later: Callable[[int], None]
) -> None:
    """Stamps never go back, so the hour is counted from the newest time the store has seen."""
    later(BLOB_PENDING_US)
    store.session("a").append(MESSAGE).result(10)
    later(0)
    store.blobs.put(NOISE)
    later(2 * BLOB_PENDING_US - 1)
    assert store.collect_blobs() == NOTHING


def test_a_stream_that_stands_still_for_an_hour(store: Store, later: Callable[[int], None]) -> None:
    def source() -> Iterator[bytes]:
        yield NOISE + NOISE
        later(BLOB_PENDING_US - 1)
        assert store.collect_blobs() == NOTHING
        yield NOISE + NOISE
        later(3 * BLOB_PENDING_US)
        assert store.collect_blobs()["streams"] == 1
        yield b"too late"

    with pytest.raises(ConflictError, match="more than an hour") as caught:
        store.blobs.put(source())
    assert "from its beginning" in caught.value.hint
    assert chunks(store) == 0


def test_a_collection_goes_on_in_steps(
    store: Store, later: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobtable, "COLLECT_CHUNKS_MAX", 2)
    monkeypatch.setattr(blobtable, "COLLECT_ROWS_MAX", 3)
    monkeypatch.setattr(blobput, "CHUNK_BYTES_MAX", 1_000)
    for number in range(7):
        store.blobs.put(b"%d" % number * 2_500)
    kept = store.blobs.put(b"kept" * 1_000)
    store.session("a").append(MESSAGE, blobs=[kept]).result(10)
    later(BLOB_PENDING_US)
    fresh = store.blobs.put(b"fresh")
    before = store._log.writer.machine.commits
    assert store.collect_blobs() == {"blobs": 7, "streams": 0, "chunks": 21}
    assert store._log.writer.machine.commits - before >= 11
    assert store.blobs.read(kept) == b"kept" * 1_000 and store.blobs.read(fresh) == b"fresh"


def test_an_idle_store_collects_by_itself(store: Store, later: Callable[[int], None]) -> None:
    store.blobs.put(NOISE)
    later(BLOB_PENDING_US)
    writer = store._log.writer
    writer._collect_us = 0
    writer.tidy()  # wakes it
    assert store._log.wait_until(lambda: not chunks(store), 30)
    assert writer._collect_us > CLOCK.monotonic_us()


def test_appending_what_was_collected_is_refused(
    store: Store, later: Callable[[int], None]
) -> None:
    blob = store.blobs.put(NOISE)
    reader = store.blobs.open(blob)
    reader.read(10)
    later(BLOB_PENDING_US)
    store.collect_blobs()
    with pytest.raises(ConflictError, match="no blob"):
        store.session("a").append(MESSAGE, blobs=[blob]).result(10)
    assert reader.read(10) == NOISE[10:20]  # of the part it holds
    reader.seek(CHUNK_BYTES_MAX)
    with pytest.raises(ConflictError, match="was removed while it was read"):
        reader.read(1)
    assert store.blobs.get(blob) is None
    assert store.blobs.put(NOISE).address == blob.address


# What removes events calls these


def test_references_given_back(store: Store, later: Callable[[int], None]) -> None:
    one, two = store.blobs.put(b"one"), store.blobs.put(b"two")
    store.session("a").append(MESSAGE, blobs=[one, two, two]).result(10)
    a, b = one.address, two.address
    later(5)

    def give_back(*addresses: bytes) -> None:
        within(
            store,
            lambda tables, record: blobtable.release(tables, 1, addresses, CLOCK.wall_us()),
        )

    def counts() -> list[tuple[int, int]]:
        with store._log.views.transaction() as tables:
            found = [blobtable.find_blob(tables, 1, each) for each in (a, b)]
        return [(row.references, row.pending_us) for row in found if row is not None]

    give_back(b)
    assert counts() == [(1, 0), (1, 0)]
    with pytest.raises(CorruptionError, match="counts 1 references, 2 are given back"):
        give_back(b, b)
    with pytest.raises(CorruptionError, match="is missing"):
        give_back(bytes(16))
    assert counts() == [(1, 0), (1, 0)]
    give_back(a, b)
    assert counts() == [(0, CLOCK.wall_us())] * 2
    assert usage(store, "pending") == 2
    found = store.check().findings
    assert [each.message for each in found] == [
        "counts 0 references, events hold 1",
        "counts 0 references, events hold 2",
    ] or len(found) == 2

    # Named again by the event that is still there, so that the store is whole when the test ends.
    def take_again(tables: WriteTables, record: CommitRecord) -> None:
        references = blobtable.References(tables)
        references.require(1, [a, b, b])
        references.add(1, [a, b, b])
        references.write()

    within(store, take_again)
    assert counts() == [(1, 0), (2, 0)]


def test_erasing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobtable, "COLLECT_CHUNKS_MAX", 2)
    gone, other, kept = (store.blobs.put(each + NOISE).address for each in (b"a", b"b", b"c"))
    store.session("a").append(MESSAGE, blobs=[kept]).result(10)

    def erase(tables: WriteTables, record: CommitRecord) -> int:
        return blobtable.erase(tables, 1, [gone, kept, other, bytes(16)])

    assert within(store, erase) == 2
    for address in (gone, other):
        assert store.blobs.get(address) is None  # unreadable at once
    assert usage(store, "unfinished") == 2
    assert store.check().ok
    assert store.collect_blobs()["chunks"] == 4  # without the hour; two went with the erasure
    assert chunks(store) == 3
    assert store.blobs.read(kept) == b"c" + NOISE


# Sessions that are removed


def sealed_and_loose(store: Store, name: str) -> dict[str, bytes]:
    """A session that names blobs in sealed and loose events, and shares one with another."""
    call = store.session(name)
    blobs = {each: store.blobs.put(each.encode() + NOISE) for each in ("sealed", "loose", "shared")}
    for number in range(60):
        named = [blobs["sealed"], blobs["shared"]] if number % 20 == 3 else []
        call.append({"role": "user", "content": f"{number}"}, blobs=named)
    store.flush()
    call.append(MESSAGE, blobs=[blobs["loose"], blobs["shared"]]).result(10)
    store.session("other").append(MESSAGE, blobs=[blobs["shared"]]).result(10)
    return {each: blob.address for each, blob in blobs.items()}


def test_a_deleted_session_gives_its_references_back(
    store: Store, later: Callable[[int], None]
) -> None:
    addresses = sealed_and_loose(store, "a")
    session = store.session("a")
    late = session.append(MESSAGE, blobs=[addresses["loose"]])  # of the same batch, as a rule
    session.delete().result(10)
    assert late.done()
    store.flush()
    assert usage(store, "references") == 1 and usage(store, "pending") == 2
    assert store.check().ok
    assert store.collect_blobs() == NOTHING
    later(BLOB_PENDING_US)
    assert store.collect_blobs()["blobs"] == 2
    assert store.blobs.get(addresses["sealed"]) is store.blobs.get(addresses["loose"]) is None
    assert store.blobs.read(addresses["shared"]) == b"shared" + NOISE


def test_an_erased_session_takes_its_blobs_along(store: Store) -> None:
    addresses = sealed_and_loose(store, "a")
    store.session("a").erase()
    assert store.blobs.get(addresses["sealed"]) is store.blobs.get(addresses["loose"]) is None
    assert store.blobs.read(addresses["shared"]) == b"shared" + NOISE
    assert chunks(store) == 3 and usage(store, "unfinished") == 0
    assert usage(store, "references") == 1
    assert store.check().ok


def test_a_removal_cut_in_pieces_gives_everything_back_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eventlog import reclaim

    monkeypatch.setattr(reclaim, "COMMIT_BYTES_MAX", 1)  # one segment in each commit
    monkeypatch.setattr(blobtable, "COLLECT_CHUNKS_MAX", 1)
    call = store.session("a")
    blobs = [store.blobs.put(b"%d" % number) for number in range(5)]
    for round_ in range(4):
        for number in range(50):
            call.append(MESSAGE, blobs=blobs if number == round_ else [])
        store.flush()
    kept = store.session("b").append(MESSAGE, blobs=blobs[:1]).result(10)
    assert usage(store, "references") == 21
    store.session("a").erase()
    assert usage(store, "references") == usage(store, "count") == 1
    assert chunks(store) == 1
    assert store.session("b").event(kept.first).blobs == (blobs[0].address,)


def test_a_damaged_blob_keeps_no_session_from_being_deleted(tmp_path: Path) -> None:
    from tests.damaged_store import flipped, put, rows

    path = tmp_path / "store"
    with Store.open(path) as store:
        blob = store.blobs.put(b"x")
        store.session("a").append(MESSAGE, blobs=[blob]).result(10)
    key, value = next((key, each) for table, key, each in rows(path) if table == "blob")
    put(path, ("blob", key, flipped(value)))
    with Store.open(path, create=False) as store:
        store.session("a").delete().result(10)
        store.flush()
        assert not store.session("a").exists
        assert [each.message for each in store.check().findings] == ["checksum does not match"]


# Put again


def test_what_was_put_again_outlives_the_erasure_of_its_only_event(
    store: Store, later: Callable[[int], None]
) -> None:
    """A content that was there was given out without a trace on disk. An erasure of the last event
    that named it took it along, and the append of the fresh reference was refused.
    """
    named = store.blobs.put(NOISE)
    store.session("a").append(MESSAGE, blobs=[named]).result(10)
    again = store.blobs.put(iter([NOISE]))
    receipt = store.session("a").erase()
    assert receipt.has_held_blobs and receipt.is_live
    assert usage(store, "pending") == 1
    assert store.check().ok
    later(BLOB_PENDING_US - 1)
    assert store.collect_blobs() == NOTHING
    store.session("b").append(MESSAGE, blobs=[again]).result(10)
    later(3 * BLOB_PENDING_US)
    assert store.collect_blobs() == NOTHING
    assert store.blobs.read(again) == NOISE
    assert not store.session("b").erase().is_live  # its put is used up
    assert store.blobs.get(again) is None and chunks(store) == 0


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_reference_outlives_removals_one_after_the_other(
    store: Store, later: Callable[[int], None], is_sealed: bool
) -> None:
    blob = store.blobs.put(NOISE)
    for name in ("a", "b"):
        store.session(name).append(MESSAGE, blobs=[blob, blob]).result(10)
        if is_sealed:
            for _ in range(60):
                store.session(name).append(MESSAGE)
            store.flush()
    later(5)
    store.blobs.put(NOISE)
    store.blobs.put(NOISE)
    assert not store.session("a").erase().has_held_blobs  # b names it
    assert store.session("b").erase().has_held_blobs
    for name in ("c", "d"):
        store.session(name).append(MESSAGE, blobs=[blob]).result(10)
    assert not store.session("c").erase().is_live
    assert not store.session("d").erase().is_live
    assert store.blobs.get(blob) is None


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_purge_gives_contents_no_hour(
    store: Store, later: Callable[[int], None], is_sealed: bool
) -> None:
    """What a purge released stayed for an hour, also when its session was erased or redacted then,
    and the receipts said that nothing was live."""
    own, shared, held = (store.blobs.put(NOISE[start:]) for start in range(3))
    session = store.session("a")
    session.append(MESSAGE, blobs=[own, shared, held]).result(10)
    for name in ("a", "b"):
        store.session(name).append(MESSAGE, blobs=[store.blobs.put(NOISE[1:])]).result(10)
    if is_sealed:
        for _ in range(60):
            session.append(MESSAGE)
        store.flush()
    store.blobs.put(NOISE[2:])
    session.purge(1).result(10)
    store.flush()
    assert store.blobs.get(own) is None
    assert store.blobs.read(shared) == NOISE[1:] and store.blobs.read(held) == NOISE[2:]
    assert session.redact(0, 0).void_count == 1
    receipt = session.erase()
    assert receipt.has_held_blobs and receipt.is_live
    assert store.blobs.get(shared) is not None  # another session names it, which is not told
    assert not store.session("b").erase().is_live
    assert store.blobs.get(shared) is None
    later(BLOB_PENDING_US)
    store.collect_blobs()
    assert store.blobs.get(held) is None and chunks(store) == 0


def test_an_hour_after_it_was_put_again_only_events_keep_a_content(
    store: Store, later: Callable[[int], None]
) -> None:
    blob = store.blobs.put(NOISE)
    store.session("a").append(MESSAGE, blobs=[blob]).result(10)
    later(5)
    store.blobs.put(NOISE)
    later(5 + BLOB_PENDING_US)
    assert store.collect_blobs() == NOTHING
    with store._log.views.transaction() as tables:
        assert not list(blobtable.pending_rows(tables))
    store.blobs.put(NOISE)
    later(5 + 2 * BLOB_PENDING_US)  # not collected, but over
    assert not store.session("a").erase().is_live
    assert store.blobs.get(blob) is None and chunks(store) == 0


def test_a_held_content_goes_when_its_hour_is_over(
    store: Store, later: Callable[[int], None]
) -> None:
    blob = store.blobs.put(NOISE)
    store.session("a").append(MESSAGE, blobs=[blob]).result(10)
    store.blobs.put(NOISE)
    later(BLOB_PENDING_US - 1)
    assert store.session("a").erase().has_held_blobs
    later(BLOB_PENDING_US)  # of the put, not of the erasure
    assert store.collect_blobs()["blobs"] == 1
    assert store.blobs.get(blob) is None
