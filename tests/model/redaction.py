"""Redaction: events that keep their places and say nothing any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.model.answers import Refused
from tests.model.operations import New, Noun
from tests.model.sessions import CONTROLS, Kept, ModelSession
from tests.model.windows import boundary, calls_in, result_in

if TYPE_CHECKING:
    from engine import Store
    from tests.model.model import ModelStore

_BESIDE = ("metric", "annotation")  # control kinds of which nothing else is made


@dataclass(frozen=True, slots=True)
class Redact(Noun):
    """``redact``: how many events lost what they say, had lost it, keep it or were purged.

    Also where it is said, and which summaries may tell of it.
    """

    tenant: str
    session: str
    first: int
    last: int

    def perform(self, store: Store) -> Any:
        done = store.tenant(self.tenant).session(self.session).redact(self.first, self.last)
        counts = done.event_count, done.already_count, done.kept_count, done.void_count
        assert (done.sequence is None) is (done.position is None)
        return (*counts, done.sequence, done.summaries)

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None:
            return Refused("SessionNotFoundError")
        if self.last >= len(session.events):
            return Refused("UsageError")
        there = session.events[max(self.first, session.first) : self.last + 1]
        able = [kept for kept in there if can_be_redacted(kept)]
        fresh = [kept for kept in able if not kept.new.redacted]
        for kept in fresh:
            kept.redact()
        said = self._said(session)
        summaries = self._summaries(session) if able else ()
        if fresh or (said is None and able):
            body = {"first": self.first, "last": self.last}
            said = model.place(session, New(body, kind="redaction")).last
        voids = self.last + 1 - self.first - len(there)
        counts = len(fresh), len(able) - len(fresh), len(there) - len(able), voids
        return (*counts, said, summaries)

    def _said(self, session: ModelSession) -> int | None:
        """The newest event that says so already."""
        found = None
        for kept in session.events[max(self.last + 1, session.first) :]:
            if kept.new.kind == "redaction":
                body = kept.new.body
                if body["first"] <= self.first and self.last <= body["last"]:
                    found = kept.sequence
        return found

    def _summaries(self, session: ModelSession) -> tuple[int, ...]:
        """Compactions after the range that stand for events of it."""
        found = []
        for kept in session.events[max(self.last + 1, session.first) :]:
            told = boundary(kept.new.body) if kept.new.kind == "compaction" else None
            through = None if told is None else told[1]
            if type(through) is not int or through >= kept.sequence:
                continue
            path = session.shown_path(kept.sequence)
            stood = [each for each in path if each <= min(through, self.last)]
            if stood and stood[-1] >= self.first:
                found.append(kept.sequence)
        return tuple(found)


def can_be_redacted(kept: Kept) -> bool:
    """Whether nothing is made of what an event says."""
    return kept.new.kind not in CONTROLS or kept.new.kind in _BESIDE


def may_redact(session: ModelSession) -> bool:
    """Whether the model knows what a window shows once messages are redacted.

    Of tool groups that are redacted in part a store guesses, as a result does not tell its call any
    more.
    """
    bodies = [kept.new.body for kept in session.messages()]
    return not any([calls_in(body) or result_in(body) is not None for body in bodies])


def may_call(session: ModelSession | None) -> bool:
    """Whether calls of tools and their results may follow; half of the sessions have none."""
    if session is None:
        return True
    if not may_redact(session):
        return True
    is_redacted = any([kept.new.redacted for kept in session.events])
    return session.number % 2 == 1 and not is_redacted
