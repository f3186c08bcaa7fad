"""What can be read of a model store."""

from __future__ import annotations

from typing import Any

from tests.model.answers import Refused, exact
from tests.model.operations import (
    At,
    Branches,
    Events,
    Follow,
    History,
    Info,
    OneEvent,
    Op,
    Path,
    Read,
    Sessions,
    State,
)
from tests.model.sessions import Kept, ModelSession, facts_of


class Reading:
    """The part of ``ModelStore`` that answers reads; changes nothing."""

    log: list[Kept]
    sessions: dict[tuple[str, str], ModelSession]
    tenants: list[str]
    hidden: dict[int, ModelSession]

    @property
    def last_position(self) -> int:
        """Position of the newest event."""
        return len(self.log)

    def look(self, op: Op) -> Any:
        """Answer a read."""
        match op:
            case Read():
                found = self._scoped(op.tenant, op.after)
                return [kept.facts() for kept in found[: op.limit]]
            case Follow(session=None):
                scoped = self._scoped(op.tenant, op.after)
                wanted = [kept for kept in scoped if _is_of(kept, op.kinds)]
                return [kept.facts() for kept in wanted[: op.count]]
            case Sessions():
                found_sessions = sorted(
                    [
                        each
                        for each in self.sessions.values()
                        if each.tenant == op.tenant
                        and not each.is_hidden
                        and op.user_id in (None, facts_of(each)["user_id"])
                    ],
                    key=lambda each: -each.events[-1].position,
                )
                return [each.info() for each in found_sessions]
        assert isinstance(op, (History, Events, OneEvent, Info, Follow, State, At, Branches, Path))
        session = self.sessions.get((op.tenant, op.session or ""))
        events = [] if session is None else session.events
        match op:
            case History():
                messages = []
                if session is not None:
                    messages, _ = session.view(len(events) - 1)
                if op.limit is not None:
                    messages = messages[max(0, len(messages) - op.limit) :]
                return [exact(kept.new.body) for kept in messages]
            case Events():
                stop = len(events) if op.last is None else op.last + 1
                first = op.first if session is None else max(op.first, session.first)
                if 0 < op.first < first:  # 0 is where the session begins, wherever that is
                    return Refused("TrimmedError")
                return [
                    kept.facts()
                    for kept in events[first:stop]
                    if op.kinds is None or kept.new.kind in op.kinds
                ]
            case State():
                found_variables = {} if session is None else session.variables(len(events) - 1)
                return [
                    (key, exact(value), sequence)
                    for key, (value, sequence) in found_variables.items()
                ]
            case At():
                return self._at(session, op.sequence)
            case Branches():
                return [] if session is None else session.branches()
            case Path():
                if session is None:
                    return []
                leaf = session.head if op.leaf is None else op.leaf
                if leaf < 0:
                    return []
                return session.path_refusal(leaf) or session.shown_path(leaf)
            case OneEvent():
                if session is None:
                    return Refused("SessionNotFoundError")
                if op.sequence >= len(events):
                    return Refused("UsageError")
                if op.sequence < session.first:
                    return Refused("TrimmedError")
                return events[op.sequence].facts()
            case Info():
                if session is None:
                    return None, False, None
                info = session.info()
                return info, True, None if session.head < 0 else session.head
            case Follow():
                if session is not None and 0 < op.after + 1 < session.first and op.count:
                    return Refused("TrimmedError")  # from the beginning on is from what is there
                start = op.after + 1 if session is None else max(op.after + 1, session.first)
                wanted = [kept for kept in events[start:] if _is_of(kept, op.kinds)]
                return [kept.facts() for kept in wanted[: op.count]]

    def _at(self, session: ModelSession | None, sequence: int | None) -> Any:
        if session is None:
            return Refused("SessionNotFoundError")
        is_past = sequence is not None
        if sequence is None:
            sequence = len(session.events) - 1
        there = session.events[session.first : sequence + 1]
        if sequence >= len(session.events):
            return Refused("UsageError")
        if sequence < session.first:
            return Refused("TrimmedError")
        shown, loose = session.view(sequence)
        is_told = any([kept.rolls_up for kept in there])
        if is_past and not is_told and any([each.rolls_up for each in session.events[sequence:]]):
            # Of messages that were purged before that roll-up no row tells.
            loose = min(loose, sum([kept.new.kind == "message" for kept in there]))
        head = session.head_at(sequence)
        return (
            exact({key: value for key, (value, _) in session.variables(sequence).items()}),
            [exact(kept.new.body) for kept in shown],
            sum([kept.new.kind == "message" for kept in session.events[: sequence + 1]]),
            None if head < 0 else head,
            loose,
        )

    def _scoped(self, tenant: str, after: int) -> list[Kept]:
        return [
            kept
            for kept in self.log[after:]
            if not kept.is_void and tenant in ("", kept.session.tenant)
        ]

    def everything(self) -> dict[str, Any]:
        """Comparable with ``actors.everything``."""
        names = sorted([name for name, each in self.sessions.items() if not each.is_hidden])
        derived = {each.tenant for each in self.hidden.values() if not each.is_gone}
        others = {tenant for tenant, _ in self.sessions}
        tenants = [each for each in self.tenants if each in others or each not in derived]
        return {
            "last_position": self.last_position,
            "tenants": tenants,
            "read": self.look(Read("")),
            "events": {name: self.look(Events(*name)) for name in names},
            "history": {name: self.look(History(*name)) for name in names},
            "state": {name: self.look(State(*name)) for name in names},
            "last": {name: self.look(History(*name, limit=3)) for name in names},
            "info": {name: self.look(Info(*name)) for name in names},
            "branches": {name: self.look(Branches(*name)) for name in names},
            "sessions": {tenant: self.look(Sessions(tenant)) for tenant in tenants},
            "findings": [],
        }


def _is_of(kept: Kept, kinds: tuple[str, ...] | None) -> bool:
    return kinds is None or kept.new.kind in kinds
