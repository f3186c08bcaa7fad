"""Every file of conversation trees, by itself: in, out, in again and out again, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from tests.cli.raw_trees import SOURCES, unpacked
from turnlog.exits import ExitCode

SAMPLED = 4  # files of a source without the slow ones: the smallest, the largest, two between


def sample(files: list[Path]) -> list[Path]:
    """Some of the files, evenly by their sizes."""
    by_size = sorted(files, key=lambda file: (file.stat().st_size, file))
    step = max(1, (len(by_size) - 1) // (SAMPLED - 1))
    return sorted({*by_size[::step], by_size[-1]})


@pytest.mark.corpus
@pytest.mark.parametrize(
    "is_whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sampled", "all"]
)
@pytest.mark.parametrize("source", SOURCES)
def test_a_file_goes_round(
    turnlog: Any, corpus: Path, tmp_path: Path, source: str, is_whole: bool
) -> None:
    files = unpacked(corpus, source, tmp_path / "raw")
    trees_of, _ = SOURCES[source]
    for number, file in enumerate(files if is_whole else sample(files)):
        trees = list(trees_of(file))
        folder = tmp_path / str(number)
        folder.mkdir()
        done = turnlog("import", folder / "a", file, "--json")
        result = json.loads(done.out)
        assert result["damaged"] == [], file
        assert done.code == (ExitCode.DAMAGED_INPUT if result["mended"] else 0), file
        assert result["sessions"] == len(trees) > 0, file
        assert turnlog("export", folder / "a", "-o", folder / "first.jsonl").code == 0
        again = json.loads(turnlog("import", folder / "b", folder / "first.jsonl", "--json").out)
        assert (again["sessions"], again["events"]) == (result["sessions"], result["events"]), file
        assert (again["damaged"], again["mended"]) == ([], []), file
        assert turnlog("export", folder / "b", "-o", folder / "second.jsonl").code == 0
        first = (folder / "first.jsonl").read_bytes()
        assert first == (folder / "second.jsonl").read_bytes(), file
        assert first.count(b"\n") >= result["events"] > 0, file
        with Store.open(folder / "b", create=False) as store:
            assert store.check().ok, file
