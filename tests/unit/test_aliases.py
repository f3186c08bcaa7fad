"""Aliases: unique within a tenant, whoever claims them, and free when their session goes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import Session, Store
from eventlog.errors import ConflictError, InvalidNameError, UsageError
from eventlog.keys import derived_name, is_hidden, name_bytes
from eventlog.limits import NAME_BYTES_MAX
from tests.model.staging import HANG_S

Open = Callable[..., Store]


def led(store: Store, alias: str, tenant: str = "") -> str | None:
    """The name of the session that an alias leads to."""
    found = store.tenant(tenant).by_alias(alias)
    return None if found is None else found.name


@pytest.mark.parametrize("is_new", [True, False], ids=["of a new session", "of an old one"])
def test_an_alias_leads_to_its_session(checked_store: Open, is_new: bool) -> None:
    store = checked_store(snapshot_frequency=1)
    call = store.tenant("acme").session("call", user_id="u")
    if not is_new:
        call.append({}).result()
    call.alias("twilio:CA123").result()
    call.alias("b").result()
    store.flush()
    assert led(store, "twilio:CA123", "acme") == "call"
    assert call.facts.aliases == ("b", "twilio:CA123")
    assert call.facts.user_id == "u"
    assert led(store, "twilio:CA123") is None, "another tenant's"
    assert led(store, "twilio") is None
    store.close()
    store = checked_store()
    assert led(store, "b", "acme") == "call"
    store.rebuild()
    assert led(store, "b", "acme") == "call"
    found = asyncio.run(store.tenant("acme").by_alias_async("b"))
    assert found is not None and found.name == "call"


def test_it_is_taken_until_it_is_given_back(store: Store) -> None:
    a, b = store.session("a"), store.session("b")
    a.alias("x").result()
    a.alias("x").result()
    with pytest.raises(ConflictError) as caught:
        b.alias("x")
    assert (caught.value.expected, caught.value.current) == ("b", "a")
    b.unalias("x").result()
    assert led(store, "x") == "a"
    a.unalias("x").result()
    a.unalias("x").result()
    assert led(store, "x") is None and a.facts.aliases == ()
    b.alias("x").result()
    assert led(store, "x") == "b"
    assert store.tenant("t").session("a").alias("x").result().last >= 0


@pytest.mark.parametrize("way", ["delete", "erase"])
@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_session_that_goes_frees_its_aliases(
    checked_store: Open, way: str, is_made_anew: bool
) -> None:
    store = checked_store(snapshot_frequency=1)
    a, b = store.session("a"), store.session("b")
    a.alias("x").result()
    store.flush()
    if way == "delete":
        a.delete().result()
    else:
        assert not a.erase(HANG_S).is_live
    if is_made_anew:
        a.append({}).result()
        assert a.facts.aliases == ()
    assert led(store, "x") is None
    b.alias("x").result()
    assert led(store, "x") == "b"
    with pytest.raises(ConflictError):
        a.alias("x")


@pytest.mark.parametrize("count", [2, 8])
def test_of_those_that_want_it_at_once_one_gets_it(store: Store, count: int) -> None:
    """FAULTS 59: two writers with one expectation; exactly one wins, the others hear of it."""
    for turn in range(12):
        alias = f"alias {turn}"
        ready = threading.Barrier(count)
        won: list[str] = []
        lost: list[ConflictError] = []

        def want(
            name: str,
            alias: str = alias,
            ready: threading.Barrier = ready,
            won: list[str] = won,
            lost: list[ConflictError] = lost,
        ) -> None:
            call = store.session(name)
            ready.wait(HANG_S)
            try:
                call.alias(alias).result(HANG_S)
                won.append(name)
            except ConflictError as error:
                lost.append(error)

        threads = [threading.Thread(target=want, args=(f"s{n}",)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert len(won) == 1 and len(lost) == count - 1
        assert led(store, alias) == won[0]
        having = [n for n in range(count) if alias in store.session(f"s{n}").facts.aliases]
        assert [f"s{n}" for n in having] == won


def test_one_in_a_queue_behind_another_is_refused(store: Store) -> None:
    """Neither is durable when both are asked for, so what was read says that it is free."""
    a, b = store.session("a"), store.session("b")
    a.create().result()
    first, second = a.alias("x"), b.alias("x")
    first.result()
    try:
        second.result()
    except ConflictError:
        assert not b.exists, "nothing of a refused append is written"
    else:
        pytest.fail("both got it")


def test_another_process_sees_it(checked_store: Open, store_path: Path) -> None:
    store = checked_store()
    store.session("a").alias("x").result()
    program = (
        "import sys\nfrom engine import ConflictError, Store\n"
        "with Store.open(sys.argv[1]) as store:\n"
        "    print(store.by_alias('x').name)\n"
        "    try:\n        store.session('b').alias('x')\n"
        "    except ConflictError as error:\n        print(error.current)\n"
        "    store.session('b').alias('y').result()\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, str(store_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        timeout=HANG_S,
    )
    assert done.stdout.split() == ["a", "a"]
    assert led(store, "y") == "b"


def everything(store: Store) -> Iterator[str]:
    """What callers see of sessions."""
    yield from [info.name for info in store.sessions().sessions]
    yield from [info.name for info in store.sessions(since_us=0).sessions]
    yield from [event.session for event in store.read()]
    yield from [json.loads(line)["session"] for line in store.export_lines(store.read(voids=True))]
    for line in store.salvage():
        assert isinstance(line, str)
        yield json.loads(line)["session"]


def test_what_the_index_is_made_of_is_nobodys_session(store: Store) -> None:
    for number in range(200):
        store.session("call").alias(f"alias {number}").result()
    assert set(everything(store)) == {"call"}
    assert len(list(store.read(voids=True))) == store.last_position
    hidden = {event.session for event in store.read(voids=True)} - {"call"}
    assert 1 < len(hidden) <= 64
    for name in hidden:
        assert is_hidden(name)
        with pytest.raises(InvalidNameError):
            store.session(name)
    assert all([led(store, f"alias {number}") == "call" for number in range(200)])


def test_no_name_of_a_caller_is_a_hidden_one() -> None:
    for name in ("a" * NAME_BYTES_MAX, "é" * (NAME_BYTES_MAX // 2)):
        name_bytes(name, "name")
        assert not is_hidden(name)
    assert is_hidden(derived_name("x"))
    with pytest.raises(InvalidNameError):
        name_bytes(derived_name("x"), "name")


def test_the_index_holds_no_names(store: Store, store_path: Path) -> None:
    """What an erasure removes must not be left in a session that nobody sees."""
    call = store.session("secret-session")
    call.alias("secret-alias").result()
    bodies = [
        event.payload + event.extension
        for event in store.read(voids=True)
        if is_hidden(event.session)
    ]
    assert bodies
    assert not [body for body in bodies if b"secret" in body]


def test_an_export_carries_aliases(checked_store: Open, tmp_path: Path) -> None:
    store = checked_store()
    for name in ("a", "b"):
        store.session(name).alias(f"to {name}").result()
        store.session(name).alias(f"gone {name}").result()
        store.session(name).unalias(f"gone {name}").result()
    lines = list(store.export_lines(store.read()))
    other = checked_store(tmp_path / "other")
    other.load(map(json.loads, lines))
    assert led(other, "to a") == "a" and led(other, "to b") == "b"
    assert led(other, "gone a") is None
    assert list(other.export_lines(other.read())) == lines
    other.load(map(json.loads, lines))
    with pytest.raises(ConflictError):
        other.session("c").alias("to a")


def test_an_export_of_a_purged_session_carries_aliases(checked_store: Open, tmp_path: Path) -> None:
    store = checked_store()
    call = store.session("a")
    call.alias("x").result()
    for number in range(5):
        call.append({"n": number}).result()
    call.purge(3).result()
    assert led(store, "x") == "a"
    other = checked_store(tmp_path / "other")
    other.load(map(json.loads, list(store.export_lines(store.read()))))
    assert led(other, "x") == "a"


def test_a_load_whose_alias_is_taken_says_so(checked_store: Open, tmp_path: Path) -> None:
    store = checked_store()
    store.session("a").alias("x").result()
    lines = list(store.export_lines(store.read()))
    other = checked_store(tmp_path / "other")
    other.session("mine").alias("x").result()
    with pytest.raises(ConflictError):
        other.load(map(json.loads, lines))
    assert led(other, "x") == "mine"
    other.session("mine").unalias("x").result()
    other.load(map(json.loads, lines))
    assert led(other, "x") == "a"


@pytest.mark.parametrize("alias", ["", "x" * 481, None, 3, "\ud800"], ids=repr)
def test_what_can_be_no_alias_is_refused(store: Store, alias: str) -> None:
    for ask in (store.session("a").alias, store.session("a").unalias, store.by_alias):
        with pytest.raises(InvalidNameError):
            ask(alias)


def test_all_tenants_have_no_aliases_in_common(store: Store) -> None:
    with pytest.raises(UsageError):
        store.all_tenants.by_alias("x")


def test_a_listing_by_alias(store: Store) -> None:
    call: Session = store.session("a", user_id="u")
    call.alias("x").result()
    assert [info.name for info in store.sessions(alias="x").sessions] == ["a"]
    assert [info.name for info in store.sessions(alias="x", user_id="u").sessions] == ["a"]
    assert store.sessions(alias="x", user_id="v").sessions == []
    assert store.sessions(alias="y").sessions == []


RACE = """
import sys, time
from engine import ConflictError, Store
path, name, start = sys.argv[1], sys.argv[2], float(sys.argv[3])
with Store.open(path) as store:
    while time.time() < start:
        time.sleep(0.001)
    for number in range(40):
        try:
            store.session(name).alias(f"a{number}").result(60)
            print(number)
        except ConflictError:
            pass
