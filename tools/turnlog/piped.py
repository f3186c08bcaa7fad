"""Standard input and pipes, which can be read once, as files that can be read again."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

STANDARD_INPUT: Final = Path("-")


def is_piped(path: Path) -> bool:
    """Whether a command line's path means something that can be read only once."""
    return path == STANDARD_INPUT or path.is_fifo()


def name_of(path: Path) -> str:
    """What messages call it."""
    return "standard input" if path == STANDARD_INPUT else str(path)


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """A temporary file with all that comes through; waits for its end."""
    with NamedTemporaryFile(prefix="turnlog-") as copy:
        with nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else path.open("rb") as source:
            shutil.copyfileobj(source, copy)
        copy.flush()
        yield Path(copy.name)
