"""A session: the handle that hosts append to and read from."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from engine.at import SessionAt, session_at
from engine.belongings import branch_number, require_branch
from engine.blobs import BlobLike, addresses_of
from engine.catalog import info_of
from engine.drafting import (
    AckMode,
    Part,
    draft_control,
    draft_event,
    draft_message,
    encode_opening,
    make_ack,
    plain_tail,
)
from engine.events import OPENING_FACTS, Event, SessionInfo
from engine.history import last_bodies
from engine.holds import Holding
from engine.kinds import CONTROLS, SIDE
from engine.reading import Events, SessionPager, Subscription, kinds_wanted, on_branch
from engine.spaces import Space
from engine.state import state_of, variables_of
from engine.values import Present
from engine.variables import Variable, change_body, versions_of
from engine.waiting import UpTo
from eventlog.ack import Ack, Draft
from eventlog.admission import signed_head
from eventlog.arguments import items, shown, whole
from eventlog.body import encode_body
from eventlog.errors import (
    InvalidMessageError,
    LimitExceededError,
    SessionNotFoundError,
    StoreClosedError,
    TrimmedError,
    UsageError,
)
from eventlog.keys import U64_MAX
from eventlog.limits import BATCH_EVENTS_MAX, POSITION_MAX
from eventlog.record import CONTROL, HEADER_BYTES

if TYPE_CHECKING:
    from engine.store import Store


class Session(Holding, UpTo):
    """A cheap handle on one session; holds no lock, reads nothing, never goes stale.

    The session is written with its first append, or by ``create``. What ``tenant.session`` takes
    beside the name are facts given at creation; they are ignored when it exists already.
    """

    __slots__ = ("_name", "_opening", "_queue", "_store", "name", "tenant")

    def __init__(
        self,
        store: Store,
        tenant: str,
        name: str,
        user_id: str | None = None,
        title: str | None = None,
        metadata: dict[str, Any] | None = None,
        snapshot_frequency: int | None = None,
        max_messages: int | None = None,
        account_id: str | None = None,
        agent_id: str | None = None,
        workspace: str | None = None,
    ) -> None:
        self._store = store
        self._queue = store._log.writer.submit
        self._name = (tenant, name)
        owners = (account_id, agent_id, workspace)
        given = (user_id, title, metadata, snapshot_frequency, max_messages, *owners)
        self._opening = None if given == _NO_FACTS else encode_opening(*given)
        if snapshot_frequency is not None or max_messages is not None:
            store._require_version(2, "options of a session's own")
        if owners != _NO_OWNERS:
            store._require_version(2, "owners other than users")
        self.tenant = tenant
        self.name = name

    def __repr__(self) -> str:
        return f"Session({self.name!r}, tenant={self.tenant!r})"

    # Writing

    def create(self, *, wait: float | None = None) -> Ack:
        """Write the session without an event of the caller's; fine when it exists already.

        Args:
            wait: See ``append``.
        """
        drafts = (draft_control(CONTROLS["open"]),)
        ack = make_ack(self._name, drafts, opening=self._opening, create=True)
        self._store._submit(ack, wait)
        return ack

    def append(
        self,
        message: dict[str, Any],
        *,
        parent: int | str | None = None,
        expected_head: int | None = None,
        idempotency_key: str | None = None,
        id: str | None = None,
        metadata: dict[str, Any] | None = None,
        time_us: int | None = None,
        tokens: int | None = None,
        run_id: str | None = None,
        turn_id: str | None = None,
        speech_id: str | None = None,
        request_id: str | None = None,
        blobs: Sequence[BlobLike] = (),
        ack: AckMode = "durable",
        wait: float | None = None,
    ) -> Ack:
        """Append one message; returns at once.

        The message is encoded before this returns; it is plain data (``eventlog.body``). On an
        event loop a message above 256 KiB should go through ``append_large``.

        Args:
            message: A dict.
            parent: Sequence or id of the event that it follows, -1 for none; None follows the head.
                Followed is any public event of the session; where another one did so before, a
                branch opens. The head moves to the new event.
            expected_head: Sequence that must be the session's head; -1: it must have none.
            idempotency_key: Repeating the append with this key stores it once.
            id: The caller's id of the event, unique within the tenant. The same id with the same
                content is a retry, as with a key: the ack is ``already``, and nothing is stored.
            metadata: Plain data kept beside the body.
            time_us: The caller's time, µs since the epoch: ``time.time_ns() // 1000``. Seconds are
                a valid time too, of 1970.
            tokens: Token count.
            run_id: The run that it belongs to; likewise ``turn_id``, ``speech_id`` and
                ``request_id``.
            turn_id: The turn.
            speech_id: The utterance.
            request_id: The model request.
            blobs: What it refers to: what ``tenant.blobs.put`` gave, or addresses; at most 256.
            ack: ``"queued"`` makes awaiting the ack return once the append is accepted.
            wait: Seconds to wait for room in the queue, in a thread; None raises at once.

        Raises:
            InvalidMessageError: A value that cannot be stored, with its path.
            LimitExceededError: Too large or too deep.
            OverloadedError: The queue is full.

        The ack raises ``AppendConflictError``, ``IdempotencyConflictError`` or ``DuplicateIdError``
        when a condition fails, ``ConflictError`` when the tenant has no such blob (any more), and
        ``StorageFullError``, ``QuotaExceededError`` or ``BusyError``
        when the store could not write; then nothing of the append was written.
        """
        if (
            id is None
            and metadata is None
            and time_us is None
            and tokens is None
            and run_id is None
            and turn_id is None
            and speech_id is None
            and request_id is None
            and parent is None
            and not blobs
        ):
            if (
                expected_head is None
                and idempotency_key is None
                and wait is None
                and ack == "durable"
            ):
                return self._append_plain(message)
            draft = draft_message(message)
        else:
            draft = draft_event(
                "message",
                message,
                id=id,
                metadata=metadata,
                time_us=time_us,
                tokens=tokens,
                run_id=run_id,
                turn_id=turn_id,
                speech_id=speech_id,
                request_id=request_id,
                blobs=self._addresses(blobs),
                parent=self._parent(parent),
            )
        return self._submit((draft,), expected_head, idempotency_key, ack, wait)

    def _append_plain(self, message: dict[str, Any]) -> Ack:
        """The shortest way from a message to the queue."""
        if type(message) is not dict:
            raise InvalidMessageError(
                f"a message must be a dict, not {type(message).__name__}", path="$"
            )
        body, fixes = encode_body(message)
        if fixes is not None:
            return self._submit((draft_message(message),), None, None, "durable", None)
        store = self._store
        size = HEADER_BYTES + len(body)
        ack = Ack(self._name, size, plain_tail(message), body, self._opening, store)
        if store._closed:
            raise StoreClosedError("the store is closed")
        self._queue(ack)
        return ack

    def append_event(
        self,
        kind: str,
        body: object,
        *,
        parent: int | str | None = None,
        expected_head: int | None = None,
        idempotency_key: str | None = None,
        id: str | None = None,
        metadata: dict[str, Any] | None = None,
        time_us: int | None = None,
        tokens: int | None = None,
        run_id: str | None = None,
        turn_id: str | None = None,
        speech_id: str | None = None,
        request_id: str | None = None,
        blobs: Sequence[BlobLike] = (),
        ack: AckMode = "durable",
        wait: float | None = None,
    ) -> Ack:
        """Append one event of a public or application kind; options as for ``append``.

        Args:
            kind: ``message``, ``event``, ``summary``, ``metadata``, ``model_change``, ``label``,
                ``custom``, ``compaction``, or any name of the application that is not kept for
                the store (``kinds.RESERVED``). Of the kinds ``metric`` and ``annotation`` an event
                stands beside the history: it has no parent, and the head stays as it is. A
                ``compaction`` changes what ``window`` gives, as one of ``compact`` does: its body
                is ``{"summary": text, "data": {"through": event, "keep": [events]}}``, and the
                newest on a path counts alone. Without ``through`` it hides nothing, also not what
                an earlier one stood for; without ``summary`` and ``data`` it changes no view.
            body: Plain data.
            parent: See ``append``; so are all others.
            expected_head: See ``append``.
            idempotency_key: See ``append``.
            id: See ``append``.
            metadata: See ``append``.
            time_us: See ``append``.
            tokens: See ``append``.
            run_id: See ``append``.
            turn_id: See ``append``.
            speech_id: See ``append``.
            request_id: See ``append``.
            blobs: See ``append``.
            ack: See ``append``.
            wait: See ``append``.
        """
        draft = draft_event(
            kind,
            body,
            id=id,
            metadata=metadata,
            time_us=time_us,
            tokens=tokens,
            run_id=run_id,
            turn_id=turn_id,
            speech_id=speech_id,
            request_id=request_id,
            blobs=self._addresses(blobs),
            parent=self._parent(parent),
        )
        if kind in SIDE:
            self._store._require_version(2, f"events of kind {kind}")
        return self._submit((draft,), expected_head, idempotency_key, ack, wait)

    def append_many(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        ids: Sequence[str | None] | None = None,
        parent: int | str | None = None,
        expected_head: int | None = None,
        idempotency_key: str | None = None,
        metadata: dict[str, Any] | None = None,
        time_us: int | None = None,
        run_id: str | None = None,
        turn_id: str | None = None,
        blobs: Sequence[Sequence[BlobLike]] | None = None,
        ack: AckMode = "durable",
        wait: float | None = None,
    ) -> Ack:
        """Append messages atomically, with contiguous sequences and positions.

        For tokens, times or metadata of each message use ``append``, whose acks share commits, or
        ``store.load``.

        Args:
            messages: 1 to 16,384 dicts.
            ids: Their ids, one each, None where there is none.
            parent: What the first of them follows; see ``append``. The others follow each other.
            expected_head: See ``append``.
            idempotency_key: Stands for all of them.
            metadata: Given to each; likewise ``time_us``, ``run_id`` and ``turn_id``.
            time_us: See ``append``.
            run_id: See ``append``.
            turn_id: See ``append``.
            blobs: What they refer to, a list for each.
            ack: See ``append``.
            wait: See ``append``.
        """
        messages = items(messages, "messages")
        if not messages:
            raise UsageError("append_many needs at least one message")
        if ids is not None:
            ids = items(ids, "ids")
            if len(ids) != len(messages):
                raise UsageError(f"{len(ids)} ids for {len(messages)} messages")
        addresses = self._addresses_of_each(blobs, len(messages), "messages")
        if len(messages) > BATCH_EVENTS_MAX:
            raise LimitExceededError(
                f"{len(messages):,} events in one batch; at most {BATCH_EVENTS_MAX:,} are allowed",
                name="BATCH_EVENTS_MAX",
                actual=len(messages),
                limit=BATCH_EVENTS_MAX,
                hint="Use store.load for long imports; it commits in pieces.",
            )
        if (
            ids is None
            and metadata is None
            and time_us is None
            and run_id is None
            and turn_id is None
            and parent is None
            and addresses is None
        ):
            drafts = [draft_message(message) for message in messages]
        else:
            drafts = [
                draft_event(
                    "message",
                    message,
                    id=None if ids is None else ids[number],
                    metadata=metadata,
                    time_us=time_us,
                    run_id=run_id,
                    turn_id=turn_id,
                    blobs=() if addresses is None else addresses[number],
                    parent=None if number else self._parent(parent),
                )
                for number, message in enumerate(messages)
            ]
        return self._submit(drafts, expected_head, idempotency_key, ack, wait)

    async def append_large(
        self,
        message: dict[str, Any],
        *,
        parent: int | str | None = None,
        expected_head: int | None = None,
        idempotency_key: str | None = None,
        id: str | None = None,
        metadata: dict[str, Any] | None = None,
        time_us: int | None = None,
        tokens: int | None = None,
        run_id: str | None = None,
        turn_id: str | None = None,
        speech_id: str | None = None,
        request_id: str | None = None,
        blobs: Sequence[BlobLike] = (),
        ack: AckMode = "durable",
    ) -> Ack:
        """Append a large message from an event loop and wait until it is durable.

        It is encoded on the store's pool, so the loop goes on meanwhile; do not change the message
        until this returns. Waits for room in the queue.

        Args:
            message: A dict.
            parent: See ``append``; so are all others.
            expected_head: See ``append``.
            idempotency_key: See ``append``.
            id: See ``append``.
            metadata: See ``append``.
            time_us: See ``append``.
            tokens: See ``append``.
            run_id: See ``append``.
            turn_id: See ``append``.
            speech_id: See ``append``.
            request_id: See ``append``.
            blobs: See ``append``.
            ack: See ``append``.
        """
        loop = asyncio.get_running_loop()
        addresses = self._addresses(blobs)
        follows = self._parent(parent)

        def encode() -> Ack:
            draft = draft_event(
                "message",
                message,
                id=id,
                metadata=metadata,
                time_us=time_us,
                tokens=tokens,
                run_id=run_id,
                turn_id=turn_id,
                speech_id=speech_id,
                request_id=request_id,
                blobs=addresses,
                parent=follows,
            )
            return make_ack(
                self._name,
                (draft,),
                opening=self._opening,
                expected_head=expected_head,
                idempotency_key=idempotency_key,
                mode=ack,
            )

        appended = await loop.run_in_executor(self._store._pool(), encode)
        await self._store._submit_async(appended)
        return await appended

    def draft(
        self,
        messages: Sequence[dict[str, Any]] = (),
        *,
        events: Sequence[tuple[str, Any]] = (),
        blobs: Sequence[Sequence[BlobLike]] | None = None,
        expected_head: int | None = None,
    ) -> Part:
        """This session's part of ``store.append_batch``.

        Args:
            messages: Messages to append.
            events: Events to append after them, as (kind, body).
            blobs: What they refer to, a list for each message and then for each event.
            expected_head: Sequence that must be the head, -1 for none; with no messages and no
                events the session is only read.
        """
        parts: list[tuple[str, Any]] = [("message", each) for each in items(messages, "messages")]
        for event in items(events, "events"):
            if type(event) is not tuple or len(event) != 2:
                raise UsageError(f"events must hold (kind, body), not {shown(event)}")
            parts.append(event)
        addresses = self._addresses_of_each(blobs, len(parts), "messages and events")
        drafts = [
            draft_event(*part, blobs=() if addresses is None else addresses[number])
            for number, part in enumerate(parts)
        ]
        return Part(self._name, tuple(drafts), self._opening, expected_head)

    def _parent(self, parent: int | str | None) -> int | str | None:
        if parent is not None:
            self._store._require_version(2, "branches")
        return parent

    def _addresses(self, blobs: Sequence[BlobLike]) -> tuple[bytes, ...]:
        """The addresses of what an event refers to."""
        return addresses_of(self._store._log, self.tenant, blobs) if blobs else ()

    def _addresses_of_each(
        self, blobs: Sequence[Sequence[BlobLike]] | None, count: int, what: str
    ) -> list[tuple[bytes, ...]] | None:
        """The addresses of what each of several events refers to."""
        if blobs is None:
            return None
        given = items(blobs, "blobs")
        if len(given) != count:
            raise UsageError(f"{len(given)} lists of blobs for {count} {what}")
        return [self._addresses(each) for each in given]

    def update_state(
        self,
        changes: dict[str, Any],
        *,
        delete: Sequence[str] = (),
        expected: Mapping[str, int] | None = None,
        expected_head: int | None = None,
        idempotency_key: str | None = None,
        ack: AckMode = "durable",
        wait: float | None = None,
    ) -> Ack:
        """Set and delete variables, all or none, with one event; creates the session.

        Without anything to set or delete nothing is written and no session made; ``expected_head``
        is checked all the same, and the ack's ``first`` and ``last`` are -1.

        Args:
            changes: New values by key, 1 to 512 UTF-8 bytes each. A value is plain data and
                replaces the one before whole; None is a value. Keys not named stay as they are.
            delete: Keys to take away; one that is not there is fine.
            expected: Versions that variables must have, by key: ``Variable.sequence``, -1 for one
                that must not be there. Also of keys that are not changed.
            expected_head: See ``append``; so are all others. The head stays as it is.
            idempotency_key: See ``append``.
            ack: See ``append``.
            wait: See ``append``.

        Raises:
            InvalidMessageError: A value that cannot be stored, with its path.
            UsageError: A key that cannot be, or one that is both set and deleted.
            FormatVersionError: The store has format version 1.

        The ack raises ``AppendConflictError`` when a variable has another version than ``expected``
        says, or the head is another.
        """
        return self._change(
            Space.VARIABLES,
            changes,
            items(delete, "delete"),
            expected=expected,
            expected_head=expected_head,
            idempotency_key=idempotency_key,
            ack=ack,
            wait=wait,
        )

    def _change(
        self,
        space: Space,
        changes: dict[str, Any],
        delete: Sequence[str] = (),
        *,
        append: Mapping[str, Any] | None = None,
        sweep: Sequence[str] = (),
        parent: int | str | None = None,
        blobs: Sequence[bytes] = (),
        expected: Mapping[str, int] | None = None,
        what: str | None = None,
        expected_head: int | None = None,
        idempotency_key: str | None = None,
        ack: AckMode = "durable",
        wait: float | None = None,
    ) -> Ack:
        """Set, delete and append keys of a space with one event, as ``update_state`` does.

        Another version than is expected is told of ``what``, or of the key. It also deletes
        ``sweep``, what became needless; an idempotency key does not stand for that.
        """
        self._store._require_version(2, space.title)

        def draft(body: dict[str, Any]) -> Draft:
            return draft_event(space.title, body, loading=True, parent=parent, blobs=blobs)

        body = change_body(changes, [*delete, *sweep], append)
        drafts: Sequence[Draft] = (draft(body),) if body else ()
        said: Sequence[Draft] | None = None
        if sweep and idempotency_key is not None:
            said = (draft(change_body(changes, delete, append)),)
        sent = make_ack(
            self._name,
            drafts,
            opening=self._opening,
            expected_head=expected_head,
            idempotency_key=idempotency_key,
            said=said,
            mode=ack,
            versions=() if expected is None else versions_of(space, expected, what),
        )
        self._store._submit(sent, wait)
        return sent

    def roll_up(self, *, wait: float | None = None) -> Ack:
        """Roll up now, whatever number of messages came since the last roll-up.

        The count starts again, and the view keeps the last ``max_messages`` messages. Of a session
        that does not exist nothing is written: the ack's ``first`` and ``last`` are -1 then.

        Args:
            wait: See ``append``.

        Raises:
            FormatVersionError: The store has format version 1.
        """
        self._store._require_version(2, "roll-ups")
        drafts = (draft_control(CONTROLS["roll_up"]),)
        ack = make_ack(self._name, drafts, opening=None, only_existing=True)
        self._store._submit(ack, wait)
        return ack

    def _submit(
        self,
        drafts: Sequence[Draft],
        expected_head: int | None,
        idempotency_key: str | None,
        mode: AckMode,
        wait: float | None,
    ) -> Ack:
        ack = make_ack(
            self._name,
            drafts,
            opening=self._opening,
            expected_head=expected_head,
            idempotency_key=idempotency_key,
            mode=mode,
        )
        self._store._submit(ack, wait)
        return ack

    # Reading

    def history(self, limit: int | None = None) -> list[Any]:
        """The bodies of the last ``limit`` messages, oldest first, as they were given.

        Messages that a roll-up trimmed (``max_messages``) are left out; ``events`` has them. In the
        place of one that was redacted stands None; ``window`` leaves it out.

        Args:
            limit: How many; 0 gives none, None gives all.
        """
        if limit is not None and whole(limit, "limit", 0, POSITION_MAX) == 0:
            return []
        log = self._store._log
        bodies = last_bodies(log, self._name, U64_MAX if limit is None else limit)
        if bodies is not None:
            return bodies
        shown = log.views.read_shown(self._name, limit, Event)
        if shown.events is not None:
            return [event.body for event in shown.events]
        return [event.body for event in self.events(last=shown.stop - 1, kinds=("message",))]

    async def history_async(self, limit: int | None = None) -> list[Any]:
        """``history`` on the store's pool."""
        return await self._store._on_pool(self.history, limit)

    def events(
        self, first: int = 0, last: int | None = None, kinds: Collection[str] | None = None
    ) -> Events:
        """Events by sequence, ``first`` to ``last`` (inclusive), lazily.

        The iteration raises ``SessionGoneError`` when the session was deleted meanwhile.

        Args:
            first: First sequence.
            last: Last sequence; None reads up to the newest event.
            kinds: Only these kinds.
        """
        whole(first, "first", 0, POSITION_MAX)
        if last is not None:
            whole(last, "last", 0, POSITION_MAX)
        return Events(self._pager(first, last, kinds), self._store)

    def _pager(
        self,
        first: int,
        last: int | None,
        kinds: Collection[str] | None,
        number: int | None = None,
        seen: int = 0,
    ) -> SessionPager:
        return SessionPager(
            self._store._log,
            self._name,
            first,
            U64_MAX if last is None else last,
            kinds_wanted(kinds),
            number,
            seen,
        )

    def event(self, sequence: int) -> Event:
        """One event.

        Raises:
            SessionNotFoundError: No session of that name.
            UsageError: The session has no such sequence.
            TrimmedError: It was purged.
        """
        whole(sequence, "sequence", 0, POSITION_MAX)
        for event in self.events(sequence, sequence):
            return event
        info = self.info()
        if info is None:
            raise SessionNotFoundError(f"no session {self.name!r}")
        if sequence < info.first_sequence:
            raise TrimmedError(
                f"the events of session {self.name!r} below {info.first_sequence} were purged",
                first=info.first_sequence,
            )
        raise UsageError(
            f"session {self.name!r} has sequences {info.first_sequence} to {info.last_sequence}"
        )

    async def event_async(self, sequence: int) -> Event:
        """``event`` on the store's pool."""
        return await self._store._on_pool(self.event, sequence)

    def subscribe(
        self,
        after: int | None = None,
        kinds: Collection[str] | None = None,
        *,
        branch: int | str | None = None,
    ) -> Subscription:
        """Events after a sequence, then each new one as it is committed.

        The iteration raises ``TrimmedError`` when events that it did not give yet were purged, and
        ``SessionGoneError`` when the session was deleted before it gave all that it had seen, or
        was deleted and made anew. With ``after=-1`` and no branch it is of the session that is
        there when its first page is read.

        Args:
            after: Sequence after which to begin; -1 for all, None for those from now on.
            kinds: Only these kinds.
            branch: Only events of this branch, by number or by the name that leads to it now: those
                of the history that are on it, and not on the ones that it was forked from; usage
                and artifacts that belong to them; names given to it, and moves of the head to it.

        Raises:
            SessionGoneError: The session was deleted meanwhile.
            UsageError: There is no such branch.
        """
        wanted = kinds_wanted(kinds)
        if after is not None:
            whole(after, "after", -1, POSITION_MAX)
        log = self._store._log
        number: int | None = None
        seen = 0
        with log.views.past(self._name) as past:
            if branch is not None:
                require_branch(past, self.name, branch)
            if past is not None and (branch is not None or after != -1):
                number, seen = past.view.origin.number, past.view.event_count
        if branch is not None:
            values = Present(self._store, self._name, number)
            wanted = on_branch(branch_number(values, self.name, branch), wanted)
        first = seen if after is None else after + 1
        pager = SessionPager(log, self._name, first, U64_MAX, wanted, number, seen)
        return Subscription(pager, self._store)

    @property
    def exists(self) -> bool:
        """True once the session is committed."""
        return self._store._log.views.exists(self._name)

    def info(self) -> SessionInfo | None:
        """Counts, head and times; None when there is no session of that name."""
        facts = self._store._log.views.facts(self._name, self._store._facts)
        return None if facts is None else info_of(facts)

    async def info_async(self) -> SessionInfo | None:
        """``info`` on the store's pool."""
        return await self._store._on_pool(self.info)

    @property
    def state(self) -> dict[str, Any]:
        """The variables' values by key; a copy, empty when there is no such session."""
        return state_of(self._values.all(Space.VARIABLES))

    async def state_async(self) -> dict[str, Any]:
        """``state`` on the store's pool."""
        return await self._store._on_pool(lambda: self.state)

    def variables(self, prefix: str = "") -> list[Variable]:
        """The variables in the order of their keys, each with the time of its last change.

        Args:
            prefix: Only those whose keys begin with it.
        """
        return variables_of(self._values.all(Space.VARIABLES), prefix)

    async def variables_async(self, prefix: str = "") -> list[Variable]:
        """``variables`` on the store's pool."""
        return await self._store._on_pool(self.variables, prefix)

    def at(self, sequence: int | None = None, *, time_us: int | None = None) -> SessionAt:
        """The session as it was after one of its events.

        Reads a few segments, and those that hold variables up to then when it is asked for them.

        Args:
            sequence: That event's sequence.
            time_us: Instead, the last event recorded at that time or before, µs since the epoch.

        Raises:
            SessionNotFoundError: No session of that name.
            UsageError: It has no such event.
            TrimmedError: Its events of that time were purged; ``first`` is the first one left.
        """
        return session_at(self, sequence, time_us)

    async def at_async(
        self, sequence: int | None = None, *, time_us: int | None = None
    ) -> SessionAt:
        """``at`` on the store's pool."""
        return await self._store._on_pool(self.at, sequence, time_us=time_us)

    @property
    def head(self) -> int | None:
        """Sequence of the event that the next append follows; None when there is none."""
        facts = self._store._log.views.facts(self._name)
        head = -1 if facts is None else signed_head(facts.head)
        return None if head < 0 else head


_NO_FACTS: Final = (None,) * len(OPENING_FACTS)
_NO_OWNERS: Final = (None, None, None)

assert CONTROLS["open"] == CONTROL
