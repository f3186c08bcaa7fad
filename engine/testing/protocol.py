"""What a store object must offer to be tested: a part of ``engine.Store``, of the same meaning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol


class AckLike(Protocol):
    """What an append gives."""

    def result(self, timeout: float | None = None) -> AckLike:
        """Block until the append is durable, and give the ack; raise what refused it."""

    @property
    def first(self) -> int:
        """Sequence of its first event; -1 where nothing was written."""

    @property
    def last(self) -> int:
        """Sequence of its last event, likewise."""

    @property
    def position(self) -> int:
        """Position of its last event."""

    @property
    def already(self) -> bool:
        """Whether its idempotency key had stored the same content before."""


class EventLike(Protocol):
    """An event as it is read; messages have the kind ``message``."""

    @property
    def tenant(self) -> str:
        """Name of its tenant."""

    @property
    def session(self) -> str:
        """Name of its session."""

    @property
    def sequence(self) -> int:
        """Its place in the session, from 0."""

    @property
    def position(self) -> int:
        """Its place in the store, from 1."""

    @property
    def kind(self) -> str:
        """Name of its kind."""

    @property
    def body(self) -> Any:
        """What was appended."""

    @property
    def parent(self) -> int | None:
        """Of a message the sequence of the one that it follows; None at a root."""


class InfoLike(Protocol):
    """What is known of a session."""

    @property
    def event_count(self) -> int:
        """Events of every kind."""

    @property
    def message_count(self) -> int:
        """Events of kind ``message``."""

    @property
    def head(self) -> int | None:
        """As ``SessionLike.head``."""


class BranchLike(Protocol):
    """A branch of a session."""

    @property
    def leaf(self) -> int | None:
        """Sequence of its newest event; None while it was forked and nothing followed."""

    @property
    def is_head(self) -> bool:
        """Whether the head is on it."""


class PageLike(Protocol):
    """A page of a path."""

    @property
    def events(self) -> Sequence[EventLike]:
        """Its events, root first."""

    @property
    def cursor(self) -> str | None:
        """Gives the next page; None at the end."""


class SessionLike(Protocol):
    """A session, or a handle on one; written with its first append."""

    def append(
        self,
        message: dict[str, Any],
        *,
        parent: int | str | None = None,
        expected_head: int | None = None,
        idempotency_key: str | None = None,
        id: str | None = None,
    ) -> AckLike:
        """See ``engine.Session.append``."""

    def append_many(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        ids: Sequence[str | None] | None = None,
        parent: int | str | None = None,
        expected_head: int | None = None,
        idempotency_key: str | None = None,
    ) -> AckLike:
        """See ``engine.Session.append_many``."""

    def history(self, limit: int | None = None) -> list[Any]:
        """See ``engine.Session.history``."""

    def events(
        self, first: int = 0, last: int | None = None, kinds: Collection[str] | None = None
    ) -> Iterable[EventLike]:
        """See ``engine.Session.events``."""

    @property
    def head(self) -> int | None:
        """See ``engine.Session.head``."""

    def info(self) -> InfoLike | None:
        """See ``engine.Session.info``."""

    def branches(self) -> Sequence[BranchLike]:
        """See ``engine.Session.branches``."""

    def path(
        self, leaf: int | None = None, cursor: str | None = None, limit: int = 100
    ) -> PageLike:
        """See ``engine.Session.path``."""

    def checkout(self, leaf: int | None) -> AckLike:
        """See ``engine.Session.checkout``."""

    def fork(self, at: int | None = None) -> AckLike:
        """See ``engine.Session.fork``."""

    @property
    def state(self) -> dict[str, Any]:
        """See ``engine.Session.state``."""

    def update_state(self, changes: dict[str, Any], *, delete: Sequence[str] = ()) -> AckLike:
        """See ``engine.Session.update_state``."""

    def delete(self) -> AckLike:
        """See ``engine.Session.delete``."""


class TenantLike(Protocol):
    """One tenant's world."""

    def session(self, name: str) -> SessionLike:
        """See ``engine.Store.session``."""


class SubscriptionLike(Protocol):
    """Events from a place on, without an end."""

    def __iter__(self) -> Iterator[EventLike]:
        """Events that are there, then each as it is committed."""

    def close(self) -> None:
        """End the iteration, from another thread too."""


class StoreLike(TenantLike, Protocol):
    """A store; also the tenant without a name."""

    def tenant(self, name: str) -> TenantLike:
        """See ``engine.Store.tenant``."""

    def read(self, after: int = 0, limit: int | None = None) -> Iterable[EventLike]:
        """See ``engine.Store.read``."""

    def subscribe(self, after: int | None = None) -> SubscriptionLike:
        """See ``engine.Store.subscribe``."""

    def flush(self) -> object:
        """Block until every append so far is durable or refused."""

    def close(self) -> object:
        """Close it; what was acknowledged is there when it is opened again."""


Opener = Callable[[Path], StoreLike]
"""Opens the store at a path: a new one where nothing is, else the one that was closed there."""
