"""The verbs that keep a store: parsed here, done in ``turnlog.verbs``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnlog.parsing import (
    AnyTenantName,
    AsJson,
    SessionName,
    StorePath,
    TenantName,
    Verb,
    example,
    leave,
)

NewPath = Annotated[
    Path, typer.Argument(metavar="TARGET", help="Where nothing is yet.", show_default=False)
]
Check = Annotated[
    bool, typer.Option("--check", help="Also read every row of what was made, as check does.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needed where nobody can be asked.")]


ErasedTenant = Annotated[
    str | None,
    typer.Option(
        "--tenant", metavar="NAME", help="The tenant; without it, the unnamed one, not all of them."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Declare the verbs."""
    app.command(cls=Verb, epilog=example("turnlog rebuild calls.turnlog"))(rebuild)
    app.command(
        cls=Verb,
        epilog=example(
            "turnlog erase calls.turnlog call-42 --yes",
            "turnlog erase calls.turnlog call-42 --tenant acme --yes --json",
            "turnlog erase calls.turnlog --user u7 --yes",
            "turnlog erase calls.turnlog --tenant acme --all --yes",
        ),
    )(erase)
    app.command(
        cls=Verb,
        epilog=example(
            "turnlog redact calls.turnlog call-42 7 9 --yes",
            'turnlog redact calls.turnlog call-42 7 7 --reason "case 2026-17" --yes --json',
        ),
    )(redact)
    app.command(
        cls=Verb,
        epilog=example(
            'turnlog hold calls.turnlog call-42 --reason "case 2026-17"',
            "turnlog hold calls.turnlog call-42",
            'turnlog hold calls.turnlog call-42 --release --reason "case 2026-17"',
        ),
    )(hold)
    app.command(
        cls=Verb,
        epilog=example(
            "turnlog retention calls.turnlog --max-age 90d --dry-run",
            "turnlog retention calls.turnlog --max-age 90d --archive old-$(date +%F).jsonl --yes",
            "turnlog retention calls.turnlog --max-entries 10000 --tenant acme --yes --json",
        ),
    )(retention)
    app.command(
        cls=Verb,
        epilog=example(
            'turnlog compact calls.turnlog call-42 --summary "Wants a refund."',
            "turnlog compact calls.turnlog call-42 --summary-file summary.txt --keep-last 20",
        ),
    )(compact)
    app.command(cls=Verb, epilog=example("turnlog vacuum calls.turnlog --yes"))(vacuum)
    app.command(
        cls=Verb,
        epilog=example(
            "turnlog backup calls.turnlog /backups/calls.monday",
            "turnlog backup calls.turnlog /backups/calls.monday --check --json",
        ),
    )(backup)
    app.command(
        cls=Verb, epilog=example("turnlog restore /backups/calls.monday calls.turnlog --check")
    )(restore)
    app.command(
        cls=Verb,
        epilog=example(
            "turnlog upgrade calls.turnlog --yes",
            "turnlog upgrade calls.turnlog --backup /backups/calls.before --yes",
        ),
    )(upgrade)
    app.command(
        cls=Verb,
        epilog=example(
            "turnlog configure calls.turnlog",
            "turnlog configure calls.turnlog --quota-bytes 10000000000",
            "turnlog configure calls.turnlog --quota-bytes none",
        ),
    )(configure)


def rebuild(store: StorePath, as_json: AsJson = False) -> None:
    """Make what is derived from the log anew, while others use the store.

    Lookups of names, keys and ids, listings and state are made again from the events; the old ones
    serve until then. One that was stopped goes on where it was.
    """
    from turnlog.verbs import rebuild_store

    leave(rebuild_store.run(store, as_json=as_json))


