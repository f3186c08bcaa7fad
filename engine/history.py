"""The bodies of a session's last messages; see ``eventlog.bodies``."""

from __future__ import annotations

from typing import Any

from engine.events import Event
from eventlog.bodies import Stretch
from eventlog.errors import SessionGoneError
from eventlog.index import Name
from eventlog.log import Log


def last_bodies(log: Log, name: Name, count: int) -> list[Any] | None:
    """The bodies of the last ``count`` messages, oldest first.

    Returns:
        None when that is not said so simply: where a view leaves messages out, or where one does
        not decode. Reading its events tells.

    Raises:
        SessionGoneError: The session was deleted meanwhile, and there is another of its name.
    """
    pages: list[list[Any]] = []
    stop: int | None = None
    number = None
    left = count
    while stop != 0 and left:
        found = log.views.read_bodies(name, stop, left, Event)
        if found is None:
            return None
        if number is not None and found.number != number:
            raise SessionGoneError.while_read(name[1], number, found.number)
        number, stop = found.number, found.stop
        left -= found.count
        page = _decoded(found.pieces)
        if page is None:
            return None
        pages.append(page)
    if len(pages) == 1:
        return pages[0]
    return [body for page in reversed(pages) for body in page]


def _decoded(pieces: list[Stretch | Event]) -> list[Any] | None:
    bodies: list[Any] = []
    for piece in reversed(pieces):
        if type(piece) is Stretch:
            some = piece.decode()
            if some is None:
                return None
            bodies += some
        else:
            assert isinstance(piece, Event)
            bodies.append(piece.body)
    return bodies
