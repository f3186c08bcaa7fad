"""What reaches the terminal: text made inert, one-line errors, tables, progress.

Invariants:
    1. No text from a store, a file or the command line moves the cursor, changes a colour, begins a
       line or reorders what stands beside it: everything passes ``escape`` on its way out.
    2. Rich markup in such text is never interpreted; styles are given beside the text.
    3. Colours and progress bars go to terminals only, and to none that is dumb; ``NO_COLOR`` turns
       styles off. Piped output is plain and complete.
    4. A standard error that cannot be written to loses the words, never the exit code.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from threading import Lock, Timer
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final

import typer

from engine.export import encode_line
from eventlog.errors import UsageError
from turnlog.exits import ExitCode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# All of Unicode's control (Cc), format (Cf), surrogate (Cs) and separator (Zl, Zp) characters;
# a test compares this with unicodedata.
_ACTING: Final = (
    "\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"
)
# The joiners U+200C and U+200D are let through (the first alternative, outside the group) between
# visible characters beyond ASCII, where Persian, Hindi and emoji need them.
_BESIDE: Final = f"[^ -~{_ACTING}]"
_UNSAFE: Final = re.compile(f"(?<={_BESIDE})[\u200c\u200d](?={_BESIDE})|([{_ACTING}])")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LINE_END: Final = re.compile("\r\n|\n|\r")
_PLAIN_NAME: Final = re.compile(r"[\w./:@%+,=~-]+")

DELAY_S: Final = 1.0  # seconds of work before a progress bar appears
CELLS_MAX: Final = 40  # of a column: what is longer shifts its own row only
CLIP_CHARS: Final = 80  # of a title, beside other things on a line


class Block(str):
    """Escaped text over several lines, as ``block`` makes it; its line feeds stay."""

    __slots__ = ()


def escape(text: str) -> str:
    """The text on one line, with everything that could act on a terminal spelled out.

    Printable text of any script comes back unchanged, and escaping twice changes nothing more.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_spelled, text)


def quote(name: str) -> str:
    """A name as one word: escaped, and in quotes where blanks or signs could mislead."""
    text = escape(name)
    return text if _PLAIN_NAME.fullmatch(text) else f"'{text}'"


def quoted(text: str) -> str:
    """What somebody wrote, such as a reason: escaped, and always in quotes."""
    return f"'{escape(text)}'"


def clipped(text: str) -> str:
    """A title as far as it fits beside other things on a line."""
    return text if len(text) <= CLIP_CHARS else f"{text[: CLIP_CHARS - 1]}…"


