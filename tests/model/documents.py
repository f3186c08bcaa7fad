"""Named texts of sessions, users and tenants."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from tests.model.answers import Placed, Refused
from tests.model.operations import Noun
from tests.model.sessions import ModelSession
from tests.model.staging import HANG_S, placed

if TYPE_CHECKING:
    from engine import Store
    from tests.model.model import ModelStore

Owner = tuple[Literal["session", "user", "tenant"], str]


def session_of(owner: Owner) -> str:
    """The name of the session that an owner's documents are in: one that no caller can give."""
    kind, name = owner
    return name if kind == "session" else "." * 513 + f"{kind}_documents:{name}"


def _documents(store: Store, tenant: str, owner: Owner) -> Any:
    kind, name = owner
    if kind == "session":
        return store.tenant(tenant).session(name).documents
    if kind == "user":
        return store.tenant(tenant).user(name).documents
    return store.tenant(tenant).documents


def _digest(name: str) -> str:
    return blake2b(name.encode(), digest_size=16, person=b"turnlog-document").hexdigest()


def texts_of(session: ModelSession | None, last: int | None = None) -> dict[str, tuple[str, int]]:
    """Text and version of each document after an event: what was written, and all that followed."""
    texts: dict[str, tuple[str, int]] = {}
    names: dict[str, str] = {}
    events = [] if session is None else session.events[: None if last is None else last + 1]
    for kept in events:
        if kept.new.kind != "documents":
            continue
        body = kept.new.body
        if "set" not in body:
            texts.pop(names[min(body["delete"], key=len)], None)
            continue
        digest = next(key for key in body["set"] if len(key) == 32)
        name = names[digest] = body["set"][digest]
        text = body["set"].get(digest + "=")
        if text is None:
            text = texts.get(name, ("", 0))[0] + body["append"][digest + "+"]
        texts[name] = (text, kept.sequence)
    return texts


@dataclass(frozen=True, slots=True)
class WriteDocument(Noun):
    """``write``, ``append`` or, without a text, ``delete``.

    Attributes:
        how: What is done to the text that is there.
        expected: Whether the version that is expected is the right one; None for none.
    """

    tenant: str
    owner: Owner
    name: str
    how: Literal["write", "append", "delete"]
    text: str = ""
    expected: int | None = None
    key: str | None = None

    def perform(self, store: Store) -> Any:
        documents = _documents(store, self.tenant, self.owner)
        if self.how == "delete":
            ack = documents.delete(self.name, expected_version=self.expected)
        else:
            ack = getattr(documents, self.how)(
                self.name, self.text, expected_version=self.expected, idempotency_key=self.key
            )
        return placed(ack.result(HANG_S))

    def expect(self, model: ModelStore) -> Placed | Refused:
        name = (self.tenant, session_of(self.owner))
        session = model.sessions.get(name)
        digest = _digest(self.name)
        there = texts_of(session)
        expected = None if self.expected is None else {digest: self.expected}
        appended = _appended(session, digest)
        body: dict[str, Any] = {}
        said: dict[str, Any] | None = None  # whatever was appended meanwhile
        if self.how == "append":
            body = {"set": {digest: self.name}, "append": {digest + "+": self.text}}
        elif self.how == "write":
            said = {"set": {digest: self.name, digest + "=": self.text}}
            body = {**said, "delete": appended} if appended else said
        elif self.name in there:
            written = [digest + "="] if digest + "=" in _keys(session) else []
            body = {"delete": [digest, *written, *appended]}
        key = None if self.how == "delete" else self.key
        return model.change(name, "documents", body, expected=expected, key=key, said=said)


def _appended(session: ModelSession | None, digest: str) -> list[str]:
    return [key for key in _keys(session) if key.startswith(digest + "+")]


def _keys(session: ModelSession | None) -> list[str]:
    """The keys that an event can delete, sorted."""
    found: set[str] = set()
    for kept in [] if session is None else session.events:
        if kept.new.kind == "documents":
            body = kept.new.body
            found |= body.get("set", {}).keys()
            found |= {f"{key}{kept.sequence:019d}" for key in body.get("append", {})}
            found -= set(body.get("delete", []))
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Documents(Noun):
    """All documents of an owner, now or, of a session, after an event."""

    tenant: str
    owner: Owner
    sequence: int | None = None

    def perform(self, store: Store) -> Any:
        if self.sequence is None:
            documents = _documents(store, self.tenant, self.owner)
        else:
            documents = store.tenant(self.tenant).session(self.owner[1]).at(self.sequence).documents
        found = documents.list()
        assert documents.read("no such document") is None
        return [
            (each.name, each.version, each.size, each.first_line, documents.read(each.name))
            for each in found
        ]

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, session_of(self.owner)))
        if self.sequence is not None:
            if session is None:
                return Refused("SessionNotFoundError")
            refused = session.past_refusal(self.sequence)
            if refused is not None:
                return refused
        return [
            (name, version, len(text.encode("utf-8", "surrogatepass")), text.split("\n")[0], text)
            for name, (text, version) in sorted(texts_of(session, self.sequence).items())
        ]
