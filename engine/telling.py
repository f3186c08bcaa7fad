"""Callbacks of callers: what one raises comes out of the call as it is.

Between a callback and its caller lie threads, transactions and contexts that turn errors of the
system into ours. An ``OSError`` of the callback is none of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from eventlog.errors import TurnlogError

T = TypeVar("T")
Tell = Callable[..., Any]


class _CallbackError(TurnlogError):
    """Ends the work; never leaves this module."""


def telling(progress: Tell | None, work: Callable[[Tell | None], T]) -> T:
    """Do a work that tells its progress.

    Args:
        progress: The caller's callback, if any. When it raises, the work ends as it does for an
            error of its own, and that exception is raised here, the same object.
        work: Is given what to call instead.
    """
    if progress is None:
        return work(None)
    raised: list[BaseException] = []

    def tell(*told: object) -> None:
        try:
            progress(*told)
        except BaseException as error:
            raised.append(error)
            raise _CallbackError("the callback raised") from error

    try:
        return work(tell)
    except _CallbackError:
        pass
    raise raised[0]
