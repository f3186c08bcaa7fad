"""What an event of usage says: made from a call's arguments, and checked where it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from eventlog.arguments import shown, whole
from eventlog.errors import InvalidMessageError, UsageError
from eventlog.keys import name_bytes

SCOPES: Final = ("turn", "provider_turn", "run_total")
COUNTERS: Final = (
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "audio_input_tokens",
    "audio_output_tokens",
    "characters",
)
"""What is counted in whole numbers."""
AMOUNTS: Final = ("seconds", "cost")
NAMES: Final = ("model", "provider", "currency", "user_id", "run_id", "turn_id")
_NUMBERS: Final = frozenset({*COUNTERS, *AMOUNTS})
COUNT_MAX: Final = 2**53
AMOUNT_MAX: Final = 2**63
"""Of seconds or cost in one record: no number of records that a store holds sums up to infinity."""


def usage_body(scope: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What an event of kind ``usage`` appends.

    Args:
        scope: One of ``SCOPES``.
        given: The other arguments of ``record_usage``, None for those that were not given.

    Raises:
        UsageError: A scope, count or amount that cannot be.
        InvalidMessageError: ``extra`` is no dict.
    """
    value: dict[str, Any] = {"scope": checked_scope(scope)}
    for name in NAMES:
        if given[name] is not None:
            name_bytes(given[name], name)
            value[name] = given[name]
    for name in COUNTERS:
        if given[name] is not None:
            value[name] = whole(given[name], name, 0, COUNT_MAX)
    for name in AMOUNTS:
        amount = given[name]
        if amount is not None:
            if type(amount) not in (int, float) or not 0 <= amount <= AMOUNT_MAX:
                raise UsageError(f"{name} must be a number from 0 to 2^63, not {shown(amount)}")
            value[name] = amount
    if given["extra"] is not None:
        if type(given["extra"]) is not dict:
            raise InvalidMessageError("extra must be a dict", path="$extra")
        value["extra"] = given["extra"]
    return value


def require_figure(given: Mapping[str, Any]) -> None:
    """Raise where the arguments of ``record_usage`` say nothing of what was used.

    Raises:
        UsageError: No count, amount or ``extra`` was given.
    """
    if all([given[name] is None for name in (*COUNTERS, *AMOUNTS, "extra")]):
        raise UsageError(
            "a record of usage needs at least one figure",
            hint=f"Give one of {', '.join(COUNTERS)}, {' or '.join(AMOUNTS)}, or extra.",
        )


def check_record(value: Any) -> None:
    """Raise for what is no record as ``record_usage`` makes it; unknown fields may be anything.

    Raises:
        UsageError: It is none; says why.
    """
    if type(value) is not dict:
        raise UsageError(f"a record of usage must be a dict, not {type(value).__name__}")
    for name in NAMES:
        if type(value.get(name)) not in (str, type(None)):
            raise UsageError(f"{name} must be a str, not {type(value[name]).__name__}")
    for name in _NUMBERS & value.keys():
        if value[name] is None:
            raise UsageError(f"{name} must be left out where it is not known")
    given = {name: value.get(name) for name in (*_NUMBERS, "extra")}
    usage_body(value.get("scope", ""), given | dict.fromkeys(NAMES))


def checked_scope(scope: str) -> str:
    """The scope, when it is one."""
    if type(scope) is not str or scope not in SCOPES:
        raise UsageError(f"scope must be one of {', '.join(SCOPES)}, not {shown(scope)}")
    return scope
