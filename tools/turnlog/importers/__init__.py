"""Importers: files of other systems, and turnlog's own export, as sessions of events.

`read_file` is the one way in. Each module reads one format and says in its docstring what becomes
of each part of it; `model` holds what they yield.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from eventlog.errors import UsageError
from turnlog.formats import FORMATS
from turnlog.importers import (
    chatgpt,
    chatterbot,
    claude_code,
    crosswoz,
    jsonl,
    librechat,
    oasst,
    openai,
    openhands,
    pi,
    realpersonachat,
    sgd,
    swe_agent,
    taskmaster,
    tau_bench,
)
from turnlog.importers.detect import detect
from turnlog.importers.model import Damage, Mend, ParsedEvent, ParsedSession
from turnlog.importers.records import UnreadableFileError, open_file

_READERS: Final[dict[str, Callable[[Path], Iterator[ParsedSession | Damage]]]] = {
    "jsonl": jsonl.read,
    "openai": openai.read,
    "claude-code": claude_code.read,
    "chatgpt": chatgpt.read,
    "librechat": librechat.read,
    "chatbot-ui": librechat.read_chatbot_ui,
    "oasst": oasst.read,
    "pi": pi.read,
    "openhands": openhands.read,
    "swe-agent": swe_agent.read,
    "sgd": sgd.read,
    "taskmaster": taskmaster.read,
    "crosswoz": crosswoz.read,
    "realpersonachat": realpersonachat.read,
    "chatterbot": chatterbot.read,
    "tau-bench": tau_bench.read,
}

assert list(_READERS) == list(FORMATS)

__all__ = [
    "FORMATS",
    "Damage",
    "Mend",
    "ParsedEvent",
    "ParsedSession",
    "UnreadableFileError",
    "detect",
    "read_file",
]


def read_file(path: Path, *, format: str | None = None) -> Iterator[ParsedSession | Damage]:
    """Read the sessions of a file.

    Sessions are decoded one by one while the iterator is drawn on. What is held at once is a
    document's text, or a session of line-based formats. The file must not change meanwhile.

    Args:
        path: A regular file.
        format: One of `FORMATS`; None guesses it from what the file holds.

    Returns:
        Sound sessions, and a `Damage` for each part that is not imported. Of a broken session
        nothing is yielded.

    Raises:
        UnreadableFileError: It is no regular file, or cannot be read.
        UsageError: The format has no such name.
        DamagedInputError: No format was named, and the file shows none.
    """
    open_file(path).close()
    name = detect(path) if format is None else format
    reader = _READERS.get(name)
    if reader is None:
        raise UsageError(
            f"no format is called {name!r}", hint=f"Name one of: {', '.join(FORMATS)}."
        )
    return reader(path)
