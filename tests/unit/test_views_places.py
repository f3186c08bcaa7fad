"""What a read by position knows of sessions: true for its own transaction, whatever others do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine import Store


def test_two_reads_of_different_age_do_not_share_what_they_know(store: Store) -> None:
    """Each looked at the places twice, so an older read could fill those of a newer one.

    Then the newer one, and all after it, took a session that was deleted for one that is there.
    """
    store.session("a").append({"role": "user"}).result()
    store.session("a").delete().result()
    views: Any = store._log.views
    newer: list[Any] = []

    class Places:
        """The attribute ``_places``; the first who writes it is overtaken by a newer read."""

        def __get__(self, owner: Any, _: Any) -> Any:
            return owner.__dict__["places"]

        def __set__(self, owner: Any, value: Any) -> None:
            owner.__dict__["places"] = value
            if not newer:
                newer.append(None)
                newer[0] = owner._place_of(SimpleNamespace(removals=1))

    class Watched(type(views)):  # type: ignore[misc]
        _places = Places()

    views.__dict__["places"] = (7, {})
    del views.__dict__["_places"]
    views.__class__ = Watched
    older = views._place_of(SimpleNamespace(removals=0))
    with views.transaction() as tables:
        looked: list[int] = []
        real = tables.load_row

        def load_row(number: int) -> Any:
            looked.append(number)
            return real(number)

        tables.load_row = load_row
        older(tables, 1)
        origin, first = newer[0](tables, 1)
        assert looked == [1, 1], "it believed what the older read knew"
    assert (origin.name, first) == ("", 1)
