"""Rules that read."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    rule,
)

from tests.model.answers import Refused
from tests.model.operations import (
    At,
    Events,
    Everything,
    Follow,
    History,
    Info,
    OneEvent,
    Read,
    Sessions,
    State,
)
from tests.model.programs import (
    USERS,
    names,
    tenants,
)
from tests.model.side import Ruled, actors, counts, sides, wheres


class ReadingRules(Ruled):
    """The part of the machine that reads."""

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        sequences=st.lists(st.none() | st.integers(0, 30) | st.integers(0, 3_000), max_size=4),
    )
    def state_and_time(
        self, side: int, actor: str, which: int, sequences: list[int | None]
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        it.check(actor, State(tenant, name))
        for sequence in sequences:
            it.check(actor, At(tenant, name, sequence))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        limit=st.sampled_from([None, 0, 1, 2, 25, 3_000]),
    )
    def history(self, side: int, actor: str, which: int, limit: int | None) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        it.check(actor, History(tenant, name, limit))

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

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        which=wheres,
        after=counts,
        kinds=st.sampled_from([None, None, ("message",), ("facts", "variables", "tombstone")]),
    )
    def follow(
        self,
        side: int,
        actor: str,
        tenant: str,
        which: int | None,
        after: int,
        kinds: tuple[str, ...] | None,
    ) -> None:
        """Exactly what is there: a subscription would wait for more."""
        it = self.sides[side]
        name = None
        if which is not None:
            tenant, name = it.pick(which)
        if name is None:
            after = after % (it.model.last_position + 1)
        else:
            session = it.model.sessions.get((tenant, name))
            after = after % (len(session.events) + 1 if session is not None else 1) - 1
        found = it.model.look(Follow(tenant, name, after, 10_000, kinds))
        count = 1 if isinstance(found, Refused) else len(found)
        it.check(actor, Follow(tenant, name, after, count, kinds))

    @rule(side=sides, actor=actors)
    def everything(self, side: int, actor: str) -> None:
        self.sides[side].check(actor, Everything())
