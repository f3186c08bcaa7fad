"""Look at a data file before LMDB maps it: read, never map.

A data file that is cut short kills the process with SIGBUS as soon as LMDB touches a page that is
gone, an empty one silently becomes a new database, and a flipped bit in a meta page silently takes
the store back by a commit. None of this can be caught afterwards, so ``examine`` looks first, with
plain reads: the two meta pages, the commit record of both, and the size of the file.

The layout is that of LMDB 0.9, data format 1, on a 64-bit machine (``mdb.c`` of LMDB 0.9.36:
``MDB_page``, ``MDB_meta``, ``MDB_db``, ``MDB_node``). Transaction t writes meta page t & 1, so the
two pages name two transactions in a row.

Invariants:
    1. Whatever the bytes are, ``examine`` returns or raises one of ours; it reads a bounded number
       of pages.
    2. It accepts a file only if the newer meta page leads to the commit record of its own
       transaction. If the older one leads to the record of a transaction after the newer one, that
       commit was taken back, by a flipped bit or by LMDB itself when it could not write a meta
       page (it then puts the old numbers back, beside the new roots). Which of the two, the last
       page tells where it can; otherwise there is a warning. So no flipped bit in the transaction
       id of a meta page goes unnoticed.
    3. Other processes may commit meanwhile. LMDB writes into pages of a snapshot only from the
       third transaction after it on; a look at the newest snapshot that saw at most one newer
       commit is therefore whole. What it finds wrong counts only if it saw none.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Final, Generic, Protocol, TypeVar

from lmdb.verify import VerifyError
from lmdb.verify import verify as verify_structure

from eventlog.errors import (
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    StoreUnavailableError,
    TurnlogError,
)
from eventlog.limits import MIB
from eventlog.lmdb_errors import map_os_error

DATA_FILE: Final = "data.mdb"
COMMIT_TABLE: Final = b"commit"
COMMIT_KEY: Final = b"record"

MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
PAGE_BYTES_MIN: Final = 256
PAGE_BYTES_MAX: Final = 32_768
DEPTH_MAX: Final = 32  # levels of a B-tree; LMDB's own bound
VALUE_BYTES_MAX: Final = 64 * 1024  # the commit record is far smaller
MISSING_BYTES_MAX: Final = 1_024 * MIB  # LMDB holds at most half of that in one transaction
ATTEMPTS_MAX: Final = 100  # looks at a file that others write faster than it can be read

_META_BYTES: Final = 152
_PAGE_HEADER: Final = Struct("=QHHHH")  # page number, padding, flags, lower, upper
_META: Final = Struct("=IIQQ48s48sQQ")  # magic, version, address, map size, free, main, last, txn
_TREE: Final = Struct("=IHHQQQQQ")  # padding, flags, depth, branch, leaf, overflow, entries, root
_NODE: Final = Struct("=HHHH")  # low and high half of the size, flags, key size
_U32: Final = Struct("=I")
_U64: Final = Struct("=Q")
_HEADER: Final = _PAGE_HEADER.size
_NO_PAGE: Final = 2**64 - 1
BRANCH: Final = 0x01  # flags of a page
LEAF: Final = 0x02
OVERFLOW: Final = 0x04
_IS_META: Final = 0x08
BIG: Final = 0x01  # flags of a node
_SUBTREE: Final = 0x02

assert _HEADER + _META.size == _META_BYTES and _TREE.size == 48


class CommitRecordLike(Protocol):
    """What ``examine`` must know of a decoded commit record."""

    @property
    def transaction(self) -> int:
        """LMDB's id of the transaction that wrote it."""
        ...

    @property
    def file_bytes(self) -> int:
        """Size that the data file had at least, before that transaction."""
        ...


Record = TypeVar("Record", bound=CommitRecordLike)


@dataclass(frozen=True, slots=True)
class Tree:
    """LMDB's row of one database.

    Attributes:
        root: Page number of the root, None while the database is empty.
        flags: As it was created.
        depth: Levels; 0 while it is empty.
        entries: How many keys it says it has.
    """

    root: int | None
    flags: int
    depth: int
    entries: int


