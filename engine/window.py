"""Windows: what a model should see of a session, the end of its *model view* that fits a limit.

The model view of a path is the summary of its latest compaction, the messages which that keeps, and
all messages after those that the summary stands for; without a compaction all messages. What a
roll-up trimmed (``max_messages``) is not in it. Nothing is written for a view, and nothing changed.

Invariants:
    1. A window ends with the end of the path and is never larger than its limits, but for
       ``at_least_one``.
    2. It holds whole tool groups only: a message with tool calls and all that answers them.
    3. One scan from the end: no event before the window is decoded, but for the bounds of a
       compaction that lies in it, and what tells where a tool group begins.
    4. Tokens are those stored with an event; where none are, what ``count`` says.
    5. No transaction is held while ``count`` runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from engine.boundary import Boundary, EventName, boundary_of
from engine.branches import Branching
from engine.estimate import estimate_tokens
from engine.events import Event
from engine.kinds import COMPACTION, ROLES
from engine.toolgroups import (
    MENTION,
    Count,
    Grouped,
    Tools,
    group,
    synthetic_result,
    tools_of,
    without_media,
    without_results,
)
from eventlog.ack import event_of
from eventlog.arguments import items, whole
from eventlog.branching import Stretch
from eventlog.errors import SessionGoneError, TrimmedError, UsageError
from eventlog.index import Name
from eventlog.limits import POSITION_MAX
from eventlog.log import Log
from eventlog.past import Past
from eventlog.pathback import Block, read_back, shown_from
from eventlog.record import CONTROL, MESSAGE

if TYPE_CHECKING:
    from engine.store import Store

SUMMARY_PREFIX: Final = "Summary of the conversation so far:\n\n"
"""What stands before a compaction's summary in the message that a view makes of it."""

_MESSAGE: Final = bytes([MESSAGE])
_USER: Final = ROLES["user"]
_BLOCKS_MAX: Final = 16  # read in one transaction

Synthetic = Literal["summary", "result", "changed"]


@dataclass(slots=True)
class WindowEntry:
    """One message of a window.

    Attributes:
        body: The message.
        sequence: Sequence of its event; of a summary that of the compaction. None for a result
            that answers a call nobody answered.
        tokens: Its tokens; 0 where they were not asked for.
        synthetic: None for a message as it stands in the log; ``"summary"`` for one made of a
            compaction, ``"result"`` for one made to answer a call, ``"changed"`` for one of the log
            that lost media, or results of calls that are not there.
    """

    body: Any
    sequence: int | None
    tokens: int = 0
    synthetic: Synthetic | None = None


@dataclass(slots=True)
class Window:
    """The end of a model view, oldest message first.

    Attributes:
        entries: Its messages.
        leaf: Sequence of the event that its path ends with; None for an empty path.
        is_cut: Whether the model view begins before it.
        compaction: Sequence of the compaction whose bounds were applied.
        left_out: Sequences of messages whose tool calls are not in the window.
    """

    entries: list[WindowEntry]
    leaf: int | None = None
    is_cut: bool = False
    compaction: int | None = None
    left_out: tuple[int, ...] = ()

    @property
    def messages(self) -> list[Any]:
        """The bodies."""
        return [entry.body for entry in self.entries]

    @property
    def tokens(self) -> int:
        """Tokens of all messages."""
        return sum([entry.tokens for entry in self.entries])


