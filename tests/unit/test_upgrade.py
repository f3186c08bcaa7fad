"""Upgrading a store of format version 1, and what is left when that is broken off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog import place, raw
from eventlog.errors import (
    BusyError,
    CorruptionError,
    FormatVersionError,
    StorageFullError,
    UsageError,
)
from eventlog.failpoints import failpoints, raise_
from eventlog.place import FORMAT_VERSION
from eventlog.rows import CommitRecord
from eventlog.seams import Files
from eventlog.tables import TABLES, TABLES_1
from eventlog.upgrade import upgrade
from tests import old_store
from tests.format import independent
from tests.format.make_store import STORES, export, unpack

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Path]:
    """A store that the release of version 1 wrote; checked when the test ends."""
    path = unpack(STORES / "1.tar.xz", tmp_path / "old")
    yield path
    lines(path)


def lines(path: Path) -> list[str]:
    with Store.open(path, create=False) as store:
        assert store.check().ok, store.check().findings
        return export(store)


def version_of(path: Path) -> tuple[int, int]:
    """Of the marker, and of the rows."""
    marker = json.loads((path / "turnlog.json").read_text())
    record = raw.examine(path / "data.mdb", CommitRecord.decode, verify=True).record
    return marker["version"], record.version


def set_marker(path: Path, version: int) -> None:
    marker = json.loads((path / "turnlog.json").read_text())
    (path / "turnlog.json").write_text(json.dumps(marker | {"version": version}))


def test_an_old_store_is_used_as_it_is(old: Path) -> None:
    before = lines(old)
    with Store.open(old, create=False) as store:
        assert store._log.environment.version == 1
        assert set(store._log.environment.db) == set(TABLES_1)
        store.session("alice").append({"role": "user", "content": "back"}).result()
        store.flush()
        assert export(store)[: len(before)] == before
    assert version_of(old) == (1, 1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        pytest.param(lambda store: store.rebuild(), "be rebuilt", id="rebuild"),
        pytest.param(lambda store: store.session("alice").delete(), "remove events", id="delete"),
        pytest.param(lambda store: store.session("alice").erase(), "remove events", id="erase"),
        pytest.param(lambda store: store.session("alice").purge(1), "remove events", id="purge"),
        pytest.param(lambda store: store.session("alice").roll_up(), "roll-ups", id="roll-up"),
        pytest.param(lambda store: store.collect_blobs(), "blobs", id="blobs"),
    ],
)
def test_what_an_old_store_cannot_do_is_called_by_its_name(
    old: Path, call: Callable[[Store], object], said: str
) -> None:
    with Store.open(old, create=False) as store:
        last = store.last_position
        with pytest.raises(FormatVersionError, match=said) as caught:
            call(store)
        assert "upgrade" in caught.value.hint and caught.value.found == 1
        assert store.last_position == last


def test_an_upgrade_keeps_everything(old: Path) -> None:
    before = lines(old)
    report = Store.upgrade(old)
    saved = old.with_name("old.format-1.backup")
    assert (report.path, report.before, report.after, report.backup) == (old, 1, 2, saved)
    assert version_of(old) == (FORMAT_VERSION, FORMAT_VERSION)
    assert version_of(saved) == (1, 1)
    assert lines(old) == before
    reader = independent.Reader(old)
    assert (reader.version, reader.last_position) == (2, len(before))
    with Store.open(old, create=False) as store:
        assert set(store._log.environment.db) == set(TABLES)
        assert store.health()["problems"] == []
        store.session("alice").append({"role": "user", "content": "back"}).result()
        store.session("alice").delete().result()
        store.flush()
        assert store.check().ok
    restored = Store.restore(saved, old.with_name("restored"), check=True)
    assert version_of(restored.path) == (1, 1)
    assert lines(restored.path) == before


def test_a_store_of_this_version_is_left_alone(store: Store) -> None:
    store.session("a").append({"role": "user", "content": "x"}).result()
    store.close()
    before = (store.path / "data.mdb").read_bytes()
    report = Store.upgrade(store.path)
    assert (report.before, report.after, report.backup) == (2, 2, None)
    assert (store.path / "data.mdb").read_bytes() == before
    assert os.listdir(store.path.parent) == ["store"]


def test_an_older_release_refuses_it_in_words(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.upgrade(old, without_backup=True)
    with monkeypatch.context() as patch:
        patch.setattr(place, "FORMAT_VERSION", 1)
        with pytest.raises(FormatVersionError) as caught:
            Store.open(old, create=False)
    assert (caught.value.found, caught.value.supported) == (2, 1)
    assert os.listdir(old.parent) == ["old"]


class BrokenOff(Exception):
    """Ends an upgrade in the middle."""


def break_off(path: Path, name: str = "upgrade.after_marker") -> None:
    with failpoints({name: raise_(BrokenOff())}), pytest.raises(BrokenOff):
        Store.upgrade(path)


def test_a_broken_off_upgrade_reads_and_appends_as_before(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lines(old)
    break_off(old)
    assert version_of(old) == (2, 1)
    with monkeypatch.context() as patch:  # an older release would not understand what comes next
        patch.setattr(place, "FORMAT_VERSION", 1)
        with pytest.raises(FormatVersionError):
            Store.open(old, create=False)
    with Store.open(old, create=False) as store:
        assert store._log.environment.version == 1
        assert "`turnlog upgrade` goes on" in store.health()["problems"][0]
        store.session("alice").append({"role": "user", "content": "back"}).result()
        store.flush()
        assert store.check().ok
    assert version_of(old) == (2, 1)
    report = Store.upgrade(old)
    assert (report.before, report.after) == (1, 2)
    assert version_of(old) == (2, 2)
    assert lines(old)[: len(before)] == before
    assert report.backup == old.with_name("old.format-1.backup.2")  # the first is older than it
    assert lines(old.with_name("old.format-1.backup")) == before


def test_a_backup_that_is_there_already_is_not_made_again(old: Path) -> None:
    break_off(old)
    saved = old.with_name("old.format-1.backup")
    inode = (saved / "data.mdb").stat().st_ino
    assert Store.upgrade(old).backup == saved
    assert (saved / "data.mdb").stat().st_ino == inode
    assert sorted(os.listdir(old.parent)) == ["old", "old.format-1.backup"]


def test_what_else_has_the_name_of_the_backup_stays(old: Path) -> None:
    saved = old.with_name("old.format-1.backup")
    saved.write_text("mine")
    assert Store.upgrade(old).backup == old.with_name("old.format-1.backup.2")
    assert saved.read_text() == "mine"


def test_after_the_commit_all_is_done(old: Path) -> None:
    break_off(old, "upgrade.after_commit")
    assert version_of(old) == (2, 2)
    assert Store.upgrade(old).before == 2


def test_an_old_marker_of_a_new_store_is_mended(old: Path) -> None:
    """As when somebody puts the marker of an old copy back."""
    before = lines(old)
    Store.upgrade(old, without_backup=True)
    set_marker(old, 1)
    with Store.open(old, create=False) as store:
        assert store._log.environment.version == 2
        assert "`turnlog upgrade` goes on" in store.health()["problems"][0]
        assert export(store) == before
    report = Store.upgrade(old)
    assert (report.before, report.after, report.backup) == (2, 2, None)
    assert version_of(old) == (2, 2)


def test_a_backup_goes_where_it_is_told(old: Path, tmp_path: Path) -> None:
    saved = tmp_path / "elsewhere"
    assert Store.upgrade(old, backup=saved).backup == saved
    assert version_of(saved) == (1, 1)


def test_a_taken_place_for_the_backup_stops_it(old: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        Store.upgrade(old, backup=tmp_path / "elsewhere")
    assert version_of(old) == (1, 1)
    with pytest.raises(UsageError, match="contradict"):
        Store.upgrade(old, backup=tmp_path / "x", without_backup=True)


def test_no_room_for_a_backup_stops_it(old: Path) -> None:
    class Full(Files):
        def write_at(self, descriptor: int, data: bytes, offset: int) -> None:
            if len(data) > 4_096:
                raise OSError(28, "No space left on device")
            super().write_at(descriptor, data, offset)

    with pytest.raises(StorageFullError):
        upgrade(old, files=Full())
    assert version_of(old) == (1, 1)
    assert os.listdir(old.parent) == ["old"]


def test_a_store_in_use_is_not_upgraded(old: Path) -> None:
    with Store.open(old, create=False), pytest.raises(BusyError):
        Store.upgrade(old)
    assert version_of(old) == (1, 1)


def test_a_damaged_store_is_not_upgraded(tmp_path: Path) -> None:
    old = unpack(STORES / "1.tar.xz", tmp_path / "damaged")
    data = old / "data.mdb"
    content = bytearray(data.read_bytes())
    for offset in range(4_096 * 60 + 12, len(content), 4_096):
        content[offset : offset + 2] = b"\xff\xff"
    data.write_bytes(content)
    for options in ({}, {"without_backup": True}):
        with pytest.raises(CorruptionError):
            Store.upgrade(old, **options)  # type: ignore[arg-type]
        assert data.read_bytes() == content
        assert json.loads((old / "turnlog.json").read_text())["version"] == 1


def test_who_waited_outside_comes_in_with_the_new_version(old: Path) -> None:
    """It had read the marker before, and took the store for one of the old version."""
    text = (
        "import sys; from engine import Store; from eventlog.locks import UseLock\n"
        "real = UseLock.enter\n"
        "def enter(*arguments, **options):\n"
        "    print('waits', flush=True)\n"
        "    return real(*arguments, **options)\n"
        "UseLock.enter = enter\n"
        "with Store.open(sys.argv[1], create=False) as store:\n"
        "    print(store._log.environment.version, store.check().ok)\n"
        "    store.session('alice').append({'role': 'user', 'content': 'x'}).result()\n"
    )
    others: list[subprocess.Popen[str]] = []

    def start() -> None:
        other = subprocess.Popen(
            [sys.executable, "-c", text, str(old)],
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            text=True,
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "waits\n"
        others.append(other)

    set_marker(old, 1)
    with failpoints({"stage.before_rename": start}):  # of the backup: the marker is still old
        Store.upgrade(old)
    assert others[0].communicate(timeout=30)[0] == "2 True\n"
    assert version_of(old) == (2, 2)


def test_an_empty_store_of_version_1(tmp_path: Path) -> None:
    path = tmp_path / "store"
    old_store.make(path)
    assert version_of(path) == (1, 1)
    with Store.open(path, create=False) as store:
        store.session("a").append({"role": "user", "content": "x"}).result()
    before = lines(path)
    Store.upgrade(path, without_backup=True)
    assert version_of(path) == (2, 2)
    assert lines(path) == before


@pytest.mark.parametrize("options", [{"backup": 1}, {"without_backup": 1}], ids=str)
def test_arguments_that_make_no_sense(old: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Store.upgrade(old, **options)
