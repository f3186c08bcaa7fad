"""Redaction on disk: slices, contents, damage, other processes, and what memory holds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import ConflictError, CorruptionError, Store
from eventlog import redaction
from eventlog.failpoints import failpoints
from eventlog.keys import PAIR, U64
from eventlog.limits import BLOB_PENDING_US, MIB
from eventlog.reclaim import REMOVED_LOW_MAX
from eventlog.recoding import _has_gone, recoding_of
from eventlog.record import Flag, is_redacted, seal_record
from eventlog.redaction import Redact
from eventlog.rows import REDACTED
from eventlog.seams import CLOCK
from eventlog.segment import SegmentPrefix
from tests.damaged_store import content_of, hot_row, put, value_of
from tests.model.staging import once
from tests.unit.redacted import (
    COUNT,
    FREQUENCY,
    HANG_S,
    OWN,
    PLACES,
    SECRET,
    SHARED,
    fill,
    plant,
    require_redacted,
    talk,
    tell,
)

Open = Callable[..., Store]
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def opened(checked_store: Open) -> Store:
    return checked_store(snapshot_frequency=FREQUENCY)


def record_of(store: Store) -> Any:
    with store._log.views.transaction() as tables:
        return tables.commit_record()


def segments_of(store: Store, number: int) -> list[tuple[bytes, SegmentPrefix]]:
    with store._log.views.transaction() as tables:
        tables.commit_record()
        return [
            (key, SegmentPrefix.unpack(key, value))
            for key, value in tables.rows("segment", U64.pack(number))
        ]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("events_max", [1, 5, 4_096])
def test_slices_end_where_their_bounds_are(
    opened: Store, monkeypatch: pytest.MonkeyPatch, place: str, events_max: int
) -> None:
    """At most so many events in one commit, and a segment on top."""
    monkeypatch.setattr(redaction, "COMMIT_EVENTS_MAX", events_max)
    session = plant(opened, place)
    count = session.info().event_count  # type: ignore[union-attr]
    before = record_of(opened)
    segments = len(segments_of(opened, session.info().number))  # type: ignore[union-attr]
    seen: list[int] = []
    with failpoints({"redaction.after_slice": lambda: seen.append(1)}):
        receipt = session.redact(0, count - 1)
    assert receipt.event_count == count
    loose = count if place == "loose" else count - COUNT
    at_most = segments + -(-loose // events_max)
    assert 1 <= len(seen) <= at_most
    if events_max == 1 and place != "loose":  # which may be sealed meanwhile
        assert len(seen) == at_most
    after = record_of(opened)
    assert after.generation - before.generation == after.removals - before.removals == len(seen)
    for event in session.events(last=count - 1):
        require_redacted(event)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_passed_over_counts_in_a_slice(
    opened: Store, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A slice was bounded by what it redacted: one of events that were redacted before, or of kinds
    that are kept, looked at all of them in one transaction."""
    session = plant(opened, place)
    count = session.info().event_count  # type: ignore[union-attr]
    number = session.info().number  # type: ignore[union-attr]
    session.redact(0, count - 1)
    monkeypatch.setattr(redaction, "COMMIT_EVENTS_MAX", 4)
    looked: list[int] = [0]
    real = Redact.step

    def step(task: Redact, *given: Any) -> Any:
        changed = real(task, *given)
        looked.append(task.redacted.already)
        return changed

    monkeypatch.setattr(Redact, "step", step)
    assert session.redact(0, count - 1).already_count == count
    longest = max((prefix.count for _, prefix in segments_of(opened, number)), default=1)
    steps = [after - before for before, after in zip(looked, looked[1:], strict=False)]
    assert sum(steps) == count and max(steps) <= 4 + longest - 1


