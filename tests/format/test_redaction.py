"""Redacted events, read from the document alone: hot, sealed, cut, and rewritten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine import Store
from engine.export import event_to_line
from tests.format import independent, independent_rows
from tests.unit.redacted import COUNT, FREQUENCY, PLACES, SECRET, plant, tell

FIRST, LAST = 5, COUNT - 3
REDACTED = 8  # a session row's flag


@pytest.fixture(params=PLACES)
def path(request: pytest.FixtureRequest, checked_store: Callable[..., Store]) -> Path:
    """A closed store of which some events were redacted, and one that named contents beside."""
    with checked_store(snapshot_frequency=FREQUENCY) as store:
        tell(store, store.tenant("acme").session("beside"), 7)
        session = plant(store, request.param)
        session.append_event("metric", {"of": SECRET}).result()
        session.redact(FIRST, LAST, reason="r")
        session.redact(COUNT, session.info().last_sequence)  # type: ignore[union-attr]
    return store.path


@pytest.mark.parametrize("rewritten", [False, True])
def test_the_document_alone_is_enough_to_read_them(path: Path, rewritten: bool) -> None:
    if rewritten:
        Store.vacuum(path)
    known = independent.Reader(path)
    found = known.find("acme", "call")
    assert found is not None and found.flags == REDACTED
    beside = known.find("acme", "beside")
    assert beside is not None and beside.flags == 0
    with Store.open(path, create=False, read_only=True) as store:
        events = list(store.read())
        for ours, theirs in zip(events, known.events(), strict=True):
            assert (ours.redacted, ours.body, ours.id) == (theirs.redacted, theirs.body, theirs.id)
        told = [
            independent_rows.export_line(event, [known.blobs[1, each] for each in event.blobs])
            for event in known.events()
        ]
        names = [independent_rows.content_name(each) for each in known.blobs.values()]
        assert told == [
            event_to_line(event, blobs=names if event.blobs else None) for event in events
        ]
    redacted = [event for event in known.events() if event.redacted]
    assert {event.session for event in redacted} == {"call"}
    assert [event.sequence for event in redacted][: LAST - FIRST + 1] == [*range(FIRST, LAST + 1)]
    assert {event.kind for event in redacted} >= {"message", "my.kind", "metric"}


def test_another_implementation_appends_to_a_session_that_was_redacted(path: Path) -> None:
    position = independent.append(path, "acme", "call", {"role": "user"}, 2**40)
    with Store.open(path, create=False) as store:
        session = store.tenant("acme").session("call")
        event = list(session.events())[-1]
        assert (event.position, event.body) == (position, {"role": "user"})
        assert session.event(FIRST).redacted and store.check().ok
