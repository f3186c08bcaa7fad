"""Stores that each break one rule of ``engine.testing``, in a way in which stores do break it.

Each is the real store behind a wrapper that does one thing wrong.
"""

from __future__ import annotations

import copy
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from engine import IdempotencyConflictError, SessionGoneError, Store, TurnlogError, UsageError
from eventlog.ack import Ack

BROKEN: dict[str, type[Passing]] = {}
"""By the rule that it breaks."""


class PassingSession:
    """Passes everything on."""

    def __init__(self, store: Passing, real: Any) -> None:
        self.store = store
        self.real = real
        self.place = (real.tenant, real.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    @property
    def stored(self) -> list[Any]:
        return [event for event in self.real.events() if event.kind == "message"]


class PassingTenant:
    def __init__(self, store: Passing, real: Any) -> None:
        self.store = store
        self.real = real

    def session(self, name: str) -> Any:
        return self.store.sessions(self.store, self.real.session(name))


class Passing:
    """The same of a store; remembers what a process would."""

    sessions: ClassVar[type[PassingSession]] = PassingSession

    def __init__(self, path: Path) -> None:
        self.real = Store.open(path, snapshot_frequency=3)
        self.memory: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def tenant(self, name: str) -> Any:
        return PassingTenant(self, self.real.tenant(name))

    def session(self, name: str) -> Any:
        return self.sessions(self, self.real.session(name))


class Told:
    """An event or ack of which something else is told."""

    def __init__(self, real: Any, **told: Any) -> None:
        self.real = real
        self.told = told

    def __getattr__(self, name: str) -> Any:
        return self.told[name] if name in self.told else getattr(self.real, name)

    def result(self, timeout: float | None = None) -> Told:
        self.real.result(timeout)
        return self


def breaks(rule: str) -> Callable[[type], type]:
    """Note what a session or a store breaks."""

    def note(broken: type) -> type:
        assert rule not in BROKEN
        if issubclass(broken, PassingSession):
            BROKEN[rule] = type(broken.__name__, (Passing,), {"sessions": broken})
        else:
            BROKEN[rule] = broken
        return broken

    return note


@breaks("sequences_are_gap_free")
class CountsForAllSessions(PassingSession):
    def events(self, *given: Any, **options: Any) -> Iterator[Any]:
        for event in self.real.events(*given, **options):
            yield Told(event, sequence=event.position - 1)


@breaks("positions_are_in_commit_order")
class PositionsAreOffsets(Passing):
    def read(self, after: int = 0, limit: int | None = None) -> Iterator[Any]:
        for event in self.real.read(after // 2, limit):
            yield Told(event, position=event.position * 2)

    def subscribe(self, after: int) -> Any:
        return Doubled(self.real.subscribe(after // 2))


class Doubled:
    def __init__(self, real: Any) -> None:
        self.real = real

    def __iter__(self) -> Iterator[Any]:
        for event in self.real:
            yield Told(event, position=event.position * 2)

    def close(self) -> None:
        self.real.close()


def mended(value: Any) -> Any:
    """Text as UTF-8 can hold it."""
    if type(value) is str:
        return value.encode("utf-8", "replace").decode()
    if type(value) is list:
        return [mended(each) for each in value]
    if type(value) is dict:
        return {mended(key): mended(each) for key, each in value.items()}
    return value


@breaks("what_goes_in_comes_out")
class MendsText(PassingSession):
    def append(self, message: Any, **options: Any) -> Ack:
        return self.real.append(mended(message), **options)

    def append_many(self, messages: Any, **options: Any) -> Ack:
        return self.real.append_many([mended(each) for each in messages], **options)


@breaks("what_is_given_belongs_to_the_caller")
class GivesWhatItKeeps(PassingSession):
    def history(self, limit: int | None = None) -> list[Any]:
        info = self.real.info()
        if info is None:
            return []
        kept = self.store.memory.setdefault((info.number, info.event_count), self.real.history())
        return kept if limit is None else kept[len(kept) - min(limit, len(kept)) :]


def bent(value: Any) -> Any:
    """Plain data of whatever it is."""
    if type(value) is dict:
        return {str(key): bent(each) for key, each in value.items()}
    if type(value) is list:
        return [bent(each) for each in value]
    if type(value) is int:
        return value if -(2**63) <= value < 2**64 else float(value)
    plain = (str, bytes, float, bool, type(None))
    return value if type(value) in plain else repr(value)


@breaks("what_cannot_be_stored_is_refused")
class BendsWhatItCannotStore(PassingSession):
    def append(self, message: Any, **options: Any) -> Ack:
        return self.real.append(bent(message), **options)

    def append_many(self, messages: Any, **options: Any) -> Ack:
        return self.real.append_many([bent(each) for each in messages], **options)


@breaks("a_key_stores_once")
class TakesARetryForAConflict(PassingSession):
    def _refuse_retry(self, ack: Ack) -> Ack:
        if ack.result().already:
            raise IdempotencyConflictError("the key was used before")
        return ack

    def append(self, message: Any, **options: Any) -> Ack:
        return self._refuse_retry(self.real.append(message, **options))

    def append_many(self, messages: Any, **options: Any) -> Ack:
        return self._refuse_retry(self.real.append_many(messages, **options))


@breaks("a_key_refuses_other_content")
class AnswersAKeyUnseen(PassingSession):
    def append(self, message: Any, **options: Any) -> Ack:
        known = (self.place, options.get("idempotency_key"))
        ack = self.real.append(self.store.memory.get(known, message), **options).result()
        if known[1] is not None:
            self.store.memory.setdefault(known, message)
        return ack

    def delete(self) -> Ack:
        for known in [each for each in self.store.memory if each[0] == self.place]:
            del self.store.memory[known]
        return self.real.delete()


@breaks("a_key_belongs_to_its_session")
class KnowsKeysStoreWide(PassingSession):
    def append(self, message: Any, **options: Any) -> Ack:
        key = options.get("idempotency_key")
        first = self.real if key is None else self.store.memory.setdefault(key, self.real)
        return first.append(message, **options)


@breaks("a_stale_append_is_refused")
class ExpectsNothing(PassingSession):
    def append(self, message: Any, *, expected_head: Any = None, **options: Any) -> Ack:
        return self.real.append(message, **options)


@breaks("several_are_stored_together")
class AppendsOneByOne(PassingSession):
    def append_many(
        self, messages: Any, *, ids: Any = None, parent: Any = None, **options: Any
    ) -> Any:
        if options:
            return self.real.append_many(messages, ids=ids, parent=parent, **options)
        acks = []
        for number, message in enumerate(messages):
            given = {"id": ids and ids[number], "parent": None if number else parent}
            acks.append(self.real.append(message, **given).result())
        return Told(acks[-1], first=acks[0].first)


@breaks("what_is_refused_leaves_no_trace")
class MakesTheSessionFirst(PassingSession):
    def append(self, message: Any, **options: Any) -> Ack:
        try:
            return self.real.append(message, **options).result()
        except TurnlogError:
            self.real.create().result()
            raise


@breaks("ids_are_unique_within_the_tenant")
class KnowsIdsOfASession(PassingSession):
    def _own(self, name: Any) -> Any:
        return f"{self.place[1]}\x00{name}" if type(name) is str else name

    def append(self, message: Any, *, id: Any = None, parent: Any = None, **options: Any) -> Ack:
        return self.real.append(message, id=self._own(id), parent=self._own(parent), **options)

    def append_many(
        self, messages: Any, *, ids: Any = None, parent: Any = None, **options: Any
    ) -> Ack:
        own = None if ids is None else [self._own(each) for each in ids]
        return self.real.append_many(messages, ids=own, parent=self._own(parent), **options)


@breaks("appends_at_once_all_count")
class OverwritesAnother(PassingSession):
    """What another thread appends takes the place of what it appended before, every other time."""

    def append(self, message: Any, **options: Any) -> Ack:
        if threading.current_thread() is threading.main_thread():
            return self.real.append(message, **options)
        before = self.store.memory.pop(threading.get_ident(), None)
        if before is None:
            before = self.store.memory[threading.get_ident()] = self.real.append(message, **options)
        return before


@breaks("history_gives_the_last")
class TakesNoneForAll(PassingSession):
    def history(self, limit: int | None = None) -> list[Any]:
        return self.real.history(limit or None)


@breaks("events_take_a_range")
class EndsBeforeTheLast(PassingSession):
    def events(self, first: int = 0, last: int | None = None, **options: Any) -> Any:
        if last == 0:
            return []
        return self.real.events(first, None if last is None else last - 1, **options)


@breaks("read_goes_on_after_a_position")
class ReadsFromThePosition(Passing):
    def read(self, after: int = 0, limit: int | None = None) -> Any:
        return self.real.read(max(0, after - 1), limit)


@breaks("a_subscription_gives_each_event_once")
class RepeatsWhereItGoesLive(Passing):
    def subscribe(self, after: int) -> Any:
        return Repeating(self.real.subscribe(after), self.real.last_position)


class Repeating:
    def __init__(self, real: Any, last: int) -> None:
        self.real = real
        self.last = last

    def __iter__(self) -> Iterator[Any]:
        for event in self.real:
            yield event
            if event.position == self.last:
                yield event

    def close(self) -> None:
        self.real.close()


@breaks("an_event_follows_its_parent")
class MakesSiblings(PassingSession):
    def append_many(self, messages: Any, *, parent: Any = None, **options: Any) -> Any:
        if parent is None or options:
            return self.real.append_many(messages, parent=parent, **options)
        acks = [self.real.append(each, parent=parent).result() for each in messages]
        return Told(acks[-1], first=acks[0].first)


@breaks("a_parent_must_be_there")
class FollowsTheHeadInstead(PassingSession):
    def append(self, message: Any, *, parent: Any = None, **options: Any) -> Ack:
        if type(parent) is int and parent >= len(list(self.real.events())):
            parent = None
        return self.real.append(message, parent=parent, **options)


@breaks("history_is_the_path_to_the_head")
class KnowsOneHistory(PassingSession):
    def history(self, limit: int | None = None) -> list[Any]:
        stored = [event.body for event in self.stored]
        return stored if limit is None else stored[len(stored) - min(limit, len(stored)) :]


@breaks("a_path_is_the_chain_of_parents")
class GoesToTheTip(PassingSession):
    def path(self, leaf: Any = None, *given: Any, **options: Any) -> Any:
        if leaf is not None:
            number = self.real.event(leaf).branch
            leaf = next(each.leaf for each in self.real.branches() if each.number == number)
        return self.real.path(leaf, *given, **options)


@breaks("a_path_comes_in_pages")
class CountsInThePathOfNow(PassingSession):
    def path(self, leaf: Any = None, cursor: str | None = None, limit: int = 100) -> Any:
        if cursor is not None and not cursor.isdigit():
            raise UsageError("no cursor")
        events = self.real.path(leaf, limit=1_000).events
        start = int(cursor or 0)
        stop = start + limit
        more = str(stop) if stop < len(events) else None
        return Told(None, events=events[start:stop], cursor=more)


@breaks("branches_written_in_turn_stay_two")
class OpensABranchForEachTurn(PassingSession):
    def branches(self) -> list[Any]:
        found: list[Any] = []
        before = None
        for event in self.stored:
            if not found or event.parent != before:
                found.append(None)
            found[-1] = Told(None, leaf=event.sequence, is_head=event.sequence == self.real.head)
            before = event.sequence
        return found


@breaks("a_checkout_moves_the_head_only")
class CutsAtACheckout(PassingSession):
    def events(self, *given: Any, **options: Any) -> list[Any]:
        gone: set[int] = set()
        for event in self.real.events():
            if event.kind == "head_move" and event.body is None:
                gone.update(range(-1 if event.parent is None else event.parent, event.sequence))
                gone.discard(-1 if event.parent is None else event.parent)
        return [each for each in self.real.events(*given, **options) if each.sequence not in gone]


@breaks("a_fork_copies_nothing")
class CopiesForAFork(PassingSession):
    def fork(self, at: int | None = None) -> Ack:
        path = self.real.path(at).events
        return self.real.append_many([event.body for event in path], parent=-1)


@breaks("names_that_look_alike_are_apart")
class NormalisesNames(Passing):
    def session(self, name: str) -> Any:
        return super().session(unicodedata.normalize("NFC", name))


@breaks("tenants_are_apart")
class JoinsNames(Passing):
    """``a:b`` + ``c`` is then ``a`` + ``b:c``."""

    def tenant(self, name: str) -> Any:
        scope, colon, rest = name.partition(":")
        real = self.real.tenant(scope)

        class Joined(PassingTenant):
            def session(self, name: str) -> Any:
                return super().session(f"{rest}:{name}" if colon else name)

        return Joined(self, real)


@breaks("handles_are_alike")
class RemembersItsHead(PassingSession):
    CHANGES = ("append", "append_many", "checkout", "fork", "update_state", "delete")

    def __getattr__(self, name: str) -> Any:
        if name in self.CHANGES:
            vars(self).pop("known", None)
        return getattr(self.real, name)

    @property
    def head(self) -> int | None:
        if "known" not in vars(self):
            self.known = self.real.head
        return self.known


@breaks("info_counts_what_is_there")
class CountsEverythingAsMessages(PassingSession):
    def info(self) -> Any:
        info = self.real.info()
        return info and Told(info, message_count=info.event_count)


def merged(one: Any, other: Any) -> Any:
    """Maps merged all the way down."""
    if type(one) is not dict or type(other) is not dict:
        return other
    return {**one, **{key: merged(one.get(key), value) for key, value in other.items()}}


@breaks("state_is_the_fold_of_its_changes")
class MergesDeeply(PassingSession):
    def update_state(self, changes: Any, *, delete: Any = ()) -> Ack:
        before = self.real.state
        deep = {key: merged(before.get(key), value) for key, value in changes.items()}
        return self.real.update_state(deep, delete=delete)


@breaks("state_is_the_whole_sessions")
class TakesStateBack(PassingSession):
    def checkout(self, leaf: int | None) -> Ack:
        then = {} if leaf is None else self.real.at(leaf).state
        ack = self.real.checkout(leaf).result()
        self.real.update_state(then, delete=list(self.real.state.keys() - then)).result()
        return ack


@breaks("what_is_deleted_is_gone")
class KeepsTheState(PassingSession):
    def delete(self) -> Ack:
        self.store.memory[self.place] = self.real.state
        return self.real.delete()

    @property
    def state(self) -> Any:
        if self.real.info() is None:
            return self.store.memory.get(self.place, {})
        return self.real.state


@breaks("a_deleted_name_is_free")
class NeverFreesAName(PassingSession):
    def append(self, message: Any, **options: Any) -> Ack:
        if self.place in self.store.memory:
            raise SessionGoneError("the session was deleted")
        return self.real.append(message, **options)

    def delete(self) -> Ack:
        self.store.memory[self.place] = True
        return self.real.delete()


@breaks("acknowledged_survives_reopening")
class KeepsStateInMemory(PassingSession):
    def update_state(self, changes: Any, *, delete: Any = ()) -> Ack:
        state = {**self.state, **copy.deepcopy(changes)}
        kept = {key: value for key, value in state.items() if key not in delete}
        self.store.memory[self.place] = kept
        return self.real.update_state({})

    @property
    def state(self) -> Any:
        return copy.deepcopy(self.store.memory.get(self.place, {}))

    def delete(self) -> Ack:
        self.store.memory.pop(self.place, None)
        return self.real.delete()


@breaks("a_key_survives_reopening")
class KnowsKeysOfThisProcess(PassingSession):
    def _own(self, options: dict[str, Any]) -> dict[str, Any]:
        if "idempotency_key" not in options:
            return options
        mark = self.store.memory.setdefault("mark", f"{self.store.real.last_position}")
        return {**options, "idempotency_key": f"{mark} {options['idempotency_key']}"}

    def append(self, message: Any, **options: Any) -> Ack:
        return self.real.append(message, **self._own(options))

    def append_many(self, messages: Any, **options: Any) -> Ack:
        return self.real.append_many(messages, **self._own(options))


@breaks("flushed_is_durable")
class AppendsWhenAsked(PassingSession):
    def append(self, message: Any, **options: Any) -> Any:
        given = copy.deepcopy(message)
        return Later(lambda: self.real.append(given, **options))


class Later:
    """An ack whose append is made when somebody waits for it."""

    def __init__(self, append: Callable[[], Ack]) -> None:
        self.append = append

    def result(self, timeout: float | None = None) -> Ack:
        return self.append().result(timeout)
