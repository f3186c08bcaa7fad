"""What tests of projections share."""

from __future__ import annotations

import asyncio
from typing import Any

from engine import (
    Event,
    Store,
)
from tests.model.staging import HANG_S


class Totals:
    """Remembers what it was given; fails for the numbers that it is told to, so many times."""

    def __init__(self, **fails: int) -> None:
        self.given: list[tuple[int, Any]] = []
        self.tries = 0
        self.left = {int(number[1:]): count for number, count in fails.items()}

    def __call__(self, event: Event) -> None:
        self.tries += 1
        number = event.body["n"]
        if self.left.get(number):
            self.left[number] -= 1
            raise ValueError(f"cannot take {number}")
        self.given.append((event.position, number))

    @property
    def numbers(self) -> list[Any]:
        return [number for _, number in self.given]


def say(store: Store, *numbers: int, session: str = "s") -> None:
    store.session(session).append_many([{"n": number} for number in numbers]).result(HANG_S)


def run(main: Any) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main, HANG_S)

    return asyncio.run(bounded())


def once(store: Store, apply: Any, name: str = "totals", **options: Any) -> int:
    with store.projection(name, apply, **options) as projection:
        return projection.run_once()
