"""Moments on the command line: of a session, named by a sequence or a time; times, and spans."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from engine import Session, SessionAt
from eventlog.errors import UsageError
from turnlog import terminal

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SEQUENCE_DIGITS: Final = 20
_DIGITS: Final = 6  # of a number before its unit: up to nineteen thousand years


def moment_of(session: Session, at: str) -> SessionAt:
    """The session as it was.

    Args:
        session: The session.
        at: A sequence, or a date and time in ISO 8601, of UTC if it names no other zone.

    Raises:
        UsageError: Neither, or the session has no such event.
        TrimmedError: The events of that time were purged.
    """
    if at.isascii() and at.isdigit():
        digits = at.lstrip("0") or "0"
        if len(digits) > _SEQUENCE_DIGITS:  # Python makes no number of thousands
            raise UsageError(f"--at has {len(digits):,} digits, and no sequence is so large")
        return session.at(int(digits))
    try:
        moment = datetime.fromisoformat(at)
    except ValueError as error:
        raise UsageError(
            f"--at {terminal.quote(at)} is neither a sequence nor a date and time",
            hint="Give a sequence like 12, or a time like 2026-01-31T12:00:00 (UTC).",
        ) from error
    return session.at(time_us=_us_of(moment))


def time_of(option: str, text: str) -> int:
    """A date and time in ISO 8601, of UTC if it names no other zone, in µs since the epoch.

    Raises:
        UsageError: It is none.
    """
    try:
        return _us_of(datetime.fromisoformat(text))
    except ValueError as error:
        raise UsageError(
            f"{option} {terminal.quote(text)} is no date and time",
            hint="Give a time like 2026-01-31T12:00:00 (UTC).",
        ) from error


def span_of(option: str, text: str) -> int:
    """A span of time, a number and its unit like ``90d``, in µs.

    Raises:
        UsageError: It is none.
    """
    digits, unit = text[:-1], text[-1:]
    if unit in _UNITS_S and digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS:
        return int(digits) * _UNITS_S[unit] * 1_000_000
    raise UsageError(
        f"{option} {terminal.quote(text)} is no span of time",
        hint="Give a whole number and s, m (minutes), h, d or w, like 90d.",
    )


def _us_of(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)
