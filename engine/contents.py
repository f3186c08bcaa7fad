"""Contents in export lines: a blob's bytes before the first event of a session that names it.

An address belongs to one store. A line names a content by its BLAKE2b-256 instead, and the bytes
stand in lines of their own, cut into pieces, so that an export of any blob takes bounded memory.

Invariants:
    1. The lines of a content lie end to end, and before the event that names it.
    2. The same events give the same lines, whatever store they are read from.
    3. A content is loaded under its name only if its bytes have that name.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from engine.blobs import require_content
from engine.events import Event, opening_of, require_event
from engine.export import canonical_base64, encode_line, escape, event_to_line, unescape
from engine.fold import read_base, tree_in, whole_base
from engine.forks import Forks
from engine.reading import SessionPager
from eventlog.blobput import Upload
from eventlog.blobread import BlobContent
from eventlog.errors import CorruptionError, SessionGoneError, TrimmedError
from eventlog.index import Name
from eventlog.keys import U64_MAX, is_derived
from eventlog.limits import BLOB_BYTES_MAX, MIB
from eventlog.log import Log
from eventlog.reading import SessionView
from eventlog.record import BASE

if TYPE_CHECKING:
    from engine.store import Store

CONTENT_KEYS: Final = ("tenant", "session", "blob", "size", "media_type", "start", "data")
"""Every key of a content line, in the order in which they are written."""

PIECE_BYTES: Final = 768 * 1024  # of a content in one line: 1 MiB of base64, without padding
NAMES_MAX: Final = 65_536  # names kept, and contents that an export knows it has told
NAME_DIGITS: Final = 64
_NAME: Final = re.compile(f"[0-9a-f]{{{NAME_DIGITS}}}")

assert PIECE_BYTES % 3 == 0 and PIECE_BYTES * 4 // 3 == MIB


class ContentNames:
    """Names of a store's contents; each is read once, and the newest names are kept."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: OrderedDict[tuple[str, bytes], str] = OrderedDict()

    @classmethod
    def of_store(cls, store: Store) -> ContentNames:
        """The names of an open store's contents."""
        return cls(store._log)

    def of(self, event: Event) -> list[str]:
        """The names of what an event refers to; raises as ``name`` does."""
        return [self.name(event, address) for address in event.blobs]

    def name(self, event: Event, address: bytes) -> str:
        """The name of one content that an event refers to.

        Raises:
            CorruptionError: It is damaged or missing.
            ConflictError: It was removed with the event, or while it was read.
        """
        known = self._known.get((event.tenant, address))
        if known is None:
            digest = blake2b(digest_size=NAME_DIGITS // 2)
            for piece in _pieces(require_content(self._log, event, address)):
                digest.update(piece)
            known = self._known[event.tenant, address] = digest.hexdigest()
            if len(self._known) > NAMES_MAX:
                self._known.popitem(last=False)
        return known


def _pieces(content: BlobContent) -> Iterator[bytes]:
    for start in range(0, max(1, content.row.size), PIECE_BYTES):
        yield content.read(start, start + PIECE_BYTES)


class ExportedContents:
    """One export: which contents it has told."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._names = ContentNames(log)
        self._forks = Forks(log)
        self._told: OrderedDict[tuple[int, bytes], None] = OrderedDict()

    def lines(
        self,
        event: Event,
        opening: Mapping[str, Any] | None = None,
        lost: list[CorruptionError] | None = None,
        base: Mapping[str, Any] | None = None,
    ) -> Iterator[str]:
        """The lines of what an event names and was not told in its session, then its own.

        None when the event was erased since it was read, and what it names with it.

        Args:
            event: The event.
            opening: See ``export.event_to_line``.
            base: Likewise.
            lost: Gets why a content cannot be read; it is left out of the lines then, and so is a
                branch that cannot be told.

        Raises:
            CorruptionError: The event is damaged, or a content and ``lost`` is None. No line came
                before.
        """
        branch: int | None = None
        try:
            branch = self._forks.branch_of(event)
        except SessionGoneError:
            if lost is None:
                return
        except CorruptionError:
            if lost is None:
                raise
        told: list[tuple[str, bytes]] = []
        for address in event.blobs:
            try:
                told.append((self._names.name(event, address), address))
            except SessionGoneError:
                return
            except CorruptionError as error:
                if lost is None:
                    raise
                lost.append(error)
        line = event_to_line(event, opening, [name for name, _ in told], base, branch)
        for name, address in told:
            key = (event.session_number, address)
            if key not in self._told:
                yield from self._content_lines(event, name, address)
                self._told[key] = None
                if len(self._told) > NAMES_MAX:
                    self._told.popitem(last=False)
        yield line

    def _content_lines(self, event: Event, name: str, address: bytes) -> Iterator[str]:
        content = require_content(self._log, event, address)
        line: dict[str, Any] = {"tenant": event.tenant} if event.tenant else {}
        line |= {"session": event.session, "blob": name, "size": content.row.size}
        if content.row.media_type:
            line["media_type"] = content.row.media_type
        for number, piece in enumerate(_pieces(content)):
            yield encode_line(
                {**line, "start": number * PIECE_BYTES, "data": escape(piece)["$b64"]}
            )


def export_lines(log: Log, events: Iterable[Event]) -> Iterator[str]:
    """The export lines of events, and of the contents that they name; see ``Store``."""
    exported = ExportedContents(log)
    beginnings = Beginnings(log)
    for event in events:
        require_event(event)
        if not event.session or is_derived(event.session):
            continue  # the tombstone of a session that is gone, or what a load makes by itself
        preface = beginnings.of(event)
        if preface is None:
            yield from exported.lines(event)
        else:
            yield from exported.lines(event, preface.opening, base=preface.base)


@dataclass(frozen=True, slots=True)
class Preface:
    """What the line of a session's first event tells when what was before it was purged."""

    opening: dict[str, Any]
    base: dict[str, Any] | None


class Beginnings:
    """Looks at the first event of each session, whether its beginning was purged.

    Events are kept by who exports them, and what a purge or deletion left of a session is read when
    its first line is written: where these do not belong together, no line is given that a load
    would refuse or misunderstand.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._told: OrderedDict[int, int] = OrderedDict()  # last sequences by session number

    def of(self, event: Event) -> Preface | None:
        """What the line of an event says of what was purged before it; None for nothing.

        Raises:
            TrimmedError: It was purged since it was read, or what lies between it and the event
                before it was.
            SessionGoneError: The session was, so that nobody knows what was before it.
        """
        number, sequence = event.session_number, event.sequence
        told = self._told.pop(number, None)
        self._told[number] = sequence
        if len(self._told) > NAMES_MAX:
            self._told.popitem(last=False)
        if not sequence or not event.session or (told is not None and sequence <= told + 1):
            return None
        name = (event.tenant, event.session)
        if told is not None:  # of some kinds only, or what lies between was purged
            with self._log.views.session(name) as found:
                view = None if found is None else found[1]
                self._require(event, view, told + 1)
            return None
        facts = self._log.views.facts(name)
        with self._log.views.past(name) as past:
            self._require(event, None if past is None else past.view, sequence)
            if past is None or facts is None or past.first != sequence:
                return None
            base = read_base(past)
            newest = past.last_of_kind(BASE, Event)
            opening = opening_of(past.row, number)
        if base is None or newest is None:
            return Preface(opening, None)
        followed = self._followed(past.view, sequence) if past.view.branches else {}
        tree = tree_in(newest.body)
        if not tree and facts.head < sequence:
            # It does not tell the head, and no public event is left that does by its parent.
            tree["head"] = facts.head
        return Preface(opening, {**whole_base(base), **tree, **followed})

    def _followed(self, view: SessionView, first: int) -> dict[str, list[list[int]]]:
        """The purged events that others follow, and their branches, which only those tell."""
        found: dict[int, int] = {}
        forked: dict[int, int | None] = {}
        origin = view.origin
        name = (origin.tenant, origin.name)
        pager = SessionPager(self._log, name, first, U64_MAX, None, origin.number, view.event_count)
        while page := pager.next_page():
            for event in page:
                parent, branch = event.parent, event.branch
                if parent is None or parent >= first:
                    continue
                if event.opens_branch:
                    found[parent] = event.fork_branch
                elif parent != forked.setdefault(branch, self._forked(name, branch)):
                    found[parent] = branch
        return {"followed": [list(each) for each in sorted(found.items())]} if found else {}

    def _forked(self, name: Name, branch: int) -> int | None:
        """The event that a branch was forked from: its first one follows that, and the head."""
        with self._log.views.past(name) as past:
            opening = None if past is None else past.opening(branch)
            return None if opening is None else opening.parent

    @staticmethod
    def _require(event: Event, view: SessionView | None, first: int) -> None:
        """Raise when an event's session is another one by now, or was purged beyond ``first``."""
        current = None if view is None else view.origin.number
        if view is None or current != event.session_number:
            raise SessionGoneError(
                f"session {event.session!r} was deleted before its event {event.sequence} was "
                "exported",
                expected=event.session_number,
                current=current,
            )
        if first < view.first:
            raise TrimmedError(
                f"the events of session {event.session!r} below {view.first} were purged before "
                "they were exported",
                first=view.first,
            )


@dataclass(frozen=True, slots=True)
class ContentLine:
    """A piece of a content as an export tells it.

    Attributes:
        tenant: The tenant's name.
        session: The session whose events name it.
        name: Hex digits of the content's BLAKE2b-256.
        size: Bytes of the whole content.
        media_type: Its media type, or None.
        start: Place of the first of these bytes in the content.
        data: The bytes.
    """

    tenant: str
    session: str
    name: str
    size: int
    media_type: str | None
    start: int
    data: bytes


def is_content(mapping: Mapping[str, Any]) -> bool:
    """Whether a decoded line is of a content, and not of an event."""
    return "blob" in mapping


def line_to_content(mapping: Mapping[str, Any]) -> ContentLine:
    """Validate one decoded line.

    Raises:
        ValueError: With the reason.
    """
    for key in mapping:
        if key not in CONTENT_KEYS:
            raise ValueError(f"unknown key {key!a}")
    for key in ("session", "blob", "data"):
        if type(mapping.get(key)) is not str:
            raise ValueError(f"{key} must be a string")
    tenant = unescape(mapping.get("tenant", ""))
    media_type = mapping.get("media_type")
    if type(tenant) is not str or (media_type is not None and type(media_type) is not str):
        raise ValueError("tenant and media_type must be strings")
    if not _NAME.fullmatch(mapping["blob"]):
        raise ValueError(f"blob must be {NAME_DIGITS} lower-case hex digits")
    for key in ("size", "start"):
        if type(mapping.get(key)) is not int or not 0 <= mapping[key] <= BLOB_BYTES_MAX:
            raise ValueError(f"{key} must be an integer from 0 to {BLOB_BYTES_MAX}")
    data = canonical_base64("data", mapping["data"])
    size, start = mapping["size"], mapping["start"]
    if start + len(data) > size or not (data or size == start == 0):
        raise ValueError(f"{len(data)} bytes at {start} are no part of a content of {size}")
    return ContentLine(tenant, mapping["session"], mapping["blob"], size, media_type, start, data)


Begin = Callable[[str, str | None], Upload]


class ArrivingContents:
    """Contents that a load brings in: one under way, and the addresses of those that are whole.

    Takes 250 bytes for each of them.

    Args:
        begin: Begins an upload for a tenant, with a media type.
        leave: Gives back what an upload takes, once it has ended.
    """

    def __init__(self, begin: Begin, leave: Callable[[], None]) -> None:
        self._begin = begin
        self._leave = leave
        self._addresses: dict[tuple[str, str], bytes] = {}
        self._line: ContentLine | None = None  # the last one of the content under way
        self._upload: Upload | None = None
        self._digest = blake2b(digest_size=NAME_DIGITS // 2)

    def take(self, tenant: str, line: ContentLine) -> None:
        """Take the next line of a content.

        Raises:
            ValueError: It does not go on where the one before ended, or the bytes are others than
                the name says.
        """
        before = self._line
        if self._upload is None:
            if line.start:
                raise ValueError(f"content {line.name} begins at {line.start}, not at 0")
            self._upload = self._begin(tenant, line.media_type)
            self._digest = blake2b(digest_size=NAME_DIGITS // 2)
        elif before is not None and (
            (before.name, before.size, before.tenant) != (line.name, line.size, line.tenant)
            or before.start + len(before.data) != line.start
        ):
            raise ValueError(f"content {before.name} goes on elsewhere than it stopped")
        self._line = line
        self._digest.update(line.data)
        self._upload.add(line.data)
        if line.start + len(line.data) == line.size:
            if self._digest.hexdigest() != line.name:
                raise ValueError(f"the bytes of content {line.name} have another name")
            self._addresses[tenant, line.name] = self._upload.finish().address
            self._line = self._upload = None
            self._leave()

    def require_whole(self) -> None:
        """Raise ``ValueError`` when a content is under way."""
        if self._line is not None:
            raise ValueError(f"content {self._line.name} ends before it is whole")

    def address(self, tenant: str, name: str) -> bytes:
        """The address that an event's name of a content stands for.

        Raises:
            ValueError: No line before told the content.
        """
        if len(name) != NAME_DIGITS:
            return bytes.fromhex(name)  # an address of this store
        address = self._addresses.get((tenant, name))
        if address is None:
            raise ValueError(f"no line before tells the content {name}")
        return address

    def abandon(self) -> None:
        """Drop what is under way."""
        upload, self._upload, self._line = self._upload, None, None
        if upload is not None:
            upload.abandon()
            self._leave()
