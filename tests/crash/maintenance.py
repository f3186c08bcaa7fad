"""Work on a store that is no plain append, in a process of its own, with a fault somewhere in it.

Each work prepares a store, runs, and is judged: after a fault the store holds what it held before
or what the work makes of it, and nothing in between; run once more to its end, it is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine import Store
from eventlog import limits, rebuild, removal
from eventlog.errors import TurnlogError
from eventlog.failpoints import NAMES, failpoints, kill, raise_, set_failpoints
from tests.crash.driver import ERRORS, OPENINGS_MAX, Fault, wait_at
from tests.crash.journal import Journal
from tests.crash.upkeep import (
    AFTER,
    FILLER,
    WAIT_S,
    Content,
    judge_order,
    numbered,
    opened,
    require_no_left_over,
    require_removed,
)
from tests.crash.workload import seal_as_usual, seal_eagerly, session_of

KEPT: Final = (Content(("", "kept"), 3), Content(("acme", "doomed"), 2), Content(("acme", "k"), 2))
DOOMED: Final = Content(("", "doomed"), 8)
DOOMED_TWO: Final = Content(("acme", "doomed too"), 5)
REMOVED_MAX: Final = 25  # rows of one slice, so that a small session takes several


@dataclass(frozen=True, slots=True)
class Work:
    """What is done to a store; ``path`` is the store's, and others may be made beside it.

    Attributes:
        prepare: Makes the store.
        run: Does the work; when it was done before, or in part, it does the rest.
        judge: Raises unless the work is done or, with ``done`` False, not begun.
    """

    prepare: Callable[[Path], None]
    run: Callable[[Path], None]
    judge: Callable[[Path, bool], None]


# Deleting and erasing


def _prepare(path: Path) -> None:
    """Every session has events in segments and loose ones."""
    contents = (*KEPT, DOOMED, DOOMED_TWO)
    with Store.open(path, snapshot_frequency=8) as store:
        for content in contents:
            content.append(store, 0, content.pieces * 2 // 3)
        store.flush()
        store._log.index.frequency = limits.SNAPSHOT_FREQUENCY_MAX
        for content in contents:
            content.append(store, content.pieces * 2 // 3)


def _prepare_cut(path: Path) -> None:
    """The first events of every session are cut from the hot log."""
    _prepare(path)
    with Store.open(path, create=False) as store:
        filler = store.session(FILLER[1])
        for _ in range(limits.HOT_TABLE_POSITIONS // 1_024 + 1):
            filler.append_many([{}] * 1_024).result(WAIT_S)
        seal_eagerly(store, 1)
        store.session(AFTER[1]).append({"role": "user"}).result(WAIT_S)
        store.flush()
        seal_as_usual(store)
        with store._log.views.transaction() as tables:
            assert tables.commit_record().cuts


def _remove(path: Path, *contents: Content, erase: bool = False) -> None:
    """Remove sessions, and wait until nothing is left of them."""
    bounds: Any = removal
    bounds.COMMIT_REMOVED_MAX = REMOVED_MAX
    with opened(path) as store:
        sessions = [session_of(store, content.name) for content in contents]
        there = [session for session in sessions if session.exists]
        if erase:
            for session in there:
                session.erase(timeout=WAIT_S)
        else:
            for ack in [session.delete() for session in there]:
                ack.result(WAIT_S)
        store.session(AFTER[1]).append({"role": "user"}).result(WAIT_S)
        store.flush(WAIT_S)


def _judge_removed(path: Path, done: bool, *contents: Content, erased: bool = False) -> None:
    """Each of some sessions is there or gone."""
    every = (*KEPT, DOOMED, DOOMED_TWO)
    with Store.open(path, create=False, verify=True) as store:
        kept = [content for content in every if content not in contents]
        for content in kept:
            content.require(store)
        there = [content for content in contents if content.is_there(store)]
        judge_order(store, [*kept, *there])
        if done:
            assert not there, f"{[content.name for content in there]} are still there"
            for content in contents:
                number = 1 + every.index(content)
                require_removed(store, content, number, erased=erased)
    if done:
        _judge_names(path, kept, contents)
        require_no_left_over(path)


def _judge_names(path: Path, kept: list[Content], gone: tuple[Content, ...]) -> None:
    """Keys and ids of what is kept are known, those of what is gone are free, and so are names."""
    with Store.open(path, create=False) as store:
        for content in kept:
            assert all(content.append(store)), f"{content.name} was appended again"
        for content in gone:
            assert not any(content.append(store)), f"keys of {content.name} are known"
            assert numbered(session_of(store, content.name)) > len(KEPT) + 2
            content.require(store)
        report = store.check()
        assert report.ok, report.findings


def _work(prepare: Callable[[Path], None], *contents: Content, erase: bool = False) -> Work:
    return Work(
        prepare,
        lambda path: _remove(path, *contents, erase=erase),
        lambda path, done: _judge_removed(path, done, *contents, erased=erase),
    )


# Rebuilding


def _prepare_removed(path: Path) -> None:
    """A session was deleted, another one erased, and both are still to be removed."""
    _prepare_cut(path)
    fails = failpoints({"removal.after_slice": raise_(ERRORS["io"])})
    with fails, Store.open(path, create=False) as store:
        session_of(store, DOOMED.name).delete().result(WAIT_S)
        with suppress(TurnlogError):
            session_of(store, DOOMED_TWO.name).erase(timeout=WAIT_S)
    with Store.open(path, read_only=True) as store, store._log.views.transaction() as tables:
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
        _judge_names(path, list(KEPT), (DOOMED, DOOMED_TWO))
        require_no_left_over(path)


WORKS: Final[dict[str, Work]] = {
    "delete": _work(_prepare, DOOMED),
    "delete two": _work(_prepare, DOOMED, DOOMED_TWO),
    "delete cut": _work(_prepare_cut, DOOMED),
    "erase": _work(_prepare, DOOMED, erase=True),
    "erase cut": _work(_prepare_cut, DOOMED, erase=True),
    "rebuild": Work(_prepare_removed, _rebuild, _judge_rebuilt),
}


# The processes


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
    counts: Counter[str] = Counter()
    if failpoint == "count":
        set_failpoints({name: _counter(counts, name) for name in NAMES})
    elif failpoint is not None:
        act = kill() if action == "kill" else raise_(ERRORS[action])
        set_failpoints({failpoint: Fault(hit, act)})
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


def _counter(counts: Counter[str], name: str) -> Callable[[], object]:
    return lambda: counts.update((name,))
