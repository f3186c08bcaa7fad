"""Meaning: sessions, events and views over the log of ``eventlog``."""

from __future__ import annotations

from engine.drafting import Part
from engine.events import Event, SessionInfo, SessionPage
from engine.loading import LoadResult
from engine.reading import Events, Subscription
from engine.session import Session
from engine.store import Store, Tenant
from eventlog.ack import Ack
from eventlog.check import CheckReport, Finding

__all__ = [
    "Ack",
    "CheckReport",
    "Event",
    "Events",
    "Finding",
    "LoadResult",
    "Part",
    "Session",
    "SessionInfo",
    "SessionPage",
    "Store",
    "Subscription",
    "Tenant",
]
