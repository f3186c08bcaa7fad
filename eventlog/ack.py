"""An append on its way, and what became of it.

Invariants:
    1. An ack resolves once: durable with its place, or with an error and nothing written.
    2. Resolving never runs a caller's code on the writer's thread: event loops are woken with one
       ``call_soon_threadsafe`` per loop and commit; threads wait on a lock of their own ack.
    3. Cancelling a task that awaits an ack leaves the append as it is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

from eventlog.arguments import seconds
from eventlog.errors import AppendConflictError, TurnlogError, UsageError
from eventlog.limits import BLOB_REFERENCE_BYTES
from eventlog.record import HEADER_BYTES, TAIL_KIND_BYTE

WAITING: Final = 0
DURABLE: Final = 1
REFUSED: Final = 2
STORE_ID_DIGITS: Final = 10  # of the sequence, at least
HEARD: Final = 3  # refused, and its caller was told


class Draft(NamedTuple):
    """One event that is ready to be placed: everything but what only the writer knows.

    Attributes:
        tail: The last five header words (``record.encode_tail``). With ``ROLLS_UP`` among its flags
            the session rolls up after the event, wherever that stands in its append.
        payload: Extension and body, joined.
        extension_bytes: How much of the payload is the extension.
        caller_id: The caller's id, or None.
        recorded_us: A recorded time to keep (loading an export), or None.
        blobs: Addresses of the blobs that it refers to.
        parent: Sequence or id of the event that it follows, -1 for none; None follows the head.
            Of a move of the head the event that becomes it.
        parent_branch: The branch of a parent that was purged elsewhere (loading an export).
        past: Sequence or id of an event that it must come after on its path, or None.
    """

    tail: bytes
    payload: bytes
    extension_bytes: int = 0
    caller_id: str | None = None
    recorded_us: int | None = None
    blobs: tuple[bytes, ...] = ()
    parent: int | str | None = None
    parent_branch: int | None = None
    past: int | str | None = None

    @property
    def size(self) -> int:
        """Bytes of its record, and of what its references rewrite."""
        size = HEADER_BYTES + len(self.payload)
        return size + len(self.blobs) * BLOB_REFERENCE_BYTES if self.blobs else size

    @property
    def kind(self) -> int:
        """Code of the kind."""
        return self.tail[TAIL_KIND_BYTE]

    @property
    def extension(self) -> bytes:
        """Encoded extension map, or nothing."""
        return self.payload[: self.extension_bytes]

    @property
    def body(self) -> bytes:
        """Encoded body."""
        return self.payload[self.extension_bytes :]


class Removal(NamedTuple):
    """What an append removes of its session.

    Attributes:
        first: Purge the events below this sequence; None deletes the session.
        is_erased: Overwrite what it held.
        number: The incarnation that is meant; None for any.
    """

    first: int | None = None
    is_erased: bool = False
    number: int | None = None


class Beginning(NamedTuple):
    """Where a session begins that is made without what was purged of it elsewhere.

    Attributes:
        first: Its first sequence.
        head: The head below it, or ``NO_PARENT``.
        rows: What inline projections made of the purged events: projection, subkey, content.
        branches: Branch numbers that they handed out; 0 when they were linear.
        head_branch: The branch of that head.
    """

    first: int
    head: int
    rows: Sequence[tuple[int, bytes, bytes]]
    branches: int = 0
    head_branch: int = 0


class Version(NamedTuple):
    """What the row of a key in ``state`` has to be for an append.

    Attributes:
        projection: Number of the projection.
        subkey: The rest of the row's key.
        sequence: Sequence of the event that made it; -1 when there must be none.
        what: What a refusal calls it, such as ``run 'r1'``.
    """

    projection: int
    subkey: bytes
    sequence: int
    what: str

    def refusal(self, current: int) -> AppendConflictError:
        """The error for another version, -1 for none."""
        if current < 0:
            reason = f"{self.what} does not exist; version {self.sequence} was expected"
        elif self.sequence < 0:
            reason = f"{self.what} exists already, with version {current}"
        else:
            reason = f"{self.what} has version {current}, not {self.sequence}"
        return AppendConflictError(reason, expected=self.sequence, current=current)


class Terms:
    """What is special about an append; a plain message has none.

    Attributes:
        expected_head: Sequence that must be the head, -1 for an empty session, None for any.
        expected_next: Sequence that the first event must get (loading an export), or None.
        begin: Where a session that this makes begins; None for sequence 0.
        key: Idempotency key, or None.
        linked: True when a draft names its parent, or what it must come after.
        content: BLAKE2b-256 of the canonical content; only with ``key``.
        create: True when the append only makes sure that the session exists.
        only_existing: True when nothing is written, and nothing refused, without a session.
        named: True when a draft has a caller's id.
        refers: True when a draft refers to blobs.
        caller_id: The last draft's id.
        queued: True when awaiting the ack is not to wait for the disk.
        removal: What it removes, or None.
        more: The acks of a batch's other sessions.
        already: Set by the writer when the append repeats an earlier one.
        digest: Keyed digest of ``key``, set by the writer.
        versions: What rows in ``state`` have to be.
        number: The incarnation that is meant; None for any.
        removals: What ``CommitRecord.removals`` has to be, so that nothing was removed since it was
            read; None for any.
    """

    __slots__ = (
        "already",
        "begin",
        "caller_id",
        "content",
        "create",
        "digest",
        "expected_head",
        "expected_next",
        "key",
        "linked",
        "more",
        "named",
        "number",
        "only_existing",
        "queued",
        "refers",
        "removal",
        "removals",
        "versions",
    )

    def __init__(
        self,
        *,
        expected_head: int | None = None,
        expected_next: int | None = None,
        number: int | None = None,
        begin: Beginning | None = None,
        key: str | None = None,
        content: bytes = b"",
        create: bool = False,
        only_existing: bool = False,
        named: bool = False,
        linked: bool = False,
        refers: bool = False,
        caller_id: str | None = None,
        queued: bool = False,
        removal: Removal | None = None,
        versions: Sequence[Version] = (),
        removals: int | None = None,
    ) -> None:
        self.expected_head = expected_head
        self.expected_next = expected_next
        self.number = number
        self.begin = begin
        self.key = key
        self.content = content
        self.create = create
        self.only_existing = only_existing
        self.named = named
        self.linked = linked
        self.versions = versions
        self.removals = removals
        self.refers = refers
        self.caller_id = caller_id
        self.queued = queued
        self.removal = removal
        self.more: Sequence[Ack] = ()
        self.already = False
        self.digest = b""

    @property
    def asks_ids(self) -> bool:
        """True when ids are to be looked up: of its events, or of what they follow."""
        return (
            self.named
            or self.linked
            or any([ack.terms is not None and ack.terms.linked for ack in self.more])
        )


class Ack:
    """The promise of an append. Await it, or call ``result`` from a thread.

    Durable means fsynced. An append that was sent with ``ack="queued"`` is only *accepted*:
    awaiting it returns at once, ``await ack.durable()`` waits for the disk.
    """

    # An ack is made for every append, so it holds little: a plain message's tail and payload lie
    # in it, and drafts and terms are for all other appends.
    __slots__ = (
        "_error",
        "_first",
        "_gate",
        "_last",
        "_position",
        "_session_number",
        "_state",
        "_waiters",
        "byte_count",
        "drafts",
        "event_count",
        "name",
        "opening",
        "owner",
        "payload",
        "tail",
        "terms",
    )

    _session_number: int
    _first: int
    _last: int
    _position: int

    def __init__(
        self,
        name: tuple[str, str],
        byte_count: int,
        tail: bytes | None = None,
        payload: bytes | None = None,
        opening: Any = None,
        owner: object = None,
        drafts: Sequence[Draft] = (),
        terms: Terms | None = None,
        event_count: int = 1,
    ) -> None:
        self.name = name
        self.byte_count = byte_count
        self.tail = tail
        self.payload = payload
        self.opening = opening
        self.owner = owner  # who appended, and hears of a refusal that nobody waits for
        self.drafts = drafts
        self.terms = terms
        self.event_count = event_count
        self._state = WAITING
        self._waiters: Any = None
        self._gate: _Gate | None = None
        self._error: TurnlogError | None = None

    @property
    def queued(self) -> bool:
        """True when awaiting it does not wait for the disk."""
        return self.terms is not None and self.terms.queued

    @property
    def removal(self) -> Removal | None:
        """What it removes of its session."""
        return None if self.terms is None else self.terms.removal

    @property
    def more(self) -> Sequence[Ack]:
        """The acks of a batch's other sessions."""
        return () if self.terms is None else self.terms.more

    def all_drafts(self) -> Sequence[Draft]:
        """Its events, also when it is a plain message."""
        if self.tail is None or self.payload is None:
            return self.drafts
        return (Draft(self.tail, self.payload),)

    # What the caller sees

    def done(self) -> bool:
        """True once the append is durable or refused."""
        return self._state != WAITING

    def result(self, timeout: float | None = None) -> Ack:
        """Wait in a thread until the append is durable.

        Args:
            timeout: Seconds; None waits for ever.

        Returns:
            The ack itself.

        Raises:
            TimeoutError: Not settled yet; the append may still become durable.
            UsageError: The timeout is no number of seconds.
            TurnlogError: The append was refused; nothing of it was written.
        """
        wait_s = seconds(timeout, "timeout")
        if self._state == WAITING:
            gate = self._own_gate()
            gate.waiting += 1
            try:
                if self._state == WAITING and not gate.wait(wait_s):
                    raise TimeoutError("the append is not settled yet; it may still become durable")
            finally:
                gate.waiting -= 1
        return self._settled()

    def _own_gate(self) -> _Gate:
        """This thread's gate, the same each time, so that waiting again and again adds none."""
        thread = threading.get_ident()
        gate = self._gate
        while gate is not None:
            if gate.thread == thread:
                return gate
            gate = gate.following
        gate = _Gate(thread)
        gate.following = self._gate
        self._gate = gate
        return gate

    def __await__(self) -> Generator[Any, None, Ack]:
        terms = self.terms
        if self._state != WAITING or (terms is not None and terms.queued):
            return _at_once(self)
        return self._wait()

    async def durable(self) -> Ack:
        """Wait until the append is durable, also when it was sent with ``ack="queued"``."""
        return await _Durable(self)

    def _wait(self) -> Generator[Any, None, Ack]:
        # The future's own iterator, whose result is the ack: a generator around it would be
        # another frame on every append's path, and so would be the loop's ``create_future``.
        future: asyncio.Future[Ack] = asyncio.Future(loop=asyncio.get_running_loop())
        if self._waiters is None:
            self._waiters = future
        else:
            self._add_waiter(future)
        if self._state != WAITING and not future.done():
            _resolve([(future, self)])
        return future.__await__()

    def _add_waiter(self, future: asyncio.Future[Ack]) -> None:
        """Put one more future before the others, and let go those in front that gave up."""
        while True:
            waiters = kept = self._waiters
            while type(kept) is tuple and kept[0].done():
                kept = kept[1]
            if kept is not None and type(kept) is not tuple and kept.done():
                kept = None
            added = (future, kept)
            if self._waiters is waiters:  # with the next line one step of the interpreter
                self._waiters = added
                return

    def _settled(self) -> Ack:
        if self._error is not None:
            self._state = HEARD
            raise self._error.with_traceback(None)
        return self

    @property
    def is_unheard(self) -> bool:
        """True when it was refused and nobody was told."""
        return self._state == REFUSED

    @property
    def is_awaited(self) -> bool:
        """True when somebody waits for it."""
        waiters = self._waiters
        while waiters is not None:
            future, waiters = waiters if type(waiters) is tuple else (waiters, None)
            if not future.done():
                return True
        gate = self._gate
        while gate is not None:
            if gate.waiting:
                return True
            gate = gate.following
        return False

    def _known(self, name: str) -> None:
        if self._state == WAITING:
            raise UsageError(
                f"{name} is not known yet", hint="Await the ack or call result() first."
            )
        self._settled()

    @property
    def first(self) -> int:
        """Sequence of the append's first event."""
        self._known("first")
        return self._first

    @property
    def last(self) -> int:
        """Sequence of the append's last event."""
        self._known("last")
        return self._last

    @property
    def position(self) -> int:
        """Position of the append's last event."""
        self._known("position")
        return self._position

    @property
    def session_number(self) -> int:
        """Number of the session's incarnation."""
        self._known("session_number")
        return self._session_number

    @property
    def already(self) -> bool:
        """True when an idempotency key or an id had stored the same content before."""
        self._known("already")
        return self.terms is not None and self.terms.already

    @property
    def event_id(self) -> str:
        """Id of the append's last event: the caller's, or the store's; empty without an event."""
        self._known("event_id")
        if self._last < 0:
            return ""
        caller_id = None if self.terms is None else self.terms.caller_id
        return caller_id or store_id(self._session_number, self._last)

    def __repr__(self) -> str:
        if self._state == WAITING:
            return f"<Ack waiting, {self.event_count} events>"
        if self._error is None and self._last < 0:
            return "<Ack durable, nothing written>"
        if self._error is not None:
            return f"<Ack refused: {self._error}>"
        return f"<Ack durable, sequences {self._first}-{self._last}, position {self._position}>"

    # What the writer does

    def place(self, session_number: int, first: int, last: int, position: int) -> None:
        """Note where the events go; seen by callers only once the ack is durable."""
        self._session_number = session_number
        self._first = first
        self._last = last
        self._position = position

    def place_nowhere(self) -> None:
        """Note that there was nothing to write."""
        self.place(0, -1, -1, 0)

    def repeat(self, session_number: int, first: int, last: int, position: int) -> None:
        """Note the place of an earlier append with the same content."""
        assert self.terms is not None
        self.place(session_number, first, last, position)
        self.terms.already = True


