"""The loose index: follows the log, makes room, and stays a prefix of the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eventlog.body import encode_plain
from eventlog.errors import CorruptionError
from eventlog.index import LOST, LooseIndex, extension_of
from eventlog.keys import U64
from eventlog.record import (
    CONTROL,
    MESSAGE,
    NO_PARENT,
    Extension,
    Flag,
    encode_record,
    seal_record,
)
from eventlog.rows import NO_SEQUENCE, CommitRecord, KeyedResult, SessionRow


class World:
    """The store as plain lists: what every index must be a hint of."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int, bytes]] = []  # session, sequence, record; by position
        self.rows: dict[int, SessionRow] = {}
        self.positions: dict[int, list[int]] = {}
        self.floor = 1
        self.transaction = 1
        self.generation = 0

    def append(
        self, session: int, *, kind: int = MESSAGE, size: int = 0, **fields: object
    ) -> bytes:
        position = len(self.log) + 1
        sequence = len(self.positions.setdefault(session, []))
        if session not in self.rows:
            self.rows[session] = SessionRow(
                *(1, position, 0, 0, 0, NO_SEQUENCE, 0, 0, 0, 0, 0, 0), "acme", f"s{session}", None
            )
        record = encode_record(
            position,
            session=session,
            sequence=sequence,
            recorded_us=1_000 + position,
            kind=kind,
            body=b"x" * size,
            **fields,  # type: ignore[arg-type]
        )
        self.log.append((session, sequence, record))
        self.positions[session].append(position)
        self.transaction += 1
        return record

    def seal(self, session: int, leave: int = 0) -> SessionRow:
        """The session's row once all its events but the last ``leave`` are sealed."""
        row = self.rows[session].copy()
        mine = [record for number, _, record in self.log if number == session]
        mine = mine[: max(row.sealed, len(mine) - leave)]
        if len(mine) == row.sealed:
            return row
        row.sealed = len(mine)
        row.messages = sum(record[72] == MESSAGE for record in mine)
        public = [place for place, record in enumerate(mine) if record[72] < CONTROL]
        row.head = public[-1] if public else NO_SEQUENCE
        row.last_position = self.positions[session][row.sealed - 1]
        row.last_recorded_us = 1_000 + row.last_position
        self.rows[session] = row
        self.transaction += 1
        return row

    def is_sealed(self, position: int) -> bool:
        session, sequence, _ = self.log[position - 1]
        return sequence < self.rows[session].sealed

    def cut(self) -> int:
        """The floor after everything sealed in front was cut."""
        while self.floor <= len(self.log) and self.is_sealed(self.floor):
            self.floor += 1
        self.transaction += 1
        return self.floor

    def commit_record(self) -> CommitRecord:
        return CommitRecord(
            last_position=len(self.log),
            floor=self.floor,
            transaction=self.transaction,
            generation=self.generation,
        )

    def read_hot(self, first: int) -> Iterator[tuple[bytes, bytes]]:
        for position in range(max(first, self.floor), len(self.log) + 1):
            yield U64.pack(position), self.log[position - 1][2]

    def bring(self, index: LooseIndex) -> None:
        """Let an index catch up with everything."""
        index.catch_up(
            self.commit_record(), self.read_hot, self.rows.__getitem__, id_hash, lambda: None
        )


def id_hash(tenant: int, caller_id: str) -> bytes:
    return f"{tenant}/{caller_id}".encode()


