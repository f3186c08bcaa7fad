"""show, replay, sessions, tail, stats, check: what they print."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog.limits import DUE_EVENTS
from turnlog import stores
from turnlog.exits import ExitCode

from .conftest import Turnlog, acting, fill_with_everything, say


def test_show_is_a_transcript(turnlog: Any, calls: Path) -> None:
    head, *entries = turnlog("show", calls, "call-2").out.splitlines()
    assert "call-2" in head
    assert "u2" in head
    assert "3 events" in head
    assert entries == [
        "0000000000  +00:00.000    user        Hello",
        "0000000001  +00:00.500    assistant   Good morning",
        "0000000002  +00:00.500    timing      e2e_latency_ms=500",
    ]


@pytest.mark.parametrize(("limit", "sequences"), [(0, []), (2, [1, 2]), (9, [0, 1, 2])])
def test_show_takes_the_last_events(
    turnlog: Any, calls: Path, limit: int, sequences: list[int]
) -> None:
    outcome = turnlog("show", calls, "call-2", "--limit", limit, "--json")
    assert [json.loads(line)["sequence"] for line in outcome.out.splitlines()] == sequences


def test_show_json_is_the_export(turnlog: Any, calls: Path) -> None:
    shown = turnlog("show", calls, "call-2", "--json").out_bytes
    assert shown == turnlog("export", calls, "--session", "call-2").out_bytes


def test_show_keeps_tenants_apart(turnlog: Any, calls: Path) -> None:
    assert "From acme" in turnlog("show", calls, "call-1", "--tenant", "acme").out
    assert "From acme" not in turnlog("show", calls, "call-1").out


def test_show_shortens_long_entries_unless_asked_not_to(turnlog: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Store.open(path) as store:
        store.session("s").append({"role": "user", "content": "x" * 9000}).result()
    assert "(7,000 more characters)" in turnlog("show", path, "s").out
    assert "x" * 9000 in turnlog("show", path, "s", "--full").out


@pytest.fixture
def moving(tmp_path: Path) -> Path:
    """A session whose variables change between its messages."""
    path = tmp_path / "moving"
    with Store.open(path) as store:
        lines = [
            {"kind": "message", "body": {"role": "user", "content": "Hi"}},
            {"kind": "variables", "body": {"set": {"mood": "calm", "raw": {"$b64": "AA=="}}}},
            {"kind": "message", "body": {"role": "user", "content": "No!"}},
            {"kind": "variables", "body": {"set": {"mood": "angry"}, "delete": ["raw"]}},
        ]
        store.load(
            {"session": "s", "recorded_us": 1_700_000_000_000_000 + number * 1_000_000, **line}
            for number, line in enumerate(lines)
        )
    return path


@pytest.mark.parametrize(
    ("at", "count"),
    [
        ("0", 1),
        ("0000000002", 3),
        ("0" * 5_000 + "2", 3),
        ("3", 4),
        ("2023-11-14T22:13:21", 2),
        ("2023-11-14 22:13:21.999Z", 2),
        ("2023-11-14T23:13:22+01:00", 3),
        ("2030-01-01", 4),
    ],
)
@pytest.mark.parametrize("verb", ["show", "replay"])
def test_a_session_as_it_was(turnlog: Any, moving: Path, verb: str, at: str, count: int) -> None:
    outcome = turnlog(verb, moving, "s", "--at", at, "--json")
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    assert [line["sequence"] for line in lines] == list(range(count))
    text = turnlog(verb, moving, "s", "--at", at).out
    assert ("1 event" if count == 1 else f"{count} events") in text


@pytest.mark.parametrize("verb", ["show", "replay"])
@pytest.mark.parametrize("at", ["4", "-1", "noon", "2023-11-14T22:13:19", "", "9" * 4_301])
def test_a_moment_that_is_none(turnlog: Any, moving: Path, verb: str, at: str) -> None:
    """A number of 4,301 digits ended the command with a fault of its own."""
    outcome = turnlog(verb, moving, "s", f"--at={at}")
    assert outcome.code == ExitCode.USAGE
    assert outcome.err.startswith("turnlog: ")


def test_show_state(turnlog: Any, moving: Path) -> None:
    shown = turnlog("show", moving, "s", "--state", "--json").out.splitlines()
    assert [json.loads(line) for line in shown] == [
        {"key": "mood", "value": "angry", "updated_us": 1_700_000_003_000_000, "sequence": 3}
    ]
    shown = turnlog("show", moving, "s", "--state", "--json", "--at", "2").out.splitlines()
    assert [(each["key"], each["value"]) for each in map(json.loads, shown)] == [
        ("mood", "calm"),
        ("raw", {"$b64": "AA=="}),
    ]
    text = turnlog("show", moving, "s", "--state").out
    assert "mood" in text and "angry" in text and "2023-11-14 22:13:23" in text
    assert "no variables" in turnlog("show", moving, "s", "--state", "--at", "0").err


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_replay_is_byte_stable(turnlog: Any, calls: Path, options: list[str]) -> None:
    first = turnlog("replay", calls, "call-2", *options)
    assert first.code == 0
    with Store.open(calls) as store:
        store.session("other").append({"role": "user", "content": "Meanwhile"}).result()
    assert turnlog("replay", calls, "call-2", *options).out_bytes == first.out_bytes


def test_replay_of_the_same_call_in_another_store_is_the_same(
    turnlog: Any, calls: Path, tmp_path: Path
) -> None:
    """Positions, session numbers and the time of recording belong to a store, not to the call."""
    lines = [json.loads(line) for line in turnlog("export", calls).out.splitlines()]
    for line in lines:
        line["recorded_us"] += 77
    file = tmp_path / "moved.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in reversed(lines[:1])))
    with file.open("a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines[1:])
    turnlog("import", tmp_path / "moved", file)
    for options in ([], ["--json"]):
        ours = turnlog("replay", calls, "call-2", *options).out_bytes
        assert turnlog("replay", tmp_path / "moved", "call-2", *options).out_bytes == ours


def test_replay_json_has_offsets_and_no_clock(turnlog: Any, calls: Path) -> None:
    lines = [json.loads(x) for x in turnlog("replay", calls, "call-2", "--json").out.splitlines()]
    assert [line["offset_us"] for line in lines] == [0, 500_000, 500_100]
    assert not any("recorded_us" in line or "position" in line for line in lines)


def test_replay_waits_as_long_as_the_call_did(
    turnlog: Any, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnlog.verbs import replay_session

    slept: list[float] = []
    monkeypatch.setattr(replay_session, "sleep", slept.append)
    plain = turnlog("replay", calls, "call-2").out_bytes
    assert slept == []
    assert turnlog("replay", calls, "call-2", "--speed", "10").out_bytes == plain
    assert slept == [0.05, pytest.approx(0.00001)]


def test_replay_never_waits_for_times_that_go_back(
    turnlog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnlog.verbs import replay_session

    slept: list[float] = []
    monkeypatch.setattr(replay_session, "sleep", slept.append)
    with Store.open(tmp_path / "store") as store:
        for time_us in (10_000_000, 5_000_000, 5_000_000, 20_000_000):
            store.session("s").append({"role": "user", "content": "x"}, time_us=time_us).result()
    outcome = turnlog("replay", tmp_path / "store", "s", "--speed", "1")
    assert slept == [10.0]
    assert [line[12:22] for line in outcome.out.splitlines()[1:-1]] == [
        "+00:00.000",
        "-00:05.000",
        "-00:05.000",
        "+00:10.000",
    ]


def test_replay_limit(turnlog: Any, calls: Path) -> None:
    assert len(turnlog("replay", calls, "call-2", "--limit", 2, "--json").out.splitlines()) == 2


def test_sessions_newest_first(turnlog: Any, calls: Path) -> None:
    head, *rows = turnlog("sessions", calls, "--tenant", "").out.splitlines()
    assert head.split() == "SESSION USER EVENTS MESSAGES LAST ACTIVITY (UTC) STATUS TITLE".split()
    assert [row.split()[:4] for row in rows] == [
        ["call-1", "u1", "1", "1"],
        ["call-2", "u2", "3", "2"],
    ]
    assert rows[1].endswith("Second")


def test_sessions_of_all_tenants(turnlog: Any, calls: Path) -> None:
    """A store whose calls were all in tenants listed nothing."""
    head, *rows = turnlog("sessions", calls).out.splitlines()
    assert head.split()[:2] == ["TENANT", "SESSION"]
    assert [row.split()[:4] for row in rows] == [
        ["acme", "call-1", "-", "1"],
        ["-", "call-1", "u1", "1"],
        ["-", "call-2", "u2", "3"],
    ]


def test_sessions_without_tenants_have_no_column_for_them(turnlog: Any, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        store.session("s").create().result()
    assert turnlog("sessions", tmp_path / "store").out.startswith("SESSION ")


def test_sessions_by_page(turnlog: Any, tmp_path: Path) -> None:
    """A cursor goes on over all tenants; every session comes once, newest first."""
    path = tmp_path / "store"
    expected = []
    with Store.open(path) as store:
        for number in range(23):
            tenant = ("", "a", "b")[number % 3]
            store.tenant(tenant).session(f"s{number}").create().result()
            expected.insert(0, (tenant, f"s{number}"))
    found = []
    options: list[object] = []
    while True:
        *rows, last = map(
            json.loads,
            turnlog("sessions", path, "--limit", 5, "--json", *options).out.splitlines(),
        )
        if "cursor" not in last:
            rows.append(last)
        found += [(row["tenant"], row["session"]) for row in rows]
        if "cursor" not in last:
            break
        options = ["--cursor", last["cursor"]]
    assert found == expected


def test_a_listing_of_nothing_says_so(turnlog: Any, calls: Path) -> None:
    outcome = turnlog("sessions", calls, "--user", "u\x1b[31m")
    assert outcome.code == 0
    assert outcome.err == "no sessions of user 'u\\x1b[31m'\n"


def test_sessions_of_a_user_and_of_a_tenant(turnlog: Any, calls: Path) -> None:
    of_user = turnlog("sessions", calls, "--user", "u2", "--json").out.splitlines()
    assert [json.loads(line)["session"] for line in of_user] == ["call-2"]
    of_tenant = turnlog("sessions", calls, "--tenant", "acme", "--json").out.splitlines()
    assert [json.loads(line)["tenant"] for line in of_tenant] == ["acme"]


def test_a_cursor_that_is_none_is_a_wrong_command_line(turnlog: Any, calls: Path) -> None:
    outcome = turnlog("sessions", calls, "--cursor", "\x1b[31mno")
    assert outcome.code == ExitCode.USAGE
    assert acting(outcome.err) == []


@pytest.mark.parametrize(
    ("options", "places"),
    [
        pytest.param(
            [],
            [("call-2", 0), ("call-2", 1), ("call-2", 2), ("call-1", 0), ("call-1", 0)],
            id="all",
        ),
        pytest.param(["-n", 2], [("call-1", 0), ("call-1", 0)], id="last-2"),
        pytest.param(["-n", 0], [], id="none"),
        pytest.param(["--session", "call-2", "-n", 1], [("call-2", 2)], id="session"),
        pytest.param(["--tenant", "acme"], [("call-1", 0)], id="tenant"),
        pytest.param(["--tenant", "", "-n", 2], [("call-2", 2), ("call-1", 0)], id="unnamed"),
    ],
)
def test_tail(
    turnlog: Any, calls: Path, options: list[object], places: list[tuple[str, int]]
) -> None:
    lines = [
        json.loads(line) for line in turnlog("tail", calls, "--json", *options).out.splitlines()
    ]
    assert [(line["session"], line["sequence"]) for line in lines] == places
    assert [line["position"] for line in lines] == sorted(line["position"] for line in lines)
    assert turnlog("tail", calls, *options).out.count("\n") == len(places)


def test_check_of_a_sound_store(turnlog: Any, calls: Path) -> None:
    outcome = turnlog("check", calls)
    assert outcome.code == 0
    assert outcome.out.startswith("no findings")
    result = json.loads(turnlog("check", calls, "--json").out)
    assert (result["ok"], result["findings"]) == (True, [])


def test_damaged_bytes_are_findings_and_never_shown(
    turnlog: Any, calls: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(calls, damaged)
    data = (damaged / "data.mdb").read_bytes()
    assert b"Good morning" in data
    (damaged / "data.mdb").write_bytes(data.replace(b"Good morning", b"Bad morning!"))
    outcome = turnlog("check", damaged)
    assert outcome.code == ExitCode.NEGATIVE
    assert "finding" in outcome.out
    assert json.loads(turnlog("check", damaged, "--json").out)["ok"] is False
    for verb in ("show", "replay"):
        shown = turnlog(verb, damaged, "call-2")
        assert shown.code == ExitCode.CORRUPTION
        assert "morning" not in shown.out
        assert shown.err.startswith("turnlog: ")


def test_stats(turnlog: Any, calls: Path) -> None:
    facts = json.loads(turnlog("stats", calls, "--json").out)
    assert facts["events"] == 5
    assert facts["file_bytes"] == (calls / "data.mdb").stat().st_size
    for size in ("file_bytes", "used_bytes"):
        assert facts[f"{size}_per_event"] == round(facts[size] / 5, 1)
    rows = [line.split(maxsplit=1) for line in turnlog("stats", calls).out.splitlines()]
    assert ["events", "5"] in rows
    assert ["queue_bytes", "0 B of 64.0 MiB"] in rows
    assert ["hot_events", "5 of 192,512"] in rows
    texts = dict([row for row in rows if len(row) == 2])
    assert texts["log"].endswith("%  events as they came")
    assert texts["free"].endswith("pages for what comes")


def test_check_says_which_keys_it_counts(turnlog: Any, tmp_path: Path) -> None:
    """It counted those of sealed events, and called them all."""
    with Store.open(tmp_path / "store") as store:
        for number in range(DUE_EVENTS + 20):
            body = {"role": "user", "content": f"{number}"}
            store.session("s").append(body, idempotency_key=f"k{number}")
    report = json.loads(turnlog("check", tmp_path / "store", "--json").out)
    keys = report["counts"]["keys"]
    assert 0 < keys <= DUE_EVENTS + 20
    out = turnlog("check", tmp_path / "store").out
    assert f", {keys} keys of sealed events" in out
    assert "0 ids of events cut from the hot log" in out


def test_stats_of_an_empty_store(turnlog: Any, tmp_path: Path) -> None:
    Store.open(tmp_path / "store").close()
    assert turnlog("stats", tmp_path / "store").code == 0
    assert turnlog("tail", tmp_path / "store").out == ""
    assert turnlog("export", tmp_path / "store").out == ""


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_nothing_stored_acts_on_the_terminal(
    turnlog: Any, tmp_path: Path, options: list[str]
) -> None:
    path = tmp_path / "everything"
    with Store.open(path) as store:
        fill_with_everything(store)
    name = "é/../\x1b[31m"
    for line in (
        ["show", path, name],
        ["show", path, name, "--full"],
        ["replay", path, name],
        ["sessions", path],
        ["tail", path, "-n", 50],
        ["tail", path, "--session", name],
        ["tail", path, "--tenant", "tenant \x07"],
        ["stats", path],
        ["check", path],
    ):
        outcome = turnlog(*line, *options)
        assert outcome.code == 0, outcome.err
        assert outcome.out
        assert acting(outcome.out + outcome.err) == []
    assert acting(turnlog("export", path).out) == []


def test_names_of_files_and_sessions_are_inert_in_messages(turnlog: Any, tmp_path: Path) -> None:
    file = tmp_path / "bad\x1b[2J\u202e.jsonl"
    file.write_text('{"session":"s\\u001b[31m","sequence":0,"kind":"message","body":{"$x":1}}\n')
    outcome = turnlog("import", tmp_path / "store", file)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert acting(outcome.out + outcome.err) == []
    assert r"bad\x1b[2J\u202e.jsonl" in outcome.err
    assert r"s\x1b[31m" in outcome.err


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_file_names_that_are_no_text(turnlog: Any, tmp_path: Path, options: list[str]) -> None:
    file = tmp_path / os.fsdecode(b"bad\xff.jsonl")
    file.write_text("no JSON")
    outcome = turnlog("import", tmp_path / "store", file, *options)
    assert outcome.code == ExitCode.DAMAGED_INPUT
    assert r"bad\udcff.jsonl" in outcome.err
    assert acting(outcome.out + outcome.err) == []


@pytest.mark.parametrize("given", ["all", "some", "none"])
def test_a_limit_does_not_move_the_time_line(turnlog: Any, tmp_path: Path, given: str) -> None:
    """Relative times are from the session's start, whatever is shown of it.

    They were from the first event shown, and an event without a time stood at the start.
    """
    path = tmp_path / "store"
    count = 40
    lines = []
    for number in range(count):
        line: dict[str, Any] = {"session": "s", "sequence": number}
        line |= {"parent": number - 1} if number else {}
        line |= {"kind": "message", "recorded_us": 1_000_000 + number * 250_000}
        if given == "all" or (given == "some" and number in (2, 3)):
            line["time_us"] = 5_000_000 + number * 1_000_000
        lines.append(line | {"body": {"role": "user", "content": f"turn {number}"}})
    file = tmp_path / "s.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert turnlog("import", path, file).code == 0
    whole = turnlog("show", path, "s").out.splitlines()
    assert len(whole) == count + 1
    for limit in (1, 7, count - 3, count):
        shown = turnlog("show", path, "s", "--limit", limit).out.splitlines()
        assert shown == [whole[0], *whole[-limit:]]
    assert turnlog("replay", path, "s").out.splitlines()[1:-1] == whole[1:]


def test_replay_says_what_its_times_are(turnlog: Any, tmp_path: Path, calls: Path) -> None:
    """Without given times the heading said "starts - UTC"."""
    assert "starts 1970-01-01 00:00:01 UTC" in turnlog("replay", calls, "call-2").out
    path = tmp_path / "store"
    with Store.open(path) as store:
        store.session("s", title="T\n0000000000  +00:00.000  user  forged").append(
            {"role": "user", "content": "x"}
        ).result()
    head, entry, end = turnlog("replay", path, "s").out.splitlines()
    assert "without times of its own, recorded from 20" in head
    assert r"T\n0000000000" in head
    assert entry.startswith("0000000000  +00:00.000  ")
    assert end.startswith("1 event in 00:00.000, content ")


def test_replay_says_how_much_of_it_is_shown(turnlog: Any, calls: Path) -> None:
    assert (
        "the first 2 of 3 events in 00:00.500"
        in turnlog("replay", calls, "call-2", "--limit", 2).out
    )


def test_sessions_that_move_while_they_are_listed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that is written meanwhile moves to the front of the listing, past its cursor."""
    monkeypatch.setattr(stores, "PAGE_SESSIONS", 2)
    with Store.open(tmp_path / "store") as store:
        for number in range(6):
            store.session(f"s{number}").create().result()
        store.tenant("other").session("s9").create().result()
        last = store.last_position
        listing = store.sessions

        def listing_and_writing(**options: Any) -> Any:
            page = listing(**options)
            if options["cursor"] is None:
                store.session("s0").append_event("note", 1).result()
                store.tenant("other").session("s9").append_event("note", 1).result()
            return page

        monkeypatch.setattr(store, "sessions", listing_and_writing)
        assert stores.session_names(store, "", last) == [f"s{number}" for number in range(6)]


