"""A session's state, now or after an earlier event: the fold, found from as little as can be read.

Invariants:
    1. What is read is one moment of the session: of each step the events below one sequence, and
       for the present the rows and the loose events of one transaction.
    2. A fold starts from the latest one in memory, from the rows when nothing changed a variable
       between its event and them, or from the ``base`` that a purge left; events before that are
       not read.
    3. No transaction is held for more than ``STATE_PAGE_EVENTS`` events that change something and
       one segment, or for the rows of the session: those are of one moment, and read in one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from engine import naming
from engine.events import Event
from engine.fold import FOLDED_KINDS, Fold, make_fold, read_base
from engine.naming import BranchName
from engine.spaces import Space
from engine.variables import StoredVariable, Variable, decode_row, subkey_of
from eventlog.branching import BranchProjection, encode_branches, rows_of_base, split_key
from eventlog.errors import CorruptionError, SessionGoneError, TrimmedError, UsageError
from eventlog.index import Name
from eventlog.keys import U64
from eventlog.limits import STATE_PAGE_EVENTS
from eventlog.past import Past
from eventlog.record import BASE

if TYPE_CHECKING:
    from engine.store import Store

BRANCHES: Final = BranchProjection()


def read_fold(
    store: Store, name: Name, sequence: int | None = None, *, number: int | None = None
) -> Fold | None:
    """The fold of a session after an event; None when there is no session of that name.

    Args:
        store: The store.
        name: Tenant and session name.
        sequence: The event; None for the newest. The session must have it.
        number: The incarnation that is meant; None for any.

    Raises:
        SessionGoneError: The session was deleted, or deleted and made anew, meanwhile.
        TrimmedError: The event was purged, and so was one after it.
    """
    fold: Fold | None = None
    while True:
        with store._log.views.past(name) as past:
            if past is None or number not in (None, past.view.origin.number):
                if number is None:
                    return None
                raise _gone(name, number, past)
            number = past.view.origin.number
            if sequence is None:
                sequence = past.view.event_count - 1
            _require(past, name, sequence)
            if fold is None or fold.sequence < past.first - 1:  # what follows it may be purged now
                fold = _start(store, past, sequence)
            epoch = past.view.record.epoch
            events, following = past.read_kinds(
                fold.sequence + 1, sequence + 1, FOLDED_KINDS, Event, STATE_PAGE_EVENTS
            )
        if fold.sequence == sequence:
            return fold
        fold = fold.after(events, following - 1)
        store._folds.add(number, fold, epoch)
        if fold.sequence == sequence:
            return fold


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


def _start(store: Store, past: Past, sequence: int) -> Fold:
    """The latest fold that is at hand and not after a sequence (invariant 2)."""
    number = past.view.origin.number
    store._folds.begin(past.view.record.epoch)
    found = store._folds.find(number, sequence)
    last_sealed = past.view.sealed - 1
    if last_sealed <= sequence and (found is None or found.sequence < last_sealed):
        return _fold_of_rows(past, last_sealed)
    if found is not None:
        return found
    if sequence < last_sealed and not _is_changed(past, sequence + 1, last_sealed + 1):
        return _fold_of_rows(past, sequence)
    if past.first:
        base = read_base(past)
        if base is None:
            raise CorruptionError("was purged and has no base", where=f"session {number}")
        return base
    return Fold()


def _is_changed(past: Past, start: int, stop: int) -> bool:
    """Whether one of these sealed events changes a variable; looks as far as the first."""
    found, following = past.read_kinds(start, stop, FOLDED_KINDS, Event, 1)
    return bool(found) or following < stop


def _fold_of_rows(past: Past, sequence: int) -> Fold:
    """The fold after a sealed event, as the rows tell it: none after it changes anything."""
    if not past.tables.has("state"):
        return Fold(sequence)
    number = past.view.origin.number
    prefix = U64.pack(number)
    spaces: dict[Space, dict[str, StoredVariable]] = {}
    names: dict[str, BranchName] = {}
    for key, content in past.tables.contents("state", prefix):
        where = f"state {key.hex()}"
        if len(key) <= len(prefix):
            raise CorruptionError("key has another size", where=where)
        projection, subkey = key[len(prefix)], key[len(prefix) + 1 :]
        if projection == naming.PROJECTION:
            name = naming.decode_row(content, where)
            names[name.name] = name
            wanted = naming.subkey_of(name.name)
        elif projection != BRANCHES.number:
            stored = decode_row(content, where)
            spaces.setdefault(_space(projection, where), {})[stored.key] = stored
            wanted = subkey_of(stored.key)
        else:
            continue
        if subkey != wanted:
            raise CorruptionError("holds another variable", where=where)
    return make_fold(sequence, spaces, names)


def _space(projection: int, where: str) -> Space:
    try:
        return Space(projection)
    except ValueError as error:
        raise CorruptionError("is of no space", where=where) from error


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


def state_of(fold: Fold | None) -> dict[str, Any]:
    """The values of all variables by key; a new dict of new values, so it may be changed."""
    if fold is None:
        return {}
    variables = fold.variables
    return {key: variables[key].value() for key in sorted(variables)}


def variables_of(fold: Fold | None, prefix: str) -> list[Variable]:
    """The variables whose keys begin with a prefix, in the order of their keys."""
    if type(prefix) is not str:
        raise UsageError(f"prefix must be a str, not {type(prefix).__name__}")
    if fold is None:
        return []
    return [
        fold.variables[key].decode() for key in sorted(fold.variables) if key.startswith(prefix)
    ]
