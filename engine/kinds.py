"""Kinds and roles: names ⇄ the codes in a record's header.

Public kinds build the history; control kinds are facts beside it, written by the store's own
calls. An application kind is any other name; its code is ``APPLICATION`` and its name travels
with the event.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from eventlog.arguments import items, shown
from eventlog.errors import InvalidNameError, UsageError
from eventlog.limits import KIND_BYTES_MAX
from eventlog.record import (
    ANNOTATION,
    ARTIFACTS,
    BASE,
    BRANCH_NAME,
    CONTROL,
    DOCUMENTS,
    FACTS,
    HEAD_MOVE,
    LINK,
    MESSAGE,
    METRIC,
    OPTIONS,
    REDACTION,
    ROLL_UP,
    RUNS,
    TOMBSTONE,
    TOOL_CALLS,
    USAGE,
    VARIABLES,
    VOID,
)

APPLICATION: Final = 15
COMPACTION: Final = 8

PUBLIC: Final = {
    "message": MESSAGE,
    "event": 2,
    "summary": 3,
    "metadata": 4,
    "model_change": 5,
    "label": 6,
    "custom": 7,
    "compaction": COMPACTION,
}
CONTROLS: Final = {
    "open": CONTROL,
    "tombstone": TOMBSTONE,
    "base": BASE,
    "variables": VARIABLES,
    "roll_up": ROLL_UP,
    "options": OPTIONS,
    "void": VOID,
    "head_move": HEAD_MOVE,
    "branch_name": BRANCH_NAME,
    "link": LINK,
    "metric": METRIC,
    "annotation": ANNOTATION,
    "facts": FACTS,
    "documents": DOCUMENTS,
    "usage": USAGE,
    "artifacts": ARTIFACTS,
    "runs": RUNS,
    "tool_calls": TOOL_CALLS,
    "redaction": REDACTION,
}
# Control kinds that callers append: facts beside the history, that no head is checked for.
SIDE: Final = frozenset({"metric", "annotation"})
# Control kinds that an export holds.
LOADABLE: Final = frozenset(CONTROLS) - {"tombstone", "options", "void"}
# Those of version 2 alone.
SECOND: Final = frozenset(CONTROLS) - {"open"}
# Names that later control kinds will have; none may mean something else in a store by then.
RESERVED: Final = frozenset(
    "artifact checkout document fact head heads head_moves media "
    "option run status tombstones tool_call track tracks trim trims truncation "
    "truncations variable".split()
)
_CODES: Final = {**PUBLIC, **CONTROLS}
_NAMES: Final = {code: name for name, code in _CODES.items()}

ROLES: Final = {"system": 1, "user": 2, "assistant": 3, "tool": 4, "developer": 5, "toolResult": 6}
_ROLE_NAMES: Final = {code: name for name, code in ROLES.items()}
_TOOL_ROLES: Final = (ROLES["tool"], ROLES["toolResult"])

assert all(code < APPLICATION for code in PUBLIC.values())
assert CONTROL > APPLICATION


def kind_code(kind: str, *, loading: bool = False) -> int:
    """The code of a kind that a caller may append.

    Args:
        kind: A public or application kind.
        loading: Also allow control kinds, as an export holds them.

    Raises:
        UsageError: A control kind, or a name that is kept for one.
        InvalidNameError: Not a name of 1 to 64 UTF-8 bytes.
    """
    if type(kind) is not str:
        raise InvalidNameError(f"kind must be a str, not {type(kind).__name__}")
    code = PUBLIC.get(kind)
    if code is not None:
        return code
    if kind in CONTROLS:
        if kind in SIDE or (loading and kind in LOADABLE):
            return CONTROLS[kind]
        raise UsageError(f"kind {kind!r} is written by the store itself")
    if kind in RESERVED:
        raise UsageError(
            f"kind {kind!r} is reserved for the store",
            hint="Give the kind another name, such as one with a prefix of the application.",
        )
    if len(kind) > KIND_BYTES_MAX:
        unit = "UTF-8 bytes" if kind.isascii() else "characters"
        raise InvalidNameError(f"kind has {len(kind)} {unit}; allowed are 1 to {KIND_BYTES_MAX}")
    try:
        size = len(kind.encode())
    except UnicodeEncodeError as error:
        raise InvalidNameError(f"kind {kind!a} holds a lone surrogate") from error
    if not 1 <= size <= KIND_BYTES_MAX:
        raise InvalidNameError(f"kind has {size} UTF-8 bytes; allowed are 1 to {KIND_BYTES_MAX}")
    return APPLICATION


def kind_name(code: int) -> str | None:
    """The name of a kind's code; None for an application kind."""
    return _NAMES.get(code)


def role_name(code: int) -> str | None:
    """The name of a role's code; None for a role that has none."""
    return _ROLE_NAMES.get(code)


def is_indexable(kind: int, role: int) -> bool:
    """True for what a search may find: messages, but never a tool's."""
    return kind == MESSAGE and role not in _TOOL_ROLES


def kind_names(kinds: Collection[str]) -> frozenset[str]:
    """The kinds that a caller asks for; one alone may be given by its name."""
    names = [kinds] if type(kinds) is str else items(kinds, "kinds")
    for name in names:
        if type(name) is not str:
            raise UsageError(f"kinds must hold names of kinds, not {shown(name)}")
    return frozenset(names)
