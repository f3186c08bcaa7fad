"""Several processes, forks, namespaces, full and read-only disks, kills: the guards of a store.

Everything here is real: processes are killed and stopped, file systems are mounted. What a test
needs and the machine does not give (root, a mount, strace) makes it skip, visibly.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from engine import Store
from eventlog.creation import create
from eventlog.environment import Environment
from eventlog.errors import (
    BusyError,
    CorruptionError,
    ForkedStoreError,
    ReadOnlyError,
    StorageFullError,
    StoreUnavailableError,
    TurnlogError,
)
from eventlog.limits import MAP_BYTES
from eventlog.lmdb_errors import CommitFailedError
from eventlog.locks import LOCK_FILES, WriterLock
from eventlog.place import LOCK_FILE, MARKER_FILE
from eventlog.raw import DATA_FILE, read_metas
from tests.tiny_store import (
    TABLES,
    append,
    check,
    child,
    finish,
    initialise,
    make,
    open_tiny,
    values,
)

pytestmark = pytest.mark.crash

PRELUDE = """
import os, signal, sys, threading
from pathlib import Path
from eventlog.lmdb_errors import CommitFailedError
from eventlog.errors import *
from eventlog.failpoints import failpoints, kill
from tests.tiny_store import append, make, open_tiny, values
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have switched it off
path = Path(sys.argv[1])
def say(*words): print(*words, flush=True)
def hear(): return sys.stdin.readline().strip()
"""


@pytest.fixture
def tiny(store_path: Path) -> Iterator[Environment]:
    """An open tiny store; closed and walked when the test ends."""
    make(store_path)
    environment = open_tiny(store_path)
    yield environment
    environment.close()
    check(store_path)


@pytest.fixture
def ext4(tmp_path: Path, mount: Callable[..., Path]) -> Callable[..., tuple[Path, Path]]:
    """Makes a small ext4 in a file and mounts it; the image and the mount point."""

    def make_ext4(mib: int, *options: str) -> tuple[Path, Path]:
        image = tmp_path / "image"
        with open(image, "wb") as file:
            file.truncate(mib << 20)
        try:
            subprocess.run(["mkfs.ext4", "-q", *options, str(image)], check=True)
        except FileNotFoundError:
            pytest.skip("there is no mkfs.ext4")
        return image, mount("-o", "loop", str(image))

    return make_ext4


def left_overs(path: Path) -> list[str]:
    return [name for name in os.listdir(path.parent) if name.endswith(".creating")]


def in_child(work: Callable[[], None]) -> None:
    """Run work in a forked child of this very process; it must end without an exception."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            work()
            code = 0
        except BaseException as error:  # noqa: BLE001  told to the parent
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        message = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, message or f"ended with status {status}"


# Forks


def test_a_forked_child_is_refused_and_harms_nobody(tiny: Environment) -> None:
    """The child could read and write through the inherited environment without any error."""
    append(tiny, b"one")
    txn = tiny.begin_write()

    def use() -> None:
        for use in (
            tiny.read().__enter__,
            tiny.begin_write,
            tiny.reopen,
            tiny.last_page,
            tiny.reader_check,
        ):
            with pytest.raises(ForkedStoreError):
                use()
        with pytest.raises(ForkedStoreError):
            tiny.commit(txn)
        tiny.abort(txn)
        tiny.close()
        with pytest.raises(ForkedStoreError):
            tiny.begin_write()

    in_child(use)
    rival = WriterLock(tiny._folder)  # open files of its own, as of another process
    with pytest.raises(BusyError):
        rival.acquire(0)  # the child gave nothing back
    tiny.abort(txn)
    rival.acquire(0)
    rival.close()
    append(tiny, b"two")
    assert values(tiny) == [b"one", b"two"]
    assert tiny.members() == []


def test_a_child_opens_the_store_itself(tiny: Environment) -> None:
    append(tiny, b"one")

    def use() -> None:
        with open_tiny(tiny.path) as mine:
            assert append(mine, b"child") == 2
            assert [member.pid for member in mine.members()] == [os.getppid()]
            with pytest.raises(StoreUnavailableError, match="already open"):
                open_tiny(tiny.path)

            def grandchild() -> None:
                with open_tiny(tiny.path) as again:
                    append(again, b"grandchild")

            in_child(grandchild)
        with open_tiny(tiny.path) as mine:
            assert values(mine) == [b"one", b"child", b"grandchild"]

    read = tiny.read()
    with read as txn:
        in_child(use)
        # A child that ended a transaction of its parent gave back the parent's reader slot.
        in_child(lambda: read.__exit__(None, None, None))
        assert txn.stat(tiny.db["log"])["entries"] == 1
        for _ in range(20):
            append(tiny, bytes(5_000))
        assert [bytes(value) for _, value in txn.cursor(db=tiny.db["log"])] == [b"one"]


