"""Trees come in as trees: the path to each leaf is that of the raw file, and nothing hangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import Event, Session, Store
from engine.modelview import summary_message
from tests.cli.raw_trees import SOURCES, Raw, RawTree, claude_code, lines_in, unpacked
from turnlog.exits import ExitCode

BESIDE = ("annotation", "head_move", "usage")


def own_id(event: Event, place: int, keys: tuple[str, ...]) -> Any:
    """The source's id of an event, or where in the session it stands."""
    said: Raw = {**(event.body if event.kind == "event" else {}), **(event.metadata or {})}
    return next((said[key] for key in keys if key in said), place)


def text_of(event: Event) -> Any:
    body = event.body
    if event.kind == "compaction":
        return body["summary"]
    content = body.get("content", body.get("args", {}).get("content"))
    if isinstance(content, list) and len(content) == 1 and "parts" in content[0]:
        return content[0]["parts"][0]
    return content


def tenant_of(tree: RawTree) -> str:
    return tree.file.stem if "chat" in tree.file.name else ""


def check_tree(session: Session, tree: RawTree, keys: tuple[str, ...]) -> int:
    history = [each for each in session.events() if each.kind not in BESIDE]
    ids = {each.sequence: own_id(each, place, keys) for place, each in enumerate(history)}
    followed = {each.parent for each in history}
    leaves = [each.sequence for each in history if each.sequence not in followed]
    paths = {
        ids[leaf]: [ids[event.sequence] for event in session.path_events(leaf)] for leaf in leaves
    }
    assert paths == tree.paths()
    for event in history:
        raw = tree.texts[ids[event.sequence]]
        if event.kind == "message" and not (isinstance(raw, dict) and "content_type" in raw):
            assert text_of(event) == raw
    branches = session.branches()
    assert {each.leaf for each in branches} >= set(leaves)
    return len(leaves)


@pytest.mark.corpus
@pytest.mark.parametrize("source", SOURCES)
def test_the_path_of_each_leaf_is_that_of_the_raw_file(
    turnlog: Any, corpus: Path, tmp_path: Path, source: str
) -> None:
    files = unpacked(corpus, source, tmp_path / "raw")
    trees_of, keys = SOURCES[source]
    trees = [tree for file in files for tree in trees_of(file)]
    by_tenant: dict[str, list[Path]] = {}
    for tree in trees:
        if tree.file not in by_tenant.setdefault(tenant_of(tree), []):
            by_tenant[tenant_of(tree)].append(tree.file)
    for _ in range(2):
        for tenant, chosen in by_tenant.items():  # two exports hold one conversation each in part
            into = ["--tenant", tenant] if tenant else []
            done = turnlog("import", tmp_path / "store", *chosen, *into, "--json")
            result = json.loads(done.out)
            assert result["damaged"] == []
            assert done.code == (ExitCode.DAMAGED_INPUT if result["mended"] else 0)
    with Store.open(tmp_path / "store", create=False) as store:
        checked = [
            check_tree(store.tenant(tenant_of(tree)).session(tree.session), tree, keys)
            for tree in trees
        ]
        names = {(each.tenant, each.name) for name in by_tenant for each in _sessions(store, name)}
    assert names == {(tenant_of(tree), tree.session) for tree in trees}
    assert sum(checked) >= len([tree for tree in trees if tree.parents])
    _goes_round(turnlog, tmp_path)


def _sessions(store: Store, tenant: str) -> Any:
    return store.tenant(tenant).sessions(10_000).sessions


def _goes_round(turnlog: Any, folder: Path) -> None:
    """Export → import → export is byte-identical."""
    exported = turnlog("export", folder / "store", "-o", folder / "first.jsonl")
    assert exported.code == 0
    assert turnlog("import", folder / "again", folder / "first.jsonl").code == 0
    assert turnlog("export", folder / "again", "-o", folder / "second.jsonl").code == 0
    assert (folder / "first.jsonl").read_bytes() == (folder / "second.jsonl").read_bytes()


