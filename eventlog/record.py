"""A hot record: one event's stored bytes, pure.

Layout, little-endian (FORMAT.md, "Hot record")::

    checksum 8 | session 8 | sequence 8 | parent 8 | recorded 8 | given 8 | owner 8 | offset 8
    | branch 4 | tokens 4 | kind 1 | role 1 | flags 2 | extension length 4 | extension | body

Invariants:
    1. The checksum is xxh3_64 over the record's 8-byte key and all bytes after the checksum.
    2. The header is ``HEADER_BYTES`` long; its nine 8-byte words start at byte 8.
    3. The extension is empty or one CBOR map with small unsigned keys (``Extension``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from struct import Struct
from typing import Any, Final, TypeVar

from xxhash import xxh3_64, xxh3_64_digest

from eventlog.body import decode_marks, encode_plain
from eventlog.errors import CorruptionError
from eventlog.keys import U64, U64_MAX
from eventlog.limits import BATCH_EVENTS_MAX, EVENT_BLOBS_MAX

CHECKSUM_BYTES: Final = 8
HEADER: Final = Struct("<QQQQqQQIIBBHI")
HEADER_BYTES: Final = CHECKSUM_BYTES + HEADER.size
WORDS: Final = Struct("<9Q")  # the same header as nine words
HEAD: Final = Struct("<4Q")  # its first four, which only the writer knows
TAIL: Final = Struct("<qQQIIBBHI")  # the other five, which a caller's draft knows
TAIL_BYTES: Final = TAIL.size
TAIL_KIND_BYTE: Final = 32  # offset of the kind in a tail
_TAIL_END: Final = Struct("<HI")  # a tail's flags and extension length
TAIL_FLAGS_BYTE: Final = TAIL_BYTES - _TAIL_END.size  # offset of the flags in a tail
assert HEADER_BYTES == 80
assert WORDS.size == HEADER.size == HEAD.size + TAIL.size
KIND_BYTE: Final = 72  # offset of the kind in a stored record
FLAGS_BYTE: Final = 74  # offset of the flags' two bytes
HEAD_KIND_BYTE: Final = 64  # offset of the kind in the header alone
SEQUENCE_BYTE: Final = 16  # offset of the sequence's eight bytes
PARENT_BYTE: Final = 24  # offset of the parent's eight bytes
RECORDED_BYTE: Final = 32  # offset of the recorded time's eight bytes
OFFSET_BYTE: Final = 56  # offset of the eight bytes that say where in a track, or from which branch
BRANCH_BYTE: Final = 64  # offset of the branch's four bytes

MESSAGE: Final = 1  # the kind that is counted as a message
CONTROL: Final = 64  # kinds from here on are control kinds: no parent, never the head
TOMBSTONE: Final = 65  # the session was deleted; its last event
BASE: Final = 66  # what the events were that a purge removed
VARIABLES: Final = 67  # variables were set or deleted
ROLL_UP: Final = 68  # a roll-up was asked for
OPTIONS: Final = 69  # the session's own options
VOID: Final = 70  # what an erased event leaves
HEAD_MOVE: Final = 71  # another event became the head
BRANCH_NAME: Final = 72  # a branch got a name, or lost it
LINK: Final = 73  # an event answers several others
METRIC: Final = 74  # a measurement about the session
ANNOTATION: Final = 75  # a remark about the session or one of its events
FACTS: Final = 76  # what the session is: its status, title, labels, whose it is
DOCUMENTS: Final = 77  # texts that go with the session
USAGE: Final = 78  # what was used: tokens, seconds, characters
ARTIFACTS: Final = 79  # what tools made
RUNS: Final = 80  # runs of an agent, from their beginnings to their ends
TOOL_CALLS: Final = 81  # calls of tools, likewise
REDACTION: Final = 82  # events lost their content
BELONGS: Final = frozenset({USAGE, ARTIFACTS})
"""Control kinds whose parent is the public event that they belong to."""

_PLACE: Final = Struct("<QQ")

NO_PARENT: Final = U64_MAX
NO_TIME: Final = -(2**63)
R = TypeVar("R")
LARGE_BYTES: Final = 64 * 1024  # from here on the checksum is fed in parts, so nothing is copied


class Flag(IntFlag):
    """Bits of a header's flags."""

    INDEXABLE = 1
    FIRST_OF_COMMIT = 2
    FIRST_OF_RUN = 4
    VOID = 8
    HAS_BLOBS = 16
    KEYED = 32  # the extension holds an idempotency digest
    NAMED = 64  # the extension holds a caller's id
    ROLLS_UP = 128  # a logical roll-up of the session comes after this event
    OPENS_BRANCH = 256  # the first event of its branch
    REDACTED = 512  # its content was removed, and nothing else of it


