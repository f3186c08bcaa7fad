"""Change a store's options while it is open, here and elsewhere.

Invariant: the options and the commit record's generation change in one transaction; whoever sees
another generation reads the options again, before anything that depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final

from eventlog.rows import CommitRecord
from eventlog.tables import WriteTables


class Unchanged(Enum):
    """The value of an option that stays as it is, where None is one."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


class Configure:
    """The task that stores options; done in one step."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        """Take what makes new options of the stored ones.

        Args:
            change: From encoded options to encoded options; may raise.
        """
        self.done = False
        self._change = change

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        """Store the options, unless they are already so."""
        stored = tables.options()
        wanted = self._change(stored)
        self.done = True
        if wanted == stored:
            return None
        tables.put_options(wanted)
        return replace(record, generation=record.generation + 1)
