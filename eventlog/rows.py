"""Rows that change: commit record, session rows, tenants, names; pure.

Every value starts with an 8-byte checksum over key and the rest (FORMAT.md, "Rows").

Invariants:
    1. ``protect`` and ``expose`` are the only ways in and out of such a value.
    2. A commit record names its own transaction, so that LMDB going back to an older one shows.
    3. A session row tells the session up to its last sealed event; loose events come on top.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import Any, Final

from xxhash import xxh3_64_digest

from eventlog.body import decode_body, encode_plain
from eventlog.errors import CorruptionError
from eventlog.keys import U64
from eventlog.limits import (
    HOT_TABLE_POSITIONS,
    HOT_TABLES,
    POSITION_MAX,
    SESSION_BRANCHES_MAX,
)

CHECKSUM_BYTES: Final = 8
COMMIT_KEY: Final = b"record"
OPTIONS_KEY: Final = b"options"
LINK_BYTES: Final = 16
NO_LINK: Final = bytes(LINK_BYTES)
SECRET_BYTES: Final = 32


def protect(key: bytes, rest: bytes) -> bytes:
    """Put the checksum over key and rest in front of rest."""
    return xxh3_64_digest(key + rest) + rest


def expose(key: bytes, value: bytes, where: str) -> bytes:
    """Check the checksum and give the rest.

    Raises:
        CorruptionError: The bytes are not what was written under this key.
    """
    rest = value[CHECKSUM_BYTES:]
    if xxh3_64_digest(key + rest) != value[:CHECKSUM_BYTES]:
        raise CorruptionError("checksum does not match", where=where)
    return rest


def decode_number(key: bytes, value: bytes, where: str) -> int:
    """The number that a row of ``name`` or ``activity`` holds.

    Raises:
        CorruptionError: The bytes are not such a row.
    """
    rest = expose(key, value, where)
    if len(rest) != U64.size:
        raise CorruptionError("has another size", where=where)
    number: int = U64.unpack(rest)[0]
    return number


_COMMIT_1: Final = Struct("<QQQQQQQQQQQQ16s8s")
_COMMIT: Final = Struct("<QQQQQQQQQQQQ16s8sQQQQ")


@dataclass(frozen=True)
class CommitRecord:
    """The row that every transaction rewrites.

    Attributes:
        last_position: The newest position; 0 in an empty store.
        floor: The first position still in the hot log; ``last_position + 1`` when it is empty.
        transaction: LMDB's id of the transaction that wrote this.
        file_bytes: Size of the data file before that transaction.
        sessions_made: Session numbers handed out so far; the newest number.
        tenants_made: Tenant numbers handed out so far.
        sessions: Sessions that can be read.
        recorded_us: The largest time stamped by the store, so that stamps never go back.
        generation: Rises when something in memory elsewhere may no longer be true.
        roll_ups: Segments sealed so far.
        cuts: Hot tables cut so far.
        fences: Empty commits that settled a failed one.
        link: The chain link at ``last_position``.
        previous: Checksum of the commit record before this one.
        dictionaries_made: Dictionary numbers handed out so far.
        blobs_made: Blob numbers handed out so far.
        removals: Deletions, purges and steps of redactions so far; who sees another number forgets
            whose events are whose, and what they held.
        roles: Which named database serves as which table (``roles``).
        version: The store's format version; 1 has none of the four before this.
    """

    last_position: int = 0
    floor: int = 1
    transaction: int = 0
    file_bytes: int = 0
    sessions_made: int = 0
    tenants_made: int = 0
    sessions: int = 0
    recorded_us: int = 0
    generation: int = 0
    roll_ups: int = 0
    cuts: int = 0
    fences: int = 0
    link: bytes = NO_LINK
    previous: bytes = bytes(CHECKSUM_BYTES)
    dictionaries_made: int = 0
    blobs_made: int = 0
    removals: int = 0
    roles: int = 0
    version: int = 2

    @property
    def epoch(self) -> tuple[int, int]:
        """Rises with whatever makes events, or what memory keeps of them, no longer true."""
        return self.generation, self.removals

    def encode(self) -> bytes:
        """The row's value under ``COMMIT_KEY``."""
        fields = (
            self.last_position,
            self.floor,
            self.transaction,
            self.file_bytes,
            self.sessions_made,
            self.tenants_made,
            self.sessions,
            self.recorded_us,
            self.generation,
            self.roll_ups,
            self.cuts,
            self.fences,
            self.link,
            self.previous,
        )
        if self.version == 1:
            return protect(COMMIT_KEY, _COMMIT_1.pack(*fields))
        more = (self.dictionaries_made, self.blobs_made, self.removals, self.roles)
        return protect(COMMIT_KEY, _COMMIT.pack(*fields, *more))

    @classmethod
    def decode(cls, value: bytes) -> CommitRecord:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not a commit record.
        """
        global _decoded
        known, record = _decoded
        if known == value:  # every read asks for it, and between two commits it is the same
            return record
        rest = expose(COMMIT_KEY, value, "commit record")
        if len(rest) == _COMMIT.size:
            record = cls(*_COMMIT.unpack(rest))
        elif len(rest) == _COMMIT_1.size:
            record = replace(cls(*_COMMIT_1.unpack(rest)), version=1)
        else:
            raise CorruptionError("has another size", where="commit record")
        last, floor = record.last_position, record.floor
        if (
            last > POSITION_MAX
            or not 1 <= floor <= last + 1
            or last - floor >= HOT_TABLES * HOT_TABLE_POSITIONS
        ):
            raise CorruptionError(
                f"floor {floor} and last position {last} cannot be", where="commit record"
            )
        _decoded = (value, record)
        return record


_decoded: tuple[bytes, CommitRecord] = (b"", CommitRecord())


def peek_last_position(value: bytes) -> int:
    """The last position in a commit record's value: for cheap polling.

    Raises:
        CorruptionError: The bytes are not a commit record.
    """
    rest = expose(COMMIT_KEY, value, "commit record")
    if len(rest) not in (_COMMIT.size, _COMMIT_1.size):
        raise CorruptionError("has another size", where="commit record")
    return int.from_bytes(rest[:8], "little")


_SESSION: Final = Struct("<QQQQQQQQQQII")
NO_SEQUENCE: Final = 2**64 - 1
GONE: Final = 1  # a session row's flags
ERASED: Final = 2
HELD: Final = 4
REDACTED: Final = 8


@dataclass(slots=True)
class SessionRow:
    """A session up to its last sealed event; times in µs.

    Attributes:
        tenant_number: Number of its tenant.
        created_position: Position of its first event.
        created_us: Recorded time of its first event.
        sealed: Number of sealed events, so the first loose sequence.
        messages: Sealed messages.
        head: Sequence of the last public event, or ``NO_SEQUENCE``.
        last_position: Position of the last sealed event; 0 before the first roll-up.
        last_recorded_us: Recorded time of the last sealed event.
        keys: Idempotency keys in the key table.
        segments: Segments of the session.
        since_roll_up: Messages since the last logical roll-up.
        flags: ``GONE`` when it was deleted, ``ERASED`` when that erases, ``HELD`` when a blob
            stayed because somebody had put it again, ``REDACTED`` when events lost their content.
        tenant: The tenant's name.
        name: The session's name.
        opening: Facts given at creation, plain data or None.
        first: First sequence that is still there; events below it were purged.
        trimmed: Messages, from the first one, that roll-ups took out of the view.
        branches: Branch numbers handed out; 0 while the session is linear (``branching``).
        head_branch: The branch that the head is on.
    """

    tenant_number: int
    created_position: int
    created_us: int
    sealed: int
    messages: int
    head: int
    last_position: int
    last_recorded_us: int
    keys: int
    segments: int
    since_roll_up: int
    flags: int
    tenant: str
    name: str
    opening: Any
    details: bytes = b""
    first: int = 0
    trimmed: int = 0
    branches: int = 0
    head_branch: int = 0

    def encode(self, key: bytes) -> bytes:
        """The row's value; ``key`` is the session number's key."""
        if not self.details:
            more = [self.first, self.trimmed, self.branches, self.head_branch]
            while more and not more[-1]:
                more.pop()
            self.details = encode_plain([self.tenant, self.name, self.opening, *more])
        return protect(
            key,
            _SESSION.pack(
                self.tenant_number,
                self.created_position,
                self.created_us,
                self.sealed,
                self.messages,
                self.head,
                self.last_position,
                self.last_recorded_us,
                self.keys,
                self.segments,
                self.since_roll_up,
                self.flags,
            )
            + self.details,
        )

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> SessionRow:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not this session's row.
        """
        where = f"session {int.from_bytes(key, 'big')}"
        rest = expose(key, value, where)
        if len(rest) <= _SESSION.size:
            raise CorruptionError("row is too short", where=where)
        details = rest[_SESSION.size :]
        named = decode_body(details, where=where)
        if type(named) is not list or not 3 <= len(named) <= 7:
            raise CorruptionError("row has other details", where=where)
        tenant, name, opening, *more = named
        if any([type(number) is not int for number in more]) or (more and more[-1] < 1):
            raise CorruptionError("row has other details", where=where)
        row = cls(*_SESSION.unpack_from(rest), tenant, name, opening, details, *more)  # type: ignore[call-arg]
        if type(tenant) is not str or type(name) is not str or not (name or row.is_gone):
            raise CorruptionError("row has no names", where=where)
        if (
            max(row.sealed, row.last_position, row.created_position) > POSITION_MAX
            or max(row.messages, row.keys, row.segments) > row.sealed
            or not (row.head < row.sealed or row.head == NO_SEQUENCE)
            or not 0 <= row.first <= row.sealed
            or not 0 <= row.trimmed <= row.messages
            or not 0 <= row.head_branch <= max(0, row.branches - 1) < SESSION_BRANCHES_MAX
            or row.since_roll_up > row.messages
            or row.flags & ~(GONE | ERASED | HELD | REDACTED)
        ):
            raise CorruptionError("row has numbers that cannot be", where=where)
        return row

    def trim(self, trimmed: int) -> None:
        """Note how many messages are out of the view by now."""
        if trimmed > self.trimmed:
            self.trimmed = trimmed
            self.details = b""

    @property
    def is_gone(self) -> bool:
        """True once the session was deleted: only its tombstone is left."""
        return bool(self.flags & GONE)

    def copy(self) -> SessionRow:
        """A row that can be changed without this one changing."""
        return SessionRow(
            self.tenant_number,
            self.created_position,
            self.created_us,
            self.sealed,
            self.messages,
            self.head,
            self.last_position,
            self.last_recorded_us,
            self.keys,
            self.segments,
            self.since_roll_up,
            self.flags,
            self.tenant,
            self.name,
            self.opening,
            self.details,
            self.first,
            self.trimmed,
            self.branches,
            self.head_branch,
        )


