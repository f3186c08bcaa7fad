"""Copies: clones of sessions, sessions that are exported and loaded elsewhere, whole stores."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.model.answers import Refused
from tests.model.operations import New, Noun
from tests.model.sessions import CONTROLS, Kept, ModelSession
from tests.model.usage import belongs
from tests.model.windows import boundary

if TYPE_CHECKING:
    from engine import Store
    from tests.model.model import ModelStore

_ROLL_UP = New(None, kind="roll_up")
_LEFT = ("open", "tombstone", "base", "usage")  # about the original alone


@dataclass(frozen=True, slots=True)
class Clone(Noun):
    """``clone`` of a session of which nothing was purged."""

    tenant: str
    session: str
    name: str
    leaf: int | None = None

    def perform(self, store: Store) -> Any:
        return store.tenant(self.tenant).session(self.session).clone(self.name, leaf=self.leaf).name

    def expect(self, model: ModelStore) -> Any:
        source = model.sessions.get((self.tenant, self.session))
        if source is None:
            return Refused("SessionNotFoundError")
        if (self.tenant, self.name) in model.sessions:
            return Refused("AppendConflictError")
        if self.leaf is not None:
            refused = source.path_refusal(self.leaf)
            if refused is not None:
                return refused
        made = model.open((self.tenant, self.name), source.opening)
        trims = source.is_trimmed or model.max_messages is not None
        _Copying(source, self.leaf, trims).into(model, made)
        said: dict[str, Any] = {"set": {"cloned_from": [self.session, self.leaf]}}
        held, copied = [each.space("facts").get("hold", (None, -1))[0] for each in (source, made)]
        if held is None and copied is not None:
            said["delete"] = ["hold"]
        elif held != copied:
            said["set"]["hold"] = held
        model.place(made, New(said, kind="facts"))
        return self.name


class _Copying:
    """Events of a session on their way into another one.

    What they say of events of the session they say of the copies then.

    Args:
        source: The session.
        leaf: The event that the path to copy ends with, None for all.
        trims: Whether the copies are to roll up where the events did, so that they show the same.
    """

    def __init__(self, source: ModelSession, leaf: int | None, trims: bool) -> None:
        self._source = source
        self._leaf = leaf
        self._trims = trims
        self._on = None if leaf is None else set(source.path(leaf))
        self._places: dict[int, int] = {}  # of public events
        self._steps: dict[int, int] = {}  # of those that change spaces
        self._redacted: dict[int, int] = {}  # of those that were redacted

    def into(self, model: ModelStore, made: ModelSession) -> None:
        """Append the copies, as one append."""
        last = len(self._source.events) - 1 if self._leaf is None else self._leaf
        for kept in self._source.events[: last + 1]:
            found = self._copy(kept, made)
            if found is not None:
                new, parent = found
                forks = new.kind == "head_move" and new.body is not None
                place = model.keep(made, new, parent, forks).sequence
                if new.kind not in CONTROLS:
                    self._places[kept.sequence] = place
                self._steps[kept.sequence] = place
                if new.redacted:
                    self._redacted[kept.sequence] = place
                made.note_name(made.events[-1])
            if self._rolls_up_after(kept):
                model.roll_up_after(made.events[-1] if found else model.keep(made, _ROLL_UP))

    def _rolls_up_after(self, kept: Kept) -> bool:
        if not self._trims or not kept.rolls_up:
            return False
        if self._leaf is None or self._on is None:
            return True
        if kept.new.kind in CONTROLS:
            return self._source.has_on_path(kept, self._leaf)
        return kept.sequence in self._on

    def _copy(self, kept: Kept, made: ModelSession) -> tuple[New, int | None] | None:
        new = replace(kept.new, id=None)
        kind = new.kind
        follows = -1 if kept.parent is None else self._places.get(kept.parent, -1)
        if kind not in CONTROLS:
            if self._on is not None and kept.sequence not in self._on:
                return None
            if kind == "compaction":
                new = replace(new, body=self._compaction(kept))
            return new, None if follows == made.head else follows
        if kind in _LEFT or (self._on is not None and kind in ("head_move", "branch_name")):
            return None
        if kind == "head_move":
            return new, follows
        if kind == "branch_name":
            return new, None if kept.parent is None else follows
        if kind == "roll_up":
            return (new, None) if self._rolls_up_after(kept) else None
        if kind == "artifacts" and kept.parent is not None:
            if self._leaf is not None and not belongs(
                self._source, self._source.path(self._leaf), kept.parent, kept.branch
            ):
                return None
            return new, None if kept.told_branch is not None else follows
        body = self._said(kind, new.body)
        is_gone = body is None and kind in ("link", "facts", "redaction")
        return None if is_gone else (replace(new, body=body), None)

    def _said(self, kind: str, body: Any) -> Any:
        if kind == "link":
            answers = [self._places[each] for each in body["answers"] if each in self._places]
            if body["event"] not in self._places or not answers:
                return None
            return {"event": self._places[body["event"]], "answers": answers}
        if kind == "redaction":
            first, last = body["first"], body["last"]
            copies = [copy for each, copy in self._redacted.items() if first <= each <= last]
            return {"first": min(copies), "last": max(copies)} if copies else None
        if kind == "facts":
            changed = {self._fact(key): each for key, each in body.get("set", {}).items()}
            deleted = [self._fact(key) for key in body.get("delete", [])]
            changed.pop("", None)
            deleted = [key for key in deleted if key]
            said = {"set": changed} if changed else {}
            return {**said, **({"delete": deleted} if deleted else {})} or None
        if kind in ("runs", "tool_calls"):
            return {"set": {key: self._call(each) for key, each in body["set"].items()}}
        if kind == "documents" and "delete" in body:
            return {**body, "delete": [self._document(key) for key in body["delete"]]}
        return body

    def _fact(self, key: str) -> str:
        """The key in the copy; empty for none."""
        what, _, rest = key.partition(".")
        if what == "alias":
            return ""
        on, _, name = rest.partition(".")
        if what != "label" or not on:
            return key
        return f"label.{self._places[int(on)]}.{name}" if int(on) in self._places else ""

    def _call(self, value: dict[str, Any]) -> dict[str, Any]:
        kept = dict(value)
        places = {"began": self._steps, "opened": self._steps}
        places |= {"event": self._places, "result_event": self._places}
        for name in [name for name in places if name in kept]:
            step = kept.pop(name)
            if step in places[name]:
                kept[name] = places[name][step]
        return kept

    def _document(self, key: str) -> str:
        if key[32:33] != "+":
            return key
        return f"{key[:33]}{self._steps[int(key[33:])]:019d}"

    def _compaction(self, kept: Kept) -> Any:
        body = kept.new.body
        told = boundary(body)
        if told is None:
            return body
        _, through, keep = told
        data = dict(body.get("data", {}))
        if type(through) is int:
            there = through in self._places and through < kept.sequence
            other = f"{self._source.number:x}.{through:010d}"
            data["through"] = self._places[through] if there else other
        if keep:
            data["keep"] = [
                self._places[each] for each in keep if each < kept.sequence and each in self._places
            ]
        return {**body, "data": data}


@dataclass(frozen=True, slots=True)
class Lines(Noun):
    """The export lines of a session; the model compares them when they are loaded elsewhere."""

    tenant: str
    session: str

    def perform(self, store: Store) -> Any:
        tenant = store.tenant(self.tenant)
        events = tenant.session(self.session).events()
        return [json.loads(line) for line in tenant.export_lines(events)]


@dataclass(frozen=True, slots=True)
class Carry(Noun):
    """``load`` of the lines of a session of another store, of which nothing was purged.

    The model takes the events from ``ModelStore.carried``.
    """

    tenant: str
    session: str
    lines: tuple[dict[str, Any], ...]

    writes_hidden: ClassVar[bool] = True  # aliases

    def perform(self, store: Store) -> Any:
        result = store.tenant(self.tenant).load(self.lines)
        return result.loaded, result.skipped

    def expect(self, model: ModelStore) -> Any:
        source = model.carried
        assert source is not None
        made = model.open((self.tenant, self.session), source.opening)
        for kept in source.events:
            forks = kept.new.kind == "head_move" and kept.new.body is not None
            parent = -1 if kept.parent is None else kept.parent
            if kept.told_branch is not None:
                parent = None  # type: ignore[assignment]
            if kept.parent is None and kept.new.kind in CONTROLS and kept.new.kind != "head_move":
                parent = None  # type: ignore[assignment]
            model.keep(made, kept.new, parent, forks)
            made.note_name(made.events[-1])
        model.end(made)
        for key in made.space("facts"):
            if key.startswith("alias."):
                model.aliases[(self.tenant, key.removeprefix("alias."))] = made
        return len(source.events), 0


@dataclass(frozen=True, slots=True)
class RoundTrip(Noun):
    """Export of all, import into another store, and its export: the same lines, byte for byte."""

    def perform(self, store: Store) -> Any:
        lines = list(store.export_lines(store.read()))
        with (
            tempfile.TemporaryDirectory() as folder,
            type(store).open(Path(folder, "copy")) as copy,
        ):
            copy.load(map(json.loads, lines))
            again = list(copy.export_lines(copy.read()))
            findings = copy.check().findings
        first, second = sorted(lines), sorted(again)
        differing = [(a, b) for a, b in zip(first, second, strict=False) if a != b]
        return len(first) - len(second), differing[:1], findings

    def expect(self, model: ModelStore) -> Any:
        return 0, [], []


@dataclass(frozen=True, slots=True)
class Rebuild(Noun):
    """``rebuild``."""

    def perform(self, store: Store) -> Any:
        store.rebuild()

    def expect(self, model: ModelStore) -> Any:
        return None


@dataclass(frozen=True, slots=True)
class Configure(Noun):
    """``configure``: what was rolled up before stays as it was."""

    frequency: int
    max_messages: int | None

    def perform(self, store: Store) -> Any:
        found = store.configure(snapshot_frequency=self.frequency, max_messages=self.max_messages)
        return found["snapshot_frequency"], found["max_messages"]

    def expect(self, model: ModelStore) -> Any:
        model.fewest = min(model.fewest, self.max_messages or 2**63)
        model.frequency, model.max_messages = self.frequency, self.max_messages
        return self.frequency, self.max_messages
