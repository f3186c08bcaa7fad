"""Admission: conditions in their order, places without gaps, refusals without a trace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafting import Part, draft_event, draft_message, make_ack, make_batch_ack
from eventlog.ack import Ack, Draft
from eventlog.admission import (
    Admission,
    extend_map,
    signed_head,
)
from eventlog.body import decode_body, decode_marks, encode_plain
from eventlog.digests import id_digest, key_digest
from eventlog.errors import (
    AppendConflictError,
    CorruptionError,
    DuplicateIdError,
    IdempotencyConflictError,
    TurnlogError,
)
from eventlog.keys import U64
from eventlog.limits import BLOCK_POSITIONS
from eventlog.record import (
    CONTROL,
    NO_PARENT,
    NO_TIME,
    Extension,
    Flag,
    Origin,
    Record,
    decode_record,
    encode_tail,
    verify_record,
)
from eventlog.rows import NO_SEQUENCE, KeyedResult
from tests.format.memory import (
    SECRET,
    START_US,
    STEP_US,
    Ledger,
    Memory,
    append,
    error_of,
    nothing,
)

HI = {"role": "user", "content": "Hi"}
HO = {"role": "user", "content": "Ho"}
Message = dict[str, Any]


def plain(session: str, message: Message | None = None, *, tenant: str = "acme") -> Ack:
    """A plain message as a session appends it."""
    draft = draft_message(HI if message is None else message)
    return Ack((tenant, session), draft.size, draft.tail, draft.payload)


def control(session: str) -> Ack:
    """A control event."""
    draft = Draft(encode_tail(CONTROL, 0, 0, NO_TIME, 0, 0), encode_plain(None))
    return make_ack(("acme", session), [draft], opening=None)


def batch(*parts: tuple[str, list[Message], int | None]) -> Ack:
    """An append over sessions: name, messages and expected head of each."""
    return make_batch_ack(
        [
            Part(("acme", name), tuple(map(draft_message, messages)), None, head)
            for name, messages, head in parts
        ]
    )


def stored(ledger: Ledger, position: int) -> Record:
    value = ledger.values[position - 1]
    verify_record(U64.pack(position), value)
    number = int.from_bytes(value[8:16], "little")
    return decode_record(Origin(number, "", ""), position, value, Record)


def marks(record: Record) -> dict[int, Any]:
    found = decode_marks(record.extension, where="here") if record.extension else {}
    return found


# Places


def test_the_first_append_makes_the_session() -> None:
    ledger = Ledger()
    plan = ledger.commit(plain("a"))
    (state,) = plan.created
    assert (state.number, state.name) == (1, ("acme", "a"))
    row = state.row
    assert (row.tenant_number, row.created_position, row.created_us) == (1, 1, START_US)
    assert (row.sealed, row.messages, row.head, row.opening) == (0, 0, NO_SEQUENCE, None)
    record = stored(ledger, 1)
    assert (record.origin.number, record.sequence, record.parent_word) == (1, 0, NO_PARENT)
    assert record.recorded_us == START_US
    assert ledger.commit(plain("a")).created == []


def test_events_follow_the_head() -> None:
    ledger = Ledger()
    ledger.commit(plain("a"), control("a"), plain("a"), plain("b"), control("b"))
    ledger.commit(plain("a"))
    parents = [stored(ledger, position).parent_word for position in range(1, 7)]
    assert parents == [NO_PARENT, NO_PARENT, 0, NO_PARENT, NO_PARENT, 2]
    a, b = ledger.index.states[1], ledger.index.states[2]
    assert (a.next, a.head, a.messages) == (4, 3, 3)
    assert (b.next, b.head, b.messages) == (2, 0, 1)


def test_a_session_of_control_events_has_no_head() -> None:
    ledger = Ledger()
    ack = control("a")
    ledger.commit(ack)
    assert signed_head(ledger.index.states[1].head) == -1
    ledger.commit(append("a", HI, expected_head=-1))
    assert stored(ledger, 2).parent_word == NO_PARENT


def test_acks_are_told_their_places() -> None:
    ledger = Ledger()
    one, many, other = plain("a"), append("a", HI, HO, HI), plain("b")
    ledger.commit(one, many, other)
    assert (one.first, one.last, one.position) == (0, 0, 1)
    assert (many.first, many.last, many.position, many.already) == (1, 3, 4, False)
    assert (other.first, other.last, other.position) == (0, 0, 5)
    assert many.event_id == "1.0000000003"


def test_flags_tell_the_first_of_a_commit_and_of_a_run() -> None:
    ledger = Ledger()
    first = Flag.FIRST_OF_COMMIT | Flag.FIRST_OF_RUN
    ledger.commit(*[plain("a") for _ in range(BLOCK_POSITIONS - 2)])
    ledger.commit(*[append("a", *[HI] * 4, ids=[f"{place}" for place in range(4)])])
    ledger.commit(*[plain("b") for _ in range(2)])
    ledger.commit(*[plain("a") for _ in range(BLOCK_POSITIONS)])
    found = {
        position: Flag(stored(ledger, position).flags) & first
        for position in range(1, len(ledger.values) + 1)
        if stored(ledger, position).flags & first
    }
    block = BLOCK_POSITIONS
    assert found == {
        1: first,
        block - 1: first,
        block + 1: Flag.FIRST_OF_RUN,
        block + 3: first,
        block + 5: first,
        2 * block + 1: Flag.FIRST_OF_RUN,
    }


@pytest.mark.parametrize("size", [100, 66_000])
def test_plain_and_special_appends_write_the_same_record(size: int) -> None:
    """The shortest way and the general one differ in nothing that is stored."""
    message = {"role": "assistant", "content": "x" * size}
    short, general = Ledger(), Ledger()
    for _ in range(2):
        short.commit(plain("b"), plain("a", message), plain("a", message))
        general.commit(append("b", HI), append("a", message), append("a", message))
    assert short.values == general.values
    assert short.link == general.link


def test_opening_facts_go_into_the_first_event_only() -> None:
    ledger = Ledger()
    ledger.commit(append("a", HI, HO, user_id="u7"), append("a", HI, user_id="other"))
    opening = [encode_plain({"user_id": "u7"}), None]
    assert marks(stored(ledger, 1)) == {Extension.OPENING: opening}
    assert marks(stored(ledger, 2)) == marks(stored(ledger, 3)) == {}
    assert ledger.index.states[1].row.opening == opening


def test_recorded_times_are_kept_where_they_are_given() -> None:
    ledger = Ledger()
    drafts = [draft_event("message", HI, recorded_us=number) for number in (5, 3)]
    ledger.commit(append("a", drafts=drafts), plain("a"), append("b", drafts=drafts))
    assert [stored(ledger, place).recorded_us for place in range(1, 6)] == [5, 3, START_US, 5, 3]
    assert ledger.index.states[1].last_recorded_us == START_US
    assert ledger.index.states[2].last_recorded_us == 3
    ledger.commit(plain("b"))
    assert ledger.index.states[2].last_recorded_us == START_US + STEP_US


# Conditions


@pytest.mark.parametrize(
    ("before", "expected", "current"),
    [
        pytest.param([], -1, None, id="absent"),
        pytest.param([plain], 0, None, id="one-event"),
        pytest.param([plain, plain], 1, None, id="two-events"),
        pytest.param([plain, control], 0, None, id="control-events-do-not-count"),
        pytest.param([control], -1, None, id="control-events-alone"),
        pytest.param([], 0, -1, id="absent-but-expected"),
        pytest.param([plain], -1, 0, id="there-but-unexpected"),
        pytest.param([plain, plain], 0, 1, id="behind"),
        pytest.param([plain], 1, 0, id="ahead"),
        pytest.param([plain, control], 1, 0, id="a-control-event-is-no-head"),
    ],
)
@pytest.mark.parametrize("together", [False, True], ids=["committed", "same-batch"])
def test_the_expected_head(
    before: list[Callable[[str], Ack]], expected: int, current: int | None, together: bool
) -> None:
    ledger = Ledger()
    ack = append("a", HI, expected_head=expected)
    earlier = [make("a") for make in before]
    if together:
        ledger.commit(*earlier, ack)
    else:
        ledger.commit(*earlier)
        ledger.commit(ack)
    if current is None:
        assert ack.first == len(before)
    else:
        error = error_of(ack)
        assert isinstance(error, AppendConflictError)
        assert (error.expected, error.current) == (expected, current)
        assert len(ledger.values) == len(before)


@pytest.mark.parametrize("number", [0, 2, 4])
def test_nothing_was_removed_since(number: int) -> None:
    ledger = Ledger()
    ledger.memory.removals = 3
    good, ack = append("a", HI, removals=3), append("a", HI, removals=number)
    plan = ledger.commit(good, ack, plain("a"))
    assert [refused for refused, _ in plan.refused] == [ack]
    error = error_of(ack)
    assert isinstance(error, AppendConflictError)
    assert (error.expected, error.current) == (number, 3)
    assert good.first == 0


@pytest.mark.parametrize(("expected", "good"), [(2, True), (1, False), (3, False)])
def test_the_expected_next_sequence(expected: int, good: bool) -> None:
    ledger = Ledger()
    ledger.commit(plain("a"), control("a"))
    ack = append("a", HI, expected_next=expected)
    ledger.commit(ack)
    if good:
        assert ack.first == 2
    else:
        error = error_of(ack)
        assert isinstance(error, AppendConflictError)
        assert (error.expected, error.current) == (expected, 2)


def keyed(key: str, message: Message = HI, session: str = "a", **more: Any) -> Ack:
    return append(session, message, idempotency_key=key, **more)


@pytest.mark.parametrize("together", [False, True], ids=["committed", "same-batch"])
def test_a_repeated_key_gives_the_first_result(together: bool) -> None:
    ledger = Ledger()
    first, again = keyed("k"), keyed("k")
    other = append("a", HI, HO, idempotency_key="other")
    if together:
        ledger.commit(first, other, again)
    else:
        for ack in (first, other, again):
            ledger.commit(ack)
    assert (again.already, again.first, again.last, again.position) == (True, 0, 0, 1)
    assert not first.already
    assert (other.first, other.last) == (1, 2)
    assert len(ledger.values) == 3


@pytest.mark.parametrize("together", [False, True], ids=["committed", "same-batch"])
def test_a_key_with_other_content_conflicts(together: bool) -> None:
    ledger = Ledger()
    acks = [keyed("k"), plain("a"), keyed("k", HO)]
    if together:
        ledger.commit(*acks)
    else:
        for ack in acks:
            ledger.commit(ack)
    error = error_of(acks[2])
    assert isinstance(error, IdempotencyConflictError)
    assert (error.expected, error.current) == ("k", 0)
    assert len(ledger.values) == 2


def test_what_counts_as_the_same_content() -> None:
    ledger = Ledger()
    ledger.commit(keyed("k", {"role": "user", "content": "Hi"}))
    again = keyed("k", {"content": "Hi", "role": "user"})
    ledger.commit(again)
    assert again.already
    for number, other in enumerate(
        (
            append("a", HI, HI, idempotency_key="k"),
            append("a", drafts=[draft_event("event", HI)], idempotency_key="k"),
            append("a", drafts=[draft_event("message", HI, id="x")], idempotency_key="k"),
            append("a", drafts=[draft_event("message", HI, time_us=1)], idempotency_key="k"),
            append("a", drafts=[draft_event("message", HI, tokens=1)], idempotency_key="k"),
            append("a", drafts=[draft_event("message", HI, run_id="r")], idempotency_key="k"),
            append("a", drafts=[draft_event("message", HI, metadata={})], idempotency_key="k"),
        )
    ):
        ledger.commit(other)
        assert isinstance(error_of(other), IdempotencyConflictError), number


def test_keys_belong_to_their_session() -> None:
    ledger = Ledger()
    acks = [keyed("k"), keyed("k", session="b"), keyed("k", tenant="other"), keyed("K")]
    ledger.commit(*acks)
    assert [ack.already for ack in acks] == [False] * 4
    assert len({bytes(marks(stored(ledger, p))[Extension.KEY_DIGEST]) for p in (1, 3, 4)}) == 3


def test_a_key_s_digests_travel_in_the_first_record() -> None:
    ledger = Ledger()
    ledger.commit(plain("a"), append("a", HI, HO, idempotency_key="k"))
    first, second = stored(ledger, 2), stored(ledger, 3)
    assert first.flags & Flag.KEYED
    found = marks(first)
    assert found[Extension.KEY_DIGEST] == key_digest(SECRET, "k")
    assert found[Extension.KEY_COUNT] == 2
    assert len(found[Extension.CONTENT_DIGEST]) == 16
    assert not second.flags & Flag.KEYED
    assert marks(second) == {}


def test_sealed_keys_are_looked_up_in_the_table() -> None:
    ledger = Ledger()
    ledger.commit(keyed("k"))
    state = ledger.index.states[1]
    digest = key_digest(SECRET, "k")
    assert state.keys is not None
    ledger.memory.keys[(1, digest)] = state.keys[digest]
    row = state.row.copy()
    row.sealed, row.keys = 1, 1
    ledger.index.seal(state, row)
    again, other = keyed("k"), keyed("fresh")
    ledger.commit(again, other)
    assert (again.already, again.first, again.position) == (True, 0, 1)
    assert not other.already
    assert ledger.memory.calls.count("find_key") == 2


def test_a_session_without_sealed_keys_asks_no_table() -> None:
    ledger = Ledger()
    ledger.commit(keyed("k"))
    ledger.commit(keyed("other"), keyed("k"))
    assert "find_key" not in ledger.memory.calls


def test_another_writer_s_keys_are_looked_up_when_the_row_may_be_old() -> None:
    ledger = Ledger()
    ledger.commit(plain("a"))
    ledger.memory.keys[(1, key_digest(SECRET, "k"))] = KeyedResult(b"?" * 16, 0, 0, 1)
    ledger.index.epoch += 1  # others committed since the row was read
    ack = keyed("k")
    ledger.commit(ack)
    assert isinstance(error_of(ack), IdempotencyConflictError)


# Ids


def named(caller_id: str, message: Message = HI, session: str = "a", **more: Any) -> Ack:
    return append(session, message, ids=[caller_id], **more)


@pytest.mark.parametrize("together", [False, True], ids=["committed", "same-batch"])
def test_a_repeated_id_gives_the_first_result(together: bool) -> None:
    ledger = Ledger()
    acks = [named("m"), plain("a"), named("m")]
    if together:
        ledger.commit(*acks)
    else:
        for ack in acks:
            ledger.commit(ack)
    assert (acks[2].already, acks[2].first, acks[2].position) == (True, 0, 1)
    assert acks[2].event_id == acks[0].event_id == "m"
    assert len(ledger.values) == 2


@pytest.mark.parametrize("together", [False, True], ids=["committed", "same-batch"])
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: named("m", HO), id="other-body"),
        pytest.param(lambda: named("m", session="b"), id="other-session"),
        pytest.param(lambda: append("a", drafts=[draft_event("event", HI, id="m")]), id="kind"),
        pytest.param(
            lambda: append("a", drafts=[draft_event("message", HI, id="m", run_id="r")]), id="run"
        ),
        pytest.param(
            lambda: append("a", drafts=[draft_event("message", HI, id="m", metadata={"a": 1})]),
            id="metadata",
        ),
        pytest.param(lambda: append("a", HI, HO, ids=["m", "new"]), id="one-of-two"),
        pytest.param(lambda: append("a", HO, HI, ids=["new", "m"]), id="the-other-of-two"),
    ],
)
def test_an_id_of_another_event_is_taken(other: Callable[[], Ack], together: bool) -> None:
    ledger = Ledger()
    first, second = named("m"), other()
    if together:
        ledger.commit(plain("b"), first, second)
    else:
        ledger.commit(plain("b"), first)
        ledger.commit(second)
    assert isinstance(error_of(second), DuplicateIdError)
    assert len(ledger.values) == 2
    assert not ledger.index.ids.keys() - {id_digest(SECRET, "m")}


def test_an_id_twice_in_one_append_is_refused() -> None:
    ledger = Ledger()
    ack = append("a", HI, HI, ids=["m", "m"])
    ledger.commit(ack)
    assert isinstance(error_of(ack), DuplicateIdError)
    assert ledger.values == []


def test_several_repeated_ids_give_the_whole_first_append() -> None:
    ledger = Ledger()
    ledger.commit(plain("a"))
    ledger.commit(append("a", HI, HO, HI, ids=["x", "y", "z"]))
    again = append("a", HI, HO, HI, ids=["x", "y", "z"])
    ledger.commit(again)
    assert (again.already, again.first, again.last, again.position) == (True, 1, 3, 4)
    swapped = append("a", HO, HI, HI, ids=["y", "x", "z"])
    ledger.commit(swapped)
    assert isinstance(error_of(swapped), DuplicateIdError)


def test_tenants_do_not_meet_in_their_ids() -> None:
    ledger = Ledger()
    acks = [named("m"), named("m", HO, tenant="other"), named("m", HO, tenant="")]
    ledger.commit(*acks)
    assert [ack.already for ack in acks] == [False] * 3
    assert len(ledger.index.ids) == 3


def test_ids_that_left_the_hot_log_are_looked_up_all_at_once() -> None:
    ledger = Ledger()
    ledger.commit(named("m", session="old"))
    digest = id_digest(SECRET, "m")
    event = ledger.events(1)[0]
    ledger.memory.ids[digest] = (1, 0)
    ledger.memory.sealed_events[(1, 0)] = event
    row = ledger.index.states[1].row.copy()
    row.sealed = 1
    ledger.index.seal(ledger.index.states[1], row)
    ledger.index.drop_before(2)
    assert ledger.index.ids == {}
    ledger.memory.calls.clear()
    again, taken, fresh = named("m", session="old"), named("m"), named("new")
    ledger.commit(again, taken, fresh)
    assert (again.already, again.first, again.position) == (True, 0, 1)
    assert isinstance(error_of(taken), DuplicateIdError)
    assert not fresh.already
    assert ledger.memory.calls.count("find_ids") == 1


def test_an_id_goes_with_its_event_when_that_is_removed() -> None:
    ledger = Ledger()
    ledger.memory.ids[id_digest(SECRET, "m")] = (9, 0)
    ledger.memory.gone.add(9)
    free = named("m")
    ledger.commit(free)
    assert free.result().first == 0
    ledger = Ledger()
    ledger.memory.ids[id_digest(SECRET, "m")] = (9, 0)
    ack = named("m")
    ledger.commit(ack)
    error = error_of(ack)
    assert isinstance(error, DuplicateIdError)
    assert error.current is None


# Their order


@pytest.mark.parametrize(
    ("key", "head", "caller_id", "message", "outcome"),
    [
        pytest.param("k", 0, "m", HI, None, id="a-repeat-before-its-head-fails"),
        pytest.param("k", 0, "taken", HO, IdempotencyConflictError, id="key-before-head-and-id"),
        pytest.param("new", 0, "taken", HO, AppendConflictError, id="head-before-id"),
        pytest.param("new", 2, "taken", HO, DuplicateIdError, id="id-last"),
    ],
)
def test_the_order_of_checks(
    key: str, head: int, caller_id: str, message: Message, outcome: type[TurnlogError] | None
) -> None:
    ledger = Ledger()
    ledger.commit(plain("a"), named("m", HI, expected_head=0, idempotency_key="k"))
    ledger.commit(named("taken"))
    ack = named(caller_id, message, expected_head=head, idempotency_key=key)
    ledger.commit(ack)
    if outcome is None:
        assert (ack.already, ack.first) == (True, 1)
    else:
        assert type(error_of(ack)) is outcome
    assert len(ledger.values) == 3


# Creating


def opening(session: str) -> Ack:
    draft = Draft(encode_tail(CONTROL, 0, 0, NO_TIME, 0, 0), encode_plain(None))
    return make_ack(("acme", session), [draft], opening=None, create=True)


def test_creating_writes_one_control_event() -> None:
    ledger = Ledger()
    ack = opening("a")
    ledger.commit(ack)
    assert (ack.first, ack.position, ack.already) == (0, 1, False)
    assert stored(ledger, 1).kind_code == CONTROL


def test_creating_again_writes_nothing() -> None:
    ledger = Ledger()
    ledger.commit(plain("a"), plain("a"))
    ack = opening("a")
    ledger.commit(ack)
    assert (ack.already, ack.first, ack.last, ack.position) == (True, 0, 1, 2)
    assert len(ledger.values) == 2


# Several sessions at once


def test_a_batch_is_placed_end_to_end() -> None:
    ledger = Ledger()
    ack = batch(("a", [HI, HO], None), ("b", [HI], -1), ("c", [HO], None))
    other = plain("a")
    ledger.commit(ack, other)
    assert (ack.first, ack.last, ack.position) == (0, 0, 4)
    assert [stored(ledger, position).origin.number for position in range(1, 6)] == [1, 1, 2, 3, 1]
    assert other.first == 2


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_batch_is_placed_whole_or_not_at_all(failing: int) -> None:
    ledger = Ledger()
    ledger.commit(plain("a"), plain("b"), plain("c"))
    heads = [0, 0, 0]
    heads[failing] = 5
    ack = batch(*[(name, [HI], head) for name, head in zip("abc", heads, strict=True)])
    plan = ledger.commit(ack, plain("d"))
    assert isinstance(error_of(ack), AppendConflictError)
    assert len(plan.records) == 1
    assert [ledger.index.states[number].next for number in (1, 2, 3)] == [1, 1, 1]


def test_a_session_can_be_read_for_its_condition_alone() -> None:
    ledger = Ledger()
    ledger.commit(plain("a"))
    good, bad = batch(("a", [], 0), ("b", [HI], None)), batch(("b", [HI], None), ("a", [], 1))
    absent = batch(("b", [HO], None), ("nobody", [], -1))
    ledger.commit(good, bad, absent)
    assert (good.first, good.position) == (0, 2)
    assert isinstance(error_of(bad), AppendConflictError)
    assert (absent.first, absent.position) == (1, 3)
    assert len(ledger.index.states) == 2


# Refusals and failures leave no trace


def picture(ledger: Ledger) -> Any:
    index = ledger.index
    return copy.deepcopy(
        (
            ledger.values,
            ledger.link,
            index.position,
            index.ids,
            sorted(index.names),
            [
                (s.number, s.next, s.draft_next, s.head, s.draft_head, s.messages, s.keys)
                for s in index.states.values()
            ],
        )
    )


REFUSED = [
    lambda: append("a", HO, expected_head=7),
    lambda: append("new", HO, expected_head=0),
    lambda: keyed("k", HO),
    lambda: named("m", HO),
    lambda: append("fresh", HI, HI, ids=["x", "x"]),
    lambda: batch(("fresh", [HI], None), ("a", [HI], 9)),
    lambda: append("a", HI, expected_next=0),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_refused_leaves_no_trace(number: int) -> None:
    ledger = Ledger()
    ledger.commit(named("m", idempotency_key="k"), plain("b"))
    before = picture(ledger)
    plan = ledger.admit(REFUSED[number]())
    assert (plan.records, plan.placed, plan.created) == ([], [], [])
    assert (plan.keys, plan.ids, plan.link) == ({}, {}, ledger.link)
    assert len(plan.refused) == 1
    assert picture(ledger) == before


def test_good_neighbours_of_refused_appends_are_placed_as_if_alone() -> None:
    alone, among = Ledger(), Ledger()
    for ledger in (alone, among):
        ledger.commit(named("m", idempotency_key="k"), plain("b"))
    good = [plain("a"), keyed("new", HO), named("y"), batch(("b", [HI], 0), ("c", [HO], -1))]
    alone.commit(*good)
    mixed = [plain("a"), keyed("new", HO), named("y"), batch(("b", [HI], 0), ("c", [HO], -1))]
    batch_ = [
        ack for pair in zip(map(call, REFUSED), [*mixed, *[None] * 3], strict=True) for ack in pair
    ]
    plan = among.commit(*[ack for ack in batch_ if ack is not None])
    assert among.values == alone.values
    assert among.link == alone.link
    assert len(plan.refused) == len(REFUSED)


def call(make: Callable[[], Ack]) -> Ack:
    return make()


class Damaged(Memory):
    """Lookups of which some meet damage: of these names, these sessions' rows, these ids."""

    names_lost: tuple[str, ...] = ()
    tenants_lost: tuple[str, ...] = ()
    rows_lost: tuple[int, ...] = ()
    ids_lost: tuple[bytes, ...] = ()

    def find_session(self, name: tuple[str, str]) -> Any:
        if name[1] in self.names_lost:
            raise CorruptionError("checksum does not match", where="name")
        return super().find_session(name)

    def load_row(self, number: int) -> Any:
        if number in self.rows_lost:
            raise CorruptionError("checksum does not match", where=f"session {number}")
        return super().load_row(number)

    def find_key(self, number: int, digest: bytes) -> KeyedResult | None:
        raise CorruptionError("checksum does not match", where="key")

    def find_ids(self, hashes: list[bytes]) -> dict[bytes, tuple[int, int]]:
        found = super().find_ids(hashes)
        if not self.ids_lost or not found.keys().isdisjoint(self.ids_lost):
            raise CorruptionError("block checksum does not match", where="id run 1")
        return found

    def tenant_row(self, name: str) -> tuple[int, bytes]:
        if name in self.tenants_lost:
            raise CorruptionError("row is missing", where="tenant 1")
        return super().tenant_row(name)


