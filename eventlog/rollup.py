"""Logical roll-ups: when one falls due, and what the view of a session keeps of it; pure.

A roll-up falls due with the ``snapshot_frequency``-th message since the last one, looked at once an
append is whole, or where an event asks for it: one of its kind, or the copy of an event after which
the original rolled up. It moves nothing: sealing is another matter (``sealing``).

Invariants:
    1. The writer that places an append decides, once, and says so in the append's last record, or
       in that of the event that asks: the flag ``ROLLS_UP`` and, when the view has lost messages,
       ``KEPT``, how many it still shows. Nobody decides again, so no option that changes later
       changes what was.
    2. What a view hides it never shows again: ``trimmed`` only grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from eventlog.body import decode_body, encode_plain
from eventlog.errors import CorruptionError
from eventlog.keys import U64_MAX
from eventlog.limits import MAX_MESSAGES_MAX, SNAPSHOT_FREQUENCY_MAX
from eventlog.record import FLAGS_BYTE, HEADER_BYTES, Extension, Flag, decode_extension

OPTION_NAMES: Final = ("snapshot_frequency", "max_messages")
ROLLS_UP: Final = int(Flag.ROLLS_UP)
_KEPT: Final = int(Extension.KEPT)
_OPTION_BYTES: Final = tuple(name.encode() for name in OPTION_NAMES)


@dataclass(frozen=True, slots=True)
class RollUpOptions:
    """When to roll up and how many messages a view keeps then; None keeps all."""

    snapshot_frequency: int
    max_messages: int | None = None

    def of_session(self, opening: Any) -> RollUpOptions:
        """These options, but for those that a session was created with."""
        own = own_options(opening)
        if not own or self is NEVER:
            return self
        return RollUpOptions(
            own.get("snapshot_frequency", self.snapshot_frequency),
            own.get("max_messages", self.max_messages),
        )


NEVER: Final = RollUpOptions(U64_MAX)  # of a store of version 1, whose records cannot say it


def own_options(opening: Any) -> Mapping[str, int]:
    """The options among the stored facts that a session was created with.

    Values that cannot be are passed over: ``check`` reports them, and appends go on.
    """
    if type(opening) is not list or not opening or type(opening[0]) is not bytes:
        return {}
    if not any([name in opening[0] for name in _OPTION_BYTES]):
        return {}  # nearly always, and without decoding
    try:
        facts = decode_body(opening[0], opening[1] if len(opening) > 1 else None)
    except CorruptionError:
        return {}
    if type(facts) is not dict:
        return {}
    limits = (SNAPSHOT_FREQUENCY_MAX, MAX_MESSAGES_MAX)
    return {
        name: facts[name]
        for name, limit in zip(OPTION_NAMES, limits, strict=True)
        if type(facts.get(name)) is int and 1 <= facts[name] <= limit
    }


def kept_entry(kept: int) -> bytes:
    """The encoded entry of an extension map that says how many messages a view still shows."""
    return encode_plain(_KEPT) + encode_plain(kept)


def kept_of(value: bytes, where: str) -> int | None:
    """How many messages a view shows after the roll-up of this stored record; None for all.

    Raises:
        CorruptionError: The record's extension is damaged.
    """
    stop = HEADER_BYTES + int.from_bytes(value[HEADER_BYTES - 4 : HEADER_BYTES], "little")
    if stop > len(value):
        raise CorruptionError("record is shorter than its extension", where=where)
    flags = value[FLAGS_BYTE] | value[FLAGS_BYTE + 1] << 8
    return kept_in(value[HEADER_BYTES:stop], flags, where)


def kept_in(extension: bytes, flags: int, where: object) -> int | None:
    """As ``kept_of``, of an extension and its header's flags."""
    if not extension:
        return None
    kept: int | None = decode_extension(extension, flags, where).get(_KEPT)
    return kept
