"""A store under test beside its model, and what all rules of the machine share."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
)

from engine import Store
from tests.model.actors import Worker, Workers
from tests.model.answers import Exact, exact
from tests.model.following import PathRest
from tests.model.model import ModelStore
from tests.model.operations import (
    Append,
    Everything,
    Noun,
    Op,
    Purge,
    Read,
)
from tests.model.performing import event_facts, perform
from tests.model.programs import NAMES, TENANTS
from tests.model.sessions import ModelSession
from tests.model.usage import Times

FLOOD_EVENTS_MAX = 2_600  # a store that has more is not flooded again

sides = st.integers(0, 1)
actors = st.sampled_from(["here", "here", "again", "there"])
counts = st.integers(0, 2**16)
wheres = st.none() | counts


parents = st.sampled_from([None] * 5 + ["root", "tip", "missing"]) | counts


def parent_of(session: ModelSession | None, drawn: str | int | None) -> int | None:
    """The parent that a drawn one stands for."""
    count = 0 if session is None else len(session.events)
    match drawn:
        case "root":
            return -1
        case "missing":
            return count + 3
        case "tip":
            return None if session is None or session.head < 0 else session.head
        case int():
            return drawn % count if count else None
    return None


class Side:
    """One store under test, its model, and everybody who has it open."""

    def __init__(
        self, path: Path, workers: Workers, frequency: int, max_messages: int | None
    ) -> None:
        self.path = path
        self.model = ModelStore(frequency, max_messages)
        self.past: list[Append] = []
        self._workers = workers
        self._handles: dict[str, Store] = {
            "here": Store.open(path, snapshot_frequency=frequency, max_messages=max_messages)
        }
        self.worker: Worker | None = None
        self.cursors: list[PathRest] = []

    def handle(self, actor: str) -> Store:
        """A handle of this process."""
        if actor not in self._handles:
            self._handles[actor] = Store.open(self.path)
        return self._handles[actor]

    def ask(self, actor: str, op: Op) -> Any:
        """Let somebody carry out an operation."""
        if actor != "there":
            return perform(self.handle(actor), op)
        if self.worker is None:
            self.worker = self._workers.start()
        return self.worker.perform(self.path, op)

    def check(self, actor: str, op: Op) -> Any:
        """Do an operation on both sides and compare."""
        self.model.actor = self.process(actor)
        if isinstance(op, Purge):
            self.learn_times(actor)  # voids have none, and what is in a base keeps its day
        before = self.model.last_position
        if isinstance(op, Noun) and op.writes_hidden:
            actual = self.ask(actor, op)
            self.model.foretell(self.written_itself(before))
            expected = self.model.answer(op)
            if actual == expected:
                self.model.settle()
        else:
            expected = self.model.answer(op)
            actual = self.ask(actor, op)
        assert actual == expected, f"{actor}: {op!r}\n{difference(actual, expected)}"
        return actual

    def process(self, actor: str) -> str:
        """The process that somebody is, started if need be."""
        if actor != "there":
            return "here"
        if self.worker is None:
            self.worker = self._workers.start()
        return f"there, {self.worker.pid}"

    def written_itself(self, after: int) -> list[tuple[int, int, str]]:
        """What the store wrote to sessions of its own; see ``ModelStore.foretell``."""
        return [
            (event.position, event.session_number, event.tenant)
            for event in self.handle("here").read(after=after, voids=True)
            if event.session.startswith("turnlog.") and len(event.session) > 512
        ]

    def learn_times(self, actor: str) -> None:
        """Take in the recorded times of all events."""
        times = self.model.times
        times.update(self.ask(actor, Times(max(times, default=0))))

    def time(self, where: int | None, *, part: int = 1) -> int | None:
        """The recorded time of some event, one of the first part of them, or a µs beside it."""
        if where is None or not self.model.last_position:
            return None
        position = 1 + where // 3 % (1 + (self.model.last_position - 1) // part)
        return self.model.times[position] + where % 3 - 1

    def pick(self, where: int) -> tuple[str, str]:
        """A session: mostly one of few that are there, so that something comes of them."""
        there = [name for name, each in self.model.sessions.items() if not each.is_hidden]
        if where % 8 and there:
            return there[where // 8 % min(len(there), 3)]
        return TENANTS[where // 8 % len(TENANTS)], NAMES[where // 24 % len(NAMES)]

    def sequence(self, tenant: str, name: str, where: int) -> int:
        """Sequence of an event of a session, mostly a late one, or of the next one."""
        session = self.model.sessions.get((tenant, name))
        count = 0 if session is None else len(session.events)
        if where % 3 == 0:
            return where // 3 % (count + 1)
        return max(0, count - where // 3 % 12)

    def end_worker(self, *, kill: bool = False) -> None:
        """The other process ends, in good order or not."""
        if self.worker is not None:
            self.model.gone.add(self.process("there"))
            if kill:
                self.worker.kill()
            else:
                self.worker.close()
            self.worker = None

    def reopen(self, actor: str) -> None:
        """Close a handle of this process, or the other process in good order."""
        if actor == "there":
            self.end_worker()
        elif actor in self._handles:
            self._handles.pop(actor).close()

    def vacuum(self) -> None:
        """Close it everywhere, and rewrite its file."""
        self.leave()
        Store.vacuum(self.path)

    def restore(self) -> None:
        """Back it up, and go on with a store that is made of the backup."""
        backup = self.path.with_suffix(f".backup{self.model.last_position}")
        self.handle("here").backup(backup)
        self.leave()
        self.path = self.path.with_suffix(f".{self.model.last_position}")
        shutil.rmtree(self.path, ignore_errors=True)
        Store.restore(backup, self.path)
        shutil.rmtree(backup)

    def leave(self) -> None:
        """Nobody has it open any more."""
        for actor in ("there", "again", "here"):
            self.reopen(actor)

    def learn(self, sent: list[Append]) -> list[Exact]:
        """Take in what was appended where only the store knows the order; its facts in order.

        Args:
            sent: All that may have been appended: one event each, no two with the same body.
        """
        before = self.model.last_position
        found = [event_facts(event) for event in self.handle("here").read(after=before)]
        left = {(each.tenant, each.session, exact(each.events[0].body)): each for each in sent}
        for facts in found:
            append = left.pop((facts[0], facts[1], facts[9]), None)
            assert append is not None, f"an event that was appended once or never: {facts}"
            self.model.learn(facts[0], facts[1], append.events[0])
        expected = self.model.look(Read("", before))
        assert found == expected, difference(found, expected)
        return found

    def close(self) -> None:
        """Compare everything, as each sees it, and close."""
        self.check("again" if "again" in self._handles else "here", Everything())
        if self.worker is not None:
            self.check("there", Everything())
        self.leave()
        self.check("here", Everything())
        self.reopen("here")


def difference(actual: Any, expected: Any) -> str:
    """The first place where two answers differ."""
    if isinstance(actual, dict) and isinstance(expected, dict) and actual.keys() == expected.keys():
        for key in actual:
            if actual[key] != expected[key]:
                return f"in {key!r}: {difference(actual[key], expected[key])}"
    if isinstance(actual, list) and isinstance(expected, list):
        for place, (ours, theirs) in enumerate(zip(actual, expected, strict=False)):
            if ours != theirs:
                return f"at {place}, {difference(ours, theirs)}"
        return f"the store has {len(actual)}, the model {len(expected)}"
    if isinstance(actual, tuple) and isinstance(expected, tuple) and len(actual) == len(expected):
        fields = [
            f"field {number}: store {ours!r:.600}, model {theirs!r:.600}"
            for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True))
            if ours != theirs
        ]
        return "\n ".join(["", *fields])
    return f"store {actual!r:.2000}, model {expected!r:.2000}"


class Ruled(RuleBasedStateMachine):
    """What every part of the machine has.

    Attributes:
        sides: The stores.
        marks: Rises with each use, so that bodies differ.
    """

    workers: ClassVar[Workers]
    sides: list[Side]
    marks: int
