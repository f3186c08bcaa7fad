"""Where values of a session's spaces are read from: the session as it is, or as it was.

Of the present one key is one row, found by its digest in ``state``, with what is loose on top
(``eventlog.present``): the rest of the state is not read. All values of a space are a fold of that
space alone (``state``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from engine import naming
from engine.attached import attached
from engine.catalog import catalog_of
from engine.fold import Fold, values_in
from engine.naming import BranchName, NamesProjection
from engine.projections import SPACE_PROJECTIONS
from engine.spaces import Space
from engine.state import read_fold
from engine.staterows import NAMES
from engine.variables import StoredVariable, decode_row, subkey_of
from eventlog.errors import CorruptionError, SessionGoneError
from eventlog.index import Name
from eventlog.log import Log
from eventlog.past import Past
from eventlog.present import PresentRows

if TYPE_CHECKING:
    from engine.store import Store

_NOTHING: Final[Mapping[str, StoredVariable]] = MappingProxyType({})


class Values(Protocol):
    """The values of a session, now or after one of its events."""

    def all(self, space: Space) -> Mapping[str, StoredVariable]:
        """What a space holds, by key."""

    def one(self, space: Space, key: str) -> StoredVariable | None:
        """What a space holds under a key."""

    def branch(self, name: str) -> BranchName | None:
        """Where the name of a branch leads."""


class Present:
    """The values of a session as it is when they are asked for; none without a session.

    Args:
        store: The store.
        name: Tenant and session name.
        number: The incarnation that is meant; None for whichever there is. Of another one every
            call raises ``SessionGoneError``, so that what several calls give is of one.
    """

    __slots__ = ("_name", "_number", "_store")

    def __init__(self, store: Store, name: Name, number: int | None = None) -> None:
        self._store = store
        self._name = name
        self._number = number

    def all(self, space: Space) -> Mapping[str, StoredVariable]:
        """See ``Values``."""
        fold = read_fold(self._store, self._name, number=self._number, part=space)
        return _NOTHING if fold is None else values_in(fold, space)

    def one(self, space: Space, key: str) -> StoredVariable | None:
        """See ``Values``.

        Raises:
            CorruptionError: Its row is damaged, or what may be its row, or a loose event.
        """
        rows = self._store._rows[space]
        with self._past() as past:
            content = None if past is None else past.present_row(rows, subkey_of(key))
        if content is None:
            return None
        where = f"{space.title} {key!a} of session {self._name[1]!a}"
        stored = decode_row(content, where)
        if stored.key != key:
            raise CorruptionError("holds another variable", where=where)
        return stored

    def branch(self, name: str) -> BranchName | None:
        """See ``Values``."""
        with self._past() as past:
            return None if past is None else named_branch(self._store, past, name)

    @contextmanager
    def _past(self) -> Iterator[Past | None]:
        with self._store._log.views.past(self._name) as past:
            current = None if past is None else past.view.origin.number
            if self._number not in (None, current):
                raise SessionGoneError.while_read(self._name[1], self._number, current)
            yield past


class AsOf:
    """The values of a session after one of its events.

    Args:
        folded: Gives the fold; raises once that moment cannot be told any more.
    """

    __slots__ = ("_folded",)

    def __init__(self, folded: Callable[[], Fold]) -> None:
        self._folded = folded

    def all(self, space: Space) -> Mapping[str, StoredVariable]:
        """See ``Values``."""
        return values_in(self._folded(), space)

    def one(self, space: Space, key: str) -> StoredVariable | None:
        """See ``Values``."""
        return self.all(space).get(key)

    def branch(self, name: str) -> BranchName | None:
        """See ``Values``."""
        return self._folded().names.get(name)


def named_branch(store: Store, past: Past, name: str) -> BranchName | None:
    """Where the name of a branch leads in one transaction's view of a session.

    A text with a lone surrogate leads nowhere: no branch can be given it.

    Raises:
        CorruptionError: Its row is damaged, or what may be its row, or a loose event.
    """
    try:
        subkey = naming.subkey_of(name)
    except UnicodeEncodeError:
        return None
    content = past.present_row(store._rows[NAMES], subkey)
    if content is None:
        return None
    where = f"branch {name!a} of session {past.view.origin.name!a}"
    found = naming.decode_row(content, where)
    if found.name != name:
        raise CorruptionError("is another name", where=where)
    return found


def rows_of(log: Log) -> Mapping[int, PresentRows]:
    """The present rows of each part of the state; all stores that share a log share them too."""
    return attached(log, _make_rows)


def _make_rows(log: Log) -> Mapping[int, PresentRows]:
    made = {
        int(space): PresentRows(each)
        for space, each in SPACE_PROJECTIONS.items()
        if space is not Space.FACTS
    }
    made[NAMES] = PresentRows(NamesProjection())
    for each in made.values():
        log.cache.on_begin.append(each.begin)
        log.cache.on_clear.append(each.clear)
    return {**made, Space.FACTS: catalog_of(log).present}
