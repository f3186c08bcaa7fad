"""Rules for what is said of sessions and belongs to them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.model.documents import Documents, Owner, WriteDocument, session_of, texts_of
from tests.model.facts import Alias, ByAlias, Link, NameBranch, Say, TipOf, Told
from tests.model.listing import Listed
from tests.model.operations import Events
from tests.model.programs import KEYS, TENANTS, USERS, tenants, values
from tests.model.redaction import Redact, may_redact
from tests.model.side import Ruled, actors, counts, sides, wheres
from tests.model.usage import COUNTERS, RecordUsage, SessionUsage, TenantUsage
from tests.model.windows import Window
from tests.model.works import (
    Artifacts,
    Calls,
    Runs,
    StepCall,
    StepRun,
    WriteArtifact,
)

LABELS = ("l", "l.1", "é\0")
STATUSES = ("open", "done", "a.b")
BRANCH_NAMES = ("a", "b", "\u00e9\0")
ALIASES = ("x", "y:1", "é")
DOCUMENTS = ("d", "plan.md", "é\0")
TEXTS = ("", "one line", "two\nlines\n", "\n", "é😀")
CONTENTS: tuple[str | bytes, ...] = (
    *("", "text", b"", b"\x00\xff" * 9, "t" * 4_096, "é" * 3_000, b"\x01" * 4_096, b"b" * 4_097),
)
MODELS = (None, "m1", "m2")

keys = st.sampled_from([None, None, None, *KEYS])
owner_names = st.sampled_from([None, "u", "u7", "w"])
sayings = st.one_of(
    st.tuples(st.just("set_title"), st.tuples(st.sampled_from([None, "", "Title"])), st.just(())),
    st.tuples(
        st.sampled_from(["set_status", "set_status", "set_summary"]),
        st.tuples(st.sampled_from([None, *STATUSES])),
        st.one_of(st.just(()), st.tuples(st.tuples(st.just("detail"), values))),
    ),
    st.tuples(
        st.just("set_owner"),
        st.just(()),
        st.lists(
            st.tuples(
                st.sampled_from(["user_id", "account_id", "agent_id", "workspace"]), owner_names
            ),
            max_size=3,
            unique_by=lambda each: each[0],
        ).map(tuple),
    ),
    st.tuples(
        st.just("update_metadata"),
        st.tuples(st.dictionaries(st.sampled_from(["a.b", "é", "k"]), values, max_size=2)),
        st.sampled_from([(), (("delete", ("z",)),)]),
    ),
    st.tuples(
        st.just("update_metadata"),
        st.just(({"new": 1},)),
        st.sampled_from([(("delete", ("k",)),), (("delete", ("a.b", "é")),)]),
    ),
    st.tuples(
        st.sampled_from(["label", "label", "unlabel"]),
        st.tuples(st.sampled_from(LABELS)),
        st.one_of(st.just(()), st.tuples(st.tuples(st.just("on"), st.integers(0, 12)))),
    ),
    st.tuples(
        st.just("set_parent"),
        st.sampled_from([(None,), ("other", None), ("other", 3)]),
        st.just(()),
    ),
    st.tuples(
        st.sampled_from(["relate", "unrelate"]), st.tuples(st.sampled_from(["r", "s"])), st.just(())
    ),
    st.tuples(
        st.sampled_from(["hold", "release_hold", "release_hold"]),
        st.tuples(st.sampled_from(["case 1", "case 2"])),
        st.just(()),
    ),
)


class NounRules(Ruled):
    """The part of the machine for facts, documents, usage, artifacts, runs and tool calls."""

    @rule(side=sides, actor=actors, which=counts, said=st.lists(sayings, min_size=2, max_size=8))
    def say(self, side: int, actor: str, which: int, said: list[Any]) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        for call, given, named in said:
            it.check(actor, Say(tenant, name, call, given, named))
        it.check(actor, Told(tenant, name))

    @rule(side=sides, actor=actors, which=counts, sequences=st.lists(counts, max_size=3))
    def told(self, side: int, actor: str, which: int, sequences: list[int]) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        it.check(actor, Told(tenant, name))
        for each in sequences:
            it.check(actor, Told(tenant, name, it.sequence(tenant, name, each)))

    @rule(
        side=sides,
        actor=actors,
        which=st.lists(counts, min_size=1, max_size=3),
        alias=st.sampled_from(ALIASES),
        is_taken=st.sampled_from([True, True, False]),
    )
    def alias(self, side: int, actor: str, which: list[int], alias: str, is_taken: bool) -> None:
        """Several sessions may want the same one."""
        it = self.sides[side]
        for each in which:
            tenant, name = it.pick(each)
            it.check(actor, Alias(tenant, name, alias, is_taken))
        for tenant in TENANTS:
            it.check(actor, ByAlias(tenant, alias))
            it.check(actor, Listed(tenant, alias=alias))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        name=st.sampled_from(BRANCH_NAMES),
        leaf=wheres,
        is_set=st.sampled_from([True, True, True, False]),
        answers=st.lists(counts, max_size=2),
    )
    def branch_names(
        self,
        side: int,
        actor: str,
        which: int,
        name: str,
        leaf: int | None,
        is_set: bool,
        answers: list[int],
    ) -> None:
        it = self.sides[side]
        tenant, session = it.pick(which)
        where = None if leaf is None else it.sequence(tenant, session, leaf)
        it.check(actor, NameBranch(tenant, session, name, where, is_set))
        for each in BRANCH_NAMES:
            it.check(actor, TipOf(tenant, session, each))
        if answers:
            event, *others = [it.sequence(tenant, session, each) for each in [*answers, which]]
            it.check(actor, Link(tenant, session, event, tuple(others)))

    @rule(
        side=sides,
        actor=actors,
        tenant=st.none() | tenants,
        limit=st.sampled_from([1, 2, 50]),
        wanted=st.lists(
            st.one_of(
                st.tuples(
                    st.sampled_from(["user_id", "account_id", "agent_id", "workspace"]),
                    st.sampled_from(["u", "u7", "w"]),
                ),
                st.tuples(st.just("status"), st.sampled_from(STATUSES)),
                st.tuples(st.just("label"), st.sampled_from(LABELS)),
            ),
            max_size=2,
            unique_by=lambda each: each[0],
        ),
        metadata=st.one_of(
            st.just(()), st.tuples(st.tuples(st.sampled_from(["k", "a.b", "force"]), values))
        ),
        since=wheres,
        until=wheres,
    )
    def listed(
        self,
        side: int,
        actor: str,
        tenant: str | None,
        limit: int,
        wanted: list[Any],
        metadata: Any,
        since: int | None,
        until: int | None,
    ) -> None:
        it = self.sides[side]
        it.learn_times(actor)
        op = Listed(tenant, limit, tuple(wanted), metadata, None, it.time(since), it.time(until))
        it.check(actor, op)
        it.check(actor, Listed(tenant, limit, tuple(wanted[:1])))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        records=st.lists(
            st.tuples(
                st.sampled_from(["turn", "turn", "provider_turn"]),
                st.sampled_from(MODELS),
                st.sampled_from(USERS),
                st.dictionaries(st.sampled_from(COUNTERS), st.integers(0, 2**40), max_size=2),
                st.sampled_from([None, 0, 0.5, 3, 1024.25]),
                st.sampled_from([None, (0.25, None), (2, "EUR"), (0.5, "USD")]),
                wheres,
                keys,
            ),
            min_size=2,
            max_size=4,
        ),
    )
    def record_usage(self, side: int, actor: str, which: int, records: list[Any]) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        for scope, model, user, counted, seconds, cost, event, key in records:
            given: dict[str, Any] = dict(counted)
            if model is not None:
                given["model"] = model
            if user is not None:
                given["user_id"] = user
            if seconds is not None:
                given["seconds"] = seconds
            if cost is not None:
                given["cost"] = cost[0]
                given |= {} if cost[1] is None else {"currency": cost[1]}
                given["extra"] = {"c": cost[0]}
            where = None if event is None or event % 2 else it.sequence(tenant, name, event // 2)
            it.check(actor, RecordUsage(tenant, name, scope, tuple(given.items()), where, key))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        scope=st.sampled_from(["turn", "turn", "provider_turn", "run_total"]),
        branch=st.none() | st.integers(0, 4),
        where=wheres,
        at=wheres,
        user=st.sampled_from(USERS),
        model=st.sampled_from(MODELS),
        since=wheres,
    )
    def usage(
        self,
        side: int,
        actor: str,
        which: int,
        scope: str,
        branch: int | None,
        where: int | None,
        at: int | None,
        user: str | None,
        model: str | None,
        since: int | None,
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        it.learn_times(actor)
        leaf = None if where is None else it.sequence(tenant, name, where)
        it.check(actor, SessionUsage(tenant, name, scope, branch))
        it.check(actor, SessionUsage(tenant, name, scope, leaf=leaf))
        if at is not None:
            sequence = it.sequence(tenant, name, at)
            it.check(actor, SessionUsage(tenant, name, scope, branch, sequence=sequence))
        it.check(actor, TenantUsage(tenant, scope, user, model, it.time(since)))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        owner=st.sampled_from(
            ["session", "session", ("user", "u"), ("user", "u7"), ("tenant", "")]
        ),
        changes=st.lists(
            st.tuples(
                st.sampled_from(["write", "append", "append", "delete"]),
                st.sampled_from(DOCUMENTS),
                st.sampled_from(TEXTS),
                st.sampled_from([None, None, "right", "wrong", "none"]),
                keys,
            ),
            min_size=2,
            max_size=6,
        ),
        at=wheres,
    )
    def documents(
        self,
        side: int,
        actor: str,
        which: int,
        owner: Any,
        changes: list[Any],
        at: int | None,
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        whose: Owner = ("session", name) if owner == "session" else owner
        for how, document, text, version, key in changes:
            there = texts_of(it.model.sessions.get((tenant, session_of(whose))))
            now = there[document][1] if document in there else -1
            expected = {None: None, "right": now, "wrong": now + 1, "none": -1}[version]
            it.check(actor, WriteDocument(tenant, whose, document, how, text, expected, key))
        it.check(actor, Documents(tenant, whose))
        if at is not None and owner == "session":
            it.check(actor, Documents(tenant, whose, it.sequence(tenant, name, at)))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        written=st.lists(
            st.tuples(
                st.sampled_from(["a", "b\0"]),
                st.integers(0, len(CONTENTS) - 1),
                st.sampled_from([None, "text/plain"]),
                wheres,
                keys,
            ),
            max_size=2,
        ),
        at=wheres,
        leaf=wheres,
        is_on_path=st.booleans(),
    )
    def artifacts(
        self,
        side: int,
        actor: str,
        which: int,
        written: list[Any],
        at: int | None,
        leaf: int | None,
        is_on_path: bool,
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        for id, content, media_type, event, key in written:
            where = None if event is None else it.sequence(tenant, name, event)
            given = CONTENTS[content]
            it.check(actor, WriteArtifact(tenant, name, id, given, media_type, where, key))
        sequence = None if at is None else it.sequence(tenant, name, at)
        end = None if leaf is None else it.sequence(tenant, name, leaf)
        it.check(actor, Artifacts(tenant, name, sequence))
        if is_on_path and it.model.sessions.get((tenant, name)) is not None:
            it.check(actor, Artifacts(tenant, name, sequence, True, end))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        steps=st.lists(
            st.one_of(
                st.tuples(
                    st.sampled_from(["begin", "begin", "mark"]),
                    st.sampled_from(["r1", "r2"]),
                    st.sampled_from(["queued", "running", "suspended"]),
                    st.sampled_from([None, {"k": 1}]),
                ),
                st.tuples(
                    st.just("end"),
                    st.sampled_from(["r1", "r2"]),
                    st.sampled_from(["succeeded", "failed", "denied"]),
                    st.sampled_from([None, "why"]),
                ),
            ),
            min_size=1,
            max_size=5,
        ),
        at=wheres,
    )
    def runs(self, side: int, actor: str, which: int, steps: list[Any], at: int | None) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        for call, run_id, status, said in steps:
            if call == "mark":
                said = None
            it.check(actor, StepRun(tenant, name, run_id, call, status, said))
        it.check(actor, Runs(tenant, name))
        if at is not None:
            it.check(actor, Runs(tenant, name, it.sequence(tenant, name, at)))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        steps=st.lists(
            st.tuples(
                st.sampled_from(["c1", "c2", "c3"]),
                st.sampled_from(["open", "open", "waiting", "resume", "done", "failed", "abandon"]),
                st.sampled_from([None, {"at": 3}, "why"]),
                st.none() | st.integers(0, 30),
            ),
            min_size=1,
            max_size=7,
        ),
        states=st.sampled_from([None, None, ("open", "waiting"), ("done",), ()]),
        at=wheres,
    )
    def tool_calls(
        self,
        side: int,
        actor: str,
        which: int,
        steps: list[Any],
        states: Any,
        at: int | None,
    ) -> None:
        it = self.sides[side]
        tenant, name = it.pick(which)
        for id, call, said, event in steps:
            it.check(actor, StepCall(tenant, name, id, call, said, event))
        sequence = None if at is None else it.sequence(tenant, name, at)
        it.check(actor, Calls(tenant, name, sequence, states))

    @rule(
        side=sides,
        actor=actors,
        which=counts,
        ranges=st.lists(st.tuples(counts, st.sampled_from([0, 0, 2, 30])), min_size=1, max_size=3),
        last=st.sampled_from([None, 1, 5]),
    )
    def redact(
        self,
        side: int,
        actor: str,
        which: int,
        ranges: list[tuple[int, int]],
        last: int | None,
    ) -> None:
        """What events said is gone for every actor, and all else of them stays."""
        it = self.sides[side]
        tenant, name = it.pick(which)
        session = it.model.sessions.get((tenant, name))
        if session is not None and not may_redact(session):
            return
        for where, count in ranges:
            first = it.sequence(tenant, name, where)
            it.check(actor, Redact(tenant, name, first, first + count))
        for each in ("here", actor):
            it.check(each, Events(tenant, name))
            it.check(each, Window(tenant, name, last))