def test_forks_while_a_thread_commits(tiny: Environment, crash_cycles: int) -> None:
    """Locks and transactions of a thread that the child does not have are in every state."""
    stop = threading.Event()
    done: list[int] = []

    def write() -> None:
        while not stop.is_set():
            done.append(append(tiny, b"x" * 300))
            values(tiny)

    def use() -> None:
        with pytest.raises(ForkedStoreError), tiny.read():
            pass
        with pytest.raises(ForkedStoreError):
            tiny.begin_write()
        tiny.close()
        with open_tiny(tiny.path) as mine:
            append(mine, b"child")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(5 * crash_cycles):
            in_child(use)
    finally:
        stop.set()
        thread.join(timeout=30)
    assert not thread.is_alive()
    assert len(values(tiny)) == len(done) + 5 * crash_cycles


def test_an_interpreter_ends_whatever_is_open(store_path: Path) -> None:
    """LMDB's destructor waited for ever for a write transaction of a daemon thread."""
    make(store_path)
    script = PRELUDE + (
        "environment = open_tiny(path)\n"
        "append(environment, b'one')\n"
        "begun = threading.Event()\n"
        "def write():\n"
        "    txn = environment.begin_write()\n"
        "    begun.set()\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=write, daemon=True).start()\n"
        "begun.wait()\n"
    )
    finish(child(script, store_path), timeout=30)
    assert check(store_path) == [b"one"]


# Other processes


def test_writers_of_several_processes_take_turns(store_path: Path, crash_cycles: int) -> None:
    make(store_path)
    count = 40 * crash_cycles
    script = PRELUDE + (
        "with open_tiny(path) as environment:\n"
        "    for number in range(int(sys.argv[2])):\n"
        "        append(environment, sys.argv[3].encode())\n"
    )
    processes = [child(script, store_path, str(count), name) for name in "abcd"]
    for process in processes:
        finish(process)
    found = check(store_path)
    assert sorted(found) == sorted([name.encode() for name in "abcd"] * count)


