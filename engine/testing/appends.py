"""Rules of appends and of reading them back."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable
from typing import Any

from engine.testing.protocol import AckLike, EventLike, SessionLike
from engine.testing.rule import (
    WAIT_S,
    Subject,
    bodies,
    messages,
    refusal,
    require,
    rule,
    say,
    sure,
)
from eventlog.errors import (
    AppendConflictError,
    DuplicateIdError,
    IdempotencyConflictError,
    UsageError,
)

BODIES: tuple[dict[str, Any], ...] = (
    {},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "arguments": "{}"}]},
    {"n": [0, 1, True, False, 1.0, -0.0, 2**64 - 1, -(2**63), 5e-324, math.inf, -math.inf]},
    {"nan": [math.nan, struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]]},
    {"content": "\ud83d \x00 e\u0301", "\ud800": ["\udfff", {"\udfff": b"\xff"}]},
    {"bytes": b"\x00\xff" * 20, "text": "\x00" * 20, "empty": [b"", "", [], {}]},
    {"$b64": "user's own", "$$": {"$float": "x"}},
)
UNSTORABLE: tuple[Any, ...] = (object(), 2**64, {1: "a"}, {"set"}, 1j)


def exact(value: Any) -> Any:
    """Plain data as something that is equal only where types and bits are."""
    if type(value) is dict:
        return ("dict", sorted([(key, exact(item)) for key, item in value.items()]))
    if type(value) is list:
        return ("list", [exact(item) for item in value])
    if type(value) is float:
        return ("float", struct.pack(">d", value))
    return (type(value).__name__, repr(value))


@rule
def sequences_are_gap_free(subject: Subject) -> None:
    """The events of a session have the sequences 0, 1, 2, …, whatever others append meanwhile."""
    call, other = subject.session("call"), subject.session("other")
    placed: list[int] = []
    for number in range(5):
        ack = sure(call.append({"n": number}))
        placed += range(ack.first, ack.last + 1)
        ack = sure(call.append_many([{"n": number}] * 3))
        placed += range(ack.first, ack.last + 1)
        say(other, number)
    require(placed == [*range(20)], f"20 messages were acknowledged at {placed}")
    found = [event.sequence for event in call.events()]
    require(found == [*range(20)], f"20 messages are read at the sequences {found}")


@rule
def positions_are_in_commit_order(subject: Subject) -> None:
    """All events of a store have the positions 1, 2, 3, …, in the order of their acks."""
    wanted = []
    for number in range(4):
        for name in ("b", "a", "c"):
            ack = sure(subject.session(name).append_many([{"n": number}, {"then": number}]))
            wanted += [(ack.position - 1, name, {"n": number})]
            wanted += [(ack.position, name, {"then": number})]
    found = [(event.position, event.session, event.body) for event in subject.store.read()]
    require(found == wanted, f"read gives {found}, acknowledged was {wanted}")
    positions = [position for position, *_ in found]
    require(positions == [*range(1, 25)], f"24 events are at the positions {positions}")


@rule
def what_goes_in_comes_out(subject: Subject) -> None:
    """A body comes back type for type and bit for bit, from every way of reading it."""
    call = subject.session("call")
    for body in BODIES:
        sure(call.append(body))
    sure(call.append_many(BODIES))
    wanted = [exact(body) for body in [*BODIES, *BODIES]]
    ways: dict[str, list[Any]] = {
        "history": call.history(),
        "events": bodies(call.events()),
        "read": bodies(subject.store.read()),
    }
    for name, found in ways.items():
        for ours, theirs in zip(map(exact, found), wanted, strict=True):
            require(ours == theirs, f"{name} gives {ours} for {theirs}")


@rule
def what_is_given_belongs_to_the_caller(subject: Subject) -> None:
    """Changing a message after the append, or what a read gave, changes nothing stored."""
    call = subject.session("call")
    message: dict[str, Any] = {"list": [1]}
    ack = call.append(message)
    message["list"].append(2)
    sure(ack)
    require(call.history() == [{"list": [1]}], "a message changed after its append is stored so")
    call.history()[0]["list"].append(3)
    call.history().clear()
    require(call.history() == [{"list": [1]}], "changing what history gave changed the history")
    sure(call.update_state({"list": [1]}))
    call.state["list"].append(2)
    require(call.state == {"list": [1]}, "changing what state gave changed the state")


@rule
def what_cannot_be_stored_is_refused(subject: Subject) -> None:
    """A value that is no plain data is refused with a UsageError, never bent into another."""
    call = subject.session("call")
    for value in UNSTORABLE:
        error = refusal(call.append, {"a": [value]})
        require(error is not None, f"{value!r} in a message is taken")
        require(isinstance(error, UsageError), f"{value!r} raises {type(error).__name__}")


@rule
def a_key_stores_once(subject: Subject) -> None:
    """An append repeated with its idempotency key is not stored again, and has the same place."""
    call = subject.session("call")
    again: list[Callable[[], AckLike]] = [
        lambda: call.append({"n": 1}, idempotency_key="one"),
        lambda: call.append_many([{"n": 2}, {"n": 3}], idempotency_key="many"),
    ]
    first = [sure(each()) for each in again]
    say(call, 4)
    for each, before in zip(again, first, strict=True):
        ack = sure(each())
        places = [(it.first, it.last, it.position) for it in (before, ack)]
        require(places[0] == places[1], f"a retry is at {places[1]}, the append was at {places[0]}")
        require(ack.already and not before.already, "a retry does not say that it was one")
    found = bodies(call.events())
    require(found == [{"n": n} for n in (1, 2, 3, 4)], f"with two retries there is {found}")


@rule
def a_key_refuses_other_content(subject: Subject) -> None:
    """The same idempotency key with other content is an IdempotencyConflictError."""
    call = subject.session("call")
    sure(call.append({"n": 1}, idempotency_key="k"))
    for other in ({"n": 2}, {"n": 1.0}, {"n": True}):
        error = refusal(call.append, other, idempotency_key="k")
        require(
            isinstance(error, IdempotencyConflictError),
            f"a key that stood for {{'n': 1}} is taken for {other} ({error!r})",
        )


@rule
def a_key_belongs_to_its_session(subject: Subject) -> None:
    """The same idempotency key in two sessions stands for two appends."""
    for name, tenant in (("a", ""), ("b", ""), ("a", "t")):
        ack = sure(subject.session(name, tenant).append({"n": 1}, idempotency_key="k"))
        require(not ack.already, f"a key of another session counts in {name!r} of {tenant!r}")
        found = bodies(subject.session(name, tenant).events())
        require(found == [{"n": 1}], f"{name!r} of {tenant!r} holds {found}")


@rule
def a_stale_append_is_refused(subject: Subject) -> None:
    """With an expected head other than the head an append is an AppendConflictError."""
    call = subject.session("call")
    head = say(call, 0, expected_head=-1)
    new = say(call, 1, expected_head=head)
    for stale in (head, -1, new + 1):
        error = refusal(call.append, {"n": 2}, expected_head=stale)
        require(
            isinstance(error, AppendConflictError),
            f"an append that expected head {stale} is taken where it is {new} ({error!r})",
        )


@rule
def several_are_stored_together(subject: Subject) -> None:
    """Of an append of several messages all are stored, side by side, or none."""
    sure(subject.session("other").append({"n": 0}, id="taken"))
    good: list[dict[str, Any]] = [{"n": number} for number in range(4)]
    tries: dict[str, Callable[[SessionLike], AckLike]] = {
        "all good": lambda call: call.append_many(good),
        "one cannot be stored": lambda call: call.append_many([*good[:3], {"n": object()}]),
        "an id is taken": lambda call: call.append_many(good, ids=[None, None, "taken", None]),
        "a parent is missing": lambda call: call.append_many(good, parent=99),
    }
    for name, attempt in tries.items():
        call = subject.session(name)
        error = refusal(attempt, call)
        found = messages(call.events())
        wanted = 0 if error is not None else 4
        require(len(found) == wanted, f"{name}: {len(found)} of 4 are stored, with {error!r}")
        apart = [event.position - place for place, event in enumerate(found)]
        require(len(set(apart)) <= 1, f"{name}: the four are not side by side")


@rule
def what_is_refused_leaves_no_trace(subject: Subject) -> None:
    """After an append that was refused all is as before: session, sequences, positions, keys."""
    other = subject.session("other")
    sure(other.append({"n": 0}, id="taken"))
    tries: dict[str, Callable[[SessionLike], AckLike]] = {
        "cannot be stored": lambda it: it.append(
            {"n": object()}, idempotency_key="cannot be stored"
        ),
        "id is taken": lambda it: it.append({"n": 1}, id="taken", idempotency_key="id is taken"),
        "missing parent": lambda it: it.append(
            {"n": 1}, parent=99, idempotency_key="missing parent"
        ),
        "stale": lambda it: it.append({"n": 1}, expected_head=99, idempotency_key="stale"),
    }
    for name, attempt in tries.items():
        call = subject.session(name)
        last = sure(other.append({"n": 0})).position
        if refusal(attempt, call) is None:
            continue  # another rule says that it should not have been taken
        require(call.info() is None, f"{name}: the session was made all the same")
        ack = sure(call.append({"n": 2}, idempotency_key=name))
        require(ack.first == 0, f"{name}: the next append is at sequence {ack.first}")
        found = ack.position
        require(found == last + 1, f"{name}: position {last} is followed by {found}")


@rule
def ids_are_unique_within_the_tenant(subject: Subject) -> None:
    """A caller's id that another event of the tenant has is a DuplicateIdError."""
    sure(subject.session("a").append({"n": 1}, id="x"))
    for name in ("a", "b"):
        error = refusal(subject.session(name).append, {"n": 2}, id="x")
        require(isinstance(error, DuplicateIdError), f"an id is taken twice, in 'a' and {name!r}")
    error = refusal(subject.session("a", "tenant").append, {"n": 3}, id="x")
    require(error is None, f"an id of one tenant is refused in another ({error!r})")


