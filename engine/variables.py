"""Variables: a session's state, one record per key, set and deleted by ``variables`` events.

The body of such an event says what changed: ``{"set": {key: value}, "delete": [key, ...]}``, any
part left out when it is empty. A variable's row lies in ``state`` under a digest of its key
(FORMAT.md, "Variables") and is written when the event is sealed. What other spaces hold
(``spaces``) is set, stored and read in the same way. A third part, ``"append": {prefix: value}``,
gives a value a key that nobody has: the prefix and the event's sequence. Values that are appended
in a space whose events belong to others (``record.BELONGS``) are kept with ``event``, the sequence
of the event that theirs belongs to, and its ``branch``.

Invariants:
    1. An event changes the keys that it names, or makes, and no others; a value is replaced whole.
    2. None is a value; only ``delete`` takes a key away.
    3. Values are kept encoded and decoded for whoever asks, so that nobody can change another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any, Final

from engine.events import Event
from engine.spaces import Space
from eventlog.ack import Version
from eventlog.arguments import shown, whole
from eventlog.body import Fixes, decode_body, encode_body, encode_plain
from eventlog.errors import CorruptionError, InvalidMessageError, LimitExceededError, UsageError
from eventlog.keys import name_bytes
from eventlog.limits import POSITION_MAX, TIME_MAX
from eventlog.record import BELONGS

DIGEST_BYTES: Final = 16
_ROW: Final = Struct("<QQ")  # sequence and recorded time
_PARTS: Final = frozenset({"set", "delete", "append"})
DIGITS: Final = 19  # of a sequence in a key that was appended, so that keys rise with it


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable as it stands.

    Attributes:
        key: Its key.
        value: Its value, a copy of the caller's own.
        updated_us: Recorded time of the event that set it, µs since the epoch.
        sequence: Sequence of that event: the version of the variable, which only rises.
    """

    key: str
    value: Any
    updated_us: int
    sequence: int


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """A variable with its value as it is stored; never changes."""

    key: str
    updated_us: int
    sequence: int
    data: bytes
    fixes: Fixes | None

    @property
    def memory_bytes(self) -> int:
        """About what this takes in memory."""
        return len(self.data) + len(self.key) + 300

    def decode(self) -> Variable:
        """The variable with its value, each time a new one."""
        return Variable(self.key, self.value(), self.updated_us, self.sequence)

    def value(self) -> Any:
        """The value, each time a new one."""
        return decode_body(self.data, self.fixes, where=self)

    def __str__(self) -> str:
        return f"variable {self.key!a}"

    def content(self) -> bytes:
        """The content of its row."""
        rest = encode_plain([self.key, self.data, self.fixes])
        return _ROW.pack(self.sequence, self.updated_us) + rest


def decode_row(content: bytes, where: str) -> StoredVariable:
    """A variable from the content of its row.

    Raises:
        CorruptionError: The bytes are none.
    """
    if len(content) <= _ROW.size:
        raise CorruptionError("row is too short", where=where)
    sequence, recorded_us = _ROW.unpack_from(content)
    details = decode_body(content[_ROW.size :], where=where)
    if (
        type(details) is not list
        or len(details) != 3
        or type(details[0]) is not str
        or type(details[1]) is not bytes
        or type(details[2]) not in (list, type(None))
        or max(sequence, recorded_us) > POSITION_MAX
    ):
        raise CorruptionError("row has other details", where=where)
    return StoredVariable(details[0], recorded_us, sequence, details[1], details[2])


def subkey_of(key: str) -> bytes:
    """The digest that a variable's row lies under."""
    return blake2b(key.encode(), digest_size=DIGEST_BYTES, person=b"turnlog-variable").digest()


def appended_key(prefix: str, sequence: int) -> str:
    """The key that an event gives to what it appends under a prefix."""
    return f"{prefix}{sequence:0{DIGITS}d}"


