"""The oracle of sessions that come and go: what must hold, judged by journals alone.

R1   every acknowledged append of a live incarnation is there, equal, at its place
R2   nothing of a removed incarnation can be read; its positions are void
R3   positions and sequences are dense; numbers are never used again
R4   an append is there whole or not at all, and in one incarnation
R5   an incarnation is gone only if somebody asked for it, and whoever was told so was right
R6   of an erased incarnation no live record holds anything
R8   what was redacted says nothing, and nobody but who was asked to redacted it
R7   the store's own check finds nothing
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final, NoReturn

from engine import Store
from engine.events import Event
from eventlog.keys import U64
from eventlog.record import CHECKSUM_BYTES, KIND_BYTE, TOMBSTONE, VOID
from eventlog.rows import KeyedResult
from tests.crash.journal import JournalReader
from tests.crash.removals import CONTENTS, CONTROLS, UNWATCHED, bodies_of
from tests.crash.upkeep import require_no_left_over
from tests.crash.workload import Name, session_of
from tests.format import independent

U64_LITTLE: Final = Struct("<Q")


@dataclass(slots=True)
class Asked:
    """An operation that was submitted.

    ``count`` of a purge is the first sequence to stay, of a redaction the first to be redacted.
    """

    name: Name
    way: str
    count: int
    last: int = 0
    told: list[Told] = field(default_factory=list)
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """What an ack said."""

    number: int
    first: int
    last: int
    position: int


@dataclass(slots=True)
class Incarnation:
    """What the log holds of one session number."""

    events: list[Event] = field(default_factory=list)

    @property
    def is_gone(self) -> bool:
        """Whether it ends with a tombstone."""
        return self.events[-1].kind == "tombstone"

    @property
    def first(self) -> int:
        """The first sequence that is not void."""
        return sum([event.kind == "void" for event in self.events])

    def kept(self) -> list[Event]:
        """What can be read of it."""
        return self.events[self.first :]


class Incarnations:
    """Judges one store when nobody has it open."""

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._readers: dict[Path, JournalReader] = {}
        self.asked: dict[str, Asked] = {}
        self.events = 0

    def listen(self, journal: Path) -> None:
        """Believe this journal too."""
        self._readers[journal] = JournalReader(journal)

    def _absorb(self) -> None:
        for reader in self._readers.values():
            for line in reader.read():
                if "do" in line:
                    tenant, session = line["name"]
                    self.asked.setdefault(
                        line["do"],
                        Asked((tenant, session), line["way"], line["count"], line.get("last", 0)),
                    )
                elif "ack" in line:
                    told = Told(line["number"], line["first"], line["last"], line["position"])
                    self.asked[line["ack"]].told.append(told)
                elif "no" in line:
                    self.asked[line["no"]].is_refused = True

    def audit(self, path: Path, *, thorough: bool) -> None:
        """Judge everything.

        Args:
            path: The store.
            thorough: Also let the store finish what is left to remove, and look for its bytes.
        """
        self._absorb()
        with Store.open(path, create=False, read_only=not thorough, verify=True) as store:
            every = list(store.read(voids=True))
            self.events = len(every)
            self._hold(
                [event.position for event in every] == list(range(1, store.last_position + 1)),
                "R3: positions have gaps",
            )
            found = self._sort(every)
            self._judge_live(store, found)
            self._judge_told(every, found)
            report = store.check()
            self._hold(report.ok, f"R7: check finds {report.findings}")
            if thorough:
                store.session(UNWATCHED[1]).append({"role": "user"}).result(15)
                store.flush(15)
                self._judge_removed(store)
        self._hold(independent.Reader(path).last_position >= self.events, "R1: positions are lost")
        if thorough:
            with Store.open(path, create=False) as store:
                store.session(UNWATCHED[1]).delete().result(15)
                report = store.check()
                self._hold(report.ok, f"R7: check finds {report.findings}")
            require_no_left_over(path)

    def _sort(self, every: list[Event]) -> dict[int, Incarnation]:
        """Events by incarnation."""
        found: dict[int, Incarnation] = defaultdict(Incarnation)
        for event in every:
            number = event.session_number
            if number not in found:
                self._hold(number == len(found) + 1, f"R3: {number} is not the next number")
            incarnation = found[number]
            self._hold(
                event.sequence == len(incarnation.events),
                f"R3: {event} of {number} follows {len(incarnation.events)} events",
            )
            incarnation.events.append(event)
        for number, incarnation in found.items():
            kinds = [event.kind for event in incarnation.events]
            if incarnation.is_gone:
                self._hold(set(kinds[:-1]) <= {"void"}, f"R2: {number} is gone and holds {kinds}")
                self._hold(
                    all([event.body is None for event in incarnation.events]),
                    f"R2: bodies of {number}, which is gone, can be read",
                )
            else:
                kept = kinds[incarnation.first :]
                self._hold(
                    "void" not in kept
                    and "tombstone" not in kept
                    and (len(kept) == len(kinds) or "base" in kept),
                    f"R2: {number} is not gone and holds {kinds}",
                )
        return found

    def _judge_live(self, store: Store, found: dict[int, Incarnation]) -> None:
        """What can be read of each session is one incarnation's, and whole."""
        live: dict[Name, int] = {}
        for number, incarnation in found.items():
            if incarnation.is_gone:
                continue
            names = {(event.tenant, event.session) for event in incarnation.kept()}
            self._hold(len(names) == 1, f"R4: {number} is {names}")
            name = names.pop()
            self._hold(name not in live, f"R3: {name} is {live.get(name)} and {number}")
            live[name] = number
            if name[1] not in UNWATCHED:
                self._judge_appends(name, number, incarnation)
        asked = {asked.name for asked in self.asked.values()}
        for name in asked:
            session = session_of(store, name)
            info = session.info()
            self._hold(
                (None if info is None else info.number) == live.get(name),
                f"R2: {name} is {info}, not {live.get(name)}",
            )
            incarnation_or_none = found[live[name]] if name in live else None
            events = [] if incarnation_or_none is None else incarnation_or_none.kept()
            self._hold(list(session.events()) == events, f"R1: events of {name} differ")
            blobs = store.tenant(name[0]).blobs
            contents = [blobs.read(blob) for event in events for blob in blobs.of(event)]
            self._hold(all([each in CONTENTS for each in contents]), f"R1: contents of {name}")
            bodies = [event.body for event in events if event.kind == "message"]
            self._hold(session.history() == bodies, f"R1: the history of {name} differs")
            self._hold(session.history(9) == bodies[-9:], f"R1: the last of {name} differ")
            if info is not None:
                first = events[0].sequence
                self._hold(
                    (info.event_count, info.last_position)
                    == (events[-1].sequence + 1, events[-1].position)
                    and len(bodies) <= info.message_count <= len(bodies) + first
                    and (first > 0 or info.message_count == len(bodies)),
                    f"R1: {info} of {len(events)} events from {first} on",
                )
                self._judge_floor(name, first)
        for tenant in ("", "acme"):
            listed = [
                (tenant, info.name) for info in store.tenant(tenant).sessions(limit=1_000).sessions
            ]
            wanted = [name for name in live if name[0] == tenant]
            wanted.sort(key=lambda name: -found[live[name]].events[-1].position)
            self._hold(listed == wanted, f"R2: {tenant!r} lists {listed}, not {wanted}")

    def _judge_appends(self, name: Name, number: int, incarnation: Incarnation) -> None:
        """Its events are appends to it, each whole and once, but for what was redacted of them."""
        placed = {
            event.sequence: event for event in incarnation.kept() if event.kind not in CONTROLS
        }
        seen: dict[str, int] = {}
        for sequence, event in placed.items():
            if event.redacted:
                self._judge_redacted(name, event)
                continue
            operation, count = event.body["operation"], event.body["count"]
            start = sequence - event.body["place"]
            asked = self.asked.get(operation)
            self._hold(
                asked is not None and asked.name == name and asked.count == count,
                f"R4: {event} of {operation} belongs to {asked}, not to {name}",
            )
            self._hold(
                seen.setdefault(operation, start) == start, f"R4: {operation} is in {number} twice"
            )
            self._hold(
                event.body == bodies_of(operation, count)[sequence - start],
                f"R4: {event} of {operation} is another",
            )
        for operation, start in seen.items():  # the front of one may have been purged
            own = range(max(start, incarnation.first), start + self.asked[operation].count)
            self._hold(
                all(
                    [
                        each in placed
                        and (placed[each].redacted or placed[each].body["operation"] == operation)
                        for each in own
                    ]
                ),
                f"R4: {operation} in {number} is not whole",
            )

    def _judge_redacted(self, name: Name, event: Event) -> None:
        """It says nothing, and somebody asked for that."""
        said = (event.body, event.metadata, event.blobs)
        self._hold(said == (None, None, ()), f"R8: {event} was redacted and says {said}")
        asked = [each for each in self.asked.values() if (each.name, each.way) == (name, "redact")]
        self._hold(
            any([each.count <= event.sequence <= each.last for each in asked]),
            f"R8: nobody redacted {event} of {name}",
        )

    def _judge_floor(self, name: Name, first: int) -> None:
        """Nothing was purged but what somebody asked for."""
        asked = [each.count for each in self.asked.values() if each.name == name]
        self._hold(first == 0 or first in asked, f"R5: nobody purged {name} below {first}")

    def _judge_told(self, every: list[Event], found: dict[int, Incarnation]) -> None:
        """What was acknowledged is so, or was removed since by somebody who said so."""
        removers: dict[Name, list[Asked]] = defaultdict(list)
        for asked in self.asked.values():
            if asked.way in ("delete", "erase"):
                removers[asked.name].append(asked)
        for operation, asked in self.asked.items():
            for told in asked.told:
                if asked.way == "redact":
                    events = found[told.number].events[told.first : told.last + 1]
                    self._hold(
                        all([each.redacted or each.kind in CONTROLS for each in events]),
                        f"R8: {operation}, told {told}, left {events}",
                    )
                    continue
                event = every[told.position - 1]
                self._hold(
                    (event.session_number, event.sequence) == (told.number, told.last)
                    or asked.way == "create",
                    f"R1: {operation}, told {told}, is at {event}",
                )
                incarnation = found[told.number]
                if asked.way in ("delete", "erase"):
                    self._hold(
                        incarnation.is_gone and event.kind == "tombstone",
                        f"R5: {operation}, told {told}, left {event}",
                    )
                elif incarnation.is_gone:
                    self._hold(
                        any(
                            [
                                not each.is_refused
                                and all([by.number == told.number for by in each.told])
                                for each in removers[asked.name]
                            ]
                        ),
                        f"R5: nobody removed {told.number}, which holds {operation}",
                    )
                elif asked.way == "append":
                    first = max(told.first, incarnation.first)
                    events = incarnation.events[first : told.last + 1]
                    wanted = bodies_of(operation, asked.count)[first - told.first :]
                    self._hold(
                        all(
                            [
                                event.redacted or event.body == body
                                for event, body in zip(events, wanted, strict=True)
                            ]
                        ),
                        f"R1: {operation}, told {told}, holds {events}",
                    )
                elif asked.way == "purge":
                    self._hold(
                        incarnation.first >= asked.count and event.kind in ("base", "void"),
                        f"R5: {operation}, told {told}, left {event} and {incarnation.first}",
                    )

    def _judge_removed(self, store: Store) -> None:
        """Nothing is left to be removed, and of what was erased no live record has anything."""
        gone: set[int] = set()
        erased: set[int] = set()
        for asked in self.asked.values():
            if asked.way in ("delete", "erase"):
                gone.update([told.number for told in asked.told])
            if asked.way == "erase":
                erased.update([told.number for told in asked.told])
        with store._log.views.transaction() as tables:
            tables.commit_record()  # it says which database has which role
            left = [U64.unpack(key)[0] for key, _ in tables.rows("removal")]
            self._hold(not left, f"R6: {left} are still to be removed")
            for name in tables.tables:
                for key, value in tables.rows(name) if name.startswith("log.") else ():
                    number = U64_LITTLE.unpack_from(value, CHECKSUM_BYTES)[0]
                    self._hold(
                        number not in erased or value[KIND_BYTE] in (VOID, TOMBSTONE),
                        f"R6: {number} was erased, and {U64.unpack(key)[0]} holds {value!r}",
                    )
            for number in gone:
                prefix = U64.pack(number)
                keys = [
                    (key.hex(), KeyedResult.decode(key, value))
                    for key, value in tables.rows("key", prefix)
                ]
                self._hold(not keys, f"R6: {number}, which is gone, has keys {keys}")
                self._hold(
                    len(list(tables.rows("segment", prefix))) <= 1, f"R6: {number} has segments"
                )

    def _hold(self, true: bool, message: str) -> None:
        if not true:
            self._fail(message)

    def _fail(self, message: str) -> NoReturn:
        raise AssertionError(f"{message} [{self._hint}]")
