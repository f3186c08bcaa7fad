"""What a model should see: windows, compactions, and what roll-ups trimmed from the view."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.model.answers import Refused, exact
from tests.model.operations import New, Noun
from tests.model.sessions import Kept, ModelSession
from tests.model.works import pending_calls

if TYPE_CHECKING:
    from engine import Store
    from tests.model.model import ModelStore

PREFIX = "Summary of the conversation so far:\n\n"
NO_RESULT = "No result: the tool call was not completed."
COUNTED = 3  # what ``counted`` gives


def counted(body: Any) -> int:
    """Tokens of a message that came without."""
    return COUNTED


def summarized(messages: list[Any]) -> str:
    """A summary."""
    return f"all {len(messages)}"


def calls_in(body: Any) -> list[str]:
    """Ids of the tool calls that a message makes, in the one shape that the model knows."""
    listed = body.get("tool_calls") if type(body) is dict else None
    return [each["id"] for each in listed or [] if type(each.get("id")) is str]


def result_in(body: Any) -> str | None:
    """The call that a message answers."""
    if type(body) is not dict or body.get("role") != "tool":
        return None
    found = body.get("tool_call_id")
    return found if type(found) is str else None


@dataclass(slots=True)
class Entry:
    """One message of a view; of one that was redacted its role is known."""

    body: Any
    sequence: int | None
    tokens: int
    made: str | None = None
    role: str | None = None
    is_redacted: bool = False


def _entry(kept: Kept) -> Entry:
    new = kept.new
    tokens = new.tokens or COUNTED
    return Entry(new.body, kept.sequence, tokens, role=new.role, is_redacted=new.redacted)


def boundary(body: Any) -> tuple[str, int | None, list[int]] | None:
    """Summary, last event and kept events of a compaction; None for one that changes no view."""
    if type(body) is not dict or type(body.get("summary")) is not str:
        return None
    data = body.get("data", {})
    return body["summary"], data.get("through"), data.get("keep", [])


def compaction_on(
    session: ModelSession, path: Iterable[int], floor: int = 0
) -> tuple[Kept, int] | None:
    """The compaction that a path's view applies, and the last event that it stands for."""
    on = list(path)
    for sequence in reversed([each for each in on if each >= max(session.first, floor)]):
        kept = session.events[sequence]
        found = boundary(kept.new.body) if kept.new.kind == "compaction" else None
        if found is None:
            continue
        through = found[1]
        if through is None:
            return kept, -1
        if type(through) is not int:
            continue  # an event of another session
        if through < sequence and (through < session.first or through in on):
            return kept, through
    return None


def model_view(
    session: ModelSession, leaf: int, floor: int
) -> tuple[list[Entry], Entry | None, Kept | None]:
    """Messages of the model view of a path, the summary before them, and the compaction.

    Those that were redacted are among them, as they can begin an exchange.
    """
    path = [each for each in session.path(leaf) if each >= max(session.first, floor)]
    found = compaction_on(session, session.path(leaf), floor)
    messages = [session.events[each] for each in path]
    messages = [kept for kept in messages if kept.new.kind == "message"]
    if found is None:
        return [_entry(kept) for kept in messages], None, None
    compaction, through = found
    told = boundary(compaction.new.body)
    assert told is not None
    keep = [each for each in told[2] if each < compaction.sequence]
    shown = [kept for kept in messages if kept.sequence > through or kept.sequence in keep]
    text = {"role": "user", "content": PREFIX + told[0]}
    tokens = compaction.new.tokens or COUNTED
    summary = Entry(text, compaction.sequence, tokens, "summary")
    return [_entry(kept) for kept in shown], summary, compaction


def limited(
    entries: list[Entry],
    summary: Entry | None,
    last: int | None,
    exchanges: int | None,
    tokens: int | None,
) -> tuple[list[Entry], bool]:
    """The newest of a view that fit, and whether something before them did not."""
    taken: list[Entry] = []
    begun = used = 0
    for entry in reversed(entries):
        is_full = exchanges is not None and begun >= exchanges
        is_full = is_full or (last is not None and len(taken) >= last)
        role = entry.body.get("role") if type(entry.body) is dict else entry.role
        if entry.is_redacted:
            begun += role == "user" and not is_full
            continue
        if is_full:
            return taken[::-1], True
        if tokens is not None and used + entry.tokens > tokens:
            return taken[::-1], True
        begun += role == "user"
        used += entry.tokens
        taken.append(entry)
    if summary is None:
        return taken[::-1], exchanges == 0
    is_full = (
        (exchanges is not None and begun >= exchanges)
        or (last is not None and len(taken) >= last)
        or (tokens is not None and used + summary.tokens > tokens)
    )
    return ([] if is_full else [summary]) + taken[::-1], is_full


