"""What a progress callback raises comes out of every call that takes one."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from engine import Store, TurnlogError
from tests.format.make_store import STORES, unpack

MESSAGE = {"role": "user", "content": "hello"}
ERRORS = [
    ValueError("mine"),
    OSError(errno.ENOSPC, "mine"),
    TurnlogError("mine"),
    TimeoutError("mine"),
    KeyboardInterrupt("mine"),
]
every_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def stop(*told: object) -> NoReturn:
        raise error

    return stop


def filled(store: Store) -> Store:
    for number in range(40):
        store.session(f"s{number % 4}").append(MESSAGE).result(10)
    store.flush()
    return store


@every_error
def test_a_rebuild_raises_what_its_callback_raised(store: Store, error: BaseException) -> None:
    """The callback ran on the writer's thread, and what it raised was taken for a failed batch.
    The caller got StoreUnavailableError and was told to report it.
    """
    filled(store)
    calls: list[object] = []

    def stop_late(*told: object) -> None:
        calls.append(told)
        if len(calls) == 4:
            raise error

    with pytest.raises(type(error)) as caught:
        store.rebuild(progress=stop_late)
    assert caught.value is error and error.__cause__ is None
    store.session("s0").append(MESSAGE).result(10)
    assert store.check().ok
    report = store.rebuild()  # goes on
    assert report.sessions == 4
    assert len(store.session("s0").history()) == 11


def test_a_rebuild_on_an_event_loop_raises_it_too(store: Store) -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        asyncio.run(filled(store).rebuild_async(raising(error)))
    assert caught.value is error


@every_error
def test_copies_raise_what_their_callbacks_raised(
    store: Store, tmp_path: Path, error: BaseException
) -> None:
    filled(store)
    with pytest.raises(type(error)) as caught:
        store.backup(tmp_path / "backup", progress=raising(error))
    assert caught.value is error
    assert not (tmp_path / "backup").exists()
    store.backup(tmp_path / "backup")
    with pytest.raises(type(error)) as caught:
        Store.restore(tmp_path / "backup", tmp_path / "restored", progress=raising(error))
    assert caught.value is error
    assert not (tmp_path / "restored").exists()
    Store.restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(type(error)) as caught:
        Store.vacuum(tmp_path / "restored", progress=raising(error))
    assert caught.value is error
    Store.vacuum(tmp_path / "restored")
    with Store.open(tmp_path / "restored", create=False) as restored:
        assert restored.last_position == store.last_position
        assert restored.check().ok


@every_error
def test_an_upgrade_raises_what_its_callback_raised(tmp_path: Path, error: BaseException) -> None:
    path = unpack(STORES / "1.tar.xz", tmp_path / "old")
    with pytest.raises(type(error)) as caught:
        Store.upgrade(path, progress=raising(error))
    assert caught.value is error
    report = Store.upgrade(path)
    assert report.before < report.after
    with Store.open(path, create=False) as store:
        assert store.check().ok


@every_error
def test_a_load_raises_what_its_lines_raised(store: Store, error: BaseException) -> None:
    def lines() -> object:
        yield {"tenant": "", "session": "a", "kind": "message", "body": MESSAGE}
        raise error

    with pytest.raises(type(error)) as caught:
        store.load(lines())
    assert caught.value is error
    filled(store)
