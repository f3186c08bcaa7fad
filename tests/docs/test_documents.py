"""What the documents name exists: files, verbs of make, versions."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from eventlog.version import VERSION

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
NAMED_PATH = re.compile(
    r"`((?:eventlog|engine|tools|bench|tests|decisions|\.ci)/[\w./-]*|[A-Z]+\.md)`"
)
MAKE = re.compile(r"\bmake ([a-z]+)\b")


def text_of(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def make_verbs() -> set[str]:
    return set(re.findall(r"^([a-z]+):.*## ", text_of("Makefile"), re.MULTILINE))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_files_that_documents_name_exist(name: str) -> None:
    missing = [
        path for path in NAMED_PATH.findall(text_of(name)) if not (REPOSITORY / path).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_the_verbs_of_make_that_documents_name_exist(name: str) -> None:
    code = re.findall(r"`[^`]*`|^ *make .*|^timeout .*", text_of(name), re.MULTILINE)
    verbs = {verb for piece in code for verb in MAKE.findall(piece)}
    assert verbs
    assert verbs <= make_verbs()


def test_contributing_explains_every_verb_of_make() -> None:
    assert make_verbs() - {"help"} <= set(MAKE.findall(text_of("CONTRIBUTING.md")))


def test_help_lists_every_verb_of_make() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make")
    done = subprocess.run(
        [make, "--no-print-directory", "help"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(MAKE.findall(done.stdout)) >= make_verbs()


def test_the_version_is_written_in_one_place() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))
    assert "version" in project["project"]["dynamic"]
    pattern = project["tool"]["hatch"]["version"]["pattern"]
    found = re.search(pattern, text_of(project["tool"]["hatch"]["version"]["path"]))
    assert found is not None
    assert found["version"] == VERSION


def test_the_changelog_knows_this_version() -> None:
    newest = re.search(r"^## (\S+)", text_of("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION


def test_every_decision_has_a_number_of_its_own_and_a_context() -> None:
    decisions = sorted((REPOSITORY / "decisions").glob("*.md"))
    numbers = [path.name[:4] for path in decisions]
    assert len(set(numbers)) == len(numbers)
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {path.name[:4]} "), path.name
        assert "Context:" in text, path.name
