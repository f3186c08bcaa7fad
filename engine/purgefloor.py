"""Where a session may be cut by a purge, so that what stays is whole.

Invariants:
    1. No tool call is purged whose result stays, on whatever branch.
    2. No call is purged that is open: of sessions that tell what becomes of calls one that is open
       or waits, of others one on the path to the head that nobody answered, unless the model has
       answered the user since. What was redacted may have answered it (``answered_by``).
    3. A compaction that the view of the head, or of a branch with an event that stays, applies is
       not purged.
    4. Whatever would be cut moves the floor down, never up.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from engine.events import Event
from engine.pathscan import PathScan
from engine.pausing import Pause
from engine.policy import Bound
from engine.reading import SessionPager
from engine.spans import Spans
from engine.toolcalls import PENDING
from engine.toolgroups import MENTION, answered_by, tools_of
from eventlog.keys import U64_MAX
from eventlog.record import MESSAGE, NO_PARENT

if TYPE_CHECKING:
    from engine.session import Session


class Floor(NamedTuple):
    """Where a session may be cut, and why not further on.

    Attributes:
        first: The first sequence that stays.
        reasons: What moved it down, in that order.
    """

    first: int
    reasons: tuple[Bound, ...]


class _Calls:
    """The tool calls of a session's messages, branch by branch."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, str], list[int]] = {}  # sequences by branch and id
        self._forks: dict[int, tuple[int, int]] = {}  # of a branch: the one before, and where
        self.spans: list[tuple[int, int]] = []  # from a call to its last result
        self.unanswered: dict[int, set[str]] = {}  # ids by the sequence of the call

    def fork(self, event: Event) -> None:
        """A branch opens with an event."""
        if event.parent_word != NO_PARENT:
            self._forks[event.branch] = (event.fork_branch, event.parent_word)

    def take(self, event: Event) -> None:
        """A message, in the order of sequences."""
        tools = tools_of(event.body)
        if tools is None:
            return
        for named in tools.results:
            call = self._find(event.branch, event.sequence, named)
            if call is None:
                continue
            self.spans.append((call, event.sequence))
            if call in self.unanswered:
                self.unanswered[call].discard(named)
        for each in tools.calls:
            self._made.setdefault((event.branch, each.id), []).append(event.sequence)
            self.unanswered.setdefault(event.sequence, set()).add(each.id)

    def _find(self, branch: int, before: int, named: str) -> int | None:
        """The last call of an id on the path to an event."""
        while True:
            made = self._made.get((branch, named), [])
            place = bisect_left(made, before)
            if place:
                return made[place - 1]
            if branch not in self._forks:
                return None
            branch, parent = self._forks[branch]
            before = parent + 1


def purge_floor(session: Session, number: int, wanted: int, pause: Pause) -> Floor:
    """The largest floor up to one with which the invariants hold.

    Reads the session's messages, and decodes those that have to do with tools.

    Args:
        session: The session.
        number: Number of the incarnation that is meant.
        wanted: The first sequence that is to stay.
        pause: Called between a few events.
    """
    calls = _Calls()
    pager = SessionPager(session._store._log, session._name, 0, U64_MAX, None, number, wanted)
    while page := pager.next_page():
        for event in page:
            if event.opens_branch:
                calls.fork(event)
            if event.kind_code == MESSAGE and MENTION in event.payload:
                calls.take(event)
                pause()
        pause()
    floor = min([wanted, *_open_calls(session, calls, pause)])
    reasons: dict[Bound, None] = {} if floor == wanted else {"open_call": None}
    spans = Spans(calls.spans, pause)
    applied = _Applied(session)
    while True:  # whatever moves it down may let more stay that must not be cut
        whole = spans.bound(floor)
        lowest = min([whole, *applied.from_on(floor)])
        pause()
        if lowest == floor:
            return Floor(floor, tuple(reasons))
        reasons.setdefault("tool_group" if whole == lowest else "compaction")
        floor = lowest


def _open_calls(session: Session, calls: _Calls, pause: Pause) -> list[int]:
    """Sequences of messages with a call that is open."""
    told = session.tool_calls.list()
    if told:
        pending = {call.id: call.event for call in told if call.state in PENDING}
        named = [event for event in pending.values() if event is not None]
        return named + [
            sequence for sequence, ids in calls.unanswered.items() if not ids.isdisjoint(pending)
        ]
    waiting = {sequence for sequence, ids in calls.unanswered.items() if ids}
    found: list[int] = []
    redacted: list[tuple[int, int]] = []
    spoken: list[int] = []  # by the model
    scan = PathScan(session._store._log, session._name, None)
    is_answered = False  # by the model, further on
    for block in scan.blocks() if waiting else ():
        pause()
        for index in range(len(block.sequences) - 1, -1, -1):
            if block.kinds[index] != MESSAGE:
                continue
            pause()
            event = block.event(index)
            if event.sequence in waiting:
                found.append(event.sequence)
            role = event.role
            if event.redacted:
                redacted.append((event.sequence, event.role_code))
            elif role == "assistant":
                spoken.append(event.sequence)
            if role == "assistant":
                is_answered = True
            elif role == "user" and is_answered and not _answers(event):
                return _without_answered(found, redacted, spoken)
    return _without_answered(found, redacted, spoken)


def _without_answered(
    calls: list[int], redacted: list[tuple[int, int]], spoken: list[int]
) -> list[int]:
    """Calls without those that redacted messages answered; all by falling sequences."""
    if not redacted:
        return calls
    answered = answered_by(redacted[::-1], calls, spoken[::-1])
    return [call for call in calls if call not in answered]


def _answers(event: Event) -> bool:
    tools = tools_of(event.body) if MENTION in event.payload else None
    return tools is not None and bool(tools.results)


class _Applied:
    """The compactions that views apply, each looked up once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        head = session.compaction()
        self._found = [] if head is None else [head.sequence]
        leaves = {branch.leaf for branch in session.branches()} - {None, session.head}
        self._leaves = sorted([leaf for leaf in leaves if leaf is not None])

    def from_on(self, floor: int) -> list[int]:
        """Sequences of those of the head, and of branches whose last event is not below a floor."""
        while self._leaves and self._leaves[-1] >= floor:
            other = self._session.compaction(self._leaves.pop())
            if other is not None:
                self._found.append(other.sequence)
        return self._found
