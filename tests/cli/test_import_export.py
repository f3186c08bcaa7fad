"""What goes out comes in again, byte for byte; what is broken is named and left out."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from tests.unit.belongings import fill, told
from turnlog.exits import ExitCode
from turnlog.formats import FORMATS

from .conftest import fill_with_everything


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write(path: Path, lines: list[dict[str, Any]] | list[str]) -> Path:
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return path


def chat(session: str, count: int, first: int = 0) -> list[dict[str, Any]]:
    """Export lines of a small session."""
    lines = []
    for number in range(first, first + count):
        line = {"session": session, "sequence": number}
        if number:
            line["parent"] = number - 1
        line |= {"kind": "message", "recorded_us": 1_000 + number}
        line["body"] = {"role": "user", "content": f"{session} {number}"}
        lines.append(line)
    return lines


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    path = tmp_path / "everything"
    with Store.open(path) as store:
        fill_with_everything(store)
    return path


def test_contents_go_out_and_come_in_with_their_events(turnlog: Any, tmp_path: Path) -> None:
    """Blobs of several lines, named by several sessions; the second import finds all of it."""
    with Store.open(tmp_path / "first") as store:
        acme = store.tenant("acme")
        long = acme.blobs.put(bytes(range(256)) * 5_000, media_type="audio/pcm")
        short = acme.blobs.put(b"short")
        for name in ("a", "b"):
            for blobs in ([long, short], [], [long]):
                acme.session(name).append({"role": "user"}, blobs=blobs).result(10)
    exported = turnlog("export", tmp_path / "first")
    assert exported.code == 0
    (tmp_path / "a.jsonl").write_bytes(exported.out_bytes)
    for into in ([], ["--tenant", "other"], []):
        outcome = turnlog("import", tmp_path / "second", tmp_path / "a.jsonl", *into)
        assert outcome.code == 0, outcome.err
    again = turnlog("export", tmp_path / "second", "--tenant", "acme")
    assert again.out_bytes == exported.out_bytes
    with Store.open(tmp_path / "second", create=False) as store:
        found = store.stats()["blobs"]
        assert (found["count"], found["references"], found["pending"]) == (4, 12, 0)
        assert store.check().ok


def test_what_belongs_to_sessions_users_and_tenants_is_exported_and_imported(
    turnlog: Any, tmp_path: Path
) -> None:
    with Store.open(tmp_path / "first") as store:
        acme = store.tenant("acme")
        fill(acme.session("a", user_id="u"), branching=False)
        purged = fill(acme.session("b", user_id="u"), branching=False)
        purged.purge(13).result(10)
        acme.user("u").documents.append("USER.md", "likes tea").result(10)
        acme.documents.write("RULES.md", "be kind").result(10)
        wanted = [told(acme.session(name)) for name in "ab"]
    exported = turnlog("export", tmp_path / "first")
    assert exported.code == 0, exported.err
    (tmp_path / "a.jsonl").write_bytes(exported.out_bytes)
    for _ in range(2):
        outcome = turnlog("import", tmp_path / "second", tmp_path / "a.jsonl")
        assert outcome.code == 0, outcome.err
    assert turnlog("export", tmp_path / "second").out_bytes == exported.out_bytes
    with Store.open(tmp_path / "second", create=False) as store:
        acme = store.tenant("acme")
        assert [told(acme.session(name)) for name in "ab"] == wanted
        assert acme.user("u").documents.read("USER.md") == "likes tea"
        assert acme.documents.read("RULES.md") == "be kind"
        assert store.check().ok
    listed = turnlog("sessions", tmp_path / "second", "--json")
    assert [json.loads(line)["session"] for line in listed.out.splitlines()] == ["b", "a"]
    line = json.dumps({**chat("x", 1)[0], "session": "." * 600})
    (tmp_path / "b.jsonl").write_text(line + "\n")
    refused = turnlog("import", tmp_path / "third", tmp_path / "b.jsonl")
    assert refused.code == ExitCode.DAMAGED_INPUT and "hidden" in refused.err


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda lines: lines[1:], "begins at 786432, not at 0"),
        (lambda lines: [lines[0], *lines[2:]], "ends before it is whole"),
        (
            lambda lines: [lines[0].replace('"data":"AAEC', '"data":"BBEC'), *lines[1:]],
            "another name",
        ),
        (lambda lines: lines[2:], "no line before tells"),
        (lambda lines: [lines[0][:-5], *lines[1:]], "no valid JSON"),
        (lambda lines: [lines[0].replace('"size"', '"sizes"'), *lines[1:]], "unknown key"),
    ],
)
def test_a_session_with_a_damaged_content_is_left_out(
    turnlog: Any, tmp_path: Path, damage: Any, reason: str
) -> None:
    with Store.open(tmp_path / "first") as store:
        blob = store.blobs.put(bytes(range(256)) * 5_000)
        store.session("a").append({"role": "user"}, blobs=[blob]).result(10)
        lines = list(store.export_lines(store.read()))
    assert len(lines) == 3
    write(tmp_path / "a.jsonl", [*damage(lines), *[json.dumps(each) for each in chat("b", 2)]])
    outcome = turnlog("import", tmp_path / "second", tmp_path / "a.jsonl")
    assert outcome.code == ExitCode.DAMAGED_INPUT, outcome.err
    assert reason in outcome.err
    with Store.open(tmp_path / "second", create=False) as store:
        assert [info.name for info in store.sessions().sessions] == ["b"]
        assert store.check().ok


def test_export_import_export_is_byte_identical(
    turnlog: Any, everything: Path, tmp_path: Path
) -> None:
    first = turnlog("export", everything)
    assert first.code == 0
    (tmp_path / "a.jsonl").write_bytes(first.out_bytes)
    imported = turnlog("import", tmp_path / "b", tmp_path / "a.jsonl")
    assert imported.code == 0, imported.err
    assert turnlog("export", tmp_path / "b").out_bytes == first.out_bytes


def test_purged_sessions_go_out_and_come_in(turnlog: Any, tmp_path: Path) -> None:
    """Byte for byte, again for nothing, and into a store that holds more or less of them."""
    path, before, after = tmp_path / "first", tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    deep: Any = None
    for _ in range(55):
        deep = [deep]
    with Store.open(path, snapshot_frequency=4) as store:
        for tenant in ("", "acme"):
            for number in range(4):
                session = store.tenant(tenant).session(f"s{number}", title="t" if number else None)
                for place in range(9):
                    said = {"role": "user", "content": f"{tenant} {number} {place}"}
                    session.append(said).result()
                    session.update_state({f"v{place}": b"\xff", "deep": deep}).result()
    assert turnlog("export", path, "-o", before).code == 0
    with Store.open(path) as store:
        for tenant in ("", "acme"):
            for number, first in enumerate((1, 7, 18)):
                session = store.tenant(tenant).session(f"s{number}")
                session.purge(first).result()
                if number:
                    session.append({"role": "user", "content": "after"}).result()
        states = [store.session(f"s{number}").state for number in range(4)]
    assert turnlog("export", path, "-o", after).code == 0
    for _ in range(2):
        assert turnlog("import", tmp_path / "second", after).code == 0
        again = tmp_path / "again.jsonl"
        assert turnlog("export", tmp_path / "second", "--force", "-o", again).code == 0
        assert again.read_bytes() == after.read_bytes()
    assert turnlog("import", tmp_path / "second", before).code == 0
    for file in (before, after, before):
        assert turnlog("import", tmp_path / "third", file).code == 0
    for name in ("second", "third"):
        with Store.open(tmp_path / name) as store:
            assert [store.session(f"s{number}").state for number in range(4)] == states
            assert store.check().ok
    short = write(tmp_path / "short.jsonl", chat("s1", 3))
    assert turnlog("import", tmp_path / "fourth", short).code == 0
    assert turnlog("import", tmp_path / "fourth", after).code == ExitCode.DAMAGED_INPUT
    with Store.open(tmp_path / "fourth") as store:
        assert [event.sequence for event in store.session("s1").events()] == [0, 1, 2]
        assert store.session("s2").state == states[2]
        assert store.check().ok


def test_the_same_content_gives_the_same_bytes_in_any_order(turnlog: Any, tmp_path: Path) -> None:
    a, b = chat("a", 3), chat("b", 2)
    outputs = []
    for name, lines in (("x", [*a, *b]), ("y", [*b, *a]), ("z", [a[0], b[0], a[1], b[1], a[2]])):
        turnlog("import", tmp_path / name, write(tmp_path / f"{name}.jsonl", lines))
        outputs.append(turnlog("export", tmp_path / name).out_bytes)
    assert outputs[0] == outputs[1] == outputs[2]
    assert [json.loads(line)["session"] for line in outputs[0].splitlines()] == [*"aaabb"]


def test_what_is_exported_is_what_was_given(turnlog: Any, calls: Path) -> None:
    lines = [json.loads(line) for line in turnlog("export", calls).out.splitlines()]
    assert [(line.get("tenant"), line["session"], line["sequence"]) for line in lines] == [
        (None, "call-1", 0),
        (None, "call-2", 0),
        (None, "call-2", 1),
        (None, "call-2", 2),
        ("acme", "call-1", 0),
    ]
    assert lines[1]["opening"] == {"user_id": "u2", "title": "Second"}
    assert lines[2]["body"] == {"role": "assistant", "content": "Good morning"}
    assert "position" not in lines[0]


@pytest.mark.parametrize(
    ("options", "sessions"),
    [
        pytest.param(["--session", "call-2"], ["call-2"] * 3, id="session"),
        pytest.param(["--tenant", "acme"], ["call-1"], id="tenant"),
        pytest.param(["--tenant", ""], ["call-1", *["call-2"] * 3], id="unnamed-tenant"),
        pytest.param(["--tenant", "acme", "--session", "call-1"], ["call-1"], id="both"),
    ],
)
def test_a_part_can_be_exported(
    turnlog: Any, calls: Path, options: list[str], sessions: list[str]
) -> None:
    outcome = turnlog("export", calls, *options)
    assert outcome.code == 0
    assert [json.loads(line)["session"] for line in outcome.out.splitlines()] == sessions


def test_a_file_appears_once_and_for_its_owner(turnlog: Any, calls: Path, tmp_path: Path) -> None:
    target = tmp_path / "calls.jsonl"
    assert turnlog("export", calls, "-o", target).code == 0
    assert target.read_bytes() == turnlog("export", calls).out_bytes
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    target.write_text("mine")
    refused = turnlog("export", calls, "-o", target)
    assert refused.code == ExitCode.USAGE
    assert "--force" in refused.err
    assert target.read_text() == "mine"
    assert turnlog("export", calls, "-o", target, "--force").code == 0
    assert target.read_bytes() == turnlog("export", calls).out_bytes
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["calls", "calls.jsonl"]


def test_a_failed_export_leaves_no_file(turnlog: Any, calls: Path, tmp_path: Path) -> None:
    outcome = turnlog("export", calls, "-o", tmp_path / "x.jsonl", "--session", "nobody")
    assert outcome.code == ExitCode.NEGATIVE
    assert [entry.name for entry in tmp_path.iterdir()] == ["calls"]


def test_only_files_are_replaced(turnlog: Any, calls: Path, tmp_path: Path) -> None:
    folder, pipe = tmp_path / "folder", tmp_path / "pipe"
    folder.mkdir()
    os.mkfifo(pipe)
    for target in (folder, pipe):
        assert turnlog("export", calls, "-o", target, "--force").code == ExitCode.USAGE
    assert folder.is_dir()
    assert pipe.is_fifo()


def test_a_link_is_never_written_through(turnlog: Any, calls: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(victim)
    assert turnlog("export", calls, "-o", link).code == ExitCode.USAGE
    assert turnlog("export", calls, "-o", link, "--force").code == 0
    assert victim.read_text() == "mine"
    assert not link.is_symlink()


def test_importing_again_adds_nothing(turnlog: Any, everything: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    turnlog("export", everything, "-o", file)
    before = file.read_bytes()
    outcome = turnlog("import", everything, file, "--json")
    assert outcome.code == 0
    result = json.loads(outcome.out)
    assert (result["events"], result["damaged"]) == (0, [])
    assert result["skipped_events"] == len(before.splitlines())
    assert turnlog("export", everything).out_bytes == before


def test_a_foreign_file_imported_again_adds_nothing(turnlog: Any, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    file = write(tmp_path / "chats.jsonl", [{"messages": messages}, {"messages": messages[:1]}])
    store = tmp_path / "store"
    first = json.loads(turnlog("import", store, file, "--json").out)
    assert (first["sessions"], first["events"]) == (2, 3)
    again = json.loads(turnlog("import", store, file, "--json").out)
    assert (again["sessions"], again["events"], again["skipped_events"]) == (0, 0, 3)
    with Store.open(store, create=False) as opened:
        name = opened.sessions(limit=10).sessions[-1].name
        assert opened.session(name).history() == messages


def test_an_import_goes_on_where_it_was_broken_off(turnlog: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    whole = write(tmp_path / "whole.jsonl", [*chat("a", 9), *chat("b", 4)])
    turnlog("import", store, write(tmp_path / "part.jsonl", chat("a", 5)))
    result = json.loads(turnlog("import", store, whole, "--json").out)
    assert (result["events"], result["skipped_events"]) == (8, 5)
    turnlog("export", store, "-o", tmp_path / "out.jsonl")
    assert lines_of(tmp_path / "out.jsonl") == lines_of(whole)


def test_a_shorter_file_is_skipped(turnlog: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    turnlog("import", store, write(tmp_path / "long.jsonl", chat("a", 5)))
    result = json.loads(
        turnlog("import", store, write(tmp_path / "short.jsonl", chat("a", 3)), "--json").out
    )
    assert (result["events"], result["skipped_events"], result["damaged"]) == (0, 3, [])


def test_other_content_is_a_conflict_and_the_others_go_on(turnlog: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    turnlog("import", store, write(tmp_path / "a.jsonl", chat("a", 3)))
    other = chat("a", 4)
    other[1]["body"]["content"] = "something else"
    file = write(tmp_path / "b.jsonl", [*chat("z", 1), *other, *chat("c", 2)])
    outcome = turnlog("import", store, file)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    blame = "session a: the store holds another event at sequence 1; 4 events left out"
    assert f"{file}:3: {blame}\n" in outcome.err
    assert outcome.out == "imported 3 events of 2 sessions; left out 1 session, 4 events\n"
    with Store.open(store, create=False) as opened:
        assert opened.session("a").info().event_count == 3  # type: ignore[union-attr]
        assert opened.session("c").info().event_count == 2  # type: ignore[union-attr]
        assert opened.session("z").exists


def test_an_id_that_is_taken_leaves_out_its_session_only(turnlog: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    a, b, c = chat("a", 2), chat("b", 2), chat("c", 2)
    a[1]["id"] = b[1]["id"] = "m-1"
    outcome = turnlog("import", store, write(tmp_path / "x.jsonl", [*a, *b, *c]), "--json")
    assert outcome.code == ExitCode.DAMAGED_INPUT
    (damage,) = json.loads(outcome.out)["damaged"]
    assert (damage["session"], damage["line"], damage["events"]) == ("b", 4, 2)
    with Store.open(store, create=False) as opened:
        assert [opened.session(name).exists for name in "abc"] == [True, False, True]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        pytest.param('{"session":"b","sequence":1,"kind":"mess', "JSON", id="cut"),
        pytest.param(
            '{"session":"b","sequence":1,"kind":"message","body":{"$b64":"!"}}', "base64", id="b64"
        ),
        pytest.param('{"session":"b","sequence":7,"kind":"message","body":1}', "missing", id="gap"),
        pytest.param(
            '{"session":"b","sequence":0,"kind":"message","body":1}', "sequence 0", id="repeated"
        ),
        pytest.param(
            '{"session":"b","sequence":1,"parent":9,"kind":"message","body":1}',
            "parent",
            id="parent",
        ),
        pytest.param('{"session":"b","sequence":1,"kind":"message","body":NaN}', "NaN", id="nan"),
    ],
)
def test_nothing_of_a_damaged_session_and_all_of_the_others(
    turnlog: Any, tmp_path: Path, bad: str, reason: str
) -> None:
    lines = [json.dumps(line) for line in chat("a", 2)]
    lines += [json.dumps(chat("b", 1)[0]), bad]
    lines += [json.dumps(line) for line in chat("c", 2)]
    file = write(tmp_path / "x.jsonl", lines)
    outcome = turnlog("import", tmp_path / "store", file)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert str(file) in outcome.err
    assert "b" in outcome.err
    assert reason in outcome.err
    with Store.open(tmp_path / "store", create=False) as opened:
        assert [opened.session(name).exists for name in "abc"] == [True, False, True]


def test_what_is_left_out_of_a_session_is_told_once(turnlog: Any, tmp_path: Path) -> None:
    """A damaged session was one message for each of its lines."""
    bad = '{"session":"b","sequence":'
    lines: list[Any] = [*chat("a", 2), *chat("b", 2), *[bad] * 7, *chat("c", 2)]
    file = write(tmp_path / "x.jsonl", [x if isinstance(x, str) else json.dumps(x) for x in lines])
    outcome = turnlog("import", tmp_path / "text", file)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    (line,) = (line for line in outcome.err.splitlines())
    assert line.startswith(f"turnlog: {file}:5: session b: ")
    assert line.endswith(", and 6 more bad lines; 9 events left out")
    result = json.loads(turnlog("import", tmp_path / "json", file, "--json").out)
    (damage,) = result["damaged"]
    reason = damage.pop("reason")
    assert "JSON" in reason
    assert damage == {
        "file": str(file),
        "line": 5,
        "tenant": "",
        "session": "b",
        "more_lines": 6,
        "events": 9,
    }


def test_a_file_of_garbage_does_not_flood_the_terminal(turnlog: Any, tmp_path: Path) -> None:
    lines = [json.dumps(chat("a", 1)[0]), *(["garbage"] * 5_000)]
    outcome = turnlog("import", tmp_path / "store", write(tmp_path / "x.jsonl", lines), "--json")
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert len(outcome.err.splitlines()) == 101
    assert "--json" in outcome.err.splitlines()[-1]
    assert len(json.loads(outcome.out)["damaged"]) == 5_000


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x89PNG\r\n\x1a\n\x00\x00", id="binary"),
        pytest.param(b"a,b,c\n1,2,3\n", id="csv"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"\xff\xfe{}\n", id="no-utf8"),
    ],
)
def test_a_foreign_file_is_named_and_the_next_one_read(
    turnlog: Any, tmp_path: Path, content: bytes
) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(content)
    good = write(tmp_path / "good.jsonl", chat("a", 2))
    outcome = turnlog("import", tmp_path / "store", bad, good)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert str(bad) in outcome.err
    with Store.open(tmp_path / "store", create=False) as opened:
        assert opened.session("a").info().event_count == 2  # type: ignore[union-attr]


def test_what_no_store_takes_leaves_out_its_session_only(turnlog: Any, tmp_path: Path) -> None:
    """Also where the session is long enough to be committed in pieces before the bad event."""
    deep: Any = "x"
    for _ in range(63):
        deep = [deep]
    long = chat("b", 20_000)
    long[19_000]["kind"] = "k" * 64
    long[19_500]["id"] = "0.0000000001"
    chats = [{"messages": [{"role": "user", "content": deep}, {"role": "user", "content": [deep]}]}]
    foreign = write(tmp_path / "deep.jsonl", [*chats, {"messages": [{"role": "user"}]}])
    ours = write(tmp_path / "x.jsonl", [*chat("a", 2), *long, *chat("c", 2)])
    outcome = turnlog("import", tmp_path / "store", foreign, ours, "--json")
    assert outcome.code == ExitCode.DAMAGED_INPUT
    damaged = json.loads(outcome.out)["damaged"]
    assert [(Path(damage["file"]).name, damage["line"]) for damage in damaged] == [
        ("deep.jsonl", 1),
        ("x.jsonl", 19_503),
    ]
    with Store.open(tmp_path / "store", create=False) as opened:
        names = sorted(info.name for info in opened.sessions().sessions)
    assert [name.split("/")[0] for name in names] == ["a", "c", "deep"]


@pytest.mark.parametrize("value", ["planning", 5, None], ids=str)
def test_a_fact_that_can_be_none_leaves_out_its_session_only(
    turnlog: Any, tmp_path: Path, value: Any
) -> None:
    bad = [*chat("b", 1), {"session": "b", "sequence": 1, "kind": "facts"}]
    bad[1]["body"] = {"set": {"status": value}}
    ours = write(tmp_path / "x.jsonl", [*chat("a", 2), *bad, *chat("c", 2)])
    outcome = turnlog("import", tmp_path / "store", ours, "--json")
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert [damage["line"] for damage in json.loads(outcome.out)["damaged"]] == [4]
    outcome = turnlog("sessions", tmp_path / "store", "--json")
    assert outcome.code == ExitCode.OK


def test_a_session_whose_facts_are_none_can_be_erased(
    turnlog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    with Store.open(store) as opened, monkeypatch.context() as patch:
        patch.setattr("engine.arriving.check_facts", lambda facts, root: None)
        for name, body in (("a", {"status": 5}), ("held", {"status": 5, "hold": ["case"]})):
            opened.load([{"session": name, "sequence": 0, "kind": "facts", "body": {"set": body}}])
    assert turnlog("sessions", store).code == ExitCode.OK
    assert turnlog("erase", store, "a", "--yes").code == ExitCode.OK
    assert turnlog("erase", store, "held", "--yes").code == ExitCode.NEGATIVE
    assert turnlog("erase", store, "held", "--yes", "--force").code == ExitCode.OK


@pytest.mark.parametrize("place", ["nothing", "empty-folder"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("garbage\n", id="garbage"),
        pytest.param('{"session":"a","sequence":0,"kind":"message","body":1}\n', id="unfit"),
        pytest.param(
            '{"session":"a","sequence":0,"kind":"n","opening":{"odd":1},"body":1}\n', id="opening"
        ),
        pytest.param(
            '{"session":"a","sequence":0,"kind":"n","id":"x","body":1}\n'
            '{"session":"a","sequence":1,"parent":0,"kind":"n","id":"x","body":1}\n',
            id="twin-ids",
        ),
    ],
)
def test_no_store_is_made_for_nothing(
    turnlog: Any, tmp_path: Path, content: str, place: str
) -> None:
    """An import of a damaged file alone left a new empty store behind."""
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    store = tmp_path / "store"
    if place == "empty-folder":
        store.mkdir()
    outcome = turnlog("import", store, file)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert f"no store was made at {store}\n" in outcome.err
    left = {file, store} if place == "empty-folder" else {file}
    assert set(tmp_path.rglob("*")) == left


def test_a_store_that_was_there_stays_without_a_word(
    turnlog: Any, calls: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("garbage\n")
    outcome = turnlog("import", calls, file)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert "no store was made" not in outcome.err


def test_a_path_that_is_no_store_is_told_before_files_are_read(
    turnlog: Any, tmp_path: Path
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("garbage\n")
    assert turnlog("import", file, file).code == ExitCode.NOT_A_STORE
    missing = turnlog("import", tmp_path / "no" / "store", file)
    assert missing.code == ExitCode.USAGE
    assert "bad.jsonl" not in missing.err


def test_an_id_that_occurs_twice_leaves_all_of_a_long_session_out(
    turnlog: Any, tmp_path: Path
) -> None:
    """The pieces before the second one were committed, and told as left out."""
    lines = chat("a", 20_000)
    lines[5]["id"] = lines[19_000]["id"] = "m-1"
    file = write(tmp_path / "x.jsonl", [*lines, *chat("b", 1)])
    outcome = turnlog("import", tmp_path / "store", file)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert f"{file}:19001: session a: the id m-1 occurs twice in it" in outcome.err
    with Store.open(tmp_path / "store", create=False) as opened:
        assert [opened.session(name).exists for name in "ab"] == [False, True]


def test_what_is_no_regular_file_is_named_once(turnlog: Any, tmp_path: Path) -> None:
    """It said "/dev/null: /dev/null is not a file"."""
    outcome = turnlog("import", tmp_path / "store", "/dev/null")
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert "turnlog: /dev/null: not a regular file\n" in outcome.err


def test_the_formats_are_in_the_help(turnlog: Any) -> None:
    out = turnlog("import", "--help").out
    for name, what in FORMATS.items():
        assert re.search(rf"^ +{name} +{re.escape(what)}$", out, re.MULTILINE)


def test_other_formats_are_not_read_from_a_pipe(turnlog: Any, tmp_path: Path) -> None:
    outcome = turnlog("import", tmp_path / "store", "-", "--format", "openai")
    assert outcome.code == ExitCode.USAGE
    assert "standard input can only be read as jsonl" in outcome.err
    assert not (tmp_path / "store").exists()


def test_an_unknown_format_is_a_wrong_command_line(turnlog: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", chat("a", 1))
    outcome = turnlog("import", tmp_path / "store", file, "--format", "carrier-pigeon")
    assert outcome.code == ExitCode.USAGE
    assert "jsonl" in outcome.err
    assert not (tmp_path / "store").exists()


def test_a_session_without_events_keeps_its_facts(turnlog: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "chats.jsonl", [{"messages": [], "topic": "none"}])
    for _ in range(2):
        assert turnlog("import", tmp_path / "store", file, "--format", "openai").code == 0
    (line,) = turnlog("export", tmp_path / "store").out.splitlines()
    assert json.loads(line)["opening"]["metadata"]["topic"] == "none"


@pytest.mark.corpus
@pytest.mark.parametrize("source", ["tau-bench-trajectories", "chatterbot-corpus"])
def test_real_conversations_survive(
    turnlog: Any, tmp_path: Path, corpus: Path, source: str
) -> None:
    with tarfile.open(corpus / source / "data.tar.xz", "r:xz") as archive:
        archive.extractall(tmp_path / "files", filter="data")
    files = sorted(
        path
        for path in (tmp_path / "files").rglob("*")
        if path.suffix in (".json", ".jsonl", ".yml") and path.is_file()
    )
    imported = turnlog("import", tmp_path / "a", *files, "--json")
    assert imported.code == 0, imported.err
    assert json.loads(imported.out)["events"] > 5_000
    turnlog("export", tmp_path / "a", "-o", tmp_path / "a.jsonl")
    assert turnlog("import", tmp_path / "b", tmp_path / "a.jsonl").code == 0
    assert turnlog("export", tmp_path / "b").out_bytes == (tmp_path / "a.jsonl").read_bytes()
    again = json.loads(turnlog("import", tmp_path / "a", *files, "--json").out)
    assert (again["events"], again["damaged"]) == (0, [])


def test_sessions_can_be_put_into_a_tenant(turnlog: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", chat("a", 1))
    assert turnlog("import", tmp_path / "store", file, "--tenant", "acme").code == 0
    with Store.open(tmp_path / "store", create=False) as opened:
        assert opened.tenant("acme").session("a").exists
        assert not opened.session("a").exists


def test_branches_come_in_and_go_out(turnlog: Any, tmp_path: Path) -> None:
    lines = chat("a", 5)
    lines[3]["parent"] = 1
    lines[4]["parent"] = -1
    file = write(tmp_path / "a.jsonl", lines)
    for _ in range(2):
        assert turnlog("import", tmp_path / "store", file).code == 0
    turnlog("export", tmp_path / "store", "-o", tmp_path / "out.jsonl")
    assert lines_of(tmp_path / "out.jsonl") == lines


def test_what_belongs_to_a_fresh_fork_stays_on_it(turnlog: Any, tmp_path: Path) -> None:
    """An import dropped the branch that such a line says, and usage fell back to the root's."""
    with Store.open(tmp_path / "first") as store:
        session = store.session("a")
        session.append_many([{"role": "user"}] * 3).result(10)
        session.fork(1, name="alt").result(10)
        session.record_usage(input_tokens=7).result(10)
    exported = turnlog("export", tmp_path / "first")
    lines = exported.out.splitlines()
    assert json.loads(lines[-1])["branch"] == 1
    (tmp_path / "a.jsonl").write_bytes(exported.out_bytes)
    (tmp_path / "b.jsonl").write_text("".join(f"{line}\n" for line in lines[:-1]))
    for into, files in (("second", "aa"), ("third", "ba")):  # at once, and the last line later
        for file in files:
            outcome = turnlog("import", tmp_path / into, tmp_path / f"{file}.jsonl")
            assert outcome.code == 0, outcome.err
        assert turnlog("export", tmp_path / into).out_bytes == exported.out_bytes
        with Store.open(tmp_path / into, create=False) as store:
            assert store.session("a").usage(branch="alt").totals.counts["input_tokens"] == 7
            assert store.check().ok


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"parent": 3}, "parent 3 does not come before", id="itself"),
        pytest.param({"parent": 7}, "parent 7 does not come before", id="later"),
        pytest.param({"parent": -2}, "parent", id="below"),
        pytest.param({"parent": 2}, "follows 2, which is no event of the history", id="control"),
        pytest.param(
            {"kind": "annotation", "parent": 1}, "of kind annotation, has a parent", id="beside"
        ),
    ],
)
def test_a_parent_that_cannot_be_leaves_the_session_out(
    turnlog: Any, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    lines = chat("a", 4)
    lines[2] = {"session": "a", "sequence": 2, "kind": "annotation", "body": {"n": 1}}
    lines[3] |= changes
    file = write(tmp_path / "a.jsonl", [*lines, *chat("b", 2)])
    outcome = turnlog("import", tmp_path / "store", file)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert reason in outcome.err
    assert ":4: session a" in outcome.err
    with Store.open(tmp_path / "store", create=False) as opened:
        assert [opened.session(name).exists for name in "ab"] == [False, True]


def test_lines_without_parents_follow_each_other(turnlog: Any, tmp_path: Path) -> None:
    lines = chat("a", 3)
    for line in lines:
        line.pop("parent", None)
    file = write(tmp_path / "a.jsonl", lines)
    for _ in range(2):
        assert turnlog("import", tmp_path / "store", file).code == 0
    turnlog("export", tmp_path / "store", "-o", tmp_path / "out.jsonl")
    assert lines_of(tmp_path / "out.jsonl") == chat("a", 3)


def test_a_session_longer_than_a_batch(turnlog: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", chat("a", 20_000))
    assert turnlog("import", tmp_path / "store", file).code == 0
    turnlog("export", tmp_path / "store", "-o", tmp_path / "out.jsonl")
    assert lines_of(tmp_path / "out.jsonl") == lines_of(file)


def test_what_is_whole_of_a_damaged_store_goes_into_a_new_one(
    turnlog: Any, calls: Path, tmp_path: Path
) -> None:
    """One damaged record kept all others in a store that takes no appends any more."""
    damaged = tmp_path / "damaged"
    shutil.copytree(calls, damaged)
    data = (damaged / "data.mdb").read_bytes()
    (damaged / "data.mdb").write_bytes(data.replace(b"Good morning", b"Bad morning!"))
    file = tmp_path / "whole.jsonl"
    refused = turnlog("export", damaged, "-o", file)
    assert refused.code == ExitCode.CORRUPTION
    assert "turnlog export --skip-damaged" in refused.err
    assert not file.exists()
    outcome = turnlog("export", damaged, "-o", file, "--skip-damaged")
    assert outcome.code == ExitCode.CORRUPTION
    assert "session call-2: event 1 is lost: log " in outcome.err
    assert "--skip-damaged" in turnlog("check", damaged).out
    imported = turnlog("import", tmp_path / "new", file)
    assert imported.code == 0
    assert imported.out == (
        "imported 5 events of 3 sessions; "
        "1 of them is a mark of kind turnlog.damaged, where an event was lost\n"
    )
    assert json.loads(turnlog("import", tmp_path / "json", file, "--json").out)["marks"] == 1
    shown = turnlog("show", tmp_path / "new", "call-2").out
    assert "Hello" in shown and "turnlog.damaged" in shown and "e2e_latency_ms" in shown
    whole = turnlog("export", calls).out.splitlines()
    kept = file.read_text("utf-8").splitlines()
    assert [one == two for one, two in zip(kept, whole, strict=True)].count(False) == 1
    assert turnlog("export", calls, "--skip-damaged").out.splitlines() == whole
    assert turnlog("export", calls, "--skip-damaged").code == 0
    for nobody in (("--session", "nobody"), ("--tenant", "nobody")):
        assert turnlog("export", calls, "--skip-damaged", *nobody).code == ExitCode.NEGATIVE
