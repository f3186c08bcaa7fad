"""Faults that a whole store must take, each with its number in the table of faults.

The same faults below the store are in ``test_guards.py``; kills and failing calls at every point in
``test_kills.py``, ``test_failpoints.py`` and ``test_nth_call.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest

from engine import Store
from eventlog.ack import Ack
from eventlog.errors import (
    OverloadedError,
    QuotaExceededError,
    StorageFullError,
    StoreUnavailableError,
    TurnlogError,
)
from eventlog.failpoints import NAMES, failpoints, raise_
from eventlog.limits import QUEUE_APPENDS_MAX
from eventlog.lmdb_errors import CommitFailedError
from eventlog.locks import LOCK_FILES
from eventlog.place import LOCK_FILE
from eventlog.raw import DATA_FILE
from eventlog.tables import WriteTables
from tests.crash.conftest import Watchdog
from tests.crash.driver import opens, prepare
from tests.crash.forkserver import REPOSITORY, ForkServer
from tests.crash.journal import Journal, JournalReader
from tests.crash.oracle import Oracle, audit, digest_of
from tests.crash.peer import Hold, Peer
from tests.crash.stage import Stage
from tests.crash.tracing import attach
from tests.crash.workload import Name, Operation, Recorder, Share, new_journal, write

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

CALL: Name = ("", "call")
OTHER: Name = ("acme", "other")
DEADLINE_MS = 300
STALE_PAGES = 200  # tried in a long run; a short one tries 1/20 of them


@pytest.fixture
def traced(strace: str, tmp_path: Path) -> Callable[..., Any]:
    """Puts strace on a peer; skips where that is not allowed."""

    def put(peer: Peer, **options: Any) -> Any:
        probe = attach(strace, tmp_path, peer.child, calls=("fsync",))
        try:
            with probe:
                pass
        except PermissionError as error:
            pytest.skip(f"strace may not attach: {error}")
        return attach(strace, tmp_path, peer.child, **options)

    return put


def last_error(peer: Peer) -> str:
    """The text of the last refusal in a peer's journal."""
    texts = [line["text"] for line in JournalReader(peer.journal).read() if "no" in line]
    return str(texts[-1])


def one(name: str, count: int = 1, session: Name = CALL, **options: Any) -> Operation:
    """An operation of a test's own."""
    return Operation(name, "many", (Share(session, count),), **options)


# The disk fails


IO_ERRORS = [
    ("fdatasync", "EIO", "row_10"),
    ("writev", "EIO", "row_11"),
    ("pwrite64", "EIO", "row_12"),
    ("fdatasync", "EINTR", "row_13"),
]


@pytest.mark.parametrize(("call", "code", "row"), IO_ERRORS, ids=[each[2] for each in IO_ERRORS])
def test_rows_10_to_13_a_commit_fails_in_io(
    peers: Callable[..., Peer], traced: Callable[..., Any], call: str, code: str, row: str
) -> None:
    """The caller is told the outcome, reads go on, and the next append works without reopening."""
    peer, other = peers("one"), peers("two")
    kept = peer.append(CALL, 3)
    number = 1
    if call == "pwrite64":  # the meta page is the last one that a commit writes, 120 bytes
        peer.append(CALL, 40)  # so that the next two write alike
        with traced(peer, calls=(call,)) as tracing:
            peer.append(CALL, 40)
        written = [line for line in tracing.lines() if f"{call}(" in line]
        number = 1 + [" 120, " in line for line in written].index(True)
    with traced(peer, calls=(call,), inject=f"{call}:error={code}:when={number}") as tracing:
        error = peer.do(operation=peer.operation(CALL, 40).encode())
        assert tracing.injected == 1
        assert error in ("SuspectStoreError", "StoreUnavailableError"), error
        assert peer.look(way="last", tenant="", session="call")[:3] == [
            [kept.name, place] for place in range(3)
        ]
        peer.append(CALL, 2)
    assert peer.health()["failures"] == 1
    other.append(CALL)
    peer.append(CALL)


