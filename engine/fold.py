"""The fold of a session: what its control events add up to after one of its events; pure.

Invariants:
    1. A fold never changes; the next event makes another one, which shares what stayed the same.
    2. It depends on the events up to its sequence alone: not on what is sealed, nor on options.
    3. Folds in memory take at most ``FOLDS_BYTES_MAX``; the least recently used ones go, and with
       a removal all from before it: a read that began before leaves none here any more.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from engine.attached import attached
from engine.events import Event
from engine.naming import BranchName, decode_names, encode_names, named_by
from engine.spaces import SPACES, Space
from engine.variables import (
    StoredVariable,
    changed_by,
    decode_variables,
    encode_variables,
)
from eventlog.errors import CorruptionError
from eventlog.limits import BASE_BYTES_TARGET, EVENT_BLOBS_MAX, FOLDS_BYTES_MAX, POSITION_MAX
from eventlog.log import Log
from eventlog.past import Past
from eventlog.record import BASE, BRANCH_NAME

FOLDED_KINDS: Final = frozenset({*SPACES, BRANCH_NAME})
Values = Mapping[str, StoredVariable]
"""What a space holds, by key."""
_NOTHING: Final[Values] = MappingProxyType({})
_NO_SPACES: Final[Mapping[Space, Values]] = MappingProxyType({})
_NO_NAMES: Final[Mapping[str, BranchName]] = MappingProxyType({})
_FOLD_BYTES: Final = 400  # of a fold without anything
_ENTRY_BYTES: Final = 100  # of a mapping, for each entry


@dataclass(frozen=True, slots=True)
class Fold:
    """A session after the event at ``sequence``; -1 before its first one.

    Attributes:
        sequence: The last event that is in it.
        spaces: What each space holds; those that hold nothing may be missing.
        names: The names of branches.
    """

    sequence: int = -1
    spaces: Mapping[Space, Values] = field(default_factory=lambda: _NO_SPACES)
    names: Mapping[str, BranchName] = field(default_factory=lambda: _NO_NAMES)
    memory_bytes: int = field(default=_FOLD_BYTES, compare=False)

    @property
    def entry_count(self) -> int:
        """How many keys and names are in it."""
        return sum(map(len, self.spaces.values())) + len(self.names)

    def after(self, events: Iterable[Event], sequence: int) -> Fold:
        """The fold after more events.

        Args:
            events: Those of the kinds ``FOLDED_KINDS`` among the following ones, in order.
            sequence: The last event, of whatever kind.

        Raises:
            CorruptionError: The body of an event is none of its kind.
        """
        changes: dict[Space, dict[str, StoredVariable | None]] = {}
        named: dict[str, BranchName | None] = {}
        for event in events:
            if event.kind_code == BRANCH_NAME:
                named.update(named_by(event))
            else:
                changes.setdefault(SPACES[event.kind_code], {}).update(changed_by(event))
        if not changes and not named:
            return replace(self, sequence=sequence)
        spaces = dict(self.spaces)
        size = self.memory_bytes
        for space, changed in changes.items():
            before = spaces.get(space, _NOTHING)
            after: dict[str, StoredVariable] = dict(before)
            for key, each in changed.items():
                size -= 0 if (old := after.pop(key, None)) is None else _size_of(old)
                if each is not None:
                    after[key] = each
                    size += _size_of(each)
            spaces[space] = MappingProxyType(after)
        names = {**self.names, **named}
        kept = {name: where for name, where in names.items() if where is not None}
        size += sum(map(_size_of, kept.values())) - sum(map(_size_of, self.names.values()))
        return Fold(sequence, MappingProxyType(spaces), MappingProxyType(kept), size)


def values_in(fold: Fold, space: Space) -> Values:
    """What a space holds, by key."""
    return fold.spaces.get(space, _NOTHING)


def make_fold(
    sequence: int,
    spaces: Mapping[Space, Values],
    names: Mapping[str, BranchName] = _NO_NAMES,
) -> Fold:
    """A fold of what spaces hold, and of names."""
    size = _FOLD_BYTES + sum(map(_size_of, names.values()))
    for values in spaces.values():
        size += sum(map(_size_of, values.values()))
    return Fold(
        sequence,
        MappingProxyType({space: MappingProxyType(dict(each)) for space, each in spaces.items()}),
        MappingProxyType(dict(names)),
        size,
    )


def _size_of(each: StoredVariable | BranchName) -> int:
    return _ENTRY_BYTES + each.memory_bytes


def encode_base(fold: Fold, tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The bodies of ``base`` events: the fold as of the last event that a purge removes.

    There is one of them, or several with at most ``BASE_BYTES_TARGET`` each, or one variable, and
    with at most ``EVENT_BLOBS_MAX`` contents that their values name, which ``contents`` lists. All
    but the last say how many follow; the last has what is not of variables.

    Args:
        fold: The fold.
        tree: Head and branches then (``state.read_tree``).
    """
    parts: list[dict[Space, list[StoredVariable]]] = [{}]
    contents: list[list[str]] = [[]]
    size = 0
    for space in sorted(fold.spaces):
        for key in sorted(fold.spaces[space]):
            each = fold.spaces[space][key]
            named = _content_of(space, each)
            is_new = named is not None and named not in contents[-1]
            size += each.memory_bytes
            if parts[-1] and (
                size > BASE_BYTES_TARGET or (is_new and len(contents[-1]) == EVENT_BLOBS_MAX)
            ):
                parts.append({})
                contents.append([])
                size = each.memory_bytes
            parts[-1].setdefault(space, []).append(each)
            if named is not None and named not in contents[-1]:
                contents[-1].append(named)
    bodies = [_base_of(fold.sequence, part) for part in parts]
    for body, names in zip(bodies, contents, strict=True):
        if names:
            body["contents"] = names
    for following, body in enumerate(reversed(bodies)):
        if following:
            body["following"] = following
    bodies[-1] |= {**_names_in(fold), **tree}
    return bodies


