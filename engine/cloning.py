"""Clones: a session's events copied into another one, with sequences and parents of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from engine.artifacts import content_addresses, contents_of
from engine.belonging import is_on
from engine.boundary import EventName
from engine.copying import Copied, summed
from engine.drafting import draft_control, draft_event, encode_opening, make_ack
from engine.events import OPENING_FACTS, Event, opening_of
from engine.facts import HOLD
from engine.fold import Fold, read_base
from engine.forks import Forks
from engine.kinds import COMPACTION, CONTROLS
from engine.pathscan import PathScan
from engine.reading import SessionPager
from engine.spaces import KINDS, SPACES, Space
from engine.unredacted import redactions_of
from engine.values import Present
from eventlog.ack import Ack, Draft, Removal
from eventlog.branching import Stretch
from eventlog.errors import (
    AppendConflictError,
    ConflictError,
    SessionGoneError,
    SessionNotFoundError,
    TrimmedError,
    TurnlogError,
    UsageError,
)
from eventlog.limits import BATCH_BYTES_MAX, BATCH_EVENTS_MAX
from eventlog.record import (
    BELONGS,
    BRANCH_NAME,
    CONTROL,
    HEAD_MOVE,
    LINK,
    REDACTION,
    ROLL_UP,
    TOMBSTONE,
    change_tail,
)
from eventlog.rollup import ROLLS_UP

if TYPE_CHECKING:
    from engine.session import Session

# Of control kinds these stay, and the others are copied: that the original began or was purged, and
# what was used for it, is about the original.
_STAYS: Final = frozenset(
    [CONTROLS[name] for name in ("open", "tombstone", "base", "options", "void")]
    + [KINDS[Space.USAGE]]
)
_ROOT: Final = -1
_WAIT_S: Final = 3600.0  # for room; whoever clones has nothing better to do


def clone(session: Session, name: str, leaf: int | None) -> Session:
    """See ``Session.clone``."""
    store = session._store
    facts = store._log.views.facts(session._name)
    if facts is None:
        raise SessionNotFoundError(f"no session {session.name!r}")
    number, last = facts.origin.number, facts.event_count - 1
    made = store.tenant(session.tenant).session(name)
    if made.exists:
        raise _exists(name)
    opening = opening_of(facts.row, number)
    copies = _Copies(session, number, last if leaf is None else leaf, leaf)
    made._opening = encode_opening(*[opening.get(fact) for fact in OPENING_FACTS])
    reached: Ack | None = None  # by the pieces that are durable
    sent: Ack | None = None
    try:
        for drafts in _pieces(copies.drafts()):
            following = 0 if reached is None else reached.last + 1
            ack = make_ack(
                made._name,
                drafts,
                opening=made._opening,
                expected_next=following,
                number=None if reached is None else reached.session_number,
            )
            store._submit(ack, _WAIT_S)
            sent = ack
            reached = ack.result()
        _require_as_read(session, number, last + 1)
    except BaseException as error:
        reached = _outcome(sent) or reached
        if reached is not None:
            _remove(made, reached, error)
        elif isinstance(error, AppendConflictError) and made.exists:
            raise _exists(name) from error
        raise
    return store.tenant(session.tenant).session(name)


def _require_as_read(session: Session, number: int, read: int) -> None:
    """Raise when the original was redacted or deleted since: what was removed is in the copy.

    Args:
        session: The original.
        number: Number of its incarnation.
        read: Events that it had.

    Raises:
        SessionGoneError: It was deleted.
        AppendConflictError: It was redacted.
    """
    log = session._store._log
    facts = log.views.facts(session._name)
    if facts is None or facts.origin.number != number:
        current = None if facts is None else facts.origin.number
        raise SessionGoneError.while_read(session.name, number, current)
    if redactions_of(log, session._name, read, facts.event_count):
        raise AppendConflictError(
            f"session {session.name!r} was redacted while it was cloned", hint="Clone it again."
        )


def _exists(name: str) -> AppendConflictError:
    return AppendConflictError(f"there is a session {name!r} already", expected=-1, current=name)


def _outcome(sent: Ack | None) -> Ack | None:
    """The last piece that was sent, if it is durable: an interrupt may come before one knows."""
    try:
        return None if sent is None else sent.result()
    except TurnlogError:
        return None


def _remove(made: Session, reached: Ack, error: BaseException) -> None:
    """Erase an unfinished clone, unless somebody else wrote to it or has the name by now."""
    removal = Removal(number=reached.session_number, is_erased=True)
    try:
        made._remove((draft_control(TOMBSTONE),), removal, expected_next=reached.last + 1).result()
    except ConflictError:
        error.add_note(
            f"Session {made.name!r} was left as it is: "
            "meanwhile somebody appended to the unfinished clone, or deleted it."
        )
    except TurnlogError:
        pass  # what stopped the clone stops this too; it has no ``cloned_from``


def _pieces(drafts: Iterator[Draft]) -> Iterator[list[Draft]]:
    """As few appends as take them all."""
    piece: list[Draft] = []
    size = 0
    for draft in drafts:
        if piece and (len(piece) == BATCH_EVENTS_MAX or size + draft.size > BATCH_BYTES_MAX):
            yield piece
            piece, size = [], 0
        piece.append(draft)
        size += draft.size
    yield piece


def _place(event: Event, sequence: int) -> dict[str, int]:
    """Where an event stands, as ``is_on`` asks for it."""
    return {"event": sequence, "branch": event.branch}


class _Copies:
    """The events of one clone."""

    def __init__(self, session: Session, number: int, last: int, leaf: int | None) -> None:
        self._session = session
        self._number = number
        self._last = last
        self._leaf = leaf
        self._copied = Copied(number, 0)
        self._path: Sequence[Stretch] | None = None  # to the leaf
        self._rolls_up = False  # whether the copies roll up where the originals did
        self._head: int | None = None  # of the copies
        self._is_forked = False  # whether that is on a branch without an event
        self._forks = Forks(session._store._log)
        self._newest: dict[int, int] = {}  # of the copies, by the originals' branches
        self._waiting: dict[str, int] = {}  # names of branches without a copy so far
        self._held: tuple[Any, ...] = ()  # the fact of the copies that holds them
        self._made = 0

    def drafts(self) -> Iterator[Draft]:
        """All of them, in order; the last one says where the session comes from."""
        session = self._session
        with session._store._log.views.past(session._name) as past:
            if past is None:
                raise SessionNotFoundError(f"no session {session.name!r}")
            first = past.first
            base = read_base(past) if first else None
            options = session._store._log.options.roll_ups.of_session(past.row.opening)
            self._rolls_up = past.is_trimmed or options.max_messages is not None
        self._copied.first = first
        on_path: set[int] | None = None
        if self._leaf is not None:
            if self._leaf < first:
                raise TrimmedError(
                    f"the events of session {session.name!r} below {first} were purged",
                    first=first,
                )
            on_path = {event.sequence for event in session.path_events(self._leaf)}
            if self._leaf not in on_path:
                raise UsageError(f"session {session.name!r} has no event {self._leaf}")
            self._path = session._stretches(self._leaf, self._number)
        if base is not None:
            yield from self._of_base(base)
        pager = SessionPager(
            session._store._log,
            session._name,
            first,
            self._last,
            None,
            self._number,
            self._last + 1,
        )
        while page := pager.next_page():
            for event in page:
                yield from self._drafts_of(event, on_path)
        change: dict[str, Any] = {"set": {"cloned_from": [session.name, self._leaf]}}
        hold = Present(session._store, session._name, self._number).one(Space.FACTS, HOLD)
        if hold is None and self._held:
            change["delete"] = [HOLD]
        elif hold is not None and self._held != (hold.value(),):
            change["set"][HOLD] = hold.value()
        yield draft_event(Space.FACTS.title, change, loading=True)

    def _of_base(self, base: Fold) -> Iterator[Draft]:
        """What purged events added up to."""
        session = self._session
        if self._leaf is None:
            names = sorted(base.names.values(), key=lambda each: each.sequence)
            self._waiting = {each.name: each.branch for each in names}
        addresses = content_addresses(
            session._store, session._name, contents_of(base), self._number
        )
        for change in summed(base, lambda value: is_on(self._path, value)):
            body: dict[str, Any] | None = change.body
            blobs: tuple[bytes, ...] = ()
            if change.space is Space.FACTS:
                body = self._facts(change.body)
            elif change.contents:
                # A content that is missing is missing for the copy, too.
                found = [addresses.get(name) for _, name in change.contents]
                blobs = tuple([address for address in found if address is not None])
            if body is not None:
                self._copied.steps.update(dict.fromkeys(change.steps, self._made))
                self._made += 1
                yield draft_event(change.space.title, body, blobs=blobs, loading=True)

    def _drafts_of(self, event: Event, on_path: set[int] | None) -> Iterator[Draft]:
        """The copy of an event, and what comes after it."""
        rolls_up = self._rolls_up_after(event)
        draft = self._copy(event, on_path)
        if rolls_up and draft is None:
            draft = draft_event("roll_up", None, loading=True)
        elif rolls_up and draft is not None:
            # Where the clone's appends end is another matter.
            tail = change_tail(draft.tail, ROLLS_UP, draft.extension_bytes)
            draft = draft._replace(tail=tail)
        if draft is not None:
            self._made += 1
            yield draft
        if self._waiting and event.kind_code < CONTROL:
            names = [name for name, branch in self._waiting.items() if branch == event.branch]
            for name in names:
                del self._waiting[name]
                self._made += 1
                yield draft_event("branch_name", {"set": name}, loading=True)

    def _rolls_up_after(self, event: Event) -> bool:
        """Whether the clone is to roll up where the original did after an event."""
        return (
            self._rolls_up
            and event.flags & ROLLS_UP != 0
            and is_on(self._path, _place(event, event.sequence))
        )

    def _copy(self, event: Event, on_path: set[int] | None) -> Draft | None:
        code = event.kind_code
        body = event.body
        parent: int | None = None
        copied = self._copied
        places = copied.places
        if code < CONTROL:
            if on_path is not None and event.sequence not in on_path:
                return None
            follows = None if event.parent is None else places.get(event.parent)
            if follows != self._head:
                parent = _ROOT if follows is None else follows
            places[event.sequence] = self._head = self._newest[event.branch] = self._made
            self._is_forked = False
            if code == COMPACTION:
                body = copied.compaction(body, partial(self._resolve, event.sequence))
        elif code in _STAYS or (on_path is not None and code in (HEAD_MOVE, BRANCH_NAME)):
            return None
        elif code == ROLL_UP:
            if not self._rolls_up_after(event):
                return None
        elif code == HEAD_MOVE:
            follows = None if event.parent is None else places.get(event.parent)
            parent = _ROOT if follows is None else follows
            self._head = follows
            self._is_forked = body is not None
        elif code == BRANCH_NAME:
            parent, body = self._naming(event)
            if not body:
                return None
        elif code == LINK:
            body = copied.link(body)
        elif code == REDACTION:
            body = copied.redaction(body)
        elif code == KINDS[Space.FACTS]:
            body = self._facts(body)
        elif code in SPACES:
            body = copied.change(SPACES[code], body)
            copied.steps[event.sequence] = self._made
            if code in BELONGS and event.parent is not None:
                parent = places.get(event.parent)
                if event.parent >= copied.first and not is_on(
                    self._path, _place(event, event.parent)
                ):
                    return None
                if parent == self._head and (
                    not self._is_forked or self._forks.branch_of(event) is not None
                ):
                    parent = None  # and it is on the branch that the head is on
        if body is None and code in (LINK, REDACTION, KINDS[Space.FACTS]):
            return None
        if event.redacted:
            copied.redacted[event.sequence] = self._made
        return draft_event(
            event.kind,
            body,
            metadata=event.metadata,
            time_us=event.time_us,
            tokens=event.tokens or None,
            run_id=event.run_id,
            turn_id=event.turn_id,
            speech_id=event.speech_id,
            request_id=event.request_id,
            blobs=event.blobs,
            parent=parent,
            loading=True,
            redacted=event.redacted,
            role=event.role if event.redacted else None,
        )

    def _naming(self, event: Event) -> tuple[int | None, dict[str, str]]:
        """Parent and body of what names a branch; without a copy on that the name waits for one."""
        body: dict[str, str] = event.body
        for name in body.values():
            self._waiting.pop(name, None)
        if event.parent is None:
            if not self._copied.first or self._is_forked or event.branch in self._newest:
                return None, body
        else:
            parent = self._copied.places.get(event.parent, self._newest.get(event.branch))
            if parent is not None:
                return parent, body
        if "set" in body:
            self._waiting[body["set"]] = event.branch
        return None, {key: name for key, name in body.items() if key == "delete"}

    def _facts(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        copied = self._copied.facts(body)
        if copied is not None and HOLD in copied.get("delete", ()):
            self._held = ()
        elif copied is not None and HOLD in copied.get("set", ()):
            self._held = (copied["set"][HOLD],)
        return copied

    def _resolve(self, compaction: int, names: Collection[EventName]) -> Mapping[EventName, int]:
        session = self._session
        scan = PathScan(session._store._log, session._name, compaction)
        return scan.resolve(names, compaction)