@pytest.mark.slow
def test_row_12_a_disk_that_stays_broken_ends_the_store_and_nothing_else(
    peers: Callable[..., Peer], traced: Callable[..., Any], watchdog: Watchdog
) -> None:
    """Nothing hangs: the waiting append hears that its outcome is open, later ones are refused."""
    peer = peers("one")
    kept = peer.append(CALL, 3)
    with traced(peer, calls=("fdatasync",), inject="fdatasync:error=EIO:when=1+"):
        assert peer.do(operation=peer.operation(CALL).encode()) == "SuspectStoreError"
        assert "could not be settled" in last_error(peer)
        assert peer.do(operation=peer.operation(CALL).encode()) == "SuspectStoreError"
        assert not peer.health()["ok"]
        assert peer.look(way="events", tenant="", session="call")[:3] == [
            [kept.name, place] for place in range(3)
        ]
    watchdog.feed()
    peer.reopen()
    peer.append(CALL)
    assert peer.health()["ok"]


def fill_up(recorder: Recorder, watchdog: Watchdog, start: int = 0) -> TurnlogError:
    """Append to a few sessions until that is refused; gives why."""
    for number in itertools.count(start):
        watchdog.feed()
        error = recorder.do(one(f"filling {number}", 300, ("", f"call {number % 5}")))
        if error is not None:
            return error
    raise AssertionError


def test_row_14_a_full_disk(mount: Callable[..., Path], tmp_path: Path, watchdog: Watchdog) -> None:
    """Appends are refused, reads go on, and the store goes on by itself once there is room."""
    point = mount("-t", "tmpfs", "-o", "size=4m", "tmpfs")
    ballast = point / "ballast"
    oracle = Oracle()
    oracle.listen(tmp_path / "journal")
    with Store.open(point / "store") as store:
        ballast.write_bytes(bytes(1_000_000))
        recorder = Recorder(store, Journal(tmp_path / "journal"))
        error = fill_up(recorder, watchdog)
        assert isinstance(error, StorageFullError) and error.hint
        for number in range(3):
            # More than the disk holds: sealing may have made some room meanwhile.
            error = recorder.do(one(f"full {number}", 16_000))
            assert isinstance(error, StorageFullError)
            oracle.follow(store)
            assert store.session("call 0").history(3)
        ballast.unlink()
        for number in range(20):
            error = recorder.do(one(f"room {number}", 20))
            assert error is None, error
        assert store.check().ok
    oracle.audit(point / "store")
    assert os.listdir(point) == ["store"]


def test_row_15_a_limit_for_files(forks: ForkServer, tmp_path: Path) -> None:
    """As a full disk; the hint names the limit."""
    stage = Stage(forks, tmp_path)
    run, oracle = stage.start("full", "ulimit -f")
    run.child.finish()
    errors = [line for line in run.lines() if line.get("no") == "too long"]
    assert errors and errors[0]["error"] == "StorageFullError"
    stage.judge(run, oracle)


def test_row_16_the_quota_is_reached_before_anything_else(
    store_path: Path, forks: ForkServer, watchdog: Watchdog
) -> None:
    """Appends are refused in every process, reads go on, nothing is lost."""
    oracle = Oracle()
    oracle.listen(store_path.with_name("journal"))
    with Store.open(store_path, quota_bytes=2 << 20) as store:
        recorder = Recorder(store, Journal(store_path.with_name("journal")))
        error = fill_up(recorder, watchdog)
        assert isinstance(error, QuotaExceededError) and error.hint
        peer = Peer(forks, store_path, "other")
        for _ in range(1_000):  # sealing may make some room meanwhile
            if peer.do(operation=peer.operation(CALL, 300).encode()) == "QuotaExceededError":
                break
        else:
            pytest.fail("the other process knows no quota")
        peer.end()
        oracle.listen(peer.journal)
        oracle.follow(store)
        assert store.session("call 0").history(3)
        problems: list[str] = []
        for start in itertools.count(10_000, 10_000):  # sealing may have made some room
            fill_up(recorder, watchdog, start)
            problems = store.health()["problems"]
            if problems:
                break
        assert "appends are refused" in problems[0]
    oracle.audit(store_path, repeat=0)


def test_row_16_a_full_map_is_typed_and_a_larger_one_helps(
    store_path: Path, watchdog: Watchdog
) -> None:
    oracle = Oracle()
    oracle.listen(store_path.with_name("journal"))
    with Store.open(store_path, map_bytes=2 << 20) as store:
        recorder = Recorder(store, Journal(store_path.with_name("journal")))
        error = fill_up(recorder, watchdog)
        assert isinstance(error, StoreUnavailableError) and error.hint
        oracle.follow(store)
        assert isinstance(recorder.do(one("more", 3_000)), StoreUnavailableError)
    with Store.open(store_path) as store:
        recorder.store = store
        assert recorder.do(one("after", 3_000)) is None
    oracle.audit(store_path)


