"""``turnlog import``: sessions from files; what the store has is skipped, what is broken named.

Invariants:
    1. A session is imported only after it was read whole and compared with what the store holds.
    2. What the store holds of a session must be the beginning of what the file holds, event for
       event; then the rest is appended, and nothing when there is no rest. Else it is a conflict.
    3. What is left out of a session is told once: the first line to blame, and how much it is.
    4. What is wrong with a session and can be mended is mended and told, or with ``strict`` the
       session is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from engine import Store
from engine.contents import ContentNames
from engine.export import encode_line, escape, escape_line, line_mapping
from engine.forks import Forks
from engine.hidden import any_session
from engine.salvage import MARK_KIND
from eventlog.errors import (
    ConflictError,
    DamagedInputError,
    DuplicateIdError,
    TurnlogError,
    UsageError,
)
from eventlog.limits import BATCH_EVENTS_MAX, COMMIT_EVENTS_MAX
from turnlog import importers, terminal
from turnlog.exits import ExitCode
from turnlog.incoming import Incoming, Line, RefusedError, prepared, refuse_unfit
from turnlog.piped import copied, is_piped, name_of
from turnlog.stores import is_vacant, opened_when_needed
from turnlog.terminal import counted

_MENDED = {  # in the summary, by what was wrong
    "orphan": "orphan",
    "cycle": "cycle",
    "duplicate": "duplicate",
    "record": "bad record",
}
PIPED_FORMAT = "jsonl"  # of what has no name of its own
NAMED_MAX = 100  # of what is left out, on standard error; all of it is in the result


# What one session does not get past, while the others go on.
_REFUSALS = (RefusedError, ConflictError, DamagedInputError, UsageError)


@dataclass(slots=True)
class Tally:
    """What became of the files' sessions.

    Attributes:
        purged_events: Events that were purged from sessions of the store, and stay so.
        marks: Events that stand for lost ones; ``events`` counts them too.
        damaged: What was left out, one entry a session, or a line or file that names none.
        mended: What was wrong with sessions that were imported, one entry a place.
    """

    sessions: int = 0
    events: int = 0
    marks: int = 0
    skipped_sessions: int = 0
    skipped_events: int = 0
    purged_events: int = 0
    damaged: list[dict[str, Any]] = field(default_factory=list)
    mended: list[dict[str, Any]] = field(default_factory=list)


def run(
    path: Path,
    files: list[Path],
    *,
    format: str | None,
    tenant: str | None,
    strict: bool,
    as_json: bool,
) -> ExitCode:
    """Import the files one after the other; a negative exit code tells of what was left out."""
    _refuse_format(format, files)
    screen = terminal.Screen()
    tally = Tally()
    size = sum(map(_size, files))
    with opened_when_needed(path) as store, terminal.ProgressBar("importing", size or None) as bar:
        batch = _Batch(store, tally)
        for file in files:
            for item in _read(file, format):
                if isinstance(item, importers.Damage):
                    batch.report(item, tenant)
                elif strict and item.mends:
                    for damage in _refused(name_of(file), item):
                        batch.report(damage, tenant)
                else:
                    batch.add(prepared(name_of(file), item, tenant))
                    bar.advance(0, f"{tally.events:,} events, {file.name}")
            bar.advance(_size(file))
        batch.load()
        batch.tell()
    if is_vacant(path):
        terminal.note(f"nothing to import, so no store was made at {terminal.quote(str(path))}")
    if as_json:
        screen.data(
            {
                "sessions": tally.sessions,
                "events": tally.events,
                "marks": tally.marks,
                "skipped_sessions": tally.skipped_sessions,
                "skipped_events": tally.skipped_events,
                "purged_events": tally.purged_events,
                "damaged": escape(tally.damaged),  # a file's name need not be UTF-8
                "mended": escape(tally.mended),
            }
        )
    else:
        screen.line("; ".join(_summary(tally)))
    is_all = not (tally.damaged or tally.mended or tally.purged_events)
    return ExitCode.OK if is_all else ExitCode.DAMAGED_INPUT


def _refused(file: str, parsed: importers.ParsedSession) -> Iterator[importers.Damage]:
    """What is to be mended, as what leaves the session out."""
    first = None if parsed.lines is None else parsed.lines[0]
    for mend in parsed.mends:
        reason = mend.reason.partition("; ")[0]
        line = first if mend.line is None else mend.line
        yield importers.Damage(
            file, line, parsed.name, reason, tenant=parsed.tenant, events=len(parsed.events)
        )


def _summary(tally: Tally) -> Iterator[str]:
    yield f"imported {counted(tally.events, 'event')} of {counted(tally.sessions, 'session')}"
    if tally.marks:
        are = "is a mark" if tally.marks == 1 else "are marks"
        yield f"{tally.marks:,} of them {are} of kind {MARK_KIND}, where an event was lost"
    if tally.skipped_events:
        yield f"skipped {counted(tally.skipped_events, 'event')} that the store has already"
    if tally.purged_events:
        yield (
            f"{counted(tally.purged_events, 'event')} purged from the store stay so; "
            "they can be imported into another one"
        )
    if tally.damaged:
        events = sum(entry["events"] or 0 for entry in tally.damaged)
        sessions = sum(entry["session"] is not None for entry in tally.damaged)
        others = len(tally.damaged) - sessions
        left = [counted(sessions, "session")] if sessions else []
        left += [counted(others, "part") + " that names no session"] if others else []
        words = f"left out {' and '.join(left)}"
        if events:
            at_least = any(entry["events"] is None for entry in tally.damaged)
            words += f", {'at least ' if at_least else ''}{counted(events, 'event')}"
        yield words
    if tally.mended:
        kinds = Counter(entry["what"] for entry in tally.mended)
        counts = (counted(kinds[what], words) for what, words in _MENDED.items() if kinds[what])
        yield f"mended {', '.join(counts)}"


def _size(file: Path) -> int:
    return 0 if is_piped(file) else file.stat().st_size


def _refuse_format(format: str | None, files: list[Path]) -> None:
    if format is not None and format not in importers.FORMATS:
        raise UsageError(
            f"no format is called {terminal.quote(format)}",
            hint=f"Name one of: {', '.join(importers.FORMATS)}.",
        )
    piped = next(filter(is_piped, files), None)
    if piped is not None and format not in (None, PIPED_FORMAT):
        raise UsageError(
            f"{name_of(piped)} can only be read as {PIPED_FORMAT}",
            hint="Save it to a file: other formats take the names of sessions from its name.",
        )


def _read(file: Path, format: str | None) -> Iterator[importers.ParsedSession | importers.Damage]:
    """The file's sessions; a file that cannot be read at all is one damage."""
    if is_piped(file):
        with copied(file) as copy:
            for item in importers.read_file(copy, format=PIPED_FORMAT):
                if isinstance(item, importers.Damage):
                    item.file = name_of(file)
                yield item
        return
    try:
        yield from importers.read_file(file, format=format)
    except DamagedInputError as error:
        yield importers.Damage(error.file, error.line, None, error.reason)
    except importers.UnreadableFileError as error:
        yield importers.Damage(str(file), None, None, error.reason)