def damaged_ledger(**lost: Any) -> Ledger:
    """Sessions a to d; those of ``lost`` cannot be looked up any more."""
    ledger = Ledger()
    ledger.memory = Damaged(ledger.index)
    ledger.commit(plain("a"), plain("b"), plain("c"), plain("d"))
    for state in list(ledger.index.states.values()):
        state.row.keys = 1
    for name, value in lost.items():
        setattr(ledger.memory, name, value)
    return ledger


def forget(ledger: Ledger, *names: str) -> None:
    for name in names:
        del ledger.index.states[ledger.index.names.pop(("acme", name)).number]


@pytest.mark.parametrize(
    ("lost", "bad"),
    [
        ({"rows_lost": (1,)}, lambda: plain("a")),
        ({"rows_lost": (1,)}, lambda: append("a", HI, expected_head=0)),
        ({"names_lost": ("new",)}, lambda: plain("new")),
        ({"rows_lost": (1,)}, lambda: batch(("b", [HO], None), ("a", [HI], None))),
        ({"rows_lost": (1,)}, lambda: batch(("b", [HO], None), ("a", [], 0))),
        ({"tenants_lost": ("acme",)}, lambda: batch(("b", [HO], None), ("new", [HI], None))),
        ({"tenants_lost": ("acme",)}, lambda: append("c", HI, ids=["x"])),
        ({"ids_lost": ()}, lambda: append("c", HI, ids=["x"])),
        ({}, lambda: append("b", HI, idempotency_key="key")),
    ],
    ids=[
        "row",
        "row of a condition",
        "name",
        "row of a batch",
        "row of a batch's condition",
        "tenant of a batch",
        "tenant of an id",
        "id",
        "key",
    ],
)
def test_damage_refuses_the_append_that_met_it_alone(
    lost: dict[str, Any], bad: Callable[[], Ack]
) -> None:
    """A damaged row or block that one append had to look up failed the whole transaction.

    With it went up to 4,096 appends of other sessions that had nothing to do with the damage.
    """
    ledger = damaged_ledger(**lost)
    forget(ledger, "a")
    refused = bad()
    good = [plain("b"), append("c", HI, HO), refused, plain("d"), plain("b")]
    good.remove(refused)
    plan = ledger.commit(good[0], good[1], refused, good[2], good[3])
    assert [ack for ack, _ in plan.refused] == [refused]
    assert isinstance(error_of(refused), CorruptionError)
    assert [(ack.first, ack.last) for ack in good] == [(1, 1), (1, 2), (1, 1), (2, 2)]
    assert [ack.position for ack in good] == [5, 7, 8, 9]
    assert not plan.created
    for position in range(5, 10):
        assert stored(ledger, position).sequence >= 1  # each is whole, none is of the refused


