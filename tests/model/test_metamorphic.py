"""The same program under other settings, with other comings and goings, leaves the same store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import Store
from eventlog.errors import TurnlogError
from tests.model.actors import Worker, Workers
from tests.model.model import ModelStore
from tests.model.noun_programs import draw_noun
from tests.model.operations import Append, Everything, New, Op
from tests.model.performing import perform
from tests.model.programs import program
from tests.model.staging import HANG_S

SEEDS = (1, 2)
BRANCHING_SEEDS = (3, 4)
NOUN_SEEDS = (6, 7)
OPERATIONS = 90
DIALOGUES = 400

Run = Callable[[Path, list[Op], Workers], list[Any]]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


def plainly(frequency: int, **options: Any) -> Run:
    def run(path: Path, ops: list[Op], workers: Workers) -> list[Any]:
        with Store.open(path, snapshot_frequency=frequency, **options) as store:
            return [perform(store, op) for op in ops]

    return run


def reopened(path: Path, ops: list[Op], workers: Workers) -> list[Any]:
    """Every operation finds a store that was just opened, and sealed and cut as far as it goes."""
    answers = []
    for op in ops:
        with Store.open(path, snapshot_frequency=2) as store:
            answers.append(perform(store, op))
    return answers


def in_turn(path: Path, ops: list[Op], workers: Workers) -> list[Any]:
    """Two processes and two handles of one of them, each with its own idea of the store."""
    other: Worker | None = None
    answers = []
    with Store.open(path, snapshot_frequency=3) as store, Store.open(path) as again:
        other = workers.start()
        for number, op in enumerate(ops):
            if number % 3 == 0:
                answers.append(other.perform(path, op))
            else:
                own, other_handle = (store, again) if number % 3 == 1 else (again, store)
                answers.append(perform(own, op))
                with suppress(TurnlogError):
                    other_handle.flush()  # handles of one process hear of each other's refusals
        other.close()
    return answers


def by_mortals(path: Path, ops: list[Op], workers: Workers) -> list[Any]:
    """A process for every few operations, killed after the last of them was answered."""
    Store.open(path, snapshot_frequency=1).close()
    answers: list[Any] = []
    for start in range(0, len(ops), 7):
        worker = workers.start()
        answers += [worker.perform(path, op) for op in ops[start : start + 7]]
        worker.kill()
    return answers


RUNS: dict[str, Run] = {
    "snapshot_frequency=25": plainly(25),
    "snapshot_frequency=1": plainly(1),
    "snapshot_frequency=2": plainly(2),
    "snapshot_frequency=4096": plainly(4_096),
    "no dictionaries": plainly(25, dictionaries=False),
    "reopened": reopened,
    "two processes in turn": in_turn,
    "killed processes": by_mortals,
}


@pytest.mark.parametrize("seed", [*SEEDS, *BRANCHING_SEEDS, *NOUN_SEEDS])
def test_what_can_be_observed_does_not_depend_on_how_it_was_run(
    seed: int, tmp_path: Path, workers: Workers
) -> None:
    ops = program(
        Random(seed),
        OPERATIONS,
        branches=seed in BRANCHING_SEEDS,
        draw_more=draw_noun if seed in NOUN_SEEDS else None,
    )
    model = ModelStore()
    expected = [model.answer(op) for op in ops]
    digests = {"the model": digest(expected)}
    for number, (name, run) in enumerate(RUNS.items()):
        answers = run(tmp_path / str(number), ops, workers)
        digests[name] = digest(answers)
        for op, answer, wanted in zip(ops, answers, expected, strict=True):
            assert answer == wanted, f"seed {seed}, {name}: {op!r:.500}"
    assert len(set(digests.values())) == 1, f"seed {seed}: {digests}"


@pytest.mark.parametrize("seed", [5])
def test_a_dictionary_changes_nothing_that_can_be_observed(seed: int, tmp_path: Path) -> None:
    """A dictionary is trained on dialogues of a tenant, and the program then goes on in there."""
    ops = [*dialogues(Random(seed), "a"), *program(Random(seed), OPERATIONS, branches=True)]
    model = ModelStore()
    expected = [model.answer(op) for op in ops]
    for wanted in (True, False):
        path = tmp_path / str(wanted)
        with Store.open(path, snapshot_frequency=4, dictionaries=wanted) as store:
            answers = [perform(store, op) for op in ops[:DIALOGUES]]
            store.flush()
            assert store._log.trainer.wait(HANG_S)
            answers += [perform(store, op) for op in ops[DIALOGUES:]]
            store.flush()
            assert (store.stats()["compression"]["with_dictionary"] > 0) == wanted
        assert digest(answers) == digest(expected), f"dictionaries={wanted}"
        with Store.open(path) as store:
            assert perform(store, Everything()) == model.answer(Everything())
            assert store.check().ok


def dialogues(random: Random, tenant: str) -> list[Op]:
    """More than the 1 MiB that a training takes."""
    words = "please order number flight hotel thank you sure when would like room price".split()
    return [
        Append(
            tenant,
            f"call-{number}",
            tuple([New({"content": " ".join(random.choices(words, k=24))}) for _ in range(24)]),
        )
        for number in range(DIALOGUES)
    ]


def digest(answers: list[Any]) -> str:
    """One line for everything that was observed."""
    return blake2b(repr(answers).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
