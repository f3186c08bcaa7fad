"""Processes that want to append to the same tip."""

from __future__ import annotations

import json
from pathlib import Path

from engine import Store
from eventlog.errors import AppendConflictError

CALL = "call"


def grow(path: str, slot: str, count: int, won: str) -> None:
    """Append so often on the tip that was read; write down each sequence won, and each conflict.

    Every third append says its parent too, so that a branch would open were it let through late.
    """
    sequences: list[int] = []
    lost: list[tuple[int, int]] = []
    with Store.open(path) as store:
        call = store.session(CALL)
        while len(sequences) < count:
            info = call.info()
            tip = -1 if info is None or info.head is None else info.head
            number = len(sequences)
            parent = tip if number % 3 == 0 else None
            try:
                ack = call.append({"by": [slot, number]}, expected_head=tip, parent=parent)
                sequences.append(ack.result().last)
            except AppendConflictError as error:
                lost.append((tip, error.current))
    Path(won).write_text(json.dumps({"won": sequences, "lost": lost}))