def _place(entry: dict[str, Any]) -> str:
    """Where something is: file and line, and the session as far as it is known."""
    where = entry["file"] if entry["line"] is None else f"{entry['file']}:{entry['line']}"
    if entry["session"] is None:
        return f"{where}: "
    of_tenant = f"{terminal.quote(entry['tenant'])}/" if entry["tenant"] else ""
    return f"{where}: session {of_tenant}{terminal.quote(entry['session'])}: "


class _Batch:
    """Sessions that are loaded together, so that many short ones share a commit."""

    def __init__(self, store: Callable[[], Store], tally: Tally) -> None:
        self._store = store
        self._tally = tally
        self._sessions: dict[tuple[str, str], tuple[Incoming, list[Line]]] = {}
        self._events = 0
        self._untold = False  # the last entry of what is left out; more of it may come

    def report(self, damage: importers.Damage, tenant: str | None = None) -> None:
        """Take what is left out for the result; the lines of one session are one entry.

        Args:
            damage: What is left out.
            tenant: The tenant that its session should have gone to, None for its own.
        """
        into = damage.tenant if tenant is None else tenant
        place = {"file": damage.file, "tenant": into, "session": damage.session}
        last = self._tally.damaged[-1] if self._tally.damaged else {}
        if damage.session is not None and place.items() <= last.items():
            last["more_lines"] += 1
            return
        self.tell()
        self._untold = True
        self._tally.damaged.append(
            {
                **place,
                "line": damage.line,
                "reason": damage.reason,
                "more_lines": 0,
                "events": damage.events,
            }
        )

    def tell(self) -> None:
        """Name on standard error what was left out last, unless that was done."""
        if not self._untold:
            return
        self._untold = False
        count = len(self._tally.damaged)
        if count > NAMED_MAX:
            if count == NAMED_MAX + 1:
                terminal.note("more is left out; --json names all of it")
            return
        entry = self._tally.damaged[-1]
        reason = entry["reason"]
        if entry["more_lines"]:
            reason += f", and {counted(entry['more_lines'], 'more bad line')}"
        if entry["events"]:
            reason += f"; {counted(entry['events'], 'event')} left out"
        terminal.complain(f"{_place(entry)}{reason}")

    def add(self, session: Incoming) -> None:
        """Take a session; what the store has of it already is left out."""
        key = (session.tenant, session.name)
        if key in self._sessions:
            self.load()
        try:
            rest = self._rest(session)
        except _REFUSALS as error:
            self._refuse(session, session.lines, error)
            return
        self._tell_mends(session)
        arrived = max(0, session.tried - len(rest))
        session.tried = 0
        self._tally.events += arrived
        self._tally.skipped_events -= arrived  # they are among what the store has now
        if not rest:
            self._tally.sessions += bool(arrived)
            self._tally.skipped_sessions += not arrived
            self._tally.skipped_events += len(session.lines) - session.purged
            self._tally.purged_events += session.purged
            return
        self._sessions[key] = (session, rest)
        self._events += len(rest)
        if self._events >= COMMIT_EVENTS_MAX:
            self.load()

    def _tell_mends(self, session: Incoming) -> None:
        for mend in session.mends:
            entry = {
                "file": session.file,
                "tenant": session.tenant,
                "session": session.name,
                "line": session.first_line if mend.line is None else mend.line,
                "what": mend.what,
                "reason": mend.reason,
            }
            self._tally.mended.append(entry)
            if len(self._tally.mended) <= NAMED_MAX:
                self.tell()
                terminal.complain(f"{_place(entry)}{mend.reason}")
            elif len(self._tally.mended) == NAMED_MAX + 1:
                terminal.note("more is mended; --json names all of it")
        session.mends = ()  # told once, however often the session is tried

    def load(self) -> None:
        """Load what was taken; when one session is refused, the others go one by one."""
        waiting = list(self._sessions.values())
        self._sessions.clear()
        self._events = 0
        if not waiting:
            return
        try:
            self._load(waiting)
        except _REFUSALS as error:
            for session, rest in waiting:
                session.tried = len(rest)
            if len(waiting) == 1:
                session, rest = waiting[0]
                if session.is_foreign and isinstance(error, DuplicateIdError):
                    # The tenant has a copy of some of it, and each id stands in the metadata, too.
                    for line in session.lines:
                        line["id"] = None
                    self.add(session)
                    self.load()
                    return
                self._refuse(session, rest, error)
                return
            for session, _ in waiting:
                self.add(session)
                self.load()
            return
        self._tally.sessions += len(waiting)
        for session, rest in waiting:
            self._tally.events += len(rest)
            self._tally.marks += sum(line["kind"] == MARK_KIND for line in rest)
            self._tally.skipped_events += len(session.lines) - len(rest) - session.purged
            self._tally.purged_events += session.purged

    def _load(self, waiting: list[tuple[Incoming, list[Line]]]) -> None:
        lines = (
            line
            for session, rest in waiting
            for line in chain(session.contents, map(escape_line, rest))
        )
        self._store().load(lines, piece_events=BATCH_EVENTS_MAX)

    def _refuse(self, session: Incoming, rest: list[Line], error: TurnlogError) -> None:
        """Take a session that the store refuses, with the line that is to blame as far as known."""
        reason = str(error)
        number: int | None = None
        if isinstance(error, RefusedError):
            number = error.sequence
        elif isinstance(error, DamagedInputError):
            reason = error.reason
            place = (error.line or 1) - 1 - len(session.contents)
            number = len(session.lines) - len(rest) + place if place >= 0 else None
        elif isinstance(error, DuplicateIdError):
            ids = [line["id"] for line in session.lines]
            number = ids.index(error.expected) if error.expected in ids else None
        self.report(
            importers.Damage(
                session.file,
                session.line_of(number),
                session.name,
                reason,
                tenant=session.tenant,
                events=len(rest),
            )
        )

    def _rest(self, session: Incoming) -> list[Line]:
        """The lines that the store does not hold yet.

        Raises:
            RefusedError: It holds something else, or cannot hold this session.
        """
        refuse_unfit(session)
        stored = any_session(self._store().tenant(session.tenant), session.name)
        info = stored.info()
        if info is None:
            return session.lines
        if session.first > info.event_count:
            raise RefusedError(f"sequence {info.event_count} is missing", 0)
        # What was purged, here or there, is not compared.
        count = max(session.first, info.first_sequence) - session.first
        session.purged = min(count, len(session.lines))
        names = ContentNames.of_store(self._store())
        forks = Forks(self._store()._log)
        events = stored.events(session.first + count) if count < len(session.lines) else ()
        for event, line in zip(events, session.lines[count:], strict=False):
            theirs = escape_line(line)
            branch = forks.branch_of(event)
            ours = line_mapping(event, blobs=names.of(event), branch=branch)
            if "branch" not in theirs:
                ours.pop("branch", None)
            if session.first or info.first_sequence:  # an opening may stand beside any first event
                for each in (ours, theirs):
                    each.pop("opening", None)
                    each.pop("base", None)
            if "recorded_us" not in theirs:
                del ours["recorded_us"]
            if session.is_foreign and ("id" in ours) != ("id" in theirs):
                ours.pop("id", None)  # which one of them goes without: its metadata has it
                theirs.pop("id", None)
            if encode_line(ours) != encode_line(theirs):
                sequence = session.first + count
                raise RefusedError(f"the store holds another event at sequence {sequence}", count)
            count += 1
        return session.lines[count:]
