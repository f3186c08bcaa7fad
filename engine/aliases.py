"""Aliases: names that other systems know a session by, unique within a tenant.

A session's own facts say which aliases it has; they are in its log, its export and its clones'
past. What makes them unique is an index beside them: hidden sessions of the tenant, a bounded
number of them, whose facts lead from an alias to the session that has it. Both change in one
append, and only if the index is as it was read (``Version``): of two sessions that want the same
alias one is refused.

Invariants:
    1. An alias leads to a session only if that session's own facts have it too. So nothing needs to
       be undone when a session is deleted: its aliases lead nowhere from that commit on. What is
       left of them in the index, about 100 bytes each, is replaced when one is claimed again.
    2. The index holds no names, neither of aliases nor of sessions: the key is a digest of the
       alias, keyed with the tenant's secret, and the value the digest that the session's name has
       in the store, masked with another one.
    3. The index is derived: loading an export makes it from the facts of the loaded sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from engine.drafting import Part, draft_event, make_ack, make_batch_ack
from engine.facts import ALIAS
from engine.spaces import Space
from engine.variables import StoredVariable, decode_row, subkey_of
from eventlog.ack import Ack, Version
from eventlog.errors import ConflictError
from eventlog.index import Name
from eventlog.keys import derived_name, name_key

if TYPE_CHECKING:
    from engine.session import Session
    from engine.store import Store

SHARDS: Final = 64  # hidden sessions of a tenant: the more, the fewer loose events of each
_NONE: Final = -1


@dataclass(frozen=True, slots=True)
class Entry:
    """An alias in the index.

    Attributes:
        alias: The alias.
        shard: The hidden session that it belongs to.
        key: Its key there.
        mask: What the value is masked with.
        stored: What is there; None for nothing.
    """

    alias: str
    shard: Name
    key: str
    mask: bytes
    stored: StoredVariable | None

    @property
    def version(self) -> Version:
        """The condition that it is still what was read."""
        sequence = _NONE if self.stored is None else self.stored.sequence
        return Version(Space.FACTS, subkey_of(self.key), sequence, f"alias {self.alias!r}")

    def leading_to(self, name: Name) -> dict[str, Any]:
        """The change that makes it lead to a session."""
        return {"set": {self.key: _masked(name_key(*name), self.mask)}}


def claim(session: Session, alias: str) -> Ack:
    """An append that gives a session an alias, not submitted yet; see ``Session.alias``."""
    store = session._store
    entry = _look_up(store, session.tenant, alias)
    if entry is None:  # the tenant has no secret yet
        session.create().result()
        entry = _look_up(store, session.tenant, alias)
        assert entry is not None
    holder = _holder(store, session.tenant, entry)
    if holder == session.name:
        return make_ack(session._name, (), opening=None)
    _require_free(entry, holder, session.name)
    return make_batch_ack(
        [
            Part(session._name, (_draft({"set": {ALIAS + alias: True}}),), session._opening, None),
            Part(
                entry.shard,
                (_draft(entry.leading_to(session._name)),),
                None,
                None,
                (entry.version,),
            ),
        ]
    )


def release(session: Session, alias: str) -> Ack:
    """An append that takes an alias from a session, not submitted yet; see ``Session.unalias``."""
    store = session._store
    if not _has(store, session._name, alias):
        return make_ack(session._name, (), opening=None)
    parts = [Part(session._name, (_draft({"delete": [ALIAS + alias]}),), session._opening, None)]
    entry = _look_up(store, session.tenant, alias)
    if entry is not None and _holder(store, session.tenant, entry) == session.name:
        change = _draft({"delete": [entry.key]})
        parts.append(Part(entry.shard, (change,), None, None, (entry.version,)))
    return make_batch_ack(parts)


def find(store: Store, tenant: str, alias: str) -> str | None:
    """The name of the session that an alias leads to."""
    entry = _look_up(store, tenant, alias)
    return None if entry is None else _holder(store, tenant, entry)


def restore(session: Session, aliases: Sequence[str]) -> None:
    """Make the index lead to a session that was loaded; blocks until that is durable.

    Raises:
        ConflictError: An alias leads to another session of this store.
    """
    store = session._store
    for alias in aliases:
        entry = _look_up(store, session.tenant, alias)
        assert entry is not None  # the session is there, and so is its tenant
        holder = _holder(store, session.tenant, entry)
        if holder != session.name:
            _require_free(entry, holder, session.name)
            change = _draft(entry.leading_to(session._name))
            ack = make_batch_ack([Part(entry.shard, (change,), None, None, (entry.version,))])
            store._submit(ack, None)
            ack.result()


def _require_free(entry: Entry, holder: str | None, wanted: str) -> None:
    if holder is not None:
        raise ConflictError(
            f"alias {entry.alias!r} leads to session {holder!r}", expected=wanted, current=holder
        )


def _draft(body: dict[str, Any]) -> Any:
    return draft_event(Space.FACTS.title, body, loading=True)


def _look_up(store: Store, tenant: str, alias: str) -> Entry | None:
    """An alias in the index; None when there is no such tenant."""
    with store._log.views.transaction() as tables:
        number = tables.find_tenant(tenant)
        if number is None:
            return None
        secret = tables.load_tenant(number).secret
    digest = _digest(secret, b"turnlog-alias", alias)
    shard = (tenant, derived_name(f"aliases.{digest[0] % SHARDS:02x}"))
    key = digest.hex()
    content = store._log.views.present_row(shard, store._facts, subkey_of(key))
    stored = None if content is None else decode_row(content, f"alias {key}")
    return Entry(alias, shard, key, _digest(secret, b"turnlog-alias-of", alias), stored)


def _holder(store: Store, tenant: str, entry: Entry) -> str | None:
    """The name of the session that an entry leads to (invariant 1)."""
    value = None if entry.stored is None else entry.stored.value()
    if type(value) is not bytes:
        return None
    with store._log.views.transaction() as tables:
        name = tables.name_of(_masked(value, entry.mask))
    if name is None or name[0] != tenant or not _has(store, name, entry.alias):
        return None
    return name[1]


def _has(store: Store, name: Name, alias: str) -> bool:
    """Whether a session's facts have an alias."""
    return store._log.views.present_row(name, store._facts, subkey_of(ALIAS + alias)) is not None


def _digest(secret: bytes, person: bytes, alias: str) -> bytes:
    return blake2b(alias.encode(), digest_size=16, key=secret, person=person).digest()


def _masked(digest: bytes, mask: bytes) -> bytes:
    return bytes([a ^ b for a, b in zip(digest, mask, strict=True)])
