"""Documents: named texts that go with a session, a user or a tenant.

A document is made of rows of the space ``documents``, all under a digest of its name: one with the
name, which every change sets, one with the text as it was last written, and one for each text that
was appended since. So an append writes what is appended and nothing else, and two at the same time
both stay.

Invariants:
    1. A document's version is the sequence of the event that changed it last.
    2. Its text is what was last written and all that was appended after it, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from engine.spaces import Space
from engine.values import Values
from engine.variables import StoredVariable
from eventlog.ack import Ack
from eventlog.arguments import whole
from eventlog.errors import CorruptionError, InvalidMessageError
from eventlog.keys import name_bytes
from eventlog.limits import POSITION_MAX

if TYPE_CHECKING:
    from engine.session import Session

DIGEST_DIGITS: Final = 32
_WRITTEN: Final = "="
APPENDED: Final = "+"


@dataclass(frozen=True, slots=True)
class Document:
    """What is known of a document without its text.

    Attributes:
        name: Its name.
        updated_us: Recorded time of its last change, µs since the epoch.
        version: Sequence of the event that made it; rises with each change.
        size: Bytes of its text in UTF-8.
        first_line: The first line of its text, without the line feed.
    """

    name: str
    updated_us: int
    version: int
    size: int
    first_line: str


Listed = list[Document]


class DocumentsAt:
    """The documents of a session as it is, or as it was after one of its events."""

    __slots__ = ("_session", "_values")

    def __init__(self, session: Session, values: Values) -> None:
        self._session = session
        self._values = values

    def read(self, name: str) -> str | None:
        """The text of a document; None when there is none of that name."""
        name_bytes(name, "document name")
        digest = _digest(name)
        changed = self._values.one(Space.DOCUMENTS, digest)
        if changed is None:
            return None
        written = self._values.one(Space.DOCUMENTS, digest + _WRITTEN)
        if written is not None and written.sequence == changed.sequence:
            return _string(written)  # the last change wrote all of it
        values = self._values.all(Space.DOCUMENTS)
        return _text(digest, values) if digest in values else None

    async def read_async(self, name: str) -> str | None:
        """``read`` on the store's pool."""
        return await self._session._store._on_pool(self.read, name)

    def list(self) -> Listed:
        """The documents in the order of their names; their texts are decoded for it."""
        values = self._values.all(Space.DOCUMENTS)
        found: Listed = []
        for digest, stored in values.items():
            if len(digest) != DIGEST_DIGITS:
                continue
            text = _text(digest, values)
            found.append(
                Document(
                    _string(stored),
                    stored.updated_us,
                    stored.sequence,
                    len(text.encode("utf-8", "surrogatepass")),
                    text.partition("\n")[0],
                )
            )
        return sorted(found, key=lambda each: each.name)

    async def list_async(self) -> Listed:
        """``list`` on the store's pool."""
        return await self._session._store._on_pool(self.list)


