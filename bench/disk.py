"""Fill a store and SQLite with the same conversations, and see what each takes on disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.sqlite_file import SqliteFile
from bench.workloads import Conversation, live_batches
from engine import Ack, Store

PAUSE_EVENTS: Final = 2_048
_BATCHES_AHEAD: Final = 8  # batches that wait for the writer while the next one is encoded


def fill_store(
    path: Path, conversations: Sequence[Conversation], live: int, *, pauses: bool
) -> None:
    """Write conversations as ``live`` of them at a time, one atomic batch a round, and close.

    Everything is durable on return, and the sealing that was due is done.

    Args:
        path: Where the store is made.
        conversations: Taken in order.
        live: How many go on at once.
        pauses: Let the store have, every ``PAUSE_EVENTS``, the moment without appends that calls
            at their own pace leave it thousands of times in that stretch. Without it, the file
            keeps the room of the hot log of a long burst.
    """
    pending: deque[Ack] = deque()
    since_pause = 0
    with Store.open(path) as store:
        for batch in live_batches(conversations, live):
            parts = [store.session(turn.session).draft([turn.message]) for turn in batch]
            pending.append(store.append_batch(parts))
            if len(pending) > _BATCHES_AHEAD:
                pending.popleft().result()
            since_pause += len(batch)
            if pauses and since_pause >= PAUSE_EVENTS:
                store.flush()
                since_pause = 0
        for ack in pending:
            ack.result()
        store.flush()


def fill_sqlite(path: Path, conversations: Sequence[Conversation], live: int) -> tuple[int, int]:
    """The same batches into one SQLite file.

    Returns:
        Its bytes with the WAL checkpointed, and those after ``VACUUM``.
    """
    with SqliteFile(path) as rows:
        for batch in live_batches(conversations, live):
            rows.append(batch)
        rows.checkpoint()
        written = path.stat().st_blocks * 512  # what SQLite keeps beside it goes when it closes
        rows.vacuum()
    return written, bytes_on_disk(path.parent)


def bytes_on_disk(directory: Path) -> int:
    """What the files below a directory take, in whole blocks; holes take nothing."""
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file())
