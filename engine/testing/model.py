"""A store in plain Python, as far as the model machine compares: what holds, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Place = tuple[str, str]  # tenant and session name


@dataclass(frozen=True, slots=True)
class Message:
    """A message and the sequence of the one that it follows."""

    body: Any
    parent: int | None


@dataclass(frozen=True, slots=True)
class Known:
    """What an idempotency key stands for."""

    first: int
    bodies: list[Any]
    options: dict[str, Any]

    def is_same(self, bodies: list[Any]) -> bool:
        """Whether an append holds the same, type for type."""
        return repr(self.bodies) == repr(bodies)


@dataclass(slots=True)
class ModelSession:
    """A session.

    Attributes:
        messages: By sequence.
        count: Sequences that are taken, by messages and by what else is an event.
        head: Sequence of the message that the next append follows.
        state: Its variables.
        keys: Its idempotency keys.
        forked: Messages where forks were made.
    """

    messages: dict[int, Message] = field(default_factory=dict)
    count: int = 0
    head: int | None = None
    state: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Known] = field(default_factory=dict)
    forked: set[int] = field(default_factory=set)

    def may_append(self, expected_head: int | None, parent: int | None) -> bool:
        """Whether an append with these conditions is taken."""
        if expected_head is not None and expected_head != (-1 if self.head is None else self.head):
            return False
        return parent in (None, -1) or parent in self.messages

    def path(self, leaf: int | None = None) -> list[int]:
        """Sequences from the root to a message; to the head without one."""
        found: list[int] = []
        at = self.head if leaf is None else leaf
        while at is not None:
            found.append(at)
            at = self.messages[at].parent
        return found[::-1]

    def leaves(self) -> set[int]:
        """The messages that no other follows."""
        return self.messages.keys() - {each.parent for each in self.messages.values()}

    def update(self, changes: dict[str, Any], delete: list[str]) -> None:
        """Set and delete variables."""
        self.state = {**self.state, **changes}
        for key in delete:
            self.state.pop(key, None)


class ModelStore:
    """All sessions, and all messages in the order of their positions."""

    def __init__(self) -> None:
        self.sessions: dict[Place, ModelSession] = {}
        self.order: list[tuple[int, str, str, int, Any]] = []

    def session(self, place: Place) -> ModelSession:
        """A session, empty while there is none."""
        return self.sessions.setdefault(place, ModelSession())

    def with_messages(self) -> list[Place]:
        """The sessions that have messages."""
        return sorted([place for place, each in self.sessions.items() if each.messages])

    def append(
        self,
        place: Place,
        bodies: list[Any],
        options: dict[str, Any],
        key: str | None,
        position: int,
    ) -> None:
        """Take in an append whose last message is at a position."""
        session = self.session(place)
        if key is not None:
            session.keys[key] = Known(session.count, bodies, options)
        parent = options.get("parent")
        follows = session.head if parent is None else (None if parent == -1 else parent)
        for number, body in enumerate(bodies):
            at = position - len(bodies) + 1 + number
            self.order.append((at, *place, session.count, body))
            session.messages[session.count] = Message(body, follows)
            session.head = follows = session.count
            session.count += 1

    def delete(self, place: Place) -> None:
        """Take a session away."""
        del self.sessions[place]
        self.order = [each for each in self.order if each[1:3] != place]
