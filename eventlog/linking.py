"""Linking: which parent and which branch an append's events get.

Parents are resolved before anything of an append is placed (``links_of``), so that what is refused
leaves no trace; placing (``DraftBranches.link``) then cannot fail.

Invariants:
    1. A parent is a public event of the same session, committed or placed before, that was not
       purged; whatever else is named as one refuses the append.
    2. An event without a parent of its own follows the head.
    3. What must come after an event is refused unless that one is on its path.
    4. Nothing outside ``SessionState.draft_branches`` changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from eventlog.ack import Draft
from eventlog.branching import (
    PROJECTION,
    Branching,
    Opening,
    branch_of,
    decode_opening,
    decode_tip,
    split_key,
)
from eventlog.errors import (
    AppendConflictError,
    CorruptionError,
    LimitExceededError,
    TrimmedError,
)
from eventlog.index import SessionState
from eventlog.limits import SESSION_BRANCHES_MAX
from eventlog.record import (
    BELONGS,
    BRANCH_NAME,
    CONTROL,
    HEAD_MOVE,
    KIND_BYTE,
    NO_PARENT,
    ROLL_UP,
    TAIL_KIND_BYTE,
    Record,
    branch_tail,
)
from eventlog.rows import NO_SEQUENCE

ROOT = -1  # as a parent: none, so that the event begins a path of its own
HEAD = -2  # as that of an append's first draft: the head that the appends before it leave


@dataclass(slots=True)
class Links:
    """What an append's events follow.

    Attributes:
        parents: Sequences, ``ROOT``, or None to follow the head.
        purged: The branches of those that were purged elsewhere.
    """

    parents: list[int | None] = field(default_factory=list)
    purged: dict[int, int] = field(default_factory=dict)


class Committed(Protocol):
    """What linking asks about committed events."""

    def first(self, state: SessionState) -> int:
        """First sequence of a session that was not purged."""

    def read_event(self, number: int, sequence: int) -> Record | None:
        """A committed event; None when it was purged."""

    def tip(self, number: int, branch: int) -> int | None:
        """What the next event of a branch that is sealed follows, None for nothing."""

    def opening(self, number: int, branch: int) -> Opening | None:
        """What opened a branch that is sealed, None for branch 0."""


class Planned(Protocol):
    """What linking asks about the batch's plan, and tells it.

    Attributes:
        linked: Sessions with a draft of their branches.
    """

    linked: list[SessionState]

    def placed_of(self, state: SessionState) -> Sequence[tuple[int, bytes]]:
        """Sequence and stored record of what was placed of a session, in order."""


class DraftBranches:
    """What the open batch does to one session's branches.

    Attributes:
        made: Branch numbers handed out, as of the batch.
        head_branch: The branch that the draft head is on.
        tips: Newest events of the branches that were looked at or written to.
        openings: Of branches that the batch opened.
        branches: Branches of public events that may be named as parents, by sequence.
        is_used: Whether the batch made the session branch, or it did before.
    """

    __slots__ = ("branches", "head_branch", "is_used", "made", "openings", "tips", "written")

    def __init__(self, state: SessionState) -> None:
        known = state.branching
        self.made = 1 if known is None else known.made
        self.head_branch = 0 if known is None else known.head_branch
        self.is_used = known is not None
        self.tips: dict[int, int | None] = {} if known is None else dict(known.tips)
        self.written: set[int] = set()
        self.openings: dict[int, Opening] = {}
        self.branches: dict[int, int] = {}
        if known is None:
            self.tips[0] = None if state.head == NO_SEQUENCE else state.head

    def begin(self, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        """The session begins after events that were purged elsewhere: what they told of branches.

        Args:
            rows: As ``ack.Beginning`` has them.
        """
        forked: dict[int, int | None] = {}
        for projection, subkey, content in rows:
            if projection != PROJECTION:
                continue
            is_opening, branch = split_key(subkey, "branch")
            if is_opening:
                parent = decode_opening(content, "branch").parent
                forked[branch] = None if parent == NO_PARENT else parent
            else:
                self.tips[branch] = decode_tip(content, "branch").sequence
        self.tips = {**forked, **self.tips}

    def merged(self, known: Branching | None) -> Branching | None:
        """The batch was committed: what is known of the session's branches now."""
        if not self.is_used:
            return known
        found = Branching(1, 0) if known is None else known
        if known is None:
            self.written.add(0)
        for branch in self.written:
            tip = self.tips[branch]
            if tip is not None:
                found.tips[branch] = tip
        found.openings.update(self.openings)
        found.made, found.head_branch = self.made, self.head_branch
        return found

    def link(
        self, state: SessionState, sequence: int, tail: bytes, target: int | None, recorded_us: int
    ) -> tuple[int, bytes]:
        """Place one event: its parent's word, and its tail with the branch.

        Args:
            state: The session.
            sequence: The event's sequence.
            tail: Its tail, drafted.
            target: Its parent, resolved and looked up.
            recorded_us: When it is recorded.
        """
        kind = tail[TAIL_KIND_BYTE]
        if kind < CONTROL:
            return self._link_public(state, sequence, tail, target, recorded_us)
        if kind == HEAD_MOVE:
            return self._move(state, sequence, tail, target, recorded_us)
        if kind == BRANCH_NAME:
            branch = self.head_branch if target is None else self.branches[target]
            return NO_PARENT if target is None else target, branch_tail(tail, branch, None)
        if kind in BELONGS:
            branch = self.head_branch if target is None else self.branches[target]
            parent = state.draft_head if target is None else target
            return parent, branch_tail(tail, branch, None)
        if kind == ROLL_UP:  # of the path that the head is on
            return NO_PARENT, branch_tail(tail, self.head_branch, None)
        return NO_PARENT, tail

    def _link_public(
        self, state: SessionState, sequence: int, tail: bytes, target: int | None, recorded_us: int
    ) -> tuple[int, bytes]:
        head = state.draft_head
        if target is None or target == head:
            parent, branch = head, self.head_branch
        elif target == ROOT:
            parent, branch = NO_PARENT, 0
        else:
            parent, branch = target, self.branches[target]
        opened_from = None
        tip = self.tips.get(branch)
        if (NO_PARENT if tip is None else tip) != parent:
            opened_from = branch if parent != NO_PARENT else 0
            branch = self._open(sequence, parent, opened_from, recorded_us)
        self.tips[branch] = sequence
        self.written.add(branch)
        self.branches[sequence] = branch
        self.head_branch = branch
        state.draft_head = sequence
        return parent, branch_tail(tail, branch, opened_from)

    def _move(
        self, state: SessionState, sequence: int, tail: bytes, target: int | None, recorded_us: int
    ) -> tuple[int, bytes]:
        assert target is not None
        parent = NO_PARENT if target == ROOT else target
        branch = 0 if target == ROOT else self.branches[target]
        opened_from = None
        if branch_tail(tail, 0, None) != tail:  # drafted with another branch: it forks
            opened_from = branch
            branch = self._open(sequence, parent, branch, recorded_us)
            self.tips[branch] = None if target == ROOT else target  # which its first event follows
        self.is_used = True
        self.head_branch = branch
        state.draft_head = parent
        return parent, branch_tail(tail, branch, opened_from)

    def _open(self, sequence: int, parent: int, fork_branch: int, recorded_us: int) -> int:
        branch = self.made
        self.made += 1
        self.openings[branch] = Opening(sequence, parent, fork_branch, recorded_us)
        self.is_used = True
        return branch


