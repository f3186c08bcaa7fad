"""How many tokens a message may be, where nobody counted; pure.

A quarter for each ASCII character and one for any other, 4 for each message, 1,500 for each image
or other medium. Tool calls count with their names and arguments, results with all they say. Ids,
roles and what a host keeps beside the content do not count.
"""

from __future__ import annotations

import json
from typing import Any, Final

MESSAGE_TOKENS: Final = 4
MEDIA_TOKENS: Final = 1_500
MEDIA_TYPES: Final = frozenset(
    "image image_url input_image audio input_audio video video_url file input_file document".split()
)
_CALLS: Final = ("tool_calls", "toolCalls", "function_call")
_ARGUMENTS: Final = frozenset({"arguments", "input"})
_AS_JSON: Final = json.JSONEncoder(ensure_ascii=False, default=lambda _: "").encode
_SILENT: Final = frozenset(
    "type id role tool_call_id toolCallId tool_use_id signature thinkingSignature "
    "cache_control index".split()
)


def estimate_tokens(body: Any) -> int:
    """About how many tokens a message is."""
    ascii_count, other, media = 0, 0, 0
    if type(body) is dict:
        content = body.get("content")
        if type(content) is str and not ("tool_calls" in body or "toolCalls" in body):
            size = len(content)
            ascii_count = size if content.isascii() else len(content.encode("ascii", "ignore"))
            return -(-ascii_count // 4) + size - ascii_count + MESSAGE_TOKENS
        named = [body[key] for key in ("content", *_CALLS) if key in body]
        body = named or body
    for text in _texts(body):
        if text is None:
            media += 1
            continue
        size = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
        ascii_count += size
        other += len(text) - size
    return -(-ascii_count // 4) + other + media * MEDIA_TOKENS + MESSAGE_TOKENS


def is_media(block: Any) -> bool:
    """Whether a block of a message's content is an image or another medium."""
    kind = block.get("type") if type(block) is dict else None
    return type(kind) is str and kind in MEDIA_TYPES


def _texts(value: Any) -> list[str | None]:
    """All texts in a value, and None for each medium."""
    found: list[str | None] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is str:
            found.append(each)
        elif type(each) is list:
            waiting += each
        elif type(each) is dict:
            if is_media(each):
                found.append(None)
                continue
            for key, item in each.items():
                if key in _ARGUMENTS and type(item) is not str:
                    found.append(_AS_JSON(item))
                elif key not in _SILENT:
                    waiting.append(item)
        elif each is not None and type(each) is not bytes:
            found.append(str(each))
    return found
