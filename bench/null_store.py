"""A store that does nothing, to see what a load costs before any store is involved."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Self

from bench.workloads import Message


class NullAck:
    """Resolved from the start."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, NullAck]:
        yield from ()
        return self


_DONE = NullAck()


class NullSession:
    """Takes messages and forgets them, unencoded."""

    __slots__ = ()

    def append(self, message: Message) -> NullAck:
        """Do nothing with the message."""
        return _DONE


class NullStore:
    """Has the shape of a store as far as the benchmarks need it."""

    def session(self, name: str) -> NullSession:
        """A session that forgets."""
        return NullSession()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None
