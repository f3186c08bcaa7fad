"""The catalog: a tenant's sessions by what they are, newest activity first.

Without a filter a listing is read from the store as it is, as far as its page goes. For filters
memory keeps of each session its facts, its last position and, for each value that is filtered by,
which sessions have it. That is made when a tenant is first asked, and brought up to date with each
question: from the newest activity back to where it stood, so that a question costs what happened
since and what it gives.

Invariants:
    1. It is derived, and what it says is what the transaction of the question says: a session that
       had an event since is met on the way back, and its facts are read anew unless what they
       depend on is as it was (``listing.Listing.stamp``).
    2. A cursor is a position. Each page gives sessions in order of their last positions, each once,
       and one that moves to the front meanwhile is not given again behind the cursor.
    3. It holds at most ``CATALOG_SESSIONS_MAX`` sessions, of the tenants that were asked last. A
       tenant with more is listed from the store, session by session.
    4. After a removal those that are gone are taken out before the next answer; what is not known
       to be true any more after a failed commit is forgotten as a whole.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple

from engine.attached import attached
from engine.events import SessionInfo, opening_of
from engine.facts import Facts, facts_from, stored_facts
from engine.projections import FACTS
from eventlog.admission import signed_head
from eventlog.arguments import shown
from eventlog.body import Fixes, decode_body, encode_body
from eventlog.errors import CorruptionError, UsageError
from eventlog.index import SessionState
from eventlog.keys import U64_MAX, name_bytes
from eventlog.limits import CATALOG_SESSIONS_MAX
from eventlog.listing import Listing, Stamp
from eventlog.log import Log
from eventlog.present import PresentRows
from eventlog.sessionfacts import SessionFacts

KNOWN_SESSIONS: Final = 4_096  # kept of listings without a filter
SORTED_MAX: Final = 1_024  # sessions that are put in order for a question; of more it is known
PAGE_SESSIONS: Final = 2_048  # read in one transaction while the catalog of a tenant is made
_BY: Final = ("user_id", "account_id", "agent_id", "workspace", "status")

_DOUBLE: Final = Struct(">d")
_NOBODY: Final[frozenset[int]] = frozenset()

Value = tuple[str, str]  # a field and what it is


class Filter(NamedTuple):
    """What sessions are asked for.

    Attributes:
        user_id: The user; likewise the next four.
        account_id: The account.
        agent_id: The agent.
        workspace: The workspace.
        status: The status.
        label: A label on the session or one of its events.
        metadata: Keys that its metadata has, with these values.
        since_us: Last activity at this time or after it, µs since the epoch.
        until_us: Last activity before this time.
    """

    user_id: str | None = None
    account_id: str | None = None
    agent_id: str | None = None
    workspace: str | None = None
    status: str | None = None
    label: str | None = None
    metadata: Mapping[str, Any] | None = None
    since_us: int | None = None
    until_us: int | None = None

    def values(self) -> list[Value]:
        """The fields that it names, and what they are to be."""
        found = [(name, value) for name in _BY if (value := getattr(self, name)) is not None]
        if self.label is not None:
            found.append(("label", self.label))
        return found

    def check(self) -> None:
        """Raise for what cannot be asked for.

        Raises:
            InvalidNameError: A field is no name.
            UsageError: Metadata is no dict.
        """
        if self.metadata is not None and not isinstance(self.metadata, Mapping):
            raise UsageError(f"metadata must be a dict, not {shown(self.metadata)}")
        for name, value in self.values():
            name_bytes(value, name)

    def takes(self, info: SessionInfo) -> bool:
        """Whether a session is asked for."""
        return (
            all([_has(info, name, value) for name, value in self.values()])
            and (self.since_us is None or info.updated_us >= self.since_us)
            and (self.until_us is None or info.updated_us < self.until_us)
            and self.takes_metadata(info.metadata)
        )

    def takes_metadata(self, metadata: Mapping[str, Any] | None) -> bool:
        """Whether metadata is what is asked for."""
        if not self.metadata:
            return True
        return metadata is not None and all(
            [
                key in metadata and _is_same(metadata[key], value)
                for key, value in self.metadata.items()
            ]
        )


def _is_same(stored: Any, wanted: Any) -> bool:
    """Whether two values are one, of the same types all through; floats by their bits."""
    kind = type(stored)
    if type(wanted) is not kind:
        return False
    if kind is dict:
        return stored.keys() == wanted.keys() and all(
            [_is_same(value, wanted[key]) for key, value in stored.items()]
        )
    if kind is list:
        return len(stored) == len(wanted) and all(map(_is_same, stored, wanted))
    if kind is float:
        return _DOUBLE.pack(stored) == _DOUBLE.pack(wanted)
    return bool(stored == wanted)


def _has(info: SessionInfo, name: str, value: str) -> bool:
    return value in info.labels if name == "label" else getattr(info, name) == value


class Given(NamedTuple):
    """A session's facts as memory keeps them: nobody can change another's metadata."""

    facts: Facts
    labels: tuple[str, ...]
    data: bytes  # the metadata, encoded; empty for none
    fixes: Fixes | None

    def metadata(self) -> dict[str, Any] | None:
        """The metadata, each time a new one."""
        if not self.data:
            return None
        found: dict[str, Any] = decode_body(self.data, self.fixes, where="metadata")
        return found


def given_of(facts: SessionFacts, faults: list[CorruptionError] | None = None) -> Given:
    """A session's facts, from its row and the present rows of its facts.

    Args:
        facts: The session.
        faults: As of ``facts_from``.

    Raises:
        CorruptionError: They are none.
    """
    number = facts.origin.number
    where = f"facts of session {number}"
    stored = stored_facts(facts.rows, where) if facts.rows else {}
    opening = opening_of(facts.row, number)
    found = facts_from(opening, stored, where, faults)
    labels = tuple(sorted({label.name for label in found.labels}))
    if not found.metadata and "metadata" not in opening:
        return Given(found, labels, b"", None)
    return Given(found, labels, *encode_body(found.metadata))


def info_of(facts: SessionFacts, given: Given | None = None) -> SessionInfo:
    """The public view of a session's facts."""
    given = given_of(facts) if given is None else given
    head = signed_head(facts.head)
    row, origin, own = facts.row, facts.origin, given.facts
    return SessionInfo(
        origin.tenant,
        origin.name,
        origin.number,
        own.user_id,
        own.title,
        given.metadata(),
        row.created_us,
        facts.last_recorded_us,
        facts.event_count,
        facts.message_count,
        None if head < 0 else head,
        row.first,
        facts.event_count - 1,
        facts.last_position,
        facts.since_roll_up,
        facts.unsealed_count,
        own.account_id,
        own.agent_id,
        own.workspace,
        own.status,
        given.labels,
    )


