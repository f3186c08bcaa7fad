"""Windows: what a model should see of a session, the end of its *model view* that fits a limit.

The model view of a path is the summary of its latest compaction, the messages which that keeps, and
all messages after those that the summary stands for; without a compaction all messages. What a
roll-up trimmed (``max_messages``) is not in it, nor what was redacted. Nothing is written for a
view, and nothing changed.

Invariants:
    1. A window ends with the end of the path and is never larger than its limits, but for
       ``at_least_one``.
    2. It holds whole tool groups only: a message with tool calls and all that answers them. One of
       which a part was redacted is left out.
    3. One scan from the end: no event before the window is decoded, but for the bounds of a
       compaction that lies in it, and what tells where a tool group begins.
    4. Tokens are those stored with an event; where none are, what ``count`` says.
    5. No transaction is held while ``count`` runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal, TypeVar

from engine.boundary import Boundary, boundary_of
from engine.estimate import estimate_tokens
from engine.events import Event
from engine.kinds import COMPACTION, ROLES
from engine.pathscan import PathScan
from engine.toolgroups import (
    MENTION,
    Call,
    Count,
    Grouped,
    group,
    half_redacted,
    is_orphan,
    synthetic_result,
    tools_of,
    without_media,
    without_results,
)
from eventlog.arguments import callback, texts, whole
from eventlog.errors import UsageError
from eventlog.limits import POSITION_MAX
from eventlog.pathback import Block
from eventlog.record import MESSAGE

SUMMARY_PREFIX: Final = "Summary of the conversation so far:\n\n"
"""What stands before a compaction's summary in the message that a view makes of it."""

T = TypeVar("T")
_MESSAGE: Final = bytes([MESSAGE])
_USER: Final = ROLES["user"]

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
        left_out: Sequences of messages whose tool calls are not in the window, or whose tool group
            was redacted in part.
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


class Limits:
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

    def let(self, count: int, tokens: int) -> bool:
        """Whether so many messages of so many tokens are within them."""
        return (self.last is None or count <= self.last) and (
            self.tokens is None or tokens <= self.tokens
        )

    def enough(self) -> Callable[[Block[Event]], bool]:
        """Tells, block after block, when about as much was read as these limits let through."""
        messages = POSITION_MAX if self.last is None else self.last
        left = POSITION_MAX if self.tokens is None else self.tokens
        exchanges = POSITION_MAX if self.exchanges is None else self.exchanges

        def is_enough(block: Block[Event]) -> bool:
            nonlocal messages, left, exchanges
            messages -= block.kinds.count(MESSAGE)
            left -= sum(block.tokens)
            exchanges -= block.roles.count(_USER)
            is_counted = self.tokens is None or 0 not in block.tokens
            return messages < 0 or left < 0 or exchanges < 0 or not is_counted

        return is_enough


class Form:
    """How a window's messages are made."""

    __slots__ = ("_running", "count", "is_counted", "media", "repair")

    def __init__(
        self,
        repair: bool = True,
        running: Collection[str] | Callable[[], Collection[str]] = (),
        media: bool = True,
        count: Count | None = None,
        is_counted: bool = False,
    ) -> None:
        self.repair = repair
        if type(running) is str:
            raise UsageError("running must hold ids of tool calls, not be one")
        self._running = running if callable(running) else texts(running, "running")
        self.media = media
        self.count = callback(count, "count") or estimate_tokens
        self.is_counted = is_counted

    @property
    def running(self) -> Collection[str]:
        """Ids of calls that run; found when somebody asks for the first time."""
        if callable(self._running):
            self._running = frozenset(self._running())
        return self._running

    def tokens(self, body: Any) -> int:
        """Tokens of a message that came without; 0 where nobody asks.

        Raises:
            UsageError: What ``count`` gives is no number of tokens.
        """
        if not self.is_counted:
            return 0
        return whole(self.count(body), "what count gives", 0, POSITION_MAX)


def _body_of(event: Event) -> Any:
    return event.body


@dataclass(slots=True)
class _Page:
    """Messages that were taken together, oldest first; ``made`` where they are entries already."""

    bodies: list[Any]
    sequences: Sequence[int]
    tokens: Sequence[int]
    made: list[WindowEntry] | None = None

    @classmethod
    def of(cls, entries: list[WindowEntry]) -> _Page:
        """A page of entries."""
        return cls([entry.body for entry in entries], (), (), entries)

    def entries(self) -> list[WindowEntry]:
        """Its messages with what is known of them."""
        if self.made is not None:
            return self.made
        return list(map(WindowEntry, self.bodies, self.sequences, self.tokens))


