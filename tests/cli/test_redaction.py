"""``turnlog redact``, and what other verbs show of redacted events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from turnlog.exits import ExitCode

SECRET = "geheimnis"


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """A store with a call that says a secret, with a content, and is summed up."""
    path = tmp_path / "said"
    with Store.open(path) as store:
        call = store.session("call\x1b")
        blob = store.blobs.put(SECRET.encode() * 1_000)
        call.append({"role": "user", "content": f"hello {SECRET}"}, blobs=[blob]).result()
        call.append({"role": "assistant", "content": f"yes {SECRET}"}).result()
        call.update_state({"a": 1}).result()
        call.append({"role": "user", "content": "and now"}).result()
        assert call.compact(lambda _: "They said hello.", keep_last=1) is not None
    return path


def test_events_are_redacted_and_it_is_told_what_was_reached(turnlog: Any, said: Path) -> None:
    outcome = turnlog("redact", said, "call\x1b", 0, 2, "--reason", "case 7", "--yes")
    assert (outcome.code, outcome.err) == (0, "")
    assert "redacted 2 events of 'call\\x1b', 1 of kinds that stay" in outcome.out
    assert "of the contents that they named 1 went and 0 stay" in outcome.out
    assert "summaries may tell of them, in the events 4; redact these, too" in outcome.out
    assert "until turnlog vacuum; backups and other copies of the store were not" in outcome.out
    with Store.open(said) as store:
        events = list(store.session("call\x1b").events())
    assert [event.redacted for event in events] == [True, True, False, False, False, False]
    assert events[-1].body == {"first": 0, "last": 2, "reason": "case 7"}
    again = turnlog("redact", said, "call\x1b", 0, 2, "--yes")
    assert "redacted 0 events of 'call\\x1b', 2 redacted before, 1 of kinds" in again.out
    assert "contents" not in again.out


def test_json_tells_the_receipt(turnlog: Any, said: Path) -> None:
    told = json.loads(turnlog("redact", said, "call\x1b", 1, 4, "--yes", "--json").out)
    assert told.pop("backups").endswith("were not touched")
    assert told == {
        **{"tenant": "", "session": "call\x1b", "number": 1, "first": 1, "last": 4},
        **{"event_count": 3, "already_count": 0, "kept_count": 1, "void_count": 0},
        **{"sequence": 5, "position": 6, "blobs_removed": 0, "blobs_kept": 0, "summaries": []},
        **{"is_live": False, "is_in_file": True, "dictionaries": []},
    }


def test_what_was_redacted_is_shown_as_such(turnlog: Any, said: Path) -> None:
    assert turnlog("redact", said, "call\x1b", 0, 1, "--yes").code == ExitCode.OK
    for verb in (
        ["show", said, "call\x1b"],
        ["show", said, "call\x1b", "--at", 3],
        ["replay", said, "call\x1b"],
        ["tail", said],
    ):
        outcome = turnlog(*verb)
        assert (outcome.code, outcome.out.count("[redacted]")) == (0, 2), verb
        assert SECRET not in outcome.out and "and now" in outcome.out
    for verb in (["show", said, "call\x1b"], ["replay", said, "call\x1b"], ["tail", said]):
        lines = [json.loads(line) for line in turnlog(*verb, "--json").out.splitlines()]
        told = [line for line in lines if line.get("redacted")]
        assert len(told) == 2 and not [line for line in told if line.get("body")]


def test_an_export_is_imported_again(turnlog: Any, said: Path, tmp_path: Path) -> None:
    turnlog("redact", said, "call\x1b", 0, 1, "--yes")
    lines, again = tmp_path / "lines.jsonl", tmp_path / "again"
    assert turnlog("export", said, "-o", lines).code == ExitCode.OK
    assert SECRET not in lines.read_text()
    outcome = turnlog("import", again, lines)
    assert (outcome.code, outcome.err) == (0, "")
    assert turnlog("export", again).out_bytes == lines.read_bytes()
    assert turnlog("import", again, lines).code == ExitCode.OK
    salvaged = turnlog("export", said, "--skip-damaged").out_bytes
    assert salvaged == lines.read_bytes()


def test_what_was_said_before_is_not_imported_over_it(
    turnlog: Any, said: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.jsonl"
    turnlog("export", said, "-o", lines)
    turnlog("redact", said, "call\x1b", 0, 1, "--yes")
    outcome = turnlog("import", said, lines)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert "another event at sequence 0" in outcome.err
    with Store.open(said) as store:
        assert store.session("call\x1b").event(0).redacted


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        pytest.param(["call\x1b", 2, 1, "--yes"], ExitCode.USAGE, "LAST must be 2", id="order"),
        pytest.param(
            ["call\x1b", 0, 99, "--yes"],
            ExitCode.USAGE,
            "list them with `turnlog show`",
            id="no-event",
        ),
        pytest.param(["call\x1b", -1, 0, "--yes"], ExitCode.USAGE, "", id="negative"),
        pytest.param(["nobody", 0, 0, "--yes"], ExitCode.NEGATIVE, "nobody", id="no-session"),
        pytest.param(["call\x1b", 0, 0], ExitCode.USAGE, "--yes", id="nobody-to-ask"),
    ],
)
def test_what_cannot_be_redacted_is_refused(
    turnlog: Any, said: Path, arguments: list[Any], code: ExitCode, reason: str
) -> None:
    outcome = turnlog("redact", said, *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert reason in outcome.err
    with Store.open(said) as store:
        assert not store.session("call\x1b").event(0).redacted
