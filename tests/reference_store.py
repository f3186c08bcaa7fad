"""A small store that holds every type of row and record, for tests that damage it.

A dictionary takes a mebibyte of content and a long removal takes thousands of rows; ``lowered``
brings the limits that say so down, in the process that makes the store. Readers need none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from engine import Store
from eventlog.errors import TurnlogError, UsageError
from eventlog.failpoints import failpoints
from eventlog.limits import KIB, MIB

FREQUENCY: Final = 6
HANG_S: Final = 60.0
WORDS: Final = (
    "please order number flight hotel thank you sure when would like room price booking which "
    "city leaving date return passengers confirm reservation restaurant table people time"
).split()
SPECIAL: Final = (  # sessions that are read in every way
    ("", "loose"),
    ("", "hard"),
    ("acme", "purged"),
    ("acme", "state"),
    ("été", "a\x00b/../😀"),
    ("acme", "bulk"),
    ("acme", "blobs"),
)
KEYED: Final = ("acme", "state", "k-3", {"n": 3})  # appended before: tenant, session, key, message
NAMED: Final = ("acme", "bulk", "id-5")  # an id that was cut: tenant, session, id


@contextmanager
def lowered() -> Iterator[None]:
    """Small limits for the body: a dictionary from 64 KiB on."""
    from eventlog import dictionary, training

    with (
        patch.object(training, "TRAIN_BYTES", 64 * KIB),
        patch.object(training._Tally.__init__, "__defaults__", (0, 0, 64 * KIB)),
        patch.object(dictionary, "DICTIONARY_BYTES_MIN", KIB),
        patch.object(dictionary, "SAMPLES_PER_DICTIONARY", 16),
    ):
        yield


def said(random: Random, words: int = 10) -> dict[str, Any]:
    """A message."""
    return {"role": "user", "content": " ".join(random.choices(WORDS, k=words))}


def make(path: Path) -> None:
    """Make it; the process must not have lowered limits otherwise."""
    random = Random(7)
    with lowered(), Store.open(path, snapshot_frequency=FREQUENCY, max_messages=500) as store:
        _train(store, random)
        _fill(store, random)
        _write_sessions(store, random)
        store.flush()
        _remove(store, random)
        _write_blobs(store, random)
        store.flush()
        store._log.writer.composer.merges.note = lambda _: None  # type: ignore[method-assign]
        _write_loose(store, random)
    Store.vacuum(path)  # free pages are not what is to be damaged; what follows leaves some
    _leave_pending(path, random)
    with Store.open(path, create=False, read_only=True) as store:  # or closing removes the rest
        report = store.check()
        assert report.ok, report.findings


def _train(store: Store, random: Random) -> None:
    """Short dialogues of which a dictionary is made, and more that use it."""
    acme = store.tenant("acme")
    for number in range(48):
        session = acme.session(f"call-{number}")
        session.append_many([said(random, 40) for _ in range(FREQUENCY)]).result()
        if number == 43:
            store.flush()
            assert store._log.trainer.wait(HANG_S)
    store.flush()
    assert len(store.stats()["dictionaries"]) == 1, store._log.trainer.problem


def _fill(store: Store, random: Random) -> None:
    """Enough positions for hot tables to be cut; ids in them, so that there are id runs.

    Most of them are deleted before: voids cost a reader less than events.
    """
    acme = store.tenant("acme")
    bulk = acme.session("bulk", user_id="u")
    for half in range(2):
        bulk.append_many(
            [{"role": "user", "content": f"{place % 7}"} for place in range(50)],
            ids=[f"id-{50 * half + place}" if place % 5 == 0 else None for place in range(50)],
            idempotency_key=f"bulk {half}",
        ).result()
    void = acme.session("void")
    void.append_many([{"n": place % 7} for place in range(3_720)])
    void.delete().result()
    store.flush()


def _write_sessions(store: Store, random: Random) -> None:
    """Every kind of event, metadata, ids, keys, variables, roll-ups that trim; several tenants."""
    from tests.format.make_store import ALL_KINDS, HARD_BODY

    hard = store.session("hard", title="T \ud83d", user_id="u", metadata={"plan": [1, b"x"]})
    hard.create().result()
    hard.append(
        HARD_BODY,
        id="hard",
        metadata={"b": "\ud800"},
        time_us=-1,
        tokens=7,
        run_id="run",
        turn_id="turn",
        speech_id="speech",
        request_id="request",
        idempotency_key="hard-key",
    ).result()
    for kind in ALL_KINDS:
        hard.append_event(kind, {"of": kind}).result()
    hard.append_event("my.own.kind", [1, "two", None], id="own").result()
    for role in ("system", "assistant", "tool", "developer"):
        hard.append({"role": role, "content": role}).result()
    hard.append({"role": "user", "content": "".join(random.choices("abcdefgh", k=6_000))}).result()
    hard.roll_up().result()
    state = store.tenant("acme").session("state", snapshot_frequency=6, max_messages=4)
    for number in range(30):
        state.append({"n": number}, idempotency_key=f"k-{number}").result()
        state.update_state(
            {f"v{number % 5}": [number, "\udc00"], "last": number}, delete=[f"v{(number + 2) % 5}"]
        ).result()
    odd = store.tenant("été").session("a\x00b/../😀")
    plain = store.tenant("été").session("plain")
    store.tenant("été").append_batch(
        [odd.draft([{"n": 1}]), plain.draft([{"n": 2}], events=[("event", 2.5)])]
    ).result()
    for _ in range(3):  # single segments beside merged ones
        odd.append_many([said(random) for _ in range(FREQUENCY)]).result()


def _remove(store: Store, random: Random) -> None:
    """A deleted, an erased and a purged session."""
    acme = store.tenant("acme")
    for name in ("deleted", "erased", "purged"):
        session = acme.session(name, title=name)
        for number in range(6):
            session.append_many(
                [said(random) for _ in range(FREQUENCY)], idempotency_key=f"{number}"
            ).result()
            session.update_state({"at": number}).result()
    store.flush()
    for name in ("deleted", "erased"):
        acme.session(name).append({"n": "loose"}).result()
    acme.session("deleted").delete().result()
    acme.session("erased").erase(HANG_S)
    acme.session("purged").purge(9).result()
    store.flush()


def _write_blobs(store: Store, random: Random) -> None:
    """A raw one, one of several compressed chunks, one that nothing names, one that is half put."""
    blobs = store.tenant("acme").blobs
    raw = blobs.put(random.randbytes(5_000), media_type="image/png")
    large = blobs.put(b"all of it the same " * (2 * MIB // 19), media_type="text/plain")
    session = store.tenant("acme").session("blobs")
    session.append({"role": "user", "content": "look"}, blobs=[raw, large]).result()
    session.append({"role": "user", "content": "again"}, blobs=[raw]).result()
    blobs.put(b"nobody names this " * 100)
    upload = blobs._begin_upload(None)
    upload.add(bytes(5 * MIB))
    assert store.stats()["blobs"]["unfinished"] == 1


def _write_loose(store: Store, random: Random) -> None:
    """Sealed into single segments, loose and hot."""
    loose = store.session("loose", title="Loose")
    loose.append_many([said(random) for _ in range(3)], idempotency_key="loose").result()
    loose.append({"role": "user", "content": "named"}, id="loose-4").result()
    loose.update_state({"a": 1, "b": {"c": b"2"}}).result()
    later = store.tenant("acme").session("state")
    later.append({"n": "later"}).result()
    later.update_state({"last": "later"}, delete=["v4"]).result()


def _leave_pending(path: Path, random: Random) -> None:
    """A rebuild that was stopped, and a removal of which nothing is done; an append is last."""
    from eventlog import rebuild, reclaim

    with Store.open(path) as store:

        def stop() -> None:
            with store._log.views.transaction() as tables:
                if tables.row_count("spare"):
                    raise UsageError("half of it is enough")

        session = store.tenant("acme").session("half deleted")
        for number in range(4):
            session.append_many(
                [said(random) for _ in range(FREQUENCY)], idempotency_key=f"{number}"
            ).result()
            store.flush()
        with (
            patch.object(rebuild, "STEP_SESSIONS_MAX", 10),
            failpoints({"rebuild.after_slice": stop}),
            suppress(UsageError),
        ):
            store.rebuild()
        with patch.object(reclaim, "COMMIT_REMOVED_MAX", 0):
            session.delete().result()
            store.session("loose").append({"role": "user", "content": "the last"}).result()
            with suppress(TurnlogError):
                store.close(1.0)
