"""Keyed digests of what callers give (FORMAT.md, "Digests"): a digest alone confirms no guess."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from eventlog.record import DIGEST_BYTES


def key_digest(secret: bytes, key: str) -> bytes:
    """Keyed digest of an idempotency key."""
    return _digest(secret, b"turnlog-key", key.encode())


def content_digest(secret: bytes, content: bytes) -> bytes:
    """Keyed digest of an append's canonical content."""
    return _digest(secret, b"turnlog-body", content)


def id_digest(secret: bytes, caller_id: str) -> bytes:
    """Keyed digest of a caller's id."""
    return _digest(secret, b"turnlog-id", caller_id.encode())


@lru_cache(maxsize=4096)
def _keyed(secret: bytes, person: bytes) -> blake2b:
    """The hash after its key block, which a copy need not compute again."""
    return blake2b(digest_size=DIGEST_BYTES, key=secret, person=person)


def _digest(secret: bytes, person: bytes, data: bytes) -> bytes:
    state = _keyed(secret, person).copy()
    state.update(data)
    return state.digest()