@dataclass(slots=True)
class Entry:
    """What is kept of a session.

    Attributes:
        position: Position of its last event.
        stamp: What ``given`` depends on.
        given: Its facts.
        sealed: Its counts and times, if no event of it was loose: they depend on the stamp too.
    """

    position: int
    stamp: Stamp
    given: Given
    sealed: SessionFacts | None

    def values(self) -> list[Value]:
        """What it can be found by."""
        own = self.given.facts
        found = [(name, value) for name in _BY if (value := getattr(own, name)) is not None]
        return found + [("label", name) for name in self.given.labels]


def read_entry(
    listing: Listing,
    present: PresentRows,
    stamp: Stamp,
    position: int,
    number: int,
    state: SessionState | None,
) -> Entry | None:
    """What is to be kept of a session; None when it is gone, or listed at a newer position.

    None also of one with facts that are none: it is told where the session itself is asked for.

    Raises:
        CorruptionError: As ``Listing.facts``.
    """
    facts = listing.facts(position, number, state, present)
    faults: list[CorruptionError] = []
    given = None if facts is None else given_of(facts, faults)
    if given is None or faults:
        return None
    return Entry(position, stamp, given, facts if state is None else None)


class TenantCatalog:
    """The sessions of one tenant; used under the lock of its ``Catalog``.

    Attributes:
        entries: What is kept, by session number.
    """

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._by: dict[Value, set[int]] = {}
        # By rising positions; where the session has a newer one by now, a place says nothing.
        self._order: list[tuple[int, int]] = []
        self._met: list[tuple[int, int]] = []  # to be put behind it
        self._reached = 0  # the position up to which it is true
        self._target: int | None = None  # while it is being made: what it will be true up to
        self._before = U64_MAX
        self._epoch = (0, 0)

    def advance(self, listing: Listing, present: PresentRows, sessions_max: int) -> bool | None:
        """Bring it up to what a transaction sees, or closer.

        Returns:
            True when it is there, False when another transaction is to go on, and None when the
            tenant has too many sessions.
        """
        record = listing.record
        if self._target is None:
            self._target, self._before = record.last_position, U64_MAX
        is_first = self._before == U64_MAX
        newest = listing.newest(self._before, self._reached)
        for met, (position, number, state) in enumerate(newest):
            if met == PAGE_SESSIONS:
                return False
            self._meet(listing, present, position, number, state)
            self._before = position
            if len(self.entries) > sessions_max:
                return None
        self._reached, self._target = self._target, None
        self._order += sorted(self._met)
        self._met = []
        if len(self._order) > 2 * len(self.entries) + PAGE_SESSIONS:
            self._order = sorted([(each.position, number) for number, each in self.entries.items()])
        if not is_first:  # what happened since the first page is still to be looked at
            return False
        if self._epoch != record.epoch:
            self._sweep(listing)
            self._epoch = record.epoch
        return True

    def _meet(
        self,
        listing: Listing,
        present: PresentRows,
        position: int,
        number: int,
        state: SessionState | None,
    ) -> None:
        entry = self.entries.get(number)
        stamp = listing.stamp(position, number, state)
        if entry is not None and entry.stamp == stamp:
            if position > entry.position:
                entry.position = position
                self._met.append((position, number))
            return
        try:
            new = read_entry(listing, present, stamp, position, number, state)
        except CorruptionError:
            new = None  # it is told where the session itself is asked for
        if new is None:  # gone, or met at a newer position
            return
        if entry is not None:
            new.position = max(position, entry.position)
            self._drop(number, entry)
        self.entries[number] = new
        if entry is None or entry.position < position:
            self._met.append((position, number))
        for value in new.values():
            self._by.setdefault(value, set()).add(number)

    def _drop(self, number: int, entry: Entry) -> None:
        del self.entries[number]
        for value in entry.values():
            numbers = self._by.get(value)
            if numbers is not None:
                numbers.discard(number)
                if not numbers:
                    del self._by[value]

    def _sweep(self, listing: Listing) -> None:
        """Forget the sessions that are gone."""
        for number in [each for each in self.entries if listing.is_gone(each)]:
            self._drop(number, self.entries[number])

    def find(self, listing: Listing, wanted: Filter, before: int, count: int) -> list[SessionInfo]:
        """Sessions that are asked for, newest first, as of the transaction of ``advance``."""
        entries = self.entries
        found: list[SessionInfo] = []
        for position, number in self._places(wanted, before):
            given = entries[number].given
            if wanted.metadata and not wanted.takes_metadata(given.metadata()):
                continue
            state = listing.state_of(number, position)
            facts = entries[number].sealed if state is None else None
            if facts is None or facts.last_position != position:
                facts = listing.facts(position, number, state)
            if facts is None:
                continue
            updated_us = facts.last_recorded_us
            if wanted.since_us is not None and updated_us < wanted.since_us:
                continue
            if wanted.until_us is not None and updated_us >= wanted.until_us:
                continue
            listing.require(position, state)
            found.append(info_of(facts, given))
            if len(found) == count:
                break
        return found

    def _places(self, wanted: Filter, before: int) -> Iterator[tuple[int, int]]:
        """Positions below one, newest first, and sessions that have what can be looked up."""
        entries = self.entries
        sets = sorted([self._by.get(value, _NOBODY) for value in wanted.values()], key=len)
        if sets and len(sets[0]) <= SORTED_MAX:
            numbers = sets[0].intersection(*sets[1:])
            places = sorted([(entries[each].position, each) for each in numbers], reverse=True)
            yield from [place for place in places if place[0] < before]
            return
        order = self._order
        for at in range(bisect_left(order, (before,)) - 1, -1, -1):
            position, number = place = order[at]
            entry = entries.get(number)
            if entry is None or entry.position != position:
                continue
            if all([number in each for each in sets]):
                yield place


