"""One operation on a store in a process of its own, with a fault somewhere in it.

The process journals what it submits and what it is told, like a writer of a kill loop, and goes on
after an error as a program would: it opens the store again when opening failed or when the writer
is gone, and in the end one more append must be acknowledged.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from engine import Store
from eventlog import blobtable, limits, sealing
from eventlog.dictionary import DictionaryRow
from eventlog.errors import TurnlogError
from eventlog.failpoints import NAMES, kill, raise_, set_failpoints
from eventlog.merging import FACTOR
from eventlog.raw import DATA_FILE
from eventlog.training import _Install
from tests import old_store
from tests.crash.journal import Journal
from tests.crash.peer import Hold
from tests.crash.workload import Operation, Recorder, Share, seal_eagerly, session_of, unsettled
from tests.format.cases import DICTIONARY

OPENINGS_MAX = 6  # a fault that comes once per thread can meet the first few openings
SESSIONS = [("", "one"), ("", "two"), ("acme", "one"), ("acme", "three")]
CUT_FREQUENCY = 4_096  # nothing is sealed by itself while a store to be cut is prepared
MERGE_FREQUENCY = 2  # segments are short, and soon there are enough to be merged

COPIES = ("a backup", "restored")  # what operations make beside the store
COPYING = ("backup", "restore", "vacuum", "upgrade")

ERRORS: dict[str, BaseException] = {
    "io": OSError(errno.EIO, os.strerror(errno.EIO)),
    "interrupt": KeyboardInterrupt(),
}


def prepare(path: str, journal: str, operation: str) -> None:
    """Make a store on which ``operation`` does its work at once; it is closed afterwards."""
    if operation == "upgrade":
        old_store.make(Path(path))
    frequency = {"cut": CUT_FREQUENCY, "merge": MERGE_FREQUENCY}.get(operation)
    with Store.open(path, snapshot_frequency=frequency) as store:
        recorder = Recorder(store, Journal(journal))
        if operation in ("append", "full", "memory", "pressure", "read", *COPYING):
            recorder.do(Operation("before", "many", (Share(SESSIONS[0], 3),), key="k", named=True))
        elif operation in ("roll up", "dictionary"):
            for number, name in enumerate(SESSIONS):
                recorder.do(
                    Operation(f"before {number}", "many", (Share(name, 24),), f"k{number}", True)
                )
        elif operation == "merge":
            for number in range(FACTOR - 1):
                for name in SESSIONS:
                    recorder.do(
                        Operation(f"before {number} {name}", "many", (Share(name, 2),), named=True)
                    )
                store.flush()
        elif operation == "cut":
            for number in range(limits.HOT_TABLE_POSITIONS // 100 + 2):
                name = SESSIONS[number % len(SESSIONS)]
                recorder.do(
                    Operation(f"before {number}", "many", (Share(name, 100),), f"k{number}", True)
                )


def _append(recorder: Recorder) -> None:
    """One of each way to append, together and alone."""
    one, two, three, new = SESSIONS[0], SESSIONS[1], SESSIONS[2], ("acme", "new")
    recorder.submit(Operation("first", "append", (Share(one, 1),)))
    recorder.submit(Operation("keyed", "many", (Share(two, 3),), key="key", named=True))
    recorder.settle()
    recorder.submit(Operation("created", "create", (Share(new, 0),)))
    recorder.submit(Operation("batch", "batch", (Share(three, 2, 1), Share(new, 1))))
    recorder.submit(Operation("keyed", "many", (Share(two, 3),), key="key", named=True))
    recorder.submit(Operation("clash", "append", (Share(two, 1),), key="key", clash=True))
    recorder.settle()
    recorder.do(Operation("long", "many", (Share(one, 200),)))


def _roll_up(recorder: Recorder) -> None:
    """Sessions become due, are sealed after the append and lead to stale activity rows."""
    for round_ in range(2):
        for number, name in enumerate(SESSIONS):
            count = 2 if round_ == 0 else 26
            recorder.submit(Operation(f"due {round_}.{number}", "many", (Share(name, count),)))
        recorder.settle()


def _merge(recorder: Recorder) -> None:
    """Each session gets the segments that make a larger one, twice."""
    for round_ in range(FACTOR + 1):
        for number, name in enumerate(SESSIONS):
            recorder.submit(Operation(f"merge {round_}.{number}", "many", (Share(name, 2),)))
        recorder.settle()
        with suppress(TurnlogError):
            recorder.store.flush()


def _dictionary(recorder: Recorder) -> None:
    """A tenant gets a dictionary, and its sessions are sealed with it."""
    row = DictionaryRow(1, 2, 1, (1, 2), DICTIONARY)
    with suppress(TurnlogError):
        recorder.store._log.writer.run(_Install(row, 0, 0), timeout=15.0)
    _roll_up(recorder)
    with suppress(TurnlogError):
        recorder.store.flush()


def _cut(recorder: Recorder) -> None:
    """All of the first hot table gets sealed, and is cut."""
    seal_eagerly(recorder.store, 1)
    for number, name in enumerate(SESSIONS):
        recorder.submit(Operation(f"cut {number}", "append", (Share(name, 1),)))
    recorder.settle()


def _read(recorder: Recorder) -> None:
    """Reads of sessions, while their events are loose."""
    for name in SESSIONS[:2]:
        session = session_of(recorder.store, name)
        assert len(list(session.events())) == len(session.history())
    assert [info.name for info in recorder.store.sessions().sessions] == [SESSIONS[0][1]]


def _full(recorder: Recorder) -> None:
    """An append for which no file may grow any more, so that its outcome has to be settled."""
    size = (recorder.store.path / DATA_FILE).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    recorder.do(Operation("too long", "many", (Share(SESSIONS[0], 4_000),), key="long"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _memory(recorder: Recorder) -> None:
    """The writer gets no memory for what waits; those who encode would die in their encoder."""
    hold = Hold()
    set_failpoints({"commit.before_begin": hold})
    for number in range(9):
        recorder.submit(Operation(f"memory {number}", "many", (Share(SESSIONS[0], 4_000),)))
    assert hold.wait()
    status = Path("/proc/self/status").read_text("ascii")
    most = int(status.partition("VmData:")[2].split()[0]) * 1_024
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
    hold.release()
    errors = recorder.settle()
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    set_failpoints(None)
    recorder.journal.write(failed="memory", count=len(errors))


def _pressure(recorder: Recorder) -> None:
    """The hot log is taken to be too long, so that the writer seals before it appends."""
    recorder.store._log.index.frequency = 1
    recorder.do(Operation("loose", "many", (Share(SESSIONS[0], 30),)))
    pressure: Any = sealing
    pressure.HOT_PRESSURE = 0
    for number in range(3):
        recorder.submit(
            Operation(f"pressed {number}", "many", (Share(SESSIONS[number], 3),), key=f"p{number}")
        )
        recorder.settle()
    pressure.HOT_PRESSURE = limits.HOT_PRESSURE


def _attempt(recorder: Recorder, what: str, call: Callable[[], object]) -> None:
    """Do something that may fail, as long as that is told in our words."""
    try:
        call()
    except TurnlogError as error:
        recorder.journal.write(failed=what, error=type(error).__name__, text=str(error))
    except OSError as error:
        text = str(error)
        recorder.journal.write(failed=what, error=type(error).__name__, text=text, bare=True)


def _backup(recorder: Recorder) -> None:
    """A backup of the open store, with every row read."""
    place = recorder.store.path.with_name(COPIES[0])
    _attempt(recorder, "backup", lambda: recorder.store.backup(place, check=True))


def _restore(recorder: Recorder) -> None:
    """A store from a backup."""
    place, again = [recorder.store.path.with_name(name) for name in COPIES]
    _attempt(recorder, "backup", lambda: recorder.store.backup(place))
    _attempt(recorder, "restore", lambda: Store.restore(place, again))


def _rewrite(what: str) -> Callable[[Recorder], None]:
    """A vacuum or an upgrade, for which the store has to be closed."""

    def rewrite(recorder: Recorder) -> None:
        path = recorder.store.path
        recorder.store.close()
        if what == "vacuum":
            _attempt(recorder, what, lambda: Store.vacuum(path))
        else:
            _attempt(recorder, what, lambda: Store.upgrade(path, backup=path.with_name(COPIES[0])))
        recorder.store = _open(str(path), recorder.journal)

    return rewrite


def _blobs(recorder: Recorder) -> None:
    """Contents put in one commit and in several, put again, and collected at once."""
    bounds: Any = blobtable
    blobs = recorder.store.tenant("acme").blobs
    long = bytes(range(256)) * 20_000
    _attempt(recorder, "short", lambda: blobs.put(b"short"))
    _attempt(recorder, "long", lambda: blobs.put(iter([long])))
    _attempt(recorder, "again", lambda: blobs.put(iter([long])))
    bounds.BLOB_PENDING_US = 0
    _attempt(recorder, "collect", recorder.store.collect_blobs)
    bounds.BLOB_PENDING_US = limits.BLOB_PENDING_US


def _nothing(recorder: Recorder) -> None:
    return None


OPERATIONS: dict[str, Callable[[Recorder], None]] = {
    "create": _nothing,
    "append": _append,
    "roll up": _roll_up,
    "cut": _cut,
    "merge": _merge,
    "dictionary": _dictionary,
    "full": _full,
    "memory": _memory,
    "pressure": _pressure,
    "read": _read,
    "blobs": _blobs,
    "backup": _backup,
    "restore": _restore,
    "vacuum": _rewrite("vacuum"),
    "upgrade": _rewrite("upgrade"),
}


class Fault:
    """Acts at the ``hit``-th time that a failpoint is passed, and never again."""

    def __init__(self, hit: int, act: Callable[[], object]) -> None:
        self._left = hit
        self._act = act

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._act()


def drive(
    path: str,
    journal: str,
    operation: str,
    failpoint: str | None = None,
    hit: int = 1,
    action: str = "kill",
    before: str | None = None,
    gate: str | None = None,
) -> None:
    """Do an operation.

    Args:
        path: The store; for ``create`` there is none yet.
        journal: Where it keeps its journal; with ``failpoint="count"`` also how often each
            failpoint was passed.
        operation: Which.
        failpoint: Where a fault comes.
        hit: At which pass.
        action: ``kill``, or a key of ``ERRORS``.
        before: Journal of a process that was here before; what it never heard of is submitted
            again, where that is safe.
        gate: A FIFO; wait there for a byte before anything is done to the store.
    """
    notes = Journal(journal)
    counts = arm(failpoint, hit, action)
    if gate is not None:
        wait_at(gate)
    store = _open(path, notes)
    recorder = Recorder(store, notes)
    if before is not None:
        for repeated in unsettled([before]):
            recorder.do(repeated)
    OPERATIONS[operation](recorder)
    _go_on(recorder, path, notes, "after" if before is None else "after that")
    notes.write(counts=counts)


def wait_at(gate: str) -> None:
    """Wait until somebody writes a byte into a FIFO."""
    descriptor = os.open(gate, os.O_RDWR)  # also for writing, so that opening does not wait
    os.read(descriptor, 1)
    os.close(descriptor)


def arm(failpoint: str | None, hit: int, action: str) -> Counter[str]:
    """Set the fault that a process is told of.

    Args:
        failpoint: Where it comes; None for no fault, ``"count"`` to count all failpoints instead.
        hit: At which pass.
        action: ``kill``, or a key of ``ERRORS``.

    Returns:
        How often each failpoint was passed; filled while the process goes on.
    """
    counts: Counter[str] = Counter()
    if failpoint == "count":
        set_failpoints({name: _counter(counts, name) for name in NAMES})
    elif failpoint is not None:
        act = kill() if action == "kill" else raise_(ERRORS[action])
        set_failpoints({failpoint: Fault(hit, act)})
    return counts


def _counter(counts: Counter[str], name: str) -> Callable[[], object]:
    return lambda: counts.update((name,))


def _open(path: str, notes: Journal) -> Store:
    for _ in range(OPENINGS_MAX):
        try:
            return Store.open(path)
        except TurnlogError as error:
            notes.write(failed="open", error=type(error).__name__, text=str(error))
        except OSError as error:
            notes.write(failed="open", error=type(error).__name__, text=str(error), bare=True)
    raise AssertionError("the store does not open any more")


def _go_on(recorder: Recorder, path: str, notes: Journal, name: str) -> None:
    """After the fault: the store appends again, after closing and opening it if need be."""
    for number in range(OPENINGS_MAX):
        error = recorder.do(Operation(f"{name} {number}", "append", (Share(SESSIONS[0], 1),)))
        if error is None:
            recorder.store.close()
            return
        if number % 2:
            recorder.store.close()
            recorder.store = _open(path, notes)
    raise AssertionError("the store does not append any more")


def opens(path: str) -> None:
    """Try every way to open a store; prints what each gave."""
    found = []
    for options in ({}, {"create": False}, {"read_only": True}):
        try:
            with Store.open(path, **options) as store:  # type: ignore[arg-type]
                found.append(str(len(list(store.read()))))
        except TurnlogError as error:
            found.append(type(error).__name__)
    print(*found)


def judge_copy(path: str) -> None:
    """Say what opening and checking a plain copy of a store come to; prints it.

    ``refused`` with the error, ``findings`` with their number, or ``whole`` with the number of
    events and a digest of their checksums.
    """
    try:
        with Store.open(path, create=False, read_only=True, verify=True) as store:
            report = store.check()
            if not report.ok:
                print("findings", len(report.findings))
                return
            checksums = [event.stored()[:8] for event in store.read()]
    except TurnlogError as error:
        print("refused", type(error).__name__)
        return
    print("whole", len(checksums), blake2b(b"".join(checksums), digest_size=16).hexdigest())
