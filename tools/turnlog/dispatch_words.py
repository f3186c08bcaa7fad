"""Words of the simulated calls: what drivers and their dispatch assistant talk about."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Exchange:
    """A driver says something, the assistant looks it up if need be, and replies."""

    said: str
    reply: str
    tool: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)


class Words(Generic[T]):
    """A list to pick from."""

    def __init__(self, *items: T) -> None:
        self.items = items

    def pick(self, random: Random) -> T:
        """One of them."""
        return self.items[random.randrange(len(self.items))]


NAMES: Final = (
    "Abara", "Aalto", "Brandt", "Castillo", "Conteh", "Dvořák", "Eriksen", "Fofana", "Garcia",
    "Haddad", "Ibrahim", "Jansen", "Kaya", "Kowalski", "Lindqvist", "Marchetti", "Mbeki",
    "Nakamura", "Novák", "O'Brien", "Okafor", "Papadakis", "Quintero", "Rossi", "Sato", "Schäfer",
    "Sørensen", "Tanaka", "Ueda", "Vargas", "Weiss", "Yılmaz", "Zhang", "Zielinski",
)  # fmt: skip

STREETS: Final = Words(
    "Alder Lane", "Anchor Quay", "Baker's Row", "Beech Avenue", "Bridge Street", "Canal Walk",
    "Castle Hill", "Cedar Close", "Chapel Road", "Copper Street", "Dock Road", "Elm Grove",
    "Ferry Lane", "Garden Square", "Glass Street", "Harbour Road", "Hazel Court", "High Street",
    "Hill Rise", "Juniper Way", "King's Parade", "Lantern Street", "Market Place", "Mill Lane",
    "North Parade", "Orchard Road", "Poplar Avenue", "Quarry Road", "River View", "Rope Walk",
    "School Lane", "Station Road", "Stone Bridge", "Tanner's Yard", "Union Street", "Vine Street",
    "Water Lane", "Weaver Street", "Willow Drive", "Windmill Hill",
)  # fmt: skip

NOTES: Final = Words(
    "Ring twice, the bell is weak.",
    "The gate code is four four one one.",
    "Second entrance, behind the bicycles.",
    "There is a dog, but it is friendly.",
    "Ask at the reception.",
    "Third floor, and the lift works.",
    "Third floor without a lift, sorry.",
    "They want it at the back door.",
    "A signature is needed.",
    "The parcel is fragile.",
    "Before eleven, if you can.",
    "You were there on Thursday.",
)

HANDOVERS: Final = Words(
    "handed to the recipient",
    "left with the neighbour at number six",
    "in the parcel box",
    "with the reception",
    "behind the gate as agreed",
    "signed for",
    "in the porch",
)

PLACES: Final = Words("petrol station", "charging point", "bakery", "toilet", "parking bay", "shop")

WEATHER: Final = Words("dry", "mostly cloudy", "windy with showers", "foggy", "clear", "wet")

DAMAGES: Final = Words("a torn corner", "a wet side", "a broken seal", "a dent", "no label")

GREETINGS: Final = Words(
    "Hello, I'm in the van.",
    "Morning, can you hear me?",
    "Hi, starting my round now.",
    "Hello dispatch, ready to go.",
)

CLOSINGS: Final = Words(
    "That's it for now, bye.",
    "I'm going for my break, talk later.",
    "All done on this leg, goodbye.",
)

SMALL_TALK: Final = Words(
    ("Thanks a lot.", "You are welcome."),
    ("Sorry, say that again?", "Of course. I will say it more slowly."),
    ("Hang on, there's a lorry in my way.", "Take your time, I am here."),
    ("Can you speak up a little?", "Is this better?"),
    ("Who was it that called before?", "That was the depot, about the returns."),
    ("Wait a second.", "Sure."),
    ("Am I still on time?", "You are four minutes ahead of the plan."),
    ("My hands are full, one moment.", "No hurry."),
)
