"""Fixtures that every test may use: a place for a store, a checked store, the corpus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from engine import Store

REPOSITORY = Path(__file__).resolve().parents[1]
CORPUS = Path(os.environ.get("TURNLOG_CORPUS", REPOSITORY.parent / "shared" / "corpus"))

# A failure always prints the line that repeats it. "explore" looks where no run looked before:
# pytest --hypothesis-profile=explore [--hypothesis-seed=N].
settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=1_000)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--model-steps",
        type=int,
        default=5_000,
        help="steps of the model machine",
    )
    parser.addoption(
        "--crash-cycles",
        type=int,
        default=3,
        metavar="N",
        help="how often each crash test kills or breaks something (default: 3)",
    )


@pytest.fixture
def crash_cycles(request: pytest.FixtureRequest) -> int:
    """How often a crash test repeats itself."""
    cycles = request.config.getoption("--crash-cycles")
    assert isinstance(cycles, int)
    return cycles


@pytest.fixture
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


@pytest.fixture
def corpus() -> Path:
    """The folder of real conversations; the test is skipped where there is none."""
    if not CORPUS.is_dir():
        pytest.skip(f"no corpus at {CORPUS}; TURNLOG_CORPUS names another place")
    return CORPUS


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Where a store may be made; nothing is there yet."""
    return tmp_path / "store"


@pytest.fixture
def checked_store(store_path: Path) -> Iterator[Callable[..., Store]]:
    """Opens stores; when the test ends, each is closed, opened once more and checked.

    ``checked_store()`` opens ``store_path``, ``checked_store(path, **options)`` another one.
    """
    from engine import Store

    opened: list[tuple[Path, Store]] = []

    def open_store(path: Path = store_path, **options: Any) -> Store:
        store = Store.open(path, **options)
        opened.append((path, store))
        return store

    yield open_store
    for _, store in reversed(opened):
        store.close()
    for path in dict.fromkeys(path for path, _ in opened):
        if path.exists():
            with Store.open(path, create=False) as store:
                report = store.check()
            assert report.ok, f"check of {path} after the test: {report.findings}"


@pytest.fixture
def store(checked_store: Callable[..., Store]) -> Store:
    """A new store, checked when the test ends."""
    return checked_store()
