"""ChatterBot corpus: a YAML file of `categories` and `conversations`, each a list of lines.

The speakers take turns, so lines get role user and role assistant in turn. Each line is kept as it
is written: YAML would read a plain `4`, `Yes` or `12:30` as a number or a truth value, but somebody
says it. The event's metadata then tells the type under `yaml_tag`. An item that is a text instead
of a list is a conversation of one line, marked with `conversation_is_text`. The file's other fields
are the metadata of every session. Files of one name exist in many languages, so names are
`<folder>/<file stem>/<number>`.

YAML comes from strangers: aliases and tags are refused, and nothing but plain data is made of it.
Behind a syntax error the rest of the file is unknown; the conversations before it are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

import yaml

from eventlog.limits import INT_MAX, INT_MIN
from turnlog.importers.limits import RECORD_DEPTH_MAX, YAML_BYTES_MAX, YAML_DEPTH_MAX
from turnlog.importers.model import BadRecordError, Damage, Names, ParsedEvent, ParsedSession
from turnlog.importers.records import REST_UNREAD, TOO_DEEP, load_document
from turnlog.importers.strict import clip

_ROLES: Final = ("user", "assistant")
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
_VALUE_TAGS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("bool", "float", "null"))
_INT_TAG: Final = "tag:yaml.org,2002:int"
# The parser in C is the same language, some ten times faster, and not always built.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class _Conversation:
    """A conversation whose file-level fields are not known yet."""

    number: int
    first_line: int
    last_line: int
    events: list[ParsedEvent]
    problem: BadRecordError | None = None


def read(path: Path) -> Iterator[ParsedSession | Damage]:
    """The conversations of one file."""
    folder = path.absolute().parent.name.encode("utf-8", "surrogateescape")
    names = Names(path, prefix=f"{folder.decode('utf-8', 'replace')}/")
    try:
        data = load_document(path, YAML_BYTES_MAX)
    except BadRecordError as error:
        yield Damage(str(path), error.line, None, error.reason)
        return
    document = _Document(data)
    problem: BadRecordError | None = None
    try:
        document.parse()
    except BadRecordError as error:
        problem = error
    # A field may follow the conversations, so none is given away before the file is read.
    for conversation in document.conversations:
        name = None
        try:
            name = names.give(None, conversation.number)
            if conversation.problem is not None:
                raise conversation.problem
        except BadRecordError as error:
            line = conversation.first_line if error.line is None else error.line
            yield Damage(str(path), line, name, error.reason)
            continue
        yield ParsedSession(
            name,
            conversation.events,
            metadata=dict(document.fields) or None,
            lines=(conversation.first_line, conversation.last_line),
        )
    if problem is not None:
        yield Damage(str(path), problem.line, None, f"{problem.reason}; {REST_UNREAD}")


class _Document:
    """Reads the parser's events; nothing is composed, so aliases cannot expand.

    Attributes:
        fields: The file's fields beside `conversations`, as far as they were read.
        conversations: The conversations, as far as they were read.
    """

    def __init__(self, data: bytes) -> None:
        self.fields: dict[str, Any] = {}
        self.conversations: list[_Conversation] = []
        self._events: Iterator[yaml.Event] = yaml.parse(data, Loader=_LOADER)
        self._resolver = yaml.resolver.Resolver()
        self._constructor = yaml.constructor.SafeConstructor()

    def parse(self) -> None:
        """Read the file.

        Raises:
            BadRecordError: The file as a whole is damaged, from the line on that it names.
        """
        event = self._next()
        while isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
            event = self._next()
        if not isinstance(event, yaml.MappingStartEvent):
            raise BadRecordError("the document is no mapping", line=_line(event))
        has_conversations = False
        seen: set[str] = set()
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._key(event, seen)
            event = self._next()
            if key != "conversations":
                self.fields[key] = self._value(event, 2)
                continue
            has_conversations = True
            if not isinstance(event, yaml.SequenceStartEvent):
                raise BadRecordError("'conversations' is no list", line=_line(event))
            while not isinstance(event := self._next(), yaml.SequenceEndEvent):
                self.conversations.append(self._conversation(event))
        if not has_conversations:
            raise BadRecordError("the document has no 'conversations'", line=_line(event))
        while not isinstance(event := self._next(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
                raise BadRecordError("a second document", line=_line(event))

    def _next(self) -> yaml.Event:
        try:
            return next(self._events)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = None if mark is None else mark.line + 1
            reason = f"no valid YAML: {error.problem or error.context}"
            raise BadRecordError(reason, line=line) from None
        except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BadRecordError(f"no valid YAML: {reason}") from None

    def _conversation(self, event: yaml.Event) -> _Conversation:
        """One item of the list; read to its end even when it is refused."""
        conversation = _Conversation(len(self.conversations), _line(event), _line(event), [])
        if isinstance(event, yaml.ScalarEvent):
            self._add(conversation, event, {"conversation_is_text": True})
        elif isinstance(event, yaml.SequenceStartEvent):
            _note(conversation, _refusal(event))
            while not isinstance(event := self._next(), yaml.SequenceEndEvent):
                self._add(conversation, event, {})
        else:
            self._add(conversation, event, {})
        return conversation

    def _add(
        self, conversation: _Conversation, event: yaml.Event, metadata: dict[str, Any]
    ) -> None:
        reason = _refusal(event)
        if reason is None and not isinstance(event, yaml.ScalarEvent):
            reason = "a line of a conversation is no text"
        _note(conversation, reason, _line(event))
        if not isinstance(event, yaml.ScalarEvent):
            self._skip(event)
            return
        conversation.last_line = _last_line(event)
        tag = self._tag(event)
        if tag != _TEXT_TAG:
            metadata["yaml_tag"] = tag
        body = {"role": _ROLES[len(conversation.events) % 2], "content": event.value}
        conversation.events.append(ParsedEvent("message", body, metadata=metadata or None))

    def _skip(self, event: yaml.Event) -> None:
        """Pass over a refused node without recursion, as long as its end is worth looking for."""
        depth = 0
        while True:
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > YAML_DEPTH_MAX:
                    raise BadRecordError(TOO_DEEP, line=_line(event))
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth == 0:
                return
            event = self._next()

    def _key(self, event: yaml.Event, seen: set[str]) -> str:
        reason = _refusal(event)
        if reason is not None:
            raise BadRecordError(reason, line=_line(event))
        if not isinstance(event, yaml.ScalarEvent):
            raise BadRecordError("a key is no text", line=_line(event))
        key = str(event.value)
        if key in seen:
            raise BadRecordError(f"the key {clip(key)} occurs twice", line=_line(event))
        seen.add(key)
        return key

    def _value(self, event: yaml.Event, depth: int) -> Any:
        """The plain data of a node that is no conversation."""
        reason = _refusal(event)
        if reason is None and depth > RECORD_DEPTH_MAX:
            reason = TOO_DEEP
        if reason is not None:
            raise BadRecordError(reason, line=_line(event))
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(event := self._next(), yaml.SequenceEndEvent):
                items.append(self._value(event, depth + 1))
            return items
        if isinstance(event, yaml.MappingStartEvent):
            mapping: dict[str, Any] = {}
            seen: set[str] = set()
            while not isinstance(event := self._next(), yaml.MappingEndEvent):
                key = self._key(event, seen)
                mapping[key] = self._value(self._next(), depth + 1)
            return mapping
        assert isinstance(event, yaml.ScalarEvent)
        return self._scalar(event)

    def _tag(self, event: yaml.ScalarEvent) -> str:
        tag = self._resolver.resolve(  # type: ignore[no-untyped-call]
            yaml.ScalarNode, event.value, event.implicit
        )
        return str(tag)

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        """Numbers, truth values and null as YAML reads them; dates and all else stay text."""
        tag = self._tag(event)
        if tag != _INT_TAG and tag not in _VALUE_TAGS:
            return event.value
        try:
            value = self._constructor.construct_object(yaml.ScalarNode(tag, event.value))
        except (yaml.YAMLError, ValueError, OverflowError):
            raise BadRecordError(
                f"the number {clip(event.value)} cannot be read", line=_line(event)
            ) from None
        if (isinstance(value, int) and not INT_MIN <= value <= INT_MAX) or (
            isinstance(value, float) and not isfinite(value)
        ):
            raise BadRecordError(
                f"the number {clip(event.value)} is out of range", line=_line(event)
            )
        return value


def _note(conversation: _Conversation, reason: str | None, line: int | None = None) -> None:
    if reason is not None and conversation.problem is None:
        conversation.problem = BadRecordError(
            reason, line=conversation.first_line if line is None else line
        )


def _refusal(event: yaml.Event) -> str | None:
    """Why an event is not taken from a stranger, or None."""
    if isinstance(event, yaml.AliasEvent):
        return "a YAML alias; write the text out"
    if getattr(event, "tag", None) is not None:
        return "a YAML tag; only plain data is taken"
    return None


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return 1 if mark is None else int(mark.line) + 1


def _last_line(event: yaml.Event) -> int:
    mark = event.end_mark
    if mark is None:
        return _line(event)
    # A block scalar ends at the start of the line behind it.
    return max(_line(event), int(mark.line) + (1 if mark.column else 0))
