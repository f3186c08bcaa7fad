"""Times of other systems as µs since 1970-01-01 UTC; what is none is None. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECONDS_MAX: Final = 253_402_300_800  # the year 10000; larger numbers are no seconds


def seconds_us(value: object) -> int | None:
    """A number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(value * 1_000_000) if 0 <= value < _SECONDS_MAX else None


def iso_us(value: object, zone: tzinfo | None = None) -> int | None:
    """A text in ISO 8601.

    Args:
        value: The text.
        zone: The zone of one that names none; None refuses that.
    """
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            if zone is None:
                return None
            moment = moment.replace(tzinfo=zone)
        return (moment - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        return None


def moment_us(value: object) -> int | None:
    """A number of seconds, or a text in ISO 8601 with its zone."""
    return iso_us(value) if isinstance(value, str) else seconds_us(value)
