"""What a session is, said and read: its facts, their history, its aliases, clones of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from engine import aliases
from engine.branches import Branching
from engine.cloning import clone
from engine.events import Event, opening_of
from engine.facts import (
    OWNERS,
    RELATED,
    Facts,
    Said,
    fact_name,
    facts_from,
    label_key,
    metadata_changes,
    optional_text,
    said,
    stored_facts,
)
from engine.fold import read_base
from engine.spaces import KINDS, Space
from engine.variables import StoredVariable, changed_by
from eventlog.ack import Ack
from eventlog.arguments import items, whole
from eventlog.errors import SessionGoneError, UsageError
from eventlog.keys import name_bytes
from eventlog.limits import POSITION_MAX, STATE_PAGE_EVENTS

if TYPE_CHECKING:
    from engine.session import Session


class Keep:
    """Stands for a fact that is to stay as it is, where None takes it away."""

    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final = Keep()


class Describing(Branching):
    """The part of ``Session`` that tells what it is."""

    __slots__ = ()

    @property
    def facts(self) -> Facts:
        """What the session is, as of now; empty when there is none of that name.

        Costs its row, a row for each fact, and its loose control events.
        """
        found = self._store._log.views.facts(self._name, self._store._facts)
        if found is None:
            return Facts()
        number = found.origin.number
        where = f"facts of session {number}"
        return facts_from(opening_of(found.row, number), stored_facts(found.rows, where), where)

    async def facts_async(self) -> Facts:
        """``facts`` on the store's pool."""
        return await self._store._on_pool(lambda: self.facts)

    def set_title(self, title: str | None, *, wait: float | None = None) -> Ack:
        """Give the session a title; None takes it away. Creates the session, as all of these.

        Args:
            title: Any text.
            wait: See ``append``.

        Raises:
            FormatVersionError: The store has format version 1.
        """
        return self._state_facts(wait, title=optional_text(title, "title", is_name=False))

    def set_status(
        self, status: str | None, *, detail: Any = None, wait: float | None = None
    ) -> Ack:
        """Say how the session stands; ``statuses`` tells all that was said.

        Args:
            status: 1 to 512 UTF-8 bytes, such as ``"planning"``; None for none.
            detail: Plain data beside it.
            wait: See ``append``.
        """
        return self._state_facts(wait, status=[optional_text(status, "status"), detail])

    def statuses(self) -> list[Said]:
        """Every status that the session was given, oldest first.

        Of those that were purged the last one is left. Reads the segments that hold control events.
        """
        return self._history_of("status")

    async def statuses_async(self) -> list[Said]:
        """``statuses`` on the store's pool."""
        return await self._store._on_pool(self.statuses)

    def set_summary(
        self, summary: str | None, *, detail: Any = None, wait: float | None = None
    ) -> Ack:
        """Sum the session up, beside its history; ``summaries`` tells those before.

        Args:
            summary: Any text; None for none.
            detail: Plain data beside it, such as what it covers.
            wait: See ``append``.
        """
        text = optional_text(summary, "summary", is_name=False)
        return self._state_facts(wait, summary=[text, detail])

    def summaries(self) -> list[Said]:
        """Every summary that the session was given, oldest first, as ``statuses``."""
        return self._history_of("summary")

    async def summaries_async(self) -> list[Said]:
        """``summaries`` on the store's pool."""
        return await self._store._on_pool(self.summaries)

    def set_owner(
        self,
        *,
        user_id: str | Keep | None = KEEP,
        account_id: str | Keep | None = KEEP,
        agent_id: str | Keep | None = KEEP,
        workspace: str | Keep | None = KEEP,
        wait: float | None = None,
    ) -> Ack:
        """Say whose the session is; what is not named stays, None takes it away.

        Args:
            user_id: 1 to 512 UTF-8 bytes; likewise the others.
            account_id: The account.
            agent_id: The agent.
            workspace: The workspace.
            wait: See ``append``.
        """
        given = zip(OWNERS, (user_id, account_id, agent_id, workspace), strict=True)
        changes = {name: optional_text(value, name) for name, value in given if value is not KEEP}
        return self._state_facts(wait, **changes)

    def update_metadata(
        self, changes: dict[str, Any], *, delete: Sequence[str] = (), wait: float | None = None
    ) -> Ack:
        """Set and take away keys of the session's metadata, with one event.

        Args:
            changes: New values by key, 1 to 480 UTF-8 bytes each.
            delete: Keys to take away; one that is not there is fine.
            wait: See ``append``.
        """
        facts = metadata_changes(changes, items(delete, "delete"))
        return self._as_session()._change(Space.FACTS, facts, wait=wait)

    def label(self, name: str, on: int | None = None, *, wait: float | None = None) -> Ack:
        """Put a label on the session, or on one of its events.

        Args:
            name: 1 to 480 UTF-8 bytes.
            on: Sequence of the event; None for the whole session.
            wait: See ``append``.

        Raises:
            SessionNotFoundError: ``on`` is given, and there is no session of that name.
            UsageError: It has no such event.
        """
        key = label_key(name, on)
        if on is not None:
            self._require_event(on)
        return self._as_session()._change(Space.FACTS, {key: True}, wait=wait)

    async def label_async(
        self, name: str, on: int | None = None, *, wait: float | None = None
    ) -> Ack:
        """``label`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._store._on_pool(self.label, name, on, wait=wait)

    def unlabel(self, name: str, on: int | None = None, *, wait: float | None = None) -> Ack:
        """Take a label off; one that is not there is fine. As ``label``."""
        return self._as_session()._change(Space.FACTS, {}, [label_key(name, on)], wait=wait)

    def set_parent(
        self, parent: str | None, sequence: int | None = None, *, wait: float | None = None
    ) -> Ack:
        """Say which session this one belongs to, such as the one that started it.

        Args:
            parent: Name of another session of the tenant; None for none. It need not exist.
            sequence: The event of it that is meant.
            wait: See ``append``.

        Raises:
            UsageError: It is this session itself.
        """
        if optional_text(parent, "parent") is None:
            return self._state_facts(wait, parent=None)
        self._refuse_itself(parent, "be its own parent")
        at = None if sequence is None else whole(sequence, "sequence", 0, POSITION_MAX)
        return self._state_facts(wait, parent=[parent, at])

    def relate(self, session: str, *, wait: float | None = None) -> Ack:
        """Note another session of the tenant that this one has to do with.

        Args:
            session: Its name, 1 to 480 UTF-8 bytes. It need not exist.
            wait: See ``append``.

        Raises:
            UsageError: It is this session itself.
        """
        key = RELATED + fact_name(session, "session")
        self._refuse_itself(session, "be related to itself")
        return self._as_session()._change(Space.FACTS, {key: True}, wait=wait)

    def unrelate(self, session: str, *, wait: float | None = None) -> Ack:
        """Take such a note back; one that is not there is fine. As ``relate``."""
        return self._as_session()._change(
            Space.FACTS, {}, [RELATED + fact_name(session, "session")], wait=wait
        )

    def _refuse_itself(self, other: str | None, what: str) -> None:
        if other == self._name[1]:
            raise UsageError(f"session {other!r} cannot {what}", hint="Name another session.")

    # Aliases

    def alias(self, name: str, *, wait: float | None = None) -> Ack:
        """Let another system's name lead to this session; ``tenant.by_alias`` follows it.

        Unique within the tenant. A session may have several, and loses them when it is deleted.
        Reads the alias and the session that has it before this returns.

        Args:
            name: 1 to 480 UTF-8 bytes, such as ``"twilio:CA123"``.
            wait: See ``append``.

        Raises:
            ConflictError: It leads to another session. The ack raises ``AppendConflictError`` when
                it was taken meanwhile, also for this session by another call; then ask again.
            FormatVersionError: The store has format version 1.
        """
        self._store._require_version(2, "aliases")
        ack = aliases.claim(self._as_session(), fact_name(name, "alias"))
        self._store._submit(ack, wait)
        return ack

    async def alias_async(self, name: str, *, wait: float | None = None) -> Ack:
        """``alias`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._store._on_pool(self.alias, name, wait=wait)

    def unalias(self, name: str, *, wait: float | None = None) -> Ack:
        """Take an alias of this session away; one that it does not have is fine. As ``alias``."""
        self._store._require_version(2, "aliases")
        ack = aliases.release(self._as_session(), fact_name(name, "alias"))
        self._store._submit(ack, wait)
        return ack

    async def unalias_async(self, name: str, *, wait: float | None = None) -> Ack:
        """``unalias`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._store._on_pool(self.unalias, name, wait=wait)

    # Clones

    def clone(self, name: str, *, leaf: int | str | None = None) -> Session:
        """Make another session with the same events; blocks until it is durable.

        It gets sequences, times and ids of its own: an event has the caller's id in one session
        only, so the copies have none. Parents, links, labels, the bounds of compactions, and what
        runs, tool calls and artifacts say of events lead to the copies. Contents are referred to,
        not copied. The copy has the holds that the original has now, each to be released for
        itself. What was used, aliases and idempotency keys stay with the original, and
        ``facts.cloned_from`` says where it comes from. Both go their own ways afterwards.

        Up to 16,384 events it is one commit. Above that it is written in pieces, and removed again
        when one fails; a process that dies between them leaves a session without ``cloned_from``.

        Args:
            name: Name of the new session, of the same tenant.
            leaf: Only the path to this event, given by its sequence or as the name of a branch, and
                what was said of the session up to it; None for all events.

        Raises:
            SessionNotFoundError: There is nothing to clone.
            SessionGoneError: The session was deleted meanwhile.
            AppendConflictError: There is a session of that name, or this one was redacted
                meanwhile; then what was written of the clone is erased.
            UsageError: There is no such event.
        """
        name_bytes(name, "session name")
        self._store._require_version(2, "clones")
        at = None if leaf is None else self._event_at(leaf)
        return clone(self._as_session(), name, at)

    async def clone_async(self, name: str, *, leaf: int | str | None = None) -> Session:
        """``clone`` on the store's pool."""
        return await self._store._on_pool(self.clone, name, leaf=leaf)

    # For the above

    def _as_session(self) -> Session:
        assert hasattr(self, "tenant"), "the only class made of this is Session"
        return self  # type: ignore[return-value]

    def _state_facts(self, wait: float | None, **changes: Any) -> Ack:
        return self._as_session()._change(Space.FACTS, changes, wait=wait)

    def _history_of(self, key: str) -> list[Said]:
        return [said(each) for each in self._values_of(key)]

    def _values_of(self, key: str, wanted: int | None = None) -> list[StoredVariable]:
        """What a fact was, oldest first; of what was purged the last one.

        Args:
            key: Its key.
            wanted: Number of the incarnation that is meant; None for any.
        """
        found: list[StoredVariable] = []
        number = wanted
        following = 0
        while True:
            with self._store._log.views.past(self._name) as past:
                if past is None or number not in (None, past.view.origin.number):
                    if number is None:
                        return []
                    raise SessionGoneError.while_read(
                        self._name[1], number, None if past is None else past.view.origin.number
                    )
                number = past.view.origin.number
                if following < past.first:  # what was purged is in the base, as far as it is told
                    base = read_base(past)
                    kept = {} if base is None else base.spaces.get(Space.FACTS, {})
                    if key in kept:
                        sequence = kept[key].sequence
                        found = [each for each in found if each.sequence < sequence]
                        found.append(kept[key])
                    following = past.first
                stop = past.view.event_count
                events, following = past.read_kinds(
                    following, stop, _FACTS, Event, STATE_PAGE_EVENTS
                )
            for event in events:
                change = changed_by(event).get(key)
                if change is not None:
                    found.append(change)
            if following >= stop:
                return found


_FACTS: Final = frozenset({KINDS[Space.FACTS]})
