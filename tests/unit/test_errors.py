"""What errors tell where nobody catches them."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable

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


SAMPLES: list[TurnlogError] = [
    TurnlogError("no"),
    ConflictError("no", expected=1, current=[2], hint="Do this."),
    AppendConflictError("no", expected=None, current=3),
    errors.InvalidMessageError("no", path="$.a"),
    errors.LimitExceededError("no", name="KEY_BYTES_MAX", actual=2, limit=1, path="$"),
    errors.BusyError("no", owner="pid 1"),
    errors.NotUpToBoundError("no", position=4),
    errors.FormatVersionError("no", found=9, supported=2),
    errors.TrimmedError("no", first=7),
    errors.DamagedInputError("no", file="f", line=3),
    errors.CorruptionError("no", where="table x"),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("through", [copy.copy, lambda each: pickle.loads(pickle.dumps(each))])
def test_errors_are_copied_and_pickled_with_their_fields(
    error: TurnlogError, through: Callable[[TurnlogError], TurnlogError]
) -> None:
    """A worker's error with a field could not be unpickled: its constructor wants keywords."""
    found = through(error)
    assert type(found) is type(error)
    assert (found.args, vars(found)) == (error.args, vars(error))
    assert found.hint == error.hint
    assert shown(found) == shown(error)


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