@dataclass(frozen=True, slots=True)
class Meta:
    """One meta page.

    Attributes:
        number: 0 or 1.
        page_bytes: Page size.
        map_bytes: Size of the map of whoever wrote it.
        last_page: Number of the last page in use.
        transaction: The transaction that wrote it.
        free: The row of the database of free pages, as it stands there.
        main: The database of databases.
    """

    number: int
    page_bytes: int
    map_bytes: int
    last_page: int
    transaction: int
    free: bytes
    main: Tree

    @property
    def bytes_in_use(self) -> int:
        """Where the last page in use ends."""
        return (self.last_page + 1) * self.page_bytes


@dataclass(frozen=True, slots=True)
class Examination(Generic[Record]):
    """What was found in a data file that may be mapped.

    Attributes:
        meta: The newer meta page.
        record: Its commit record.
        file_bytes: Size of the file.
        verified: Whether every page was walked.
        warnings: What is not as it should be, and may have a harmless reason.
    """

    meta: Meta
    record: Record
    file_bytes: int
    verified: bool = False
    warnings: tuple[str, ...] = ()


class _Damage(Exception):
    """Something impossible in the file; becomes a CorruptionError unless the file just changed."""


def decode_tree(data: bytes) -> Tree:
    """Decode LMDB's 48-byte row of a database."""
    _, flags, depth, _, _, _, entries, root = _TREE.unpack(data)
    if root == _NO_PAGE:
        return Tree(None, flags, depth, entries)
    if not 1 <= depth <= DEPTH_MAX:
        raise _Damage(f"a database of {depth} levels")
    return Tree(root, flags, depth, entries)


def decode_meta(page: bytes, number: int) -> Meta:
    """Decode a meta page from its first 152 bytes."""
    page_number, _, flags, _, _ = _PAGE_HEADER.unpack_from(page)
    found = _META.unpack_from(page, _HEADER)
    magic, version, _, map_bytes, free, main, last_page, transaction = found
    if magic != MAGIC:
        raise _Damage(f"meta page {number} has no magic number")
    if version != DATA_VERSION:
        raise _Damage(f"meta page {number} has data format {version}")
    if page_number != number or flags != _IS_META:
        raise _Damage(f"meta page {number} calls itself page {page_number}, flags {flags:#x}")
    page_bytes: int = _U32.unpack_from(free)[0]
    if not PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX or page_bytes & (page_bytes - 1):
        raise _Damage(f"meta page {number} gives pages of {page_bytes} bytes")
    if last_page < 1 or last_page >= 2**48:
        raise _Damage(f"meta page {number} gives {last_page} as last page")
    return Meta(number, page_bytes, map_bytes, last_page, transaction, free, decode_tree(main))


def refuse_foreign(head: bytes, where: str) -> None:
    """Tell what is no data file of ours from one that is damaged.

    Args:
        head: The first bytes of the file.
        where: The file, for the error.

    Raises:
        CorruptionError: The file is empty, though a store was here.
        FormatVersionError: Another engine, byte order or word size wrote it.
        NotAStoreError: It is something else.
    """
    if not head:
        raise CorruptionError(
            "the data file is empty, but a store was made here",
            where=where,
            hint="Restore the store from a backup; do not open it for writing.",
        )
    swapped = MAGIC.to_bytes(4, "big" if sys.byteorder == "little" else "little")
    for offset in range(0, min(len(head), 64) - 7, 4):
        word = head[offset : offset + 4]
        if word == swapped:
            raise FormatVersionError(
                "the data file was written on a machine of the other byte order",
                found="other byte order",
                supported=sys.byteorder,
            )
        if _U32.unpack(word)[0] != MAGIC:
            continue
        version = _U32.unpack_from(head, offset + 4)[0]
        if offset != _HEADER or version != DATA_VERSION:
            raise FormatVersionError(
                f"the data file has LMDB's data format {version}, this release reads "
                f"{DATA_VERSION} (LMDB 0.9, 64 bit)",
                found=f"LMDB data format {version}",
                supported=f"LMDB data format {DATA_VERSION}",
            )
        return
    raise NotAStoreError(f"{where} is not a data file of LMDB")


