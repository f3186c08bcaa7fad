"""README.md is true: its snippets run, its tables are those of the program."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from engine import Ack, Blobs, Session, Store
from engine.kinds import CONTROLS, PUBLIC
from turnlog.cli import app
from turnlog.exits import MEANINGS

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = [match.groups() for match in FENCE.finditer(README)]
ROW = re.compile(r"^\| (\S+) \| (.+) \|$", re.MULTILINE)
ROW_OF_KINDS = re.compile(r"^\| ([^|]+) \|", re.MULTILINE)
TABLE_ROWS = [match.groups() for match in ROW.finditer(README.partition("## The command line")[2])]
FIRST_EXAMPLE_LINES_MAX = 15

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def snippets(language: str) -> list[object]:
    """The snippets in a language, named by their first words."""
    found = [text for name, text in SNIPPETS if name == language]
    return [
        pytest.param(text, id=f"{number}-{text.split(maxsplit=1)[0]}")
        for number, text in enumerate(found)
    ]


@pytest.fixture
def run(tmp_path: Path, checked_folder: Path) -> Run:
    """Runs a program in a folder of its own, where ``turnlog`` is the one of this source tree."""
    command = tmp_path / "bin" / "turnlog"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m turnlog "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tools'}",
        "PYTHONWARNINGS": "error",
    }

    def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments,
            cwd=checked_folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run_program


@pytest.mark.parametrize("snippet", snippets("python"))
def test_python_snippets_run_and_run_again(run: Run, snippet: str) -> None:
    for _ in range(2):
        done = run(sys.executable, "-c", snippet)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


@pytest.mark.parametrize("snippet", snippets("sh"))
def test_shell_snippets_run(run: Run, snippet: str) -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("there is no bash")
    done = run(shell, "-euo", "pipefail", "-c", snippet)
    assert done.returncode == 0, done.stderr


def test_the_first_example_is_short_and_says_what_it_does(run: Run) -> None:
    first = next(text for name, text in SNIPPETS if name == "python")
    lines = [line for line in first.splitlines() if line.strip()]
    assert len(lines) <= FIRST_EXAMPLE_LINES_MAX
    for _ in range(2):  # it is safe to run again
        assert run(sys.executable, "-c", first).stdout.splitlines() == [
            "user Where is my order?",
            "assistant It arrives tomorrow.",
            "1 call-42 0 message",
            "2 call-42 1 message",
        ]


def test_the_verbs_are_those_of_the_program() -> None:
    command = typer.main.get_command(app)
    verbs = [cell.strip("`") for cell, _ in TABLE_ROWS if cell.startswith("`")]
    assert verbs == list(getattr(command, "commands", {}))


def test_the_interface_is_that_of_the_program() -> None:
    table = README.partition("## The interface")[2].partition("\n## ")[0]
    calls = set(re.findall(r"(?:\w+)?\.(\w+)\(", table))
    assert len(calls) > 20
    classes = (Store, Session, Ack, Blobs)
    assert [name for name in calls if not any(hasattr(each, name) for each in classes)] == []
    parameters = inspect.signature(Session.append).parameters
    marks = re.findall(r"`(\w+)=`", table)
    assert len(marks) > 5 and set(marks) <= set(parameters)


def test_the_exit_codes_are_those_of_the_program() -> None:
    codes = {int(cell): text for cell, text in TABLE_ROWS if cell.isdigit()}
    assert codes == {code.value: text for code, text in MEANINGS.items()}


def test_the_kinds_of_events_are_those_of_the_program() -> None:
    table = README.partition("| kind of event |")[2].partition("\n\n")[0]
    named = {kind for row in ROW_OF_KINDS.findall(table) for kind in re.findall(r"`(\w+)`", row)}
    assert named == (set(PUBLIC) | set(CONTROLS)) - {"options"}  # which stands for nothing read
