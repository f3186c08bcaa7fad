"""What errors tell where nobody catches them."""

from __future__ import annotations

import traceback

import pytest

from engine import Store
from eventlog import errors
from eventlog.errors import ConflictError, InvalidNameError, TurnlogError


def shown(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def test_a_traceback_shows_what_to_do_next(store: Store) -> None:
    """A hint was an attribute alone, and a traceback prints the message. Whoever read a log of one
    had the half that does not help.
    """
    with pytest.raises(InvalidNameError) as caught:
        store.session("")
    error = caught.value
    assert error.hint not in str(error)
    assert shown(error)[-1] == f"Hint: {error.hint}"


def test_an_error_that_is_raised_again_has_one_hint(store: Store) -> None:
    ack = store.session("s").append({"n": 1}, expected_head=5)
    for _ in range(3):
        with pytest.raises(ConflictError) as caught:
            ack.result(10)
    lines = shown(caught.value)
    assert [line for line in lines if line.startswith("Hint")] == [f"Hint: {caught.value.hint}"]


def test_a_hint_that_changes_replaces_its_note() -> None:
    error = ConflictError("no", hint="Do this.")
    error.add_note("a note of somebody else")
    error.hint = "Do that."
    assert (error.hint, error.__notes__) == (
        "Do that.",
        ["a note of somebody else", "Hint: Do that."],
    )
    assert not hasattr(TurnlogError("no"), "__notes__")  # there is nothing to tell


def test_every_class_has_a_hint_of_its_own() -> None:
    kinds = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, TurnlogError) and each is not TurnlogError
    ]
    assert len(kinds) > 20
    assert all([each.default_hint != TurnlogError.default_hint for each in kinds])
