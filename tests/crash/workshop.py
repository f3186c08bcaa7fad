"""Where works of ``maintenance`` run: a copy of a prepared store each, a process, a judgement."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.crash.forkserver import Child, ForkServer
from tests.crash.journal import JournalReader
from tests.crash.maintenance import WORKS, perform, prepare
from tests.format import independent


@dataclass
class Job:
    """What one process did to one copy of a store."""

    work: str
    where: str
    path: Path
    child: Child

    @property
    def journal(self) -> Path:
        """What it noted."""
        return self.path.with_name("journal")

    def lines(self) -> list[dict[str, object]]:
        """Its journal."""
        return JournalReader(self.journal).read()

    def counts(self) -> dict[str, int]:
        """How often it passed each failpoint."""
        found = [line["counts"] for line in self.lines() if "counts" in line]
        counts = found[-1] if found else {}
        assert isinstance(counts, dict)
        return counts


class Workshop:
    """Prepares each store once, copies, runs, judges.

    Args:
        forks: Starts the processes.
        stock: Where the prepared stores are; workshops may share it.
        folder: Where the copies are.
        thorough: Also let the reader that is made from FORMAT.md alone read what was left.
    """

    def __init__(
        self, forks: ForkServer, stock: Path, folder: Path, *, thorough: bool = False
    ) -> None:
        self._thorough = thorough
        self._forks = forks
        self._stock = stock
        self._folder = folder
        self._count = 0

    def path_of_next(self) -> Path:
        """Where the store of the next job will be."""
        return self._folder / f"job{self._count + 1}" / "store"

    def _prepared(self, work: str) -> Path:
        """A folder with a store in it that is ready for a work, by what prepares it."""
        made_by = WORKS[work].prepare.__name__
        folder = self._stock / made_by
        if not folder.exists():
            folder.mkdir()
            self._forks.start(prepare, self._stock, path=folder / "store", name=work).finish()
        return folder

    def start(self, work: str, where: str, **options: object) -> Job:
        """Begin a work on a fresh copy.

        Args:
            work: Which.
            where: What repeats the run, for who reads of its failure.
            options: As for ``perform``.
        """
        path = self.path_of_next()
        self._count += 1
        shutil.copytree(self._prepared(work), path.parent)
        job = Job(work, where, path, None)  # type: ignore[arg-type]
        job.child = self._forks.start(
            perform, path.parent, path=path, journal=job.journal, name=work, **options
        )
        return job

    def judge(self, job: Job) -> None:
        """After its process ended: before or after, and done once the work is run to its end."""
        work = WORKS[job.work]
        try:
            work.judge(job.path, False)
            if self._thorough:
                independent.Reader(job.path)
            again = job.path.with_name("journal of the successor")
            self._forks.start(
                perform, job.path.parent, path=job.path, journal=again, name=job.work
            ).finish()
            failed = [line for line in JournalReader(again).read() if "failed" in line]
            assert not failed, failed
            work.judge(job.path, True)
        except BaseException as error:
            error.add_note(f"{job.where}; its process said {job.lines()} {job.child.said()}")
            raise
        shutil.rmtree(job.path.parent)
