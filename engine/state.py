"""A session's state, now or after an earlier event: the fold, found from as little as can be read.

Invariants:
    1. What is read is one moment of the session: of each step the events below one sequence, and
       rows only with all events on top that they may know of (``staterows``).
    2. A fold starts from the latest one in memory, from the rows when nothing changed a variable
       between its event and them, or from the ``base`` that a purge left; events before that are
       not read.
    3. No transaction is held for more than ``STATE_PAGE_EVENTS`` events that change something and
       one segment, or for one page of rows and those.
    4. Who asks for a part of the state, such as one space, reads the rows and events of that alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from engine.events import Event
from engine.fold import FOLDED_KINDS, Fold, make_fold, read_base
from engine.spaces import KINDS, Space
from engine.staterows import NAMES, WHOLE, StateRows
from engine.variables import StoredVariable, Variable
from eventlog.branching import BranchProjection, encode_branches, rows_of_base, split_key
from eventlog.errors import CorruptionError, SessionGoneError, TrimmedError, UsageError
from eventlog.index import Name
from eventlog.limits import STATE_PAGE_EVENTS
from eventlog.past import Past
from eventlog.record import BASE, BRANCH_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.store import Store

BRANCHES: Final = BranchProjection()
_KINDS: Final[
    dict[int, frozenset[int]]
] = {  # by part of the state, the kinds of events that change it
    WHOLE: FOLDED_KINDS,
    NAMES: frozenset({BRANCH_NAME}),
    **{int(space): frozenset({kind}) for space, kind in KINDS.items()},
}


def read_fold(
    store: Store,
    name: Name,
    sequence: int | None = None,
    *,
    number: int | None = None,
    part: int = WHOLE,
) -> Fold | None:
    """The fold of a session after an event; None when there is no session of that name.

    Args:
        store: The store.
        name: Tenant and session name.
        sequence: The event; None for the newest. The session must have it.
        number: The incarnation that is meant; None for any.
        part: What of the state is wanted: a ``Space``, ``NAMES``, or all of it; the fold has no
            other.

    Raises:
        SessionGoneError: The session was deleted, or deleted and made anew, meanwhile.
        TrimmedError: The event was purged, and so was one after it.
    """
    reading = _Reading(store, name, sequence, number, part)
    while True:
        with store._log.views.past(name) as past:
            known = reading.number
            if past is None or known not in (None, past.view.origin.number):
                if known is None:
                    return None
                raise _gone(name, known, past)
            reading.read(past)
        found = reading.apply()
        if found is not None:
            return found


class _Reading:
    """One reading of a fold, over as many transactions as it takes."""

    def __init__(
        self, store: Store, name: Name, sequence: int | None, number: int | None, part: int
    ) -> None:
        self.number = number
        self._folds = store._folds
        self._name = name
        self._is_newest = sequence is None
        self._sequence = -1 if sequence is None else sequence
        self._part = part
        self._kinds = _KINDS[part]
        self._fold: Fold | None = None
        self._rows: StateRows | None = None  # while they are read
        self._takes_rows = True
        self._settled = -1  # from here on the fold is that of one moment
        self._events: list[Event] = []
        self._following = 0
        self._epoch = (0, 0)

    def read(self, past: Past) -> None:
        """What one transaction gives."""
        if self.number is None:
            self.number = past.view.origin.number
        if self._is_newest and not max(0, past.first - 1) <= self._sequence:
            self._sequence = past.view.event_count - 1
        _require(past, self._name, self._sequence)
        self._epoch = past.view.record.epoch
        if self._rows is not None and self._rows.is_purged(past):
            self._rows = None
        if self._rows is None and (self._fold is None or self._fold.sequence < past.first - 1):
            self._settled = -1
            self._fold = self._start(past)  # what follows the one before may be purged now
        if self._rows is not None:
            self._fold = self._of_rows(past, self._rows)
        if self._fold is not None:
            self._events, self._following = past.read_kinds(
                self._fold.sequence + 1, self._sequence + 1, self._kinds, Event, STATE_PAGE_EVENTS
            )

    def apply(self) -> Fold | None:
        """The fold, once it is that of the wanted event; without a transaction."""
        fold = self._fold
        if fold is None:
            return None
        if self._following - 1 > fold.sequence:
            fold = self._fold = fold.after(self._events, self._following - 1)
            self._events = []
        if fold.sequence >= self._settled:
            assert self.number is not None
            self._folds.add(self.number, fold, self._epoch, self._part)
        return fold if fold.sequence == self._sequence else None

    def _start(self, past: Past) -> Fold | None:
        """The latest fold that is at hand and not after the event; None when rows are better."""
        number, sequence = past.view.origin.number, self._sequence
        self._folds.begin(past.view.record.epoch)
        found = self._folds.find(number, sequence, self._part)
        last_sealed = past.view.sealed - 1
        if self._takes_rows:
            if last_sealed <= sequence:
                # Events since cost more than rows do, but only rows are as many as the state has.
                if found is None or last_sealed - found.sequence > found.entry_count:
                    self._rows = StateRows(past, self._part)
                    return None
            elif found is None and not self._is_changed(past, sequence + 1, last_sealed + 1):
                self._rows = StateRows(past, self._part)
                return None
        if found is not None:
            return found
        if past.first:
            base = read_base(past)
            if base is None:
                raise CorruptionError("was purged and has no base", where=f"session {number}")
            return part_of(base, self._part)
        return Fold()

    def _of_rows(self, past: Past, rows: StateRows) -> Fold | None:
        """The fold that the last page of rows completes; None while there are more."""
        rows.read(past)
        if not rows.is_done:
            return None
        self._rows = None
        if rows.last > self._sequence:
            if self._is_newest:
                self._sequence = past.view.event_count - 1
            elif self._is_changed(past, self._sequence + 1, rows.last + 1):
                self._takes_rows = False  # sealed meanwhile, they are of later
                return self._start(past)
        self._settled = min(rows.last, self._sequence)
        return rows.fold(min(rows.sequence, self._sequence))

    def _is_changed(self, past: Past, start: int, stop: int) -> bool:
        """Whether one of these sealed events changes something; looks as far as the first."""
        found, following = past.read_kinds(start, stop, self._kinds, Event, 1)
        return bool(found) or following < stop


def part_of(fold: Fold, part: int) -> Fold:
    """A fold without the other parts of the state."""
    if part == WHOLE:
        return fold
    spaces = {} if part == NAMES else {Space(part): fold.spaces.get(Space(part), {})}
    return make_fold(fold.sequence, spaces, fold.names if part == NAMES else {})


def _gone(name: Name, number: int, past: Past | None) -> SessionGoneError:
    return SessionGoneError.while_read(
        name[1], number, None if past is None else past.view.origin.number
    )


def _require(past: Past, name: Name, sequence: int) -> None:
    """Raise when what the session was after an event cannot be told any more."""
    if sequence < past.first - 1:
        raise TrimmedError(
            f"the events of session {name[1]!r} below {past.first} were purged", first=past.first
        )


def read_tree(store: Store, name: Name, stop: int, number: int) -> dict[str, Any]:
    """Head and branches of a session before one of its events, as a ``base`` holds them.

    Of a session that was linear up to then it is the head alone.

    Args:
        store: The store.
        name: Tenant and session name.
        stop: Sequence of the event.
        number: The incarnation that is meant.

    Raises:
        SessionGoneError: The session was deleted meanwhile.
        TrimmedError: The event was purged meanwhile.
    """
    rows: dict[bytes, bytes | None] = {}
    following = 0
    while True:
        with store._log.views.past(name) as past:
            if past is None or past.view.origin.number != number:
                raise _gone(name, number, past)
            _require(past, name, stop - 1)
            if following < past.first:  # what was read is purged now, and in the base
                base = past.last_of_kind(BASE, Event)
                if base is None:
                    raise CorruptionError("was purged and has no base", where=f"session {number}")
                rows = dict(rows_of_base(base.body, str(base)))
                following = past.first
            head = past.head(stop, past.row.head)
            if not past.view.branches:
                return {} if head is None else {"head": head}
            events, following = past.read_kinds(
                following, stop, BRANCHES.kinds, Event, STATE_PAGE_EVENTS
            )
            branch = past.head_branch(stop)
        for event in events:
            rows.update(BRANCHES.changes(event))
        if following >= stop:
            break
    made = 1 + max([split_key(subkey, "branch")[1] for subkey in rows], default=0)
    tree = {"branches": encode_branches(rows), "branch_count": made, "head_branch": branch}
    return tree if head is None else {"head": head, **tree}


def state_of(variables: Mapping[str, StoredVariable]) -> dict[str, Any]:
    """The values of all variables by key; a new dict of new values, so it may be changed."""
    return {key: variables[key].value() for key in sorted(variables)}


def variables_of(variables: Mapping[str, StoredVariable], prefix: str) -> list[Variable]:
    """The variables whose keys begin with a prefix, in the order of their keys."""
    if type(prefix) is not str:
        raise UsageError(f"prefix must be a str, not {type(prefix).__name__}")
    return [variables[key].decode() for key in sorted(variables) if key.startswith(prefix)]
