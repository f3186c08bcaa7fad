"""A flush waits for what was accepted before it, and for nothing that comes later."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from engine import Store
from eventlog.failpoints import failpoints
from tests.model.staging import HANG_S, run_script


def test_a_flush_does_not_wait_for_an_append_that_came_after_it(store: Store) -> None:
    """It looked whether any batch was in flight, and beside callers who never pause one always is:
    it came back by luck, hundreds of commits late.
    """
    call = store.session("s")
    begun = [threading.Event(), threading.Event()]
    released = [threading.Event(), threading.Event()]
    numbers = count()

    def stop() -> None:
        number = next(numbers)
        if number < 2:
            begun[number].set()
            released[number].wait(HANG_S)

    with failpoints({"commit.before_begin": stop}):
        first = call.append({"n": 0})
        assert begun[0].wait(HANG_S)
        flushed = threading.Event()

        def flush() -> None:
            store.flush()
            flushed.set()

        thread = threading.Thread(target=flush, daemon=True)
        thread.start()
        assert not flushed.wait(0.2)
        assert not first.done()
        call.append({"n": 1})
        released[0].set()
        assert begun[1].wait(HANG_S)
        try:
            assert flushed.wait(HANG_S / 6), "it waits for what came after it"
        finally:
            released[1].set()
            thread.join(HANG_S)


FULL = """
import os, resource, signal, sys, threading
from engine import Store
from eventlog.errors import StorageFullError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store.open(sys.argv[1], snapshot_frequency=2)
store.session("s").append({"n": 0}).result(10)
size = os.path.getsize(sys.argv[1] + "/data.mdb")
resource.setrlimit(resource.RLIMIT_FSIZE, (size + (64 << 10), resource.RLIM_INFINITY))
refused = 0
for number in range(1, 2_000):
    try:
        store.session(f"s{number % 9}").append({"n": number, "x": os.urandom(3_000)}).result(10)
    except StorageFullError:
        refused += 1
        if refused == 3:
            break
assert refused == 3
"""


def test_sealing_that_failed_on_a_full_disk_is_not_tried_again_at_once(store_path: Path) -> None:
    """Overdue sealing failed there, was due again at once and failed again, for as long as the
    disk was full: a core was busy with it, and flush came back only by luck.
    """
    script = FULL + (
        "import time\n"
        "machine = store._log.writer.machine\n"
        "stop, before = time.monotonic() + 4, machine.failures\n"
        "while time.monotonic() < stop and machine.failures < before + 20:\n"
        "    time.sleep(0.01)\n"
        "print(machine.failures < before + 20, flush=True)\n"
        "os._exit(0)\n"
    )
    assert run_script(script, store_path).split() == ["True"]


def test_a_store_on_a_full_disk_closes(store_path: Path) -> None:
    """The writer went on with sealing that could not succeed, so that close waited for its whole
    timeout, left the thread behind, and the process could not open the store again.
    """
    script = FULL + (
        "thread = threading.Thread(target=store.close, args=(None,), daemon=True); thread.start()\n"
        "thread.join(10)\n"
        "print('hangs' if thread.is_alive() else 'closed', flush=True)\n"
        "os._exit(0)\n"
    )
    assert run_script(script, store_path).split() == ["closed"]


@pytest.mark.parametrize("ask", ["sessions", "flush", "stats", "check", "salvage"])
def test_a_fork_beside_busy_threads_leaves_no_lock_behind(store_path: Path, ask: str) -> None:
    """A thread of the parent held the index's lock at the moment of the fork: in the child
    ``sessions`` waited for it for ever, where ``ForkedStoreError`` was due.
    """
    script = f"""
import os, signal, sys
from engine import Store
from eventlog.errors import ForkedStoreError
store = Store.open(sys.argv[1])
store.session("s").append({{"n": 0}}).result(10)
import threading
held, done = threading.Event(), threading.Event()
def hold():
    with store._log.index.lock:
        held.set()
        done.wait(20)
threading.Thread(target=hold, daemon=True).start()
held.wait(10)
child = os.fork()
if not child:
    signal.alarm(5)
    try:
        if {ask!r} == "salvage":
            list(store.salvage())
        else:
            store.{ask}()
    except ForkedStoreError:
        os._exit(0)
    os._exit(1)
print(os.waitpid(child, 0)[1], flush=True)
done.set()
store.close()
"""
    assert run_script(script, store_path).split() == ["0"]
