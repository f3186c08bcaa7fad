"""Dictionaries of a store: trained beside appends, used from then on, and never trusted blindly."""

from __future__ import annotations

import shutil
import tarfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine import CorruptionError, Store
from engine.salvage import Lost
from eventlog import training
from eventlog.dictionary import Dictionary, DictionaryRow, dictionary_key
from eventlog.failpoints import failpoints, raise_
from eventlog.index import SessionState
from eventlog.keys import U64
from eventlog.limits import SAMPLE_BYTES_MAX, SAMPLES_BYTES_MAX, TRAIN_BYTES
from eventlog.recoding import Recoding, recoding_of
from eventlog.rows import NO_SEQUENCE, SessionRow
from eventlog.sealing import Sealing
from eventlog.segment import Run, SegmentPrefix, decode_segment, join_segments
from eventlog.segmentcache import SegmentCache
from eventlog.training import TenantDictionaries, collect
from tests.damaged_store import flipped, put, rows
from tests.format import independent
from tests.format.make_store import STORES

HANG_S = 30.0
MESSAGES = 24  # of a session, which make it due
SESSIONS = 260  # of one tenant: more than the 1 MiB that a training takes
WORDS = (
    "please order number flight hotel thank you sure when would like room price booking which "
    "city leaving date return passengers confirm reservation restaurant table people time"
).split()


def fill(store: Store, tenant: str, sessions: range, *, seed: int = 1, words: Any = WORDS) -> None:
    """Short dialogues, sealed."""
    random = Random(seed)
    for number in sessions:
        store.tenant(tenant).session(f"call-{number}").append_many(
            [
                {
                    "role": ("user", "assistant")[place % 2],
                    "content": " ".join(random.choices(words, k=14)),
                }
                for place in range(MESSAGES)
            ]
        )
    store.flush()
    assert store._log.trainer.wait(HANG_S)