def change_body(
    changes: dict[str, Any], delete: Iterable[str], append: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The body of an event that sets, deletes and appends variables.

    Raises:
        UsageError: Keys that cannot be, or one that is both set and deleted.
    """
    if type(changes) is not dict:
        raise UsageError(f"variables to set must be a dict, not {shown(changes)}")
    body: dict[str, Any] = {}
    if changes:
        body["set"] = changes
    deleted = list(delete)
    if deleted:
        body["delete"] = deleted
    if append:
        body["append"] = append
    check_change(body)
    return body


_NOUNS: Final = {  # of a key of each space
    Space.VARIABLES: "variable",
    Space.FACTS: "fact",
    Space.DOCUMENTS: "document",
    Space.USAGE: "usage record",
    Space.ARTIFACTS: "artifact",
    Space.RUNS: "run",
    Space.TOOL_CALLS: "tool call",
}

assert set(_NOUNS) == set(Space)


def versions_of(
    space: Space, expected: Mapping[str, int], what: str | None = None
) -> list[Version]:
    """Conditions on keys of a space: each key's version, -1 for none.

    Args:
        space: The space.
        expected: Versions by key.
        what: What refusals call each of them; None for what the space holds, with the key.

    Raises:
        UsageError: A key or a version that cannot be.
    """
    if type(expected) is not dict:
        raise UsageError(f"expected versions must be a dict, not {shown(expected)}")
    found: list[Version] = []
    for key, sequence in expected.items():
        name_bytes(key, "variable")
        whole(sequence, "expected version", -1, POSITION_MAX)
        found.append(Version(space, subkey_of(key), sequence, what or f"{_NOUNS[space]} {key!r}"))
    return found


def check_change(body: Any) -> None:
    """Raise for what is no body of an event that changes a space.

    Raises:
        UsageError: It is none; says why.
    """
    if type(body) is not dict or not body.keys() <= _PARTS:
        raise UsageError(
            "variables are changed by a dict with 'set', 'delete', 'append' and nothing else"
        )
    changes, deleted, appended = body.get("set", {}), body.get("delete", []), body.get("append", {})
    if type(changes) is not dict or type(deleted) is not list or type(appended) is not dict:
        raise UsageError(
            "'set' and 'append' must be dicts of variables, and 'delete' a list of keys"
        )
    for prefix in appended:
        if type(prefix) is not str:
            raise UsageError(f"a prefix must be a str, not {shown(prefix)}")
        name_bytes(appended_key(prefix, 0), "variable")
    seen = set(changes)
    for key in changes:
        name_bytes(key, "variable")
    for key in deleted:
        name_bytes(key, "variable")
        if key in seen:
            raise UsageError(f"variable {key!r} stands twice in one change")
        seen.add(key)


def changed_by(event: Event) -> dict[str, StoredVariable | None]:
    """What an event changes in its space; None for a key that it deletes.

    Raises:
        CorruptionError: Its body is none of that kind.
    """
    body = event.body
    try:
        check_change(body)
    except UsageError as error:
        raise CorruptionError(f"is no change of variables: {error}", where=f"{event}") from error
    found: dict[str, StoredVariable | None] = {}
    for key, value in body.get("set", {}).items():
        found[key] = store_value(key, value, event.recorded_us, event.sequence)
    for key in body.get("delete", []):
        found[key] = None
    for prefix, value in body.get("append", {}).items():
        key = appended_key(prefix, event.sequence)
        if event.kind_code in BELONGS and type(value) is dict and event.parent is not None:
            value = {**value, "event": event.parent, "branch": event.branch}
        found[key] = store_value(key, value, event.recorded_us, event.sequence)
    return found


def store_value(key: str, value: Any, updated_us: int, sequence: int) -> StoredVariable:
    """A variable as it is kept."""
    data, fixes = encode_body(value)
    return StoredVariable(key, updated_us, sequence, data, fixes)


def encode_variables(variables: Iterable[StoredVariable]) -> list[list[Any]]:
    """Variables as the body of a ``base`` event holds them, in the order of keys.

    Values stay encoded: within a base they would be nested deeper than in the event that set them.
    """
    return [
        [each.key, each.data, each.fixes, each.updated_us, each.sequence]
        for each in sorted(variables, key=lambda each: each.key)
    ]


def decode_variables(listed: Any, where: str) -> dict[str, StoredVariable]:
    """The variables of a ``base`` event's body.

    Raises:
        CorruptionError: They are none.
    """
    found: dict[str, StoredVariable] = {}
    try:
        for key, data, fixes, updated_us, sequence in listed:
            name_bytes(key, "variable")
            if type(data) is not bytes or type(fixes) not in (list, type(None)):
                raise TypeError("a value is not encoded")
            if type(updated_us) is not int or type(sequence) is not int:
                raise TypeError("a time or sequence is no integer")
            if not (0 <= updated_us <= TIME_MAX and 0 <= sequence <= POSITION_MAX):
                raise ValueError("a time or sequence is out of range")
            value = decode_body(data, fixes, where=where)
            found[key] = store_value(key, value, updated_us, sequence)
    except (TypeError, ValueError, InvalidMessageError, LimitExceededError) as error:
        raise CorruptionError(f"holds no variables: {error}", where=where) from error
    return found
