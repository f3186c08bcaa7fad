"""Faults that were found by breaking: each test is of a whole kind of fault, with its symptom."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from engine import (
    ConflictError,
    CorruptionError,
    DamagedInputError,
    RetentionPolicy,
    Store,
    UsageError,
    artifacts,
)
from engine.facts import OWNERS
from eventlog.limits import TIME_MAX
from turnlog.cli import app

Open = Callable[..., Store]

VERSION = {"id": "r", "size": 1, "is_text": True}
PLAIN: list[Any] = [None, True, 5, 1.5, "", b"x", [], {}, [[]], ["text"], {"a": 1}]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
@pytest.mark.parametrize("key", ["type", "id", "name", "content", "tool_use_id"])
def test_any_block_of_a_message_can_be_shown(store: Store, key: str, value: Any) -> None:
    """A block whose type is a list broke every window, compaction and retention over it.

    They raised TypeError, for the session ever after and for a whole tenant's retention.
    """
    call = store.session("call")
    blocks = [{"type": "tool_use", "id": "a"}, {"type": "tool_result", key: value}, {key: value}]
    for role in ("assistant", "user", "tool"):
        call.append({"role": role, "content": blocks, key: value})
    store.flush()
    assert call.window() == call.window_entries().messages
    assert call.window(tokens=10**6, media=False)
    assert call.compact(lambda _: "what was said", keep_last=0, running=()) is not None
    report = store.apply_retention(RetentionPolicy(max_entries=1))
    assert not report.damaged


@pytest.mark.parametrize("is_archived", [False, True])
@pytest.mark.parametrize("step", range(10))
def test_sessions_made_anew_while_rules_are_applied_are_left_alone(
    store: Store, tmp_path: Path, step: int, is_archived: bool
) -> None:
    """A session that was deleted and made anew, shorter, ended the whole application of rules.

    It raised UsageError, in the middle: what went before that was told nobody.
    """

    def meanwhile(done: int, _: int) -> None:
        if done == step and not again:
            again.append(step)
            for name in names:
                store.session(name).delete().result()
                store.session(name).append({"role": "user", "content": "anew"}).result()

    names = ("a", "b", "c")
    again: list[int] = []
    for name in names:
        store.session(name).append_many([{"role": "user", "content": "old"}] * 30).result()
    report = store.apply_retention(
        RetentionPolicy(max_entries=5),
        progress=meanwhile,
        archive=tmp_path / "archive" if is_archived else None,
    )
    assert len(report.purged) + len(report.changed) <= len(names)
    for name in names if again else ():
        assert [message["content"] for message in store.session(name).history()] == ["anew"]


@pytest.mark.parametrize("key", OWNERS)
def test_no_line_deletes_an_owner(store: Store, key: str) -> None:
    """Calls set an owner to None. Where a loaded line deleted the key, nothing told that there had
    been owners, and forgetting a user missed the session that had been theirs."""
    lines = [
        {"session": "a", "sequence": 0, "kind": "facts", "body": {"set": {key: "u1"}}},
        {"session": "a", "sequence": 1, "kind": "facts", "body": {"delete": [key]}},
    ]
    with pytest.raises(DamagedInputError, match=key):
        store.load(lines)
    lines[1]["body"] = {"set": {key: None}, "delete": ["unknown"]}
    store.load(lines)
    if key == "user_id":
        assert [receipt.session for receipt in store.erase_user("u1")] == ["a"]


KEYS = (
    "title user_id workspace status summary hold parent cloned_from metadata.a related."
    " label label. label.. label.x label.x.y label..y label.-1.y label.\u00b2.y"
    f" label.{10**30}.y unknown"
).split()


@pytest.mark.parametrize("key", KEYS)
def test_no_fact_that_is_loaded_breaks_the_listing_of_its_tenant(store: Store, key: str) -> None:
    """One loaded fact of another shape broke facts, listings, retention and forgetting for ever.

    They raised TypeError and others, also for all other sessions of the tenant.
    """
    store.session("good", user_id="u").append({"role": "user", "content": "hi"}).result()
    values = [each for each in PLAIN if type(each) is not bytes]
    values += [[1, 2], ["a", None], ["a", 2], ["a", "b"], ["a", 1, 2], [None, None]]
    names = []
    for number, value in enumerate(values):
        body = {"set": {key: value}}
        with suppress(DamagedInputError):  # also its session is not made then
            name = f"bad {number}"
            store.load([{"session": name, "sequence": 0, "kind": "facts", "body": body}])
            names.append(name)
    for name in names:
        bad = store.session(name)
        assert bad.facts == bad.at(0).facts
        assert bad.clone(f"copy of {name}").facts.cloned_from is not None
        assert len(bad.statuses()) <= 1 and len(bad.summaries()) <= 1
        bad.set_status("mended").result()
        assert bad.facts.status == "mended"
    names.append("good")
    assert set(names) <= {info.name for info in store.sessions().sessions}
    assert {info.name for info in store.sessions(status="mended").sessions} == set(names[:-1])
    assert not store.apply_retention(RetentionPolicy(max_entries=1), dry_run=True).damaged
    assert "good" in {receipt.session for receipt in store.erase_user("u", force=True)}


@pytest.mark.parametrize("name", ["cost", "seconds"])
@pytest.mark.parametrize("amount", [1e308, 10**400, math.inf, math.nan, -1e-9, True, "1"])
def test_an_amount_whose_sums_are_no_numbers_is_refused(
    store: Store, name: str, amount: Any
) -> None:
    """Two costs of 1e308 were stored, and usage of the session and its tenant raised OverflowError.

    Whole numbers that are no floats raised it at once.
    """
    call: Any = store.session("call")
    for _ in range(2):
        with pytest.raises(UsageError, match=name):
            call.record_usage(**{name: amount})
        call.record_usage(**{name: 2**63}).result()
    assert store.usage() == replace(call.usage(), by_branch={}, records=[])
    totals = call.usage().totals
    assert {"seconds": totals.seconds, "cost": totals.costs.get("")}[name] == 2.0**64


@pytest.mark.parametrize(
    "told",
    [
        {name: value}
        for name in ("cost", "input_tokens", "model", "user_id", "currency", "extra")
        for value in (*PLAIN, 1e308, 10**18, -1)
        if type(value) is not bytes
    ],
    ids=repr,
)
def test_a_loaded_record_is_summed_or_damage(store: Store, told: dict[str, Any]) -> None:
    """A loaded record of another shape raised TypeError and others from all sums over it."""
    line = {"session": "a", "sequence": 0, "kind": "usage", "recorded_us": TIME_MAX}
    try:
        store.load([{**line, "body": {"append": {"": {"scope": "turn", **told}}}}])
    except DamagedInputError:
        return
    try:
        used = store.session("a").usage()
    except CorruptionError:
        with pytest.raises(CorruptionError):
            store.usage()
    else:
        assert used.totals == store.usage().totals == used.by_day["294247-01-10"]


LOADED = [
    *[("runs", {"set": {"r": {"status": "running", "owner": value}}}) for value in PLAIN],
    *[("runs", {"set": {"r": {"status": "failed", "began": value}}}) for value in PLAIN],
    *[("tool_calls", {"set": {"r": {"state": "open", "name": "n", "opened": v}}}) for v in PLAIN],
    *[
        ("artifacts", {"append": {artifacts._prefix("r"): {**VERSION, "content": value}}})
        for value in PLAIN
    ],
    *[("link", value) for value in PLAIN],
    *[("link", {"event": value, "answers": [0]}) for value in PLAIN],
    *[("link", {"event": 0, "answers": value}) for value in PLAIN],
    *[("link", {"event": 0, "answers": [value]}) for value in PLAIN],
]


@pytest.mark.parametrize(
    ("kind", "body"), [each for each in LOADED if "b'" not in repr(each)], ids=repr
)
def test_what_is_loaded_beside_a_history_is_read_or_damage(
    store: Store, kind: str, body: Any
) -> None:
    """Loaded runs, calls, versions and links of another shape raised TypeError and KeyError.

    So did whatever looked at them: windows, compactions and clones of the session.
    """
    call = store.session("call")
    call.append({"role": "user", "content": "hi"}).result()
    call.runs.begin("other").result()
    call.tool_calls.open("other", "name").result()
    store.load([{"session": "call", "sequence": 3, "kind": kind, "body": body}])
    reads: list[Callable[[], Any]] = [
        call.runs.list,
        call.tool_calls.list,
        lambda: call.artifacts.read("r"),
        call.artifacts.list,
        call.window,
        lambda: call.compact(lambda _: "what was said", keep_last=0),
        lambda: store.apply_retention(RetentionPolicy(max_entries=1)),
        lambda: call.runs.mark("r", "running"),
        lambda: call.tool_calls.done("r"),
    ]
    for read in reads:
        with suppress(CorruptionError, ConflictError, UsageError):
            read()
    assert call.clone("copy").history() == call.history()


@pytest.mark.parametrize("move", ["checkout", "root", "fork", "name", "link", "belonging", "purge"])
def test_whatever_a_session_did_with_branches_is_imported(
    checked_store: Open, store_path: Path, tmp_path: Path, move: str
) -> None:
    """The command line left out each session with a move of its head, its own exports included.

    "a head_move needs the parent that becomes the head": so also ChatGPT's trees, where
    somebody had gone back.
    """
    store = checked_store()
    call = store.session("call")
    call.append_many([{"role": "user", "content": str(number)} for number in range(4)]).result()
    {
        "checkout": lambda: call.checkout(1),
        "root": lambda: call.checkout(None),
        "fork": lambda: call.fork(2, name="fork"),
        "name": lambda: call.name_branch("name", 1),
        "link": lambda: call.link(3, [0, 1]),
        "belonging": lambda: call.artifacts.write("a", "text", event=1),
        "purge": lambda: call.purge(3),
    }[move]().result()
    call.append({"role": "user", "content": "after"}).result()
    call.checkout(3).result()
    lines, copy = tmp_path / "lines.jsonl", tmp_path / "copy"
    lines.write_text("".join(f"{line}\n" for line in store.export_lines(store.read())))
    done = CliRunner().invoke(app, ["import", str(copy), str(lines)])
    assert (done.exit_code, done.stderr) == (0, "")
    loaded = checked_store(copy).session("call")
    assert [event.body for event in loaded.path_events()] == [
        event.body for event in call.path_events()
    ]
    assert [branch[:5] for branch in loaded.branches()] == [
        branch[:5] for branch in call.branches()
    ]


def test_a_foreign_tree_whose_head_is_its_root_is_imported(tmp_path: Path) -> None:
    """As above, of a tree as its own program wrote it."""
    nodes = {
        key: {"parent": parent, "message": {"author": {"role": "user"}, "content": key}}
        for key, parent in (("a", None), ("b", "a"))
    }
    chats = [{"conversation_id": "c", "current_node": "a", "mapping": nodes}]
    source = tmp_path / "conversations.json"
    source.write_text(json.dumps(chats))
    done = CliRunner().invoke(app, ["import", str(tmp_path / "copy"), str(source)])
    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.parametrize("is_branched", [False, True])
@pytest.mark.parametrize("is_after", [False, True])
def test_a_session_purged_while_it_had_no_head_is_loaded(
    checked_store: Open, tmp_path: Path, is_branched: bool, is_after: bool
) -> None:
    """A purged session whose head was none, and whose next event is a root, could not be loaded.

    The commit failed with an error of struct: StoreUnavailableError, each time.
    """
    store = checked_store()
    call = store.session("call")
    call.append_many([{"role": "user", "content": str(number)} for number in range(4)]).result()
    if is_branched:
        call.append({"role": "user", "content": "branch"}, parent=1).result()
    call.checkout(None).result()
    last = call.update_state({"a": 1}).result().last
    if is_after:
        call.append({"role": "user", "content": "after"}).result()
    call.purge(last).result()
    for text, parent in (("root", -1), ("x", None), ("y", None)):
        call.append({"role": "user", "content": text}, parent=parent).result()
    copy = checked_store(tmp_path / "copy")
    copy.load([json.loads(line) for line in store.export_lines(store.read())])
    loaded = copy.session("call")
    assert loaded.branches() == call.branches() and loaded.history() == call.history()


@pytest.mark.parametrize("move", ["fork", "checkout", "none"])
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_a_purged_tree_whose_head_went_back_is_loaded_as_it_is(
    checked_store: Open, tmp_path: Path, move: str, first: int
) -> None:
    """A copy of a purged session, whose head had moved below the purge, had other branches.

    Its export told the head of now in place of that at the purge, so what followed was put on
    branches that there never were; other trees could not be loaded at all.
    """
    store = checked_store()
    call = store.session("call")
    for number, parent in enumerate((None, None, 0, 1, 2, 3)):
        call.append({"role": "user", "content": str(number)}, parent=parent).result()
    {
        "fork": lambda: call.fork(1),
        "checkout": lambda: call.checkout(1),
        "none": lambda: call.checkout(None),
    }[move]().result()
    call.purge(first).result()
    copy = checked_store(tmp_path / "copy")
    lines = list(store.export_lines(store.read()))
    copy.load([json.loads(line) for line in lines])
    loaded = copy.session("call")
    assert loaded.branches() == call.branches() and loaded.head == call.head
    assert list(copy.export_lines(copy.read())) == lines


@pytest.mark.parametrize("move", ["append", "checkout", "fork"])
@pytest.mark.parametrize("is_again", [False, True])
def test_the_head_before_a_branch_that_opens_after_a_purge(
    checked_store: Open, tmp_path: Path, move: str, is_again: bool
) -> None:
    """After a purge the head before an event was taken to be what that event follows.

    Where it opened a branch, ``at`` told another head and history, a second purge stored that for
    good, and a copy had another tree.
    """
    store = checked_store()
    call = store.session("call")
    for number, parent in enumerate((None, 0, 0)):
        call.append({"role": "user", "content": str(number)}, parent=parent).result()
    call.update_state({"a": 1}).result()
    call.update_state({"a": 2}).result()
    if move == "append":
        call.append({"role": "user", "content": "more"}, parent=0).result()
    else:
        (call.checkout if move == "checkout" else call.fork)(0).result()
        call.append({"role": "user", "content": "more"}).result()
    asked = (4,) if is_again else (3, 4)
    before = [call.at(sequence).head for sequence in asked]
    call.purge(3).result()
    if is_again:
        call.purge(4).result()
    assert [call.at(sequence).head for sequence in asked] == before == [2] * len(asked)
    copy = checked_store(tmp_path / "copy")
    copy.load([json.loads(line) for line in store.export_lines(store.read())])
    assert copy.session("call").branches() == call.branches()
