"""Arguments as callers give them: checked where they come in, so that nothing odd gets further.

Each function gives the value back as it is to be used, or raises ``UsageError`` with the name of
the argument and the value that was given.
"""

from __future__ import annotations

import os
import reprlib
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from eventlog.errors import UsageError

T = TypeVar("T")
_BITS_SHOWN: Final = 1_024  # of an int; Python refuses to spell those of some 14,000


class _Shown(reprlib.Repr):
    """Values of callers as errors show them."""

    def repr_int(self, x: int, level: int) -> str:
        """An int; of a large one its size, as Python raises for the digits of some."""
        if x.bit_length() > _BITS_SHOWN:
            return f"<an int of {x.bit_length():,} bits>"
        return super().repr_int(x, level)


_SHOWN: Final = _Shown()


def shown(value: object) -> str:
    """A caller's value as an error shows it: shortened, whatever it is."""
    return _SHOWN.repr(value)


def whole(value: object, name: str, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``."""
    if type(value) is not int:
        raise UsageError(f"{name} must be an int, not {_type(value)}: {shown(value)}")
    if not least <= value <= most:
        raise UsageError(f"{name} must be {least} to {most}, not {shown(value)}")
    return value


def seconds(value: object, name: str) -> float | None:
    """A time to wait; None for ever, and what no lock can wait for as long as one can."""
    if value is None:
        return None
    if type(value) is not float and type(value) is not int:
        raise UsageError(f"{name} must be a number of seconds, not {_type(value)}: {shown(value)}")
    if value != value or value < 0:
        raise UsageError(f"{name} must be 0 seconds or more, not {shown(value)}")
    return float(min(value, threading.TIMEOUT_MAX))


def flag(value: object, name: str) -> bool:
    """True or False."""
    if type(value) is not bool:
        raise UsageError(f"{name} must be True or False, not {_type(value)}: {shown(value)}")
    return value


def callback(value: Callable[..., T] | None, name: str) -> Callable[..., T] | None:
    """Something that can be called, or None."""
    if value is not None and not callable(value):
        raise UsageError(f"{name} must be callable, not {_type(value)}: {shown(value)}")
    return value


def iterable(value: Iterable[T], name: str) -> Iterable[T]:
    """Something that can be gone through."""
    try:
        return iter(value)
    except TypeError:
        raise UsageError(f"{name} must be a list, not {_type(value)}: {shown(value)}") from None


def items(value: Iterable[T], name: str) -> list[T]:
    """A list of things; not of what nobody means, the parts of text or the keys of a dict."""
    if isinstance(value, str | bytes | bytearray | memoryview | dict):
        raise UsageError(f"{name} must be a list, not {_type(value)}: {shown(value)}")
    return list(iterable(value, name))


def texts(value: Iterable[str], name: str) -> frozenset[str]:
    """Some texts."""
    found = items(value, name)
    for each in found:
        if type(each) is not str:
            raise UsageError(f"{name} must hold texts, not {shown(each)}")
    return frozenset(found)


def chosen(value: Iterable[str] | None, name: str, allowed: Sequence[str]) -> list[str] | None:
    """Some of the words that there are; None for whatever there is."""
    if value is None:
        return None
    found = items(value, name)
    for each in found:
        if each not in allowed:
            raise UsageError(f"{name} are {', '.join(allowed)}, not {shown(each)}")
    return found


def folder(value: object, name: str) -> Path:
    """A path that the operating system can be asked about, and that LMDB takes: text in UTF-8."""
    if isinstance(value, str | os.PathLike):
        try:
            found = Path(value)
            if value != "" and b"\0" not in os.path.realpath(found).encode():
                return found
        except UnicodeEncodeError:
            raise UsageError(
                f"{name} {shown(value)} is no text in UTF-8",
                hint="LMDB takes no other; give the folder a name that is.",
            ) from None
        except (TypeError, ValueError, OSError):  # a path of bytes
            pass
    raise UsageError(f"{name} must be a str or Path of a folder, not {shown(value)}")


def _type(value: Any) -> str:
    return type(value).__name__
