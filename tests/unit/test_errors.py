"""What errors tell where nobody catches them."""

from __future__ import annotations

import traceback

import pytest

from engine import Store
from eventlog import errors
from eventlog.errors import AppendConflictError, ConflictError, InvalidNameError, TurnlogError


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


def test_a_conflict_names_what_the_caller_named(store: Store) -> None:
    """Conflicts told of digests, of `runs 'r1'` with version -1, and of events to come before."""
    call = store.session("c")
    call.append({"n": 1}).result()
    call.documents.write("notes", "a").result()
    call.runs.begin("r1").result()
    call.tool_calls.open("c1", "f").result()
    call.update_state({"v": 1}).result()
    refused = [
        (
            call.documents.write("notes", "b", expected_version=0),
            "document 'notes' has version 1, ",
        ),
        (
            call.documents.delete("no", expected_version=3),
            "document 'no' does not exist; version 3 ",
        ),
        (call.runs.begin("r1"), "run 'r1' exists already, with version 2"),
        (call.tool_calls.open("c1", "f"), "tool call 'c1' exists already, with version 3"),
        (call.update_state({"v": 2}, expected={"v": 2}), "variable 'v' has version 4, not 2"),
        (call.append({"n": 2}, parent=777), "session 'c' has no event 777"),
        (call.checkout(777), "session 'c' has no event 777"),
        (call.name_branch("z", 777), "session 'c' has no event 777"),
        (call.record_usage(input_tokens=1, event="zz"), "there is no event with id 'zz'"),
    ]
    for ack, reason in refused:
        with pytest.raises(AppendConflictError) as caught:
            ack.result(10)
        assert str(caught.value).startswith(reason)
        assert "branch" not in caught.value.hint
    with pytest.raises(AppendConflictError) as caught:
        call.append({"n": 2}, parent="zz").result(10)
    assert "branches()" in caught.value.hint
