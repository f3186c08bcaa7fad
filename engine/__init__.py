"""Meaning: sessions, events and views over the log of ``eventlog``."""

from __future__ import annotations

from engine.artifacts import Artifacts, ArtifactsAt, ArtifactVersion
from engine.at import SessionAt
from engine.blobs import Blob, BlobReader, Blobs
from engine.branches import Branch, Link, PathPage
from engine.compaction import Compaction
from engine.describing import KEEP, Keep
from engine.documents import Document, Documents, DocumentsAt
from engine.drafting import Part
from engine.erasure import ErasureReceipt
from engine.events import Event, SessionInfo, SessionPage
from engine.facts import Facts, Label, Said, SessionLink
from engine.keeping import DeadLetter
from engine.listed import Listed
from engine.loading import LoadResult
from engine.modelview import Window, WindowEntry
from engine.owners import User
from engine.policy import (
    RetentionDamage,
    RetentionDecision,
    RetentionExcess,
    RetentionPolicy,
    RetentionReport,
)
from engine.projecting import Projection
from engine.reading import Events, Subscription
from engine.rebuilding import RebuildReport
from engine.redaction import RedactionReceipt
from engine.runs import Run, Runs, RunsAt
from engine.salvage import Lost
from engine.session import Session
from engine.store import Store, Tenant
from engine.toolcalls import ToolCall, ToolCalls, ToolCallsAt
from engine.usage import Usage, UsageRecord, UsageTotals
from engine.variables import Variable
from eventlog.ack import Ack
from eventlog.backup import BackupReport
from eventlog.check import CheckReport, Finding
from eventlog.configuring import UNCHANGED, Unchanged
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
    "ArtifactVersion",
    "Artifacts",
    "ArtifactsAt",
    "BackupReport",
    "Blob",
    "BlobReader",
    "Blobs",
    "Branch",
    "BusyError",
    "CheckReport",
    "Compaction",
    "ConflictError",
    "CorruptionError",
    "DamagedInputError",
    "DeadLetter",
    "Document",
    "Documents",
    "DocumentsAt",
    "DuplicateIdError",
    "ErasureReceipt",
    "Event",
    "Events",
    "Facts",
    "Finding",
    "ForkedStoreError",
    "FormatVersionError",
    "IdempotencyConflictError",
    "InvalidMessageError",
    "InvalidNameError",
    "KEEP",
    "Keep",
    "Label",
    "LimitExceededError",
    "Link",
    "Listed",
    "LoadResult",
    "Lost",
    "NotAStoreError",
    "NotUpToBoundError",
    "OverloadedError",
    "Part",
    "PathPage",
    "Projection",
    "QuotaExceededError",
    "ReadOnlyError",
    "RebuildReport",
    "RedactionReceipt",
    "RestoreReport",
    "RetentionDamage",
    "RetentionDecision",
    "RetentionExcess",
    "RetentionPolicy",
    "RetentionReport",
    "Run",
    "Runs",
    "RunsAt",
    "Said",
    "Session",
    "SessionAt",
    "SessionGoneError",
    "SessionInfo",
    "SessionLink",
    "SessionNotFoundError",
    "SessionPage",
    "StorageFullError",
    "Store",
    "StoreClosedError",
    "StoreUnavailableError",
    "Subscription",
    "SuspectStoreError",
    "Tenant",
    "ToolCall",
    "ToolCalls",
    "ToolCallsAt",
    "TrimmedError",
    "TurnlogError",
    "UNCHANGED",
    "Unchanged",
    "UpgradeReport",
    "Usage",
    "UsageError",
    "UsageRecord",
    "UsageTotals",
    "User",
    "VacuumReport",
    "Variable",
    "Window",
    "WindowEntry",
]
