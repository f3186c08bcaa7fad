"""FORMAT.md put into code a second time: reads a store, and appends to it, without the product.

It shares no code with ``eventlog`` or ``engine`` and follows nothing but the document, so that it
fails where the document says too little. Plain loops, everything in memory, no locks on reading.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import cbor2
import lmdb
import xxhash
import zstandard

BLOCK = 1_024
HOT_TABLE = 4 * BLOCK
HOT_TABLES = 48
NONE = 2**64 - 1
TOMBSTONE, VOID, HEAD_MOVE = 65, 70, 71
OPENS, REDACTED = 256, 512
GONE, ERASED = 1, 2
RECORD = struct.Struct("<8sQQQQqQQIIBBHI")
SEGMENT = struct.Struct("<8sBBBBIQQQQQQIIQ")
ORDER = struct.Struct("<8sBBHI16s")
COMMIT = struct.Struct("<8sQQQQQQQQQQQQ16s8s")
COMMIT_2 = struct.Struct("<QQQQ")  # what version 2 has behind it
REMOVAL = struct.Struct("<QQIIQ")
CHANGING = (b"name", b"key", b"id", b"activity", b"state", b"spare")
CHUNK = struct.Struct("<8sBBHI")
BLOB = struct.Struct("<8sQQQQQIIII")
SESSION = struct.Struct("<8sQQQQQQQQQQII")
KINDS = {
    1: "message",
    2: "event",
    3: "summary",
    4: "metadata",
    5: "model_change",
    6: "label",
    7: "custom",
    8: "compaction",
    64: "open",
    65: "tombstone",
    66: "base",
    67: "variables",
    68: "roll_up",
    69: "options",
    70: "void",
    71: "head_move",
    72: "branch_name",
    73: "link",
    74: "metric",
    75: "annotation",
    76: "facts",
    77: "documents",
    78: "usage",
    79: "artifacts",
    80: "runs",
    81: "tool_calls",
    82: "redaction",
}
ROLES = {"system": 1, "user": 2, "assistant": 3, "tool": 4, "developer": 5, "toolResult": 6}


class Damage(Exception):
    """The bytes are not what FORMAT.md says."""


def checked(key: bytes, value: bytes) -> bytes:
    """A row's value without its checksum."""
    if xxhash.xxh3_64_digest(key + value[8:]) != value[:8]:
        raise Damage(f"checksum of {key.hex()}")
    return value[8:]


def be(*numbers: int) -> bytes:
    return b"".join([number.to_bytes(8, "big") for number in numbers])


def keyed(secret: bytes, what: bytes, content: bytes) -> bytes:
    return blake2b(content, digest_size=16, key=secret, person=what).digest()


def name_key(tenant: str, session: str) -> bytes:
    owner = tenant.encode()
    return blake2b(
        be(len(owner)) + owner + session.encode(), digest_size=16, person=b"turnlog-name"
    ).digest()