def check(index: LooseIndex, world: World, *, current: bool = True) -> None:
    """Everything that must hold of an index that has caught up."""
    kept = 0
    for number, state in index.states.items():
        row, loose = world.rows[number], state.loose
        positions = world.positions[number]
        assert loose.base <= row.sealed
        assert list(loose.positions) == positions[loose.base :]
        assert all(position >= index.floor for position in loose.positions)
        assert (state.next, state.last_position) == (len(positions), positions[-1])
        assert (state.draft_next, state.draft_head) == (state.next, state.head)
        mine = [record for session, _, record in world.log if session == number]
        public = [place for place, record in enumerate(mine) if record[72] < CONTROL]
        assert state.head == (public[-1] if public else NO_SEQUENCE)
        assert state.messages == sum(record[72] == MESSAGE for record in mine)
        for place, record in enumerate(loose.records.values()):
            if record is not None:
                assert record == mine[loose.base + place]
                kept += len(record)
    assert index.kept_bytes == kept
    assert index.kept_bytes <= index.bytes_max
    assert index.floor == world.floor
    hot = world.log[index.floor - 1 :]
    assert list(index.hot_sizes) == [len(record) for _, _, record in hot]
    assert index.hot_bytes == sum(index.hot_sizes)
    assert list(index.hot_sequences) == [sequence for _, sequence, _ in hot]
    assert [state.number for state in index.hot] == [session for session, _, _ in hot]
    assert index.position == len(world.log)
    loose_now = {
        number for number, row in world.rows.items() if row.sealed < len(world.positions[number])
    }
    assert {number for number, state in index.states.items() if state.loose.positions} >= loose_now
    if current:
        index.advance_scan()
        for position in range(index.floor, index.scan):
            assert world.is_sealed(position)
        if index.scan <= index.position:
            state = index.hot[index.scan - index.floor]
            assert index.hot_sequences[index.scan - index.floor] >= state.loose.base


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 300)),
        st.tuples(st.just("control"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("seal"), st.integers(1, 4), st.integers(0, 2)),
        st.tuples(st.just("cut"), st.just(0), st.just(0)),
        st.tuples(st.just("look"), st.just(0), st.just(0)),
        st.tuples(st.just("drop"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(operations, st.sampled_from([0, 200, 1_000, 10**6]))
@example([("append", 1, 0), ("look", 0, 0), ("seal", 1, 0), ("append", 1, 0), ("cut", 0, 0)], 10**6)
def test_any_history_is_followed(history: list[tuple[str, int, int]], bytes_max: int) -> None:
    """The writer's index, that of a process that looks now and then, and a fresh one agree."""
    world = World()
    writer = LooseIndex(bytes_max=bytes_max)
    other = LooseIndex(bytes_max=bytes_max)
    for what, session, size in history:
        if what in ("append", "control"):
            world.append(session, kind=MESSAGE if what == "append" else CONTROL, size=size)
            world.bring(writer)
        elif what == "seal" and session in world.rows:
            row = world.seal(session, size)
            world.bring(writer)
            if session in writer.states:
                writer.seal(writer.states[session], row)
        elif what == "cut":
            writer.drop_before(world.cut())
            world.bring(writer)
        elif what == "look":
            world.bring(other)
            check(other, world, current=False)
        elif what == "drop":
            world.generation += 1
            world.transaction += 1
            world.bring(writer)
        check(writer, world)
    world.transaction += 1
    world.bring(other)
    check(other, world, current=False)
    fresh = LooseIndex(bytes_max=bytes_max)
    world.bring(fresh)
    check(fresh, world)
    for number, state in fresh.states.items():
        assert state.loose.base == world.rows[number].sealed


def filled(*sessions: int, **options: int) -> tuple[World, LooseIndex]:
    world = World()
    for session in sessions:
        world.append(session)
    index = LooseIndex(**options)
    world.bring(index)
    return world, index


def refuse_to_read(first: int) -> Iterator[tuple[bytes, bytes]]:
    raise AssertionError(f"read from {first} on")


def test_an_index_that_is_current_reads_nothing() -> None:
    world, index = filled(1, 2, 1)
    assert index.is_current(world.commit_record())
    index.catch_up(
        world.commit_record(), refuse_to_read, world.rows.__getitem__, id_hash, lambda: None
    )
    world.append(1)
    assert not index.is_current(world.commit_record())


def test_an_older_transaction_changes_nothing() -> None:
    world, index = filled(1, 1)
    old = replace(world.commit_record(), last_position=1, transaction=1, generation=7)
    index.catch_up(old, world.read_hot, world.rows.__getitem__, id_hash, lambda: None)
    check(index, world)


def test_another_generation_drops_everything() -> None:
    world, index = filled(1, 2)
    before = index.states[1]
    world.generation = 1
    world.transaction += 1
    assert not index.is_current(world.commit_record())
    world.bring(index)
    assert index.states[1] is not before
    check(index, world)


def test_a_view_below_the_floor_drops_everything() -> None:
    world, index = filled(1, 1)
    world.append(1)
    world.append(2)
    world.seal(1)
    assert world.cut() == 4
    world.bring(index)
    assert index.floor == index.scan == 4
    assert set(index.states) == {2}
    check(index, world)


def test_a_list_that_a_reader_holds_never_loses_its_beginning() -> None:
    world, index = filled(1, 1, 1)
    held = index.states[1].loose
    stop = len(held.positions)
    world.append(1)
    world.bring(index)
    assert held is index.states[1].loose
    assert list(held.positions[:stop]) == [1, 2, 3]
    index.seal(index.states[1], world.seal(1))
    assert index.states[1].loose is not held
    assert list(held.positions) == [1, 2, 3, 4]
    assert index.states[1].loose.base == 4


def test_sealing_forgets_the_keys_of_what_is_sealed() -> None:
    world, index = filled(1, 1)
    state = index.states[1]
    index.add_key(state, b"old", KeyedResult(b"", 1, 1, 2))
    row = world.seal(1)
    world.append(1)
    world.bring(index)
    index.add_key(state, b"new", KeyedResult(b"", 2, 2, 3))
    index.seal(state, row)
    assert state.keys == {b"new": KeyedResult(b"", 2, 2, 3)}


@pytest.mark.parametrize("frequency", [1, 3])
def test_a_session_is_due_once_it_has_enough_loose_events(frequency: int) -> None:
    world = World()
    index = LooseIndex()
    index.frequency = frequency
    for number in range(2 * frequency):
        world.append(1)
        world.bring(index)
        assert index.states[1].is_due == (number + 1 >= frequency)
        assert len(index.due) == (number + 1 >= frequency)


def test_the_oldest_loose_sessions_come_first() -> None:
    world, index = filled(3, 1, 3, 2, 1)
    assert [state.number for state in index.oldest_loose(10, set(), 99)] == [3, 1, 2]
    assert [state.number for state in index.oldest_loose(10, set(), 1)] == [3]
    assert [state.number for state in index.oldest_loose(2, set(), 99)] == [3, 1]
    taken = {index.states[3]}
    assert [state.number for state in index.oldest_loose(1, taken, 99)] == [1]
    index.seal(index.states[3], world.seal(3))
    index.advance_scan()
    assert index.scan == 2
    assert [state.number for state in index.oldest_loose(10, set(), 99)] == [1, 2]


def test_the_oldest_bytes_leave_memory_first() -> None:
    world = World()
    index = LooseIndex(bytes_max=300)
    for session in (1, 2, 1, 2):
        world.append(session, size=20)  # 100 bytes
        world.bring(index)
    assert index.states[1].loose.records[0] is None
    assert [record is None for record in index.states[1].loose.records.values()] == [True, False]
    assert [record is None for record in index.states[2].loose.records.values()] == [False, False]
    assert index.kept_bytes == 300
    assert list(index.states[1].loose.positions) == [1, 3]
    check(index, world)


def test_a_record_above_the_bound_is_not_kept_at_all() -> None:
    world = World()
    index = LooseIndex(bytes_max=300)
    world.append(1)
    world.append(2, size=500)
    world.bring(index)
    assert index.kept_bytes == 0
    check(index, world)


def test_idle_sessions_leave_memory_beyond_the_bound_and_live_ones_stay() -> None:
    world, index = filled(1, 2, 3, names_max=2)
    assert set(index.states) == {1, 2, 3}  # all have loose events
    for session in (1, 2, 3):
        index.seal(index.states[session], world.seal(session))
    index.states[2].draft_next += 1  # has events in the open batch
    index.forget()
    assert set(index.states) == {2, 3}
    assert ("acme", "s1") not in index.names
    assert index.names[("acme", "s2")] is index.states[2]
    index.states[2].reset()
    assert index.states[2].draft_next == 1


def test_resetting_forgets_the_open_batch() -> None:
    _, index = filled(1, 1)
    state = index.states[1]
    state.draft_next, state.draft_head, state.draft_messages = 9, 8, 7
    state.reset()
    assert (state.draft_next, state.draft_head, state.draft_messages) == (2, 1, 2)
    assert state.name == ("acme", "s1")


def marked(world: World, session: int, marks: dict[int, object]) -> None:
    flags = 0
    if Extension.ID in marks:
        flags |= Flag.NAMED
    if Extension.KEY_DIGEST in marks:
        flags |= Flag.KEYED
    world.append(
        session, flags=flags, extension=encode_plain({int(k): v for k, v in marks.items()})
    )


def test_ids_and_keys_come_from_the_records() -> None:
    world = World()
    index = LooseIndex()
    marked(world, 1, {Extension.ID: "m-1"})
    digests: dict[int, object] = {
        Extension.KEY_DIGEST: b"k" * 16,
        Extension.CONTENT_DIGEST: b"c" * 16,
    }
    marked(world, 1, {**digests, Extension.KEY_COUNT: 3})
    world.append(1)
    world.append(1)
    marked(world, 2, {Extension.RUN_ID: "r"})
    world.bring(index)
    assert index.ids == {b"1/m-1": (1, 0)}
    assert index.states[1].keys == {b"k" * 16: KeyedResult(b"c" * 16, 1, 3, 4)}
    assert index.states[2].keys is None
    for session in (1, 2):
        index.seal(index.states[session], world.seal(session))
    index.drop_before(world.cut())
    assert index.ids == {}
    assert not index.ids_by_position


def test_keys_of_sealed_events_are_left_to_the_table() -> None:
    world = World()
    marked(
        world,
        1,
        {Extension.KEY_DIGEST: b"k", Extension.CONTENT_DIGEST: b"c", Extension.KEY_COUNT: 1},
    )
    marked(world, 1, {Extension.ID: "m-2"})
    world.seal(1)
    index = LooseIndex()
    world.bring(index)
    assert not index.states[1].keys
    assert index.ids == {b"1/m-2": (1, 1)}


# Damage


def test_a_missing_position_is_damage() -> None:
    world, _ = filled(1, 1, 1)
    rows = [row for row in world.read_hot(1) if row[0] != U64.pack(2)]
    with pytest.raises(CorruptionError, match="position is missing"):
        LooseIndex().catch_up(
            world.commit_record(), lambda first: rows, world.rows.__getitem__, id_hash, lambda: None
        )


def test_a_missing_end_is_damage() -> None:
    world, _ = filled(1, 1, 1)
    rows = list(world.read_hot(1))[:2]
    with pytest.raises(CorruptionError, match="newest positions are missing"):
        LooseIndex().catch_up(
            world.commit_record(), lambda first: rows, world.rows.__getitem__, id_hash, lambda: None
        )


@pytest.mark.parametrize("place", [0, 72, 80], ids=["checksum", "kind", "body"])
def test_a_damaged_record_keeps_its_place_and_the_rest_is_read(place: int) -> None:
    world = World()
    for session in (1, 2, 1, 1):
        world.append(session, size=5)
    session, sequence, record = world.log[2]
    flipped = bytearray(record)
    flipped[place] ^= 4
    world.log[2] = (session, sequence, bytes(flipped))
    index = LooseIndex()
    world.bring(index)
    assert list(index.damaged) == [3]
    loose = index.states[1].loose
    assert list(loose.positions) == [1, 3, 4]
    assert [record is None for record in loose.records.values()] == [False, True, False]
    assert index.states[1].next == 3
    assert list(index.states[2].loose.positions) == [2]


@pytest.mark.parametrize("value", [b"", b"x" * 79, b"\xff" * 100], ids=["empty", "short", "noise"])
def test_a_record_without_a_header_that_makes_sense_is_lost(value: bytes) -> None:
    world = World()
    for session in (1, 2, 1, 1):
        world.append(session)
    world.log[2] = (1, 1, value)
    index = LooseIndex()

    def load_row(number: int) -> SessionRow:
        if number not in world.rows:
            raise CorruptionError("row is missing", where=f"session {number}")
        return world.rows[number]

    index.catch_up(world.commit_record(), world.read_hot, load_row, id_hash, lambda: None)
    assert list(index.damaged) == [3]
    assert index.hot[2] is LOST
    assert list(index.states[1].loose.positions) == [1, 0, 4]
    assert index.states[1].loose.records[1] is None
    assert index.position == 4


def test_a_session_whose_row_is_damaged_hides_no_other() -> None:
    """Following the log stopped at its first event, so that no session could be read."""
    world = World()
    for session in (1, 2, 1, 2):
        world.append(session)

    def load_row(number: int) -> SessionRow:
        if number == 1:
            raise CorruptionError("checksum does not match", where="session 1")
        return world.rows[number]

    index = LooseIndex()
    index.catch_up(world.commit_record(), world.read_hot, load_row, id_hash, lambda: None)
    assert (list(index.damaged), list(index.unsealable)) == ([], [1])
    assert list(index.states[2].loose.positions) == [2, 4]
    assert index.position == 4


@pytest.mark.parametrize("sequence", [0, 2, 2**60], ids=["again", "skips", "far"])
def test_a_sequence_that_cannot_be_is_damage(sequence: int) -> None:
    """Places were made for all that seemed to be missing, or others took a wrong one."""
    world = World()
    for session in (1, 2, 1):
        world.append(session)
    world.log[2] = (1, sequence, encode_record(3, session=1, sequence=sequence))
    index = LooseIndex()
    world.bring(index)
    assert list(index.damaged) == [3]
    assert list(index.states[1].loose.positions) == [1]


def test_an_extension_that_is_damaged_keeps_its_event() -> None:
    """Id or key are unknown, so nothing may be appended; the event itself is whole."""
    world = World()
    for session in (1, 2, 1):
        world.append(session)
    world.log[0] = (1, 0, encode_record(1, session=1, sequence=0, flags=int(Flag.NAMED)))
    index = LooseIndex()
    world.bring(index)
    assert list(index.damaged) == [1]
    assert list(index.states[1].loose.positions) == [1, 3]
    assert index.states[1].next == 2


def test_an_extension_that_is_no_map_is_damage() -> None:
    value = encode_record(1, session=1, sequence=0, extension=encode_plain([1]))
    with pytest.raises(CorruptionError, match="no map"):
        extension_of(value, "log 1")
    value = encode_record(
        1, session=1, sequence=0, flags=64, extension=encode_plain({1: "a"}), body=b"\xf6"
    )
    assert extension_of(value, "log 1") == {1: "a"}


def test_records_of_the_tests_are_whole() -> None:
    world, _ = filled(1)
    assert seal_record(U64.pack(1), world.log[0][2][8:]) == world.log[0][2]
    assert int.from_bytes(world.log[0][2][24:32], "little") == NO_PARENT