def test_with_a_full_disk_slices_are_small(opened: Store) -> None:
    session = plant(opened, "loose")
    seen: list[int] = []
    opened._log.environment.is_low = True
    with failpoints({"redaction.after_slice": lambda: seen.append(1)}):
        assert session.redact(0, COUNT - 1).event_count == COUNT
    assert len(seen) == -(-COUNT // REMOVED_LOW_MAX)


def test_large_events_make_slices_of_their_own(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = talk(opened)
    for number in range(6):
        session.append({"n": number, "text": SECRET * (MIB // 14)}).result(HANG_S)
    seen: list[int] = []
    monkeypatch.setattr(redaction, "COMMIT_BYTES_MAX", MIB)
    with failpoints({"redaction.after_slice": lambda: seen.append(1)}):
        session.redact(1, 4)
    assert len(seen) >= 3
    opened.flush()
    assert [event.redacted for event in session.events()] == [False, *[True] * 4, False, False]


def test_a_segment_keeps_its_key_and_what_it_counts(opened: Store) -> None:
    session = plant(opened, "cut")
    number = session.info().number  # type: ignore[union-attr]
    before = segments_of(opened, number)
    session.redact(3, 20)
    after = segments_of(opened, number)
    for (key, old), (same, new) in zip(before, after, strict=False):
        assert key == same
        for name in (
            *("count", "first_position", "last_position", "messages_before", "messages", "kinds"),
            *("first_recorded_us", "last_recorded_us"),
        ):
            assert getattr(new, name) == getattr(old, name), name
    assert sum(prefix.content_bytes for _, prefix in after) < sum(
        prefix.content_bytes for _, prefix in before
    )


@pytest.mark.parametrize("place", PLACES)
def test_no_live_record_holds_what_was_said(opened: Store, place: str) -> None:
    session = plant(opened, place)
    tell(opened, talk(opened, "other"), 2)
    session.redact(0, session.info().last_sequence)  # type: ignore[union-attr]
    with opened._log.views.transaction() as tables:
        record = tables.commit_record()
        number = session.info().number  # type: ignore[union-attr]
        assert tables.load_row(number).flags & REDACTED
        assert not tables.load_row(number + 1).flags & REDACTED
        for position in range(record.floor, record.last_position + 1):
            value = tables.hot_log(record).get(position)
            assert value is not None
            if int.from_bytes(value[8:16], "little") == number:
                assert is_redacted(value) or value[72] >= 64
                assert SECRET.encode() not in value


# Contents


def test_contents_go_with_the_last_event_that_names_them(opened: Store) -> None:
    acme = opened.tenant("acme")
    own, shared, twice = (acme.blobs.put(data) for data in (OWN, SHARED, OWN + b"2"))
    session = talk(opened)
    session.append({"n": 0}, blobs=[own, own, shared]).result(HANG_S)
    session.append({"n": 1}, blobs=[shared, twice]).result(HANG_S)
    session.append({"n": 2}, blobs=[twice, own]).result(HANG_S)
    acme.session("beside").append({}, blobs=[shared]).result(HANG_S)
    opened.flush()
    receipt = session.redact(0, 1)
    assert (receipt.blobs_removed, receipt.blobs_kept) == (0, 3)
    assert acme.blobs.read(own) == OWN and acme.blobs.read(twice) == OWN + b"2"
    assert receipt.is_live
    receipt = session.redact(0, 2)
    assert (receipt.blobs_removed, receipt.blobs_kept, receipt.is_live) == (2, 0, False)
    for blob in (own, twice):
        with pytest.raises(ConflictError):
            acme.blobs.read(blob)
    assert acme.blobs.read(shared) == SHARED
    with opened._log.views.transaction() as tables:
        tables.commit_record()
        assert tables.row_count("blob") == 1
        assert tables.row_count("chunk") == 1


def test_one_redaction_of_several_slices_counts_a_content_once(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "COMMIT_EVENTS_MAX", 2)
    session = plant(opened, "loose")
    receipt = session.redact(0, COUNT - 1)
    assert (receipt.blobs_removed, receipt.blobs_kept) == (1, 0)


def test_a_content_that_was_put_again_stays_for_an_hour(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = opened.tenant("acme")
    session = talk(opened)
    session.append({}, blobs=[acme.blobs.put(OWN)]).result(HANG_S)
    again = acme.blobs.put(OWN)
    receipt = session.redact(0, 0)
    assert (receipt.blobs_removed, receipt.blobs_kept, receipt.is_live) == (0, 1, True)
    assert acme.blobs.read(again) == OWN
    now_us = CLOCK.wall_us() + BLOB_PENDING_US
    monkeypatch.setattr(CLOCK, "wall_us", lambda: now_us)
    assert opened.collect_blobs()["blobs"] == 1


# Damage


@pytest.mark.parametrize("place", ["loose", "sealed"])
def test_damage_in_the_range_is_an_error_and_nothing_of_its_slice_is_written(
    checked_store: Open, tmp_path: Path, place: str
) -> None:
    store = Store.open(tmp_path / "damaged", snapshot_frequency=FREQUENCY)
    session = plant(store, place)
    number = session.info().number  # type: ignore[union-attr]
    position = session.event(9).position
    key = segments_of(store, number)[0][0] if place == "sealed" else U64.pack(position)

    class Break:
        """A task that flips a bit."""

        done = False

        def step(self, tables: Any, record: Any) -> Any:
            name = "segment" if place == "sealed" else "log.00"
            db = tables.tables[name]
            value = bytearray(tables.transaction.get(key, db=db))
            value[-1] ^= 1
            tables.transaction.put(key, bytes(value), db=db)
            self.done = True
            return record

    store._log.writer.run(Break())
    where = f"segment {number}/{PAIR.unpack(key)[1]}" if place == "sealed" else f"log {position}"
    before = record_of(store)
    with pytest.raises(CorruptionError, match=where):
        session.redact(0, 20)
    assert record_of(store).generation == before.generation
    for sequence in (1, 20):
        if place == "loose":
            assert not session.event(sequence).redacted
    assert store.health()["ok"] or place == "loose"
    store.close()


# Memory, threads, processes


READ = """
import sys
from engine import Store
with Store.open(sys.argv[1]) as store:
    call = store.tenant("acme").session("call")
    def look():
        told = [event.body is None for event in call.events(last=23)]
        told += [body is None for body in call.history(1_000)[:18]]
        told += [event.body is None for event in store.read() if event.session == "call"][:24]
        return told
    assert not any(look())
    print("ready", flush=True)
    sys.stdin.readline()
    assert all(look()), look()
    if sys.argv[2] == "seals":  # what it holds in memory of what was loose
        call.append_many([{"n": number} for number in range(200)]).result(60)
        store.flush()
        assert all(look())
        assert "segments" in repr(store.stats())
    print("seen", flush=True)
"""


@pytest.mark.parametrize("place", ["loose", "sealed", "cut"])
@pytest.mark.parametrize("way", ["reads", "seals"])
def test_another_process_sees_none_and_cannot_bring_it_back(
    opened: Store, place: str, way: str
) -> None:
    session = plant(opened, place)
    process = subprocess.Popen(
        [sys.executable, "-c", READ, str(opened.path), way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    session.redact(0, COUNT - 1)
    output, complaints = process.communicate("go on\n", HANG_S)
    assert (process.returncode, output) == (0, "seen\n"), complaints
    assert all(event.redacted for event in session.events(last=COUNT - 1))


@pytest.mark.parametrize("place", ["loose", "sealed"])
def test_a_read_whose_view_is_older_than_its_transaction_gives_none(
    opened: Store, place: str
) -> None:
    """A reader took the loose records, others redacted them, and only then its transaction began:
    it gave the old bytes, though every other process was told that they are gone.
    """
    session = plant(opened, place)
    log = opened._log
    number = session.info().number  # type: ignore[union-attr]
    task = Redact(number, 0, COUNT - 1, log.index, log.writer.pause, lambda: False)
    action = once(lambda: log.writer.run(task))  # no new position shows that something happened
    with failpoints({"read.after_view": action}):
        events = list(session.events(last=COUNT - 1))
    for event in events:
        require_redacted(event)


def test_appends_and_reads_go_on_beside_it(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "COMMIT_EVENTS_MAX", 3)
    session = plant(opened, "loose")
    beside = opened.session("beside")
    with failpoints({"redaction.after_slice": lambda: beside.append({"n": 1})}):
        receipt = session.redact(0, COUNT - 1)
    opened.flush()
    assert receipt.event_count == COUNT
    assert len(beside.history()) == COUNT // 3
    assert all(event.redacted for event in session.events(last=COUNT - 1))


def test_what_was_loose_is_sealed_redacted(opened: Store) -> None:
    session = plant(opened, "loose")
    session.redact(2, 9)
    opened.flush()
    fill(opened)
    assert [event.redacted for event in session.events(last=COUNT - 1)] == [
        2 <= number <= 9 for number in range(COUNT)
    ]
    opened.close()
    Store.vacuum(opened.path)
    with Store.open(opened.path) as store:
        assert talk(store).event(2).redacted
        assert store.check().ok


def test_dictionaries_of_a_redacted_session_are_stale(opened: Store) -> None:
    """As of one that was purged: they may hold sentences of it."""
    session = plant(opened, "sealed")
    number = session.info().number  # type: ignore[union-attr]
    with opened._log.views.transaction() as tables:
        assert not _has_gone(tables, number, 0)
    session.redact(0, 0)
    with opened._log.views.transaction() as tables:
        assert _has_gone(tables, number, 0)
        assert recoding_of(tables).stale == {}


# Check


@pytest.mark.parametrize(
    ("position", "what"),
    [
        pytest.param(1, "was redacted, and has content", id="a-message"),
        pytest.param(2, "was redacted, and its kind cannot be", id="variables"),
    ],
)
def test_check_finds_what_claims_to_be_redacted(tmp_path: Path, position: int, what: str) -> None:
    path = tmp_path / "damaged"
    with Store.open(path) as store:
        session = talk(store)
        session.append({"role": "user", "content": SECRET}).result(HANG_S)
        session.update_state({"a": 1}).result(HANG_S)
    table, key, value = hot_row(path, position)
    flags = int.from_bytes(value[74:76], "little") | Flag.REDACTED
    put(
        path, (table, key, seal_record(key, value[8:74] + flags.to_bytes(2, "little") + value[76:]))
    )
    with Store.open(path, read_only=True) as store:
        findings = store.check().findings
    assert [(each.where, each.message) for each in findings] == [(f"position {position}", what)]


def test_the_chain_goes_on_behind_a_redacted_block(tmp_path: Path) -> None:
    """Its own links cannot be made again; those of the blocks behind it can, from its link on."""
    path = tmp_path / "damaged"
    with Store.open(path) as store:
        session = talk(store)
        for start in range(0, 3_000, 500):
            session.append_many([{"n": start + each} for each in range(500)]).result(HANG_S)
        session.redact(3, 5)
        assert store.check().ok
        key = U64.pack(1)
        with store._log.views.transaction() as tables:
            tables.commit_record()
            value = tables.transaction.get(key, db=tables.tables["order"])
    content = content_of("order", value)
    put(path, ("order", key, value_of("order", key, content[:8] + bytes(16) + content[24:])))
    with Store.open(path, read_only=True) as store:
        told = {each.where for each in store.check().findings}
    assert "order block 1" in told and "order block 0" not in told