class Documents(DocumentsAt):
    """The documents of a session, a user or a tenant.

    Made by ``session.documents``, ``tenant.user(user_id).documents`` and ``tenant.documents``.
    """

    __slots__ = ()

    def write(
        self,
        name: str,
        text: str,
        *,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
        wait: float | None = None,
    ) -> Ack:
        """Give a document a text, in place of the one that it has; makes the document.

        Args:
            name: 1 to 512 UTF-8 bytes.
            text: Any text, also an empty one; kept exactly.
            expected_version: ``Document.version`` that it must have, -1 for a name that must not be
                taken; None writes in any case.
            idempotency_key: See ``Session.append``; a repetition is stored once, and appends that
                came in between stay.
            wait: See ``Session.append``.

        The ack's ``first`` is the new version; it raises ``AppendConflictError`` when the document
        has another version than it should.
        """
        digest = _checked(name, text)
        return self._change(
            name,
            digest,
            {digest: name, digest + _WRITTEN: text},
            [],
            expected_version,
            idempotency_key,
            wait,
            sweep=[key for key in self._keys(digest) if key[DIGEST_DIGITS:].startswith(APPENDED)],
        )

    async def write_async(
        self,
        name: str,
        text: str,
        *,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
        wait: float | None = None,
    ) -> Ack:
        """``write`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(
            self.write,
            name,
            text,
            expected_version=expected_version,
            idempotency_key=idempotency_key,
            wait=wait,
        )

    def append(
        self,
        name: str,
        text: str,
        *,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
        wait: float | None = None,
    ) -> Ack:
        """Append to a document's text, with nothing in between; makes the document.

        Writes ``text`` alone, however long the document is.

        Args:
            name: See ``write``; so are all others.
            text: See ``write``.
            expected_version: See ``write``.
            idempotency_key: See ``Session.append``; a repetition is stored once.
            wait: See ``write``.
        """
        digest = _checked(name, text)
        appended = {digest + APPENDED: text}
        return self._change(
            name, digest, {digest: name}, [], expected_version, idempotency_key, wait, appended
        )

    async def append_async(
        self,
        name: str,
        text: str,
        *,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
        wait: float | None = None,
    ) -> Ack:
        """``append`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(
            self.append,
            name,
            text,
            expected_version=expected_version,
            idempotency_key=idempotency_key,
            wait=wait,
        )

    def delete(
        self, name: str, *, expected_version: int | None = None, wait: float | None = None
    ) -> Ack:
        """Take a document away; one that is not there is fine.

        Args:
            name: See ``write``.
            expected_version: See ``write``.
            wait: See ``write``.

        The ack raises ``AppendConflictError`` also when the document changes at the same time; its
        ``first`` is -1 when there was none.
        """
        name_bytes(name, "document name")
        digest = _digest(name)
        values = self._values.all(Space.DOCUMENTS)  # keys and version of one moment
        keys = [key for key in values if key.startswith(digest)]
        if expected_version is None:
            stored = values.get(digest)
            expected_version = -1 if stored is None else stored.sequence
        return self._change(name, digest, {}, keys, expected_version, None, wait)

    async def delete_async(
        self, name: str, *, expected_version: int | None = None, wait: float | None = None
    ) -> Ack:
        """``delete`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(
            self.delete, name, expected_version=expected_version, wait=wait
        )

    def _change(
        self,
        name: str,
        digest: str,
        changes: dict[str, Any],
        delete: list[str],
        expected_version: int | None,
        idempotency_key: str | None,
        wait: float | None,
        append: dict[str, Any] | None = None,
        sweep: Sequence[str] = (),
    ) -> Ack:
        expected = None
        if expected_version is not None:
            expected = {digest: whole(expected_version, "expected_version", -1, POSITION_MAX)}
        return self._session._change(
            Space.DOCUMENTS,
            changes,
            delete,
            append=append,
            sweep=sweep,
            expected=expected,
            what=f"document {name!r}",
            idempotency_key=idempotency_key,
            wait=wait,
        )

    def _keys(self, digest: str) -> Iterator[str]:
        """The keys of a document's rows."""
        for key in self._values.all(Space.DOCUMENTS):
            if key.startswith(digest):
                yield key


def _string(stored: StoredVariable) -> str:
    value = stored.value()
    if type(value) is not str:
        raise CorruptionError("is no text", where=f"{stored} at {stored.sequence}")
    return value


def _checked(name: str, text: str) -> str:
    """The digest of a document's name, once name and text are what they should be."""
    name_bytes(name, "document name")
    if type(text) is not str:
        raise InvalidMessageError(f"a text must be a str, not {type(text).__name__}", path="$")
    return _digest(name)


def _digest(name: str) -> str:
    found = blake2b(name.encode(), digest_size=DIGEST_DIGITS // 2, person=b"turnlog-document")
    return found.hexdigest()


def _text(digest: str, values: Any) -> str:
    """A document's text (invariant 2): appends that a write did not know of are before it."""
    written: StoredVariable | None = values.get(digest + _WRITTEN)
    after = -1 if written is None else written.sequence
    parts = ["" if written is None else _string(written)]
    prefix = digest + APPENDED
    parts += [
        _string(values[key])
        for key in sorted(values)
        if key.startswith(prefix) and values[key].sequence > after
    ]
    return "".join(parts)
