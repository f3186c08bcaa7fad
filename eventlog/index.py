"""The loose index: what memory knows of the hot log. A hint; the store decides.

For each session in memory: the row as of its last roll-up, its loose events (not yet sealed), and
what the next append needs: next sequence, head, message count. It is built from the hot log alone,
follows other processes' commits, and can be dropped at any time.

Invariants:
    1. It holds committed events only. The writer's batch works on the ``draft_*`` fields, which
       are merged after the commit or reset; a session that it creates is here without events, and
       goes again when the batch is dropped.
    2. ``Loose`` is replaced when events are sealed. Otherwise its lists only grow, positions after
       records, and a record may become None: up to the number of positions that a reader saw, the
       one that it holds names the same events for ever.
    3. What readers see changes under ``lock``; they take references without it. Without it the
       writer alone changes the draft fields, takes what is due or stale, and notes the transactions
       that are its own.
    4. A session's loose events have consecutive sequences from ``Loose.base`` on.
    5. Record bytes kept here stay under their bound; dropped ones are read from the log again.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import takewhile
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from eventlog.branching import Branching, is_linear, parent_of
from eventlog.errors import CorruptionError
from eventlog.keys import U64
from eventlog.limits import LOOSE_BYTES_MAX, NAMES_MAX, SNAPSHOT_FREQUENCY
from eventlog.record import (
    BASE,
    CHECKSUM_BYTES,
    CONTROL,
    FLAGS_BYTE,
    HEAD_MOVE,
    HEADER_BYTES,
    KIND_BYTE,
    MESSAGE,
    TOMBSTONE,
    Extension,
    Flag,
    Origin,
    decode_extension,
    recorded_of,
    verify_record,
)
from eventlog.rollup import NEVER, ROLLS_UP, RollUpOptions, kept_of
from eventlog.rows import NO_SEQUENCE, CommitRecord, KeyedResult, SessionRow
from eventlog.strays import is_proven

if TYPE_CHECKING:
    from eventlog.linking import DraftBranches

_PLACE: Final = Struct("<QQ")  # session number and sequence at the start of a header
_KEYED: Final = int(Flag.KEYED)
_NAMED: Final = int(Flag.NAMED)
_MARKED: Final = _KEYED | _NAMED
_REMOVAL: Final = (TOMBSTONE, BASE)
FORGOTTEN_MAX: Final = 2_048  # sessions looked at to forget some, at once

Name = tuple[str, str]


class Loose:
    """The loose events of one session from sequence ``base`` on; append only (invariant 2).

    Positions lie in an array and records in a dict, so that the garbage collector does not look at
    each of them: beside a busy event loop its pauses are the longest there are.

    Attributes:
        base: Sequence of the first loose event.
        positions: Positions, by sequence from ``base`` on; 0 for one that is not known.
        records: Stored records by sequence; None when the bytes are to be read from the log.
    """

    __slots__ = ("base", "positions", "records")

    def __init__(
        self, base: int, positions: Iterable[int] = (), records: Iterable[bytes | None] = ()
    ) -> None:
        self.base = base
        self.positions = array("Q", positions)
        self.records: dict[int, bytes | None] = dict(enumerate(records, base)) if records else {}

    def append(self, position: int, record: bytes | None) -> None:
        """Add the next event."""
        self.records[self.base + len(self.positions)] = record
        self.positions.append(position)

    def stored(self, start: int, stop: int) -> list[bytes | None]:
        """The records from place ``start`` to before ``stop``, places from 0."""
        records = self.records
        return [records[sequence] for sequence in range(self.base + start, self.base + stop)]

    def cut(self, base: int) -> Loose:
        """What is left from sequence ``base`` on."""
        count = base - self.base
        return Loose(base, self.positions[count:], self.stored(count, len(self.positions)))


class SessionState:
    """One session in memory; ``draft_*`` belong to the writer's open batch.

    ``lost`` is the position of a loose record that cannot be trusted, or of the one that shows that
    another is missing before it, and 0 while there is none: head and counts leave that event out.

    ``rolled`` is how many messages there were at the last logical roll-up, ``trimmed`` how many of
    the first ones the view lost by then (``rollup``). ``draft_limit`` is how many there are when
    the next one completes a roll-up: so a plain message costs admission one comparison.

    ``branching`` is None while the session is linear; what the open batch does to its branches is
    in ``draft_branches`` (``linking``). ``is_linear`` says that both are None.
    """

    __slots__ = (
        "branching",
        "draft_branches",
        "draft_head",
        "draft_limit",
        "draft_messages",
        "draft_next",
        "draft_rolled",
        "draft_trimmed",
        "has_controls",
        "head",
        "is_due",
        "is_linear",
        "keys",
        "last_position",
        "last_recorded_us",
        "loose",
        "lost",
        "messages",
        "next",
        "number",
        "options",
        "origin",
        "rolled",
        "row",
        "row_epoch",
        "trimmed",
    )

    def __init__(
        self, number: int, row: SessionRow, epoch: int, options: RollUpOptions = NEVER
    ) -> None:
        self.number = number
        self.origin = Origin(number, row.tenant, row.name)
        self.row = row
        self.row_epoch = epoch
        self.loose = Loose(row.sealed)
        self.lost = 0
        self.keys: dict[bytes, KeyedResult] | None = None
        self.is_due = False
        self.has_controls = False  # whether a loose event may be of a control kind
        self.options = options.of_session(row.opening)
        self.begin(row)

    def begin(self, row: SessionRow) -> None:
        """All that is committed of the session is sealed, as its row tells it."""
        self.next = row.sealed
        self.head = row.head
        self.messages = row.messages
        self.last_position = row.last_position
        self.last_recorded_us = row.last_recorded_us
        self.rolled = row.messages - row.since_roll_up
        self.trimmed = row.trimmed
        self.branching = Branching(row.branches, row.head_branch) if row.branches else None
        self.reset()

    @property
    def name(self) -> Name:
        """Tenant and session name."""
        return (self.row.tenant, self.row.name)

    def reset(self) -> None:
        """Forget the open batch."""
        self.draft_next = self.next
        self.draft_head = self.head
        self.draft_messages = self.messages
        self.draft_rolled = self.rolled
        self.draft_trimmed = self.trimmed
        self.draft_limit = self.rolled + self.options.snapshot_frequency - 1
        self.draft_branches: DraftBranches | None = None
        self.is_linear = self.branching is None

    def take(self, sequence: int, position: int, value: bytes) -> None:
        """Count one more committed event."""
        kind = value[KIND_BYTE]
        if self.branching is None and not is_linear(value):
            self.branch()
        if self.branching is not None:
            self.branching.take(sequence, value)
        if kind < CONTROL:
            self.head = sequence
            if kind == MESSAGE:
                self.messages += 1
        else:
            self.has_controls = True
            if kind == HEAD_MOVE:
                self.head = parent_of(value)
        self.next = sequence + 1
        self.last_position = position
        self.last_recorded_us = recorded_of(value)

    def branch(self) -> Branching:
        """The session is not linear any more: all so far was on branch 0."""
        found = self.branching = Branching(1, 0)
        if self.head != NO_SEQUENCE:
            found.tips[0] = self.head
        return found

    def roll_up(self, kept: int | None) -> None:
        """The last event rolled the session up.

        Args:
            kept: Messages that the view still shows, None for all.
        """
        self.rolled = self.messages
        if kept is not None:
            self.trimmed = max(self.trimmed, self.messages - kept)

    def keep_draft(self) -> None:
        """The open batch was committed."""
        self.next = self.draft_next
        self.head = self.draft_head
        self.messages = self.draft_messages
        self.rolled = self.draft_rolled
        self.trimmed = self.draft_trimmed

    def keep_branches(self) -> None:
        """The open batch was committed; before its events come into memory (``branching``)."""
        if self.draft_branches is not None:
            self.branching = self.draft_branches.merged(self.branching)
            self.draft_branches = None
            self.is_linear = self.branching is None

    def roll_up_draft(self) -> int | None:
        """The open batch rolls the session up; gives how many messages the view still shows.

        Returns:
            None while the view shows all of them.
        """
        count = self.draft_messages
        self.draft_rolled = count
        self.draft_limit = count + self.options.snapshot_frequency - 1
        kept = self.options.max_messages
        if kept is not None and count - kept > self.draft_trimmed:
            self.draft_trimmed = count - kept
        return count - self.draft_trimmed if self.draft_trimmed else None


class LooseIndex:
    """See the module."""

    def __init__(
        self,
        *,
        bytes_max: int = LOOSE_BYTES_MAX,
        names_max: int = NAMES_MAX,
    ) -> None:
        self.lock = threading.RLock()
        self.bytes_max = bytes_max
        self.names_max = names_max
        self.epoch = 0
        self.frequency = SNAPSHOT_FREQUENCY
        # Before a rewrite of the file: in moments without appends all before this position is
        # sealed and, where the format version allows it, cut block by block.
        self.seals_before = 0
        self.cuts_blocks = False
        self.roll_ups = RollUpOptions(SNAPSHOT_FREQUENCY)  # the store's; of logical ones
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self.position = 0
        self.floor = 1
        self.generation = 0
        self.own_transaction = -1  # of this process's commit in flight
        self.transaction = 0
        self.states: OrderedDict[int, SessionState] = OrderedDict()
        self.names: dict[Name, SessionState] = {}
        self.hot: list[SessionState] = []  # by position, from the floor on
        self.hot_sequences = array("Q")
        self.hot_bytes = 0
        self.hot_sizes = array("Q")
        self.scan = 1  # all positions before it are sealed
        self.kept_bytes = 0
        self.kept_from = 1  # positions before it have no bytes in memory
        self.due: deque[SessionState] = deque()
        self.ids: dict[bytes, tuple[int, int]] = {}
        self.ids_by_position: deque[tuple[int, bytes, int, int]] = deque()
        self.stale_activity: deque[tuple[int, int]] = deque()
        self.damaged: dict[int, str] = {}
        self.last_lost = 0  # newest position whose record does not tell its session
        self.strays: dict[int, tuple[int, int]] = {}  # of such: session number, sequence it claims
        self.unsealable: dict[int, str] = {}  # sessions whose events stay hot, and why

    # Following the log

    def is_current(self, record: CommitRecord) -> bool:
        """True when everything that a transaction sees is known here."""
        return record.generation == self.generation and record.last_position <= self.position

    def catch_up(
        self,
        record: CommitRecord,
        read_hot: Callable[[int], Iterable[tuple[bytes, bytes]]],
        load_row: Callable[[int], SessionRow],
        id_hash: Callable[[int, str], bytes],
        pause: Callable[[], None],
        sealed_at: Callable[[int, int], int | None] = lambda number, sequence: None,
    ) -> None:
        """Apply what others committed, as seen by one transaction.

        Args:
            record: The transaction's commit record.
            read_hot: Hot log from a position on: keys and values in order.
            load_row: A session's row, by number.
            id_hash: Keyed hash of a caller's id, by tenant number.
            pause: Lets the GIL go when the slice is used up.
            sealed_at: Position of a sealed event, by session number and sequence; asked only
                where a record is damaged.
        """
        with self.lock:
            if record.transaction <= self.transaction:
                return
            if record.generation != self.generation or self.position < record.floor - 1:
                self.clear()
                self.generation = record.generation
                self.position = record.floor - 1
                self.floor = self.scan = self.kept_from = record.floor
            if record.transaction != self.own_transaction:
                self.epoch += 1  # others may have sealed: rows are to be read again
            if record.last_position > self.position:
                for key, value in read_hot(self.position + 1):
                    position = U64.unpack(key)[0]
                    if position != self.position + 1:
                        raise CorruptionError("position is missing", where=f"log {position - 1}")
                    self._apply(position, key, value, load_row, id_hash, sealed_at)
                    if not position & 31:
                        pause()
                if self.position < record.last_position:
                    raise CorruptionError(
                        "newest positions are missing", where=f"log {self.position + 1}"
                    )
            if self.strays:
                self._settle_strays(load_row)
            self.drop_before(record.floor)
            self.forget()
            self.transaction = record.transaction

    def _apply(
        self,
        position: int,
        key: bytes,
        value: bytes,
        load_row: Callable[[int], SessionRow],
        id_hash: Callable[[int, str], bytes],
        sealed_at: Callable[[int, int], int | None],
    ) -> None:
        try:
            verify_record(key, value)
        except CorruptionError as error:
            self._apply_damaged(position, value, str(error), load_row, sealed_at)
            return
        number, sequence = _PLACE.unpack_from(value, CHECKSUM_BYTES)
        state = self.states.get(number)
        if state is None or not state.next:
            # Of a commit on its way here a session has its number already; when that fails, another
            # process may give it to a session of its own.
            try:
                row = load_row(number)
            except CorruptionError as error:
                self._apply_lost(position, number, value, str(error))
                return
            if state is not None and state.name != (row.tenant, row.name):
                self.names.pop(state.name, None)
                state = None
            if state is None:
                state = self.adopt(number, row)
        if value[KIND_BYTE] in _REMOVAL:
            try:
                self.remove(state, load_row(number))
            except CorruptionError as error:
                self._apply_lost(position, number, value, str(error))
                return
        loose = state.loose
        following = loose.base + len(loose.positions)
        is_loose = sequence >= loose.base
        if not is_loose:
            self._note_hot(state, sequence, len(value), 0)
        elif not following <= sequence <= following + len(self.damaged):
            self._apply_stray(position, value, f"sequence is {sequence}, not {following}")
            return
        else:
            while following < sequence:  # damaged records in between
                state.lost = state.lost or position
                loose.append(0, None)
                following += 1
            self.append(state, sequence, position, value)
        try:
            if is_loose and value[FLAGS_BYTE] & ROLLS_UP:
                state.roll_up(kept_of(value, f"log {position}"))
            self._note_marks(state, position, sequence, value, id_hash, keys=is_loose)
        except CorruptionError as error:  # the event can be read, its id or key cannot be known
            self.damaged[position] = str(error)
        state.reset()
        self.position = position

    def _apply_lost(self, position: int, number: int, value: bytes, reason: str) -> None:
        """Keep the place of an event whose session's row is damaged; other sessions go on."""
        self.unsealable[number] = reason
        if value[FLAGS_BYTE] & _NAMED:
            self.damaged[position] = reason  # its id is unknown: no other may be taken as new
        self._note_hot(LOST, 0, len(value), 0)
        self.position = position

    def _apply_damaged(
        self,
        position: int,
        value: bytes,
        reason: str,
        load_row: Callable[[int], SessionRow],
        sealed_at: Callable[[int, int], int | None],
    ) -> None:
        """Keep the place of a record that cannot be trusted, if its header still makes sense."""
        self.damaged[position] = reason
        state: SessionState | None = None
        sequence = 0
        if len(value) >= HEADER_BYTES:
            number, sequence = _PLACE.unpack_from(value, CHECKSUM_BYTES)
            state = self.states.get(number)
            if state is None:
                try:
                    state = self.adopt(number, load_row(number))
                except CorruptionError:
                    state = None
            if state is not None and state.next == sequence >= state.loose.base:
                state.loose.append(position, None)
                state.next = state.draft_next = sequence + 1
                state.last_position = position
                state.lost = state.lost or position
                self._note_hot(state, sequence, len(value), 0)
                self.position = position
                return
            if (
                state is not None
                and sequence < state.loose.base
                and sealed_at(number, sequence) == position  # so its header is right
            ):
                self._note_hot(state, sequence, len(value), 0)
                self.position = position
                return
        self._apply_stray(position, value, reason)

    def _apply_stray(self, position: int, value: bytes, reason: str) -> None:
        """Keep the position of a record of which nobody knows whose it is."""
        self.damaged[position] = reason
        self._note_hot(LOST, 0, len(value), 0)
        self.last_lost = position
        is_whole = len(value) >= HEADER_BYTES
        self.strays[position] = _PLACE.unpack_from(value, CHECKSUM_BYTES) if is_whole else (0, 0)
        self.position = position

    def _settle_strays(self, load_row: Callable[[int], SessionRow]) -> None:
        """Find whose the strays are, as what came after them shows."""
        for position, (number, sequence) in list(self.strays.items()):
            place = position - self.floor
            if place < 0 or not is_proven(self.hot, self.hot_sequences, place, number, sequence):
                continue
            try:
                state = self.states.get(number) or self.adopt(number, load_row(number))
            except CorruptionError:
                continue
            if sequence >= state.loose.base:
                continue  # the loose events after it were counted without it
            self.hot[place], self.hot_sequences[place] = state, sequence
            del self.strays[position]
            if self.last_lost == position:
                self.last_lost = max(self.strays, default=0)

    def adopt(self, number: int, row: SessionRow) -> SessionState:
        """Put a session into memory."""
        state = SessionState(number, row, self.epoch, self.roll_ups)
        self.states[number] = state
        if not row.is_gone:
            self.names[state.name] = state
        return state

    def append(self, state: SessionState, sequence: int, position: int, value: bytes) -> None:
        """Apply one committed event that is loose."""
        state.loose.append(position, value)
        state.take(sequence, position, value)
        self._note_hot(state, sequence, len(value), len(value))
        self.mark_due(state)

    def mark_due(self, state: SessionState) -> None:
        """Queue a session for its roll-up once it has enough loose events."""
        if not state.is_due and len(state.loose.positions) >= self.frequency:
            state.is_due = True
            self.due.append(state)

    def _note_hot(self, state: SessionState, sequence: int, size: int, kept: int) -> None:
        self.hot.append(state)
        self.hot_sequences.append(sequence)
        self.hot_sizes.append(size)
        self.hot_bytes += size
        self.kept_bytes += kept

    def _note_marks(
        self,
        state: SessionState,
        position: int,
        sequence: int,
        value: bytes,
        id_hash: Callable[[int, str], bytes],
        *,
        keys: bool,
    ) -> None:
        flags = value[FLAGS_BYTE] | value[FLAGS_BYTE + 1] << 8
        if not flags & _MARKED:
            return
        marks = extension_of(value, f"log {position}")
        if flags & _NAMED:
            hashed = id_hash(state.row.tenant_number, marks[Extension.ID])
            self.add_id(position, hashed, state.number, sequence)
        if flags & _KEYED and keys:
            count = marks[Extension.KEY_COUNT]
            self.add_key(
                state,
                marks[Extension.KEY_DIGEST],
                KeyedResult(
                    marks[Extension.CONTENT_DIGEST],
                    sequence,
                    sequence + count - 1,
                    position + count - 1,
                ),
            )

    def add_id(self, position: int, hashed: bytes, number: int, sequence: int) -> None:
        """Remember a caller's id while its event is hot."""
        self.ids[hashed] = (number, sequence)
        self.ids_by_position.append((position, hashed, number, sequence))

    def add_key(self, state: SessionState, digest: bytes, result: KeyedResult) -> None:
        """Remember an idempotency key while its event is loose."""
        if state.keys is None:
            state.keys = {}
        state.keys[digest] = result

    # Making room

    def seal(self, state: SessionState, row: SessionRow) -> None:
        """Take a roll-up over: events below ``row.sealed`` are in segments now."""
        loose = state.loose
        count = row.sealed - loose.base
        state.row = row
        state.row_epoch = self.epoch
        if count > 0:
            self._cut_loose(state, row.sealed)
        if row.sealed > state.next:  # another process sealed what was not met here yet
            state.begin(row)
        if not state.loose.positions and state.draft_next == state.next:
            state.has_controls = False
            if state.branching is not None and row.branches:  # the rows tell all of it now
                state.branching = Branching(row.branches, row.head_branch)
        keys = state.keys
        if keys:
            # In sequence order: of a long session a part is sealed at a time.
            sealed = takewhile(lambda digest: keys[digest].first < row.sealed, keys)
            for digest in list(sealed):
                del keys[digest]

    def remove(self, state: SessionState, row: SessionRow) -> None:
        """Take a removal over: events below ``row.first`` are void, the session may be gone."""
        if row.is_gone:
            if self.names.get(state.name) is state:
                del self.names[state.name]
            state.origin = Origin(state.number, "", "")
            state.keys = None
        self.seal(state, row)

    def advance_scan(self) -> None:
        """Move ``scan`` to the oldest hot event that is not sealed."""
        with self.lock:  # a reader may be dropping what others cut
            hot, sequences = self.hot, self.hot_sequences
            index = self.scan - self.floor
            stop = len(hot)
            if self.damaged:  # nothing is cut that may be the only trace of an event
                stop = min(stop, max(index, min(self.damaged) - self.floor))
            while index < stop and sequences[index] < hot[index].loose.base:
                index += 1
            self.scan = self.floor + index

    def oldest_loose(
        self, count: int, taken: set[SessionState], positions_max: int
    ) -> list[SessionState]:
        """At most ``count`` sessions, those with the oldest loose events first.

        Args:
            count: How many.
            taken: Sessions that do not count; those found are added.
            positions_max: Hot positions to look at.
        """
        found: list[SessionState] = []
        hot, sequences = self.hot, self.hot_sequences
        start = self.scan - self.floor
        for index in range(start, min(start + positions_max, len(hot))):
            if len(found) >= count:
                break
            state = hot[index]
            if (
                state not in taken
                and sequences[index] >= state.loose.base
                and state is not LOST
                and state.number not in self.unsealable
            ):
                taken.add(state)
                found.append(state)
        return found

    def drop_before(self, floor: int) -> None:
        """Forget hot positions below a new floor: they are sealed, here or elsewhere."""
        count = floor - self.floor
        if count <= 0:
            return
        for index in range(min(count, len(self.hot))):
            state = self.hot[index]
            loose = state.loose
            sealed = self.hot_sequences[index] + 1
            if sealed > loose.base and state is not LOST:  # sealed by another process
                self._cut_loose(state, sealed)
        self.hot_bytes -= sum(self.hot_sizes[:count])
        del self.hot[:count]
        del self.hot_sequences[:count]
        del self.hot_sizes[:count]
        self.floor = floor
        self.scan = max(self.scan, floor)
        self.kept_from = max(self.kept_from, floor)
        ids = self.ids_by_position
        while ids and ids[0][0] < floor:
            self.ids.pop(ids.popleft()[1], None)

    def _cut_loose(self, state: SessionState, sealed: int) -> None:
        """Events below a sequence are sealed: their records leave memory."""
        loose = state.loose
        count = min(sealed - loose.base, len(loose.positions))
        self.kept_bytes -= sum(
            [len(record) for record in loose.stored(0, count) if record is not None]
        )
        state.loose = loose.cut(sealed)

    def forget(self) -> None:
        """Keep memory inside its bounds (invariant 5): oldest bytes and idle sessions go."""
        while self.kept_bytes > self.bytes_max and self.kept_from <= self.position:
            index = self.kept_from - self.floor
            state = self.hot[index]
            sequence = self.hot_sequences[index]
            record = state.loose.records.get(sequence)
            if record is not None:
                self.kept_bytes -= len(record)
                state.loose.records[sequence] = None
            self.kept_from += 1
        # The oldest first. Not all may be looked at, since those with loose events have to stay.
        for _ in range(min(len(self.states), FORGOTTEN_MAX)):
            if len(self.states) <= self.names_max:
                break
            number, state = next(iter(self.states.items()))
            if not self.forget_idle(state):
                self.states.move_to_end(number)

    def forget_idle(self, state: SessionState) -> bool:
        """Forget a session without loose events while there are too many; whether it went.

        Asked for each that was sealed too: a flood of sessions makes more of them in one commit
        than ``forget`` looks at.
        """
        if (
            len(self.states) <= self.names_max
            or state.loose.positions
            or state.draft_next != state.next
            or self.states.get(state.number) is not state
        ):
            return False
        del self.states[state.number]
        self.names.pop(state.name, None)
        return True


def extension_of(value: bytes, where: str) -> dict[int, Any]:
    """The extension map of a stored record."""
    stop = HEADER_BYTES + int.from_bytes(value[HEADER_BYTES - 4 : HEADER_BYTES], "little")
    if stop > len(value):
        raise CorruptionError("record is shorter than its extension", where=where)
    flags = value[FLAGS_BYTE] | value[FLAGS_BYTE + 1] << 8
    return decode_extension(value[HEADER_BYTES:stop], flags, where)


LOST: Final = SessionState(
    0, SessionRow(0, 0, 0, 0, 0, NO_SEQUENCE, 0, 0, 0, 0, 0, 0, "", "", None), 0
)
