"""What a redaction promises: that nothing is said any more."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine import CorruptionError, Store

HANG_S = 60.0
SECRET = "geheimnis-4711"


def ask(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"{SECRET} {number}"}


def live_in(store: Store) -> set[str]:
    """Names of the tables in which a row holds the secret."""
    with store._log.views.transaction() as tables:
        return {
            name
            for name in tables.tables
            for key, value in tables.transaction.cursor(db=tables.tables[name])
            if SECRET.encode() in bytes(key) + bytes(value)
        }


def test_what_a_purge_removed_before_is_not_left_by_a_redaction(
    checked_store: Callable[..., Store],
) -> None:
    """A purge leaves hot records until their table is cut, and a redaction passed over those.

    The receipt said that nothing of them was live, and a vacuum took them along.
    """
    store = checked_store()
    session = store.session("call")
    for number in range(8):
        session.append(ask(number), metadata={"of": SECRET}).result(HANG_S)
    store.flush(HANG_S)
    session.purge(4).result(HANG_S)
    receipt = session.redact(0, 7)
    assert (receipt.void_count, receipt.event_count) == (4, 4)
    left = live_in(store)
    assert receipt.is_live or not left, f"the receipt says that nothing is live, but {left} is"
    store.close()
    Store.vacuum(store.path)
    assert SECRET.encode() not in (store.path / "data.mdb").read_bytes()


def test_a_read_in_the_moment_of_the_first_look_gives_no_redacted_body(
    checked_store: Callable[..., Store],
) -> None:
    """The epoch was known before all had forgotten what was from before it.

    A second thread of that epoch was told that there was nothing to forget, and took the newest
    messages from memory.
    """
    store = checked_store(snapshot_frequency=4)
    session = store.session("call")
    for number in range(8):
        session.append(ask(number)).result(HANG_S)
    store.flush(HANG_S)
    session.redact(0, 0)
    store.session("other").append({"role": "user"}).result(HANG_S)
    for _ in range(2):
        assert session.history(2) == [ask(6), ask(7)]  # now memory has them by themselves
    code = (
        "import sys; from engine import Store\n"
        "with Store.open(sys.argv[1], create=False) as store:\n"
        "    assert store.session('call').redact(6, 7).event_count == 2"
    )
    subprocess.run([sys.executable, "-c", code, str(store.path)], check=True, timeout=HANG_S)
    seen: list[Any] = []
    beside: list[threading.Thread] = []

    def read_beside(epoch: tuple[int, int]) -> None:
        """Another thread reads while this one is between the epoch and the others."""
        beside.append(threading.Thread(target=lambda: seen.append(session.history(2))))
        beside[0].start()
        beside[0].join(0.2)  # it waits, or has read

    store._log.cache.on_begin.insert(0, read_beside)
    try:
        assert session.history(2) == [None, None]
    finally:
        store._log.cache.on_begin.remove(read_beside)
    beside[0].join(HANG_S)
    assert seen == [[None, None]]


def test_damage_behind_the_range_does_not_keep_it_from_being_said(tmp_path: Any) -> None:
    """Summaries are looked for behind the range: what was damaged there kept it from being said."""
    store = Store.open(tmp_path / "damaged", snapshot_frequency=4)
    session = store.session("call")
    for number in range(8):
        session.append(ask(number)).result(HANG_S)
    store.flush(HANG_S)
    session.append_event("compaction", {"summary": "s", "data": {"through": 0}}).result(HANG_S)
    for number in range(8, 16):
        session.append(ask(number)).result(HANG_S)
    store.flush(HANG_S)

    class Break:
        """A task that flips a bit of the segment that holds the compaction."""

        done = False

        def step(self, tables: Any, record: Any) -> Any:
            keys = [
                (key, value)
                for key, value in tables.rows("segment")
                if int.from_bytes(key[8:], "big") >= 8
            ]
            key, value = keys[0]
            broken = value[:-1] + bytes([value[-1] ^ 1])
            tables.transaction.put(key, broken, db=tables.tables["segment"])
            self.done = True
            return record

    store._log.writer.run(Break())
    store.close()
    with Store.open(tmp_path / "damaged") as store:
        session = store.session("call")
        for _ in range(2):
            with pytest.raises(CorruptionError):
                session.redact(1, 2)
        assert [session.event(sequence).redacted for sequence in (1, 2)] == [True, True]
        last = session.info().last_sequence  # type: ignore[union-attr]
        assert last > 16, "it was redacted, and no event says so"
        assert session.event(last).kind == "redaction"
