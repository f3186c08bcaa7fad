"""What programs import: each class that a public call takes or gives has a name in ``engine``."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any, get_args, get_origin, get_type_hints

import engine
import eventlog
from engine import KEEP, Keep, Session

OURS = ("engine", "eventlog")
INTERNAL = {  # of what callers hold, what the store alone asks
    *("Ack.all_drafts", "Ack.removal", "Part.drafts", "Part.versions"),
    *("CheckReport.add", "CheckReport.add_error"),
}


def names_of_all() -> dict[str, Any]:
    """What modules define, for annotations whose imports are for type checkers alone."""
    found: dict[str, Any] = {}
    for package in (engine, eventlog):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if not module.ispkg:
                found |= vars(importlib.import_module(module.name))
    return found


NAMES = names_of_all()


def classes_in(annotation: Any) -> Iterator[type]:
    """The classes of ours in an annotation, also as arguments of others."""
    is_class = isinstance(annotation, type) and get_origin(annotation) is None
    if is_class and annotation.__module__.partition(".")[0] in OURS:
        yield annotation
    for each in get_args(annotation):
        yield from classes_in(each)
        if isinstance(each, list):  # of a Callable
            for part in each:
                yield from classes_in(part)


def hints(thing: Any) -> dict[str, Any]:
    known = vars(sys.modules[thing.__module__])
    return get_type_hints(thing, globalns={**NAMES, **known})


def mentioned(owner: type) -> Iterator[tuple[str, type]]:
    """Public attributes of a class with the classes in their annotations."""
    for name in dir(owner):
        if name.startswith("_") and name not in ("__enter__", "__iter__", "__aiter__"):
            continue
        static = inspect.getattr_static(owner, name)
        if isinstance(static, property):
            static = static.fget
        if isinstance(static, classmethod | staticmethod):
            static = static.__func__
        if isinstance(static, FunctionType) and static.__module__.partition(".")[0] in OURS:
            for annotation in hints(static).values():
                for found in classes_in(annotation):
                    yield name, found
    if issubclass(owner, tuple) or hasattr(owner, "__dataclass_fields__"):
        for name, annotation in hints(owner).items():
            for found in classes_in(annotation) if not name.startswith("_") else ():
                yield name, found


def test_what_public_calls_take_and_give_is_exported() -> None:
    """``Runs``, ``Documents``, ``KEEP`` and others could be had, and not be named in a program."""
    exported = {getattr(engine, name) for name in engine.__all__}
    waiting: list[type] = [engine.Store]
    seen: set[type] = set()
    missing: set[str] = set()
    while waiting:
        owner = waiting.pop()
        if owner in seen:
            continue
        seen.add(owner)
        for name, found in mentioned(owner):
            if found.__name__.startswith("_") or f"{owner.__name__}.{name}" in INTERNAL:
                continue
            if found not in exported:
                missing.add(f"{found.__module__}.{found.__name__}, of {owner.__name__}.{name}")
            waiting.append(found)
    assert not missing, "\n".join(sorted(missing))
    assert len(seen) > 40 and {engine.Runs, engine.Facts, engine.UsageRecord} <= seen


def test_all_names_what_is_there_in_order() -> None:
    assert engine.__all__ == sorted(engine.__all__)
    assert all(hasattr(engine, name) for name in engine.__all__)


def test_keep_is_the_default_that_it_stands_for() -> None:
    default = inspect.signature(Session.set_owner).parameters["user_id"].default
    assert default is KEEP and type(KEEP) is Keep