def whole_base(fold: Fold) -> dict[str, Any]:
    """The same in one body, however large: what an export tells of purged events."""
    spaces = {space: each.values() for space, each in sorted(fold.spaces.items())}
    return {**_base_of(fold.sequence, spaces), **_names_in(fold)}


def _base_of(last: int, spaces: Mapping[Space, Iterable[StoredVariable]]) -> dict[str, Any]:
    body: dict[str, Any] = {"last": last, "variables": []}
    for space, values in spaces.items():
        listed = encode_variables(values)
        if listed:
            body[space.title] = listed
    return body


def _content_of(space: Space, stored: StoredVariable) -> str | None:
    """The name of the content that an artifact's version has in a blob."""
    if space is not Space.ARTIFACTS:
        return None
    value = stored.value()
    content = value.get("content") if type(value) is dict else None
    return content if type(content) is str else None


def _names_in(fold: Fold) -> dict[str, Any]:
    return {"names": encode_names(fold.names.values())} if fold.names else {}


def tree_in(base: Mapping[str, Any]) -> dict[str, Any]:
    """Head and branches in the body of a ``base`` event."""
    keys = ("head", "branches", "branch_count", "head_branch")
    return {key: base[key] for key in keys if key in base}


def decode_base(event: Event) -> Fold:
    """The fold that a ``base`` event holds, or its share of it.

    Raises:
        CorruptionError: Its body is none of a base.
    """
    last = _last_of(event)
    body, where = event.body, f"{event}"
    return make_fold(last, spaces_of_base(body, where), decode_names(body.get("names"), where))


def _last_of(event: Event) -> int:
    body = event.body
    last = body.get("last") if type(body) is dict else None
    if type(last) is not int or not -1 <= last <= POSITION_MAX:
        raise CorruptionError("is no base", where=f"{event}")
    return last