@pytest.fixture
def described(tmp_path: Path) -> Path:
    """A store whose sessions are described by facts."""
    path = tmp_path / "described"
    with Store.open(path) as store:
        for number, tenant in enumerate(("", "a", "b")):
            call = store.tenant(tenant).session(
                f"s{number}",
                user_id="u",
                account_id=f"acc{number}",
                agent_id="g",
                workspace=f"w{number % 2}",
                metadata={"n": number, "channel": "phone"},
            )
            call.append({"role": "user", "content": "hi"}).result()
            call.set_status("open" if number else "closed")
            call.set_title(f"title {number}")
            call.alias(f"alias {number}").result()
        store.tenant("b").session("s2").label("vip\x1b[31m").result()
    return path


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--account", "acc1"], ["s1"]),
        (["--agent", "g"], ["s2", "s1", "s0"]),
        (["--workspace", "w0"], ["s2", "s0"]),
        (["--status", "open"], ["s2", "s1"]),
        (["--status", "open", "--tenant", "a"], ["s1"]),
        (["--label", "vip\x1b[31m"], ["s2"]),
        (["--alias", "alias 1"], ["s1"]),
        (["--alias", "alias 1", "--tenant", "b"], []),
        (["--metadata", "n=1"], ["s1"]),
        (["--metadata", "n='1'"], []),
        (["--metadata", "channel=phone", "--metadata", "n=2"], ["s2"]),
        (["--since", "2000-01-01"], ["s2", "s1", "s0"]),
        (["--until", "2000-01-01T00:00:00+01:00"], []),
    ],
    ids=lambda each: " ".join(each),
)
def test_sessions_by_what_they_are(
    turnlog: Any, described: Path, options: list[str], found: list[str]
) -> None:
    lines = turnlog("sessions", described, *options, "--json").out.splitlines()
    assert [json.loads(line)["session"] for line in lines] == found


