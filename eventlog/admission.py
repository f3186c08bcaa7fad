"""Admission: decide which appends of a batch are good and where their events go.

Works against the loose index and, for what memory does not hold, the lookups of one write
transaction (``Lookups``). Nothing outside the index's ``draft_*`` fields changes before
``Plan.merge``.

Invariants:
    1. Checks come in the order: idempotency, expected head, id, parents. A repeated append is found
       before its expected head can fail.
    2. An append is placed whole or not at all; what is refused leaves no trace in the plan.
    3. Positions and sequences are dense: the next is always the last plus one.
    4. What removes events of a session is the last of its batch for it (``commit``), and is taken
       also when nothing else may be written.
    5. Damage that a lookup meets refuses the append that asked, not its batch mates: whatever may
       raise is asked before the append's first event is placed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from xxhash import xxh3_64_digest

from eventlog.ack import Ack, Draft, Removal, Terms, Version, event_of
from eventlog.body import encode_plain
from eventlog.branching import Opening
from eventlog.content import same_content
from eventlog.digests import content_digest, id_digest, key_digest
from eventlog.errors import (
    AppendConflictError,
    ConflictError,
    CorruptionError,
    DuplicateIdError,
    IdempotencyConflictError,
    QuotaExceededError,
    SessionGoneError,
    SessionNotFoundError,
    StorageFullError,
    TrimmedError,
    UsageError,
)
from eventlog.index import LooseIndex, Name, SessionState
from eventlog.keys import U64
from eventlog.limits import BLOCK_POSITIONS
from eventlog.linking import ROOT, DraftBranches, Linker, Links
from eventlog.order import next_link
from eventlog.plan import Plan
from eventlog.record import (
    BELONGS,
    CONTROL,
    HEAD,
    LARGE_BYTES,
    MESSAGE,
    NO_PARENT,
    ROLL_UP,
    TAIL,
    TAIL_FLAGS_BYTE,
    TAIL_KIND_BYTE,
    Extension,
    Flag,
    Record,
    change_tail,
    decode_record,
    seal_record,
)
from eventlog.removal import Removed
from eventlog.rollup import ROLLS_UP, kept_entry
from eventlog.rows import NO_SEQUENCE, KeyedResult, SessionRow

ADMIT_SLICE = 32  # appends between two looks at the clock
_FIRST_OF_COMMIT = int(Flag.FIRST_OF_COMMIT | Flag.FIRST_OF_RUN)
_FIRST_OF_RUN = int(Flag.FIRST_OF_RUN)
_KEYED = int(Flag.KEYED)
_KEY_DIGEST = bytes([Extension.KEY_DIGEST, 0x50])  # a byte string of 16 follows
_CONTENT_DIGEST = bytes([Extension.CONTENT_DIGEST, 0x50])
_KEY_COUNT = bytes([Extension.KEY_COUNT])


class Lookups(Protocol):
    """What admission asks of the transaction.

    Attributes:
        removals: ``CommitRecord.removals`` before it.
    """

    removals: int

    def find_session(self, name: Name) -> tuple[int, SessionRow] | None:
        """Number and row of a session that is not in memory, None when there is none."""

    def find_key(self, number: int, digest: bytes) -> KeyedResult | None:
        """An idempotency key among the sealed ones."""

    def find_ids(self, hashes: list[bytes]) -> dict[bytes, tuple[int, int]]:
        """Callers' ids whose events are no longer hot: session number and sequence."""

    def read_event(self, number: int, sequence: int) -> Record | None:
        """A committed event; None when its session is gone."""

    def tip(self, number: int, branch: int) -> int | None:
        """What the next event of a branch that is sealed follows, None for nothing."""

    def opening(self, number: int, branch: int) -> Opening | None:
        """What opened a branch that is sealed, None for branch 0."""

    def secret(self, name: str) -> bytes:
        """Secret of a tenant; of one that does not exist, what it will get."""

    def tenant(self, name: str) -> int:
        """Number of a tenant, made when it is new."""

    def new_number(self) -> int:
        """The next session number."""

    def put_state(self, number: int, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Store what inline projections made of events that a session begins after."""

    def require_readable(self, state: SessionState, floor: int, *, is_gone: bool) -> None:
        """Raise for damage that a removal of a session's events below ``floor`` would meet."""

    def version(
        self, state: SessionState, version: Version, placed: Sequence[tuple[int, bytes]]
    ) -> int:
        """Sequence of the event that made a row in ``state``, -1 when there is none.

        ``placed`` are the session's events in the plan that no earlier call was given.
        """

    def first(self, state: SessionState) -> int:
        """First sequence of a session that was not purged."""

    def is_void(self, number: int, sequence: int) -> bool:
        """True for an event that was removed."""

    def require_blobs(self, name: str, addresses: Sequence[bytes]) -> None:
        """Raise unless a tenant has these blobs."""

    def add_references(self, name: str, addresses: Sequence[bytes]) -> None:
        """Count references to blobs that ``require_blobs`` found."""


class Admission:
    """Admits one batch into a plan."""

    def __init__(
        self,
        index: LooseIndex,
        lookups: Lookups,
        plan: Plan,
        pause: Callable[[], None],
    ) -> None:
        self._index = index
        self._lookups = lookups
        self._plan = plan
        self._pause = pause
        self._known_ids: dict[bytes, tuple[int, int]] = {}
        self._id_hashes: dict[tuple[str, str], bytes] = {}
        self._id_damage: dict[Ack, CorruptionError] = {}  # why an append's ids are not known
        self._last_places: dict[SessionState, int] = {}
        self._seen = 0  # records of the plan that ``_last_places`` knows
        self._placed: dict[SessionState, list[tuple[int, bytes]]] = {}  # and not asked for yet
        self._taken = 0  # records of the plan that went into ``_placed``
        self._linker = Linker(lookups, plan, self._resolve)

    def admit(self, batch: list[Ack]) -> None:
        """Place every append that is good; refuse the others; close the chain's runs."""
        named = [ack for ack in batch if ack.terms is not None and ack.terms.asks_ids]
        if named:
            self._find_ids(named)
        for start in range(0, len(batch), ADMIT_SLICE):
            self._admit_slice(batch[start : start + ADMIT_SLICE])
            self._pause()
        self._close_runs()

    def _admit_slice(self, batch: list[Ack]) -> None:
        plan = self._plan
        placed = plan.placed
        records, states, sequences = plan.records, plan.states, plan.sequences
        find = self._index.names.get
        recorded_us = plan.recorded_us
        position = plan.first + len(records)
        for ack in batch:
            tail, payload = ack.tail, ack.payload
            state = find(ack.name)
            if (
                payload is None
                or tail is None
                or state is None
                or not state.draft_next
                or not (position - 1) % BLOCK_POSITIONS
                or not records
                or state.draft_messages >= state.draft_limit
                or not state.is_linear
                or plan.full is not None
                or len(payload) > LARGE_BYTES
            ):
                self._admit_one(ack, state)
                position = plan.first + len(records)
                continue
            # A plain message of a known session, the case that has to be fast; ``_place`` says
            # what happens here.
            sequence = state.draft_next
            rest = HEAD.pack(state.number, sequence, state.draft_head, recorded_us) + tail + payload
            key = U64.pack(position)
            records.append((key, xxh3_64_digest(key + rest) + rest))
            states.append(state)
            sequences.append(sequence)
            state.draft_head = sequence
            state.draft_messages += 1
            state.draft_next = sequence + 1
            ack._session_number = state.number
            ack._first = ack._last = sequence
            ack._position = position
            placed.append(ack)
            position += 1

    def _admit_one(self, ack: Ack, state: SessionState | None) -> None:
        try:
            if ack.terms is None:
                self._refuse_full()
                if state is None:
                    state = self._find(ack.name) or self._create(ack.name, ack)
                self._place(ack, state, self._links_of(ack, state))
                self._plan.placed.append(ack)
            else:
                self._admit_special(ack)
        except (
            ConflictError,
            UsageError,
            QuotaExceededError,
            StorageFullError,
            TrimmedError,
            CorruptionError,
        ) as error:
            self._plan.refused.append((ack, error))

    def _refuse_full(self) -> None:
        if self._plan.full is not None:
            raise self._plan.full

    def _find(self, name: Name) -> SessionState | None:
        state = self._index.names.get(name)
        if state is not None:
            return state
        found = self._lookups.find_session(name)
        if found is None:
            return None
        number, row = found
        with self._index.lock:
            state = self._index.states.get(number)
            if state is None:
                state = self._index.adopt(number, row)
            else:
                self._index.names[name] = state
        return state

    def _create(self, name: Name, ack: Ack) -> SessionState:
        tenant_number = self._lookups.tenant(name[0])
        recorded_us = ack.all_drafts()[0].recorded_us
        begin = ack.terms.begin if ack.terms is not None else None
        first, head = (0, NO_SEQUENCE) if begin is None else (begin.first, begin.head)
        row = SessionRow(
            tenant_number=tenant_number,
            created_position=self._plan.last + 1,
            created_us=self._plan.recorded_us if recorded_us is None else recorded_us,
            sealed=first,
            messages=0,
            head=head,
            last_position=0,
            last_recorded_us=0,
            keys=0,
            segments=0,
            since_roll_up=0,
            flags=0,
            tenant=name[0],
            name=name[1],
            opening=ack.opening,
            first=first,
            branches=0 if begin is None else begin.branches,
            head_branch=0 if begin is None else begin.head_branch,
        )
        with self._index.lock:
            state = self._index.adopt(self._lookups.new_number(), row)
        if begin is not None:
            self._lookups.put_state(state.number, begin.rows)
        self._plan.created.append(state)
        return state

    # The conditions

    def _admit_special(self, ack: Ack) -> None:
        parts = (ack, *ack.more)
        found = [self._find(part.name) for part in parts]
        if self._repeats(ack, found[0]):
            return
        if ack.terms is not None and ack.terms.only_existing and found[0] is None:
            ack.place_nowhere()
            self._plan.repeated.append(ack)
            return
        for part, state in zip(parts, found, strict=True):
            if part.terms is not None:
                self._check_terms(part.terms, state)
        if not ack.drafts and not ack.more:  # its conditions hold, and that was all
            ack.place_nowhere()
            self._plan.repeated.append(ack)
            return
        if ack.terms is not None and ack.terms.create and found[0] is not None:
            state = found[0]
            ack.repeat(state.number, 0, state.draft_next - 1, self._last_position(state))
            self._plan.repeated.append(ack)
            return
        if ack.removal is not None:
            self._admit_removal(ack, ack.removal, found[0])
            return
        damage = self._id_damage.get(ack)
        if damage is not None:
            raise damage
        fresh: dict[bytes, None] = {}
        repeated = 0
        for part, state_or_none in zip(parts, found, strict=True):
            if part.terms is not None and part.terms.named:
                repeated += self._check_ids(part, state_or_none, fresh)
        if repeated:
            written = [part for part in parts if part.drafts]
            if repeated != len(written):
                raise DuplicateIdError("some sessions of the batch hold their part, others do not")
            last = written[-1]
            first = written[0]._first
            ack.repeat(last._session_number, first, last._last, last._position)
            self._plan.repeated.append(ack)
            return
        self._refuse_full()
        blobs = self._require_blobs(ack, parts)
        links = [
            self._links_of(part, state) if part.drafts else None
            for part, state in zip(parts, found, strict=True)
        ]
        if None in found:
            self._lookups.tenant(ack.name[0])  # invariant 4: a new session will ask for it
        for part, state_or_none, mine in zip(parts, found, links, strict=True):
            if part.drafts:  # others are only read for their condition
                # None was found; an earlier part may have made it since.
                state = state_or_none or self._index.names.get(part.name)
                self._place(part, state or self._create(part.name, part), mine)
        if blobs:
            self._lookups.add_references(ack.name[0], blobs)
        if ack.more:
            self._summarise(ack)
        self._plan.placed.append(ack)

    def _admit_removal(self, ack: Ack, removal: Removal, state: SessionState | None) -> None:
        """Place a tombstone or a base, and note what it removes."""
        if state is None:
            raise SessionNotFoundError(f"no session {ack.name[1]!r}")
        if removal.number not in (None, state.number):
            raise SessionGoneError(
                f"session {ack.name[1]!r} was deleted and made anew",
                expected=removal.number,
                current=state.number,
            )
        if removal.first is not None:
            if removal.first > state.next:
                raise UsageError(
                    f"session {ack.name[1]!r} has no event {removal.first - 1} to purge"
                )
            if removal.first <= self._lookups.first(state):
                raise TrimmedError(
                    f"session {ack.name[1]!r} begins at {self._lookups.first(state)} already",
                    first=self._lookups.first(state),
                )
        floor = state.draft_next if removal.first is None else removal.first
        self._lookups.require_readable(state, floor, is_gone=removal.first is None)
        blobs = self._require_blobs(ack, (ack,))
        self._place(ack, state, self._links_of(ack, state))
        if blobs:  # before those of what is purged are released, so that they are never free
            self._lookups.add_references(ack.name[0], blobs)
        self._plan.removed.append(Removed(state, floor, removal.first is None, removal.is_erased))
        self._plan.placed.append(ack)

    def _links_of(self, ack: Ack, state: SessionState | None) -> Links | None:
        """The parents of its events, checked; None where each simply follows the head."""
        begin = None if ack.terms is None else ack.terms.begin
        if state is None:
            is_linear = begin is None or not begin.branches
        else:
            is_linear = state.is_linear
        if is_linear and not (ack.terms is not None and ack.terms.linked):
            return None
        if state is not None:
            first = state.draft_next
        else:
            first = 0 if begin is None else begin.first
        return self._linker.links_of(ack.name[0], ack.all_drafts(), state, first)

    def _resolve(self, tenant: str, event_id: str) -> tuple[int, int] | None:
        """Session number and sequence of the event with an id."""
        made = event_of(event_id)
        if made is not None:
            return made
        hashed = self._id_hashes[(tenant, event_id)]
        pending = self._plan.ids.get(hashed)
        return self._known_ids.get(hashed) if pending is None else pending[:2]

    def _require_blobs(self, ack: Ack, parts: Sequence[Ack]) -> Sequence[bytes]:
        """The addresses that an append refers to; all of them exist."""
        if ack.terms is None or not ack.terms.refers:
            return ()
        blobs = [address for part in parts for draft in part.drafts for address in draft.blobs]
        self._lookups.require_blobs(ack.name[0], blobs)
        return blobs

    def _last_position(self, state: SessionState) -> int:
        """Position of a session's last event, also when it stands in this plan."""
        if state.draft_next == state.next:
            return state.last_position
        states = self._plan.states
        for place in range(self._seen, len(states)):
            self._last_places[states[place]] = place
        self._seen = len(states)
        return self._plan.first + self._last_places[state]

    def _summarise(self, ack: Ack) -> None:
        """The ack of a batch over sessions: first of the first, last and position of the last."""
        written = [part for part in (ack, *ack.more) if part.drafts]
        if ack is not written[-1]:
            first = written[0]._first
            ack.place(written[-1]._session_number, first, written[-1]._last, self._plan.last)

    def _repeats(self, ack: Ack, state: SessionState | None) -> bool:
        terms = ack.terms
        if terms is None or terms.key is None:
            return False
        secret = self._lookups.secret(ack.name[0])
        digest = terms.digest = key_digest(secret, terms.key)
        if state is None:
            return False
        result = self._plan.keys.get((state.number, digest))
        if result is None and state.keys is not None:
            result = state.keys.get(digest)
        if result is None and (state.row.keys or state.row_epoch != self._index.epoch):
            result = self._lookups.find_key(state.number, digest)
        if result is None:
            return False
        if result.content != content_digest(secret, terms.content) or (
            terms.linked and not self._same_parents(ack, state, result)
        ):
            raise IdempotencyConflictError(
                f"key {terms.key!r} of session {ack.name[1]!r} stands for other content",
                expected=terms.key,
                current=result.first,
            )
        ack.repeat(state.number, result.first, result.last, result.position)
        self._plan.repeated.append(ack)
        return True

    def _placed_since(self, state: SessionState) -> list[tuple[int, bytes]]:
        """Sequence and stored record of what was placed of a session since this was asked last."""
        plan = self._plan
        for place in range(self._taken, len(plan.states)):
            event = (plan.sequences[place], plan.records[place][1])
            self._placed.setdefault(plan.states[place], []).append(event)
        self._taken = len(plan.states)
        return self._placed.pop(state, [])

    def _check_terms(self, terms: Terms, state: SessionState | None) -> None:
        following = 0 if terms.begin is None else terms.begin.first
        if state is not None:
            following = state.draft_next
        current_number = None if state is None else state.number
        if terms.number not in (None, current_number):
            raise SessionGoneError(
                "the session was deleted, or deleted and made anew",
                expected=terms.number,
                current=current_number,
            )
        if terms.expected_head is not None:
            head = -1 if state is None else signed_head(state.draft_head)
            if terms.expected_head != head:
                raise AppendConflictError(
                    f"head is {head}, not {terms.expected_head}",
                    expected=terms.expected_head,
                    current=head,
                )
        if terms.removals not in (None, self._lookups.removals):
            raise AppendConflictError(
                "something was removed from the store meanwhile",
                expected=terms.removals,
                current=self._lookups.removals,
            )
        for version in terms.versions:
            current = -1
            if state is not None:
                current = self._lookups.version(state, version, self._placed_since(state))
            if current != version.sequence:
                raise version.refusal(current)
        if terms.expected_next is not None and terms.expected_next != following:
            raise AppendConflictError(
                f"next sequence is {following}, not {terms.expected_next}",
                expected=terms.expected_next,
                current=following,
            )

    def _find_ids(self, named: list[Ack]) -> None:
        """Look all ids of the batch up at once: hot ones in memory, others in the id runs."""
        hashes: dict[Ack, list[bytes]] = {}
        for ack in named:
            tenant = ack.name[0]
            try:
                secret = self._lookups.secret(tenant)
            except CorruptionError as error:
                self._id_damage[ack] = error
                continue
            mine = hashes[ack] = []
            for part in (ack, *ack.more):
                for draft in part.drafts:
                    for each in (draft.caller_id, draft.parent, draft.past):
                        if type(each) is str:
                            hashed = id_digest(secret, each)
                            self._id_hashes[(tenant, each)] = hashed
                            mine.append(hashed)
        hot = self._index.ids
        unknown: list[tuple[Ack, list[bytes]]] = []
        for ack, mine in hashes.items():
            cold = [hashed for hashed in mine if hashed not in hot]
            if cold:
                unknown.append((ack, cold))
            if len(cold) < len(mine):
                self._known_ids.update({hashed: hot[hashed] for hashed in mine if hashed in hot})
        if unknown:
            self._look_up(unknown)

    def _look_up(self, unknown: list[tuple[Ack, list[bytes]]]) -> None:
        """Ask the id runs; halve where they are damaged, until only who meets that fails."""
        try:
            found = self._lookups.find_ids([hashed for _, cold in unknown for hashed in cold])
            self._known_ids.update(found)
        except CorruptionError as error:
            if len(unknown) == 1:
                self._id_damage[unknown[0][0]] = error
                return
            self._pause()
            middle = len(unknown) // 2
            self._look_up(unknown[:middle])
            self._look_up(unknown[middle:])

    def _check_ids(self, ack: Ack, state: SessionState | None, fresh: dict[bytes, None]) -> int:
        """Raise for taken ids; 1 when the whole append repeats an earlier one, else 0."""
        places: list[tuple[int, int, int]] = []
        for draft in ack.drafts:
            if draft.caller_id is None:
                continue
            hashed = self._id_hashes[(ack.name[0], draft.caller_id)]
            if hashed in fresh:
                raise DuplicateIdError(f"id {draft.caller_id!r} stands twice in one append")
            fresh[hashed] = None
            pending = self._plan.ids.get(hashed)
            known = self._known_ids.get(hashed)
            stored: Record | None
            if pending is not None:
                number, sequence, position = pending
                stored = self._planned(number, position)
            elif known is not None:
                number, sequence = known
                stored = self._lookups.read_event(number, sequence)
                if stored is None and self._lookups.is_void(number, sequence):
                    continue  # the id went with its event
            else:
                continue
            if (
                state is None
                or number != state.number
                or stored is None
                or not same_content(stored, draft)
                or not self._same_parent(ack.name[0], stored, draft)
            ):
                raise DuplicateIdError(
                    f"id {draft.caller_id!r} is taken by another event of the tenant",
                    expected=draft.caller_id,
                    current=None if stored is None else (stored.origin.name, stored.sequence),
                )
            places.append((number, sequence, stored.position))
        if not places:
            return 0
        sequences = [place[1] for place in places]
        if len(places) != len(ack.drafts) or sequences != list(
            range(sequences[0], sequences[0] + len(sequences))
        ):
            raise DuplicateIdError("some ids of the append are stored already, others are not")
        ack.repeat(places[0][0], sequences[0], sequences[-1], places[-1][2])
        return 1

    def _same_parents(self, ack: Ack, state: SessionState, result: KeyedResult) -> bool:
        """True when the events of a key follow what a retry says, where it says so."""
        drafts = ack.all_drafts()
        before = result.last + 1 - len(drafts)
        for sequence, draft in enumerate(drafts, before):
            if draft.parent is None:
                continue
            position = result.position - (result.last - sequence)
            stored = (
                self._planned(state.number, position)
                if position >= self._plan.first
                else self._lookups.read_event(state.number, sequence)
            )
            if stored is not None and not self._same_parent(ack.name[0], stored, draft):
                return False
        return True

    def _same_parent(self, tenant: str, stored: Record, draft: Draft) -> bool:
        parent = draft.parent
        if type(parent) is str:
            found = self._resolve(tenant, parent)
            return found == (stored.origin.number, stored.parent_word)
        return parent is None or stored.parent_word == (NO_PARENT if parent == ROOT else parent)

    def _planned(self, number: int, position: int) -> Record:
        """An event of this plan."""
        _, value = self._plan.records[position - self._plan.first]
        return decode_record(self._index.states[number].origin, position, value, Record)

    # Placing

    def _place(self, ack: Ack, state: SessionState, links: Links | None) -> None:
        plan = self._plan
        branches = state.draft_branches
        if links is not None and branches is None:  # of a session that this append makes
            branches = state.draft_branches = DraftBranches(state)
            state.is_linear = False
            plan.linked.append(state)
            if ack.terms is not None and ack.terms.begin is not None:
                branches.begin(ack.terms.begin.rows)
        if links is not None and branches is not None:
            branches.branches.update(links.purged)
        records, states, sequences = plan.records, plan.states, plan.sequences
        number = state.number
        sequence = state.draft_next
        position = plan.first + len(records)
        ack._first = sequence
        is_marked = sequence == 0 or ack.terms is not None
        drafts = ack.all_drafts()
        first, last = sequence, sequence + len(drafts) - 1
        for draft in drafts:
            tail, payload, _, caller_id, recorded_us = draft[:5]
            kind = tail[TAIL_KIND_BYTE]
            parent = state.draft_head if kind < CONTROL or kind in BELONGS else NO_PARENT
            if links is not None and branches is not None:
                stamp = plan.recorded_us if recorded_us is None else recorded_us
                target = links.parents[sequence - first]
                parent, tail = branches.link(state, sequence, tail, target, stamp)
            elif kind < CONTROL:
                state.draft_head = sequence
            if kind == MESSAGE:
                state.draft_messages += 1
            elif kind >= CONTROL:
                state.has_controls = True
            if is_marked:
                tail, payload = self._marked(ack, tail, draft, state, sequence)
                is_marked = False
            is_due = sequence == last and state.draft_messages > state.draft_limit
            if is_due or kind == ROLL_UP or tail[TAIL_FLAGS_BYTE] & ROLLS_UP:
                tail, payload = _rolled_up(tail, payload, state.roll_up_draft())
            if not records:
                tail = change_tail(tail, _FIRST_OF_COMMIT, TAIL.unpack(tail)[8])
            elif not (position - 1) % BLOCK_POSITIONS:
                tail = change_tail(tail, _FIRST_OF_RUN, TAIL.unpack(tail)[8])
            if recorded_us is not None:
                plan.keeps_times = True
            rest = (
                HEAD.pack(
                    number,
                    sequence,
                    parent,
                    plan.recorded_us if recorded_us is None else recorded_us,
                )
                + tail
                + payload
            )
            key = U64.pack(position)
            if len(rest) < LARGE_BYTES:
                records.append((key, xxh3_64_digest(key + rest) + rest))
            else:
                records.append((key, seal_record(key, rest)))
            states.append(state)
            sequences.append(sequence)
            if caller_id is not None:
                plan.ids[self._id_hashes[(ack.name[0], caller_id)]] = (number, sequence, position)
            sequence += 1
            position += 1
        state.draft_next = sequence
        ack._last = sequence - 1
        ack._position = position - 1
        ack._session_number = number

    def _marked(
        self, ack: Ack, tail: bytes, draft: Draft, state: SessionState, sequence: int
    ) -> tuple[bytes, bytes]:
        """Tail and payload with what only the writer knows: opening facts, key digests."""
        terms = ack.terms
        opening = state.row.opening if sequence == 0 else None
        if opening is None and (terms is None or terms.key is None):
            return tail, draft.payload
        added: list[bytes] = []
        flags = 0
        if opening is not None:
            added.append(encode_plain(int(Extension.OPENING)) + encode_plain(opening))
        if terms is not None and terms.key is not None:
            secret = self._lookups.secret(ack.name[0])
            digest = terms.digest
            content = content_digest(secret, terms.content)
            count = len(ack.drafts)
            added += [
                _KEY_DIGEST + digest,
                _CONTENT_DIGEST + content,
                _KEY_COUNT + (b"\x01" if count == 1 else encode_plain(count)),
            ]
            flags = _KEYED
            self._plan.keys[(state.number, digest)] = KeyedResult(
                content, sequence, sequence + count - 1, self._plan.last + count
            )
        extension = extend_map(draft.extension, added)
        return change_tail(tail, flags, len(extension)), extension + draft.body

    def _close_runs(self) -> None:
        """The chain: one link a run; runs end with the commit or with a block."""
        plan = self._plan
        records = plan.records
        start = 0
        while start < len(records):
            first = plan.first + start
            stop = min(len(records), start + BLOCK_POSITIONS - (first - 1) % BLOCK_POSITIONS)
            checksums = b"".join([value[:8] for _, value in records[start:stop]])
            plan.link = next_link(plan.link, first, checksums)
            last = plan.first + stop - 1
            if last % BLOCK_POSITIONS == 0:
                plan.block_links.append(((last - 1) // BLOCK_POSITIONS, plan.link))
            start = stop


def _rolled_up(tail: bytes, payload: bytes, kept: int | None) -> tuple[bytes, bytes]:
    """Tail and payload of a record after which the session rolls up (``rollup``)."""
    size: int = TAIL.unpack(tail)[8]
    if kept is None:
        return change_tail(tail, ROLLS_UP, size), payload
    extension = extend_map(payload[:size], [kept_entry(kept)])
    return change_tail(tail, ROLLS_UP, len(extension)), extension + payload[size:]


def signed_head(head: int) -> int:
    """A head as callers know it: -1 when there is none."""
    return -1 if head == NO_SEQUENCE else head


def extend_map(encoded: bytes, entries: list[bytes]) -> bytes:
    """Add encoded entries to an encoded CBOR map of few entries, or make one of nothing."""
    count = (encoded[0] & 0x1F) + len(entries) if encoded else len(entries)
    assert count < 24 and (not encoded or encoded[0] >> 5 == 5)
    return bytes([0xA0 | count]) + encoded[1:] + b"".join(entries)