class _Gate:
    """Where a thread waits for an ack; shut until the ack is settled, and open ever after.

    Attributes:
        thread: Identity of the thread.
        waiting: How often it waits there at the moment; 0 once it gave up.
        following: The gate of another thread.
    """

    __slots__ = ("following", "lock", "thread", "waiting")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.lock = threading.Lock()
        self.lock.acquire()
        self.waiting = 0
        self.following: _Gate | None = None

    def wait(self, wait_s: float | None) -> bool:
        """True once the gate is open."""
        is_open = self.lock.acquire(timeout=-1 if wait_s is None else wait_s)
        if is_open:
            self.lock.release()
        return is_open


class _Durable:
    """Awaits an ack's durability whatever its mode."""

    __slots__ = ("_ack",)

    def __init__(self, ack: Ack) -> None:
        self._ack = ack

    def __await__(self) -> Generator[Any, None, Ack]:
        return _at_once(self._ack) if self._ack.done() else self._ack._wait()


def _at_once(ack: Ack) -> Generator[Any, None, Ack]:
    yield from ()
    return ack._settled()


def store_id(session_number: int, sequence: int) -> str:
    """The id of an event that has none of its caller: session number and padded sequence."""
    return f"{session_number:x}.{sequence:0{STORE_ID_DIGITS}d}"


