"""Rules for views, retention, erasure, followers, contents, copies, and whole stores."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.model.contents import AppendBlobs, PutBlob
from tests.model.copies import Carry, Clone, Configure, Lines, Rebuild, RoundTrip
from tests.model.facts import Say, find_alias
from tests.model.following import PathRest, PathStart, Project, ReadUpTo
from tests.model.noun_programs import LIVES, PLAIN_TURNS, TURNS, draw_noun, said
from tests.model.operations import Append, Everything, New
from tests.model.programs import NAMES, TENANTS, tenants
from tests.model.redaction import may_call
from tests.model.retention import Forget, Retain
from tests.model.side import Ruled, actors, counts, sides, wheres
from tests.model.windows import Compact, Overflow, Window
from tests.model.works import Runs

lengths = st.integers(20, 80)  # of lives
SMALL = 400  # events of a store that is exported, or of a session that is copied
dialogues = st.lists(
    st.sampled_from(TURNS),
    min_size=2,
    max_size=10,
)
DATA = (b"", b"small", b"\x00" * 5_000, bytes(range(256)) * 40, b"x" * 70_000, b"text " * 30_000)
datas = st.integers(0, len(DATA) - 1)  # of which one


class WholeRules(Ruled):
    """The part of the machine for what concerns whole sessions and whole stores."""

    @rule(
        side=sides,
        actors=st.lists(actors, min_size=1, max_size=3),
        seed=counts,
        count=lengths,
        theme=st.sampled_from([None, *LIVES]),
    )
    def life(self, side: int, actors: list[str], seed: int, count: int, theme: str | None) -> None:
        """Much that happens to few sessions, so that one thing meets what another one left."""
        it = self.sides[side]
        random = Random(seed)
        for number in range(count):
            self.marks += 1
            actor = actors[number % len(actors)]
            it.check(actor, draw_noun(random, it.model, self.marks, theme))
        if theme == "runs":
            it.end_worker(kill=seed % 2 == 0)
            for name in NAMES[:2]:
                it.check("here", Runs(TENANTS[0], name))

    @rule(side=sides, actor=actors, seed=counts, count=lengths, theme=st.sampled_from([*LIVES]))
    def another_life(self, side: int, actor: str, seed: int, count: int, theme: str) -> None:
        """As ``life``, of a store that was just opened, and as often."""
        self.sides[side].reopen("here")
        self.life(side=side, actors=[actor, "here"], seed=seed, count=count, theme=theme)

    # Views

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        turns=dialogues,
        tokens=st.sampled_from([None, None, 1, 7, 40]),
        follows=wheres,
    )
    def dialogue(
        self,
        side: int,
        actor: str,
        which: int,
        turns: list[str],
        tokens: int | None,
        follows: int | None,
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        parent = None if follows is None or follows % 4 else it.sequence(tenant, name, follows // 4)
        has_calls = may_call(it.model.sessions.get((tenant, name)))
        for turn in turns:
            self.marks += 1
            what = turn if has_calls or turn in PLAIN_TURNS else "user"
            events = (said(what, self.marks, tokens),)
            it.check(actor, Append(tenant, name, events, as_event=True, parent=parent))
            parent = None

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        through=wheres,
        keep=st.lists(counts, max_size=2),
        has_summary=st.booleans(),
    )
    def compaction_event(
        self,
        side: int,
        actor: str,
        which: int,
        through: int | None,
        keep: list[int],
        has_summary: bool,
    ) -> None:
        """Compactions as hosts append them, with bounds of any kind."""
        it = self.sides[side]
        tenant, name = it.pick(which)
        if not has_summary:
            it.check(actor, Append(tenant, name, (New({"n": 1}, kind="compaction"),)))
            return
        data: dict[str, Any] = {}
        if through is not None:
            data["through"] = it.sequence(tenant, name, through)
        if keep:
            data["keep"] = [it.sequence(tenant, name, each) for each in keep]
        body = {"summary": f"summary {which}", "data": data}
        it.check(actor, Append(tenant, name, (New(body, kind="compaction"),)))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        windows=st.lists(
            st.tuples(
                st.sampled_from([None, None, 0, 1, 3, 10]),
                st.sampled_from([None, None, None, 0, 1, 2]),
                st.sampled_from([None, None, None, 0, 3, 10, 45]),
                wheres,
                st.sampled_from([True, True, False]),
            ),
            min_size=1,
            max_size=4,
        ),
    )
    def window(self, side: int, actor: str, which: int, windows: list[Any]) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        for last, exchanges, tokens, where, is_repaired in windows:
            leaf = None if where is None else it.sequence(tenant, name, where)
            op = Window(tenant, name, last, exchanges, tokens, leaf, is_repaired)
            it.check(actor, op)

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        keep_last=st.sampled_from([0, 1, 3, 8]),
        through=st.none() | st.none() | counts,
        keep=st.lists(counts, max_size=1),
        after=wheres,
    )
    def compact(
        self,
        side: int,
        actor: str,
        which: int,
        keep_last: int,
        through: int | None,
        keep: list[int],
        after: int | None,
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        last = None if through is None else it.sequence(tenant, name, through)
        kept = tuple([it.sequence(tenant, name, each) for each in keep])
        it.check(actor, Overflow(tenant, name))
        it.check(actor, Compact(tenant, name, keep_last, last, kept))
        it.check(actor, Window(tenant, name))
        it.check(
            actor,
            Overflow(tenant, name, None if after is None else it.sequence(tenant, name, after)),
        )

    @rule(side=sides, actor=actors, which=counts, where=wheres, limit=st.sampled_from([1, 2, 5]))
    def path_begins(self, side: int, actor: str, which: int, where: int | None, limit: int) -> None:
        """The rest of it is asked for later, whatever happens meanwhile."""
        it = self.sides[side]
        tenant, name = it.pick(which)
        leaf = None if where is None else it.sequence(tenant, name, where)
        op = PathStart(tenant, name, leaf, limit)
        answer, expected = it.ask(actor, op), it.model.answer(op)
        if not isinstance(answer, tuple):
            assert answer == expected
            return
        events, cursor = answer
        assert (events, cursor is not None) == expected
        if cursor is not None:
            session = it.model.sessions[(tenant, name)]
            end = session.head if leaf is None else leaf
            rest = PathRest(tenant, name, cursor, session.number, end, events[-1])
            it.cursors = [*it.cursors[-5:], rest]

    @rule(side=sides, actor=actors, which=counts)
    def path_goes_on(self, side: int, actor: str, which: int) -> None:
        it = self.sides[side]
        if it.cursors:
            it.check(actor, it.cursors[which % len(it.cursors)])

    # Removal

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        age=wheres,
        entries=st.none() | st.integers(1, 12),
        kinds=st.sampled_from([None, None, ("message",), ("message", "facts")]),
        is_all=st.sampled_from([False] * 24 + [True]),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        held=wheres,
    )
    def retain(
        self,
        side: int,
        actor: str,
        tenant: str,
        age: int | None,
        entries: int | None,
        kinds: Any,
        is_all: bool,
        flags: tuple[bool, bool, bool],
        held: int | None,
    ) -> None:
        """Rules of age take few sessions: the time is mostly an early one."""
        it = self.sides[side]
        it.learn_times(actor)
        if held is not None:
            it.check(actor, Say(*it.pick(held), "hold", ("case 1",)))
            it.learn_times(actor)
        now = None if age is None else it.time(age, part=6)
        session = None if age is None else it.model.sessions.get(it.pick(age // 3))
        if session is not None and age is not None and age % 2:  # at the edge of its activity
            now = it.model.times[session.events[-1].position] + age % 3 - 1
        if now is None and entries is None and not is_all:
            entries = 3
        now = None if now is not None and now < 0 else now
        if now is None and entries is None and not is_all:
            return
        is_erased, is_dry, is_archived = flags
        op = Retain(tenant, now, entries, is_all, kinds, is_erased, is_dry, is_archived)
        it.check(actor, op)

    @rule(
        side=sides,
        actor=actors,
        tenant=tenants,
        user=st.sampled_from([*["u", "u7", "w"] * 3, None]),
        is_forced=st.booleans(),
    )
    def forget(self, side: int, actor: str, tenant: str, user: str | None, is_forced: bool) -> None:
        self.sides[side].check(actor, Forget(tenant, user, is_forced))

    # Following

    @rule(
        side=sides,
        actor=actors,
        name=st.sampled_from(["p", "q"]),
        tenant=st.none() | tenants,
        kinds=st.sampled_from([None, None, ("message",), ("facts", "tombstone")]),
        limit=st.sampled_from([None, None, 1, 40]),
        poison=st.sampled_from([0, 0, 3, 7]),
        on_poison=st.sampled_from(["stop", "skip", "skip", "retry"]),
        reset=wheres,
    )
    def project(
        self,
        side: int,
        actor: str,
        name: str,
        tenant: str | None,
        kinds: Any,
        limit: int | None,
        poison: int,
        on_poison: str,
        reset: int | None,
    ) -> None:
        it = self.sides[side]
        last = it.model.last_position
        if on_poison == "retry" and last > 60:
            on_poison = "skip"  # there are pauses between tries
        back = None if reset is None or reset % 3 else reset // 3 % (last + 1)
        it.check(actor, Project(name, tenant, kinds, limit, poison, on_poison, 1, back))

    @rule(side=sides, actor=actors, after=counts, ahead=st.integers(-3, 3))
    def read_up_to(self, side: int, actor: str, after: int, ahead: int) -> None:
        it = self.sides[side]
        last = it.model.last_position
        it.check(actor, ReadUpTo(after % (last + 1), max(0, last + ahead)))

    # Contents

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        data=datas,
        more=st.lists(datas, max_size=2),
        start=st.integers(0, 80_000),
        size=st.none() | st.integers(0, 80_000),
        is_named=st.booleans(),
        follows=wheres,
    )
    def blobs(
        self,
        side: int,
        actor: str,
        which: int,
        data: int,
        more: list[int],
        start: int,
        size: int | None,
        is_named: bool,
        follows: int | None,
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        stop = None if size is None else start + size
        it.check(actor, PutBlob(tenant, DATA[data], start, stop))
        if is_named:
            parent = None if follows is None else it.sequence(tenant, name, follows)
            body = {"role": "user", "content": f"blob {which}"}
            contents = tuple([DATA[each] for each in [data, *more]])
            it.check(actor, AppendBlobs(tenant, name, body, contents, parent))

    # Copies

    @rule(side=sides, actor=actors, which=counts, name=st.sampled_from(NAMES), where=wheres)
    def clone(self, side: int, actor: str, which: int, name: str, where: int | None) -> None:
        it = self.sides[side]
        tenant, session = it.pick(which)
        source = it.model.sessions.get((tenant, session))
        if source is not None and (source.first or len(source.events) > SMALL):
            return
        leaf = None if where is None else it.sequence(tenant, session, where)
        it.check(actor, Clone(tenant, session, name, leaf))

    @rule(side=sides, actor=actors, other=actors, which=counts)
    def carry(self, side: int, actor: str, other: str, which: int) -> None:
        """A session is exported by one store and loaded by the other."""
        it, into = self.sides[side], self.sides[1 - side]
        tenant, name = it.pick(which)
        source = it.model.sessions.get((tenant, name))
        if source is None or source.first or len(source.events) > SMALL:
            return
        if (tenant, name) in into.model.sessions:
            return
        ids = {kept.new.id for kept in source.events} - {None}
        if any([(tenant, id) in into.model.ids for id in ids]):
            return
        for key in source.space("facts"):
            if find_alias(into.model, tenant, key.removeprefix("alias.")) is not None:
                return
        lines = it.ask(actor, Lines(tenant, name))
        into.model.carried = source
        into.check(other, Carry(tenant, name, tuple(lines)))

    # Whole stores

    @rule(side=sides, actor=actors)
    def round_trip(self, side: int, actor: str) -> None:
        it = self.sides[side]
        if it.model.last_position <= SMALL // 2:
            it.check(actor, RoundTrip())

    @rule(side=sides, actor=actors)
    def rebuild(self, side: int, actor: str) -> None:
        it = self.sides[side]
        if it.model.last_position <= SMALL:
            it.check(actor, Rebuild())

    @rule(
        side=sides,
        actor=actors,
        frequency=st.sampled_from([1, 2, 25]),
        max_messages=st.sampled_from([None, 1, 5, 40]),
    )
    def configure(self, side: int, actor: str, frequency: int, max_messages: int | None) -> None:
        """A view may keep less from now on; with more, a tree may show again what it hid."""
        it = self.sides[side]
        now = it.model.max_messages
        kept = now if max_messages is None else min(max_messages, now or max_messages)
        it.check(actor, Configure(frequency, kept))

    @rule(side=sides, how=st.sampled_from(["vacuum", "restore", "restore"]))
    def move(self, side: int, how: str) -> None:
        """The store goes on as what a vacuum, or a backup that was restored, made of it."""
        it = self.sides[side]
        if how == "vacuum":
            it.vacuum()
        else:
            it.restore()
        it.check("here", Everything())
