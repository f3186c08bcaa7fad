"""A canary in every kind of record of one session: where it still is once that was removed.

Live records are read as whoever looks for it would: segments and chunks decompressed. Files are
read as they are, and once more decompressed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from engine import Event, Session, Store
from engine.catalog import decode_cursor
from engine.erasure import ErasureReceipt
from engine.facts import Facts
from eventlog.chunk import decode_chunk
from eventlog.dictionary import Dictionary, DictionaryRow
from eventlog.errors import TurnlogError
from eventlog.keys import is_derived
from eventlog.limits import BLOB_PENDING_US, HOT_TABLE_POSITIONS, MIB
from eventlog.seams import CLOCK
from eventlog.segment import decode_segment
from eventlog.tables import ReadTables
from tests.model.staging import HANG_S, REPOSITORY
from tests.reference_store import lowered, said

CANARY = "kanarienvogel-4711"
SECRET = CANARY.encode()
TENANT = "acme"
PLACES = ("loose", "sealed", "merged", "cut", "mixed", "purged")
FREQUENCY = 4


def whisper(number: int) -> str:
    return f"{number} {f'{CANARY} lives in the harz and says ' * 12}"


def tell(store: Store, number: int) -> None:
    """One append and one of everything that an event may carry."""
    session = canary_session(store)
    acme = store.tenant(TENANT)
    session.append(
        {"role": "user", "content": whisper(number), CANARY: [whisper(number)]},
        id=f"{CANARY}-{number}",
        idempotency_key=f"{CANARY}-{number}",
        metadata={CANARY: CANARY, "b": CANARY.encode()},
        run_id=CANARY,
        turn_id=CANARY,
        speech_id=CANARY,
        request_id=CANARY,
        blobs=[
            acme.blobs.put(f"small {number} {CANARY}".encode()),
            acme.blobs.put(
                Random(number).randbytes(5_000) + CANARY.encode(), media_type=f"a/{CANARY}"
            ),
        ],
    ).result(HANG_S)
    session.append_event(f"kind.{CANARY}", {"of": CANARY}).result(HANG_S)
    session.append({"role": "user", "content": f"half \ud83d {CANARY}", "\udc00": CANARY})
    session.update_state({f"key {CANARY}": CANARY, f"{number}": CANARY}).result(HANG_S)
    session.update_state({"other": 1}, delete=[f"{number}"]).result(HANG_S)
    describe(session, number)
    belong(session, number)
    stand_beside(session, number)


def describe(session: Session, number: int) -> None:
    """What the session is, some of it taken back."""
    session.set_title(f"{CANARY} {number}").result(HANG_S)
    session.set_status(CANARY, detail={CANARY: number}).result(HANG_S)
    session.set_summary(whisper(number), detail=[CANARY]).result(HANG_S)
    session.set_owner(account_id=CANARY, agent_id=CANARY, workspace=CANARY).result(HANG_S)
    session.update_metadata({f"{CANARY}-{number}": CANARY}).result(HANG_S)
    session.update_metadata({"other": CANARY}, delete=[f"{CANARY}-{number}"]).result(HANG_S)
    session.label(f"{CANARY}-{number}").result(HANG_S)
    session.label(CANARY, on=session.head).result(HANG_S)
    session.unlabel(f"{CANARY}-{number}").result(HANG_S)
    session.set_parent(f"parent {CANARY}", 7).result(HANG_S)
    session.relate(f"related {CANARY}").result(HANG_S)
    session.alias(f"{CANARY}-{number}").result(HANG_S)
    session.alias(f"{CANARY}-{number}-taken back").result(HANG_S)
    session.unalias(f"{CANARY}-{number}-taken back").result(HANG_S)


def belong(session: Session, number: int) -> None:
    """What belongs to the session."""
    documents, artifacts = session.documents, session.artifacts
    documents.write(f"plan {CANARY}", whisper(number)).result(HANG_S)
    documents.append(f"plan {CANARY}", CANARY).result(HANG_S)
    documents.write(f"deleted {CANARY}", CANARY).result(HANG_S)
    documents.delete(f"deleted {CANARY}").result(HANG_S)
    artifacts.write(f"small {CANARY}", f"{CANARY} {number}", f"a/{CANARY}").result(HANG_S)
    artifacts.write(CANARY, Random(number).randbytes(6_000) + SECRET).result(HANG_S)
    session.record_usage(
        model=CANARY,
        provider=CANARY,
        currency=CANARY,
        user_id=CANARY,
        run_id=CANARY,
        turn_id=CANARY,
        extra={CANARY: [CANARY]},
        idempotency_key=f"usage {CANARY} {number}",
    ).result(HANG_S)
    run, call = f"run {CANARY} {number}", f"call {CANARY} {number}"
    session.runs.begin(run, metadata={CANARY: CANARY}).result(HANG_S)
    session.runs.end(run, "failed", error=CANARY).result(HANG_S)
    session.tool_calls.open(call, CANARY, {CANARY: CANARY}, event=session.head).result(HANG_S)
    session.tool_calls.waiting(call, CANARY).result(HANG_S)
    session.tool_calls.failed(call, [CANARY]).result(HANG_S)


def stand_beside(session: Session, number: int) -> None:
    """Branches and their names, links, compactions, and what stands beside the history."""
    head = session.head
    assert head is not None
    session.append_event("annotation", {CANARY: CANARY}).result(HANG_S)
    session.append_event("metric", {"of": CANARY}, run_id=CANARY).result(HANG_S)
    session.fork(head, name=f"branch {CANARY} {number}").result(HANG_S)
    session.append({"role": "user", "content": CANARY}).result(HANG_S)
    session.name_branch(CANARY).result(HANG_S)
    session.unname_branch(f"branch {CANARY} {number}").result(HANG_S)
    session.checkout(head).result(HANG_S)
    answer = session.append({"role": "assistant", "content": CANARY}).result(HANG_S).last
    session.link(answer, [head]).result(HANG_S)
    if number % 2:
        found = session.compact(lambda _: whisper(number), keep_last=1, data={CANARY: CANARY})
        assert found is not None


def canary_session(store: Store) -> Session:
    return store.tenant(TENANT).session(
        f"call {CANARY}", title=CANARY, user_id=CANARY, metadata={CANARY: CANARY}
    )


def fill(store: Store) -> None:
    """So much that two hot tables are cut."""
    for number in range(2 * HOT_TABLE_POSITIONS // 1_024):
        store.session(f"filler-{number}").append_many([{"n": number}] * 1_024).result(HANG_S)
    store.flush()


def plant(store: Store, place: str) -> None:
    """Write the canary so that it lies as asked for, among other sessions of its tenant."""
    random = Random(5)
    acme = store.tenant(TENANT)
    for number in range(40):
        acme.session(f"s{number}").append_many([said(random, 40) for _ in range(8)]).result(HANG_S)
    store.flush()
    for number in range({"loose": 0, "merged": 12}.get(place, 3)):
        tell(store, number)
        store.flush()
    if place == "purged":
        canary_session(store).purge(7).result(HANG_S)
    large = acme.blobs.put(iter([f"{CANARY} is everywhere ".encode() * (2 * MIB // 32)]))
    noise = acme.blobs.put(random.randbytes(2 * MIB) + SECRET)
    canary_session(store).append({"n": "large"}, blobs=[large, noise]).result(HANG_S)
    if place not in ("loose", "purged"):
        train(store, canary_session(store))
    if place == "cut":
        canary_session(store).append_many([{"n": CANARY}] * FREQUENCY).result(HANG_S)
        store.flush()
        fill(store)
    if place in ("loose", "mixed"):
        tell(store, 50)
    for number in range(4):  # with the dictionary, where there is one
        session = acme.session(f"after {number}")
        session.append_many([said(random, 40) for _ in range(8)]).result(HANG_S)
    store.flush()


def train(store: Store, session: Session) -> None:
    """Make a dictionary from what is sealed; the newest session is one that it learns from."""
    session.append_many(
        [{"role": "user", "content": whisper(number)} for number in range(3 * FREQUENCY)]
    ).result(HANG_S)
    store.flush()
    with store._log.views.transaction() as tables:
        number = tables.find_tenant(TENANT)
    assert number is not None
    store.configure(dictionaries=True)
    assert store._log.trainer.start(number, 0)
    assert store._log.trainer.wait(HANG_S)
    store.flush()


def live(tables: ReadTables) -> Iterator[tuple[str, bytes]]:
    """Every row of every table, decompressed; dictionaries apart."""
    for table in tables.tables:
        for key, value in tables.rows(table):
            yield ("dictionary" if table == "dict" else table), key + value
            if table == "segment":
                segment = decode_segment(
                    key, value, lambda number: Dictionary(number, tables.load_dictionary(number))
                )
                yield table, segment.heads + segment.tails
            if table == "chunk":
                yield table, decode_chunk(key, value, "chunk")
            if table == "dict":
                yield "dictionary", DictionaryRow.decode(key, value).data


def tables_with(store: Store) -> set[str]:
    """The tables in which the canary lives."""
    with store._log.views.transaction() as tables:
        return {table for table, data in live(tables) if SECRET in data}


def files_with(folder: Path) -> set[str]:
    """The files that hold it, as they are; the folder that the store lies in included."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and SECRET in path.read_bytes()
    }


