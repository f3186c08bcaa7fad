"""What is said of sessions: facts and their history, labels, holds, aliases, names of branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tests.model.answers import Placed, Refused, content, exact
from tests.model.operations import New, Noun, Opening
from tests.model.sessions import CONTROLS, Kept, ModelSession, facts_of
from tests.model.staging import HANG_S, placed

if TYPE_CHECKING:
    from engine import Facts, Session, Store
    from tests.model.model import ModelStore

NOTHING = Placed(-1, -1, 0, "")


@dataclass(frozen=True, slots=True)
class Say(Noun):
    """One call of a session that states facts of it.

    Attributes:
        call: Its name.
        given: Its arguments by place.
        named: Its arguments by name.
    """

    tenant: str
    session: str
    call: str
    given: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        return placed(getattr(session, self.call)(*self.given, **dict(self.named)).result(HANG_S))

    def expect(self, model: ModelStore) -> Placed | Refused:
        session = model.sessions.get((self.tenant, self.session))
        on = dict(self.named).get("on")
        if self.call == "label" and on is not None:
            if session is None:
                return Refused("SessionNotFoundError")
            if on >= len(session.events):
                return Refused("UsageError")
        if self.call in ("set_parent", "relate") and self.given[0] == self.session:
            return Refused("UsageError")
        body = _body(self.call, self.given, dict(self.named), session)
        return model.change((self.tenant, self.session), "facts", body)


def _body(
    call: str, given: tuple[Any, ...], named: dict[str, Any], session: ModelSession | None
) -> dict[str, Any]:
    """The body of the event of a call, which the exports of stores show; empty for no event."""
    changes: dict[str, Any] = {}
    delete: list[str] = []
    on = named.get("on")
    match call:
        case "set_title":
            changes["title"] = given[0]
        case "set_status" | "set_summary":
            changes[call.removeprefix("set_")] = [given[0], named.get("detail")]
        case "set_owner":
            changes = {
                name: named[name]
                for name in ("user_id", "account_id", "agent_id", "workspace")
                if name in named
            }
        case "update_metadata":
            changes = {f"metadata.{key}": [value] for key, value in given[0].items()}
            changes |= {f"metadata.{key}": [] for key in named.get("delete", ())}
        case "label":
            changes[f"label.{'' if on is None else on}.{given[0]}"] = True
        case "unlabel":
            delete.append(f"label.{'' if on is None else on}.{given[0]}")
        case "set_parent":
            changes["parent"] = None if given[0] is None else list(given)
        case "relate":
            changes[f"related.{given[0]}"] = True
        case "unrelate":
            delete.append(f"related.{given[0]}")
        case "hold" | "release_hold":
            held = [] if session is None else list(facts_of(session)["holds"])
            if (given[0] in held) is (call == "hold"):
                return {}
            if call == "hold":
                changes["hold"] = [*held, given[0]]
            elif held == [given[0]]:
                delete.append("hold")
            else:
                changes["hold"] = [each for each in held if each != given[0]]
    body: dict[str, Any] = {"set": changes} if changes else {}
    return {**body, "delete": delete} if delete else body


@dataclass(frozen=True, slots=True)
class Told(Noun):
    """All that was said of a session, as it stands or after an event."""

    tenant: str
    session: str
    sequence: int | None = None

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        if self.sequence is not None:
            return _told(session.at(self.sequence).facts)
        statuses, summaries = session.statuses(), session.summaries()
        said = [[(each.text, exact(each.detail), each.sequence) for each in statuses]]
        said.append([(each.text, exact(each.detail), each.sequence) for each in summaries])
        return _told(session.facts), said

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if self.sequence is not None:
            if session is None:
                return Refused("SessionNotFoundError")
            if self.sequence >= len(session.events):
                return Refused("UsageError")
            if self.sequence < session.first:
                return Refused("TrimmedError")
        if session is None:
            session = ModelSession("", "", 0, Opening())
        facts = facts_of(session, self.sequence)
        facts["metadata"] = content(facts["metadata"])
        facts["status_detail"] = exact(facts["status_detail"])
        told = tuple(sorted(facts.items()))
        if self.sequence is not None:
            return told
        return told, [_history(session, "status"), _history(session, "summary")]


def _history(session: ModelSession, key: str) -> list[tuple[Any, ...]]:
    """Each value of a fact; of those that were purged the last one."""
    found = [
        (*kept.new.body["set"][key], kept.sequence)
        for kept in session.events
        if kept.new.kind == "facts" and key in kept.new.body.get("set", {})
    ]
    purged = [each for each in found if each[2] < session.first]
    return [
        (text, exact(detail), sequence)
        for text, detail, sequence in [*purged[-1:], *found[len(purged) :]]
    ]


def _told(facts: Facts) -> tuple[Any, ...]:
    """Comparable with ``sessions.facts_of``."""
    found: dict[str, Any] = {name: getattr(facts, name) for name in type(facts).__slots__}
    found["metadata"] = content(facts.metadata)
    found["status_detail"] = exact(facts.status_detail)
    found["labels"] = [(label.name, label.on, label.sequence) for label in facts.labels]
    for name in ("parent", "cloned_from"):
        link = found[name]
        found[name] = None if link is None else (link.session, link.sequence)
    return tuple(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Alias(Noun):
    """``alias`` or ``unalias``; the store writes an event of its own with it."""

    tenant: str
    session: str
    alias: str
    is_taken: bool = True

    writes_hidden: ClassVar[bool] = True

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        call = session.alias if self.is_taken else session.unalias
        ack = call(self.alias).result(HANG_S)
        return ack.first, ack.already

    def expect(self, model: ModelStore) -> Any:
        name = (self.tenant, self.session)
        session = model.sessions.get(name)
        holder = find_alias(model, self.tenant, self.alias)
        key = f"alias.{self.alias}"
        has = session is not None and key in session.space("facts")
        if not self.is_taken:
            if not has:
                return -1, False
            return model.change(name, "facts", {"delete": [key]}).first, False  # type: ignore[union-attr]
        if holder is session and holder is not None:
            return -1, False
        if holder is not None:
            return Refused("ConflictError")
        if self.tenant not in model.tenants:
            model.place(model.open(name), New(None, kind="open"))
        placed = model.change(name, "facts", {"set": {key: True}})
        model.aliases[(self.tenant, self.alias)] = model.sessions[name]
        return placed.first, False  # type: ignore[union-attr]


def find_alias(model: ModelStore, tenant: str, alias: str) -> ModelSession | None:
    """The session that an alias leads to."""
    found = model.aliases.get((tenant, alias))
    if found is None or model.sessions.get((tenant, found.name)) is not found:
        return None
    return found if f"alias.{alias}" in found.space("facts") else None


@dataclass(frozen=True, slots=True)
class ByAlias(Noun):
    """``by_alias``."""

    tenant: str
    alias: str

    def perform(self, store: Store) -> Any:
        found = store.tenant(self.tenant).by_alias(self.alias)
        return None if found is None else found.name

    def expect(self, model: ModelStore) -> Any:
        found = find_alias(model, self.tenant, self.alias)
        return None if found is None else found.name


@dataclass(frozen=True, slots=True)
class NameBranch(Noun):
    """``name_branch``, or ``unname_branch``."""

    tenant: str
    session: str
    name: str
    leaf: int | None = None
    is_set: bool = True

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        if not self.is_set:
            return placed(session.unname_branch(self.name).result(HANG_S))
        return placed(session.name_branch(self.name, self.leaf).result(HANG_S))

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if self.is_set and self.leaf is not None:
            if session is None:
                return Refused("AppendConflictError")
            refused = session.refusal(self.leaf)
            if refused is not None:
                return refused
        session = model.open((self.tenant, self.session))
        body = {"set" if self.is_set else "delete": self.name}
        leaf = self.leaf if self.is_set else None
        answer = model.place(session, New(body, kind="branch_name"), leaf)
        session.note_name(session.events[-1])
        return answer


@dataclass(frozen=True, slots=True)
class TipOf(Noun):
    """``path`` to the newest event of a named branch."""

    tenant: str
    session: str
    name: str

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        return [event.sequence for event in session.path_events(self.name)]

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        tip = None if session is None else session.tip(self.name)
        if session is None or tip is None:
            return Refused("UsageError")
        return session.path_refusal(tip) or session.shown_path(tip)


@dataclass(frozen=True, slots=True)
class Link(Noun):
    """``link``."""

    tenant: str
    session: str
    event: int
    answers: tuple[int, ...]

    def perform(self, store: Store) -> Any:
        session: Session = store.tenant(self.tenant).session(self.session)
        told = placed(session.link(self.event, list(self.answers)).result(HANG_S))
        return told, [(each.event, each.answers) for each in session.links()]

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None:
            return Refused("SessionNotFoundError")
        if max(self.event, *self.answers) >= len(session.events) or self.event in self.answers:
            return Refused("UsageError")
        body = {"event": self.event, "answers": list(self.answers)}
        told = model.place(session, New(body, kind="link"))
        said = [kept.new.body for kept in session.events[session.first :] if is_link(kept)]
        return told, [(each["event"], tuple(each["answers"])) for each in said]


def is_link(kept: Kept) -> bool:
    """Whether an event says what another one answers."""
    return kept.new.kind == "link"


assert {"facts", "branch_name", "link"} <= set(CONTROLS)
