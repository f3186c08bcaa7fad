"""What events say about sequences, as the copies in a clone have it.

Invariants:
    1. What an event says of another one it says of that one's copy. Where there is no copy, that
       part is left out, or names the original, which no event of the clone is.
    2. Views of the copies are those of the originals, but for what was purged.
    3. What purged events added up to comes in the shapes that the store's own calls write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.artifacts import contents_of
from engine.belonging import value_of
from engine.boundary import NAMES, EventName, boundary_of
from engine.documents import APPENDED, DIGEST_DIGITS
from engine.facts import ALIAS, LABEL, is_labelled
from engine.fold import Fold, values_in
from engine.spaces import Space
from engine.variables import DIGITS, StoredVariable, appended_key
from eventlog.ack import store_id
from eventlog.limits import MIB

_BODY_BYTES: Final = 4 * MIB  # of values that one event sets, but for a single larger one
_BEGINNINGS: Final = {Space.RUNS: "began", Space.TOOL_CALLS: "opened"}
_BEGUN_US: Final = {Space.RUNS: "started_us", Space.TOOL_CALLS: "opened_us"}
_EVENTS: Final = ("event", "result_event")  # of a tool call

Resolve = Callable[[Collection[EventName]], Mapping[EventName, int]]


@dataclass(slots=True)
class Copied:
    """Where copies are.

    Attributes:
        number: Number of the original session.
        first: Its first sequence that was not purged.
        places: Sequences of the copies of public events, by those of the originals.
        steps: Likewise of events that change spaces.
        redacted: Likewise of events that were redacted.
    """

    number: int
    first: int
    places: dict[int, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    redacted: dict[int, int] = field(default_factory=dict)

    def link(self, body: Any) -> dict[str, Any] | None:
        """A link between the copies; None where one of them is not there."""
        if type(body) is not dict or type(body.get("answers")) is not list:
            return None  # nothing that ``Session.link`` writes
        event, named = body.get("event"), [each for each in body["answers"] if type(each) is int]
        answered = self.places.get(event) if type(event) is int else None
        answers = [self.places[each] for each in named if each in self.places]
        if answered is None or not answers:
            return None
        return {**body, "event": answered, "answers": answers}

    def redaction(self, body: Any) -> dict[str, Any] | None:
        """What was redacted, by the copies; None where none of it was copied."""
        if type(body) is not dict or not type(body.get("first")) is type(body.get("last")) is int:
            return None  # nothing that ``Session.redact`` writes
        first, last = body["first"], body["last"]
        copies = [copy for each, copy in self.redacted.items() if first <= each <= last]
        return {**body, "first": min(copies), "last": max(copies)} if copies else None

    def facts(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """A change of facts as the clone has it; None for nothing.

        Without aliases, which one session has at a time, and with labels on the copies.
        """
        changes = body.get("set", {})
        keys = {key: self._fact_key(key) for part in body.values() for key in part}
        kept = {new: changes[key] for key, new in keys.items() if new and key in changes}
        deleted = [new for key, new in keys.items() if new and key not in changes]
        changed: dict[str, Any] = {"set": kept} if kept else {}
        if deleted:
            changed["delete"] = deleted
        return changed or None

    def _fact_key(self, key: str) -> str | None:
        if key.startswith(ALIAS):
            return None
        on, dot, name = key.removeprefix(LABEL).partition(".")
        if (
            not key.startswith(LABEL)
            or not on
            or not dot
            or not is_labelled(key.removeprefix(LABEL))
        ):
            return key
        copied = self.places.get(int(on))
        return None if copied is None else f"{LABEL}{copied}.{name}"

    def compaction(self, body: Any, resolve: Resolve) -> Any:
        """The body of a compaction, with its bounds by the copies' sequences.

        Args:
            body: That of the original.
            resolve: Gives the sequences of events on its path by what names them.
        """
        boundary = boundary_of(body)
        if boundary is None:
            return body
        data = dict(body.get("data", {}))
        through, kept = boundary.through, boundary.keep
        found = resolve([*kept, *([] if through is None else [through])])
        keys = {
            name: name if data.get(name) is not None else other for name, other in NAMES.items()
        }
        if through is not None:
            sequence = found.get(through)
            if sequence in self.places:
                data[keys["through"]] = self.places[sequence]
            elif sequence is not None and sequence < self.first:
                del data[keys["through"]]  # what it hides is not in the clone
            elif type(through) is int:
                data[keys["through"]] = store_id(self.number, through)  # on no path, as before
        if kept:
            copies = [self.places.get(found.get(each, -1)) for each in kept]
            data[keys["keep"]] = [each for each in copies if each is not None]
        return {**body, "data": data}

    def change(self, space: Space, body: dict[str, Any]) -> dict[str, Any]:
        """A change of another space than the facts."""
        if space in _BEGINNINGS and "set" in body:
            changes = body["set"].items()
            return {**body, "set": {key: self._call(space, value) for key, value in changes}}
        if space is Space.DOCUMENTS and "delete" in body:
            deleted = [self._document_key(key) for key in body["delete"]]
            return {**body, "delete": [key for key in deleted if key is not None]}
        return body

    def _call(self, space: Space, value: Any) -> Any:
        """The value of a run or a tool call."""
        if type(value) is not dict:
            return value
        value = dict(value)
        steps = {_BEGINNINGS[space]: self.steps}
        if space is Space.TOOL_CALLS:
            steps |= dict.fromkeys(_EVENTS, self.places)
        for key, places in steps.items():
            if key in value:
                step = value.pop(key)
                copy = places.get(step) if type(step) is int else None
                if copy is not None:
                    value[key] = copy
        return value

    def _document_key(self, key: str) -> str | None:
        digest, mark, sequence = key[:DIGEST_DIGITS], key[DIGEST_DIGITS:][:1], key[-DIGITS:]
        if mark != APPENDED or not (sequence.isascii() and sequence.isdigit()):
            return key
        copy = self.steps.get(int(sequence))
        return None if copy is None else appended_key(digest + mark, copy)


@dataclass(frozen=True, slots=True)
class Summed:
    """A change that stands for what purged events added up to.

    Attributes:
        space: The space that it changes.
        body: What it sets or appends.
        steps: Sequences of the originals that it stands for.
        contents: The contents that the event must name, see ``artifacts.contents_of``.
    """

    space: Space
    body: dict[str, Any]
    steps: tuple[int, ...] = ()
    contents: tuple[tuple[int, str], ...] = ()


def summed(base: Fold, belongs: Callable[[Mapping[str, Any]], bool]) -> Iterator[Summed]:
    """What purged events added up to, space by space; all but what was used.

    Args:
        base: What is left of them.
        belongs: Whether what has a value goes into the clone, by the event that it belongs to.
    """
    for space in sorted(base.spaces):
        values = values_in(base, space)
        if space is Space.USAGE:
            continue
        if space is Space.DOCUMENTS:
            yield from _documents(values)
        elif space is Space.ARTIFACTS:
            yield from _artifacts(base, belongs)
        elif space in _BEGINNINGS:
            yield from _calls(space, values)
        else:
            for part in _parts(values.values()):
                yield Summed(space, {"set": part})


def _parts(values: Collection[StoredVariable]) -> Iterator[dict[str, Any]]:
    """Values by their keys, in parts that an event takes."""
    part: dict[str, Any] = {}
    size = 0
    for stored in values:
        if part and size + stored.memory_bytes > _BODY_BYTES:
            yield part
            part, size = {}, 0
        part[stored.key] = stored.value()
        size += stored.memory_bytes
    if part:
        yield part


def _documents(values: Mapping[str, StoredVariable]) -> Iterator[Summed]:
    """Texts as they were written, then one by one what was appended since, which comes after it."""
    names = {key: each.value() for key, each in values.items() if len(key) == DIGEST_DIGITS}
    written = [each for key, each in values.items() if key[DIGEST_DIGITS:][:1] != APPENDED]
    for part in _parts(written):
        yield Summed(Space.DOCUMENTS, {"set": part})
    for key in sorted(values):
        digest, mark = key[:DIGEST_DIGITS], key[DIGEST_DIGITS:][:1]
        if mark != APPENDED or digest not in names:
            continue
        before = values.get(f"{digest}=")
        if before is None or values[key].sequence > before.sequence:
            body = {"set": {digest: names[digest]}, "append": {digest + mark: values[key].value()}}
            yield Summed(Space.DOCUMENTS, body, (values[key].sequence,))


def _artifacts(base: Fold, belongs: Callable[[Mapping[str, Any]], bool]) -> Iterator[Summed]:
    """Versions in their order; what they belonged to is not in the clone."""
    contents = dict(contents_of(base))
    values = values_in(base, Space.ARTIFACTS)
    for key in sorted(values, key=lambda key: values[key].sequence):
        version = values[key].sequence
        value = value_of(values[key])
        if not belongs(value):
            continue
        for name in ("event", "branch"):
            value.pop(name, None)
        named = ((version, contents[version]),) if version in contents else ()
        body = {"append": {key[:-DIGITS]: value}}
        yield Summed(Space.ARTIFACTS, body, (version,), named)


def _calls(space: Space, values: Mapping[str, StoredVariable]) -> Iterator[Summed]:
    """Runs or tool calls by their beginnings: the order of their events is that of theirs."""
    found: list[tuple[int, str, Any]] = []
    for key, stored in values.items():
        value, began = stored.value(), stored.sequence
        if type(value) is dict:
            value = {_BEGUN_US[space]: stored.updated_us, **value}
            told = value.pop(_BEGINNINGS[space], began)
            began = told if type(told) is int else began
            for name in _EVENTS if space is Space.TOOL_CALLS else ():
                value.pop(name, None)
        found.append((began, key, value))
    for began, key, value in sorted(found, key=lambda each: each[:2]):
        yield Summed(space, {"set": {key: value}}, (began,))
