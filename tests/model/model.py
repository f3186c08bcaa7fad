"""What a store is, in plain Python: the model that stores are compared with.

Shares no code with the product. Operations are plain values that can be sent to other processes;
``ModelStore.answer`` says what each must give, ``tests.model.actors`` asks a real store.

Times that the store takes from its clock are left out everywhere, and so is what depends on when
events were sealed.
"""

from __future__ import annotations

import base64
import math
import struct
from dataclasses import dataclass, field, replace
from typing import Any

CONTROLS = (
    *("open", "variables", "roll_up", "tombstone", "head_move", "branch_name", "metric"),
    "redaction",
)
ROLES = ("system", "user", "assistant", "tool", "developer", "toolResult")

Exact = Any  # what ``exact`` gives, and tuples of plain values that hold such


# Operations


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
    redacted: bool = False
    role: str | None = None  # of one that was redacted; of others the body tells it


@dataclass(frozen=True, slots=True)
class Opening:
    """Facts given when a session is created."""

    user_id: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None

    def facts(self) -> dict[str, Any]:
        """Those that were given."""
        named = (("user_id", self.user_id), ("title", self.title), ("metadata", self.metadata))
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
    """``update_state``."""

    tenant: str
    session: str
    changes: dict[str, Any]
    delete: tuple[str, ...] = ()


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
class Redact:
    """``redact``."""

    tenant: str
    session: str
    first: int
    last: int


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
    | Redact
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
)


# Answers


@dataclass(frozen=True, slots=True)
class Placed:
    """An append is in."""

    first: int
    last: int
    position: int
    event_id: str
    already: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not, and why: the error's name."""

    error: str


def exact(value: Any) -> Exact:
    """A value that is equal for two values only if they agree in types, bits and key order.

    ``repr`` says all of that but a NaN's bits, and is quick.
    """
    text = repr(value)
    return (text, _nans(value)) if "nan" in text else text


def _nans(value: Any) -> tuple[bytes, ...]:
    kind = type(value)
    if kind is float:
        return () if value == value else (struct.pack(">d", value),)
    if kind is dict:
        value = list(value.values())
    elif kind is not list:
        return ()
    return tuple([bits for item in value for bits in _nans(item)])


def content(value: Any) -> Exact:
    """As ``exact``, but the order of keys does not count."""
    kind = type(value)
    if kind is dict:
        return ("dict", frozenset((key, content(item)) for key, item in value.items()))
    if kind is list:
        return ("list", tuple(map(content, value)))
    return exact(value)


# The model


@dataclass(slots=True)
class Kept:
    """One event in the model."""

    session: ModelSession
    sequence: int
    position: int
    parent: int | None
    new: New
    opening: dict[str, Any] | None = None
    rolls_up: bool = False
    is_void: bool = False
    branch: int = 0
    opens: bool = False
    _facts: Exact = None

    @property
    def event_id(self) -> str:
        """The caller's id or the store's."""
        return self.new.id or f"{self.session.number:x}.{self.sequence:010d}"

    @property
    def told_parent(self) -> int | None:
        """The parent in its line: -1 for a root that is not the first of its session."""
        if self.parent is None and (self.new.kind == "head_move" or self.opens):
            return -1
        return self.parent

    def facts(self) -> Exact:
        """All of it, comparable with ``actors.event_facts``."""
        if self._facts is not None:
            return self._facts
        new = self.new
        role = new.body.get("role") if type(new.body) is dict else new.role
        self._facts = (
            self.session.tenant,
            self.session.name,
            self.session.number,
            self.sequence,
            self.position,
            self.parent,
            self.branch,
            new.kind,
            role if type(role) is str else None,
            exact(new.body),
            exact(new.metadata),
            new.id,
            self.event_id,
            new.time_us,
            new.tokens or 0,
            new.run_id,
            new.turn_id,
            new.speech_id,
            new.request_id,
            exact(self.opening),
            new.redacted,
        )
        return self._facts

    def redact(self) -> None:
        """Lose what it says, and nothing else."""
        new = self.new
        role = new.body.get("role") if type(new.body) is dict and new.kind == "message" else None
        self.new = replace(
            new,
            body=None,
            metadata=None,
            redacted=True,
            role=role if type(role) is str and role in ROLES else None,
        )
        self._facts = None