class Viewing(Branching):
    """The part of ``Session`` that shows what a model should see."""

    __slots__ = ()

    _store: Store
    _name: tuple[str, str]

    def window(
        self,
        last: int | None = None,
        *,
        exchanges: int | None = None,
        tokens: int | None = None,
        leaf: int | str | None = None,
        repair: bool = True,
        running: Collection[str] = (),
        media: bool = True,
        count: Count | None = None,
        at_least_one: bool = False,
    ) -> list[Any]:
        """What a model should see: bodies of messages, oldest first; see ``engine.window``.

        Of several limits all hold. Costs what it returns; a summary and synthetic results count.

        Args:
            last: At most so many messages.
            exchanges: At most so many exchanges: a user message and what follows up to the next.
            tokens: At most so many tokens.
            leaf: Sequence of an event, or the name of a branch, for the path to it; None for the
                head.
            repair: Answer tool calls that nobody answered with a synthetic result, put results that
                came late behind their call, and leave out those without a call. Without it messages
                stand as in the log, but for results at the beginning whose call is cut off.
            running: Ids of tool calls that still run or wait for approval; they stay as they are.
            media: False puts a word in place of images and other media.
            count: Counts the tokens of messages that came without; None estimates.
            at_least_one: Give the newest message, or its whole tool group, however large it is.

        Raises:
            UsageError: A limit that cannot be, or no such event.
        """
        return self._view(
            _Limits(last, exchanges, tokens, at_least_one),
            leaf,
            _Form(repair, running, media, count, tokens is not None),
        ).messages

    async def window_async(
        self,
        last: int | None = None,
        *,
        exchanges: int | None = None,
        tokens: int | None = None,
        leaf: int | str | None = None,
        repair: bool = True,
        running: Collection[str] = (),
        media: bool = True,
        count: Count | None = None,
        at_least_one: bool = False,
    ) -> list[Any]:
        """``window`` on the store's pool; ``count`` runs there, too."""
        return await self._store._on_pool(
            self.window,
            last,
            exchanges=exchanges,
            tokens=tokens,
            leaf=leaf,
            repair=repair,
            running=running,
            media=media,
            count=count,
            at_least_one=at_least_one,
        )

    def window_entries(
        self,
        last: int | None = None,
        *,
        exchanges: int | None = None,
        tokens: int | None = None,
        leaf: int | str | None = None,
        repair: bool = True,
        running: Collection[str] = (),
        media: bool = True,
        count: Count | None = None,
        at_least_one: bool = False,
    ) -> Window:
        """``window`` with all that is known of each message: its sequence, tokens, what was made.

        Args:
            last: See ``window``; so are all others.
            exchanges: See ``window``.
            tokens: See ``window``.
            leaf: See ``window``.
            repair: See ``window``.
            running: See ``window``.
            media: See ``window``.
            count: See ``window``.
            at_least_one: See ``window``.
        """
        return self._view(
            _Limits(last, exchanges, tokens, at_least_one),
            leaf,
            _Form(repair, running, media, count, True),
        )

    async def window_entries_async(
        self,
        last: int | None = None,
        *,
        exchanges: int | None = None,
        tokens: int | None = None,
        leaf: int | str | None = None,
        repair: bool = True,
        running: Collection[str] = (),
        media: bool = True,
        count: Count | None = None,
        at_least_one: bool = False,
    ) -> Window:
        """``window_entries`` on the store's pool; ``count`` runs there, too."""
        return await self._store._on_pool(
            self.window_entries,
            last,
            exchanges=exchanges,
            tokens=tokens,
            leaf=leaf,
            repair=repair,
            running=running,
            media=media,
            count=count,
            at_least_one=at_least_one,
        )

    def _view(self, limits: _Limits, leaf: int | str | None, form: _Form) -> Window:
        at = None if leaf is None else self._event_at(leaf)
        scan = PathScan(self._store._log, self._name, at)
        window = _collect(scan, limits, form)
        if limits.at_least_one and not window.entries and window.is_cut:
            window = _newest_group(scan, form)
        return window


class _Limits:
    """How large a window may be; refuses what cannot be."""

    __slots__ = ("at_least_one", "exchanges", "last", "tokens")

    def __init__(
        self,
        last: int | None,
        exchanges: int | None = None,
        tokens: int | None = None,
        at_least_one: bool = False,
    ) -> None:
        self.last = None if last is None else whole(last, "last", 0, POSITION_MAX)
        self.exchanges = (
            None if exchanges is None else whole(exchanges, "exchanges", 0, POSITION_MAX)
        )
        self.tokens = None if tokens is None else whole(tokens, "tokens", 0, POSITION_MAX)
        self.at_least_one = at_least_one


class _Form:
    """How a window's messages are made."""

    __slots__ = ("count", "is_counted", "media", "repair", "running")

    def __init__(
        self,
        repair: bool = True,
        running: Collection[str] = (),
        media: bool = True,
        count: Count | None = None,
        is_counted: bool = False,
    ) -> None:
        self.repair = repair
        self.running = frozenset(items(list(running), "running")) if running else frozenset()
        self.media = media
        self.count = estimate_tokens if count is None else count
        self.is_counted = is_counted

    def tokens(self, body: Any) -> int:
        """Tokens of a message that came without; 0 where nobody asks."""
        return self.count(body) if self.is_counted else 0


