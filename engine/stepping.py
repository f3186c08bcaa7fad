"""Work in steps: one description of it, carried out in a thread or on an event loop.

The work is a generator. What it yields is carried out and sent back, or the error thrown into it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from engine.events import Event
from engine.waiting import wait_for_more, wait_past_async
from eventlog.ack import Ack
from eventlog.seams import CLOCK

if TYPE_CHECKING:
    from engine.store import Store

T = TypeVar("T")

SEND_WAIT_S: Final = 3600.0  # for room in the queue: others' appends are no reason to give up


@dataclass(slots=True)
class Call:
    """Something that blocks for a moment."""

    call: Callable[[], Any]


@dataclass(slots=True)
class Send:
    """An append, until it is durable."""

    ack: Ack


@dataclass(slots=True)
class Settle:
    """The same, of one that is under way."""

    ack: Ack


@dataclass(slots=True)
class Apply:
    """The caller's function, called with an event.

    What it gives is sent back; on a loop, what is awaitable is awaited before.
    """

    function: Callable[[Event], object]
    event: Event


@dataclass(slots=True)
class Pause:
    """Doing nothing for some seconds, or until the work is ended."""

    seconds: float


@dataclass(slots=True)
class Wait:
    """Waiting for a position above one, or until the work is ended."""

    position: int


Step = Call | Send | Settle | Apply | Pause | Wait
Work = Generator[Step, Any, T]


def work_in_thread(work: Work[T], store: Store, ended: threading.Event) -> T:
    """Carry steps out in this thread, until the work is done."""

    def carry_out(step: Step) -> Any:
        if isinstance(step, Apply):
            return step.function(step.event)
        if isinstance(step, Call):
            return step.call()
        if isinstance(step, Send):
            store._submit(step.ack, SEND_WAIT_S)
            return step.ack.result()
        if isinstance(step, Settle):
            return step.ack.result()
        if isinstance(step, Pause):
            return CLOCK.wait(ended, step.seconds)
        return wait_for_more(store, step.position, ended.is_set)

    try:
        step = next(work)
        while True:
            try:
                found = carry_out(step)
            except BaseException as error:  # noqa: BLE001  the work decides what it means
                step = work.throw(error)
            else:
                step = work.send(found)
    except StopIteration as end:
        result: T = end.value
        return result


async def work_on_loop(work: Work[T], store: Store, ended: threading.Event) -> T:
    """Carry steps out on a loop: what blocks on the store's pool.

    A cancelled caller is told, at the next step, once what cannot be stopped has ended; so the work
    always knows what became of a step.
    """
    cancelled: list[asyncio.CancelledError] = []

    async def carry_out(step: Step) -> Any:
        if isinstance(step, Apply):
            if inspect.iscoroutinefunction(step.function):
                return await step.function(step.event)
            called = step
            given = await _ended(store._on_pool(lambda: _call(called)), cancelled)
            if not inspect.isawaitable(given):
                return given
            if cancelled:
                drop(given)
                raise cancelled.pop()
            return await given
        if isinstance(step, Call):
            return await _ended(store._on_pool(step.call), cancelled)
        if isinstance(step, Send):
            return await _ended(_sent(store, step.ack), cancelled)
        if isinstance(step, Settle):
            return await _ended(step.ack, cancelled)
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await wait_past_async(store, step.position, None, ended.is_set)

    result: T
    try:
        step = next(work)
        while True:
            try:
                if cancelled:
                    raise cancelled.pop()
                found = await carry_out(step)
            except BaseException as error:  # noqa: BLE001  the work decides what it means
                step = work.throw(error)
            else:
                step = work.send(found)
    except StopIteration as end:
        result = end.value
    if cancelled:
        raise cancelled.pop()
    return result


async def _sent(store: Store, ack: Ack) -> Ack:
    await store._submit_async(ack)
    return await ack


async def _ended(call: Awaitable[T], cancelled: list[asyncio.CancelledError]) -> T:
    """What a call gives that is not stopped; notes when its caller was cancelled meanwhile."""
    task = asyncio.ensure_future(call)
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled[:] = [error]
    try:
        return task.result()
    finally:
        del task  # or its error would hold itself, and all that called this


def drop(given: object) -> None:
    """End what a function gave to be awaited or gone through, and never will be."""
    end = getattr(given, "close", None) or getattr(given, "cancel", None)
    if end is not None:
        end()


def _call(step: Apply) -> object:
    try:
        return step.function(step.event)
    except StopIteration as error:  # which a future cannot hold
        raise RuntimeError("the function raised StopIteration") from error
