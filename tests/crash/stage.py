"""The stage on which one operation runs with one fault: a prepared store, a process, a judgement.

Stores are prepared once and copied for each fault, since a sweep has hundreds of them.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from engine import Store
from tests.crash.driver import COPIES, drive, prepare
from tests.crash.forkserver import Child, ForkServer
from tests.crash.journal import JournalReader
from tests.crash.oracle import Oracle


@dataclass
class Run:
    """What one process did to one copy of a store."""

    path: Path
    journal: Path
    child: Child

    def lines(self) -> list[dict[str, object]]:
        """Its journal."""
        return JournalReader(self.journal).read()

    def counts(self) -> dict[str, int]:
        """How often it passed each failpoint."""
        found = [line["counts"] for line in self.lines() if "counts" in line]
        counts = found[-1] if found else {}
        assert isinstance(counts, dict)
        return counts


class Stage:
    """Prepares, copies, runs, judges."""

    def __init__(self, forks: ForkServer, folder: Path) -> None:
        self._forks = forks
        self._folder = folder
        self._count = 0

    def path_of_next(self, operation: str) -> Path:
        """Where the store of the next run will be."""
        if operation != "create":
            self._prepared(operation)
        return self._folder / f"run{self._count + 1}" / "store"

    def _prepared(self, operation: str) -> tuple[Path, Path]:
        """A store ready for an operation, and its journal; made once."""
        folder = self._folder / f"prepared for {operation}"
        if not folder.exists():
            folder.mkdir()
            self._forks.start(
                prepare,
                folder,
                path=folder / "store",
                journal=folder / "journal",
                operation=operation,
            ).finish()
        return folder / "store", folder / "journal"

    def start(self, operation: str, hint: str, **options: object) -> tuple[Run, Oracle]:
        """Begin an operation on a fresh copy; options as for ``drive``."""
        self._count += 1
        folder = self._folder / f"run{self._count}"
        folder.mkdir()
        path, journal = folder / "store", folder / "journal"
        oracle = Oracle(hint)
        if operation != "create":
            prepared, before = self._prepared(operation)
            shutil.copytree(prepared, path)
            oracle.listen(before)
        oracle.listen(journal)
        child = self._forks.start(
            drive, folder, path=path, journal=journal, operation=operation, **options
        )
        return Run(path, journal, child), oracle

    def judge(self, run: Run, oracle: Oracle) -> None:
        """After its process ended: the store goes on at once, and holds what it must."""
        if not run.path.exists():
            assert run.child.status != 0, "it went well and there is no store"
        journal = run.path.with_name("journal of the successor")
        self._forks.start(
            drive,
            run.path.parent,
            path=run.path,
            journal=journal,
            operation="create",
            before=run.journal,
        ).finish()
        oracle.listen(journal)
        oracle.audit(run.path, repeat=3)
        self._judge_copies(run, oracle)
        shutil.rmtree(run.path.parent)

    def _judge_copies(self, run: Run, oracle: Oracle) -> None:
        """What was made beside the store is whole or not there, and made again leaves nothing."""
        folder = run.path.parent
        for name in COPIES:
            place = folder / name
            if not place.exists():
                with Store.open(run.path, create=False) as store:
                    store.backup(place)
            assert place.stat().st_mode & 0o777 == 0o700
            with Store.open(place, create=False, read_only=True, verify=True) as store:
                assert store.check().ok, f"{name}: {store.check().findings}"
                found = [event.stored()[:8] for event in store.read()]
            assert found == oracle.checksums[: len(found)], f"{name} holds something else"
        left = [each for each in os.listdir(folder) if each.endswith(".creating")]
        assert not left, left
