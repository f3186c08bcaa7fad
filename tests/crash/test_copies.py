"""Copies of a store that others write, disks that get full under them, and vacuum among others.

``--crash-cycles=N`` sets how many backups and copies are made; never fewer than 20.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from engine import Store
from eventlog.errors import BusyError, StorageFullError, TurnlogError
from eventlog.place import MARKER_FILE
from eventlog.raw import DATA_FILE
from eventlog.seams import Files
from eventlog.upgrade import upgrade
from eventlog.vacuum import vacuum
from tests import old_store
from tests.crash.conftest import Watchdog
from tests.crash.driver import judge_copy
from tests.crash.forkserver import Child, ForkServer
from tests.crash.oracle import Oracle
from tests.crash.workload import new_journal, write
from tests.format.make_store import export

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

COPIES_MIN = 20
GENERATION = 40  # copies of one store; it would grow beyond what is judged in time
PACE_US = 3_000  # writers rest so long after each append, or the stores grow too large to judge
Mount = Callable[..., Path]


class Writers:
    """Two processes that append to one store, sealing and cutting as they go."""

    def __init__(self, forks: ForkServer, folder: Path, seed: int) -> None:
        self.path = folder / "store"
        self.oracle = Oracle(f"seed {seed}")
        Store.open(self.path).close()
        self._children: list[Child] = []
        for number in range(2):
            journal = new_journal(folder, f"w{number}", 1)
            self.oracle.listen(journal)
            self._children.append(
                forks.start(
                    write,
                    folder,
                    path=self.path,
                    journal=journal,
                    slot=f"w{number}",
                    seed=seed + number,
                    before=[],
                    frequency=3,
                    pace_us=PACE_US,
                )
            )
        self.until(50)

    def until(self, more: int) -> None:
        """Wait until so many more appends were acknowledged."""
        wanted = self.oracle.acknowledged + more
        while self.oracle.acknowledged < wanted:
            for child in self._children:
                assert child.poll() is None, child.said()
            self.oracle.absorb()
            time.sleep(0.005)

    def acknowledged_position(self) -> int:
        """The largest position that anybody was told so far."""
        self.oracle.absorb()
        return max([told.position for told in self.oracle.told().values()])

    def end(self) -> None:
        """Kill them, and judge their store."""
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
        self.oracle.audit(self.path)


@pytest.fixture
def generations(
    forks: ForkServer, tmp_path: Path, crash_seed: int, crash_cycles: int, watchdog: Watchdog
) -> Iterator[Iterator[tuple[Writers, int]]]:
    """Writers at work and how many copies to make of their store; each are ended and judged."""

    def each() -> Iterator[tuple[Writers, int]]:
        left = max(COPIES_MIN, crash_cycles)
        while left > 0:
            watchdog.feed()
            folder = tmp_path / f"generation {left}"
            folder.mkdir()
            writers = Writers(forks, folder, crash_seed + left)
            yield writers, min(left, GENERATION)
            left -= GENERATION
            assert [name for name in os.listdir(folder) if name.endswith(".creating")] == []
            shutil.rmtree(folder)

    yield each()


def digest_of(checksums: list[bytes]) -> str:
    return blake2b(b"".join(checksums), digest_size=16).hexdigest()


@pytest.mark.parametrize("read_only", [True, False], ids=["reader", "writer"])
def test_every_backup_under_load_is_restored_whole(
    generations: Iterator[tuple[Writers, int]], read_only: bool, watchdog: Watchdog
) -> None:
    """Row 80: it holds what was acknowledged before it began, and a prefix of the log."""
    for writers, count in generations:
        copy, target = writers.path.with_name("copy"), writers.path.with_name("again")
        found: list[tuple[int, str]] = []
        with Store.open(writers.path, create=False, read_only=read_only) as store:
            for _ in range(count):
                watchdog.feed()
                told = writers.acknowledged_position()
                report = store.backup(copy)
                assert report.position >= told
                Store.restore(copy, target)
                with Store.open(target, create=False) as again:
                    check = again.check()
                    assert check.ok, check.findings
                    checksums = [event.stored()[:8] for event in again.read()]
                    assert len(checksums) == report.position == again.last_position
                    again.session("after").append({"role": "user", "content": "x"}).result(10)
                found.append((report.position, digest_of(checksums)))
                shutil.rmtree(copy)
                shutil.rmtree(target)
                writers.until(1)
        watchdog.feed()
        writers.end()
        wanted = writers.oracle.checksums
        assert found == [(place, digest_of(wanted[:place])) for place, _ in found]


def test_a_plain_copy_of_a_live_store_is_whole_or_found_out(
    generations: Iterator[tuple[Writers, int]], forks: ForkServer, watchdog: Watchdog
) -> None:
    """Row 81: ``cp`` reads some pages before a commit and some after it."""
    for writers, count in generations:
        copy = writers.path.with_name("copy")
        said: list[str] = []
        for _ in range(count):
            watchdog.feed()
            copy.mkdir()
            shutil.copyfile(writers.path / MARKER_FILE, copy / MARKER_FILE)
            with (
                open(writers.path / DATA_FILE, "rb") as source,
                open(copy / DATA_FILE, "wb") as target,
            ):
                while piece := source.read(16_384):
                    target.write(piece)
                    time.sleep(0)
            said.append(forks.start(judge_copy, copy.parent, path=copy).finish().strip())
            shutil.rmtree(copy)
        watchdog.feed()
        writers.end()
        for each in said:
            what, _, rest = each.partition(" ")
            assert what in ("refused", "findings", "whole"), each
            if what == "whole":
                events, digest = rest.split()
                assert digest == digest_of(writers.oracle.checksums[: int(events)])


def test_vacuum_among_processes_that_come_and_go(
    forks: ForkServer, tmp_path: Path, crash_cycles: int, crash_seed: int, watchdog: Watchdog
) -> None:
    """Nothing that was acknowledged is lost between two files, whoever waited outside."""
    path = tmp_path / "store"
    oracle = Oracle(f"seed {crash_seed}")
    Store.open(path).close()
    vacuums = busy = 0
    journals: list[Path] = []
    for life in range(max(COPIES_MIN, crash_cycles)):
        watchdog.feed()
        children = []
        for slot in ("a", "b"):
            journal = new_journal(tmp_path, slot, life)
            oracle.listen(journal)
            children.append(
                forks.start(
                    write,
                    tmp_path,
                    path=path,
                    journal=journal,
                    slot=slot,
                    seed=crash_seed + life,
                    before=journals[-2:],
                    frequency=3,
                    count=6,
                )
            )
            journals.append(journal)
        while any([child.poll() is None for child in children]):
            try:
                vacuum(path, lock_deadline_ms=20)
                vacuums += 1
            except BusyError:
                busy += 1
        for child in children:
            child.finish()
    assert vacuums + busy > 0
    vacuum(path)
    oracle.audit(path)


def fill(path: Path, *, old: bool = False) -> list[str]:
    """A store of about 1 MB; its export lines."""
    if old:
        old_store.make(path)
    with Store.open(path) as store:
        for number in range(16):
            body = {"role": "user", "content": blake2b(str(number).encode()).hexdigest() * 400}
            store.session(f"call-{number}").append(body).result(10)
        assert store.check().ok
        return export(store)


def test_a_full_disk_under_a_backup_and_a_restore(tmp_path: Path, mount: Mount) -> None:
    """Row 82: at any size of what is left, there is nothing or a whole one."""
    wanted = fill(tmp_path / "store")
    point = mount("-t", "tmpfs", "-o", "size=2m", "tmpfs")
    full = whole = 0
    with Store.open(tmp_path / "store", create=False) as store:
        store.backup(tmp_path / "copy")
        for left in (0, 4_096, 100_000, 700_000, 1_900_000):
            (point / "ballast").write_bytes(bytes(2_000_000 - left))
            for make in (
                lambda: store.backup(point / "new"),
                lambda: Store.restore(tmp_path / "copy", point / "new"),
            ):
                try:
                    make()
                    whole += 1
                    (point / "ballast").unlink(missing_ok=True)
                    with Store.open(point / "new", create=False) as again:
                        assert again.check().ok
                        assert export(again) == wanted
                    shutil.rmtree(point / "new")
                except StorageFullError:
                    full += 1
                assert set(os.listdir(point)) <= {"ballast"}
        assert store.check().ok
    assert (full, whole) == (8, 2)


class Boastful(Files):
    """A file system that has less room than it says, as one with a quota."""

    def free_bytes(self, path: Path) -> int:
        return 1 << 40


@pytest.mark.parametrize("what", ["vacuum", "upgrade"])
def test_a_full_disk_under_a_rewriting(what: str, mount: Mount) -> None:
    point = mount("-t", "tmpfs", "-o", "size=8m", "tmpfs")
    path = point / "store"
    wanted = fill(path, old=what == "upgrade")
    free = shutil.disk_usage(point).free
    for left in (0, 40_000, 500_000):
        (point / "ballast").write_bytes(bytes(free - left))
        with pytest.raises(StorageFullError):
            if what == "vacuum":
                vacuum(path, files=Boastful())
            else:
                upgrade(path, files=Boastful())
        assert sorted(os.listdir(point)) == ["ballast", "store"]
        (point / "ballast").unlink(missing_ok=True)
        with Store.open(path, create=False) as store:
            assert store.check().ok
            assert export(store) == wanted
    if what == "vacuum":
        vacuum(path)
    else:
        upgrade(path, without_backup=True)
    with Store.open(path, create=False) as store:
        assert store.check().ok
        assert export(store) == wanted


def test_no_room_for_the_rows_of_an_upgrade(mount: Mount) -> None:
    """Not a page more than the store has: it stays what it was, and opens."""
    point = mount("-t", "tmpfs", "-o", "size=8m", "tmpfs")
    path = point / "store"
    wanted = fill(path, old=True)
    ballast = os.open(point / "ballast", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space"):
        while True:
            os.write(ballast, bytes(4_096))
    os.close(ballast)
    try:
        upgrade(path, without_backup=True)
    except TurnlogError:
        pass  # it may find room in pages that are free
    (point / "ballast").unlink(missing_ok=True)
    with Store.open(path, create=False) as store:
        assert store.check().ok
        assert export(store) == wanted
    assert upgrade(path, without_backup=True).after == 2
