"""What a load may bring: values that other calls read, checked before the store takes them.

What the calls of a session write is right by how it is made; a line of an export may say anything.
"""

from __future__ import annotations

from typing import Any

from engine.facts import OWNERS, check_facts
from engine.kinds import kind_code
from engine.spaces import Space
from engine.usagebody import check_record
from engine.variables import appended_key, check_change, decode_variables
from eventlog.arguments import whole
from eventlog.errors import CorruptionError, InvalidMessageError, UsageError
from eventlog.keys import name_bytes
from eventlog.limits import POSITION_MAX
from eventlog.record import BASE, FACTS, REDACTION, USAGE


def check_arriving(kind: str, body: Any) -> None:
    """Raise for the body of a loaded event that no call of a session can have written.

    Looked at are facts and usage, which listings and sums over a whole tenant read, also as a
    ``base`` keeps them, and redactions, which followers are told. All else is read by its own
    session alone.

    Raises:
        InvalidMessageError: A fact is not what its key says, or an owner is deleted, whom calls
            set to None; names the path.
        UsageError: A record of usage is none, or the body is none of its kind.
    """
    code = kind_code(kind, loading=True)
    if code == REDACTION:
        check_redaction(body)
    if code == BASE:
        check_facts(_kept(body, Space.FACTS), f"$.{Space.FACTS.title}")
        records = [*_kept(body, Space.USAGE).values()]
    elif code in (FACTS, USAGE):
        check_change(body)
        made, appended = body.get("set", {}), body.get("append", {})
        records = [*made.values(), *appended.values()] if code == USAGE else []
        if code == FACTS:
            check_facts(made, "$.set")
            keyed = {appended_key(key, 0): value for key, value in appended.items()}
            check_facts(keyed, "$.append")
            _require_owners(body.get("delete", []))
    else:
        return
    for record in records:
        check_record(record)


def _require_owners(deleted: list[str]) -> None:
    """Raise where an owner's key goes: who forgets a user looks where such a key is."""
    for key in deleted:
        if key in OWNERS:
            raise InvalidMessageError(f"{key} is set to null, not deleted", path="$.delete")


def check_redaction(body: Any) -> None:
    """Raise for what is no body of a ``redaction`` event.

    Raises:
        UsageError: It is none; says why.
    """
    if type(body) is not dict or not {"first", "last"} <= body.keys() <= {
        "first",
        "last",
        "reason",
    }:
        raise UsageError(
            "the body of a redaction is a dict with first and last, and may have a reason"
        )
    whole(body["first"], "first", 0, POSITION_MAX)
    whole(body["last"], "last", body["first"], POSITION_MAX)
    if "reason" in body:
        name_bytes(body["reason"], "reason")


def _kept(body: Any, space: Space) -> dict[str, Any]:
    listed = body.get(space.title, []) if type(body) is dict else []
    try:
        kept = decode_variables(listed, space.title)
    except CorruptionError as error:
        raise InvalidMessageError(str(error), path=f"$.{space.title}") from error
    return {key: each.value() for key, each in kept.items()}
