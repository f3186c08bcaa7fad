"""Named places where a test may make the code fail, stop or die.

A failpoint that nobody set costs one comparison with None. Product code calls ``fp(name)``; only
tests set actions.

Invariants:
    1. ``NAMES`` is closed: setting or passing another name is an error, so a test can ask that
       each one is hit.
    2. Nothing here runs unless an action was set in this process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NoReturn

from eventlog.errors import UsageError
from eventlog.seams import CLOCK

Action = Callable[[], object]

NAMES: Final = frozenset(
    {
        "commit.before_begin",  # the writer has a batch and no transaction yet
        "commit.after_puts",  # everything is put, the commit record is not
        "commit.before_commit",  # the transaction is whole and not durable
        "commit.after_commit",  # durable, memory not merged yet
        "commit.before_ack",  # merged, nobody told
        "rollup.after_segment",  # a segment is put, its session row is not
        "rollup.after_state",  # rows of inline projections are put, the activity row is not
        "removal.after_row",  # a session's events are void, what is left to remove is noted
        "removal.after_slice",  # a part of it is removed, the commit record is not put
        "redaction.after_records",  # events are redacted, what they named is not released
        "redaction.after_slice",  # a slice is written, the commit record is not
        "rebuild.after_slice",  # a part of a table's next generation is put
        "rebuild.before_swap",  # it is complete, the old one empty, the commit record not put
        "merge.after_segments",  # merged segments are put, their sessions' rows are not
        "dictionary.after_put",  # a new dictionary is put, the commit record is not
        "cut.after_drop",  # a hot table is emptied, the commit record is not
        "create.before_rename",  # the new store is whole, under its temporary name
        "create.after_rename",  # it has its name, the parent folder is not synced
        "stage.before_rename",  # a backup or restored store is whole, under its temporary name
        "stage.after_rename",  # it has its name, the parent folder is not synced
        "backup.after_copy",  # the data file is copied, there is no marker yet
        "vacuum.before_rename",  # the new data file is whole, the store has the old one
        "vacuum.after_rename",  # it has the new one, the rename is not durable
        "upgrade.after_marker",  # the marker names the new version, the rows are of the old one
        "upgrade.after_commit",  # both are of the new one
        "fence.before_commit",  # a suspect store was opened again, its fence is not durable
        "catchup.after_begin",  # a write transaction began, others' commits are not read yet
        "read.after_view",  # a reader took the loose view and has no transaction yet
        "blob.after_chunks",  # chunks of a content are put, its row or pending row is not
        "blob.after_row_removed",  # a blob's row is deleted, its chunks are not
        "list.after_view",  # a listing has its transaction and has not looked at memory yet
    }
)

_active: Mapping[str, Action] | None = None


def fp(name: str) -> None:
    """Run the action set for this place, if there is one."""
    if _active is not None:
        assert name in NAMES, name
        action = _active.get(name)
        if action is not None:
            action()


def set_failpoints(actions: Mapping[str, Action] | None) -> None:
    """Replace all actions; None or an empty mapping switches every failpoint off.

    Raises:
        UsageError: A name is not in ``NAMES``.
    """
    global _active
    for name in actions or ():
        if name not in NAMES:
            raise UsageError(f"there is no failpoint {name!r}", hint="See failpoints.NAMES.")
    _active = dict(actions) if actions else None


@contextmanager
def failpoints(actions: Mapping[str, Action]) -> Iterator[None]:
    """Set actions for the body of a ``with`` and put the earlier ones back after it."""
    before = _active
    set_failpoints(actions)
    try:
        yield
    finally:
        set_failpoints(before)


def raise_(error: BaseException | type[BaseException]) -> Action:
    """An action that raises."""

    def action() -> NoReturn:
        raise error

    return action


def kill() -> Action:
    """An action that ends this process at once, as ``kill -9`` does."""

    def action() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return action


def sleep(seconds: float) -> Action:
    """An action that stops the thread for a time, so that others run into the gap."""

    def action() -> None:
        CLOCK.sleep(seconds)

    return action