class Catalog:
    """What memory keeps for listings of one log; any thread."""

    def __init__(self, log: Log, sessions_max: int = CATALOG_SESSIONS_MAX) -> None:
        self.sessions_max = sessions_max
        self.present = PresentRows(FACTS)
        log.cache.on_begin += [self.present.begin, self.begin]
        log.cache.on_clear += [self.present.clear, self.clear]
        self._is_stale = False
        self._known: dict[int, Entry] = {}  # of sessions that were listed lately
        self._known_epoch = (-1, -1)
        self._lock = threading.Lock()
        self._tenants: OrderedDict[str, TenantCatalog] = OrderedDict()
        self._too_many: set[str] = set()  # tenants that do not fit
        self._generation = 0

    @property
    def session_count(self) -> int:
        """Sessions that it holds."""
        return sum([len(each.entries) for each in list(self._tenants.values())])

    def begin(self, epoch: tuple[int, int]) -> None:
        """Forget what was listed lately, since something was removed."""
        if epoch != self._known_epoch:
            self._known = {}

    def clear(self) -> None:
        """Forget all before the next answer; waits for nobody."""
        self._is_stale = True
        self._known_epoch = (-1, -1)

    def page(
        self, log: Log, tenant: str, wanted: Filter, before: int, count: int
    ) -> list[SessionInfo]:
        """The next sessions whose last event lies before a position, newest first.

        Raises:
            CorruptionError: A damaged record is, or may be, left out of one of those to give.
        """
        if wanted == _ALL:
            return self._newest(log, tenant, before, count)
        log.environment.refuse_forked()
        with self._lock:
            if tenant not in self._too_many:
                infos = self._from_memory(log, tenant, wanted, before, count)
                if infos is not None:
                    return infos
        return self._from_store(log, tenant, wanted, before, count)

    def _newest(self, log: Log, tenant: str, before: int, count: int) -> list[SessionInfo]:
        found: list[SessionInfo] = []
        with log.views.listing(tenant) as listing:
            if listing is None:
                return found
            known = self._known
            if self._known_epoch != listing.record.epoch:
                known = self._known = {}
                self._known_epoch = listing.record.epoch
            for position, number, state in listing.newest(before):
                stamp = listing.stamp(position, number, state)
                entry = known.get(number)
                facts: SessionFacts | None
                if entry is None or entry.stamp != stamp:
                    entry = read_entry(listing, self.present, stamp, position, number, state)
                    if entry is None:
                        continue
                    if len(known) >= KNOWN_SESSIONS:
                        known.clear()
                    known[number] = entry
                facts = entry.sealed if state is None else None
                if facts is None or facts.last_position != position:
                    facts = listing.facts(position, number, state)
                if facts is None:
                    continue
                listing.require(position, state)
                found.append(info_of(facts, entry.given))
                if len(found) == count:
                    break
        return found

    def _from_memory(
        self, log: Log, tenant: str, wanted: Filter, before: int, count: int
    ) -> list[SessionInfo] | None:
        """None when the tenant has too many sessions."""
        while True:
            with log.views.listing(tenant) as listing:
                if listing is None:
                    return []
                if self._is_stale or listing.record.generation != self._generation:
                    self._is_stale = False
                    self._tenants.clear()
                    self._generation = listing.record.generation
                catalog = self._tenants.get(tenant)
                if catalog is None:
                    catalog = self._tenants[tenant] = TenantCatalog()
                self._tenants.move_to_end(tenant)
                is_there = catalog.advance(listing, self.present, self.sessions_max)
                if is_there:
                    self._make_room(tenant)
                    return catalog.find(listing, wanted, before, count)
            if is_there is None:
                del self._tenants[tenant]
                self._too_many.add(tenant)
                return None

    def _make_room(self, tenant: str) -> None:
        while self.session_count > self.sessions_max and len(self._tenants) > 1:
            oldest = next(iter(self._tenants))
            assert oldest != tenant, "it was asked last"
            del self._tenants[oldest]

    def _from_store(
        self, log: Log, tenant: str, wanted: Filter, before: int, count: int
    ) -> list[SessionInfo]:
        found: list[SessionInfo] = []
        with log.views.listing(tenant) as listing:
            if listing is None:
                return found
            for position, number, state in listing.newest(before):
                facts = listing.facts(position, number, state, self.present)
                faults: list[CorruptionError] = []
                given = None if facts is None else given_of(facts, faults)
                info = None if facts is None or faults else info_of(facts, given)
                if info is not None and wanted.takes(info):
                    listing.require(position, state)
                    found.append(info)
                    if len(found) == count:
                        break
        return found


_ALL: Final = Filter()


def catalog_of(log: Log) -> Catalog:
    """The catalog of a log, which all stores that share it share too."""
    return attached(log, Catalog)


def decode_cursor(cursor: str | None) -> int:
    """The position that a cursor of a listing stands for.

    Raises:
        UsageError: It is none.
    """
    if cursor is None:
        return U64_MAX
    if type(cursor) is str and cursor.isascii() and cursor.isdigit() and len(cursor) <= 20:
        position = int(cursor)
        if 1 <= position <= U64_MAX:
            return position
    raise UsageError(f"cursor must be one that sessions() gave, not {shown(cursor)}")
