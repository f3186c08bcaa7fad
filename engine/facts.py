"""Facts: what a session is, beside what was said in it: title, status, labels, whose it is.

Some are given at creation (``events.OPENING_FACTS``), and all of them can be changed later: the
space ``facts`` has a key for each that was, and a later fact stands over the one given at creation.
``None`` takes a fact away that was given then. Keys are

- ``title``, ``user_id``, ``account_id``, ``agent_id``, ``workspace``: text or None
- ``status``: ``[text or None, detail]``; ``summary``: ``[text or None, detail]``
- ``metadata.NAME``: ``[value]``, or ``[]`` where the one given at creation is taken away
- ``label.SEQUENCE.NAME``, ``label..NAME`` of the whole session: True
- ``parent`` and ``cloned_from``: ``[session, sequence or None]`` or None
- ``related.NAME``: True
- ``alias.NAME``: True (``aliases``)
- ``hold``: the reasons why the session is held, at least one (``holds``)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.variables import StoredVariable, decode_row
from eventlog.arguments import shown, whole
from eventlog.errors import CorruptionError, InvalidMessageError, InvalidNameError, UsageError
from eventlog.keys import name_bytes
from eventlog.limits import FACT_NAME_BYTES_MAX, POSITION_MAX

OWNERS: Final = ("user_id", "account_id", "agent_id", "workspace")
TEXTS: Final = ("title", *OWNERS)
METADATA: Final = "metadata."
LABEL: Final = "label."
RELATED: Final = "related."
ALIAS: Final = "alias."
HOLD: Final = "hold"


@dataclass(frozen=True, slots=True)
class Label:
    """A label of a session, or of one of its events.

    Attributes:
        name: The label.
        on: Sequence of the event; None for the whole session.
        sequence: Sequence of the event that put it there.
        updated_us: Recorded time of that event, µs since the epoch.
    """

    name: str
    on: int | None
    sequence: int
    updated_us: int


@dataclass(frozen=True, slots=True)
class SessionLink:
    """Where a session comes from.

    Attributes:
        session: Name of the other session, of the same tenant. It may be gone by now.
        sequence: The event of it that is meant; None for all of it.
    """

    session: str
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A status or a summary, as it was at some time.

    Attributes:
        text: What was said; None where it was taken away.
        detail: What was given beside it.
        sequence: Sequence of the event that said so.
        updated_us: Recorded time of that event, µs since the epoch.
    """

    text: str | None
    detail: Any
    sequence: int
    updated_us: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a session is, now or after one of its events; a copy, of plain values.

    Attributes:
        title: Its title.
        status: Its status.
        status_detail: What was given beside it.
        user_id: Whose it is; likewise the next three.
        account_id: The account.
        agent_id: The agent.
        workspace: The workspace.
        metadata: What was given at creation and changed since.
        labels: Labels of the session and of its events, by name.
        summary: The latest summary.
        parent: The session that it belongs to.
        cloned_from: The session that it is a clone of.
        related: Names of other sessions that it has to do with.
        aliases: The names that other systems know it by.
        holds: Why it must be kept, oldest reason first (``Session.hold``).
    """

    title: str | None = None
    status: str | None = None
    status_detail: Any = None
    user_id: str | None = None
    account_id: str | None = None
    agent_id: str | None = None
    workspace: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    labels: tuple[Label, ...] = ()
    summary: str | None = None
    parent: SessionLink | None = None
    cloned_from: SessionLink | None = None
    related: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()


def stored_facts(rows: Mapping[bytes, bytes], where: str) -> dict[str, StoredVariable]:
    """Facts by key, from the contents of their rows.

    Raises:
        CorruptionError: A row is none.
    """
    found = [decode_row(content, where) for content in rows.values()]
    return {each.key: each for each in found}


def facts_from(
    opening: Mapping[str, Any],
    stored: Mapping[str, StoredVariable],
    where: str,
    faults: list[CorruptionError] | None = None,
) -> Facts:
    """What was given at creation, with what was changed since on top.

    Args:
        opening: What was given at creation.
        stored: What was changed since, by key.
        where: What they are the facts of.
        faults: Gets what is wrong with a fact, which is left out; None raises it.

    Raises:
        CorruptionError: A fact is not what its key says.
    """
    given = {name: opening[name] for name in TEXTS if name in opening}
    metadata: dict[str, Any] = dict(opening.get("metadata") or {})
    labels: list[Label] = []
    related: list[str] = []
    aliases: list[str] = []
    for key in sorted(stored) if len(stored) > 1 else stored:
        each = stored[key]
        kind, dot, name = key.partition(".")
        # Of those that only are there or not, the value is nobody's concern.
        value: Any = each.value() if not dot or kind == "metadata" else True
        reason = _fault(key, value)
        if reason is not None:
            error = CorruptionError(reason, where=f"{where}, fact {key!a} at {each.sequence}")
            if faults is None:
                raise error
            faults.append(error)
        elif not dot:
            _take(given, key, value)
        elif kind == "metadata":
            if value:
                metadata[name] = value[0]
            else:
                metadata.pop(name, None)
        elif kind == "label":
            on, _, label = name.partition(".")
            labels.append(Label(label, int(on) if on else None, each.sequence, each.updated_us))
        elif kind == "related":
            related.append(name)
        elif kind == "alias":
            aliases.append(name)
    labels.sort(key=lambda label: (label.name, -1 if label.on is None else label.on))
    return Facts(
        **given,
        metadata=metadata,
        labels=tuple(labels),
        related=tuple(related),
        aliases=tuple(aliases),
    )


def _take(given: dict[str, Any], key: str, value: Any) -> None:
    """A fact that has a key to itself; what this release knows nothing of is left out."""
    if key in TEXTS:
        given[key] = value
    elif key == "status":
        given["status"], given["status_detail"] = value
    elif key == "summary":
        given["summary"] = value[0]
    elif key == HOLD:
        given["holds"] = holds_in(value)
    elif key in ("parent", "cloned_from"):
        given[key] = None if value is None else SessionLink(*value)


def check_facts(facts: Mapping[str, Any], root: str) -> None:
    """Raise for facts that no call of a session can have stated; unknown keys may be anything.

    Args:
        facts: Facts by key.
        root: Where they are.

    Raises:
        InvalidMessageError: One is not what its key says; names the path.
    """
    for key, value in facts.items():
        reason = _fault(key, value)
        if reason is None:
            reason = _name_fault(key, value)
        if reason is not None:
            raise InvalidMessageError(reason, path=f"{root}.{key}", hint=_HINT)


def _fault(key: str, value: Any) -> str | None:
    """Why a fact is not what its key says; None where it is, or the key is unknown."""
    kind, dot, name = key.partition(".")
    if not dot:
        shape = _SHAPES.get(key)
        return None if shape is None or _OF_SHAPE[shape](value) else f"must be {shape}"
    if kind == "metadata":
        is_right = type(value) is list and len(value) <= 1
        return None if is_right else "must be a list of the value, or an empty one"
    if kind == "label" and not is_labelled(name):
        return "must name a sequence, or nothing, and a label"
    if kind in _FLAGS and value is not True:
        return "must be true"
    return None


def _name_fault(key: str, value: Any) -> str | None:
    """What is wrong with the names in a fact that is of the right shape."""
    kind, dot, name = key.partition(".")
    try:
        if kind == "label" and dot:
            fact_name(name.partition(".")[2], kind)
        elif dot and (kind == "metadata" or kind in _FLAGS):
            fact_name(name, kind)
        elif key in OWNERS:
            optional_text(value, key)
        elif key in ("status", "parent", "cloned_from") and value is not None:
            optional_text(value[0], key)
    except InvalidNameError as error:
        return str(error)
    return None


def _is_text(value: Any) -> bool:
    return value is None or type(value) is str


def _is_said(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and _is_text(value[0])


def _is_link(value: Any) -> bool:
    return value is None or (
        type(value) is list
        and len(value) == 2
        and type(value[0]) is str
        and (value[1] is None or _is_sequence(value[1]))
    )


def _is_sequence(value: Any) -> bool:
    return type(value) is int and 0 <= value <= POSITION_MAX


def is_labelled(name: str) -> bool:
    """Whether that is what follows ``label.`` in a key."""
    on, dot, _ = name.partition(".")
    if not on:
        return bool(dot)
    is_number = on.isascii() and on.isdigit() and (on == "0" or on[0] != "0")
    return bool(dot) and is_number and int(on) <= POSITION_MAX


_TEXT: Final = "a text or null"
_SAID: Final = "a list of a text or null, and its detail"
_LINK: Final = "null, or a list of a session and a sequence or null"
_OF_SHAPE: Final[dict[str, Callable[[Any], bool]]] = {
    _TEXT: _is_text,
    _SAID: _is_said,
    _LINK: _is_link,
}
# A hold is missing: whatever it is, it holds (``holds_in``).
_SHAPES: Final = {
    **dict.fromkeys(TEXTS, _TEXT),
    **dict.fromkeys(("status", "summary"), _SAID),
    **dict.fromkeys(("parent", "cloned_from"), _LINK),
}
_FLAGS: Final = ("label", "related", "alias")
_HINT: Final = "State facts as an export tells them."


def holds_in(value: Any) -> tuple[str, ...]:
    """The reasons of a hold; what no such call wrote, but a load, holds too."""
    if type(value) is list and value and all([type(each) is str for each in value]):
        return tuple(value)
    return (shown(value),)


def said(stored: StoredVariable) -> Said:
    """A status or a summary from its fact.

    Raises:
        CorruptionError: It is none.
    """
    value = stored.value()
    if not _is_said(value):
        raise CorruptionError(f"must be {_SAID}", where=f"{stored} at {stored.sequence}")
    text, detail = value
    return Said(text, detail, stored.sequence, stored.updated_us)


def label_key(name: str, on: int | None) -> str:
    """The key of a label.

    Raises:
        InvalidNameError: Not a name of 1 to ``FACT_NAME_BYTES_MAX`` UTF-8 bytes.
    """
    fact_name(name, "label")
    if on is None:
        return f"{LABEL}.{name}"
    return f"{LABEL}{whole(on, 'on', 0, POSITION_MAX)}.{name}"


def fact_name(name: object, what: str) -> str:
    """A name that is part of a fact's key.

    Raises:
        InvalidNameError: Not a str of 1 to ``FACT_NAME_BYTES_MAX`` UTF-8 bytes.
    """
    size = len(name_bytes(name, what))
    if size > FACT_NAME_BYTES_MAX:
        raise InvalidNameError(
            f"{what} has {size} UTF-8 bytes; allowed are 1 to {FACT_NAME_BYTES_MAX}"
        )
    assert type(name) is str
    return name


def optional_text(value: object, what: str, *, is_name: bool = True) -> str | None:
    """A text, or None.

    Raises:
        InvalidNameError: Something else; a name of more bytes than names have.
    """
    if value is None:
        return None
    if is_name:
        name_bytes(value, what)
    if type(value) is not str:
        raise InvalidNameError(f"{what} must be a str, not {type(value).__name__}")
    return value


def metadata_changes(changes: Mapping[str, Any], delete: Iterable[str]) -> dict[str, Any]:
    """The facts that set and take away metadata.

    Raises:
        UsageError: A key is both.
    """
    if type(changes) is not dict:
        raise UsageError(f"metadata to set must be a dict, not {shown(changes)}")
    facts: dict[str, Any] = {
        METADATA + fact_name(key, "metadata key"): [value] for key, value in changes.items()
    }
    for key in delete:
        if METADATA + fact_name(key, "metadata key") in facts:
            raise UsageError(f"metadata {key!r} stands twice in one change")
        facts[METADATA + key] = []
    return facts
