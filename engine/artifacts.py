"""Artifacts: what tools made, each with all its versions, so that a rewind finds those of then.

A version is one event of kind ``artifacts``, which belongs to the event that was the head, or that
the caller names. What it holds stands in the event when it is small, and otherwise in a blob that
the event names; its value in the space then has the content's BLAKE2b-256 as ``content``, which is
the same in every store, while the blob's address is not.

Invariants:
    1. A version never changes and is never overwritten; the newest one is what ``read`` gives.
    2. The content of a version that was purged stays named, by the ``base`` that holds the version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from engine.belonging import is_on, value_of
from engine.blobs import checked_media_type
from engine.events import Event
from engine.fold import Fold, base_parts, values_in
from engine.spaces import Space
from engine.values import Values
from engine.variables import StoredVariable, appended_key
from eventlog.ack import Ack
from eventlog.arguments import whole
from eventlog.branching import Stretch
from eventlog.errors import CorruptionError, InvalidMessageError, SessionGoneError
from eventlog.index import Name
from eventlog.keys import name_bytes
from eventlog.limits import POSITION_MAX

if TYPE_CHECKING:
    from engine.session import Session
    from engine.store import Store

INLINE_BYTES_MAX: Final = 4 * 1024  # of a content in the event itself: less than a blob's rows
NAME_BYTES: Final = 32  # of a content's name
_MAY_HAVE: Final = {"content": str, "media_type": str, "event": int}


@dataclass(frozen=True, slots=True)
class ArtifactVersion:
    """One version of an artifact.

    Attributes:
        id: The artifact's id.
        version: Sequence of the event that wrote it; a newer version has a greater one.
        updated_us: Recorded time of that event, µs since the epoch.
        size: Bytes of its content, of a text in UTF-8.
        media_type: As it was given.
        is_text: Whether it was given as a str.
        event: Sequence of the event that it belongs to; None when there was none.
        branch: The branch of that event.
    """

    id: str
    version: int
    updated_us: int
    size: int
    media_type: str | None
    is_text: bool
    event: int | None
    branch: int


Versions = list[ArtifactVersion]
Ids = list[str]


class ArtifactsAt:
    """The artifacts of a session as it is, or as it was after one of its events."""

    __slots__ = ("_head", "_number", "_path", "_session", "_values")

    def __init__(
        self,
        session: Session,
        values: Values,
        path: Sequence[Stretch] | None = None,
        head: int | None = None,
        number: int | None = None,
    ) -> None:
        self._session = session
        self._values = values
        self._path = path
        self._head = head  # as of the event; None when there was none
        self._number = number  # of the incarnation; None for that of now

    def on(self, leaf: int | str | None = None) -> ArtifactsAt:
        """The same, with the versions alone that belong to the path from the root to a leaf.

        Args:
            leaf: Sequence of an event, or the name of a branch; None for the head, of then.

        Raises:
            SessionGoneError: The session was deleted since it was as it is told here.
            TrimmedError: The event was purged.
            UsageError: There is no such event, or it is none of the history.
        """
        is_head = leaf is None and self._number is not None
        path = self._session._stretches(
            self._head if is_head else leaf, self._number, is_head=is_head
        )
        return ArtifactsAt(self._session, self._values, path, self._head, self._number)

    async def on_async(self, leaf: int | str | None = None) -> ArtifactsAt:
        """``on`` on the store's pool."""
        return await self._session._store._on_pool(self.on, leaf)

    def read(self, id: str, version: int | None = None) -> str | bytes | None:
        """The content of an artifact, as it was given; None when there is no such artifact.

        Args:
            id: The artifact's id.
            version: ``ArtifactVersion.version``; None for the newest.

        Raises:
            CorruptionError: It is damaged or missing.
            SessionGoneError: The session was deleted meanwhile.
        """
        if version is not None:
            whole(version, "version", 0, POSITION_MAX)
        number = self._number
        if number is None:  # before the fold, so that its content is not looked for in a newer one
            number = _number_of(self._session)
        found = self._version(id, version)
        if found is None:
            return None
        sequence, value = found
        content = value.get("inline")
        if content is None:
            content = self._content(sequence, value, number)
        if type(content) is bytes and value["is_text"]:
            return content.decode("utf-8", "surrogatepass")
        if not isinstance(content, str | bytes):
            raise CorruptionError("has no content", where=f"artifact {id!a}")
        return content

    async def read_async(self, id: str, version: int | None = None) -> str | bytes | None:
        """``read`` on the store's pool."""
        return await self._session._store._on_pool(self.read, id, version)

    def versions(self, id: str) -> Versions:
        """The versions of an artifact, oldest first; none when there is no such artifact."""
        return [
            ArtifactVersion(
                id,
                stored.sequence,
                stored.updated_us,
                value["size"],
                value.get("media_type"),
                value["is_text"],
                value.get("event"),
                value.get("branch", 0),
            )
            for stored, value in self._versions(id)
        ]

    async def versions_async(self, id: str) -> Versions:
        """``versions`` on the store's pool."""
        return await self._session._store._on_pool(self.versions, id)

    def list(self) -> Ids:
        """The ids of all artifacts, in their order."""
        stored = self._values.all(Space.ARTIFACTS).values()
        return sorted({value["id"] for value in map(_value, stored) if is_on(self._path, value)})

    async def list_async(self) -> Ids:
        """``list`` on the store's pool."""
        return await self._session._store._on_pool(self.list)

    def _version(self, id: str, version: int | None) -> tuple[int, dict[str, Any]] | None:
        """Sequence and value of one version, or of the newest."""
        if version is None:
            found = list(self._versions(id))
            return (found[-1][0].sequence, found[-1][1]) if found else None
        name_bytes(id, "artifact id")
        stored = self._values.one(Space.ARTIFACTS, appended_key(_prefix(id), version))
        value = None if stored is None else _value(stored)
        return (version, value) if value is not None and is_on(self._path, value) else None

    def _versions(self, id: str) -> Iterable[tuple[StoredVariable, dict[str, Any]]]:
        """An artifact's versions, oldest first, as they are stored and what they hold."""
        name_bytes(id, "artifact id")
        prefix = _prefix(id)
        values = self._values.all(Space.ARTIFACTS)
        for key in sorted(values):
            if key.startswith(prefix):
                value = _value(values[key])
                if is_on(self._path, value):
                    yield values[key], value

    def _content(self, sequence: int, value: Mapping[str, Any], number: int | None) -> bytes:
        store, name = self._session._store, self._session._name
        content = value.get("content")
        where = f"artifact at sequence {sequence}"
        for _ in range(2):  # a purge meanwhile makes another event name the content
            address = content_addresses(store, name, [(sequence, content)], number).get(content)
            if address is not None and self._session._blobs.get(address) is not None:
                found = self._session._blobs.read(address)
                if content_name(found) != content:
                    raise CorruptionError("has another content than it names", where=where)
                return found
        raise CorruptionError("its content is missing", where=where)


