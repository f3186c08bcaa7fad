"""The kit that is shipped for stores: what the real one passes, and what shows a broken one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from engine import Ack, Events, Session, Store, TurnlogError, UsageError
from engine.testing import RULES, Broken, Report, Rule, check, machine
from tests.model.staging import HANG_S, run_script
from tests.unit.broken_stores import BROKEN, Passing

MEMORY = Path("/dev/shm")  # where there is one, hundreds of small stores take seconds
FOLDER = MEMORY if MEMORY.is_dir() else None


def check_when_closed(path: Path, **options: Any) -> Any:
    """A real store that is checked whenever it is closed."""

    class Checked(Passing):
        def __init__(self, path: Path) -> None:
            self.real = Store.open(path, **options)
            self.memory = {}

        def close(self) -> None:
            report = self.real.check()
            self.real.close()
            assert report.ok, report.findings

    return Checked(path)


class Reopening:
    """A real store that is closed and opened again after each append or other change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed = threading.Condition(threading.RLock())
        self.real = Store.open(path, snapshot_frequency=2)

    def ask(self, question: Callable[[Store], Any]) -> Any:
        with self.changed:
            answer = question(self.real)
            if isinstance(answer, Events):
                return list(answer)
            if not isinstance(answer, Ack):
                return answer
            try:
                return answer.result(HANG_S)
            finally:
                self.real.close()
                self.real = Store.open(self.path)
                self.changed.notify_all()

    def tenant(self, name: str) -> Any:
        return ReopeningTenant(self, name)

    def session(self, name: str) -> Any:
        return ReopeningSession(self, "", name)

    def read(self, after: int = 0, limit: int | None = None) -> Any:
        return self.ask(lambda real: real.read(after, limit))

    def subscribe(self, after: int) -> Any:
        return Following(self, after)

    def flush(self) -> None:
        self.ask(lambda real: real.flush())

    def close(self) -> None:
        self.real.close()


class ReopeningTenant:
    def __init__(self, store: Reopening, name: str) -> None:
        self.store = store
        self.name = name

    def session(self, name: str) -> Any:
        return ReopeningSession(self.store, self.name, name)


class ReopeningSession:
    def __init__(self, store: Reopening, tenant: str, name: str) -> None:
        self.store = store
        self.place = (tenant, name)

    def _real(self, store: Store) -> Session:
        return store.tenant(self.place[0]).session(self.place[1])

    def __getattr__(self, name: str) -> Any:
        if isinstance(getattr(Session, name), property):
            return self.store.ask(lambda real: getattr(self._real(real), name))
        return lambda *given, **options: self.store.ask(
            lambda real: getattr(self._real(real), name)(*given, **options)
        )


class Following:
    def __init__(self, store: Reopening, after: int) -> None:
        self.store = store
        self.after = after
        self.is_closed = False

    def __iter__(self) -> Iterator[Any]:
        while not self.is_closed:
            with self.store.changed:
                events = self.store.read(self.after)
                if not events:
                    self.store.changed.wait(HANG_S)
            for event in events:
                self.after = event.position
                yield event

    def close(self) -> None:
        with self.store.changed:
            self.is_closed = True
            self.store.changed.notify_all()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_holds_of_the_store(rule: Rule) -> None:
    rule(Store.open, folder=FOLDER)
    rule(lambda path: check_when_closed(path, snapshot_frequency=1), folder=FOLDER)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_holds_when_the_store_is_reopened_after_each_step(rule: Rule) -> None:
    rule(Reopening, folder=FOLDER)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_store_that_breaks_a_rule_breaks_that_one_alone(rule: Rule) -> None:
    report = check(BROKEN[rule.name], folder=FOLDER)
    assert [broken.rule for broken in report.broken] == [rule], str(report)
    (broken,) = report.broken
    assert type(broken.error) is AssertionError  # it says what is wrong
    assert len(str(broken.error)) > 20
    assert len(report.kept) == len(RULES) - 1
    assert not report.ok


