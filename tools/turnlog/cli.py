"""The command line: parses, dispatches to ``turnlog.verbs``, turns errors into exit codes.

Invariants:
    1. Whatever goes wrong, standard error gets ``turnlog: <message>`` and a hint, never a
       traceback (but with ``--traceback``), and the exit code is one of ``turnlog.exits``.
    2. Verbs that only read never create a store.
    3. No option comes from data: ``--`` ends options, and nothing else is read than arguments.
    4. A standard stream that is closed, full or gone changes no other file and shows no traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from eventlog.errors import TurnlogError, UsageError
from eventlog.version import VERSION
from turnlog import listings, looking, terminal, upkeep
from turnlog.exits import ExitCode, exit_code_of, exit_table
from turnlog.formats import format_table
from turnlog.parsing import (
    AnyTenantName,
    AsJson,
    StorePath,
    Verb,
    example,
    leave,
)
from turnlog.piped import STANDARD_INPUT

EPILOG: Final = f"\b\nExit codes:\n{exit_table()}"


class Verbs(TyperGroup):
    """The group of all verbs: the one place where errors become messages and exit codes."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run one command line and leave with its exit code."""
        _open_closed_streams()
        arguments = list(sys.argv[1:] if args is None else args)
        show_traceback = _takes_traceback(arguments)
        try:
            code = super().main(
                arguments, prog_name or "turnlog", complete_var, False, False, **extra
            )
            sys.stdout.flush()
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            path = "turnlog" if context is None else context.command_path
            terminal.complain(error.format_message(), f"Try `{path} --help`.")
            code = ExitCode.USAGE
        except (typer.Abort, KeyboardInterrupt):
            code = ExitCode.INTERRUPTED
        except BrokenPipeError:  # by the flush above
            _leave_pipe()
            code = ExitCode.PIPE_CLOSED
        except TurnlogError as error:
            if isinstance(error, UsageError) and error.hint == UsageError.default_hint:
                error.hint = "Change the command line; `turnlog VERB --help` tells what is taken."
            hint = error.hint
            if show_traceback:
                error.hint = TurnlogError.default_hint  # it is told below, and once is enough
                traceback.print_exc()
            terminal.complain(str(error), hint)
            code = exit_code_of(error)
        except OSError as error:
            if show_traceback:
                traceback.print_exc()
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
                terminal.complain(_os_message(error), "Make room where the output goes.")
            else:
                terminal.complain(_os_message(error), "Check the path and its permissions.")
            code = ExitCode.UNAVAILABLE
        except Exception as error:  # the top: what nobody foresaw is one line too
            if show_traceback:
                traceback.print_exc()
            terminal.complain(
                f"internal error: {type(error).__name__}: {error}",
                "This is a fault in turnlog; `turnlog --traceback VERB …` shows where.",
            )
            code = ExitCode.INTERNAL
        sys.exit(int(code or 0))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; a reader of the output that went away is no fault and no news."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _leave_pipe()
            raise typer.Exit(ExitCode.PIPE_CLOSED) from None


def _takes_traceback(arguments: list[str]) -> bool:
    """Take ``--traceback`` out of the arguments before ``--``, wherever it stands."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--traceback" not in arguments[:end]:
        return False
    arguments.remove("--traceback")
    return True


def _open_closed_streams() -> None:
    """Open what the caller closed of standard input, output and error, reading and writing nothing.

    Else the store's files would get these numbers, and whatever a library says would go into them.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
        name, mode = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))[descriptor]
        if getattr(sys, name) is None:
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 it stays
            setattr(sys, name, stream)
    os.close(descriptor)


def _leave_pipe() -> None:
    """Point standard output at nothing, so that the interpreter's last flush stays quiet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _os_message(error: OSError) -> str:
    reason = error.strerror or type(error).__name__
    if error.filename is None:
        return reason
    return f"{terminal.quote(os.fsdecode(error.filename))}: {reason}"


app = typer.Typer(
    cls=Verbs,
    name="turnlog",
    help="Look into, fill, copy and check a store of agent sessions.",
    epilog=EPILOG,
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(asked: bool) -> None:
    if asked:
        terminal.Screen().line(f"turnlog {VERSION}")
        raise typer.Exit


@app.callback()
def _turnlog(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error came from.")
    ] = False,
) -> None:
    """Look into, fill, copy and check a store of agent sessions."""


def _existing(files: list[Path]) -> list[Path]:
    """Refuse a file that is not there; typer's own check knows no standard input."""
    for file in files:
        if file != STANDARD_INPUT and not os.path.exists(file):
            raise typer.BadParameter(f"file {terminal.quote(str(file))} does not exist.")
    return files


