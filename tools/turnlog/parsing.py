"""What the declarations of verbs share: arguments, options, and how a verb ends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from turnlog.exits import ExitCode


class Verb(TyperCommand):
    """One verb; its usage line names arguments plainly, ``STORE FILE...``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line."""
        return [piece.strip("{}").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


StorePath = Annotated[
    Path, typer.Argument(metavar="STORE", help="The store's directory.", show_default=False)
]
SessionName = Annotated[
    str, typer.Argument(metavar="SESSION", help="The session's name.", show_default=False)
]
TenantName = Annotated[
    str,
    typer.Option(
        "--tenant", metavar="NAME", help="The tenant; without it, the unnamed one, not all of them."
    ),
]
AnyTenantName = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        help="Only this tenant, '' for the unnamed one; without it, all of them.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def example(*lines: str) -> str:
    """The end of a verb's help, kept as it is by the leading mark."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def leave(code: ExitCode) -> NoReturn:
    """End the verb."""
    raise typer.Exit(int(code))
