"""Rules of sessions as a whole: apart from each other, their state, their end, and reopening."""

from __future__ import annotations

from typing import Any

from engine.testing.protocol import SessionLike
from engine.testing.rule import Subject, bodies, messages, refusal, require, rule, say, sure

NAMES = (
    *("a", "a:", "a:1", "a\x00", "a\x00b", "A", "../a", "a/b", "%", "_", "a%", "0", "0000000001"),
    *("é", "e\u0301", "😀", "n" * 512, "é" * 256, " ", "a "),
)
TENANTS = ("", "a", "a:", "a:b", "b", "a/b", "A")


@rule
def names_that_look_alike_are_apart(subject: Subject) -> None:
    """Each name of 1 to 512 bytes is a session of its own, whatever it looks like."""
    for number, name in enumerate(NAMES):
        say(subject.session(name), number)
    for number, name in enumerate(NAMES):
        found = bodies(subject.session(name).events())
        require(found == [{"n": number}], f"session {name[:20]!a} holds {found}, not {number}")


@rule
def tenants_are_apart(subject: Subject) -> None:
    """No name of a tenant and a session leads to what another tenant has."""
    pairs = [(tenant, name) for tenant in TENANTS for name in ("a", "b:c", "c", ":a", "b:b:c")]
    for number, (tenant, name) in enumerate(pairs):
        say(subject.session(name, tenant), number)
    for number, (tenant, name) in enumerate(pairs):
        found = bodies(subject.session(name, tenant).events())
        require(found == [{"n": number}], f"{name!r} of tenant {tenant!r} holds {found}")
    found_pairs = [(event.tenant, event.session) for event in subject.store.read()]
    require(found_pairs == pairs, f"read tells the tenants and sessions {found_pairs}")


@rule
def handles_are_alike(subject: Subject) -> None:
    """What is appended through one handle every other handle sees at once."""
    one, two = subject.session("call"), subject.session("call")
    for number in range(3):
        last = say(one if number % 2 else two, number)
        for handle in (one, two):
            require(handle.head == last, f"one handle says {handle.head}, another appended {last}")
            count = len(messages(handle.events()))
            require(count == number + 1, f"one handle sees {count} of {number + 1} messages")


@rule
def info_counts_what_is_there(subject: Subject) -> None:
    """``info`` tells the number of events and of messages, and the head; None of no session."""
    require(subject.session("nobody").info() is None, "there is an info of no session")
    call = subject.session("call")
    for number in range(4):
        sure(call.append_many([{"n": number}] * 2))
        sure(call.update_state({"n": number}))
        info = call.info()
        if info is None:
            raise AssertionError("there is no info of a session that has events")
        events = list(call.events())
        found = (info.event_count, info.message_count, info.head)
        wanted = (len(events), len(messages(events)), call.head)
        require(found == wanted, f"info counts {found}, there is {wanted}")


@rule
def state_is_the_fold_of_its_changes(subject: Subject) -> None:
    """The state is what all changes give in turn: shallow, None is a value, deleted is gone."""
    call = subject.session("call")
    require(call.state == {}, "no session has a state")
    changes: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
        ({"a": 1, "nested": {"x": 1, "y": 2}}, ()),
        ({"nested": {"x": 3}}, ()),
        ({"a": None, "b": [1]}, ()),
        ({}, ("b", "never")),
        ({"b": [2]}, ("a",)),
        ({}, ()),
    )
    wanted: dict[str, Any] = {}
    for number, (values, delete) in enumerate(changes):
        say(call, number)
        sure(call.update_state(values, delete=delete))
        wanted = {key: value for key, value in {**wanted, **values}.items() if key not in delete}
        found = call.state
        require(found == wanted, f"after {values} without {delete} it is {found}, not {wanted}")


@rule
def state_is_the_whole_sessions(subject: Subject) -> None:
    """A change of state moves no head, and moving the head changes no state."""
    call = subject.session("call")
    last = say(call, 0, 1)
    sure(call.update_state({"a": 1}))
    require(call.head == last, f"a change of state moves the head from {last} to {call.head}")
    sure(call.checkout(0))
    require(call.state == {"a": 1}, f"on another branch the state is {call.state}")


