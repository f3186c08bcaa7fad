"""Keys: fixed-width, order-preserving, pure.

Invariants:
    1. A key is one or two unsigned 64-bit big-endian numbers, or a 16-byte digest, or both.
    2. Byte order of ordered keys is numeric order; no user string is part of one.
    3. A name's digest is taken over a length-safe encoding, so no two names can meet by splicing.
    4. A name above the limit is a hidden session's: whatever takes names from callers refuses it.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

from eventlog.errors import InvalidNameError
from eventlog.limits import NAME_BYTES_MAX

U64 = Struct(">Q")
PAIR = Struct(">QQ")
U64_MAX = 2**64 - 1


def name_bytes(name: object, what: str) -> bytes:
    """Check a tenant's, session's or event's name and give its UTF-8 bytes.

    Raises:
        InvalidNameError: Not a str, empty, over 512 bytes, or holding a lone surrogate.
    """
    if type(name) is not str:
        raise InvalidNameError(f"{what} must be a str, not {type(name).__name__}")
    if len(name) > NAME_BYTES_MAX:  # looked at first, so that nothing huge is copied
        unit = "UTF-8 bytes" if name.isascii() else "characters"
        raise InvalidNameError(
            f"{what} has {len(name)} {unit}; allowed are 1 to {NAME_BYTES_MAX} UTF-8 bytes"
        )
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidNameError(f"{what} {name!a} holds a lone surrogate") from error
    if not 1 <= len(encoded) <= NAME_BYTES_MAX:
        raise InvalidNameError(
            f"{what} has {len(encoded)} UTF-8 bytes; allowed are 1 to {NAME_BYTES_MAX}"
        )
    return encoded


def derived_name(purpose: str) -> str:
    """The name of a hidden session that others can be made of again; no caller can give it."""
    name = f"{_DERIVED}{purpose}"
    return name + "." * (NAME_BYTES_MAX + 1 - len(name))


def is_derived(name: str) -> bool:
    """Whether a session's name is that of one which others can be made of again."""
    return name.startswith(_DERIVED) and len(name) > NAME_BYTES_MAX


def is_hidden(name: str) -> bool:
    """Whether a session's name is one that no caller can have given."""
    return len(name) > NAME_BYTES_MAX


_DERIVED = "turnlog."


def name_key(tenant: str, session: str) -> bytes:
    """The 16-byte key of a session's name, or of the tenant itself when ``session`` is empty."""
    owner = tenant.encode()
    return blake2b(
        U64.pack(len(owner)) + owner + session.encode(), digest_size=16, person=b"turnlog-name"
    ).digest()