class Artifacts(ArtifactsAt):
    """The artifacts of a session. Made by ``session.artifacts``."""

    __slots__ = ()

    def write(
        self,
        id: str,
        content: str | bytes,
        media_type: str | None = None,
        *,
        event: int | str | None = None,
        idempotency_key: str | None = None,
        wait: float | None = None,
    ) -> Ack:
        """Write a new version of an artifact; the ack's ``first`` is the version.

        A content above 4 KiB is put into the tenant's blobs first, which blocks until that is
        durable: on an event loop use ``write_async``.

        Args:
            id: 1 to 512 UTF-8 bytes, such as a tool call's id.
            content: Text or bytes of any size that a blob may have; kept exactly.
            media_type: Like ``image/png``; 1 to 255 characters of printable ASCII.
            event: Sequence or id of the public event that it belongs to; None for the head.
            idempotency_key: See ``Session.append``.
            wait: See ``Session.append``.

        Raises:
            InvalidMessageError: The content is neither text nor bytes.
            UsageError: The media type is none.
            FormatVersionError: The store has format version 1.

        The ack raises ``AppendConflictError`` when there is no such event.
        """
        name_bytes(id, "artifact id")
        if type(content) not in (str, bytes):
            raise InvalidMessageError(
                f"an artifact is str or bytes, not {type(content).__name__}", path="$"
            )
        if media_type is not None and type(media_type) is not str:
            raise InvalidMessageError("media_type must be a str", path="$media_type")
        checked_media_type(media_type)
        self._session._store._require_version(2, "artifacts")
        is_text = type(content) is str
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        value: dict[str, Any] = {"id": id, "size": len(data), "is_text": is_text}
        if media_type is not None:
            value["media_type"] = media_type
        blobs: tuple[bytes, ...] = ()
        if len(data) <= INLINE_BYTES_MAX:
            value["inline"] = content
        else:
            blob = self._session._blobs.put(data, media_type=media_type)
            blobs = (blob.address,)
            value["content"] = content_name(data)
        return self._session._change(
            Space.ARTIFACTS,
            {},
            append={_prefix(id): value},
            parent=event,
            blobs=blobs,
            idempotency_key=idempotency_key,
            wait=wait,
        )

    async def write_async(
        self,
        id: str,
        content: str | bytes,
        media_type: str | None = None,
        *,
        event: int | str | None = None,
        idempotency_key: str | None = None,
        wait: float | None = None,
    ) -> Ack:
        """``write`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._session._store._on_pool(
            self.write,
            id,
            content,
            media_type,
            event=event,
            idempotency_key=idempotency_key,
            wait=wait,
        )


def content_name(data: bytes) -> str:
    """The name of a content: the same in every store."""
    return blake2b(data, digest_size=NAME_BYTES).hexdigest()


def contents_of(fold: Fold) -> list[tuple[int, str]]:
    """The versions of a fold whose content is a blob: their sequences, and the contents' names."""
    found: list[tuple[int, str]] = []
    for stored in values_in(fold, Space.ARTIFACTS).values():
        content = _value(stored).get("content")
        if type(content) is str:
            found.append((stored.sequence, content))
    return found