def event_of(event_id: str) -> tuple[int, int] | None:
    """Session number and sequence in an id that the store made; None for one of a caller's."""
    number, dot, sequence = event_id.partition(".")
    if (
        dot
        and len(sequence) >= STORE_ID_DIGITS
        and sequence.isascii()
        and sequence.isdigit()
        and number
        and all([digit in "0123456789abcdef" for digit in number])
    ):
        return int(number, 16), int(sequence)
    return None


def settle(
    acks: Iterable[Ack],
    error: TurnlogError | None = None,
    *,
    refused: Iterable[tuple[Ack, TurnlogError]] = (),
) -> None:
    """Resolve the acks of one commit, and wake who waits for them (invariant 2).

    The encoded events are let go, since a caller may keep acks.

    Args:
        acks: These all share one outcome.
        error: Why they were refused; None when they are durable.
        refused: These were refused, each for a reason of its own.
    """
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Ack], Ack]]] = {}
    for ack, reason in chain(zip(acks, repeat(error), strict=False), refused):
        ack.drafts = ()
        ack.payload = None
        if reason is None:
            ack._state = DURABLE
        else:
            ack._error = reason
            ack._state = REFUSED
        waiters = ack._waiters
        while waiters is not None:
            if type(waiters) is tuple:
                future, waiters = waiters
            else:
                future, waiters = waiters, None
            loop = future.get_loop()
            if loop in loops:
                loops[loop].append((future, ack))
            else:
                loops[loop] = [(future, ack)]
        gate = ack._gate
        while gate is not None:
            gate.lock.release()
            gate = gate.following
    for loop, waiting in loops.items():
        _call(loop, _resolve, waiting)


def wake(futures: Iterable[asyncio.Future[None]]) -> None:
    """Resolve futures of any event loops from any thread; a closed loop is passed over."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in futures:
        loops.setdefault(future.get_loop(), []).append(future)
    for loop, waiting in loops.items():
        _call(loop, _wake, waiting)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], None], waiting: Any) -> None:
    try:
        loop.call_soon_threadsafe(callback, waiting)
    except RuntimeError:
        return  # that loop is closed: its tasks are gone, other loops are not


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _resolve(waiting: list[tuple[asyncio.Future[Ack], Ack]]) -> None:
    for future, ack in waiting:
        if not future.done():
            if ack._error is None:
                future.set_result(ack)
            else:
                ack._state = HEARD
                future.set_exception(ack._error)
