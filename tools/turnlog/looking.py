"""The verbs that look into one session: parsed here, done in ``turnlog.verbs``."""

from __future__ import annotations

from typing import Annotated

import typer

from turnlog.parsing import AsJson, SessionName, StorePath, TenantName, Verb, example, leave

Moment = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="SEQUENCE|TIME",
        help="As it was after this event, or at this time (UTC); without it, as it is.",
    ),
]
OnBranch = Annotated[
    str | None,
    typer.Option(
        "--branch",
        metavar="NAME|NUMBER",
        help="Only the events from the root to a branch's newest one; see `turnlog branches`.",
    ),
]
ToLeaf = Annotated[
    int | None,
    typer.Option(
        "--leaf",
        min=0,
        metavar="SEQUENCE",
        help="Only the events from the root to this one.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Declare the verbs."""
    app.command(
        cls=Verb,
        epilog=example(
            "turnlog replay calls.turnlog call-42",
            "turnlog replay calls.turnlog call-42 --speed 1",
            "turnlog replay calls.turnlog call-42 --at 2026-01-31T12:00:00",
            "turnlog replay calls.turnlog call-42 --branch retry",
        ),
    )(replay)
    app.command(
        cls=Verb,
        epilog=example(
            "turnlog show calls.turnlog call-42 --limit 20",
            "turnlog show calls.turnlog call-42 --at 12 --state",
            "turnlog show calls.turnlog call-42 --branch retry",
            "turnlog show calls.turnlog call-42 --leaf 12",
            "turnlog show calls.turnlog -- -odd-name",
        ),
    )(show)
    app.command(
        cls=Verb,
        epilog=example("turnlog branches calls.turnlog call-42"),
    )(branches)


def replay(
    store: StorePath,
    session: SessionName,
    speed: Annotated[
        float,
        typer.Option(
            "--speed", min=0.0, metavar="N", help="1 is as fast as it was, 10 ten times; 0 no wait."
        ),
    ] = 0.0,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, metavar="N", help="Stop after N events.")
    ] = None,
    at: Moment = None,
    branch: OnBranch = None,
    leaf: ToLeaf = None,
    tenant: TenantName = "",
    as_json: AsJson = False,
) -> None:
    """Replay a session on a virtual clock.

    The same session always gives the same bytes. Times are those that came with the events; a
    session without any is replayed by the times at which it was recorded.
    """
    from turnlog.verbs import replay_session

    leave(
        replay_session.run(
            store,
            session,
            speed=speed,
            limit=limit,
            at=at,
            branch=branch,
            leaf=leaf,
            tenant=tenant,
            as_json=as_json,
        )
    )


def show(
    store: StorePath,
    session: SessionName,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=0, metavar="N", help="Only the last N events."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten long entries.")] = False,
    at: Moment = None,
    branch: OnBranch = None,
    leaf: ToLeaf = None,
    state: Annotated[
        bool, typer.Option("--state", help="Show its variables instead of its events.")
    ] = False,
    tenant: TenantName = "",
    as_json: AsJson = False,
) -> None:
    """Show a session as a transcript, or what its variables are.

    With --at, the session as it was after an event or at a time.
    """
    from turnlog.verbs import show_session

    leave(
        show_session.run(
            store,
            session,
            limit=limit,
            full=full,
            at=at,
            branch=branch,
            leaf=leaf,
            variables=state,
            tenant=tenant,
            as_json=as_json,
        )
    )


def branches(
    store: StorePath, session: SessionName, tenant: TenantName = "", as_json: AsJson = False
) -> None:
    """List the branches of a session as a tree.

    Each with its number and names, either of which `show --branch` takes, the event that it
    follows, its newest event, and when that was recorded; the branch that the head is on has a
    star.
    """
    from turnlog.verbs import list_branches

    leave(list_branches.run(store, session, tenant=tenant, as_json=as_json))