@pytest.mark.parametrize(
    "options",
    [["--metadata", "n"], ["--metadata", "=1"], ["--since", "yesterday\x1b"], ["--user", ""]],
    ids=repr,
)
def test_a_filter_that_is_none_is_a_wrong_command_line(
    turnlog: Any, described: Path, options: list[str]
) -> None:
    outcome = turnlog("sessions", described, *options)
    assert outcome.code == ExitCode.USAGE
    assert acting(outcome.err) == []


def test_show_and_sessions_tell_title_status_and_labels(turnlog: Any, described: Path) -> None:
    head = turnlog("show", described, "s2", "--tenant", "b").out.splitlines()[0]
    assert "title 2" in head and "status open" in head and "labels 'vip\\x1b[31m'" in head
    then = turnlog("show", described, "s2", "--tenant", "b", "--at", 0).out.splitlines()[0]
    assert "title" not in then and "status" not in then and "labels" not in then
    _, first, *_ = turnlog("sessions", described).out.splitlines()
    assert "open" in first and "title 2" in first
    told = json.loads(turnlog("sessions", described, "--json", "--limit", 1).out.splitlines()[0])
    assert (told["status"], told["labels"], told["workspace"]) == ("open", ["vip\x1b[31m"], "w0")


def test_an_export_of_everything_shows_no_hidden_session(turnlog: Any, described: Path) -> None:
    lines = turnlog("export", described).out.splitlines()
    assert {json.loads(line)["session"] for line in lines} == {"s0", "s1", "s2"}
    assert turnlog("tail", described, "-n", 100).out.count("turnlog.") == 0


