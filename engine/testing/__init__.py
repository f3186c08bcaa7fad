"""What a store must do, to be tried on any store object: rules one by one, and a model machine.

``check(Store.open)`` tries every rule on a fresh store each and gives a report; with pytest::

    @pytest.mark.parametrize("rule", RULES, ids=str)
    def test_rule(rule, tmp_path):
        rule(MyStore.open, folder=tmp_path)

``machine(MyStore.open)`` is a Hypothesis state machine: random operations, compared with a model
in plain Python; only that needs hypothesis. What is tested is whatever offers ``StoreLike``: a
wrapper, a facade, another implementation. It raises the errors of ``engine``, at the call or by its
ack, and is opened, and opened again, by a function of a path. What is no message may take sequences
and positions, too: changes of state, checkouts and forks are events of other kinds.

A rule asks for what it says and for nothing that another rule says, so that those which are broken
name the fault: what cannot be stored must be refused by one rule, and leave no trace by another.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.testing.appends import APPEND_RULES
from engine.testing.protocol import (
    AckLike,
    BranchLike,
    EventLike,
    InfoLike,
    Opener,
    PageLike,
    SessionLike,
    StoreLike,
    SubscriptionLike,
    TenantLike,
)
from engine.testing.rule import Broken, Report, Rule, Subject, check_rules
from engine.testing.sessions import SESSION_RULES
from engine.testing.trees import TREE_RULES
from eventlog.errors import UsageError

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine

RULES: Final[tuple[Rule, ...]] = (*APPEND_RULES, *TREE_RULES, *SESSION_RULES)


def check(opener: Opener, rules: Iterable[Rule] = RULES, *, folder: Path | None = None) -> Report:
    """Try rules on a fresh store each, and tell which hold.

    Args:
        opener: Opens the store at a path: a new one, or the one that was closed there.
        rules: Which.
        folder: Where stores are made, in temporary folders that are removed again; None for the
            usual place.
    """
    return check_rules(opener, rules, folder)


def machine(opener: Opener, *, folder: Path | None = None) -> type[RuleBasedStateMachine]:
    """A Hypothesis state machine that compares stores with a model, step by step.

    Run it with ``hypothesis.stateful.run_state_machine_as_test``, or as a test case of unittest:
    ``TestMine = machine(MyStore.open).TestCase``.

    Args:
        opener: See ``check``.
        folder: See ``check``.

    Raises:
        UsageError: Hypothesis is not installed.
    """
    try:
        import hypothesis
    except ImportError as error:
        raise UsageError(
            "the model machine needs hypothesis, which is not installed",
            hint="Run pip install hypothesis; the rules work without it.",
        ) from error
    assert hypothesis is not None
    from engine.testing.stateful import make_machine

    return make_machine(opener, folder)


__all__ = [
    "RULES",
    "AckLike",
    "BranchLike",
    "Broken",
    "EventLike",
    "InfoLike",
    "Opener",
    "PageLike",
    "Report",
    "Rule",
    "SessionLike",
    "StoreLike",
    "Subject",
    "SubscriptionLike",
    "TenantLike",
    "check",
    "machine",
]
