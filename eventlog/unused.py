"""What the pages of one commit do not use: a copy does without what lies there.

Rows that were erased stay readable in the file until LMDB writes over them: in its free pages, and
in pages that are in use between their nodes or behind a large value, as LMDB writes pages from
buffers that held others. All this becomes zeros.

The free pages stand in a database of LMDB's own (``FREE_DBI`` in ``mdb.c``): under the transaction
that freed them a count and so many page numbers, u64 in native order. Each other page belongs to a
tree, the one of free pages among them, or to a large value, whose first page says how many it has.
So pages are told apart by going through them in order.

Invariant: whoever walks every page of the copy finds out whether that was so (``raw``): no page is
both free and in use, or neither, and each large value has as many pages as its first one says.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

from eventlog.errors import CorruptionError
from eventlog.raw import BIG, BRANCH, LEAF, OVERFLOW, DataFile, Meta, free_lists

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOLE_BYTES_MIN: Final = 65_536  # zeros that become a hole; shorter ones would cost more writes

_HEADER_BYTES: Final = 16
_NODE_BYTES: Final = 8
_NUMBER_BYTES: Final = 8
_U64: Final = Struct("=Q")
_NODE: Final = Struct("=HHHH")  # low and high half of the size, flags, key size
_TREE_FLAGS: Final = (BRANCH, LEAF)


class Unused:
    """What a copy of one commit leaves out; its pieces come in order.

    Args:
        file: The data file; a read transaction keeps the pages of the commit.
        meta: Its meta page.

    Raises:
        CorruptionError: The lists of free pages cannot be what LMDB writes.
    """

    def __init__(self, file: DataFile, meta: Meta) -> None:
        self._where = file.where
        self._page_bytes = meta.page_bytes
        self._starts, self._stops = _ranges(_free_pages(file, meta))
        self._following = 0  # the page after those of the last large value
        self._stop = meta.bytes_in_use
        self._tails = array("Q")  # where each begins, and its size

    def parts(self, piece: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
        """What is to be written of a piece of the file, and where.

        Args:
            piece: Whole pages, but at the end of the file.
            offset: Where it lies.

        Raises:
            CorruptionError: A page in use is not what its number says.
        """
        page_bytes = self._page_bytes
        assert not offset % page_bytes
        first, last = offset // page_bytes, (offset + len(piece)) // page_bytes
        ranges = self._free(first, last + 1)
        kept = bytearray(piece)
        is_used = np.ones(last - first, np.bool_)
        for start, stop in ranges:
            is_used[start - first : stop - first] = False
        self._clear(kept, first, (np.flatnonzero(is_used) + first).tolist())
        done = 0
        for start, stop in ranges:
            begin, end = (start - first) * page_bytes, (stop - first) * page_bytes
            end = min(end, len(kept))
            kept[begin:end] = bytes(end - begin)
            if end - begin >= HOLE_BYTES_MIN:
                yield offset + done, bytes(kept[done:begin])
                done = end
        yield offset + done, bytes(kept[done:])

    def tails(self) -> Iterator[tuple[int, bytes]]:
        """After the last piece: the zeros behind large values, and where they are to be written."""
        for start, size in zip(self._tails[::2], self._tails[1::2], strict=True):
            yield start, bytes(size)

    def _free(self, first: int, stop: int) -> list[tuple[int, int]]:
        """The runs of free pages among some."""
        begin = int(np.searchsorted(self._stops, first, side="right"))
        end = int(np.searchsorted(self._starts, stop, side="left"))
        runs = zip(self._starts[begin:end].tolist(), self._stops[begin:end].tolist(), strict=True)
        return [(max(start, first), min(last, stop)) for start, last in runs]

    def _clear(self, kept: bytearray, first: int, used: list[int]) -> None:
        """Zeros between the nodes of the tree pages among some in use."""
        page_bytes = self._page_bytes
        whole = len(kept) // page_bytes * page_bytes
        words = np.frombuffer(kept, np.uint16, whole // 2).reshape(-1, page_bytes // 2)
        flags, lowers, uppers = (words[:, place].tolist() for place in (5, 6, 7))
        leaves: list[int] = []
        for number in used:
            if number < self._following:
                continue
            place = number - first
            if _U64.unpack_from(kept, place * page_bytes)[0] != number:
                raise CorruptionError(f"page {number} is not what it says", where=self._where)
            lower, upper = lowers[place], uppers[place]
            if flags[place] == OVERFLOW:
                self._following = number + (lower | upper << 16)
            elif flags[place] in _TREE_FLAGS and _HEADER_BYTES <= lower <= upper <= page_bytes:
                start = place * page_bytes
                kept[start + lower : start + upper] = bytes(upper - lower)
                if flags[place] == LEAF and lower > _HEADER_BYTES:
                    leaves.append(place)
        if leaves:
            self._note_tails(kept, words, np.array(leaves))

    def _note_tails(
        self, kept: bytearray, words: NDArray[np.uint16], leaves: NDArray[np.int64]
    ) -> None:
        """Note what lies behind the large values that leaf pages lead to."""
        page_bytes = self._page_bytes
        counts = (words[leaves, 6].astype(np.int64) - _HEADER_BYTES) // 2
        places = np.repeat(leaves, counts)
        indexes = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        nodes = words[places, _HEADER_BYTES // 2 + indexes].astype(np.int64)
        nodes_max = page_bytes - _NODE_BYTES
        is_whole = (nodes >= _HEADER_BYTES) & (nodes <= nodes_max) & (nodes % 2 == 0)
        places, nodes = places[is_whole], nodes[is_whole]
        is_big = words[places, nodes // 2 + 2] & BIG != 0
        for place, node in zip(places[is_big].tolist(), nodes[is_big].tolist(), strict=True):
            start = place * page_bytes + node
            low, high, _, key_bytes = _NODE.unpack_from(kept, start)
            if node + _NODE_BYTES + key_bytes + _NUMBER_BYTES > page_bytes:
                continue  # damage, which a walk finds
            number = _U64.unpack_from(kept, start + _NODE_BYTES + key_bytes)[0]
            end = number * page_bytes + _HEADER_BYTES + (low | high << 16)
            if number > 1 and end < self._stop and end % page_bytes:
                self._tails.extend((end, -end % page_bytes))


def _free_pages(file: DataFile, meta: Meta) -> NDArray[np.int64]:
    """Numbers of the free pages of a commit, in order."""
    lists = [np.empty(0, np.uint64)]
    for value in free_lists(file, meta):
        whole = len(value) - len(value) % _NUMBER_BYTES
        numbers = np.frombuffer(value[:whole], np.uint64)
        if whole != len(value) or not whole or int(numbers[0]) != len(numbers) - 1:
            raise CorruptionError(
                f"a list of free pages has {len(value)} bytes and another count", where=file.where
            )
        lists.append(numbers[1:])
    pages = np.unique(np.concatenate(lists))
    if len(pages) and not 2 <= int(pages[0]) <= int(pages[-1]) <= meta.last_page:
        raise CorruptionError(
            f"free pages from {pages[0]} to {pages[-1]} of {meta.last_page}", where=file.where
        )
    return pages.astype(np.int64)


def _ranges(pages: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first pages of all runs, and the pages after their last ones."""
    if not len(pages):
        return pages, pages
    ends = np.flatnonzero(np.diff(pages) > 1)
    starts = pages[np.concatenate(([0], ends + 1))]
    return starts, pages[np.concatenate((ends, [len(pages) - 1]))] + 1
