"""A process dies, or an error comes up, at every named place of the code; the store goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog.failpoints import NAMES
from tests.crash.conftest import Counts, Watchdog
from tests.crash.driver import OPERATIONS
from tests.crash.forkserver import ForkServer
from tests.crash.stage import Stage

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("watchdog")]

CALLERS = ("create.", "stage.", "backup.", "vacuum.", "upgrade.")  # passed on a caller's thread
MAINTAINED = ("removal.", "redaction.", "rebuild.")  # passed by the works of maintenance
DRIVEN = frozenset({name for name in NAMES if not name.startswith(MAINTAINED)})


@pytest.fixture
def stage(forks: ForkServer, tmp_path: Path) -> Stage:
    return Stage(forks, tmp_path)


@pytest.fixture(scope="module")
def counts(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counts]:
    """How often each operation passes each failpoint; found by letting it run once."""
    stage = Stage(fork_server, tmp_path_factory.mktemp("counts"))
    found: Counts = {}
    for operation in OPERATIONS:
        run, oracle = stage.start(operation, operation, failpoint="count")
        run.child.finish()
        found[operation] = run.counts()
        stage.judge(run, oracle)
    yield found
    fork_server.end_children()


def test_every_failpoint_is_passed(counts: Counts, maintenance_counts: Counts) -> None:
    assert _passed(counts) == DRIVEN
    assert _passed(maintenance_counts) >= NAMES - DRIVEN


def _passed(counts: Counts) -> set[str]:
    return {name for each in counts.values() for name, count in each.items() if count}


@pytest.mark.parametrize("action", ["kill", "io", "interrupt"])
@pytest.mark.parametrize("name", sorted(DRIVEN))
def test_a_fault_at(
    name: str, action: str, counts: Counts, stage: Stage, crash_cycles: int, watchdog: Watchdog
) -> None:
    """First, last and a pass in between, in each operation that comes by; some in a short run.

    The last pass need not come again: how many commits an operation takes depends on timing.
    """
    passing = [operation for operation, passed in counts.items() if passed.get(name)]
    if crash_cycles < 20:
        passing = passing[-1:]
    for operation in passing:
        count = counts[operation][name]
        for hit in sorted({1, (count + 1) // 2, count}):
            watchdog.feed()
            where = f"{operation}: {action} at pass {hit} of {name}"
            run, oracle = stage.start(operation, where, failpoint=name, hit=hit, action=action)
            status = run.child.wait()
            if action == "kill" and (status != 0 or hit == 1):
                assert status == -signal.SIGKILL, f"{where}: {run.child.said()}"
            elif name.endswith(".after_view") or (action != "io" and name.startswith(CALLERS)):
                assert status in (0, 1)  # it comes up in the caller, as it should
            else:
                assert status == 0, f"{where}: {run.child.said()}"
                bare = [line for line in run.lines() if line.get("bare")]
                assert not bare, f"{where}: {bare}"
            stage.judge(run, oracle)
