"""Values, texts and names: in whatever place they are given, they come back as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from engine import InvalidMessageError, InvalidNameError, LimitExceededError, Session, Store
from tests.model.answers import exact
from tests.model.programs import SPECIAL_BODIES, values
from tests.model.staging import HANG_S, REPOSITORY

Open = Callable[..., Store]
Value = Any

# Plain data: how it goes in, and how it comes out again.
PLACES: dict[str, tuple[Callable[[Session, Value], Any], Callable[[Session], Value]]] = {
    "message": (
        lambda call, value: call.append({"v": value}),
        lambda call: call.history(1)[0]["v"],
    ),
    "messages": (
        lambda call, value: call.append_many([{}, {"v": value}]),
        lambda call: call.window(last=1)[0]["v"],
    ),
    "event": (
        lambda call, value: call.append_event("note", value),
        lambda call: list(call.events(kinds="note"))[-1].body,
    ),
    "metadata of an event": (
        lambda call, value: call.append({}, metadata={"v": value}),
        lambda call: (call.event(call.head or 0).metadata or {})["v"],
    ),
    "variable": (
        lambda call, value: call.update_state({"v": value}),
        lambda call: call.state["v"],
    ),
    "metadata of a session": (
        lambda call, value: call.update_metadata({"v": value}),
        lambda call: call.facts.metadata["v"],
    ),
    "detail of a status": (
        lambda call, value: call.set_status("s", detail=[value]),
        lambda call: call.facts.status_detail[0],
    ),
    "detail of a summary": (
        lambda call, value: call.set_summary("s", detail=[value]),
        lambda call: call.summaries()[-1].detail[0],
    ),
    "extra of usage": (
        lambda call, value: call.record_usage(extra={"v": value}),
        lambda call: call.usage().records[-1].extra["v"],
    ),
    "metadata of a run": (
        lambda call, value: call.runs.begin(f"r{len(call.runs.list())}", metadata={"v": value}),
        lambda call: (call.runs.list()[-1].metadata or {})["v"],
    ),
    "arguments of a tool call": (
        lambda call, value: call.tool_calls.open(f"c{len(call.tool_calls.list())}", "t", [value]),
        lambda call: call.tool_calls.list()[-1].arguments_ref[0],
    ),
    "data of a compaction": (
        lambda call, value: call.append_event("compaction", {"summary": "s", "data": {"v": value}}),
        lambda call: call.compaction().body["data"]["v"],  # type: ignore[union-attr]
    ),
}


def copied(store: Store, call: Session, other: Store) -> Session:
    """The session as it is in a store that loaded its export, by way of JSON."""
    assert not other.session(call.name).exists
    other.load([json.loads(line) for line in store.export_lines(call.events())])
    return other.session(call.name)


@pytest.mark.parametrize("place", PLACES)
def test_a_value_comes_back_type_for_type(tmp_path: Path, place: str) -> None:
    """pydantic-ai 1492, 1081, 8367: bytes broke JSON, or came back as str or dict."""
    put, get = PLACES[place]
    with (
        Store.open(tmp_path / "store", snapshot_frequency=2) as store,
        Store.open(tmp_path / "other") as other,
    ):

        @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(values)
        def there_and_back(value: Any) -> None:
            call = store.session("call")
            put(call, value).result(HANG_S)
            assert exact(get(call)) == exact(value)

        there_and_back()
        for body in SPECIAL_BODIES:
            put(store.session("call"), body).result(HANG_S)
            assert exact(get(store.session("call"))) == exact(body)
        call = store.session("call")
        last = get(call)
        assert exact(get(copied(store, call, other))) == exact(last)
        if "usage" not in place:
            assert exact(get(call.clone("copy"))) == exact(last)
        store.flush(HANG_S)
        assert store.check().ok and other.check().ok
    with Store.open(tmp_path / "store") as store:
        assert exact(get(store.session("call"))) == exact(last)


@pytest.mark.parametrize("value", [(1, 2), {1, 2}, object(), 2**64, {1: 2}, 1j], ids=repr)
@pytest.mark.parametrize("place", PLACES)
def test_what_would_come_back_as_something_else_is_refused(
    store: Store, place: str, value: Any
) -> None:
    """pydantic-ai 5814: a tuple came back as a list, and an object as its ``repr``."""
    call = store.session("call")
    with pytest.raises(InvalidMessageError) as caught:
        PLACES[place][0](call, {"in": [value]})
    assert caught.value.path.count("in") == 1
    assert not call.exists


# Texts

BAD = "\ud83d \x00 e\u0301 \udc00\ud800 \U0001f600 \u202e\r\n\x1b[31m"
TEXTS: dict[str, tuple[Callable[[Session], Any], Callable[[Session], Any]]] = {
    "key": (lambda call: call.append({BAD: 1}), lambda call: next(iter(call.history()[0]))),
    "content": (
        lambda call: call.append({"role": "user", "content": BAD}),
        lambda call: call.window()[0]["content"],
    ),
    "document": (
        lambda call: call.documents.write("d", BAD),
        lambda call: call.documents.read("d"),
    ),
    "appended": (
        lambda call: call.documents.append("d", BAD),
        lambda call: call.documents.read("d"),
    ),
    "artifact": (
        lambda call: call.artifacts.write("a", BAD),
        lambda call: call.artifacts.read("a"),
    ),
    "large artifact": (
        lambda call: call.artifacts.write("a", "x" * 5_000 + BAD),
        lambda call: (call.artifacts.read("a") or "")[5_000:],
    ),
    "title": (lambda call: call.set_title(BAD), lambda call: call.facts.title),
    "summary": (lambda call: call.set_summary(BAD), lambda call: call.facts.summary),
    "compaction": (
        lambda call: call.append_event("compaction", {"summary": BAD}),
        lambda call: call.compaction().body["summary"],  # type: ignore[union-attr]
    ),
    "variable": (lambda call: call.update_state({"a": BAD}), lambda call: call.state["a"]),
    "error of a run": (
        lambda call: call.update_metadata({"m": [BAD]}),
        lambda call: call.facts.metadata["m"][0],
    ),
}


@pytest.mark.parametrize("place", TEXTS)
def test_a_text_that_others_choke_on_poisons_nothing(
    checked_store: Open, tmp_path: Path, place: str
) -> None:
    """openclaw 18105, github/app 945, agent-zero 1773: one lone surrogate or NUL poisoned a session
    for ever. Here every read gives it back, and an export takes it along."""
    store, other = checked_store(snapshot_frequency=1), checked_store(tmp_path / "other")
    put, get = TEXTS[place]
    call = store.session("call")
    put(call).result(HANG_S)
    call.append({"role": "user", "content": "after"}).result(HANG_S)
    store.flush(HANG_S)
    assert get(call) == BAD
    assert get(copied(store, call, other)) == BAD
    assert call.history(1) == [{"role": "user", "content": "after"}]
    call.at(0).state, store.sessions(), call.window(tokens=50), list(store.read())
    call.purge(1).result(HANG_S)
    if place not in ("key", "content", "compaction"):
        assert get(call) == BAD


def test_the_command_line_says_any_text(store: Store) -> None:
    """Escaped: what a terminal would obey, and what is no UTF-8, is not in its output."""
    call = store.session("call")
    for put, _ in TEXTS.values():
        put(call).result(HANG_S)
    verbs = (["show"], ["replay"], ["export"], ["show", "--state"], ["replay", "--json"])
    for verb, *options in verbs:
        name = ["call"] if verb != "export" else []
        done = subprocess.run(
            [sys.executable, "-m", "turnlog", verb, str(store.path), *name, *options],
            env={"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tools'}"},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (verb, done.stderr)
        done.stdout.decode()
        assert b"\x1b" not in done.stdout and b"\x00" not in done.stdout


# Names

NAMES = ["a", "a:", "a:b", "a\x00b", "a/b", "../x", "%", "A", "\u00e9", "e\u0301", "\U0001f600"]
NAMES += ["n" * 300, "a\nb", " a ", "null", "0"]
FILES = {"turnlog.json", "data.mdb", "lock.mdb", "turnstile.lock", "writer.lock", "use.lock"}
SPACES: dict[str, tuple[Callable[[Store, str], Any], Callable[[Store, str], Any]]] = {
    "session": (
        lambda store, name: store.session(name).append({"n": name}),
        lambda store, name: [body["n"] for body in store.session(name).history()],
    ),
    "tenant": (
        lambda store, name: store.tenant(name).session("s").append({"n": name}),
        lambda store, name: [body["n"] for body in store.tenant(name).session("s").history()],
    ),
    "user": (
        lambda store, name: store.user(name).documents.write("d", name),
        lambda store, name: [store.user(name).documents.read("d")],
    ),
    "document": (
        lambda store, name: store.session("s").documents.write(name, name),
        lambda store, name: [store.session("s").documents.read(name)],
    ),
    "artifact": (
        lambda store, name: store.session("s").artifacts.write(name, name),
        lambda store, name: [store.session("s").artifacts.read(name)],
    ),
    "variable": (
        lambda store, name: store.session("s").update_state({name: name}),
        lambda store, name: [store.session("s").state.get(name)],
    ),
    "run": (
        lambda store, name: store.session("s").runs.begin(name, metadata={"n": name}),
        lambda store, name: [(store.session("s").runs.get(name).metadata or {})["n"]],  # type: ignore[union-attr]
    ),
    "tool call": (
        lambda store, name: store.session("s").tool_calls.open(name, name),
        lambda store, name: [store.session("s").tool_calls.get(name).name],  # type: ignore[union-attr]
    ),
    "alias": (
        lambda store, name: store.session(f"of {name}").alias(name),
        lambda store, name: [store.by_alias(name).name.removeprefix("of ")],  # type: ignore[union-attr]
    ),
    "label": (
        lambda store, name: store.session(f"of {name}").label(name),
        lambda store, name: [
            info.name.removeprefix("of ") for info in store.sessions(label=name).sessions
        ],
    ),
    "branch": (
        lambda store, name: store.session(f"of {name}").fork(0, name=name),
        lambda store, name: list(store.session(f"of {name}").branches()[-1].names),
    ),
    "event": (
        lambda store, name: store.session("s").append({"n": name}, id=name),
        lambda store, name: [each.body["n"] for each in store.read() if each.id == name],
    ),
    "key": (
        lambda store, name: store.session("s").append({"n": name}, idempotency_key=name),
        lambda store, name: [
            store.session("s")
            .event(
                store.session("s").append({"n": name}, idempotency_key=name).result(HANG_S).first
            )
            .body["n"]
        ],
    ),
    "owner": (
        lambda store, name: store.session(f"of {name}", user_id=name).append({}),
        lambda store, name: [
            info.name.removeprefix("of ") for info in store.sessions(user_id=name).sessions
        ],
    ),
}


@pytest.mark.parametrize("space", SPACES)
def test_related_names_never_meet(checked_store: Open, space: str) -> None:
    """hermes-webui 412, hive 1000: ids were used as paths; agentsview 1191: two namespaces shared
    ids, and one wrote over the other's; others join the parts of a key with a NUL."""
    store = checked_store(snapshot_frequency=2)
    put, get = SPACES[space]
    names = list(NAMES)
    if space == "branch":
        names = [name for name in names if not name.isdecimal()]  # that are numbers of branches
        for name in names:
            store.session(f"of {name}").append({}).result(HANG_S)
    for name in names:
        put(store, name).result(HANG_S)
    for _ in range(2):
        assert {name: get(store, name) for name in names} == {name: [name] for name in names}
        store.close()
        store = checked_store()
    files = {path.name for path in store.path.rglob("*")}
    assert files == FILES and {path.name for path in store.path.parent.iterdir()} <= {"store"}


@pytest.mark.parametrize("space", SPACES)
def test_what_is_no_name_is_refused_at_the_call(store: Store, space: str) -> None:
    put, _ = SPACES[space]
    for name in ("", "n" * 2_000, "\ud800"):
        if space == "tenant" and not name:
            continue  # the tenant without a name
        with pytest.raises((InvalidNameError, LimitExceededError)):
            put(store, name)
    assert store.last_position == 0