def test_a_killed_writer_leaves_nothing_and_stops_nobody(
    tiny: Environment, crash_cycles: int
) -> None:
    script = PRELUDE + (
        "environment = open_tiny(path)\n"
        "txn = environment.begin_write()\n"
        "txn.put(b'half', b'transaction', db=environment.db['log'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for number in range(crash_cycles):
        finish(child(script, tiny.path), code=-signal.SIGKILL)
        assert append(tiny, b"next") == number + 1


def test_a_stopped_writer_is_named_and_reads_go_on(tiny: Environment) -> None:
    append(tiny, b"one")
    script = PRELUDE + (
        "environment = open_tiny(path)\n"
        "txn = environment.begin_write()\n"
        "say('in')\n"
        "hear()\n"
        "environment.abort(txn)\n"
        "environment.close()\n"
    )
    owner = child(script, tiny.path)
    assert owner.stdout is not None and owner.stdout.readline() == "in\n"
    owner.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(BusyError, match=f"pid {owner.pid} ") as caught:
            tiny.begin_write(30)
        assert caught.value.owner is not None and sys.executable in caught.value.owner
        assert values(tiny) == [b"one"]
        reading = PRELUDE + (
            "with open_tiny(path, read_only=True) as environment: say(values(environment))\n"
        )
        assert finish(child(reading, tiny.path)) == "[b'one']\n"
    finally:
        owner.send_signal(signal.SIGCONT)
        finish(owner)
    append(tiny, b"two")


@pytest.mark.parametrize("where", ["main", "thread"])
def test_ctrl_c_ends_the_wait_for_another_process(tiny: Environment, where: str) -> None:
    """A signal handler ran only after LMDB's mutex was won, seconds later."""
    if where == "main":
        script = PRELUDE + (
            "environment = open_tiny(path)\n"
            "say('ready')\n"
            "hear()\n"
            "try:\n"
            "    say('waiting')\n"
            "    environment.begin_write(600_000)\n"
            "except KeyboardInterrupt: say('interrupted')\n"
        )
    else:
        script = PRELUDE + (
            "environment = open_tiny(path)\n"
            "say('ready')\n"
            "hear()\n"
            "ended = threading.Event()\n"
            "def write():\n"
            "    try: environment.begin_write(600_000)\n"
            "    except StoreClosedError: say('interrupted')\n"
            "    ended.set()\n"
            "threading.Thread(target=write).start()\n"
            "try:\n"
            "    say('waiting')\n"
            "    ended.wait()\n"
            "except KeyboardInterrupt: environment.stop.set()\n"
            "ended.wait()\n"
        )
    process = child(script, tiny.path)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    txn = tiny.begin_write()
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    assert finish(process, timeout=30) == "interrupted\n"
    tiny.abort(txn)


@pytest.mark.parametrize("name", [LOCK_FILE, DATA_FILE])
def test_a_file_removed_under_load_ends_the_load(store_path: Path, name: str) -> None:
    """Beside a removed lock.mdb a second writer got in and an acknowledged record vanished."""
    make(store_path)
    script = PRELUDE + (
        "environment = open_tiny(path)\n"
        "count = 0\n"
        "try:\n"
        "    while True:\n"
        "        append(environment, b'x')\n"
        "        count += 1\n"
        "        if count == 5: say('running')\n"
        "except StoreUnavailableError as error:\n"
        "    say(count, len(values(environment)), environment.is_replaced)\n"
        "environment.close()\n"
    )
    process = child(script, store_path)
    assert process.stdout is not None and process.stdout.readline() == "running\n"
    kept = store_path.with_name("kept")
    os.link(store_path / name, kept)
    (store_path / name).unlink()
    count, read, replaced = finish(process).split()
    assert count == read and replaced == "True"
    os.rename(kept, store_path / name)
    assert len(check(store_path)) == int(count)


def test_a_map_that_another_process_outgrew_is_adopted(store_path: Path) -> None:
    make(store_path)
    script = PRELUDE + (
        "with open_tiny(path) as environment:\n"
        "    for number in range(40): append(environment, bytes(100_000))\n"
    )
    small = open_tiny(store_path, map_bytes=1 << 20)
    reader_side = PRELUDE + (
        "environment = open_tiny(path, map_bytes=1 << 20, read_only=True)\n"
        "say('open')\n"
        "hear()\n"
        "say(len(values(environment)))\n"
    )
    reader = child(reader_side, store_path)
    assert reader.stdout is not None and reader.stdout.readline() == "open\n"
    finish(child(script, store_path))
    assert small.map_bytes == 1 << 20
    assert finish_with(reader, "go") == "40\n"
    assert len(values(small)) == 40
    assert small.map_bytes > 4 << 20
    append(small, bytes(100_000))
    for _ in range(3):
        finish(child(script, store_path))
    append(small, bytes(100_000))  # the writer's side of the same
    small.close()
    assert len(check(store_path)) == 162


def finish_with(process: subprocess.Popen[str], line: str) -> str:
    output, errors = process.communicate(line + "\n", timeout=60)
    assert process.returncode == 0, errors
    return output


def test_slots_of_killed_readers_are_freed(tiny: Environment) -> None:
    append(tiny, b"one")
    script = PRELUDE + (
        "environment = open_tiny(path)\n"
        "reads = [environment.read() for _ in range(2_000)]\n"
        "for read in reads: read.__enter__()\n"
        "say('full')\n"
        "hear()\n"
    )
    hog = child(script, tiny.path)
    assert hog.stdout is not None and hog.stdout.readline() == "full\n"
    reads = [tiny.read() for _ in range(48)]
    for read in reads:
        read.__enter__()
    with pytest.raises(BusyError, match="slot"), tiny.read():
        pass
    hog.kill()
    finish(hog, code=None)
    with tiny.read() as txn:  # frees the slots of the dead and tries again
        assert txn.stat(tiny.db["log"])["entries"] == 1
    for read in reads:
        read.__exit__(None, None, None)


def test_vacuum_is_refused_while_another_process_is_in(tiny: Environment) -> None:
    script = PRELUDE + "environment = open_tiny(path)\nsay('in')\nhear()\n"
    other = child(script, tiny.path)
    assert other.stdout is not None and other.stdout.readline() == "in\n"
    assert [member.pid for member in tiny.members()] == [other.pid]
    with pytest.raises(BusyError, match=f"pid {other.pid} "), tiny.alone(20):
        pass
    other.kill()
    finish(other, code=None)
    with tiny.alone(10_000):
        assert tiny.members() == []


# Namespaces


def test_another_pid_namespace_is_refused_while_others_are_in(store_path: Path) -> None:
    """Two containers with equal pids took each other's reader slots."""
    try:
        probe = subprocess.run(
            ["unshare", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if probe.returncode != 0:
        pytest.skip(f"no PID namespaces: {probe.stderr.strip()}")
    make(store_path)
    script = PRELUDE + (
        "try:\n"
        "    with open_tiny(path, read_only=len(sys.argv) > 2) as environment:\n"
        "        say('in', os.getpid(), len(values(environment)))\n"
        "        hear()\n"
        "except StoreUnavailableError as error: say('refused', 'container' in str(error))\n"
    )
    prefix = ["unshare", "--pid", "--fork"]
    with open_tiny(store_path) as environment:
        append(environment, b"one")
        assert finish(child(script, store_path, prefix=prefix)) == "refused True\n"
        assert finish(child(script, store_path, "ro", prefix=prefix)) == "refused True\n"
    inside = child(script, store_path, prefix=prefix)
    assert inside.stdout is not None and inside.stdout.readline() == "in 1 1\n"
    with pytest.raises(StoreUnavailableError, match="container"):
        open_tiny(store_path)
    finish_with(inside, "go")
    assert check(store_path) == [b"one"]


# Creating


@pytest.mark.parametrize("name", ["create.before_rename", "create.after_rename"])
def test_a_killed_creator_leaves_all_or_nothing(store_path: Path, name: str) -> None:
    script = PRELUDE + "with failpoints({sys.argv[2]: kill()}): make(path)\n"
    finish(child(script, store_path, name), code=-signal.SIGKILL)
    assert store_path.exists() == (name == "create.after_rename")
    assert len(left_overs(store_path)) == (name == "create.before_rename")
    make(store_path)
    assert check(store_path) == []
    open_tiny(store_path).close()
    assert left_overs(store_path) == []


def test_many_creators_make_one_store(store_path: Path, crash_cycles: int) -> None:
    script = PRELUDE + (
        "say('ready')\n"
        "hear()\n"
        "make(path)\n"
        "with open_tiny(path) as environment: append(environment, b'x')\n"
    )
    for _ in range(crash_cycles):
        processes = [child(script, store_path) for _ in range(4)]
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            finish(process)
        assert check(store_path) == [b"x"] * 4
        assert left_overs(store_path) == []
        shutil.rmtree(store_path)


CALLS = "mkdir,openat,pwrite64,writev,fdatasync,fsync,ftruncate,rename,fchmod,chmod,fchmodat"
MAKE = PRELUDE + (
    "os.mkdir(sys.argv[2])\n"  # from this call on the sweep counts
    "try: make(path)\n"
    "except TurnlogError as error: say(type(error).__name__)\n"
)


def calls_of_creation(strace: str, store_path: Path, trace: Path) -> list[str]:
    """The system calls of one creation, in order, as strace prints them."""
    mark = store_path.with_name("mark")
    prefix = [strace, "-f", "-qq", "-y", "-o", str(trace), "-e", f"trace={CALLS}"]
    finish(child(MAKE, store_path, mark, prefix=prefix))
    lines = trace.read_text("utf-8", "replace").splitlines()
    start = next(i for i, line in enumerate(lines) if f'mkdir("{mark}"' in line)
    os.rmdir(mark)
    return lines[start + 1 :]


def test_creation_syncs_in_the_right_order(strace: str, store_path: Path, tmp_path: Path) -> None:
    """Everything in the folder is durable before the name is, and the name before create ends."""
    lines = calls_of_creation(strace, store_path, tmp_path / "trace")

    def last(pattern: str) -> int:
        found = [i for i, line in enumerate(lines) if re.search(pattern, line)]
        assert found, f"no call like {pattern}"
        return found[-1]

    rename = last(r"rename\(.*\.creating\"")
    parent = last(rf"fsync\(\d+<{re.escape(str(store_path.parent))}>\)")
    folder = last(r"fsync\(\d+<[^>]*\.creating>\)")
    data = last(r"fsync\(\d+<[^>]*/data\.mdb>\)")
    marker = last(r"fsync\(\d+<[^>]*/turnlog\.json>\)")
    assert last(r"(pwrite64|writev|ftruncate)\(\d+<[^>]*/data\.mdb>") < data
    assert last(r"pwrite64\(\d+<[^>]*/turnlog\.json>") < marker
    assert max(data, marker, last(r"openat\([^\n]*O_CREAT")) < folder < rename < parent


@pytest.mark.parametrize("action", ["signal=KILL", "error=EIO", "error=ENOSPC"])
def test_creation_with_every_call_failing_in_turn(
    strace: str, store_path: Path, tmp_path: Path, action: str, crash_cycles: int
) -> None:
    """Fail the Nth call, then the next, until none is left to hit: all or nothing each time."""
    trace = tmp_path / "trace"
    calls = calls_of_creation(strace, store_path, trace)
    assert check(store_path) == []
    shutil.rmtree(store_path)
    mark = store_path.with_name("mark")
    before_mark = {name: count_before(trace, name, mark) for name in CALLS.split(",")}
    hit = 0
    for name, before in before_mark.items():
        count = sum(f" {name}(" in line for line in calls)
        points = range(1, count + 1)
        if crash_cycles < 20 and count > 3:  # the short form: the edges and the middle
            points = sorted({1, count // 2, count})  # type: ignore[assignment]
        for nth in points:
            prefix = [strace, "-f", "-qq", "-o", str(trace), "-e", f"trace={name}"]
            prefix += ["-e", f"inject={name}:{action}:when={before + nth}"]
            process = child(MAKE, store_path, mark, prefix=prefix)
            output = finish(process, code=None)
            os.rmdir(mark)
            hit += 1
            if action == "signal=KILL":
                assert process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
            else:
                assert process.returncode == 0, (name, nth)
                assert left_overs(store_path) == [] or not output, (name, nth)
            if store_path.exists():
                assert check(store_path) == [], (name, nth)
                shutil.rmtree(store_path)
            elif action != "signal=KILL":
                assert output, (name, nth)
            make(store_path)
            open_tiny(store_path).close()
            assert left_overs(store_path) == [], (name, nth)
            shutil.rmtree(store_path)
    assert hit > 10


def count_before(trace: Path, name: str, mark: Path) -> int:
    """How often the interpreter makes a call before the part that a sweep is about."""
    count = 0
    for line in trace.read_text("utf-8", "replace").splitlines():
        if f" {name}(" in line:
            count += 1
        if f'mkdir("{mark}"' in line:
            return count
    raise AssertionError("the mark was never made")


def test_a_power_cut_while_creating(
    ext4: Callable[..., tuple[Path, Path]], mount: Callable[..., Path], tmp_path: Path
) -> None:
    """The image holds what reached the disk: a copy of it is what a power cut leaves."""
    image, point = ext4(64)
    images: dict[str, Path] = {}

    def cut(name: str) -> Callable[[], object]:
        def action() -> None:
            images[name] = Path(shutil.copy(image, tmp_path / f"{name}.image"))

        return action

    from eventlog.failpoints import failpoints

    actions = {
        "create.before_rename": cut("before_rename"),
        "create.after_rename": cut("after_rename"),
    }
    with failpoints(actions):
        make(point / "store")
    cut("acknowledged")()
    with open_tiny(point / "store") as environment:
        append(environment, b"one")
        cut("committed")()
    for name, copy in images.items():
        store = mount("-o", "loop", str(copy)) / "store"
        if name in ("acknowledged", "committed"):
            assert store.is_dir(), name
        if store.exists():
            assert check(store) == ([b"one"] if name == "committed" else []), name
        else:
            make(store)
            open_tiny(store).close()
            assert left_overs(store) == [], name
            assert check(store) == []


# Room


def fill_up(environment: Environment, size: int) -> tuple[int, CommitFailedError]:
    """Append until a commit fails; how many were acknowledged, and the failure."""
    for count in range(100_000):
        try:
            append(environment, bytes(size))
        except CommitFailedError as failure:
            return count, failure
    raise AssertionError("it never became full")


@pytest.mark.parametrize("size", [200, 20_000, 400_000])
def test_a_full_tmpfs_is_storage_full(mount: Callable[..., Path], size: int) -> None:
    """A full tmpfs shows as EIO, not as ENOSPC."""
    point = mount("-t", "tmpfs", "-o", "size=2m", "tmpfs")
    ballast = point / "ballast"
    make(point / "store")
    environment = open_tiny(point / "store")
    ballast.write_bytes(bytes(600_000))
    count, failure = fill_up(environment, size)
    assert failure.full and isinstance(failure.mapped, StorageFullError)
    assert isinstance(failure.__cause__, Exception)
    environment.reopen()
    assert len(values(environment)) == count
    with pytest.raises(CommitFailedError):
        append(environment, bytes(size + 200_000))
    environment.reopen()
    environment.close()
    environment = open_tiny(point / "store")  # a full disk keeps nobody out
    ballast.unlink()
    append(environment, bytes(size))  # goes on once there is room
    environment.close()
    assert len(check(point / "store")) == count + 1
    assert os.listdir(point) == ["store"]


def test_a_full_ext4_is_storage_full(ext4: Callable[..., tuple[Path, Path]]) -> None:
    _, point = ext4(8, "-m", "0")
    make(point / "store")
    with open_tiny(point / "store") as environment:
        count, failure = fill_up(environment, 30_000)
        assert failure.full and isinstance(failure.mapped, StorageFullError)
        environment.reopen()
        assert len(values(environment)) == count
    assert len(check(point / "store")) == count


def test_creating_on_a_full_file_system_leaves_nothing(
    ext4: Callable[..., tuple[Path, Path]], mount: Callable[..., Path]
) -> None:
    _, few_inodes = ext4(8, "-N", "16")
    with pytest.raises(OSError, match="No space"):
        for number in range(1_000):
            (few_inodes / f"filler{number}").touch()
    few_pages = mount("-t", "tmpfs", "-o", "size=100k", "tmpfs")
    for point in (few_inodes, few_pages):
        before = sorted(os.listdir(point))
        with pytest.raises(StorageFullError):
            make(point / "store")
        assert sorted(os.listdir(point)) == before


def test_a_file_size_limit_is_storage_full(store_path: Path) -> None:
    make(store_path)
    script = PRELUDE + (
        "import resource\n"
        "environment = open_tiny(path)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "count = 0\n"
        "try:\n"
        "    while True:\n"
        "        append(environment, bytes(20_000))\n"
        "        count += 1\n"
        "except CommitFailedError as failure:\n"
        "    say(count, failure.full, type(failure.mapped).__name__, failure.mapped.hint)\n"
        "environment.reopen()\n"
        "assert len(values(environment)) == count\n"
        "environment.close()\n"
    )
    output = finish(child(script, store_path))
    count, full, kind, hint = output.split(maxsplit=3)
    assert (full, kind) == ("True", "StorageFullError") and "ulimit" in hint
    assert len(check(store_path)) == int(count) > 10


def test_a_small_address_space_takes_a_smaller_map(store_path: Path) -> None:
    make(store_path)
    script = PRELUDE + (
        "import resource\n"
        "limit = int(sys.argv[2])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try:\n"
        "    with open_tiny(path) as environment:\n"
        "        append(environment, b'x')\n"
        "        environment.reopen()\n"
        "        say(environment.map_bytes, len(environment.warnings))\n"
        "except StoreUnavailableError as error: say(type(error).__name__, 'ulimit' in error.hint)\n"
    )
    map_bytes, warnings = finish(child(script, store_path, str(4 << 30))).split()
    assert 1 << 30 <= int(map_bytes) < 4 << 30 < MAP_BYTES and warnings == "1"
    used = resource.getpagesize() * int(Path("/proc/self/statm").read_text("ascii").split()[0])
    finish(child(script, store_path, str(used + (16 << 20))), code=None)
    assert check(store_path) in ([b"x"], [b"x", b"x"])


def test_too_few_open_files_are_typed_and_leave_nothing_open(store_path: Path) -> None:
    make(store_path)
    script = PRELUDE + (
        "import resource, shutil\n"
        "def descriptors(): return len(os.listdir('/proc/self/fd'))\n"
        "with open_tiny(path) as environment: append(environment, b'x')\n"
        "other = path.with_name('other')\n"
        "make(other)\n"
        "shutil.rmtree(other)\n"
        "before = descriptors()\n"
        "outcomes = set()\n"
        "for room in range(0, 14):\n"
        "    for work in (lambda: open_tiny(path).close(), lambda: make(other)):\n"
        "        resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + room, 1_024))\n"
        "        try:\n"
        "            work()\n"
        "            outcome = 'fine'\n"
        "        except StoreUnavailableError as error:\n"
        "            outcome = 'ulimit' in error.hint\n"
        "        finally:\n"
        "            resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, 1_024))\n"
        "        assert descriptors() == before, (room, outcome)\n"
        "        names = sorted(os.listdir(path.parent))\n"
        "        expected = ['other', 'store'] if other.exists() else ['store']\n"
        "        assert names == expected, (room, outcome, names)\n"
        "        assert not other.exists() or outcome == 'fine'\n"
        "        shutil.rmtree(other, ignore_errors=True)\n"
        "        outcomes.add(outcome)\n"
        "say(sorted(map(str, outcomes)))\n"
    )
    assert finish(child(script, store_path)) == "['True', 'fine']\n"
    assert check(store_path) == [b"x"]


# Where nothing can be written


def test_a_read_only_file_system_can_be_read(
    ext4: Callable[..., tuple[Path, Path]], store_path: Path
) -> None:
    _, point = ext4(16)
    store = point / "store"
    make(store)
    with open_tiny(store) as environment:
        append(environment, b"one")
    subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True)
    with pytest.raises(ReadOnlyError) as caught:
        open_tiny(store)
    assert "read_only=True" in caught.value.hint
    with pytest.raises(ReadOnlyError):
        make(point / "another")
    script = PRELUDE + (
        "with open_tiny(path, read_only=True) as environment: say(values(environment))\n"
    )
    with open_tiny(store, read_only=True) as environment:
        assert values(environment) == [b"one"]
        with pytest.raises(ReadOnlyError):
            environment.begin_write()
        assert finish(child(script, store)) == "[b'one']\n"
        environment.reopen()
        assert values(environment) == [b"one"]
    subprocess.run(["mount", "-o", "remount,rw", str(point)], check=True)
    with open_tiny(store) as environment:
        append(environment, b"two")
    assert check(store) == [b"one", b"two"]


def test_a_read_only_mount_of_a_living_store_is_refused(
    tiny: Environment, mount: Callable[..., Path]
) -> None:
    """Without LMDB's reader table a reader sees pages change under it."""
    append(tiny, b"one")
    point = mount("--bind", str(tiny.path.parent))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(point)], check=True)
    script = PRELUDE + (
        "try: open_tiny(path, read_only=True, lock_deadline_ms=20)\n"
        "except BusyError as error: say(error.owner)\n"
    )
    output = finish(child(script, point / tiny.path.name))
    assert f"pid {os.getpid()} " in output


def test_a_file_nobody_may_change_is_read_only(store_path: Path) -> None:
    make(store_path)
    with open_tiny(store_path) as environment:
        append(environment, b"one")
    everything = [*store_path.iterdir(), store_path]
    done = subprocess.run(["chattr", "+i", *everything], capture_output=True, check=False)
    if done.returncode != 0:
        subprocess.run(["chattr", "-i", *everything], capture_output=True, check=False)
        pytest.skip("files cannot be made immutable here")
    try:
        with pytest.raises(ReadOnlyError):
            open_tiny(store_path)
        with open_tiny(store_path, read_only=True) as environment:
            assert values(environment) == [b"one"]
    finally:
        subprocess.run(["chattr", "-i", *everything], check=True)


def test_another_user_gets_nothing(store_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    make(store_path)
    for path in store_path.parents:
        if (
            path.stat().st_uid == 0
            and path != path.parent
            and stat.S_IMODE(path.stat().st_mode) == 0o700
        ):
            path.chmod(0o711)
    script = PRELUDE + (
        "os.setgid(65534); os.setuid(65534)\n"
        "for read_only in (False, True):\n"
        "    try: open_tiny(path, read_only=read_only)\n"
        "    except StoreUnavailableError as error: say(type(error).__name__, error.hint)\n"
        "    else: say('in')\n"
    )
    output = finish(child(script, store_path)).splitlines()
    assert len(output) == 2 and all("user who owns it" in line for line in output)
    assert {stat.S_IMODE(path.stat().st_mode) for path in store_path.iterdir()} == {0o600}


# Damage that would end the process


def test_no_truncation_ends_the_process(store_path: Path) -> None:
    """A file that lost its end was a SIGBUS, without an exception, on the first read of a page."""
    make(store_path)
    with open_tiny(store_path) as environment:
        for number in range(60):
            append(environment, bytes([number]) * 2_000)
    script = PRELUDE + (
        "data = path / 'data.mdb'\n"
        "content = data.read_bytes()\n"
        "step = int(sys.argv[2])\n"
        "refused = 0\n"
        "for size in range(0, len(content), step):\n"
        "    data.write_bytes(content[:size])\n"
        "    try:\n"
        "        with open_tiny(path) as environment:\n"
        "            assert len(values(environment)) == 60, size\n"
        "    except CorruptionError: refused += 1\n"
        "data.write_bytes(content)\n"
        "say(refused)\n"
    )
    refused = int(finish(child(script, store_path, str(os.sysconf("SC_PAGE_SIZE") // 2))))
    in_use = read_metas(store_path / DATA_FILE)[0].bytes_in_use
    assert refused >= in_use // os.sysconf("SC_PAGE_SIZE")
    assert len(check(store_path)) == 60


def test_no_flipped_bit_of_a_meta_page_rolls_the_store_back(
    store_path: Path, crash_cycles: int
) -> None:
    """64 of 2,176 bits silently took the store back by an acknowledged commit."""
    make(store_path)
    with open_tiny(store_path) as environment:
        for number in range(5):
            append(environment, bytes([number]))
    page = os.sysconf("SC_PAGE_SIZE")
    script = PRELUDE + (
        "data = path / 'data.mdb'\n"
        "page, step = int(sys.argv[2]), int(sys.argv[3])\n"
        "content = data.read_bytes()\n"
        "bits = [(meta * page + byte) * 8 + bit\n"
        "        for meta in (0, 1) for byte in range(152) for bit in range(8)]\n"
        "for bit in bits[::step]:\n"
        "    with open(data, 'r+b') as file:\n"
        "        file.seek(bit // 8)\n"
        "        file.write(bytes([content[bit // 8] ^ 1 << bit % 8]))\n"
        "    try:\n"
        "        with open_tiny(path) as environment:\n"
        "            kept = len(values(environment))\n"
        "            warned = any('rolled back' in each for each in environment.warnings)\n"
        "            assert kept == 5 or (kept == 4 and warned), bit\n"
        "    except TurnlogError: pass\n"
        "    data.write_bytes(content)\n"
        "say('done')\n"
    )
    step = "1" if crash_cycles >= 20 else "5"
    assert finish(child(script, store_path, str(page), step), timeout=240) == "done\n"


# Errors of the disk


COMMITS = PRELUDE + (
    "environment = open_tiny(path)\n"
    "os.mkdir(sys.argv[2])\n"
    "failed = 0\n"
    "for number in range(4):\n"
    "    value = b'%d' % number * 3_000\n"
    "    try:\n"
    "        append(environment, value)\n"
    "        say('acknowledged', number)\n"
    "    except CommitFailedError as failure:\n"
    "        failed += 1\n"
    "        environment.reopen()\n"
    "        say('applied' if value in values(environment) else 'failed', number)\n"
    "environment.close()\n"
)


@pytest.mark.parametrize(
    "action", ["signal=KILL", "error=EIO", "error=ENOSPC", "error=EINTR", "retval=0"]
)
def test_commits_with_every_call_failing_in_turn(
    strace: str, store_path: Path, tmp_path: Path, action: str, crash_cycles: int
) -> None:
    """What was acknowledged is there, what was said to have failed is not, whatever broke."""
    trace, mark = tmp_path / "trace", tmp_path / "mark"
    names = ["pwrite64", "writev", "fdatasync", "ftruncate"]
    if action == "retval=0":
        names = ["fdatasync"]  # a sync that lies must not matter while the machine runs
    hit = 0
    for name in names:
        nth = 0
        while True:
            nth += 1 if nth < 4 or crash_cycles >= 20 else 3
            make(store_path)
            prefix = [strace, "-f", "-qq", "-o", str(trace), "-e", f"trace={name},mkdir"]
            prefix += ["-e", f"inject={name}:{action}:when={nth}"]
            process = child(COMMITS, store_path, mark, prefix=prefix)
            output = finish(process, code=None)
            injected = "INJECTED" in trace.read_text("utf-8", "replace")
            killed = process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
            if mark.exists():
                mark.rmdir()
                assert process.returncode == 0 or killed, (name, nth, output)
                found = [value[:1] for value in check(store_path)]
                told: dict[str, list[bytes]] = {"acknowledged": [], "applied": [], "failed": []}
                for line in output.splitlines():
                    outcome, number = line.split()
                    told[outcome].append(number.encode())
                for number in told["acknowledged"] + told["applied"]:
                    assert number in found, (name, nth, output)
                for number in told["failed"]:
                    assert number not in found, (name, nth, output)
            shutil.rmtree(store_path)
            if not injected and not killed:
                break
            hit += 1
            assert nth < 200
    assert hit


def test_the_options_of_creation_reach_lmdb(store_path: Path) -> None:
    create(
        store_path, tables=TABLES, initialise=initialise, marker={"store": "x"}, map_bytes=1 << 26
    )
    assert {MARKER_FILE, DATA_FILE, LOCK_FILE, *LOCK_FILES} == set(os.listdir(store_path))
    with open_tiny(store_path) as environment:
        flags = environment._lmdb.flags()
        assert flags["sync"] and flags["metasync"] and not flags["writemap"]
        assert not flags["map_async"] and environment._lmdb.lib_version()[0] == 0
    with pytest.raises((CorruptionError, TurnlogError)):
        open_tiny(store_path / DATA_FILE)


@pytest.mark.parametrize("size", [200, 20_000])
def test_a_full_disk_takes_deletions_and_goes_on_with_room(
    mount: Callable[..., Path], size: int
) -> None:
    """An append was refused, but so was the delete that would have made room."""
    point = mount("-t", "tmpfs", "-o", "size=6m", "tmpfs")
    path = point / "store"
    with Store.open(path) as store:
        sessions = [store.session(f"s{number}") for number in range(8)]
        stored = 0
        refused: TurnlogError | None = None
        while refused is None:
            session = sessions[stored % len(sessions)]
            try:
                session.append({"role": "user", "content": os.urandom(size).hex()}).result()
                stored += 1
            except StorageFullError as error:
                refused = error
        assert not store.health()["ok"]
        assert sum(len(session.history()) for session in sessions) == stored
        for session in sessions[:-1]:
            session.erase(timeout=60)
        assert [session.exists for session in sessions] == [False] * 7 + [True]
        kept = len(sessions[-1].history())
        assert kept in (stored // 8, stored // 8 + 1)
        with suppress(StorageFullError):  # the refused ones were told
            store.flush()
    subprocess.run(["mount", "-o", "remount,size=12m", str(point)], check=True)
    with Store.open(path) as store:
        store.session("s0").append({"role": "user", "content": "again"}).result()
        assert store.health()["ok"]
        assert store.check().ok


def test_a_store_on_a_full_disk_goes_on_once_enough_was_removed(
    mount: Callable[..., Path],
) -> None:
    """Everything was erased, and appends were refused all the same: the file could not grow."""
    point = mount("-t", "tmpfs", "-o", "size=24m", "tmpfs")
    with Store.open(point / "store", snapshot_frequency=4) as store:
        sessions = [store.session(f"s{number}") for number in range(12)]
        with pytest.raises(StorageFullError):
            for number in range(100_000):
                body = {"role": "user", "content": os.urandom(10_000).hex()}
                sessions[number % 12].append(body).result()
        for _ in range(3):
            for session in sessions:
                if session.exists:
                    session.erase(timeout=60)
            written = 0
            with pytest.raises(StorageFullError):
                for number in range(100_000):
                    body = {"role": "user", "content": os.urandom(10_000).hex()}
                    sessions[number % 12].append(body).result()
                    written += 1
            assert written > 300
        assert sum(len(session.history()) for session in sessions) == written
        for session in sessions:
            session.erase(timeout=60)  # what was kept for it is still there
        assert store.check().ok
        with suppress(StorageFullError):
            store.flush()
