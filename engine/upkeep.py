"""What is done to a store as a whole: backup, restore, vacuum, upgrade, options.

The three that need a store which nobody has open are called on the class: ``Store.vacuum(path)``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from engine.erasure import finish_removals
from engine.projections import PROJECTIONS
from engine.telling import telling
from eventlog.arguments import callback, flag, folder
from eventlog.backup import BackupReport
from eventlog.backup import backup as backup_of
from eventlog.configuring import UNCHANGED, Unchanged
from eventlog.errors import StoreClosedError, UsageError
from eventlog.log import Log
from eventlog.restore import RestoreReport
from eventlog.restore import restore as restore_store
from eventlog.settling import settle
from eventlog.staging import Progress
from eventlog.upgrade import UpgradeReport
from eventlog.upgrade import upgrade as upgrade_store
from eventlog.vacuum import VacuumReport
from eventlog.vacuum import vacuum as vacuum_store

P = ParamSpec("P")
T = TypeVar("T")


class Upkeep:
    """The part of ``Store`` that is about its files and its options."""

    _log: Log
    _closed: bool
    _on_pool: Callable[..., Awaitable[Any]]
    _require_version: Callable[[int, str], None]

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")

    def backup(
        self, path: str | Path, *, check: bool = False, progress: Progress | None = None
    ) -> BackupReport:
        """Copy the store as it is now; appends and reads go on meanwhile.

        The copy is whole, verified and durable once this returns; before that there is nothing
        under its name. It is a store like others: open it with ``read_only=True`` to look into it,
        and make a store that goes on with ``Store.restore``.

        Args:
            path: Where nothing is yet; its folder exists.
            check: Read every row of the copy too, not only every page.
            progress: Called on this thread with the bytes copied and the bytes in all.

        Raises:
            UsageError: There is something at the path.
            CorruptionError: The store is damaged.
            StorageFullError, StoreUnavailableError: The system refused; nothing is left behind.
        """
        where = folder(path, "path")
        flag(check, "check")
        callback(progress, "progress")
        self._refuse_closed()
        log = self._log
        return telling(
            progress,
            lambda tell: backup_of(
                log.environment, where, check=check, projections=log.projections, progress=tell
            ),
        )

    async def backup_async(
        self, path: str | Path, *, check: bool = False, progress: Progress | None = None
    ) -> BackupReport:
        """``backup`` on the store's pool; ``progress`` is called there."""
        report: BackupReport = await self._on_pool(
            self.backup, path, check=check, progress=progress
        )
        return report

    @staticmethod
    def restore(
        backup: str | Path,
        path: str | Path,
        *,
        check: bool = False,
        allow_network: bool = False,
        progress: Progress | None = None,
    ) -> RestoreReport:
        """Make a store from a backup, or from a copy of a store that nobody has open.

        The backup is not trusted and not changed. The new store has an id of its own: whoever
        kept positions of the store that was backed up finds out whether the new one has them by
        ``Store.open(path, min_position=..., store_id=...)``.

        Args:
            backup: Its folder.
            path: Where nothing is yet; its folder exists.
            check: Read every row of the new store too, not only every page.
            allow_network: Make it on a network file system too.
            progress: Called with the bytes copied and the bytes in all.

        Raises:
            UsageError: There is something at the path.
            NotAStoreError, FormatVersionError: The backup is none, or of a newer release.
            DamagedInputError, CorruptionError: It cannot be trusted, or is damaged.
            BusyError: A process has it open.
            StorageFullError, StoreUnavailableError: The system refused; nothing is left behind.
        """
        source, target = folder(backup, "backup"), folder(path, "path")
        flag(check, "check")
        flag(allow_network, "allow_network")
        callback(progress, "progress")
        return telling(
            progress,
            lambda tell: restore_store(
                source,
                target,
                check=check,
                projections=PROJECTIONS,
                allow_network=allow_network,
                progress=tell,
            ),
        )

    @staticmethod
    def vacuum(path: str | Path, *, progress: Progress | None = None) -> VacuumReport:
        """Rewrite the data file of a store that no process has open, this one neither.

        Free pages go back to the file system, what was removed in any way is in the file no more,
        but for contents that nothing has named for less than an hour, and all events are sealed and
        compressed harder than beside appends. Costs the space of a second
        data file beside the store while it works. Killed, it leaves the store as it was or
        rewritten. A removal that somebody left unfinished is finished first.

        Args:
            path: The store.
            progress: Called on this thread with the bytes done and the bytes in all.

        Raises:
            BusyError: The store is open; names by whom.
            UsageError: This process has it open read-only.
            StorageFullError: There is no room beside it.
            CorruptionError: It is damaged; nothing was changed.
            NotAStoreError, FormatVersionError, ReadOnlyError, StoreUnavailableError: As by opening.
        """
        callback(progress, "progress")
        where = folder(path, "path")
        finish_removals(where)
        before = settle(where, PROJECTIONS)
        report = telling(progress, lambda tell: vacuum_store(where, progress=tell))
        return replace(report, bytes_before=before)

    @staticmethod
    def upgrade(
        path: str | Path,
        *,
        backup: str | Path | None = None,
        without_backup: bool = False,
        progress: Progress | None = None,
    ) -> UpgradeReport:
        """Bring a store that no process has open to this release's format version.

        Older releases cannot open it after that. When it is of this version, nothing is done.
        Killed, it leaves a store that opens, and upgrading it again goes on.

        Args:
            path: The store.
            backup: Where it is backed up before; None for a new name beside it.
            without_backup: Make no backup.
            progress: Called on this thread with the bytes backed up and the bytes in all.

        Raises:
            BusyError: The store is open; names by whom.
            UsageError: There is something at the backup's path.
            CorruptionError: It is damaged; nothing was changed.
            NotAStoreError, FormatVersionError, ReadOnlyError, StoreUnavailableError: As by opening.
        """
        where = folder(path, "path")
        place = None if backup is None else folder(backup, "backup")
        flag(without_backup, "without_backup")
        callback(progress, "progress")
        if without_backup and place is not None:
            raise UsageError("backup= and without_backup=True contradict each other")
        return telling(
            progress,
            lambda tell: upgrade_store(
                where, backup=place, without_backup=without_backup, progress=tell
            ),
        )

    def configure(
        self,
        *,
        snapshot_frequency: int | Unchanged = UNCHANGED,
        max_messages: int | Unchanged | None = UNCHANGED,
        quota_bytes: int | Unchanged | None = UNCHANGED,
        dictionaries: bool | Unchanged = UNCHANGED,
    ) -> dict[str, Any]:
        """Change options that are stored in the store, and tell all of them.

        Other processes that have it open follow with the next commit that they see. What was
        rolled up before stays as it was.

        Args:
            snapshot_frequency: See ``open``.
            max_messages: See ``open``.
            quota_bytes: See ``open``; None for no quota.
            dictionaries: See ``open``; what is compressed with one stays so.

        Raises:
            UsageError: A value makes no sense; nothing was changed.
            ReadOnlyError, StoreClosedError, StoreUnavailableError: They cannot be written.
            FormatVersionError: ``max_messages`` or ``dictionaries`` in a store of format version 1,
                which has no place for them.
        """
        given = {
            "snapshot_frequency": snapshot_frequency,
            "max_messages": max_messages,
            "quota_bytes": quota_bytes,
            "dictionaries": dictionaries,
        }
        changes = {name: value for name, value in given.items() if value is not UNCHANGED}
        self._refuse_closed()
        if changes.get("max_messages") is not None:
            self._require_version(2, "trimmed views")
        if "dictionaries" in changes:  # also False: an upgraded store would have them
            self._require_version(2, "dictionaries")
        if changes:
            self._log.configure(changes)
        return self._log.stored_options()

    async def configure_async(
        self,
        *,
        snapshot_frequency: int | Unchanged = UNCHANGED,
        max_messages: int | Unchanged | None = UNCHANGED,
        quota_bytes: int | Unchanged | None = UNCHANGED,
        dictionaries: bool | Unchanged = UNCHANGED,
    ) -> dict[str, Any]:
        """``configure`` on the store's pool."""
        options: dict[str, Any] = await self._on_pool(
            self.configure,
            snapshot_frequency=snapshot_frequency,
            max_messages=max_messages,
            quota_bytes=quota_bytes,
            dictionaries=dictionaries,
        )
        return options
