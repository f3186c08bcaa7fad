"""A process that forks with a store open: what the child may still ask, and what it is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine import Store
from tests.model.staging import HANG_S, run_script

MAIN = "import sys; from tests.unit.forked import main; main(*sys.argv[1:])"

# What needs the store no more, or only ends: pages that were read before, and closing.
ANSWERED = (
    *("Store.health", "Store.room", "Store.read_async", "Tenant.read_async", "Store.close"),
    *("BlobReader.", "Subscription.close", "Projection.close", "iterator ", "ack "),
)


@pytest.mark.parametrize("folder", ["eventlog", "engine"])
def test_no_property_is_cached_under_a_lock_of_its_own(folder: str) -> None:
    """A child that opened the store anew hung now and then: it inherited the lock of a
    ``cached_property``, one for all instances in Python 3.11, which a thread of the parent held.
    """
    root = Path(__file__).parents[2] / folder
    assert [path for path in root.rglob("*.py") if "cached_property" in path.read_text()] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("way", "children"), [("quiet", 1), ("busy", 3), ("locked", 1)])
def test_a_forked_child_gets_a_typed_error_from_every_call(
    store_path: Path, way: str, children: int
) -> None:
    """py-lmdb 346: what was open before a fork failed in the child in ways of its own.

    Here each call that ends in ``_async`` waited for ever, as the threads of the pool stayed in the
    parent; so did opening, closing and others, when a thread held a lock as the process forked.
    """
    found = json.loads(run_script(MAIN, store_path, way, str(children), seconds=8 * HANG_S))
    assert found["missing"] == [], "public calls that no child tried"
    assert len(found["told"]) == children
    for told in found["told"]:
        for name, outcome in told.items():
            answered = outcome == "answered" and name.startswith(ANSWERED)
            assert answered or outcome == "ForkedStoreError", (name, outcome)
        assert len(told) > 200
    with Store.open(store_path) as store:
        pids = [body["pid"] for body in store.session("child").history()]
        assert len(set(pids)) == children
        call = store.tenant("acme").session("call")
        assert call.documents.read("NOTES.md") == "one\ntwo\ud83d"
        assert len(store.tenant("acme").session("asked").history()) == 3 * children
        assert store.check().ok
