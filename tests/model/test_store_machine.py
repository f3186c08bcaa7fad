"""Random operations of every kind on real stores, compared step by step with a plain model.

Two stores, each used by two handles of this process and by another process, which is killed now
and then. ``--model-steps N`` sets how many steps a run makes; a failure prints what repeats it, and
``--hypothesis-profile=explore`` also looks for a shorter way to it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    run_state_machine_as_test,
)

from tests.model.actors import Workers
from tests.model.noun_programs import LIVES
from tests.model.noun_rules import NounRules
from tests.model.process_rules import ProcessRules
from tests.model.reading_rules import ReadingRules
from tests.model.side import Side, actors, counts
from tests.model.whole_rules import WholeRules, lengths
from tests.model.writing_rules import WritingRules

STEPS = 5_000  # of a run, unless --model-steps says otherwise
STEPS_EACH = 50  # of one example


class StoreMachine(WritingRules, ReadingRules, NounRules, WholeRules, ProcessRules):
    """See the module."""

    @initialize(
        frequencies=st.tuples(*[st.sampled_from([1, 2, 25])] * 2),
        kept=st.tuples(*[st.sampled_from([None, 1, 5, 40])] * 2),
        lives=st.tuples(*[st.tuples(counts, st.sampled_from([*LIVES]), lengths)] * 2),
        who=st.lists(actors, min_size=1, max_size=3),
    )
    def open(
        self,
        frequencies: tuple[int, int],
        kept: tuple[int | None, int | None],
        lives: tuple[tuple[int, str, int], tuple[int, str, int]],
        who: list[str],
    ) -> None:
        """Each store has a past, so that what follows meets something."""
        self.folder = Path(tempfile.mkdtemp(prefix="turnlog-model-"))
        self.marks = 0
        self.sides = [
            Side(self.folder / str(number), self.workers, frequency, max_messages)
            for number, (frequency, max_messages) in enumerate(zip(frequencies, kept, strict=True))
        ]
        for side, (seed, theme, count) in enumerate(lives):
            self.life(side=side, actors=who, seed=seed, count=count, theme=theme)

    def teardown(self) -> None:
        if not hasattr(self, "sides"):
            return
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder)
            for side in self.sides:
                stack.callback(side.reopen, "here")
                stack.callback(side.reopen, "again")
                stack.callback(side.reopen, "there")
            if sys.exc_info()[0] is None:  # else a step failed, and that is what should be shown
                for side in self.sides:
                    side.close()


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


def test_stores_do_what_the_model_does(workers: Workers, request: pytest.FixtureRequest) -> None:
    steps = request.config.getoption("--model-steps", STEPS)
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    if settings.get_current_profile_name() == "explore":
        phases.append(Phase.shrink)  # takes minutes, since each attempt is a run on two stores
    StoreMachine.workers = workers
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=max(1, steps // STEPS_EACH),
            stateful_step_count=STEPS_EACH,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )
