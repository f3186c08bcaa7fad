"""Exit codes: what a script can learn from a command without reading its words."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from eventlog.errors import (
    ConflictError,
    CorruptionError,
    DamagedInputError,
    FormatVersionError,
    NotAStoreError,
    StoreUnavailableError,
    SuspectStoreError,
    TrimmedError,
    TurnlogError,
    UsageError,
)


class ExitCode(IntEnum):
    """The exit codes of every verb."""

    OK = 0
    NEGATIVE = 1
    USAGE = 2
    DAMAGED_INPUT = 3
    UNAVAILABLE = 4
    NOT_A_STORE = 5
    CORRUPTION = 6
    INTERNAL = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: Final = {
    ExitCode.OK: "done",
    ExitCode.NEGATIVE: "a negative answer: findings, no such session, conflict",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.DAMAGED_INPUT: "an input is damaged, foreign or in conflict; the rest was imported",
    ExitCode.UNAVAILABLE: "the store is busy, full, overloaded or not permitted",
    ExitCode.NOT_A_STORE: "no store there, or a format that this release does not know",
    ExitCode.CORRUPTION: "bytes of the store are damaged; run turnlog check",
    ExitCode.INTERNAL: "a fault in turnlog itself; please report it with --traceback",
    ExitCode.INTERRUPTED: "ended by Ctrl-C",
    ExitCode.PIPE_CLOSED: "the reader of standard output went away",
}

_BY_ERROR: Final[tuple[tuple[type[TurnlogError], ExitCode], ...]] = (
    (DamagedInputError, ExitCode.DAMAGED_INPUT),
    (UsageError, ExitCode.USAGE),
    (ConflictError, ExitCode.NEGATIVE),
    (TrimmedError, ExitCode.NEGATIVE),
    (StoreUnavailableError, ExitCode.UNAVAILABLE),
    (NotAStoreError, ExitCode.NOT_A_STORE),
    (FormatVersionError, ExitCode.NOT_A_STORE),
    (SuspectStoreError, ExitCode.UNAVAILABLE),
    (CorruptionError, ExitCode.CORRUPTION),
)


def exit_code_of(error: TurnlogError) -> ExitCode:
    """The exit code that an error of the library ends a command with."""
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return ExitCode.INTERNAL


def exit_table() -> str:
    """The table that ``turnlog --help`` ends with."""
    return "\n".join(f"  {code.value:>3}  {MEANINGS[code]}" for code in ExitCode)
