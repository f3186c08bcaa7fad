"""The commit machine: order, bounds, fairness and outcomes, driven by hand and at random."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eventlog.ack import Ack, Terms
from eventlog.commit import RACE_MAX, SMALL_BYTES, TIDY_DELAY_US, CommitMachine, Step
from eventlog.errors import OverloadedError, StoreClosedError, SuspectStoreError
from eventlog.limits import (
    COMMIT_BYTES_MAX,
    COMMIT_EVENTS_MAX,
    COMMIT_SHARE,
    QUEUE_APPENDS_MAX,
    QUEUE_BYTES_MAX,
)

SHARE_EVENTS = COMMIT_EVENTS_MAX // COMMIT_SHARE
SHARE_BYTES = COMMIT_BYTES_MAX // COMMIT_SHARE
NOW = 1_000_000


def ack_of(session: str, events: int = 1, byte_count: int = 100, also: tuple[str, ...] = ()) -> Ack:
    """An append of so many events and bytes; ``also`` are a batch's other sessions."""
    terms = None
    if also:
        terms = Terms()
        terms.more = [Ack(("t", name), 0, event_count=0) for name in also]
    return Ack(("t", session), byte_count, terms=terms, event_count=events)


def machine_of(*acks: Ack, **bounds: int) -> CommitMachine:
    machine = CommitMachine(**bounds)
    for ack in acks:
        machine.submit(ack)
    return machine


def sessions_of(batch: list[Ack]) -> list[str]:
    return [ack.name[1] for ack in batch]


def names_of(ack: Ack) -> set[str]:
    return {ack.name[1], *[each.name[1] for each in ack.more]}


# Steps


def test_an_idle_machine_waits() -> None:
    machine = CommitMachine()
    assert machine.tick(NOW) is Step.WAIT
    assert machine.next_batch(NOW) == []


def test_an_append_is_committed_and_given_back() -> None:
    ack = ack_of("a")
    machine = machine_of(ack)
    assert machine.tick(NOW) is Step.COMMIT
    assert machine.next_batch(NOW) == [ack]
    assert (machine.in_flight, machine.in_flight_since_us) == ([ack], NOW)
    assert machine.tick(NOW) is Step.WAIT
    assert machine.committed() == [ack]
    assert (machine.in_flight, machine.commits, machine.failures) == ([], 1, 0)


def test_a_failed_batch_is_given_back() -> None:
    ack = ack_of("a")
    machine = machine_of(ack)
    machine.next_batch(NOW)
    assert machine.failed() == [ack]
    assert (machine.in_flight, machine.commits, machine.failures) == ([], 0, 1)
    assert machine.tick(NOW) is Step.WAIT


def test_a_second_batch_waits_for_the_first_one_s_fate() -> None:
    machine = machine_of(ack_of("a"), ack_of("b"))
    machine.next_batch(NOW)
    machine.submit(ack_of("c"))
    with pytest.raises(AssertionError):
        machine.next_batch(NOW)


@pytest.mark.parametrize("outcome", ["committed", "failed"])
def test_doubt_is_settled_from_its_time_on(outcome: str) -> None:
    machine = machine_of(ack_of("a"))
    batch = machine.next_batch(NOW)
    machine.submit(ack_of("b"))
    machine.doubt(NOW + 500)
    assert machine.tick(NOW) is Step.WAIT  # whatever else waits
    assert machine.tick(NOW + 499) is Step.WAIT
    assert machine.tick(NOW + 500) is Step.SETTLE
    machine.doubt(NOW + 900)
    assert machine.tick(NOW + 500) is Step.WAIT
    assert getattr(machine, outcome)() == batch
    assert machine.tick(NOW + 500) is Step.COMMIT


def test_overdue_work_is_done_when_nothing_waits_and_some_time_has_passed() -> None:
    machine = machine_of(ack_of("a"))
    machine.overdue = True
    assert machine.tick(NOW) is Step.COMMIT
    machine.next_batch(NOW)
    machine.committed()
    assert machine.tick(NOW + TIDY_DELAY_US - 1) is Step.WAIT
    assert machine.tick(NOW + TIDY_DELAY_US) is Step.TIDY


def test_closing_commits_what_waits_and_then_stops() -> None:
    machine = machine_of(ack_of("a"))
    machine.overdue = True
    machine.close()
    with pytest.raises(StoreClosedError):
        machine.submit(ack_of("b"))
    assert not machine.offer(ack_of("b"))
    assert machine.tick(NOW) is Step.COMMIT
    machine.next_batch(NOW)
    machine.committed()
    assert machine.tick(NOW) is Step.TIDY  # at once: nobody is coming
    machine.overdue = False
    assert machine.tick(NOW) is Step.STOP