class _Collector:
    """Takes messages, newest first, until a limit is reached."""

    def __init__(self, scan: PathScan, limits: Limits, form: Form) -> None:
        self.scan = scan
        self.form = form
        self.limits = limits
        self.pages: list[_Page] = []  # newest first
        self.room = POSITION_MAX if limits.last is None else limits.last
        self.left = POSITION_MAX if limits.tokens is None else limits.tokens
        self.exchanges = limits.exchanges
        self.begin = scan.floor  # only messages from this sequence on
        self.compaction: int | None = None
        self.summary: WindowEntry | None = None
        self.keep: list[int] = []  # rising
        self.is_full = False
        self.has_tools = False  # whether a message may have to do with tools
        self.redacted: list[tuple[int, int]] = []  # sequences and roles of redacted messages
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
            self.pages.append(_Page.of([self.summary]))

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
            left = self.left
            wanted = max(start, stop - self.room)
            low = self._count_back(tokens, wanted, stop)
            if not (low > start and block.event(low - 1).redacted):
                self.is_full = low > start
                if low == stop:
                    return
                bodies, mentions = block.bodies(low, stop, _body_of, MENTION)
                if all(bodies) or None not in bodies:
                    self.room -= stop - low
                    self.has_tools = self.has_tools or mentions
                    self.pages.append(_Page(bodies, block.sequences[low:stop], tokens[low:stop]))
                    return
            self.left, self.is_full = left, False  # some were redacted: they take no room
        taken: list[WindowEntry] = []
        for index in range(stop - 1, start - 1, -1):
            event = block.event(index)
            if event.redacted and (not self.room or self.exchanges == 0):
                continue  # nothing of the view, which may begin here
            if not self.room:
                self.is_full = True
                break
            before = block.event(index - 1) if event.redacted and index else None
            if not self._fits_exchange(block.roles[index], event, before):
                break
            if self._passes(event):
                continue
            entry = self._entry(event)
            if not self._fits(entry.tokens):
                break
            taken.append(entry)
        taken.reverse()
        self.has_tools = True
        self.pages.append(_Page.of(taken))

    def _count_back(self, tokens: Sequence[int], start: int, stop: int) -> int:
        """The first index from which on all fit the tokens that are left."""
        if self.limits.tokens is None:
            return start
        sums = list(accumulate(reversed(tokens[start:stop])))
        fitting = bisect_right(sums, self.left)
        if fitting:
            self.left -= sums[fitting - 1]
        return stop - fitting

    def _fits(self, tokens: int) -> bool:
        if not self.room or tokens > self.left:
            self.is_full = True
            return False
        self.room -= 1
        self.left -= tokens
        return True

    def _fits_exchange(self, role: int, event: Event, before: Event | None = None) -> bool:
        """Whether a message is in the last exchanges; counts the one that it begins.

        One that was redacted may have been a result: where it follows ``before``, a call.
        """
        if self.exchanges is None:
            return True
        if self.exchanges == 0:
            self.is_full = True
            return False
        if role == _USER:
            tools = tools_of(event.body)
            called = None if before is None else tools_of(before.body)
            is_result = tools is not None and tools.results
            if not (is_result or (called is not None and called.calls)):
                self.exchanges -= 1
        return True

    def _passes(self, event: Event) -> bool:
        """Whether a message was redacted; notes where it stood."""
        if event.redacted:
            self.redacted.append((event.sequence, event.role_code))
        return event.redacted

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
            if through is None or not self.scan.holds(through):
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
        block: Block[Event] | None = None
        for sequence in reversed(self.keep):
            if block is None or sequence < block.sequences[0]:
                block = next(self.scan.blocks(sequence + 1), None)
            if block is None:
                break
            index = bisect_left(block.sequences, sequence)
            if index == len(block.sequences) or block.sequences[index] != sequence:
                continue  # not on the path
            event = block.event(index)
            if event.kind_code != MESSAGE:
                continue
            if not self._fits_exchange(event.role_code, event):
                break
            if self._passes(event):
                continue
            entry = self._entry(event)
            if not self._fits(entry.tokens):
                break
            taken.append(entry)
        taken.reverse()
        self.has_tools = True
        self.pages.append(_Page.of(taken))


def summary_message(summary: str) -> dict[str, Any]:
    """The message that a view makes of a compaction's summary."""
    return {"role": "user", "content": SUMMARY_PREFIX + summary}


def collect(scan: PathScan, limits: Limits, form: Form) -> Window:
    """The window of a path."""
    taken = _Collector(scan, limits, form)
    taken.run()
    return _window(taken, limits, form)