def others(store: Store) -> list[Event]:
    return [event for event in store.read() if "s" in event.session and event.kind == "message"]


class Follower:
    """Reads the global order from the start in a thread, up to a message that says so."""

    def __init__(self, store: Store) -> None:
        self.positions: list[int] = []
        self.events: list[Event] = []
        self.error: Exception | None = None
        self._subscription = store.subscribe(after=0)
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for event in self._subscription:
                self.positions.append(event.position)
                if CANARY not in event.session:
                    self.events.append(event)
                if event.kind == "message" and event.body == {"n": "the end"}:
                    return
        except (TurnlogError, AssertionError, ValueError) as error:
            self.error = error

    def require_whole(self, store: Store) -> None:
        """It saw every event that is there now, in order."""
        self._thread.join(HANG_S)
        assert not self._thread.is_alive() and self.error is None, self.error
        assert self.positions == sorted(set(self.positions))
        assert {*store.read()} <= {*self.events}


def require_nothing_lost(store: Store, before: list[Event]) -> None:
    """Others are as they were, positions without a gap, and the canary answers nothing."""
    assert others(store)[: len(before)] == before
    positions = [event.position for event in store.read(voids=True)]
    assert positions == [*range(1, store.last_position + 1)]
    session = store.tenant(TENANT).session(f"call {CANARY}")
    assert session.info() is None and session.history() == [] and session.state == {}
    assert session.documents.list() == session.artifacts.list() == session.runs.list() == []
    assert session.tool_calls.list() == session.branches() == session.usage().records == []
    assert session.facts == Facts() and session.window() == []
    assert store.tenant(TENANT).by_alias(f"{CANARY}-0") is None
    assert CANARY not in store.tenant(TENANT).usage().by_user
    report = store.check()
    assert report.ok, report.findings


