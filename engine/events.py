"""What a reader gets: events, and facts about sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from engine.kinds import APPLICATION, kind_name, role_name
from eventlog.ack import store_id
from eventlog.arguments import shown
from eventlog.body import decode_body
from eventlog.errors import CorruptionError, UsageError
from eventlog.keys import is_hidden
from eventlog.record import NO_PARENT, NO_TIME, Extension, Flag, Origin, Record, decode_extension
from eventlog.rows import SessionRow


class _Unread:
    """In place of a body until it is asked for; a class, so that a copy or pickle of it is it."""


_UNREAD: Any = _Unread
_VOID: Final = int(Flag.VOID)
_OPENS_BRANCH: Final = int(Flag.OPENS_BRANCH)
_REDACTED: Final = int(Flag.REDACTED)


class Event(Record):
    """One committed event. Immutable; body and metadata are decoded when first asked for.

    Times are µs since the epoch. Two events are equal when they hold the same bytes at the same
    place.
    """

    __slots__ = ("_body", "_marks")

    def __init__(
        self, origin: Origin, sequence: int, head: bytes, extension: bytes, payload: bytes
    ) -> None:
        self.origin = origin
        self.sequence = sequence
        self.head = head
        self.extension = extension
        self.payload = payload
        self._body = _UNREAD
        self._marks: dict[int, Any] | None = None

    @property
    def tenant(self) -> str:
        """The tenant's name; empty for the tenant without a name."""
        return self.origin.tenant

    @property
    def session(self) -> str:
        """The session's name; longer than any that can be given where ``is_hidden``."""
        return self.origin.name

    @property
    def is_hidden(self) -> bool:
        """Whether it holds documents of a user or tenant, and is of no session that is named."""
        return is_hidden(self.origin.name)

    @property
    def session_number(self) -> int:
        """Number of the session's incarnation."""
        return self.origin.number

    @property
    def marks(self) -> dict[int, Any]:
        """The decoded extension map (``record.Extension``)."""
        if self._marks is None:
            self._marks = decode_extension(self.extension, self.flags, self)
        return self._marks

    @property
    def body(self) -> Any:
        """The body, equal to what was appended, type for type; None once it was redacted."""
        if self._body is _UNREAD and not self.payload and self.flags & _VOID:
            self._body = None
        elif self._body is _UNREAD:
            fixes = self.marks.get(Extension.BODY_FIXES) if self.extension else None
            self._body = decode_body(self.payload, fixes, where=self)
        return self._body

    @property
    def redacted(self) -> bool:
        """Whether its content was removed: body, metadata and the names of blobs."""
        return bool(self.flags & _REDACTED)

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The caller's metadata."""
        if not self.extension or Extension.METADATA not in self.marks:
            return None
        return _decode_dict(
            self.marks[Extension.METADATA], self.marks.get(Extension.METADATA_FIXES), self
        )

    @property
    def opening(self) -> dict[str, Any] | None:
        """Facts given when the session was created; on its first event only."""
        if not self.extension or Extension.OPENING not in self.marks:
            return None
        return decode_opening(self.marks[Extension.OPENING], self)

    @property
    def kind(self) -> str:
        """Name of the kind; empty for a code that has none."""
        name = kind_name(self.kind_code)
        if name is not None:
            return name
        name = self._mark(Extension.KIND_NAME)
        if name is None and self.kind_code == APPLICATION:
            raise CorruptionError("the kind has no name", where=str(self))
        return name or ""

    @property
    def role(self) -> str | None:
        """The message's role as it stands in the body; of a redacted one if it was a usual one."""
        if self.redacted:
            return role_name(self.role_code)
        body = self.body
        role = body.get("role") if type(body) is dict else None
        return role if type(role) is str else None

    @property
    def parent(self) -> int | None:
        """Sequence of the event that this one follows; None at a root and for control kinds.

        Of a ``head_move`` the event that became the head, of a ``branch_name`` one on that branch,
        of ``usage`` and ``artifacts`` the event that they belong to.
        """
        parent = self.parent_word
        return None if parent == NO_PARENT else parent

    @property
    def opens_branch(self) -> bool:
        """Whether its branch begins here."""
        return bool(self.flags & _OPENS_BRANCH)

    @property
    def time_us(self) -> int | None:
        """The time that the caller gave."""
        given = self.given_us
        return None if given == NO_TIME else given

    @property
    def id(self) -> str | None:
        """The caller's id."""
        return self._mark(Extension.ID)

    @property
    def event_id(self) -> str:
        """The caller's id, or the one that the store makes."""
        return self.id or store_id(self.origin.number, self.sequence)

    @property
    def run_id(self) -> str | None:
        """The run that it belongs to."""
        return self._mark(Extension.RUN_ID)

    @property
    def turn_id(self) -> str | None:
        """The turn that it belongs to."""
        return self._mark(Extension.TURN_ID)

    @property
    def speech_id(self) -> str | None:
        """The utterance that it belongs to."""
        return self._mark(Extension.SPEECH_ID)

    @property
    def request_id(self) -> str | None:
        """The model request that it belongs to."""
        return self._mark(Extension.REQUEST_ID)

    @property
    def blobs(self) -> tuple[bytes, ...]:
        """Addresses of the blobs that it refers to, in the order given; see ``Tenant.blobs``."""
        if not self.extension:
            return ()
        return tuple(self.marks.get(Extension.BLOBS, ()))

    def _mark(self, mark: Extension) -> str | None:
        return self.marks.get(mark) if self.extension else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return (
            self.origin == other.origin
            and self.sequence == other.sequence
            and self.head == other.head
            and self.extension == other.extension
            and self.payload == other.payload
        )

    def __hash__(self) -> int:
        return hash((self.origin.number, self.sequence))

    def __format__(self, spec: str) -> str:
        """Its place in the log, which is what errors name; never what it says."""
        return format(f"position {self.position}", spec)

    def __repr__(self) -> str:
        said = "redacted" if self.redacted else f"body={self.body!r}"
        return (
            f"Event(session={self.session!r}, sequence={self.sequence}, "
            f"position={self.position}, kind={self.kind!r}, {said})"
        )


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as it stands; times in µs since the epoch.

    Attributes:
        tenant: The tenant's name.
        name: The session's name.
        number: Number of this incarnation.
        user_id: The user, as given at creation or since; likewise the next two.
        title: The title.
        metadata: The metadata; None when there is none.
        created_us: Recorded time of the first event.
        updated_us: Recorded time of the last event.
        event_count: Events; sequences run from 0 to one less.
        message_count: Events of kind ``message``, with those that were purged; of a session that
            was loaded, those that were loaded.
        head: Sequence of the event that the next append follows, None when there is none.
        first_sequence: Sequence of the first event that was not purged.
        last_sequence: Sequence of the last event.
        last_position: Position of the last event.
        loose_count: Messages since the last roll-up; in a store of format version 1 as the next. Of
            a moment without those that were purged, if a roll-up came between it and now.
        unsealed_count: Events that are not yet sealed into a segment.
        account_id: The account, as given at creation or since; likewise the others.
        agent_id: The agent.
        workspace: The workspace.
        status: The status.
        labels: Names of the labels on the session or its events, sorted.
    """

    tenant: str
    name: str
    number: int
    user_id: str | None
    title: str | None
    metadata: dict[str, Any] | None
    created_us: int
    updated_us: int
    event_count: int
    message_count: int
    head: int | None
    first_sequence: int
    last_sequence: int
    last_position: int
    loose_count: int
    unsealed_count: int
    account_id: str | None = None
    agent_id: str | None = None
    workspace: str | None = None
    status: str | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionPage:
    """A page of sessions, newest activity first.

    Attributes:
        sessions: Its sessions.
        cursor: Continues the listing behind them; None at the end.
    """

    sessions: list[SessionInfo]
    cursor: str | None


def require_event(value: object) -> None:
    """Refuse what is no event.

    Raises:
        UsageError: It is none.
    """
    if not isinstance(value, Event):
        raise UsageError(
            f"an event is wanted, not {shown(value)}", hint="Give what events() or read() gave."
        )


def opening_of(row: SessionRow, number: int) -> dict[str, Any]:
    """The facts given at creation."""
    return {} if row.opening is None else decode_opening(row.opening, f"session {number}")


def decode_opening(stored: Any, where: object) -> dict[str, Any]:
    """Opening facts as they lie in a record or row: encoded bytes and fixes.

    Raises:
        CorruptionError: They are no such facts.
    """
    if type(stored) is not list or len(stored) != 2 or type(stored[0]) is not bytes:
        raise CorruptionError("opening facts are of another shape", where=f"{where}")
    facts = _decode_dict(stored[0], stored[1], where)
    for name, item in facts.items():
        if type(item) is not OPENING_FACTS.get(name):
            raise CorruptionError(f"opening fact {name!a} is of another type", where=f"{where}")
    return facts


OPENING_FACTS: Final = {
    "user_id": str,
    "title": str,
    "metadata": dict,
    "snapshot_frequency": int,
    "max_messages": int,
    "account_id": str,
    "agent_id": str,
    "workspace": str,
}
"""What a session can be created with, in the order of ``encode_opening``, and of what types."""


def _decode_dict(data: bytes, fixes: Any, where: object) -> dict[str, Any]:
    found = decode_body(data, fixes, where=where)
    if type(found) is not dict:
        raise CorruptionError("metadata is no map", where=f"{where}")
    return found
