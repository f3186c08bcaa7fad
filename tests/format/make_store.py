"""Makes the store of a format version that the tests open for ever.

``python -m tests.format.make_store`` writes ``stores/N.tar.xz`` for the format version N of this
tree, with what must be read from it (``stores/N.json``, ``stores/N.jsonl``). It is run once for
each version, and refuses to replace a store that is there.
"""

from __future__ import annotations

import json
import struct
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from engine import Store
from engine.export import event_to_line
from eventlog import sealing
from eventlog.limits import HOT_TABLE_POSITIONS
from eventlog.place import FORMAT_VERSION
from eventlog.seams import Clock
from eventlog.version import VERSION

STORES = Path(__file__).parent / "stores"
FREQUENCY = 32
FILES = ("data.mdb", "turnlog.json")
LINES = ("alice", "bob", "été", "a\x00b/../😀")
DELETED = "call-104"
ERASED = "forgotten"
ALL_KINDS = ("event", "summary", "metadata", "model_change", "label", "custom", "compaction")

NAN = struct.unpack(">d", bytes.fromhex("fff8000000abcdef"))[0]
HARD_BODY: dict[str, Any] = {
    "text": "é 😀 \x00",
    "bytes": b"\x00\xff",
    "ints": [0, -1, 23, 24, 2**63, 2**64 - 1, -(2**63)],
    "floats": [0.0, -0.0, 1.5, 5e-324, float("inf"), float("-inf"), float("nan"), NAN],
    "others": [None, True, False, [], {}, ""],
    "cut emoji": "half \ud83d",
    "\udc00": {"\ud800": ["\udfff", NAN], "$b64": "mine"},
    "deep": [[[[[[[["down here"]]]]]]]],
}


@contextmanager
def slow_clock() -> Iterator[None]:
    """Time stands where the story puts it: one second more for each look."""
    real = Clock.wall_us
    seconds = iter(range(1_700_000_000, 1_800_000_000))
    Clock.wall_us = lambda self: next(seconds) * 1_000_000  # type: ignore[method-assign]
    try:
        yield
    finally:
        Clock.wall_us = real  # type: ignore[method-assign]