@dataclass(frozen=True)
class TenantRow:
    """A tenant: its name and the secret that its digests are keyed with."""

    secret: bytes
    name: str

    def encode(self, key: bytes) -> bytes:
        """The row's value; ``key`` is the tenant number's key."""
        return protect(key, self.secret + self.name.encode())

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> TenantRow:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not this tenant's row.
        """
        where = f"tenant {int.from_bytes(key, 'big')}"
        rest = expose(key, value, where)
        if len(rest) < SECRET_BYTES:
            raise CorruptionError("row is too short", where=where)
        try:
            return cls(rest[:SECRET_BYTES], rest[SECRET_BYTES:].decode())
        except UnicodeDecodeError as error:
            raise CorruptionError("its name is no text", where=where) from error


_KEYED: Final = Struct("<16sQQQ")


@dataclass(slots=True)
class KeyedResult:
    """What an idempotency key stands for: the digest of the content and where it went."""

    content: bytes
    first: int
    last: int
    position: int

    def encode(self, key: bytes) -> bytes:
        """The row's value; ``key`` is session number and key digest."""
        return protect(key, _KEYED.pack(self.content, self.first, self.last, self.position))

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> KeyedResult:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not this key's row.
        """
        where = f"key {key.hex()}"
        rest = expose(key, value, where)
        if len(rest) != _KEYED.size:
            raise CorruptionError("has another size", where=where)
        result = cls(*_KEYED.unpack(rest))
        if not result.first <= result.last <= POSITION_MAX or result.position > POSITION_MAX:
            raise CorruptionError("has numbers that cannot be", where=where)
        return result
