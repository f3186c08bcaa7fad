"""The verb that lists: parsed here, done in ``turnlog.verbs``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from eventlog.errors import UsageError
from turnlog import terminal
from turnlog.moments import time_of
from turnlog.parsing import AnyTenantName, AsJson, StorePath, Verb, example, leave


def add_to(app: typer.Typer) -> None:
    """Declare the verb."""
    app.command(
        cls=Verb,
        epilog=example(
            "turnlog sessions calls.turnlog --user u7 --limit 20",
            "turnlog sessions calls.turnlog --status open --metadata channel=phone",
        ),
    )(sessions)


def sessions(
    store: StorePath,
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="Only sessions of this user.")
    ] = None,
    account: Annotated[
        str | None, typer.Option("--account", metavar="ID", help="Only those of this account.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="ID", help="Only those of this agent.")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option("--workspace", metavar="ID", help="Only those of this workspace.")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="TEXT", help="Only those with this status.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="NAME", help="Only those with this label, on any event."),
    ] = None,
    alias: Annotated[
        str | None,
        typer.Option("--alias", metavar="NAME", help="Only the one that this alias leads to."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata",
            metavar="KEY=VALUE",
            help="Only those whose metadata has this, JSON or else text; may be repeated.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only those active at this time or later."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Only those last active before this time."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most N.")] = 50,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", metavar="TEXT", help="Go on where a listing before stopped."),
    ] = None,
    tenant: AnyTenantName = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest activity first.

    Without --tenant those of all tenants; --tenant '' means the sessions without a tenant.
    """
    from turnlog.verbs import list_sessions

    wanted = {
        "user_id": user,
        "account_id": account,
        "agent_id": agent,
        "workspace": workspace,
        "status": status,
        "label": label,
        "alias": alias,
        "metadata": _metadata(metadata or []) or None,
        "since_us": None if since is None else time_of("--since", since),
        "until_us": None if until is None else time_of("--until", until),
    }
    leave(
        list_sessions.run(
            store, wanted=wanted, limit=limit, cursor=cursor, tenant=tenant, as_json=as_json
        )
    )


def _metadata(given: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise UsageError(
                f"--metadata {terminal.quote(each)} is not of the form KEY=VALUE",
                hint="Give a key and a value, such as channel=phone or priority=3.",
            )
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found