def test_of_ids_looked_up_together_only_the_damaged_ones_are_refused() -> None:
    ledger = damaged_ledger()
    lost = [id_digest(SECRET, f"{number}") for number in (3, 4, 11)]
    ledger.memory.ids = dict.fromkeys(lost, (1, 0))
    assert isinstance(ledger.memory, Damaged)
    ledger.memory.ids_lost = tuple(lost)
    acks = [append("bcd"[number % 3], HI, ids=[f"{number}"]) for number in range(16)]
    plan = ledger.commit(*acks)
    assert [acks.index(ack) for ack, _ in plan.refused] == [3, 4, 11]
    assert all(isinstance(error, CorruptionError) for _, error in plan.refused)
    assert len(plan.placed) == 13


def test_a_repeated_key_is_found_although_its_ids_are_damaged() -> None:
    """Idempotency comes first, so what was stored once is told whatever became of the ids."""
    ledger = Ledger()
    ledger.commit(append("a", HI, ids=["x"], idempotency_key="key"))
    memory = ledger.memory = Damaged(ledger.index)
    memory.tenants = {"acme": (1, SECRET)}
    ledger.index.ids.clear()
    again = append("a", HI, ids=["x"], idempotency_key="key")
    ledger.commit(again)
    assert again.already


class Counting(list[tuple[bytes, bytes]]):
    """The records of a plan; counts how often somebody walks them."""

    walks = 0

    def __iter__(self) -> Any:
        self.walks += 1
        return super().__iter__()