"""


def test_of_two_processes_one_gets_it(checked_store: Open, store_path: Path) -> None:
    """Both read that it is free; the writer of the second one finds that it is not any more."""
    checked_store().session("other").append({}).result()
    start = str(time.time() + 1.5)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(store_path), name, start],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        for name in ("a", "b")
    ]
    won = [set(map(int, each.communicate(timeout=HANG_S)[0].split())) for each in started]
    assert [each.returncode for each in started] == [0, 0]
    assert won[0] | won[1] == set(range(40)) and not won[0] & won[1]
    store = checked_store()
    for number in range(40):
        assert led(store, f"a{number}") == ("a" if number in won[0] else "b")


@pytest.mark.parametrize("way", ["vacuum", "restore", "purge"])
def test_aliases_outlive_what_rewrites_a_store(
    checked_store: Open, store_path: Path, tmp_path: Path, way: str
) -> None:
    store = checked_store(snapshot_frequency=1)
    for number in range(100):
        store.tenant("t").session(f"s{number % 3}").alias(f"a{number}").result()
    store.tenant("t").session("s0").delete().result()
    path = store_path
    if way == "purge":
        for number in (1, 2):
            call = store.tenant("t").session(f"s{number}")
            call.purge(call.info().last_sequence).result()  # type: ignore[union-attr]
    elif way == "restore":
        store.backup(tmp_path / "backup")
        path = tmp_path / "again"
        Store.restore(tmp_path / "backup", path)
    store.flush()
    store.close()
    if way == "vacuum":
        Store.vacuum(path)
    store = checked_store(path)
    for number in range(100):
        expected = f"s{number % 3}" if number % 3 else None
        assert led(store, f"a{number}", "t") == expected
    store.tenant("t").session("s1").alias("a0").result()
    assert led(store, "a0", "t") == "s1"