def content_addresses(
    store: Store, name: Name, contents: Sequence[tuple[int, str | None]], number: int | None
) -> dict[str | None, bytes]:
    """The addresses of the contents of artifacts, by name, as far as events name them.

    Args:
        store: The store.
        name: Tenant and session name.
        contents: See ``contents_of``.
        number: The incarnation that is meant; None when there was none.

    Raises:
        SessionGoneError: The session was deleted, or deleted and made anew.
    """
    found: dict[str | None, bytes] = {}
    with store._log.views.past(name) as past:
        current = None if past is None else past.view.origin.number
        if past is None or current != number:
            raise SessionGoneError.while_read(name[1], number, current)
        if any([sequence < past.first for sequence, _ in contents]):
            for part in base_parts(past):
                found.update(zip(part.body.get("contents", ()), part.blobs, strict=False))
        for sequence, content in contents:
            if sequence >= past.first and content not in found:
                event = past.event(sequence, Event)
                if event.blobs:
                    found[content] = event.blobs[0]
    return found


def _number_of(session: Session) -> int | None:
    with session._store._log.views.past(session._name) as past:
        return None if past is None else past.view.origin.number


def _prefix(id: str) -> str:
    digest = blake2b(id.encode(), digest_size=16, person=b"turnlog-artifact")
    return f"{digest.hexdigest()}."


def _value(stored: StoredVariable) -> dict[str, Any]:
    return value_of(stored, _MAY_HAVE, id=str, size=int, is_text=bool)
