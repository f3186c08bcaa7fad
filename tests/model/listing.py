"""Listings: sessions by what they are, of one tenant or of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.model.answers import content
from tests.model.facts import find_alias
from tests.model.operations import Noun
from tests.model.sessions import OWNERS, ModelSession, facts_of

if TYPE_CHECKING:
    from engine import Store
    from tests.model.model import ModelStore


@dataclass(frozen=True, slots=True)
class Listed(Noun):
    """All pages of ``sessions`` by facts; tenant None for ``all_tenants``.

    Attributes:
        wanted: Fields and what they are to be.
        metadata: Keys and values that the metadata has.
        alias: An alias that leads to it.
        since: A time of which the model knows which events were recorded before.
        until: Likewise.
    """

    tenant: str | None
    limit: int = 50
    wanted: tuple[tuple[str, str], ...] = ()
    metadata: tuple[tuple[str, Any], ...] = ()
    alias: str | None = None
    since: int | None = None
    until: int | None = None

    def perform(self, store: Store) -> Any:
        listed = store.all_tenants if self.tenant is None else store.tenant(self.tenant)
        found = []
        cursor = None
        while True:
            page = listed.sessions(
                limit=self.limit,
                cursor=cursor,
                metadata=dict(self.metadata),
                alias=self.alias,
                since_us=self.since,
                until_us=self.until,
                **dict(self.wanted),  # type: ignore[arg-type]
            )
            assert len(page.sessions) <= self.limit
            found += [(each.tenant, each.name, each.last_position) for each in page.sessions]
            if page.cursor is None:
                return found
            assert page.cursor != cursor
            cursor = page.cursor

    def expect(self, model: ModelStore) -> Any:
        found = [
            (each.tenant, each.name, each.events[-1].position)
            for each in model.sessions.values()
            if not each.is_hidden
            and self.tenant in (None, each.tenant)
            and self._takes(model, each)
        ]
        return sorted(found, key=lambda each: -each[2])

    def _takes(self, model: ModelStore, session: ModelSession) -> bool:
        facts = facts_of(session)
        for name, value in self.wanted:
            if name == "label":
                if value not in [label for label, _, _ in facts["labels"]]:
                    return False
            else:
                assert name in (*OWNERS, "status")
                if facts[name] != value:
                    return False
        for name, value in self.metadata:
            there = facts["metadata"]
            if name not in there or content(there[name]) != content(value):
                return False
        recorded = model.times.get(session.events[-1].position, 0)
        if self.since is not None and recorded < self.since:
            return False
        if self.until is not None and recorded >= self.until:
            return False
        return self.alias is None or find_alias(model, session.tenant, self.alias) is session
