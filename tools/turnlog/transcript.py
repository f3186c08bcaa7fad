"""An event as people read it: place, relative time, who, what. Pure.

Invariants:
    1. The same events give the same text: no clock, no locale, no width of a terminal.
    2. Simulated or imported calls are shown on their own time line, as given; only a session
       without given times is shown by the times at which it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from engine.export import encode_line, escape
from engine.hiddennames import session_words
from turnlog import terminal

if TYPE_CHECKING:
    from engine import Event, SessionInfo

FIRST_EVENTS: Final = 256  # looked at to learn whether a session has given times
CLIP_CHARS: Final = 2_000  # of one event, where nobody asked for all of it
LABEL_CHARS: Final = 24
REDACTED: Final = "[redacted]"  # in the place of what an event said
SEQUENCE_DIGITS: Final = 10
_LABEL_WIDTH: Final = 10
_INDENT: Final = " " * (SEQUENCE_DIGITS + 2 + 12 + 2 + _LABEL_WIDTH + 2)
_STYLES: Final = {"user": "green", "assistant": "cyan", "tool": "yellow", "system": "magenta"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Parts = list[tuple[str, str]]


class Timeline:
    """The virtual clock of one session.

    An event without a given time, in a session that has them, stands at the time of the one before.

    Args:
        first: The session's first events, from sequence 0; they decide whether it has given times
            and where it starts.
    """

    def __init__(self, first: Iterable[Event]) -> None:
        events = list(first)
        given = [event.time_us for event in events if event.time_us is not None]
        self.has_given = bool(given)
        """Whether its times came with the events; else they are those of recording."""
        if not given:
            given = [event.recorded_us for event in events[:1]]
        self.start_us: int | None = given[0] if given else None
        """When it starts, in microseconds from 1970; None for a session without events."""
        self._last_us = self.start_us

    def skip_to(self, time_us: int | None) -> None:
        """Leave events out whose last given time is this one; None when there is none."""
        if self.has_given and time_us is not None:
            self._last_us = time_us

    def offset_us(self, event: Event) -> int:
        """The event's place on the time line, from the start; times may go back."""
        time_us = event.time_us if self.has_given else event.recorded_us
        if time_us is None:
            time_us = self._last_us
        if self.start_us is None:  # it had no events when its first ones were asked for
            self.start_us = time_us
        assert time_us is not None
        assert self.start_us is not None
        self._last_us = time_us
        return time_us - self.start_us

    def start_text(self) -> str:
        """When it starts, and by which clock if not by its own."""
        if self.has_given:
            return f"starts {time_text(self.start_us)} UTC"
        return f"without times of its own, recorded from {time_text(self.start_us)} UTC"


def offset_text(offset_us: int) -> str:
    """A relative time like ``+00:04.210`` or ``+1:00:04.210``."""
    sign = "-" if offset_us < 0 else "+"
    ms = abs(offset_us) // 1000
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    clock = f"{minutes:02d}:{ms // 1000:02d}.{ms % 1000:03d}"
    return f"{sign}{hours}:{clock}" if hours else sign + clock


def time_text(time_us: int | None) -> str:
    """A point in time in UTC, to the second; what no calendar holds stays a number."""
    if time_us is None:
        return "-"
    try:
        moment = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return f"{time_us} us"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def heading(info: SessionInfo) -> list[str]:
    """What a transcript begins with: the session's name, user, title, status and labels."""
    words = [terminal.quote(info.name)]
    if info.user_id is not None:
        words.append(f"user {terminal.quote(info.user_id)}")
    if info.title:
        words.append(terminal.quote(terminal.clipped(info.title)))
    if info.status is not None:
        words.append(f"status {terminal.quote(terminal.clipped(info.status))}")
    if info.labels:
        labels = ", ".join([terminal.quote(terminal.clipped(name)) for name in info.labels])
        words.append(f"labels {labels}")
    return words


def entry(event: Event, offset_us: int, *, clip: int | None = CLIP_CHARS) -> Parts:
    """The parts of one entry for ``Screen.line``.

    Args:
        event: The event.
        offset_us: Its place on the time line.
        clip: Characters of its text to show, None for all.
    """
    label, style, text = _words(event)
    return [
        (f"{event.sequence:0{SEQUENCE_DIGITS}d}  {offset_text(offset_us):<12}  ", "dim"),
        (f"{_label(label):<{_LABEL_WIDTH}}  ", style),
        (terminal.block(_clipped(text, clip), _INDENT), "dim" if style == "dim" else ""),
    ]


