"""Branches of a session: the tree that its public events make, and which of its leaves is the head.

An event follows its parent: the head, unless it names another one. What follows the newest event of
a branch continues it; what follows any other event opens a branch. The history is the path from the
root to the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from engine.drafting import AckMode, draft_event, make_ack
from engine.events import Event
from engine.naming import by_branch, new_name
from engine.reading import Events, PathPager, SessionPager, kinds_wanted
from engine.removing import Removing
from engine.state import read_fold
from engine.staterows import NAMES
from engine.values import named_branch
from eventlog.ack import Ack, event_of
from eventlog.arguments import items, shown, whole
from eventlog.errors import SessionNotFoundError, UsageError
from eventlog.index import Name
from eventlog.keys import U64_MAX
from eventlog.limits import PAGE_MAX, POSITION_MAX
from eventlog.linking import HEAD
from eventlog.past import Past
from eventlog.record import NO_PARENT

if TYPE_CHECKING:
    from engine.store import Store

LINKS_MAX: Final = 256  # events that one event answers


class Link(NamedTuple):
    """That an event answers others.

    Attributes:
        event: Sequence of the event.
        answers: Sequences of those that it answers, as they were given.
        sequence: Sequence of the event that says so.
    """

    event: int
    answers: tuple[int, ...]
    sequence: int


class Branch(NamedTuple):
    """One branch of a session; times in µs since the epoch.

    Attributes:
        number: Its number, from 0 in the order of opening.
        names: Its names, oldest first.
        parent: Sequence of the event that it follows; None for a root.
        parent_branch: The branch of that event; None for a root.
        leaf: Sequence of its newest event; None while it was forked and nothing followed.
        updated_us: Recorded time of that event, or of the fork.
        is_head: Whether the head is on it.
    """

    number: int
    names: tuple[str, ...]
    parent: int | None
    parent_branch: int | None
    leaf: int | None
    updated_us: int
    is_head: bool


@dataclass(frozen=True, slots=True)
class PathPage:
    """A page of a path, root first.

    Attributes:
        events: Its events.
        cursor: Continues the path behind them; None at the end.
    """

    events: list[Event]
    cursor: str | None


class Branching(Removing):
    """The part of ``Session`` that branches."""

    __slots__ = ()

    _store: Store
    _name: tuple[str, str]
    _opening: list[Any] | None

    def branches(self) -> list[Branch]:
        """The session's branches by number; one of a session that never branched.

        Costs a row or two for each branch; no event of the history is decoded.
        """
        fold = read_fold(self._store, self._name, part=NAMES)
        names = by_branch({} if fold is None else fold.names)
        while True:
            with self._store._log.views.past(self._name) as past:
                if past is None:
                    return []
                rows = past.branches()
                if rows is None:  # memory is ahead of this transaction
                    continue
                head_branch = past.head_branch(past.view.event_count)
                break
        found: list[Branch] = []
        for number, (opening, tip) in sorted(rows.items()):
            parent = parent_branch = None
            if opening is not None and opening.parent != NO_PARENT:
                parent, parent_branch = opening.parent, opening.fork_branch
            leaf, updated_us = tip or (None, 0 if opening is None else opening.recorded_us)
            named = tuple(names[number]) if number in names else ()
            is_head = number == head_branch
            found.append(Branch(number, named, parent, parent_branch, leaf, updated_us, is_head))
        return found

    async def branches_async(self) -> list[Branch]:
        """``branches`` on the store's pool."""
        return await self._store._on_pool(self.branches)

    def path(
        self, leaf: int | str | None = None, cursor: str | None = None, limit: int = 100
    ) -> PathPage:
        """A page of the public events from the root to a leaf, root first.

        Costs what it returns, and the events of other branches that lie between.

        Args:
            leaf: Sequence of an event, or the name of a branch; None for the head.
            cursor: Where the page before ended, instead of a leaf; the path stays that of the
                first page.
            limit: Events of a page, 1 to 10,000.

        Raises:
            UsageError: There is no such event, or it is none of the history; or the cursor is of
                another session, or comes with a leaf.
            TrimmedError: The event was purged, the head too; or events behind the page that gave
                the cursor were.
            SessionGoneError: The session was deleted since the page that gave the cursor.
        """
        whole(limit, "limit", 1, PAGE_MAX)
        if cursor is not None:
            if leaf is not None:
                raise UsageError(
                    "path takes a leaf or a cursor, not both",
                    hint="Give the leaf for the first page, and only the cursor for those after.",
                )
            number, end, first = _decode_cursor(cursor, self._name)
            pager = PathPager(self._store._log, self._name, end, first, number)
        else:
            to = self._event_at(leaf) if type(leaf) is int else self._finder(leaf)
            pager = PathPager(self._store._log, self._name, to, 0)
        events: list[Event] = []
        while len(events) < limit:
            page = pager.next_page(limit - len(events))
            if not page:  # the end of it, or there is no such session
                return PathPage(events, None)
            events += page
        assert pager.number is not None and pager.leaf is not None, "there was a page"
        if pager.following > pager.leaf:
            return PathPage(events, None)
        cursor = _encode_cursor(self._name, pager.number, pager.leaf, pager.following)
        return PathPage(events, cursor)

    async def path_async(
        self, leaf: int | str | None = None, cursor: str | None = None, limit: int = 100
    ) -> PathPage:
        """``path`` on the store's pool."""
        return await self._store._on_pool(self.path, leaf, cursor, limit)

    def path_events(self, leaf: int | str | None = None) -> Events:
        """All public events from the root to a leaf, lazily, root first; see ``path``."""
        end = self._leaf(leaf)
        pager = PathPager(self._store._log, self._name, -1 if end is None else end, 0)
        return Events(pager, self._store)

    def checkout(
        self,
        leaf: int | str | None,
        *,
        expected_head: int | None = None,
        wait: float | None = None,
    ) -> Ack:
        """Make another event the head: the next append follows it. Removes nothing.

        Args:
            leaf: Sequence of the event, or the name of a branch for its newest one as this is
                called, without what still waits in the queue; None for no event, so that the next
                append begins a path of its own.
            expected_head: See ``append``.
            wait: See ``append``.

        The ack raises ``AppendConflictError`` when there is no such public event, and
        ``TrimmedError`` when it was purged.
        """
        self._store._require_version(2, "moves of the head")
        parent = -1 if leaf is None else self._event_at(leaf)
        draft = draft_event("head_move", None, parent=parent, loading=True)
        return self._append_controls((draft,), expected_head, wait)

    async def checkout_async(
        self,
        leaf: int | str | None,
        *,
        expected_head: int | None = None,
        wait: float | None = None,
    ) -> Ack:
        """``checkout`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._store._on_pool(
            self.checkout, leaf, expected_head=expected_head, wait=wait
        )

    def fork(
        self,
        at: int | str | None = None,
        *,
        name: str | None = None,
        expected_head: int | None = None,
        wait: float | None = None,
    ) -> Ack:
        """Open a branch at an event without copying anything; the next append is on it.

        Args:
            at: Sequence of the event, or the name of a branch for its newest one as this is called,
                without what still waits in the queue; None for the head that all appends before
                this leave.
            name: A name for the branch, as of ``name_branch``; taken from another one that has it.
            expected_head: See ``append``.
            wait: See ``append``.

        The ack raises as that of ``checkout``.
        """
        self._store._require_version(2, "branches")
        if name is not None:
            new_name(name)
        parent = -1 if at is None else self._event_at(at)
        draft = draft_event("head_move", {"fork": True}, parent=parent, loading=True)
        drafts = [draft._replace(parent=HEAD) if at is None else draft]
        if name is not None:
            drafts.append(draft_event("branch_name", {"set": name}, loading=True))
        return self._append_controls(drafts, expected_head, wait)

    async def fork_async(
        self,
        at: int | str | None = None,
        *,
        name: str | None = None,
        expected_head: int | None = None,
        wait: float | None = None,
    ) -> Ack:
        """``fork`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._store._on_pool(
            self.fork, at, name=name, expected_head=expected_head, wait=wait
        )

    def name_branch(self, name: str, leaf: int | None = None, *, wait: float | None = None) -> Ack:
        """Give the branch of an event a name; a name that led elsewhere leads here from now on.

        Args:
            name: 1 to 512 UTF-8 bytes, not only digits, which are the number of a branch.
            leaf: Sequence of an event of the branch; None for the branch that the head is on.
            wait: See ``append``.
        """
        return self._name_branch({"set": new_name(name)}, leaf, wait)

    def unname_branch(self, name: str, *, wait: float | None = None) -> Ack:
        """Take a branch's name away; one that is not there is fine. As ``name_branch``."""
        return self._name_branch({"delete": name}, None, wait)

    def link(self, sequence: int, answers: list[int], *, wait: float | None = None) -> Ack:
        """Say that an event answers several others; its parent stays what it is.

        ``links`` reads it.

        Args:
            sequence: Sequence of the event.
            answers: Sequences of the others, 1 to 256.
            wait: See ``append``.

        Raises:
            UsageError: The session has no such event, or the event is to answer itself.
        """
        self._store._require_version(2, "links")
        last = self._require_event(sequence)
        given = items(answers, "answers")
        if not 1 <= len(given) <= LINKS_MAX:
            raise UsageError(f"an event answers 1 to {LINKS_MAX} others, not {len(given)}")
        for each in given:
            if whole(each, "answers", 0, POSITION_MAX) > last:
                raise UsageError(f"session {self._name[1]!r} has no event {each}")
            if each == sequence:
                raise UsageError(f"event {sequence} cannot answer itself")
        body = {"event": sequence, "answers": list(given)}
        return self._append_controls((draft_event("link", body, loading=True),), None, wait)

    async def link_async(
        self, sequence: int, answers: list[int], *, wait: float | None = None
    ) -> Ack:
        """``link`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._store._on_pool(self.link, sequence, answers, wait=wait)

    def links(self, event: int | None = None) -> list[Link]:
        """What events answer, as ``link`` said it, in the order in which it was said.

        Empty without a session. What was said by an event that was purged since is not there any
        more. Reads through the session's events.

        Args:
            event: Only links of this event, and those in which it is answered; None gives all.
        """
        if event is not None:
            whole(event, "event", 0, POSITION_MAX)
        log = self._store._log
        pager = SessionPager(log, self._name, 0, U64_MAX, kinds_wanted(("link",)))
        found: list[Link] = []
        while page := pager.next_page():
            found += [link for each in page if (link := _link_in(each)) is not None]
        return [each for each in found if event is None or event in (each.event, *each.answers)]

    async def links_async(self, event: int | None = None) -> list[Link]:
        """``links`` on the store's pool."""
        return await self._store._on_pool(self.links, event)

    # For the above

    def _name_branch(self, body: dict[str, Any], leaf: int | None, wait: float | None) -> Ack:
        self._store._require_version(2, "names of branches")
        parent = None if leaf is None else whole(leaf, "leaf", 0, POSITION_MAX)
        draft = draft_event("branch_name", body, parent=parent, loading=True)
        return self._append_controls((draft,), None, wait)

    def _append_controls(self, drafts: Any, expected_head: int | None, wait: float | None) -> Ack:
        mode: AckMode = "durable"
        ack = make_ack(
            self._name, drafts, opening=self._opening, expected_head=expected_head, mode=mode
        )
        self._store._submit(ack, wait)
        return ack

    def _require_event(self, sequence: int) -> int:
        """The last sequence, once it is sure that there is such an event."""
        whole(sequence, "sequence", 0, POSITION_MAX)
        facts = self._store._log.views.facts(self._name)
        if facts is None:
            raise SessionNotFoundError(f"no session {self._name[1]!r}")
        if sequence >= facts.event_count:
            raise UsageError(f"session {self._name[1]!r} has no event {sequence}")
        return facts.event_count - 1

    def _leaf(self, leaf: int | str | None) -> int | None:
        """Sequence of the event that a path ends with; None for an empty path."""
        if type(leaf) is int:
            return self._event_at(leaf)
        find = self._finder(leaf)
        with self._store._log.views.past(self._name) as past:
            return find(past)

    def _finder(self, leaf: int | str | None) -> Callable[[Past | None], int | None]:
        """What finds the head, or the newest event of a named branch, in one transaction."""
        if leaf is None:
            return _head_in
        if not isinstance(leaf, str):
            end = whole(leaf, "leaf", 0, POSITION_MAX)
            return lambda _: end
        return lambda past: self._tip_in(past, leaf)

    def _event_at(self, leaf: int | str) -> int:
        """A sequence, or that of the newest event of a named branch."""
        if type(leaf) is str:
            return self._tip_of(leaf)
        return whole(leaf, "leaf", 0, POSITION_MAX)

    def _tip_of(self, name: str) -> int:
        with self._store._log.views.past(self._name) as past:
            return self._tip_in(past, name)

    def _tip_in(self, past: Past | None, name: str) -> int:
        found = None if past is None else named_branch(self._store, past, name)
        if past is None or found is None:
            number = None if past is None else past.view.origin.number
            raise _no_branch(self._name[1], name, number)
        at = past.tip(found.branch)
        if at is None:
            raise UsageError(f"branch {shown(name)} has no event yet")
        return at


