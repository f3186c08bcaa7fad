"""Damage is an error, never a wrong answer; and what is whole can be saved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from struct import Struct

import pytest

from engine import Lost, Store
from eventlog.errors import CorruptionError
from eventlog.limits import BATCH_EVENTS_MAX, HOT_TABLE_POSITIONS, HOT_TABLES
from eventlog.raw import DATA_FILE
from eventlog.record import CHECKSUM_BYTES, KIND_BYTE, WORDS
from tests.damaged_store import SESSIONS, flipped, hot_row, opened, put, rows
from tests.model.staging import HANG_S, REPOSITORY
from turnlog.child import in_child
from turnlog.exits import ExitCode
from turnlog.verbs import check_store, export_sessions

PAGE_BYTES = 4096
BRANCH = 0x01
LEAF = 0x02
FLAGS_AT = 10  # in the header of one of LMDB's pages, as is the next
LOWER_AT = 12
HEADER_BYTES = 16
U16 = Struct("<H")


def last_position(path: Path, name: str, *, before: int = 0) -> int:
    """Position of an event of tenant acme, counted from a session's end."""
    with Store.open(path) as store:
        info = store.tenant("acme").session(name).info()
        assert info is not None
        return store.tenant("acme").session(name).event(info.last_sequence - before).position


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("place", [KIND_BYTE, -1], ids=["kind", "body"])
def test_facts_of_a_session_with_a_damaged_event_are_no_wrong_answer(
    path: Path, before: int, place: int
) -> None:
    """A hot record that failed its checksum kept its sequence, but was left out of head, message
    count and last position; ``info`` gave those as if nothing had happened.
    """
    session = "call-1"
    with Store.open(path) as store:
        call = store.tenant("acme").session(session)
        call.append_many([{"n": 1}, {"n": 2}]).result(HANG_S)
        right = call.info()
        listed = store.tenant("acme").sessions().sessions
    table, key, value = hot_row(path, last_position(path, session, before=before))
    assert WORDS.unpack_from(value, CHECKSUM_BYTES)[0] > 0
    put(path, (table, key, flipped(value, place)))
    with Store.open(path) as store:
        call = store.tenant("acme").session(session)
        with pytest.raises(CorruptionError):
            list(call.events())
        for ask, wanted in (
            (call.info, right),
            (lambda: call.head, None if right is None else right.head),
            (lambda: store.tenant("acme").sessions().sessions, listed),
        ):
            try:
                answer = ask()
            except CorruptionError:
                continue
            assert answer == wanted


def pages_of(data: bytes, kind: int) -> list[int]:
    """Numbers of the pages of one of LMDB's kinds, also of those that are free now."""
    return [
        number
        for number in range(2, len(data) // PAGE_BYTES)
        if data[number * PAGE_BYTES + FLAGS_AT] & 0x0F == kind
        and int.from_bytes(data[number * PAGE_BYTES : number * PAGE_BYTES + 8], "little") == number
    ]


def segment_leaves(path: Path) -> list[int]:
    """The leaf pages with rows of the segment table, or that once held them."""
    data = (path / DATA_FILE).read_bytes()
    with opened(path) as (transaction, handles):
        keys = [bytes(key) for key, _ in transaction.cursor(handles["segment"])]
    return [
        number
        for number in pages_of(data, LEAF)
        if any(key in data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES] for key in keys)
    ]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Write bytes into the data file."""
    with (path / DATA_FILE).open("r+b") as file:
        file.seek(offset)
        file.write(data)


def readable(path: Path) -> set[tuple[str, str, int]]:
    """The events that ordinary reads give, session by session."""
    found: set[tuple[str, str, int]] = set()
    with Store.open(path) as store:
        for tenant, name in SESSIONS:
            try:
                for event in store.tenant(tenant).session(name).events():
                    found.add((tenant, name, event.sequence))
            except CorruptionError:
                continue
    return found


def last_pointers(path: Path) -> list[int]:
    """Offsets of the last child's page number in each branch page over rows of segments."""
    data = (path / DATA_FILE).read_bytes()
    with opened(path) as (transaction, handles):
        keys = [bytes(key) for key, _ in transaction.cursor(handles["segment"])]
    found: list[int] = []
    for number in pages_of(data, BRANCH):
        page = data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
        if any(key in page for key in keys):
            (lower,) = U16.unpack_from(page, LOWER_AT)
            found.append(number * PAGE_BYTES + U16.unpack_from(page, lower - U16.size)[0])
    return found


def test_salvage_gives_no_less_than_ordinary_reads(path: Path) -> None:
    """One bit of a page number in the B-tree, and salvage raised before its first line, while the
    sessions on other pages could be read as ever.
    """
    original = (path / DATA_FILE).read_bytes()
    tried = 0
    everything = len(readable(path))
    for offset in last_pointers(path):
        (path / DATA_FILE).write_bytes(original)
        overwrite(path, offset + 2, bytes([original[offset + 2] ^ 128]))  # a page far away
        ordinary = readable(path)
        if len(ordinary) in (0, everything):
            continue  # a page that is not in use, or without which nothing can be read
        tried += 1
        with Store.open(path) as store:
            lines = [line for line in store.salvage() if isinstance(line, str)]
        whole = [line for line in lines if '"kind":"turnlog.damaged"' not in line]
        assert len(whole) >= len(ordinary)
    assert tried