def test_ids_that_repeat_within_a_commit_do_not_walk_the_plan() -> None:
    """Each of them walked all records before it: 4,096 repeats in a commit took seconds."""
    ledger = Ledger()
    plan = ledger.plan()
    records = plan.records = Counting()
    acks = [append("a", HI, ids=[f"{number}"]) for number in range(20)]
    again = [append("a", HI, ids=[f"{number}"]) for number in range(20)]
    Admission(ledger.index, ledger.memory, plan, nothing).admit([*acks, *again])
    assert plan.repeated == again
    assert [ack._position for ack in again] == list(range(1, 21))
    assert records.walks == 0


def test_creating_again_within_a_commit_tells_the_last_position() -> None:
    ledger = Ledger()
    ledger.commit(plain("b"))
    create = [append("a", HI, create=True) for _ in range(3)]
    ledger.commit(plain("a"), create[0], plain("b"), plain("a"), create[1], plain("b"), create[2])
    assert [ack.position for ack in create] == [2, 4, 4]


def test_a_dropped_plan_leaves_no_trace() -> None:
    ledger = Ledger()
    ledger.commit(named("m"), plain("b"))
    before = picture(ledger)
    plan = ledger.admit(plain("a"), plain("new"), keyed("k"), named("y"), control("b"))
    assert len(plan.records) == 5
    plan.drop(ledger.index)
    assert picture(ledger) == before
    ack = append("new", HI, expected_head=-1)
    ledger.commit(ack)
    assert ack.first == 0


