"""What a store is, in plain Python: the model that stores are compared with.

Shares no code with the product. ``ModelStore.answer`` says what each operation must give,
``tests.model.performing`` asks a real store. What is said of sessions and belongs to them is in
modules of its own, whose operations do both (``operations.Noun``).

Times that the store takes from its clock are told by the store where an answer depends on them, and
left out elsewhere, as is what depends on when events were sealed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.model.answers import Exact, Placed, Refused, content, exact
from tests.model.lines import line_of, unescape
from tests.model.operations import (
    Append,
    Batch,
    Checkout,
    Create,
    Delete,
    Everything,
    Fork,
    Load,
    New,
    Noun,
    Op,
    Opening,
    Purge,
    Queued,
    RollUp,
    Update,
)
from tests.model.reading import Reading
from tests.model.sessions import Kept, ModelSession


class ModelStore(Reading):
    """A whole store.

    Args:
        frequency: Messages that make a roll-up due.
        max_messages: Messages that a view keeps then.
    """

    def __init__(self, frequency: int = 25, max_messages: int | None = None) -> None:
        self.frequency = frequency
        self.max_messages = max_messages
        self.fewest = max_messages or 2**63  # messages that any roll-up kept
        self._loose: dict[int, int] = {}  # by session number
        self.log: list[Kept] = []
        self.sessions: dict[tuple[str, str], ModelSession] = {}
        self.ids: dict[tuple[str, str], Kept] = {}
        self.tenants: list[str] = []
        self._sessions_made = 0
        self.aliases: dict[tuple[str, str], ModelSession] = {}  # by tenant and alias
        self.followed: dict[tuple[str, str | None], Any] = {}  # projections by name and tenant
        self.carried: ModelSession | None = None  # a session of another store
        self.actor = ""  # the process that asks
        self.gone: set[str] = set()  # those that ended
        self.times: dict[int, int] = {}  # recorded times by position, as far as the store told
        self.hidden: dict[int, ModelSession] = {}  # sessions of the store's own, by number
        self._foretold: dict[int, ModelSession] = {}  # their next events, by position

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
            case Purge():
                return self.purge(op)
            case Noun():
                return op.expect(self)
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
        if op.parent is not None and op.events[0].kind in ("metric", "annotation"):
            return Refused("UsageError")  # they follow nothing
        session = self.sessions.get((op.tenant, op.session))
        digest = tuple(
            [
                (
                    content(new.body),
                    *[getattr(new, mark) for mark in New.__slots__ if mark != "body"],
                )
                for new in (_comparable(new) for new in op.events)
            ]
        )
        if op.key is not None and session is not None and op.key in session.keys:
            known, placed = session.keys[op.key]
            if known != digest or not session.follows(placed.first, op.parent):
                return Refused("IdempotencyConflictError")
            # The id is the one that the repeated append names, the place the stored one's.
            return Placed(placed.first, placed.last, placed.position, placed.event_id, True)
        head = -1 if session is None else session.head
        if op.expected_head is not None and op.expected_head != head:
            return Refused("AppendConflictError")
        repeated = self._repeated(op.tenant, session, op.events, op.parent)
        if repeated is not None:
            return repeated
        if op.parent not in (None, -1):
            refused = Refused("AppendConflictError")
            refused = refused if session is None else session.refusal(op.parent)
            if refused is not None:
                return refused
        refused = _unfit(session, op)
        if refused is not None:
            return refused
        session = self._open(op.tenant, op.session, op.opening)
        kept = [
            self.keep(session, new, None if number else op.parent)
            for number, new in enumerate(op.events)
        ]
        self.end(session)
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
        if leaf != -1 and session is None:
            return Refused("AppendConflictError")
        refused = None if session is None else session.refusal(leaf)
        if refused is not None:
            return refused
        session = self._open(op.tenant, op.session, Opening())
        body = {"fork": True} if forks else None
        kept = [self.keep(session, New(body, kind="head_move"), leaf, forks)]
        if name is not None:
            kept.append(self.keep(session, New({"set": name}, kind="branch_name")))
            session.note_name(kept[-1])
        self.end(session)
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
        kept = self.keep(session, New(None, kind="open"))
        self.end(session)
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
                kept += [self.keep(session, new) for new in share.events]
                self.end(session)
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
            parent = None if "branch" in line else line.get("parent")
            kept = self.keep(session, new, parent, forks)
            session.note_name(kept)
            loaded += 1
            if loaded % op.piece_events == 0 or line is op.lines[-1]:
                self.end(session)
        return loaded, skipped

    def update(self, op: Update) -> Placed | Refused:
        """See ``Update``."""
        body: dict[str, Any] = {}
        if op.changes:
            body["set"] = op.changes
        if op.delete:
            body["delete"] = list(op.delete)
        return self.change(
            (op.tenant, op.session),
            "variables",
            body,
            key=op.key,
            expected=dict(op.expected),
            expected_head=op.expected_head,
        )

    def change(
        self,
        name: tuple[str, str],
        kind: str,
        body: dict[str, Any],
        *,
        parent: int | None = None,
        blobs: tuple[bytes, ...] = (),
        expected: dict[str, int] | None = None,
        expected_head: int | None = None,
        key: str | None = None,
        said: dict[str, Any] | None = None,
        opening: Opening = Opening(),  # noqa: B008  it never changes
    ) -> Placed | Refused:
        """An event that changes a space, under the conditions of ``update_state``.

        A key stands for ``said``, where that is less than the body.
        """
        session = self.sessions.get(name)
        digest = (kind, content(body if said is None else said), blobs)
        if key is not None and session is not None and key in session.keys:
            known, placed = session.keys[key]
            if known != digest or not session.follows(placed.first, parent):
                return Refused("IdempotencyConflictError")
            return replace(placed, already=True)
        there = {} if session is None else session.space(kind)
        versions = {each: there[each][1] if each in there else -1 for each in expected or {}}
        head = -1 if session is None else session.head
        if versions != (expected or {}) or expected_head not in (None, head):
            return Refused("AppendConflictError")
        if not body:
            return Placed(-1, -1, 0, "")
        if parent is not None:
            refused = Refused("AppendConflictError")
            refused = refused if session is None else session.refusal(parent)
            if refused is not None:
                return refused
        session = self.open(name, opening)
        placed = self.place(session, New(body, kind=kind, blobs=blobs), parent)
        if key is not None:
            session.keys[key] = (digest, placed)
        return placed

    def open(self, name: tuple[str, str], opening: Opening = Opening()) -> ModelSession:  # noqa: B008
        """A session, made where there is none."""
        return self._open(*name, opening)

    def place(
        self, session: ModelSession, new: New, parent: int | None = None, forks: bool = False
    ) -> Placed:
        """An append of one event that nothing refuses."""
        kept = self.keep(session, new, parent, forks)
        self.end(session)
        return Placed(kept.sequence, kept.sequence, kept.position, kept.event_id)

    def roll_up(self, op: RollUp) -> Placed:
        """See ``RollUp``."""
        session = self.sessions.get((op.tenant, op.session))
        if session is None:
            return Placed(-1, -1, 0, "")
        kept = self.keep(session, New(None, kind="roll_up"))
        self.end(session)
        return Placed(kept.sequence, kept.sequence, kept.position, kept.event_id)

    def delete(self, op: Delete) -> Placed | Refused:
        """See ``Delete``: name, ids and keys are free, and the session's events void."""
        session = self.sessions.get((op.tenant, op.session))
        if session is None:
            return Refused("SessionNotFoundError")
        return self.remove(session)

    def remove(self, session: ModelSession) -> Placed:
        """A session is gone but for its tombstone."""
        self.sessions.pop((session.tenant, session.name), None)
        kept = self.keep(session, New(None, kind="tombstone"))
        for each in session.events[:-1]:
            each.is_void = True
        self.ids = {name: each for name, each in self.ids.items() if each.session is not session}
        session.tenant = session.name = ""
        return Placed(kept.sequence, kept.sequence, kept.position, kept.event_id)

    def purge(self, op: Purge) -> Placed | Refused:
        """See ``Purge``: ids are free, and all that the events added up to stays."""
        session = self.sessions.get((op.tenant, op.session))
        if session is None:
            return Refused("SessionNotFoundError")
        if op.first > len(session.events):
            return Refused("UsageError")
        if op.first <= session.first:
            return Refused("TrimmedError")
        for each in session.events[: op.first]:
            each.is_void = True
        session.first = op.first
        self.ids = {
            name: each
            for name, each in self.ids.items()
            if each.session is not session or each.sequence >= op.first
        }
        return self.place(session, New(None, kind="base"))

    # What the store writes for itself

    def foretell(self, written: list[tuple[int, int, str]]) -> None:
        """Take in position, session number and tenant of events that the store wrote for itself."""
        for position, number, tenant in written:
            if number not in self.hidden:
                self.hidden[number] = ModelSession(tenant, "", number, Opening())
            self._foretold[position] = self.hidden[number]

    def know_tenant(self, tenant: str) -> None:
        """Something of a tenant is written."""
        if tenant not in self.tenants:
            self.tenants.append(tenant)

    def settle(self) -> None:
        """All that was foretold is in."""
        self._pass_hidden()
        assert not self._foretold, f"positions that no operation explains: {self._foretold}"

    def _pass_hidden(self) -> None:
        while (session := self._foretold.pop(self.last_position + 1, None)) is not None:
            self.know_tenant(session.tenant)
            new = New(None, kind="facts")
            kept = Kept(session, len(session.events), self.last_position + 1, None, new)
            kept.is_void = True
            session.events.append(kept)
            self.log.append(kept)

    def end(self, session: ModelSession) -> None:
        """An append is whole."""
        if self._loose.get(session.number, 0) >= self.frequency:
            self.roll_up_after(session.events[-1])

    def roll_up_after(self, kept: Kept) -> None:
        """The session rolls up after an event."""
        kept.rolls_up = True
        kept.keeps = self.max_messages
        self._loose[kept.session.number] = 0

    def _open(self, tenant: str, name: str, opening: Opening) -> ModelSession:
        session = self.sessions.get((tenant, name))
        if session is None:
            self.know_tenant(tenant)
            self._sessions_made += 1
            while self._sessions_made in self.hidden:
                self._sessions_made += 1
            session = ModelSession(tenant, name, self._sessions_made, opening)
            self.sessions[(tenant, name)] = session
        return session

    def keep(
        self, session: ModelSession, new: New, parent: int | None = None, forks: bool = False
    ) -> Kept:
        """One more event of an append that nothing refuses; ``end`` ends it."""
        self._pass_hidden()
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
        if new.kind == "roll_up":  # wherever it stands in an append
            self.roll_up_after(kept)
        if new.id is not None:
            self.ids[(session.tenant, new.id)] = kept
        return kept

    # Lines, and what happened beside the model

    def lines(self, tenant: str, name: str) -> list[dict[str, Any]]:
        """A session's export lines, without recorded times."""
        return [
            line_of(kept.new, name, kept.sequence, kept.told_parent, kept.opening, kept.told_branch)
            for kept in self.sessions[(tenant, name)].events
            if not kept.is_void
        ]

    def learn(self, tenant: str, session: str, new: New) -> None:
        """Take in an event that a store has, where only the store could know the order."""
        found = self._open(tenant, session, Opening())
        self.keep(found, new)
        self.end(found)


def _unfit(session: ModelSession | None, op: Append) -> Refused | None:
    """Why a compaction cannot follow: what it stands for must be on the path that it continues."""
    body = op.events[0].body
    if op.events[0].kind != "compaction" or type(body) is not dict:
        return None
    through = body.get("data", {}).get("through")
    if through is None:
        return None
    if session is None:
        return Refused("AppendConflictError")
    follows = session.head if op.parent is None else op.parent
    if through >= len(session.events) or follows < 0:
        return Refused("AppendConflictError")
    if through < session.first:
        return Refused("TrimmedError")
    return None if through in session.path(follows) else Refused("AppendConflictError")


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
