"""A runner for command lines, stores to run them on, and a check of every store at the end."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

if TYPE_CHECKING:
    from engine import Store

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """What a command line came to."""

    code: int
    out: str
    err: str
    out_bytes: bytes


Turnlog = Callable[..., Outcome]


@pytest.fixture
def turnlog() -> Turnlog:
    """Runs one command line in this process."""
    from turnlog.cli import app

    def run(*arguments: object) -> Outcome:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.stderr
        return Outcome(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)

    return run


@pytest.fixture
def command() -> list[str]:
    """How a child process is started that runs turnlog from this source tree."""
    paths = [str(REPOSITORY), str(REPOSITORY / "tools")]
    start = f"import sys; sys.path[:0] = {paths!r}; from turnlog.cli import main; main()"
    return [sys.executable, "-c", start]


@pytest.fixture(autouse=True)
def checked(tmp_path: Path) -> Iterator[None]:
    """Checks every store in the test's folder when the test ends, but those called damaged."""
    yield
    from engine import Store

    for data in tmp_path.rglob("data.mdb"):
        if data.parent.name != "damaged":
            with Store.open(data.parent, create=False) as store:
                report = store.check()
            assert report.ok, report.findings


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """A store with two short calls and one session of another tenant."""
    from engine import Store

    path = tmp_path / "calls"
    with Store.open(path) as store:
        call = store.session("call-2", user_id="u2", title="Second")
        say(call, 1_000_000, "user", "Hello")
        say(call, 1_500_000, "assistant", "Good morning")
        call.append_event("timing", {"e2e_latency_ms": 500}, time_us=1_500_100).result()
        other = store.session("call-1", user_id="u1")
        say(other, 5_000_000, "user", "Is anybody there?")
        say(store.tenant("acme").session("call-1"), 9_000_000, "user", "From acme")
    return path


def say(session: Any, time_us: int, role: str, content: str) -> None:
    """Append one message durably."""
    session.append({"role": role, "content": content}, time_us=time_us).result()


def acting(text: str) -> list[str]:
    """The characters of an output that could act on a terminal; line feeds are its own."""
    forbidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return [char for char in text if unicodedata.category(char) in forbidden and char != "\n"]


def fill_with_everything(store: Store) -> None:
    """Sessions with every kind of value and fact that an export has to carry."""
    values: list[Any] = [
        {"role": "user", "content": "plain"},
        {"role": "user", "content": [b"\x00\xff", float("inf"), -0.0, 1.0, 1, 2**64 - 1, -(2**63)]},
        {"role": "user", "content": "cut \ud83d", "\udc00": {"$b64": "mine", "$$": None}},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}], "f": [True, {}, []]},
        {"role": "tool", "content": "a\u2028b\x85c\u202ed\n\te", "nan": float("nan")},
    ]
    call = store.session(
        "é/../\x1b[31m", user_id="u\u202e", title="T\ud83d\nx\x9b", metadata={"$k": b"1"}
    )
    for number, value in enumerate(values):
        call.append(
            value,
            id=f"id-{number}",
            time_us=-5 if number == 2 else number,
            metadata={"n": number, "bits": b"\x00"},
            tokens=number,
            run_id="r",
            turn_id="t",
            speech_id="s",
            request_id="q",
        ).result()
    call.append_event("frame", b"\x01\x02").result()
    call.append_event("event", {"type": "interruption"}).result()
    store.tenant("tenant \x07").session("é/../\x1b[31m").append(values[0]).result()
    store.session("created-only", title="empty").create().result()
