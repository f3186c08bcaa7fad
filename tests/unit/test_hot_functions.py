"""The functions that every append and every read runs through, under pytest-benchmark.

They are timed so that a change can be compared (``pytest --benchmark-autosave`` and
``--benchmark-compare``); what is asserted is only that they did their work.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.workloads import chat_messages
from eventlog.ack import Ack
from eventlog.body import decode_body, encode_body
from eventlog.commit import CommitMachine, Step
from eventlog.keys import PAIR, U64, name_key
from eventlog.limits import COMMIT_EVENTS_MAX
from eventlog.record import (
    MESSAGE,
    NO_PARENT,
    NO_TIME,
    Origin,
    Record,
    decode_record,
    encode_record,
    encode_tail,
    verify_record,
)
from eventlog.segment import Run, decode_segment, describe_runs, encode_segment, encode_segments

pytestmark = pytest.mark.benchmark(max_time=0.1, min_rounds=5, warmup=True)

RECORDED_US = 1_700_000_000_000_000
ORIGIN = Origin(7, "acme", "call-42")
ROLL_UP = 25  # events of one segment as a roll-up makes it
ROLL_UPS = 40  # sessions that fall due while 1,000 events are appended
TAIL = encode_tail(MESSAGE, 1, 0, NO_TIME, 0, 0)
MESSAGES = chat_messages(1_000)
BODIES = [encode_body(message)[0] for message in MESSAGES]


def record(sequence: int, position: int) -> bytes:
    return encode_record(
        position,
        session=ORIGIN.number,
        sequence=sequence,
        parent=sequence - 1 if sequence else NO_PARENT,
        recorded_us=RECORDED_US + 1_500_000 * sequence,
        role=sequence % 2 + 1,
        body=BODIES[sequence % len(BODIES)],
    )


def run_of(count: int, session: int = ORIGIN.number) -> Run:
    positions = list(range(1, 1_000 * count, 1_000))
    records = [record(sequence, place) for sequence, place in enumerate(positions)]
    return Run(session, count - 1, records, positions)


def append(number: int) -> Ack:
    body = BODIES[number % len(BODIES)]
    return Ack(("acme", f"call-{number:04d}"), len(body), TAIL, body)


def test_keys(benchmark: BenchmarkFixture) -> None:
    def run() -> tuple[bytes, bytes]:
        for number in range(1_000):
            position = U64.pack(number)
            pair = PAIR.pack(7, number)
        return position, pair

    position, pair = benchmark(run)
    assert U64.unpack(position) == (999,)
    assert PAIR.unpack(pair) == (7, 999)


def test_name_key(benchmark: BenchmarkFixture) -> None:
    key = benchmark(name_key, "acme", "call-42")
    assert key == name_key("acme", "call-42") != name_key("acmec", "all-42")


def test_encode_body(benchmark: BenchmarkFixture) -> None:
    data, fixes = benchmark(encode_body, MESSAGES[0])
    assert decode_body(data) == MESSAGES[0]
    assert fixes is None


def test_decode_body(benchmark: BenchmarkFixture) -> None:
    assert benchmark(decode_body, BODIES[0]) == MESSAGES[0]


def test_encode_record(benchmark: BenchmarkFixture) -> None:
    stored = benchmark(record, 3, 9)
    assert stored.endswith(BODIES[3])


def test_verify_record(benchmark: BenchmarkFixture) -> None:
    benchmark(verify_record, U64.pack(9), record(3, 9))


def test_decode_record(benchmark: BenchmarkFixture) -> None:
    stored = record(3, 9)
    decoded = benchmark(decode_record, ORIGIN, 9, stored, Record)
    assert decoded.stored() == stored


@pytest.mark.parametrize("count", [1, ROLL_UPS], ids=["alone", "a commit's roll-ups"])
def test_encode_segments(benchmark: BenchmarkFixture, count: int) -> None:
    runs = [run_of(ROLL_UP, session) for session in range(1, count + 1)]
    segments = benchmark(lambda: encode_segments(runs, describe_runs(runs)))
    assert [PAIR.unpack(key) for key, _ in segments] == [
        (session, ROLL_UP - 1) for session in range(1, count + 1)
    ]
    assert all(len(value) < sum(map(len, runs[0].records)) for _, value in segments)


@pytest.mark.parametrize("count", [ROLL_UP, 300], ids=["rolled up", "merged"])
def test_decode_segment(benchmark: BenchmarkFixture, count: int) -> None:
    run_sealed = run_of(count)
    key, value = encode_segment(run_sealed)

    def run() -> list[Record]:
        decoded = decode_segment(key, value)
        return [decoded.make(index, ORIGIN, Record) for index in range(count)]

    made = benchmark(run)
    assert [each.stored() for each in made] == run_sealed.records


@pytest.mark.parametrize("waiting", [1_000, 20_000], ids=["one batch", "more than one batch"])
def test_commit_machine(benchmark: BenchmarkFixture, waiting: int) -> None:
    acks = [append(number % 1_000) for number in range(waiting)]

    def run() -> list[int]:
        machine = CommitMachine()
        for ack in acks:
            machine.submit(ack)
        sizes: list[int] = []
        while machine.tick(0) is Step.COMMIT:
            sizes.append(len(machine.next_batch(0)))
            machine.committed()
        return sizes

    sizes = benchmark(run)
    assert sum(sizes) == waiting
    assert all(size <= COMMIT_EVENTS_MAX for size in sizes)
