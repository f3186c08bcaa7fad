"""What only a process of its own can show: pipes that close, Ctrl-C, being killed."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from engine import Store
from turnlog.exits import ExitCode

from .conftest import acting, fill_with_everything, say

DEADLINE_S = 60


@pytest.mark.parametrize("verb", ["export", "replay", "show"])
def test_a_reader_that_goes_away_is_no_news(command: list[str], tmp_path: Path, verb: str) -> None:
    path = tmp_path / "store"
    with Store.open(path) as store:
        body = {"role": "user", "content": "x" * 1000}
        store.session("s").append_many([body] * 300).result()
    line = [*command, verb, str(path), *(["s"] if verb != "export" else [])]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(DEADLINE_S) == ExitCode.PIPE_CLOSED


@pytest.mark.parametrize("options", [[], ["--session", "call-2"]], ids=["store", "session"])
def test_tail_follows_until_ctrl_c(command: list[str], calls: Path, options: list[str]) -> None:
    """It prints what is committed by others as it comes, and ends without a word."""
    process = subprocess.Popen(
        [*command, "tail", str(calls), "-f", "-n", "1", "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["sequence"] >= 0
    with Store.open(calls, create=False) as store:
        say(store.session("call-2"), 1, "user", "one more")
    assert json.loads(process.stdout.readline())["body"]["content"] == "one more"
    process.send_signal(signal.SIGINT)
    rest, complaints = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, rest, complaints) == (ExitCode.INTERRUPTED, b"", b"")


@pytest.mark.parametrize("options", [[], ["--session", "call-2"]], ids=["store", "session"])
def test_tail_ends_when_its_reader_goes_away(
    command: list[str], calls: Path, options: list[str]
) -> None:
    """Also while nothing is committed: it lived on until the next event."""
    process = subprocess.Popen(
        [*command, "tail", str(calls), "-f", "-n", "1", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(DEADLINE_S) == ExitCode.PIPE_CLOSED
    assert process.stderr.read() == b""
    process.stderr.close()


def test_ctrl_c_while_modules_are_loaded_is_quiet(repository: Path, tmp_path: Path) -> None:
    """The command's first work is loading; an interrupt there left a traceback."""
    (tmp_path / "turnlog_interrupted.py").write_text(
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'lmdb':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "import runpy\n"
        "runpy.run_module('turnlog', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "turnlog_interrupted.py"), "stats", "x"],
        env=dict(os.environ, PYTHONPATH=f"{repository}{os.pathsep}{repository / 'tools'}"),
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, b"", b"")


@pytest.mark.parametrize("verb", ["stats", "import", "export", "check"])
@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)], ids=["output", "error", "all"])
def test_closed_standard_streams_cost_nothing(
    command: list[str], calls: Path, tmp_path: Path, verb: str, closed: tuple[int, ...]
) -> None:
    """Without them the store's own files got their numbers, and their lack was a fault of ours."""
    file = tmp_path / "more.jsonl"
    file.write_text('{"session":"more","sequence":0,"kind":"note","body":1}\n{}\n')
    line = [*command, verb, str(calls), *([str(file)] if verb == "import" else [])]
    redirections = " ".join(f"{number}>&-" for number in closed)
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", *line],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == (ExitCode.DAMAGED_INPUT if verb == "import" else ExitCode.OK)
    if 2 not in closed:
        assert b"internal" not in done.stderr