class DataFile:
    """Reads of an open data file, page by page."""

    def __init__(self, descriptor: int, where: str) -> None:
        self.descriptor = descriptor
        self.where = where

    def size(self) -> int:
        """Bytes of the file now."""
        return os.fstat(self.descriptor).st_size

    def _read(self, size: int, offset: int) -> bytes:
        data = os.pread(self.descriptor, size, offset)
        if len(data) != size:
            raise _Damage(f"ends at byte {offset + len(data)}, in the middle of what is in use")
        return data

    def metas(self) -> tuple[Meta, Meta]:
        """Both meta pages, the newer one first.

        Raises:
            CorruptionError, FormatVersionError, NotAStoreError: As ``refuse_foreign``.
        """
        head = os.pread(self.descriptor, PAGE_BYTES_MAX + _META_BYTES, 0)
        try:
            first = decode_meta(head[:_META_BYTES], 0) if len(head) >= _META_BYTES else None
        except _Damage:
            first = None
        page_bytes = PAGE_BYTES_MAX if first is None else first.page_bytes
        if first is None:
            # A damaged page 0 of our own file: page 1 lies at one of eight places and still
            # carries the magic number. Without it the file is somebody else's.
            for page_bytes in _page_sizes():
                second = head[page_bytes : page_bytes + _META_BYTES]
                if _looks_like_meta(second):
                    raise _Damage("meta page 0 is damaged")
            refuse_foreign(head, self.where)
            decode_meta(head[:_META_BYTES].ljust(_META_BYTES, b"\0"), 0)
            raise _Damage("ends inside its first page")
        tail = head[page_bytes : page_bytes + _META_BYTES]
        if len(tail) < _META_BYTES:
            raise _Damage(f"has {self.size()} bytes, less than its two meta pages")
        second_meta = decode_meta(tail, 1)
        if second_meta.page_bytes != page_bytes:
            raise _Damage("the meta pages differ in page size")
        for meta in (first, second_meta):
            if meta.transaction and meta.transaction & 1 != meta.number:
                raise _Damage(f"meta page {meta.number} names transaction {meta.transaction}")
        newer, older = sorted((first, second_meta), key=lambda meta: meta.transaction)[::-1]
        if newer.transaction - older.transaction != 1:
            raise _Damage(
                f"the meta pages name transactions {older.transaction} and {newer.transaction}, "
                "which do not follow each other"
            )
        return newer, older

    def lookup(self, meta: Meta, table: bytes, key: bytes) -> bytes | None:
        """One value of a named database, as of a meta page; None when it is not there.

        Raises:
            OSError: The file cannot be read.
        """
        row = self._find(meta, meta.main, table, _SUBTREE)
        if row is None:
            return None
        if len(row) != _TREE.size:
            raise _Damage(f"the row of database {table!r} has {len(row)} bytes")
        return self._find(meta, decode_tree(row), key, 0)

    def _page(self, meta: Meta, number: int) -> bytes:
        if not 2 <= number <= meta.last_page:
            raise _Damage(f"a pointer to page {number} of {meta.last_page}")
        page = self._read(meta.page_bytes, number * meta.page_bytes)
        if _U64.unpack_from(page)[0] != number:
            raise _Damage(f"page {number} calls itself page {_U64.unpack_from(page)[0]}")
        return page

    def _find(self, meta: Meta, tree: Tree, key: bytes, flags: int) -> bytes | None:
        """Walk from the root to the leaf: as many pages as the tree has levels."""
        if tree.root is None:
            return None
        number = tree.root
        for level in range(tree.depth, 0, -1):
            page = self._tree_page(meta, number, level)
            if level == 1:
                return self._leaf_value(meta, number, page, key, flags)
            number = _child(page, number, key)
        raise AssertionError("a tree of at least one level ends in a leaf")

    def _tree_page(self, meta: Meta, number: int, level: int) -> bytes:
        page = self._page(meta, number)
        wanted = LEAF if level == 1 else BRANCH
        kind = _PAGE_HEADER.unpack_from(page)[2]
        if kind != wanted:
            raise _Damage(f"page {number} has flags {kind:#x} where {wanted:#x} is due")
        return page

    def values(self, meta: Meta, tree: Tree) -> Iterator[bytes]:
        """All values of a database that holds no other, the order of keys not kept.

        Raises:
            OSError: The file cannot be read.
        """
        waiting = [] if tree.root is None else [(tree.root, tree.depth)]
        looked = 0
        while waiting:
            number, level = waiting.pop()
            looked += 1
            if looked > meta.last_page:
                raise _Damage("its pages point in circles")
            page = self._tree_page(meta, number, level)
            for offset in _nodes(page, number):
                if level > 1:
                    low, high, top, _ = _NODE.unpack_from(page, offset)
                    waiting.append((low | high << 16 | top << 32, level - 1))
                    continue
                low, high, flags, key_bytes = _NODE.unpack_from(page, offset)
                if flags & ~BIG:
                    raise _Damage(f"page {number} has flags {flags:#x} on a plain value")
                start = offset + _NODE.size + key_bytes
                yield self._value(meta, number, page, start, low | high << 16, flags)

    def _leaf_value(
        self, meta: Meta, number: int, page: bytes, key: bytes, wanted_flags: int
    ) -> bytes | None:
        for offset in _nodes(page, number):
            low, high, flags, key_bytes = _NODE.unpack_from(page, offset)
            start = offset + _NODE.size + key_bytes
            if start > len(page):
                raise _Damage(f"page {number} has a key past its end")
            if page[offset + _NODE.size : start] != key:
                continue
            size = low | high << 16
            if flags & ~BIG != wanted_flags:
                raise _Damage(f"page {number} has flags {flags:#x} on {key!r}")
            if size > VALUE_BYTES_MAX:
                raise _Damage(f"page {number} has a value of {size} bytes under {key!r}")
            return self._value(meta, number, page, start, size, flags)
        return None

    def _value(
        self, meta: Meta, number: int, page: bytes, start: int, size: int, flags: int
    ) -> bytes:
        if not flags & BIG:
            if start + size > len(page):
                raise _Damage(f"page {number} has a value past its end")
            return page[start : start + size]
        if start + _U64.size > len(page):
            raise _Damage(f"page {number} has a pointer past its end")
        return self._big_value(meta, _U64.unpack_from(page, start)[0], size)

    def _big_value(self, meta: Meta, number: int, size: int) -> bytes:
        first = self._page(meta, number)
        flags = _PAGE_HEADER.unpack_from(first)[2]
        pages = _U32.unpack_from(first, 12)[0]
        if flags != OVERFLOW or pages != (_HEADER - 1 + size) // meta.page_bytes + 1:
            raise _Damage(f"page {number} is not the overflow page of a value of {size} bytes")
        if number + pages - 1 > meta.last_page:
            raise _Damage(f"page {number} starts a value that ends past the last page")
        return self._read(size, number * meta.page_bytes + _HEADER)


