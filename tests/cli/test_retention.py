"""``turnlog retention``, and ``turnlog erase`` of all of a user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from tests.cli.conftest import acting, say
from turnlog.exits import ExitCode


def listed(path: Path) -> set[tuple[str, str]]:
    with Store.open(path, create=False, read_only=True) as store:
        return {(each.tenant, each.name) for each in store.all_tenants.sessions().sessions}


ALL = {("", "call-1"), ("", "call-2"), ("acme", "call-1")}


def test_what_is_old_goes_and_its_archive_brings_it_back(
    turnlog: Any, calls: Path, tmp_path: Path
) -> None:
    before = turnlog("export", calls).out
    for span in ("90d", "100000w"):
        outcome = turnlog("retention", calls, "--max-age", span, "--yes")
        assert (outcome.code, outcome.err) == (0, "")
        assert "removed 0 sessions, 0 events in all; 3 looked at, 0 held" in outcome.out
    archive = tmp_path / "old\x1b.jsonl"
    line = ["retention", calls, "--max-age", "0s", "--archive", archive]
    dry = turnlog(*line, "--dry-run")
    assert (dry.code, listed(calls), archive.exists()) == (0, ALL, False)
    assert "would remove 3 sessions, 5 events in all" in dry.out
    outcome = turnlog(*line, "--yes")
    assert (outcome.code, outcome.err, listed(calls)) == (0, "", set())
    assert "call-1 of tenant acme: removed, 1 event, --max-age, active 20" in outcome.out
    assert acting(outcome.out) == []
    assert turnlog("import", calls, archive).code == 0
    assert turnlog("export", calls).out == before
    for answer in ("--yes", "--dry-run"):
        again = turnlog(*line, answer)
        assert again.code == 2 and "exists" in again.err
    idle = ["retention", calls, "--max-age", "100000w", "--archive", archive, "--yes"]
    assert turnlog(*idle).code == 2  # though nothing would go


def test_only_one_tenant(turnlog: Any, calls: Path) -> None:
    rule = ("--max-bytes", 0, "--yes", "--json")
    told = json.loads(turnlog("retention", calls, *rule, "--tenant", "acme").out)
    assert [each["tenant"] for each in told["deleted"]] == ["acme"]
    assert (told["bytes_after"], told["skipped_held"], told["archive"]) == (0, 0, None)
    with Store.open(calls, create=False) as store:
        say(store.tenant("acme").session("more"), 1, "user", "x")
    told = json.loads(turnlog("retention", calls, *rule, "--tenant", "").out)
    assert [each["tenant"] for each in told["deleted"]] == ["", ""]
    assert listed(calls) == {("acme", "more")}
    assert turnlog("retention", calls, *rule, "--tenant", "nobody").code == 1


def test_long_sessions_and_held_ones(turnlog: Any, calls: Path) -> None:
    with Store.open(calls, create=False) as store:
        for name in ("long", "held"):
            for number in range(9):
                say(store.session(name), number, "user", f"m{number}")
        store.session("held").hold("case\x1b 7").result()
    outcome = turnlog("retention", calls, "--max-entries", 4, "--yes")
    assert outcome.code == 0 and acting(outcome.out) == []
    assert "long: purged, 5 events, --max-entries" in outcome.out
    assert r"held: held, 6 events, --max-entries" in outcome.out
    assert "held: keeps 10, not 4: it is held\n" in outcome.out
    told = json.loads(turnlog("retention", calls, "--max-entries", 4, "--dry-run", "--json").out)
    assert [(each["session"], each["kept"], each["reasons"]) for each in told["excess"]] == [
        ("held", 10, ["hold"])
    ]
    assert "and the beginning of 1, 5 events in all; 5 looked at, 1 held" in outcome.out
    rule = ("--max-entries", 1, "--kind", "timing", "--erase", "--yes", "--json")
    told = json.loads(turnlog("retention", calls, *rule).out)
    assert told["deleted"] == told["purged"] == []


def test_nobody_is_asked_where_nobody_is(turnlog: Any, calls: Path) -> None:
    outcome = turnlog("retention", calls, "--max-age", "0s")
    assert outcome.code == 2 and "Remove 3 sessions, 5 events in all for good?" in outcome.err
    assert listed(calls) == ALL
    assert turnlog("retention", calls, "--max-age", "90d").code == 0  # nothing would go


def test_all_of_a_user_is_erased(turnlog: Any, calls: Path) -> None:
    with Store.open(calls, create=False) as store:
        store.user("u1").documents.write("notes", "mine").result()
        store.session("call-2").hold("case").result()
    outcome = turnlog("erase", calls, "--user", "u1", "--yes")
    assert (outcome.code, outcome.err) == (0, "")
    assert "erased 1 session of user u1: 1 event; documents: 1 event; no live" in outcome.out
    again = turnlog("erase", calls, "--user", "u1", "--yes")
    assert (again.code, again.out) == (1, "") and "nothing of user u1" in again.err
    held = turnlog("erase", calls, "--user", "u2", "--yes")
    assert (held.code, held.out) == (1, "") and "held" in held.err
    told = turnlog("erase", calls, "--user", "u2", "--yes", "--force", "--json").out
    assert [json.loads(line)["session"] for line in told.splitlines()] == ["call-2"]
    assert listed(calls) == {("acme", "call-1")}


@pytest.mark.parametrize("forced", [False, True])
def test_a_held_session_is_erased_only_by_force(turnlog: Any, calls: Path, forced: bool) -> None:
    with Store.open(calls, create=False) as store:
        store.session("call-2").hold("case").result()
    outcome = turnlog("erase", calls, "call-2", "--yes", *(["--force"] if forced else []))
    assert outcome.code == (0 if forced else 1)
    assert ("is held: 'case'" in outcome.err) is not forced
    assert (("", "call-2") in listed(calls)) is not forced


def test_all_of_a_tenant_is_erased(turnlog: Any, calls: Path) -> None:
    with Store.open(calls, create=False) as store:
        store.tenant("acme").documents.write("notes", "ours").result()
        store.tenant("acme").session("held").hold("case").result()
    for wrong in (["--all"], ["--all", "call-1", "--tenant", "acme"], ["--all", "--user", "u1"]):
        outcome = turnlog("erase", calls, *wrong, "--yes")
        assert (outcome.code, outcome.out) == (2, "")
    assert turnlog("erase", calls, "--all", "--tenant", "nobody", "--yes").code == 1
    line = ["erase", calls, "--all", "--tenant", "acme"]
    asked = turnlog(*line)
    assert asked.code == 2
    assert "Erase all sessions and documents of tenant acme for good?" in asked.err
    held = turnlog(*line, "--yes")
    assert (held.code, held.out) == (1, "") and "held" in held.err
    assert listed(calls) == ALL | {("acme", "held")}
    outcome = turnlog(*line, "--yes", "--force")
    assert (outcome.code, outcome.err) == (0, "")
    assert "erased 2 sessions of tenant acme: " in outcome.out
    assert listed(calls) == {("", "call-1"), ("", "call-2")}
    told = turnlog("erase", calls, "--all", "--tenant", "", "--yes", "--json").out
    assert {json.loads(each)["session"] for each in told.splitlines()} == {"call-1", "call-2"}
    assert listed(calls) == set()


def test_a_session_is_held_and_released(turnlog: Any, calls: Path) -> None:
    line = ["hold", calls, "call-1"]
    assert turnlog(*line).out == "call-1 is not held\n"
    assert turnlog(*line, "--reason", "case \x1b7").out == "call-1 is held: 'case \\x1b7'\n"
    assert turnlog(*line, "--reason", "other").code == 0
    assert turnlog(*line, "--reason", "other").code == 0, "one that is there is fine"
    told = json.loads(turnlog(*line, "--json").out)
    assert told == {"tenant": "", "session": "call-1", "holds": ["case \x1b7", "other"]}
    which = turnlog(*line, "--release")
    assert which.code == 2 and "--reason" in which.err
    assert turnlog(*line, "--release", "--reason", "none").code == 1
    assert (
        "would remove 1 session"
        in turnlog("retention", calls, "--max-age", "0s", "--tenant", "", "--dry-run").out
    )
    still = turnlog(*line, "--release", "--reason", "case \x1b7")
    assert still.out == "call-1 is still held: 'other'\n"
    assert turnlog(*line, "--release", "--json").out.strip().endswith('"holds":[]}')
    again = turnlog(*line, "--release")
    assert again.code == 1 and "is not held" in again.err
    assert turnlog("hold", calls, "nobody", "--reason", "x").code == 1
    assert turnlog("hold", calls, "call-1", "--tenant", "acme", "--reason", "x").code == 0
    assert turnlog("hold", calls, "call-1").out == "call-1 is not held\n"
    assert turnlog("hold", calls, "call-1", "--reason", "").code == 2


def test_the_archive_of_a_purge_does_not_come_back_into_the_same_store(
    turnlog: Any, tmp_path: Path
) -> None:
    """`import` of such an archive said that the store has those events already, and code 0.

    They were purged and stay so; another store takes them.
    """
    path, archive = tmp_path / "store", tmp_path / "purged.jsonl"
    with Store.open(path) as store:
        call = store.session("c")
        for number in range(20):
            say(call, number * 1_000_000, "user", f"turn {number}")
    line = ["--max-entries", "5", "--archive", archive, "--yes"]
    purged = turnlog("retention", path, *line)
    assert "into another store only" in purged.out
    again = turnlog("import", path, archive)
    assert again.code == ExitCode.DAMAGED_INPUT
    assert "15 events purged from the store stay so" in again.out
    assert "skipped" not in again.out
    told = json.loads(turnlog("import", path, archive, "--json").out)
    assert (told["purged_events"], told["skipped_events"], told["events"]) == (15, 0, 0)
    other = turnlog("import", tmp_path / "other", archive)
    assert (other.code, "imported 15 events" in other.out) == (0, True)


def test_an_erasure_says_each_part_and_where_else_to_look(turnlog: Any, calls: Path) -> None:
    """It said "erased 0 sessions, but documents", and summed up sessions and documents."""
    with Store.open(calls, create=False) as store:
        store.tenant("acme").session("theirs", user_id="u9").append({"n": 1}).result()
        store.user("u8").documents.write("notes", "mine").result()
        store.session("call-2").hold("case").result()
    only = turnlog("erase", calls, "--user", "u8", "--yes")
    assert only.out.startswith("erased documents of user u8: 1 event; no live record")
    elsewhere = turnlog("erase", calls, "--user", "u9", "--yes")
    assert elsewhere.code == 1 and "--tenant acme names it" in elsewhere.err
    held = turnlog("erase", calls, "--user", "u2", "--yes")
    assert held.code == 1 and "repeat this with --force" in held.err


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        pytest.param("hold", ["erase SESSION", "--force", "turnlog redact", "clone"], id="hold"),
        pytest.param("redact", ["A hold does not stop it"], id="redact"),
        pytest.param("retention", ["m (minutes)", "all of them", "another"], id="retention"),
        pytest.param("show", ["unnamed one, not all of them"], id="show"),
        pytest.param("erase", ["unnamed one, not all of them"], id="erase"),
        pytest.param("import", ["--strict leaves the fragment out", "--max-age"], id="import"),
    ],
)
def test_help_says_what_surprised(turnlog: Any, verb: str, words: list[str]) -> None:
    shown = " ".join(turnlog(verb, "--help").out.split())
    assert [each for each in words if each not in shown] == []


def test_help_of_compact_promises_no_smaller_file(turnlog: Any) -> None:
    shown = turnlog("compact", "--help").out
    assert "nothing is removed" in " ".join(shown.split()) and "vacuum" not in shown