def grouped(
    entries: list[Entry], running: Iterable[str], last: int | None, tokens: int | None
) -> tuple[list[Entry], list[int | None], bool]:
    """Whole tool groups that fit, what answers no call that is there, whether a group was cut."""
    groups: list[list[Entry]] = []
    open_calls: dict[int, list[str]] = {}
    made_by: dict[str, int] = {}  # the group of the last call with an id
    left_out = []
    for entry in entries:
        answered = result_in(entry.body)
        if answered is not None:
            if answered not in made_by:
                left_out.append(entry.sequence)
                continue
            groups[made_by[answered]].append(entry)
            left = open_calls[made_by[answered]]
            open_calls[made_by[answered]] = [each for each in left if each != answered]
            continue
        groups.append([entry])
        calls = calls_in(entry.body)
        open_calls[len(groups) - 1] = calls
        made_by |= dict.fromkeys(calls, len(groups) - 1)
    kept: list[list[Entry]] = []
    count = used = 0
    for number in range(len(groups) - 1, -1, -1):
        made = [_synthetic(each) for each in open_calls[number] if each not in running]
        whole = groups[number] + made
        used += sum([entry.tokens for entry in whole])
        count += len(whole)
        if (tokens is not None and used > tokens) or (last is not None and count > last):
            return [each for group in reversed(kept) for each in group], left_out, True
        kept.append(whole)
    return [each for group in reversed(kept) for each in group], left_out, False


def _synthetic(call: str) -> Entry:
    body = {"role": "tool", "tool_call_id": call, "content": NO_RESULT}
    return Entry(body, None, COUNTED, "result")


@dataclass(frozen=True, slots=True)
class Window(Noun):
    """``window`` and ``window_entries``."""

    tenant: str
    session: str
    last: int | None = None
    exchanges: int | None = None
    tokens: int | None = None
    leaf: int | None = None
    is_repaired: bool = True

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        options: dict[str, Any] = {
            "exchanges": self.exchanges,
            "tokens": self.tokens,
            "leaf": self.leaf,
            "repair": self.is_repaired,
            "count": counted,
        }
        messages = session.window(self.last, **options)
        window = session.window_entries(self.last, **options)
        assert list(map(exact, messages)) == list(map(exact, window.messages))
        entries = [
            (exact(each.body), each.sequence, each.tokens, each.synthetic)
            for each in window.entries
        ]
        return entries, window.leaf, window.is_cut, sorted(window.left_out)

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None:
            return [], self.leaf, self.exchanges == 0, []
        leaf = session.head if self.leaf is None else self.leaf
        if self.leaf is not None:
            refused = session.path_refusal(leaf)
            if refused is not None:
                return refused
        entries, summary, _ = model_view(session, leaf, session.floor(leaf))
        shown, is_cut = limited(entries, summary, self.last, self.exchanges, self.tokens)
        left_out: list[Any] = []
        if self.is_repaired:
            running = pending_calls(session)
            shown, left_out, is_more = grouped(shown, running, self.last, self.tokens)
            is_cut = is_cut or is_more
        else:
            while shown and result_in(shown[0].body) is not None:
                left_out.append(shown.pop(0).sequence)
        told = [(exact(each.body), each.sequence, each.tokens, each.made) for each in shown]
        return told, None if leaf < 0 else leaf, is_cut, sorted(left_out)