def pin(file: DataFile, transaction: int) -> tuple[Meta, bytes] | None:
    """The meta page of a commit, and the first two pages of a copy that holds this commit only.

    In the copy the older meta page names the transaction before and leads to the same pages, since
    what only that one leads to may be written over while the copy is made.

    Args:
        file: The data file; a read transaction keeps the pages of the commit.
        transaction: Its transaction.

    Returns:
        None when later commits have taken the place of its meta page.

    Raises:
        CorruptionError, NotAStoreError, FormatVersionError: As ``examine``.
    """
    found = [meta for meta in _stable_metas(file, file.where) if meta.transaction == transaction]
    if not found:
        return None
    meta = found[0]
    page = os.pread(file.descriptor, _META_BYTES, meta.number * meta.page_bytes)
    if len(page) != _META_BYTES or decode_meta(page, meta.number) != meta:
        return None
    fields = _META.unpack_from(page, _HEADER)
    pages = [b"", b""]
    for number, named in ((meta.number, transaction), (1 - meta.number, transaction - 1)):
        header = _PAGE_HEADER.pack(number, 0, _IS_META, 0, 0)
        pages[number] = (header + _META.pack(*fields[:-1], named)).ljust(meta.page_bytes, b"\0")
    return meta, b"".join(pages)


def free_lists(file: DataFile, meta: Meta) -> list[bytes]:
    """The values of LMDB's database of free pages, of a commit whose pages a transaction keeps.

    Raises:
        CorruptionError: It cannot be walked.
    """
    try:
        return list(file.values(meta, decode_tree(meta.free)))
    except _Damage as damage:
        raise CorruptionError(
            f"its free pages cannot be told: {damage}", where=file.where
        ) from damage


def _page_sizes() -> list[int]:
    return [PAGE_BYTES_MIN << shift for shift in range(8)]


def _looks_like_meta(page: bytes) -> bool:
    try:
        return len(page) == _META_BYTES and decode_meta(page, 1) is not None
    except _Damage:
        return False