@dataclass(slots=True)
class ModelSession:
    """One session in the model."""

    tenant: str
    name: str
    number: int
    opening: Opening
    events: list[Kept] = field(default_factory=list)
    keys: dict[str, tuple[Exact, Placed]] = field(default_factory=dict)

    made: int = 1  # branch numbers
    on: int = 0  # the head's branch
    head: int = -1  # sequence of the event that the next one follows, -1 for none
    tips: dict[int, int] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)  # by branch, what it follows
    names: dict[str, int] = field(default_factory=dict)

    @property
    def has_branched(self) -> bool:
        """Whether it is not linear any more."""
        return self.made > 1 or any(kept.new.kind == "head_move" for kept in self.events)

    def can_follow(self, parent: int) -> bool:
        """Whether an event may follow another one, -1 for none."""
        if parent == -1:
            return True
        return parent < len(self.events) and self.events[parent].new.kind not in CONTROLS

    def branch_of(self, sequence: int) -> int:
        """The branch of an event, -1 for none."""
        return self.events[sequence].branch if sequence >= 0 else 0

    def link(self, sequence: int, kind: str, parent: int | None, forks: bool) -> tuple[int, int]:
        """Parent and branch of the next event; -1 for no parent."""
        if kind == "head_move":
            assert parent is not None
            self.on, self.head = self.branch_of(parent), parent
            if forks:
                self.on = self._open(parent)
                self.tips[self.on] = parent
            return parent, self.on
        if kind in CONTROLS:
            return -1, self.on if kind in ("roll_up", "branch_name") else 0
        target = self.head if parent is None else parent
        branch = self.on if target == self.head else self.branch_of(target)
        if self.tips.get(branch, -1) != target:
            branch = self._open(target)
        self.tips[branch] = self.head = sequence
        self.on = branch
        return target, branch

    def _open(self, parent: int) -> int:
        self.made += 1
        self.opened[self.made - 1] = parent
        return self.made - 1

    def head_at(self, sequence: int) -> int:
        """The head after an event."""
        for kept in reversed(self.events[: sequence + 1]):
            if kept.new.kind == "head_move":
                return -1 if kept.parent is None else kept.parent
            if kept.new.kind not in CONTROLS:
                return kept.sequence
        return -1

    def path(self, leaf: int) -> list[int]:
        """Sequences from a root to an event."""
        found: list[int] = []
        while leaf >= 0:
            found.append(leaf)
            parent = self.events[leaf].parent
            leaf = -1 if parent is None else parent
        return found[::-1]

    def branches(self) -> list[tuple[Any, ...]]:
        """Comparable with what ``actors`` tells of branches."""
        newest: dict[int, int] = {}
        for kept in self.events:
            if kept.new.kind not in CONTROLS:
                newest[kept.branch] = kept.sequence
        found = []
        for number in sorted({*newest, *self.opened}):
            parent = self.opened.get(number, -1)
            names = {name for name, branch in self.names.items() if branch == number}
            found.append(
                (
                    number,
                    names,
                    None if parent < 0 else parent,
                    None if parent < 0 else self.branch_of(parent),
                    newest.get(number),
                    number == self.on,
                )
            )
        return found

    def messages(self) -> list[Kept]:
        """Events of kind message."""
        return [kept for kept in self.events if kept.new.kind == "message"]

    def view(self, sequence: int, max_messages: int | None) -> tuple[list[Kept], int]:
        """The messages shown after an event, and how many came since the last roll-up."""
        events = self.events[: sequence + 1]
        loose = 0
        for kept in events:
            loose = 0 if kept.rolls_up else loose + (kept.new.kind == "message")
        head = self.head_at(sequence)
        on = self.path(head)
        placed = set(on)
        branches = {self.branch_of(each): each for each in on}  # the last event of each on the path
        follower = next(
            (
                kept.sequence
                for kept in events[head + 1 :]
                if kept.new.kind == "head_move" or kept.new.kind not in CONTROLS
            ),
            sequence + 1,
        )
        firsts = self._firsts(on)
        shown: list[Kept] = []
        for kept in events[:follower]:
            kind = kept.new.kind
            is_on = kept.sequence in placed
            if kind == "message" and is_on:
                shown.append(kept)
            if kind in ("roll_up", "variables") and kept.rolls_up and kept.branch in branches:
                last = branches[kept.branch]
                is_on = firsts[kept.branch] < kept.sequence <= last or kept.sequence > head
            if kept.rolls_up and is_on and max_messages is not None:
                del shown[:-max_messages]
        return shown, loose

    def _firsts(self, on: list[int]) -> dict[int, int]:
        """By branch of a path, the event that the path's part of it follows."""
        found: dict[int, int] = {}
        before = -1
        for each in on:
            found.setdefault(self.branch_of(each), before)
            before = each
        return found

    def variables(self, sequence: int) -> dict[str, tuple[Any, int]]:
        """Value and sequence of each variable after an event."""
        found: dict[str, tuple[Any, int]] = {}
        for kept in self.events[: sequence + 1]:
            if kept.new.kind == "variables":
                for key, value in kept.new.body.get("set", {}).items():
                    found[key] = (value, kept.sequence)
                for key in kept.new.body.get("delete", []):
                    found.pop(key, None)
        return dict(sorted(found.items()))

    def info(self) -> Exact:
        """Comparable with ``actors.info_facts``."""
        opening = self.opening.facts()
        head = self.head
        return (
            self.tenant,
            self.name,
            self.number,
            opening.get("user_id"),
            opening.get("title"),
            exact(opening.get("metadata")),
            len(self.events),
            len(self.messages()),
            None if head < 0 else head,
            len(self.events) - 1,
            self.events[-1].position,
        )


