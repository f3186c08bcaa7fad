"""Reading a session's messages, against ``cbor2.loads`` of the same bodies and one LMDB get.

Half of the sessions were written first and are sealed, the last messages of the others are loose.
``last20_hot`` reads from sessions in turn, again and again, and is the worse of the two halves.
``last20_cold`` is the first read of each sealed session after an opening; reading the hot log,
which the first read of all does, belongs to the opening (``open_vs_bare``). ``all_1500`` reads
whole sealed sessions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import cbor2
import lmdb

from bench.fill import fill
from bench.harness import (
    RefusedError,
    Report,
    Settings,
    comparison,
    fresh_directory,
    interleave,
    paired_ratio,
    progress,
)
from bench.targets import Result
from bench.workloads import Message, chat_messages, interleaving, session_names
from engine import Store
from eventlog.limits import HOT_EVENTS_TARGET

FIGURES: Final = ("last20_hot", "last20_cold", "all_1500")
_LAST: Final = 20
_ALL: Final = 1_500
_SEALED: Final = 20  # sessions, written before the others
_LOOSE: Final = 50
_READS: Final = 1_000  # of 20 messages, one round
_MAP_BYTES: Final = 1 << 34
assert _LOOSE * _ALL > HOT_EVENTS_TARGET  # so the others push them out of the hot log


@dataclass(frozen=True, slots=True)
class _Filled:
    """A store, bare LMDB with the same bodies, and what sessions hold."""

    store: Path
    bare: Path
    names: list[str]
    messages: list[list[Message]]  # of each session, in the order of ``names``


def run(settings: Settings, report: Report) -> None:
    """Fill one store, and read from it in turn with the yardstick."""
    progress(f"{(_SEALED + _LOOSE) * _ALL:,} events of {_SEALED + _LOOSE} sessions")
    rounds = 5 if settings.quick else 15
    with fresh_directory(settings) as directory:
        filled = _fill(directory)
        if settings.wants("last20_hot"):
            _hot(report, filled, rounds)
        if settings.wants("last20_cold"):
            _cold(report, filled, rounds)
        if settings.wants("all_1500"):
            _all(report, filled, rounds)


def _fill(directory: Path) -> _Filled:
    names = session_names(_SEALED + _LOOSE)
    messages = chat_messages(len(names) * _ALL // 8)
    store, bare = directory / "store", directory / "bare"
    said: list[list[Message]] = []
    with Store.open(store) as opened:
        for first, count in ((0, _SEALED), (_SEALED, _LOOSE)):
            order = interleaving(count, count * _ALL)
            half: list[list[Message]] = [[] for _ in range(count)]
            for index, number in enumerate(order):
                half[number].append(messages[index % len(messages)])
            said += half
            fill(opened, names[first : first + count], order, messages)
        if opened.stats()["hot_events"] > _LOOSE * _ALL:
            raise RefusedError("the first sessions are not sealed; what is measured is not said")
    bare.mkdir()
    with (
        lmdb.open(str(bare), map_size=_MAP_BYTES) as environment,
        environment.begin(write=True) as transaction,
    ):
        for name, each in zip(names, said, strict=True):
            last = b"".join([cbor2.dumps(message) for message in each[-_LAST:]])
            transaction.put(name.encode(), last)
    return _Filled(store, bare, names, said)


def _hot(report: Report, filled: _Filled, rounds: int) -> None:
    ratios: list[float] = []
    for kind, first, count in (("sealed", 0, _SEALED), ("loose", _SEALED, _LOOSE)):
        progress(f"last20_hot: {kind}")
        numbers = list(islice(cycle(range(first, first + count)), _READS))
        values = _in_turn(filled, numbers, _LAST, rounds)
        report.figures[f"last20_hot_{kind}"] = comparison(*values, unit="s")
        ratios.append(paired_ratio(*values))
    report.results.append(Result("last20_hot", max(ratios)))


def _all(report: Report, filled: _Filled, rounds: int) -> None:
    progress("all_1500: whole sessions")
    values = _in_turn(filled, list(range(_SEALED)), None, rounds)
    report.figures["all_1500"] = comparison(*values, unit="s")
    report.results.append(Result("all_1500", paired_ratio(*values)))


def _in_turn(
    filled: _Filled, numbers: Sequence[int], limit: int | None, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds a read of both sides, each round one read of each of these sessions."""
    with (
        Store.open(filled.store, create=False) as store,
        lmdb.open(str(filled.bare), map_size=_MAP_BYTES, create=False) as environment,
    ):
        calls = [store.session(filled.names[number]) for number in numbers]
        wanted = [_encoded(filled, number, limit) for number in numbers]
        for call, bodies in zip(calls, wanted, strict=True):  # which warms up, too
            _require(call.history(limit), bodies)

        def ours() -> float:
            start = time.perf_counter()
            for call in calls:
                call.history(limit)
            return (time.perf_counter() - start) / len(calls)

        def loads() -> float:
            start = time.perf_counter()
            for number, bodies in zip(numbers, wanted, strict=True):
                if limit is not None:
                    _get(environment, filled.names[number])
                [cbor2.loads(body) for body in bodies]
            return (time.perf_counter() - start) / len(calls)

        values = interleave({"ours": ours, "loads": loads}, rounds)
    return values["ours"], values["loads"]


def _cold(report: Report, filled: _Filled, rounds: int) -> None:
    progress("last20_cold: each session's first read after an opening")
    chosen = range(_SEALED)
    wanted = [_encoded(filled, number, _LAST) for number in chosen]
    names = [filled.names[number] for number in chosen]

    def ours() -> float:
        taken: list[float] = []
        with Store.open(filled.store, create=False) as store:
            store.session(filled.names[_SEALED]).history(_LAST)
            for name, bodies in zip(names, wanted, strict=True):
                start = time.perf_counter()
                found = store.session(name).history(_LAST)
                taken.append(time.perf_counter() - start)
                _require(found, bodies)
        return statistics.median(taken)

    def loads() -> float:
        taken: list[float] = []
        with lmdb.open(str(filled.bare), map_size=_MAP_BYTES, create=False) as environment:
            _get(environment, filled.names[_SEALED])
            for name, bodies in zip(names, wanted, strict=True):
                start = time.perf_counter()
                _get(environment, name)
                [cbor2.loads(body) for body in bodies]
                taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    values = interleave({"ours": ours, "loads": loads}, rounds)
    report.figures["last20_cold"] = comparison(values["ours"], values["loads"], unit="s")
    report.results.append(Result("last20_cold", paired_ratio(values["ours"], values["loads"])))


def _encoded(filled: _Filled, number: int, limit: int | None) -> list[bytes]:
    messages = filled.messages[number]
    return [cbor2.dumps(message) for message in (messages if limit is None else messages[-limit:])]


def _get(environment: lmdb.Environment, name: str) -> None:
    with environment.begin() as transaction:
        if transaction.get(name.encode()) is None:
            raise RefusedError(f"the yardstick has no {name}")


def _require(found: Sequence[Message], bodies: Sequence[bytes]) -> None:
    if [cbor2.dumps(message) for message in found] != list(bodies):
        raise RefusedError("the store did not give back what was appended")
