"""Rules of branches: parents, paths, head and forks."""

from __future__ import annotations

from engine.testing.protocol import EventLike, SessionLike
from engine.testing.rule import Subject, bodies, messages, refusal, require, rule, say, sure
from eventlog.errors import AppendConflictError, UsageError


def grow(call: SessionLike) -> None:
    """A small tree: branches of branches, a root of its own, and tips that go on later."""
    root = say(call, 0)
    trunk = say(call, 1, 2, 3)
    left = say(call, 4, parent=root)
    say(call, 5, 6)
    deeper = say(call, 7, parent=left)
    say(call, 8, parent=trunk)
    say(call, 9, parent=deeper)
    say(call, 10, parent=-1)
    say(call, 11)


def chain(events: list[EventLike], leaf: int) -> list[int]:
    """Sequences from the root to a message, by following parents."""
    parents = {event.sequence: event.parent for event in events}
    found = [leaf]
    while (parent := parents[found[-1]]) is not None:
        require(parent in parents, f"message {found[-1]} follows {parent}, which is none")
        require(parent < found[-1], f"message {found[-1]} follows {parent}, which comes later")
        found.append(parent)
    return found[::-1]


@rule
def an_event_follows_its_parent(subject: Subject) -> None:
    """A message follows the head, or the parent that it names by sequence or id; -1 is none."""
    call = subject.session("call")
    sure(call.append({"n": 0}, id="root"))
    sure(call.append_many([{"n": 1}, {"n": 2}, {"n": 3}]))
    say(call, 4, parent=1)
    sure(call.append_many([{"n": 5}, {"n": 6}], parent="root"))
    say(call, 7, parent=-1)
    say(call, 8)
    found = [event.parent for event in messages(call.events())]
    wanted = [None, 0, 1, 2, 1, 0, 5, None, 7]
    require(found == wanted, f"the parents are {found}, named were {wanted}")
    require(call.head == 8, f"the head is {call.head}, the last message 8")


@rule
def a_parent_must_be_there(subject: Subject) -> None:
    """A parent that is missing, of another session or the event itself refuses the append."""
    call = subject.session("call")
    sure(subject.session("other").append({"n": 0}, id="elsewhere"))
    last = say(call, 0, 1)
    for parent in (last + 1, last + 99, "elsewhere", "nowhere", "itself"):
        error = refusal(call.append, {"n": 2}, parent=parent, id="itself")
        require(
            isinstance(error, AppendConflictError),
            f"an append that follows {parent!r} is taken ({error!r})",
        )


@rule
def history_is_the_path_to_the_head(subject: Subject) -> None:
    """``history`` gives the messages from the root to the head, and none of other branches."""
    call = subject.session("call")
    grow(call)
    events = messages(call.events())
    told = {event.sequence: event.body for event in events}
    for leaf in [None, *told]:
        if leaf is not None:
            sure(call.checkout(leaf))
        head = call.head
        require(head in told, f"the head is {head}, which is no message")
        wanted = [told[each] for each in chain(events, head)] if head is not None else []
        found = call.history()
        require(found == wanted, f"with head {head} the history is {found}, its path {wanted}")


@rule
def a_path_is_the_chain_of_parents(subject: Subject) -> None:
    """The path to an event is what following parents from it gives, root first."""
    call = subject.session("call")
    grow(call)
    events = messages(call.events())
    for event in events:
        found = [each.sequence for each in messages(call.path(event.sequence).events)]
        wanted = chain(events, event.sequence)
        require(found == wanted, f"the path to {event.sequence} is {found}, its chain {wanted}")


@rule
def a_path_comes_in_pages(subject: Subject) -> None:
    """Pages of a path join to the whole of it, also when the head moves in between."""
    call = subject.session("call")
    grow(call)
    other = say(call, 12, parent=1)
    say(call, 13, 14, 15, 16, parent=None)
    sure(call.checkout(3))
    wanted = [event.sequence for event in call.path().events]
    page = call.path(limit=2)
    found = [event.sequence for event in page.events]
    sure(call.checkout(other))
    while page.cursor is not None:
        page = call.path(cursor=page.cursor, limit=2)
        require(1 <= len(page.events) <= 2, f"a page of 2 has {len(page.events)} events")
        found += [event.sequence for event in page.events]
        require(len(found) <= 99, "the pages of a path have no end")
    require(found == wanted, f"in pages the path is {found}, at once {wanted}")
    error = None
    try:
        call.path(cursor="no cursor")
    except UsageError as raised:
        error = raised
    require(error is not None, "a cursor that no page gave is taken")


@rule
def branches_written_in_turn_stay_two(subject: Subject) -> None:
    """Two branches that grow in turn are two branches, each with its newest event as its leaf."""
    call = subject.session("call")
    root = say(call, 0)
    tips = [say(call, 1, parent=root), say(call, 2, parent=root)]
    for number in range(10):
        tips[number % 2] = say(call, number, parent=tips[number % 2])
    found = [(branch.leaf, branch.is_head) for branch in call.branches()]
    wanted = [(tips[0], False), (tips[1], True)]
    require(sorted(found, key=str) == sorted(wanted, key=str), f"the branches are {found}")


@rule
def a_checkout_moves_the_head_only(subject: Subject) -> None:
    """After a checkout the head is there, the next append follows it, and nothing is gone."""
    call = subject.session("call")
    say(call, 0, 1, 2, 3)
    for leaf, number in ((1, 4), (3, 5), (None, 6)):
        before = bodies(call.events())
        sure(call.checkout(leaf))
        require(call.head == leaf, f"after the checkout of {leaf} the head is {call.head}")
        require(bodies(call.events()) == before, f"a checkout of {leaf} changes what is stored")
        new = say(call, number)
        found = {event.sequence: event for event in messages(call.events())}
        require(new in found, f"what was appended after a checkout of {leaf} is not there")
        parent = found[new].parent
        require(parent == leaf, f"what follows {leaf} has the parent {parent}")


@rule
def a_fork_copies_nothing(subject: Subject) -> None:
    """A fork adds no message; the head is where it was made, and the next append follows that."""
    call = subject.session("call")
    say(call, 0, 1, 2, 3)
    for at, number in ((1, 4), (3, 5)):
        before = [(event.sequence, event.body) for event in messages(call.events())]
        sure(call.fork(at))
        after = [(event.sequence, event.body) for event in messages(call.events())]
        require(after == before, f"a fork at {at} made messages of {len(before)} {len(after)}")
        require(call.head == at, f"after a fork at {at} the head is {call.head}")
        new = say(call, number)
        parent = {event.sequence: event.parent for event in call.events()}.get(new)
        require(parent == at, f"what was appended after a fork at {at} follows {parent}")


TREE_RULES = (
    an_event_follows_its_parent,
    a_parent_must_be_there,
    history_is_the_path_to_the_head,
    a_path_is_the_chain_of_parents,
    a_path_comes_in_pages,
    branches_written_in_turn_stay_two,
    a_checkout_moves_the_head_only,
    a_fork_copies_nothing,
)
