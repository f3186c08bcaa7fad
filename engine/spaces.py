"""Spaces: what control events set and delete by key, each kind of event in a space of its own.

A space is a map from keys to values, like a session's variables, which are the first of them. The
body of an event says what changed (``engine.variables``). A key's row lies in ``state`` under the
number of its space. What keys and values mean says the module of the space: ``documents``,
``usage``, ``artifacts``, ``runs``, ``toolcalls``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from eventlog.record import (
    ARTIFACTS,
    DOCUMENTS,
    FACTS,
    RUNS,
    TOOL_CALLS,
    USAGE,
    VARIABLES,
)


class Space(IntEnum):
    """The spaces, by their numbers in the keys of ``state``."""

    VARIABLES = 1
    FACTS = 4
    DOCUMENTS = 5
    USAGE = 6
    ARTIFACTS = 7
    RUNS = 8
    TOOL_CALLS = 9

    @property
    def title(self) -> str:
        """The name of the kind of its events, and of its part in a ``base``."""
        return self.name.lower()


KINDS: Final = {  # by space, the code of its events
    Space.VARIABLES: VARIABLES,
    Space.FACTS: FACTS,
    Space.DOCUMENTS: DOCUMENTS,
    Space.USAGE: USAGE,
    Space.ARTIFACTS: ARTIFACTS,
    Space.RUNS: RUNS,
    Space.TOOL_CALLS: TOOL_CALLS,
}
SPACES: Final = {code: space for space, code in KINDS.items()}
"""By the code of an event's kind, the space that it changes."""

assert set(KINDS) == set(Space)
