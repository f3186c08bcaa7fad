"""Every verb has help, documented exit codes, and errors of one line."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from engine import Store
from eventlog import errors
from turnlog.cli import app
from turnlog.exits import MEANINGS, ExitCode, exit_code_of

from .conftest import acting

OF_A_SESSION = ("replay", "show", "branches")
VERBS = tuple(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
READING = ("export", "replay", "show", "branches", "sessions", "tail", "stats", "check")
CREATING = ("import", "simulate")
KEEPING = (
    *("rebuild", "erase", "redact", "hold", "retention", "compact", "vacuum"),
    *("backup", "restore", "upgrade", "configure"),
)
WITH_JSON = (
    *("import", "replay", "show", "branches", "sessions", "tail", "stats", "check", "simulate"),
    *KEEPING,
)


def arguments(verb: str, store: Path) -> list[object]:
    if verb in OF_A_SESSION:
        return [verb, store, "s"]
    if verb == "erase":
        return [verb, store, "s", "--yes"]
    if verb == "redact":
        return [verb, store, "s", 0, 0, "--yes"]
    if verb == "hold":
        return [verb, store, "s", "--reason", "case"]
    if verb == "retention":
        return [verb, store, "--max-entries", 9, "--yes"]
    if verb == "compact":
        return [verb, store, "s", "--summary", "so far"]
    if verb in ("backup", "restore"):
        return [verb, store, store.parent.parent / "made"]
    return [verb, store, *(["--yes"] if verb in ("vacuum", "upgrade") else [])]


def test_the_verbs_of_this_release() -> None:
    assert set(VERBS) == {*READING, *KEEPING, *CREATING}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(turnlog: Any, verb: str) -> None:
    outcome = turnlog(verb, "--help")
    assert outcome.code == 0
    first = "BACKUP" if verb == "restore" else "STORE"
    assert f"Usage: turnlog {verb} [OPTIONS] {first}" in outcome.out
    assert re.search(rf"Example:\n    turnlog {verb} .*calls.turnlog", outcome.out)
    assert ("--json" in outcome.out) == (verb in WITH_JSON)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_readme(repository: Path, verb: str) -> None:
    readme = (repository / "README.md").read_text()
    assert f"`{verb}`" in readme or f"turnlog {verb}" in readme


@pytest.mark.parametrize("code", ExitCode)
def test_every_exit_code_is_documented(turnlog: Any, code: ExitCode) -> None:
    assert f"{code.value:>3}  {MEANINGS[code]}" in turnlog("--help").out


def subclasses(kind: type[errors.TurnlogError]) -> Iterator[type[errors.TurnlogError]]:
    for each in kind.__subclasses__():
        if each.__module__ == "eventlog.errors":
            yield each
            yield from subclasses(each)


@pytest.mark.parametrize("kind", sorted(subclasses(errors.TurnlogError), key=lambda k: k.__name__))
def test_every_error_of_the_library_has_an_exit_code(kind: type[errors.TurnlogError]) -> None:
    assert exit_code_of(kind.__new__(kind)) not in (ExitCode.OK, ExitCode.INTERNAL)


def test_version(turnlog: Any) -> None:
    outcome = turnlog("--version")
    assert outcome.code == 0
    assert outcome.out.startswith("turnlog ")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param([], id="nothing"),
        pytest.param(["fly"], id="unknown-verb"),
        pytest.param(["\x1b[31mfly\n"], id="hostile-verb"),
        pytest.param(["show"], id="no-store"),
        pytest.param(["show", "s"], id="no-session"),
        pytest.param(["show", "s", "x", "y"], id="too-much"),
        pytest.param(["show", "s", "x", "--limit", "-1"], id="negative"),
        pytest.param(["show", "s", "x", "--limit", "\x1b"], id="hostile-number"),
        pytest.param(["import", "s", "missing\x1b[2J.jsonl"], id="no-such-file"),
        pytest.param(["tail", "--fast", "s"], id="unknown-option"),
        pytest.param(["simulate", "s", "--calls", "0"], id="no-calls"),
        pytest.param(["retention", "s"], id="no-rule"),
        pytest.param(["retention", "s", "--max-age", "90\x1b[2J"], id="hostile-span"),
        pytest.param(["retention", "s", "--max-age", "1.5d"], id="broken-span"),
        pytest.param(["retention", "s", "--max-age", "9999999d"], id="endless-span"),
        pytest.param(["retention", "s", "--max-entries", "0"], id="no-entries"),
        pytest.param(["retention", "s", "--max-entries", "1", "--kind", ""], id="no-kind"),
        pytest.param(["erase", "s", "--yes"], id="nothing-to-erase"),
        pytest.param(["erase", "s", "x", "--user", "u", "--yes"], id="two-things-to-erase"),
        pytest.param(["replay", "s", "x", "--speed", "-1"], id="back-in-time"),
        pytest.param(["replay", "s", "x", "--speed", "nan"], id="no-speed"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_a_hint(
    turnlog: Any, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = turnlog(*line)
    assert outcome.code == ExitCode.USAGE
    assert outcome.out == ""
    first, second = outcome.err.removesuffix("\n").split("\n")
    assert first.startswith("turnlog: ")
    assert second.startswith("  hint: ")
    assert outcome.err.replace("\n", "").isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", READING)
def test_reading_verbs_never_create_a_store(turnlog: Any, verb: str, tmp_path: Path) -> None:
    outcome = turnlog(*arguments(verb, tmp_path / "none"))
    assert outcome.code == ExitCode.NOT_A_STORE
    assert outcome.err.startswith("turnlog: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", READING)
def test_reading_verbs_leave_a_store_as_it_was(turnlog: Any, verb: str, calls: Path) -> None:
    before = (calls / "data.mdb").read_bytes()
    outcome = turnlog(*arguments(verb, calls)[:2], *(["call-1"] if verb in OF_A_SESSION else []))
    assert outcome.code == 0
    assert (calls / "data.mdb").read_bytes() == before


def no_store(kind: str, folder: Path) -> Path:
    """A path at which something else is than a store."""
    path = folder / ("damaged" if kind == "no-marker" else "odd\x1b[2J")
    if kind == "file":
        path.write_text("mine")
    elif kind == "link":
        path.symlink_to(folder / "gone")
    elif kind == "nothing-in-a-file":
        path.write_text("mine")
        path = path / "store"
    elif kind != "nothing":
        path.mkdir()
        if kind == "other-things":
            (path / "note\x1b[31m.txt").write_text("mine")
        elif kind == "no-marker":
            (path / "data.mdb").write_text("mine")
        elif kind == "stores-inside":
            Store.open(path / "calls").close()
        elif kind == "a-store's-file":
            Store.open(path / "calls").close()
            path = path / "calls" / "data.mdb"
    return path


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("kind", "found", "hint"),
    [
        pytest.param("nothing", "there is nothing at", "turnlog simulate", id="nothing"),
        pytest.param("empty", "is an empty folder", "turnlog simulate", id="empty"),
        pytest.param("nothing-in-a-file", "file", "path", id="nothing-in-a-file"),
        pytest.param("file", "is a file, and a store is a folder", "turnlog import", id="file"),
        pytest.param("link", "is a link to", "Mend the link", id="link"),
        pytest.param(
            "other-things", r"with other things in it ('note\x1b[31m.txt')", "Check", id="other"
        ),
        pytest.param("no-marker", "no turnlog.json", "from a copy", id="no-marker"),
        pytest.param("stores-inside", "with 1 store in it", "calls", id="stores-inside"),
        pytest.param("a-store's-file", "is a file", "the store's folder", id="a-store's-file"),
    ],
)
def test_what_is_no_store_is_told_as_found(
    turnlog: Any, verb: str, tmp_path: Path, kind: str, found: str, hint: str
) -> None:
    """It was "not a turnlog store" for anything, and the hint was to check the path."""
    files = tmp_path / "files"
    files.mkdir()
    path = no_store(kind, files)
    before = {each: each.is_file() and each.read_bytes() for each in files.rglob("*")}
    line = arguments(verb, path)
    if verb == "import":
        chat = tmp_path / "chat.jsonl"
        chat.write_text('{"session":"s","sequence":0,"kind":"note","body":1}\n')
        line.append(chat)
    outcome = turnlog(*line, *(["--calls", 1, "--hours", 0.001] if verb == "simulate" else []))
    if verb in CREATING and kind in ("nothing", "empty", "link"):
        assert outcome.code == ExitCode.OK or kind == "link"
        return
    refused = ExitCode.NOT_A_STORE
    if verb in CREATING and kind == "nothing-in-a-file":
        refused = ExitCode.USAGE
    assert outcome.code == refused
    first, second = outcome.err.removesuffix("\n").split("\n")
    assert first.startswith("turnlog: ")
    assert found in first
    assert second.startswith("  hint: ")
    assert hint in second
    assert acting(outcome.err) == []
    after = {each: each.is_file() and each.read_bytes() for each in files.rglob("*")}
    assert after == before
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("verb", ["stats", "simulate"])
def test_a_path_that_is_no_text(turnlog: Any, verb: str, calls: Path, tmp_path: Path) -> None:
    """LMDB's binding takes text only, and its refusal looked like a fault of ours."""
    path = tmp_path / os.fsdecode(b"odd\xff")
    if verb == "stats":
        calls.rename(path)
    outcome = turnlog(verb, path)
    assert outcome.code == ExitCode.USAGE
    assert r"odd\udcff" in outcome.err
    if verb == "stats":
        path.rename(calls)
    assert [entry.name for entry in tmp_path.iterdir()] == ["calls"]


