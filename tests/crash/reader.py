"""Reader processes: what they see only grows, and what they saw never changes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import defaultdict
from random import Random
from typing import Any

from engine import Store
from engine.events import Event
from tests.crash.journal import Journal
from tests.crash.workload import Name, body_of, session_of, write


class Seen:
    """What one reader has seen of the store, and every look at it again."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self.checksums: list[bytes] = []
        self.sessions: dict[Name, list[bytes]] = defaultdict(list)
        self.counts: dict[Name, int] = {}
        self._last: Event | None = None

    def take(self, event: Event) -> None:
        """The next event in position order."""
        assert event.position == len(self.checksums) + 1, f"not dense: {event}"
        checksum = event.stored()[:8]
        self.checksums.append(checksum)
        session = self.sessions[(event.tenant, event.session)]
        assert event.sequence == len(session), f"not dense: {event}"
        session.append(checksum)
        body = event.body
        if body is not None:
            assert body == body_of(body["operation"], body["place"], body["count"]), event
        before = None if self._last is None else self._last.body
        if body is not None and body["place"] > 0:
            assert before is not None and before["operation"] == body["operation"], event
            assert before["place"] + 1 == body["place"], event
        self._last = event

    def note(self) -> None:
        """Tell the journal of the newest event, which must still be there after any kill."""
        if self.checksums and self._journal is not None:
            self._journal.write(saw=len(self.checksums), sum=self.checksums[-1].hex())

    def look_ahead(self, store: Store) -> None:
        """Read on from what is known to the end; the end is the end of an append."""
        last = store.last_position
        assert last >= len(self.checksums), f"the last position fell to {last}"
        for event in store.read(after=len(self.checksums)):
            self.take(event)
        assert len(self.checksums) >= last
        body = None if self._last is None else self._last.body
        assert body is None or body["place"] + 1 == body["count"], f"half an append: {self._last}"
        self.note()

    def look(self, store: Store, random: Random) -> None:
        """All that is new, and something of what is known."""
        self.look_ahead(store)
        random.choice((self.look_back, self.look_at_session, self.look_at_list))(store, random)
        assert store.health()["ok"], store.health()

    def look_back(self, store: Store, random: Random) -> None:
        """Some of what is known once more, by position."""
        after = random.randrange(len(self.checksums) + 1)
        for event in store.read(after=after, limit=300):
            if event.position <= len(self.checksums):
                assert event.stored()[:8] == self.checksums[event.position - 1], event

    def look_at_session(self, store: Store, random: Random) -> None:
        """One session through each way of reading it."""
        if not self.sessions:
            return
        name = random.choice(sorted(self.sessions))
        known = self.sessions[name]
        session = session_of(store, name)
        last = session.history(random.randint(1, 40))
        info = session.info()
        assert info is not None, f"{name} is gone"
        self._count(name, info.event_count)
        assert len(known) <= info.event_count
        assert info.event_count - 1 == info.last_sequence
        first = random.choice((0, random.randrange(len(known))))
        sequence = first
        messages: list[Any] = []
        for event in session.events(first):
            assert event.sequence == sequence, event
            if sequence < len(known):
                assert event.stored()[:8] == known[sequence], event
            if event.kind == "message":
                messages.append(event.body)
            sequence += 1
        assert sequence >= info.event_count
        if first == 0 and last:
            # Read before, so it is a run of what is there now.
            stop = messages.index(last[-1]) + 1
            assert messages[max(0, stop - len(last)) : stop] == last, name

    def look_at_list(self, store: Store, random: Random) -> None:
        """The sessions of a tenant: none goes away, none shrinks."""
        tenants = sorted({name[0] for name in self.sessions})
        if not tenants:
            return
        tenant = random.choice(tenants)
        counts = {}
        for info in store.tenant(tenant).sessions(limit=10_000).sessions:
            assert info.tenant == tenant
            counts[info.name] = info.event_count
        for (owner, session), known in self.sessions.items():
            if owner == tenant:
                assert counts[session] >= len(known), f"{session} shrank to {counts[session]}"
        for session, count in counts.items():
            self._count((tenant, session), count)

    def _count(self, name: Name, count: int) -> None:
        before = self.counts.get(name, 0)
        assert count >= before, f"{name} shrank from {before} to {count}"
        self.counts[name] = count


def read(path: str, journal: str, seed: int, count: int | None = None) -> None:
    """A reader process: look at everything again and again, opening the store anew at times.

    Args:
        path: The store.
        journal: Where it keeps its journal.
        seed: Decides what it looks at.
        count: Looks to take, None for no end.
    """
    random = Random(f"reader {seed}")
    seen = Seen(Journal(journal))
    done = 0
    while count is None or done < count:
        with Store.open(path, create=False, read_only=random.random() < 0.5) as store:
            for _ in range(random.randint(20, 200)):
                done += 1
                seen.look(store, random)


def follow(path: str, journal: str, seed: int, count: int | None = None) -> None:
    """A reader process that subscribes to everything from the first position on.

    Args:
        path: The store.
        journal: Where it keeps its journal.
        seed: Decides how it opens the store.
        count: Events to see, None for no end.
    """
    random = Random(f"subscriber {seed}")
    seen = Seen(Journal(journal))
    with (
        Store.open(path, create=False, read_only=random.random() < 0.5) as store,
        store.subscribe(after=0) as subscription,
    ):
        for event in subscription:
            seen.take(event)
            if event.position % 16 == 0:
                seen.note()
            if event.position == count:
                break


def write_and_look(path: str, seed: int, **options: Any) -> None:
    """A writer process that also reads: its own commits and those of others, beside its writer.

    Args:
        path: The store.
        seed: Decides what it appends and looks at.
        options: As for ``write``.
    """

    def look() -> None:
        random = Random(f"thread {seed}")
        seen = Seen(None)
        try:
            with Store.open(path, create=False) as store:
                while True:
                    seen.look(store, random)
        except BaseException:  # noqa: BLE001  ends the process, so that it is noticed
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    with Store.open(path):
        threading.Thread(target=look, daemon=True).start()
        write(path, seed=seed, **options)


def read_for_ever(path: str) -> None:
    """Begin a read transaction that does not end."""
    with Store.open(path, read_only=True) as store, store._log.views.transaction():
        signal.pause()