def test_closing_still_settles_doubt_first() -> None:
    machine = machine_of(ack_of("a"))
    machine.next_batch(NOW)
    machine.doubt(NOW)
    machine.close()
    assert machine.tick(NOW) is Step.SETTLE


def test_refusing_gives_everything_back_and_takes_nothing_more() -> None:
    acks = [ack_of("a"), ack_of("b", events=3, byte_count=9_000)]
    machine = machine_of(acks[0])
    machine.next_batch(NOW)
    machine.submit(acks[1])
    machine.doubt(NOW)
    error = SuspectStoreError("unsettled")
    assert machine.refuse(error) == acks
    assert (machine.in_flight, list(machine.queue)) == ([], [])
    assert (machine.event_count, machine.byte_count, machine.suspect) == (0, 0, False)
    with pytest.raises(SuspectStoreError, match="unsettled"):
        machine.submit(ack_of("c"))
    assert not machine.offer(ack_of("c"))
    assert machine.tick(NOW) is Step.WAIT
    machine.close()
    assert machine.refusal is error
    assert machine.tick(NOW) is Step.STOP


# Room


def test_the_queue_takes_appends_up_to_its_bound() -> None:
    machine = machine_of(*[ack_of("a") for _ in range(5)], appends_max=5)
    with pytest.raises(OverloadedError, match="5 appends"):
        machine.submit(ack_of("a"))
    assert len(machine.queue) == 5
    machine.next_batch(NOW)
    machine.submit(ack_of("a"))


def test_the_queue_takes_bytes_up_to_its_bound() -> None:
    machine = machine_of(ack_of("a", byte_count=6_000), bytes_max=10_000)
    machine.submit(ack_of("b", byte_count=4_000))
    assert machine.byte_count == 10_000
    for byte_count in (1, 10_000):
        with pytest.raises(OverloadedError):
            machine.submit(ack_of("c", byte_count=byte_count))
    assert (machine.byte_count, machine.event_count) == (10_000, 2)


def test_an_append_above_the_bound_is_taken_when_it_is_alone() -> None:
    machine = machine_of(ack_of("a", byte_count=20_000), bytes_max=10_000)
    with pytest.raises(OverloadedError):
        machine.submit(ack_of("b"))
    assert len(machine.next_batch(NOW)) == 1
    machine.committed()
    machine.submit(ack_of("b"))
    with pytest.raises(OverloadedError):
        machine.submit(ack_of("a", byte_count=20_000))


def test_counts_follow_what_comes_and_goes() -> None:
    machine = machine_of(
        ack_of("a"), ack_of("b", events=7, byte_count=5_000), ack_of("c", byte_count=SMALL_BYTES)
    )
    assert machine.event_count == 9
    assert machine.byte_count == 5_000 + 2 * SMALL_BYTES
    machine.next_batch(NOW)
    assert (machine.event_count, machine.byte_count) == (0, 0)


@pytest.mark.parametrize(
    ("byte_count", "taken"), [(0, True), (SMALL_BYTES, True), (SMALL_BYTES + 1, False)]
)
def test_small_appends_are_offered(byte_count: int, taken: bool) -> None:
    machine = CommitMachine()
    assert machine.offer(ack_of("a", byte_count=byte_count)) is taken
    assert len(machine.queue) == taken


def test_offers_end_before_a_race_could_pass_the_bound() -> None:
    machine = CommitMachine(appends_max=RACE_MAX + 10)
    taken = 0
    while machine.offer(ack_of("a")):
        taken += 1
    assert taken + RACE_MAX <= machine.appends_max
    for _ in range(RACE_MAX + 10 - taken):
        machine.submit(ack_of("a"))
    with pytest.raises(OverloadedError):
        machine.submit(ack_of("a"))


def test_offers_end_before_a_race_could_pass_the_bound_in_bytes() -> None:
    machine = CommitMachine(bytes_max=(RACE_MAX + 10) * SMALL_BYTES)
    while machine.offer(ack_of("a")):
        pass
    assert machine.byte_count + RACE_MAX * SMALL_BYTES <= machine.bytes_max
    assert machine.queue


