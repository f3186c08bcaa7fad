"""Compaction: a summary that stands for the beginning of a path, appended as an event.

Invariants:
    1. The originals stay as they are, readable through ``events`` and ``path``.
    2. A compaction is appended only while the last event that it stands for is still on the path
       to the head, whatever was appended meanwhile; that stays in view and follows.
    3. When the summariser raises, or gives no text, nothing was written; nor when an event that it
       was given was redacted before the append, so that the receipt of each redaction tells of all
       summaries of what it removed.
    4. A bound never falls between a tool call and what answers it, nor behind a call that is open;
       what is kept of a tool group is all of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engine.boundary import boundary_of, check_compaction
from engine.drafting import draft_event, make_ack
from engine.events import Event
from engine.kinds import COMPACTION
from engine.modelview import (
    Form,
    Limits,
    Window,
    WindowEntry,
    collect,
    regroup,
    summary_message,
)
from engine.pathscan import PathScan
from engine.reading import Events, PathPager
from engine.spans import Spans
from engine.stepping import drop
from engine.toolgroups import Count, Tools, joined, tools_of
from engine.unredacted import Moment, moment_of, require_unredacted
from engine.window import Viewing
from eventlog.ack import Ack, Draft, store_id
from eventlog.arguments import callback, items, shown, texts, whole
from eventlog.errors import (
    AppendConflictError,
    ConflictError,
    SessionNotFoundError,
    UsageError,
)
from eventlog.index import Name
from eventlog.limits import POSITION_MAX
from eventlog.log import Log
from eventlog.record import MESSAGE

if TYPE_CHECKING:
    from engine.store import Store

KEEP_LAST: Final = 8
WAIT_S: Final = 3600.0  # for room in the queue: a summary costs more than waiting

_ON_LOOP: Final = "Use compact_async, on an event loop."

Summarize = Callable[[list[Any]], str]
"""Makes a summary of messages, oldest first."""
SummarizeAsync = Callable[[list[Any]], str | Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Compaction:
    """A compaction that was appended.

    Attributes:
        sequence: Its sequence.
        through: Sequence of the last event that it stands for.
        summary: Its summary.
        message_count: Messages that were summarised.
        tokens: Their tokens.
    """

    sequence: int
    through: int
    summary: str
    message_count: int
    tokens: int


class Compacting(Viewing):
    """The part of ``Session`` that compacts."""

    __slots__ = ()

    _store: Store
    _name: tuple[str, str]

    def compact(
        self,
        summarize: Summarize,
        *,
        keep_last: int = KEEP_LAST,
        through: int | None = None,
        keep: Sequence[int] = (),
        strategy: str = "summary",
        trigger: str = "manual",
        data: dict[str, Any] | None = None,
        running: Collection[str] | None = None,
        count: Count | None = None,
    ) -> Compaction | None:
        """Let a summary stand for the beginning of the model view; waits until that is durable.

        ``summarize`` gets the messages that it is to stand for, the summary of an earlier
        compaction among them, and may take its time: nothing is held meanwhile, and what is
        appended meanwhile follows the messages that are kept.

        A system message is a message: the summary stands for it too. The system prompt is the
        caller's to give, before what ``window`` gives; or ``keep`` names it, in each compaction,
        and it follows the summary.

        In the view the summary is ``{"role": "user", "content": text}``, where the text begins with
        ``Summary of the conversation so far:`` and an empty line; ``window_entries`` tells it by
        ``synthetic == "summary"``, for those who want other words.

        Args:
            summarize: Called with a list of messages, bodies as they were appended, oldest first;
                gives their summary, a text. A coroutine function goes to ``compact_async``.
            keep_last: The last messages that stay as they are; more where a tool group would be
                cut, or a call is open.
            through: Instead, sequence of the last event that the summary stands for.
            keep: Sequences of messages of the path that stay in view; with ``through``, of those up
                to there. One that calls tools or answers calls stays with all of its tool group,
                which the event's ``keep`` then names, too.
            strategy: Told in the event; likewise ``trigger``.
            trigger: Why.
            data: More to tell in the event's ``data``.
            running: Ids of the tool calls that are open. None takes those that ``tool_calls`` has
                as open or waiting, or if it has none at all those that nobody answered, unless the
                model has answered the user since.
            count: As for ``window``; called before ``summarize``, and once more with the summary.

        Returns:
            What was appended; None when there is nothing to summarise.

        Raises:
            ConflictError: There is something to summarise, but only behind a tool call that is
                open; names the first one, and ``current`` is its id. Give its result, or
                ``running``; ``summarize`` was not called.
            UsageError: ``through`` is no event of the path, cuts a tool group or covers an open
                call; ``keep`` is not on the path, or above ``through``; ``count`` gives no number
                of tokens; or ``summarize`` gave no text, which alone is found after it was called.
                Nothing was written, as with whatever ``summarize`` raises.
            InvalidMessageError: ``data`` cannot be stored; names the path.
            AppendConflictError: The head is on a path meanwhile that ``through`` is not on; or what
                was summarised was redacted meanwhile, so that the summary may tell of it.
            TrimmedError: What the summary stands for was purged meanwhile.
            SessionGoneError: The session was deleted meanwhile; also when it was made anew.
            SessionNotFoundError: No session of that name.
        """
        given = _Given(summarize, keep, strategy, trigger, data, count)
        if inspect.iscoroutinefunction(summarize):
            raise UsageError("summarize is a coroutine function", hint=_ON_LOOP)
        plan = self._plan_compaction(keep_last, through, running, given)
        if plan is None:
            return None
        summary = summarize(plan.window.messages)
        if inspect.isawaitable(summary):
            drop(summary)
            raise UsageError("summarize gave an awaitable; nothing was written", hint=_ON_LOOP)
        while True:
            ack = self._compaction_ack(plan, summary, given)
            self._store._submit(ack, WAIT_S)
            try:
                return plan.done(ack.result(), summary)
            except AppendConflictError:
                if not self._is_outrun(ack):
                    raise

    async def compact_async(
        self,
        summarize: SummarizeAsync,
        *,
        keep_last: int = KEEP_LAST,
        through: int | None = None,
        keep: Sequence[int] = (),
        strategy: str = "summary",
        trigger: str = "manual",
        data: dict[str, Any] | None = None,
        running: Collection[str] | None = None,
        count: Count | None = None,
    ) -> Compaction | None:
        """``compact`` from an event loop, where ``summarize`` may also be a coroutine function.

        Reading is done on the store's pool, summarising on the loop.

        Args:
            summarize: Gives the summary, or an awaitable of it.
            keep_last: See ``compact``; so are all others.
            through: See ``compact``.
            keep: See ``compact``.
            strategy: See ``compact``.
            trigger: See ``compact``.
            data: See ``compact``.
            running: See ``compact``.
            count: See ``compact``.
        """
        given = _Given(summarize, keep, strategy, trigger, data, count)
        plan = await self._store._on_pool(self._plan_compaction, keep_last, through, running, given)
        if plan is None:
            return None
        found = summarize(plan.window.messages)
        summary = await found if inspect.isawaitable(found) else found
        while True:
            ack = await self._store._on_pool(self._compaction_ack, plan, summary, given)
            await self._store._submit_async(ack)
            try:
                return plan.done(await ack, summary)
            except AppendConflictError:
                if not await self._store._on_pool(self._is_outrun, ack):
                    raise

    def compaction(self, leaf: int | str | None = None) -> Event | None:
        """The compaction that views of a path apply; None when there is none.

        Reads back to it, decoding compactions alone.
        """
        scan = PathScan(
            self._store._log, self._name, None if leaf is None else self._event_at(leaf)
        )
        return _latest(scan)

    async def compaction_async(self, leaf: int | str | None = None) -> Event | None:
        """``compaction`` on the store's pool."""
        return await self._store._on_pool(self.compaction, leaf)

    def overflow(self, after: int | None = None) -> Events:
        """Messages on the path to the head that roll-ups trimmed from the view, lazily.

        They are there as long as they are not purged, so that whoever was to summarise them can
        fetch them again after a crash.

        Args:
            after: Only those after this sequence; None for those that no compaction stands for.
        """
        if after is not None:
            whole(after, "after", -1, POSITION_MAX)
        return Events(_Overflow(self._store._log, self._name, after), self._store)

    # For the above

    def _plan_compaction(
        self,
        keep_last: int,
        through: int | None,
        running: Collection[str] | None,
        given: _Given,
    ) -> _Plan | None:
        whole(keep_last, "keep_last", 0, POSITION_MAX)
        if running is not None:
            running = texts(running, "running")
        if running is None and self.tool_calls.list():
            running = self._pending()  # who tells what becomes of calls need not be guessed at
        moment = moment_of(self._store._log, self._name)
        scan = PathScan(self._store._log, self._name, None)
        if moment is None or scan.number is None:
            raise SessionNotFoundError(f"no session {self._name[1]!r}")
        if scan.leaf is None:
            return None
        given.require_kept(scan, through)
        keep = _whole_groups(scan, given.keep)
        scan.floor = 0  # what was trimmed is summarised too, unless an earlier one stands for it
        form = Form(repair=False, running=running or (), count=given.count, is_counted=True)
        window = collect(scan, Limits(None), form)
        covered = _covered(scan, window)
        bounds = _Bounds(window.entries, running)
        if through is None:
            wanted = max(0, len(window.entries) - keep_last)
            start = bounds.snapped(wanted)
            found = _last_before(scan, window.entries, start)
        else:
            if whole(through, "through", 0, POSITION_MAX) < covered:
                raise UsageError(f"an earlier compaction stands for events up to {covered}")
            found = through
            if scan.find(through) is None:
                raise UsageError(
                    f"event {through} of session {self._name[1]!r} is not on the path to its head"
                )
            start = bounds.first_after(through)
            if bounds.snapped(start) != start:
                raise UsageError(
                    f"a compaction through event {through} would cut a tool group, or cover a call "
                    "that is open",
                    hint="Name an event before the call, or leave `through` to the store.",
                )
        kept = set(keep)
        part = _new_part(window.entries[:start], found, covered, kept)
        if found is None or not part:
            if through is None and bounds.open_before(wanted):
                later = bounds.snapped(wanted, with_open=False)
                last = _last_before(scan, window.entries, later)
                if _new_part(window.entries[:later], last, covered, kept):
                    raise bounds.refusal(wanted, self._name[1])
            return None
        told = Window(part, scan.leaf)
        repaired = Form(running=running or (), count=given.count, is_counted=True)
        regroup(told, Limits(None), repaired)
        plan = _Plan(moment, found, keep, told)
        given.draft(plan, "any")  # what is wrong with it is known before the summary is paid
        return plan

    def _compaction_ack(self, plan: _Plan, summary: Any, given: _Given) -> Ack:
        if type(summary) is not str or not summary.strip():
            raise UsageError("the summariser gave no text; nothing was written")
        draft = given.draft(plan, summary)
        log, moment = self._store._log, plan.moment
        removals = require_unredacted(log, self._name, moment, plan.through)
        return make_ack(self._name, (draft,), opening=None, number=moment.number, removals=removals)

    def _is_outrun(self, ack: Ack) -> bool:
        """Whether something was removed between making an ack and its append."""
        now = moment_of(self._store._log, self._name)
        assert ack.terms is not None
        return now is not None and ack.terms.removals != now.removals


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a compaction is to stand for.

    Attributes:
        moment: When it was read, or a little earlier.
        through: Sequence of the last event.
        keep: Sequences of what stays in view.
        window: What is to be summarised.
    """

    moment: Moment
    through: int
    keep: Sequence[int]
    window: Window

    def done(self, ack: Ack, summary: str) -> Compaction:
        """It was appended."""
        count = len(self.window.entries)
        return Compaction(ack.last, self.through, summary, count, self.window.tokens)


class _Given:
    """What a caller gives for a compaction; refuses what cannot be."""

    __slots__ = ("_data", "_strategy", "_trigger", "count", "keep")

    def __init__(
        self,
        summarize: SummarizeAsync,
        keep: Sequence[int],
        strategy: str,
        trigger: str,
        data: dict[str, Any] | None,
        count: Count | None,
    ) -> None:
        if summarize is None:
            raise UsageError("summarize must be callable, not None")
        callback(summarize, "summarize")
        self.keep = [whole(each, "keep", 0, POSITION_MAX) for each in items(keep, "keep")]
        for name, text in (("strategy", strategy), ("trigger", trigger)):
            if type(text) is not str:
                raise UsageError(f"{name} must be a str, not {shown(text)}")
        if data is not None and not isinstance(data, dict):
            raise UsageError(f"data must be a dict, not {shown(data)}")
        self._strategy = strategy
        self._trigger = trigger
        self._data = data
        self.count = callback(count, "count")

    def require_kept(self, scan: PathScan, through: int | None) -> None:
        """Refuse to keep what is not on a path, or follows the last event that was named."""
        wanted = sorted(set(self.keep), reverse=True)
        if through is not None and wanted and wanted[0] > through:
            raise UsageError(
                f"keep names event {wanted[0]}, which follows the last one that the summary "
                f"stands for, {through}",
                hint="Name events up to there; those that follow stay in view in any case.",
            )
        found: set[int] = set()
        for each in wanted:
            if each in found:
                continue
            block = next(scan.blocks(each + 1), None)
            found = set() if block is None else set(block.sequences)
            if each not in found:
                raise UsageError(f"keep names event {each}, which is not on the path to the head")

    def draft(self, plan: _Plan, summary: str) -> Draft:
        """The event of a summary.

        Of what to keep, it leaves out what follows the last event that it stands for.
        """
        told = {
            **(self._data or {}),
            "through": plan.through,
            "keep": [each for each in plan.keep if each <= plan.through],
            "strategy": self._strategy,
            "trigger": self._trigger,
            "compressed_count": len(plan.window.entries),
            "total_tokens": plan.window.tokens,
        }
        body = {"summary": summary, "data": told}
        check_compaction(body)
        return draft_event(
            "compaction",
            body,
            tokens=Form(count=self.count, is_counted=True).tokens(summary_message(summary)),
            past=store_id(plan.moment.number, plan.through),  # of this incarnation
        )


class _Bounds:
    """Where a view may be cut in two (invariant 4).

    Args:
        entries: The view, as the log has it.
        running: Ids of open calls, or None.
    """

    def __init__(self, entries: list[WindowEntry], running: Collection[str] | None) -> None:
        self._entries = entries
        spans: list[tuple[int, int]] = []  # of groups: first and last message
        made: dict[str, int] = {}
        waiting: dict[str, int] = {}
        answered_since: int | None = None  # the last message of the model that follows a user's
        is_asked = False
        for index, entry in enumerate(entries):
            tools = tools_of(entry.body)
            results = [] if tools is None else tools.results
            for named in results:
                if named in made:
                    spans.append((made[named], index))
                    waiting.pop(named, None)
            for call in [] if tools is None else tools.calls:
                made[call.id] = waiting[call.id] = index
            role = entry.body.get("role") if type(entry.body) is dict else None
            if role == "user" and not results:
                is_asked = True
                asked = index
            elif role == "assistant" and is_asked:
                answered_since = asked
        self._groups = Spans(spans)
        self._open: list[tuple[int, str]] = []  # index and id
        for named, index in waiting.items():
            if running is None:
                is_open = answered_since is None or answered_since < index
            else:
                is_open = named in running
            if is_open:
                self._open.append((index, named))
                spans.append((index, len(entries)))
        self._spans = Spans(spans)

    def snapped(self, start: int, *, with_open: bool = True) -> int:
        """The last index up to one at which no group is cut, nor an open call left behind."""
        return (self._spans if with_open else self._groups).bound(start)

    def open_before(self, start: int) -> list[tuple[int, str]]:
        """Index and id of the open calls before an index, in order."""
        return sorted([each for each in self._open if each[0] < start])

    def refusal(self, start: int, session: str) -> ConflictError:
        """What tells that an open call before an index is in the way."""
        calls = self.open_before(start)
        index, first = calls[0]
        more = "" if len(calls) == 1 else f", and {len(calls) - 1} more after it"
        return ConflictError(
            f"tool call {first!r} of event {self._entries[index].sequence} of session {session!r} "
            f"is open{more}; a compaction takes no open call along, and before it there is "
            "nothing new to summarise",
            current=first,
            hint="Append its result, or name in `running` the calls that are open, [] for none.",
        )

    def first_after(self, through: int) -> int:
        """The index of the first message after an event."""
        for index, entry in enumerate(self._entries):
            is_summary = entry.synthetic == "summary"
            if not is_summary and entry.sequence is not None and entry.sequence > through:
                return index
        return len(self._entries)


def _whole_groups(scan: PathScan, keep: list[int]) -> list[int]:
    """What to keep, and after it what belongs to the same tool groups (invariant 4)."""
    messages = [scan.find(each) for each in keep]
    if not any([event is not None and tools_of(event.body) for event in messages]):
        return keep
    found: list[tuple[int, Tools]] = []  # on all the path, as an earlier compaction may hide it
    for block in scan.blocks():
        for index in range(len(block.sequences) - 1, -1, -1):
            event = block.event(index)
            tools = tools_of(event.body) if event.kind_code == MESSAGE else None
            if tools is not None:
                found.append((event.sequence, tools))
    found.reverse()
    return [*keep, *sorted(joined(found, keep) - set(keep))]


def _new_part(
    entries: list[WindowEntry], through: int | None, covered: int, kept: Collection[int | None]
) -> list[WindowEntry]:
    """Of the messages before a bound those to summarise; none where that would say nothing new.

    Args:
        entries: Those messages.
        through: Sequence of the last event before the bound.
        covered: Sequence of the last one that an earlier compaction stands for.
        kept: Sequences that stay in view.
    """
    part = [entry for entry in entries if entry.sequence not in kept]
    is_new = through is not None and through >= covered
    return part if is_new and any([entry.synthetic != "summary" for entry in part]) else []


def _last_before(scan: PathScan, entries: list[WindowEntry], start: int) -> int | None:
    """Sequence of the last event on the path before a message of the view."""
    if start == 0:
        return None
    if start == len(entries):
        return scan.leaf
    stop = entries[start].sequence
    if entries[start].synthetic == "summary" or stop is None:
        return None
    for block in scan.blocks(stop):
        return block.sequences[-1]
    return None


def _covered(scan: PathScan, window: Window) -> int:
    """Sequence of the last event that a window's compaction stands for, -1 without one."""
    event = None if window.compaction is None else scan.find(window.compaction)
    return -1 if event is None else _through(scan, event)