def stray_entry(event: Event) -> Parts:
    """One entry among those of other sessions: when it was recorded and where it belongs."""
    label, style, text = _words(event)
    where = terminal.escape(session_words(event.session))
    if not event.is_hidden:
        where = terminal.quote(event.session)
    if event.tenant:
        where = f"{terminal.quote(event.tenant)}/{where}"
    return [
        (f"{time_text(event.recorded_us)}  ", "dim"),
        (f"{where}  ", "bold"),
        (f"{event.sequence:0{SEQUENCE_DIGITS}d}  ", "dim"),
        (f"{_label(label):<{_LABEL_WIDTH}}  ", style),
        (terminal.block(_clipped(text, CLIP_CHARS), "    "), "dim" if style == "dim" else ""),
    ]


def _label(label: str) -> str:
    return terminal.escape(label[:LABEL_CHARS])[:LABEL_CHARS]


def _clipped(text: str, clip: int | None) -> str:
    if clip is None or len(text) <= clip:
        return text
    return f"{text[:clip]} … ({len(text) - clip:,} more characters)"


def _words(event: Event) -> tuple[str, str, str]:
    if event.redacted:
        return event.role or event.kind, "dim", REDACTED
    body = event.body
    if event.kind == "message" and type(body) is dict:
        role = body.get("role")
        label = role if type(role) is str and role else "message"
        return label, _STYLES.get(label, "bold"), _message_text(body)
    if type(body) is dict:
        fields = dict(body)
        first = fields.pop("type", None) if event.kind == "event" else None
        words = [first] if type(first) is str else []
        if first is not None and not words:
            fields["type"] = first
        words += [f"{key}={value_text(item)}" for key, item in fields.items()]
        return event.kind, "dim", " ".join(words)
    return event.kind, "dim", value_text(body)


def _message_text(body: dict[str, Any]) -> str:
    rest = {key: item for key, item in body.items() if key != "role"}
    pieces: list[str] = []
    answered = rest.get("tool_call_id")
    if type(answered) is str:
        del rest["tool_call_id"]
        pieces.append(f"← {answered}:")
    pieces.append(_content_text(rest.pop("content", None)))
    calls = rest.get("tool_calls")
    if type(calls) is list and calls:
        del rest["tool_calls"]
        pieces += [_call_text(call) for call in calls]
    rest = {key: item for key, item in rest.items() if item is not None}
    if rest:
        pieces.append(_json_text(rest))
    return " ".join(piece for piece in pieces if piece)


def _content_text(content: object) -> str:
    if content is None:
        return ""
    if type(content) is list:
        return " ".join(_block_text(item) for item in content)
    return value_text(content)


def _block_text(item: object) -> str:
    if type(item) is dict and item.get("type") == "text" and type(item.get("text")) is str:
        text: str = item["text"]
        rest = {key: value for key, value in item.items() if key not in ("type", "text")}
        return f"{text} {_json_text(rest)}" if rest else text
    return value_text(item)


def _call_text(call: object) -> str:
    function = call.get("function") if type(call) is dict else None
    if type(function) is dict and type(function.get("name")) is str:
        assert type(call) is dict
        arguments = function.get("arguments", "")
        return f"→ {function['name']}({value_text(arguments)}) {value_text(call.get('id', ''))}"
    return f"→ {_json_text(call)}"


def value_text(value: object) -> str:
    """A value in a line of text: text as it is, anything else as JSON."""
    if type(value) is str:
        return value
    if type(value) is bytes:
        return f"<{len(value):,} bytes>"
    return _json_text(value)


def _json_text(value: object) -> str:
    return encode_line(escape(_without_bytes(value)))


def _without_bytes(value: Any) -> Any:
    if type(value) is bytes:
        return f"<{len(value):,} bytes>"
    if type(value) is dict:
        return {key: _without_bytes(item) for key, item in value.items()}
    if type(value) is list:
        return [_without_bytes(item) for item in value]
    return value