def test_offered_and_submitted_appends_keep_their_order() -> None:
    machine = CommitMachine()
    acks = [ack_of("a", byte_count=size) for size in (1, 9_999, 2, 3, 600, 4)]
    for ack in acks:
        if not machine.offer(ack):
            machine.submit(ack)
    assert machine.next_batch(NOW) == acks


# Batches


def test_what_fits_goes_together() -> None:
    acks = [ack_of("a") for _ in range(COMMIT_EVENTS_MAX)]
    machine = machine_of(*acks)
    assert machine.next_batch(NOW) == acks


def test_events_of_a_batch_and_one_more() -> None:
    acks = [ack_of(f"s{number}") for number in range(COMMIT_EVENTS_MAX + 1)]
    machine = machine_of(*acks)
    assert machine.next_batch(NOW) == acks[:-1]
    machine.committed()
    assert machine.next_batch(NOW) == acks[-1:]


def test_bytes_of_a_batch_and_one_more() -> None:
    half = COMMIT_BYTES_MAX // 2
    acks = [ack_of(name, byte_count=half) for name in "abc"]
    machine = machine_of(*acks)
    assert machine.next_batch(NOW) == acks[:2]
    machine.committed()
    assert machine.next_batch(NOW) == acks[2:]


@pytest.mark.parametrize(
    ("events", "byte_count"),
    [
        pytest.param(COMMIT_EVENTS_MAX + 1, 100, id="events"),
        pytest.param(1, COMMIT_BYTES_MAX + 1, id="bytes"),
    ],
)
def test_a_larger_append_goes_alone(events: int, byte_count: int) -> None:
    small = [ack_of("a"), ack_of("b")]
    large = ack_of("a", events=events, byte_count=byte_count)
    machine = machine_of(small[0], large, small[1])
    assert machine.next_batch(NOW) == [small[0]]
    machine.committed()
    assert machine.next_batch(NOW) == [large]
    machine.committed()
    assert machine.next_batch(NOW) == [small[1]]


def test_one_session_gets_a_quarter_while_others_wait() -> None:
    imported = [ack_of("import") for _ in range(2 * COMMIT_EVENTS_MAX)]
    calls = [ack_of(f"call-{number}") for number in range(COMMIT_EVENTS_MAX)]
    machine = machine_of(*imported, *calls)
    batch = sessions_of(machine.next_batch(NOW))
    assert batch.count("import") == SHARE_EVENTS
    assert len(batch) == COMMIT_EVENTS_MAX
    machine.committed()
    batch = sessions_of(machine.next_batch(NOW))
    assert batch.count("import") == SHARE_EVENTS + COMMIT_EVENTS_MAX - 2 * SHARE_EVENTS
    assert len(batch) == COMMIT_EVENTS_MAX


def test_one_session_gets_a_quarter_of_the_bytes_while_others_wait() -> None:
    size = SHARE_BYTES // 4
    imported = [ack_of("import", byte_count=size) for _ in range(20)]
    calls = [ack_of(f"call-{number}", byte_count=size) for number in range(20)]
    machine = machine_of(*imported, *calls)
    batch = sessions_of(machine.next_batch(NOW))
    assert batch.count("import") == 4
    assert len(batch) == 16


def test_a_session_alone_gets_the_whole_batch() -> None:
    acks = [ack_of("import") for _ in range(COMMIT_EVENTS_MAX + 5)]
    machine = machine_of(*acks)
    assert machine.next_batch(NOW) == acks[:-5]
    machine.committed()
    assert machine.next_batch(NOW) == acks[-5:]


def test_a_batch_over_sessions_does_not_overtake_what_is_held_back() -> None:
    held = [ack_of("a", events=SHARE_EVENTS) for _ in range(2)]
    both = ack_of("b", also=("a",))
    later = ack_of("b")
    others = [ack_of(f"s{number}") for number in range(COMMIT_EVENTS_MAX)]
    machine = machine_of(*held, both, later, *others)
    batch = machine.next_batch(NOW)
    assert batch[0] is held[0]
    assert held[1] not in batch
    assert both not in batch
    assert later not in batch
    machine.committed()
    assert machine.next_batch(NOW)[:3] == [held[1], both, later]