@app.command(
    "import",
    cls=Verb,
    epilog=f"\b\nFormats:\n{format_table()}\n\n"
    + example(
        "turnlog import calls.turnlog export.jsonl",
        "turnlog import calls.turnlog --format openai chats/*.jsonl",
        "turnlog export calls.turnlog | turnlog import copy.turnlog -",
    ),
)
def import_(
    store: StorePath,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Files to read; - is standard input.",
            dir_okay=False,
            callback=_existing,
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", help="The files' format, see below; guessed without it."
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", metavar="NAME", help="Put every session into this tenant."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Leave out sessions that would have to be mended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import sessions from files.

    What the store has already is skipped, and so is what was purged from a session that it has,
    which cannot come back; then the exit code is 3. A damaged session is named and left out, all
    others are imported, and the exit code is 3. So it is when a tree is mended: an event whose
    parent is missing or follows it begins a path of its own, a record that is none or whose id came
    before is left out, and each is named. A session that was mended, such as a fragment of a tree,
    is another one than the complete one, which is then refused: --strict leaves the fragment out.
    An import that was broken off goes on where it stopped when it is started again. Standard input
    and pipes are read as turnlog's own export.

    Turnlog's own lines tell when events were recorded, and keep that. Of other formats the time of
    the import is recorded: by that, sessions are young for `turnlog sessions` and for
    `turnlog retention --max-age`, however old what they hold is.
    """
    from turnlog.verbs import import_sessions

    leave(
        import_sessions.run(
            store, files, format=format, tenant=tenant, strict=strict, as_json=as_json
        )
    )


@app.command(
    cls=Verb,
    epilog=example(
        "turnlog export calls.turnlog -o calls.jsonl",
        "turnlog export calls.turnlog --session call-42 | jq .body",
        "turnlog export damaged.turnlog --skip-damaged -o whole.jsonl",
    ),
)
def export(
    store: StorePath,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to a file, once complete."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Only this session.")
    ] = None,
    tenant: AnyTenantName = None,
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="Export what is whole of a damaged store."),
    ] = False,
) -> None:
    """Export events as JSON lines.

    One event a line, session after session in the order of their names. `turnlog import` gives
    the lines back byte for byte. The same content gives the same bytes, in whatever order its
    sessions were written. With --session but without --tenant, the unnamed tenant is meant.

    With --skip-damaged, what cannot be read is told on standard error, a line of kind
    turnlog.damaged stands in the place of each event, and the exit code is 6 if there is any.
    """
    from turnlog.verbs import export_sessions

    leave(
        export_sessions.run(
            store,
            output=output,
            force=force,
            session=session,
            tenant=tenant,
            skip_damaged=skip_damaged,
        )
    )


looking.add_to(app)


listings.add_to(app)


@app.command(
    cls=Verb,
    epilog=example("turnlog tail calls.turnlog -n 20 --follow"),
)
def tail(
    store: StorePath,
    count: Annotated[
        int, typer.Option("-n", "--limit", min=0, metavar="N", help="The last N events.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on as events are committed, until Ctrl-C.")
    ] = False,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Only this session.")
    ] = None,
    tenant: AnyTenantName = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest events, and follow the store.

    With --session but without --tenant, the unnamed tenant is meant.
    """
    from turnlog.verbs import tail_events

    leave(
        tail_events.run(
            store, count=count, follow=follow, session=session, tenant=tenant, as_json=as_json
        )
    )


@app.command(
    cls=Verb,
    epilog=example("turnlog stats calls.turnlog"),
)
def stats(store: StorePath, as_json: AsJson = False) -> None:
    """Show what a store holds, what it takes on disk, and memory against its bounds."""
    from turnlog.verbs import show_stats

    leave(show_stats.run(store, as_json=as_json))


@app.command(
    cls=Verb,
    epilog=example("turnlog check calls.turnlog"),
)
def check(store: StorePath, as_json: AsJson = False) -> None:
    """Read everything and report what is wrong.

    The exit code is 1 when there are findings.
    """
    from turnlog.verbs import check_store

    leave(check_store.run(store, as_json=as_json))


upkeep.add_to(app)


@app.command(
    cls=Verb,
    epilog=example(
        "turnlog simulate calls.turnlog --calls 20 --hours 1 --seed 7",
        "turnlog replay calls.turnlog call-0001",
    ),
)
def simulate(
    store: StorePath,
    calls: Annotated[
        int,
        typer.Option("--calls", min=1, max=100_000, metavar="N", help="Calls at the same time."),
    ] = 20,
    hours: Annotated[
        float, typer.Option("--hours", min=0.0, max=1000.0, metavar="H", help="Simulated hours.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="The same seed says the same words.")
    ] = 0,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Start of the sessions' names.")
    ] = "call-",
    as_json: AsJson = False,
) -> None:
    """Fill a store with simulated voice calls.

    Calls run side by side on one event loop; every event is durable before its call goes on. In
    the end each call is read back and compared, and the store is checked.
    """
    from turnlog.verbs import simulate_calls

    leave(
        simulate_calls.run(
            store, calls=calls, hours=hours, seed=seed, prefix=prefix, as_json=as_json
        )
    )


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command line, ``sys.argv`` without arguments, and exit with its code."""
    app(args=None if arguments is None else list(arguments), prog_name="turnlog")
    raise AssertionError("a command line always ends with an exit code")
