"""The scripts of simulated calls: drivers on their round talk to a dispatch assistant. Pure.

Invariants:
    1. What a call says, when, and with which ids depends on the seed, the call's number and the
       hours alone.
    2. Times never go back within a call, and no clock of the machine is part of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from engine.export import encode_line
from turnlog.dispatch_words import (
    CLOSINGS,
    DAMAGES,
    GREETINGS,
    HANDOVERS,
    NAMES,
    NOTES,
    PLACES,
    SMALL_TALK,
    STREETS,
    WEATHER,
    Exchange,
)

EPOCH_US: Final = 1_767_603_600_000_000  # 2026-01-05 09:00:00 UTC, when every simulated hour begins
SECOND_US: Final = 1_000_000


@dataclass(slots=True)
class Line:
    """One event of a script.

    Attributes:
        time_us: Simulated time, from 1970, in microseconds.
        kind: Kind of the event.
        body: Its body.
        turn_id: The turn it belongs to.
        speech_id: The utterance it belongs to, None for what nobody says.
        request_id: The request to a model behind it.
        tokens: Tokens of a message, roughly as a model counts them.
        metadata: What belongs beside the body.
    """

    time_us: int
    kind: str
    body: dict[str, Any]
    turn_id: str | None = None
    speech_id: str | None = None
    request_id: str | None = None
    tokens: int | None = None
    metadata: dict[str, Any] | None = None


def user_of(call: int) -> str:
    """The user id of the driver on a call, numbered from 1."""
    return f"driver-{call:04d}"


def script(seed: int, call: int, hours: float) -> Iterator[Line]:
    """The events of one call in the order of their times.

    Args:
        seed: Any integer; another one gives other calls.
        call: The call's number, from 1.
        hours: How long the line stays open, in simulated hours.
    """
    random = Random(f"turnlog/{seed}/{call}")
    start_us = EPOCH_US + random.randrange(0, 45 * SECOND_US)
    end_us = EPOCH_US + int(hours * 3600 * SECOND_US)
    talk = _Talk(random, start_us)
    driver = NAMES[random.randrange(len(NAMES))]
    yield talk.event({"type": "call_started", "codec": "opus", "rate_hz": 16_000, "tracks": 2})
    yield from talk.turn(Exchange(GREETINGS.pick(random), f"Morning {driver}. Ready when you are."))
    for exchange in _round(random):
        if talk.now_us >= end_us - 20 * SECOND_US:
            break
        yield from talk.turn(exchange)
        talk.pause(14.0 if exchange.tool == "next_stop" else 5.0)
    yield from talk.turn(Exchange(CLOSINGS.pick(random), "Thank you. Drive safely."))
    yield talk.event(
        {"type": "call_ended", "reason": "hang_up", "duration_ms": (talk.now_us - start_us) // 1000}
    )


class _Talk:
    """The time line of one call and its ids."""

    def __init__(self, random: Random, now_us: int) -> None:
        self._random = random
        self._turns = 0
        self.now_us = now_us

    def pause(self, mean_s: float) -> None:
        """The road, or the work, between two turns."""
        self.now_us += int(self._random.expovariate(1 / mean_s) * SECOND_US) + 400_000

    def event(self, body: dict[str, Any], *, after_ms: int = 5) -> Line:
        self.now_us += after_ms * 1000
        return Line(self.now_us, "event", body)

    def turn(self, exchange: Exchange) -> Iterator[Line]:
        """What one exchange leaves: transcript, tool call and result, reply, timing marks."""
        random = self._random
        self._turns += 1
        turn = f"t-{self._turns:04d}"
        spoken_ms = _spoken_ms(random, exchange.said)
        self.now_us += spoken_ms * 1000
        transcription_ms = random.randrange(90, 260)
        end_of_turn_ms = transcription_ms + random.randrange(120, 420)
        ttft_ms = random.randrange(180, 620)
        tts_ms = random.randrange(70, 210)
        playback_ms = random.randrange(20, 60)
        speech_end_us = self.now_us
        yield Line(
            speech_end_us + transcription_ms * 1000,
            "message",
            {"role": "user", "content": exchange.said},
            turn_id=turn,
            speech_id=f"u-{self._turns:04d}",
            tokens=_tokens(exchange.said),
            metadata={
                "confidence": round(random.uniform(0.84, 0.995), 3),
                "interim_count": 1 + spoken_ms // 350,
                "audio_ms": spoken_ms,
            },
        )
        model_us = speech_end_us + (end_of_turn_ms + ttft_ms) * 1000
        tool_ms = 0
        if exchange.tool is not None:
            tool_ms = random.randrange(60, 900)
            yield from self._tool(exchange, turn, model_us, tool_ms)
        self.now_us = model_us + (tool_ms + tts_ms + playback_ms) * 1000
        reply = exchange.reply
        yield Line(
            self.now_us,
            "message",
            {"role": "assistant", "content": reply},
            turn_id=turn,
            speech_id=f"a-{self._turns:04d}",
            request_id=f"r-{self._turns:04d}",
            tokens=_tokens(reply),
        )
        marks = {
            "e2e_latency_ms": end_of_turn_ms + ttft_ms + tool_ms + tts_ms + playback_ms,
            "transcription_delay_ms": transcription_ms,
            "end_of_turn_delay_ms": end_of_turn_ms,
            "llm_node_ttft_ms": ttft_ms,
            "tool_ms": tool_ms,
            "tts_node_ttfb_ms": tts_ms,
            "playback_latency_ms": playback_ms,
        }
        self.now_us += 2_000
        yield Line(self.now_us, "timing", marks, turn_id=turn)
        yield from self._playback(reply, turn)

    def _tool(self, exchange: Exchange, turn: str, model_us: int, tool_ms: int) -> Iterator[Line]:
        call_id = f"fn-{self._turns:04d}"
        arguments = encode_line(exchange.arguments)
        function = {"name": exchange.tool, "arguments": arguments}
        yield Line(
            model_us,
            "message",
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            },
            turn_id=turn,
            request_id=f"r-{self._turns:04d}",
            tokens=_tokens(arguments) + 8,
        )
        result = encode_line(exchange.result)
        yield Line(
            model_us + tool_ms * 1000,
            "message",
            {"role": "tool", "tool_call_id": call_id, "content": result},
            turn_id=turn,
            tokens=_tokens(result),
        )

    def _playback(self, reply: str, turn: str) -> Iterator[Line]:
        """The reply is heard to its end, or the driver talks over it."""
        full_ms = _spoken_ms(self._random, reply)
        if full_ms < 1_500 or self._random.random() >= 0.08:
            self.now_us += full_ms * 1000
            return
        words = reply.split()
        heard = self._random.randrange(1, len(words))
        played_ms = full_ms * heard // len(words)
        self.now_us += played_ms * 1000
        yield Line(
            self.now_us,
            "event",
            {
                "type": "interruption",
                "played_ms": played_ms,
                "heard": " ".join(words[:heard]),
            },
            turn_id=turn,
            speech_id=f"a-{self._turns:04d}",
        )


def _spoken_ms(random: Random, text: str) -> int:
    return int(len(text.split()) * random.uniform(300, 420)) + 150


def _tokens(text: str) -> int:
    return max(1, (len(text) + 3) // 4)


def _round(random: Random) -> Iterator[Exchange]:
    """A driver's day without end: one stop after the other, with what happens on the way."""
    remaining = random.randrange(70, 120)
    for stop in range(1, 1_000_000):
        if remaining == 0:
            remaining = random.randrange(70, 120)
        yield from _stop(random, stop, remaining)
        remaining -= 1