@pytest.fixture
def opened(checked_store: Callable[..., Store], store_path: Path) -> Iterator[Callable[..., Store]]:
    """Opens the store with limits that let a dictionary be trained."""
    store_path.parent.joinpath("around").mkdir()
    with lowered():
        yield lambda **options: checked_store(
            store_path.parent / "around" / "store", snapshot_frequency=FREQUENCY, **options
        )


@pytest.mark.parametrize("place", PLACES)
def test_an_erased_session_is_in_no_live_record_and_after_a_vacuum_in_no_file(
    opened: Callable[..., Store], place: str
) -> None:
    store = opened(dictionaries=False)
    around = store.path.parent
    plant(store, place)
    planted = tables_with(store)
    has_dictionary = place not in ("loose", "purged")
    assert place == "loose" or "state" in planted
    assert planted >= {"session", "chunk", "blob", *(["dictionary"] * has_dictionary)}
    before = others(store)
    store.backup(around / "backup")
    early = Follower(store)
    receipt = canary_session(store).erase(HANG_S)
    late = Follower(store)
    store.tenant(TENANT).session("after").append({"n": "the end"}).result(HANG_S)

    _require_told(store, receipt)
    assert tables_with(store) == ({"dictionary"} if has_dictionary else set())
    assert bool(receipt.dictionaries) is has_dictionary
    require_nothing_lost(store, before)
    early.require_whole(store)
    late.require_whole(store)
    store.close()
    assert "store/data.mdb" in files_with(around)  # old pages, or the blobs of the backup

    Store.vacuum(around / "store")
    assert {name for name in files_with(around) if name.startswith("store/")} == set()
    assert files_with(around) == {"backup/data.mdb"}
    store = opened()
    assert tables_with(store) == set()
    assert not set(receipt.dictionaries) & set(map(int, store.stats()["dictionaries"]))
    require_nothing_lost(store, before)
    store.backup(around / "later")
    assert files_with(around) == {"backup/data.mdb"}


