"""Trees: records that name their parents, as a session whose events follow their parents.

A source says of each record which one it follows, in whatever order, and sometimes wrongly. What is
wrong is mended where that loses no more than the wrong part, and each mend is told (``Mend``).

Invariants:
    1. Every event comes after its parent; apart from that they stand in the order given.
    2. An orphan is a root; of a cycle the event that stands first is. What followed it still does.
    3. Of records with one id the first counts. The others are left out, which is a mend.
    4. What was used for a record stands right behind it, and belongs to it.
    5. Whatever the records say, this ends: nothing recurses, and the time is that of sorting them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from eventlog.errors import UsageError
from eventlog.keys import name_bytes
from turnlog.importers.model import Mend, ParsedEvent
from turnlog.importers.strict import clip

ROOT: Final = -1  # as the parent of an event that begins a path of its own
_NEW, _ON_WALK, _DONE = 0, 1, 2


@dataclass(slots=True)
class Node:
    """One record of a tree.

    Attributes:
        event: Its event, without a parent.
        key: What others name it by; None for what nothing can follow.
        parent: Key of the record that it follows; None for a root.
        line: Its line in the file, from 1, where it has one of its own.
        is_beside: It stands beside the history: it follows nothing.
        used: The event that says what was used for it, which comes right behind it.
    """

    event: ParsedEvent
    key: Hashable | None = None
    parent: Hashable | None = None
    line: int | None = None
    is_beside: bool = False
    used: ParsedEvent | None = None


@dataclass(slots=True)
class Tree:
    """Events in an order that a store takes.

    Attributes:
        events: The events, with their parents by sequence; the first one has sequence 0.
        lines: The line of each, where every one has its own.
        mends: What was put right, in the order of the file.
        sequences: Sequence of each event by its key.
    """

    events: list[ParsedEvent] = field(default_factory=list)
    lines: array[int] | None = None
    mends: list[Mend] = field(default_factory=list)
    sequences: dict[Hashable, int] = field(default_factory=dict)

    def move_head(self, key: Hashable | None) -> None:
        """Make the event of a key the head, if there is one and it is not the head already."""
        sequence = self.sequences.get(key)
        if sequence is not None and sequence != len(self.events) - 1:
            self.events.append(ParsedEvent("head_move", None, parent=sequence))
            self.lines = None


def grow(nodes: Sequence[Node], *, name_of: Callable[[Node], str] | None = None) -> Tree:
    """Put the records of a tree in order, and mend what is wrong with it.

    Args:
        nodes: The records.
        name_of: What a record is called in messages; its key without it.
    """
    tree = Tree()
    called = (lambda node: clip(str(node.key))) if name_of is None else name_of
    kept = _unique(nodes, tree, called)
    above = _parents(kept, tree, called)
    _cut_cycles(kept, above, tree, called)
    tree.mends.sort(key=lambda mend: mend.line or 0)
    order = _ordered(above)
    sequences = array("q", bytes(8 * len(kept)))
    has_root = False
    lines = array("Q")
    for place in order:
        node = kept[place]
        sequence = sequences[place] = len(tree.events)
        event = node.event
        if node.is_beside:
            event.parent = None
        elif above[place] >= 0:
            event.parent = sequences[above[place]]
        else:
            event.parent = ROOT if has_root else None
            has_root = True
        if node.key is not None:
            tree.sequences[node.key] = sequence
        tree.events.append(event)
        lines.append(node.line or 0)
        if node.used is not None:
            node.used.parent, node.used.time_us = sequence, event.time_us
            tree.events.append(node.used)
            lines.append(node.line or 0)
    if all(node.line is not None for node in kept):
        tree.lines = lines
    return tree


def key_of(value: object) -> str | None:
    """What a source names a record by, as a key; anything but a text by what it looks like."""
    return value if value is None or isinstance(value, str) else ascii(value)


def id_of(value: object) -> str | None:
    """A source's id as the id of an event; None where no store takes it as one."""
    if type(value) is not str:
        return None
    try:
        name_bytes(value, "id")
    except UsageError:
        return None
    return value


def _unique(nodes: Sequence[Node], tree: Tree, called: Callable[[Node], str]) -> list[Node]:
    first: dict[Hashable, Node] = {}
    kept: list[Node] = []
    for node in nodes:
        if node.key is not None:
            before = first.setdefault(node.key, node)
            if before is not node:
                where = "" if before.line is None else f" in line {before.line}"
                reason = f"the id {called(node)} occurs again; what it had{where} counts"
                tree.mends.append(Mend("duplicate", node.line, reason))
                continue
        kept.append(node)
    return kept


def _parents(kept: list[Node], tree: Tree, called: Callable[[Node], str]) -> array[int]:
    """The place of each record's parent, ``ROOT`` for none."""
    places = {node.key: place for place, node in enumerate(kept) if node.key is not None}
    above = array("q", [ROOT]) * len(kept)
    for place, node in enumerate(kept):
        if node.parent is None or node.is_beside:
            continue
        found = places.get(node.parent)
        if found is None or kept[found].is_beside:
            reason = f"{called(node)} follows {clip(str(node.parent))}, which is not there"
            tree.mends.append(Mend("orphan", node.line, f"{reason}; it begins a path of its own"))
        else:
            above[place] = found
    return above


def _cut_cycles(
    kept: list[Node], above: array[int], tree: Tree, called: Callable[[Node], str]
) -> None:
    """Make the first record of each cycle a root."""
    states = bytearray(len(above))
    for start in range(len(above)):
        walk: list[int] = []
        place = start
        while place >= 0 and states[place] == _NEW:
            states[place] = _ON_WALK
            walk.append(place)
            place = above[place]
        if place >= 0 and states[place] == _ON_WALK:
            cycle = walk[walk.index(place) :]
            first = min(cycle)
            above[first] = ROOT
            node = kept[first]
            reason = f"{called(node)} follows itself"
            if len(cycle) > 1:
                reason += f" by way of {len(cycle) - 1:,} others"
            tree.mends.append(Mend("cycle", node.line, f"{reason}; it begins a path of its own"))
        for each in walk:
            states[each] = _DONE


def _ordered(above: array[int]) -> list[int]:
    """Places in an order that has parents first, otherwise as given."""
    below: dict[int, list[int]] = {}
    ready: list[int] = []
    for place, parent in enumerate(above):
        if parent < 0:
            ready.append(place)
        else:
            below.setdefault(parent, []).append(place)
    heapify(ready)
    order: list[int] = []
    while ready:
        place = heappop(ready)
        order.append(place)
        for each in below.pop(place, ()):
            heappush(ready, each)
    assert len(order) == len(above)
    return order
