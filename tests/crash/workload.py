"""Seeded appends for processes that will be killed, and the journal of what became of each.

An operation's content follows from its name, so a journal needs the name alone and an oracle can
tell every byte of what a store must hold. Each operation is journalled before it is submitted and
once it is settled; what a killed process had submitted and not settled, its successor submits again
if the operation has an idempotency key or ids.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final

from engine import Store
from engine.session import Session
from eventlog import limits, sealing
from eventlog.ack import Ack
from eventlog.errors import ConflictError, TurnlogError
from tests.crash.journal import Journal, JournalReader

Name = tuple[str, str]

TENANTS: Final = ("", "acme", "a:b")
SHARED: Final = ("call", "a", "a:b", "a\x00b", "\N{TELEPHONE RECEIVER}")
LONG_EVERY: Final = 61  # one message in so many is some KiB long, beyond a page of LMDB


def seal_eagerly(store: Store, frequency: int) -> None:
    """Seal in this process beside every append, whatever the store says.

    Args:
        store: The store.
        frequency: Loose events that make a session due in moments without appends.
    """
    _set_sealing(store, frequency, 1, 2**40)


def seal_as_usual(store: Store) -> None:
    """Undo ``seal_eagerly``."""
    frequency = limits.SNAPSHOT_FREQUENCY
    _set_sealing(store, frequency, limits.HOT_EVENTS_TARGET, limits.HOT_PRESSURE)


def _set_sealing(store: Store, frequency: int, target: int, pressure: int) -> None:
    store._log.index.frequency = frequency
    bounds: Any = sealing
    bounds.HOT_EVENTS_TARGET = target
    bounds.HOT_PRESSURE = pressure


@dataclass(frozen=True, slots=True)
class Share:
    """What an operation appends to one session: messages first, then other events."""

    name: Name
    messages: int
    events: int = 0
    expected_head: int | None = None

    @property
    def count(self) -> int:
        """Number of events."""
        return self.messages + self.events


@dataclass(frozen=True, slots=True)
class Operation:
    """One append.

    Attributes:
        name: Unique; the content follows from it.
        way: ``append``, ``many``, ``batch``, or ``create``.
        shares: One share, or several for a batch.
        key: Idempotency key.
        named: Whether each event has a caller's id.
        queued: Whether it is sent with ``ack="queued"``.
        clash: Whether key or ids belong to another operation, so that it must be refused.
    """

    name: str
    way: str
    shares: tuple[Share, ...]
    key: str | None = None
    named: bool = False
    queued: bool = False
    clash: bool = False

    @property
    def count(self) -> int:
        """Number of events."""
        return sum([share.count for share in self.shares])

    @property
    def can_repeat(self) -> bool:
        """Whether submitting it again stores it once; a key is looked at before the head, ids after."""  # noqa: E501
        unconditional = self.shares[0].expected_head is None
        return not self.clash and (self.key is not None or (self.named and unconditional))

    def kinds(self) -> Iterator[tuple[Name, str]]:
        """Session and kind of each event, in order."""
        for share in self.shares:
            yield from [(share.name, "message")] * share.messages
            yield from [(share.name, "event")] * share.events

    def encode(self) -> dict[str, Any]:
        """Plain data for a journal."""
        return {
            "do": self.name,
            "way": self.way,
            "shares": [
                [*share.name, share.messages, share.events, share.expected_head]
                for share in self.shares
            ],
            "key": self.key,
            "named": self.named,
            "queued": self.queued,
            "clash": self.clash,
        }

    @classmethod
    def decode(cls, line: dict[str, Any]) -> Operation:
        """The reverse of ``encode``."""
        return cls(
            line["do"],
            line["way"],
            tuple(
                [
                    Share((tenant, session), messages, events, head)
                    for tenant, session, messages, events, head in line["shares"]
                ]
            ),
            line["key"],
            line["named"],
            line["queued"],
            line["clash"],
        )


def body_of(name: str, place: int, count: int) -> dict[str, Any]:
    """The body of an operation's event: plain data of most kinds, and mostly short."""
    digest = blake2b(f"{name}/{place}".encode(), digest_size=32).digest()
    body: dict[str, Any] = {
        "role": ("user", "assistant", "tool", "system")[digest[0] % 4],
        "operation": name,
        "place": place,
        "count": count,
        "content": digest.hex()[: 1 + digest[1] % 64] * (1 + digest[2] % 4),
    }
    kind = digest[3] % 8
    if kind == 0:
        body["audio"] = digest * (1 + digest[4] % 8)
    elif kind == 1:
        body["usage"] = {"tokens": digest[5], "cost": digest[6] / 7, "cached": None}
    elif kind == 2:
        body["calls"] = [{"id": digest[:4].hex(), "arguments": [True, -digest[7], 2**63]}]
    elif kind == 3:
        body["content"] += "\ud83d"  # a model's stream, cut inside an emoji
    if int.from_bytes(digest[8:10], "big") % LONG_EVERY == 0:
        body["content"] *= 100
    return body


