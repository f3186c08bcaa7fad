"""Branches: what is known of a session whose public events do not simply follow each other.

A session is *linear* while each public event follows the public event before it. All of them are
on branch 0 then, and nothing is kept about that. It *branches* from the first event on that has
another parent, or from the first move of its head. An event whose parent is the tip of a branch
continues that branch; any other parent opens a new one.

Two rows stand for a branch of a session that branches, in ``state`` under ``PROJECTION``: what
opened it, and its tip. Each is made by one event alone (``inline``): the opening by the event that
carries ``Flag.OPENS_BRANCH``, the tip by the newest event of the branch. Branch 0 has no opening.

Invariants:
    1. Branch numbers count from 0 in the order of opening and are never used again.
    2. An opening never changes, so the path to an event is the same for ever.
    3. What is kept here in memory may be newer than a reader's transaction, and is never older: it
       tells of the loose events, the rows of the sealed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventlog.body import decode_body
from eventlog.errors import CorruptionError
from eventlog.limits import POSITION_MAX, SESSION_BRANCHES_MAX
from eventlog.record import (
    BRANCH_BYTE,
    CONTROL,
    FLAGS_BYTE,
    HEAD_MOVE,
    KIND_BYTE,
    NO_PARENT,
    OFFSET_BYTE,
    PARENT_BYTE,
    Extension,
    Flag,
    Record,
    decode_extension,
)

if TYPE_CHECKING:
    from eventlog.rows import SessionRow

PROJECTION: Final = 2  # its number in the keys of ``state``
OPENS_BRANCH: Final = int(Flag.OPENS_BRANCH)
_OPENS_HIGH: Final = OPENS_BRANCH >> 8  # in the flags' second byte
_OPENING: Final = Struct("<QQIQ")  # sequence, parent, the parent's branch, recorded time
_TIP: Final = Struct("<QQ")  # sequence, recorded time
_NUMBER: Final = Struct(">BI")  # which row, and the branch
OPENINGS: Final = 0
TIPS: Final = 1
SUBKEY_BYTES: Final = _NUMBER.size
_NO_BRANCH: Final = bytes(4)


class Opening(NamedTuple):
    """What opened a branch.

    Attributes:
        sequence: Sequence of the event that did: its first one, or a move of the head.
        parent: Sequence that the branch follows, ``NO_PARENT`` for a root of its own.
        fork_branch: Branch of that event; 0 for a root.
        recorded_us: When, µs since the epoch.
    """

    sequence: int
    parent: int
    fork_branch: int
    recorded_us: int

    def content(self) -> bytes:
        """The content of its row."""
        return _OPENING.pack(*self)


class Tip(NamedTuple):
    """The newest event of a branch: sequence and recorded time in µs."""

    sequence: int
    recorded_us: int

    def content(self) -> bytes:
        """The content of its row."""
        return _TIP.pack(*self)


class Branching:
    """What memory keeps of a session that branches; only grows, and is replaced when sealed.

    Attributes:
        made: Branch numbers handed out.
        head_branch: The branch that the head is on.
        tips: Of branches with loose events, the sequence of the newest one.
        openings: Of branches that a loose event opened.
    """

    __slots__ = ("head_branch", "made", "openings", "tips")

    def __init__(self, made: int, head_branch: int) -> None:
        self.made = made
        self.head_branch = head_branch
        self.tips: dict[int, int] = {}
        self.openings: dict[int, Opening] = {}

    def take(self, sequence: int, value: bytes) -> None:
        """Note one more committed event, by its stored record."""
        kind = value[KIND_BYTE]
        branch = branch_of(value)
        if kind < CONTROL:
            self.tips[branch] = sequence
            self.head_branch = branch
        elif kind == HEAD_MOVE:
            self.head_branch = branch
        if value[FLAGS_BYTE + 1] & _OPENS_HIGH:
            self.openings[branch] = opening_of(sequence, value)
            self.made = max(self.made, branch + 1)


def is_linear(value: bytes) -> bool:
    """Whether a stored record leaves a linear session linear."""
    return value[BRANCH_BYTE : BRANCH_BYTE + 4] == _NO_BRANCH and value[KIND_BYTE] != HEAD_MOVE


def branch_of(value: bytes) -> int:
    """The branch in a stored record."""
    return int.from_bytes(value[BRANCH_BYTE : BRANCH_BYTE + 4], "little")


def parent_of(value: bytes) -> int:
    """The parent in a stored record, ``NO_PARENT`` for none."""
    return int.from_bytes(value[PARENT_BYTE : PARENT_BYTE + 8], "little")


def recorded_in(value: bytes) -> int:
    """The recorded time in a stored record."""
    return int.from_bytes(value[PARENT_BYTE + 8 : PARENT_BYTE + 16], "little")


def opening_of(sequence: int, value: bytes) -> Opening:
    """What a stored record with ``OPENS_BRANCH`` says of the branch that it opens."""
    fork = int.from_bytes(value[OFFSET_BYTE : OFFSET_BYTE + 8], "little")
    return Opening(sequence, parent_of(value), fork, recorded_in(value))


def follow(row: SessionRow, records: Iterable[bytes]) -> None:
    """Bring head and branches of a session's row up to its next sealed records.

    Args:
        row: The row of a session that branches, as of the event before.
        records: Stored records, in sequence order, that begin at ``row.sealed``.
    """
    made, branch, head = max(row.branches, 1), row.head_branch, row.head
    for sequence, value in enumerate(records, row.sealed):
        kind = value[KIND_BYTE]
        if kind < CONTROL:
            branch, head = branch_of(value), sequence
        elif kind == HEAD_MOVE:
            branch, head = branch_of(value), parent_of(value)
        else:
            continue
        made = max(made, branch + 1)
    row.head = head
    if (made, branch) != (row.branches, row.head_branch):
        row.branches, row.head_branch, row.details = made, branch, b""


# Rows


def opening_key(branch: int) -> bytes:
    """Subkey of what opened a branch."""
    return _NUMBER.pack(OPENINGS, branch)


def tip_key(branch: int) -> bytes:
    """Subkey of a branch's tip."""
    return _NUMBER.pack(TIPS, branch)


