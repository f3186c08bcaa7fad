"""Letting others run: long work on a thread of the pool gives the GIL up now and then."""

from __future__ import annotations

from typing import Final

from eventlog.seams import CLOCK

SLICE_US: Final = 500  # of Python at a stretch; an event loop beside it waits no longer


class Pause:
    """Called between two short steps of work; belongs to one thread."""

    __slots__ = ("_begun_us",)

    def __init__(self) -> None:
        self._begun_us = CLOCK.monotonic_us()

    def __call__(self) -> None:
        """Let the GIL go if the slice is used up."""
        if CLOCK.monotonic_us() - self._begun_us > SLICE_US:
            CLOCK.sleep(0)
            self._begun_us = CLOCK.monotonic_us()