def hot_table(position: int) -> bytes:
    return b"log.%02x" % ((position - 1) // HOT_TABLE % HOT_TABLES)


def unfix(value: Any, fixes: list[list[Any]] | None) -> Any:
    """Put back what CBOR could not carry; renames come last, the deepest first."""
    box = [value]
    names = []
    for what, *path in fixes or []:
        holder: Any = box
        step: Any = 0
        for following in path:
            holder, step = holder[step], following
        if what == "s":
            holder[step] = holder[step].decode("utf-8", "surrogatepass")
        elif what == "f":
            holder[step] = struct.unpack(">d", holder[step])[0]
        else:
            assert what == "k", what
            names.append((len(path), holder, path[-1]))
    for _, holder, old in sorted(names, key=lambda each: -each[0]):
        items = list(holder.items())
        holder.clear()
        for key, item in items:
            holder[key.decode("utf-8", "surrogatepass") if key == old else key] = item
    return box[0]


def cbor_head(major: int, number: int) -> bytes:
    """The shortest head of a CBOR item."""
    if number < 24:
        return bytes([major << 5 | number])
    for info, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([major << 5 | info]) + number.to_bytes(size, "big")
    raise Damage(f"{number} is too large")


def canonical(value: Any) -> bytes:
    """A value in canonical form (section 13)."""
    if value is None or value is True or value is False:
        return {None: b"\xf6", True: b"\xf5", False: b"\xf4"}[value]
    if isinstance(value, int):
        return cbor_head(0, value) if value >= 0 else cbor_head(1, -1 - value)
    if isinstance(value, float):
        if value != value:
            bits = struct.pack(">d", value)
            return b"\xf9\x7e\x00" if bits == b"\x7f\xf8" + bytes(6) else b"\xfb" + bits
        for info, form in ((0xF9, ">e"), (0xFA, ">f"), (0xFB, ">d")):
            try:
                packed = struct.pack(form, value)
            except OverflowError:
                continue
            if struct.unpack(form, packed)[0] == value:
                return bytes([info]) + packed
    if isinstance(value, bytes):
        return cbor_head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return cbor_head(3, len(text)) + text
    if isinstance(value, list):
        return cbor_head(4, len(value)) + b"".join(map(canonical, value))
    pairs = sorted(
        [(canonical(key), canonical(item)) for key, item in value.items()],
        key=lambda pair: (len(pair[0]), pair[0]),
    )
    return cbor_head(5, len(pairs)) + b"".join([key + item for key, item in pairs])


def fingerprint(*records: bytes) -> bytes:
    """The content fingerprint of an append, from its stored records (section 13)."""
    digest = blake2b(digest_size=32)
    for stored in records:
        length = struct.unpack_from("<I", stored, 76)[0]
        marks = cbor2.loads(stored[80 : 80 + length]) if length else {}
        told = {key: marks[key] for key in (1, 5, 6, 7, 8, 9, 11, 17) if key in marks}
        if 5 in told:
            told[5] = canonical(unfix(cbor2.loads(told[5]), marks.get(13)))
        body = canonical(unfix(cbor2.loads(stored[80 + length :]), marks.get(12)))
        said = stored[40:56] + bytes(12) + stored[68:73]
        digest.update(said + cbor2.dumps(told) + body)
    return digest.digest()


def serving(roles: int) -> dict[bytes, bytes]:
    """The database of each role (section 4.1)."""
    found = {
        role: CHANGING[(roles >> 4 * place & 15) ^ place] for place, role in enumerate(CHANGING)
    }
    assert sorted(found.values()) == sorted(CHANGING)
    return found


@dataclass
class Session:
    """A session's row, and its events from ``first`` on as stored records."""

    number: int
    tenant_number: int
    sealed: int
    messages: int
    head: int
    last_position: int
    tenant: str
    name: str
    opening: Any
    first: int = 0
    flags: int = 0
    branches: int = 0
    records: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    @property
    def following(self) -> int:
        """Its next sequence."""
        return self.first + len(self.records)


@dataclass
class Event:
    """One event, as far as an export line tells it."""

    tenant: str
    session: str
    sequence: int
    position: int
    parent: int | None
    kind: str
    id: str | None
    time_us: int | None
    recorded_us: int
    tokens: int
    run_id: str | None
    turn_id: str | None
    speech_id: str | None
    request_id: str | None
    opening: Any
    metadata: Any
    body: Any
    blobs: tuple[bytes, ...]
    redacted: bool = False
    role: str | None = None


def decode_event(position: int, value: bytes, session: Session) -> Event:
    """A checked record's meaning."""
    _, number, sequence, parent, recorded, given, *_ = RECORD.unpack_from(value)
    tokens, kind, role, flags, length = RECORD.unpack_from(value)[-5:]
    assert number == session.number
    marks = cbor2.loads(value[80 : 80 + length]) if length else {}
    is_redacted = bool(flags & REDACTED)
    if is_redacted:  # section 5.11
        assert kind < 64 or KINDS[kind] in ("metric", "annotation")
        assert value[80 + length :] == b"\xf6"
        assert not flags & (1 | 16) and not marks.keys() & {5, 12, 13, 17}
    opening = marks.get(10)
    return Event(
        tenant=session.tenant,
        session=session.name,
        sequence=sequence,
        position=position,
        parent=None if parent == NONE else parent,
        kind=marks[11] if kind == 15 else KINDS[kind],
        id=marks.get(1),
        time_us=None if given == -(2**63) else given,
        recorded_us=recorded,
        tokens=tokens,
        run_id=marks.get(6),
        turn_id=marks.get(7),
        speech_id=marks.get(8),
        request_id=marks.get(9),
        opening=None if opening is None else unfix(cbor2.loads(opening[0]), opening[1]),
        metadata=unfix(cbor2.loads(marks[5]), marks.get(13)) if 5 in marks else None,
        body=unfix(cbor2.loads(value[80 + length :]), marks.get(12)),
        blobs=tuple(marks.get(17, ())),
        redacted=is_redacted,
        role={code: name for name, code in ROLES.items()}.get(role) if is_redacted else None,
    )


class Line(NamedTuple):
    """What a record says of its place among branches (section 6.7)."""

    sequence: int
    parent: int
    offset: int
    branch: int
    kind: int
    flags: int


def line_of(stored: bytes) -> Line:
    """Read it from a stored record."""
    _, _, sequence, parent, _, _, _, offset, branch, _, kind, _, flags, _ = RECORD.unpack_from(
        stored
    )
    return Line(sequence, parent, offset, branch, kind, flags)


def head_of(records: list[bytes]) -> int:
    """The head after these records; ``NONE`` for none."""
    head = NONE
    for line in map(line_of, records):
        if line.kind < 64:
            head = line.sequence
        elif line.kind == HEAD_MOVE:
            head = line.parent
    return head


def path_to(records: list[bytes], leaf: int) -> list[int]:
    """Sequences from a root to an event, found by parents alone."""
    parents = {line.sequence: line.parent for line in map(line_of, records) if line.kind < 64}
    found: list[int] = []
    while leaf != NONE:
        found.append(leaf)
        leaf = parents[leaf]
    return found[::-1]


def is_linear(records: list[bytes]) -> bool:
    """Whether a session of these records is."""
    return not any([line.branch or line.kind == HEAD_MOVE for line in map(line_of, records)])


def check_branches(records: list[bytes]) -> dict[int, int]:
    """Number each public event's branch again, and compare; gives the tips by branch."""
    tips: dict[int, int] = {}
    branches: dict[int, int] = {}
    made, on, head = 1, 0, NONE
    for line in map(line_of, records):
        if line.kind == HEAD_MOVE:
            assert line.parent == NONE or line.parent in branches
            on, head = branches.get(line.parent, 0), line.parent
            if line.flags & OPENS:
                assert (line.branch, line.offset) == (made, on)
                on, made = made, made + 1
                if head != NONE:
                    tips[on] = head
            assert line.branch == on
        elif line.kind < 64:
            fork = branches[line.parent] if line.parent != NONE else 0
            branch = on if line.parent == head else fork
            if tips.get(branch, NONE) == line.parent:
                assert not line.flags & OPENS
            else:
                assert line.flags & OPENS and line.offset == (0 if line.parent == NONE else branch)
                branch, made = made, made + 1
            assert line.branch == branch
            tips[branch] = head = line.sequence
            on = branches[line.sequence] = branch
    return tips


def view(records: list[bytes]) -> list[Any]:
    """The messages that a session's view shows after these records (section 12)."""
    found: list[Any] = []
    left: int | None = None
    is_decided = False
    if not is_linear(records):
        on = set(path_to(records, head_of(records)))
        records = [stored for stored in records if line_of(stored).sequence in on]
    for stored in reversed(records):
        length = struct.unpack_from("<I", stored, 76)[0]
        marks = cbor2.loads(stored[80 : 80 + length]) if length else {}
        if not is_decided and stored[74] & 128:
            is_decided = True
            left = marks.get(18)
        if left == 0:
            break
        if stored[72] == 1:
            found.append(unfix(cbor2.loads(stored[80 + length :]), marks.get(12)))
            left = None if left is None else left - 1
    return found[::-1]


def roll_up(known: Reader, session: Session) -> tuple[int, dict[int, int]]:
    """Flags and extension of one more message's record, as section 6.6 asks for."""
    if known.version == 1:
        return 0, {}
    own = {} if session.opening is None else unfix(cbor2.loads(session.opening[0]), None)
    options = {**known.options, **own}
    since = shown = 1
    kept = False
    for stored in session.records:
        if stored[72] == 1:
            since, shown = since + 1, shown + 1
        if stored[74] & 128:
            since = 1
            length = struct.unpack_from("<I", stored, 76)[0]
            marks = cbor2.loads(stored[80 : 80 + length]) if length else {}
            if 18 in marks:
                kept, shown = True, marks[18] + 1
    if since < options["snapshot_frequency"]:
        return 0, {}
    most = options["max_messages"]
    if most is not None and shown > most:
        kept, shown = True, most
    return 128, {18: shown} if kept else {}


def decode_columns(content: bytes, count: int, width: int) -> list[list[int]]:
    """Undo the shuffle: plane b of word w holds that byte of all rows."""
    rows = []
    for row in range(count):
        rows.append(
            [
                sum(content[(word * 8 + byte) * count + row] << 8 * byte for byte in range(8))
                for word in range(width)
            ]
        )
    return rows


def inflate(payload: bytes, size: int, dictionary: bytes | None = None) -> bytes:
    if zstandard.frame_content_size(payload) != size:
        raise Damage("stated size")
    if dictionary is None:
        return zstandard.ZstdDecompressor().decompress(payload)
    (zstd_id,) = struct.unpack_from("<I", dictionary, 4)
    if zstandard.get_frame_parameters(payload).dict_id != zstd_id:
        raise Damage("dictionary id")
    known = zstandard.ZstdCompressionDict(dictionary)
    return zstandard.ZstdDecompressor(dict_data=known).decompress(payload)


def decode_dictionary(key: bytes, value: bytes) -> tuple[int, list[int], list[int], bytes]:
    """Tenant number, session numbers, their first sequences or nothing, and the dictionary."""
    rest = checked(key, value)
    tenant, digest, content, payload, count, size = struct.unpack_from("<Q32sQQII", rest)
    assert 0 < payload <= content
    has_firsts = len(rest) == 64 + 16 * count + size
    sessions = list(struct.unpack_from(f"<{count}Q", rest, 64))
    firsts = list(struct.unpack_from(f"<{count}Q", rest, 64 + 8 * count)) if has_firsts else []
    found = rest[64 + 8 * count * (1 + has_firsts) :]
    assert (len(found), sorted(set(sessions))) == (size, sessions)
    if blake2b(found, digest_size=32).digest() != digest:
        raise Damage(f"digest of dictionary {key[0]}")
    assert found[:4] == bytes.fromhex("37a430ec")
    return tenant, sessions, firsts, found


def decode_chunk(key: bytes, value: bytes) -> bytes:
    """The content of a chunk (section 7.3)."""
    checksum, codec, zero, zeros, size = CHUNK.unpack_from(value)
    assert (zero, zeros) == (0, 0)
    payload = value[CHUNK.size :]
    content = inflate(payload, size) if codec == 1 else payload
    assert len(content) == size
    if xxhash.xxh3_64_digest(key + value[8 : CHUNK.size] + content) != checksum:
        raise Damage(f"checksum of {key.hex()}")
    return content


def decode_segment(
    key: bytes, value: bytes, dictionaries: dict[int, bytes] | None = None
) -> list[tuple[int, bytes]]:
    """Positions and stored records of a segment; ``dictionaries`` are those of its tenant."""
    session, last = struct.unpack(">QQ", key)
    fields = SEGMENT.unpack_from(value)
    checksum, version, codec, dictionary, _, count, size = fields[:7]
    assert version == 1
    assert codec == 1 or not dictionary
    payload = value[SEGMENT.size :]
    known = (dictionaries or {})[dictionary] if dictionary else None
    content = inflate(payload, size, known) if codec == 1 else payload
    if xxhash.xxh3_64_digest(key + value[8 : SEGMENT.size] + content) != checksum:
        raise Damage(f"checksum of {key.hex()}")
    rows = decode_columns(content[: count * 72], count, 9)
    for before, row in zip(rows, rows[1:], strict=False):
        for word in (0, 2, 3, 4, 5, 6):
            row[word] = (row[word] + before[word]) % 2**64
    found = []
    start = count * 72
    for place, row in enumerate(rows):
        position, length = row[:2]
        rest = struct.pack("<9Q", session, last - count + 1 + place, *row[2:])
        rest += content[start : start + length]
        start += length
        found.append((position, xxhash.xxh3_64_digest(be(position) + rest) + rest))
    assert start == len(content)
    assert (found[0][0], found[-1][0]) == fields[7:9]
    return found


class Reader:
    """Everything in a store."""

    def __init__(self, folder: Path) -> None:
        marker = json.loads((folder / "turnlog.json").read_text())
        assert marker["format"] == "turnlog"
        assert marker["version"] in (1, 2)
        self.environment = lmdb.open(
            str(folder), readonly=True, lock=False, max_dbs=64, map_size=1 << 30, lib_version=0
        )
        self.serving: dict[bytes, bytes] = {}  # before the commit record is read: none is asked
        try:
            with self.environment.begin() as self.txn:
                self._read()
        finally:
            self.environment.close()

    def database(self, role: bytes) -> Any:
        name = self.serving.get(role, role)
        return self.environment.open_db(name, txn=self.txn, create=False)

    def rows(self, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from self.txn.cursor(self.database(table))

    def get(self, table: bytes, key: bytes) -> bytes | None:
        value: bytes | None = self.txn.get(key, db=self.database(table))
        return value

    def _read(self) -> None:
        record = self.get(b"commit", b"record")
        assert record is not None
        checked(b"record", record)
        self.version = {128: 1, 160: 2}[len(record)]  # the marker's, or an upgrade was broken off
        fields = COMMIT.unpack_from(record)
        self.last_position, self.floor, self.transaction = fields[1:4]
        more = COMMIT_2.unpack_from(record, COMMIT.size) if self.version > 1 else (0, 0, 0, 0)
        removals, self.roles = more[2:]
        self.serving = serving(self.roles & (1 << 56) - 1)
        self.link = fields[13]
        assert self.transaction == self.txn.id()
        options = self.get(b"commit", b"options")
        assert options is not None
        self.options = cbor2.loads(checked(b"options", options))
        self.secrets: dict[int, bytes] = {}
        self.tenants: dict[int, str] = {}
        for key, value in self.rows(b"tenant"):
            rest = checked(key, value)
            self.secrets[int.from_bytes(key, "big")] = rest[:32]
            self.tenants[int.from_bytes(key, "big")] = rest[32:].decode()
        self.dictionaries: dict[int, dict[int, bytes]] = {}  # by tenant number and own number
        for key, value in self.rows(b"dict") if self.version > 1 else ():
            number, _, _, found = decode_dictionary(key, value)
            self.dictionaries.setdefault(number, {})[key[0]] = found
        self.sessions: dict[int, Session] = {}
        for key, value in self.rows(b"session"):
            checked(key, value)
            row = SESSION.unpack_from(value)
            tenant, name, opening, *first = cbor2.loads(value[SESSION.size :])
            number = int.from_bytes(key, "big")
            self.sessions[number] = Session(
                number, row[1], row[4], row[5], row[6], row[7], tenant, name, opening
            )
            self.sessions[number].first = first[0] if first else 0
            self.sessions[number].branches = first[2] if len(first) > 2 else 0
            self.sessions[number].flags = row[12]
            assert not first or first[-1]
            assert not row[12] & GONE or (tenant, name, opening) == ("", "", None)
        assert sorted(self.sessions) == list(range(1, fields[5] + 1))
        gone = [session for session in self.sessions.values() if session.flags & GONE]
        assert len(self.sessions) - len(gone) == fields[7]
        assert len(gone) <= removals
        self._read_removals()
        self._read_events()
        self._check_chain()
        self._read_lookups()
        self.blobs: dict[tuple[int, bytes], bytes] = {}  # contents by tenant number and address
        if self.version > 1:
            self._read_blobs()

    def _read_removals(self) -> None:
        """What is still to be removed, by session number (section 5.8)."""
        self.removals: dict[int, tuple[int, int, int, int, int]] = {}
        for key, value in self.rows(b"removal") if self.version > 1 else ():
            row = REMOVAL.unpack(checked(key, value))
            number = int.from_bytes(key, "big")
            assert row[0] == self.sessions[number].first > 0
            assert row[2] & ~3 == 0
            assert row[3] == 0 or (row[3] == 1 and self.sessions[number].flags & ERASED)
            self.removals[number] = row

    def _read_events(self) -> None:
        self._read_columns()
        at: dict[int, tuple[int, int, bytes | None]] = {}  # by position, as in ``records``
        for key, value in self.rows(b"segment"):
            number, last = struct.unpack(">QQ", key)
            session = self.sessions[number]
            if last < session.first:
                assert number in self.removals
                continue
            own = self.dictionaries.get(session.tenant_number, {})
            for position, stored in decode_segment(key, value, own):
                at[position] = (number, session.following, stored)
                session.records.append(stored)
                session.positions.append(position)
            assert session.following == last + 1
        for session in self.sessions.values():
            assert session.following == max(session.sealed, session.first)
        for position in range(self.floor, self.last_position + 1):
            stored_or_none = self.get(hot_table(position), be(position))
            assert stored_or_none is not None, position
            stored = stored_or_none
            checked(be(position), stored)
            number, sequence = struct.unpack_from("<QQ", stored, 8)
            session = self.sessions[number]
            if sequence < session.first:
                at[position] = (number, sequence, self._void(position, stored, session))
                continue
            if sequence >= session.sealed:
                assert sequence == session.following
                session.records.append(stored)
                session.positions.append(position)
            elif at[position] != (number, sequence, stored):
                raise Damage(f"position {position} is two events")
            at[position] = (number, sequence, stored)
        for session in self.sessions.values():
            if session.flags & GONE:
                assert [stored[72] for stored in session.records] == [TOMBSTONE]
        self.records = []
        for position in range(1, self.last_position + 1):
            if position not in at:  # void, and cut
                number, sequence = self.columns[position]
                assert sequence < self.sessions[number].first
                at[position] = (number, sequence, None)
            self.records.append(at[position])
        assert len(at) == self.last_position

    def _void(self, position: int, stored: bytes, session: Session) -> bytes | None:
        """The bytes of a void hot record, if they are still those that were written."""
        row = self.removals.get(session.number)
        is_overwritten = stored[72] == VOID
        if session.flags & ERASED and (row is None or not row[2] & 1 or position < row[1]):
            assert is_overwritten, position
        if not is_overwritten:
            return stored
        flags = struct.unpack_from("<H", stored, 74)[0]
        assert session.first and flags & 8 and not flags & ~(2 | 4 | 8)
        empty = (NONE, 0, -(2**63), 0, 0, 0, 0, VOID, 0, flags, 0)
        assert stored[24:] == struct.pack("<QQqQQIIBBHI", *empty)
        return None

    def _read_columns(self) -> None:
        """Session number and sequence of each position that was cut, as the order blocks say."""
        self.columns: dict[int, tuple[int, int]] = {}
        for key, value in self.rows(b"order"):
            checksum, version, cut, voids, _, _ = ORDER.unpack_from(value)
            assert (version, voids) == (1, 0)
            content = inflate(value[ORDER.size :], BLOCK * 16) if cut else b""
            if xxhash.xxh3_64_digest(key + value[8 : ORDER.size] + content) != checksum:
                raise Damage(f"checksum of order block {key.hex()}")
            first = int.from_bytes(key, "big") * BLOCK + 1
            for place, row in enumerate(decode_columns(content, BLOCK, 2) if cut else ()):
                self.columns[first + place] = (row[0], row[1])

    def _check_chain(self) -> None:
        """Recompute the chain from flags and checksums, and compare block by block.

        From a run on that a void or redacted event was in, the link is not known up to the block's
        end.
        """
        link: bytes | None = bytes(16)
        run: list[bytes | None] = []
        first = 1
        self.cut_blocks = 0

        def closed() -> bytes | None:
            known = [checksum for checksum in run if checksum is not None]
            if link is None or len(known) < len(run):
                return None
            return blake2b(link + be(first) + b"".join(known), digest_size=16).digest()

        for position, (_, _, stored) in enumerate(self.records, 1):
            flags = 0 if stored is None else struct.unpack_from("<H", stored, 74)[0]
            if flags & 4 and run:
                link = closed()
                run, first = [], position
            run.append(None if stored is None or flags & REDACTED else stored[:8])
            if position % BLOCK and position != self.last_position:
                continue
            link = closed()
            run, first = [], position + 1
            if position % BLOCK == 0:
                link = self._check_block(position // BLOCK - 1, link)
        if link not in (None, self.link):
            raise Damage("the chain does not lead to the commit record")

    def _check_block(self, block: int, link: bytes | None) -> bytes:
        """Compare an order block with what was read; its link."""
        value = self.get(b"order", be(block))
        assert value is not None
        _, _, cut, _, _, stored_link = ORDER.unpack_from(value)
        if link not in (None, stored_link):
            raise Damage(f"the chain does not lead to order block {block}")
        assert bool(cut) == (block * BLOCK + 1 < self.floor)
        if cut:
            self.cut_blocks += 1
            for position in range(block * BLOCK + 1, (block + 1) * BLOCK + 1):
                assert self.columns[position] == self.records[position - 1][:2]
        found: bytes = stored_link
        return found

    def is_void(self, position: int) -> bool:
        """Whether the event at a position was removed."""
        number, sequence, _ = self.records[position - 1]
        return sequence < self.sessions[number].first

    def kept(self) -> Iterator[tuple[int, int, bytes]]:
        """Position, session number and stored record of all events that are there."""
        for position, (number, _, stored) in enumerate(self.records, 1):
            if not self.is_void(position):
                assert stored is not None
                yield position, number, stored

    def events(self) -> Iterator[Event]:
        """All events in the order of positions, but for those that are void."""
        for position, number, stored in self.kept():
            yield decode_event(position, stored, self.sessions[number])

    def _read_lookups(self) -> None:
        """The tables that only help to find things."""
        self.names = {
            key: int.from_bytes(checked(key, value), "big") for key, value in self.rows(b"name")
        }
        self.keys = {
            (int.from_bytes(key[:8], "big"), key[8:]): struct.unpack("<16sQQQ", checked(key, value))
            for key, value in self.rows(b"key")
        }
        for number, _ in self.keys:
            is_leaving = number in self.removals and self.removals[number][2] & 2
            assert not self.sessions[number].flags & GONE or is_leaving
        self.activity = {
            (int.from_bytes(key[:8], "big"), NONE - int.from_bytes(key[8:], "big")): int.from_bytes(
                checked(key, value), "big"
            )
            for key, value in self.rows(b"activity")
        }
        self.ids: dict[bytes, tuple[int, int]] = {}
        rows = dict(self.rows(b"id"))
        serving = []
        for key, value in rows.items():
            rest = checked(key, value)
            if key[:1] == b"\x02":
                level, state = rest[:2]
                if state == 1:
                    serving.append((-level, int.from_bytes(key[1:], "big"), rest))
        for _, number, directory in sorted(serving):  # the oldest first, so that newer ones win
            self._read_run(number, directory, rows)

    def _read_run(self, number: int, directory: bytes, rows: dict[bytes, bytes]) -> None:
        entries, blocks, words, fingerprint = struct.unpack_from(">QQQQ", directory, 2)
        last, read, printed = bytes(16), 0, 0
        for place, key in enumerate(sorted(k for k in rows if k[:9] == b"\x05" + be(number))):
            value = rows[key]
            rest = checked(key, value)
            previous, count, at = struct.unpack_from(">16sII", rest)
            assert (previous, at) == (last, place)
            for start in range(24, len(rest), 32):
                hashed = rest[start : start + 16]
                self.ids[hashed] = struct.unpack_from(">QQ", rest, start + 16)
                self._find_in_filter(number, words, hashed, rows)
            read += count
            printed = xxhash.xxh3_64_intdigest(value[:8], seed=printed)
            last = key[9:]
            blocks -= 1
        assert (read, blocks, printed, last) == (entries, 0, fingerprint, directory[34:])

    def _find_in_filter(
        self, number: int, words: int, hashed: bytes, rows: dict[bytes, bytes]
    ) -> None:
        first, second = struct.unpack(">QQ", hashed)
        word = (first >> 32) * words >> 32
        key = b"\x04" + be(number) + (word // 509).to_bytes(4, "big")
        bits = struct.unpack_from("<Q", rows[key], 8 + word % 509 * 8)[0]
        for shift in (0, 6, 12, 18, 24):
            assert bits >> (second >> shift & 63) & 1

    def _read_blobs(self) -> None:
        """Whole blobs, compared with their chunks, with the events, and with what is pending."""
        chunks: dict[int, list[bytes]] = {}
        for key, value in self.rows(b"chunk"):
            content = decode_chunk(key, value)
            number, index = struct.unpack(">QQ", key)
            same = chunks.setdefault(number, [])
            assert len(same) <= index
            same.append(content)
        pending: dict[int, tuple[int, int, bytes]] = {}
        named: dict[tuple[int, bytes], int] = {}
        for event, (_, session_number, _) in zip(self.events(), self.kept(), strict=True):
            for address in event.blobs:
                owner = (self.sessions[session_number].tenant_number, address)
                named[owner] = named.get(owner, 0) + 1
        for key, value in self.rows(b"blob"):
            rest = checked(key, value)
            tenant = int.from_bytes(key[:8], "big")
            if tenant == 0:
                pending[int.from_bytes(key[8:], "big")] = struct.unpack("<QQ16s", rest)
                continue
            fields = BLOB.unpack_from(value)
            _, number, size, stored, references, since_us, chunk_bytes, count, _, unnamed = fields
            parts = chunks.pop(number, [])
            content = b"".join(parts)
            assert (len(content), len(parts)) == (size, count)
            assert stored >= 16 * count
            assert all([len(part) == chunk_bytes for part in parts[:-1]])
            assert keyed(self.secrets[tenant], b"turnlog-blob", content) == key[8:]
            count_of_events = named.pop((tenant, key[8:]), 0)
            assert references == count_of_events or (self.removals and references > count_of_events)
            assert (pending.pop(number, None) is None) == (since_us == 0)
            assert references == 0 or (unnamed == 0) == (since_us == 0)
            self.blobs[tenant, key[8:]] = content
        assert not named
        assert all([address == bytes(16) for _, _, address in pending.values()])
        assert chunks.keys() <= pending.keys()

    def find(self, tenant: str, session: str) -> Session | None:
        """A session by name."""
        number = self.names.get(name_key(tenant, session))
        if number is None:
            return None
        found = self.sessions[number]
        assert (found.tenant, found.name) == (tenant, session)
        return found

    def find_id(self, tenant: str, caller_id: str) -> tuple[int, int] | None:
        """Session number and sequence of the event with a caller's id."""
        secret = self.secrets[self.names[name_key(tenant, "")]]
        for position, number, stored in self.kept():
            length = struct.unpack_from("<I", stored, 76)[0]
            if position >= self.floor and length and self.sessions[number].tenant == tenant:
                marks = cbor2.loads(stored[80 : 80 + length])
                if marks.get(1) == caller_id:
                    return number, struct.unpack_from("<Q", stored, 16)[0]
        found = self.ids.get(keyed(secret, b"turnlog-id", caller_id.encode()))
        return None if found is None or found[1] < self.sessions[found[0]].first else found

    def find_key(self, session: Session, key: str) -> tuple[bytes, int, int, int] | None:
        """What an idempotency key of a session stands for: content, first, last, position."""
        digest = keyed(self.secrets[session.tenant_number], b"turnlog-key", key.encode())
        loose = session.sealed - session.first
        for position, stored in zip(
            session.positions[loose:], session.records[loose:], strict=True
        ):
            flags, length = struct.unpack_from("<HI", stored, 74)
            if flags & 32:
                marks = cbor2.loads(stored[80 : 80 + length])
                if marks[2] == digest:
                    first = struct.unpack_from("<Q", stored, 16)[0]
                    more = marks[4] - 1
                    return marks[3], first, first + more, position + more
        return self.keys.get((session.number, digest))


def slot_of_this_process() -> bytes:
    """A slot of a lock file, with what is easily known."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    owner = {
        "pid": os.getpid(),
        "start": 0,
        "started_us": 0,
        "boot": boot.read_text().strip() if boot.exists() else "",
        "namespace": namespace.stat().st_ino if namespace.exists() else 0,
        "host": os.uname().nodename,
        "command": "another implementation",
    }
    return json.dumps(owner).encode("ascii").ljust(511) + b"\n"


@dataclass
class Lock:
    """The locks of a process that writes."""

    folder: Path
    descriptors: list[int] = field(default_factory=list)

    def __enter__(self) -> Lock:
        for name, kind in (
            ("use.lock", fcntl.LOCK_SH),
            ("turnstile.lock", fcntl.LOCK_EX),
            ("writer.lock", fcntl.LOCK_EX),
        ):
            descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            self.descriptors.append(descriptor)
        fcntl.flock(self.descriptors[1], fcntl.LOCK_UN)
        for descriptor in (self.descriptors[0], self.descriptors[2]):
            os.pwrite(descriptor, slot_of_this_process(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        os.pwrite(self.descriptors[0], b" " * 511 + b"\n", 0)
        for descriptor in self.descriptors:
            os.close(descriptor)


def append(folder: Path, tenant: str, session: str, body: Any, recorded_us: int) -> int:
    """Append one message to a session whose tenant exists; gives its position.

    What FORMAT.md asks of a writer in another language, and no more: it seals nothing.
    """
    known = Reader(folder)
    found = known.find(tenant, session)
    with Lock(folder):
        environment = lmdb.open(str(folder), max_dbs=64, map_size=1 << 30, lib_version=0)
        try:
            with environment.begin(write=True) as txn:
                position = _append(
                    environment, txn, known, found, tenant, session, body, recorded_us
                )
            data = folder / "data.mdb"
            in_use = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            if data.stat().st_size < in_use:
                os.truncate(data, in_use)
        finally:
            environment.close()
    return position


def _append(
    environment: lmdb.Environment,
    txn: Any,
    known: Reader,
    found: Session | None,
    tenant: str,
    session: str,
    body: Any,
    recorded_us: int,
) -> int:
    def table(name: bytes) -> Any:
        return environment.open_db(known.serving.get(name, name), txn=txn, create=False)

    def put(name: bytes, key: bytes, rest: bytes) -> None:
        value = xxhash.xxh3_64_digest(key + rest) + rest
        txn.put(key, value, db=table(name))
        if name in CHANGING and known.roles >> 56 == 1 + CHANGING.index(name):
            txn.put(key, value, db=table(b"spare"))

    before = txn.get(b"record", db=table(b"commit"))
    fields = list(COMMIT.unpack_from(before))
    position: int = fields[1] + 1
    recorded_us = max(recorded_us, fields[8])
    if found is None:
        fields[5] += 1  # session numbers handed out
        fields[7] += 1  # sessions that can be read
        tenant_number = known.names[name_key(tenant, "")]
        found = Session(fields[5], tenant_number, 0, 0, NONE, 0, tenant, session, None)
        row = (tenant_number, position, recorded_us, 0, 0, NONE, 0, 0, 0, 0, 0, 0)
        put(
            b"session",
            be(found.number),
            struct.pack("<QQQQQQQQQQII", *row) + cbor2.dumps([tenant, session, None]),
        )
        put(b"name", name_key(tenant, session), be(found.number))
    assert is_linear(found.records)  # or its branch would have to be found
    head = head_of(found.records)
    role = ROLES.get(body.get("role"), 0)
    flags, marks = roll_up(known, found)
    extension = cbor2.dumps(marks) if marks else b""
    rest = struct.pack(
        "<QQQQqQQIIBBHI",
        found.number,
        found.following,
        head,
        recorded_us,
        -(2**63),
        0,
        0,
        0,
        0,
        1,
        role,
        2 | 4 | (0 if role in (4, 6) else 1) | flags,
        len(extension),
    )
    rest += extension + cbor2.dumps(body)
    key = be(position)
    stored = xxhash.xxh3_64_digest(key + rest) + rest
    txn.put(key, stored, db=table(hot_table(position)), append=True)
    link = blake2b(fields[13] + key + stored[:8], digest_size=16).digest()
    if position % BLOCK == 0:
        block = be(position // BLOCK - 1)
        put(b"order", block, ORDER.pack(b"", 1, 0, 0, 0, link)[8:])
    fields[1] = position
    fields[3] = txn.id()
    fields[4] = os.stat(os.path.join(environment.path(), "data.mdb")).st_size
    fields[8] = recorded_us
    fields[13] = link
    fields[14] = before[:8]
    put(b"commit", b"record", COMMIT.pack(*fields)[8:] + before[COMMIT.size :])
    return position
