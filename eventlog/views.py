"""Views of a store: what one read transaction and the memory of this process say together.

One ``Views`` per ``log.Log``; its calls may come from any thread.

Invariant: a read takes the loose view first and its transaction second (``index``), holds the
transaction for one page, and returns nothing that depends on it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Generic

from eventlog.bodies import Bodies, read_bodies
from eventlog.branching import Branching
from eventlog.environment import Environment
from eventlog.errors import CorruptionError
from eventlog.failpoints import fp
from eventlog.gathering import Gathered
from eventlog.index import Loose, LooseIndex, Name, SessionState
from eventlog.keys import is_derived
from eventlog.known import KnownSessions
from eventlog.listing import Listing
from eventlog.newest import tenants_with_derived_only
from eventlog.past import Past
from eventlog.present import PresentRows
from eventlog.reading import (
    PlaceOf,
    SessionView,
    Window,
    read_last,
    read_page,
    read_positions,
)
from eventlog.record import MESSAGE, Factory, Origin, R
from eventlog.rollup import NEVER
from eventlog.rows import COMMIT_KEY, CommitRecord, SessionRow, peek_last_position
from eventlog.segmentcache import SegmentCache
from eventlog.sessionfacts import SessionFacts, facts_of, require_whole
from eventlog.tables import ReadTables


@dataclass(frozen=True)
class Shown(Generic[R]):
    """Messages of a view.

    Attributes:
        events: The events; None when the view shows every message before ``stop`` and all were
            asked for, which are then better read in pages.
        stop: The sequence after the session's last event.
    """

    events: list[R] | None
    stop: int


@dataclass(slots=True)
class Page(Generic[R]):
    """A page of a session's events.

    Attributes:
        events: The events.
        following: The sequence to go on with.
        number: Number of the session's incarnation.
        event_count: How many events it has, those that were purged too.
    """

    events: list[R]
    following: int
    number: int
    event_count: int


class Views:
    """See the module.

    Args:
        environment: The open store.
        index: What memory knows of its hot log.
        cache: Decoded segments.
        catch_up: Brings the index up to what a transaction sees.

    Attributes:
        known: What is known of the sessions that were read lately.
        met_derived: Whether an event of a hidden session was ever read by position.
    """

    def __init__(
        self,
        environment: Environment,
        index: LooseIndex,
        cache: SegmentCache,
        catch_up: Callable[[ReadTables, CommitRecord], None],
    ) -> None:
        self._environment = environment
        self._index = index
        self._cache = cache
        self._catch_up = catch_up
        self.known = KnownSessions()
        self.met_derived = False
        cache.on_begin.append(self.known.begin)
        cache.on_clear.append(self.known.clear)
        self.gathered = Gathered()
        cache.on_begin.append(self.gathered.begin)
        # Of sessions met by position, and the count of removals for which they are true.
        self._places: tuple[int, dict[int, tuple[Origin, int]]] = (0, {})

    def last_position(self) -> int:
        """The newest committed position, of any process."""
        with self._environment.read() as transaction:
            value = transaction.get(COMMIT_KEY, db=self._environment.db["commit"])
        if value is None:
            raise CorruptionError("is missing", where="commit record")
        return peek_last_position(value)

    @contextmanager
    def transaction(self) -> Iterator[ReadTables]:
        """A short read transaction."""
        with self._environment.read() as transaction:
            tables = ReadTables(transaction, self._environment.db)
            yield tables

    def current(self, tables: ReadTables) -> CommitRecord:
        """The transaction's commit record, with the loose index brought up to it."""
        record = tables.commit_record()
        self._cache.begin(tables.epoch)
        if not self._index.is_current(record):
            self._catch_up(tables, record)
        return record

    def _view(
        self,
        tables: ReadTables,
        name: Name,
        seen: int,
        generation: int,
        state: SessionState | None,
        loose: Loose | None,
        stop: int,
        branching: Branching | None,
    ) -> tuple[SessionView, SessionRow, SessionState | None] | None:
        """One session in this transaction; None when the view is too new for it: begin again.

        Args:
            tables: The transaction.
            name: The session's names.
            seen: Position that the index had reached before the view was taken.
            generation: The one that it was of by then.
            state: The view: what memory holds of the session.
            loose: Its loose list.
            stop: How many entries that had.
            branching: What memory keeps of its branches.
        """
        index = self._index
        record = tables.commit_record()
        self._cache.begin(tables.epoch)
        if not index.is_current(record):
            self._catch_up(tables, record)
        if record.last_position > seen or state is None or record.generation != generation:
            # What was taken of an earlier generation may be records that were redacted since.
            names = index.names  # another one when memory begins anew
            if not index.is_current(record):
                return None
            state = names.get(name)
            if index.names is not names:
                return None
            if state is not None:
                branching = state.branching
                loose = state.loose
                stop = len(loose.positions)
        if state is not None and loose is not None:
            if state.number > record.sessions_made:
                if state.next:
                    return None  # created after this transaction began
                raise _NoSession  # on its way in an open batch
            known = self.known.load(tables, name, state.number)
            row = known.row
            # When its commit failed, the number may have gone to another process's session.
            if (row.tenant, row.name) == name:
                if loose.base > row.sealed:
                    return None
                if stop and loose.positions[stop - 1] > record.last_position:
                    # Merged since this transaction began, perhaps a part of a batch only.
                    stop = bisect_right(loose.positions, record.last_position, 0, stop)
                origin = state.origin
                if origin.name != row.name:  # removed since this transaction began
                    origin = Origin(state.number, row.tenant, row.name)
                branches = branching is not None or row.branches > 0
                view = SessionView(
                    origin, row.sealed, loose, stop, record, row.first, known, branches, branching
                )
                return view, row, state
        found = self.known.find(tables, name)
        if found is None:
            raise _NoSession
        row = found.row
        view = SessionView(
            found.origin, row.sealed, _NOTHING, 0, record, row.first, found, row.branches > 0
        )
        return view, row, None

    def session(self, name: Name) -> _SessionRead:
        """One session in one read transaction; None when there is none of that name.

        A context manager that yields tables, view, row and, when it is in memory, state.
        """
        return _SessionRead(self, name)

    def require_end(self, last: int, record: CommitRecord) -> None:
        """Raise when a damaged record that does not tell its session may be this one's next.

        Args:
            last: Position of the session's last event.
            record: The transaction's commit record.
        """
        lost = self._index.last_lost
        if last < lost <= record.last_position:
            raise CorruptionError(
                "is damaged; it may be the next event of this session", where=f"log {lost}"
            )

    def exists(self, name: Name) -> bool:
        """Whether there is a session of that name; damage of its events does not matter."""
        with self.session(name) as found:
            return found is not None

    def facts(self, name: Name, present: PresentRows | None = None) -> SessionFacts | None:
        """Counts, head and times of a session; None when there is none of that name.

        Args:
            name: The session's names.
            present: Also gives the present rows of its projection.

        Raises:
            CorruptionError: A damaged record of the hot log is, or may be, left out of them.
        """
        with self.session(name) as found:
            if found is None:
                return None
            tables, view, row, state = found
            self.require_end(_last_position(view, row), view.record)
            if state is None:
                facts = facts_of(view.origin, row, None)
                if present is not None:
                    facts.rows = present.stored(tables, view.origin.number)
                return facts
            require_whole(state)
            facts = self.facts_in_memory(state)
            if facts.row.is_gone:
                return None  # since this transaction began
            if present is not None:
                has_controls = state.has_controls or state.loose is not view.loose
                loose = view.loose if has_controls else None
                rows = present.rows(tables, view.record, view.origin, loose, view.loose_stop)
                facts.rows = rows
            # Others may have sealed more than memory knows.
            facts.unsealed_count = max(0, facts.event_count - row.sealed)
            return self.told(facts)

    def present_row(self, name: Name, present: PresentRows, subkey: bytes) -> bytes | None:
        """One present row of a session's projection; None when there is none.

        Raises:
            CorruptionError: It is damaged, or a damaged record of the hot log may change it.
        """
        with self.past(name) as past:
            return None if past is None else past.present_row(present, subkey)

    def read_session(
        self,
        name: Name,
        first: int,
        last: int,
        factory: Factory[R],
        *,
        events_max: int,
        bytes_max: int,
    ) -> Page[R] | None:
        """A page of a session's events; None without a session."""
        with self.session(name) as found:
            if found is None:
                return None
            tables, view, row, _ = found
            events, following = read_page(
                tables,
                view,
                self._cache,
                first,
                last,
                factory,
                events_max=events_max,
                bytes_max=bytes_max,
            )
            if not events and last >= view.event_count:
                self.require_end(_last_position(view, row), view.record)
            return Page(events, following, view.origin.number, view.event_count)

    @contextmanager
    def past(self, name: Name) -> Iterator[Past | None]:
        """One session in one read transaction, to look at what it was; None without one.

        Raises:
            CorruptionError: A damaged record may be its newest event.
        """
        with self.session(name) as found:
            if found is None:
                yield None
                return
            tables, view, row, state = found
            self.require_end(_last_position(view, row), view.record)
            is_trimmed = bool(row.trimmed or (state is not None and state.trimmed))
            yield Past(tables, view, row, state, self._cache, is_trimmed=is_trimmed)

    def read_shown(self, name: Name, count: int | None, factory: Factory[R]) -> Shown[R]:
        """The messages that a session's view shows, oldest first, at most ``count`` of them."""
        with self.past(name) as past:
            if past is None:
                return Shown([], 0)
            stop = past.view.event_count
            if past.is_trimmed or past.view.branches:
                return Shown(past.shown(stop, count, factory), stop)
            if count is None:
                return Shown(None, stop)
            events = read_last(past.tables, past.view, self._cache, count, MESSAGE, factory)
            return Shown(events, stop)

    def read_bodies(
        self, name: Name, stop: int | None, count: int, factory: Factory[R]
    ) -> Bodies[R] | None:
        """The last ``count`` messages before a sequence, in pages; number 0 without a session.

        Args:
            name: The session's names.
            stop: Where the page before ended; None for the first page.
            count: How many are wanted still.
            factory: Makes events of messages with an extension.

        Returns:
            None on the first page of a session whose view may leave messages out.
        """
        with self.session(name) as found:
            if found is None:
                return Bodies(0)
            tables, view, row, state = found
            if stop is None:
                self.require_end(_last_position(view, row), view.record)
                if row.trimmed or view.branches or (state is not None and state.trimmed):
                    return None
                stop = view.event_count
            bodies = read_bodies(tables, view, self._cache, stop, count, factory)
            if bodies.tail is not None and view.known is not None:
                self.known.add_tail(tables, view.known, bodies.tail)
            return bodies

    def read_positions(
        self, first: int, count: int, factory: Factory[R], *, bytes_max: int
    ) -> Window[R] | None:
        """Events of all sessions in position order from ``first`` on; None past the end."""
        with self.transaction() as tables:
            record = tables.commit_record()
            self._cache.begin(tables.epoch)
            last = min(record.last_position, first + count - 1)
            if first > last:
                return None
            return read_positions(
                tables,
                record,
                self._cache,
                first,
                last,
                self._place_of(record),
                factory,
                bytes_max=bytes_max,
            )

    def _place_of(self, record: CommitRecord) -> PlaceOf:
        """Where sessions' events come from, as a transaction sees it."""
        known = self._places  # looked at once: other threads' reads are older, or newer
        if known[0] != record.removals:
            known = self._places = (record.removals, {})
        places = known[1]
        names_max = self._index.names_max

        def place_of(tables: ReadTables, number: int) -> tuple[Origin, int]:
            place = places.get(number)
            if place is None:
                row = tables.load_row(number)
                self.met_derived = self.met_derived or is_derived(row.name)
                if len(places) >= names_max:
                    places.clear()
                place = places[number] = (Origin(number, row.tenant, row.name), row.first)
            return place

        return place_of

    @contextmanager
    def listing(self, tenant: str, *, hidden: bool = False) -> Iterator[Listing | None]:
        """A tenant's sessions in one read transaction; None when there is no such tenant.

        Args:
            tenant: Its name.
            hidden: Also those that no caller can name.
        """
        with self.transaction() as tables:
            record = self.current(tables)
            fp("list.after_view")
            number = tables.find_tenant(tenant)
            if number is None:
                yield None
                return
            yield Listing(self, self._index, tables, record, number, hidden=hidden)

    def told(self, facts: SessionFacts) -> SessionFacts:
        """Facts as they are told: where no roll-ups are recorded, sealing stands for them."""
        if self._index.roll_ups is NEVER:
            facts.since_roll_up = facts.unsealed_count
        return facts

    def facts_in_memory(self, state: SessionState) -> SessionFacts:
        """What memory knows of a session."""
        with self._index.lock:  # a merge changes several fields
            return facts_of(state.origin, state.row, state)

    def tenant_names(self) -> list[str]:
        """Names of the tenants, oldest first, but for those that have derived sessions only."""
        with self.transaction() as tables:
            record = self.current(tables)
            derived = tenants_with_derived_only(tables, record, self._index)
            numbers = [each for each in range(1, record.tenants_made + 1) if each not in derived]
            return [tables.load_tenant(number).name for number in numbers]