def test_check_goes_on_behind_a_page_that_cannot_be_read(path: Path) -> None:
    """A transaction is dead after an error of LMDB; each part after it was a finding by itself,
    and what could not be reached counted as missing.
    """
    original = (path / DATA_FILE).read_bytes()
    broken = 0
    for offset in last_pointers(path):
        (path / DATA_FILE).write_bytes(original)
        overwrite(path, offset + 2, bytes([original[offset + 2] ^ 128]))
        with Store.open(path) as store:
            report = store.check()
        if report.ok:
            continue  # a page that is not in use
        broken += 1
        assert [finding.where for finding in report.findings] == ["segments"]
        assert report.consequences
        assert report.counts["hot_records"] and report.counts["keys"]
    assert broken


def test_salvage_goes_on_behind_a_page_of_hot_records(path: Path) -> None:
    """Its records are lost one by one; a page of them ended salvage before its first line."""
    original = (path / DATA_FILE).read_bytes()
    broken = 0
    for number in pages_of(original, BRANCH):
        page = original[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
        (first,) = U16.unpack_from(page, HEADER_BYTES)  # the first child's page number
        (path / DATA_FILE).write_bytes(original)
        overwrite(path, number * PAGE_BYTES + first + 2, bytes([page[first + 2] ^ 128]))
        with Store.open(path, read_only=True) as store:
            try:
                store.session("call-1").info()
                continue  # a page of another table, or that is not in use
            except CorruptionError:
                pass
            found = list(store.salvage())
        lost = [each for each in found if isinstance(each, Lost)]
        if any([each.session is None for each in lost]):
            broken += 1
            assert any(['"session":"late"' in line for line in found if isinstance(line, str)])
            assert all([each.error.where == "log" for each in lost if each.session is None])
    assert broken


@pytest.mark.parametrize("verb", [["check"], ["export", "--skip-damaged"]], ids=lambda v: v[0])
def test_the_tools_for_damage_survive_a_zeroed_sector(path: Path, verb: list[str]) -> None:
    """The first sector of a page was zero: LMDB's assertion ended the process, and with it the two
    commands that the hint of every ``CorruptionError`` names.
    """
    original = (path / DATA_FILE).read_bytes()
    died: list[tuple[int, int]] = []
    for number in segment_leaves(path)[:6]:
        (path / DATA_FILE).write_bytes(original)
        overwrite(path, number * PAGE_BYTES, bytes(512))
        done = subprocess.run(
            [sys.executable, "-m", "turnlog", verb[0], str(path), *verb[1:]],
            capture_output=True,
            timeout=HANG_S,
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tools'}"},
            check=False,
        )
        if done.returncode < 0:
            died.append((number, done.returncode))
    assert not died


def test_the_tools_for_damage_name_the_page_and_keep_what_came_before(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command says of a page that kills, and how it ends."""
    original = (path / DATA_FILE).read_bytes()
    kept = 0
    for number in segment_leaves(path)[:6]:
        (path / DATA_FILE).write_bytes(original)
        overwrite(path, number * PAGE_BYTES, bytes(512))
        code = check_store.run(path, as_json=False)
        said = capsys.readouterr().out
        if code is ExitCode.OK:
            continue  # a page that is not in use
        assert code is ExitCode.NEGATIVE
        assert f"page {number} " in said and "SIGABRT" in said
        target = path.parent / f"lines {number}"
        try:
            code = export_sessions.run(
                path, output=target, force=False, session=None, tenant=None, skip_damaged=True
            )
        except CorruptionError as error:
            assert f"page {number} " in str(error) and "--session" in error.hint
            assert not target.exists()
            continue
        assert code is ExitCode.CORRUPTION
        assert f"page {number} " in capsys.readouterr().err
        kept += len(target.read_text().splitlines())
    assert kept


def raise_damaged() -> list[int]:
    """Work that fails with an error whose class wants more than a message."""
    raise CorruptionError("is damaged", where="log 3", hint="Do.")


def test_an_error_in_a_child_is_the_same_in_the_parent() -> None:
    """Unpickling it failed for want of the arguments that exist by keyword only."""
    with pytest.raises(CorruptionError) as caught:
        list(in_child(raise_damaged))
    assert (str(caught.value), caught.value.where, caught.value.hint) == (
        "log 3: is damaged",
        "log 3",
        "Do.",
    )


def test_a_session_that_cannot_be_sealed_is_named_when_it_stops_the_store(store_path: Path) -> None:
    """Its row was damaged, so its one loose event kept the hot log from being cut; once the ring of
    tables was full every append was refused as overload, with the advice to wait and try again.
    """
    with Store.open(store_path) as store:
        store.session("victim").append({"n": 0}).result(HANG_S)
    table, key, value = next(row for row in rows(store_path) if row[0] == "session")
    put(store_path, (table, key, flipped(value)))
    batch = [{"n": number} for number in range(BATCH_EVENTS_MAX)]
    with Store.open(store_path) as store:
        for _ in range(HOT_TABLES * HOT_TABLE_POSITIONS // BATCH_EVENTS_MAX + 1):
            try:
                store.session("other").append_many(batch).result(HANG_S)
            except CorruptionError as error:
                assert "session number 1" in str(error)
                break