def write_story(store: Store) -> None:
    """Every kind of row and record of the format: sealed and cut, sealed and hot, loose."""
    acme = store.tenant("acme")
    for number in range(HOT_TABLE_POSITIONS // FREQUENCY):  # exactly what one cut takes
        session = acme.session(f"call-{number:02d}", user_id=f"u{number % 7}")
        session.append_many(
            [
                {"role": ("user", "assistant")[place % 2], "content": f"turn {place} of {number}"}
                for place in range(FREQUENCY)
            ],
            ids=[f"m-{number}-{place}" if number < 10 else None for place in range(FREQUENCY)],
            idempotency_key=f"whole-{number}" if number % 8 == 0 else None,
        ).result()
    store.flush()

    alice = store.session("alice", user_id="u1", title="Alice \ud83d", metadata={"plan": 2})
    alice.create().result()
    for place in range(FREQUENCY + 3):  # sealed up to the 32nd
        if place == FREQUENCY:
            store.flush()
        alice.append(
            {"role": "user", "content": f"alice {place}"},
            idempotency_key=f"alice-{place}" if place % 4 == 0 else None,
            id=f"alice-{place}" if place % 4 == 1 else None,
        ).result()
    bob = store.tenant("été").session("bob")
    bob.append(
        HARD_BODY,
        id="hard",
        metadata={"a": NAN, "b": "\ud800", "c": [b"\x01", {}]},
        time_us=-1,
        tokens=2**32 - 1,
        run_id="run",
        turn_id="turn",
        speech_id="speech",
        request_id="request",
        idempotency_key="hard-key",
    ).result()
    for kind in ALL_KINDS:
        bob.append_event(kind, {"of": kind}).result()
    bob.append_event("my.own.kind", [1, "two", None], id="own").result()
    for role in ("system", "user", "assistant", "tool", "developer", "toolResult", "nobody"):
        bob.append({"role": role, "content": role}).result()
    bob.append({"role": "user", "content": "long " * 2_000}).result()  # does not fit one page
    bob.append({"role": "user", "content": "later"}, time_us=2**63 - 1).result()
    other = store.tenant("été").session("été")
    odd = store.tenant("été").session("a\x00b/../😀")
    store.tenant("été").append_batch(
        [
            other.draft([{"role": "user", "content": "one"}]),
            odd.draft([{"role": "user", "content": "two"}], events=[("event", 2.5)]),
        ]
    ).result()
    store.flush()
    _write_removals(store)


def _write_removals(store: Store) -> None:
    """A session that was cut is deleted, a hot one erased, and another has its name now."""
    store.tenant("acme").session(DELETED).delete().result()
    forgotten = store.tenant("été").session(ERASED, title="a secret title")
    for place in range(FREQUENCY + 3):
        if place == FREQUENCY:
            store.flush()
        forgotten.append(
            {"role": "user", "content": f"secret {place}"},
            idempotency_key=f"secret-{place}",
            id=f"secret-{place}",
        ).result()
    forgotten.erase()
    store.tenant("été").session(ERASED).append(
        {"role": "user", "content": "fresh"}, idempotency_key="secret-0", id="secret-0"
    ).result()
    store.flush()


def export(store: Store) -> list[str]:
    """The export lines of all events, in the order of positions."""
    return [event_to_line(event) for event in store.read()]


def digest_of(lines: list[str]) -> str:
    """BLAKE2b-256 of export lines."""
    return blake2b("".join(line + "\n" for line in lines).encode(), digest_size=32).hexdigest()


def describe(store: Store) -> dict[str, Any]:
    """What must be read from a store whatever release reads it."""
    lines = export(store)
    stats = store.stats()
    return {
        "release": VERSION,
        "events": len(lines),
        "sessions": stats["sessions"],
        "tenants": store.tenants(),
        "export_blake2b": digest_of(lines),
        "newest": [info.name for info in store.tenant("acme").sessions(limit=5).sessions],
    }


def pack(folder: Path, target: Path) -> None:
    """Put a closed store into a compressed archive."""
    with tarfile.open(target, "w:xz") as archive:
        for name in FILES:
            content = (folder / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o600
            archive.addfile(member, BytesIO(content))


def unpack(archive_path: Path, folder: Path) -> Path:
    """Put an archived store into a folder that does not exist yet."""
    folder.mkdir(mode=0o700)
    with tarfile.open(archive_path) as archive:
        for name in FILES:
            content = archive.extractfile(name)
            assert content is not None
            (folder / name).write_bytes(content.read())
    return folder


def main() -> None:
    """Make the store of this tree's format version."""
    target = STORES / f"{FORMAT_VERSION}.tar.xz"
    if target.exists():
        sys.exit(f"{target} is there; stores of a released format never change")
    seals_short_runs = patch.object(sealing, "DUE_EVENTS", FREQUENCY)
    with TemporaryDirectory() as temporary, slow_clock(), seals_short_runs:
        folder = Path(temporary) / "store"
        with Store.open(folder, snapshot_frequency=FREQUENCY) as store:
            write_story(store)
        with Store.open(folder, create=False) as store:
            report = store.check()
            assert report.ok, report.findings
            assert store.stats()["hot_events"] == store.last_position - HOT_TABLE_POSITIONS
            facts = describe(store)
            lines = [line for line in export(store) if json.loads(line)["session"] in LINES]
        pack(folder, target)
    target.with_suffix("").with_suffix(".jsonl").write_text(
        "".join(line + "\n" for line in lines), encoding="utf-8"
    )
    target.with_suffix("").with_suffix(".json").write_text(
        json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
