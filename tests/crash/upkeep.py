"""What the stores of maintenance hold, and how one is judged whatever was done to it.

Content follows from a session's name alone, so that a judge needs no journal: a *kept* session is
whole after anything, a *doomed* one is as it was or gone, and never in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine import Store
from engine.session import Session
from eventlog.errors import StoreUnavailableError, TurnlogError
from eventlog.keys import U64
from eventlog.locks import LOCK_FILES
from eventlog.place import LOCK_FILE, MARKER_FILE
from eventlog.raw import DATA_FILE
from tests.crash.workload import Name, body_of, session_of

WAIT_S: Final = 15.0
FILES: Final = {DATA_FILE, LOCK_FILE, MARKER_FILE, *LOCK_FILES}
PIECE: Final = 10  # messages of one append
AFTER: Final = ("", "after")  # what is appended when the work is done, or has failed
FILLER: Final = ("", "filler")  # what makes others be cut; not looked at


@dataclass(frozen=True, slots=True)
class Work:
    """What is done to a store; ``path`` is the store's, and others may be made beside it.

    Attributes:
        prepare: Makes the store.
        run: Does the work; when it was done before, or in part, it does the rest.
        judge: Raises unless the work is done or, with ``done`` False, not begun.
    """

    prepare: Callable[[Path], None]
    run: Callable[[Path], None]
    judge: Callable[[Path, bool], None]


@dataclass(frozen=True, slots=True)
class Content:
    """One session: appends of ``PIECE`` messages, each with a key, each message with an id."""

    name: Name
    pieces: int

    @property
    def secret(self) -> str:
        """Text that stands in each of its events and in no other session's."""
        return f"<{self.name[0]}/{self.name[1]}>"

    def bodies(self) -> list[dict[str, Any]]:
        """Its messages."""
        return [
            body_of(f"{self.secret}{piece}", place, PIECE)
            for piece in range(self.pieces)
            for place in range(PIECE)
        ]

    def append(self, store: Store, first: int = 0, stop: int | None = None) -> list[bool]:
        """Append its pieces from ``first`` to before ``stop``; whether each was there already."""
        session = session_of(store, self.name)
        acks = []
        for piece in range(first, self.pieces if stop is None else stop):
            operation = f"{self.secret}{piece}"
            acks.append(
                session.append_many(
                    [body_of(operation, place, PIECE) for place in range(PIECE)],
                    ids=[f"{operation}#{place}" for place in range(PIECE)],
                    idempotency_key=operation,
                )
            )
        return [ack.result(WAIT_S).already for ack in acks]

    def require(self, store: Store) -> None:
        """It is there, whole, through each way of reading."""
        session = session_of(store, self.name)
        bodies = self.bodies()
        assert session.history() == bodies, f"{self.name} changed"
        assert session.history(7) == bodies[-7:], f"the last messages of {self.name} changed"
        events = list(session.events())
        assert [event.sequence for event in events] == list(range(len(bodies)))
        assert [event.body for event in events] == bodies
        info = session.info()
        assert info is not None
        assert (info.event_count, info.message_count, info.head) == (
            len(bodies),
            len(bodies),
            len(bodies) - 1,
        )
        assert info.last_position == events[-1].position

    def require_gone(self, store: Store) -> None:
        """No way of reading finds anything of it."""
        session = session_of(store, self.name)
        assert not session.exists and session.info() is None
        assert session.history() == session.history(7) == list(session.events()) == []
        listed = store.tenant(self.name[0]).sessions(limit=1_000).sessions
        assert self.name[1] not in [info.name for info in listed]

    def is_there(self, store: Store) -> bool:
        """Whether it is there; then it is whole, else it is gone."""
        if session_of(store, self.name).exists:
            self.require(store)
            return True
        self.require_gone(store)
        return False


def judge_order(
    store: Store, contents: Iterable[Content], apart: Mapping[Name, list[Any]] | None = None
) -> None:
    """All positions are there, and what is read holds these sessions' events and no others.

    Args:
        store: The store.
        contents: Sessions that are there; ``AFTER`` and ``FILLER`` may be, too.
        apart: Bodies of others, by session.
    """
    last = store.last_position
    every = list(store.read(voids=True))
    assert [event.position for event in every] == list(range(1, last + 1))
    wanted = {content.name: content.bodies() for content in contents} | dict(apart or {})
    found: dict[Name, list[Any]] = {name: [] for name in wanted}
    for event in every:
        if event.kind in ("void", "tombstone", "base", "roll_up"):
            assert event.body is None or event.kind != "void", event
        elif (event.tenant, event.session) not in (AFTER, FILLER):
            found[(event.tenant, event.session)].append(event.body)
    assert found == wanted
    seen = [event.position for event in store.read()]
    assert seen == [event.position for event in every if event.kind != "void"]
    report = store.check()
    assert report.ok, report.findings


def require_removed(store: Store, content: Content, number: int, *, erased: bool) -> None:
    """Nothing of a session that was removed has bytes, but for its tombstone.

    Args:
        store: The store.
        content: What it held.
        number: Its session number.
        erased: Its hot records were overwritten, too.
    """
    secret = content.secret.encode()
    with store._log.views.transaction() as tables:
        tables.commit_record()  # it says which database has which role
        assert list(tables.rows("removal")) == []
        assert list(tables.rows("key", U64.pack(number))) == []
        assert len(list(tables.rows("segment", U64.pack(number)))) <= 1
        for name in tables.tables:
            for key, value in tables.rows(name):
                if erased or not name.startswith("log."):
                    assert secret not in value, f"{name} {key.hex()} holds {content.name}"


def require_no_left_over(path: Path) -> None:
    """Only a store's own files are there."""
    assert set(os.listdir(path)) == FILES, os.listdir(path)
    beside = [name for name in os.listdir(path.parent) if name.startswith(f".{path.name}")]
    assert not beside, beside


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    """A store that is used further when the body failed, unless its writer is gone."""
    with Store.open(path, create=False) as store:
        try:
            yield store
        except TurnlogError:
            try:
                store.session(AFTER[1]).append({"role": "user"}).result(WAIT_S)
            except StoreUnavailableError:
                pass  # its writer thread ended, or meets the same fault
            raise


def numbered(session: Session) -> int:
    """The number of a session that exists."""
    info = session.info()
    assert info is not None
    return info.number
