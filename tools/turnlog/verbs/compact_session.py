"""``turnlog compact``: lets a summary stand for the beginning of a session."""

from __future__ import annotations

from pathlib import Path

from engine import Store
from engine.export import escape
from eventlog.errors import ConflictError, UsageError
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.piped import copied, is_piped, name_of
from turnlog.stores import existing_session, told_of


def run(
    path: Path,
    name: str,
    *,
    summary: str | None,
    summary_file: Path | None,
    keep_last: int,
    takes_open: bool,
    tenant: str,
    as_json: bool,
) -> ExitCode:
    """Append a compaction with a summary that somebody else made."""
    text = _text(summary, summary_file)
    screen = terminal.Screen()
    with told_of(path), Store.open(path, create=False) as store:
        session = existing_session(store, tenant, name)
        try:
            done = session.compact(
                lambda _: text,
                keep_last=keep_last,
                trigger="turnlog compact",
                running=[] if takes_open else None,
            )
        except ConflictError as error:
            if type(error) is ConflictError:  # a call is open
                error.hint = (
                    "Append its result, or give --close-calls to take it as never answered."
                )
            raise
    if as_json:
        screen.data(
            {
                "tenant": escape(tenant),
                "session": escape(name),
                "sequence": None if done is None else done.sequence,
                "through": None if done is None else done.through,
                "message_count": 0 if done is None else done.message_count,
                "tokens": 0 if done is None else done.tokens,
            }
        )
        return ExitCode.OK
    if done is None:
        screen.line(f"nothing to summarise in {terminal.quote(name)}; nothing was written")
        return ExitCode.OK
    screen.line(
        f"compacted {terminal.quote(name)}: event {done.sequence} stands for "
        f"{terminal.counted(done.message_count, 'message')} up to event {done.through}"
    )
    screen.line("all of them stay readable, with turnlog show")
    return ExitCode.OK


def _text(summary: str | None, file: Path | None) -> str:
    """The summary.

    Raises:
        UsageError: It is given twice or not at all, is empty, or is no text.
    """
    if (summary is None) is (file is None):
        raise UsageError("compact takes either --summary or --summary-file")
    if file is not None:
        try:
            if is_piped(file):
                with copied(file) as copy:
                    summary = copy.read_text("utf-8")
            else:
                summary = file.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{terminal.quote(name_of(file))} is no UTF-8 text") from error
    assert summary is not None
    if not summary.strip():
        raise UsageError("the summary is empty")
    return summary.strip()
