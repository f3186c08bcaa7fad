"""Text from a store is inert on a terminal."""

from __future__ import annotations

import io
import sys
import unicodedata
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog import terminal

FORBIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = "\u200c\u200d"

anything = st.text(st.characters(), max_size=60)
nasty = st.text(
    st.sampled_from(
        "a\x1b[31m\x9b2J\x07\r\n\t\x7f\u202e\u2066\u200b\u200d\ufeff\u2028\ud800é\U000e0041"
    ),
    max_size=40,
)


def acting(text: str) -> list[str]:
    """The characters of a text that could act on a terminal."""
    return [
        char for char in text if unicodedata.category(char) in FORBIDDEN and char not in JOINERS
    ]


@given(st.one_of(anything, nasty))
def test_escaped_text_holds_nothing_that_acts(text: str) -> None:
    assert not acting(terminal.escape(text))
    assert not acting(terminal.quote(text))


@given(st.one_of(anything, nasty))
def test_escaping_twice_changes_nothing_more(text: str) -> None:
    once = terminal.escape(text)
    assert terminal.escape(once) == once


@given(st.one_of(anything, nasty))
def test_a_joiner_stays_only_between_visible_characters_beyond_ascii(text: str) -> None:
    escaped = terminal.escape(text)
    for place, char in enumerate(escaped):
        if char in JOINERS:
            assert 0 < place < len(escaped) - 1
            for beside in (escaped[place - 1], escaped[place + 1]):
                assert ord(beside) > 0x7E
                assert unicodedata.category(beside) not in FORBIDDEN


@given(st.one_of(anything, nasty))
def test_a_block_holds_line_feeds_only_before_its_indent(text: str) -> None:
    block = terminal.block(text, "    ")
    assert not acting(block.replace("\n    ", ""))


def test_every_control_format_and_separator_character_is_spelled_out() -> None:
    missed = [
        f"{code:04x}"
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in FORBIDDEN
        and terminal.escape(f"a{chr(code)}b").isprintable() is False
    ]
    assert missed == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 你好, été", "plain text, 你好, été"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u200b\ufeff", r"\u200b\ufeff"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("👩\u200d💻", "👩\u200d💻"),
        ("pay\u200dpal", r"pay\u200dpal"),
        ("\ud83d", r"\ud83d"),
        ("\U000e0041", r"\U000e0041"),
        ("[red]markup[/red] :smile:", "[red]markup[/red] :smile:"),
    ],
)
def test_escape(text: str, shown: str) -> None:
    assert terminal.escape(text) == shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("call-42", "call-42"),
        ("a/b:c@d", "a/b:c@d"),
        ("two words", "'two words'"),
        ("", "''"),
        ("x\x1b[2J", r"'x\x1b[2J'"),
        ("été", "été"),
    ],
)
def test_quote(name: str, shown: str) -> None:
    assert terminal.quote(name) == shown


def test_a_block_indents_its_lines_and_lays_tabs_out_as_blanks() -> None:
    assert terminal.block("one\r\n\ttwo\rthree\n", "  ") == "one\n      two\n  three\n  "


@given(st.lists(st.one_of(anything, nasty), max_size=4))
def test_a_line_on_a_colour_terminal_holds_no_sequence_but_the_style(parts: list[str]) -> None:
    stream = Stream()
    screen = terminal.Screen(stream, colours=True)
    screen.line(*[(part, "green") for part in parts])
    plain = stream.written().replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert plain == "".join(map(terminal.escape, parts)) + "\n"


@given(st.lists(st.one_of(anything, nasty), max_size=4))
def test_a_line_without_colours_is_the_text_alone(parts: list[str]) -> None:
    stream = Stream()
    terminal.Screen(stream).line(*[(part, "green") for part in parts])
    assert not acting(stream.written().removesuffix("\n"))


def test_only_a_block_begins_lines() -> None:
    """Any text with a line feed could forge lines, such as a session's title in a heading."""
    stream = Stream()
    terminal.Screen(stream).line("a\nb ", (terminal.block("c\nd", "  "), "dim"))
    assert stream.written() == "a\\nb c\n  d\n"


@pytest.mark.parametrize(
    ("environment", "styled"),
    [
        pytest.param({"TERM": "xterm"}, True, id="terminal"),
        pytest.param({"TERM": "xterm", "NO_COLOR": ""}, True, id="empty-no-color"),
        pytest.param({"TERM": "xterm", "NO_COLOR": "1"}, False, id="no-color"),
        pytest.param({"TERM": "dumb"}, False, id="dumb"),
        pytest.param({}, False, id="unknown"),
    ],
)
def test_styles_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], styled: bool
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Stream(is_terminal=True)
    terminal.Screen(stream).line(("x", "bold"))
    assert stream.written() == ("\x1b[1mx\x1b[0m\n" if styled else "x\n")