def id_of(operation: Operation, place: int) -> str | None:
    """The caller's id of an event."""
    return f"{operation.name}#{place}" if operation.named else None


def session_of(store: Store, name: Name) -> Session:
    """A handle by tenant and session name."""
    return store.tenant(name[0]).session(name[1])


def submit(store: Store, operation: Operation, *, wait: float | None = None) -> Ack:
    """Append what an operation says."""
    mode: Any = "queued" if operation.queued else "durable"
    first = operation.shares[0]
    session = session_of(store, first.name)
    bodies = [body_of(operation.name, place, operation.count) for place in range(operation.count)]
    if operation.way == "create":
        return session.create()
    if operation.way == "append":
        return session.append(
            bodies[0],
            expected_head=first.expected_head,
            idempotency_key=operation.key,
            id=id_of(operation, 0),
            ack=mode,
            wait=wait,
        )
    if operation.way == "many":
        return session.append_many(
            bodies,
            ids=[id_of(operation, place) for place in range(first.count)],
            expected_head=first.expected_head,
            idempotency_key=operation.key,
            ack=mode,
            wait=wait,
        )
    assert operation.way == "batch"
    parts = []
    start = 0
    for share in operation.shares:
        middle, stop = start + share.messages, start + share.count
        parts.append(
            session_of(store, share.name).draft(
                bodies[start:middle],
                events=[("event", body) for body in bodies[middle:stop]],
                expected_head=share.expected_head,
            )
        )
        start = stop
    return store.tenant(first.name[0]).append_batch(parts, ack=mode)


class Recorder:
    """Submits operations and journals each before it is submitted and once it is settled."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self.store = store
        self.journal = journal
        self.waiting: deque[tuple[Operation, Ack]] = deque()

    def submit(self, operation: Operation, *, wait: float | None = None) -> TurnlogError | None:
        """Submit; why it was refused at once, if it was."""
        self.journal.write(**operation.encode())
        try:
            ack = submit(self.store, operation, wait=wait)
        except TurnlogError as error:
            self._refused(operation, error)
            return error
        self.waiting.append((operation, ack))
        return None

    def settle(self, outstanding: int = 0, timeout: float = 15.0) -> list[TurnlogError]:
        """Wait until at most so many are open, oldest first; the errors of the refused."""
        errors = []
        while len(self.waiting) > outstanding:
            operation, ack = self.waiting[0]
            try:
                ack.result(timeout)
            except TurnlogError as error:
                self._refused(operation, error)
                errors.append(error)
            else:
                self.journal.write(
                    ack=operation.name,
                    first=ack.first,
                    last=ack.last,
                    position=ack.position,
                    already=ack.already,
                )
            self.waiting.popleft()
        return errors

    def do(self, operation: Operation) -> TurnlogError | None:
        """Submit and settle."""
        error = self.submit(operation)
        if error is not None:
            return error
        errors = self.settle()
        return errors[-1] if errors else None

    def _refused(self, operation: Operation, error: TurnlogError) -> None:
        self.journal.write(no=operation.name, error=type(error).__name__, text=str(error))


class Mix:
    """A seeded stream of operations of one writer."""

    def __init__(self, slot: str, seed: int, *, batch_max: int = 40) -> None:
        self._slot = f"{slot}.{seed:x}"
        self._random = Random(f"{slot}/{seed}")
        self._batch_max = batch_max
        self._count = 0
        self._own: list[Name] = [(tenant, f"{slot} {tenant}") for tenant in TENANTS]
        self._keyed: list[Operation] = []

    def name(self) -> str:
        """The next operation's name."""
        self._count += 1
        return f"{self._slot}-{self._count:06d}"

    def _session(self) -> Name:
        random = self._random
        if random.random() < 0.5:
            return random.choice(TENANTS), random.choice(SHARED)
        if random.random() < 0.03:
            self._own.append((random.choice(TENANTS), f"{self._slot} {len(self._own)}"))
        return random.choice(self._own[-20:])

    def _head(self, store: Store, name: Name) -> int:
        head = session_of(store, name).head
        return -1 if head is None else head

    def next(self, store: Store) -> Operation:
        """The next operation."""
        random = self._random
        name = self._session()
        way = random.choices(
            ("append", "many", "batch", "race", "clash", "create"), (50, 20, 12, 12, 3, 3)
        )[0]
        key = f"key of {self._slot} {self._count}" if random.random() < 0.4 else None
        named = random.random() < 0.3
        if way == "create":
            return Operation(self.name(), "create", (Share(name, 0),))
        if way == "clash" and self._keyed:
            other = random.choice(self._keyed)
            return Operation(
                self.name(), "append", (Share(other.shares[0].name, 1),), other.key, clash=True
            )
        if way == "many":
            count = random.randint(1, self._batch_max)
            return self._note(Operation(self.name(), "many", (Share(name, count),), key, named))
        if way == "batch":
            names = {self._with_tenant(name[0]) for _ in range(random.randint(1, 3))} | {name}
            shares = []
            for each in sorted(names):
                head = self._head(store, each) if random.random() < 0.3 else None
                shares.append(Share(each, random.randint(1, 4), random.randint(0, 2), head))
            return Operation(self.name(), "batch", tuple(shares))
        if way == "race":
            name = (random.choice(TENANTS), SHARED[0])
            share = Share(name, 1, expected_head=self._head(store, name))
            return self._note(Operation(self.name(), "append", (share,), key, named))
        queued = random.random() < 0.2
        return self._note(Operation(self.name(), "append", (Share(name, 1),), key, named, queued))

    def _with_tenant(self, tenant: str) -> Name:
        while True:
            name = self._session()
            if name[0] == tenant:
                return name

    def _note(self, operation: Operation) -> Operation:
        if operation.key is not None and operation.shares[0].expected_head is None:
            self._keyed = [*self._keyed[-20:], operation]
        return operation


