"""Made conversations that compress about as real ones do: short dialogues and agents' logs.

Where there are none but these, they stand in for real ones; a figure that matters is taken from
real ones (``--corpus``). Seeded and pure, like ``workloads``.
"""

from __future__ import annotations

import random
from typing import Final

from bench.workloads import SEED, Conversation, Message, words

_ASKS: Final = (
    "I want to {verb} a {thing} for {day}.",
    "Can you find me a {thing} in {city}?",
    "Is there anything for {count} people on {day}?",
    "What is the price, and is it in {city}?",
    "Okay, that sounds good. Please {verb} it.",
    "No, make it {time} on {day} instead.",
    "Could you {verb} the {thing} under the name {name}?",
    "Yes, that's right.",
    "Thanks, that is all I need.",
    "I would also like a {thing} near {city}, {extra}.",
)
_ANSWERS: Final = (
    "I found {count} options. There is the {name} {thing} in {city}.",
    "Please confirm: {verb} a {thing} for {count} on {day} at {time}.",
    "It costs {price} dollars, and the number is {phone}.",
    "Your {thing} is confirmed. Is there anything else I can help with?",
    "I am sorry, I could not {verb} that. Should I try {time}?",
    "What day and city would you like?",
    "The {name} is rated {count} and is at {price} {name} Street, {extra}.",
    "Have a great day!",
)
_SLOTS: Final = {
    "verb": ("book", "reserve", "cancel", "find", "change"),
    "thing": ("table", "room", "flight", "movie", "doctor", "bus", "concert", "car", "house"),
    "day": ("Monday", "tomorrow", "March 5th", "the 11th", "next Friday", "Sunday", "March 8th"),
    "city": ("San Jose", "Oakland", "Berkeley", "Fresno", "San Francisco", "London", "Seattle"),
    "time": ("5 pm", "half past 11 in the morning", "7:15 pm", "noon", "a quarter to 9"),
    "count": ("1", "2", "3", "4", "10"),
}
_TOOLS: Final = ("read_file", "list_orders", "search_flights", "run_command", "update_order")
_SYSTEM_BYTES: Final = 6_000


def made_dialogues(count: int, *, seed: int = SEED) -> list[Conversation]:
    """Dialogues of 8 to 30 turns of some 70 bytes, from sentences with slots."""
    rng = random.Random(seed)
    found: list[Conversation] = []
    for number in range(count):
        turns: list[Message] = []
        for turn in range(rng.randrange(8, 31)):
            pattern = rng.choice(_ANSWERS if turn % 2 else _ASKS)
            slots = {name: rng.choice(values) for name, values in _SLOTS.items()}
            text = pattern.format(
                **slots,
                name=words(rng, rng.randint(5, 12)).title(),
                price=rng.randrange(10, 999),
                phone=f"{rng.randrange(10**9, 10**10)}",
                extra=words(rng, rng.randint(20, 70)),
            )
            turns.append({"role": "assistant" if turn % 2 else "user", "content": text})
        found.append(Conversation(f"{number // 128 + 1}_{number % 128:05d}", turns))
    return found


def made_agent_logs(count: int, *, seed: int = SEED) -> list[Conversation]:
    """Logs of an agent with tools, of about 1 KiB a message; four runs share a system prompt."""
    rng = random.Random(seed)
    prompts = [words(rng, _SYSTEM_BYTES) for _ in range(4)]
    found: list[Conversation] = []
    for number in range(count):
        messages: list[Message] = [{"role": "system", "content": prompts[number // 4 % 4]}]
        for step in range(rng.randrange(5, 25)):
            call = f"call_{rng.randrange(16**24):024x}"
            messages += [
                {"role": "user", "content": words(rng, rng.randint(40, 300))},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [_tool_call(rng, call)],
                },
                _tool_result(rng, call, step),
            ]
        found.append(Conversation(f"task-{number // 4}-{number % 4}", messages))
    return found


def _tool_call(rng: random.Random, call: str) -> Message:
    name = rng.choice(_TOOLS)
    arguments = f'{{"id": "{rng.randrange(10**7)}", "note": "{words(rng, 40)}"}}'
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool_result(rng: random.Random, call: str, step: int) -> Message:
    size = int(200 * 2 ** (rng.random() * 6))  # 200 bytes to 12 KiB
    rows: list[str] = []
    while sum(map(len, rows)) < size:
        rows.append(
            f'{{"order": "#W{rng.randrange(10**7)}", "status": "{rng.choice(("open", "sent"))}", '
            f'"items": ["{words(rng, 20)}"], "price": {rng.randrange(10**5) / 100}}}'
        )
    return {"role": "tool", "tool_call_id": call, "content": "[" + ", ".join(rows) + "]"}
