"""Spans that must not be cut in two, such as from a tool call to its last result; pure.

Invariants:
    1. A bound that is at most a span's first number, or above its last, does not cut it.
    2. Building sorts once, and a question is one bisection, however many spans overlap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable


class Spans:
    """Spans, merged where no bound falls between.

    Args:
        spans: Of each the first and the last number.
        pause: Called between a few.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(
        self, spans: Iterable[tuple[int, int]], pause: Callable[[], None] | None = None
    ) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(spans):
            if self._lasts and first <= self._lasts[-1]:
                self._lasts[-1] = max(self._lasts[-1], last)
            else:
                self._firsts.append(first)
                self._lasts.append(last)
            if pause is not None:
                pause()

    def bound(self, wanted: int) -> int:
        """The last bound up to one that cuts no span."""
        index = bisect_left(self._firsts, wanted) - 1
        return self._firsts[index] if index >= 0 and wanted <= self._lasts[index] else wanted
