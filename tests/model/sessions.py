"""One session in the model: its events, the tree that they make, and what views show of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.model.answers import Exact, Placed, Refused, content, exact, told_body
from tests.model.operations import New, Opening

BELONGING = ("usage", "artifacts")  # to another event
SPACES = ("variables", "facts", "documents", "runs", "tool_calls", *BELONGING)
CONTROLS = (
    *("open", "base", "roll_up", "tombstone", "head_move", "branch_name", "link", "redaction"),
    *("metric", "annotation", *SPACES),
)
ROLES = ("system", "user", "assistant", "tool", "developer", "toolResult")  # that headers tell


@dataclass(slots=True)
class Kept:
    """One event in the model."""

    session: ModelSession
    sequence: int
    position: int
    parent: int | None
    new: New
    opening: dict[str, Any] | None = None
    rolls_up: bool = False
    keeps: int | None = None  # messages that the view keeps then
    is_void: bool = False
    branch: int = 0
    opens: bool = False
    _facts: Exact = None

    @property
    def event_id(self) -> str:
        """The caller's id or the store's."""
        return self.new.id or f"{self.session.number:x}.{self.sequence:010d}"

    @property
    def told_parent(self) -> int | None:
        """The parent in its line: -1 for a root that is not the first of its session."""
        if self.parent is None and (self.new.kind == "head_move" or self.opens):
            return -1
        return self.parent

    @property
    def told_branch(self) -> int | None:
        """The branch in its line: of what belongs to an event on another one."""
        if self.new.kind not in BELONGING or self.parent is None:
            return None
        return None if self.session.branch_of(self.parent) == self.branch else self.branch

    def facts(self) -> Exact:
        """All of it, comparable with ``performing.event_facts``."""
        if self._facts is not None:
            return self._facts
        new = self.new
        role = new.body.get("role") if type(new.body) is dict else new.role
        self._facts = (
            self.session.tenant,
            self.session.name,
            self.session.number,
            self.sequence,
            self.position,
            self.parent,
            self.branch,
            new.kind,
            role if type(role) is str else None,
            exact(told_body(new.kind, new.body)),
            exact(new.metadata),
            new.id,
            self.event_id,
            new.time_us,
            new.tokens or 0,
            new.run_id,
            new.turn_id,
            new.speech_id,
            new.request_id,
            exact(self.opening),
            new.blobs,
            new.redacted,
        )
        return self._facts

    def redact(self) -> None:
        """Lose what it says, and nothing else."""
        new = self.new
        told = new.body.get("role") if new.kind == "message" else None
        role = told if type(told) is str and told in ROLES else None
        self.new = replace(new, body=None, metadata=None, blobs=(), redacted=True, role=role)
        self._facts = None


@dataclass(slots=True)
class ModelSession:
    """One session in the model."""

    tenant: str
    name: str
    number: int
    opening: Opening
    events: list[Kept] = field(default_factory=list)
    keys: dict[str, tuple[Exact, Placed]] = field(default_factory=dict)

    is_gone: bool = False
    first: int = 0  # events below it were purged
    made: int = 1  # branch numbers
    on: int = 0  # the head's branch
    head: int = -1  # sequence of the event that the next one follows, -1 for none
    tips: dict[int, int] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)  # by branch, what it follows
    names: dict[str, int] = field(default_factory=dict)

    @property
    def has_branched(self) -> bool:
        """Whether it is not linear any more."""
        return self.made > 1 or any(kept.new.kind == "head_move" for kept in self.events)

    @property
    def is_hidden(self) -> bool:
        """Whether no caller can name it."""
        return len(self.name) > 512

    def follows(self, sequence: int, parent: int | None) -> bool:
        """Whether an event follows another one, -1 for none, as far as that is asked and known."""
        if parent is None or sequence < self.first:
            return True
        found = self.events[sequence].parent
        return parent == (-1 if found is None else found)

    def can_follow(self, parent: int) -> bool:
        """Whether an event may follow another one, -1 for none."""
        if parent == -1:
            return True
        return parent < len(self.events) and self.events[parent].new.kind not in CONTROLS

    def refusal(self, parent: int) -> Refused | None:
        """Why no event can follow another one, -1 for none."""
        if 0 <= parent < self.first:
            return Refused("TrimmedError")
        return None if self.can_follow(parent) else Refused("AppendConflictError")

    def branch_of(self, sequence: int) -> int:
        """The branch of an event, -1 for none."""
        return self.events[sequence].branch if sequence >= 0 else 0

    def link(self, sequence: int, kind: str, parent: int | None, forks: bool) -> tuple[int, int]:
        """Parent and branch of the next event; -1 for no parent."""
        if kind == "head_move":
            assert parent is not None
            self.on, self.head = self.branch_of(parent), parent
            if forks:
                self.on = self._open(parent)
                self.tips[self.on] = parent
            return parent, self.on
        if kind in BELONGING and parent is None:
            return self.head, self.on
        if kind in ("branch_name", *BELONGING):
            return (-1, self.on) if parent is None else (parent, self.branch_of(parent))
        if kind in CONTROLS:
            return -1, self.on if kind == "roll_up" else 0
        target = self.head if parent is None else parent
        branch = self.on if target == self.head else self.branch_of(target)
        if self.tips.get(branch, -1) != target:
            branch = self._open(target)
        self.tips[branch] = self.head = sequence
        self.on = branch
        return target, branch

    def _open(self, parent: int) -> int:
        self.made += 1
        self.opened[self.made - 1] = parent
        return self.made - 1

    def head_at(self, sequence: int) -> int:
        """The head after an event."""
        for kept in reversed(self.events[: sequence + 1]):
            if kept.new.kind == "head_move":
                return -1 if kept.parent is None else kept.parent
            if kept.new.kind not in CONTROLS:
                return kept.sequence
        return -1

    def path(self, leaf: int) -> list[int]:
        """Sequences from a root to an event."""
        found: list[int] = []
        while leaf >= 0:
            found.append(leaf)
            parent = self.events[leaf].parent
            leaf = -1 if parent is None else parent
        return found[::-1]

    def tip(self, name: str) -> int | None:
        """The newest event of a named branch, or what it was forked from."""
        if name not in self.names:
            return None
        number = self.names[name]
        tips = [
            kept.sequence
            for kept in self.events
            if kept.branch == number and kept.new.kind not in CONTROLS
        ]
        opened = self.opened.get(number, -1)
        return tips[-1] if tips else opened if opened >= 0 else None

    def has_branch(self, number: int, sequence: int | None = None) -> bool:
        """Whether there is a branch, or was one after an event."""
        stop = None if sequence is None else sequence + 1
        return any([kept.branch == number for kept in self.events[:stop]])

    def past_refusal(self, sequence: int) -> Refused | None:
        """Why nobody can tell what the session was after an event."""
        if sequence >= len(self.events):
            return Refused("UsageError")
        return Refused("TrimmedError") if sequence < self.first else None

    def shown_path(self, leaf: int) -> list[int]:
        """As ``path``, without what was purged."""
        return [each for each in self.path(leaf) if each >= self.first]

    def path_refusal(self, leaf: int) -> Refused | None:
        """Why a path cannot end with an event."""
        if leaf < self.first:
            return Refused("TrimmedError")
        return None if self.can_follow(leaf) else Refused("UsageError")

    def note_name(self, kept: Kept) -> None:
        """A name leads to the branch of an event that says so, or nowhere any more."""
        if kept.new.kind == "branch_name":
            self.names.pop(kept.new.body.get("delete"), None)
            if "set" in kept.new.body:
                self.names[kept.new.body["set"]] = kept.branch

    def branches(self) -> list[tuple[Any, ...]]:
        """Comparable with what ``performing`` tells of branches."""
        newest: dict[int, int] = {}
        for kept in self.events:
            if kept.new.kind not in CONTROLS:
                newest[kept.branch] = kept.sequence
        found = []
        for number in sorted({*newest, *self.opened}):
            parent = self.opened.get(number, -1)
            names = sorted([name for name, branch in self.names.items() if branch == number])
            found.append(
                (
                    number,
                    names,
                    None if parent < 0 else parent,
                    None if parent < 0 else self.branch_of(parent),
                    newest.get(number),
                    number == self.on,
                )
            )
        return found

    def messages(self) -> list[Kept]:
        """Events of kind message."""
        return [kept for kept in self.events if kept.new.kind == "message"]

    @property
    def is_trimmed(self) -> bool:
        """Whether a roll-up ever took messages out of a view."""
        count = 0
        for kept in self.events:
            count += kept.new.kind == "message"
            if kept.rolls_up and kept.keeps is not None and count > kept.keeps:
                return True
        return False

    def floor(self, leaf: int) -> int:
        """Sequence of the first message that roll-ups left in view of a path, now; 0 for all."""
        shown, _ = self.view(len(self.events) - 1, leaf)
        on = [each for each in self.path(leaf) if self.events[each].new.kind == "message"]
        if len(shown) == len(on):
            return 0
        return shown[0].sequence if shown else leaf + 1

    def view(self, sequence: int, leaf: int | None = None) -> tuple[list[Kept], int]:
        """The messages shown after an event, and how many came since the last roll-up.

        Args:
            sequence: The event.
            leaf: The event that the path ends with; None for the head, with nothing left out that
                was purged.
        """
        events = self.events[: sequence + 1]
        loose = 0
        for kept in events:
            loose = 0 if kept.rolls_up else loose + (kept.new.kind == "message")
        head = self.head_at(sequence) if leaf is None else leaf
        on = self.path(head)
        placed = set(on)
        branches = {self.branch_of(each): each for each in on}  # the last event of each on the path
        follower = next(
            (
                kept.sequence
                for kept in events[head + 1 :]
                if kept.new.kind == "head_move" or kept.new.kind not in CONTROLS
            ),
            sequence + 1,
        )
        firsts = self._firsts(on)
        shown: list[Kept] = []
        for kept in events[:follower]:
            kind = kept.new.kind
            is_on = kept.sequence in placed
            if kind == "message" and is_on:
                shown.append(kept)
            is_beside = kind in CONTROLS and kind != "head_move"
            if is_beside and kept.rolls_up and kept.branch in branches:
                last = branches[kept.branch]
                is_on = firsts[kept.branch] < kept.sequence <= last
                is_on = is_on or (kept.sequence > head and kept.branch == self.branch_of(head))
            if kept.rolls_up and is_on and kept.keeps is not None:
                del shown[: -kept.keeps]
        if leaf is not None:
            return shown, loose
        return [kept for kept in shown if kept.sequence >= self.first], loose

    def has_on_path(self, kept: Kept, leaf: int) -> bool:
        """Whether what stands beside the history does so among the events of a path."""
        on = self.path(leaf)
        last = {self.branch_of(each): each for each in on}.get(kept.branch, -1)
        return last >= 0 and self._firsts(on)[kept.branch] <= kept.sequence <= last

    def _firsts(self, on: list[int]) -> dict[int, int]:
        """By branch of a path, the event that the path's part of it follows."""
        found: dict[int, int] = {}
        before = -1
        for each in on:
            found.setdefault(self.branch_of(each), before)
            before = each
        return found

    def space(self, kind: str, sequence: int | None = None) -> dict[str, tuple[Any, int]]:
        """What events of a kind set, after an event: values and sequences by key, sorted."""
        found: dict[str, tuple[Any, int]] = {}
        for kept in self.events[: None if sequence is None else sequence + 1]:
            if kept.new.kind == kind:
                for key, value in kept.new.body.get("set", {}).items():
                    found[key] = (value, kept.sequence)
                for key in kept.new.body.get("delete", []):
                    found.pop(key, None)
        return dict(sorted(found.items()))

    def variables(self, sequence: int) -> dict[str, tuple[Any, int]]:
        """Value and sequence of each variable after an event."""
        return self.space("variables", sequence)

    def info(self) -> Exact:
        """Comparable with ``performing.info_facts``."""
        facts = facts_of(self)
        head = self.head
        metadata = facts["metadata"]
        if not metadata and self.opening.metadata is None:
            metadata = None
        return (
            self.tenant,
            self.name,
            self.number,
            *[facts[name] for name in OWNERS],
            facts["title"],
            facts["status"],
            tuple(sorted({name for name, _, _ in facts["labels"]})),
            content(metadata),
            len(self.events),
            len(self.messages()),
            None if head < 0 else head,
            self.first,
            len(self.events) - 1,
            self.events[-1].position,
        )


