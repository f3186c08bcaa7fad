"""Deleting, erasing and purging, as works of ``maintenance``: stores, what is done, and judges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from engine import Store
from eventlog import limits, reclaim
from eventlog.keys import U64
from tests.crash.upkeep import (
    AFTER,
    FILLER,
    WAIT_S,
    Content,
    Work,
    judge_order,
    numbered,
    opened,
    require_no_left_over,
    require_removed,
)
from tests.crash.workload import seal_as_usual, seal_eagerly, session_of

KEPT: Final = (Content(("", "kept"), 3), Content(("acme", "doomed"), 2), Content(("acme", "k"), 2))
DOOMED: Final = Content(("", "doomed"), 8)
DOOMED_TWO: Final = Content(("acme", "doomed too"), 5)
REMOVED_MAX: Final = 25  # rows of one slice, so that a small session takes several
RICH: Final = ("acme", "rich")
SHARED: Final = b"a picture that two sessions hold " * 5_000
OWN: Final = b"<rich> a picture of its own " * 5_000


def prepare(path: Path) -> None:
    """Every session has events in segments and loose ones."""
    contents = (*KEPT, DOOMED, DOOMED_TWO)
    with Store.open(path, snapshot_frequency=8) as store:
        for content in contents:
            content.append(store, 0, content.pieces * 2 // 3)
        store.flush()
        store._log.index.frequency = limits.SNAPSHOT_FREQUENCY_MAX
        for content in contents:
            content.append(store, content.pieces * 2 // 3)


def prepare_cut(path: Path) -> None:
    """The first events of every session are cut from the hot log."""
    prepare(path)
    with Store.open(path, create=False) as store:
        filler = store.session(FILLER[1])
        for _ in range(limits.HOT_TABLE_POSITIONS // 1_024 + 1):
            filler.append_many([{}] * 1_024).result(WAIT_S)
        seal_eagerly(store, 1)
        store.session(AFTER[1]).append({"role": "user"}).result(WAIT_S)
        store.flush()
        seal_as_usual(store)
        with store._log.views.transaction() as tables:
            assert tables.commit_record().cuts


def _remove(path: Path, *contents: Content, erase: bool = False) -> None:
    """Remove sessions, and wait until nothing is left of them."""
    bounds: Any = reclaim
    bounds.COMMIT_REMOVED_MAX = REMOVED_MAX
    with opened(path) as store:
        sessions = [session_of(store, content.name) for content in contents]
        there = [session for session in sessions if session.exists]
        if erase:
            for session in there:
                session.erase(timeout=WAIT_S)
        else:
            for ack in [session.delete() for session in there]:
                ack.result(WAIT_S)
        store.session(AFTER[1]).append({"role": "user"}).result(WAIT_S)
        store.flush(WAIT_S)


def _judge_removed(path: Path, done: bool, *contents: Content, erased: bool = False) -> None:
    """Each of some sessions is there or gone."""
    every = (*KEPT, DOOMED, DOOMED_TWO)
    with Store.open(path, create=False, verify=True) as store:
        kept = [content for content in every if content not in contents]
        for content in kept:
            content.require(store)
        there = [content for content in contents if content.is_there(store)]
        judge_order(store, [*kept, *there])
        if done:
            assert not there, f"{[content.name for content in there]} are still there"
            for content in contents:
                number = 1 + every.index(content)
                require_removed(store, content, number, erased=erased)
    if done:
        judge_names(path, kept, contents)
        require_no_left_over(path)


def judge_names(path: Path, kept: list[Content], gone: tuple[Content, ...]) -> None:
    """Keys and ids of what is kept are known, those of what is gone are free, and so are names."""
    with Store.open(path, create=False) as store:
        for content in kept:
            assert all(content.append(store)), f"{content.name} was appended again"
        for content in gone:
            assert not any(content.append(store)), f"keys of {content.name} are known"
            assert numbered(session_of(store, content.name)) > len(KEPT) + 2
            content.require(store)
        report = store.check()
        assert report.ok, report.findings


def _work(prepare: Callable[[Path], None], *contents: Content, erase: bool = False) -> Work:
    return Work(
        prepare,
        lambda path: _remove(path, *contents, erase=erase),
        lambda path, done: _judge_removed(path, done, *contents, erased=erase),
    )


# Purging


def _purge(path: Path, first: int) -> None:
    bounds: Any = reclaim
    bounds.COMMIT_REMOVED_MAX = REMOVED_MAX
    with opened(path) as store:
        session = session_of(store, DOOMED.name)
        if next(iter(session.events())).sequence == 0:
            session.purge(first).result(WAIT_S)
        store.session(AFTER[1]).append({"role": "user"}).result(WAIT_S)
        store.flush(WAIT_S)


def _judge_purged(path: Path, done: bool, first: int) -> None:
    """The session is whole, or begins at a sequence and ends with its base."""
    others = (*KEPT, DOOMED_TWO)
    with Store.open(path, create=False, verify=True) as store:
        for content in others:
            content.require(store)
        session = session_of(store, DOOMED.name)
        events = list(session.events())
        bodies = DOOMED.bodies()
        if events[0].sequence == 0:
            assert not done
            DOOMED.require(store)
            judge_order(store, [*others, DOOMED])
            return
        assert [event.sequence for event in events] == list(range(first, len(bodies) + 1))
        assert events[-1].kind == "base"
        assert [event.body for event in events[:-1]] == bodies[first:]
        assert session.history() == bodies[first:]
        assert session.history(5) == bodies[-5:]
        info = session.info()
        assert info is not None
        assert (info.event_count, info.message_count, info.head) == (
            len(bodies) + 1,
            len(bodies),
            len(bodies) - 1,
        )
        judge_order(store, others, apart={DOOMED.name: bodies[first:]})
        if not done:
            return
        with store._log.views.transaction() as tables:
            tables.commit_record()  # it says which database has which role
            assert list(tables.rows("removal")) == []
            key = next(iter(tables.rows("segment", U64.pack(len(KEPT) + 1))))[0]
            assert U64.unpack(key[U64.size :])[0] >= first
    with Store.open(path, create=False) as store:
        assert all(DOOMED.append(store)), "keys of purged events are not known any more"
        assert store.check().ok
    require_no_left_over(path)


# State and contents


def _prepare_rich(path: Path) -> None:
    """A session with variables, snapshots and contents, one of which another session holds."""
    prepare(path)
    with Store.open(path, create=False) as store:
        rich = session_of(store, RICH)
        acme = store.tenant("acme")
        shared = acme.blobs.put(SHARED, media_type="image/png")
        own = acme.blobs.put(OWN)
        for number in range(6):
            rich.append({"role": "user", "content": f"<rich> {number}"}, blobs=[own]).result(WAIT_S)
            rich.update_state({f"<rich> {number}": number}).result(WAIT_S)
        rich.append({"role": "user", "content": "<rich>"}, blobs=[shared, own]).result(WAIT_S)
        rich.roll_up().result(WAIT_S)
        rich.append({"role": "user", "content": "<rich>"}, blobs=[own]).result(WAIT_S)
        acme.session("beside").append({"role": "user"}, blobs=[shared]).result(WAIT_S)
        store.flush(WAIT_S)


def _erase_rich(path: Path) -> None:
    bounds: Any = reclaim
    bounds.COMMIT_REMOVED_MAX = 3
    with opened(path) as store:
        rich = session_of(store, RICH)
        is_there = rich.exists
        if is_there:
            rich.erase(timeout=WAIT_S)
        store.session(AFTER[1]).append({"role": "user"}).result(WAIT_S)
        store.flush(WAIT_S)
    if not is_there:  # nobody waited for the erasure: chunks of its contents stay for a while
        Store.vacuum(path)


def _judge_rich(path: Path, done: bool) -> None:
    with Store.open(path, create=False, verify=True) as store:
        for content in (*KEPT, DOOMED, DOOMED_TWO):
            content.require(store)
        acme = store.tenant("acme")
        (beside,) = acme.session("beside").events()
        (shared,) = acme.blobs.of(beside)
        assert acme.blobs.read(shared) == SHARED
        rich = session_of(store, RICH)
        if rich.exists:
            assert not done
            assert rich.state == {f"<rich> {number}": number for number in range(6)}
            events = list(rich.events(kinds=("message",)))
            contents = [
                [acme.blobs.read(each) for each in acme.blobs.of(event)] for event in events
            ]
            assert contents == [[OWN]] * 6 + [[SHARED, OWN], [OWN]]
        else:
            assert rich.state == {} and rich.variables() == [] and rich.history() == []
        report = store.check()
        assert report.ok, report.findings
        if done:
            with store._log.views.transaction() as tables:
                tables.commit_record()  # it says which database has which role
                for name in tables.tables:
                    for _, value in tables.rows(name):
                        assert b"<rich>" not in value, name
                assert len(list(tables.rows("removal"))) == 0
                assert len(list(tables.rows("blob"))) == 1
                assert list(tables.rows("state", U64.pack(RICH_NUMBER))) == []
    if done:
        require_no_left_over(path)


RICH_NUMBER: Final = len(KEPT) + 3

REMOVAL_WORKS: Final[dict[str, Work]] = {
    "delete": _work(prepare, DOOMED),
    "delete two": _work(prepare, DOOMED, DOOMED_TWO),
    "delete cut": _work(prepare_cut, DOOMED),
    "erase": _work(prepare, DOOMED, erase=True),
    "erase cut": _work(prepare_cut, DOOMED, erase=True),
    "purge sealed": Work(prepare, partial(_purge, first=33), partial(_judge_purged, first=33)),
    "purge loose": Work(prepare, partial(_purge, first=65), partial(_judge_purged, first=65)),
    "purge cut": Work(prepare_cut, partial(_purge, first=33), partial(_judge_purged, first=33)),
    "erase rich": Work(_prepare_rich, _erase_rich, _judge_rich),
}
