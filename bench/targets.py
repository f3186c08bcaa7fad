"""What each measured ratio has to reach; README.md says how to read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound for one value.

    Attributes:
        target: Missing it fails the run.
        stretch: Where we want to be in the end; missing it fails nothing.
        at_least: True when larger is better, so that the bounds are lower ones.
    """

    target: float
    stretch: float | None
    at_least: bool

    def met_by(self, value: float) -> bool:
        """True when the value keeps the target; NaN never does."""
        return value >= self.target if self.at_least else value <= self.target


GOALS: Final[dict[str, Goal]] = {
    "durable_1000": Goal(0.5, 0.8, at_least=True),
    "pipelined": Goal(0.5, 0.7, at_least=True),
    "keyed": Goal(0.3, 0.5, at_least=True),
    "busy_loop": Goal(0.4, 0.7, at_least=True),
    "lone": Goal(0.75, 0.85, at_least=True),
    "sqlite_16": Goal(3.0, 5.0, at_least=True),
    "processes_8": Goal(0.3, 0.6, at_least=True),
    "gap_p999_ms": Goal(2.0, 1.0, at_least=False),
    "open_vs_bare": Goal(8.0, 3.0, at_least=False),
    "read_vs_loads": Goal(0.2, 0.3, at_least=True),
    "read_vs_loads_10k": Goal(0.1, 0.3, at_least=True),
    "bytes_flat": Goal(1.1, None, at_least=False),
    "variables_vs_plain": Goal(1.2, None, at_least=False),
    "store_vs_sqlite": Goal(0.55, 0.45, at_least=False),
    "vacuumed_vs_sqlite": Goal(0.40, None, at_least=False),
    "agents_vs_sqlite": Goal(0.35, 0.25, at_least=False),
    "image_20": Goal(0.05, None, at_least=False),
    "last20_hot": Goal(3.0, 2.0, at_least=False),
    "last20_cold": Goal(10.0, 5.0, at_least=False),
    "all_1500": Goal(2.0, 1.3, at_least=False),
    "catalog_by_user": Goal(5.0, 3.0, at_least=False),
    "catalog_newest": Goal(5.0, 3.0, at_least=False),
    "rebuild_vs_loads": Goal(0.1, 0.25, at_least=True),
    "path_first": Goal(5.0, 2.0, at_least=False),
    "path_last": Goal(5.0, 2.0, at_least=False),
    "path_last_vs_first": Goal(1.5, None, at_least=False),
    "alternating_2": Goal(2.0, None, at_least=False),
    "alternating_16": Goal(16.0, None, at_least=False),
    "alternating_bytes": Goal(1.2, None, at_least=False),
    "branches": Goal(1.0, 0.5, at_least=False),
    "window_16k": Goal(1.0, 0.5, at_least=False),
}


@dataclass(frozen=True, slots=True)
class Result:
    """One measured value beside its goal."""

    name: str
    value: float

    @property
    def goal(self) -> Goal:
        """The goal of that name."""
        return GOALS[self.name]

    @property
    def ok(self) -> bool:
        """True when the target is kept."""
        return self.goal.met_by(self.value)

    def as_json(self) -> dict[str, object]:
        """Plain data: ``name``, ``value``, ``target``, ``stretch``, ``ok``."""
        return {
            "name": self.name,
            "value": self.value,
            "target": self.goal.target,
            "stretch": self.goal.stretch,
            "ok": self.ok,
        }
