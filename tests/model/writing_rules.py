"""Rules that write events and remove them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    precondition,
    rule,
)

from tests.model.answers import Refused
from tests.model.lines import line_of
from tests.model.operations import (
    Append,
    Batch,
    Branches,
    Checkout,
    Create,
    Delete,
    Fork,
    Load,
    New,
    Purge,
    Queued,
    RollUp,
    Share,
    Update,
)
from tests.model.operations import Path as PathOp
from tests.model.programs import (
    IDS,
    KEYS,
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
from tests.model.sessions import CONTROLS
from tests.model.side import FLOOD_EVENTS_MAX, Ruled, actors, counts, parent_of, parents, sides


def _is_own(line: dict[str, Any]) -> bool:
    """Whether a line says what only the store knows: processes, times, what it was in order."""
    return line["kind"] in ("base", "documents", "runs", "tool_calls") or "blobs" in line


class WritingRules(Ruled):
    """The part of the machine that writes."""

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
            follows = parent_of(session, parent)
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
        recorded=st.sampled_from([None, None, 1, 86_399_999_999, 20_000 * 86_400_000_000]),
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
        recorded: int | None,
        piece: int,
    ) -> None:
        """A load that begins inside what is there and goes on behind it."""
        it = self.sides[side]
        session = it.model.sessions.get((tenant, name))
        lines = [] if session is None else it.model.lines(tenant, name)[-skipped or len(IDS) :]
        own = [place for place, line in enumerate(lines, 1) if _is_own(line)]
        lines = lines[max(own, default=0) :]
        following = 0 if session is None else len(session.events)
        head = -1 if session is None else session.head
        for new in added:
            is_beside = new.kind in CONTROLS
            lines.append(line_of(new, name, following, None if head < 0 or is_beside else head))
            if recorded is not None:
                lines[-1]["recorded_us"] = recorded
            head, following = head if is_beside else following, following + 1
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
        which=counts,
        changes=st.dictionaries(variable_names, values, max_size=3),
        deleted=st.sets(variable_names, max_size=2),
        expected=st.lists(
            st.tuples(variable_names, st.sampled_from(["right", "right", "wrong", "none"])),
            max_size=2,
            unique_by=lambda each: each[0],
        ),
        key=st.sampled_from([None, None, *KEYS]),
    )
    def update_state(
        self,
        side: int,
        actor: str,
        which: int,
        changes: dict[str, Any],
        deleted: set[str],
        expected: list[tuple[str, str]],
        key: str | None,
    ) -> None:
        """Twice, so that what was expected is not so any more, and a retry is one."""
        it = self.sides[side]
        tenant, name = it.pick(which)
        session = it.model.sessions.get((tenant, name))
        there = {} if session is None else session.space("variables")
        versions = {each: there[each][1] if each in there else -1 for each in dict(expected)}
        wanted = tuple(
            [
                (each, {"right": versions[each], "wrong": versions[each] + 1, "none": -1}[how])
                for each, how in expected
            ]
        )
        delete = tuple(sorted(deleted - changes.keys()))
        op = Update(tenant, name, changes, delete, wanted, None, key)
        for _ in range(2 if wanted or key else 1):
            it.check(actor, op)

    @rule(side=sides, actor=actors, tenant=tenants, name=names, is_erased=st.booleans())
    def delete(self, side: int, actor: str, tenant: str, name: str, is_erased: bool) -> None:
        """What was at a position stays removed, and the next append there is the first."""
        self.sides[side].check(actor, Delete(tenant, name, is_erased))

    @rule(side=sides, actor=actors, which=counts, where=counts)
    def purge(self, side: int, actor: str, which: int, where: int) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        session = it.model.sessions.get((tenant, name))
        first = 1 + where % (1 + (len(session.events) if session else 0))
        it.check(actor, Purge(tenant, name, first))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        where=st.none() | counts,
        then=st.lists(plain_events, max_size=2),
    )
    def checkout(
        self, side: int, actor: str, which: int, where: int | None, then: list[New]
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        session = it.model.sessions.get((tenant, name))
        leaf = None if where is None else where % (1 + (len(session.events) if session else 0))
        it.check(actor, Checkout(tenant, name, leaf))
        if then:
            it.check(actor, Append(tenant, name, tuple(then)))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        where=counts,
        called=st.sampled_from([None, "a", "b", "\u00e9\0"]),
        then=st.lists(plain_events, max_size=2),
    )
    def fork(
        self,
        side: int,
        actor: str,
        which: int,
        where: int,
        called: str | None,
        then: list[New],
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        session = it.model.sessions.get((tenant, name))
        at = where % (1 + (len(session.events) if session else 0))
        it.check(actor, Fork(tenant, name, at, called))
        if then:
            it.check(actor, Append(tenant, name, tuple(then)))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        leaf=st.none() | counts,
        limit=st.sampled_from([1, 7, 100, 10_000]),
    )
    def branches_and_paths(
        self, side: int, actor: str, which: int, leaf: int | None, limit: int
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        session = it.model.sessions.get((tenant, name))
        it.check(actor, Branches(tenant, name))
        if leaf is not None:
            leaf = leaf % (1 + (len(session.events) if session else 0))
        if session is None or len(session.events) < 300 or limit > 50:
            it.check(actor, PathOp(tenant, name, leaf, limit))

    @rule(side=sides, actor=actors, which=counts)
    def roll_up(self, side: int, actor: str, which: int) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        it.check(actor, RollUp(tenant, name))
