"""Loading: export lines into the store, in pieces that can be repeated.

Invariants:
    1. A line that the store holds already is skipped, and so is one that was purged from it; one
       that differs is a conflict.
    2. Each piece is atomic per session, so that a load cut short goes on where it stopped.
    3. What a line says about recorded time and sequence is kept.
    4. A content is put before the first event that names it is appended.
    5. Aliases lead to the loaded sessions at the end, as their facts say (``aliases``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engine import aliases
from engine.arriving import check_arriving
from engine.blobs import require_blobs
from engine.contents import ArrivingContents, is_content, line_to_content
from engine.drafting import draft_event, encode_opening, make_ack
from engine.events import OPENING_FACTS
from engine.export import (
    encode_line,
    escape_line,
    line_mapping,
    line_to_event,
    parent_in_line,
)
from engine.facts import ALIAS
from engine.forks import Forks, began_on_fork, stands_on_fork
from engine.hidden import any_session
from engine.kinds import SECOND, kind_code
from engine.projections import rows_of_base
from engine.spaces import Space
from eventlog.ack import Ack, Beginning, Draft
from eventlog.arguments import iterable, shown, whole
from eventlog.blobput import Upload
from eventlog.branching import counts_of_base
from eventlog.errors import (
    AppendConflictError,
    DamagedInputError,
    ForkedStoreError,
    ReadOnlyError,
    StoreClosedError,
    TurnlogError,
    UsageError,
)
from eventlog.index import Name
from eventlog.limits import BATCH_BYTES_MAX, BATCH_EVENTS_MAX, POSITION_MAX
from eventlog.record import BELONGS, BRANCH_NAME, CONTROL, HEAD_MOVE, NO_PARENT

if TYPE_CHECKING:
    from engine.store import Store

_WITH_PARENTS: Final = BELONGS | {BRANCH_NAME}  # also in sessions that never branched
WAIT_S: Final = 3600.0  # a load has nothing better to do than to wait for room


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load did.

    Attributes:
        loaded: Events written.
        skipped: Events that were there.
        purged: Events that were purged from a session that is there: they stay so.
    """

    loaded: int
    skipped: int
    purged: int = 0


def encode_facts(facts: Mapping[str, Any]) -> list[Any] | None:
    """A line's opening, as it is stored.

    Raises:
        UsageError: It holds something that no session is created with.
    """
    unknown = facts.keys() - OPENING_FACTS
    if unknown:
        raise UsageError(f"opening holds unknown facts: {sorted(unknown)}")
    return encode_opening(*[facts.get(name) for name in OPENING_FACTS])


class _Arrival:
    """A session of the load: how far the store is, and what waits to be appended."""

    def __init__(
        self, stored: int, head: int | None, opening: Any, number: int | None = None
    ) -> None:
        self.stored = stored
        self.number = number  # of the session, once there is one
        self.head = head  # of what is stored and waits
        self.is_forked = False  # whether that is on a branch without an event
        self.following = 0
        self.first = 0  # events below it were purged
        self.begin: int | None = None  # the head below it, where that is not known yet None
        self.is_begun = False  # whether a public event followed it
        self.base: Mapping[str, Any] | None = None  # what those added up to
        self.followed: dict[int, int] = {}  # branches of events among them that others follow
        self.opening = opening
        self.drafts: list[Draft] = []
        self.byte_count = 0


def _head_of(base: Mapping[str, Any] | None, first: int) -> int | None:
    """The head below a session's first event, where its base tells it.

    Raises:
        UsageError: It is none.
    """
    head = None if base is None else base.get("head")
    if head is not None and not (type(head) is int and 0 <= head < first):
        raise UsageError(f"base has a head {shown(head)} that cannot be")
    return head


def _followed_in(base: Mapping[str, Any] | None) -> dict[int, int]:
    """The branches of purged events that others follow, by sequence.

    Raises:
        UsageError: They are none.
    """
    listed = [] if base is None else base.get("followed", [])
    try:
        return {whole(each, "followed", 0, POSITION_MAX): branch for each, branch in listed}
    except (TypeError, ValueError) as error:
        raise UsageError("base has events that are followed, of another shape") from error