def decode_opening(content: bytes, where: str) -> Opening:
    """An opening from the content of its row.

    Raises:
        CorruptionError: The bytes are none.
    """
    if len(content) != _OPENING.size:
        raise CorruptionError("row has another size", where=where)
    found = Opening._make(_OPENING.unpack(content))
    if found.sequence > POSITION_MAX or not (
        found.parent < found.sequence or found.parent == NO_PARENT
    ):
        raise CorruptionError("row has numbers that cannot be", where=where)
    return found


def decode_tip(content: bytes, where: str) -> Tip:
    """A tip from the content of its row.

    Raises:
        CorruptionError: The bytes are none.
    """
    if len(content) != _TIP.size:
        raise CorruptionError("row has another size", where=where)
    return Tip._make(_TIP.unpack(content))


def split_key(subkey: bytes, where: str) -> tuple[bool, int]:
    """Whether a row's subkey is that of an opening, and the branch.

    Raises:
        CorruptionError: It is no subkey of a branch.
    """
    if len(subkey) != _NUMBER.size or subkey[0] > TIPS:
        raise CorruptionError("key is of no branch", where=where)
    which, branch = _NUMBER.unpack(subkey)
    return which == OPENINGS, branch


class BranchProjection:
    """The rows of branches (``inline.InlineProjection``).

    Asked about sessions that branch only: about their public events too.
    """

    number = PROJECTION
    kinds = frozenset({*range(CONTROL), HEAD_MOVE})

    def changes(self, event: Record) -> Mapping[bytes, bytes | None]:
        """See ``InlineProjection``."""
        found: dict[bytes, bytes | None] = {}
        branch = event.branch
        if event.kind_code < CONTROL:
            found[tip_key(branch)] = _TIP.pack(event.sequence, event.recorded_us)
        if event.flags & OPENS_BRANCH:
            opening = Opening(
                event.sequence, event.parent_word, event.fork_branch, event.recorded_us
            )
            found[opening_key(branch)] = opening.content()
        return found

    def base(self, event: Record) -> Mapping[bytes, bytes | None]:
        """See ``InlineProjection``."""
        marks = decode_extension(event.extension, event.flags, event) if event.extension else {}
        body = decode_body(event.payload, marks.get(Extension.BODY_FIXES), where=event)
        return dict(rows_of_base(body, f"{event}"))

    def check(self, event: Record) -> None:
        """See ``InlineProjection``; headers are checked elsewhere."""

    def sequence_of(self, content: bytes) -> int:
        """See ``InlineProjection``."""
        if len(content) == _TIP.size:
            return decode_tip(content, "branch").sequence
        return decode_opening(content, "branch").sequence


