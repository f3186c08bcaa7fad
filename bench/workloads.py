"""What the benchmarks append: seeded, so that both sides of a ratio get the same bytes.

Everything here is pure: the same arguments give the same messages, sessions and times.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session's name and its messages, in order."""

    name: str
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message on its way into a session."""

    session: str
    message: Message


SEED: Final = 20_240
CHAT_BYTES_MIN: Final = 200  # encoded size of a chat message, inclusive
CHAT_BYTES_MAX: Final = 250
LARGE_BYTES_MAX: Final = 256 * 1024  # upper bound of a large body's encoded size
LARGE_BYTES_MIN: Final = 1024
LARGE_SHARE: Final = 0.01  # of the mixed messages
_CHAT_FRAME_BYTES: Final = 17  # CBOR around the role and text of a chat message

_WORDS: Final = tuple(
    (
        "the to and you a i of is it that for in can on this your we have be my are with not do so "
        "was at if me as would like or just what there please know will but one from about an when "
        "order number time need account help get here up how phone check today could out they see "
        "name they email new flight call back thank sure okay let date go booking sorry all card "
        "address which make any service right want day give change moment price room system could "
        "available tomorrow still after before available confirm payment customer morning change "
        "reservation question delivery agent evening ticket problem update password information "
        "minutes hotel restaurant cancel second number amount option refund possible seat looking "
        "window request support credit contact correct insurance message transfer arrive dinner "
        "appointment balance station departure warranty battery screen return shipping tracking "
        "receipt discount upgrade connection schedule document signature invoice monthly policy"
    ).split()
)
# Zipf's law, as in real text: the word of rank r comes 1/r as often as the first one.
_WEIGHTS: Final = tuple(accumulate(1 / rank for rank in range(1, len(_WORDS) + 1)))


def words(rng: random.Random, length: int) -> str:
    """Text of exactly ``length`` characters, of words as often as real text has them."""
    found: list[str] = []
    size = 0
    while size < length:
        for word in rng.choices(_WORDS, cum_weights=_WEIGHTS, k=16):
            # One word in twelve is a number or a code: text that no dictionary knows.
            token = word if rng.random() > 1 / 12 else f"{rng.randrange(10**6):x}"
            found.append(token)
            size += len(token) + 1
    return " ".join(found)[:length]


def chat_messages(count: int, *, seed: int = SEED) -> list[Message]:
    """Chat messages of 200 to 250 bytes encoded, roles in turn.

    Args:
        count: How many.
        seed: The same seed gives the same messages.
    """
    rng = random.Random(seed)
    messages: list[Message] = []
    for number in range(count):
        role = "assistant" if number % 2 else "user"
        length = rng.randint(CHAT_BYTES_MIN, CHAT_BYTES_MAX) - _CHAT_FRAME_BYTES - len(role)
        messages.append({"role": role, "content": words(rng, length)})
    return messages


def _tool_result(rng: random.Random, size: int) -> Message:
    rows: list[Message] = []
    used = 0
    while used < size - 200:
        row: Message = {
            "id": rng.randrange(10**6),
            "title": words(rng, 40),
            "price": rng.randrange(10**4) / 100,
            "open": rng.random() < 0.5,
            "tags": [rng.choice(_WORDS), rng.choice(_WORDS)],
        }
        rows.append(row)
        used += 110
    return {"role": "tool", "tool_call_id": f"call_{rng.randrange(10**9)}", "content": rows}


def mixed_messages(count: int, *, seed: int = SEED) -> list[Message]:
    """Mostly 200 to 400 bytes; one in a hundred larger, up to 256 KiB.

    Large sizes are spread evenly over the powers of two from 1 KiB on. Three in four of the large
    ones are one long text, as most model APIs have it, the fourth is a tool result of many small
    values, which costs an encoder far more.
    """
    rng = random.Random(seed)
    messages: list[Message] = []
    for number in range(count):
        if rng.random() >= LARGE_SHARE:
            role = "assistant" if number % 2 else "user"
            messages.append({"role": role, "content": words(rng, rng.randint(180, 370))})
            continue
        doublings = (LARGE_BYTES_MAX // LARGE_BYTES_MIN).bit_length() - 1
        size = int(LARGE_BYTES_MIN * 2 ** (rng.random() * doublings))
        if rng.random() < 0.75:
            text = words(rng, min(size, 4096))
            whole = (text * (size // len(text) + 1))[: size - 64]
            messages.append({"role": "assistant", "content": whole})
        else:
            messages.append(_tool_result(rng, size))
    return messages


def session_names(count: int) -> list[str]:
    """Names of ``count`` sessions."""
    return [f"call-{number:06d}" for number in range(count)]


def interleaving(sessions: int, events: int, *, seed: int = SEED) -> list[int]:
    """Which session each event belongs to: every session once a round, each round shuffled."""
    rng = random.Random(seed)
    order = list(range(sessions))
    result: list[int] = []
    while len(result) < events:
        rng.shuffle(order)
        result.extend(order)
    return result[:events]


def arrival_times(rate: float, *, seed: int) -> Iterator[float]:
    """Endless arrival times in seconds from 0 on: a Poisson process of ``rate`` a second."""
    rng = random.Random(seed)
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        yield now


def live_batches(conversations: Sequence[Conversation], live: int) -> Iterator[list[Turn]]:
    """Batches of one turn of each live conversation; where one ends, the next begins.

    Args:
        conversations: Taken in order.
        live: How many go on at once.
    """
    waiting = iter(conversations)
    going: list[tuple[str, Iterator[Message]]] = []
    while True:
        while len(going) < live and (conversation := next(waiting, None)) is not None:
            going.append((conversation.name, iter(conversation.messages)))
        if not going:
            return
        taken = [(each, next(each[1], None)) for each in going]
        going = [each for each, message in taken if message is not None]
        batch = [Turn(each[0], message) for each, message in taken if message is not None]
        if batch:
            yield batch