def collect_messages(scan: PathScan, limits: Limits, form: Form) -> list[Any]:
    """The messages of the window of a path; quicker, as nothing else is said of them."""
    taken = _Collector(scan, limits, form)
    taken.run()
    if taken.has_tools:
        return _window(taken, limits, form).messages
    return _joined([page.bodies for page in taken.pages])


def _window(taken: _Collector, limits: Limits, form: Form) -> Window:
    entries = _joined([page.entries() for page in taken.pages])
    window = Window(entries, taken.scan.leaf, taken.is_full, taken.compaction)
    if taken.redacted:
        _leave_out_halves(window, sorted(taken.redacted), form)
    if taken.has_tools:
        regroup(window, limits, form)
    return window


def _leave_out_halves(window: Window, redacted: list[tuple[int, int]], form: Form) -> None:
    entries = window.entries
    bodies = [entry.body for entry in entries]
    gone = half_redacted(
        bodies,
        [entry.sequence for entry in entries],
        redacted,
        lambda call: call.id in form.running,
    )
    window.left_out = _sequences([entries[index] for index in sorted(gone)])
    window.entries = [each for index, each in enumerate(entries) if index not in gone]


def _joined(pages: list[list[T]]) -> list[T]:
    """Pages that come newest first, in order."""
    if len(pages) == 1:
        return pages[0]
    return [each for page in reversed(pages) for each in page]


def regroup(window: Window, limits: Limits, form: Form) -> None:
    """Leave whole groups only, and as many as fit with the results that they lack."""
    entries = window.entries
    tools = [tools_of(entry.body) for entry in entries]
    if not any(tools):
        return
    grouped = group(tools)
    if not form.repair:
        start = 0
        while is_orphan(tools, grouped, start):
            start += 1
        window.left_out += _sequences(entries[:start])
        window.entries = entries[start:]
        return
    left_out = [index for index in grouped.orphans if is_orphan(tools, grouped, index)]
    for index, missing in grouped.orphans.items():
        if index not in left_out:
            entries[index] = _without(entries[index], missing, form)
    first = len(grouped.groups)
    answers: list[list[WindowEntry]] = []  # synthetic ones, by group, newest first
    tokens = count = 0
    for indexes, unanswered in reversed(grouped.groups):
        made = [_answer(call, form) for call in unanswered if call.id not in form.running]
        tokens += sum([entry.tokens for entry in (*[entries[index] for index in indexes], *made)])
        count += len(indexes) + len(made)
        if not limits.let(count, tokens):
            window.is_cut = True
            break
        answers.append(made)
        first -= 1
    _cut_answers(entries, grouped, first, form)
    window.left_out += _sequences([entries[index] for index in left_out])
    window.entries = [
        entry
        for (indexes, _), made in zip(grouped.groups[first:], reversed(answers), strict=True)
        for entry in (*[entries[index] for index in indexes], *made)
    ]


def _answer(call: Call, form: Form) -> WindowEntry:
    body = synthetic_result(call)
    return WindowEntry(body, None, form.tokens(body), "result")


def _cut_answers(entries: list[WindowEntry], grouped: Grouped, first: int, form: Form) -> None:
    """Take what answers calls of the groups before one out of those from it on."""
    for index, named in grouped.cut_off(first).items():
        entries[index] = _without(entries[index], named, form)


def _without(entry: WindowEntry, named: Collection[str], form: Form) -> WindowEntry:
    """A message without the results of some calls; it has no more tokens than before."""
    body = without_results(entry.body, named)
    tokens = min(entry.tokens, form.tokens(body))
    return WindowEntry(body, entry.sequence, tokens, "changed")


def _sequences(entries: list[WindowEntry]) -> tuple[int, ...]:
    return tuple([entry.sequence for entry in entries if entry.sequence is not None])


def at_least(scan: PathScan, limits: Limits, form: Form, empty: Window | None = None) -> Window:
    """Where nothing fits: the newest message, or the newest tool group, if that is wanted.

    Looks at more and more until it is whole.
    """
    window = empty or Window([], scan.leaf)
    count = 1
    while limits.at_least_one:
        window = collect(scan, Limits(count), form)
        if window.entries:
            grouped = group([tools_of(entry.body) for entry in window.entries])
            indexes, _ = grouped.groups[-1]
            window.is_cut = window.is_cut or len(indexes) < len(window.entries)
            _cut_answers(window.entries, grouped, len(grouped.groups) - 1, form)
            window.entries = [window.entries[index] for index in indexes]
        if window.entries or not window.is_cut:
            break
        count *= 2
    return window
