"""Documents: written, appended exactly, compared, and those of users and tenants."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import (
    AppendConflictError,
    DamagedInputError,
    IdempotencyConflictError,
    InvalidMessageError,
    InvalidNameError,
    Store,
)
from engine.documents import APPENDED, Documents, _digest
from engine.hidden import any_session
from engine.hiddennames import DOTS, hidden_name, session_words, split_hidden
from engine.spaces import Space
from engine.values import Present
from eventlog.keys import derived_name, is_hidden
from eventlog.limits import NAME_BYTES_MAX
from tests.unit.belongings import HANG_S, USER
from turnlog.stores import session_names


def test_write_append_read_list_delete(store: Store) -> None:
    documents = store.session("a").documents
    assert documents.read("NOTES.md") is None and documents.list() == []
    assert documents.append("NOTES.md", "first\n").result(HANG_S).first == 0
    documents.append("NOTES.md", "second").result(HANG_S)
    documents.append("NOTES.md", "").result(HANG_S)
    assert documents.read("NOTES.md") == "first\nsecond"
    documents.write("é/../x", "\ud83d \x00 e\u0301\r\n").result(HANG_S)
    assert documents.read("é/../x") == "\ud83d \x00 e\u0301\r\n"
    listed = documents.list()
    assert [(each.name, each.version, each.size, each.first_line) for each in listed] == [
        ("NOTES.md", 2, 12, "first"),
        ("é/../x", 3, 11, "\ud83d \x00 e\u0301\r"),
    ]
    documents.write("NOTES.md", "anew").result(HANG_S)
    documents.append("NOTES.md", "!").result(HANG_S)
    assert documents.read("NOTES.md") == "anew!"
    documents.delete("NOTES.md").result(HANG_S)
    assert documents.read("NOTES.md") is None and len(documents.list()) == 1
    assert documents.delete("NOTES.md").result(HANG_S).first == -1
    documents.append("NOTES.md", "again").result(HANG_S)
    assert documents.read("NOTES.md") == "again"

    async def ask() -> Any:
        return await documents.read_async("NOTES.md"), await documents.list_async()

    assert asyncio.run(ask()) == (documents.read("NOTES.md"), documents.list())


def test_an_append_writes_what_is_appended_alone(store: Store) -> None:
    """agno 3923, adk 3039 and others: each save wrote the whole again, so bytes grew with the
    square of the length. A part of a document is an event of its own."""
    call = store.session("a")
    for number in range(50):
        call.documents.append("log", f"{number:04d}" * 25).result(HANG_S)
    sizes = {len(event.payload) for event in call.events(kinds=("documents",))}
    assert max(sizes) < 300 and len(call.documents.read("log") or "") == 5_000


@given(st.lists(st.tuples(st.sampled_from("aw"), st.text(max_size=5)), max_size=6))
def test_a_document_is_what_was_written_and_appended(changes: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "s") as store:
        call = store.session("s")
        expected: list[str] = []
        for how, text in changes:
            change = call.documents.append if how == "a" else call.documents.write
            change("d", text).result(HANG_S)
            expected.append((expected[-1] if expected and how == "a" else "") + text)
        assert call.documents.read("d") == (expected[-1] if expected else None)
        for sequence, text in enumerate(expected):
            assert call.at(sequence).documents.read("d") == text


def test_versions_are_compared(store: Store) -> None:
    """agno 7479, 9450: two runs saved one document, and the last one dropped what the other had
    written without an error. A version says what it was read as."""
    one, other = store.session("a").documents, store.session("a").documents
    one.write("d", "x", expected_version=-1).result(HANG_S)
    with pytest.raises(AppendConflictError):
        other.write("d", "y", expected_version=-1).result(HANG_S)
    version = one.list()[0].version
    other.append("d", "+", expected_version=version).result(HANG_S)
    for change in (
        lambda: one.write("d", "y", expected_version=version),
        lambda: one.append("d", "y", expected_version=version),
        lambda: one.delete("d", expected_version=version),
    ):
        with pytest.raises(AppendConflictError):
            change().result(HANG_S)
    assert one.read("d") == "x+"
    one.delete("d", expected_version=one.list()[0].version).result(HANG_S)
    assert one.list() == []


def test_concurrent_appends_all_stay(checked_store: Callable[..., Store]) -> None:
    stores = [checked_store(), checked_store()]
    start = threading.Barrier(6)

    def work(number: int) -> None:
        documents = stores[number % 2].session("a").documents
        start.wait(HANG_S)
        for count in range(10):
            documents.append("d", f"<{number}.{count}>").result(HANG_S)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    text = stores[0].session("a").documents.read("d") or ""
    parts = text.strip("<>").split("><")
    assert sorted(parts) == sorted(f"{a}.{b}" for a in range(6) for b in range(10))
    for number in range(6):
        mine = [each for each in parts if each.startswith(f"{number}.")]
        assert mine == [f"{number}.{count}" for count in range(10)]


def test_a_delete_leaves_nothing_of_an_append_that_it_did_not_see(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version was read after the keys: an append in between was not compared, and its text
    came back with the next document of the name."""
    call = store.session("a")
    call.documents.append("d", "one").result(HANG_S)
    real = Present.all

    def all_of(values: Present, space: Space) -> Any:
        monkeypatch.undo()
        seen = real(values, space)
        call.documents.append("d", "between").result(HANG_S)
        return seen

    monkeypatch.setattr(Present, "all", all_of)
    with pytest.raises(AppendConflictError):
        call.documents.delete("d").result(HANG_S)
    assert call.documents.read("d") == "onebetween"
    call.documents.delete("d").result(HANG_S)
    call.documents.append("d", "new").result(HANG_S)
    assert call.documents.read("d") == "new"


