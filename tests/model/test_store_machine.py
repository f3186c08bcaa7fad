"""Random operations on real stores, compared step by step with a model in plain Python.

Two stores, each used by two handles of this process and by another process, which is killed now
and then. ``--model-steps N`` sets how many steps a run makes; a failure prints what repeats it, and
``--hypothesis-profile=explore`` also looks for a shorter way to it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine import Store
from tests.model.actors import Worker, Workers, event_facts, perform
from tests.model.answers import Exact, Refused, exact
from tests.model.lines import line_of
from tests.model.model import ModelStore
from tests.model.operations import (
    Append,
    At,
    Batch,
    Branches,
    Checkout,
    Create,
    Delete,
    Events,
    Everything,
    Follow,
    Fork,
    History,
    Info,
    Load,
    New,
    OneEvent,
    Op,
    Purge,
    Queued,
    Read,
    RollUp,
    Sessions,
    Share,
    State,
    Update,
)
from tests.model.operations import Path as PathOp
from tests.model.programs import (
    IDS,
    KEYS,
    USERS,
    flood,
    groups,
    messages,
    names,
    openings,
    other_events,
    plain_events,
    tenants,
    values,
    variable_names,
)
from tests.model.sessions import ModelSession
from tests.model.staging import in_threads

STEPS = 5_000  # of a run, unless --model-steps says otherwise
STEPS_EACH = 50  # of one example
FLOOD_EVENTS_MAX = 2_600  # a store that has more is not flooded again

sides = st.integers(0, 1)
actors = st.sampled_from(["here", "here", "again", "there"])
counts = st.integers(0, 2**16)


parents = st.sampled_from([None] * 5 + ["root", "tip", "missing"]) | counts


def _parent(session: ModelSession | None, drawn: str | int | None) -> int | None:
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
        expected = self.model.answer(op)
        actual = self.ask(actor, op)
        assert actual == expected, f"{actor}: {op!r}\n{difference(actual, expected)}"
        return actual

    def reopen(self, actor: str) -> None:
        """Close a handle of this process, or the other process in good order."""
        if actor == "there":
            if self.worker is not None:
                self.worker.close()
                self.worker = None
        elif actor in self._handles:
            self._handles.pop(actor).close()

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
        for actor in list(self._handles):
            self.check(actor, Everything())
        if self.worker is not None:
            self.check("there", Everything())
        for actor in ("there", "again", "here"):
            self.reopen(actor)
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


class StoreMachine(RuleBasedStateMachine):
    """See the module."""

    workers: ClassVar[Workers]

    @initialize(
        frequencies=st.tuples(*[st.sampled_from([1, 2, 25])] * 2),
        kept=st.tuples(*[st.sampled_from([None, 1, 5, 40])] * 2),
    )
    def open(self, frequencies: tuple[int, int], kept: tuple[int | None, int | None]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="turnlog-model-"))
        self.marks = 0
        self.sides = [
            Side(self.folder / str(number), self.workers, frequency, max_messages)
            for number, (frequency, max_messages) in enumerate(zip(frequencies, kept, strict=True))
        ]

    def teardown(self) -> None:
        if not hasattr(self, "sides"):
            return
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder)
            for side in self.sides:
                stack.callback(side.reopen, "here")
                stack.callback(side.reopen, "again")
                stack.callback(side.reopen, "there")
            if sys.exc_info()[0] is None:  # else a step failed, and that is what should be shown
                for side in self.sides:
                    side.close()

    # Writing

    @rule(
        side=sides,
        appends=st.lists(
            st.tuples(
                actors,
                tenants,
                names,
                groups,
                st.sampled_from([None, None, "right", "wrong", "none"]),
                st.sampled_from([None, None, None, *KEYS]),
                openings,
                st.booleans(),
                parents,
            ),
            min_size=1,
            max_size=5,
        ),
    )
    def append(self, side: int, appends: list[Any]) -> None:
        it = self.sides[side]
        for actor, tenant, name, events, head, key, opening, as_event, parent in appends:
            session = it.model.sessions.get((tenant, name))
            now = -1 if session is None else session.head
            expected = {None: None, "right": now, "wrong": now + 1, "none": -1}[head]
            follows = _parent(session, parent)
            op = Append(tenant, name, events, expected, key, opening, as_event, follows)
            it.check(actor, op)
            it.past.append(op)

    @precondition(lambda self: any(side.past for side in self.sides))
    @rule(
        retries=st.lists(
            st.tuples(
                actors,
                counts,
                st.sampled_from(["same", "same", "content", "session", "tenant", "store"]),
            ),
            min_size=1,
            max_size=5,
        ),
        body=messages,
        name=names,
        tenant=tenants,
    )
    def append_again(self, retries: list[Any], body: Any, name: str, tenant: str) -> None:
        """Retries, as they were or with something changed."""
        for actor, which, how in retries:
            pairs = [(side, op) for side in (0, 1) for op in self.sides[side].past]
            side, op = pairs[which % len(pairs)]
            if how == "content":
                others = tuple([New(body, id=new.id) for new in op.events])
                op = replace(op, events=others, expected_head=None)
            elif how == "session":
                op = replace(op, session=name, expected_head=None)
            elif how == "tenant":
                op = replace(op, tenant=tenant, expected_head=None)
            elif how == "store":
                side = 1 - side
            self.sides[side].check(actor, op)

    @rule(side=sides, actor=actors, tenant=tenants, name=names, opening=openings)
    def create(self, side: int, actor: str, tenant: str, name: str, opening: Any) -> None:
        self.sides[side].check(actor, Create(tenant, name, opening))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        shares=st.lists(
            st.tuples(
                names,
                st.lists(plain_events, max_size=2),
                st.lists(other_events, max_size=1),
                st.sampled_from([None, None, "right", "wrong"]),
            ),
            min_size=1,
            max_size=3,
            unique_by=lambda share: share[0],
        ),
    )
    def append_batch(self, side: int, actor: str, tenant: str, shares: list[Any]) -> None:
        it = self.sides[side]
        parts = []
        for name, first, then, head in shares:
            session = it.model.sessions.get((tenant, name))
            now = -1 if session is None else session.head
            expected = {None: None, "right": now, "wrong": now + 1}[head]
            parts.append(Share(name, (*first, *then), expected))
        if any([part.events for part in parts]):
            it.check(actor, Batch(tenant, tuple(parts)))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        appends=st.lists(
            st.tuples(names, plain_events, st.sampled_from([None, None, None, 7_777])),
            min_size=1,
            max_size=4,
        ),
    )
    def append_queued(self, side: int, actor: str, tenant: str, appends: list[Any]) -> None:
        it = self.sides[side]
        op = Queued(tuple([Append(tenant, name, (new,), head) for name, new, head in appends]))
        answers, _ = it.check(actor, op)
        if any([isinstance(answer, Refused) for answer in answers]):
            # Other handles of this process on the same store may have heard of the refusals too.
            it.reopen("again" if actor == "here" else "here")

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        name=names,
        skipped=st.integers(0, 40),
        added=st.lists(plain_events | other_events, max_size=4),
        piece=st.sampled_from([1, 3, 4_096]),
    )
    def load(
        self,
        side: int,
        actor: str,
        tenant: str,
        name: str,
        skipped: int,
        added: list[New],
        piece: int,
    ) -> None:
        """A load that begins inside what is there and goes on behind it."""
        it = self.sides[side]
        session = it.model.sessions.get((tenant, name))
        lines = [] if session is None else it.model.lines(tenant, name)[-skipped or len(IDS) :]
        following = 0 if session is None else len(session.events)
        head = -1 if session is None else session.head
        for new in added:
            lines.append(line_of(new, name, following, None if head < 0 else head))
            head, following = following, following + 1
        it.check(actor, Load(tenant, tuple(lines), piece))

    @rule(side=sides, actor=actors, tenant=tenants, name=names, count=st.integers(1_200, 2_300))
    def flood(self, side: int, actor: str, tenant: str, name: str, count: int) -> None:
        """More events than a hot table holds, so that tables are cut."""
        it = self.sides[side]
        if it.model.last_position <= FLOOD_EVENTS_MAX - count:
            self.marks += 1
            it.check(actor, Append(tenant, name, flood(count, self.marks)))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        name=names,
        changes=st.dictionaries(variable_names, values, max_size=3),
        deleted=st.sets(variable_names, max_size=2),
    )
    def update_state(
        self,
        side: int,
        actor: str,
        tenant: str,
        name: str,
        changes: dict[str, Any],
        deleted: set[str],
    ) -> None:
        delete = tuple(sorted(deleted - changes.keys()))
        self.sides[side].check(actor, Update(tenant, name, changes, delete))

    @rule(side=sides, actor=actors, tenant=tenants, name=names, is_erased=st.booleans())
    def delete(self, side: int, actor: str, tenant: str, name: str, is_erased: bool) -> None:
        """What was at a position stays removed, and the next append there is the first."""
        self.sides[side].check(actor, Delete(tenant, name, is_erased))

    @rule(side=sides, actor=actors, tenant=tenants, name=names, where=counts)
    def purge(self, side: int, actor: str, tenant: str, name: str, where: int) -> None:
        it = self.sides[side]
        session = it.model.sessions.get((tenant, name))
        first = 1 + where % (1 + (len(session.events) if session else 0))
        it.check(actor, Purge(tenant, name, first))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        name=names,
        where=st.none() | counts,
        then=st.lists(plain_events, max_size=2),
    )
    def checkout(
        self, side: int, actor: str, tenant: str, name: str, where: int | None, then: list[New]
    ) -> None:
        it = self.sides[side]
        session = it.model.sessions.get((tenant, name))
        leaf = None if where is None else where % (1 + (len(session.events) if session else 0))
        it.check(actor, Checkout(tenant, name, leaf))
        if then:
            it.check(actor, Append(tenant, name, tuple(then)))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        name=names,
        where=counts,
        called=st.sampled_from([None, "a", "b", "\u00e9\0"]),
        then=st.lists(plain_events, max_size=2),
    )
    def fork(
        self,
        side: int,
        actor: str,
        tenant: str,
        name: str,
        where: int,
        called: str | None,
        then: list[New],
    ) -> None:
        it = self.sides[side]
        session = it.model.sessions.get((tenant, name))
        at = where % (1 + (len(session.events) if session else 0))
        it.check(actor, Fork(tenant, name, at, called))
        if then:
            it.check(actor, Append(tenant, name, tuple(then)))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        name=names,
        leaf=st.none() | counts,
        limit=st.sampled_from([1, 7, 100, 10_000]),
    )
    def branches_and_paths(
        self, side: int, actor: str, tenant: str, name: str, leaf: int | None, limit: int
    ) -> None:
        it = self.sides[side]
        session = it.model.sessions.get((tenant, name))
        it.check(actor, Branches(tenant, name))
        if leaf is not None:
            leaf = leaf % (1 + (len(session.events) if session else 0))
        if session is None or len(session.events) < 300 or limit > 50:
            it.check(actor, PathOp(tenant, name, leaf, limit))

    @rule(side=sides, actor=actors, tenant=tenants, name=names)
    def roll_up(self, side: int, actor: str, tenant: str, name: str) -> None:
        self.sides[side].check(actor, RollUp(tenant, name))

    # Reading

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        name=names,
        sequences=st.lists(st.none() | st.integers(0, 30) | st.integers(0, 3_000), max_size=4),
    )
    def state_and_time(
        self, side: int, actor: str, tenant: str, name: str, sequences: list[int | None]
    ) -> None:
        self.sides[side].check(actor, State(tenant, name))
        for sequence in sequences:
            self.sides[side].check(actor, At(tenant, name, sequence))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        name=names,
        limit=st.sampled_from([None, 0, 1, 2, 25, 3_000]),
    )
    def history(self, side: int, actor: str, tenant: str, name: str, limit: int | None) -> None:
        self.sides[side].check(actor, History(tenant, name, limit))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        name=names,
        first=st.integers(0, 30) | st.integers(0, 3_000),
        size=st.none() | st.integers(0, 30),
        kinds=st.none()
        | st.sampled_from(
            [("message",), ("label", "custom"), (), ("open",), ("variables", "roll_up")]
        ),
    )
    def events(
        self,
        side: int,
        actor: str,
        tenant: str,
        name: str,
        first: int,
        size: int | None,
        kinds: tuple[str, ...] | None,
    ) -> None:
        last = None if size is None else first + size
        self.sides[side].check(actor, Events(tenant, name, first, last, kinds))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        name=names,
        sequence=st.integers(0, 10) | st.integers(0, 3_000),
    )
    def event_and_info(self, side: int, actor: str, tenant: str, name: str, sequence: int) -> None:
        self.sides[side].check(actor, OneEvent(tenant, name, sequence))
        self.sides[side].check(actor, Info(tenant, name))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        limit=st.sampled_from([1, 2, 3, 50]),
        user=st.sampled_from(USERS),
    )
    def sessions(self, side: int, actor: str, tenant: str, limit: int, user: str | None) -> None:
        self.sides[side].check(actor, Sessions(tenant, limit, user))

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        after=counts,
        limit=st.none() | st.integers(0, 40) | st.just(3_000),
    )
    def read(self, side: int, actor: str, tenant: str, after: int, limit: int | None) -> None:
        it = self.sides[side]
        it.check(actor, Read(tenant, after % (it.model.last_position + 2), limit))

    @rule(side=sides, actor=actors, tenant=tenants, name=st.none() | names, after=counts)
    def follow(self, side: int, actor: str, tenant: str, name: str | None, after: int) -> None:
        """Exactly what is there: a subscription would wait for more."""
        it = self.sides[side]
        if name is None:
            after = after % (it.model.last_position + 1)
        else:
            session = it.model.sessions.get((tenant, name))
            after = after % (len(session.events) + 1 if session is not None else 1) - 1
        count = len(it.model.look(Follow(tenant, name, after, 10_000)))
        it.check(actor, Follow(tenant, name, after, count))

    @rule(side=sides, actor=actors)
    def everything(self, side: int, actor: str) -> None:
        self.sides[side].check(actor, Everything())

    # Coming and going

    @rule(side=sides, actor=st.sampled_from(["here", "again", "there"]))
    def reopen(self, side: int, actor: str) -> None:
        self.sides[side].reopen(actor)

    @rule(side=sides)
    def kill(self, side: int) -> None:
        """SIGKILL for the other process while it does nothing."""
        it = self.sides[side]
        if it.worker is not None:
            it.worker.kill()
            it.worker = None

    @rule(
        side=sides,
        tenant=tenants,
        into=st.lists(names, min_size=1, max_size=3),
        count=st.integers(1, 30),
        acknowledged=st.integers(0, 30),
    )
    def kill_while_appending(
        self, side: int, tenant: str, into: list[str], count: int, acknowledged: int
    ) -> None:
        """What was acknowledged is there; of the rest a prefix of each session."""
        it = self.sides[side]
        self.marks += 1
        appends = [
            Append(tenant, into[n % len(into)], (New({"burst": self.marks, "n": n}),))
            for n in range(count)
        ]
        worker = it.worker or self.workers.start()
        it.worker = None
        answers = worker.burst(it.path, appends, acknowledged)
        bodies = [exact(append.events[0].body) for append in appends]
        found = it.learn(appends)
        arrived = [(facts[1], facts[9]) for facts in found]
        for name in into:
            sent = [
                body for append, body in zip(appends, bodies, strict=True) if append.session == name
            ]
            here = [body for session, body in arrived if session == name]
            assert here == sent[: len(here)], "events of one session changed places"
        by_position = {facts[4]: (facts[3], facts[1], facts[9]) for facts in found}
        for append, body, placed in zip(appends, bodies, answers, strict=False):
            place = by_position.get(placed.position)
            assert place == (placed.last, append.session, body), "an acknowledged event is lost"

    @rule(
        side=sides,
        tenant=tenants,
        plans=st.lists(
            st.tuples(actors, st.lists(names, min_size=1, max_size=4)), min_size=2, max_size=4
        ),
        rounds=st.integers(1, 4),
    )
    def together(
        self, side: int, tenant: str, plans: list[tuple[str, list[str]]], rounds: int
    ) -> None:
        """Several threads and processes append at once while somebody reads."""
        it = self.sides[side]
        self.marks += 1
        plans = [
            plan
            for number, plan in enumerate(plans)  # the other process has one connection
            if plan[0] != "there" or "there" not in [each[0] for each in plans[:number]]
        ]
        sent = [
            [
                Append(tenant, name, (New({"mark": self.marks, "by": by, "n": n * 10 + each}),))
                for n in range(rounds)
                for each, name in enumerate(targets)
            ]
            for by, (_, targets) in enumerate(plans)
        ]
        touched = sorted({append.session for appends in sent for append in appends})
        left = [len(plans)]
        for actor, _ in plans:
            it.ask(actor, Info(tenant, touched[0]))  # who is to come is there before it begins

        def write(actor: str, appends: list[Append]) -> list[Any]:
            try:
                return [it.ask(actor, append) for append in appends]
            finally:
                left[0] -= 1

        def watch() -> None:
            seen: dict[str, int] = {}
            while left[0]:
                for name in touched:
                    found = it.handle("here").tenant(tenant).session(name)
                    info = found.info()
                    history = found.history(limit=50)
                    count = 0 if info is None else info.event_count
                    assert count >= seen.get(name, 0), "a reader went back in time"
                    assert info is None or count > info.message_count - 1 >= -1
                    known = it.model.sessions.get((tenant, name))
                    if known is None or not known.has_branched:
                        least = min(it.model.max_messages or 50, 50)
                        assert len(history) >= min(least, 0 if info is None else info.message_count)
                    seen[name] = count

        calls: list[Callable[[], Any]] = [
            partial(write, actor, appends) for (actor, _), appends in zip(plans, sent, strict=True)
        ]
        answers = in_threads(*calls, watch)[:-1]
        everything = [append for appends in sent for append in appends]
        found = it.learn(everything)
        assert len(found) == len(everything), "not all that was acknowledged is there"
        by_position = {facts[4]: (facts[3], facts[1], facts[9]) for facts in found}
        for appends, placed in zip(sent, answers, strict=True):
            assert [by_position.get(each.position) for each in placed] == [
                (each.last, append.session, exact(append.events[0].body))
                for append, each in zip(appends, placed, strict=True)
            ]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


def test_stores_do_what_the_model_does(workers: Workers, request: pytest.FixtureRequest) -> None:
    steps = request.config.getoption("--model-steps", STEPS)
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    if settings.get_current_profile_name() == "explore":
        phases.append(Phase.shrink)  # takes minutes, since each attempt is a run on two stores
    StoreMachine.workers = workers
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=max(1, steps // STEPS_EACH),
            stateful_step_count=STEPS_EACH,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )
