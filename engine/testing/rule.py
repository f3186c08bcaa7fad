"""A rule that stores keep, a store to try it on, and a report of what was tried."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.testing.protocol import AckLike, EventLike, Opener, SessionLike, StoreLike, TenantLike
from eventlog.errors import TurnlogError

WAIT_S = 60.0  # nothing that a rule waits for takes longer, unless it hangs


def require(condition: object, sentence: str) -> None:
    """Raise ``AssertionError`` unless a condition holds; also where Python runs with ``-O``."""
    if not condition:
        raise AssertionError(sentence)


class Subject:
    """A store under test, which can be closed and opened again.

    Attributes:
        store: The store as it is open now; handles of one before the last ``reopen`` are stale.
    """

    def __init__(self, opener: Opener, path: Path) -> None:
        self._opener = opener
        self._path = path
        self.store: StoreLike = opener(path)

    def reopen(self) -> None:
        """Close the store and open it again."""
        self.store.close()
        self.store = self._opener(self._path)

    def session(self, name: str, tenant: str = "") -> SessionLike:
        """A handle on a session of the open store."""
        world: TenantLike = self.store.tenant(tenant) if tenant else self.store
        return world.session(name)


@contextmanager
def fresh(opener: Opener, folder: Path | None = None) -> Iterator[Subject]:
    """A new store in a temporary folder, closed and removed afterwards.

    Args:
        opener: Opens it.
        folder: Where the temporary folder is made; None for the usual place.
    """
    with tempfile.TemporaryDirectory(
        prefix="turnlog-testing-", dir=folder, ignore_cleanup_errors=True
    ) as place:
        subject = Subject(opener, Path(place) / "store")
        try:
            yield subject
        finally:
            subject.store.close()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule; call it with what opens stores, and it raises ``AssertionError`` where it is broken.

    Attributes:
        name: Its name.
        says: What holds, in a sentence.
        body: Tries it on a fresh store.
    """

    name: str
    says: str
    body: Callable[[Subject], None]

    def __call__(self, opener: Opener, *, folder: Path | None = None) -> None:
        """Try it on a fresh store.

        Raises:
            AssertionError: The store breaks it, or refuses what it should take.
        """
        try:
            with fresh(opener, folder) as subject:
                self.body(subject)
        except TurnlogError as error:
            raise AssertionError(
                f"the store raises {type(error).__name__} where nothing is wrong: {error}"
            ) from error

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


def rule(body: Callable[[Subject], None]) -> Rule:
    """Make a function a rule: its name is the rule's, its docstring what the rule says."""
    says = " ".join((body.__doc__ or "").split())
    return Rule(body.__name__, says, body)


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that a store does not keep, and what showed it."""

    rule: Rule
    error: Exception

    def __str__(self) -> str:
        if isinstance(self.error, AssertionError):
            return f"{self.rule.name}: {self.error}"
        return f"{self.rule.name}: {type(self.error).__name__}: {self.error}"


@dataclass(slots=True)
class Report:
    """What came of trying rules on a store.

    Attributes:
        kept: Rules that hold.
        broken: Those that do not.
    """

    kept: list[Rule] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when no rule is broken."""
        return not self.broken

    def __str__(self) -> str:
        count = len(self.kept) + len(self.broken)
        lines = [f"{len(self.kept)} of {count} rules hold", *map(str, self.broken)]
        return "\n".join(lines)


def check_rules(opener: Opener, rules: Iterable[Rule], folder: Path | None) -> Report:
    """Try each rule on a fresh store of its own; one that is broken stops no other."""
    report = Report()
    for each in rules:
        try:
            each(opener, folder=folder)
        except Exception as error:  # noqa: BLE001 - whatever a store under test raises is told
            report.broken.append(Broken(each, error))
        else:
            report.kept.append(each)
    return report


# What rules have in common


def sure(ack: AckLike) -> AckLike:
    """The ack once it is durable."""
    return ack.result(WAIT_S)


def say(session: SessionLike, *numbers: int, **options: Any) -> int:
    """Append a message for each number, one by one; the sequence of the last."""
    last = -1
    for number in numbers:
        last = sure(session.append({"n": number}, **options)).last
    return last


def refusal(append: Callable[..., AckLike], *arguments: Any, **options: Any) -> TurnlogError | None:
    """What refuses an append, at the call or by its ack; None when it is taken."""
    try:
        sure(append(*arguments, **options))
    except TurnlogError as error:
        return error
    return None


def messages(events: Iterable[EventLike]) -> list[EventLike]:
    """Those of kind ``message``."""
    return [event for event in events if event.kind == "message"]


def bodies(events: Iterable[EventLike]) -> list[Any]:
    """Bodies of the messages among events."""
    return [event.body for event in messages(events)]