OWNERS = ("user_id", "account_id", "agent_id", "workspace")


def facts_of(session: ModelSession, sequence: int | None = None) -> dict[str, Any]:
    """What a session is after an event, by name; labels with the event they are on."""
    told = session.space("facts", sequence)
    opening = session.opening.facts()
    found: dict[str, Any] = {name: opening.get(name) for name in ("title", *OWNERS)}
    found |= {"status": None, "status_detail": None, "summary": None, "holds": ()}
    found |= {"parent": None, "cloned_from": None, "metadata": dict(opening.get("metadata", {}))}
    labels, related, aliases = [], [], []
    for key, (value, said) in told.items():
        what, dot, name = key.partition(".")
        if what == "metadata" and dot:
            found["metadata"].pop(name, None)
            if value:
                found["metadata"][name] = value[0]
        elif what == "label" and dot:
            on, _, label = name.partition(".")
            labels.append((label, int(on) if on else None, said))
        elif what == "related" and dot:
            related.append(name)
        elif what == "alias" and dot:
            aliases.append(name)
        elif what == "status":
            found["status"], found["status_detail"] = value
        elif what == "summary":
            found["summary"] = value[0]
        elif what == "hold":
            found["holds"] = tuple(value)
        else:
            found[what] = tuple(value) if type(value) is list else value
    labels.sort(key=lambda each: (each[0], -1 if each[1] is None else each[1]))
    return {**found, "labels": labels, "related": tuple(related), "aliases": tuple(aliases)}
