"""Numbers that Python refuses to spell, in every place of every public call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from engine import RetentionPolicy, Session, Store, TurnlogError
from eventlog.arguments import shown
from tests.model.staging import HANG_S

HUGE = 10**5_000
GIVEN: dict[str, Any] = {  # for parameters that have to be given
    "name": "n",
    "run_id": "r",
    "id": "t",
    "text": "x",
    "content": "x",
    "status": "succeeded",
    "message": {},
    "messages": [{}],
    "kind": "note",
    "body": {},
    "changes": {},
    "reason": "case",
    "alias": "n",
    "first": 1,
    "last": 1,
    "sequence": 0,
    "answers": [0],
    "leaf": 0,
    "title": "t",
    "summary": "s",
    "parent": "p",
    "session": "other",
    "summarize": lambda messages: "s",
    "data": b"x",
    "blob": bytes(16),
    "user_id": "u",
    "policy": RetentionPolicy(max_entries=5),
    "position": 1,
    "parts": [],
    "lines": [],
    "events": [],
    "apply": print,
    "after": 0,
    "address": bytes(16),
    "content_or_address": bytes(16),
}
NEITHER = {"close", "backup", "backup_async", "restore", "vacuum", "upgrade", "open", "open_async"}


def owners(store: Store) -> dict[str, Any]:
    """What has public calls, of a store with a session."""
    call = store.session("s")
    if not call.exists:  # a call may delete it
        prepare(call)
    info = call.info()
    assert info is not None
    last = info.last_sequence
    return {
        "Session": call,
        "SessionAt": call.at(last),
        "Runs": call.runs,
        "RunsAt": call.at(last).runs,
        "ToolCalls": call.tool_calls,
        "Documents": call.documents,
        "Artifacts": call.artifacts,
        "Blobs": store.blobs,
        "Tenant": store.tenant("t"),
        "Store": store,
    }


def calls_of(owner: Any) -> Iterator[tuple[str, str]]:
    """The public calls and their parameters."""
    for name in dir(owner):
        if name.startswith("_") or name in NEITHER:
            continue
        if isinstance(inspect.getattr_static(type(owner), name, None), property):
            continue
        call = getattr(owner, name)
        if inspect.ismethod(call):
            for parameter in inspect.signature(call).parameters:
                yield name, parameter


def prepare(call: Session) -> None:
    call.append_many([{"role": "user"}, {"role": "user"}])
    call.runs.begin("r")
    call.tool_calls.open("t", "tool").result(HANG_S)


def ask(call: Any, arguments: dict[str, Any]) -> None:
    """Call it, and wait for what it gives."""
    signature = inspect.signature(call)
    done = call(
        *[
            arguments.pop(name)
            for name, each in signature.parameters.items()
            if each.kind is each.POSITIONAL_OR_KEYWORD and name in arguments
        ],
        **arguments,
    )

    async def wait() -> Any:
        return await done

    if inspect.iscoroutine(done):
        done = asyncio.run(wait())
    if hasattr(done, "result"):
        done.result(HANG_S)


OWNERS = ("Session", "SessionAt", "Runs", "RunsAt", "ToolCalls", "Documents", "Artifacts")


@pytest.mark.parametrize("name", [*OWNERS, "Blobs", "Tenant", "Store"])
def test_a_number_that_cannot_be_spelled_is_refused_like_others(store: Store, name: str) -> None:
    """``ValueError: Exceeds the limit for integer string conversion`` came from the message that
    was to say what is wrong with the argument.
    """
    tried = 0
    for call, parameter in calls_of(owners(store)[name]):
        owner = owners(store)[name]
        signature = inspect.signature(getattr(owner, call))
        for value in (HUGE, [HUGE], {HUGE: 1}, {"a": [HUGE]}, "1" * 5_000, (HUGE, HUGE)):
            arguments = {
                each: next(iter(store.session("s").events())) if each == "event" else GIVEN[each]
                for each, details in signature.parameters.items()
                if details.default is details.empty
            }
            arguments[parameter] = value
            tried += 1
            try:
                ask(getattr(owner, call), arguments)
            except (TurnlogError, TimeoutError) as error:
                assert str(error)
                assert "Exceeds the limit" not in str(error), (call, parameter)
            except Exception as error:
                error.add_note(f"{call}({parameter}={shown(value)})")
                raise
    assert tried >= 18


def test_what_is_shown_of_a_value() -> None:
    assert shown(HUGE) == f"<an int of {HUGE.bit_length():,} bits>"
    assert shown([-HUGE, {HUGE: HUGE}]).count("<an int of") == 3
    assert shown(2**70) == str(2**70)
    assert shown(True) == "True"
    assert len(shown("x" * 10_000)) < 100
    assert len(shown(10**300)) < 100