class ModelStore:
    """A whole store.

    Args:
        frequency: Messages that make a roll-up due.
        max_messages: Messages that a view keeps then.
    """

    def __init__(self, frequency: int = 25, max_messages: int | None = None) -> None:
        self.frequency = frequency
        self.max_messages = max_messages
        self._loose: dict[int, int] = {}  # by session number
        self.log: list[Kept] = []
        self.sessions: dict[tuple[str, str], ModelSession] = {}
        self.ids: dict[tuple[str, str], Kept] = {}
        self.tenants: list[str] = []
        self._sessions_made = 0

    @property
    def last_position(self) -> int:
        """Position of the newest event."""
        return len(self.log)

    def answer(self, op: Op) -> Any:
        """Do an operation; what a store must give for it."""
        match op:
            case Append():
                return self.append(op)
            case Create():
                return self.create(op)
            case Batch():
                return self.batch(op)
            case Queued():
                return self.queued(op)
            case Load():
                return self.load(op)
            case Update():
                return self.update(op)
            case RollUp():
                return self.roll_up(op)
            case Delete():
                return self.delete(op)
            case Redact():
                return self.redact(op)
            case Checkout():
                return self.move(op, -1 if op.leaf is None else op.leaf)
            case Fork():
                return self.move(op, op.at, forks=True, name=op.name)
            case Everything():
                return self.everything()
            case _:
                return self.look(op)

    # Writing

    def append(self, op: Append) -> Placed | Refused:
        """See ``Append``. Checks come in the order: idempotency, expected head, ids."""
        session = self.sessions.get((op.tenant, op.session))
        digest = tuple(
            (content(new.body), *[getattr(new, name) for name in New.__slots__ if name != "body"])
            for new in (_comparable(new) for new in op.events)
        )
        if op.key is not None and session is not None and op.key in session.keys:
            known, placed = session.keys[op.key]
            if known != digest:
                return Refused("IdempotencyConflictError")
            # The id is the one that the repeated append names, the place the stored one's.
            return Placed(placed.first, placed.last, placed.position, placed.event_id, True)
        head = -1 if session is None else session.head
        if op.expected_head is not None and op.expected_head != head:
            return Refused("AppendConflictError")
        repeated = self._repeated(op.tenant, session, op.events, op.parent)
        if repeated is not None:
            return repeated
        if op.parent not in (None, -1) and (session is None or not session.can_follow(op.parent)):
            return Refused("AppendConflictError")
        session = self._open(op.tenant, op.session, op.opening)
        kept = [
            self._keep(session, new, None if number else op.parent)
            for number, new in enumerate(op.events)
        ]
        self._end(session)
        placed = Placed(kept[0].sequence, kept[-1].sequence, kept[-1].position, kept[-1].event_id)
        if op.key is not None:
            session.keys[op.key] = (digest, placed)
        return placed

    def _repeated(
        self,
        tenant: str,
        session: ModelSession | None,
        events: tuple[New, ...],
        parent: int | None,
    ) -> Placed | Refused | None:
        ids = [new.id for new in events if new.id is not None]
        if len(ids) != len(set(ids)):
            return Refused("DuplicateIdError")
        known = [self.ids.get((tenant, new.id)) if new.id else None for new in events]
        found = [kept for kept in known if kept is not None]
        if not found:
            return None
        same = [
            kept is not None
            and kept.session is session
            and not kept.new.redacted
            and kept.new.kind == new.kind
            and content(kept.new.body) == content(new.body)
            and _marks(kept.new) == _marks(new)
            for kept, new in zip(known, events, strict=True)
        ]
        first = found[0].sequence
        follows = -1 if found[0].parent is None else found[0].parent
        if known[0] is not None and parent not in (None, follows):
            return Refused("DuplicateIdError")
        if not all(same) or [kept.sequence for kept in found] != [
            first + number for number in range(len(events))
        ]:
            return Refused("DuplicateIdError")
        last = found[-1]
        return Placed(first, last.sequence, last.position, last.event_id, True)

    def move(
        self, op: Checkout | Fork, leaf: int, *, forks: bool = False, name: str | None = None
    ) -> Placed | Refused:
        """See ``Checkout`` and ``Fork``."""
        session = self.sessions.get((op.tenant, op.session))
        if leaf != -1 and (session is None or not session.can_follow(leaf)):
            return Refused("AppendConflictError")
        session = self._open(op.tenant, op.session, Opening())
        body = {"fork": True} if forks else None
        kept = [self._keep(session, New(body, kind="head_move"), leaf, forks)]
        if name is not None:
            kept.append(self._keep(session, New({"set": name}, kind="branch_name")))
            session.names[name] = session.on
        self._end(session)
        last = kept[-1]
        return Placed(kept[0].sequence, last.sequence, last.position, last.event_id)

    def create(self, op: Create) -> Placed:
        """See ``Create``."""
        session = self.sessions.get((op.tenant, op.session))
        if session is not None:
            last = session.events[-1]
            number = f"{session.number:x}.{last.sequence:010d}"
            return Placed(0, last.sequence, last.position, number, True)
        session = self._open(op.tenant, op.session, op.opening)
        kept = self._keep(session, New(None, kind="open"))
        self._end(session)
        return Placed(0, 0, kept.position, kept.event_id)

    def batch(self, op: Batch) -> Placed | Refused:
        """See ``Batch``."""
        for share in op.shares:
            session = self.sessions.get((op.tenant, share.session))
            head = -1 if session is None else session.head
            if share.expected_head is not None and share.expected_head != head:
                return Refused("AppendConflictError")
        kept = []
        for share in op.shares:
            if share.events:
                session = self._open(op.tenant, share.session, Opening())
                kept += [self._keep(session, new) for new in share.events]
                self._end(session)
        last = kept[-1]
        return Placed(kept[0].sequence, last.sequence, last.position, last.event_id)

    def queued(self, op: Queued) -> Any:
        """Answers of the appends, and what ``flush`` gives."""
        answers = [self.append(append) for append in op.appends]
        refused = [each for each in answers if isinstance(each, Refused)]
        return answers, refused[0] if refused else self.last_position

    def load(self, op: Load) -> Any:
        """See ``Load``; the lines must be whole, in order and of one session."""
        loaded = skipped = 0
        for line in op.lines:
            name = (op.tenant, line["session"])
            session = self.sessions.get(name)
            if session is not None and line["sequence"] < len(session.events):
                skipped += 1
                continue
            given = {
                field: unescape(value) if field in ("body", "metadata") else value
                for field, value in line.items()
                if field in New.__slots__
            }
            session = self._open(*name, Opening(**unescape(line.get("opening", {}))))
            new = New(**{"body": None, **given})
            forks = new.kind == "head_move" and new.body is not None
            kept = self._keep(session, new, line.get("parent"), forks)
            if new.kind == "branch_name":
                session.names[new.body["set"]] = session.on
            loaded += 1
            if loaded % op.piece_events == 0 or line is op.lines[-1]:
                self._end(session, forced=kept.new.kind == "roll_up")
        return loaded, skipped

    def update(self, op: Update) -> Placed:
        """See ``Update``."""
        body: dict[str, Any] = {}
        if op.changes:
            body["set"] = op.changes
        if op.delete:
            body["delete"] = list(op.delete)
        if not body:
            return Placed(-1, -1, 0, "")
        session = self._open(op.tenant, op.session, Opening())
        kept = self._keep(session, New(body, kind="variables"))
        self._end(session)
        return Placed(kept.sequence, kept.sequence, kept.position, kept.event_id)

    def roll_up(self, op: RollUp) -> Placed:
        """See ``RollUp``."""
        session = self.sessions.get((op.tenant, op.session))
        if session is None:
            return Placed(-1, -1, 0, "")
        kept = self._keep(session, New(None, kind="roll_up"))
        self._end(session, forced=True)
        return Placed(kept.sequence, kept.sequence, kept.position, kept.event_id)

    def delete(self, op: Delete) -> Placed | Refused:
        """See ``Delete``: name, ids and keys are free, and the session's events void."""
        session = self.sessions.pop((op.tenant, op.session), None)
        if session is None:
            return Refused("SessionNotFoundError")
        kept = self._keep(session, New(None, kind="tombstone"))
        for each in session.events[:-1]:
            each.is_void = True
        self.ids = {name: each for name, each in self.ids.items() if each.session is not session}
        session.tenant = session.name = ""
        return Placed(kept.sequence, kept.sequence, kept.position, kept.event_id)

    def redact(self, op: Redact) -> Any:
        """See ``Redact``: how many events lost what they say, had lost it or keep it, and where."""
        session = self.sessions.get((op.tenant, op.session))
        if session is None:
            return Refused("SessionNotFoundError")
        if op.last >= len(session.events):
            return Refused("UsageError")
        counts = [0, 0, 0]
        for kept in session.events[op.first : op.last + 1]:
            if kept.new.kind in CONTROLS and kept.new.kind != "metric":
                counts[2] += 1
            elif kept.new.redacted:
                counts[1] += 1
            else:
                counts[0] += 1
                kept.redact()
        said = None
        for kept in session.events[op.last + 1 :]:
            if kept.new.kind == "redaction":
                told = kept.new.body
                if told["first"] <= op.first and op.last <= told["last"]:
                    said = kept.sequence
        if counts[0] or (said is None and counts[1]):
            body = {"first": op.first, "last": op.last}
            said = self._keep(session, New(body, kind="redaction")).sequence
            self._end(session)
        return (*counts, said)

    def _end(self, session: ModelSession, *, forced: bool = False) -> None:
        """An append is whole."""
        if forced or self._loose.get(session.number, 0) >= self.frequency:
            session.events[-1].rolls_up = True
            self._loose[session.number] = 0

    def _open(self, tenant: str, name: str, opening: Opening) -> ModelSession:
        session = self.sessions.get((tenant, name))
        if session is None:
            if tenant not in self.tenants:
                self.tenants.append(tenant)
            self._sessions_made += 1
            session = ModelSession(tenant, name, self._sessions_made, opening)
            self.sessions[(tenant, name)] = session
        return session

    def _keep(
        self, session: ModelSession, new: New, parent: int | None = None, forks: bool = False
    ) -> Kept:
        sequence = len(session.events)
        made = session.made
        follows, branch = session.link(sequence, new.kind, parent, forks)
        if new.kind == "message":
            self._loose[session.number] = self._loose.get(session.number, 0) + 1
        kept = Kept(
            session,
            sequence,
            len(self.log) + 1,
            None if follows < 0 else follows,
            new,
            session.opening.facts() or None if sequence == 0 else None,
            branch=branch,
            opens=session.made > made,
        )
        self.log.append(kept)
        session.events.append(kept)
        if new.id is not None:
            self.ids[(session.tenant, new.id)] = kept
        return kept

    # Reading

    def look(self, op: Op) -> Any:
        """Answer a read."""
        match op:
            case Read():
                found = self._scoped(op.tenant, op.after)
                return [kept.facts() for kept in found[: op.limit]]
            case Follow(session=None):
                return [kept.facts() for kept in self._scoped(op.tenant, op.after)[: op.count]]
            case Sessions():
                found_sessions = sorted(
                    [
                        each
                        for each in self.sessions.values()
                        if each.tenant == op.tenant and op.user_id in (None, each.opening.user_id)
                    ],
                    key=lambda each: -each.events[-1].position,
                )
                return [each.info() for each in found_sessions]
        assert isinstance(op, (History, Events, OneEvent, Info, Follow, State, At, Branches, Path))
        session = self.sessions.get((op.tenant, op.session or ""))
        events = [] if session is None else session.events
        match op:
            case History():
                messages = []
                if session is not None:
                    messages, _ = session.view(len(events) - 1, self.max_messages)
                if op.limit is not None:
                    messages = messages[max(0, len(messages) - op.limit) :]
                return [exact(kept.new.body) for kept in messages]
            case Events():
                stop = len(events) if op.last is None else op.last + 1
                return [
                    kept.facts()
                    for kept in events[op.first : stop]
                    if op.kinds is None or kept.new.kind in op.kinds
                ]
            case State():
                found_variables = {} if session is None else session.variables(len(events) - 1)
                return [
                    (key, exact(value), sequence)
                    for key, (value, sequence) in found_variables.items()
                ]
            case At():
                return self._at(session, op.sequence)
            case Branches():
                return [] if session is None else session.branches()
            case Path():
                if op.leaf is None:
                    return [] if session is None else session.path(session.head)
                if session is None:
                    return []
                if not session.can_follow(op.leaf):
                    return Refused("UsageError")
                return session.path(op.leaf)
            case OneEvent():
                if session is None:
                    return Refused("SessionNotFoundError")
                if op.sequence >= len(events):
                    return Refused("UsageError")
                return events[op.sequence].facts()
            case Info():
                if session is None:
                    return None, False, None
                info = session.info()
                return info, True, None if session.head < 0 else session.head
            case Follow():
                return [kept.facts() for kept in events[op.after + 1 :][: op.count]]

    def _at(self, session: ModelSession | None, sequence: int | None) -> Any:
        if session is None:
            return Refused("SessionNotFoundError")
        if sequence is None:
            sequence = len(session.events) - 1
        if sequence >= len(session.events):
            return Refused("UsageError")
        shown, loose = session.view(sequence, self.max_messages)
        head = session.head_at(sequence)
        return (
            exact({key: value for key, (value, _) in session.variables(sequence).items()}),
            [exact(kept.new.body) for kept in shown],
            sum([kept.new.kind == "message" for kept in session.events[: sequence + 1]]),
            None if head < 0 else head,
            loose,
        )

    def _scoped(self, tenant: str, after: int) -> list[Kept]:
        return [
            kept
            for kept in self.log[after:]
            if not kept.is_void and tenant in ("", kept.session.tenant)
        ]

    def everything(self) -> dict[str, Any]:
        """Comparable with ``actors.everything``."""
        names = sorted(self.sessions)
        return {
            "last_position": self.last_position,
            "tenants": list(self.tenants),
            "read": self.look(Read("")),
            "events": {name: self.look(Events(*name)) for name in names},
            "history": {name: self.look(History(*name)) for name in names},
            "state": {name: self.look(State(*name)) for name in names},
            "last": {name: self.look(History(*name, limit=3)) for name in names},
            "info": {name: self.look(Info(*name)) for name in names},
            "branches": {name: self.look(Branches(*name)) for name in names},
            "sessions": {tenant: self.look(Sessions(tenant)) for tenant in self.tenants},
            "findings": [],
        }

    # Lines, and what happened beside the model

    def lines(self, tenant: str, name: str) -> list[dict[str, Any]]:
        """A session's export lines, without recorded times."""
        return [
            line_of(kept.new, name, kept.sequence, kept.told_parent, kept.opening)
            for kept in self.sessions[(tenant, name)].events
        ]

    def learn(self, tenant: str, session: str, new: New) -> None:
        """Take in an event that a store has, where only the store could know the order."""
        found = self._open(tenant, session, Opening())
        self._keep(found, new)
        self._end(found)


