"""Listings by what sessions are, against a plain look at every session; nothing of it is stale."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from math import nan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import SessionInfo, Store
from engine.catalog import Catalog, Filter
from engine.store import Tenant
from eventlog import listing
from eventlog.errors import InvalidNameError, TurnlogError, UsageError
from eventlog.keys import U64
from eventlog.rows import SessionRow
from tests.model.answers import exact
from tests.model.staging import HANG_S

Open = Callable[..., Store]
FIELDS = ("user_id", "account_id", "agent_id", "workspace", "status")


def names(tenant: Any, limit: int = 50, **wanted: Any) -> list[str]:
    """The names on all pages."""
    return [info.name for page in pages(tenant, limit, **wanted) for info in page]


def pages(tenant: Any, limit: int, **wanted: Any) -> Iterator[list[SessionInfo]]:
    """The pages one after the other."""
    cursor = None
    while True:
        page = tenant.sessions(limit, cursor, **wanted)
        yield page.sessions
        cursor = page.cursor
        if cursor is None:
            return


def looked_at(tenant: Tenant, count: int, **wanted: Any) -> list[str]:
    """The same, by asking every session."""
    found = []
    for number in range(count):
        info = tenant.session(f"s{number}").info()
        if info is not None and Filter(**wanted).takes(info):
            found.append(info)
    return [info.name for info in sorted(found, key=lambda info: -info.last_position)]


@pytest.fixture
def some(checked_store: Open) -> Store:
    store = checked_store(snapshot_frequency=2)
    for number in range(30):
        store.session(
            f"s{number}",
            user_id=f"u{number % 3}",
            account_id=f"a{number % 2}",
            agent_id=f"g{number % 5}",
            workspace=f"w{number % 7}",
            metadata={"n": number % 4, "t": True},
        ).append_many([{}] * (number % 3 + 1))
    store.flush(HANG_S)
    return store


WANTED: dict[str, dict[str, Any]] = {
    "user": {"user_id": "u1"},
    "account": {"account_id": "a1"},
    "agent": {"agent_id": "g3"},
    "workspace": {"workspace": "w6"},
    "two": {"user_id": "u1", "agent_id": "g2"},
    "metadata": {"metadata": {"n": 2}},
    "metadata of two keys": {"metadata": {"n": 2, "t": True}},
    "metadata and user": {"metadata": {"n": 2}, "user_id": "u0"},
    "metadata of another type": {"metadata": {"t": 1}},
    "metadata that nobody has": {"metadata": {"x": None}},
    "empty metadata": {"metadata": {}},
    "nobody": {"user_id": "u9"},
    "status": {"status": "open"},
    "label": {"label": "vip"},
    "since": {"since_us": 0},
    "until": {"until_us": 0},
}


@pytest.mark.parametrize("limit", [1, 4, 100])
@pytest.mark.parametrize("name", WANTED)
def test_a_filter_gives_those_that_it_says(some: Store, name: str, limit: int) -> None:
    some.session("s3").set_status("open").result()
    some.session("s4").label("vip").result()
    some.session("s5").label("vip", on=0).result()
    wanted = WANTED[name]
    found = names(some, limit, **wanted)
    assert found == looked_at(some, 30, **wanted)
    assert names(some.all_tenants, limit, **wanted) == found
    assert bool(found) is (
        name not in ("metadata of another type", "metadata that nobody has", "nobody", "until")
    )


def test_what_a_listing_tells_is_what_the_session_tells(some: Store) -> None:
    some.session("s3").set_title("new").result()
    for info in some.sessions(limit=100).sessions + some.sessions(100, user_id="u0").sessions:
        assert info == some.session(info.name).info()


def test_by_time_of_last_activity(some: Store) -> None:
    infos = some.sessions(limit=100).sessions
    middle = infos[10].updated_us
    assert names(some, since_us=middle) == [i.name for i in infos if i.updated_us >= middle]
    assert names(some, until_us=middle) == [i.name for i in infos if i.updated_us < middle]
    assert names(some, since_us=middle, until_us=middle + 1) == [
        info.name for info in infos if info.updated_us == middle
    ]


def test_every_until_is_the_time_before_which(checked_store: Open) -> None:
    """Listings took the time itself in, usage did not. So pages of days had a session twice."""
    store = checked_store()
    call = store.session("call", user_id="u")
    call.record_usage(input_tokens=1).result()
    call.alias("a").result()
    info = call.info()
    assert info is not None
    since = call.usage().records[0].recorded_us
    for end, is_there in ((info.updated_us, False), (info.updated_us + 1, True)):
        for options in ({}, {"user_id": "u"}, {"alias": "a"}):
            assert bool(names(store, until_us=end, **options)) is is_there, (end, options)
            assert bool(names(store, since_us=end, **options)) is (not is_there), (end, options)
        assert bool(names(store.all_tenants, until_us=end)) is is_there
    for end, is_there in ((since, False), (since + 1, True)):
        assert bool(store.usage(until_us=end).totals.record_count) is is_there
        assert bool(store.usage(since_us=end).totals.record_count) is (not is_there)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_fact_that_changes_moves_the_session(checked_store: Open, is_sealed: bool) -> None:
    """A listing by what sessions were when they were made goes wrong for every one that moved."""
    store = checked_store(snapshot_frequency=1)
    call = store.session("s", user_id="u1")
    call.append({}).result()
    assert names(store, user_id="u1") == ["s"]
    call.set_owner(user_id="u2").result()
    if is_sealed:
        call.append({}).result()
        store.flush()
    assert names(store, user_id="u1") == []
    assert names(store, user_id="u2") == ["s"]
    call.set_owner(user_id=None).result()
    assert names(store, user_id="u2") == []
    assert store.sessions().sessions[0].user_id is None


@pytest.mark.parametrize("way", ["delete", "erase"])
def test_a_session_that_is_gone_is_listed_no_more(some: Store, way: str) -> None:
    before = names(some, user_id="u1")
    call = some.session(before[2])
    if way == "delete":
        call.delete().result()
    else:
        call.erase(HANG_S)
    del before[2]
    assert names(some, user_id="u1") == before
    call.append({}).result()
    assert names(some, user_id="u1") == before
    some.session(call.name, user_id="u1").delete().result()
    some.session(call.name, user_id="u1").append({}).result()
    assert names(some, user_id="u1") == [call.name, *before]


def test_pages_go_on_where_they_were_while_writes_go_on(some: Store) -> None:
    """No session comes twice, and none is left out but those that moved to the front."""
    random = Random(1)
    seen: list[str] = []
    moved: set[str] = set()
    wanted = set(names(some, user_id="u1"))
    for page in pages(some, 2, user_id="u1"):
        seen += [info.name for info in page]
        name = f"s{random.randrange(30)}"
        some.session(name).append({}).result(HANG_S)
        moved.add(name)
    assert len(seen) == len(set(seen))
    assert wanted - moved <= set(seen) <= wanted


@pytest.mark.parametrize("sorted_max", [0, 1_024])
@pytest.mark.parametrize("seed", range(6))
def test_it_is_never_stale(
    checked_store: Open, seed: int, sorted_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.catalog.SORTED_MAX", sorted_max)
    monkeypatch.setattr("engine.catalog.PAGE_SESSIONS", 5)
    random = Random(seed)
    store = checked_store(snapshot_frequency=random.choice([1, 3, 25]))
    tenant = store.tenant(random.choice(["", "acme"]))
    count = 12
    for _ in range(150):
        call = tenant.session(f"s{random.randrange(count)}", user_id=random.choice("uv"))
        ways: list[Callable[[], Any]] = [
            lambda: call.append({}),  # noqa: B023
            lambda: call.append({}),  # noqa: B023
            lambda: call.set_owner(user_id=random.choice(["u", "v", None])),  # noqa: B023
            lambda: call.set_status(random.choice(["a", "b", None])),  # noqa: B023
            lambda: call.label(random.choice("lm")),  # noqa: B023
            lambda: call.unlabel(random.choice("lm")),  # noqa: B023
            lambda: call.update_metadata({"k": random.randrange(3)}),  # noqa: B023
        ]
        way = random.randrange(len(ways) + 2)
        if way < len(ways):
            ways[way]().result(HANG_S)
        elif way == len(ways):
            store.flush(HANG_S)
        elif call.exists and random.random() < 0.3:
            call.delete().result(HANG_S)
        elif call.exists and (info := call.info()) is not None and info.last_sequence > 2:
            first = max(1, info.first_sequence + 1)
            call.purge(first).result(HANG_S)
        wanted = random.choice(
            [
                {"user_id": "u"},
                {"status": "a"},
                {"label": "l"},
                {"metadata": {"k": 1}},
                {"user_id": "v", "status": "b"},
                {},
            ]
        )
        assert names(tenant, random.choice([2, 50]), **wanted) == looked_at(tenant, count, **wanted)


def test_while_others_write_seal_and_ask(checked_store: Open) -> None:
    """Memory runs ahead of a transaction: what is sealed meanwhile must not hide a change."""
    store = checked_store(snapshot_frequency=1)
    calls = [store.session(f"s{number}", user_id="u") for number in range(8)]
    for call in calls:
        call.append({}).result()
    ended = threading.Event()
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            while not ended.is_set():
                for user in "uv":
                    for info in store.sessions(user_id=user).sessions:
                        assert info.user_id == user
                assert len(store.sessions().sessions) == 8
        except (AssertionError, TurnlogError) as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    random = Random(3)
    last = dict.fromkeys(range(8), "u")
    for _ in range(400):
        number = random.randrange(8)
        last[number] = random.choice("uv")
        calls[number].set_owner(user_id=last[number])
        ack = calls[number].append({})
        if random.random() < 0.2:
            ack.result(HANG_S)
    store.flush(HANG_S)
    ended.set()
    for thread in threads:
        thread.join(HANG_S)
    assert not failed, failed[0]
    for user in "uv":
        expected = {f"s{number}" for number, each in last.items() if each == user}
        assert set(names(store, user_id=user)) == expected


def test_another_process_changes_facts(checked_store: Open, store_path: Path) -> None:
    store = checked_store(snapshot_frequency=1)
    for name in "abc":
        store.session(name, user_id="u").append({}).result()
    assert names(store, user_id="u") == ["c", "b", "a"]
    program = (
        "import sys\nfrom engine import Store\n"
        "with Store.open(sys.argv[1]) as store:\n"
        "    store.session('b').set_owner(user_id='v').result()\n"
        "    store.session('a').append({}).result()\n"
        "    store.session('d', user_id='u').append({}).result()\n"
        "    store.session('c').delete().result()\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run(
        [sys.executable, "-c", program, str(store_path)], check=True, cwd=root, timeout=HANG_S
    )
    assert names(store, user_id="u") == ["d", "a"]
    assert names(store, user_id="v") == ["b"]


@pytest.mark.parametrize("sessions_max", [5, 29, 30])
def test_a_tenant_that_does_not_fit_is_listed_from_the_store(
    some: Store, sessions_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.catalog.PAGE_SESSIONS", 4)
    small = Catalog(some._log, sessions_max)
    some._catalog = small
    for name in ("user", "metadata and user", "since"):
        wanted = WANTED[name]
        assert names(some, 4, **wanted) == looked_at(some, 30, **wanted)
    assert small.session_count == (30 if sessions_max == 30 else 0)


def test_tenants_asked_last_are_kept(checked_store: Open) -> None:
    store = checked_store()
    for tenant in "abc":
        for number in range(4):
            store.tenant(tenant).session(f"s{number}", user_id="u").append({})
    store.flush()
    store._catalog = Catalog(store._log, 8)
    for tenant in "abcab":
        assert len(names(store.tenant(tenant), user_id="u")) == 4
        assert store._catalog.session_count <= 8
    assert len(names(store.all_tenants, user_id="u")) == 12


def test_listing_newest_reads_no_payload(some: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """adk-python 4871: listing some thousand sessions took 40 to 74 s, as each was loaded whole."""
    some.close()
    with Store.open(some.path, create=False) as store:

        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("a payload was decoded")

        monkeypatch.setattr("eventlog.segmentcache.SegmentCache.load", refuse)
        monkeypatch.setattr("engine.events.Event.body", property(refuse))
        assert len(store.sessions(limit=20).sessions) == 20
        assert len(store.sessions(limit=20, user_id="u1").sessions) == 10
        for wanted in WANTED.values():
            for tenant in (store, store.all_tenants):
                tenant.sessions(limit=20, **wanted)


def test_the_twin_asks_the_same(some: Store) -> None:
    page = asyncio.run(some.sessions_async(3, user_id="u1", metadata={"t": True}))
    assert page == some.sessions(3, user_id="u1", metadata={"t": True})
    assert page.cursor is not None


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (InvalidNameError, {"user_id": ""}),
        (InvalidNameError, {"status": 3}),
        (InvalidNameError, {"label": "x" * 600}),
        (UsageError, {"since_us": "now"}),
        (UsageError, {"until_us": 2**63}),
        (UsageError, {"metadata": ["k"]}),
        (UsageError, {"cursor": "x"}),
    ],
    ids=repr,
)
def test_what_cannot_be_asked_is_refused(
    some: Store, error: type[Exception], wanted: dict[str, Any]
) -> None:
    with pytest.raises(error):
        some.sessions(**wanted)


OTHER_NAN = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]


@pytest.mark.parametrize("wanted", [[1], [True], [1.0], [[]], [nan], [OTHER_NAN], {"k": 0}, {}])
def test_metadata_is_compared_type_for_type_all_through(
    checked_store: Callable[..., Store], wanted: Any
) -> None:
    """A list with 1 found one with True, and a NaN not even itself."""
    store = checked_store()
    there: list[Any] = [[1], [True], [1.0], [[]], [nan], [OTHER_NAN], {"k": 0}, {"k": False}, {}]
    for number, value in enumerate(there):
        store.session(f"{number}", metadata={"k": value}).create().result()
    found = store.sessions(metadata={"k": wanted}).sessions
    assert [exact(each.metadata) for each in found] == [exact({"k": wanted})]


def test_stamps_know_where_a_row_has_what() -> None:
    key = U64.pack(7)
    row = SessionRow(1, 2, 3, 40, 5, 6, 70, 8, 0, 0, 0, 1, "", "", None)
    value = row.encode(key)
    assert int.from_bytes(value[listing._SEALED], "little") == 40
    assert int.from_bytes(value[listing._LAST_POSITION], "little") == 70
    assert int.from_bytes(value[listing._FLAGS], "little") == 1
