"""``turnlog export``: events as JSON lines, one a line, sessions in the order of their names.

Invariants:
    1. An export holds the events up to the store's last position when it began, and all of them,
       whatever is written meanwhile. So it ends, and what one commit wrote is in it whole or not.
    2. A file appears under its name once it is complete and on disk.

What is whole of a damaged store comes from a child process, which costs its start and may die of a
damaged page. Then what came before is kept, and all pages are walked to say which one it was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO

from engine import Event, Lost, Session, Store
from engine.hidden import any_session
from eventlog.errors import SessionNotFoundError, UsageError
from turnlog import terminal
from turnlog.child import ChildDiedError, damage_behind, in_child
from turnlog.exits import ExitCode
from turnlog.stores import (
    existing_session,
    known_tenant,
    open_to_read,
    refuse_missing_folder,
    session_names,
    tenant_names,
)

FLUSH_LINES = 256  # lines written together
FLUSH_CHARACTERS = 1 << 20  # or fewer, where they are long


def run(
    path: Path,
    *,
    output: Path | None,
    force: bool,
    session: str | None,
    tenant: str | None,
    skip_damaged: bool,
) -> ExitCode:
    """Write the export to standard output, or to a file that appears once it is complete."""
    losses: list[str] = []
    with open_to_read(path) as store:
        last = store.last_position
        if skip_damaged:
            lines = _whole_lines(path, session, tenant, losses)
        else:
            chosen = _chosen(store, session, tenant, last)
            lines = store.export_lines(_events(chosen, last))
        with (
            terminal.ProgressBar("exporting", last) as bar,
            _standard_output() if output is None else _new_file(output, replace=force) as stream,
        ):
            _write(lines, stream, bar)
    for lost in losses:
        terminal.complain(lost)
    return ExitCode.CORRUPTION if losses else ExitCode.OK


def _chosen(store: Store, session: str | None, tenant: str | None, last: int) -> Iterator[Session]:
    if session is not None:
        return iter([existing_session(store, tenant or "", session)])
    tenants = tenant_names(store) if tenant is None else [known_tenant(store, tenant).name]
    return (
        any_session(store.tenant(name), session_name)
        for name in tenants
        for session_name in session_names(store, name, last)
    )


def _events(sessions: Iterator[Session], last: int) -> Iterator[Event]:
    for session in sessions:
        for event in session.events():
            if event.position > last:
                break
            yield event


def _whole_lines(
    path: Path, session: str | None, tenant: str | None, losses: list[str]
) -> Iterator[str]:
    """The lines of what is whole, and of the marks; notes what is lost."""
    if session is not None:
        tenant = tenant or ""
    is_empty = True
    try:
        for line, lost in in_child(_salvage, path, session, tenant):
            if lost:
                losses.append(lost)
            else:
                is_empty = False
                yield line
    except ChildDiedError as died:
        damage = damage_behind(path, died)
        if is_empty:
            raise damage from died
        losses.append(f"what comes after the last line was not read: {damage}\n  {damage.hint}")
    if is_empty and tenant is not None:
        what = "tenant " + terminal.quote(tenant) if session is None else terminal.quote(session)
        raise SessionNotFoundError(f"nothing of {what} was found")


def _salvage(path: Path, session: str | None, tenant: str | None) -> Iterator[tuple[str, str]]:
    """A line, or what to say of a loss."""
    with open_to_read(path) as store:
        for each in store.salvage(tenant, session):
            yield ("", _told(each)) if isinstance(each, Lost) else (each, "")


def _told(lost: Lost) -> str:
    if lost.session is None:
        return f"an event of an unknown session is lost: {lost.error}"
    whose = f"session {terminal.quote(lost.session)}"
    if lost.is_blob:
        return f"{whose}: a blob of event {lost.first} is lost: {lost.error}"
    if lost.tenant:
        whose += f" of tenant {terminal.quote(lost.tenant)}"
    which = f"event {lost.first} is"
    if lost.last > lost.first:
        which = f"events {lost.first} to {lost.last} are"
    return f"{whose}: {which} lost: {lost.error}"


def _write(lines: Iterator[str], stream: IO[bytes], bar: terminal.ProgressBar) -> None:
    piece: list[str] = []
    size = 0

    def flush() -> None:
        stream.write(("\n".join(piece) + "\n").encode())
        bar.advance(len(piece))

    for line in lines:
        piece.append(line)
        size += len(line)
        if len(piece) == FLUSH_LINES or size >= FLUSH_CHARACTERS:
            flush()
            piece.clear()
            size = 0
    if piece:
        flush()


@contextmanager
def _standard_output() -> Iterator[IO[bytes]]:
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


@contextmanager
def _new_file(target: Path, *, replace: bool) -> Iterator[IO[bytes]]:
    """A file beside the target that takes its place once it is written and on disk.

    Raises:
        UsageError: The target exists, now or when the export is done, and is not to be replaced, or
            its folder does not.
    """
    refuse_missing_folder(target, target.parent)
    if not replace and (target.exists() or target.is_symlink()):
        raise _exists(target)
    if target.exists() and not target.is_symlink() and not target.is_file():
        raise UsageError(
            f"{terminal.quote(str(target))} is no file that could be replaced",
            hint="Name a file, or leave -o out to write to standard output.",
        )
    draft = target.with_name(f".{target.name[:100]}.{token_hex(8)}.part")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:  # nobody knows the draft's name
        raise OSError(error.errno, error.strerror, str(target)) from error
    try:
        with open(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if replace:
            os.replace(draft, target)
        else:
            _move_to_new(draft, target)
        _sync_directory(target.parent)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def _move_to_new(draft: Path, target: Path) -> None:
    """Give a file another name, never in place of a file that came meanwhile."""
    try:
        os.link(draft, target)  # a rename would replace
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without links
        if target.exists():
            raise _exists(target) from None
        os.replace(draft, target)


def _exists(target: Path) -> UsageError:
    return UsageError(
        f"{terminal.quote(str(target))} exists", hint="Give another name, or --force to replace it."
    )


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
