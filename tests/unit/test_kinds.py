"""Kinds and roles: names and codes, and which names a caller may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kinds import (
    APPLICATION,
    CONTROLS,
    LOADABLE,
    PUBLIC,
    RESERVED,
    ROLES,
    SIDE,
    is_indexable,
    kind_code,
    kind_name,
)
from eventlog.errors import InvalidNameError, UsageError
from eventlog.limits import KIND_BYTES_MAX
from eventlog.record import CONTROL, MESSAGE


@pytest.mark.parametrize("kind", PUBLIC)
def test_public_kinds_have_codes_below_the_control_kinds(kind: str) -> None:
    code = kind_code(kind)
    assert 0 < code < APPLICATION < CONTROL
    assert kind_name(code) == kind
    assert kind_code(kind, loading=True) == code


@pytest.mark.parametrize("kind", sorted({*CONTROLS} - SIDE))
def test_control_kinds_are_the_store_s_own(kind: str) -> None:
    with pytest.raises(UsageError, match="written by the store itself"):
        kind_code(kind)
    code = CONTROLS[kind]
    assert CONTROL <= code < 256
    if kind in LOADABLE:
        assert kind_code(kind, loading=True) == code
    else:
        with pytest.raises(UsageError, match="written by the store itself"):
            kind_code(kind, loading=True)
    assert kind_name(code) == kind


@pytest.mark.parametrize("kind", sorted(SIDE))
def test_callers_append_what_stands_beside_the_history(kind: str) -> None:
    assert kind_code(kind) == kind_code(kind, loading=True) == CONTROLS[kind] > CONTROL


@pytest.mark.parametrize("kind", sorted(RESERVED))
def test_names_of_later_control_kinds_are_not_for_applications(kind: str) -> None:
    """An application that had its own "status" would have met the store's in the same session."""
    for loading in (False, True):
        with pytest.raises(UsageError, match="reserved for the store"):
            kind_code(kind, loading=loading)
    assert kind_code(f"my.{kind}") == APPLICATION


def test_what_is_defined_is_not_reserved_any_more() -> None:
    assert not RESERVED & {*PUBLIC, *CONTROLS}
    assert {"status", "trim"} <= RESERVED


def test_codes_stand_for_one_kind_each() -> None:
    codes = [*PUBLIC.values(), *CONTROLS.values(), APPLICATION]
    assert len(set(codes)) == len(codes)
    assert PUBLIC["message"] == MESSAGE
    assert len(set(ROLES.values())) == len(ROLES)
    assert 0 not in ROLES.values()


@pytest.mark.parametrize(
    "kind",
    ["a", "my.kind", "Message", " message", "ä" * 32, "x" * KIND_BYTES_MAX, "\x00", "15"],
)
def test_any_other_name_is_an_application_kind(kind: str) -> None:
    assert kind_code(kind) == kind_code(kind, loading=True) == APPLICATION


def test_application_kinds_have_their_name_elsewhere() -> None:
    assert kind_name(APPLICATION) is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        pytest.param("", "has 0 UTF-8 bytes", id="empty"),
        pytest.param("x" * (KIND_BYTES_MAX + 1), "has 65 UTF-8 bytes", id="one-too-long"),
        pytest.param("ä" * 32 + "x", "has 65 UTF-8 bytes", id="bytes-count-not-characters"),
        pytest.param("a\ud800", "lone surrogate", id="surrogate"),
        pytest.param(b"message", "not bytes", id="bytes"),
        pytest.param(None, "not NoneType", id="none"),
        pytest.param(1, "not int", id="int"),
    ],
)
def test_other_kinds_are_refused(kind: object, reason: str) -> None:
    for loading in (False, True):
        with pytest.raises(InvalidNameError, match=reason):
            kind_code(kind, loading=loading)  # type: ignore[arg-type]


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=16))
def test_every_kind_is_one_of_the_three(kind: str) -> None:
    if kind in CONTROLS or kind in RESERVED:
        return
    assert kind_code(kind) == PUBLIC.get(kind, APPLICATION)


@pytest.mark.parametrize(
    ("kind", "role", "found"),
    [
        ("message", "user", True),
        ("message", "assistant", True),
        ("message", "system", True),
        ("message", "developer", True),
        ("message", None, True),
        ("message", "tool", False),
        ("message", "toolResult", False),
        ("event", "user", False),
        ("summary", None, False),
    ],
)
def test_a_search_may_find_messages_but_never_a_tool_s(
    kind: str, role: str | None, found: bool
) -> None:
    assert is_indexable(PUBLIC[kind], ROLES[role] if role else 0) is found
    assert not is_indexable(CONTROL, 0)
    assert not is_indexable(APPLICATION, 0)
