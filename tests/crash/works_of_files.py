"""What is done to a store as a whole, as works of ``maintenance``.

Before it, one session was deleted and another erased, and nothing was removed of either yet.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from engine import Store
from eventlog import rebuild
from eventlog.errors import TurnlogError
from eventlog.failpoints import failpoints, raise_
from eventlog.place import FORMAT_VERSION
from eventlog.raw import DATA_FILE
from tests.crash.driver import ERRORS
from tests.crash.upkeep import (
    AFTER,
    WAIT_S,
    Work,
    judge_order,
    opened,
    require_no_left_over,
    require_removed,
)
from tests.crash.workload import session_of
from tests.crash.works_of_removal import DOOMED, DOOMED_TWO, KEPT, judge_names, prepare_cut
from tests.format.make_store import STORES, export, unpack

BACKUP: Final = "a backup"
RESTORED: Final = "restored"
OPTIONS: Final = ({"snapshot_frequency": 8}, {"snapshot_frequency": 17})


def prepare_removed(path: Path) -> None:
    """A session was deleted, another one erased, and both are still to be removed."""
    prepare_cut(path)
    fails = failpoints({"removal.after_slice": raise_(ERRORS["io"])})
    with fails, Store.open(path, create=False) as store:
        session_of(store, DOOMED.name).delete().result(WAIT_S)
        with suppress(TurnlogError):
            session_of(store, DOOMED_TWO.name).erase(timeout=WAIT_S)
    with Store.open(path, read_only=True) as store, store._log.views.transaction() as tables:
        tables.commit_record()  # it says which database has which role
        assert len(list(tables.rows("removal"))) == 2


def _rebuild(path: Path) -> None:
    bounds: Any = rebuild
    bounds.STEP_SESSIONS_MAX = 2
    with opened(path) as store:
        store.rebuild()


def _judge_rebuilt(path: Path, done: bool) -> None:
    """Nothing changed for who reads; when it is done, nor for who appends."""
    with Store.open(path, create=False, verify=True) as store:
        for content in KEPT:
            content.require(store)
        for content in (DOOMED, DOOMED_TWO):
            content.require_gone(store)
        judge_order(store, KEPT)
        if done:
            require_removed(store, DOOMED, len(KEPT) + 1, erased=False)
            require_removed(store, DOOMED_TWO, len(KEPT) + 2, erased=True)
    if done:
        judge_names(path, list(KEPT), (DOOMED, DOOMED_TWO))
        require_no_left_over(path)


def _judge_kept(store: Store) -> None:
    """All that a copy must hold, too."""
    for content in KEPT:
        content.require(store)
    for content in (DOOMED, DOOMED_TWO):
        content.require_gone(store)
    judge_order(store, KEPT)


# Vacuum


def _vacuum(path: Path) -> None:
    with opened(path) as store:  # what is erased is removed first
        store.session(AFTER[1]).append({"role": "user"}).result(WAIT_S)
        store.flush(WAIT_S)
    Store.vacuum(path)


def _judge_vacuumed(path: Path, done: bool) -> None:
    """The same store; once it is done, nothing of what was erased is in its file."""
    if done:
        assert DOOMED_TWO.secret.encode() not in (path / DATA_FILE).read_bytes()
    _judge_rebuilt(path, done)


# Copies


def _copy(path: Path) -> None:
    """A backup of the open store, and a store made from it."""
    backup, restored = path.with_name(BACKUP), path.with_name(RESTORED)
    if not backup.exists():
        with opened(path) as store:
            store.backup(backup)
    if not restored.exists():
        Store.restore(backup, restored, check=True)


def _judge_copies(path: Path, done: bool) -> None:
    for place in (path.with_name(BACKUP), path.with_name(RESTORED)):
        if place.exists() or done:
            with Store.open(place, create=False, read_only=True, verify=True) as store:
                _judge_kept(store)
    if done:
        hidden = [each.name for each in path.parent.iterdir() if each.name.startswith(".")]
        assert not hidden, hidden
        restored = path.with_name(RESTORED)
        with Store.open(restored, create=False) as store:  # it goes on by itself
            store.session(AFTER[1]).append({"role": "user"}).result(WAIT_S)
            store.flush(WAIT_S)
            require_removed(store, DOOMED_TWO, len(KEPT) + 2, erased=True)
        judge_names(restored, list(KEPT), (DOOMED, DOOMED_TWO))
    _judge_rebuilt(path, done)


# Format versions and options


def _prepare_old(path: Path) -> None:
    """The store that the release of version 1 made."""
    unpack(STORES / "1.tar.xz", path)


def _upgrade(path: Path) -> None:
    number = sum([1 for _ in path.parent.glob(f"{BACKUP} *")])
    Store.upgrade(path, backup=path.with_name(f"{BACKUP} {number}"))


def _judge_upgraded(path: Path, done: bool) -> None:
    """Every event is as it was, in the store and in its backup."""
    wanted = (STORES / "1.jsonl").read_text("utf-8").splitlines()
    backups = list(path.parent.glob(f"{BACKUP} *"))
    for place in (path, *backups):
        with Store.open(place, create=False, read_only=True, verify=True) as store:
            lines = export(store)
            assert [line for line in lines if line in wanted] == wanted
            version = store._log.environment.version
            report = store.check()
            assert report.ok, report.findings
        assert version == (1 if place != path else FORMAT_VERSION) or (place == path and not done)
    if done:
        assert backups
        with Store.open(path, create=False) as store:
            alice = store.session("alice")
            assert alice.exists
            alice.erase(timeout=WAIT_S)
            assert not alice.exists
            report = store.check()
            assert report.ok, report.findings
        hidden = [each.name for each in path.parent.iterdir() if each.name.startswith(".")]
        assert not hidden, hidden
        require_no_left_over(path)


def _configure(path: Path) -> None:
    with opened(path) as store:
        store.configure(**OPTIONS[1])


def _judge_configured(path: Path, done: bool) -> None:
    with Store.open(path, create=False, read_only=True) as store:
        found = {"snapshot_frequency": store.stats()["options"]["snapshot_frequency"]}
    assert found in (OPTIONS[1:] if done else OPTIONS)
    _judge_rebuilt(path, done)


FILE_WORKS: Final[dict[str, Work]] = {
    "rebuild": Work(prepare_removed, _rebuild, _judge_rebuilt),
    "vacuum": Work(prepare_removed, _vacuum, _judge_vacuumed),
    "copy": Work(prepare_removed, _copy, _judge_copies),
    "upgrade": Work(_prepare_old, _upgrade, _judge_upgraded),
    "configure": Work(prepare_removed, _configure, _judge_configured),
}
