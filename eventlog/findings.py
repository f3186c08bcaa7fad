"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass, field

from eventlog.errors import CorruptionError
from eventlog.record import Origin

FINDINGS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One place that is not as it should be.

    Attributes:
        where: The table and key.
        message: What is wrong there.
        tenant: The tenant whose session it belongs to, None where no session is known.
        session: That session's name.
    """

    where: str
    message: str
    tenant: str | None = None
    session: str | None = None


@dataclass(slots=True)
class CheckReport:
    """What a check found.

    Attributes:
        findings: Every finding, at most 10,000.
        counts: What was read: events, segments, sessions and so on.
        consequences: Places that are wrong, or could not be compared, only because of a finding.
        omitted: Findings past the 10,000.
        is_broken: Whether a page could not be read; rows that disagree are consequences then.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    consequences: int = 0
    omitted: int = 0
    is_broken: bool = False

    @property
    def ok(self) -> bool:
        """True when nothing was found."""
        return not self.findings

    def add(self, where: str, message: str, origin: Origin | None = None) -> None:
        """Note a finding, and the session that it belongs to."""
        if self.is_broken:
            self.consequences += 1
        else:
            self._note(where, message, origin)

    def _note(self, where: str, message: str, origin: Origin | None) -> None:
        if len(self.findings) == FINDINGS_MAX:
            self.omitted += 1
            return
        if origin is None:
            self.findings.append(Finding(where, message))
        else:
            self.findings.append(Finding(where, message, origin.tenant, origin.name))

    def add_error(self, error: CorruptionError, origin: Origin | None = None) -> None:
        """Note an error as a finding."""
        self._note(error.where, str(error).removeprefix(f"{error.where}: "), origin)

    def count(self, what: str, by: int = 1) -> None:
        """Note that something was read."""
        self.counts[what] = self.counts.get(what, 0) + by
