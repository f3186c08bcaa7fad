"""Processes that append to, delete, erase and make anew a few sessions, and one that looks on.

Each operation is journalled before it is submitted and once it is settled, with the number of the
session's incarnation that it reached; content follows from its name, as in ``workload``.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from engine import Store
from engine.events import Event
from eventlog import rebuild, reclaim
from eventlog.errors import (
    ConflictError,
    SessionGoneError,
    SessionNotFoundError,
    StoreClosedError,
    TrimmedError,
    UsageError,
)
from tests.crash.journal import Journal
from tests.crash.workload import Name, body_of, seal_eagerly, session_of
from tests.format import independent

SHARED: Final[tuple[Name, ...]] = (("", "call"), ("acme", "call"), ("acme", "a:b"))
UNWATCHED: Final = ("filler", "auditor")  # sessions that are not of a writer
CONTROLS: Final = ("open", "void", "tombstone", "base", "variables", "redaction")
CONTENTS: Final = [bytes([number]) * 30_000 for number in range(3)]
SETTLE_S: Final = 20.0


def bodies_of(operation: str, count: int) -> list[dict[str, Any]]:
    """What an append holds."""
    return [body_of(operation, place, count) for place in range(count)]


class Churn:
    """A writer's operations, seeded."""

    def __init__(self, store: Store, notes: Journal, slot: str, seed: int) -> None:
        self._store = store
        self._notes = notes
        self._slot = f"{slot}.{seed:x}"
        self._random = Random(f"{slot}/{seed}")
        self._names = (*SHARED, ("", slot))
        self._count = 0
        self._keyed: deque[tuple[str, Name, int]] = deque(maxlen=20)
        self._waiting: deque[tuple[str, Any]] = deque()

    def step(self) -> None:
        """Submit the next operation."""
        random = self._random
        name = random.choice(self._names)
        ways = ("append", "delete", "erase", "purge", "again", "create", "state", "blob", "redact")
        way = random.choices(ways, (70, 7, 4, 8, 10, 6, 8, 8, 8))[0]
        if way == "again" and self._keyed:
            operation, name, count = random.choice(self._keyed)
            self._append(operation, name, count, operation)
        elif way in ("append", "again"):
            operation, count = self._name(), random.choice((1, 1, 1, 2, 5, 40))
            key = operation if random.random() < 0.4 else None
            if key is not None:
                self._keyed.append((operation, name, count))
            self._append(operation, name, count, key)
        elif way == "create":
            operation = self._name()
            self._note(operation, name, way)
            self._waiting.append((operation, session_of(self._store, name).create()))
        elif way == "state":
            operation = self._name()
            self._note(operation, name, way)
            changes = {f"variable {random.randrange(9)}": operation}
            self._waiting.append((operation, session_of(self._store, name).update_state(changes)))
        elif way == "blob":
            operation = self._name()
            blob = self._store.tenant(name[0]).blobs.put(random.choice(CONTENTS))
            self._note(operation, name, "append", 1)
            ack = session_of(self._store, name).append(bodies_of(operation, 1)[0], blobs=[blob])
            self._waiting.append((operation, ack))
        elif way == "delete":
            operation = self._name()
            self._note(operation, name, way)
            self._waiting.append((operation, session_of(self._store, name).delete()))
        elif way == "erase":
            self._erase(name)
        elif way == "redact":
            self._redact(name)
        else:
            self._purge(name)

    def _name(self) -> str:
        self._count += 1
        return f"{self._slot}-{self._count:06d}."

    def _note(self, operation: str, name: Name, way: str, count: int = 0) -> None:
        self._notes.write(do=operation, name=name, way=way, count=count)

    def _append(self, operation: str, name: Name, count: int, key: str | None) -> None:
        self._note(operation, name, "append", count)
        ack = session_of(self._store, name).append_many(
            bodies_of(operation, count),
            ids=[f"{operation}#{place}" for place in range(count)] if key is not None else None,
            idempotency_key=key,
            wait=SETTLE_S,
        )
        self._waiting.append((operation, ack))

    def _erase(self, name: Name) -> None:
        operation = self._name()
        self._note(operation, name, "erase")
        try:
            receipt = session_of(self._store, name).erase(timeout=SETTLE_S)
        except SessionNotFoundError as error:
            self._notes.write(no=operation, text=str(error))
            return
        self._notes.write(
            ack=operation,
            number=receipt.number,
            first=receipt.event_count,
            last=receipt.event_count,
            position=receipt.position,
        )

    def _redact(self, name: Name) -> None:
        session = session_of(self._store, name)
        info = session.info()
        if info is None:
            return
        operation = self._name()
        first = self._random.randrange(info.event_count)
        last = min(first + self._random.choice((0, 3, 50)), info.event_count - 1)
        self._notes.write(do=operation, name=name, way="redact", count=first, last=last)
        try:
            receipt = session.redact(first, last)
        except (ConflictError, UsageError) as error:  # others were quicker
            self._notes.write(no=operation, text=str(error))
            return
        number, position = receipt.number, receipt.position or 0
        self._notes.write(ack=operation, number=number, first=first, last=last, position=position)

    def _purge(self, name: Name) -> None:
        session = session_of(self._store, name)
        info = session.info()
        if info is None:
            return
        operation = self._name()
        first = self._random.randint(1, info.event_count)
        self._note(operation, name, "purge", first)
        try:
            self._waiting.append((operation, session.purge(first)))
        except (ConflictError, TrimmedError, UsageError) as error:  # others were quicker
            self._notes.write(no=operation, text=str(error))

    def settle(self, outstanding: int = 0) -> None:
        """Wait until at most so many are open."""
        while len(self._waiting) > outstanding:
            operation, ack = self._waiting.popleft()
            try:
                ack.result(SETTLE_S)
            except (ConflictError, TrimmedError) as error:  # also: a content was erased meanwhile
                self._notes.write(no=operation, text=str(error))
                continue
            self._notes.write(
                ack=operation,
                number=ack.session_number,
                first=ack.first,
                last=ack.last,
                position=ack.position,
                already=ack.already,
            )