def test_of_purged_events_a_redaction_tells_the_dictionaries_too(
    opened: Callable[..., Store],
) -> None:
    """Where a range was purged before, the receipt named none: it said that nothing was live."""
    store = opened(dictionaries=False)
    plant(store, "sealed")
    session = canary_session(store)
    session.purge(session.info().event_count).result(HANG_S)  # type: ignore[union-attr]
    receipt = session.redact(0, 3)
    assert (receipt.event_count, receipt.void_count) == (0, 4)
    with store._log.views.transaction() as tables:
        assert list(receipt.dictionaries) == tables.dictionaries_of({receipt.number}) != []
    assert receipt.is_live


def _require_told(store: Store, receipt: ErasureReceipt) -> None:
    """The receipt names the dictionaries that may quote the session, and the copies."""
    with store._log.views.transaction() as tables:
        assert list(receipt.dictionaries) == tables.dictionaries_of({receipt.number})
    assert receipt.is_live is bool(receipt.dictionaries) and receipt.is_in_file
    assert "not touched" in receipt.backups


@pytest.mark.parametrize("place", PLACES)
def test_a_deleted_session_is_in_no_file_after_a_vacuum(
    opened: Callable[..., Store], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(dictionaries=False)
    plant(store, place)
    before = others(store)
    canary_session(store).delete().result(HANG_S)
    store.flush()
    require_nothing_lost(store, before)
    path = store.path
    store.close()
    Store.vacuum(path)
    store = opened()
    # Contents go an hour after the last event that named them.
    assert tables_with(store) <= {"blob", "chunk"}
    now_us = CLOCK.wall_us() + BLOB_PENDING_US
    monkeypatch.setattr(CLOCK, "wall_us", lambda: now_us)
    assert store.collect_blobs()["blobs"] >= 2
    store.close()
    Store.vacuum(path)
    assert files_with(path) == set()
    store = opened()
    require_nothing_lost(store, before)


def test_what_is_a_users_stays_and_what_finds_an_alias_never_told_it(
    opened: Callable[..., Store],
) -> None:
    """Documents of a user outlive the sessions; the index of aliases holds digests alone."""
    store = opened(dictionaries=False)
    plant(store, "sealed")
    acme = store.tenant(TENANT)
    acme.user("somebody").documents.write("notes", "the user's own").result(HANG_S)
    acme.documents.write("rules", "everybody's").result(HANG_S)
    store.flush()
    with store._log.views.listing(TENANT, hidden=True) as listing:
        assert listing is not None
        found = [
            listing.facts(position, *each)
            for position, *each in listing.newest(decode_cursor(None))
        ]
    derived = [each.origin.name for each in found if each and is_derived(each.origin.name)]
    told = [event for name in derived for event in Session(store, TENANT, name).events()]
    assert len(told) >= 3 * 3  # each alias is claimed, and one of the two let go
    assert not [event for event in told if CANARY in repr(event) or CANARY in repr(event.body)]
    canary_session(store).erase(HANG_S)
    path = store.path
    store.close()
    Store.vacuum(path)
    assert files_with(path) == set()
    store = opened()
    acme = store.tenant(TENANT)
    assert acme.user("somebody").documents.read("notes") == "the user's own"
    assert acme.documents.read("rules") == "everybody's"
    taken = acme.session("another")
    taken.alias(f"{CANARY}-0").result(HANG_S)
    found = acme.by_alias(f"{CANARY}-0")
    assert found is not None and found.name == "another"
    taken.erase(HANG_S)


def speak(store: Store, session: Session, number: int) -> None:
    """What a redaction takes: bodies of public events and of those beside them, metadata, blobs."""
    blobs = store.tenant(TENANT).blobs
    session.append(
        {"role": "user", "content": whisper(number), CANARY: [whisper(number)]},
        id=f"m-{number}",
        idempotency_key=f"k-{number}",
        metadata={CANARY: CANARY, "b": CANARY.encode()},
        run_id="run",
        blobs=[blobs.put(Random(number).randbytes(5_000) + SECRET, media_type=f"a/{CANARY}")],
    ).result(HANG_S)
    session.append_event("its.own", {"of": CANARY}).result(HANG_S)
    session.append({"role": "user", "content": f"half \ud83d {CANARY}", "\udc00": CANARY})
    session.append_event("annotation", {CANARY: CANARY}).result(HANG_S)
    session.append_event("metric", {"of": CANARY}).result(HANG_S)
    session.update_state({"number": number}).result(HANG_S)
    session.append({"role": "assistant", "content": CANARY}).result(HANG_S)
    assert session.compact(lambda _: whisper(number), keep_last=1) is not None


@pytest.mark.parametrize("place", ["loose", "sealed", "merged", "cut", "mixed"])
def test_what_was_redacted_is_in_no_live_record_and_after_a_vacuum_in_no_file(
    opened: Callable[..., Store], place: str
) -> None:
    store = opened(dictionaries=False)
    random = Random(6)
    acme = store.tenant(TENANT)
    for number in range(40):
        acme.session(f"s{number}").append_many([said(random, 40) for _ in range(8)]).result(HANG_S)
    session = acme.session("plain", title="a title")
    for number in range(12 if place == "merged" else 3):
        speak(store, session, number)
        if place != "loose":
            store.flush()
    has_dictionary = place not in ("loose",)
    if has_dictionary:
        train(store, session)
    if place == "cut":
        fill(store)
    if place == "mixed":
        speak(store, session, 50)
    assert tables_with(store) >= {"chunk", "blob", *(["dictionary"] * has_dictionary)}
    before, state = others(store), session.state
    kept = [(event.sequence, event.kind, event.id, event.role) for event in session.events()]
    receipt = session.redact(0, session.info().last_sequence)  # type: ignore[union-attr]
    assert tables_with(store) == ({"dictionary"} if has_dictionary else set())
    assert receipt.is_live is bool(receipt.dictionaries) is has_dictionary
    assert receipt.blobs_removed == len([each for each in kept if each[2] is not None])

    def require_kept() -> None:
        session = store.tenant(TENANT).session("plain")
        events = list(session.events())[:-1]
        assert [(each.sequence, each.kind, each.id, each.role) for each in events] == kept
        assert others(store)[: len(before)] == before and session.state == state
        assert store.check().ok

    require_kept()
    path = store.path
    store.close()
    assert files_with(path) == {"data.mdb"}  # old pages, or the dictionary
    Store.vacuum(path)
    assert files_with(path) == set()
    store = opened()
    assert tables_with(store) == set()
    assert not set(receipt.dictionaries) & set(map(int, store.stats()["dictionaries"]))
    require_kept()


def test_the_names_that_a_command_was_given_are_in_no_lock_file(
    opened: Callable[..., Store],
) -> None:
    """``writer.lock`` kept the command line of who wrote last, ``turnlog erase`` and the name that
    was to be forgotten.
    """
    store = opened(dictionaries=False)
    plant(store, "sealed")
    path = store.path
    store.close()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "turnlog", "erase", str(path), f"call {CANARY}"),
            *("--tenant", TENANT, "--yes", "--json"),
        ],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tools'}"},
        capture_output=True,
        timeout=HANG_S,
        check=True,
    )
    assert json.loads(done.stdout)["dictionaries"] == [1]
    assert files_with(path) == {"data.mdb"}