class Extension(IntEnum):
    """Keys of the extension map."""

    ID = 1
    KEY_DIGEST = 2
    CONTENT_DIGEST = 3
    KEY_COUNT = 4  # events of the append that the idempotency key stands for
    METADATA = 5
    RUN_ID = 6
    TURN_ID = 7
    SPEECH_ID = 8
    REQUEST_ID = 9
    OPENING = 10  # facts given at creation; on a session's sequence 0 only
    KIND_NAME = 11  # the name of an application kind
    BODY_FIXES = 12
    METADATA_FIXES = 13
    OPENING_FIXES = 14
    MEDIA_START_US = 15
    MEDIA_END_US = 16
    BLOBS = 17  # addresses of the blobs that the event refers to
    KEPT = 18  # messages that the view still shows after this roll-up


DIGEST_BYTES: Final = 16
_MARK_TYPES: Final[dict[int, type]] = {  # of the map's values
    Extension.ID: str,
    Extension.KEY_DIGEST: bytes,
    Extension.CONTENT_DIGEST: bytes,
    Extension.KEY_COUNT: int,
    Extension.METADATA: bytes,
    Extension.RUN_ID: str,
    Extension.TURN_ID: str,
    Extension.SPEECH_ID: str,
    Extension.REQUEST_ID: str,
    Extension.OPENING: list,
    Extension.KIND_NAME: str,
    Extension.BODY_FIXES: list,
    Extension.METADATA_FIXES: list,
    Extension.BLOBS: list,
    Extension.KEPT: int,
}


@dataclass(slots=True, frozen=True)
class Origin:
    """Where events come from: a session number and the names that it stands for."""

    number: int
    tenant: str
    name: str


class Record:
    """One event as it is stored; fields are read from the header when asked for.

    Attributes:
        origin: The session.
        sequence: Sequence in the session.
        head: The 72 header bytes, with the position in place of the session number and a
            length in place of the sequence (``columns``). Bytes, because the garbage collector
            passes over them, where a list of numbers per event would be half of a long read's
            time.
        extension: CBOR map or nothing.
        payload: The body's bytes.
    """

    __slots__ = ("extension", "head", "origin", "payload", "sequence")

    def __init__(
        self, origin: Origin, sequence: int, head: bytes, extension: bytes, payload: bytes
    ) -> None:
        self.origin = origin
        self.sequence = sequence
        self.head = head
        self.extension = extension
        self.payload = payload

    @property
    def position(self) -> int:
        """Position in the whole log, from 1."""
        return int.from_bytes(self.head[:8], "little")

    @property
    def parent_word(self) -> int:
        """Sequence of the parent, or ``NO_PARENT``."""
        return int.from_bytes(self.head[16:24], "little")

    @property
    def recorded_us(self) -> int:
        """When the store took it, µs since the epoch."""
        return int.from_bytes(self.head[24:32], "little")

    @property
    def given_us(self) -> int:
        """The time that the caller gave, µs since the epoch, or ``NO_TIME``."""
        return int.from_bytes(self.head[32:40], "little", signed=True)

    @property
    def branch(self) -> int:
        """Number of the branch."""
        return int.from_bytes(self.head[56:60], "little")

    @property
    def fork_branch(self) -> int:
        """Of an event that opens a branch: the branch of its parent."""
        return int.from_bytes(self.head[48:56], "little")

    @property
    def tokens(self) -> int:
        """Token count; 0 when it was not counted."""
        return int.from_bytes(self.head[60:64], "little")

    @property
    def kind_code(self) -> int:
        """Code of the kind."""
        return self.head[HEAD_KIND_BYTE]

    @property
    def role_code(self) -> int:
        """Code of the role."""
        return self.head[HEAD_KIND_BYTE + 1]

    @property
    def flags(self) -> int:
        """Bits of ``Flag``."""
        return int.from_bytes(self.head[66:68], "little")

    def stored(self) -> bytes:
        """The bytes that the hot log holds, or held before the event was sealed."""
        place = _PLACE.pack(self.origin.number, self.sequence)
        rest = place + self.head[16:] + self.extension + self.payload
        return seal_record(self.head[7::-1], rest)


Factory = Callable[[Origin, int, bytes, bytes, bytes], R]


def seal_record(key: bytes, rest: bytes) -> bytes:
    """Put the checksum in front: ``rest`` is header words, extension and body."""
    if len(rest) < LARGE_BYTES:
        return xxh3_64_digest(key + rest) + rest
    digest = xxh3_64(key)
    digest.update(rest)
    return digest.digest() + rest