# The chain


def straightforward(ledger: Ledger) -> tuple[bytes, dict[int, bytes]]:
    """The chain from flags and checksums alone, one record after the other."""
    link, links = bytes(16), {}
    run: list[bytes] = []
    first = 1

    def close() -> None:
        nonlocal link
        if run:
            content = link + first.to_bytes(8, "big") + b"".join(run)
            link = blake2b(content, digest_size=16).digest()
            run.clear()

    for position, value in enumerate(ledger.values, 1):
        if int.from_bytes(value[74:76], "little") & 4:
            close()
            first = position
        run.append(value[:8])
        if position % BLOCK_POSITIONS == 0:
            close()
            links[position // BLOCK_POSITIONS - 1] = link
    close()
    return link, links


@settings(max_examples=15)
@given(
    st.lists(
        st.one_of(
            st.integers(1, 5),
            st.sampled_from([BLOCK_POSITIONS - 1, BLOCK_POSITIONS, BLOCK_POSITIONS + 1]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_the_chain_is_the_one_of_the_format(counts: list[int], together: bool) -> None:
    ledger = Ledger()
    for count in counts:
        if together:
            ledger.commit(append("a", *[HI] * count))
        else:
            ledger.commit(*[plain("ab"[number % 2]) for number in range(count)])
    assert straightforward(ledger) == (ledger.link, ledger.block_links)


# Any history, against a model


names = st.sampled_from(["a", "b", "c"])
contents = st.sampled_from([HI, HO])
appends = st.one_of(
    st.tuples(st.just("plain"), names, contents),
    st.tuples(st.just("keyed"), names, contents, st.sampled_from("kl"), st.integers(-1, 6)),
    st.tuples(st.just("named"), names, contents, st.sampled_from("mno")),
    st.tuples(st.just("headed"), names, st.integers(-1, 6)),
)


class Model:
    """What admission decides, in the plainest words."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[Message]] = {}
        self.keys: dict[tuple[str, str], tuple[Message, int]] = {}
        self.ids: dict[str, tuple[str, Message, int]] = {}

    def append(self, what: Any) -> tuple[str, int]:
        """The outcome, and the sequence that the caller is told."""
        form, name, *rest = what
        events = self.sessions.get(name, [])
        message = HI if form == "headed" else rest[0]
        if form == "keyed":
            known = self.keys.get((name, rest[1]))
            if known is not None:
                if known[0] != message:
                    return "key", -1
                return "already", known[1]
        if form in ("keyed", "headed") and rest[-1] != len(events) - 1 and rest[-1] < 5:
            return "head", -1
        if form == "named":
            taken = self.ids.get(rest[1])
            if taken is not None:
                if taken[:2] != (name, message):
                    return "id", -1
                return "already", taken[2]
        place = len(events)
        self.sessions.setdefault(name, []).append(message)
        if form == "keyed":
            self.keys[(name, rest[1])] = (message, place)
        if form == "named":
            self.ids[rest[1]] = (name, message, place)
        return "placed", place


def ack_for(what: Any) -> Ack:
    form, name, *rest = what
    if form == "plain":
        return plain(name, rest[0])
    if form == "keyed":
        head = rest[2] if rest[2] < 5 else None
        return append(name, rest[0], idempotency_key=rest[1], expected_head=head)
    if form == "named":
        return append(name, rest[0], ids=[rest[1]])
    return append(name, HI, expected_head=rest[0] if rest[0] < 5 else None)


def outcome_of(ack: Ack) -> tuple[str, int]:
    try:
        ack.result(0)
    except AppendConflictError:
        return "head", -1
    except IdempotencyConflictError:
        return "key", -1
    except DuplicateIdError:
        return "id", -1
    return ("already" if ack.already else "placed"), ack.first


@settings(max_examples=150)
@given(st.lists(st.lists(appends, max_size=8), max_size=6))
def test_any_history_is_decided_as_the_model_does(history: list[list[Any]]) -> None:
    ledger, model = Ledger(), Model()
    for group in history:
        acks = [ack_for(what) for what in group]
        ledger.commit(*acks)
        for what, ack in zip(group, acks, strict=True):
            assert outcome_of(ack) == model.append(what), what
    for state in ledger.index.states.values():
        events = ledger.events(state.number)
        assert [event.sequence for event in events] == list(range(len(events)))
        assert [decode_body(event.payload) for event in events] == model.sessions[state.name[1]]
    positions = [
        position for state in ledger.index.states.values() for position in state.loose.positions
    ]
    assert sorted(positions) == list(range(1, len(ledger.values) + 1))
    assert straightforward(ledger)[0] == ledger.link


# The rest


@pytest.mark.parametrize("before", [{}, {1: "a"}, {1: "a", 5: b"x" * 300, 16: [["s"]]}], ids=len)
def test_maps_are_extended(before: dict[int, Any]) -> None:
    encoded = encode_plain(before) if before else b""
    added = [encode_plain(20) + encode_plain("x"), encode_plain(21) + encode_plain([None])]
    assert decode_marks(extend_map(encoded, added), where="here") == {**before, 20: "x", 21: [None]}