@pytest.mark.corpus
def test_the_raw_records_of_claude_code_can_be_made_again(
    turnlog: Any, corpus: Path, tmp_path: Path
) -> None:
    files = unpacked(corpus, "claude-code-sessions-a", tmp_path / "raw")
    files = [file for file in files if "real_projects" in file.parts]
    assert turnlog("import", tmp_path / "store", *files).code == 0
    with Store.open(tmp_path / "store", create=False) as store:
        for file in files:
            (tree,) = claude_code(file)
            events = list(store.session(tree.session).events())
            used = {
                event.parent: event.body["append"][""]["extra"]
                for event in events
                if event.kind == "usage"
            }
            records = [_record(event, used) for event in events if event.kind != "usage"]
            assert records == list(lines_in(file))


def _record(event: Event, used: dict[int | None, Any]) -> Any:
    if event.kind != "message":
        return event.body
    body = dict(event.body)
    rest = {**(event.metadata or {}), **body.pop("beside", {})}
    if "usage" in rest:
        body["usage"] = rest.pop("usage")
    if event.sequence in used:
        body["usage"] = used[event.sequence]
    return {**rest, "message": body}


@pytest.mark.corpus
def test_the_context_of_pi_at_each_compaction_is_its_summary_and_what_it_kept(
    turnlog: Any, corpus: Path, tmp_path: Path
) -> None:
    (file,) = unpacked(corpus, "pi-session-compaction", tmp_path / "raw")
    raw = list(lines_in(file))
    assert turnlog("import", tmp_path / "store", file).code == 0
    with Store.open(tmp_path / "store", create=False) as store:
        session = store.session(raw[0]["id"])
        history = [each for each in session.events() if each.kind not in BESIDE]
        compactions = [place for place, each in enumerate(history, 1) if each.kind == "compaction"]
        assert len(compactions) == 2
        for place in compactions:
            line, event = raw[place], history[place - 1]
            kept = [
                {key: part for key, part in each["message"].items() if key != "usage"}
                for each in raw[line["firstKeptEntryIndex"] : place]
                if each["type"] == "message"
            ]
            first = history[line["firstKeptEntryIndex"] - 1]
            before = [each.sequence for each in session.path_events(event.sequence)]
            through = before[before.index(first.sequence) - 1]
            assert event.body["data"]["through"] == through
            wanted = [summary_message(line["summary"]), *kept]
            window = session.window_entries(leaf=event.sequence)
            assert (window.compaction, window.is_cut) == (event.sequence, False)
            made = [each for each in window.entries if each.synthetic == "result"]
            assert len(made) <= 1  # one call was broken off
            assert [each.body for each in window.entries if each not in made] == wanted
            assert session.window(leaf=event.sequence, repair=False) == wanted
        since = [each.body for each in history[compactions[-1] :] if each.kind == "message"]
        assert session.window(repair=False) == [*wanted, *since]


@pytest.mark.corpus
def test_usage_of_the_raw_files_adds_up(turnlog: Any, corpus: Path, tmp_path: Path) -> None:
    (file,) = unpacked(corpus, "pi-session-compaction", tmp_path / "raw")
    raw = list(lines_in(file))
    assert turnlog("import", tmp_path / "store", file).code == 0
    used = [each["message"]["usage"] for each in raw if "usage" in each.get("message", {})]
    with Store.open(tmp_path / "store", create=False) as store:
        totals = store.session(raw[0]["id"]).usage("provider_turn").totals
    assert totals.counts["output_tokens"] == sum(each["output"] for each in used) > 0
    tokens = totals.counts["input_tokens"] + totals.counts["output_tokens"]
    assert tokens == sum(each["totalTokens"] for each in used)
    assert totals.costs == {"": pytest.approx(sum(each["cost"]["total"] for each in used))}


@pytest.mark.corpus
def test_usage_of_claude_code_is_that_of_each_answer_once(
    turnlog: Any, corpus: Path, tmp_path: Path
) -> None:
    files = unpacked(corpus, "claude-code-sessions-a", tmp_path / "raw")
    files = [file for file in files if "real_projects" in file.parts]
    assert turnlog("import", tmp_path / "store", *files).code == 0
    with Store.open(tmp_path / "store", create=False) as store:
        for file in files:
            answers: dict[str, int] = {}
            for record in lines_in(file):
                said = record.get("message")
                if "uuid" in record and isinstance(said, dict) and "usage" in said:
                    output = max(answers.get(said["id"], 0), said["usage"]["output_tokens"])
                    answers[said["id"]] = output
            (tree,) = claude_code(file)
            totals = store.session(tree.session).usage("provider_turn").totals
            assert totals.counts["output_tokens"] == sum(answers.values())