@pytest.fixture
def beheaded(tmp_path: Path) -> Path:
    """A session whose first 25 of 30 events, with given times, were purged; a base came after."""
    path = tmp_path / "beheaded"
    with Store.open(path) as store:
        call = store.session("c")
        for number in range(30):
            say(call, number * 1_000_000, "user", f"turn {number}")
        call.purge(25).result()
    return path


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        pytest.param(("show", "c", "--limit", "4"), "turn 27", id="show"),
        pytest.param(("show", "c", "--limit", "30"), "turn 25", id="show-more"),
        pytest.param(("show", "c", "--leaf", "28", "--limit", "2"), "turn 27", id="leaf"),
        pytest.param(("tail", "--session", "c", "-n", "4"), "turn 27", id="tail"),
        pytest.param(("tail", "--session", "c", "-n", "28"), "turn 25", id="tail-more"),
        pytest.param(("replay", "c", "--limit", "2"), "turn 25", id="replay"),
    ],
)
def test_the_last_events_of_a_purged_session(
    turnlog: Turnlog, beheaded: Path, arguments: tuple[str, ...], first: str
) -> None:
    """`show --limit` looked for the time before what it shows among events that were purged.

    So did `tail` for events of a session that begins later; both said that they were purged.
    """
    verb, *rest = arguments
    outcome = turnlog(verb, beheaded, *rest)
    assert outcome.code == 0, outcome.err
    shown = [line for line in outcome.out.splitlines() if "turn" in line]
    assert first in shown[0]


