"""A session whose events hold something in every place that a redaction empties."""

from __future__ import annotations

from typing import Any

from engine import Event, Session, Store
from eventlog.limits import HOT_TABLE_POSITIONS, SNAPSHOT_FREQUENCY_MAX

HANG_S = 60.0
SECRET = "geheimnis-4711"
PLACES = ("loose", "sealed", "cut", "mixed")
FREQUENCY = 4
COUNT = 24  # events that ``tell`` writes
OWN = SECRET.encode() * 1_000
SHARED = b"shared " + OWN


def talk(store: Store, name: str = "call") -> Session:
    """The session that is redacted."""
    return store.tenant("acme").session(name, user_id="u7")


def tell(store: Store, session: Session, count: int = COUNT, start: int = 0) -> None:
    """Append events, each with a secret in body and metadata; every sixth names a content."""
    blobs = store.tenant("acme").blobs
    for number in range(start, start + count):
        options: dict[str, Any] = {
            "id": f"{session.name}-{number}",
            "metadata": {"of": SECRET, "half": "\ud83d"},
            "tokens": number + 1,
            "run_id": f"run-{number % 3}",
            "time_us": 1_000 + number,
            "idempotency_key": f"key-{number}",
        }
        if number % 6 == 0:
            options["blobs"] = [blobs.put(OWN, media_type="text/plain")]
        if number % 4 == 3:
            session.append_event("my.kind", {SECRET: number}, **options).result(HANG_S)
        else:
            role = ("user", "assistant", "tool")[number % 4]
            body = {"role": role, "content": f"{SECRET} {number} \udc00"}
            session.append(body, **options).result(HANG_S)


def plant(store: Store, place: str, name: str = "call") -> Session:
    """The session as it lies where it is asked for: in the hot log, in segments, cut, or both."""
    session = talk(store, name)
    if place == "loose":
        stay_loose(store)
    tell(store, session)
    if place != "loose":
        store.flush()
    if place == "cut":
        fill(store)
    if place == "mixed":
        stay_loose(store)
        tell(store, session, 3, COUNT)
    return session


def stay_loose(store: Store) -> None:
    """Let nothing be sealed by this process until it reads the store's options again."""
    store._log.index.frequency = SNAPSHOT_FREQUENCY_MAX


def fill(store: Store) -> None:
    """So many events that the first of the store are cut from the hot log."""
    for number in range(2 * HOT_TABLE_POSITIONS // 1_024 + 1):
        store.session(f"filler-{number}").append_many([{}] * 1_024).result(HANG_S)
    store.flush()
    with store._log.views.transaction() as tables:
        assert tables.commit_record().cuts


def kept_of(event: Event) -> dict[str, Any]:
    """All that a redaction leaves of an event."""
    names = (
        *("tenant", "session", "session_number", "sequence", "position", "parent", "branch"),
        *("kind", "role", "tokens", "time_us", "recorded_us", "id", "event_id", "opening"),
        *("run_id", "turn_id", "speech_id", "request_id", "opens_branch"),
    )
    return {name: getattr(event, name) for name in names}


def require_redacted(event: Event) -> None:
    """Nothing is left of what it said."""
    assert event.redacted
    assert (event.body, event.metadata, event.blobs) == (None, None, ())
    assert SECRET.encode() not in event.stored()
