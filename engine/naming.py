"""Names of branches: each leads to one branch, like a bookmark; a branch may have several.

An event of kind ``branch_name`` sets a name, or deletes one: ``{"set": name}`` names the branch
that the event is on, wherever the name led before, ``{"delete": name}`` takes it away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any, Final

from engine.drafting import check_naming
from engine.events import Event
from eventlog.arguments import shown
from eventlog.errors import CorruptionError, InvalidNameError, UsageError
from eventlog.inline import Changes
from eventlog.keys import name_bytes
from eventlog.limits import POSITION_MAX, SESSION_BRANCHES_MAX, TIME_MAX
from eventlog.record import BRANCH_NAME, Record

PROJECTION: Final = 3  # its number in the keys of ``state``
_ROW: Final = Struct("<QQI")  # sequence, recorded time, branch


@dataclass(frozen=True, slots=True)
class BranchName:
    """Where a name leads.

    Attributes:
        name: The name.
        branch: Number of the branch.
        sequence: Sequence of the event that said so.
        updated_us: Its recorded time, µs since the epoch.
    """

    name: str
    branch: int
    sequence: int
    updated_us: int

    @property
    def memory_bytes(self) -> int:
        """About what this takes in memory."""
        return len(self.name) + 250

    def content(self) -> bytes:
        """The content of its row."""
        return _ROW.pack(self.sequence, self.updated_us, self.branch) + self.name.encode()


def new_name(name: object) -> str:
    """A name that a branch may be given: one that cannot be taken for a branch's number.

    Stores and exports may hold others, which were given before this was asked for.

    Raises:
        InvalidNameError: It is none.
    """
    name_bytes(name, "branch name")
    assert type(name) is str, "that is a name"
    if name.isascii() and name.isdigit():
        raise InvalidNameError(
            f"branch name {shown(name)} is a number, which stands for the branch of that number",
            hint="Give a name with another character in it, such as b3.",
        )
    return name


def subkey_of(name: str) -> bytes:
    """The digest that a name's row lies under."""
    return blake2b(name.encode(), digest_size=16, person=b"turnlog-branch").digest()


def decode_row(content: bytes, where: str) -> BranchName:
    """A name from the content of its row.

    Raises:
        CorruptionError: The bytes are none.
    """
    if len(content) <= _ROW.size:
        raise CorruptionError("row is too short", where=where)
    sequence, updated_us, branch = _ROW.unpack_from(content)
    try:
        name = content[_ROW.size :].decode()
    except UnicodeDecodeError as error:
        raise CorruptionError("its name is no text", where=where) from error
    if max(sequence, updated_us) > POSITION_MAX or branch >= SESSION_BRANCHES_MAX:
        raise CorruptionError("row has numbers that cannot be", where=where)
    return BranchName(name, branch, sequence, updated_us)


def named_by(event: Event) -> dict[str, BranchName | None]:
    """What an event of kind ``branch_name`` changes; None for a name that it takes away.

    Raises:
        CorruptionError: Its body is none of that kind.
    """
    body = event.body
    try:
        check_naming(body)
    except UsageError as error:
        raise CorruptionError(f"names no branch: {error}", where=f"{event}") from error
    found: dict[str, BranchName | None] = {}
    if "delete" in body:
        found[body["delete"]] = None
    if "set" in body:
        name = body["set"]
        found[name] = BranchName(name, event.branch, event.sequence, event.recorded_us)
    return found


def encode_names(names: Iterable[BranchName]) -> list[list[Any]]:
    """Names as the body of a ``base`` event holds them, in their order."""
    return [
        [each.name, each.branch, each.sequence, each.updated_us]
        for each in sorted(names, key=lambda each: each.name)
    ]


def decode_names(listed: Any, where: str) -> dict[str, BranchName]:
    """The names of a ``base`` event's body.

    Raises:
        CorruptionError: They are none.
    """
    found: dict[str, BranchName] = {}
    try:
        for name, branch, sequence, updated_us in listed or ():
            check_naming({"set": name})
            numbers = (branch, sequence, updated_us)
            if any([type(each) is not int or each < 0 for each in numbers]):
                raise ValueError("a number is none")
            if branch >= SESSION_BRANCHES_MAX or max(numbers) > TIME_MAX:
                raise ValueError("a number is out of range")
            found[name] = BranchName(name, branch, sequence, updated_us)
    except (TypeError, ValueError) as error:
        raise CorruptionError(f"holds no names: {error}", where=where) from error
    return found


class NamesProjection:
    """A row for each name, under its digest."""

    number = PROJECTION
    kinds = frozenset({BRANCH_NAME})

    def changes(self, event: Record) -> Changes:
        """See ``InlineProjection``."""
        found = named_by(_event(event))
        return {
            subkey_of(name): None if each is None else each.content()
            for name, each in found.items()
        }

    def base(self, event: Record) -> Changes:
        """See ``InlineProjection``."""
        body = _event(event).body
        names = decode_names(body.get("names") if type(body) is dict else None, f"{event}")
        return {subkey_of(name): each.content() for name, each in names.items()}

    def check(self, event: Record) -> None:
        """See ``InlineProjection``; ``changes`` and ``base`` look at all of it."""

    def sequence_of(self, content: bytes) -> int:
        """See ``InlineProjection``."""
        return decode_row(content, "branch name").sequence


def by_branch(names: Mapping[str, BranchName]) -> dict[int, list[str]]:
    """The names of each branch, oldest first."""
    found: dict[int, list[str]] = {}
    for each in sorted(names.values(), key=lambda each: each.sequence):
        found.setdefault(each.branch, []).append(each.name)
    return found


def _event(record: Record) -> Event:
    return Event(record.origin, record.sequence, record.head, record.extension, record.payload)
