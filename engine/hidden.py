"""Hidden sessions: what belongs to a user or a whole tenant lies in sessions that nobody can name.

Their names are longer than any that a caller gives (``hiddennames``). In all else they are
sessions: they have events with positions, are exported, loaded, purged, erased and checked.

Invariants:
    1. ``Tenant.session`` gives none of them, ``Tenant.sessions`` lists none.
    2. A kind has one hidden session for each owner in a tenant; the tenant itself is the owner "".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.catalog import decode_cursor
from engine.hiddennames import hidden_name, split_hidden
from engine.session import Session
from eventlog.keys import is_derived, is_hidden

if TYPE_CHECKING:
    from engine.store import Tenant


def hidden_session(tenant: Tenant, kind: str, owner: str = "") -> Session:
    """A handle on a hidden session; no I/O."""
    return Session(tenant._store, tenant.name, hidden_name(kind, owner))


def any_session(tenant: Tenant, name: str) -> Session:
    """A handle on a session by the name that its events tell, hidden or not; no I/O.

    Raises:
        InvalidNameError: No session can have that name.
    """
    if not is_hidden(name):
        return tenant.session(name)
    return hidden_session(tenant, *split_hidden(name))


def list_names(tenant: Tenant, limit: int, cursor: str | None) -> tuple[list[str], str | None]:
    """The names of a page of sessions, also of hidden ones but for derived ones (``keys``)."""
    names: list[str] = []
    with tenant._store._log.views.listing(tenant.name, hidden=True) as listing:
        if listing is None:
            return names, None
        for position, number, state in listing.newest(decode_cursor(cursor)):
            facts = listing.facts(position, number, state)
            if facts is None or is_derived(facts.origin.name):
                continue
            listing.require(position, state)
            names.append(facts.origin.name)
            if len(names) == limit:
                return names, str(position)
    return names, None