def _stop(random: Random, stop: int, remaining: int) -> Iterator[Exchange]:
    street = STREETS.pick(random)
    number = random.randrange(1, 190)
    name = NAMES[random.randrange(len(NAMES))]
    parcels = random.choice((1, 1, 1, 2, 2, 3, 5))
    hint = NOTES.pick(random)
    count = "one parcel" if parcels == 1 else f"{parcels} parcels"
    yield Exchange(
        random.choice(
            ("What's next?", "Okay, next stop please.", "Where to now?", "Next one.", "And then?")
        ),
        f"{number} {street}, {name}, {count}. {hint}",
        tool="next_stop",
        arguments={"after": stop - 1},
        result={
            "stop": stop,
            "address": {"street": street, "number": number},
            "recipient": name,
            "parcels": parcels,
            "note": hint,
        },
    )
    if random.random() < 0.35:
        yield _on_the_way(random, stop)
    if random.random() < 0.18:
        yield from _nobody_home(random, stop, name)
    else:
        where = HANDOVERS.pick(random)
        yield Exchange(
            f"Delivered, {where}.",
            f"Noted, {where}. {remaining - 1} stops left.",
            tool="mark_delivered",
            arguments={"stop": stop, "outcome": "delivered", "remark": where},
            result={"ok": True, "remaining": remaining - 1},
        )