def encode_branches(rows: Mapping[bytes, bytes | None]) -> list[list[Any]]:
    """Rows, by subkey, as the body of a ``base`` event holds them: one entry for each row."""
    found: list[list[Any]] = []
    for subkey, content in sorted(rows.items()):
        is_opening, branch = split_key(subkey, "branch")
        assert content is not None  # no event removes such a row
        if is_opening:
            opening = decode_opening(content, "branch")
            parent = None if opening.parent == NO_PARENT else opening.parent
            words = [opening.sequence, parent, opening.fork_branch, opening.recorded_us]
        else:
            words = [*decode_tip(content, "branch")]
        found.append([branch, *words])
    return found


def rows_of_base(body: Any, where: str) -> list[tuple[bytes, bytes]]:
    """Subkeys and contents of the rows that the body of a ``base`` event stands for.

    Of a session that was linear then it tells the head, whose time nobody knows any more.

    Raises:
        CorruptionError: It is the body of none.
    """
    if type(body) is not dict:
        return []
    if "branches" not in body:
        head = body.get("head")
        return [] if head is None else [(tip_key(0), _checked_tip([head, 0], where).content())]
    found: list[tuple[bytes, bytes]] = []
    try:
        for branch, *words in body["branches"]:
            if type(branch) is not int or not 0 <= branch < SESSION_BRANCHES_MAX:
                raise ValueError("a branch has no number")
            if len(words) == 2:
                found.append((tip_key(branch), _checked_tip(words, where).content()))
                continue
            sequence, parent, fork, recorded_us = words
            opening = Opening(sequence, NO_PARENT if parent is None else parent, fork, recorded_us)
            found.append((opening_key(branch), opening.content()))
            decode_opening(found[-1][1], where)
    except (TypeError, ValueError, StructError) as error:
        raise CorruptionError(f"holds no branches: {error}", where=where) from error
    return found


def counts_of_base(body: Any) -> tuple[int, int]:
    """Branch numbers handed out, and the head's branch, as a base tells them.

    Raises:
        CorruptionError: They cannot be.
    """
    if type(body) is not dict or "branches" not in body:
        return 0, 0
    made, branch = body.get("branch_count"), body.get("head_branch")
    if type(made) is not int or type(branch) is not int or not 0 <= branch < made:
        raise CorruptionError("base has a branch that cannot be", where="base")
    return made, branch


def _checked_tip(words: list[Any], where: str) -> Tip:
    if any([type(word) is not int or not 0 <= word <= POSITION_MAX for word in words]):
        raise CorruptionError("base has a tip that cannot be", where=where)
    return Tip(*words)


OpeningOf = Callable[[int], Opening | None]
"""What opened a branch, by number; None for branch 0."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a path: the events of one branch above one sequence and up to another.

    Attributes:
        branch: The branch.
        after: Only events after this sequence, -1 for all; the event forked from, or before it.
        last: Up to this sequence, inclusive.
    """

    branch: int
    after: int
    last: int


def path_to(leaf: int, branch: int, opening_by: OpeningOf) -> list[Stretch]:
    """The path from the root to an event, as stretches of branches, root first.

    Args:
        leaf: Sequence of the event.
        branch: Its branch.
        opening_by: What opened a branch.

    Raises:
        CorruptionError: An opening is missing, or they go round in a circle.
    """
    found: list[Stretch] = []
    last = leaf
    while True:
        opening = opening_by(branch)
        if opening is None and branch:
            raise CorruptionError("its opening is missing", where=f"branch {branch}")
        is_root = opening is None or opening.parent == NO_PARENT
        after = -1 if opening is None or is_root else opening.parent
        found.append(Stretch(branch, after, last))
        if opening is None or is_root:
            break
        if opening.fork_branch >= branch:
            raise CorruptionError("does not follow an older branch", where=f"branch {branch}")
        branch, last = opening.fork_branch, opening.parent
    found.reverse()
    return found
