"""Roles: which named database serves as which table; pure.

A derived table is rebuilt beside the one that serves, in the database that is ``spare``; then the
two change roles in one commit, by one word of the commit record.

Invariants:
    1. The word is a permutation of ``ROLES``, 0 while each role has the database of its own name.
    2. A transaction's word says which databases serve in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from eventlog.errors import CorruptionError

ROLES: Final = ("name", "key", "id", "activity", "state", "spare")
REBUILT: Final = ROLES[:-1]
SPARE: Final = ROLES[-1]
_BITS: Final = 4  # of each role's place: the number of its database, exclusive-or its own
_REBUILDING_SHIFT: Final = 56  # above it: 1 + the role that is being rebuilt, 0 for none


def _places(word: int) -> list[int]:
    places = [(word >> _BITS * place & 15) ^ place for place in range(len(ROLES))]
    if sorted(places) != list(range(len(ROLES))) or word >> _REBUILDING_SHIFT > len(REBUILT):
        raise CorruptionError(f"roles {word:x} cannot be", where="commit record")
    return places


def _word(places: list[int], rebuilding: int) -> int:
    word = rebuilding << _REBUILDING_SHIFT
    for place, number in enumerate(places):
        word |= (number ^ place) << _BITS * place
    return word


def serving(word: int, tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """The named databases by the roles that they have.

    Args:
        word: The commit record's ``roles``.
        tables: The databases by their own names.

    Raises:
        CorruptionError: The word is none.
    """
    if not word:
        return tables
    changed = dict(tables)
    for role, place in zip(ROLES, _places(word), strict=True):
        changed[role] = tables[ROLES[place]]
    return changed


def rebuilding(word: int) -> str | None:
    """The role that is being rebuilt."""
    number = word >> _REBUILDING_SHIFT
    return REBUILT[number - 1] if number else None


def place_of(word: int, role: str) -> int:
    """Number of the database that serves as a role."""
    return _places(word)[ROLES.index(role)]


def begin(word: int, role: str) -> int:
    """The word while a role is being rebuilt."""
    return _word(_places(word), 1 + REBUILT.index(role))


def swap(word: int, role: str) -> int:
    """The word after the spare database took over a role."""
    places = _places(word)
    own, spare = ROLES.index(role), ROLES.index(SPARE)
    places[own], places[spare] = places[spare], places[own]
    return _word(places, 0)