def _comparable(new: New) -> New:
    return New(
        new.body,
        new.kind,
        new.id,
        None if new.metadata is None else exact(new.metadata),
        new.time_us,
        new.tokens or 0,
        new.run_id,
        new.turn_id,
        new.speech_id,
        new.request_id,
    )


def _marks(new: New) -> Exact:
    return (exact(new.metadata), new.run_id, new.turn_id, new.speech_id, new.request_id)


# Export lines (decisions/0002), written from that text alone


def line_of(
    new: New, session: str, sequence: int, parent: int | None, opening: dict[str, Any] | None = None
) -> dict[str, Any]:
    """An export line as ``json.loads`` gives it, without tenant and recorded time."""
    line: dict[str, Any] = {
        "session": session,
        "sequence": sequence,
        "parent": parent,
        "kind": new.kind,
        "id": new.id,
        "time_us": new.time_us,
        "tokens": new.tokens or None,
        "run_id": new.run_id,
        "turn_id": new.turn_id,
        "speech_id": new.speech_id,
        "request_id": new.request_id,
        "opening": None if not opening else escape(opening),
        "metadata": None if new.metadata is None else escape(new.metadata),
        "redacted": new.redacted or None,
        "role": new.role,
        "body": escape(new.body),
    }
    return {name: value for name, value in line.items() if value is not None}


