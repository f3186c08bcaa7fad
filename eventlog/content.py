"""Content: what an append says, apart from where and when it is stored, pure.

A retry is the same append when it says the same. Two bodies, and two sets of metadata, say the same
when they are equal type for type and bit for bit; the order of a dict's keys says nothing.

Invariants:
    1. What a record says does not depend on who encoded it, nor on what the store added to it.
    2. The content of events laid end to end can be taken apart in one way only, so that appends
       with equal fingerprints have equal events.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from eventlog.ack import Draft
from eventlog.body import canonical_bytes, decode_marks, encode_plain
from eventlog.record import HEAD, TAIL_KIND_BYTE, Extension, Flag, Record

_METADATA: Final = int(Extension.METADATA)
_METADATA_FIXES: Final = int(Extension.METADATA_FIXES)
_BODY_FIXES: Final = int(Extension.BODY_FIXES)
_PLAIN_MARKS: Final = tuple(
    int(mark)
    for mark in (
        Extension.ID,
        Extension.RUN_ID,
        Extension.TURN_ID,
        Extension.SPEECH_ID,
        Extension.REQUEST_ID,
        Extension.KIND_NAME,
        Extension.BLOBS,
    )
)
_MARKS: Final = tuple(sorted((*_PLAIN_MARKS, _METADATA)))
_TOLD_BYTES: Final = TAIL_KIND_BYTE + 1  # of a tail, what the caller said
_OFFSET: Final = 16  # in a tail
_TOKENS: Final = 28  # likewise, after offset and branch
_NO_MARKS: Final = b"\xa0"
_ONE_MARK: Final = tuple(bytes([0xA1, mark]) for mark in _PLAIN_MARKS)


def fingerprint_of(drafts: Sequence[Draft]) -> bytes:
    """BLAKE2b-256 of an append's content (FORMAT.md, "Digests")."""
    if len(drafts) == 1:
        return blake2b(_content_of_draft(drafts[0]), digest_size=32).digest()
    digest = blake2b(digest_size=32)
    for draft in drafts:
        digest.update(_content_of_draft(draft))
    return digest.digest()


def same_content(stored: Record, draft: Draft) -> bool:
    """True when a stored event says what a draft says; of a redacted one nobody knows."""
    if stored.flags & Flag.REDACTED:
        return False
    tail = stored.head[HEAD.size :]
    if stored.branch:  # which the writer chose
        tail = tail[:_OFFSET] + bytes(_TOKENS - _OFFSET) + tail[_TOKENS:]
    said = _content(tail, stored.extension, stored.payload)
    return said == _content_of_draft(draft)


def _content_of_draft(draft: Draft) -> bytes:
    extension = draft.extension
    if not extension:
        extension = _NO_MARKS
    elif not extension.startswith(_ONE_MARK):
        return _content(draft.tail, extension, draft.body, is_ours=True)
    return draft.tail[:_TOLD_BYTES] + extension + canonical_bytes(draft.body, is_ours=True)


def _content(tail: bytes, extension: bytes, body: bytes, *, is_ours: bool = False) -> bytes:
    """The content of an event; ``is_ours`` when its parts were encoded here."""
    marks = decode_marks(extension, where="log") if extension else {}
    told = {mark: marks[mark] for mark in _MARKS if mark in marks}
    metadata = told.get(_METADATA)
    if metadata is not None:
        told[_METADATA] = canonical_bytes(metadata, marks.get(_METADATA_FIXES), is_ours=is_ours)
    said = canonical_bytes(body, marks.get(_BODY_FIXES), is_ours=is_ours)
    return tail[:_TOLD_BYTES] + encode_plain(told) + said