def spaces_of_base(body: Mapping[str, Any], where: str) -> dict[Space, Values]:
    """What spaces hold according to the body of a ``base`` event.

    Raises:
        CorruptionError: It says that in another shape.
    """
    return {
        space: decode_variables(body.get(space.title, []), where)
        for space in Space
        if space.title in body or space is Space.VARIABLES
    }


def read_base(past: Past) -> Fold | None:
    """The fold that a session's newest purge left, from all its ``base`` events.

    Raises:
        CorruptionError: The body of one is none of a base.
    """
    parts = base_parts(past)
    if not parts:
        return None
    fold = decode_base(parts[0])
    if len(parts) == 1:
        return fold
    spaces = {space: dict(values) for space, values in fold.spaces.items()}
    for part in parts[1:]:
        for space, values in decode_base(part).spaces.items():
            spaces.setdefault(space, {}).update(values)
    return make_fold(fold.sequence, spaces, fold.names)


def base_parts(past: Past) -> list[Event]:
    """The ``base`` events of a session's newest purge, last one first; none when there was none.

    Raises:
        CorruptionError: The body of one is none of a base.
    """
    base = past.last_of_kind(BASE, Event)
    if base is None:
        return []
    found = [base]
    last = _last_of(base)
    for sequence in range(base.sequence - 1, past.first - 1, -1):
        part = past.event(sequence, Event)
        if part.kind_code != BASE or _last_of(part) != last:
            break
        found.append(part)
    return found


class FoldCache:
    """Folds by session number, part of the state and sequence; from any thread (invariant 3)."""

    def __init__(self, bytes_max: int = FOLDS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.byte_count = 0
        self._lock = threading.Lock()
        self._folds: OrderedDict[tuple[int, int, int], Fold] = OrderedDict()
        self._sequences: dict[tuple[int, int], list[int]] = {}  # by session number and part
        self._epoch = (0, 0)

    def begin(self, epoch: tuple[int, int]) -> None:
        """Forget everything when something was removed since the last time.

        Args:
            epoch: ``CommitRecord.epoch`` of a transaction.
        """
        with self._lock:
            self._begin(epoch)

    def _begin(self, epoch: tuple[int, int]) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            self._clear()

    def find(self, number: int, sequence: int, part: int) -> Fold | None:
        """The latest fold of a part of a session's state that is not after a sequence."""
        with self._lock:
            sequences = self._sequences.get((number, part), [])
            place = bisect_right(sequences, sequence)
            if not place:
                return None
            key = (number, part, sequences[place - 1])
            self._folds.move_to_end(key)
            return self._folds[key]

    def add(self, number: int, fold: Fold, epoch: tuple[int, int], part: int) -> None:
        """Keep a fold, unless something was removed since.

        Args:
            number: The session.
            fold: A fold of it.
            epoch: That of the last transaction whose events are in it.
            part: What of the state it has (``state``).
        """
        key = (number, part, fold.sequence)
        if fold.sequence < 0 or fold.memory_bytes * 4 > self.bytes_max:
            return
        with self._lock:
            self._begin(epoch)
            if epoch < self._epoch or key in self._folds:
                return
            self._folds[key] = fold
            insort(self._sequences.setdefault((number, part), []), fold.sequence)
            self.byte_count += fold.memory_bytes
            while self.byte_count > self.bytes_max:
                self._drop(next(iter(self._folds)))

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        self._folds.clear()
        self._sequences.clear()
        self.byte_count = 0

    def _drop(self, key: tuple[int, int, int]) -> None:
        self.byte_count -= self._folds.pop(key).memory_bytes
        number, part, sequence = key
        sequences = self._sequences[number, part]
        sequences.remove(sequence)
        if not sequences:
            del self._sequences[number, part]


def folds_of(log: Log) -> FoldCache:
    """The folds of a log, which all stores that share it share too."""
    return attached(log, _make_folds)


def _make_folds(log: Log) -> FoldCache:
    made = FoldCache()
    log.cache.on_begin.append(made.begin)
    return made
