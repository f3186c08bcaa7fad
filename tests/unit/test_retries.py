"""Retries: each writer that takes a key is stored once, as long as the session lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine import IdempotencyConflictError, Session, Store
from tests.model.staging import HANG_S
from tests.unit.belongings import USER

Open = Callable[..., Store]

WRITERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "append": (
        lambda call, **key: call.append(USER, **key),
        lambda call, **key: call.append({}, **key),
    ),
    "append_event": (
        lambda call, **key: call.append_event("note", [1], **key),
        lambda call, **key: call.append_event("note", [2], **key),
    ),
    "a metric": (
        lambda call, **key: call.append_event("metric", {"ms": 1}, **key),
        lambda call, **key: call.append_event("annotation", {"ms": 1}, **key),
    ),
    "append_many": (
        lambda call, **key: call.append_many([{}, USER], **key),
        lambda call, **key: call.append_many([USER, {}], **key),
    ),
    "on a branch": (
        lambda call, **key: call.append(USER, parent=0, **key),
        lambda call, **key: call.append(USER, parent=1, **key),
    ),
    "update_state": (
        lambda call, **key: call.update_state({"a": 1}, **key),
        lambda call, **key: call.update_state({"a": True}, **key),
    ),
    "record_usage": (
        lambda call, **key: call.record_usage(input_tokens=1, **key),
        lambda call, **key: call.record_usage(output_tokens=1, **key),
    ),
    "documents.write": (
        lambda call, **key: call.documents.write("d", "x", **key),
        lambda call, **key: call.documents.write("d", "y", **key),
    ),
    "documents.append": (
        lambda call, **key: call.documents.append("e", "x", **key),
        lambda call, **key: call.documents.append("e", "y", **key),
    ),
    "a small artifact": (
        lambda call, **key: call.artifacts.write("a", "x", **key),
        lambda call, **key: call.artifacts.write("a", b"x", **key),
    ),
    "a large artifact": (
        lambda call, **key: call.artifacts.write("b", "x" * 9_000, **key),
        lambda call, **key: call.artifacts.write("b", "y" * 9_000, **key),
    ),
}


def sealed(store: Store, _: Open) -> Store:
    for _number in range(30):
        store.session("call").append({}).result(HANG_S)
    store.flush(HANG_S)
    return store


def opened_again(store: Store, checked_store: Open) -> Store:
    store.close()
    return checked_store()


def rebuilt(store: Store, _: Open) -> Store:
    store.rebuild()
    return store


def purged(store: Store, _: Open) -> Store:
    call = store.session("call")
    call.append({}).result(HANG_S)
    call.purge(call.head or 0).result(HANG_S)
    return store


def vacuumed(store: Store, checked_store: Open) -> Store:
    path = store.path
    store.close()
    Store.vacuum(path)
    return checked_store()


def restored(store: Store, checked_store: Open) -> Store:
    backup, path = store.path.with_name("backup"), store.path.with_name("restored")
    store.backup(backup)
    Store.restore(backup, path)
    return checked_store(path)


LATER: dict[str, Callable[[Store, Open], Store]] = {
    "at once": lambda store, _: store,
    **{each.__name__: each for each in (sealed, opened_again, rebuilt, purged, vacuumed, restored)},
}


@pytest.mark.parametrize("later", LATER)
def test_every_writer_that_takes_a_key_is_stored_once(checked_store: Open, later: str) -> None:
    """adk-python 4506, openclaw 126680, camunda 57363: a retry stored the message twice; elsewhere
    keys were forgotten after a day, with a restart, or with what was trimmed."""
    store = checked_store(snapshot_frequency=4)
    call = store.session("call")
    call.append_many([{}, {}]).result(HANG_S)
    first = {
        name: write(call, idempotency_key=name).result(HANG_S)
        for name, (write, _) in WRITERS.items()
    }
    store = LATER[later](store, checked_store)
    call = store.session("call")
    count = call.info().event_count  # type: ignore[union-attr]
    for name, (write, other) in WRITERS.items():
        again = write(call, idempotency_key=name).result(HANG_S)
        assert again.already, name
        assert (again.first, again.last) == (first[name].first, first[name].last), name
        assert again.position == first[name].position, name
        if later == "purged" and name == "on a branch":
            continue  # what it followed went with the event
        with pytest.raises(IdempotencyConflictError):
            other(call, idempotency_key=name).result(HANG_S)
    assert call.info().event_count == count  # type: ignore[union-attr]
    assert call.usage().totals.record_count == 1
    assert (call.documents.read("d"), call.documents.read("e")) == ("x", "x")
    assert len(call.artifacts.versions("a")) == len(call.artifacts.versions("b")) == 1


def test_keys_end_with_their_session(store: Store) -> None:
    """And belong to it: neither another session's key nor the one before it is in the way."""

    def write(call: Session) -> list[bool]:
        call.append_many([{}, {}]).result(HANG_S)
        return [
            each(call, idempotency_key="k" + name).result(HANG_S).already
            for name, (each, _) in WRITERS.items()
        ]

    call = store.session("call")
    assert not any(write(call))
    assert not any(write(store.session("other")))
    assert not any(write(store.tenant("t").session("call")))
    call.delete().result(HANG_S)
    assert not any(write(call))
    call.erase(HANG_S)
    assert not any(write(call))


def test_a_copy_of_a_session_knows_no_keys(store: Store) -> None:
    """As exports do not: a retry there is a new append."""
    call = store.session("call")
    call.append(USER, idempotency_key="k").result(HANG_S)
    clone = call.clone("clone")
    assert not clone.append(USER, idempotency_key="k").result(HANG_S).already
    assert call.append(USER, idempotency_key="k").result(HANG_S).already
