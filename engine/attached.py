"""What the engine keeps for each log, which all stores that share the log share too.

Invariants:
    1. One of a kind for a log, made when it is first asked for; it goes with the log.
    2. A child of a fork waits for no lock that a thread of its parent holds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from eventlog.log import Log

T = TypeVar("T")

_attached: Final[WeakKeyDictionary[Log, dict[Callable[[Log], Any], Any]]] = WeakKeyDictionary()
_lock = threading.RLock()  # what is made may want another one of its log


def _after_fork() -> None:
    """In a child: whoever held the lock stayed in the parent."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def attached(log: Log, make: Callable[[Log], T]) -> T:
    """What belongs to a log, of one kind.

    Args:
        log: The log.
        make: Makes it, once for each log; a function of a module, which tells the kind.
    """
    with _lock:
        of_log = _attached.setdefault(log, {})
        if make not in of_log:
            of_log[make] = make(log)
        found: T = of_log[make]
        return found