sizes = st.one_of(
    st.tuples(st.integers(1, 3), st.integers(0, 2_000)),
    st.tuples(st.sampled_from([1, SHARE_EVENTS, COMMIT_EVENTS_MAX]), st.just(SMALL_BYTES)),
    st.tuples(st.sampled_from([SHARE_EVENTS + 1, COMMIT_EVENTS_MAX + 1]), st.just(100)),
    st.tuples(
        st.just(1),
        st.sampled_from([SHARE_BYTES, SHARE_BYTES + 1, COMMIT_BYTES_MAX, COMMIT_BYTES_MAX + 1]),
    ),
)
actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"), st.sampled_from("abcd"), sizes, st.sampled_from(["", "a", "b"])
        ),
        st.tuples(st.just("offer"), st.sampled_from("abcd"), st.integers(0, 600), st.just("")),
        st.tuples(st.just("batch"), st.just(""), st.just(0), st.just("")),
        st.tuples(st.sampled_from(["committed", "failed"]), st.just(""), st.just(0), st.just("")),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(actions, st.sampled_from([4, 40, QUEUE_APPENDS_MAX]))
@example(
    [("submit", "a", (SHARE_EVENTS, 100), "")] * 3
    + [("submit", "b", (1, 100), "a"), ("submit", "b", (1, 100), ""), ("batch", "", 0, "")],
    40,
)
def test_invariants_hold_whatever_comes(script: list[Any], appends_max: int) -> None:
    """Invariants 1 to 4 of the module, against a list of what each session is owed."""
    bytes_max = 3 * COMMIT_BYTES_MAX
    machine = CommitMachine(appends_max=appends_max, bytes_max=bytes_max)
    owed: dict[str, list[Ack]] = defaultdict(list)  # by session, in the order of acceptance
    accepted: list[Ack] = []
    out: list[Ack] = []

    def note(ack: Ack) -> None:
        accepted.append(ack)
        for name in names_of(ack):
            owed[name].append(ack)

    for what, session, size, also in script:
        if what == "submit":
            ack = ack_of(session, size[0], size[1], (also,) if also not in ("", session) else ())
            waiting, before = len(machine.queue), machine.byte_count
            try:
                machine.submit(ack)
            except OverloadedError:
                counted = max(SMALL_BYTES, ack.byte_count)
                assert waiting and (waiting >= appends_max or before + counted > bytes_max)
                assert (len(machine.queue), machine.byte_count) == (waiting, before)
            else:
                note(ack)
        elif what == "offer":
            ack = ack_of(session, 1, size)
            if machine.offer(ack):
                note(ack)
        elif what == "batch" and not machine.in_flight:
            waiting_acks = list(machine.queue)
            batch = list(machine.next_batch(NOW))
            assert bool(batch) == bool(waiting_acks)
            check_batch(batch, list(machine.queue))
            for ack in batch:
                for name in names_of(ack):
                    assert owed[name].pop(0) is ack  # invariant 1
            out = batch
        elif what in ("committed", "failed") and machine.in_flight:
            assert getattr(machine, what)() == out  # invariant 4
            for ack in out:
                accepted.remove(ack)
            out = []
        waiting_now = list(machine.queue)
        assert len(waiting_now) <= appends_max  # invariant 2
        if len(waiting_now) > 1:
            assert sum(ack.byte_count for ack in waiting_now) <= bytes_max
        assert machine.event_count == sum(ack.event_count for ack in waiting_now)
        assert machine.byte_count == sum(max(SMALL_BYTES, ack.byte_count) for ack in waiting_now)
        assert {*map(id, accepted)} == {*map(id, waiting_now), *map(id, machine.in_flight)}
    if machine.in_flight:
        machine.committed()
    while machine.queue:
        for ack in machine.next_batch(NOW):
            for name in names_of(ack):
                assert owed[name].pop(0) is ack
        machine.committed()
    assert not any(owed.values())


def check_batch(batch: list[Ack], left: list[Ack]) -> None:
    """Invariant 3: bounds of a batch, and of one session in it while others wait."""
    if len(batch) > 1:
        assert sum(ack.event_count for ack in batch) <= COMMIT_EVENTS_MAX
        assert sum(ack.byte_count for ack in batch) <= COMMIT_BYTES_MAX
    served = {ack.name[1] for ack in batch}
    unserved = {ack.name[1] for ack in left} - served
    if not unserved:
        return
    for session in served:
        mine = [ack for ack in batch if ack.name[1] == session]
        if len(mine) > 1:
            assert sum(ack.event_count for ack in mine) <= SHARE_EVENTS
            assert sum(ack.byte_count for ack in mine) <= SHARE_BYTES


def test_bounds_are_those_of_the_limits() -> None:
    machine = CommitMachine()
    assert (machine.appends_max, machine.bytes_max) == (QUEUE_APPENDS_MAX, QUEUE_BYTES_MAX)