def unsettled(journals: list[str]) -> list[Operation]:
    """What the writers of some journals submitted, can repeat and never heard of again."""
    opened: dict[str, Operation] = {}
    for path in journals:
        for line in JournalReader(path).read():
            if "do" in line:
                opened[line["do"]] = Operation.decode(line)
            else:
                opened.pop(line.get("ack") or line.get("no") or "", None)
    return [operation for operation in opened.values() if operation.can_repeat]


def write(
    path: str,
    journal: str,
    slot: str,
    seed: int,
    before: list[str],
    frequency: int | None = None,
    depth: int = 6,
    batch_max: int = 40,
    pace_us: int = 0,
    count: int | None = None,
) -> None:
    """A writer process: append for ever, or ``count`` operations.

    Args:
        path: The store.
        journal: Where it keeps its journal.
        slot: Names the writer; successors of a killed one have its slot.
        seed: Makes the operations.
        before: Journals of its predecessors.
        frequency: Seal a session once it has so many loose events, whatever the store says: this
            writer then seals and cuts all the time.
        depth: At most so many open appends.
        batch_max: Messages of the largest batch.
        pace_us: µs to do nothing after each, so that stores stay small enough to be judged often.
        count: Operations to do, None for no end.
    """
    notes = Journal(journal)
    with Store.open(path) as store:
        if frequency is not None:
            seal_eagerly(store, frequency)
        notes.write(opened=store.last_position)
        recorder = Recorder(store, notes)
        for operation in unsettled(before):
            recorder.submit(operation)
        _only_conflicts(recorder.settle())
        mix = Mix(slot, seed, batch_max=batch_max)
        random = Random(f"depth {slot}/{seed}")
        done = 0
        while count is None or done < count:
            done += 1
            recorder.submit(mix.next(store), wait=20.0)
            _only_conflicts(recorder.settle(random.randint(0, depth)))
            if pace_us:
                time.sleep(pace_us / 1e6)
        _only_conflicts(recorder.settle())
    notes.write(closed=True)


def _only_conflicts(errors: list[TurnlogError]) -> None:
    for error in errors:
        if not isinstance(error, ConflictError):
            raise error


def new_journal(folder: Path, slot: str, number: int) -> Path:
    """The journal of a slot's writer."""
    return folder / f"{slot}.{number:05d}.journal"