class PathScan:
    """A path of a session, read from its end; blocks may be asked for again and again.

    Attributes:
        leaf: Sequence of the event that it ends with; None for an empty path.
        first: The first sequence of the session that was not purged.
        number: Number of the session's incarnation; None when there is no such session.
        floor: Messages before this sequence were trimmed from the view.
    """

    def __init__(self, log: Log, name: Name, leaf: int | None) -> None:
        self._log = log
        self._name = name
        self._path: list[Stretch] = []
        self.leaf = leaf
        self.first = 0
        self.floor = 0
        self.number: int | None = None
        self._begun: tuple[list[Block[Event]], int] = ([], 0)
        with log.views.past(name) as past:
            if past is not None:
                self._begin(past)

    def _begin(self, past: Past) -> None:
        self.number = past.view.origin.number
        self.first = past.first
        stop = past.view.event_count
        if self.leaf is None:
            self.leaf = past.head(stop, past.row.head)
            if self.leaf is None or self.leaf < past.first:
                return
        else:
            self._require(past, self.leaf, stop)
        self._path = past.path(self.leaf)
        if past.is_trimmed:
            self.floor = shown_from(past, stop, self.leaf)
        self._begun = read_back(past, self._path, self.leaf + 1, 1, Event)

    def _require(self, past: Past, leaf: int, stop: int) -> None:
        if leaf < past.first:
            raise TrimmedError(
                f"the events of session {self._name[1]!r} below {past.first} were purged",
                first=past.first,
            )
        if leaf >= stop:
            raise UsageError(f"session {self._name[1]!r} has no event {leaf}")
        if past.event(leaf, Event).kind_code >= CONTROL:
            raise UsageError(f"event {leaf} of session {self._name[1]!r} is none of its history")

    def blocks(self, stop: int | None = None) -> Iterator[Block[Event]]:
        """Blocks of the path before a sequence, newest first; from its end when None.

        Raises:
            SessionGoneError: The session was deleted meanwhile.
        """
        if not self._path:
            return
        count = 1
        if stop is None:
            found, stop = self._begun
            yield from found
        while stop:
            with self._log.views.past(self._name) as past:
                if past is None or past.view.origin.number != self.number:
                    raise SessionGoneError(
                        f"session {self._name[1]!r} was deleted while it was read",
                        expected=self.number,
                        current=None if past is None else past.view.origin.number,
                    )
                found, stop = read_back(past, self._path, stop, count, Event)
            yield from found
            count = min(2 * count, _BLOCKS_MAX)

    def find(self, sequence: int) -> Event | None:
        """The event of a sequence, if it is on the path and was not purged."""
        for block in self.blocks(sequence + 1):
            index = len(block.sequences) - 1
            return block.event(index) if block.sequences[index] == sequence else None
        return None

    def resolve(self, names: Collection[EventName], stop: int) -> dict[EventName, int]:
        """The sequences of events on the path before a sequence, by what names them.

        Those that are not on it are not in what this returns. What was purged counts as on it.
        """
        found: dict[EventName, int] = {}
        unknown: set[str] = set()
        for name in names:
            sequence = name
            if type(name) is str:
                made = event_of(name)
                if made is None:
                    unknown.add(name)
                    continue
                sequence = made[1] if made[0] == self.number else stop
            assert type(sequence) is int
            if sequence < stop and (sequence < self.first or self.find(sequence) is not None):
                found[name] = sequence
        if unknown:
            for event in self._named_back(stop):
                if event.id in unknown:
                    found[event.id] = event.sequence
                    unknown.discard(event.id)
                    if not unknown:
                        break
        return found

    def _named_back(self, stop: int) -> Iterator[Event]:
        for block in self.blocks(stop):
            for index in range(len(block.sequences) - 1, -1, -1):
                event = block.event(index)
                if event.extension:
                    yield event


def _body_of(event: Event) -> Any:
    return event.body


