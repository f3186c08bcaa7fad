"""Operations on sessions and stores: plain values that can be sent to other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from engine import Store
    from tests.model.model import ModelStore


class Noun:
    """An operation of a module of its own, which says what a model answers and asks a store."""

    __slots__ = ()

    writes_hidden: ClassVar[bool] = False
    """Whether the store writes events of sessions of its own with it, so that it is asked first."""

    def expect(self, model: ModelStore) -> Any:
        """Do it to a model; what a store must give."""
        raise AssertionError(f"{type(self).__name__} has no model")

    def perform(self, store: Store) -> Any:
        """Do it to a store, through its public calls; plain data."""
        raise AssertionError(f"{type(self).__name__} asks no store")


@dataclass(frozen=True, slots=True)
class New:
    """An event to append."""

    body: Any
    kind: str = "message"
    id: str | None = None
    metadata: dict[str, Any] | None = None
    time_us: int | None = None
    tokens: int | None = None
    run_id: str | None = None
    turn_id: str | None = None
    speech_id: str | None = None
    request_id: str | None = None
    blobs: tuple[bytes, ...] = ()  # their contents
    redacted: bool = False
    role: str | None = None  # of a message that was redacted; of others the body tells it


@dataclass(frozen=True, slots=True)
class Opening:
    """Facts given when a session is created."""

    user_id: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None
    account_id: str | None = None
    agent_id: str | None = None
    workspace: str | None = None

    def facts(self) -> dict[str, Any]:
        """Those that were given."""
        named = [(name, getattr(self, name)) for name in Opening.__slots__]
        return {name: value for name, value in named if value is not None}


@dataclass(frozen=True, slots=True)
class Append:
    """One append to one session: ``append``, ``append_event`` or ``append_many`` by its events."""

    tenant: str
    session: str
    events: tuple[New, ...]
    expected_head: int | None = None
    key: str | None = None
    opening: Opening = Opening()
    as_event: bool = False  # a lone message goes through append_event
    parent: int | None = None  # of the first event


@dataclass(frozen=True, slots=True)
class Create:
    """``create``."""

    tenant: str
    session: str
    opening: Opening = Opening()


@dataclass(frozen=True, slots=True)
class Share:
    """One session's part of a batch."""

    session: str
    events: tuple[New, ...]
    expected_head: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """``append_batch``."""

    tenant: str
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Queued:
    """Appends with ``ack="queued"``, then one ``flush``."""

    appends: tuple[Append, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """``load``; lines as ``json.loads`` gives them, by tenant handle."""

    tenant: str
    lines: tuple[dict[str, Any], ...]
    piece_events: int = 4_096


@dataclass(frozen=True, slots=True)
class Update:
    """``update_state``; expected are versions by key, -1 for none."""

    tenant: str
    session: str
    changes: dict[str, Any]
    delete: tuple[str, ...] = ()
    expected: tuple[tuple[str, int], ...] = ()
    expected_head: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class RollUp:
    """``roll_up``."""

    tenant: str
    session: str


@dataclass(frozen=True, slots=True)
class Delete:
    """``delete``, or ``erase``, which gives the tombstone's place too."""

    tenant: str
    session: str
    is_erased: bool = False


@dataclass(frozen=True, slots=True)
class Purge:
    """``purge``."""

    tenant: str
    session: str
    first: int


@dataclass(frozen=True, slots=True)
class Checkout:
    """``checkout``; leaf None for no event."""

    tenant: str
    session: str
    leaf: int | None


@dataclass(frozen=True, slots=True)
class Fork:
    """``fork``."""

    tenant: str
    session: str
    at: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Branches:
    """``branches``."""

    tenant: str
    session: str


@dataclass(frozen=True, slots=True)
class Path:
    """All pages of ``path``."""

    tenant: str
    session: str
    leaf: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class State:
    """``state`` and ``variables``."""

    tenant: str
    session: str


@dataclass(frozen=True, slots=True)
class At:
    """``at``: the session after an event, and how many messages are loose; None means now."""

    tenant: str
    session: str
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """``history``."""

    tenant: str
    session: str
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """``events``."""

    tenant: str
    session: str
    first: int = 0
    last: int | None = None
    kinds: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class OneEvent:
    """``event``."""

    tenant: str
    session: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Info:
    """``info``, ``exists`` and ``head``."""

    tenant: str
    session: str


@dataclass(frozen=True, slots=True)
class Sessions:
    """All pages of ``sessions``."""

    tenant: str
    limit: int = 50
    user_id: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """``read``; the store itself, the tenant without a name, reads all."""

    tenant: str
    after: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Follow:
    """The first ``count`` events of a subscription; session None subscribes as ``Read`` reads."""

    tenant: str
    session: str | None
    after: int
    count: int
    kinds: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Everything:
    """All that can be asked of a store, and its check."""


Op = (
    Append
    | Create
    | Batch
    | Queued
    | Load
    | Update
    | RollUp
    | Delete
    | Purge
    | Checkout
    | Fork
    | Branches
    | Path
    | State
    | At
    | History
    | Events
    | OneEvent
    | Info
    | Sessions
    | Read
    | Follow
    | Everything
    | Noun
)
