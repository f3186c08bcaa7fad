from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench.__main__ import BENCHES, as_json, as_table, chosen, main, parse
from bench.harness import (
    RefusedError,
    Report,
    Settings,
    checked_store_directory,
    comparison,
    file_system_of,
    fresh_directory,
    interleave,
    paired_ratio,
    percentile,
    significant,
)
from bench.targets import GOALS, Result

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
/dev/vdb /run/disk xfs rw 0 0
/dev/vdc /with\\040blank ext4 rw 0 0
overlay /twice overlay rw 0 0
tmpfs /twice tmpfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        pytest.param("/", "ext4", id="root"),
        pytest.param("/home/a", "ext4", id="below the root"),
        pytest.param("/run", "tmpfs", id="a mount point itself"),
        pytest.param("/run/a/b", "tmpfs", id="below it"),
        pytest.param("/runner", "ext4", id="a longer name is not below it"),
        pytest.param("/run/disk/a", "xfs", id="the deepest mount wins"),
        pytest.param("/with blank/a", "ext4", id="an escaped mount point"),
        pytest.param("/twice", "tmpfs", id="the last mount hides the first"),
    ],
)
def test_file_system_of(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_no_mount_covers_the_path() -> None:
    assert file_system_of(Path("/home"), "tmpfs /run tmpfs rw 0 0\n") is None


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no directory"):
        checked_store_directory(tmp_path / "missing", allow_memory=False)


def test_memory_is_refused_unless_allowed() -> None:
    memory = Path("/dev/shm")
    mounts = Path("/proc/mounts")
    if not mounts.exists() or file_system_of(memory, mounts.read_text()) != "tmpfs":
        pytest.skip(f"{memory} is no tmpfs here")
    with pytest.raises(RefusedError, match="--allow-tmpfs"):
        checked_store_directory(memory, allow_memory=False)
    assert checked_store_directory(memory, allow_memory=True) == memory


def test_sides_run_in_turn() -> None:
    seen: list[str] = []

    def side(name: str) -> int:
        seen.append(name)
        return len(seen)

    values = interleave({"a": lambda: side("a"), "b": lambda: side("b")}, 3)
    assert seen == ["a", "b"] * 3
    assert values == {"a": [1, 3, 5], "b": [2, 4, 6]}


def test_a_ratio_is_the_median_of_pairs() -> None:
    # The slow second round hits both sides; the third is an outlier of one side only.
    assert paired_ratio([50.0, 5.0, 1.0], [100.0, 10.0, 100.0]) == 0.5


def test_a_comparison_keeps_every_round_of_both_sides() -> None:
    figure = comparison([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], unit="appends/s")
    assert figure == {
        "unit": "appends/s",
        "ours": [1.0, 2.0, 3.0],
        "yardstick": [2.0, 2.0, 2.0],
        "ours_median": 2.0,
        "yardstick_median": 2.0,
        "round_ratios": [0.5, 1.0, 1.5],
        "ratio": 1.0,
    }


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (0.999, 100.0), (1.0, 100.0)],
)
def test_percentile_is_the_nearest_rank(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], share) == value


def test_significant_digits() -> None:
    assert significant(123456.0) == 123500.0
    assert significant(0.0123456) == 0.01235
    assert significant(0.0) == 0.0


def test_a_fresh_directory_is_gone_afterwards(tmp_path: Path) -> None:
    with fresh_directory(Settings(quick=True, store=tmp_path)) as directory:
        (directory / "file").write_text("x")
        assert directory.parent == tmp_path
    assert not directory.exists()


@pytest.mark.parametrize("name", sorted(GOALS))
def test_goals_are_inclusive_and_one_past_fails(name: str) -> None:
    goal = GOALS[name]
    worse = -math.inf if goal.at_least else math.inf
    assert Result(name, goal.target).ok
    assert not Result(name, math.nextafter(goal.target, worse)).ok
    assert not Result(name, math.nan).ok


@pytest.mark.parametrize("name", sorted(name for name, goal in GOALS.items() if goal.stretch))
def test_the_stretch_is_at_least_as_strict(name: str) -> None:
    goal = GOALS[name]
    assert goal.stretch is not None
    assert Result(name, goal.stretch).ok


def test_only_keeps_figures_of_that_name() -> None:
    everything = Settings(quick=True, store=Path())
    some = Settings(quick=True, store=Path(), only=frozenset({"lone"}))
    assert everything.wants("lone")
    assert everything.wants("keyed")
    assert some.wants("lone")
    assert not some.wants("keyed")


def test_an_unknown_figure_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse(["append", "--only", "gap_p999_ms"])
    assert exit_info.value.code == 2
    assert "append has no figure gap_p999_ms" in capsys.readouterr().err


def test_all_stands_for_every_benchmark() -> None:
    assert chosen("all") == list(BENCHES.values())
    assert chosen("open") == [BENCHES["open"]]
    assert parse(["all", "--only", "gap_p999_ms"]).only == ["gap_p999_ms"]


def test_the_report_as_json_and_as_a_table() -> None:
    report = Report(
        figures={"lone": {"unit": "appends/s", "ours": [1234.5, 1200.0]}},
        results=[Result("lone", 0.9), Result("gap_p999_ms", 2.5)],
    )
    assert not report.ok
    data = json.loads(json.dumps(as_json({"cores": 2}, report)))
    assert list(data) == ["figures", "machine", "versions", "targets"]
    assert data["machine"] == {"cores": 2}
    assert "lmdb" in data["versions"]
    assert data["targets"] == [
        {"name": "lone", "value": 0.9, "target": 0.75, "stretch": 0.85, "ok": True},
        {"name": "gap_p999_ms", "value": 2.5, "target": 2.0, "stretch": 1.0, "ok": False},
    ]
    table = as_table(report)
    assert "1,234.5  1,200" in table
    assert table.count("MISSED") == 1


def test_a_run_that_can_give_no_honest_figure_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["size", "--store", str(tmp_path / "missing")]) == 2
    assert "no directory" in capsys.readouterr().err


def test_one_figure_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["append", "--only", "lone", "--quick", "--json", "--allow-tmpfs"]
    status = main([*arguments, "--store", str(tmp_path)])
    data = json.loads(capsys.readouterr().out)
    (target,) = data["targets"]
    assert target["name"] == "lone"
    assert status == (0 if target["ok"] else 1)
    figure = data["figures"]["lone"]
    assert len(figure["ours"]) == len(figure["yardstick"]) == len(figure["round_ratios"]) > 1
    assert data["machine"]["cores"] >= 1
    assert list(tmp_path.iterdir()) == []