def encode_record(
    position: int,
    *,
    session: int,
    sequence: int,
    parent: int = NO_PARENT,
    recorded_us: int = 0,
    given_us: int = NO_TIME,
    branch: int = 0,
    tokens: int = 0,
    kind: int = MESSAGE,
    role: int = 0,
    flags: int = 0,
    extension: bytes = b"",
    body: bytes = b"",
) -> bytes:
    """The stored bytes of a record that is not of a track."""
    rest = HEADER.pack(
        session,
        sequence,
        parent,
        recorded_us,
        given_us,
        0,
        0,
        branch,
        tokens,
        kind,
        role,
        flags,
        len(extension),
    )
    return seal_record(U64.pack(position), rest + extension + body)


def encode_tail(
    kind: int, role: int, flags: int, given_us: int, tokens: int, extension_bytes: int
) -> bytes:
    """The last five header words of an event on branch 0 that is not of a track."""
    return TAIL.pack(given_us, 0, 0, 0, tokens, kind, role, flags, extension_bytes)


def branch_tail(tail: bytes, branch: int, opened_from: int | None) -> bytes:
    """A tail of an event on another branch than 0.

    Args:
        tail: The tail.
        branch: The branch.
        opened_from: The branch of its parent, if it opens the branch; else None.
    """
    given_us, owner, offset, _, tokens, kind, role, flags, size = TAIL.unpack(tail)
    if opened_from is not None:
        offset, flags = opened_from, flags | _OPENS_BRANCH
    return TAIL.pack(given_us, owner, offset, branch, tokens, kind, role, flags, size)


def change_tail(tail: bytes, flags: int, extension_bytes: int) -> bytes:
    """A tail with more flags and another extension length."""
    before = tail[TAIL_FLAGS_BYTE] | tail[TAIL_FLAGS_BYTE + 1] << 8
    return tail[:TAIL_FLAGS_BYTE] + _TAIL_END.pack(before | flags, extension_bytes)


def recorded_of(value: bytes) -> int:
    """The recorded time of a stored record, in µs."""
    return int.from_bytes(value[RECORDED_BYTE : RECORDED_BYTE + 8], "little")


def void_record(key: bytes, value: bytes) -> bytes:
    """What an erased record leaves: its place, and where commits and runs begin.

    Args:
        key: The record's key.
        value: Its stored bytes.
    """
    number, sequence = _PLACE.unpack_from(value, CHECKSUM_BYTES)
    flags = value[FLAGS_BYTE] & _STRUCTURE | _VOID
    return seal_record(
        key, HEADER.pack(number, sequence, NO_PARENT, 0, NO_TIME, 0, 0, 0, 0, VOID, 0, flags, 0)
    )


def can_be_redacted(kind: int) -> bool:
    """Whether events of a kind have content that nothing else is made of.

    What other control kinds say stands in ``state`` too, and is changed by what follows it.
    """
    return kind < CONTROL or kind in _BESIDE


def is_redacted(value: bytes) -> bool:
    """Whether a stored record was redacted."""
    return value[FLAGS_BYTE + 1] & _REDACTED_BYTE != 0


def redacted_record(key: bytes, value: bytes) -> bytes:
    """What a redacted record leaves: all that other events and lookups are made of.

    The body becomes null. Metadata, blobs and fixes go; who names the event (its id), what it
    belongs to (a run, a turn), and the digests of an idempotency key stay. Of a record that was
    redacted the same comes back.

    Args:
        key: The record's key.
        value: Its stored bytes, whose checksum was checked.

    Raises:
        CorruptionError: The extension is not what the flags say.
    """
    *fields, flags, size = HEADER.unpack_from(value, CHECKSUM_BYTES)
    if HEADER_BYTES + size > len(value):
        raise CorruptionError("record is shorter than its extension", where=_where(key))
    extension = value[HEADER_BYTES : HEADER_BYTES + size]
    marks = decode_extension(extension, flags, _where(key))
    kept = {mark: said for mark, said in marks.items() if mark not in _CONTENT}
    if len(kept) < len(marks):
        extension = encode_plain(kept) if kept else b""
    flags = flags & ~_OF_CONTENT | _REDACTED
    rest = HEADER.pack(*fields, flags, len(extension)) + extension + _NULL
    return seal_record(key, rest)


def void_event(position: int, origin: Origin, sequence: int, factory: Factory[R]) -> R:
    """An event without content, for a position whose event is void."""
    head = HEADER.pack(position, 0, NO_PARENT, 0, NO_TIME, 0, 0, 0, 0, VOID, 0, _VOID, 0)
    return factory(origin, sequence, head, b"", b"")


