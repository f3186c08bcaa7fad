"""How a store is asked to carry out an operation, through its public calls."""

from __future__ import annotations

import itertools
from typing import Any

from engine import Ack, Event, Session, SessionInfo, Store, Tenant
from eventlog.errors import TurnlogError
from tests.model.answers import Exact, Placed, Refused, content, exact, told_body
from tests.model.operations import (
    Append,
    At,
    Batch,
    Branches,
    Checkout,
    Create,
    Delete,
    Events,
    Everything,
    Follow,
    Fork,
    History,
    Info,
    Load,
    New,
    Noun,
    OneEvent,
    Op,
    Purge,
    Queued,
    Read,
    RollUp,
    Sessions,
    State,
    Update,
)
from tests.model.operations import Path as PathOp
from tests.model.staging import HANG_S, placed


def perform(store: Store, op: Op) -> Any:
    """Carry out one operation; the answer is plain data, as ``ModelStore.answer`` gives it."""
    try:
        return _perform(store, op)
    except TurnlogError as error:
        return Refused(type(error).__name__)


def _perform(store: Store, op: Op) -> Any:
    match op:
        case Append():
            return placed(append(store, op).result(HANG_S))
        case Create():
            return placed(_session(store, op).create().result(HANG_S))
        case Batch():
            tenant = store.tenant(op.tenant)
            parts = [
                tenant.session(share.session).draft(
                    [new.body for new in share.events if new.kind == "message"],
                    events=[(new.kind, new.body) for new in share.events if new.kind != "message"],
                    expected_head=share.expected_head,
                )
                for share in op.shares
            ]
            return placed(tenant.append_batch(parts).result(HANG_S))
        case Queued():
            return _queued(store, op)
        case Load():
            result = store.tenant(op.tenant).load(op.lines, piece_events=op.piece_events)
            return result.loaded, result.skipped + result.purged
        case Update():
            session = _session(store, op)
            ack = session.update_state(
                op.changes,
                delete=op.delete,
                expected=dict(op.expected) or None,
                expected_head=op.expected_head,
                idempotency_key=op.key,
            )
            return placed(ack.result(HANG_S))
        case RollUp():
            return placed(_session(store, op).roll_up().result(HANG_S))
        case Delete():
            return _delete(_session(store, op), op)
        case Purge():
            return placed(_session(store, op).purge(op.first).result(HANG_S))
        case Noun():
            return op.perform(store)
        case Checkout():
            return placed(_session(store, op).checkout(op.leaf).result(HANG_S))
        case Fork():
            return placed(_session(store, op).fork(op.at, name=op.name).result(HANG_S))
        case Branches():
            return [
                (
                    each.number,
                    sorted(each.names),
                    each.parent,
                    each.parent_branch,
                    each.leaf,
                    each.is_head,
                )
                for each in _session(store, op).branches()
            ]
        case PathOp():
            return _path(_session(store, op), op)
        case State():
            session = _session(store, op)
            found = [(each.key, exact(each.value), each.sequence) for each in session.variables()]
            state = session.state
            assert [(key, exact(value)) for key, value in state.items()] == [
                each[:2] for each in found
            ]
            return found
        case At():
            return _at(_session(store, op), op.sequence)
        case History():
            return [exact(body) for body in _session(store, op).history(op.limit)]
        case Events():
            found_events = _session(store, op).events(op.first, op.last, op.kinds)
            return [event_facts(event, store) for event in found_events]
        case OneEvent():
            return event_facts(_session(store, op).event(op.sequence), store)
        case Info():
            session = _session(store, op)
            info = session.info()
            return None if info is None else info_facts(info), session.exists, session.head
        case Sessions():
            return [info_facts(info) for info in pages(store.tenant(op.tenant), op)]
        case Read():
            reading = store.tenant(op.tenant).read(op.after, op.limit)
            return [event_facts(event, store) for event in reading]
        case Follow():
            return _follow(store, op)
        case Everything():
            return everything(store)


def _delete(session: Session, op: Delete) -> Placed:
    if not op.is_erased:
        return placed(session.delete().result(HANG_S))
    receipt = session.erase(HANG_S)
    assert (receipt.tenant, receipt.session) == (op.tenant, op.session)
    sequence = receipt.event_count
    return Placed(sequence, sequence, receipt.position, f"{receipt.number:x}.{sequence:010d}")


def _path(session: Session, op: PathOp) -> list[int]:
    page = session.path(op.leaf, limit=op.limit)
    found = page.events
    while page.cursor is not None:
        before = page.cursor
        page = session.path(cursor=page.cursor, limit=op.limit)
        assert page.cursor != before, f"a page leads to itself: {before}"
        found += page.events
    return [event.sequence for event in found]


def _at(session: Session, sequence: int | None) -> Any:
    past: Any = session
    info = session.info()
    if sequence is not None:
        past = session.at(sequence)
        info = past.info()
    elif info is None:
        return Refused("SessionNotFoundError")
    assert info is not None
    history = [exact(body) for body in past.history()]
    assert [exact(body) for body in past.history(2)] == history[-2:]
    return exact(past.state), history, info.message_count, info.head, info.loose_count


