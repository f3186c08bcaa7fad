"""``turnlog hold``: says why a session must be kept, takes that back, or lists it."""

from __future__ import annotations

from pathlib import Path

from engine import Session, Store
from engine.export import escape
from engine.holds import holds_of
from eventlog.errors import ConflictError, UsageError
from turnlog import terminal
from turnlog.exits import ExitCode
from turnlog.stores import existing_session, open_to_read, told_of


def run(
    path: Path, name: str, *, reason: str | None, release: bool, tenant: str, as_json: bool
) -> ExitCode:
    """Hold a session, release it, or tell its holds."""
    screen = terminal.Screen()
    if reason is None and not release:
        with open_to_read(path) as store:
            holds = holds_of(existing_session(store, tenant, name))
        done = "is held" if holds else "is not held"
    else:
        with told_of(path), Store.open(path, create=False) as store:
            session = existing_session(store, tenant, name)
            if release:
                _release(session, reason)
            else:
                assert reason is not None
                session.hold(reason).result()
            holds = holds_of(session)
        done = "is still held" if release and holds else "is held" if holds else "is released"
    if as_json:
        told = {"tenant": escape(tenant), "session": escape(name), "holds": escape(list(holds))}
        screen.data(told)
        return ExitCode.OK
    reasons = "; ".join(map(terminal.quoted, holds))
    screen.line(f"{terminal.quote(name)} {done}" + (f": {reasons}" if reasons else ""))
    return ExitCode.OK


def _release(session: Session, reason: str | None) -> None:
    """Take one hold back.

    Raises:
        UsageError: It is not said which of several.
        ConflictError: There is no such hold.
    """
    held = holds_of(session)
    name = terminal.quote(session.name)
    if reason is None and len(held) > 1:
        raise UsageError(
            f"session {name} has {len(held)} holds", hint="Say with --reason which one is over."
        )
    if not held or reason not in (None, *held):
        raise ConflictError(
            f"session {name} is not held" + ("" if reason is None else " for that reason"),
            current=held,
            hint="List its holds with `turnlog hold STORE SESSION`.",
        )
    session.release_hold(held[0] if reason is None else reason).result()