def _tells_aliases(event: Mapping[str, Any]) -> bool:
    """Whether a line says that a session has an alias."""
    base = event["base"]
    told: list[Any] = []
    if event["kind"] == Space.FACTS.title and type(event["body"]) is dict:
        told += event["body"].get("set") or ()
    if type(base) is dict and type(base.get(Space.FACTS.title)) is list:
        told += [each[0] for each in base[Space.FACTS.title] if type(each) is list and each]
    return any([type(key) is str and key.startswith(ALIAS) for key in told])


class Loader:
    """Loads lines into one store."""

    def __init__(self, store: Store, default_tenant: str, piece_events: int) -> None:
        self._store = store
        self._default_tenant = default_tenant
        self._piece_events = whole(piece_events, "piece_events", 1, BATCH_EVENTS_MAX)
        self._arrivals: dict[Name, _Arrival] = {}
        self._unwritten: dict[Name, _Arrival] = {}  # those that have drafts
        self._with_aliases: dict[Name, None] = {}  # in the order in which they came
        self._waiting = 0
        self._waiting_bytes = 0
        self._contents = ArrivingContents(self._begin_content, self._leave_content)
        self._forks = Forks(store._log)
        self._loaded = 0
        self._skipped = 0
        self._purged = 0

    def load(self, lines: Iterable[Mapping[str, Any]]) -> LoadResult:
        """See ``Store.load``."""
        try:
            return self._load(lines)
        finally:
            self._contents.abandon()

    def _load(self, lines: Iterable[Mapping[str, Any]]) -> LoadResult:
        number = 0
        for number, line in enumerate(iterable(lines, "lines"), 1):
            try:
                if not isinstance(line, Mapping):
                    raise ValueError(f"a line must be an object, not {shown(line)}")
                if is_content(line):
                    self._take_content(line)
                    continue
                self._contents.require_whole()
                event = line_to_event(line)
                addresses = self._addresses(event)
            except (StoreClosedError, ReadOnlyError, ForkedStoreError):
                raise
            except ValueError as error:
                raise DamagedInputError(str(error), file="load", line=number) from error
            try:
                self._take(event, addresses)
            except (StoreClosedError, ReadOnlyError, ForkedStoreError):
                raise
            except UsageError as error:
                raise DamagedInputError(str(error), file="load", line=number) from error
            if self._waiting >= self._piece_events or self._waiting_bytes >= BATCH_BYTES_MAX // 4:
                self._write()
        try:
            self._contents.require_whole()
        except ValueError as error:
            raise DamagedInputError(str(error), file="load", line=number) from error
        self._write()
        self._restore_aliases()
        return LoadResult(self._loaded, self._skipped, self._purged)

    def _restore_aliases(self) -> None:
        """Make aliases lead to what was loaded, also where a load before stopped short of that."""
        for name in self._with_aliases:
            session = self._store.tenant(name[0]).session(name[1])
            aliases.restore(session, session.facts.aliases)

    def _begin_content(self, tenant: str, media_type: str | None) -> Upload:
        return self._store.tenant(tenant).blobs._begin_upload(media_type)

    def _leave_content(self) -> None:
        self._store.blobs._leave()

    def _tenant(self, named: str) -> str:
        tenant = named or self._default_tenant
        if self._default_tenant and tenant != self._default_tenant:
            raise UsageError(f"the line belongs to another tenant, {tenant!r}")
        return tenant

    def _take_content(self, line: Mapping[str, Any]) -> None:
        piece = line_to_content(line)
        self._contents.take(self._tenant(piece.tenant), piece)

    def _addresses(self, event: Mapping[str, Any]) -> tuple[bytes, ...]:
        """What an event's names of contents stand for in this store."""
        names = event["blobs"]
        if names is None:
            return ()
        require_blobs(self._store._log)
        tenant = self._tenant(event["tenant"])
        return tuple([self._contents.address(tenant, name) for name in names])

    def _take(self, event: dict[str, Any], blobs: tuple[bytes, ...]) -> None:
        tenant = self._tenant(event["tenant"])
        name = (tenant, event["session"])
        arrival = self._arrivals.get(name)
        if arrival is not None and event["opening"] is not None:
            raise UsageError("opening belongs to the first event of a session")
        if event["base"] is not None and (event["opening"] is None or not event["sequence"]):
            raise UsageError("base belongs to the first event after a purge, beside its opening")
        if arrival is None:
            arrival = self._arrivals[name] = self._arrive(name, event)
        if _tells_aliases(event):
            self._with_aliases[name] = None
        sequence = event["sequence"]
        if sequence is None:
            sequence = arrival.following
        elif sequence > arrival.following and sequence <= arrival.stored:
            arrival.following = sequence  # the load starts in the middle of what is there
        if sequence != arrival.following:
            raise AppendConflictError(
                f"session {name[1]!r} goes on with sequence {arrival.following}, "
                f"the line has {sequence}",
                expected=arrival.following,
                current=sequence,
            )
        arrival.following += 1
        if sequence < arrival.first:
            self._purged += 1
            return
        if sequence < arrival.stored:
            self._compare(name, sequence, event, blobs)
            self._skipped += 1
            return
        is_public = kind_code(event["kind"], loading=True) < CONTROL
        if arrival.first and not arrival.is_begun and is_public and not arrival.stored:
            arrival.is_begun = True
            if arrival.begin is None and event["parent"] != -1:  # which a head of none tells
                arrival.begin = arrival.head = event["parent"]
        parent = self._parent_of(event, arrival)
        if arrival.first and not arrival.stored:
            self._store._require_version(2, "a session whose beginning was purged")
        if event["kind"] in SECOND or parent is not None:
            self._store._require_version(2, f"events of kind {event['kind']}")
        if event["redacted"]:
            self._store._require_version(2, "redacted events")
        check_arriving(event["kind"], event["body"])
        draft = draft_event(
            event["kind"],
            event["body"],
            id=event["id"],
            metadata=event["metadata"],
            time_us=event["time_us"],
            tokens=event["tokens"],
            run_id=event["run_id"],
            turn_id=event["turn_id"],
            speech_id=event["speech_id"],
            request_id=event["request_id"],
            blobs=blobs,
            parent=parent,
            parent_branch=self._branch_of(parent, event, arrival),
            recorded_us=event["recorded_us"],
            loading=True,
            redacted=event["redacted"],
            role=event["role"],
        )
        size = draft.size
        if arrival.byte_count + size > BATCH_BYTES_MAX:
            self._write()
        arrival.drafts.append(draft)
        self._unwritten[name] = arrival
        if draft.kind < CONTROL:
            arrival.head, arrival.is_forked = sequence, False
        elif draft.kind == HEAD_MOVE:
            arrival.head = None if parent == -1 else parent
            arrival.is_forked = event["body"] is not None
        arrival.byte_count += size
        self._waiting += 1
        self._waiting_bytes += size

    @staticmethod
    def _parent_of(event: dict[str, Any], arrival: _Arrival) -> int | None:
        """What an event's draft follows: None for the head, -1 for nothing."""
        parent: int | None = event["parent"]
        code = kind_code(event["kind"], loading=True)
        if event["branch"] is not None:
            if code not in BELONGS or not arrival.is_forked or parent != arrival.head:
                raise UsageError("branch belongs to what comes right after a fork, on its branch")
            return None
        if code in BELONGS and arrival.is_forked:
            return parent
        if code in (HEAD_MOVE, BRANCH_NAME):
            return parent
        if code >= CONTROL and code not in BELONGS:
            if parent is not None:
                raise UsageError(f"an event of kind {event['kind']!r} has no parent")
            return None
        return None if parent == arrival.head else parent

    @staticmethod
    def _branch_of(parent: int | None, event: dict[str, Any], arrival: _Arrival) -> int | None:
        """The branch of a parent that was purged elsewhere; None of any other."""
        if parent is None:
            return None
        is_linear = arrival.base is None or "branches" not in arrival.base
        if (
            is_linear
            and parent < arrival.first
            and kind_code(event["kind"], loading=True) in _WITH_PARENTS
        ):
            return arrival.followed.get(parent, 0)
        return arrival.followed.get(parent)

    def _arrive(self, name: Name, event: dict[str, Any]) -> _Arrival:
        session = any_session(self._store.tenant(name[0]), name[1])
        info = session.info()
        opening = None
        if event["opening"] is not None:
            opening = encode_facts(event["opening"])
        if info is None:
            arrival = _Arrival(0, None, opening)
            if event["sequence"] and event["opening"] is not None:
                arrival.first = arrival.following = event["sequence"]
                arrival.base = event["base"]
                rows = rows_of_base(arrival.base)  # refused here, where the line is known
                arrival.is_forked = began_on_fork(arrival.base, rows)
                arrival.followed = _followed_in(arrival.base)
                arrival.begin = arrival.head = _head_of(arrival.base, arrival.first)
            return arrival
        arrival = _Arrival(info.event_count, info.head, opening, info.number)
        arrival.first = info.first_sequence
        with self._store._log.views.past(name) as past:
            arrival.is_forked = past is not None and stands_on_fork(past, info.head)
        return arrival

    def _compare(
        self, name: Name, sequence: int, event: dict[str, Any], blobs: tuple[bytes, ...]
    ) -> None:
        session = any_session(self._store.tenant(name[0]), name[1])
        stored = session.event(sequence)
        branch = self._forks.branch_of(stored)
        ours = line_mapping(stored, stored.opening, branch=branch)
        if sequence:  # where its beginning was purged, here or there, a line tells the opening
            ours.pop("opening", None)
            event = {**event, "opening": None, "base": None}
        theirs = escape_line(
            {
                **event,
                "tenant": name[0],
                "sequence": sequence,
                "parent": parent_in_line(stored),
                "blobs": [address.hex() for address in blobs],
            }
        )
        if event["branch"] is None:
            ours.pop("branch", None)  # a file of somebody who does not tell it
        if event["recorded_us"] is None:
            ours.pop("recorded_us", None)
        if event["parent"] is not None and event["parent"] != parent_in_line(stored):
            theirs["parent"] = event["parent"]
        if encode_line(ours) != encode_line(theirs):
            raise AppendConflictError(
                f"session {name[1]!r} holds another event at sequence {sequence}",
                expected=sequence,
                current=sequence,
            )

    def _write(self) -> None:
        """Append what waits, one batch a session, and wait until all of it is durable."""
        acks: list[tuple[_Arrival, Ack]] = []
        for name, arrival in self._unwritten.items():
            begin = None
            if arrival.first and not arrival.stored:
                head = NO_PARENT if arrival.begin is None else arrival.begin
                made = counts_of_base(arrival.base)
                begin = Beginning(arrival.first, head, rows_of_base(arrival.base), *made)
            ack = make_ack(
                name,
                arrival.drafts,
                opening=arrival.opening,
                begin=begin,
                number=arrival.number,
                expected_next=arrival.following - len(arrival.drafts),
            )
            self._loaded += len(arrival.drafts)
            arrival.stored = arrival.following
            arrival.drafts = []
            arrival.byte_count = 0
            self._store._submit(ack, WAIT_S)
            acks.append((arrival, ack))
        self._unwritten.clear()
        self._waiting = 0
        self._waiting_bytes = 0
        refused: TurnlogError | None = None
        for arrival, ack in acks:  # all: what nobody hears of is raised when the store is closed
            try:
                arrival.number = ack.result().session_number
            except TurnlogError as error:
                refused = refused or error
        if refused is not None:
            raise refused