def _nobody_home(random: Random, stop: int, name: str) -> Iterator[Exchange]:
    answered = random.random() < 0.4
    minutes = random.randrange(2, 9)
    yield Exchange(
        random.choice(
            ("Nobody's opening.", "No one home here.", "I've rung twice and nothing happens.")
        ),
        f"{name} is on the way down, about {minutes} minutes."
        if answered
        else f"I called {name} and got no answer. Leave a card and take it back to the depot.",
        tool="call_recipient",
        arguments={"stop": stop, "ring_s": 20},
        result={"answered": answered, **({"minutes": minutes} if answered else {})},
    )
    outcome = "delivered" if answered else "card_left"
    yield Exchange(
        "Got it, handed over." if answered else "Card's in the letterbox.",
        "Good. I have marked it as delivered." if answered else "Fine, it goes back to the depot.",
        tool="mark_delivered",
        arguments={"stop": stop, "outcome": outcome},
        result={"ok": True},
    )


def _on_the_way(random: Random, stop: int) -> Exchange:
    what = random.randrange(6)
    if what == 0:
        street, other = STREETS.pick(random), STREETS.pick(random)
        saved = random.randrange(2, 15)
        return Exchange(
            f"There's a jam on {street}, can I go round it?",
            f"Yes, take {other}. That saves about {saved} minutes.",
            tool="reroute",
            arguments={"avoid": street, "stop": stop},
            result={"via": [other], "minutes_saved": saved},
        )
    if what == 1:
        place = PLACES.pick(random)
        metres = random.randrange(2, 40) * 50
        return Exchange(
            f"Where's the nearest {place}?",
            f"The nearest {place} is {metres} metres ahead, on the right.",
            tool="find_place",
            arguments={"kind": place, "open_now": True},
            result={"metres": metres, "side": "right", "open": True},
        )
    if what == 2:
        sky = WEATHER.pick(random)
        degrees = random.randrange(-3, 14)
        return Exchange(
            "What will the weather do this afternoon?",
            f"It will be {sky}, around {degrees} degrees.",
            tool="forecast",
            arguments={"hours": 4},
            result={"sky": sky, "celsius": degrees},
        )
    if what == 3:
        damage = DAMAGES.pick(random)
        report = random.randrange(100_000, 999_999)
        return Exchange(
            f"One parcel here has {damage}. What do I do?",
            f"I opened report {report}. Take two photos and keep it separate.",
            tool="report_damage",
            arguments={"stop": stop, "what": damage, "photos": 0},
            result={"report": report, "action": "return_to_depot"},
        )
    if what == 4:
        left = random.randrange(20, 90)
        return Exchange(
            "How long until my break?",
            f"Your break starts in {left} minutes.",
            tool="shift_status",
            arguments={},
            result={"break_in_minutes": left, "driven_minutes": 270 - left},
        )
    said, reply = SMALL_TALK.pick(random)
    return Exchange(said, reply)
