"""How events read: relative times, roles, tool calls, and nothing that acts on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.transcript import Timeline, entry, offset_text, stray_entry, time_text


@dataclass
class Fact:
    """An event as far as a transcript needs it."""

    body: Any = None
    kind: str = "message"
    sequence: int = 0
    time_us: int | None = None
    recorded_us: int = 1_767_603_600_000_000
    tenant: str = ""
    session: str = "call-1"
    redacted: bool = False
    role: str | None = None
    is_hidden: bool = False


def text_of(fact: Fact, clip: int | None = None) -> str:
    parts = entry(fact, 4_210_000, clip=clip)  # type: ignore[arg-type]
    return "".join(text for text, _ in parts)


@pytest.mark.parametrize(
    ("offset_us", "text"),
    [
        (0, "+00:00.000"),
        (4_210_999, "+00:04.210"),
        (59_999_999, "+00:59.999"),
        (3_604_210_000, "+1:00:04.210"),
        (-5_000_000, "-00:05.000"),
        (360_000 * 1_000_000, "+100:00:00.000"),
    ],
)
def test_offset(offset_us: int, text: str) -> None:
    assert offset_text(offset_us) == text


def test_that_an_event_was_redacted_is_seen() -> None:
    assert text_of(Fact(redacted=True, role="user")).endswith("user        [redacted]")
    assert text_of(Fact(redacted=True, kind="my.kind")).endswith("my.kind     [redacted]")
    stray = "".join(text for text, _ in stray_entry(Fact(redacted=True, role="tool")))  # type: ignore[arg-type]
    assert stray.endswith("tool        [redacted]")
    assert text_of(Fact(body={"role": "user", "content": None}, role="user")).endswith(
        "user        "
    )


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (None, "-"),
        (0, "1970-01-01 00:00:00"),
        (1_767_603_600_999_999, "2026-01-05 09:00:00"),
        (2**63 - 1, "9223372036854775807 us"),
        (-(2**63), "-9223372036854775808 us"),
    ],
)
def test_time(time_us: int | None, text: str) -> None:
    assert time_text(time_us) == text


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        pytest.param({"role": "user", "content": "Hi"}, "message", "user        Hi", id="plain"),
        pytest.param(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "fn-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            "message",
            "assistant   → f({}) fn-1",
            id="tool-call",
        ),
        pytest.param(
            {"role": "tool", "tool_call_id": "fn-1", "content": '{"ok":true}'},
            "message",
            'tool        ← fn-1: {"ok":true}',
            id="tool-result",
        ),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image"}]},
            "message",
            'user        See {"type":"image"}',
            id="blocks",
        ),
        pytest.param(
            {"role": "user", "content": "x", "audio": b"1234"},
            "message",
            'user        x {"audio":"<4 bytes>"}',
            id="bytes",
        ),
        pytest.param({"role": 7, "content": 1.5}, "message", "message     1.5", id="odd-role"),
        pytest.param({"tool_calls": "no list"}, "message", '{"tool_calls":"no list"}', id="odd"),
        pytest.param(
            {"type": "interruption", "played_ms": 480},
            "event",
            "interruption played_ms=480",
            id="event",
        ),
        pytest.param({"e2e_ms": 7}, "timing", "timing      e2e_ms=7", id="application-kind"),
        pytest.param(b"\x00" * 1500, "frame", "frame       <1,500 bytes>", id="raw-bytes"),
        pytest.param(None, "open", "open        null", id="no-body"),
    ],
)
def test_words(body: object, kind: str, words: str) -> None:
    assert words in text_of(Fact(body, kind))


def test_sequences_are_ten_digits_and_grow() -> None:
    assert text_of(Fact(sequence=7)).startswith("0000000007  +00:04.210  ")
    assert text_of(Fact(sequence=12_345_678_901)).startswith("12345678901  ")


def test_line_breaks_in_content_are_indented() -> None:
    first, second = text_of(Fact({"role": "user", "content": "one\ntwo"})).split("\n")
    assert second.strip() == "two"
    assert first.index("one") == second.index("two")


def test_long_text_is_shortened_and_says_by_how_much() -> None:
    text = text_of(Fact({"role": "user", "content": "x" * 3000}), clip=2000)
    assert text.endswith("x … (1,000 more characters)")


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary(max_size=4)
    | st.text(st.characters(), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "tool_calls", "type", "text", "function", "name", "id"]
            )
            | st.text(st.characters(), max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(plain, st.sampled_from(["message", "event", "timing"]) | st.text(min_size=1, max_size=5))
def test_any_body_can_be_shown(body: object, kind: str) -> None:
    """Whatever a store holds has a rendering; only line feeds with their indent stay in it."""
    assert text_of(Fact(body, kind))
    parts = stray_entry(Fact(body, kind, session=kind))  # type: ignore[arg-type]
    for line in "".join(text for text, _ in parts).split("\n"):
        assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in line)


def offsets(facts: list[Fact]) -> list[int]:
    timeline = Timeline(facts)  # type: ignore[arg-type]
    return [timeline.offset_us(fact) for fact in facts]  # type: ignore[arg-type]


def test_given_times_make_the_time_line() -> None:
    facts = [Fact(time_us=1000), Fact(time_us=None), Fact(time_us=5000), Fact(time_us=3000)]
    assert offsets(facts) == [0, 0, 4000, 2000]


def test_a_session_without_given_times_is_shown_by_its_recording() -> None:
    assert offsets([Fact(recorded_us=10), Fact(recorded_us=25)]) == [0, 15]


def test_what_comes_before_the_first_given_time_stands_at_the_start() -> None:
    assert offsets([Fact(kind="open"), Fact(time_us=70), Fact(time_us=90)]) == [0, 0, 20]


def test_where_time_lines_start_is_said_as_it_is() -> None:
    """A session without given times had no start: "starts - UTC"."""
    given = Timeline([Fact(time_us=1_767_603_600_000_000)])  # type: ignore[list-item]
    assert given.start_text() == "starts 2026-01-05 09:00:00 UTC"
    recorded = Timeline([Fact(), Fact(recorded_us=5)])  # type: ignore[list-item]
    assert recorded.start_text() == (
        "without times of its own, recorded from 2026-01-05 09:00:00 UTC"
    )
