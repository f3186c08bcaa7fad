"""Failpoints cost nothing and do nothing unless a test sets them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eventlog.errors import UsageError
from eventlog.failpoints import NAMES, failpoints, fp, raise_, set_failpoints, sleep


def test_nothing_happens_where_nothing_is_set() -> None:
    for name in NAMES:
        fp(name)


def test_an_action_runs_where_it_is_set_and_nowhere_else() -> None:
    hits: list[str] = []
    with failpoints({"commit.after_puts": lambda: hits.append("a")}):
        fp("commit.before_commit")
        fp("commit.after_puts")
        with failpoints({"commit.before_commit": lambda: hits.append("b")}):
            fp("commit.after_puts")
            fp("commit.before_commit")
        fp("commit.after_puts")
    fp("commit.after_puts")
    assert hits == ["a", "b", "a"]


def test_what_an_action_raises_comes_out() -> None:
    broken = {"commit.before_ack": raise_(OSError(5, "disk"))}
    with failpoints(broken), pytest.raises(OSError, match="disk"):
        fp("commit.before_ack")
    fp("commit.before_ack")


def test_a_sleep_returns() -> None:
    with failpoints({"commit.before_ack": sleep(0)}):
        fp("commit.before_ack")


def test_other_names_are_refused() -> None:
    with pytest.raises(UsageError, match="no failpoint"):
        set_failpoints({"commit.somewhere": sleep(0)})
    with failpoints({"commit.before_ack": sleep(0)}), pytest.raises(AssertionError):
        fp("commit.somewhere")


def test_every_failpoint_in_the_code_has_its_name_in_the_list(repository: Path) -> None:
    used: set[str] = set()
    for package in ("eventlog", "engine"):
        for path in (repository / package).rglob("*.py"):
            used |= set(re.findall(r'\bfp\("([^"]*)"\)', path.read_text("utf-8")))
    assert used <= NAMES