def test_row_16_the_map_is_full_when_the_outcome_of_a_commit_is_looked_for(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence met LMDB's own error at a put, where none was expected: the writer ended of it."""
    full = lmdb.MapFullError("mdb_put: MDB_MAP_FULL")
    with Store.open(store_path) as store:
        session = store.session("call")
        session.append({"n": 0}).result(10)
        environment = store._log.environment

        def fail_at_commit(transaction: Any) -> None:
            environment.abort(transaction)
            monkeypatch.undo()
            monkeypatch.setattr(WriteTables, "put_commit_record", fail_at_put)
            raise CommitFailedError(full, QuotaExceededError("the map is full"), full=True)

        def fail_at_put(*_: object) -> None:
            monkeypatch.undo()
            raise full

        monkeypatch.setattr(environment, "commit", fail_at_commit)
        with pytest.raises(QuotaExceededError):
            session.append({"n": 1}).result(10)
        assert store.health()["problems"] == []
        session.append({"n": 2}).result(10)
        assert session.history() == [{"n": 0}, {"n": 2}]


# Memory


def test_row_22_no_memory_for_what_is_appended(forks: ForkServer, tmp_path: Path) -> None:
    """What does not fit is refused with its reason, what was acknowledged stays, appends go on."""
    stage = Stage(forks, tmp_path)
    run, oracle = stage.start("memory", "RLIMIT_DATA")
    run.child.finish()
    assert any([line.get("failed") == "memory" and line["count"] for line in run.lines()])
    stage.judge(run, oracle)


def test_row_22_no_thread_for_the_writer(store_path: Path) -> None:
    """A store that could not start its writer stayed open, out of reach, and in everybody's way."""
    with Store.open(store_path):
        pass
    before = threading.stack_size(1 << 47)  # more than there are addresses
    try:
        with pytest.raises(StoreUnavailableError):
            Store.open(store_path)
    finally:
        threading.stack_size(before)
    with Store.open(store_path) as store:
        store.session("call").append({"role": "user"}).result(10)
        assert store.check().ok


# Damage


def judged(forks: ForkServer, folder: Path, path: Path, journals: list[Path]) -> str:
    """Read and check a store in a process of its own: ``right``, ``noticed`` or what was wrong."""
    child = forks.start(audit, folder, path=path, journals=journals)
    status = child.wait()
    said = child.said()
    child.log.unlink(missing_ok=True)
    if status == 0:
        return "right"
    lines = [line for line in said.strip().splitlines() if not line.startswith("Hint: ")]
    last = lines[-1] if lines else ""
    noticed = last.startswith("eventlog.errors.") or "I10: check finds" in last
    return "noticed" if status == 1 and noticed else f"status {status}: {said}"


def test_row_30_no_stale_page_goes_unnoticed(
    forks: ForkServer, tmp_path: Path, crash_cycles: int, crash_seed: int, watchdog: Watchdog
) -> None:
    """An old copy of a page comes back: opening or check says so, or it is not in use."""
    store = tmp_path / "store"
    data = store / DATA_FILE
    prepare(str(store), str(tmp_path / "first.journal"), "cut")
    journals = [tmp_path / "first.journal"]
    copies: list[bytes] = []
    for number in range(3):
        copies.append(data.read_bytes())
        journal = new_journal(tmp_path, "more", number)
        journals.append(journal)
        forks.start(
            write,
            tmp_path,
            path=store,
            journal=journal,
            slot="more",
            seed=crash_seed + number,
            before=[],
            frequency=1,
            batch_max=30,
            count=30,
        ).finish()
    now = data.read_bytes()
    page = os.sysconf("SC_PAGE_SIZE")
    stale = sorted(
        {
            (at, copy[at : at + page])
            for copy in copies
            for at in range(0, len(copy), page)
            if copy[at : at + page] != now[at : at + page]
        }
    )
    outcomes = {"right": 0, "noticed": 0}
    count = min(len(stale), STALE_PAGES if crash_cycles >= 20 else STALE_PAGES // 20)
    work = tmp_path / "work"
    for at, content in Random(crash_seed).sample(stale, count):
        watchdog.feed()
        work.mkdir()
        shutil.copytree(store, work / "store")
        with open(work / "store" / DATA_FILE, "r+b") as file:
            file.seek(at)
            file.write(content)
        outcome = judged(forks, work, work / "store", journals)
        assert outcome in outcomes, f"page {at // page}: {outcome}"
        outcomes[outcome] += 1
        shutil.rmtree(work)
    print(f"{len(stale)} stale pages, {count} of them tried: {outcomes}")
    assert outcomes["noticed"] or count < STALE_PAGES  # most old pages are free by now


@pytest.mark.parametrize("size", [0, 1, 4_096, 8_192, 40_000, -4_096])
def test_rows_31_and_32_a_file_that_lost_its_end(
    store_path: Path, forks: ForkServer, tmp_path: Path, size: int
) -> None:
    """It is refused and left as it is; an empty one is no new store."""
    with Store.open(store_path) as store:
        for number in range(5):
            store.session(f"call {number}").append_many([{"text": "x" * 500}] * 40).result(10)
    data = store_path / DATA_FILE
    with Store.open(store_path, create=False) as store:
        in_use = (store._log.environment.last_page() + 1) * store._log.environment.page_bytes
    os.truncate(data, size if size >= 0 else in_use + size)
    before = digest_of(store_path)
    child = forks.start(opens, tmp_path, path=store_path)
    kinds = {"CorruptionError"} if size != 1 else {"NotAStoreError"}  # a byte is no damaged LMDB
    assert set(child.finish().split()) == kinds
    assert digest_of(store_path) == before


def test_row_36_lock_files_are_garbage_and_nobody_is_in(
    store_path: Path, peers: Callable[..., Peer]
) -> None:
    peer = peers("one")
    peer.append(CALL, 30)
    peer.close()
    for name in (LOCK_FILE, *LOCK_FILES):
        (store_path / name).write_bytes(b"garbage" * 1_000)
    peer.reopen()
    peer.append(CALL, 2)
    peer.close()
    for name in (LOCK_FILE, *LOCK_FILES):
        (store_path / name).unlink()
    peer.reopen()
    peer.append(CALL, 2)


# Other processes


@pytest.mark.parametrize("name", [LOCK_FILE, DATA_FILE])
def test_row_37_a_file_is_removed_while_in_use(
    store_path: Path, peers: Callable[..., Peer], name: str
) -> None:
    """The next commit refuses, and all after it; another process never writes beside this one."""
    peer = peers("one")
    kept = peer.append(CALL, 3)
    os.link(store_path / name, store_path.parent / "kept")
    (store_path / name).unlink()
    for _ in range(2):
        assert peer.do(operation=peer.operation(CALL).encode()) == "StoreUnavailableError"
        assert "removed or replaced" in last_error(peer)
    assert not peer.health()["ok"]
    assert peer.look(way="history", tenant="", session="call") == [
        [kept.name, place] for place in range(3)
    ]
    os.rename(store_path.parent / "kept", store_path / name)
    peer.reopen()
    peer.append(CALL)


def test_row_39_two_writers_take_turns(
    store_path: Path, forks: ForkServer, crash_cycles: int
) -> None:
    """Both append all the time; neither waits for the other's end."""
    oracle = Oracle()
    with Store.open(store_path):
        pass
    children = []
    for slot in ("one", "two"):
        journal = store_path.with_name(f"{slot}.journal")
        oracle.listen(journal)
        children.append(
            forks.start(
                write,
                store_path.parent,
                path=store_path,
                journal=journal,
                slot=slot,
                seed=1,
                before=[],
                depth=0,
                count=60 * min(crash_cycles, 10),
            )
        )
    for child in children:
        child.finish()
    oracle.audit(store_path)
    owners = [name.partition(".")[0] for name, _ in sorted(oracle.placed.items(), key=_position)]
    turns = sum([before != after for before, after in zip(owners, owners[1:], strict=False)])
    assert turns > len(owners) // 20, owners


def _position(item: tuple[str, Any]) -> int:
    return int(item[1].position)


def test_row_40_another_process_is_stopped_while_it_writes(peers: Callable[..., Peer]) -> None:
    """Busy after the deadline, naming it; reads go on; it may go on later."""
    stopped, peer = peers("stopped"), peers("one", lock_deadline_ms=DEADLINE_MS)
    kept = peer.append(CALL, 3)
    stopped.hold(failpoint="commit.before_commit")
    stopped.submit(operation=stopped.operation(CALL, 2).encode())
    assert stopped.held()
    stopped.child.signal(signal.SIGSTOP)
    assert peer.do(operation=peer.operation(CALL).encode()) == "BusyError"
    assert f"pid {stopped.child.pid} " in last_error(peer)
    for way in ("history", "events", "last", "positions"):
        assert peer.look(way=way, tenant="", session="call") == [
            [kept.name, place] for place in range(3)
        ]
    stopped.child.signal(signal.SIGCONT)
    stopped.release()
    assert stopped.settle(timeout=10)
    peer.append(CALL, expected_head=4)


USES = ("append", "batch", "history", "info", "read", "position", "sessions", "check")


def test_row_42_a_fork_uses_the_store(peers: Callable[..., Peer]) -> None:
    """The child is refused, may open the store itself, and harms nobody."""
    peer = peers("one")
    peer.append(CALL, 3)
    found = peer.fork_and_use()
    assert {name: found[name] for name in USES} == dict.fromkeys(USES, "ForkedStoreError")
    assert found["close"] == "gave None" and found["own"] == "gave 3"
    peer.append(CALL)
    assert peer.health()["ok"]


@pytest.mark.parametrize("step", sorted(name for name in NAMES if name.startswith("commit.")))
def test_row_43_a_fork_in_the_middle_of_a_commit(peers: Callable[..., Peer], step: str) -> None:
    """Wherever the writer is, the child neither hangs nor touches its transaction."""
    peer = peers("one")
    peer.append(CALL, 3)
    peer.hold(failpoint=step)
    peer.submit(operation=peer.operation(CALL, 2).encode())
    assert peer.held()
    found = peer.fork_and_use()
    assert {name: found[name] for name in USES} == dict.fromkeys(USES, "ForkedStoreError")
    assert found["close"] == "gave None" and found["own"] in ("gave 3", "gave 5")
    peer.release()
    assert peer.settle(timeout=10)
    peer.append(CALL, expected_head=4)


# The writer thread


def test_row_46_an_exception_comes_up_anywhere_in_the_writer(
    peers: Callable[..., Peer], crash_cycles: int, crash_seed: int, watchdog: Watchdog
) -> None:
    """Nobody hangs, others can write at once, and opening again is enough."""
    random = Random(crash_seed)
    peer, other = peers("one"), peers("two", lock_deadline_ms=2_000)
    for _ in range(2 * crash_cycles):
        watchdog.feed()
        peer.seal(eagerly=True)
        for _ in range(random.randint(1, 12)):
            peer.submit(operation=peer.operation(CALL, random.randint(1, 200)).encode())
        peer.interrupt_writer()
        assert peer.settle(timeout=10), "appends hang"
        other.append(CALL)
        peer.reopen()
        peer.append(CALL)


def test_row_46_an_exception_right_after_a_transaction_began(peers: Callable[..., Peer]) -> None:
    """Between beginning and the first statement that would abort it, the lock was lost for good."""
    peer, other = peers("one"), peers("two", lock_deadline_ms=2_000)
    peer.append(CALL)
    peer.interrupt_after_begin()
    peer.submit(operation=peer.operation(CALL).encode())
    assert peer.settle(timeout=10)
    other.append(CALL)
    peer.reopen()
    peer.append(CALL)


class LateQueue(deque[Ack]):
    """Something happens between the last look at the store and the append that it let pass."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def append(self, ack: Ack) -> None:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        super().append(ack)


@pytest.mark.parametrize("end", ["death", "close"])
def test_row_46_an_append_is_queued_when_the_writer_has_just_ended(
    store_path: Path, end: str
) -> None:
    """It had looked before the end came and was queued after it, where nobody looked any more."""
    store = Store.open(store_path)
    call = store.session("call")
    call.append({"n": 0}).result(10)
    writer = store._log.writer

    def die() -> None:
        thread = writer._thread
        assert thread is not None and thread.ident is not None
        with failpoints({"commit.before_begin": raise_(KeyboardInterrupt)}):
            call.append({"n": 1})
            thread.join(10)

    writer.machine.queue = LateQueue(die if end == "death" else store.close)
    ack = None
    try:
        ack = call.append({"n": 2})
        ack.result(5)
    except TurnlogError:
        pass
    assert ack is None or ack.done()
    with suppress(TurnlogError):  # of the append that nobody asked about
        store.close()
    with Store.open(store_path) as again:
        assert again.session("call").history()[:1] == [{"n": 0}]
        assert again.check().ok


@pytest.mark.parametrize("action", ["io", "interrupt"])
@pytest.mark.parametrize("hit", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "step", ["commit.before_begin", "commit.after_puts", "commit.after_commit"]
)
def test_row_46_the_writer_fails_while_it_seals_before_it_appends(
    forks: ForkServer, tmp_path: Path, step: str, hit: int, action: str
) -> None:
    """Under pressure a batch waits for commits that are not its own; their failure is not its.

    It was refused and then written, or forgotten, so that its callers waited for ever.
    """
    stage = Stage(forks, tmp_path)
    run, oracle = stage.start(
        "pressure", f"{step} {hit} {action}", failpoint=step, hit=hit, action=action
    )
    assert run.child.wait() == 0, run.child.said()
    stage.judge(run, oracle)


def test_row_47_a_disk_that_takes_its_time(
    peers: Callable[..., Peer], traced: Callable[..., Any]
) -> None:
    """Callers get a timeout that promises nothing; health shows the commit; reads go on."""
    peer = peers("one")
    kept = peer.append(CALL, 3)
    delay = "fdatasync:delay_enter=1500000:when=1"
    with traced(peer, calls=("fdatasync",), inject=delay):
        peer.submit(operation=peer.operation(CALL, 2).encode())
        assert not peer.settle(timeout=0.3)
        assert peer.health()["commit_running_ms"] >= 200
        assert peer.look(way="history", tenant="", session="call") == [
            [kept.name, place] for place in range(3)
        ]
        assert peer.settle(timeout=10)
    assert peer.health()["commit_running_ms"] == 0
    peer.append(CALL, expected_head=4)


# The end of a process


EXITS = {
    "the end": "",
    "sys.exit": "sys.exit(0)",
    "an exception": "raise RuntimeError('a bug')",
    "os._exit": "os._exit(0)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGHUP": "os.kill(os.getpid(), signal.SIGHUP)",
}


@pytest.mark.parametrize("how", EXITS, ids=[name.replace(" ", "-") for name in EXITS])
def test_rows_50_and_51_a_process_ends_without_close(store_path: Path, how: str) -> None:
    """Threads append until the end comes; what was not acknowledged may be lost, nothing else."""
    journal = store_path.with_name("journal")
    script = (
        "import os, signal, sys, threading\n"
        "from tests.crash.journal import JournalReader\n"
        "from tests.crash.workload import write\n"
        "path, journal = sys.argv[1:]\n"
        "arguments = (path, journal, 'one', 1, [], 2)\n"
        "threading.Thread(target=write, args=arguments, daemon=True).start()\n"
        "reader = JournalReader(journal)\n"
        "count = 0\n"
        "while count < 100:\n"
        "    count += sum(['ack' in line for line in reader.read()])\n"
        f"{EXITS[how]}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(store_path), str(journal)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        timeout=25,
        check=False,
    )
    wanted = {"an exception": 1, "SIGTERM": -signal.SIGTERM, "SIGHUP": -signal.SIGHUP}
    assert done.returncode == wanted.get(how, 0), done.stderr.decode()
    oracle = Oracle()
    oracle.listen(journal)
    oracle.audit(store_path)
    assert oracle.acknowledged >= 100


# Too much


def test_row_54_more_is_appended_than_the_disk_takes(store_path: Path) -> None:
    """The queue is bounded, refusing costs no memory, and whoever waits for room gets it."""
    hold = Hold()
    with Store.open(store_path) as store, failpoints({"commit.before_begin": hold}):
        call = store.session("call")
        acks = [call.append({"n": 0})]
        assert hold.wait()
        while True:
            try:
                acks.append(call.append({"n": len(acks)}))
            except OverloadedError:
                break
        memory = store.stats()["memory"]
        assert memory["queue_appends"] <= memory["queue_appends_max"] == QUEUE_APPENDS_MAX
        assert memory["queue_bytes"] <= memory["queue_bytes_max"]
        before = resident_bytes()
        for number in range(50_000):
            with pytest.raises(OverloadedError):
                call.append({"n": number, "text": "x" * 100})
        assert resident_bytes() - before < 8 << 20
        with pytest.raises(OverloadedError):
            call.append({"n": -1}, wait=0.01)

        async def wait_for_room() -> None:
            room = asyncio.ensure_future(store.room())
            await asyncio.sleep(0)
            assert not room.done()
            hold.release()
            await room
            await call.append({"n": len(acks)})

        asyncio.run(wait_for_room())
        for ack in acks:
            ack.result(20)
        assert [body["n"] for body in call.history()] == list(range(len(acks) + 1))
        assert store.check().ok


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