def _session(store: Store, op: Any) -> Session:
    opening = getattr(op, "opening", None)
    if opening is None:
        return store.tenant(op.tenant).session(op.session)
    return store.tenant(op.tenant).session(
        op.session, **{name: getattr(opening, name) for name in opening.__slots__}
    )


def append(store: Store, op: Append, **options: Any) -> Ack:
    """Submit an append by whichever call fits its events."""
    session = _session(store, op)
    options |= {"expected_head": op.expected_head, "idempotency_key": op.key}
    if op.parent is not None:
        options["parent"] = op.parent
    if len(op.events) == 1:
        [new] = op.events
        options |= {
            name: getattr(new, name)
            for name in New.__slots__
            if name not in ("body", "kind", "redacted", "role") and getattr(new, name) is not None
        }
        if new.kind == "message" and not op.as_event:
            return session.append(new.body, **options)
        return session.append_event(new.kind, new.body, **options)
    ids = [new.id for new in op.events]
    return session.append_many(
        [new.body for new in op.events], ids=ids if any(ids) else None, **options
    )


def _queued(store: Store, op: Queued) -> Any:
    acks = [append(store, each, ack="queued") for each in op.appends]
    try:
        flushed: Any = store.flush(HANG_S)
    except TurnlogError as error:
        flushed = Refused(type(error).__name__)
    answers: list[Any] = []
    for ack in acks:
        try:
            answers.append(placed(ack))
        except TurnlogError as error:
            answers.append(Refused(type(error).__name__))
    return answers, flushed


def _follow(store: Store, op: Follow) -> list[Exact]:
    if op.session is None:
        subscription = store.tenant(op.tenant).subscribe(after=op.after, kinds=op.kinds)
    else:
        subscription = store.tenant(op.tenant).session(op.session).subscribe(op.after, op.kinds)
    with subscription:
        taken = itertools.islice(iter(subscription), op.count)
        return [event_facts(event, store) for event in taken]


def pages(tenant: Tenant, op: Sessions) -> list[SessionInfo]:
    """Every page of ``sessions``, put together."""
    found: list[SessionInfo] = []
    cursor = None
    while True:
        page = tenant.sessions(limit=op.limit, cursor=cursor, user_id=op.user_id)
        found += page.sessions
        cursor = page.cursor
        if cursor is None:
            return found


def event_facts(event: Event, store: Store | None = None) -> Exact:
    """All of an event but its recorded time, comparable with ``Kept.facts``.

    Args:
        event: The event.
        store: Where its blobs are; None for an event that names none.
    """
    assert store is not None or not event.blobs
    blobs = store.tenant(event.tenant).blobs if store is not None else None
    return (
        event.tenant,
        event.session,
        event.session_number,
        event.sequence,
        event.position,
        event.parent,
        event.branch,
        event.kind,
        event.role,
        exact(told_body(event.kind, event.body)),
        exact(event.metadata),
        event.id,
        event.event_id,
        event.time_us,
        event.tokens,
        event.run_id,
        event.turn_id,
        event.speech_id,
        event.request_id,
        exact(event.opening),
        ()
        if blobs is None or event.kind == "base"
        else tuple([blobs.read(address) for address in event.blobs]),
        event.redacted,
    )


def info_facts(info: SessionInfo) -> Exact:
    """A session's facts but times and what is loose, comparable with ``ModelSession.info``."""
    assert 0 <= info.loose_count <= info.event_count
    assert info.created_us > 0 and info.updated_us > 0
    return (
        info.tenant,
        info.name,
        info.number,
        info.user_id,
        info.account_id,
        info.agent_id,
        info.workspace,
        info.title,
        info.status,
        info.labels,
        content(info.metadata),
        info.event_count,
        info.message_count,
        info.head,
        info.first_sequence,
        info.last_sequence,
        info.last_position,
    )


def everything(store: Store) -> dict[str, Any]:
    """All that can be asked of a store."""
    read = [event_facts(event, store) for event in store.read()]
    tenants = store.tenants()
    # Tombstones have no name, and what belongs to users and tenants one that is longer than any.
    names = sorted({(each[0], each[1]) for each in read if 0 < len(each[1]) <= 512})
    positions = [event.position for event in store.read(voids=True)]
    assert positions == list(range(1, store.last_position + 1))
    return {
        "last_position": store.last_position,
        "tenants": tenants,
        "read": read,
        "events": {name: _perform(store, Events(*name)) for name in names},
        "history": {name: _perform(store, History(*name)) for name in names},
        "state": {name: _perform(store, State(*name)) for name in names},
        "last": {name: _perform(store, History(*name, limit=3)) for name in names},
        "info": {name: _perform(store, Info(*name)) for name in names},
        "branches": {name: _perform(store, Branches(*name)) for name in names},
        "sessions": {tenant: _perform(store, Sessions(tenant)) for tenant in tenants},
        "findings": store.check().findings,
    }