# Broken ones


def record(uuid: str, parent: str | None) -> Raw:
    return {
        "parentUuid": parent,
        "uuid": uuid,
        "sessionId": "s",
        "type": "user",
        "message": {"role": "user", "content": uuid},
    }


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A cycle of two, an orphan, an id that comes again, and a line that is no object."""
    lines = [
        record("a", None),
        record("b", "c"),
        record("c", "b"),
        "no object",
        record("d", "gone"),
        record("e", "d"),
        record("a", "e"),
    ]
    path = tmp_path / "broken.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_broken_tree_is_mended_and_told(turnlog: Any, tmp_path: Path, broken: Path) -> None:
    for _ in range(2):
        outcome = turnlog("import", tmp_path / "store", broken)
        assert outcome.code == ExitCode.DAMAGED_INPUT
        for line, words in (
            (2, "'b' follows itself by way of 1 other"),
            (4, "no object"),
            (5, "'d' follows 'gone', which is not there"),
            (7, "the id 'a' occurs again; what it had in line 1 counts"),
        ):
            (told,) = [each for each in outcome.err.splitlines() if f"{broken}:{line}: " in each]
            assert words in told
            assert "session broken" in told
        assert "mended 1 orphan, 1 cycle, 1 duplicate, 1 bad record" in outcome.out
    with Store.open(tmp_path / "store", create=False) as store:
        events = list(store.session("broken").events())
    assert [(each.id, each.parent) for each in events] == [
        ("a", None),
        ("b", None),
        ("c", 1),
        ("d", None),
        ("e", 3),
    ]
    _goes_round(turnlog, tmp_path)


def test_strict_leaves_a_broken_tree_out(turnlog: Any, tmp_path: Path, broken: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    whole.write_text(json.dumps(record("x", None)) + "\n")
    outcome = turnlog("import", tmp_path / "store", broken, whole, "--strict", "--json")
    assert outcome.code == ExitCode.DAMAGED_INPUT
    result = json.loads(outcome.out)
    assert (result["sessions"], result["events"], result["mended"]) == (1, 1, [])
    (entry,) = result["damaged"]
    assert (entry["session"], entry["line"], entry["more_lines"]) == ("broken", 2, 3)
    with Store.open(tmp_path / "store", create=False) as store:
        assert [store.session(name).exists for name in ("broken", "whole")] == [False, True]


def test_a_copied_beginning_goes_without_the_ids_that_are_taken(
    turnlog: Any, tmp_path: Path
) -> None:
    """A session that is resumed copies what it goes on from, ids and all, into another file. Ids
    of a tenant are unique, so the second file was refused as a whole."""
    first, second = tmp_path / "s1.jsonl", tmp_path / "s2.jsonl"
    start = [record("a", None), record("b", "a")]
    first.write_text("".join(json.dumps(each) + "\n" for each in [*start, record("c", "b")]))
    second.write_text("".join(json.dumps(each) + "\n" for each in [*start, record("d", "b")]))
    outcome = turnlog("import", tmp_path / "store", first, second)
    assert outcome.code == 0, outcome.err
    assert "imported 6 events of 2 sessions\n" in outcome.out
    with Store.open(tmp_path / "store", create=False) as store:
        events = [list(store.session(name).events()) for name in ("s1", "s2")]
    assert [[each.id for each in one] for one in events] == [["a", "b", "c"], [None] * 3]
    assert [each.metadata["uuid"] for each in events[1] if each.metadata] == ["a", "b", "d"]
    again = turnlog("import", tmp_path / "store", second, first)
    assert again.code == 0, again.err
    assert "skipped 6 events" in again.out


def test_a_transcript_that_grew_goes_on_where_it_was(turnlog: Any, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    lines = [
        record("a", None),
        record("b", "a"),
        {"type": "summary", "summary": "", "leafUuid": "b"},
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert turnlog("import", tmp_path / "store", path).code == 0
    with path.open("a") as file:
        file.write(json.dumps(record("c", "a")) + "\n")
    outcome = turnlog("import", tmp_path / "store", path)
    assert (outcome.code, outcome.out) == (
        0,
        "imported 1 event of 1 session; skipped 3 events that the store has already\n",
    )
    with Store.open(tmp_path / "store", create=False) as store:
        assert [each.id for each in store.session("s").path_events()] == ["a", "c"]
