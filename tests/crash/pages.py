"""What each byte of a data file is: which page, of which database, and which part of it.

Reads the file itself (data format 1 of LMDB, as ``eventlog.raw`` describes it) and maps nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from struct import Struct
from typing import Final

PAGE_BYTES: Final = 4096
HEADER_BYTES: Final = 16
META_BYTES: Final = 136  # of a meta page, behind its header
_TREES_AT: Final = (
    HEADER_BYTES + 24
)  # in a meta page: two trees of 48 bytes, last page, transaction
_HEADER: Final = Struct("<QHHHH")
_NODE: Final = Struct("<HHHH")
_TREE: Final = Struct("<IHHQQQQQ")
_U64: Final = Struct("<Q")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG, _SUBTREE = 1, 2
_NO_PAGE: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of one sort, up to the next span.

    Attributes:
        start: The first of them.
        database: Whose they are: a named database, ``meta``, ``main``, ``free list``, or ``free``
            for what the newest commit does not use.
        part: ``page`` (headers, pointers, branch pages), ``key``, ``value`` or ``slack``.
        key: Of a key or value, the row's key.
    """

    start: int
    database: str
    part: str
    key: bytes = b""


class Layout:
    """The spans of a data file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._spans: list[Span] = []
        self.size = len(data)
        for number in (0, 1):
            start = number * PAGE_BYTES
            self._spans += [
                Span(start, "meta", "page"),
                Span(start + HEADER_BYTES + META_BYTES, "meta", "slack"),
            ]
        metas = [self._meta(number) for number in (0, 1)]
        newest = max((0, 1), key=lambda number: metas[number][1])
        self.newest_meta = newest
        self._used = {0, 1}
        trees = newest * PAGE_BYTES + _TREES_AT
        self._walk_tree("free list", data[trees : trees + _TREE.size])
        for name, row in self._walk_tree("main", data[trees + 48 : trees + 96]):
            self._walk_tree(name.decode(), row)
        for number in range(len(data) // PAGE_BYTES):
            if number not in self._used:
                self._spans.append(Span(number * PAGE_BYTES, "free", "page"))
        self._spans.sort(key=lambda span: span.start)
        self._starts = [span.start for span in self._spans]

    def _meta(self, number: int) -> tuple[int, int]:
        at = number * PAGE_BYTES + HEADER_BYTES + META_BYTES - 16
        last, transaction = (
            _U64.unpack_from(self._data, at)[0],
            _U64.unpack_from(self._data, at + 8)[0],
        )
        return last, transaction

    def _walk_tree(self, name: str, row: bytes) -> list[tuple[bytes, bytes]]:
        """Note the pages of a database; the rows of the databases that its leaves name."""
        *_, root = _TREE.unpack(row)
        found: list[tuple[bytes, bytes]] = []
        waiting = [] if root == _NO_PAGE else [root]
        while waiting:
            waiting += self._walk_page(name, waiting.pop(), found)
        return found

    def _walk_page(self, name: str, number: int, found: list[tuple[bytes, bytes]]) -> list[int]:
        base = number * PAGE_BYTES
        self._used.add(number)
        page = self._data[base : base + PAGE_BYTES]
        _, _, flags, lower, _ = _HEADER.unpack_from(page)
        places = [
            int.from_bytes(page[at : at + 2], "little") for at in range(HEADER_BYTES, lower, 2)
        ]
        self._spans.append(Span(base, name, "page"))
        if flags & _BRANCH:
            children = []
            for place in places:
                low, high, more, _ = _NODE.unpack_from(page, place)
                children.append(low | high << 16 | more << 32)
            return children
        assert flags & _LEAF, (name, number, flags)
        self._spans.append(Span(base + lower, name, "slack"))
        for place in sorted(places):
            low, high, node_flags, key_bytes = _NODE.unpack_from(page, place)
            key_at = place + _NODE.size
            start, size = key_at + key_bytes, low | high << 16
            key = page[key_at:start]
            self._spans.append(Span(base + place, name, "page"))
            self._spans.append(Span(base + key_at, name, "key", key))
            if node_flags & _BIG:
                self._spans.append(Span(base + start, name, "page"))
                first = _U64.unpack_from(page, start)[0]
                self._big(name, first, key, size)
                end = start + 8
            else:
                self._spans.append(Span(base + start, name, "value", key))
                end = start + size
                if node_flags & _SUBTREE:
                    found.append((key, page[start:end]))
            self._spans.append(Span(base + end, name, "slack"))
        return []

    def _big(self, name: str, first: int, key: bytes, size: int) -> None:
        base = first * PAGE_BYTES
        pages = (HEADER_BYTES - 1 + size) // PAGE_BYTES + 1
        self._used.update(range(first, first + pages))
        self._spans += [
            Span(base, name, "page"),
            Span(base + HEADER_BYTES, name, "value", key),
            Span(base + HEADER_BYTES + size, name, "slack"),
        ]

    def at(self, offset: int) -> Span:
        """What a byte is."""
        return self._spans[bisect_right(self._starts, offset) - 1]

    def spans(self, database: str, part: str) -> list[Span]:
        """Those of one sort."""
        return [span for span in self._spans if (span.database, span.part) == (database, part)]

    def counts(self) -> dict[tuple[str, str], int]:
        """How many bytes there are of each sort."""
        found: Counter[tuple[str, str]] = Counter()
        for span, following in zip(self._spans, [*self._starts[1:], self.size], strict=True):
            found[span.database, span.part] += following - span.start
        return dict(found)
