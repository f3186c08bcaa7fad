"""What stands beside the history and belongs to events of it: whether it is on a path.

What is appended in a space whose events belong to others has, in its value, the ``event`` that it
belongs to and that one's ``branch``. What was written before there was any event has neither, and
is on every path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.variables import StoredVariable
from eventlog.branching import Stretch
from eventlog.errors import CorruptionError


def value_of(
    stored: StoredVariable, may: Mapping[str, type] | None = None, **fields: type
) -> dict[str, Any]:
    """A value as the store's own calls write it, a new one each time.

    Args:
        stored: The row.
        may: What else it may have, and of what types.
        fields: What it has at least, and of what types.

    Raises:
        CorruptionError: It was loaded from lines that no such call wrote.
    """
    value = stored.value()
    if (
        type(value) is not dict
        or any([type(value.get(name)) is not kind for name, kind in fields.items()])
        or any(
            [name in value and type(value[name]) is not kind for name, kind in (may or {}).items()]
        )
    ):
        raise CorruptionError("is of another shape", where=f"{stored} at {stored.sequence}")
    return value


def is_on(path: Sequence[Stretch] | None, value: Mapping[str, Any]) -> bool:
    """Whether what has that value belongs to an event on a path; None stands for all paths.

    What follows a fork before its first event has the fork's branch and the event before it.
    """
    if path is None or "event" not in value:
        return True
    event, branch = value["event"], value.get("branch")
    return any([each.branch == branch and each.after <= event <= each.last for each in path])
