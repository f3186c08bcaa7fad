"""Meaning: sessions, events and views over the log of ``eventlog``."""

from __future__ import annotations

from engine.at import SessionAt
from engine.blobs import Blob, BlobReader, Blobs
from engine.compaction import Compaction
from engine.drafting import Part
from engine.erasure import ErasureReceipt
from engine.events import Event, SessionInfo, SessionPage
from engine.loading import LoadResult
from engine.modelview import Window, WindowEntry
from engine.reading import Events, Subscription
from engine.rebuilding import RebuildReport
from engine.salvage import Lost
from engine.session import Session
from engine.store import Store, Tenant
from engine.variables import Variable
from eventlog.ack import Ack
from eventlog.backup import BackupReport
from eventlog.check import CheckReport, Finding
from eventlog.errors import (
    AppendConflictError,
    BusyError,
    ConflictError,
    CorruptionError,
    DamagedInputError,
    DuplicateIdError,
    ForkedStoreError,
    FormatVersionError,
    IdempotencyConflictError,
    InvalidMessageError,
    InvalidNameError,
    LimitExceededError,
    NotAStoreError,
    NotUpToBoundError,
    OverloadedError,
    QuotaExceededError,
    ReadOnlyError,
    SessionGoneError,
    SessionNotFoundError,
    StorageFullError,
    StoreClosedError,
    StoreUnavailableError,
    SuspectStoreError,
    TrimmedError,
    TurnlogError,
    UsageError,
)
from eventlog.restore import RestoreReport
from eventlog.upgrade import UpgradeReport
from eventlog.vacuum import VacuumReport

__all__ = [
    "Ack",
    "AppendConflictError",
    "BackupReport",
    "Blob",
    "BlobReader",
    "Blobs",
    "BusyError",
    "CheckReport",
    "Compaction",
    "ConflictError",
    "CorruptionError",
    "DamagedInputError",
    "DuplicateIdError",
    "ErasureReceipt",
    "Event",
    "Events",
    "Finding",
    "ForkedStoreError",
    "FormatVersionError",
    "IdempotencyConflictError",
    "InvalidMessageError",
    "InvalidNameError",
    "LimitExceededError",
    "LoadResult",
    "Lost",
    "NotAStoreError",
    "NotUpToBoundError",
    "OverloadedError",
    "Part",
    "QuotaExceededError",
    "ReadOnlyError",
    "RebuildReport",
    "RestoreReport",
    "Session",
    "SessionAt",
    "SessionGoneError",
    "SessionInfo",
    "SessionNotFoundError",
    "SessionPage",
    "StorageFullError",
    "Store",
    "StoreClosedError",
    "StoreUnavailableError",
    "Subscription",
    "SuspectStoreError",
    "Tenant",
    "TrimmedError",
    "TurnlogError",
    "UpgradeReport",
    "UsageError",
    "VacuumReport",
    "Variable",
    "Window",
    "WindowEntry",
]
