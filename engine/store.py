"""The store: open, tenants, sessions, reads over all sessions, and its state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from threading import TIMEOUT_MAX
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from engine.blobs import Blobs, collect_blobs
from engine.catalog import catalog_of
from engine.closedlog import ClosedLog
from engine.contents import export_lines
from engine.drafting import AckMode, Part, make_batch_ack
from engine.events import Event
from engine.fold import folds_of
from engine.following import Following
from engine.forgetting import Forgetting, ForgettingTenants
from engine.listed import Listed, ListedOfAll
from engine.loading import Loader, LoadResult
from engine.owners import Owning
from engine.projecting import Projecting
from engine.projections import PROJECTIONS
from engine.rebuilding import RebuildReport, rebuild
from engine.receipt import Receipt
from engine.retention import Retaining
from engine.salvage import Lost, salvage_lines
from engine.session import Session
from engine.telling import telling
from engine.upkeep import Upkeep
from engine.values import rows_of
from eventlog.ack import Ack
from eventlog.arguments import callback, folder, items, iterable, seconds
from eventlog.check import CheckReport
from eventlog.check import check as check_log
from eventlog.errors import (
    CorruptionError,
    FormatVersionError,
    OverloadedError,
    TurnlogError,
    UsageError,
)
from eventlog.keys import name_bytes
from eventlog.limits import (
    CLOSE_DEADLINE_MS,
    COMMIT_EVENTS_MAX,
    LOCK_DEADLINE_MS,
    MAP_BYTES,
    POOL_THREADS,
)
from eventlog.log import Log
from eventlog.recount import OnProgress
from eventlog.stats import KINDS as KINDS
from eventlog.stats import log_stats

P = ParamSpec("P")
T = TypeVar("T")

REJECTED_KEPT: Final = 1_000
CLOSE_DEADLINE_S: Final = CLOSE_DEADLINE_MS / 1000

OnRejected = Callable[[Ack, TurnlogError], object]
"""Called with the ack of a refused append and its error."""


class Tenant(Listed, Owning, Following, Retaining, Forgetting):
    """One tenant's world: its sessions, and nothing of any other tenant."""

    name: str
    _store: Store

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.name = name

    def session(
        self,
        name: str,
        *,
        user_id: str | None = None,
        title: str | None = None,
        metadata: dict[str, Any] | None = None,
        snapshot_frequency: int | None = None,
        max_messages: int | None = None,
        account_id: str | None = None,
        agent_id: str | None = None,
        workspace: str | None = None,
    ) -> Session:
        """A handle on a session; no I/O.

        Args:
            name: 1 to 512 UTF-8 bytes; any characters but lone surrogates.
            user_id: The user, noted if this creates the session.
            title: A title, likewise.
            metadata: Plain data, likewise.
            snapshot_frequency: The session's own option in place of the store's, likewise.
            max_messages: Likewise.
            account_id: The account, likewise.
            agent_id: The agent, likewise.
            workspace: The workspace, likewise.
        """
        name_bytes(name, "session name")
        return Session(
            self._store,
            self.name,
            name,
            user_id,
            title,
            metadata,
            snapshot_frequency,
            max_messages,
            account_id,
            agent_id,
            workspace,
        )

    @property
    def blobs(self) -> Blobs:
        """This tenant's large contents, kept once each and apart from events; no I/O."""
        return Blobs(self._store, self.name)

    def append_batch(self, parts: Sequence[Part], *, ack: AckMode = "durable") -> Ack:
        """Append to several sessions of this tenant atomically, with contiguous positions.

        Args:
            parts: What ``session.draft(...)`` gave; a part without events is a condition only.
            ack: See ``Session.append``.
        """
        given = items(parts, "parts")
        batch = make_batch_ack(given, mode=ack)
        if batch.name[0] != self.name:
            raise UsageError(f"session {batch.name[1]!r} belongs to another tenant")
        self._store._submit(batch, None)
        return batch

    def load(
        self, lines: Iterable[Mapping[str, Any]], *, piece_events: int = COMMIT_EVENTS_MAX
    ) -> LoadResult:
        """Append export lines (``engine.export``), committed in pieces; can be repeated.

        Lines that the store holds already are skipped, and so are those of events that were purged
        from a session that it holds, which do not come back: delete it first, or load them into
        another store. A line without a sequence follows the line
        before it of the same session, counted from 0 in this load; one without ``recorded_us`` is
        recorded now, whatever its ``time_us``, and its session's activity is of now. Blocks until
        all is durable.

        Args:
            lines: Mappings as ``json.loads`` gives an export's lines; sessions may interleave.
            piece_events: Events per piece, 1 to 16,384.

        Raises:
            DamagedInputError: A line is malformed; pieces before it are in.
            AppendConflictError: The store holds something else at a line's place.
            ConflictError: An alias of a loaded session leads to another one of the store; all
                lines are in.
        """
        return Loader(self._store, self.name, piece_events).load(lines)

    def export_lines(self, events: Iterable[Event]) -> Iterator[str]:
        """The lines of an export (``engine.export``), lazily, without their newlines.

        A blob that events of a session name comes before the first of them, in lines of its own
        (``engine.contents``), so that the lines can be loaded into any store.

        Args:
            events: What ``events`` and ``read`` gave, of this store.

        Raises:
            UsageError: They are no events.
            CorruptionError: An event or a blob is damaged.
            TrimmedError: Events were purged between reading and exporting them, and the lines that
                are left would not make a session; read them again.
            SessionGoneError: Likewise, of a session that was deleted, unless its lines begin with
                its first event.
        """
        return export_lines(self._store._log, iterable(events, "events"))

    def _scope(self) -> str | None:
        return self.name