def test_an_import_that_is_killed_goes_on(command: list[str], turnlog: Any, tmp_path: Path) -> None:
    """Nothing is lost and nothing doubled, wherever the first import was ended."""
    file = tmp_path / "long.jsonl"
    with file.open("w") as stream:
        for session in range(40):
            for number in range(500):
                line: dict[str, Any] = {"session": f"s{session:02d}", "sequence": number}
                if number:
                    line["parent"] = number - 1
                line |= {"kind": "message", "recorded_us": number + 1, "body": {"n": number}}
                stream.write(json.dumps(line, separators=(",", ":")) + "\n")
    path = tmp_path / "store"
    with Store.open(path) as store, store.subscribe(after=0) as arriving:
        process = subprocess.Popen([*command, "import", str(path), str(file)])
        next(iter(arriving))
        process.kill()
        process.wait(DEADLINE_S)
    outcome = turnlog("import", path, file, "--json")
    assert outcome.code == 0
    result = json.loads(outcome.out)
    assert result["events"] + result["skipped_events"] == 20_000
    assert turnlog("export", path).out_bytes == file.read_bytes()


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/0"])
def test_an_export_can_be_piped_into_an_import(
    command: list[str], turnlog: Any, calls: Path, tmp_path: Path, name: str
) -> None:
    """It was refused as a file that does not exist, or that is none."""
    copy = tmp_path / "copy"
    export = subprocess.Popen([*command, "export", str(calls)], stdout=subprocess.PIPE)
    done = subprocess.run(
        [*command, "import", str(copy), name],
        stdin=export.stdout,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert export.stdout is not None
    export.stdout.close()
    assert export.wait(DEADLINE_S) == ExitCode.OK
    assert (done.returncode, done.stderr) == (ExitCode.OK, b"")
    assert turnlog("export", copy).out_bytes == turnlog("export", calls).out_bytes


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_what_is_wrong_in_a_pipe_is_named_by_its_line(
    command: list[str], tmp_path: Path, name: str
) -> None:
    lines = b'{"session":"a","sequence":0,"kind":"note","body":1}\ngarbage\n'
    done = subprocess.run(
        [*command, "import", str(tmp_path / "store"), name],
        input=lines,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == ExitCode.DAMAGED_INPUT
    shown = "standard input" if name == "-" else name
    assert done.stderr.startswith(f"turnlog: {shown}:2: ".encode())
    assert done.stdout.startswith(b"imported 1 event of 1 session;")


def test_a_store_that_is_being_written_can_be_exported(command: list[str], calls: Path) -> None:
    with Store.open(calls) as store:
        say(store.session("call-3"), 1, "user", "Still talking")
        done = subprocess.run(
            [*command, "export", str(calls)], capture_output=True, timeout=DEADLINE_S, check=True
        )
    assert len(done.stdout.splitlines()) == 6
    assert b"Still talking" in done.stdout


def test_an_export_ends_at_one_position_while_calls_go_on(
    command: list[str], tmp_path: Path
) -> None:
    """Each session was read up to its end at another moment, new sessions included or not."""
    path = tmp_path / "store"
    stop = Event()
    with Store.open(path) as store:

        def talk(number: int) -> None:
            name = f"new-{number:06d}" if number % 3 == 0 else f"call-{number % 40:02d}"
            store.session(name).append_event("note", {"n": number}).result()

        def talk_on() -> None:
            number = 2_000
            while not stop.is_set():
                talk(number)
                number += 1

        for number in range(2_000):
            talk(number)
        talker = Thread(target=talk_on)
        talker.start()
        try:
            done = subprocess.run(
                [*command, "export", str(path)],
                capture_output=True,
                timeout=DEADLINE_S,
                check=True,
            )
        finally:
            stop.set()
            talker.join()
    numbers = [json.loads(line)["body"]["n"] for line in done.stdout.splitlines()]
    assert len(numbers) >= 2_000
    assert sorted(numbers) == list(range(len(numbers)))


def on_a_terminal(line: list[str], environment: dict[str, str]) -> bytes:
    """What a command writes on a terminal of its own, both of its streams."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        line, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | environment
    )
    os.close(theirs)
    written = bytearray()
    with suppress(OSError):  # how Linux tells that the other side is closed
        while piece := os.read(ours, 65_536):
            written += piece
    os.close(ours)
    assert process.wait(DEADLINE_S) == ExitCode.OK
    return bytes(written)


@pytest.mark.parametrize("verb", ["show", "replay", "sessions", "tail"])
@pytest.mark.parametrize(
    ("environment", "styles"),
    [
        pytest.param({"TERM": "xterm"}, True, id="utf-8"),
        pytest.param({"TERM": "xterm", "PYTHONIOENCODING": "latin-1"}, True, id="latin-1"),
        pytest.param({"TERM": "xterm", "COLUMNS": "20", "NO_COLOR": "1"}, False, id="narrow"),
        pytest.param({"TERM": "dumb", "PYTHONIOENCODING": "ascii"}, False, id="dumb-ascii"),
    ],
)
def test_nothing_stored_acts_on_a_real_terminal(
    command: list[str], tmp_path: Path, verb: str, environment: dict[str, str], styles: bool
) -> None:
    path = tmp_path / "everything"
    with Store.open(path) as store:
        fill_with_everything(store)
    session = ["é/../\x1b[31m"] if verb in ("show", "replay") else []
    for options in ([], ["--json"]):
        line = [*command, verb, str(path), *session, *options]
        written = on_a_terminal(line, environment).replace(b"\r\n", b"\n")
        if styles:
            written = re.sub(rb"\x1b\[(0|[12]|3[0-7])m", b"", written)
        text = written.decode(environment.get("PYTHONIOENCODING", "utf-8"))
        assert r"\x1b[31m" in text or r"\u001b[31m" in text
        assert acting(text) == []


def test_the_installed_command_is_that_of_the_module(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["turnlog"].partition(":")
    assert getattr(import_module(module), name) is import_module("turnlog.__main__").main


def test_the_module_runs(command: list[str], calls: Path, repository: Path) -> None:
    environment = dict(os.environ, PYTHONPATH=f"{repository}{os.pathsep}{repository / 'tools'}")
    done = subprocess.run(
        [command[0], "-m", "turnlog", "check", str(calls)],
        capture_output=True,
        env=environment,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"no findings")
