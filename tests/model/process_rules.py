"""Rules for stores and processes that come and go, and for several at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    rule,
)

from tests.model.answers import exact
from tests.model.operations import (
    Append,
    Info,
    New,
)
from tests.model.programs import (
    names,
    tenants,
)
from tests.model.side import Ruled, actors, sides
from tests.model.staging import in_threads


class ProcessRules(Ruled):
    """The part of the machine that opens, closes and kills."""

    @rule(side=sides, actor=st.sampled_from(["here", "again", "there"]))
    def reopen(self, side: int, actor: str) -> None:
        self.sides[side].reopen(actor)

    @rule(side=sides)
    def kill(self, side: int) -> None:
        """SIGKILL for the other process while it does nothing."""
        it = self.sides[side]
        it.end_worker(kill=True)

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
        it.model.gone.add(it.process("there"))
        worker, it.worker = it.worker, None
        assert worker is not None
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
                    if known is None or not (known.has_branched or known.first):
                        least = min(it.model.fewest, 50)
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