def _latest(scan: PathScan) -> Event | None:
    for event in _compactions(scan):
        boundary = boundary_of(event.body)
        if boundary is None:
            continue
        if boundary.through is None:
            return event
        through = scan.resolve((boundary.through,), event.sequence).get(boundary.through)
        if through is not None and scan.holds(through):
            return event
    return None


def _compactions(scan: PathScan) -> Iterator[Event]:
    for block in scan.blocks():
        index = block.kinds.rfind(COMPACTION)
        while index >= 0:
            yield block.event(index)
            index = block.kinds.rfind(COMPACTION, 0, index)


def _through(scan: PathScan, compaction: Event) -> int:
    """Sequence of the last event that a compaction stands for, -1 for none."""
    boundary = boundary_of(compaction.body)
    if boundary is None or boundary.through is None:
        return -1
    return scan.resolve((boundary.through,), compaction.sequence).get(boundary.through, -1)


class _Overflow:
    """Pages of the messages of the path to the head that are trimmed from the view."""

    def __init__(self, log: Log, name: Name, after: int | None) -> None:
        self._log = log
        self._name = name
        self._after = after
        self._pager: PathPager | None = None
        self._stop = 0

    def _begin(self) -> PathPager:
        scan = PathScan(self._log, self._name, None)
        after = self._after
        if after is None:
            latest = _latest(scan) if scan.floor else None
            after = -1 if latest is None else _through(scan, latest)
        self._stop = scan.floor
        leaf = -1 if scan.leaf is None or not scan.floor else scan.leaf
        return PathPager(self._log, self._name, leaf, after + 1)

    def next_page(self) -> list[Event]:
        """See ``reading.Pager``."""
        if self._pager is None:
            self._pager = self._begin()
        while self._pager.following < self._stop:
            page = self._pager.next_page()
            if not page:
                break
            found = [
                event
                for event in page
                if event.kind_code == MESSAGE and event.sequence < self._stop
            ]
            if found:
                return found
        return []
