"""Projections of applications: a function applied to each event, in order, with a checkpoint.

The function keeps what it makes wherever it likes; the store keeps how far it got (``keeping``).

Invariants:
    1. Events are applied in position order, and the checkpoint is stored after the function
       returned: each event is applied at least once. After a crash those are applied again that
       came after the last checkpoint, at most ``CHECKPOINT_EVENTS`` of them.
    2. An event that was removed before a call, or before it is read, is passed over, and so is what
       the store writes for itself; a checkpoint is no reason for another one, and ``run_once``
       writes nothing, not even that there is an owner, where nothing is to be applied.
    3. It keeps a page of events and a window of the log (``PositionPager``), however far it lags.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from engine.events import Event
from engine.keeping import DeadLetter, Keeping
from engine.reading import PositionPager, kinds_wanted
from engine.stepping import (
    Apply,
    Call,
    Pause,
    Wait,
    Work,
    drop,
    work_in_thread,
    work_on_loop,
)
from eventlog.arguments import callback, shown, whole
from eventlog.errors import (
    StoreClosedError,
    StoreUnavailableError,
    SuspectStoreError,
    TurnlogError,
    UsageError,
)
from eventlog.keys import is_hidden, name_bytes
from eventlog.limits import DEAD_LETTERS_MAX, POSITION_MAX
from eventlog.seams import CLOCK

if TYPE_CHECKING:
    from engine.store import Store

T = TypeVar("T")

OnPoison = Literal["stop", "skip", "retry"]

CHECKPOINT_EVENTS: Final = 256  # applied since the last checkpoint, at most
CHECKPOINT_US: Final = 1_000_000  # likewise in time, but for one event that takes longer
CHECKPOINT_PASSED: Final = 4_096  # positions of others after which one is stored for them alone
RETRIES_MAX: Final = 1_000
RETRY_FIRST_S: Final = 0.01  # doubles with each
RETRY_LAST_S: Final = 1.0
ERROR_CHARACTERS_MAX: Final = 2_000

_ON_LOOP: Final = "Use the calls that end in _async, on an event loop."

# What is the environment's refusal is not the event's fault.
_NO_POISON: Final = (StoreUnavailableError, StoreClosedError, SuspectStoreError)


class Projecting:
    """The part of ``Store`` that makes projections."""

    def projection(
        self,
        name: str,
        apply: Callable[[Event], object],
        *,
        tenant: str | None = None,
        kinds: Collection[str] | None = None,
        on_poison: OnPoison = "stop",
        retries: int = 3,
    ) -> Projection:
        """A function that is applied to each event in position order, from its checkpoint on.

        The checkpoint is durable, of this name, and belongs to this store: an export has none. One
        projection of a name runs at a time, in whatever process. A changed function is best a
        projection with a new name, such as ``"totals@2"``, that catches up beside the old one until
        its readers are switched. No I/O.

        Args:
            name: 1 to 512 UTF-8 bytes.
            apply: Called with each event that ``read`` gives, but for those that hold documents of
                users and tenants. ``event.position`` rises from call to call, so a function
                that keeps it with what it makes, in one transaction, knows what it had before and
                applies it exactly once. For the calls that end in ``_async`` it may be a coroutine
                function, or give what is to be awaited.
            tenant: Only events of this tenant; ``""`` is the one without a name. None takes all,
                and is another projection even if the name is the same.
            kinds: Only these kinds.
            on_poison: What happens when ``apply`` raises: ``"stop"`` raises that and stays before
                the event; ``"skip"`` goes on behind it; ``"retry"`` tries again up to ``retries``
                times, with pauses of 10 ms up to 1 s, and goes on. In any case the event is among
                ``dead_letters()``. No poison, and raised, are refusals of the environment:
                ``StoreUnavailableError``, and errors of a store that is closed or in doubt.
            retries: 0 to 1,000.
        """
        store: Any = self
        return Projection(store, name, apply, tenant, kinds, on_poison, retries)


class Projection:
    """A projection, at work or at rest. Made by ``store.projection``.

    The first call that applies or changes something makes this its owner, ``run`` in any case,
    until ``close`` or the end of ``with``; ``run`` gives that up when it ends. An owner whose
    process ended counts for nothing. On an event loop use ``async with``, as ``close`` waits for
    the disk. One call at a time, but for ``close``, ``checkpoint``, ``lag`` and ``dead_letters``.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        apply: Callable[[Event], object],
        tenant: str | None,
        kinds: Collection[str] | None,
        on_poison: OnPoison,
        retries: int,
    ) -> None:
        name_bytes(name, "projection name")
        if apply is None:
            raise UsageError("apply must be callable, not None")
        callback(apply, "apply")
        if on_poison not in ("stop", "skip", "retry"):
            raise UsageError(f"on_poison must be stop, skip or retry, not {shown(on_poison)}")
        if tenant is not None:
            store.tenant(tenant)  # refuses what is no name
        whole(retries, "retries", 0, RETRIES_MAX)
        self.name = name
        self.tenant = tenant
        self._store = store
        self._apply = apply
        self._on_poison = on_poison
        self._tries = 1 + retries if on_poison == "retry" else 1
        self._is_wanted = _shown(kinds_wanted(kinds))
        self._kept = Keeping(store, name, tenant)
        self._ended = threading.Event()
        self._working = threading.Lock()
        # What the owner knows
        self._pager = self._pager_after(0)
        self._page: list[Event] = []  # of which those before ``_index`` were applied
        self._index = 0
        self._reached = 0  # up to here all is applied
        self._applied_count = 0  # since the last checkpoint
        self._saved_us = 0
        self._new: dict[int, DeadLetter] = {}  # not stored yet
        self._gone: list[int] = []  # likewise

    def __repr__(self) -> str:
        return f"Projection({self.name!r}, tenant={self.tenant!r})"

    # What anybody may ask

    @property
    def checkpoint(self) -> int:
        """The position up to which all is applied or skipped, as it is stored; 0 at first.

        What was not for it counts only once 4,096 positions were passed, or with the next event
        that was; so it is no measure of how far the projection lags, which ``lag`` tells.
        """
        return self._kept.stored_checkpoint()

    def lag(self) -> int:
        """How many events it would be given that lie behind the stored checkpoint; 0 at the end.

        Reads what lies there. For one that is at work, what was applied since its last checkpoint
        is counted too.
        """
        log = self._store._log
        last = log.views.last_position()
        pager = self._pager_after(self.checkpoint)
        count = 0
        while page := pager.next_page():
            count += sum([event.position <= last for event in page])
            if page[-1].position >= last:
                break
        return count

    async def lag_async(self) -> int:
        """``lag`` on the store's pool."""
        return await self._store._on_pool(self.lag)

    def dead_letters(self) -> list[DeadLetter]:
        """Events that could not be applied, by position; they stay until ``reset``.

        With ``on_poison="stop"`` the last one may be what the projection stands before; it goes
        when that event is applied. Of 16,384 the next poison stops the projection in any case. The
        texts of errors are the application's: what they quote of a session outlives its erasure.
        """
        return self._kept.stored_letters()

    async def dead_letters_async(self) -> list[DeadLetter]:
        """``dead_letters`` on the store's pool."""
        return await self._store._on_pool(self.dead_letters)

    def close(self) -> None:
        """End it: what runs returns after the event that it applies, and others may be the owner.

        Close it before the store: or it stays owned, for other processes, until this one ends.
        """
        self._ended.set()
        self._store._log.announce()
        self._give_up()

    async def close_async(self) -> None:
        """``close`` on the store's pool."""
        self._ended.set()
        await self._store._on_pool(self.close)

    def __enter__(self) -> Projection:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # which is what the caller should hear of
            with suppress(TurnlogError):
                self.close()

    async def __aenter__(self) -> Projection:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close_async()
        else:
            with suppress(TurnlogError):
                await self.close_async()

    # Work

    def run_once(self, limit: int | None = None) -> int:
        """Apply what is there now, and store the checkpoint.

        Args:
            limit: At most so many events.

        Returns:
            How many were applied or skipped; 0 once it is closed.

        Raises:
            BusyError: Another projection of this name is at work, or owns it.
            ConflictError: Another one took over meanwhile; what was applied since the last
                checkpoint is applied again there.
        """
        return self._in_thread(self._once(limit))

    async def run_once_async(self, limit: int | None = None) -> int:
        """``run_once`` on a loop; a function that is no coroutine is called on the store's pool."""
        return await self._on_loop(self._once(limit))

    def run(self) -> None:
        """Apply what is there and what comes, until ``close``; raises what ``run_once`` does.

        The checkpoint is stored when nothing is left to apply, and on the way after 256 events or
        a second.
        """
        self._in_thread(self._follow())

    async def run_async(self) -> None:
        """``run`` on a loop; a function that is no coroutine is called on the store's pool.

        A run that is cancelled stores its checkpoint, and waits for a call on the pool before.
        """
        await self._on_loop(self._follow())

    def take_over(self) -> None:
        """Become the owner in place of any other, also of one that lives.

        The other one is told at its next checkpoint, by ``ConflictError``; what it applies until
        then is applied again here. For owners that hang, and for what a closed store left behind.
        """
        self._in_thread(self._own(by_force=True))

    async def take_over_async(self) -> None:
        """``take_over`` on a loop."""
        await self._on_loop(self._own(by_force=True))

    def reset(self, position: int = 0) -> None:
        """Begin again behind a position, without dead letters.

        Args:
            position: The new checkpoint, up to ``store.last_position``.

        Raises:
            UsageError: The store has not reached that position.
            BusyError: Another projection of this name is at work, or owns it.
        """
        self._in_thread(self._reset(position))

    async def reset_async(self, position: int = 0) -> None:
        """``reset`` on a loop."""
        await self._on_loop(self._reset(position))

    # The same in steps (``stepping``)

    def _once(self, limit: int | None) -> Work[int]:
        most = POSITION_MAX if limit is None else whole(limit, "limit", 0, POSITION_MAX)
        if self._ended.is_set():
            return 0
        if not self._kept.is_owner and not (yield from self._finds_work(most)):
            return 0
        yield from self._own()
        stop = self._store._log.views.last_position()
        yield from self._forget_removed()
        count = 0
        try:
            while count < most and not self._ended.is_set():
                event = yield from self._next(stop)
                if event is None or not (yield from self._take(event)):
                    break
                count += 1
        except BaseException:
            with suppress(TurnlogError):
                yield from self._save()
            raise
        yield from self._save()
        return count

    def _finds_work(self, most: int) -> Work[bool]:
        """Whether there is anything to apply or to store, seen by one that is not the owner yet."""
        if self._store._log.read_only:
            return True  # and is refused
        yield from self._kept.look()
        self._begin()
        if not most:
            return False
        event = yield from self._next(self._store._log.views.last_position())
        return event is not None or self._reached - self._kept.checkpoint >= CHECKPOINT_PASSED

    def _follow(self) -> Work[None]:
        if self._ended.is_set():
            return
        yield from self._own()
        yield from self._forget_removed()
        try:
            while not self._ended.is_set():
                position = self._store._log.views.last_position()
                event = yield from self._next(POSITION_MAX)
                if event is not None:
                    yield from self._take(event)
                    continue
                yield from self._save()
                yield Wait(position)
        except BaseException:
            with suppress(TurnlogError):
                yield from self._release()
            raise
        yield from self._release()

    def _own(self, *, by_force: bool = False) -> Work[None]:
        if by_force or not self._kept.is_owner:
            yield from self._kept.own(by_force=by_force)
            self._begin()

    def _forget_removed(self) -> Work[None]:
        """Read the page that a call before left anew, if something was removed meanwhile."""
        if self._index < len(self._page) and (yield Call(self._pager.has_removed)):
            self._read_after(self._reached)

    def _next(self, stop: int) -> Work[Event | None]:
        """The next event up to a position; None when there is none."""
        if self._index == len(self._page):
            self._page = yield Call(self._pager.next_page)
            self._index = 0
            if not self._page:
                self._reached = max(self._reached, self._pager.following - 1)
                return None
        event = self._page[self._index]
        return event if event.position <= stop else None

    def _take(self, event: Event) -> Work[bool]:
        """Apply an event; False when the projection was closed before that was done."""
        before = self._kept.letters.get(event.position)
        count = 0 if before is None else before.count
        for attempt in range(self._tries):
            self._store._refuse_closed()
            try:
                given = yield Apply(self._apply, event)
            except _NO_POISON:
                raise
            except Exception as error:  # it is the application's
                count += 1
                if attempt + 1 == self._tries:
                    if (yield from self._bury(event, error, count)):
                        raise
                    break
                yield Pause(min(RETRY_LAST_S, RETRY_FIRST_S * 2**attempt))
                if self._ended.is_set():
                    return False
            else:
                _require_done(given)
                if before is not None:
                    self._gone.append(event.position)
                break
        self._index += 1
        self._reached = event.position
        self._applied_count += 1
        is_due = self._applied_count >= CHECKPOINT_EVENTS or bool(self._gone)
        if is_due or CLOCK.monotonic_us() - self._saved_us >= CHECKPOINT_US:
            yield from self._save()
        return True

    def _bury(self, event: Event, error: Exception, count: int) -> Work[bool]:
        """Make an event a dead letter; True when the projection stops there."""
        letters = len(self._kept.letters) + len(self._new)
        is_full = letters >= DEAD_LETTERS_MAX and event.position not in self._kept.letters
        stops = is_full or self._on_poison == "stop"
        if not is_full:
            self._new[event.position] = DeadLetter(
                event.position,
                event.tenant,
                event.session,
                event.sequence,
                event.kind,
                _told(error),
                count,
                not stops,
            )
        if not stops:
            return False
        with suppress(Exception):  # an error of the application may do what it likes
            error.add_note(f"Projection {self.name!r} stopped before position {event.position}.")
            if is_full:
                error.add_note(f"It has {letters} dead letters and takes no more; reset it.")
        yield from self._save()
        return True

    def _save(self) -> Work[None]:
        """Store the checkpoint and what became of dead letters, where that is due."""
        passed = self._reached - self._kept.checkpoint
        is_due = self._applied_count or self._new or self._gone or passed >= CHECKPOINT_PASSED
        if is_due and self._kept.is_owner:
            yield from self._store_now()

    def _release(self) -> Work[None]:
        """Store what is due and be the owner no more."""
        if self._kept.is_owner:
            try:
                yield from self._store_now(is_last=True)
            finally:
                self._kept.disown()

    def _store_now(self, *, is_last: bool = False) -> Work[None]:
        letters = self._kept.letters
        yield from self._kept.store(self._reached, self._new.values(), self._gone, is_last=is_last)
        letters.update(self._new)
        for position in self._gone:
            letters.pop(position, None)
        self._new.clear()
        self._gone.clear()
        self._applied_count = 0
        self._saved_us = CLOCK.monotonic_us()

    def _reset(self, position: int) -> Work[None]:
        whole(position, "position", 0, POSITION_MAX)
        last = self._store._log.views.last_position()
        if position > last:  # it would pass over what comes
            raise UsageError(
                f"position must be up to the store's last one, {last}, not {position}",
                hint="Give store.last_position to begin with what comes.",
            )
        yield from self._own()
        yield from self._kept.store(position, gone=list(self._kept.letters))
        self._kept.letters.clear()
        self._begin()

    # The rest

    def _begin(self) -> None:
        """Read behind the checkpoint."""
        position = self._kept.checkpoint
        self._read_after(position)
        self._reached = position
        self._applied_count = 0
        self._saved_us = CLOCK.monotonic_us()
        self._new = {}
        self._gone = []

    def _read_after(self, position: int) -> None:
        self._pager = self._pager_after(position)
        self._page = []
        self._index = 0

    def _pager_after(self, position: int) -> PositionPager:
        log = self._store._log
        return PositionPager(log, position, None, self.tenant, wanted=self._is_wanted)

    def _in_thread(self, work: Work[T]) -> T:
        if inspect.iscoroutinefunction(self._apply):
            raise UsageError("apply is a coroutine function", hint=_ON_LOOP)
        self._begin_work()
        try:
            return work_in_thread(work, self._store, self._ended)
        finally:
            self._working.release()
            if self._ended.is_set():
                self._give_up()

    async def _on_loop(self, work: Work[T]) -> T:
        self._begin_work()
        try:
            return await work_on_loop(work, self._store, self._ended)
        finally:
            self._working.release()
            if self._ended.is_set() and self._kept.is_owner:
                await self._store._on_pool(self._give_up)

    def _begin_work(self) -> None:
        self._store._log.environment.refuse_forked()
        if not self._working.acquire(blocking=False):
            raise UsageError(
                f"projection {self.name!r} is at work already",
                hint="Close it, or wait for the call that runs.",
            )

    def _give_up(self) -> None:
        """Be the owner no more, unless a call is at work, which sees to it itself."""
        if self._working.acquire(blocking=False):
            try:
                work_in_thread(self._release(), self._store, self._ended)
            finally:
                self._working.release()


def _told(error: Exception) -> str:
    """What a dead letter says of an error, also of one that cannot be printed."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:ERROR_CHARACTERS_MAX]
    except Exception:  # noqa: BLE001  of the application's own text
        return f"{name}, whose text cannot be told"[:ERROR_CHARACTERS_MAX]


def _shown(is_wanted: Callable[[Event], bool] | None) -> Callable[[Event], bool]:
    """Whether a projection takes an event.

    Nothing that a projection holds leads back to it, so that an owner that nobody holds any more is
    gone at once, not when the garbage collector runs.
    """

    def is_shown(event: Event) -> bool:
        return not is_hidden(event.session) and (is_wanted is None or is_wanted(event))

    return is_shown


def _require_done(given: object) -> None:
    """Refuse what a function gave if nothing of the function has run yet; no event's fault."""
    if inspect.isawaitable(given):
        drop(given)
        raise UsageError(
            f"apply gave an awaitable, not awaited here: {type(given).__name__}", hint=_ON_LOOP
        )
    if inspect.isgenerator(given) or inspect.isasyncgen(given):
        drop(given)
        raise UsageError(
            f"apply gave a generator, of which nothing has run: {type(given).__name__}",
            hint="Give a function without yield.",
        )
