"""The oracle: what must hold of a store after anything, judged by the journals alone.

Shares no code with the store's own check: it reads through the public surface and compares with
what the writers said they submitted and were told. The numbers are those of the invariants:

    I1   every acknowledged event is there, equal, at its place
    I2   nothing is there that was not submitted; an append is there whole or not at all
    I3   positions and sequences are dense
    I4   an event's parent is the session's head before it
    I5   what was once seen never changes and never goes away
    I9   an idempotency key or id stands for one append for ever
    I10  the store's own check finds nothing
    I11  the file's structure is sound
    I12  nothing is left over, and opening changes nothing
    I14  what was refused left no trace
    I15  a tenant sees its own sessions and nothing else
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NoReturn

from engine import Store
from engine.events import Event
from eventlog.locks import LOCK_FILES
from eventlog.place import LOCK_FILE, MARKER_FILE
from eventlog.raw import DATA_FILE
from tests.crash.journal import JournalReader
from tests.crash.workload import Name, Operation, body_of, id_of, session_of, submit

FILES = {DATA_FILE, LOCK_FILE, MARKER_FILE, *LOCK_FILES}
# After these an append may be in the store or not; every other error says that it is not.
OPEN_OUTCOMES = (
    "the writer thread ended",
    "its outcome could not be settled",
    "the store was closed before the commit",
)


@dataclass(frozen=True, slots=True)
class Told:
    """What an ack said."""

    first: int
    last: int
    position: int
    already: bool


@dataclass(slots=True)
class Placed:
    """Where an operation is."""

    position: int
    first: int
    last: int = -1
    last_position: int = -1


@dataclass(slots=True)
class SessionSeen:
    """What the log says of one session so far."""

    number: int
    checksums: list[bytes] = field(default_factory=list)
    head: int | None = None
    messages: int = 0
    last_position: int = 0


class Oracle:
    """Follows one store. ``hint`` is what repeats the run; every failure shows it."""

    def __init__(self, hint: str = "") -> None:
        self._hint = hint
        self._journals: dict[Path, JournalReader] = {}
        self._submitted: dict[str, Operation] = {}
        self._told: dict[str, Told] = {}
        self._refused: dict[str, str] = {}
        self._created: set[Name] = set()
        self._new: list[str] = []
        self._saw: list[tuple[int, bytes]] = []
        self.placed: dict[str, Placed] = {}
        self.checksums: list[bytes] = []  # by position, from 1 on
        self.sessions: dict[Name, SessionSeen] = {}
        self._open: tuple[Operation, list[tuple[Name, str]], int] | None = None

    @property
    def last_position(self) -> int:
        """The last position that was judged."""
        return len(self.checksums)

    @property
    def acknowledged(self) -> int:
        """Operations that were acknowledged so far."""
        return len(self._told)

    def operation(self, name: str) -> Operation:
        """An operation that was submitted."""
        return self._submitted[name]

    def told(self) -> dict[str, Told]:
        """What the acks said, by operation."""
        return dict(self._told)

    def refused(self) -> dict[str, str]:
        """Error and text of what was refused, by operation."""
        return dict(self._refused)

    # Journals

    def listen(self, *journals: Path) -> None:
        """Believe these journals too."""
        for path in journals:
            self._journals.setdefault(path, JournalReader(path))

    def forget(self, *journals: Path) -> None:
        """These get no more lines; what they said stays."""
        self.absorb()
        for path in journals:
            self._journals.pop(path, None)

    def absorb(self) -> int:
        """Read what the journals got; how many lines told of something settled."""
        settled = 0
        for reader in self._journals.values():
            for line in reader.read():
                if "do" in line:
                    operation = Operation.decode(line)
                    self._submitted[operation.name] = operation
                    self._refused.pop(operation.name, None)  # submitted again, so open again
                    if operation.way == "create":
                        self._created.add(operation.shares[0].name)
                elif "ack" in line:
                    settled += 1
                    told = Told(line["first"], line["last"], line["position"], line["already"])
                    before = self._told.setdefault(line["ack"], told)
                    if self._submitted[line["ack"]].way != "create":
                        self._hold(
                            (before.first, before.last, before.position)
                            == (told.first, told.last, told.position),
                            f"I9: {line['ack']} was acknowledged at {before} and at {told}",
                        )
                    self._new.append(line["ack"])
                elif "no" in line:
                    settled += 1
                    is_open = any([text in line["text"] for text in OPEN_OUTCOMES])
                    if not is_open and line["no"] not in self._told:
                        self._refused[line["no"]] = f"{line['error']}: {line['text']}"
                        self._new.append(line["no"])
                elif "saw" in line:
                    self._saw.append((line["saw"], bytes.fromhex(line["sum"])))
        return settled

    # Following

    def follow(self, store: Store) -> int:
        """Judge what is new since the last look; how many events."""
        before = self.last_position
        self.absorb()
        # Read in between: what was told before must be there, what is there was submitted by now.
        told, self._new = self._new, []
        saw, self._saw = self._saw, []
        events = list(store.read(after=before))
        self.absorb()
        for event in events:
            self._take(event)
        self._hold(self._open is None, f"I2: the log ends inside an append: {self._open}")
        for name in told:
            self._judge(name)
        for position, checksum in saw:
            self._hold(
                position <= self.last_position and self.checksums[position - 1] == checksum,
                f"I5: a reader saw another event at position {position}",
            )
        return len(events)

    def _take(self, event: Event) -> None:
        position = self.last_position + 1
        if event.position != position:
            self._fail(f"I3: {event} stands where {position} is due")
        stored = event.stored()
        self.checksums.append(stored[:8])
        name = (event.tenant, event.session)
        session = self.sessions.get(name)
        if session is None:
            session = self.sessions[name] = SessionSeen(event.session_number)
        if event.session_number != session.number:
            self._fail(f"I3: {name} has two numbers")
        if event.sequence != len(session.checksums):
            self._fail(f"I3: {event} follows sequence {len(session.checksums) - 1}")
        session.checksums.append(stored[:8])
        session.last_position = position
        if event.kind == "open":
            self._hold(name in self._created, f"I2: nobody created {name}")
            self._hold(event.sequence == 0 and self._open is None, f"I2: {event} is out of place")
            return
        self._take_event(event, name, session)

    def _take_event(self, event: Event, name: Name, session: SessionSeen) -> None:
        body = event.body
        if self._open is None:
            operation = self._submitted.get(body["operation"])
            self._hold(operation is not None, f"I2: {event} was never submitted")
            assert operation is not None
            self._hold(
                operation.name not in self.placed, f"I9: {operation.name} is in the store twice"
            )
            self._hold(
                operation.shares[0].expected_head
                in (None, -1 if session.head is None else session.head),
                f"I14: {operation} was appended after head {session.head}",
            )
            self.placed[operation.name] = Placed(event.position, event.sequence)
            self._open = (operation, list(operation.kinds()), 0)
        operation, kinds, place = self._open
        if (
            body != body_of(operation.name, place, operation.count)
            or (name, event.kind) != kinds[place]
            or event.id != id_of(operation, place)
        ):
            self._fail(f"I1: place {place} of {operation} holds {event}")
        if event.parent != session.head:
            self._fail(f"I4: parent of {event} is not head {session.head}")
        session.head = event.sequence
        session.messages += event.kind == "message"
        if place + 1 < operation.count:
            self._open = (operation, kinds, place + 1)
            return
        placed = self.placed[operation.name]
        placed.last, placed.last_position = event.sequence, event.position
        self._open = None

    def _judge(self, name: str) -> None:
        operation = self._submitted[name]
        placed = self.placed.get(name)
        refusal = self._refused.get(name)
        if refusal is not None:
            self._hold(placed is None, f"I14: {name} was refused ({refusal}) and is at {placed}")
            return
        told = self._told.get(name)
        if told is None:
            return  # refused, and submitted again since
        if operation.way == "create":
            self._hold(operation.shares[0].name in self.sessions, f"I1: {operation} is lost")
            return
        self._hold(placed is not None, f"I1: {operation}, told {told}, is lost")
        assert placed is not None
        self._hold(
            (placed.first, placed.last, placed.last_position)
            == (told.first, told.last, told.position),
            f"I1: {operation}, told {told}, is at {placed}",
        )
        if operation.clash:
            self._judge_clash(operation, placed)

    def _judge_clash(self, operation: Operation, placed: Placed) -> None:
        """A key that belonged to other content was taken: only right if it stood for nothing."""
        for name, owner in self.placed.items():
            other = self._submitted[name]
            if other.key == operation.key and other.shares[0].name == operation.shares[0].name:
                self._hold(
                    other is operation or owner.position > placed.position,
                    f"I9: {operation} has the key of {name} and was taken",
                )

    def _hold(self, true: bool, message: str) -> None:
        if not true:
            self._fail(message)

    def _fail(self, message: str) -> NoReturn:
        raise AssertionError(f"{message} [{self._hint}]" if self._hint else message)

    # The whole

    def audit(self, path: Path, *, seed: int = 0, repeat: int = 20, thorough: bool = True) -> None:
        """Judge a store that no process has open: its files, and everything in them.

        Args:
            path: The store.
            seed: Chooses the appends that are repeated.
            repeat: How many of them.
            thorough: Read all that was judged before once more, in every way of reading.
        """
        before = digest_of(path)
        with Store.open(path, create=False, verify=True) as store:  # I11
            self.follow(store)
            if thorough:
                self._audit_order(store)
                self._audit_sessions(store)
                self._audit_tenants(store)
            report = store.check()
            self._hold(report.ok, f"I10: check finds {report.findings}")
            self._hold(
                report.counts.get("events", 0) == self.last_position,
                f"I10: check counts {report.counts}, not {self.last_position} events",
            )
            store._log.environment.reader_check()
            readers = store._log.environment._lmdb.readers().splitlines()[1:]
            self._hold(
                all([line.split()[0] == str(os.getpid()) for line in readers]),
                f"I13: slots are taken: {readers}",
            )
        self._hold(digest_of(path) == before, "I12: opening and reading changed data.mdb")
        self._audit_repeats(path, seed, repeat)
        self._hold(set(os.listdir(path)) == FILES, f"I12: left over: {os.listdir(path)}")
        beside = [name for name in os.listdir(path.parent) if name.startswith(f".{path.name}")]
        self._hold(not beside, f"I12: left over: {beside}")

    def _audit_order(self, store: Store) -> None:
        found = [event.stored()[:8] for event in store.read()]
        self._hold(found == self.checksums, f"I5: {_difference(self.checksums, found)} changed")

    def _audit_sessions(self, store: Store) -> None:
        for name, seen in self.sessions.items():
            session = session_of(store, name)
            events = list(session.events())
            found = [event.stored()[:8] for event in events]
            self._hold(found == seen.checksums, f"I5: {name} {_difference(seen.checksums, found)}")
            info = session.info()
            assert info is not None
            self._hold(
                (info.number, info.event_count, info.message_count, info.head, info.last_position)
                == (seen.number, len(found), seen.messages, seen.head, seen.last_position),
                f"I6: {info} is not {seen.number}, {len(found)} events, {seen.messages} messages, "
                f"head {seen.head}, position {seen.last_position}",
            )
            messages = [event.body for event in events if event.kind == "message"]
            self._hold(session.history() == messages, f"I6: the history of {name} differs")
            for limit in (1, 7):
                self._hold(
                    session.history(limit) == messages[-limit:],
                    f"I6: the last {limit} messages of {name} differ",
                )

    def _audit_tenants(self, store: Store) -> None:
        by_tenant: dict[str, list[str]] = defaultdict(list)
        newest = sorted(self.sessions, key=lambda name: -self.sessions[name].last_position)
        for tenant, session in newest:
            by_tenant[tenant].append(session)
        for tenant, sessions in by_tenant.items():
            found: list[str] = []
            cursor = None
            while True:
                page = store.tenant(tenant).sessions(limit=7, cursor=cursor)
                self._hold(
                    all([info.tenant == tenant for info in page.sessions]),
                    f"I15: tenant {tenant!r} sees {page.sessions}",
                )
                found += [info.name for info in page.sessions]
                cursor = page.cursor
                if cursor is None:
                    break
            self._hold(found == sessions, f"I15: tenant {tenant!r} lists {found}, not {sessions}")
            if tenant:
                positions = [event.position for event in store.tenant(tenant).read()]
                own = sum(
                    [
                        len(seen.checksums)
                        for name, seen in self.sessions.items()
                        if name[0] == tenant
                    ]
                )
                self._hold(
                    len(positions) == own and all([one < two for one, two in pairwise(positions)]),
                    f"I15: tenant {tenant!r} reads {len(positions)} events, not {own}",
                )

    def _audit_repeats(self, path: Path, seed: int, count: int) -> None:
        """Some of the appends that can be repeated are: each gets its first answer (I9)."""
        names = [name for name in self.placed if self._submitted[name].can_repeat]
        chosen = Random(seed).sample(names, min(count, len(names)))
        if not chosen:
            return
        with Store.open(path, create=False) as store:
            last = store.last_position
            for name in chosen:
                ack = submit(store, self._submitted[name]).result(25)
                placed = self.placed[name]
                self._hold(
                    (ack.already, ack.first, ack.last, ack.position)
                    == (True, placed.first, placed.last, placed.last_position),
                    f"I9: {name} was at {placed}, repeated it is {ack}",
                )
            self._hold(store.last_position == last, "I9: a repeated append was appended")


def digest_of(path: Path) -> bytes:
    """Digest of a store's data file."""
    with open(path / DATA_FILE, "rb") as file:
        digest = blake2b(digest_size=16)
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.digest()


def audit(path: str, journals: Iterable[str], hint: str = "") -> None:
    """The whole judgement in a process of its own: a damaged file may end it."""
    oracle = Oracle(hint)
    oracle.listen(*[Path(journal) for journal in journals])
    oracle.audit(Path(path))


def _difference(wanted: list[bytes], found: list[bytes]) -> str:
    for place, (one, other) in enumerate(zip(wanted, found, strict=False)):
        if one != other:
            return f"place {place}"
    return f"{len(wanted)} events became {len(found)}"