def test_tail_says_in_words_what_no_session_holds(turnlog: Turnlog, calls: Path) -> None:
    """It showed names of 512 dots, which nobody can give."""
    with Store.open(calls) as store:
        store.tenant("acme").user("u\x1b").documents.write("notes", "a").result()
        store.documents.write("notes", "b").result()
    shown = turnlog("tail", calls, "-n", "2").out
    assert "documents of the tenant" in shown
    assert "acme/documents of user 'u" in shown
    assert ".." not in shown and acting(shown) == []


def test_a_listing_marks_counts_that_hold_purged_events(turnlog: Turnlog, beheaded: Path) -> None:
    with Store.open(beheaded) as store:
        say(store.session("whole"), 0, "user", "all of it")
    outcome = turnlog("sessions", beheaded)
    rows = {line.split()[0]: line.split() for line in outcome.out.splitlines()}
    assert rows["c"][2:4] == ["31*", "30*"]
    assert rows["whole"][2:4] == ["1", "1"]
    assert "* with events that were purged" in outcome.err
    told = [json.loads(line) for line in turnlog("sessions", beheaded, "--json").out.splitlines()]
    assert {each["session"]: each["first_sequence"] for each in told} == {"c": 25, "whole": 0}


@pytest.mark.parametrize("option", ["-n", "--limit"])
@pytest.mark.parametrize("verb", [["show"], ["tail", "--session"]])
def test_the_last_n_are_asked_for_in_either_way(
    turnlog: Turnlog, calls: Path, verb: list[str], option: str
) -> None:
    name, *rest = verb
    outcome = turnlog(name, calls, *rest, "call-2", option, "1", "--json")
    assert [json.loads(line)["sequence"] for line in outcome.out.splitlines()] == [2]