def _nodes(page: bytes, number: int) -> tuple[int, ...]:
    """Offsets of the nodes of a branch or leaf page, in key order."""
    lower, upper = _PAGE_HEADER.unpack_from(page)[3:]
    if not _HEADER <= lower <= upper <= len(page) or lower & 1:
        raise _Damage(f"page {number} has bounds {lower} and {upper}")
    count = (lower - _HEADER) // 2
    offsets: tuple[int, ...] = struct.unpack_from(f"={count}H", page, _HEADER)
    for offset in offsets:
        if not upper <= offset <= len(page) - _NODE.size:
            raise _Damage(f"page {number} has a node at {offset}")
    return offsets


def _child(page: bytes, number: int, key: bytes) -> int:
    """The page below a branch page where a key must be; its first key stands for all below it."""
    child: int | None = None
    for index, offset in enumerate(_nodes(page, number)):
        low, high, top, key_bytes = _NODE.unpack_from(page, offset)
        start = offset + _NODE.size
        if start + key_bytes > len(page):
            raise _Damage(f"page {number} has a key past its end")
        if index and page[start : start + key_bytes] > key:
            break
        child = low | high << 16 | top << 32
    if child is None:
        raise _Damage(f"branch page {number} is empty")
    return child


def examine(
    path: str | os.PathLike[str],
    decode: Callable[[bytes], Record],
    *,
    verify: bool = False,
    hold: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Examination[Record]:
    """Decide whether a data file may be mapped.

    Args:
        path: The data file.
        decode: Decodes a commit record; raises CorruptionError for bytes that are none.
        verify: Walk every page, whatever the rest says; about 150 MB/s.
        hold: Keeps other processes from committing; entered only to walk every page.

    Raises:
        CorruptionError: The file must not be mapped.
        NotAStoreError: It is no data file of LMDB.
        FormatVersionError: Another LMDB wrote it.
        StoreUnavailableError: It cannot be read.
    """
    where = os.fspath(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CorruptionError("the data file is missing", where=where) from error
    except OSError as error:
        raise _unreadable(where, error) from error
    try:
        file = DataFile(descriptor, where)
        found = _examine_once_stable(file, decode, where)
        # Healthy stores may be short: LMDB need not write the last pages of a transaction when it
        # freed them again. Only a walk tells such a file from one that lost its end.
        if not verify and found.file_bytes >= found.meta.bytes_in_use:
            return found
        with hold():
            found = _examine_once_stable(file, decode, where)
            if verify or found.file_bytes < found.meta.bytes_in_use:
                _walk(Path(path), where)
                return replace(found, verified=True)
            return found
    except OSError as error:
        raise _unreadable(where, error) from error
    finally:
        os.close(descriptor)


def glance(file: DataFile, decode: Callable[[bytes], Record]) -> Examination[Record]:
    """As ``examine``, of an open file, and without ever walking all pages.

    Raises:
        CorruptionError, NotAStoreError, FormatVersionError, StoreUnavailableError: As ``examine``.
    """
    try:
        return _examine_once_stable(file, decode, file.where)
    except OSError as error:
        raise _unreadable(file.where, error) from error


def read_metas(path: str | os.PathLike[str]) -> tuple[Meta, Meta]:
    """Both meta pages of a data file, the newer one first; cheap, and writes nothing.

    Raises:
        CorruptionError, NotAStoreError, FormatVersionError, StoreUnavailableError: As ``examine``.
    """
    where = os.fspath(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CorruptionError("the data file is missing", where=where) from error
    except OSError as error:
        raise _unreadable(where, error) from error
    try:
        return _stable_metas(DataFile(descriptor, where), where)
    except OSError as error:
        raise _unreadable(where, error) from error
    finally:
        os.close(descriptor)


def _stable_metas(file: DataFile, where: str) -> tuple[Meta, Meta]:
    """The meta pages; read again when one was just being written."""
    last: tuple[Meta, Meta] | _Damage | None = None
    for _ in range(ATTEMPTS_MAX):
        try:
            found: tuple[Meta, Meta] | _Damage = file.metas()
        except _Damage as damage:
            found = damage
        if isinstance(found, _Damage):
            # The same twice is no accident of a write in between.
            if isinstance(last, _Damage) and str(last) == str(found):
                raise CorruptionError(str(found), where=where) from found
        else:
            return found
        last = found
    raise CorruptionError("the meta pages are never whole", where=where)


def _examine_once_stable(
    file: DataFile, decode: Callable[[bytes], Record], where: str
) -> Examination[Record]:
    """Read until a look was not overtaken by commits of other processes (invariant 3)."""
    for _ in range(ATTEMPTS_MAX):
        newer, older = _stable_metas(file, where)
        found: Examination[Record] | TurnlogError
        try:
            found = _judge(file, newer, older, decode, where)
        except _Damage as damage:
            found = CorruptionError(str(damage), where=where)
            found.__cause__ = damage
        except CorruptionError as error:
            found = error
        overtaken = _stable_metas(file, where)[0].transaction - newer.transaction
        if isinstance(found, Examination) and overtaken <= 1:
            return found
        if isinstance(found, TurnlogError) and overtaken == 0:
            raise found
    raise StoreUnavailableError(
        f"{where} changes faster than it can be read", hint="Open the store again."
    )


def _judge(
    file: DataFile, newer: Meta, older: Meta, decode: Callable[[bytes], Record], where: str
) -> Examination[Record]:
    size = file.size()
    record = _commit_record(file, newer, decode)
    if record.transaction != newer.transaction:
        raise CorruptionError(
            f"meta page {newer.number} names transaction {newer.transaction}, its commit record "
            f"{record.transaction}: a commit was rolled back, or a page is stale",
            where=where,
        )
    if size < record.file_bytes:
        raise CorruptionError(
            f"the data file has {size} bytes and had {record.file_bytes} when the last commit "
            "was written: its end is gone",
            where=where,
            hint="Restore the store from a backup; do not open it for writing.",
        )
    missing = newer.bytes_in_use - size
    if missing > MISSING_BYTES_MAX:
        raise _Damage(f"{missing} bytes are missing at its end")
    if newer.bytes_in_use > newer.map_bytes:
        raise _Damage(f"{newer.bytes_in_use} bytes are in use in a map of {newer.map_bytes}")
    return Examination(newer, record, size, warnings=_taken_back(file, newer, older, decode, where))


def _taken_back(
    file: DataFile, newer: Meta, older: Meta, decode: Callable[[bytes], Record], where: str
) -> tuple[str, ...]:
    """Whether the older meta page belongs to a commit after the newer one (invariant 2)."""
    whole_file = replace(older, last_page=max(2, file.size() // older.page_bytes - 1))
    try:
        found = _commit_record(file, whole_file, decode)
    except (_Damage, CorruptionError):
        return ()  # nothing depends on the older page any more
    if found.transaction <= newer.transaction:
        return ()
    message = (
        f"transaction {found.transaction} was written after {newer.transaction}, and meta page "
        f"{older.number} says {older.transaction}"
    )
    if older.last_page > newer.last_page:  # LMDB would have put the older number back
        raise CorruptionError(f"{message}: a commit was rolled back", where=where)
    return (f"{message}: a commit failed in I/O, or was rolled back",)


def _commit_record(file: DataFile, meta: Meta, decode: Callable[[bytes], Record]) -> Record:
    value = file.lookup(meta, COMMIT_TABLE, COMMIT_KEY)
    if value is None:
        raise _Damage(f"transaction {meta.transaction} has no commit record")
    return decode(value)


def _walk(path: Path, where: str) -> None:
    """Walk every page with the structural verifier, which never maps the file."""
    try:
        findings = verify_structure(path, subdir=False)  # type: ignore[no-untyped-call]
    except OSError:
        raise
    except (VerifyError, ValueError, ArithmeticError, LookupError) as error:
        raise CorruptionError(f"its pages cannot be walked: {error}", where=where) from error
    except (struct.error, TypeError, RecursionError, MemoryError) as error:
        raise CorruptionError(f"its pages cannot be walked: {error}", where=where) from error
    if findings:
        raise CorruptionError(
            f"{len(findings)} findings in its structure, the first: {findings[0]}", where=where
        )


def _unreadable(where: str, error: OSError) -> TurnlogError:
    message = f"{where} cannot be read: {error.strerror}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return StoreUnavailableError(message, hint="Open the store as the user who owns it.")
    return map_os_error(error.errno or 0, message)