@dataclass(frozen=True, slots=True)
class Compact(Noun):
    """``compact``."""

    tenant: str
    session: str
    keep_last: int = 8
    through: int | None = None
    keep: tuple[int, ...] = ()

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        done = session.compact(
            summarized,
            keep_last=self.keep_last,
            through=self.through,
            keep=self.keep,
            count=counted,
        )
        if done is None:
            return None
        return done.sequence, done.through, done.summary, done.message_count, done.tokens

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None:
            return Refused("SessionNotFoundError")
        if session.head < 0:
            return None
        path = session.shown_path(session.head)
        if self.keep and (
            not set(self.keep) <= set(path)
            or (self.through is not None and max(self.keep) > self.through)
        ):
            return Refused("UsageError")
        keep = with_their_groups(session, path, self.keep)
        view, summary, earlier = model_view(session, session.head, 0)
        view = [each for each in view if not each.is_redacted]
        entries = ([] if summary is None else [summary]) + view
        found = compaction_on(session, session.path(session.head))
        covered = -1 if found is None else found[1]
        if earlier is None:
            covered = -1
        # Results at the beginning, whose calls are cut off, are not part of it.
        while entries and result_in(entries[0].body) is not None:
            entries.pop(0)
        spans = tool_spans(session, entries)
        if self.through is None:
            start = bound(spans, max(0, len(entries) - self.keep_last))
            through = _last_before(path, entries, start, session.head)
        else:
            through = self.through
            if through < covered or through not in path:
                return Refused("UsageError")
            later = [
                index
                for index, each in enumerate(entries)
                if each.made is None and (each.sequence or 0) > through
            ]
            start = later[0] if later else len(entries)
            if bound(spans, start) != start:
                return Refused("UsageError")
        part = [each for each in entries[:start] if each.sequence not in keep]
        if through is None or through < covered or all([each.made for each in part]):
            is_blocked = self._is_blocked(session, entries, covered, keep)
            return Refused("ConflictError") if is_blocked else None
        told_calls = session.space("tool_calls")
        running = pending_calls(session) if told_calls else set()
        told, _, _ = grouped(part, running, None, None)
        text = summarized([each.body for each in told])
        tokens = sum([each.tokens for each in told])
        data = {
            "through": through,
            "keep": [each for each in keep if each <= through],
            "strategy": "summary",
            "trigger": "manual",
            "compressed_count": len(told),
            "total_tokens": tokens,
        }
        new = New({"summary": text, "data": data}, kind="compaction", tokens=COUNTED)
        return model.place(session, new).last, through, text, len(told), tokens

    def _is_blocked(
        self, session: ModelSession, entries: list[Entry], covered: int, keep: list[int]
    ) -> bool:
        """Whether only a call that is open keeps it from finding something to summarise."""
        wanted = max(0, len(entries) - self.keep_last)
        closed = [each for each in tool_spans(session, entries) if each[1] < len(entries)]
        if self.through is not None or len(closed) == len(tool_spans(session, entries)):
            return False
        start = bound(closed, wanted)
        path = session.shown_path(session.head)
        through = _last_before(path, entries, start, session.head)
        part = [each for each in entries[:start] if each.sequence not in keep]
        is_new = through is not None and through >= covered
        return is_new and not all([each.made for each in part])


def with_their_groups(session: ModelSession, path: Iterable[int], keep: Iterable[int]) -> list[int]:
    """Events of a path, and after them the others of their tool groups."""
    group_of: dict[int, int] = {}  # by the call, which is the group's own
    made_by: dict[str, int] = {}
    for sequence in path:
        new = session.events[sequence].new
        if new.kind != "message":
            continue
        answered = result_in(new.body)
        if answered in made_by:
            group_of[sequence] = made_by[answered]
        for each in calls_in(new.body):
            made_by[each] = group_of[sequence] = sequence
    named = list(keep)
    wanted = {group_of[each] for each in named if each in group_of}
    more = {each for each, call in group_of.items() if call in wanted}
    return named + sorted(more - set(named))


def tool_spans(session: ModelSession, entries: list[Entry]) -> list[tuple[int, int]]:
    """Of a view the first and last index of each call with its results; of open ones to the end."""
    bodies = [entry.body for entry in entries]
    spans: list[tuple[int, int]] = []
    last: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for index, body in enumerate(bodies):
        answered = result_in(body)
        if answered in last:
            spans.append((last[answered], index))
            waiting.pop(answered, None)
        for each in calls_in(body):
            last[each] = waiting[each] = index
    told = session.space("tool_calls")
    pending = pending_calls(session)
    for each, index in waiting.items():
        is_open = each in pending if told else not is_over(bodies, index)
        if is_open:
            spans.append((index, len(entries)))
    return spans


def is_over(bodies: list[Any], index: int) -> bool:
    """Whether a user spoke after a call, and the model answered that."""
    roles = [body.get("role") if type(body) is dict else None for body in bodies]
    return any(
        [
            roles[asked] == "user" and "assistant" in roles[asked + 1 :]
            for asked in range(index, len(roles))
        ]
    )


def bound(spans: list[tuple[int, int]], start: int) -> int:
    """The last index up to one that cuts no span."""
    while any([first < start <= last for first, last in spans]):
        start -= 1
    return start


def _last_before(path: list[int], entries: list[Entry], start: int, head: int) -> int | None:
    """The last event on the path before an entry."""
    if start == 0:
        return None
    if start == len(entries):
        return head
    sequence = entries[start].sequence
    if entries[start].made == "summary" or sequence is None:
        return None
    before = [each for each in path if each < sequence]
    return before[-1] if before else None


@dataclass(frozen=True, slots=True)
class Overflow(Noun):
    """``overflow`` and ``compaction``."""

    tenant: str
    session: str
    after: int | None = None

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        latest = session.compaction()
        trimmed = [event.sequence for event in session.overflow(self.after)]
        return None if latest is None else latest.sequence, trimmed

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None or session.head < 0:
            return None, []
        path = session.path(session.head)
        latest = compaction_on(session, path)
        after = self.after
        if after is None:
            after = -1 if latest is None else latest[1]
        floor = session.floor(session.head)
        trimmed = [
            each
            for each in session.shown_path(session.head)
            if after < each < floor and session.events[each].new.kind == "message"
        ]
        return None if latest is None else latest[0].sequence, trimmed
