"""A store of each released format, opened for ever: read, checked, appended to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog.errors import (
    DuplicateIdError,
    FormatVersionError,
    IdempotencyConflictError,
    UsageError,
)
from eventlog.limits import HOT_TABLE_POSITIONS
from eventlog.place import FORMAT_VERSION
from tests.format import independent, independent_rows
from tests.format.make_store import (
    DELETED,
    ERASED,
    FREQUENCY,
    HARD_BODY,
    LINES,
    STORES,
    describe,
    digest_of,
    export,
    unpack,
    write_story,
)
from tests.format.values import identical

VERSIONS = sorted(int(path.name.split(".")[0]) for path in STORES.glob("*.tar.xz"))


@pytest.fixture(params=VERSIONS, ids=[f"format-{version}" for version in VERSIONS])
def version(request: pytest.FixtureRequest) -> int:
    """A released format version."""
    found: int = request.param
    return found


@pytest.fixture
def folder(version: int, tmp_path: Path) -> Iterator[Path]:
    """A copy of its store; checked when the test ends."""
    path = unpack(STORES / f"{version}.tar.xz", tmp_path / "store")
    yield path
    with Store.open(path, create=False) as store:
        report = store.check()
    assert report.ok, report.findings


def facts_of(version: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STORES / f"{version}.json").read_text("utf-8"))
    return found


def shape_of(path: Path) -> list[str]:
    """The export without recorded times."""
    with Store.open(path, create=False) as store:
        lines = [json.loads(line) for line in export(store)]
    for line in lines:
        del line["recorded_us"]
    return [json.dumps(line) for line in lines]


def test_there_is_a_store_of_every_format_version() -> None:
    assert list(range(1, FORMAT_VERSION + 1)) == VERSIONS


def test_everything_is_read(version: int, folder: Path) -> None:
    facts = facts_of(version)
    with Store.open(folder, create=False) as store:
        assert describe(store) == {**facts, "release": describe(store)["release"]}
        lines = [line for line in export(store) if json.loads(line)["session"] in LINES]
    wanted = (STORES / f"{version}.jsonl").read_text("utf-8").splitlines()
    assert lines == wanted


def test_opening_and_reading_change_no_byte(folder: Path) -> None:
    before = (folder / "data.mdb").read_bytes()
    with Store.open(folder, create=False) as store:
        assert store.check().ok
        assert store.tenant("été").session("bob").event(0).body["text"] == HARD_BODY["text"]
    assert (folder / "data.mdb").read_bytes() == before


def test_the_document_alone_is_enough_to_read_it(folder: Path) -> None:
    """A second reader that shares no code with the product sees the same events."""
    reader = independent.Reader(folder)
    with Store.open(folder, create=False) as store:
        events = list(store.read())
        every = list(store.read(voids=True))
        assert len(every) == reader.last_position
        for event in every:
            assert reader.records[event.position - 1][:2] == (event.session_number, event.sequence)
            assert reader.is_void(event.position) == (event.kind == "void")
        for event, found in zip(events, reader.events(), strict=True):
            for name in independent.Event.__dataclass_fields__:
                ours, theirs = getattr(event, name), getattr(found, name)
                if name == "role" and not event.redacted:
                    ours = None  # of others the body tells it
                assert identical(ours, theirs), (event.position, name)
        for info in store.tenant("acme").sessions(limit=1_000).sessions:
            session = reader.find("acme", info.name)
            assert session is not None
            assert (session.number, len(session.records)) == (info.number, info.event_count)
        told = [independent_rows.export_line(event) for event in reader.events()]
        assert told == export(store)
    assert reader.cut_blocks == HOT_TABLE_POSITIONS // independent.BLOCK
    assert not reader.removals
    assert len(reader.activity) >= 64
    assert len(reader.ids) == 10 * FREQUENCY


def test_ids_and_keys_lie_where_the_document_says(folder: Path) -> None:
    reader = independent.Reader(folder)
    cut = reader.find("acme", "call-03")
    assert cut is not None
    assert reader.find_id("acme", "m-3-7") == (cut.number, 7)
    assert reader.find_id("acme", "alice-1") is None  # another tenant's
    alice = reader.find("", "alice")
    assert alice is not None
    assert reader.find_id("", "alice-33") == (alice.number, 34)
    whole = reader.find("acme", "call-08")
    assert whole is not None
    sealed = reader.find_key(whole, "whole-8")
    assert sealed is not None
    assert sealed[1:3] == (0, FREQUENCY - 1)
    loose = reader.find_key(alice, "alice-32")
    assert loose is not None
    assert loose[1:3] == (33, 33)
    hard = reader.find("été", "bob")
    assert hard is not None
    for session, key, count in ((whole, "whole-8", FREQUENCY), (alice, "alice-32", 1)):
        stands = reader.find_key(session, key)
        assert stands is not None
        content = independent.fingerprint(*session.records[stands[1] : stands[1] + count])
        secret = reader.secrets[session.tenant_number]
        assert independent.keyed(secret, b"turnlog-body", content) == stands[0]
    stands = reader.find_key(hard, "hard-key")
    assert stands is not None
    content = independent.fingerprint(hard.records[0])
    assert independent.keyed(reader.secrets[3], b"turnlog-body", content) == stands[0]


def test_what_was_removed_is_gone_whoever_reads(version: int, folder: Path) -> None:
    if version == 1:
        pytest.skip("nothing is removed from a store of that version")
    reader = independent.Reader(folder)
    assert reader.find("acme", DELETED) is None
    gone = [session for session in reader.sessions.values() if session.flags & independent.GONE]
    assert [session.flags for session in gone] == [
        independent.GONE,
        independent.GONE | independent.ERASED,
    ]
    assert [session.first for session in gone] == [FREQUENCY, FREQUENCY + 3]
    assert sum([reader.is_void(at + 1) for at in range(reader.last_position)]) == 2 * FREQUENCY + 3
    fresh = reader.find("été", ERASED)
    assert fresh is not None
    assert len(fresh.records) == 1
    assert reader.find_id("été", "secret-0") == (fresh.number, 0)
    assert reader.find_id("été", "secret-1") is None
    stands = reader.find_key(fresh, "secret-0")
    assert stands is not None
    assert stands[1:3] == (0, 0)
    with Store.open(folder, create=False) as store:
        assert not store.tenant("acme").session(DELETED).exists
        assert store.tenant("été").session(ERASED).history() == [
            {"role": "user", "content": "fresh"}
        ]


def test_retries_across_releases_are_found(folder: Path) -> None:
    with Store.open(folder, create=False) as store:
        before = store.last_position
        whole = [
            {"role": ("user", "assistant")[place % 2], "content": f"turn {place} of 8"}
            for place in range(FREQUENCY)
        ]
        session = store.tenant("acme").session("call-08")
        ids = [f"m-8-{place}" for place in range(FREQUENCY)]
        again = session.append_many(whole, ids=ids, idempotency_key="whole-8").result()
        assert (again.already, again.first, again.last) == (True, 0, FREQUENCY - 1)
        by_ids = session.append_many(whole, ids=ids).result()
        assert (by_ids.already, by_ids.first) == (True, 0)
        with pytest.raises(IdempotencyConflictError):
            session.append({"role": "user", "content": "other"}, idempotency_key="whole-8").result()
        with pytest.raises(DuplicateIdError):
            session.append({"role": "user", "content": "other"}, id="m-8-0").result()
        bob = store.tenant("été").session("bob")
        hard = bob.append(
            HARD_BODY,
            id="hard",
            metadata={
                "a": HARD_BODY["floats"][-1],
                "b": "\ud800",
                "c": [b"\x01", {}],
            },
            time_us=-1,
            tokens=2**32 - 1,
            run_id="run",
            turn_id="turn",
            speech_id="speech",
            request_id="request",
            idempotency_key="hard-key",
        ).result()
        assert (hard.already, hard.first) == (True, 0)
        assert store.last_position == before


def test_it_is_appended_to(folder: Path) -> None:
    with Store.open(folder, create=False) as store:
        before = store.last_position
        lines = export(store)
        for number in range(64):  # seals every session again, beside its cut segments
            store.tenant("acme").session(f"call-{number:02d}").append_many(
                [{"role": "user", "content": f"new {place}"} for place in range(FREQUENCY)]
            )
        store.session("alice").append({"role": "user", "content": "back again"}).result()
        store.flush()
        assert store.last_position == before + 64 * FREQUENCY + 1
        assert export(store)[: len(lines)] == lines
        assert store.session("alice").history(1) == [{"role": "user", "content": "back again"}]
        assert len(store.tenant("acme").session("call-63").history()) == 2 * FREQUENCY
        assert store.check().ok
    assert independent.Reader(folder).last_position == before + 64 * FREQUENCY + 1


def test_options_stored_at_creation_stay(folder: Path) -> None:
    with Store.open(folder, create=False, snapshot_frequency=FREQUENCY) as store:
        assert store.stats()["options"]["snapshot_frequency"] == FREQUENCY
    with pytest.raises(UsageError, match="snapshot_frequency"):
        Store.open(folder, create=False, snapshot_frequency=FREQUENCY + 1)


def test_a_writer_made_from_the_document_alone_is_understood(folder: Path) -> None:
    """Appends by another implementation, to old and new sessions and across a block's end."""
    with Store.open(folder, create=False) as store:
        end = HOT_TABLE_POSITIONS + independent.BLOCK
        missing = end - 2 - store.last_position
        store.session("filler").append_many([{"role": "user", "content": "."}] * missing).result()
        assert store.last_position == end - 2
    said = {"role": "user", "content": "from elsewhere"}
    for place, session in enumerate(("call-00", "call-00", "new", "new")):
        position = independent.append(folder, "acme", session, said, 1_900_000_000_000_000)
        assert position == end - 1 + place
    with Store.open(folder, create=False) as store:
        assert store.check().ok
        acme = store.tenant("acme")
        assert acme.session("call-00").history(2) == [said, said]
        assert [event.parent for event in acme.session("new").events()] == [None, 0]
        ours = acme.session("new").append({"role": "assistant", "content": "welcome"}).result()
        assert ours.first == 2
        assert acme.session("new").event(2).recorded_us >= 1_900_000_000_000_000
        assert store.check().ok


def test_this_release_still_writes_the_same_story(version: int, folder: Path) -> None:
    if version != FORMAT_VERSION:
        pytest.skip("the story of an older format is told by its own release")
    again = folder.parent / "again"
    with Store.open(again, snapshot_frequency=FREQUENCY) as store:
        write_story(store)
        assert store.check().ok
    assert digest_of(shape_of(again)) == digest_of(shape_of(folder))


def test_a_newer_format_is_refused_before_anything_is_written(folder: Path) -> None:
    marker = folder / "turnlog.json"
    content = marker.read_text()
    version = json.loads(content)["version"]
    marker.write_text(content.replace(f'"version": {version}', f'"version": {FORMAT_VERSION + 1}'))
    with pytest.raises(FormatVersionError) as caught:
        Store.open(folder, create=False)
    assert (caught.value.found, caught.value.supported) == (FORMAT_VERSION + 1, FORMAT_VERSION)
    assert sorted(path.name for path in folder.iterdir()) == ["data.mdb", "turnlog.json"]
    marker.write_text(content)