class _Collector:
    """Takes messages, newest first, until a limit is reached."""

    def __init__(self, scan: PathScan, limits: _Limits, form: _Form) -> None:
        self.scan = scan
        self.form = form
        self.limits = limits
        self.pages: list[list[WindowEntry]] = []  # newest first, each oldest first
        self.room = POSITION_MAX if limits.last is None else limits.last
        self.left = POSITION_MAX if limits.tokens is None else limits.tokens
        self.exchanges = limits.exchanges
        self.begin = scan.floor  # only messages from this sequence on
        self.compaction: int | None = None
        self.summary: WindowEntry | None = None
        self.keep: list[int] = []  # rising
        self.is_full = False
        self.has_tools = False  # whether a message may have to do with tools
        self.is_simple = limits.exchanges is None and form.media

    def run(self) -> None:
        """Take what fits."""
        if self.exchanges == 0:
            self.is_full = True
            return
        for block in self.scan.blocks():
            stop = len(block.sequences)
            while stop and not self.is_full:
                stop = self._take(block, stop)
            if self.is_full or block.sequences[0] <= self.begin:
                break
        if not self.is_full and self.keep:
            self._take_kept()
        self.is_full = self.is_full or (self.exchanges == 0 and self.summary is not None)
        if self.summary is not None and not self.is_full and self._fits(self.summary.tokens):
            self.pages.append([self.summary])

    def _take(self, block: Block[Event], stop: int) -> int:
        """Take messages before an index; gives the index to go on before."""
        start = bisect_left(block.sequences, self.begin, 0, stop) if self.begin else 0
        if start >= stop:
            return 0
        other = start + len(block.kinds[start:stop].rstrip(_MESSAGE)) - 1
        if other < stop - 1:  # messages alone, from the one after it on
            self._messages(block, other + 1, stop)
            if self.is_full:
                return 0
        if other < start:
            return 0
        if block.kinds[other] == COMPACTION and self.compaction is None:
            self._compact(block.event(other))
        return other

    def _messages(self, block: Block[Event], start: int, stop: int) -> None:
        """Take messages of a stretch without anything else."""
        tokens = block.tokens
        if self.is_simple and (not self.form.is_counted or 0 not in tokens[start:stop]):
            low = self._count_back(tokens, max(start, stop - self.room), stop)
            self.is_full = low > start
            self.room -= stop - low
            self.has_tools = self.has_tools or block.holds(low, stop, MENTION)
            bodies = block.bodies(low, stop, _body_of)
            self.pages.append(
                [
                    WindowEntry(body, sequence, each)
                    for body, sequence, each in zip(
                        bodies, block.sequences[low:stop], tokens[low:stop], strict=True
                    )
                ]
            )
            return
        taken: list[WindowEntry] = []
        for index in range(stop - 1, start - 1, -1):
            event = block.event(index)
            if not self._fits_exchange(block.roles[index], event):
                break
            entry = self._entry(event)
            if not self._fits(entry.tokens):
                break
            taken.append(entry)
        taken.reverse()
        self.has_tools = True
        self.pages.append(taken)

    def _count_back(self, tokens: Sequence[int], start: int, stop: int) -> int:
        """The first index from which on all fit the tokens that are left."""
        if self.limits.tokens is None:
            return start
        left = self.left
        index = stop
        while index > start:
            left -= tokens[index - 1]
            if left < 0:
                break
            index -= 1
            self.left = left
        return index

    def _fits(self, tokens: int) -> bool:
        if not self.room or tokens > self.left:
            self.is_full = True
            return False
        self.room -= 1
        self.left -= tokens
        return True

    def _fits_exchange(self, role: int, event: Event) -> bool:
        """Whether a message is in the last exchanges; counts the one that it begins."""
        if self.exchanges is None:
            return True
        if self.exchanges == 0:
            self.is_full = True
            return False
        if role == _USER:
            tools = tools_of(event.body)
            if tools is None or not tools.results:
                self.exchanges -= 1
        return True

    def _entry(self, event: Event) -> WindowEntry:
        body, made = event.body, None
        if not self.form.media:
            plain = without_media(body)
            made, body = (None, body) if plain is body else ("changed", plain)
        tokens = event.tokens if made is None else 0
        tokens = tokens or self.form.tokens(body)
        return WindowEntry(body, event.sequence, tokens, made)  # type: ignore[arg-type]

    def _compact(self, event: Event) -> None:
        """Apply a compaction, if it is one."""
        boundary = boundary_of(event.body)
        if boundary is None:
            return
        names = set(boundary.keep)
        if boundary.through is not None:
            names.add(boundary.through)
        found = self.scan.resolve(names, event.sequence)
        if boundary.through is not None:
            through = found.get(boundary.through)
            if through is None:
                return
            kept = {found[name] for name in boundary.keep if name in found}
            self.keep = sorted(each for each in kept if self.scan.floor <= each <= through)
            self.begin = max(self.begin, through + 1)
        self.compaction = event.sequence
        self.summary = self._summary(event, boundary)

    def _summary(self, event: Event, boundary: Boundary) -> WindowEntry:
        body = summary_message(boundary.summary)
        tokens = event.tokens
        tokens = tokens or self.form.tokens(body)
        return WindowEntry(body, event.sequence, tokens, "summary")

    def _take_kept(self) -> None:
        """Take what the compaction keeps of what its summary stands for."""
        taken: list[WindowEntry] = []
        for sequence in reversed(self.keep):
            event = self.scan.find(sequence)
            if event is None or event.kind_code != MESSAGE:
                continue
            if not self._fits_exchange(event.role_code, event):
                break
            entry = self._entry(event)
            if not self._fits(entry.tokens):
                break
            taken.append(entry)
        taken.reverse()
        self.has_tools = True
        self.pages.append(taken)