class Linker:
    """Resolves parents against one write transaction and the batch's plan.

    Args:
        committed: The transaction.
        planned: The plan.
        resolve: Session number and sequence of the event with an id; None when there is none.
    """

    def __init__(
        self,
        committed: Committed,
        planned: Planned,
        resolve: Callable[[str, str], tuple[int, int] | None],
    ) -> None:
        self._committed = committed
        self._planned = planned
        self._resolve = resolve

    def links_of(
        self, tenant: str, drafts: Sequence[Draft], state: SessionState | None, first: int
    ) -> Links:
        """The parents of an append's events, checked, with all that placing them needs.

        Args:
            tenant: The tenant's name.
            drafts: The append's events.
            state: The session; None when the append makes it.
            first: The sequence that the first of them gets.

        Raises:
            AppendConflictError: A parent is missing, of another session, the event itself or one
                after it, or no public event.
            TrimmedError: It was purged.
            LimitExceededError: The session has as many branches as it may have.
            CorruptionError: What tells it is damaged.
        """
        if state is not None:
            self._begin(state)
            if state.draft_branches is not None:
                self._know_head(state, state.draft_branches)
        links = Links()
        own_ids: dict[str, int] = {}
        for sequence, draft in enumerate(drafts, first):
            parent = None
            if draft.parent is not None:
                parent = self._link(tenant, draft, state, sequence, first, drafts, own_ids, links)
            links.parents.append(parent)
            if draft.past is not None:
                past = self._target(tenant, draft.past, draft, state, own_ids)
                if not self._is_past(state, past, sequence, first, drafts, links):
                    raise _refused(
                        f"event {past} is not on the path that sequence {sequence} would continue",
                        past,
                        None if state is None else state.draft_head,
                    )
            if draft.caller_id is not None:
                own_ids[draft.caller_id] = sequence
        made = 1 if state is None or state.draft_branches is None else state.draft_branches.made
        if made + len(drafts) > SESSION_BRANCHES_MAX:
            raise LimitExceededError(
                f"the session has {made:,} branches; at most {SESSION_BRANCHES_MAX:,} are allowed",
                name="SESSION_BRANCHES_MAX",
                actual=made + len(drafts),
                limit=SESSION_BRANCHES_MAX,
            )
        return links

    def _begin(self, state: SessionState) -> None:
        """Make the batch's draft of a session's branches, with what the plan holds of it."""
        if state.draft_branches is not None:
            return
        draft = DraftBranches(state)
        if state.draft_next != state.next:  # placed in this batch while it was linear
            for sequence, value in self._planned.placed_of(state):
                if value[KIND_BYTE] < CONTROL:
                    draft.branches[sequence] = branch_of(value)
                    draft.tips[branch_of(value)] = sequence
        state.draft_branches = draft
        state.is_linear = False
        self._planned.linked.append(state)

    def _know_head(self, state: SessionState, draft: DraftBranches) -> None:
        """The tips that following the head, and beginning anew, ask for."""
        for branch in {draft.head_branch, 0}:
            self._know_tip(state, draft, branch)

    def _know_tip(self, state: SessionState, draft: DraftBranches, branch: int) -> None:
        if branch in draft.tips:
            return
        known = state.branching
        opening = None if known is None else known.openings.get(branch)
        if opening is None:
            draft.tips[branch] = self._committed.tip(state.number, branch)
        else:  # forked, and nothing followed yet
            draft.tips[branch] = None if opening.parent == NO_PARENT else opening.parent

    def _link(
        self,
        tenant: str,
        draft: Draft,
        state: SessionState | None,
        sequence: int,
        first: int,
        drafts: Sequence[Draft],
        own_ids: dict[str, int],
        links: Links,
    ) -> int:
        assert draft.parent is not None
        if draft.parent == HEAD:
            assert sequence == first
            if state is None or state.draft_head == NO_PARENT:
                return ROOT
            assert state.draft_branches is not None
            self._know(state, state.draft_branches, state.draft_head)
            return state.draft_head
        target = self._target(tenant, draft.parent, draft, state, own_ids)
        if target == ROOT:
            return ROOT
        if target >= sequence:
            raise _missing(state, target, sequence - 1)
        if target >= first:
            if drafts[target - first].kind >= CONTROL:
                raise _not_public(target)
            return target
        if state is None and draft.parent_branch is None:
            raise _missing(state, target, None)
        if state is None:
            assert draft.parent_branch is not None
            links.purged[target] = draft.parent_branch
            return target
        assert state.draft_branches is not None
        if draft.parent_branch is not None and target < self._committed.first(state):
            state.draft_branches.branches[target] = draft.parent_branch
        self._know(state, state.draft_branches, target)
        return target

    def _target(
        self,
        tenant: str,
        named: int | str,
        draft: Draft,
        state: SessionState | None,
        own_ids: dict[str, int],
    ) -> int:
        """The sequence of an event that a draft names."""
        if type(named) is not str:
            assert type(named) is int
            return named
        if named == draft.caller_id:
            raise _refused("an event cannot follow itself", named, None)
        target = own_ids.get(named)
        if target is None:
            found = self._resolve(tenant, named)
            if found is None:
                is_leaf = draft.kind < CONTROL or draft.kind in (HEAD_MOVE, BRANCH_NAME)
                raise _refused(
                    f"there is no event with id {named!r}",
                    named,
                    None,
                    hint=_IDS if is_leaf else None,
                )
            number, target = found
            if state is None or number != state.number:
                raise _refused(
                    f"event {named!r} is of another session; none can follow it here", named, None
                )
        return target

    def _is_past(
        self,
        state: SessionState | None,
        past: int,
        sequence: int,
        first: int,
        drafts: Sequence[Draft],
        links: Links,
    ) -> bool:
        """Whether an event is on the path to what the event at ``sequence`` follows."""
        parent = _followed(sequence, first, drafts, links)
        while parent is not None and parent >= first:  # in the same append
            if parent == past:
                return True
            parent = _followed(parent, first, drafts, links)
        if state is None or state.draft_branches is None or parent == ROOT or past >= first:
            return False
        draft = state.draft_branches
        if parent is None:
            last, branch = state.draft_head, draft.head_branch
            if last == NO_PARENT:
                return False
        else:
            last, branch = parent, draft.branches[parent]
        self._know(state, draft, past)
        while branch != draft.branches[past] or past > last:
            opening = draft.openings.get(branch)
            if opening is None and state.branching is not None:
                opening = state.branching.openings.get(branch)
            opening = opening or self._committed.opening(state.number, branch)
            if opening is None or opening.parent == NO_PARENT or opening.parent < past:
                return False
            if opening.fork_branch >= branch:
                raise CorruptionError("does not follow an older branch", where=f"branch {branch}")
            last, branch = opening.parent, opening.fork_branch
        return True

    def _know(self, state: SessionState, draft: DraftBranches, target: int) -> None:
        """The branch of an event that was placed before, and the tip of that branch."""
        branch = draft.branches.get(target)
        if branch is None:
            if target >= state.next:
                raise _not_public(target)
            event = self._committed.read_event(state.number, target)
            if event is None:
                raise TrimmedError(
                    f"event {target} was purged; none can follow it", first=state.row.first
                )
            if event.kind_code >= CONTROL:
                raise _not_public(target)
            branch = draft.branches[target] = event.branch
        self._know_tip(state, draft, branch)


def _followed(sequence: int, first: int, drafts: Sequence[Draft], links: Links) -> int | None:
    """What an event of an append follows; None for the head before the append."""
    place = sequence - first
    parent = links.parents[place]
    while parent is None and place:
        place -= 1
        if drafts[place].kind < CONTROL:
            return first + place
        if drafts[place].kind == HEAD_MOVE:
            parent = links.parents[place]
    return parent


_IDS: Final = (
    "A text is the id of an event here; of a branch give the sequence of its newest event, which "
    "branches() tells."
)


def _refused(
    reason: str, expected: object, current: object, hint: str | None = None
) -> AppendConflictError:
    return AppendConflictError(reason, expected=expected, current=current, hint=hint)


def _missing(state: SessionState | None, target: int, last: int | None) -> AppendConflictError:
    session = "the session" if state is None else f"session {state.name[1]!r}"
    return _refused(f"{session} has no event {target}", target, last)


def _not_public(sequence: int) -> AppendConflictError:
    return _refused(
        f"event {sequence} is no event of the history; none can follow it", sequence, None
    )