def churn(
    path: str,
    journal: str,
    slot: str,
    seed: int,
    frequency: int | None = None,
    depth: int = 6,
    pace_us: int = 0,
    count: int | None = None,
    watched: bool = False,
) -> None:
    """A writer process.

    Args:
        path: The store.
        journal: Where it keeps its journal.
        slot: Names the writer.
        seed: Makes the operations.
        frequency: Seal a session once it has so many loose events, whatever the store says.
        depth: At most so many open operations.
        pace_us: µs to do nothing after each.
        count: Operations to do, None for no end.
        watched: Another thread of it looks on meanwhile.
    """
    random = Random(f"churn {slot}/{seed}")
    bounds: Any = reclaim
    bounds.COMMIT_REMOVED_MAX = random.choice((2, 40, 1_024))
    with Store.open(path) as store:
        if frequency is not None:
            seal_eagerly(store, frequency)
        if watched:
            arguments = (path, f"{journal}.watched", slot, seed)
            threading.Thread(target=_watch_or_end, args=arguments, daemon=True).start()
        work = Churn(store, Journal(journal), slot, seed)
        done = 0
        while count is None or done < count:
            done += 1
            work.step()
            work.settle(random.randint(0, depth))
            if pace_us:
                time.sleep(pace_us / 1e6)
        work.settle()


def _watch_or_end(path: str, journal: str, slot: str, seed: int) -> None:
    """Watch for ever; what is wrong ends the process, so that it is noticed."""
    try:
        watch(path, journal, slot, seed, writable=True)
    except StoreClosedError:
        return  # the writer is done
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


class Watcher:
    """What one reader may see of sessions that come and go."""

    def __init__(self) -> None:
        self._numbers: dict[Name, int] = {}
        self._gone: set[int] = set()
        self._floors: dict[int, int] = defaultdict(int)  # by number: events below are void
        self._names: dict[int, Name] = {}
        self._redacted: set[tuple[int, int]] = set()  # numbers and sequences

    def take(self, event: Event) -> None:
        """An event of any way of reading."""
        number = event.session_number
        if event.kind in ("void", "tombstone"):
            if event.kind == "tombstone":
                self._gone.add(number)
            self._floors[number] = max(self._floors[number], event.sequence + 1)
            assert event.body is None, event
            return
        assert number not in self._gone, f"{event} of {number} came back"
        assert event.sequence >= self._floors[number], f"{event} of {number} came back"
        name = (event.tenant, event.session)
        assert self._names.setdefault(number, name) == name, f"{number} is {name} and another"
        if event.kind in CONTROLS or event.session in UNWATCHED:
            return
        if event.redacted:
            self._redacted.add((number, event.sequence))
            assert (event.body, event.metadata, event.blobs) == (None, None, ()), event
            return
        assert (number, event.sequence) not in self._redacted, f"what {event} said came back"
        body = event.body
        assert body == body_of(body["operation"], body["place"], body["count"]), event

    def newest(self, name: Name, number: int) -> None:
        """A session's number only rises."""
        assert number >= self._numbers.get(name, 0), f"{name} went back to {number}"
        self._numbers[name] = number

    def look_at_session(self, store: Store, name: Name, random: Random) -> None:
        """All events of one incarnation from the first on, unless it goes meanwhile."""
        session = session_of(store, name)
        events: list[Event] = []
        try:
            for event in session.events():
                assert not events or event.session_number == events[0].session_number, event
                assert not events or event.sequence == events[-1].sequence + 1, event
                events.append(event)
        except TrimmedError as error:
            assert events and error.first > events[-1].sequence
            return
        except SessionGoneError as error:
            assert events and error.expected == events[0].session_number
            now = error.current  # None while no session has the name
            assert now is None or (isinstance(now, int) and now > error.expected)
        for event in events:
            if (
                event.session_number not in self._gone
                and event.sequence >= self._floors[event.session_number]
            ):
                self.take(event)
        if events:
            self.newest(name, events[0].session_number)
            last = events[-1].body if events[-1].kind == "message" else None
            if last is not None and last["place"] + 1 < last["count"]:
                info = session.info()
                assert info is None or info.number > events[0].session_number, (
                    f"half an append, and {name} is still there: {events[-1]}"
                )
        for value in session.state.values():
            assert type(value) is str
        self._judge_run(session.history(random.randint(1, 60)), name)
        self._judge_run(session.history(), name)
        info = session.info()
        if info is not None:
            self.newest(name, info.number)
            assert (info.tenant, info.name) == name
            assert info.number not in self._gone, f"{info} came back"

    def _judge_run(self, bodies: list[Any], name: Name) -> None:
        """Bodies that came in one piece follow each other as they were appended."""
        before: Any = None
        for body in bodies:
            if body is None:  # redacted
                before = None
                continue
            assert body == body_of(body["operation"], body["place"], body["count"]), name
            if before is None:
                pass
            elif before["place"] + 1 < before["count"]:
                assert body["operation"] == before["operation"], f"{name}: {before}, {body}"
                assert body["place"] == before["place"] + 1, f"{name}: {before}, {body}"
            else:
                assert body["place"] == 0, f"{name}: {before}, {body}"
            before = body

    def look_at_order(self, store: Store, random: Random) -> None:
        """The global order: a gap only where nothing was asked for."""
        after = random.randrange(store.last_position + 1)
        position = after
        for event in store.read(after=after, voids=True):
            position += 1
            assert event.position == position, f"{event} where {position} is due"
            self.take(event)

    def look_at_list(self, store: Store) -> None:
        """A listing has each session once."""
        for tenant in ("", "acme"):
            infos = store.tenant(tenant).sessions(limit=1_000).sessions
            names = [info.name for info in infos]
            assert len(set(names)) == len(names), names
            for info in infos:
                assert info.tenant == tenant and info.name, info
                self.newest((tenant, info.name), info.number)


