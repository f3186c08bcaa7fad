"""Who may write, who is next, who is in: within one process and between several."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eventlog.errors import BusyError, StoreClosedError, StoreUnavailableError
from eventlog.locks import (
    NO_RECORD,
    RECORD_BYTES,
    USE_FILE,
    WRITER_FILE,
    UseLock,
    WriterLock,
    decode_owner,
    describe_owner,
    encode_owner,
)
from eventlog.seams import FILES, ProcessIdentity, process_alive, process_identity
from tests.tiny_store import child, finish

ME = process_identity()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = FILES.open_folder(tmp_path)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def lock(folder: int) -> Iterator[WriterLock]:
    lock = WriterLock(folder)
    yield lock
    lock.close()


@pytest.fixture
def other(folder: int) -> Iterator[WriterLock]:
    """As another process would have it: its own open files, another pid."""
    lock = WriterLock(folder, identity=replace(ME, pid=os.getppid(), start=0, command="rival"))
    yield lock
    lock.close()


@pytest.fixture
def enter(folder: int) -> Iterator[Callable[..., UseLock]]:
    made: list[UseLock] = []

    def enter(identity: ProcessIdentity = ME, **options: object) -> UseLock:
        lock = UseLock.enter(folder, identity=identity, deadline_ms=0, **options)  # type: ignore[arg-type]
        made.append(lock)
        return lock

    yield enter
    for lock in made:
        lock.close()


def parent() -> ProcessIdentity:
    """A process other than this one that is alive all through the test."""
    return replace(ME, pid=os.getppid(), start=0, command="parent")


# Owner records


def test_an_owner_record_comes_back() -> None:
    me = replace(ME, command="python serve.py")
    assert decode_owner(encode_owner(me)) == me


@pytest.mark.parametrize("command", ["", "x" * 10_000, "\x1b[31m" * 500, "naïve 🚀" * 200])
def test_an_owner_record_always_fits(command: str) -> None:
    record = encode_owner(replace(ME, command=command, host="h" * 300))
    assert len(record) == RECORD_BYTES and record.endswith(b"\n")
    found = decode_owner(record)
    assert found is not None and command.startswith(found.command)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        NO_RECORD,
        b"null",
        b"[]",
        b'{"pid":1}',
        b"\xff" * RECORD_BYTES,
        b"[" * 100_000,
        encode_owner(ME).replace(b'"pid":', b'"pid":-'),
        encode_owner(ME).replace(b'"boot":"', b'"boot":7,"x":"'),
    ],
    ids=["empty", "blank", "null", "list", "short", "bytes", "deep", "negative", "type"],
)
def test_what_is_no_owner_record_names_nobody(record: bytes) -> None:
    assert decode_owner(record) is None


def test_a_dead_owner_is_told_from_a_living_one() -> None:
    process = child("pass")
    dead = replace(ME, pid=process.pid, start=1)
    finish(process)
    assert process_alive(ME)
    assert not process_alive(dead)
    assert not process_alive(replace(ME, start=ME.start + 1)), "the pid was used again"
    assert "gone" in describe_owner(dead, ME)
    assert "gone" not in describe_owner(ME, ME)
    assert str(ME.pid) in describe_owner(ME, ME)


# The writer lock


def test_the_writer_lock_signs_and_excludes(
    tmp_path: Path, lock: WriterLock, other: WriterLock
) -> None:
    lock.acquire(0)
    assert lock.owner() == decode_owner(encode_owner(ME))
    with pytest.raises(BusyError) as caught:
        other.acquire(20)
    assert caught.value.owner is not None
    assert f"pid {os.getpid()} on {ME.host}" in caught.value.owner
    lock.release()
    other.acquire(0)
    assert decode_owner((tmp_path / WRITER_FILE).read_bytes()) != ME
    with pytest.raises(BusyError, match="rival"):
        lock.acquire(0)
    other.release()
    lock.acquire(0)
    lock.release()


def test_a_refused_waiter_leaves_the_turnstile(lock: WriterLock, other: WriterLock) -> None:
    lock.acquire(0)
    for _ in range(3):
        with pytest.raises(BusyError):
            other.acquire(0)
    lock.release()
    other.acquire(0)
    other.release()


def test_a_damaged_owner_record_is_no_obstacle(
    tmp_path: Path, lock: WriterLock, other: WriterLock
) -> None:
    lock.acquire(0)
    (tmp_path / WRITER_FILE).write_bytes(os.urandom(900))
    with pytest.raises(BusyError, match="no record"):
        other.acquire(0)
    lock.release()
    other.acquire(0)
    other.release()


def test_the_stop_event_ends_a_wait(lock: WriterLock, other: WriterLock) -> None:
    lock.acquire(0)
    stop = threading.Event()
    started = threading.Event()
    raised: list[BaseException] = []

    def wait() -> None:
        started.set()
        try:
            other.acquire(30_000, stop)
        except StoreClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    stop.set()
    thread.join(timeout=10)
    assert raised
    lock.release()
    other.acquire(0, stop)  # nobody is in the way: the event does not matter
    other.release()


def test_two_threads_of_a_process_exclude_each_other(lock: WriterLock) -> None:
    lock.acquire(0)
    with pytest.raises(BusyError, match="another thread"):
        lock.acquire(5)
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoreClosedError):
        lock.acquire(30_000, stop)
    lock.release()
    lock.acquire(0)
    lock.release()


def test_closing_gives_the_lock_back_even_while_it_is_held(
    lock: WriterLock, other: WriterLock
) -> None:
    lock.acquire(0)
    lock.close()
    other.acquire(0)
    lock.release()  # the thread that had it comes late; it must not touch anybody's descriptor
    other.release()
    with pytest.raises(StoreClosedError):
        lock.acquire(0)


def test_waiters_get_in_beside_a_greedy_process(tmp_path: Path, lock: WriterLock) -> None:
    """With one polled lock a waiter starved: the owner took it again before anybody looked."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from eventlog.locks import WriterLock\n"
        "from eventlog.seams import FILES\n"
        "lock = WriterLock(FILES.open_folder(Path(sys.argv[1])))\n"
        "lock.acquire(30_000)\n"
        "print('in', flush=True)\n"
        "while True:\n"
        "    sum(range(2_000))\n"
        "    lock.release()\n"
        "    lock.acquire(30_000)\n"
    )
    greedy = child(script, tmp_path)
    try:
        assert greedy.stdout is not None and greedy.stdout.readline() == "in\n"
        for _ in range(50):
            lock.acquire(30_000)
            lock.release()
        assert greedy.poll() is None
    finally:
        greedy.kill()
        finish(greedy, code=None)
    lock.acquire(30_000)  # the kernel gave back what the killed process had
    lock.release()


