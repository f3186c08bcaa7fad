"""Listing sessions: newest activity first, in pages, without reading what was said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from engine import SessionInfo, Store
from engine.store import Tenant
from eventlog import newest
from eventlog.errors import UsageError
from tests.model.actors import Workers
from tests.model.operations import Append, New
from tests.model.staging import HANG_S, halted


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()


def pages(tenant: Tenant, limit: int, user_id: str | None = None) -> Iterator[list[SessionInfo]]:
    """The pages one after the other."""
    cursor = None
    while True:
        page = tenant.sessions(limit=limit, cursor=cursor, user_id=user_id)
        yield page.sessions
        cursor = page.cursor
        if cursor is None:
            return


def names(tenant: Tenant, limit: int = 50, user_id: str | None = None) -> list[str]:
    """All of them."""
    return [info.name for page in pages(tenant, limit, user_id) for info in page]


@pytest.mark.parametrize("frequency", [1, 3, 25])
@pytest.mark.parametrize("limit", [1, 7, 40, 41, 10_000])
def test_newest_activity_comes_first(
    checked_store: Callable[..., Store], frequency: int, limit: int
) -> None:
    store = checked_store(snapshot_frequency=frequency)
    random = Random(frequency)
    newest: dict[str, int] = {}
    for number in range(200):
        name = f"s{random.randrange(40)}"
        store.session(name).append({"n": number})
        newest[name] = number
    store.flush(HANG_S)
    expected = sorted(newest, key=lambda name: -newest[name])
    assert names(store, limit) == expected
    positions = [info.last_position for page in pages(store, limit) for info in page]
    assert positions == [newest[name] + 1 for name in expected]


def test_a_page_tells_whether_there_are_more(store: Store) -> None:
    for number in range(5):
        store.session(f"s{number}").append({})
    store.flush(HANG_S)
    page = store.sessions(limit=3)
    assert len(page.sessions) == 3 and page.cursor is not None
    rest = store.sessions(limit=3, cursor=page.cursor)
    assert len(rest.sessions) == 2 and rest.cursor is None
    assert store.sessions(limit=50).cursor is None
    assert store.tenant("nobody").sessions() == store.sessions(user_id="nobody")


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "9" * 21, "١", " 1"], ids=repr)
def test_a_cursor_of_another_kind_is_refused(store: Store, cursor: str) -> None:
    store.session("s").append({}).result()
    with pytest.raises(UsageError):
        store.sessions(cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_senseless_limit_is_refused(store: Store, limit: int) -> None:
    with pytest.raises(UsageError):
        store.sessions(limit=limit)


def test_pages_go_on_where_they_were_while_writes_go_on(
    checked_store: Callable[..., Store],
) -> None:
    """No session comes twice, and none is left out but those that moved to the front."""
    store = checked_store(snapshot_frequency=2)
    for number in range(60):
        store.session(f"s{number:02}").append_many([{}] * (number % 4 + 1))
    store.flush(HANG_S)
    seen: list[str] = []
    moved: set[str] = set()
    random = Random(1)
    for number, page in enumerate(pages(store, 7)):
        seen += [info.name for info in page]
        for _ in range(3):
            name = f"s{random.randrange(60):02}"
            moved.add(name)
            store.session(name).append({}).result(HANG_S)
        store.session(f"new{number}").append({}).result(HANG_S)
    assert len(seen) == len(set(seen))
    everything = {f"s{number:02}" for number in range(60)}
    assert everything - moved <= set(seen) <= everything


def test_another_process_moves_sessions_to_the_front(
    checked_store: Callable[..., Store], workers: Workers, store_path: Path
) -> None:
    store = checked_store(snapshot_frequency=1)
    for name in ("a", "b", "c"):
        store.session(name).append({}).result()
    other = workers.start()
    assert names(store) == ["c", "b", "a"]
    other.perform(store_path, Append("", "a", (New({}),)))
    assert names(store) == ["a", "c", "b"]
    store.session("b").append({}).result()
    assert names(store, 1) == ["b", "a", "c"]
    other.perform(store_path, Append("", "new", (New({}),)))
    assert names(store, 2) == ["new", "b", "a", "c"]
    other.close()
    assert names(store) == ["new", "b", "a", "c"]


def test_sessions_of_a_user(store: Store) -> None:
    for number in range(30):
        user = ["u1", "u2", None][number % 3]
        store.session(f"s{number:02}", user_id=user).append({})
    store.session("s00", user_id="u2").append({})  # facts given at creation stay
    store.flush(HANG_S)
    found = names(store, 4, "u1")
    assert found == ["s00", *[f"s{number:02}" for number in range(27, 0, -3)]]
    assert names(store, 1, "u2") == [f"s{number:02}" for number in range(28, 0, -3)]
    assert names(store, 50, "nobody") == []


def test_ten_thousand_sessions_are_listed_without_reading_any_payload(store_path: Path) -> None:
    """adk-python 4871, 4621: listing 5,000 to 10,000 sessions read them all and took a minute."""
    with Store.open(store_path, snapshot_frequency=1) as store:
        for number in range(10_000):
            store.session(f"s{number}").append({"n": number})
    with Store.open(store_path) as store:
        assert [info.name for info in store.sessions(limit=20).sessions] == [
            f"s{number}" for number in range(9_999, 9_979, -1)
        ]
        assert store.stats()["memory"]["segment_cache_bytes"] == 0
        assert sum(len(page) for page in pages(store, 3_000)) == 10_000
        assert store.stats()["memory"]["segment_cache_bytes"] == 0


def test_prefixes_and_twins_are_listed_as_themselves(store: Store) -> None:
    """FAULTS 61 to 63: names are compared as they are, never by prefix or normal form."""
    given = ["a", "a:", "a:1", "a\x00b", "a\x00", "../x", "%", "A", "é", "e\u0301", "😀", "n" * 512]
    for name in given:
        store.session(name).append({"name": name})
    store.flush(HANG_S)
    assert names(store) == given[::-1]
    for name in given:
        assert store.session(name).history() == [{"name": name}]


def test_facts_given_at_creation_are_kept(store: Store) -> None:
    facts = {"title": "A\x00 title \ud83d", "metadata": {"a": [1, b"\xff", 2**64 - 1]}}
    store.session("s", user_id="u7", **facts).append({}).result()  # type: ignore[arg-type]
    store.session("s", user_id="other", title="other").append({}).result()
    info = store.session("s").info()
    assert info is not None
    assert (info.user_id, info.title, info.metadata) == ("u7", facts["title"], facts["metadata"])
    assert info.created_us <= info.updated_us
    assert store.sessions().sessions == [info]
    assert store.session("s").event(0).opening == {"user_id": "u7", **facts}
    assert store.session("s").event(1).opening is None


def test_a_created_session_has_no_head(store: Store) -> None:
    call = store.session("s", title="t")
    ack = call.create().result()
    assert (ack.first, ack.last, ack.position, ack.already) == (0, 0, 1, False)
    info = call.info()
    assert info is not None
    assert (info.head, info.event_count, info.message_count, info.last_sequence) == (None, 1, 0, 0)
    assert call.history() == [] and call.head is None
    assert call.append({}, expected_head=-1).result().first == 1
    assert call.event(1).parent is None
    again = call.create().result()
    assert (again.first, again.last, again.position, again.already) == (0, 1, 2, True)
    assert store.last_position == 2


def test_create_beside_the_first_append_tells_the_right_place(store: Store) -> None:
    """In the commit that made the session, ``create`` answered with position 0."""
    with halted("commit.before_begin") as halt:
        store.session("other").append({})
        halt.wait_reached()
        first = store.session("s").append({})
        again = store.session("s").create()
    assert first.result(HANG_S).position == 2
    assert again.result(HANG_S).already
    assert (again.first, again.last, again.position) == (0, 0, 2)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_tenant_with_nothing_but_the_stores_own_is_not_listed(
    store_path: Path, is_sealed: bool
) -> None:
    """Also once the sessions are gone; one in which there is nothing else left is listed."""

    def listed() -> list[str]:
        if is_sealed:
            Store.vacuum(store_path)
        with Store.open(store_path) as store:
            return store.tenants()

    with Store.open(store_path) as store:
        store.session("s").append({"n": 0}).result(HANG_S)
        with store.projection("p", lambda event: None, tenant="empty") as projection:
            projection.run_once()
        for name in ("aliased", "plain"):
            store.tenant(name).session("s").append({"n": 1}).result(HANG_S)
        store.tenant("aliased").session("s").alias("x").result(HANG_S)
        store.tenant("documents").documents.write("d", "text").result(HANG_S)
    assert listed() == ["", "aliased", "plain", "documents"]
    with Store.open(store_path) as store:
        for name in ("aliased", "plain"):
            store.tenant(name).session("s").delete().result(HANG_S)
    assert listed() == ["", "plain", "documents"]
    with Store.open(store_path) as store:
        store.tenant("aliased").session("s").append({"n": 2}).result(HANG_S)
    assert listed() == ["", "aliased", "plain", "documents"]


def test_tenants_are_listed_in_one_walk_over_the_log(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tenant had one of its own: 500 beside a busy one took a second."""
    for number in range(20):
        ack = store.tenant(f"t{number}").session("s").append({"n": number})
    ack.result(HANG_S)
    walks: list[newest.HotNumbers] = []
    walk = newest.HotNumbers.newest_first

    def noted(self: newest.HotNumbers) -> Iterator[tuple[int, int]]:
        walks.append(self)
        return walk(self)

    monkeypatch.setattr(newest.HotNumbers, "newest_first", noted)
    assert len(store.tenants()) == 20
    assert len(walks) == 1