def test_markup_and_emoji_codes_are_not_interpreted() -> None:
    stream = Stream()
    terminal.Screen(stream, colours=True).line(("[bold red]x[/] :smile: https://a.b 12", ""))
    assert stream.written() == "[bold red]x[/] :smile: https://a.b 12\n"


def test_long_lines_are_not_wrapped() -> None:
    stream = Stream()
    terminal.Screen(stream, colours=True).line(("word " * 100, ""))
    assert stream.written().count("\n") == 1


@given(st.lists(st.tuples(nasty, nasty), min_size=1, max_size=4))
def test_a_table_has_one_inert_line_a_row(rows: list[tuple[str, str]]) -> None:
    stream = Stream()
    terminal.Screen(stream).table(("A", "B"), rows, right=frozenset({1}))
    lines = stream.written().removesuffix("\n").split("\n")
    assert len(lines) == len(rows) + 1
    assert not any(map(acting, lines))


def test_wide_characters_are_aligned_by_the_cells_they_take() -> None:
    stream = Stream()
    terminal.Screen(stream).table(("A", "B"), [("你好", "1"), ("abcd", "22")], right=frozenset({1}))
    assert stream.written() == "A      B\n你好   1\nabcd  22\n"


def test_one_long_cell_does_not_stretch_the_other_rows() -> None:
    stream = Stream()
    long = "x" * 512
    terminal.Screen(stream).table(("A", "B"), [(long, "1"), ("y", "2")], right=frozenset({1}))
    head, first, second = stream.written().splitlines()
    assert first == f"{long}  1"
    assert len(second) == len(head) == terminal.CELLS_MAX + 3


def test_data_is_json_in_utf8_whatever_the_encoding_of_the_stream() -> None:
    stream = Stream(encoding="ascii")
    terminal.Screen(stream).data({"a": "é\x7f\u202e"})
    assert stream.buffer.getvalue() == '{"a":"é\\u007f\\u202e"}\n'.encode()


def test_data_on_a_terminal_without_utf8_is_ascii() -> None:
    """There the bytes of UTF-8 could act: 0x9b begins a control sequence."""
    stream = Stream(encoding="latin-1", is_terminal=True)
    terminal.Screen(stream).data({"a": "Û\x7f\u202e😀"})
    assert stream.written() == '{"a":"\\u00db\\u007f\\u202e\\ud83d\\ude00"}\n'
    stream = Stream(is_terminal=True)
    terminal.Screen(stream).data({"a": "Û"})
    assert stream.written() == '{"a":"Û"}\n'


def test_what_the_encoding_of_the_stream_lacks_is_spelled_out() -> None:
    stream = Stream(encoding="ascii")
    terminal.Screen(stream).line("é")
    assert stream.written() == "\\xe9\n"


def test_errors_are_one_line_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.complain("no \x1b[31mfile\nhere", "Look \u202eagain.")
    assert capsys.readouterr().err == (
        "turnlog: no \\x1b[31mfile\\nhere\n  hint: Look \\u202eagain.\n"
    )


@pytest.mark.parametrize("state", ["closed", "full"])
def test_a_standard_error_that_takes_nothing_is_no_error(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    stream = Stream()

    def fail() -> None:
        raise OSError("no room")

    stream.on_write = fail
    if state == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    terminal.complain("nobody", "hears")
    terminal.note("this")


def test_a_progress_bar_stays_away_from_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    with terminal.ProgressBar("work", 10, delay_s=0.0) as bar:
        bar.advance(5, "half")
    assert stream.written() == ""


def test_a_progress_bar_shows_escaped_details_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    shown = Event()
    stream.on_write = shown.set
    with terminal.ProgressBar("reading \x1b[2J", 10, delay_s=0.0) as bar:
        bar.advance(5, "[red]a\x07")
        assert shown.wait(timeout=30)
    text = stream.written()
    assert "reading \\x1b[2J" in text
    assert "[red]a\\x07" in text
    assert "\x07" not in text


class Stream(io.TextIOWrapper):
    """A text stream in memory that can pass for a terminal."""

    buffer: io.BytesIO  # type: ignore[assignment]

    def __init__(self, *, encoding: str = "utf-8", is_terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="\n", write_through=True)
        self._pretends = is_terminal
        self.on_write = lambda: None

    def isatty(self) -> bool:
        return self._pretends

    def write(self, text: str) -> int:
        self.on_write()
        return super().write(text)

    def written(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)