def counted(count: int, noun: str) -> str:
    """A number and its noun: ``1 event``, ``2,000 events``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(count: int) -> str:
    """A number of bytes in the unit in which it is easy to read."""
    if count < 10_000:
        return f"{count:,} B"
    return f"{count / 1024:,.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):,.1f} MiB"


def block(text: str, indent: str) -> Block:
    """The text over several lines, each after the first indented, tabs as blanks.

    The result ends no line and holds no control character but the newlines put in here.
    """
    lines = _LINE_END.split(text)
    return Block(f"\n{indent}".join(escape(line.replace("\t", "    ")) for line in lines))


def _spelled(match: re.Match[str]) -> str:
    char = match[1]
    if char is None:
        return match[0]
    short = _SHORT.get(char)
    if short is not None:
        return short
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Screen:
    """Standard output for one command.

    Args:
        stream: A text stream; data goes to its ``buffer`` as UTF-8.
        colours: Whether styles are shown; None asks the stream and the environment.
    """

    def __init__(self, stream: IO[str] | None = None, *, colours: bool | None = None) -> None:
        self._stream: IO[str] = sys.stdout if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._colours = _wants_colours(self._stream) if colours is None else colours
        self._console: Console | None = None
        _tolerate(self._stream)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Write one entry: strings, or pairs of a string and a style name of rich.

        Everything is escaped but a ``Block``, which is so already.
        """
        pairs = [(part, "") if isinstance(part, str) else part for part in parts]
        clean = [
            (text if isinstance(text, Block) else escape(text), style) for text, style in pairs
        ]
        if not self._colours:
            self._stream.write("".join(text for text, _ in clean) + "\n")
            return
        from rich.text import Text

        text = Text(no_wrap=True, end="\n")
        for part, style in clean:
            text.append(part, style or None)
        self._rich().print(text, soft_wrap=True)

    def data(self, mapping: Any) -> None:
        """Write one line of JSON; the values must be escaped for JSON already.

        It is UTF-8, but on a terminal of another encoding, where those bytes could act, ASCII.
        """
        text = encode_line(mapping) + "\n"
        if self._is_terminal:
            encoding = getattr(self._stream, "encoding", None) or "ascii"
            if encoding.lower().replace("-", "") != "utf8":
                text = json.dumps(mapping, separators=(",", ":"), allow_nan=False) + "\n"
                text = text.replace("\x7f", "\\u007f")
            self._stream.write(text)
            return
        self._stream.flush()
        self._stream.buffer.write(text.encode())  # type: ignore[attr-defined]

    def table(
        self, header: Sequence[str], rows: Iterable[Sequence[str]], *, right: frozenset[int]
    ) -> None:
        """Write aligned columns; the columns numbered in ``right`` are flush right."""
        from rich.cells import cell_len

        lines = [list(header), *([escape(cell) for cell in row] for row in rows)]
        widths = [
            min(CELLS_MAX, max(cell_len(line[column]) for line in lines))
            for column in range(len(header))
        ]
        for number, line in enumerate(lines):
            cells = []
            for column, cell in enumerate(line):
                fill = " " * (widths[column] - cell_len(cell))
                cells.append(fill + cell if column in right else cell + fill)
            self.line(("  ".join(cells).rstrip(), "bold" if number == 0 else ""))

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        self._stream.flush()

    def _rich(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(
                file=self._stream,
                force_terminal=True,
                markup=False,
                emoji=False,
                highlight=False,
            )
        return self._console


def complain(message: str, hint: str | None = None) -> None:
    """Write one line on standard error, and the hint on a second one."""
    second = f"  hint: {escape(hint)}\n" if hint else ""
    _write_error(f"turnlog: {escape(message)}\n{second}")


def note(message: str) -> None:
    """Write a line on standard error that is no error."""
    _write_error(escape(message) + "\n")


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if somebody agrees.

    Args:
        question: What is going to happen.
        yes: They have agreed already.

    Raises:
        UsageError: Nobody is there to be asked.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{question} Nobody can be asked here", hint="Repeat the command with --yes."
        )
    if not typer.confirm(escape(question), err=True):
        raise typer.Exit(int(ExitCode.NEGATIVE))


def _write_error(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads it, or it is closed
        _tolerate(sys.stderr)
        sys.stderr.write(text)
        sys.stderr.flush()


def _wants_colours(stream: IO[str]) -> bool:
    return (
        stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    )


class ProgressBar:
    """A progress bar on standard error that shows up only on a terminal and after a while.

    Args:
        label: What is going on.
        total: Steps in all, None where nobody knows.
        delay_s: Seconds of work before it appears.
    """

    def __init__(self, label: str, total: float | None, *, delay_s: float = DELAY_S) -> None:
        self._label = label
        self._total = total
        self._timer = Timer(delay_s, self._open)
        self._timer.daemon = True
        self._lock = Lock()
        self._done = 0.0
        self._detail = ""
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()

    def advance(self, steps: float, detail: str = "") -> None:
        """Count steps as done; the detail stands at the end of the bar."""
        with self._lock:
            self._done += steps
            self._detail = escape(detail)
            self._update()

    def reach(self, done: float, total: float) -> None:
        """So much is done of so much."""
        with self._lock:
            self._done, self._total = done, total
            self._update()

    def _update(self) -> None:
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=self._done, total=self._total, detail=self._detail)

    def _open(self) -> None:
        """Show the bar; runs on the timer's thread, so that it also appears while nothing moves."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._timer.finished.is_set():
                return
            bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[detail]}", markup=False),
                TimeElapsedColumn(),
                console=Console(file=sys.stderr, markup=False, emoji=False, highlight=False),
                transient=True,
            )
            bar.add_task(escape(self._label), total=self._total, detail="")
            bar.start()
            self._bar = bar
            self._update()


def _tolerate(stream: IO[str]) -> None:
    """Let a stream spell out what its encoding cannot carry, rather than fail half-way."""
    if isinstance(stream, TextIOWrapper) and stream.errors != "backslashreplace":
        stream.reconfigure(errors="backslashreplace")