def escape(value: Any) -> Any:
    """Plain data as JSON carries it."""
    kind = type(value)
    if kind is dict:
        return {_escape_key(key): escape(item) for key, item in value.items()}
    if kind is list:
        return list(map(escape, value))
    if kind is bytes:
        return {"$b64": base64.b64encode(value).decode()}
    if kind is float and not math.isfinite(value):
        return {"$float": struct.pack(">d", value).hex()}
    if kind is str and _is_broken(value):
        return {"$surrogate": _broken_base64(value)}
    return value


def unescape(value: Any) -> Any:
    """The opposite."""
    kind = type(value)
    if kind is list:
        return list(map(unescape, value))
    if kind is not dict:
        return value
    if len(value) == 1:
        [(key, item)] = value.items()
        if key == "$b64":
            return base64.b64decode(item)
        if key == "$float":
            return struct.unpack(">d", bytes.fromhex(item))[0]
        if key == "$surrogate":
            return base64.b64decode(item).decode("utf-8", "surrogatepass")
    return {_unescape_key(key): unescape(item) for key, item in value.items()}


def _is_broken(text: str) -> bool:
    return any(0xD800 <= ord(sign) <= 0xDFFF for sign in text)


def _broken_base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def _escape_key(key: str) -> str:
    if _is_broken(key):
        return "$surrogate:" + _broken_base64(key)
    return "$" + key if key.startswith("$") else key


def _unescape_key(key: str) -> str:
    if key.startswith("$surrogate:"):
        return base64.b64decode(key[len("$surrogate:") :]).decode("utf-8", "surrogatepass")
    return key[1:] if key.startswith("$") else key