@rule
def appends_at_once_all_count(subject: Subject) -> None:
    """Of appends that several threads make at once each has a place of its own and is there."""
    acks: list[list[AckLike]] = [[], [], [], []]
    errors: list[Exception] = []
    barrier = threading.Barrier(len(acks))

    def run(place: int) -> None:
        call = subject.session("call")
        barrier.wait(WAIT_S)
        try:
            for number in range(8):
                acks[place].append(sure(call.append({"n": [place, number]})))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(acks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        require(not thread.is_alive(), "an append of one of several threads does not end")
    require(not errors, f"an append of one of several threads raises {errors}")
    placed = sorted([ack.first for each in acks for ack in each])
    require(placed == [*range(32)], f"32 appends of four threads are acknowledged at {placed}")
    found = bodies(subject.session("call").events())
    missing = [[p, n] for p in range(4) for n in range(8) if {"n": [p, n]} not in found]
    require(not missing, f"acknowledged and not there: {missing}")
    for place in range(len(acks)):
        own = [body["n"][1] for body in found if body["n"][0] == place]
        require(own == sorted(own), f"one thread's appends are in the order {own}")


@rule
def history_gives_the_last(subject: Subject) -> None:
    """``history(n)`` gives the last n messages, oldest first: none for 0, all for None."""
    call = subject.session("call")
    say(call, *range(7))
    wanted = [{"n": number} for number in range(7)]
    for limit, count in ((None, 7), (0, 0), (1, 1), (3, 3), (7, 7), (99, 7)):
        found = call.history(limit)
        require(found == wanted[7 - count :], f"history({limit}) of 7 messages gives {found}")
    nothing = subject.session("nobody").history()
    require(nothing == [], f"history of no session gives {nothing}")


@rule
def events_take_a_range(subject: Subject) -> None:
    """``events(first, last)`` gives both ends and what is between; ``kinds`` leaves out others."""
    call = subject.session("call")
    for number in range(4):
        say(call, number)
        sure(call.update_state({"n": number}))
    everything = list(call.events())
    for first, last in ((0, 0), (1, 3), (2, 99), (5, 4)):
        found = [event.sequence for event in call.events(first, last)]
        wanted = [each.sequence for each in everything if first <= each.sequence <= last]
        require(found == wanted, f"events({first}, {last}) gives {found}")
    found = [event.sequence for event in call.events(kinds=("message",))]
    wanted = [event.sequence for event in messages(everything)]
    require(found == wanted, f"the messages are {wanted}, by their kind {found}")


@rule
def read_goes_on_after_a_position(subject: Subject) -> None:
    """``read(after, limit)`` gives what follows a position, so that pages join without a gap."""
    for number in range(6):
        say(subject.session(f"s{number % 2}"), number)
    wanted = [(event.position, event.body) for event in subject.store.read()]
    for limit in (1, 4):
        found: list[tuple[int, Any]] = []
        while page := list(subject.store.read(found[-1][0] if found else 0, limit)):
            require(len(page) <= limit, f"a page of {limit} has {len(page)} events")
            found += [(event.position, event.body) for event in page]
            require(len(found) <= len(wanted), "pages of read repeat events")
        require(found == wanted, f"pages of {limit} give {found}, one read {wanted}")


@rule
def a_subscription_gives_each_event_once(subject: Subject) -> None:
    """A subscription gives what is there and then what comes, in order, each event once."""
    call, other = subject.session("call"), subject.session("other")
    say(call, 0, 1, 2)
    after = min([event.position for event in subject.store.read()])
    subscription = subject.store.subscribe(after)
    found: list[EventLike] = []
    errors: list[Exception] = []
    is_live = threading.Event()
    is_over = threading.Event()

    def follow() -> None:
        try:
            for event in subscription:
                found.append(event)
                if len(found) == 2:
                    is_live.set()
                if event.body == {"n": 9}:
                    break
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told below
            errors.append(error)
        is_live.set()
        is_over.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        require(is_live.wait(WAIT_S), f"of the two events that are there it gives {len(found)}")
        for number in range(3, 9):
            say(call if number % 2 else other, number)
        say(call, 9)
        require(is_over.wait(WAIT_S), f"it waits for ever after {len(found)} of 9 events")
    finally:
        subscription.close()
        thread.join(WAIT_S)
    require(not errors, f"it raises {errors}")
    numbers = [event.body["n"] for event in found]
    require(numbers == [*range(1, 10)], f"of the messages 1 to 9 it gives {numbers}")


APPEND_RULES = (
    sequences_are_gap_free,
    positions_are_in_commit_order,
    what_goes_in_comes_out,
    what_is_given_belongs_to_the_caller,
    what_cannot_be_stored_is_refused,
    a_key_stores_once,
    a_key_refuses_other_content,
    a_key_belongs_to_its_session,
    a_stale_append_is_refused,
    several_are_stored_together,
    what_is_refused_leaves_no_trace,
    ids_are_unique_within_the_tenant,
    appends_at_once_all_count,
    history_gives_the_last,
    events_take_a_range,
    read_goes_on_after_a_position,
    a_subscription_gives_each_event_once,
)