def watch(
    path: str,
    journal: str,
    slot: str,
    seed: int,
    count: int | None = None,
    *,
    writable: bool = False,
) -> None:
    """A reader process, open for long, so that its memory has met what is removed.

    Args:
        path: The store.
        journal: Where it says that it looked.
        slot: Its name.
        seed: Decides what it looks at.
        count: Looks to take, None for no end.
        writable: The store is open for writing in this process.
    """
    random = Random(f"watch {slot}/{seed}")
    notes = Journal(journal)
    watcher = Watcher()
    done = 0
    read_only = not writable and random.random() < 0.5
    with Store.open(path, create=False, read_only=read_only) as store:
        looks: list[Callable[[], None]] = [
            lambda: watcher.look_at_session(store, random.choice(SHARED), random),
            lambda: watcher.look_at_order(store, random),
            lambda: watcher.look_at_list(store),
        ]
        while count is None or done < count:
            done += 1
            random.choice(looks)()
            assert store.health()["ok"], store.health()
            notes.write(saw=store.last_position)


def attend(path: str, journal: str, slot: str, seed: int, count: int | None = None) -> None:
    """A reader process that subscribes to everything: each event once, in order, none too late.

    Args:
        path: The store.
        journal: Where it says what it saw.
        slot: Its name.
        seed: Decides where it begins.
        count: Events to see, None for no end.
    """
    random = Random(f"attend {slot}/{seed}")
    notes = Journal(journal)
    watcher = Watcher()
    sequences: dict[int, int] = defaultdict(lambda: -1)
    done = 0
    with Store.open(path, create=False, read_only=True) as store:
        after = position = random.randrange(store.last_position + 1)
        notes.write(saw=after)
        with store.subscribe(after=after) as subscription:
            for event in subscription:
                assert event.position > position, event
                position = event.position
                number = event.session_number
                assert event.sequence > sequences[number], event
                sequences[number] = event.sequence
                watcher.take(event)
                done += 1
                if not done % 16:
                    notes.write(saw=position)
                if done == count:
                    return


def remake(path: str, journal: str, slot: str, seed: int, count: int | None = None) -> None:
    """A process that rebuilds what is derived, and makes backups that it reads.

    Args:
        path: The store.
        journal: Where it says what it did.
        slot: Its name.
        seed: Decides what it does.
        count: Things to do, None for no end.
    """
    random = Random(f"remake {slot}/{seed}")
    notes = Journal(journal)
    bounds: Any = rebuild
    bounds.STEP_SESSIONS_MAX = 50
    done = 0
    with Store.open(path, create=False) as store:
        while count is None or done < count:
            done += 1
            if random.random() < 0.7:
                store.rebuild(lambda *_: notes.write(saw=0))
                continue
            backup = Path(f"{journal}.backup {done}")
            position = store.backup(backup).position
            with Store.open(backup, create=False, read_only=True) as copy:
                positions = [event.position for event in copy.read(voids=True)]
                assert positions == list(range(1, position + 1))
                report = copy.check()
                assert report.ok, report.findings
            assert independent.Reader(backup).last_position == position
            shutil.rmtree(backup)
            notes.write(saw=position)


def journal_of(folder: Path, slot: str, number: int) -> Path:
    """The journal of a slot's process."""
    return folder / f"{slot}.{number:05d}.journal"
