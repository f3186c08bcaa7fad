"""What outlives its owner: open environments in a forked child, and when the interpreter ends.

Invariant: LMDB's destructor runs for no environment whose threads are gone, nor for a parent's.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import weakref
from typing import Any, Final, Protocol

import lmdb


class Survivor(Protocol):
    """What is to be told."""

    def forked(self) -> None:
        """In a child: it belongs to the parent."""

    def keep(self) -> None:
        """Call ``keep`` of this module for its environment."""


_survivors: Final[weakref.WeakSet[Survivor]] = weakref.WeakSet()
_lock = threading.RLock()  # threads open and close other stores at the same time


def living() -> list[Any]:
    """All that are open, also a parent's."""
    with _lock:
        return list(_survivors)


def opened(survivor: Survivor) -> None:
    """From now on it is told of forks and of the interpreter's end."""
    with _lock:
        _survivors.add(survivor)


def closed(survivor: Survivor) -> None:
    """Nothing of it is left."""
    with _lock:
        _survivors.discard(survivor)


def keep(environment: lmdb.Environment) -> None:
    """Let LMDB's destructor never run for this environment.

    It waits for a write transaction of another thread, for ever when that thread is gone, as after
    a fork or when the interpreter ends; and in a child it gives back reader slots of the parent.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(environment))


def _mark_forked() -> None:
    """In a child: every open environment belongs to the parent."""
    global _lock
    _lock = threading.RLock()
    inherited = living()
    for survivor in inherited:
        survivor.forked()
    if inherited:
        _let_lmdb_open_again()


def _let_lmdb_open_again() -> None:
    """Make LMDB's binding forget which files the parent has open.

    It refuses to open a file twice in a process, which is right, and does not notice that a child
    is another process. It knows files by keys; ours get the child's pid, so that they differ from
    the parent's and still from one another.
    """
    keys: Any = sys.modules.get("lmdb._envid")
    parents = getattr(keys, "env_keys", None)
    if parents is None:
        return  # another binding: opening again in a child is then refused
    pid = os.getpid()
    keys.env_keys = lambda path, subdir: tuple((*key, pid) for key in parents(path, subdir))


def _keep_all() -> None:
    for survivor in living():
        survivor.keep()


os.register_at_fork(after_in_child=_mark_forked)
atexit.register(_keep_all)