def test_a_write_that_did_not_see_an_append_is_not_followed_by_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of parts are read before the write: a part that came in between stays as a row, and
    counts no more."""
    call = store.session("a")
    call.documents.append("d", "one").result(HANG_S)
    real = Documents._keys

    def keys(documents: Documents, digest: str) -> Iterator[str]:
        seen = list(real(documents, digest))
        call.documents.append("d", "between").result(HANG_S)
        return iter(seen)

    with monkeypatch.context() as patch:
        patch.setattr(Documents, "_keys", keys)
        ack = call.documents.write("d", "anew")
    ack.result(HANG_S)
    assert call.documents.read("d") == "anew"
    call.documents.append("d", "!").result(HANG_S)
    assert call.documents.read("d") == "anew!"
    call.documents.delete("d").result(HANG_S)
    call.documents.append("d", "new").result(HANG_S)
    assert call.documents.read("d") == "new"


@pytest.mark.parametrize("name", ["", "x" * 513, "\ud800", 7, None])
def test_names_that_cannot_be(store: Store, name: Any) -> None:
    documents = store.session("a").documents
    for call in (lambda: documents.write(name, "x"), lambda: documents.read(name)):
        with pytest.raises(InvalidNameError):
            call()
    with pytest.raises(InvalidNameError):
        store.user(name)
    with pytest.raises(InvalidMessageError):
        documents.write("d", b"x")  # type: ignore[arg-type]


def test_scopes_are_apart_and_outlive_sessions(
    checked_store: Callable[..., Store], store_path: Path
) -> None:
    """Agentrail on Postgres had no delete, so documents stayed for ever; on others they went with
    any session. A session's go with it, a user's and a tenant's stay."""
    store = checked_store()
    acme = store.tenant("acme")
    call = acme.session("a", user_id="u1")
    call.append(USER).result(HANG_S)
    places = {
        "session": call.documents,
        "user": acme.user("u1").documents,
        "other user": acme.user("u2").documents,
        "tenant": acme.documents,
        "store": store.documents,
        "other tenant": store.tenant("b").user("u1").documents,
    }
    for name, documents in places.items():
        documents.append("D", name).result(HANG_S)
    assert {name: each.read("D") for name, each in places.items()} == {
        name: name for name in places
    }
    assert acme.session("b", user_id="u1").documents.list() == []
    assert [info.name for info in acme.sessions().sessions] == ["a"]
    assert store.sessions().sessions == []
    call.erase(HANG_S)
    assert acme.session("a").documents.read("D") is None
    assert acme.user("u1").documents.read("D") == "user"
    store.flush()
    copied = checked_store(store_path.with_name("copy"))
    lines: list[str] = []
    for tenant in store.tenants():
        world = store.tenant(tenant)
        for name in session_names(store, tenant, store.last_position):
            lines += store.export_lines(any_session(world, name).events())
    copied.load(map(json.loads, lines))
    assert copied.tenant("acme").user("u1").documents.read("D") == "user"
    assert copied.tenant("acme").documents.read("D") == "tenant"
    again: list[str] = []
    for tenant in store.tenants():
        world = copied.tenant(tenant)
        for name in session_names(copied, tenant, copied.last_position):
            again += copied.export_lines(any_session(world, name).events())
    assert again == lines


