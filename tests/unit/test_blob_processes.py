"""Blobs and processes: the same content from two, one that is killed, memory that stays flat."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import Store
from eventlog.limits import BLOB_PENDING_US, BLOB_STREAM_BYTES_MAX
from eventlog.seams import CLOCK

REPOSITORY = Path(__file__).resolve().parents[2]

SAME = """
import random, sys
from engine import Store
contents = [random.Random(seed).randbytes(2_500_000) for seed in range(6)]
with Store.open(sys.argv[1]) as store:
    call = store.session(sys.argv[2])
    for content in contents:
        blob = store.blobs.put(iter([content]))
        call.append({"role": "user", "content": "x"}, blobs=[blob]).result(60)
    print(" ".join(each.hex() for event in call.events() for each in event.blobs))
"""

ERASING = """
import sys
from engine import Store
with Store.open(sys.argv[1]) as store:
    print(store.session("a").erase().has_held_blobs)
"""

KILLED = """
import random, sys
from engine import Store
from eventlog.failpoints import kill, set_failpoints
left = int(sys.argv[2])
def act():
    global left
    left -= 1
    if not left:
        kill()()
with Store.open(sys.argv[1]) as store:
    set_failpoints({sys.argv[3]: act})
    store.blobs.put(random.Random(number).randbytes(1_000_003) for number in range(12))
    print("survived")
"""

MEMORY = """
import random, sys, tracemalloc
from pathlib import Path
from engine import Store
piece = random.Random(1).randbytes(1 << 20)
most = 0
def look():
    global most
    status = Path("/proc/self/status").read_text()
    most = max(most, int(status.partition("RssAnon:")[2].split()[0]) * 1024)
    return most
def source(count):
    for number in range(count):
        look()
        yield piece[number % 1000 :] + b"%d" % number
with Store.open(sys.argv[1]) as store:
    small = store.blobs.put(source(20))
    store.blobs.read(small, 0, 1 << 20)
    before = look()
    blob = store.blobs.put(source(200), media_type="audio/pcm")
    assert store.blobs.put(source(200)) == blob
    size = 0
    with store.blobs.open(blob) as reader:
        while data := reader.read(100_000):
            size += len(data)
            look()
    assert size == blob.size > 200_000_000
    grown = most - before
    tracemalloc.start()
    store.blobs.put(source(30))
    print(tracemalloc.get_traced_memory()[1], grown)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_put_the_same_contents(
    store_path: Path, checked_store: Callable[..., Store]
) -> None:
    checked_store().close()
    processes = [start(SAME, store_path, name) for name in ("one", "two")]
    told = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert told[0][0] == told[1][0]
    with Store.open(store_path, create=False) as store:
        found = store.stats()["blobs"]
        assert (found["count"], found["references"], found["pending"]) == (6, 12, 0)
        assert found["unfinished"] == 0
        assert store.check().ok


def test_another_process_erases_what_was_put_again(
    store_path: Path, checked_store: Callable[..., Store]
) -> None:
    store = checked_store()
    blob = store.blobs.put(b"same")
    store.session("a").append({"role": "user", "content": "x"}, blobs=[blob]).result(10)
    again = store.blobs.put(b"same")
    process = start(ERASING, store_path)
    assert process.communicate(timeout=60)[0] == "True\n"
    store.session("b").append({"role": "user", "content": "x"}, blobs=[again]).result(10)
    assert store.blobs.read(again) == b"same"


@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize(
    "place", ["blob.after_chunks", "commit.before_commit", "commit.after_commit"]
)
def test_killed_in_the_middle_of_a_put(
    store_path: Path,
    checked_store: Callable[..., Store],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    step: int,
) -> None:
    """What a killed process leaves is pending, harms nothing, and is collected after an hour."""
    with checked_store() as store:
        kept = store.blobs.put(b"kept")
        store.session("a").append({"role": "user", "content": "x"}, blobs=[kept]).result(10)
    process = start(KILLED, store_path, step, place)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.SIGKILL, ""), errors
    store = checked_store(create=False)
    left = store.stats()["blobs"]["unfinished"]
    assert left == (step > 1 or place == "commit.after_commit")
    assert store.check().ok
    hour = CLOCK.wall_us() + BLOB_PENDING_US
    monkeypatch.setattr(CLOCK, "wall_us", lambda: hour)
    gone = store.collect_blobs()
    assert (gone["blobs"], gone["streams"]) == (0, left)
    assert store.blobs.read(kept) == b"kept"
    with store._log.views.transaction() as tables:
        assert tables.transaction.stat(tables.tables["chunk"])["entries"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_stays_flat(store_path: Path) -> None:
    """200 MB of noise put, put again and read: memory of our own does not grow with the size."""
    process = start(MEMORY, store_path)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    traced, grown = map(int, out.split())
    # What the source makes, 3 MiB, comes on top, and the value that is being put.
    assert traced < BLOB_STREAM_BYTES_MAX + (4 << 20)
    assert grown < 24 << 20
    with Store.open(store_path, create=False) as store:
        assert store.check().ok