# The use lock


def test_those_who_are_in_are_named(enter: Callable[..., UseLock]) -> None:
    first = enter()
    assert first.members() == []
    second = enter(parent())
    assert [member.pid for member in first.members()] == [os.getppid()]
    assert [member.pid for member in second.members()] == [os.getpid()]
    second.leave()
    assert first.members() == []
    second.leave()


@pytest.mark.parametrize("command", ["short", "x" * 2_000])
def test_a_process_that_is_alone_in_is_told_from_another(
    enter: Callable[..., UseLock], command: str
) -> None:
    """A second lock of the process was told of another one; and where its command was too long for
    its record, it took itself for another.
    """
    me = replace(ME, command=command)
    first = enter(me)
    second = enter(me)
    assert first.members() == second.members() == []
    second.leave()
    first.exclusive(0)
    with pytest.raises(BusyError) as caught:
        enter(me)
    assert caught.value.owner == "this process"
    assert str(caught.value) == "the store is being vacuumed by this process"
    with pytest.raises(BusyError) as caught:
        enter(parent())
    assert f"pid {me.pid}" in str(caught.value)
    first.shared()


def test_a_slot_of_the_dead_is_used_again(tmp_path: Path, enter: Callable[..., UseLock]) -> None:
    keeper = enter()
    process = child("pass")
    dead = replace(ME, pid=process.pid, start=1)
    finish(process)
    enter(dead).close()  # as a killed process leaves it
    assert keeper.members() == []
    enter(parent())
    assert [member.pid for member in keeper.members()] == [os.getppid()]
    assert (tmp_path / USE_FILE).stat().st_size == 2 * RECORD_BYTES


def test_being_alone_needs_everybody_else_out(enter: Callable[..., UseLock]) -> None:
    first = enter()
    second = enter(parent())
    with pytest.raises(BusyError, match=f"pid {os.getppid()} ") as caught:
        first.exclusive(5)
    assert caught.value.owner is not None
    with pytest.raises(BusyError):  # the refusal took nobody's place
        second.exclusive(0)
    second.leave()
    first.exclusive(0)
    with pytest.raises(BusyError, match=f"vacuumed by pid {os.getpid()} "):
        enter(parent())
    first.shared()
    enter(parent())


def test_waiting_to_be_alone_reacts_to_the_stop_event(enter: Callable[..., UseLock]) -> None:
    first = enter()
    enter(parent())
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoreClosedError):
        first.exclusive(30_000, stop)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"namespace": ME.namespace + 1}, "container"),
        ({"namespace": ME.namespace + 1, "host": "c0ffee"}, "container"),
        ({"boot": "other", "host": "elsewhere"}, "host"),
    ],
    ids=["namespace", "namespace-with-host-name", "host"],
)
def test_another_domain_is_refused_while_others_are_in(
    enter: Callable[..., UseLock], change: dict[str, object], where: str
) -> None:
    stranger = replace(ME, **change)  # type: ignore[arg-type]
    inside = enter()
    with pytest.raises(StoreUnavailableError, match=where) as caught:
        enter(stranger)
    assert not isinstance(caught.value, BusyError)
    inside.leave()
    enter(stranger)
    with pytest.raises(StoreUnavailableError, match=where):
        enter()


def test_a_changed_host_name_is_no_other_domain(enter: Callable[..., UseLock]) -> None:
    enter(replace(ME, host="before"))
    enter(replace(parent(), host="after"))


def test_records_of_an_earlier_boot_do_not_count(enter: Callable[..., UseLock]) -> None:
    enter(replace(ME, boot="earlier", namespace=ME.namespace + 7)).close()
    enter()


def test_readers_without_locks_and_writers_keep_apart(enter: Callable[..., UseLock]) -> None:
    writer = enter()
    with pytest.raises(BusyError, match="cannot be written"):
        enter(parent(), writable=False)
    writer.leave()
    reader = enter(writable=False)
    another = enter(parent(), writable=False)
    assert not reader.writable
    with pytest.raises(BusyError, match="read-only mount"):
        enter()
    reader.leave()
    another.leave()
    assert enter().writable


def test_a_reader_goes_in_where_nobody_ever_was(
    tmp_path: Path, enter: Callable[..., UseLock]
) -> None:
    reader = enter(writable=False)
    assert not (tmp_path / USE_FILE).exists()
    assert reader.members() == []
    reader.leave()


def test_garbage_in_the_lock_file_names_nobody(
    tmp_path: Path, enter: Callable[..., UseLock]
) -> None:
    (tmp_path / USE_FILE).write_bytes(os.urandom(5_000))
    lock = enter()
    assert lock.members() == []
    (tmp_path / USE_FILE).write_bytes(encode_owner(ME) + os.urandom(5_000))
    assert lock.members() == []
