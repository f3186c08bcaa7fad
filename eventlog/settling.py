"""Settling: all events but the newest sealed, merged and cut, before a store's file is rewritten.

What is loose takes three times the room that it takes in segments, and as records they stay what
they are when the file is copied row by row. Up to 1,023 events have to stay in the hot log, as an
order block is of 1,024 positions (4,095 in a store of format version 1).

Then each tenant gets a dictionary of what it has by now, where that is better than the one that it
got beside appends, from its first MiB, or than none: the rewrite compresses all of it anew anyway.

Invariants:
    1. Physical only, in transactions of their own: killed at any moment, the store is as it was.
    2. Where anybody else has the store open, nothing is done; the rewrite itself tells of that.
    3. What damage or a full disk keeps from being sealed stays loose.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from eventlog.errors import BusyError
from eventlog.inline import InlineProjection
from eventlog.limits import (
    ALONE_DEADLINE_MS,
    CLOSE_DEADLINE_MS,
    DICTIONARIES_AGAIN_MAX,
    DICTIONARIES_MAX,
)
from eventlog.log import Log
from eventlog.recoding import recoding_of
from eventlog.training import ALL

TRAINING_DEADLINE_S: Final = 60.0


def settle(path: str | os.PathLike[str], projections: Sequence[InlineProjection]) -> int:
    """Seal, merge and cut what can be, in a store that nobody has open.

    Args:
        path: The store.
        projections: Whose rows are written with what is sealed.

    Returns:
        Size of its data file before; 0 when this process has it open.

    Raises:
        NotAStoreError, FormatVersionError, ReadOnlyError, CorruptionError, StoreUnavailableError:
            As by opening.
    """
    if Log.is_open_here(path):
        return 0
    log = Log.open(os.fspath(path), projections=projections, create_new=False, verify=True)
    try:
        before = log.environment.file_bytes()
        with suppress(BusyError), log.environment.alone(ALONE_DEADLINE_MS):
            log.seal_all()
            if log.options.dictionaries:
                _train_all(log)
        return before
    finally:
        log.close(CLOSE_DEADLINE_MS / 1_000)


def _train_all(log: Log) -> None:
    """Train a dictionary for each tenant, one after the other, while there are numbers left."""
    trainer = log.trainer
    if not trainer.wait(TRAINING_DEADLINE_S):  # what was sealed may have set one off
        return
    with log.views.transaction() as tables:
        tenants = tables.commit_record().tenants_made
        known = recoding_of(tables)
    newest = {each.row.tenant_number: number for number, each in sorted(known.dictionaries.items())}
    for tenant_number in range(1, tenants + 1):
        number = newest.get(tenant_number, 0)
        with log.views.transaction() as tables:
            made = tables.commit_record().dictionaries_made
        if made >= (DICTIONARIES_AGAIN_MAX if number else DICTIONARIES_MAX):
            continue
        trainer.start(tenant_number, number, is_stale=number in known.stale, aim=ALL)
        if not trainer.wait(TRAINING_DEADLINE_S):
            return
