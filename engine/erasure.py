"""Erasure: a session was deleted, and what it held is removed from every live record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.hiddennames import session_words
from engine.projections import PROJECTIONS
from eventlog.ack import Ack
from eventlog.blobcollect import Collection
from eventlog.errors import CorruptionError, FormatVersionError
from eventlog.keys import is_hidden
from eventlog.limits import CLOSE_DEADLINE_MS
from eventlog.log import Log
from eventlog.overwriting import OverwriteVoid
from eventlog.place import FORMAT_VERSION
from eventlog.reclaim import Reclaim
from eventlog.removal import REMOVAL_VERSION
from eventlog.rows import HELD
from eventlog.seams import CLOCK


@dataclass(frozen=True, slots=True)
class ErasureReceipt:
    """What an erasure reached.

    Attributes:
        tenant: The tenant's name.
        what: What was erased, in words: the session by its name, or what else it was, such as
            ``documents of user 'u7'``.
        session: The session's name, which is free again; None where it was no session that a caller
            named.
        number: Number of the incarnation that is gone.
        event_count: Events that it held, its tombstone not counted.
        position: Position of the tombstone, its last event.
        is_live: Whether a live record still holds any of it: only where ``dictionaries`` or
            ``has_held_blobs`` say so. A content that other sessions name too is theirs: it stays,
            and is not told.
        is_in_file: Whether the data file may still hold old pages of it; True until ``vacuum``.
        backups: What became of copies of the store.
        dictionaries: Numbers of the compression dictionaries that may quote it until ``vacuum``.
        has_held_blobs: Whether a content that it named stays, because somebody put the same content
            again and no event named it since; it goes within the hour, unless one does. Of what a
            purge of the session met so it is told too, and may be gone by then.
    """

    tenant: str
    what: str
    session: str | None
    number: int
    event_count: int
    position: int
    is_live: bool = False
    is_in_file: bool = True
    backups: str = "backups and other copies of the store were not touched"
    dictionaries: tuple[int, ...] = ()
    has_held_blobs: bool = False


def require_removal(log: Log, what: str = "remove events") -> None:
    """Raise for a store of a format version that cannot remove events.

    Args:
        log: The store.
        what: What it cannot do.
    """
    if log.environment.version < REMOVAL_VERSION:
        raise FormatVersionError(
            f"a store of format version {log.environment.version} cannot {what}",
            found=log.environment.version,
            supported=FORMAT_VERSION,
            hint="Upgrade it: turnlog upgrade.",
        )


def erase(log: Log, ack: Ack, timeout: float | None) -> ErasureReceipt:
    """Wait for a tombstone and remove everything below it.

    Args:
        log: The log.
        ack: The ack of the tombstone.
        timeout: Seconds for all of it; None waits for ever.

    Raises:
        TimeoutError: Not done in time.
        TurnlogError: The tombstone was refused; nothing is erased.
    """
    end_us = None if timeout is None else CLOCK.monotonic_us() + int(timeout * 1e6)
    done = ack.result(timeout)
    left_s = None if end_us is None else max(0.0, (end_us - CLOCK.monotonic_us()) / 1e6)
    environment = log.environment
    reclaim = Reclaim(done.session_number, log.index, log.writer.pause, lambda: environment.is_low)
    log.writer.run(reclaim, left_s)
    with log.views.transaction() as tables:
        epoch = tables.commit_record().epoch
        quoting = tables.dictionaries_of({done.session_number})
        has_held_blobs = bool(tables.load_row(done.session_number).flags & HELD)
    log.cache.begin(epoch)  # and folds; a read under way from before keeps nothing
    return ErasureReceipt(
        tenant=ack.name[0],
        what=session_words(ack.name[1]),
        session=None if is_hidden(ack.name[1]) else ack.name[1],
        number=done.session_number,
        event_count=done.last,
        position=done.position,
        is_live=bool(quoting) or has_held_blobs,
        dictionaries=tuple(quoting),
        has_held_blobs=has_held_blobs,
    )


def finish_removals(path: Path) -> None:
    """Remove what deletions, erasures and purges left in a store, also those of killed processes.

    Void hot records are overwritten, as if their sessions had been erased.

    Raises:
        CorruptionError: What is left of a session cannot be removed, because it is damaged.
        TurnlogError: As by opening.
    """
    log = Log.open(path, create_new=False, projections=PROJECTIONS)
    try:
        if log.environment.version < REMOVAL_VERSION:
            return
        log.flush(None)
        overwrite = OverwriteVoid(log.index, log.writer.pause, lambda: log.environment.is_low)
        log.writer.run(overwrite)
        log.flush(None)
        log.writer.run(Collection(log.writer.pause))
        for number, reason in log.writer.composer.stuck.items():
            raise CorruptionError(f"cannot be removed: {reason}", where=f"session number {number}")
    finally:
        log.close(CLOSE_DEADLINE_MS / 1000)