def test_there_is_a_broken_store_for_each_rule() -> None:
    assert sorted(BROKEN) == sorted([rule.name for rule in RULES])
    assert len(RULES) == len({rule.name for rule in RULES}) > 30
    for rule in RULES:
        assert rule.says.endswith("."), rule


def test_a_store_that_only_passes_everything_on_keeps_all_rules() -> None:
    report = check(Passing, folder=FOLDER)
    assert report.ok, str(report)
    assert report.kept == list(RULES)
    assert str(report) == f"{len(RULES)} of {len(RULES)} rules hold"


def test_what_a_store_raises_unasked_breaks_the_rule_and_stops_no_other() -> None:
    class Falling(Passing):
        def read(self, *given: Any) -> Any:
            raise RuntimeError("no global order here")

    report = check(Falling, folder=FOLDER)
    assert 0 < len(report.broken) < len(RULES)
    first = report.broken[0]
    assert str(first) == "positions_are_in_commit_order: RuntimeError: no global order here"
    assert str(Report([], [Broken(first.rule, AssertionError("said"))])) == (
        "0 of 1 rules hold\npositions_are_in_commit_order: said"
    )


def run_machine(opener: Callable[[Path], Any], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine(opener, folder=FOLDER),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )


@pytest.mark.parametrize("opener", [Store.open, check_when_closed, Reopening])
def test_the_machine_finds_nothing_in_the_store(opener: Callable[[Path], Any]) -> None:
    run_machine(opener, 10, 40)


# Of what the machine does not do (threads, caches, damage to a caller's data) the rules tell.
FOUND = (
    "sequences_are_gap_free",
    "positions_are_in_commit_order",
    "a_key_stores_once",
    "a_key_refuses_other_content",
    "a_key_belongs_to_its_session",
    "a_stale_append_is_refused",
    "an_event_follows_its_parent",
    "a_parent_must_be_there",
    "history_is_the_path_to_the_head",
    "a_path_is_the_chain_of_parents",
    "branches_written_in_turn_stay_two",
    "a_checkout_moves_the_head_only",
    "a_fork_copies_nothing",
    "info_counts_what_is_there",
    "state_is_the_fold_of_its_changes",
    "state_is_the_whole_sessions",
    "what_is_deleted_is_gone",
    "a_deleted_name_is_free",
    "acknowledged_survives_reopening",
    "a_key_survives_reopening",
)


@pytest.mark.parametrize("rule", FOUND)
def test_the_machine_finds_what_is_broken(rule: str) -> None:
    with pytest.raises((AssertionError, TurnlogError), match=r"."):
        run_machine(BROKEN[rule], 100, 40)


def test_the_rules_need_neither_pytest_nor_hypothesis(tmp_path: Path) -> None:
    run_script(
        "import sys\n"
        "for name in ('pytest', '_pytest', 'hypothesis'): sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from engine import Store, UsageError\n"
        "from engine.testing import check, machine\n"
        "report = check(Store.open, folder=Path(sys.argv[1]))\n"
        "assert report.ok, str(report)\n"
        "try: machine(Store.open)\n"
        "except UsageError as error: assert 'hypothesis' in str(error) and 'pip' in error.hint\n"
        "else: raise AssertionError\n",
        FOLDER or tmp_path,
    )


def test_a_broken_rule_is_told_where_python_strips_its_asserts(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from engine.testing import check\n"
        "from tests.unit.broken_stores import BROKEN\n"
        "report = check(BROKEN['a_fork_copies_nothing'], folder=Path(sys.argv[1]))\n"
        "sys.exit(len(report.broken))\n"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", script, str(FOLDER or tmp_path)], timeout=120, check=False
    )
    assert done.returncode == 1


def test_an_opener_that_raises_is_told() -> None:
    def refuse(path: Path) -> Any:
        raise UsageError("no")

    report = check(refuse, RULES[:2], folder=FOLDER)
    assert [str(each.error)[-4:] for each in report.broken] == [": no"] * 2