def erase(
    store: StorePath,
    session: Annotated[
        str | None,
        typer.Argument(metavar="SESSION", help="The session's name.", show_default=False),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="ID", help="Instead, all sessions and documents of a user."),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Instead, all of the tenant: of all users, and its documents."),
    ] = False,
    tenant: ErasedTenant = None,
    force: Annotated[bool, typer.Option("--force", help="Also what is held.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a session, or all of a user or tenant, and overwrite what it held.

    A user's sessions are those that are the user's now, or ever were. Their names are free again.
    The data file may hold old pages of them until `turnlog vacuum`; backups are not
    touched.
    """
    from turnlog.verbs import erase_session

    leave(
        erase_session.run(
            store,
            session,
            user=user,
            everything=everything,
            tenant=tenant,
            force=force,
            yes=yes,
            as_json=as_json,
        )
    )


def hold(
    store: StorePath,
    session: SessionName,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="Why; without it the holds are listed."),
    ] = None,
    release: Annotated[
        bool,
        typer.Option("--release", help="Take a hold back; without --reason the only one there is."),
    ] = False,
    tenant: TenantName = "",
    as_json: AsJson = False,
) -> None:
    """Let no rule of retention remove a session, and no erasure of its user or tenant.

    A session may have several holds, each with its reason, and is held until all are released. A
    hold binds rules, not whoever names the session: `turnlog erase SESSION` asks for --force, and
    `turnlog redact`, and delete() and erase() of programs, go on. A clone has the holds too.
    """
    from turnlog.verbs import hold_session

    leave(
        hold_session.run(
            store, session, reason=reason, release=release, tenant=tenant, as_json=as_json
        )
    )


def redact(
    store: StorePath,
    session: SessionName,
    first: Annotated[
        int, typer.Argument(metavar="FIRST", min=0, help="The first event.", show_default=False)
    ],
    last: Annotated[
        int, typer.Argument(metavar="LAST", min=0, help="The last event.", show_default=False)
    ],
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="Why, for the event that says so."),
    ] = None,
    tenant: TenantName = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove what events of a session say, and keep their places.

    Bodies, metadata and contents go; sequence, kind, role, times, ids and what others say of the
    events stay, and so does the session's state. A hold does not stop it. The data file may hold
    old pages of them until `turnlog vacuum`; backups are not touched.
    """
    from turnlog.verbs import redact_events

    leave(
        redact_events.run(
            store,
            session,
            first,
            last,
            reason=reason,
            tenant=tenant,
            yes=yes,
            as_json=as_json,
        )
    )


def retention(
    store: StorePath,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            metavar="SPAN",
            help="Sessions without activity for longer go: a number and w, d, h, m (minutes) or s.",
        ),
    ] = None,
    max_entries: Annotated[
        int | None,
        typer.Option(
            "--max-entries", min=1, metavar="N", help="Events of a session that stay, the newest."
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes",
            min=0,
            metavar="N",
            help="Bytes of events and contents above which the least recently active sessions go.",
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only events of this kind count; repeatable."),
    ] = None,
    erase: Annotated[
        bool, typer.Option("--erase", help="Also overwrite what the sessions that go held.")
    ] = False,
    tenant: AnyTenantName = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive",
            metavar="FILE",
            help="A new file that gets what goes first; refused where one is.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be removed.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove sessions that are old or too many, and the beginnings of long ones.

    Held sessions stay. Age is that of the last activity, which is when an event was recorded: what
    was imported from other formats is as young as the import. No beginning goes that would cut a
    tool call from its result, or that holds the compaction that views apply. `turnlog import` gives
    back the sessions that an archive holds, and beginnings of sessions that stay only into another
    store; to make the file smaller, use `turnlog vacuum`.
    """
    from engine import RetentionPolicy
    from turnlog.moments import span_of
    from turnlog.verbs import apply_retention

    if max_age is None and max_entries is None and max_bytes is None:
        raise typer.BadParameter("Give --max-age, --max-entries or --max-bytes.")
    policy = RetentionPolicy(
        max_age_us=None if max_age is None else span_of("--max-age", max_age),
        max_entries=max_entries,
        max_total_bytes=max_bytes,
        kinds=kind or None,
        erase=erase,
    )
    leave(
        apply_retention.run(
            store,
            policy,
            tenant=tenant,
            archive=archive,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )
    )


def compact(
    store: StorePath,
    session: SessionName,
    summary: Annotated[
        str | None, typer.Option("--summary", metavar="TEXT", help="The summary.")
    ] = None,
    summary_file: Annotated[
        Path | None,
        typer.Option(
            "--summary-file", metavar="FILE", help="A file that holds it; - is standard input."
        ),
    ] = None,
    keep_last: Annotated[
        int, typer.Option("--keep-last", min=0, metavar="N", help="Messages that stay as they are.")
    ] = 8,
    close_calls: Annotated[
        bool, typer.Option("--close-calls", help="Take no tool call as still open.")
    ] = False,
    tenant: TenantName = "",
    as_json: AsJson = False,
) -> None:
    """Let a summary stand for the beginning of a session.

    What a model is shown of the session begins with it from then on; nothing is removed. More
    messages than N stay where a tool call would be cut from its result, or is still open; when
    only that is in the way, the call is named and nothing is written.
    """
    from turnlog.verbs import compact_session

    leave(
        compact_session.run(
            store,
            session,
            summary=summary,
            summary_file=summary_file,
            keep_last=keep_last,
            takes_open=close_calls,
            tenant=tenant,
            as_json=as_json,
        )
    )


def vacuum(store: StorePath, yes: Yes = False, as_json: AsJson = False) -> None:
    """Rewrite the data file, smaller and without what was erased.

    No process may have the store open. Needs the room of a second data file beside the store while
    it works. Killed, it leaves the store as it was or rewritten.
    """
    from turnlog.verbs import vacuum_store

    leave(vacuum_store.run(store, yes=yes, as_json=as_json))


def backup(
    store: StorePath, target: NewPath, check: Check = False, as_json: AsJson = False
) -> None:
    """Copy a store while it is in use, verified and on disk.

    Nothing appears under TARGET before the copy is whole. `turnlog restore` makes a store of it;
    other verbs that read work on it as it is.
    """
    from turnlog.verbs import back_up_store

    leave(back_up_store.run(store, target, check=check, as_json=as_json))


def restore(
    backup: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="The backup.", show_default=False)
    ],
    target: NewPath,
    check: Check = False,
    as_json: AsJson = False,
) -> None:
    """Make a store from a backup.

    The backup is only read, and not trusted. The new store is another one than that which was
    backed up: it has an id of its own, and its marker says where it comes from.
    """
    from turnlog.verbs import restore_store

    leave(restore_store.run(backup, target, check=check, as_json=as_json))


def upgrade(
    store: StorePath,
    backup: Annotated[
        Path | None,
        typer.Option("--backup", metavar="TARGET", help="Where it is backed up before."),
    ] = None,
    no_backup: Annotated[bool, typer.Option("--no-backup", help="Make no backup.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Bring a store to this release's format.

    No process may have the store open. It is backed up beside itself first. Older releases cannot
    open it after that. Broken off, it still opens, and upgrading it again goes on.
    """
    from turnlog.verbs import upgrade_store

    leave(
        upgrade_store.run(store, backup=backup, without_backup=no_backup, yes=yes, as_json=as_json)
    )


def configure(
    store: StorePath,
    snapshot_frequency: Annotated[
        int | None,
        typer.Option(
            "--snapshot-frequency", metavar="N", help="Loose events that make a session due."
        ),
    ] = None,
    max_messages: Annotated[
        str | None,
        typer.Option(
            "--max-messages", metavar="N|none", help="Messages that a session's view keeps."
        ),
    ] = None,
    quota_bytes: Annotated[
        str | None,
        typer.Option(
            "--quota-bytes", metavar="N|none", help="Bytes in use at which appends are refused."
        ),
    ] = None,
    dictionaries: Annotated[
        bool | None,
        typer.Option(
            "--dictionaries/--no-dictionaries",
            help="Compress each tenant's sealed events with what its sessions have in common.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show or change the options that are stored in a store.

    Processes that have the store open follow.
    """
    from turnlog.verbs import configure_store

    changes: dict[str, int | bool | None] = {}
    if snapshot_frequency is not None:
        changes["snapshot_frequency"] = snapshot_frequency
    if max_messages is not None:
        changes["max_messages"] = _number_or_none("--max-messages", max_messages)
    if quota_bytes is not None:
        changes["quota_bytes"] = _number_or_none("--quota-bytes", quota_bytes)
    if dictionaries is not None:
        changes["dictionaries"] = dictionaries
    leave(configure_store.run(store, changes, as_json=as_json))


def _number_or_none(option: str, text: str) -> int | None:
    if text == "none":
        return None
    if text.isascii() and text.isdigit() and len(text) <= 20:
        return int(text)
    raise typer.BadParameter(f"{option} takes a number or none.")
