"""Every session of a tenant, as far as rules go over them: what it is, and how much; no payload.

Invariants:
    1. All sessions are met that were there when it began, also those that had an event meanwhile:
       what moved to the front of the listing behind the cursor is looked for there once more.
    2. Each is told as it was when it was met; who acts on that names what it may not differ in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine.catalog import given_of
from engine.events import opening_of
from engine.facts import Facts
from engine.pausing import Pause
from engine.variables import subkey_of
from eventlog.errors import CorruptionError
from eventlog.index import Name
from eventlog.keys import U64_MAX, is_hidden
from eventlog.listing import Listing
from eventlog.log import Log
from eventlog.present import PresentRows

PAGE_SESSIONS: Final = 512  # read in one transaction
_USER_ROW: Final = subkey_of("user_id")


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A session as it was met.

    Attributes:
        name: Tenant and session name.
        number: Number of the incarnation.
        facts: What it is.
        opening_user: The user that was given at creation.
        had_owners: Whether somebody said since whose it is: it may have been others' between.
        first: Its first sequence that was not purged.
        event_count: Its next sequence.
        position: Position of its last event.
        updated_us: Recorded time of that event.
        damage: What is wrong with its facts; those that can be read are told.
    """

    name: Name
    number: int
    facts: Facts
    opening_user: str | None
    had_owners: bool
    first: int
    event_count: int
    position: int
    updated_us: int
    damage: CorruptionError | None = None

    @property
    def is_hidden(self) -> bool:
        """Whether it is one that no caller can name."""
        return is_hidden(self.name[1])


def survey(
    log: Log, present: PresentRows, tenant: str, pause: Pause, *, hidden: bool = False
) -> Iterator[Surveyed]:
    """The sessions of a tenant, newest activity first.

    Args:
        log: The log.
        present: The present rows of facts.
        tenant: Its name.
        pause: Called between two sessions.
        hidden: Also those that no caller can name.
    """
    met: set[int] = set()
    reached = 0
    while True:
        before, target = U64_MAX, None
        pages = 0
        is_through = False
        while not is_through:
            with log.views.listing(tenant, hidden=hidden) as listing:
                if listing is None:
                    return
                if target is None:
                    target = listing.record.last_position
                page, before = _page(listing, present, before, reached, pause)
            pages += 1
            is_through = len(page) < PAGE_SESSIONS
            for each in page:
                if each.number not in met:
                    met.add(each.number)
                    yield each
        if pages == 1:  # all that was left was seen in one transaction
            return
        assert target is not None
        reached = target


def _page(
    listing: Listing, present: PresentRows, before: int, after: int, pause: Pause
) -> tuple[list[Surveyed], int]:
    found: list[Surveyed] = []
    for position, number, state in listing.newest(before, after):
        before = position
        pause()
        facts = listing.facts(position, number, state, present)
        if facts is None:
            continue
        listing.require(position, state)
        origin = facts.origin
        faults: list[CorruptionError] = []
        found.append(
            Surveyed(
                (origin.tenant, origin.name),
                number,
                given_of(facts, faults).facts,
                opening_of(facts.row, number).get("user_id"),
                _USER_ROW in facts.rows,
                facts.row.first,
                facts.event_count,
                position,
                facts.last_recorded_us,
                faults[0] if faults else None,
            )
        )
        if len(found) == PAGE_SESSIONS:
            break
    return found, before
