"""Hidden sessions: what belongs to a user or a whole tenant lies in sessions that nobody can name.

A name that a caller gives has at most ``NAME_BYTES_MAX`` bytes. That of a hidden session is longer:
``NAME_BYTES_MAX + 1`` dots, what it holds, a colon, and its owner. So no two of them meet, none
meets a caller's, and a listing tells them by their length. In all else they are sessions: they have
events with positions, are exported, loaded, purged, erased and checked.

Invariants:
    1. ``Tenant.session`` gives none of them, ``Tenant.sessions`` lists none.
    2. A kind has one hidden session for each owner in a tenant; the tenant itself is the owner "".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from engine.catalog import decode_cursor
from engine.session import Session
from eventlog.errors import CorruptionError, InvalidNameError
from eventlog.keys import U64_MAX, is_derived, is_hidden, name_bytes
from eventlog.limits import NAME_BYTES_MAX

if TYPE_CHECKING:
    from engine.store import Tenant
    from eventlog.log import Log

DOTS: Final = "." * (NAME_BYTES_MAX + 1)
_NAME: Final = re.compile(rf"\.{{{len(DOTS)}}}([a-z_]{{1,32}}):(.*)", re.DOTALL)


def hidden_name(kind: str, owner: str = "") -> str:
    """The name of a hidden session.

    Args:
        kind: What it holds: 1 to 32 of ``a`` to ``z`` and ``_``.
        owner: Whose it is; empty for the tenant's own.
    """
    name = f"{DOTS}{kind}:{owner}"
    split_hidden(name)
    return name


def split_hidden(name: str) -> tuple[str, str]:
    """Kind and owner of a hidden session.

    Raises:
        InvalidNameError: It is no such name.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidNameError("the name is longer than any but a hidden session's, and is none")
    kind, owner = found.groups()
    if owner:
        name_bytes(owner, "owner")
    return kind, owner


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


def shows_any(log: Log, tenant: str) -> bool:
    """Whether a tenant has a session that is none of the store's own, or has none at all."""
    shows = True
    with log.views.listing(tenant, hidden=True) as listing:
        if listing is None:
            return True
        for position, number, state in listing.newest(U64_MAX):
            try:
                facts = listing.facts(position, number, state)
            except CorruptionError:
                return True  # whoever reads it is told
            if facts is not None:
                if not is_derived(facts.origin.name):
                    return True
                shows = False
    return shows


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
