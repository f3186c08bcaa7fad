"""Names, bodies and whole programs of operations, drawn by Hypothesis or from a seed."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.model.lines import line_of
from tests.model.model import ModelStore
from tests.model.operations import (
    Append,
    Batch,
    Branches,
    Checkout,
    Create,
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
    Opening,
    Queued,
    Read,
    Sessions,
    Share,
    State,
    Update,
)
from tests.model.operations import Path as PathOp

TENANTS = ("", "a", "a:")

# Prefixes of each other, parts of a path, separators of other stores' keys, twins that a
# normalising store would merge, and the longest there may be.
NAMES = (
    "a",
    "a:",
    "a:1",
    "a\x00b",
    "../x",
    "%",
    "A",
    "é",
    "e\u0301",
    "😀",
    "n" * 512,
    "é" * 256,
    "0000000001",
)
KINDS = (
    "event",
    "summary",
    "label",
    "custom",
    "interruption",
    "tool:call",
    "é",
    "metric",
    "annotation",
)
KEYS = ("k", "K", "k\x00", "😀" * 256)
IDS = ("e1", "E1", "e:1", "1.0000000000x")
USERS = (None, "u", "u7")
VARIABLES = ("mood", "mood.now", "m\x00", "é", "😀" * 128)

SPECIAL_BODIES: tuple[dict[str, Any], ...] = (
    {},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "arguments": "{}"}]},
    {"role": 7, "$b64": "user's own", "$$": {"$float": "x"}},
    {"content": "\ud83d \x00 e\u0301", "\ud800": ["\udfff", {"\udfff": b"\xff"}]},
    {"n": [0, 1, True, False, 1.0, -0.0, 2**64 - 1, -(2**63), 5e-324, math.inf, -math.inf]},
    {"nan": [math.nan, struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]]},
    {"bytes": b"\x00\xff" * 20, "text": "\x00" * 20, "empty": [b"", "", [], {}]},
    {"b": 1, "a": 2},
    {"a": 2, "b": 1},
)

_texts = st.text(st.characters(), max_size=6)
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    _texts,
    st.binary(max_size=6),
)
values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_texts, inner, max_size=3)
    ),
    max_leaves=6,
)
messages = st.one_of(
    st.sampled_from(SPECIAL_BODIES),
    st.dictionaries(_texts, values, max_size=3),
    st.builds(
        lambda role, text: {"role": role, "content": text},
        st.sampled_from(["system", "user", "assistant", "tool"]),
        _texts,
    ),
)
tenants = st.sampled_from(TENANTS)
names = st.sampled_from(NAMES)
plain_events = st.builds(New, messages)
marked_events = st.builds(
    New,
    messages,
    metadata=st.none() | st.dictionaries(_texts, _scalars, max_size=2),
    time_us=st.none() | st.integers(-(2**62), 2**62),
    tokens=st.none() | st.integers(0, 2**32 - 1),
    run_id=st.sampled_from([None, "r"]),
    turn_id=st.sampled_from([None, "t", "a\x00b"]),
    speech_id=st.sampled_from([None, "s"]),
    request_id=st.sampled_from([None, "q"]),
)
named_events = st.builds(New, messages, id=st.sampled_from(IDS))
variable_names = st.sampled_from(VARIABLES)
other_events = st.builds(New, values, kind=st.sampled_from(KINDS))
groups = st.one_of(  # what one append may hold
    st.tuples(
        st.one_of(
            plain_events,
            marked_events,
            named_events,
            st.builds(New, messages, id=st.sampled_from(IDS), run_id=st.sampled_from([None, "r"])),
            other_events,
        )
    ),
    st.lists(plain_events | named_events, min_size=2, max_size=4).map(tuple),
)
openings = st.one_of(
    st.just(Opening()),
    st.builds(
        Opening,
        user_id=st.sampled_from(USERS),
        title=st.sampled_from([None, "", "A title"]),
        metadata=st.one_of(
            st.none(),
            st.just({"k": 1, "a.b": None}),
            st.dictionaries(_texts, _scalars, max_size=2),
        ),
    ),
)


def flood(count: int, mark: int) -> tuple[New, ...]:
    """So many small messages that hot tables are cut."""
    return tuple([New({"role": "user", "content": "flood", "n": [mark, n]}) for n in range(count)])


def program(
    random: Random,
    count: int,
    *,
    branches: bool = False,
    draw_more: Callable[[Random, ModelStore, int], Op] | None = None,
) -> list[Op]:
    """A program of operations whose every answer a ``ModelStore`` knows; same seed, same program.

    Includes one flood, so that there is something to cut. With branches half of the operations
    make, move between and read them. With ``draw_more`` three of four are what that draws.
    """
    model = ModelStore()
    past: list[Append] = []
    ops: list[Op] = []
    flood_at = random.randrange(count)
    for number in range(count):
        if number == flood_at:
            op: Op = Append(random.choice(TENANTS), random.choice(NAMES), flood(2_100, number))
        elif draw_more is not None and random.randrange(4):
            op = draw_more(random, model, number)
        elif branches and random.randrange(2):
            op = _draw_branching(random, model, number)
        else:
            op = _draw(random, model, past, number)
        model.answer(op)
        if isinstance(op, Append):
            past.append(op)
        ops.append(op)
    return [*ops, Everything()]


def _draw(random: Random, model: ModelStore, past: list[Append], number: int) -> Op:
    tenant, name = random.choice(TENANTS), random.choice(NAMES)
    session = model.sessions.get((tenant, name))
    head = -1 if session is None else session.head
    match random.randrange(16):
        case 0 | 1 | 2 | 3:
            return Append(
                tenant,
                name,
                _events(random, number),
                expected_head=random.choice([None, None, head, head + 1]),
                key=random.choice([None, *KEYS]),
                opening=Opening(user_id=random.choice(USERS)),
            )
        case 4 if past:
            return random.choice(past)
        case 5:
            return Create(tenant, name, Opening(title=f"created {number}"))
        case 6:
            others = random.sample(NAMES, 2)
            shares = [Share(name, (New({"n": number}),), random.choice([None, head]))]
            shares += [
                Share(each, (New({"n": number}), New([number], kind="label")))
                for each in others
                if each != name
            ]
            return Batch(tenant, tuple(shares))
        case 7:
            return Queued(
                tuple(
                    [
                        Append(
                            tenant, name, (New({"n": [number, each]}),), random.choice([None, 9])
                        )
                        for each in range(3)
                    ]
                )
            )
        case 8 if session is not None:
            following = len(session.events)
            parent = None if head < 0 else head
            lines = model.lines(tenant, name)[-30:]
            lines.append(line_of(New({"loaded": number}), name, following, parent))
            return Load(tenant, tuple(lines), random.choice([1, 7, 4_096]))
        case 9:
            return History(tenant, name, random.choice([None, 0, 1, 5, 5_000]))
        case 10:
            return Events(tenant, name, random.randrange(6), random.choice([None, 4, 2_000]))
        case 11:
            after = random.randrange(model.last_position + 1)
            return Read(tenant, after, random.choice([0, 1, 50, 3_000]))
        case 12:
            return Sessions(tenant, random.choice([1, 2, 50]), random.choice(USERS))
        case 13 if session is not None:
            return Follow(tenant, name, -1, min(len(session.events), 2_200))
        case 14 | 15:
            keys = random.sample(VARIABLES, 3)
            value = random.choice([*SPECIAL_BODIES, None, number])
            return Update(tenant, name, {keys[0]: value, keys[1]: number}, (keys[2],))
    last: list[Op] = [Info(tenant, name), OneEvent(tenant, name, random.randrange(5))]
    return random.choice([*last, State(tenant, name)])


def _draw_branching(random: Random, model: ModelStore, number: int) -> Op:
    """An operation on the tree of one of few sessions, so that trees grow."""
    tenant, name = random.choice(TENANTS[:2]), random.choice(NAMES[:2])
    session = model.sessions.get((tenant, name))
    public = (
        [] if session is None else [n for n in range(len(session.events)) if session.can_follow(n)]
    )
    if not public:
        return Append(tenant, name, tuple([New({"n": [number, each]}) for each in range(4)]))
    some = random.choice([*public, *public[-5:]])
    match random.randrange(9):
        case 0 | 1 | 2:
            new = tuple([New({"n": [number, each]}) for each in range(random.randrange(1, 30))])
            return Append(tenant, name, new, parent=random.choice([None, some, some, -1, 2**20]))
        case 3 | 4:
            return Checkout(tenant, name, random.choice([some, some, some, None, 2**20]))
        case 5:
            return Fork(tenant, name, some, random.choice([None, f"branch {number}"]))
        case 6:
            return Branches(tenant, name)
    return PathOp(tenant, name, random.choice([None, some]), random.choice([2_000, 10_000]))


def _events(random: Random, number: int) -> tuple[New, ...]:
    body = random.choice([*SPECIAL_BODIES, {"n": number}])
    match random.randrange(5):
        case 0:
            return (New(body, id=random.choice(IDS)),)
        case 1:
            return (New(body.get("n"), kind=random.choice(KINDS)),)
        case 2:
            return tuple([New({**body, "of": each}) for each in range(random.randrange(1, 40))])
        case 3:
            return (New(body, metadata={"n": number}, tokens=number, turn_id="t", time_us=-number),)
    return (New(body),)