@pytest.mark.parametrize("verb", ["import", "simulate"])
def test_a_store_in_a_folder_that_is_missing(turnlog: Any, verb: str, tmp_path: Path) -> None:
    chat = tmp_path / "chat.jsonl"
    chat.write_text('{"session":"s","sequence":0,"kind":"note","body":1}\n')
    line = [verb, tmp_path / "no" / "store", *([chat] if verb == "import" else [])]
    outcome = turnlog(*line)
    assert outcome.code == ExitCode.USAGE
    assert "there is no folder" in outcome.err
    assert "mkdir -p" in outcome.err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("verb", [*OF_A_SESSION, "tail", "export", "sessions"])
def test_an_unknown_tenant_is_a_negative_answer(turnlog: Any, verb: str, calls: Path) -> None:
    """A listing or an export of a tenant that is not there was empty, as if it had no sessions."""
    outcome = turnlog(*arguments(verb, calls), "--tenant", "no\x1b[31mbody")
    assert outcome.code == ExitCode.NEGATIVE
    assert outcome.out == ""
    assert r"no tenant 'no\x1b[31mbody'" in outcome.err
    assert "Tenants of this store: acme." in outcome.err


def test_an_unknown_tenant_of_a_store_without_tenants(turnlog: Any, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        store.session("s").create().result()
    outcome = turnlog("sessions", tmp_path / "store", "--tenant", "acme")
    assert outcome.code == ExitCode.NEGATIVE
    assert "leave --tenant out" in outcome.err


def test_a_session_of_another_tenant_is_pointed_at(turnlog: Any, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        store.tenant("a b").session("theirs").create().result()
        store.session("ours").create().result()
        for number in range(12):
            store.tenant(f"t{number:02d}").session("many").create().result()
    outcome = turnlog("show", tmp_path / "store", "theirs")
    assert outcome.code == ExitCode.NEGATIVE
    assert "of another tenant; name it with --tenant: 'a b'." in outcome.err
    outcome = turnlog("show", tmp_path / "store", "ours", "--tenant", "a b")
    assert "no session ours of tenant 'a b'" in outcome.err
    assert "leave --tenant out" in outcome.err
    assert "t09 and 2 more." in turnlog("show", tmp_path / "store", "many").err


@pytest.mark.parametrize("verb", [*OF_A_SESSION, "tail", "export"])
def test_an_unknown_session_is_a_negative_answer(turnlog: Any, verb: str, calls: Path) -> None:
    name = "no\x1b[31mbody"
    line = [verb, calls, name] if verb in OF_A_SESSION else [verb, calls, "--session", name]
    outcome = turnlog(*line)
    assert outcome.code == ExitCode.NEGATIVE
    assert outcome.out == ""
    assert r"'no\x1b[31mbody'" in outcome.err


@pytest.mark.parametrize("verb", ["replay", "show"])
def test_names_that_look_like_options_follow_two_dashes(
    turnlog: Any, verb: str, tmp_path: Path
) -> None:
    path = tmp_path / "-store"
    with Store.open(path) as store:
        store.session("--help").append({"role": "user", "content": "odd"}).result()
    outcome = turnlog(verb, "--", path, "--help")
    assert outcome.code == 0
    assert "odd" in outcome.out


def test_a_fault_of_ours_is_one_line_too(
    turnlog: Any, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnlog.verbs import show_stats

    def fail(path: Path, *, as_json: bool) -> ExitCode:
        raise RuntimeError("odd\x1b[31m")

    monkeypatch.setattr(show_stats, "run", fail)
    outcome = turnlog("stats", calls)
    assert outcome.code == ExitCode.INTERNAL
    assert outcome.err.startswith("turnlog: internal error: RuntimeError: odd\\x1b[31m\n  hint: ")


def test_traceback_shows_where_an_error_came_from(calls: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["stats", str(tmp_path / "none"), "--traceback"])
    assert result.exit_code == ExitCode.NOT_A_STORE
    assert "Traceback" in result.stderr
    assert "turnlog: " in result.stderr


@pytest.mark.parametrize("options", [(), ("--traceback",)])
def test_a_hint_is_told_once(calls: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["show", str(calls), "never there", *options])
    hints = [line for line in result.stderr.splitlines() if "hint:" in line.lower()]
    assert len(hints) == 1 and hints[0].startswith("  hint: "), result.stderr
    assert ("Traceback" in result.stderr) is bool(options)


def test_a_missing_permission_is_told_with_the_path(
    turnlog: Any, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It named a temporary file that nobody had asked for."""
    sealed = tmp_path / "sealed"
    sealed.mkdir()
    real_open = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(os.fsdecode(path)).parent == sealed:  # also for root, whom no mode keeps out
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    outcome = turnlog("export", calls, "-o", sealed / "where.jsonl")
    assert outcome.code == ExitCode.UNAVAILABLE
    assert outcome.err.startswith(f"turnlog: {sealed / 'where.jsonl'}: Permission denied\n")


def test_an_export_into_a_folder_that_is_missing(turnlog: Any, calls: Path, tmp_path: Path) -> None:
    """It named a temporary file, and its exit code said that the store was busy or full."""
    outcome = turnlog("export", calls, "-o", tmp_path / "no" / "where.jsonl")
    assert outcome.code == ExitCode.USAGE
    assert f"there is no folder {tmp_path / 'no'}\n" in outcome.err
    assert ".part" not in outcome.err
    (tmp_path / "file").write_text("mine")
    outcome = turnlog("export", calls, "-o", tmp_path / "file" / "where.jsonl")
    assert outcome.code == ExitCode.USAGE
    assert f"{tmp_path / 'file'} is no folder\n" in outcome.err


@pytest.mark.parametrize("cursor", ["zzz", "-1", "\x1b[2J", "", "9" * 30])
def test_a_cursor_of_nobody_is_told_in_the_words_of_the_command_line(
    turnlog: Any, calls: Path, cursor: str
) -> None:
    """It spoke of a Python method, and the hint was to fix the call."""
    outcome = turnlog("sessions", calls, f"--cursor={cursor}")
    assert outcome.code == ExitCode.USAGE
    first, second = outcome.err.removesuffix("\n").split("\n")
    assert first.startswith("turnlog: --cursor ")
    assert "more: --cursor" in second
    assert "sessions()" not in outcome.err
    assert acting(outcome.err) == []


def test_a_refusal_of_the_library_points_at_the_command_line(turnlog: Any, calls: Path) -> None:
    outcome = turnlog("sessions", calls, "--limit", 20_000)
    assert outcome.code == ExitCode.USAGE
    assert "Fix the call" not in outcome.err
    assert "--help" in outcome.err
