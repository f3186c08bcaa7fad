"""Redacting, as works of ``maintenance``: whatever happens, an event is whole or redacted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from engine import Event, Store
from eventlog import redaction
from tests.crash.upkeep import (
    AFTER,
    WAIT_S,
    Work,
    judge_order,
    opened,
    require_no_left_over,
)
from tests.crash.workload import Name, session_of
from tests.crash.works_of_removal import DOOMED, DOOMED_TWO, KEPT, prepare, prepare_cut

FIRST: Final = 13
LAST: Final = 71  # of 80, of which about 50 are sealed
SLICE: Final = 9  # events of one commit, so that a small session takes several
RICH: Final[Name] = ("acme", "rich")
OWN: Final = b"<rich> a picture of its own " * 5_000
SHARED: Final = b"a picture that two sessions hold " * 5_000
RICH_COUNT: Final = 6


def _redact(path: Path, name: Name, first: int, last: int) -> None:
    bounds: Any = redaction
    bounds.COMMIT_EVENTS_MAX = SLICE
    with opened(path) as store:
        session_of(store, name).redact(first, last, reason="for a reason")
        store.session(AFTER[1]).append({"role": "user"}).result(WAIT_S)
        store.flush(WAIT_S)


def _judge(path: Path, done: bool) -> None:
    """The events of the range are redacted up to one of them, and all others are whole."""
    bodies = DOOMED.bodies()
    with Store.open(path, create=False, verify=True) as store:
        for content in (*KEPT, DOOMED_TWO):
            content.require(store)
        session = session_of(store, DOOMED.name)
        events = list(session.events())
        told, said = events[: len(bodies)], events[len(bodies) :]
        redacted = [event.sequence for event in told if event.redacted]
        assert redacted == list(range(FIRST, FIRST + len(redacted)))
        shown = [None if event.redacted else bodies[event.sequence] for event in told]
        assert [event.body for event in told] == shown
        assert session.history() == shown and session.history(7) == shown[-7:]
        require_said(said, FIRST, LAST, done=done or len(said) > 0)
        assert len(redacted) == LAST + 1 - FIRST or not said, "it was said before it was true"
        assert len(redacted) == LAST + 1 - FIRST or not done
        apart = {DOOMED.name: [*shown, *[event.body for event in said]]}
        judge_order(store, [*KEPT, DOOMED_TWO], apart=apart)
    if not done:
        return
    with Store.open(path, create=False) as store:
        assert all(DOOMED.append(store)), "keys of redacted events are not known any more"
        assert store.check().ok
    require_no_left_over(path)


def require_said(said: list[Event], first: int, last: int, *, done: bool) -> None:
    """One event says so, or none yet."""
    body = {"first": first, "last": last, "reason": "for a reason"}
    assert [(event.kind, event.body) for event in said] == [("redaction", body)] * done


def _prepare_contents(path: Path) -> None:
    """A session with contents, one of which another session holds."""
    prepare(path)
    with Store.open(path, create=False) as store:
        rich = session_of(store, RICH)
        acme = store.tenant("acme")
        shared, own = acme.blobs.put(SHARED), acme.blobs.put(OWN)
        for number in range(RICH_COUNT):
            body = {"role": "user", "content": f"<rich> {number}"}
            rich.append(body, blobs=[own, shared], metadata={"of": "<rich>"}).result(WAIT_S)
        acme.session("beside").append({"role": "user"}, blobs=[shared]).result(WAIT_S)
        store.flush(WAIT_S)


def _judge_contents(path: Path, done: bool) -> None:
    with Store.open(path, create=False, verify=True) as store:
        acme = store.tenant("acme")
        (beside,) = acme.session("beside").events()
        assert [acme.blobs.read(each) for each in acme.blobs.of(beside)] == [SHARED]
        events = list(session_of(store, RICH).events())
        told, said = events[:RICH_COUNT], events[RICH_COUNT:]
        redacted = [event for event in told if event.redacted]
        assert told[: len(redacted)] == redacted
        for event in redacted:
            assert (event.body, event.metadata, event.blobs) == (None, None, ())
        for event in told[len(redacted) :]:
            assert [acme.blobs.read(each) for each in acme.blobs.of(event)] == [OWN, SHARED]
        assert len(redacted) == RICH_COUNT or not (said or done)
        require_said(said, 0, RICH_COUNT - 1, done=done or len(said) > 0)
        report = store.check()
        assert report.ok, report.findings
        if not done:
            return
        with store._log.views.transaction() as tables:
            tables.commit_record()  # it says which database has which role
            for name in tables.tables:
                for _, value in tables.rows(name):
                    assert b"<rich>" not in value, name
            assert len(list(tables.rows("blob"))) == 1
    require_no_left_over(path)


def _work(prepared: Callable[[Path], None]) -> Work:
    return Work(prepared, partial(_redact, name=DOOMED.name, first=FIRST, last=LAST), _judge)


REDACTION_WORKS: Final[dict[str, Work]] = {
    "redact": _work(prepare),
    "redact cut": _work(prepare_cut),
    "redact rich": Work(
        _prepare_contents,
        partial(_redact, name=RICH, first=0, last=RICH_COUNT - 1),
        _judge_contents,
    ),
}