@pytest.mark.parametrize("owner", ["", "u", "é" * 256, "..", ":", "\x00\n"])
def test_no_caller_can_name_a_hidden_session(store: Store, owner: str) -> None:
    name = hidden_name("user_documents", owner)
    assert is_hidden(name) and split_hidden(name) == ("user_documents", owner)
    with pytest.raises(InvalidNameError):
        store.session(name)
    assert not is_hidden("." * NAME_BYTES_MAX)


@pytest.mark.parametrize(
    "name",
    [
        DOTS,
        DOTS + "x",
        DOTS + ":u",
        DOTS + "A:u",
        DOTS + "a" * 33 + ":",
        DOTS + "a:" + "x" * 513,
        "." * 600,
    ],
    ids=range(7),
)
def test_a_long_name_that_is_no_hidden_one_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidNameError):
        split_hidden(name)
    line = {"session": name, "sequence": 0, "kind": "message", "body": USER}
    with pytest.raises(DamagedInputError):
        store.load([line])


def test_a_key_of_a_write_does_not_stand_for_the_appends_that_it_takes_away(store: Store) -> None:
    """A write takes away the appends that are there. They were part of what its key stood for, so
    that its repetition was another append, and refused.
    """
    documents = store.session("a").documents
    for _ in range(2):
        documents.write("N", "W", idempotency_key="first").result()
        documents.append("M", "a", idempotency_key="m").result()
    documents.append("N", "a").result()
    first = documents.write("N", "V", idempotency_key="k").result()
    for more in ("", "b", "c"):
        if more:
            documents.append("N", more).result()
        store.flush()
        again = documents.write("N", "V", idempotency_key="k").result()
        assert (again.already, again.first) == (True, first.first)
    with pytest.raises(IdempotencyConflictError):
        documents.write("N", "W", idempotency_key="k").result()
    assert (documents.read("N"), documents.read("M")) == ("Vbc", "a")
    documents.write("N", "X", idempotency_key="l").result()
    rows = store.session("a")._values.all(Space.DOCUMENTS)
    assert not [key for key in rows if key.startswith(_digest("N") + APPENDED)]


def test_what_was_erased_is_told_in_words(store: Store) -> None:
    """Receipts named sessions of the store's own, by 512 dots and what only the store reads."""
    acme = store.tenant("acme")
    acme.session("s", user_id="u2").append({"n": 1}).result()
    acme.session("s").alias("also").result()
    acme.user("u2").documents.write("notes", "a").result()
    acme.documents.write("notes", "b").result()
    assert [event.is_hidden for event in store.read() if event.kind == "documents"] == [True] * 2
    assert not any(event.is_hidden for event in acme.session("s").events())
    receipts = acme.erase_user("u2")
    found = {(each.what, each.session) for each in receipts}
    assert found == {("session 's'", "s"), ("documents of user 'u2'", None)}
    rest = {(each.what, each.session) for each in store.erase_tenant("acme")}
    assert rest == {("documents of the tenant", None), ("index of aliases", None)}


def test_words_for_each_session() -> None:
    assert session_words("s") == "session 's'"
    assert session_words(hidden_name("notes")) == "notes of the tenant"
    assert session_words(derived_name("projection.00")) == "progress of a projection"
    assert session_words("." * 600) == "a session that nobody can name"