class Store(ListedOfAll, ForgettingTenants, Tenant, Projecting, Upkeep):
    """An open store; also the tenant without a name. Make it with ``Store.open``.

    Safe to use from any thread and any event loop. A second open of the same path in a process
    shares its environment; ``close`` gives up one use.
    """

    def __init__(self, log: Log, path: Path, on_rejected: OnRejected | None) -> None:
        super().__init__(self, "")
        self.path = path
        self._log = log
        self._on_rejected = on_rejected
        self._rejected: list[tuple[Ack, TurnlogError]] = []
        self._executor: ThreadPoolExecutor | None = None
        self._executor_lock = threading.Lock()
        self._executor_ended = False
        self._closed = False
        self._folds = folds_of(log)
        self._rows = rows_of(log)
        self._catalog = catalog_of(log)
        self._facts = self._catalog.present
        self._forget = log.listen_refused(self._refused)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        create: bool = True,
        read_only: bool = False,
        min_position: int | None = None,
        store_id: str | None = None,
        snapshot_frequency: int | None = None,
        max_messages: int | None = None,
        quota_bytes: int | None = None,
        dictionaries: bool | None = None,
        on_rejected: OnRejected | None = None,
        verify: bool = False,
        allow_network: bool = False,
        lock_deadline_ms: int = LOCK_DEADLINE_MS,
        map_bytes: int = MAP_BYTES,
    ) -> Store:
        """Open a store, or create it. Writes nothing to a store that exists.

        Args:
            path: A directory that is a store or does not exist yet.
            create: Create it when it does not exist.
            read_only: Refuse writes; works on a read-only file system.
            min_position: A position that was acknowledged; a store that ends before it was rolled
                back.
            store_id: ``store_id`` of the store that acknowledged it: also refuses a store that was
                restored from an older backup of that one, or is another.
            snapshot_frequency: Messages after which a session is rolled up, counted at the end of
                an append; stored at creation, as are the next three, and changed by ``configure``.
                Default 25.
            max_messages: Messages that a session's view keeps at each roll-up; None keeps all.
            quota_bytes: Bytes of pages from which appends are refused.
            dictionaries: Compress each tenant's sealed events with what its sessions have in
                common; False keeps every sentence in its own session's rows. On by default.
            on_rejected: Called, on the store's pool, for each append that was refused after it was
                accepted, if it was ``ack="queued"`` or nobody waited for its ack: with the ack and
                the error.
            verify: Walk the whole structure of the file before it is mapped.
            allow_network: Accept a network file system, where locks may not work.
            lock_deadline_ms: How long a commit waits for another process's lock.
            map_bytes: Address space of the memory map; costs no disk.

        Raises:
            NotAStoreError: There is something else at the path, or nothing and ``create`` is False.
            FormatVersionError: Made by a newer release.
            CorruptionError: Damaged, truncated, behind ``min_position``, or not of ``store_id``.
            StoreUnavailableError: The environment refuses; the hint says what to change.
            UsageError: An option makes no sense, or differs from the stored one. Also when the
                store is open in this process already, with another ``read_only``,
                ``lock_deadline_ms``, ``map_bytes`` or ``allow_network``, or without the
                ``verify`` that is asked for now.
        """
        where = folder(path, "path")
        receipt = Receipt(min_position, store_id)
        callback(on_rejected, "on_rejected")
        wanted = {
            name: value
            for name, value in (
                ("snapshot_frequency", snapshot_frequency),
                ("max_messages", max_messages),
                ("quota_bytes", quota_bytes),
                ("dictionaries", dictionaries),
            )
            if value is not None
        }
        log = Log.open(
            where,
            projections=PROJECTIONS,
            create_new=create,
            read_only=read_only,
            wanted=wanted,
            verify=verify,
            allow_network=allow_network,
            lock_deadline_ms=lock_deadline_ms,
            map_bytes=map_bytes,
        )
        store = cls(log, where, on_rejected)
        try:
            receipt.require(log.environment.marker, store.last_position, str(path))
        except CorruptionError:
            store.close()
            raise
        return store

    def close(self, timeout: float | None = CLOSE_DEADLINE_S) -> None:
        """Commit what waits and close; twice is fine.

        Whatever reads or waits through this store is told ``StoreClosedError`` from then on,
        whoever else in the process has it open.

        Args:
            timeout: Seconds; what could not be committed by then is refused. None waits for ever.

        Raises:
            TurnlogError: The store is closed, but an append was refused and its caller was not
                told; as by ``flush``.
            BusyError: The store is closed, but its file only once the reads of it have ended that
                are still open, as around a callback of a backup.
        """
        self._close(timeout)
        self._raise_unheard()

    def _close(self, timeout: float | None) -> None:
        wait_s = seconds(timeout, "timeout")
        if self._closed:
            return
        self._closed = True
        log, self._log = self._log, ClosedLog(self._log)
        log.announce()  # who waits through this store waits no longer
        try:
            log.close(TIMEOUT_MAX if wait_s is None else wait_s)
        finally:
            self._forget()
            if not log.environment.is_forked:
                self._end_pool()

    def _end_pool(self) -> None:
        with self._executor_lock:
            self._executor_ended = True
            if self._executor is not None:
                self._executor.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(CLOSE_DEADLINE_S)
        if error is None:
            self._raise_unheard()

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def tenant(self, name: str) -> Tenant:
        """A tenant's world; the empty name is the store itself. No I/O."""
        if type(name) is str and not name:
            return self
        name_bytes(name, "tenant name")
        return Tenant(self, name)

    def tenants(self) -> list[str]:
        """Names of all tenants that have or had sessions or contents, oldest first.

        A tenant in which nothing is left but what the store keeps for itself, such as how far
        projections got and where aliases lead, is left out.
        """
        return self._log.views.tenant_names()

    def _scope(self) -> str | None:
        return None

    @property
    def store_id(self) -> str:
        """32 hex digits: which store this is. A backup has the same; a restored store has not."""
        return str(self._log.environment.marker.get("store_id", ""))

    # Waiting

    @property
    def last_position(self) -> int:
        """The newest committed position, of any process; 0 when the store is empty."""
        return self._log.views.last_position()

    def flush(self, timeout: float | None = None) -> int:
        """Block until every append accepted so far is durable or refused.

        While nothing else waits, sealing that is overdue is done too.

        Args:
            timeout: Seconds; None waits for ever.

        Returns:
            The last position.

        Raises:
            TimeoutError: Not in time.
            TurnlogError: The first append that was refused since the last flush and whose caller
                was not told: a queued one, or one whose ack nobody asked.
        """
        self._log.flush(seconds(timeout, "timeout"))
        return self._flushed()

    async def flush_async(self, timeout: float | None = None) -> int:
        """``flush`` from an event loop."""
        await self._log.flush_async(seconds(timeout, "timeout"))
        return self._flushed()

    def _flushed(self) -> int:
        self._raise_unheard()
        return self._log.views.last_position()

    def _raise_unheard(self) -> None:
        rejected, self._rejected = self._rejected, []
        unheard = [error for ack, error in rejected if ack.queued or ack.is_unheard]
        if unheard:
            error = unheard[0]
            if len(unheard) > 1:
                error.add_note(f"{len(unheard) - 1} more appends were refused")
            raise error.with_traceback(None)

    async def room(self) -> None:
        """Wait until the queue is less than half full."""
        await self._room_for(0)

    async def _room_for(self, byte_count: int) -> None:
        log = self._log
        if log.has_room(byte_count):
            return
        await log.wait_until_async(lambda: self._closed or log.has_room(byte_count))
        self._refuse_closed()

    @property
    def on_rejected(self) -> OnRejected | None:
        """Called for each queued append that was refused after it was accepted."""
        return self._on_rejected

    @on_rejected.setter
    def on_rejected(self, wanted: OnRejected | None) -> None:
        self._on_rejected = callback(wanted, "on_rejected")

    def _refused(self, refused_by_log: list[tuple[Ack, TurnlogError]]) -> None:
        # Another store of this process may share the log; it hears of its own appends.
        refused = [each for each in refused_by_log if each[0].owner is self]
        kept = max(0, REJECTED_KEPT - len(self._rejected))
        self._rejected += refused[:kept]
        listener = self._on_rejected
        if listener is not None and refused:
            with self._executor_lock:
                if self._executor_ended:
                    return  # too late for the listener; whoever holds the ack can still ask it
                try:
                    for ack, error in refused:
                        self._started().submit(listener, ack, error)
                except RuntimeError:
                    return  # the interpreter is ending; flush and close still tell

    # State

    def check(self) -> CheckReport:
        """Read everything and report what breaks ``FORMAT.md``; changes nothing."""
        return check_log(self._log)

    def rebuild(self, progress: OnProgress | None = None) -> RebuildReport:
        """Make everything derived anew from the log; blocks, while appends and reads go on.

        The old tables serve until the new ones are complete. One that was stopped goes on where
        it was when this is called again.

        Args:
            progress: Called on this thread after each step, with a table's name, the sessions that
                are through for it, and how many there are. Nothing is held meanwhile: it may
                append and wait. What it raises stops the rebuild and is raised here.

        Raises:
            FormatVersionError: The store has format version 1.
        """
        callback(progress, "progress")
        self._refuse_closed()
        return telling(progress, lambda tell: rebuild(self._log, tell))

    async def rebuild_async(self, progress: OnProgress | None = None) -> RebuildReport:
        """``rebuild`` on the store's pool; ``progress`` is called there."""
        return await self._on_pool(self.rebuild, progress)

    async def check_async(self) -> CheckReport:
        """``check`` on the store's pool."""
        return await self._on_pool(self.check)

    def salvage(
        self, tenant: str | None = None, session: str | None = None
    ) -> Iterator[str | Lost]:
        """Export lines of everything that is whole in a damaged store, and what is lost.

        For each lost event of a session there is a line of kind ``turnlog.damaged`` in its place,
        so that all others keep their sequences when the lines are loaded into a new store. Needs
        no more than the commit record, session rows and the events themselves; of a session whose
        row is damaged the events come as ``session N`` of tenant ``turnlog.damaged``. Lazy, in the
        order of an export, and changes nothing.

        Args:
            tenant: Only this tenant's sessions; None takes all.
            session: Only sessions of this name.
        """
        return salvage_lines(self._log, tenant, session)

    def collect_blobs(self, timeout: float | None = None) -> dict[str, int]:
        """Remove blobs, of all tenants, that no event has named for an hour.

        The store does so by itself, in moments without appends; this waits until it is done.

        Args:
            timeout: Seconds; None waits for ever.

        Returns:
            How many ``blobs``, unfinished ``streams`` and ``chunks`` went.

        Raises:
            TimeoutError: Not done in time; what went is gone, the rest goes with the next.
            CorruptionError: Rows of some blobs are damaged; these stay, and all others went.
        """
        wait_s = seconds(timeout, "timeout")
        self._refuse_closed()
        return collect_blobs(self._log, wait_s)

    async def collect_blobs_async(self, timeout: float | None = None) -> dict[str, int]:
        """``collect_blobs`` on the store's pool."""
        return await self._on_pool(self.collect_blobs, timeout)

    def stats(self) -> dict[str, Any]:
        """How the store stands; plain data.

        Counts, bytes on disk by kind (of pages, ``free_bytes`` beside them), how much segments,
        dictionaries and blobs compress, and what memory takes, each figure with its bound under
        the same name and ``_max``. Takes some milliseconds, and with many blobs about 3 µs each;
        the ratio of segments is that of a sample. Among ``sessions`` are those in which the store
        keeps documents of users and tenants, aliases and checkpoints of projections.
        """
        found = log_stats(self._log)
        found["memory"]["fold_bytes"] = self._folds.byte_count
        found["memory"]["fold_bytes_max"] = self._folds.bytes_max
        present = self._rows.values()
        found["memory"]["present_bytes"] = sum([each.byte_count for each in present])
        found["memory"]["present_bytes_max"] = sum([each.bytes_max for each in present])
        found["memory"]["catalog_sessions"] = self._catalog.session_count
        found["memory"]["catalog_sessions_max"] = self._catalog.sessions_max
        return found

    async def stats_async(self) -> dict[str, Any]:
        """``stats`` on the store's pool."""
        return await self._on_pool(self.stats)

    def health(self) -> dict[str, Any]:
        """Whether appends and reads work, and how the queue stands; plain data, no disk read."""
        return {**self._log.health(), "closed": self._closed}

    # For sessions

    def _require_version(self, version: int, what: str) -> None:
        found = self._log.environment.version
        if found < version:
            raise FormatVersionError(
                f"{what} need format version {version}; the store has version {found}",
                found=found,
                supported=version,
                hint="Upgrade the store with `turnlog upgrade`, which keeps all that it holds.",
            )

    def _submit(self, ack: Ack, wait: float | None) -> None:
        wait_s = seconds(wait, "wait")
        self._refuse_closed()
        ack.owner = self
        try:
            self._log.submit(ack)
        except OverloadedError:
            if wait_s is None:
                raise
            self._log.submit_waiting(ack, wait_s)

    async def _submit_async(self, ack: Ack) -> None:
        while True:
            try:
                self._submit(ack, None)
                return
            except OverloadedError:
                await self._room_for(ack.byte_count)

    def _pool(self) -> Executor:
        self._refuse_closed()
        self._log.environment.refuse_forked()  # the pool's threads stayed in the parent
        with self._executor_lock:
            return self._started()

    def _started(self) -> Executor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(POOL_THREADS, "turnlog-pool")
        return self._executor

    async def _on_pool(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool(), lambda: call(*args, **kwargs))
