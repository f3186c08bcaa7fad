"""``python -m bench NAME``: run one benchmark and print its report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import (
    bench_append,
    bench_branches,
    bench_catalog,
    bench_disk,
    bench_history,
    bench_loop,
    bench_media,
    bench_open,
    bench_rebuild,
    bench_replay,
    bench_size,
    bench_variables,
    bench_window,
)
from bench.harness import (
    RefusedError,
    Report,
    Settings,
    checked_store_directory,
    machine,
    versions,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """One benchmark: what runs it, and the names of its figures."""

    run: Callable[[Settings, Report], None]
    figures: tuple[str, ...]


def _size(settings: Settings, report: Report) -> None:
    bench_disk.run(settings, report)
    bench_size.run(settings, report)
    bench_variables.run(settings, report)


BENCHES: Final[Mapping[str, Bench]] = {
    "append": Bench(bench_append.run, bench_append.FIGURES),
    "branches": Bench(bench_branches.run, bench_branches.FIGURES),
    "catalog": Bench(bench_catalog.run, bench_catalog.FIGURES),
    "history": Bench(bench_history.run, bench_history.FIGURES),
    "loop": Bench(bench_loop.run, bench_loop.FIGURES),
    "media": Bench(bench_media.run, bench_media.FIGURES),
    "open": Bench(bench_open.run, bench_open.FIGURES),
    "rebuild": Bench(bench_rebuild.run, bench_rebuild.FIGURES),
    "replay": Bench(bench_replay.run, bench_replay.FIGURES),
    "size": Bench(_size, (*bench_disk.FIGURES, *bench_size.FIGURES, *bench_variables.FIGURES)),
    "window": Bench(bench_window.run, bench_window.FIGURES),
}
ALL: Final = "all"

_EXIT_MISSED: Final = 1
_EXIT_REFUSED: Final = 2


def chosen(name: str) -> list[Bench]:
    """The benchmarks that a name on the command line stands for."""
    return list(BENCHES.values()) if name == ALL else [BENCHES[name]]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure the project against a yardstick, both in one run.",
        epilog="Exit status: 0 every target kept, 1 one missed, 2 no honest figure possible here.",
    )
    parser.add_argument("name", choices=[*BENCHES, ALL], help="a benchmark, or all in turn")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="shorter rounds, under 50 s")
    parser.add_argument(
        "--store",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="existing directory for the temporary stores of both sides (default: this one)",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="DIR",
        help="folder of real conversations for what is written and read (default: made ones)",
    )
    parser.add_argument(
        "--allow-tmpfs", action="store_true", help="measure in memory, where fsync is free"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FIGURE",
        help="take only this figure; may be repeated",
    )
    options = parser.parse_args(arguments)
    figures = [figure for bench in chosen(options.name) for figure in bench.figures]
    if unknown := sorted(set(options.only) - set(figures)):
        parser.error(f"{options.name} has no figure {unknown[0]}; it has {', '.join(figures)}")
    return options


def as_json(where: Mapping[str, object], report: Report) -> dict[str, object]:
    """The report as plain data; ``where`` describes the machine."""
    return {
        "figures": report.figures,
        "machine": dict(where),
        "versions": versions(),
        "targets": [result.as_json() for result in report.results],
    }


def as_table(report: Report) -> str:
    """The report for people."""
    lines: list[str] = []
    for name, figure in report.figures.items():
        lines.append(name)
        if isinstance(figure, dict):
            lines.extend(f"  {key:<24} {_shown(value)}" for key, value in figure.items())
        else:
            lines.append(f"  {_shown(figure)}")
    lines.append("")
    lines.append(f"{'target':<20} {'value':>9} {'':>2} {'target':>7} {'stretch':>8}")
    for result in report.results:
        goal = result.goal
        sign = "≥" if goal.at_least else "≤"
        stretch = "" if goal.stretch is None else f"{goal.stretch:g}"
        verdict = "ok" if result.ok else "MISSED"
        lines.append(
            f"{result.name:<20} {result.value:>9.4g} {sign:>2} {goal.target:>7g} "
            f"{stretch:>8}  {verdict}"
        )
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "  ".join(_shown(item) for item in value)
    return f"{value:,g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark.

    Returns:
        The exit status: 0 every target kept, 1 one missed, 2 no honest figure possible here.
    """
    options = parse(arguments)
    report = Report()
    try:
        store = checked_store_directory(options.store, allow_memory=options.allow_tmpfs)
        settings = Settings(
            quick=options.quick,
            store=store,
            only=frozenset(options.only),
            corpus=options.corpus,
        )
        where = machine(settings)
        for bench in chosen(options.name):
            if any(settings.wants(figure) for figure in bench.figures):
                bench.run(settings, report)
    except RefusedError as error:
        print(f"bench: {error}", file=sys.stderr)
        return _EXIT_REFUSED
    if options.json:
        print(json.dumps(as_json(where, report), ensure_ascii=False))
    else:
        print(as_table(report))
    return 0 if report.ok else _EXIT_MISSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