def _head_in(past: Past | None) -> int | None:
    return None if past is None else past.head(past.view.event_count, past.row.head)


def _link_in(event: Event) -> Link | None:
    """What an event of kind ``link`` says; None of what was loaded and says nothing."""
    body = event.body
    if type(body) is not dict or type(body.get("event")) is not int:
        return None
    answers = body.get("answers")
    if type(answers) is not list or not all([type(each) is int for each in answers]):
        return None
    return Link(body["event"], tuple(answers), event.sequence)


def _no_branch(session: str, name: str, number: int | None) -> UsageError:
    """That a text is no branch's name; it may be the id of an event of the session."""
    named = event_of(name)
    hint = "A text is the name of a branch here; of an event give its sequence."
    if named is not None and named[0] == number:
        hint = f"It is the id of event {named[1]}; give {named[1]}, its sequence."
    return UsageError(f"session {session!r} has no branch {shown(name)}", hint=hint)


def _encode_cursor(name: Name, number: int, leaf: int, following: int) -> str:
    return f"{_check_of(name)}.{number}.{leaf}.{following}"


def _decode_cursor(cursor: str, name: Name) -> tuple[int, int, int]:
    """Session number, leaf and following sequence of a cursor that is of a session's path."""
    parts = cursor.split(".") if type(cursor) is str else []
    if len(parts) == 4 and all([it.isascii() and it.isdigit() and len(it) <= 20 for it in parts]):
        check, number, leaf, following = map(int, parts)
        if number <= U64_MAX and following <= leaf <= POSITION_MAX:
            if check != _check_of(name):
                raise UsageError(
                    f"cursor {shown(cursor)} is of another session than {name[1]!r}",
                    hint="Give it to the session whose path() gave it.",
                )
            return number, leaf, following
    raise UsageError(f"cursor must be one that path() gave, not {shown(cursor)}")


def _check_of(name: Name) -> int:
    """What tells cursors of two sessions apart, also when one of them was deleted."""
    return crc32(b"\0".join([each.encode() for each in name]))
