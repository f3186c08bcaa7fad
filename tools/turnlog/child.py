"""Work in a process of its own, which may die: LMDB aborts on some pages of a damaged file.

Nothing in the process can catch that. Walking all pages first would tell (``Store.open`` with
``verify``), 150 MB a second, but keeps every writer waiting meanwhile. A child costs its start, a
few tenths of a second; the pages are walked only once one died, to say which page is bad.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from eventlog.errors import CorruptionError, TurnlogError
from eventlog.raw import DATA_FILE, examine
from eventlog.rows import CommitRecord

_HINT: Final = (
    "Try sessions one by one, `turnlog export --skip-damaged --session`: only those on that page "
    "end the same way; or restore a backup."
)

P = ParamSpec("P")
T = TypeVar("T")


class ChildDiedError(Exception):
    """A signal ended the child; the message tells which."""


@dataclass(frozen=True, slots=True)
class _Raised:
    """An error of ours on its way; its class may want arguments that it does not keep."""

    kind: type[TurnlogError]
    arguments: tuple[Any, ...]
    fields: dict[str, Any]


def in_child(work: Callable[P, Iterable[T]], *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
    """What ``work`` gives, item by item, as a new process makes it.

    Args:
        work: A function of a module; it, its arguments and the items are pickled.
        *args: Its arguments.
        **kwargs: Likewise.

    Raises:
        ChildDiedError: The process died; what it gave before was given.
        RuntimeError: ``work`` raised what is none of our errors; the child wrote the traceback.
        TurnlogError: As ``work`` raised it.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(theirs, work, args, kwargs), daemon=True)
    child.start()
    theirs.close()
    try:
        with suppress(EOFError):
            while True:
                item = ours.recv()
                if isinstance(item, _Raised):
                    error = item.kind.__new__(item.kind, *item.arguments)
                    vars(error).update(item.fields)
                    raise error
                yield item
        child.join()
    finally:
        child.kill()  # it writes nothing
        child.join()
        ours.close()
    if child.exitcode is not None and child.exitcode < 0:
        name = signal.Signals(-child.exitcode).name
        raise ChildDiedError(f"the process that read it was ended by {name}")
    if child.exitcode:
        raise RuntimeError(f"a child ended with exit code {child.exitcode}; it said why")


def _send(
    connection: Connection,
    work: Callable[..., Iterable[object]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells when to end
    try:
        for item in work(*args, **kwargs):
            connection.send(item)
    except TurnlogError as error:
        connection.send(_Raised(type(error), error.args, vars(error)))
    except BrokenPipeError:
        return  # the parent is gone


def damage_behind(path: Path, died: ChildDiedError) -> CorruptionError:
    """Why a child died: what a walk over all pages of the store says.

    It maps nothing and keeps nobody waiting; where others commit meanwhile it may name a page that
    they wrote.
    """
    where, reason = str(path), str(died)
    try:
        examine(path / DATA_FILE, CommitRecord.decode, verify=True)
    except CorruptionError as error:
        where, reason = error.where, f"{str(error).removeprefix(f'{error.where}: ')}; {died}"
    return CorruptionError(reason, where=where, hint=_HINT)