def verify_record(key: bytes, value: bytes) -> None:
    """Check length and checksum.

    Raises:
        CorruptionError: The bytes are not what was written under this key.
    """
    if len(value) < HEADER_BYTES:
        raise CorruptionError("record is shorter than its header", where=_where(key))
    if len(value) < LARGE_BYTES:
        good = xxh3_64_digest(key + value[CHECKSUM_BYTES:]) == value[:CHECKSUM_BYTES]
    else:
        digest = xxh3_64(key)
        digest.update(memoryview(value)[CHECKSUM_BYTES:])
        good = digest.digest() == value[:CHECKSUM_BYTES]
    if not good:
        raise CorruptionError("record checksum does not match", where=_where(key))


def decode_record(origin: Origin, position: int, value: bytes, factory: Factory[R]) -> R:
    """Decode a record whose checksum was checked before."""
    stop = HEADER_BYTES + int.from_bytes(value[HEADER_BYTES - 4 : HEADER_BYTES], "little")
    if stop > len(value):
        raise CorruptionError("record is shorter than its extension", where=f"log {position}")
    sequence = int.from_bytes(value[SEQUENCE_BYTE : SEQUENCE_BYTE + 8], "little")
    head = (
        _PLACE.pack(position, len(value) - HEADER_BYTES) + value[SEQUENCE_BYTE + 8 : HEADER_BYTES]
    )
    return factory(origin, sequence, head, value[HEADER_BYTES:stop], value[stop:])


def decode_extension(extension: bytes, flags: int, where: object) -> dict[int, Any]:
    """The extension map, each of its values of the type that ``FORMAT.md`` gives it.

    Args:
        extension: The bytes; none are an empty map.
        flags: The header's flags, which say what the map must hold.
        where: Asked for its text only in an error.

    Raises:
        CorruptionError: It is no such map, or does not hold what the flags say.
    """
    marks = decode_marks(extension, where=where) if extension else {}
    for key, value in marks.items():
        kind = _TYPES.get(key)
        if kind is not None and type(value) is not kind:
            raise CorruptionError(f"extension has a wrong value under {key}", where=f"{where}")
    if (flags & _NAMED != 0) is not (_ID in marks):
        raise CorruptionError("extension and flags disagree about an id", where=f"{where}")
    if (flags & _HAS_BLOBS != 0) is not (_BLOBS in marks):
        raise CorruptionError("extension and flags disagree about blobs", where=f"{where}")
    if flags & _HAS_BLOBS and not _are_addresses(marks[_BLOBS]):
        raise CorruptionError("extension does not hold addresses of blobs", where=f"{where}")
    if (flags & _KEYED or _KEY_DIGEST in marks) and (
        not flags & _KEYED
        or len(marks.get(_KEY_DIGEST, b"")) != DIGEST_BYTES
        or len(marks.get(_CONTENT_DIGEST, b"")) != DIGEST_BYTES
        or not 1 <= marks.get(_KEY_COUNT, 0) <= BATCH_EVENTS_MAX
    ):
        raise CorruptionError("extension does not hold a whole key", where=f"{where}")
    return marks


_OPENS_BRANCH: Final = int(Flag.OPENS_BRANCH)
_STRUCTURE: Final = int(Flag.FIRST_OF_COMMIT | Flag.FIRST_OF_RUN)
_VOID: Final = int(Flag.VOID)
_REDACTED: Final = int(Flag.REDACTED)
_REDACTED_BYTE: Final = _REDACTED >> 8
_OF_CONTENT: Final = int(Flag.HAS_BLOBS | Flag.INDEXABLE)  # say something of what goes
_CONTENT: Final = frozenset(
    (Extension.METADATA, Extension.METADATA_FIXES, Extension.BODY_FIXES, Extension.BLOBS)
)
_BESIDE: Final = (METRIC, ANNOTATION)
_NULL: Final = encode_plain(None)
_TYPES: Final = {int(key): kind for key, kind in _MARK_TYPES.items()}  # of plain, quicker keys
_ID: Final = int(Extension.ID)
_KEY_DIGEST: Final = int(Extension.KEY_DIGEST)
_CONTENT_DIGEST: Final = int(Extension.CONTENT_DIGEST)
_KEY_COUNT: Final = int(Extension.KEY_COUNT)
_NAMED: Final = int(Flag.NAMED)
_KEYED: Final = int(Flag.KEYED)
_BLOBS: Final = int(Extension.BLOBS)
_HAS_BLOBS: Final = int(Flag.HAS_BLOBS)


def _are_addresses(blobs: list[Any]) -> bool:
    return 1 <= len(blobs) <= EVENT_BLOBS_MAX and all(
        [type(address) is bytes and len(address) == DIGEST_BYTES for address in blobs]
    )


def _where(key: bytes) -> str:
    return f"log {U64.unpack(key)[0]}" if len(key) == 8 else f"log {key.hex()}"