def summary_message(summary: str) -> dict[str, Any]:
    """The message that a view makes of a compaction's summary."""
    return {"role": "user", "content": SUMMARY_PREFIX + summary}


def _collect(scan: PathScan, limits: _Limits, form: _Form) -> Window:
    taken = _Collector(scan, limits, form)
    taken.run()
    entries = taken.pages[0] if len(taken.pages) == 1 else _joined(taken.pages)
    window = Window(entries, scan.leaf, taken.is_full, taken.compaction)
    if taken.has_tools:
        tools = [tools_of(entry.body) for entry in entries]
        if any(tools):
            _regroup(window, tools, limits, form)
    return window


def _joined(pages: list[list[WindowEntry]]) -> list[WindowEntry]:
    return [entry for page in reversed(pages) for entry in page]


def _regroup(window: Window, tools: list[Tools | None], limits: _Limits, form: _Form) -> None:
    """Leave whole groups only, and as many as fit with the results that they lack."""
    entries = window.entries
    grouped = group(tools)
    if not form.repair:
        start = 0
        while _is_orphan(tools, grouped, start):
            start += 1
        window.left_out = _sequences(entries[:start])
        window.entries = entries[start:]
        return
    left_out = [index for index in grouped.orphans if _is_orphan(tools, grouped, index)]
    for index, missing in grouped.orphans.items():
        if index not in left_out:
            old = entries[index]
            body = without_results(old.body, missing)
            entries[index] = WindowEntry(body, old.sequence, form.tokens(body), "changed")
    total = 0
    kept: list[list[WindowEntry]] = []
    for indexes, unanswered in reversed(grouped.groups):
        made = [entries[index] for index in indexes]
        for call in unanswered:
            if call.id not in form.running:
                body = synthetic_result(call)
                made.append(WindowEntry(body, None, form.tokens(body), "result"))
        if limits.tokens is not None:
            total += sum([entry.tokens for entry in made])
            if total > limits.tokens:
                window.is_cut = True
                break
        kept.append(made)
    window.left_out = _sequences([entries[index] for index in left_out])
    window.entries = _joined(kept)


def _is_orphan(tools: list[Tools | None], grouped: Grouped, index: int) -> bool:
    """Whether a message answers calls that are not there, and does nothing else."""
    if index not in grouped.orphans:
        return False
    each = tools[index]
    assert each is not None
    is_all = len(grouped.orphans[index]) == len(each.results)
    return is_all and not each.calls and not each.has_more


def _sequences(entries: list[WindowEntry]) -> tuple[int, ...]:
    return tuple([entry.sequence for entry in entries if entry.sequence is not None])


def _newest_group(scan: PathScan, form: _Form) -> Window:
    """The newest message, or the newest tool group; looks at more and more until it is whole."""
    count = 1
    while True:
        window = _collect(scan, _Limits(count), form)
        if window.entries:
            indexes, _ = group([tools_of(entry.body) for entry in window.entries]).groups[-1]
            window.is_cut = window.is_cut or len(indexes) < len(window.entries)
            window.entries = [window.entries[index] for index in indexes]
        if window.entries or not window.is_cut:
            return window
        count *= 2
