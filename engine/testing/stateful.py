"""The model machine: random operations on a store, compared step by step with a model.

The only module here that needs hypothesis; ``engine.testing.machine`` imports it when it is asked.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from engine.testing.model import ModelStore
from engine.testing.protocol import Opener
from engine.testing.rule import Subject, fresh, messages, refusal, require, sure
from eventlog.errors import AppendConflictError, IdempotencyConflictError

PLACES: Final = (("", "a"), ("", "a:"), ("t", "a"))
OFTEN: Final = (PLACES[0], PLACES[0], *PLACES)  # where trees should grow
KEYS: Final = (None, None, None, "k", "l")
PARENTS: Final = (*("head", "head", "head", "tip", "tip", "any", "any"), "root", "missing")
HEADS: Final = (None, None, None, None, "right", "stale")

_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=3,
)
_bodies = st.fixed_dictionaries({"content": _values})
_places = st.sampled_from(OFTEN)
_variables = _values | st.dictionaries(st.sampled_from(["p", "q"]), _values, min_size=1)
_which = st.integers(0, 2**16)


def make_machine(opener: Opener, folder: Path | None) -> type[RuleBasedStateMachine]:
    """A machine over stores that a function opens."""

    class StoreMachine(_Machine):
        """Random operations on the store under test."""

        def __init__(self) -> None:
            super().__init__()
            self.subject = self.stack.enter_context(fresh(opener, folder))

    return StoreMachine


class _Machine(RuleBasedStateMachine):
    subject: Subject

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.model = ModelStore()
        self.past: list[tuple[tuple[str, str], list[Any], str]] = []

    def teardown(self) -> None:
        """Close and remove the store."""
        self.stack.close()

    @rule(
        place=_places,
        bodies=st.lists(_bodies, min_size=1, max_size=3),
        key=st.sampled_from(KEYS),
        head=st.sampled_from(HEADS),
        parent=st.sampled_from(PARENTS),
        which=_which,
    )
    def append(
        self,
        place: tuple[str, str],
        bodies: list[Any],
        key: str | None,
        head: str | None,
        parent: str,
        which: int,
    ) -> None:
        """One or several messages, with conditions that hold or do not."""
        model = self.model.session(place)
        now = -1 if model.head is None else model.head
        options: dict[str, Any] = {}
        if head is not None:
            options["expected_head"] = now if head == "right" else now + 1
        if parent == "root":
            options["parent"] = -1
        elif parent == "missing":
            options["parent"] = model.count + 9
        elif parent == "any" and model.messages:
            options["parent"] = sorted(model.messages)[which % len(model.messages)]
        elif parent == "tip" and model.messages:
            options["parent"] = sorted(model.leaves())[which % len(model.leaves())]
        self._append(place, bodies, key, options)

    @precondition(lambda self: self.past)
    @rule(which=_which, changed=st.booleans(), body=_bodies)
    def retry(self, which: int, changed: bool, body: Any) -> None:
        """An append that was made with a key, the same or with other content."""
        place, bodies, key = self.past[which % len(self.past)]
        self._append(place, [body] if changed else bodies, key, {})

    def _append(
        self, place: tuple[str, str], bodies: list[Any], key: str | None, options: dict[str, Any]
    ) -> None:
        model = self.model.session(place)
        call = self.subject.session(place[1], place[0])
        append: Any = call.append if len(bodies) == 1 else call.append_many
        content = bodies[0] if len(bodies) == 1 else bodies
        known = None if key is None else model.keys.get(key)
        is_retry = known is not None and known.is_same(bodies)
        if known is not None and is_retry:  # one says again all that the append said
            options = known.options
        given = options if key is None else {**options, "idempotency_key": key}
        says = f"append of {bodies!r} to {place} with {given}"
        if known is not None:
            if not is_retry:
                error = refusal(append, content, **given)
                require(isinstance(error, IdempotencyConflictError), f"{says} raised {error!r}")
            else:
                ack = sure(append(content, **given))
                require(ack.already, f"{says} is a retry, and does not say so")
                require(ack.first == known.first, f"{says} is at {ack.first}, not {known.first}")
        elif not model.may_append(options.get("expected_head"), options.get("parent")):
            error = refusal(append, content, **given)
            require(isinstance(error, AppendConflictError), f"{says} raised {error!r}")
        else:
            ack = sure(append(content, **given))
            wanted = (model.count, model.count + len(bodies) - 1, False)
            found = (ack.first, ack.last, ack.already)
            require(found == wanted, f"{says} is at {found}, not {wanted}")
            self.model.append(place, bodies, options, key, ack.position)
            if key is not None:
                self.past.append((place, bodies, key))
        self._compare(place)

    @rule(
        place=_places,
        changes=st.dictionaries(st.sampled_from(["x", "y"]), _variables, max_size=2),
        delete=st.sets(st.sampled_from(["x", "y"]), max_size=1),
    )
    def update_state(self, place: tuple[str, str], changes: dict[str, Any], delete: Any) -> None:
        """Variables set and deleted at once."""
        deleted = sorted(delete - changes.keys())
        ack = sure(self._session(place).update_state(changes, delete=deleted))
        if ack.last >= 0:
            self._took(place, ack.first, ack.last)
        self.model.session(place).update(changes, deleted)
        self._compare(place)

    @precondition(lambda self: self.model.with_messages())
    @rule(which=_which, leaf=_which, how=st.sampled_from(["checkout", "fork", "nothing"]))
    def move(self, which: int, leaf: int, how: str) -> None:
        """A checkout of an event or of none, or a fork."""
        places = self.model.with_messages()
        place = places[which % len(places)]
        model, call = self.model.session(place), self._session(place)
        sequences = sorted(model.messages)
        to = None if how == "nothing" else sequences[leaf % len(sequences)]
        ack = sure(call.fork(to) if how == "fork" else call.checkout(to))
        self._took(place, ack.first, ack.last)
        model.head = to
        if how == "fork" and to is not None:
            model.forked.add(to)
        self._compare(place)

    @precondition(lambda self: self.model.sessions)
    @rule(which=_which, really=st.sampled_from([False, False, False, True]))
    def delete(self, which: int, really: bool) -> None:
        """A session deleted, now and then."""
        places = sorted([place for place, each in self.model.sessions.items() if each.count])
        if places and really:
            place = places[which % len(places)]
            sure(self._session(place).delete())
            self.model.delete(place)
            self.past = [each for each in self.past if each[0] != place]
            self._compare(place)

    @rule()
    def reopen(self) -> None:
        """The store closed and opened; then everything is compared."""
        self.subject.reopen()
        for place in PLACES:
            self._compare(place)
        found = [
            (event.position, event.tenant, event.session, event.sequence, event.body)
            for event in messages(self.subject.store.read())
        ]
        require(found == self.model.order, f"read gives {found}, not {self.model.order}")

    def _session(self, place: tuple[str, str]) -> Any:
        return self.subject.session(place[1], place[0])

    def _took(self, place: tuple[str, str], first: int, last: int) -> None:
        """Note the sequences that something took that is no message."""
        model = self.model.session(place)
        wanted = model.count
        require(first == wanted, f"a change of {place} is at sequence {first}, not {wanted}")
        model.count = last + 1

    def _compare(self, place: tuple[str, str]) -> None:
        """Compare all that a session tells with its model."""
        call, model = self._session(place), self.model.session(place)
        told: dict[str, tuple[Any, Any]] = {
            "history": (call.history(), [model.messages[each].body for each in model.path()]),
            "the last two": (
                call.history(2),
                [model.messages[it].body for it in model.path()[-2:]],
            ),
            "events": (
                [(each.sequence, each.body, each.parent) for each in messages(call.events())],
                [(each, it.body, it.parent) for each, it in sorted(model.messages.items())],
            ),
            "sequences": ([each.sequence for each in call.events()], [*range(model.count)]),
            "head": (call.head, model.head),
            "state": (call.state, model.state),
        }
        info = call.info()
        counts = (0, 0) if info is None else (info.event_count, info.message_count)
        told["info"] = (counts, (model.count, len(model.messages)))
        leaves = {branch.leaf for branch in call.branches()} - {None}
        told["leaves"] = (leaves - model.forked, model.leaves() - model.forked)
        for leaf in (leaves & model.messages.keys()) | {*sorted(model.messages)[:5]}:
            found = [event.sequence for event in messages(call.path(leaf).events)]
            told[f"path to {leaf}"] = (found, model.path(leaf))
        for what, (ours, theirs) in told.items():
            require(ours == theirs, f"{what} of {place}: the store says {ours}, the model {theirs}")
