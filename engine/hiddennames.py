"""Names of hidden sessions: what belongs to a user or tenant lies in sessions nobody can name.

A name that a caller gives has at most ``NAME_BYTES_MAX`` bytes. That of a hidden session is longer:
``NAME_BYTES_MAX + 1`` dots, what it holds, a colon, and its owner. So no two of them meet, none
meets a caller's, and a listing tells them by their length. Those that others can be made of again
are named in another way (``keys.derived_name``). Pure.
"""

from __future__ import annotations

import re
from typing import Final

from eventlog.errors import InvalidNameError
from eventlog.keys import is_derived, is_hidden, name_bytes
from eventlog.limits import NAME_BYTES_MAX

DOTS: Final = "." * (NAME_BYTES_MAX + 1)
USER_DOCUMENTS: Final = "user_documents"
TENANT_DOCUMENTS: Final = "tenant_documents"
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


def session_words(name: str) -> str:
    """What a session is, in words: by its name, or what a hidden one holds."""
    if not is_hidden(name):
        return f"session {name!r}"
    if is_derived(name):
        return "index of aliases" if ".aliases." in name else "progress of a projection"
    try:
        kind, owner = split_hidden(name)
    except InvalidNameError:  # of a damaged row
        return "a session that nobody can name"
    what = "documents" if kind in (USER_DOCUMENTS, TENANT_DOCUMENTS) else kind.replace("_", " ")
    return f"{what} of user {owner!r}" if owner else f"{what} of the tenant"