def test_of_many_sessions_a_bounded_number_is_drawn(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of every session of a tenant was held at once; the draw is the same with a bound."""
    store = checked_store(snapshot_frequency=MESSAGES)
    fill(store, "acme", range(12))
    every = list(training._spread(store._log.views.transaction, 1))
    assert len({number for _, number in every}) == 12
    monkeypatch.setattr(training, "SPREAD_SESSIONS_MAX", 5)
    assert list(training._spread(store._log.views.transaction, 1)) == every[:5]


def dictionaries(store: Store) -> Any:
    return store.stats()["dictionaries"]


def newest(store: Store, tenant: str) -> int:
    """Number of a tenant's dictionary; it must have one."""
    (number,) = [
        int(each) for each, facts in dictionaries(store).items() if facts["tenant"] == tenant
    ]
    return number


def numbers(store: Store, tenant: str) -> list[int]:
    """Which dictionary each segment of a tenant names, by session and sequence."""
    with store._log.views.transaction() as tables:
        number = tables.find_tenant(tenant)
        return [
            SegmentPrefix.unpack(key, value).dictionary
            for key, value in tables.rows("segment")
            if tables.load_row(U64.unpack(key[:8])[0]).tenant_number == number
        ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two tenants with a dictionary each, and one that has none; not to be changed."""
    path = tmp_path_factory.mktemp("trained") / "store"
    with Store.open(path, snapshot_frequency=MESSAGES) as store:
        for tenant in ("acme", "other"):
            fill(store, tenant, range(SESSIONS))
            fill(store, tenant, range(SESSIONS, SESSIONS + 20))
        fill(store, "small", range(3))
        assert store.check().ok
        assert len(dictionaries(store)) == 2
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "store"))


def test_a_tenant_gets_a_dictionary_from_its_first_mebibyte(made: Path) -> None:
    with Store.open(made, create=False, read_only=True) as store:
        facts = dictionaries(store)
        assert [facts[number]["tenant"] for number in ("1", "2")] == ["acme", "other"]
        for each in facts.values():
            assert each["ratio"] > 2
            assert 8_192 <= each["bytes"] <= 32_768
        for number, tenant in enumerate(("acme", "other"), 1):
            found = numbers(store, tenant)
            assert set(found) <= {0, number}
            assert found[-20:] == [number] * 20
        assert set(numbers(store, "small")) == {0}
        assert store.check().counts["dictionaries"] == 2
        history = store.tenant("acme").session("call-270").history()
        assert len(history) == MESSAGES
    read = independent.Reader(made)
    assert read.last_position == (2 * (SESSIONS + 20) + 3) * MESSAGES
    assert sorted(read.dictionaries) == [1, 2]


def test_what_a_dictionary_was_trained_on_is_told(made: Path) -> None:
    """No session gives more than 4 KiB, and those that judge teach nothing."""
    with Store.open(made, create=False, read_only=True) as store:
        with store._log.views.transaction() as tables:
            row = tables.load_dictionary(1)
            tenants = {tables.load_row(number).tenant_number for number in row.sessions}
            assert tenants == {row.tenant_number}
            assert tables.dictionaries_of(set(row.sessions[:1])) == [1]
            assert tables.dictionaries_of({0}) == []
        cache = SegmentCache(1 << 20, threading.Lock())
        found = collect(store._log.views.transaction, row.tenant_number, cache, threading.Event())
        assert max(map(len, found.taught)) <= SAMPLE_BYTES_MAX
        assert sum(map(len, found.taught)) <= SAMPLES_BYTES_MAX + SAMPLE_BYTES_MAX
        assert len(found.taught) == len(found.sessions) == len(set(found.sessions))
        assert len(found.judged) == (SESSIONS + 20) // training.JUDGE_EVERY
        assert found.content_bytes >= TRAIN_BYTES


def test_a_segment_is_written_again_with_another_dictionary(made: Path) -> None:
    """What ``vacuum`` does after an erase, with a fresh one or with none."""
    with (
        Store.open(made, create=False, read_only=True) as store,
        store._log.views.transaction() as tables,
    ):
        cache = store._log.cache
        key, value = list(tables.rows("segment"))[270]
        segment = cache.decode(tables, key, value)
        assert segment.prefix.dictionary == 1
        for number in (0, 2):
            other = cache.find_dictionary(tables, number) if number else None
            again_key, again = join_segments(U64.unpack(key[:8])[0], [segment], other)
            assert again_key == key
            assert SegmentPrefix.unpack(key, again).dictionary == number
            decoded = cache.decode(tables, key, again)
            assert (decoded.heads, decoded.tails) == (segment.heads, segment.tails)


def test_another_process_picks_it_up(path: Path) -> None:
    with Store.open(path, create=False) as store:
        fill(store, "acme", range(300, 310))
        assert numbers(store, "acme")[-10:] == [1] * 10
        fill(store, "small", range(300, 303))
        assert set(numbers(store, "small")) == {0}
        assert store.check().ok


def test_switched_off_there_are_none(checked_store: Callable[..., Store]) -> None:
    store = checked_store(dictionaries=False, snapshot_frequency=MESSAGES)
    fill(store, "acme", range(SESSIONS))
    assert dictionaries(store) == {}
    assert set(numbers(store, "acme")) == {0}
    assert store.stats()["options"]["dictionaries"] is False
    store.close()
    with Store.open(store.path) as again:
        assert again.stats()["options"]["dictionaries"] is False


def test_a_process_that_seals_little_uses_what_others_sealed(store_path: Path) -> None:
    """Each of many short runs sealed less than the 1 MiB, so that none ever trained."""
    for start in range(0, SESSIONS, 130):
        with Store.open(store_path, snapshot_frequency=MESSAGES) as store:
            store._log.trainer.stop(0.0)
            fill(store, "acme", range(start, start + 130))
            assert dictionaries(store) == {}
    with Store.open(store_path, snapshot_frequency=MESSAGES) as store:
        fill(store, "acme", range(SESSIONS, SESSIONS + 1))
        assert list(dictionaries(store)) == ["1"]
        fill(store, "acme", range(SESSIONS + 1, SESSIONS + 2))
        assert numbers(store, "acme")[-1] == 1
        assert store.check().ok


def test_a_tenant_that_talks_differently_by_now_gets_another_one(path: Path) -> None:
    """The ratio fell by a tenth, and the new one is better on sessions that it never saw."""
    alphabet = Random(7)
    words = ["".join(alphabet.choices("abcdefghijklmnop", k=11)) for _ in range(60)]
    with Store.open(path, create=False) as store:
        fill(store, "acme", range(1_000, 1_500), words=words)
        facts = dictionaries(store)
        assert store._log.trainer.problem is None, store._log.dictionaries._tallies
        assert [each["tenant"] for each in facts.values()] == ["acme", "other", "acme"]
        fill(store, "acme", range(1_500, 1_505), words=words)
        assert numbers(store, "acme")[-5:] == [3] * 5
        assert store.check().ok


def test_what_gains_too_little_is_not_stored(
    checked_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "compressed_bytes", lambda samples, data: 1_000)  # any as good
    store = checked_store(snapshot_frequency=MESSAGES)
    fill(store, "acme", range(SESSIONS))
    assert dictionaries(store) == {}
    assert store._log.trainer.problem == "it would gain too little"
    before = store._log.dictionaries._tallies[1].needed_bytes
    fill(store, "acme", range(SESSIONS, SESSIONS + 1))
    assert store._log.dictionaries._tallies[1].needed_bytes == 2 * before


def test_a_dictionary_that_is_not_committed_is_tried_again_later(
    checked_store: Callable[..., Store],
) -> None:
    store = checked_store(snapshot_frequency=MESSAGES)
    with failpoints({"dictionary.after_put": raise_(OSError(5, "broken"))}):
        fill(store, "acme", range(SESSIONS))
    assert dictionaries(store) == {}
    assert store._log.trainer.problem is not None
    assert store.check().ok
    fill(store, "acme", range(SESSIONS, 4 * SESSIONS))
    assert list(dictionaries(store)) == ["1"]


def test_nothing_is_stored_when_a_session_was_removed_meanwhile(path: Path) -> None:
    """Its sentences would come back with the dictionary."""
    with Store.open(path, create=False) as store:
        with store._log.views.transaction() as tables:
            row = replace(tables.load_dictionary(1), tenant_number=1)
            record = tables.commit_record()
        for removals, before in ((record.removals + 1, 2), (record.removals, 0)):
            task = training._Install(row, removals, before)
            store._log.writer.run(task)
            assert task.done
            assert len(dictionaries(store)) == 2
        store._log.writer.run(training._Install(row, record.removals, 2))
        assert len(dictionaries(store)) == 3
        assert store.check().ok


def forged(row: DictionaryRow) -> bytes:
    return row.encode(dictionary_key(1))


def dictionary_row(path: Path, number: int) -> tuple[bytes, bytes]:
    return next(
        (key, value) for table, key, value in rows(path) if table == "dict" if key[0] == number
    )


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(lambda one, two: None, "is missing", id="missing"),
        pytest.param(lambda one, two: one[:-5] + b"x" + one[-4:], "checksum", id="flipped"),
        pytest.param(lambda one, two: two, "checksum", id="another-ones-row"),
        pytest.param(
            lambda one, two: forged(DictionaryRow.decode(b"\x02", two)), "dictionary id", id="wrong"
        ),
        pytest.param(
            lambda one, two: forged(
                replace(DictionaryRow.decode(b"\x01", one), data=b"the flight to the hotel" * 400)
            ),
            "not trained|cannot be used",
            id="raw",
        ),
    ],
)
def test_row_28_a_damaged_dictionary_takes_nothing_else_along(
    path: Path, damage: Callable[[bytes, bytes], bytes | None], reason: str
) -> None:
    """What needs it is an error that names both, all else is read, and appends go on."""
    one, two = dictionary_row(path, 1)[1], dictionary_row(path, 2)[1]
    put(path, ("dict", b"\x01", damage(one, two)))
    with Store.open(path, create=False) as store:
        call = store.tenant("acme").session("call-275")
        with pytest.raises(CorruptionError, match=reason) as caught:
            call.history()
        assert "dictionary 1" in str(caught.value)
        assert "segment" in str(caught.value)
        for tenant in ("other", "small"):
            for info in store.tenant(tenant).sessions(limit=500).sessions:
                assert len(store.tenant(tenant).session(info.name).history()) == MESSAGES
        fill(store, "acme", range(900, 903))
        assert len(store.tenant("acme").session("call-901").history()) == MESSAGES
        report = store.check()
        assert 1 <= len(report.findings) <= 300
        assert any(["dictionary 1" in f"{each.where}: {each.message}" for each in report.findings])
        assert ("1" in dictionaries(store)) == (reason != "is missing")
        lost = [each for each in store.salvage(tenant="acme") if isinstance(each, Lost)]
        assert len(lost) == numbers(store, "acme").count(1) or reason == "dictionary id"
        assert not [each for each in store.salvage(tenant="other") if isinstance(each, Lost)]


def test_check_finds_a_dictionary_of_another_tenant(path: Path) -> None:
    """Its bytes decompress: only who asks for the tenant notices that one tells of another."""
    one = DictionaryRow.decode(*dictionary_row(path, 1))
    put(path, ("dict", b"\x01", forged(replace(one, tenant_number=2))))
    with Store.open(path, create=False, read_only=True) as store:
        assert len(store.tenant("acme").session("call-275").history()) == MESSAGES
        report = store.check()
        assert {each.message for each in report.findings} == {"dictionary 1 is another tenant's"}
    put(path, ("dict", b"\x01", forged(replace(one, tenant_number=9))))
    with Store.open(path, create=False, read_only=True) as store:
        messages = {each.message for each in store.check().findings}
        assert "is of tenant 9, which has no row" in messages
    put(path, ("dict", b"\x01", forged(one)), ("dict", b"\x09", one.encode(b"\x09")))
    with Store.open(path, create=False, read_only=True) as store:
        assert [str(each.message) for each in store.check().findings] == ["was never handed out"]


def tally(known: TenantDictionaries, tenant: int, content: int, payload: int) -> None:
    """Seal so much of a tenant."""
    row = SessionRow(tenant, 1, 1, 1, 1, NO_SEQUENCE, 1, 1, 0, 1, 0, 0, "t", "s", None)
    run = Run(1, 0, [], [], content_bytes=content, payload_bytes=payload)
    sealing = Sealing(runs=[(row, run)], rows=[(SessionState(1, row, 0), row)])
    known.note(sealing)


def test_when_a_training_is_due() -> None:
    """Without one after 1 MiB, with one when its ratio fell; after each try later and later."""
    started: list[tuple[int, int]] = []
    cache = SegmentCache(1, threading.Lock())
    known = TenantDictionaries(cache, lambda *of: not started.append(of))
    tally(known, 1, TRAIN_BYTES, 1)
    assert started == []  # nobody followed a transaction yet
    known._made = 0
    tally(known, 1, TRAIN_BYTES - 1, TRAIN_BYTES)
    assert started == []
    tally(known, 2, TRAIN_BYTES - 1, TRAIN_BYTES)
    tally(known, 1, 1, 1)
    assert started == [(1, 0)]
    known.outcomes.append(1)
    known._newest, known._ratios, known._made = {1: 1}, {1: 4.0}, 1
    tally(known, 1, 3 * TRAIN_BYTES, TRAIN_BYTES)
    assert started[1:] == [(1, 1)]
    tally(known, 1, 35 * TRAIN_BYTES, 10 * TRAIN_BYTES)
    assert started[2:] == [(1, 1)]
    tally(known, 1, 36 * TRAIN_BYTES, 10 * TRAIN_BYTES)  # nine tenths of 4
    assert len(started) == 3
    known.outcomes.append(1)
    tally(known, 1, 3 * TRAIN_BYTES, 3 * TRAIN_BYTES)
    assert len(started) == 3
    tally(known, 1, 1 * TRAIN_BYTES, 1 * TRAIN_BYTES)
    assert len(started) == 4
    known._made = training.DICTIONARIES_AGAIN_MAX
    tally(known, 1, 30 * TRAIN_BYTES, 30 * TRAIN_BYTES)
    assert len(started) == 4
    tally(known, 3, TRAIN_BYTES, TRAIN_BYTES)
    assert started[4:] == [(3, 0)]
    known._made = training.DICTIONARIES_MAX
    tally(known, 4, TRAIN_BYTES, TRAIN_BYTES)
    assert len(started) == 5


def test_a_close_ends_a_training(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that read on would have held the store open, or met one that is closed."""
    begun, go = threading.Event(), threading.Event()
    collected = training.collect

    def slow(*args: Any, **options: Any) -> Any:
        begun.set()
        assert go.wait(HANG_S)
        return collected(*args, **options)

    monkeypatch.setattr(training, "collect", slow)
    store = Store.open(store_path, snapshot_frequency=MESSAGES)
    random = Random(5)
    for number in range(SESSIONS):
        texts = [" ".join(random.choices(WORDS, k=14)) for _ in range(MESSAGES)]
        store.session(f"{number}").append_many([{"content": text} for text in texts])
    store.flush()
    assert begun.wait(HANG_S)
    threading.Timer(0.05, go.set).start()
    store.close()
    assert store._log.trainer.wait(HANG_S)


def test_a_store_of_version_1_has_none(tmp_path: Path) -> None:
    with tarfile.open(STORES / "1.tar.xz", "r:xz") as archive:
        archive.extractall(tmp_path / "one", filter="data")
    folder = next((tmp_path / "one").rglob("data.mdb")).parent
    with Store.open(folder, create=False) as store:
        fill(store, "acme", range(1_000, 1_000 + SESSIONS))
        assert dictionaries(store) == {}
        assert store.stats()["options"]["dictionaries"] is False
        assert store.check().ok


def test_one_dictionary_serves_many_threads(made: Path) -> None:
    with Store.open(made, create=False, read_only=True) as store:
        with store._log.views.transaction() as tables:
            items = list(tables.rows("segment"))[260:280]
            dictionary = Dictionary(1, tables.load_dictionary(1))
        wanted = [decode_segment(key, value, lambda _: dictionary).tails for key, value in items]
        wrong: list[int] = []

        def work(seed: int) -> None:
            random = Random(seed)
            for _ in range(200):
                place = random.randrange(len(items))
                found = decode_segment(*items[place], lambda _: dictionary)
                if found.tails != wanted[place]:
                    wrong.append(place)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert wrong == []


def test_a_vacuum_after_an_erase_takes_the_sentences_along(path: Path) -> None:
    """A dictionary quotes the sessions that it was trained on; what names it is written again."""
    with Store.open(path, create=False) as store:
        with store._log.views.transaction() as tables:
            row = tables.load_dictionary(1)
            erased = row.sessions[3]
            taught = tables.load_row(erased)
            assert recoding_of(tables).stale == {}
        kept = {
            name: store.tenant("acme").session(name).history()
            for name in ("call-270", "call-279")
            if name != taught.name
        }
        store.tenant("acme").session(taught.name).erase()
        store.flush()
        assert store.check().ok
    assert row.data in (path / "data.mdb").read_bytes()
    Store.vacuum(path)
    assert row.data not in (path / "data.mdb").read_bytes()
    with Store.open(path, create=False) as store:
        assert store.check().ok
        number = newest(store, "acme")
        with store._log.views.transaction() as tables:
            assert row.data != tables.load_dictionary(number).data
            assert erased not in tables.load_dictionary(number).sessions
        assert number in numbers(store, "acme")
        assert 1 not in numbers(store, "acme")
        assert newest(store, "other") in numbers(store, "other")
        for name, history in kept.items():
            assert store.tenant("acme").session(name).history() == history
        fill(store, "acme", range(2_000, 2_001))
        assert numbers(store, "acme")[-1] == number
        assert store.check().ok


@pytest.mark.parametrize("damage", [lambda value: None, flipped], ids=["missing", "damaged"])
def test_a_vacuum_does_not_need_every_session_row(
    path: Path, damage: Callable[[bytes], bytes | None]
) -> None:
    """A dictionary names the sessions that it was trained on, and vacuum reads their rows.

    One row that could not be read made it refuse the whole store, which check alone should tell.
    """
    with Store.open(path, create=False) as store, store._log.views.transaction() as tables:
        row = tables.load_dictionary(1)
        name = tables.load_row(row.sessions[3]).name
        value = tables.transaction.get(U64.pack(row.sessions[3]), db=tables.tables["session"])
    assert value is not None
    put(path, ("session", U64.pack(row.sessions[3]), damage(value)))
    with Store.open(path, create=False) as store:
        before = store.check().findings
        history = store.tenant("acme").session("call-270").history()
    Store.vacuum(path)
    assert row.data not in (path / "data.mdb").read_bytes()
    with Store.open(path, create=False) as store:
        after = store.check().findings
        assert [(each.where, each.message) for each in after] == [
            (each.where, each.message) for each in before
        ]
        assert newest(store, "acme") > 2
        assert name != "call-270"
        assert store.tenant("acme").session("call-270").history() == history


def test_a_vacuum_trains_what_there_was_no_reason_to_train_before(store_path: Path) -> None:
    """All of it fits into the hot log, so nothing was sealed that could have set a training off."""
    with Store.open(store_path) as store:
        fill(store, "acme", range(SESSIONS))
        before = {
            name: store.tenant("acme").session(name).history() for name in ("call-3", "call-9")
        }
        assert dictionaries(store) == {}
    Store.vacuum(store_path)
    found = set()
    for _ in range(2):
        with Store.open(store_path, create=False) as store:
            found.add(newest(store, "acme"))
            assert set(numbers(store, "acme")) - {0} == found  # 0 where it is smaller without
            assert store.check().ok
            for name, history in before.items():
                assert store.tenant("acme").session(name).history() == history
        Store.vacuum(store_path)  # finds nothing better


def test_without_dictionaries_a_vacuum_trains_none(store_path: Path) -> None:
    with Store.open(store_path, dictionaries=False) as store:
        fill(store, "acme", range(SESSIONS))
    Store.vacuum(store_path)
    with Store.open(store_path, create=False) as store:
        assert dictionaries(store) == {}


def test_what_was_purged_before_makes_no_dictionary_stale(path: Path) -> None:
    """A store that purges every night would train anew with each vacuum, until numbers run out."""
    with Store.open(path, create=False) as store:
        for number in range(SESSIONS):
            store.tenant("acme").session(f"call-{number}").purge(4).result()
    found = set()
    for _ in range(2):
        Store.vacuum(path)
        with Store.open(path, create=False) as store:
            found.add(newest(store, "acme"))
            with store._log.views.transaction() as tables:
                row = tables.load_dictionary(*found)
                assert set(row.firsts) == {0, 4}
                assert recoding_of(tables).stale == {}
                name = tables.load_row(row.sessions[row.firsts.index(4)]).name
            assert store.check().ok
    with Store.open(path, create=False) as store:
        store.tenant("acme").session(name).purge(5).result()
        with store._log.views.transaction() as tables:
            assert set(recoding_of(tables).stale) == found


def test_another_dictionary_of_the_tenant_takes_over(made: Path) -> None:
    with (
        Store.open(made, create=False, read_only=True) as store,
        store._log.views.transaction() as tables,
    ):
        stale = Dictionary(1, tables.load_dictionary(1))
        fresh = Dictionary(9, tables.load_dictionary(2))
        recode = Recoding({1: stale}, {stale.row.tenant_number: fresh})
        for table in ("segment", "dict", "session"):
            for key, value in tables.rows(table):
                changed = recode(table, key, value)
                if table == "segment" and value[10] == 1:
                    assert changed is not None
                    assert changed[10] == 9
                    before = decode_segment(key, value, lambda _: stale)
                    after = decode_segment(key, changed, lambda _: fresh)
                    assert (before.heads, before.tails) == (after.heads, after.tails)
                elif table == "dict" and key == b"\x01":
                    assert changed is None
                else:
                    assert changed == value