_NOTHING: Final = Loose(0)  # of a session that memory does not hold


class _NoSession(Exception):
    """There is no session of that name."""


class _SessionRead:
    """See ``Views.session``; a class, because it is on every read's path."""

    __slots__ = ("_name", "_read", "_views")

    def __init__(self, views: Views, name: Name) -> None:
        self._views = views
        self._name = name

    def __enter__(
        self,
    ) -> tuple[ReadTables, SessionView, SessionRow, SessionState | None] | None:
        views, name = self._views, self._name
        index, environment = views._index, views._environment
        while True:
            # The generation first: memory that begins anew sets it after its position. Then the
            # position: what is merged later may be missing in the view.
            generation = index.generation
            seen = index.position
            state = index.names.get(name)
            branching = None if state is None else state.branching
            loose = None if state is None else state.loose
            stop = 0 if loose is None else len(loose.positions)
            fp("read.after_view")
            read = self._read = environment.read()
            transaction = read.__enter__()
            try:
                tables = ReadTables(transaction, environment.db)
                found = views._view(tables, name, seen, generation, state, loose, stop, branching)
            except _NoSession:
                return None
            except BaseException as error:
                read.__exit__(type(error), error, error.__traceback__)
                raise
            if found is not None:
                return (tables, *found)
            read.__exit__(None, None, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._read.__exit__(kind, error, traceback)


def _last_position(view: SessionView, row: SessionRow) -> int:
    """Position of a session's last event, 0 where that is not known."""
    return view.loose.positions[view.loose_stop - 1] if view.loose_stop else row.last_position
