"""Fill a store for the benchmarks that read: many events fast, over interleaved sessions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from bench.workloads import Message
from engine import Ack, Part, Store

BATCH_EVENTS: Final = 1_024  # one atomic batch: a commit of this size costs little per event
_BATCHES_AHEAD: Final = 8  # batches that wait for the writer while the next one is encoded


def fill(
    store: Store,
    names: Sequence[str],
    order: Sequence[int],
    messages: Sequence[Message],
    *,
    batch_events: int = BATCH_EVENTS,
) -> None:
    """Append ``messages[i % len(messages)]`` to session ``names[order[i]]`` for each i, in order.

    Everything is durable on return, and the sealing that it made due is done.
    """
    sessions = [store.session(name) for name in names]

    def drafts() -> Iterator[Part]:
        for index, number in enumerate(order):
            yield sessions[number].draft([messages[index % len(messages)]])

    pending: deque[Ack] = deque()
    source = drafts()
    while batch := list(islice(source, batch_events)):
        pending.append(store.append_batch(batch))
        if len(pending) > _BATCHES_AHEAD:
            pending.popleft().result()
    for ack in pending:
        ack.result()
    store.flush()
