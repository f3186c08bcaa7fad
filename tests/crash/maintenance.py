"""Work on a store that is no plain append, in a process of its own, with a fault somewhere in it.

Each work prepares a store, runs, and is judged: after a fault the store holds what it held before
or what the work makes of it, and nothing in between; run once more to its end, it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine import Store
from eventlog.errors import TurnlogError
from tests.crash.driver import OPENINGS_MAX, arm, wait_at
from tests.crash.journal import Journal
from tests.crash.upkeep import AFTER, WAIT_S, Work
from tests.crash.works_of_files import FILE_WORKS
from tests.crash.works_of_redaction import REDACTION_WORKS
from tests.crash.works_of_removal import REMOVAL_WORKS

WORKS: Final[dict[str, Work]] = {**REMOVAL_WORKS, **FILE_WORKS, **REDACTION_WORKS}


def prepare(path: str, name: str) -> None:
    """Make the store of a work."""
    WORKS[name].prepare(Path(path))


def perform(
    path: str,
    journal: str,
    name: str,
    failpoint: str | None = None,
    hit: int = 1,
    action: str = "kill",
    gate: str | None = None,
) -> None:
    """Do a work, and go on after an error as a program would.

    Args:
        path: The store.
        journal: Where the error that it met is noted; with ``failpoint="count"`` also how often
            each failpoint was passed.
        name: Which.
        failpoint: Where a fault comes.
        hit: At which pass.
        action: ``kill``, or a key of ``ERRORS``.
        gate: A FIFO; wait there for a byte before anything is done to the store.
    """
    notes = Journal(journal)
    counts = arm(failpoint, hit, action)
    if gate is not None:
        wait_at(gate)
    _try(lambda: WORKS[name].run(Path(path)), notes, "work")
    notes.write(counts=counts)
    for _ in range(OPENINGS_MAX):  # a fault that comes once per thread can meet the first few
        if _try(lambda: _append(path), notes, "append"):
            return
    raise AssertionError("the store does not append any more")


def _try(call: Callable[[], None], notes: Journal, what: str) -> bool:
    try:
        call()
    except TurnlogError as error:
        notes.write(failed=what, error=type(error).__name__, text=str(error))
    except (OSError, KeyboardInterrupt) as error:
        notes.write(failed=what, error=type(error).__name__, text=str(error), bare=True)
    else:
        return True
    return False


def _append(path: str) -> None:
    """One append; a second one when the first met the fault of its thread."""
    with Store.open(path, create=False) as store:
        session = store.session(AFTER[1])
        try:
            session.append({"role": "user"}).result(WAIT_S)
        except TurnlogError:
            session.append({"role": "user"}).result(WAIT_S)
