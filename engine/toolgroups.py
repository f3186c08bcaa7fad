"""Tool calls and their results in messages of the common shapes, and groups of them; pure.

========== ============================================ ==========================================
shape      a call                                       a result
========== ============================================ ==========================================
openai     ``tool_calls``: id, function                 role ``tool``, ``tool_call_id``
agentium   ``toolCalls``: id, name, arguments           role ``tool``, ``toolCallId``
anthropic  block ``tool_use``: id, name, input          block ``tool_result``, ``tool_use_id``
prism      block ``tool_call``: id, name, arguments     block ``tool_result``, ``toolCallId``
agentrail  block ``toolCall``: id, name, arguments      role ``toolResult``, ``toolCallId``
========== ============================================ ==========================================

Invariants:
    1. A group is a message with calls and the messages that answer them; nothing else is in it. All
       calls that are answered in it are of it, or of groups before it.
    2. No message is changed; one that loses blocks is another one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.estimate import MEDIA_TYPES, is_media
from engine.kinds import ROLES

NO_RESULT: Final = "No result: the tool call was not completed."
"""What a synthetic result says."""

MENTION: Final = b"tool"
"""What is in the bytes of every message that has to do with tools."""

_BLOCKS: Final = {"tool_use": "anthropic", "tool_call": "prism", "toolCall": "agentrail"}
_RESULT_ROLES: Final = ("tool", "toolResult")
_RESULT_IDS: Final = ("tool_call_id", "toolCallId", "tool_use_id")


_CALLING: Final = (0, ROLES["assistant"])  # codes of the roles of messages that may make calls
_ANSWERING: Final = tuple([ROLES[role] for role in _RESULT_ROLES])  # and do nothing else
_MAY_ANSWER: Final = (0, ROLES["user"])

assert all([MENTION.decode() in each for each in (*_BLOCKS, *_RESULT_ROLES)])


@dataclass(slots=True)
class Call:
    """One tool call.

    Attributes:
        id: What its result names.
        name: The tool's name, as far as it is told.
        shape: How the message tells it.
    """

    id: str
    name: str
    shape: str


@dataclass(slots=True)
class Tools:
    """What a message has to do with tools.

    Attributes:
        calls: The calls that it makes.
        results: Ids of the calls that it answers.
        has_more: Whether it also says something else than results.
    """

    calls: list[Call]
    results: list[str]
    has_more: bool


def tools_of(body: Any) -> Tools | None:
    """What a message has to do with tools; None for nothing."""
    if type(body) is not dict:
        return None
    content = body.get("content")
    role = body.get("role")
    if (
        type(content) is not list
        and role not in _RESULT_ROLES
        and "tool_calls" not in body
        and "toolCalls" not in body
    ):
        return None
    calls: list[Call] = []
    results: list[str] = []
    has_more = False
    for key, shape in (("tool_calls", "openai"), ("toolCalls", "agentium")):
        listed = body.get(key)
        for each in listed if type(listed) is list else ():
            _add_call(calls, each, shape)
    if role in _RESULT_ROLES:
        named = _named(body, _RESULT_IDS)
        if named is not None:
            return Tools(calls, [named], False)
    for block in content if type(content) is list else ():
        kind = block.get("type") if type(block) is dict else None
        if type(kind) is str and kind in _BLOCKS:
            _add_call(calls, block, _BLOCKS[kind])
        elif kind == "tool_result":
            named = _named(block, _RESULT_IDS)
            if named is not None:
                results.append(named)
        else:
            has_more = True
    if not calls and not results:
        return None
    return Tools(calls, results, has_more)


def _add_call(calls: list[Call], told: Any, shape: str) -> None:
    if type(told) is not dict or type(told.get("id")) is not str:
        return
    function = told.get("function")
    name = function.get("name") if type(function) is dict else told.get("name")
    calls.append(Call(told["id"], name if type(name) is str else "", shape))


def _named(told: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        if type(told.get(key)) is str:
            found: str = told[key]
            return found
    return None


def synthetic_result(call: Call) -> dict[str, Any]:
    """A message that answers a call nobody answered, in the shape of the call."""
    if call.shape == "openai":
        return {"role": "tool", "tool_call_id": call.id, "content": NO_RESULT}
    if call.shape == "agentium":
        return {"role": "tool", "toolCallId": call.id, "content": NO_RESULT}
    if call.shape == "anthropic":
        block = {"type": "tool_result", "tool_use_id": call.id, "content": NO_RESULT}
        return {"role": "user", "content": [{**block, "is_error": True}]}
    if call.shape == "prism":
        block = {"type": "tool_result", "toolCallId": call.id, "name": call.name}
        return {"role": "tool", "content": [{**block, "error": NO_RESULT}]}
    return {
        "role": "toolResult",
        "toolCallId": call.id,
        "toolName": call.name,
        "content": [{"type": "text", "text": NO_RESULT}],
        "isError": True,
    }


def without_results(body: dict[str, Any], ids: Collection[str]) -> dict[str, Any]:
    """A message without what answers these calls: blocks, or its own id and all blocks of it."""
    is_result = body.get("role") in _RESULT_ROLES and _named(body, _RESULT_IDS) in ids
    if is_result:
        body = {key: value for key, value in body.items() if key not in _RESULT_IDS}
    content = body.get("content")
    if type(content) is not list:
        return body
    kept = [
        block
        for block in content
        if not (
            type(block) is dict
            and block.get("type") == "tool_result"
            and (is_result or _named(block, _RESULT_IDS) in ids)
        )
    ]
    return {**body, "content": kept}


def without_media(body: Any) -> Any:
    """A message with a word in place of each medium; the same one when it has none."""
    content = body.get("content") if type(body) is dict else None
    if type(content) is not list:
        return body
    kept = [_plain_block(block) for block in content]
    if all([new is old for new, old in zip(kept, content, strict=True)]):
        return body
    return {**body, "content": kept}


def _plain_block(block: Any) -> Any:
    if is_media(block):
        what = next(each for each in ("image", "audio", "video", "") if each in block["type"])
        return {"type": "text", "text": f"[{what or 'file'} left out]"}
    if type(block) is dict and block.get("type") == "tool_result":
        return without_media(block)
    return block


assert "image" in MEDIA_TYPES


@dataclass(slots=True)
class Grouped:
    """Messages in whole groups.

    Attributes:
        groups: Indexes of the messages of each group, in order, and the calls nobody answered.
        orphans: By index of a message, the calls that it answers and that are not there.
        across: By index of a message, the calls of other groups that it answers, with the numbers
            of these groups, all of them before its own.
    """

    groups: list[tuple[list[int], list[Call]]]
    orphans: dict[int, list[str]]
    across: dict[int, dict[str, int]]

    def cut_off(self, first: int) -> dict[int, list[str]]:
        """By index of a message of the groups from one on, the calls before that it answers."""
        found: dict[int, list[str]] = {}
        for indexes, _ in self.groups[first:] if self.across else ():
            for index in indexes:
                owners = self.across.get(index, {})
                before = [named for named, number in owners.items() if number < first]
                if before:
                    found[index] = before
        return found


def group(tools: list[Tools | None]) -> Grouped:
    """Put messages with tool calls and those that answer them together.

    A message is a group of its own when it makes no call. One that answers calls of several groups
    is in the last of these. An id may be used again: a result answers the last call of its id
    before it.

    Args:
        tools: Of each message what it has to do with tools.
    """
    groups: list[tuple[list[int], list[Call]]] = []
    orphans: dict[int, list[str]] = {}
    across: dict[int, dict[str, int]] = {}
    owners: dict[str, int] = {}  # the group of the last call with an id
    for index, each in enumerate(tools):
        if each is None:
            groups.append(([index], []))
            continue
        missing = [named for named in each.results if named not in owners]
        if missing:
            orphans[index] = missing
        answered = [named for named in each.results if named in owners]
        if answered and not each.calls:
            number = max([owners[named] for named in answered])
            groups[number][0].append(index)
        elif each.calls or each.has_more or not each.results:
            number = len(groups)
            groups.append(([index], list(each.calls)))
        for named in answered:
            left = groups[owners[named]][1]
            left[:] = [call for call in left if call.id != named]
            if owners[named] != number:
                across.setdefault(index, {})[named] = owners[named]
        for call in each.calls:
            owners[call.id] = number
    return Grouped(groups, orphans, across)


def joined(messages: Iterable[tuple[int, Tools]], chosen: Collection[int]) -> set[int]:
    """Messages with all that they answer, and all that answers them, however far that leads.

    Args:
        messages: Sequences of messages that have to do with tools, rising, and what that is.
        chosen: Sequences of messages, whatever they are.
    """
    near: dict[int, list[int]] = {}
    made: dict[str, int] = {}  # sequence of the last call with an id
    for sequence, tools in messages:
        for named in tools.results:
            if named in made:
                near.setdefault(sequence, []).append(made[named])
                near.setdefault(made[named], []).append(sequence)
        for call in tools.calls:
            made[call.id] = sequence
    found = set(chosen)
    waiting = list(found)
    while waiting:
        for each in near.get(waiting.pop(), ()):
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def is_orphan(tools: list[Tools | None], grouped: Grouped, index: int) -> bool:
    """Whether a message answers calls that are not there, and does nothing else."""
    if index not in grouped.orphans:
        return False
    each = tools[index]
    assert each is not None
    is_all = len(grouped.orphans[index]) == len(each.results)
    return is_all and not each.calls and not each.has_more


def half_redacted(
    bodies: Sequence[Any],
    sequences: Sequence[int | None],
    redacted: Sequence[tuple[int, int]],
    is_running: Callable[[Call], bool],
) -> set[int]:
    """Indexes of messages that are left of tool groups of which a part was redacted.

    Args:
        bodies: The messages, in order.
        sequences: Those of their events, None for what is no event.
        redacted: Sequences and codes of the roles of redacted messages, rising.
        is_running: Whether nobody has to answer a call yet.
    """
    tools = [tools_of(body) for body in bodies]
    if not any(tools):
        return set()
    grouped = group(tools)
    spoken = [
        sequence
        for sequence, body in zip(sequences, bodies, strict=True)
        if sequence is not None and type(body) is dict and body.get("role") == "assistant"
    ]
    waiting: dict[int, list[int]] = {}  # whole groups, by the sequence of the call
    for indexes, unanswered in grouped.groups:
        sequence = sequences[indexes[0]]
        if sequence is not None and not all([is_running(call) for call in unanswered]):
            waiting[sequence] = indexes
    gone = {index for call in answered_by(redacted, waiting, spoken) for index in waiting[call]}
    calls = [sequence for sequence, role in redacted if role in _CALLING]
    for index in grouped.orphans if calls else ():
        sequence = sequences[index]
        if sequence is not None and sequence > calls[0] and is_orphan(tools, grouped, index):
            gone.add(index)
    return gone


def answered_by(
    redacted: Sequence[tuple[int, int]], calls: Collection[int], spoken: Sequence[int]
) -> set[int]:
    """Which calls that nobody answers were answered by redacted messages, as far as one can tell.

    A result that was redacted does not tell its call any more. It is taken for one of the last call
    before it; where its role does not tell that it was a result, only up to the model's next
    message.

    Args:
        redacted: Sequences and codes of the roles of redacted messages, rising.
        calls: Sequences of messages with calls that nobody answers.
        spoken: Sequences of other messages of the model, rising.
    """
    waiting = sorted(calls)
    hidden = [each for each, role in redacted if role == ROLES["assistant"]]
    found: set[int] = set()
    for sequence, role in redacted:
        place = bisect_left(waiting, sequence) - 1
        if place < 0 or role not in (*_ANSWERING, *_MAY_ANSWER):
            continue
        call = waiting[place]
        said = _between(hidden, call, sequence)
        if role not in _ANSWERING:
            said += _between(spoken, call, sequence)
        if not said:
            found.add(call)
    return found


def _between(sequences: Sequence[int], after: int, before: int) -> int:
    return bisect_left(sequences, before) - bisect_right(sequences, after)


Count = Callable[[Any], int]
"""Counts the tokens of a message."""