@rule
def what_is_deleted_is_gone(subject: Subject) -> None:
    """Of a deleted session nothing can be read, and no other session is touched."""
    names = ("a", "a:", "a:b", "b")
    for name in names:
        call = subject.session(name)
        say(call, 0, 1)
        sure(call.update_state({"a": 1}))
    call = subject.session("a")
    sure(call.delete())
    seen: dict[str, Any] = {
        "history": call.history(),
        "events": list(call.events()),
        "state": call.state,
        "branches": list(call.branches()),
        "path": list(call.path().events),
        "read": [event for event in subject.store.read() if event.session == "a"],
    }
    for way, found in seen.items():
        require(not found, f"{way} of a deleted session still gives {found}")
    require((call.info(), call.head) == (None, None), "a deleted session still has info or head")
    for name in names[1:]:
        other = subject.session(name)
        found = (len(messages(other.events())), other.state)
        require(found == (2, {"a": 1}), f"deleting 'a' left of {name!r} {found}")


@rule
def a_deleted_name_is_free(subject: Subject) -> None:
    """The name of a deleted session begins a new one, from sequence 0 and without its keys."""
    call = subject.session("call")
    sure(call.append({"n": 0}, idempotency_key="k"))
    say(call, 1, 2)
    sure(call.delete())
    ack = sure(call.append({"n": 3}, idempotency_key="k"))
    require(ack.first == 0, f"the first event under it is at sequence {ack.first}")
    found = bodies(call.events())
    require(found == [{"n": 3}], f"a session with a deleted one's name holds {found}")


def picture(session: SessionLike) -> dict[str, Any]:
    """All that a session tells of itself."""
    info = session.info()
    return {
        "history": session.history(),
        "events": [(each.sequence, each.position, each.kind) for each in session.events()],
        "messages": [(each.body, each.parent) for each in messages(session.events())],
        "head": session.head,
        "info": info and (info.event_count, info.message_count, info.head),
        "branches": [(branch.leaf, branch.is_head) for branch in session.branches()],
        "path": [event.sequence for event in session.path().events],
        "state": session.state,
    }


@rule
def acknowledged_survives_reopening(subject: Subject) -> None:
    """What was acknowledged is there after the store was closed and opened, and goes on."""
    for name in ("a", "b"):
        call = subject.session(name)
        say(call, 0, 1, 2)
        say(call, 3, parent=0)
        sure(call.checkout(2))
        sure(call.update_state({"a": [1, {"b": None}]}))
    last = sure(subject.session("b").append_many([{"n": 4}, {"n": 5}]))
    before = {name: picture(subject.session(name)) for name in ("a", "b")}
    order = [(event.position, event.session) for event in subject.store.read()]
    for _ in range(2):
        subject.reopen()
        for name, wanted in before.items():
            found = picture(subject.session(name))
            for way in wanted:
                told = f"{way} of {name!r} was {wanted[way]}, is {found[way]}"
                require(found[way] == wanted[way], f"after reopening {told}")
        again = [(event.position, event.session) for event in subject.store.read()]
        require(again == order, f"after reopening read gives {again}, before {order}")
    call = subject.session("b")
    new = sure(call.append({"n": 6}))
    require(
        (new.first, new.position) == (last.last + 1, last.position + 1),
        f"after reopening an append is at {new.first}, {new.position}",
    )


@rule
def a_key_survives_reopening(subject: Subject) -> None:
    """An append repeated with its idempotency key after reopening is not stored again."""
    for name in ("a", "b"):
        sure(subject.session(name).append({"n": 0}, idempotency_key="k"))
        subject.reopen()
        refusal(subject.session(name).append, {"n": 0}, idempotency_key="k")
        found = bodies(subject.session(name).events())
        require(found == [{"n": 0}], f"an append and its retry after reopening gave {found}")


@rule
def flushed_is_durable(subject: Subject) -> None:
    """``flush`` blocks until everything that was appended before is there."""
    call = subject.session("call")
    acks = [call.append({"n": number}) for number in range(20)]
    subject.store.flush()
    found = bodies(call.events())
    require(found == [{"n": n} for n in range(20)], f"after a flush there is {found}")
    require([sure(ack).first for ack in acks] == [*range(20)], "acks are not in order")


SESSION_RULES = (
    names_that_look_alike_are_apart,
    tenants_are_apart,
    handles_are_alike,
    info_counts_what_is_there,
    state_is_the_fold_of_its_changes,
    state_is_the_whole_sessions,
    what_is_deleted_is_gone,
    a_deleted_name_is_free,
    acknowledged_survives_reopening,
    a_key_survives_reopening,
    flushed_is_durable,
)
