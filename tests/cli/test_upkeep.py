"""The verbs that keep a store, as people and scripts meet them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from tests.format.make_store import STORES, export, unpack
from turnlog.exits import ExitCode

DEADLINE_S = 60


def texts(path: Path) -> list[str]:
    with Store.open(path, create=False, read_only=True) as store:
        return export(store)


def test_backup_and_restore_give_the_store_again(turnlog: Any, calls: Path, tmp_path: Path) -> None:
    outcome = turnlog("backup", calls, tmp_path / "copy")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"backed up to {tmp_path / 'copy'}: 5 events, ")
    outcome = turnlog("restore", tmp_path / "copy", tmp_path / "again", "--check")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"restored to {tmp_path / 'again'}: 5 events, ")
    assert texts(tmp_path / "again") == texts(calls) == texts(tmp_path / "copy")


def test_json_tells_the_same(turnlog: Any, calls: Path, tmp_path: Path) -> None:
    copy, again = tmp_path / "copy\x1b", tmp_path / "again"
    made = json.loads(turnlog("backup", calls, copy, "--json", "--check").out)
    marker = json.loads((copy / "turnlog.json").read_text())
    assert made.pop("seconds") >= 0
    assert made == {
        "path": str(copy),
        "store_id": marker["store_id"],
        "position": 5,
        "byte_count": (copy / "data.mdb").stat().st_size,
        "checked": True,
    }
    restored = json.loads(turnlog("restore", copy, again, "--json").out)
    assert restored["restored_from"] == made["store_id"] != restored["store_id"]
    assert (restored["epoch"], restored["position"], restored["checked"]) == (1, 5, False)
    before = (again / "data.mdb").stat().st_size
    rewritten = json.loads(turnlog("vacuum", again, "--yes", "--json").out)
    assert rewritten["bytes_before"] == before
    assert rewritten["bytes_after"] == (again / "data.mdb").stat().st_size
    told = json.loads(turnlog("upgrade", again, "--yes", "--json").out)
    assert (told["before"], told["after"], told["backup"]) == (2, 2, None)
    assert texts(again) == texts(calls)


def test_a_session_is_erased(turnlog: Any, calls: Path) -> None:
    with Store.open(calls, create=False) as store:
        names = [info.name for info in store.sessions().sessions]
    outcome = turnlog("erase", calls, names[0], "--yes")
    assert (outcome.code, outcome.err) == (0, "")
    assert "until turnlog vacuum; backups and other copies" in outcome.out
    again = turnlog("erase", calls, names[0], "--yes")
    assert (again.code, again.out) == (1, "")
    with Store.open(calls, create=False) as store:
        assert [info.name for info in store.sessions().sessions] == names[1:]
        store.session("more").append({"role": "user", "content": "x"}).result()
    told = json.loads(turnlog("erase", calls, "more", "--yes", "--json").out)
    assert (told["session"], told["event_count"], told["is_live"]) == ("more", 1, False)


def test_a_session_is_compacted(turnlog: Any, calls: Path, tmp_path: Path) -> None:
    with Store.open(calls, create=False) as store:
        call = store.session("long\x1b")
        call.append_many([{"role": "user", "content": f"m{each}"} for each in range(12)]).result()
    before = texts(calls)
    outcome = turnlog("compact", calls, "long\x1b", "--summary", "So far.", "--keep-last", 3)
    assert (outcome.code, outcome.err) == (0, "")
    assert "event 12 stands for 9 messages up to event 8" in outcome.out
    assert "\x1b" not in outcome.out
    assert texts(calls)[: len(before)] == before
    again = turnlog("compact", calls, "long\x1b", "--summary", "So far.", "--keep-last", 3)
    assert again.code == 0 and "nothing was written" in again.out
    file = tmp_path / "summary.txt"
    file.write_text("From a file: é\n")
    outcome = turnlog(
        "compact", calls, "long\x1b", "--summary-file", file, "--keep-last", 1, "--json"
    )
    told = json.loads(outcome.out)
    assert (told["sequence"], told["through"], told["message_count"]) == (13, 10, 3)
    with Store.open(calls, create=False, read_only=True) as store:
        assert store.session("long\x1b").event(13).body["summary"] == "From a file: é"
    told = json.loads(turnlog("compact", calls, "long\x1b", "--summary", "x", "--json").out)
    assert (told["sequence"], told["message_count"]) == (None, 0)


def test_an_open_call_in_the_way_of_a_compaction_is_named(turnlog: Any, calls: Path) -> None:
    """`turnlog compact` told that there was nothing to summarise, and ended well."""
    asked = {"id": "c\x1b1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with Store.open(calls, create=False) as store:
        call = store.session("long")
        call.append({"role": "assistant", "content": None, "tool_calls": [asked]}).result()
        call.append_many([{"role": "user", "content": f"m{each}"} for each in range(12)]).result()
    before = texts(calls)
    outcome = turnlog("compact", calls, "long", "--summary", "So far.")
    assert (outcome.code, outcome.out) == (1, "")
    assert "'c\\x1b1' of event 0 " in outcome.err and "--close-calls" in outcome.err
    assert texts(calls) == before
    outcome = turnlog("compact", calls, "long", "--summary", "So far.", "--close-calls")
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--summary", "x", "--summary-file", "FILE"],
        ["--summary", " "],
        ["--summary-file", "FILE"],
    ],
)
def test_a_summary_is_needed(turnlog: Any, calls: Path, tmp_path: Path, options: list[str]) -> None:
    file = tmp_path / "summary.txt"
    file.write_bytes(b"\xff")
    before = texts(calls)
    given = [str(file) if each == "FILE" else each for each in options]
    outcome = turnlog("compact", calls, "call-2", *given)
    assert (outcome.code, outcome.out) == (2, "")
    assert texts(calls) == before
    missing = turnlog("compact", calls, "call-2", "--summary-file", tmp_path / "none")
    assert (missing.code, missing.out) == (4, "")
    nobody = turnlog("compact", calls, "nobody", "--summary", "x")
    assert (nobody.code, nobody.out) == (1, "")


def test_derived_tables_are_rebuilt(turnlog: Any, calls: Path) -> None:
    before = texts(calls)
    outcome = turnlog("rebuild", calls)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("rebuilt from ")
    told = json.loads(turnlog("rebuild", calls, "--json").out)
    assert "activity" in told["tables"] and told["rows_changed"] == 0
    assert texts(calls) == before


@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_a_target_that_is_taken(turnlog: Any, verb: str, calls: Path, tmp_path: Path) -> None:
    source = calls
    if verb == "restore":
        source = tmp_path / "copy"
        assert turnlog("backup", calls, source).code == 0
    target = tmp_path / "target"
    target.mkdir()
    outcome = turnlog(verb, source, target)
    assert outcome.code == ExitCode.USAGE
    assert f"{target} exists already\n" in outcome.err
    assert list(target.iterdir()) == []
    target.rmdir()
    outcome = turnlog(verb, source, tmp_path / "no" / "target")
    assert outcome.code == ExitCode.USAGE
    assert "mkdir -p" in outcome.err


@pytest.mark.parametrize("verb", ["vacuum", "upgrade"])
def test_nothing_is_rewritten_unasked(turnlog: Any, verb: str, calls: Path) -> None:
    before = (calls / "data.mdb").read_bytes()
    outcome = turnlog(verb, calls)
    assert outcome.code == ExitCode.USAGE
    assert "with --yes" in outcome.err
    assert (calls / "data.mdb").read_bytes() == before


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", ExitCode.NEGATIVE)])
def test_who_sits_at_a_terminal_is_asked(
    command: list[str], calls: Path, answer: str, code: int
) -> None:
    inode = (calls / "data.mdb").stat().st_ino
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [*command, "vacuum", str(calls)], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE
        )
        asked = b""
        while b"[y/N]" not in asked:
            asked += os.read(ours, 1_000)
        assert b"Rewrite the data file of" in asked
        os.write(ours, answer.encode() + b"\n")
        out, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == code
    assert (b"rewritten: " in out) == (code == 0)
    assert ((calls / "data.mdb").stat().st_ino != inode) == (code == 0)


@pytest.mark.parametrize("verb", ["vacuum", "upgrade"])
def test_a_store_in_use_is_told_with_who_uses_it(turnlog: Any, verb: str, calls: Path) -> None:
    with Store.open(calls, create=False):
        outcome = turnlog(verb, calls, "--yes")
    assert outcome.code == ExitCode.UNAVAILABLE
    assert "open in this process" in outcome.err


def test_an_old_store_is_upgraded_with_a_backup(turnlog: Any, tmp_path: Path) -> None:
    path = unpack(STORES / "1.tar.xz", tmp_path / "old")
    before = texts(path)
    outcome = turnlog("upgrade", path, "--yes")
    assert outcome.code == 0
    saved = tmp_path / "old.format-1.backup"
    assert outcome.out.splitlines() == [
        "upgraded from format version 1 to 2",
        f"as it was: {saved}",
    ]
    assert texts(path) == texts(saved) == before
    assert json.loads((saved / "turnlog.json").read_text())["version"] == 1
    assert "nothing to do" in turnlog("upgrade", path, "--yes").out


@pytest.mark.parametrize("options", [["--no-backup"], ["--backup", "kept"]], ids=["none", "named"])
def test_where_the_backup_of_an_upgrade_goes(
    turnlog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    path = unpack(STORES / "1.tar.xz", tmp_path / "old")
    monkeypatch.chdir(tmp_path)
    assert turnlog("upgrade", path, "--yes", *options).code == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        {"old", options[-1]} - {"--no-backup"}
    )


def test_a_backup_and_no_backup_contradict_each_other(turnlog: Any, calls: Path) -> None:
    outcome = turnlog("upgrade", calls, "--yes", "--no-backup", "--backup", "x")
    assert outcome.code == ExitCode.USAGE


def test_options_are_shown_and_changed(turnlog: Any, calls: Path) -> None:
    assert turnlog("configure", calls).out.splitlines() == [
        "snapshot_frequency  25",
        "max_messages        none",
        "quota_bytes         none",
        "dictionaries        yes",
    ]
    assert "max_messages        1" in turnlog("configure", calls, "--max-messages", "1").out
    line = ["configure", calls, "--quota-bytes", "2000000", "--snapshot-frequency", "7", "--json"]
    told = json.loads(turnlog(*line).out)
    assert (told["snapshot_frequency"], told["quota_bytes"]) == (7, 2_000_000)
    assert json.loads(turnlog("configure", calls, "--json").out) == told
    line = ["configure", calls, "--quota-bytes", "none", "--no-dictionaries", "--json"]
    told = json.loads(turnlog(*line).out)
    assert (told["snapshot_frequency"], told["quota_bytes"]) == (7, None)
    assert told["dictionaries"] is False


@pytest.mark.parametrize(
    "options",
    [
        ["--quota-bytes", "many"],
        ["--quota-bytes", "-1"],
        ["--quota-bytes", "1"],
        ["--max-messages", "0"],
        ["--snapshot-frequency", "0"],
        ["--snapshot-frequency", "none"],
    ],
    ids=" ".join,
)
def test_options_that_make_no_sense(turnlog: Any, calls: Path, options: list[str]) -> None:
    before = (calls / "data.mdb").read_bytes()
    outcome = turnlog("configure", calls, *options)
    assert outcome.code == ExitCode.USAGE
    assert (calls / "data.mdb").read_bytes() == before


def test_a_damaged_backup_is_told_by_its_exit_code(
    turnlog: Any, calls: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "damaged"
    assert turnlog("backup", calls, copy).code == 0
    os.truncate(copy / "data.mdb", 20_000)
    outcome = turnlog("restore", copy, tmp_path / "again")
    assert outcome.code == ExitCode.CORRUPTION
    assert sorted(each.name for each in tmp_path.iterdir()) == ["calls", "damaged"]
    (copy / "data.mdb").unlink()
    (copy / "data.mdb").symlink_to(calls / "data.mdb")
    outcome = turnlog("restore", copy, tmp_path / "again")
    assert outcome.code == ExitCode.DAMAGED_INPUT
    (copy / "data.mdb").unlink()
