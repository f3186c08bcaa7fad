"""Who follows a store: projections of applications, reads up to a position, path cursors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tests.model.answers import Refused
from tests.model.operations import Noun
from tests.model.sessions import Kept

if TYPE_CHECKING:
    from engine import Event, Store
    from tests.model.model import ModelStore


@dataclass(slots=True)
class Followed:
    """A projection in the model: how far it got, and what it could not apply."""

    checkpoint: int = 0
    letters: dict[int, tuple[int, bool]] | None = None  # tries, and whether it was skipped


@dataclass(frozen=True, slots=True)
class Project(Noun):
    """A projection that is run once, and then says where it stands.

    Attributes:
        poison: Events at positions that this divides cannot be applied; 0 for none.
        reset: Begins again behind that position first.
    """

    name: str
    tenant: str | None = None
    kinds: tuple[str, ...] | None = None
    limit: int | None = None
    poison: int = 0
    on_poison: str = "skip"
    retries: int = 1
    reset: int | None = None

    writes_hidden: ClassVar[bool] = True

    def perform(self, store: Store) -> Any:
        applied: list[int] = []

        def apply(event: Event) -> None:
            if self.poison and event.position % self.poison == 0:
                raise ValueError("poison")
            applied.append(event.position)

        with store.projection(
            self.name,
            apply,
            tenant=self.tenant,
            kinds=self.kinds,
            on_poison=self.on_poison,  # type: ignore[arg-type]
            retries=0 if self.on_poison != "retry" else self.retries,
        ) as projection:
            if self.reset is not None:
                projection.reset(self.reset)
            count: int | str
            try:
                count = projection.run_once(self.limit)
            except ValueError as error:
                count = str(error)
        letters = [
            (each.position, each.count, each.is_skipped) for each in projection.dead_letters()
        ]
        # Of a checkpoint what follows: it may be behind more of what is for nobody.
        following = [event.position for event in store.read(projection.checkpoint, 1)]
        return applied, count, following, letters

    def expect(self, model: ModelStore) -> Any:
        now = model.followed.setdefault((self.name, self.tenant), Followed(0, {}))
        letters = now.letters
        assert letters is not None
        if self.reset is not None:
            now.checkpoint = self.reset
            letters.clear()
        applied: list[int] = []
        count = 0
        reached = now.checkpoint
        stopped = False
        for kept in self._waiting(model, now.checkpoint):
            if count == self.limit:
                break
            if self.poison and kept.position % self.poison == 0:
                tries, _ = letters.get(kept.position, (0, False))
                tries += 1 + (self.retries if self.on_poison == "retry" else 0)
                letters[kept.position] = (tries, self.on_poison != "stop")
                if self.on_poison == "stop":
                    stopped = True
                    break
            else:
                letters.pop(kept.position, None)
                applied.append(kept.position)
            count += 1
            reached = kept.position
        if not stopped and count != self.limit:
            reached = model.last_position
        if not (count or stopped or self.reset is not None):
            reached = now.checkpoint  # nothing was to be done, and nothing is written
        now.checkpoint = reached
        following = [kept.position for kept in model.log[reached:] if not kept.is_void][:1]
        told = [(position, *each) for position, each in sorted(letters.items())]
        return applied, "poison" if stopped else count, following, told

    def _waiting(self, model: ModelStore, after: int) -> list[Kept]:
        return [
            kept
            for kept in model.log[after:]
            if not kept.is_void
            and not kept.session.is_hidden
            and self.tenant in (None, kept.session.tenant)
            and (self.kinds is None or kept.new.kind in self.kinds)
        ]


@dataclass(frozen=True, slots=True)
class ReadUpTo(Noun):
    """``read`` with a least position that is there, or is not."""

    after: int
    position: int
    limit: int = 20

    def perform(self, store: Store) -> Any:
        found = store.read(self.after, self.limit, min_position=self.position, timeout=0)
        store.up_to(self.position, 0)
        return [(event.position, event.session_number, event.sequence) for event in found]

    def expect(self, model: ModelStore) -> Any:
        if self.position > model.last_position:
            return Refused("NotUpToBoundError")
        found = [kept for kept in model.log[self.after :] if not kept.is_void][: self.limit]
        return [(kept.position, kept.session.number, kept.sequence) for kept in found]


@dataclass(frozen=True, slots=True)
class PathStart(Noun):
    """The first page of a path, and the cursor that goes on."""

    tenant: str
    session: str
    leaf: int | None = None
    limit: int = 2

    writes_hidden: ClassVar[bool] = True  # only the store can know the cursor

    def perform(self, store: Store) -> Any:
        page = store.tenant(self.tenant).session(self.session).path(self.leaf, limit=self.limit)
        return [event.sequence for event in page.events], page.cursor

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None:
            return [], False
        leaf = session.head if self.leaf is None else self.leaf
        refused = None if leaf < 0 else session.path_refusal(leaf)
        if refused is not None:
            return refused
        path = session.shown_path(leaf)
        return path[: self.limit], len(path) > self.limit


@dataclass(frozen=True, slots=True)
class PathRest(Noun):
    """The page that follows a cursor; the path stays that of the first page.

    Attributes:
        number: The incarnation of the session.
        leaf: Where the path of the first page ended.
        last: The last event of the page before.
    """

    tenant: str
    session: str
    cursor: str
    number: int
    leaf: int
    last: int
    limit: int = 1_000

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        page = session.path(cursor=self.cursor, limit=self.limit)
        assert page.cursor is None
        return [event.sequence for event in page.events]

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None or session.number != self.number:
            return Refused("SessionGoneError")
        if self.last + 1 < session.first:
            return Refused("TrimmedError")
        return [each for each in session.path(self.leaf) if each > self.last]
